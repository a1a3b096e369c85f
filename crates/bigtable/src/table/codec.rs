//! How a column's value lies in a cell or a row key: the byte layout of HBase's `Bytes`, big-endian throughout.
//!
//! # Invariants
//!
//! - What [`Codec::encode`] writes, [`Codec::decode`] reads back unchanged.
//! - Nothing is allocated: a value is either bytes of the row itself or fits [`Scratch`].
//! - A fault says what was expected and how long the bytes were, and nothing of their content.

use aqueduct_connector::options::ConfigError;
use aqueduct_connector::row::{Decimal, RowError, RowRef, RowWriter};
use aqueduct_connector::types::{DataType, LogicalType};

#[cfg(test)]
mod tests;

/// Room for the longest value that is not bytes of the row: a decimal's scale and 16 bytes of digits.
pub(super) type Scratch = [u8; 20];

/// What becomes of bytes behind a value of fixed width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trailing {
    Ignore,
    Reject,
}

/// The layout of one column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Text,
    Bytes,
    Bool,
    I8,
    I16,
    /// `INT`, dates, times of day, months.
    I32,
    /// `BIGINT`, milliseconds of timestamps and intervals.
    I64,
    F32,
    F64,
    Decimal {
        precision: u8,
        scale: u8,
    },
}

/// Why bytes are no value of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("its value has {found} bytes, and the type takes {needed}")]
    Width { needed: usize, found: usize },
    #[error(
        "its value has {found} bytes, {needed} and more; 'decode.trailing-bytes' = 'IGNORE' reads the first {needed}"
    )]
    Trailing { needed: usize, found: usize },
    #[error("its value is not UTF-8; declare the column as BYTES")]
    NotUtf8,
    #[error(
        "its value has more digits than DECIMAL({precision}, {scale}) can hold; declare a wider type"
    )]
    Overflow { precision: u8, scale: u8 },
    #[error("the row has no value for it, and it is NOT NULL; declare it nullable")]
    Missing,
}

impl Codec {
    /// The layout of `ty`.
    pub(super) fn of(ty: &LogicalType, column: &str) -> Result<Self, ConfigError> {
        let refuse = |reason: &str| Err(ConfigError::column(column, format!("{ty} {reason}")));
        Ok(match ty.data {
            DataType::Char(_) | DataType::VarChar(_) => Self::Text,
            DataType::Binary(_) | DataType::VarBinary(_) => Self::Bytes,
            DataType::Boolean => Self::Bool,
            DataType::TinyInt => Self::I8,
            DataType::SmallInt => Self::I16,
            DataType::Int | DataType::Date | DataType::Time(..=3) | DataType::IntervalYearMonth => {
                Self::I32
            }
            DataType::BigInt
            | DataType::IntervalDayTime
            | DataType::Timestamp(..=3)
            | DataType::TimestampLtz(..=3) => Self::I64,
            DataType::Float => Self::F32,
            DataType::Double => Self::F64,
            DataType::Decimal { precision, scale } => Self::Decimal { precision, scale },
            DataType::Time(_) | DataType::Timestamp(_) | DataType::TimestampLtz(_) => {
                return refuse(
                    "is finer than the milliseconds that are stored; use a precision of 3 or less",
                );
            }
            DataType::TimestampTz(_) => {
                return refuse(
                    "cannot be stored; use TIMESTAMP_LTZ(3), or keep the zone in a column of its own",
                );
            }
            DataType::Row(_) => {
                return refuse(
                    "is nested too deep: a family is a ROW, and its columns are plain types",
                );
            }
            _ => {
                return refuse("cannot be stored; encode it into STRING or BYTES in the query");
            }
        })
    }

    /// The value of `field`, which is not null.
    #[inline]
    pub(super) fn encode<'a>(
        self,
        row: &RowRef<'a>,
        field: usize,
        scratch: &'a mut Scratch,
    ) -> Result<&'a [u8], RowError> {
        Ok(match self {
            Self::Text | Self::Bytes => return row.bytes(field),
            Self::Bool => put(scratch, [if row.bool(field) { 0xFF } else { 0 }]),
            Self::I8 => put(scratch, row.i8(field).to_be_bytes()),
            Self::I16 => put(scratch, row.i16(field).to_be_bytes()),
            Self::I32 => put(scratch, row.i32(field).to_be_bytes()),
            Self::I64 => put(scratch, row.i64(field).to_be_bytes()),
            Self::F32 => put(scratch, row.f32(field).to_be_bytes()),
            Self::F64 => put(scratch, row.f64(field).to_be_bytes()),
            Self::Decimal { precision, scale } => {
                put_decimal(scratch, row.decimal(field, precision, scale)?)
            }
        })
    }

    /// Sets `field` to the value in `bytes`.
    #[inline]
    pub(super) fn decode(
        self,
        bytes: &[u8],
        trailing: Trailing,
        row: &mut RowWriter<'_>,
        field: usize,
    ) -> Result<(), Fault> {
        match self {
            Self::Text => row.str(
                field,
                std::str::from_utf8(bytes).map_err(|_| Fault::NotUtf8)?,
            ),
            Self::Bytes => row.bytes(field, bytes),
            Self::Bool => match bytes {
                [byte] => row.bool(field, *byte != 0),
                _ => {
                    return Err(Fault::Width {
                        needed: 1,
                        found: bytes.len(),
                    });
                }
            },
            Self::I8 => row.i8(field, i8::from_be_bytes(fixed(bytes, trailing)?)),
            Self::I16 => row.i16(field, i16::from_be_bytes(fixed(bytes, trailing)?)),
            Self::I32 => row.i32(field, i32::from_be_bytes(fixed(bytes, trailing)?)),
            Self::I64 => row.i64(field, i64::from_be_bytes(fixed(bytes, trailing)?)),
            Self::F32 => row.f32(field, f32::from_be_bytes(fixed(bytes, trailing)?)),
            Self::F64 => row.f64(field, f64::from_be_bytes(fixed(bytes, trailing)?)),
            Self::Decimal { precision, scale } => {
                row.decimal(field, decimal(bytes, precision, scale)?, precision);
            }
        }
        Ok(())
    }

    /// Whether the cell of a nullable column holds null: the literal for strings, no byte for all others.
    #[inline]
    pub(super) fn is_null(self, bytes: &[u8], null_literal: &[u8]) -> bool {
        match self {
            Self::Text => bytes == null_literal,
            _ => bytes.is_empty(),
        }
    }

    /// What the cell of a nullable column holds for null.
    #[inline]
    pub(super) fn null(self, null_literal: &[u8]) -> &[u8] {
        match self {
            Self::Text => null_literal,
            _ => &[],
        }
    }
}

fn put<const N: usize>(scratch: &mut Scratch, value: [u8; N]) -> &[u8] {
    scratch[..N].copy_from_slice(&value);
    &scratch[..N]
}

fn fixed<const N: usize>(bytes: &[u8], trailing: Trailing) -> Result<[u8; N], Fault> {
    let (needed, found) = (N, bytes.len());
    match bytes.split_first_chunk::<N>() {
        None => Err(Fault::Width { needed, found }),
        Some((_, rest)) if trailing == Trailing::Reject && !rest.is_empty() => {
            Err(Fault::Trailing { needed, found })
        }
        Some((value, _)) => Ok(*value),
    }
}

/// Bytes at the front of a two's complement that only repeat its sign; the last byte always stays.
fn sign_bytes(digits: &[u8]) -> usize {
    let sign = match digits.first() {
        Some(first) if first & 0x80 != 0 => 0xFF,
        _ => 0,
    };
    digits
        .windows(2)
        .take_while(|pair| pair[0] == sign && (pair[1] ^ sign) & 0x80 == 0)
        .count()
}

/// The scale in 4 bytes, then the shortest two's complement of all digits.
fn put_decimal(scratch: &mut Scratch, value: Decimal) -> &[u8] {
    let digits = value.unscaled.to_be_bytes();
    let digits = &digits[sign_bytes(&digits)..];
    scratch[..4].copy_from_slice(&u32::from(value.scale).to_be_bytes());
    scratch[4..4 + digits.len()].copy_from_slice(digits);
    &scratch[..4 + digits.len()]
}

/// A decimal of any scale as one of the column's: digits that the column has no place for are rounded half away from
/// zero, as SQL casts them.
fn decimal(bytes: &[u8], precision: u8, scale: u8) -> Result<Decimal, Fault> {
    let overflow = Fault::Overflow { precision, scale };
    let Some((stored, digits)) = bytes
        .split_first_chunk::<4>()
        .filter(|(_, rest)| !rest.is_empty())
    else {
        return Err(Fault::Width {
            needed: 5,
            found: bytes.len(),
        });
    };
    let digits = &digits[sign_bytes(digits)..];
    if digits.len() > 16 {
        return Err(overflow);
    }
    let sign = if digits[0] & 0x80 == 0 { 0 } else { -1 };
    let value = digits
        .iter()
        .fold(sign, |value: i128, byte| value << 8 | i128::from(*byte));
    let surplus = i64::from(i32::from_be_bytes(*stored)) - i64::from(scale);
    let unscaled = match u32::try_from(surplus) {
        // 39 digits at most, so beyond 38 places nothing rounds up to one.
        Ok(39..) => 0,
        Ok(places) => {
            let unit = 10_i128.pow(places);
            let rest = (value % unit).unsigned_abs();
            let up = rest * 2 >= unit.unsigned_abs();
            value / unit + if up { value.signum() } else { 0 }
        }
        Err(_) if value == 0 => 0,
        Err(_) => u32::try_from(-surplus)
            .ok()
            .and_then(|places| 10_i128.checked_pow(places))
            .and_then(|unit| value.checked_mul(unit))
            .ok_or(overflow)?,
    };
    let value = Decimal { unscaled, scale };
    if value.fits(precision) {
        Ok(value)
    } else {
        Err(overflow)
    }
}
