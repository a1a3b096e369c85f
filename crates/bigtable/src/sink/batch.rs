//! Batches: the request that a table's entries grow into.
//!
//! A batch is one buffer that starts with the gRPC prefix and the request's head and is sent as the HTTP body as it is.
//! Sealed, it is kept with the place of each entry until all verdicts are in, so a partial retry copies slices and
//! encodes nothing.
//!
//! # Invariants
//!
//! - No batch passes 100,000 mutations, and only a single entry passes the byte threshold (BT-SINK-04).
//! - Under per-row order no row is twice in a batch: later entries are merged into the first.

use aqueduct_connector::StatusChain;
use bytes::{BufMut, Bytes, BytesMut};

use super::tables::TableId;
use crate::entry::{
    MAX_MUTATIONS, bytes_field_len, message_len, put_bytes, put_tag_len, varint_len,
};

/// A gRPC message's prefix: not compressed, four bytes of length.
const PREFIX: usize = 5;
/// Field of the entries in `MutateRowsRequest`.
const ENTRIES: u32 = 2;

/// When a batch leaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) entries: usize,
    pub(super) bytes: usize,
}

/// One record's share of an entry that several were merged into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Bytes of its encoded mutations.
    pub(super) bytes: usize,
    pub(super) mutations: usize,
    /// Its size as an entry of its own.
    pub(super) size: usize,
}

/// What an entry counts for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// Records it carries.
    pub(super) records: usize,
    pub(super) mutations: usize,
    /// Sum of the encoded lengths of the records' entries, as the bounds count them.
    pub(super) size: usize,
    /// Hash of table and row key; zero without per-row order.
    pub(super) row: u64,
    /// The records' shares, if there are several.
    pub(super) parts: Option<Box<[Part]>>,
}

impl Load {
    /// The load of one record.
    pub(super) fn of(mutations: usize, size: usize, row: u64) -> Self {
        Self {
            records: 1,
            mutations,
            size,
            row,
            parts: None,
        }
    }
}

/// An entry's place in a sealed request.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    /// Where its field starts in the request, tag and length included.
    start: usize,
    len: usize,
    pub(super) load: Load,
}

impl Slot {
    /// Bytes of tag and length before the entry itself.
    fn frame(&self) -> usize {
        // The length of what follows determines how many bytes its varint took.
        let mut inner = self.len - 2;
        while message_len(inner) > self.len {
            inner -= 1;
        }
        self.len - inner
    }
}

/// The start of every request to one table: prefix, table name, application profile.
pub(super) fn head(table: &str, app_profile: Option<&str>) -> Bytes {
    let mut head = BytesMut::new();
    head.put_bytes(0, PREFIX);
    put_bytes(&mut head, 1, table.as_bytes());
    put_bytes(&mut head, 3, app_profile.unwrap_or_default().as_bytes());
    head.freeze()
}

/// A batch that still grows.
#[derive(Debug)]
pub(super) struct OpenBatch {
    /// Tells this batch from every other of the writer that is still under way.
    pub(super) number: u32,
    body: BytesMut,
    slots: Vec<Slot>,
    records: usize,
    mutations: usize,
    size: usize,
    /// Mutations merged into an earlier entry: which, and where they are in `extra`.
    merged: Vec<(usize, Part)>,
    extra: Vec<u8>,
}

/// Buffers of an answered request, for the next batch.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    pub(super) body: BytesMut,
    pub(super) slots: Vec<Slot>,
}

impl OpenBatch {
    pub(super) fn new(number: u32, head: &[u8], buffers: Buffers) -> Self {
        let Buffers {
            mut body,
            mut slots,
        } = buffers;
        body.clear();
        body.extend_from_slice(head);
        slots.clear();
        Self {
            number,
            body,
            slots,
            records: 0,
            mutations: 0,
            size: 0,
            merged: Vec::new(),
            extra: Vec::new(),
        }
    }

    pub(super) fn records(&self) -> usize {
        self.records
    }

    /// Entries so far; merged records are in the entry of their row.
    pub(super) fn entries(&self) -> usize {
        self.slots.len()
    }

    /// Whether an entry like this must find another batch.
    pub(super) fn would_overflow(&self, limits: Limits, mutations: usize, size: usize) -> bool {
        self.records > 0
            && (self.mutations + mutations > MAX_MUTATIONS || self.size + size > limits.bytes)
    }

    /// Whether it shall leave now.
    pub(super) fn is_full(&self, limits: Limits) -> bool {
        self.records >= limits.entries
            || self.size >= limits.bytes
            || self.mutations >= MAX_MUTATIONS
    }

    /// Appends an entry; returns its position.
    pub(super) fn push(&mut self, key: &[u8], mutations: &[u8], load: Load) -> usize {
        let start = self.body.len();
        let inner = bytes_field_len(key.len()) + mutations.len();
        self.body.reserve(message_len(inner));
        put_tag_len(&mut self.body, ENTRIES, inner);
        put_bytes(&mut self.body, 1, key);
        self.body.extend_from_slice(mutations);
        self.count(&load);
        self.slots.push(Slot {
            start,
            len: self.body.len() - start,
            load,
        });
        self.slots.len() - 1
    }

    /// Appends an entry that was encoded before.
    pub(super) fn push_encoded(&mut self, entry: &[u8], load: Load) -> usize {
        let start = self.body.len();
        self.body.reserve(message_len(entry.len()));
        put_tag_len(&mut self.body, ENTRIES, entry.len());
        self.body.extend_from_slice(entry);
        self.count(&load);
        self.slots.push(Slot {
            start,
            len: self.body.len() - start,
            load,
        });
        self.slots.len() - 1
    }

    /// Whether the entry at `position` has the row key `key`.
    pub(super) fn has_key(&self, position: usize, key: &[u8]) -> bool {
        let slot = &self.slots[position];
        let entry = &self.body[slot.start + slot.frame()..slot.start + slot.len];
        key_of(entry).0 == key
    }

    /// Adds a later record of the same row to the entry at `position`; its mutations follow those already there.
    pub(super) fn merge(&mut self, position: usize, mutations: &[u8], part: Part) {
        let slot = &mut self.slots[position];
        add_part(&mut slot.load, part, slot.len);
        self.records += 1;
        self.mutations += part.mutations;
        self.size += part.size;
        self.merged.push((position, part));
        self.extra.extend_from_slice(mutations);
    }

    /// Ends its growth: the request as it travels, and where its entries are.
    pub(super) fn seal(mut self) -> Sealed {
        if !self.merged.is_empty() {
            self.weave();
        }
        write_prefix(&mut self.body);
        Sealed {
            body: self.body.freeze(),
            slots: self.slots,
        }
    }

    fn count(&mut self, load: &Load) {
        self.records += load.records;
        self.mutations += load.mutations;
        self.size += load.size;
    }

    /// Rewrites the request with each merged record's mutations at the end of its entry. Paid by batches that merged.
    fn weave(&mut self) {
        let mut added = vec![0; self.slots.len()];
        let mut offset = 0;
        let mut pieces: Vec<_> = self
            .merged
            .iter()
            .map(|(position, part)| {
                let range = offset..offset + part.bytes;
                offset = range.end;
                added[*position] += part.bytes;
                (*position, range)
            })
            .collect();
        // Stable: pieces of one entry stay in the order written.
        pieces.sort_by_key(|(position, _)| *position);
        let head = self.slots[0].start;
        let mut body =
            BytesMut::with_capacity(self.body.len() + self.extra.len() + 5 * pieces.len());
        body.extend_from_slice(&self.body[..head]);
        let mut pieces = pieces.into_iter().peekable();
        for (position, slot) in self.slots.iter_mut().enumerate() {
            let start = body.len();
            let old = &self.body[slot.start..slot.start + slot.len];
            if added[position] == 0 {
                body.extend_from_slice(old);
            } else {
                let inner = &old[slot.frame()..];
                put_tag_len(&mut body, ENTRIES, inner.len() + added[position]);
                body.extend_from_slice(inner);
                while let Some((_, range)) = pieces.next_if(|(at, _)| *at == position) {
                    body.extend_from_slice(&self.extra[range]);
                }
            }
            slot.start = start;
            slot.len = body.len() - start;
        }
        self.body = body;
    }
}

/// Counts a later record's `part` into `load`, whose entry has taken `len` bytes so far.
fn add_part(load: &mut Load, part: Part, len: usize) {
    // Until the second record comes, the whole entry is the first one's part; its own bytes are found when it is split.
    let mut parts = match load.parts.take() {
        Some(parts) => parts.into_vec(),
        None => vec![Part {
            bytes: len,
            mutations: load.mutations,
            size: load.size,
        }],
    };
    parts.push(part);
    load.parts = Some(parts.into());
    load.records += 1;
    load.mutations += part.mutations;
    load.size += part.size;
}

/// The length of the message behind the prefix.
fn write_prefix(body: &mut BytesMut) {
    // Batches stay far below 4 GiB: at most the byte threshold or one entry of 200 MiB.
    let len = u32::try_from(body.len() - PREFIX).expect("a request is below 4 GiB");
    body[1..PREFIX].copy_from_slice(&len.to_be_bytes());
}

/// A request that grows no more.
#[derive(Debug)]
pub(super) struct Sealed {
    /// As it travels.
    pub(super) body: Bytes,
    pub(super) slots: Vec<Slot>,
}

impl Sealed {
    /// The request with only the entries at `positions`, bytes unchanged.
    pub(super) fn subset(&self, head: &[u8], positions: &[u32]) -> Bytes {
        let slots = positions
            .iter()
            .map(|position| &self.slots[*position as usize]);
        let len = slots.clone().map(|slot| slot.len).sum::<usize>();
        let mut body = BytesMut::with_capacity(head.len() + len);
        body.extend_from_slice(head);
        for slot in slots {
            body.extend_from_slice(&self.body[slot.start..slot.start + slot.len]);
        }
        write_prefix(&mut body);
        body.freeze()
    }

    /// The entry at `position` as something to hold back.
    pub(super) fn unit(&self, table: TableId, position: usize, chain: StatusChain) -> Unit {
        let slot = &self.slots[position];
        Unit {
            table,
            entry: self
                .body
                .slice(slot.start + slot.frame()..slot.start + slot.len),
            load: slot.load.clone(),
            chain,
        }
    }

    /// Gives the buffers back if nothing else holds the request any more and they are worth keeping.
    pub(super) fn recycle(self) -> Option<Buffers> {
        /// A giant request must not pin its buffer.
        const KEPT_BYTES: usize = 1 << 20;
        let body = self.body.try_into_mut().ok()?;
        (body.capacity() <= KEPT_BYTES).then_some(Buffers {
            body,
            slots: self.slots,
        })
    }
}

/// An entry held back until a pass decides it.
#[derive(Clone)]
pub(super) struct Unit {
    pub(super) table: TableId,
    /// The encoded entry.
    pub(super) entry: Bytes,
    pub(super) load: Load,
    /// The status it was held back for.
    pub(super) chain: StatusChain,
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Unit({} records, {} bytes)",
            self.load.records,
            self.entry.len()
        )
    }
}

impl Unit {
    /// One unit a record, in the order written.
    pub(super) fn split(self) -> Vec<Self> {
        let Some(parts) = &self.load.parts else {
            return vec![self];
        };
        let (key, key_field) = key_of(&self.entry);
        // The first part's own length is what the others leave.
        let later: usize = parts[1..].iter().map(|part| part.bytes).sum();
        let mut from = key_field;
        parts
            .iter()
            .enumerate()
            .map(|(at, part)| {
                let len = if at == 0 {
                    self.entry.len() - key_field - later
                } else {
                    part.bytes
                };
                let mut entry = BytesMut::with_capacity(key_field + len);
                put_bytes(&mut entry, 1, key);
                entry.extend_from_slice(&self.entry[from..from + len]);
                from += len;
                Self {
                    table: self.table,
                    entry: entry.freeze(),
                    load: Load::of(part.mutations, part.size, self.load.row),
                    chain: self.chain.clone(),
                }
            })
            .collect()
    }

    /// Joins a later unit of the same row to this one.
    pub(super) fn join(self, later: &Self) -> Self {
        let (_, later_key) = key_of(&later.entry);
        let (_, key_field) = key_of(&self.entry);
        let mutations = &later.entry[later_key..];
        let mut parts = parts_of(&self.load, self.entry.len() - key_field);
        parts.extend(parts_of(&later.load, mutations.len()));
        let mut entry = BytesMut::with_capacity(self.entry.len() + mutations.len());
        entry.extend_from_slice(&self.entry);
        entry.extend_from_slice(mutations);
        Self {
            entry: entry.freeze(),
            load: Load {
                records: self.load.records + later.load.records,
                mutations: self.load.mutations + later.load.mutations,
                size: self.load.size + later.load.size,
                row: self.load.row,
                parts: Some(parts.into()),
            },
            ..self
        }
    }

    /// The row key.
    pub(super) fn key(&self) -> Bytes {
        let key = key_of(&self.entry).0;
        if key.is_empty() {
            Bytes::new()
        } else {
            self.entry.slice_ref(key)
        }
    }
}

fn parts_of(load: &Load, bytes: usize) -> Vec<Part> {
    match &load.parts {
        None => vec![Part {
            bytes,
            mutations: load.mutations,
            size: load.size,
        }],
        Some(parts) => {
            let mut parts = parts.to_vec();
            let later: usize = parts[1..].iter().map(|part| part.bytes).sum();
            parts[0].bytes = bytes - later;
            parts
        }
    }
}

/// The row key of an entry of ours and the length of its field; we write it first, or leave it out if empty.
fn key_of(entry: &[u8]) -> (&[u8], usize) {
    const KEY_TAG: u8 = 1 << 3 | 2;
    if entry.first() != Some(&KEY_TAG) {
        return (&[], 0);
    }
    let (mut len, mut shift, mut at) = (0_usize, 0, 1);
    while let Some(byte) = entry.get(at) {
        len |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        at += 1;
        if byte & 0x80 == 0 {
            break;
        }
    }
    debug_assert_eq!(at, 1 + varint_len(len as u64));
    (&entry[at..at + len], at + len)
}

#[cfg(test)]
mod tests;
