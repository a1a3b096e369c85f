//! A connector that exercises the host itself: what the tests on the Java side write to, read from and break.
//!
//! It is part of every library, so that the library that is tested is the one that ships, but no jar has a Java factory
//! for it: no statement can reach it. Its tables keep rows in the process, by the name of a *store*; each row is decoded
//! and encoded again on its way in. Options make it slow, full, or fail, or let it keep nothing, to measure the crossing.
//!
//! A store holds at most [`STORE_ROWS`] rows; writing to a full one fails.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as PollContext, Poll, ready};
use std::time::Duration;

use aqueduct_connector::clock::Timer;
use aqueduct_connector::metrics::{Counter, Gauge};
use aqueduct_connector::options::{ConfigError, Default, Opt, TextOpt};
use aqueduct_connector::row::{Row, RowBatch, RowKind, RowRef};
use aqueduct_connector::sink::{Flush, RecordInfo, Sink, SinkWriter};
use aqueduct_connector::source::{
    Boundedness, EnumeratorOutput, PullAssigner, Split, SplitEnumerator, SplitId,
};
use aqueduct_connector::state::{StateReader, StateWriter};
use aqueduct_connector::table::{
    LookupPlan, LookupPlanned, MetadataColumn, RowLookup, ScanPlan, ScanPlanned, SinkPlan,
    SinkPlanned, TableFactory, TableLookup, TableOption, TableOptions, TableOutput, TableReader,
    TableSource, TableSpec, UsedBy,
};
use aqueduct_connector::types::{DataType, LogicalType};
use aqueduct_connector::{
    CheckpointId, Clock, Context, Error, Moment, Result, Timestamp, Versioned,
};

use crate::roundtrip::reencode;
use crate::wire;

/// The value of `connector`.
pub(crate) const CONNECTOR: &str = "aqueduct-probe";

/// Rows that a store holds, at most.
const STORE_ROWS: usize = 1_000_000;

const STORE: TextOpt = TextOpt::new("store", "The rows of the table.").default(Default::Required);
const CAPACITY: Opt<u64> = Opt::new("sink.capacity", "Rows under way, at most.")
    .default(Default::Ours(1_000))
    .at_least(1);
const DELAY: Opt<Duration> =
    Opt::new("sink.delay", "How long a row is under way.").default(Default::Ours(Duration::ZERO));
const DISCARDS: Opt<bool> = Opt::new(
    "sink.discards",
    "Whether rows are dropped as they come, unread.",
)
.default(Default::Ours(false));
const FAIL_AT: Opt<u64> = Opt::new("fail-at", "The row that fails, from 1.");
const PANIC_AT: Opt<u64> = Opt::new("panic-at", "The row that panics, from 1.");
const SPLITS: Opt<u64> = Opt::new("scan.splits", "Splits, each of every n-th row.")
    .default(Default::Ours(1))
    .at_least(1);
const ENDLESS: Opt<bool> = Opt::new(
    "scan.endless",
    "Whether reading goes on after the last row.",
)
.default(Default::Ours(false));

/// A row and its event time.
#[derive(Clone)]
struct Stored {
    time: Option<Timestamp>,
    bytes: Vec<u8>,
}

type Rows = Arc<Mutex<Vec<Stored>>>;

static STORES: Mutex<BTreeMap<String, Rows>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn store(name: &str) -> Rows {
    lock(&STORES).entry(name.to_owned()).or_default().clone()
}

/// The factory.
pub(crate) fn factory() -> &'static dyn TableFactory {
    &Probe
}

struct Probe;

/// The options of one table.
#[derive(Clone)]
struct Settings {
    types: Vec<LogicalType>,
    store: String,
    capacity: usize,
    delay: Duration,
    discards: bool,
    fail_at: u64,
    panic_at: u64,
    splits: u64,
    endless: bool,
}

impl Settings {
    fn read(table: &TableSpec) -> Result<Self, ConfigError> {
        let declared = Probe.options();
        let options = TableOptions::new(table, &declared)?;
        Ok(Self {
            types: table
                .columns
                .iter()
                .map(|column| column.ty.clone())
                .collect(),
            store: options.required(&STORE, "the name of a store")?.to_owned(),
            capacity: usize::try_from(options.get(&CAPACITY)?.unwrap_or(CAPACITY.ours()))
                .unwrap_or(usize::MAX),
            delay: options.get(&DELAY)?.unwrap_or(DELAY.ours()),
            discards: options.get(&DISCARDS)?.unwrap_or(DISCARDS.ours()),
            fail_at: options.get(&FAIL_AT)?.unwrap_or(0),
            panic_at: options.get(&PANIC_AT)?.unwrap_or(0),
            splits: options.get(&SPLITS)?.unwrap_or(SPLITS.ours()),
            endless: options.get(&ENDLESS)?.unwrap_or(ENDLESS.ours()),
        })
    }

    /// Fails or panics if it is row `number`'s turn.
    fn strike(&self, number: u64) -> Result<()> {
        assert!(
            number != self.panic_at,
            "row {number} panics as it was told"
        );
        if number == self.fail_at {
            return Err(
                Error::data(format!("row {number} fails")).with_source(Error::io("as it was told"))
            );
        }
        Ok(())
    }
}

impl TableFactory for Probe {
    fn connector(&self) -> &'static str {
        CONNECTOR
    }

    fn doc(&self) -> &'static str {
        "Rows kept in the process."
    }

    fn options(&self) -> Vec<TableOption> {
        [
            STORE.declaration(),
            CAPACITY.declaration(),
            DELAY.declaration(),
            DISCARDS.declaration(),
            FAIL_AT.declaration(),
            PANIC_AT.declaration(),
            SPLITS.declaration(),
            ENDLESS.declaration(),
        ]
        .map(|declaration| TableOption {
            declaration,
            map: false,
            used_by: UsedBy::Both,
        })
        .into()
    }

    fn metadata(&self) -> &'static [MetadataColumn] {
        &[]
    }

    fn formatted(&self) -> bool {
        false
    }

    fn lookups(&self) -> bool {
        true
    }

    fn plan_sink(&self, table: &TableSpec, _: &SinkPlan) -> Result<SinkPlanned, ConfigError> {
        Settings::read(table)?;
        Ok(SinkPlanned {
            accepts: vec![RowKind::Insert, RowKind::UpdateAfter, RowKind::Delete],
            parallelism: None,
            partition_by: Vec::new(),
        })
    }

    fn sink(&self, table: &TableSpec, _: &SinkPlan) -> Result<Box<dyn Sink<Row>>, ConfigError> {
        Ok(Box::new(ProbeSink(Settings::read(table)?)))
    }

    fn plan_scan(&self, table: &TableSpec, plan: &ScanPlan) -> Result<ScanPlanned, ConfigError> {
        let settings = Settings::read(table)?;
        if plan.fields.as_ref().is_some_and(|fields| {
            !fields.iter().enumerate().all(|(at, field)| field.0 == [at])
                || fields.len() != table.columns.len()
        }) {
            return Err(ConfigError::invalid("store", "its rows are read whole"));
        }
        Ok(ScanPlanned {
            boundedness: settings.boundedness(),
            kinds: vec![RowKind::Insert],
            parallelism: None,
        })
    }

    fn source(&self, table: &TableSpec, _: &ScanPlan) -> Result<Box<dyn TableSource>, ConfigError> {
        Ok(Box::new(ProbeSource(Settings::read(table)?)))
    }

    fn plan_lookup(&self, table: &TableSpec, _: &LookupPlan) -> Result<LookupPlanned, ConfigError> {
        Settings::read(table)?;
        Ok(LookupPlanned {
            asynchronous: false,
        })
    }

    fn lookup(
        &self,
        table: &TableSpec,
        _: &LookupPlan,
    ) -> Result<Box<dyn TableLookup>, ConfigError> {
        Ok(Box::new(ProbeLookup(Settings::read(table)?)))
    }
}

impl Settings {
    fn boundedness(&self) -> Boundedness {
        if self.endless {
            Boundedness::Unbounded
        } else {
            Boundedness::Bounded
        }
    }
}

struct ProbeSink(Settings);

impl Sink<Row> for ProbeSink {
    fn connector(&self) -> &'static str {
        CONNECTOR
    }

    fn create_writer(
        &self,
        context: Context,
        _: Vec<Versioned>,
    ) -> Result<Box<dyn SinkWriter<Row>>> {
        Ok(Box::new(ProbeWriter {
            rows: store(&self.0.store),
            settings: self.0.clone(),
            written: 0,
            in_flight: VecDeque::new(),
            timer: context.clock.timer(),
            clock: context.clock.clone(),
            sent: context.metrics.counter("numRecordsSend"),
            level: context.metrics.gauge("inFlightRows"),
        }))
    }
}

struct ProbeWriter {
    rows: Rows,
    settings: Settings,
    written: u64,
    in_flight: VecDeque<(Moment, Stored)>,
    timer: Box<dyn Timer>,
    clock: Arc<dyn Clock>,
    sent: Counter,
    level: Gauge,
}

impl ProbeWriter {
    /// Stores the rows whose time has come; ready when none is under way.
    fn poll_stored(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        let mut rows = lock(&self.rows);
        while let Some((at, _)) = self.in_flight.front() {
            if *at > self.clock.now() {
                self.timer.set(Some(*at));
                ready!(self.timer.poll_elapsed(cx));
                continue;
            }
            if let Some((_, row)) = self.in_flight.pop_front() {
                if rows.len() == STORE_ROWS {
                    return Poll::Ready(Err(Error::io("the store is full")));
                }
                rows.push(row);
            }
            self.level.set_size(self.in_flight.len());
        }
        Poll::Ready(Ok(()))
    }
}

impl SinkWriter<Row> for ProbeWriter {
    fn poll_ready(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        if let Poll::Ready(result) = self.poll_stored(cx) {
            return Poll::Ready(result);
        }
        if self.in_flight.len() < self.settings.capacity {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    fn write(&mut self, row: Row, info: RecordInfo) -> Result<()> {
        self.written += 1;
        self.settings.strike(self.written)?;
        let view = row.view(self.settings.types.len()).map_err(|error| {
            Error::bug("a row does not have the fields of its table").with_source(error)
        })?;
        if self.settings.discards {
            return Ok(());
        }
        let at = self.clock.now().after(self.settings.delay);
        let stored = Stored {
            time: info.timestamp,
            bytes: reencode(&self.settings.types, view)?,
        };
        self.in_flight.push_back((at, stored));
        self.sent.increment();
        self.level.set_size(self.in_flight.len());
        Ok(())
    }

    fn poll_progress(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        ready!(self.poll_stored(cx))?;
        Poll::Pending
    }

    fn poll_flush(&mut self, cx: &mut PollContext<'_>, _: Flush) -> Poll<Result<()>> {
        self.poll_stored(cx)
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.in_flight.clear();
        Poll::Ready(Ok(()))
    }
}

struct ProbeSource(Settings);

/// Split `n` of `m` has the rows whose number is `n` modulo `m`; its state is how many of them were emitted.
fn split(number: u64, emitted: u64) -> Split {
    Split {
        id: SplitId::new(format!("every-{number}")),
        state: StateWriter::new().u64(number).u64(emitted).finish(1),
    }
}

impl TableSource for ProbeSource {
    fn boundedness(&self) -> Boundedness {
        self.0.boundedness()
    }

    fn create_enumerator(
        &self,
        context: Context,
        restored: Option<Versioned>,
    ) -> Result<Box<dyn SplitEnumerator>> {
        let assigner = match restored {
            Some(state) => {
                let mut reader = StateReader::open("the probe's state", &state, 1..=1)?;
                let splits = wire::splits(&mut reader)?;
                reader.finish()?;
                PullAssigner::restored(splits)
            }
            None => PullAssigner::new(),
        };
        let unassigned = context.metrics.gauge("unassignedSplits");
        Ok(Box::new(ProbeEnumerator {
            assigner,
            splits: self.0.splits,
            unassigned,
        }))
    }

    fn create_reader(&self, _: Context) -> Result<Box<dyn TableReader>> {
        Ok(Box::new(ProbeReader {
            rows: store(&self.0.store),
            settings: self.0.clone(),
            splits: VecDeque::new(),
            given: 0,
            requested: false,
            no_more: false,
            read: 0,
            waker: None,
        }))
    }
}

struct ProbeEnumerator {
    assigner: PullAssigner,
    splits: u64,
    unassigned: Gauge,
}

impl ProbeEnumerator {
    fn show(&self) {
        let left = self.assigner.unassigned().map_or(0, |splits| splits.len());
        self.unassigned.set_size(left);
    }
}

impl SplitEnumerator for ProbeEnumerator {
    fn poll_progress(
        &mut self,
        _: &mut PollContext<'_>,
        out: &mut EnumeratorOutput,
    ) -> Poll<Result<()>> {
        if !self.assigner.is_planned() {
            let splits = (0..self.splits).map(|number| split(number, 0)).collect();
            self.assigner.planned(splits, out);
        }
        self.show();
        Poll::Pending
    }

    fn reader_registered(&mut self, reader: u32, _: &mut EnumeratorOutput) -> Result<()> {
        self.assigner.reader_registered(reader);
        Ok(())
    }

    fn reader_lost(&mut self, reader: u32) -> Result<()> {
        self.assigner.reader_lost(reader);
        Ok(())
    }

    fn split_requested(&mut self, reader: u32, out: &mut EnumeratorOutput) -> Result<()> {
        self.assigner.requested(reader, out);
        self.show();
        Ok(())
    }

    fn splits_returned(&mut self, splits: Vec<Split>, out: &mut EnumeratorOutput) -> Result<()> {
        self.assigner.returned(splits, out);
        self.show();
        Ok(())
    }

    fn snapshot(&mut self, _: CheckpointId) -> Result<Versioned> {
        let left: Vec<Split> = self
            .assigner
            .unassigned()
            .map(|splits| splits.cloned().collect())
            .unwrap_or_default();
        let mut writer = StateWriter::new();
        wire::put_splits(&mut writer, &left);
        Ok(writer.finish(1))
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

struct Reading {
    id: SplitId,
    number: u64,
    emitted: u64,
}

struct ProbeReader {
    rows: Rows,
    settings: Settings,
    splits: VecDeque<Reading>,
    /// Rows of the first split handed out and not yet emitted.
    given: u64,
    requested: bool,
    no_more: bool,
    read: u64,
    waker: Option<std::task::Waker>,
}

impl ProbeReader {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl TableReader for ProbeReader {
    fn add_splits(&mut self, splits: Vec<Split>) -> Result<()> {
        for split in splits {
            let mut state = StateReader::open("the probe's split", &split.state, 1..=1)?;
            let (number, emitted) = (state.u64()?, state.u64()?);
            state.finish()?;
            self.splits.push_back(Reading {
                id: split.id,
                number,
                emitted,
            });
        }
        self.requested = false;
        self.wake();
        Ok(())
    }

    fn no_more_splits(&mut self) -> Result<()> {
        self.no_more = true;
        self.wake();
        Ok(())
    }

    fn enumerator_event(&mut self, _: Versioned) -> Result<()> {
        Ok(())
    }

    fn poll_next(
        &mut self,
        cx: &mut PollContext<'_>,
        batch: &mut RowBatch,
        target: usize,
    ) -> Poll<Result<TableOutput>> {
        self.given = 0;
        let Some(split) = self.splits.front_mut() else {
            if self.no_more {
                return Poll::Ready(Ok(TableOutput::End));
            }
            if !self.requested {
                self.requested = true;
                return Poll::Ready(Ok(TableOutput::RequestSplit));
            }
            self.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let rows = lock(&self.rows);
        while batch.as_bytes().len() < target {
            let position = (split.emitted + self.given) * self.settings.splits + split.number;
            let Some(row) = usize::try_from(position).ok().and_then(|at| rows.get(at)) else {
                break;
            };
            self.read += 1;
            self.settings.strike(self.read)?;
            copy(row, &self.settings.types, batch)?;
            self.given += 1;
        }
        if self.given > 0 {
            return Poll::Ready(Ok(TableOutput::Rows(split.id.clone())));
        }
        if self.settings.endless {
            self.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let id = split.id.clone();
        drop(rows);
        self.splits.pop_front();
        Poll::Ready(Ok(TableOutput::SplitFinished(id)))
    }

    fn emitted(&mut self, rows: usize) {
        let rows = rows as u64;
        assert!(rows <= self.given, "more rows emitted than given");
        self.given -= rows;
        if let Some(split) = self.splits.front_mut() {
            split.emitted += rows;
        }
    }

    fn reject(&mut self, reason: &str) -> Result<()> {
        Err(Error::data(reason))
    }

    fn snapshot(&mut self, _: CheckpointId) -> Result<Vec<Split>> {
        Ok(self
            .splits
            .iter()
            .map(|reading| split(reading.number, reading.emitted))
            .collect())
    }

    fn checkpoint_completed(&mut self, _: CheckpointId) -> Result<()> {
        Ok(())
    }

    fn checkpoint_aborted(&mut self, _: CheckpointId) {}

    fn pause_splits(&mut self, _: &[SplitId], _: &[SplitId]) {}

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.splits.clear();
        Poll::Ready(Ok(()))
    }
}

/// Adds a stored row to a batch, encoded anew.
fn copy(row: &Stored, types: &[LogicalType], batch: &mut RowBatch) -> Result<()> {
    let view = RowRef::new(&row.bytes, types.len())
        .map_err(|error| Error::bug("a stored row is damaged").with_source(error))?;
    batch
        .try_push(row.time, view.kind(), types.len(), |out| {
            crate::roundtrip::fields(types, &view, out)
        })
        .map_err(|error| Error::bug("a stored row is damaged").with_source(error))
}

struct ProbeLookup(Settings);

impl TableLookup for ProbeLookup {
    fn create(&self, context: Context) -> Result<Box<dyn RowLookup>> {
        Ok(Box::new(ProbeLookups {
            rows: store(&self.0.store),
            settings: self.0.clone(),
            waiting: VecDeque::new(),
            started: 0,
            timer: context.clock.timer(),
            clock: context.clock.clone(),
        }))
    }
}

/// Finds rows whose first column, a `BIGINT`, equals the key.
struct ProbeLookups {
    rows: Rows,
    settings: Settings,
    waiting: VecDeque<(Moment, u64, i64)>,
    started: u64,
    timer: Box<dyn Timer>,
    clock: Arc<dyn Clock>,
}

impl RowLookup for ProbeLookups {
    fn start(&mut self, id: u64, key: RowRef<'_>) -> Result<()> {
        if !matches!(self.settings.types[0].data, DataType::BigInt) {
            return Err(Error::config("the first column is no BIGINT"));
        }
        let at = self.clock.now().after(self.settings.delay);
        self.waiting.push_back((at, id, key.i64(0)));
        Ok(())
    }

    fn poll_next(
        &mut self,
        cx: &mut PollContext<'_>,
        batch: &mut RowBatch,
    ) -> Poll<(u64, Result<()>)> {
        let Some((at, id, key)) = self.waiting.front().copied() else {
            return Poll::Pending;
        };
        self.timer.set(Some(at));
        ready!(self.timer.poll_elapsed(cx));
        self.waiting.pop_front();
        self.started += 1;
        let found = self.settings.strike(self.started).and_then(|()| {
            let types = &self.settings.types;
            for row in lock(&self.rows).iter() {
                let matches =
                    RowRef::new(&row.bytes, types.len()).is_ok_and(|view| view.i64(0) == key);
                if matches {
                    copy(row, types, batch)?;
                }
            }
            Ok(())
        });
        Poll::Ready((id, found))
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.waiting.clear();
        Poll::Ready(Ok(()))
    }
}
