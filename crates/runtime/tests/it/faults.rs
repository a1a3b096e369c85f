//! Whatever fails, and whenever: every record takes effect once, and everything made is closed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use aqueduct_connector::source::{Collector, Record};
use aqueduct_connector::{CheckpointId, Error, Result};
use aqueduct_runtime::{
    Job, JobState, Operator, OperatorState, RestartStrategy, WatermarkStrategy,
};

use crate::support::{Fault, Gate, MemorySink, Numbers, Point, Service, config, finish, when};

/// Passes records on, with faults of its own.
struct Through(Fault);

impl Operator<u64, u64> for Through {
    fn process(&mut self, records: Vec<Record<u64>>, out: &mut Vec<Record<u64>>) -> Result<()> {
        self.0.pass(Point::Function)?;
        *out = records;
        Ok(())
    }

    fn snapshot(&mut self, _checkpoint: CheckpointId) -> Result<OperatorState> {
        self.0.pass(Point::OperatorSnapshot)?;
        Ok(OperatorState::default())
    }
}

fn run_with(fault: &Fault, parallelism: u32) {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let mut source = Numbers::new(4, 150);
    source.fault = fault.clone();
    let mut sink = MemorySink::staged(&service);
    sink.fault = fault.clone();
    let through = fault.clone();
    let job = Job::new("faults");
    job.from_source("numbers", source.clone(), WatermarkStrategy::none())
        .rebalance()
        .operator("through", move || Through(through.clone()))
        .sink_to("memory", sink);
    let config = config(&dir)
        .parallelism(parallelism)
        .build()
        .expect("valid");
    let handle = job.start(config).expect("it starts");
    finish(&handle).unwrap_or_else(|error| panic!("{fault:?}: {}", error.report()));
    assert_eq!(service.values(), source.all(), "{fault:?}");
    assert_eq!(service.left_open(), 0, "{fault:?}");
    assert!(fault.struck(), "the fault was never met: {fault:?}");
    assert_eq!(handle.status().restarts, 1, "{fault:?}");
}

#[test]
fn a_failure_at_any_point_leaves_one_effect_a_record() {
    for point in Point::ALL {
        for after in [0, 1, 3] {
            // Snapshots of the enumerator and planning happen once a checkpoint and once at all.
            let fault = Fault::at(point, after);
            run_with(&fault, 2);
        }
    }
}

#[test]
fn a_panic_at_any_point_is_a_failure_like_any_other() {
    for point in Point::ALL {
        run_with(&Fault::at(point, 1).panicking(), 1);
    }
}

#[test]
fn a_panic_in_a_function_names_its_operator_and_subtask() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let job = Job::new("panic");
    job.from_source("numbers", Numbers::new(1, 10), WatermarkStrategy::none())
        .map("first", |number| number)
        .flat_map("second", |number, out: &mut Collector<'_, u64>| {
            assert!(number < 5, "too large");
            out.emit(number);
        })
        .map("third", |number| number)
        .sink_to("memory", MemorySink::staged(&service));
    let config = config(&dir)
        .restart(RestartStrategy::None)
        .build()
        .expect("valid");
    let handle = job.start(config).expect("it starts");
    let report = finish(&handle).expect_err("it fails").report();
    assert_eq!(
        report,
        "operator 'second' (subtask 1/1) panicked: too large"
    );
    assert_eq!(handle.status().state, JobState::Failed);
    assert_eq!(handle.status().last_failure, Some(report));
    assert_eq!(service.left_open(), 0);
}

#[test]
fn restarts_end_after_the_allowed_attempts_with_the_cause_attached() {
    let dir = tempfile::tempdir().expect("a directory");
    let job = Job::new("hopeless");
    let source = Numbers::new(1, 10);
    let closed = source.closed.clone();
    job.from_source("numbers", source, WatermarkStrategy::none())
        .try_map("never", |_| Err::<u64, _>("no luck"))
        .sink_to("memory", MemorySink::staged(&Service::default()));
    let config = config(&dir)
        .restart(RestartStrategy::FixedDelay {
            attempts: 2,
            delay: Duration::from_millis(1),
        })
        .build()
        .expect("valid");
    let handle = job.start(config).expect("it starts");
    let report = finish(&handle).expect_err("it fails").report();
    assert_eq!(
        report,
        "the job failed after 2 restarts: operator 'never' (subtask 1/1) failed on a record: a function failed: no luck"
    );
    assert_eq!(
        closed.load(Ordering::SeqCst),
        6,
        "a reader and an enumerator an attempt"
    );
}

#[test]
fn committables_are_handed_over_again_until_they_are_applied() {
    let dir = tempfile::tempdir().expect("a directory");
    let (service, source) = (Service::default(), Numbers::new(2, 20));
    let mut sink = MemorySink::staged(&service);
    sink.try_again = 2;
    let job = Job::new("again");
    job.from_source("numbers", source.clone(), WatermarkStrategy::none())
        .sink_to("memory", sink);
    let handle = job
        .start(config(&dir).build().expect("valid"))
        .expect("it starts");
    finish(&handle).expect("the job ends");
    assert_eq!(service.values(), source.all());
    assert_eq!(
        handle.metrics().total("retriedCommittables") * 3,
        2 * i128::from(service.commit_calls())
    );
}

/// What writers handed over for a checkpoint that did not complete belongs to the next that does.
#[test]
fn a_checkpoint_that_times_out_loses_nothing_and_is_told_to_the_operator() {
    let dir = tempfile::tempdir().expect("a directory");
    let (service, mut source) = (Service::default(), Numbers::new(2, 100));
    source.pace = 1_000;
    let gate = std::sync::Arc::new(Gate::default());
    let mut sink = MemorySink::staged(&service);
    sink.flush_gate = Some(gate.clone());
    let job = Job::new("slow");
    job.from_source("numbers", source.clone(), WatermarkStrategy::none())
        .sink_to("memory", sink);
    let config = config(&dir)
        .checkpoint_timeout(Duration::from_millis(30))
        .tolerable_failed_checkpoints(1_000)
        .build()
        .expect("valid");
    let handle = job.start(config).expect("it starts");
    let status = when(&handle, |status| status.failed_checkpoints >= 2);
    assert!(status.failed_checkpoints >= 2, "{status:?}");
    assert_eq!(status.completed_checkpoints, 0);
    gate.open();
    finish(&handle).expect("the job ends");
    assert_eq!(service.values(), source.all());
    assert_eq!(handle.status().restarts, 0);
}

#[test]
fn failed_checkpoints_beyond_what_is_tolerated_fail_the_job_and_say_who_kept_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let mut sink = MemorySink::staged(&service);
    sink.flush_gate = Some(std::sync::Arc::default());
    let job = Job::new("stuck");
    job.from_source("numbers", Numbers::new(2, 100), WatermarkStrategy::none())
        .sink_to("memory", sink);
    let config = config(&dir)
        .checkpoint_timeout(Duration::from_millis(30))
        .restart(RestartStrategy::None)
        .build()
        .expect("valid");
    let handle = job.start(config).expect("it starts");
    let report = finish(&handle).expect_err("it fails").report();
    for part in [
        "execution.checkpointing.tolerable-failed-checkpoints",
        "execution.checkpointing.timeout",
        "'memory' (subtask 1/1) waiting for the sink's writer to flush",
    ] {
        assert!(report.contains(part), "{report}");
    }
}

#[test]
fn a_failure_that_no_restart_cures_ends_the_job_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let job = Job::new("config");
    job.from_source("numbers", Numbers::new(1, 10), WatermarkStrategy::none())
        .try_filter("check", |_| Err::<bool, _>(Error::state("cannot be read")))
        .sink_to("memory", MemorySink::staged(&Service::default()));
    let handle = job
        .start(config(&dir).build().expect("valid"))
        .expect("it starts");
    finish(&handle).expect_err("it fails");
    assert_eq!(handle.status().restarts, 0);
}
