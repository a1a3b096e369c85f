//! All topics, subscriptions and snapshots, under one lock.
//!
//! Whoever enters ([`PubSubState::enter`]) finds time settled, and on leaving what was dead-lettered
//! is forwarded and whoever waits is told.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    fmt,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::Duration,
};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use prost::Message;
use tokio::sync::Notify;
use tonic::Code;

use super::{
    clock::{Nanos, ServiceClock, nanos, timestamp},
    config::PubSubConfig,
    flood::Floods,
    message::{Stored, check, id_of},
    permits::StreamId,
    subscription::{Forward, SeekTarget, SubState},
};
use crate::{
    bigtable::{
        slot::lock,
        store::{Refusal, Visible},
    },
    method::Method,
};

pub(crate) type Poison = Arc<dyn Fn(&pb::PubsubMessage) -> bool + Send + Sync>;

/// What a subscription calls a topic that was deleted under it.
pub(crate) const DELETED_TOPIC: &str = "_deleted-topic_";

/// The last part of a resource name.
pub(crate) fn short(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

pub(crate) fn not_found(name: &str) -> Refusal {
    let short = short(name);
    Refusal::new(
        Code::NotFound,
        format!("Resource not found (resource={short})."),
    )
}

pub(crate) struct TopicState {
    pub(crate) config: pb::Topic,
    pub(crate) visible: Visible,
    /// For seeks, while the topic retains messages.
    retained: VecDeque<Arc<Stored>>,
    /// For inspection.
    pub(crate) kept: VecDeque<Arc<Stored>>,
    kept_bytes: usize,
    pub(crate) published: u64,
}

impl TopicState {
    pub(crate) fn new(config: pb::Topic, visible: Visible) -> Self {
        Self {
            config,
            visible,
            retained: VecDeque::new(),
            kept: VecDeque::new(),
            kept_bytes: 0,
            published: 0,
        }
    }

    fn retention(&self) -> Option<Nanos> {
        let retention = self.config.message_retention_duration?;
        Duration::try_from(retention).ok().map(nanos)
    }

    fn append(&mut self, message: &Arc<Stored>, settings: &PubSubConfig) {
        self.published += 1;
        self.kept.push_back(message.clone());
        self.kept_bytes += message.encoded_len;
        while self.kept.len() > settings.kept_messages || self.kept_bytes > settings.kept_bytes {
            let Some(oldest) = self.kept.pop_front() else {
                break;
            };
            self.kept_bytes -= oldest.encoded_len;
        }
        if self.retention().is_some() {
            self.retained.push_back(message.clone());
        }
    }

    fn expunge(&mut self, now: Nanos) {
        let retention = self.retention().unwrap_or(0);
        while self
            .retained
            .front()
            .is_some_and(|oldest| oldest.arrived.saturating_add(retention) <= now)
        {
            self.retained.pop_front();
        }
    }
}

pub(crate) struct SnapshotState {
    pub(crate) proto: pb::Snapshot,
    pub(crate) unacked: Arc<BTreeMap<u64, Arc<Stored>>>,
    /// What was published from this position on is unacked too.
    pub(crate) next: u64,
}

/// What is set on a name, whether the resource exists or not.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) denied: HashSet<Method>,
    pub(crate) poison: Option<Poison>,
}

pub(crate) struct World {
    pub(crate) clock: ServiceClock,
    pub(crate) topics: BTreeMap<String, TopicState>,
    pub(crate) subscriptions: BTreeMap<String, SubState>,
    pub(crate) snapshots: BTreeMap<String, SnapshotState>,
    pub(crate) options: HashMap<String, Options>,
    next_sequence: u64,
    next_number: u64,
    next_stream: StreamId,
}

/// The part of the simulation that is Pub/Sub.
pub(crate) struct PubSubState {
    world: Mutex<World>,
    pub(crate) config: PubSubConfig,
    pub(crate) floods: Floods,
    /// Tells waiting unary pulls to look.
    pub(crate) pulls: Notify,
    /// Requests that took effect and whose answer was lost by script.
    pub(crate) lost_answers: AtomicU64,
}

impl fmt::Debug for PubSubState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PubSubState").finish_non_exhaustive()
    }
}

impl PubSubState {
    pub(crate) fn new(config: PubSubConfig) -> Self {
        let world = World {
            clock: ServiceClock::real(),
            topics: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            options: HashMap::new(),
            next_sequence: 0,
            next_number: 1,
            next_stream: 0,
        };
        Self {
            world: Mutex::new(world),
            config,
            floods: Floods::default(),
            pulls: Notify::new(),
            lost_answers: AtomicU64::new(0),
        }
    }

    /// Settles time, does something, forwards what it dead-lettered.
    pub(crate) fn enter<R>(&self, act: impl FnOnce(&mut World, &PubSubConfig) -> R) -> R {
        let result = self.look(act);
        self.pulls.notify_waiters();
        result
    }

    /// As [`enter`](Self::enter), telling no waiting pull: what a waiting pull does.
    pub(crate) fn look<R>(&self, act: impl FnOnce(&mut World, &PubSubConfig) -> R) -> R {
        let mut world = lock(&self.world);
        world.settle(&self.config);
        let result = act(&mut world, &self.config);
        world.forward(&self.config);
        result
    }

    /// Whether `method` was denied on `resource`.
    pub(crate) fn denies(&self, resource: &str, method: Method) -> bool {
        lock(&self.world)
            .options
            .get(resource)
            .is_some_and(|options| options.denied.contains(&method))
    }
}

impl World {
    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    pub(crate) fn subscription(&mut self, name: &str) -> Result<&mut SubState, Refusal> {
        self.subscriptions
            .get_mut(name)
            .ok_or_else(|| not_found(name))
    }

    /// A subscription that can be pulled from.
    pub(crate) fn attached(&mut self, name: &str) -> Result<&mut SubState, Refusal> {
        let subscription = self.subscription(name)?;
        if subscription.config.detached {
            return Err(Refusal::new(
                Code::FailedPrecondition,
                format!(
                    "Subscription is detached from its topic (resource={}).",
                    short(name)
                ),
            ));
        }
        Ok(subscription)
    }

    pub(crate) fn new_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    pub(crate) fn new_stream(&mut self) -> StreamId {
        self.next_stream += 1;
        self.next_stream
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// The topic as a data request meets it.
    fn visible_topic(&mut self, name: &str) -> Result<&mut TopicState, Refusal> {
        self.topics
            .get_mut(name)
            .and_then(|topic| topic.visible.ask().then_some(topic))
            .ok_or_else(|| not_found(name))
    }

    /// Publishes all or nothing; answers the ids in order.
    pub(crate) fn publish(
        &mut self,
        request: pb::PublishRequest,
        settings: &PubSubConfig,
    ) -> Result<Vec<String>, Refusal> {
        self.visible_topic(&request.topic)?;
        check(&request.messages, request.encoded_len(), &settings.limits)?;
        let poison = self
            .options
            .get(&request.topic)
            .and_then(|options| options.poison.clone());
        if let Some(poisoned) = poison
            && request.messages.iter().any(|message| poisoned(message))
        {
            return Err(Refusal::invalid(
                "You have passed an invalid argument to the service (scripted poison).",
            ));
        }
        let now = self.now();
        Ok(self.append(&request.topic, request.messages, now, settings))
    }

    /// Stores messages and fans them out.
    pub(crate) fn append(
        &mut self,
        topic: &str,
        messages: Vec<pb::PubsubMessage>,
        published: Nanos,
        settings: &PubSubConfig,
    ) -> Vec<String> {
        let now = self.now();
        let Some(state) = self.topics.get_mut(topic) else {
            return Vec::new();
        };
        let mut ids = Vec::with_capacity(messages.len());
        let mut stored = Vec::with_capacity(messages.len());
        for message in messages {
            let message = Arc::new(Stored::new(self.next_sequence, published, now, message));
            self.next_sequence += 1;
            ids.push(id_of(message.sequence));
            state.append(&message, settings);
            stored.push(message);
        }
        for subscription in self.subscriptions.values_mut() {
            if subscription.config.topic == topic {
                stored
                    .iter()
                    .for_each(|message| subscription.admit(message));
            }
        }
        ids
    }

    /// Carries out what time has brought.
    pub(crate) fn settle(&mut self, settings: &PubSubConfig) {
        let now = self.now();
        let mut seeks: Vec<(String, SeekTarget)> = Vec::new();
        for (name, subscription) in &mut self.subscriptions {
            subscription.dead_letter_exists = subscription
                .config
                .dead_letter_policy
                .as_ref()
                .is_some_and(|policy| self.topics.contains_key(&policy.dead_letter_topic));
            if subscription.next_due().is_some_and(|due| due <= now) {
                let due = subscription.pending_seek.take_if(|(due, _)| *due <= now);
                seeks.extend(due.map(|(_, target)| (name.clone(), target)));
            }
            subscription.settle(now);
        }
        for topic in self.topics.values_mut() {
            topic.expunge(now);
        }
        for (name, target) in seeks {
            self.seek(&name, &target);
        }
        self.forward(settings);
    }

    /// Seeks at once.
    pub(crate) fn seek(&mut self, name: &str, target: &SeekTarget) {
        let Some(subscription) = self.subscriptions.get_mut(name) else {
            return;
        };
        let retained: Vec<Arc<Stored>> = self
            .topics
            .get(&subscription.config.topic)
            .map(|topic| topic.retained.iter().cloned().collect())
            .unwrap_or_default();
        subscription.seek(target, &retained);
    }

    /// Publishes what was dead-lettered.
    fn forward(&mut self, settings: &PubSubConfig) {
        let mut forwards: Vec<(String, String, Forward)> = Vec::new();
        for (name, subscription) in &mut self.subscriptions {
            if subscription.forwards.is_empty() {
                continue;
            }
            let policy = subscription.config.dead_letter_policy.as_ref();
            let topic = policy.map(|policy| policy.dead_letter_topic.clone());
            let topic = topic.unwrap_or_default();
            for forward in subscription.forwards.drain(..) {
                forwards.push((name.clone(), topic.clone(), forward));
            }
        }
        let now = self.now();
        for (name, topic, forward) in forwards {
            let copy = dead_letter(&name, &forward);
            self.append(&topic, vec![copy], now, settings);
        }
    }

    /// The next moment at which something happens by itself.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.subscriptions
            .values()
            .filter_map(SubState::next_due)
            .min()
    }

    /// Makes every waiting stream look at the time again.
    pub(crate) fn wake_all(&mut self) {
        self.subscriptions.values_mut().for_each(SubState::wake);
    }
}

/// The copy of a message that goes to the dead-letter topic.
fn dead_letter(subscription: &str, forward: &Forward) -> pb::PubsubMessage {
    const PREFIX: &str = "CloudPubSubDeadLetterSource";
    let stored = &forward.message;
    let mut message = stored.message.clone();
    message.message_id = String::new();
    message.publish_time = None;
    let project = subscription.split('/').nth(1).unwrap_or_default();
    for (name, value) in [
        ("DeliveryCount", forward.deliveries.to_string()),
        ("Subscription", short(subscription).to_owned()),
        ("SubscriptionProject", project.to_owned()),
        ("TopicPublishTime", timestamp(stored.published).to_string()),
    ] {
        message.attributes.insert(format!("{PREFIX}{name}"), value);
    }
    message
}
