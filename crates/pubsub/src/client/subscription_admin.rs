//! Describing, creating and seeking subscriptions: one attempt a call, with generated types.
//!
//! No retry here: the coordinator's start is what fails, and the host's restart is the only loop.

use std::time::Duration;

use aqueduct_cloud::{CallError, CallSpec, ChannelPool, RoutingHeader};
use aqueduct_connector::Timestamp;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

use crate::destination::SubscriptionDestination;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Calls about subscriptions.
#[derive(Clone, Debug)]
pub(crate) struct SubscriptionAdmin(ChannelPool);

impl SubscriptionAdmin {
    pub(crate) fn new(pool: ChannelPool) -> Self {
        Self(pool)
    }

    fn spec(path: &'static str, subscription: &str) -> CallSpec {
        CallSpec::new(path, TIMEOUT)
            .routing(&RoutingHeader::new().param("subscription", subscription))
    }

    pub(crate) async fn get(
        &self,
        subscription: &SubscriptionDestination,
    ) -> Result<pb::Subscription, CallError> {
        let name = subscription.to_string();
        let spec = Self::spec("/google.pubsub.v1.Subscriber/GetSubscription", &name);
        self.0
            .unary(&spec, &pb::GetSubscriptionRequest { subscription: name })
            .await
    }

    pub(crate) async fn create(
        &self,
        subscription: &pb::Subscription,
    ) -> Result<pb::Subscription, CallError> {
        let path = "/google.pubsub.v1.Subscriber/CreateSubscription";
        let spec = CallSpec::new(path, TIMEOUT)
            .routing(&RoutingHeader::new().param("name", &subscription.name));
        self.0.unary(&spec, subscription).await
    }

    pub(crate) async fn seek(
        &self,
        subscription: &SubscriptionDestination,
        to: Timestamp,
    ) -> Result<(), CallError> {
        let name = subscription.to_string();
        let spec = Self::spec("/google.pubsub.v1.Subscriber/Seek", &name);
        let millis = to.millis();
        let time = prost_types::Timestamp {
            seconds: millis.div_euclid(1_000),
            nanos: i32::try_from(millis.rem_euclid(1_000) * 1_000_000).unwrap_or_default(),
        };
        let request = pb::SeekRequest {
            subscription: name,
            target: Some(pb::seek_request::Target::Time(time)),
        };
        self.0
            .unary::<_, pb::SeekResponse>(&spec, &request)
            .await
            .map(|_| ())
    }
}
