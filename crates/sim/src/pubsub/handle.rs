//! What a test holds: the service, its topics and subscriptions, to prepare, disturb and inspect.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use tonic::Code;

use super::{
    clock::{ServiceClock, nanos, nanos_at, time_at},
    filter::Filter,
    flood::{DiscardedMessages, Firehose, FirehoseConfig, Firehosed},
    manners::{AckFailure, KeepaliveAnswers, LateAcks, Lease, Manners, SubscriptionCounts},
    message::{id_of, sequence_of},
    permits::{End, Mode},
    serve::denied,
    subscription::{SeekTarget, SubState, Tracked},
    world::{TopicState, World},
};
use crate::{
    bigtable::{handle::fault_triggers, store::Visible},
    core::{Core, TimedOut},
    faults::{Fault, Trigger},
    log::RequestRecord,
    method::Method,
};

/// The simulated service. Cheap to clone; outlives the server.
#[derive(Clone)]
pub struct PubSub {
    core: Arc<Core>,
}

impl fmt::Debug for PubSub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PubSub").finish_non_exhaustive()
    }
}

macro_rules! log_and_wait {
    () => {
        /// Waits until `condition` holds, looked at after every request and answer, and each 50 ms.
        ///
        /// # Errors
        ///
        /// [`TimedOut`] after `limit`, in real time.
        ///
        /// # Cancel safety
        ///
        /// Safe: nothing is consumed.
        pub async fn wait_until(
            &self,
            limit: Duration,
            mut condition: impl FnMut(&Self) -> bool,
        ) -> Result<(), TimedOut> {
            self.core.wait_until(limit, || condition(self)).await
        }
    };
}

macro_rules! permissions_and_requests {
    () => {
        /// Refuses `method` on this resource with `PERMISSION_DENIED`, until allowed. Denying
        /// [`Method::StreamingPull`] also ends the open streams with it.
        pub fn deny(&self, method: Method) {
            self.enter(|world| {
                let options = world.options.entry(self.name.clone()).or_default();
                options.denied.insert(method);
                if method == Method::StreamingPull
                    && let Some(subscription) = world.subscriptions.get_mut(&self.name)
                {
                    let status = denied();
                    let end = End::Status(status.code(), status.message().to_owned());
                    subscription.end_streams(&end);
                }
            });
        }

        /// Ends what [`deny`](Self::deny) began.
        pub fn allow(&self, method: Method) {
            self.enter(|world| {
                if let Some(options) = world.options.get_mut(&self.name) {
                    options.denied.remove(&method);
                }
            });
        }

        fn fault(&self, method: Method, trigger: Trigger) -> Fault {
            let name = Some(self.name.clone());
            self.core.script.add(name, method, trigger)
        }

        fault_triggers!();

        /// The kept requests about this resource, oldest first.
        #[must_use]
        pub fn requests(&self) -> Vec<RequestRecord> {
            self.core.log.records(|record| record.resource == self.name)
        }

        /// The kept requests of one method about this resource, oldest first.
        #[must_use]
        pub fn requests_of(&self, method: Method) -> Vec<RequestRecord> {
            self.core
                .log
                .records(|record| record.method == method && record.resource == self.name)
        }

        fn enter<R>(&self, act: impl FnOnce(&mut World) -> R) -> R {
            let result = self.core.pubsub.enter(|world, _| act(world));
            self.core.notify();
            result
        }
    };
}

impl PubSub {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    fn enter<R>(&self, act: impl FnOnce(&mut World) -> R) -> R {
        let result = self.core.pubsub.enter(|world, _| act(world));
        self.core.notify();
        result
    }

    /// The handle of a topic, whether it exists or not.
    #[must_use]
    pub fn topic(&self, project: &str, topic: &str) -> Topic {
        Topic {
            core: self.core.clone(),
            name: format!("projects/{project}/topics/{topic}"),
        }
    }

    /// The handle of a subscription, whether it exists or not.
    #[must_use]
    pub fn subscription(&self, project: &str, subscription: &str) -> Subscription {
        Subscription {
            core: self.core.clone(),
            name: format!("projects/{project}/subscriptions/{subscription}"),
        }
    }

    /// Creates a topic with the service's defaults, accepting messages at once. One that exists is
    /// left as it is. Ids too short for the service are accepted here.
    pub fn create_topic(&self, project: &str, topic: &str) -> Topic {
        self.create_topic_with(project, topic, |_| ())
    }

    /// As [`create_topic`](Self::create_topic), with settings that are not validated.
    pub fn create_topic_with(
        &self,
        project: &str,
        topic: &str,
        settings: impl FnOnce(&mut pb::Topic),
    ) -> Topic {
        let topic = self.topic(project, topic);
        let mut config = pb::Topic {
            name: topic.name.clone(),
            state: pb::topic::State::Active.into(),
            ..Default::default()
        };
        settings(&mut config);
        self.enter(|world| {
            world
                .topics
                .entry(topic.name.clone())
                .or_insert_with(|| TopicState::new(config, Visible::Now));
        });
        topic
    }

    /// Creates a subscription to `topic` with the service's defaults: 10 s of ack deadline,
    /// unordered, at least once. One that exists is left as it is.
    pub fn create_subscription(
        &self,
        project: &str,
        subscription: &str,
        topic: &Topic,
    ) -> Subscription {
        self.create_subscription_with(project, subscription, topic, |_| ())
    }

    /// As [`create_subscription`](Self::create_subscription), with settings that are not validated.
    ///
    /// # Panics
    ///
    /// If the filter is none.
    pub fn create_subscription_with(
        &self,
        project: &str,
        subscription: &str,
        topic: &Topic,
        settings: impl FnOnce(&mut pb::Subscription),
    ) -> Subscription {
        let subscription = self.subscription(project, subscription);
        let mut config = pb::Subscription {
            name: subscription.name.clone(),
            topic: topic.name.clone(),
            ack_deadline_seconds: 10,
            state: pb::subscription::State::Active.into(),
            ..Default::default()
        };
        settings(&mut config);
        let filter = (!config.filter.is_empty())
            .then(|| Filter::parse(&config.filter).expect("the test wrote a valid filter"));
        self.core.pubsub.enter(|world, settings| {
            if !world.subscriptions.contains_key(&subscription.name) {
                if let Some(topic) = world.topics.get(&config.topic) {
                    config.topic_message_retention_duration =
                        topic.config.message_retention_duration;
                }
                let state = SubState::new(world.new_number(), config, filter, settings);
                world.subscriptions.insert(subscription.name.clone(), state);
            }
        });
        subscription
    }

    /// Names of all topics, sorted.
    #[must_use]
    pub fn topics(&self) -> Vec<String> {
        self.enter(|world| world.topics.keys().cloned().collect())
    }

    /// Names of all subscriptions, sorted.
    #[must_use]
    pub fn subscriptions(&self) -> Vec<String> {
        self.enter(|world| world.subscriptions.keys().cloned().collect())
    }

    // Time.

    /// Stops the service's clock at `now`; from here on only [`advance`](Self::advance) moves it.
    pub fn stop_clock(&self, now: SystemTime) {
        self.enter(|world| {
            world.clock = ServiceClock::Manual { now: nanos_at(now) };
            world.wake_all();
        });
    }

    /// Moves a stopped clock on; what comes due happens at the new time. Does nothing to a running
    /// clock.
    pub fn advance(&self, by: Duration) {
        self.enter(|world| {
            if let ServiceClock::Manual { now } = &mut world.clock {
                *now = now.saturating_add(nanos(by));
            }
        });
        // Entering again settles what has come due.
        self.enter(World::wake_all);
    }

    /// What time the service thinks it is.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        time_at(self.enter(|world| world.now()))
    }

    // Faults and requests.

    fn fault(&self, method: Method, trigger: Trigger) -> Fault {
        self.core.script.add(None, method, trigger)
    }

    fault_triggers!();

    /// Removes every fault of the simulation, those of single resources included.
    pub fn clear_faults(&self) {
        self.core.script.clear();
    }

    /// The kept requests to Pub/Sub, oldest first. Of a stream: its first request, and those that
    /// settle ack ids.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestRecord> {
        self.core.log.records(|record| record.method.is_pubsub())
    }

    /// How many requests of `method` arrived so far, kept or not.
    #[must_use]
    pub fn request_count(&self, method: Method) -> u64 {
        self.core.log.requests(method)
    }

    /// Forgets the kept requests; counts stay.
    pub fn clear_requests(&self) {
        self.core.log.clear();
    }

    /// Unary requests that took effect and whose answer was lost by script.
    #[must_use]
    pub fn lost_answers(&self) -> u64 {
        self.core.pubsub.lost_answers.load(Ordering::SeqCst)
    }

    log_and_wait!();
}

/// One topic. Cheap to clone; valid before it exists and after it is gone.
#[derive(Clone)]
pub struct Topic {
    core: Arc<Core>,
    name: String,
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Topic").field(&self.name).finish()
    }
}

impl Topic {
    /// `projects/…/topics/…`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.config().is_some()
    }

    /// Its settings, if it exists.
    #[must_use]
    pub fn config(&self) -> Option<pb::Topic> {
        self.enter(|world| world.get_topic(&self.name).ok())
    }

    /// Deletes it; false if there is none.
    pub fn delete(&self) -> bool {
        self.enter(|world| world.delete_topic(&self.name).is_ok())
    }

    /// Publishes a message of this data; answers its id. Nothing is validated or denied here, and
    /// no fault is met.
    ///
    /// # Panics
    ///
    /// If the topic does not exist.
    pub fn publish(&self, data: impl Into<Vec<u8>>) -> String {
        self.publish_message(pb::PubsubMessage {
            data: data.into().into(),
            ..Default::default()
        })
    }

    /// As [`publish`](Self::publish), with an ordering key.
    ///
    /// # Panics
    ///
    /// If the topic does not exist.
    pub fn publish_keyed(&self, key: &str, data: impl Into<Vec<u8>>) -> String {
        self.publish_message(pb::PubsubMessage {
            data: data.into().into(),
            ordering_key: key.to_owned(),
            ..Default::default()
        })
    }

    /// As [`publish`](Self::publish), with everything.
    ///
    /// # Panics
    ///
    /// If the topic does not exist.
    pub fn publish_message(&self, message: pb::PubsubMessage) -> String {
        let now = self.enter(|world| world.now());
        self.publish_at(message, time_at(now))
    }

    /// As [`publish_message`](Self::publish_message), at a publish time of the test's choice, to
    /// the nanosecond. Seeks go by it; retention goes by the service's clock.
    ///
    /// # Panics
    ///
    /// If the topic does not exist.
    pub fn publish_at(&self, message: pb::PubsubMessage, time: SystemTime) -> String {
        let mut ids = self.core.pubsub.enter(|world, settings| {
            world.append(&self.name, vec![message], nanos_at(time), settings)
        });
        self.core.notify();
        ids.pop().expect("a test publishes to a topic that exists")
    }

    /// The newest messages, oldest first, with ids and publish times; as many as
    /// [`PubSubConfig`](crate::PubSubConfig) keeps.
    #[must_use]
    pub fn messages(&self) -> Vec<pb::PubsubMessage> {
        self.enter(|world| {
            let topic = world.topics.get(&self.name);
            topic
                .map(|topic| topic.kept.iter().map(|kept| kept.message.clone()).collect())
                .unwrap_or_default()
        })
    }

    /// Messages published so far, discarded ones apart.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.enter(|world| {
            let topic = world.topics.get(&self.name);
            topic.map_or(0, |topic| topic.published)
        })
    }

    /// Refuses whole, with `INVALID_ARGUMENT`, every `Publish` that holds a message for which
    /// `poisoned` holds. The predicate must not touch the simulation.
    pub fn poison(&self, poisoned: impl Fn(&pb::PubsubMessage) -> bool + Send + Sync + 'static) {
        self.enter(|world| {
            let options = world.options.entry(self.name.clone()).or_default();
            options.poison = Some(Arc::new(poisoned));
        });
    }

    /// Ends what [`poison`](Self::poison) began.
    pub fn clear_poison(&self) {
        self.enter(|world| {
            if let Some(options) = world.options.get_mut(&self.name) {
                options.poison = None;
            }
        });
    }

    /// Acknowledges `Publish` from here on without reading, checking or storing messages: what a
    /// benchmark of a client publishes to. Such requests are counted, not logged; while any fault
    /// is scripted they take the slower ordinary path.
    pub fn start_discarding(&self) {
        self.core.pubsub.floods.start_discarding(&self.name);
    }

    /// Stores again, and forgets what was counted.
    pub fn stop_discarding(&self) {
        self.core.pubsub.floods.stop_discarding(&self.name);
    }

    /// What was acknowledged without being stored, while it discards.
    #[must_use]
    pub fn discarded(&self) -> DiscardedMessages {
        let topic = self.core.pubsub.floods.topic(&self.name);
        topic.map(|topic| topic.total()).unwrap_or_default()
    }

    permissions_and_requests!();

    log_and_wait!();
}

/// One subscription. Cheap to clone; valid before it exists and after it is gone. What is set on
/// one that does not exist is forgotten, permissions and faults apart.
#[derive(Clone)]
pub struct Subscription {
    core: Arc<Core>,
    name: String,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Subscription").field(&self.name).finish()
    }
}

impl Subscription {
    /// `projects/…/subscriptions/…`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn with<R: Default>(&self, act: impl FnOnce(&mut SubState) -> R) -> R {
        self.enter(|world| {
            let subscription = world.subscriptions.get_mut(&self.name);
            subscription.map(act).unwrap_or_default()
        })
    }

    fn set(&self, act: impl FnOnce(&mut Manners)) {
        self.with(|subscription| act(&mut subscription.manners));
    }

    /// Whether it exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.config().is_some()
    }

    /// Its settings, if it exists.
    #[must_use]
    pub fn config(&self) -> Option<pb::Subscription> {
        self.enter(|world| world.get_subscription(&self.name).ok())
    }

    /// Changes settings at once and unvalidated. Filter and ordering cannot change.
    pub fn reconfigure(&self, change: impl FnOnce(&mut pb::Subscription)) {
        self.with(|subscription| {
            let mut config = subscription.config.clone();
            change(&mut config);
            subscription.reconfigure(config);
        });
    }

    /// Deletes it, ending its streams with `NOT_FOUND`; false if there is none.
    pub fn delete(&self) -> bool {
        self.enter(|world| world.delete_subscription(&self.name).is_ok())
    }

    /// Detaches it from its topic: its backlog is gone, and pulling is `FAILED_PRECONDITION`.
    pub fn detach(&self) -> bool {
        self.enter(|world| world.detach_subscription(&self.name).is_ok())
    }

    /// Seeks to a time, at once whatever [`set_seek_lag`](Self::set_seek_lag) says.
    pub fn seek(&self, time: SystemTime) {
        self.enter(|world| world.seek(&self.name, &SeekTarget::Time(nanos_at(time))));
    }

    // Manners.

    /// Shuffles what is not ordered, by a seed, or delivers it in publish order. Default: shuffled.
    pub fn set_shuffle(&self, seed: Option<u64>) {
        self.set(|manners| manners.shuffle = seed.map(fastrand::Rng::with_seed));
    }

    /// Messages in one response of a stream, at most. Default: 100, within 1 MiB.
    pub fn set_messages_per_response(&self, messages: usize) {
        self.set(|manners| manners.messages_per_response = messages.max(1));
    }

    /// What acknowledging an expired lease does. Default: [`LateAcks::Work`].
    pub fn set_late_acks(&self, late_acks: LateAcks) {
        self.set(|manners| manners.late_acks = late_acks);
    }

    /// Whether streams answer keepalives and send heartbeats. Default: they do.
    pub fn set_keepalives(&self, keepalives: KeepaliveAnswers) {
        self.set(|manners| manners.keepalives = keepalives);
    }

    /// How long a nacked message stays away without a retry policy. Default: not at all.
    pub fn set_nack_delay(&self, delay: Duration) {
        self.set(|manners| manners.nack_delay = nanos(delay));
    }

    /// How long after its answer a `Seek` takes effect. Default: at once; the service takes up to
    /// a minute.
    pub fn set_seek_lag(&self, lag: Duration) {
        self.set(|manners| manners.seek_lag = nanos(lag));
    }

    /// How old a stream gets before it ends with `UNAVAILABLE`. Default: any age; the service ends
    /// streams after about half an hour.
    pub fn set_stream_lifetime(&self, lifetime: Option<Duration>) {
        self.with(|subscription| {
            subscription.manners.stream_lifetime = lifetime.map(nanos);
            subscription.wake();
        });
    }

    /// How long a stream goes on after its client has sent its last request, in real time.
    /// Default: it ends at once, cleanly.
    pub fn set_closing_linger(&self, linger: Duration) {
        self.set(|manners| manners.closing_linger = linger);
    }

    /// Lets the service agent forward to the dead-letter topic. Granted by default.
    pub fn grant_dead_lettering(&self) {
        self.set(|manners| manners.dead_letter_granted = true);
    }

    /// Takes the service agent's grants: messages are redelivered for ever.
    pub fn revoke_dead_lettering(&self) {
        self.set(|manners| manners.dead_letter_granted = false);
    }

    /// Forwards at or some attempts after the configured number, by a seed. Default: exactly at it.
    pub fn set_dead_letter_jitter(&self, seed: Option<u64>) {
        self.set(|manners| manners.dead_letter_jitter = seed.map(fastrand::Rng::with_seed));
    }

    /// Fails the next so many ack ids, of acknowledgements or modifications, of an exactly-once
    /// subscription.
    pub fn fail_ack_ids(&self, ids: u32, failure: AckFailure) {
        self.set(|manners| manners.ack_failures = (ids, failure));
    }

    // Streams.

    /// Ends every open stream with `code`; [`Code::Ok`] is the clean end.
    pub fn close_streams(&self, code: Code) {
        let message = match code {
            Code::Ok => String::new(),
            _ => "scripted end".to_owned(),
        };
        self.with(|subscription| subscription.end_streams(&End::Status(code, message)));
    }

    /// Resets every open stream.
    pub fn reset_streams(&self) {
        self.with(|subscription| subscription.end_streams(&End::Reset));
    }

    /// Closes the connections of all open streams.
    pub fn cut_streams(&self) {
        self.with(|subscription| subscription.end_streams(&End::Cut));
    }

    fn set_mode(&self, mode: Mode) {
        self.with(|subscription| {
            for stream in subscription.streams.values_mut() {
                stream.mode = mode;
            }
            subscription.wake();
        });
    }

    /// Makes the open streams stay open and do nothing: no message, no answer, no reading.
    pub fn silence_streams(&self) {
        self.set_mode(Mode::Silent);
    }

    /// Makes the open streams take messages and lose them, as a half-open connection does.
    pub fn swallow_streams(&self) {
        self.set_mode(Mode::Swallowing);
    }

    /// Brings the open streams back to life.
    pub fn revive_streams(&self) {
        self.set_mode(Mode::Live);
    }

    /// Streams open now.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.with(|subscription| subscription.streams.len())
    }

    // What it holds.

    /// Totals since its creation.
    #[must_use]
    pub fn counts(&self) -> SubscriptionCounts {
        self.with(|subscription| subscription.counts)
    }

    /// Messages not acknowledged, leased ones included.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.with(|subscription| subscription.unacked())
    }

    /// Messages leased now.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.with(|subscription| subscription.leased())
    }

    /// Ids of the messages not acknowledged, in publish order.
    #[must_use]
    pub fn unacked(&self) -> Vec<String> {
        self.with(|subscription| {
            subscription
                .unacked_messages()
                .map(|message| message.message.message_id.clone())
                .collect()
        })
    }

    /// The leases held now, in publish order.
    #[must_use]
    pub fn leases(&self) -> Vec<Lease> {
        self.with(|subscription| subscription.leases())
    }

    /// How many leases of open streams end within `span`. Cheaper than [`leases`](Self::leases) where there are many.
    #[must_use]
    pub fn open_leases_ending_within(&self, span: Duration) -> usize {
        self.enter(|world| {
            let until = world.now().saturating_add(nanos(span));
            let subscription = world.subscriptions.get(&self.name);
            subscription.map_or(0, |subscription| subscription.open_leases_ending_by(until))
        })
    }

    fn tracked(&self, message_id: &str) -> Option<Tracked> {
        let sequence = sequence_of(message_id)?;
        self.with(|subscription| subscription.tracked.get(&sequence).copied())
    }

    /// How often a message was delivered, while it is remembered.
    #[must_use]
    pub fn deliveries(&self, message_id: &str) -> u32 {
        self.tracked(message_id)
            .map_or(0, |tracked| tracked.deliveries)
    }

    /// Whether a message is acknowledged (or was forwarded), while it is remembered.
    #[must_use]
    pub fn is_acked(&self, message_id: &str) -> bool {
        self.tracked(message_id)
            .is_some_and(|tracked| tracked.acked)
    }

    /// Every remembered message, in publish order, with its number of deliveries.
    #[must_use]
    pub fn delivery_counts(&self) -> Vec<(String, u32)> {
        self.with(|subscription| {
            let tracked = subscription.tracked.iter();
            tracked
                .map(|(sequence, tracked)| (id_of(*sequence), tracked.deliveries))
                .collect()
        })
    }

    // Benchmarks.

    /// Makes streams opened from here on deliver synthetic messages without end, and counts their
    /// acknowledgements: what a benchmark of a client pulls from. The subscription must exist.
    pub fn start_firehose(&self, config: &FirehoseConfig) {
        let pubsub = &self.core.pubsub;
        let now = self.enter(|world| world.now());
        let firehose = Firehose::new(config, pubsub.config.ack_id_bytes, now);
        pubsub.floods.start_firehose(&self.name, firehose);
    }

    /// Ends the firehose and its streams, and forgets what was counted.
    pub fn stop_firehose(&self) {
        self.core.pubsub.floods.stop_firehose(&self.name);
        self.close_streams(Code::Unavailable);
    }

    /// What the firehose sent and was answered, while it runs.
    #[must_use]
    pub fn firehosed(&self) -> Firehosed {
        let firehose = self.core.pubsub.floods.subscription(&self.name);
        firehose
            .map(|firehose| firehose.total())
            .unwrap_or_default()
    }

    permissions_and_requests!();

    log_and_wait!();
}
