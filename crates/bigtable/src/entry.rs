//! Row mutation entries: all changes of one row, encoded as they are made.
//!
//! A serializer fills the [`RowMutationEntry`] it is lent. Each setter appends one protobuf-encoded `Mutation` to a
//! scratch buffer that the writer reuses, so an entry costs copies of the record's own bytes and no allocation, and its
//! encoded length is known before it is copied into a request.
//!
//! # Invariants
//!
//! - What the buffers hold is a valid encoding of `MutateRowsRequest.Entry`, byte for byte what generated code writes.
//! - Cells set without a timestamp share one stamp an entry, in whole milliseconds, taken once: a retry sends the same
//!   bytes, and the service's own clock (`-1`) is never asked for.
//! - An entry that can be refused without the service keeps the first reason and takes no more bytes (BT-SINK-18).
//! - `Debug` shows sizes, never contents.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use aqueduct_connector::{Clock, Timestamp};
use bytes::{BufMut, Bytes};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use prost::Message;

/// Mutations an entry may hold; the service refuses more in one request.
pub const MAX_MUTATIONS: usize = 100_000;
/// Encoded bytes of an entry's mutations: 200 MiB.
pub const MAX_MUTATION_BYTES: usize = 200 << 20;

/// Why an entry is refused before it is sent (BT-SINK-18). Says sizes and limits, no content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryFault {
    /// It changes nothing.
    #[error("the entry has no mutation; skip the record instead")]
    Empty,
    /// It holds more mutations than a request may.
    #[error("the entry has more than {MAX_MUTATIONS} mutations, the most a request may hold")]
    TooManyMutations,
    /// Its mutations are too large.
    #[error("the entry's mutations exceed 200 MiB")]
    TooLarge,
    /// A cell timestamp is negative; the server's clock (`-1`) cannot be asked for.
    #[error(
        "a cell timestamp is negative; give microseconds since 1970, or leave the stamp to the writer with set_cell_now"
    )]
    NegativeTimestamp,
    /// A delete's time range ends at or before its start; the service would read an end of 0 as infinity.
    #[error("the time range of a delete is empty or inverted")]
    InvertedRange,
}

/// Where the stamp of cells without a timestamp comes from.
#[derive(Clone)]
enum StampSource {
    Clock(Arc<dyn Clock>),
    Fixed(Timestamp),
}

/// Collects the changes of one row. They apply atomically and in the order of the calls.
///
/// Timestamps are microseconds since 1970 and must be multiples of 1,000, the tables' granularity; the service refuses
/// others, and that refusal is the record's. An event time in milliseconds is multiplied by 1,000.
///
/// A setter never fails: what can be refused without the service is kept and reported when the entry is handed over.
pub struct RowMutationEntry {
    row_key: Vec<u8>,
    mutations: Vec<u8>,
    count: usize,
    fault: Option<EntryFault>,
    stamp: Option<i64>,
    source: StampSource,
}

impl RowMutationEntry {
    /// An empty entry whose [`set_cell_now`](Self::set_cell_now) stamps with `now`. A serializer needs none of its own:
    /// it is lent one.
    #[must_use]
    pub fn stamped(now: Timestamp) -> Self {
        Self::from_source(StampSource::Fixed(now))
    }

    /// An empty entry stamped from the host's clock.
    pub(crate) fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::from_source(StampSource::Clock(clock))
    }

    fn from_source(source: StampSource) -> Self {
        Self {
            row_key: Vec::new(),
            mutations: Vec::new(),
            count: 0,
            fault: None,
            stamp: None,
            source,
        }
    }

    /// Forgets everything but the buffers.
    pub(crate) fn clear(&mut self) {
        // One giant record must not pin its buffer for the life of the writer.
        const KEPT_BYTES: usize = 1 << 20;
        self.row_key.clear();
        self.mutations.clear();
        if self.mutations.capacity() > KEPT_BYTES {
            self.mutations.shrink_to(KEPT_BYTES);
        }
        self.count = 0;
        self.fault = None;
        self.stamp = None;
    }

    /// Takes over what `other` holds, faults included.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        self.row_key.clone_from(&other.row_key);
        self.mutations.clone_from(&other.mutations);
        self.count = other.count;
        self.fault = other.fault;
        self.stamp = other.stamp;
    }

    /// Names the row. The last call wins; an empty key is the service's to refuse.
    pub fn row_key(&mut self, key: impl AsRef<[u8]>) -> &mut Self {
        self.row_key.clear();
        self.row_key.extend_from_slice(key.as_ref());
        self
    }

    /// Sets the cell at `timestamp_micros`, replacing one that is there. A replay overwrites it again.
    pub fn set_cell(
        &mut self,
        family: &str,
        qualifier: impl AsRef<[u8]>,
        timestamp_micros: i64,
        value: impl AsRef<[u8]>,
    ) -> &mut Self {
        let (qualifier, value) = (qualifier.as_ref(), value.as_ref());
        if timestamp_micros < 0 {
            return self.refuse(EntryFault::NegativeTimestamp);
        }
        let cell = bytes_field_len(family.len())
            + bytes_field_len(qualifier.len())
            + int_field_len(timestamp_micros)
            + bytes_field_len(value.len());
        if let Some(out) = self.begin(SET_CELL, cell) {
            put_bytes(out, 1, family.as_bytes());
            put_bytes(out, 2, qualifier);
            put_int(out, 3, timestamp_micros);
            put_bytes(out, 4, value);
        }
        self
    }

    /// Sets the cell at the time of the hand-over, in whole milliseconds of the host's clock; all such cells of the
    /// entry share one stamp. A replay of the job writes another version.
    pub fn set_cell_now(
        &mut self,
        family: &str,
        qualifier: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> &mut Self {
        let stamp = self.stamp();
        self.set_cell(family, qualifier, stamp, value)
    }

    /// Deletes the cells of one column whose timestamps lie in `range`, in microseconds; `..` deletes all of them.
    pub fn delete_cells(
        &mut self,
        family: &str,
        qualifier: impl AsRef<[u8]>,
        range: impl RangeBounds<i64>,
    ) -> &mut Self {
        let qualifier = qualifier.as_ref();
        let start = match range.start_bound() {
            Bound::Unbounded => 0,
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
        };
        let end = match range.end_bound() {
            Bound::Unbounded => None,
            Bound::Included(end) => Some(end.saturating_add(1)),
            Bound::Excluded(end) => Some(*end),
        };
        if start < 0 || end.is_some_and(|end| end < 0) {
            return self.refuse(EntryFault::NegativeTimestamp);
        }
        if end.is_some_and(|end| end <= start) {
            return self.refuse(EntryFault::InvertedRange);
        }
        let bounded = start > 0 || end.is_some();
        // On the wire an end of 0 is infinity.
        let end = end.unwrap_or(0);
        let range_len = int_field_len(start) + int_field_len(end);
        let body = bytes_field_len(family.len())
            + bytes_field_len(qualifier.len())
            + if bounded { message_len(range_len) } else { 0 };
        if let Some(out) = self.begin(DELETE_FROM_COLUMN, body) {
            put_bytes(out, 1, family.as_bytes());
            put_bytes(out, 2, qualifier);
            if bounded {
                put_tag_len(out, 3, range_len);
                put_int(out, 1, start);
                put_int(out, 2, end);
            }
        }
        self
    }

    /// Deletes all cells of a family in this row.
    pub fn delete_family(&mut self, family: &str) -> &mut Self {
        if let Some(out) = self.begin(DELETE_FROM_FAMILY, bytes_field_len(family.len())) {
            put_bytes(out, 1, family.as_bytes());
        }
        self
    }

    /// Deletes the row as it is when this takes effect. Replayed after later writes, it removes those too.
    pub fn delete_row(&mut self) -> &mut Self {
        self.begin(DELETE_FROM_ROW, 0);
        self
    }

    /// Adds `input` to the aggregate cell at `timestamp_micros`. A sum may count a repeat twice, our own retry included.
    ///
    /// The value model of aggregates is young at the service; this method may change at a minor release.
    pub fn add_to_cell(
        &mut self,
        family: &str,
        qualifier: impl AsRef<[u8]>,
        timestamp_micros: i64,
        input: i64,
    ) -> &mut Self {
        self.aggregate(
            ADD_TO_CELL,
            family,
            qualifier.as_ref(),
            timestamp_micros,
            &Input::Int(input),
        )
    }

    /// Merges accumulated state into the aggregate cell at `timestamp_micros`.
    ///
    /// The value model of aggregates is young at the service; this method may change at a minor release.
    pub fn merge_to_cell(
        &mut self,
        family: &str,
        qualifier: impl AsRef<[u8]>,
        timestamp_micros: i64,
        state: impl AsRef<[u8]>,
    ) -> &mut Self {
        self.aggregate(
            MERGE_TO_CELL,
            family,
            qualifier.as_ref(),
            timestamp_micros,
            &Input::Raw(state.as_ref()),
        )
    }

    /// Appends what was decoded before, such as from a dead letter, and takes its row key.
    pub fn append(&mut self, decoded: &DecodedEntry) -> &mut Self {
        self.row_key(&decoded.row_key);
        for mutation in &decoded.mutations {
            let (family, qualifier) = (mutation.family(), mutation.qualifier());
            match mutation {
                Mutation::SetCell {
                    timestamp_micros,
                    value,
                    ..
                } => self.set_cell(family, qualifier, *timestamp_micros, value),
                Mutation::DeleteCells {
                    start_micros,
                    end_micros: Some(end),
                    ..
                } => self.delete_cells(family, qualifier, *start_micros..*end),
                Mutation::DeleteCells {
                    start_micros,
                    end_micros: None,
                    ..
                } => self.delete_cells(family, qualifier, *start_micros..),
                Mutation::DeleteFamily { .. } => self.delete_family(family),
                Mutation::DeleteRow => self.delete_row(),
                Mutation::AddToCell {
                    timestamp_micros,
                    input,
                    ..
                } => self.add_to_cell(family, qualifier, *timestamp_micros, *input),
                Mutation::MergeToCell {
                    timestamp_micros,
                    state,
                    ..
                } => self.merge_to_cell(family, qualifier, *timestamp_micros, state),
            };
        }
        self
    }

    /// Mutations so far.
    #[must_use]
    pub fn mutations(&self) -> usize {
        self.count
    }

    /// Length of the entry as it travels, in bytes: the size that every byte bound and `numBytesSend` count.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        bytes_field_len(self.row_key.len()) + self.mutations.len()
    }

    /// The entry as `MutateRowsRequest.Entry`, which any protobuf reader of that message can take apart.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.encoded_len());
        put_bytes(&mut out, 1, &self.row_key);
        out.extend_from_slice(&self.mutations);
        out.into()
    }

    /// Reads an entry back from its encoding: the payload of a failed mutation or of a dead letter.
    ///
    /// # Errors
    ///
    /// If the bytes are no such entry, or hold a kind of mutation this version does not know.
    pub fn decode(payload: &[u8]) -> Result<DecodedEntry, DecodeError> {
        DecodedEntry::decode(payload)
    }

    /// Refuses what can be refused without the service.
    pub(crate) fn check(&self) -> Result<(), EntryFault> {
        match self.fault {
            Some(fault) => Err(fault),
            None if self.count == 0 => Err(EntryFault::Empty),
            None => Ok(()),
        }
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.row_key
    }

    /// The encoded mutations, each with its tag and length in the entry.
    pub(crate) fn encoded_mutations(&self) -> &[u8] {
        &self.mutations
    }

    fn stamp(&mut self) -> i64 {
        let source = &self.source;
        *self.stamp.get_or_insert_with(|| {
            let wall = match source {
                StampSource::Clock(clock) => clock.wall(),
                StampSource::Fixed(now) => *now,
            };
            // A wall clock before 1970 is a broken one; zero is the least stamp the service takes.
            wall.millis().max(0).saturating_mul(1_000)
        })
    }

    fn aggregate(
        &mut self,
        kind: u32,
        family: &str,
        qualifier: &[u8],
        timestamp_micros: i64,
        input: &Input<'_>,
    ) -> &mut Self {
        if timestamp_micros < 0 {
            return self.refuse(EntryFault::NegativeTimestamp);
        }
        // Fields of a oneof are written even when they hold the default.
        let qualifier_len = 1 + varint_len(qualifier.len() as u64) + qualifier.len();
        let stamp_len = 1 + varint_len(timestamp_micros.cast_unsigned());
        let input_len = match input {
            Input::Int(value) => 1 + varint_len(value.cast_unsigned()),
            Input::Raw(state) => 1 + varint_len(state.len() as u64) + state.len(),
        };
        let body = bytes_field_len(family.len())
            + message_len(qualifier_len)
            + message_len(stamp_len)
            + message_len(input_len);
        if let Some(out) = self.begin(kind, body) {
            put_bytes(out, 1, family.as_bytes());
            put_tag_len(out, 2, qualifier_len);
            put_tag_len(out, RAW_VALUE, qualifier.len());
            out.extend_from_slice(qualifier);
            put_tag_len(out, 3, stamp_len);
            put_varint(out, u64::from(RAW_TIMESTAMP << 3));
            put_varint(out, timestamp_micros.cast_unsigned());
            put_tag_len(out, 4, input_len);
            match input {
                Input::Int(value) => {
                    put_varint(out, u64::from(INT_VALUE << 3));
                    put_varint(out, value.cast_unsigned());
                }
                Input::Raw(state) => {
                    put_tag_len(out, RAW_VALUE, state.len());
                    out.extend_from_slice(state);
                }
            }
        }
        self
    }

    /// Writes the frame of a mutation of `kind` whose message takes `body` bytes, or nothing if the entry is refused.
    fn begin(&mut self, kind: u32, body: usize) -> Option<&mut Vec<u8>> {
        if self.fault.is_some() {
            return None;
        }
        let mutation = message_len(body);
        if self.count == MAX_MUTATIONS {
            self.refuse(EntryFault::TooManyMutations);
            return None;
        }
        if message_len(mutation) > MAX_MUTATION_BYTES - self.mutations.len() {
            self.refuse(EntryFault::TooLarge);
            return None;
        }
        self.count += 1;
        self.mutations.reserve(message_len(mutation));
        put_tag_len(&mut self.mutations, 2, mutation);
        put_tag_len(&mut self.mutations, kind, body);
        Some(&mut self.mutations)
    }

    fn refuse(&mut self, fault: EntryFault) -> &mut Self {
        self.fault.get_or_insert(fault);
        self
    }
}

impl fmt::Debug for RowMutationEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RowMutationEntry({} mutations, {} bytes)",
            self.count,
            self.encoded_len()
        )
    }
}

/// Why bytes are no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Not the encoding of a `MutateRowsRequest.Entry`.
    #[error("the bytes are no MutateRowsRequest.Entry")]
    Malformed,
    /// A kind of mutation, or of aggregate value, that this version does not know.
    #[error("mutation {position} of the entry is of a kind this version does not know")]
    UnknownMutation {
        /// Position among the mutations, from 0.
        position: usize,
    },
}

/// An entry taken apart.
#[derive(Clone, PartialEq, Eq)]
pub struct DecodedEntry {
    /// The row's key.
    pub row_key: Bytes,
    /// The changes, in order.
    pub mutations: Vec<Mutation>,
}

/// One change of a row. `Debug` names its kind only.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are the parameters of RowMutationEntry's setters"
)]
pub enum Mutation {
    SetCell {
        family: String,
        qualifier: Bytes,
        timestamp_micros: i64,
        value: Bytes,
    },
    DeleteCells {
        family: String,
        qualifier: Bytes,
        start_micros: i64,
        end_micros: Option<i64>,
    },
    DeleteFamily {
        family: String,
    },
    DeleteRow,
    AddToCell {
        family: String,
        qualifier: Bytes,
        timestamp_micros: i64,
        input: i64,
    },
    MergeToCell {
        family: String,
        qualifier: Bytes,
        timestamp_micros: i64,
        state: Bytes,
    },
}

impl Mutation {
    /// The column family it names; empty for a deleted row.
    #[must_use]
    pub fn family(&self) -> &str {
        match self {
            Self::SetCell { family, .. }
            | Self::DeleteCells { family, .. }
            | Self::DeleteFamily { family }
            | Self::AddToCell { family, .. }
            | Self::MergeToCell { family, .. } => family,
            Self::DeleteRow => "",
        }
    }

    fn qualifier(&self) -> &[u8] {
        match self {
            Self::SetCell { qualifier, .. }
            | Self::DeleteCells { qualifier, .. }
            | Self::AddToCell { qualifier, .. }
            | Self::MergeToCell { qualifier, .. } => qualifier,
            Self::DeleteFamily { .. } | Self::DeleteRow => &[],
        }
    }
}

impl fmt::Debug for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SetCell { .. } => "SetCell",
            Self::DeleteCells { .. } => "DeleteCells",
            Self::DeleteFamily { .. } => "DeleteFamily",
            Self::DeleteRow => "DeleteRow",
            Self::AddToCell { .. } => "AddToCell",
            Self::MergeToCell { .. } => "MergeToCell",
        })
    }
}

impl DecodedEntry {
    fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        use v2::mutation::Mutation as Wire;

        let entry =
            v2::mutate_rows_request::Entry::decode(payload).map_err(|_| DecodeError::Malformed)?;
        let mutations = entry
            .mutations
            .into_iter()
            .enumerate()
            .map(|(position, mutation)| {
                let unknown = DecodeError::UnknownMutation { position };
                Ok(match mutation.mutation.ok_or(unknown)? {
                    Wire::SetCell(cell) => Mutation::SetCell {
                        family: cell.family_name,
                        qualifier: cell.column_qualifier,
                        timestamp_micros: cell.timestamp_micros,
                        value: cell.value,
                    },
                    Wire::DeleteFromColumn(delete) => {
                        let range = delete.time_range.unwrap_or_default();
                        Mutation::DeleteCells {
                            family: delete.family_name,
                            qualifier: delete.column_qualifier,
                            start_micros: range.start_timestamp_micros,
                            end_micros: Some(range.end_timestamp_micros).filter(|end| *end != 0),
                        }
                    }
                    Wire::DeleteFromFamily(delete) => Mutation::DeleteFamily {
                        family: delete.family_name,
                    },
                    Wire::DeleteFromRow(_) => Mutation::DeleteRow,
                    Wire::AddToCell(add) => Mutation::AddToCell {
                        family: add.family_name,
                        qualifier: raw_value(add.column_qualifier).ok_or(unknown)?,
                        timestamp_micros: raw_timestamp(add.timestamp).ok_or(unknown)?,
                        input: int_value(add.input).ok_or(unknown)?,
                    },
                    Wire::MergeToCell(merge) => Mutation::MergeToCell {
                        family: merge.family_name,
                        qualifier: raw_value(merge.column_qualifier).ok_or(unknown)?,
                        timestamp_micros: raw_timestamp(merge.timestamp).ok_or(unknown)?,
                        state: raw_value(merge.input).ok_or(unknown)?,
                    },
                })
            });
        Ok(Self {
            row_key: entry.row_key,
            mutations: mutations.collect::<Result<_, _>>()?,
        })
    }
}

impl fmt::Debug for DecodedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DecodedEntry({} mutations)", self.mutations.len())
    }
}

fn raw_value(value: Option<v2::Value>) -> Option<Bytes> {
    match value?.kind? {
        v2::value::Kind::RawValue(bytes) => Some(bytes),
        _ => None,
    }
}

fn raw_timestamp(value: Option<v2::Value>) -> Option<i64> {
    match value?.kind? {
        v2::value::Kind::RawTimestampMicros(micros) => Some(micros),
        _ => None,
    }
}

fn int_value(value: Option<v2::Value>) -> Option<i64> {
    match value?.kind? {
        v2::value::Kind::IntValue(int) => Some(int),
        _ => None,
    }
}

enum Input<'a> {
    Int(i64),
    Raw(&'a [u8]),
}

// Field numbers of `Mutation` and `Value`.
const SET_CELL: u32 = 1;
const DELETE_FROM_COLUMN: u32 = 2;
const DELETE_FROM_FAMILY: u32 = 3;
const DELETE_FROM_ROW: u32 = 4;
const ADD_TO_CELL: u32 = 5;
const MERGE_TO_CELL: u32 = 6;
const INT_VALUE: u32 = 6;
const RAW_VALUE: u32 = 8;
const RAW_TIMESTAMP: u32 = 9;

/// Length of `value` as a varint.
pub(crate) const fn varint_len(value: u64) -> usize {
    // One byte for every started group of seven bits; zero takes one too.
    ((70 - (value | 1).leading_zeros()) / 7) as usize
}

/// Length of a length-delimited field with a one-byte tag; nothing if it is empty, as generated code has it.
pub(crate) const fn bytes_field_len(len: usize) -> usize {
    if len == 0 { 0 } else { message_len(len) }
}

/// Length of an embedded message of `len` bytes with its one-byte tag.
pub(crate) const fn message_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

const fn int_field_len(value: i64) -> usize {
    if value == 0 {
        0
    } else {
        1 + varint_len(value.cast_unsigned())
    }
}

pub(crate) fn put_varint(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Tag and length of a length-delimited field; its number is below 16.
pub(crate) fn put_tag_len(out: &mut impl BufMut, field: u32, len: usize) {
    out.put_u8((field << 3 | 2) as u8);
    put_varint(out, len as u64);
}

/// A length-delimited field, left out if empty.
pub(crate) fn put_bytes(out: &mut impl BufMut, field: u32, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_tag_len(out, field, bytes.len());
        out.put_slice(bytes);
    }
}

fn put_int(out: &mut Vec<u8>, field: u32, value: i64) {
    if value != 0 {
        put_varint(out, u64::from(field << 3));
        put_varint(out, value.cast_unsigned());
    }
}

#[cfg(test)]
mod tests;
