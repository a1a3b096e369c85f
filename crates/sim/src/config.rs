//! How a simulation is started: port, transport settings, limits, log bounds.
//!
//! Everything has a default that suits tests. What can change while the server runs (faults,
//! tablets, chunking, discard mode) is set on [`Table`](crate::Table) instead.

use std::time::Duration;

use crate::pubsub::config::PubSubConfig;

/// How to start a [`Sim`](crate::Sim).
///
/// All fields are public and independent; start from [`SimConfig::default`].
#[derive(Debug, Clone)]
pub struct SimConfig {
    /// TCP port on the loopback interface. Default: 0, the system chooses.
    pub port: u16,
    /// HTTP/2 flow-control window of one stream, in bytes. Default: 1 MiB.
    pub stream_window_bytes: u32,
    /// HTTP/2 flow-control window of one connection, in bytes. Default: 16 MiB.
    pub connection_window_bytes: u32,
    /// Largest HTTP/2 frame a client may send, in bytes. Default: 16 KiB, the protocol's own.
    pub max_frame_bytes: u32,
    /// Streams a client may have open on one connection. Default: 100.
    pub max_concurrent_streams: u32,
    /// The service's limits. Default: the documented ones.
    pub limits: Limits,
    /// Requests the log keeps. Default: 10,000. Older ones are forgotten first.
    pub logged_requests: usize,
    /// Bytes of request messages the log keeps. Default: 16 MiB. Beyond it the oldest records lose
    /// their message, not their summary.
    pub logged_bytes: usize,
    /// Whether a data request without `x-goog-request-params` is refused. Default: it is served,
    /// and the log shows the absence.
    pub routing_header: RoutingHeader,
    /// How a whole-request refusal of `MutateRows` looks on the wire. Default:
    /// [`RefusalForm::EveryEntry`].
    pub refusal_form: RefusalForm,
    /// When a schema change made over RPC becomes visible to data requests. Default: at once.
    pub schema_lag: SchemaLag,
    /// Pub/Sub. Default: the documented limits.
    pub pubsub: PubSubConfig,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            port: 0,
            stream_window_bytes: 1 << 20,
            connection_window_bytes: 16 << 20,
            max_frame_bytes: 16 << 10,
            max_concurrent_streams: 100,
            limits: Limits::default(),
            logged_requests: 10_000,
            logged_bytes: 16 << 20,
            routing_header: RoutingHeader::Optional,
            refusal_form: RefusalForm::EveryEntry,
            schema_lag: SchemaLag::None,
            pubsub: PubSubConfig::default(),
        }
    }
}

impl SimConfig {
    /// Settings under which the server is not what a benchmark measures: 16 MiB stream windows,
    /// a 64 MiB connection window, 1 MiB frames, 1,024 streams and no kept request messages.
    #[must_use]
    pub fn for_benchmarks() -> Self {
        Self {
            stream_window_bytes: 16 << 20,
            connection_window_bytes: 64 << 20,
            max_frame_bytes: 1 << 20,
            max_concurrent_streams: 1_024,
            logged_requests: 0,
            logged_bytes: 0,
            ..Self::default()
        }
    }
}

/// What happens to a data request without a routing header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoutingHeader {
    /// It is served.
    Optional,
    /// It is refused with `INVALID_ARGUMENT`.
    Required,
}

/// How a refusal of a whole `MutateRows` request is told.
///
/// The measurements were taken through a client that reports either form as one failure an entry,
/// so both must be expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalForm {
    /// The call succeeds and every entry carries the status.
    EveryEntry,
    /// The call itself fails.
    WholeCall,
}

/// How long a table or family created over RPC stays invisible to data requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaLag {
    /// Visible at once.
    None,
    /// Visible after that many data requests were refused for lack of it.
    Refusals(u32),
    /// Visible after that time.
    Elapsed(Duration),
}

/// Limits of the service. Lower them to meet one with little data.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Mutations of one request, summed over its entries. Documented: 100,000.
    pub mutations_per_request: usize,
    /// Bytes of a row key. Documented: 4 KiB.
    pub row_key_bytes: usize,
    /// Bytes of a column qualifier. Documented: 16 KiB.
    pub qualifier_bytes: usize,
    /// Bytes of one cell. Documented: 100 MB.
    pub cell_bytes: usize,
    /// Bytes of the values of one row's mutations in one request. Documented: 200 MB.
    pub row_mutation_bytes: usize,
    /// Bytes of a row that can be read. Documented: 256 MiB.
    pub row_bytes: usize,
    /// Bytes of an encoded filter. Documented: 20 KiB.
    pub filter_bytes: usize,
    /// Nesting of a filter. Documented: 20.
    pub filter_depth: usize,
    /// Tables of an instance. Documented: 1,000.
    pub tables_per_instance: usize,
    /// Bytes of a request message, else `RESOURCE_EXHAUSTED`. Default: 256 MiB, which holds the
    /// largest legal row mutation.
    pub message_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            mutations_per_request: 100_000,
            row_key_bytes: 4 << 10,
            qualifier_bytes: 16 << 10,
            cell_bytes: 100_000_000,
            row_mutation_bytes: 200_000_000,
            row_bytes: 256 << 20,
            filter_bytes: 20 << 10,
            filter_depth: 20,
            tables_per_instance: 1_000,
            message_bytes: 256 << 20,
        }
    }
}
