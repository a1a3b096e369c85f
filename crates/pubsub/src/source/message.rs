//! A received message, read where it lies in the response.

use std::fmt;
use std::io::Write as _;

use aqueduct_connector::Timestamp;
use bytes::Bytes;

use crate::client::fields::Fields;
use crate::client::pull::decode::{Contents, Layout, Room, Span, attribute, decode};

/// The attribute that tells the delivery attempt, where the subscription has a dead-letter policy.
pub const DELIVERY_ATTEMPT: &str = "googclient_deliveryattempt";

/// A message as a deserializer gets it. Nothing is copied before it is asked for.
///
/// A clone keeps the whole response in memory that brought the message.
///
/// `Debug` shows the id and sizes, never contents.
#[derive(Clone)]
pub struct ReceivedMessage {
    response: Bytes,
    data: Bytes,
    at: Layout,
    attempt: Option<Attempt>,
}

/// A delivery attempt, as text too.
#[derive(Clone, Copy)]
struct Attempt {
    number: u32,
    /// Decimal, from the front.
    text: [u8; 10],
    length: u8,
}

impl Attempt {
    fn new(number: u32) -> Self {
        let mut text = [0; 10];
        let mut rest = &mut text[..];
        // Ten digits hold every such number.
        let _ = write!(rest, "{number}");
        let length = 10 - rest.len() as u8;
        Self {
            number,
            text,
            length,
        }
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.text[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl ReceivedMessage {
    /// Of the response that is to be read next; [`look_at`](Self::look_at) says which message.
    pub(crate) fn of(contents: &Contents) -> Self {
        Self {
            response: contents.bytes.clone(),
            data: Bytes::new(),
            at: Layout::default(),
            attempt: None,
        }
    }

    /// Goes on to another message of the response.
    #[inline]
    pub(crate) fn look_at(&mut self, layout: &Layout) {
        self.at = *layout;
        self.data = self.response.slice(layout.data.range());
        self.attempt = (layout.attempt > 0).then(|| Attempt::new(layout.attempt));
    }

    fn text(&self, span: Span) -> &str {
        // Checked when the response was decoded.
        std::str::from_utf8(&self.response[span.range()]).unwrap_or_default()
    }

    /// The payload. A clone of these `Bytes` keeps the whole response in memory: copy what outlives the call.
    #[must_use]
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// The service's id, unique in the topic.
    #[must_use]
    pub fn message_id(&self) -> &str {
        self.text(self.at.id)
    }

    /// The ordering key, if the message has one.
    #[must_use]
    pub fn ordering_key(&self) -> Option<&str> {
        Some(self.text(self.at.ordering_key)).filter(|key| !key.is_empty())
    }

    /// When the service took the message, rounded down to a millisecond.
    #[must_use]
    pub fn publish_time(&self) -> Option<Timestamp> {
        self.at.publish_time
    }

    /// Which attempt to deliver the message this is, counted from 1; only with a dead-letter policy.
    #[must_use]
    pub fn delivery_attempt(&self) -> Option<u32> {
        self.attempt.map(|attempt| attempt.number)
    }

    /// The attributes, in no order. With a dead-letter policy [`DELIVERY_ATTEMPT`] is among them.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut fields = Fields::new(&self.response[self.at.message.range()]);
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
        sent.chain(attempt.map(|attempt| (DELIVERY_ATTEMPT, attempt.text())))
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
            .field("encoded_bytes", &self.at.message.len())
            .finish_non_exhaustive()
    }
}

/// Decodes foreign bytes as a response of a streaming pull and reads each of its messages to the last attribute. How many
/// there are, if it is one. For the fuzzer, which wants no panic.
#[doc(hidden)]
pub fn fuzz_pull_response(response: &[u8]) -> Option<usize> {
    let response = decode(Bytes::copy_from_slice(response), Room::default()).ok()?;
    let mut message = ReceivedMessage::of(&response.contents);
    for (at, layout) in response.contents.messages.iter().enumerate() {
        message.look_at(layout);
        let _ = (
            message.data().len(),
            message.publish_time(),
            message.delivery_attempt(),
        );
        let _ = (
            message.message_id().len(),
            message.ordering_key(),
            response.contents.key(at),
        );
        let _ = message.attributes().count();
    }
    Some(response.contents.messages.len())
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
        let response = pb::StreamingPullResponse {
            received_messages: vec![pb::ReceivedMessage {
                ack_id: "a".to_owned(),
                message: Some(message),
                delivery_attempt: i32::try_from(attempt).expect("small"),
            }],
            ..Default::default()
        };
        let response = decode(response.encode_to_vec().into(), Room::default()).expect("valid");
        let mut message = ReceivedMessage::of(&response.contents);
        message.look_at(&response.contents.messages[0]);
        message
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
        let largest = Attempt::new(u32::MAX);
        assert_eq!(largest.text(), u32::MAX.to_string());
    }
}
