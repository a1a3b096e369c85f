//! Bigtable: the bulk sink, the scan source and key lookups, on our own data plane.
//!
//! | module | holds |
//! | --- | --- |
//! | [`destination`] | table addresses |
//! | [`source`] | the scan source |
//! | [`lookup`] | point reads |
//! | [`range`](mod@range), [`filter`] | which rows, and which cells of them |
//! | [`client`] | the wire: one file a method |
//! | [`scan_options`] | options of the source and the lookup client |

#![forbid(unsafe_code)]

pub mod client;
pub mod destination;
pub mod filter;
pub mod range;
pub mod scan_options;

pub use destination::TableDestination;
pub use filter::Filter;
pub use range::RowRange;
