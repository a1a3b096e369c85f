//! Types of table columns, and the SQL text they are written in.
//!
//! A [`LogicalType`] is what a `CREATE TABLE` says of a column. Hosts hand it over as SQL text (`DECIMAL(10, 2) NOT NULL`,
//! ``ROW<`city` STRING, `zip` INT>``), the form that Flink itself prints and reads, so [`LogicalType::parse`] serves
//! every host and [`Display`](std::fmt::Display) gives back text that parses to the same type.

mod parse;
#[cfg(test)]
mod tests;

use std::fmt;

pub use parse::TypeError;

/// The longest `VARCHAR` and `VARBINARY`: what `STRING` and `BYTES` stand for.
pub const MAX_LENGTH: u32 = 2_147_483_647;

/// A column's type with its nullability.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogicalType {
    /// What values look like.
    pub data: DataType,
    /// Whether a value may be absent.
    pub nullable: bool,
}

/// What values of a column look like.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DataType {
    /// `BOOLEAN`
    Boolean,
    /// `TINYINT`: 8 bits, signed.
    TinyInt,
    /// `SMALLINT`: 16 bits, signed.
    SmallInt,
    /// `INT`: 32 bits, signed.
    Int,
    /// `BIGINT`: 64 bits, signed.
    BigInt,
    /// `FLOAT`: 32 bits.
    Float,
    /// `DOUBLE`: 64 bits.
    Double,
    /// `CHAR(n)`: exactly `n` characters.
    Char(u32),
    /// `VARCHAR(n)`: at most `n` characters; `STRING` is the longest.
    VarChar(u32),
    /// `BINARY(n)`: exactly `n` bytes.
    Binary(u32),
    /// `VARBINARY(n)`: at most `n` bytes; `BYTES` is the longest.
    VarBinary(u32),
    /// `DECIMAL(precision, scale)`: digits in all, and those after the point.
    Decimal {
        /// 1 to 38.
        precision: u8,
        /// 0 to `precision`.
        scale: u8,
    },
    /// `DATE`: days since 1970-01-01.
    Date,
    /// `TIME(p)`: time of day; values carry milliseconds.
    Time(u8),
    /// `TIMESTAMP(p)`: date and time without a zone.
    Timestamp(u8),
    /// `TIMESTAMP_LTZ(p)`: an instant, shown in the session's zone.
    TimestampLtz(u8),
    /// `TIMESTAMP(p) WITH TIME ZONE`.
    TimestampTz(u8),
    /// `INTERVAL YEAR TO MONTH` and its parts: months in 32 bits.
    IntervalYearMonth,
    /// `INTERVAL DAY TO SECOND` and its parts: milliseconds in 64 bits.
    IntervalDayTime,
    /// `ARRAY<T>`
    Array(Box<LogicalType>),
    /// `MAP<K, V>`
    Map(Box<LogicalType>, Box<LogicalType>),
    /// `MULTISET<T>`
    Multiset(Box<LogicalType>),
    /// `ROW<name type, ...>`
    Row(Vec<Field>),
    /// A type that no table here can use, with its text for error messages.
    Other(String),
}

/// A named part of a [`DataType::Row`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: LogicalType,
}

impl LogicalType {
    /// `data`, nullable.
    #[must_use]
    pub const fn nullable(data: DataType) -> Self {
        Self {
            data,
            nullable: true,
        }
    }

    /// `data`, never null.
    #[must_use]
    pub const fn not_null(data: DataType) -> Self {
        Self {
            data,
            nullable: false,
        }
    }

    /// Reads SQL text.
    ///
    /// # Errors
    ///
    /// [`TypeError`], with the text and what was expected where.
    pub fn parse(text: &str) -> Result<Self, TypeError> {
        parse::parse(text)
    }
}

impl DataType {
    /// `STRING`.
    #[must_use]
    pub const fn string() -> Self {
        Self::VarChar(MAX_LENGTH)
    }

    /// `BYTES`.
    #[must_use]
    pub const fn bytes() -> Self {
        Self::VarBinary(MAX_LENGTH)
    }

    /// Whether values fit the eight bytes of a slot in a binary row; all others lie behind the slots.
    #[must_use]
    pub const fn in_slot(&self) -> bool {
        matches!(
            self,
            Self::Boolean
                | Self::TinyInt
                | Self::SmallInt
                | Self::Int
                | Self::BigInt
                | Self::Float
                | Self::Double
                | Self::Date
                | Self::Time(_)
                | Self::IntervalYearMonth
                | Self::IntervalDayTime
                | Self::Decimal {
                    precision: ..=18,
                    ..
                }
                | Self::Timestamp(..=3)
                | Self::TimestampLtz(..=3)
        )
    }

    /// Bytes that an element of this type takes in the fixed part of an array.
    #[must_use]
    pub const fn element_width(&self) -> usize {
        match self {
            Self::Boolean | Self::TinyInt => 1,
            Self::SmallInt => 2,
            Self::Int | Self::Float | Self::Date | Self::Time(_) | Self::IntervalYearMonth => 4,
            _ => 8,
        }
    }
}

impl fmt::Display for LogicalType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.data.fmt(f)?;
        if self.nullable {
            Ok(())
        } else {
            f.write_str(" NOT NULL")
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean => f.write_str("BOOLEAN"),
            Self::TinyInt => f.write_str("TINYINT"),
            Self::SmallInt => f.write_str("SMALLINT"),
            Self::Int => f.write_str("INT"),
            Self::BigInt => f.write_str("BIGINT"),
            Self::Float => f.write_str("FLOAT"),
            Self::Double => f.write_str("DOUBLE"),
            Self::Char(length) => write!(f, "CHAR({length})"),
            Self::VarChar(MAX_LENGTH) => f.write_str("STRING"),
            Self::VarChar(length) => write!(f, "VARCHAR({length})"),
            Self::Binary(length) => write!(f, "BINARY({length})"),
            Self::VarBinary(MAX_LENGTH) => f.write_str("BYTES"),
            Self::VarBinary(length) => write!(f, "VARBINARY({length})"),
            Self::Decimal { precision, scale } => write!(f, "DECIMAL({precision}, {scale})"),
            Self::Date => f.write_str("DATE"),
            Self::Time(precision) => write!(f, "TIME({precision})"),
            Self::Timestamp(precision) => write!(f, "TIMESTAMP({precision})"),
            Self::TimestampLtz(precision) => write!(f, "TIMESTAMP_LTZ({precision})"),
            Self::TimestampTz(precision) => write!(f, "TIMESTAMP({precision}) WITH TIME ZONE"),
            Self::IntervalYearMonth => f.write_str("INTERVAL YEAR TO MONTH"),
            Self::IntervalDayTime => f.write_str("INTERVAL DAY TO SECOND"),
            Self::Array(element) => write!(f, "ARRAY<{element}>"),
            Self::Map(key, value) => write!(f, "MAP<{key}, {value}>"),
            Self::Multiset(element) => write!(f, "MULTISET<{element}>"),
            Self::Row(fields) => {
                f.write_str("ROW<")?;
                for (at, field) in fields.iter().enumerate() {
                    if at > 0 {
                        f.write_str(", ")?;
                    }
                    write!(f, "`{}` {}", field.name.replace('`', "``"), field.ty)?;
                }
                f.write_str(">")
            }
            Self::Other(text) => f.write_str(text),
        }
    }
}
