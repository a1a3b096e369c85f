//! What is stored and sent: splits, the coordinator's state, and the messages of a limited scan.
//!
//! Every format counts its versions from 1; golden files in `tests/it/golden` hold later versions to reading them.

use std::fmt;

use aqueduct_connector::Versioned;
use aqueduct_connector::source::{Split, SplitId};
use aqueduct_connector::state::{StateError, StateReader, StateWriter};

use crate::range::RowRange;

/// The newest version of a split's state.
const SPLIT_VERSION: u32 = 1;
/// The newest version of the coordinator's state.
const ENUMERATOR_VERSION: u32 = 1;
/// The newest version of the messages between readers and coordinator.
const EVENT_VERSION: u32 = 1;
/// The least that a stored split takes: version, length, ordinal, two bounds, two flags.
const LEAST_SPLIT_BYTES: usize = 4 + 4 + 8 + 2 + 2;

/// A part of the scan: what is left to read of it.
#[derive(Clone, PartialEq, Eq)]
pub struct ScanSplit {
    /// Its place in the plan, which names it.
    pub ordinal: u64,
    /// The rows left.
    pub range: RowRange,
    /// How many rows may still be emitted, under a row limit.
    pub rows_left: Option<u64>,
    /// Read to its end. Kept only under a row limit, until the coordinator has taken back what was left of the limit.
    pub finished: bool,
}

impl ScanSplit {
    /// A split of which nothing was read.
    #[must_use]
    pub const fn new(ordinal: u64, range: RowRange) -> Self {
        Self {
            ordinal,
            range,
            rows_left: None,
            finished: false,
        }
    }

    /// Whether nothing is left to ask the service for.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.finished || self.rows_left == Some(0) || self.range.is_empty()
    }

    /// The name.
    #[must_use]
    pub fn id(&self) -> SplitId {
        SplitId::new(self.ordinal.to_string())
    }

    /// As readers and checkpoints get it.
    #[must_use]
    pub fn to_split(&self) -> Split {
        Split {
            id: self.id(),
            state: self.encode(),
        }
    }

    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Versioned {
        let mut writer = StateWriter::new();
        writer.u64(self.ordinal);
        self.range.encode(&mut writer);
        match self.rows_left {
            None => writer.u8(0),
            Some(rows) => writer.u8(1).u64(rows),
        };
        writer.u8(u8::from(self.finished));
        writer.finish(SPLIT_VERSION)
    }

    /// Reads the stored form.
    ///
    /// # Errors
    ///
    /// If it is of an unknown version or damaged.
    pub fn decode(state: &Versioned) -> Result<Self, StateError> {
        let mut reader = StateReader::open("a Bigtable scan split", state, 1..=SPLIT_VERSION)?;
        let ordinal = reader.u64()?;
        let range = RowRange::decode(&mut reader)?;
        let rows_left = match reader.u8()? {
            0 => None,
            1 => Some(reader.u64()?),
            _ => return Err(reader.damaged("a flag that is neither 0 nor 1")),
        };
        let finished = flag(&mut reader)?;
        reader.finish()?;
        Ok(Self {
            ordinal,
            range,
            rows_left,
            finished,
        })
    }
}

impl fmt::Debug for ScanSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.ordinal, self.range)?;
        if let Some(rows) = self.rows_left {
            write!(f, ", {rows} rows left")?;
        }
        if self.finished {
            f.write_str(", finished")?;
        }
        Ok(())
    }
}

/// What a coordinator stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnumeratorState {
    /// Whether the plan was made. One that was handed out entirely is still a plan.
    pub planned: bool,
    /// Splits not handed out, in order.
    pub unassigned: Vec<ScanSplit>,
    /// The account of a row limit, if there is one.
    pub limited: Option<Limited>,
}

/// The account of a row limit: splits are read one after the other, and the remainder of the limit goes with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limited {
    /// Rows that may still be emitted; while a split is being read, what it was given.
    pub left: u64,
    /// The split being read.
    pub active: Option<u64>,
}

impl EnumeratorState {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Versioned {
        let mut writer = StateWriter::new();
        writer.u8(u8::from(self.planned));
        match self.limited {
            None => writer.u8(0),
            Some(Limited { left, active }) => {
                writer.u8(1).u64(left);
                match active {
                    None => writer.u8(0),
                    Some(ordinal) => writer.u8(1).u64(ordinal),
                }
            }
        };
        writer.count(self.unassigned.len());
        for split in &self.unassigned {
            writer.versioned(&split.encode());
        }
        writer.finish(ENUMERATOR_VERSION)
    }

    /// Reads the stored form.
    ///
    /// # Errors
    ///
    /// If it is of an unknown version or damaged.
    pub fn decode(state: &Versioned) -> Result<Self, StateError> {
        let mut reader = StateReader::open(
            "the Bigtable scan's coordinator state",
            state,
            1..=ENUMERATOR_VERSION,
        )?;
        let planned = flag(&mut reader)?;
        let limited = if flag(&mut reader)? {
            let left = reader.u64()?;
            let active = if flag(&mut reader)? {
                Some(reader.u64()?)
            } else {
                None
            };
            Some(Limited { left, active })
        } else {
            None
        };
        let count = reader.count(LEAST_SPLIT_BYTES)?;
        let mut unassigned = Vec::with_capacity(count);
        for _ in 0..count {
            unassigned.push(ScanSplit::decode(&reader.versioned()?)?);
        }
        reader.finish()?;
        Ok(Self {
            planned,
            unassigned,
            limited,
        })
    }
}

/// A reader's message: it has read a split of a limited scan to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Finished {
    pub(super) ordinal: u64,
    /// Rows of the limit that the split did not use.
    pub(super) unused: u64,
}

impl Finished {
    pub(super) fn encode(self) -> Versioned {
        StateWriter::new()
            .u64(self.ordinal)
            .u64(self.unused)
            .finish(EVENT_VERSION)
    }

    pub(super) fn decode(event: &Versioned) -> Result<Self, StateError> {
        let mut reader =
            StateReader::open("a Bigtable scan reader's message", event, 1..=EVENT_VERSION)?;
        let (ordinal, unused) = (reader.u64()?, reader.u64()?);
        reader.finish()?;
        Ok(Self { ordinal, unused })
    }
}

/// The coordinator's answer to [`Finished`]: the split is in its account, and the reader may forget it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) ordinal: u64,
}

impl Settled {
    pub(super) fn encode(self) -> Versioned {
        StateWriter::new().u64(self.ordinal).finish(EVENT_VERSION)
    }

    pub(super) fn decode(event: &Versioned) -> Result<Self, StateError> {
        let mut reader = StateReader::open(
            "the Bigtable scan coordinator's message",
            event,
            1..=EVENT_VERSION,
        )?;
        let ordinal = reader.u64()?;
        reader.finish()?;
        Ok(Self { ordinal })
    }
}

fn flag(reader: &mut StateReader<'_>) -> Result<bool, StateError> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(reader.damaged("a flag that is neither 0 nor 1")),
    }
}
