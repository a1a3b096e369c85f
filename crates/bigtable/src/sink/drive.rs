//! The driver: owns the cores of a writer and carries out what they decide.
//!
//! Everything here runs on the writer's owner, inside its polls: requests are futures of this struct, not tasks, and wake
//! the host's waker. A record that finds room costs no poll; progress is made when a batch leaves, every thousand
//! records, and whenever the host polls without a record.
//!
//! | file | holds |
//! | --- | --- |
//! | `drive` | what the writer asks, admission, batches |
//! | `requests` | requests, their answers, verdicts |
//! | `time` | one poll's turn, what is due, the warning about silence |
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
mod requests;
#[cfg(test)]
mod tests;
mod time;

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
use futures::stream::FuturesUnordered;

use super::batch::{Buffers, Limits, Load, OpenBatch, Part, Unit};
use super::failed::FailedMutation;
use super::isolation::Isolation;
use super::metrics::{Levels, Metrics};
use super::order::{Place, RowOrder};
use super::repair::Repair;
use super::request::{Kind, Request};
use super::tables::{TableId, Tables};
use crate::client::admin::{AdminClient, TableCreateOptions};
use crate::client::mutate::{AttemptEnd, Dial};
use crate::destination::TableDestination;
use crate::entry::{MAX_MUTATIONS, RowMutationEntry};
use crate::error::{self, Failure, Verdict};
use crate::options::WriterOptions;
use time::Push;

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
    batches: u32,
    /// Batches in the order they were begun, with the moment each must leave.
    due: VecDeque<(Moment, TableId, u32)>,
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
    /// What the way to the service failed with since the last answer; named by the warning about silence.
    last_failure: Option<StatusChain>,
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
            last_failure: None,
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
        if !open.has_key(place.position as usize, key) {
            return false;
        }
        if open.would_overflow(limits, part.mutations, part.size) {
            self.send_batch(table);
            return false;
        }
        open.merge(place.position as usize, mutations, part);
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
            position: u32::try_from(open.entries()).expect("a batch holds at most 100,000 entries"),
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
        self.batches = self.batches.wrapping_add(1);
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

    /// Sends every batch; each that is open is among those that are due.
    fn send_batches(&mut self) {
        while let Some((_, table, batch)) = self.due.pop_front() {
            if self.open_number(table) == Some(batch) {
                self.send_batch(table);
            }
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

const _: () = assert!(MAX_MUTATIONS == 100_000, "the service's limit of a request");
