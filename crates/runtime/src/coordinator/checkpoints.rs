//! The checkpoint under way: what it is for, who owes a share, what was collected.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use aqueduct_connector::{CheckpointId, Error, Moment, Result};
use tokio::sync::oneshot;

use super::JobContext;
use crate::checkpoint::{CheckpointStore, NewCheckpoint, OperatorFile, SubtaskState};
use crate::task::TaskId;

/// Where the result of a request goes: the location of what was written, if anything was.
pub(crate) type Reply = oneshot::Sender<Result<Option<String>>>;

/// Why a checkpoint is taken.
pub(crate) enum Goal {
    /// Its time had come.
    Checkpoint,
    /// Somebody asked for a savepoint.
    Savepoint {
        location: CheckpointStore,
        reply: Reply,
    },
    /// Somebody asked to stop with a last checkpoint, and perhaps a savepoint.
    Stop {
        savepoint: Option<CheckpointStore>,
        reply: Reply,
    },
    /// The input has ended.
    Final,
}

impl fmt::Debug for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Checkpoint => "Checkpoint",
            Self::Savepoint { .. } => "Savepoint",
            Self::Stop { .. } => "Stop",
            Self::Final => "Final",
        })
    }
}

impl Goal {
    /// Whether sources read nothing more after it.
    pub(crate) fn stops(&self) -> bool {
        matches!(self, Self::Stop { .. })
    }

    /// Tells whoever asked.
    pub(crate) fn answer(self, result: Result<Option<String>>) {
        if let Self::Savepoint { reply, .. } | Self::Stop { reply, .. } = self {
            // Whoever asked may have gone.
            let _ = reply.send(result);
        }
    }
}

/// A checkpoint being collected.
pub(crate) struct InFlight {
    pub(crate) id: CheckpointId,
    pub(crate) goal: Goal,
    pub(crate) started: Moment,
    pub(crate) deadline: Moment,
    /// Enumerators that owe a snapshot.
    pub(crate) enumerators: BTreeSet<u32>,
    /// Whether barriers were sent.
    pub(crate) triggered: bool,
    /// Tasks that owe their share.
    pub(crate) tasks: BTreeSet<TaskId>,
    /// By operator.
    pub(crate) files: Vec<OperatorFile>,
    /// The longest alignment of a task.
    pub(crate) alignment: Duration,
    /// What already keeps it from completing.
    pub(crate) broken: Option<Error>,
    /// Where it was written.
    pub(crate) location: Option<String>,
}

/// A checkpoint ready to be written: the job's own, and a savepoint with its place.
pub(crate) struct Collected {
    pub(crate) own: Option<NewCheckpoint>,
    pub(crate) savepoint: Option<(CheckpointStore, NewCheckpoint)>,
}

impl InFlight {
    pub(crate) fn new(
        id: CheckpointId,
        goal: Goal,
        started: Moment,
        deadline: Moment,
        operators: usize,
        parallelism: u32,
    ) -> Self {
        let file = OperatorFile {
            subtasks: vec![SubtaskState::default(); parallelism as usize],
            ..OperatorFile::default()
        };
        Self {
            id,
            goal,
            started,
            deadline,
            enumerators: BTreeSet::new(),
            triggered: false,
            tasks: BTreeSet::new(),
            files: vec![file; operators],
            alignment: Duration::ZERO,
            broken: None,
            location: None,
        }
    }

    /// A task gave its share.
    pub(crate) fn acknowledged(
        &mut self,
        task: TaskId,
        states: Vec<(u32, SubtaskState)>,
        alignment: Duration,
    ) {
        self.tasks.remove(&task);
        self.alignment = self.alignment.max(alignment);
        for (operator, state) in states {
            self.files[operator as usize].subtasks[task.subtask as usize] = state;
        }
    }

    /// Takes what was collected. A stop with a savepoint is written also as a checkpoint of the job's own: otherwise
    /// a later start without the savepoint's name would repeat what the stop has committed.
    pub(crate) fn collected(&mut self, job: &JobContext) -> Collected {
        let files = std::mem::take(&mut self.files);
        let new = |kind: &'static str, files: Vec<OperatorFile>| NewCheckpoint {
            id: self.id,
            kind,
            job: job.graph.name.to_string(),
            created_millis: job.config.clock.wall().millis(),
            parallelism: job.config.parallelism,
            max_parallelism: job.max_parallelism,
            graph: job.graph.fingerprint(),
            named_origin: job.config.restore_from.clone(),
            operators: job
                .graph
                .operators
                .iter()
                .zip(files)
                .map(|(operator, file)| (operator.name.to_string(), operator.kind.clone(), file))
                .collect(),
        };
        match &self.goal {
            Goal::Savepoint { location, .. } => Collected {
                savepoint: Some((location.clone(), new("savepoint", files))),
                own: None,
            },
            Goal::Stop {
                savepoint: Some(location),
                ..
            } => Collected {
                savepoint: Some((location.clone(), new("savepoint", files.clone()))),
                own: job.store.is_some().then(|| new("checkpoint", files)),
            },
            Goal::Checkpoint | Goal::Final | Goal::Stop { .. } => Collected {
                own: job.store.is_some().then(|| new("checkpoint", files)),
                savepoint: None,
            },
        }
    }
}
