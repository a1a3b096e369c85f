//! `aqueduct pubsub publish`: requests one after the other, so that messages keep the order of the input.
//!
//! A request leaves when it is full, when the ordering key changes (one key a request) or when the input pauses. If the
//! service refuses a request of several messages it does not say which is bad: they are sent again one by one, up to the
//! bad one, which the error names.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use aqueduct::connector::metrics::MetricRegistry;
use aqueduct::connector::{Code, Error};
use aqueduct::pubsub::{Message, Publisher, TopicDestination};
use tokio::io::{AsyncBufRead, BufReader};
use tokio::time::Instant;

use super::input::{Defaults, Input, Item, Shape};
use super::{host, messages, runtime, text};
use crate::address::{PubSubArgs, check_reachable};
use crate::signals::Signals;
use crate::{Done, ENDED_AT_ONCE, STOPPED, flags};

/// Messages of a request.
const MOST_MESSAGES: usize = 1_000;
/// Bytes of a request; a larger message travels alone.
const MOST_BYTES: usize = 1_000_000;
/// How long a message waits for the next one.
const PAUSE: Duration = Duration::from_millis(20);

/// Options of `aqueduct pubsub publish`.
#[derive(clap::Args)]
#[command(
    group = clap::ArgGroup::new("input").required(true).args(["file", "stdin", "message"]),
    after_help = "Exit code: 0 complete, 1 failed, 2 wrong arguments, 3 stopped (Ctrl-C or SIGTERM once; the request under \
    way is finished), 130 ended at once (twice). The topic must exist. Whatever happens, it is said how many messages were \
    published."
)]
pub(super) struct Args {
    #[command(flatten)]
    place: PubSubArgs,
    /// The topic.
    #[arg(long, value_name = "NAME")]
    topic: String,
    /// Publishes what this file holds.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Publishes what comes on standard input, as it comes.
    #[arg(long)]
    stdin: bool,
    /// Publishes one message with this data.
    #[arg(long, value_name = "TEXT", conflicts_with = "shape")]
    message: Option<String>,
    /// What of the input is a message.
    #[arg(
        long = "as",
        id = "shape",
        value_enum,
        default_value = "lines",
        value_name = "SHAPE"
    )]
    shape: Shape,
    /// Gives every message an attribute, unless it has its own of that name. May be repeated.
    #[arg(long = "attribute", value_name = "NAME=VALUE")]
    attributes: Vec<Attribute>,
    /// Gives every message this ordering key, unless it has its own.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    ordering_key: Option<String>,
    /// Prints the message ids, one a line, in the order of the input.
    #[arg(long)]
    ids: bool,
}

/// `--attribute`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Attribute(String, String);

impl FromStr for Attribute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None => Err("expected NAME=VALUE".to_owned()),
            Some(("", _)) => Err("an attribute needs a name before the '='".to_owned()),
            Some((name, _)) if name.starts_with("goog") => {
                Err("the service keeps names that begin with 'goog' for itself".to_owned())
            }
            Some((name, value)) => Ok(Self(name.to_owned(), value.to_owned())),
        }
    }
}

impl Args {
    fn defaults(&self) -> Result<Defaults, String> {
        let mut attributes = BTreeMap::new();
        for Attribute(name, value) in &self.attributes {
            if attributes.insert(name.clone(), value.clone()).is_some() {
                return Err(format!("--attribute names '{name}' twice"));
            }
        }
        Ok(Defaults {
            attributes,
            ordering_key: self.ordering_key.clone(),
        })
    }

    async fn input(&self) -> Result<Input, String> {
        let (reader, shape): (Pin<Box<dyn AsyncBufRead>>, _) = match (&self.message, &self.file) {
            (Some(message), _) => {
                let message = std::io::Cursor::new(message.clone().into_bytes());
                (Box::pin(message), Shape::Whole)
            }
            (None, Some(path)) => {
                let file = tokio::fs::File::open(path).await;
                let file = file.map_err(|error| {
                    format!("--file '{}' cannot be read: {error}", path.display())
                })?;
                (Box::pin(BufReader::new(file)), self.shape)
            }
            (None, None) => (Box::pin(BufReader::new(tokio::io::stdin())), self.shape),
        };
        Ok(Input::new(reader, shape, self.defaults()?))
    }
}

/// Publishes until the input ends.
pub(super) fn run(args: Args) -> Done {
    let topic = TopicDestination::new(&args.place.project, &args.topic)
        .map_err(|error| flags::named(error.to_string(), flags::PUBSUB))?;
    args.defaults()?;
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let input = args.input().await?;
        let context = host::context("topic", &MetricRegistry::new());
        let publisher = Publisher::new(
            &context,
            topic.clone(),
            args.place.key_file.as_deref(),
            args.place.pubsub.as_deref(),
        )
        .map_err(text)?;
        if let Some(address) = &args.place.pubsub {
            check_reachable("--pubsub", address)?;
        }
        let mut publishing = Publishing {
            args: &args,
            publisher,
            published: 0,
            batch: Vec::new(),
            bytes: 0,
            since: Instant::now(),
        };
        let end = publishing.all(input, &mut signals).await;
        let account = format!("{} published to {topic}", messages(publishing.published));
        match end {
            Ok(end) => {
                if args.ids {
                    eprintln!("{account}");
                } else {
                    say!("{account}");
                }
                Ok(match end {
                    End::Complete => ExitCode::SUCCESS,
                    End::Stopped => ExitCode::from(STOPPED),
                    End::AtOnce => {
                        eprintln!("ended at once: the last request may have been published too");
                        ExitCode::from(ENDED_AT_ONCE)
                    }
                })
            }
            Err(error) if publishing.published == 0 => Err(error),
            Err(error) => Err(format!("{error}; before that, {account}")),
        }
    });
    // A read of an input that gives nothing may still wait.
    runtime.shutdown_background();
    done
}

enum End {
    Complete,
    Stopped,
    AtOnce,
}

struct Publishing<'a> {
    args: &'a Args,
    publisher: Publisher,
    published: u64,
    batch: Vec<Item>,
    bytes: usize,
    /// When the batch got its first message.
    since: Instant,
}

impl Publishing<'_> {
    async fn all(&mut self, mut input: Input, signals: &mut Signals) -> Result<End, String> {
        loop {
            let pause = self.since + PAUSE;
            let next = tokio::select! {
                biased;
                () = signals.next() => {
                    return self.send(signals).await.map(|end| end.unwrap_or(End::Stopped));
                }
                next = input.next() => Some(next),
                () = tokio::time::sleep_until(pause), if !self.batch.is_empty() => None,
            };
            let item = match next {
                // The input pauses.
                None => None,
                Some(Ok(Some(item))) => Some(item),
                Some(Ok(None)) => {
                    return self
                        .send(signals)
                        .await
                        .map(|end| end.unwrap_or(End::Complete));
                }
                Some(Err(wrong)) => {
                    // What came before it is well.
                    self.send(signals).await?;
                    return Err(wrong);
                }
            };
            let full = match &item {
                None => true,
                Some(item) => self.batch.first().is_some_and(|first| {
                    self.batch.len() >= MOST_MESSAGES
                        || self.bytes + item.message.encoded_len() > MOST_BYTES
                        || first.message.key() != item.message.key()
                }),
            };
            if full && let Some(end) = self.send(signals).await? {
                return Ok(end);
            }
            if let Some(item) = item {
                if self.batch.is_empty() {
                    self.since = Instant::now();
                }
                self.bytes += item.message.encoded_len();
                self.batch.push(item);
            }
        }
    }

    /// Publishes the batch. `Some`: a person asked to end meanwhile.
    async fn send(&mut self, signals: &mut Signals) -> Result<Option<End>, String> {
        let batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
        if batch.is_empty() {
            return Ok(None);
        }
        let mut stopped = false;
        let (messages, places): (Vec<Message>, Vec<String>) = batch
            .into_iter()
            .map(|item| (item.message, item.place))
            .unzip();
        let result = {
            let mut publishing = std::pin::pin!(self.publisher.publish(&messages));
            loop {
                tokio::select! {
                    biased;
                    done = &mut publishing => break done,
                    () = signals.next() => {
                        if std::mem::replace(&mut stopped, true) {
                            return Ok(Some(End::AtOnce));
                        }
                    }
                }
            }
        };
        match result {
            Ok(ids) => self.count(&ids),
            Err(error) if refused(&error) && messages.len() > 1 => {
                for (message, place) in messages.iter().zip(&places) {
                    let alone = self.publisher.publish(std::slice::from_ref(message)).await;
                    match alone {
                        Ok(ids) => self.count(&ids),
                        Err(error) => return Err(self.explain(&error, Some(place))),
                    }
                }
            }
            Err(error) => {
                let place = places.first().filter(|_| refused(&error));
                return Err(self.explain(&error, place.map(String::as_str)));
            }
        }
        Ok(stopped.then_some(End::Stopped))
    }

    fn count(&mut self, ids: &[String]) {
        self.published += ids.len() as u64;
        if self.args.ids {
            say!("{}", ids.join("\n"));
        }
    }

    fn explain(&self, error: &Error, place: Option<&str>) -> String {
        let report = flags::named(error.report(), flags::PUBSUB);
        let code = error.statuses().map(aqueduct::connector::StatusChain::code);
        match (code, place) {
            (Some(Code::NotFound), _) => format!(
                "{} has no topic {}: correct --project or --topic",
                self.args.place.place(),
                self.publisher.topic()
            ),
            (Some(Code::InvalidArgument), Some(place)) => format!("{place} was refused: {report}"),
            _ => report,
        }
    }
}

/// Whether the service refused the request for what it holds.
fn refused(error: &Error) -> bool {
    error
        .statuses()
        .is_some_and(|chain| chain.code() == Code::InvalidArgument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_is_a_name_and_a_value() {
        let attribute = |text: &str| text.parse().map(|Attribute(name, value)| (name, value));
        let pair = |name: &str, value: &str| Ok((name.to_owned(), value.to_owned()));
        assert_eq!(attribute("a=b=c"), pair("a", "b=c"));
        assert_eq!(attribute("a="), pair("a", ""));
        for bad in ["a", "=b", "", "googclient_x=1"] {
            assert!(attribute(bad).is_err(), "{bad}");
        }
    }
}
