//! Memory, tasks and descriptors of the Pub/Sub sink over many ordering keys and many topics: none may grow with either.
//!
//! `cargo run --release -p aqueduct-benches --bin pubsub_memory`

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use std::future::poll_fn;

use aqueduct_benches::publish::{self, Job, Load, TOPICS};
use aqueduct_benches::{Service, peak_resident, reset_peak, resident, serve_prepared};
use aqueduct_connector::sink::{Flush, RecordInfo, Sink};
use aqueduct_testkit::context::TestContext;
use clap::Parser;

/// Publishes once to each of many keys and in turn to many topics; fails if memory, tasks or descriptors grow with them.
#[derive(Parser)]
struct Args {
    /// Serves the discarding service; used by the program itself.
    #[arg(long, hide = true)]
    serve: bool,
    /// Ordering keys of the long run; the short one has a tenth. Each key gets one message.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Messages of each run over topics; a tenth of the topics, then all of them, in turn.
    #[arg(long, default_value_t = 200_000)]
    topic_messages: u64,
}

/// What a process is made of.
#[derive(Clone, Copy, Default)]
struct Figures {
    descriptors: usize,
    tasks: usize,
    open_topics: u64,
}

impl Figures {
    fn most(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors.max(other.descriptors),
            tasks: self.tasks.max(other.tasks),
            open_topics: self.open_topics.max(other.open_topics),
        }
    }
}

fn main() {
    let args = Args::parse();
    if args.serve {
        return serve_prepared(publish::prepare);
    }
    let service = Service::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime for the sink");
    println!(
        "  {:<22} {:>9} {:>14} {:>14} {:>6} {:>12} {:>12}",
        "", "messages", "peak MiB", "at end MiB", "tasks", "descriptors", "open topics"
    );
    // The allocator's own start is no growth.
    runtime.block_on(publish_all(service.endpoint(), 50_000, job(50_000, 1)));
    for (name, runs) in [
        (
            "keys",
            [
                (args.keys / 10, args.keys / 10, 1),
                (args.keys, args.keys, 1),
            ],
        ),
        (
            "topics",
            [
                (args.topic_messages, 0, TOPICS / 10),
                (args.topic_messages, 0, TOPICS),
            ],
        ),
    ] {
        let mut seen = Vec::new();
        for (messages, keys, topics) in runs {
            assert!(
                reset_peak(),
                "this system does not let a process reset its peak"
            );
            let most =
                runtime.block_on(publish_all(service.endpoint(), messages, job(keys, topics)));
            let (peak, end) = (peak_resident(), resident());
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let count = if name == "keys" { keys } else { topics as u64 };
            println!(
                "  {:<22} {messages:>9} {:>14.1} {:>14.1} {:>6} {:>12} {:>12}",
                format!("{count} {name}"),
                mib(peak),
                mib(end),
                most.tasks,
                most.descriptors,
                most.open_topics
            );
            seen.push((peak, most));
        }
        let [(short, few), (long, many)] = seen[..] else {
            unreachable!("two runs each");
        };
        assert!(long <= short + (8 << 20), "{name}: memory grows");
        assert_eq!(few.tasks, many.tasks, "{name}: tasks grow");
        assert_eq!(
            few.descriptors, many.descriptors,
            "{name}: descriptors grow"
        );
        assert!(many.open_topics <= 100, "{name}: too many topics open");
    }
}

fn job(keys: u64, topics: usize) -> Job {
    Job {
        keys,
        topics,
        in_flight_messages: 1_000,
        open_topics: 100,
    }
}

/// Publishes and looks at this process every thousand messages, while requests are in flight.
async fn publish_all(endpoint: &str, messages: u64, job: Job) -> Figures {
    let load = Load {
        messages,
        payload_bytes: 100,
        // Of topics, so long a run each: each message goes to another one.
        batch: if job.topics > 1 { 1 } else { 100 },
        in_flight: 16,
    };
    let kit = TestContext::new("bench");
    let mut writer = publish::sink(endpoint, load, job)
        .create_writer(kit.subtask(0, 1), Vec::new())
        .expect("a writer");
    let mut most = Figures::default();
    for number in 0..messages {
        poll_fn(|cx| writer.poll_ready(cx))
            .await
            .expect("the service accepts");
        writer
            .write(number, RecordInfo::default())
            .expect("the record is valid");
        if number % 1_000 == 999 {
            most = most.most(Figures {
                descriptors: std::fs::read_dir("/proc/self/fd")
                    .expect("Linux shows a process its own descriptors")
                    .count(),
                tasks: tokio::runtime::Handle::current()
                    .metrics()
                    .num_alive_tasks(),
                open_topics: u64::try_from(kit.registry().total("activePublishers"))
                    .expect("never negative"),
            });
        }
    }
    poll_fn(|cx| writer.poll_flush(cx, Flush::EndOfInput))
        .await
        .expect("the service accepts");
    poll_fn(|cx| writer.poll_close(cx))
        .await
        .expect("the writer closes");
    assert_eq!(kit.registry().total("numRecordsSend"), i128::from(messages));
    most
}
