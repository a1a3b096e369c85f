//! Write requests as the simulation decodes them.
//!
//! The published message crate predates `Mutation.timestamp_origin` (field 7), and the service
//! treats a stamp by its origin, so the write requests are declared here; everything inside a
//! mutation is the generated type. The field numbers are those of `bigtable.proto` and
//! `data.proto`.

use std::fmt;

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as pb;

/// The stamp was made by the client library, not by its user.
pub(crate) const CLIENT_AUTO_GENERATED: i32 = 2;

/// One mutation of a row.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct Mutation {
    /// What to do.
    #[prost(oneof = "pb::mutation::Mutation", tags = "1, 5, 6, 2, 3, 4")]
    pub mutation: Option<pb::mutation::Mutation>,
    /// Who made the timestamp: 0 and 1 the user, 2 the client library.
    #[prost(int32, tag = "7")]
    pub timestamp_origin: i32,
}

/// All mutations of one row.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct Entry {
    /// The row.
    #[prost(bytes = "bytes", tag = "1")]
    pub row_key: Bytes,
    /// What happens to it, in order.
    #[prost(message, repeated, tag = "2")]
    pub mutations: Vec<Mutation>,
}

/// `MutateRows`.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct MutateRowsRequest {
    /// Full table name.
    #[prost(string, tag = "1")]
    pub table_name: String,
    /// The rows.
    #[prost(message, repeated, tag = "2")]
    pub entries: Vec<Entry>,
    /// Application profile.
    #[prost(string, tag = "3")]
    pub app_profile_id: String,
}

/// `MutateRow`.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct MutateRowRequest {
    /// Full table name.
    #[prost(string, tag = "1")]
    pub table_name: String,
    /// The row.
    #[prost(bytes = "bytes", tag = "2")]
    pub row_key: Bytes,
    /// What happens to it, in order.
    #[prost(message, repeated, tag = "3")]
    pub mutations: Vec<Mutation>,
    /// Application profile.
    #[prost(string, tag = "4")]
    pub app_profile_id: String,
}

/// `CheckAndMutateRow`.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct CheckAndMutateRowRequest {
    /// Full table name.
    #[prost(string, tag = "1")]
    pub table_name: String,
    /// The row.
    #[prost(bytes = "bytes", tag = "2")]
    pub row_key: Bytes,
    /// Applied if the predicate yields a cell.
    #[prost(message, repeated, tag = "4")]
    pub true_mutations: Vec<Mutation>,
    /// Applied if it yields none.
    #[prost(message, repeated, tag = "5")]
    pub false_mutations: Vec<Mutation>,
    /// The predicate; unset asks whether the row exists.
    #[prost(message, optional, tag = "6")]
    pub predicate_filter: Option<pb::RowFilter>,
    /// Application profile.
    #[prost(string, tag = "7")]
    pub app_profile_id: String,
}

/// Rows and values stay out of every `Debug`.
macro_rules! counted_debug {
    ($($name:ident: $field:ident;)*) => {
        $(impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field(stringify!($field), &self.$field.len())
                    .finish_non_exhaustive()
            }
        })*
    };
}

counted_debug! {
    Entry: mutations;
    MutateRowsRequest: entries;
    MutateRowRequest: mutations;
    CheckAndMutateRowRequest: true_mutations;
}

impl fmt::Debug for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.mutation {
            None => "None",
            Some(pb::mutation::Mutation::SetCell(_)) => "SetCell",
            Some(pb::mutation::Mutation::AddToCell(_)) => "AddToCell",
            Some(pb::mutation::Mutation::MergeToCell(_)) => "MergeToCell",
            Some(pb::mutation::Mutation::DeleteFromColumn(_)) => "DeleteFromColumn",
            Some(pb::mutation::Mutation::DeleteFromFamily(_)) => "DeleteFromFamily",
            Some(pb::mutation::Mutation::DeleteFromRow(_)) => "DeleteFromRow",
        };
        f.debug_struct("Mutation")
            .field("kind", &kind)
            .finish_non_exhaustive()
    }
}
