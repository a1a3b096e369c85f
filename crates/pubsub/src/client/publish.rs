//! `Publish`: one attempt of one request, and where a writer's requests go.
//!
//! The request is built by its owner in one buffer and sent as the HTTP body. Of the answer the ids are counted, not
//! decoded: nobody asks for them. There is no retry here.

use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::Duration;

use aqueduct_cloud::{CallSpec, ChannelPool, Endpoint, PoolOptions, RoutingHeader, TokenProvider};
use aqueduct_connector::{Code, Context, Result, Status, StatusChain};
use bytes::Buf;
use futures::future::LocalBoxFuture;

use super::Access;
use super::topic_admin::{PoolTopicAdmin, TopicAdmin};
use crate::TopicDestination;

const PUBLISH: &str = "/google.pubsub.v1.Publisher/Publish";
/// Answers are ids; these bound what a misbehaving peer may push.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Tag of an id in an answer.
const ID: u8 = (1 << 3) | 2;
/// Stands for "no deadline": longer than any run, and a number that every timer takes.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// The headers of requests to one topic.
#[derive(Clone)]
pub(crate) struct Target {
    spec: CallSpec,
    timeout: Duration,
}

impl Target {
    /// For requests whose attempts usually may take `timeout`; `None` is for ever.
    pub(crate) fn new(topic: &TopicDestination, timeout: Option<Duration>) -> Self {
        let timeout = timeout.unwrap_or(FOR_EVER);
        let routing = RoutingHeader::new().param("topic", &topic.to_string());
        Self {
            spec: CallSpec::new(PUBLISH, timeout).routing(&routing),
            timeout,
        }
    }

    /// The headers of an attempt; another limit than the usual one costs a copy.
    fn spec(self, timeout: Option<Duration>) -> CallSpec {
        let timeout = timeout.unwrap_or(FOR_EVER);
        if timeout == self.timeout {
            self.spec
        } else {
            self.spec.timeout(timeout)
        }
    }
}

/// One attempt.
pub(crate) struct PublishCall {
    pub(crate) target: Target,
    /// The request as it travels.
    pub(crate) body: bytes::Bytes,
    /// Messages in it.
    pub(crate) messages: usize,
    /// `None` is for ever.
    pub(crate) timeout: Option<Duration>,
}

/// How an attempt ends.
pub(crate) type Attempt = LocalBoxFuture<'static, Result<(), StatusChain>>;

/// Publishes.
pub(crate) trait PublishClient {
    /// Makes one attempt. Dropping the future cancels it.
    fn publish(&self, call: PublishCall) -> Attempt;
}

/// Opens what a writer needs, all on one credential. Does no I/O.
pub(crate) trait Dial {
    /// The client of every topic of the writer.
    fn client(&self) -> Result<Rc<dyn PublishClient>>;

    /// The topic administration, opened for a creation only (PS-SINK-22).
    fn admin(&self) -> Result<Rc<dyn TopicAdmin>>;
}

/// The network.
pub(crate) struct Network {
    context: Context,
    endpoint: Endpoint,
    tokens: TokenProvider,
    channels: NonZeroUsize,
}

impl Network {
    /// Reads the key file, if one is configured (PS-GEN-04).
    pub(crate) fn new(context: Context, access: &Access, channels: u32) -> Result<Self> {
        Ok(Self {
            context,
            endpoint: access.endpoint.clone(),
            tokens: TokenProvider::new(&access.credentials)?,
            channels: NonZeroUsize::new(channels as usize).unwrap_or(NonZeroUsize::MIN),
        })
    }

    fn pool(&self, options: PoolOptions) -> Result<ChannelPool> {
        ChannelPool::new(
            &self.context,
            self.endpoint.clone(),
            self.tokens.clone(),
            options,
        )
    }
}

impl Dial for Network {
    fn client(&self) -> Result<Rc<dyn PublishClient>> {
        let options = PoolOptions::default()
            .channels(self.channels)
            .windows(STREAM_WINDOW, CONNECTION_WINDOW);
        Ok(Rc::new(PoolClient(self.pool(options)?)))
    }

    fn admin(&self) -> Result<Rc<dyn TopicAdmin>> {
        Ok(Rc::new(PoolTopicAdmin::new(
            self.pool(PoolOptions::default())?,
        )))
    }
}

struct PoolClient(ChannelPool);

impl PublishClient for PoolClient {
    fn publish(&self, call: PublishCall) -> Attempt {
        let started = self.0.call(&call.target.spec(call.timeout), call.body);
        let messages = call.messages;
        Box::pin(async move {
            let mut stream = started.await.map_err(StatusChain::from)?;
            let mut ids = None;
            while let Some(answer) = stream.message().await {
                let answer = answer.map_err(StatusChain::from)?;
                ids = Some(ids.unwrap_or(0) + count_ids(&answer).ok_or_else(unreadable)?);
            }
            // A count that does not fit says nothing about which message was stored: ambiguous, so tried again.
            match ids {
                Some(ids) if ids == messages => Ok(()),
                _ => Err(unreadable()),
            }
        })
    }
}

fn unreadable() -> StatusChain {
    StatusChain::new(Status::new(
        Code::Internal,
        "the answer to a publish does not hold one id a message",
    ))
}

/// How many ids a `PublishResponse` holds; `None` if it is none.
pub(crate) fn count_ids(mut answer: &[u8]) -> Option<usize> {
    let mut ids = 0;
    while !answer.is_empty() {
        // All but strange answers end here: ids have about twenty digits.
        if let [ID, length @ ..0x80, rest @ ..] = answer
            && let Some(behind) = rest.get(usize::from(*length)..)
        {
            answer = behind;
            ids += 1;
            continue;
        }
        let tag = varint(&mut answer)?;
        let skipped = match tag & 7 {
            0 => {
                varint(&mut answer)?;
                0
            }
            1 => 8,
            2 => usize::try_from(varint(&mut answer)?).ok()?,
            5 => 4,
            _ => return None,
        };
        if tag >> 3 == 0 || skipped > answer.len() {
            return None;
        }
        answer.advance(skipped);
        ids += usize::from(tag == u64::from(ID));
    }
    Some(ids)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PublishResponse;
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    proptest! {
        #[test]
        fn ids_are_counted_as_the_generated_type_reads_them(ids in prop::collection::vec("[0-9]{0,200}", 0..50)) {
            let count = ids.len();
            let answer = PublishResponse { message_ids: ids }.encode_to_vec();
            prop_assert_eq!(count_ids(&answer), Some(count));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let counted = count_ids(&bytes);
            if let Ok(read) = PublishResponse::decode(&bytes[..]) {
                // Groups, which no message of ours has, are refused here and skipped there.
                prop_assert!(counted.is_none_or(|ids| ids == read.message_ids.len()));
            }
        }
    }

    #[test]
    fn a_cut_answer_is_none() {
        let answer = PublishResponse {
            message_ids: vec!["1".to_owned(), "22".to_owned()],
        }
        .encode_to_vec();
        assert_eq!(count_ids(&answer[..answer.len() - 1]), None);
        assert_eq!(count_ids(&[]), Some(0));
    }
}
