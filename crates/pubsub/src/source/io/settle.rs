//! The queue of acknowledgements and returns of one split: what leaves when, and what is tried again (PS-SRC-18). Pure.
//!
//! # Invariants
//!
//! - At most so many requests of a kind are unanswered or waiting to be tried again; a request keeps its composition.
//! - Acknowledgements leave in the order in which they were asked for.
//! - Whatever leaves the queue is answered by [`Queue::answered`] or held by it: nothing is forgotten.

use std::collections::VecDeque;
use std::time::Duration;

use aqueduct_cloud::Backoff;
use aqueduct_connector::{Code, Moment};
use bytes::Bytes;

use super::ledger::{Claim, Ledger, Settled, add_claim};
use crate::client::ack::{AckClient, Kind, MAX_IDS, Request, Said};

/// How long single acknowledgements and returns wait for company.
const GATHER: Duration = Duration::from_millis(100);
/// Acknowledgement requests of a subscription that may be unanswered.
const UNANSWERED: usize = 8;
/// An acknowledgement is tried again for so long.
const TRY_FOR: Duration = Duration::from_secs(60);
/// The same of an exactly-once subscription.
const TRY_EXACTLY_ONCE_FOR: Duration = Duration::from_secs(600);

const BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(60)).with_factor(4.0);

/// Whether an attempt that ended so is repeated.
pub(crate) fn is_transient(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::Internal
            | Code::Unknown
            | Code::Cancelled
    )
}

/// One request and all its attempts.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) kind: Kind,
    pub(crate) claims: Vec<Claim>,
    pub(crate) body: Bytes,
    attempt: u32,
    not_before: Moment,
    give_up: Moment,
}

/// What the service answered.
#[derive(Debug)]
pub(crate) enum Answer {
    Ok,
    Failed(Code),
    /// Ids apart; unlisted ones are done.
    Each(std::collections::BTreeMap<String, Said>),
}

/// What an answer came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Ack ids given up.
    pub(crate) failed: u64,
    /// Of those that somebody waits for: done, and given up.
    pub(crate) awaited_done: u64,
    pub(crate) awaited_failed: u64,
}

impl Outcome {
    fn count(&mut self, settled: Settled, done: bool) {
        if done {
            self.awaited_done += settled.awaited;
        } else {
            self.awaited_failed += settled.awaited;
            self.failed += settled.awaited + settled.quiet;
        }
    }
}

/// Claims in their order, and how many messages they are on.
#[derive(Debug, Default)]
struct Claims {
    claims: VecDeque<Claim>,
    messages: usize,
}

impl Claims {
    fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    fn extend(&mut self, claims: impl IntoIterator<Item = Claim>) {
        for claim in claims {
            self.messages += claim.run.len();
            let joined = self.claims.back_mut().is_some_and(|last| last.join(&claim));
            if !joined {
                self.claims.push_back(claim);
            }
        }
    }

    fn append(&mut self, other: &mut Self) {
        self.messages += std::mem::take(&mut other.messages);
        self.claims.append(&mut other.claims);
    }

    fn push_front(&mut self, claim: Claim) {
        self.messages += claim.run.len();
        self.claims.push_front(claim);
    }

    /// What the ids of one request will take, about.
    fn bytes(&self, ledger: &Ledger) -> usize {
        let (mut bytes, mut messages) = (0, 0);
        for claim in &self.claims {
            bytes += ledger.ack_bytes(claim);
            messages += claim.run.len();
            if messages >= MAX_IDS {
                break;
            }
        }
        bytes
    }

    /// Moves the first ids to `request`, as many as fit; returns what they are claims on.
    fn fill(&mut self, request: &mut Request, ledger: &Ledger) -> Vec<Claim> {
        let mut moved = Vec::new();
        while let Some(claim) = self.claims.front_mut() {
            if request.is_full() {
                break;
            }
            let before = claim.run.len();
            let whole = ledger.fill(claim, request, &mut moved);
            self.messages -= before - claim.run.len();
            if !whole {
                break;
            }
            self.claims.pop_front();
        }
        moved
    }
}

/// Claims of one kind.
#[derive(Debug, Default)]
struct Lane {
    ready: Claims,
    gathering: Claims,
    gather_until: Option<Moment>,
    again: Vec<Batch>,
    unanswered: usize,
}

impl Lane {
    fn is_empty(&self) -> bool {
        self.ready.is_empty()
            && self.gathering.is_empty()
            && self.again.is_empty()
            && self.unanswered == 0
    }

    fn gather(&mut self, claims: impl IntoIterator<Item = Claim>, now: Moment) {
        self.gathering.extend(claims);
        if !self.gathering.is_empty() {
            self.gather_until.get_or_insert(now.after(GATHER));
        }
    }

    fn settle_gathered(&mut self, now: Moment) {
        if self.gathering.messages >= MAX_IDS || self.gather_until.is_some_and(|until| now >= until)
        {
            self.ready.append(&mut self.gathering);
            self.gather_until = None;
        }
    }
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Queue {
    acks: Lane,
    nacks: Lane,
    most: usize,
    exactly_once: bool,
    /// Exactly-once acks whose id is void: their redelivery brings another.
    stranded: Vec<Claim>,
    closing: bool,
}

impl Queue {
    pub(crate) fn new(per_key: bool) -> Self {
        Self {
            acks: Lane::default(),
            nacks: Lane::default(),
            most: if per_key { 1 } else { UNANSWERED },
            exactly_once: false,
            stranded: Vec::new(),
            closing: false,
        }
    }

    pub(crate) fn set_exactly_once(&mut self) {
        self.exactly_once = true;
    }

    /// From here on nothing gathers, and returns leave without regard to unanswered ones.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        for lane in [&mut self.acks, &mut self.nacks] {
            lane.ready.append(&mut lane.gathering);
            lane.gather_until = None;
        }
    }

    /// Acknowledgements of a complete checkpoint.
    pub(crate) fn ack(&mut self, claims: impl IntoIterator<Item = Claim>) {
        self.acks.ready.extend(claims);
    }

    /// An acknowledgement of its own.
    pub(crate) fn ack_one(&mut self, claims: impl IntoIterator<Item = Claim>, now: Moment) {
        if self.closing {
            self.acks.ready.extend(claims);
        } else {
            self.acks.gather(claims, now);
        }
    }

    /// Returns that gather.
    pub(crate) fn nack(&mut self, claims: impl IntoIterator<Item = Claim>, now: Moment) {
        if self.closing {
            self.nacks.ready.extend(claims);
        } else {
            self.nacks.gather(claims, now);
        }
    }

    /// Returns that leave at once.
    pub(crate) fn nack_now(&mut self, claims: impl IntoIterator<Item = Claim>) {
        self.nacks.ready.extend(claims);
    }

    /// Whether everything was sent and answered.
    pub(crate) fn is_empty(&self) -> bool {
        self.acks.is_empty() && self.nacks.is_empty() && self.stranded.is_empty()
    }

    /// Whether every return was answered.
    pub(crate) fn has_no_returns(&self) -> bool {
        self.nacks.is_empty()
    }

    /// When [`next`](Self::next) has something more, apart from answers.
    pub(crate) fn deadline(&self) -> Moment {
        let mut at = Moment::NEVER;
        for lane in [&self.acks, &self.nacks] {
            at = at.min(lane.gather_until.unwrap_or(Moment::NEVER));
            for batch in &lane.again {
                at = at.min(batch.not_before);
            }
        }
        self.stranded
            .iter()
            .fold(at, |at, claim| at.min(claim.since.after(self.try_for())))
    }

    fn try_for(&self) -> Duration {
        if self.exactly_once {
            TRY_EXACTLY_ONCE_FOR
        } else {
            TRY_FOR
        }
    }

    /// The next request to send.
    pub(crate) fn next(
        &mut self,
        now: Moment,
        ledger: &mut Ledger,
        client: &AckClient,
    ) -> Option<Batch> {
        self.acks.settle_gathered(now);
        self.nacks.settle_gathered(now);
        let most = self.most;
        if let Some(batch) = Self::lane_next(&mut self.acks, Kind::Ack, most, now, ledger, client) {
            return Some(self.limited(batch, ledger));
        }
        let most = if self.closing { usize::MAX } else { most };
        let batch = Self::lane_next(&mut self.nacks, Kind::Nack, most, now, ledger, client)?;
        Some(self.limited(batch, ledger))
    }

    fn limited(&self, mut batch: Batch, ledger: &mut Ledger) -> Batch {
        if batch.attempt == 0 {
            let claims = batch.claims.iter();
            batch.give_up = match batch.kind {
                Kind::Ack => claims.map(|claim| claim.since.after(self.try_for())).min(),
                // Until their leases end.
                _ => claims.map(|claim| claim.since).max(),
            }
            .unwrap_or(Moment::NEVER);
            if batch.kind == Kind::Nack {
                batch
                    .claims
                    .iter()
                    .for_each(|claim| ledger.nack_sent(claim));
            }
        }
        batch.attempt += 1;
        batch
    }

    fn lane_next(
        lane: &mut Lane,
        kind: Kind,
        most: usize,
        now: Moment,
        ledger: &Ledger,
        client: &AckClient,
    ) -> Option<Batch> {
        if let Some(at) = lane.again.iter().position(|batch| batch.not_before <= now) {
            lane.unanswered += 1;
            return Some(lane.again.remove(at));
        }
        if lane.unanswered + lane.again.len() >= most || lane.ready.is_empty() {
            return None;
        }
        let mut request = client.request(kind, lane.ready.bytes(ledger));
        let claims = lane.ready.fill(&mut request, ledger);
        if request.is_empty() {
            return None;
        }
        lane.unanswered += 1;
        Some(Batch {
            kind,
            claims,
            body: request.finish(),
            attempt: 0,
            not_before: now,
            give_up: Moment::NEVER,
        })
    }

    /// An attempt ended.
    pub(crate) fn answered(
        &mut self,
        mut batch: Batch,
        answer: Answer,
        now: Moment,
        ledger: &mut Ledger,
        random: &mut fastrand::Rng,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        match batch.kind {
            Kind::Ack => self.acks.unanswered -= 1,
            _ => self.nacks.unanswered -= 1,
        }
        match answer {
            Answer::Ok => self.end(&batch.claims, ledger, batch.kind, true, &mut outcome),
            Answer::Failed(code) if is_transient(code) => {
                let again = now.after(BACKOFF.delay_after(batch.attempt, random));
                if again < batch.give_up {
                    batch.not_before = again;
                    match batch.kind {
                        Kind::Ack => self.acks.again.push(batch),
                        _ => self.nacks.again.push(batch),
                    }
                } else {
                    self.end(&batch.claims, ledger, batch.kind, false, &mut outcome);
                }
            }
            Answer::Failed(_) => {
                self.end(&batch.claims, ledger, batch.kind, false, &mut outcome);
            }
            Answer::Each(said) => self.each(batch, &said, now, ledger, random, &mut outcome),
        }
        outcome
    }

    fn each(
        &mut self,
        batch: Batch,
        said: &std::collections::BTreeMap<String, Said>,
        now: Moment,
        ledger: &mut Ledger,
        random: &mut fastrand::Rng,
        outcome: &mut Outcome,
    ) {
        let mut again = Vec::new();
        for claim in batch.claims.into_iter().flat_map(Claim::singles) {
            let verdict = ledger
                .ack_id(&claim)
                .and_then(|id| std::str::from_utf8(id).ok())
                .and_then(|id| said.get(id).copied())
                .unwrap_or(Said::Done);
            match (verdict, batch.kind) {
                (Said::Done, kind) => self.end(&[claim], ledger, kind, true, outcome),
                (Said::Never, Kind::Ack) => self.stranded.push(claim),
                (Said::Never, kind) => self.end(&[claim], ledger, kind, false, outcome),
                (Said::Again, kind) if now >= batch.give_up => {
                    self.end(&[claim], ledger, kind, false, outcome);
                }
                (Said::Again, _) => add_claim(&mut again, claim),
            }
        }
        if again.is_empty() {
            return;
        }
        // A new request of those that are left, in front of everything newer.
        let delay = BACKOFF.delay_after(batch.attempt, random);
        let lane = match batch.kind {
            Kind::Ack => &mut self.acks,
            _ => &mut self.nacks,
        };
        for claim in again.into_iter().rev() {
            lane.gathering.push_front(claim);
        }
        // What was ready stays behind it.
        lane.gathering.append(&mut lane.ready);
        lane.gather_until = Some(now.after(delay));
    }

    fn end(
        &self,
        claims: &[Claim],
        ledger: &mut Ledger,
        kind: Kind,
        done: bool,
        outcome: &mut Outcome,
    ) {
        for claim in claims {
            match (kind, done) {
                (Kind::Ack, true) => outcome.count(ledger.acked(claim), true),
                (Kind::Ack, false) => outcome.count(ledger.ack_failed(claim), false),
                _ => ledger.nack_ended(claim),
            }
        }
    }

    /// Gives up what waits for a redelivery that does not come: in time, or at all once the streams are closed.
    pub(crate) fn expire(&mut self, now: Moment, ledger: &mut Ledger) -> Outcome {
        let mut outcome = Outcome::default();
        let limit = if self.closing {
            Duration::ZERO
        } else {
            self.try_for()
        };
        self.stranded.retain(|claim| {
            if ledger.ack_id(claim).is_none() {
                // Redelivered, and acked by the newer id.
                return false;
            }
            if now < claim.since.after(limit) {
                return true;
            }
            outcome.count(ledger.ack_failed(claim), false);
            false
        });
        outcome
    }
}

#[cfg(test)]
mod tests;
