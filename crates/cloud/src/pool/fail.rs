//! Transport failures as [`CallError`]s.
//!
//! | what happened | delivery | shown as |
//! | --- | --- | --- |
//! | no connection | not sent | `UNAVAILABLE` |
//! | stream above the last one of a GOAWAY | not processed | `UNAVAILABLE` |
//! | `RST_STREAM` with `REFUSED_STREAM` | not processed | `UNAVAILABLE` |
//! | `RST_STREAM` with `ENHANCE_YOUR_CALM` | unknown | `RESOURCE_EXHAUSTED` |
//! | `RST_STREAM` with `INADEQUATE_SECURITY` | unknown | `PERMISSION_DENIED` |
//! | any other `RST_STREAM` | unknown | `UNAVAILABLE`, caused by gRPC's own mapping |
//! | connection lost or closed, peer silent | unknown | `UNAVAILABLE` |
//! | answer ends without a status | unknown | `UNAVAILABLE` |
//! | our deadline, before sending / after | not sent / unknown | `DEADLINE_EXCEEDED` |
//! | answer breaks the protocol or a limit | unknown | `INTERNAL`, `OUT_OF_RANGE`, `UNIMPLEMENTED` |
//!
//! Why other resets count as an outage: dropping a call is how we cancel, and then nobody reads an error; so a reset that
//! somebody reads is always the peer's or a proxy's.

use std::time::Duration;

use aqueduct_connector::{Code, Status, StatusChain};
use h2::Reason;
use http::StatusCode;

use super::slot::Conn;
use crate::endpoint::Endpoint;
use crate::error::{CallError, Delivery, Origin};

/// A failure of `stream` on `conn`.
pub(super) fn stream_failed(
    error: &h2::Error,
    stream: u32,
    conn: &Conn,
    endpoint: &Endpoint,
) -> CallError {
    if conn.watch().excludes(stream) {
        return unavailable(
            Delivery::NotProcessed,
            format!("{endpoint} is closing the connection and did not process the call"),
        );
    }
    let reason = error.reason();
    if error.is_reset() && error.is_remote() {
        return reset(reason.unwrap_or(Reason::INTERNAL_ERROR), endpoint);
    }
    if error.is_reset() && error.is_library() {
        return CallError::protocol(format!(
            "{endpoint} broke HTTP/2 or sent headers above the limit: {}",
            reason.as_ref().map_or("no reason", h2::Reason::description)
        ));
    }
    let why = match (conn.cause_of_death(), reason, error.get_io()) {
        (Some(cause), _, _) => cause.to_owned(),
        (None, Some(reason), _) => reason.description().to_owned(),
        (None, None, Some(io)) => io.to_string(),
        (None, None, None) => "the connection was closed".to_owned(),
    };
    unavailable(
        Delivery::Unknown,
        format!("the connection to {endpoint} was lost: {why}"),
    )
}

fn reset(reason: Reason, endpoint: &Endpoint) -> CallError {
    let text = format!("{endpoint} reset the stream: {}", reason.description());
    let plain = |code| CallError::new(Origin::Transport, Delivery::Unknown, code, text.as_str());
    let mapped = match reason {
        Reason::REFUSED_STREAM => return unavailable(Delivery::NotProcessed, text),
        Reason::ENHANCE_YOUR_CALM => return plain(Code::ResourceExhausted),
        Reason::INADEQUATE_SECURITY => return plain(Code::PermissionDenied),
        Reason::CANCEL => Code::Cancelled,
        _ => Code::Internal,
    };
    let chain = StatusChain::new(Status::new(Code::Unavailable, text))
        .caused_by(Status::new(mapped, "RST_STREAM"));
    CallError::from_chain(Origin::Transport, Delivery::Unknown, chain)
}

/// The connection could not be made.
pub(super) fn not_connected(message: impl Into<Box<str>>) -> CallError {
    unavailable(Delivery::NotSent, message)
}

/// The answer ended, cleanly as HTTP/2 sees it, without saying how the call went.
pub(super) fn no_status(what: &str, endpoint: &Endpoint) -> CallError {
    unavailable(
        Delivery::Unknown,
        format!("the answer of {endpoint} ended {what}"),
    )
}

fn unavailable(delivery: Delivery, message: impl Into<Box<str>>) -> CallError {
    CallError::new(Origin::Transport, delivery, Code::Unavailable, message)
}

/// Our own deadline passed after `waited`.
pub(super) fn deadline(delivery: Delivery, waited: Duration, path: &str) -> CallError {
    let stage = match delivery {
        Delivery::NotSent => "before the call could be sent",
        _ => "without the end of the answer",
    };
    CallError::new(
        Origin::Deadline,
        delivery,
        Code::DeadlineExceeded,
        format!("{path}: {waited:?} passed {stage}"),
    )
}

/// An HTTP status other than 200 without a `grpc-status`: a proxy or front end speaking.
pub(super) fn http_status(status: StatusCode, endpoint: &Endpoint) -> CallError {
    let code = match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    CallError::new(
        Origin::Service,
        Delivery::Answered,
        code,
        format!("{endpoint} answered with HTTP status {}", status.as_u16()),
    )
}
