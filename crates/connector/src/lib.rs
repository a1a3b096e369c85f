//! The contract between a connector and the host that drives it.
//!
//! A *connector* is a [`Source`](source::Source) or a [`Sink`](sink::Sink). A *host* is whatever runs it: the
//! embedded executor, Apache Flink through JNI, or a test that polls by hand. A connector never knows which.
//!
//! # How a host drives a connector
//!
//! - **One owner.** Every reader, writer, enumerator and committer is created, polled and dropped by one task on one
//!   thread at a time. Nothing here has to be `Send`, takes a lock or calls back from another thread.
//! - **Polling.** Everything that can wait is a `poll_*` method with the host's waker. A connector that returns
//!   `Pending` wakes that waker when calling again can help; no method blocks its thread.
//! - **The host lends its means**: [`Context`] carries the clock, the seed of all randomness, the metric group and a
//!   spawner for I/O tasks. Polls happen inside the Tokio runtime that the spawner spawns on, so that transports which
//!   look for the current runtime find it. This crate itself depends on no executor and no transport.
//! - **State is bytes** with a version ([`state::Versioned`]); splits, snapshots, events and committables all are.
//!
//! # Order at a barrier
//!
//! Of a writer: every earlier `write`, then `poll_flush`, `prepare_commit`, `snapshot`. Of a reader: `emitted` for all
//! that went downstream, then `snapshot`. Enumerators are snapshotted before readers; what an enumerator sends after its
//! snapshot reaches a reader only after that reader's snapshot. Once the checkpoint is complete, `checkpoint_completed`
//! reaches everyone and committables reach the committer. A checkpoint may be aborted, or subsumed by a later one:
//! act on the highest identifier seen.
//!
//! # Where things are
//!
//! | module | holds |
//! | --- | --- |
//! | [`source`] | source, enumerator, reader, splits, deserializer collector |
//! | [`sink`] | sink, writer, committer |
//! | [`failure`] | failure handlers, failed elements, the dead-letter queue trait |
//! | [`state`] | versioned bytes and the bounded codec behind every stored format |
//! | [`options`] | options, each declared once |
//! | [`metrics`] | counters, gauges and histograms in blocks of atomics |
//! | [`table`] | from a `CREATE TABLE` and its options to a source, a sink or a lookup |
//! | [`row`] | rows in binary layout, as they cross between a host and a table |
//! | [`types`] | types of table columns |
//! | [`clock`] | time from the host |
//! | [`error`] | errors and chains of service statuses |
//! | [`stall`] | the warning that no wait goes without |

#![forbid(unsafe_code)]

pub mod clock;
pub mod context;
pub mod error;
pub mod failure;
pub mod metrics;
pub mod options;
pub mod row;
pub mod sink;
pub mod source;
pub mod stall;
pub mod state;
pub mod table;
pub mod types;

pub use clock::{Clock, Moment, Timestamp};
pub use context::{CheckpointId, Context, Spawn, Subtask, Task};
pub use error::{Code, Error, ErrorKind, Result, Status, StatusChain};
pub use state::Versioned;
