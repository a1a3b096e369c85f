//! The storm of `crates/pubsub/tests/it/source_storm.rs` in real time: a subscription whose leases are ten seconds, a
//! checkpoint each minute, a downstream that stalls for two minutes, and a process that is killed (`SIGKILL`) twice, the
//! second time in the middle of its acknowledgements.
//!
//! It prints what the service counted and exits with an error if a message was lost or anything came again that no dead
//! process had held. With its defaults it runs for about ten minutes:
//! `cargo run --release -p aqueduct-benches --bin pubsub_storm`.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that prints a table"
)]

use std::collections::HashSet;
use std::env;
use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::num::NonZeroU64;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use aqueduct_connector::source::Collector;
use aqueduct_pubsub::source::ReceivedMessage;
use aqueduct_pubsub::{PubSubSource, SubscriberOptions, SubscriptionDestination};
use aqueduct_sim::{Sim, SimConfig, Subscription};
use aqueduct_testkit::{SourceHost, TestContext};
use clap::Parser;
use tokio::io::AsyncBufReadExt as _;

/// A storm of messages, checkpoints and deaths.
#[derive(Parser)]
struct Arguments {
    /// Messages to publish.
    #[arg(long, default_value_t = 1_000_000)]
    messages: u64,
    /// Messages a second.
    #[arg(long, default_value_t = 2_000)]
    rate: u64,
    /// Seconds between checkpoints.
    #[arg(long, default_value_t = 60)]
    interval: u64,
    /// Seconds for which the downstream stalls.
    #[arg(long, default_value_t = 120)]
    stall: u64,
    /// Reads from this service instead: what this program starts and kills.
    #[arg(long, hide = true)]
    read: Option<String>,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::parse();
    match &arguments.read {
        Some(endpoint) => {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?
                .block_on(read(endpoint, &arguments))?;
            Ok(ExitCode::SUCCESS)
        }
        None => storm(&arguments),
    }
}

/// Reads, takes a checkpoint each interval and says what it covers; stalls and goes on as told.
async fn read(endpoint: &str, arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let kit = TestContext::new("source").with_limit(Duration::from_secs(86_400));
    let hold = arguments.rate * (2 * arguments.interval + arguments.stall);
    let hold = NonZeroU64::new(hold).ok_or("--rate and --interval must not be 0")?;
    let options = SubscriberOptions::new()
        .flow_control_max_outstanding_element_count(hold)
        .subscriber_buffer_max_messages(hold);
    let source = PubSubSource::builder()
        .subscription(SubscriptionDestination::new("p", "s")?)
        .deserializer(
            |message: &ReceivedMessage,
             _: &SubscriptionDestination,
             out: &mut Collector<'_, u64>| {
                let number = message.data()[..].try_into().map(u64::from_le_bytes);
                out.emit(number.unwrap_or(u64::MAX));
                Ok(())
            },
        )
        .subscriber_options(options)
        .emulator_endpoint(endpoint.trim_start_matches("http://"))
        .build()?;
    let mut host = SourceHost::start(std::sync::Arc::new(source), &kit, 1)?;
    let mut commands = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    let mut barriers = tokio::time::interval(Duration::from_secs(arguments.interval));
    barriers.tick().await;
    let (mut stalled, mut covered) = (false, 0);
    loop {
        tokio::select! {
            biased;
            command = commands.next_line() => match command?.as_deref() {
                Some("stall") => stalled = true,
                Some("go") => stalled = false,
                _ => return Ok(()),
            },
            _ = barriers.tick(), if !stalled => {
                let checkpoint = host.barrier().await?;
                let mut out = std::io::stdout().lock();
                for emitted in host.emitted_before(&checkpoint).skip(covered) {
                    writeln!(out, "{}", emitted.record.value)?;
                    covered += 1;
                }
                writeln!(out, "completing")?;
                out.flush()?;
                host.complete(&checkpoint)?;
            }
            step = host.step(), if !stalled => drop(step?),
        }
    }
}

/// A reading process and what it says.
struct Reader {
    child: Child,
    commands: ChildStdin,
    said: mpsc::Receiver<Said>,
}

enum Said {
    Covered(u64),
    Completing,
}

impl Reader {
    fn start(endpoint: &str, arguments: &Arguments) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(env::current_exe()?)
            .args(["--read", endpoint])
            .args(["--rate", &arguments.rate.to_string()])
            .args(["--interval", &arguments.interval.to_string()])
            .args(["--stall", &arguments.stall.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let commands = child.stdin.take().ok_or("a pipe was asked for")?;
        let lines = BufReader::new(child.stdout.take().ok_or("a pipe was asked for")?).lines();
        let (say, said) = mpsc::sync_channel(1_024);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let what = match line.parse() {
                    Ok(number) => Said::Covered(number),
                    Err(_) => Said::Completing,
                };
                if say.send(what).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            child,
            commands,
            said,
        })
    }

    fn tell(&mut self, command: &str) -> Result<(), Box<dyn Error>> {
        Ok(writeln!(self.commands, "{command}")?)
    }
}

/// The storm's service and what was learnt so far.
struct Storm<'a> {
    arguments: &'a Arguments,
    sim: Sim,
    sub: Subscription,
    reader: Reader,
    began: Instant,
    published: u64,
    covered: HashSet<u64>,
    repeated: u64,
    checkpoints: u64,
    held_by_the_dead: u64,
}

impl Storm<'_> {
    fn hear(&mut self, said: &Said) {
        match said {
            Said::Covered(number) => self.repeated += u64::from(!self.covered.insert(*number)),
            Said::Completing => self.checkpoints += 1,
        }
    }

    /// Publishes and listens until `done`.
    fn run_until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        println!("{:>5} s  {what}", self.began.elapsed().as_secs());
        let topic = self.sim.pubsub().topic("p", "t");
        while !done(self) {
            let due = self.began.elapsed().as_millis() as u64 * self.arguments.rate / 1_000;
            while self.published < due.min(self.arguments.messages) {
                topic.publish(self.published.to_le_bytes());
                self.published += 1;
            }
            if let Ok(said) = self.reader.said.recv_timeout(Duration::from_millis(5)) {
                self.hear(&said);
                while let Ok(said) = self.reader.said.try_recv() {
                    self.hear(&said);
                }
            }
        }
    }

    fn run_for(&mut self, what: &str, seconds: u64) {
        let end = Instant::now() + Duration::from_secs(seconds);
        self.run_until(what, |_| Instant::now() >= end);
    }

    fn kill(&mut self) -> Result<(), Box<dyn Error>> {
        self.reader.child.kill()?;
        self.reader.child.wait()?;
        // What it said before counts.
        while let Ok(said) = self.reader.said.recv() {
            self.hear(&said);
        }
        while self.sub.open_streams() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.held_by_the_dead += self.sub.outstanding() as u64;
        self.reader = Reader::start(&self.sim.endpoint(), self.arguments)?;
        Ok(())
    }
}

fn storm(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let sim = Sim::start_on_thread(SimConfig::default())?;
    let topic = sim.pubsub().create_topic("p", "t");
    let sub = sim.pubsub().create_subscription("p", "s", &topic);
    let reader = Reader::start(&sim.endpoint(), arguments)?;
    let mut storm = Storm {
        arguments,
        sim,
        sub,
        reader,
        began: Instant::now(),
        published: 0,
        covered: HashSet::new(),
        repeated: 0,
        checkpoints: 0,
        held_by_the_dead: 0,
    };
    let interval = arguments.interval;
    storm.run_for("reading", interval + interval / 2);
    storm.reader.tell("stall")?;
    storm.run_for("the downstream stalls", arguments.stall);
    storm.reader.tell("go")?;
    storm.run_for("it goes on", interval + interval / 2);
    let before_deaths = storm.sub.counts();
    storm.kill()?;
    storm.run_for("killed; another reads", 2 * interval);
    let checkpoints = storm.checkpoints;
    storm.run_until("to the next checkpoint", |storm| {
        storm.checkpoints > checkpoints
    });
    storm.kill()?;
    storm.run_until(
        "killed in its acknowledgements; another reads to the end",
        |storm| storm.published == storm.arguments.messages && storm.sub.backlog() == 0,
    );
    let counts = storm.sub.counts();
    storm.reader.child.kill()?;
    storm.reader.child.wait()?;
    let missing = (0..storm.published).filter(|number| !storm.covered.contains(number));
    let missing = missing.count() as u64;
    println!("published                        {:>10}", storm.published);
    println!(
        "covered by a checkpoint          {:>10}",
        storm.covered.len()
    );
    println!("checkpoints                      {:>10}", storm.checkpoints);
    println!("acknowledged                     {:>10}", counts.acked);
    println!("lost                             {missing:>10}");
    println!(
        "redelivered before the first kill{:>10}",
        before_deaths.redelivered
    );
    println!(
        "redelivered in all               {:>10}",
        counts.redelivered
    );
    println!(
        "held by the killed, at most      {:>10}",
        storm.held_by_the_dead
    );
    println!("covered twice                    {:>10}", storm.repeated);
    println!(
        "seconds                          {:>10}",
        storm.began.elapsed().as_secs()
    );
    let well = missing == 0
        && before_deaths.redelivered == 0
        && counts.redelivered <= storm.held_by_the_dead
        && storm.repeated <= storm.held_by_the_dead;
    Ok(if well {
        ExitCode::SUCCESS
    } else {
        eprintln!("a promise was broken");
        ExitCode::FAILURE
    })
}
