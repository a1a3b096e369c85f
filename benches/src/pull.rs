//! The loops that Pub/Sub pulls are measured against: no connector, no leases, no account of what is out. And, with the
//! feature `official`, the official client's subscriber.
//!
//! *Generated*: responses and acknowledgements as generated types. *Hand*: responses walked where they lie, ack ids
//! copied straight into the next request; the best loop we know. Both acknowledge at once, so many ids a request.

use aqueduct_cloud::{CallSpec, ChannelPool, Endpoint, PoolOptions, TokenProvider, frame};
use aqueduct_testkit::TestContext;
use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use prost::Message;
use std::time::Duration;

/// What is pulled: every loop and the connector alike.
#[derive(Clone, Copy, Debug)]
pub struct Pull<'a> {
    /// `host:port` of the service.
    pub address: &'a str,
    /// The subscription's full name.
    pub subscription: &'a str,
    /// After how many messages the loop ends.
    pub messages: u64,
    /// Messages that may be out unacknowledged.
    pub outstanding: u64,
    /// Ack ids of a request.
    pub acks: usize,
}

struct Calls {
    stream: aqueduct_cloud::DuplexCall,
    unary: ChannelPool,
    ack: CallSpec,
}

impl Calls {
    fn open(pull: &Pull<'_>) -> Self {
        let kit = TestContext::new("bench");
        let endpoint = Endpoint::emulator("address", pull.address).expect("host:port");
        let pool = |options| {
            let (context, tokens) = (kit.subtask(0, 1), TokenProvider::none());
            ChannelPool::new(&context, endpoint.clone(), tokens, options).expect("valid options")
        };
        let streams = pool(PoolOptions::default().windows(1 << 20, 2 << 20));
        let first = frame(&pb::StreamingPullRequest {
            subscription: pull.subscription.to_owned(),
            stream_ack_deadline_seconds: 60,
            max_outstanding_messages: i64::try_from(pull.outstanding).expect("small"),
            ..Default::default()
        });
        let spec = |path, limit| CallSpec::new(path, Duration::from_secs(limit));
        Self {
            stream: streams.duplex(
                &spec("/google.pubsub.v1.Subscriber/StreamingPull", 3_600),
                first,
            ),
            unary: pool(PoolOptions::default()),
            ack: spec("/google.pubsub.v1.Subscriber/Acknowledge", 10),
        }
    }

    /// Reads responses until `take`, given each and a request to send, says that it has had enough.
    async fn run(mut self, mut take: impl FnMut(Bytes, &mut Vec<Bytes>) -> bool) {
        let (mut calls, mut requests) = (FuturesUnordered::new(), Vec::new());
        loop {
            let response = tokio::select! {
                biased;
                response = self.stream.message() => response.expect("endless").expect("well"),
                Some(()) = calls.next(), if !calls.is_empty() => continue,
            };
            let go_on = take(response, &mut requests);
            for request in requests.drain(..) {
                let call = self.unary.call(&self.ack, request);
                calls.push(async move {
                    let mut answer = call.await.expect("well");
                    while answer.message().await.is_some() {}
                });
            }
            if !go_on {
                return;
            }
        }
    }
}

/// Pulls and acknowledges by generated types; returns the messages.
///
/// # Panics
///
/// If the service fails.
pub async fn generated_loop(pull: Pull<'_>) -> u64 {
    let (mut seen, mut ack_ids) = (0, Vec::new());
    Calls::open(&pull)
        .run(|response, requests| {
            let response = pb::StreamingPullResponse::decode(response).expect("decodes");
            for received in response.received_messages {
                seen += 1;
                std::hint::black_box(received.message.expect("a message").data);
                ack_ids.push(received.ack_id);
                if ack_ids.len() == pull.acks {
                    requests.push(frame(&pb::AcknowledgeRequest {
                        subscription: pull.subscription.to_owned(),
                        ack_ids: std::mem::take(&mut ack_ids),
                    }));
                }
            }
            seen < pull.messages
        })
        .await;
    seen
}

/// Pulls and acknowledges by hand; returns the messages.
///
/// # Panics
///
/// If the service fails, or sends what is no response.
pub async fn hand_loop(pull: Pull<'_>) -> u64 {
    let mut body = begin(pull.subscription);
    let (mut seen, mut ids) = (0, 0);
    Calls::open(&pull)
        .run(|response, requests| {
            let mut rest = &response[..];
            while !rest.is_empty() {
                let (1, mut received) = field(&mut rest) else {
                    continue;
                };
                seen += 1;
                while !received.is_empty() {
                    match field(&mut received) {
                        (1, ack_id) => {
                            body.put_u8(2 << 3 | 2);
                            put_varint(&mut body, ack_id.len());
                            body.put_slice(ack_id);
                            ids += 1;
                        }
                        (2, mut message) => {
                            while !message.is_empty() {
                                if let (1, data) = field(&mut message) {
                                    std::hint::black_box(data);
                                    break;
                                }
                            }
                        }
                        _ => {}
                    }
                }
                if ids == pull.acks {
                    ids = 0;
                    requests.push(finish(&mut body, pull.subscription));
                }
            }
            seen < pull.messages
        })
        .await;
    seen
}

/// Bytes before the message in a gRPC frame.
const PREFIX: usize = 5;

fn begin(subscription: &str) -> BytesMut {
    let mut body = BytesMut::with_capacity(192 << 10);
    body.put_bytes(0, PREFIX);
    body.put_u8(1 << 3 | 2);
    put_varint(&mut body, subscription.len());
    body.put_slice(subscription.as_bytes());
    body
}

fn finish(body: &mut BytesMut, subscription: &str) -> Bytes {
    let length = u32::try_from(body.len() - PREFIX).expect("a request is small");
    body[1..PREFIX].copy_from_slice(&length.to_be_bytes());
    std::mem::replace(body, begin(subscription)).freeze()
}

fn put_varint(out: &mut BytesMut, mut number: usize) {
    while number >= 0x80 {
        out.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

fn varint(bytes: &mut &[u8]) -> usize {
    let (mut number, mut shift) = (0, 0);
    while let Some((byte, rest)) = bytes.split_first() {
        *bytes = rest;
        number |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

/// The next length-delimited field; the service sends no other kind where this looks.
fn field<'a>(bytes: &mut &'a [u8]) -> (usize, &'a [u8]) {
    let tag = varint(bytes);
    let length = varint(bytes);
    let (value, rest) = bytes.split_at(length);
    *bytes = rest;
    (tag >> 3, value)
}

/// Pulls by the official client and acknowledges each message at once; returns the messages.
///
/// # Panics
///
/// If the service fails.
#[cfg(feature = "official")]
pub async fn official_loop(pull: Pull<'_>) -> u64 {
    use google_cloud_auth::credentials::anonymous;
    use google_cloud_pubsub::client::Subscriber;

    let client = Subscriber::builder()
        .with_endpoint(format!("http://{}", pull.address))
        .with_credentials(anonymous::Builder::new().build())
        .build()
        .await
        .expect("a client");
    let mut stream = client
        .subscribe(pull.subscription)
        .set_max_outstanding_messages(i64::try_from(pull.outstanding).expect("small"))
        .set_max_outstanding_bytes(1i64 << 30)
        .build();
    let mut seen = 0;
    while seen < pull.messages {
        let (message, handler) = stream.next().await.expect("endless").expect("well");
        std::hint::black_box(&message.data);
        handler.ack();
        seen += 1;
    }
    seen
}
