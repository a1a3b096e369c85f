//! Publishing to Pub/Sub: the raw loops that the sink is measured against, and the sink under the same load.
//!
//! *Stub*: requests as generated structs through the generated client. *Body*: requests encoded by hand into one buffer a
//! request and sent as the HTTP body, answers counted by hand; the best loop we know. *Sink*: driven poll by poll as a
//! host drives it. The official client's publisher is in `official`, behind the feature of that name.

#[cfg(feature = "official")]
pub mod official;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use aqueduct_connector::options::ByteSize;
use aqueduct_connector::sink::{Flush, RecordInfo, Sink, SinkWriter};
use aqueduct_pubsub::{PubSubSerializer, PubSubSink, PublisherOptions, TopicDestination};
use aqueduct_sim::Sim;
use aqueduct_testkit::context::TestContext;
use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use http_body_util::BodyExt;
use pb::publisher_client::PublisherClient;
use tonic::transport::Channel;
use tower::Service;

/// Topics that the service discards what is published to.
pub const TOPICS: usize = 10_000;
/// Project of all of them.
pub const PROJECT: &str = "bench";

/// What is published: by every loop and the sink alike.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Messages.
    pub messages: u64,
    /// Bytes of a message's data.
    pub payload_bytes: usize,
    /// Messages a request.
    pub batch: usize,
    /// Requests in flight.
    pub in_flight: usize,
}

/// What the sink does with the load.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Ordering keys that the messages take in turn; 0 for none.
    pub keys: u64,
    /// Topics, each of which gets as many messages in a row as fill a request; 1 for the topic of the raw loops.
    pub topics: usize,
    /// Messages without a verdict that the writer may hold.
    pub in_flight_messages: u64,
    /// Topics that the writer may hold open.
    pub open_topics: u64,
}

impl Job {
    /// One topic, no keys, as much in flight as the raw loops have.
    #[must_use]
    pub fn plain(load: Load) -> Self {
        Self {
            keys: 0,
            topics: 1,
            in_flight_messages: (load.batch * load.in_flight) as u64,
            open_topics: 100,
        }
    }
}

/// Name of topic `at`; the first is the one of the raw loops.
#[must_use]
pub fn topic(at: usize) -> String {
    format!("t-{at}")
}

/// Makes the topics that discard.
pub fn prepare(sim: &Sim) {
    for at in 0..TOPICS {
        sim.pubsub()
            .create_topic(PROJECT, &topic(at))
            .start_discarding();
    }
}

/// The data of every message but for its first eight bytes, which hold its number.
#[must_use]
pub fn payload(bytes: usize) -> Bytes {
    crate::raw::value(bytes)
}

/// Publishes the load through the generated client.
///
/// # Panics
///
/// If the service refuses anything.
pub async fn stub_loop(channel: Channel, topic: &str, load: Load) -> u64 {
    let payload = payload(load.payload_bytes);
    let client = PublisherClient::new(channel).max_decoding_message_size(64 << 20);
    let mut calls = FuturesUnordered::new();
    let (mut next, mut acknowledged) = (0, 0);
    while next < load.messages || !calls.is_empty() {
        while next < load.messages && calls.len() < load.in_flight {
            let end = (next + load.batch as u64).min(load.messages);
            let messages = (next..end)
                .map(|n| {
                    let mut data = payload.to_vec();
                    data[..8].copy_from_slice(&n.to_be_bytes());
                    pb::PubsubMessage {
                        data: data.into(),
                        ..Default::default()
                    }
                })
                .collect();
            next = end;
            let request = pb::PublishRequest {
                topic: topic.to_owned(),
                messages,
            };
            let mut client = client.clone();
            calls.push(async move {
                let answer = client.publish(request).await.expect("the service answers");
                answer.into_inner().message_ids.len() as u64
            });
        }
        if let Some(ids) = calls.next().await {
            acknowledged += ids;
        }
    }
    acknowledged
}

/// Publishes the load as request bodies built by hand; `answered` gets how long each request took.
///
/// # Panics
///
/// If the service refuses anything.
pub async fn body_loop(
    mut channel: Channel,
    topic: &str,
    load: Load,
    mut answered: impl FnMut(Duration),
) -> u64 {
    let payload = payload(load.payload_bytes);
    let mut calls = FuturesUnordered::new();
    let (mut next, mut acknowledged) = (0, 0);
    while next < load.messages || !calls.is_empty() {
        while next < load.messages && calls.len() < load.in_flight {
            let end = (next + load.batch as u64).min(load.messages);
            let body = request_body(topic, next..end, &payload, load.batch);
            next = end;
            let request = http::Request::builder()
                .method(http::Method::POST)
                .uri("/google.pubsub.v1.Publisher/Publish")
                .header(http::header::TE, "trailers")
                .header(http::header::CONTENT_TYPE, "application/grpc")
                .header("grpc-timeout", "60S")
                .header("x-goog-request-params", "topic=t")
                .body(tonic::body::Body::new(http_body_util::Full::new(body)))
                .expect("a well-formed request");
            poll_fn(|cx| channel.poll_ready(cx))
                .await
                .expect("the channel is open");
            let begun = Instant::now();
            let call = channel.call(request);
            calls.push(async move {
                let response = call.await.expect("the service answers");
                let mut body = response.into_body();
                let mut ids = 0;
                while let Some(frame) = body.frame().await {
                    let frame = frame.expect("the stream goes on");
                    if let Some(data) = frame.data_ref() {
                        ids += count_ids(data);
                    } else if let Some(trailers) = frame.trailers_ref() {
                        assert_eq!(trailers["grpc-status"], "0");
                    }
                }
                (ids, begun.elapsed())
            });
        }
        if let Some((ids, took)) = calls.next().await {
            acknowledged += ids;
            answered(took);
        }
    }
    acknowledged
}

/// A whole request with its gRPC prefix, in one buffer.
fn request_body(topic: &str, numbers: std::ops::Range<u64>, payload: &[u8], batch: usize) -> Bytes {
    let message = 1 + varint_len(payload.len()) + payload.len();
    let mut body =
        BytesMut::with_capacity(5 + 3 + topic.len() + batch * (1 + varint_len(message) + message));
    body.put_bytes(0, 5);
    body.put_u8(0x0a);
    put_varint(&mut body, topic.len());
    body.put_slice(topic.as_bytes());
    for n in numbers {
        body.put_u8(0x12);
        put_varint(&mut body, message);
        body.put_u8(0x0a);
        put_varint(&mut body, payload.len());
        let start = body.len();
        body.put_slice(payload);
        body[start..start + 8].copy_from_slice(&n.to_be_bytes());
    }
    let length = u32::try_from(body.len() - 5).expect("far below 4 GiB");
    body[1..5].copy_from_slice(&length.to_be_bytes());
    body.freeze()
}

const fn varint_len(value: usize) -> usize {
    (value | 1).ilog2() as usize / 7 + 1
}

fn put_varint(buffer: &mut BytesMut, mut value: usize) {
    while value >= 0x80 {
        buffer.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    buffer.put_u8(value as u8);
}

/// Counts the ids of the answer in `data`: one whole gRPC message a frame, as the discarding service sends it.
fn count_ids(data: &[u8]) -> u64 {
    let (mut at, mut count) = (5, 0);
    while at + 1 < data.len() {
        // Field 1, length-delimited: an id; all of them are shorter than 128 bytes.
        assert_eq!(data[at], 0x0a, "only ids are expected");
        at += 2 + usize::from(data[at + 1]);
        count += 1;
    }
    count
}

/// A sink that publishes numbers as the raw loops do.
///
/// # Panics
///
/// If the options are not valid.
#[must_use]
pub fn sink(endpoint: &str, load: Load, job: Job) -> PubSubSink<u64> {
    let payload = payload(load.payload_bytes);
    let serializer = PubSubSerializer::payload(move |n: &u64, data: &mut Vec<u8>| {
        data.extend_from_slice(&payload);
        data[..8].copy_from_slice(&n.to_be_bytes());
        Ok::<_, std::convert::Infallible>(())
    });
    let mut builder = PubSubSink::builder()
        .emulator_endpoint(endpoint)
        .publisher_options(
            PublisherOptions::new()
                .batch_element_count_threshold(load.batch as u64)
                .max_in_flight_messages(job.in_flight_messages)
                .max_in_flight_bytes(ByteSize::mib(64))
                .max_active_publishers(job.open_topics)
                .enable_message_ordering(job.keys > 0),
        );
    builder = if job.keys > 0 {
        builder.serializer(
            serializer.with_ordering_key(move |n: &u64, key: &mut String| {
                push_key(n % job.keys, key);
                Ok::<_, std::convert::Infallible>(())
            }),
        )
    } else {
        builder.serializer(serializer)
    };
    let destination = |at: usize| TopicDestination::new(PROJECT, &topic(at)).expect("a valid name");
    builder = if job.topics <= 1 {
        builder.topic(destination(0))
    } else {
        let topics: Vec<_> = (0..job.topics).map(destination).collect();
        let run = load.batch as u64;
        builder.destination_resolver(move |n: &u64, _: RecordInfo| {
            let at = (n / run % topics.len() as u64) as usize;
            Ok::<_, std::convert::Infallible>(Some(topics[at].clone()))
        })
    };
    builder.build().expect("valid options")
}

/// Appends a key's name, without an allocation.
fn push_key(mut key: u64, name: &mut String) {
    name.push_str("key-");
    for _ in 0..8 {
        name.push(char::from(b'0' + (key % 10) as u8));
        key /= 10;
    }
}

/// Publishes the load through a sink writer, flushes, closes. Returns the messages published.
///
/// `barrier_every` messages it flushes as for a checkpoint; `flushed` gets how long each flush took.
///
/// # Panics
///
/// If the sink fails.
pub async fn sink_loop(
    endpoint: &str,
    load: Load,
    job: Job,
    barrier_every: u64,
    mut flushed: impl FnMut(Duration),
) -> u64 {
    let sink = sink(endpoint, load, job);
    let kit = TestContext::new("bench");
    let mut writer = sink
        .create_writer(kit.subtask(0, 1), Vec::new())
        .expect("a writer");
    let mut next = 0;
    while next < load.messages {
        let end = next.saturating_add(barrier_every).min(load.messages);
        poll_fn(|cx| write(&mut *writer, &mut next, end, cx)).await;
        let begun = Instant::now();
        poll_fn(|cx| writer.poll_flush(cx, Flush::Checkpoint))
            .await
            .expect("the service accepts");
        flushed(begun.elapsed());
    }
    poll_fn(|cx| writer.poll_close(cx))
        .await
        .expect("the writer closes");
    assert_eq!(kit.registry().total("numRecordsSend"), i128::from(next));
    next
}

fn write(
    writer: &mut dyn SinkWriter<u64>,
    next: &mut u64,
    end: u64,
    cx: &mut Context<'_>,
) -> Poll<()> {
    while *next < end {
        ready!(writer.poll_ready(cx)).expect("the service accepts");
        writer
            .write(*next, RecordInfo::default())
            .expect("the record is valid");
        *next += 1;
    }
    Poll::Ready(())
}

/// Publishes at `rate` messages a second; `published` gets the time from handing a message over until as many messages
/// are published as were handed over up to it, for a message each millisecond.
///
/// # Panics
///
/// If the sink fails.
pub async fn paced_sink(
    endpoint: &str,
    load: Load,
    job: Job,
    rate: u64,
    mut published: impl FnMut(Duration),
) {
    let sink = sink(endpoint, load, job);
    let kit = TestContext::new("bench");
    let mut writer = sink
        .create_writer(kit.subtask(0, 1), Vec::new())
        .expect("a writer");
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    let begun = Instant::now();
    let mut next = 0;
    // Messages written up to a moment, and the moment.
    let mut marks: VecDeque<(u64, Instant)> = VecDeque::new();
    poll_fn(|cx| {
        loop {
            let due = (begun.elapsed().as_micros() as u64 * rate / 1_000_000).min(load.messages);
            let before = next;
            let full = write(&mut *writer, &mut next, due, cx).is_pending();
            if next > before {
                marks.push_back((next, Instant::now()));
            }
            if !full && let Poll::Ready(Err(error)) = writer.poll_progress(cx) {
                panic!("the service accepts: {error}");
            }
            // Requests may be answered out of order, so this is of the count, not of the very message.
            let settled = next - kit.registry().total("inFlightMessages") as u64;
            while let Some((number, at)) = marks.front().copied()
                && number <= settled
            {
                published(at.elapsed());
                marks.pop_front();
            }
            if next == load.messages && marks.is_empty() {
                return Poll::Ready(());
            }
            ready!(ticks.poll_tick(cx));
        }
    })
    .await;
    poll_fn(|cx| writer.poll_flush(cx, Flush::EndOfInput))
        .await
        .expect("the service accepts");
    poll_fn(|cx| writer.poll_close(cx))
        .await
        .expect("the writer closes");
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn the_body_is_the_request_that_the_generated_type_reads() {
        let payload = payload(100);
        let body = request_body("projects/p/topics/t", 7..10, &payload, 3);
        let request = pb::PublishRequest::decode(&body[5..]).expect("a well-formed request");
        assert_eq!(request.topic, "projects/p/topics/t");
        assert_eq!(request.messages.len(), 3);
        assert_eq!(request.messages[2].data[..8], 9_u64.to_be_bytes());
        assert_eq!(request.messages[2].data[8..], payload[8..]);
    }
}
