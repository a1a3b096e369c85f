//! What an answer means: published, tried again, parked, rejected, or the end.

use std::cmp::Reverse;
use std::task::{self, Poll};

use aqueduct_connector::{Moment, Result, StatusChain};
use bytes::Bytes;

use super::super::batch::Slot;
use super::super::error::{self, Failure, Verdict, redacted};
use super::super::request::{Next, Request};
use super::{Drive, FailedMessage, Kind, Parked, Pass, QueueId, Routed, Tag, TopicId};

impl Drive {
    /// An attempt has ended.
    pub(super) fn on_attempt(&mut self, id: usize, result: Result<(), StatusChain>, now: Moment) {
        let Some(mut active) = self.requests[id].take() else {
            return;
        };
        active.calling = false;
        let failed = match result {
            Ok(()) => None,
            Err(chain) => {
                let chain = redacted(&chain);
                let request = &active.request;
                if let Next::At(at) = request.after(&self.retry, &chain, now, &mut self.random) {
                    self.metrics.retries.increment();
                    self.last_status = Some(chain);
                    self.retries.push(Reverse((at, id)));
                    self.requests[id] = Some(active);
                    return;
                }
                Some(chain)
            }
        };
        self.free.push(id);
        // A final outcome is progress; an attempt that is made again is none (PS-SINK-09).
        self.progress.completed(now);
        self.last_status = None;
        self.topics.get_mut(active.request.tag.topic).requests -= 1;
        match failed {
            None => self.on_published(active.request),
            Some(chain) => self.on_failed(active.request, chain),
        }
    }

    fn on_published(&mut self, request: Request<Tag>) {
        self.rejections = 0;
        let Request { tag, sealed, .. } = request;
        let bytes = sealed.slots.iter().map(Slot::size).sum();
        self.release(tag.topic, sealed.slots.len(), bytes);
        if let Kind::Queue(queue) = tag.kind {
            self.topics.queue(queue).in_flight -= 1;
            self.advance_queue(queue);
        }
        self.spare.keep(sealed);
    }

    /// First match wins (PS-SINK-17).
    fn on_failed(&mut self, request: Request<Tag>, chain: StatusChain) {
        let topic = request.tag.topic;
        let destination = self.topics.get(topic).destination.clone();
        let messages = request.sealed.slots.len();
        match error::classify(&chain) {
            Verdict::Missing => {
                self.metrics.on_error_class(chain.code(), messages);
                if self.create.is_none() {
                    return self.fail(error::missing(&destination, chain));
                }
                self.topics.get_mut(topic).missing = Some(chain);
                match request.tag.kind {
                    Kind::Alone(parked) => self.park_again(topic, parked),
                    Kind::Queue(queue) => {
                        self.park_request(&request, queue, Company::Allowed);
                        self.park_queue(queue);
                    }
                }
            }
            Verdict::Refused if messages == 1 => {
                let message = request.sealed.message(&request.sealed.slots[0]);
                self.confirm(topic, message, chain);
                if let Kind::Queue(queue) = request.tag.kind {
                    self.topics.queue(queue).in_flight -= 1;
                    if self.failure.is_none() {
                        self.advance_queue(queue);
                    }
                }
            }
            Verdict::Refused => {
                let Kind::Queue(queue) = request.tag.kind else {
                    return self.fail(aqueduct_connector::Error::bug(
                        "a message sent alone came with company",
                    ));
                };
                self.park_request(&request, queue, Company::Refused);
                if self.topics.queue(queue).key.is_some() {
                    self.park_queue(queue);
                }
            }
            Verdict::Fatal => {
                self.metrics.on_error_class(chain.code(), messages);
                let attempts = request.attempts();
                self.fail(error::service(&destination, attempts, chain));
            }
        }
    }

    // --- Parking ---

    fn park_request(&mut self, request: &Request<Tag>, queue: QueueId, company: Company) {
        let entry = self.topics.queue(queue);
        entry.in_flight -= 1;
        let key = entry.key.clone();
        for slot in &request.sealed.slots {
            let parked = Parked {
                sequence: slot.sequence,
                message: request.sealed.message(slot),
                key: key.clone(),
                alone: company == Company::Refused,
            };
            self.park(request.tag.topic, parked);
        }
    }

    /// Parks what follows a failed request in its queue, so that nothing of its key overtakes. No failure: not counted.
    fn park_queue(&mut self, id: QueueId) {
        let queue = self.topics.queue(id);
        let (topic, key) = (queue.topic, queue.key.clone());
        let mut batches: Vec<_> = queue.sealed.drain(..).collect();
        batches.extend(queue.open.take().map(super::OpenBatch::seal));
        for sealed in batches {
            for slot in &sealed.slots {
                let parked = Parked {
                    sequence: slot.sequence,
                    message: sealed.message(slot),
                    key: key.clone(),
                    alone: false,
                };
                self.park(topic, parked);
            }
        }
        self.topics.drop_if_empty(id);
    }

    fn park(&mut self, topic: TopicId, parked: Parked) {
        self.parked += 1;
        self.parked_bytes += parked.message.len();
        self.topics.get_mut(topic).parked.push_back(parked);
    }

    /// A message that was sent alone found its topic missing.
    fn park_again(&mut self, topic: TopicId, parked: Parked) {
        self.parked += 1;
        self.parked_bytes += parked.message.len();
        self.topics.get_mut(topic).parked.push_front(parked);
    }

    /// Gives the count and the bytes of messages back: they are published, routed or given up.
    fn release(&mut self, topic: TopicId, messages: usize, bytes: usize) {
        self.messages -= messages;
        self.bytes -= bytes;
        self.topics.get_mut(topic).pending -= messages;
    }

    // --- Rejections ---

    /// The service refused this message alone: it is counted, routed, and counted against the guardrail (PS-SINK-21).
    fn confirm(&mut self, topic: TopicId, message: Bytes, chain: StatusChain) {
        let destination = self.topics.get(topic).destination.clone();
        self.metrics.on_error_class(chain.code(), 1);
        self.rejections += 1;
        if !matches!(self.pass, Pass::None) {
            self.repair.handled += 1;
        }
        let bound = u64::try_from(self.options.max_consecutive_rejections).ok();
        if bound.is_some_and(|bound| self.rejections >= bound) && self.guardrail.is_none() {
            self.guardrail = Some(error::guardrail(
                &destination,
                self.rejections,
                chain.clone(),
            ));
        }
        let owed = Some((topic, message.len()));
        let failed = FailedMessage::service(destination, message, chain);
        self.routed.push_back(Routed { failed, owed });
        self.poll_route(&mut task::Context::from_waker(task::Waker::noop()));
        self.unpolled |= !self.routed.is_empty();
    }

    /// Offers rejected records to the handler as far as it is ready, in order.
    pub(super) fn poll_route(&mut self, cx: &mut task::Context<'_>) {
        while let Some(routed) = self.routed.front() {
            match self.handler.poll_ready(cx) {
                Poll::Pending => return,
                Poll::Ready(Err(error)) => {
                    self.routed.clear();
                    return self.fail(error);
                }
                Poll::Ready(Ok(())) => {}
            }
            self.metrics.errors.increment();
            if let Some(topic) = self.topics.known(routed.failed.topic())
                && let Some((_, errors)) = &self.topics.get(topic).counters
            {
                errors.increment();
            }
            let verdict = self.handler.handle(&routed.failed);
            if let Some(Routed {
                owed: Some((topic, size)),
                ..
            }) = self.routed.pop_front()
            {
                self.release(topic, 1, size);
            }
            if let Err(error) = verdict {
                self.fail(error);
            }
        }
        if let Some(error) = self.guardrail.take()
            && self.failure.is_none()
        {
            self.failure = Some(Failure::new(error));
        }
    }
}

/// Whether parked messages may be sent together again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Company {
    Allowed,
    /// One of them was refused, and nothing says which.
    Refused,
}
