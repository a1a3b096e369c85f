//! What is restored is checked, and what does not fit is refused by name.

use std::path::{Path, PathBuf};

use aqueduct_runtime::{Job, JobConfigBuilder, JobEnd, WatermarkStrategy};
use tempfile::TempDir;

use crate::rescale::Count;
use crate::support::{MemorySink, Numbers, Service, config, finish};

fn job(name: &str) -> Job {
    job_into(name, &Service::default())
}

fn job_into(name: &str, service: &Service) -> Job {
    let job = Job::new(name);
    let mut source = Numbers::new(2, 60);
    source.pace = 20;
    job.from_source("numbers", source, WatermarkStrategy::none())
        .key_by(|number| number % 5)
        .process("count", || Count)
        .sink_to("memory", MemorySink::staged(service));
    job
}

fn run(job: Job, builder: JobConfigBuilder) -> Result<JobEnd, String> {
    let handle = job
        .start(builder.build().expect("valid"))
        .expect("it starts");
    finish(&handle)
        .map(|report| report.end)
        .map_err(|error| error.report())
}

fn checkpoints(dir: &TempDir) -> Vec<PathBuf> {
    let mut found: Vec<(u64, PathBuf)> = std::fs::read_dir(dir.path().join("checkpoints"))
        .expect("the directory")
        .filter_map(|entry| {
            let path = entry.expect("an entry").path();
            let id = path
                .file_name()?
                .to_str()?
                .strip_prefix("chk-")?
                .parse()
                .ok()?;
            Some((id, path))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

fn file_with(dir: &Path, part: &str) -> PathBuf {
    std::fs::read_dir(dir)
        .expect("the checkpoint")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| path.to_string_lossy().contains(part))
        .expect("the file")
}

#[test]
fn retention_keeps_the_last_checkpoints_and_a_finished_job_stays_finished() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let first = run(
        job_into("job", &service),
        config(&dir).retained_checkpoints(2),
    );
    assert_eq!(first, Ok(JobEnd::Finished));
    assert_eq!(service.count(), 120);
    assert_eq!(checkpoints(&dir).len(), 2);
    assert_eq!(
        run(job_into("job", &service), config(&dir)),
        Ok(JobEnd::Finished)
    );
    assert_eq!(
        service.count(),
        120,
        "something was read or committed again"
    );
}

#[test]
fn a_checkpoint_of_another_job_is_refused_naming_both() {
    let dir = tempfile::tempdir().expect("a directory");
    run(job("mine"), config(&dir)).expect("it ends");
    let report = run(job("yours"), config(&dir)).expect_err("it is refused");
    assert!(
        report.contains("'mine'") && report.contains("'yours'"),
        "{report}"
    );
}

#[test]
fn state_without_its_operator_is_refused_unless_its_loss_is_allowed() {
    let dir = tempfile::tempdir().expect("a directory");
    run(job("job"), config(&dir)).expect("it ends");
    let without = || {
        let job = Job::new("job");
        job.from_source("numbers", Numbers::new(2, 60), WatermarkStrategy::none())
            .sink_to("memory", MemorySink::staged(&Service::default()));
        job
    };
    let report = run(without(), config(&dir)).expect_err("it is refused");
    assert!(
        report.contains("'count'") && report.contains("ignore-unclaimed-state"),
        "{report}"
    );
    run(without(), config(&dir).allow_dropped_state(true)).expect("the loss was allowed");
}

#[test]
fn an_operator_that_became_another_kind_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    run(job("job"), config(&dir)).expect("it ends");
    let changed = Job::new("job");
    changed
        .from_source("numbers", Numbers::new(2, 60), WatermarkStrategy::none())
        .map("count", |number| number)
        .sink_to("memory", MemorySink::staged(&Service::default()));
    let report = run(changed, config(&dir)).expect_err("it is refused");
    assert!(
        report.contains("'count' was keyed and is operator"),
        "{report}"
    );
}

#[test]
fn a_damaged_newest_checkpoint_is_not_passed_over_silently() {
    for damage in ["cut", "flip", "missing", "manifest"] {
        let dir = tempfile::tempdir().expect("a directory");
        run(job("job"), config(&dir)).expect("it ends");
        let found = checkpoints(&dir);
        let (newest, older) = (&found[found.len() - 1], &found[found.len() - 2]);
        let file = file_with(
            newest,
            if damage == "manifest" {
                "manifest"
            } else {
                "count"
            },
        );
        let mut bytes = std::fs::read(&file).expect("the file");
        match damage {
            "missing" => std::fs::remove_file(&file).expect("removed"),
            "flip" => {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                std::fs::write(&file, &bytes).expect("written");
            }
            _ => std::fs::write(&file, &bytes[..bytes.len() / 2]).expect("written"),
        }
        let report = run(job("job"), config(&dir)).expect_err("it is refused");
        for part in [
            newest.to_string_lossy(),
            older.to_string_lossy(),
            file.to_string_lossy(),
            "execution.state-recovery.path".into(),
        ] {
            assert!(
                report.contains(&*part),
                "{damage}: {part} is not in: {report}"
            );
        }
        let older = older.to_string_lossy().into_owned();
        run(job("job"), config(&dir).restore_from(older)).expect("the older one was named");
    }
}

#[test]
fn what_an_interrupted_writer_left_is_deleted() {
    let dir = tempfile::tempdir().expect("a directory");
    run(job("job"), config(&dir)).expect("it ends");
    let left = dir.path().join("checkpoints/chk-900");
    std::fs::create_dir(&left).expect("made");
    std::fs::write(left.join("000-numbers"), b"half").expect("written");
    run(job("job"), config(&dir)).expect("it ends");
    assert!(!left.exists());
    let last = checkpoints(&dir).pop().expect("a checkpoint");
    let name = last
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    assert_eq!(name, "chk-901", "an identifier is never used again");
}

#[test]
fn a_checkpoint_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let nowhere = dir.path().join("nowhere").to_string_lossy().into_owned();
    let report = run(job("job"), config(&dir).restore_from(nowhere.clone())).expect_err("refused");
    assert!(report.contains(&nowhere), "{report}");
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden/savepoint-v1")
}

/// A golden savepoint is written once, by the version in its name, and never again.
#[test]
fn the_committed_savepoint_still_restores() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let source = Numbers::new(2, 60);
    let restored = Job::new("golden");
    restored
        .from_source("numbers", source, WatermarkStrategy::none())
        .key_by(|number| number % 5)
        .process("count", || Count)
        .sink_to("memory", MemorySink::staged(&service));
    let golden = golden().to_string_lossy().into_owned();
    run(restored, config(&dir).parallelism(3).restore_from(golden)).expect("it restores");
    // The savepoint covers the first 20 of each split and holds their counts; 8 of each key came before.
    let expected: Vec<u64> = (0..5)
        .flat_map(|key| (9..=24).map(move |nth| key * 1_000_000 + nth))
        .collect();
    assert_eq!(service.values(), expected);
}

/// A supervisor starts a crashed job with the same arguments: going back to the savepoint would repeat everything.
#[test]
fn a_named_start_made_again_continues_instead_of_going_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let start = |service: &Service, builder: JobConfigBuilder| {
        run(job_into("golden", service), builder).expect("it ends");
        service.count()
    };
    let golden = golden().to_string_lossy().into_owned();
    let builder = config(&dir).restore_from(golden.clone());
    assert_eq!(start(&service, builder.clone()), 80);
    assert_eq!(start(&service, builder), 80);
    let elsewhere = tempfile::tempdir().expect("a directory");
    run(job("golden"), config(&elsewhere)).expect("it ends");
    // The newest checkpoint there came from another origin, so the named one is gone back to.
    let builder = config(&elsewhere).restore_from(golden);
    assert_eq!(start(&Service::default(), builder), 80);
}
