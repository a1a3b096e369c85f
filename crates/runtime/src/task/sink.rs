//! The last stage: a sink's writer, driven record by record.
//!
//! At a barrier: every earlier record written, `poll_flush`, `prepare_commit`, `snapshot`. At the end of the
//! input: `poll_flush(EndOfInput)`; a final checkpoint follows. The writer is polled whenever its task runs,
//! also when there is nothing to write: a batch whose time has come leaves although a filter lets nothing through.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll, ready};
use std::vec;

use aqueduct_connector::metrics::{Counter, Gauge};
use aqueduct_connector::sink::{Flush, RecordInfo, Sink, SinkWriter};
use aqueduct_connector::source::Record;
use aqueduct_connector::{CheckpointId, Error, Result, Subtask, Timestamp};

use super::TaskBuild;
use crate::checkpoint::SubtaskState;
use crate::operator::named;
use crate::stage::{Element, Notice, Scope, Stage, Wait};

pub(crate) struct SinkStage<T> {
    sink: Arc<dyn Sink<T>>,
    index: u32,
    opened: Option<Opened<T>>,
    /// Records of the batch at hand.
    records: vec::IntoIter<Record<T>>,
    queue: VecDeque<Element<T>>,
    watermark: Option<Timestamp>,
    closed: bool,
}

struct Opened<T> {
    writer: Box<dyn SinkWriter<T>>,
    scope: Rc<Scope>,
    name: Arc<str>,
    subtask: Subtask,
    records_in: Counter,
    watermark: Gauge,
}

impl<T> Opened<T> {
    fn failed(&self, error: Error, what: &str) -> Error {
        named(error, what, &self.name, self.subtask)
    }
}

impl<T> SinkStage<T> {
    pub(crate) fn new(index: u32, sink: Arc<dyn Sink<T>>) -> Self {
        Self {
            sink,
            index,
            opened: None,
            records: Vec::new().into_iter(),
            queue: VecDeque::new(),
            watermark: None,
            closed: false,
        }
    }

    fn snapshot(opened: &mut Opened<T>, index: u32, checkpoint: CheckpointId) -> Result<()> {
        let committables = match opened.writer.prepare_commit(checkpoint) {
            Ok(committables) => committables,
            Err(error) => return Err(opened.failed(error, "to prepare a commit")),
        };
        let list = match opened.writer.snapshot(checkpoint) {
            Ok(list) => list,
            Err(error) => return Err(opened.failed(error, "to snapshot")),
        };
        opened.scope.add_snapshot(
            index,
            SubtaskState {
                list,
                committables,
                ..SubtaskState::default()
            },
        );
        Ok(())
    }
}

impl<T> Stage<T> for SinkStage<T> {
    fn open(&mut self, build: &TaskBuild) -> Result<()> {
        let context = build.context(self.index);
        let (name, subtask) = (context.operator.clone(), context.subtask);
        let records_in = context.metrics.counter("numRecordsIn");
        build.scope.enter(self.index);
        let writer = self
            .sink
            .create_writer(context, build.restored(self.index).list)
            .map_err(|error| named(error, "to create its writer", &name, subtask))?;
        self.opened = Some(Opened {
            writer,
            scope: build.scope.clone(),
            name,
            subtask,
            records_in,
            watermark: build.watermark_gauge(self.index),
        });
        Ok(())
    }

    fn poll_ready(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        let Some(opened) = &mut self.opened else {
            return Poll::Ready(Err(Error::bug("a sink was used before it was opened")));
        };
        opened.scope.enter(self.index);
        loop {
            while !self.records.as_slice().is_empty() {
                match opened.writer.poll_ready(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => {
                        return Poll::Ready(Err(opened.failed(error, "to write")));
                    }
                    Poll::Pending => {
                        opened.scope.waits(self.index, Wait::Writer);
                        return Poll::Pending;
                    }
                }
                let Some(record) = self.records.next() else {
                    break;
                };
                let info = RecordInfo {
                    timestamp: record.timestamp,
                    watermark: self.watermark,
                };
                opened.scope.progressed();
                if let Err(error) = opened.writer.write(record.value, info) {
                    return Poll::Ready(Err(opened.failed(error, "to write")));
                }
            }
            let flush = match self.queue.front() {
                None => {
                    return Poll::Ready(match opened.writer.poll_progress(cx) {
                        Poll::Ready(Err(error)) => Err(opened.failed(error, "in the background")),
                        Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
                    });
                }
                Some(Element::Barrier(_)) => Some(Flush::Checkpoint),
                Some(Element::End) => Some(Flush::EndOfInput),
                Some(_) => None,
            };
            if let Some(flush) = flush {
                match opened.writer.poll_flush(cx, flush) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => {
                        return Poll::Ready(Err(opened.failed(error, "to flush")));
                    }
                    Poll::Pending => {
                        opened.scope.waits(self.index, Wait::Flush);
                        return Poll::Pending;
                    }
                }
            }
            opened.scope.progressed();
            match self.queue.pop_front() {
                Some(Element::Batch(records)) => {
                    opened.records_in.add(records.len() as u64);
                    self.records = records.into_iter();
                }
                Some(Element::Watermark(watermark)) => {
                    self.watermark = Some(watermark);
                    opened.watermark.set(watermark.millis());
                }
                Some(Element::Barrier(checkpoint)) => {
                    if let Err(error) = Self::snapshot(opened, self.index, checkpoint) {
                        return Poll::Ready(Err(error));
                    }
                }
                Some(Element::Idle | Element::End) | None => {}
            }
        }
    }

    fn push(&mut self, element: Element<T>) -> Result<()> {
        self.queue.push_back(element);
        Ok(())
    }

    fn notify(&mut self, notice: Notice) -> Result<()> {
        let Some(opened) = &mut self.opened else {
            return Ok(());
        };
        opened.scope.enter(self.index);
        match notice {
            Notice::Completed(checkpoint) => match opened.writer.checkpoint_completed(checkpoint) {
                Ok(()) => Ok(()),
                Err(error) => Err(opened.failed(error, "after a checkpoint")),
            },
            Notice::Aborted(checkpoint) => {
                opened.writer.checkpoint_aborted(checkpoint);
                Ok(())
            }
        }
    }

    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        let Some(opened) = &mut self.opened else {
            return Poll::Ready(Ok(()));
        };
        if self.closed {
            return Poll::Ready(Ok(()));
        }
        opened.scope.enter(self.index);
        let closed = ready!(opened.writer.poll_close(cx));
        self.closed = true;
        Poll::Ready(closed.map_err(|error| opened.failed(error, "to close")))
    }
}
