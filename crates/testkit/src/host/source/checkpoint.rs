//! Checkpoints of the hand-driven source host, step by step: begin, each reader's snapshot, completion or abortion.

use std::collections::BTreeSet;

use aqueduct_connector::source::Split;
use aqueduct_connector::{CheckpointId, Result, Versioned};

use super::{Emitted, SourceHost};

/// A source's share of a checkpoint.
#[derive(Clone, Debug)]
pub struct SourceCheckpoint {
    /// Its identifier.
    pub id: CheckpointId,
    /// The enumerator's state.
    pub enumerator: Versioned,
    /// The splits of each reader.
    pub readers: Vec<Vec<Split>>,
    /// How much each reader had emitted.
    pub(super) marks: Vec<usize>,
}

/// A checkpoint between the enumerator's snapshot and the last reader's.
pub(super) struct Taking {
    pub(super) id: CheckpointId,
    pub(super) enumerator: Versioned,
    pub(super) readers: Vec<Option<Vec<Split>>>,
    pub(super) marks: Vec<usize>,
}

impl<T> SourceHost<T> {
    /// What was emitted before `checkpoint`, which this host took.
    pub fn emitted_before<'a>(
        &'a self,
        checkpoint: &'a SourceCheckpoint,
    ) -> impl Iterator<Item = &'a Emitted<T>> {
        let marks = checkpoint.marks.iter();
        self.readers
            .iter()
            .zip(marks)
            .flat_map(|(slot, mark)| &slot.emitted[..*mark])
    }

    /// Takes a checkpoint and completes it.
    ///
    /// # Errors
    ///
    /// What a component failed with.
    pub async fn checkpoint(&mut self) -> Result<SourceCheckpoint> {
        let checkpoint = self.barrier().await?;
        self.complete(&checkpoint)?;
        Ok(checkpoint)
    }

    /// Takes a checkpoint, readers in an order of the seed's choosing and with steps in between, and leaves it open: to
    /// be completed, aborted, subsumed, or restored from as if the notification had been lost.
    ///
    /// # Errors
    ///
    /// What a component failed with.
    pub async fn barrier(&mut self) -> Result<SourceCheckpoint> {
        self.begin_checkpoint()?;
        let mut order: Vec<u32> = (0..self.parallelism()).collect();
        self.random.shuffle(&mut order);
        for reader in order {
            for _ in 0..self.random.u32(..4) {
                self.try_step().await?;
            }
            self.snapshot_reader(reader)?;
        }
        Ok(self.end_barrier())
    }

    /// Begins a checkpoint with the enumerator's snapshot.
    ///
    /// # Errors
    ///
    /// What the enumerator failed with.
    ///
    /// # Panics
    ///
    /// If one is being taken.
    pub fn begin_checkpoint(&mut self) -> Result<CheckpointId> {
        assert!(
            self.taking.is_none(),
            "test begins a checkpoint during another"
        );
        self.last_begun += 1;
        let id = CheckpointId(self.last_begun);
        let enumerator = self.enumerator.snapshot(id)?;
        self.enumerator_signal.set();
        self.taking = Some(Taking {
            id,
            enumerator,
            readers: vec![None; self.readers.len()],
            marks: vec![0; self.readers.len()],
        });
        Ok(id)
    }

    /// Delivers what the enumerator sent `reader` before its own snapshot, then takes the reader's.
    ///
    /// # Errors
    ///
    /// What the reader failed with.
    ///
    /// # Panics
    ///
    /// If no checkpoint is being taken or the reader's snapshot is; and on a breach of the contract.
    pub fn snapshot_reader(&mut self, reader: u32) -> Result<()> {
        let at = reader as usize;
        while self.deliverable(at) {
            self.deliver(at)?;
        }
        let taking = self.taking.as_mut().expect("a checkpoint begun");
        assert!(taking.readers[at].is_none(), "test takes a snapshot twice");
        let slot = &mut self.readers[at];
        let owner = slot
            .reader
            .as_mut()
            .expect("a lost reader has aborted the checkpoint");
        let splits = owner.snapshot(taking.id)?;
        slot.signal.set();
        let mut ids = BTreeSet::new();
        for split in &splits {
            assert!(
                ids.insert(&split.id),
                "breach: reader {reader} has {} twice",
                split.id
            );
            assert!(
                !slot.finished.contains(&split.id),
                "breach: reader {reader} keeps {}, which it finished",
                split.id
            );
        }
        taking.readers[at] = Some(splits);
        taking.marks[at] = slot.emitted.len();
        Ok(())
    }

    /// Ends the taking of a checkpoint: every reader's snapshot is there.
    ///
    /// # Panics
    ///
    /// If one is missing.
    pub fn end_barrier(&mut self) -> SourceCheckpoint {
        let taking = self.taking.take().expect("a checkpoint begun");
        self.taken.insert(taking.id);
        SourceCheckpoint {
            id: taking.id,
            enumerator: taking.enumerator,
            readers: taking
                .readers
                .into_iter()
                .map(|splits| splits.expect("a snapshot of every reader"))
                .collect(),
            marks: taking.marks,
        }
    }

    /// Completes `checkpoint` and with it every earlier one: tells the enumerator and every reader.
    ///
    /// # Errors
    ///
    /// What a component failed with.
    ///
    /// # Panics
    ///
    /// If it was aborted, also by the loss of a reader.
    pub fn complete(&mut self, checkpoint: &SourceCheckpoint) -> Result<()> {
        let id = checkpoint.id;
        self.record_completion(checkpoint);
        self.enumerator.checkpoint_completed(id)?;
        self.enumerator_signal.set();
        for slot in &mut self.readers {
            let owner = slot
                .reader
                .as_mut()
                .expect("a lost reader has aborted the checkpoint");
            owner.checkpoint_completed(id)?;
            slot.signal.set();
        }
        Ok(())
    }

    /// As [`complete`](Self::complete), but nobody hears of it: notifications may be lost.
    ///
    /// # Panics
    ///
    /// As [`complete`](Self::complete).
    pub fn complete_unheard(&mut self, checkpoint: &SourceCheckpoint) {
        self.record_completion(checkpoint);
    }

    fn record_completion(&mut self, checkpoint: &SourceCheckpoint) {
        let id = checkpoint.id;
        assert!(
            self.taken.contains(&id),
            "test completes a checkpoint that is not open"
        );
        self.taken.retain(|open| *open > id);
        self.completed = Some(id);
        for (slot, splits) in self.readers.iter_mut().zip(&checkpoint.readers) {
            slot.assigned.retain(|(begun, _)| *begun >= id.0);
            slot.restart_from = (splits.clone(), checkpoint.marks[slot.index as usize]);
        }
    }

    /// Aborts `checkpoint`, taken or being taken.
    pub fn abort(&mut self, checkpoint: CheckpointId) {
        self.taking.take_if(|taking| taking.id == checkpoint);
        self.taken.remove(&checkpoint);
        self.enumerator.checkpoint_aborted(checkpoint);
        self.enumerator_signal.set();
        for slot in &mut self.readers {
            if let Some(owner) = &mut slot.reader {
                owner.checkpoint_aborted(checkpoint);
                slot.signal.set();
            }
        }
    }
}

/// The restored splits of each of `parallelism` readers.
pub(super) fn deal(checkpoint: &SourceCheckpoint, parallelism: u32) -> Vec<Vec<Split>> {
    if checkpoint.readers.len() == parallelism as usize {
        return checkpoint.readers.clone();
    }
    let mut shares = vec![Vec::new(); parallelism as usize];
    for (at, split) in checkpoint.readers.iter().flatten().enumerate() {
        shares[at % parallelism as usize].push(split.clone());
    }
    shares
}
