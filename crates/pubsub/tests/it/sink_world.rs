//! What the sink's tests share: a simulated service, a record that says how it is published, a host that drives.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_connector::clock::ManualClock;
use aqueduct_connector::sink::{RecordInfo, Sink};
use aqueduct_connector::{Error, Result, Timestamp};
use aqueduct_pubsub::sink::Disposition;
use aqueduct_pubsub::{Message, PubSubSink, PubSubSinkBuilder, PublisherOptions, TopicDestination};
use aqueduct_sim::{Method, Sim, SimConfig, Topic};
use aqueduct_testkit::failure::HandlerLog;
use aqueduct_testkit::{SinkHost, TestContext};

/// What a test waits for at most, in real time.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// A record that says what becomes of it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) topic: &'static str,
    pub(crate) data: Vec<u8>,
    pub(crate) key: String,
    pub(crate) how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Published,
    Skipped,
    /// The serializer refuses it.
    Refused,
    /// The service refuses it: an attribute's key is longer than it takes.
    Invalid,
}

impl Record {
    pub(crate) fn new(data: impl Into<Vec<u8>>) -> Self {
        Self {
            topic: "t",
            data: data.into(),
            key: String::new(),
            how: How::Published,
        }
    }

    pub(crate) fn how(mut self, how: How) -> Self {
        self.how = how;
        self
    }

    pub(crate) fn key(mut self, key: impl Into<String>) -> Self {
        self.key = key.into();
        self
    }

    pub(crate) fn topic(mut self, topic: &'static str) -> Self {
        self.topic = topic;
        self
    }
}

/// `count` records with data of their own.
pub(crate) fn records(count: usize) -> Vec<Record> {
    (0..count)
        .map(|number| Record::new(format!("r{number:04}")))
        .collect()
}

/// How a [`Record`] is published.
pub(crate) fn serialize(
    record: &Record,
    _: RecordInfo,
    message: &mut Message,
) -> Result<Disposition, std::io::Error> {
    message.data(&record.data).ordering_key(&record.key);
    match record.how {
        How::Published => {}
        How::Skipped => return Ok(Disposition::Skip),
        How::Refused => return Err(std::io::Error::other("not a good record")),
        How::Invalid => {
            message.attribute("x".repeat(257), "v");
        }
    }
    Ok(Disposition::Publish)
}

/// A simulated service with one topic, and the means to drive a sink on it.
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) topic: Topic,
    pub(crate) kit: TestContext,
    pub(crate) clock: Option<ManualClock>,
    pub(crate) handled: HandlerLog,
}

pub(crate) fn destination(topic: &str) -> TopicDestination {
    TopicDestination::new("p", topic).expect("a valid address")
}

/// Options with which nothing takes long.
pub(crate) fn quick() -> PublisherOptions {
    PublisherOptions::new()
        .batch_delay_threshold(Duration::from_millis(1))
        .retry_initial_delay(Duration::from_millis(1))
        .retry_max_delay(Duration::from_millis(20))
        .recovery_initial_backoff(Duration::from_millis(1))
        .recovery_max_backoff(Duration::from_millis(20))
        .shutdown_timeout(Duration::from_secs(1))
}

/// Options with which time brings nothing that a test has not asked for.
pub(crate) fn patient() -> PublisherOptions {
    quick()
        .batch_delay_threshold(Duration::from_secs(3_600))
        .retry_initial_rpc_timeout(Duration::ZERO)
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(SimConfig::default()).await
    }

    pub(crate) async fn with(config: SimConfig) -> Self {
        let sim = Sim::start(config).await.expect("a loopback port");
        let topic = sim.pubsub().create_topic("p", "t");
        Self {
            sim,
            topic,
            kit: TestContext::new("sink").with_limit(LIMIT),
            clock: None,
            handled: HandlerLog::new(),
        }
    }

    /// On a clock that stands still until it is moved.
    pub(crate) async fn on_manual_clock() -> Self {
        let clock = ManualClock::new(Timestamp::from_millis(1_700_000_000_123));
        let mut world = Self::new().await;
        world.kit = world.kit.with_clock(Arc::new(clock.clone()));
        world.clock = Some(clock);
        world
    }

    /// A sink whose records name their topic and whose handler drops.
    pub(crate) fn builder(&self) -> PubSubSinkBuilder<Record> {
        let handled = self.handled.clone();
        PubSubSink::builder()
            .destination_resolver(|record: &Record, _| {
                Ok::<_, Error>(Some(destination(record.topic)))
            })
            .serializer(serialize)
            .emulator_endpoint(self.sim.endpoint())
            .publisher_options(quick())
            .failed_message_handler(move || handled.handler())
    }

    /// One writer of what `change` makes of the usual sink.
    pub(crate) fn host(
        &self,
        change: impl FnOnce(PubSubSinkBuilder<Record>) -> PubSubSinkBuilder<Record>,
    ) -> SinkHost<Record> {
        let sink: Arc<dyn Sink<Record>> =
            Arc::new(change(self.builder()).build().expect("valid settings"));
        SinkHost::start(sink, &self.kit, 1).expect("a writer")
    }

    /// One writer with `options`.
    pub(crate) fn host_with(&self, options: PublisherOptions) -> SinkHost<Record> {
        self.host(|builder| builder.publisher_options(options))
    }

    pub(crate) fn metric(&self, name: &str) -> i128 {
        self.kit.registry().total(name)
    }

    /// Messages of each `Publish` that arrived, in order.
    pub(crate) fn request_sizes(&self) -> Vec<usize> {
        sizes(&self.topic)
    }

    /// What the topic holds, in order.
    pub(crate) fn data(&self) -> Vec<String> {
        data_of(&self.topic)
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.as_ref().expect("a manual clock").advance(by);
    }

    /// Waits until so many requests have arrived, driving `host`.
    pub(crate) async fn arrived(&self, host: &mut SinkHost<Record>, requests: usize) {
        for _ in 0..200 {
            if self.topic.requests_of(Method::Publish).len() >= requests {
                return;
            }
            host.settle().await.expect("well");
        }
        panic!("{requests} requests never arrived");
    }
}

/// Messages of each `Publish` to `topic`, in order.
pub(crate) fn sizes(topic: &Topic) -> Vec<usize> {
    topic
        .requests_of(Method::Publish)
        .iter()
        .map(|request| request.entries)
        .collect()
}

/// What `topic` holds, in order.
pub(crate) fn data_of(topic: &Topic) -> Vec<String> {
    topic
        .messages()
        .iter()
        .map(|message| String::from_utf8_lossy(&message.data).into_owned())
        .collect()
}

/// Data of `records`, in order.
pub(crate) fn texts<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<String> {
    records
        .into_iter()
        .map(|record| String::from_utf8_lossy(&record.data).into_owned())
        .collect()
}
