//! What happens before the first split is given out: describe, verify, create, seek (PS-SRC-05 to -10).
//!
//! # Invariants
//!
//! - Nothing is created before every existing subscription has passed, and nothing is sought before all have.
//! - A failure inside the seeks leaves the start position unapplied: the next start seeks all of them again.
//! - Existing subscriptions are neither changed nor compared with creation settings.

use std::sync::Arc;

use aqueduct_cloud::{CallError, ChannelPool, PoolOptions, TokenProvider};
use aqueduct_connector::{Code, Context, Error, Result, Timestamp};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use tracing::{info, warn};

use super::builder::{
    DeserializationFailurePolicy, ExactlyOnceSubscriptions, OrderingMode, Settings, StartPosition,
    Subscribed,
};
use crate::client::subscription_admin::SubscriptionAdmin;

/// What a start found: the ack deadline of each subscription, in the order of the list.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) ack_deadlines: Vec<u32>,
}

/// What a failed call needs.
#[derive(Clone, Copy)]
enum Asked {
    Get,
    Create,
    Seek,
}

/// Runs the whole start. `seek`: the start position has not been applied yet.
pub(super) async fn start(
    settings: Arc<Settings>,
    context: Context,
    seek: bool,
) -> Result<Started> {
    let tokens = TokenProvider::new(&settings.access.credentials)?;
    let endpoint = settings.access.endpoint.clone();
    let pool = ChannelPool::new(&context, endpoint, tokens, PoolOptions::default())?;
    let admin = SubscriptionAdmin::new(pool);
    // "Latest" is this moment, whatever the checks take.
    let target = target(settings.start, context.clock.wall()).filter(|_| seek);
    let mut found: Vec<Option<pb::Subscription>> = Vec::new();
    for one in &settings.subscriptions {
        found.push(match admin.get(&one.subscription).await {
            Ok(subscription) => Some(subscription),
            Err(error) if error.code() == Code::NotFound => None,
            Err(error) => return Err(failed(one, Asked::Get, error)),
        });
    }
    let mut refusals = Vec::new();
    for (one, found) in settings.subscriptions.iter().zip(&found) {
        let refusal = match found {
            Some(found) => refusal(found, &settings),
            None if one.create.is_none() => {
                Some("it does not exist; create it, or give settings to create it by".to_owned())
            }
            None => None,
        };
        match refusal {
            Some(refusal) => refusals.push(format!("{}: {refusal}", one.subscription)),
            None if found.is_some() => {
                info!(subscription = %one.subscription, "subscription verified");
            }
            None => {}
        }
    }
    refuse(&refusals)?;
    let mut ready = Vec::new();
    for (one, found) in settings.subscriptions.iter().zip(found) {
        ready.push(match found {
            Some(found) => found,
            None => create(&admin, one, &settings).await?,
        });
    }
    if let Some(target) = target {
        for (one, ready) in settings.subscriptions.iter().zip(&ready) {
            let backward = target < context.clock.wall() && settings.start != StartPosition::Latest;
            if backward && !ready.retain_acked_messages && !retained_by_topic(ready) {
                warn!(
                    subscription = %one.subscription,
                    "neither the subscription nor its topic retains acknowledged messages, so seeking back brings back \
                     only what was not acknowledged"
                );
            }
            let sought = admin.seek(&one.subscription, target).await;
            sought.map_err(|error| failed(one, Asked::Seek, error))?;
            info!(subscription = %one.subscription, millis = target.millis(), "subscription sought");
        }
    }
    Ok(Started {
        ack_deadlines: ready
            .iter()
            .map(|ready| {
                u32::try_from(ready.ack_deadline_seconds)
                    .unwrap_or(10)
                    .max(10)
            })
            .collect(),
    })
}

fn target(start: StartPosition, now: Timestamp) -> Option<Timestamp> {
    match start {
        StartPosition::ContinueFromSubscription => None,
        StartPosition::EarliestRetained => Some(Timestamp::from_millis(0)),
        StartPosition::Latest => Some(now),
        StartPosition::Timestamp(time) => Some(time),
    }
}

fn retained_by_topic(subscription: &pb::Subscription) -> bool {
    subscription
        .topic_message_retention_duration
        .is_some_and(|retention| retention.seconds > 0 || retention.nanos > 0)
}

async fn create(
    admin: &SubscriptionAdmin,
    one: &Subscribed,
    settings: &Settings,
) -> Result<pb::Subscription> {
    let create = one
        .create
        .as_ref()
        .expect("without settings it was refused");
    let created = match admin.create(&create.request(&one.subscription)).await {
        Ok(created) => {
            info!(subscription = %one.subscription, "subscription created");
            created
        }
        Err(error) if error.code() == Code::AlreadyExists => {
            let read = admin.get(&one.subscription).await;
            read.map_err(|error| {
                if error.code() == Code::NotFound {
                    Error::io(format!(
                        "{} was created by somebody else and vanished at once; start again",
                        one.subscription
                    ))
                    .with_source(error)
                } else {
                    failed(one, Asked::Get, error)
                }
            })?
        }
        Err(error) => return Err(failed(one, Asked::Create, error)),
    };
    match refusal(&created, settings) {
        Some(refusal) => {
            refuse(&[format!("{}: {refusal}", one.subscription)])?;
            unreachable!("refused above")
        }
        None => Ok(created),
    }
}

/// Why an existing subscription cannot be read as configured.
fn refusal(found: &pb::Subscription, settings: &Settings) -> Option<String> {
    if settings.ordering == OrderingMode::PerKey && !found.enable_message_ordering {
        return Some(
            "scan.ordering-mode is 'per-key', but the subscription has no message ordering, which cannot be changed: \
             messages would come unordered; create another one"
                .to_owned(),
        );
    }
    if found.enable_exactly_once_delivery
        && settings.exactly_once == ExactlyOnceSubscriptions::Reject
    {
        return Some(
            "it has exactly-once delivery, whose ack ids end with the deadline while this source keeps them for a whole \
             checkpoint interval; switch it off, or set scan.exactly-once-subscriptions to 'accept'"
                .to_owned(),
        );
    }
    let dead_letter = found.dead_letter_policy.as_ref();
    if settings.policy == DeserializationFailurePolicy::Nack
        && dead_letter.is_none_or(|policy| policy.dead_letter_topic.is_empty())
    {
        return Some(
            "scan.deserialization-failure-policy is 'nack', but the subscription has no dead-letter policy: an undecodable \
             message would come back for ever; give it one, or choose 'fail' or 'drop'"
                .to_owned(),
        );
    }
    None
}

fn refuse(refusals: &[String]) -> Result<()> {
    if refusals.is_empty() {
        return Ok(());
    }
    Err(Error::config(format!(
        "subscriptions that cannot be read: {}",
        refusals.join("; ")
    )))
}

fn failed(one: &Subscribed, asked: Asked, error: CallError) -> Error {
    let (what, permission) = match asked {
        Asked::Get => ("describe", "pubsub.subscriptions.get"),
        Asked::Create => (
            "create",
            "pubsub.subscriptions.create on the project and pubsub.topics.attachSubscription on the topic",
        ),
        Asked::Seek => ("seek", "pubsub.subscriptions.consume"),
    };
    let advice = match error.code() {
        Code::PermissionDenied => format!(": the job's account needs {permission}"),
        Code::NotFound if matches!(asked, Asked::Create) => {
            ": its topic does not exist, and the source never creates one".to_owned()
        }
        _ => String::new(),
    };
    Error::io(format!("could not {what} {}{advice}", one.subscription)).with_source(error)
}
