//! Committers: what completed checkpoints made certain is applied, and tried again until it is.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_connector::metrics::{Counter, Gauge, MetricGroup};
use aqueduct_connector::sink::{CommitOutcome, CommitRequest, Committer};
use aqueduct_connector::{Clock, Error, Result};
use futures::FutureExt;
use tokio::sync::Mutex;

use crate::checkpoint::PendingCommit;
use crate::host::{panic_text, wait_until, within};

/// First and longest wait before committables are handed over again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// Committables by the sink's operator.
pub(crate) type Pending = BTreeMap<u32, Vec<PendingCommit>>;

/// One sink's committer.
pub(crate) struct CommitterSlot {
    pub(crate) operator: u32,
    name: Arc<str>,
    committer: Box<dyn Committer>,
    random: fastrand::Rng,
    pending: Gauge,
    total: Counter,
    done: Counter,
    already: Counter,
    refused: Counter,
    retried: Counter,
}

impl CommitterSlot {
    pub(crate) fn new(
        operator: u32,
        name: Arc<str>,
        committer: Box<dyn Committer>,
        seed: u64,
        metrics: &MetricGroup,
    ) -> Self {
        Self {
            operator,
            name,
            committer,
            random: fastrand::Rng::with_seed(seed),
            pending: metrics.gauge("pendingCommittables"),
            total: metrics.counter("totalCommittables"),
            done: metrics.counter("successfulCommittables"),
            already: metrics.counter("alreadyCommittedCommittables"),
            refused: metrics.counter("failedCommittables"),
            retried: metrics.counter("retriedCommittables"),
        }
    }

    fn failed(&self, error: Error, what: &str) -> Error {
        Error::new(
            error.kind(),
            format!("the committer of sink '{}' failed {what}", self.name),
        )
        .with_source(error)
    }

    /// Hands everything over, again and again, until all of it is applied.
    async fn commit(&mut self, pending: Vec<PendingCommit>, clock: &dyn Clock) -> Result<()> {
        let mut requests: Vec<CommitRequest> = pending
            .into_iter()
            .map(|pending| CommitRequest {
                committable: pending.committable,
                checkpoint: pending.checkpoint,
                attempt: pending.attempt,
            })
            .collect();
        self.total.add(requests.len() as u64);
        let mut wait = BACKOFF.0;
        while !requests.is_empty() {
            self.pending.set_size(requests.len());
            if let Err(error) = self.committer.start_commit(requests.clone()) {
                return Err(self.failed(error, "to take committables"));
            }
            let outcomes = match poll_fn(|cx| self.committer.poll_commit(cx)).await {
                Ok(outcomes) => outcomes,
                Err(error) => return Err(self.failed(error, "to commit")),
            };
            if outcomes.len() != requests.len() {
                return Err(Error::bug(format!(
                    "the committer of sink '{}' answered {} committables of {}",
                    self.name,
                    outcomes.len(),
                    requests.len()
                )));
            }
            let mut again = Vec::new();
            let mut refused: Option<Error> = None;
            for (mut request, outcome) in requests.into_iter().zip(outcomes) {
                match outcome {
                    CommitOutcome::Done => self.done.increment(),
                    CommitOutcome::AlreadyDone => self.already.increment(),
                    CommitOutcome::TryAgain => {
                        self.retried.increment();
                        request.attempt = request.attempt.saturating_add(1);
                        again.push(request);
                    }
                    CommitOutcome::Refused(error) => {
                        self.refused.increment();
                        crate::stage::attach(&mut refused, error);
                    }
                }
            }
            if let Some(error) = refused {
                return Err(self.failed(error, "to commit: a committable was refused for good"));
            }
            requests = again;
            if !requests.is_empty() {
                let jittered = wait.mul_f64(0.5 + 0.5 * self.random.f64());
                wait_until(clock, Some(clock.now().after(jittered))).await;
                wait = (wait * 2).min(BACKOFF.1);
            }
        }
        self.pending.set(0);
        Ok(())
    }

    /// Releases everything, within the limit.
    pub(crate) async fn close(mut self, clock: &dyn Clock, limit: Duration) {
        let closing = AssertUnwindSafe(poll_fn(|cx| self.committer.poll_close(cx))).catch_unwind();
        match within(clock, limit, closing).await {
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error))) => {
                tracing::warn!(sink = %self.name, error = %error.report(), "closing the committer failed");
            }
            Some(Err(payload)) => {
                tracing::warn!(sink = %self.name, text = %panic_text(payload.as_ref()), "closing the committer panicked");
            }
            None => {
                tracing::warn!(sink = %self.name, waited = ?limit, "the committer did not close in time and was given up");
            }
        }
    }
}

/// The committers of a job. A commit borrows them for as long as it runs, so that one that is given up leaves them
/// behind to be closed.
pub(crate) type Committers = Rc<Mutex<Vec<CommitterSlot>>>;

/// Applies `pending` through the committers of their sinks, all sinks at once.
pub(crate) async fn commit_all(
    committers: Committers,
    mut pending: Pending,
    clock: Arc<dyn Clock>,
) -> Result<()> {
    let mut slots = committers.lock().await;
    let mut work = Vec::new();
    for slot in slots.iter_mut() {
        if let Some(pending) = pending.remove(&slot.operator) {
            let name = slot.name.clone();
            let clock = clock.clone();
            work.push(async move {
                AssertUnwindSafe(slot.commit(pending, &*clock))
                    .catch_unwind()
                    .await
                    .unwrap_or_else(|payload| {
                        Err(Error::user(format!(
                            "the committer of sink '{name}' panicked: {}",
                            panic_text(payload.as_ref())
                        )))
                    })
            });
        }
    }
    let mut failure = None;
    for committed in futures::future::join_all(work).await {
        if let Err(error) = committed {
            crate::stage::attach(&mut failure, error);
        }
    }
    let orphan = pending.values().any(|pending| !pending.is_empty());
    if orphan && failure.is_none() {
        failure = Some(Error::state(
            "there are committables of a sink that has no committer: was its mode changed with work outstanding? \
             Run the earlier configuration until it has committed, then change it",
        ));
    }
    failure.map_or(Ok(()), Err)
}
