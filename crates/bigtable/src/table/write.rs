//! Rows to mutation entries: what an upsert sink writes for each (BT-SQL-05, BT-SQL-06).
//!
//! The columns are looked at once, when the sink is made; a row costs the copies of its bytes and nothing else.

use std::collections::HashMap;
use std::sync::Arc;

use aqueduct_connector::options::ConfigError;
use aqueduct_connector::row::{Row, RowError, RowKind, RowRef};
use aqueduct_connector::sink::RecordInfo;
use aqueduct_connector::table::SinkPlan;

use super::codec::{Codec, Scratch};
use super::options::{InsertOnlyInput, Settings, WriteMode};
use super::{config_error, metadata};
use crate::destination::{TABLE, TableDestination};
use crate::entry::RowMutationEntry;
use crate::sink::{
    BigtableSink, BoxError, CreateDisposition, DestinationResolver, Disposition,
    MutationSerializer, RowOrdering,
};

/// Tables that a writer remembers by name. Beyond it the memory starts anew; the destinations themselves are bounded by
/// the sink's options.
const KNOWN_TABLES: usize = 1_024;

/// Why a row cannot be written. Says which column, never what it holds.
#[derive(Debug, thiserror::Error)]
enum RowFault {
    #[error(
        "a row is an UPDATE_BEFORE, which a Bigtable table does not take; the query's plan must not make them"
    )]
    UpdateBefore,
    #[error("the row key '{0}' is NULL; give every row a key")]
    NullKey(String),
    #[error("the row key '{0}' is empty; give every row a key")]
    EmptyKey(String),
    #[error(
        "every family of the row is NULL, so there is nothing to write; give it one, or leave the row out"
    )]
    NoFamily,
    #[error("the column '{0}' is NOT NULL and holds NULL")]
    NullColumn(String),
    #[error(
        "the metadata column 'timestamp' is before 1970, where Bigtable has no cell timestamps"
    )]
    BeforeEpoch,
    #[error("the metadata column 'timestamp' is beyond the microseconds of 64 bits")]
    FarTime,
    #[error("the host handed over a row that cannot be read")]
    Row(#[from] RowError),
}

/// What the writers of a sink share.
#[derive(Debug)]
struct Plan {
    /// Fields of a row: physical columns, then metadata.
    arity: usize,
    key: usize,
    key_name: String,
    key_codec: Codec,
    families: Vec<FamilyPlan>,
    timestamp: Option<usize>,
    truncate: bool,
    mode: WriteMode,
    null_literal: Box<[u8]>,
}

#[derive(Debug)]
struct FamilyPlan {
    field: usize,
    name: Box<str>,
    qualifiers: Vec<QualifierPlan>,
}

#[derive(Debug)]
struct QualifierPlan {
    name: Box<str>,
    codec: Codec,
    nullable: bool,
}

/// Turns rows into entries.
#[derive(Clone, Debug)]
struct RowSerializer(Arc<Plan>);

impl RowSerializer {
    fn fill(&self, row: &Row, entry: &mut RowMutationEntry) -> Result<(), RowFault> {
        let plan = &*self.0;
        let row = row.view(plan.arity)?;
        let mut scratch = Scratch::default();
        if row.is_null(plan.key) {
            return Err(RowFault::NullKey(plan.key_name.clone()));
        }
        let key = plan.key_codec.encode(&row, plan.key, &mut scratch)?;
        if key.is_empty() {
            return Err(RowFault::EmptyKey(plan.key_name.clone()));
        }
        entry.row_key(key);
        match row.kind() {
            RowKind::Insert | RowKind::UpdateAfter => {}
            RowKind::Delete => {
                entry.delete_row();
                return Ok(());
            }
            RowKind::UpdateBefore => return Err(RowFault::UpdateBefore),
        }
        let timestamp = plan.timestamp(&row)?;
        let mut written = false;
        for family in &plan.families {
            if row.is_null(family.field) {
                continue;
            }
            written = true;
            let cells = row.row(family.field, family.qualifiers.len())?;
            for (field, qualifier) in family.qualifiers.iter().enumerate() {
                let value = if !cells.is_null(field) {
                    qualifier.codec.encode(&cells, field, &mut scratch)?
                } else if qualifier.nullable {
                    qualifier.codec.null(&plan.null_literal)
                } else {
                    let column = format!("{}.{}", family.name, qualifier.name);
                    return Err(RowFault::NullColumn(column));
                };
                let name = qualifier.name.as_bytes();
                if plan.mode == WriteMode::KeepLatest {
                    entry.delete_cells(&family.name, name, ..);
                }
                match timestamp {
                    Some(micros) => entry.set_cell(&family.name, name, micros, value),
                    None => entry.set_cell_now(&family.name, name, value),
                };
            }
        }
        if written {
            Ok(())
        } else {
            Err(RowFault::NoFamily)
        }
    }
}

impl Plan {
    /// The row's own timestamp in microseconds, if it has one.
    #[inline]
    fn timestamp(&self, row: &RowRef<'_>) -> Result<Option<i64>, RowFault> {
        let Some(field) = self.timestamp.filter(|field| !row.is_null(*field)) else {
            return Ok(None);
        };
        let micros = row
            .time(field, metadata::TIMESTAMP_PRECISION)?
            .micros()
            .ok_or(RowFault::FarTime)?;
        if micros < 0 {
            return Err(RowFault::BeforeEpoch);
        }
        Ok(Some(if self.truncate {
            micros - micros % 1_000
        } else {
            micros
        }))
    }
}

impl MutationSerializer<Row> for RowSerializer {
    fn serialize(
        &mut self,
        record: &Row,
        _: RecordInfo,
        entry: &mut RowMutationEntry,
    ) -> Result<Disposition, BoxError> {
        self.fill(record, entry)?;
        Ok(Disposition::Write)
    }
}

/// Why a row's table is none. The name is the row's data and is not shown.
#[derive(Debug, thiserror::Error)]
enum TableFault {
    #[error(
        "the metadata column 'table' of a row is no plain name of a table: it is blank, holds '/' or has white space at an edge"
    )]
    Name,
    #[error("the host handed over a row that cannot be read")]
    Row(#[from] RowError),
}

/// Sends each row to the table that its metadata column names.
#[derive(Clone)]
struct ByTableColumn {
    arity: usize,
    field: usize,
    default: TableDestination,
    known: HashMap<Box<str>, TableDestination>,
}

impl DestinationResolver<Row> for ByTableColumn {
    fn resolve(
        &mut self,
        record: &Row,
        _: RecordInfo,
    ) -> Result<Option<TableDestination>, BoxError> {
        let row = record.view(self.arity).map_err(TableFault::Row)?;
        if row.is_null(self.field) {
            return Ok(Some(self.default.clone()));
        }
        let name = row.str(self.field).map_err(TableFault::Row)?;
        if let Some(known) = self.known.get(name) {
            return Ok(Some(known.clone()));
        }
        let table = TableDestination::of(self.default.project(), self.default.instance(), name)
            .map_err(|_| TableFault::Name)?;
        if self.known.len() == KNOWN_TABLES {
            self.known.clear();
        }
        self.known.insert(name.into(), table.clone());
        Ok(Some(table))
    }
}

/// Whether the query makes more than inserts.
fn updates(plan: &SinkPlan) -> bool {
    plan.kinds.iter().any(|kind| *kind != RowKind::Insert)
}

/// The order that the option asks for, or that the input needs.
pub(super) fn ordering(settings: &Settings, plan: &SinkPlan) -> RowOrdering {
    settings.sink.ordering.unwrap_or(if updates(plan) {
        RowOrdering::PerRow
    } else {
        RowOrdering::None
    })
}

/// The kinds of rows that the sink takes.
pub(super) fn accepts(settings: &Settings, plan: &SinkPlan) -> Vec<RowKind> {
    if !updates(plan) && settings.sink.insert_only == InsertOnlyInput::InsertOnly {
        vec![RowKind::Insert]
    } else {
        vec![RowKind::Insert, RowKind::UpdateAfter, RowKind::Delete]
    }
}

/// The sink of a table, with everything checked.
pub(super) fn sink(settings: &Settings, plan: &SinkPlan) -> Result<BigtableSink<Row>, ConfigError> {
    let schema = &settings.schema;
    schema.check_writable()?;
    let written = metadata::written(&plan.metadata, schema.columns)?;
    let arity = schema.columns + plan.metadata.len();
    let families = schema.families.iter().map(|family| FamilyPlan {
        field: family.column,
        name: family.name.as_str().into(),
        qualifiers: family
            .qualifiers
            .iter()
            .map(|qualifier| QualifierPlan {
                name: qualifier.name.as_str().into(),
                codec: qualifier.codec,
                nullable: qualifier.nullable,
            })
            .collect(),
    });
    let serializer = RowSerializer(Arc::new(Plan {
        arity,
        key: schema.key.column,
        key_name: schema.key.name.clone(),
        key_codec: schema.key.codec,
        families: families.collect(),
        timestamp: written.timestamp,
        truncate: settings.sink.truncate,
        mode: settings.sink.mode,
        null_literal: settings.null_literal.as_bytes().into(),
    }));
    let mut builder = BigtableSink::<Row>::builder()
        .serializer(serializer)
        .writer_options(settings.sink.writer.clone())
        .row_ordering(ordering(settings, plan));
    builder = match written.table {
        None => builder.table(settings.destination.clone()),
        Some(field) => builder.destination_resolver(ByTableColumn {
            arity,
            field,
            default: settings.destination.clone(),
            known: HashMap::new(),
        }),
    };
    if let Some(profile) = &settings.sink.app_profile {
        builder = builder.app_profile_id(profile);
    }
    if let Some(path) = &settings.key_file {
        builder = builder.service_account_key_file(path);
    }
    if let Some(address) = &settings.emulator {
        builder = builder.emulator_endpoint(address);
    }
    if let Some(create) = &settings.sink.create {
        builder = builder
            .create_disposition(CreateDisposition::CreateIfNeeded)
            .table_create_options(create.clone());
    }
    builder
        .build()
        .map_err(|error| config_error(&error, TABLE.key()))
}
