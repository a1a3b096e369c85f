//! A quickstart that is asked to end, or whose output nobody reads.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use aqueduct_sim::{Method, Sim, SimConfig, Table};

use crate::program::{command, end_within, ends_before, interrupt, run};

/// Longer than anything here takes unless it hangs.
const LIMIT: Duration = Duration::from_secs(120);

fn service() -> (Sim, Table) {
    let sim = Sim::start_on_thread(SimConfig::default()).expect("a free port");
    let table = sim
        .bigtable()
        .create_table("quickstart", "local", "flights", &["flight"]);
    (sim, table)
}

/// A run of some ten seconds, in which a checkpoint was completed.
fn running(sim: &Sim, table: &Table, checkpoints: &std::path::Path) -> Child {
    let mut child = command(&["quickstart", "--bigtable", &sim.endpoint(), "--rate", "500"])
        .arg("--checkpoint-dir")
        .arg(checkpoints)
        .args(["--checkpoint-interval", "50 ms"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let complete = || {
        table.row_count() > 100
            && !crate::bad_input::files_named(checkpoints, "manifest").is_empty()
    };
    assert!(!ends_before(&mut child, complete), "it ended by itself");
    child
}

/// From here on writes are not answered, one of them has arrived, and no checkpoint completes.
fn no_more_answers(sim: &Sim, table: &Table) {
    table.always(Method::MutateRows).silent();
    let before = sim.bigtable().request_count(Method::MutateRows);
    let arrived = table.wait_until(LIMIT, |_| {
        sim.bigtable().request_count(Method::MutateRows) > before + 1
    });
    sim.block_on(arrived).expect("it goes on writing");
}

#[test]
fn asked_to_end_it_stops_with_a_last_checkpoint_and_exit_code_3_and_the_next_run_goes_on() {
    let (sim, table) = service();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let child = running(&sim, &table, directory.path());
    interrupt(&child);
    let said = end_within(LIMIT, child);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(
        said.err.contains("stopping with a last checkpoint"),
        "{said:?}"
    );
    assert!(said.out.contains("stopped before the end"), "{said:?}");
    let (rows, written) = (table.row_count(), table.applied_entries());
    assert!(rows < 4_963, "it was stopped on its way");
    assert_eq!(written, rows as u64, "nothing was written twice");

    let directory = directory.path().to_str().expect("a plain path");
    let said = run(&[
        "quickstart",
        "--bigtable",
        &sim.endpoint(),
        "--checkpoint-dir",
        directory,
        "--rate",
        "0",
    ]);
    assert!(said.ok && said.out.contains("resuming from"), "{said:?}");
    assert!(said.out.contains("4963 rows in the table"), "{said:?}");
    // The last checkpoint covers all that was written.
    assert_eq!(table.applied_entries(), 4_963);
}

#[test]
fn asked_twice_it_ends_at_once_with_exit_code_130() {
    let (sim, table) = service();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut child = running(&sim, &table, directory.path());
    no_more_answers(&sim, &table);
    interrupt(&child);
    let mut err = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    err.read_line(&mut line).expect("it says what it does");
    assert!(line.contains("once more ends at once"), "{line}");
    interrupt(&child);
    let said = end_within(LIMIT, child);
    assert_eq!(said.code, Some(130), "{said:?}");
    let mut rest = String::new();
    err.read_to_string(&mut rest).expect("text");
    assert!(rest.contains("ended at once"), "{rest}");
}

#[test]
fn a_stop_whose_last_checkpoint_does_not_come_ends_without_it_after_30_s() {
    let (sim, table) = service();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let child = running(&sim, &table, directory.path());
    no_more_answers(&sim, &table);
    let asked = Instant::now();
    interrupt(&child);
    let said = end_within(LIMIT, child);
    let took = asked.elapsed();
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(
        said.err
            .contains("no last checkpoint: it took more than 30s"),
        "{said:?}"
    );
    assert!(
        took >= Duration::from_secs(30) && took < Duration::from_secs(90),
        "{took:?}"
    );
}

#[test]
fn an_output_that_nobody_reads_does_not_keep_it_from_its_work() {
    let (sim, table) = service();
    let mut child = command(&["quickstart", "--bigtable", &sim.endpoint(), "--rate", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let said = end_within(LIMIT, child);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.err.is_empty(), "{said:?}");
    assert_eq!(table.row_count(), 4_963);
}
