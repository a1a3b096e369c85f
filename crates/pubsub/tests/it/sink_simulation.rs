//! Seeded simulation: whatever goes wrong, admitted is published, skipped and handled, and keys keep their order.
//!
//! Each seed draws the settings, the records, and what goes wrong: statuses, cut connections, answers lost after the
//! effect, resets, topics that vanish, writers that are killed and replayed. Seeds run side by side, since most of their
//! time is waiting.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_connector::options::ByteSize;
use aqueduct_connector::sink::Sink;
use aqueduct_sim::{Code, Method, PubSubConfig, SchemaLag, SimConfig, Topic};
use aqueduct_testkit::SinkHost;
use futures::{FutureExt, StreamExt};

use super::sink_world::{How, Record, World, quick};

const SIDE_BY_SIDE: usize = 32;
const TOPICS: [&str; 4] = ["t", "uuu", "vvv", "www"];

/// What became of the records so far.
#[derive(Default)]
struct Ledger {
    /// Data written to each topic and key, in order, over all attempts: a killed writer's records come again.
    written: BTreeMap<(&'static str, String), Vec<String>>,
    skipped: i128,
    handled: usize,
}

struct Run {
    seed: u64,
    random: fastrand::Rng,
    world: World,
    ordered: bool,
    sink: Arc<dyn Sink<Record>>,
    host: SinkHost<Record>,
    ledger: Ledger,
    /// Not yet covered by a checkpoint.
    open: Vec<Record>,
    killed: bool,
}

impl Run {
    async fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let lag = if random.bool() {
            SchemaLag::Refusals(2)
        } else {
            SchemaLag::None
        };
        let world = World::with(SimConfig {
            pubsub: PubSubConfig {
                topic_lag: lag,
                ..PubSubConfig::default()
            },
            ..SimConfig::default()
        })
        .await;
        script_faults(&world, &mut random, seed);
        let ordered = random.bool();
        let options = quick()
            .enable_message_ordering(ordered)
            .batch_element_count_threshold(random.u64(1..20))
            .batch_request_byte_threshold(ByteSize(random.u64(60..2_000)))
            .max_in_flight_messages(random.u64(1..60))
            .max_consecutive_rejections(None)
            .max_active_publishers(random.u64(1..5))
            .recovery_max_attempts(50)
            .channels(random.u32(1..4));
        let builder = world.builder().publisher_options(options);
        let sink: Arc<dyn Sink<Record>> = Arc::new(builder.build().expect("valid settings"));
        let host = SinkHost::start(sink.clone(), &world.kit, 1).expect("a writer");
        Self {
            seed,
            random,
            world,
            ordered,
            sink,
            host,
            ledger: Ledger::default(),
            open: Vec::new(),
            killed: false,
        }
    }

    fn record(&mut self, number: usize) -> Record {
        let topic = TOPICS[self.random.usize(..TOPICS.len())];
        let mut record = Record::new(format!("{number:05}")).topic(topic);
        if self.ordered && self.random.u32(..4) > 0 {
            record = record.key(format!("k{}", self.random.u32(..5)));
        }
        record.how(match self.random.u32(..100) {
            0..5 => How::Skipped,
            5..9 => How::Refused,
            9..14 => How::Invalid,
            _ => How::Published,
        })
    }

    async fn write(&mut self, record: Record) {
        let ledger = &mut self.ledger;
        match record.how {
            How::Skipped => ledger.skipped += 1,
            How::Refused | How::Invalid => ledger.handled += 1,
            How::Published => ledger
                .written
                .entry((record.topic, record.key.clone()))
                .or_default()
                .push(String::from_utf8(record.data.clone()).expect("ours")),
        }
        self.host
            .write_all([record.clone()])
            .await
            .unwrap_or_else(|error| panic!("{error:?}"));
        self.open.push(record);
    }

    async fn checkpoint(&mut self) {
        self.host
            .checkpoint()
            .await
            .unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(self.world.metric("inFlightMessages"), 0);
        assert_eq!(self.world.metric("inFlightBytes"), 0);
        assert_eq!(self.world.metric("parkedMessages"), 0);
        self.open.clear();
        if !self.killed {
            assert_eq!(self.world.handled.handled(), self.ledger.handled);
            assert_eq!(self.world.metric("recordsSkipped"), self.ledger.skipped);
        }
        self.check();
    }

    /// A new writer that is handed again what no checkpoint covered.
    async fn kill(&mut self) {
        let fresh = SinkHost::start(self.sink.clone(), &self.world.kit, 1).expect("a writer");
        std::mem::replace(&mut self.host, fresh).kill();
        self.killed = true;
        for record in std::mem::take(&mut self.open) {
            self.write(record).await;
        }
    }

    fn held(&self) -> BTreeMap<(&'static str, String), Vec<String>> {
        let mut held: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for name in TOPICS {
            let topic: Topic = self.world.sim.pubsub().topic("p", name);
            for message in topic.messages() {
                let data = String::from_utf8(message.data.to_vec()).expect("ours");
                held.entry((name, message.ordering_key))
                    .or_default()
                    .push(data);
            }
        }
        held
    }

    /// Nothing is missing, nothing is there that was not written, and a key's first arrivals are in order.
    fn check(&self) {
        let held = self.held();
        for (place, written) in &self.ledger.written {
            let arrived = held.get(place).map(Vec::as_slice).unwrap_or_default();
            for data in written {
                assert!(arrived.contains(data), "{place:?} lacks {data}");
            }
            if !place.1.is_empty() && !self.killed {
                let mut firsts: Vec<&String> = Vec::new();
                for data in arrived {
                    if !firsts.contains(&data) {
                        firsts.push(data);
                    }
                }
                assert!(firsts.is_sorted(), "{place:?}: {firsts:?}");
            }
        }
        for (place, arrived) in &held {
            let written = &self.ledger.written[place];
            assert!(arrived.iter().all(|data| written.contains(data)));
        }
    }
}

fn script_faults(world: &World, random: &mut fastrand::Rng, seed: u64) {
    let service = world.sim.pubsub();
    let mut chance = |most: f64| random.f64() * most;
    let faults = [
        (chance(0.1), 1),
        (chance(0.05), 2),
        (chance(0.05), 3),
        (chance(0.05), 4),
        (chance(0.05), 5),
        (chance(0.05), 6),
    ];
    for (probability, kind) in faults {
        let fault = service.randomly(seed ^ kind, probability, Method::Publish);
        match kind {
            1 => fault.status(Code::Unavailable),
            2 => fault.status(Code::Internal),
            3 => fault.cut_connection(),
            4 => fault.apply_then_lose_answer(),
            5 => fault.delay(Duration::from_millis(5)),
            _ => fault.apply_then_status(Code::Aborted),
        };
    }
    service
        .randomly(seed ^ 7, 0.2, Method::CreateTopic)
        .status(Code::Unavailable);
}

async fn run(seed: u64) {
    let mut run = Run::new(seed).await;
    for number in 0..120 {
        let record = run.record(number);
        run.write(record).await;
        match run.random.u32(..60) {
            0..4 => run.checkpoint().await,
            4 => run.kill().await,
            _ => {}
        }
    }
    run.checkpoint().await;
    let Run { host, seed, .. } = run;
    host.finish()
        .await
        .unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
}

#[tokio::test]
async fn whatever_goes_wrong_nothing_is_lost_and_keys_keep_their_order() {
    let failed: Vec<_> = futures::stream::iter(aqueduct_testkit::seeds(0..48))
        .map(|seed| async move {
            let outcome = AssertUnwindSafe(run(seed)).catch_unwind().await;
            outcome.err().map(|panic| {
                let text = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                format!("seed {seed}: {}", text.unwrap_or_default())
            })
        })
        .buffer_unordered(SIDE_BY_SIDE)
        .filter_map(async |failure| failure)
        .collect()
        .await;
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
