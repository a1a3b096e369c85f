//! The metadata columns, and where a plan has put them in a row.

use aqueduct_connector::options::ConfigError;
use aqueduct_connector::table::MetadataColumn;
use aqueduct_connector::types::DataType;

/// Field of the payload in every row.
pub(super) const PAYLOAD: usize = 0;

/// Keys and values of attributes.
pub(super) const TEXT: DataType = DataType::string();

pub(super) const MESSAGE_ID: &str = "message-id";
pub(super) const PUBLISH_TIME: &str = "publish-time";
pub(super) const ATTRIBUTES: &str = "attributes";
pub(super) const ORDERING_KEY: &str = "ordering-key";
pub(super) const SUBSCRIPTION: &str = "subscription";
pub(super) const DELIVERY_ATTEMPT: &str = "delivery-attempt";
pub(super) const TOPIC: &str = "topic";

const NOTHING: MetadataColumn = MetadataColumn {
    key: "",
    ty: "",
    readable: false,
    writable: false,
    doc: "",
};

const READABLE: MetadataColumn = MetadataColumn {
    readable: true,
    ..NOTHING
};

/// All of them. `attributes` is there twice: it is never null when read and may be null when written.
pub(super) const COLUMNS: &[MetadataColumn] = &[
    MetadataColumn {
        key: MESSAGE_ID,
        ty: "STRING NOT NULL",
        doc: "The service's id of the message, unique in its topic.",
        ..READABLE
    },
    MetadataColumn {
        key: PUBLISH_TIME,
        ty: "TIMESTAMP_LTZ(3) NOT NULL",
        doc: "When the service took the message, cut to milliseconds and never rounded up; the rows' event time.",
        ..READABLE
    },
    MetadataColumn {
        key: ATTRIBUTES,
        ty: "MAP<STRING NOT NULL, STRING NOT NULL> NOT NULL",
        doc: "The message's attributes; empty without any, never NULL.",
        ..READABLE
    },
    MetadataColumn {
        key: ATTRIBUTES,
        ty: "MAP<STRING, STRING>",
        writable: true,
        doc: "Attributes to publish. NULL adds none; a NULL key or value in the map fails the write.",
        ..NOTHING
    },
    MetadataColumn {
        key: ORDERING_KEY,
        ty: "STRING",
        writable: true,
        doc: "The ordering key; NULL without one. To write it takes 'sink.message-ordering.enabled'; NULL and the empty \
              text write none.",
        ..READABLE
    },
    MetadataColumn {
        key: SUBSCRIPTION,
        ty: "STRING NOT NULL",
        doc: "Full name of the subscription that delivered the message, `projects/<project>/subscriptions/<name>`.",
        ..READABLE
    },
    MetadataColumn {
        key: DELIVERY_ATTEMPT,
        ty: "INT",
        doc: "Which attempt to deliver the message this is, from 1; NULL where the subscription has no dead-letter policy.",
        ..READABLE
    },
    MetadataColumn {
        key: TOPIC,
        ty: "STRING",
        writable: true,
        doc: "The topic to publish to, by plain name in 'project' or by full name `projects/<project>/topics/<name>`; NULL \
              for the table's topic.",
        ..NOTHING
    },
];

/// What a plan does with metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Read,
    Write,
}

/// Refuses metadata that the tables do not have.
pub(super) fn check(planned: &[String], usage: Use) -> Result<(), ConfigError> {
    for (at, key) in planned.iter().enumerate() {
        let fits = |column: &&MetadataColumn| match usage {
            Use::Read => column.readable,
            Use::Write => column.writable,
        };
        if !COLUMNS.iter().filter(fits).any(|column| column.key == key) {
            let known: Vec<String> = COLUMNS
                .iter()
                .filter(fits)
                .map(|column| format!("'{}'", column.key))
                .collect();
            let (what, hint) = match usage {
                Use::Read => ("read", ""),
                Use::Write => ("written", "; declare a column that is only read as VIRTUAL"),
            };
            return Err(ConfigError::column(
                key,
                format!(
                    "there is no such metadata to be {what}; there is {}{hint}",
                    known.join(", ")
                ),
            ));
        }
        if planned[..at].contains(key) {
            return Err(ConfigError::column(
                key,
                "the metadata was planned twice, a mistake of the host",
            ));
        }
    }
    Ok(())
}

/// The field of `key` in a row with `planned` metadata.
pub(super) fn field(planned: &[String], key: &str) -> Option<usize> {
    let at = planned.iter().position(|one| one == key)?;
    Some(PAYLOAD + 1 + at)
}
