//! Simulated Pub/Sub: publishing, pulling, leases, administration.
//!
//! - [`world`] holds every topic, subscription and snapshot under one lock; [`subscription`] decides
//!   what a subscription delivers, [`filter`] what it receives; [`permits`] are its open streams,
//!   [`manners`] what can be set on it.
//! - [`serve`] answers requests, [`admin`] those of administration; [`stream`] is one streaming pull.
//! - [`message`] checks, stores and encodes messages; [`flood`] serves benchmarks.
//! - [`handle`] is what a test holds, [`config`] how it starts, [`clock`] what time it is.
//!
//! # Invariants
//!
//! - Nothing happens in the background: whatever time brings (expired leases, backed-off messages,
//!   seeks that lag) is settled before the world is looked at, and waiting streams wake for it.
//! - A message is in exactly one state per subscription, and every change of state that ends a lease
//!   gives its stream the permit back, once.
//! - What a subscription keeps for inspection is bounded; what it has to deliver is what was published.

pub(crate) mod admin;
pub(crate) mod clock;
pub(crate) mod config;
pub(crate) mod filter;
pub(crate) mod flood;
pub(crate) mod handle;
pub(crate) mod manners;
pub(crate) mod message;
pub(crate) mod permits;
pub(crate) mod serve;
pub(crate) mod stream;
pub(crate) mod subscription;
pub(crate) mod world;
