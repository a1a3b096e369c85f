//! The messages of one response, held together: what happens to neighbours happens in one stroke.
//!
//! # Invariants
//!
//! - Positions never move: message `at` of the response is entry `at` of the block until the whole block goes.
//! - The response's bytes go when nothing of it waits for the owner; ack ids stay until the block goes.
//! - Leases are one until they differ: most messages are settled before their first extension.

use std::sync::Arc;

use crate::client::ack::{AckIds, Request};
use crate::client::pull::decode::{Contents, MessageId, Room};

use super::super::lease::Lease;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
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
    /// It has ended.
    Gone,
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) state: State,
    /// Handed over only when set: an exactly-once copy whose lease is not confirmed may be stale.
    pub(super) confirmed: bool,
    /// Somebody waits for its acknowledgement.
    pub(super) awaited: bool,
    /// How often its ack id was replaced.
    pub(super) copy: u32,
    pub(super) bytes: u32,
}

/// The messages of one response.
#[derive(Debug)]
pub(super) struct Block {
    /// Unique in the account: the slot is used again.
    pub(super) number: u64,
    pub(super) contents: Option<Arc<Contents>>,
    pub(super) ids: Vec<MessageId>,
    pub(super) entries: Vec<Entry>,
    /// Entries that are not gone.
    pub(super) live: u32,
    /// Entries that wait for the owner.
    pub(super) buffered: u32,
    ack_ids: AckIds,
    /// Ack ids of copies that came later, sorted by position.
    newer: Vec<(u32, Box<[u8]>)>,
    leases: Leases,
}

/// The memory of a block that is over.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) room: Room,
    pub(super) entries: Vec<Entry>,
}

/// Bytes of a spare at most: four times what a hundred messages take.
const MOST_SPARE: usize = 96 << 10;

#[derive(Debug)]
enum Leases {
    Same(Lease),
    Each(Vec<Lease>),
}

impl Block {
    pub(super) fn new(
        number: u64,
        contents: Arc<Contents>,
        ids: Vec<MessageId>,
        ack_ids: AckIds,
        mut entries: Vec<Entry>,
        lease: Lease,
    ) -> Self {
        entries.clear();
        entries.reserve(ids.len());
        Self {
            number,
            contents: Some(contents),
            entries,
            ids,
            live: 0,
            buffered: 0,
            ack_ids,
            newer: Vec::new(),
            leases: Leases::Same(lease),
        }
    }

    /// The memory of a block that is over, if it is little enough to keep.
    pub(super) fn into_spare(self) -> Option<Spare> {
        let (mut ids, mut ack_ids) = (self.ids, self.ack_ids);
        let entries = self.entries;
        let bytes = ids.capacity() * size_of::<MessageId>()
            + entries.capacity() * size_of::<Entry>()
            + ack_ids.footprint();
        if bytes > MOST_SPARE {
            return None;
        }
        ids.clear();
        ack_ids.clear();
        Some(Spare {
            room: Room { ids, ack_ids },
            entries,
        })
    }

    pub(super) fn lease(&self, at: usize) -> &Lease {
        match &self.leases {
            Leases::Same(lease) => lease,
            Leases::Each(leases) => &leases[at],
        }
    }

    pub(super) fn lease_mut(&mut self, at: usize) -> &mut Lease {
        if let Leases::Same(lease) = &self.leases {
            self.leases = Leases::Each(vec![*lease; self.entries.len()]);
        }
        match &mut self.leases {
            Leases::Each(leases) => &mut leases[at],
            Leases::Same(_) => unreachable!("they were just told apart"),
        }
    }

    /// The one lease of all, as long as there is one.
    pub(super) fn shared_lease(&self) -> Option<&Lease> {
        match &self.leases {
            Leases::Same(lease) => Some(lease),
            Leases::Each(_) => None,
        }
    }

    /// The id to settle a message by.
    pub(super) fn ack_id(&self, at: usize) -> &[u8] {
        match self.find_newer(at) {
            Ok(newer) => &self.newer[newer].1,
            Err(_) => self.ack_ids.get(at),
        }
    }

    pub(super) fn replace_ack_id(&mut self, at: usize, ack_id: Box<[u8]>) {
        match self.find_newer(at) {
            Ok(newer) => self.newer[newer].1 = ack_id,
            Err(newer) => self.newer.insert(newer, (at as u32, ack_id)),
        }
    }

    fn find_newer(&self, at: usize) -> Result<usize, usize> {
        self.newer
            .binary_search_by_key(&(at as u32), |(newer, _)| *newer)
    }

    /// What ack ids take in a request, about.
    pub(super) fn ack_bytes(&self, from: usize, to: usize) -> usize {
        self.ack_ids.bytes(from, to)
    }

    /// Adds the ids `from..to`, all of copy `copy`, as far as they fit; returns how many.
    pub(super) fn fill(&self, from: usize, to: usize, copy: u32, request: &mut Request) -> usize {
        if copy == 0 {
            return request.push_all(&self.ack_ids, from, to);
        }
        (from..to)
            .take_while(|at| request.push(self.ack_id(*at)))
            .count()
    }
}
