//! Stored formats: the split and the coordinator's state.

use aqueduct_connector::Versioned;
use aqueduct_connector::options::ConfigError;
use aqueduct_connector::source::{Split, SplitId};
use aqueduct_connector::state::{StateError, StateReader, StateWriter};

use crate::destination::SubscriptionDestination;

const VERSION: u32 = 1;

/// A split: which subscription, and which of its readers. It has no position, because the service has no offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionSplit {
    /// The subscription.
    pub subscription: SubscriptionDestination,
    /// Unique in the source.
    pub uid: u32,
    /// The subscription's own ack deadline, in seconds; it counts when extension is off.
    pub ack_deadline_seconds: u32,
}

impl SubscriptionSplit {
    /// As checkpoints and readers get it.
    #[must_use]
    pub fn encode(&self) -> Versioned {
        StateWriter::new()
            .text(self.subscription.project())
            .text(self.subscription.subscription())
            .u32(self.uid)
            .u32(self.ack_deadline_seconds)
            .finish(VERSION)
    }

    /// Reads what any version wrote.
    ///
    /// # Errors
    ///
    /// If it is damaged or newer than this program.
    pub fn decode(state: &Versioned) -> Result<Self, StateError> {
        let mut reader = StateReader::open("a Pub/Sub split", state, 1..=VERSION)?;
        let subscription = destination(&mut reader)?;
        let split = Self {
            subscription,
            uid: reader.u32()?,
            ack_deadline_seconds: reader.u32()?,
        };
        reader.finish()?;
        Ok(split)
    }

    pub(super) fn to_split(&self) -> Split {
        Split {
            id: SplitId::new(self.uid.to_string()),
            state: self.encode(),
        }
    }
}

/// The coordinator's state: what was read, and whether the start position was applied (PS-SRC-04).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnumeratorState {
    /// The subscriptions, in their order.
    pub subscriptions: Vec<SubscriptionDestination>,
    /// Whether the start position was applied to all of them.
    pub start_position_applied: bool,
}

impl EnumeratorState {
    /// As checkpoints keep it.
    #[must_use]
    pub fn encode(&self) -> Versioned {
        let mut writer = StateWriter::new();
        writer.count(self.subscriptions.len());
        for subscription in &self.subscriptions {
            writer
                .text(subscription.project())
                .text(subscription.subscription());
        }
        writer
            .u8(u8::from(self.start_position_applied))
            .finish(VERSION)
    }

    /// Reads what any version wrote.
    ///
    /// # Errors
    ///
    /// If it is damaged or newer than this program.
    pub fn decode(state: &Versioned) -> Result<Self, StateError> {
        let mut reader =
            StateReader::open("the state of a Pub/Sub coordinator", state, 1..=VERSION)?;
        let count = reader.count(8)?;
        let subscriptions = (0..count)
            .map(|_| destination(&mut reader))
            .collect::<Result<_, _>>()?;
        let start_position_applied = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(reader.damaged("a flag is neither 0 nor 1")),
        };
        reader.finish()?;
        Ok(Self {
            subscriptions,
            start_position_applied,
        })
    }
}

fn destination(reader: &mut StateReader<'_>) -> Result<SubscriptionDestination, StateError> {
    let (project, subscription) = (reader.text()?, reader.text()?);
    SubscriptionDestination::new(project, subscription)
        .map_err(|_: ConfigError| reader.damaged("a subscription's name is impossible"))
}
