//! A publisher to be driven by hand: one request at a time, and the ids that the service gave.
//!
//! For tools and tests. A job publishes through the [sink](crate::sink), which batches, keeps many requests under way,
//! isolates bad messages and does not look at ids.
//!
//! # Invariants
//!
//! - A request is tried again only for what the sink would try again, within [`Publisher::with_limit`].
//! - An error tells apart what the service refused and what may have been published all the same, by its statuses.

use std::fmt;
use std::time::Duration;

use aqueduct_cloud::{Backoff, CallSpec, ChannelPool, PoolOptions, RoutingHeader, TokenProvider};
use aqueduct_connector::{Code, Context, Error, Result, StatusChain};
use bytes::{BufMut, Bytes, BytesMut};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use prost::Message as _;

use crate::TopicDestination;
use crate::client::Access;
use crate::message::{Message, put_field, put_head};
use crate::sink::request::TRANSIENT;

const PUBLISH: &str = "/google.pubsub.v1.Publisher/Publish";
/// One attempt at most.
const ATTEMPT: Duration = Duration::from_secs(30);
/// All attempts, if nobody says otherwise.
const LIMIT: Duration = Duration::from_secs(60);

/// Publishes to one topic, which is never created.
pub struct Publisher {
    topic: TopicDestination,
    pool: ChannelPool,
    context: Context,
    spec: CallSpec,
    limit: Duration,
}

impl Publisher {
    /// A publisher that connects when it is first used: to the emulator at `emulator`, or to the service with the key in
    /// `key_file` or application-default credentials.
    ///
    /// # Errors
    ///
    /// As [`PubSubSinkBuilder::build`](crate::PubSubSinkBuilder::build) for the two options, and if the key file cannot be
    /// used.
    pub fn new(
        context: &Context,
        topic: TopicDestination,
        key_file: Option<&str>,
        emulator: Option<&str>,
    ) -> Result<Self> {
        let access = Access::new(key_file, emulator)?;
        let tokens = TokenProvider::new(&access.credentials)?;
        let pool = ChannelPool::new(context, access.endpoint, tokens, PoolOptions::default())?;
        let routing = RoutingHeader::new().param("topic", &topic.to_string());
        Ok(Self {
            spec: CallSpec::new(PUBLISH, ATTEMPT).routing(&routing),
            topic,
            pool,
            context: context.clone(),
            limit: LIMIT,
        })
    }

    /// How long one [`publish`](Self::publish) may take with all its attempts. Default: 60 s.
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &TopicDestination {
        &self.topic
    }

    /// Publishes `messages` in one request; gives their ids in the same order. The service takes all or none.
    ///
    /// # Errors
    ///
    /// An I/O error with the service's statuses. After a status that is no refusal (`UNAVAILABLE`, `DEADLINE_EXCEEDED`, …)
    /// the messages may have been published.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the request, which may have taken effect.
    pub async fn publish(&self, messages: &[Message]) -> Result<Vec<String>> {
        let body = self.body(messages);
        let begun = self.context.clock.now();
        let mut random = self.context.random();
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        let mut attempts = 0;
        loop {
            attempts += 1;
            let left = self
                .limit
                .saturating_sub(self.context.clock.now().since(begun));
            let spec = self.spec.clone().timeout(ATTEMPT.min(left));
            let chain = match self.attempt(&spec, body.clone(), messages.len()).await {
                Ok(ids) => return Ok(ids),
                Err(chain) => chain,
            };
            let delay = backoff.delay_after(attempts, &mut random);
            let spent = self.context.clock.now().since(begun);
            if !TRANSIENT.contains(&chain.code()) || spent.saturating_add(delay) >= self.limit {
                return Err(self.failed(&chain, attempts));
            }
            let until = self.context.clock.now().after(delay);
            let mut timer = self.context.clock.timer();
            timer.set(Some(until));
            std::future::poll_fn(|cx| timer.poll_elapsed(cx)).await;
        }
    }

    async fn attempt(
        &self,
        spec: &CallSpec,
        body: Bytes,
        messages: usize,
    ) -> Result<Vec<String>, StatusChain> {
        let mut answer = self.pool.call(spec, body).await?;
        let mut ids = Vec::with_capacity(messages);
        while let Some(part) = answer.message().await {
            // The decoder's words could quote the answer.
            let part = pb::PublishResponse::decode(part?).map_err(|_| unreadable())?;
            ids.extend(part.message_ids);
        }
        if ids.len() == messages {
            Ok(ids)
        } else {
            Err(unreadable())
        }
    }

    fn body(&self, messages: &[Message]) -> Bytes {
        let mut body = BytesMut::new();
        body.put_slice(&[0; 5]);
        put_field(&mut body, 1, self.topic.to_string().as_bytes());
        for message in messages {
            put_head(&mut body, 2, message.encoded_len());
            message.encode_into(&mut body);
        }
        // More than 4 GiB are no request that anything takes: the service refuses it by its length.
        let len = u32::try_from(body.len() - 5).unwrap_or(u32::MAX);
        body[1..5].copy_from_slice(&len.to_be_bytes());
        body.freeze()
    }

    fn failed(&self, chain: &StatusChain, attempts: u32) -> Error {
        let advice = match chain.code() {
            Code::PermissionDenied => ": the account needs pubsub.topics.publish",
            Code::NotFound => ": the topic does not exist",
            _ => "",
        };
        let times = match attempts {
            1 => String::new(),
            attempts => format!(" after {attempts} attempts"),
        };
        Error::io(format!(
            "could not publish to {}{times}{advice}",
            self.topic
        ))
        .with_source(chain.clone())
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher")
            .field("topic", &self.topic)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

fn unreadable() -> StatusChain {
    StatusChain::new(aqueduct_connector::Status::new(
        Code::Internal,
        "the answer to a publish does not hold one id a message",
    ))
}
