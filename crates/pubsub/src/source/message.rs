//! A received message, read where it lies in the response.

use std::fmt;

use aqueduct_connector::Timestamp;
use bytes::Bytes;

use crate::client::fields::{Fields, Malformed};
use crate::client::pull::decode::{attribute, decode};

/// The attribute that tells the delivery attempt, where the subscription has a dead-letter policy.
pub const DELIVERY_ATTEMPT: &str = "googclient_deliveryattempt";

/// A message as a deserializer gets it. Nothing is copied before it is asked for.
///
/// `Debug` shows the id and sizes, never contents.
#[derive(Clone)]
pub struct ReceivedMessage {
    encoded: Bytes,
    data: Bytes,
    id: Text,
    key: Text,
    publish_time: Option<(i64, i32)>,
    attempt: Option<(u32, Box<str>)>,
}

/// A checked piece of UTF-8.
#[derive(Clone, Default)]
struct Text(Bytes);

impl Text {
    fn get(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl ReceivedMessage {
    /// `attempt` is 0 without a dead-letter policy.
    pub(crate) fn new(encoded: Bytes, attempt: u32) -> Result<Self, Malformed> {
        let mut message = Self {
            data: Bytes::new(),
            id: Text::default(),
            key: Text::default(),
            publish_time: None,
            attempt: (attempt > 0).then(|| (attempt, attempt.to_string().into())),
            encoded: Bytes::new(),
        };
        let slice = |part: &[u8]| match part {
            [] => Bytes::new(),
            part => encoded.slice_ref(part),
        };
        let mut fields = Fields::new(&encoded);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => message.data = slice(value.bytes()?),
                3 => message.id = Text(slice(value.text()?.as_bytes())),
                4 => message.publish_time = Some(time(value.bytes()?)?),
                5 => message.key = Text(slice(value.text()?.as_bytes())),
                _ => {}
            }
        }
        message.encoded = encoded;
        Ok(message)
    }

    /// The payload. A clone of these `Bytes` keeps the whole response in memory: copy what outlives the call.
    #[must_use]
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// The service's id, unique in the topic.
    #[must_use]
    pub fn message_id(&self) -> &str {
        self.id.get()
    }

    /// The ordering key, if the message has one.
    #[must_use]
    pub fn ordering_key(&self) -> Option<&str> {
        Some(self.key.get()).filter(|key| !key.is_empty())
    }

    /// When the service took the message, rounded down to a millisecond.
    #[must_use]
    pub fn publish_time(&self) -> Option<Timestamp> {
        let (seconds, nanos) = self.publish_time?;
        let millis = i64::from(nanos.div_euclid(1_000_000));
        Some(Timestamp::from_millis(
            seconds.saturating_mul(1_000).saturating_add(millis),
        ))
    }

    /// Which attempt to deliver the message this is, counted from 1; only with a dead-letter policy.
    #[must_use]
    pub fn delivery_attempt(&self) -> Option<u32> {
        self.attempt.as_ref().map(|(attempt, _)| *attempt)
    }

    /// The attributes, in no order. With a dead-letter policy [`DELIVERY_ATTEMPT`] is among them.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut fields = Fields::new(&self.encoded);
        let sent = std::iter::from_fn(move || {
            loop {
                // Checked when the response was decoded.
                match fields.next().ok()?? {
                    (2, value) => return attribute(value.bytes().ok()?).ok(),
                    _ => continue,
                }
            }
        });
        let attempt = self.attempt.as_ref();
        sent.chain(attempt.map(|(_, text)| (DELIVERY_ATTEMPT, &**text)))
    }

    /// One attribute.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes()
            .find_map(|(key, value)| (key == name).then_some(value))
    }
}

impl fmt::Debug for ReceivedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivedMessage")
            .field("message_id", &self.message_id())
            .field("encoded_bytes", &self.encoded.len())
            .finish_non_exhaustive()
    }
}

fn time(encoded: &[u8]) -> Result<(i64, i32), Malformed> {
    let (mut seconds, mut nanos) = (0, 0);
    let mut fields = Fields::new(encoded);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => seconds = value.varint()?.cast_signed(),
            2 => nanos = i32::try_from(value.varint()?).map_err(|_| Malformed)?,
            _ => {}
        }
    }
    Ok((seconds, nanos))
}

/// Decodes foreign bytes as a response of a streaming pull and reads each of its messages to the last attribute. How many
/// there are, if it is one. For the fuzzer, which wants no panic.
#[doc(hidden)]
pub fn fuzz_pull_response(response: &[u8]) -> Option<usize> {
    let mut received = Vec::new();
    decode(&Bytes::copy_from_slice(response), &mut received).ok()?;
    for one in &received {
        if let Ok(message) = ReceivedMessage::new(one.message.clone(), one.attempt) {
            let _ = (message.data().len(), message.publish_time());
            let _ = (message.message_id().len(), message.ordering_key());
            let _ = message.attributes().count();
        }
    }
    Some(received.len())
}

#[cfg(test)]
mod tests {
    use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
    use prost::Message as _;

    use super::*;

    fn message(attempt: u32) -> ReceivedMessage {
        let message = pb::PubsubMessage {
            data: b"secret".to_vec().into(),
            attributes: [("channel".to_owned(), "mobile".to_owned())].into(),
            message_id: "17".to_owned(),
            publish_time: Some(prost_types::Timestamp {
                seconds: -1,
                nanos: 999_999_999,
            }),
            ordering_key: String::new(),
        };
        ReceivedMessage::new(message.encode_to_vec().into(), attempt).expect("valid")
    }

    #[test]
    fn every_field_reads_and_the_time_is_rounded_down() {
        let message = message(0);
        assert_eq!(message.data(), "secret");
        assert_eq!(message.message_id(), "17");
        assert_eq!(message.ordering_key(), None);
        assert_eq!(message.publish_time(), Some(Timestamp::from_millis(-1)));
        assert_eq!(message.attribute("channel"), Some("mobile"));
        assert_eq!(message.attributes().count(), 1);
        assert_eq!(message.delivery_attempt(), None);
        assert!(!format!("{message:?}").contains("secret"));
    }

    #[test]
    fn a_delivery_attempt_shows_as_an_attribute() {
        assert_eq!(message(3).attribute(DELIVERY_ATTEMPT), Some("3"));
        assert_eq!(message(3).attributes().count(), 2);
    }
}
