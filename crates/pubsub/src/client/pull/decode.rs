//! Responses of a streaming pull, decoded by hand, once.
//!
//! # Invariants
//!
//! - Nothing of a message is copied: its parts are places in the response. Ack ids, which outlive the response, are copied
//!   into one buffer a response, in the form that acknowledgements need.
//! - A response decodes whole or not at all.

use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use aqueduct_connector::Timestamp;
use bytes::Bytes;

use crate::client::ack::AckIds;
use crate::client::fields::{Fields, Malformed};

/// Identity of a message within its topic. Ids are decimal numbers in practice, which need no memory of their own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MessageId {
    Number(u64),
    Text(Box<str>),
}

impl MessageId {
    #[cfg(test)]
    pub(crate) fn new(text: &str) -> Self {
        Self::read(text.as_bytes()).expect("text is UTF-8")
    }

    fn read(text: &[u8]) -> Result<Self, Malformed> {
        if let Some(number) = number(text) {
            return Ok(Self::Number(number));
        }
        let text = std::str::from_utf8(text).map_err(|_| Malformed)?;
        Ok(Self::Text(text.into()))
    }
}

/// The number that `text` is the canonical decimal text of, up to 19 digits.
#[inline]
fn number(text: &[u8]) -> Option<u64> {
    let canonical = matches!(text, [b'0'] | [b'1'..=b'9', ..]) && text.len() < 20;
    if !canonical {
        return None;
    }
    let mut number = 0;
    let (eights, rest) = text.as_chunks::<8>();
    for eight in eights {
        number = number * 100_000_000 + eight_digits(*eight)?;
    }
    for digit in rest {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number * 10 + u64::from(digit);
    }
    Some(number)
}

/// Eight digits at once: neighbours become pairs, pairs fours, fours the number.
#[inline]
fn eight_digits(text: [u8; 8]) -> Option<u64> {
    const TOPS: u64 = 0x8080_8080_8080_8080;
    let text = u64::from_le_bytes(text);
    let digits = text.wrapping_sub(0x3030_3030_3030_3030);
    // A byte above '9' passes 0x7f here, one below '0' above; a borrow or a carry only makes more of them pass.
    if (text.wrapping_add(0x4646_4646_4646_4646) | digits | text) & TOPS != 0 {
        return None;
    }
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours * 10_000 + (fours >> 32)) & 0xffff_ffff)
}

/// A piece of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// Where `part` lies in `whole`, of which it is a slice.
    #[inline]
    fn of(part: &[u8], whole: &[u8]) -> Self {
        let start = part.as_ptr().addr() - whole.as_ptr().addr();
        // A response's length was checked before.
        Self {
            start: start as u32,
            end: (start + part.len()) as u32,
        }
    }

    #[inline]
    pub(crate) fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }

    #[inline]
    pub(crate) fn len(self) -> u32 {
        self.end - self.start
    }
}

/// Where the parts of a message lie. Texts were checked to be UTF-8.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Layout {
    /// The encoded `PubsubMessage`.
    pub(crate) message: Span,
    pub(crate) data: Span,
    pub(crate) id: Span,
    pub(crate) ordering_key: Span,
    /// Rounded down to a millisecond.
    pub(crate) publish_time: Option<Timestamp>,
    /// 0 without a dead-letter policy.
    pub(crate) attempt: u32,
}

/// A response's bytes and where its messages lie in them.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) bytes: Bytes,
    pub(crate) messages: Vec<Layout>,
}

impl Contents {
    /// Stands for the ordering key of a message; 0 without one. Two keys may share a number, which only costs a redelivery.
    pub(crate) fn key(&self, at: usize) -> u64 {
        match &self.bytes[self.messages[at].ordering_key.range()] {
            [] => 0,
            key => BuildHasherDefault::<DefaultHasher>::default()
                .hash_one(key)
                .max(1),
        }
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} messages, {} bytes",
            self.messages.len(),
            self.bytes.len()
        )
    }
}

/// What a stream tells of its subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Properties {
    pub(crate) exactly_once: bool,
}

/// A decoded response: as many ids and ack ids as messages.
#[derive(Debug, Default)]
pub(crate) struct Response {
    pub(crate) contents: Arc<Contents>,
    pub(crate) ids: Vec<MessageId>,
    pub(crate) ack_ids: AckIds,
    pub(crate) properties: Option<Properties>,
}

/// What an earlier response has left: empty, with room.
#[derive(Debug, Default)]
pub(crate) struct Room {
    pub(crate) ids: Vec<MessageId>,
    pub(crate) ack_ids: AckIds,
}

/// Decodes a response into `room`.
pub(crate) fn decode(bytes: Bytes, room: Room) -> Result<Response, Malformed> {
    // Places are 32 bits wide.
    u32::try_from(bytes.len()).map_err(|_| Malformed)?;
    let mut response = Response {
        ids: room.ids,
        ack_ids: room.ack_ids,
        ..Response::default()
    };
    let mut messages = Vec::new();
    let mut fields = Fields::new(&bytes);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => {
                let received = value.bytes()?;
                if messages.is_empty() {
                    response.reserve(&mut messages, received, bytes.len());
                }
                response.received(&bytes, received, &mut messages)?;
            }
            4 => response.properties = Some(subscription_properties(value.bytes()?)?),
            _ => {}
        }
    }
    if !messages.is_empty() {
        response.contents = Arc::new(Contents { bytes, messages });
    }
    Ok(response)
}

impl Response {
    /// Room for as many messages as there are, if all are like the first; the service sends hundreds in one response.
    fn reserve(&mut self, messages: &mut Vec<Layout>, first: &[u8], bytes: usize) {
        const MOST: usize = 1_000;
        let guess = (bytes / first.len().max(1) + 1).min(MOST);
        messages.reserve(guess);
        self.ids.reserve(guess);
        let ack_id = match Fields::new(first).next() {
            Ok(Some((1, value))) => value.bytes().map_or(0, <[u8]>::len),
            _ => 0,
        };
        self.ack_ids
            .reserve(guess, (guess * (ack_id + 3)).min(bytes));
    }

    fn received(
        &mut self,
        response: &[u8],
        encoded: &[u8],
        messages: &mut Vec<Layout>,
    ) -> Result<(), Malformed> {
        let (mut message, mut ack_id) = (&response[..0], &[][..]);
        let mut layout = Layout::default();
        let mut fields = Fields::new(encoded);
        while let Some((number, value)) = fields.next()? {
            match number {
                // Never looked into; whatever it is, the service gets it back as it came.
                1 => ack_id = value.bytes()?,
                2 => message = value.bytes()?,
                3 => layout.attempt = u32::try_from(value.varint()?).unwrap_or(0),
                _ => {}
            }
        }
        layout.message = Span::of(message, response);
        let mut id = &[][..];
        let mut fields = Fields::new(message);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => layout.data = Span::of(value.bytes()?, response),
                2 => attribute(value.bytes()?).map(|_| ())?,
                3 => {
                    id = value.bytes()?;
                    layout.id = Span::of(id, response);
                }
                4 => layout.publish_time = Some(time(value.bytes()?)?),
                5 => {
                    let key = value.text()?;
                    layout.ordering_key = Span::of(key.as_bytes(), response);
                }
                _ => {}
            }
        }
        self.ids.push(MessageId::read(id)?);
        if !self.ack_ids.push(ack_id) {
            return Err(Malformed);
        }
        messages.push(layout);
        Ok(())
    }
}

/// A timestamp, rounded down to a millisecond.
fn time(encoded: &[u8]) -> Result<Timestamp, Malformed> {
    let mut fields = Fields::new(encoded);
    let mut seconds = fields.number(1)?.unwrap_or(0).cast_signed();
    let mut nanos = nanos_of(fields.number(2)?.unwrap_or(0))?;
    // Whatever comes in another order.
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => seconds = value.varint()?.cast_signed(),
            2 => nanos = nanos_of(value.varint()?)?,
            _ => {}
        }
    }
    let millis = i64::from(nanos.div_euclid(1_000_000));
    Ok(Timestamp::from_millis(
        seconds.saturating_mul(1_000).saturating_add(millis),
    ))
}

fn nanos_of(number: u64) -> Result<i32, Malformed> {
    i32::try_from(number).map_err(|_| Malformed)
}

/// Key and value of an attribute entry.
pub(crate) fn attribute(entry: &[u8]) -> Result<(&str, &str), Malformed> {
    let (mut key, mut text) = ("", "");
    let mut fields = Fields::new(entry);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => key = value.text()?,
            2 => text = value.text()?,
            _ => {}
        }
    }
    Ok((key, text))
}

fn subscription_properties(encoded: &[u8]) -> Result<Properties, Malformed> {
    let mut properties = Properties::default();
    let mut fields = Fields::new(encoded);
    while let Some((number, value)) = fields.next()? {
        if number == 1 {
            properties.exactly_once = value.varint()? != 0;
        }
    }
    Ok(properties)
}

#[cfg(test)]
mod tests {
    use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    fn message(id: u64, key: &str, data: &[u8]) -> pb::ReceivedMessage {
        pb::ReceivedMessage {
            ack_id: format!("ack-{id}"),
            message: Some(pb::PubsubMessage {
                data: data.to_vec().into(),
                attributes: [("a".to_owned(), "b".to_owned())].into(),
                message_id: id.to_string(),
                publish_time: Some(prost_types::Timestamp {
                    seconds: 5,
                    nanos: 6,
                }),
                ordering_key: key.to_owned(),
            }),
            delivery_attempt: i32::try_from(id % 5).expect("small"),
        }
    }

    proptest! {
        #[test]
        fn it_reads_what_the_generated_types_write(
            ids in prop::collection::vec(any::<u64>(), 0..20), data: Vec<u8>, key in "[a-z]{0,4}", once: bool,
        ) {
            let response = pb::StreamingPullResponse {
                received_messages: ids.iter().map(|id| message(*id, &key, &data)).collect(),
                subscription_properties: Some(pb::streaming_pull_response::SubscriptionProperties {
                    exactly_once_delivery_enabled: once,
                    message_ordering_enabled: true,
                }),
                ..Default::default()
            };
            let wire = Bytes::from(response.encode_to_vec());
            let decoded = decode(wire.clone(), Room::default()).expect("valid");
            prop_assert_eq!(decoded.properties, Some(Properties { exactly_once: once }));
            prop_assert_eq!(decoded.ids.len(), ids.len());
            prop_assert_eq!(decoded.contents.messages.len(), ids.len());
            for (at, id) in ids.iter().enumerate() {
                let layout = decoded.contents.messages[at];
                let part = |span: Span| &wire[span.range()];
                prop_assert_eq!(&decoded.ids[at], &MessageId::new(&id.to_string()));
                prop_assert_eq!(decoded.ack_ids.get(at), format!("ack-{id}").into_bytes());
                prop_assert_eq!(u64::from(layout.attempt), id % 5);
                prop_assert_eq!(decoded.contents.key(at) == 0, key.is_empty());
                prop_assert_eq!(part(layout.data), &data[..]);
                let text = id.to_string();
                prop_assert_eq!(part(layout.id), text.as_bytes());
                prop_assert_eq!(part(layout.ordering_key), key.as_bytes());
                prop_assert_eq!(layout.publish_time, Some(Timestamp::from_millis(5_000)));
                let again = pb::PubsubMessage::decode(part(layout.message)).expect("whole");
                prop_assert_eq!(again.data, data.clone());
            }
        }

        /// Nothing panics, and what decodes lies within the bytes.
        #[test]
        fn whatever_bytes_come_are_read_or_refused(
            ids in prop::collection::vec(any::<u64>(), 1..4), flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut: prop::sample::Index, other: Vec<u8>,
        ) {
            let _ = decode(other.into(), Room::default());
            let response = pb::StreamingPullResponse {
                received_messages: ids.iter().map(|id| message(*id, "k", b"data")).collect(),
                ..Default::default()
            };
            let mut wire = response.encode_to_vec();
            for (at, byte) in flips {
                let at = at.index(wire.len());
                wire[at] = byte;
            }
            wire.truncate(cut.index(wire.len() + 1));
            let wire = Bytes::from(wire);
            if let Ok(decoded) = decode(wire.clone(), Room::default()) {
                let messages = &decoded.contents.messages;
                prop_assert_eq!(messages.len(), decoded.ids.len());
                for (at, layout) in messages.iter().enumerate() {
                    for span in [layout.message, layout.data, layout.id, layout.ordering_key] {
                        prop_assert!(wire.get(span.range()).is_some());
                    }
                    prop_assert!(std::str::from_utf8(&wire[layout.id.range()]).is_ok());
                    prop_assert!(decoded.ack_ids.get(at).len() < wire.len());
                }
            }
        }

        #[test]
        fn a_number_is_what_parsing_says(text in "[0-9]{1,21}", other in "[0-9/:a-z\\u{e9}]{1,12}") {
            let canonical = text.len() < 20 && (text == "0" || !text.starts_with('0'));
            prop_assert_eq!(number(text.as_bytes()), text.parse().ok().filter(|_| canonical));
            let canonical = other.bytes().all(|byte| byte.is_ascii_digit()) && (other == "0" || !other.starts_with('0'));
            prop_assert_eq!(number(other.as_bytes()).is_some(), canonical);
        }
    }

    #[test]
    fn only_canonical_numbers_become_numbers() {
        for text in ["", "007", "+1", "99999999999999999999", "a"] {
            assert_eq!(MessageId::new(text), MessageId::Text(text.into()));
        }
        assert_eq!(MessageId::new("0"), MessageId::Number(0));
        assert_eq!(
            MessageId::new("9999999999999999999"),
            MessageId::Number(9_999_999_999_999_999_999)
        );
    }
}
