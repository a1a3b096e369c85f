//! Calls whose request side stays open: the owner feeds messages while it reads the answer.
//!
//! # Invariants
//!
//! - What the owner has queued and the connection has not taken is at most [`MAX_QUEUED`] bytes, or one message that is
//!   larger alone; beyond that [`DuplexCall::send`] hands the message back.
//! - Queued messages leave whenever the call is polled, also before the answer's headers have come: a peer may send those
//!   only with its first message.
//! - The end of a call is told by the answer alone, with the verdicts of any other call. A request side that the peer has
//!   closed drops what is queued, silently.
//! - After `UNAUTHENTICATED` the request is repeated once, with a fresh token, only if nothing but its first part was
//!   sent.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::SendStream;

use super::body::ResponseStream;
use super::call::Call;
use super::slot::Conn;
use crate::error::CallError;

/// Bytes that may wait for the connection to take them.
const MAX_QUEUED: usize = 64 << 10;

/// A call whose request side stays open. Owned and polled by whoever made it; dropping it cancels the call.
#[must_use = "a call does nothing until it is polled"]
pub struct DuplexCall {
    phase: Phase,
    outbox: Outbox,
}

enum Phase {
    /// No headers yet.
    Opening(Box<Call>),
    Open {
        answer: Box<ResponseStream>,
        request: Option<SendStream<Bytes>>,
    },
    Over,
}

/// No room for a message: it is handed back. Poll the call and try again.
pub struct NoRoom(pub Bytes);

impl fmt::Debug for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NoRoom({} bytes)", self.0.len())
    }
}

impl DuplexCall {
    pub(super) fn new(call: Call) -> Self {
        Self {
            phase: Phase::Opening(Box::new(call)),
            outbox: Outbox::default(),
        }
    }

    /// Queues complete gRPC frames behind what was queued before; they leave when the call is next polled.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] with the frames, if 64 KiB would be exceeded by them and something else is queued. After
    /// [`close`](Self::close) or the end of the call the frames are dropped.
    pub fn send(&mut self, frames: Bytes) -> Result<(), NoRoom> {
        if self.outbox.closing != Closing::No || matches!(self.phase, Phase::Over) {
            return Ok(());
        }
        if self.outbox.bytes > 0 && self.outbox.bytes + frames.len() > MAX_QUEUED {
            return Err(NoRoom(frames));
        }
        self.outbox.bytes += frames.len();
        self.outbox.frames.push_back(frames);
        Ok(())
    }

    /// Ends the request side behind what is queued. The answer goes on.
    pub fn close(&mut self) {
        if self.outbox.closing == Closing::No {
            self.outbox.closing = Closing::Wanted;
        }
    }

    /// The next message of the answer; `None` once the service has said OK. After an error: `None`. Sends what is queued
    /// on the way.
    ///
    /// A slice keeps its whole DATA frame alive: copy what outlives the batch.
    pub fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        loop {
            match &mut self.phase {
                Phase::Opening(call) => {
                    let answered = Pin::new(&mut **call).poll(cx);
                    if let Some(request) = call.request_mut()
                        && self.outbox.pump(request, cx)
                    {
                        call.set_fed();
                    }
                    match answered {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Ok(answer)) => {
                            let request = call.take_request();
                            self.phase = Phase::Open {
                                answer: Box::new(answer),
                                request,
                            };
                        }
                        Poll::Ready(Err(error)) => {
                            self.phase = Phase::Over;
                            return Poll::Ready(Some(Err(error)));
                        }
                    }
                }
                Phase::Open { answer, request } => {
                    if let Some(request) = request {
                        self.outbox.pump(request, cx);
                    }
                    let message = answer.poll_message(cx);
                    if matches!(message, Poll::Ready(None | Some(Err(_)))) {
                        self.phase = Phase::Over;
                        self.outbox = Outbox::default();
                    }
                    return message;
                }
                Phase::Over => return Poll::Ready(None),
            }
        }
    }

    /// [`poll_message`](Self::poll_message) as a future.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn message(&mut self) -> Option<Result<Bytes, CallError>> {
        poll_fn(|cx| self.poll_message(cx)).await
    }

    /// Whether the service has answered the call, be it by its headers only, and the answer has not ended.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        matches!(self.phase, Phase::Open { .. })
    }

    /// Sends what is queued as far as the connection takes it, reading nothing: for an owner that leaves the answer
    /// unread for a while. A call that has no connection yet gets none by this.
    pub fn poll_send(&mut self, cx: &mut Context<'_>) {
        match &mut self.phase {
            Phase::Opening(call) => {
                if let Some(request) = call.request_mut()
                    && self.outbox.pump(request, cx)
                {
                    call.set_fed();
                }
            }
            Phase::Open { request, .. } => {
                if let Some(request) = request {
                    self.outbox.pump(request, cx);
                }
            }
            Phase::Over => {}
        }
    }

    /// Whether everything queued was taken by the connection, the end asked for by [`close`](Self::close) included.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.outbox.frames.is_empty() && self.outbox.closing != Closing::Wanted
    }

    /// Bytes that the call's connection has received so far, whatever they were: it changes with every sign of life.
    /// `None` while the call has no connection.
    #[must_use]
    pub fn received(&self) -> Option<u64> {
        self.conn().map(|conn| conn.watch().received())
    }

    /// Cancels a call that has been silent for too long. If nothing at all came in on its connection since
    /// [`received`](Self::received) said `mark`, no later call uses that connection.
    pub fn abandon(self, mark: u64) {
        if let Some(conn) = self.conn()
            && conn.watch().received() == mark
        {
            conn.wear_out();
        }
    }

    fn conn(&self) -> Option<&Conn> {
        match &self.phase {
            Phase::Opening(call) => call.conn(),
            Phase::Open { answer, .. } => answer.conn(),
            Phase::Over => None,
        }
    }
}

impl fmt::Debug for DuplexCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match &self.phase {
            Phase::Opening(_) => "opening",
            Phase::Open { .. } => "open",
            Phase::Over => "over",
        };
        f.debug_struct("DuplexCall")
            .field("phase", &phase)
            .field("queued_bytes", &self.outbox.bytes)
            .finish_non_exhaustive()
    }
}

/// What the owner has sent and the connection has not taken.
#[derive(Default)]
struct Outbox {
    frames: VecDeque<Bytes>,
    bytes: usize,
    closing: Closing,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Closing {
    #[default]
    No,
    Wanted,
    Sent,
}

impl Outbox {
    /// Hands over what fits; whether anything was.
    fn pump(&mut self, request: &mut SendStream<Bytes>, cx: &mut Context<'_>) -> bool {
        let mut sent = false;
        while let Some(front) = self.frames.front_mut() {
            request.reserve_capacity(front.len());
            // `poll_capacity` tells of changes only, so what is there already is asked for first.
            let room = match request.capacity() {
                0 => match request.poll_capacity(cx) {
                    Poll::Pending => return sent,
                    Poll::Ready(Some(Ok(room))) => room,
                    Poll::Ready(Some(Err(_)) | None) => {
                        // The answer says why.
                        *self = Self {
                            closing: Closing::Sent,
                            ..Self::default()
                        };
                        return sent;
                    }
                },
                room => room,
            };
            if room == 0 {
                continue;
            }
            let chunk = front.split_to(room.min(front.len()));
            if front.is_empty() {
                self.frames.pop_front();
            }
            self.bytes -= chunk.len();
            sent = true;
            // Fails only if the stream has ended, which the answer says better.
            let _ = request.send_data(chunk, false);
        }
        if self.closing == Closing::Wanted {
            self.closing = Closing::Sent;
            sent = true;
            let _ = request.send_data(Bytes::new(), true);
        }
        sent
    }
}
