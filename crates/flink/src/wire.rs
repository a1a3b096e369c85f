//! Bytes between Java and this library: tables with what a query wants of them, contexts, splits, commands.
//!
//! Little-endian, in the codec of [`aqueduct_connector::state`]; `Wire` is its Java side. A table with its plan travels in
//! the job graph from a client to a cluster, so it begins with a version, and one that is not ours is refused by name.

use std::collections::BTreeMap;

use aqueduct_connector::Versioned;
use aqueduct_connector::options::ConfigError;
use aqueduct_connector::row::{Decimal, RowKind, RowTime};
use aqueduct_connector::source::{EnumeratorCommand, Split, SplitId};
use aqueduct_connector::state::{StateError, StateReader, StateWriter};
use aqueduct_connector::table::{
    Column, Compare, FieldPath, Filter, Literal, LookupPlan, ScanPlan, SinkPlan, TableSpec,
};
use aqueduct_connector::types::LogicalType;
use bytes::Bytes;

use crate::errors::Failure;

/// Version of a table with its plan. A change of its format is a new version.
const TABLE_VERSION: u32 = 1;

/// A table and what a query wants of it.
pub(crate) struct Request {
    /// The value of `connector`.
    pub(crate) connector: String,
    /// The table.
    pub(crate) table: TableSpec,
    /// What is wanted.
    pub(crate) plan: Plan,
}

/// What a query wants of a table.
#[derive(Debug, PartialEq)]
pub(crate) enum Plan {
    Sink(SinkPlan),
    Scan(ScanPlan),
    Filters(Vec<Filter>),
    Lookup(LookupPlan),
}

/// Reads a message that has no version: it never leaves the process.
pub(crate) fn message<'a>(value: &'a Versioned) -> Result<StateReader<'a>, StateError> {
    StateReader::open("a message of the Java classes", value, 0..=0)
}

/// The bytes of a message without version.
pub(crate) fn unversioned(bytes: impl Into<Bytes>) -> Versioned {
    Versioned::new(0, bytes)
}

impl Request {
    /// Reads what `TableDescription` wrote.
    pub(crate) fn decode(bytes: Vec<u8>) -> Result<Self, Failure> {
        const WHAT: &str = "the table of the job";
        let outer = unversioned(bytes);
        let mut reader = StateReader::open(WHAT, &outer, 0..=0)?;
        let version = reader.u32()?;
        let inner = Versioned::new(version, reader.bytes()?);
        reader.finish()?;
        let mut reader = StateReader::open(WHAT, &inner, TABLE_VERSION..=TABLE_VERSION)?;
        let connector = reader.text()?.to_owned();
        let name = reader.text()?.to_owned();
        let columns = list(&mut reader, 8, |reader| Ok((text(reader)?, text(reader)?)))?;
        let primary_key = list(&mut reader, 4, text)?;
        let options = list(&mut reader, 8, |reader| Ok((text(reader)?, text(reader)?)))?;
        let plan = plan(&mut reader)?;
        reader.finish()?;
        let columns = columns
            .into_iter()
            .map(|(name, ty)| match LogicalType::parse(&ty) {
                Ok(ty) => Ok(Column { name, ty }),
                Err(error) => Err(ConfigError::column(name, error.to_string())),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            connector,
            table: TableSpec {
                name,
                columns,
                primary_key,
                options: options.into_iter().collect::<BTreeMap<_, _>>(),
            },
            plan,
        })
    }
}

fn plan(reader: &mut StateReader<'_>) -> Result<Plan, StateError> {
    Ok(match reader.u8()? {
        1 => Plan::Sink(SinkPlan {
            kinds: list(reader, 1, kind)?,
            metadata: list(reader, 4, text)?,
            parallelism: some_unless_zero(reader.u32()?),
        }),
        2 => Plan::Scan(ScanPlan {
            fields: optional(reader, |reader| list(reader, 4, path))?,
            metadata: list(reader, 4, text)?,
            filters: list(reader, 5, filter)?,
            limit: optional(reader, StateReader::u64)?,
        }),
        3 => Plan::Filters(list(reader, 5, filter)?),
        4 => Plan::Lookup(LookupPlan {
            keys: list(reader, 4, path)?,
            fields: optional(reader, |reader| list(reader, 4, path))?,
        }),
        _ => return Err(reader.damaged("no such plan")),
    })
}

fn some_unless_zero(number: u32) -> Option<u32> {
    (number > 0).then_some(number)
}

/// A count and so many items of at least `size` bytes.
pub(crate) fn list<'a, T>(
    reader: &mut StateReader<'a>,
    size: usize,
    mut item: impl FnMut(&mut StateReader<'a>) -> Result<T, StateError>,
) -> Result<Vec<T>, StateError> {
    let count = reader.count(size)?;
    (0..count).map(|_| item(reader)).collect()
}

fn optional<'a, T>(
    reader: &mut StateReader<'a>,
    item: impl FnOnce(&mut StateReader<'a>) -> Result<T, StateError>,
) -> Result<Option<T>, StateError> {
    match reader.u8()? {
        0 => Ok(None),
        1 => item(reader).map(Some),
        _ => Err(reader.damaged("neither there nor not there")),
    }
}

pub(crate) fn text(reader: &mut StateReader<'_>) -> Result<String, StateError> {
    reader.text().map(ToOwned::to_owned)
}

fn kind(reader: &mut StateReader<'_>) -> Result<RowKind, StateError> {
    RowKind::from_byte(reader.u8()?).ok_or_else(|| reader.damaged("no such kind of row"))
}

fn path(reader: &mut StateReader<'_>) -> Result<FieldPath, StateError> {
    list(reader, 4, |reader| Ok(reader.u32()? as usize)).map(FieldPath)
}

fn filter(reader: &mut StateReader<'_>) -> Result<Filter, StateError> {
    Ok(match reader.u8()? {
        0 => Filter::Compare {
            field: path(reader)?,
            op: compare(reader)?,
            value: literal(reader)?,
        },
        1 => Filter::In {
            field: path(reader)?,
            values: list(reader, 2, literal)?,
        },
        2 => Filter::IsNull(path(reader)?),
        3 => Filter::IsNotNull(path(reader)?),
        _ => return Err(reader.damaged("no such condition")),
    })
}

fn compare(reader: &mut StateReader<'_>) -> Result<Compare, StateError> {
    Ok(match reader.u8()? {
        0 => Compare::Equal,
        1 => Compare::NotEqual,
        2 => Compare::Less,
        3 => Compare::LessOrEqual,
        4 => Compare::Greater,
        5 => Compare::GreaterOrEqual,
        _ => return Err(reader.damaged("no such comparison")),
    })
}

fn literal(reader: &mut StateReader<'_>) -> Result<Literal, StateError> {
    Ok(match reader.u8()? {
        0 => Literal::Bool(reader.u8()? != 0),
        1 => Literal::Int(reader.i64()?),
        2 => Literal::Float(f64::from_bits(reader.u64()?)),
        3 => {
            let (low, high) = (reader.u64()?, reader.i64()?);
            Literal::Decimal(Decimal {
                unscaled: i128::from(high) << 64 | i128::from(low),
                scale: reader.u8()?,
            })
        }
        4 => Literal::Text(text(reader)?),
        5 => Literal::Bytes(reader.bytes()?.to_vec()),
        6 => Literal::Time(RowTime {
            millis: reader.i64()?,
            nanos: reader.u32()?,
        }),
        _ => return Err(reader.damaged("no such value")),
    })
}

/// Kinds of rows.
pub(crate) fn put_kinds(writer: &mut StateWriter, kinds: &[RowKind]) {
    writer.count(kinds.len());
    for kind in kinds {
        writer.u8(*kind as u8);
    }
}

/// Splits as readers and checkpoints get them.
pub(crate) fn put_splits(writer: &mut StateWriter, splits: &[Split]) {
    writer.count(splits.len());
    for split in splits {
        writer.text(split.id.as_str()).versioned(&split.state);
    }
}

/// What [`put_splits`] wrote.
pub(crate) fn splits(reader: &mut StateReader<'_>) -> Result<Vec<Split>, StateError> {
    list(reader, 12, |reader| {
        Ok(Split {
            id: SplitId::new(reader.text()?),
            state: reader.versioned()?,
        })
    })
}

/// Names of splits.
pub(crate) fn split_ids(reader: &mut StateReader<'_>) -> Result<Vec<SplitId>, StateError> {
    list(reader, 4, |reader| Ok(SplitId::new(reader.text()?)))
}

/// What an enumerator wants done.
pub(crate) fn put_command(writer: &mut StateWriter, command: &EnumeratorCommand) {
    match command {
        EnumeratorCommand::Assign { reader, splits } => {
            writer.u8(0).u32(*reader);
            put_splits(writer, splits);
        }
        EnumeratorCommand::NoMoreSplits { reader } => {
            writer.u8(1).u32(*reader);
        }
        EnumeratorCommand::Event { reader, event } => {
            writer.u8(2).u32(*reader).versioned(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(version: u32, body: &mut StateWriter) -> Vec<u8> {
        let body = body.finish(0);
        StateWriter::new()
            .u32(version)
            .bytes(&body.bytes)
            .finish(0)
            .bytes
            .to_vec()
    }

    /// What `TableDescription` in Java writes; its `WireTest` reads the same fields.
    fn sample() -> StateWriter {
        let mut writer = StateWriter::new();
        writer.text("pubsub").text("cat.db.t");
        writer.count(2).text("id").text("BIGINT NOT NULL");
        writer.text("r").text("ROW<`a` STRING>");
        writer.count(1).text("id");
        writer.count(1).text("topic").text("orders");
        writer.u8(2);
        writer.u8(1).count(2).count(1).u32(0).count(2).u32(1).u32(0);
        writer.count(1).text("message-id");
        writer.count(4);
        writer.u8(0).count(1).u32(0).u8(4).u8(1).i64(-5);
        writer.u8(1).count(2).u32(1).u32(0).count(2);
        writer.u8(4).text("x").u8(5).bytes(&[0, 255]);
        writer.u8(2).count(1).u32(1);
        writer
            .u8(0)
            .count(1)
            .u32(0)
            .u8(0)
            .u8(3)
            .u64(u64::MAX)
            .i64(-1)
            .u8(2);
        writer.u8(1).u64(10);
        writer
    }

    #[test]
    fn a_scan_reads_back_as_it_was_meant() {
        let request =
            Request::decode(request(1, &mut sample())).unwrap_or_else(|_| panic!("reads"));
        assert_eq!(request.connector, "pubsub");
        assert_eq!(request.table.name, "cat.db.t");
        assert_eq!(request.table.columns[0].ty.to_string(), "BIGINT NOT NULL");
        assert_eq!(request.table.primary_key, ["id"]);
        assert_eq!(request.table.options["topic"], "orders");
        let id = || FieldPath(vec![0]);
        let plan = Plan::Scan(ScanPlan {
            fields: Some(vec![id(), FieldPath(vec![1, 0])]),
            metadata: vec!["message-id".to_owned()],
            filters: vec![
                Filter::Compare {
                    field: id(),
                    op: Compare::Greater,
                    value: Literal::Int(-5),
                },
                Filter::In {
                    field: FieldPath(vec![1, 0]),
                    values: vec![Literal::Text("x".to_owned()), Literal::Bytes(vec![0, 255])],
                },
                Filter::IsNull(FieldPath(vec![1])),
                Filter::Compare {
                    field: id(),
                    op: Compare::Equal,
                    value: Literal::Decimal(Decimal {
                        unscaled: -1,
                        scale: 2,
                    }),
                },
            ],
            limit: Some(10),
        });
        assert_eq!(request.plan, plan);
    }

    #[test]
    fn another_version_is_refused_by_name_and_cut_bytes_are_refused() {
        let Err(Failure::Connector(error)) = Request::decode(request(2, &mut sample())) else {
            panic!("refused");
        };
        assert!(error.to_string().contains("version 2"), "{error}");
        let whole = sample().finish(0).bytes;
        for length in 0..whole.len() {
            let bytes = StateWriter::new()
                .u32(1)
                .bytes(&whole[..length])
                .finish(0)
                .bytes
                .to_vec();
            assert!(Request::decode(bytes).is_err(), "cut at {length}");
        }
    }

    #[test]
    fn a_column_of_no_type_is_named() {
        let mut writer = StateWriter::new();
        writer
            .text("pubsub")
            .text("t")
            .count(1)
            .text("price")
            .text("MONEY(");
        writer.count(0).count(0).u8(3).count(0);
        let Err(Failure::Connector(error)) = Request::decode(request(1, &mut writer)) else {
            panic!("refused");
        };
        assert!(error.to_string().contains("'price'"), "{error}");
    }

    #[test]
    fn splits_read_back() {
        let all = vec![
            Split {
                id: SplitId::new("a"),
                state: Versioned::new(3, vec![1, 2]),
            },
            Split {
                id: SplitId::new("b/ü"),
                state: Versioned::new(1, Vec::new()),
            },
        ];
        let mut writer = StateWriter::new();
        put_splits(&mut writer, &all);
        let value = writer.finish(0);
        let mut reader = message(&value).expect("no version");
        assert_eq!(splits(&mut reader), Ok(all));
        assert_eq!(reader.finish(), Ok(()));
    }
}
