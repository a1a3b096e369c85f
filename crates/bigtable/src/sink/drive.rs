//! The driver: owns the cores of a writer and carries out what they decide.
//!
//! Everything here runs on the writer's owner, inside its polls: requests are futures of this struct, not tasks, and wake
//! the host's waker. A record that finds room costs no poll; progress is made when a batch leaves, every thousand
//! records, and whenever the host polls without a record.
//!
//! | file | holds |
//! | --- | --- |
//! | `drive` | admission, batches, requests, verdicts, time |
//! | `passes` | the repair and the isolation pass |
//! | `clients` | opening, eviction, idle sweep, close |
//!
//! # Invariants
//!
//! - Both in-flight bounds count an entry from hand-over to its verdict, delays included; parked entries have left them
//!   (BT-SINK-05).
//! - No record is admitted while a pass is owed, so what is held stays below twice the bounds plus one entry.
//! - The first failure ends the writer: nothing more is sent, and every later call returns it (BT-SINK-14).

mod clients;
mod passes;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use aqueduct_cloud::RetrySchedule;
use aqueduct_connector::clock::Timer;
use aqueduct_connector::failure::FailureHandler;
use aqueduct_connector::sink::Flush;
use aqueduct_connector::stall::StallWatch;
use aqueduct_connector::{Clock, Context, Error, Moment, Result, StatusChain};
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tracing::warn;

use super::batch::{Buffers, Limits, Load, OpenBatch, Part, Slot, Unit};
use super::failed::FailedMutation;
use super::isolation::Isolation;
use super::metrics::{Levels, Metrics};
use super::order::{Place, RowOrder};
use super::repair::Repair;
use super::request::{Kind, Outcome, Request};
use super::tables::{TableId, Tables};
use crate::client::admin::{AdminClient, TableCreateOptions};
use crate::client::mutate::{AttemptEnd, Dial, MutateCall};
use crate::destination::TableDestination;
use crate::entry::{MAX_MUTATIONS, RowMutationEntry};
use crate::error::{self, Failure, Verdict};
use crate::options::WriterOptions;

/// From a batch's first entry until it leaves at the latest.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Records after which progress is made even if no batch has left.
const PROGRESS_EVERY: u32 = 1_024;
/// Answered requests whose buffers are kept for new batches.
const KEPT_BUFFERS: usize = 32;

/// What a driver is made of.
pub(super) struct Parts {
    pub(super) context: Context,
    pub(super) options: WriterOptions,
    pub(super) app_profile: Option<Arc<str>>,
    pub(super) per_row: bool,
    /// The schema that may be created.
    pub(super) create: Option<Arc<TableCreateOptions>>,
    pub(super) dial: Box<dyn Dial>,
    pub(super) handler: Box<dyn FailureHandler<FailedMutation>>,
}

/// What a pass does at the moment.
enum Pass {
    None,
    /// Everything outstanding is sent and answered first.
    Draining,
    Ensuring {
        table: TableId,
        call: LocalBoxFuture<'static, Result<crate::client::admin::Ensured>>,
    },
    Reapplying,
    Backoff {
        until: Moment,
    },
    Isolating,
}

/// An entry of an instance that has no client yet, because every slot is taken.
struct Held {
    destination: TableDestination,
    entry: RowMutationEntry,
}

type Call = LocalBoxFuture<'static, (usize, Moment, AttemptEnd)>;

/// The driver.
pub(super) struct Drive {
    context: Context,
    clock: Arc<dyn Clock>,
    options: WriterOptions,
    limits: Limits,
    max_entries: usize,
    max_bytes: usize,
    app_profile: Option<Arc<str>>,
    create: Option<Arc<TableCreateOptions>>,
    dial: Box<dyn Dial>,
    admin: Option<Rc<dyn AdminClient>>,
    handler: Box<dyn FailureHandler<FailedMutation>>,
    pub(super) metrics: Metrics,
    random: fastrand::Rng,

    tables: Tables,
    closing: FuturesUnordered<LocalBoxFuture<'static, ()>>,
    held: Option<Box<Held>>,

    /// Entries and bytes without a verdict.
    entries: usize,
    bytes: usize,
    order: Option<RowOrder>,
    batches: u64,
    /// Batches in the order they were begun, with the moment each must leave.
    due: VecDeque<(Moment, TableId, u64)>,
    buffers: Vec<Buffers>,

    requests: Vec<Option<Request>>,
    free: Vec<usize>,
    calls: FuturesUnordered<Call>,
    retries: BinaryHeap<Reverse<(Moment, usize)>>,
    rate_wait: Option<Moment>,

    pass: Pass,
    isolation: Isolation,
    repair: Repair,
    schedule: RetrySchedule,
    rejections: u64,
    /// The bound of rejections was met; told once the tripping record is routed.
    guardrail: Option<Error>,
    routed: VecDeque<FailedMutation>,

    failure: Option<Failure>,
    /// Something was started that no poll has seen yet.
    unpolled: bool,
    since_progress: u32,
    stall: StallWatch,
    held_back_since: Option<Moment>,
    timer: Box<dyn Timer>,
    timer_at: Option<Moment>,
    closed: bool,
}

impl Drive {
    pub(super) fn new(parts: Parts) -> Result<Self> {
        let Parts {
            context,
            options,
            app_profile,
            per_row,
            create,
            dial,
            mut handler,
        } = parts;
        let clock = context.clock.clone();
        let mut random = context.random();
        let schedule = RetrySchedule::new(
            "sink.recovery",
            options.recovery_initial_backoff,
            options.recovery_max_backoff,
            options
                .recovery_max_attempts
                .try_into()
                .unwrap_or(std::num::NonZeroU32::MIN),
        )?;
        handler.open(&context)?;
        Ok(Self {
            metrics: Metrics::new(context.metrics.clone()),
            limits: Limits {
                entries: options.batch_entries(),
                bytes: options.batch_bytes(),
            },
            max_entries: usize::try_from(options.max_in_flight_entries).unwrap_or(usize::MAX),
            max_bytes: usize::try_from(options.max_in_flight_bytes.0).unwrap_or(usize::MAX),
            order: per_row.then(|| RowOrder::new(random.u64(..))),
            timer: clock.timer(),
            timer_at: None,
            tables: Tables::new(),
            closing: FuturesUnordered::new(),
            held: None,
            entries: 0,
            bytes: 0,
            batches: 0,
            due: VecDeque::new(),
            buffers: Vec::new(),
            requests: Vec::new(),
            free: Vec::new(),
            calls: FuturesUnordered::new(),
            retries: BinaryHeap::new(),
            rate_wait: None,
            pass: Pass::None,
            isolation: Isolation::default(),
            repair: Repair::default(),
            schedule,
            rejections: 0,
            guardrail: None,
            routed: VecDeque::new(),
            failure: None,
            unpolled: false,
            since_progress: 0,
            stall: StallWatch::new(),
            held_back_since: None,
            closed: false,
            context,
            clock,
            options,
            app_profile,
            create,
            dial,
            admin: None,
            handler,
            random,
        })
    }

    // --- What the writer asks ---

    /// Whether a record may be handed over without a poll.
    pub(super) fn has_room(&self) -> bool {
        self.entries < self.max_entries
            && self.bytes < self.max_bytes
            && !self.unpolled
            && self.since_progress < PROGRESS_EVERY
            && self.failure.is_none()
            && self.is_settled()
    }

    /// Waits for room: below both bounds, with no pass owed and no verdict unrouted.
    pub(super) fn poll_room(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<()>> {
        let now = self.turn(cx, Push::AtCap);
        self.check()?;
        if self.has_room() {
            self.end_wait(now);
            return Poll::Ready(Ok(()));
        }
        self.held_back_since.get_or_insert(now);
        self.wait("room for the next record", now, cx)
    }

    /// Makes progress.
    pub(super) fn poll_progress(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<()>> {
        self.turn(cx, Push::Due);
        self.check()?;
        Poll::Pending
    }

    /// Waits until everything admitted has its verdict and the handler has made it durable (BT-SINK-14).
    pub(super) fn poll_flush(
        &mut self,
        cx: &mut task::Context<'_>,
        flush: Flush,
    ) -> Poll<Result<()>> {
        let now = self.turn(cx, Push::All);
        self.check()?;
        if self.entries > 0 || !self.is_settled() {
            return self.wait("every outstanding mutation", now, cx);
        }
        self.end_wait(now);
        match self.handler.poll_flush(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(error)) => {
                self.fail(error);
                self.check()?;
            }
            Poll::Ready(Ok(())) => {}
        }
        if flush == Flush::Checkpoint {
            self.sweep_idle(now);
        }
        self.publish();
        Poll::Ready(Ok(()))
    }

    /// Hands an entry over. Only when there [is room](Self::has_room).
    pub(super) fn admit(
        &mut self,
        destination: &TableDestination,
        entry: &RowMutationEntry,
    ) -> Result<()> {
        if let Some(table) = self.find_or_open(destination)? {
            self.hand_over(table, entry);
        } else {
            let mut copy = RowMutationEntry::with_clock(self.clock.clone());
            copy.copy_from(entry);
            self.held = Some(Box::new(Held {
                destination: destination.clone(),
                entry: copy,
            }));
            self.unpolled = true;
        }
        Ok(())
    }

    /// Offers a rejected record to the handler, now if it is ready and before the next record otherwise.
    pub(super) fn route(&mut self, failed: FailedMutation) -> Result<()> {
        self.routed.push_back(failed);
        self.poll_route(&mut task::Context::from_waker(task::Waker::noop()));
        if !self.routed.is_empty() {
            self.unpolled = true;
        }
        self.check()
    }

    pub(super) fn on_skipped(&mut self) {
        self.metrics.skipped.increment();
        self.since_progress += 1;
    }

    /// Ends the writer with `error`, unless it has ended before.
    pub(super) fn fail(&mut self, error: Error) {
        if self.failure.is_none() {
            self.failure = Some(Failure::Fresh(error));
        }
    }

    /// The stored failure, if there is one.
    pub(super) fn check(&mut self) -> Result<()> {
        match &mut self.failure {
            Some(failure) => Err(failure.tell()),
            None => Ok(()),
        }
    }

    // --- Admission and batches ---

    fn hand_over(&mut self, table: TableId, entry: &RowMutationEntry) {
        let size = entry.encoded_len();
        self.entries += 1;
        self.bytes += size;
        self.since_progress += 1;
        self.metrics.new_records += 1;
        self.metrics.new_bytes += size as u64;
        if let Some((records, _)) = &self.tables.get(table).counters {
            records.increment();
        }
        let (key, mutations, count) = (entry.key(), entry.encoded_mutations(), entry.mutations());
        let Some(order) = &self.order else {
            self.put(table, key, mutations, Load::of(count, size, 0));
            return;
        };
        let row = order.hash(table, key);
        // The index is asked and told in one probe, so the batch must be ready first.
        let load = Load::of(count, size, row);
        let place = self.prepare_batch(table, &load);
        let order = self.order.as_mut().expect("per-row order does not end");
        let Some((place, has_line)) = order.claim(row, place) else {
            self.push(table, key, mutations, load);
            return;
        };
        let part = Part {
            bytes: mutations.len(),
            mutations: count,
            size,
        };
        if !has_line && self.merge(table, place, key, mutations, part) {
            return;
        }
        let order = self.order.as_mut().expect("per-row order does not end");
        order.line_up(row, table, key, mutations, part);
    }

    /// Merges into the row's entry if that has not left yet and stays within the limits.
    fn merge(
        &mut self,
        table: TableId,
        place: Place,
        key: &[u8],
        mutations: &[u8],
        part: Part,
    ) -> bool {
        let limits = self.limits;
        let Some(open) = self
            .tables
            .get_mut(table)
            .open
            .as_mut()
            .filter(|open| open.number == place.batch)
        else {
            return false;
        };
        if !open.has_key(place.position, key) {
            return false;
        }
        if open.would_overflow(limits, part.mutations, part.size) {
            self.send_batch(table);
            return false;
        }
        open.merge(place.position, mutations, part);
        if open.is_full(limits) {
            self.send_batch(table);
        }
        true
    }

    /// Puts an entry into the table's batch, which leaves if it is full.
    fn put(&mut self, table: TableId, key: &[u8], mutations: &[u8], load: Load) {
        let place = self.prepare_batch(table, &load);
        if let Some(order) = &mut self.order {
            order.put(load.row, place);
        }
        self.push(table, key, mutations, load);
    }

    /// Makes sure that the table has a batch that takes `load`; says where in it the entry will be.
    fn prepare_batch(&mut self, table: TableId, load: &Load) -> Place {
        let limits = self.limits;
        let overflows = |open: &OpenBatch| open.would_overflow(limits, load.mutations, load.size);
        if self.tables.get(table).open.as_ref().is_some_and(overflows) {
            self.send_batch(table);
        }
        if self.tables.get(table).open.is_none() {
            self.begin_batch(table);
        }
        let open = self.tables.get(table).open.as_ref().expect("begun above");
        Place {
            batch: open.number,
            position: open.entries(),
        }
    }

    /// Appends to the batch that was prepared.
    fn push(&mut self, table: TableId, key: &[u8], mutations: &[u8], load: Load) {
        let limits = self.limits;
        let open = self
            .tables
            .get_mut(table)
            .open
            .as_mut()
            .expect("prepared for this entry");
        open.push(key, mutations, load);
        if open.is_full(limits) {
            self.send_batch(table);
        }
    }

    fn begin_batch(&mut self, table: TableId) {
        self.batches += 1;
        let buffers = self.buffers.pop().unwrap_or_default();
        let now = self.clock.now();
        let entry = self.tables.get_mut(table);
        entry.used = now;
        entry.open = Some(OpenBatch::new(self.batches, &entry.head, buffers));
        self.due
            .push_back((now.after(BATCH_DELAY), table, self.batches));
        // Usually an earlier batch has armed the timer, which then fires early enough for this one.
        let leaves = now.after(BATCH_DELAY);
        self.unpolled |= self.timer_at.is_none_or(|armed| armed > leaves);
    }

    fn send_batch(&mut self, table: TableId) {
        let Some(open) = self.tables.get_mut(table).open.take() else {
            return;
        };
        let records = open.records();
        if records == 0 {
            // Begun for an entry that went behind an earlier one of its row instead.
            return;
        }
        let sealed = open.seal();
        self.metrics.on_batch(records, sealed.body.len());
        self.submit(Request::new(table, Kind::Bulk, sealed));
    }

    fn send_batches(&mut self) {
        for table in self.tables.ids() {
            self.send_batch(table);
        }
    }

    // --- Requests ---

    fn submit(&mut self, request: Request) {
        let id = match self.free.pop() {
            Some(id) => {
                self.requests[id] = Some(request);
                id
            }
            None => {
                self.requests.push(Some(request));
                self.requests.len() - 1
            }
        };
        self.dispatch(id, self.clock.now());
    }

    /// Starts an attempt, or lines it up for the rate that the service asked for.
    fn dispatch(&mut self, id: usize, now: Moment) {
        self.unpolled = true;
        let Some(request) = &mut self.requests[id] else {
            return;
        };
        let table = request.table;
        let instance = self.tables.instance_of(table);
        if instance.queue.is_empty() && instance.rate.take(now).is_ok() {
            self.start(id, now);
        } else {
            instance.queue.push_back(id);
            self.metrics.rate_limited.increment();
            self.rate_wait = Some(self.rate_wait.unwrap_or(Moment::NEVER).min(now));
        }
    }

    fn start(&mut self, id: usize, now: Moment) {
        let Some(request) = &mut self.requests[id] else {
            return;
        };
        let table = self.tables.get(request.table);
        let (body, entries, timeout) = request.begin(&table.head, now);
        let call = MutateCall {
            target: table.target.clone(),
            body,
            entries,
            timeout,
            cookies: request.cookies().clone(),
        };
        let instance = table.instance;
        let attempt = self.tables.instance_mut(instance).client.mutate_rows(call);
        self.metrics.attempts.increment();
        self.calls
            .push(Box::pin(async move { (id, now, attempt.await) }));
    }

    fn outstanding(&self) -> usize {
        self.requests.len() - self.free.len()
    }

    fn on_attempt(&mut self, id: usize, started: Moment, end: AttemptEnd, now: Moment) {
        self.stall.answered(now);
        self.metrics.on_attempt_end(now.since(started));
        let Some(mut request) = self.requests[id].take() else {
            return;
        };
        let codes = end
            .answers
            .failure_codes()
            .chain(end.result.as_ref().err().map(|f| f.chain.code()));
        self.tables
            .instance_of(request.table)
            .rate
            .on_answer(now, end.answers.rate, codes);
        match request.end(end, now, &mut self.random) {
            Outcome::Applied => {
                self.free.push(id);
                self.on_applied(request);
            }
            Outcome::Settled {
                verdicts,
                alone,
                retry,
            } => {
                let settled: Vec<_> = verdicts
                    .into_iter()
                    .map(|(position, verdict)| {
                        let load = request.slots()[position as usize].load.clone();
                        (load, verdict.map(|chain| request.unit(position, chain)))
                    })
                    .collect();
                let (kind, table, attempts) = (request.kind, request.table, request.attempts());
                match retry {
                    Some(retry) => {
                        self.metrics.on_retry(retry.code, retry.entries);
                        self.retries.push(Reverse((retry.at, id)));
                        self.requests[id] = Some(request);
                    }
                    None => self.free.push(id),
                }
                self.on_settled(kind, table, alone, attempts, settled);
            }
        }
    }

    /// Everything that was pending in `request` is applied.
    fn on_applied(&mut self, request: Request) {
        if !matches!(request.kind, Kind::Solo(_)) {
            self.rejections = 0;
        }
        match request.kind {
            Kind::Solo(turn) => self.isolation.answer(turn, None),
            Kind::Reapply => {
                let records = pending(&request).map(|slot| slot.load.records).sum();
                self.repair.settle(records);
                self.resolve_rows(&request);
            }
            Kind::Bulk => {
                for slot in pending(&request) {
                    self.entries -= slot.load.records;
                    self.bytes -= slot.load.size;
                }
                self.resolve_rows(&request);
            }
        }
        if self.buffers.len() < KEPT_BUFFERS {
            self.buffers.extend(request.into_sealed().recycle());
        }
    }

    fn resolve_rows(&mut self, request: &Request) {
        if self.order.is_some() {
            for slot in pending(request) {
                self.resolve_row(slot.load.row);
            }
        }
    }

    /// The row's entry has its verdict; what waits next is put into its table's batch.
    fn resolve_row(&mut self, row: u64) {
        let Some(next) = self.order.as_mut().and_then(|order| order.resolve(row)) else {
            return;
        };
        let load = Load {
            records: next.parts.len(),
            mutations: next.mutation_count(),
            size: next.size(),
            row,
            parts: (next.parts.len() > 1).then(|| next.parts.clone().into()),
        };
        self.put(next.table, &next.key, &next.mutations, load);
    }

    /// Verdicts of a request that was not applied as a whole: what each entry counted for, and the entry if it failed.
    fn on_settled(
        &mut self,
        kind: Kind,
        table: TableId,
        alone: bool,
        attempts: u32,
        settled: Vec<(Load, Option<Unit>)>,
    ) {
        // A solo request counts when its verdict is taken, in the order of the park.
        let solo = matches!(kind, Kind::Solo(_));
        if !solo && settled.iter().any(|(_, failed)| failed.is_none()) {
            self.rejections = 0;
        }
        for (load, failed) in settled {
            if let Kind::Solo(turn) = kind {
                self.isolation.answer(turn, failed.map(|unit| unit.chain));
                continue;
            }
            if kind == Kind::Reapply {
                self.repair.settle(load.records);
            } else {
                self.entries -= load.records;
                self.bytes -= load.size;
            }
            match failed {
                None => self.resolve_row(load.row),
                Some(unit) => self.on_refused(table, alone, attempts, unit),
            }
        }
    }

    fn on_refused(&mut self, table: TableId, alone: bool, attempts: u32, unit: Unit) {
        match error::classify(&unit.chain) {
            Verdict::RowLevel if alone => {
                let row = unit.load.row;
                self.confirm(unit);
                self.resolve_row(row);
            }
            Verdict::RowLevel => self.isolation.park(unit),
            Verdict::Missing => self.on_missing(unit),
            Verdict::Fatal => self.fail_with_status(table, attempts, unit.load.records, unit.chain),
        }
    }

    fn fail_with_status(
        &mut self,
        table: TableId,
        attempts: u32,
        records: usize,
        chain: StatusChain,
    ) {
        for _ in 0..records {
            self.metrics.on_error_class(chain.code());
        }
        let destination = &self.tables.get(table).destination;
        let error = error::service(destination, attempts, chain);
        self.fail(error);
    }

    // --- Time ---

    /// Takes in what has happened and does what is due; returns the time it was done at.
    fn turn(&mut self, cx: &mut task::Context<'_>, push: Push) -> Moment {
        let mut now = self.clock.now();
        loop {
            if self.failure.is_some() {
                break;
            }
            self.unpolled = false;
            self.since_progress = 0;
            // Answers first: they free room, and a failure must win over further records.
            while let Poll::Ready(Some((id, started, end))) = self.calls.poll_next_unpin(cx) {
                self.on_attempt(id, started, end, now);
            }
            self.poll_route(cx);
            while let Poll::Ready(Some(())) = self.closing.poll_next_unpin(cx) {}
            self.place_held(now);
            self.do_due(now);
            self.advance_pass(cx, now);
            let at_cap = self.entries >= self.max_entries || self.bytes >= self.max_bytes;
            if push == Push::All || (push == Push::AtCap && at_cap) || self.held.is_some() {
                self.send_batches();
            }
            if self.failure.is_some() || self.unpolled {
                continue;
            }
            if !self.arm(cx) {
                break;
            }
            now = self.clock.now();
        }
        self.publish();
        now
    }

    /// Does what its time has come for.
    fn do_due(&mut self, now: Moment) {
        while let Some((at, table, batch)) = self.due.front().copied() {
            let open = self.open_number(table) == Some(batch);
            if open && at > now {
                break;
            }
            self.due.pop_front();
            if open {
                self.send_batch(table);
            }
        }
        while self
            .retries
            .peek()
            .is_some_and(|Reverse((at, _))| *at <= now)
        {
            if let Some(Reverse((_, id))) = self.retries.pop() {
                self.dispatch(id, now);
            }
        }
        if self.rate_wait.is_some_and(|at| at <= now) {
            self.release_queues(now);
        }
    }

    /// Starts what the rates allow.
    fn release_queues(&mut self, now: Moment) {
        self.rate_wait = None;
        for id in self.tables.instance_ids() {
            loop {
                let instance = self.tables.instance_mut(id);
                let Some(request) = instance.queue.front().copied() else {
                    break;
                };
                match instance.rate.take(now) {
                    Ok(()) => {
                        instance.queue.pop_front();
                        self.unpolled = true;
                        self.start(request, now);
                    }
                    Err(at) => {
                        self.rate_wait = Some(self.rate_wait.unwrap_or(Moment::NEVER).min(at));
                        break;
                    }
                }
            }
        }
    }

    fn open_number(&self, table: TableId) -> Option<u64> {
        self.tables
            .try_get(table)?
            .open
            .as_ref()
            .map(|open| open.number)
    }

    /// Arms the timer for the next thing due, or leaves it armed for something earlier; true if it has fired.
    fn arm(&mut self, cx: &mut task::Context<'_>) -> bool {
        let backoff = match &self.pass {
            Pass::Backoff { until } => Some(*until),
            _ => None,
        };
        let next = [
            self.due.front().map(|(at, _, _)| *at),
            self.retries.peek().map(|Reverse((at, _))| *at),
            self.rate_wait,
            backoff,
        ];
        let Some(next) = next.into_iter().flatten().min() else {
            return false;
        };
        // A timer that fires early costs a turn; arming it again for every batch would cost more.
        if self.timer_at.is_none_or(|armed| next < armed) {
            self.timer.set(Some(next));
            self.timer_at = Some(next);
        }
        let fired = self.timer.poll_elapsed(cx).is_ready();
        if fired {
            self.timer_at = None;
        }
        fired
    }

    /// Ends a poll without success: warns if nothing was answered for too long, and wakes when that will be.
    fn wait(
        &mut self,
        what: &'static str,
        now: Moment,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<()>> {
        self.stall.waiting(now);
        if let Some(idle) = self.stall.due(now) {
            warn!(
                connector = super::CONNECTOR,
                subtask = %self.context.subtask,
                waiting_for = what,
                no_answer_for = ?idle,
                in_flight_entries = self.entries,
                parked_entries = self.parked(),
                live_tables = self.tables.table_count(),
                "no answer from Bigtable; the sink gives a request up ten minutes after its first attempt, and the host's \
                 checkpoint timeout (Flink: 10 min, no failure tolerated) may fail the job first with a message that does \
                 not name Bigtable",
            );
        }
        // The stall's moment is later than most others, so it shares the timer: the earlier of both is armed.
        let stall = self.stall.deadline();
        if let Some(at) = stall
            && self.timer_at.is_none_or(|armed| at < armed)
        {
            self.timer.set(Some(at));
            self.timer_at = Some(at);
            if self.timer.poll_elapsed(cx).is_ready() {
                self.timer_at = None;
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    fn end_wait(&mut self, now: Moment) {
        self.stall.done();
        if let Some(since) = self.held_back_since.take() {
            self.metrics.on_admission_wait(now.since(since));
        }
    }

    fn parked(&self) -> usize {
        self.isolation.records() + self.repair.records()
    }

    /// Nothing is owed before the next record or the end of a flush but answers.
    fn is_settled(&self) -> bool {
        matches!(self.pass, Pass::None)
            && self.isolation.is_empty()
            && self.repair.is_empty()
            && self.routed.is_empty()
            && self.held.is_none()
    }

    fn publish(&mut self) {
        if self.closed {
            return;
        }
        let rate = self
            .tables
            .instances()
            .filter_map(|(_, instance)| instance.rate.rate())
            .min_by(f64::total_cmp);
        self.metrics.publish(Levels {
            entries: self.entries,
            bytes: self.bytes,
            parked: self.parked(),
            waiting: self.order.as_ref().map_or(0, RowOrder::waiting),
            clients: self.tables.open_clients() + self.closing.len(),
            rate,
        });
    }
}

/// Which batches leave in a turn besides those that are due.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Push {
    Due,
    /// All, if the writer is full: it waits for what is still being batched.
    AtCap,
    All,
}

fn pending(request: &Request) -> impl Iterator<Item = &Slot> {
    request.pending().map(|position| &request.slots()[position])
}

const _: () = assert!(MAX_MUTATIONS == 100_000, "the service's limit of a request");
