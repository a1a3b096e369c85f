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
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
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

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0u64;
        for (at, byte) in self.0.iter().enumerate().take(10) {
            number |= u64::from(byte & 0x7f)
                .checked_shl(7 * u32::try_from(at).map_err(|_| Malformed)?)
                .ok_or(Malformed)?;
            if byte & 0x80 == 0 {
                self.0 = &self.0[at + 1..];
                return Ok(number);
            }
        }
        Err(Malformed)
    }
}
