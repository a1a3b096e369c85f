//! What happens to a record that can never be written: failure handlers and the dead-letter queue.
//!
//! Only failures of one record's own data come here (BASE-08). A condition of the service never does: an outage would
//! otherwise drain the stream under a green job. A handler is owned by its writer and called on the writer's task, in
//! the order `open`, then any mix of `poll_ready` + `handle`, `poll_flush` inside every writer flush after the write
//! path has drained, and `poll_close` on success and failure.

use std::error::Error as StdError;
use std::fmt;
use std::task::{Context as PollContext, Poll};

use bytes::Bytes;
use tracing::warn;

use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};

/// A record that was rejected for its own sake.
///
/// `Debug` of an implementation shows sizes, never contents.
pub trait FailedElement: fmt::Debug {
    /// The connector: one of `bigquery`, `bigtable`, `cloudtasks`, `pubsub`, `spanner`. Stable.
    fn connector(&self) -> &'static str;

    /// The destination in the connector's own notation, or `unresolved`.
    fn destination(&self) -> String;

    /// The serialized request, if there is one.
    fn payload(&self) -> Option<Bytes>;

    /// Why it was rejected, without user data.
    fn message(&self) -> String;

    /// The cause behind the message, if there is one.
    fn cause(&self) -> Option<&(dyn StdError + 'static)>;
}

/// Decides what becomes of rejected records.
///
/// `Ok` from [`handle`](Self::handle) drops the record; an error fails the write or the checkpoint in progress. Records
/// are offered at least once if the failure recurs on replay (BASE-07).
pub trait FailureHandler<F: FailedElement + ?Sized> {
    /// Called once before anything else, also after a restore.
    ///
    /// # Errors
    ///
    /// Fails the start of the writer.
    fn open(&mut self, context: &Context) -> Result<()> {
        let _ = context;
        Ok(())
    }

    /// Whether one more record can be taken now.
    ///
    /// # Errors
    ///
    /// Fails the job.
    fn poll_ready(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        let _ = cx;
        Poll::Ready(Ok(()))
    }

    /// Takes a rejected record, or fails the job with the error.
    ///
    /// # Errors
    ///
    /// The verdict that the job shall fail.
    fn handle(&mut self, element: &F) -> Result<()>;

    /// Ready when everything handled so far is durable.
    ///
    /// # Errors
    ///
    /// Fails the checkpoint in progress.
    fn poll_flush(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        let _ = cx;
        Poll::Ready(Ok(()))
    }

    /// Releases everything; persists nothing.
    ///
    /// # Errors
    ///
    /// The first failure to close.
    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        let _ = cx;
        Poll::Ready(Ok(()))
    }
}

/// Makes a handler for each writer; cloned into the sink's configuration.
pub trait FailureHandlerFactory<F: FailedElement + ?Sized>: Send + Sync {
    /// A new handler, not yet opened.
    fn create(&self) -> Box<dyn FailureHandler<F>>;
}

impl<F, H, C> FailureHandlerFactory<F> for C
where
    F: FailedElement + ?Sized,
    H: FailureHandler<F> + 'static,
    C: Fn() -> H + Send + Sync,
{
    fn create(&self) -> Box<dyn FailureHandler<F>> {
        Box::new(self())
    }
}

/// Fails the job at the first rejected record. The default everywhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailJob;

/// Fails the job at the first rejected record. The default everywhere.
#[must_use]
pub fn fail_job() -> FailJob {
    FailJob
}

impl<F: FailedElement + ?Sized> FailureHandler<F> for FailJob {
    fn handle(&mut self, element: &F) -> Result<()> {
        Err(rejection(element))
    }
}

/// The error that a rejected record becomes when it fails the job.
pub fn rejection<F: FailedElement + ?Sized>(element: &F) -> Error {
    let mut text = format!(
        "{} rejected a record for {}: {}",
        element.connector(),
        element.destination(),
        element.message()
    );
    let mut next = element.cause();
    while let Some(cause) = next {
        let part = cause.to_string();
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        next = cause.source();
    }
    Error::new(ErrorKind::User, text)
}

/// Drops each rejected record with one warning naming connector, destination and message.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogAndDrop;

/// Drops each rejected record with one warning naming connector, destination and message.
#[must_use]
pub fn log_and_drop() -> LogAndDrop {
    LogAndDrop
}

impl<F: FailedElement + ?Sized> FailureHandler<F> for LogAndDrop {
    fn handle(&mut self, element: &F) -> Result<()> {
        warn!(
            connector = element.connector(),
            destination = %element.destination(),
            error = %element.message(),
            cause = element.cause().map(tracing::field::display),
            "dropped a rejected record",
        );
        Ok(())
    }
}

/// A durable place for rejected records. Experimental.
pub trait DeadLetterQueue {
    /// Called once before anything else.
    ///
    /// # Errors
    ///
    /// Fails the start of the writer.
    fn open(&mut self, context: &Context) -> Result<()>;

    /// Whether one more element can be offered.
    ///
    /// # Errors
    ///
    /// Fails the job.
    fn poll_ready(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>>;

    /// Takes an element; may buffer it until the next flush.
    ///
    /// # Errors
    ///
    /// Fails the job.
    fn offer(&mut self, element: &dyn FailedElement) -> Result<()>;

    /// Ready when everything offered is durable.
    ///
    /// # Errors
    ///
    /// Fails the checkpoint in progress; nothing was dropped.
    fn poll_flush(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>>;

    /// Releases everything.
    ///
    /// # Errors
    ///
    /// The first failure to close.
    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>>;
}

/// Hands each rejected record to a dead-letter queue; an error of the queue fails the job.
#[derive(Debug)]
pub struct SendToDeadLetterQueue<Q>(Q);

/// Hands each rejected record to `queue`, driving its life from the handler's own.
pub fn send_to_dead_letter_queue<Q: DeadLetterQueue>(queue: Q) -> SendToDeadLetterQueue<Q> {
    SendToDeadLetterQueue(queue)
}

impl<F: FailedElement, Q: DeadLetterQueue> FailureHandler<F> for SendToDeadLetterQueue<Q> {
    fn open(&mut self, context: &Context) -> Result<()> {
        self.0.open(context)
    }

    fn poll_ready(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.0.poll_ready(cx)
    }

    fn handle(&mut self, element: &F) -> Result<()> {
        self.0.offer(element)
    }

    fn poll_flush(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.0.poll_flush(cx)
    }

    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.0.poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Code, Status, StatusChain};

    #[derive(Debug)]
    struct Bad(StatusChain);

    impl FailedElement for Bad {
        fn connector(&self) -> &'static str {
            "bigtable"
        }
        fn destination(&self) -> String {
            "p.i.t".to_owned()
        }
        fn payload(&self) -> Option<Bytes> {
            None
        }
        fn message(&self) -> String {
            "the service refused the mutation".to_owned()
        }
        fn cause(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn failing_the_job_says_connector_destination_and_status() {
        let bad = Bad(StatusChain::new(Status::new(
            Code::InvalidArgument,
            "granularity",
        )));
        let error = FailureHandler::<Bad>::handle(&mut fail_job(), &bad).unwrap_err();
        assert_eq!(
            error.to_string(),
            "bigtable rejected a record for p.i.t: the service refused the mutation: INVALID_ARGUMENT (granularity)"
        );
        assert_eq!(error.kind(), ErrorKind::User);
        assert!(FailureHandler::<Bad>::handle(&mut log_and_drop(), &bad).is_ok());
    }
}
