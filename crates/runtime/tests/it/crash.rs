//! A process that is killed, and a process that comes second.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use aqueduct_runtime::{Job, WatermarkStrategy};

use crate::support::{MemorySink, Numbers, Service, config_at, finish, until, when};

/// Set for the processes that these tests start; holds the directory to work in.
const CHILD: &str = "AQUEDUCT_RUNTIME_TEST_CHILD";

const SPLITS: u64 = 4;
const PER_SPLIT: u64 = 1_500;

fn job(dir: &Path) -> Job {
    let service = Service::in_files(&dir.join("service"));
    let mut source = Numbers::new(SPLITS, PER_SPLIT);
    source.pace = 25;
    let job = Job::new("crash");
    job.from_source("numbers", source, WatermarkStrategy::none())
        .rebalance()
        .sink_to("files", MemorySink::staged(&service));
    job
}

/// What a started process does; in an ordinary run of the suite there is no directory and nothing to do.
#[test]
fn in_a_child_process() {
    let Some(dir) = std::env::var_os(CHILD).map(PathBuf::from) else {
        return;
    };
    let handle = job(&dir)
        .start(config_at(&dir).parallelism(2).build().expect("valid"))
        .expect("it starts");
    if let Err(error) = finish(&handle) {
        std::fs::write(dir.join("failure"), error.report()).expect("written");
    }
}

fn child(dir: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "crash::in_a_child_process"])
        .env(CHILD, dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a process")
}

fn applied(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir.join("service"))
        .expect("the service")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| !path.to_string_lossy().contains("part-"))
        .collect()
}

#[test]
fn a_process_killed_again_and_again_leaves_one_effect_a_record() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("service")).expect("made");
    for round in 1..=4 {
        let mut running = child(dir.path());
        until("some commits", || applied(dir.path()).len() >= 8 * round);
        running.kill().expect("it was running");
        running.wait().expect("it is gone");
    }
    let before = applied(dir.path()).len();
    let status = child(dir.path()).wait().expect("it ends");
    assert!(status.success());
    assert!(!dir.path().join("failure").exists());
    assert!(
        applied(dir.path()).len() > before,
        "the kills came too late to prove anything"
    );
    let mut values: Vec<u64> = applied(dir.path())
        .iter()
        .flat_map(|path| {
            let text = std::fs::read_to_string(path).expect("a file");
            let values: Vec<u64> = text
                .lines()
                .map(|line| line.parse().expect("a number"))
                .collect();
            values
        })
        .collect();
    values.sort_unstable();
    assert_eq!(values, (0..SPLITS * PER_SPLIT).collect::<Vec<_>>());
}

#[test]
fn a_second_process_on_the_same_directory_is_refused_and_told_which_holds_it() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("service")).expect("made");
    let job = Job::new("holder");
    let mut source = Numbers::new(1, 10);
    source.unbounded = true;
    job.from_source("numbers", source, WatermarkStrategy::none())
        .sink_to("memory", MemorySink::staged(&Service::default()));
    let handle = job
        .start(config_at(dir.path()).build().expect("valid"))
        .expect("it starts");
    when(&handle, |status| status.completed_checkpoints > 0);
    child(dir.path()).wait().expect("it ends");
    let report = std::fs::read_to_string(dir.path().join("failure")).expect("it failed");
    let process = format!("process {}", std::process::id());
    assert!(
        report.contains("\"holder\"") && report.contains(&process),
        "{report}"
    );
    assert!(applied(dir.path()).is_empty(), "it began all the same");
    handle.cancel();
    finish(&handle).expect("cancelled");
}
