//! One request under way: its attempts, and what each means for its entries.
//!
//! This is the only retry loop (BASE-32). A pure core: it is told how an attempt ended and says which entries have a
//! verdict and when the rest is sent again.
//!
//! # Invariants
//!
//! - Only entries whose last status is retryable, or that got no result, are sent again, bytes unchanged.
//! - No delay or deadline goes beyond ten minutes from the first send.
//! - A missing result is never success.

use std::time::Duration;

use aqueduct_cloud::{Backoff, Cookies};
use aqueduct_connector::{Code, Moment, Status, StatusChain};
use bytes::Bytes;

use super::batch::{Sealed, Slot, Unit};
use super::tables::TableId;
use crate::client::mutate::AttemptEnd;
use crate::error::is_retryable;

/// From the first send of an entry to giving it up.
pub(super) const TOTAL: Duration = Duration::from_secs(600);
/// Of one attempt.
const ATTEMPT: Duration = Duration::from_secs(60);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(60));
/// Least delay after the service refused for load.
const EXHAUSTED_DELAY: Duration = Duration::from_secs(1);

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A batch.
    Bulk,
    /// Parked records, by their turn in the isolation pass.
    Parked(u64),
    /// Parked entries after a repair.
    Reapply,
}

/// A request and the entries of it that have no verdict yet.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) table: TableId,
    pub(super) kind: Kind,
    sealed: Sealed,
    /// Positions of the entries still to be applied, which is also the index map of the attempt; `None` for all.
    pending: Option<Vec<u32>>,
    first_sent: Option<Moment>,
    attempts: u32,
    cookies: Cookies,
}

/// What an attempt settled.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Everything that was pending is applied.
    Applied,
    /// Some entries have a verdict, by position in the request: `None` is applied.
    Settled {
        verdicts: Vec<(u32, Option<StatusChain>)>,
        /// Whether the attempt held one record only, so that a refusal is that record's.
        alone: bool,
        /// When the rest is sent again.
        retry: Option<Retry>,
    },
}

/// A further attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retry {
    pub(super) at: Moment,
    pub(super) delay: Duration,
    /// The status that stands for the attempt in the metrics.
    pub(super) code: Code,
    pub(super) entries: usize,
}

impl Request {
    pub(super) fn new(table: TableId, kind: Kind, sealed: Sealed) -> Self {
        Self {
            table,
            kind,
            sealed,
            pending: None,
            first_sent: None,
            attempts: 0,
            cookies: Cookies::default(),
        }
    }

    /// Begins an attempt: its body, entry count and time limit.
    pub(super) fn begin(&mut self, head: &[u8], now: Moment) -> (Bytes, usize, Duration) {
        let first = *self.first_sent.get_or_insert(now);
        self.attempts += 1;
        let body = match &self.pending {
            None => self.sealed.body.clone(),
            Some(positions) => self.sealed.subset(head, positions),
        };
        let left = TOTAL.saturating_sub(now.since(first));
        (body, self.entries(), left.min(ATTEMPT))
    }

    /// Entries of the attempt under way.
    pub(super) fn entries(&self) -> usize {
        self.pending
            .as_ref()
            .map_or(self.sealed.slots.len(), Vec::len)
    }

    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    pub(super) fn cookies(&self) -> &Cookies {
        &self.cookies
    }

    pub(super) fn slots(&self) -> &[Slot] {
        &self.sealed.slots
    }

    /// Positions still without a verdict.
    pub(super) fn pending(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.entries()).map(|at| self.position(at))
    }

    pub(super) fn unit(&self, position: u32, chain: StatusChain) -> Unit {
        self.sealed.unit(self.table, position as usize, chain)
    }

    pub(super) fn into_sealed(self) -> Sealed {
        self.sealed
    }

    /// Takes in the end of an attempt.
    pub(super) fn end(
        &mut self,
        mut end: AttemptEnd,
        now: Moment,
        random: &mut fastrand::Rng,
    ) -> Outcome {
        if end.answers.all_applied() {
            // Whatever cut the stream afterwards, every entry was answered.
            return Outcome::Applied;
        }
        end.answers.sort();
        let entries = self.entries();
        let alone = entries == 1 && self.sealed.slots[self.position(0)].load.records == 1;
        let asked = end
            .result
            .as_ref()
            .err()
            .and_then(|failure| failure.retry_delay);
        if let Err(failure) = &end.result {
            self.cookies.update(&failure.cookies);
        }
        let mut verdicts = Vec::new();
        let mut again = Vec::new();
        for at in 0..entries {
            let position = self.position(at) as u32;
            if !end.answers.answered(at) {
                match &end.result {
                    Ok(()) => again.push((position, unanswered())),
                    Err(failure) if is_retryable(failure.chain.code()) || asked.is_some() => {
                        again.push((position, failure.chain.clone()));
                    }
                    Err(failure) => verdicts.push((position, Some(failure.chain.clone()))),
                }
            } else if let Some(status) = end.answers.failure(at) {
                let chain = StatusChain::new(status.clone());
                if is_retryable(status.code) {
                    again.push((position, chain));
                } else {
                    verdicts.push((position, Some(chain)));
                }
            } else {
                verdicts.push((position, None));
            }
        }
        let retry = self.retry(&again, asked, now, random);
        if retry.is_some() {
            self.pending = Some(again.into_iter().map(|(position, _)| position).collect());
        } else {
            verdicts.extend(
                again
                    .into_iter()
                    .map(|(position, chain)| (position, Some(chain))),
            );
            verdicts.sort_by_key(|(position, _)| *position);
        }
        Outcome::Settled {
            verdicts,
            alone,
            retry,
        }
    }

    fn retry(
        &self,
        again: &[(u32, StatusChain)],
        asked: Option<Duration>,
        now: Moment,
        random: &mut fastrand::Rng,
    ) -> Option<Retry> {
        let (_, first) = again.first()?;
        let mut delay = asked.unwrap_or_else(|| BACKOFF.delay_after(self.attempts, random));
        if asked.is_none()
            && again
                .iter()
                .any(|(_, chain)| chain.code() == Code::ResourceExhausted)
        {
            delay = delay.max(EXHAUSTED_DELAY);
        }
        let end = self.first_sent.unwrap_or(now).after(TOTAL);
        let at = now.after(delay);
        (at < end).then_some(Retry {
            at,
            delay,
            code: first.code(),
            entries: again.len(),
        })
    }

    fn position(&self, at: usize) -> usize {
        self.pending
            .as_ref()
            .map_or(at, |pending| pending[at] as usize)
    }
}

/// A stream that ended well and left an entry out: its outcome is unknown.
fn unanswered() -> StatusChain {
    StatusChain::new(Status::new(
        Code::Internal,
        "the service ended its answer without a result for the entry",
    ))
}

#[cfg(test)]
mod tests;
