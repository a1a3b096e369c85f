//! Messages to records.

use aqueduct_connector::source::Collector;
use aqueduct_connector::{Context, Result};

use super::message::ReceivedMessage;
use crate::destination::SubscriptionDestination;

/// Makes zero or more records of each message.
///
/// Emitting nothing skips the message: `recordsSkipped` counts it, and it is still acknowledged with its checkpoint. A
/// record's event time is the message's publish time unless it is emitted with one of its own. Instead of failing, a
/// deserializer may emit a variant for bad messages that a later operator sorts out.
///
/// Closures of the shape of [`deserialize`](Self::deserialize) are deserializers.
pub trait MessageDeserializer<T> {
    /// Called once in each reader, before its first message.
    ///
    /// # Errors
    ///
    /// Fails the reader's start.
    fn open(&mut self, context: &Context) -> Result<()> {
        let _ = context;
        Ok(())
    }

    /// Emits the records of `message`, which came from `subscription`.
    ///
    /// # Errors
    ///
    /// The message cannot be decoded: the failure policy decides. Records emitted before the error stay.
    fn deserialize(
        &mut self,
        message: &ReceivedMessage,
        subscription: &SubscriptionDestination,
        out: &mut Collector<'_, T>,
    ) -> Result<()>;
}

impl<T, F> MessageDeserializer<T> for F
where
    F: FnMut(&ReceivedMessage, &SubscriptionDestination, &mut Collector<'_, T>) -> Result<()>,
{
    fn deserialize(
        &mut self,
        message: &ReceivedMessage,
        subscription: &SubscriptionDestination,
        out: &mut Collector<'_, T>,
    ) -> Result<()> {
        self(message, subscription, out)
    }
}
