//! Simulated Google services for tests, benchmarks and development.
//!
//! [`Sim`] is a real gRPC server on a loopback port with the manners that were measured on the real
//! service, where the official emulators have others. Faults are scripted; what happened can be
//! inspected. Today it simulates Bigtable (the data plane, table administration and application
//! profiles) and Pub/Sub (publishing, pulling, administration).
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use aqueduct_sim::{Code, Method, Sim, SimConfig};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let sim = Sim::start(SimConfig::default()).await?;
//! let orders = sim.bigtable().create_table("project", "instance", "orders", &["cf"]);
//! orders.nth(3, Method::MutateRows).status(Code::Unavailable);
//!
//! // … point a client at `sim.endpoint()`, without credentials …
//!
//! orders.wait_until(Duration::from_secs(10), |table| table.row_count() == 100).await?;
//! assert!(orders.effects_per_row().iter().all(|effects| *effects >= 1));
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//!
//! - It shares message types with the clients and nothing else, so it cannot agree with their
//!   mistakes.
//! - What a request does, it does at once under the lock of its table; a request that is cut,
//!   delayed or silenced has taken effect entirely or not at all, as scripted.
//! - The log is bounded by count and bytes; it never holds an `authorization` header.
//!
//! `docs/simulated-services.md` lists each manner with its source.

#![forbid(unsafe_code)]

mod bigtable;
mod config;
mod core;
mod faults;
mod log;
mod method;
mod pubsub;
mod server;

pub use tonic::Code;

pub use crate::{
    bigtable::{
        chunks::Chunking,
        handle::{Aggregate, Bigtable, Discarded, StoredCell, StoredRow, Table},
        profile::Profile,
        slot::{Answers, EntryOrder},
        wire::{CheckAndMutateRowRequest, Entry, MutateRowRequest, MutateRowsRequest, Mutation},
    },
    config::{Limits, RefusalForm, RoutingHeader, SchemaLag, SimConfig},
    core::TimedOut,
    faults::{Fault, Gate},
    log::RequestRecord,
    method::Method,
    pubsub::{
        config::{PubSubConfig, PubSubLimits},
        flood::{DiscardedMessages, FirehoseConfig, FirehoseFlow, Firehosed},
        handle::{PubSub, Subscription, Topic},
        manners::{AckFailure, KeepaliveAnswers, LateAcks, Lease, SubscriptionCounts},
    },
    server::{Sim, discard::DiscardServer},
};
