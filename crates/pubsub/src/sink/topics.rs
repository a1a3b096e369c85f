//! The topics a writer has open, and the queues of each: who was used last, what is pending, who may go.
//!
//! A pure core: it decides, the driver sends.
//!
//! # Invariants
//!
//! - Nothing is given up that has a message pending: batched, in flight or parked (PS-SINK-14).
//! - An ordering key's queue exists while it has something, and no longer (PS-SINK-06).

use std::collections::{HashMap, VecDeque};

use aqueduct_connector::metrics::Counter;
use aqueduct_connector::{Moment, StatusChain};
use bytes::Bytes;

use super::batch::{OpenBatch, Sealed};
use crate::TopicDestination;
use crate::client::publish::Target;

/// An open topic; reused after the topic was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TopicId(u32);

/// A queue; reused likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueId(u32);

/// A message that waits for a repair.
#[derive(Clone, Debug)]
pub(super) struct Parked {
    /// Order among the writer's messages: the order they are published again in, whatever failed first.
    pub(super) sequence: u64,
    pub(super) message: Bytes,
    pub(super) key: Option<Box<str>>,
    /// Must be sent alone: its request was refused.
    pub(super) alone: bool,
}

/// One topic.
pub(super) struct Topic {
    pub(super) destination: TopicDestination,
    /// Start of each of its requests.
    pub(super) head: Bytes,
    pub(super) target: Target,
    /// The queue of messages without a key.
    pub(super) unkeyed: QueueId,
    pub(super) keys: HashMap<Box<str>, QueueId>,
    /// Messages without a verdict, parked ones included.
    pub(super) pending: usize,
    /// Requests without a final answer.
    pub(super) requests: usize,
    pub(super) parked: VecDeque<Parked>,
    /// A publish met `NOT_FOUND` since the last creation.
    pub(super) missing: Option<StatusChain>,
    /// When its last batch began or left.
    pub(super) used: Moment,
    /// Order of use among the writer's topics.
    turn: u64,
    /// `recordsSend` and `sendErrors`, if counted.
    pub(super) counters: Option<(Counter, Counter)>,
}

/// Messages of one topic and one ordering key, or of none.
pub(super) struct Queue {
    pub(super) topic: TopicId,
    /// `None` is the queue of messages without a key, which may have many requests in flight.
    pub(super) key: Option<Box<str>>,
    pub(super) open: Option<OpenBatch>,
    /// Batches that wait for the request in flight.
    pub(super) sealed: VecDeque<Sealed>,
    /// Requests in flight; of a key one at most.
    pub(super) in_flight: usize,
}

/// All of them.
pub(super) struct Topics {
    topics: Vec<Option<Topic>>,
    free_topics: Vec<u32>,
    queues: Vec<Option<Queue>>,
    free_queues: Vec<u32>,
    known: HashMap<TopicDestination, TopicId>,
    last: Option<TopicId>,
    turn: u64,
}

impl Topics {
    pub(super) fn new() -> Self {
        Self {
            topics: Vec::new(),
            free_topics: Vec::new(),
            queues: Vec::new(),
            free_queues: Vec::new(),
            known: HashMap::new(),
            last: None,
            turn: 0,
        }
    }

    /// The topic at `destination`, if it is open; notes its use.
    #[inline]
    pub(super) fn find(&mut self, destination: &TopicDestination) -> Option<TopicId> {
        let id = match self.last {
            // The usual case costs a pointer comparison.
            Some(id) if self.get(id).destination == *destination => id,
            _ => *self.known.get(destination)?,
        };
        self.last = Some(id);
        self.turn += 1;
        let turn = self.turn;
        self.get_mut(id).turn = turn;
        Some(id)
    }

    /// Opens a topic.
    pub(super) fn add(
        &mut self,
        destination: &TopicDestination,
        head: Bytes,
        target: Target,
        counters: Option<(Counter, Counter)>,
        now: Moment,
    ) -> TopicId {
        let id = TopicId(match self.free_topics.pop() {
            Some(id) => id,
            None => {
                self.topics.push(None);
                index(self.topics.len() - 1)
            }
        });
        let unkeyed = self.add_queue(id, None);
        self.topics[id.0 as usize] = Some(Topic {
            destination: destination.clone(),
            head,
            target,
            unkeyed,
            keys: HashMap::new(),
            pending: 0,
            requests: 0,
            parked: VecDeque::new(),
            missing: None,
            used: now,
            turn: 0,
            counters,
        });
        self.known.insert(destination.clone(), id);
        self.find(destination);
        id
    }

    /// An open topic.
    #[inline]
    pub(super) fn get(&self, id: TopicId) -> &Topic {
        self.topics[id.0 as usize]
            .as_ref()
            .expect("ids of given-up topics are not kept")
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: TopicId) -> &mut Topic {
        self.topics[id.0 as usize]
            .as_mut()
            .expect("ids of given-up topics are not kept")
    }

    /// The open topic at `destination`, without noting a use.
    pub(super) fn known(&self, destination: &TopicDestination) -> Option<TopicId> {
        self.known.get(destination).copied()
    }

    /// All open topics.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TopicId, &Topic)> {
        self.topics
            .iter()
            .enumerate()
            .filter_map(|(at, topic)| Some((TopicId(index(at)), topic.as_ref()?)))
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// The queue of `topic` for `key`, made if need be.
    #[inline]
    pub(super) fn queue_for(&mut self, topic: TopicId, key: &str) -> QueueId {
        if key.is_empty() {
            return self.get(topic).unkeyed;
        }
        if let Some(queue) = self.get(topic).keys.get(key) {
            return *queue;
        }
        let queue = self.add_queue(topic, Some(key.into()));
        self.get_mut(topic).keys.insert(key.into(), queue);
        queue
    }

    fn add_queue(&mut self, topic: TopicId, key: Option<Box<str>>) -> QueueId {
        let queue = Queue {
            topic,
            key,
            open: None,
            sealed: VecDeque::new(),
            in_flight: 0,
        };
        match self.free_queues.pop() {
            Some(id) => {
                self.queues[id as usize] = Some(queue);
                QueueId(id)
            }
            None => {
                self.queues.push(Some(queue));
                QueueId(index(self.queues.len() - 1))
            }
        }
    }

    /// A queue.
    #[inline]
    pub(super) fn queue(&mut self, id: QueueId) -> &mut Queue {
        self.queues[id.0 as usize]
            .as_mut()
            .expect("ids of vanished queues are not kept")
    }

    /// The number of the open batch of a queue that may have vanished.
    pub(super) fn open_number(&self, id: QueueId) -> Option<u64> {
        let queue = self.queues.get(id.0 as usize)?.as_ref()?;
        queue.open.as_ref().map(|open| open.number)
    }

    /// Lets a key's queue vanish if it is empty.
    pub(super) fn drop_if_empty(&mut self, id: QueueId) {
        let queue = self.queue(id);
        let empty = queue.in_flight == 0 && queue.open.is_none() && queue.sealed.is_empty();
        if empty && let Some(key) = queue.key.take() {
            let topic = queue.topic;
            self.queues[id.0 as usize] = None;
            self.free_queues.push(id.0);
            let keys = &mut self.get_mut(topic).keys;
            keys.remove(&key);
            if keys.is_empty() {
                // A burst of keys must not stay in memory.
                *keys = HashMap::new();
            }
            if self.free_queues.len() == self.queues.len() - self.known.len()
                && self.queues.len() > 1_024
            {
                self.shrink();
            }
        }
    }

    /// Gives back the memory of queues at the end of the list.
    fn shrink(&mut self) {
        while self.queues.last().is_some_and(Option::is_none) {
            self.queues.pop();
        }
        let len = index(self.queues.len());
        self.free_queues.retain(|id| *id < len);
        self.free_queues.shrink_to_fit();
        self.queues.shrink_to_fit();
    }

    /// Queues of `topic` with a batch that still grows or waits.
    pub(super) fn unsent(&self, topic: TopicId) -> Vec<QueueId> {
        let topic = self.get(topic);
        std::iter::once(&topic.unkeyed)
            .chain(topic.keys.values())
            .copied()
            .filter(|id| self.open_number(*id).is_some())
            .collect()
    }

    /// The topic longest without a record among those with nothing pending.
    pub(super) fn least_recently_used_clean(&self) -> Option<TopicId> {
        self.iter()
            .filter(|(_, topic)| topic.pending == 0)
            .min_by_key(|(_, topic)| topic.turn)
            .map(|(id, _)| id)
    }

    /// Gives up a topic with nothing pending.
    pub(super) fn remove(&mut self, id: TopicId) {
        let Some(topic) = self.topics[id.0 as usize].take() else {
            return;
        };
        debug_assert_eq!(topic.pending, 0, "only clean topics are given up");
        self.known.remove(&topic.destination);
        self.queues[topic.unkeyed.0 as usize] = None;
        self.free_queues.push(topic.unkeyed.0);
        self.free_topics.push(id.0);
        self.last = None;
    }
}

fn index(at: usize) -> u32 {
    u32::try_from(at).expect("fewer than 2^32 at once")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str) -> TopicDestination {
        TopicDestination::new("p", name).expect("valid")
    }

    fn add(topics: &mut Topics, name: &str) -> TopicId {
        let destination = topic(name);
        let target = Target::new(&destination, None);
        topics.add(&destination, Bytes::new(), target, None, Moment::ORIGIN)
    }

    #[test]
    fn the_least_recently_used_clean_topic_goes_first() {
        let mut topics = Topics::new();
        let (a, b, c) = (
            add(&mut topics, "a"),
            add(&mut topics, "b"),
            add(&mut topics, "c"),
        );
        assert_eq!(topics.find(&topic("a")), Some(a));
        topics.get_mut(b).pending = 1;
        assert_eq!(topics.least_recently_used_clean(), Some(c));
        topics.get_mut(b).pending = 0;
        assert_eq!(topics.least_recently_used_clean(), Some(b));
        topics.remove(b);
        assert_eq!(topics.len(), 2);
        assert_eq!(topics.find(&topic("b")), None);
        let again = add(&mut topics, "b");
        assert_eq!(topics.find(&topic("b")), Some(again));
    }

    #[test]
    fn a_key_s_queue_vanishes_when_it_is_empty_and_its_memory_with_it() {
        let mut topics = Topics::new();
        let id = add(&mut topics, "t");
        let queues: Vec<_> = (0..50_000)
            .map(|key| topics.queue_for(id, &key.to_string()))
            .collect();
        assert_eq!(topics.get(id).keys.len(), 50_000);
        assert_eq!(topics.queue_for(id, "7"), queues[7]);
        assert_eq!(topics.queue_for(id, ""), topics.get(id).unkeyed);
        topics.queue(queues[3]).in_flight = 1;
        queues.iter().for_each(|queue| topics.drop_if_empty(*queue));
        assert_eq!(topics.get(id).keys.len(), 1);
        topics.queue(queues[3]).in_flight = 0;
        topics.drop_if_empty(queues[3]);
        assert_eq!(topics.get(id).keys.capacity(), 0);
        assert!(topics.queues.capacity() < 64 && topics.free_queues.capacity() < 64);
        let unkeyed = topics.get(id).unkeyed;
        topics.drop_if_empty(unkeyed);
        assert_eq!(topics.queue_for(id, ""), unkeyed, "that one stays");
    }
}
