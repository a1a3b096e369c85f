//! Topics of a writer: opened with their first record, given up for another one, for idleness, at the end.
//!
//! A topic owns no connection and no task, so giving one up that has nothing pending costs nothing and cannot hang; what
//! a close has to wait for is answers (PS-SINK-16).

use std::task::{self, Poll};

use aqueduct_connector::{Moment, Result};
use futures::stream::StreamExt;
use tracing::{debug, warn};

use super::super::batch;
use super::super::metrics::Levels;
use super::{Drive, Pass, TopicDestination, TopicId, Topics};
use crate::client::publish::Target;
use crate::sink_options::to_usize;

impl Drive {
    /// The topic at `destination`, opened if need be; `None` if every slot is taken by a topic with something pending.
    #[inline]
    pub(super) fn find_or_open(
        &mut self,
        destination: &TopicDestination,
    ) -> Result<Option<TopicId>> {
        if let Some(topic) = self.topics.find(destination) {
            return Ok(Some(topic));
        }
        if !self.has_free_slot() && !self.evict() {
            return Ok(None);
        }
        self.open_topic(destination).map(Some)
    }

    fn open_topic(&mut self, destination: &TopicDestination) -> Result<TopicId> {
        if self.client.is_none() {
            self.client = Some(self.dial.client()?);
        }
        let counters = self
            .options
            .per_destination_metrics
            .then(|| self.metrics.destination(destination.topic()));
        let first = self.retry.initial_rpc_timeout;
        let usual = (!first.is_zero()).then_some(first);
        Ok(self.topics.add(
            destination,
            batch::head(&destination.to_string()),
            Target::new(destination, usual),
            counters,
            self.clock.now(),
        ))
    }

    fn has_free_slot(&self) -> bool {
        self.topics.len() < to_usize(self.options.max_active_publishers)
    }

    /// Gives up the topic longest without a record among those with nothing pending; false if there is none.
    fn evict(&mut self) -> bool {
        let Some(topic) = self.topics.least_recently_used_clean() else {
            return false;
        };
        self.metrics.capacity_evictions.increment();
        self.topics.remove(topic);
        true
    }

    /// Places the held message once everything else is drained, repairs included (PS-SINK-14).
    pub(super) fn place_held(&mut self) {
        let drained = self.messages == 1 && self.routed.is_empty();
        if !drained || !matches!(self.pass, Pass::None) || self.failure.is_some() {
            return;
        }
        let Some(held) = self.held.take() else { return };
        self.unpolled = true;
        match self.find_or_open(&held.destination) {
            Ok(Some(topic)) => {
                self.hand_over(topic, &held.message, held.message.encoded_len());
            }
            Ok(None) => self.held = Some(held),
            Err(error) => self.fail(error),
        }
    }

    /// Gives up the topics without a record for longer than the idle timeout (PS-SINK-15). Nothing is pending.
    pub(super) fn sweep_idle(&mut self, now: Moment) {
        let idle: Vec<_> = self
            .topics
            .iter()
            .filter(|(_, topic)| {
                topic.pending == 0 && now.since(topic.used) > self.options.destination_idle_timeout
            })
            .map(|(id, _)| id)
            .collect();
        for topic in idle {
            self.metrics.idle_evictions.increment();
            self.topics.remove(topic);
        }
    }

    /// Sends nothing new, waits for what is in flight as long as it may, and releases everything.
    pub(in crate::sink) fn poll_close(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<()>> {
        let now = self.clock.now();
        let until = match self.closing {
            Some(until) => until,
            None => self.begin_close(now),
        };
        while let Poll::Ready(Some((id, _))) = self.calls.poll_next_unpin(cx) {
            // Whatever it says: no completed checkpoint covers it.
            self.requests[id] = None;
        }
        if !self.calls.is_empty() {
            self.timer.set(Some(until));
            if self.timer.poll_elapsed(cx).is_pending() {
                return Poll::Pending;
            }
            self.abandon(now);
        }
        self.requests.clear();
        self.topics = Topics::new();
        // The last of the connections end with it.
        self.client = None;
        self.admin = None;
        self.handler.poll_close(cx)
    }

    fn begin_close(&mut self, now: Moment) -> Moment {
        match self.failure.as_ref().map(|failure| failure.untold()) {
            Some(Some(error)) => warn!(%error, "a failure that no call returned any more"),
            Some(None) => debug!("closing after a failure"),
            None => {}
        }
        self.metrics.publish(Levels::default());
        let until = now.after(self.options.shutdown_timeout);
        self.closing = Some(until);
        // No completed checkpoint covers what is dropped here.
        self.waiting.clear();
        self.retries.clear();
        self.due.clear();
        self.routed.clear();
        self.held = None;
        self.pass = Pass::None;
        until
    }

    fn abandon(&mut self, now: Moment) {
        let calling: Vec<_> = self
            .requests
            .iter()
            .flatten()
            .filter(|active| active.calling)
            .map(|active| active.request.tag.topic)
            .collect();
        let topics = self
            .topics
            .iter()
            .filter(|(id, _)| calling.contains(id))
            .count();
        self.metrics.abandoned.add(topics as u64);
        let began = self.closing.unwrap_or(now);
        let over = now.since(began);
        warn!(
            subtask = %self.context.subtask,
            topics,
            requests = calling.len(),
            waited = ?(self.options.shutdown_timeout + over),
            "requests to Pub/Sub were unanswered at the end of a close and are abandoned; they may still take effect",
        );
        self.calls.clear();
    }
}
