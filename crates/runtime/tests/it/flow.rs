//! Records flow, whatever the graph's shape.

use aqueduct_connector::Error;
use aqueduct_runtime::{Job, JobConfig, JobEnd, WatermarkStrategy};

use crate::support::{MemorySink, Numbers, Service, config, finish};

#[test]
fn a_bounded_job_applies_every_record_once_and_ends() {
    let dir = tempfile::tempdir().expect("a directory");
    let (service, source) = (Service::default(), Numbers::new(5, 100));
    let job = Job::new("flow");
    job.from_source("numbers", source.clone(), WatermarkStrategy::none())
        .map("double", |number| number * 2)
        .sink_to("memory", MemorySink::staged(&service));
    let report = job
        .start(config(&dir).parallelism(2).build().expect("valid"))
        .and_then(|handle| finish(&handle))
        .expect("the job ends");
    assert_eq!(report.end, JobEnd::Finished);
    let doubled: Vec<u64> = source.all().iter().map(|number| number * 2).collect();
    assert_eq!(service.values(), doubled);
    assert_eq!(service.left_open(), 0);
    assert_eq!(service.flushes(), ["checkpoint", "end"]);
    let counts: Vec<_> = report
        .operators
        .iter()
        .map(|operator| {
            (
                operator.name.as_str(),
                operator.records_in,
                operator.records_out,
            )
        })
        .collect();
    assert_eq!(
        counts,
        [
            ("numbers", 500, 500),
            ("double", 500, 500),
            ("memory", 500, 0)
        ]
    );
    assert!(report.status.completed_checkpoints > 2);
}

#[test]
fn a_bounded_job_without_checkpoints_still_commits_at_its_end() {
    let service = Service::default();
    let mut source = Numbers::new(3, 10);
    source.pace = u64::MAX;
    let job = Job::new("flow");
    job.from_source("numbers", source.clone(), WatermarkStrategy::none())
        .sink_to("memory", MemorySink::staged(&service));
    let handle = job
        .start(JobConfig::builder().parallelism(2).build().expect("valid"))
        .expect("it starts");
    finish(&handle).expect("the job ends");
    assert_eq!(service.values(), source.all());
}

/// A diamond: two branches of one stream meet again, one over an exchange and one directly.
#[test]
fn branches_that_meet_again_pass_barriers_and_every_record() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let mut source = Numbers::new(4, 300);
    source.batch = 40;
    source.pace = 100;
    let job = Job::new("diamond");
    let (left, right) = job
        .from_source("numbers", source.clone(), WatermarkStrategy::none())
        .tee();
    let left = left.filter("even", |number| number % 2 == 0).rebalance();
    let right = right.filter("odd", |number| number % 2 == 1);
    left.union([right])
        .key_by(|number| number % 10)
        .into_stream()
        .map("value", |(_, number)| number)
        .sink_to("memory", MemorySink::staged(&service));
    let config = config(&dir)
        .parallelism(3)
        .channel_elements(1)
        .channel_records(8)
        .build()
        .expect("valid");
    let handle = job.start(config).expect("it starts");
    finish(&handle).expect("the job ends");
    assert_eq!(service.values(), source.all());
}

/// A writer's linger timer must be heard although a filter lets nothing through and the source never pauses.
#[test]
fn a_writer_behind_a_filter_is_polled_while_its_source_is_busy() {
    let service = Service::default();
    let mut source = Numbers::new(1, 7_000);
    source.pace = u64::MAX;
    let job = Job::new("filtered");
    job.from_source("numbers", source, WatermarkStrategy::none())
        .filter("none", |_| false)
        .sink_to("memory", MemorySink::staged(&service));
    let handle = job
        .start(JobConfig::builder().build().expect("valid"))
        .expect("it starts");
    finish(&handle).expect("the job ends");
    assert!(service.progress_polls() >= 1_000, "once a batch at least");
}

#[test]
fn a_split_record_reaches_every_subtask_it_is_sent_to() {
    let dir = tempfile::tempdir().expect("a directory");
    let (service, source) = (Service::default(), Numbers::new(2, 50));
    let job = Job::new("routes");
    job.from_source("numbers", source.clone(), WatermarkStrategy::none())
        .exchange(|record, targets| {
            for subtask in 0..targets.parallelism() {
                targets.send_to_subtask(subtask, record);
            }
            Ok(())
        })
        .sink_to("memory", MemorySink::staged(&service));
    let handle = job
        .start(config(&dir).parallelism(3).build().expect("valid"))
        .expect("it starts");
    finish(&handle).expect("the job ends");
    let thrice: Vec<u64> = source
        .all()
        .into_iter()
        .flat_map(|number| [number; 3])
        .collect();
    assert_eq!(service.values(), thrice);
}

#[test]
fn fallible_functions_fail_the_job_by_name_and_keep_the_kind() {
    let job = Job::new("fallible");
    let service = Service::default();
    let mut source = Numbers::new(1, 10);
    source.pace = u64::MAX;
    job.from_source("numbers", source, WatermarkStrategy::none())
        .try_map("parse", |number| {
            if number == 5 {
                Err(Error::config("five is not configured"))
            } else {
                Ok(number)
            }
        })
        .sink_to("memory", MemorySink::staged(&service));
    let handle = job
        .start(JobConfig::builder().build().expect("valid"))
        .expect("it starts");
    let error = finish(&handle).expect_err("it fails");
    assert_eq!(
        error.report(),
        "operator 'parse' (subtask 1/1) failed on a record: five is not configured"
    );
    assert_eq!(
        handle.status().restarts,
        0,
        "a setting is not cured by a restart"
    );
    assert_eq!(service.left_open(), 0);
}

#[test]
fn an_incomplete_graph_is_refused_before_anything_starts() {
    let start = |build: fn(&Job)| {
        let job = Job::new("incomplete");
        build(&job);
        job.start(JobConfig::builder().build().expect("valid"))
            .expect_err("it is refused")
            .report()
    };
    let report = start(|job| {
        let _ = job.from_source("numbers", Numbers::new(1, 1), WatermarkStrategy::none());
    });
    assert!(report.contains("'numbers' goes nowhere"), "{report}");
    let report = start(|job| {
        let (left, _right) = job
            .from_source("numbers", Numbers::new(1, 1), WatermarkStrategy::none())
            .tee();
        left.sink_to("memory", MemorySink::eager(&Service::default()));
    });
    assert!(report.contains("'numbers' goes nowhere"), "{report}");
    let report = start(|job| {
        job.from_source("same", Numbers::new(1, 1), WatermarkStrategy::none())
            .sink_to("same", MemorySink::eager(&Service::default()));
    });
    assert!(
        report.contains("two operators are called 'same'"),
        "{report}"
    );
    let report = start(|_| {});
    assert!(report.contains("no source"), "{report}");
}

#[test]
fn settings_are_refused_by_the_name_of_their_option() {
    for (builder, option) in [
        (JobConfig::builder().parallelism(0), "parallelism.default"),
        (
            JobConfig::builder().max_parallelism(0),
            "pipeline.max-parallelism",
        ),
        (
            JobConfig::builder().parallelism(4).max_parallelism(2),
            "pipeline.max-parallelism",
        ),
        (
            JobConfig::builder().channel_records(0),
            "channel.max-records",
        ),
        (
            JobConfig::builder().checkpoint_dir(" "),
            "execution.checkpointing.dir",
        ),
        (
            JobConfig::builder().metrics_address("nowhere"),
            "metrics.address",
        ),
        (
            JobConfig::builder().retained_checkpoints(0),
            "execution.checkpointing.num-retained",
        ),
    ] {
        let error = builder.build().expect_err("it is refused").to_string();
        assert!(error.contains(option), "{error}");
    }
    let mut builder = JobConfig::builder();
    assert_eq!(builder.set("parallelism.default", "3"), Ok(true));
    assert_eq!(builder.set("table.exec.something", "3"), Ok(false));
    assert!(
        builder
            .set("execution.checkpointing.interval", "soon")
            .is_err()
    );
    assert_eq!(builder.set("restart-strategy.type", "sometimes"), Ok(true));
    let error = builder.build().expect_err("it is refused").to_string();
    assert!(error.contains("restart-strategy.type"), "{error}");
}
