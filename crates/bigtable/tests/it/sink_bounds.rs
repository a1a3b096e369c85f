//! Bounds and waits: both caps, backpressure that ends, warnings about silence.

use std::time::Duration;

use aqueduct_bigtable::WriterOptions;
use aqueduct_connector::options::ByteSize;
use aqueduct_connector::sink::Flush;
use aqueduct_sim::{Code, Gate, Method};
use aqueduct_testkit::log;

use super::sink_world::{Record, World, records};

#[tokio::test]
async fn an_entry_beyond_the_byte_cap_is_admitted_by_an_idle_writer() {
    let world = World::new().await;
    let mut host = world.host_with(WriterOptions::new().max_in_flight_bytes(ByteSize(10)));
    let large = |key: &str| Record::new(key).value(vec![0; 100_000]);
    host.write_all([large("a"), large("b"), large("c")])
        .await
        .expect("each after the other");
    host.checkpoint().await.expect("well");
    assert_eq!(world.table.row_count(), 3);
    assert_eq!(world.request_sizes(), [1, 1, 1]);
    host.close().await.expect("well");
}

#[tokio::test]
async fn each_cap_holds_alone_while_answers_are_withheld() {
    let by_count = WriterOptions::new().max_in_flight_entries(5);
    let by_bytes = WriterOptions::new().max_in_flight_bytes(ByteSize(5 * 1_000));
    for options in [by_count, by_bytes] {
        let world = World::new().await;
        let gate = Gate::new();
        let fault = world.table.always(Method::MutateRows).hold_answer(&gate);
        let mut host = world.host_with(options);
        let record = |at: usize| Record::new(format!("k{at}")).value(vec![0; 1_000]);
        for at in 0..5 {
            host.ready(0).await.expect("below both caps");
            host.write(0, record(at), Default::default()).expect("well");
            if world.metric("inFlightBytes") >= 5_000 {
                break;
            }
        }
        host.settle().await.expect("well");
        for _ in 0..20 {
            assert!(host.poll_ready(0).await.is_pending(), "at the cap");
        }
        let held = world.metric("inFlightEntries");
        assert!(held == 5 || world.metric("inFlightBytes") >= 5_000);
        assert!(gate.held() > 0, "a full writer sends what it waits for");
        fault.remove();
        gate.open();
        host.write_all([record(9)]).await.expect("room again");
        host.checkpoint().await.expect("well");
        assert_eq!(world.table.row_count() as i128, held + 1);
        assert_eq!(
            world.metric("inFlightEntries") + world.metric("inFlightBytes"),
            0
        );
        host.close().await.expect("well");
    }
}

#[tokio::test]
async fn a_full_writer_still_lets_a_barrier_pass() {
    let world = World::new().await;
    let gate = Gate::new();
    let fault = world.table.always(Method::MutateRows).hold_answer(&gate);
    let mut host = world.host_with(WriterOptions::new().max_in_flight_entries(3));
    host.write_all(records(3)).await.expect("well");
    assert!(host.poll_ready(0).await.is_pending());
    assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
    fault.remove();
    gate.open();
    host.checkpoint().await.expect("well");
    assert_eq!(world.table.row_count(), 3);
    host.close().await.expect("well");
}

#[tokio::test]
async fn a_silent_peer_is_warned_about_once_a_minute_and_a_failure_counts_as_an_answer() {
    let logs = log::capture();
    let world = World::on_manual_clock().await;
    let silence = world.table.always(Method::MutateRows).silent();
    let mut host = world.host(|builder| builder);
    host.write_all(records(3)).await.expect("well");
    let warnings = || {
        logs.matching(tracing::Level::WARN, "no answer from Bigtable")
            .len()
    };
    let mut per_minute = Vec::new();
    for _ in 0..4 {
        let before = warnings();
        for _ in 0..12 {
            world.advance(Duration::from_secs(5));
            let _ = host.poll_flush(0, Flush::Checkpoint).await;
            let _ = host.poll_flush(0, Flush::Checkpoint).await;
        }
        per_minute.push(warnings() - before);
    }
    // Our own deadline ends an attempt each minute, and that end is an answer.
    assert!(per_minute.iter().all(|count| *count <= 1), "{per_minute:?}");
    assert!(warnings() >= 1, "{per_minute:?}");
    let line = logs
        .matching(tracing::Level::WARN, "no answer from Bigtable")
        .remove(0);
    assert_eq!(line.field("connector"), Some("bigtable"));
    assert_eq!(line.field("in_flight_entries"), Some("3"));
    assert_eq!(line.field("live_tables"), Some("1"));
    silence.remove();
    host.close().await.expect("well");
}

#[tokio::test]
async fn an_answer_restarts_the_minute_of_silence() {
    let logs = log::capture();
    let world = World::on_manual_clock().await;
    let refusal = world
        .table
        .always(Method::MutateRows)
        .status(Code::Unavailable);
    let mut host = world.host(|builder| builder);
    host.write_all(records(1)).await.expect("well");
    for _ in 0..60 {
        world.advance(Duration::from_secs(3));
        assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
        // Let the refusal arrive.
        tokio::time::timeout(Duration::from_millis(5), std::future::pending::<()>())
            .await
            .ok();
        assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
    }
    assert!(
        logs.matching(tracing::Level::WARN, "no answer from Bigtable")
            .len()
            <= 1
    );
    refusal.remove();
    host.close().await.expect("well");
}

#[tokio::test]
async fn bounds_that_only_cost_memory_are_warned_about_and_accepted() {
    let logs = log::capture();
    let world = World::new().await;
    let options = WriterOptions::new()
        .max_in_flight_entries(20_001)
        .max_in_flight_bytes(ByteSize::mib(101));
    let host = world.host_with(options);
    let warned: Vec<_> = logs
        .matching(tracing::Level::WARN, "throughput rarely grows")
        .iter()
        .filter_map(|line| line.field("option").map(str::to_owned))
        .collect();
    assert_eq!(
        warned,
        ["sink.in-flight.max-entries", "sink.in-flight.max-bytes"]
    );
    host.close().await.expect("well");
    logs.clear();
    let host = world.host_with(
        WriterOptions::new()
            .max_in_flight_entries(20_000)
            .max_in_flight_bytes(ByteSize::mib(100)),
    );
    assert_eq!(logs.warnings().len(), 0);
    host.close().await.expect("well");
}
