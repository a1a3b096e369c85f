//! The writer's metrics, by name, in one place (BT-MET-01).
//!
//! Counting is batched: what a record adds is kept in plain numbers and published when a batch leaves or the writer is
//! polled for progress, so a record costs no atomic operation.

use std::time::Duration;

use aqueduct_connector::Code;
use aqueduct_connector::metrics::{Counter, Gauge, Histogram, MetricGroup};

const LATENCY_MILLIS: &[u64] = &[
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000,
];
const BATCH_ENTRIES: &[u64] = &[
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000,
];
const BATCH_BYTES: &[u64] = &[
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
];

/// Names that every writer registers when it starts, for documentation and its test.
pub(super) const NAMES: &[(&str, &str)] = &[
    ("numRecordsSend", "records handed over, once each"),
    ("numBytesSend", "their encoded entries' bytes, once each"),
    (
        "numRecordsSendErrors",
        "records given to the failed-mutation handler",
    ),
    ("recordsSkipped", "records that the serializer skipped"),
    (
        "inFlightEntries",
        "entries handed over and unanswered, filling batches included",
    ),
    ("inFlightBytes", "their bytes"),
    (
        "parkedEntries",
        "entries held for a repair or an isolation pass",
    ),
    (
        "orderedRowsWaiting",
        "merged entries that wait for an earlier one of their row (per-row order)",
    ),
    ("activeClients", "open or closing clients"),
    ("capacityEvictions", "clients given up for another instance"),
    ("idleEvictions", "clients given up for idleness"),
    ("tablesCreated", "tables created"),
    ("columnFamiliesAdded", "families added to existing tables"),
    (
        "requestAttempts",
        "requests sent, further attempts included",
    ),
    (
        "entriesRetried",
        "entries sent again after a retryable status",
    ),
    ("admissionWaitMillis", "time that the stream was held back"),
    (
        "rateLimitedWaits",
        "requests that waited for the rate that the service asked for",
    ),
    (
        "requestRateLimitMilli",
        "the lowest such rate in thousandths of a request a second; 0 is no limit",
    ),
    (
        "requestLatencyMillis",
        "time from an attempt's start to its end",
    ),
    ("batchEntries", "records of each batch sent"),
    ("batchBytes", "bytes of each batch sent"),
];

pub(super) struct Metrics {
    group: MetricGroup,
    records: Counter,
    bytes: Counter,
    pub(super) errors: Counter,
    pub(super) skipped: Counter,
    in_flight_entries: Gauge,
    in_flight_bytes: Gauge,
    parked: Gauge,
    waiting: Gauge,
    active_clients: Gauge,
    pub(super) capacity_evictions: Counter,
    pub(super) idle_evictions: Counter,
    pub(super) tables_created: Counter,
    pub(super) families_added: Counter,
    pub(super) attempts: Counter,
    entries_retried: Counter,
    admission_wait: Counter,
    pub(super) rate_limited: Counter,
    rate: Gauge,
    latency: Histogram,
    batch_entries: Histogram,
    batch_bytes: Histogram,
    error_class: [Option<Counter>; 17],
    retry_class: [Option<Counter>; 17],
    /// Not yet published.
    pub(super) new_records: u64,
    pub(super) new_bytes: u64,
}

/// The state that the gauges show.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Levels {
    pub(super) entries: usize,
    pub(super) bytes: usize,
    pub(super) parked: usize,
    pub(super) waiting: usize,
    pub(super) clients: usize,
    pub(super) rate: Option<f64>,
}

impl Metrics {
    pub(super) fn new(group: MetricGroup) -> Self {
        Self {
            records: group.counter("numRecordsSend"),
            bytes: group.counter("numBytesSend"),
            errors: group.counter("numRecordsSendErrors"),
            skipped: group.counter("recordsSkipped"),
            in_flight_entries: group.gauge("inFlightEntries"),
            in_flight_bytes: group.gauge("inFlightBytes"),
            parked: group.gauge("parkedEntries"),
            waiting: group.gauge("orderedRowsWaiting"),
            active_clients: group.gauge("activeClients"),
            capacity_evictions: group.counter("capacityEvictions"),
            idle_evictions: group.counter("idleEvictions"),
            tables_created: group.counter("tablesCreated"),
            families_added: group.counter("columnFamiliesAdded"),
            attempts: group.counter("requestAttempts"),
            entries_retried: group.counter("entriesRetried"),
            admission_wait: group.counter("admissionWaitMillis"),
            rate_limited: group.counter("rateLimitedWaits"),
            rate: group.gauge("requestRateLimitMilli"),
            latency: group.histogram("requestLatencyMillis", LATENCY_MILLIS),
            batch_entries: group.histogram("batchEntries", BATCH_ENTRIES),
            batch_bytes: group.histogram("batchBytes", BATCH_BYTES),
            error_class: [const { None }; 17],
            retry_class: [const { None }; 17],
            new_records: 0,
            new_bytes: 0,
            group,
        }
    }

    /// Makes the numbers kept since the last time visible.
    pub(super) fn publish(&mut self, levels: Levels) {
        if self.new_records > 0 {
            self.records.add(std::mem::take(&mut self.new_records));
            self.bytes.add(std::mem::take(&mut self.new_bytes));
        }
        self.in_flight_entries.set_size(levels.entries);
        self.in_flight_bytes.set_size(levels.bytes);
        self.parked.set_size(levels.parked);
        self.waiting.set_size(levels.waiting);
        self.active_clients.set_size(levels.clients);
        self.rate
            .set(levels.rate.map_or(0, |rate| (rate * 1_000.0) as i64));
    }

    pub(super) fn on_batch(&self, records: usize, bytes: usize) {
        self.batch_entries.record(records as u64);
        self.batch_bytes.record(bytes as u64);
    }

    pub(super) fn on_attempt_end(&self, took: Duration) {
        self.latency.record(millis(took));
    }

    pub(super) fn on_admission_wait(&self, waited: Duration) {
        self.admission_wait.add(millis(waited));
    }

    /// A final failure by its outermost status; `None` is one without a status.
    pub(super) fn on_error_class(&mut self, code: Code) {
        let group = &self.group;
        self.error_class[code as usize]
            .get_or_insert_with(|| group.counter(&format!("errorClass.{}.errors", code.name())))
            .increment();
    }

    pub(super) fn on_retry(&mut self, code: Code, entries: usize) {
        self.entries_retried.add(entries as u64);
        let group = &self.group;
        self.retry_class[code as usize]
            .get_or_insert_with(|| group.counter(&format!("retryClass.{}.retries", code.name())))
            .increment();
    }

    /// `recordsSend` and `sendErrors` of one table.
    pub(super) fn destination(&self, table: &str) -> (Counter, Counter) {
        (
            self.group
                .counter(&format!("destination.{table}.recordsSend")),
            self.group
                .counter(&format!("destination.{table}.sendErrors")),
        )
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
