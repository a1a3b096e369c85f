//! The writer: calls user code in its stated order and hands messages to the driver.
//!
//! # Invariants
//!
//! - A record meets the resolver once, then the serializer once, never concurrently (PS-SINK-03).
//! - A failure of a record's own data goes to the handler; whatever hits every record alike fails the job.

use std::sync::Arc;
use std::task::{Context as PollContext, Poll};

use aqueduct_connector::sink::{Flush, RecordInfo, SinkWriter};
use aqueduct_connector::{Context, Error, Result};

use super::builder::Config;
use super::drive::Drive;
use super::failed::FailedMessage;
use super::serializer::{DestinationResolver, Disposition, MessageSerializer};
use crate::TopicDestination;
use crate::message::Message;

/// Where records go.
pub(super) enum Destinations<T> {
    Topic(TopicDestination),
    Resolver(Box<dyn DestinationResolver<T>>),
}

/// One subtask's writer.
pub(super) struct Writer<T> {
    config: Arc<Config<T>>,
    context: Context,
    destinations: Destinations<T>,
    serializer: Box<dyn MessageSerializer<T>>,
    message: Message,
    /// Opened by the first poll.
    drive: Option<Drive>,
    closed: bool,
}

impl<T> Writer<T> {
    pub(super) fn new(
        config: Arc<Config<T>>,
        context: Context,
        destinations: Destinations<T>,
        serializer: Box<dyn MessageSerializer<T>>,
    ) -> Self {
        Self {
            config,
            context,
            destinations,
            serializer,
            message: Message::new(),
            drive: None,
            closed: false,
        }
    }

    /// The driver, opened with everything a writer opens once: credentials, handler, serializer.
    #[inline]
    fn open(&mut self) -> Result<&mut Drive> {
        if self.drive.is_none() {
            self.open_drive()?;
        }
        Ok(self.drive.as_mut().expect("opened above"))
    }

    #[cold]
    fn open_drive(&mut self) -> Result<()> {
        if self.closed {
            return Err(Error::bug("a closed Pub/Sub writer was used"));
        }
        let mut drive = self.config.drive(self.context.clone())?;
        if let Err(error) = self.serializer.open(&self.context) {
            // Kept, so that close reaches the handler that is open already.
            drive.fail(error);
        }
        self.drive = Some(drive);
        Ok(())
    }
}

impl<T> SinkWriter<T> for Writer<T> {
    fn poll_ready(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        match &mut self.drive {
            Some(drive) if drive.has_room() => Poll::Ready(Ok(())),
            Some(drive) => drive.poll_room(cx),
            None => self.open()?.poll_room(cx),
        }
    }

    fn write(&mut self, record: T, info: RecordInfo) -> Result<()> {
        self.open()?;
        let drive = self.drive.as_mut().expect("opened above");
        drive.check()?;
        let resolved;
        let destination = match &mut self.destinations {
            Destinations::Topic(topic) => &*topic,
            Destinations::Resolver(resolver) => {
                let failure = match resolver.resolve(&record, info) {
                    Ok(Some(topic)) => Ok(topic),
                    Ok(None) => Err(Error::user(
                        "the Pub/Sub destination resolver named no topic for a record; it must name one for each",
                    )),
                    Err(error) => {
                        Err(Error::user("the Pub/Sub destination resolver failed")
                            .with_source(error))
                    }
                };
                resolved = match failure {
                    Ok(topic) => topic,
                    Err(error) => {
                        drive.fail(error);
                        return drive.check();
                    }
                };
                &resolved
            }
        };
        self.message.clear();
        match self.serializer.serialize(&record, info, &mut self.message) {
            Ok(Disposition::Publish) => {}
            Ok(Disposition::Skip) => {
                drive.on_skipped();
                return Ok(());
            }
            Err(error) => {
                return drive.route(FailedMessage::serializer(destination.clone(), error));
            }
        }
        if let Err(error) = drive.admit(destination, &self.message) {
            drive.fail(error);
            return drive.check();
        }
        Ok(())
    }

    fn poll_progress(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.open()?.poll_progress(cx)
    }

    fn poll_flush(&mut self, cx: &mut PollContext<'_>, flush: Flush) -> Poll<Result<()>> {
        self.open()?.poll_flush(cx, flush)
    }

    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.closed = true;
        let Some(drive) = &mut self.drive else {
            return Poll::Ready(Ok(()));
        };
        let closed = drive.poll_close(cx);
        if closed.is_ready() {
            self.drive = None;
        }
        closed
    }
}
