//! Operators: what stands between sources and sinks, a batch at a time.
//!
//! [`Operator`] is the low door, for code that works on whole batches (the SQL layer) or keeps state of a
//! shape of its own. `map`, `filter`, [`ProcessFunction`](crate::ProcessFunction) and
//! [`KeyedProcessFunction`](crate::KeyedProcessFunction) are operators made of a function.
//!
//! # Order of calls
//!
//! `open`, then any of `process`, `watermark` and `snapshot`, then `end` once, perhaps further snapshots,
//! and `close`. All on one thread, never concurrently.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll, ready};

use aqueduct_connector::metrics::{Counter, Gauge};
use aqueduct_connector::source::Record;
use aqueduct_connector::{CheckpointId, Context, Error, ErrorKind, Result, Timestamp, Versioned};

use crate::checkpoint::SubtaskState;
use crate::stage::{Element, Notice, Scope, Stage, attach};
use crate::task::TaskBuild;

/// One subtask's share of an operator's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorState {
    /// A list, redistributed item by item when the parallelism changes.
    pub list: Vec<Versioned>,
    /// State by key group, which goes where the group goes. A restore gives each group of this
    /// subtask's range at most once.
    pub keyed: Vec<(u32, Versioned)>,
}

/// What an operator is told when it opens.
#[derive(Clone, Debug)]
pub struct OperatorContext {
    /// Name, subtask, clock, seed, metrics and spawner.
    pub context: Context,
    /// The number of key groups of the job.
    pub max_parallelism: u32,
}

impl OperatorContext {
    /// The key groups that belong to this subtask.
    #[must_use]
    pub fn key_groups(&self) -> std::ops::Range<u32> {
        let subtask = self.context.subtask;
        crate::keyed::groups_of(subtask.index, subtask.parallelism, self.max_parallelism)
    }
}

/// Whether a watermark has had its whole effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has; the watermark goes downstream.
    Done,
    /// There is more to emit: call again once downstream has taken what was emitted.
    More,
}

/// Turns batches of `I` into batches of `O`, for one subtask.
pub trait Operator<I, O> {
    /// Takes over restored state; empty on a fresh start.
    ///
    /// # Errors
    ///
    /// Fails the job; so for every method below. The error is named after the operator by the caller.
    fn open(&mut self, context: OperatorContext, restored: OperatorState) -> Result<()> {
        let _ = (context, restored);
        Ok(())
    }

    /// Takes a batch and appends what it makes of it to `out`.
    #[allow(missing_docs, clippy::missing_errors_doc, reason = "as for `open`")]
    fn process(&mut self, records: Vec<Record<I>>, out: &mut Vec<Record<O>>) -> Result<()>;

    /// The event time has reached `watermark`. Emit a bounded part and answer [`Progress::More`] rather
    /// than everything at once; the call is repeated with the same watermark.
    #[allow(missing_docs, clippy::missing_errors_doc, reason = "as for `open`")]
    fn watermark(&mut self, watermark: Timestamp, out: &mut Vec<Record<O>>) -> Result<Progress> {
        let _ = (watermark, out);
        Ok(Progress::Done)
    }

    /// The input has ended; the last watermark was [`Timestamp::MAX`].
    #[allow(missing_docs, clippy::missing_errors_doc, reason = "as for `open`")]
    fn end(&mut self, out: &mut Vec<Record<O>>) -> Result<()> {
        let _ = out;
        Ok(())
    }

    /// The state for `checkpoint`.
    #[allow(missing_docs, clippy::missing_errors_doc, reason = "as for `open`")]
    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<OperatorState> {
        let _ = checkpoint;
        Ok(OperatorState::default())
    }

    /// `checkpoint` and all before it are complete. May be missed.
    #[allow(missing_docs, clippy::missing_errors_doc, reason = "as for `open`")]
    fn checkpoint_completed(&mut self, checkpoint: CheckpointId) -> Result<()> {
        let _ = checkpoint;
        Ok(())
    }

    /// Releases everything, on success and on failure.
    #[allow(missing_docs, clippy::missing_errors_doc, reason = "as for `open`")]
    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What a user's function may fail with: our own [`Error`], whose kind is kept, or anything else, which
/// becomes an error of kind [`ErrorKind::User`].
pub(crate) fn user_error(cause: Box<dyn std::error::Error + Send + Sync>) -> Error {
    match cause.downcast::<Error>() {
        Ok(own) => *own,
        Err(other) => Error::user("a function failed").with_source(other),
    }
}

/// Says which operator and subtask an error comes from, keeping its kind.
pub(crate) fn named(
    error: Error,
    what: &str,
    operator: &str,
    subtask: impl std::fmt::Display,
) -> Error {
    Error::new(
        error.kind(),
        format!("operator '{operator}' (subtask {subtask}) failed {what}"),
    )
    .with_source(error)
}

/// An operator at work in a chain.
pub(crate) struct OperatorStage<I, O, P> {
    operator: P,
    index: u32,
    context: Option<Opened>,
    /// A watermark that has not had its whole effect.
    pending: Option<Timestamp>,
    down: Box<dyn Stage<O>>,
    closed: bool,
    close_failure: Option<Error>,
    input: std::marker::PhantomData<fn(I)>,
}

struct Opened {
    scope: Rc<Scope>,
    name: Arc<str>,
    subtask: aqueduct_connector::Subtask,
    records_in: Counter,
    records_out: Counter,
    watermark: Gauge,
}

impl<I, O, P> OperatorStage<I, O, P> {
    pub(crate) fn new(index: u32, operator: P, down: Box<dyn Stage<O>>) -> Self {
        Self {
            operator,
            index,
            context: None,
            pending: None,
            down,
            closed: false,
            close_failure: None,
            input: std::marker::PhantomData,
        }
    }
}

impl<I, O, P: Operator<I, O>> OperatorStage<I, O, P> {
    /// Runs the operator's code under its name.
    fn call<R>(&mut self, what: &str, run: impl FnOnce(&mut P) -> Result<R>) -> Result<R> {
        let Some(opened) = &self.context else {
            return Err(Error::bug("an operator was used before it was opened"));
        };
        opened.scope.enter(self.index);
        run(&mut self.operator).map_err(|error| named(error, what, &opened.name, opened.subtask))
    }

    fn emit(&mut self, records: Vec<Record<O>>) -> Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        if let Some(opened) = &self.context {
            opened.records_out.add(records.len() as u64);
        }
        self.down.push(Element::Batch(records))
    }
}

impl<I, O, P: Operator<I, O>> Stage<I> for OperatorStage<I, O, P> {
    fn open(&mut self, build: &TaskBuild) -> Result<()> {
        self.down.open(build)?;
        let context = build.context(self.index);
        self.context = Some(Opened {
            scope: build.scope.clone(),
            name: context.operator.clone(),
            subtask: context.subtask,
            records_in: context.metrics.counter("numRecordsIn"),
            records_out: context.metrics.counter("numRecordsOut"),
            watermark: build.watermark_gauge(self.index),
        });
        let restored = build.restored(self.index);
        let state = OperatorState {
            list: restored.list,
            keyed: restored.keyed,
        };
        let max_parallelism = build.max_parallelism;
        self.call("to open", |operator| {
            operator.open(
                OperatorContext {
                    context,
                    max_parallelism,
                },
                state,
            )
        })
    }

    fn poll_ready(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        loop {
            ready!(self.down.poll_ready(cx))?;
            let Some(watermark) = self.pending else {
                return Poll::Ready(Ok(()));
            };
            let mut out = Vec::new();
            let progress = self.call("at a watermark", |operator| {
                operator.watermark(watermark, &mut out)
            })?;
            self.emit(out)?;
            if progress == Progress::Done {
                self.pending = None;
                if let Some(opened) = &self.context {
                    opened.watermark.set(watermark.millis());
                }
                self.down.push(Element::Watermark(watermark))?;
            }
        }
    }

    fn push(&mut self, element: Element<I>) -> Result<()> {
        if self.pending.is_some() {
            return Err(Error::bug("an element was pushed past a watermark"));
        }
        match element {
            Element::Batch(records) => {
                if let Some(opened) = &self.context {
                    opened.records_in.add(records.len() as u64);
                }
                let mut out = Vec::new();
                self.call("on a record", |operator| {
                    operator.process(records, &mut out)
                })?;
                self.emit(out)
            }
            Element::Watermark(watermark) => {
                self.pending = Some(watermark);
                Ok(())
            }
            Element::Idle => self.down.push(Element::Idle),
            Element::Barrier(checkpoint) => {
                let state = self.call("to snapshot", |operator| operator.snapshot(checkpoint))?;
                if let Some(opened) = &self.context {
                    let state = SubtaskState {
                        list: state.list,
                        keyed: state.keyed,
                        ..SubtaskState::default()
                    };
                    opened.scope.add_snapshot(self.index, state);
                }
                self.down.push(Element::Barrier(checkpoint))
            }
            Element::End => {
                let mut out = Vec::new();
                self.call("at the end of its input", |operator| operator.end(&mut out))?;
                self.emit(out)?;
                self.down.push(Element::End)
            }
        }
    }

    fn notify(&mut self, notice: Notice) -> Result<()> {
        if let Notice::Completed(checkpoint) = notice {
            self.call("after a checkpoint", |operator| {
                operator.checkpoint_completed(checkpoint)
            })?;
        }
        self.down.notify(notice)
    }

    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        if self.context.is_some() && !self.closed {
            self.closed = true;
            self.close_failure = self.call("to close", Operator::close).err();
        }
        if let Err(error) = ready!(self.down.poll_close(cx)) {
            attach(&mut self.close_failure, error);
        }
        Poll::Ready(self.close_failure.take().map_or(Ok(()), Err))
    }
}

/// The kinds of error a panic or an unexpected end of a task becomes.
pub(crate) fn panicked(operator: &str, subtask: impl std::fmt::Display, text: &str) -> Error {
    Error::new(
        ErrorKind::User,
        format!("operator '{operator}' (subtask {subtask}) panicked: {text}"),
    )
}
