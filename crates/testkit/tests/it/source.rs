//! The suite for sources against a correct source and against broken ones, and the source host itself.

use std::time::Duration;

use aqueduct_connector::source::Boundedness;
use aqueduct_testkit::conformance::{self, Effort, SourceWorld};
use aqueduct_testkit::{SourceHost, within};

use crate::memory_source::{Fault, World};
use crate::panic_of;

fn world(fault: Fault, boundedness: Boundedness) -> World {
    World { fault, boundedness }
}

/// What the suite says about a fault in a bounded source.
async fn verdict(fault: Fault) -> String {
    let effort = Effort {
        seeds: 0..4,
        points: 40,
    };
    let suite = conformance::source(effort, async |_| world(fault, Boundedness::Bounded));
    panic_of(suite).await
}

async fn assert_caught(fault: Fault, check: &str, reason: &str) {
    let verdict = verdict(fault).await;
    assert!(
        verdict.contains(check) && verdict.contains(reason),
        "{fault:?} should fail `{check}` with `{reason}`, the suite said: {verdict}"
    );
}

#[tokio::test]
async fn a_correct_bounded_source_passes_every_check() {
    let effort = Effort {
        seeds: 0..8,
        points: 40,
    };
    let report =
        conformance::source(effort, async |_| world(Fault::None, Boundedness::Bounded)).await;
    report.assert_all_but(&[]);
}

#[tokio::test]
async fn a_correct_endless_source_passes_every_check_but_those_of_an_end() {
    let effort = Effort {
        seeds: 0..5,
        points: 40,
    };
    let report =
        conformance::source(effort, async |_| world(Fault::None, Boundedness::Unbounded)).await;
    report.assert_all_but(&[
        "a reader lost after others were told of the end",
        "a restore after the end reads nothing",
    ]);
}

#[tokio::test]
async fn a_snapshot_of_what_was_fetched_is_caught() {
    assert_caught(
        Fault::SnapshotsFetched,
        "a restore at every position",
        "lost",
    )
    .await;
}

#[tokio::test]
async fn a_split_lost_on_a_rescale_is_caught() {
    assert_caught(Fault::LosesASplitOnRescale, "a rescale", "lost").await;
}

#[tokio::test]
async fn telling_a_reader_of_the_end_twice_is_caught() {
    assert_caught(
        Fault::SaysNoMoreTwice,
        "reads everything",
        "`no more splits` twice",
    )
    .await;
}

#[tokio::test]
async fn returned_splits_forgotten_are_caught() {
    assert_caught(
        Fault::ForgetsReturnedSplits,
        "a lost reader's splits",
        "lost",
    )
    .await;
}

#[tokio::test]
async fn splits_given_out_again_beside_the_returned_ones_are_caught() {
    assert_caught(
        Fault::ReassignsOnLoss,
        "a lost reader's splits",
        "more than once",
    )
    .await;
}

#[tokio::test]
async fn unassigned_splits_missing_in_a_snapshot_are_caught() {
    assert_caught(
        Fault::ForgetsUnassignedSplits,
        "a restore at every position",
        "lost",
    )
    .await;
}

#[tokio::test]
async fn a_plan_made_again_at_a_restore_is_caught() {
    assert_caught(
        Fault::PlansAgainAtRestore,
        "a restore at every position",
        "more than once",
    )
    .await;
}

#[tokio::test]
async fn a_forgotten_wake_up_is_caught_as_a_hang_that_says_who_waits() {
    assert_caught(Fault::NeverWakes, "reads everything", "hang: waited").await;
}

#[tokio::test]
async fn a_reader_that_wakes_itself_forever_is_caught() {
    assert_caught(
        Fault::SpinsForever,
        "reads everything",
        "busy without progress",
    )
    .await;
}

#[tokio::test]
async fn records_of_a_paused_split_are_caught() {
    assert_caught(Fault::ReadsPausedSplits, "a paused split", "paused").await;
}

#[tokio::test]
async fn a_task_that_outlives_its_owner_is_caught_by_name() {
    assert_caught(Fault::LeaksItsTask, "reads everything", "memory reader").await;
}

#[tokio::test]
async fn a_close_that_hangs_is_caught() {
    assert_caught(Fault::HangsInClose, "a close at any point", "to close").await;
}

#[tokio::test]
async fn damaged_state_read_without_complaint_is_caught() {
    assert_caught(
        Fault::ReadsTrailingBytes,
        "damaged state",
        "with a byte appended was accepted",
    )
    .await;
}

#[tokio::test]
async fn a_finished_split_in_a_snapshot_is_caught() {
    assert_caught(
        Fault::KeepsFinishedSplits,
        "a barrier at every point",
        "which it finished",
    )
    .await;
}

#[tokio::test]
async fn an_end_before_it_was_told_is_caught() {
    assert_caught(
        Fault::EndsBeforeItWasTold,
        "reads everything",
        "splits may come",
    )
    .await;
}

#[tokio::test]
async fn a_record_in_a_log_line_is_caught_without_showing_it() {
    let verdict = verdict(Fault::LogsRecords).await;
    assert!(verdict.contains("shows user data"), "{verdict}");
    assert!(!verdict.contains(crate::memory_source::MARKER), "{verdict}");
}

/// Splits handed out after the enumerator's snapshot are in its state no more; a reader that got them before its own
/// snapshot would put them into neither or both.
#[tokio::test]
async fn what_an_enumerator_sends_after_its_snapshot_waits_for_the_readers() {
    for seed in aqueduct_testkit::seeds(0..20) {
        let world = world(Fault::None, Boundedness::Bounded);
        let kit = world.context(seed);
        let mut host = SourceHost::start(world.source(), &kit, 2).expect("a source in memory");
        host.begin_checkpoint().expect("a snapshot");
        for _ in 0..100 {
            host.try_step().await.expect("a step");
        }
        assert_eq!(
            host.emitted_count(),
            0,
            "splits reached readers before their snapshot"
        );
        for reader in 0..2 {
            host.snapshot_reader(reader).expect("a snapshot");
        }
        let checkpoint = host.end_barrier();
        assert!(checkpoint.readers.iter().all(Vec::is_empty));
        host.complete(&checkpoint).expect("a completion");
        host.run_to_end().await.expect("an end");
        assert_eq!(host.emitted_count(), world.expected().len());
        host.close().await.expect("a close");
    }
}

#[tokio::test]
async fn the_same_seed_takes_the_same_steps() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let world = world(Fault::None, Boundedness::Bounded);
        let mut host = SourceHost::start(world.source(), &world.context(7), 3).expect("a source");
        let mut steps = Vec::new();
        while !host.ended() {
            steps.push(host.step().await.expect("a step"));
        }
        runs.push(steps);
    }
    assert_eq!(runs[0], runs[1]);
}

#[tokio::test]
async fn what_a_lost_reader_emitted_since_the_checkpoint_is_taken_back() {
    let world = world(Fault::None, Boundedness::Bounded);
    let mut host = SourceHost::start(world.source(), &world.context(1), 1).expect("a source");
    host.run_to(4).await.expect("four records");
    let checkpoint = host.checkpoint().await.expect("a checkpoint");
    let covered = host.emitted_before(&checkpoint).count();
    host.run_to(12).await.expect("twelve records");
    host.fail_reader(0).expect("a new reader");
    assert_eq!(host.emitted_count(), covered);
}

#[tokio::test]
async fn a_wait_without_an_end_says_what_it_waited_for() {
    let wait = within(
        Duration::from_millis(10),
        "godot",
        std::future::pending::<()>(),
    );
    let text = panic_of(wait).await;
    assert!(
        text.contains("godot") && text.contains("source.rs"),
        "{text}"
    );
}
