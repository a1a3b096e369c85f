//! One source's enumerator, driven on the coordinator's thread.
//!
//! # Invariant
//!
//! What the enumerator sends after its snapshot for a checkpoint reaches a reader only after that reader's
//! snapshot for it, so that a split is never in both snapshots nor in neither.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;

use aqueduct_connector::source::{EnumeratorCommand, EnumeratorOutput, SplitEnumerator};
use aqueduct_connector::{CheckpointId, Error, Result, Versioned};
use futures::FutureExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::host::{panic_text, within};
use crate::task::{AttemptPlan, Control, EnumeratorMessage};

/// What the coordinator tells an enumerator.
#[derive(Debug)]
pub(crate) enum Order {
    Snapshot(CheckpointId),
    Completed(CheckpointId),
    Aborted(CheckpointId),
}

/// What an enumerator tells the coordinator.
#[derive(Debug)]
pub(crate) enum Answer {
    Snapshot {
        operator: u32,
        checkpoint: CheckpointId,
        state: Versioned,
    },
    Failed(Error),
}

/// One enumerator and its connections.
pub(crate) struct EnumeratorTask {
    pub(crate) operator: u32,
    pub(crate) enumerator: Box<dyn SplitEnumerator>,
    pub(crate) orders: mpsc::Receiver<Order>,
    pub(crate) messages: mpsc::Receiver<EnumeratorMessage>,
    /// By reader.
    pub(crate) readers: Vec<mpsc::Sender<Control>>,
    pub(crate) answers: mpsc::Sender<Answer>,
    pub(crate) stop: CancellationToken,
}

/// Commands held back for readers that owe a snapshot.
#[derive(Debug, Default)]
struct HoldBack {
    /// The snapshots owed, by reader; the readers' snapshots come in order.
    owed: BTreeMap<u32, VecDeque<CheckpointId>>,
    held: BTreeMap<u32, VecDeque<Control>>,
}

impl HoldBack {
    fn snapshot_taken(&mut self, checkpoint: CheckpointId, readers: u32) {
        for reader in 0..readers {
            self.owed.entry(reader).or_default().push_back(checkpoint);
        }
    }

    fn is_held(&self, reader: u32) -> bool {
        self.owed.get(&reader).is_some_and(|owed| !owed.is_empty())
    }

    fn hold(&mut self, reader: u32, control: Control) {
        self.held.entry(reader).or_default().push_back(control);
    }

    /// A reader's snapshot is taken; gives what may go now.
    fn reader_snapshot(&mut self, reader: u32, checkpoint: CheckpointId) -> VecDeque<Control> {
        if let Some(owed) = self.owed.get_mut(&reader) {
            owed.retain(|waiting| *waiting > checkpoint);
        }
        self.released(reader)
    }

    /// Nobody will restore this checkpoint, so nothing has to wait for it.
    fn aborted(&mut self, checkpoint: CheckpointId) -> Vec<(u32, VecDeque<Control>)> {
        for owed in self.owed.values_mut() {
            owed.retain(|waiting| *waiting != checkpoint);
        }
        let readers: Vec<u32> = self.held.keys().copied().collect();
        readers
            .into_iter()
            .map(|reader| (reader, self.released(reader)))
            .collect()
    }

    fn released(&mut self, reader: u32) -> VecDeque<Control> {
        if self.is_held(reader) {
            return VecDeque::new();
        }
        self.held.remove(&reader).unwrap_or_default()
    }
}

enum Step {
    Order(Order),
    Message(EnumeratorMessage),
    Commands,
    Stop,
}

/// Drives one enumerator until it is stopped or fails, and closes it.
pub(crate) async fn run(mut task: EnumeratorTask, plan: Arc<AttemptPlan>) {
    let name = plan.graph.operator(task.operator).name.clone();
    let answers = task.answers.clone();
    let driven = AssertUnwindSafe(drive(&mut task, &plan))
        .catch_unwind()
        .await;
    let failure = match driven {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(
            Error::new(
                error.kind(),
                format!("the enumerator of source '{name}' failed"),
            )
            .with_source(error),
        ),
        Err(payload) => Some(Error::user(format!(
            "the enumerator of source '{name}' panicked: {}",
            panic_text(payload.as_ref())
        ))),
    };
    if let Some(error) = failure {
        // Nobody to tell: the attempt is ending already.
        let _ = answers.send(Answer::Failed(error)).await;
    }
    let closing = AssertUnwindSafe(poll_fn(|cx| task.enumerator.poll_close(cx))).catch_unwind();
    match within(&*plan.clock, plan.close_timeout, closing).await {
        Some(Ok(Ok(()))) => {}
        Some(Ok(Err(error))) => {
            tracing::warn!(source = %name, error = %error.report(), "closing the enumerator failed");
        }
        Some(Err(payload)) => {
            tracing::warn!(source = %name, text = %panic_text(payload.as_ref()), "closing the enumerator panicked");
        }
        None => {
            tracing::warn!(source = %name, waited = ?plan.close_timeout, "the enumerator did not close in time and was given up");
        }
    }
}

async fn drive(task: &mut EnumeratorTask, plan: &AttemptPlan) -> Result<()> {
    let mut out = EnumeratorOutput::new();
    let mut commands = VecDeque::new();
    let mut hold = HoldBack::default();
    let mut registered = BTreeSet::new();
    let stop = task.stop.clone();
    let mut stopped = std::pin::pin!(stop.cancelled());
    let enumerator = &mut task.enumerator;
    loop {
        let step = poll_fn(|cx| {
            if stopped.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(Step::Stop));
            }
            if let Poll::Ready(Some(order)) = task.orders.poll_recv(cx) {
                return Poll::Ready(Ok(Step::Order(order)));
            }
            if let Poll::Ready(Some(message)) = task.messages.poll_recv(cx) {
                return Poll::Ready(Ok(Step::Message(message)));
            }
            if let Poll::Ready(Err(error)) = enumerator.poll_progress(cx, &mut out) {
                return Poll::Ready(Err(error));
            }
            commands.extend(out.drain());
            if commands.is_empty() {
                Poll::Pending
            } else {
                Poll::Ready(Ok(Step::Commands))
            }
        })
        .await?;
        match step {
            Step::Stop => return Ok(()),
            Step::Commands => {}
            Step::Order(Order::Snapshot(checkpoint)) => {
                let state = enumerator.snapshot(checkpoint)?;
                hold.snapshot_taken(checkpoint, plan.parallelism);
                let answer = Answer::Snapshot {
                    operator: task.operator,
                    checkpoint,
                    state,
                };
                let _ = task.answers.send(answer).await;
            }
            Step::Order(Order::Completed(checkpoint)) => {
                enumerator.checkpoint_completed(checkpoint)?
            }
            Step::Order(Order::Aborted(checkpoint)) => {
                enumerator.checkpoint_aborted(checkpoint);
                for (reader, held) in hold.aborted(checkpoint) {
                    send(&task.readers, reader, held).await;
                }
            }
            Step::Message(EnumeratorMessage::Registered(reader)) => {
                registered.insert(reader);
                enumerator.reader_registered(reader, &mut out)?;
            }
            Step::Message(EnumeratorMessage::RequestSplit(reader)) => {
                enumerator.split_requested(reader, &mut out)?;
            }
            Step::Message(EnumeratorMessage::Event(reader, event)) => {
                enumerator.reader_event(reader, event, &mut out)?;
            }
            Step::Message(EnumeratorMessage::Snapshotted(reader, checkpoint)) => {
                let held = hold.reader_snapshot(reader, checkpoint);
                send(&task.readers, reader, held).await;
            }
        }
        commands.extend(out.drain());
        for command in commands.drain(..) {
            let (reader, control) = match command {
                EnumeratorCommand::Assign { reader, splits } => (reader, Control::Splits(splits)),
                EnumeratorCommand::NoMoreSplits { reader } => (reader, Control::NoMoreSplits),
                EnumeratorCommand::Event { reader, event } => {
                    (reader, Control::EnumeratorEvent(event))
                }
            };
            if !registered.contains(&reader) {
                return Err(Error::bug(format!(
                    "it addressed reader {reader}, which has not registered"
                )));
            }
            if hold.is_held(reader) {
                hold.hold(reader, control);
            } else {
                send(&task.readers, reader, [control].into()).await;
            }
        }
    }
}

async fn send(readers: &[mpsc::Sender<Control>], reader: u32, controls: VecDeque<Control>) {
    for control in controls {
        // A reader that is gone fails the attempt by itself.
        let _ = readers[reader as usize].send(control).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: CheckpointId = CheckpointId(1);
    const TWO: CheckpointId = CheckpointId(2);

    #[test]
    fn what_follows_a_snapshot_waits_for_the_readers_own() {
        let mut hold = HoldBack::default();
        assert!(!hold.is_held(0));
        hold.snapshot_taken(ONE, 2);
        hold.hold(0, Control::NoMoreSplits);
        assert!(hold.reader_snapshot(1, ONE).is_empty());
        assert!(hold.is_held(0) && !hold.is_held(1));
        assert_eq!(hold.reader_snapshot(0, ONE).len(), 1);
        assert!(!hold.is_held(0));
    }

    #[test]
    fn an_aborted_checkpoint_releases_unless_another_is_owed() {
        let mut hold = HoldBack::default();
        hold.snapshot_taken(ONE, 1);
        hold.hold(0, Control::NoMoreSplits);
        hold.snapshot_taken(TWO, 1);
        assert!(hold.aborted(ONE).iter().all(|(_, held)| held.is_empty()));
        assert_eq!(hold.reader_snapshot(0, TWO).len(), 1);
    }
}
