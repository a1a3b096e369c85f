//! Why a call failed, and whether the service may have acted on it.
//!
//! # Invariants
//!
//! - The code alone decides nothing about delivery: transport failures are told apart by where in HTTP/2 they happened.
//!   A stream above the last one that a GOAWAY names, or refused by `REFUSED_STREAM`, was not processed; a reset or a cut
//!   connection leaves the outcome unknown.
//! - A transport failure never shows `CANCELLED`, `INTERNAL` or `UNKNOWN` first, the codes that are not retried: it is
//!   `UNAVAILABLE`, with what the peer said as its cause. So is an `INTERNAL` of a front end that only reports a reset.
//! - No header value is ever printed.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use aqueduct_connector::{Code, Status, StatusChain};
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::{HeaderMap, HeaderName, HeaderValue};
use prost::Message as _;

/// How far a failed request got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// It never left this process.
    NotSent,
    /// It may have left, and the peer said that it did not look at it. Safe to send again.
    NotProcessed,
    /// It may or may not have taken effect: only an idempotent request may be sent again.
    Unknown,
    /// The service itself answered with the status; what that says about effects depends on the method and the code.
    Answered,
}

impl Delivery {
    /// Whether the request certainly had no effect.
    #[must_use]
    pub const fn is_without_effect(self) -> bool {
        matches!(self, Self::NotSent | Self::NotProcessed)
    }
}

/// Who found that the call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The service, by a status.
    Service,
    /// The connection: connecting, resets, GOAWAY, a peer that fell silent.
    Transport,
    /// Our own deadline for this attempt.
    Deadline,
    /// No access token.
    Credentials,
    /// The answer broke a rule of the protocol or a limit of ours. Trying again changes nothing.
    Protocol,
}

/// Why a call failed. One pointer wide.
pub struct CallError(Box<Inner>);

struct Inner {
    statuses: StatusChain,
    delivery: Delivery,
    origin: Origin,
    cookies: Cookies,
    details: Vec<prost_types::Any>,
}

impl CallError {
    pub(crate) fn new(
        origin: Origin,
        delivery: Delivery,
        code: Code,
        message: impl Into<Box<str>>,
    ) -> Self {
        Self::from_chain(
            origin,
            delivery,
            StatusChain::new(Status::new(code, message)),
        )
    }

    pub(crate) fn from_chain(origin: Origin, delivery: Delivery, statuses: StatusChain) -> Self {
        Self(Box::new(Inner {
            statuses,
            delivery,
            origin,
            cookies: Cookies::default(),
            details: Vec::new(),
        }))
    }

    pub(crate) fn with_cookies(mut self, cookies: Cookies) -> Self {
        self.0.cookies = cookies;
        self
    }

    pub(crate) fn protocol(message: impl Into<Box<str>>) -> Self {
        Self::new(Origin::Protocol, Delivery::Unknown, Code::Internal, message)
    }

    /// Reads the status that ends a call; `None` if there is no `grpc-status`, `Ok(())` if it is OK.
    pub(crate) fn from_trailers(trailers: &HeaderMap) -> Option<Result<(), Self>> {
        let number = trailers.get("grpc-status")?;
        let code = std::str::from_utf8(number.as_bytes())
            .ok()
            .and_then(|text| text.parse().ok())
            .map_or(Code::Unknown, Code::from_number);
        if code == Code::Ok {
            return Some(Ok(()));
        }
        let message = trailers
            .get("grpc-message")
            .map(|text| percent_decode(text.as_bytes()))
            .unwrap_or_default();
        let status = Status::new(code, message);
        let chain = if code == Code::Internal && speaks_of_a_reset(&status.message) {
            StatusChain::new(Status::new(
                Code::Unavailable,
                "the stream was reset on its way",
            ))
            .caused_by(status)
        } else {
            StatusChain::new(status)
        };
        let mut error = Self::from_chain(Origin::Service, Delivery::Answered, chain);
        error.0.cookies = Cookies::from_headers(trailers);
        error.0.details = trailers
            .get("grpc-status-details-bin")
            .map(decode_details)
            .unwrap_or_default();
        Some(Err(error))
    }

    /// Every status met, outermost first; at least one.
    #[must_use]
    pub fn statuses(&self) -> &StatusChain {
        &self.0.statuses
    }

    /// The outermost code: what a retry rule asks for.
    #[must_use]
    pub fn code(&self) -> Code {
        self.0.statuses.code()
    }

    /// How far the request got.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        self.0.delivery
    }

    /// Who found the failure.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.0.origin
    }

    /// Routing cookies of the failed attempt, to be sent with the next one of the same operation.
    #[must_use]
    pub fn cookies(&self) -> &Cookies {
        &self.0.cookies
    }

    /// The delay that the service asks for (`google.rpc.RetryInfo`), instead of ours. Present, it makes even a normally
    /// final code retryable (BT-WIRE-03).
    #[must_use]
    pub fn retry_delay(&self) -> Option<Duration> {
        let info: RetryInfo = self.detail("google.rpc.RetryInfo")?;
        let delay = info.retry_delay.unwrap_or_default();
        Some(Duration::try_from(delay).unwrap_or_default())
    }

    /// The service's machine-readable reason (`google.rpc.ErrorInfo`), if it gave one.
    #[must_use]
    pub fn error_info(&self) -> Option<ErrorInfo> {
        let info: WireErrorInfo = self.detail("google.rpc.ErrorInfo")?;
        Some(ErrorInfo {
            reason: info.reason,
            domain: info.domain,
            metadata: info.metadata,
        })
    }

    /// The first detail of the message type `name`, such as `google.rpc.BadRequest`, if it is there and decodes.
    #[must_use]
    pub fn detail<M: prost::Message + Default>(&self, name: &str) -> Option<M> {
        let any = self
            .0
            .details
            .iter()
            .find(|any| any.type_url.rsplit('/').next() == Some(name))?;
        M::decode(any.value.as_slice()).ok()
    }

    /// The statuses alone, for an error that goes on without the call.
    #[must_use]
    pub fn into_statuses(self) -> StatusChain {
        self.0.statuses
    }
}

impl From<CallError> for StatusChain {
    fn from(error: CallError) -> Self {
        error.into_statuses()
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.0.origin, self.0.delivery) {
            (Origin::Service, _) => "the service answered with an error",
            (Origin::Deadline, _) => "the call ran out of time",
            (Origin::Credentials, _) => "no access token for the call",
            (Origin::Protocol, _) => "the answer could not be read",
            (Origin::Transport, Delivery::NotSent) => "the call was not sent",
            (Origin::Transport, Delivery::NotProcessed) => "the call was not processed",
            (Origin::Transport, _) => "the call was cut off, its outcome is unknown",
        })
    }
}

impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallError")
            .field("origin", &self.0.origin)
            .field("delivery", &self.0.delivery)
            .field("statuses", &self.0.statuses)
            .field("cookies", &self.0.cookies)
            .finish_non_exhaustive()
    }
}

impl StdError for CallError {
    /// The [`StatusChain`], so that classifiers find it.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0.statuses)
    }
}

/// Why the service refused, for programs. The metadata may name rows: never print it whole.
#[derive(Clone, PartialEq, Eq)]
pub struct ErrorInfo {
    /// A constant in capitals or camel case, such as `LargeRowReadError`.
    pub reason: String,
    /// Whose constant it is, such as `bigtable.googleapis.com`.
    pub domain: String,
    /// Further facts by name.
    pub metadata: BTreeMap<String, String>,
}

impl fmt::Debug for ErrorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ErrorInfo")
            .field("reason", &self.reason)
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

/// Routing cookies: metadata that the next attempt of an operation echoes (BT-WIRE-03).
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Cookies(Vec<(HeaderName, HeaderValue)>);

impl Cookies {
    /// Metadata keys that start so are cookies.
    pub const PREFIX: &'static str = "x-goog-cbt-cookie-";

    /// The cookies among `headers`.
    #[must_use]
    pub fn from_headers(headers: &HeaderMap) -> Self {
        Self(
            headers
                .iter()
                .filter(|(name, _)| name.as_str().starts_with(Self::PREFIX))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        )
    }

    /// Adds `newer` cookies; one of the same name replaces the older.
    pub fn update(&mut self, newer: &Self) {
        for (name, value) in &newer.0 {
            match self.0.iter_mut().find(|(known, _)| known == name) {
                Some(entry) => entry.1 = value.clone(),
                None => self.0.push((name.clone(), value.clone())),
            }
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, (HeaderName, HeaderValue)> {
        self.0.iter()
    }
}

impl fmt::Debug for Cookies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cookies", self.0.len())
    }
}

/// Texts by which front ends report a broken stream as `INTERNAL`, as the official clients know them.
fn speaks_of_a_reset(message: &str) -> bool {
    const TEXTS: [&str; 4] = [
        "RST_STREAM",
        "Rst Stream",
        "RST stream",
        "Received unexpected EOS on DATA frame",
    ];
    TEXTS.iter().any(|text| message.contains(text))
}

/// `grpc-message` is percent-encoded UTF-8; what does not decode is kept as it is.
fn percent_decode(text: &[u8]) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let decoded = match tail {
            [high, low, ..] if *first == b'%' => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match decoded {
            Some((high, low)) => {
                out.push(high << 4 | low);
                rest = &tail[2..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(out)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|d| u8::try_from(d).ok())
}

/// Senders pad or do not pad.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Details are extra: what does not decode is no reason to lose the status.
fn decode_details(value: &HeaderValue) -> Vec<prost_types::Any> {
    BASE64
        .decode(value.as_bytes())
        .ok()
        .and_then(|bytes| RpcStatus::decode(bytes.as_slice()).ok())
        .map(|status| status.details)
        .unwrap_or_default()
}

/// `google.rpc.Status`; code and message are read from the trailers.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<prost_types::Duration>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WireErrorInfo {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(btree_map = "string, string", tag = "3")]
    metadata: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests;
