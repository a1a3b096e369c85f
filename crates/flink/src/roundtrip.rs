//! Reads rows and writes them anew, value by value: how tests on the Java side show that both sides mean the same layout.

use aqueduct_connector::row::{ArrayRef, ArrayWriter, RowBatch, RowError, RowRef, RowWriter};
use aqueduct_connector::types::{DataType, LogicalType};
use aqueduct_connector::{Error, Result};

/// Decodes the bytes of one row of `types` and encodes it again.
pub(crate) fn reencode_bytes(types: &[LogicalType], row: &[u8]) -> Result<Vec<u8>> {
    reencode(types, RowRef::new(row, types.len()).map_err(damaged)?)
}

fn damaged(error: RowError) -> Error {
    Error::data("the row cannot be read").with_source(error)
}

/// Decodes one row of `types` and encodes it again, with every field but the nulls set anew.
pub(crate) fn reencode(types: &[LogicalType], row: RowRef<'_>) -> Result<Vec<u8>> {
    let mut batch = RowBatch::new();
    batch
        .try_push(None, row.kind(), types.len(), |out| {
            fields(types, &row, out)
        })
        .map_err(damaged)?;
    let written = batch.iter().next().map(|row| row.bytes.to_vec());
    written.ok_or_else(|| Error::bug("a batch lost its row"))
}

pub(crate) fn fields(
    types: &[LogicalType],
    row: &RowRef<'_>,
    out: &mut RowWriter<'_>,
) -> Result<(), RowError> {
    for (at, ty) in types.iter().enumerate() {
        if !row.is_null(at) {
            field(&ty.data, at, row, out)?;
        }
    }
    Ok(())
}

/// Copies entry `at` of type `ty`; the same words for rows and arrays, which share no trait.
macro_rules! copy {
    ($ty:expr, $at:expr, $from:expr, $to:expr) => {{
        let (ty, at, from, to) = ($ty, $at, $from, $to);
        match ty {
            DataType::Boolean => to.bool(at, from.bool(at)),
            DataType::TinyInt => to.i8(at, from.i8(at)),
            DataType::SmallInt => to.i16(at, from.i16(at)),
            DataType::Int | DataType::Date | DataType::Time(_) | DataType::IntervalYearMonth => {
                to.i32(at, from.i32(at));
            }
            DataType::BigInt | DataType::IntervalDayTime => to.i64(at, from.i64(at)),
            DataType::Float => to.f32(at, from.f32(at)),
            DataType::Double => to.f64(at, from.f64(at)),
            DataType::Char(_) | DataType::VarChar(_) => to.str(at, from.str(at)?),
            DataType::Binary(_) | DataType::VarBinary(_) => to.bytes(at, from.bytes(at)?),
            DataType::Decimal { precision, scale } => {
                to.decimal(at, from.decimal(at, *precision, *scale)?, *precision);
            }
            DataType::Timestamp(precision)
            | DataType::TimestampLtz(precision)
            | DataType::TimestampTz(precision) => {
                to.time(at, from.time(at, *precision)?, *precision);
            }
            DataType::Row(parts) => {
                let types: Vec<LogicalType> = parts.iter().map(|part| part.ty.clone()).collect();
                let inner = from.row(at, types.len())?;
                let mut result = Ok(());
                to.row(at, types.len(), |out| result = fields(&types, &inner, out));
                result?;
            }
            DataType::Array(element) => {
                let inner = from.array(at, &element.data)?;
                let mut result = Ok(());
                to.array(at, &element.data, inner.len(), |out| {
                    result = elements(&element.data, &inner, out);
                });
                result?;
            }
            DataType::Map(key, value) => {
                map(
                    (&key.data, &value.data),
                    at,
                    |ty| from.map(at, ty.0, ty.1),
                    |at, ty, length, keys, values| {
                        to.map(at, ty, length, keys, values);
                    },
                )?;
            }
            DataType::Multiset(element) => {
                map(
                    (&element.data, &DataType::Int),
                    at,
                    |ty| from.map(at, ty.0, ty.1),
                    |at, ty, length, keys, values| {
                        to.map(at, ty, length, keys, values);
                    },
                )?;
            }
            // No table has these; a row with one comes back with a null there.
            _ => {}
        }
        Ok(())
    }};
}

type Types<'a> = (&'a DataType, &'a DataType);
type Fill<'a> = &'a mut dyn FnMut(&mut ArrayWriter<'_>);

fn map<'a>(
    types: Types<'_>,
    at: usize,
    read: impl FnOnce(Types<'_>) -> Result<aqueduct_connector::row::MapRef<'a>, RowError>,
    write: impl FnOnce(usize, Types<'_>, usize, Fill<'_>, Fill<'_>),
) -> Result<(), RowError> {
    let inner = read(types)?;
    let (mut keys, mut values) = (Ok(()), Ok(()));
    write(
        at,
        types,
        inner.len(),
        &mut |out| keys = elements(types.0, &inner.keys, out),
        &mut |out| values = elements(types.1, &inner.values, out),
    );
    keys.and(values)
}

fn field(
    ty: &DataType,
    at: usize,
    from: &RowRef<'_>,
    to: &mut RowWriter<'_>,
) -> Result<(), RowError> {
    copy!(ty, at, from, to)
}

fn element(
    ty: &DataType,
    at: usize,
    from: &ArrayRef<'_>,
    to: &mut ArrayWriter<'_>,
) -> Result<(), RowError> {
    copy!(ty, at, from, to)
}

fn elements(ty: &DataType, from: &ArrayRef<'_>, to: &mut ArrayWriter<'_>) -> Result<(), RowError> {
    for at in 0..from.len() {
        if !from.is_null(at) {
            element(ty, at, from, to)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use aqueduct_connector::row::RowKind;

    use super::*;

    #[test]
    fn what_comes_back_reads_as_what_went_in_and_keeps_its_kind() {
        let types: Vec<LogicalType> = [
            "BIGINT",
            "STRING",
            "ARRAY<ROW<a DECIMAL(38, 10)>>",
            "MAP<STRING, INT>",
        ]
        .iter()
        .map(|text| LogicalType::parse(text).expect("a type"))
        .collect();
        let mut batch = RowBatch::new();
        let DataType::Array(row) = &types[2].data else {
            unreachable!("as spelt")
        };
        batch.push(None, RowKind::Delete, 4, |out| {
            out.i64(0, i64::MIN);
            out.array(2, &row.data, 2, |out| out.row(1, 1, |_| {}));
            out.map(
                3,
                (&DataType::string(), &DataType::Int),
                1,
                |out| out.str(0, "a key 𝄞"),
                |_| {},
            );
        });
        let bytes = batch.iter().next().expect("the row").bytes.to_vec();
        let again = reencode_bytes(&types, &bytes).expect("reads");
        let row = RowRef::new(&again, 4).expect("a row");
        assert_eq!(
            (row.kind(), row.i64(0), row.is_null(1)),
            (RowKind::Delete, i64::MIN, true)
        );
        let map = row
            .map(3, &DataType::string(), &DataType::Int)
            .expect("a map");
        assert_eq!(
            (map.keys.str(0), map.values.is_null(0)),
            (Ok("a key 𝄞"), true)
        );
        assert!(reencode_bytes(&types, &bytes[..20]).is_err());
    }
}
