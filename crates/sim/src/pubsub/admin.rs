//! Administration: topics, subscriptions, snapshots, seeks.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use tonic::Code;

use super::{
    clock::{nanos, nanos_of, timestamp},
    config::PubSubConfig,
    filter::Filter,
    permits::End,
    subscription::{DEFAULT_RETENTION, SeekTarget, SubState},
    world::{DELETED_TOPIC, SnapshotState, TopicState, World, not_found, short},
};
use crate::bigtable::{details::duration, store::Refusal, store::Visible};

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn already_exists(name: &str) -> Refusal {
    Refusal::new(
        Code::AlreadyExists,
        format!(
            "Resource already exists in the project (resource={}).",
            short(name)
        ),
    )
}

fn argument(name: &str, value: impl std::fmt::Display) -> Refusal {
    Refusal::invalid(format!(
        "You have passed an invalid argument to the service ({name}={value})."
    ))
}

/// Whether `name` is `projects/…/{kind}/…` with a legal last part.
fn check_name(name: &str, kind: &str) -> Result<(), Refusal> {
    let parts: Vec<&str> = name.split('/').collect();
    let legal = |id: &str| {
        (3..=255).contains(&id.len())
            && id.starts_with(|c: char| c.is_ascii_alphabetic())
            && !id.starts_with("goog")
            && id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.~+%".contains(&byte))
    };
    match *parts {
        ["projects", project, found, id] if !project.is_empty() && found == kind && legal(id) => {
            Ok(())
        }
        _ => Err(Refusal::invalid(format!(
            "Invalid [{kind}] name: (name={name})"
        ))),
    }
}

fn check_project(name: &str) -> Result<(), Refusal> {
    match name.split_once('/') {
        Some(("projects", project)) if !project.is_empty() && !project.contains('/') => Ok(()),
        _ => Err(argument("project", name)),
    }
}

/// A duration that must lie in a range, if set.
fn check_duration(
    name: &str,
    value: Option<prost_types::Duration>,
    least: Duration,
    most: Duration,
) -> Result<(), Refusal> {
    let Some(value) = value else {
        return Ok(());
    };
    match Duration::try_from(value) {
        Ok(value) if (least..=most).contains(&value) => Ok(()),
        _ => Err(argument(name, value)),
    }
}

/// The page of `items` (in order of their names) after a token, which is the last name of the page
/// before.
fn page<T>(
    items: impl Iterator<Item = (String, T)>,
    size: i32,
    token: &str,
) -> Result<(Vec<T>, String), Refusal> {
    let size = match usize::try_from(size) {
        Ok(0) => usize::MAX,
        Ok(size) => size,
        Err(_) => return Err(argument("page_size", size)),
    };
    let mut items = items.filter(|(name, _)| name.as_str() > token).peekable();
    let mut found = Vec::new();
    let mut next = String::new();
    while found.len() < size
        && let Some((name, item)) = items.next()
    {
        found.push(item);
        if found.len() == size && items.peek().is_some() {
            next = name;
        }
    }
    Ok((found, next))
}

fn of_project<'a, T>(
    resources: &'a BTreeMap<String, T>,
    project: &str,
) -> impl Iterator<Item = (&'a String, &'a T)> {
    let prefix = format!("{project}/");
    resources
        .iter()
        .filter(move |(name, _)| name.starts_with(&prefix))
}

// Topics.

fn check_topic(topic: &pb::Topic) -> Result<(), Refusal> {
    check_duration(
        "message_retention_duration",
        topic.message_retention_duration,
        Duration::from_secs(600),
        31 * DAY,
    )
}

impl World {
    pub(crate) fn create_topic(
        &mut self,
        mut topic: pb::Topic,
        settings: &PubSubConfig,
    ) -> Result<pb::Topic, Refusal> {
        check_name(&topic.name, "topics")?;
        check_topic(&topic)?;
        if self.topics.contains_key(&topic.name) {
            return Err(already_exists(&topic.name));
        }
        topic.state = pb::topic::State::Active.into();
        let state = TopicState::new(topic.clone(), Visible::after(settings.topic_lag));
        self.topics.insert(topic.name.clone(), state);
        Ok(topic)
    }

    pub(crate) fn get_topic(&self, name: &str) -> Result<pb::Topic, Refusal> {
        let topic = self.topics.get(name).ok_or_else(|| not_found(name))?;
        Ok(topic.config.clone())
    }

    pub(crate) fn update_topic(
        &mut self,
        request: pb::UpdateTopicRequest,
    ) -> Result<pb::Topic, Refusal> {
        let wanted = request.topic.unwrap_or_default();
        let topic = self
            .topics
            .get_mut(&wanted.name)
            .ok_or_else(|| not_found(&wanted.name))?;
        let mut config = topic.config.clone();
        for path in mask(request.update_mask)? {
            match path.as_str() {
                "labels" => config.labels.clone_from(&wanted.labels),
                "message_storage_policy" => config
                    .message_storage_policy
                    .clone_from(&wanted.message_storage_policy),
                "message_retention_duration" => {
                    config.message_retention_duration = wanted.message_retention_duration;
                }
                "kms_key_name" => config.kms_key_name.clone_from(&wanted.kms_key_name),
                path => return Err(argument("update_mask", path)),
            }
        }
        check_topic(&config)?;
        topic.config = config.clone();
        Ok(config)
    }

    pub(crate) fn list_topics(
        &self,
        request: &pb::ListTopicsRequest,
    ) -> Result<pb::ListTopicsResponse, Refusal> {
        check_project(&request.project)?;
        let topics = of_project(&self.topics, &request.project)
            .map(|(name, topic)| (name.clone(), topic.config.clone()));
        let (topics, next_page_token) = page(topics, request.page_size, &request.page_token)?;
        Ok(pb::ListTopicsResponse {
            topics,
            next_page_token,
        })
    }

    pub(crate) fn list_topic_subscriptions(
        &self,
        request: &pb::ListTopicSubscriptionsRequest,
    ) -> Result<pb::ListTopicSubscriptionsResponse, Refusal> {
        self.get_topic(&request.topic)?;
        let names = self
            .subscriptions
            .iter()
            .filter(|(_, subscription)| subscription.config.topic == request.topic)
            .map(|(name, _)| (name.clone(), name.clone()));
        let (subscriptions, next_page_token) = page(names, request.page_size, &request.page_token)?;
        Ok(pb::ListTopicSubscriptionsResponse {
            subscriptions,
            next_page_token,
        })
    }

    pub(crate) fn delete_topic(&mut self, name: &str) -> Result<(), Refusal> {
        self.topics.remove(name).ok_or_else(|| not_found(name))?;
        for subscription in self.subscriptions.values_mut() {
            if subscription.config.topic == name {
                DELETED_TOPIC.clone_into(&mut subscription.config.topic);
            }
        }
        Ok(())
    }

    // Subscriptions.

    pub(crate) fn create_subscription(
        &mut self,
        mut config: pb::Subscription,
        settings: &PubSubConfig,
    ) -> Result<pb::Subscription, Refusal> {
        check_name(&config.name, "subscriptions")?;
        let filter = check_subscription(&config, settings)?;
        if self.subscriptions.contains_key(&config.name) {
            return Err(already_exists(&config.name));
        }
        let topic = self
            .topics
            .get(&config.topic)
            .ok_or_else(|| not_found(&config.topic))?;
        config.topic_message_retention_duration = topic.config.message_retention_duration;
        if config.ack_deadline_seconds == 0 {
            config.ack_deadline_seconds = 10;
        }
        config
            .message_retention_duration
            .get_or_insert_with(|| duration(DEFAULT_RETENTION));
        if let Some(policy) = &mut config.dead_letter_policy
            && policy.max_delivery_attempts == 0
        {
            policy.max_delivery_attempts = 5;
        }
        config.state = pb::subscription::State::Active.into();
        let number = self.new_number();
        let state = SubState::new(number, config.clone(), filter, settings);
        self.subscriptions.insert(config.name.clone(), state);
        Ok(config)
    }

    pub(crate) fn get_subscription(&self, name: &str) -> Result<pb::Subscription, Refusal> {
        let subscription = self
            .subscriptions
            .get(name)
            .ok_or_else(|| not_found(name))?;
        Ok(subscription.config.clone())
    }

    pub(crate) fn update_subscription(
        &mut self,
        request: pb::UpdateSubscriptionRequest,
        settings: &PubSubConfig,
    ) -> Result<pb::Subscription, Refusal> {
        let wanted = request.subscription.unwrap_or_default();
        let subscription = self.subscription(&wanted.name)?;
        let mut config = subscription.config.clone();
        for path in mask(request.update_mask)? {
            match path.as_str() {
                "ack_deadline_seconds" => {
                    config.ack_deadline_seconds = wanted.ack_deadline_seconds;
                }
                "retain_acked_messages" => {
                    config.retain_acked_messages = wanted.retain_acked_messages;
                }
                "message_retention_duration" => {
                    config.message_retention_duration = wanted.message_retention_duration;
                }
                "labels" => config.labels.clone_from(&wanted.labels),
                "expiration_policy" => config.expiration_policy = wanted.expiration_policy,
                "dead_letter_policy" => config
                    .dead_letter_policy
                    .clone_from(&wanted.dead_letter_policy),
                "retry_policy" => config.retry_policy = wanted.retry_policy,
                "enable_exactly_once_delivery" => {
                    config.enable_exactly_once_delivery = wanted.enable_exactly_once_delivery;
                }
                // Filter, topic and ordering cannot be changed.
                path => return Err(argument("update_mask", path)),
            }
        }
        check_subscription(&config, settings)?;
        subscription.reconfigure(config.clone());
        Ok(config)
    }

    pub(crate) fn list_subscriptions(
        &self,
        request: &pb::ListSubscriptionsRequest,
    ) -> Result<pb::ListSubscriptionsResponse, Refusal> {
        check_project(&request.project)?;
        let subscriptions = of_project(&self.subscriptions, &request.project)
            .map(|(name, subscription)| (name.clone(), subscription.config.clone()));
        let (subscriptions, next_page_token) =
            page(subscriptions, request.page_size, &request.page_token)?;
        Ok(pb::ListSubscriptionsResponse {
            subscriptions,
            next_page_token,
        })
    }

    pub(crate) fn delete_subscription(&mut self, name: &str) -> Result<(), Refusal> {
        let mut subscription = self
            .subscriptions
            .remove(name)
            .ok_or_else(|| not_found(name))?;
        // Its streams wake, find it gone, and end with `NOT_FOUND`.
        subscription.wake();
        Ok(())
    }

    pub(crate) fn detach_subscription(&mut self, name: &str) -> Result<(), Refusal> {
        let subscription = self.subscription(name)?;
        subscription.config.detached = true;
        subscription.clear();
        if let Err(refusal) = self.attached(name) {
            let end = End::Status(refusal.code, refusal.message);
            self.subscription(name)?.end_streams(&end);
        }
        Ok(())
    }

    // Seeks and snapshots.

    pub(crate) fn seek_request(&mut self, request: &pb::SeekRequest) -> Result<(), Refusal> {
        use pb::seek_request::Target;
        let topic = self.attached(&request.subscription)?.config.topic.clone();
        let target = match &request.target {
            None => return Err(argument("target", "unset")),
            Some(Target::Time(time)) => SeekTarget::Time(nanos_of(time)),
            Some(Target::Snapshot(name)) => {
                let snapshot = self.snapshots.get(name).ok_or_else(|| not_found(name))?;
                if snapshot.proto.topic != topic {
                    return Err(Refusal::new(
                        Code::FailedPrecondition,
                        "The snapshot and the subscription are of different topics",
                    ));
                }
                SeekTarget::Snapshot(snapshot.unacked.clone(), snapshot.next)
            }
        };
        self.begin_seek(&request.subscription, target)
    }

    /// Seeks now, or when the subscription's lag is over.
    pub(crate) fn begin_seek(&mut self, name: &str, target: SeekTarget) -> Result<(), Refusal> {
        let now = self.now();
        let subscription = self.attached(name)?;
        match subscription.manners.seek_lag {
            0 => self.seek(name, &target),
            lag => {
                subscription.pending_seek = Some((now.saturating_add(lag), target));
                self.wake_all();
            }
        }
        Ok(())
    }

    pub(crate) fn create_snapshot(
        &mut self,
        request: pb::CreateSnapshotRequest,
    ) -> Result<pb::Snapshot, Refusal> {
        check_name(&request.name, "snapshots")?;
        if self.snapshots.contains_key(&request.name) {
            return Err(already_exists(&request.name));
        }
        let next = self.next_sequence();
        let now = self.now();
        let subscription = self.attached(&request.subscription)?;
        let unacked = subscription
            .unacked_messages()
            .map(|message| (message.sequence, message.clone()))
            .collect();
        let proto = pb::Snapshot {
            name: request.name.clone(),
            topic: subscription.config.topic.clone(),
            expire_time: Some(timestamp(now.saturating_add(nanos(7 * DAY)))),
            labels: request.labels,
        };
        let snapshot = SnapshotState {
            proto: proto.clone(),
            unacked: Arc::new(unacked),
            next,
        };
        self.snapshots.insert(request.name, snapshot);
        Ok(proto)
    }

    pub(crate) fn get_snapshot(&self, name: &str) -> Result<pb::Snapshot, Refusal> {
        let snapshot = self.snapshots.get(name).ok_or_else(|| not_found(name))?;
        Ok(snapshot.proto.clone())
    }

    pub(crate) fn list_snapshots(
        &self,
        request: &pb::ListSnapshotsRequest,
    ) -> Result<pb::ListSnapshotsResponse, Refusal> {
        check_project(&request.project)?;
        let snapshots = of_project(&self.snapshots, &request.project)
            .map(|(name, snapshot)| (name.clone(), snapshot.proto.clone()));
        let (snapshots, next_page_token) = page(snapshots, request.page_size, &request.page_token)?;
        Ok(pb::ListSnapshotsResponse {
            snapshots,
            next_page_token,
        })
    }

    pub(crate) fn delete_snapshot(&mut self, name: &str) -> Result<(), Refusal> {
        self.snapshots.remove(name).ok_or_else(|| not_found(name))?;
        Ok(())
    }
}

fn mask(mask: Option<prost_types::FieldMask>) -> Result<Vec<String>, Refusal> {
    let paths = mask.unwrap_or_default().paths;
    if paths.is_empty() {
        return Err(argument("update_mask", "empty"));
    }
    Ok(paths)
}

fn check_subscription(
    config: &pb::Subscription,
    settings: &PubSubConfig,
) -> Result<Option<Filter>, Refusal> {
    let pushes = config
        .push_config
        .as_ref()
        .is_some_and(|push| !push.push_endpoint.is_empty());
    if pushes
        || config.bigquery_config.is_some()
        || config.cloud_storage_config.is_some()
        || config.bigtable_config.is_some()
    {
        return Err(Refusal::new(
            Code::Unimplemented,
            "the simulation serves pull subscriptions only",
        ));
    }
    if !matches!(config.ack_deadline_seconds, 0 | 10..=600) {
        return Err(argument(
            "ack_deadline_seconds",
            config.ack_deadline_seconds,
        ));
    }
    check_duration(
        "message_retention_duration",
        config.message_retention_duration,
        Duration::from_secs(600),
        31 * DAY,
    )?;
    check_duration(
        "expiration_policy.ttl",
        config
            .expiration_policy
            .as_ref()
            .and_then(|policy| policy.ttl),
        DAY,
        Duration::MAX,
    )?;
    if let Some(policy) = &config.retry_policy {
        let most = Duration::from_secs(600);
        check_duration(
            "retry_policy.minimum_backoff",
            policy.minimum_backoff,
            Duration::ZERO,
            most,
        )?;
        check_duration(
            "retry_policy.maximum_backoff",
            policy.maximum_backoff,
            Duration::ZERO,
            most,
        )?;
    }
    if let Some(policy) = &config.dead_letter_policy {
        check_name(&policy.dead_letter_topic, "topics")?;
        if !matches!(policy.max_delivery_attempts, 0 | 5..=100) {
            return Err(argument(
                "dead_letter_policy.max_delivery_attempts",
                policy.max_delivery_attempts,
            ));
        }
    }
    if config.filter.is_empty() {
        return Ok(None);
    }
    if config.filter.len() > settings.limits.filter_bytes {
        return Err(argument("filter bytes", config.filter.len()));
    }
    Filter::parse(&config.filter)
        .map(Some)
        .map_err(|error| argument("filter, at byte", error.at))
}
