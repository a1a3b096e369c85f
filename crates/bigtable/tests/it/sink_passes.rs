//! The isolation pass, the guardrail and the failed-mutation handler.

use std::num::NonZeroU64;

use aqueduct_bigtable::WriterOptions;
use aqueduct_connector::failure::fail_job;
use aqueduct_connector::sink::Flush;
use aqueduct_sim::{Code, Method, RefusalForm, SimConfig};
use aqueduct_testkit::failure::Call;
use aqueduct_testkit::log::{self, Marker};

use super::sink_world::{How, Record, World, records};

async fn world_refusing(form: RefusalForm) -> World {
    World::with(SimConfig {
        refusal_form: form,
        ..SimConfig::default()
    })
    .await
}

#[tokio::test]
async fn of_a_refused_batch_only_the_bad_record_reaches_the_handler() {
    for form in [RefusalForm::EveryEntry, RefusalForm::WholeCall] {
        let world = world_refusing(form).await;
        let mut host = world.host(|builder| builder);
        host.write_all([
            Record::new("good"),
            Record::new("bad").unaligned(),
            Record::new("also good"),
        ])
        .await
        .expect("well");
        host.checkpoint().await.expect("well");
        assert_eq!(world.table.effects(b"good"), 1);
        assert_eq!(world.table.effects(b"also good"), 1);
        assert!(world.table.row(b"bad").is_none());
        assert_eq!(world.handled.handled(), 1);
        assert_eq!(world.metric("numRecordsSendErrors"), 1);
        assert_eq!(world.metric("numRecordsSend"), 3);
        assert_eq!(world.metric("parkedEntries"), 0);
        assert_eq!(
            world.metric("errorClass.INVALID_ARGUMENT.errors"),
            1,
            "a parked rejection is not counted"
        );
        assert_eq!(
            world.request_sizes(),
            [3, 2, 1, 1, 1],
            "halved until each refusal is alone"
        );
        host.close()
            .await
            .expect("what was handled is not told again");
    }
}

#[tokio::test]
async fn a_request_of_one_entry_is_its_own_confirmation() {
    let world = World::new().await;
    let mut host = world.host(|builder| builder);
    host.write_all([Record::new("bad").unaligned()])
        .await
        .expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(world.request_sizes(), [1]);
    assert_eq!(world.handled.handled(), 1);
    host.close().await.expect("well");
}

#[tokio::test]
async fn failing_the_job_stops_at_the_first_confirmed_rejection() {
    let world = World::new().await;
    let mut host = world.host(|builder| builder.failed_mutation_handler(fail_job));
    host.write_all((0..50).map(|at| Record::new(format!("k{at}")).unaligned()))
        .await
        .expect("admitted");
    let error = host.flush(Flush::Checkpoint).await.expect_err("rejected");
    assert!(error.report().contains("INVALID_ARGUMENT"), "{error:?}");
    assert_eq!(world.metric("numRecordsSendErrors"), 1);
    assert!(
        world.request_sizes().len() <= 1 + 17,
        "{:?}",
        world.request_sizes()
    );
    host.close().await.expect("well");
}

#[tokio::test]
async fn the_pass_runs_before_the_next_record_is_serialized() {
    let world = World::new().await;
    let mut host = world.host_with(WriterOptions::new().batch_element_count_threshold(2));
    host.write_all([Record::new("good"), Record::new("bad").unaligned()])
        .await
        .expect("well");
    host.settle().await.expect("well");
    host.write_all([Record::new("next").how(How::Refused)])
        .await
        .expect("well");
    let handled: Vec<_> = world
        .handled
        .calls()
        .into_iter()
        .filter_map(|call| match call {
            Call::Handled { message, .. } => Some(message),
            _ => None,
        })
        .collect();
    assert!(handled[0].contains("the service refused"), "{handled:?}");
    assert!(handled[1].contains("the serializer"), "{handled:?}");
    host.close().await.expect("well");
}

#[tokio::test]
async fn a_flush_returns_only_once_nothing_is_parked_and_flushes_the_handler_last() {
    let world = World::new().await;
    let mut host = world.host(|builder| builder);
    host.write_all([Record::new("good"), Record::new("bad").unaligned()])
        .await
        .expect("well");
    world.handled.hold();
    for _ in 0..20 {
        assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
        tokio::task::yield_now().await;
    }
    host.settle().await.expect("well");
    assert!(host.poll_flush(0, Flush::Checkpoint).await.is_pending());
    world.handled.release();
    host.flush(Flush::Checkpoint).await.expect("well");
    assert_eq!(world.metric("parkedEntries"), 0);
    let calls = world.handled.calls();
    assert!(
        matches!(
            calls[..],
            [Call::Opened, Call::Handled { .. }, Call::Flushed]
        ),
        "{calls:?}"
    );
    host.close().await.expect("well");
    assert_eq!(world.handled.calls().last(), Some(&Call::Closed));
}

#[tokio::test]
async fn alternating_rejections_never_trip_the_guardrail() {
    let world = World::new().await;
    let options = WriterOptions::new()
        .max_consecutive_rejections(NonZeroU64::new(3))
        .batch_element_count_threshold(1);
    let mut host = world.host_with(options);
    for at in 0..10 {
        // One after the other, so that the order of verdicts is the order of records.
        host.write_all([Record::new(format!("bad{at}")).unaligned()])
            .await
            .expect("well");
        host.flush(Flush::Checkpoint).await.expect("well");
        host.write_all([Record::new(format!("good{at}"))])
            .await
            .expect("well");
        host.flush(Flush::Checkpoint).await.expect("well");
    }
    assert_eq!(world.handled.handled(), 10);
    host.close().await.expect("well");
}

#[tokio::test]
async fn a_hundred_rejections_in_a_row_fail_the_job_and_the_handler_saw_each() {
    let world = World::new().await;
    let mut host = world.host(|builder| builder);
    // What a serializer refuses says nothing about the service.
    host.write_all(
        records(150)
            .into_iter()
            .map(|record| record.how(How::Refused)),
    )
    .await
    .expect("well");
    host.flush(Flush::Checkpoint).await.expect("well");
    host.write_all(records(120).into_iter().map(Record::unaligned))
        .await
        .ok();
    let error = host
        .flush(Flush::Checkpoint)
        .await
        .expect_err("refused wholesale");
    assert_eq!(world.handled.handled(), 150 + 100);
    let report = error.report();
    for part in [
        "sink.max-consecutive-rejections",
        "100 mutations in a row",
        "INVALID_ARGUMENT",
    ] {
        assert!(report.contains(part), "{report}");
    }
    host.close().await.expect("well");
}

#[tokio::test]
async fn without_a_bound_a_stream_may_be_refused_for_ever() {
    let world = World::new().await;
    let mut host = world.host_with(WriterOptions::new().max_consecutive_rejections(None));
    host.write_all(records(250).into_iter().map(Record::unaligned))
        .await
        .expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(world.handled.handled(), 250);
    assert_eq!(world.metric("numRecordsSendErrors"), 250);
    host.close().await.expect("well");
}

#[tokio::test]
async fn an_outage_during_the_pass_is_waited_out_and_condemns_nobody() {
    let world = World::new().await;
    let mut host = world.host(|builder| builder);
    host.write_all([
        Record::new("good"),
        Record::new("bad").unaligned(),
        Record::new("fine"),
    ])
    .await
    .expect("well");
    world
        .table
        .nth(2, Method::MutateRows)
        .status(Code::Unavailable);
    world.table.nth(3, Method::MutateRows).cut_connection();
    host.checkpoint().await.expect("well");
    assert_eq!(world.table.row_count(), 2);
    assert_eq!(world.handled.handled(), 1);
    host.close().await.expect("well");
}

#[tokio::test]
async fn an_error_of_the_handler_stays_and_no_checkpoint_completes() {
    let world = World::new().await;
    world.handled.refuse();
    let mut host = world.host(|builder| builder);
    host.write_all([Record::new("good"), Record::new("bad").unaligned()])
        .await
        .expect("admitted");
    for _ in 0..2 {
        let error = host
            .flush(Flush::Checkpoint)
            .await
            .expect_err("the handler refused");
        assert!(error.report().contains("handler refuses"), "{error:?}");
    }
    host.close().await.expect("well");
    assert_eq!(
        world.handled.calls().last(),
        Some(&Call::Closed),
        "closed all the same"
    );
}

#[tokio::test]
async fn no_key_or_value_reaches_a_log_or_an_error() {
    let key = Marker::new("SECRET-ROW-KEY");
    let value = Marker::new("SECRET-VALUE");
    let logs = log::capture();
    let world = World::new().await;
    world.table.nth(3, Method::MutateRows).status_with_message(
        Code::Internal,
        "Error while mutating the row 'SECRET-ROW-KEY' (x)",
    );
    let mut host = world
        .host(|builder| builder.failed_mutation_handler(aqueduct_connector::failure::log_and_drop));
    let record = || Record::new(key.text()).value(value.text());
    host.write_all([record().unaligned(), Record::new("good")])
        .await
        .expect("well");
    let error = match host.flush(Flush::Checkpoint).await {
        Err(error) => error,
        Ok(()) => {
            host.write_all([record()]).await.expect("admitted");
            host.flush(Flush::Checkpoint).await.expect_err("scripted")
        }
    };
    for marker in [key, value] {
        marker.assert_absent_from_error("flush", &error);
        marker.assert_absent_from_log(&logs);
    }
    host.close().await.expect("well");
}
