//! Benchmarks: topics that acknowledge and forget, subscriptions that never run dry.
//!
//! Both are far cheaper than any client: publishes are counted as their bytes pass by, responses are
//! copies of one template in which only the ids change.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
};

use bytes::{BufMut, Bytes, BytesMut};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use prost::Message;

use super::clock::{Nanos, timestamp};
use crate::bigtable::slot::lock;

const DIGITS: usize = 17;
/// Ids of floods begin here, far above those of stored messages.
const FIRST_DIGIT: u8 = b'9';

/// What a discarding topic acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiscardedMessages {
    /// Requests of the fast path; requests that met a fault are not among them.
    pub requests: u64,
    /// Messages.
    pub messages: u64,
    /// Bytes of the request messages of the fast path.
    pub bytes: u64,
}

/// What a firehose sends.
#[derive(Clone)]
pub struct FirehoseConfig {
    /// Data of every message. Default: 1 KiB of zeros.
    pub payload: Bytes,
    /// Attributes of every message. Default: none.
    pub attributes: HashMap<String, String>,
    /// Messages in one response. Default: 100.
    pub messages_per_response: usize,
    /// What the clients' limits are to it. Default: [`FirehoseFlow::Controlled`].
    pub flow: FirehoseFlow,
}

impl Default for FirehoseConfig {
    fn default() -> Self {
        Self {
            payload: Bytes::from_static(&[0; 1024]),
            attributes: HashMap::new(),
            messages_per_response: 100,
            flow: FirehoseFlow::Controlled,
        }
    }
}

impl fmt::Debug for FirehoseConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirehoseConfig")
            .field("payload_bytes", &self.payload.len())
            .field("messages_per_response", &self.messages_per_response)
            .field("flow", &self.flow)
            .finish_non_exhaustive()
    }
}

/// Whether a firehose heeds flow control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirehoseFlow {
    /// The limits of all open streams together bound what is unacknowledged.
    Controlled,
    /// Only the transport's windows slow it.
    Unlimited,
}

/// What became of a firehose's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Firehosed {
    /// Messages sent.
    pub delivered: u64,
    /// Ack ids acknowledged, repeats included.
    pub acked: u64,
    /// Ack ids given back.
    pub nacked: u64,
    /// Ack ids extended.
    pub extended: u64,
    /// `Acknowledge` requests.
    pub acknowledge_requests: u64,
}

/// A topic that discards.
#[derive(Default)]
pub(crate) struct Discarding {
    pub(crate) requests: AtomicU64,
    pub(crate) messages: AtomicU64,
    pub(crate) bytes: AtomicU64,
    answer: Mutex<(usize, Vec<u8>)>,
}

impl Discarding {
    pub(crate) fn total(&self) -> DiscardedMessages {
        DiscardedMessages {
            requests: self.requests.load(Ordering::SeqCst),
            messages: self.messages.load(Ordering::SeqCst),
            bytes: self.bytes.load(Ordering::SeqCst),
        }
    }

    /// Counts a request; answers a framed `PublishResponse` with an id for each message.
    pub(crate) fn accept(&self, messages: usize, bytes: u64) -> Bytes {
        let request = self.requests.fetch_add(1, Ordering::SeqCst);
        self.messages.fetch_add(messages as u64, Ordering::SeqCst);
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        // An id is the leading digit, ten digits of the request, six of the position.
        const ENTRY: usize = 2 + DIGITS;
        let mut template = lock(&self.answer);
        if template.0 != messages || template.1.is_empty() {
            let mut answer = vec![0];
            let length = u32::try_from(messages * ENTRY).unwrap_or(u32::MAX);
            answer.put_u32(length);
            for position in 0..messages {
                answer.put_slice(&[0x0a, DIGITS as u8]);
                answer.put_slice(format!("{}{position:016}", FIRST_DIGIT as char).as_bytes());
            }
            *template = (messages, answer);
        }
        let digits = format!("{:010}", request % 10_000_000_000);
        let mut answer = template.1.clone();
        drop(template);
        for entry in answer[5..].chunks_exact_mut(ENTRY) {
            entry[3..13].copy_from_slice(digits.as_bytes());
        }
        answer.into()
    }
}

/// A subscription without end.
pub(crate) struct Firehose {
    flow: FirehoseFlow,
    batch: usize,
    /// A frame of `batch` messages.
    template: Vec<u8>,
    message_bytes: usize,
    /// Where the digits of the ids stand in a message of the template.
    ack_id_at: usize,
    message_id_at: usize,
    next: AtomicU64,
    out: AtomicU64,
    limit: AtomicU64,
    streams: AtomicUsize,
    delivered: AtomicU64,
    acked: AtomicU64,
    nacked: AtomicU64,
    extended: AtomicU64,
    acknowledge_requests: AtomicU64,
    waiting: Mutex<Vec<Waker>>,
}

/// What a stream without limit adds to the bound: more than can be out.
const UNLIMITED: u64 = 1 << 40;

impl Firehose {
    pub(crate) fn new(config: &FirehoseConfig, ack_id_bytes: usize, now: Nanos) -> Self {
        const ACK_DIGITS: &str = "97777777777777777";
        const ID_DIGITS: &str = "98888888888888888";
        let response = pb::PullResponse {
            received_messages: vec![pb::ReceivedMessage {
                ack_id: format!("{ACK_DIGITS:A<ack_id_bytes$}"),
                message: Some(pb::PubsubMessage {
                    data: config.payload.clone(),
                    attributes: config.attributes.clone(),
                    message_id: ID_DIGITS.to_owned(),
                    publish_time: Some(timestamp(now)),
                    ordering_key: String::new(),
                }),
                delivery_attempt: 0,
            }],
        };
        let message = response.encode_to_vec();
        // The ack id comes before the payload, the message id after it.
        let ack_id_at = message
            .windows(DIGITS)
            .position(|window| window == ACK_DIGITS.as_bytes())
            .expect("the ack id was just encoded");
        let message_id_at = message
            .windows(DIGITS)
            .rposition(|window| window == ID_DIGITS.as_bytes())
            .expect("the message id was just encoded");
        let batch = config.messages_per_response.max(1);
        let mut template = vec![0; 5];
        for _ in 0..batch {
            template.extend_from_slice(&message);
        }
        Self {
            flow: config.flow,
            batch,
            template,
            message_bytes: message.len(),
            ack_id_at,
            message_id_at,
            next: AtomicU64::new(0),
            out: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            streams: AtomicUsize::new(0),
            delivered: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            nacked: AtomicU64::new(0),
            extended: AtomicU64::new(0),
            acknowledge_requests: AtomicU64::new(0),
            waiting: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn total(&self) -> Firehosed {
        Firehosed {
            delivered: self.delivered.load(Ordering::SeqCst),
            acked: self.acked.load(Ordering::SeqCst),
            nacked: self.nacked.load(Ordering::SeqCst),
            extended: self.extended.load(Ordering::SeqCst),
            acknowledge_requests: self.acknowledge_requests.load(Ordering::SeqCst),
        }
    }

    /// Adds a stream; answers what it adds to the bound, to be taken back by
    /// [`close`](Self::close).
    pub(crate) fn open(&self, max_messages: i64, max_bytes: i64) -> u64 {
        let messages = u64::try_from(max_messages).unwrap_or(0);
        let bytes = u64::try_from(max_bytes).unwrap_or(0);
        let per_bytes = match bytes {
            0 => UNLIMITED,
            bytes => (bytes / self.message_bytes as u64).max(1),
        };
        let share = match (self.flow, messages) {
            (FirehoseFlow::Unlimited, _) => UNLIMITED,
            (FirehoseFlow::Controlled, 0) => per_bytes,
            (FirehoseFlow::Controlled, messages) => messages.min(per_bytes),
        };
        self.streams.fetch_add(1, Ordering::SeqCst);
        self.limit.fetch_add(share, Ordering::SeqCst);
        share
    }

    pub(crate) fn close(&self, share: u64) {
        self.limit.fetch_sub(share, Ordering::SeqCst);
        if self.streams.fetch_sub(1, Ordering::SeqCst) == 1 {
            // Nobody is left to acknowledge.
            self.out.store(0, Ordering::SeqCst);
        }
    }

    /// The next frame, if the bound admits one; else the waker is told when it does.
    pub(crate) fn frame(&self, waker: &Waker) -> Option<Bytes> {
        let room = || {
            let limit = self.limit.load(Ordering::SeqCst);
            limit.saturating_sub(self.out.load(Ordering::SeqCst))
        };
        let mut left = room();
        if left == 0 {
            lock(&self.waiting).push(waker.clone());
            // An acknowledgement since found nobody waiting.
            left = room();
            if left == 0 {
                return None;
            }
        }
        let messages = usize::try_from(left).map_or(self.batch, |left| left.min(self.batch));
        let first = self.next.fetch_add(messages as u64, Ordering::SeqCst);
        self.out.fetch_add(messages as u64, Ordering::SeqCst);
        self.delivered.fetch_add(messages as u64, Ordering::SeqCst);
        let length = messages * self.message_bytes;
        let mut frame = BytesMut::from(&self.template[..5 + length]);
        frame[1..5].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        let mut digits = [b'0'; DIGITS];
        digits.copy_from_slice(format!("{}{first:016}", FIRST_DIGIT as char).as_bytes());
        for message in frame[5..].chunks_exact_mut(self.message_bytes) {
            message[self.ack_id_at..][..DIGITS].copy_from_slice(&digits);
            message[self.message_id_at..][..DIGITS].copy_from_slice(&digits);
            for digit in digits.iter_mut().rev() {
                if *digit < b'9' {
                    *digit += 1;
                    break;
                }
                *digit = b'0';
            }
        }
        Some(frame.freeze())
    }

    pub(crate) fn acknowledge(&self, ids: usize) {
        self.acked.fetch_add(ids as u64, Ordering::SeqCst);
        self.acknowledge_requests.fetch_add(1, Ordering::SeqCst);
        self.give_back(ids);
    }

    pub(crate) fn modify(&self, ids: usize, seconds: i32) {
        if seconds == 0 {
            self.nacked.fetch_add(ids as u64, Ordering::SeqCst);
            self.give_back(ids);
        } else {
            self.extended.fetch_add(ids as u64, Ordering::SeqCst);
        }
    }

    fn give_back(&self, ids: usize) {
        // A client may acknowledge twice.
        let back = |out: u64| Some(out.saturating_sub(ids as u64));
        let _ = self
            .out
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, back);
        lock(&self.waiting).drain(..).for_each(Waker::wake);
    }

    pub(crate) fn wake(&self) {
        lock(&self.waiting).drain(..).for_each(Waker::wake);
    }
}

/// The floods of a simulation, by resource name.
#[derive(Default)]
pub(crate) struct Floods {
    /// Their number, so that a simulation without pays one load a request.
    active: AtomicUsize,
    topics: Mutex<HashMap<String, Arc<Discarding>>>,
    subscriptions: Mutex<HashMap<String, Arc<Firehose>>>,
}

impl Floods {
    pub(crate) fn any(&self) -> bool {
        self.active.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn topic(&self, name: &str) -> Option<Arc<Discarding>> {
        lock(&self.topics).get(name).cloned()
    }

    pub(crate) fn subscription(&self, name: &str) -> Option<Arc<Firehose>> {
        lock(&self.subscriptions).get(name).cloned()
    }

    pub(crate) fn start_discarding(&self, name: &str) {
        let mut topics = lock(&self.topics);
        if !topics.contains_key(name) {
            topics.insert(name.to_owned(), Arc::default());
            self.active.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn stop_discarding(&self, name: &str) {
        if lock(&self.topics).remove(name).is_some() {
            self.active.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn start_firehose(&self, name: &str, firehose: Firehose) {
        let before = lock(&self.subscriptions).insert(name.to_owned(), Arc::new(firehose));
        match before {
            None => {
                self.active.fetch_add(1, Ordering::SeqCst);
            }
            Some(before) => before.wake(),
        }
    }

    pub(crate) fn stop_firehose(&self, name: &str) {
        if let Some(firehose) = lock(&self.subscriptions).remove(name) {
            self.active.fetch_sub(1, Ordering::SeqCst);
            firehose.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    //! What is written by hand is what the generated types read.

    use std::{collections::HashSet, task::Waker};

    use super::*;

    #[test]
    fn a_discarding_topic_answers_a_fresh_id_for_each_message() {
        let topic = Discarding::default();
        let mut ids = HashSet::new();
        for messages in [1, 100, 100, 1_000, 0] {
            let answer = topic.accept(messages, 10);
            let response = pb::PublishResponse::decode(&answer[5..]).expect("well-formed");
            assert_eq!(response.message_ids.len(), messages);
            assert!(response.message_ids.into_iter().all(|id| ids.insert(id)));
        }
        assert_eq!(topic.total().messages, 1_201);
        assert_eq!(topic.total().requests, 5);
    }

    #[test]
    fn a_firehose_sends_distinct_messages_up_to_the_limit() {
        let config = FirehoseConfig {
            payload: Bytes::from_static(b"payload"),
            attributes: HashMap::from([("k".to_owned(), "v".to_owned())]),
            messages_per_response: 100,
            flow: FirehoseFlow::Controlled,
        };
        let firehose = Firehose::new(&config, 176, 1);
        let share = firehose.open(250, 0);
        let waker = Waker::noop();
        let (mut ids, mut ack_ids) = (HashSet::new(), HashSet::new());
        let mut sizes = Vec::new();
        while let Some(frame) = firehose.frame(waker) {
            let length = u32::from_be_bytes([frame[1], frame[2], frame[3], frame[4]]);
            assert_eq!(length as usize, frame.len() - 5);
            let response = pb::StreamingPullResponse::decode(&frame[5..]).expect("well-formed");
            sizes.push(response.received_messages.len());
            for received in response.received_messages {
                assert_eq!(received.ack_id.len(), 176);
                let message = received.message.expect("a message");
                assert_eq!(message.data, config.payload);
                assert_eq!(message.attributes, config.attributes);
                assert!(ids.insert(message.message_id));
                assert!(ack_ids.insert(received.ack_id));
            }
        }
        assert_eq!(sizes, [100, 100, 50]);
        firehose.acknowledge(10);
        assert!(firehose.frame(waker).is_some());
        firehose.close(share);
        assert_eq!(firehose.total().delivered, 260);
    }
}
