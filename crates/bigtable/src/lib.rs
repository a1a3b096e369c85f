//! Bigtable: the bulk sink, the scan source, key lookups and tables of SQL, on our own data plane.
//!
//! | module | holds |
//! | --- | --- |
//! | [`destination`] | table addresses |
//! | [`sink`] | the bulk sink |
//! | [`entry`] | row mutation entries, which serializers fill |
//! | [`options`] | options of the sink |
//! | [`source`] | the scan source |
//! | [`lookup`] | point reads |
//! | [`table`] | tables of SQL upon sink, source and lookups |
//! | [`range`](mod@range), [`filter`] | which rows, and which cells of them |
//! | [`client`] | the wire: one file a method |
//! | [`scan_options`] | options of the source and the lookup client |

#![forbid(unsafe_code)]

pub mod client;
pub mod destination;
pub mod entry;
mod error;
pub mod filter;
pub mod lookup;
pub mod options;
pub mod range;
pub mod scan_options;
pub mod sink;
pub mod source;
pub mod table;

pub use client::admin::{GcRule, TableCreateOptions};
pub use destination::TableDestination;
pub use entry::RowMutationEntry;
pub use filter::Filter;
pub use lookup::{BigtableLookup, LookupCache, LookupClient};
pub use options::WriterOptions;
pub use range::RowRange;
pub use sink::{
    BigtableSink, BigtableSinkBuilder, CreateDisposition, DestinationResolver, Disposition,
    FailedMutation, MutationSerializer, RowOrdering,
};
pub use source::{BigtableSource, BigtableSourceBuilder, RowDeserializer};
