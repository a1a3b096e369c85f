//! Repairs: what a topic's parked messages wait for, one topic at a time (PS-SINK-20, -22).
//!
//! A repair drains the topic, creates it if it was missing, sends each message of a refused request alone, one after the
//! other, and publishes the rest again. Everything goes in the order of admission, whatever failed first.
//!
//! # Invariants
//!
//! - Of one key, messages that must go alone come before those that need not: what was refused was sent before what
//!   queued behind it. So order survives the two steps (PS-SINK-23).
//! - A repair that ends leaves nothing parked; one that cannot ends the writer.
//! - Meeting a missing topic spends an attempt. A refused request found on the way spends none: its messages go alone
//!   next, and each of them reaches its end, so the repair comes to its own.

use std::task;

use aqueduct_connector::{Error, Moment, StatusChain};
use futures::future::LocalBoxFuture;
use tracing::info;

use super::super::batch::Buffers;
use super::super::error::{self, redacted};
use super::super::request::TRANSIENT;
use super::{Drive, Item, Kind, OpenBatch, Parked, TopicId};
use crate::client::topic_admin::Ensured;

/// What a repair does at the moment.
pub(super) enum Pass {
    None,
    /// What the topic has in flight is answered first.
    Draining(TopicId),
    Creating {
        topic: TopicId,
        call: LocalBoxFuture<'static, Result<Ensured, StatusChain>>,
    },
    /// Messages of refused requests go one by one.
    Isolating(TopicId),
    Republishing(TopicId),
    Backoff {
        topic: TopicId,
        until: Moment,
    },
}

impl Pass {
    /// When it goes on by itself.
    pub(super) fn until(&self) -> Option<Moment> {
        match self {
            Self::Backoff { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// What a wait is for meanwhile.
    pub(super) fn waits_for(&self) -> Option<&'static str> {
        Some(match self {
            Self::None => return None,
            Self::Draining(_) => "the requests of a topic that needs a repair",
            Self::Creating { .. } => "the creation of a topic",
            Self::Isolating(_) => "a message of a refused request, sent alone",
            Self::Republishing(_) => "messages published again after a repair",
            Self::Backoff { .. } => "the next attempt of a repair",
        })
    }
}

/// The state of the repair under way.
#[derive(Default)]
pub(super) struct Repair {
    attempts: u32,
    /// The topic was created, or found.
    created: bool,
    /// Messages that the handler got meanwhile.
    pub(super) handled: u64,
}

impl Drive {
    /// Moves the repair under way as far as it goes now.
    pub(super) fn advance_pass(&mut self, cx: &mut task::Context<'_>, now: Moment) {
        loop {
            if self.failure.is_some() || self.guardrail.is_some() {
                return;
            }
            match &mut self.pass {
                Pass::None => {
                    if self.parked == 0 {
                        return;
                    }
                    let owed = self
                        .topics
                        .iter()
                        .find(|(_, topic)| !topic.parked.is_empty());
                    let Some((topic, _)) = owed else {
                        return self.fail(Error::bug("parked messages without a topic"));
                    };
                    self.repair = Repair {
                        attempts: 1,
                        ..Repair::default()
                    };
                    self.pass = Pass::Draining(topic);
                }
                Pass::Draining(topic) => {
                    let topic = *topic;
                    if self.topics.get(topic).requests > 0 {
                        return;
                    }
                    self.begin_attempt(topic);
                }
                Pass::Creating { topic, call } => {
                    let topic = *topic;
                    let task::Poll::Ready(result) = call.as_mut().poll(cx) else {
                        return;
                    };
                    // The budget of waits for publishes starts anew.
                    self.progress.completed(now);
                    self.on_ensured(topic, result, now);
                }
                Pass::Isolating(topic) => {
                    let topic = *topic;
                    if !self.routed.is_empty() || self.topics.get(topic).requests > 0 {
                        return;
                    }
                    self.isolate_next(topic, now);
                }
                Pass::Republishing(topic) => {
                    let topic = *topic;
                    self.hurry_topic(topic);
                    let entry = self.topics.get(topic);
                    if entry.pending > entry.parked.len() {
                        return;
                    }
                    if entry.parked.is_empty() {
                        self.pass = Pass::None;
                    } else if let Some(chain) = entry.missing.clone() {
                        self.end_attempt(topic, chain, now);
                    } else {
                        self.pass = Pass::Draining(topic);
                    }
                }
                Pass::Backoff { topic, until } => {
                    if now < *until {
                        return;
                    }
                    self.pass = Pass::Draining(*topic);
                    self.progress.completed(now);
                }
            }
        }
    }

    /// The topic is drained: create it, if that is what it lacks, or go on with what is parked.
    fn begin_attempt(&mut self, topic: TopicId) {
        let entry = self.topics.get_mut(topic);
        entry
            .parked
            .make_contiguous()
            .sort_unstable_by_key(|parked| parked.sequence);
        if entry.missing.is_none() || self.repair.created {
            entry.missing = None;
            self.pass = Pass::Isolating(topic);
            return;
        }
        let destination = entry.destination.clone();
        let Some(settings) = self.create.clone() else {
            return self.fail(Error::bug("a repair without leave to create"));
        };
        let admin = match self.admin.take().map_or_else(|| self.dial.admin(), Ok) {
            Ok(admin) => admin,
            Err(error) => return self.fail(error),
        };
        let call = admin.ensure(destination, settings);
        self.admin = Some(admin);
        self.pass = Pass::Creating { topic, call };
    }

    fn on_ensured(&mut self, topic: TopicId, result: Result<Ensured, StatusChain>, now: Moment) {
        let destination = self.topics.get(topic).destination.clone();
        match result.map_err(|chain| redacted(&chain)) {
            Ok(ensured) => {
                self.metrics.topics_created.increment();
                if ensured == Ensured::Created {
                    info!(
                        topic = %destination,
                        "created the topic; it has no subscription yet, so without retention what is published before \
                         there is one reaches nobody",
                    );
                }
                self.repair.created = true;
                self.topics.get_mut(topic).missing = None;
                self.pass = Pass::Isolating(topic);
            }
            Err(chain) if chain.any(&TRANSIENT) => self.end_attempt(topic, chain, now),
            Err(chain) => self.fail(error::creation(&destination, chain)),
        }
    }

    /// Sends the next message that must go alone; after the last, publishes the rest again.
    fn isolate_next(&mut self, topic: TopicId, now: Moment) {
        let entry = self.topics.get_mut(topic);
        if let Some(chain) = entry.missing.clone() {
            return self.end_attempt(topic, chain, now);
        }
        if let Some(at) = entry.parked.iter().position(|parked| parked.alone)
            && let Some(parked) = entry.parked.remove(at)
        {
            let mut batch = OpenBatch::new(0, &entry.head, Buffers::default());
            batch.push_encoded(&parked.message, parked.sequence);
            self.unpark(&parked);
            self.submit(topic, Kind::Alone(parked), batch.seal());
            return;
        }
        self.pass = Pass::Republishing(topic);
        for parked in std::mem::take(&mut entry.parked) {
            self.unpark(&parked);
            let key = parked.key.as_deref().unwrap_or_default();
            let queue = self.topics.queue_for(topic, key);
            self.put(
                queue,
                &Item::Encoded(&parked.message),
                parked.message.len(),
                parked.sequence,
            );
        }
    }

    fn unpark(&mut self, parked: &Parked) {
        self.parked -= 1;
        self.parked_bytes -= parked.message.len();
    }

    /// The topic was missing again, or could not be created: wait, or give up.
    fn end_attempt(&mut self, topic: TopicId, chain: StatusChain, now: Moment) {
        let attempts = self.repair.attempts;
        let destination = self.topics.get(topic).destination.clone();
        match self.schedule.delay_after(attempts, &mut self.random) {
            Some(delay) => {
                info!(
                    topic = %destination,
                    attempt = attempts,
                    of = self.options.recovery_max_attempts,
                    status = %chain.code(),
                    wait = ?delay,
                    "the topic still takes no messages; trying again after a back-off",
                );
                self.repair.attempts += 1;
                self.pass = Pass::Backoff {
                    topic,
                    until: now.after(delay),
                };
            }
            None => self.fail(error::repair_exhausted(
                &destination,
                attempts,
                self.repair.created,
                self.repair.handled,
                chain,
            )),
        }
    }
}
