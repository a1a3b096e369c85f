//! [`SubscriptionCreateOptions`]: by what a missing subscription is created.

use std::num::NonZeroU32;
use std::time::Duration;

use aqueduct_connector::options::ConfigError;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

use crate::destination::{SubscriptionDestination, TopicDestination};
use crate::source_options::CREATE_OPTIONS;

/// Settings of a subscription to create. They belong to one subscription, because they bind it to its topic.
///
/// What is not set is left to the service. The topic must exist: the source never creates one. A new subscription holds
/// nothing that was published before it, unless the topic retains messages and a start position reaches back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionCreateOptions {
    topic: TopicDestination,
    ack_deadline: Option<Duration>,
    ordering: bool,
    message_retention: Option<Duration>,
    retain_acked: bool,
    expiration: Option<Expiration>,
    dead_letter: Option<(TopicDestination, NonZeroU32)>,
    filter: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiration {
    After(Duration),
    Never,
}

impl SubscriptionCreateOptions {
    /// A subscription to `topic`, which must exist.
    #[must_use]
    pub fn new(topic: TopicDestination) -> Self {
        Self {
            topic,
            ack_deadline: None,
            ordering: false,
            message_retention: None,
            retain_acked: false,
            expiration: None,
            dead_letter: None,
            filter: None,
        }
    }

    /// The ack deadline, in whole seconds. The service takes 10 s to 600 s and gives 10 s by default.
    #[must_use]
    pub fn ack_deadline(mut self, deadline: Duration) -> Self {
        self.ack_deadline = Some(deadline);
        self
    }

    /// Delivers the messages of an ordering key in order. It cannot be changed later.
    #[must_use]
    pub fn enable_message_ordering(mut self) -> Self {
        self.ordering = true;
        self
    }

    /// How long messages are kept. The service takes 10 min to 31 days and gives 7 days by default.
    #[must_use]
    pub fn message_retention(mut self, retention: Duration) -> Self {
        self.message_retention = Some(retention);
        self
    }

    /// Keeps acknowledged messages too, so that a seek can bring them back.
    #[must_use]
    pub fn retain_acked_messages(mut self) -> Self {
        self.retain_acked = true;
        self
    }

    /// Deletes the subscription after so long without use, at least a day for the service. The last call of this and
    /// [`never_expire`](Self::never_expire) wins; the service's default is 31 days.
    #[must_use]
    pub fn expiration_ttl(mut self, ttl: Duration) -> Self {
        self.expiration = Some(Expiration::After(ttl));
        self
    }

    /// Keeps the subscription however long it is unused.
    #[must_use]
    pub fn never_expire(mut self) -> Self {
        self.expiration = Some(Expiration::Never);
        self
    }

    /// Forwards messages to `topic` after so many attempts to deliver them; the service takes 5 to 100 and counts every
    /// delivery, restarts included. The service's own account needs to publish there and to subscribe here.
    #[must_use]
    pub fn dead_letter_policy(
        mut self,
        topic: TopicDestination,
        max_delivery_attempts: NonZeroU32,
    ) -> Self {
        self.dead_letter = Some((topic, max_delivery_attempts));
        self
    }

    /// Delivers only what passes this filter. It cannot be changed later.
    #[must_use]
    pub fn filter(mut self, filter: impl Into<String>) -> Self {
        self.filter = Some(filter.into());
        self
    }

    pub(super) fn is_ordered(&self) -> bool {
        self.ordering
    }

    pub(super) fn has_dead_letter_policy(&self) -> bool {
        self.dead_letter.is_some()
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let refuse = |reason: String| Err(ConfigError::invalid(CREATE_OPTIONS.key(), reason));
        if let Some(deadline) = self.ack_deadline
            && (deadline.is_zero() || deadline.subsec_nanos() > 0)
        {
            return refuse(format!(
                "an ack deadline of {deadline:?} is not a positive number of whole seconds"
            ));
        }
        let ttl = match self.expiration {
            Some(Expiration::After(ttl)) => Some(ttl),
            Some(Expiration::Never) | None => None,
        };
        for (what, value) in [
            ("message retention", self.message_retention),
            ("expiration ttl", ttl),
        ] {
            if value.is_some_and(|v| v.is_zero() || i64::try_from(v.as_nanos()).is_err()) {
                return refuse(format!(
                    "the {what} is not above zero and below about 292 years"
                ));
            }
        }
        if self.filter.as_ref().is_some_and(|f| f.trim().is_empty()) {
            return refuse("the filter is blank".to_owned());
        }
        Ok(())
    }

    pub(super) fn request(&self, subscription: &SubscriptionDestination) -> pb::Subscription {
        let duration = |d: Duration| prost_types::Duration {
            seconds: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
            nanos: d.subsec_nanos().cast_signed(),
        };
        pb::Subscription {
            name: subscription.to_string(),
            topic: self.topic.to_string(),
            ack_deadline_seconds: self
                .ack_deadline
                .map_or(0, |d| i32::try_from(d.as_secs()).unwrap_or(i32::MAX)),
            enable_message_ordering: self.ordering,
            message_retention_duration: self.message_retention.map(duration),
            retain_acked_messages: self.retain_acked,
            expiration_policy: self.expiration.map(|expiration| pb::ExpirationPolicy {
                ttl: match expiration {
                    Expiration::After(ttl) => Some(duration(ttl)),
                    Expiration::Never => None,
                },
            }),
            dead_letter_policy: self.dead_letter.as_ref().map(|(topic, attempts)| {
                pb::DeadLetterPolicy {
                    dead_letter_topic: topic.to_string(),
                    max_delivery_attempts: i32::try_from(attempts.get()).unwrap_or(i32::MAX),
                }
            }),
            filter: self.filter.clone().unwrap_or_default(),
            ..Default::default()
        }
    }
}
