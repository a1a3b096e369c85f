//! The suite for sinks against correct sinks and against broken ones.

use std::sync::Arc;
use std::task::{Context as PollContext, Poll};
use std::time::Duration;

use aqueduct_connector::clock::{ManualClock, Timer};
use aqueduct_connector::sink::{Flush, RecordInfo, Sink, SinkWriter};
use aqueduct_connector::{Clock, Context, Moment, Result, Timestamp, Versioned};
use aqueduct_testkit::conformance::{self, Effort};
use aqueduct_testkit::{SinkHost, TestContext};

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
        "a wait of a minute is warned about, once a minute",
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
async fn a_silent_wait_is_caught() {
    assert_caught(
        Fault::StallsSilently,
        Mode::Eager,
        "a wait of a minute",
        "0 warnings",
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

/// A writer that does nothing before its timer is driven on by a host that moves the clock.
#[tokio::test]
async fn a_driven_clock_moves_on_when_nothing_else_can() {
    struct Lingering(Box<dyn Timer>, Moment);
    impl SinkWriter<u64> for Lingering {
        fn poll_ready(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn write(&mut self, _: u64, _: RecordInfo) -> Result<()> {
            self.0.set(Some(self.1));
            Ok(())
        }
        fn poll_progress(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
            Poll::Pending
        }
        fn poll_flush(&mut self, cx: &mut PollContext<'_>, _: Flush) -> Poll<Result<()>> {
            self.0.poll_elapsed(cx).map(Ok)
        }
        fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
            Poll::Ready(Ok(()))
        }
    }
    struct LingeringSink;
    impl Sink<u64> for LingeringSink {
        fn connector(&self) -> &'static str {
            "lingering"
        }
        fn create_writer(
            &self,
            context: Context,
            _: Vec<Versioned>,
        ) -> Result<Box<dyn SinkWriter<u64>>> {
            let due = context.clock.now().after(Duration::from_secs(3_600));
            Ok(Box::new(Lingering(context.clock.timer(), due)))
        }
    }
    let clock = ManualClock::new(Timestamp::from_millis(0));
    let kit = TestContext::new("lingering").with_driven_clock(clock.clone());
    let mut host = SinkHost::start(Arc::new(LingeringSink), &kit, 1).expect("a writer");
    host.write_all([1]).await.expect("a write");
    host.checkpoint().await.expect("a checkpoint an hour later");
    assert_eq!(clock.now().since_origin(), Duration::from_secs(3_600));
}
