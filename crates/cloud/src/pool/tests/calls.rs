//! Calls that go well, and what they cost the peer.

use http::{HeaderName, HeaderValue};

use super::peer::{DATA, Peer, RST_STREAM, serve};
use super::*;
use crate::error::Cookies;
use crate::routing::RoutingHeader;

#[tokio::test]
async fn a_request_carries_what_every_method_needs() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool(&listener);
    let (seen, mut see) = tokio::sync::mpsc::channel(1);
    let _server = serve(listener, move |asked| {
        let seen = seen.clone();
        async move {
            seen.send((
                asked.path.clone(),
                asked.headers.clone(),
                asked.body.clone(),
            ))
            .await
            .expect("the test waits");
            asked.reply(framed(b"done")).await;
        }
    });
    let cookie: http::HeaderMap = [(
        HeaderName::from_static("x-goog-cbt-cookie-a"),
        HeaderValue::from_static("1"),
    )]
    .into_iter()
    .collect();
    let spec = CallSpec::new(
        "/google.bigtable.v2.Bigtable/MutateRows",
        Duration::from_millis(1_500),
    )
    .routing(&RoutingHeader::new().param("table_name", "a/b"))
    .cookies(&Cookies::from_headers(&cookie));
    assert_eq!(
        read(pool.call(&spec, framed(b"request")))
            .await
            .expect("served"),
        ["done"]
    );
    let (path, headers, body) = within("the request", see.recv()).await.expect("seen");
    assert_eq!(path, "/google.bigtable.v2.Bigtable/MutateRows");
    assert_eq!(body, framed(b"request"));
    for (name, value) in [
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        (
            "user-agent",
            concat!("aqueduct/", env!("CARGO_PKG_VERSION")),
        ),
        ("grpc-timeout", "1500000u"),
        ("x-goog-request-params", "table_name=a%2Fb"),
        ("x-goog-cbt-cookie-a", "1"),
    ] {
        assert_eq!(
            headers.get(name).and_then(|v| v.to_str().ok()),
            Some(value),
            "{name}"
        );
    }
    assert!(headers.get("authorization").is_none());
}

#[tokio::test]
async fn an_answer_may_hold_no_message_or_come_in_single_bytes() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool(&listener);
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        let stream = peer.request().await;
        peer.headers(stream, 1, &[(":status", "200"), ("grpc-status", "0")])
            .await;
        let stream = peer.request().await;
        peer.begin(stream).await;
        for byte in [framed(b"slow"), framed(b""), framed(b"ly")].concat() {
            peer.send(DATA, 0, stream, &[byte]).await;
        }
        peer.trailers(stream, &[("grpc-status", "0")]).await;
        while peer.next().await.is_some() {}
    });
    assert!(
        read(pool.call(&spec(), framed(b"1")))
            .await
            .expect("OK")
            .is_empty()
    );
    assert_eq!(
        read(pool.call(&spec(), framed(b"2"))).await.expect("OK"),
        ["slow", "", "ly"]
    );
    drop(pool);
    within("the peer", server)
        .await
        .expect("the peer keeps its part");
}

#[tokio::test]
async fn bodies_larger_than_every_window_arrive_whole() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool_with(&listener, PoolOptions::default().windows(65_535, 65_535));
    let _server = serve(listener, |asked| {
        let body = asked.body.clone();
        asked.reply(body)
    });
    let large: Vec<u8> = (0..700_000u32).map(|n| n.to_le_bytes()[1]).collect();
    let answer = read(pool.call(&spec(), framed(&large)))
        .await
        .expect("echoed");
    assert!(
        answer.len() == 1 && answer[0] == large,
        "{} messages",
        answer.len()
    );
}

#[tokio::test]
async fn a_message_above_the_limit_fails_the_call_and_names_the_limit() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool(&listener);
    let _server = serve(listener, |asked| asked.reply(framed(&[0; 1_001])));
    let error = read(pool.call(&spec().max_message(1_000), framed(b"1")))
        .await
        .expect_err("too long");
    assert_eq!(
        (error.code(), error.origin()),
        (Code::OutOfRange, Origin::Protocol)
    );
    assert!(
        error
            .statuses()
            .to_string()
            .contains("1001 bytes exceeds the limit of 1000"),
        "{error:?}"
    );
    assert_eq!(
        read(pool.call(&spec().max_message(1_001), framed(b"2")))
            .await
            .expect("at the limit")
            .len(),
        1
    );
}

#[tokio::test]
async fn unary_decodes_one_message_and_refuses_none_two_or_nonsense() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool(&listener);
    let _server = serve(listener, |asked| {
        let body = match &asked.body[5..] {
            b"\x08\x01" => framed(b"\x08\x2a"),
            b"\x08\x02" => Bytes::new(),
            b"\x08\x03" => Bytes::from([framed(b""), framed(b"")].concat()),
            _ => framed(b"\xff"),
        };
        asked.reply(body)
    });
    let ask = |seconds| {
        let request = prost_types::Duration { seconds, nanos: 0 };
        let answer = pool.unary::<_, prost_types::Duration>(&spec(), &request);
        async { within("the answer", answer).await }
    };
    assert_eq!(ask(1).await.expect("one message").seconds, 42);
    for (n, words) in [
        (2, "no message"),
        (3, "more than one"),
        (4, "expected type"),
    ] {
        let error = ask(n).await.expect_err(words);
        assert_eq!(error.origin(), Origin::Protocol);
        assert!(error.statuses().to_string().contains(words), "{error:?}");
    }
}

#[tokio::test]
async fn dropping_a_call_or_its_answer_cancels_it_on_the_wire() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool(&listener);
    let (answered, mut seen) = tokio::sync::mpsc::channel(1);
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        let first = peer.request().await;
        peer.begin(first).await;
        answered.send(()).await.expect("the test waits");
        let mut cancelled = Vec::new();
        while cancelled.len() < 2 {
            let frame = peer.next().await.expect("requests and resets");
            match frame.kind {
                RST_STREAM => {
                    assert_eq!(frame.payload, &8u32.to_be_bytes()[..], "CANCEL");
                    cancelled.push(frame.stream);
                }
                DATA => answered.send(()).await.expect("the test waits"),
                _ => {}
            }
        }
        assert_eq!(cancelled, [first, first + 2]);
    });
    let answer = within("headers", pool.call(&spec(), framed(b"1")))
        .await
        .expect("headers");
    within("the peer", seen.recv()).await;
    drop(answer);
    {
        let call = std::pin::pin!(pool.call(&spec(), framed(b"2")));
        let sent = std::pin::pin!(seen.recv());
        match within("the request", futures::future::select(call, sent)).await {
            futures::future::Either::Left(_) => panic!("there is no answer"),
            futures::future::Either::Right((got, _)) => assert!(got.is_some()),
        }
    }
    within("the peer", server).await.expect("the peer saw both");
}

#[tokio::test]
async fn an_owner_can_drive_many_calls_on_its_own_task() {
    use futures::StreamExt as _;
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool_with(&listener, channels(2));
    let _server = serve(listener, |asked| {
        let body = asked.body.clone();
        asked.reply(body)
    });
    let mut calls = futures::stream::FuturesUnordered::new();
    for n in 0..300u32 {
        calls.push(read(pool.call(&spec(), framed(&n.to_be_bytes()))));
    }
    let mut seen = Vec::new();
    while let Some(answer) = within("an answer", calls.next()).await {
        let answer = answer.expect("echoed");
        seen.push(u32::from_be_bytes(
            answer[0][..].try_into().expect("four bytes"),
        ));
    }
    seen.sort_unstable();
    assert!(
        seen.iter().copied().eq(0..300),
        "more calls than one connection carries, each answered once"
    );
}
