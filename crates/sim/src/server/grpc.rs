//! gRPC framing by hand: one request message, and the counting of entries without decoding.

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tonic::Status;

/// Bytes ahead of a message: a compression flag and the length.
const PREFIX: usize = 5;

/// The next data of a request, if there is more.
pub(crate) async fn next_data(body: &mut Incoming) -> Result<Option<Bytes>, Status> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Status::cancelled("the client gave the request up"))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Reads the one message of a request, of which `first` was read already.
pub(crate) async fn read_message(
    body: &mut Incoming,
    first: Option<Bytes>,
    limit: usize,
) -> Result<Bytes, Status> {
    let mut frames: Vec<Bytes> = first.into_iter().collect();
    let mut length = frames.iter().map(Bytes::len).sum::<usize>();
    while let Some(data) = next_data(body).await? {
        length += data.len();
        if length > limit + PREFIX {
            return Err(Status::resource_exhausted(format!(
                "Received message larger than max ({length} vs. {limit})"
            )));
        }
        frames.push(data);
    }
    let mut whole = match <[Bytes; 1]>::try_from(frames) {
        Ok([one]) => one,
        Err(frames) => {
            let mut whole = BytesMut::with_capacity(length);
            frames
                .iter()
                .for_each(|frame| whole.extend_from_slice(frame));
            whole.freeze()
        }
    };
    if whole.len() < PREFIX {
        return Err(Status::internal("the request holds no message"));
    }
    let compressed = whole.get_u8() != 0;
    let declared = whole.get_u32() as usize;
    if compressed {
        return Err(Status::unimplemented(
            "the simulation reads no compressed messages",
        ));
    }
    if declared != whole.len() {
        return Err(Status::internal(
            "the request holds more or less than one message",
        ));
    }
    Ok(whole)
}

/// The table of a `MutateRows` request, if its first data shows it: the first field, whole.
pub(crate) fn table_name(first: &[u8]) -> Option<&str> {
    let message = first.get(PREFIX..)?;
    let [0x0a, length, rest @ ..] = message else {
        return None;
    };
    let (length, rest) = match (length, rest) {
        (0..=0x7f, rest) => (usize::from(*length), rest),
        (_, [high @ 0..=0x7f, rest @ ..]) => {
            (usize::from(length & 0x7f) | usize::from(*high) << 7, rest)
        }
        _ => return None,
    };
    std::str::from_utf8(rest.get(..length)?).ok()
}

/// The message is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Tag,
    Length(u64),
    Value,
}

/// Counts the entries of a `MutateRows` request as its bytes pass by, in pieces of any size.
pub(crate) struct EntryCounter {
    prefix: usize,
    declared: u32,
    seen: u64,
    skip: u64,
    varint: u64,
    shift: u32,
    expect: Expect,
    entries: usize,
}

impl EntryCounter {
    pub(crate) fn new() -> Self {
        Self {
            prefix: 0,
            declared: 0,
            seen: 0,
            skip: 0,
            varint: 0,
            shift: 0,
            expect: Expect::Tag,
            entries: 0,
        }
    }

    pub(crate) fn feed(&mut self, mut data: &[u8]) -> Result<(), Malformed> {
        while self.prefix < PREFIX {
            let [byte, rest @ ..] = data else {
                return Ok(());
            };
            match self.prefix {
                0 if *byte != 0 => return Err(Malformed),
                0 => {}
                _ => self.declared = self.declared << 8 | u32::from(*byte),
            }
            self.prefix += 1;
            data = rest;
        }
        self.seen += data.len() as u64;
        while !data.is_empty() {
            if self.skip > 0 {
                let passed = data
                    .len()
                    .min(usize::try_from(self.skip).unwrap_or(usize::MAX));
                self.skip -= passed as u64;
                data = &data[passed..];
                continue;
            }
            let (byte, rest) = (data[0], &data[1..]);
            data = rest;
            if self.shift > 63 {
                return Err(Malformed);
            }
            self.varint |= u64::from(byte & 0x7f) << self.shift;
            if byte & 0x80 != 0 {
                self.shift += 7;
                continue;
            }
            let value = std::mem::take(&mut self.varint);
            self.shift = 0;
            self.expect = match self.expect {
                Expect::Tag => match value & 7 {
                    0 => Expect::Value,
                    2 => Expect::Length(value >> 3),
                    1 | 5 => {
                        self.skip = if value & 7 == 1 { 8 } else { 4 };
                        Expect::Tag
                    }
                    _ => return Err(Malformed),
                },
                Expect::Length(field) => {
                    self.entries += usize::from(field == 2);
                    self.skip = value;
                    Expect::Tag
                }
                Expect::Value => Expect::Tag,
            };
        }
        Ok(())
    }

    /// Entries and bytes of the message, once all of it was fed.
    pub(crate) fn finish(self) -> Result<(usize, u64), Malformed> {
        let whole = self.prefix == PREFIX
            && self.seen == u64::from(self.declared)
            && self.skip == 0
            && self.shift == 0
            && self.expect == Expect::Tag;
        if whole {
            Ok((self.entries, self.seen))
        } else {
            Err(Malformed)
        }
    }
}

#[cfg(test)]
mod tests;
