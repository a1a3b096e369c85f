//! The suite for sinks against correct sinks and against broken ones.

use aqueduct_testkit::conformance::{self, Effort};

use crate::memory_sink::{Fault, Mode, World};
use crate::panic_of;

async fn verdict(fault: Fault, mode: Mode) -> String {
    let effort = Effort {
        seeds: 0..4,
        points: 40,
    };
    panic_of(conformance::sink(effort, async |_| World::new(fault, mode))).await
}

async fn assert_caught(fault: Fault, mode: Mode, check: &str, reason: &str) {
    let verdict = verdict(fault, mode).await;
    assert!(
        verdict.contains(check) && verdict.contains(reason),
        "{fault:?} should fail `{check}` with `{reason}`, the suite said: {verdict}"
    );
}

#[tokio::test]
async fn a_correct_eager_sink_passes_every_check() {
    let effort = Effort {
        seeds: 0..4,
        points: 40,
    };
    let report = conformance::sink(effort, async |_| World::new(Fault::None, Mode::Eager)).await;
    report.assert_all_but(&[]);
}

#[tokio::test]
async fn a_correct_staged_sink_passes_every_check_that_its_service_can_play() {
    let effort = Effort {
        seeds: 0..4,
        points: 40,
    };
    let report = conformance::sink(effort, async |_| World::new(Fault::None, Mode::Staged)).await;
    report.assert_all_but(&[
        "admitted is applied, skipped and handled at every flush",
        "a flush waits for every answer",
        "at the bounds a writer waits and a barrier passes",
    ]);
}

#[tokio::test]
async fn a_flush_that_resolves_before_the_answers_is_caught() {
    assert_caught(
        Fault::FlushesEarly,
        Mode::Eager,
        "a barrier at every point",
        "lost",
    )
    .await;
}

#[tokio::test]
async fn a_batch_that_is_never_sent_is_caught() {
    assert_caught(
        Fault::LosesTheLastBatch,
        Mode::Eager,
        "a barrier at every point",
        "lost",
    )
    .await;
}

#[tokio::test]
async fn a_failure_that_is_forgotten_is_caught() {
    let check = "a flush after a failure";
    assert_caught(
        Fault::ForgetsItsFailure,
        Mode::Eager,
        check,
        "after the writer had failed",
    )
    .await;
}

#[tokio::test]
async fn a_writer_without_bounds_is_caught() {
    assert_caught(
        Fault::AdmitsWithoutBound,
        Mode::Eager,
        "at the bounds",
        "admitted more than",
    )
    .await;
}

#[tokio::test]
async fn books_that_do_not_add_up_are_caught() {
    assert_caught(
        Fault::CountsSkippedAsApplied,
        Mode::Eager,
        "admitted is applied",
        "books",
    )
    .await;
}

#[tokio::test]
async fn a_forgotten_wake_up_is_caught_as_a_hang_that_says_who_waits() {
    assert_caught(
        Fault::NeverWakes,
        Mode::Eager,
        "a barrier at every point",
        "hang: waited",
    )
    .await;
}

#[tokio::test]
async fn a_task_that_outlives_its_writer_is_caught_by_name() {
    assert_caught(
        Fault::LeaksItsTask,
        Mode::Eager,
        "a barrier at every point",
        "memory writer",
    )
    .await;
}

#[tokio::test]
async fn a_close_that_hangs_is_caught() {
    assert_caught(
        Fault::HangsInClose,
        Mode::Eager,
        "a close at any point",
        "to close",
    )
    .await;
}

#[tokio::test]
async fn damaged_state_read_without_complaint_is_caught() {
    let reason = "with a byte appended was accepted";
    assert_caught(
        Fault::ReadsTrailingBytes,
        Mode::Eager,
        "damaged state",
        reason,
    )
    .await;
}

#[tokio::test]
async fn a_record_in_an_error_is_caught_without_showing_it() {
    let verdict = verdict(Fault::ShowsTheRecord, Mode::Eager).await;
    assert!(verdict.contains("shows user data"), "{verdict}");
    assert!(!verdict.contains(crate::memory_sink::MARKER), "{verdict}");
}

#[tokio::test]
async fn a_committer_that_applies_twice_is_caught() {
    assert_caught(
        Fault::CommitsTwice,
        Mode::Staged,
        "a failure at every point",
        "more than once",
    )
    .await;
}

#[tokio::test]
async fn committables_dropped_at_a_restore_are_caught() {
    assert_caught(
        Fault::DropsAtRestore,
        Mode::Staged,
        "a failure at every point",
        "lost",
    )
    .await;
}

#[tokio::test]
async fn committables_of_an_aborted_checkpoint_dropped_are_caught() {
    assert_caught(
        Fault::ForgetsAbortedCheckpoints,
        Mode::Staged,
        "an aborted checkpoint",
        "lost",
    )
    .await;
}
