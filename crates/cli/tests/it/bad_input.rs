//! Bad input: each gets one clear error that says what to do; nothing hangs, nothing panics.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use aqueduct_sim::{Sim, SimConfig};
use tempfile::TempDir;

use crate::program::{Said, command, ends_before, run};

const HEADER: &str = "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,\
flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour\n";
const ROW: &str =
    "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z\n";

#[track_caller]
pub(crate) fn refused(said: &Said, words: &[&str]) {
    assert!(!said.ok, "it should have failed: {said:?}");
    for word in words {
        assert!(
            said.err.contains(word),
            "'{word}' is missing in: {}",
            said.err
        );
    }
    assert!(!said.err.contains("panicked"), "{}", said.err);
    assert!(
        !said.err.contains("N14228"),
        "an error shows data: {}",
        said.err
    );
}

fn temporary() -> TempDir {
    TempDir::new().expect("a temporary directory")
}

fn file(dir: &TempDir, name: &str, content: &[u8]) -> String {
    let path = dir.path().join(name);
    std::fs::write(&path, content).expect("writable");
    path.to_str().expect("a plain path").to_owned()
}

#[test]
fn a_service_that_is_not_there_is_named_with_what_to_do() {
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .expect("a free port")
        .port();
    let said = run(&["quickstart", "--bigtable", &format!("127.0.0.1:{port}")]);
    refused(
        &said,
        &[&format!("127.0.0.1:{port}"), "--bigtable", "aqueduct sim"],
    );
    refused(
        &run(&["quickstart", "--bigtable", "localhost"]),
        &["--bigtable", "localhost"],
    );
    refused(
        &run(&["quickstart", "--bigtable", "127.0.0.1:99999"]),
        &["--bigtable", "99999"],
    );
}

#[test]
fn a_parallelism_beyond_its_bounds_is_refused_by_its_flag_and_the_bound() {
    for beyond in ["0", "129"] {
        refused(
            &run(&["quickstart", "--parallelism", beyond]),
            &["--parallelism", beyond, "1..=128"],
        );
    }
}

#[test]
fn names_that_are_paths_are_refused_by_their_flag() {
    refused(&run(&["quickstart", "--table", "a/b"]), &["--table", "a/b"]);
    refused(&run(&["quickstart", "--project", " "]), &["--project"]);
}

#[test]
fn what_a_library_refuses_is_told_once_and_by_its_flag() {
    let nowhere = run(&["quickstart", "--events", "/nowhere/flights.csv"]);
    let metrics = run(&["quickstart", "--metrics", "here"]);
    let interval = run(&["quickstart", "--checkpoint-interval", "0 ms"]);
    for (said, words) in [
        (&nowhere, "/nowhere/flights.csv"),
        (&metrics, "--metrics"),
        (&interval, "--checkpoint-interval"),
    ] {
        refused(said, &[words]);
        assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    }
}

#[test]
fn a_checkpoint_directory_with_a_secret_is_refused_and_the_secret_not_shown() {
    let sim = Sim::start_on_thread(SimConfig::default()).expect("a free port");
    for directory in [
        "gs://user:SECRET@bucket/checkpoints",
        "s3://bucket/checkpoints?key=SECRET",
        "file:///checkpoints#SECRET",
    ] {
        let said = run(&[
            "quickstart",
            "--bigtable",
            &sim.endpoint(),
            "--checkpoint-dir",
            directory,
        ]);
        refused(&said, &["--checkpoint-dir"]);
        let all = format!("{}{}", said.out, said.err);
        assert!(!all.contains("SECRET"), "{all}");
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    refused(
        &run(&["quickstart", "--events", "/nowhere/flights.csv"]),
        &["/nowhere/flights.csv"],
    );
}

#[test]
fn a_malformed_line_is_named_by_file_and_number_and_not_shown() {
    let dir = temporary();
    let events = file(
        &dir,
        "events.csv",
        format!("{HEADER}{ROW}N14228,not,a,flight\n").as_bytes(),
    );
    refused(
        &run(&["quickstart", "--events", &events]),
        &["events.csv", "line 3"],
    );
    let wrong = ROW.replace("2013-01-01T10", "2013-99-01T10");
    let events = file(&dir, "times.csv", format!("{HEADER}{wrong}").as_bytes());
    refused(
        &run(&["quickstart", "--events", &events]),
        &["times.csv", "line 2"],
    );
}

#[test]
fn a_file_without_the_columns_is_refused() {
    let dir = temporary();
    let events = file(&dir, "other.csv", b"a,b,c\n1,2,3\n");
    refused(&run(&["quickstart", "--events", &events]), &["other.csv"]);
}

#[test]
fn a_truncated_gzip_is_named() {
    let dir = temporary();
    let whole = include_bytes!("../../data/flights-2013-01.csv.gz");
    let events = file(&dir, "cut.csv.gz", &whole[..whole.len() / 2]);
    refused(&run(&["quickstart", "--events", &events]), &["cut.csv.gz"]);
}

#[test]
fn an_empty_file_gives_an_empty_table() {
    let dir = temporary();
    for (name, content) in [("empty.csv", ""), ("header.csv", HEADER)] {
        let events = file(&dir, name, content.as_bytes());
        let said = run(&["quickstart", "--events", &events]);
        assert!(said.ok, "{name}: {said:?}");
        assert!(
            said.out.contains("0 rows in the table"),
            "{name}: {}",
            said.out
        );
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let sim = Sim::start_on_thread(SimConfig::default()).expect("a free port");
    let dir = temporary();
    // Below a file nothing can be written, whoever asks.
    let under_a_file = format!("{}/checkpoints", file(&dir, "file", b""));
    let said = run(&[
        "quickstart",
        "--bigtable",
        &sim.endpoint(),
        "--checkpoint-dir",
        &under_a_file,
    ]);
    refused(&said, &[&under_a_file]);
}

/// Runs the quickstart until it has written some rows, kills it; gives the service and the directory of checkpoints.
fn killed_run(dir: &TempDir, events: Option<&str>) -> Sim {
    let sim = Sim::start_on_thread(SimConfig::default()).expect("a free port");
    let table = sim
        .bigtable()
        .create_table("quickstart", "local", "flights", &["flight"]);
    let checkpoints = dir.path().join("checkpoints");
    let mut run = command(&["quickstart", "--bigtable", &sim.endpoint(), "--rate", "500"]);
    run.arg("--checkpoint-dir")
        .arg(&checkpoints)
        .args(["--checkpoint-interval", "50 ms"]);
    if let Some(events) = events {
        run.args(["--events", events]);
    }
    let mut child = run
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let manifests = || files_named(&checkpoints, "manifest").len();
    let ended = ends_before(&mut child, || table.row_count() > 100 && manifests() > 1);
    assert!(!ended, "the run was to be killed before its end");
    child.kill().expect("a running child can be killed");
    child.wait().expect("a killed child ends");
    sim
}

fn resume(sim: &Sim, dir: &TempDir, events: Option<&str>) -> Said {
    let checkpoints = dir.path().join("checkpoints");
    let checkpoints = checkpoints.to_str().expect("a plain path");
    let endpoint = sim.endpoint();
    let mut arguments = vec![
        "quickstart",
        "--bigtable",
        &endpoint,
        "--rate",
        "0",
        "--checkpoint-dir",
        checkpoints,
    ];
    if let Some(events) = events {
        arguments.extend(["--events", events]);
    }
    run(&arguments)
}

/// All files below `dir` whose name begins with `name`.
pub(crate) fn files_named(dir: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_named(&path, name));
        } else if entry.file_name().to_string_lossy().starts_with(name) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn a_corrupted_manifest_is_named_and_an_older_checkpoint_is_not_taken_silently() {
    let dir = temporary();
    let sim = killed_run(&dir, None);
    for manifest in files_named(&dir.path().join("checkpoints"), "manifest") {
        std::fs::write(manifest, b"{ not a manifest").expect("writable");
    }
    refused(&resume(&sim, &dir, None), &["manifest"]);
}

#[test]
fn a_truncated_snapshot_is_named() {
    let dir = temporary();
    let sim = killed_run(&dir, None);
    let checkpoints = dir.path().join("checkpoints");
    let mut cut = 0;
    for path in files_named(&checkpoints, "") {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let content = std::fs::read(&path).expect("readable");
        if !name.contains("manifest") && !name.contains("lock") && content.len() > 8 {
            std::fs::write(&path, &content[..content.len() / 2]).expect("writable");
            cut += 1;
        }
    }
    assert!(cut > 0, "there are snapshots to cut");
    refused(&resume(&sim, &dir, None), &["checkpoints"]);
}

#[test]
fn a_checkpoint_of_another_job_is_refused_naming_both() {
    use aqueduct::files::GeneratorSource;
    use aqueduct::runtime::{Job, JobConfig, WatermarkStrategy};
    let dir = temporary();
    let checkpoints = dir.path().join("checkpoints");
    let sim = Sim::start_on_thread(SimConfig::default()).expect("a free port");
    sim.bigtable().create_table("p", "i", "t", &["cf"]);
    let numbers = GeneratorSource::builder(|n| n)
        .limit(10)
        .build()
        .expect("valid");
    let sink = aqueduct::bigtable::BigtableSink::builder()
        .table(aqueduct::bigtable::TableDestination::of("p", "i", "t").expect("valid"))
        .serializer(
            |n: &u64, _, entry: &mut aqueduct::bigtable::RowMutationEntry| {
                entry.row_key(n.to_be_bytes()).set_cell("cf", b"q", 0, b"v");
                Ok::<_, std::convert::Infallible>(aqueduct::bigtable::Disposition::Write)
            },
        )
        .emulator_endpoint(sim.endpoint())
        .build()
        .expect("valid");
    let job = Job::new("another-job");
    job.from_source("numbers", numbers, WatermarkStrategy::none())
        .sink_to("sink", sink);
    let config = JobConfig::builder()
        .checkpoint_dir(checkpoints.display().to_string())
        .build()
        .expect("valid");
    job.run(config).expect("the other job ends well");

    refused(&resume(&sim, &dir, None), &["another-job", "quickstart"]);
}

#[test]
fn a_file_that_shrank_since_the_checkpoint_is_named() {
    let dir = temporary();
    let mut content = HEADER.to_owned();
    for flight in 0..3_000 {
        content.push_str(&ROW.replace(",1545,", &format!(",{flight},")));
    }
    let events = file(&dir, "events.csv", content.as_bytes());
    let sim = killed_run(&dir, Some(&events));
    std::fs::write(&events, &content.as_bytes()[..content.len() / 3]).expect("writable");
    refused(&resume(&sim, &dir, Some(&events)), &["events.csv"]);
}

#[test]
fn two_processes_on_one_checkpoint_directory_the_second_is_refused() {
    let dir = temporary();
    let sim = Sim::start_on_thread(SimConfig::default()).expect("a free port");
    let table = sim
        .bigtable()
        .create_table("quickstart", "local", "flights", &["flight"]);
    let checkpoints = dir.path().join("checkpoints");
    let mut first = command(&["quickstart", "--bigtable", &sim.endpoint(), "--rate", "200"])
        .arg("--checkpoint-dir")
        .arg(&checkpoints)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let ended = ends_before(&mut first, || table.row_count() > 0);
    assert!(!ended, "the first run is still under way");
    let second = resume(&sim, &dir, None);
    first.kill().expect("a running child can be killed");
    first.wait().expect("a killed child ends");
    refused(&second, &["checkpoints", &first.id().to_string()]);
}
