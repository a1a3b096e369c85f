//! PS-ACC-02: what a message carries beside its payload, and selecting by it.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as PollContext, Poll};

use aqueduct::connector::sink::{Flush, RecordInfo, Sink, SinkWriter};
use aqueduct::connector::source::Collector;
use aqueduct::connector::{Context, Result, Timestamp, Versioned};
use aqueduct::pubsub::{PubSubSource, ReceivedMessage, SubscriptionDestination};
use aqueduct::runtime::{Job, JobConfig, WatermarkStrategy};
use aqueduct_testkit::until;

use crate::party::{LIMIT, PROJECT, Party, message, subscription};
use crate::pipeline::date_time;
use crate::totals::{ORDERS, json, publish_time};

/// The metadata of a message.
#[derive(Clone, Debug, PartialEq)]
struct Metadata {
    publish_time: Option<String>,
    /// Of the record, in milliseconds.
    event_time: Option<Timestamp>,
    attributes: Vec<(String, String)>,
    ordering_key: Option<String>,
    subscription: String,
}

fn read(
    received: &ReceivedMessage,
    from: &SubscriptionDestination,
    out: &mut Collector<'_, Metadata>,
) -> Result<()> {
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let mut attributes: Vec<_> = received.attributes().map(owned).collect();
    attributes.sort();
    out.emit(Metadata {
        publish_time: received.publish_time().map(date_time),
        event_time: None,
        attributes,
        ordering_key: received.ordering_key().map(str::to_owned),
        subscription: from.to_string(),
    });
    Ok(())
}

/// Keeps what it is given.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Metadata>>>);

impl Kept {
    fn all(&self) -> Vec<Metadata> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Sink<Metadata> for Kept {
    fn connector(&self) -> &'static str {
        "kept"
    }

    fn create_writer(
        &self,
        _: Context,
        _: Vec<Versioned>,
    ) -> Result<Box<dyn SinkWriter<Metadata>>> {
        Ok(Box::new(self.clone()))
    }
}

impl SinkWriter<Metadata> for Kept {
    fn poll_ready(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn write(&mut self, record: Metadata, info: RecordInfo) -> Result<()> {
        let event_time = info.timestamp;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(Metadata {
            event_time,
            ..record
        });
        Ok(())
    }

    fn poll_progress(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Pending
    }

    fn poll_flush(&mut self, _: &mut PollContext<'_>, _: Flush) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The messages of `orders-sub` for which `keep` holds, out of `count`.
async fn select(
    party: &Party,
    count: u64,
    keep: impl Fn(&Metadata) -> bool + Send + Sync + 'static,
) -> Vec<Metadata> {
    let source = PubSubSource::builder()
        .subscription(subscription("orders-sub"))
        .deserializer(read)
        .emulator_endpoint(party.endpoint())
        .build()
        .expect("valid");
    let kept = Kept::default();
    let job = Job::new("select");
    job.from_source("orders", source, WatermarkStrategy::none())
        .filter("where", keep)
        .sink_to("kept", kept.clone());
    // Nothing is acknowledged, so that the next selection finds the same.
    let config = JobConfig::builder().build().expect("valid");
    let handle = job.start(config).expect("the job starts");
    until(LIMIT, "the messages to be judged", || {
        handle
            .progress()
            .iter()
            .any(|operator| operator.name == "where" && operator.records_in == count)
    })
    .await;
    handle.cancel();
    handle.wait().await.expect("a cancel is no failure");
    kept.all()
}

async fn prepare(party: &Party) {
    party.create_topic("incoming-orders").await;
    party
        .create_subscription("orders-sub", "incoming-orders")
        .await;
}

#[tokio::test]
async fn a_message_without_attributes_and_key_has_its_time_and_its_subscription() {
    let party = Party::simulated();
    prepare(&party).await;
    let sim = party.sim().expect("simulated");
    let orders = sim.pubsub().topic(PROJECT, "incoming-orders");
    orders.publish_at(message(&json(ORDERS[0]), &[]), publish_time(ORDERS[0].0));
    let found = select(&party, 1, |_| true).await;
    assert_eq!(
        found,
        [Metadata {
            // 09:59:59.999999999, rounded down.
            publish_time: Some("2026-08-21 09:59:59.999".to_owned()),
            event_time: Some(Timestamp::from_millis(1_787_306_399_999)),
            attributes: Vec::new(),
            ordering_key: None,
            subscription: "projects/my-project/subscriptions/orders-sub".to_owned(),
        }]
    );
}

async fn selections(party: Party) {
    prepare(&party).await;
    for (data, attributes) in [
        ("a", &[("channel", "mobile")][..]),
        ("b", &[("channel", "web")]),
        ("c", &[]),
        ("d", &[("channel", "mobile"), ("tenant", "t")]),
    ] {
        party.publish("incoming-orders", data, attributes).await;
    }
    let bears = |name: &'static str, value: &'static str| {
        move |found: &Metadata| {
            let mut attributes = found.attributes.iter();
            attributes.any(|(n, v)| n == name && v == value)
        }
    };
    let mobile = select(&party, 4, bears("channel", "mobile")).await;
    let mut sizes: Vec<usize> = mobile.iter().map(|one| one.attributes.len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 2], "{mobile:?}");
    // The subscription is a resource name, which no plain name equals.
    let plain = select(&party, 4, |found| found.subscription == "orders-sub").await;
    assert_eq!(plain, []);
    let full = select(&party, 4, |found| {
        found.subscription == "projects/my-project/subscriptions/orders-sub"
    });
    assert_eq!(full.await.len(), 4);
}

#[tokio::test]
async fn messages_are_selected_by_attribute_and_by_the_full_name_of_their_subscription() {
    selections(Party::simulated()).await;
}

#[tokio::test]
async fn messages_are_selected_so_on_the_official_emulator() {
    let Some(emulator) = Party::emulator() else {
        return;
    };
    selections(emulator).await;
}
