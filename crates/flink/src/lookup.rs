//! One subtask's lookups.

use std::task::{Context as PollContext, Poll};

use aqueduct_connector::row::{RowBatch, RowRef};
use aqueduct_connector::state::StateWriter;
use aqueduct_connector::table::{RowLookup, TableLookup};
use aqueduct_connector::{Context, Error, Result};
use bytes::Bytes;

use crate::errors::kind_code;
use crate::wire;

/// Memory kept from one answer to the next.
const KEPT_BYTES: usize = 64 << 10;

/// The lookups of one subtask.
pub(crate) struct Lookup {
    inner: Box<dyn RowLookup>,
    /// Number of fields of a key.
    keys: usize,
    batch: RowBatch,
}

impl Lookup {
    pub(crate) fn new(lookup: &dyn TableLookup, context: Context, keys: usize) -> Result<Self> {
        Ok(Self {
            inner: lookup.create(context)?,
            keys,
            batch: RowBatch::new(),
        })
    }

    /// Starts a lookup: its number and the key row.
    fn start(&mut self, argument: Bytes) -> Result<()> {
        let value = wire::unversioned(argument);
        let mut argument = wire::message(&value)?;
        let id = argument.u64()?;
        let key = argument.bytes()?;
        argument.finish()?;
        let key = RowRef::new(&key, self.keys)
            .map_err(|error| Error::bug("a key row is damaged").with_source(error))?;
        self.inner.start(id, key)
    }

    /// The next answer, or nothing: the number of the lookup, then rows, or the kind and the text of an error.
    fn answer(&mut self, cx: &mut PollContext<'_>) -> Bytes {
        self.batch.clear(KEPT_BYTES);
        let Poll::Ready((id, found)) = self.inner.poll_next(cx, &mut self.batch) else {
            return Bytes::new();
        };
        let mut writer = StateWriter::new();
        writer.u64(id);
        match found {
            Ok(()) => writer.u8(0).bytes(self.batch.as_bytes()),
            Err(error) => writer
                .u8(1)
                .u32(kind_code(error.kind()).cast_unsigned())
                .text(&error.report()),
        };
        writer.finish(0).bytes
    }

    pub(crate) fn call(
        &mut self,
        cx: &mut PollContext<'_>,
        number: i32,
        argument: Bytes,
    ) -> Result<Bytes> {
        match number {
            30 => self.start(argument).map(|()| Bytes::new()),
            31 => Ok(self.answer(cx)),
            _ => Err(Error::bug("no such call of a lookup")),
        }
    }

    pub(crate) fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.inner.poll_close(cx)
    }
}
