//! The RPCs the simulation serves, by name.

use std::fmt;

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $path:literal,)*) => {
        /// An RPC that the simulation serves and that faults and the log can name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Method {
            $($(#[$doc])* $name,)*
        }

        impl Method {
            /// The HTTP/2 path of the RPC.
            #[must_use]
            pub const fn path(self) -> &'static str {
                match self {
                    $(Self::$name => $path,)*
                }
            }

            /// The RPC served at `path`, if the simulation serves it.
            #[must_use]
            pub fn from_path(path: &str) -> Option<Self> {
                match path {
                    $($path => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

methods! {
    /// Writes many rows.
    MutateRows = "/google.bigtable.v2.Bigtable/MutateRows",
    /// Writes one row.
    MutateRow = "/google.bigtable.v2.Bigtable/MutateRow",
    /// Streams rows.
    ReadRows = "/google.bigtable.v2.Bigtable/ReadRows",
    /// Streams tablet boundaries.
    SampleRowKeys = "/google.bigtable.v2.Bigtable/SampleRowKeys",
    /// Writes one row by the outcome of a filter.
    CheckAndMutateRow = "/google.bigtable.v2.Bigtable/CheckAndMutateRow",
    /// Appends and increments.
    ReadModifyWriteRow = "/google.bigtable.v2.Bigtable/ReadModifyWriteRow",
    /// Warms a connection.
    PingAndWarm = "/google.bigtable.v2.Bigtable/PingAndWarm",
    /// Creates a table.
    CreateTable = "/google.bigtable.admin.v2.BigtableTableAdmin/CreateTable",
    /// Describes a table.
    GetTable = "/google.bigtable.admin.v2.BigtableTableAdmin/GetTable",
    /// Lists the tables of an instance.
    ListTables = "/google.bigtable.admin.v2.BigtableTableAdmin/ListTables",
    /// Deletes a table.
    DeleteTable = "/google.bigtable.admin.v2.BigtableTableAdmin/DeleteTable",
    /// Adds, changes and drops families, atomically.
    ModifyColumnFamilies = "/google.bigtable.admin.v2.BigtableTableAdmin/ModifyColumnFamilies",
    /// Drops the rows of a prefix, or all.
    DropRowRange = "/google.bigtable.admin.v2.BigtableTableAdmin/DropRowRange",
    /// Describes an application profile.
    GetAppProfile = "/google.bigtable.admin.v2.BigtableInstanceAdmin/GetAppProfile",
}

impl Method {
    /// Whether this is a data request, as opposed to administration.
    #[must_use]
    pub const fn is_data(self) -> bool {
        matches!(
            self,
            Self::MutateRows
                | Self::MutateRow
                | Self::ReadRows
                | Self::SampleRowKeys
                | Self::CheckAndMutateRow
                | Self::ReadModifyWriteRow
                | Self::PingAndWarm
        )
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path().rsplit('/').next().unwrap_or_default())
    }
}
