//! Savepoints, stop, cancel, locks, the status page.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use aqueduct_connector::Timestamp;
use aqueduct_connector::clock::ManualClock;
use aqueduct_runtime::{Job, JobConfig, JobEnd, JobHandle, JobState, WatermarkStrategy};

use crate::support::{Gate, MemorySink, Numbers, Service, config, finish, run, until, when};

fn endless(service: &Service, source: Numbers) -> Job {
    let job = Job::new("endless");
    job.from_source(
        "numbers",
        Numbers {
            unbounded: true,
            ..source
        },
        WatermarkStrategy::none(),
    )
    .sink_to("memory", MemorySink::staged(service));
    job
}

fn is_send<T: Send + Sync + Clone>(_: &T) {}

#[test]
fn a_savepoint_is_taken_while_the_job_goes_on_and_restores_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let gate: Arc<Gate> = Arc::default();
    let mut source = Numbers::new(2, 100);
    source.gate = Some((30, gate.clone()));
    let handle = endless(&service, source.clone())
        .start(config(&dir).parallelism(2).build().expect("valid"))
        .expect("it starts");
    is_send(&handle);
    until("the first records", || service.count() == 60);
    let place = dir.path().join("savepoint").to_string_lossy().into_owned();
    let location = run(handle.savepoint(&place)).expect("a savepoint");
    assert_eq!(location, place);
    let again = run(handle.savepoint(&place)).expect_err("it is taken");
    assert!(again.report().contains("already"), "{}", again.report());
    gate.open();
    until("the rest", || service.count() == 200);
    handle.cancel();
    assert_eq!(finish(&handle).expect("cancelled").end, JobEnd::Cancelled);

    let (other, dir) = (
        Service::default(),
        tempfile::tempdir().expect("a directory"),
    );
    let config = config(&dir).parallelism(3).restore_from(place);
    let handle = endless(&other, source)
        .start(config.build().expect("valid"))
        .expect("it starts");
    until("what follows the savepoint", || other.count() == 140);
    let stopped = run(handle.stop(None)).expect("it stops");
    assert!(stopped.is_some_and(|at| at.contains("chk-")));
    finish(&handle).expect("stopped");
    assert_eq!(other.count(), 140);
    assert!(other.values().iter().all(|number| number % 100 >= 30));
}

#[test]
fn a_stop_with_a_savepoint_commits_everything_and_continues_from_either() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let gate: Arc<Gate> = Arc::default();
    let mut source = Numbers::new(2, 50);
    source.gate = Some((20, gate.clone()));
    let start = |source: &Numbers| {
        endless(&service, source.clone())
            .start(config(&dir).build().expect("valid"))
            .expect("it starts")
    };
    let handle = start(&source);
    until("some records", || service.count() >= 20);
    let place = dir.path().join("savepoint").to_string_lossy().into_owned();
    let location = run(handle.stop(Some(&place))).expect("it stops");
    let report = finish(&handle).expect("stopped");
    assert_eq!(
        report.end,
        JobEnd::Stopped {
            location: Some(place)
        }
    );
    assert_eq!(location, report.status.last_savepoint.map(|at| at.location));
    assert_eq!(service.left_open(), 0);
    gate.open();
    // Without the savepoint's name: the checkpoint written with it is as good, so nothing is repeated.
    let handle = start(&source);
    until("the rest", || service.count() == 100);
    run(handle.stop(None)).expect("it stops");
    finish(&handle).expect("stopped");
    assert_eq!(service.values(), source.all());
}

#[test]
fn requests_to_a_job_that_has_ended_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let handle = endless(&Service::default(), Numbers::new(1, 1))
        .start(config(&dir).build().expect("valid"))
        .expect("it starts");
    handle.cancel();
    finish(&handle).expect("cancelled");
    let report = run(handle.stop(None)).expect_err("refused").report();
    assert!(report.contains("cancelled"), "{report}");
}

#[test]
fn a_cancel_ends_every_wait_and_closes_everything() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let mut sink = MemorySink::staged(&service);
    sink.flush_gate = Some(Arc::default());
    let source = Numbers::new(2, 1_000);
    let closed = source.closed.clone();
    let job = Job::new("stuck");
    job.from_source("numbers", source, WatermarkStrategy::none())
        .rebalance()
        .sink_to("memory", sink);
    let handle = job
        .start(config(&dir).parallelism(2).build().expect("valid"))
        .expect("it starts");
    when(&handle, |status| status.state == JobState::Running);
    handle.cancel();
    assert_eq!(finish(&handle).expect("cancelled").end, JobEnd::Cancelled);
    assert_eq!(service.left_open(), 0);
    assert_eq!(closed.load(std::sync::atomic::Ordering::SeqCst), 3);
}

#[test]
fn a_cancel_during_a_commit_closes_the_committer() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let mut sink = MemorySink::staged(&service);
    sink.try_again = u32::MAX;
    let job = Job::new("committing");
    job.from_source("numbers", Numbers::new(1, 100), WatermarkStrategy::none())
        .sink_to("memory", sink);
    let handle = job
        .start(config(&dir).build().expect("valid"))
        .expect("it starts");
    until("a commit under way", || service.commit_calls() > 0);
    handle.cancel();
    assert_eq!(finish(&handle).expect("cancelled").end, JobEnd::Cancelled);
    assert_eq!(service.left_open(), 0);
    // The checkpoint is complete, so its commit is made good by the next start.
    let again = Job::new("committing");
    again
        .from_source("numbers", Numbers::new(1, 100), WatermarkStrategy::none())
        .sink_to("memory", MemorySink::staged(&service));
    let handle = again
        .start(config(&dir).build().expect("valid"))
        .expect("it starts");
    finish(&handle).expect("the job ends");
    assert_eq!(service.values(), Numbers::new(1, 100).all());
}

#[test]
fn a_thread_that_is_stuck_in_a_function_is_reported_and_no_second_attempt_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let (release, stuck) = std::sync::mpsc::channel::<()>();
    let stuck = std::sync::Mutex::new(stuck);
    let entered = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mark = entered.clone();
    let job = Job::new("blocked");
    job.from_source("numbers", Numbers::new(1, 100), WatermarkStrategy::none())
        .map("block", move |number| {
            mark.store(true, std::sync::atomic::Ordering::SeqCst);
            // Ends when the test lets go of the other end.
            let _ = stuck.lock().expect("not poisoned").recv();
            number
        })
        .sink_to("memory", MemorySink::staged(&Service::default()));
    let config = config(&dir).close_timeout(Duration::from_millis(20));
    let handle = job
        .start(config.build().expect("valid"))
        .expect("it starts");
    until("the function to block", || {
        entered.load(std::sync::atomic::Ordering::SeqCst)
    });
    handle.cancel();
    let report = finish(&handle).expect_err("it is reported").report();
    drop(release);
    assert!(
        report.contains("worker threads [1]") && report.contains("task.cancellation.timeout"),
        "{report}"
    );
}

#[test]
fn a_job_whose_handles_are_gone_is_cancelled() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let source = Numbers::new(1, 10);
    let closed = source.closed.clone();
    let handle = endless(&service, source)
        .start(config(&dir).build().expect("valid"))
        .expect("it starts");
    when(&handle, |status| status.state == JobState::Running);
    let copy = handle.clone();
    drop(handle);
    assert_eq!(copy.status().state, JobState::Running);
    drop(copy);
    until("the reader and the enumerator to close", || {
        closed.load(std::sync::atomic::Ordering::SeqCst) == 2 && service.left_open() == 0
    });
}

#[test]
fn a_second_job_on_the_same_directory_is_refused_and_told_who_holds_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let start = || -> JobHandle {
        endless(&Service::default(), Numbers::new(1, 10))
            .start(config(&dir).build().expect("valid"))
            .expect("it starts")
    };
    let first = start();
    when(&first, |status| status.completed_checkpoints > 0);
    let report = finish(&start()).expect_err("refused").report();
    assert!(
        report.contains("endless") && report.contains(&std::process::id().to_string()),
        "{report}"
    );
    assert_eq!(first.status().state, JobState::Running);
    first.cancel();
    finish(&first).expect("cancelled");
    let third = start();
    when(&third, |status| status.completed_checkpoints > 0);
    third.cancel();
    assert_eq!(finish(&third).expect("cancelled").end, JobEnd::Cancelled);
}

#[test]
fn a_staged_sink_behind_an_endless_source_needs_checkpoints() {
    let handle = endless(&Service::default(), Numbers::new(1, 1))
        .start(JobConfig::builder().build().expect("valid"))
        .expect("it starts");
    let report = finish(&handle).expect_err("refused").report();
    assert!(
        report.contains("'memory'") && report.contains("execution.checkpointing.dir"),
        "{report}"
    );
}

#[test]
fn a_wait_of_a_minute_is_shown_with_what_it_waits_for_until_it_ends() {
    let dir = tempfile::tempdir().expect("a directory");
    let clock = ManualClock::new(Timestamp::from_millis(0));
    let service = Service::default();
    let gate: Arc<Gate> = Arc::default();
    let mut sink = MemorySink::staged(&service);
    sink.flush_gate = Some(gate.clone());
    let job = Job::new("stalls");
    job.from_source("numbers", Numbers::new(2, 100), WatermarkStrategy::none())
        .sink_to("memory", sink);
    let config = config(&dir)
        .clock(Arc::new(clock.clone()))
        .checkpoint_timeout(Duration::from_secs(86_400))
        .build()
        .expect("valid");
    let handle = job.start(config).expect("it starts");
    when(&handle, |status| status.state == JobState::Running);
    let step = Duration::from_secs(1);
    let mut passed = Duration::ZERO;
    until("the stall to be shown", || {
        clock.advance(step);
        passed += step;
        !handle.status().stalled.is_empty()
    });
    assert!(passed >= Duration::from_secs(60), "shown after {passed:?}");
    let stalled = handle.status().stalled.join("\n");
    assert!(
        stalled.contains("'memory' (subtask 1/1) waiting for the sink's writer to flush"),
        "{stalled}"
    );
    gate.open();
    until("the job to go on to its end", || {
        clock.advance(Duration::from_millis(10));
        handle.status().state.is_final()
    });
    assert_eq!(finish(&handle).expect("it ends").end, JobEnd::Finished);
    assert_eq!(service.values(), Numbers::new(2, 100).all());
}

#[test]
fn code_that_blocks_its_thread_is_shown_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let clock = ManualClock::new(Timestamp::from_millis(0));
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = std::sync::Mutex::new(blocked);
    let service = Service::default();
    let job = Job::new("blocks");
    job.from_source("numbers", Numbers::new(1, 10), WatermarkStrategy::none())
        .map("innocent", |number| number)
        .map("culprit", move |number| {
            // Ends when the test lets go of the other end.
            let _ = blocked.lock().expect("not poisoned").recv();
            number
        })
        .sink_to("memory", MemorySink::staged(&service));
    let config = config(&dir)
        .clock(Arc::new(clock.clone()))
        .checkpoint_timeout(Duration::from_secs(86_400));
    let handle = job
        .start(config.build().expect("valid"))
        .expect("it starts");
    until("the stall to be shown", || {
        clock.advance(Duration::from_secs(1));
        handle
            .status()
            .stalled
            .iter()
            .any(|text| text.contains("'culprit' (subtask 1/1) does not return"))
    });
    drop(release);
    until("the job to end", || {
        clock.advance(Duration::from_millis(10));
        handle.status().state.is_final()
    });
    finish(&handle).expect("it ends");
    assert_eq!(service.count(), 10);
}

#[test]
fn a_savepoint_that_fails_is_told_and_the_job_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let handle = endless(&service, Numbers::new(1, 100))
        .start(config(&dir).build().expect("valid"))
        .expect("it starts");
    until("all records", || service.count() == 100);
    // A file is where the savepoint's directory would have to be.
    let file = dir.path().join("file");
    std::fs::write(&file, "in the way").expect("written");
    let place = file.join("savepoint").to_string_lossy().into_owned();
    let report = run(handle.savepoint(&place))
        .expect_err("it fails")
        .report();
    assert!(report.contains("file"), "{report}");
    let before = handle.status();
    let after = when(&handle, |status| {
        status.completed_checkpoints > before.completed_checkpoints
    });
    assert_eq!((after.state, after.restarts), (JobState::Running, 0));
    handle.cancel();
    finish(&handle).expect("cancelled");
}

fn get(address: std::net::SocketAddr, path: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a time limit");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

#[test]
fn metrics_and_the_status_page_are_served_while_the_job_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let config = config(&dir).metrics_address("127.0.0.1:0");
    let handle = endless(&service, Numbers::new(1, 30))
        .start(config.build().expect("valid"))
        .expect("it starts");
    until("all records", || service.count() == 30);
    let status = when(&handle, |status| status.completed_checkpoints > 0);
    let address = status.metrics_address.expect("it is served");
    let metrics = get(address, "/metrics");
    assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
    assert!(metrics.contains("text/plain; version=0.0.4"), "{metrics}");
    let line =
        "aqueduct_numRecordsIn_total{job_name=\"endless\",operator=\"memory\",subtask=\"0\"} 30\n";
    assert!(metrics.contains(line), "{metrics}");
    for name in [
        "aqueduct_numberOfCompletedCheckpoints_total",
        "aqueduct_lastCheckpointDuration",
        "aqueduct_busyTimeMillis_total",
        "aqueduct_numRestarts",
        "aqueduct_uptime",
    ] {
        assert!(metrics.contains(&format!("{name}{{")), "{name}");
    }
    let page = get(address, "/");
    assert!(
        page.contains("<b>running</b>") && page.contains("numbers") && page.contains("chk-"),
        "{page}"
    );
    assert!(get(address, "/nothing").starts_with("HTTP/1.1 404"));
    handle.cancel();
    finish(&handle).expect("cancelled");
    assert!(
        std::net::TcpStream::connect(address).is_err(),
        "it listens after the job's end"
    );
}
