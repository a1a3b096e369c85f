//! What a reader holds does not grow with what passed through it: a hundred thousand ordering keys, each once, over many
//! checkpoints, leave memory, tasks and descriptors where they were.
//!
//! It is measured in a process of its own, since other tests would be in the figures, by what Linux says of it.

#![cfg(target_os = "linux")]

use std::env;
use std::num::NonZeroU64;

use aqueduct_connector::source::Collector;
use aqueduct_pubsub::source::{OrderingMode, ReceivedMessage, metrics};
use aqueduct_pubsub::{SubscriberOptions, SubscriptionDestination};
use aqueduct_sim::{PubSubConfig, Sim, SimConfig};
use aqueduct_testkit::{SourceHost, TestContext, until};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

use super::source_support::*;

const ALONE: &str = "AQUEDUCT_TEST_FLAT";
const NAME: &str = "source_flat::a_hundred_thousand_ordering_keys_leave_memory_tasks_and_descriptors_where_they_were";

const KEYS: usize = 100_000;
/// Keys between two checkpoints.
const SHARE: usize = 2_000;
/// After these, buffers and allocator have reached their size.
const WARM: usize = 20_000;
/// Growth over the other 80,000 keys, simulated service included; a kilobyte each would be 80 MiB.
const GROWTH: u64 = 16 << 20;

/// Resident memory and open descriptors of this process.
fn used() -> (u64, usize) {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("a resident size");
    let kib: u64 = line
        .split_whitespace()
        .nth(1)
        .and_then(|number| number.parse().ok())
        .expect("a number of KiB");
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("Linux").count();
    (kib << 10, descriptors)
}

async fn flat() {
    // The service remembers little, or its memory would be measured.
    let sim = Sim::start(SimConfig {
        pubsub: PubSubConfig {
            kept_messages: 10,
            tracked_messages: 10,
            ..PubSubConfig::default()
        },
        ..SimConfig::default()
    })
    .await
    .expect("a port on loopback");
    let topic = sim.pubsub().create_topic("p", "t");
    let sub = sim.pubsub().create_subscription_with(
        "p",
        "s",
        &topic,
        |settings: &mut pb::Subscription| {
            settings.enable_message_ordering = true;
        },
    );
    let kit = TestContext::new("source");
    let messages = |count| NonZeroU64::new(count).expect("not zero");
    let options =
        SubscriberOptions::new().flow_control_max_outstanding_element_count(messages(4_000));
    let builder =
        aqueduct_pubsub::PubSubSource::builder()
            .subscription(destination("s"))
            // The host keeps what is emitted, so nothing is.
            .deserializer(
                |_: &ReceivedMessage,
                 _: &SubscriptionDestination,
                 _: &mut Collector<'_, String>| Ok(()),
            )
            .ordering_mode(OrderingMode::PerKey)
            .subscriber_options(options)
            .emulator_endpoint(sim.endpoint().trim_start_matches("http://"));
    let mut host = SourceHost::start(arc(builder), &kit, 1).expect("starts");
    let total = |name| kit.registry().total(name);
    let mut base = None;
    let mut published = 0;
    while published < KEYS {
        for _ in 0..SHARE {
            topic.publish_keyed(&format!("key-{published:08}"), "x");
            published += 1;
        }
        let due = i128::try_from(published).expect("small");
        host.run_until(|_| total(metrics::RECORDS_SKIPPED) == due)
            .await
            .expect("reads");
        host.checkpoint().await.expect("checkpoints");
        until(LIMIT, "the acknowledgements", || {
            total(metrics::MESSAGES_ACKED) == due
        })
        .await;
        for held in [
            metrics::PENDING_ACKS,
            metrics::PENDING_CHECKPOINTS,
            metrics::BUFFERED_MESSAGES,
            metrics::BUFFERED_BYTES,
        ] {
            assert_eq!(total(held), 0, "{held} after {published}");
        }
        let (memory, descriptors) = used();
        let tasks = kit.spawner().running();
        let (first, files, running) = *base.get_or_insert((memory, descriptors, tasks));
        assert_eq!(tasks, running, "tasks after {published}");
        if published <= WARM {
            base = Some((memory, files, running));
            continue;
        }
        assert!(
            memory < first + GROWTH,
            "{} KiB more after {published} keys",
            (memory - first) >> 10
        );
        assert_eq!(descriptors, files, "descriptors after {published} keys");
    }
    assert_eq!(sub.counts().redelivered, 0);
    host.close().await.expect("closes");
}

#[tokio::test]
async fn a_hundred_thousand_ordering_keys_leave_memory_tasks_and_descriptors_where_they_were() {
    if env::var_os(ALONE).is_some() {
        return flat().await;
    }
    let alone = tokio::process::Command::new(env::current_exe().expect("this test has a binary"))
        .args(["--exact", "--nocapture", NAME])
        .env(ALONE, "1")
        .kill_on_drop(true)
        .output()
        .await
        .expect("the test can run itself");
    assert!(
        alone.status.success(),
        "{}",
        String::from_utf8_lossy(&alone.stderr)
    );
}
