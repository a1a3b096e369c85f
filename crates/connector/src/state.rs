//! Versioned bytes, and the bounded codec behind every stored format.
//!
//! A checkpoint stores what connectors hand it: splits, enumerator and writer state, committables. Each is bytes plus a
//! version number. Readers accept every version ever released (golden files hold them to it), refuse a newer one by
//! name, bound every length before allocating and refuse trailing bytes. Error texts never show contents.

use std::fmt;

use bytes::Bytes;

use crate::error::Error;

/// Bytes of a stored format and the version that wrote them.
#[derive(Clone, PartialEq, Eq)]
pub struct Versioned {
    /// Version of the format; each format counts its own, from 1.
    pub version: u32,
    /// The encoded value.
    pub bytes: Bytes,
}

impl Versioned {
    /// Bytes written by `version`.
    #[must_use]
    pub fn new(version: u32, bytes: impl Into<Bytes>) -> Self {
        Self {
            version,
            bytes: bytes.into(),
        }
    }
}

impl fmt::Debug for Versioned {
    /// Shows sizes, never contents.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Versioned(v{}, {} bytes)",
            self.version,
            self.bytes.len()
        )
    }
}

/// Why stored bytes cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Written by a version that this program does not read.
    #[error(
        "{what} was written as version {found}, this program reads versions {oldest} to {newest}; \
         run the version that wrote it, or a newer one"
    )]
    Version {
        /// The format's name.
        what: &'static str,
        /// Version found.
        found: u32,
        /// Oldest version read.
        oldest: u32,
        /// Newest version read.
        newest: u32,
    },
    /// The bytes end early, go on too long or hold an impossible value.
    #[error("{what} is damaged at byte {at}: {reason}; restore from another checkpoint")]
    Damaged {
        /// The format's name.
        what: &'static str,
        /// Where.
        at: usize,
        /// What is wrong there, without contents.
        reason: &'static str,
    },
}

impl From<StateError> for Error {
    fn from(error: StateError) -> Self {
        Self::state(error.to_string())
    }
}

/// Appends values to a stored format: little-endian integers, length-prefixed bytes.
#[derive(Default)]
pub struct StateWriter {
    bytes: Vec<u8>,
}

impl StateWriter {
    /// An empty format.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Eight bytes.
    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A number of items to follow.
    ///
    /// # Panics
    ///
    /// Above `u32::MAX` items, which no bounded component holds.
    pub fn count(&mut self, items: usize) -> &mut Self {
        self.u32(u32::try_from(items).expect("components hold fewer than 2^32 items"))
    }

    /// A length and the bytes.
    ///
    /// # Panics
    ///
    /// Above 4 GiB, which no bounded component holds.
    pub fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.count(value.len());
        self.bytes.extend_from_slice(value);
        self
    }

    /// A length and the text.
    pub fn text(&mut self, value: &str) -> &mut Self {
        self.bytes(value.as_bytes())
    }

    /// A nested versioned value.
    pub fn versioned(&mut self, value: &Versioned) -> &mut Self {
        self.u32(value.version).bytes(&value.bytes)
    }

    /// The bytes so far, as `version` of the format.
    pub fn finish(&mut self, version: u32) -> Versioned {
        Versioned::new(version, std::mem::take(&mut self.bytes))
    }
}

/// Reads what [`StateWriter`] wrote, trusting nothing.
pub struct StateReader<'a> {
    what: &'static str,
    all: &'a Bytes,
    at: usize,
}

impl<'a> StateReader<'a> {
    /// Opens a format named `what` (for error texts) if its version is among `versions`.
    ///
    /// # Errors
    ///
    /// [`StateError::Version`] otherwise.
    pub fn open(
        what: &'static str,
        value: &'a Versioned,
        versions: std::ops::RangeInclusive<u32>,
    ) -> Result<Self, StateError> {
        if versions.contains(&value.version) {
            Ok(Self {
                what,
                all: &value.bytes,
                at: 0,
            })
        } else {
            Err(StateError::Version {
                what,
                found: value.version,
                oldest: *versions.start(),
                newest: *versions.end(),
            })
        }
    }

    /// An error at the current position.
    #[must_use]
    pub fn damaged(&self, reason: &'static str) -> StateError {
        StateError::Damaged {
            what: self.what,
            at: self.at,
            reason,
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], StateError> {
        let end = self
            .at
            .checked_add(len)
            .filter(|end| *end <= self.all.len());
        let Some(end) = end else {
            return Err(self.damaged("ends early"));
        };
        let slice = &self.all[self.at..end];
        self.at = end;
        Ok(slice)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StateError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// One byte.
    ///
    /// # Errors
    ///
    /// If the bytes end early; so for every reader below.
    pub fn u8(&mut self) -> Result<u8, StateError> {
        Ok(self.array::<1>()?[0])
    }

    /// Four bytes.
    #[allow(missing_docs, clippy::missing_errors_doc, reason = "as for `u8`")]
    pub fn u32(&mut self) -> Result<u32, StateError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes.
    #[allow(missing_docs, clippy::missing_errors_doc, reason = "as for `u8`")]
    pub fn u64(&mut self) -> Result<u64, StateError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Eight bytes.
    #[allow(missing_docs, clippy::missing_errors_doc, reason = "as for `u8`")]
    pub fn i64(&mut self) -> Result<i64, StateError> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// A number of items, each of which takes at least `min_size` bytes: a count that cannot fit in what is left is
    /// refused before anything is allocated for it.
    #[allow(missing_docs, clippy::missing_errors_doc, reason = "as for `u8`")]
    pub fn count(&mut self, min_size: usize) -> Result<usize, StateError> {
        let count = self.u32()? as usize;
        let left = self.all.len() - self.at;
        if count.saturating_mul(min_size.max(1)) > left {
            return Err(self.damaged("more items than bytes"));
        }
        Ok(count)
    }

    /// Length-prefixed bytes, sharing the buffer.
    #[allow(missing_docs, clippy::missing_errors_doc, reason = "as for `u8`")]
    pub fn bytes(&mut self) -> Result<Bytes, StateError> {
        let len = self.u32()? as usize;
        let slice = self.take(len)?;
        Ok(self.all.slice_ref(slice))
    }

    /// Length-prefixed text.
    #[allow(missing_docs, clippy::missing_errors_doc, reason = "as for `u8`")]
    pub fn text(&mut self) -> Result<&'a str, StateError> {
        let len = self.u32()? as usize;
        let slice = self.take(len)?;
        std::str::from_utf8(slice).map_err(|_| self.damaged("text is not UTF-8"))
    }

    /// A nested versioned value.
    #[allow(missing_docs, clippy::missing_errors_doc, reason = "as for `u8`")]
    pub fn versioned(&mut self) -> Result<Versioned, StateError> {
        Ok(Versioned {
            version: self.u32()?,
            bytes: self.bytes()?,
        })
    }

    /// Ends the reading.
    ///
    /// # Errors
    ///
    /// If bytes are left over.
    pub fn finish(self) -> Result<(), StateError> {
        if self.at == self.all.len() {
            Ok(())
        } else {
            Err(self.damaged("goes on after its end"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Versioned {
        StateWriter::new()
            .u8(7)
            .u32(8)
            .u64(9)
            .i64(-10)
            .text("text")
            .bytes(b"\x00\xff")
            .count(0)
            .finish(1)
    }

    fn read(value: &Versioned) -> Result<(), StateError> {
        let mut reader = StateReader::open("sample", value, 1..=1)?;
        assert_eq!(
            (reader.u8()?, reader.u32()?, reader.u64()?, reader.i64()?),
            (7, 8, 9, -10)
        );
        assert_eq!(reader.text()?, "text");
        assert_eq!(reader.bytes()?.as_ref(), b"\x00\xff");
        assert_eq!(reader.count(1)?, 0);
        reader.finish()
    }

    #[test]
    fn what_was_written_reads_back() {
        assert_eq!(read(&sample()), Ok(()));
    }

    #[test]
    fn every_truncation_and_every_appended_byte_is_refused() {
        let whole = sample();
        for len in 0..whole.bytes.len() {
            let cut = Versioned::new(1, whole.bytes.slice(..len));
            assert!(
                matches!(read(&cut), Err(StateError::Damaged { .. })),
                "cut at {len}"
            );
        }
        let mut longer = whole.bytes.to_vec();
        longer.push(0);
        assert!(matches!(
            read(&Versioned::new(1, longer)),
            Err(StateError::Damaged { .. })
        ));
    }

    #[test]
    fn a_newer_version_is_refused_by_name() {
        let newer = Versioned::new(2, sample().bytes);
        let error = read(&newer).unwrap_err().to_string();
        assert!(
            error.contains("version 2") && error.contains("1 to 1"),
            "{error}"
        );
    }

    #[test]
    fn a_count_beyond_the_bytes_is_refused_before_allocation() {
        let value = StateWriter::new().u32(u32::MAX).finish(1);
        let mut reader = StateReader::open("sample", &value, 1..=1).expect("version fits");
        assert!(reader.count(1).is_err());
    }
}
