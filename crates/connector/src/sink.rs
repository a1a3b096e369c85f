//! Sinks: writers that admit records and flush, committers that apply what a checkpoint has made certain.

use std::task::{Context as PollContext, Poll};

use crate::clock::Timestamp;
use crate::context::{CheckpointId, Context};
use crate::error::Result;
use crate::state::Versioned;

/// A destination for records of type `T`. One value describes the sink; the host makes a writer a subtask from it.
pub trait Sink<T>: Send + Sync {
    /// The connector's stable identifier, such as `bigtable`.
    fn connector(&self) -> &'static str;

    /// Makes the writer of one subtask. Does no I/O: opening happens in the first polls.
    ///
    /// `restored` is this subtask's share of the writer states of the restored checkpoint, redistributed if the
    /// parallelism changed; empty on a fresh start.
    ///
    /// # Errors
    ///
    /// If a setting or a restored state cannot be used.
    fn create_writer(
        &self,
        context: Context,
        restored: Vec<Versioned>,
    ) -> Result<Box<dyn SinkWriter<T>>>;

    /// Makes the committer of a staged sink; `None` for an eager one, whose writers apply everything themselves.
    ///
    /// # Errors
    ///
    /// If a setting cannot be used.
    fn create_committer(&self, context: Context) -> Result<Option<Box<dyn Committer>>> {
        let _ = context;
        Ok(None)
    }
}

/// What the host knows about a record beside its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordInfo {
    /// The record's event time, if it has one.
    pub timestamp: Option<Timestamp>,
    /// The watermark when the record arrived, if there is one yet.
    pub watermark: Option<Timestamp>,
}

/// Why a flush happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// A barrier passes; more records will follow.
    Checkpoint,
    /// The input has ended.
    EndOfInput,
}

/// Writes the records of one subtask.
///
/// Driven like a `futures::Sink`: a host calls `poll_ready` until it is ready, then `write` once, and so on; while it
/// has nothing to write it calls `poll_progress`, and at a barrier `poll_flush` until ready. After an error only
/// `poll_close` is called. User code inside the writer is called during `write`, resolver before serializer, and never
/// concurrently.
pub trait SinkWriter<T> {
    /// Whether a record may be written now. `Pending` is backpressure: the writer is at its bounds, or a pass that must
    /// come first is under way. Meanwhile it keeps working and wakes the caller.
    ///
    /// # Errors
    ///
    /// What has failed since the last call, including failures of records admitted earlier.
    fn poll_ready(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>>;

    /// Admits one record. Only after `poll_ready` was ready.
    ///
    /// # Errors
    ///
    /// If the record was refused and the failure handler did not take it.
    fn write(&mut self, record: T, info: RecordInfo) -> Result<()>;

    /// Does background work: sends a batch whose time has come, takes answers in. Returns `Pending` as long as the
    /// writer is well; the host calls it whenever the waker fires and nothing else is being polled.
    ///
    /// # Errors
    ///
    /// As `poll_ready`.
    fn poll_progress(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>>;

    /// Ready when every admitted record was applied, skipped by the serializer or accepted by the failure handler (a
    /// staged sink: is part of what `prepare_commit` will hand over), and not before.
    ///
    /// # Errors
    ///
    /// If one of them failed, or a record admitted earlier did.
    fn poll_flush(&mut self, cx: &mut PollContext<'_>, flush: Flush) -> Poll<Result<()>>;

    /// Hands over what the checkpoint, once complete, shall commit. Called after a flush.
    ///
    /// # Errors
    ///
    /// If it cannot be encoded.
    fn prepare_commit(&mut self, checkpoint: CheckpointId) -> Result<Vec<Versioned>> {
        let _ = checkpoint;
        Ok(Vec::new())
    }

    /// The writer's state for `checkpoint`. Called after `prepare_commit`.
    ///
    /// # Errors
    ///
    /// If it cannot be encoded.
    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Vec<Versioned>> {
        let _ = checkpoint;
        Ok(Vec::new())
    }

    /// `checkpoint` and all before it are complete. May be missed; act on the highest seen.
    ///
    /// # Errors
    ///
    /// Fails the job; the checkpoint stays complete.
    fn checkpoint_completed(&mut self, checkpoint: CheckpointId) -> Result<()> {
        let _ = checkpoint;
        Ok(())
    }

    /// `checkpoint` will not complete; a later one may.
    fn checkpoint_aborted(&mut self, checkpoint: CheckpointId) {
        let _ = checkpoint;
    }

    /// Releases everything, on success and on failure. Sends nothing new and closes every resource whatever the earlier
    /// ones did.
    ///
    /// # Errors
    ///
    /// The first failure to close, later ones attached to it.
    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>>;
}

/// A committable with what happened to it so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitRequest {
    /// What the writer handed over.
    pub committable: Versioned,
    /// The checkpoint it belongs to.
    pub checkpoint: CheckpointId,
    /// How often it was handed to a committer before.
    pub attempt: u32,
}

/// The committer's answer for one committable.
#[derive(Debug)]
pub enum CommitOutcome {
    /// Applied now.
    Done,
    /// Had been applied before.
    AlreadyDone,
    /// Not applied; the host hands it over again with a higher attempt count.
    TryAgain,
    /// Can never be applied; the job fails with this error.
    Refused(crate::error::Error),
}

/// Applies committables of completed checkpoints, repeatably: after a restore it is handed what was not confirmed, and
/// must give the same effect again.
pub trait Committer {
    /// Takes over requests to apply. The host hands over the next set only when the last is answered.
    ///
    /// # Errors
    ///
    /// If a committable cannot be read.
    fn start_commit(&mut self, requests: Vec<CommitRequest>) -> Result<()>;

    /// Ready with one outcome for each request taken over, in their order.
    ///
    /// # Errors
    ///
    /// Fails the job; all requests will be handed over again after the restart.
    fn poll_commit(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<Vec<CommitOutcome>>>;

    /// Releases everything.
    ///
    /// # Errors
    ///
    /// The first failure to close.
    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>>;
}
