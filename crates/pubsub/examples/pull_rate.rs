//! The source beside a raw loop that pulls and acknowledges the same messages from the same simulated service, both in
//! one run and each on one thread; figures are messages per second of that thread's processor time.
//!
//! `cargo run --release -p aqueduct-pubsub --example pull_rate`

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use std::future::poll_fn;
use std::num::NonZeroU64;
use std::time::Duration;

use aqueduct_cloud::{CallSpec, ChannelPool, Endpoint, PoolOptions, TokenProvider, frame};
use aqueduct_connector::CheckpointId;
use aqueduct_connector::options::ByteSize;
use aqueduct_connector::source::{Collector, ReaderOutput, Source, Split, SplitId};
use aqueduct_pubsub::source::{PubSubSource, ReceivedMessage, SubscriptionSplit};
use aqueduct_pubsub::{SubscriberOptions, SubscriptionDestination};
use aqueduct_sim::{FirehoseConfig, Sim, SimConfig};
use aqueduct_testkit::TestContext;
use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

/// Messages that may be out.
const OUT: u64 = 10_000;
const SUBSCRIPTION: &str = "projects/p/subscriptions/s";

fn main() {
    let messages: u64 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(1_000_000);
    let sim = Sim::start_on_thread(SimConfig::for_benchmarks()).expect("a port on loopback");
    let pubsub = sim.pubsub();
    let topic = pubsub.create_topic("p", "t");
    let subscription = pubsub.create_subscription("p", "s", &topic);
    let address = sim.endpoint().trim_start_matches("http://").to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    println!("| bytes | raw, M/s | source, M/s | ratio |\n| --- | --- | --- | --- |");
    for bytes in [100, 1_024] {
        subscription.start_firehose(&FirehoseConfig {
            payload: vec![7; bytes].into(),
            ..FirehoseConfig::default()
        });
        let mut figures = [0.0f64; 2];
        for _ in 0..3 {
            for (at, figure) in figures.iter_mut().enumerate() {
                let began = busy();
                if at == 0 {
                    runtime.block_on(raw(&address, messages));
                } else {
                    runtime.block_on(source(&address, messages));
                }
                let rate = messages as f64 / (busy() - began).as_secs_f64() / 1e6;
                *figure = figure.max(rate);
            }
        }
        let [raw, source] = figures;
        println!("| {bytes} | {raw:.2} | {source:.2} | {:.2} |", source / raw);
        subscription.stop_firehose();
    }
}

/// Processor time of this thread.
fn busy() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let nanos = text.split(' ').next().and_then(|text| text.parse().ok());
    Duration::from_nanos(nanos.expect("nanoseconds"))
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    while let Some((byte, rest)) = bytes.split_first() {
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

/// The next length-delimited field; the service sends no other kind where this looks.
fn field<'a>(bytes: &mut &'a [u8]) -> (u64, &'a [u8]) {
    let tag = varint(bytes);
    let length = usize::try_from(varint(bytes)).expect("short");
    let (value, rest) = bytes.split_at(length);
    *bytes = rest;
    (tag >> 3, value)
}

fn begin() -> BytesMut {
    let mut body = BytesMut::with_capacity(256 << 10);
    body.put_bytes(0, 5);
    body.put_u8(10);
    body.put_u8(u8::try_from(SUBSCRIPTION.len()).expect("short"));
    body.put_slice(SUBSCRIPTION.as_bytes());
    body
}

fn finish(body: &mut BytesMut) -> Bytes {
    let length = u32::try_from(body.len() - 5).expect("short");
    body[1..5].copy_from_slice(&length.to_be_bytes());
    std::mem::replace(body, begin()).freeze()
}

/// Copies ack ids straight into the next request, looks at each payload's length, and does nothing else.
async fn raw(address: &str, messages: u64) {
    let kit = TestContext::new("raw");
    let endpoint = Endpoint::emulator("address", address).expect("host:port");
    let pool = |options| {
        ChannelPool::new(
            &kit.subtask(0, 1),
            endpoint.clone(),
            TokenProvider::none(),
            options,
        )
        .expect("valid options")
    };
    let (streams, unary) = (
        pool(PoolOptions::default().windows(1 << 20, 2 << 20)),
        pool(PoolOptions::default()),
    );
    let pull = CallSpec::new(
        "/google.pubsub.v1.Subscriber/StreamingPull",
        Duration::from_secs(3_600),
    );
    let ack = CallSpec::new(
        "/google.pubsub.v1.Subscriber/Acknowledge",
        Duration::from_secs(10),
    );
    let first = frame(&pb::StreamingPullRequest {
        subscription: SUBSCRIPTION.to_owned(),
        stream_ack_deadline_seconds: 60,
        max_outstanding_messages: OUT as i64,
        ..Default::default()
    });
    let mut call = streams.duplex(&pull, first);
    let (mut body, mut ids, mut seen, mut bytes) = (begin(), 0, 0, 0);
    let mut calls = FuturesUnordered::new();
    while seen < messages {
        let response = tokio::select! {
            biased;
            response = call.message() => response.expect("endless").expect("well"),
            Some(()) = calls.next(), if !calls.is_empty() => continue,
        };
        let mut rest = &response[..];
        while !rest.is_empty() {
            let (1, mut received) = field(&mut rest) else {
                continue;
            };
            while !received.is_empty() {
                match field(&mut received) {
                    (1, ack_id) => {
                        body.put_u8(18);
                        body.put_u8(ack_id.len() as u8 | 0x80);
                        body.put_u8((ack_id.len() >> 7) as u8);
                        body.put_slice(ack_id);
                        ids += 1;
                    }
                    (2, mut message) => {
                        while !message.is_empty() {
                            if let (1, data) = field(&mut message) {
                                bytes += data.len();
                                break;
                            }
                        }
                    }
                    _ => {}
                }
            }
            seen += 1;
            if ids == 1_000 {
                ids = 0;
                let call = unary.call(&ack, finish(&mut body));
                calls.push(async move {
                    let mut answer = call.await.expect("well");
                    while answer.message().await.is_some() {}
                });
            }
        }
    }
    assert!(bytes > 0);
}

async fn source(address: &str, messages: u64) {
    let kit = TestContext::new("source");
    let out = NonZeroU64::new(OUT).expect("not zero");
    let options = SubscriberOptions::new()
        .flow_control_max_outstanding_element_count(out)
        .flow_control_max_outstanding_request_bytes(ByteSize::mib(1_024));
    let source = PubSubSource::<usize>::builder()
        .subscription(SubscriptionDestination::new("p", "s").expect("valid"))
        .deserializer(
            |message: &ReceivedMessage,
             _: &SubscriptionDestination,
             out: &mut Collector<'_, usize>| {
                out.emit(message.data().len());
                Ok(())
            },
        )
        .subscriber_options(options)
        .emulator_endpoint(address)
        .build()
        .expect("valid");
    let mut reader = source.create_reader(kit.subtask(0, 1)).expect("a reader");
    let split = SubscriptionSplit {
        subscription: SubscriptionDestination::new("p", "s").expect("valid"),
        uid: 0,
        ack_deadline_seconds: 10,
    };
    reader
        .add_splits(vec![Split {
            id: SplitId::new("0"),
            state: split.encode(),
        }])
        .expect("a split");
    let (mut seen, mut bytes, mut checkpoint, mut since) = (0, 0, 0, 0);
    while seen < messages {
        let output = poll_fn(|cx| reader.poll_next(cx)).await.expect("well");
        let ReaderOutput::Batch(batch) = output else {
            continue;
        };
        let records = batch.records.len();
        bytes += batch
            .records
            .iter()
            .map(|record| record.value)
            .sum::<usize>();
        reader.emitted(records);
        seen += records as u64;
        since += records;
        // A checkpoint for about every 1,000 messages.
        if since >= 1_000 {
            since = 0;
            checkpoint += 1;
            reader.snapshot(CheckpointId(checkpoint)).expect("well");
            reader
                .checkpoint_completed(CheckpointId(checkpoint))
                .expect("well");
        }
    }
    poll_fn(|cx| reader.poll_close(cx)).await.expect("closes");
    assert!(bytes > 0);
}
