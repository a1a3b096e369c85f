//! The task: one future that drives every split of a reader.

use std::collections::BTreeMap;
use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll};
use std::time::Duration;

use aqueduct_cloud::{CallError, ChannelPool, PoolOptions, TokenProvider};
use aqueduct_connector::clock::Timer;
use aqueduct_connector::{CheckpointId, Clock, Code, Context, Error, Moment, Result};
use futures::channel::{mpsc, oneshot};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tracing::warn;

use super::flow::{Caps, Load, to_park};
use super::ledger::{Claim, Run};
use super::settle::{Answer, Batch, Outcome, is_transient};
use super::split::{Phase, SplitIo, Told, Why};
use super::{BATCHES, COMMANDS, CONFIRMATIONS, Command, HandedBatch, Link};
use crate::client::ack::{AckClient, Kind, Said, verdicts};
use crate::source::builder::Settings;
use crate::source::metrics::ReaderMetrics;

/// Between looks at the leases.
const PASS: Duration = Duration::from_secs(1);
/// Between warnings of one sort.
const QUIET: Duration = Duration::from_secs(60);
/// Responses handled, commands carried out and so on before other tasks get a turn.
const TURNS: usize = 64;
/// The window of one stream: what may wait in the transport unread.
const STREAM_WINDOW: u32 = 1 << 20;
/// Streams that one connection carries well.
const STREAMS_PER_CONNECTION: usize = 50;

/// Starts the task of one reader.
///
/// # Errors
///
/// If the key file cannot be used.
pub(in crate::source) fn start(
    context: &Context,
    settings: &Arc<Settings>,
    streams: usize,
) -> Result<Link> {
    let tokens = TokenProvider::new(&settings.access.credentials)?;
    let endpoint = settings.access.endpoint.clone();
    let channels =
        NonZeroUsize::new(streams.div_ceil(STREAMS_PER_CONNECTION).max(1)).expect("at least one");
    let per_connection = u32::try_from(streams.min(STREAMS_PER_CONNECTION)).unwrap_or(50) + 1;
    let options = PoolOptions::default()
        .channels(channels)
        .windows(STREAM_WINDOW, STREAM_WINDOW * per_connection);
    let pool = ChannelPool::new(context, endpoint.clone(), tokens.clone(), options)?;
    // Unread streams must not hold up acknowledgements, so those have a connection of their own.
    let unary = ChannelPool::new(context, endpoint, tokens, PoolOptions::default())?;
    let (commands, inbox) = mpsc::channel(COMMANDS);
    let (outbox, batches) = mpsc::channel(BATCHES);
    let (confirmations, confirmed) = mpsc::channel(CONFIRMATIONS);
    let (fail, failure) = oneshot::channel();
    let now = context.clock.now();
    let mut random = context.random();
    let client = format!("aqueduct-{:016x}", random.u64(..));
    let task = ReaderTask {
        settings: settings.clone(),
        clock: context.clock.clone(),
        timer: context.clock.timer(),
        metrics: ReaderMetrics::new(&context.metrics),
        random,
        pool,
        unary,
        client,
        inbox,
        outbox,
        confirmations,
        unsent: None,
        fail: Some(fail),
        splits: Vec::new(),
        calls: FuturesUnordered::new(),
        bound: BTreeMap::new(),
        wanted: false,
        turn: 0,
        pass_at: now.after(PASS),
        guard: Guard::Unarmed,
        confirm: None,
        closing: None,
        leases_lost_told: None,
        leases_lost_untold: 0,
        acks_failed_told: None,
        acks_failed_untold: 0,
    };
    Ok(Link {
        commands,
        batches,
        confirmed,
        failure,
        task: context.spawn.spawn("pubsub-reader", Box::pin(task)),
    })
}

/// A unary call that ended.
struct Answered {
    split: usize,
    what: What,
    result: Result<(), CallError>,
}

enum What {
    Settle(Batch),
    Extend { claims: Vec<Claim>, seconds: u32 },
}

/// The wait for a first checkpoint (PS-SRC-19).
#[derive(Clone, Copy)]
enum Guard {
    Unarmed,
    Armed { fails_at: Moment, look_at: Moment },
    Retired,
}

/// Acknowledgements that the owner waits for.
struct Confirm {
    checkpoint: CheckpointId,
    outstanding: u64,
    deadline: Moment,
}

struct Closing {
    began: Moment,
    deadline: Moment,
}

struct ReaderTask {
    settings: Arc<Settings>,
    clock: Arc<dyn Clock>,
    timer: Box<dyn Timer>,
    metrics: ReaderMetrics,
    random: fastrand::Rng,
    pool: ChannelPool,
    unary: ChannelPool,
    /// Unique; `client_id`s begin so.
    client: String,
    inbox: mpsc::Receiver<Command>,
    outbox: mpsc::Sender<HandedBatch>,
    confirmations: mpsc::Sender<CheckpointId>,
    /// A confirmation that found no room.
    unsent: Option<CheckpointId>,
    /// Taken by the first failure.
    fail: Option<oneshot::Sender<Error>>,
    splits: Vec<SplitIo>,
    calls: FuturesUnordered<BoxFuture<'static, Answered>>,
    /// What each incomplete checkpoint covers.
    bound: BTreeMap<CheckpointId, Vec<(usize, Run)>>,
    wanted: bool,
    /// Where the search for the next batch starts.
    turn: usize,
    pass_at: Moment,
    guard: Guard,
    confirm: Option<Confirm>,
    closing: Option<Closing>,
    leases_lost_told: Option<Moment>,
    leases_lost_untold: u64,
    acks_failed_told: Option<Moment>,
    acks_failed_untold: u64,
}

impl Future for ReaderTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut PollContext<'_>) -> Poll<()> {
        let this = self.get_mut();
        for _ in 0..TURNS {
            let now = this.clock.now();
            let mut progress = match this.poll_inbox(now, cx) {
                Some(progress) => progress,
                // The owner is gone without a close: as a killed process.
                None => return Poll::Ready(()),
            };
            progress |= this.poll_calls(now, cx);
            progress |= this.keep_budget(now);
            progress |= this.poll_streams(now, cx);
            progress |= this.pass(now);
            progress |= this.progress_splits(now);
            progress |= this.send(now);
            progress |= this.hand_over(now);
            this.confirm_to_owner(cx);
            this.look_at_deadlines(now);
            this.show(now);
            if this.is_over(now) {
                return Poll::Ready(());
            }
            if progress {
                continue;
            }
            let deadline = this.deadline();
            this.timer.set(Some(deadline));
            if this.timer.poll_elapsed(cx).is_pending() {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl ReaderTask {
    /// `None` when the owner is gone.
    fn poll_inbox(&mut self, now: Moment, cx: &mut PollContext<'_>) -> Option<bool> {
        let mut progress = false;
        for _ in 0..TURNS {
            match self.inbox.poll_next_unpin(cx) {
                Poll::Pending => break,
                Poll::Ready(None) => return None,
                Poll::Ready(Some(command)) => {
                    progress = true;
                    self.carry_out(command, now);
                }
            }
        }
        Some(progress)
    }

    fn carry_out(&mut self, command: Command, now: Moment) {
        match command {
            Command::AddSplits(splits) => {
                for split in &splits {
                    let ack = AckClient::new(self.unary.clone(), &split.subscription);
                    let client = self.client.clone();
                    self.splits
                        .push(SplitIo::new(split, &self.settings, ack, now, client));
                }
                self.arm_guard(now);
            }
            Command::Want => {
                self.wanted = true;
                for split in &mut self.splits {
                    if !split.paused && self.closing.is_none() {
                        split.unpark(now);
                    }
                }
            }
            Command::Emitted { split, runs } => self.splits[split].ledger.emitted(runs),
            Command::Drop { split, run } => {
                let split = &mut self.splits[split];
                let mut claims = Vec::new();
                split.ledger.drop_now(run, now, &mut claims);
                split.queue.ack_one(claims, now);
            }
            Command::Nack { split, runs, key } => self.splits[split].nack(runs, key, now),
            Command::Returned { split, batch } => self.splits[split].take_back(batch, now),
            Command::Snapshot(checkpoint) => {
                self.guard = Guard::Retired;
                let mut covered = Vec::new();
                for (at, split) in self.splits.iter_mut().enumerate() {
                    covered.extend(split.ledger.bind().into_iter().map(|run| (at, run)));
                }
                if !covered.is_empty() {
                    self.bound
                        .entry(checkpoint)
                        .or_default()
                        .append(&mut covered);
                }
            }
            Command::Completed(checkpoint) => self.complete(checkpoint, now),
            Command::Pause { pause, resume } => {
                for split in &mut self.splits {
                    if pause.contains(&split.id) {
                        split.paused = true;
                    }
                    if resume.contains(&split.id) {
                        split.paused = false;
                        // What it could not take meanwhile does not count against it.
                        split.last_taken = now;
                        if self.closing.is_none() {
                            split.unpark(now);
                        }
                    }
                }
            }
            Command::Close => {
                let timeout = self.settings.subscriber.shutdown_timeout;
                let deadline = now.after(timeout);
                self.closing = Some(Closing {
                    began: now,
                    deadline,
                });
                self.guard = Guard::Retired;
                for split in &mut self.splits {
                    split.stop(now, timeout, deadline, Why::Close);
                }
            }
        }
    }

    fn arm_guard(&mut self, now: Moment) {
        let budget = self.settings.subscriber.first_checkpoint_timeout;
        if matches!(self.guard, Guard::Unarmed) && !budget.is_zero() && !self.splits.is_empty() {
            self.guard = Guard::Armed {
                fails_at: now.after(budget),
                look_at: now.after(look_every(budget)),
            };
        }
    }

    /// Acknowledges everything that checkpoints up to `checkpoint` cover.
    fn complete(&mut self, checkpoint: CheckpointId, now: Moment) {
        let later = self
            .bound
            .split_off(&CheckpointId(checkpoint.0.saturating_add(1)));
        let covered = std::mem::replace(&mut self.bound, later);
        let wait = self.settings.subscriber.await_ack_confirmation;
        let (mut outstanding, mut claims) = (0, Vec::new());
        for (split, run) in covered.into_values().flatten() {
            let split = &mut self.splits[split];
            outstanding += split.ledger.complete(run, now, wait.is_some(), &mut claims);
            split.queue.ack(claims.drain(..));
        }
        if let Some(wait) = wait {
            let confirm = self.confirm.get_or_insert(Confirm {
                checkpoint,
                outstanding: 0,
                deadline: now.after(wait),
            });
            confirm.checkpoint = checkpoint;
            confirm.outstanding += outstanding;
            self.confirmed();
        }
    }

    fn confirmed(&mut self) {
        if let Some(confirm) = self.confirm.take_if(|confirm| confirm.outstanding == 0) {
            self.unsent = Some(confirm.checkpoint);
        }
    }

    fn confirm_to_owner(&mut self, cx: &mut PollContext<'_>) {
        if let Some(checkpoint) = self.unsent
            && self.confirmations.poll_ready(cx).is_ready()
        {
            // If the owner is gone, nobody is left to tell.
            let _ = self.confirmations.start_send(checkpoint);
            self.unsent = None;
        }
    }

    fn poll_calls(&mut self, now: Moment, cx: &mut PollContext<'_>) -> bool {
        let mut progress = false;
        while let Poll::Ready(Some(answered)) = self.calls.poll_next_unpin(cx) {
            progress = true;
            match answered.what {
                What::Settle(batch) => self.settled(answered.split, batch, answered.result, now),
                What::Extend { claims, seconds } => {
                    self.extended(answered.split, &claims, seconds, answered.result, now);
                }
            }
        }
        progress
    }

    fn settled(&mut self, at: usize, batch: Batch, result: Result<(), CallError>, now: Moment) {
        let split = &mut self.splits[at];
        let exactly_once = split.ledger.is_exactly_once();
        let (answer, error) = match result {
            Ok(()) => (Answer::Ok, None),
            Err(error) => {
                self.metrics.error(Some(error.code()));
                match verdicts(&error).filter(|_| exactly_once) {
                    Some(said) => (Answer::Each(said), None),
                    None => (Answer::Failed(error.code()), Some(error)),
                }
            }
        };
        let outcome = split
            .queue
            .answered(batch, answer, now, &mut split.ledger, &mut self.random);
        match error {
            Some(error) if error.code() == Code::NotFound && !split.failed => {
                let failure = split.failure("an acknowledgement", error);
                self.failed(failure);
            }
            Some(error) if outcome.failed > 0 => {
                self.acks_failed(at, outcome.failed, Some(error.code()), now);
            }
            _ if outcome.failed > 0 => self.acks_failed(at, outcome.failed, None, now),
            _ => {}
        }
        self.awaited(outcome);
    }

    fn awaited(&mut self, outcome: Outcome) {
        let Some(confirm) = &mut self.confirm else {
            return;
        };
        let done = outcome.awaited_done + outcome.awaited_failed;
        confirm.outstanding = confirm.outstanding.saturating_sub(done);
        if outcome.awaited_failed > 0 {
            let error = Error::io(format!(
                "checkpoint {} is complete, but {} of its messages were not acknowledged: the service refused them or did not \
                 answer in time; they will be delivered again",
                confirm.checkpoint, outcome.awaited_failed
            ));
            self.failed(error);
        }
        self.confirmed();
    }

    fn acks_failed(&mut self, at: usize, count: u64, code: Option<Code>, now: Moment) {
        self.acks_failed_untold += count;
        if self
            .acks_failed_told
            .is_none_or(|told| now.since(told) >= QUIET)
        {
            warn!(
                subscription = %self.splits[at].subscription,
                ids = self.acks_failed_untold,
                status = code.map_or("in the answers", Code::name),
                "acknowledgements were given up; the messages will be delivered again"
            );
            self.acks_failed_told = Some(now);
            self.acks_failed_untold = 0;
        }
    }

    fn extended(
        &mut self,
        at: usize,
        claims: &[Claim],
        seconds: u32,
        result: Result<(), CallError>,
        now: Moment,
    ) {
        let split = &mut self.splits[at];
        let terms = split.terms;
        let random = &mut self.random;
        let Err(error) = result else {
            split.extensions_failed = 0;
            for claim in claims {
                split.ledger.extended(claim, &terms, seconds, random);
            }
            return;
        };
        self.metrics.error(Some(error.code()));
        let exactly_once = split.ledger.is_exactly_once();
        if let Some(said) = verdicts(&error).filter(|_| exactly_once) {
            for claim in claims.iter().copied().flat_map(Claim::singles) {
                let verdict = split
                    .ledger
                    .ack_id(&claim)
                    .and_then(|id| std::str::from_utf8(id).ok())
                    .and_then(|id| said.get(id).copied());
                match verdict {
                    None | Some(Said::Done) => {
                        split.ledger.extended(&claim, &terms, seconds, random);
                    }
                    Some(Said::Again) => split.ledger.not_extended(&claim, now.after(PASS)),
                    Some(Said::Never) => split.ledger.stale(&claim),
                }
            }
            return;
        }
        if error.code() == Code::NotFound {
            let failure = split.failure("an extension", error);
            self.failed(failure);
            return;
        }
        // Tried again like acknowledgements, until the lease ends; what cannot help is tried more rarely.
        let wait = if is_transient(error.code()) {
            PASS * 2u32.saturating_pow(split.extensions_failed.min(3))
        } else {
            PASS * 10
        };
        split.extensions_failed += 1;
        for claim in claims {
            split.ledger.not_extended(claim, now.after(wait));
        }
    }

    /// Parks paused splits that the budget has no room for.
    fn keep_budget(&mut self, now: Moment) -> bool {
        if self.closing.is_some() || !self.splits.iter().any(SplitIo::is_parkable) {
            return false;
        }
        let loads: Vec<Load> = self
            .splits
            .iter()
            .map(|split| Load {
                buffered: split.ledger.buffered(),
                parkable: split.is_parkable(),
            })
            .collect();
        let options = &self.settings.subscriber;
        let parked = to_park(options.budget(), options.paused_bound(), &loads);
        for at in &parked {
            self.park(*at, now, "its buffer is full");
        }
        !parked.is_empty()
    }

    fn park(&mut self, at: usize, now: Moment, why: &str) {
        let timeout = self.settings.subscriber.shutdown_timeout;
        let split = &mut self.splits[at];
        if split.failed || split.phase != Phase::Open {
            return;
        }
        self.metrics.splits_parked.increment();
        warn!(
            subscription = %split.subscription,
            split = %split.id,
            messages = split.ledger.buffered().0,
            "split parked, because {why}: its messages go back to the service and cost a delivery attempt each; if \
             watermark alignment pauses it for long, mark idle inputs as such in the watermark strategy"
        );
        split.stop(now, timeout, now.after(timeout), Why::Park);
    }

    /// What all splits have received and not emitted.
    fn buffered(&self) -> (u64, u64) {
        self.splits
            .iter()
            .map(|split| split.ledger.buffered())
            .fold((0, 0), |sum, load| (sum.0 + load.0, sum.1 + load.1))
    }

    /// Whether the reader's budget lets streams be read.
    fn has_budget(&self) -> bool {
        self.settings.subscriber.budget().admit(self.buffered())
    }

    fn poll_streams(&mut self, now: Moment, cx: &mut PollContext<'_>) -> bool {
        let mut progress = false;
        let budget = self.settings.subscriber.budget();
        let (mut messages, mut bytes) = self.buffered();
        let mut failures = Vec::new();
        for split in &mut self.splits {
            let before = split.ledger.buffered();
            let others = (messages - before.0, bytes - before.1);
            let told = split.poll_streams(
                &self.pool,
                now,
                budget,
                others,
                &self.metrics,
                &mut self.random,
                cx,
            );
            let after = split.ledger.buffered();
            (messages, bytes) = (others.0 + after.0, others.1 + after.1);
            match told {
                None => {}
                Some(Told::Progress) => progress = true,
                Some(Told::Failed(error)) => failures.push(error),
            }
        }
        progress |= !failures.is_empty();
        for error in failures {
            self.failed(error);
        }
        progress
    }

    /// The lease keeper's look, once a second, and at once for copies that wait for a confirmation.
    fn pass(&mut self, now: Moment) -> bool {
        if now < self.pass_at {
            return false;
        }
        self.pass_at = now.after(PASS);
        let period = self.settings.subscriber.max_ack_extension_period;
        for at in 0..self.splits.len() {
            let may_read = self.has_budget();
            let split = &mut self.splits[at];
            split.watch(now, may_read);
            let mut returns = Vec::new();
            let lapsed = split.ledger.lapse(now, &mut returns);
            split.queue.nack(returns, now);
            // Without extension the lease itself is the period.
            let period = period.max(split.terms.stream_deadline());
            let untaken = now.since(split.last_taken) >= period;
            let park = lapsed.buffered > 0 && (split.paused || untaken) && self.closing.is_none();
            self.leases_lost_untold += lapsed.buffered + lapsed.kept;
            if park {
                self.park(at, now, "its leases ended before anybody took its messages");
            }
        }
        let due = self
            .leases_lost_told
            .is_none_or(|told| now.since(told) >= QUIET);
        if self.leases_lost_untold > 0 && due {
            warn!(
                messages = self.leases_lost_untold,
                "leases ended before their messages were acknowledged, so those may be delivered again; raise \
                 scan.ack.max-extension-period above several checkpoint intervals, or find out what holds checkpoints up"
            );
            self.leases_lost_told = Some(now);
            self.leases_lost_untold = 0;
        }
        self.extend(now);
        true
    }

    /// Asks for the extensions that are due.
    fn extend(&mut self, now: Moment) {
        let mut due = Vec::new();
        for (at, split) in self.splits.iter_mut().enumerate() {
            if split.failed {
                continue;
            }
            split.ledger.due(&split.terms, now, &mut due);
            due.sort_by_key(|(seconds, _)| *seconds);
            let mut rest = &mut due[..];
            while let Some((seconds, claim)) = rest.first().copied() {
                let kind = Kind::Extend { seconds };
                let mut request = split.ack.request(kind, split.ledger.ack_bytes(&claim));
                let mut claims = Vec::new();
                while let Some((length, claim)) = rest.first_mut() {
                    if *length != seconds
                        || request.is_full()
                        || !split.ledger.fill(claim, &mut request, &mut claims)
                    {
                        break;
                    }
                    rest = &mut rest[1..];
                }
                if request.is_empty() {
                    continue;
                }
                let call = split.ack.send(kind, request.finish());
                self.calls.push(Box::pin(call.map(move |result| Answered {
                    split: at,
                    what: What::Extend { claims, seconds },
                    result,
                })));
            }
            due.clear();
        }
    }

    fn progress_splits(&mut self, now: Moment) -> bool {
        let mut progress = false;
        for at in 0..self.splits.len() {
            let split = &mut self.splits[at];
            let outcome = split.queue.expire(now, &mut split.ledger);
            progress |= split.progress(now);
            if outcome.failed > 0 {
                self.acks_failed(at, outcome.failed, None, now);
            }
            self.awaited(outcome);
        }
        progress
    }

    /// Sends acknowledgements and returns.
    fn send(&mut self, now: Moment) -> bool {
        let mut progress = false;
        for (at, split) in self.splits.iter_mut().enumerate() {
            while let Some(batch) = split.queue.next(now, &mut split.ledger, &split.ack) {
                progress = true;
                let call = split.ack.send(batch.kind, batch.body.clone());
                self.calls.push(Box::pin(call.map(move |result| Answered {
                    split: at,
                    what: What::Settle(batch),
                    result,
                })));
            }
        }
        // A copy that waits for its confirmation does not wait for the next pass.
        if self
            .splits
            .iter_mut()
            .any(|split| split.ledger.is_exactly_once())
        {
            let before = self.calls.len();
            self.extend(now);
            progress |= self.calls.len() > before;
        }
        progress
    }

    /// Hands the owner the batch that it asked for.
    fn hand_over(&mut self, now: Moment) -> bool {
        if !self.wanted || self.closing.is_some() {
            return false;
        }
        let splits = self.splits.len();
        for n in 0..splits {
            let at = (self.turn + n) % splits;
            let split = &mut self.splits[at];
            if split.paused || !split.ledger.has_next() {
                continue;
            }
            let mut parts = Vec::new();
            split
                .ledger
                .take(self.settings.subscriber.max_records_per_fetch, &mut parts);
            split.last_taken = now;
            self.turn = at + 1;
            self.wanted = false;
            // The owner asks for one batch at a time, so there is room; if it is gone, nobody is left to tell.
            let _ = self.outbox.try_send(HandedBatch { split: at, parts });
            return true;
        }
        false
    }

    fn look_at_deadlines(&mut self, now: Moment) {
        if let Guard::Armed { fails_at, look_at } = &mut self.guard
            && now >= *look_at
        {
            let budget = self.settings.subscriber.first_checkpoint_timeout;
            *look_at = now.after(look_every(budget));
            let holds = self.splits.iter().any(|split| !split.ledger.is_empty());
            if now >= *fails_at && holds {
                self.guard = Guard::Retired;
                self.failed(Error::config(format!(
                    "no checkpoint began within {budget:?} of the first split: messages are acknowledged only when a \
                     checkpoint completes, so without checkpoints the source stops once its flow control is full; set \
                     execution.checkpointing.interval, or raise scan.first-checkpoint-timeout (0 disables this check)"
                )));
            }
        }
        if let Some(confirm) = &self.confirm
            && now >= confirm.deadline
        {
            let error = Error::io(format!(
                "checkpoint {} is complete, but whether {} of its messages were acknowledged is unknown: no answer within \
                 scan.ack.await-confirmation",
                confirm.checkpoint, confirm.outstanding
            ));
            self.confirm = None;
            self.failed(error);
        }
    }

    fn failed(&mut self, error: Error) {
        if self.closing.is_some() {
            self.metrics.unreported.increment();
            warn!(error = %error.report(), "a failure was found only while closing");
        } else if let Some(fail) = self.fail.take() {
            // The owner may have gone.
            let _ = fail.send(error);
        } else {
            warn!(error = %error.report(), "a further failure");
        }
    }

    fn show(&mut self, now: Moment) {
        let (mut pending, mut buffered, mut open, mut parked) = (0, (0, 0), 0, 0);
        let mut silence = Duration::ZERO;
        for split in &mut self.splits {
            split.count(&self.metrics);
            pending += split.ledger.pending();
            let load = split.ledger.buffered();
            buffered = (buffered.0 + load.0, buffered.1 + load.1);
            open += split.open_streams();
            parked += usize::from(
                !matches!(split.phase, Phase::Open | Phase::Closed) && self.closing.is_none(),
            );
            silence = silence.max(split.silence(now));
        }
        let level = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.metrics.pending_acks.set(level(pending));
        self.metrics.pending_checkpoints.set_size(self.bound.len());
        self.metrics.buffered_messages.set(level(buffered.0));
        self.metrics.buffered_bytes.set(level(buffered.1));
        self.metrics.open_streams.set_size(open);
        self.metrics.parked_splits.set_size(parked);
        let millis = i64::try_from(silence.as_millis()).unwrap_or(i64::MAX);
        self.metrics.oldest_frame.set(millis);
    }

    /// Whether the close has come to its end; what is left at the deadline is abandoned.
    fn is_over(&mut self, now: Moment) -> bool {
        let Some(closing) = &self.closing else {
            return false;
        };
        let clean = self
            .splits
            .iter()
            .all(|split| split.phase == Phase::Closed && split.ledger.is_empty());
        if !clean && now < closing.deadline {
            return false;
        }
        if !clean {
            let waited = now.since(closing.began);
            let left: u64 = self
                .splits
                .iter_mut()
                .map(|split| split.ledger.abandon())
                .sum();
            self.metrics.abandoned.increment();
            warn!(
                ?waited,
                messages = left,
                "messages were not returned or acknowledged in time; they come back when their leases end"
            );
        }
        self.bound.clear();
        self.show(now);
        true
    }

    fn deadline(&self) -> Moment {
        let may_read = self.has_budget();
        let mut at = Moment::NEVER;
        if self
            .splits
            .iter()
            .any(|split| !split.ledger.is_empty() || split.phase == Phase::Open)
        {
            at = at.min(self.pass_at);
        }
        for split in &self.splits {
            at = at.min(split.deadline(may_read));
        }
        if let Guard::Armed { look_at, .. } = self.guard {
            at = at.min(look_at);
        }
        if let Some(confirm) = &self.confirm {
            at = at.min(confirm.deadline);
        }
        if let Some(closing) = &self.closing {
            at = at.min(closing.deadline);
        }
        at
    }
}

/// The guard looks so often: it must fire when no record flows.
fn look_every(budget: Duration) -> Duration {
    (budget / 4)
        .min(Duration::from_secs(30))
        .max(Duration::from_millis(1))
}

/// The budget and the bound of paused splits, as settings say.
impl crate::source::builder::SubscriberOptions {
    fn budget(&self) -> Caps {
        Caps {
            messages: self.subscriber_buffer_max_messages,
            bytes: self.subscriber_buffer_max_bytes.0,
        }
    }

    fn paused_bound(&self) -> Option<Caps> {
        let (messages, bytes) = (
            self.paused_split_buffer_max_messages,
            self.paused_split_buffer_max_bytes,
        );
        (messages.is_some() || bytes.is_some()).then(|| Caps {
            messages: messages.unwrap_or(u64::MAX),
            bytes: bytes.map_or(u64::MAX, |bytes| bytes.0),
        })
    }

    pub(super) fn flow_control(&self) -> Caps {
        Caps {
            messages: self.flow_control_max_outstanding_element_count,
            bytes: self.flow_control_max_outstanding_request_bytes.0,
        }
    }
}
