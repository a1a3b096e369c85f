//! Reads one split: bytes in, records and positions out. A pure core; `fetch` brings the bytes.
//!
//! A split that does not begin at the file's beginning begins at the first line that begins in it:
//! the cursor is fed from the byte before `start` and passes over what ends there, so a line that
//! begins exactly at `start` belongs to this split. It ends with the first line that begins at or
//! after `end`.

use aqueduct_connector::source::{Collector, Emission, Record};

use super::format::{FileFormat, Framing, Malformed};
use super::framer::{Frame, Framer, Quoting};
use super::split::{FileSplit, Position};

/// What happens to a line that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MalformedPolicy {
    /// The job fails, naming file and line.
    #[default]
    Fail,
    /// It is dropped and counted in `malformedLines`; the first of each split is logged by place.
    Drop,
}

/// How a batch ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) records: usize,
    pub(crate) bytes: u64,
}

/// Why filling a batch stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filled {
    /// A limit is reached.
    Full,
    /// More bytes must come.
    NeedMore,
    /// The split's last record is in.
    Done,
}

/// A record that the policy does not let pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadRecord {
    /// Counted from the split's first line, from 1.
    pub(crate) line: u64,
    pub(crate) offset_bytes: u64,
    pub(crate) reason: Malformed,
}

/// What a batch cost.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) bytes: u64,
    pub(crate) skipped: u64,
    pub(crate) malformed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Passing over the line that began before the split.
    Align,
    /// The next row names the columns.
    Header,
    Records,
}

/// Event time of a value, as the source's builder was told.
pub(crate) type TimestampOf<T> = dyn Fn(&T) -> Option<aqueduct_connector::Timestamp> + Send + Sync;

#[derive(Debug)]
pub(crate) struct Cursor<F> {
    format: F,
    framer: Framer,
    stage: Stage,
    /// Stream place 0 of the framer is here.
    origin: Position,
    /// Line ends passed over at the beginning, which belong to the split before.
    foreign_lines: u64,
    end: u64,
    keep_blank: bool,
    policy: MalformedPolicy,
    /// The first record dropped, until it was told.
    first_dropped: Option<BadRecord>,
    dropped_any: bool,
    max_bytes: u64,
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl<F: FileFormat> Cursor<F> {
    pub(crate) fn new(
        format: F,
        split: &FileSplit,
        max_bytes: usize,
        policy: MalformedPolicy,
    ) -> Self {
        let framing = format.framing();
        let mut framer = Framer::new(quoting(&framing), max_bytes);
        let (stage, origin) = match split.position {
            Some(position) if position.offset_bytes > 0 => (Stage::Records, position),
            None if split.start > 0 => {
                framer.skip_line();
                let offset_bytes = split.start - 1;
                (
                    Stage::Align,
                    Position {
                        offset_bytes,
                        lines: 0,
                    },
                )
            }
            _ if framing.has_header() => (Stage::Header, Position::default()),
            _ => (Stage::Records, Position::default()),
        };
        Self {
            format,
            framer,
            stage,
            origin,
            foreign_lines: 0,
            end: split.end,
            keep_blank: framing.keeps_blank(),
            policy,
            first_dropped: None,
            dropped_any: false,
            max_bytes: max_bytes as u64,
        }
    }

    /// Where the bytes to push begin.
    pub(crate) fn feed_from(&self) -> u64 {
        self.origin.offset_bytes
    }

    /// Whether the header must be given apart, because the bytes begin behind it.
    pub(crate) fn wants_header(&self) -> bool {
        self.origin.offset_bytes > 0 && self.format.framing().has_header()
    }

    pub(crate) fn header(&mut self, row: &[u8]) -> Result<(), BadRecord> {
        let row = row.strip_prefix(BYTE_ORDER_MARK).unwrap_or(row);
        self.format.header(row).map_err(|reason| BadRecord {
            line: 1,
            offset_bytes: 0,
            reason,
        })
    }

    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.framer.push(piece);
    }

    pub(crate) fn end_of_input(&mut self) {
        self.framer.end();
    }

    /// The first record dropped, once.
    pub(crate) fn take_first_dropped(&mut self) -> Option<BadRecord> {
        self.first_dropped.take()
    }

    fn position(&self) -> Position {
        Position {
            offset_bytes: self.origin.offset_bytes + self.framer.consumed(),
            lines: self.origin.lines + self.framer.lines() - self.foreign_lines,
        }
    }

    /// Adds records up to the limits, counted in `tally`, and their positions.
    pub(crate) fn fill(
        &mut self,
        limits: Limits,
        tally: &mut Tally,
        timestamp_of: Option<&TimestampOf<F::Output>>,
        records: &mut Vec<Record<F::Output>>,
        emission: &mut Emission<Position>,
    ) -> Result<Filled, BadRecord> {
        loop {
            if records.len() >= limits.records || tally.bytes >= limits.bytes {
                return Ok(Filled::Full);
            }
            let before = self.position();
            if self.stage != Stage::Align && before.offset_bytes >= self.end {
                return Ok(Filled::Done);
            }
            let frame = match self.framer.next() {
                Frame::Record(frame) => frame,
                Frame::NeedMore => return Ok(Filled::NeedMore),
                Frame::End => return Ok(Filled::Done),
                Frame::Skipped if self.stage == Stage::Align => {
                    self.foreign_lines = self.framer.lines();
                    self.stage = Stage::Records;
                    emission.push(0, self.position());
                    continue;
                }
                Frame::Skipped => {
                    tally.bytes += self.position().offset_bytes - before.offset_bytes;
                    emission.push(0, self.position());
                    continue;
                }
                Frame::TooLong => {
                    let limit = self.max_bytes;
                    let reason = Malformed::new(format!(
                        "longer than the {limit} bytes that option 'scan.files.max-line-length' \
                         allows"
                    ));
                    self.malformed(before, reason, tally)?;
                    continue;
                }
                Frame::Unclosed => {
                    let reason = Malformed::new("a quote that is never closed");
                    self.malformed(before, reason, tally)?;
                    emission.push(0, self.position());
                    continue;
                }
            };
            let position = self.position();
            tally.bytes += position.offset_bytes - before.offset_bytes;
            let mut bytes = self.framer.slice(frame);
            if before.offset_bytes == 0 {
                bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
            }
            if bytes.is_empty() && !self.keep_blank {
                emission.push(0, position);
                continue;
            }
            if self.stage == Stage::Header {
                self.format
                    .header(bytes)
                    .map_err(|reason| bad(before, reason))?;
                self.stage = Stage::Records;
                emission.push(0, position);
                continue;
            }
            let known = records.len();
            let decoded = self
                .format
                .decode(bytes, &mut Collector::new(records, None));
            if let Err(reason) = decoded {
                records.truncate(known);
                self.malformed(before, reason, tally)?;
            } else if records.len() == known {
                tally.skipped += 1;
            } else if let Some(timestamp_of) = timestamp_of {
                for record in &mut records[known..] {
                    record.timestamp = record.timestamp.or_else(|| timestamp_of(&record.value));
                }
            }
            emission.push(records.len() - known, position);
        }
    }

    #[cold]
    fn malformed(
        &mut self,
        at: Position,
        reason: Malformed,
        tally: &mut Tally,
    ) -> Result<(), BadRecord> {
        let bad = bad(at, reason);
        // Without a header no record can be read.
        if self.policy == MalformedPolicy::Fail || self.stage == Stage::Header {
            return Err(bad);
        }
        tally.malformed += 1;
        if !self.dropped_any {
            self.dropped_any = true;
            self.first_dropped = Some(bad);
        }
        Ok(())
    }
}

fn bad(at: Position, reason: Malformed) -> BadRecord {
    BadRecord {
        line: at.lines + 1,
        offset_bytes: at.offset_bytes,
        reason,
    }
}

/// Where quotes may hide line ends.
pub(crate) fn quoting(framing: &Framing) -> Option<Quoting> {
    match framing {
        Framing::Csv(dialect) if !dialect.splittable => Some(Quoting {
            delimiter: dialect.delimiter,
            quote: b'"',
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
