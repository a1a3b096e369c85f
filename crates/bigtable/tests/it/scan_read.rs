//! `ReadRows` against the simulated service: resumption, deadlines, retry rules, headers.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_bigtable::RowRange;
use aqueduct_bigtable::client::read::{ReadPolicy, Remaining, ScanOrder};
use aqueduct_bigtable::filter::Filter;
use aqueduct_connector::clock::ManualClock;
use aqueduct_connector::{Clock, Code as StatusCode, Timestamp};
use aqueduct_sim::{Chunking, Code, Method};
use aqueduct_testkit::{TestContext, test_context};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::ReadRowsRequest;

use super::scan_support::*;

fn whole_table() -> Remaining {
    Remaining::ranges(vec![RowRange::all()], ScanOrder::Forward, None)
}

/// Rows of several cells, some long enough to come in pieces.
fn varied_rows(count: usize) -> Rows {
    numbered(count)
        .into_iter()
        .enumerate()
        .map(|(at, key)| {
            let cells = (0..=at % 4)
                .flat_map(|cell| {
                    [("cf", cell), ("other", cell)].map(|(family, cell)| {
                        let value = vec![b'a' + cell as u8; (at * 37 + cell * 11) % 300];
                        (
                            family.to_owned(),
                            format!("q{}", cell % 2).into_bytes(),
                            (10 - cell as i64) * 1_000,
                            value,
                        )
                    })
                })
                .collect::<Vec<Cell>>();
            (key.into_bytes(), cells)
        })
        .collect()
}

/// What the service holds, in its own order of cells.
fn stored(world: &World) -> Vec<(Vec<u8>, Vec<Cell>)> {
    world
        .table
        .rows()
        .into_iter()
        .map(|row| {
            let cells = row.cells.into_iter().map(|cell| {
                (
                    cell.family,
                    cell.qualifier,
                    cell.timestamp_micros,
                    cell.value,
                )
            });
            (row.key, cells.collect())
        })
        .collect()
}

#[tokio::test]
async fn rows_arrive_whole_however_the_service_cuts_them() {
    let world = World::with(varied_rows(60), &["r020", "r040"]).await;
    let expected = stored(&world);
    let context = test_context(1);
    let client = world.client(&context);
    for chunking in [Chunking::Service, Chunking::RowPerMessage]
        .into_iter()
        .chain((0..20).map(Chunking::Seeded))
    {
        world.table.set_chunking(chunking);
        let mut stream = scan(&client, whole_table(), None, ReadPolicy::SCAN);
        let rows = collect(&mut stream).await.expect("a healthy service");
        assert_eq!(rows, expected, "{chunking:?}");
    }
}

#[tokio::test]
async fn a_stream_cut_after_any_chunk_goes_on_without_loss_or_repetition() {
    let world = World::with(varied_rows(20), &["r010"]).await;
    let expected = stored(&world);
    let context = test_context(1);
    let client = world.client(&context);
    for chunking in [Chunking::Service, Chunking::Seeded(3)] {
        world.table.set_chunking(chunking);
        for cut in (0..90).step_by(3) {
            let fault = world.table.next(2, Method::ReadRows).break_after(cut);
            let mut stream = scan(&client, whole_table(), None, ReadPolicy::SCAN);
            let rows = collect(&mut stream).await.expect("breaks are retried");
            assert_eq!(rows, expected, "{chunking:?}, cut after {cut}");
            fault.remove();
        }
    }
}

#[tokio::test]
async fn a_reopened_stream_starts_behind_the_last_row() {
    let world = World::with(plain_rows(numbered(10), "v"), &[]).await;
    world.table.nth(1, Method::ReadRows).break_after(4);
    let context = test_context(1);
    let mut stream = scan(
        &world.client(&context),
        whole_table(),
        None,
        ReadPolicy::SCAN,
    );
    assert_eq!(collect(&mut stream).await.expect("retried").len(), 10);
    let requests = world.table.requests_of(Method::ReadRows);
    assert_eq!(requests.len(), 2);
    let request: ReadRowsRequest = requests[1].message().expect("kept").expect("decodes");
    let ranges = request.rows.expect("never an empty row set").row_ranges;
    let expected = RowRange::parse("(r003, *)").expect("a range").to_wire();
    assert_eq!(ranges, [expected]);
}

#[tokio::test]
async fn a_break_behind_the_last_row_ends_the_read_without_a_request() {
    let world = World::with(plain_rows(numbered(3), "v"), &[]).await;
    world.table.nth(1, Method::ReadRows).break_after(3);
    let context = test_context(1);
    let range = RowRange::parse("[r000, r002]").expect("a range");
    let remaining = Remaining::ranges(vec![range], ScanOrder::Forward, None);
    let mut stream = scan(&world.client(&context), remaining, None, ReadPolicy::SCAN);
    assert_eq!(collect(&mut stream).await.expect("done").len(), 3);
    assert_eq!(stream.opened(), 1);
}

#[tokio::test]
async fn only_the_listed_statuses_are_tried_again() {
    let world = World::with(plain_rows(numbered(3), "v"), &[]).await;
    let context = test_context(1);
    let client = world.client(&context);
    for (code, retried) in [
        (Code::Unavailable, true),
        (Code::DeadlineExceeded, true),
        (Code::Aborted, true),
        (Code::ResourceExhausted, false),
        (Code::Internal, false),
        (Code::PermissionDenied, false),
        (Code::NotFound, false),
        (Code::Unknown, false),
    ] {
        let fault = world.table.nth(1, Method::ReadRows).status(code);
        let mut stream = scan(&client, whole_table(), None, ReadPolicy::SCAN);
        let outcome = collect(&mut stream).await;
        fault.remove();
        match outcome {
            Ok(rows) => assert!(retried && rows.len() == 3, "{code:?} was retried"),
            Err(error) => {
                assert!(!retried, "{code:?}: {error:?}");
                let chain = error.statuses().expect("the status is in the chain");
                assert_eq!(chain.code() as i32, code as i32);
                assert_eq!(stream.opened(), 1);
            }
        }
    }
}

#[tokio::test]
async fn ten_attempts_without_progress_give_up_and_progress_starts_the_count_anew() {
    let world = World::with(plain_rows(numbered(40), "v"), &[]).await;
    let clock = ManualClock::new(Timestamp::from_millis(0));
    let context = TestContext::new("scan").with_clock(Arc::new(clock.clone()));
    let client = world.client(&context.subtask(0, 1));

    world
        .table
        .always(Method::ReadRows)
        .status(Code::Unavailable);
    let mut stream = scan(&client, whole_table(), None, ReadPolicy::SCAN);
    let error = with_clock(&clock, collect(&mut stream))
        .await
        .expect_err("no answer ever");
    assert_eq!(stream.opened(), 10);
    assert_eq!(
        error.statuses().expect("statuses").code(),
        StatusCode::Unavailable
    );
    assert!(clock.now().since_origin() < Duration::from_secs(60));

    // Every answer brings one row and breaks: forty rows take forty requests, far more than ten.
    world.sim.bigtable().clear_faults();
    world.table.always(Method::ReadRows).break_after(1);
    let mut stream = scan(&client, whole_table(), None, ReadPolicy::SCAN);
    let rows = with_clock(&clock, collect(&mut stream))
        .await
        .expect("always some progress");
    assert_eq!(rows.len(), 40);
    assert!(stream.opened() >= 40);
}

#[tokio::test]
async fn a_silent_service_is_warned_about_and_asked_again_after_five_minutes() {
    let world = World::with(plain_rows(numbered(3), "v"), &[]).await;
    let log = aqueduct_testkit::log::capture();
    let clock = ManualClock::new(Timestamp::from_millis(0));
    let context = TestContext::new("scan").with_clock(Arc::new(clock.clone()));
    let client = world.client(&context.subtask(0, 1));
    world.table.nth(1, Method::ReadRows).silent();
    let mut stream = scan(&client, whole_table(), None, ReadPolicy::SCAN);
    let rows = with_clock(&clock, collect(&mut stream))
        .await
        .expect("the second answers");
    assert_eq!(rows.len(), 3);
    assert_eq!(stream.opened(), 2);
    let waited = clock.now().since_origin();
    assert!(
        (Duration::from_secs(300)..Duration::from_secs(400)).contains(&waited),
        "{waited:?}"
    );
    let warnings = log.warnings();
    assert_eq!(
        warnings.len(),
        4,
        "one a minute before the fifth ends the wait"
    );
    assert!(warnings[0].to_string().contains("p.i.t"), "{}", warnings[0]);
}

/// Runs `work`; when it is idle for a moment of real time, the clock jumps to its next timer.
async fn with_clock<O>(clock: &ManualClock, work: impl Future<Output = O>) -> O {
    let mut work = std::pin::pin!(work);
    loop {
        let settle = Duration::from_millis(25);
        match tokio::time::timeout(settle, work.as_mut()).await {
            Ok(output) => return output,
            Err(_) => {
                if let Some(next) = clock.next_timer() {
                    clock.advance(next.since(clock.now()));
                }
            }
        }
    }
}

#[tokio::test]
async fn retry_info_makes_a_final_status_retryable_and_cookies_are_echoed() {
    let world = World::with(plain_rows(numbered(3), "v"), &[]).await;
    world
        .table
        .nth(1, Method::ReadRows)
        .status(Code::Internal)
        .retry_info(Duration::from_millis(1))
        .cookie("a", "1")
        .header_cookie("b", "2");
    let context = test_context(1);
    let mut stream = scan(
        &world.client(&context),
        whole_table(),
        None,
        ReadPolicy::SCAN,
    );
    assert_eq!(collect(&mut stream).await.expect("retried").len(), 3);
    let requests = world.table.requests_of(Method::ReadRows);
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(requests[1].cookies, [pair("a", "1"), pair("b", "2")]);
}

#[tokio::test]
async fn a_row_too_large_to_read_is_named_without_its_key() {
    let world = World::with(plain_rows(numbered(3), "v"), &[]).await;
    // The base64 of `secretkey`.
    let metadata = [("rowKeyBase64Encoded".to_owned(), "c2VjcmV0a2V5".to_owned())];
    world
        .table
        .nth(1, Method::ReadRows)
        .status_with_message(Code::FailedPrecondition, "row secretkey is too large")
        .error_info("LargeRowReadError", metadata);
    let context = test_context(1);
    let mut stream = scan(
        &world.client(&context),
        whole_table(),
        None,
        ReadPolicy::SCAN,
    );
    let error = collect(&mut stream)
        .await
        .expect_err("the row cannot be read");
    aqueduct_testkit::log::Marker::new("secretkey").assert_absent_from_error("the error", &error);
    assert!(error.to_string().contains("9 bytes"), "{error}");
    assert_eq!(
        error.statuses().expect("statuses").code(),
        StatusCode::FailedPrecondition
    );
    assert_eq!(stream.opened(), 1);
}

#[tokio::test]
async fn a_limit_counts_over_breaks_and_a_reverse_scan_goes_on_before_the_last_row() {
    let world = World::with(plain_rows(numbered(20), "v"), &["r010"]).await;
    let context = test_context(1);
    let client = world.client(&context);
    world.table.nth(1, Method::ReadRows).break_after(3);
    let limited = Remaining::ranges(vec![RowRange::all()], ScanOrder::Forward, Some(7));
    let mut stream = scan(&client, limited, None, ReadPolicy::SCAN);
    let rows = collect(&mut stream).await.expect("retried");
    assert_eq!(rows.len(), 7);
    assert_eq!(rows[6].0, b"r006");

    world.table.nth(1, Method::ReadRows).break_after(3);
    let reverse = Remaining::ranges(vec![RowRange::all()], ScanOrder::Reverse, None);
    let mut stream = scan(&client, reverse, None, ReadPolicy::SCAN);
    let rows = collect(&mut stream).await.expect("retried");
    let expected: Vec<Vec<u8>> = world.rows.keys().rev().cloned().collect();
    assert_eq!(
        rows.into_iter().map(|(key, _)| key).collect::<Vec<_>>(),
        expected
    );
}

#[tokio::test]
async fn a_filter_that_lets_nothing_pass_still_makes_progress() {
    let world = World::with(plain_rows(numbered(30), "v"), &[]).await;
    world.table.set_chunking(Chunking::Seeded(5));
    world.table.next(3, Method::ReadRows).break_after(0);
    let context = test_context(1);
    let nothing = Filter::value_exact(b"other");
    let mut stream = scan(
        &world.client(&context),
        whole_table(),
        Some(&nothing),
        ReadPolicy::SCAN,
    );
    assert_eq!(collect(&mut stream).await.expect("ends"), []);
}

#[tokio::test]
async fn an_unknown_family_in_a_filter_fails_the_read() {
    let world = World::with(plain_rows(numbered(3), "v"), &[]).await;
    let context = test_context(1);
    let filter = Filter::family_exact("nofamily");
    let mut stream = scan(
        &world.client(&context),
        whole_table(),
        Some(&filter),
        ReadPolicy::SCAN,
    );
    let error = collect(&mut stream)
        .await
        .expect_err("the service knows no such family");
    assert_eq!(
        error.statuses().expect("statuses").code(),
        StatusCode::NotFound
    );
    assert!(error.to_string().contains("filter"), "{error}");
}

#[tokio::test]
async fn connections_that_are_recycled_or_cut_lose_nothing() {
    let world = World::with(plain_rows(numbered(50), "v"), &[]).await;
    let context = test_context(1);
    let client = world.client(&context);
    world.table.set_chunking(Chunking::RowPerMessage);
    for fault in 0..3 {
        let at = world.table.nth(1, Method::ReadRows);
        match fault {
            0 => at.break_after(20).cut_connection(),
            1 => at.break_after(20).reset_stream(),
            _ => at.goaway(),
        };
        let mut stream = scan(&client, whole_table(), None, ReadPolicy::SCAN);
        assert_eq!(
            collect(&mut stream).await.expect("retried").len(),
            50,
            "fault {fault}"
        );
        world.sim.bigtable().clear_faults();
    }
}

#[tokio::test]
async fn every_request_carries_routing_features_and_a_deadline() {
    let world = World::with(plain_rows(numbered(1), "v"), &[]).await;
    let context = test_context(1);
    let client = world.client(&context);
    let mut stream = scan(&client, whole_table(), None, ReadPolicy::SCAN);
    collect(&mut stream).await.expect("a row");
    let mut sampling = client.sample_row_keys(fastrand::Rng::with_seed(1));
    std::future::poll_fn(|cx| sampling.poll_keys(cx))
        .await
        .expect("samples");
    for method in [Method::ReadRows, Method::SampleRowKeys] {
        let request = &world.table.requests_of(method)[0];
        assert_eq!(
            request.routing.as_deref(),
            Some("table_name=projects%2Fp%2Finstances%2Fi%2Ftables%2Ft&app_profile_id="),
        );
        assert!(request.features.is_some() && request.grpc_timeout.is_some());
    }
}

#[tokio::test]
async fn sampling_is_tried_again_from_its_beginning_and_only_for_outages() {
    let world = World::with(plain_rows(numbered(9), "v"), &["r003", "r006"]).await;
    let context = test_context(1);
    let client = world.client(&context);
    let sample = || async {
        let mut sampling = client.sample_row_keys(fastrand::Rng::with_seed(1));
        std::future::poll_fn(|cx| sampling.poll_keys(cx)).await
    };
    world.table.nth(1, Method::SampleRowKeys).break_after(1);
    let keys = sample().await.expect("retried");
    assert_eq!(
        keys,
        ["r003", "r006"],
        "each boundary once, without the end of the table"
    );
    world
        .table
        .nth(1, Method::SampleRowKeys)
        .status(Code::Aborted);
    let error = sample().await.expect_err("not in the list");
    assert!(error.to_string().contains("cannot be planned"), "{error}");
}

#[tokio::test]
async fn the_transports_windows_are_the_read_ahead_and_no_more() {
    use tokio::io::AsyncReadExt;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let context = test_context(1);
    // Reads ahead 4 MiB.
    let client = client(&context, &address, &destination());
    let mut stream = scan(&client, whole_table(), None, ReadPolicy::SCAN);
    let windows = async {
        let (mut socket, _) = listener.accept().await.expect("a client");
        let mut preface = [0; 24];
        socket.read_exact(&mut preface).await.expect("HTTP/2");
        let (mut of_a_stream, mut of_the_connection) = (65_535, 65_535);
        while of_the_connection == 65_535 {
            let mut head = [0; 9];
            socket.read_exact(&mut head).await.expect("a frame");
            let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let mut payload = vec![0; len];
            socket.read_exact(&mut payload).await.expect("its payload");
            match head[3] {
                // SETTINGS: INITIAL_WINDOW_SIZE is number 4.
                4 => {
                    for setting in payload.chunks_exact(6).filter(|setting| setting[1] == 4) {
                        of_a_stream =
                            u32::from_be_bytes(setting[2..].try_into().expect("four bytes"));
                    }
                }
                // WINDOW_UPDATE of stream 0.
                8 if head[5..] == [0; 4] => {
                    of_the_connection +=
                        u32::from_be_bytes(payload[..].try_into().expect("four bytes"));
                }
                _ => {}
            }
        }
        (of_a_stream, of_the_connection)
    };
    let read = async {
        tokio::select! {
            windows = windows => windows,
            _ = collect(&mut stream) => panic!("nobody answers"),
        }
    };
    let windows = aqueduct_testkit::within(LIMIT, "the client's windows", read).await;
    assert_eq!(windows, (4 << 20, 4 << 20));
}
