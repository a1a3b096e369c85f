//! The enumerator: plans once, off the coordinator's path, and hands out one split a request.

use std::fmt;
use std::task::{Context as PollContext, Poll};

use aqueduct_connector::source::{EnumeratorOutput, PullAssigner, Split, SplitEnumerator};
use aqueduct_connector::{CheckpointId, Context, Error, Result, Task, Versioned};
use futures::FutureExt;
use tokio::sync::oneshot;

use super::plan::Planner;
use super::split::{EnumeratorState, FileSplit};
use crate::metrics::EnumeratorMetrics;

pub(crate) struct FileEnumerator {
    context: Context,
    assigner: PullAssigner,
    planner: Option<Planner>,
    planning: Option<Planning>,
    metrics: EnumeratorMetrics,
    closed: bool,
}

struct Planning {
    task: Task,
    plan: oneshot::Receiver<Result<Vec<FileSplit>>>,
}

impl FileEnumerator {
    pub(crate) fn new(
        context: Context,
        planner: Planner,
        restored: Option<Versioned>,
    ) -> Result<Self> {
        let unassigned = match restored {
            Some(state) => EnumeratorState::decode(&state)?.unassigned,
            None => None,
        };
        let (assigner, planner) = match unassigned {
            Some(unassigned) => (PullAssigner::restored(unassigned), None),
            None => (PullAssigner::new(), Some(planner)),
        };
        let metrics = EnumeratorMetrics::new(&context.metrics);
        let enumerator = Self {
            context,
            assigner,
            planner,
            planning: None,
            metrics,
            closed: false,
        };
        enumerator.show_unassigned();
        Ok(enumerator)
    }

    fn show_unassigned(&self) {
        let count = self.assigner.unassigned().map_or(0, |splits| splits.len());
        self.metrics.unassigned.set_size(count);
    }

    /// Runs `serve` and counts the splits it hands out.
    fn serving(&mut self, serve: impl FnOnce(&mut PullAssigner)) {
        let waiting =
            |assigner: &PullAssigner| assigner.unassigned().map_or(0, |splits| splits.len());
        let before = waiting(&self.assigner);
        serve(&mut self.assigner);
        let assigned = before.saturating_sub(waiting(&self.assigner));
        self.metrics.assigned.add(assigned as u64);
        self.show_unassigned();
    }
}

impl fmt::Debug for FileEnumerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileEnumerator")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

impl SplitEnumerator for FileEnumerator {
    fn poll_progress(
        &mut self,
        cx: &mut PollContext<'_>,
        out: &mut EnumeratorOutput,
    ) -> Poll<Result<()>> {
        if self.closed {
            return Poll::Pending;
        }
        if let Some(planner) = self.planner.take() {
            let (to, plan) = oneshot::channel();
            let task = self.context.spawn.spawn(
                "plan files",
                Box::pin(async move {
                    // Nobody listens once the enumerator is closed; then nobody needs the plan.
                    let _ = to.send(planner.plan().await);
                }),
            );
            self.planning = Some(Planning { task, plan });
        }
        let Some(planning) = &mut self.planning else {
            return Poll::Pending;
        };
        let Poll::Ready(answer) = planning.plan.poll_unpin(cx) else {
            return Poll::Pending;
        };
        self.planning = None;
        let splits = match answer {
            Ok(plan) => plan?,
            Err(_) => return Poll::Ready(Err(Error::bug("planning the files ended unanswered"))),
        };
        self.metrics.planned.add(splits.len() as u64);
        let splits: Vec<Split> = splits.iter().map(FileSplit::to_split).collect();
        let planned = splits.len();
        self.serving(|assigner| assigner.planned(splits, out));
        let waiting = self.assigner.unassigned().map_or(0, |splits| splits.len());
        self.metrics.assigned.add((planned - waiting) as u64);
        Poll::Pending
    }

    fn reader_registered(&mut self, reader: u32, _out: &mut EnumeratorOutput) -> Result<()> {
        self.assigner.reader_registered(reader);
        Ok(())
    }

    fn reader_lost(&mut self, reader: u32) -> Result<()> {
        self.assigner.reader_lost(reader);
        Ok(())
    }

    fn split_requested(&mut self, reader: u32, out: &mut EnumeratorOutput) -> Result<()> {
        self.serving(|assigner| assigner.requested(reader, out));
        Ok(())
    }

    fn splits_returned(&mut self, splits: Vec<Split>, out: &mut EnumeratorOutput) -> Result<()> {
        self.metrics.returned.add(splits.len() as u64);
        self.serving(|assigner| {
            assigner.returned(splits, out);
        });
        Ok(())
    }

    fn snapshot(&mut self, _checkpoint: CheckpointId) -> Result<Versioned> {
        Ok(EnumeratorState::encode(self.assigner.unassigned()))
    }

    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.closed = true;
        self.planner = None;
        if let Some(planning) = &mut self.planning {
            planning.task.abort();
            // It may have panicked; what it planned is not wanted any more.
            let _ = std::task::ready!(planning.task.poll_ended(cx));
            self.planning = None;
        }
        Poll::Ready(Ok(()))
    }
}
