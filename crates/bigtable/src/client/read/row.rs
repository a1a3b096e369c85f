//! One row that owns its bytes, for whoever keeps a row beyond its batch.

use std::fmt;

use bytes::Bytes;

use super::batch::{CellMeta, RowBatch, RowMeta, RowRef, Slice};

/// A row, copied out of the messages it came in into one buffer of its own.
pub struct Row(RowBatch);

impl Row {
    /// The row.
    #[must_use]
    pub fn get(&self) -> RowRef<'_> {
        self.0.get(0).expect("made with one row")
    }

    /// The row key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.get().key()
    }

    /// Bytes of memory it holds, about.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let buffers: usize = self.0.buffers.iter().map(Bytes::len).sum();
        let metas = self.0.cells.len() * size_of::<CellMeta>()
            + self.0.labels.len() * size_of::<Slice>()
            + size_of::<RowMeta>()
            + size_of::<RowBatch>();
        (buffers + metas) as u64
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

impl RowRef<'_> {
    /// A copy that outlives the batch.
    ///
    /// # Panics
    ///
    /// If the row has 4 GiB, sixteen times what the service stores.
    #[must_use]
    pub fn to_row(&self) -> Row {
        let mut buffer = Vec::with_capacity(self.key().len() + self.content_bytes() as usize);
        let mut copy = |bytes: &[u8]| {
            let fits = |len| u32::try_from(len).expect("a row is smaller than 4 GiB");
            let slice = Slice {
                buffer: 0,
                start: fits(buffer.len()),
                len: fits(bytes.len()),
            };
            buffer.extend_from_slice(bytes);
            slice
        };
        let mut batch = RowBatch::new();
        let key = copy(self.key());
        let mut last: Option<(&[u8], Slice)> = None;
        for cell in self.cells() {
            let family = match last {
                Some((family, slice)) if family == cell.family_bytes() => slice,
                _ => copy(cell.family_bytes()),
            };
            last = Some((cell.family_bytes(), family));
            let (qualifier, value) = (copy(cell.qualifier()), copy(cell.value()));
            for label in cell.labels() {
                batch.labels.push(copy(label.as_bytes()));
            }
            batch.cells.push(CellMeta {
                family,
                qualifier,
                value,
                labels_end: u32::try_from(batch.labels.len()).expect("fewer labels than bytes"),
                timestamp_micros: cell.timestamp_micros(),
            });
        }
        batch.push_row(RowMeta {
            key,
            cells_end: u32::try_from(batch.cells.len()).expect("fewer cells than bytes"),
            bytes: self.content_bytes(),
        });
        batch.buffers.push(buffer.into());
        Row(batch)
    }
}
