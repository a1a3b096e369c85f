//! The account of one split: every copy held, from receipt to its one end (PS-SRC-16, -17, -34). Pure.
//!
//! # Invariants
//!
//! - `received = acked + nacked + lost + pending` at every moment ([`Tally`], [`Ledger::pending`]).
//! - A message id is held once. A redelivered copy of a held message takes the place of its ack id, never of its state.
//! - A [`Handle`] of a copy that has ended names nothing: settling it does nothing.

use std::collections::{HashMap, VecDeque};

use aqueduct_connector::Moment;
use bytes::Bytes;

use super::lease::{Lease, Terms};
use crate::client::pull::decode::{MessageId, Received};

/// Names a held message, whichever of its copies is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handle {
    slot: u32,
    seq: u64,
}

/// Names a copy: answers about an older copy's ack id are void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) handle: Handle,
    copy: u32,
    /// When it was to be settled, or its lease ends.
    pub(crate) since: Moment,
}

/// A message on its way to the owner.
#[derive(Clone, Debug)]
pub(crate) struct Handed {
    pub(crate) handle: Handle,
    /// The encoded message.
    pub(crate) message: Bytes,
    pub(crate) key: u64,
    pub(crate) attempt: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waits for the owner.
    Buffered,
    /// With the owner; not all of its records are emitted.
    Handed,
    /// Emitted after the last snapshot.
    Staged,
    /// Belongs to a checkpoint that is not complete.
    Bound,
    /// Its acknowledgement is on its way.
    Acking,
    /// To be returned.
    Nacking,
    /// Returned; the answer is out.
    Nacked,
}

#[derive(Debug)]
struct Held {
    seq: u64,
    id: MessageId,
    ack_id: Bytes,
    copy: u32,
    /// Empty once handed over.
    message: Bytes,
    bytes: u64,
    key: u64,
    attempt: u32,
    state: State,
    lease: Lease,
    /// Handed over only when set: an exactly-once copy whose lease is not confirmed may be stale.
    confirmed: bool,
    /// Somebody waits for its acknowledgement.
    awaited: bool,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) received: u64,
    pub(crate) acked: u64,
    pub(crate) nacked: u64,
    pub(crate) lost: u64,
    /// Ack ids given up; part of `lost`.
    pub(crate) failed: u64,
}

/// How a received copy was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receipt {
    New,
    /// A message held already: its id is replaced. The claim is there if it must be acked at once.
    Again(Option<Claim>),
}

/// What a pass over the leases found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lapsed {
    /// Left the buffer, ended.
    pub(crate) buffered: u64,
    /// Later ones of their keys, to be returned.
    pub(crate) followers: u64,
    /// Kept, although the service may redeliver them.
    pub(crate) kept: u64,
}

/// What an acknowledgement's end means to those who wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It names nothing any more.
    Void,
    Quiet,
    Awaited,
}

/// The account of one split.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    slots: Vec<Option<Held>>,
    free: Vec<u32>,
    ids: HashMap<MessageId, u32>,
    buffer: VecDeque<Handle>,
    staged: Vec<Handle>,
    next_seq: u64,
    held: u64,
    held_bytes: u64,
    buffered: u64,
    buffered_bytes: u64,
    returned_unanswered: u64,
    tally: Tally,
    /// Whether ack ids are confirmed before a message is handed over.
    exactly_once: bool,
    /// Whether order within a key is kept.
    per_key: bool,
}

impl Ledger {
    pub(crate) fn new(per_key: bool) -> Self {
        Self {
            per_key,
            ..Self::default()
        }
    }

    pub(crate) fn set_exactly_once(&mut self) {
        self.exactly_once = true;
    }

    pub(crate) fn is_exactly_once(&self) -> bool {
        self.exactly_once
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// Copies received and not acked, returned or lost.
    pub(crate) fn pending(&self) -> u64 {
        self.held - self.returned_unanswered
    }

    /// What flow control counts: messages and bytes, until the answer of their settlement.
    pub(crate) fn held(&self) -> (u64, u64) {
        (self.held, self.held_bytes)
    }

    /// What the reader's budget counts: received, not emitted.
    pub(crate) fn buffered(&self) -> (u64, u64) {
        (self.buffered, self.buffered_bytes)
    }

    /// Whether [`take`](Self::take) has something.
    pub(crate) fn has_next(&mut self) -> bool {
        while let Some(handle) = self.buffer.front().copied() {
            match self.get(handle) {
                Some(held) if held.state == State::Buffered => return held.confirmed,
                _ => _ = self.buffer.pop_front(),
            }
        }
        false
    }

    /// A copy arrived.
    pub(crate) fn receive(&mut self, received: Received, terms: &Terms, now: Moment) -> Receipt {
        self.tally.received += 1;
        let lease = Lease::new(terms, now, self.exactly_once);
        if let Some(slot) = self.ids.get(&received.id).copied()
            && let Some(held) = &mut self.slots[slot as usize]
        {
            self.tally.lost += 1;
            held.ack_id = received.ack_id;
            held.copy += 1;
            held.lease = lease;
            let claim = Claim {
                handle: Handle {
                    slot,
                    seq: held.seq,
                },
                copy: held.copy,
                since: now,
            };
            return Receipt::Again((held.state == State::Acking).then_some(claim));
        }
        let bytes = received.message.len() as u64;
        let seq = self.next_seq;
        self.next_seq += 1;
        let held = Held {
            seq,
            id: received.id.clone(),
            ack_id: received.ack_id,
            copy: 0,
            message: received.message,
            bytes,
            key: received.key,
            attempt: received.attempt,
            state: State::Buffered,
            lease,
            confirmed: !self.exactly_once,
            awaited: false,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(held);
                slot
            }
            None => {
                self.slots.push(Some(held));
                u32::try_from(self.slots.len() - 1).expect("flow control keeps it far below")
            }
        };
        self.ids.insert(received.id, slot);
        self.buffer.push_back(Handle { slot, seq });
        self.held += 1;
        self.held_bytes += bytes;
        self.buffered += 1;
        self.buffered_bytes += bytes;
        Receipt::New
    }

    /// Hands over up to `most` messages, in order of arrival.
    pub(crate) fn take(&mut self, most: usize, out: &mut Vec<Handed>) {
        while out.len() < most && self.has_next() {
            let Some(handle) = self.buffer.pop_front() else {
                return;
            };
            let held = self.get_mut(handle).expect("looked at by `has_next`");
            held.state = State::Handed;
            out.push(Handed {
                handle,
                message: std::mem::take(&mut held.message),
                key: held.key,
                attempt: held.attempt,
            });
        }
    }

    /// Takes back what the owner did not hand on, in front of everything else.
    pub(crate) fn untake(&mut self, batch: Vec<Handed>) {
        for handed in batch.into_iter().rev() {
            let Some(held) = self.get_mut(handed.handle) else {
                continue;
            };
            if held.state != State::Handed {
                continue;
            }
            held.message = handed.message;
            held.state = State::Buffered;
            if held.lease.is_lost() {
                self.end_lost(handed.handle);
            } else {
                self.buffer.push_front(handed.handle);
            }
        }
    }

    /// All records of these went downstream, or there were none.
    pub(crate) fn emitted(&mut self, handles: impl IntoIterator<Item = Handle>) {
        for handle in handles {
            if let Some(held) = self.get_mut(handle)
                && held.state == State::Handed
            {
                held.state = State::Staged;
                let bytes = held.bytes;
                self.buffered -= 1;
                self.buffered_bytes -= bytes;
                self.staged.push(handle);
            }
        }
    }

    /// What a snapshot covers: everything staged since the last one.
    pub(crate) fn bind(&mut self) -> Vec<Handle> {
        let staged = std::mem::take(&mut self.staged);
        for handle in &staged {
            if let Some(held) = self.get_mut(*handle)
                && held.state == State::Staged
            {
                held.state = State::Bound;
            }
        }
        staged
    }

    /// The checkpoint that covers `handle` is complete: it is to be acked.
    pub(crate) fn complete(&mut self, handle: Handle, now: Moment, awaited: bool) -> Option<Claim> {
        let held = self.get_mut(handle)?;
        if held.state != State::Bound {
            return None;
        }
        held.state = State::Acking;
        held.awaited = awaited;
        self.claim(handle, now)
    }

    /// A message that gave nothing is acked at once.
    pub(crate) fn drop_now(&mut self, handle: Handle, now: Moment) -> Option<Claim> {
        let held = self.get_mut(handle)?;
        if held.state != State::Handed {
            return None;
        }
        held.state = State::Acking;
        let bytes = held.bytes;
        self.buffered -= 1;
        self.buffered_bytes -= bytes;
        self.claim(handle, now)
    }

    /// To be returned, whatever its state was, unless its acknowledgement is on its way.
    pub(crate) fn nack(&mut self, handle: Handle) -> Option<Claim> {
        let held = self.get_mut(handle)?;
        let was = held.state;
        if matches!(was, State::Acking | State::Nacking | State::Nacked) {
            return None;
        }
        held.state = State::Nacking;
        held.message = Bytes::new();
        let (bytes, id, expires) = (held.bytes, held.id.clone(), held.lease.expires());
        self.ids.remove(&id);
        if matches!(was, State::Buffered | State::Handed) {
            self.buffered -= 1;
            self.buffered_bytes -= bytes;
        }
        self.claim(handle, expires)
    }

    /// Returns the buffered messages of `key`.
    pub(crate) fn nack_key(&mut self, key: u64, after: Option<u64>, out: &mut Vec<Claim>) -> u64 {
        let later: Vec<Handle> = self
            .buffer
            .iter()
            .copied()
            .filter(|handle| {
                self.get(*handle).is_some_and(|held| {
                    held.state == State::Buffered
                        && held.key == key
                        && after.is_none_or(|seq| held.seq > seq)
                })
            })
            .collect();
        let claims = later.into_iter().filter_map(|handle| self.nack(handle));
        let before = out.len();
        out.extend(claims);
        (out.len() - before) as u64
    }

    /// Returns everything that only waits for the owner.
    pub(crate) fn nack_buffered(&mut self, out: &mut Vec<Claim>) -> u64 {
        let before = out.len();
        while let Some(handle) = self.buffer.pop_front() {
            if self
                .get(handle)
                .is_some_and(|held| held.state == State::Buffered)
            {
                out.extend(self.nack(handle));
            }
        }
        (out.len() - before) as u64
    }

    /// Returns everything that no completed checkpoint covers.
    pub(crate) fn nack_uncovered(&mut self, out: &mut Vec<Claim>) {
        self.nack_buffered(out);
        let rest: Vec<Handle> = self.handles().collect();
        out.extend(rest.into_iter().filter_map(|handle| self.nack(handle)));
        self.staged.clear();
    }

    /// Everything held, in no order.
    pub(crate) fn handles(&self) -> impl Iterator<Item = Handle> + '_ {
        self.slots.iter().enumerate().filter_map(|(slot, held)| {
            held.as_ref().map(|held| Handle {
                slot: slot as u32,
                seq: held.seq,
            })
        })
    }

    /// The ack id to settle `claim` by, while it is the newest.
    pub(crate) fn ack_id(&self, claim: &Claim) -> Option<&[u8]> {
        self.current(claim).map(|held| &*held.ack_id)
    }

    /// A request with this return left.
    pub(crate) fn nack_sent(&mut self, claim: &Claim) {
        if let Some(held) = self.get_mut(claim.handle)
            && held.state == State::Nacking
        {
            held.state = State::Nacked;
            self.returned_unanswered += 1;
            self.tally.nacked += 1;
        }
    }

    /// The return was answered or given up.
    pub(crate) fn nack_ended(&mut self, claim: &Claim) {
        let state = self.get(claim.handle).map(|held| held.state);
        match state {
            Some(State::Nacked) => {
                self.returned_unanswered -= 1;
                self.remove(claim.handle);
            }
            Some(State::Nacking) => {
                self.tally.lost += 1;
                self.remove(claim.handle);
            }
            _ => {}
        }
    }

    /// The acknowledgement was answered.
    pub(crate) fn acked(&mut self, claim: &Claim) -> Settled {
        self.end_ack(claim, true)
    }

    /// The acknowledgement was given up.
    pub(crate) fn ack_failed(&mut self, claim: &Claim) -> Settled {
        self.end_ack(claim, false)
    }

    fn end_ack(&mut self, claim: &Claim, acked: bool) -> Settled {
        let Some(held) = self.current(claim) else {
            return Settled::Void;
        };
        if held.state != State::Acking {
            return Settled::Void;
        }
        let awaited = held.awaited;
        if acked {
            self.tally.acked += 1;
        } else {
            self.tally.failed += 1;
            self.tally.lost += 1;
        }
        self.remove(claim.handle);
        if awaited {
            Settled::Awaited
        } else {
            Settled::Quiet
        }
    }

    /// The extensions due now, with their lengths in seconds.
    pub(crate) fn due(&mut self, terms: &Terms, now: Moment, out: &mut Vec<(u32, Claim)>) {
        for (slot, held) in self.slots.iter_mut().enumerate() {
            let Some(held) = held else { continue };
            if matches!(held.state, State::Nacking | State::Nacked) {
                continue;
            }
            if let Some(seconds) = held.lease.extension(terms, now) {
                held.lease.asked();
                let handle = Handle {
                    slot: slot as u32,
                    seq: held.seq,
                };
                let claim = Claim {
                    handle,
                    copy: held.copy,
                    since: now,
                };
                out.push((seconds, claim));
            }
        }
    }

    /// An extension was granted; `sent` is when it was asked for.
    pub(crate) fn extended(
        &mut self,
        claim: &Claim,
        terms: &Terms,
        seconds: u32,
        random: &mut fastrand::Rng,
    ) {
        let sent = claim.since;
        if let Some(held) = self.current_mut(claim) {
            held.lease.extended(terms, sent, seconds, random);
            held.confirmed = true;
        }
    }

    /// An extension failed; the next is due at `again`.
    pub(crate) fn not_extended(&mut self, claim: &Claim, again: Moment) {
        if let Some(held) = self.current_mut(claim) {
            held.lease.refused(again);
        }
    }

    /// An exactly-once copy turned out to be stale: unconfirmed, it leaves; otherwise it waits for its redelivery.
    pub(crate) fn stale(&mut self, claim: &Claim) {
        let Some(held) = self.current_mut(claim) else {
            return;
        };
        held.lease.refused(Moment::NEVER);
        if held.state == State::Buffered {
            self.end_lost(claim.handle);
        }
    }

    /// Looks for leases that expired unextended.
    pub(crate) fn lapse(&mut self, now: Moment, returns: &mut Vec<Claim>) -> Lapsed {
        let mut lapsed = Lapsed::default();
        let mut gone: Vec<(Handle, u64)> = Vec::new();
        for (slot, held) in self.slots.iter_mut().enumerate() {
            let Some(held) = held else { continue };
            if !held.lease.lapses(now) {
                continue;
            }
            match held.state {
                State::Buffered => gone.push((
                    Handle {
                        slot: slot as u32,
                        seq: held.seq,
                    },
                    held.key,
                )),
                State::Nacking | State::Nacked => {}
                State::Handed | State::Staged | State::Bound | State::Acking => {
                    held.lease.lose();
                    lapsed.kept += 1;
                }
            }
        }
        for (handle, key) in gone {
            // An earlier one of its key may have returned it meanwhile.
            if self
                .get(handle)
                .is_none_or(|held| held.state != State::Buffered)
            {
                continue;
            }
            self.end_lost(handle);
            lapsed.buffered += 1;
            if self.per_key && key != 0 {
                lapsed.followers += self.nack_key(key, Some(handle.seq), returns);
            }
        }
        lapsed
    }

    /// Everything left is lost: close has run out of time.
    pub(crate) fn abandon(&mut self) -> u64 {
        let pending = self.pending();
        self.tally.lost += pending;
        let tally = self.tally;
        *self = Self {
            tally,
            next_seq: self.next_seq,
            per_key: self.per_key,
            exactly_once: self.exactly_once,
            ..Self::default()
        };
        pending
    }

    /// Whether nothing is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.held == 0
    }

    fn end_lost(&mut self, handle: Handle) {
        let Some(held) = self.get(handle) else { return };
        if matches!(held.state, State::Buffered | State::Handed) {
            let bytes = held.bytes;
            self.buffered -= 1;
            self.buffered_bytes -= bytes;
        }
        self.tally.lost += 1;
        self.remove(handle);
    }

    fn remove(&mut self, handle: Handle) {
        let Some(held) = self.slots[handle.slot as usize].take() else {
            return;
        };
        if self.ids.get(&held.id) == Some(&handle.slot) {
            self.ids.remove(&held.id);
        }
        self.held -= 1;
        self.held_bytes -= held.bytes;
        self.free.push(handle.slot);
    }

    fn claim(&self, handle: Handle, since: Moment) -> Option<Claim> {
        self.get(handle).map(|held| Claim {
            handle,
            copy: held.copy,
            since,
        })
    }

    fn get(&self, handle: Handle) -> Option<&Held> {
        let held = self.slots.get(handle.slot as usize)?.as_ref()?;
        (held.seq == handle.seq).then_some(held)
    }

    fn get_mut(&mut self, handle: Handle) -> Option<&mut Held> {
        let held = self.slots.get_mut(handle.slot as usize)?.as_mut()?;
        (held.seq == handle.seq).then_some(held)
    }

    fn current(&self, claim: &Claim) -> Option<&Held> {
        self.get(claim.handle)
            .filter(|held| held.copy == claim.copy)
    }

    fn current_mut(&mut self, claim: &Claim) -> Option<&mut Held> {
        let copy = claim.copy;
        self.get_mut(claim.handle).filter(|held| held.copy == copy)
    }
}

#[cfg(test)]
mod tests;
