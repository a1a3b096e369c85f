//! Response bodies: a script of frames, pauses and ends.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::connection::Connection;
use crate::{
    bigtable::read::{Scan, Step as ScanStep},
    pubsub::{
        permits::End,
        stream::{PullBody, Pulled},
    },
};

/// How long what was sent before a scripted break gets to reach the client: a reset stream drops
/// what is still queued, and a closed socket what the client has not read.
const LINGER: Duration = Duration::from_millis(25);

/// One thing a scripted body does.
pub(crate) enum Step {
    Message(Bytes),
    /// Messages until the scan ends, then its status.
    Scan(Box<Scan>),
    Trailers(HeaderMap),
    Linger,
    Reset(h2::Reason),
    Cut,
    /// Nothing more, ever.
    Hang,
}

/// A script of steps.
pub(crate) struct Scripted {
    steps: VecDeque<Step>,
    pause: Option<Pin<Box<Sleep>>>,
    connection: Arc<Connection>,
    /// Sent with whatever status a scan ends with.
    trailers: HeaderMap,
}

/// The body of a response.
pub(crate) enum SimBody {
    /// Headers carry the status.
    Empty,
    /// One message and success.
    Once(Option<Bytes>, Option<HeaderMap>),
    Scripted(Box<Scripted>),
    /// A streaming pull.
    Pull(Box<PullBody>),
}

impl SimBody {
    pub(crate) fn scripted(
        steps: impl IntoIterator<Item = Step>,
        connection: Arc<Connection>,
        trailers: HeaderMap,
    ) -> Self {
        let steps = steps
            .into_iter()
            .flat_map(|step| match step {
                Step::Reset(_) | Step::Cut => [Some(Step::Linger), Some(step)],
                step => [None, Some(step)],
            })
            .flatten()
            .collect();
        Self::Scripted(Box::new(Scripted {
            steps,
            pause: None,
            connection,
            trailers,
        }))
    }
}

/// The trailers of a status.
pub(crate) fn trailers_of(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(3);
    if status.add_header(&mut trailers).is_err() {
        // Unreachable for our own texts; the code alone still ends the call properly.
        trailers.insert("grpc-status", i32::from(status.code()).into());
    }
    trailers
}

impl Body for SimBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let this = self.get_mut();
        if let Self::Pull(pull) = this {
            match ready!(pull.poll(cx)) {
                Pulled::Frame(frame) => return Poll::Ready(Some(Ok(Frame::data(frame)))),
                Pulled::End(end) => {
                    let connection = pull.connection.clone();
                    let step = match end {
                        End::Status(code, message) => {
                            Step::Trailers(trailers_of(&Status::new(code, message)))
                        }
                        End::Reset => Step::Reset(h2::Reason::INTERNAL_ERROR),
                        End::Cut => Step::Cut,
                    };
                    *this = Self::scripted([step], connection, HeaderMap::new());
                }
            }
        }
        match this {
            Self::Empty => Poll::Ready(None),
            Self::Once(message, trailers) => Poll::Ready(
                message
                    .take()
                    .map(Frame::data)
                    .or_else(|| trailers.take().map(Frame::trailers))
                    .map(Ok),
            ),
            Self::Scripted(script) => script.poll(cx),
            // Replaced above when it ends.
            Self::Pull(_) => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Empty)
    }
}

impl Scripted {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            match self.steps.pop_front() {
                None => return Poll::Ready(None),
                Some(Step::Message(message)) => return Poll::Ready(Some(Ok(Frame::data(message)))),
                Some(Step::Trailers(trailers)) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                Some(Step::Linger) => self.pause = Some(Box::pin(sleep(LINGER))),
                Some(Step::Reset(reason)) => return Poll::Ready(Some(Err(reason.into()))),
                Some(Step::Cut) => {
                    self.connection.cut();
                    self.steps.push_front(Step::Hang);
                }
                Some(Step::Hang) => {
                    self.steps.push_front(Step::Hang);
                    return Poll::Pending;
                }
                Some(Step::Scan(mut scan)) => match scan.step() {
                    ScanStep::Message(message) => {
                        self.steps.push_front(Step::Scan(scan));
                        return Poll::Ready(Some(Ok(Frame::data(message))));
                    }
                    // What the script says of a break follows.
                    ScanStep::Working if scan.broken() => {}
                    ScanStep::Working => {
                        self.steps.push_front(Step::Scan(scan));
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    ScanStep::End(status) => {
                        // The scan ended before a scripted break.
                        self.steps.clear();
                        let mut trailers = trailers_of(&status);
                        trailers.extend(std::mem::take(&mut self.trailers));
                        return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                    }
                },
            }
        }
    }
}
