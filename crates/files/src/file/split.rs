//! A split of a file, and its bytes in a checkpoint.
//!
//! A split is a range `[start, end)` of a file and the position where reading goes on. A record
//! belongs to the split that holds its first byte. Size and version of the file travel along, so
//! that a file which changed under a job is noticed and not read as if nothing had happened.

use aqueduct_connector::source::{Split, SplitId};
use aqueduct_connector::state::{StateError, StateReader, StateWriter, Versioned};

/// The format's version.
const VERSION: u32 = 1;
const WHAT: &str = "a file split";

/// `end` of a split that goes to the file's end, wherever that is.
pub(crate) const TO_THE_END: u64 = u64::MAX;

/// How a file is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
}

/// A file, as planning found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileRef {
    /// The location as configured: the file itself, or the directory that holds it.
    pub(crate) location: String,
    /// The file's name below the location, if that is a directory.
    pub(crate) name: Option<String>,
    /// Size as stored.
    pub(crate) size_bytes: u64,
    /// What the store says changes with the content.
    pub(crate) etag: Option<String>,
    pub(crate) packing: Packing,
}

impl FileRef {
    /// How the file is shown.
    pub(crate) fn shown(&self) -> String {
        match &self.name {
            Some(name) => format!("{}/{name}", self.location.trim_end_matches('/')),
            None => self.location.clone(),
        }
    }
}

/// Where reading goes on, always at the beginning of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Position {
    /// Unpacked bytes from the file's beginning.
    pub(crate) offset_bytes: u64,
    /// Line ends passed since the split's first line.
    pub(crate) lines: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileSplit {
    pub(crate) file: FileRef,
    /// In unpacked bytes; not below `start`.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// `None`: not begun, so the first record is yet to be found.
    pub(crate) position: Option<Position>,
}

impl FileSplit {
    /// Unique in a source, because planning refuses a file that is listed twice.
    pub(crate) fn id(&self) -> SplitId {
        SplitId::new(format!("{}@{}", self.file.shown(), self.start))
    }

    pub(crate) fn to_split(&self) -> Split {
        self.with_id(self.id())
    }

    pub(crate) fn with_id(&self, id: SplitId) -> Split {
        Split {
            id,
            state: self.encode(),
        }
    }

    pub(crate) fn encode(&self) -> Versioned {
        let mut to = StateWriter::new();
        let optional = |to: &mut StateWriter, text: &Option<String>| match text {
            Some(text) => {
                to.u8(1).text(text);
            }
            None => {
                to.u8(0);
            }
        };
        to.text(&self.file.location);
        optional(&mut to, &self.file.name);
        to.u64(self.file.size_bytes);
        optional(&mut to, &self.file.etag);
        to.u8(match self.file.packing {
            Packing::Plain => 0,
            Packing::Gzip => 1,
        });
        to.u64(self.start).u64(self.end);
        match self.position {
            Some(position) => to.u8(1).u64(position.offset_bytes).u64(position.lines),
            None => to.u8(0),
        };
        to.finish(VERSION)
    }

    pub(crate) fn decode(state: &Versioned) -> Result<Self, StateError> {
        let mut from = StateReader::open(WHAT, state, 1..=VERSION)?;
        let optional = |from: &mut StateReader<'_>| match from.u8()? {
            0 => Ok(None),
            1 => from.text().map(|text| Some(text.to_owned())),
            _ => Err(from.damaged("a flag is neither 0 nor 1")),
        };
        let location = from.text()?.to_owned();
        let name = optional(&mut from)?;
        let size_bytes = from.u64()?;
        let etag = optional(&mut from)?;
        let packing = match from.u8()? {
            0 => Packing::Plain,
            1 => Packing::Gzip,
            _ => return Err(from.damaged("the packing is unknown")),
        };
        let (start, end) = (from.u64()?, from.u64()?);
        if end < start {
            return Err(from.damaged("the range ends before it begins"));
        }
        let position = match from.u8()? {
            0 => None,
            1 => Some(Position {
                offset_bytes: from.u64()?,
                lines: from.u64()?,
            }),
            _ => return Err(from.damaged("a flag is neither 0 nor 1")),
        };
        if position.is_some_and(|position| position.offset_bytes < start) {
            return Err(from.damaged("the position is before the range"));
        }
        from.finish()?;
        let file = FileRef {
            location,
            name,
            size_bytes,
            etag,
            packing,
        };
        Ok(Self {
            file,
            start,
            end,
            position,
        })
    }
}

/// The enumerator's state: whether the plan is made, and what of it waits for a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EnumeratorState {
    /// `None`: not planned.
    pub(crate) unassigned: Option<Vec<Split>>,
}

impl EnumeratorState {
    const VERSION: u32 = 1;
    const WHAT: &str = "the state of a file enumerator";

    pub(crate) fn encode<'a>(
        unassigned: Option<impl ExactSizeIterator<Item = &'a Split>>,
    ) -> Versioned {
        let mut to = StateWriter::new();
        match unassigned {
            None => {
                to.u8(0);
            }
            Some(splits) => {
                to.u8(1).count(splits.len());
                for split in splits {
                    to.text(split.id.as_str()).versioned(&split.state);
                }
            }
        }
        to.finish(Self::VERSION)
    }

    pub(crate) fn decode(state: &Versioned) -> Result<Self, StateError> {
        let mut from = StateReader::open(Self::WHAT, state, 1..=Self::VERSION)?;
        let unassigned = match from.u8()? {
            0 => None,
            1 => {
                // An id's and a state's length and a version.
                let count = from.count(12)?;
                let mut splits = Vec::with_capacity(count);
                for _ in 0..count {
                    let id = SplitId::new(from.text()?);
                    let state = from.versioned()?;
                    // Read now, so that a damaged split is found at the restore.
                    FileSplit::decode(&state)?;
                    splits.push(Split { id, state });
                }
                Some(splits)
            }
            _ => return Err(from.damaged("a flag is neither 0 nor 1")),
        };
        from.finish()?;
        Ok(Self { unassigned })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every field in use.
    fn sample() -> FileSplit {
        FileSplit {
            file: FileRef {
                location: "gs://bucket/dir".to_owned(),
                name: Some("a/b.csv.gz".to_owned()),
                size_bytes: 123_456,
                etag: Some("e7".to_owned()),
                packing: Packing::Gzip,
            },
            start: 0,
            end: TO_THE_END,
            position: Some(Position {
                offset_bytes: 99,
                lines: 4,
            }),
        }
    }

    /// As few as possible.
    fn bare() -> FileSplit {
        FileSplit {
            file: FileRef {
                location: "/data/x.json".to_owned(),
                name: None,
                size_bytes: 300,
                etag: None,
                packing: Packing::Plain,
            },
            start: 100,
            end: 200,
            position: None,
        }
    }

    fn state_sample() -> Versioned {
        EnumeratorState::encode(Some([sample().to_split(), bare().to_split()].iter()))
    }

    const SPLIT_V1: &[u8] = include_bytes!("../../tests/it/golden/file-split-v1.bin");
    const BARE_V1: &[u8] = include_bytes!("../../tests/it/golden/file-split-bare-v1.bin");
    const ENUMERATOR_V1: &[u8] = include_bytes!("../../tests/it/golden/file-enumerator-v1.bin");

    #[test]
    fn the_current_version_keeps_its_bytes() {
        assert_eq!(
            sample().encode().bytes,
            SPLIT_V1,
            "changed? that is version 2"
        );
        assert_eq!(bare().encode().bytes, BARE_V1, "changed? that is version 2");
        assert_eq!(
            state_sample().bytes,
            ENUMERATOR_V1,
            "changed? that is version 2"
        );
    }

    #[test]
    fn every_committed_version_still_reads() {
        let read = |bytes| FileSplit::decode(&Versioned::new(1, bytes));
        assert_eq!(read(SPLIT_V1), Ok(sample()));
        assert_eq!(read(BARE_V1), Ok(bare()));
        let state = EnumeratorState::decode(&Versioned::new(1, ENUMERATOR_V1));
        let splits = vec![sample().to_split(), bare().to_split()];
        assert_eq!(
            state,
            Ok(EnumeratorState {
                unassigned: Some(splits)
            })
        );
    }

    #[test]
    fn damage_and_newer_versions_are_refused() {
        for (bytes, newer) in [(SPLIT_V1, 2), (ENUMERATOR_V1, 7)] {
            let refused = |state: &Versioned| {
                FileSplit::decode(state).is_err() && EnumeratorState::decode(state).is_err()
            };
            assert!(refused(&Versioned::new(newer, bytes)));
            let mut longer = bytes.to_vec();
            longer.push(0);
            assert!(refused(&Versioned::new(1, longer)));
            for cut in 0..bytes.len() {
                assert!(refused(&Versioned::new(1, &bytes[..cut])), "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_planned_and_empty_state_is_not_an_unplanned_one() {
        let none: Option<std::slice::Iter<'_, Split>> = None;
        let unplanned = EnumeratorState::decode(&EnumeratorState::encode(none));
        assert_eq!(unplanned, Ok(EnumeratorState { unassigned: None }));
        let empty = EnumeratorState::decode(&EnumeratorState::encode(Some([].iter())));
        assert_eq!(
            empty,
            Ok(EnumeratorState {
                unassigned: Some(Vec::new())
            })
        );
    }
}
