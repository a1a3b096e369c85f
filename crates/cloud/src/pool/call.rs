//! One call: what it asks for ([`CallSpec`]) and the future that carries it out ([`Call`]).
//!
//! A call goes through at most four states: fetching a token, waiting for a connection, waiting for the answer's headers,
//! done. The first two are skipped, without a suspension, when a token is cached and a connection is ready. What a call
//! costs here: a clone of the header template, one timer, one `h2` stream.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use aqueduct_connector::clock::Timer;
use aqueduct_connector::{Code, Moment};
use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::uri::{self, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};

use super::body::ResponseStream;
use super::slot::{Conn, Lease, Ticket};
use super::{ChannelPool, Pick, fail};
use crate::credentials::{Authorization, Fetch, Granted};
use crate::endpoint::Endpoint;
use crate::error::{CallError, Cookies, Delivery};
use crate::routing::RoutingHeader;

/// Unless a call says otherwise, the longest message it accepts.
const MAX_MESSAGE: usize = 64 << 20;

/// A connection on which nothing at all came in during a call this long that ran out of time is not used again.
const SUSPICIOUS_SILENCE: Duration = Duration::from_secs(5);

/// How many connections may end between being picked and taking the request before the call gives up.
const MAX_DEAD_ENDS: u8 = 3;

/// What a call asks for, apart from its body: made once, cloned cheaply for each call or each variation.
#[derive(Clone)]
pub struct CallSpec(Arc<Spec>);

#[derive(Clone)]
struct Spec {
    path: PathAndQuery,
    headers: HeaderMap,
    timeout: Duration,
    deadline: Moment,
    max_message: usize,
}

impl CallSpec {
    /// A call of the method at `path`, such as `/google.bigtable.v2.Bigtable/MutateRows`, that may take `timeout` from
    /// its first poll to the end of its answer.
    ///
    /// # Panics
    ///
    /// If `path` is no path; it is a constant of the calling connector.
    #[must_use]
    pub fn new(path: &'static str, timeout: Duration) -> Self {
        assert!(path.starts_with('/'), "a method's path starts with a slash");
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("aqueduct/", env!("CARGO_PKG_VERSION"))),
        );
        Self(Arc::new(Spec {
            path: PathAndQuery::from_static(path),
            headers,
            timeout,
            deadline: Moment::NEVER,
            max_message: MAX_MESSAGE,
        }))
    }

    /// With the routing header that the method needs.
    #[must_use]
    pub fn routing(self, routing: &RoutingHeader) -> Self {
        self.header(
            HeaderName::from_static(RoutingHeader::NAME),
            routing.value(),
        )
    }

    /// With one more header; one of the same name is replaced.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.edit().headers.insert(name, value);
        self
    }

    /// With the routing cookies of an earlier attempt of the same operation.
    #[must_use]
    pub fn cookies(mut self, cookies: &Cookies) -> Self {
        if !cookies.is_empty() {
            let spec = self.edit();
            for (name, value) in cookies.iter() {
                spec.headers.insert(name.clone(), value.clone());
            }
        }
        self
    }

    /// With another time limit for one attempt.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.edit().timeout = timeout;
        self
    }

    /// Ends at `deadline` at the latest, on the host's clock: the end of the whole operation. Default: never.
    #[must_use]
    pub fn deadline(mut self, deadline: Moment) -> Self {
        self.edit().deadline = deadline;
        self
    }

    /// Accepts messages of up to `bytes`. Default: 64 MiB. A longer one fails the call with `OUT_OF_RANGE`.
    #[must_use]
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.edit().max_message = bytes;
        self
    }

    /// The method's path.
    #[must_use]
    pub fn path(&self) -> &str {
        self.0.path.as_str()
    }

    pub(super) fn time_limit(&self) -> Duration {
        self.0.timeout
    }

    pub(super) fn message_limit(&self) -> usize {
        self.0.max_message
    }

    fn edit(&mut self) -> &mut Spec {
        Arc::make_mut(&mut self.0)
    }

    pub(super) fn request(
        &self,
        endpoint: &Endpoint,
        left: Duration,
        granted: Option<&Granted>,
    ) -> Request<()> {
        let mut parts = uri::Parts::default();
        parts.scheme = Some(endpoint.uri_scheme());
        parts.authority = Some(endpoint.authority().clone());
        parts.path_and_query = Some(self.0.path.clone());
        let mut headers = self.0.headers.clone();
        headers.insert(HeaderName::from_static("grpc-timeout"), grpc_timeout(left));
        if let Some(granted) = granted {
            for (name, value) in &*granted.headers {
                headers.insert(name.clone(), value.clone());
            }
        }
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_parts(parts).expect("scheme, authority and path make a URI");
        *request.version_mut() = http::Version::HTTP_2;
        *request.headers_mut() = headers;
        request
    }
}

impl fmt::Debug for CallSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallSpec")
            .field("path", &self.path())
            .field("timeout", &self.0.timeout)
            .finish_non_exhaustive()
    }
}

/// At most eight digits and a unit, rounded up, so that the service does not give up before we do.
fn grpc_timeout(left: Duration) -> HeaderValue {
    const LARGEST: u128 = 99_999_999;
    let micros = left.as_nanos().div_ceil(1_000);
    let (number, unit) = if micros <= LARGEST {
        (micros, 'u')
    } else if micros.div_ceil(1_000) <= LARGEST {
        (micros.div_ceil(1_000), 'm')
    } else {
        (micros.div_ceil(1_000_000).min(LARGEST), 'S')
    };
    HeaderValue::from_str(&format!("{number}{unit}")).expect("digits and a letter")
}

/// A call under way; resolves when the answer's headers are there.
///
/// Owned and polled by whoever made the call; it is no task. Dropping it cancels the call on the wire.
#[must_use = "a call does nothing until it is polled"]
pub struct Call {
    pool: ChannelPool,
    spec: CallSpec,
    body: Bytes,
    state: State,
    limit: Option<Limit>,
    granted: Option<Granted>,
    /// The token has been replaced once; a second refusal is final.
    renewed: bool,
    /// Ready connections that took no request.
    dead_ends: u8,
    side: RequestSide,
}

/// What happens to the request side once the body is sent.
enum RequestSide {
    /// It ends with the body.
    Closed,
    /// It stays open.
    Open {
        /// Of an answered call, until it is taken.
        stream: Option<SendStream<Bytes>>,
        /// Whether more than the body went out, so that the request cannot be repeated.
        fed: bool,
    },
}

enum State {
    Start,
    Token(Fetch),
    Connection(Option<Ticket>),
    Headers(Sent),
    Done,
}

/// A request on the wire.
struct Sent {
    response: ResponseFuture,
    stream: u32,
    lease: Lease,
    /// What the connection had received when the request was sent.
    received: u64,
    /// The request side, if it stays open.
    request: Option<SendStream<Bytes>>,
}

/// The deadline of a call and the timer that keeps it.
pub(super) struct Limit {
    started: Moment,
    at: Moment,
    timer: Box<dyn Timer>,
}

impl Limit {
    /// Whether the time is up. Registers the waker if not.
    pub(super) fn poll_passed(&mut self, cx: &mut Context<'_>) -> Option<Duration> {
        self.timer
            .poll_elapsed(cx)
            .is_ready()
            .then(|| self.at.since(self.started))
    }
}

impl Call {
    pub(super) fn new(pool: ChannelPool, spec: CallSpec, body: Bytes) -> Self {
        Self {
            pool,
            spec,
            body,
            state: State::Start,
            limit: None,
            granted: None,
            renewed: false,
            dead_ends: 0,
            side: RequestSide::Closed,
        }
    }

    /// A call whose request side stays open behind `body`.
    pub(super) fn open(pool: ChannelPool, spec: CallSpec, body: Bytes) -> Self {
        let side = RequestSide::Open {
            stream: None,
            fed: false,
        };
        Self {
            side,
            ..Self::new(pool, spec, body)
        }
    }

    /// The open request side of a request on the wire.
    pub(super) fn request_mut(&mut self) -> Option<&mut SendStream<Bytes>> {
        match &mut self.state {
            State::Headers(sent) => sent.request.as_mut(),
            _ => None,
        }
    }

    /// The open request side of an answered call.
    pub(super) fn take_request(&mut self) -> Option<SendStream<Bytes>> {
        match &mut self.side {
            RequestSide::Open { stream, .. } => stream.take(),
            RequestSide::Closed => None,
        }
    }

    /// More than the body was sent: the request cannot be repeated.
    pub(super) fn set_fed(&mut self) {
        if let RequestSide::Open { fed, .. } = &mut self.side {
            *fed = true;
        }
    }

    /// The connection of a request on the wire.
    pub(super) fn conn(&self) -> Option<&Conn> {
        match &self.state {
            State::Headers(sent) => Some(sent.lease.conn()),
            _ => None,
        }
    }

    /// Sends the request on `lease`; `Err` if that connection takes none, which is then not picked again.
    fn send(&self, lease: Lease, left: Duration) -> Result<Sent, h2::Error> {
        let endpoint = self.pool.endpoint();
        let request = self.spec.request(endpoint, left, self.granted.as_ref());
        let conn = lease.conn();
        let received = conn.watch().received();
        match conn.sender().send_request(request, false) {
            Ok((response, mut body)) => {
                let open = matches!(self.side, RequestSide::Open { .. });
                // A failure to queue the body shows in the response, with its reason.
                let _ = body.send_data(self.body.clone(), !open);
                let stream = response.stream_id().as_u32();
                Ok(Sent {
                    response,
                    stream,
                    lease,
                    received,
                    request: open.then_some(body),
                })
            }
            Err(error) => {
                conn.wear_out();
                Err(error)
            }
        }
    }

    fn answered(
        &mut self,
        response: Response<RecvStream>,
        sent: Sent,
    ) -> Result<Option<ResponseStream>, CallError> {
        let (head, body) = response.into_parts();
        let verdict = match CallError::from_trailers(&head.headers) {
            // Trailers only: the status came with the headers.
            Some(verdict) => verdict.map(|()| true),
            None if head.status == StatusCode::OK => Ok(false),
            None => Err(fail::http_status(head.status, self.pool.endpoint())),
        };
        let ended = match verdict {
            Ok(ended) => ended,
            Err(error) => {
                let fed = matches!(self.side, RequestSide::Open { fed: true, .. });
                if error.code() == Code::Unauthenticated && self.may_try_anew() && !fed {
                    return Ok(None);
                }
                return Err(error);
            }
        };
        let limit = self.limit.take().expect("set at the first poll");
        let spec = self.spec.clone();
        let Sent {
            stream,
            lease,
            request,
            ..
        } = sent;
        if let RequestSide::Open { stream: kept, .. } = &mut self.side {
            *kept = request;
        }
        let generation = self.granted.as_ref().map(|granted| granted.generation);
        Ok(Some(ResponseStream::new(
            self.pool.clone(),
            spec,
            head.headers,
            body,
            ended,
            stream,
            lease,
            limit,
            generation,
        )))
    }

    fn may_try_anew(&mut self) -> bool {
        let Some(granted) = self.granted.take() else {
            return false;
        };
        !mem::replace(&mut self.renewed, true)
            && self
                .pool
                .0
                .target
                .tokens
                .renew(granted.generation, self.pool.0.target.clock.now())
    }
}

impl Future for Call {
    type Output = Result<ResponseStream, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let pool = this.pool.clone();
        let target = &pool.0.target;
        if this.limit.is_none() {
            let started = target.clock.now();
            let at = started.after(this.spec.0.timeout).min(this.spec.0.deadline);
            let mut timer = target.clock.timer();
            timer.set(Some(at));
            this.limit = Some(Limit { started, at, timer });
        }
        let outcome = loop {
            match &mut this.state {
                State::Start => {
                    this.state = match target.tokens.authorize(target.clock.now()) {
                        Authorization::None => State::Connection(None),
                        Authorization::Ready(granted) => {
                            this.granted = Some(granted);
                            State::Connection(None)
                        }
                        Authorization::Wait(fetch) => State::Token(fetch),
                    };
                }
                State::Token(fetch) => match fetch.as_mut().poll(cx) {
                    Poll::Ready(Ok(granted)) => {
                        this.granted = Some(granted);
                        this.state = State::Connection(None);
                    }
                    Poll::Ready(Err(error)) => break Some(Err(error)),
                    Poll::Pending => break None,
                },
                State::Connection(ticket) => {
                    let at = this.limit.as_ref().map_or(Moment::NEVER, |limit| limit.at);
                    let left = at.since(target.clock.now());
                    if left.is_zero() {
                        // Too late to send anything; the timer below says so.
                        break None;
                    }
                    match pool.0.pick(ticket, cx) {
                        Pick::Ready(lease) => match this.send(lease, left) {
                            Ok(sent) => this.state = State::Headers(sent),
                            // It ended between the look and the sending.
                            Err(_) if this.dead_ends < MAX_DEAD_ENDS => this.dead_ends += 1,
                            Err(error) => {
                                break Some(Err(fail::not_connected(format!(
                                    "{} connections to {} took no request: {error}",
                                    MAX_DEAD_ENDS + 1,
                                    target.endpoint
                                ))));
                            }
                        },
                        Pick::Wait => break None,
                        Pick::Failed(error) => break Some(Err(error)),
                    }
                }
                State::Headers(sent) => match Pin::new(&mut sent.response).poll(cx) {
                    Poll::Ready(Ok(response)) => {
                        let State::Headers(sent) = mem::replace(&mut this.state, State::Start)
                        else {
                            unreachable!("matched above")
                        };
                        match this.answered(response, sent) {
                            Ok(Some(stream)) => break Some(Ok(stream)),
                            Ok(None) => {}
                            Err(error) => break Some(Err(error)),
                        }
                    }
                    Poll::Ready(Err(error)) => {
                        let error = fail::stream_failed(
                            &error,
                            sent.stream,
                            sent.lease.conn(),
                            &target.endpoint,
                        );
                        break Some(Err(error));
                    }
                    Poll::Pending => break None,
                },
                State::Done => panic!("a call was polled after its end"),
            }
        };
        let outcome = outcome.or_else(|| {
            let waited = this
                .limit
                .as_mut()
                .and_then(|limit| limit.poll_passed(cx))?;
            let delivery = match &this.state {
                State::Headers(sent) => {
                    let conn = sent.lease.conn();
                    if waited >= SUSPICIOUS_SILENCE && conn.watch().received() == sent.received {
                        conn.wear_out();
                    }
                    Delivery::Unknown
                }
                _ => Delivery::NotSent,
            };
            Some(Err(fail::deadline(delivery, waited, this.spec.path())))
        });
        match outcome {
            Some(outcome) => {
                this.state = State::Done;
                this.body = Bytes::new();
                Poll::Ready(outcome)
            }
            None => Poll::Pending,
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_has_at_most_eight_digits_and_is_never_shortened() {
        for (left, text) in [
            (Duration::ZERO, "0u"),
            (Duration::from_nanos(1), "1u"),
            (Duration::from_secs(30), "30000000u"),
            (Duration::from_micros(99_999_999), "99999999u"),
            (Duration::from_micros(100_000_001), "100001m"),
            (Duration::from_secs(99_999), "99999000m"),
            (Duration::from_secs(100_000), "100000S"),
            (Duration::MAX, "99999999S"),
        ] {
            assert_eq!(grpc_timeout(left), text, "{left:?}");
        }
    }

    #[test]
    fn a_spec_prints_no_header() {
        let spec = CallSpec::new("/s/M", Duration::from_secs(1)).header(
            HeaderName::from_static("x-secret"),
            HeaderValue::from_static("value"),
        );
        assert!(!format!("{spec:?}").contains("value"));
    }
}
