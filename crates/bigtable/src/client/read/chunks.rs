//! The decoder of `ReadRowsResponse`: chunks in, rows out.
//!
//! Messages are parsed by hand (see `parse`). On the parsed chunks runs the state machine of BT-WIRE-07, which refuses
//! whatever could join two rows, lose a row or hand one out twice.
//!
//! # Invariants
//!
//! - A row reaches the batch when it is committed, and never in part.
//! - Keys strictly ascend (descend in a reverse scan) over everything handed out since [`RowDecoder::new`], also across
//!   reopened streams, since a reopened stream starts behind the last key.
//! - After an error the stream is of no use; the rows that were finished before it are whole and stay.

use std::cmp::Ordering;

use bytes::Bytes;

use super::batch::{CellMeta, RowBatch, RowMeta, Slice};
use super::parse::{Chunk, LENGTH, RowStatus, Span, Wire, check_utf8};

#[cfg(test)]
mod tests;

/// Room reserved at once for a value that comes in pieces. A declared size is a claim, so it is not reserved blindly.
const MAX_RESERVED_BYTES: usize = 1 << 20;
/// A row is at most 256 MiB (quotas page); one of twice that, or a value that claims to be, is damage.
pub(super) const MAX_ROW_BYTES: usize = 512 << 20;

/// The order of keys in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ScanOrder {
    /// Ascending keys.
    #[default]
    Forward,
    /// Descending keys.
    Reverse,
}

/// What the service sent against the protocol. Names no content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the service broke the protocol of ReadRows: {0}")]
pub struct ProtocolError(pub(super) &'static str);

/// Puts chunks together to rows.
#[derive(Debug)]
pub struct RowDecoder {
    order: ScanOrder,
    /// The last key committed or scanned; empty before the first.
    last_key: Vec<u8>,
    /// Where that key is in the message being decoded, if it came in there and was not copied yet.
    newer_key: Option<Span>,
    moves: u64,
    open: Option<OpenRow>,
}

/// The row that is not committed yet. Its cells are the tail of the batch.
#[derive(Debug)]
struct OpenRow {
    key: SliceIn,
    family: SliceIn,
    qualifier: SliceIn,
    bytes: u64,
    value: Option<SplitValue>,
}

/// A slice as an open row keeps it: by the number of its buffer since the open row's first one, which clearing finished
/// rows does not change.
#[derive(Clone, Copy, Debug)]
struct SliceIn {
    buffer: u32,
    start: u32,
    len: u32,
}

/// A value that comes in pieces.
#[derive(Debug)]
struct SplitValue {
    bytes: Vec<u8>,
    declared: usize,
    timestamp_micros: i64,
}

impl RowDecoder {
    /// At the beginning of a scan in `order`.
    #[must_use]
    pub const fn new(order: ScanOrder) -> Self {
        Self {
            order,
            last_key: Vec::new(),
            newer_key: None,
            moves: 0,
            open: None,
        }
    }

    /// The last key committed or scanned, behind which reading goes on; empty before the first.
    #[must_use]
    pub fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// How often [`last_key`](Self::last_key) has moved: tells progress.
    #[must_use]
    pub const fn moves(&self) -> u64 {
        self.moves
    }

    /// Whether a row has begun and is not committed.
    #[must_use]
    pub const fn is_inside_row(&self) -> bool {
        self.open.is_some()
    }

    /// The stream ended well.
    ///
    /// # Errors
    ///
    /// If it ended inside a row: that is an error, never a short row.
    pub fn finish(&self) -> Result<(), ProtocolError> {
        match self.open {
            None => Ok(()),
            Some(_) => Err(ProtocolError("the stream ended inside a row")),
        }
    }

    /// The stream broke: drops the unfinished row, so that another stream can go on behind [`last_key`](Self::last_key).
    pub fn restart(&mut self, batch: &mut RowBatch) {
        self.open = None;
        batch.drop_open();
    }

    /// Takes one message and appends the rows it finishes to `batch`, which must be the same one for a whole row.
    ///
    /// # Errors
    ///
    /// If the message is damaged or breaks the protocol. Rows finished before the damage are in `batch`.
    pub fn decode(&mut self, message: Bytes, batch: &mut RowBatch) -> Result<(), ProtocolError> {
        if u32::try_from(message.len()).is_err() {
            return Err(ProtocolError("a message of 4 GiB"));
        }
        let buffer = next_buffer(batch)?;
        batch.buffers.push(message.clone());
        let rows = batch.rows.len();
        let result = self.decode_fields(&message, buffer, batch);
        if let Some(key) = self.newer_key.take() {
            self.last_key.clear();
            self.last_key.extend_from_slice(key.of(&message));
        }
        if result.is_err() {
            self.restart(batch);
        }
        // A message that only moved the scanned key, or only carried pieces of a value, is not kept: a filter that lets
        // nothing pass, or one large value, would pile up messages that nothing refers to.
        let unused = rows == batch.rows.len()
            && buffer as usize + 1 == batch.buffers.len()
            && !self.refers_to(buffer, batch);
        if unused {
            batch.buffers.pop();
        }
        result
    }

    /// Whether the unfinished row has a part in `buffer`, the newest one. Of its cells and labels only the last can.
    fn refers_to(&self, buffer: u32, batch: &RowBatch) -> bool {
        let (Some(row), Some(first)) = (&self.open, batch.open_buffer) else {
            return false;
        };
        let cell = batch.cells.last().is_some_and(|cell| {
            [cell.family, cell.qualifier, cell.value]
                .iter()
                .any(|slice| slice.buffer == buffer)
        });
        let label = batch
            .labels
            .last()
            .is_some_and(|label| label.buffer == buffer);
        let begun = [row.key, row.family, row.qualifier];
        cell || label || begun.iter().any(|slice| slice.buffer + first == buffer)
    }

    fn decode_fields(
        &mut self,
        message: &[u8],
        buffer: u32,
        batch: &mut RowBatch,
    ) -> Result<(), ProtocolError> {
        let mut wire = Wire {
            bytes: message,
            at: 0,
        };
        let mut scanned = None;
        let mut chunks = false;
        while let Some((field, kind)) = wire.tag()? {
            match (field, kind) {
                (1, LENGTH) => {
                    let (start, end) = wire.span()?;
                    let chunk = Chunk::parse(message, start, end)?;
                    self.chunk(&chunk, message, buffer, batch)?;
                    chunks = true;
                }
                (2, LENGTH) => scanned = Some(wire.span()?),
                (1 | 2, _) => return Err(ProtocolError("a response's field of a wrong type")),
                _ => wire.skip(kind)?,
            }
        }
        match scanned {
            Some((start, end)) if end > start => {
                self.scanned(&message[start..end], chunks, message)
            }
            _ => Ok(()),
        }
    }

    fn scanned(&mut self, key: &[u8], chunks: bool, message: &[u8]) -> Result<(), ProtocolError> {
        if self.open.is_some() {
            return Err(ProtocolError("a scanned key inside a row"));
        }
        match self.compare(key, message) {
            Ordering::Greater => self.set_last_key(key),
            // Beside chunks it may speak of what was scanned before them.
            Ordering::Equal => {}
            Ordering::Less if chunks => {}
            Ordering::Less => return Err(ProtocolError("a scanned key out of order")),
        }
        Ok(())
    }

    /// Compares `key` with the last one, in the order of the scan: `Greater` is further on.
    #[inline(always)]
    fn compare(&self, key: &[u8], message: &[u8]) -> Ordering {
        let last = match self.newer_key {
            Some(span) => span.of(message),
            None => &self.last_key[..],
        };
        if last.is_empty() {
            return Ordering::Greater;
        }
        let ordering = key.cmp(last);
        match self.order {
            ScanOrder::Forward => ordering,
            ScanOrder::Reverse => ordering.reverse(),
        }
    }

    fn set_last_key(&mut self, key: &[u8]) {
        self.newer_key = None;
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.moves += 1;
    }

    #[inline(always)]
    fn chunk(
        &mut self,
        chunk: &Chunk,
        message: &[u8],
        buffer: u32,
        batch: &mut RowBatch,
    ) -> Result<(), ProtocolError> {
        // Most rows come in one chunk: they are written without being opened.
        if self.open.is_none() {
            return self.begin(chunk, message, buffer, batch);
        }
        self.further(chunk, message, buffer, batch)
    }

    /// A chunk of an unfinished row.
    fn further(
        &mut self,
        chunk: &Chunk,
        message: &[u8],
        buffer: u32,
        batch: &mut RowBatch,
    ) -> Result<(), ProtocolError> {
        let mut row = self.open.take().expect("the caller looked");
        let first = batch
            .open_buffer
            .expect("set when the row was opened and kept by clear_rows");
        if chunk.row_status == RowStatus::Reset {
            if !chunk.is_bare() {
                return Err(ProtocolError("a reset that carries data"));
            }
            batch.drop_open();
            return Ok(());
        }
        let absolute = |slice: SliceIn| Slice {
            buffer: slice.buffer + first,
            start: slice.start,
            len: slice.len,
        };
        let here = |span: Span| SliceIn {
            buffer: buffer - first,
            start: span.start,
            len: span.len,
        };
        let value = if let Some(split) = row.value.take() {
            if !chunk.row_key.is_empty()
                || chunk.family.is_some()
                || chunk.qualifier.is_some()
                || chunk.timestamp_micros != 0
                || chunk.labels != 0
            {
                return Err(ProtocolError(
                    "a continued value that carries more than value",
                ));
            }
            self.continue_value(&mut row, split, chunk, message, batch)?
        } else {
            if !chunk.row_key.is_empty()
                && chunk.row_key.of(message) != batch.slice(absolute(row.key))
            {
                return Err(ProtocolError("a new row before the last one was committed"));
            }
            if let Some(family) = chunk.family {
                check_utf8(family.of(message))?;
                if chunk.qualifier.is_none() {
                    return Err(ProtocolError("a new family without a qualifier"));
                }
                row.family = here(family);
            }
            if let Some(qualifier) = chunk.qualifier {
                row.qualifier = here(qualifier);
            }
            self.new_value(&mut row, chunk, message, buffer, batch)?
        };
        if let Some((value, timestamp_micros)) = value {
            row.bytes += u64::from(row.family.len) + u64::from(row.qualifier.len) + 8;
            batch.cells.push(CellMeta {
                family: absolute(row.family),
                qualifier: absolute(row.qualifier),
                value,
                labels_end: index(batch.labels.len())?,
                timestamp_micros,
            });
        }
        let unfinished = row.value.as_ref().map_or(0, |value| value.bytes.len());
        if row.bytes + unfinished as u64 > MAX_ROW_BYTES as u64 {
            return Err(ProtocolError(
                "a row of twice the size that the service stores",
            ));
        }
        if chunk.row_status == RowStatus::Commit {
            if row.value.is_some() {
                return Err(ProtocolError("a commit inside a value"));
            }
            let key = absolute(row.key);
            self.set_last_key(batch.slice(key));
            batch.push_row(RowMeta {
                key,
                cells_end: index(batch.cells.len())?,
                bytes: row.bytes,
            });
        } else {
            self.open = Some(row);
        }
        Ok(())
    }

    /// The first chunk of a row.
    #[inline(always)]
    fn begin(
        &mut self,
        chunk: &Chunk,
        message: &[u8],
        buffer: u32,
        batch: &mut RowBatch,
    ) -> Result<(), ProtocolError> {
        if chunk.row_status == RowStatus::Reset {
            return Err(ProtocolError("a reset outside a row"));
        }
        let key = chunk.row_key.of(message);
        if key.is_empty() {
            return Err(ProtocolError("a row without a key"));
        }
        if self.compare(key, message) != Ordering::Greater {
            return Err(ProtocolError("a key out of order"));
        }
        let (Some(family), Some(qualifier)) = (chunk.family, chunk.qualifier) else {
            return Err(ProtocolError("a row without a family or a qualifier"));
        };
        check_utf8(family.of(message))?;
        let labels = chunk.push_labels(message, buffer, batch)?;
        let bytes = u64::from(chunk.row_key.len)
            + u64::from(family.len)
            + u64::from(qualifier.len)
            + labels
            + 8
            + u64::from(chunk.value.len);
        let slice = |span: Span| Slice {
            buffer,
            start: span.start,
            len: span.len,
        };
        if chunk.value_size == 0 {
            batch.cells.push(CellMeta {
                family: slice(family),
                qualifier: slice(qualifier),
                value: slice(chunk.value),
                labels_end: index(batch.labels.len())?,
                timestamp_micros: chunk.timestamp_micros,
            });
            if chunk.row_status == RowStatus::Commit {
                batch.push_row(RowMeta {
                    key: slice(chunk.row_key),
                    cells_end: index(batch.cells.len())?,
                    bytes,
                });
                self.newer_key = Some(chunk.row_key);
                self.moves += 1;
                return Ok(());
            }
        } else if chunk.row_status == RowStatus::Commit {
            return Err(ProtocolError("a commit inside a value"));
        }
        batch.open_buffer = Some(buffer);
        let relative = |span: Span| SliceIn {
            buffer: 0,
            start: span.start,
            len: span.len,
        };
        let value = if chunk.value_size == 0 {
            None
        } else {
            Some(SplitValue::begin(chunk, message)?)
        };
        // A split value's share of the estimate is added when it is whole.
        let bytes = if value.is_some() {
            u64::from(chunk.row_key.len) + labels
        } else {
            bytes
        };
        self.open = Some(OpenRow {
            key: relative(chunk.row_key),
            family: relative(family),
            qualifier: relative(qualifier),
            bytes,
            value,
        });
        Ok(())
    }

    /// The first or only piece of a value in an open row.
    fn new_value(
        &mut self,
        row: &mut OpenRow,
        chunk: &Chunk,
        message: &[u8],
        buffer: u32,
        batch: &mut RowBatch,
    ) -> Result<Option<(Slice, i64)>, ProtocolError> {
        row.bytes += chunk.push_labels(message, buffer, batch)?;
        if chunk.value_size != 0 {
            if chunk.row_status == RowStatus::Commit {
                return Err(ProtocolError("a commit inside a value"));
            }
            row.value = Some(SplitValue::begin(chunk, message)?);
            return Ok(None);
        }
        row.bytes += u64::from(chunk.value.len);
        let value = Slice {
            buffer,
            start: chunk.value.start,
            len: chunk.value.len,
        };
        Ok(Some((value, chunk.timestamp_micros)))
    }

    /// A further piece of a value.
    fn continue_value(
        &mut self,
        row: &mut OpenRow,
        mut split: SplitValue,
        chunk: &Chunk,
        message: &[u8],
        batch: &mut RowBatch,
    ) -> Result<Option<(Slice, i64)>, ProtocolError> {
        let piece = chunk.value.of(message);
        if split.bytes.len() + piece.len() > split.declared {
            return Err(ProtocolError("a value longer than declared"));
        }
        split.bytes.extend_from_slice(piece);
        if chunk.value_size != 0 {
            if chunk.size()? != split.declared {
                return Err(ProtocolError("a value declared with two sizes"));
            }
            if chunk.row_status == RowStatus::Commit {
                return Err(ProtocolError("a commit inside a value"));
            }
            row.value = Some(split);
            return Ok(None);
        }
        if split.bytes.len() != split.declared {
            return Err(ProtocolError("a value shorter than declared"));
        }
        let len = index(split.bytes.len())?;
        row.bytes += u64::from(len);
        let buffer = next_buffer(batch)?;
        batch.buffers.push(split.bytes.into());
        let value = Slice {
            buffer,
            start: 0,
            len,
        };
        Ok(Some((value, split.timestamp_micros)))
    }
}

impl SplitValue {
    fn begin(chunk: &Chunk, message: &[u8]) -> Result<Self, ProtocolError> {
        let declared = chunk.size()?;
        let piece = chunk.value.of(message);
        if piece.len() > declared {
            return Err(ProtocolError("a value longer than declared"));
        }
        let mut bytes = Vec::with_capacity(declared.min(MAX_RESERVED_BYTES).max(piece.len()));
        bytes.extend_from_slice(piece);
        Ok(Self {
            bytes,
            declared,
            timestamp_micros: chunk.timestamp_micros,
        })
    }
}

fn next_buffer(batch: &RowBatch) -> Result<u32, ProtocolError> {
    index(batch.buffers.len())
}

fn index(at: usize) -> Result<u32, ProtocolError> {
    u32::try_from(at).map_err(|_| ProtocolError("more than 2^32 parts in a batch"))
}
