//! Protobuf fields, walked without generated types: what hot responses are decoded with.
//!
//! Every length is checked against what is there; nothing panics whatever the bytes are.

/// Bytes that are no protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The value of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A fixed-width number, which no message read here has.
    Fixed,
}

impl<'a> Value<'a> {
    #[inline]
    pub(crate) fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Varint(_) | Self::Fixed => Err(Malformed),
        }
    }

    pub(crate) fn varint(self) -> Result<u64, Malformed> {
        match self {
            Self::Varint(number) => Ok(number),
            Self::Bytes(_) | Self::Fixed => Err(Malformed),
        }
    }

    /// Text; protobuf strings are UTF-8.
    pub(crate) fn text(self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed)
    }
}

/// The fields of a message, in their order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(message: &'a [u8]) -> Self {
        Self(message)
    }

    /// The next field; `None` at the end.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, Malformed> {
        // Most fields are bytes, with a tag of one byte and a length of one or two.
        const CONTINUED: u8 = 0x80;
        let bytes = self.0;
        let [tag, low, ..] = *bytes else {
            return match bytes {
                [] => Ok(None),
                _ => self.other(),
            };
        };
        if tag & (CONTINUED | 7) != 2 || tag == 2 {
            return self.other();
        }
        let (start, length) = match bytes.get(2) {
            _ if low < CONTINUED => (2, usize::from(low)),
            Some(high) if *high < CONTINUED => {
                (3, usize::from(low & 0x7f) | usize::from(*high) << 7)
            }
            _ => return self.other(),
        };
        let (Some(value), Some(rest)) = (
            bytes.get(start..start + length),
            bytes.get(start + length..),
        ) else {
            return Err(Malformed);
        };
        self.0 = rest;
        Ok(Some((u64::from(tag >> 3), Value::Bytes(value))))
    }

    /// Takes the next field if it is the number `field`, whose tag has one byte.
    #[inline]
    pub(crate) fn number(&mut self, field: u8) -> Result<Option<u64>, Malformed> {
        match self.0 {
            [tag, rest @ ..] if *tag == field << 3 => {
                self.0 = rest;
                self.varint().map(Some)
            }
            _ => Ok(None),
        }
    }

    #[inline(never)]
    fn other(&mut self) -> Result<Option<(u64, Value<'a>)>, Malformed> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(Malformed),
        };
        match tag >> 3 {
            0 => Err(Malformed),
            number => Ok(Some((number, value))),
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    /// At most ten bytes; bits beyond the 64th are dropped, as everywhere.
    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for (at, byte) in self.0.iter().enumerate().take(10) {
            number |= u64::from(byte & 0x7f) << (7 * at);
            if *byte < 0x80 {
                self.0 = &self.0[at + 1..];
                return Ok(number);
            }
        }
        Err(Malformed)
    }
}
