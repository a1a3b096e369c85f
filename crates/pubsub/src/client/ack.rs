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
/// Bytes of a request at most. The service refuses 524,289; from 128 KiB on the usual allocator gets the memory of each
/// request from the system and gives it back, page by page, which costs more than what a further request costs.
pub(crate) const MAX_BYTES: usize = 120 << 10;
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

    /// An empty request; `bytes` is what its ids will take, as far as is known.
    pub(crate) fn request(&self, kind: Kind, bytes: usize) -> Request {
        Request::new(&self.name, kind, bytes)
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

/// Ack ids, one after another as they stand in an `AcknowledgeRequest`: a stretch of them goes into a request at once.
#[derive(Debug, Default)]
pub(crate) struct AckIds {
    fields: Vec<u8>,
    /// Where each field ends.
    ends: Vec<u32>,
}

/// The tag of `AcknowledgeRequest.ack_ids`.
const ACK_TAG: u8 = 2 << 3 | 2;

impl AckIds {
    pub(crate) fn reserve(&mut self, ids: usize, bytes: usize) {
        self.fields.reserve(bytes);
        self.ends.reserve(ids);
    }

    pub(crate) fn clear(&mut self) {
        self.fields.clear();
        self.ends.clear();
    }

    /// Bytes of memory it takes, full or not.
    pub(crate) fn footprint(&self) -> usize {
        self.fields.capacity() + self.ends.capacity() * size_of::<u32>()
    }

    /// Adds an id; `false` if they are too many bytes to count, which no response has.
    #[inline]
    pub(crate) fn push(&mut self, ack_id: &[u8]) -> bool {
        let Ok(length) = u32::try_from(ack_id.len()) else {
            return false;
        };
        let low = length as u8;
        match length {
            0..0x80 => self.fields.extend_from_slice(&[ACK_TAG, low]),
            0x80..0x4000 => {
                let high = (length >> 7) as u8;
                self.fields.extend_from_slice(&[ACK_TAG, low | 0x80, high]);
            }
            _ => {
                self.fields.push(ACK_TAG);
                put_varint(&mut self.fields, u64::from(length));
            }
        }
        self.fields.extend_from_slice(ack_id);
        let Ok(end) = u32::try_from(self.fields.len()) else {
            return false;
        };
        self.ends.push(end);
        true
    }

    fn start(&self, at: usize) -> usize {
        match at {
            0 => 0,
            at => self.ends[at - 1] as usize,
        }
    }

    /// An id.
    pub(crate) fn get(&self, at: usize) -> &[u8] {
        let field = &self.fields[self.start(at)..self.ends[at] as usize];
        let length = field[1..].iter().position(|byte| *byte < 0x80);
        &field[length.map_or(field.len(), |length| length + 2)..]
    }

    /// What the ids `from..to` take in a request.
    pub(crate) fn bytes(&self, from: usize, to: usize) -> usize {
        self.start(to) - self.start(from)
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
    fn new(subscription: &str, kind: Kind, bytes: usize) -> Self {
        let head = PREFIX + subscription.len() + 16;
        let mut body = BytesMut::with_capacity(head + bytes.min(MAX_BYTES));
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

    /// Adds as many of the ids `from..to` as fit, in their order; returns how many.
    pub(crate) fn push_all(&mut self, ids: &AckIds, from: usize, to: usize) -> usize {
        let start = ids.start(from);
        let room = MAX_BYTES.saturating_sub(self.body.len() - PREFIX);
        let most = to.min(from + MAX_IDS.saturating_sub(self.ids));
        let mut fit = ids.ends[from..most].partition_point(|end| *end as usize - start <= room);
        if self.ids == 0 {
            // One that is larger than a request travels alone.
            fit = fit.max(1);
        }
        let begin = self.body.len();
        self.body
            .put_slice(&ids.fields[start..ids.start(from + fit)]);
        if self.field != 2 {
            for at in from..from + fit {
                self.body[begin + ids.start(at) - start] = self.field << 3 | 2;
            }
        }
        self.ids += fit;
        fit
    }

    pub(crate) fn is_full(&self) -> bool {
        self.ids >= MAX_IDS
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

fn put_text(out: &mut impl BufMut, field: u8, text: &[u8]) {
    out.put_u8(field << 3 | 2);
    put_varint(out, text.len() as u64);
    out.put_slice(text);
}

#[inline]
fn put_varint(out: &mut impl BufMut, mut number: u64) {
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
        let mut request = Request::new("s", Kind::Ack, 0);
        assert!(request.push(b"a") && request.push(&[b'x'; 200]));
        let body = request.finish();
        let ack = pb::AcknowledgeRequest::decode(&body[5..]).expect("valid");
        assert_eq!((ack.subscription.as_str(), ack.ack_ids.len()), ("s", 2));
        assert_eq!(ack.ack_ids[1].len(), 200);
        let mut request = Request::new("s", Kind::Extend { seconds: 600 }, 0);
        assert!(request.push(b"a"));
        let body = request.finish();
        let modify = pb::ModifyAckDeadlineRequest::decode(&body[5..]).expect("valid");
        assert_eq!(modify.ack_deadline_seconds, 600);
        assert_eq!(modify.ack_ids, ["a"]);
        let mut request = Request::new("s", Kind::Nack, 0);
        assert!(request.push(b"a"));
        let modify = pb::ModifyAckDeadlineRequest::decode(&request.finish()[5..]).expect("valid");
        assert_eq!(modify.ack_deadline_seconds, 0);
    }

    #[test]
    fn neither_bound_is_passed_and_one_huge_id_still_travels() {
        for (length, most) in [(1, MAX_IDS), (210, MAX_IDS), (4_000, 30), (600_000, 1)] {
            let mut request = Request::new("projects/p/subscriptions/s", Kind::Ack, 0);
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

    #[test]
    fn a_stretch_of_ids_goes_in_as_far_as_it_fits() {
        for (length, kind) in [
            (0, Kind::Ack),
            (1, Kind::Ack),
            (127, Kind::Nack),
            (210, Kind::Ack),
            (4_000, Kind::Extend { seconds: 10 }),
            (600_000, Kind::Nack),
        ] {
            let of = |at: usize| format!("{at:04}").repeat(length / 4 + 1)[..length].to_owned();
            let mut ids = AckIds::default();
            for at in 0..1_500 {
                assert!(ids.push(of(at).as_bytes()));
                assert_eq!(ids.get(at), of(at).as_bytes());
                if length > 10_000 && at == 3 {
                    break;
                }
            }
            let (mut from, to) = (0, ids.ends.len());
            let mut seen = Vec::new();
            while from < to {
                let mut request = Request::new("projects/p/subscriptions/s", kind, 0);
                let first = request.push_all(&ids, from, to.min(from + 2));
                let fit = first + request.push_all(&ids, from + first, to);
                assert!(fit > 0 && fit <= MAX_IDS);
                from += fit;
                let body = request.finish();
                assert!(fit == 1 || body.len() - 5 <= MAX_BYTES, "{length}");
                seen.extend(match kind {
                    Kind::Ack => {
                        pb::AcknowledgeRequest::decode(&body[5..])
                            .expect("valid")
                            .ack_ids
                    }
                    _ => {
                        pb::ModifyAckDeadlineRequest::decode(&body[5..])
                            .expect("valid")
                            .ack_ids
                    }
                });
            }
            assert_eq!(seen, (0..to).map(of).collect::<Vec<_>>(), "{length}");
        }
    }
}
