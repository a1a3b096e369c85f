//! PS-ACC-05: one stream to topics that its records choose, one of them unseen before.

use std::collections::BTreeMap;
use std::time::Duration;

use aqueduct::connector::source::Collector;
use aqueduct::pubsub::{
    PubSubSerializer, PubSubSink, PubSubSource, ReceivedMessage, SubscriptionDestination,
    TopicCreateOptions, TopicDestination,
};
use aqueduct::runtime::{Job, JobConfig, WatermarkStrategy};
use aqueduct_sim::Method;

use crate::party::{PROJECT, Party, subscription};

/// Seven days.
const RETENTION: Duration = Duration::from_secs(7 * 86_400);

/// A message as it came, for the resolver to look at.
#[derive(Clone, Debug)]
struct Event {
    data: Vec<u8>,
    attributes: BTreeMap<String, String>,
}

fn read(
    received: &ReceivedMessage,
    _: &SubscriptionDestination,
    out: &mut Collector<'_, Event>,
) -> aqueduct::connector::Result<()> {
    out.emit(Event {
        data: received.data().to_vec(),
        attributes: received
            .attributes()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    });
    Ok(())
}

async fn fan_out(party: Party) {
    for name in ["incoming-events", "orders-eu", "orders-us"] {
        party.create_topic(name).await;
    }
    for (name, to) in [
        ("events-sub", "incoming-events"),
        ("eu-sub", "orders-eu"),
        ("us-sub", "orders-us"),
    ] {
        party.create_subscription(name, to).await;
    }
    let source = PubSubSource::builder()
        .subscription(subscription("events-sub"))
        .deserializer(read)
        .emulator_endpoint(party.endpoint())
        .build()
        .expect("valid");
    // The emulator keeps no topic settings.
    let mut settings = TopicCreateOptions::new();
    if party.sim().is_some() {
        settings = settings.message_retention(RETENTION);
    }
    let sink = PubSubSink::builder()
        .destination_resolver(|event: &Event, _| {
            let region = event.attributes.get("region").map_or("", String::as_str);
            TopicDestination::new(PROJECT, &format!("orders-{region}")).map(Some)
        })
        .serializer(
            PubSubSerializer::payload(|event: &Event, data: &mut Vec<u8>| {
                data.extend_from_slice(&event.data);
                Ok::<_, std::convert::Infallible>(())
            })
            .with_attributes(|event, attributes| {
                attributes.put("tenant", &event.attributes["tenant"]);
                Ok::<_, std::convert::Infallible>(())
            }),
        )
        .topic_create_options(settings)
        .emulator_endpoint(party.endpoint())
        .build()
        .expect("valid");
    let job = Job::new("fan-out");
    job.from_source("events", source, WatermarkStrategy::none())
        .sink_to("orders", sink);
    let name = match party.sim() {
        Some(_) => "memory://fan-out-simulated/checkpoints",
        None => "memory://fan-out-emulator/checkpoints",
    };
    let config = JobConfig::builder()
        .checkpoint_dir(name)
        .checkpoint_interval(Duration::from_millis(200))
        .build()
        .expect("valid");
    let handle = job.start(config).expect("the job starts");

    let publish = async |regions: &[&str], prefix: &str, count: usize| {
        for region in regions {
            for nth in 0..count {
                let (data, tenant) = (format!("{prefix}{nth}"), format!("tenant-{nth}"));
                let attributes = [("region", *region), ("tenant", tenant.as_str())];
                party.publish("incoming-events", &data, &attributes).await;
            }
        }
    };
    publish(&["eu", "us"], "m", 5).await;
    let check = async |from: &str, prefix: &str, count: usize| {
        let mut found: Vec<(String, BTreeMap<String, String>)> = Vec::new();
        while found.len() < count {
            let mut taken = Vec::new();
            party.take_until(from, &mut taken, 1).await;
            found.extend(taken.into_iter().filter_map(|one| {
                let data = String::from_utf8(one.data.to_vec()).expect("text");
                // The first order of a new topic may be published before or after somebody subscribes.
                let counts = data.starts_with(prefix);
                counts.then(|| (data, one.attributes.into_iter().collect()))
            }));
        }
        found.sort();
        let expected: Vec<_> = (0..count)
            .map(|nth| {
                let tenant = ("tenant".to_owned(), format!("tenant-{nth}"));
                (format!("{prefix}{nth}"), BTreeMap::from([tenant]))
            })
            .collect();
        assert_eq!(found, expected, "{from}");
    };
    check("eu-sub", "m", 5).await;
    check("us-sub", "m", 5).await;

    // A region that nobody has seen: its topic comes with its first order, while the job runs.
    publish(&["ap"], "m", 1).await;
    party.topic_exists("orders-ap").await;
    party.create_subscription("ap-sub", "orders-ap").await;
    publish(&["ap"], "n", 5).await;
    check("ap-sub", "n", 5).await;
    handle.stop(None).await.expect("a last checkpoint");
    let report = handle.wait().await.expect("it ends well");
    assert_eq!(report.status.restarts, 0, "no redeploy");

    let Some(sim) = party.sim() else { return };
    let created = sim.pubsub().topic(PROJECT, "orders-ap");
    let retention = created
        .config()
        .and_then(|topic| topic.message_retention_duration)
        .expect("the settings of the sink");
    assert_eq!(retention.seconds, 604_800);
    let ours = |name: &str| {
        sim.pubsub()
            .topic(PROJECT, name)
            .requests()
            .into_iter()
            // Publishing is the sink's work, and looking is the test's.
            .filter(|request| ![Method::Publish, Method::GetTopic].contains(&request.method))
            .count()
    };
    // The test created these two; the job asked nothing about them.
    assert_eq!((ours("orders-eu"), ours("orders-us")), (1, 1));
    assert_eq!(ours("orders-ap"), 1);
    assert_eq!(created.published(), 6);
}

#[tokio::test]
async fn an_unseen_region_gets_its_topic_with_its_first_order() {
    fan_out(Party::simulated()).await;
}

#[tokio::test]
async fn an_unseen_region_gets_its_topic_on_the_official_emulator() {
    let Some(emulator) = Party::emulator() else {
        return;
    };
    fan_out(emulator).await;
}
