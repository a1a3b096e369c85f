//! Tables against Google's own emulator: an independent party for the round trip, with nothing but tables.

use aqueduct_connector::row::Row;
use aqueduct_pubsub::source::metrics;
use aqueduct_testkit::emulator::require_pubsub;
use aqueduct_testkit::{SourceHost, TestContext, until, within};

use super::source_support::LIMIT;
use super::table_world::*;

/// What was read beside the probes.
fn rest(host: &SourceHost<Row>) -> Vec<Read> {
    let mut all = emitted(host);
    all.retain(|read| read.payload != "probe");
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_table_writes_to_the_official_emulator_a_table_reads() {
    let Some(emulator) = require_pubsub() else {
        return;
    };
    let endpoint = emulator.endpoint();
    let sink = statement(
        &endpoint,
        "my-project",
        &[
            ("topic", "orders"),
            ("sink.message-ordering.enabled", "true"),
        ],
    );
    let source = statement(
        &endpoint,
        "my-project",
        &[
            ("subscription", "orders-sub"),
            ("scan.auto-create.topics", "orders-sub:orders"),
            ("scan.deserialization-failure-policy", "drop"),
        ],
    );
    let kit = TestContext::new("sink").with_limit(2 * LIMIT);
    let mut writer = write(&sink, &kit, 1);
    // Creates the topic, and another one for a row that names it.
    writer
        .write_all(rows(&[
            Write::new("first"),
            Write::new("other").topic("orders-ap"),
        ]))
        .await
        .expect("well");
    writer.checkpoint().await.expect("created and published");

    let kit = TestContext::new("source").with_limit(2 * LIMIT);
    let mut host = read(&source, &kit, 1);
    // Nothing that is published before the subscription exists is read.
    let probes = async {
        while host.emitted_count() == 0 {
            let probe = rows(&[Write::new("probe")]);
            writer.write_all(probe).await.expect("well");
            writer.checkpoint().await.expect("published");
            for _ in 0..100 {
                host.try_step().await.expect("well");
            }
        }
    };
    within(LIMIT, "the subscription", probes).await;
    writer
        .write_all(rows(&[
            Write::new("{\"amount\":20}")
                .attribute("channel", "mobile")
                .attribute("note", "longer than a slot")
                .key("c1"),
            Write::new("bad"),
            Write::new("{}"),
        ]))
        .await
        .expect("well");
    writer.checkpoint().await.expect("published");
    step_until(
        &mut host,
        "both rows, and the third dropped",
        |host| {
            let dropped = kit.registry().total(metrics::MESSAGES_DROPPED);
            rest(host).len() == 2 && dropped == 1
        },
        || (),
    )
    .await;
    let mut read = rest(&host);
    read.sort_by(|a, b| a.payload.cmp(&b.payload));
    assert_eq!(read[0].payload, "{\"amount\":20}");
    assert_eq!(read[0].attributes["channel"], "mobile");
    assert_eq!(read[0].attributes["note"], "longer than a slot");
    assert_eq!(read[0].attributes.len(), 2);
    assert_eq!(read[0].key.as_deref(), Some("c1"));
    assert_eq!((read[1].payload.as_str(), &read[1].key), ("{}", &None));
    assert!(read[1].attributes.is_empty());
    for read in &read {
        assert_eq!(
            read.subscription,
            "projects/my-project/subscriptions/orders-sub"
        );
        assert!(!read.id.is_empty());
        assert_eq!(read.attempt, None);
        // Within a day of this machine's clock.
        let now = kit.clock().wall().millis();
        assert!((now - read.published_millis).abs() < 86_400_000);
    }
    assert_ne!(read[0].id, read[1].id);
    host.checkpoint().await.expect("checkpoints");
    let handled = host.emitted_count() as i128 + 1;
    until(LIMIT, "all acks, the dropped one's too", || {
        kit.registry().total(metrics::MESSAGES_ACKED) >= handled
    })
    .await;
    host.close().await.expect("closes");
    writer.finish().await.expect("well");
}
