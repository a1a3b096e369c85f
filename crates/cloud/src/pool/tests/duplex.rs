//! Calls whose request side stays open.

use super::peer::{DATA, END_STREAM, HEADERS, Peer, RST_STREAM, WINDOW_UPDATE};
use super::*;

fn is_send<T: Send>(_: &T) {}

/// Reads DATA of the only call until `bytes` of payload have come; whether the last frame ended the request.
async fn payload(peer: &mut Peer, bytes: usize) -> (Vec<u8>, bool) {
    let (mut all, mut ended) = (Vec::new(), false);
    while all.len() < bytes {
        let frame = peer.next().await.expect("the request goes on");
        assert_eq!(frame.kind, DATA);
        all.extend_from_slice(&frame.payload);
        ended = frame.flags & END_STREAM != 0;
    }
    (all, ended)
}

#[tokio::test]
async fn messages_go_both_ways_and_a_half_close_lets_the_answer_end() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool(&listener);
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        let head = peer.next().await.expect("headers");
        assert_eq!(
            (head.kind, head.flags & END_STREAM),
            (HEADERS, 0),
            "the request stays open"
        );
        assert_eq!(
            payload(&mut peer, 10).await,
            (framed(b"first").to_vec(), false)
        );
        // More comes although no headers have gone back.
        assert_eq!(
            payload(&mut peer, 11).await,
            (framed(b"second").to_vec(), false)
        );
        peer.begin(head.stream).await;
        peer.send(DATA, 0, head.stream, &framed(b"one")).await;
        assert_eq!(
            payload(&mut peer, 10).await,
            (framed(b"third").to_vec(), false)
        );
        let end = peer.next().await.expect("the half-close");
        assert!(end.payload.is_empty() && end.flags & END_STREAM != 0);
        peer.send(DATA, 0, head.stream, &framed(b"two")).await;
        peer.trailers(head.stream, &[("grpc-status", "0")]).await;
        while peer.next().await.is_some() {}
    });
    let mut call = pool.duplex(&spec(), framed(b"first"));
    is_send(&call);
    call.send(framed(b"second")).expect("room");
    let message = within("a message", call.message()).await.expect("one");
    assert_eq!(message.expect("good"), "one");
    assert!(call.received().is_some_and(|bytes| bytes > 0));
    call.send(framed(b"third")).expect("room");
    call.close();
    call.send(framed(b"dropped")).expect("no error");
    let message = within("a message", call.message()).await.expect("one");
    assert_eq!(message.expect("good"), "two");
    assert!(within("the end", call.message()).await.is_none());
    assert!(within("the end", call.message()).await.is_none());
    drop((call, pool));
    within("the peer", server)
        .await
        .expect("the peer keeps its part");
}

#[tokio::test]
async fn what_the_peer_has_no_window_for_waits_within_a_bound_and_arrives_later() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool(&listener);
    let (go, wait) = tokio::sync::oneshot::channel();
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        let head = peer.next().await.expect("headers");
        peer.begin(head.stream).await;
        peer.send(DATA, 0, head.stream, &framed(b"hello")).await;
        // The protocol's initial window, and not a byte more.
        payload(&mut peer, 65_535).await;
        let total: usize = wait.await.expect("the test says how much");
        for stream in [0, head.stream] {
            peer.send(WINDOW_UPDATE, 0, stream, &(1u32 << 20).to_be_bytes())
                .await;
        }
        payload(&mut peer, total - 65_535).await;
        peer.trailers(head.stream, &[("grpc-status", "0")]).await;
        while peer.next().await.is_some() {}
    });
    let mut call = pool.duplex(&spec(), framed(b""));
    let mut total = 5;
    assert!(within("hello", call.message()).await.is_some());
    let chunk = framed(&[7; 20_000]);
    let back = loop {
        match call.send(chunk.clone()) {
            Ok(()) => total += chunk.len(),
            Err(NoRoom(back)) => break back,
        }
        std::future::poll_fn(|cx| {
            call.poll_send(cx);
            Poll::Ready(())
        })
        .await;
        assert!(total < 65_535 + (64 << 10) + chunk.len(), "a bound");
    };
    assert_eq!(back, chunk);
    assert!(!call.is_flushed());
    go.send(total).expect("the peer waits");
    assert!(within("the end", call.message()).await.is_none());
    drop((call, pool));
    within("the peer", server)
        .await
        .expect("the peer keeps its part");
}

#[tokio::test]
async fn an_open_call_ends_with_the_verdicts_of_any_other() {
    for (case, code, delivery) in [
        ("status", Code::NotFound, Delivery::Answered),
        ("trailers only", Code::NotFound, Delivery::Answered),
        ("reset", Code::Unavailable, Delivery::Unknown),
        ("goaway", Code::Unavailable, Delivery::NotProcessed),
        ("cut", Code::Unavailable, Delivery::Unknown),
    ] {
        let host = Host::new();
        let listener = listen().await;
        let pool = host.pool(&listener);
        let server = tokio::spawn(async move {
            let mut peer = Peer::accept(&listener).await;
            let stream = peer.next().await.expect("headers").stream;
            let status = [(":status", "200"), ("grpc-status", "5")];
            match case {
                "status" => {
                    peer.begin(stream).await;
                    peer.trailers(stream, &[("grpc-status", "5")]).await;
                }
                "trailers only" => peer.headers(stream, END_STREAM, &status).await,
                "reset" => peer.reset(stream, 8).await,
                "goaway" => peer.goaway(0, 0).await,
                _ => return,
            }
            while peer.next().await.is_some() {}
        });
        let mut call = pool.duplex(&spec(), framed(b"first"));
        let error = within("the end", call.message()).await.expect("an error");
        let error = error.expect_err(case);
        assert_eq!(
            (error.code(), error.delivery()),
            (code, delivery),
            "{case}: {error:?}"
        );
        assert!(within("the end", call.message()).await.is_none(), "{case}");
        drop((call, pool));
        within("the peer", server).await.expect("well");
    }
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_on_the_wire() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool(&listener);
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        let stream = peer.next().await.expect("headers").stream;
        peer.begin(stream).await;
        peer.send(DATA, 0, stream, &framed(b"x")).await;
        loop {
            let frame = peer.next().await.expect("a reset, not the end");
            if frame.kind == RST_STREAM {
                return frame.stream == stream;
            }
        }
    });
    let mut call = pool.duplex(&spec(), framed(b"first"));
    assert!(within("a message", call.message()).await.is_some());
    drop(call);
    assert!(within("the peer", server).await.expect("well"));
}

#[tokio::test]
async fn a_call_abandoned_in_silence_takes_its_connection_out_of_use() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool(&listener);
    let (served, mut serves) = tokio::sync::mpsc::channel(4);
    let server = tokio::spawn(async move {
        let mut silent = Peer::accept(&listener).await;
        let stream = silent.next().await.expect("headers").stream;
        silent.begin(stream).await;
        silent.send(DATA, 0, stream, &framed(b"x")).await;
        served.send(1).await.expect("the test waits");
        // The peer hears of it: one that goes on would serve a call that nobody listens to.
        while silent.next().await.is_some() {}
        let mut peer = Peer::accept(&listener).await;
        loop {
            let Some(frame) = peer.next().await else {
                return;
            };
            if frame.kind == HEADERS {
                peer.begin(frame.stream).await;
                peer.send(DATA, 0, frame.stream, &framed(b"y")).await;
                served.send(2).await.expect("the test waits");
            }
        }
    });
    // The third call shares the second's connection, which had shown life since the mark.
    for (silence, connection) in [(true, 1), (false, 2), (false, 2)] {
        let mut call = pool.duplex(&spec(), framed(b"first"));
        assert!(within("a message", call.message()).await.is_some());
        assert_eq!(within("an answer", serves.recv()).await, Some(connection));
        let now = call.received().expect("a connection");
        call.abandon(if silence { now } else { now - 1 });
    }
    drop(pool);
    within("the peer", server)
        .await
        .expect("the peer keeps its part");
}
