//! A process that is killed under load: whatever the service holds as acknowledged had been covered by a checkpoint.
//!
//! The test runs itself as the process that is killed, and holds the simulated service itself.

use std::collections::HashSet;
use std::env;
use std::io::Write as _;
use std::num::NonZeroU64;
use std::process::Stdio;
use std::time::Duration;

use aqueduct_pubsub::{PubSubSource, SubscriberOptions};
use aqueduct_sim::Method;
use aqueduct_testkit::{SourceHost, TestContext};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::source_support::*;

const ENDPOINT: &str = "AQUEDUCT_TEST_SOURCE_ENDPOINT";
const KILLS: usize = 8;
const MESSAGES: usize = 4_000;

/// Reads without end, saying what a checkpoint covers before it completes it.
async fn read_for_ever(endpoint: &str) {
    let options = SubscriberOptions::new()
        .max_records_per_fetch(NonZeroU64::new(10).expect("ten"))
        .flow_control_max_outstanding_element_count(NonZeroU64::new(300).expect("not zero"));
    let builder = PubSubSource::builder()
        .subscription(destination("s"))
        .deserializer(deserialize)
        .subscriber_options(options)
        .emulator_endpoint(endpoint.trim_start_matches("http://"));
    let kit = TestContext::new("source").with_limit(LIMIT);
    let mut host = SourceHost::start(arc(builder), &kit, 2).expect("starts");
    let mut told = HashSet::new();
    loop {
        host.run_until_emitted(25).await.expect("well");
        let checkpoint = host.barrier().await.expect("well");
        let mut out = std::io::stdout();
        for emitted in host.emitted_before(&checkpoint) {
            if told.insert(emitted.record.value.clone()) {
                writeln!(out, "covered {}", emitted.record.value).expect("the parent reads");
            }
        }
        writeln!(out, "checkpoint").expect("the parent reads");
        out.flush().expect("the parent reads");
        host.complete(&checkpoint).expect("well");
    }
}

#[tokio::test]
async fn a_process_killed_under_load_has_acknowledged_nothing_that_no_checkpoint_covers() {
    if let Ok(endpoint) = env::var(ENDPOINT) {
        read_for_ever(&endpoint).await;
    }
    let world = World::new().await;
    world.sub.set_shuffle(Some(1));
    // Some answers are slow or lost, so that a kill meets acknowledgements in every state.
    world
        .sub
        .randomly(1, 0.2, Method::Acknowledge)
        .delay(Duration::from_millis(3));
    world
        .sub
        .randomly(2, 0.1, Method::Acknowledge)
        .apply_then_lose_answer();
    let ids = world.publish("m", MESSAGES);
    let mut random = fastrand::Rng::with_seed(3);
    let mut covered: HashSet<String> = HashSet::new();
    for kill in 0..KILLS {
        let mut child = Command::new(env::current_exe().expect("this test has a binary"))
            .args(["--exact", "--nocapture"])
            .arg("source_crash::a_process_killed_under_load_has_acknowledged_nothing_that_no_checkpoint_covers")
            .env(ENDPOINT, world.sim.endpoint())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the test can run itself");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut checkpoints = random.u32(1..8);
        let mut killed = false;
        loop {
            let line = tokio::time::timeout(LIMIT, lines.next_line())
                .await
                .expect("a line in time");
            // What it said before it was killed counts to the last whole line.
            let Some(line) = line.ok().flatten() else {
                break;
            };
            if let Some(text) = line.strip_prefix("covered ") {
                covered.insert(text.to_owned());
            } else if line == "checkpoint" && !killed {
                checkpoints -= 1;
                if checkpoints == 0 {
                    child.kill().await.expect("it runs");
                    killed = true;
                }
            }
        }
        assert!(killed, "the child ended by itself");
        world
            .until("the killed process's streams to end", |sub| {
                sub.open_streams() == 0
            })
            .await;
        let lost: Vec<_> = ids
            .iter()
            .enumerate()
            .filter(|(at, id)| world.sub.is_acked(id) && !covered.contains(&format!("m{at}")))
            .collect();
        assert!(lost.is_empty(), "kill {kill}: {lost:?}");
        // The leases of the dead end.
        world.advance(Duration::from_secs(601));
    }
    assert!(
        world.sub.counts().acked > 0,
        "the kills came too early to show anything"
    );
    let mut host = world.start(world.builder());
    let mut steps = 0;
    while world.sub.backlog() > 0 {
        steps += 1;
        assert!(steps < 100_000, "stuck with {} left", world.sub.backlog());
        if steps % 20 == 0 {
            world.advance(Duration::from_millis(20));
            host.checkpoint().await.expect("checkpoints");
        }
        host.try_step().await.expect("reads on");
    }
    covered.extend(emitted(&host));
    let missing = (0..MESSAGES).filter(|at| !covered.contains(&format!("m{at}")));
    assert_eq!(missing.count(), 0);
    world.close(host).await;
}
