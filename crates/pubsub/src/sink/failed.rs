//! A message that was rejected for its own sake, as a failure handler sees it.

use std::error::Error as StdError;
use std::fmt;

use aqueduct_connector::StatusChain;
use aqueduct_connector::failure::FailedElement;
use bytes::Bytes;

use super::serializer::BoxError;
use crate::TopicDestination;

/// A record that its serializer refused, or whose message the service refused when it was sent alone.
///
/// Of a serialization failure there is no payload. `Debug` shows sizes only.
pub struct FailedMessage {
    topic: TopicDestination,
    message: Option<Bytes>,
    cause: Cause,
}

enum Cause {
    Serializer(BoxError),
    Service(StatusChain),
}

impl FailedMessage {
    pub(super) fn serializer(topic: TopicDestination, error: BoxError) -> Self {
        Self {
            topic,
            message: None,
            cause: Cause::Serializer(error),
        }
    }

    pub(super) fn service(topic: TopicDestination, message: Bytes, chain: StatusChain) -> Self {
        Self {
            topic,
            message: Some(message),
            cause: Cause::Service(chain),
        }
    }

    /// The topic that the record was headed for.
    #[must_use]
    pub fn topic(&self) -> &TopicDestination {
        &self.topic
    }

    /// The service's statuses; `None` of a serialization failure.
    #[must_use]
    pub fn statuses(&self) -> Option<&StatusChain> {
        match &self.cause {
            Cause::Service(chain) => Some(chain),
            Cause::Serializer(_) => None,
        }
    }
}

impl FailedElement for FailedMessage {
    fn connector(&self) -> &'static str {
        super::CONNECTOR
    }

    /// The topic's resource name.
    fn destination(&self) -> String {
        self.topic.to_string()
    }

    /// The whole encoded `PubsubMessage`, attributes and ordering key included.
    fn payload(&self) -> Option<Bytes> {
        self.message.clone()
    }

    fn message(&self) -> String {
        match &self.cause {
            Cause::Serializer(_) => "the serializer refused the record".to_owned(),
            Cause::Service(chain) => {
                format!("the service refused the message with {}", chain.code())
            }
        }
    }

    fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        Some(match &self.cause {
            Cause::Serializer(error) => &**error,
            Cause::Service(chain) => chain,
        })
    }
}

impl fmt::Debug for FailedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailedMessage")
            .field("topic", &self.topic)
            .field("payload_bytes", &self.message.as_ref().map(Bytes::len))
            .finish_non_exhaustive()
    }
}
