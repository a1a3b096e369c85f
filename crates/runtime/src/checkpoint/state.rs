//! One operator's state in a checkpoint, as bytes.
//!
//! Version 1: the enumerator's state, if there is one; the subtasks' shares (splits, list, keyed); the
//! committables that were not confirmed yet.

use aqueduct_connector::source::{Split, SplitId};
use aqueduct_connector::state::{StateError, StateReader, StateWriter};
use aqueduct_connector::{CheckpointId, Versioned};
use bytes::Bytes;

/// The version this program writes.
const VERSION: u32 = 1;
const NAME: &str = "operator state";

/// One subtask's share of one operator's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SubtaskState {
    /// A reader's splits.
    pub(crate) splits: Vec<Split>,
    /// A writer's or an operator's list.
    pub(crate) list: Vec<Versioned>,
    /// State by key group.
    pub(crate) keyed: Vec<(u32, Versioned)>,
    /// What a writer handed over at this barrier; moved to [`OperatorFile::committables`] when stored.
    pub(crate) committables: Vec<Versioned>,
}

impl SubtaskState {
    pub(crate) fn is_empty(&self) -> bool {
        self.splits.is_empty() && self.list.is_empty() && self.keyed.is_empty()
    }
}

/// A committable on its way to its committer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingCommit {
    /// The checkpoint at whose barrier it was handed over.
    pub(crate) checkpoint: CheckpointId,
    /// How often a committer may have seen it before.
    pub(crate) attempt: u32,
    /// The writer's bytes.
    pub(crate) committable: Versioned,
}

/// Everything that a checkpoint holds of one operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OperatorFile {
    pub(crate) enumerator: Option<Versioned>,
    pub(crate) subtasks: Vec<SubtaskState>,
    pub(crate) committables: Vec<PendingCommit>,
}

impl OperatorFile {
    pub(crate) fn is_empty(&self) -> bool {
        self.enumerator.is_none()
            && self.committables.is_empty()
            && self.subtasks.iter().all(SubtaskState::is_empty)
    }

    /// The bytes to store: the version, then the format.
    pub(crate) fn encode(&self) -> Bytes {
        let mut writer = StateWriter::new();
        writer.u32(VERSION);
        match &self.enumerator {
            None => writer.u8(0),
            Some(state) => writer.u8(1).versioned(state),
        };
        writer.count(self.subtasks.len());
        for subtask in &self.subtasks {
            writer.count(subtask.splits.len());
            for split in &subtask.splits {
                writer.text(split.id.as_str()).versioned(&split.state);
            }
            writer.count(subtask.list.len());
            for item in &subtask.list {
                writer.versioned(item);
            }
            writer.count(subtask.keyed.len());
            for (group, state) in &subtask.keyed {
                writer.u32(*group).versioned(state);
            }
        }
        writer.count(self.committables.len());
        for pending in &self.committables {
            writer
                .u64(pending.checkpoint.0)
                .u32(pending.attempt)
                .versioned(&pending.committable);
        }
        writer.finish(VERSION).bytes
    }

    /// Reads what any released version wrote.
    pub(crate) fn decode(bytes: &Bytes) -> Result<Self, StateError> {
        let version = bytes
            .first_chunk::<4>()
            .map_or(0, |version| u32::from_le_bytes(*version));
        let value = Versioned::new(version, bytes.clone());
        let mut reader = StateReader::open(NAME, &value, 1..=VERSION)?;
        reader.u32()?;
        let enumerator = match reader.u8()? {
            0 => None,
            _ => Some(reader.versioned()?),
        };
        let count = reader.count(12)?;
        let mut subtasks = Vec::with_capacity(count);
        for _ in 0..count {
            subtasks.push(read_subtask(&mut reader)?);
        }
        let count = reader.count(20)?;
        let mut committables = Vec::with_capacity(count);
        for _ in 0..count {
            committables.push(PendingCommit {
                checkpoint: CheckpointId(reader.u64()?),
                attempt: reader.u32()?,
                committable: reader.versioned()?,
            });
        }
        reader.finish()?;
        Ok(Self {
            enumerator,
            subtasks,
            committables,
        })
    }
}

fn read_subtask(reader: &mut StateReader<'_>) -> Result<SubtaskState, StateError> {
    let count = reader.count(12)?;
    let mut splits = Vec::with_capacity(count);
    for _ in 0..count {
        splits.push(Split {
            id: SplitId::new(reader.text()?),
            state: reader.versioned()?,
        });
    }
    let count = reader.count(8)?;
    let mut list = Vec::with_capacity(count);
    for _ in 0..count {
        list.push(reader.versioned()?);
    }
    let count = reader.count(12)?;
    let mut keyed = Vec::with_capacity(count);
    for _ in 0..count {
        keyed.push((reader.u32()?, reader.versioned()?));
    }
    Ok(SubtaskState {
        splits,
        list,
        keyed,
        committables: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> OperatorFile {
        OperatorFile {
            enumerator: Some(Versioned::new(3, "enumerator")),
            subtasks: vec![
                SubtaskState {
                    splits: vec![Split {
                        id: SplitId::new("s"),
                        state: Versioned::new(1, "at 5"),
                    }],
                    list: vec![Versioned::new(2, "item")],
                    keyed: vec![(7, Versioned::new(1, "group"))],
                    committables: Vec::new(),
                },
                SubtaskState::default(),
            ],
            committables: vec![PendingCommit {
                checkpoint: CheckpointId(9),
                attempt: 2,
                committable: Versioned::new(1, "commit"),
            }],
        }
    }

    #[test]
    fn what_was_stored_reads_back_and_every_truncation_is_refused() {
        let bytes = sample().encode();
        assert_eq!(OperatorFile::decode(&bytes), Ok(sample()));
        for len in 0..bytes.len() {
            assert!(OperatorFile::decode(&bytes.slice(..len)).is_err(), "{len}");
        }
    }

    #[test]
    fn a_newer_version_is_refused_by_name() {
        let mut bytes = sample().encode().to_vec();
        bytes[0] = 2;
        let error = OperatorFile::decode(&bytes.into()).unwrap_err().to_string();
        assert!(error.contains("version 2"), "{error}");
    }
}
