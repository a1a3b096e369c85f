//! The table of `fail`, row by row.

use super::peer::{DATA, END_STREAM, Peer};
use super::*;

/// What a peer does to a request it has read.
#[derive(Clone, Copy, Debug)]
enum Fault {
    TrailersOnly(&'static str, &'static str),
    Http(&'static str),
    ResetBefore(u32),
    ResetAfter(u32),
    Cut,
    CutAfterHeaders,
    EndsWithHeaders,
    EndsWithData,
    EndsInsideMessage,
    EndsInsideMessageWith(&'static str),
    Compressed,
    NotGrpc,
    HugeHeaders,
}

async fn commit(fault: Fault, peer: &mut Peer) {
    let stream = peer.request().await;
    match fault {
        Fault::TrailersOnly(status, message) => {
            let fields = [
                (":status", "200"),
                ("grpc-status", status),
                ("grpc-message", message),
            ];
            peer.headers(stream, END_STREAM, &fields).await;
        }
        Fault::Http(status) => {
            peer.headers(stream, END_STREAM, &[(":status", status)])
                .await
        }
        Fault::ResetBefore(reason) => peer.reset(stream, reason).await,
        Fault::ResetAfter(reason) => {
            peer.begin(stream).await;
            peer.reset(stream, reason).await;
        }
        Fault::Cut => {}
        Fault::CutAfterHeaders => peer.begin(stream).await,
        Fault::EndsWithHeaders => {
            peer.headers(stream, END_STREAM, &[(":status", "200")])
                .await
        }
        Fault::EndsWithData => {
            peer.begin(stream).await;
            peer.send(DATA, END_STREAM, stream, &framed(b"whole")).await;
        }
        Fault::EndsInsideMessage | Fault::EndsInsideMessageWith(_) => {
            peer.begin(stream).await;
            peer.send(DATA, 0, stream, &framed(b"half")[..7]).await;
            let status = match fault {
                Fault::EndsInsideMessageWith(status) => status,
                _ => "0",
            };
            peer.trailers(stream, &[("grpc-status", status)]).await;
        }
        Fault::Compressed => {
            peer.begin(stream).await;
            peer.send(DATA, 0, stream, &[1, 0, 0, 0, 1, 7]).await;
        }
        Fault::NotGrpc => {
            peer.begin(stream).await;
            peer.send(DATA, 0, stream, b"<html>no</html>").await;
        }
        Fault::HugeHeaders => {
            let huge = "x".repeat(40_000);
            peer.headers(
                stream,
                END_STREAM,
                &[(":status", "200"), ("grpc-status", "0"), ("huge", &huge)],
            )
            .await;
        }
    }
    if matches!(fault, Fault::Cut | Fault::CutAfterHeaders) {
        return;
    }
    // Stays until the client closes.
    while peer.next().await.is_some() {}
}

async fn outcome(fault: Fault) -> CallError {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool_with(&listener, PoolOptions::default().max_header_list(20_000));
    let call = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        commit(fault, &mut peer).await;
    });
    let result = read(pool.call(&spec(), framed(b"request"))).await;
    drop(pool);
    within("the peer", call)
        .await
        .expect("the peer keeps its part");
    result.expect_err("a fault")
}

#[tokio::test]
async fn each_way_to_fail_says_how_far_the_request_got() {
    use Code::*;
    use Delivery::{Answered, NotProcessed};
    const LOST: Delivery = Delivery::Unknown;
    let rows: &[(Fault, Delivery, &[Code])] = &[
        (Fault::TrailersOnly("14", "busy"), Answered, &[Unavailable]),
        (
            Fault::TrailersOnly("3", "bad"),
            Answered,
            &[InvalidArgument],
        ),
        (
            Fault::TrailersOnly("13", "received RST_STREAM"),
            Answered,
            &[Unavailable, Internal],
        ),
        (Fault::TrailersOnly("1", ""), Answered, &[Cancelled]),
        (Fault::Http("503"), Answered, &[Unavailable]),
        (Fault::Http("429"), Answered, &[Unavailable]),
        (Fault::Http("401"), Answered, &[Unauthenticated]),
        (Fault::Http("403"), Answered, &[PermissionDenied]),
        (Fault::Http("404"), Answered, &[Unimplemented]),
        (Fault::Http("400"), Answered, &[Internal]),
        (Fault::Http("302"), Answered, &[Unknown]),
        // NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM, INADEQUATE_SECURITY
        (Fault::ResetBefore(0), LOST, &[Unavailable, Internal]),
        (Fault::ResetBefore(1), LOST, &[Unavailable, Internal]),
        (Fault::ResetBefore(2), LOST, &[Unavailable, Internal]),
        (Fault::ResetBefore(7), NotProcessed, &[Unavailable]),
        (Fault::ResetBefore(8), LOST, &[Unavailable, Cancelled]),
        (Fault::ResetBefore(11), LOST, &[ResourceExhausted]),
        (Fault::ResetBefore(12), LOST, &[PermissionDenied]),
        (Fault::ResetAfter(2), LOST, &[Unavailable, Internal]),
        (Fault::ResetAfter(8), LOST, &[Unavailable, Cancelled]),
        (Fault::Cut, LOST, &[Unavailable]),
        (Fault::CutAfterHeaders, LOST, &[Unavailable]),
        (Fault::EndsWithHeaders, LOST, &[Unavailable]),
        (Fault::EndsWithData, LOST, &[Unavailable]),
        (Fault::EndsInsideMessage, LOST, &[Unavailable]),
        (
            Fault::EndsInsideMessageWith("8"),
            Answered,
            &[ResourceExhausted],
        ),
        (Fault::Compressed, LOST, &[Unimplemented]),
        (Fault::NotGrpc, LOST, &[Internal]),
        (Fault::HugeHeaders, LOST, &[Internal]),
    ];
    for (fault, delivery, expected) in rows {
        let error = outcome(*fault).await;
        assert_eq!(error.delivery(), *delivery, "{fault:?}: {error:?}");
        assert_eq!(codes(&error), *expected, "{fault:?}: {error:?}");
    }
}

/// Two calls on one connection, in the order of their streams.
async fn two_calls(pool: &ChannelPool) -> [Result<Vec<Bytes>, CallError>; 2] {
    let (first, second) = futures::future::join(
        read(pool.call(&spec(), framed(b"1"))),
        read(pool.call(&spec(), framed(b"2"))),
    )
    .await;
    [first, second]
}

#[tokio::test]
async fn a_graceful_goaway_ends_only_the_calls_above_its_line_and_later_calls_reconnect() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool(&listener);
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        assert_eq!((peer.request().await, peer.request().await), (1, 3));
        peer.goaway(1, 0).await;
        let mut next = Peer::accept(&listener).await;
        let stream = next.request().await;
        next.answer(stream, b"elsewhere").await;
        // Only now does the call on the old connection end.
        peer.answer(1, b"kept").await;
        while next.next().await.is_some() {}
    });
    let calls = async {
        let second = read(pool.call(&spec(), framed(b"2")));
        let first = read(pool.call(&spec(), framed(b"1")));
        let then = async {
            let refused = second.await.expect_err("above the line");
            (refused, read(pool.call(&spec(), framed(b"3"))).await)
        };
        futures::future::join(first, then).await
    };
    let (kept, (refused, elsewhere)) = within("the calls", calls).await;
    assert_eq!(kept.expect("below the line"), ["kept"]);
    assert_eq!(
        (refused.delivery(), refused.code()),
        (Delivery::NotProcessed, Code::Unavailable)
    );
    assert_eq!(elsewhere.expect("on a new connection"), ["elsewhere"]);
    drop(pool);
    within("the peer", server)
        .await
        .expect("the peer keeps its part");
}

/// `h2` gives both calls the same error; only the line tells which may be repeated.
#[tokio::test]
async fn an_abrupt_goaway_leaves_the_outcome_unknown_below_its_line_only() {
    for reason in [0, 2, 11] {
        let host = Host::new();
        let listener = listen().await;
        let pool = host.pool(&listener);
        let server = tokio::spawn(async move {
            let mut peer = Peer::accept(&listener).await;
            assert_eq!((peer.request().await, peer.request().await), (1, 3));
            peer.goaway(1, reason).await;
        });
        let [first, second] = two_calls(&pool).await;
        within("the peer", server)
            .await
            .expect("the peer keeps its part");
        let (first, second) = (first.expect_err("cut"), second.expect_err("cut"));
        assert_eq!(
            (first.delivery(), first.code()),
            (Delivery::Unknown, Code::Unavailable),
            "{reason}"
        );
        assert_eq!(
            (second.delivery(), second.code()),
            (Delivery::NotProcessed, Code::Unavailable),
            "{reason}"
        );
    }
}

#[tokio::test]
async fn nobody_listening_means_not_sent_and_the_next_call_finds_who_listens_then() {
    let host = Host::new();
    let listener = listen().await;
    let address = listener.local_addr().expect("bound");
    let pool = host.pool(&listener);
    drop(listener);
    let error = read(pool.call(&spec(), framed(b"1")))
        .await
        .expect_err("nobody listens");
    assert_eq!(
        (error.delivery(), error.code()),
        (Delivery::NotSent, Code::Unavailable)
    );
    assert!(
        error.statuses().to_string().contains(&address.to_string()),
        "{error:?}"
    );
    let listener = TcpListener::bind(address).await.expect("the same port");
    let _server = peer::serve(listener, |asked| asked.reply(framed(b"here")));
    assert_eq!(
        read(pool.call(&spec(), framed(b"2")))
            .await
            .expect("served"),
        ["here"]
    );
}

#[tokio::test]
async fn a_silent_peer_costs_one_deadline_of_the_hosts_clock_and_is_not_asked_again() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool(&listener);
    let mut call =
        std::pin::pin!(pool.call(&spec().timeout(Duration::from_secs(30)), framed(b"1")));
    let mut silent = within("the request", async {
        let accept = async {
            let mut peer = Peer::accept(&listener).await;
            peer.request().await;
            peer
        };
        match futures::future::select(call.as_mut(), std::pin::pin!(accept)).await {
            futures::future::Either::Left((result, _)) => panic!("ended early: {:?}", result.err()),
            futures::future::Either::Right((peer, _)) => peer,
        }
    })
    .await;
    host.clock.advance(Duration::from_secs(29));
    assert!(
        futures::poll!(call.as_mut()).is_pending(),
        "one second is left"
    );
    host.clock.advance(Duration::from_secs(1));
    let error = within("the deadline", call).await.expect_err("too late");
    assert_eq!(codes(&error), [Code::DeadlineExceeded]);
    assert_eq!(
        (error.delivery(), error.origin()),
        (Delivery::Unknown, Origin::Deadline)
    );
    assert!(
        error
            .statuses()
            .to_string()
            .contains("/test.Service/Method: 30s passed"),
        "{error:?}"
    );

    let _server = peer::serve(listener, |asked| asked.reply(framed(b"fresh")));
    assert_eq!(
        read(pool.call(&spec(), framed(b"2")))
            .await
            .expect("a new connection"),
        ["fresh"]
    );
    // The old one was told that nobody waits any more.
    let frame = within("the reset", silent.next()).await;
    assert!(frame.is_none_or(|frame| frame.kind == peer::RST_STREAM));
}

#[tokio::test]
async fn a_deadline_inside_an_answer_ends_it() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool(&listener);
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        let stream = peer.request().await;
        peer.begin(stream).await;
        peer.send(DATA, 0, stream, &framed(b"one")).await;
        while peer.next().await.is_some() {}
    });
    let deadline = aqueduct_connector::Moment::from_origin(Duration::from_secs(5));
    let mut answer = within(
        "headers",
        pool.call(&spec().deadline(deadline), framed(b"1")),
    )
    .await
    .expect("headers");
    assert_eq!(
        within("a message", answer.message())
            .await
            .expect("one")
            .expect("good"),
        "one"
    );
    host.clock.advance(Duration::from_secs(5));
    let error = within("the deadline", answer.message())
        .await
        .expect("an error")
        .expect_err("too late");
    assert_eq!(
        (error.code(), error.delivery()),
        (Code::DeadlineExceeded, Delivery::Unknown)
    );
    assert!(
        within("the end", answer.message()).await.is_none(),
        "after an error comes nothing"
    );
    drop((answer, pool));
    within("the peer", server)
        .await
        .expect("the peer keeps its part");
}

#[tokio::test]
async fn a_call_without_time_left_sends_nothing() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool(&listener);
    let error = read(pool.call(&spec().timeout(Duration::ZERO), framed(b"1")))
        .await
        .expect_err("no time");
    assert_eq!(
        (error.code(), error.delivery()),
        (Code::DeadlineExceeded, Delivery::NotSent)
    );
}

#[tokio::test]
async fn large_error_details_do_not_hide_the_status() {
    let host = Host::new();
    let listener = listen().await;
    let pool = host.pool(&listener);
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        let stream = peer.request().await;
        peer.begin(stream).await;
        let details = "A".repeat(300_000);
        let fields = [
            ("grpc-status", "9"),
            ("grpc-message", "too%20large"),
            ("x-goog-cbt-cookie-one", "1"),
            ("grpc-status-details-bin", &details),
        ];
        peer.trailers(stream, &fields).await;
        while peer.next().await.is_some() {}
    });
    let error = read(pool.call(&spec(), framed(b"1")))
        .await
        .expect_err("a status");
    assert_eq!(
        error.statuses().to_string(),
        "FAILED_PRECONDITION (too large)"
    );
    assert!(!error.cookies().is_empty());
    drop(pool);
    within("the peer", server)
        .await
        .expect("the peer keeps its part");
}
