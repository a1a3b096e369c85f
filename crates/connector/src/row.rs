//! Rows in the binary layout that crosses between a host and a table.
//!
//! The layout is Apache Flink's binary row, because there rows arrive in it anyway; a host with another representation
//! encodes into it. Values are read in place ([`RowRef`]) and written straight into a batch ([`RowBatch`]); nothing here
//! allocates per row.
//!
//! ```
//! use aqueduct_connector::row::{RowBatch, RowKind, RowRef};
//!
//! let mut batch = RowBatch::new();
//! batch.push(None, RowKind::Insert, 2, |row| {
//!     row.i64(0, 42);
//!     row.str(1, "forty-two");
//! });
//! let bytes = batch.iter().next().expect("one row").bytes;
//! let row = RowRef::new(bytes, 2)?;
//! assert_eq!((row.i64(0), row.str(1)?), (42, "forty-two"));
//! # Ok::<(), aqueduct_connector::row::RowError>(())
//! ```
//!
//! # Layout
//!
//! Numbers are in the machine's byte order. A row begins with the [`RowKind`] in byte 0 and the null bits from bit 8 on,
//! rounded up to 8 bytes; then a slot of 8 bytes a field; then what does not fit a slot, each piece padded to 8 bytes.
//!
//! | type | slot | behind the slots |
//! | --- | --- | --- |
//! | booleans, integers, floats, dates, times, intervals | the value in the low bytes | |
//! | strings and bytes up to 7 bytes | the bytes, and `0x80 + length` in the last | |
//! | longer ones, rows, arrays, maps | offset from the row's start in the high half, size in the low | the bytes |
//! | decimals up to 18 digits | unscaled value | |
//! | longer decimals | offset and size | unscaled value, big-endian two's complement, in 16 reserved bytes |
//! | timestamps up to precision 3 | milliseconds | |
//! | finer ones | offset, and nanoseconds within the millisecond | milliseconds |
//!
//! An array is its length (4 bytes), null bits in words of 4 bytes, then elements at their natural width, with offsets
//! from the array's own start. A map is the size of its key array (4 bytes), the key array and the value array.

mod read;
#[cfg(test)]
mod tests;
mod write;

use bytes::Bytes;

use crate::clock::Timestamp;

pub use read::{ArrayRef, MapRef, RowError, RowRef};
pub use write::{ArrayWriter, BatchRow, RowBatch, RowWriter};

/// What a row does to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RowKind {
    /// A new row.
    Insert = 0,
    /// The old contents of a row that changes.
    UpdateBefore = 1,
    /// The new contents of a row that changes.
    UpdateAfter = 2,
    /// The row goes.
    Delete = 3,
}

impl RowKind {
    /// From byte 0 of a row.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Insert),
            1 => Some(Self::UpdateBefore),
            2 => Some(Self::UpdateAfter),
            3 => Some(Self::Delete),
            _ => None,
        }
    }

    /// As changelogs are printed: `+I`, `-U`, `+U`, `-D`.
    #[must_use]
    pub const fn short(self) -> &'static str {
        match self {
            Self::Insert => "+I",
            Self::UpdateBefore => "-U",
            Self::UpdateAfter => "+U",
            Self::Delete => "-D",
        }
    }
}

/// A date and time to the nanosecond, with or without a zone as its column says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowTime {
    /// Milliseconds since 1970-01-01T00:00.
    pub millis: i64,
    /// Nanoseconds within that millisecond, 0 to 999,999.
    pub nanos: u32,
}

impl RowTime {
    /// A whole millisecond.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self { millis, nanos: 0 }
    }

    /// Microseconds since the epoch, rounded down; `None` beyond 64 bits.
    #[must_use]
    pub fn micros(self) -> Option<i64> {
        self.millis
            .checked_mul(1_000)?
            .checked_add(i64::from(self.nanos / 1_000))
    }

    /// From microseconds since the epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the remainder is 0 to 999")]
        let nanos = micros.rem_euclid(1_000) as u32 * 1_000;
        Self {
            millis: micros.div_euclid(1_000),
            nanos,
        }
    }
}

/// An exact decimal number, `unscaled` times ten to the power of minus the column's scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decimal {
    /// All digits.
    pub unscaled: i128,
    /// How many of them are behind the point.
    pub scale: u8,
}

impl Decimal {
    /// Whether `unscaled` has at most `precision` digits.
    #[must_use]
    pub fn fits(self, precision: u8) -> bool {
        self.unscaled.unsigned_abs() < 10_u128.pow(u32::from(precision.min(38)))
    }
}

/// A row that owns its share of a batch: the record type of every table's sink. Cloning shares.
#[derive(Clone)]
pub struct Row {
    bytes: Bytes,
}

impl Row {
    /// Takes the bytes of one row; [`view`](Self::view) checks them.
    #[must_use]
    pub const fn new(bytes: Bytes) -> Self {
        Self { bytes }
    }

    /// The row with `arity` fields.
    ///
    /// # Errors
    ///
    /// If the bytes are too few for so many fields.
    pub fn view(&self, arity: usize) -> Result<RowRef<'_>, RowError> {
        RowRef::new(&self.bytes, arity)
    }

    /// Its size.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are no bytes, which no row of ours has.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl std::fmt::Debug for Row {
    /// Its size only: contents are the user's.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Row({} bytes)", self.bytes.len())
    }
}

/// Bytes of the null bits of a row, kind included.
const fn header(arity: usize) -> usize {
    (arity + 8).div_ceil(64) * 8
}

/// Bytes before the part of variable size.
const fn fixed(arity: usize) -> usize {
    header(arity) + arity * 8
}

/// Bytes before the elements of an array.
const fn array_header(length: usize) -> usize {
    4 + length.div_ceil(32) * 4
}

/// `None` travels as the least value.
const NO_TIME: i64 = i64::MIN;

fn time_to_wire(timestamp: Option<Timestamp>) -> i64 {
    timestamp.map_or(NO_TIME, Timestamp::millis)
}

fn time_from_wire(millis: i64) -> Option<Timestamp> {
    (millis != NO_TIME).then(|| Timestamp::from_millis(millis))
}
