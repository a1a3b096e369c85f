//! The process is killed under load, again and again, and the table ends complete.

use std::process::Stdio;

use aqueduct_sim::{Sim, SimConfig};

use crate::program::{command, ends_before};

/// Events a second, and the interval of checkpoints in milliseconds.
const RATE: u64 = 1_000;
const INTERVAL_MS: u64 = 200;
const EVENTS: u64 = 4_963;

/// `AQUEDUCT_KILLS` sets how often; `AQUEDUCT_SEED` when.
#[test]
fn killed_at_random_moments_the_table_ends_complete_and_little_is_read_again() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| {
            text.parse().expect("a number in the environment")
        })
    };
    let (kills, seed) = (number("AQUEDUCT_KILLS", 5), number("AQUEDUCT_SEED", 1));
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut chance = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };

    let sim = Sim::start_on_thread(SimConfig::default()).expect("a free port");
    let table = sim
        .bigtable()
        .create_table("quickstart", "local", "flights", &["flight"]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path().to_str().expect("a plain path");
    let start = || {
        let (rate, interval) = (RATE.to_string(), format!("{INTERVAL_MS} ms"));
        command(&[
            "quickstart",
            "--bigtable",
            &sim.endpoint(),
            "--checkpoint-dir",
            directory,
        ])
        .args(["--rate", &rate, "--checkpoint-interval", &interval])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts")
    };

    let mut killed = 0;
    while killed < kills {
        // Enough for some checkpoints between two deaths, and enough left to die in.
        let before = table.applied_entries();
        let more = 1 + chance(2 * EVENTS / (kills + 2));
        let mut child = start();
        let ended = ends_before(&mut child, || table.applied_entries() >= before + more);
        if ended {
            break;
        }
        // SIGKILL: nothing of the process runs any more, no handler and no destructor.
        child.kill().expect("a running child can be killed");
        child.wait().expect("a killed child ends");
        killed += 1;
    }
    let last = start().wait_with_output().expect("the last run ends");
    let out = String::from_utf8_lossy(&last.stdout);
    assert!(
        last.status.success(),
        "seed {seed}: {out} {}",
        String::from_utf8_lossy(&last.stderr)
    );
    assert!(out.contains("4963 rows in the table"), "seed {seed}: {out}");

    assert_eq!(table.row_count() as u64, EVENTS, "seed {seed}");
    let repeats = table.applied_entries() - EVENTS;
    // On average a death costs what one interval covers, and what a checkpoint and a start take on a busy machine.
    let bound = killed * RATE * INTERVAL_MS * 4 / 1_000;
    assert!(
        killed >= kills.min(3),
        "seed {seed}: the run ended after {killed} kills"
    );
    assert!(
        repeats <= bound,
        "seed {seed}: {repeats} writes were repeated over {killed} restarts, bound {bound}"
    );
    println!(
        "killed {killed} times, {repeats} of {EVENTS} writes repeated (bound {bound}), seed {seed}"
    );
}
