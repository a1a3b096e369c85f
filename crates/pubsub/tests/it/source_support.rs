//! What the source's tests share: a simulated subscription on stopped clocks, sources upon it, the account.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aqueduct_connector::clock::ManualClock;
use aqueduct_connector::metrics::SampleValue;
use aqueduct_connector::source::{Collector, Source};
use aqueduct_connector::{Error, Result, Timestamp};
use aqueduct_pubsub::source::{PubSubSource, PubSubSourceBuilder, ReceivedMessage, metrics};
use aqueduct_pubsub::{SubscriptionDestination, TopicDestination};
use aqueduct_sim::{Sim, SimConfig, Subscription, Topic};
use aqueduct_testkit::host::source::SourceCheckpoint;
use aqueduct_testkit::{SourceHost, TestContext, until, within};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// How long one wait of a test may take in real time.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Both clocks begin here.
const BEGIN: u64 = 1_790_000_000;

pub(crate) fn destination(name: &str) -> SubscriptionDestination {
    SubscriptionDestination::new("p", name).expect("valid")
}

pub(crate) fn topic_destination(name: &str) -> TopicDestination {
    TopicDestination::new("p", name).expect("valid")
}

/// Emits the payload. `skip…` gives nothing, `bad…` fails, `half…` gives two records and fails.
pub(crate) fn deserialize(
    message: &ReceivedMessage,
    _: &SubscriptionDestination,
    out: &mut Collector<'_, String>,
) -> Result<()> {
    let text = String::from_utf8_lossy(message.data()).into_owned();
    if text.starts_with("skip") {
        return Ok(());
    }
    if text.starts_with("half") {
        out.emit(format!("{text}/1"));
        out.emit(format!("{text}/2"));
    }
    if text.starts_with("bad") || text.starts_with("half") {
        return Err(Error::user("no such format"));
    }
    out.emit(text);
    Ok(())
}

/// A topic and a subscription to it, delivering in publish order; all clocks stand still.
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) topic: Topic,
    pub(crate) sub: Subscription,
    pub(crate) clock: ManualClock,
    pub(crate) kit: TestContext,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(|_| ()).await
    }

    pub(crate) async fn with(settings: impl FnOnce(&mut pb::Subscription)) -> Self {
        let sim = Sim::start(SimConfig::default())
            .await
            .expect("a port on loopback");
        let pubsub = sim.pubsub();
        pubsub.stop_clock(now(BEGIN));
        let topic = pubsub.create_topic("p", "t");
        let sub = pubsub.create_subscription_with("p", "s", &topic, settings);
        sub.set_shuffle(None);
        let clock = ManualClock::new(Timestamp::from_millis(
            i64::try_from(BEGIN * 1_000).expect("small"),
        ));
        let kit = TestContext::new("source").with_clock(Arc::new(clock.clone()));
        Self {
            sim,
            topic,
            sub,
            clock,
            kit,
        }
    }

    /// A source of the subscription `s`.
    pub(crate) fn builder(&self) -> PubSubSourceBuilder<String> {
        self.bare().subscription(destination("s"))
    }

    /// Without subscriptions.
    pub(crate) fn bare(&self) -> PubSubSourceBuilder<String> {
        PubSubSource::builder()
            .deserializer(deserialize)
            .emulator_endpoint(self.sim.endpoint().trim_start_matches("http://"))
    }

    pub(crate) fn start(&self, builder: PubSubSourceBuilder<String>) -> SourceHost<String> {
        self.start_at(builder, 1)
    }

    pub(crate) fn start_at(
        &self,
        builder: PubSubSourceBuilder<String>,
        parallelism: u32,
    ) -> SourceHost<String> {
        SourceHost::start(arc(builder), &self.kit, parallelism).expect("starts")
    }

    /// Publishes `prefix0`, `prefix1` and so on; the ids.
    pub(crate) fn publish(&self, prefix: &str, count: usize) -> Vec<String> {
        (0..count)
            .map(|at| self.topic.publish(format!("{prefix}{at}")))
            .collect()
    }

    /// Moves both clocks.
    pub(crate) fn advance(&self, by: Duration) {
        self.sim.pubsub().advance(by);
        self.clock.advance(by);
    }

    /// Moves both clocks by `seconds`, a second at a time, and waits after each until no lease is about to end.
    pub(crate) async fn advance_with_leases(&self, seconds: u64) {
        for _ in 0..seconds {
            self.advance(Duration::from_secs(1));
            let now = self.sim.pubsub().now();
            let held = || usize::try_from(self.metric(metrics::PENDING_ACKS)).expect("no debt");
            until(LIMIT, "the leases to be kept", || {
                // The first extension is due 2 s after receipt, later ones at least 15 s before expiry. What waits unread
                // in the transport has a lease that nobody extends.
                let leases = self.sub.leases();
                let safe = leases
                    .iter()
                    .filter(|lease| lease.expires > now + Duration::from_secs(13));
                safe.count() >= held()
            })
            .await;
        }
    }

    /// Waits for what the service holds.
    pub(crate) async fn until(&self, what: &str, mut holds: impl FnMut(&Subscription) -> bool) {
        until(LIMIT, what, || holds(&self.sub)).await;
    }

    /// Moves both clocks on, 20 ms for about every millisecond that passes, until `holds`.
    pub(crate) async fn tick_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        until(LIMIT, what, || {
            let done = holds();
            if !done {
                self.advance(Duration::from_millis(20));
            }
            done
        })
        .await;
    }

    pub(crate) fn metric(&self, name: &str) -> i128 {
        self.kit.registry().total(name)
    }

    /// Every received copy has one end, or none yet.
    pub(crate) fn assert_accounting(&self) {
        // One look at the registry, since simulations ask after each step.
        let (mut received, mut ends) = (0, [0; 4]);
        for sample in self.kit.registry().samples() {
            let amount = match sample.value {
                SampleValue::Counter(count) => i128::from(count),
                SampleValue::Gauge(level) => i128::from(level),
                SampleValue::Histogram { .. } => continue,
            };
            match &*sample.name {
                metrics::MESSAGES_RECEIVED => received += amount,
                metrics::MESSAGES_ACKED => ends[0] += amount,
                metrics::MESSAGES_NACKED => ends[1] += amount,
                metrics::LEASES_LOST => ends[2] += amount,
                metrics::PENDING_ACKS => ends[3] += amount,
                _ => {}
            }
        }
        assert_eq!(
            received,
            ends.iter().sum::<i128>(),
            "acked, nacked, lost, pending: {ends:?}"
        );
    }

    /// Closes the source; afterwards nothing is held and nothing runs.
    pub(crate) async fn close(&self, host: SourceHost<String>) {
        host.close().await.expect("closes");
        assert_eq!(self.metric(metrics::PENDING_ACKS), 0);
        self.assert_accounting();
        assert_eq!(self.kit.spawner().panicked(), 0);
    }
}

pub(crate) fn now(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

pub(crate) fn arc(builder: PubSubSourceBuilder<String>) -> Arc<dyn Source<String>> {
    Arc::new(builder.build().expect("valid settings"))
}

pub(crate) fn emitted(host: &SourceHost<String>) -> Vec<String> {
    host.emitted()
        .map(|emitted| emitted.record.value.clone())
        .collect()
}

/// `prefix0`, `prefix1` and so on.
pub(crate) fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|at| format!("{prefix}{at}")).collect()
}

/// Steps until `holds`, whether or not a component is woken.
pub(crate) async fn step_until(
    host: &mut SourceHost<String>,
    what: &str,
    mut holds: impl FnMut(&SourceHost<String>) -> bool,
) {
    let steps = async {
        while !holds(host) {
            host.try_step().await.expect("well");
        }
    };
    within(LIMIT, what, steps).await;
}

/// Takes a checkpoint that covers what is emitted now, and nothing more.
pub(crate) fn barrier_now(host: &mut SourceHost<String>) -> SourceCheckpoint {
    host.begin_checkpoint().expect("begins");
    for reader in 0..host.parallelism() {
        host.snapshot_reader(reader).expect("snapshots");
    }
    host.end_barrier()
}

/// Runs until the reader fails.
pub(crate) async fn failure(host: &mut SourceHost<String>) -> Error {
    host.run_until(|_| false)
        .await
        .expect_err("the source fails")
}

/// A proxy whose connections can be made to lose everything in both directions while they stay open.
pub(crate) struct Proxy {
    pub(crate) address: String,
    /// How often [`swallow`](Self::swallow) was called.
    swallowed: Arc<AtomicUsize>,
    /// What the next answer that contains it loses.
    spoilt: Arc<Mutex<Option<Vec<u8>>>>,
    accepted: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start(to: &Sim) -> Self {
        let to = to.endpoint().trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let swallowed = Arc::new(AtomicUsize::new(0));
        let spoilt = Arc::new(Mutex::new(None));
        let accepted = Arc::new(AtomicUsize::new(0));
        let (mode, count, spoils) = (swallowed.clone(), accepted.clone(), spoilt.clone());
        let task = tokio::spawn(async move {
            let mut pumps = tokio::task::JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let (began, now) = (mode.load(Ordering::SeqCst), mode.clone());
                let doomed = move || now.load(Ordering::SeqCst) > began || began == ALL;
                let far = TcpStream::connect(&to).await.expect("the service listens");
                let ((near_read, near_write), (far_read, far_write)) =
                    (near.into_split(), far.into_split());
                let up = pump(near_read, far_write, doomed.clone(), Arc::default());
                let down = pump(far_read, near_write, doomed, spoils.clone());
                // The end of one direction closes both sockets: the service must not go on for nobody.
                pumps.spawn(async move {
                    tokio::select! {
                        () = up => {}
                        () = down => {}
                    }
                });
            }
        });
        Self {
            address,
            swallowed,
            spoilt,
            accepted,
            task,
        }
    }

    /// From here on the connections that exist lose everything; later ones work.
    pub(crate) fn swallow(&self) {
        self.swallowed.fetch_add(1, Ordering::SeqCst);
    }

    /// From here on every connection loses everything, later ones too.
    pub(crate) fn swallow_from_now_on(&self) {
        self.swallowed.store(ALL, Ordering::SeqCst);
    }

    /// Overwrites `text` in the next answer that has it by bytes that are no text.
    pub(crate) fn spoil_next(&self, text: &[u8]) {
        *self.spoilt.lock().expect("not poisoned") = Some(text.to_vec());
    }

    /// Connections accepted so far.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// All connections are swallowed.
const ALL: usize = usize::MAX;

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    doomed: impl Fn() -> bool,
    spoilt: Arc<Mutex<Option<Vec<u8>>>>,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let bytes = &mut buffer[..read];
        spoil(bytes, &spoilt);
        if !doomed() && to.write_all(bytes).await.is_err() {
            return;
        }
    }
}

fn spoil(bytes: &mut [u8], spoilt: &Mutex<Option<Vec<u8>>>) {
    let mut spoilt = spoilt.lock().expect("not poisoned");
    let found = spoilt.as_ref().and_then(|text| {
        let at = bytes.windows(text.len()).position(|window| window == text);
        at.map(|at| at..at + text.len())
    });
    if let Some(range) = found {
        bytes[range].fill(0xff);
        *spoilt = None;
    }
}
