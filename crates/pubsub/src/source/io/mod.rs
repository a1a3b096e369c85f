//! The I/O side of a reader: streams, buffer, leases, acknowledgements and timers, in one task that runs whether or not
//! the host polls (PS-SRC-33).
//!
//! | file | holds |
//! | --- | --- |
//! | `lease` | how long a lease is and when it is extended, pure |
//! | `ledger` | the account of every copy held, pure |
//! | `flow` | flow control, the reader's budget, whom to park, pure |
//! | `settle` | the queue of acknowledgements and returns, pure |
//! | `stream` | one supervised stream |
//! | `split` | one split: streams, account, queue, parking and closing |
//! | `task` | the task, which drives all of them |
//!
//! # Invariants
//!
//! - The task owns all of it; it and the owner of the reader reach each other by bounded channels only, in order.
//! - The task never waits for the owner: at most one batch is asked for and under way.
//! - At a bound it leaves streams unread; leases go on.
//! - After a close no task, timer, lease extension or request of the reader remains.

pub(super) mod flow;
pub(super) mod lease;
pub(super) mod ledger;
pub(super) mod settle;
mod split;
mod stream;
mod task;

use aqueduct_connector::source::SplitId;
use aqueduct_connector::{CheckpointId, Error};

use self::ledger::{Part, Run};
use super::split::SubscriptionSplit;

pub(super) use task::start;

/// Commands that may wait for the task.
pub(super) const COMMANDS: usize = 256;
/// Batches that may wait for the owner, who asks for one at a time; the sender itself has room for one.
const BATCHES: usize = 0;
/// Confirmations that may wait for the owner; a later one says more than an earlier one.
const CONFIRMATIONS: usize = 0;

/// What the owner tells the task.
#[derive(Debug)]
pub(super) enum Command {
    AddSplits(Vec<SubscriptionSplit>),
    /// One more batch.
    Want,
    /// All records of these went downstream.
    Emitted {
        split: usize,
        runs: Vec<Run>,
    },
    /// Undecodable and without records: acknowledge it now.
    Drop {
        split: usize,
        run: Run,
    },
    /// Return these, and what is buffered of the key.
    Nack {
        split: usize,
        runs: Vec<Run>,
        key: u64,
    },
    /// A batch of a split that was paused meanwhile.
    Returned {
        split: usize,
        batch: Vec<Part>,
    },
    Snapshot(CheckpointId),
    Completed(CheckpointId),
    Pause {
        pause: Vec<SplitId>,
        resume: Vec<SplitId>,
    },
    Close,
}

/// Messages of one split, for the owner.
#[derive(Debug)]
pub(super) struct HandedBatch {
    pub(super) split: usize,
    pub(super) parts: Vec<Part>,
}

/// The owner's ends of the channels, and the task.
pub(super) struct Link {
    pub(super) commands: futures::channel::mpsc::Sender<Command>,
    pub(super) batches: futures::channel::mpsc::Receiver<HandedBatch>,
    /// Up to which checkpoint acknowledgements that were waited for are answered.
    pub(super) confirmed: futures::channel::mpsc::Receiver<CheckpointId>,
    pub(super) failure: futures::channel::oneshot::Receiver<Error>,
    pub(super) task: aqueduct_connector::Task,
}
