//! Answers: gRPC messages out of DATA frames.
//!
//! # Invariants
//!
//! - A message that lies within one DATA frame is a slice of it; one that does not is copied once.
//! - Nothing is taken from the connection before the owner asks: the windows are the bound on unread data, plus one
//!   unfinished message of at most the call's limit.
//! - The last word is a status: an answer that ends without one is an error, and one that ends in the middle of a message
//!   is an error unless its status is one already.

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};

use aqueduct_connector::Code;
use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;
use http::HeaderMap;

use super::call::{CallSpec, Limit};
use super::slot::{Conn, Lease};
use super::{ChannelPool, fail};
use crate::error::{CallError, Cookies, Delivery, Origin};

/// The messages of an answer, then its status. Dropping it cancels what is left.
pub struct ResponseStream {
    pool: ChannelPool,
    spec: CallSpec,
    headers: HeaderMap,
    trailers: Option<HeaderMap>,
    body: RecvStream,
    messages: Messages,
    state: State,
    stream: u32,
    lease: Option<Lease>,
    limit: Limit,
    /// Of the token that the call showed.
    generation: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Data,
    Trailers,
    Done,
}

impl ResponseStream {
    #[expect(
        clippy::too_many_arguments,
        reason = "everything a call hands over, once"
    )]
    pub(super) fn new(
        pool: ChannelPool,
        spec: CallSpec,
        headers: HeaderMap,
        body: RecvStream,
        ended: bool,
        stream: u32,
        lease: Lease,
        limit: Limit,
        generation: Option<u64>,
    ) -> Self {
        Self {
            pool,
            headers,
            trailers: None,
            body,
            messages: Messages::new(spec.message_limit()),
            spec,
            state: if ended { State::Done } else { State::Data },
            stream,
            lease: (!ended).then_some(lease),
            limit,
            generation,
        }
    }

    /// The next message, without its prefix; `None` once the service has said OK. After an error: `None`.
    ///
    /// A slice keeps its whole DATA frame alive: copy what outlives the batch.
    pub fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        let result = match self.poll_next(cx) {
            Poll::Ready(result) => result,
            Poll::Pending => match self.limit.poll_passed(cx) {
                Some(waited) => Some(Err(fail::deadline(
                    Delivery::Unknown,
                    waited,
                    self.spec.path(),
                ))),
                None => return Poll::Pending,
            },
        };
        Poll::Ready(match result {
            Some(Ok(message)) => Some(Ok(message)),
            None => {
                self.finish();
                None
            }
            Some(Err(error)) => {
                self.finish();
                if let (Code::Unauthenticated, Some(generation)) = (error.code(), self.generation) {
                    // Too late for this call; the owner's next one shows a fresh token.
                    let target = &self.pool.0.target;
                    target.tokens.renew(generation, target.clock.now());
                }
                let mut cookies = Cookies::from_headers(&self.headers);
                cookies.update(error.cookies());
                Some(Err(error.with_cookies(cookies)))
            }
        })
    }

    /// [`poll_message`](Self::poll_message) as a future.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn message(&mut self) -> Option<Result<Bytes, CallError>> {
        poll_fn(|cx| self.poll_message(cx)).await
    }

    /// The connection, until the answer has ended.
    pub(super) fn conn(&self) -> Option<&Conn> {
        self.lease.as_ref().map(Lease::conn)
    }

    /// The answer's headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The answer's trailers, once [`poll_message`](Self::poll_message) has read to the end.
    #[must_use]
    pub fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_ref()
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        loop {
            match self.state {
                State::Done => return Poll::Ready(None),
                State::Data => {
                    match self.messages.next() {
                        Ok(None) => {}
                        Ok(Some(message)) => return Poll::Ready(Some(Ok(message))),
                        Err(error) => return Poll::Ready(Some(Err(error))),
                    }
                    match self.body.poll_data(cx) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(None) => self.state = State::Trailers,
                        Poll::Ready(Some(Err(error))) => {
                            return Poll::Ready(Some(Err(self.failed(&error))));
                        }
                        Poll::Ready(Some(Ok(data))) => {
                            // Fails only if the stream has ended meanwhile, which the next poll says better.
                            let _ = self.body.flow_control().release_capacity(data.len());
                            self.messages.push(data);
                        }
                    }
                }
                State::Trailers => {
                    let trailers = match self.body.poll_trailers(cx) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Err(error)) => {
                            return Poll::Ready(Some(Err(self.failed(&error))));
                        }
                        Poll::Ready(Ok(trailers)) => trailers,
                    };
                    self.state = State::Done;
                    return Poll::Ready(self.judge(trailers).err().map(Err));
                }
            }
        }
    }

    fn judge(&mut self, trailers: Option<HeaderMap>) -> Result<(), CallError> {
        let endpoint = self.pool.endpoint();
        let verdict = trailers.as_ref().and_then(CallError::from_trailers);
        self.trailers = trailers;
        match verdict {
            None => Err(fail::no_status("without a status", endpoint)),
            Some(Ok(())) if self.messages.is_inside() => {
                Err(fail::no_status("inside a message", endpoint))
            }
            Some(verdict) => verdict,
        }
    }

    fn failed(&self, error: &h2::Error) -> CallError {
        match &self.lease {
            Some(lease) => {
                fail::stream_failed(error, self.stream, lease.conn(), self.pool.endpoint())
            }
            None => fail::no_status("early", self.pool.endpoint()),
        }
    }

    fn finish(&mut self) {
        self.state = State::Done;
        self.lease = None;
        self.messages = Messages::new(0);
    }
}

impl fmt::Debug for ResponseStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseStream")
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

/// Compressed flag and length.
const PREFIX: usize = 5;

/// What is reserved at most for a message before its bytes have come: a length is only a claim.
const TRUSTED: usize = 1 << 20;

/// Cuts messages out of chunks.
struct Messages {
    chunk: Bytes,
    /// The beginning of a message that its chunk did not hold, prefix included.
    begun: BytesMut,
    limit: usize,
}

impl Messages {
    fn new(limit: usize) -> Self {
        Self {
            chunk: Bytes::new(),
            begun: BytesMut::new(),
            limit,
        }
    }

    /// The next chunk; the last one is used up, as `next` has answered `None`.
    fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty(), "the last chunk was not used up");
        self.chunk = chunk;
    }

    /// Whether a message has begun and not ended.
    fn is_inside(&self) -> bool {
        !self.begun.is_empty()
    }

    fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        if self.begun.is_empty() {
            if let Some(prefix) = self.chunk.first_chunk::<PREFIX>() {
                let length = self.length(*prefix)?;
                if self.chunk.len() - PREFIX >= length {
                    self.chunk.advance(PREFIX);
                    return Ok(Some(self.chunk.split_to(length)));
                }
                self.begun.reserve(PREFIX + length.min(TRUSTED));
            }
            if self.chunk.is_empty() {
                return Ok(None);
            }
        }
        self.take(PREFIX);
        let Some(prefix) = self.begun.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = self.length(*prefix)?;
        self.take(PREFIX + length);
        if self.begun.len() < PREFIX + length {
            return Ok(None);
        }
        let mut message = std::mem::take(&mut self.begun).freeze();
        message.advance(PREFIX);
        Ok(Some(message))
    }

    /// Moves bytes of the chunk over until `total` have begun.
    fn take(&mut self, total: usize) {
        let missing = total.saturating_sub(self.begun.len()).min(self.chunk.len());
        self.begun.extend_from_slice(&self.chunk[..missing]);
        self.chunk.advance(missing);
    }

    fn length(&self, [flag, length @ ..]: [u8; PREFIX]) -> Result<usize, CallError> {
        let fail = |code, message: String| {
            Err(CallError::new(
                Origin::Protocol,
                Delivery::Unknown,
                code,
                message,
            ))
        };
        match flag {
            0 => {}
            1 => {
                return fail(
                    Code::Unimplemented,
                    "a message is compressed, although no compression was offered".into(),
                );
            }
            _ => {
                return fail(
                    Code::Internal,
                    "the answer is not gRPC: a message begins with neither 0 nor 1".into(),
                );
            }
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > self.limit {
            return fail(
                Code::OutOfRange,
                format!(
                    "a message of {length} bytes exceeds the limit of {} bytes for this call",
                    self.limit
                ),
            );
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(u32::try_from(message.len()).expect("short").to_be_bytes());
        bytes.extend_from_slice(message);
        bytes
    }

    proptest! {
        #[test]
        fn messages_come_out_whole_wherever_frames_are_cut(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..12),
            cuts in prop::collection::vec(0usize..40, 1..60),
        ) {
            let wire: Vec<u8> = messages.iter().flat_map(|message| framed(message)).collect();
            let mut wire = Bytes::from(wire);
            let (mut parser, mut seen) = (Messages::new(50), Vec::new());
            let mut cut = cuts.iter().chain(&[1]).cycle();
            while !wire.is_empty() {
                parser.push(wire.split_to(wire.len().min(*cut.next().expect("endless"))));
                while let Some(message) = parser.next().expect("valid frames") {
                    seen.push(message.to_vec());
                }
            }
            prop_assert_eq!(seen, messages);
            prop_assert!(!parser.is_inside());
        }

        #[test]
        fn no_bytes_make_it_panic_or_exceed_its_limit(chunks in prop::collection::vec(prop::collection::vec(0u8..3, 0..30), 0..20)) {
            let mut parser = Messages::new(20);
            'all: for chunk in chunks {
                parser.push(Bytes::from(chunk));
                loop {
                    match parser.next() {
                        Ok(Some(message)) => prop_assert!(message.len() <= 20),
                        Ok(None) => break,
                        Err(_) => break 'all,
                    }
                }
                prop_assert!(parser.begun.len() <= 25);
            }
        }
    }

    #[test]
    fn a_message_within_one_chunk_is_not_copied() {
        let chunk = Bytes::from([framed(b"first"), framed(b"second")].concat());
        let base = chunk.as_ptr() as usize;
        let mut parser = Messages::new(100);
        parser.push(chunk);
        let first = parser.next().expect("valid").expect("whole");
        let second = parser.next().expect("valid").expect("whole");
        assert_eq!(
            (
                first.as_ptr() as usize - base,
                second.as_ptr() as usize - base
            ),
            (5, 15)
        );
    }

    #[test]
    fn the_limit_is_inclusive_and_named() {
        let mut parser = Messages::new(5);
        parser.push(Bytes::from(framed(b"12345")));
        assert!(parser.next().expect("at the limit").is_some());
        parser.push(Bytes::from(framed(b"123456")));
        let error = parser.next().expect_err("above the limit");
        assert_eq!(error.code(), Code::OutOfRange);
        assert!(
            error
                .statuses()
                .to_string()
                .contains("6 bytes exceeds the limit of 5 bytes"),
            "{error:?}"
        );
    }

    #[test]
    fn compression_is_refused_by_name() {
        let mut parser = Messages::new(5);
        parser.push(Bytes::from_static(&[1, 0, 0, 0, 1, 0]));
        let error = parser.next().expect_err("compressed");
        assert_eq!(error.code(), Code::Unimplemented);
        assert!(
            error.statuses().to_string().contains("compressed"),
            "{error:?}"
        );
    }

    #[test]
    fn a_claimed_length_reserves_little() {
        let mut parser = Messages::new(usize::MAX);
        parser.push(Bytes::from_static(&[0, 255, 255, 255, 255, 1]));
        assert!(parser.next().expect("valid so far").is_none());
        assert!(parser.begun.capacity() < 2 * TRUSTED);
    }
}
