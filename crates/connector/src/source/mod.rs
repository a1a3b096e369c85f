//! Sources: an enumerator that finds and hands out splits, readers that read them.
//!
//! A *split* is the work that is left. Its position moves only when a record has been emitted downstream: a reader hands
//! out a [`Batch`], the host says how many of its records it has passed on ([`SourceReader::emitted`]), and a snapshot
//! speaks of those only. [`Emission`] keeps that account; [`PullAssigner`] is the assignment shared by bounded sources.

mod assign;
mod emission;

use std::fmt;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll};

use crate::clock::Timestamp;
use crate::context::{CheckpointId, Context};
use crate::error::Result;
use crate::state::Versioned;

pub use assign::PullAssigner;
pub use emission::Emission;

/// Whether a source ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundedness {
    /// It ends when everything was read.
    Bounded,
    /// It reads until the job stops.
    Unbounded,
}

/// Names a split, uniquely within its source for the life of the job.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SplitId(Arc<str>);

impl SplitId {
    /// A name.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SplitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for SplitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A split as it travels from enumerator to reader and into checkpoints: its name and its encoded rest of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Its name.
    pub id: SplitId,
    /// What is left to read, in the connector's own format.
    pub state: Versioned,
}

/// A record on its way downstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<T> {
    /// The value.
    pub value: T,
    /// Its event time, if the source knows one.
    pub timestamp: Option<Timestamp>,
}

/// Records of one split, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<T> {
    /// The split they come from.
    pub split: SplitId,
    /// The records; may be empty if inputs gave no output.
    pub records: Vec<Record<T>>,
}

/// What a reader has for its host.
#[derive(Debug)]
pub enum ReaderOutput<T> {
    /// Records. The host reports their emission before it polls again.
    Batch(Batch<T>),
    /// The source itself claims that no earlier event time will come from `split`.
    Watermark {
        /// The split it is about.
        split: SplitId,
        /// The claim.
        watermark: Timestamp,
    },
    /// `split` has given its last record; the host drops its watermark.
    SplitFinished(SplitId),
    /// Asks the enumerator for one more split.
    RequestSplit,
    /// A message for the enumerator, in the connector's own format.
    Event(Versioned),
    /// No more splits will come and all are finished; the reader's last output.
    End,
}

/// A source of records of type `T`. One value describes it; the host makes one enumerator a job and a reader a subtask.
pub trait Source<T>: Send + Sync {
    /// The connector's stable identifier, such as `files`.
    fn connector(&self) -> &'static str;

    /// Whether the source ends by itself.
    fn boundedness(&self) -> Boundedness;

    /// Makes the enumerator. `restored` is its state in the restored checkpoint; `None` on a fresh start. Does no I/O.
    ///
    /// # Errors
    ///
    /// If a setting or the restored state cannot be used.
    fn create_enumerator(
        &self,
        context: Context,
        restored: Option<Versioned>,
    ) -> Result<Box<dyn SplitEnumerator>>;

    /// Makes the reader of one subtask, without splits. Does no I/O.
    ///
    /// # Errors
    ///
    /// If a setting cannot be used.
    fn create_reader(&self, context: Context) -> Result<Box<dyn SourceReader<T>>>;
}

/// What an enumerator wants its host to do, collected during a call and carried out after it.
#[derive(Debug, Default)]
pub struct EnumeratorOutput {
    commands: Vec<EnumeratorCommand>,
}

/// One wish of an enumerator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnumeratorCommand {
    /// Hand splits to a registered reader.
    Assign {
        /// Index of the reader's subtask.
        reader: u32,
        /// The splits.
        splits: Vec<Split>,
    },
    /// Tell a reader that no further split will come; at most once each.
    NoMoreSplits {
        /// Index of the reader's subtask.
        reader: u32,
    },
    /// Send a reader a message in the connector's own format.
    Event {
        /// Index of the reader's subtask.
        reader: u32,
        /// The message.
        event: Versioned,
    },
}

impl EnumeratorOutput {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Hands `splits` to `reader`.
    pub fn assign(&mut self, reader: u32, splits: Vec<Split>) {
        self.commands
            .push(EnumeratorCommand::Assign { reader, splits });
    }

    /// Tells `reader` that no further split will come.
    pub fn no_more_splits(&mut self, reader: u32) {
        self.commands
            .push(EnumeratorCommand::NoMoreSplits { reader });
    }

    /// Sends `reader` a message.
    pub fn event(&mut self, reader: u32, event: Versioned) {
        self.commands
            .push(EnumeratorCommand::Event { reader, event });
    }

    /// What was wished since the last call, in order.
    pub fn drain(&mut self) -> std::vec::Drain<'_, EnumeratorCommand> {
        self.commands.drain(..)
    }
}

/// Finds splits and hands them out: one a job, driven by the host's coordinator.
pub trait SplitEnumerator {
    /// Does the enumerator's own work (planning, discovery). Returns `Pending` as long as it is well, also when it has
    /// nothing to do; wakes the caller when calling again can help.
    ///
    /// # Errors
    ///
    /// Fails the job.
    fn poll_progress(
        &mut self,
        cx: &mut PollContext<'_>,
        out: &mut EnumeratorOutput,
    ) -> Poll<Result<()>>;

    /// A reader has started and can take splits.
    ///
    /// # Errors
    ///
    /// Fails the job; so for every method below.
    fn reader_registered(&mut self, reader: u32, out: &mut EnumeratorOutput) -> Result<()>;

    /// A reader is gone. Its unfinished splits come back by [`splits_returned`](Self::splits_returned).
    #[expect(clippy::missing_errors_doc, reason = "as for `reader_registered`")]
    fn reader_lost(&mut self, reader: u32) -> Result<()>;

    /// A registered reader asks for a split.
    #[expect(clippy::missing_errors_doc, reason = "as for `reader_registered`")]
    fn split_requested(&mut self, reader: u32, out: &mut EnumeratorOutput) -> Result<()>;

    /// Splits given out since the last completed checkpoint come back from a lost reader.
    #[expect(clippy::missing_errors_doc, reason = "as for `reader_registered`")]
    fn splits_returned(&mut self, splits: Vec<Split>, out: &mut EnumeratorOutput) -> Result<()>;

    /// A reader sent a message.
    #[expect(clippy::missing_errors_doc, reason = "as for `reader_registered`")]
    fn reader_event(
        &mut self,
        reader: u32,
        event: Versioned,
        out: &mut EnumeratorOutput,
    ) -> Result<()> {
        let _ = (reader, event, out);
        Ok(())
    }

    /// The state for `checkpoint`: every split not yet handed out, and what else a restart needs.
    #[expect(clippy::missing_errors_doc, reason = "as for `reader_registered`")]
    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Versioned>;

    /// `checkpoint` and all before it are complete. May be missed.
    #[expect(clippy::missing_errors_doc, reason = "as for `reader_registered`")]
    fn checkpoint_completed(&mut self, checkpoint: CheckpointId) -> Result<()> {
        let _ = checkpoint;
        Ok(())
    }

    /// `checkpoint` will not complete.
    fn checkpoint_aborted(&mut self, checkpoint: CheckpointId) {
        let _ = checkpoint;
    }

    /// Releases everything.
    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>>;
}

/// Reads splits: one a subtask, driven by the subtask's task.
pub trait SourceReader<T> {
    /// Takes splits to read, fresh ones and restored ones alike.
    ///
    /// # Errors
    ///
    /// If a split cannot be read; fails the job. So for every method below.
    fn add_splits(&mut self, splits: Vec<Split>) -> Result<()>;

    /// No further split will come.
    #[expect(clippy::missing_errors_doc, reason = "as for `add_splits`")]
    fn no_more_splits(&mut self) -> Result<()>;

    /// The enumerator sent a message.
    #[expect(clippy::missing_errors_doc, reason = "as for `add_splits`")]
    fn enumerator_event(&mut self, event: Versioned) -> Result<()> {
        let _ = event;
        Ok(())
    }

    /// The next output. Called only when every record of the last batch was reported by [`emitted`](Self::emitted).
    fn poll_next(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<ReaderOutput<T>>>;

    /// The host passed `records` more of the last batch downstream. An empty batch needs no call.
    fn emitted(&mut self, records: usize);

    /// The host made nothing of `records` records, which it reports as emitted too: for the source to count.
    fn skipped(&mut self, records: usize) {
        let _ = records;
    }

    /// The host could not use the record that `emitted` would report next, and goes on behind it without reporting it, if
    /// the source lets it. `reason` holds nothing of the record.
    #[expect(clippy::missing_errors_doc, reason = "as for `add_splits`")]
    fn reject(&mut self, reason: &str) -> Result<()> {
        Err(crate::error::Error::data(format!(
            "a record could not be decoded: {reason}"
        )))
    }

    /// The splits with their positions after what was emitted, for `checkpoint`; finished splits are not among them.
    #[expect(clippy::missing_errors_doc, reason = "as for `add_splits`")]
    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Vec<Split>>;

    /// `checkpoint` and all before it are complete. May be missed; act on the highest seen.
    #[expect(clippy::missing_errors_doc, reason = "as for `add_splits`")]
    fn checkpoint_completed(&mut self, checkpoint: CheckpointId) -> Result<()> {
        let _ = checkpoint;
        Ok(())
    }

    /// `checkpoint` will not complete.
    fn checkpoint_aborted(&mut self, checkpoint: CheckpointId) {
        let _ = checkpoint;
    }

    /// Stops handing out records of the splits in `pause` until they appear in `resume` (watermark alignment). What is
    /// buffered for a paused split stays bounded.
    fn pause_splits(&mut self, pause: &[SplitId], resume: &[SplitId]);

    /// Releases everything, on success and on failure.
    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>>;
}

/// Takes the records that a deserializer makes of one input: zero or more, at once.
///
/// It borrows the batch being built, so it cannot outlive the call, be used from another thread or emit late.
pub struct Collector<'a, T> {
    records: &'a mut Vec<Record<T>>,
    timestamp: Option<Timestamp>,
}

impl<'a, T> Collector<'a, T> {
    /// Collects into `records`; what is emitted without a time of its own gets `timestamp`.
    pub fn new(records: &'a mut Vec<Record<T>>, timestamp: Option<Timestamp>) -> Self {
        Self { records, timestamp }
    }

    /// Emits a record with the input's event time, if it has one.
    pub fn emit(&mut self, value: T) {
        self.records.push(Record {
            value,
            timestamp: self.timestamp,
        });
    }

    /// Emits a record with an event time of its own.
    pub fn emit_at(&mut self, value: T, timestamp: Timestamp) {
        self.records.push(Record {
            value,
            timestamp: Some(timestamp),
        });
    }
}

impl<T> fmt::Debug for Collector<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Collector({} records)", self.records.len())
    }
}
