//! The Pub/Sub source beside raw loops that pull and acknowledge the same messages from the same service, all in one run.
//!
//! The service sends messages without end, each with fresh ids, as far as flow control lets it; so the client is what is
//! measured. With the feature `official` the official client's subscriber is a further side.
//!
//! `cargo run --release -p aqueduct-benches --features official --bin pubsub_source`

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use std::future::poll_fn;
use std::num::NonZeroU64;

use aqueduct_benches::pull::{self, Pull};
use aqueduct_benches::{
    Run, Service, measure, median, peak_resident, pin_to_second_core, reset_peak, resident,
    serve_prepared,
};
use aqueduct_connector::CheckpointId;
use aqueduct_connector::options::ByteSize;
use aqueduct_connector::source::{Collector, ReaderOutput, Source, Split, SplitId};
use aqueduct_pubsub::source::{PubSubSource, ReceivedMessage, SubscriptionSplit};
use aqueduct_pubsub::{SubscriberOptions, SubscriptionDestination};
use aqueduct_sim::FirehoseConfig;
use aqueduct_testkit::TestContext;
use clap::Parser;

/// Measures the Pub/Sub source beside raw loops; figures are ratios of messages per core-second from this one run.
#[derive(Parser)]
struct Args {
    /// Serves the endless subscriptions; used by the program itself.
    #[arg(long, hide = true)]
    serve: bool,
    /// Repetitions of every loop; the median counts.
    #[arg(long, default_value_t = 5)]
    repeat: usize,
    /// Messages of 100 B a repetition; of 1 KiB a third of that.
    #[arg(long, default_value_t = 2_000_000)]
    messages: u64,
    /// Messages that may be out unacknowledged.
    #[arg(long, default_value_t = 10_000)]
    outstanding: u64,
    /// Messages a checkpoint, and ack ids a request.
    #[arg(long, default_value_t = 1_000)]
    checkpoint_every: usize,
    /// Measures this side only, for a profiler.
    #[arg(long)]
    only: Option<String>,
}

/// Subscriptions by name, and the bytes of their payloads.
const SUBSCRIPTIONS: [(&str, usize); 2] = [("small", 100), ("large", 1_024)];

fn main() {
    let args = Args::parse();
    if args.serve {
        return serve();
    }
    if !pin_to_second_core() {
        return;
    }
    let service = Service::start();
    let address = service.endpoint().trim_start_matches("http://");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime for the measured loops");
    for (name, payload_bytes) in SUBSCRIPTIONS {
        let messages = match payload_bytes {
            500.. => args.messages / 3,
            _ => args.messages,
        };
        let pull = Pull {
            address,
            subscription: &format!("projects/p/subscriptions/{name}"),
            messages,
            outstanding: args.outstanding,
            acks: args.checkpoint_every,
        };
        println!(
            "{payload_bytes} B payloads, {} out, a checkpoint every {} messages",
            args.outstanding, args.checkpoint_every
        );
        runtime.block_on(compare(pull, name, &args));
    }
}

const GENERATED: &str = "generated types";
const HAND: &str = "by hand";
const SOURCE: &str = "source";
#[cfg(feature = "official")]
const OFFICIAL: &str = "official client";

async fn compare(pull: Pull<'_>, name: &str, args: &Args) {
    let sides = [
        HAND,
        GENERATED,
        SOURCE,
        #[cfg(feature = "official")]
        OFFICIAL,
    ];
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); sides.len()];
    let mut peaks = vec![0; sides.len()];
    for round in 0..=args.repeat {
        for (at, side) in sides.iter().enumerate() {
            if args.only.as_ref().is_some_and(|only| only != side) {
                continue;
            }
            let fresh = reset_peak();
            let before = resident();
            let run = match *side {
                HAND => measure(pull::hand_loop(pull)).await,
                GENERATED => measure(pull::generated_loop(pull)).await,
                #[cfg(feature = "official")]
                OFFICIAL => measure(pull::official_loop(pull)).await,
                _ => measure(source_loop(pull, name)).await,
            };
            if round > 0 {
                runs[at].push(run);
                if fresh {
                    peaks[at] = peaks[at].max(peak_resident().saturating_sub(before));
                }
            }
        }
    }
    let figure = |at: usize| match runs[at].is_empty() {
        true => f64::NAN,
        false => median(runs[at].iter().map(Run::per_core_second).collect()),
    };
    for (at, side) in sides.iter().enumerate() {
        if runs[at].is_empty() {
            continue;
        }
        let wall = median(runs[at].iter().map(Run::per_second).collect());
        // A side that was left out gives no ratio.
        print!(
            "  {side:<16} {:>10.0} messages per core-second   {:>10.0} a second   {:.2} of by hand",
            figure(at),
            wall,
            figure(at) / figure(0),
        );
        #[cfg(feature = "official")]
        print!("   {:.2} of official", figure(at) / figure(sides.len() - 1));
        println!("   {:>4} MiB more at the peak", peaks[at] >> 20);
    }
}

/// Reads by the source and completes a checkpoint for about every so many messages.
async fn source_loop(pull: Pull<'_>, name: &str) -> u64 {
    let kit = TestContext::new("bench");
    let subscription = SubscriptionDestination::new("p", name).expect("valid");
    let out = NonZeroU64::new(pull.outstanding).expect("not zero");
    let source = PubSubSource::<usize>::builder()
        .subscription(subscription.clone())
        .deserializer(
            |message: &ReceivedMessage,
             _: &SubscriptionDestination,
             out: &mut Collector<'_, usize>| {
                out.emit(message.data().len());
                Ok(())
            },
        )
        .subscriber_options(
            SubscriberOptions::new()
                .flow_control_max_outstanding_element_count(out)
                .flow_control_max_outstanding_request_bytes(ByteSize::mib(1_024)),
        )
        .emulator_endpoint(pull.address)
        .build()
        .expect("valid");
    let mut reader = source.create_reader(kit.subtask(0, 1)).expect("a reader");
    let split = SubscriptionSplit {
        subscription,
        uid: 0,
        ack_deadline_seconds: 10,
    };
    let split = Split {
        id: SplitId::new("0"),
        state: split.encode(),
    };
    reader.add_splits(vec![split]).expect("a split");
    let (mut seen, mut checkpoint, mut since) = (0, 0, 0);
    while seen < pull.messages {
        let output = poll_fn(|cx| reader.poll_next(cx)).await.expect("well");
        let ReaderOutput::Batch(batch) = output else {
            continue;
        };
        std::hint::black_box(&batch.records);
        let records = batch.records.len();
        reader.emitted(records);
        seen += records as u64;
        since += records;
        if since >= pull.acks {
            since = 0;
            checkpoint += 1;
            reader.snapshot(CheckpointId(checkpoint)).expect("well");
            reader
                .checkpoint_completed(CheckpointId(checkpoint))
                .expect("well");
        }
    }
    poll_fn(|cx| reader.poll_close(cx)).await.expect("closes");
    seen
}

/// Serves the subscriptions.
fn serve() {
    serve_prepared(|sim| {
        let pubsub = sim.pubsub();
        let topic = pubsub.create_topic("p", "t");
        for (name, payload_bytes) in SUBSCRIPTIONS {
            let subscription = pubsub.create_subscription("p", name, &topic);
            subscription.start_firehose(&FirehoseConfig {
                payload: vec![7; payload_bytes].into(),
                ..FirehoseConfig::default()
            });
        }
    });
}
