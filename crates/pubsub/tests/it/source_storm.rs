//! The storm: checkpoints each minute on a subscription whose leases are ten seconds, a downstream that stalls for two
//! minutes, a process killed twice, once in the middle of its acknowledgements. Nothing is lost, nothing is delivered
//! twice but what the dead held, and in between nothing at all.
//!
//! Time is virtual: this process holds the service on a stopped clock and tells the reading one, which it kills, of each
//! second that passes. `benches` has the same in real time (`pubsub_storm`).

use std::collections::{HashMap, HashSet};
use std::env;
use std::io::Write as _;
use std::num::NonZeroU64;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_connector::Timestamp;
use aqueduct_connector::clock::ManualClock;
use aqueduct_pubsub::{PubSubSource, SubscriberOptions};
use aqueduct_testkit::{SourceHost, TestContext, within};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::source_support::*;

const ENDPOINT: &str = "AQUEDUCT_TEST_STORM_ENDPOINT";
const NAME: &str =
    "source_storm::a_storm_loses_nothing_and_repeats_only_what_a_killed_process_held";

const MESSAGES: usize = 100_000;
/// Messages a second.
const RATE: usize = 150;
/// Seconds between checkpoints.
const INTERVAL: usize = 60;
/// No lease of a living reader comes nearer to its end than this: the next extension is due 15 s before it at the latest.
const SAFE: Duration = Duration::from_secs(13);

/// Reads as the other process tells it to: a line a command, answered by `ok`.
async fn read_as_told(endpoint: &str) {
    let clock = ManualClock::new(Timestamp::from_millis(0));
    // An idle wait is as long as the other process likes.
    let kit = TestContext::new("source")
        .with_clock(Arc::new(clock.clone()))
        .with_limit(Duration::from_secs(3_600));
    let messages = |count| NonZeroU64::new(count).expect("not zero");
    // Three minutes' worth: the stall comes on top of an interval.
    let options = SubscriberOptions::new()
        .flow_control_max_outstanding_element_count(messages(40_000))
        .subscriber_buffer_max_messages(messages(40_000));
    let builder = PubSubSource::builder()
        .subscription(destination("s"))
        .deserializer(deserialize)
        .subscriber_options(options)
        .emulator_endpoint(endpoint.trim_start_matches("http://"));
    let mut host = SourceHost::start(arc(builder), &kit, 1).expect("starts");
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    let (mut stalled, mut told, mut covered) = (false, 0, 0);
    loop {
        let command = if stalled {
            commands.next_line().await
        } else {
            tokio::select! {
                biased;
                command = commands.next_line() => command,
                step = host.step() => {
                    step.expect("well");
                    continue;
                }
            }
        };
        // The other process is gone.
        let Some(command) = command.ok().flatten() else {
            return;
        };
        let mut out = std::io::stdout().lock();
        match &*command {
            "second" => clock.advance(Duration::from_secs(1)),
            "stall" => stalled = true,
            "go" => stalled = false,
            "told" => {
                for emitted in host.emitted().skip(told) {
                    writeln!(out, "emitted {}", emitted.record.value).expect("it is read");
                    told += 1;
                }
            }
            "checkpoint" => {
                let checkpoint = barrier_now(&mut host);
                for emitted in host.emitted_before(&checkpoint).skip(covered) {
                    writeln!(out, "covered {}", emitted.record.value).expect("it is read");
                    covered += 1;
                }
                writeln!(out, "completing").expect("it is read");
                out.flush().expect("it is read");
                host.complete(&checkpoint).expect("well");
            }
            other => panic!("no such command: {other}"),
        }
        writeln!(out, "ok").expect("it is read");
        out.flush().expect("it is read");
    }
}

/// The reading process.
struct Reader {
    child: Child,
    commands: ChildStdin,
    lines: tokio::io::Lines<BufReader<ChildStdout>>,
}

/// What the readers said, all of them together.
#[derive(Default)]
struct Said {
    emitted: HashMap<String, u32>,
    covered: HashSet<String>,
    /// Emissions of the living reader.
    emissions: u64,
    /// Messages that the living reader's checkpoints covered.
    coverings: u64,
}

impl Reader {
    fn start(endpoint: &str) -> Self {
        let mut child = Command::new(env::current_exe().expect("this test has a binary"))
            .args(["--exact", "--nocapture", NAME])
            .env(ENDPOINT, endpoint)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .expect("the test can run itself");
        let commands = child.stdin.take().expect("piped");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self {
            child,
            commands,
            lines,
        }
    }

    /// Gives a command and hears what it says up to `last`.
    async fn tell(&mut self, command: &str, last: &str, said: &mut Said) {
        let line = format!("{command}\n");
        self.commands
            .write_all(line.as_bytes())
            .await
            .expect("it lives");
        let answer = async {
            loop {
                let line = self.lines.next_line().await.expect("it speaks");
                let line = line.expect("it lives");
                if line == last {
                    break;
                }
                match line.split_once(' ') {
                    Some(("emitted", text)) => {
                        *said.emitted.entry(text.to_owned()).or_default() += 1;
                        said.emissions += 1;
                    }
                    Some(("covered", text)) => {
                        said.covered.insert(text.to_owned());
                        said.coverings += 1;
                    }
                    // The test harness says what it runs.
                    _ => {}
                }
            }
        };
        within(LIMIT, command, answer).await;
    }
}

/// The service, the reader, and what was seen.
struct Storm {
    world: World,
    reader: Reader,
    said: Said,
    ids: Vec<String>,
    second: usize,
    /// Held by readers when they were killed; at most, until the leases have ended.
    held_by_the_dead: u64,
    /// When the living reader began.
    delivered_before: u64,
    acked_before: u64,
}

impl Storm {
    /// Lets a second pass, with its messages, and a checkpoint when one is due.
    async fn pass(&mut self, stalled: bool) {
        self.second += 1;
        let left = MESSAGES - self.ids.len();
        for _ in 0..RATE.min(left) {
            let text = format!("m{}", self.ids.len());
            self.ids.push(self.world.topic.publish(text));
        }
        self.world.sim.pubsub().advance(Duration::from_secs(1));
        self.reader.tell("second", "ok", &mut self.said).await;
        let sub = &self.world.sub;
        self.world
            .until("the leases to be kept", |_| {
                sub.open_leases_ending_within(SAFE) == 0
            })
            .await;
        // A barrier does not pass a stalled downstream.
        if self.second.is_multiple_of(INTERVAL) && !stalled {
            self.read_all().await;
            self.reader.tell("checkpoint", "ok", &mut self.said).await;
            let acked = self.acked_before + self.said.coverings;
            self.world
                .until("the acknowledgements", |sub| sub.counts().acked >= acked)
                .await;
        }
    }

    async fn pass_until(&mut self, second: usize) {
        while self.second < second {
            self.pass(false).await;
        }
    }

    /// Waits until everything that is to be had was emitted; what a dead reader held is not yet.
    async fn read_all(&mut self) {
        let began = std::time::Instant::now();
        loop {
            self.reader.tell("told", "ok", &mut self.said).await;
            let sub = &self.world.sub;
            let delivered = sub.counts().delivered - self.delivered_before;
            if self.said.emissions == delivered && sub.outstanding() == sub.backlog() {
                return;
            }
            assert!(
                began.elapsed() < LIMIT,
                "reading stands still after {} s: {} of {} emitted, {:?}",
                self.second,
                self.said.emitted.len(),
                self.ids.len(),
                self.world.sub.counts()
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// No delivery is repeated but what the dead held, whose leases have ended by now.
    fn assert_no_wave(&mut self) {
        let counts = self.world.sub.counts();
        assert_eq!(
            (counts.redelivered, counts.nacked),
            (counts.expired, 0),
            "after {} s",
            self.second
        );
        assert!(
            counts.redelivered <= self.held_by_the_dead,
            "{} redelivered, the dead held {}, after {} s",
            counts.redelivered,
            self.held_by_the_dead,
            self.second
        );
        // Acknowledgements that were under way at the kill have landed; from here on it is exact.
        self.held_by_the_dead = counts.redelivered;
    }

    /// Kills the reader where it stands and starts another. What it held comes again within a minute.
    async fn kill(&mut self) {
        self.reader.child.kill().await.expect("it runs");
        self.world
            .until("its streams to end", |sub| sub.open_streams() == 0)
            .await;
        let sub = &self.world.sub;
        let acked_uncovered = self
            .ids
            .iter()
            .enumerate()
            .filter(|(at, id)| sub.is_acked(id) && !self.said.covered.contains(&format!("m{at}")))
            .count();
        assert_eq!(acked_uncovered, 0, "acknowledged and not covered");
        let held = sub.outstanding() as u64;
        assert!(
            held > 0 && held <= (RATE * (INTERVAL + 1)) as u64,
            "{held} held: more than an interval's messages"
        );
        self.held_by_the_dead += held;
        let counts = sub.counts();
        (self.delivered_before, self.acked_before) = (counts.delivered, counts.acked);
        (self.said.emissions, self.said.coverings) = (0, 0);
        self.reader = Reader::start(&self.world.sim.endpoint());
        self.reader.tell("told", "ok", &mut self.said).await;
    }
}

#[tokio::test]
async fn a_storm_loses_nothing_and_repeats_only_what_a_killed_process_held() {
    if let Ok(endpoint) = env::var(ENDPOINT) {
        return read_as_told(&endpoint).await;
    }
    let world = World::new().await;
    world.sub.set_shuffle(Some(1));
    assert_eq!(
        world.sub.config().map(|config| config.ack_deadline_seconds),
        Some(10)
    );
    let reader = Reader::start(&world.sim.endpoint());
    let mut storm = Storm {
        world,
        reader,
        said: Said::default(),
        ids: Vec::new(),
        second: 0,
        held_by_the_dead: 0,
        delivered_before: 0,
        acked_before: 0,
    };
    storm.pass_until(180).await;
    storm.assert_no_wave();
    assert_eq!(
        storm.world.sub.backlog(),
        0,
        "the last second was a checkpoint"
    );

    // The downstream stalls for two minutes: leases are kept, nothing comes again.
    storm.reader.tell("stall", "ok", &mut storm.said).await;
    for _ in 0..120 {
        storm.pass(true).await;
    }
    assert_eq!(storm.world.sub.backlog(), 120 * RATE);
    storm.reader.tell("go", "ok", &mut storm.said).await;
    storm.pass_until(360).await;
    storm.assert_no_wave();
    assert!(
        storm.said.emitted.values().all(|times| *times == 1),
        "emitted twice without a failure"
    );

    // Killed in the middle of an interval.
    storm.pass_until(390).await;
    storm.kill().await;
    storm.pass_until(480).await;
    storm.assert_no_wave();

    // Killed while acknowledgements are on their way.
    storm.pass_until(539).await;
    storm.read_all().await;
    storm
        .reader
        .tell("checkpoint", "completing", &mut storm.said)
        .await;
    storm.kill().await;
    storm.pass_until(620).await;
    storm.assert_no_wave();

    while storm.ids.len() < MESSAGES || storm.world.sub.backlog() > 0 {
        storm.pass(false).await;
        assert!(storm.second < 1_200, "{} left", storm.world.sub.backlog());
    }
    storm.assert_no_wave();
    let counts = storm.world.sub.counts();
    assert_eq!(counts.acked, MESSAGES as u64);
    assert_eq!(counts.delivered, MESSAGES as u64 + storm.held_by_the_dead);
    assert_eq!(storm.said.emitted.len(), MESSAGES, "each was emitted");
    let repeated: u32 = storm.said.emitted.values().map(|times| times - 1).sum();
    assert!(
        u64::from(repeated) <= storm.held_by_the_dead,
        "{repeated} emitted again, {} were held by the dead",
        storm.held_by_the_dead
    );
}
