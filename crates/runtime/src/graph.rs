//! The finished graph: operators, the chains they run in, the exchanges between chains.
//!
//! It is made once by the builder in `stream`, checked, and shared by all threads and attempts. It holds
//! factories only; what runs is made from them on the thread where it runs.

use std::any::Any;
use std::sync::Arc;

use aqueduct_connector::sink::Committer;
use aqueduct_connector::source::{Boundedness, SplitEnumerator};
use aqueduct_connector::{Context, Error, Result, Versioned};

use crate::channel::Bounds;
use crate::checkpoint::Loaded;
use crate::keyed::key_hash;
use crate::task::{Head, TaskBuild};

pub(crate) type HeadFactory = Arc<dyn Fn(&TaskBuild) -> Box<dyn Head> + Send + Sync>;
pub(crate) type ExchangeFactory =
    Arc<dyn Fn(u32, Bounds) -> Box<dyn Any + Send + Sync> + Send + Sync>;
pub(crate) type EnumeratorFactory =
    Arc<dyn Fn(Context, Option<Versioned>) -> Result<Box<dyn SplitEnumerator>> + Send + Sync>;
pub(crate) type CommitterFactory =
    Arc<dyn Fn(Context) -> Result<Option<Box<dyn Committer>>> + Send + Sync>;

/// One operator, identified in checkpoints by its name.
#[derive(Clone, Debug)]
pub(crate) struct OperatorInfo {
    pub(crate) name: Arc<str>,
    /// `source:<connector>`, `sink:<connector>`, `operator` or `keyed`; state of another kind does not fit.
    pub(crate) kind: String,
}

/// Operators that run in one task a subtask.
#[derive(Clone)]
pub(crate) struct ChainDef {
    pub(crate) name: Arc<str>,
    /// The operator named when nothing better is known.
    pub(crate) operator: u32,
    /// The source it begins with.
    pub(crate) source: Option<u32>,
    pub(crate) head: HeadFactory,
}

/// A source's part that runs on the coordinator's thread.
#[derive(Clone)]
pub(crate) struct SourceDef {
    pub(crate) operator: u32,
    pub(crate) boundedness: Boundedness,
    pub(crate) create: EnumeratorFactory,
}

/// A sink's part that runs on the coordinator's thread.
#[derive(Clone)]
pub(crate) struct SinkDef {
    pub(crate) operator: u32,
    pub(crate) create: CommitterFactory,
}

/// A job's graph.
pub(crate) struct Graph {
    pub(crate) name: Arc<str>,
    pub(crate) operators: Vec<OperatorInfo>,
    pub(crate) chains: Vec<ChainDef>,
    pub(crate) exchanges: Vec<ExchangeFactory>,
    pub(crate) sources: Vec<SourceDef>,
    pub(crate) sinks: Vec<SinkDef>,
}

impl Graph {
    pub(crate) fn operator(&self, index: u32) -> &OperatorInfo {
        &self.operators[index as usize]
    }

    pub(crate) fn chain(&self, index: u32) -> &ChainDef {
        &self.chains[index as usize]
    }

    pub(crate) fn is_bounded(&self) -> bool {
        self.sources
            .iter()
            .all(|source| source.boundedness == Boundedness::Bounded)
    }

    /// Of operator names, kinds and chains; shown in manifests, for people.
    pub(crate) fn fingerprint(&self) -> String {
        let mut bytes = Vec::new();
        for operator in &self.operators {
            bytes.extend_from_slice(operator.name.as_bytes());
            bytes.push(0);
            bytes.extend_from_slice(operator.kind.as_bytes());
            bytes.push(0);
        }
        for chain in &self.chains {
            bytes.extend_from_slice(chain.name.as_bytes());
            bytes.push(1);
        }
        format!("{:016x}", key_hash(&bytes))
    }

    /// Whether a restored checkpoint fits this job, and drops what it may.
    pub(crate) fn check_restored(&self, loaded: &mut Loaded, allow_dropped: bool) -> Result<()> {
        let manifest = &loaded.manifest;
        if *manifest.job != *self.name {
            return Err(Error::config(format!(
                "{} is a checkpoint of job '{}', this is job '{}': use another checkpoint directory, or give the job \
                 its name back",
                loaded.at, manifest.job, self.name
            )));
        }
        let (mut unclaimed, mut other_kind) = (Vec::new(), Vec::new());
        for stored in manifest
            .operators
            .iter()
            .filter(|stored| stored.file.is_some())
        {
            match self.operators.iter().find(|own| *own.name == *stored.name) {
                None => unclaimed.push(stored.name.clone()),
                Some(own) if own.kind != stored.kind => other_kind.push(format!(
                    "'{}' was {} and is {}",
                    stored.name, stored.kind, own.kind
                )),
                Some(_) => {}
            }
        }
        if !other_kind.is_empty() {
            return Err(Error::state(format!(
                "{} does not fit the job: {}; give the changed operator a new name",
                loaded.at,
                other_kind.join(", ")
            )));
        }
        if !unclaimed.is_empty() {
            let names = unclaimed
                .iter()
                .map(|name| format!("'{name}'"))
                .collect::<Vec<_>>()
                .join(", ");
            if !allow_dropped {
                return Err(Error::state(format!(
                    "{} holds state of operators that the job does not have: {names}; give them their names back, or \
                     set 'execution.state-recovery.ignore-unclaimed-state' to lose that state",
                    loaded.at
                )));
            }
            tracing::warn!(operators = %names, checkpoint = %loaded.at, "state is dropped, as allowed");
            for name in unclaimed {
                loaded.restored.operators.remove(&name);
            }
        }
        for own in &self.operators {
            if !manifest
                .operators
                .iter()
                .any(|stored| *stored.name == *own.name)
            {
                tracing::info!(operator = %own.name, checkpoint = %loaded.at, "not in the checkpoint: it starts without state");
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph")
            .field("name", &self.name)
            .field("operators", &self.operators)
            .finish_non_exhaustive()
    }
}
