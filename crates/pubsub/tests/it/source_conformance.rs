//! The conformance suite of sources, and random runs of the whole reader.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_connector::source::Source;
use aqueduct_pubsub::SubscriberOptions;
use aqueduct_pubsub::source::metrics;
use aqueduct_sim::{Code, Sim, SimConfig};
use aqueduct_testkit::conformance::{self, Effort, Guarantee, SourceWorld};
use aqueduct_testkit::log::Marker;

use super::source_support::*;

const CONTENT: &str = "user-data-that-nobody-logs";

/// A service whose clock hurries, so that the leases of a killed reader soon end.
struct Subscribed {
    sim: Sim,
    _hurry: Hurry,
}

struct Hurry(tokio::task::JoinHandle<()>);

impl Drop for Hurry {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Subscribed {
    async fn start(seed: u64) -> Self {
        let sim = Sim::start(SimConfig::default())
            .await
            .expect("a port on loopback");
        let pubsub = sim.pubsub();
        pubsub.stop_clock(now(1_790_000_000));
        for at in 0..4 {
            let topic = pubsub.create_topic("p", &format!("t{at}"));
            let sub = pubsub.create_subscription("p", &format!("s{at}"), &topic);
            sub.set_shuffle(Some(seed));
            sub.set_messages_per_response(2);
            for message in 0..4 {
                topic.publish(format!("{CONTENT}-{at}-{message}"));
            }
        }
        let hurry = tokio::spawn(async move {
            let mut turns = tokio::time::interval(Duration::from_millis(200));
            loop {
                turns.tick().await;
                pubsub.advance(Duration::from_secs(30));
            }
        });
        Self {
            sim,
            _hurry: Hurry(hurry),
        }
    }
}

impl SourceWorld for Subscribed {
    type Record = String;

    fn source(&self) -> Arc<dyn Source<String>> {
        let few = std::num::NonZeroU64::new(3).expect("three");
        let options = SubscriberOptions::new()
            .max_records_per_fetch(few)
            .shutdown_timeout(Duration::from_secs(2));
        let builder = aqueduct_pubsub::PubSubSource::builder()
            .deserializer(deserialize)
            .emulator_endpoint(self.sim.endpoint().trim_start_matches("http://"))
            .subscriptions((0..4).map(|at| destination(&format!("s{at}"))))
            .subscriber_options(options);
        arc(builder)
    }

    fn key(&self, record: &String) -> String {
        record.clone()
    }

    fn expected(&self) -> Vec<String> {
        (0..16)
            .map(|at| format!("{CONTENT}-{}-{}", at / 4, at % 4))
            .collect()
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::AtLeastOnce
    }

    fn marker(&self) -> Option<Marker> {
        Some(Marker::new(CONTENT))
    }
}

#[tokio::test]
async fn the_source_conforms() {
    let effort = Effort {
        seeds: 0..1,
        points: 5,
    };
    let report = conformance::source(effort, async |seed| Subscribed::start(seed).await).await;
    assert!(report.ran.len() >= 8, "{report}");
    for (name, lacks) in &report.not_run {
        assert_eq!(*lacks, "an end of the source", "{name}");
    }
}

#[tokio::test]
async fn in_random_runs_every_copy_ends_once_and_no_message_is_lost_or_emitted_twice() {
    for seed in aqueduct_testkit::seeds(0..3) {
        let mut random = fastrand::Rng::with_seed(seed);
        let world = World::new().await;
        world.sub.set_shuffle(Some(seed));
        world.sub.set_messages_per_response(random.usize(1..20));
        let few = std::num::NonZeroU64::new(random.u64(20..60)).expect("not zero");
        let options = SubscriberOptions::new()
            .flow_control_max_outstanding_element_count(few)
            .subscriber_buffer_max_messages(few);
        let mut host = world.start(world.builder().subscriber_options(options));
        let (mut published, mut open) = (0, Vec::new());
        for _ in 0..400 {
            match random.u32(..20) {
                0..=2 => {
                    let count = random.usize(1..10);
                    world.publish(&format!("b{published}-"), count);
                    published += count;
                }
                3 => world.advance(Duration::from_millis(random.u64(1..2_000))),
                4 => open.push(host.barrier().await.expect("snapshots")),
                5 if !open.is_empty() => {
                    let checkpoint = open.remove(random.usize(..open.len()));
                    if random.bool() {
                        host.complete(&checkpoint).expect("completes");
                        open.retain(|other| other.id > checkpoint.id);
                    } else {
                        host.abort(checkpoint.id);
                    }
                }
                6 => {
                    let codes = [Code::Unavailable, Code::Cancelled, Code::Ok, Code::Internal];
                    world.sub.close_streams(codes[random.usize(..4)]);
                }
                7 => {
                    let split = [aqueduct_connector::source::SplitId::new("0")];
                    host.pause_splits(0, &split, &[]);
                    host.try_step().await.expect("well");
                    host.pause_splits(0, &[], &split);
                }
                _ => _ = host.try_step().await.expect("well"),
            }
            world.assert_accounting();
        }
        let mut steps = 0;
        while world.sub.backlog() > 0 {
            steps += 1;
            assert!(steps < 50_000, "seed {seed}: stuck");
            if steps % 25 == 0 {
                world.advance(Duration::from_millis(100));
                host.checkpoint().await.expect("checkpoints");
            }
            host.try_step().await.expect("well");
        }
        let mut all = emitted(&host);
        assert_eq!(all.len(), published, "seed {seed}");
        all.sort();
        all.dedup();
        assert_eq!(all.len(), published, "seed {seed}: emitted twice");
        world.close(host).await;
        assert_eq!(world.metric(metrics::LEASES_LOST), 0, "seed {seed}");
    }
}
