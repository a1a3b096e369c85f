//! Rows as offsets into the messages they came in.
//!
//! A [`RowBatch`] keeps the messages whole and, for each row and cell, where its parts are. Nothing is copied but values
//! that the service sent in several pieces, and nothing is allocated for a row or a cell once the batch has grown to its
//! size. [`RowRef`] and [`CellRef`] borrow from it; whoever keeps bytes beyond the batch copies them, because a slice
//! keeps its whole message alive.
//!
//! # Invariants
//!
//! - Every [`Slice`] lies inside its buffer; [`super::chunks`] checks bounds before it makes one.
//! - The unfinished row is the tail behind the last finished row; it refers only to buffers from its own first one on, so
//!   [`RowBatch::clear_rows`] can drop what is before.

use std::fmt;

use bytes::Bytes;

/// A part of a buffer of the batch.
#[derive(Clone, Copy, Default)]
pub(super) struct Slice {
    pub(super) buffer: u32,
    pub(super) start: u32,
    pub(super) len: u32,
}

#[derive(Clone, Copy)]
pub(super) struct RowMeta {
    pub(super) key: Slice,
    /// End of its cells in [`RowBatch::cells`].
    pub(super) cells_end: u32,
    /// Estimate of its content (BT-SCAN-07).
    pub(super) bytes: u64,
}

#[derive(Clone, Copy)]
pub(super) struct CellMeta {
    pub(super) family: Slice,
    pub(super) qualifier: Slice,
    pub(super) value: Slice,
    /// End of its labels in [`RowBatch::labels`].
    pub(super) labels_end: u32,
    pub(super) timestamp_micros: i64,
}

/// Finished rows in key order, and the beginning of the next.
#[derive(Default)]
pub struct RowBatch {
    pub(super) buffers: Vec<Bytes>,
    pub(super) rows: Vec<RowMeta>,
    pub(super) cells: Vec<CellMeta>,
    pub(super) labels: Vec<Slice>,
    /// First buffer of the unfinished row, if there is one.
    pub(super) open_buffer: Option<u32>,
    bytes: u64,
}

impl RowBatch {
    /// No rows.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of finished rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no row is finished.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Content of the finished rows in bytes: keys and values, and for each cell family, qualifier, labels and 8 for the
    /// timestamp.
    #[must_use]
    pub const fn content_bytes(&self) -> u64 {
        self.bytes
    }

    /// The row at `index`, counted from 0.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<RowRef<'_>> {
        (index < self.rows.len()).then_some(RowRef { batch: self, index })
    }

    /// The rows in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = RowRef<'_>> {
        (0..self.rows.len()).map(|index| RowRef { batch: self, index })
    }

    /// Forgets the finished rows and lets go of their messages; keeps the unfinished row and the room.
    pub(super) fn clear_rows(&mut self) {
        let cells = self.rows.last().map_or(0, |row| row.cells_end);
        let labels = match cells.checked_sub(1) {
            None => 0,
            Some(last) => self.cells[last as usize].labels_end,
        };
        self.rows.clear();
        self.bytes = 0;
        let Some(first) = self.open_buffer else {
            self.cells.clear();
            self.labels.clear();
            self.buffers.clear();
            return;
        };
        self.buffers.drain(..first as usize);
        self.cells.drain(..cells as usize);
        self.labels.drain(..labels as usize);
        for label in &mut self.labels {
            label.buffer -= first;
        }
        for cell in &mut self.cells {
            for slice in [&mut cell.family, &mut cell.qualifier, &mut cell.value] {
                slice.buffer -= first;
            }
            cell.labels_end -= labels;
        }
        self.open_buffer = Some(0);
    }

    /// Drops the unfinished row.
    pub(super) fn drop_open(&mut self) {
        let cells = self.rows.last().map_or(0, |row| row.cells_end as usize);
        self.cells.truncate(cells);
        let labels = self.cells.last().map_or(0, |cell| cell.labels_end as usize);
        self.labels.truncate(labels);
        self.open_buffer = None;
    }

    pub(super) fn push_row(&mut self, row: RowMeta) {
        self.bytes += row.bytes;
        self.rows.push(row);
        self.open_buffer = None;
    }

    #[inline]
    pub(super) fn slice(&self, slice: Slice) -> &[u8] {
        let start = slice.start as usize;
        &self.buffers[slice.buffer as usize][start..start + slice.len as usize]
    }
}

impl fmt::Debug for RowBatch {
    /// Sizes, never contents.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RowBatch({} rows, {} cells)",
            self.rows.len(),
            self.cells.len()
        )
    }
}

/// One row: its key and its cells in the service's order, families grouped, newest version first.
#[derive(Clone, Copy)]
pub struct RowRef<'a> {
    batch: &'a RowBatch,
    index: usize,
}

impl<'a> RowRef<'a> {
    /// The row key.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        self.batch.slice(self.batch.rows[self.index].key)
    }

    /// The row key, sharing the message: copy what outlives the batch.
    #[must_use]
    pub fn key_bytes(&self) -> Bytes {
        share(self.batch, self.batch.rows[self.index].key)
    }

    /// The cells, in order.
    #[must_use]
    pub fn cells(&self) -> Cells<'a> {
        let end = self.batch.rows[self.index].cells_end as usize;
        let start = match self.index.checked_sub(1) {
            None => 0,
            Some(before) => self.batch.rows[before].cells_end as usize,
        };
        Cells {
            batch: self.batch,
            next: start,
            end,
        }
    }

    /// The cell at `index`, counted from 0 in the order of [`cells`](Self::cells).
    #[must_use]
    #[inline]
    pub fn cell(&self, index: usize) -> Option<CellRef<'a>> {
        let cells = self.cells();
        (index < cells.len()).then_some(CellRef {
            batch: self.batch,
            index: cells.next + index,
        })
    }

    /// The first cell of a column: its newest version.
    #[must_use]
    pub fn latest(&self, family: &str, qualifier: &[u8]) -> Option<CellRef<'a>> {
        self.cells()
            .find(|cell| cell.family_bytes() == family.as_bytes() && cell.qualifier() == qualifier)
    }

    /// Content in bytes, as [`RowBatch::content_bytes`] counts it.
    #[must_use]
    pub fn content_bytes(&self) -> u64 {
        self.batch.rows[self.index].bytes
    }
}

impl fmt::Debug for RowRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Row({} cells, {} bytes)",
            self.cells().len(),
            self.content_bytes()
        )
    }
}

/// The cells of a row.
#[derive(Clone)]
pub struct Cells<'a> {
    batch: &'a RowBatch,
    next: usize,
    end: usize,
}

impl<'a> Iterator for Cells<'a> {
    type Item = CellRef<'a>;

    #[inline]
    fn next(&mut self) -> Option<CellRef<'a>> {
        if self.next == self.end {
            return None;
        }
        let index = self.next;
        self.next += 1;
        Some(CellRef {
            batch: self.batch,
            index,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.next, Some(self.end - self.next))
    }
}

impl ExactSizeIterator for Cells<'_> {}

impl fmt::Debug for Cells<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cells({} left)", self.len())
    }
}

/// One cell.
#[derive(Clone, Copy)]
pub struct CellRef<'a> {
    batch: &'a RowBatch,
    index: usize,
}

impl<'a> CellRef<'a> {
    fn meta(&self) -> &'a CellMeta {
        &self.batch.cells[self.index]
    }

    /// The family's name.
    #[must_use]
    pub fn family(&self) -> &'a str {
        std::str::from_utf8(self.family_bytes()).expect("checked when it was decoded")
    }

    /// The family's name as bytes, which is cheaper to compare.
    #[must_use]
    #[inline]
    pub fn family_bytes(&self) -> &'a [u8] {
        self.batch.slice(self.meta().family)
    }

    /// The column qualifier; may be empty.
    #[must_use]
    #[inline]
    pub fn qualifier(&self) -> &'a [u8] {
        self.batch.slice(self.meta().qualifier)
    }

    /// Microseconds since the epoch.
    #[must_use]
    pub fn timestamp_micros(&self) -> i64 {
        self.meta().timestamp_micros
    }

    /// The value; may be empty.
    #[must_use]
    #[inline]
    pub fn value(&self) -> &'a [u8] {
        self.batch.slice(self.meta().value)
    }

    /// The value, sharing the message: copy what outlives the batch, unless values make up most of it.
    #[must_use]
    pub fn value_bytes(&self) -> Bytes {
        share(self.batch, self.meta().value)
    }

    /// Labels that the filter put on the cell.
    pub fn labels(&self) -> impl ExactSizeIterator<Item = &'a str> {
        let start = match self.index.checked_sub(1) {
            None => 0,
            Some(before) => self.batch.cells[before].labels_end as usize,
        };
        let batch = self.batch;
        batch.labels[start..self.meta().labels_end as usize]
            .iter()
            .map(|label| {
                std::str::from_utf8(batch.slice(*label)).expect("checked when it was decoded")
            })
    }
}

impl fmt::Debug for CellRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cell({} bytes)", self.value().len())
    }
}

fn share(batch: &RowBatch, slice: Slice) -> Bytes {
    let start = slice.start as usize;
    batch.buffers[slice.buffer as usize].slice(start..start + slice.len as usize)
}
