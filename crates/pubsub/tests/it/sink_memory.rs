//! Neither ordering keys nor topics that were used once stay in memory, in tasks or in descriptors.
//!
//! The test runs itself as a process that does nothing else, so that what it reads of itself is the sink's; the service
//! stays with the parent. `benches/src/bin/pubsub_memory.rs` does the same with a million keys and ten thousand topics.

use std::collections::HashMap;
use std::convert::Infallible;
use std::env;
use std::fs;
use std::io::Write as _;
use std::sync::Arc;

use aqueduct_connector::sink::RecordInfo;
use aqueduct_pubsub::sink::Disposition;
use aqueduct_pubsub::{Message, PubSubSink, PubSubSinkBuilder, TopicDestination};
use aqueduct_sim::{Sim, SimConfig};
use aqueduct_testkit::{SinkHost, TestContext};
use tokio::process::Command;

use super::sink_world::{LIMIT, destination, quick};

const ENDPOINT: &str = "AQUEDUCT_TEST_MEMORY_ENDPOINT";
const NAME: &str =
    "sink_memory::keys_and_topics_that_were_used_once_leave_no_memory_no_task_and_no_descriptor";

/// Records before the first look: buffers have their size by then.
const WARM_UP: u64 = 5_000;
const KEYS: u64 = 50_000;
const TOPICS: u64 = 1_000;
/// Records, over all topics in turn.
const TOPIC_RECORDS: u64 = 20_000;
const OPEN_TOPICS: u64 = 20;
const STEP: u64 = 1_000;
/// What an allocator and a busy machine may make of nothing.
const SLACK_KIB: u64 = 8 << 10;

/// What a process is made of.
struct Figures {
    resident_kib: u64,
    descriptors: usize,
    tasks: usize,
}

fn figures() -> Figures {
    let status = fs::read_to_string("/proc/self/status").expect("Linux shows a process itself");
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("always there");
    Figures {
        resident_kib: resident
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .expect("a number"),
        descriptors: fs::read_dir("/proc/self/fd").expect("likewise").count(),
        tasks: tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks(),
    }
}

/// Publishes `records` numbers and prints what the process was made of after the warm-up, and at most from then on.
async fn run(
    name: &str,
    records: u64,
    change: impl FnOnce(PubSubSinkBuilder<u64>) -> PubSubSinkBuilder<u64>,
) {
    let sink = change(PubSubSink::builder()).build().expect("valid");
    let kit = TestContext::new("sink").with_limit(LIMIT);
    let mut host = SinkHost::start(Arc::new(sink), &kit, 1).expect("a writer");
    let mut first = None;
    let (mut resident, mut descriptors, mut tasks, mut open) = (0, 0, 0, 0);
    for start in (0..records).step_by(usize::try_from(STEP).expect("small")) {
        host.write_all(start..start + STEP).await.expect("well");
        // Under load, not after a flush: that is when there is most.
        open = open.max(kit.registry().total("activePublishers"));
        if start + STEP < WARM_UP {
            continue;
        }
        let now = figures();
        resident = resident.max(now.resident_kib);
        descriptors = descriptors.max(now.descriptors);
        tasks = tasks.max(now.tasks);
        first.get_or_insert(now);
    }
    host.checkpoint().await.expect("well");
    assert_eq!(kit.registry().total("numRecordsSend"), i128::from(records));
    host.close().await.expect("well");
    let first = first.expect("more than a warm-up");
    let mut out = std::io::stdout();
    writeln!(
        out,
        "\n{name} {} {resident} {} {descriptors} {} {tasks} {open}",
        first.resident_kib, first.descriptors, first.tasks,
    )
    .expect("the parent reads");
}

async fn run_all(endpoint: String) {
    let serialize = |keyed: bool| {
        move |number: &u64, _: RecordInfo, message: &mut Message| {
            message.data([7; 100]);
            if keyed {
                message.ordering_key(format!("key-{number}"));
            }
            Ok::<_, Infallible>(Disposition::Publish)
        }
    };
    run("keys", KEYS, |builder| {
        builder
            .topic(destination("t0"))
            .serializer(serialize(true))
            .emulator_endpoint(endpoint.clone())
            .publisher_options(quick().enable_message_ordering(true))
    })
    .await;
    let topics: Vec<TopicDestination> = (0..TOPICS)
        .map(|at| destination(&format!("t{at}")))
        .collect();
    run("topics", TOPIC_RECORDS, |builder| {
        builder
            .destination_resolver(move |number: &u64, _| {
                let at = usize::try_from(number % TOPICS).expect("small");
                Ok::<_, Infallible>(Some(topics[at].clone()))
            })
            .serializer(serialize(false))
            .emulator_endpoint(endpoint)
            .publisher_options(quick().max_active_publishers(OPEN_TOPICS))
    })
    .await;
}

#[tokio::test]
async fn keys_and_topics_that_were_used_once_leave_no_memory_no_task_and_no_descriptor() {
    if let Ok(endpoint) = env::var(ENDPOINT) {
        return run_all(endpoint).await;
    }
    let sim = Sim::start_on_thread(SimConfig::for_benchmarks()).expect("a loopback port");
    let topics: Vec<_> = (0..TOPICS)
        .map(|at| sim.pubsub().create_topic("p", &format!("t{at}")))
        .collect();
    topics
        .iter()
        .for_each(aqueduct_sim::Topic::start_discarding);
    let child = Command::new(env::current_exe().expect("this test has a binary"))
        .args(["--exact", "--nocapture", NAME])
        .env(ENDPOINT, sim.endpoint())
        .kill_on_drop(true)
        .output()
        .await
        .expect("the test can run itself");
    let out = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success(),
        "{out}{}",
        String::from_utf8_lossy(&child.stderr)
    );
    let lines: HashMap<&str, Vec<u64>> = out
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.split_once(' ')?;
            let numbers: Result<_, _> = rest.split(' ').map(str::parse).collect();
            Some((name, numbers.ok()?))
        })
        .collect();
    let published: u64 = topics.iter().map(|topic| topic.discarded().messages).sum();
    assert_eq!(published, KEYS + TOPIC_RECORDS);
    for (name, most_open) in [("keys", 1), ("topics", OPEN_TOPICS)] {
        let [
            resident,
            most,
            descriptors,
            most_descriptors,
            tasks,
            most_tasks,
            open,
        ] = lines[name][..]
        else {
            panic!("the child says seven numbers: {out}");
        };
        assert!(
            most <= resident + SLACK_KIB,
            "{name}: {resident} KiB grew to {most} KiB"
        );
        assert_eq!(most_descriptors, descriptors, "{name}: descriptors");
        assert_eq!(most_tasks, tasks, "{name}: tasks");
        assert!(open <= most_open, "{name}: {open} topics open");
    }
}
