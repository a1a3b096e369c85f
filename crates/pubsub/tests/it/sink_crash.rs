//! A process that is killed under load: what a completed checkpoint covers is in the topic.
//!
//! The test runs itself as the process that is killed, and holds the simulated service itself.

use std::collections::HashSet;
use std::env;
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use aqueduct_sim::{Method, SimConfig};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::sink_world::{LIMIT, Record, World, destination, serialize};

const ENDPOINT: &str = "AQUEDUCT_TEST_ENDPOINT";
const FIRST: &str = "AQUEDUCT_TEST_FIRST";
const KILLS: usize = 20;
/// Records between two checkpoints.
const INTERVAL: u64 = 40;

/// Publishes numbered records without end, saying after each checkpoint how many are covered.
async fn publish_for_ever(endpoint: String, first: u64) {
    let sink = aqueduct_pubsub::PubSubSink::builder()
        .topic(destination("t"))
        .serializer(serialize)
        .emulator_endpoint(endpoint)
        .publisher_options(super::sink_world::quick().batch_element_count_threshold(7))
        .build()
        .expect("valid");
    let kit = aqueduct_testkit::TestContext::new("sink").with_limit(LIMIT);
    let mut host =
        aqueduct_testkit::SinkHost::start(std::sync::Arc::new(sink), &kit, 1).expect("a writer");
    let mut next = first;
    loop {
        let records = (next..next + INTERVAL).map(|number| Record::new(number.to_string()));
        host.write_all(records).await.expect("well");
        next += INTERVAL;
        host.checkpoint().await.expect("well");
        let mut out = std::io::stdout();
        writeln!(out, "covered {next}").expect("the parent reads");
        out.flush().expect("the parent reads");
    }
}

#[tokio::test]
async fn a_process_killed_under_load_loses_nothing_that_a_checkpoint_covers() {
    if let (Ok(endpoint), Ok(first)) = (env::var(ENDPOINT), env::var(FIRST)) {
        publish_for_ever(endpoint, first.parse().expect("a number")).await;
    }
    let world = World::with(SimConfig::default()).await;
    // Some answers are slow or lost, so that a kill meets requests in every state.
    world
        .topic
        .randomly(1, 0.2, Method::Publish)
        .delay(Duration::from_millis(3));
    world
        .topic
        .randomly(2, 0.05, Method::Publish)
        .apply_then_lose_answer();
    let mut random = fastrand::Rng::with_seed(3);
    let mut covered = 0;
    for kill in 0..KILLS {
        let mut child = Command::new(env::current_exe().expect("this test has a binary"))
            .args(["--exact", "--nocapture"])
            .arg("sink_crash::a_process_killed_under_load_loses_nothing_that_a_checkpoint_covers")
            .env(ENDPOINT, world.sim.endpoint())
            .env(FIRST, covered.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the test can run itself");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut checkpoints = random.u32(1..8);
        while checkpoints > 0 {
            let line = tokio::time::timeout(LIMIT, lines.next_line())
                .await
                .expect("a checkpoint in time")
                .expect("readable")
                .expect("the child goes on for ever");
            if let Some(count) = line.strip_prefix("covered ") {
                covered = count.parse().expect("a number");
                checkpoints -= 1;
            }
        }
        // It is in the middle of the next interval now.
        child.kill().await.expect("it runs");
        let held: HashSet<u64> = world
            .data()
            .iter()
            .map(|data| data.parse().expect("ours"))
            .collect();
        let missing: Vec<_> = (0..covered)
            .filter(|number| !held.contains(number))
            .collect();
        assert!(missing.is_empty(), "kill {kill}: {missing:?}");
    }
}
