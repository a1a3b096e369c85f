//! Connections: how many, when, for how long.

use std::future::pending;
use std::pin::pin;
use std::sync::atomic::AtomicUsize;

use futures::future::{Either, join, select};

use super::peer::{END_STREAM, Peer, serve, serve_one};
use super::*;

/// Polls `call`, which must not end, until `event` has come.
async fn while_pending<T>(
    what: &str,
    call: impl Future<Output = Result<ResponseStream, CallError>>,
    event: impl Future<Output = T>,
) -> T {
    match within(what, select(pin!(call), pin!(event))).await {
        Either::Left((result, _)) => panic!("{what}: the call ended: {:?}", result.err()),
        Either::Right((value, _)) => value,
    }
}

#[tokio::test]
async fn nothing_connects_before_a_call_and_busy_channels_are_joined_by_idle_ones() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool_with(&listener, channels(2));
    assert!(futures::poll!(pin!(listener.accept())).is_pending(), "lazy");
    let mut first = pin!(pool.call(&spec(), framed(b"1")));
    let mut one = while_pending("the first request", first.as_mut(), async {
        let mut peer = Peer::accept(&listener).await;
        peer.request().await;
        peer
    })
    .await;
    // The second call finds the first channel busy: it goes there, and another channel connects.
    let mut second = pin!(pool.call(&spec(), framed(b"2")));
    let mut two = while_pending(
        "the second channel",
        second.as_mut(),
        Peer::accept(&listener),
    )
    .await;
    let mut third = pin!(pool.call(&spec(), framed(b"3")));
    while_pending("the third request", third.as_mut(), async {
        one.request().await;
        // The new channel is ready as soon as its handshake is through.
        two.request().await
    })
    .await;
}

#[tokio::test]
async fn dropping_the_pool_ends_its_connections() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool(&listener);
    pool.connect();
    let mut peer = within("the connection", Peer::accept(&listener)).await;
    let other = pool.clone();
    drop(pool);
    drop(other);
    while within("the end", peer.next()).await.is_some() {}
}

#[tokio::test]
async fn a_new_connection_warms_up_before_it_serves_and_serves_even_if_that_fails() {
    for status in ["0", "12"] {
        let host = Host::new();
        let listener = listen().await;
        let warm_up = WarmUp {
            spec: CallSpec::new("/test.Service/Warm", Duration::from_secs(30)),
            body: framed(b"warm"),
        };
        let pool = host.pool_with(&listener, PoolOptions::default().warm_up(warm_up));
        let (seen, mut see) = tokio::sync::mpsc::channel(4);
        let _server = serve(listener, move |asked| {
            let seen = seen.clone();
            async move {
                seen.send(asked.path.clone()).await.expect("the test reads");
                if asked.path.ends_with("Warm") {
                    asked.refuse(status);
                } else {
                    asked.reply(framed(b"served")).await;
                }
            }
        });
        assert_eq!(
            read(pool.call(&spec(), framed(b"1")))
                .await
                .expect("served"),
            ["served"]
        );
        assert_eq!(see.recv().await.as_deref(), Some("/test.Service/Warm"));
        assert_eq!(see.recv().await.as_deref(), Some("/test.Service/Method"));
    }
}

/// Pings soon, so that tests are short; waits `patience` for the answer.
fn eager(patience: Duration) -> PoolOptions {
    PoolOptions {
        keep_alive: Duration::from_millis(50),
        keep_alive_timeout: patience,
        ..PoolOptions::default()
    }
}

#[tokio::test]
async fn a_peer_that_answers_no_ping_is_given_up() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool_with(&listener, eager(Duration::from_millis(200)));
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        peer.polite = false;
        peer.request().await;
        while peer.next().await.is_some() {}
        peer.pings
    });
    let error = read(pool.call(&spec(), framed(b"1")))
        .await
        .expect_err("a dead peer");
    assert_eq!(
        (error.code(), error.delivery()),
        (Code::Unavailable, Delivery::Unknown)
    );
    assert!(
        error.statuses().to_string().contains("keep-alive ping"),
        "{error:?}"
    );
    assert_eq!(within("the peer", server).await.expect("no panic"), 1);
}

#[tokio::test]
async fn a_slow_peer_that_answers_pings_is_kept() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool_with(&listener, eager(PATIENCE));
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        let stream = peer.request().await;
        while peer.pings < 3 {
            let frame = tokio::time::timeout(Duration::from_millis(20), peer.next()).await;
            assert!(!matches!(frame, Ok(None)), "the client gave up");
        }
        peer.answer(stream, b"late").await;
        while peer.next().await.is_some() {}
    });
    assert_eq!(
        read(pool.call(&spec(), framed(b"1"))).await.expect("kept"),
        ["late"]
    );
    drop(pool);
    within("the peer", server)
        .await
        .expect("the peer keeps its part");
}

#[tokio::test]
async fn an_idle_connection_is_not_pinged() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool_with(&listener, eager(PATIENCE));
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        let stream = peer.request().await;
        peer.answer(stream, b"done").await;
        // Ten intervals without a call.
        let frame = tokio::time::timeout(Duration::from_millis(500), peer.next()).await;
        assert!(frame.is_err(), "{frame:?}");
        peer.pings
    });
    assert_eq!(
        read(pool.call(&spec(), framed(b"1")))
            .await
            .expect("served"),
        ["done"]
    );
    assert_eq!(within("the peer", server).await.expect("no panic"), 0);
}

#[tokio::test]
async fn a_stopped_connection_task_fails_its_waiters_instead_of_leaving_them() {
    struct Never;
    impl Spawn for Never {
        fn spawn(&self, name: &'static str, future: TaskFuture) -> Task {
            // A runtime that is shutting down drops what it is given.
            drop(future);
            OnTokio.spawn(name, Box::pin(pending()))
        }
    }
    let mut host = Host::new();
    host.context.spawn = Arc::new(Never);
    let listener = listen().await;
    let pool = host.pool(&listener);
    let error = read(pool.call(&spec(), framed(b"1")))
        .await
        .expect_err("no task");
    assert_eq!(
        (error.code(), error.delivery()),
        (Code::Unavailable, Delivery::NotSent)
    );
}

struct Certificate {
    server: Arc<rustls::ServerConfig>,
    client: Arc<rustls::ClientConfig>,
}

fn certificate(alpn: &[u8]) -> Certificate {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a root");
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der())
        .expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a chain");
    server.alpn_protocols = vec![alpn.to_vec()];
    let client = connect::client_config(roots).expect("a configuration");
    Certificate {
        server: Arc::new(server),
        client,
    }
}

impl Host {
    fn tls_pool(
        &self,
        listener: &TcpListener,
        tls: Option<Arc<rustls::ClientConfig>>,
        options: PoolOptions,
    ) -> ChannelPool {
        let endpoint = Endpoint::tls("localhost", listener.local_addr().expect("bound").port());
        let clock = self.context.clock.clone();
        ChannelPool::build(
            &self.context,
            Target {
                endpoint,
                tokens: TokenProvider::none(),
                options,
                clock,
                tls,
            },
        )
    }
}

/// One TLS connection, served.
async fn serve_tls(listener: TcpListener, config: Arc<rustls::ServerConfig>) {
    let (tcp, _) = listener.accept().await.expect("a connection");
    if let Ok(tls) = tokio_rustls::TlsAcceptor::from(config).accept(tcp).await {
        serve_one(tls, |asked| asked.reply(framed(b"secret"))).await;
    }
}

#[tokio::test]
async fn calls_travel_over_tls_and_an_unknown_issuer_or_protocol_is_refused() {
    let host = Host::new();
    let (good, other, old) = (
        certificate(b"h2"),
        certificate(b"h2"),
        certificate(b"http/1.1"),
    );
    let ask = async |server: Arc<rustls::ServerConfig>, client: Arc<rustls::ClientConfig>| {
        let listener = listen().await;
        let pool = host.tls_pool(&listener, Some(client), PoolOptions::default());
        let call = async {
            let answer = read(pool.call(&spec(), framed(b"1"))).await;
            drop(pool);
            answer
        };
        join(call, serve_tls(listener, server)).await.0
    };
    assert_eq!(
        ask(good.server, good.client.clone()).await.expect("served"),
        ["secret"]
    );
    for server in [other.server, old.server] {
        let error = ask(server, good.client.clone()).await.expect_err("refused");
        assert_eq!(
            (error.code(), error.delivery()),
            (Code::Unavailable, Delivery::NotSent),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_handshake_without_end_is_limited_and_says_so() {
    let host = Host::new();
    let listener = listen().await;
    let tls = Some(certificate(b"h2").client);
    let options = PoolOptions::default().connect_timeout(Duration::from_millis(50));
    let pool = host.tls_pool(&listener, tls, options);
    let error = read(pool.call(&spec(), framed(b"1")))
        .await
        .expect_err("no handshake");
    assert_eq!(
        (error.code(), error.delivery()),
        (Code::Unavailable, Delivery::NotSent)
    );
    assert!(
        error.statuses().to_string().contains("longer than 50ms"),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_deadline_while_connecting_means_not_sent() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.tls_pool(
        &listener,
        Some(certificate(b"h2").client),
        PoolOptions::default(),
    );
    let mut call = pin!(pool.call(&spec().timeout(Duration::from_secs(1)), framed(b"1")));
    let _held = while_pending("the connection", call.as_mut(), listener.accept()).await;
    host.clock.advance(Duration::from_secs(1));
    let error = within("the deadline", call).await.expect_err("too late");
    assert_eq!(
        (error.code(), error.delivery()),
        (Code::DeadlineExceeded, Delivery::NotSent)
    );
}

#[tokio::test]
async fn reconnecting_survives_a_peer_that_keeps_closing() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool(&listener);
    let served = Arc::new(AtomicUsize::new(0));
    let count = served.clone();
    let server = tokio::spawn(async move {
        for _ in 0..5 {
            let mut peer = Peer::accept(&listener).await;
            let stream = peer.request().await;
            peer.headers(
                stream,
                END_STREAM,
                &[(":status", "200"), ("grpc-status", "0")],
            )
            .await;
            peer.goaway(stream, 0).await;
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    });
    while served.load(std::sync::atomic::Ordering::Relaxed) < 5 {
        match read(pool.call(&spec(), framed(b"1"))).await {
            Ok(messages) => assert!(messages.is_empty()),
            // Sent into the closing connection: a caller would try again, and so does this test.
            Err(error) => assert_eq!(error.code(), Code::Unavailable, "{error:?}"),
        }
    }
    within("the peer", server)
        .await
        .expect("the peer keeps its part");
}

#[test]
fn credentials_are_refused_beside_a_plaintext_endpoint() {
    let host = Host::new();
    let endpoint = Endpoint::emulator("emulator-endpoint", "localhost:1").expect("an address");
    let tokens =
        TokenProvider::new(&crate::Credentials::ApplicationDefault).expect("nothing is read yet");
    let error = ChannelPool::new(&host.context, endpoint, tokens, PoolOptions::default())
        .expect_err("refused");
    assert_eq!(error.kind(), aqueduct_connector::ErrorKind::Config);
}
