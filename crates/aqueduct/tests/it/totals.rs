//! PS-ACC-01: hourly totals from Pub/Sub to Pub/Sub, to the byte.
//!
//! The emulator sets publish times itself. There the time of an order stands in an attribute, from which the deserializer
//! takes it; everything else is the same function.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aqueduct::connector::source::Collector;
use aqueduct::connector::{Result, Timestamp};
use aqueduct::pubsub::source::metrics;
use aqueduct::pubsub::{PubSubSink, PubSubSource, ReceivedMessage, SubscriptionDestination};
use aqueduct::runtime::{Job, JobConfig, JobEnd, JobHandle};
use aqueduct_testkit::until;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;

use crate::party::{LIMIT, PROJECT, Party, message, subscription, topic};
use crate::pipeline::{Order, Total, hourly_totals};

/// 2026-08-21T00:00:00Z, in nanoseconds.
const MIDNIGHT: u64 = 1_787_270_400_000_000_000;
/// A checkpoint that does not come by itself.
const NEVER: Duration = Duration::from_secs(86_400);

/// One order of the table: nanoseconds since midnight, customer, amount.
pub(crate) type Row = (u64, &'static str, i64);

const fn at(hour: u64, minute: u64, second: u64, nanos: u64) -> u64 {
    (hour * 3_600 + minute * 60 + second) * 1_000_000_000 + nanos
}

/// In the order of arrival. The eighth comes when the hour it belongs to has been told.
pub(crate) const ORDERS: [Row; 9] = [
    (at(9, 59, 59, 999_999_999), "c1", 5),
    (at(10, 0, 0, 0), "c1", 20),
    (at(10, 15, 30, 500_000_000), "c2", 7),
    (at(10, 59, 59, 999_000_000), "c1", 30),
    (at(11, 0, 3, 0), "c2", 11),
    (at(10, 59, 58, 0), "c1", 4),
    (at(11, 0, 5, 0), "c3", 9),
    (at(10, 59, 59, 0), "c2", 100),
    (at(12, 0, 5, 0), "c1", 1),
];

/// Payload and attribute of every total.
pub(crate) const TOTALS: [(&str, &str); 5] = [
    (
        r#"{"customer_id":"c1","total":5}"#,
        "2026-08-21 09:00:00.000",
    ),
    (
        r#"{"customer_id":"c1","total":54}"#,
        "2026-08-21 10:00:00.000",
    ),
    (
        r#"{"customer_id":"c2","total":11}"#,
        "2026-08-21 11:00:00.000",
    ),
    (
        r#"{"customer_id":"c2","total":7}"#,
        "2026-08-21 10:00:00.000",
    ),
    (
        r#"{"customer_id":"c3","total":9}"#,
        "2026-08-21 11:00:00.000",
    ),
];

/// When an order of the table was published.
pub(crate) fn publish_time(since_midnight: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(MIDNIGHT + since_midnight)
}

pub(crate) fn json((_, customer, amount): Row) -> String {
    format!(r#"{{"order_id":"o","customer_id":"{customer}","amount":{amount},"channel":"mobile"}}"#)
}

/// Where an order's time is from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Times {
    Published,
    /// Milliseconds in the attribute `at`.
    Attribute,
}

async fn publish(party: &Party, times: Times, row: Row) {
    let data = json(row);
    match (times, party.sim()) {
        (Times::Published, Some(sim)) => {
            let orders = sim.pubsub().topic(PROJECT, "incoming-orders");
            orders.publish_at(message(&data, &[]), publish_time(row.0));
        }
        (Times::Published, None) => panic!("only the simulation takes publish times"),
        (Times::Attribute, _) => {
            let millis = ((MIDNIGHT + row.0) / 1_000_000).to_string();
            party
                .publish("incoming-orders", &data, &[("at", &millis)])
                .await;
        }
    }
}

/// The pipeline's own deserializer, with the time from the attribute.
fn read_dated(
    received: &ReceivedMessage,
    from: &SubscriptionDestination,
    out: &mut Collector<'_, Order>,
) -> Result<()> {
    let at = received.attribute("at").and_then(|text| text.parse().ok());
    let at = Timestamp::from_millis(at.expect("the test gives a time"));
    let mut records = Vec::new();
    Order::read(received, from, &mut Collector::new(&mut records, None))?;
    for record in records {
        out.emit_at(record.value, at);
    }
    Ok(())
}

pub(crate) fn sink(endpoint: &str) -> PubSubSink<Total> {
    PubSubSink::builder()
        .topic(topic("customer-totals"))
        .serializer(Total::serializer())
        .emulator_endpoint(endpoint)
        .build()
        .expect("valid")
}

fn start(party: &Party, times: Times, checkpoints: &str, interval: Duration) -> JobHandle {
    let source = PubSubSource::builder().subscription(subscription("orders-sub"));
    let source = match times {
        Times::Published => source.deserializer(Order::read),
        Times::Attribute => source.deserializer(read_dated),
    };
    let source = source
        .emulator_endpoint(party.endpoint())
        .build()
        .expect("valid");
    let job = Job::new("hourly-totals");
    hourly_totals(&job, source, sink(&party.endpoint())).expect("valid windows");
    let config = JobConfig::builder()
        .checkpoint_dir(checkpoints)
        .checkpoint_interval(interval)
        .build()
        .expect("valid");
    job.start(config).expect("the job starts")
}

/// What came on the topic of totals, sorted; each has its attribute and nothing else beside the payload.
pub(crate) fn pairs(totals: &[pb::PubsubMessage]) -> Vec<(String, String)> {
    let mut pairs: Vec<_> = totals
        .iter()
        .map(|total| {
            assert!(total.ordering_key.is_empty());
            assert_eq!(total.attributes.len(), 1);
            let payload = String::from_utf8(total.data.to_vec()).expect("JSON");
            (payload, total.attributes["window-start"].clone())
        })
        .collect();
    pairs.sort();
    pairs
}

pub(crate) fn expected() -> Vec<(String, String)> {
    let owned = |(payload, start): (&str, &str)| (payload.to_owned(), start.to_owned());
    let mut expected = TOTALS.map(owned).to_vec();
    expected.sort();
    expected
}

/// Reads of the job's source, so far.
fn read(handle: &JobHandle) -> u64 {
    handle
        .progress()
        .first()
        .map_or(0, |orders| orders.records_out)
}

/// The whole case; with [`NEVER`] the only checkpoint is the one of the stop.
async fn exact_totals(party: Party, times: Times, interval: Duration) {
    for name in ["incoming-orders", "customer-totals"] {
        party.create_topic(name).await;
    }
    party
        .create_subscription("orders-sub", "incoming-orders")
        .await;
    party
        .create_subscription("totals-sub", "customer-totals")
        .await;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let checkpoints = directory.path().display().to_string();
    let handle = start(&party, times, &checkpoints, interval);
    let mut totals = Vec::new();
    for (nth, row) in ORDERS.into_iter().enumerate() {
        if nth == 7 {
            // The late one: the results of its hour have appeared.
            party.take_until("totals-sub", &mut totals, 3).await;
        }
        publish(&party, times, row).await;
        until(LIMIT, "an order to be read", || {
            read(&handle) == nth as u64 + 1
        })
        .await;
    }
    party.take_until("totals-sub", &mut totals, 5).await;
    let metric = |name| handle.metrics().total(name);
    assert_eq!(metric("numLateRecordsDropped"), 1);
    if interval == NEVER {
        assert_eq!(metric(metrics::MESSAGES_ACKED), 0, "nothing is covered yet");
    } else {
        until(LIMIT, "the acknowledgements", || {
            metric(metrics::MESSAGES_ACKED) == 9
        })
        .await;
    }
    handle.stop(None).await.expect("a last checkpoint");
    let report = handle.wait().await.expect("it ends well");
    assert!(matches!(report.end, JobEnd::Stopped { .. }), "{report:?}");
    assert_eq!(metric(metrics::MESSAGES_ACKED), 9);
    totals.extend(party.take("totals-sub").await);
    assert_eq!(pairs(&totals), expected(), "and nothing more");
    // Windows appear in time order.
    let starts: Vec<&String> = totals
        .iter()
        .map(|total| &total.attributes["window-start"])
        .collect();
    if party.sim().is_some() {
        assert!(starts.is_sorted(), "{starts:?}");
    }
    assert!(
        party.take("orders-sub").await.is_empty(),
        "every order is acknowledged, the late one included"
    );
}

#[tokio::test]
async fn hourly_totals_are_exact() {
    exact_totals(Party::simulated(), Times::Published, Duration::from_secs(1)).await;
}

#[tokio::test]
async fn no_order_is_acknowledged_before_a_checkpoint_covers_it() {
    exact_totals(Party::simulated(), Times::Published, NEVER).await;
}

#[tokio::test]
async fn hourly_totals_are_exact_with_times_from_the_message() {
    exact_totals(Party::simulated(), Times::Attribute, Duration::from_secs(1)).await;
}

#[tokio::test]
async fn hourly_totals_are_exact_on_the_official_emulator() {
    let Some(emulator) = Party::emulator() else {
        return;
    };
    exact_totals(emulator, Times::Attribute, Duration::from_secs(1)).await;
}

#[tokio::test]
async fn no_order_is_acknowledged_before_a_checkpoint_covers_it_on_the_official_emulator() {
    let Some(emulator) = Party::emulator() else {
        return;
    };
    exact_totals(emulator, Times::Attribute, NEVER).await;
}

/// Any order of arrival in which each order is less than 5 s behind the newest gives the same totals.
#[tokio::test]
async fn orders_within_their_lateness_may_come_in_any_order() {
    for seed in 0..3 {
        let party = Party::simulated();
        for name in ["incoming-orders", "customer-totals"] {
            party.create_topic(name).await;
        }
        party
            .create_subscription("orders-sub", "incoming-orders")
            .await;
        let mut rows: Vec<Row> = ORDERS.into_iter().filter(|row| row.2 != 100).collect();
        // Within 5 s of each other: the pairs 1, 2 and 5, 6, 7 and the fourth of the table.
        let mut random = fastrand::Rng::with_seed(seed);
        random.shuffle(&mut rows[0..2]);
        random.shuffle(&mut rows[3..6]);
        let sim = party.sim().expect("simulated");
        let orders = sim.pubsub().topic(PROJECT, "incoming-orders");
        for row in rows {
            orders.publish_at(message(&json(row), &[]), publish_time(row.0));
        }
        let checkpoints = format!("memory://any-order-{seed}/checkpoints");
        let handle = start(&party, Times::Published, &checkpoints, NEVER);
        let totals = sim.pubsub().topic(PROJECT, "customer-totals");
        totals
            .wait_until(LIMIT, |totals| totals.published() >= 5)
            .await
            .expect("five totals");
        handle.stop(None).await.expect("a last checkpoint");
        handle.wait().await.expect("it ends well");
        assert_eq!(pairs(&totals.messages()), expected(), "seed {seed}");
    }
}
