//! The account of one split: every copy held, from receipt to its one end (PS-SRC-16, -17, -34). Pure.
//!
//! Messages are held in blocks, one a response ([`block`]), and named in runs of neighbours ([`Run`]), because neighbours
//! mostly share their fate: what a message costs here is its entry's change of state and its id's way into and out of a
//! table ([`ids`]).
//!
//! # Invariants
//!
//! - `received = acked + nacked + lost + pending` at every moment ([`Tally`], [`Ledger::pending`]).
//! - A message id is held once. A redelivered copy of a held message takes the place of its ack id, never of its state.
//! - A [`Run`] of messages that have ended names nothing: settling it does nothing, and neither do those of its messages
//!   that have ended.

mod block;
mod given_up;
mod ids;
mod run;

use std::collections::VecDeque;
use std::sync::Arc;

use aqueduct_connector::Moment;

use self::block::{Block, Entry, Spare, State};
use self::given_up::GivenUp;
use self::ids::{Ids, Place};
use self::run::add_run;
use super::lease::{Lease, Terms};
use crate::client::ack::Request;
use crate::client::pull::decode::{Contents, Response, Room};

/// Blocks that are over and keep their memory for responses to come; each is small ([`Block::into_spare`]).
const SPARES: usize = 16;

pub(in crate::source) use self::run::{Claim, Run, add_claim};

/// Messages on their way to the owner.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) run: Run,
    pub(crate) contents: Arc<Contents>,
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

/// How many acknowledgements came to an end, by whether somebody waits for them. What named nothing any more is not
/// among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) quiet: u64,
    pub(crate) awaited: u64,
}

/// The account of one split.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    blocks: Vec<Option<Block>>,
    free: Vec<u32>,
    /// Of blocks that are over, for responses to come.
    spare: Vec<Spare>,
    /// Of the next block.
    entries: Vec<Entry>,
    ids: Ids,
    /// Emitted exactly-once messages that were let go unacknowledged.
    given_up: GivenUp,
    /// What waits for the owner, in order of arrival; messages that have left it meanwhile are passed over.
    buffer: VecDeque<Run>,
    staged: Vec<Run>,
    next_number: u64,
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

    /// Whether nothing is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Whether [`take`](Self::take) has something.
    pub(crate) fn has_next(&mut self) -> bool {
        while let Some(run) = self.buffer.front_mut() {
            if let Some(block) = block(&self.blocks, run) {
                let waits = |at: &usize| block.entries[*at].state == State::Buffered;
                if let Some(first) = run.range().find(waits) {
                    run.from = first as u32;
                    return block.entries[first].confirmed;
                }
            }
            self.buffer.pop_front();
        }
        false
    }

    /// Room for the next response.
    pub(crate) fn room(&mut self) -> Room {
        let Some(spare) = self.spare.pop() else {
            return Room::default();
        };
        self.entries = spare.entries;
        spare.room
    }

    /// Copies arrived. `again` gets those of held messages that must be acked at once, by their newer ids.
    pub(crate) fn receive(
        &mut self,
        response: Response,
        terms: &Terms,
        now: Moment,
        again: &mut Vec<Claim>,
    ) {
        let Response {
            contents,
            ids,
            ack_ids,
            ..
        } = response;
        if ids.is_empty() {
            return;
        }
        let lease = Lease::new(terms, now, self.exactly_once);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            u32::try_from(self.blocks.len() - 1).expect("flow control keeps it far below")
        });
        let number = self.next_number;
        self.next_number += 1;
        let entries = std::mem::take(&mut self.entries);
        let mut block = Block::new(number, contents.clone(), ids, ack_ids, entries, lease);
        let (mut bytes, mut redelivered) = (0, Vec::new());
        let (mut emitted, mut emitted_bytes) = (Vec::new(), 0);
        for (at, (id, layout)) in block.ids.iter().zip(&contents.messages).enumerate() {
            let place = Place {
                block: slot,
                at: at as u32,
            };
            let held = self.ids.hold(id, place);
            redelivered.extend(held.map(|held| (held, at)));
            let size = layout.message.len();
            bytes += if held.is_none() { u64::from(size) } else { 0 };
            let state = match held {
                Some(_) => State::Gone,
                None if self.given_up.take(id) => {
                    emitted.push(at);
                    emitted_bytes += u64::from(size);
                    State::Acking
                }
                None => State::Buffered,
            };
            block.entries.push(Entry {
                state,
                confirmed: !self.exactly_once,
                awaited: false,
                copy: 0,
                bytes: size,
            });
        }
        let new = (block.entries.len() - redelivered.len()) as u64;
        let buffered = new - emitted.len() as u64;
        (block.live, block.buffered) = (new as u32, buffered as u32);
        if buffered == 0 {
            block.contents = None;
        }
        self.buffer.push_back(Run {
            block: slot,
            number,
            from: 0,
            to: block.entries.len() as u32,
        });
        self.tally.received += block.entries.len() as u64;
        self.held += new;
        self.held_bytes += bytes;
        self.buffered += buffered;
        self.buffered_bytes += bytes - emitted_bytes;
        self.blocks[slot as usize] = Some(block);
        for at in emitted {
            let run = Run {
                block: slot,
                number,
                from: at as u32,
                to: at as u32 + 1,
            };
            let claim = Claim {
                run,
                copy: 0,
                since: now,
            };
            add_claim(again, claim);
        }
        for (held, at) in redelivered {
            self.redelivered(held, slot, at, lease, now, again);
        }
        self.free_if_over(slot);
    }

    /// Message `at` of block `slot` is a further copy of one that is held.
    fn redelivered(
        &mut self,
        held: Place,
        slot: u32,
        at: usize,
        lease: Lease,
        now: Moment,
        again: &mut Vec<Claim>,
    ) {
        let newer: Option<Box<[u8]>> = self.blocks[slot as usize]
            .as_ref()
            .map(|block| block.ack_id(at).into());
        self.tally.lost += 1;
        let (Some(ack_id), Some(block)) = (newer, &mut self.blocks[held.block as usize]) else {
            return;
        };
        let at = held.at as usize;
        block.replace_ack_id(at, ack_id);
        *block.lease_mut(at) = lease;
        let entry = &mut block.entries[at];
        entry.copy += 1;
        if entry.state == State::Acking {
            let run = Run {
                block: held.block,
                number: block.number,
                from: held.at,
                to: held.at + 1,
            };
            let claim = Claim {
                run,
                copy: entry.copy,
                since: now,
            };
            add_claim(again, claim);
        }
    }

    /// Hands over up to `most` messages, in order of arrival.
    pub(crate) fn take(&mut self, most: usize, out: &mut Vec<Part>) {
        let mut left = most;
        while left > 0 && self.has_next() {
            let run = self.buffer.front_mut().expect("`has_next` looked at it");
            let block = block_mut(&mut self.blocks, run).expect("`has_next` looked at it");
            let taken = block.entries[run.range()]
                .iter_mut()
                .take(left)
                .take_while(|entry| entry.state == State::Buffered && entry.confirmed)
                .map(|entry| entry.state = State::Handed)
                .count();
            left -= taken;
            block.buffered -= taken as u32;
            let contents = match block.buffered {
                0 => block.contents.take(),
                _ => block.contents.clone(),
            };
            let front = run.split_front(taken);
            if run.len() == 0 {
                self.buffer.pop_front();
            }
            out.push(Part {
                run: front,
                contents: contents.expect("they are kept while something waits"),
            });
        }
    }

    /// Takes back what the owner did not hand on, in front of everything else. What has lost its lease meanwhile leaves, and
    /// under per-key order the later ones of its key with it, to be returned by `returns`: it comes again before them.
    pub(crate) fn untake(&mut self, parts: Vec<Part>, returns: &mut Vec<Claim>) {
        let mut lost: Vec<(Run, u64)> = Vec::new();
        for Part { run, contents } in parts.into_iter().rev() {
            let Some(block) = block_mut(&mut self.blocks, &run) else {
                continue;
            };
            for at in run.range() {
                if block.entries[at].state == State::Handed {
                    block.entries[at].state = State::Buffered;
                    block.buffered += 1;
                    if block.lease(at).is_lost() {
                        lost.push((run.only(at), contents.key(at)));
                    }
                }
            }
            block.contents = (block.buffered > 0).then_some(contents);
            self.buffer.push_front(run);
        }
        self.end_lost_in_order(lost, returns);
    }

    /// Ends messages that wait for the owner without a lease, in order of arrival, so that the first of a key takes the
    /// later ones along. How many ended, and how many later ones are returned.
    fn end_lost_in_order(
        &mut self,
        mut lost: Vec<(Run, u64)>,
        returns: &mut Vec<Claim>,
    ) -> (u64, u64) {
        let (mut ended, mut followers) = (0, 0);
        lost.sort_by_key(|(run, _)| (run.number, run.from));
        for (run, key) in lost {
            // An earlier one of its key may have returned it meanwhile.
            if !self.end_lost(&run) {
                continue;
            }
            ended += 1;
            if self.per_key && key != 0 {
                followers += self.nack_key(key, Some(run), returns);
            }
        }
        (ended, followers)
    }

    /// All records of these went downstream, or there were none.
    pub(crate) fn emitted(&mut self, runs: impl IntoIterator<Item = Run>) {
        for run in runs {
            let Some(block) = block_mut(&mut self.blocks, &run) else {
                continue;
            };
            let (mut messages, mut bytes) = (0, 0);
            for entry in &mut block.entries[run.range()] {
                if entry.state == State::Handed {
                    entry.state = State::Staged;
                    messages += 1;
                    bytes += u64::from(entry.bytes);
                }
            }
            self.buffered -= messages;
            self.buffered_bytes -= bytes;
            if messages > 0 {
                add_run(&mut self.staged, run);
            }
        }
    }

    /// What a snapshot covers: everything staged since the last one.
    pub(crate) fn bind(&mut self) -> Vec<Run> {
        let staged = std::mem::take(&mut self.staged);
        for run in &staged {
            if let Some(block) = block_mut(&mut self.blocks, run) {
                for entry in &mut block.entries[run.range()] {
                    if entry.state == State::Staged {
                        entry.state = State::Bound;
                    }
                }
            }
        }
        staged
    }

    /// The checkpoint that covers `run` is complete: its messages are to be acked. Returns how many.
    pub(crate) fn complete(
        &mut self,
        run: Run,
        now: Moment,
        awaited: bool,
        out: &mut Vec<Claim>,
    ) -> u64 {
        let Some(block) = block_mut(&mut self.blocks, &run) else {
            return 0;
        };
        let mut messages = 0;
        for (at, entry) in run.range().zip(&mut block.entries[run.range()]) {
            if entry.state == State::Bound {
                entry.state = State::Acking;
                entry.awaited = awaited;
                messages += 1;
                let claim = Claim {
                    run: run.only(at),
                    copy: entry.copy,
                    since: now,
                };
                add_claim(out, claim);
            }
        }
        messages
    }

    /// Messages that gave nothing are acked at once.
    pub(crate) fn drop_now(&mut self, run: Run, now: Moment, out: &mut Vec<Claim>) {
        let Some(block) = block_mut(&mut self.blocks, &run) else {
            return;
        };
        for at in run.range() {
            let entry = &mut block.entries[at];
            if entry.state == State::Handed {
                entry.state = State::Acking;
                self.buffered -= 1;
                self.buffered_bytes -= u64::from(entry.bytes);
                let claim = Claim {
                    run: run.only(at),
                    copy: entry.copy,
                    since: now,
                };
                add_claim(out, claim);
            }
        }
    }

    /// To be returned, whatever their states were, unless their acknowledgement is on its way.
    pub(crate) fn nack(&mut self, run: Run, out: &mut Vec<Claim>) -> u64 {
        self.nack_if(run, out, |_, _| true)
    }

    fn nack_if(
        &mut self,
        run: Run,
        out: &mut Vec<Claim>,
        also: impl Fn(&Block, usize) -> bool,
    ) -> u64 {
        let Some(block) = block_mut(&mut self.blocks, &run) else {
            return 0;
        };
        let mut messages = 0;
        for at in run.range() {
            let was = block.entries[at].state;
            let settled = matches!(
                was,
                State::Acking | State::Nacking | State::Nacked | State::Gone
            );
            if settled || !also(block, at) {
                continue;
            }
            let expires = block.lease(at).expires();
            let entry = &mut block.entries[at];
            entry.state = State::Nacking;
            self.ids.forget(&block.ids[at]);
            if matches!(was, State::Buffered | State::Handed) {
                self.buffered -= 1;
                self.buffered_bytes -= u64::from(entry.bytes);
            }
            if was == State::Buffered {
                block.buffered -= 1;
            }
            messages += 1;
            let claim = Claim {
                run: run.only(at),
                copy: entry.copy,
                since: expires,
            };
            add_claim(out, claim);
        }
        if block.buffered == 0 {
            block.contents = None;
        }
        messages
    }

    /// Returns the buffered messages of `key`, or those of them that came after `after`.
    pub(crate) fn nack_key(&mut self, key: u64, after: Option<Run>, out: &mut Vec<Claim>) -> u64 {
        let after = after.map(|run| (run.number, run.from as usize));
        let runs: Vec<Run> = self.buffer.iter().copied().collect();
        let mut messages = 0;
        for run in runs {
            messages += self.nack_if(run, out, |block, at| {
                let contents = block.contents.as_ref();
                block.entries[at].state == State::Buffered
                    && contents.is_some_and(|contents| contents.key(at) == key)
                    && after.is_none_or(|after| (block.number, at) > after)
            });
        }
        messages
    }

    /// Returns everything that only waits for the owner.
    pub(crate) fn nack_buffered(&mut self, out: &mut Vec<Claim>) -> u64 {
        let mut messages = 0;
        while let Some(run) = self.buffer.pop_front() {
            messages += self.nack_if(run, out, |block, at| {
                block.entries[at].state == State::Buffered
            });
        }
        messages
    }

    /// Returns everything that no completed checkpoint covers.
    pub(crate) fn nack_uncovered(&mut self, out: &mut Vec<Claim>) {
        self.nack_buffered(out);
        for run in self.runs() {
            self.nack(run, out);
        }
        self.staged.clear();
    }

    /// Every block.
    fn runs(&self) -> Vec<Run> {
        let blocks = self.blocks.iter().enumerate();
        let runs = blocks.filter_map(|(slot, block)| {
            let block = block.as_ref()?;
            Some(Run {
                block: slot as u32,
                number: block.number,
                from: 0,
                to: block.entries.len() as u32,
            })
        });
        runs.collect()
    }

    /// The ack id to settle a claim on one message by, while it is the newest.
    pub(crate) fn ack_id(&self, claim: &Claim) -> Option<&[u8]> {
        let block = block(&self.blocks, &claim.run)?;
        let at = claim.run.from as usize;
        is_current(&block.entries[at], claim).then(|| block.ack_id(at))
    }

    /// What the ack ids of a claim take in a request, about.
    pub(crate) fn ack_bytes(&self, claim: &Claim) -> usize {
        block(&self.blocks, &claim.run).map_or(0, |block| {
            block.ack_bytes(claim.run.from as usize, claim.run.to as usize)
        })
    }

    /// Moves ids from the front of `claim` to `request`, as many as fit, and what they are claims on to `out`. Claims on
    /// copies that were replaced are void and left out: the newer copies have their own. `false` if something is left.
    pub(crate) fn fill(
        &self,
        claim: &mut Claim,
        request: &mut Request,
        out: &mut Vec<Claim>,
    ) -> bool {
        let Some(block) = block(&self.blocks, &claim.run) else {
            return true;
        };
        while claim.run.len() > 0 {
            let entries = &block.entries[claim.run.range()];
            let current = entries
                .iter()
                .take_while(|entry| is_current(entry, claim))
                .count();
            if current == 0 {
                claim.run.split_front(1);
                continue;
            }
            let from = claim.run.from as usize;
            let fit = block.fill(from, from + current, claim.copy, request);
            let run = claim.run.split_front(fit);
            if fit > 0 {
                out.push(Claim { run, ..*claim });
            }
            if fit < current {
                return false;
            }
        }
        true
    }

    /// A request with these returns left.
    pub(crate) fn nack_sent(&mut self, claim: &Claim) {
        let Some(block) = block_mut(&mut self.blocks, &claim.run) else {
            return;
        };
        for entry in &mut block.entries[claim.run.range()] {
            if entry.state == State::Nacking {
                entry.state = State::Nacked;
                self.returned_unanswered += 1;
                self.tally.nacked += 1;
            }
        }
    }

    /// The returns were answered or given up.
    pub(crate) fn nack_ended(&mut self, claim: &Claim) {
        let Some(block) = block_mut(&mut self.blocks, &claim.run) else {
            return;
        };
        for entry in &mut block.entries[claim.run.range()] {
            match entry.state {
                State::Nacked => self.returned_unanswered -= 1,
                State::Nacking => self.tally.lost += 1,
                _ => continue,
            }
            entry.state = State::Gone;
            self.held -= 1;
            self.held_bytes -= u64::from(entry.bytes);
            block.live -= 1;
        }
        self.free_if_over(claim.run.block);
    }

    /// The acknowledgements were answered.
    pub(crate) fn acked(&mut self, claim: &Claim) -> Settled {
        self.end_acks(claim, true)
    }

    /// The acknowledgements were given up.
    pub(crate) fn ack_failed(&mut self, claim: &Claim) -> Settled {
        self.end_acks(claim, false)
    }

    fn end_acks(&mut self, claim: &Claim, acked: bool) -> Settled {
        let mut settled = Settled::default();
        let Some(block) = block_mut(&mut self.blocks, &claim.run) else {
            return settled;
        };
        let mut bytes = 0;
        for at in claim.run.range() {
            let entry = &mut block.entries[at];
            if entry.state != State::Acking || entry.copy != claim.copy {
                continue;
            }
            if entry.awaited {
                settled.awaited += 1;
            } else {
                settled.quiet += 1;
            }
            entry.state = State::Gone;
            bytes += u64::from(entry.bytes);
            self.ids.forget(&block.ids[at]);
            if !acked && self.exactly_once {
                self.given_up.note(&block.ids[at]);
            }
        }
        let messages = settled.quiet + settled.awaited;
        if acked {
            self.tally.acked += messages;
        } else {
            self.tally.failed += messages;
            self.tally.lost += messages;
        }
        block.live -= messages as u32;
        self.held -= messages;
        self.held_bytes -= bytes;
        self.free_if_over(claim.run.block);
        settled
    }

    /// The extensions due now, with their lengths in seconds.
    pub(crate) fn due(&mut self, terms: &Terms, now: Moment, out: &mut Vec<(u32, Claim)>) {
        for (slot, block) in self.blocks.iter_mut().enumerate() {
            let Some(block) = block else { continue };
            let none = |lease: &Lease| lease.extension(terms, now).is_none();
            if block.shared_lease().is_some_and(none) {
                continue;
            }
            for at in 0..block.entries.len() {
                let entry = block.entries[at];
                if matches!(entry.state, State::Nacking | State::Nacked | State::Gone) {
                    continue;
                }
                let Some(seconds) = block.lease(at).extension(terms, now) else {
                    continue;
                };
                block.lease_mut(at).asked();
                let run = Run {
                    block: slot as u32,
                    number: block.number,
                    from: at as u32,
                    to: at as u32 + 1,
                };
                let claim = Claim {
                    run,
                    copy: entry.copy,
                    since: now,
                };
                let joined = out
                    .last_mut()
                    .is_some_and(|(length, last)| *length == seconds && last.join(&claim));
                if !joined {
                    out.push((seconds, claim));
                }
            }
        }
    }

    /// Extensions were granted; the claim's `since` is when they were asked for.
    pub(crate) fn extended(
        &mut self,
        claim: &Claim,
        terms: &Terms,
        seconds: u32,
        random: &mut fastrand::Rng,
    ) {
        self.each_current(claim, |block, at| {
            let lease = block.lease_mut(at);
            lease.extended(terms, claim.since, seconds, random);
            block.entries[at].confirmed = true;
        });
    }

    /// Extensions failed; the next are due at `again`.
    pub(crate) fn not_extended(&mut self, claim: &Claim, again: Moment) {
        self.each_current(claim, |block, at| block.lease_mut(at).refused(again));
    }

    fn each_current(&mut self, claim: &Claim, mut then: impl FnMut(&mut Block, usize)) {
        let Some(block) = block_mut(&mut self.blocks, &claim.run) else {
            return;
        };
        for at in claim.run.range() {
            if is_current(&block.entries[at], claim) {
                then(block, at);
            }
        }
    }

    /// An exactly-once copy turned out to be stale: unconfirmed, it leaves; otherwise it waits for its redelivery.
    pub(crate) fn stale(&mut self, claim: &Claim) {
        let mut leave = Vec::new();
        self.each_current(claim, |block, at| {
            block.lease_mut(at).refused(Moment::NEVER);
            if block.entries[at].state == State::Buffered {
                leave.push(at);
            }
        });
        for at in leave {
            self.end_lost(&claim.run.only(at));
        }
    }

    /// Looks for leases that expired unextended.
    pub(crate) fn lapse(&mut self, now: Moment, returns: &mut Vec<Claim>) -> Lapsed {
        let mut lapsed = Lapsed::default();
        let mut gone: Vec<(Run, u64)> = Vec::new();
        for (slot, block) in self.blocks.iter_mut().enumerate() {
            let Some(block) = block else { continue };
            if block.shared_lease().is_some_and(|lease| !lease.lapses(now)) {
                continue;
            }
            for at in 0..block.entries.len() {
                if !block.lease(at).lapses(now) {
                    continue;
                }
                match block.entries[at].state {
                    State::Buffered => {
                        let run = Run {
                            block: slot as u32,
                            number: block.number,
                            from: at as u32,
                            to: at as u32 + 1,
                        };
                        let contents = block.contents.as_ref();
                        let key = contents.map_or(0, |contents| contents.key(at));
                        gone.push((run, key));
                    }
                    State::Nacking | State::Nacked | State::Gone => {}
                    State::Handed | State::Staged | State::Bound | State::Acking => {
                        block.lease_mut(at).lose();
                        lapsed.kept += 1;
                    }
                }
            }
        }
        (lapsed.buffered, lapsed.followers) = self.end_lost_in_order(gone, returns);
        lapsed
    }

    /// Everything left is lost: close has run out of time.
    pub(crate) fn abandon(&mut self) -> u64 {
        let pending = self.pending();
        self.tally.lost += pending;
        let tally = self.tally;
        *self = Self {
            tally,
            next_number: self.next_number,
            per_key: self.per_key,
            exactly_once: self.exactly_once,
            ..Self::default()
        };
        pending
    }

    /// A message that waits for the owner is lost. Whether it did wait.
    fn end_lost(&mut self, one: &Run) -> bool {
        let Some(block) = block_mut(&mut self.blocks, one) else {
            return false;
        };
        let at = one.from as usize;
        let entry = &mut block.entries[at];
        if entry.state != State::Buffered {
            return false;
        }
        entry.state = State::Gone;
        let bytes = u64::from(entry.bytes);
        self.ids.forget(&block.ids[at]);
        block.live -= 1;
        block.buffered -= 1;
        if block.buffered == 0 {
            block.contents = None;
        }
        self.buffered -= 1;
        self.buffered_bytes -= bytes;
        self.held -= 1;
        self.held_bytes -= bytes;
        self.tally.lost += 1;
        self.free_if_over(one.block);
        true
    }

    fn free_if_over(&mut self, slot: u32) {
        let block = &mut self.blocks[slot as usize];
        if let Some(block) = block.take_if(|block| block.live == 0) {
            self.free.push(slot);
            if self.spare.len() < SPARES {
                self.spare.extend(block.into_spare());
            }
        }
    }
}

fn block<'a>(blocks: &'a [Option<Block>], run: &Run) -> Option<&'a Block> {
    let block = blocks.get(run.block as usize)?.as_ref()?;
    (block.number == run.number).then_some(block)
}

fn block_mut<'a>(blocks: &'a mut [Option<Block>], run: &Run) -> Option<&'a mut Block> {
    let block = blocks.get_mut(run.block as usize)?.as_mut()?;
    (block.number == run.number).then_some(block)
}

fn is_current(entry: &Entry, claim: &Claim) -> bool {
    entry.state != State::Gone && entry.copy == claim.copy
}

#[cfg(test)]
mod tests;
