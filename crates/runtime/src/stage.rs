//! What flows through a job, and the stages it flows through.
//!
//! A chain is a head (a source or a set of inputs) and the stages behind it, each owning the next. The
//! head drives: it waits until the chain is ready, pushes one element, and so on. A stage that cannot
//! finish an element at once keeps the rest and is not ready until it is gone, so a chain holds what one
//! element made and nothing more.
//!
//! # Invariants
//!
//! - Elements keep their order through every stage; a barrier separates exactly the records before it
//!   from those behind it.
//! - After an error only `poll_close` is called. `poll_close` reaches every stage that was opened.
//! - One virtual call a batch and stage; user functions are inlined into their stage's loop.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use aqueduct_connector::source::Record;
use aqueduct_connector::{CheckpointId, Error, Result, Timestamp};

use crate::checkpoint::SubtaskState;
use crate::task::{Board, TaskBuild};

/// What flows from task to task and from stage to stage.
#[derive(Debug)]
pub(crate) enum Element<T> {
    /// Records, in order; never empty.
    Batch(Vec<Record<T>>),
    /// No earlier event time will come. Grows, and says also that the input is not idle.
    Watermark(Timestamp),
    /// The input gives nothing for now; its watermark is not to be waited for.
    Idle,
    /// Ends the records of a checkpoint.
    Barrier(CheckpointId),
    /// The input has ended; barriers may still follow.
    End,
}

impl<T> Element<T> {
    /// What it counts against a channel's bound.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Batch(records) => records.len(),
            _ => 0,
        }
    }

    /// A copy for another target, of what is not a batch.
    pub(crate) fn signal<U>(&self) -> Option<Element<U>> {
        Some(match self {
            Self::Batch(_) => return None,
            Self::Watermark(at) => Element::Watermark(*at),
            Self::Idle => Element::Idle,
            Self::Barrier(id) => Element::Barrier(*id),
            Self::End => Element::End,
        })
    }
}

/// News of a checkpoint, for readers and writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// It and all before it are complete.
    Completed(CheckpointId),
    /// It will not complete.
    Aborted(CheckpointId),
}

/// One stage of a chain.
pub(crate) trait Stage<T> {
    /// Restores state and creates what the stage needs, downstream first.
    fn open(&mut self, build: &TaskBuild) -> Result<()>;

    /// Ready when everything pushed before is gone on; works towards that meanwhile. When there is nothing left to do,
    /// writers are polled for their background work: a head calls this every time it runs, so a writer whose waker has
    /// fired is polled even if nothing is written for it.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>>;

    /// Takes an element. Only after `poll_ready` was ready, except that a stage may push a batch and
    /// the signal behind it at once.
    fn push(&mut self, element: Element<T>) -> Result<()>;

    /// Passes news of a checkpoint to whoever listens.
    fn notify(&mut self, notice: Notice) -> Result<()>;

    /// Releases everything, here and downstream, whatever fails. May be called again.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>>;
}

/// Makes a stage and all behind it for one subtask; called on the subtask's thread. Does not fail: what
/// can fail waits for `open`, so that what was opened can be closed.
pub(crate) type StageFactory<T> = Arc<dyn Fn(&TaskBuild) -> Box<dyn Stage<T>> + Send + Sync>;

/// Puts the later failure behind the earlier one.
pub(crate) fn attach(first: &mut Option<Error>, later: Error) {
    match first {
        Some(first) => first.suppress(later),
        None => *first = Some(later),
    }
}

/// What a task waits for, as far as the stage that makes it wait knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Wait {
    /// Nothing but more input.
    Input = 0,
    /// A writer that is at its bounds.
    Writer = 1,
    /// A writer that flushes for a barrier or the end.
    Flush = 2,
    /// A downstream task whose channel is full.
    Downstream = 3,
    /// The other inputs' barriers.
    Alignment = 4,
    /// The coordinator, to take a message.
    Coordinator = 5,
    /// Creating readers, writers and operators.
    Opening = 6,
    /// Closing them.
    Closing = 7,
    /// The job's other tasks, after the end of the input.
    Ended = 8,
}

impl Wait {
    pub(crate) const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Writer,
            2 => Self::Flush,
            3 => Self::Downstream,
            4 => Self::Alignment,
            5 => Self::Coordinator,
            6 => Self::Opening,
            7 => Self::Closing,
            8 => Self::Ended,
            _ => Self::Input,
        }
    }

    /// For people: what it is that keeps the task.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Writer => "the sink's writer to take a record",
            Self::Flush => "the sink's writer to flush",
            Self::Downstream => "a downstream task to take records",
            Self::Alignment => "the barriers of its other inputs",
            Self::Coordinator => "the coordinator to take a message",
            Self::Opening => "opening",
            Self::Closing => "closing",
            Self::Ended => "the end of the job",
        }
    }

    /// Whether a task in this wait does less than it could.
    pub(crate) const fn is_backpressure(self) -> bool {
        matches!(
            self,
            Self::Writer | Self::Flush | Self::Downstream | Self::Alignment
        )
    }
}

/// What the stages of one task share: who runs now, who waits, and the snapshot being collected.
pub(crate) struct Scope {
    board: Arc<Board>,
    waiting: Cell<Option<(u32, Wait)>>,
    progressed: Cell<bool>,
    snapshot: RefCell<Vec<(u32, SubtaskState)>>,
}

impl Scope {
    pub(crate) fn new(board: Arc<Board>) -> Rc<Self> {
        Rc::new(Self {
            board,
            waiting: Cell::default(),
            progressed: Cell::default(),
            snapshot: RefCell::default(),
        })
    }

    /// `operator`'s code runs from here on; names it if it panics or does not return.
    pub(crate) fn enter(&self, operator: u32) {
        self.board.enter(operator);
    }

    /// Whose code ran last.
    pub(crate) fn running(&self) -> u32 {
        self.board.running()
    }

    /// `operator` makes its task wait.
    pub(crate) fn waits(&self, operator: u32, wait: Wait) {
        self.waiting.set(Some((operator, wait)));
    }

    /// A writer took a record or ended a flush: slow, but not stuck.
    pub(crate) fn progressed(&self) {
        self.progressed.set(true);
    }

    /// Whether there was progress since the last call.
    pub(crate) fn take_progress(&self) -> bool {
        self.progressed.take()
    }

    /// The wait noted since the last call.
    pub(crate) fn take_wait(&self) -> Option<(u32, Wait)> {
        self.waiting.take()
    }

    /// Adds `operator`'s share of the checkpoint under way.
    pub(crate) fn add_snapshot(&self, operator: u32, state: SubtaskState) {
        self.snapshot.borrow_mut().push((operator, state));
    }

    /// Everything collected since the last call.
    pub(crate) fn take_snapshot(&self) -> Vec<(u32, SubtaskState)> {
        self.snapshot.take()
    }
}
