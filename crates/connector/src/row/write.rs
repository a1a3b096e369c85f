//! Writing rows straight into a batch.

use std::fmt;

use super::{Decimal, RowKind, RowTime, array_header, fixed, header, time_from_wire, time_to_wire};
use crate::clock::Timestamp;
use crate::types::DataType;

/// Rows on their way to a host, one behind the other in one buffer: for each its event time in milliseconds (8 bytes,
/// the least value for none), its size (4 bytes), 4 bytes of padding, and the row.
#[derive(Default)]
pub struct RowBatch {
    buffer: Vec<u8>,
    rows: usize,
}

/// A row of a batch.
#[derive(Clone, Copy)]
pub struct BatchRow<'a> {
    /// Its event time, if it has one.
    pub timestamp: Option<Timestamp>,
    /// Its bytes, for [`RowRef`](super::RowRef).
    pub bytes: &'a [u8],
}

/// Bytes before each row of a batch.
const PREFIX: usize = 16;

impl RowBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a row; `fill` sets its fields. Fields that it does not set are null.
    pub fn push(
        &mut self,
        timestamp: Option<Timestamp>,
        kind: RowKind,
        arity: usize,
        fill: impl FnOnce(&mut RowWriter<'_>),
    ) {
        let result = self.try_push(timestamp, kind, arity, |row| {
            fill(row);
            Ok::<(), std::convert::Infallible>(())
        });
        match result {
            Ok(()) => {}
            Err(never) => match never {},
        }
    }

    /// As [`push`](Self::push); if `fill` fails, the batch stays as it was.
    ///
    /// # Errors
    ///
    /// Those of `fill`.
    pub fn try_push<E>(
        &mut self,
        timestamp: Option<Timestamp>,
        kind: RowKind,
        arity: usize,
        fill: impl FnOnce(&mut RowWriter<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = self.buffer.len();
        self.buffer
            .extend_from_slice(&time_to_wire(timestamp).to_ne_bytes());
        self.buffer.extend_from_slice(&[0; PREFIX - 8]);
        let mut writer = RowWriter::begin(&mut self.buffer, kind, arity);
        if let Err(error) = fill(&mut writer) {
            self.buffer.truncate(start);
            return Err(error);
        }
        let size = size_u32(self.buffer.len() - start - PREFIX);
        self.buffer[start + 8..start + 12].copy_from_slice(&size.to_ne_bytes());
        self.rows += 1;
        Ok(())
    }

    /// Number of rows.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The buffer as it crosses.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Forgets all rows and keeps the memory, unless one large row has made it much larger than `keep` bytes.
    pub fn clear(&mut self, keep: usize) {
        self.buffer.clear();
        if self.buffer.capacity() > keep.saturating_mul(2) {
            self.buffer.shrink_to(keep);
        }
        self.rows = 0;
    }

    /// The rows in order.
    pub fn iter(&self) -> impl Iterator<Item = BatchRow<'_>> {
        let mut rest = self.buffer.as_slice();
        std::iter::from_fn(move || {
            let (prefix, behind) = rest.split_at_checked(PREFIX)?;
            let mut time = [0; 8];
            time.copy_from_slice(&prefix[..8]);
            let mut size = [0; 4];
            size.copy_from_slice(&prefix[8..12]);
            let (bytes, behind) = behind.split_at(u32::from_ne_bytes(size) as usize);
            rest = behind;
            Some(BatchRow {
                timestamp: time_from_wire(i64::from_ne_bytes(time)),
                bytes,
            })
        })
    }
}

impl fmt::Debug for RowBatch {
    /// Its shape only: contents are the user's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RowBatch({} rows, {} bytes)",
            self.rows,
            self.buffer.len()
        )
    }
}

/// A size or offset inside a row. Rows stay below 2 GiB: services refuse records of a fraction of that.
fn size_u32(size: usize) -> u32 {
    u32::try_from(size)
        .ok()
        .filter(|size| *size <= i32::MAX as u32)
        .expect("a row is smaller than 2 GiB")
}

/// Sets the fields of a row, each at most once; what is not set is null.
pub struct RowWriter<'a> {
    buffer: &'a mut Vec<u8>,
    start: usize,
    arity: usize,
}

/// Sets the elements of an array, each at most once; what is not set is null.
pub struct ArrayWriter<'a> {
    buffer: &'a mut Vec<u8>,
    start: usize,
    length: usize,
    width: usize,
}

fn pad(buffer: &mut Vec<u8>, start: usize) {
    let size = buffer.len() - start;
    buffer.resize(start + size.next_multiple_of(8), 0);
}

fn pointer(offset: usize, size: usize) -> [u8; 8] {
    (u64::from(size_u32(offset)) << 32 | u64::from(size_u32(size))).to_ne_bytes()
}

macro_rules! setters {
    () => {
        /// Sets a `BOOLEAN`.
        pub fn bool(&mut self, entry: usize, value: bool) {
            self.put(entry, [u8::from(value)]);
        }

        /// Sets a `TINYINT`.
        pub fn i8(&mut self, entry: usize, value: i8) {
            self.put(entry, value.to_ne_bytes());
        }

        /// Sets a `SMALLINT`.
        pub fn i16(&mut self, entry: usize, value: i16) {
            self.put(entry, value.to_ne_bytes());
        }

        /// Sets an `INT`, a `DATE` (days), a `TIME` (milliseconds of the day) or months.
        pub fn i32(&mut self, entry: usize, value: i32) {
            self.put(entry, value.to_ne_bytes());
        }

        /// Sets a `BIGINT` or an interval in milliseconds.
        pub fn i64(&mut self, entry: usize, value: i64) {
            self.put(entry, value.to_ne_bytes());
        }

        /// Sets a `FLOAT`.
        pub fn f32(&mut self, entry: usize, value: f32) {
            self.put(entry, value.to_ne_bytes());
        }

        /// Sets a `DOUBLE`.
        pub fn f64(&mut self, entry: usize, value: f64) {
            self.put(entry, value.to_ne_bytes());
        }

        /// Sets a string.
        pub fn str(&mut self, entry: usize, value: &str) {
            self.bytes(entry, value.as_bytes());
        }

        /// Sets `BYTES`.
        pub fn bytes(&mut self, entry: usize, value: &[u8]) {
            if value.len() > 7 {
                let offset = self.append(value);
                self.put(entry, pointer(offset, value.len()));
                return;
            }
            let mut slot = [0; 8];
            #[expect(clippy::cast_possible_truncation, reason = "at most 7")]
            let mark = 0x80 | value.len() as u8;
            if cfg!(target_endian = "little") {
                slot[..value.len()].copy_from_slice(value);
                slot[7] = mark;
            } else {
                slot[1..=value.len()].copy_from_slice(value);
                slot[0] = mark;
            }
            self.put(entry, slot);
        }

        /// Sets a decimal of a column with `precision` digits; its scale must be the column's.
        pub fn decimal(&mut self, entry: usize, value: Decimal, precision: u8) {
            if precision <= 18 {
                #[expect(clippy::cast_possible_truncation, reason = "18 digits fit 64 bits")]
                self.put(entry, (value.unscaled as i64).to_ne_bytes());
                return;
            }
            let digits = value.unscaled.to_be_bytes();
            // The shortest two's complement, as its reader makes a big integer of it.
            let sign: u8 = if value.unscaled < 0 { 0xFF } else { 0 };
            let mut skip = 0;
            while skip < 15 && digits[skip] == sign && (digits[skip + 1] ^ sign) & 0x80 == 0 {
                skip += 1;
            }
            let mut reserved = [0; 16];
            reserved[..16 - skip].copy_from_slice(&digits[skip..]);
            let offset = self.append(&reserved);
            self.put(entry, pointer(offset, 16 - skip));
        }

        /// Sets a timestamp of a column with `precision`.
        pub fn time(&mut self, entry: usize, value: RowTime, precision: u8) {
            if precision <= 3 {
                self.put(entry, value.millis.to_ne_bytes());
                return;
            }
            let offset = self.append(&value.millis.to_ne_bytes());
            self.put(entry, pointer(offset, value.nanos as usize));
        }

        /// Sets a row of `arity` fields, which `fill` sets.
        pub fn row(&mut self, entry: usize, arity: usize, fill: impl FnOnce(&mut RowWriter<'_>)) {
            let from = self.buffer.len();
            fill(&mut RowWriter::begin(self.buffer, RowKind::Insert, arity));
            self.nested(entry, from);
        }

        /// Sets an array of `length` elements of type `element`, which `fill` sets.
        pub fn array(
            &mut self,
            entry: usize,
            element: &DataType,
            length: usize,
            fill: impl FnOnce(&mut ArrayWriter<'_>),
        ) {
            let from = self.buffer.len();
            fill(&mut ArrayWriter::begin(self.buffer, element, length));
            self.nested(entry, from);
        }

        /// Sets a map of `length` entries; `keys` and `values` set them, in the same order.
        pub fn map(
            &mut self,
            entry: usize,
            (key, value): (&DataType, &DataType),
            length: usize,
            keys: impl FnOnce(&mut ArrayWriter<'_>),
            values: impl FnOnce(&mut ArrayWriter<'_>),
        ) {
            let from = self.buffer.len();
            self.buffer.extend_from_slice(&[0; 4]);
            keys(&mut ArrayWriter::begin(self.buffer, key, length));
            let size = size_u32(self.buffer.len() - from - 4);
            self.buffer[from..from + 4].copy_from_slice(&size.to_ne_bytes());
            values(&mut ArrayWriter::begin(self.buffer, value, length));
            self.nested(entry, from);
        }

        /// Appends to the part of variable size; gives the offset from the start.
        fn append(&mut self, bytes: &[u8]) -> usize {
            let offset = self.buffer.len() - self.start;
            self.buffer.extend_from_slice(bytes);
            pad(self.buffer, self.start);
            offset
        }

        /// Points an entry at what was appended since `from`.
        fn nested(&mut self, entry: usize, from: usize) {
            let size = self.buffer.len() - from;
            pad(self.buffer, self.start);
            self.put(entry, pointer(from - self.start, size));
        }
    };
}

impl<'a> RowWriter<'a> {
    fn begin(buffer: &'a mut Vec<u8>, kind: RowKind, arity: usize) -> Self {
        let start = buffer.len();
        buffer.resize(start + fixed(arity), 0);
        let null_bytes = &mut buffer[start..start + header(arity)];
        null_bytes[0] = kind as u8;
        // Everything is null until it is set.
        for entry in 0..arity {
            null_bytes[(entry + 8) / 8] |= 1 << (entry % 8);
        }
        Self {
            buffer,
            start,
            arity,
        }
    }

    fn put<const N: usize>(&mut self, entry: usize, value: [u8; N]) {
        assert!(entry < self.arity, "field {entry} of {}", self.arity);
        let at = self.start + header(self.arity) + entry * 8;
        self.buffer[at..at + N].copy_from_slice(&value);
        self.buffer[self.start + (entry + 8) / 8] &= !(1 << (entry % 8));
    }

    setters!();
}

impl<'a> ArrayWriter<'a> {
    fn begin(buffer: &'a mut Vec<u8>, element: &DataType, length: usize) -> Self {
        let start = buffer.len();
        let width = element.element_width();
        let size = (array_header(length) + length * width).next_multiple_of(8);
        buffer.resize(start + size, 0);
        buffer[start..start + 4].copy_from_slice(&size_u32(length).to_ne_bytes());
        for entry in 0..length {
            buffer[start + 4 + entry / 8] |= 1 << (entry % 8);
        }
        Self {
            buffer,
            start,
            length,
            width,
        }
    }

    fn put<const N: usize>(&mut self, entry: usize, value: [u8; N]) {
        assert!(entry < self.length, "element {entry} of {}", self.length);
        assert!(N <= self.width, "a value wider than its element");
        let at = self.start + array_header(self.length) + entry * self.width;
        self.buffer[at..at + N].copy_from_slice(&value);
        self.buffer[self.start + 4 + entry / 8] &= !(1 << (entry % 8));
    }

    setters!();
}

impl fmt::Debug for RowWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RowWriter({} fields)", self.arity)
    }
}

impl fmt::Debug for ArrayWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArrayWriter({} elements)", self.length)
    }
}
