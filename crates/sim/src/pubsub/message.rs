//! Messages: what a publish may hold, how they are stored, how deliveries are encoded.

use std::{collections::HashMap, fmt, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use prost::{
    Message,
    encoding::{encode_varint, encoded_len_varint},
};

use super::{
    clock::{Nanos, timestamp},
    config::PubSubLimits,
};
use crate::bigtable::store::Refusal;

/// Ids look like the service's: decimals of seventeen digits. The rest of an id is its position
/// among all that was published.
const FIRST_ID: u64 = 10_000_000_000_000_000;

pub(crate) fn id_of(sequence: u64) -> String {
    (FIRST_ID + sequence).to_string()
}

pub(crate) fn sequence_of(id: &str) -> Option<u64> {
    id.parse::<u64>().ok()?.checked_sub(FIRST_ID)
}

/// A published message.
pub(crate) struct Stored {
    pub(crate) sequence: u64,
    pub(crate) published: Nanos,
    /// When it came, which is not `published` if a test chose that. Retention goes by it.
    pub(crate) arrived: Nanos,
    /// With id and publish time.
    pub(crate) message: pb::PubsubMessage,
    pub(crate) encoded_len: usize,
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored")
            .field("sequence", &self.sequence)
            .field("encoded_len", &self.encoded_len)
            .finish_non_exhaustive()
    }
}

impl Stored {
    pub(crate) fn new(
        sequence: u64,
        published: Nanos,
        arrived: Nanos,
        mut message: pb::PubsubMessage,
    ) -> Self {
        message.message_id = id_of(sequence);
        message.publish_time = Some(timestamp(published));
        // Copied, since what arrived is a slice of its whole request.
        message.data = Bytes::copy_from_slice(&message.data);
        Self {
            sequence,
            published,
            arrived,
            encoded_len: message.encoded_len(),
            message,
        }
    }

    pub(crate) fn key(&self) -> &str {
        &self.message.ordering_key
    }
}

/// One delivery of a message.
pub(crate) struct Delivery {
    pub(crate) ack_id: String,
    pub(crate) message: Arc<Stored>,
    /// 0 without a dead-letter policy.
    pub(crate) attempt: i32,
}

/// A framed `StreamingPullResponse` or `PullResponse` with these deliveries, then `rest`: encoded
/// further fields.
pub(crate) fn frame_deliveries(deliveries: &[Delivery], rest: &[u8]) -> Bytes {
    let inner = |delivery: &Delivery| {
        let field = |length: usize| 1 + encoded_len_varint(length as u64) + length;
        let attempt = u64::try_from(delivery.attempt).unwrap_or(0);
        let attempt = if attempt == 0 {
            0
        } else {
            1 + encoded_len_varint(attempt)
        };
        field(delivery.ack_id.len()) + field(delivery.message.encoded_len) + attempt
    };
    let length: usize = deliveries
        .iter()
        .map(|delivery| {
            let inner = inner(delivery);
            1 + encoded_len_varint(inner as u64) + inner
        })
        .sum::<usize>()
        + rest.len();
    let mut buffer = BytesMut::with_capacity(5 + length);
    buffer.put_u8(0);
    buffer.put_u32(u32::try_from(length).expect("responses are far below 4 GiB"));
    for delivery in deliveries {
        // received_messages = 1 in both responses.
        buffer.put_u8(0x0a);
        encode_varint(inner(delivery) as u64, &mut buffer);
        buffer.put_u8(0x0a);
        encode_varint(delivery.ack_id.len() as u64, &mut buffer);
        buffer.put_slice(delivery.ack_id.as_bytes());
        buffer.put_u8(0x12);
        encode_varint(delivery.message.encoded_len as u64, &mut buffer);
        delivery
            .message
            .message
            .encode(&mut buffer)
            .expect("a growing buffer has room");
        if let Ok(attempt @ 1..) = u64::try_from(delivery.attempt) {
            buffer.put_u8(0x18);
            encode_varint(attempt, &mut buffer);
        }
    }
    buffer.put_slice(rest);
    buffer.freeze()
}

/// Judges a whole publish: one bad message refuses all, and nothing tells which it was.
pub(crate) fn check(
    messages: &[pb::PubsubMessage],
    bytes: usize,
    limits: &PubSubLimits,
) -> Result<(), Refusal> {
    if messages.is_empty() {
        return Err(Refusal::invalid(
            "The publish request must contain at least one message",
        ));
    }
    if messages.len() > limits.messages_per_publish {
        return Err(Refusal::invalid(format!(
            "The value for message_count is too large. You passed {} in the request, but the \
             maximum value is {}",
            messages.len(),
            limits.messages_per_publish
        )));
    }
    if bytes > limits.publish_bytes {
        return Err(Refusal::invalid(format!(
            "Request payload size exceeds the limit: {} bytes",
            limits.publish_bytes
        )));
    }
    let key = &messages[0].ordering_key;
    for message in messages {
        check_message(message, limits)?;
        if message.ordering_key != *key {
            return Err(Refusal::invalid(
                "In a single publish request, all messages must have no ordering key or they must \
                 all have the same ordering key",
            ));
        }
    }
    Ok(())
}

fn check_message(message: &pb::PubsubMessage, limits: &PubSubLimits) -> Result<(), Refusal> {
    if message.data.is_empty() && message.attributes.is_empty() {
        return Err(Refusal::invalid(
            "One or more messages in the publish request is empty. Each message must contain \
             either non-empty data, or at least one attribute",
        ));
    }
    if !message.message_id.is_empty() || message.publish_time.is_some() {
        return Err(Refusal::invalid(
            "A message in the publish request has a message_id or a publish_time, which the \
             service sets",
        ));
    }
    if message.data.len() > limits.message_bytes {
        return Err(Refusal::invalid(format!(
            "The message is too large: the maximum is {} bytes",
            limits.message_bytes
        )));
    }
    if message.ordering_key.len() > limits.ordering_key_bytes {
        return Err(Refusal::invalid(format!(
            "The ordering key is too long: the maximum is {} bytes",
            limits.ordering_key_bytes
        )));
    }
    check_attributes(&message.attributes, limits)
}

fn check_attributes(
    attributes: &HashMap<String, String>,
    limits: &PubSubLimits,
) -> Result<(), Refusal> {
    if attributes.len() > limits.attributes {
        return Err(Refusal::invalid(format!(
            "The message has too many attributes: the maximum is {}",
            limits.attributes
        )));
    }
    for (key, value) in attributes {
        if key.is_empty() || key.len() > limits.attribute_key_bytes || key.starts_with("goog") {
            return Err(Refusal::invalid(format!(
                "An attribute key must have 1 to {} bytes and not start with \"goog\"",
                limits.attribute_key_bytes
            )));
        }
        if value.len() > limits.attribute_value_bytes {
            return Err(Refusal::invalid(format!(
                "An attribute value is too long: the maximum is {} bytes",
                limits.attribute_value_bytes
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    //! What is written by hand is what the generated type reads.

    use super::*;

    #[test]
    fn deliveries_encoded_by_hand_read_as_generated_types() {
        let deliveries: Vec<Delivery> = (0..200_u32)
            .map(|n| Delivery {
                ack_id: "a".repeat(n as usize),
                message: Arc::new(Stored::new(
                    n.into(),
                    1_700_000_000_123_456_789,
                    0,
                    pb::PubsubMessage {
                        data: vec![7; n as usize * 3].into(),
                        attributes: HashMap::from([("n".to_owned(), n.to_string())]),
                        ..Default::default()
                    },
                )),
                attempt: i32::try_from(n).expect("small") * 10,
            })
            .collect();
        let framed = frame_deliveries(&deliveries, &[]);
        let declared = u32::from_be_bytes([framed[1], framed[2], framed[3], framed[4]]);
        assert_eq!(declared as usize, framed.len() - 5);
        let response = pb::StreamingPullResponse::decode(&framed[5..]).expect("well-formed");
        assert_eq!(response.received_messages.len(), deliveries.len());
        for (received, delivery) in response.received_messages.iter().zip(&deliveries) {
            assert_eq!(received.ack_id, delivery.ack_id);
            assert_eq!(received.delivery_attempt, delivery.attempt);
            assert_eq!(
                received.message.as_ref(),
                Some(&delivery.message.message),
                "message {}",
                delivery.message.sequence
            );
        }
    }
}
