//! Retries as the service sees them: what is sent again, with what, and when it is given up.

use std::time::Duration;

use aqueduct_bigtable::WriterOptions;
use aqueduct_connector::sink::Flush;
use aqueduct_sim::{Answers, Code, Method, MutateRowsRequest};

use super::sink_world::{LIMIT, Record, World, records};

fn keys(world: &World) -> Vec<Vec<String>> {
    world
        .table
        .requests_of(Method::MutateRows)
        .iter()
        .map(|request| {
            let message = request
                .message::<MutateRowsRequest>()
                .expect("kept")
                .expect("a request");
            let key =
                |entry: &aqueduct_sim::Entry| String::from_utf8_lossy(&entry.row_key).into_owned();
            message.entries.iter().map(key).collect()
        })
        .collect()
}

#[tokio::test]
async fn a_stream_broken_after_three_of_five_sends_the_other_two_again() {
    let world = World::new().await;
    world.table.nth(1, Method::MutateRows).break_after(3);
    let mut host = world.host(|builder| builder);
    host.write_all(records(5)).await.expect("well");
    host.checkpoint().await.expect("well");
    let keys = keys(&world);
    assert_eq!(keys[0].len(), 5);
    assert_eq!(keys[1], ["k0003", "k0004"]);
    assert_eq!(world.table.row_count(), 5);
    assert_eq!(world.metric("numRecordsSend"), 5, "once each");
    assert_eq!(world.metric("entriesRetried"), 2);
    assert_eq!(world.metric("requestAttempts"), 2);
    host.close().await.expect("well");
}

#[tokio::test]
async fn entries_that_a_good_stream_leaves_out_are_sent_again() {
    let world = World::new().await;
    world
        .table
        .nth(1, Method::MutateRows)
        .missing_entries([2, 4]);
    let mut host = world.host(|builder| builder);
    host.write_all(records(5)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(keys(&world)[1], ["k0002", "k0004"]);
    host.close().await.expect("well");
}

#[tokio::test]
async fn a_service_that_never_answers_is_given_up_at_ten_minutes_and_no_checkpoint_completes() {
    let world = World::on_driven_clock().await;
    world.table.always(Method::MutateRows).silent();
    let mut host = world.host(|builder| builder);
    host.write_all(records(3)).await.expect("admitted");
    let start = world.kit.clock().now();
    let error = host
        .flush(Flush::Checkpoint)
        .await
        .expect_err("nobody answers");
    let took = world.kit.clock().now().since(start);
    assert!(
        took > Duration::from_secs(540) && took <= Duration::from_secs(601),
        "{took:?}"
    );
    assert!(error.report().contains("DEADLINE_EXCEEDED"), "{error:?}");
    assert_eq!(world.metric("errorClass.DEADLINE_EXCEEDED.errors"), 3);
    assert_eq!(world.handled.handled(), 0);
    host.close().await.expect("well");
}

#[tokio::test]
async fn answers_in_any_order_and_any_number_of_messages_find_their_entries() {
    let world = World::new().await;
    world.table.set_answers(Answers::Seeded(7));
    world
        .table
        .every_nth(2, Method::MutateRows)
        .entry_status([1, 3], Code::Unavailable);
    let mut host = world.host_with(WriterOptions::new().batch_element_count_threshold(7));
    host.write_all(records(100)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(world.table.effects_per_row(), [1; 100]);
    host.close().await.expect("well");
}

#[tokio::test]
async fn load_is_waited_out_by_at_least_a_second_and_slows_the_rate() {
    let world = World::on_driven_clock().await;
    world
        .table
        .next(2, Method::MutateRows)
        .status(Code::ResourceExhausted);
    let mut host = world.host(|builder| builder);
    host.write_all(records(1)).await.expect("well");
    let start = world.kit.clock().now();
    host.checkpoint().await.expect("well");
    assert!(world.kit.clock().now().since(start) >= Duration::from_secs(2));
    assert_eq!(world.metric("retryClass.RESOURCE_EXHAUSTED.retries"), 2);
    assert!(world.metric("requestRateLimitMilli") > 0);
    host.close().await.expect("well");
}

#[tokio::test]
async fn a_rate_that_the_service_asks_for_holds_requests_back() {
    let world = World::on_driven_clock().await;
    world
        .table
        .nth(1, Method::MutateRows)
        .rate_limit(0.7, Duration::from_secs(10));
    let mut host = world.host_with(WriterOptions::new().batch_element_count_threshold(1));
    host.write_all(records(1)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(
        world.metric("requestRateLimitMilli"),
        7_000,
        "ten a second, times 0.7"
    );
    let start = world.kit.clock().now();
    host.write_all(records(15)).await.expect("well");
    host.checkpoint().await.expect("well");
    let took = world.kit.clock().now().since(start);
    assert!(took >= Duration::from_millis(1_900), "{took:?}");
    assert!(world.metric("rateLimitedWaits") > 0);
    host.close().await.expect("well");
}

#[tokio::test]
async fn cookies_are_echoed_and_an_asked_delay_is_kept() {
    let world = World::on_driven_clock().await;
    world
        .table
        .nth(1, Method::MutateRows)
        .status(Code::FailedPrecondition)
        .cookie("a", "one")
        .header_cookie("b", "two")
        .retry_info(Duration::from_secs(30));
    let mut host = world.host(|builder| builder);
    host.write_all(records(1)).await.expect("well");
    let start = world.kit.clock().now();
    host.checkpoint().await.expect("well");
    let took = world.kit.clock().now().since(start);
    assert!(
        took >= Duration::from_secs(30) && took < Duration::from_secs(31),
        "{took:?}"
    );
    let cookies = |at: usize| {
        world.table.requests_of(Method::MutateRows)[at]
            .cookies
            .clone()
    };
    assert!(cookies(0).is_empty());
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(cookies(1), [pair("a", "one"), pair("b", "two")]);
    // Another operation has none.
    host.write_all(records(1)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert!(cookies(2).is_empty());
    host.close().await.expect("well");
}

#[tokio::test]
async fn cut_connections_lost_answers_resets_and_goaways_cost_no_record() {
    let world = World::new().await;
    world.table.nth(2, Method::MutateRows).cut_connection();
    world
        .table
        .nth(4, Method::MutateRows)
        .apply_then_lose_answer();
    world.table.nth(6, Method::MutateRows).reset_stream();
    world.table.nth(8, Method::MutateRows).refuse_stream();
    world.table.nth(10, Method::MutateRows).goaway();
    let mut host = world.host_with(WriterOptions::new().batch_element_count_threshold(5));
    for round in 0..6 {
        host.write_all(records(60).drain(round * 10..(round + 1) * 10))
            .await
            .expect("well");
        host.checkpoint().await.expect("well");
    }
    assert_eq!(world.table.row_count(), 60);
    assert!(world.metric("entriesRetried") > 0);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_service_that_comes_back_finds_its_entries_written_again() {
    let mut world = World::new().await;
    let mut host = world.host_with(WriterOptions::new().batch_element_count_threshold(5));
    host.write_all(records(20)).await.expect("well");
    host.checkpoint().await.expect("well");
    world.sim.stop().await;
    host.write_all((0..20).map(|at| Record::new(format!("later{at}"))))
        .await
        .expect("admitted");
    host.settle().await.expect("well");
    assert!(world.metric("retryClass.UNAVAILABLE.retries") > 0);
    world.sim.restart().await.expect("the same port");
    host.checkpoint().await.expect("well");
    assert_eq!(world.table.row_count(), 40);
    host.finish().await.expect("well");
    world.kit = world.kit.with_limit(LIMIT);
}

#[tokio::test]
async fn a_final_status_fails_the_job_and_says_what_to_do_and_no_handler_sees_it() {
    for (code, hint) in [
        (Code::PermissionDenied, "roles/bigtable.user"),
        (Code::FailedPrecondition, "Data Boost"),
        (Code::Internal, ""),
        (Code::OutOfRange, ""),
        (Code::Unauthenticated, "credentials"),
    ] {
        let world = World::new().await;
        world.table.always(Method::MutateRows).status(code);
        let mut host = world.host(|builder| builder);
        host.write_all(records(2)).await.expect("admitted");
        let error = host.flush(Flush::Checkpoint).await.expect_err("final");
        let report = error.report();
        assert!(
            report.contains("p.i.t") && report.contains(hint),
            "{report}"
        );
        assert_eq!(host.ready(0).await.expect_err("for good").report(), report);
        assert_eq!(world.handled.handled(), 0);
        assert_eq!(world.metric("numRecordsSendErrors"), 0);
        host.close().await.expect("well");
    }
}
