//! Time of a driver: one poll's turn, what is due, the timer, the warning about silence.

use std::cmp::Reverse;
use std::task::{self, Poll};

use aqueduct_connector::{Moment, Result};
use futures::stream::StreamExt;
use tracing::warn;

use super::super::tables::TableId;
use super::{Drive, Pass};

/// Which batches leave in a turn besides those that are due.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Push {
    Due,
    /// All, if the writer is full: it waits for what is still being batched.
    AtCap,
    All,
}

impl Drive {
    /// Takes in what has happened and does what is due; returns the time it was done at.
    pub(super) fn turn(&mut self, cx: &mut task::Context<'_>, push: Push) -> Moment {
        let mut now = self.clock.now();
        loop {
            if self.failure.is_some() {
                break;
            }
            self.unpolled = false;
            self.since_progress = 0;
            // Answers first: they free room, and a failure must win over further records.
            while let Poll::Ready(Some((id, started, end))) = self.calls.poll_next_unpin(cx) {
                self.on_attempt(id, started, end, now);
            }
            self.poll_route(cx);
            while let Poll::Ready(Some(())) = self.closing.poll_next_unpin(cx) {}
            self.place_held(now);
            self.do_due(now);
            self.advance_pass(cx, now);
            let at_cap = self.entries >= self.max_entries || self.bytes >= self.max_bytes;
            if push == Push::All || (push == Push::AtCap && at_cap) || self.held.is_some() {
                self.send_batches();
            }
            if self.failure.is_some() || self.unpolled {
                continue;
            }
            if !self.arm(cx) {
                break;
            }
            now = self.clock.now();
        }
        self.publish();
        now
    }

    /// Does what its time has come for.
    pub(super) fn do_due(&mut self, now: Moment) {
        while let Some((at, table, batch)) = self.due.front().copied() {
            let open = self.open_number(table) == Some(batch);
            if open && at > now {
                break;
            }
            self.due.pop_front();
            if open {
                self.send_batch(table);
            }
        }
        while self
            .retries
            .peek()
            .is_some_and(|Reverse((at, _))| *at <= now)
        {
            if let Some(Reverse((_, id))) = self.retries.pop() {
                self.dispatch(id, now);
            }
        }
        if self.rate_wait.is_some_and(|at| at <= now) {
            self.release_queues(now);
        }
    }

    /// Starts what the rates allow.
    pub(super) fn release_queues(&mut self, now: Moment) {
        self.rate_wait = None;
        for id in self.tables.instance_ids() {
            loop {
                let instance = self.tables.instance_mut(id);
                let Some(request) = instance.queue.front().copied() else {
                    break;
                };
                match instance.rate.take(now) {
                    Ok(()) => {
                        instance.queue.pop_front();
                        self.unpolled = true;
                        self.start(request, now);
                    }
                    Err(at) => {
                        self.rate_wait = Some(self.rate_wait.unwrap_or(Moment::NEVER).min(at));
                        break;
                    }
                }
            }
        }
    }

    pub(super) fn open_number(&self, table: TableId) -> Option<u32> {
        self.tables
            .try_get(table)?
            .open
            .as_ref()
            .map(|open| open.number)
    }

    /// Arms the timer for the next thing due, or leaves it armed for something earlier; true if it has fired.
    pub(super) fn arm(&mut self, cx: &mut task::Context<'_>) -> bool {
        let backoff = match &self.pass {
            Pass::Backoff { until } => Some(*until),
            _ => None,
        };
        let next = [
            self.due.front().map(|(at, _, _)| *at),
            self.retries.peek().map(|Reverse((at, _))| *at),
            self.rate_wait,
            backoff,
        ];
        let Some(next) = next.into_iter().flatten().min() else {
            return false;
        };
        // A timer that fires early costs a turn; arming it again for every batch would cost more.
        if self.timer_at.is_none_or(|armed| next < armed) {
            self.timer.set(Some(next));
            self.timer_at = Some(next);
        }
        let fired = self.timer.poll_elapsed(cx).is_ready();
        if fired {
            self.timer_at = None;
        }
        fired
    }

    /// Ends a poll without success: warns if nothing was answered for too long, and wakes when that will be.
    pub(super) fn wait(
        &mut self,
        what: &'static str,
        now: Moment,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<()>> {
        self.stall.waiting(now);
        if let Some(idle) = self.stall.due(now) {
            warn!(
                connector = super::super::CONNECTOR,
                subtask = %self.context.subtask,
                waiting_for = what,
                no_answer_for = ?idle,
                in_flight_entries = self.entries,
                parked_entries = self.parked(),
                live_tables = self.tables.table_count(),
                last_failure = self.last_failure.as_ref().map(tracing::field::display),
                "no answer from Bigtable; the sink gives a request up ten minutes after its first attempt, and the host's \
                 checkpoint timeout (Flink: 10 min, no failure tolerated) may fail the job first with a message that does \
                 not name Bigtable",
            );
        }
        // The stall's moment is later than most others, so it shares the timer: the earlier of both is armed.
        let stall = self.stall.deadline();
        if let Some(at) = stall
            && self.timer_at.is_none_or(|armed| at < armed)
        {
            self.timer.set(Some(at));
            self.timer_at = Some(at);
            if self.timer.poll_elapsed(cx).is_ready() {
                self.timer_at = None;
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    pub(super) fn end_wait(&mut self, now: Moment) {
        self.stall.done();
        if let Some(since) = self.held_back_since.take() {
            self.metrics.on_admission_wait(now.since(since));
        }
    }
}
