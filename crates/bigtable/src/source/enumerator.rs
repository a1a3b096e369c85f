//! The coordinator: plans once, hands splits out on request.
//!
//! # Invariants
//!
//! - Row keys are sampled on a fresh start only, and a failure to sample fails the job: there is no plan of one split to
//!   fall back to (BT-SCAN-03).
//! - It keeps no account of who holds which split, except under a row limit (see [`assign`](super::assign)).

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll};

use aqueduct_connector::metrics::{Counter, Gauge};
use aqueduct_connector::source::{
    EnumeratorCommand, EnumeratorOutput, PullAssigner, Split, SplitEnumerator,
};
use aqueduct_connector::{CheckpointId, Context, Error, Result, Versioned};
use bytes::Bytes;
use tracing::{info, warn};

use super::assign::LimitedAssigner;
use super::builder::Settings;
use super::metrics;
use super::plan::plan;
use super::split::{EnumeratorState, Finished, ScanSplit};
use crate::client::read::ReadClient;
use crate::client::sample::SampleRowKeys;

pub(super) struct Enumerator {
    settings: Arc<Settings>,
    context: Context,
    assignment: Assignment,
    phase: Phase,
    samples_taken: Counter,
    assigned: Counter,
    returned: Counter,
    unassigned: Gauge,
    planned_bytes: Gauge,
}

enum Phase {
    /// Not polled yet: creating the coordinator does no I/O.
    New,
    Sampling(Box<SampleRowKeys>),
    /// Nothing left to do but to answer; no connection is kept.
    Idle,
}

enum Assignment {
    Free(PullAssigner),
    Limited(LimitedAssigner),
}

impl Enumerator {
    pub(super) fn new(
        settings: Arc<Settings>,
        context: Context,
        restored: Option<EnumeratorState>,
    ) -> Self {
        let assignment = match (restored, settings.row_limit) {
            // A plan in the state goes on as it was begun, whatever the options say now.
            (Some(state), _) if state.planned => match state.limited {
                Some(account) => {
                    Assignment::Limited(LimitedAssigner::restored(state.unassigned, account))
                }
                None => Assignment::Free(PullAssigner::restored(
                    state.unassigned.iter().map(ScanSplit::to_split).collect(),
                )),
            },
            (_, Some(limit)) => Assignment::Limited(LimitedAssigner::new(limit)),
            (_, None) => Assignment::Free(PullAssigner::new()),
        };
        let group = &context.metrics;
        let this = Self {
            assignment,
            phase: Phase::New,
            samples_taken: group.counter(metrics::ROW_KEY_SAMPLES_TAKEN),
            assigned: group.counter(metrics::SPLITS_ASSIGNED),
            returned: group.counter(metrics::SPLITS_RETURNED),
            unassigned: group.gauge(metrics::UNASSIGNED_SPLITS),
            planned_bytes: group.gauge(metrics::PLANNED_BYTES),
            settings,
            context,
        };
        this.show();
        this
    }

    fn show(&self) {
        self.unassigned.set_size(match &self.assignment {
            Assignment::Free(assigner) => assigner.unassigned().map_or(0, |splits| splits.len()),
            Assignment::Limited(assigner) => assigner.unassigned(),
        });
    }

    /// Runs `change` on an output of its own, counts what it hands out, and passes it on.
    fn with(
        &mut self,
        out: &mut EnumeratorOutput,
        change: impl FnOnce(&mut Assignment, &mut EnumeratorOutput),
    ) {
        let mut own = EnumeratorOutput::new();
        change(&mut self.assignment, &mut own);
        for command in own.drain() {
            match command {
                EnumeratorCommand::Assign { reader, splits } => {
                    self.assigned.add(splits.len() as u64);
                    out.assign(reader, splits);
                }
                EnumeratorCommand::NoMoreSplits { reader } => out.no_more_splits(reader),
                EnumeratorCommand::Event { reader, event } => out.event(reader, event),
            }
        }
        self.show();
    }

    fn is_planned(&self) -> bool {
        match &self.assignment {
            Assignment::Free(assigner) => assigner.is_planned(),
            Assignment::Limited(assigner) => assigner.is_planned(),
        }
    }

    fn planned(&mut self, samples: &[Bytes], out: &mut EnumeratorOutput) {
        self.samples_taken.increment();
        let table = self.settings.access.table();
        if samples.is_empty() {
            info!(%table, "the table has one section, so every range of the scan is one split");
        }
        let splits = plan(&self.settings.ranges, samples, self.settings.order);
        let parallelism = self.context.parallelism;
        if self.settings.row_limit.is_none() && splits.len() < parallelism as usize {
            warn!(
                %table,
                splits = splits.len(),
                parallelism,
                "the scan has fewer splits than subtasks: the table's sections decide, and the other subtasks finish at once"
            );
        }
        self.with(out, |assignment, out| match assignment {
            Assignment::Free(assigner) => {
                assigner.planned(splits.iter().map(ScanSplit::to_split).collect(), out);
            }
            Assignment::Limited(assigner) => assigner.planned(splits, out),
        });
    }
}

impl fmt::Debug for Enumerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enumerator")
            .field("table", self.settings.access.table())
            .field("planned", &self.is_planned())
            .finish_non_exhaustive()
    }
}

impl SplitEnumerator for Enumerator {
    fn poll_progress(
        &mut self,
        cx: &mut PollContext<'_>,
        out: &mut EnumeratorOutput,
    ) -> Poll<Result<()>> {
        if let Phase::New = self.phase
            && self.settings.nothing
        {
            self.phase = Phase::Idle;
            if !self.is_planned() {
                self.with(out, |assignment, out| match assignment {
                    Assignment::Free(assigner) => assigner.planned(Vec::new(), out),
                    Assignment::Limited(assigner) => assigner.planned(Vec::new(), out),
                });
            }
        }
        if let Phase::New = self.phase {
            // On a restore too, so that a key file that cannot be used is found at once.
            let client = ReadClient::new(
                &self.context,
                &self.settings.access,
                self.settings.read_ahead,
                NonZeroUsize::MIN,
            )?;
            self.phase = if self.is_planned() {
                Phase::Idle
            } else {
                Phase::Sampling(Box::new(client.sample_row_keys(self.context.random())))
            };
        }
        if let Phase::Sampling(sampling) = &mut self.phase
            && let Poll::Ready(samples) = sampling.poll_keys(cx)
        {
            let bytes = sampling.estimate_bytes(&self.settings.ranges);
            self.planned_bytes
                .set(i64::try_from(bytes).unwrap_or(i64::MAX));
            self.phase = Phase::Idle;
            self.planned(&samples?, out);
        }
        Poll::Pending
    }

    fn reader_registered(&mut self, reader: u32, _: &mut EnumeratorOutput) -> Result<()> {
        match &mut self.assignment {
            Assignment::Free(assigner) => assigner.reader_registered(reader),
            Assignment::Limited(assigner) => assigner.reader_registered(reader),
        }
        Ok(())
    }

    fn reader_lost(&mut self, reader: u32) -> Result<()> {
        match &mut self.assignment {
            Assignment::Free(assigner) => assigner.reader_lost(reader),
            Assignment::Limited(assigner) => assigner.reader_lost(reader),
        }
        Ok(())
    }

    fn split_requested(&mut self, reader: u32, out: &mut EnumeratorOutput) -> Result<()> {
        self.with(out, |assignment, out| match assignment {
            Assignment::Free(assigner) => assigner.requested(reader, out),
            Assignment::Limited(assigner) => assigner.requested(reader, out),
        });
        Ok(())
    }

    fn splits_returned(&mut self, splits: Vec<Split>, out: &mut EnumeratorOutput) -> Result<()> {
        self.returned.add(splits.len() as u64);
        let decoded = splits
            .iter()
            .map(|split| ScanSplit::decode(&split.state))
            .collect::<Result<Vec<_>, _>>()?;
        self.with(out, |assignment, out| match assignment {
            Assignment::Free(assigner) => {
                assigner.returned(splits, out);
            }
            Assignment::Limited(assigner) => assigner.returned(decoded, out),
        });
        Ok(())
    }

    fn reader_event(
        &mut self,
        reader: u32,
        event: Versioned,
        out: &mut EnumeratorOutput,
    ) -> Result<()> {
        let end = Finished::decode(&event)?;
        if let Assignment::Free(_) = &self.assignment {
            return Err(Error::bug(
                "a reader gave back the rest of a limit that the scan does not have",
            ));
        }
        self.with(out, |assignment, out| {
            if let Assignment::Limited(assigner) = assignment {
                assigner.finished(reader, end, out);
            }
        });
        Ok(())
    }

    fn snapshot(&mut self, _: CheckpointId) -> Result<Versioned> {
        let state = match &self.assignment {
            Assignment::Limited(assigner) => assigner.state(),
            Assignment::Free(assigner) => EnumeratorState {
                planned: assigner.is_planned(),
                unassigned: assigner
                    .unassigned()
                    .into_iter()
                    .flatten()
                    .map(|split| ScanSplit::decode(&split.state))
                    .collect::<Result<_, _>>()?,
                limited: None,
            },
        };
        Ok(state.encode())
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.phase = Phase::Idle;
        Poll::Ready(Ok(()))
    }
}
