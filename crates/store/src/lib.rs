//! Files and objects by URL: the one door to object storage.
//!
//! A [`Store`] is a directory, wherever it is: a path, `file://`, `memory://` (tests), `gs://`
//! (feature `gcs`) or `s3://` (feature `s3`). Checkpoints are written through it and file sources
//! read through it, so neither knows where its bytes are.
//!
//! ```
//! # async fn example() -> Result<(), aqueduct_store::StoreError> {
//! use aqueduct_store::Store;
//!
//! let store = Store::open("memory://example/checkpoints")?;
//! store.put_atomic("chk-1/manifest", "complete".into()).await?;
//! assert_eq!(store.get("chk-1/manifest", 1024).await?, "complete");
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```
//!
//! # Invariants
//!
//! - An object appears whole or not at all, and what a returned [`Store::put_atomic`] wrote
//!   survives a power failure: file, directory entry and every directory made on the way.
//! - At most one [`Lease`] of a name is valid at any moment.
//! - Every error names the location and what to do; none shows a credential, a query string or
//!   content.
//!
//! # Runtime
//!
//! Futures must be polled inside a tokio runtime with its time driver on. Local files use its
//! blocking threads.
//!
//! # Cancel safety
//!
//! Dropping a future of this crate leaves each object whole: a write under way may still land.

#![forbid(unsafe_code)]

mod error;
mod local;
mod location;
mod lock;
mod object;
mod store;

pub use error::{LockError, Operation, StoreError};
pub use lock::{Holder, LEASE_TERM, Lease};
pub use store::{LIST_LIMIT, ObjectMeta, Reading, Store};
