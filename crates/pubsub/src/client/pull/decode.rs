//! Responses of a streaming pull, decoded by hand.
//!
//! # Invariants
//!
//! - A message body is a slice of the response; ack ids, which outlive it, are copied into one allocation a response.
//! - A response decodes whole or not at all.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use bytes::{BufMut, Bytes, BytesMut};

use crate::client::fields::{Fields, Malformed};

/// Identity of a message within its topic. Ids are decimal numbers in practice, which need no memory of their own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MessageId {
    Number(u64),
    Text(Box<str>),
}

impl MessageId {
    pub(crate) fn new(text: &str) -> Self {
        let canonical = !text.is_empty()
            && text.len() < 20
            && text.bytes().all(|byte| byte.is_ascii_digit())
            && (text == "0" || !text.starts_with('0'));
        match text.parse() {
            Ok(number) if canonical => Self::Number(number),
            _ => Self::Text(text.into()),
        }
    }
}

/// A delivered copy of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) id: MessageId,
    pub(crate) ack_id: Bytes,
    /// The encoded `PubsubMessage`.
    pub(crate) message: Bytes,
    /// Stands for the ordering key; 0 without one. Two keys may share a number, which only costs a redelivery.
    pub(crate) key: u64,
    /// 0 without a dead-letter policy.
    pub(crate) attempt: u32,
}

/// What a stream tells of its subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Properties {
    pub(crate) exactly_once: bool,
}

/// Appends the messages of `response` to `out`.
pub(crate) fn decode(
    response: &Bytes,
    out: &mut Vec<Received>,
) -> Result<Option<Properties>, Malformed> {
    let begin = out.len();
    let mut ack_ids = BytesMut::new();
    let mut ends = Vec::new();
    let mut properties = None;
    let mut fields = Fields::new(response);
    let mut parse = || -> Result<(), Malformed> {
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => {
                    out.push(received(response, value.bytes()?, &mut ack_ids)?);
                    ends.push(ack_ids.len());
                }
                4 => properties = Some(subscription_properties(value.bytes()?)?),
                _ => {}
            }
        }
        Ok(())
    };
    if let Err(malformed) = parse() {
        out.truncate(begin);
        return Err(malformed);
    }
    let ack_ids = ack_ids.freeze();
    let mut start = 0;
    for (received, end) in out[begin..].iter_mut().zip(ends) {
        received.ack_id = ack_ids.slice(start..end);
        start = end;
    }
    Ok(properties)
}

fn received(
    response: &Bytes,
    encoded: &[u8],
    ack_ids: &mut BytesMut,
) -> Result<Received, Malformed> {
    let (mut message, mut attempt, mut ack_id) = (&[][..], 0, "");
    let mut fields = Fields::new(encoded);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => ack_id = value.text()?,
            2 => message = value.bytes()?,
            3 => attempt = u32::try_from(value.varint()?).unwrap_or(0),
            _ => {}
        }
    }
    ack_ids.put_slice(ack_id.as_bytes());
    let (mut id, mut key) = ("", "");
    let mut fields = Fields::new(message);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => _ = value.bytes()?,
            2 => attribute(value.bytes()?).map(|_| ())?,
            3 => id = value.text()?,
            5 => key = value.text()?,
            _ => {}
        }
    }
    Ok(Received {
        id: MessageId::new(id),
        ack_id: Bytes::new(),
        message: if message.is_empty() {
            Bytes::new()
        } else {
            response.slice_ref(message)
        },
        key: key_number(key),
        attempt,
    })
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

/// What stands for an ordering key.
pub(crate) fn key_number(key: &str) -> u64 {
    if key.is_empty() {
        return 0;
    }
    BuildHasherDefault::<DefaultHasher>::default()
        .hash_one(key)
        .max(1)
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
            let mut out = Vec::new();
            let properties = decode(&response.encode_to_vec().into(), &mut out);
            prop_assert_eq!(properties, Ok(Some(Properties { exactly_once: once })));
            prop_assert_eq!(out.len(), ids.len());
            for (received, id) in out.iter().zip(ids) {
                prop_assert_eq!(&received.id, &MessageId::new(&id.to_string()));
                prop_assert_eq!(&received.ack_id[..], format!("ack-{id}").into_bytes());
                prop_assert_eq!(u64::from(received.attempt), id % 5);
                prop_assert_eq!(received.key == 0, key.is_empty());
                let again = pb::PubsubMessage::decode(received.message.clone()).expect("whole");
                prop_assert_eq!(again.data, data.clone());
            }
        }

        #[test]
        fn no_bytes_make_it_panic_and_a_broken_response_gives_nothing(bytes: Vec<u8>, cut in 0usize..200) {
            let mut out = Vec::new();
            if decode(&bytes.into(), &mut out).is_err() {
                prop_assert!(out.is_empty());
            }
            let response = pb::StreamingPullResponse {
                received_messages: vec![message(1, "k", b"data"), message(2, "", b"")],
                ..Default::default()
            };
            let mut whole = response.encode_to_vec();
            whole.truncate(cut);
            out.clear();
            if decode(&whole.into(), &mut out).is_err() {
                prop_assert!(out.is_empty());
            }
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
