//! The suite for sources.
//!
//! The oracle is arithmetic: what was emitted before a snapshot, and what a restore from it emits, together are the
//! records of the service, each once.

use std::cell::Cell;
use std::sync::Arc;

use aqueduct_connector::Error;
use aqueduct_connector::source::{Boundedness, Source};

use super::{Effort, Guarantee, Report, compare, run, well};
use crate::context::TestContext;
use crate::golden::damages;
use crate::host::{Emitted, SourceCheckpoint, SourceHost};
use crate::log::Marker;

/// Steps given to something that must not happen.
const QUIET_STEPS: usize = 60;

/// A service with data to read, and the source that reads it.
pub trait SourceWorld {
    /// What the source emits.
    type Record: 'static;

    /// The source, as a restarted job would describe it: upon the same data each time.
    fn source(&self) -> Arc<dyn Source<Self::Record>>;

    /// Names a record among the expected ones.
    fn key(&self, record: &Self::Record) -> String;

    /// The keys of all records that the source must emit, in any order. More than ten records in more than three
    /// splits make the checks meaningful.
    fn expected(&self) -> Vec<String>;

    /// What the source promises over restarts.
    fn guarantee(&self) -> Guarantee {
        Guarantee::ExactlyOnce
    }

    /// The means lent to the source.
    fn context(&self, seed: u64) -> TestContext {
        TestContext::new("source").with_seed(seed)
    }

    /// Called between a kill and the restore that follows: the place to wait until a service has noticed.
    fn after_kill(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// A string that is in the data and must be in no log and no error.
    fn marker(&self) -> Option<Marker> {
        None
    }
}

/// Runs every check on worlds that `make` makes, one for each run of a check.
///
/// # Panics
///
/// At the first check that fails, naming it and the seed.
pub async fn source<W: SourceWorld>(effort: Effort, make: impl AsyncFn(u64) -> W) -> Report {
    let mut report = Report::default();
    for seed in crate::seeds(effort.seeds.clone()) {
        report = Report::default();
        let shape = make(seed).await;
        let bounded = shape.source().boundedness() == Boundedness::Bounded;
        let (total, marker) = (shape.expected().len(), shape.marker());
        drop(shape);
        let positions = effort.points(total);
        let steps = effort.points(8 * effort.points);

        macro_rules! check {
            ($name:literal, $points:expr, $check:ident) => {
                for point in $points {
                    let run_check = async {
                        let case = Case::new(make(seed).await, seed);
                        case.$check(point).await;
                    };
                    run($name, seed, marker, run_check).await;
                }
                report.ran.push($name);
            };
        }
        macro_rules! bounded_check {
            ($name:literal, $points:expr, $check:ident) => {
                if bounded {
                    check!($name, $points, $check);
                } else {
                    report.not_run.push(($name, "an end of the source"));
                }
            };
        }

        check!(
            "reads everything at any parallelism",
            [1, 2, 5],
            reads_everything
        );
        check!(
            "a barrier at every point changes nothing",
            1..4,
            barriers_everywhere
        );
        check!(
            "a restore at every position goes on there",
            positions.clone(),
            restore
        );
        check!(
            "a failure at every point loses nothing",
            positions.clone(),
            failure
        );
        check!(
            "a checkpoint right after a restore is as good",
            positions.clone(),
            restored_twice
        );
        check!(
            "a rescale 1 to 3 to 2 loses nothing",
            positions.clone(),
            rescale
        );
        check!(
            "a lost reader's splits come back",
            positions.clone(),
            reader_lost
        );
        bounded_check!(
            "a reader lost after others were told of the end",
            [2, 3],
            lost_after_no_more
        );
        bounded_check!(
            "a restore after the end reads nothing",
            [1, 2],
            restore_after_end
        );
        check!("a paused split stays silent and resumes", [1, 2], pause);
        check!("a close at any point ends every task", steps.clone(), close);
        check!("a drop at any point ends every task", steps, cancel);
        check!("damaged state is refused", [total / 2], damage);
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

impl<W: SourceWorld> Case<W> {
    fn new(world: W, seed: u64) -> Self {
        let kit = world.context(seed);
        Self {
            world,
            seed,
            kit,
            restarts: Cell::new(0),
        }
    }

    fn start(&self, parallelism: u32) -> SourceHost<W::Record> {
        well(
            "start",
            SourceHost::start(self.world.source(), &self.kit, parallelism),
        )
    }

    /// The means of a new attempt.
    fn next_kit(&self) -> TestContext {
        self.restarts.set(self.restarts.get() + 1);
        self.kit.clone().with_attempt(self.restarts.get())
    }

    /// Restores in a new attempt.
    async fn restored(
        &self,
        checkpoint: &SourceCheckpoint,
        parallelism: u32,
    ) -> SourceHost<W::Record> {
        self.kit.spawner().assert_idle(self.kit.limit()).await;
        self.world.after_kill().await;
        let kit = self.next_kit();
        let host = SourceHost::restore(self.world.source(), &kit, checkpoint, parallelism);
        well("restore", host)
    }

    fn keys<'a>(&self, emitted: impl Iterator<Item = &'a Emitted<W::Record>>) -> Vec<String> {
        emitted
            .map(|emitted| self.world.key(&emitted.record.value))
            .collect()
    }

    /// Reads what is left, compares it together with `before` to what is due, and closes.
    async fn finish(&self, mut host: SourceHost<W::Record>, before: Vec<String>) {
        let due = self.world.expected();
        if self.world.source().boundedness() == Boundedness::Bounded {
            well("run to the end", host.run_to_end().await);
        } else {
            let (mut looked_at, mut complete) = (None, false);
            let ran = host
                .run_until(|host| {
                    if looked_at != Some(host.emitted_count()) {
                        looked_at = Some(host.emitted_count());
                        let arrived = before.iter().cloned().chain(self.keys(host.emitted()));
                        complete = covers(&due, arrived);
                    }
                    complete
                })
                .await;
            well("run until everything was read", ran);
            for _ in 0..QUIET_STEPS {
                well("step", host.try_step().await);
            }
        }
        let arrived = before.into_iter().chain(self.keys(host.emitted()));
        compare(self.world.guarantee(), due, arrived);
        well("close", host.close().await);
        self.assert_no_panic();
    }

    fn assert_no_panic(&self) {
        assert_eq!(self.kit.spawner().panicked(), 0, "I/O tasks panicked");
    }

    async fn reads_everything(&self, parallelism: u32) {
        let host = self.start(parallelism);
        self.finish(host, Vec::new()).await;
    }

    /// One checkpoint a record: completed, not heard of, aborted, or subsumed by the next.
    async fn barriers_everywhere(&self, parallelism: u32) {
        let mut host = self.start(parallelism);
        for position in 0..=self.world.expected().len() {
            well("run", host.run_to(position).await);
            match position % 4 {
                0 => drop(well("checkpoint", host.checkpoint().await)),
                1 => {
                    let unheard = well("barrier", host.barrier().await);
                    host.complete_unheard(&unheard);
                }
                2 => {
                    let begun = well("begin", host.begin_checkpoint());
                    well("step", host.try_step().await);
                    host.abort(begun);
                }
                _ => drop(well("barrier", host.barrier().await)),
            }
        }
        self.finish(host, Vec::new()).await;
    }

    async fn restore(&self, position: usize) {
        let mut host = self.start(2);
        well("run", host.run_to(position).await);
        let checkpoint = well("checkpoint", host.checkpoint().await);
        let before = self.keys(host.emitted_before(&checkpoint));
        host.kill();
        let host = self.restored(&checkpoint, 2).await;
        self.finish(host, before).await;
    }

    /// The checkpoint is older than the failure; every other time nobody heard that it was complete.
    async fn failure(&self, position: usize) {
        let mut host = self.start(2);
        well("run", host.run_to(position / 2).await);
        let checkpoint = well("barrier", host.barrier().await);
        if position.is_multiple_of(2) {
            well("complete", host.complete(&checkpoint));
        }
        let before = self.keys(host.emitted_before(&checkpoint));
        well("run", host.run_to(position.max(host.emitted_count())).await);
        host.kill();
        let host = self.restored(&checkpoint, 2).await;
        self.finish(host, before).await;
    }

    async fn restored_twice(&self, position: usize) {
        let mut host = self.start(2);
        well("run", host.run_to(position).await);
        let first = well("checkpoint", host.checkpoint().await);
        let mut before = self.keys(host.emitted_before(&first));
        host.kill();
        let mut host = self.restored(&first, 2).await;
        well("begin", host.begin_checkpoint());
        for reader in 0..2 {
            well("snapshot", host.snapshot_reader(reader));
        }
        let second = host.end_barrier();
        before.extend(self.keys(host.emitted_before(&second)));
        host.kill();
        let host = self.restored(&second, 2).await;
        self.finish(host, before).await;
    }

    async fn rescale(&self, position: usize) {
        let mut host = self.start(1);
        let mut before = Vec::new();
        for parallelism in [3, 2] {
            well("run", host.run_to(position / 2).await);
            let checkpoint = well("checkpoint", host.checkpoint().await);
            before.extend(self.keys(host.emitted_before(&checkpoint)));
            host.kill();
            host = self.restored(&checkpoint, parallelism).await;
        }
        self.finish(host, before).await;
    }

    async fn reader_lost(&self, position: usize) {
        let mut host = self.start(3);
        let mut random = fastrand::Rng::with_seed(self.seed ^ position as u64);
        well("run", host.run_to(position / 2).await);
        if random.bool() {
            drop(well("checkpoint", host.checkpoint().await));
        }
        well("run", host.run_to(position.max(host.emitted_count())).await);
        let reader = random.u32(..3);
        well("lose a reader", host.lose_reader(reader));
        for _ in 0..random.usize(..20) {
            well("step", host.try_step().await);
        }
        well("recover a reader", host.recover_reader(reader));
        self.finish(host, Vec::new()).await;
    }

    async fn lost_after_no_more(&self, parallelism: u32) {
        let mut host = self.start(parallelism);
        let holder = |host: &SourceHost<W::Record>| {
            let mut readers = 0..parallelism;
            let told = readers.clone().find(|reader| host.told_no_more(*reader))?;
            readers.find(|reader| *reader != told && !host.splits_seen(*reader).is_empty())
        };
        well("run", host.run_until(|host| holder(host).is_some()).await);
        if let Some(reader) = holder(&host) {
            well("fail a reader", host.fail_reader(reader));
        }
        self.finish(host, Vec::new()).await;
    }

    async fn restore_after_end(&self, parallelism: u32) {
        let mut host = self.start(parallelism);
        well("run to the end", host.run_to_end().await);
        let checkpoint = well("checkpoint", host.checkpoint().await);
        let before = self.keys(host.emitted_before(&checkpoint));
        let left: usize = checkpoint.readers.iter().map(Vec::len).sum();
        assert_eq!(left, 0, "splits in a snapshot after the end");
        host.kill();
        let host = self.restored(&checkpoint, parallelism).await;
        self.finish(host, before).await;
    }

    async fn pause(&self, parallelism: u32) {
        let mut host = self.start(parallelism);
        well("run", host.run_until_emitted(1).await);
        let seen: Vec<_> = (0..parallelism)
            .map(|reader| host.splits_seen(reader))
            .collect();
        for (reader, splits) in (0..).zip(&seen) {
            host.pause_splits(reader, splits, &[]);
        }
        for _ in 0..QUIET_STEPS {
            // The host panics at a record of a paused split.
            well("step", host.try_step().await);
        }
        let checkpoint = well("checkpoint", host.checkpoint().await);
        let before = self.keys(host.emitted_before(&checkpoint));
        if self.seed.is_multiple_of(2) {
            for (reader, splits) in (0..).zip(&seen) {
                host.pause_splits(reader, &[], splits);
            }
            self.finish(host, Vec::new()).await;
        } else {
            // A restored split is not paused.
            host.kill();
            let host = self.restored(&checkpoint, parallelism).await;
            self.finish(host, before).await;
        }
    }

    async fn close(&self, steps: usize) {
        let mut host = self.start(2);
        for _ in 0..steps {
            well("step", host.try_step().await);
        }
        well("close", host.close().await);
    }

    async fn cancel(&self, steps: usize) {
        let mut host = self.start(2);
        for _ in 0..steps {
            well("step", host.try_step().await);
        }
        host.kill();
        self.kit.spawner().assert_idle(self.kit.limit()).await;
    }

    async fn damage(&self, position: usize) {
        let mut host = self.start(1);
        well("run", host.run_to(position).await);
        let good = well("checkpoint", host.checkpoint().await);
        host.kill();
        for (how, state) in damages(&good.enumerator) {
            let mut bad = good.clone();
            bad.enumerator = state;
            self.assert_refused(&format!("enumerator state {how}"), &bad)
                .await;
        }
        for (at, split) in good.readers[0].iter().enumerate().take(1) {
            for (how, state) in damages(&split.state) {
                let mut bad = good.clone();
                bad.readers[0][at].state = state;
                self.assert_refused(&format!("split {how}"), &bad).await;
            }
        }
    }

    async fn assert_refused(&self, what: &str, bad: &SourceCheckpoint) {
        let restored = SourceHost::restore(self.world.source(), &self.next_kit(), bad, 1);
        let error = match restored {
            Err(error) => Some(error),
            Ok(mut host) => self.first_failure(&mut host).await,
        };
        let error = error.unwrap_or_else(|| panic!("{what} was accepted"));
        if let Some(marker) = self.world.marker() {
            marker.assert_absent_from_error("the refusal of damaged state", &error);
        }
    }

    async fn first_failure(&self, host: &mut SourceHost<W::Record>) -> Option<Error> {
        for _ in 0..QUIET_STEPS {
            if let Err(error) = host.try_step().await {
                return Some(error);
            }
        }
        None
    }
}

/// Whether `arrived` has every key at least as often as `due`.
fn covers(due: &[String], arrived: impl Iterator<Item = String>) -> bool {
    let mut missing = std::collections::BTreeMap::<&str, i64>::new();
    due.iter()
        .for_each(|key| *missing.entry(key).or_default() += 1);
    for key in arrived {
        if let Some(count) = missing.get_mut(key.as_str()) {
            *count -= 1;
        }
    }
    missing.values().all(|count| *count <= 0)
}
