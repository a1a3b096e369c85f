//! Reads the table back over the wire and adds up departures and delays by carrier.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as PollContext, Poll};

use aqueduct::bigtable::client::read::RowRef;
use aqueduct::bigtable::source::BigtableSource;
use aqueduct::bigtable::{Filter, TableDestination};
use aqueduct::connector::sink::{Flush, RecordInfo, Sink, SinkWriter};
use aqueduct::connector::source::Collector;
use aqueduct::connector::{Code, Context, Error, Result, Versioned};
use aqueduct::runtime::{Job, JobConfig, RestartStrategy, WatermarkStrategy};

use super::flights::DEP_DELAY;

/// What one carrier did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Carrier {
    /// Flights that left.
    pub(super) departures: u64,
    /// Flights that did not.
    pub(super) cancelled: u64,
    /// Sum of the departure delays in minutes; early departures count below zero.
    delay_minutes: i64,
}

impl Carrier {
    /// Mean delay of the departures in minutes, if there were any.
    pub(super) fn mean_delay(&self) -> Option<f64> {
        (self.departures > 0).then(|| self.delay_minutes as f64 / self.departures as f64)
    }

    fn add(&mut self, other: Self) {
        self.departures += other.departures;
        self.cancelled += other.cancelled;
        self.delay_minutes += other.delay_minutes;
    }
}

/// Carriers by code.
pub(super) type Carriers = BTreeMap<String, Carrier>;

/// Scans the table at `endpoint`; `None` if there is no such table.
pub(super) fn read(table: TableDestination, endpoint: &str) -> Result<Option<Carriers>> {
    // Only what is added up crosses the wire, and a cell that every flight has, since rows without cells are not read.
    let filter = Filter::qualifier_regex("dep_delay|dest");
    let source = BigtableSource::builder()
        .table(table)
        .filter(filter)
        .emulator_endpoint(endpoint)
        .deserializer(departure)
        .build()?;
    let tally = Tally::default();
    let job = Job::new("quickstart-read-back");
    job.from_source("table", source, WatermarkStrategy::none())
        .sink_to("tally", tally.clone());
    let config = JobConfig::builder()
        .restart(RestartStrategy::None)
        .build()?;
    match job.run(config) {
        Ok(_) => Ok(Some(tally.take())),
        Err(error)
            if error
                .statuses()
                .is_some_and(|chain| chain.code() == Code::NotFound) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The carrier and the delay of one row.
fn departure(row: RowRef<'_>, out: &mut Collector<'_, (String, Carrier)>) -> Result<()> {
    let carrier = row
        .key()
        .split(|byte| *byte == b'#')
        .next()
        .unwrap_or_default();
    let carrier = String::from_utf8_lossy(carrier).into_owned();
    let delay = row.cells().find(|cell| cell.qualifier() == DEP_DELAY);
    let flight = match delay {
        Some(cell) => {
            let minutes = std::str::from_utf8(cell.value())
                .ok()
                .and_then(|text| text.parse().ok());
            let minutes = minutes.ok_or_else(|| {
                Error::user("a row's dep_delay is no whole number; was the table written by something else?")
            })?;
            Carrier {
                departures: 1,
                cancelled: 0,
                delay_minutes: minutes,
            }
        }
        None => Carrier {
            departures: 0,
            cancelled: 1,
            delay_minutes: 0,
        },
    };
    out.emit((carrier, flight));
    Ok(())
}

/// A sink that adds up, for a job that ends.
#[derive(Clone, Default)]
struct Tally(Arc<Mutex<Carriers>>);

impl Tally {
    fn take(&self) -> Carriers {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Sink<(String, Carrier)> for Tally {
    fn connector(&self) -> &'static str {
        "tally"
    }

    fn create_writer(
        &self,
        _: Context,
        _: Vec<Versioned>,
    ) -> Result<Box<dyn SinkWriter<(String, Carrier)>>> {
        Ok(Box::new(TallyWriter {
            all: self.0.clone(),
            own: Carriers::new(),
        }))
    }
}

struct TallyWriter {
    all: Arc<Mutex<Carriers>>,
    own: Carriers,
}

impl SinkWriter<(String, Carrier)> for TallyWriter {
    fn poll_ready(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn write(&mut self, (carrier, flight): (String, Carrier), _: RecordInfo) -> Result<()> {
        self.own.entry(carrier).or_default().add(flight);
        Ok(())
    }

    fn poll_progress(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Pending
    }

    fn poll_flush(&mut self, _: &mut PollContext<'_>, _: Flush) -> Poll<Result<()>> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        for (carrier, flights) in std::mem::take(&mut self.own) {
            all.entry(carrier).or_default().add(flights);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}
