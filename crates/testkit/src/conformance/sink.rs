//! The suite for sinks.
//!
//! Records are numbered; the world turns a number into a record and says which numbers its service holds. What was
//! admitted before a completed checkpoint must be held whatever happens afterwards; what was not is sent again, as a
//! source that restarts with the sink would.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use aqueduct_connector::clock::ManualClock;
use aqueduct_connector::metrics::MetricRegistry;
use aqueduct_connector::sink::{Flush, RecordInfo, Sink};
use aqueduct_connector::{Error, Versioned};

use super::{Effort, Guarantee, Power, Report, compare, run, well};
use crate::context::TestContext;
use crate::golden::damages;
use crate::host::{SinkCheckpoint, SinkHost};
use crate::log::Marker;

/// Records of one run.
const RECORDS: u64 = 24;

/// A checkpoint every so many records, where the check does not say otherwise.
const INTERVAL: u64 = 5;

/// Polls given to something that must not happen.
const QUIET_POLLS: usize = 30;

/// What shall become of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The service holds it.
    Applied,
    /// The serializer skips it.
    Skipped,
    /// The service or the serializer rejects it and the failure handler takes it.
    Handled,
}

/// From when on the service holds a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// Once a flush has resolved.
    AtFlush,
    /// Once the checkpoint was committed.
    AtCommit,
}

/// What a sink counted, over all its writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accounting {
    /// Records that took effect.
    pub applied: u64,
    /// Records that the serializer skipped.
    pub skipped: u64,
    /// Records that the failure handler took.
    pub handled: u64,
}

/// A service, and the sink that writes to it.
pub trait SinkWorld {
    /// What the sink takes.
    type Record: 'static;

    /// The sink, as a restarted job would describe it: upon the same service each time.
    fn sink(&self) -> Arc<dyn Sink<Self::Record>>;

    /// The record with this number, the same each time.
    fn record(&self, number: u64) -> Self::Record;

    /// What becomes of it. The sink's failure handler must take what is to be handled.
    fn fate(&self, number: u64) -> Fate {
        let _ = number;
        Fate::Applied
    }

    /// The numbers of the records that the service holds, one entry for each time one took effect.
    fn held(&self) -> impl Future<Output = Vec<u64>>;

    /// What the sink promises over restarts.
    fn guarantee(&self) -> Guarantee;

    /// When the sink promises it.
    fn durable(&self) -> Durable {
        Durable::AtFlush
    }

    /// The means lent to the sink.
    fn context(&self, seed: u64) -> TestContext {
        TestContext::new("sink").with_seed(seed)
    }

    /// What the sink's metrics say, or other books of the world; `None` if there are none.
    fn accounting(&self, metrics: &MetricRegistry) -> Option<Accounting> {
        let _ = metrics;
        None
    }

    /// Lets the service hold back its answers and effects, or gives back those it held.
    fn hold_answers(&self, hold: Hold) -> Power {
        let _ = hold;
        Power::Missing
    }

    /// How many requests wait for an answer that is held back.
    fn waiting(&self) -> u64 {
        0
    }

    /// The clock that [`context`](Self::context) lends, if the world can stand it being moved on by minutes while an
    /// answer is held back: no deadline of the sink may end the wait.
    fn stall_clock(&self) -> Option<ManualClock> {
        None
    }

    /// From now on the service refuses everything, for good, with what makes the sink fail and not its handler act.
    fn break_service(&self) -> Power {
        Power::Missing
    }

    /// How many records one writer may admit at most while no answer comes.
    fn most_admitted(&self) -> Option<u64> {
        None
    }

    /// Called between a kill and the restore that follows.
    fn after_kill(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// A string that is in the records and must be in no log and no error.
    fn marker(&self) -> Option<Marker> {
        None
    }
}

/// What [`SinkWorld::hold_answers`] is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Hold back from now on.
    Back,
    /// Give back what was held and answer normally.
    Release,
}

/// Runs every check on worlds that `make` makes, one for each run of a check.
///
/// # Panics
///
/// At the first check that fails, naming it and the seed.
pub async fn sink<W: SinkWorld>(effort: Effort, make: impl AsyncFn(u64) -> W) -> Report {
    let mut report = Report::default();
    for seed in crate::seeds(effort.seeds.clone()) {
        report = Report::default();
        let shape = make(seed).await;
        let marker = shape.marker();
        let can_hold = shape.hold_answers(Hold::Back) == Power::Done;
        let can_break = shape.break_service() == Power::Done;
        let counts = shape.accounting(&MetricRegistry::new()).is_some();
        let bounded = shape.most_admitted().is_some();
        let can_stall = shape.stall_clock().is_some();
        drop(shape);
        let last = usize::try_from(RECORDS).expect("a small number");
        let positions = effort.points(last);

        macro_rules! check {
            ($name:literal, $points:expr, $check:ident) => {
                for point in $points {
                    let run_check = async {
                        let case = Case::new(make(seed).await, seed);
                        case.$check(u64::try_from(point).expect("a small number"))
                            .await;
                    };
                    run($name, seed, marker, run_check).await;
                }
                report.ran.push($name);
            };
            ($name:literal, $points:expr, $check:ident, $can:expr, $lacks:literal) => {
                if $can {
                    check!($name, $points, $check);
                } else {
                    report.not_run.push(($name, $lacks));
                }
            };
        }

        check!(
            "a barrier at every point covers what came before",
            positions.clone(),
            barrier
        );
        check!(
            "a failure at every point loses nothing",
            positions.clone(),
            failure
        );
        check!(
            "a checkpoint that nobody heard of is complete",
            positions.clone(),
            unheard
        );
        check!(
            "committing again changes nothing",
            positions.clone(),
            commit_again
        );
        check!(
            "an aborted checkpoint loses nothing",
            positions.clone(),
            aborted
        );
        check!(
            "a rescale 1 to 3 to 2 loses nothing",
            positions.clone(),
            rescale
        );
        check!(
            "a checkpoint right after a restore is as good",
            positions.clone(),
            restored_twice
        );
        check!(
            "admitted is applied, skipped and handled at every flush",
            [1_usize, 2],
            accounting,
            counts,
            "counts of applied, skipped and handled records"
        );
        check!(
            "a flush waits for every answer",
            [1_usize, 2, 7],
            flush_waits,
            can_hold,
            "a service that holds back answers"
        );
        check!(
            "at the bounds a writer waits and a barrier passes",
            [1_usize],
            bounds,
            can_hold && bounded,
            "a bound and a service that holds back answers"
        );
        check!(
            "a wait of a minute is warned about, once a minute",
            [1_usize],
            stall,
            can_hold && can_stall,
            "a manual clock and a service that holds back answers"
        );
        check!(
            "a flush after a failure never succeeds",
            [1_usize, 2],
            failure_sticks,
            can_break,
            "a service that can break"
        );
        check!(
            "a close at any point ends every task",
            positions.clone(),
            close
        );
        check!(
            "a drop at any point ends every task",
            positions.clone(),
            cancel
        );
        check!("damaged state is refused", [last / 2], damage);
    }
    report
}

/// One run of one check, in a world of its own.
struct Case<W> {
    world: W,
    seed: u64,
    kit: TestContext,
    restarts: Cell<u32>,
}

impl<W: SinkWorld> Case<W> {
    fn new(world: W, seed: u64) -> Self {
        let kit = world.context(seed);
        Self {
            world,
            seed,
            kit,
            restarts: Cell::new(0),
        }
    }

    fn start(&self, parallelism: u32) -> SinkHost<W::Record> {
        well(
            "start",
            SinkHost::start(self.world.sink(), &self.kit, parallelism),
        )
    }

    /// The means of a new attempt.
    fn next_kit(&self) -> TestContext {
        self.restarts.set(self.restarts.get() + 1);
        self.kit.clone().with_attempt(self.restarts.get())
    }

    /// Restores in a new attempt.
    async fn restored(&self, checkpoint: &SinkCheckpoint, parallelism: u32) -> SinkHost<W::Record> {
        self.kit.spawner().assert_idle(self.kit.limit()).await;
        self.world.after_kill().await;
        let kit = self.next_kit();
        let host = SinkHost::restore(self.world.sink(), &kit, checkpoint, parallelism).await;
        well("restore", host)
    }

    async fn write(&self, host: &mut SinkHost<W::Record>, numbers: Range<u64>) {
        let records = numbers.map(|number| self.world.record(number));
        well("write", host.write_all(records).await);
    }

    /// The numbers among the first `count` that the service must hold.
    fn due(&self, count: u64) -> impl Iterator<Item = u64> {
        (0..count).filter(|number| self.world.fate(*number) == Fate::Applied)
    }

    /// A checkpoint that covers the first `count` records is complete: the service holds at least those.
    async fn assert_holds(&self, count: u64) {
        let mut held = self.world.held().await;
        held.retain(|number| *number < count);
        compare(self.world.guarantee(), self.due(count), held);
    }

    /// The job ends well; the service holds what it must and nothing else.
    async fn finish(&self, host: SinkHost<W::Record>, count: u64) {
        well("finish", host.finish().await);
        compare(
            self.world.guarantee(),
            self.due(count),
            self.world.held().await,
        );
        assert_eq!(self.kit.spawner().panicked(), 0, "I/O tasks panicked");
    }

    async fn barrier(&self, position: u64) {
        let mut host = self.start(2);
        self.write(&mut host, 0..position).await;
        if self.world.durable() == Durable::AtFlush {
            well("flush", host.flush(Flush::Checkpoint).await);
            self.assert_holds(position).await;
        }
        drop(well("checkpoint", host.checkpoint().await));
        self.assert_holds(position).await;
        self.write(&mut host, position..RECORDS).await;
        self.finish(host, RECORDS).await;
    }

    /// Checkpoints on the way, a kill at `position`, and the records since the last checkpoint again.
    async fn failure(&self, position: u64) {
        let mut host = self.start(2);
        let mut last = well("checkpoint", host.checkpoint().await);
        for number in 0..position {
            self.write(&mut host, number..number + 1).await;
            if (number + 1).is_multiple_of(INTERVAL) {
                last = well("checkpoint", host.checkpoint().await);
            }
        }
        if (self.seed + position).is_multiple_of(2) {
            // What is under way may arrive or not.
            well("settle", host.settle().await);
        }
        host.kill();
        let covered = last.admitted;
        self.assert_holds(covered).await;
        let mut host = self.restored(&last, 2).await;
        self.write(&mut host, covered..RECORDS).await;
        self.finish(host, RECORDS).await;
    }

    /// The process dies between the barrier and the news of its completion.
    async fn unheard(&self, position: u64) {
        let mut host = self.start(2);
        self.write(&mut host, 0..position).await;
        let checkpoint = well("barrier", host.barrier().await);
        host.kill();
        let mut host = self.restored(&checkpoint, 2).await;
        self.assert_holds(position).await;
        self.write(&mut host, position..RECORDS).await;
        self.finish(host, RECORDS).await;
    }

    /// The process dies after the commit and before the host has noted it.
    async fn commit_again(&self, position: u64) {
        let mut host = self.start(2);
        self.write(&mut host, 0..position).await;
        let checkpoint = well("barrier", host.barrier().await);
        well("complete", host.complete(&checkpoint).await);
        host.kill();
        let host = self.restored(&checkpoint, 2).await;
        self.assert_holds(position).await;
        host.kill();
        let mut host = self.restored(&checkpoint, 2).await;
        self.write(&mut host, position..RECORDS).await;
        self.finish(host, RECORDS).await;
    }

    /// One checkpoint is aborted, the next subsumed, the third complete without news to the writers.
    async fn aborted(&self, position: u64) {
        let mut host = self.start(2);
        let (first, second) = (position / 3, 2 * position / 3);
        self.write(&mut host, 0..first).await;
        let aborted = well("barrier", host.barrier().await);
        host.abort(aborted.id);
        self.write(&mut host, first..second).await;
        drop(well("barrier", host.barrier().await));
        self.write(&mut host, second..position).await;
        let last = well("barrier", host.barrier().await);
        well("commit", host.commit(last.id).await);
        self.assert_holds(position).await;
        self.write(&mut host, position..RECORDS).await;
        self.finish(host, RECORDS).await;
    }

    async fn rescale(&self, position: u64) {
        let mut host = self.start(1);
        let mut written = 0;
        for (parallelism, up_to) in [(3, position / 2), (2, position)] {
            self.write(&mut host, written..up_to).await;
            let checkpoint = well("barrier", host.barrier().await);
            if self.seed.is_multiple_of(2) {
                well("complete", host.complete(&checkpoint).await);
            }
            written = up_to;
            host.kill();
            host = self.restored(&checkpoint, parallelism).await;
            self.assert_holds(written).await;
        }
        self.write(&mut host, written..RECORDS).await;
        self.finish(host, RECORDS).await;
    }

    async fn restored_twice(&self, position: u64) {
        let mut host = self.start(2);
        self.write(&mut host, 0..position).await;
        let first = well("barrier", host.barrier().await);
        host.kill();
        let mut host = self.restored(&first, 2).await;
        let second = well("barrier", host.barrier().await);
        host.kill();
        let mut host = self.restored(&second, 2).await;
        self.assert_holds(position).await;
        self.write(&mut host, position..RECORDS).await;
        self.finish(host, RECORDS).await;
    }

    async fn accounting(&self, parallelism: u64) {
        let mut host = self.start(u32::try_from(parallelism).expect("a small number"));
        let fates = |count: u64, fate: Fate| {
            let numbers = (0..count).filter(|number| self.world.fate(*number) == fate);
            numbers.count() as u64
        };
        let mut written = 0;
        for up_to in [0, 1, RECORDS / 2, RECORDS] {
            self.write(&mut host, written..up_to).await;
            written = up_to;
            drop(well("checkpoint", host.checkpoint().await));
            let counted = self
                .world
                .accounting(self.kit.registry())
                .expect("asked before");
            let due = Accounting {
                applied: fates(up_to, Fate::Applied),
                skipped: fates(up_to, Fate::Skipped),
                handled: fates(up_to, Fate::Handled),
            };
            assert_eq!(counted, due, "books after {up_to} records were admitted");
        }
        self.finish(host, RECORDS).await;
    }

    async fn flush_waits(&self, records: u64) {
        let mut host = self.start(1);
        self.world.hold_answers(Hold::Back);
        self.write(&mut host, 0..records).await;
        let staged = self.world.durable() == Durable::AtCommit;
        let since = Instant::now();
        loop {
            match host.poll_flush(0, Flush::Checkpoint).await {
                Poll::Pending => {}
                Poll::Ready(outcome) => {
                    well("flush", outcome);
                    assert!(
                        staged || self.due(records).next().is_none(),
                        "a flush resolved before the service had answered"
                    );
                    break;
                }
            }
            if self.world.waiting() > 0 {
                for _ in 0..QUIET_POLLS {
                    let flushed = host.poll_flush(0, Flush::Checkpoint).await;
                    assert!(
                        flushed.is_pending(),
                        "a flush resolved before the service had answered"
                    );
                }
                break;
            }
            assert!(
                since.elapsed() < self.kit.limit(),
                "hang: a flush sends nothing"
            );
        }
        self.world.hold_answers(Hold::Release);
        drop(well("checkpoint", host.checkpoint().await));
        self.assert_holds(records).await;
        self.finish(host, records).await;
    }

    async fn bounds(&self, _: u64) {
        let mut host = self.start(1);
        let most = self.world.most_admitted().expect("asked before");
        self.world.hold_answers(Hold::Back);
        let mut admitted = 0;
        loop {
            match host.poll_ready(0).await {
                Poll::Ready(ready) => {
                    well("ready", ready);
                    let record = self.world.record(admitted);
                    well("write", host.write(0, record, RecordInfo::default()));
                    admitted += 1;
                    assert!(
                        admitted <= most,
                        "admitted more than {most} records without an answer"
                    );
                }
                // Pending for good only once nothing moves any more.
                Poll::Pending => {
                    well("settle", host.settle().await);
                    if host.poll_ready(0).await.is_pending() && self.world.waiting() > 0 {
                        break;
                    }
                }
            }
        }
        for _ in 0..QUIET_POLLS {
            let flushed = host.poll_flush(0, Flush::Checkpoint).await;
            assert!(
                flushed.is_pending(),
                "a flush resolved before the service had answered"
            );
        }
        self.world.hold_answers(Hold::Release);
        drop(well("a barrier at the bounds", host.checkpoint().await));
        self.assert_holds(admitted).await;
        self.write(&mut host, admitted..admitted + 3).await;
        self.finish(host, admitted + 3).await;
    }

    async fn stall(&self, _: u64) {
        let clock = self.world.stall_clock().expect("asked before");
        let mut host = self.start(1);
        let numbers = self.due(RECORDS).collect::<Vec<_>>();
        let records = numbers
            .iter()
            .take(2)
            .map(|number| self.world.record(*number));
        self.world.hold_answers(Hold::Back);
        well("write", host.write_all(records).await);
        let since = Instant::now();
        while self.world.waiting() == 0 {
            let flushed = host.poll_flush(0, Flush::Checkpoint).await;
            assert!(
                flushed.is_pending(),
                "a flush resolved before the service had answered"
            );
            assert!(
                since.elapsed() < self.kit.limit(),
                "hang: a flush sends nothing"
            );
        }
        let log = crate::log::capture();
        for (seconds, least, most) in [(50, 0, 0), (20, 1, 1), (30, 1, 1), (50, 2, 2)] {
            clock.advance(Duration::from_secs(seconds));
            for _ in 0..QUIET_POLLS {
                let flushed = host.poll_flush(0, Flush::Checkpoint).await;
                assert!(flushed.is_pending(), "a flush gave up waiting");
            }
            let warned = log.warnings().len();
            assert!(
                (least..=most).contains(&warned),
                "{warned} warnings of a stall where {least} were due"
            );
        }
        if let Some(marker) = self.world.marker() {
            marker.assert_absent_from_log(&log);
        }
        self.world.hold_answers(Hold::Release);
        well("finish", host.finish().await);
    }

    /// The failure reaches the host in a write, a flush or a commit; from then on no flush may succeed.
    async fn failure_sticks(&self, checkpoints: u64) {
        let mut host = self.start(1);
        for _ in 1..checkpoints {
            drop(well("checkpoint", host.checkpoint().await));
        }
        self.world.break_service();
        let applied = self
            .due(RECORDS)
            .next()
            .expect("some record is to be applied");
        let records = [self.world.record(applied)];
        let error = match host.write_all(records).await {
            Err(error) => error,
            Ok(()) => match host.checkpoint().await {
                Err(error) => error,
                Ok(_) => panic!("a checkpoint succeeded though the service refused its records"),
            },
        };
        if let Some(marker) = self.world.marker() {
            marker.assert_absent_from_error("the error of a broken service", &error);
        }
        if self.world.durable() == Durable::AtFlush {
            for _ in 0..QUIET_POLLS {
                let flushed = host.poll_flush(0, Flush::Checkpoint).await;
                assert!(
                    !matches!(flushed, Poll::Ready(Ok(()))),
                    "a flush succeeded after the writer had failed"
                );
            }
        }
        // Closing may report the failure again, but it has to close.
        drop(host.close().await);
    }

    async fn close(&self, position: u64) {
        let mut host = self.start(2);
        self.write(&mut host, 0..position).await;
        well("close", host.close().await);
    }

    async fn cancel(&self, position: u64) {
        let mut host = self.start(2);
        self.write(&mut host, 0..position).await;
        if position.is_multiple_of(2) {
            // In the middle of a flush.
            drop(host.poll_flush(0, Flush::Checkpoint).await);
        }
        host.kill();
        self.kit.spawner().assert_idle(self.kit.limit()).await;
    }

    async fn damage(&self, position: u64) {
        let mut host = self.start(1);
        self.write(&mut host, 0..position).await;
        let good = well("barrier", host.barrier().await);
        host.kill();
        let refused = async |what: String, bad: SinkCheckpoint| {
            let error = self.restore_error(&bad).await;
            let error = error.unwrap_or_else(|| panic!("{what} was accepted"));
            if let Some(marker) = self.world.marker() {
                marker.assert_absent_from_error("the refusal of damaged state", &error);
            }
        };
        for (how, state) in first_damages(good.writers[0].first()) {
            let mut bad = good.clone();
            bad.writers[0][0] = state;
            refused(format!("writer state {how}"), bad).await;
        }
        let committable = good
            .committables
            .first()
            .map(|request| &request.committable);
        for (how, state) in first_damages(committable) {
            let mut bad = good.clone();
            bad.committables[0].committable = state;
            refused(format!("committable {how}"), bad).await;
        }
    }

    async fn restore_error(&self, bad: &SinkCheckpoint) -> Option<Error> {
        let kit = self.next_kit();
        let mut host = match SinkHost::restore(self.world.sink(), &kit, bad, 1).await {
            Err(error) => return Some(error),
            Ok(host) => host,
        };
        // A writer that reads its state in its first polls.
        host.ready(0).await.err()
    }
}

fn first_damages(state: Option<&Versioned>) -> Vec<(&'static str, Versioned)> {
    state.map(damages).unwrap_or_default()
}
