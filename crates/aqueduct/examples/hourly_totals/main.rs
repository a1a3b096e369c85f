//! Hourly totals from Pub/Sub to Pub/Sub, against a simulated service in this process.
//!
//! Publishes a few orders of one morning, sums them by customer and hour of their publish times, and prints what arrives on
//! the topic of totals. Run it with `cargo run -p aqueduct --example hourly_totals`.

#![allow(clippy::print_stdout, reason = "a program that people read")]

mod pipeline;

use std::error::Error;
use std::time::{Duration, SystemTime};

use aqueduct::pubsub::{PubSubSink, PubSubSource, SubscriptionDestination, TopicDestination};
use aqueduct::runtime::{Job, JobConfig};
use aqueduct_sim::{Sim, SimConfig};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;

use pipeline::{Order, Total, hourly_totals};

/// 2026-08-21T00:00:00Z.
const MIDNIGHT: u64 = 1_787_270_400;
const LIMIT: Duration = Duration::from_secs(60);

/// Hour, minute and second of publishing, customer, amount. The last one is there to move event time on.
const ORDERS: [(u64, u64, u64, &str, i64); 6] = [
    (9, 59, 59, "c1", 5),
    (10, 0, 0, "c1", 20),
    (10, 15, 30, "c2", 7),
    (10, 59, 59, "c1", 30),
    (10, 59, 58, "c1", 4),
    (11, 0, 5, "c3", 9),
];

fn main() -> Result<(), Box<dyn Error>> {
    // The service. With the real one, leave this out and `emulator_endpoint` below too.
    let sim = Sim::start_on_thread(SimConfig::default())?;
    let (orders, totals) = (
        sim.pubsub().create_topic("my-project", "orders"),
        sim.pubsub().create_topic("my-project", "customer-totals"),
    );
    let subscription = sim
        .pubsub()
        .create_subscription("my-project", "orders-sub", &orders);
    subscription.set_shuffle(None);
    for (hour, minute, second, customer, amount) in ORDERS {
        let at = Duration::from_secs(MIDNIGHT + hour * 3_600 + minute * 60 + second);
        let order = PubsubMessage {
            data: format!(r#"{{"customer_id":"{customer}","amount":{amount}}}"#)
                .into_bytes()
                .into(),
            ..PubsubMessage::default()
        };
        orders.publish_at(order, SystemTime::UNIX_EPOCH + at);
    }

    // The job.
    let source = PubSubSource::builder()
        .subscription(SubscriptionDestination::new("my-project", "orders-sub")?)
        .deserializer(Order::read)
        .emulator_endpoint(sim.endpoint())
        .build()?;
    let sink = PubSubSink::builder()
        .topic(TopicDestination::new("my-project", "customer-totals")?)
        .serializer(Total::serializer())
        .emulator_endpoint(sim.endpoint())
        .build()?;
    let job = Job::new("hourly-totals");
    hourly_totals(&job, source, sink)?;
    let config = JobConfig::builder()
        .checkpoint_dir("memory://hourly-totals/checkpoints")
        .checkpoint_interval(Duration::from_secs(1))
        .build()?;
    let handle = job.start(config)?;

    // It has no end of its own: when the totals of both hours are there, it is stopped with a last checkpoint.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        totals
            .wait_until(LIMIT, |totals| totals.published() == 3)
            .await?;
        handle.stop(None).await?;
        handle.wait().await?;
        Ok::<_, Box<dyn Error>>(())
    })?;
    for total in totals.messages() {
        println!(
            "{}  {}",
            total.attributes["window-start"],
            String::from_utf8_lossy(&total.data)
        );
    }
    println!("{} orders left unacknowledged", subscription.backlog());
    Ok(())
}
