//! The coordinator: runs the start, then gives every reader its splits of the plan.
//!
//! # Invariants
//!
//! - No split is given out before the start position is applied, so a snapshot that says "not applied" holds no reader
//!   with a split.
//! - The plan alone says who reads what. Returned splits need no account: whoever registers gets its share again.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll};

use aqueduct_connector::metrics::Gauge;
use aqueduct_connector::source::{EnumeratorOutput, Split, SplitEnumerator};
use aqueduct_connector::{CheckpointId, Context, Result, Versioned};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use tracing::{info, warn};

use super::builder::{Settings, StartPosition};
use super::metrics;
use super::plan::{Planned, plan};
use super::split::{EnumeratorState, SubscriptionSplit};
use super::startup::{Started, start};

pub(super) struct Enumerator {
    settings: Arc<Settings>,
    context: Context,
    applied: bool,
    phase: Phase,
    plan: Vec<Planned>,
    readers: BTreeSet<u32>,
    /// Of `readers`, those that got their share.
    served: BTreeSet<u32>,
    assigned: Gauge,
    unassigned_readers: Gauge,
    unassigned_splits: Gauge,
}

enum Phase {
    New,
    Starting(LocalBoxFuture<'static, Result<Started>>),
    Started(Started),
    /// Closed, or the start has failed.
    Over,
}

impl Enumerator {
    pub(super) fn new(
        settings: Arc<Settings>,
        context: Context,
        restored: Option<EnumeratorState>,
    ) -> Self {
        let plan = plan(
            settings.subscriptions.len(),
            settings.ordering,
            context.parallelism,
        );
        let group = &context.metrics;
        let this = Self {
            applied: restored
                .as_ref()
                .is_some_and(|state| state.start_position_applied),
            phase: Phase::New,
            readers: BTreeSet::new(),
            served: BTreeSet::new(),
            assigned: group.gauge(metrics::ASSIGNED_SPLITS),
            unassigned_readers: group.gauge(metrics::UNASSIGNED_READERS),
            unassigned_splits: group.gauge(metrics::UNASSIGNED_SPLITS),
            plan,
            settings,
            context,
        };
        if let Some(state) = restored {
            this.compare(&state);
        }
        this.show();
        this
    }

    fn compare(&self, state: &EnumeratorState) {
        let configured = self.settings.subscriptions.iter();
        if !configured
            .map(|one| &one.subscription)
            .eq(&state.subscriptions)
        {
            warn!(
                restored = ?state.subscriptions,
                "the restored state names other subscriptions than the source; the source's are read, and what a removed \
                 one has delivered stays on it"
            );
        }
        if !state.start_position_applied
            && self.settings.start != StartPosition::ContinueFromSubscription
        {
            warn!(
                "the restored state is from before the start position was applied; it is applied now, which for 'latest' \
                 is another instant"
            );
        }
    }

    fn show(&self) {
        let assigned = self
            .plan
            .iter()
            .filter(|split| self.served.contains(&split.owner))
            .count();
        self.assigned.set_size(assigned);
        self.unassigned_splits.set_size(self.plan.len() - assigned);
        self.unassigned_readers
            .set_size(self.readers.len() - self.served.len());
    }

    /// Gives `reader` its share, if the start is over.
    fn serve(&mut self, reader: u32, out: &mut EnumeratorOutput) {
        let Phase::Started(started) = &self.phase else {
            return;
        };
        let splits: Vec<Split> = self
            .plan
            .iter()
            .filter(|split| split.owner == reader)
            .map(|split| {
                SubscriptionSplit {
                    subscription: self.settings.subscriptions[split.subscription]
                        .subscription
                        .clone(),
                    uid: split.uid,
                    ack_deadline_seconds: started.ack_deadlines[split.subscription],
                }
                .to_split()
            })
            .collect();
        if splits.is_empty() {
            out.no_more_splits(reader);
        } else {
            info!(reader, splits = splits.len(), "splits assigned");
            out.assign(reader, splits);
        }
        self.served.insert(reader);
        self.show();
    }

    fn warn_of_idle(&self) {
        let idle = (self.context.parallelism as usize).saturating_sub(self.plan.len());
        if idle > 0 {
            warn!(
                idle,
                subscriptions = self.settings.subscriptions.len(),
                "with per-key ordering a subscription is read by one subtask; the others finish at once"
            );
        }
    }
}

impl fmt::Debug for Enumerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enumerator")
            .field("applied", &self.applied)
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

impl SplitEnumerator for Enumerator {
    fn poll_progress(
        &mut self,
        cx: &mut PollContext<'_>,
        out: &mut EnumeratorOutput,
    ) -> Poll<Result<()>> {
        if let Phase::New = self.phase {
            self.warn_of_idle();
            let starting = start(self.settings.clone(), self.context.clone(), !self.applied);
            self.phase = Phase::Starting(starting.boxed_local());
        }
        if let Phase::Starting(starting) = &mut self.phase
            && let Poll::Ready(started) = starting.poll_unpin(cx)
        {
            match started {
                Ok(started) => {
                    self.applied = true;
                    self.phase = Phase::Started(started);
                    for reader in self.readers.clone() {
                        self.serve(reader, out);
                    }
                }
                Err(error) => {
                    self.phase = Phase::Over;
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Pending
    }

    fn reader_registered(&mut self, reader: u32, out: &mut EnumeratorOutput) -> Result<()> {
        self.readers.insert(reader);
        self.show();
        if !self.served.contains(&reader) {
            self.serve(reader, out);
        }
        Ok(())
    }

    fn reader_lost(&mut self, reader: u32) -> Result<()> {
        self.readers.remove(&reader);
        self.served.remove(&reader);
        self.show();
        Ok(())
    }

    fn split_requested(&mut self, _: u32, _: &mut EnumeratorOutput) -> Result<()> {
        Ok(())
    }

    fn splits_returned(&mut self, _: Vec<Split>, _: &mut EnumeratorOutput) -> Result<()> {
        Ok(())
    }

    fn snapshot(&mut self, _: CheckpointId) -> Result<Versioned> {
        let subscriptions = self.settings.subscriptions.iter();
        let state = EnumeratorState {
            subscriptions: subscriptions.map(|one| one.subscription.clone()).collect(),
            start_position_applied: self.applied,
        };
        Ok(state.encode())
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        // Also ends a start under way, silently.
        self.phase = Phase::Over;
        Poll::Ready(Ok(()))
    }
}
