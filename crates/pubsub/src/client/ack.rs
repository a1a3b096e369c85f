//! Requests that acknowledge, return and extend, built from ack ids by hand, and what the service says of each id.
//!
//! A request holds at most [`MAX_IDS`] ids and [`MAX_BYTES`] bytes: a larger one fails whole (PS-WIRE-03).

use std::collections::BTreeMap;
use std::time::Duration;

use aqueduct_cloud::{CallError, CallSpec, ChannelPool, RoutingHeader};
use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;

use crate::destination::SubscriptionDestination;

/// Ids of a request at most.
pub(crate) const MAX_IDS: usize = 1_000;
/// Bytes of a request at most; the service refuses 524,289.
pub(crate) const MAX_BYTES: usize = 524_288;
/// One attempt (PS-SRC-18).
const ATTEMPT: Duration = Duration::from_secs(10);

/// Which request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ack,
    /// Ends the lease: extends it by nothing.
    Nack,
    Extend {
        seconds: u32,
    },
}

/// The two methods for one subscription.
#[derive(Clone, Debug)]
pub(crate) struct AckClient {
    pool: ChannelPool,
    ack: CallSpec,
    modify: CallSpec,
    name: String,
}

impl AckClient {
    pub(crate) fn new(pool: ChannelPool, subscription: &SubscriptionDestination) -> Self {
        let name = subscription.to_string();
        let routing = RoutingHeader::new().param("subscription", &name);
        let spec = |path| CallSpec::new(path, ATTEMPT).routing(&routing);
        Self {
            pool,
            ack: spec("/google.pubsub.v1.Subscriber/Acknowledge"),
            modify: spec("/google.pubsub.v1.Subscriber/ModifyAckDeadline"),
            name,
        }
    }

    /// An empty request.
    pub(crate) fn request(&self, kind: Kind) -> Request {
        Request::new(&self.name, kind)
    }

    /// Sends `body`, a finished request of `kind`: one attempt.
    pub(crate) fn send(
        &self,
        kind: Kind,
        body: Bytes,
    ) -> BoxFuture<'static, Result<(), CallError>> {
        let spec = match kind {
            Kind::Ack => &self.ack,
            Kind::Nack | Kind::Extend { .. } => &self.modify,
        };
        let call = self.pool.call(spec, body);
        Box::pin(async move {
            let mut answer = call.await?;
            while let Some(message) = answer.message().await {
                message?;
            }
            Ok(())
        })
    }
}

/// A request being filled.
#[derive(Debug)]
pub(crate) struct Request {
    body: BytesMut,
    field: u8,
    ids: usize,
}

/// Bytes before the message in a gRPC frame.
const PREFIX: usize = 5;

impl Request {
    fn new(subscription: &str, kind: Kind) -> Self {
        let mut body = BytesMut::with_capacity(16 << 10);
        body.put_bytes(0, PREFIX);
        put_text(&mut body, 1, subscription.as_bytes());
        let field = match kind {
            Kind::Ack => 2,
            Kind::Nack => 4,
            Kind::Extend { seconds } => {
                body.put_u8(3 << 3);
                put_varint(&mut body, u64::from(seconds));
                4
            }
        };
        Self {
            body,
            field,
            ids: 0,
        }
    }

    /// Adds an id; `false` if it does not fit.
    pub(crate) fn push(&mut self, ack_id: &[u8]) -> bool {
        // A tag, and a length of at most three bytes for what passes the bound.
        let more = ack_id.len() + 4;
        if self.ids > 0 && (self.ids >= MAX_IDS || self.body.len() - PREFIX + more > MAX_BYTES) {
            return false;
        }
        put_text(&mut self.body, self.field, ack_id);
        self.ids += 1;
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ids == 0
    }

    pub(crate) fn finish(mut self) -> Bytes {
        let length = u32::try_from(self.body.len() - PREFIX).expect("a request is small");
        self.body[1..PREFIX].copy_from_slice(&length.to_be_bytes());
        self.body.freeze()
    }
}

fn put_text(out: &mut BytesMut, field: u8, text: &[u8]) {
    out.put_u8(field << 3 | 2);
    put_varint(out, text.len() as u64);
    out.put_slice(text);
}

fn put_varint(out: &mut BytesMut, mut number: u64) {
    while number >= 0x80 {
        out.put_u8((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

/// What an exactly-once subscription says of one id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Done,
    Again,
    Never,
}

/// The verdicts of a failed request, by ack id (PS-WIRE-04); `None` if it speaks of no single id.
pub(crate) fn verdicts(error: &CallError) -> Option<BTreeMap<String, Said>> {
    let metadata = error.error_info()?.metadata;
    let said: BTreeMap<String, Said> = metadata
        .into_iter()
        .filter_map(|(id, reason)| {
            if reason.starts_with("PERMANENT_FAILURE_") {
                Some((id, Said::Never))
            } else if reason.starts_with("TRANSIENT_FAILURE_") {
                Some((id, Said::Again))
            } else {
                None
            }
        })
        .collect();
    (!said.is_empty()).then_some(said)
}

#[cfg(test)]
mod tests {
    use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
    use prost::Message as _;

    use super::*;

    #[test]
    fn requests_read_back_by_the_generated_types() {
        let mut request = Request::new("s", Kind::Ack);
        assert!(request.push(b"a") && request.push(&[b'x'; 200]));
        let body = request.finish();
        let ack = pb::AcknowledgeRequest::decode(&body[5..]).expect("valid");
        assert_eq!((ack.subscription.as_str(), ack.ack_ids.len()), ("s", 2));
        assert_eq!(ack.ack_ids[1].len(), 200);
        let mut request = Request::new("s", Kind::Extend { seconds: 600 });
        assert!(request.push(b"a"));
        let body = request.finish();
        let modify = pb::ModifyAckDeadlineRequest::decode(&body[5..]).expect("valid");
        assert_eq!(modify.ack_deadline_seconds, 600);
        assert_eq!(modify.ack_ids, ["a"]);
        let mut request = Request::new("s", Kind::Nack);
        assert!(request.push(b"a"));
        let modify = pb::ModifyAckDeadlineRequest::decode(&request.finish()[5..]).expect("valid");
        assert_eq!(modify.ack_deadline_seconds, 0);
    }

    #[test]
    fn neither_bound_is_passed_and_one_huge_id_still_travels() {
        for (length, most) in [(1, MAX_IDS), (210, MAX_IDS), (4_000, 131), (600_000, 1)] {
            let mut request = Request::new("projects/p/subscriptions/s", Kind::Ack);
            let id = vec![b'x'; length];
            let mut ids = 0;
            while request.push(&id) {
                ids += 1;
            }
            assert!(ids <= most && ids > 0, "{length}: {ids}");
            let body = request.finish();
            assert!(ids == 1 || body.len() - 5 <= MAX_BYTES, "{length}");
        }
    }
}
