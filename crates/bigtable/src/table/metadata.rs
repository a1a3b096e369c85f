//! The metadata columns of tables.

use aqueduct_connector::options::ConfigError;
use aqueduct_connector::table::MetadataColumn;

pub(super) const TIMESTAMP: &str = "timestamp";
pub(super) const TABLE: &str = "table";

/// That of the column `timestamp`.
pub(super) const TIMESTAMP_PRECISION: u8 = 6;

pub(super) const COLUMNS: &[MetadataColumn] = &[
    MetadataColumn {
        key: TIMESTAMP,
        ty: "TIMESTAMP_LTZ(6)",
        readable: false,
        writable: true,
        doc: "The timestamp of every cell that the row writes, in whole milliseconds and not before 1970. NULL, or no such \
              column, stamps the cells with the writer's clock. Deletes do not look at it.",
    },
    MetadataColumn {
        key: TABLE,
        ty: "STRING",
        readable: false,
        writable: true,
        doc: "The table that the row is written to or deleted from, by plain name, in the same instance. NULL is the table \
              of the option 'table'.",
    },
];

/// Fields of the writable metadata in a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) timestamp: Option<usize>,
    pub(super) table: Option<usize>,
}

/// Finds the metadata that a query writes behind `columns` physical ones.
pub(super) fn written(keys: &[String], columns: usize) -> Result<Written, ConfigError> {
    let mut written = Written {
        timestamp: None,
        table: None,
    };
    for (at, key) in keys.iter().enumerate() {
        let field = match key.as_str() {
            TIMESTAMP => &mut written.timestamp,
            TABLE => &mut written.table,
            _ => {
                return Err(ConfigError::column(
                    key,
                    "a Bigtable table has no such metadata to write; it has 'timestamp' and 'table'",
                ));
            }
        };
        if field.replace(columns + at).is_some() {
            return Err(ConfigError::column(key, "this metadata is written twice"));
        }
    }
    Ok(written)
}

/// Refuses metadata in a query that reads.
pub(super) fn check_none_read(keys: &[String]) -> Result<(), ConfigError> {
    match keys.first() {
        None => Ok(()),
        Some(key) => Err(ConfigError::column(
            key,
            "a Bigtable table has no metadata that can be read; declare the column VIRTUAL nowhere, and leave it out of queries",
        )),
    }
}
