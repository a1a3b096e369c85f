//! Topic administration: creates what a repair finds missing, and nothing else (PS-SINK-22).
//!
//! # Invariants
//!
//! - A topic that exists is neither compared nor changed.
//! - No retry here: the repair's budget is the only one. A call has a deadline of 60 s.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_cloud::{CallSpec, ChannelPool, RoutingHeader};
use aqueduct_connector::{Code, StatusChain};
use futures::future::LocalBoxFuture;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1;

use crate::TopicDestination;
use crate::sink_options::TopicCreateOptions;

const CREATE_TOPIC: &str = "/google.pubsub.v1.Publisher/CreateTopic";
const TIMEOUT: Duration = Duration::from_secs(60);

/// What a creation found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ensured {
    Created,
    /// Somebody else created it, and that is just as good.
    Existed,
}

/// Creates topics.
pub(crate) trait TopicAdmin {
    /// Makes sure that `topic` exists.
    fn ensure(
        &self,
        topic: TopicDestination,
        settings: Arc<TopicCreateOptions>,
    ) -> LocalBoxFuture<'static, Result<Ensured, StatusChain>>;
}

/// The service's administration.
pub(crate) struct PoolTopicAdmin(ChannelPool);

impl PoolTopicAdmin {
    pub(crate) fn new(pool: ChannelPool) -> Self {
        Self(pool)
    }
}

impl TopicAdmin for PoolTopicAdmin {
    fn ensure(
        &self,
        topic: TopicDestination,
        settings: Arc<TopicCreateOptions>,
    ) -> LocalBoxFuture<'static, Result<Ensured, StatusChain>> {
        let request = wire(&topic, &settings);
        // The method's own parameter is `name`; the resource is the topic all the same.
        let routing = RoutingHeader::new()
            .param("name", &request.name)
            .param("topic", &request.name);
        let spec = CallSpec::new(CREATE_TOPIC, TIMEOUT).routing(&routing);
        let call = self.0.unary::<_, v1::Topic>(&spec, &request);
        Box::pin(async move {
            match call.await {
                Ok(_) => Ok(Ensured::Created),
                Err(error) if error.code() == Code::AlreadyExists => Ok(Ensured::Existed),
                Err(error) => Err(error.into_statuses()),
            }
        })
    }
}

/// What is unset stays unset on the wire (PS-SINK-02).
fn wire(topic: &TopicDestination, settings: &TopicCreateOptions) -> v1::Topic {
    v1::Topic {
        name: topic.to_string(),
        message_retention_duration: settings
            .message_retention
            .map(|span| prost_types::Duration {
                seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
                nanos: span.subsec_nanos().cast_signed(),
            }),
        kms_key_name: settings.kms_key_name.clone().unwrap_or_default(),
        message_storage_policy: settings.allowed_persistence_regions.clone().map(|regions| {
            v1::MessageStoragePolicy {
                allowed_persistence_regions: regions,
                enforce_in_transit: settings.enforce_in_transit.unwrap_or_default(),
            }
        }),
        ..v1::Topic::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unset_stays_unset_on_the_wire_and_the_rest_travels() {
        let topic = TopicDestination::new("p", "t").expect("valid");
        let bare = wire(&topic, &TopicCreateOptions::default());
        assert_eq!(
            bare,
            v1::Topic {
                name: "projects/p/topics/t".to_owned(),
                ..v1::Topic::default()
            }
        );
        let full = wire(
            &topic,
            &TopicCreateOptions::new()
                .message_retention(Duration::from_secs(7 * 86_400))
                .kms_key_name("projects/p/locations/l/keyRings/r/cryptoKeys/k")
                .allowed_persistence_regions(["europe-west1"])
                .enforce_in_transit(true),
        );
        assert_eq!(
            full.message_retention_duration.map(|span| span.seconds),
            Some(604_800)
        );
        let policy = full.message_storage_policy.expect("set");
        assert_eq!(policy.allowed_persistence_regions, ["europe-west1"]);
        assert!(policy.enforce_in_transit);
        assert!(full.kms_key_name.ends_with("/k"));
    }
}
