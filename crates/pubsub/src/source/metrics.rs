//! The metrics of a reader and of the coordinator, each named once.

use aqueduct_connector::Code;
use aqueduct_connector::metrics::{Counter, Gauge, MetricGroup};

macro_rules! names {
    ($($constant:ident = $name:literal, $meaning:literal;)*) => {
        $(#[doc = concat!("`", $name, "`: ", $meaning, ".")]
        pub const $constant: &str = $name;)*

        /// Every metric of a source and what it means.
        pub const ALL: &[(&str, &str)] = &[$(($name, $meaning),)*];
    };
}

names! {
    MESSAGES_RECEIVED = "messagesReceived", "copies decoded, redeliveries included";
    MESSAGES_ACKED = "messagesAcked", "acknowledgements answered";
    ACKS_FAILED = "acksFailed", "ack ids given up";
    LEASES_LOST = "leasesLost", "copies whose lease ended before they were acknowledged or returned";
    MESSAGES_NACKED = "messagesNacked", "copies returned to the service";
    MESSAGES_DROPPED = "messagesDropped", "undecodable messages dropped by the failure policy";
    RECORDS_SKIPPED = "recordsSkipped", "messages that gave no record";
    RECORDS_IN_ERRORS = "numRecordsInErrors", "messages that could not be decoded";
    PENDING_ACKS = "pendingAcks", "copies received and not yet acknowledged, returned or lost";
    PENDING_CHECKPOINTS = "pendingCheckpoints", "checkpoints that cover messages and are not complete";
    BUFFERED_MESSAGES = "bufferedMessages", "messages received and not emitted";
    BUFFERED_BYTES = "bufferedBytes", "their encoded bytes";
    PARKED_SPLITS = "parkedSplits", "splits parked now";
    SPLITS_PARKED = "splitsParked", "times a split was parked";
    STREAMS_REOPENED = "streamsReopened", "streams opened again after an end";
    OPEN_STREAMS = "openStreams", "streams open now";
    OLDEST_FRAME_AGE = "oldestFrameAgeMillis", "longest silence of a stream that is read";
    SHUTDOWNS_ABANDONED = "subscriberShutdownsAbandoned", "closes that ran out of their time";
    FAILURES_UNREPORTED = "subscriberFailuresUnreported", "failures that only the close found";
    ASSIGNED_SPLITS = "assignedSplits", "splits with a reader (coordinator)";
    UNASSIGNED_READERS = "unassignedReaders", "registered readers that wait for the start to finish (coordinator)";
    UNASSIGNED_SPLITS = "unassignedSplits", "splits without a reader (coordinator)";
}

/// What a reader's two sides count. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct ReaderMetrics {
    group: MetricGroup,
    pub(super) received: Counter,
    pub(super) acked: Counter,
    pub(super) acks_failed: Counter,
    pub(super) leases_lost: Counter,
    pub(super) nacked: Counter,
    pub(super) dropped: Counter,
    pub(super) skipped: Counter,
    pub(super) in_errors: Counter,
    pub(super) pending_acks: Gauge,
    pub(super) pending_checkpoints: Gauge,
    pub(super) buffered_messages: Gauge,
    pub(super) buffered_bytes: Gauge,
    pub(super) parked_splits: Gauge,
    pub(super) splits_parked: Counter,
    pub(super) reopened: Counter,
    pub(super) open_streams: Gauge,
    pub(super) oldest_frame: Gauge,
    pub(super) abandoned: Counter,
    pub(super) unreported: Counter,
}

impl ReaderMetrics {
    pub(super) fn new(group: &MetricGroup) -> Self {
        Self {
            received: group.counter(MESSAGES_RECEIVED),
            acked: group.counter(MESSAGES_ACKED),
            acks_failed: group.counter(ACKS_FAILED),
            leases_lost: group.counter(LEASES_LOST),
            nacked: group.counter(MESSAGES_NACKED),
            dropped: group.counter(MESSAGES_DROPPED),
            skipped: group.counter(RECORDS_SKIPPED),
            in_errors: group.counter(RECORDS_IN_ERRORS),
            pending_acks: group.gauge(PENDING_ACKS),
            pending_checkpoints: group.gauge(PENDING_CHECKPOINTS),
            buffered_messages: group.gauge(BUFFERED_MESSAGES),
            buffered_bytes: group.gauge(BUFFERED_BYTES),
            parked_splits: group.gauge(PARKED_SPLITS),
            splits_parked: group.counter(SPLITS_PARKED),
            reopened: group.counter(STREAMS_REOPENED),
            open_streams: group.gauge(OPEN_STREAMS),
            oldest_frame: group.gauge(OLDEST_FRAME_AGE),
            abandoned: group.counter(SHUTDOWNS_ABANDONED),
            unreported: group.counter(FAILURES_UNREPORTED),
            group: group.clone(),
        }
    }

    /// Counts a failure by its code; the counter is made on first use.
    pub(super) fn error(&self, code: Option<Code>) {
        let code = code.map_or("UNCLASSIFIED", Code::name);
        self.group
            .counter(&format!("errorClass.{code}.errors"))
            .increment();
    }
}
