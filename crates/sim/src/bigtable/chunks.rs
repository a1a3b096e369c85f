//! How rows become chunks and chunks become messages.
//!
//! The protocol leaves the service much freedom: to split values, repeat or omit what has not
//! changed, reset a half-sent row, put many rows in a message or one row in many, and report how
//! far it scanned. [`Chunking::Seeded`] uses all of it, differently for each seed.

use bytes::{Bytes, BytesMut};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as pb;
use pb::read_rows_response::{CellChunk, cell_chunk::RowStatus};

use super::filter::View;

/// The freedom the service takes in answers to `ReadRows`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunking {
    /// Many rows a message (up to about 1 MiB), repeats omitted, values above 1 MiB split. The
    /// default.
    Service,
    /// One row a message and nothing unusual, as the official emulator answers.
    RowPerMessage,
    /// Every liberty at random: split values, repeats now omitted and now given, rows reset and
    /// sent again, any number of chunks a message, scanned keys between rows.
    Seeded(u64),
}

const MESSAGE_BYTES: usize = 1 << 20;
const VALUE_BYTES: usize = 1 << 20;

/// Turns rows into chunks, and decides where messages end.
pub(crate) struct Chunker {
    chunking: Chunking,
    rng: fastrand::Rng,
}

impl Chunker {
    pub(crate) fn new(chunking: Chunking) -> Self {
        let seed = match chunking {
            Chunking::Seeded(seed) => seed,
            Chunking::Service | Chunking::RowPerMessage => 0,
        };
        Self {
            chunking,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    fn seeded(&self) -> bool {
        matches!(self.chunking, Chunking::Seeded(_))
    }

    /// True once in `n`, and only if this chunker takes liberties.
    fn once_in(&mut self, n: u32) -> bool {
        self.seeded() && self.rng.u32(0..n) == 0
    }

    /// Whether to report a scanned key now, with that many rows passed since the last sign.
    pub(crate) fn reports_scanned(&mut self, passed: usize) -> bool {
        passed >= 10_000 || (passed > 0 && self.once_in(3))
    }

    /// Whether a message with those contents is sent as it is.
    pub(crate) fn ends_message(&mut self, bytes: usize, committed: bool) -> bool {
        match self.chunking {
            Chunking::Service => bytes >= MESSAGE_BYTES,
            Chunking::RowPerMessage => committed,
            Chunking::Seeded(_) => bytes >= MESSAGE_BYTES || self.rng.u32(0..6) == 0,
        }
    }

    /// The chunks of one row, the last of which commits it.
    pub(crate) fn row(&mut self, key: &[u8], cells: &[View<'_>], out: &mut Vec<CellChunk>) {
        if self.once_in(8) {
            let from = out.len();
            self.cells(key, cells, out);
            // Never the committing chunk itself: a committed row cannot be reset.
            let sent = self.rng.usize(0..out.len() - from);
            out.truncate(from + sent);
            if sent > 0 {
                out.push(CellChunk {
                    row_status: Some(RowStatus::ResetRow(true)),
                    ..CellChunk::default()
                });
            }
        }
        self.cells(key, cells, out);
        if let Some(last) = out.last_mut() {
            last.row_status = Some(RowStatus::CommitRow(true));
        }
    }

    fn cells(&mut self, key: &[u8], cells: &[View<'_>], out: &mut Vec<CellChunk>) {
        let mut previous: Option<&View<'_>> = None;
        for cell in cells {
            let same_family = previous.is_some_and(|previous| previous.family == cell.family);
            let same_column = same_family
                && previous.is_some_and(|previous| previous.qualifier == cell.qualifier);
            let give_key = previous.is_none() || self.once_in(4);
            let give_family = !same_family || self.once_in(4);
            let give_qualifier = give_family || !same_column || self.once_in(4);
            let mut chunk = CellChunk {
                row_key: if give_key {
                    Bytes::copy_from_slice(key)
                } else {
                    Bytes::new()
                },
                family_name: give_family.then(|| cell.family.to_owned()),
                qualifier: give_qualifier.then(|| cell.qualifier.to_vec()),
                timestamp_micros: cell.timestamp,
                labels: cell.label.map(str::to_owned).into_iter().collect(),
                ..CellChunk::default()
            };
            let mut rest = cell.value;
            while let Some(part) = self.split(rest.len()) {
                let (sent, left) = rest.split_at(part);
                rest = left;
                chunk.value = Bytes::copy_from_slice(sent);
                chunk.value_size = i32::try_from(cell.value.len()).unwrap_or(i32::MAX);
                out.push(std::mem::take(&mut chunk));
            }
            chunk.value = Bytes::copy_from_slice(rest);
            out.push(chunk);
            previous = Some(cell);
        }
    }

    /// Where to split what is left of a value, if at all; never into nothing.
    fn split(&mut self, left: usize) -> Option<usize> {
        if left > VALUE_BYTES {
            return Some(VALUE_BYTES);
        }
        (left > 1 && self.once_in(3)).then(|| self.rng.usize(1..left))
    }
}

/// One gRPC message: a prefix of five bytes, then the encoded message.
pub(crate) fn frame(message: &impl prost::Message) -> Bytes {
    use bytes::BufMut;
    let length = message.encoded_len();
    let mut buffer = BytesMut::with_capacity(5 + length);
    buffer.put_u8(0);
    buffer.put_u32(u32::try_from(length).expect("messages are far below 4 GiB"));
    message
        .encode(&mut buffer)
        .expect("the buffer was sized for the message");
    buffer.freeze()
}
