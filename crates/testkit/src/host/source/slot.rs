//! One reader under the hand-driven source host, and the host's books about it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use aqueduct_connector::source::{ReaderOutput, Record, SourceReader, Split, SplitId};
use aqueduct_connector::{Timestamp, Versioned};
use futures::task::AtomicWaker;

use super::Emitted;
use crate::wait::Signal;

/// One reader and the host's books about it.
pub(super) struct Slot<T> {
    pub(super) index: u32,
    pub(super) reader: Option<Box<dyn SourceReader<T>>>,
    pub(super) signal: Arc<Signal>,
    /// Known to the enumerator as started.
    pub(super) registered: bool,
    pub(super) told_no_more: bool,
    pub(super) heard_no_more: bool,
    pub(super) ended: bool,
    /// From the enumerator, each with the last checkpoint begun before it was sent.
    pub(super) inbox: VecDeque<(u64, ToReader)>,
    pub(super) outbox: VecDeque<ToEnumerator>,
    pub(super) batch: Option<(SplitId, VecDeque<Record<T>>)>,
    pub(super) emitted: Vec<Emitted<T>>,
    /// Splits assigned, each with the last checkpoint begun before.
    pub(super) assigned: Vec<(u64, Split)>,
    /// The reader's splits in the last completed checkpoint, and how much it had emitted.
    pub(super) restart_from: (Vec<Split>, usize),
    pub(super) finished: BTreeSet<SplitId>,
    pub(super) seen: BTreeSet<SplitId>,
    pub(super) paused: BTreeSet<SplitId>,
    pub(super) watermarks: BTreeMap<SplitId, Timestamp>,
    pub(super) attempts: u32,
}

pub(super) enum ToReader {
    Splits(Vec<Split>),
    NoMoreSplits,
    Event(Versioned),
}

pub(super) enum ToEnumerator {
    Registered,
    Request,
    Event(Versioned),
}

impl<T> Slot<T> {
    pub(super) fn new(index: u32, waker: &Arc<AtomicWaker>) -> Self {
        Self {
            index,
            reader: None,
            signal: Signal::new(waker),
            registered: false,
            told_no_more: false,
            heard_no_more: false,
            ended: false,
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            batch: None,
            emitted: Vec::new(),
            assigned: Vec::new(),
            restart_from: (Vec::new(), 0),
            finished: BTreeSet::new(),
            seen: BTreeSet::new(),
            paused: BTreeSet::new(),
            watermarks: BTreeMap::new(),
            attempts: 0,
        }
    }

    pub(super) fn can_wake(&self) -> bool {
        self.reader.is_some() && !self.ended && self.batch.is_none()
    }

    pub(super) fn outstanding(&self) -> usize {
        self.batch.as_ref().map_or(0, |(_, records)| records.len())
    }

    /// Whether the output brings the job on.
    pub(super) fn take_output(&mut self, output: ReaderOutput<T>) -> bool {
        let reader = self.index;
        match output {
            ReaderOutput::Batch(batch) => {
                let split = batch.split;
                assert!(
                    !self.paused.contains(&split),
                    "breach: reader {reader} reads {split}, paused"
                );
                assert!(
                    !self.finished.contains(&split),
                    "breach: reader {reader} reads {split}, finished"
                );
                self.seen.insert(split.clone());
                if batch.records.is_empty() {
                    return false;
                }
                self.batch = Some((split, batch.records.into()));
                true
            }
            ReaderOutput::Watermark { split, watermark } => {
                self.watermarks.insert(split, watermark);
                true
            }
            ReaderOutput::SplitFinished(split) => {
                assert!(
                    self.finished.insert(split.clone()),
                    "breach: reader {reader} finished {split} twice"
                );
                self.watermarks.remove(&split);
                true
            }
            ReaderOutput::RequestSplit => {
                self.outbox.push_back(ToEnumerator::Request);
                false
            }
            ReaderOutput::Event(event) => {
                self.outbox.push_back(ToEnumerator::Event(event));
                false
            }
            ReaderOutput::End => {
                assert!(
                    self.heard_no_more,
                    "breach: reader {reader} ended, splits may come"
                );
                let open = self.seen.difference(&self.finished).next();
                assert!(
                    open.is_none(),
                    "breach: reader {reader} ended with a split unfinished"
                );
                self.ended = true;
                true
            }
        }
    }
}

impl<T> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reader {}: ", self.index)?;
        let state = match () {
            () if self.reader.is_none() => "lost",
            () if self.ended => "ended",
            () if self.batch.is_some() => "has a batch to emit",
            () if !self.paused.is_empty() => "pending, with splits paused",
            () if self.heard_no_more => "pending after `no more splits`",
            () => "pending",
        };
        write!(
            f,
            "{state}, {} assigned since the last checkpoint, {} finished, {} messages for it",
            self.assigned.len(),
            self.finished.len(),
            self.inbox.len()
        )
    }
}
