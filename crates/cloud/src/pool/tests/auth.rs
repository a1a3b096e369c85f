//! Tokens on calls, against scripted credentials.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use google_cloud_auth::credentials::{self as google, CacheableResource, EntityTag};
use google_cloud_auth::errors::CredentialsError;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue};

use super::peer::{Peer, serve};
use super::*;

/// Credentials that count how often they are made and asked; the token is the number of the making.
#[derive(Clone, Debug, Default)]
struct Script {
    made: Arc<AtomicUsize>,
    asked: Arc<AtomicUsize>,
    /// Failures to come: transient or not.
    failures: Arc<Mutex<Vec<bool>>>,
}

#[derive(Debug)]
struct Live {
    script: Script,
    number: usize,
}

impl google::CredentialsProvider for Live {
    async fn headers(
        &self,
        _: Extensions,
    ) -> Result<CacheableResource<HeaderMap>, CredentialsError> {
        self.script.asked.fetch_add(1, Ordering::Relaxed);
        let failure = self.script.failures.lock().expect("no panic").pop();
        if let Some(transient) = failure {
            return Err(CredentialsError::from_msg(
                transient,
                "secret words of the token server",
            ));
        }
        let token = HeaderValue::from_str(&format!("Bearer token-{}", self.number)).expect("text");
        let data = [
            (HeaderName::from_static("authorization"), token),
            (
                HeaderName::from_static("x-goog-user-project"),
                HeaderValue::from_static("payer"),
            ),
        ]
        .into_iter()
        .collect();
        Ok(CacheableResource::New {
            entity_tag: EntityTag::new(),
            data,
        })
    }

    async fn universe_domain(&self) -> Option<String> {
        None
    }
}

impl Script {
    fn provider(&self) -> TokenProvider {
        let script = self.clone();
        TokenProvider::scripted(move || {
            let number = script.made.fetch_add(1, Ordering::Relaxed) + 1;
            Live {
                script: script.clone(),
                number,
            }
            .into()
        })
    }

    fn counts(&self) -> (usize, usize) {
        (
            self.made.load(Ordering::Relaxed),
            self.asked.load(Ordering::Relaxed),
        )
    }
}

/// Serves those who show `token`, and tells the others that they are unknown.
fn serve_holders(listener: TcpListener, token: &'static str) -> tokio::task::JoinSet<()> {
    serve(listener, move |asked| async move {
        let shown = asked
            .headers
            .get("authorization")
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        assert_eq!(
            asked
                .headers
                .get("x-goog-user-project")
                .map(HeaderValue::as_bytes),
            Some(&b"payer"[..])
        );
        if shown.as_deref() == Some(token) {
            asked.reply(framed(b"known")).await;
        } else {
            asked.refuse("16");
        }
    })
}

#[tokio::test]
async fn a_token_is_fetched_once_and_looked_after_every_five_seconds() {
    let (host, script, listener) = (Host::new(), Script::default(), listen().await);
    let tokens = script.provider();
    let pool = host.pool_for(&listener, tokens.clone(), PoolOptions::default());
    let _server = serve_holders(listener, "Bearer token-1");
    for _ in 0..10 {
        read(pool.call(&spec(), framed(b"1"))).await.expect("known");
    }
    assert_eq!(script.counts(), (1, 1));
    host.clock.advance(Duration::from_secs(5));
    for _ in 0..10 {
        read(pool.call(&spec(), framed(b"1"))).await.expect("known");
    }
    assert_eq!(script.counts(), (1, 2));
    assert!(!format!("{pool:?} {tokens:?}").contains("token-"));
}

#[tokio::test]
async fn a_refused_token_is_replaced_once_without_the_callers_help() {
    let (host, script, listener) = (Host::new(), Script::default(), listen().await);
    let pool = host.pool_for(&listener, script.provider(), PoolOptions::default());
    let _server = serve_holders(listener, "Bearer token-2");
    assert_eq!(
        read(pool.call(&spec(), framed(b"1")))
            .await
            .expect("known after all"),
        ["known"]
    );
    assert_eq!(script.counts().0, 2);
}

#[tokio::test]
async fn many_calls_refused_with_one_token_replace_it_once() {
    let (host, script, listener) = (Host::new(), Script::default(), listen().await);
    let pool = host.pool_for(&listener, script.provider(), PoolOptions::default());
    let _server = serve_holders(listener, "Bearer token-2");
    let calls = (0..20).map(|_| read(pool.call(&spec(), framed(b"1"))));
    for answer in futures::future::join_all(calls).await {
        assert_eq!(answer.expect("known after all"), ["known"]);
    }
    assert_eq!(script.counts().0, 2);
}

#[tokio::test]
async fn a_second_refusal_is_final_and_replacing_is_not_hurried() {
    let (host, script, listener) = (Host::new(), Script::default(), listen().await);
    let pool = host.pool_for(&listener, script.provider(), PoolOptions::default());
    let _server = serve_holders(listener, "Bearer nobody");
    for _ in 0..5 {
        let error = read(pool.call(&spec(), framed(b"1")))
            .await
            .expect_err("unknown");
        assert_eq!(
            (error.code(), error.origin()),
            (Code::Unauthenticated, Origin::Service)
        );
    }
    assert_eq!(script.counts().0, 2, "the clock stands still");
    host.clock.advance(crate::credentials::RENEW_PAUSE);
    read(pool.call(&spec(), framed(b"1")))
        .await
        .expect_err("unknown");
    assert_eq!(script.counts().0, 3);
}

#[tokio::test]
async fn a_failure_to_get_a_token_says_whether_it_may_pass_and_quotes_nothing() {
    let (host, script, listener) = (Host::new(), Script::default(), listen().await);
    let pool = host.pool_for(&listener, script.provider(), PoolOptions::default());
    let _server = serve_holders(listener, "Bearer token-2");
    for (transient, code) in [(true, Code::Unavailable), (false, Code::Unauthenticated)] {
        script.failures.lock().expect("no panic").push(transient);
        let error = read(pool.call(&spec(), framed(b"1")))
            .await
            .expect_err("no token");
        assert_eq!(
            (error.code(), error.delivery(), error.origin()),
            (code, Delivery::NotSent, Origin::Credentials)
        );
        let text = aqueduct_connector::Error::io("call")
            .with_source(error)
            .report();
        assert!(!text.contains("secret"), "{text}");
    }
    assert_eq!(
        read(pool.call(&spec(), framed(b"1")))
            .await
            .expect("recovered"),
        ["known"]
    );
}

#[tokio::test]
async fn a_refusal_at_the_end_of_an_answer_makes_the_next_call_show_a_fresh_token() {
    let (host, script, listener) = (Host::new(), Script::default(), listen().await);
    let pool = host.pool_for(&listener, script.provider(), PoolOptions::default());
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        let stream = peer.request().await;
        peer.begin(stream).await;
        peer.trailers(stream, &[("grpc-status", "16")]).await;
        let stream = peer.request().await;
        peer.answer(stream, b"known").await;
        while peer.next().await.is_some() {}
    });
    let error = read(pool.call(&spec(), framed(b"1")))
        .await
        .expect_err("refused");
    assert_eq!(error.code(), Code::Unauthenticated);
    assert_eq!(script.counts().0, 1);
    assert_eq!(
        read(pool.call(&spec(), framed(b"2"))).await.expect("known"),
        ["known"]
    );
    assert_eq!(script.counts().0, 2);
    drop(pool);
    within("the peer", server)
        .await
        .expect("the peer keeps its part");
}
