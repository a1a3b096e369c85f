//! What becomes a message: lines, a whole input, or JSON.
//!
//! # Invariants
//!
//! - At most one message more than a request holds is in memory, and none above [`MOST_BYTES`].
//! - An error names the place in the input and never shows its content.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;

use aqueduct::pubsub::Message;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

/// Bytes of a message that the service takes.
const MOST_BYTES: usize = 10 << 20;

/// `--as`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Shape {
    /// Each line is the data of a message, without its line end.
    Lines,
    /// The whole input is the data of one message.
    Whole,
    /// Each line is a JSON object with 'data' (a text, or {"base64": "..."}), 'attributes' and 'ordering_key', as `pull
    /// --format json` prints it; what the service adds is ignored.
    Json,
}

/// What every message gets that has none of its own.
#[derive(Clone, Debug, Default)]
pub(super) struct Defaults {
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) ordering_key: Option<String>,
}

/// A message and where it came from.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) message: Message,
    /// For errors.
    pub(super) place: String,
}

/// The messages of an input.
pub(super) struct Input {
    reader: Pin<Box<dyn AsyncBufRead>>,
    shape: Shape,
    defaults: Defaults,
    /// What was read of the next message.
    partial: Vec<u8>,
    lines: u64,
    ended: bool,
}

impl Input {
    pub(super) fn new(
        reader: Pin<Box<dyn AsyncBufRead>>,
        shape: Shape,
        defaults: Defaults,
    ) -> Self {
        Self {
            reader,
            shape,
            defaults,
            partial: Vec::new(),
            lines: 0,
            ended: false,
        }
    }

    /// The next message, `None` at the end. Dropping the wait loses nothing.
    pub(super) async fn next(&mut self) -> Result<Option<Item>, String> {
        loop {
            if self.ended {
                return Ok(None);
            }
            if self.partial.len() > MOST_BYTES + 1 {
                return Err(format!(
                    "{} has more than 10 MiB, which no message may have",
                    self.place()
                ));
            }
            let available = self.reader.fill_buf().await.map_err(cannot_read)?;
            let read = available.len();
            let end = match self.shape {
                Shape::Whole => None,
                Shape::Lines | Shape::Json => available.iter().position(|byte| *byte == b'\n'),
            };
            match end {
                Some(end) => {
                    self.partial.extend_from_slice(&available[..end]);
                    self.reader.as_mut().consume(end + 1);
                }
                None if read > 0 => {
                    self.partial.extend_from_slice(available);
                    self.reader.as_mut().consume(read);
                    continue;
                }
                None => {
                    self.ended = true;
                    if self.partial.is_empty() && self.shape != Shape::Whole {
                        return Ok(None);
                    }
                }
            }
            self.lines += 1;
            let mut content = std::mem::take(&mut self.partial);
            if self.shape != Shape::Whole && content.last() == Some(&b'\r') {
                content.pop();
            }
            let place = self.place();
            let message = self
                .message(&content)
                .map_err(|what| format!("{place} {what}"))?;
            return Ok(Some(Item { message, place }));
        }
    }

    fn place(&self) -> String {
        match self.shape {
            Shape::Whole => "the input".to_owned(),
            Shape::Lines | Shape::Json => format!("line {}", self.lines.max(1)),
        }
    }

    fn message(&self, content: &[u8]) -> Result<Message, String> {
        let mut message = Message::new();
        let mut attributes = self.defaults.attributes.clone();
        let mut key = self.defaults.ordering_key.clone();
        match self.shape {
            Shape::Lines | Shape::Whole => {
                message.data(content);
            }
            Shape::Json => {
                let json = Json::read(content)?;
                message.data(json.data);
                attributes.extend(json.attributes);
                key = json.ordering_key.or(key);
            }
        }
        if message.encoded_len() == 0 && attributes.is_empty() {
            return Err(
                "is empty: Pub/Sub takes no message without data and attributes; give it an --attribute or remove it"
                    .to_owned(),
            );
        }
        for (name, value) in &attributes {
            message.attribute(name, value);
        }
        if let Some(key) = &key {
            message.ordering_key(key);
        }
        if message.encoded_len() > MOST_BYTES {
            return Err("has more than 10 MiB, which no message may have".to_owned());
        }
        Ok(message)
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn cannot_read(error: io::Error) -> String {
    format!("cannot read the input: {error}")
}

/// A message as a JSON object.
#[derive(Debug, Default)]
struct Json {
    data: Vec<u8>,
    attributes: BTreeMap<String, String>,
    ordering_key: Option<String>,
}

impl Json {
    /// By hand, since the decoder's words would quote the data.
    fn read(line: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(line).map_err(|error| {
            format!(
                "is no JSON object, from column {} on; --as lines takes plain text",
                error.column()
            )
        })?;
        let Value::Object(fields) = value else {
            return Err("is JSON and no object; --as lines takes plain text".to_owned());
        };
        let mut json = Self::default();
        for (name, value) in fields {
            match (name.as_str(), value) {
                ("data", value) => json.data = data(value)?,
                ("attributes", Value::Object(attributes)) => {
                    for (name, value) in attributes {
                        let Value::String(value) = value else {
                            return Err(format!("has an attribute '{name}' that is no text"));
                        };
                        json.attributes.insert(name, value);
                    }
                }
                ("attributes", _) => {
                    return Err("has 'attributes' that are no object of texts".to_owned());
                }
                ("ordering_key", Value::String(key)) => json.ordering_key = Some(key),
                ("ordering_key", _) => {
                    return Err("has an 'ordering_key' that is no text".to_owned());
                }
                // The service's own, in what `pull` printed.
                ("message_id" | "publish_time" | "delivery_attempt", _) => {}
                (other, _) => {
                    return Err(format!(
                        "has a field '{other}': a message has 'data', 'attributes' and 'ordering_key'; \
                         --as lines publishes JSON as it is"
                    ));
                }
            }
        }
        Ok(json)
    }
}

fn data(value: Value) -> Result<Vec<u8>, String> {
    const WRONG: &str = "has 'data' that is neither a text nor {\"base64\": \"...\"}";
    match value {
        Value::String(text) => Ok(text.into_bytes()),
        Value::Object(object) if object.len() == 1 => object
            .get("base64")
            .and_then(Value::as_str)
            .and_then(|text| STANDARD.decode(text).ok())
            .ok_or_else(|| WRONG.to_owned()),
        _ => Err(WRONG.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(shape: Shape, defaults: Defaults, input: &[u8]) -> Result<Vec<Item>, String> {
        // A small buffer, so that messages span several reads.
        let reader = tokio::io::BufReader::with_capacity(3, io::Cursor::new(input.to_vec()));
        let mut input = Input::new(Box::pin(reader), shape, defaults);
        let mut items = Vec::new();
        while let Some(item) = input.next().await? {
            items.push(item);
        }
        Ok(items)
    }

    fn encoded(data: &[u8], attributes: &[(&str, &str)], key: &str) -> bytes::Bytes {
        let mut message = Message::new();
        message.data(data).ordering_key(key);
        for (name, value) in attributes {
            message.attribute(name, value);
        }
        message.encode()
    }

    #[tokio::test]
    async fn lines_end_with_either_line_end_and_the_last_needs_none() {
        for (input, expected) in [
            (&b"one\ntwo\r\nthree"[..], &["one", "two", "three"][..]),
            (b"one\n", &["one"]),
            (b"", &[]),
        ] {
            let items = read(Shape::Lines, Defaults::default(), input).await;
            let found: Vec<_> = items
                .expect("messages")
                .iter()
                .map(|item| item.message.encode())
                .collect();
            let expected: Vec<_> = expected
                .iter()
                .map(|text| encoded(text.as_bytes(), &[], ""))
                .collect();
            assert_eq!(found, expected);
        }
        let whole = read(Shape::Whole, Defaults::default(), b"one\n\ntwo\n").await;
        let whole = whole.expect("a message");
        assert_eq!(whole.len(), 1);
        assert_eq!(whole[0].message.encode(), encoded(b"one\n\ntwo\n", &[], ""));
    }

    #[tokio::test]
    async fn a_json_line_is_a_message_and_its_own_fields_win() {
        let defaults = Defaults {
            attributes: BTreeMap::from([
                ("a".to_owned(), "default".to_owned()),
                ("b".to_owned(), "default".to_owned()),
            ]),
            ordering_key: Some("k".to_owned()),
        };
        let lines =
            br#"{"data":"one","attributes":{"a":"own"},"message_id":"7","delivery_attempt":2}
{"data":{"base64":"/wA="},"ordering_key":"own"}
{}"#;
        let items = read(Shape::Json, defaults, lines).await.expect("messages");
        let found: Vec<_> = items.iter().map(|item| item.message.encode()).collect();
        let both = [("a", "default"), ("b", "default")];
        assert_eq!(
            found,
            [
                encoded(b"one", &[("a", "own"), ("b", "default")], "k"),
                encoded(b"\xff\0", &both, "own"),
                encoded(b"", &both, "k"),
            ]
        );
        assert_eq!(items[1].place, "line 2");
    }

    #[tokio::test]
    async fn what_is_no_message_is_named_by_its_place_and_not_shown() {
        for (shape, input, words) in [
            (
                Shape::Lines,
                "a\n\nb",
                &["line 2", "empty", "--attribute"][..],
            ),
            (Shape::Whole, "", &["the input", "empty"]),
            (
                Shape::Json,
                "{\"data\":\"a\"}\nSECRET",
                &["line 2", "JSON", "column"],
            ),
            (Shape::Json, "[1]", &["line 1", "no object"]),
            (Shape::Json, "{\"data\":7}", &["line 1", "'data'"]),
            (
                Shape::Json,
                "{\"data\":{\"base64\":\"SECRET!\"}}",
                &["'data'"],
            ),
            (
                Shape::Json,
                "{\"data\":{\"base64\":\"\",\"x\":1}}",
                &["'data'"],
            ),
            (
                Shape::Json,
                "{\"attributes\":{\"a\":\"SECRET\",\"b\":1}}",
                &["'b'"],
            ),
            (
                Shape::Json,
                "{\"attributes\":\"SECRET\"}",
                &["'attributes'"],
            ),
            (Shape::Json, "{\"ordering_key\":1}", &["'ordering_key'"]),
            (Shape::Json, "{\"atributes\":\"SECRET\"}", &["'atributes'"]),
            (Shape::Json, "{}", &["empty"]),
        ] {
            let error = read(shape, Defaults::default(), input.as_bytes()).await;
            let error = error.expect_err(input);
            for word in words {
                assert!(error.contains(word), "'{word}' is missing: {error}");
            }
            assert!(!error.contains("SECRET"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_line_without_end_is_refused_before_it_fills_the_memory() {
        let reader = tokio::io::BufReader::with_capacity(1 << 20, tokio::io::repeat(b'x'));
        let mut input = Input::new(Box::pin(reader), Shape::Lines, Defaults::default());
        let error = input.next().await.expect_err("no end");
        assert!(error.contains("10 MiB"), "{error}");
        assert!(input.partial.len() < MOST_BYTES + (2 << 20));
    }
}
