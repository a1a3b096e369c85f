//! The Pub/Sub sink beside raw loops and, with the feature `official`, the official client's publisher, all of which send
//! the same messages to the same discarding service in one run.
//!
//! `cargo run --release -p aqueduct-benches --features official --bin pubsub_sink`

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use std::time::Duration;

use aqueduct_benches::publish::{self, Job, Load, TOPICS};
use aqueduct_benches::{
    Run, Service, measure, median, peak_resident, pin_to_second_core, raw, reset_peak,
    serve_prepared,
};
use clap::Parser;

/// Measures the Pub/Sub sink beside raw loops; figures are ratios of messages per core-second from this one run.
#[derive(Parser)]
struct Args {
    /// Serves the discarding service; used by the program itself.
    #[arg(long, hide = true)]
    serve: bool,
    /// Repetitions of every loop; the median counts.
    #[arg(long, default_value_t = 5)]
    repeat: usize,
    /// Messages of 100 B a repetition; of 1 KiB a third of that.
    #[arg(long, default_value_t = 1_500_000)]
    messages: u64,
    /// Only the side of this name, such as "sink", without warm-up or latencies: for a profiler.
    #[arg(long)]
    only: Option<String>,
}

/// Messages between the barriers whose flushes are timed.
const BARRIER_EVERY: u64 = 10_000;
/// Messages a second of the paced runs.
const PACE: u64 = 20_000;

fn main() {
    let args = Args::parse();
    if args.serve {
        return serve_prepared(publish::prepare);
    }
    if !pin_to_second_core() {
        return;
    }
    let service = Service::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime for the measured loops");
    for payload_bytes in [100, 1_024] {
        let messages = if payload_bytes > 500 {
            args.messages / 3
        } else {
            args.messages
        };
        let load = Load {
            messages,
            payload_bytes,
            batch: 100,
            in_flight: 16,
        };
        runtime.block_on(async {
            compare(service.endpoint(), load, &args).await;
            if args.only.is_none() {
                latencies(service.endpoint(), load).await;
            }
        });
    }
}

/// A side of the comparison.
#[derive(Clone, Copy)]
enum Side {
    Stub,
    Body,
    #[cfg(feature = "official")]
    Official,
    Sink(Job),
}

impl Side {
    async fn run(self, endpoint: &str, load: Load) -> u64 {
        let topic = topic();
        match self {
            Self::Stub => publish::stub_loop(raw::channel(endpoint).await, &topic, load).await,
            Self::Body => {
                publish::body_loop(raw::channel(endpoint).await, &topic, load, |_| ()).await
            }
            #[cfg(feature = "official")]
            Self::Official => publish::official::official_loop(endpoint, &topic, load).await,
            Self::Sink(job) => publish::sink_loop(endpoint, load, job, u64::MAX, |_| ()).await,
        }
    }
}

/// The topic of the raw loops.
fn topic() -> String {
    format!("projects/{}/topics/{}", publish::PROJECT, publish::topic(0))
}

async fn compare(endpoint: &str, load: Load, args: &Args) {
    let plain = Job::plain(load);
    let keyed = Job {
        keys: 100,
        // Two requests a key: one in flight, one that fills.
        in_flight_messages: 100 * 2 * load.batch as u64,
        ..plain
    };
    let fanned = Job {
        topics: TOPICS,
        ..plain
    };
    let sides = [
        ("generated stub (a)", Side::Stub),
        ("hand-built body (d)", Side::Body),
        #[cfg(feature = "official")]
        ("official publisher", Side::Official),
        ("sink", Side::Sink(plain)),
        ("sink, 100 ordering keys", Side::Sink(keyed)),
        ("sink, 10,000 topics", Side::Sink(fanned)),
    ];
    let sides: Vec<_> = sides
        .into_iter()
        .filter(|(name, _)| args.only.as_ref().is_none_or(|only| only == name))
        .collect();
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); sides.len()];
    let mut peaks = vec![0; sides.len()];
    // One warm-up of each, then interleaved repetitions.
    let first = usize::from(args.only.is_some());
    for round in first..=args.repeat {
        for (at, (name, side)) in sides.iter().enumerate() {
            assert!(
                reset_peak(),
                "this system does not let a process reset its peak"
            );
            let run = measure(side.run(endpoint, load)).await;
            assert_eq!(run.records, load.messages, "{name} lost messages");
            if round > 0 {
                runs[at].push(run);
                peaks[at] = peaks[at].max(peak_resident());
            }
        }
    }
    let figure = |at: usize| median(runs[at].iter().map(Run::per_core_second).collect());
    let of = |at: usize, base: &str| {
        sides
            .iter()
            .position(|(name, _)| name.starts_with(base))
            .map(|base| format!("{:>5.2}", figure(at) / figure(base)))
            .unwrap_or_else(|| "    -".to_owned())
    };
    println!(
        "{} B of data, {} messages a request, {} requests in flight",
        load.payload_bytes, load.batch, load.in_flight
    );
    println!(
        "  {:<24} {:>12} {:>12} {:>6} {:>6} {:>9} {:>10}",
        "", "per core-s", "per s", "of (a)", "of (d)", "of offic.", "peak MiB"
    );
    for (at, (name, _)) in sides.iter().enumerate() {
        println!(
            "  {name:<24} {:>12.0} {:>12.0} {:>6} {:>6} {:>9} {:>10.1}",
            figure(at),
            median(runs[at].iter().map(Run::per_second).collect()),
            of(at, "generated"),
            of(at, "hand-built"),
            of(at, "official"),
            peaks[at] as f64 / f64::from(1 << 20),
        );
    }
}

async fn latencies(endpoint: &str, load: Load) {
    let short = Load {
        messages: load.messages.min(60 * BARRIER_EVERY),
        ..load
    };
    let paced = Load {
        messages: 5 * PACE,
        ..load
    };
    let job = Job::plain(load);
    let mut requests = Vec::new();
    publish::body_loop(raw::channel(endpoint).await, &topic(), short, |took| {
        requests.push(took);
    })
    .await;
    tell("request of (d), at full speed", requests);
    let mut flushes = Vec::new();
    publish::sink_loop(endpoint, short, job, BARRIER_EVERY, |took| {
        flushes.push(took);
    })
    .await;
    tell("flush of the sink, at full speed", flushes);
    let mut published = Vec::new();
    publish::paced_sink(endpoint, paced, job, PACE, |took| published.push(took)).await;
    tell("message of the sink, at 20,000 a second", published);
    #[cfg(feature = "official")]
    {
        let mut published = Vec::new();
        let answered = |took| published.push(took);
        publish::official::paced_official(endpoint, &topic(), paced, PACE, answered).await;
        tell("message of the official, likewise", published);
    }
}

fn tell(name: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |share: f64| {
        let at = (took.len() as f64 * share) as usize;
        took.get(at.min(took.len() - 1))
            .map_or(0.0, |took| took.as_secs_f64() * 1e3)
    };
    println!(
        "  {name:<40} {:>7.2} ms p50 {:>7.2} p95 {:>7.2} p99 {:>7.2} most",
        at(0.5),
        at(0.95),
        at(0.99),
        at(1.0),
    );
}
