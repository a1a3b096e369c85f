//! One supervised stream: it is open, or about to be; only we or a permanent status end it (PS-SRC-12).

use std::task::{Context, Poll};
use std::time::Duration;

use aqueduct_cloud::{Backoff, CallError, ChannelPool, Origin};
use aqueduct_connector::{Code, Moment};
use bytes::Bytes;

use crate::client::pull::{FirstRequest, PullStream, Pulled};

const BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(60)).with_factor(4.0);

/// Supervises one stream.
#[derive(Debug)]
pub(super) struct Stream {
    first: FirstRequest,
    state: State,
    /// Ends since the last response.
    ends: u32,
    /// `UNAUTHENTICATED` since the last response.
    unauthenticated: u32,
}

#[derive(Debug)]
enum State {
    Waiting(Moment),
    Open(Box<PullStream>),
    /// The request side is closed; what still comes is taken in.
    Closing(Box<PullStream>),
    Closed,
}

#[derive(Debug)]
pub(super) enum Event {
    Response(Bytes),
    /// It ended and will be opened again.
    Ended(Option<Code>),
    /// It ended for good.
    Permanent(CallError),
    /// It ended after [`Stream::close`].
    Closed,
}

/// Whether opening the stream again can never help.
fn is_permanent(error: &CallError, unauthenticated: u32) -> bool {
    if matches!(error.origin(), Origin::Transport | Origin::Deadline) {
        return false;
    }
    match error.code() {
        Code::NotFound
        | Code::PermissionDenied
        | Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::Unimplemented => true,
        // The token was replaced after the first.
        Code::Unauthenticated => unauthenticated >= 2,
        _ => false,
    }
}

impl Stream {
    /// Opens as soon as it may read.
    pub(super) fn new(first: FirstRequest, now: Moment) -> Self {
        Self {
            first,
            state: State::Waiting(now),
            ends: 0,
            unauthenticated: 0,
        }
    }

    /// Makes it go on. Without `may_read` nothing is taken from it and a stream that is not open stays so.
    pub(super) fn poll(
        &mut self,
        pool: &ChannelPool,
        now: Moment,
        may_read: bool,
        random: &mut fastrand::Rng,
        cx: &mut Context<'_>,
    ) -> Poll<Event> {
        loop {
            match &mut self.state {
                State::Waiting(until) => {
                    if !may_read || now < *until {
                        return Poll::Pending;
                    }
                    let stream = PullStream::open(pool, &self.first, now);
                    self.state = State::Open(Box::new(stream));
                }
                State::Open(stream) => {
                    if !stream.tick(now) {
                        let silent = std::mem::replace(&mut self.state, State::Closed);
                        if let State::Open(stream) = silent {
                            stream.abandon();
                        }
                        self.wait(now, random);
                        return Poll::Ready(Event::Ended(Some(Code::DeadlineExceeded)));
                    }
                    if !may_read {
                        stream.rest(cx);
                        return Poll::Pending;
                    }
                    let Poll::Ready(pulled) = stream.poll(now, cx) else {
                        return Poll::Pending;
                    };
                    return Poll::Ready(self.pulled(pulled, now, random));
                }
                State::Closing(stream) => {
                    let Poll::Ready(pulled) = stream.poll(now, cx) else {
                        return Poll::Pending;
                    };
                    if let Pulled::Response(response) = pulled {
                        return Poll::Ready(Event::Response(response));
                    }
                    self.state = State::Closed;
                    return Poll::Ready(Event::Closed);
                }
                State::Closed => return Poll::Pending,
            }
        }
    }

    fn pulled(&mut self, pulled: Pulled, now: Moment, random: &mut fastrand::Rng) -> Event {
        match pulled {
            Pulled::Response(response) => {
                (self.ends, self.unauthenticated) = (0, 0);
                Event::Response(response)
            }
            Pulled::Ended(error) => {
                let code = error.as_ref().map(CallError::code);
                if code == Some(Code::Unauthenticated) {
                    self.unauthenticated += 1;
                }
                if let Some(error) = error
                    && is_permanent(&error, self.unauthenticated)
                {
                    self.state = State::Closed;
                    return Event::Permanent(error);
                }
                self.wait(now, random);
                Event::Ended(code)
            }
        }
    }

    fn wait(&mut self, now: Moment, random: &mut fastrand::Rng) {
        self.ends = self.ends.saturating_add(1);
        self.state = State::Waiting(now.after(BACKOFF.delay_after(self.ends, random)));
    }

    /// The response could not be decoded: opens anew.
    pub(super) fn spoiled(&mut self, now: Moment, random: &mut fastrand::Rng) {
        if !matches!(self.state, State::Closed) {
            self.wait(now, random);
        }
    }

    /// Ends the request side; what still comes is an [`Event::Response`].
    pub(super) fn close(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Closed) {
            State::Open(mut stream) => {
                stream.close();
                State::Closing(stream)
            }
            State::Closing(stream) => State::Closing(stream),
            State::Waiting(_) | State::Closed => State::Closed,
        };
    }

    /// Cancels whatever there is.
    pub(super) fn cancel(&mut self) {
        self.state = State::Closed;
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Whether the service answers it. One that is only being opened is not open: opening may hang.
    pub(super) fn is_open(&self) -> bool {
        matches!(&self.state, State::Open(stream) if stream.is_answered())
    }

    /// When [`poll`](Self::poll) has something to do by itself.
    pub(super) fn deadline(&self, may_read: bool) -> Moment {
        match &self.state {
            State::Waiting(until) if may_read => *until,
            State::Open(stream) => stream.deadline(),
            State::Waiting(_) | State::Closing(_) | State::Closed => Moment::NEVER,
        }
    }

    pub(super) fn silence(&self, now: Moment) -> Duration {
        match &self.state {
            State::Open(stream) => stream.silence(now),
            _ => Duration::ZERO,
        }
    }
}
