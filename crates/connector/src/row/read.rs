//! Reading rows in place, with every offset checked.

use std::fmt;

use super::{Decimal, RowKind, RowTime, array_header, fixed, header};
use crate::types::DataType;

/// Bytes that are no row, or not of the type read. Says where, never what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    /// Fewer bytes than the fixed part needs.
    #[error("a row or array of {length} entries does not fit {bytes} bytes")]
    Short {
        /// Fields or elements.
        length: usize,
        /// Bytes there are.
        bytes: usize,
    },
    /// A kind that is none.
    #[error("{0} is no kind of row")]
    Kind(u8),
    /// An offset or a size that leads out of the row.
    #[error("entry {0} lies outside its row or array")]
    Outside(usize),
    /// A string that is not UTF-8.
    #[error("entry {0} is a string and not UTF-8")]
    NotUtf8(usize),
}

/// A row being read. Field numbers count from 0; one that is not below the arity is a mistake of the caller and panics.
#[derive(Clone, Copy)]
pub struct RowRef<'a> {
    bytes: &'a [u8],
    arity: usize,
}

/// An array being read.
#[derive(Clone, Copy)]
pub struct ArrayRef<'a> {
    bytes: &'a [u8],
    length: usize,
    width: usize,
}

/// A map being read: keys and values side by side.
#[derive(Clone, Copy, Debug)]
pub struct MapRef<'a> {
    /// The keys.
    pub keys: ArrayRef<'a>,
    /// The values, in the keys' order.
    pub values: ArrayRef<'a>,
}

fn read<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Reads what a slot points to: bytes within itself, or elsewhere in the row.
fn variable(bytes: &[u8], at: usize, entry: usize) -> Result<&[u8], RowError> {
    let slot = u64::from_ne_bytes(read(bytes, at));
    if slot >> 63 == 1 {
        // The length is in the numerically highest byte, the text in the bytes as they lie in memory.
        let length = (slot >> 56) as usize & 0x7F;
        let start = if cfg!(target_endian = "little") {
            at
        } else {
            at + 1
        };
        return bytes
            .get(start..start + length.min(8))
            .filter(|_| length <= 7)
            .ok_or(RowError::Outside(entry));
    }
    let (offset, size) = parts(slot);
    bytes
        .get(offset..offset.saturating_add(size))
        .ok_or(RowError::Outside(entry))
}

const fn parts(slot: u64) -> (usize, usize) {
    ((slot >> 32) as usize, (slot & 0xFFFF_FFFF) as usize)
}

fn decimal(
    bytes: &[u8],
    at: usize,
    entry: usize,
    precision: u8,
    scale: u8,
) -> Result<Decimal, RowError> {
    let unscaled = if precision <= 18 {
        i128::from(i64::from_ne_bytes(read(bytes, at)))
    } else {
        let digits = variable(bytes, at, entry)?;
        let Some((first, _)) = digits.split_first().filter(|_| digits.len() <= 16) else {
            return Err(RowError::Outside(entry));
        };
        let sign = if *first & 0x80 == 0 { 0 } else { -1 };
        digits
            .iter()
            .fold(sign, |value: i128, byte| value << 8 | i128::from(*byte))
    };
    Ok(Decimal { unscaled, scale })
}

fn time(bytes: &[u8], at: usize, entry: usize, precision: u8) -> Result<RowTime, RowError> {
    if precision <= 3 {
        return Ok(RowTime::from_millis(i64::from_ne_bytes(read(bytes, at))));
    }
    let (offset, nanos) = parts(u64::from_ne_bytes(read(bytes, at)));
    let millis = bytes
        .get(offset..offset.saturating_add(8))
        .ok_or(RowError::Outside(entry))?;
    match u32::try_from(nanos) {
        Ok(nanos @ 0..=999_999) => Ok(RowTime {
            millis: i64::from_ne_bytes(read(millis, 0)),
            nanos,
        }),
        _ => Err(RowError::Outside(entry)),
    }
}

macro_rules! entries {
    () => {
        /// A `BOOLEAN`.
        #[must_use]
        pub fn bool(&self, entry: usize) -> bool {
            self.bytes[self.at(entry)] != 0
        }

        /// A `TINYINT`.
        #[must_use]
        pub fn i8(&self, entry: usize) -> i8 {
            i8::from_ne_bytes(read(self.bytes, self.at(entry)))
        }

        /// A `SMALLINT`.
        #[must_use]
        pub fn i16(&self, entry: usize) -> i16 {
            i16::from_ne_bytes(read(self.bytes, self.at(entry)))
        }

        /// An `INT`, a `DATE` (days), a `TIME` (milliseconds of the day) or months.
        #[must_use]
        pub fn i32(&self, entry: usize) -> i32 {
            i32::from_ne_bytes(read(self.bytes, self.at(entry)))
        }

        /// A `BIGINT` or an interval in milliseconds.
        #[must_use]
        pub fn i64(&self, entry: usize) -> i64 {
            i64::from_ne_bytes(read(self.bytes, self.at(entry)))
        }

        /// A `FLOAT`.
        #[must_use]
        pub fn f32(&self, entry: usize) -> f32 {
            f32::from_ne_bytes(read(self.bytes, self.at(entry)))
        }

        /// A `DOUBLE`.
        #[must_use]
        pub fn f64(&self, entry: usize) -> f64 {
            f64::from_ne_bytes(read(self.bytes, self.at(entry)))
        }

        /// `BYTES`, or the bytes of a string.
        ///
        /// # Errors
        ///
        /// [`RowError::Outside`].
        pub fn bytes(&self, entry: usize) -> Result<&'a [u8], RowError> {
            variable(self.bytes, self.at(entry), entry)
        }

        /// A string.
        ///
        /// # Errors
        ///
        /// [`RowError::Outside`], [`RowError::NotUtf8`].
        pub fn str(&self, entry: usize) -> Result<&'a str, RowError> {
            std::str::from_utf8(self.bytes(entry)?).map_err(|_| RowError::NotUtf8(entry))
        }

        /// A `DECIMAL(precision, scale)`.
        ///
        /// # Errors
        ///
        /// [`RowError::Outside`].
        pub fn decimal(&self, entry: usize, precision: u8, scale: u8) -> Result<Decimal, RowError> {
            decimal(self.bytes, self.at(entry), entry, precision, scale)
        }

        /// A timestamp of `precision`, with or without a zone.
        ///
        /// # Errors
        ///
        /// [`RowError::Outside`].
        pub fn time(&self, entry: usize, precision: u8) -> Result<RowTime, RowError> {
            time(self.bytes, self.at(entry), entry, precision)
        }

        /// A row of `arity` fields.
        ///
        /// # Errors
        ///
        /// [`RowError::Outside`], [`RowError::Short`].
        pub fn row(&self, entry: usize, arity: usize) -> Result<RowRef<'a>, RowError> {
            RowRef::nested(variable(self.bytes, self.at(entry), entry)?, arity)
        }

        /// An array with elements of type `element`.
        ///
        /// # Errors
        ///
        /// [`RowError::Outside`], [`RowError::Short`].
        pub fn array(&self, entry: usize, element: &DataType) -> Result<ArrayRef<'a>, RowError> {
            ArrayRef::new(variable(self.bytes, self.at(entry), entry)?, element)
        }

        /// A map, or a multiset with `INT` counts as values.
        ///
        /// # Errors
        ///
        /// [`RowError::Outside`], [`RowError::Short`].
        pub fn map(
            &self,
            entry: usize,
            key: &DataType,
            value: &DataType,
        ) -> Result<MapRef<'a>, RowError> {
            MapRef::new(variable(self.bytes, self.at(entry), entry)?, key, value).map_err(|error| {
                match error {
                    RowError::Outside(_) => RowError::Outside(entry),
                    other => other,
                }
            })
        }
    };
}

impl<'a> RowRef<'a> {
    /// The row in `bytes` with `arity` fields.
    ///
    /// # Errors
    ///
    /// [`RowError::Short`], [`RowError::Kind`].
    pub fn new(bytes: &'a [u8], arity: usize) -> Result<Self, RowError> {
        let row = Self::nested(bytes, arity)?;
        match RowKind::from_byte(bytes[0]) {
            Some(_) => Ok(row),
            None => Err(RowError::Kind(bytes[0])),
        }
    }

    /// As [`new`](Self::new), for a row inside another, whose kind means nothing.
    fn nested(bytes: &'a [u8], arity: usize) -> Result<Self, RowError> {
        if bytes.len() < fixed(arity) {
            return Err(RowError::Short {
                length: arity,
                bytes: bytes.len(),
            });
        }
        Ok(Self { bytes, arity })
    }

    /// Number of fields.
    #[must_use]
    pub const fn arity(&self) -> usize {
        self.arity
    }

    /// What the row does; `Insert` for a row inside another.
    #[must_use]
    pub fn kind(&self) -> RowKind {
        RowKind::from_byte(self.bytes[0]).unwrap_or(RowKind::Insert)
    }

    /// Whether field `entry` is null.
    #[must_use]
    pub fn is_null(&self, entry: usize) -> bool {
        assert!(entry < self.arity, "field {entry} of {}", self.arity);
        let bit = entry + 8;
        self.bytes[bit / 8] >> (bit % 8) & 1 == 1
    }

    fn at(&self, entry: usize) -> usize {
        assert!(entry < self.arity, "field {entry} of {}", self.arity);
        header(self.arity) + entry * 8
    }

    entries!();
}

impl<'a> ArrayRef<'a> {
    /// The array in `bytes` with elements of type `element`.
    ///
    /// # Errors
    ///
    /// [`RowError::Short`].
    pub fn new(bytes: &'a [u8], element: &DataType) -> Result<Self, RowError> {
        let short = |length| RowError::Short {
            length,
            bytes: bytes.len(),
        };
        if bytes.len() < 4 {
            return Err(short(0));
        }
        let count = i32::from_ne_bytes(read(bytes, 0));
        let length = usize::try_from(count).map_err(|_| short(0))?;
        let width = element.element_width();
        if bytes.len() < array_header(length) + length * width {
            return Err(short(length));
        }
        Ok(Self {
            bytes,
            length,
            width,
        })
    }

    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether element `entry` is null.
    #[must_use]
    pub fn is_null(&self, entry: usize) -> bool {
        assert!(entry < self.length, "element {entry} of {}", self.length);
        self.bytes[4 + entry / 8] >> (entry % 8) & 1 == 1
    }

    fn at(&self, entry: usize) -> usize {
        assert!(entry < self.length, "element {entry} of {}", self.length);
        array_header(self.length) + entry * self.width
    }

    entries!();
}

impl<'a> MapRef<'a> {
    /// The map in `bytes`.
    ///
    /// # Errors
    ///
    /// [`RowError::Short`], and [`RowError::Outside`] if keys and values do not pair up.
    pub fn new(bytes: &'a [u8], key: &DataType, value: &DataType) -> Result<Self, RowError> {
        if bytes.len() < 4 {
            return Err(RowError::Short {
                length: 0,
                bytes: bytes.len(),
            });
        }
        let keys = usize::try_from(i32::from_ne_bytes(read(bytes, 0)))
            .map_err(|_| RowError::Outside(0))?;
        let (keys, values) = bytes[4..]
            .split_at_checked(keys)
            .ok_or(RowError::Outside(0))?;
        let keys = ArrayRef::new(keys, key)?;
        let values = ArrayRef::new(values, value)?;
        if keys.len() == values.len() {
            Ok(Self { keys, values })
        } else {
            Err(RowError::Outside(0))
        }
    }

    /// Number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl fmt::Debug for RowRef<'_> {
    /// Its shape only: contents are the user's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RowRef({} fields, {} bytes)",
            self.arity,
            self.bytes.len()
        )
    }
}

impl fmt::Debug for ArrayRef<'_> {
    /// Its shape only: contents are the user's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArrayRef({} elements)", self.length)
    }
}
