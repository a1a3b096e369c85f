//! Bigtable: the bulk sink, the scan source and key lookups, on our own data plane.
//!
//! | module | holds |
//! | --- | --- |
//! | [`destination`] | table addresses |

#![forbid(unsafe_code)]

pub mod destination;

pub use destination::TableDestination;
