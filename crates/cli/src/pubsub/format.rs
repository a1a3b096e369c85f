//! A message as text: one JSON object or one line.
//!
//! JSON loses nothing and is what `publish --as json` takes. A line is for a person: nothing in it reaches the terminal as a
//! control character.

use std::collections::BTreeMap;

use aqueduct::pubsub::ReceivedMessage;
use aqueduct::pubsub::source::DELIVERY_ATTEMPT;
use serde::Serialize;

use crate::printable::{Text, push, utc};

/// `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// One JSON object a line; data that is no UTF-8 is {"base64": "..."}.
    Json,
    /// One line: publish time, id, ordering key, delivery attempt, attributes, data.
    Text,
}

#[derive(Serialize)]
struct Json<'a> {
    message_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    publish_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery_attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ordering_key: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<&'a str, &'a str>,
    data: Text<'a>,
}

impl Format {
    /// The message with its line end.
    pub(super) fn write(self, message: &ReceivedMessage) -> Vec<u8> {
        // The attempt stands in a field of its own; as an attribute it was not published.
        let attributes: BTreeMap<&str, &str> = message
            .attributes()
            .filter(|(name, _)| *name != DELIVERY_ATTEMPT)
            .collect();
        let time = message
            .publish_time()
            .map(|time| utc(time.millis().saturating_mul(1_000)));
        match self {
            Self::Json => {
                let message = Json {
                    message_id: message.message_id(),
                    publish_time: time,
                    delivery_attempt: message.delivery_attempt(),
                    ordering_key: message.ordering_key(),
                    attributes,
                    data: Text(message.data()),
                };
                let mut line = serde_json::to_vec(&message).expect("memory takes every byte");
                line.push(b'\n');
                line
            }
            Self::Text => {
                let mut line = time.unwrap_or_else(|| "-".to_owned());
                line.push_str("  ");
                push(&mut line, message.message_id().as_bytes(), 0, None);
                if let Some(key) = message.ordering_key() {
                    line.push_str("  key ");
                    push(&mut line, key.as_bytes(), 0, None);
                }
                if let Some(attempt) = message.delivery_attempt() {
                    line.push_str(&format!("  attempt {attempt}"));
                }
                for (name, value) in attributes {
                    line.push_str("  ");
                    push(&mut line, name.as_bytes(), 0, None);
                    line.push('=');
                    push(&mut line, value.as_bytes(), 0, None);
                }
                line.push_str("  | ");
                push(&mut line, message.data(), 0, None);
                line.push('\n');
                line.into_bytes()
            }
        }
    }
}
