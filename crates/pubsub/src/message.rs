//! Messages, written field by field in the form they travel in.
//!
//! A [`Message`] is one `PubsubMessage` under construction. A writer keeps one and hands it to the serializer for each
//! record, so a record allocates nothing once the buffers have grown. What a field is set to last is what is sent.
//!
//! # Invariants
//!
//! - The encoded form sets neither message id nor publish time: the service gives both (PS-WIRE-01).
//! - `Debug` shows sizes, never contents.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

const DATA: u32 = 1;
const ATTRIBUTES: u32 = 2;
const ORDERING_KEY: u32 = 5;
/// Tag and length of a field of ours at most.
const MAX_HEAD: usize = 1 + 10;

/// One message to publish: data, attributes, ordering key.
#[derive(Clone, Default)]
pub struct Message {
    data: Vec<u8>,
    /// Encoded attribute entries.
    attributes: Vec<u8>,
    key: String,
}

impl Message {
    /// Without data, attributes and ordering key.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Empties it, keeping its memory, but not that of one giant message.
    pub fn clear(&mut self) {
        const KEPT_BYTES: usize = 1 << 20;
        for bytes in [&mut self.data, &mut self.attributes] {
            bytes.clear();
            if bytes.capacity() > KEPT_BYTES {
                bytes.shrink_to(KEPT_BYTES);
            }
        }
        self.key.clear();
        if self.key.capacity() > KEPT_BYTES {
            self.key.shrink_to(KEPT_BYTES);
        }
    }

    /// Sets the data.
    pub fn data(&mut self, data: impl AsRef<[u8]>) -> &mut Self {
        self.data.clear();
        self.data.extend_from_slice(data.as_ref());
        self
    }

    /// The data, to be written in place.
    pub fn data_mut(&mut self) -> &mut Vec<u8> {
        &mut self.data
    }

    /// Adds an attribute. Of one key given twice, the service keeps the last value.
    pub fn attribute(&mut self, key: impl AsRef<str>, value: impl AsRef<str>) -> &mut Self {
        let (key, value) = (key.as_ref().as_bytes(), value.as_ref().as_bytes());
        put_head(
            &mut self.attributes,
            ATTRIBUTES,
            field_len(1, key.len()) + field_len(2, value.len()),
        );
        put_field(&mut self.attributes, 1, key);
        put_field(&mut self.attributes, 2, value);
        self
    }

    /// Sets the ordering key; an empty one is none. The sink takes a key only with message ordering enabled.
    pub fn ordering_key(&mut self, key: impl AsRef<str>) -> &mut Self {
        self.key.clear();
        self.key.push_str(key.as_ref());
        self
    }

    /// The ordering key, to be written in place.
    pub fn ordering_key_mut(&mut self) -> &mut String {
        &mut self.key
    }

    /// The ordering key; empty if there is none.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Bytes of the encoded `PubsubMessage`, what the bounds count.
    #[must_use]
    #[inline]
    pub fn encoded_len(&self) -> usize {
        let optional = |field, len| if len == 0 { 0 } else { field_len(field, len) };
        optional(DATA, self.data.len())
            + self.attributes.len()
            + optional(ORDERING_KEY, self.key.len())
    }

    /// Appends the encoded `PubsubMessage`, `size` bytes, as field `field` of a message around it.
    #[inline]
    pub(crate) fn put_into(&self, out: &mut BytesMut, field: u32, size: usize) {
        // The heads of both fields at once: each append asks anew whether there is room.
        let mut heads = [0; 2 * MAX_HEAD];
        let mut rest = &mut heads[..];
        put_head(&mut rest, field, size);
        if !self.data.is_empty() {
            put_head(&mut rest, DATA, self.data.len());
        }
        let unused = rest.len();
        out.reserve(heads.len() + size);
        out.extend_from_slice(&heads[..heads.len() - unused]);
        out.extend_from_slice(&self.data);
        if !self.attributes.is_empty() {
            out.extend_from_slice(&self.attributes);
        }
        if !self.key.is_empty() {
            put_field(out, ORDERING_KEY, self.key.as_bytes());
        }
    }

    /// Appends the encoded `PubsubMessage`.
    pub(crate) fn encode_into(&self, out: &mut impl BufMut) {
        if !self.data.is_empty() {
            put_field(out, DATA, &self.data);
        }
        out.put_slice(&self.attributes);
        if !self.key.is_empty() {
            put_field(out, ORDERING_KEY, self.key.as_bytes());
        }
    }

    /// The encoded `PubsubMessage`.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.encoded_len());
        self.encode_into(&mut out);
        out.into()
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("data_bytes", &self.data.len())
            .field("attribute_bytes", &self.attributes.len())
            .field("has_ordering_key", &!self.key.is_empty())
            .finish()
    }
}

/// Bytes of a length-delimited field.
#[inline]
pub(crate) fn field_len(field: u32, len: usize) -> usize {
    varint_len(u64::from(field) << 3) + varint_len(len as u64) + len
}

/// Appends a length-delimited field.
pub(crate) fn put_field(out: &mut impl BufMut, field: u32, value: &[u8]) {
    put_head(out, field, value.len());
    out.put_slice(value);
}

/// Appends what comes before the `len` bytes of a length-delimited field.
#[inline]
pub(crate) fn put_head(out: &mut impl BufMut, field: u32, len: usize) {
    put_varint(out, (u64::from(field) << 3) | 2);
    put_varint(out, len as u64);
}

#[inline]
fn varint_len(value: u64) -> usize {
    (((value | 1).ilog2() as usize) + 7) / 7
}

#[inline]
fn put_varint(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_what_the_generated_type_reads(
            data in prop::collection::vec(any::<u8>(), 0..300),
            attributes in prop::collection::vec((".{0,5}", ".{0,200}"), 0..6),
            key in ".{0,200}",
        ) {
            let mut message = Message::new();
            message.data("earlier").data(&data).ordering_key("earlier").ordering_key(&key);
            for (name, value) in &attributes {
                message.attribute(name, value);
            }
            let encoded = message.encode();
            prop_assert_eq!(encoded.len(), message.encoded_len());
            let read = PubsubMessage::decode(encoded).expect("ours");
            prop_assert_eq!(&read.data[..], &data[..]);
            prop_assert_eq!(read.attributes, attributes.into_iter().collect::<HashMap<_, _>>());
            prop_assert_eq!(read.ordering_key, key);
            prop_assert!(read.message_id.is_empty() && read.publish_time.is_none());
        }
    }

    #[test]
    fn lengths_are_those_of_the_varints_around_them() {
        for len in [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152] {
            let mut out = Vec::new();
            put_field(&mut out, DATA, &vec![0; len]);
            assert_eq!(out.len(), field_len(DATA, len), "{len}");
        }
    }

    #[test]
    fn one_giant_message_does_not_pin_its_memory() {
        let mut message = Message::new();
        message
            .data(vec![0; 9 << 20])
            .attribute("k", "v".repeat(3 << 20));
        message.clear();
        assert!(message.data.capacity() + message.attributes.capacity() <= 2 << 20);
    }

    #[test]
    fn a_cleared_message_is_empty_and_debug_shows_no_content() {
        let mut message = Message::new();
        message
            .data("SECRET")
            .attribute("SECRET", "SECRET")
            .ordering_key("SECRET");
        assert!(!format!("{message:?}").contains("SECRET"));
        message.clear();
        assert_eq!(message.encoded_len(), 0);
        assert!(message.encode().is_empty());
    }
}
