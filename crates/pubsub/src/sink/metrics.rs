//! The writer's metrics, by name, in one place (PS-MET-01).
//!
//! Counting is batched: what a record adds is kept in plain numbers and published when the writer is polled, so a record
//! costs no atomic operation.

use aqueduct_connector::Code;
use aqueduct_connector::metrics::{Counter, Gauge, MetricGroup};

/// Names that every writer registers when it starts, for documentation and its test.
pub(super) const NAMES: &[(&str, &str)] = &[
    ("numRecordsSend", "messages handed over, once each"),
    ("numBytesSend", "their encoded bytes, once each"),
    (
        "numRecordsSendErrors",
        "records given to the failed-message handler",
    ),
    ("recordsSkipped", "records that the serializer skipped"),
    (
        "inFlightMessages",
        "messages admitted, neither settled nor parked",
    ),
    ("inFlightBytes", "their bytes"),
    (
        "parkedMessages",
        "messages that wait for a repair or to be sent alone",
    ),
    ("activePublishers", "topics open now"),
    ("capacityEvictions", "topics given up for another one"),
    ("idleEvictions", "topics given up for idleness"),
    ("topicsCreated", "repairs that created or found the topic"),
    (
        "publisherShutdownsAbandoned",
        "topics whose requests were unanswered at the end of a close",
    ),
    ("publishRetries", "attempts made again"),
];

/// What gauges show.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Levels {
    pub(super) messages: usize,
    pub(super) bytes: usize,
    pub(super) parked: usize,
    pub(super) topics: usize,
}

pub(super) struct Metrics {
    group: MetricGroup,
    records: Counter,
    bytes: Counter,
    pub(super) errors: Counter,
    pub(super) skipped: Counter,
    in_flight_messages: Gauge,
    in_flight_bytes: Gauge,
    parked: Gauge,
    active_publishers: Gauge,
    pub(super) capacity_evictions: Counter,
    pub(super) idle_evictions: Counter,
    pub(super) topics_created: Counter,
    pub(super) abandoned: Counter,
    pub(super) retries: Counter,
    error_class: [Option<Counter>; 17],
    /// Not yet published.
    pub(super) new_records: u64,
    pub(super) new_bytes: u64,
}

impl Metrics {
    pub(super) fn new(group: MetricGroup) -> Self {
        Self {
            records: group.counter("numRecordsSend"),
            bytes: group.counter("numBytesSend"),
            errors: group.counter("numRecordsSendErrors"),
            skipped: group.counter("recordsSkipped"),
            in_flight_messages: group.gauge("inFlightMessages"),
            in_flight_bytes: group.gauge("inFlightBytes"),
            parked: group.gauge("parkedMessages"),
            active_publishers: group.gauge("activePublishers"),
            capacity_evictions: group.counter("capacityEvictions"),
            idle_evictions: group.counter("idleEvictions"),
            topics_created: group.counter("topicsCreated"),
            abandoned: group.counter("publisherShutdownsAbandoned"),
            retries: group.counter("publishRetries"),
            error_class: [const { None }; 17],
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
        self.in_flight_messages.set_size(levels.messages);
        self.in_flight_bytes.set_size(levels.bytes);
        self.parked.set_size(levels.parked);
        self.active_publishers.set_size(levels.topics);
    }

    /// `messages` failed at their root with `code`.
    pub(super) fn on_error_class(&mut self, code: Code, messages: usize) {
        let group = &self.group;
        self.error_class[code as usize]
            .get_or_insert_with(|| group.counter(&format!("errorClass.{}.errors", code.name())))
            .add(messages as u64);
    }

    /// `recordsSend` and `sendErrors` of one topic.
    pub(super) fn destination(&self, topic: &str) -> (Counter, Counter) {
        (
            self.group
                .counter(&format!("destination.{topic}.recordsSend")),
            self.group
                .counter(&format!("destination.{topic}.sendErrors")),
        )
    }
}
