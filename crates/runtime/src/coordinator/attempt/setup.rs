//! The beginning of an attempt: committers, uncommitted work, enumerators, tasks, threads.
//!
//! Whatever fails on the way, what was made so far is known to the attempt and closed by its end.

use std::sync::Arc;

use aqueduct_connector::{Error, Result, Spawn};
use tokio::sync::mpsc;

use super::super::committer::{CommitterSlot, Pending, commit_all};
use super::super::enumerator::{self, Answer, EnumeratorTask};
use super::super::worker::start_worker;
use super::{Attempt, ENUMERATOR_QUEUE, End, STALL_AFTER};
use crate::host::{RuntimeSpawn, wait_until};
use crate::task::{Board, CONTROL_QUEUE, Event, TaskId, TaskSpec};

impl Attempt<'_> {
    /// Creates everything and starts the threads.
    pub(super) async fn start(
        &mut self,
        uncommitted: Pending,
        events: mpsc::Sender<Event>,
        answers: mpsc::Sender<Answer>,
    ) -> Result<(), End> {
        let plan = self.plan.clone();
        let spawn = RuntimeSpawn::current();
        self.create_committers(&spawn).await.map_err(End::Failed)?;
        if !uncommitted.is_empty() {
            tracing::info!("committing what the restored checkpoint left uncommitted");
            let slots = self.committers.clone();
            let mut committing = std::pin::pin!(commit_all(slots, uncommitted, plan.clock.clone()));
            let since = plan.clock.now();
            let committed = loop {
                tokio::select! {
                    biased;
                    () = self.job.cancel.cancelled() => return Err(End::Cancelled),
                    committed = &mut committing => break committed,
                    () = wait_until(&*plan.clock, Some(plan.clock.now().after(STALL_AFTER))) => {
                        tracing::warn!(waited = ?plan.clock.now().since(since), "committing restored committables takes long; the job starts after it");
                    }
                }
            };
            committed.map_err(End::Failed)?;
        }
        let parallelism = plan.parallelism;
        let mut specs: Vec<Vec<TaskSpec>> = (0..parallelism).map(|_| Vec::new()).collect();
        for (chain, definition) in (0_u32..).zip(&plan.graph.chains) {
            let mut readers = Vec::new();
            let (messages_tx, messages) = mpsc::channel(ENUMERATOR_QUEUE);
            for subtask in 0..parallelism {
                let id = TaskId { chain, subtask };
                let (control_tx, control) = mpsc::channel(CONTROL_QUEUE);
                let board = Arc::new(Board::default());
                self.boards.insert(id, board.clone());
                if definition.source.is_some() {
                    readers.push(control_tx.clone());
                    self.source_tasks.insert(id);
                }
                self.controls.insert(id, control_tx);
                specs[subtask as usize].push(TaskSpec {
                    id,
                    control,
                    events: events.clone(),
                    enumerator: definition.source.map(|_| messages_tx.clone()),
                    board,
                    cancel: self.cancel.clone(),
                });
            }
            let Some(operator) = definition.source else {
                continue;
            };
            let source = plan
                .graph
                .sources
                .iter()
                .find(|source| source.operator == operator)
                .ok_or_else(|| End::Failed(Error::bug("a chain begins with an unknown source")))?;
            let name = &plan.graph.operator(operator).name;
            let state = plan.restored().enumerator(name);
            let context = plan.context(operator, None, spawn.clone());
            let created = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                (source.create)(context, state)
            }));
            let enumerator = match created {
                Ok(Ok(enumerator)) => enumerator,
                Ok(Err(error)) => {
                    let text = format!("source '{name}' failed to create its enumerator");
                    return Err(End::Failed(
                        Error::new(error.kind(), text).with_source(error),
                    ));
                }
                Err(payload) => {
                    return Err(End::Failed(Error::user(format!(
                        "source '{name}' panicked creating its enumerator: {}",
                        crate::host::panic_text(payload.as_ref())
                    ))));
                }
            };
            let (orders_tx, orders) = mpsc::channel(CONTROL_QUEUE);
            self.orders.insert(operator, orders_tx);
            let task = EnumeratorTask {
                operator,
                enumerator,
                orders,
                messages,
                readers,
                answers: answers.clone(),
                stop: self.stop_enumerators.clone(),
            };
            self.enumerators
                .spawn_local(enumerator::run(task, plan.clone()));
        }
        for (index, specs) in specs.into_iter().enumerate() {
            let tasks: Vec<_> = specs.iter().map(|spec| spec.id).collect();
            let worker = start_worker(index, specs, plan.clone()).map_err(End::Failed)?;
            self.workers.push(worker);
            self.live.extend(tasks);
        }
        Ok(())
    }

    async fn create_committers(&mut self, spawn: &Arc<RuntimeSpawn>) -> Result<()> {
        let mut slots = self.committers.lock().await;
        for sink in &self.plan.graph.sinks {
            let spawn: Arc<dyn Spawn> = spawn.clone();
            let context = self.plan.context(sink.operator, None, spawn);
            let (name, seed) = (context.operator.clone(), context.seed);
            let metrics = context.metrics.clone();
            let created = (sink.create)(context).map_err(|error| {
                Error::new(
                    error.kind(),
                    format!("sink '{name}' failed to create its committer"),
                )
                .with_source(error)
            })?;
            if let Some(committer) = created {
                if self.job.store.is_none() && !self.plan.graph.is_bounded() {
                    return Err(Error::config(format!(
                        "sink '{name}' commits at checkpoints, the job has none and its input does not end: set \
                         'execution.checkpointing.dir'"
                    )));
                }
                slots.push(CommitterSlot::new(
                    sink.operator,
                    name,
                    committer,
                    seed,
                    &metrics,
                ));
            }
        }
        Ok(())
    }
}
