//! Checkpoints: what they hold, how they are stored, how they are spread over another parallelism.
//!
//! | file | holds |
//! | --- | --- |
//! | `state` | one operator's state as bytes: a versioned format with golden files |
//! | `manifest` | the description that makes a checkpoint complete |
//! | `storage` | the directory: writing, finding, reading, retaining |
//!
//! # Invariants
//!
//! - A checkpoint exists when its manifest does, and the manifest is written last.
//! - Whatever is read back is checked: length, checksum, version, job, operators.
//! - A damaged checkpoint is an error that names file and checkpoint, never a reason to take another one
//!   silently.

mod manifest;
mod redistribute;
mod state;
mod storage;

pub(crate) use redistribute::Restored;
pub(crate) use state::{OperatorFile, PendingCommit, SubtaskState};
pub(crate) use storage::{CheckpointStore, Loaded, NewCheckpoint};
