//! What every Google Cloud service needs: credentials, channels, status chains, retry.
//!
//! | module | holds |
//! | --- | --- |
//! | [`credentials`] | where access tokens come from, and the one provider a component shares |
//! | [`endpoint`] | the service's own host over TLS, or an emulator in plaintext |
//! | [`pool`] | HTTP/2 channels, calls, answers as whole messages without a copy |
//! | [`error`] | why a call failed and whether the service may have acted on it |
//! | [`retry`] | schedules, full-jitter delays, the two halves of classification |
//! | [`routing`] | the `x-goog-request-params` header |
//!
//! # What a connector may rely on
//!
//! - A [`Call`], its [`ResponseStream`] and a [`DuplexCall`] are polled by their owner, on the owner's task; they are
//!   `Send`, so an owner may be an I/O task of the host. Only connections run as tasks of this crate, through the host's
//!   `Spawn`; dropping the last clone of a [`ChannelPool`] stops them.
//! - Deadlines are kept by the host's clock, whatever the service does.
//! - Dropping a call or an answer cancels it on the wire.
//! - No error text, `Debug` or log line of this crate holds a token, a key, a header's value or a payload. A status
//!   carries the service's own words as received.
//!
//! # Not here
//!
//! No retry loop: a call is one attempt, and its connector owns the only loop (BASE-32). No message types.

#![forbid(unsafe_code)]

pub mod credentials;
pub mod endpoint;
pub mod error;
pub mod pool;
pub mod retry;
pub mod routing;

pub use credentials::{Credentials, TokenProvider};
pub use endpoint::Endpoint;
pub use error::{CallError, Cookies, Delivery, Origin};
pub use pool::{
    Call, CallSpec, ChannelPool, DuplexCall, NoRoom, PoolOptions, ResponseStream, WarmUp, frame,
};
pub use retry::{Backoff, RetrySchedule};
pub use routing::RoutingHeader;
