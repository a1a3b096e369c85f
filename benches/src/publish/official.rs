//! The official client's publisher under the same load as the sink and the raw loops.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::client::Publisher;
use google_cloud_pubsub::model::Message;
use tokio::time::{MissedTickBehavior, interval};

use super::{Load, payload};

async fn publisher(endpoint: &str, topic: &str, load: Load) -> Publisher {
    Publisher::builder(topic)
        .with_endpoint(format!("http://{endpoint}"))
        .with_credentials(anonymous::Builder::new().build())
        .set_message_count_threshold(
            u32::try_from(load.batch).expect("a request has at most 1,000"),
        )
        .set_byte_threshold(1_000_000)
        .set_delay_threshold(Duration::from_millis(10))
        .build()
        .await
        .expect("the official publisher starts")
}

fn message(payload: &Bytes, number: u64) -> Message {
    let mut data = payload.to_vec();
    data[..8].copy_from_slice(&number.to_be_bytes());
    Message::new().set_data(data)
}

/// Publishes the load, with as many messages unanswered as the raw loops have. Returns the messages published.
///
/// # Panics
///
/// If a publish fails.
pub async fn official_loop(endpoint: &str, topic: &str, load: Load) -> u64 {
    let publisher = publisher(endpoint, topic, load).await;
    let payload = payload(load.payload_bytes);
    let most = load.batch * load.in_flight;
    let mut unanswered = VecDeque::with_capacity(most);
    let mut published = 0;
    for number in 0..load.messages {
        if unanswered.len() == most {
            let answer = unanswered.pop_front().expect("some are unanswered");
            let _: String = answer_of(answer).await;
            published += 1;
        }
        unanswered.push_back(publisher.publish(message(&payload, number)));
    }
    for answer in unanswered {
        let _: String = answer_of(answer).await;
        published += 1;
    }
    published
}

async fn answer_of<E: std::fmt::Debug>(answer: impl Future<Output = Result<String, E>>) -> String {
    answer.await.expect("the service accepts")
}

/// Publishes at `rate` messages a second; `answered` gets how long the last message of each millisecond took.
///
/// # Panics
///
/// If a publish fails.
pub async fn paced_official(
    endpoint: &str,
    topic: &str,
    load: Load,
    rate: u64,
    mut answered: impl FnMut(Duration),
) {
    let publisher = publisher(endpoint, topic, load).await;
    let payload = payload(load.payload_bytes);
    let mut ticks = interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let begun = Instant::now();
    let mut next = 0;
    let mut watched = Vec::new();
    while next < load.messages {
        let due = (begun.elapsed().as_micros() as u64 * rate / 1_000_000).min(load.messages);
        while next < due {
            let answer = publisher.publish(message(&payload, next));
            next += 1;
            if next == due {
                let handed_over = Instant::now();
                watched.push(tokio::spawn(async move {
                    answer.await.expect("the service accepts");
                    handed_over.elapsed()
                }));
            }
        }
        ticks.tick().await;
    }
    publisher.flush().await;
    for watched in watched {
        answered(watched.await.expect("a publish is awaited"));
    }
}
