//! What the sink's tests share: a simulated service, a record that says how it is written, a host that drives.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_bigtable::{
    BigtableSink, BigtableSinkBuilder, Disposition, RowMutationEntry, TableDestination,
    WriterOptions,
};
use aqueduct_connector::clock::ManualClock;
use aqueduct_connector::sink::{RecordInfo, Sink};
use aqueduct_connector::{Result, Timestamp};
use aqueduct_sim::{Method, Sim, SimConfig, Table};
use aqueduct_testkit::failure::HandlerLog;
use aqueduct_testkit::{SinkHost, TestContext};

/// What a test waits for at most, in real time.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// A record that says what becomes of it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) key: String,
    pub(crate) value: Vec<u8>,
    pub(crate) micros: i64,
    pub(crate) family: &'static str,
    pub(crate) how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Written,
    Skipped,
    /// The serializer refuses it.
    Refused,
    /// Written without a timestamp, in two cells.
    Unstamped,
    /// So many deletes of a row.
    Deletes(usize),
}

impl Record {
    pub(crate) fn new(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            value: b"v".to_vec(),
            micros: 1_000,
            family: "cf",
            how: How::Written,
        }
    }

    pub(crate) fn how(mut self, how: How) -> Self {
        self.how = how;
        self
    }

    pub(crate) fn value(mut self, value: impl Into<Vec<u8>>) -> Self {
        self.value = value.into();
        self
    }

    pub(crate) fn micros(mut self, micros: i64) -> Self {
        self.micros = micros;
        self
    }

    pub(crate) fn family(mut self, family: &'static str) -> Self {
        self.family = family;
        self
    }

    /// With a timestamp that the service refuses for this record alone.
    pub(crate) fn unaligned(self) -> Self {
        self.micros(1_001)
    }
}

/// `count` records with keys of their own.
pub(crate) fn records(count: usize) -> Vec<Record> {
    (0..count)
        .map(|number| Record::new(format!("k{number:04}")))
        .collect()
}

/// How a [`Record`] is written.
pub(crate) fn serialize(
    record: &Record,
    _: RecordInfo,
    entry: &mut RowMutationEntry,
) -> Result<Disposition, std::io::Error> {
    entry.row_key(&record.key);
    match record.how {
        How::Written => {
            entry.set_cell(record.family, "q", record.micros, &record.value);
        }
        How::Skipped => return Ok(Disposition::Skip),
        How::Refused => return Err(std::io::Error::other("not a good record")),
        How::Unstamped => {
            entry.set_cell_now(record.family, "a", &record.value);
            entry.set_cell_now(record.family, "b", &record.value);
        }
        How::Deletes(count) => {
            for _ in 0..count {
                entry.delete_row();
            }
        }
    }
    Ok(Disposition::Write)
}

/// A simulated service with one table, and the means to drive a sink on it.
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) table: Table,
    pub(crate) kit: TestContext,
    pub(crate) clock: Option<ManualClock>,
    pub(crate) handled: HandlerLog,
}

pub(crate) fn destination(table: &str) -> TableDestination {
    TableDestination::of("p", "i", table).expect("a valid address")
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(SimConfig::default()).await
    }

    pub(crate) async fn with(config: SimConfig) -> Self {
        let sim = Sim::start(config).await.expect("a loopback port");
        let table = sim.bigtable().create_table("p", "i", "t", &["cf"]);
        Self {
            sim,
            table,
            kit: TestContext::new("sink").with_limit(LIMIT),
            clock: None,
            handled: HandlerLog::new(),
        }
    }

    /// On a clock that stands still until it is moved.
    pub(crate) async fn on_manual_clock() -> Self {
        let clock = ManualClock::new(Timestamp::from_millis(1_700_000_000_123));
        let mut world = Self::new().await;
        world.kit = world.kit.with_clock(Arc::new(clock.clone()));
        world.clock = Some(clock);
        world
    }

    /// On a clock that moves to the next timer whenever nothing happens.
    pub(crate) async fn on_driven_clock() -> Self {
        let clock = ManualClock::new(Timestamp::from_millis(1_700_000_000_123));
        let mut world = Self::new().await;
        world.kit = world.kit.with_driven_clock(clock.clone());
        world.clock = Some(clock);
        world
    }

    /// A sink upon the table whose handler drops.
    pub(crate) fn builder(&self) -> BigtableSinkBuilder<Record> {
        let handled = self.handled.clone();
        BigtableSink::builder()
            .table(destination("t"))
            .serializer(serialize)
            .emulator_endpoint(self.sim.endpoint())
            .failed_mutation_handler(move || handled.handler())
    }

    /// One writer of what `change` makes of the usual sink.
    pub(crate) fn host(
        &self,
        change: impl FnOnce(BigtableSinkBuilder<Record>) -> BigtableSinkBuilder<Record>,
    ) -> SinkHost<Record> {
        let sink: Arc<dyn Sink<Record>> =
            Arc::new(change(self.builder()).build().expect("valid settings"));
        SinkHost::start(sink, &self.kit, 1).expect("a writer")
    }

    /// One writer with `options`.
    pub(crate) fn host_with(&self, options: WriterOptions) -> SinkHost<Record> {
        self.host(|builder| builder.writer_options(options))
    }

    pub(crate) fn metric(&self, name: &str) -> i128 {
        self.kit.registry().total(name)
    }

    /// Entries of each `MutateRows` request that arrived, in order.
    pub(crate) fn request_sizes(&self) -> Vec<usize> {
        self.table
            .requests_of(Method::MutateRows)
            .iter()
            .map(|request| request.entries)
            .collect()
    }

    /// Values of a row's cells in column `q`, newest first.
    pub(crate) fn values(&self, key: &str) -> Vec<Vec<u8>> {
        self.table
            .row(key.as_bytes())
            .map(|row| row.cells.into_iter().map(|cell| cell.value).collect())
            .unwrap_or_default()
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.as_ref().expect("a manual clock").advance(by);
    }
}
