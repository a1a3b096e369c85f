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
    /// Publishes messages to a topic.
    Publish = "/google.pubsub.v1.Publisher/Publish",
    /// Creates a topic.
    CreateTopic = "/google.pubsub.v1.Publisher/CreateTopic",
    /// Describes a topic.
    GetTopic = "/google.pubsub.v1.Publisher/GetTopic",
    /// Changes a topic.
    UpdateTopic = "/google.pubsub.v1.Publisher/UpdateTopic",
    /// Lists the topics of a project.
    ListTopics = "/google.pubsub.v1.Publisher/ListTopics",
    /// Lists the subscriptions of a topic.
    ListTopicSubscriptions = "/google.pubsub.v1.Publisher/ListTopicSubscriptions",
    /// Deletes a topic.
    DeleteTopic = "/google.pubsub.v1.Publisher/DeleteTopic",
    /// Detaches a subscription from its topic.
    DetachSubscription = "/google.pubsub.v1.Publisher/DetachSubscription",
    /// Creates a subscription.
    CreateSubscription = "/google.pubsub.v1.Subscriber/CreateSubscription",
    /// Describes a subscription.
    GetSubscription = "/google.pubsub.v1.Subscriber/GetSubscription",
    /// Changes a subscription.
    UpdateSubscription = "/google.pubsub.v1.Subscriber/UpdateSubscription",
    /// Lists the subscriptions of a project.
    ListSubscriptions = "/google.pubsub.v1.Subscriber/ListSubscriptions",
    /// Deletes a subscription.
    DeleteSubscription = "/google.pubsub.v1.Subscriber/DeleteSubscription",
    /// Extends leases, or gives messages back.
    ModifyAckDeadline = "/google.pubsub.v1.Subscriber/ModifyAckDeadline",
    /// Acknowledges messages.
    Acknowledge = "/google.pubsub.v1.Subscriber/Acknowledge",
    /// Takes messages once.
    Pull = "/google.pubsub.v1.Subscriber/Pull",
    /// Streams messages.
    StreamingPull = "/google.pubsub.v1.Subscriber/StreamingPull",
    /// Moves a subscription to a time or snapshot.
    Seek = "/google.pubsub.v1.Subscriber/Seek",
    /// Keeps the position of a subscription.
    CreateSnapshot = "/google.pubsub.v1.Subscriber/CreateSnapshot",
    /// Describes a snapshot.
    GetSnapshot = "/google.pubsub.v1.Subscriber/GetSnapshot",
    /// Lists the snapshots of a project.
    ListSnapshots = "/google.pubsub.v1.Subscriber/ListSnapshots",
    /// Deletes a snapshot.
    DeleteSnapshot = "/google.pubsub.v1.Subscriber/DeleteSnapshot",
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
                | Self::Publish
                | Self::Acknowledge
                | Self::ModifyAckDeadline
                | Self::Pull
                | Self::StreamingPull
        )
    }

    /// Whether this is a request to Pub/Sub.
    #[must_use]
    pub fn is_pubsub(self) -> bool {
        self.path().starts_with("/google.pubsub.")
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path().rsplit('/').next().unwrap_or_default())
    }
}
