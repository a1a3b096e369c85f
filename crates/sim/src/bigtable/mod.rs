//! Simulated Bigtable: data plane, table administration, application profiles.
//!
//! - [`store`] holds one table; [`slot`] names and locks tables.
//! - [`mutate`], [`read`], [`admin`] serve the requests; [`filter`] and [`chunks`] help reading.
//! - [`handle`] is what a test holds.

pub(crate) mod admin;
pub(crate) mod chunks;
pub(crate) mod details;
pub(crate) mod filter;
pub(crate) mod handle;
pub(crate) mod mutate;
pub(crate) mod profile;
pub(crate) mod read;
pub(crate) mod slot;
pub(crate) mod store;
pub(crate) mod wire;

use bytes::Bytes;
use tonic::Status;

/// What a served request is answered.
pub(crate) enum Reply {
    /// Framed messages, then success.
    Messages(Vec<Bytes>),
    /// Framed messages, then this status.
    Broken(Vec<Bytes>, Status),
    /// Rows, as the client takes them.
    Scan(Box<read::Scan>),
}
