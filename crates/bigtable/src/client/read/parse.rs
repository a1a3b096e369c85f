//! Protobuf by hand: chunks of a `ReadRowsResponse` as positions in their message.
//!
//! Trusts nothing: every length is checked against what is left, unknown fields are skipped, groups and impossible tags
//! are refused. What fields may stand together is the business of [`chunks`](super::chunks).

use super::batch::{RowBatch, Slice};
use super::chunks::{MAX_ROW_BYTES, ProtocolError};

#[inline]
pub(super) fn check_utf8(text: &[u8]) -> Result<(), ProtocolError> {
    if text.is_ascii() {
        return Ok(());
    }
    std::str::from_utf8(text)
        .map(|_| ())
        .map_err(|_| ProtocolError("a family or a label that is not UTF-8"))
}

/// A part of the message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) len: u32,
}

impl Span {
    /// Both ends were checked against the message, whose length fits 32 bits.
    #[inline]
    pub(super) fn new((start, end): (usize, usize)) -> Self {
        Self {
            start: start as u32,
            len: (end - start) as u32,
        }
    }

    pub(super) const fn is_empty(self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn of(self, message: &[u8]) -> &[u8] {
        &message[self.start as usize..self.start as usize + self.len as usize]
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RowStatus {
    Continues,
    Commit,
    Reset,
}

/// A `CellChunk`, parsed.
pub(super) struct Chunk {
    pub(super) row_key: Span,
    pub(super) family: Option<Span>,
    pub(super) qualifier: Option<Span>,
    pub(super) timestamp_micros: i64,
    pub(super) labels: u32,
    pub(super) value: Span,
    pub(super) value_size: i32,
    pub(super) row_status: RowStatus,
    /// The chunk itself, for its labels, which hardly any has.
    span: Span,
}

impl Chunk {
    #[inline(always)]
    pub(super) fn parse(message: &[u8], start: usize, end: usize) -> Result<Self, ProtocolError> {
        let mut wire = Wire {
            bytes: &message[..end],
            at: start,
        };
        let mut chunk = Self {
            row_key: Span::default(),
            family: None,
            qualifier: None,
            timestamp_micros: 0,
            labels: 0,
            value: Span::default(),
            value_size: 0,
            row_status: RowStatus::Continues,
            span: Span::new((start, end)),
        };
        // A tag of a chunk's own fields is one byte: number times eight plus type.
        while let Some(tag) = wire.bytes.get(wire.at) {
            wire.at += 1;
            match tag {
                0x0a => chunk.row_key = Span::new(wire.span()?),
                0x12 => wire.wrapper(&mut chunk.family)?,
                0x1a => wire.wrapper(&mut chunk.qualifier)?,
                0x20 => chunk.timestamp_micros = wire.varint()?.cast_signed(),
                0x2a => {
                    wire.span()?;
                    chunk.labels += 1;
                }
                0x32 => chunk.value = Span::new(wire.span()?),
                // The protocol gives it 32 bits, and keeps the low ones of a longer number.
                0x38 => chunk.value_size = wire.varint()? as i32,
                0x40 => chunk.set_status(RowStatus::Reset, wire.varint()?),
                0x48 => chunk.set_status(RowStatus::Commit, wire.varint()?),
                _ => {
                    wire.at -= 1;
                    chunk.other(&mut wire)?;
                }
            }
        }
        Ok(chunk)
    }

    /// A field whose tag is not in its usual form.
    #[cold]
    fn other(&mut self, wire: &mut Wire<'_>) -> Result<(), ProtocolError> {
        let Some((field, kind)) = wire.tag()? else {
            return Ok(());
        };
        match (field, kind) {
            // One byte can be written as several.
            (1, LENGTH) => self.row_key = Span::new(wire.span()?),
            (2, LENGTH) => wire.wrapper(&mut self.family)?,
            (3, LENGTH) => wire.wrapper(&mut self.qualifier)?,
            (4, VARINT) => self.timestamp_micros = wire.varint()?.cast_signed(),
            (5, LENGTH) => {
                wire.span()?;
                self.labels += 1;
            }
            (6, LENGTH) => self.value = Span::new(wire.span()?),
            (7, VARINT) => self.value_size = wire.varint()? as i32,
            (8, VARINT) => self.set_status(RowStatus::Reset, wire.varint()?),
            (9, VARINT) => self.set_status(RowStatus::Commit, wire.varint()?),
            (1..=9, _) => return Err(ProtocolError("a chunk's field of a wrong type")),
            _ => wire.skip(kind)?,
        }
        Ok(())
    }

    /// The two statuses are one choice: the last one given counts, and a false one means neither.
    fn set_status(&mut self, status: RowStatus, value: u64) {
        self.row_status = if value == 0 {
            RowStatus::Continues
        } else {
            status
        };
    }

    pub(super) fn is_bare(&self) -> bool {
        self.row_key.is_empty()
            && self.family.is_none()
            && self.qualifier.is_none()
            && self.timestamp_micros == 0
            && self.labels == 0
            && self.value.is_empty()
            && self.value_size == 0
    }

    /// The declared size of a value that comes in pieces.
    pub(super) fn size(&self) -> Result<usize, ProtocolError> {
        usize::try_from(self.value_size)
            .ok()
            .filter(|size| *size <= MAX_ROW_BYTES)
            .ok_or(ProtocolError("a value of an impossible size"))
    }

    /// Appends the labels to the batch; returns their bytes.
    #[inline(always)]
    pub(super) fn push_labels(
        &self,
        message: &[u8],
        buffer: u32,
        batch: &mut RowBatch,
    ) -> Result<u64, ProtocolError> {
        if self.labels == 0 {
            return Ok(0);
        }
        self.push_some_labels(message, buffer, batch)
    }

    fn push_some_labels(
        &self,
        message: &[u8],
        buffer: u32,
        batch: &mut RowBatch,
    ) -> Result<u64, ProtocolError> {
        let end = self.span.start as usize + self.span.len as usize;
        let mut wire = Wire {
            bytes: &message[..end],
            at: self.span.start as usize,
        };
        let mut bytes = 0;
        while let Some((field, kind)) = wire.tag()? {
            if (field, kind) == (5, LENGTH) {
                let span = Span::new(wire.span()?);
                check_utf8(span.of(message))?;
                bytes += u64::from(span.len);
                batch.labels.push(Slice {
                    buffer,
                    start: span.start,
                    len: span.len,
                });
            } else {
                wire.skip(kind)?;
            }
        }
        Ok(bytes)
    }
}

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
pub(super) const LENGTH: u8 = 2;
const FIXED32: u8 = 5;

const ENDS_EARLY: ProtocolError = ProtocolError("a message that ends early");

/// A reader of protobuf's wire format.
pub(super) struct Wire<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl Wire<'_> {
    /// The next field's number and type; `None` at the end.
    #[inline]
    pub(super) fn tag(&mut self) -> Result<Option<(u32, u8)>, ProtocolError> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = u32::try_from(tag >> 3)
            .ok()
            .filter(|field| *field != 0 && tag >> 32 == 0)
            .ok_or(ProtocolError("a field of an impossible number"))?;
        Ok(Some((field, (tag & 7) as u8)))
    }

    #[inline(always)]
    fn varint(&mut self) -> Result<u64, ProtocolError> {
        match self.bytes.get(self.at) {
            Some(byte) if *byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    /// A number of several bytes. Timestamps take eight, which are read at once and pushed together.
    fn long_varint(&mut self) -> Result<u64, ProtocolError> {
        if let Some(eight) = self.bytes.get(self.at..self.at + 8) {
            let word = u64::from_le_bytes(eight.try_into().expect("eight bytes"));
            let ends = !word & 0x8080_8080_8080_8080;
            if ends != 0 {
                let bits = ends.trailing_zeros() + 1;
                self.at += (bits / 8) as usize;
                // Seven bits of each byte up to the last one.
                let word = word & (u64::MAX >> (64 - bits)) & 0x7f7f_7f7f_7f7f_7f7f;
                let word = (word & 0x007f_007f_007f_007f) | ((word & 0x7f00_7f00_7f00_7f00) >> 1);
                let word = (word & 0x0000_3fff_0000_3fff) | ((word & 0x3fff_0000_3fff_0000) >> 2);
                return Ok((word & 0x0fff_ffff) | ((word & 0x0fff_ffff_0000_0000) >> 4));
            }
        }
        self.varint_by_byte()
    }

    fn varint_by_byte(&mut self) -> Result<u64, ProtocolError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or(ENDS_EARLY)?;
            self.at += 1;
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(ProtocolError("a number of more than 64 bits"))
    }

    /// Length-delimited bytes, as positions in the message.
    #[inline(always)]
    pub(super) fn span(&mut self) -> Result<(usize, usize), ProtocolError> {
        let len = self.varint()?;
        let left = self.bytes.len() - self.at;
        let len = usize::try_from(len)
            .ok()
            .filter(|len| *len <= left)
            .ok_or(ENDS_EARLY)?;
        let start = self.at;
        self.at += len;
        Ok((start, self.at))
    }

    /// A `StringValue` or `BytesValue`: present but without a value means the empty one, and repeated ones merge.
    #[inline(always)]
    fn wrapper(&mut self, into: &mut Option<Span>) -> Result<(), ProtocolError> {
        let (start, end) = self.span()?;
        // As every sender writes it: one field, with a length of one byte.
        if let [0x0a, len @ ..0x80, value @ ..] = &self.bytes[start..end]
            && value.len() == usize::from(*len)
        {
            *into = Some(Span::new((start + 2, end)));
            return Ok(());
        }
        self.unusual_wrapper(start, end, into)
    }

    fn unusual_wrapper(
        &self,
        start: usize,
        end: usize,
        into: &mut Option<Span>,
    ) -> Result<(), ProtocolError> {
        let mut inner = Wire {
            bytes: &self.bytes[..end],
            at: start,
        };
        let mut value = into.unwrap_or_default();
        while let Some((field, kind)) = inner.tag()? {
            match (field, kind) {
                (1, LENGTH) => value = Span::new(inner.span()?),
                (1, _) => return Err(ProtocolError("a wrapper's value of a wrong type")),
                _ => inner.skip(kind)?,
            }
        }
        *into = Some(value);
        Ok(())
    }

    pub(super) fn skip(&mut self, kind: u8) -> Result<(), ProtocolError> {
        let len = match kind {
            VARINT => return self.varint().map(|_| ()),
            LENGTH => return self.span().map(|_| ()),
            FIXED64 => 8,
            FIXED32 => 4,
            _ => return Err(ProtocolError("a field of an unknown type")),
        };
        if self.bytes.len() - self.at < len {
            return Err(ENDS_EARLY);
        }
        self.at += len;
        Ok(())
    }
}
