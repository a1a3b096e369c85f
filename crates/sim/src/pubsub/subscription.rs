//! One subscription: which message goes to whom, when, and what becomes of it.
//!
//! Plain functions over plain state, under the lock of the [`world`](super::world); nothing here
//! waits or looks at a clock.
//!
//! # Invariants
//!
//! - An entry is ready, delayed, leased or acked. Only [`end_lease`](SubState::end_lease) leaves the
//!   second and third, and gives timer, permit and batch place back.
//! - Of an ordering key at most one batch is leased, to one stream as long as that is open, and a
//!   message given back takes all later ones of its key with it, acked ones included.
//! - Queues may name entries that are ready no longer; whoever takes from them looks.

mod inspect;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

use super::{
    clock::{Nanos, nanos},
    config::PubSubConfig,
    filter::Filter,
    manners::{AckFailure, LateAcks, Manners, SubscriptionCounts},
    message::{Delivery, Stored},
    permits::{End, Mode, Room, Stream, StreamId},
};

/// How far ahead an unordered subscription looks when it shuffles.
const SHUFFLED_AHEAD: usize = 64;
/// What the service keeps unacknowledged messages for by default.
pub(crate) const DEFAULT_RETENTION: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Bytes of messages in one response, unless one message alone is larger. Ours; the service's
/// figure is unknown.
const RESPONSE_BYTES: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    Delayed {
        until: Nanos,
    },
    Leased {
        until: Nanos,
        stream: Option<StreamId>,
    },
    Acked,
}

struct Entry {
    message: Arc<Stored>,
    state: State,
    /// Nacks and expiries.
    attempts: u32,
    deliveries: u32,
    /// Of the newest ack id; 0 before the first.
    serial: u64,
}

/// One ordering key with messages that are not retired.
#[derive(Default)]
struct Key {
    /// In publish order, acked ones behind an unacked one included.
    queue: BTreeSet<u64>,
    leased: usize,
    stream: Option<StreamId>,
    /// Stands in `ready_keys`.
    listed: bool,
}

/// What is remembered of a message's deliveries.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tracked {
    pub(crate) deliveries: u32,
    pub(crate) acked: bool,
}

/// A parsed ack id of this subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AckId {
    pub(crate) sequence: u64,
    serial: u64,
}

/// What became of an ack id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Effective or harmless: ordinary subscriptions do not tell.
    Done,
    /// Expired or superseded; only exactly-once subscriptions say so.
    Invalid,
    /// An earlier message of its key is not acked.
    Unordered,
    Transient,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Return {
    Nack,
    Expiry,
}

/// A message on its way to the dead-letter topic.
pub(crate) struct Forward {
    pub(crate) message: Arc<Stored>,
    pub(crate) deliveries: u32,
}

/// Where a seek goes.
#[derive(Debug, Clone)]
pub(crate) enum SeekTarget {
    Time(Nanos),
    /// These, and what was published from a position on.
    Snapshot(Arc<BTreeMap<u64, Arc<Stored>>>, u64),
}

impl SeekTarget {
    fn leaves_unacked(&self, message: &Stored) -> bool {
        match self {
            Self::Time(time) => message.published >= *time,
            Self::Snapshot(unacked, next) => {
                message.sequence >= *next || unacked.contains_key(&message.sequence)
            }
        }
    }
}

/// A subscription.
pub(crate) struct SubState {
    /// Unique among all subscriptions, deleted ones included; part of ack ids.
    number: u64,
    pub(crate) config: pb::Subscription,
    pub(crate) manners: Manners,
    pub(crate) counts: SubscriptionCounts,
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    pub(crate) pending_seek: Option<(Nanos, SeekTarget)>,
    /// Whether the topic of the dead-letter policy exists; kept by the world.
    pub(crate) dead_letter_exists: bool,
    /// Taken by the world after each operation.
    pub(crate) forwards: Vec<Forward>,
    pub(crate) tracked: BTreeMap<u64, Tracked>,
    filter: Option<Filter>,
    retention: Nanos,
    entries: BTreeMap<u64, Entry>,
    ready: VecDeque<u64>,
    keys: HashMap<Arc<str>, Key>,
    ready_keys: VecDeque<Arc<str>>,
    timers: BTreeSet<(Nanos, u64)>,
    next_serial: u64,
    unacked: usize,
    leased: usize,
    most_tracked: usize,
}

impl SubState {
    /// `config` was checked.
    pub(crate) fn new(
        number: u64,
        config: pb::Subscription,
        filter: Option<Filter>,
        settings: &PubSubConfig,
    ) -> Self {
        let mut rng = fastrand::Rng::with_seed(settings.seed ^ number);
        Self {
            number,
            manners: Manners::new(rng.fork()),
            counts: SubscriptionCounts::default(),
            streams: BTreeMap::new(),
            pending_seek: None,
            dead_letter_exists: false,
            forwards: Vec::new(),
            tracked: BTreeMap::new(),
            filter,
            retention: Self::retention_of(&config),
            config,
            entries: BTreeMap::new(),
            ready: VecDeque::new(),
            keys: HashMap::new(),
            ready_keys: VecDeque::new(),
            timers: BTreeSet::new(),
            next_serial: 1,
            unacked: 0,
            leased: 0,
            most_tracked: settings.tracked_messages,
        }
    }

    fn retention_of(config: &pb::Subscription) -> Nanos {
        let retention = config.message_retention_duration;
        nanos(
            retention
                .and_then(|retention| retention.try_into().ok())
                .unwrap_or(DEFAULT_RETENTION),
        )
    }

    /// Takes over settings that may change on a living subscription.
    pub(crate) fn reconfigure(&mut self, config: pb::Subscription) {
        self.retention = Self::retention_of(&config);
        self.config = config;
    }

    pub(crate) fn exactly_once(&self) -> bool {
        self.config.enable_exactly_once_delivery
    }

    fn ordered(&self) -> bool {
        self.config.enable_message_ordering
    }

    pub(crate) fn ack_deadline(&self) -> Nanos {
        let seconds = u64::try_from(self.config.ack_deadline_seconds).unwrap_or(0);
        seconds.max(10) * 1_000_000_000
    }

    // Arrival.

    /// Takes a message in, if the filter lets it.
    pub(crate) fn admit(&mut self, message: &Arc<Stored>) {
        if self.config.detached || !self.wants(message) {
            return;
        }
        self.insert(message.clone(), State::Ready);
        self.unacked += 1;
        self.enqueue(message.sequence);
        self.wake();
    }

    fn wants(&self, message: &Stored) -> bool {
        self.filter
            .as_ref()
            .is_none_or(|filter| filter.matches(&message.message.attributes))
    }

    fn insert(&mut self, message: Arc<Stored>, state: State) {
        let sequence = message.sequence;
        let entry = Entry {
            message,
            state,
            attempts: 0,
            deliveries: 0,
            serial: 0,
        };
        self.entries.insert(sequence, entry);
        self.tracked.entry(sequence).or_default();
        while self.tracked.len() > self.most_tracked {
            self.tracked.pop_first();
        }
    }

    fn keyed(&self, message: &Stored) -> bool {
        self.ordered() && !message.key().is_empty()
    }

    /// Puts a ready message where takers look.
    fn enqueue(&mut self, sequence: u64) {
        let Some(entry) = self.entries.get(&sequence) else {
            return;
        };
        if self.keyed(&entry.message) {
            let key: Arc<str> = entry.message.key().into();
            self.keys
                .entry(key.clone())
                .or_default()
                .queue
                .insert(sequence);
            self.list_key(&key);
        } else {
            self.ready.push_back(sequence);
        }
    }

    fn list_key(&mut self, key: &Arc<str>) {
        if let Some(state) = self.keys.get_mut(key)
            && state.leased == 0
            && !state.listed
        {
            state.listed = true;
            self.ready_keys.push_back(key.clone());
        }
    }

    // Delivery.

    /// Leases what fits to a stream (or, without one, to a unary pull of at most `most` messages).
    pub(crate) fn take(
        &mut self,
        holder: Option<StreamId>,
        most: usize,
        now: Nanos,
        ack_id_bytes: usize,
    ) -> Vec<Delivery> {
        let (mut room, deadline) = match holder {
            None => (
                Room {
                    messages: most as u64,
                    bytes: u64::MAX,
                    empty: true,
                },
                self.ack_deadline(),
            ),
            Some(id) => match self.streams.get(&id) {
                Some(stream) if stream.mode != Mode::Silent => (stream.room(), stream.deadline),
                _ => return Vec::new(),
            },
        };
        // Spread over the open streams, as the service does; one takes what others have no room for
        // in its next response.
        let takers = match holder {
            None => 1,
            Some(_) => self
                .streams
                .values()
                .filter(|stream| stream.room().messages > 0)
                .count()
                .max(1),
        };
        room.messages = room.messages.min(most as u64);
        room.bytes = room.bytes.min(RESPONSE_BYTES);
        let until = now.saturating_add(deadline);
        let mut taken = Vec::new();
        self.take_unordered(holder, takers, until, &mut room, &mut taken);
        self.take_ordered(holder, takers, until, &mut room, &mut taken);
        taken
            .into_iter()
            .filter_map(|sequence| self.delivery(sequence, ack_id_bytes))
            .collect()
    }

    fn take_unordered(
        &mut self,
        holder: Option<StreamId>,
        takers: usize,
        until: Nanos,
        room: &mut Room,
        taken: &mut Vec<u64>,
    ) {
        let share = self.ready.len().div_ceil(takers);
        while taken.len() < share && !self.ready.is_empty() {
            if let Some(rng) = &mut self.manners.shuffle {
                let ahead = self.ready.len().min(SHUFFLED_AHEAD);
                self.ready.swap(0, rng.usize(0..ahead));
            }
            let sequence = self.ready[0];
            let Some(entry) = self
                .entries
                .get(&sequence)
                .filter(|entry| entry.state == State::Ready)
            else {
                self.ready.pop_front();
                continue;
            };
            let bytes = entry.message.encoded_len;
            if !room.fits(bytes) {
                break;
            }
            room.fill(bytes);
            self.ready.pop_front();
            self.lease(sequence, holder, until);
            taken.push(sequence);
        }
    }

    fn take_ordered(
        &mut self,
        holder: Option<StreamId>,
        takers: usize,
        until: Nanos,
        room: &mut Room,
        taken: &mut Vec<u64>,
    ) {
        let mut share = self.ready_keys.len().div_ceil(takers);
        for _ in 0..self.ready_keys.len() {
            if share == 0 {
                break;
            }
            let Some(key) = self.ready_keys.pop_front() else {
                break;
            };
            let Some(state) = self.keys.get_mut(&key) else {
                continue;
            };
            let elsewhere = state
                .stream
                .filter(|id| Some(*id) != holder && self.streams.contains_key(id));
            if elsewhere.is_some() {
                self.ready_keys.push_back(key);
                continue;
            }
            // Only the head of the queue and what follows it without a gap.
            let mut batch = Vec::new();
            let mut full = false;
            for sequence in &state.queue {
                let Some(entry) = self.entries.get(sequence) else {
                    continue;
                };
                match entry.state {
                    State::Acked => {}
                    State::Ready if room.fits(entry.message.encoded_len) => {
                        room.fill(entry.message.encoded_len);
                        batch.push(*sequence);
                    }
                    State::Ready => {
                        full = true;
                        break;
                    }
                    State::Delayed { .. } | State::Leased { .. } => break,
                }
            }
            if batch.is_empty() && full {
                self.ready_keys.push_front(key);
                break;
            }
            // A key whose head is delayed is listed again when its time comes.
            state.listed = false;
            if batch.is_empty() {
                continue;
            }
            state.stream = holder;
            share -= 1;
            for sequence in batch {
                self.lease(sequence, holder, until);
                taken.push(sequence);
            }
        }
    }

    fn lease(&mut self, sequence: u64, stream: Option<StreamId>, until: Nanos) {
        let serial = self.next_serial;
        let Some(entry) = self.entries.get_mut(&sequence) else {
            return;
        };
        self.next_serial += 1;
        entry.state = State::Leased { until, stream };
        entry.serial = serial;
        entry.deliveries += 1;
        self.counts.delivered += 1;
        self.counts.redelivered += u64::from(entry.deliveries > 1);
        if let Some(tracked) = self.tracked.get_mut(&sequence) {
            tracked.deliveries += 1;
        }
        self.timers.insert((until, sequence));
        self.leased += 1;
        if let Some(stream) = stream.and_then(|id| self.streams.get_mut(&id)) {
            stream.charge(entry.message.encoded_len);
        }
        let message = entry.message.clone();
        if self.keyed(&message)
            && let Some(key) = self.keys.get_mut(message.key())
        {
            key.leased += 1;
        }
    }

    fn delivery(&self, sequence: u64, ack_id_bytes: usize) -> Option<Delivery> {
        let entry = self.entries.get(&sequence)?;
        let mut ack_id = format!("{:x}.{sequence:x}.{:x}.", self.number, entry.serial);
        while ack_id.len() < ack_id_bytes {
            ack_id.push('A');
        }
        let attempt = if self.config.dead_letter_policy.is_some() {
            i32::try_from(entry.attempts).unwrap_or(i32::MAX - 1) + 1
        } else {
            0
        };
        Some(Delivery {
            ack_id,
            message: entry.message.clone(),
            attempt,
        })
    }

    /// Leaves the leased or delayed state for the ready one, in no queue; the caller decides further.
    fn end_lease(&mut self, sequence: u64) {
        let Some(entry) = self.entries.get_mut(&sequence) else {
            return;
        };
        match entry.state {
            State::Ready | State::Acked => {}
            State::Delayed { until } => {
                entry.state = State::Ready;
                self.timers.remove(&(until, sequence));
            }
            State::Leased { until, stream } => {
                entry.state = State::Ready;
                self.timers.remove(&(until, sequence));
                self.leased -= 1;
                if let Some(stream) = stream.and_then(|id| self.streams.get_mut(&id)) {
                    stream.refund(entry.message.encoded_len);
                }
                let message = entry.message.clone();
                if self.keyed(&message)
                    && let Some(key) = self.keys.get_mut(message.key())
                {
                    key.leased -= 1;
                }
            }
        }
    }

    // Acknowledgement.

    /// An ack id of this subscription, if the text is one.
    pub(crate) fn parse(&self, ack_id: &str) -> Option<AckId> {
        let mut parts = ack_id.split('.');
        let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
        let (subscription, sequence, serial) = (number()?, number()?, number()?);
        (subscription == self.number).then_some(AckId { sequence, serial })
    }

    fn scripted_failure(&mut self) -> Option<Verdict> {
        let (left, failure) = &mut self.manners.ack_failures;
        *left = left.checked_sub(1)?;
        Some(match failure {
            AckFailure::Transient => Verdict::Transient,
            AckFailure::Permanent => Verdict::Invalid,
        })
    }

    pub(crate) fn ack(&mut self, id: AckId) -> Verdict {
        let strict = self.exactly_once();
        if strict && let Some(verdict) = self.scripted_failure() {
            return verdict;
        }
        let entry = self.entries.get(&id.sequence);
        let Some(entry) = entry.filter(|entry| entry.state != State::Acked) else {
            self.counts.idle_acks += 1;
            let acked = entry.is_some()
                || self
                    .tracked
                    .get(&id.sequence)
                    .is_some_and(|tracked| tracked.acked);
            return if strict && !acked {
                Verdict::Invalid
            } else {
                Verdict::Done
            };
        };
        let newest = entry.serial == id.serial;
        let leased = matches!(entry.state, State::Leased { .. });
        let late = !strict && self.manners.late_acks == LateAcks::Work;
        if !newest || !(leased || late) {
            self.counts.idle_acks += 1;
            return if strict {
                Verdict::Invalid
            } else {
                Verdict::Done
            };
        }
        if strict && self.keyed(&entry.message) {
            let key = self.keys.get(entry.message.key());
            let first = key.and_then(|key| {
                key.queue.iter().find(|sequence| {
                    self.entries
                        .get(sequence)
                        .is_some_and(|entry| entry.state != State::Acked)
                })
            });
            if first.is_some_and(|first| *first < id.sequence) {
                return Verdict::Unordered;
            }
        }
        self.counts.acked += 1;
        self.settle_acked(id.sequence);
        Verdict::Done
    }

    /// Extends (or, with 0 s, ends) a lease.
    pub(crate) fn modify(&mut self, id: AckId, seconds: u32, now: Nanos) -> Verdict {
        let strict = self.exactly_once();
        if strict && let Some(verdict) = self.scripted_failure() {
            return verdict;
        }
        // What has no effect is told apart only by exactly-once subscriptions.
        let idle = if strict {
            Verdict::Invalid
        } else {
            Verdict::Done
        };
        let Some(entry) = self.entries.get_mut(&id.sequence) else {
            return idle;
        };
        let State::Leased { until, stream } = entry.state else {
            return idle;
        };
        if entry.serial != id.serial {
            return idle;
        }
        if seconds == 0 {
            self.counts.nacked += 1;
            self.give_back(id.sequence, now, Return::Nack);
        } else {
            self.counts.extended += 1;
            let extended = now.saturating_add(u64::from(seconds) * 1_000_000_000);
            entry.state = State::Leased {
                until: extended,
                stream,
            };
            self.timers.remove(&(until, id.sequence));
            self.timers.insert((extended, id.sequence));
            if extended < until {
                // Waiting streams sleep until the old end.
                self.wake();
            }
        }
        Verdict::Done
    }

    /// Makes a message acked, from whatever state.
    fn settle_acked(&mut self, sequence: u64) {
        self.end_lease(sequence);
        let Some(entry) = self.entries.get_mut(&sequence) else {
            return;
        };
        if entry.state != State::Acked {
            entry.state = State::Acked;
            self.unacked -= 1;
        }
        if let Some(tracked) = self.tracked.get_mut(&sequence) {
            tracked.acked = true;
        }
        let message = entry.message.clone();
        if !self.keyed(&message) {
            self.retire(sequence);
            return;
        }
        // Acked messages of a key stay at hand until all before them are acked.
        let key: Arc<str> = message.key().into();
        while let Some(first) = self
            .keys
            .get(&key)
            .and_then(|key| key.queue.first().copied())
        {
            let acked = self
                .entries
                .get(&first)
                .is_none_or(|entry| entry.state == State::Acked);
            if !acked {
                break;
            }
            if let Some(state) = self.keys.get_mut(&key) {
                state.queue.remove(&first);
            }
            self.retire(first);
        }
        self.after_key_change(&key);
    }

    fn after_key_change(&mut self, key: &Arc<str>) {
        match self.keys.get(key) {
            Some(state) if state.queue.is_empty() => {
                // A stale listing is skipped by takers.
                self.keys.remove(key);
            }
            Some(_) => {
                self.list_key(key);
                self.wake();
            }
            None => {}
        }
    }

    /// Forgets an acked message, or keeps it for a seek.
    fn retire(&mut self, sequence: u64) {
        if !self.config.retain_acked_messages {
            self.entries.remove(&sequence);
        }
    }

    /// A leased message comes back: to be delivered again, or to be dead-lettered.
    fn give_back(&mut self, sequence: u64, now: Nanos, why: Return) {
        self.end_lease(sequence);
        let Some(entry) = self.entries.get_mut(&sequence) else {
            return;
        };
        entry.attempts += 1;
        let (attempts, message) = (entry.attempts, entry.message.clone());
        if self.forwards_after(attempts) {
            self.forwards.push(Forward {
                message,
                deliveries: attempts,
            });
            self.counts.dead_lettered += 1;
            self.settle_acked(sequence);
            return;
        }
        let delay = self.backoff(attempts, why);
        let state = if delay == 0 {
            State::Ready
        } else {
            let until = now.saturating_add(delay);
            self.timers.insert((until, sequence));
            State::Delayed { until }
        };
        if let Some(entry) = self.entries.get_mut(&sequence) {
            entry.state = state;
        }
        if self.keyed(&message) {
            self.take_back_later(message.key(), sequence);
            self.list_key(&message.key().into());
        } else if state == State::Ready {
            self.ready.push_back(sequence);
        }
        self.wake();
    }

    /// Redelivery of one message of a key redelivers all later ones, acked ones included.
    fn take_back_later(&mut self, key: &str, sequence: u64) {
        let Some(state) = self.keys.get(key) else {
            return;
        };
        let later: Vec<u64> = state.queue.range(sequence + 1..).copied().collect();
        for sequence in later {
            self.end_lease(sequence);
            let Some(entry) = self.entries.get_mut(&sequence) else {
                continue;
            };
            if entry.state == State::Acked {
                self.unacked += 1;
                if let Some(tracked) = self.tracked.get_mut(&sequence) {
                    tracked.acked = false;
                }
            }
            entry.state = State::Ready;
        }
    }

    fn forwards_after(&mut self, attempts: u32) -> bool {
        let Some(policy) = &self.config.dead_letter_policy else {
            return false;
        };
        let most = match policy.max_delivery_attempts {
            ..=0 => 5,
            most => most.unsigned_abs(),
        };
        attempts >= most
            && self.manners.dead_letter_granted
            && self.dead_letter_exists
            && self
                .manners
                .dead_letter_jitter
                .as_mut()
                .is_none_or(fastrand::Rng::bool)
    }

    fn backoff(&self, attempts: u32, why: Return) -> Nanos {
        let Some(policy) = &self.config.retry_policy else {
            return match why {
                Return::Nack => self.manners.nack_delay,
                Return::Expiry => 0,
            };
        };
        let setting = |duration: Option<prost_types::Duration>, default: u64| {
            duration
                .and_then(|duration| Duration::try_from(duration).ok())
                .unwrap_or(Duration::from_secs(default))
        };
        let least = setting(policy.minimum_backoff, 10);
        let most = setting(policy.maximum_backoff, 600);
        let doubled = 2_u32.saturating_pow(attempts.saturating_sub(1).min(31));
        nanos(least.saturating_mul(doubled).min(most.max(least)))
    }

    // Time.

    /// The next moment at which something happens by itself.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        let timer = self.timers.first().map(|(due, _)| *due);
        let seek = self.pending_seek.as_ref().map(|(due, _)| *due);
        timer.into_iter().chain(seek).min()
    }

    /// Carries out what has come due, seeks apart.
    pub(crate) fn settle(&mut self, now: Nanos) {
        while let Some((_, sequence)) = self.timers.first().filter(|(due, _)| *due <= now).copied()
        {
            match self.entries.get(&sequence).map(|entry| entry.state) {
                Some(State::Leased { .. }) => {
                    self.counts.expired += 1;
                    self.give_back(sequence, now, Return::Expiry);
                }
                Some(State::Delayed { .. }) => {
                    self.end_lease(sequence);
                    self.enqueue(sequence);
                    self.wake();
                }
                // Unreachable by the invariant; a stray timer must not stop time.
                _ => {
                    self.timers.pop_first();
                }
            }
        }
        while let Some((sequence, entry)) = self.entries.first_key_value() {
            if entry.message.arrived.saturating_add(self.retention) > now {
                break;
            }
            let (sequence, message, state) = (*sequence, entry.message.clone(), entry.state);
            self.end_lease(sequence);
            self.entries.remove(&sequence);
            if state != State::Acked {
                self.unacked -= 1;
                self.counts.expunged += 1;
            }
            if self.keyed(&message) {
                let key: Arc<str> = message.key().into();
                if let Some(state) = self.keys.get_mut(&key) {
                    state.queue.remove(&sequence);
                }
                self.after_key_change(&key);
            }
        }
    }

    /// Acks what the target leaves behind, and brings back what it does not. `retained` are the
    /// topic's messages.
    pub(crate) fn seek(&mut self, target: &SeekTarget, retained: &[Arc<Stored>]) {
        let kept = match target {
            SeekTarget::Time(_) => None,
            SeekTarget::Snapshot(unacked, _) => Some(unacked.values()),
        };
        let kept = kept.into_iter().flatten();
        for message in retained.iter().chain(kept) {
            if !self.entries.contains_key(&message.sequence) && self.wants(message) {
                self.insert(message.clone(), State::Acked);
            }
        }
        let sequences: Vec<u64> = self.entries.keys().copied().collect();
        for sequence in sequences {
            let Some(entry) = self.entries.get_mut(&sequence) else {
                continue;
            };
            if !target.leaves_unacked(&entry.message) {
                self.settle_acked(sequence);
            } else if entry.state == State::Acked {
                entry.state = State::Ready;
                self.unacked += 1;
                if let Some(tracked) = self.tracked.get_mut(&sequence) {
                    tracked.acked = false;
                }
                self.enqueue(sequence);
            }
        }
        self.wake();
    }

    /// Loses the backlog, as detaching does.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.ready.clear();
        self.keys.clear();
        self.ready_keys.clear();
        self.timers.clear();
        self.pending_seek = None;
        (self.unacked, self.leased) = (0, 0);
    }

    // Streams.

    pub(crate) fn wake(&mut self) {
        self.streams.values_mut().for_each(Stream::wake);
    }

    /// Ends every open stream.
    pub(crate) fn end_streams(&mut self, end: &End) {
        for stream in self.streams.values_mut() {
            stream.end.get_or_insert_with(|| end.clone());
            stream.wake();
        }
    }
}
