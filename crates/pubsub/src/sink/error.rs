//! What a status means for a publish, and the errors a writer ends with.
//!
//! # Invariants
//!
//! - A handler that may drop messages sees verdicts on one message's own data only; whatever may be a condition of the
//!   service fails the job or is repaired (PS-SINK-17).
//! - Errors name topics, options and counts, never payload, attribute values or ordering keys (PS-GEN-05).

use std::time::Duration;

use aqueduct_connector::error::ErrorKind;
use aqueduct_connector::{Code, Error, Status, StatusChain};

use super::request::TRANSIENT;
use crate::TopicDestination;
use crate::sink_options as options;

/// What a final status means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The topic is missing: repaired or fatal, never dropped.
    Missing,
    /// Some message of the request is refused; of a request of one message, that one.
    Refused,
    /// A condition of the service.
    Fatal,
}

/// First match wins (PS-SINK-17).
pub(super) fn classify(chain: &StatusChain) -> Verdict {
    match chain.code() {
        Code::NotFound => Verdict::Missing,
        Code::InvalidArgument if !chain.any(&TRANSIENT) => Verdict::Refused,
        _ => Verdict::Fatal,
    }
}

/// A chain whose words quote nothing: a service may quote what it refuses, and user data reaches no error and no log.
pub(crate) fn redacted(chain: &StatusChain) -> StatusChain {
    let mut statuses = chain
        .iter()
        .map(|status| Status::new(status.code, without_quotes(&status.message)));
    let outermost = StatusChain::new(statuses.next().expect("a chain has at least one status"));
    statuses.fold(outermost, StatusChain::caused_by)
}

/// Cuts what stands between quotation marks; an apostrophe inside a word is none.
fn without_quotes(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    let mut rest = message;
    let mut in_word = false;
    while let Some(mark) = rest.chars().next() {
        let after = &rest[mark.len_utf8()..];
        text.push(mark);
        if matches!(mark, '\'' | '"' | '`') && !in_word {
            text.push_str("...");
            // A quote ends at its last mark, because what is quoted may hold one.
            let Some(end) = after.rfind(mark) else {
                return text;
            };
            text.push(mark);
            rest = &after[end + mark.len_utf8()..];
            in_word = false;
        } else {
            rest = after;
            in_word = mark.is_alphanumeric();
        }
    }
    text
}

/// The end of a writer, kept so that every later call returns it again.
#[derive(Debug)]
pub(super) struct Failure {
    fresh: Option<Error>,
    kind: ErrorKind,
    report: String,
    statuses: Option<StatusChain>,
}

impl Failure {
    pub(super) fn new(error: Error) -> Self {
        Self {
            kind: error.kind(),
            report: error.report(),
            statuses: error.statuses().cloned(),
            fresh: Some(error),
        }
    }

    /// The error, in full the first time and as a copy of its words from then on.
    pub(super) fn tell(&mut self) -> Error {
        self.fresh.take().unwrap_or_else(|| {
            let error = Error::new(self.kind, self.report.clone());
            match &self.statuses {
                Some(chain) => error.with_source(chain.clone()),
                None => error,
            }
        })
    }

    /// Its words, if no call has returned it.
    pub(super) fn untold(&self) -> Option<&str> {
        self.fresh.is_some().then_some(&self.report)
    }
}

/// A condition of the service ended the writer.
pub(crate) fn service(topic: &TopicDestination, attempts: u32, chain: StatusChain) -> Error {
    let hint = match chain.code() {
        Code::PermissionDenied => {
            "; grant the job's account pubsub.topics.publish (roles/pubsub.publisher) on the topic"
        }
        Code::Unauthenticated => "; check the credentials the job runs with",
        Code::ResourceExhausted => "; check the project's publish quota",
        Code::Unavailable | Code::DeadlineExceeded => {
            "; the service could not be reached or did not answer in time, so the messages may have been published; they \
             are published again after a restart"
        }
        _ => "",
    };
    Error::io(format!(
        "publishing to Pub/Sub topic {topic} failed after {attempts} attempt(s){hint}"
    ))
    .with_source(chain)
}

/// The topic is missing and nothing may be created.
pub(super) fn missing(topic: &TopicDestination, chain: StatusChain) -> Error {
    Error::io(format!(
        "Pub/Sub topic {topic} does not exist and the create disposition is 'create-never'; create it, or set '{}' to \
         'create-if-needed'",
        options::CREATE_DISPOSITION.key(),
    ))
    .with_source(chain)
}

/// A creation failed for good.
pub(super) fn creation(topic: &TopicDestination, chain: StatusChain) -> Error {
    let hint = match chain.code() {
        Code::PermissionDenied => {
            "; creating needs pubsub.topics.create (roles/pubsub.editor has it); create the topic yourself and set the \
             create disposition to 'create-never', or grant it"
        }
        Code::NotFound => "; the project must exist",
        Code::InvalidArgument => "; check the topic's name and the creation settings",
        _ => "",
    };
    Error::io(format!(
        "Pub/Sub topic {topic} is missing and creating it failed{hint}"
    ))
    .with_source(chain)
}

/// The repair spent its attempts.
pub(super) fn repair_exhausted(
    topic: &TopicDestination,
    attempts: u32,
    created: bool,
    handled: u64,
    chain: StatusChain,
) -> Error {
    let created = if created {
        "the topic was created or found, but publishing to it kept failing"
    } else {
        "the topic could not be created"
    };
    Error::io(format!(
        "Pub/Sub topic {topic} could not be repaired in {attempts} attempts ('{}'): {created}; meanwhile the failure \
         handler got {handled} message(s), and nothing else was dropped",
        options::RECOVERY_MAX_ATTEMPTS.key(),
    ))
    .with_source(chain)
}

/// The guardrail tripped.
pub(super) fn guardrail(topic: &TopicDestination, rejections: u64, chain: StatusChain) -> Error {
    Error::user(format!(
        "{rejections} messages in a row were rejected and none was published, the bound of '{}'; the last one was for \
         Pub/Sub topic {topic}. The stream is being refused wholesale: correct the serializer, or set the option to -1",
        options::MAX_CONSECUTIVE_REJECTIONS.key(),
    ))
    .with_source(chain)
}

/// Nothing completed for too long.
pub(super) fn no_progress(
    what: &str,
    idle: Duration,
    messages: usize,
    last: Option<StatusChain>,
) -> Error {
    let error = Error::io(format!(
        "no publish to Pub/Sub completed for {idle:?} while waiting for {what}, the limit of '{}'; {messages} message(s) \
         are in flight and nothing was dropped: they are replayed after a restart. An unreachable service and a spent \
         quota (RESOURCE_EXHAUSTED) both look like this",
        options::PUBLISH_PROGRESS_TIMEOUT.key(),
    ));
    match last {
        Some(chain) => error.with_source(chain),
        None => error,
    }
}

/// A keyed message while ordering is off.
pub(super) fn key_without_ordering(topic: &TopicDestination) -> Error {
    Error::user(format!(
        "a message for Pub/Sub topic {topic} has an ordering key, but '{}' is off; enable it, or set no ordering key",
        options::MESSAGE_ORDERING.key(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(codes: &[Code]) -> StatusChain {
        let mut codes = codes.iter().map(|code| Status::new(*code, ""));
        let first = StatusChain::new(codes.next().expect("at least one"));
        codes.fold(first, StatusChain::caused_by)
    }

    #[test]
    fn the_first_status_decides_and_an_outage_anywhere_is_no_verdict_on_a_message() {
        use Code::{Internal, InvalidArgument, NotFound, PermissionDenied, Unavailable};
        for (codes, verdict) in [
            (&[InvalidArgument][..], Verdict::Refused),
            (&[InvalidArgument, PermissionDenied], Verdict::Refused),
            (&[InvalidArgument, Unavailable], Verdict::Fatal),
            (&[InvalidArgument, Internal], Verdict::Fatal),
            (&[Internal, InvalidArgument], Verdict::Fatal),
            (&[NotFound], Verdict::Missing),
            (&[NotFound, Unavailable], Verdict::Missing),
            (&[Unavailable, NotFound], Verdict::Fatal),
        ] {
            assert_eq!(classify(&chain(codes)), verdict, "{codes:?}");
        }
        for code in Code::ALL {
            if !matches!(code, NotFound | InvalidArgument) {
                assert_eq!(classify(&chain(&[*code])), Verdict::Fatal, "{code}");
            }
        }
    }

    #[test]
    fn what_the_service_quotes_is_left_out() {
        for (message, told) in [
            ("key 'it's mine' is too long", "key '...' is too long"),
            ("can't say", "can't say"),
            ("unfinished \"key", "unfinished \"..."),
            ("", ""),
        ] {
            assert_eq!(without_quotes(message), told);
        }
    }

    #[test]
    fn a_failure_is_returned_again_in_the_same_words() {
        let topic = TopicDestination::new("p", "t").expect("valid");
        let error = service(&topic, 3, chain(&[Code::PermissionDenied]));
        let words = error.report();
        let mut failure = Failure::new(error);
        assert_eq!(failure.untold(), Some(&*words));
        assert_eq!(failure.tell().report(), words);
        assert_eq!(failure.untold(), None);
        for _ in 0..2 {
            let again = failure.tell();
            assert_eq!(again.to_string(), words);
            assert_eq!(again.statuses(), Some(&chain(&[Code::PermissionDenied])));
        }
    }
}
