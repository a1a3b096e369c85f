//! The hourly totals of an order stream: Pub/Sub to Pub/Sub in SQL, with the exact results (PS-ACC-01 to 05).

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use aqueduct_sim::{Method, Sim, SimConfig, Subscription, Topic};
use aqueduct_testkit::flink::{Cluster, JobId, Session, Version, require_jar};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;

use crate::clusters::on;

const PROJECT: &str = "my-project";

/// The statements of the reference pipeline, word for word; the tests add where the service is.
const TABLES: &str = "
CREATE TABLE incoming_orders (
  order_id     STRING,
  customer_id  STRING,
  amount       INT,
  message_id   STRING              METADATA FROM 'message-id'   VIRTUAL,
  publish_time TIMESTAMP_LTZ(3)    METADATA FROM 'publish-time' VIRTUAL,
  attrs        MAP<STRING, STRING> METADATA FROM 'attributes'   VIRTUAL,
  ordering_key STRING              METADATA FROM 'ordering-key' VIRTUAL,
  subscription STRING              METADATA FROM 'subscription' VIRTUAL,
  WATERMARK FOR publish_time AS publish_time - INTERVAL '5' SECOND
) WITH (
  'connector'    = 'pubsub',
  'project'      = 'my-project',
  'subscription' = 'orders-sub',
  'format'       = 'json'
);
CREATE TABLE customer_totals (
  customer_id STRING,
  total       INT,
  attrs       MAP<STRING, STRING> METADATA FROM 'attributes'
) WITH (
  'connector' = 'pubsub',
  'project'   = 'my-project',
  'topic'     = 'customer-totals',
  'format'    = 'json'
);
";

const INSERT: &str = "
INSERT INTO customer_totals
SELECT customer_id,
       CAST(SUM(amount) AS INT),
       MAP['window-start', CAST(window_start AS STRING)]
FROM TABLE(TUMBLE(TABLE incoming_orders, DESCRIPTOR(publish_time), INTERVAL '1' HOUR))
GROUP BY window_start, window_end, customer_id;
";

/// Time of day on 2026-08-21 in nanoseconds, customer, amount.
type Order = (u64, &'static str, i32);

const SECOND: u64 = 1_000_000_000;
const MILLI: u64 = 1_000_000;

const fn at(hour: u64, minute: u64, second: u64) -> u64 {
    (hour * 3_600 + minute * 60 + second) * SECOND
}

/// In the order of delivery. The one before the last is sent when the results of 10:00 are out, and is late.
const ORDERS: [Order; 9] = [
    (at(9, 59, 59) + 999_999_999, "c1", 5),
    (at(10, 0, 0), "c1", 20),
    (at(10, 15, 30) + 500 * MILLI, "c2", 7),
    (at(10, 59, 59) + 999 * MILLI, "c1", 30),
    (at(11, 0, 3), "c2", 11),
    (at(10, 59, 58), "c1", 4),
    (at(11, 0, 5), "c3", 9),
    (at(10, 59, 59), "c2", 100),
    (at(12, 0, 5), "c1", 1),
];

/// Payload and start of the window, in the order of the windows.
const TOTALS: [(&str, &str); 5] = [
    (
        r#"{"customer_id":"c1","total":5}"#,
        "2026-08-21 09:00:00.000",
    ),
    (
        r#"{"customer_id":"c1","total":54}"#,
        "2026-08-21 10:00:00.000",
    ),
    (
        r#"{"customer_id":"c2","total":7}"#,
        "2026-08-21 10:00:00.000",
    ),
    (
        r#"{"customer_id":"c2","total":11}"#,
        "2026-08-21 11:00:00.000",
    ),
    (
        r#"{"customer_id":"c3","total":9}"#,
        "2026-08-21 11:00:00.000",
    ),
];

/// The service grants none that is longer.
const LONGEST_LEASE: Duration = Duration::from_secs(601);

/// 2026-08-21T00:00:00Z in seconds.
const DAY: u64 = 1_787_270_400;

struct World {
    sim: Sim,
    orders: Topic,
    subscription: Subscription,
    totals: Topic,
}

impl World {
    fn new() -> Self {
        let sim = Sim::start_on_thread(SimConfig::default()).expect("a port");
        let orders = sim.pubsub().create_topic(PROJECT, "orders");
        let subscription = sim
            .pubsub()
            .create_subscription(PROJECT, "orders-sub", &orders);
        // The results below depend on which order is late, so the service keeps to the order of publishing.
        subscription.set_shuffle(None);
        let totals = sim.pubsub().create_topic(PROJECT, "customer-totals");
        Self {
            sim,
            orders,
            subscription,
            totals,
        }
    }

    /// Statements, each table told where the service is.
    fn located(&self, statements: &str) -> String {
        statements.replace(
            "'pubsub',",
            &format!("'pubsub', 'emulator-endpoint' = '{}',", self.sim.endpoint()),
        )
    }

    fn publish(&self, order: usize) -> String {
        let (nanos, customer, amount) = ORDERS[order];
        let body =
            format!(r#"{{"order_id":"{order}","customer_id":"{customer}","amount":{amount}}}"#);
        self.orders.publish_at(
            PubsubMessage {
                data: body.into_bytes().into(),
                ..PubsubMessage::default()
            },
            SystemTime::UNIX_EPOCH + Duration::from_secs(DAY) + Duration::from_nanos(nanos),
        )
    }

    /// Payload and start of the window of each message on the topic of totals.
    fn results(&self) -> Vec<(String, String)> {
        self.totals
            .messages()
            .into_iter()
            .map(|message| {
                assert_eq!(message.ordering_key, "");
                assert_eq!(message.attributes.len(), 1);
                let window = message
                    .attributes
                    .get("window-start")
                    .expect("the attribute of the query");
                (text(&message), window.clone())
            })
            .collect()
    }

    fn wait_for_results(&self, cluster: &Cluster, job: &JobId, count: usize) {
        cluster.wait_for("results", || {
            assert_running(cluster, job);
            (self.results().len() >= count).then_some(())
        });
    }

    /// From here on the service's clock stands still, so that leases end when [`forget_the_dead`](Self::forget_the_dead) says so.
    fn stop_clock(&self) {
        let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(DAY + 13 * 3_600);
        self.sim.pubsub().stop_clock(noon);
    }

    /// What a reader that was killed held is given to another, as if a minute and more had passed.
    fn forget_the_dead(&self) {
        self.sim.pubsub().advance(LONGEST_LEASE);
    }

    fn publish_all(&self, orders: Range<usize>) -> Vec<String> {
        orders.map(|order| self.publish(order)).collect()
    }

    /// Waits until each message was delivered so often.
    fn wait_for_deliveries(&self, cluster: &Cluster, ids: &[String], times: u32) {
        cluster.wait_for("deliveries", || {
            ids.iter()
                .all(|id| self.subscription.deliveries(id) >= times)
                .then_some(())
        });
    }

    /// Waits until a total of each customer is there for a window that begins at this hour.
    fn wait_for_hour(&self, cluster: &Cluster, job: &JobId, hour: &str, customers: usize) {
        cluster.wait_for("the totals of an hour", || {
            assert_running(cluster, job);
            let results = self.results();
            let of_hour = results.iter().filter(|(_, window)| window.contains(hour));
            (of_hour.count() >= customers).then_some(())
        });
    }

    /// Acknowledgements follow a checkpoint that covers the message: the first or a later one.
    fn checkpoint_until_acked(&self, cluster: &Cluster, job: &JobId, ids: &[String]) {
        cluster.wait_for("acknowledgements", || {
            cluster.checkpoint(job);
            ids.iter()
                .all(|id| self.subscription.is_acked(id))
                .then_some(())
        });
    }

    fn wait_until_acked(&self, cluster: &Cluster, ids: &[String]) {
        cluster.wait_for("acknowledgements", || {
            ids.iter()
                .all(|id| self.subscription.is_acked(id))
                .then_some(())
        });
    }
}

fn text(message: &PubsubMessage) -> String {
    String::from_utf8(message.data.to_vec()).expect("JSON")
}

/// A job that is over while a test waits for its effects has its reason shown.
fn assert_running(cluster: &Cluster, job: &JobId) {
    if cluster.state(job).is_some_and(|state| state.is_final()) {
        cluster.fail(&format!("the job is over: {:?}", cluster.failures(job)));
    }
}

fn session<'a>(cluster: &'a Cluster, jar: &std::path::Path) -> Session<'a> {
    cluster
        .session()
        .jar(jar)
        .set("table.local-time-zone", "UTC")
        .set("parallelism.default", "1")
        .set("execution.checkpointing.interval", "1s")
}

fn expected() -> Vec<(String, String)> {
    TOTALS
        .iter()
        .map(|(payload, window)| ((*payload).to_owned(), (*window).to_owned()))
        .collect()
}

/// PS-ACC-01.
fn hourly_totals_are_exact(cluster: &Cluster) {
    let Some(jar) = require_jar("pubsub") else {
        return; // reported as not run
    };
    let world = World::new();
    let output = session(cluster, &jar).run(&world.located(&format!("{TABLES}{INSERT}")));
    let job = output.job();
    let mut ids: Vec<String> = (0..7).map(|order| world.publish(order)).collect();
    world.wait_for_results(cluster, job, 3);
    ids.extend((7..9).map(|order| world.publish(order)));
    world.wait_for_results(cluster, job, 5);
    world.wait_until_acked(cluster, &ids);
    let mut results = world.results();
    let windows: Vec<&str> = results.iter().map(|(_, window)| window.as_str()).collect();
    assert!(windows.is_sorted(), "windows come in order: {windows:?}");
    results.sort_by(|a, b| (&a.1, &a.0).cmp(&(&b.1, &b.0)));
    assert_eq!(results, expected());
    assert_eq!(cluster.failures(job), Vec::<String>::new());
    cluster.cancel(job);
}

/// Checkpoints only when the test takes them.
///
/// Restarts are those of the cluster, many: while the JobManager finds out which TaskManagers are left, each attempt that finds
/// no slot counts as one, and ten are used up within four seconds.
fn by_hand<'a>(cluster: &'a Cluster, jar: &std::path::Path) -> Session<'a> {
    session(cluster, jar).set("execution.checkpointing.interval", "1d")
}

/// Kills the TaskManager that runs the job, with the other one at hand, and waits until the job goes on there.
fn kill_where_it_runs(cluster: &Cluster, job: &JobId) {
    let restored = cluster.checkpoints(job).restored;
    for number in cluster.task_managers_of(job) {
        cluster.kill_task_manager(number);
    }
    cluster.wait_for("a restore", || {
        (cluster.checkpoints(job).restored > restored).then_some(())
    });
    cluster.wait_for_tasks(job);
}

/// PS-ACC-03: killed when a checkpoint has acknowledged the first four and none covers the next two.
fn a_killed_task_manager_loses_nothing(cluster: &Cluster) {
    let Some(jar) = require_jar("pubsub") else {
        return; // reported as not run
    };
    let world = World::new();
    world.stop_clock();
    let output = by_hand(cluster, &jar).run(&world.located(&format!("{TABLES}{INSERT}")));
    let job = output.job();
    let covered = world.publish_all(0..4);
    world.checkpoint_until_acked(cluster, job, &covered);
    let mut open = world.publish_all(4..6);
    world.wait_for_deliveries(cluster, &open, 1);
    kill_where_it_runs(cluster, job);
    assert_eq!(world.subscription.unacked(), open);

    world.forget_the_dead();
    world.wait_for_deliveries(cluster, &open, 2);
    open.push(world.publish(6));
    world.wait_for_hour(cluster, job, " 10:", 2);
    open.extend(world.publish_all(7..9));
    world.wait_for_hour(cluster, job, " 11:", 2);
    world.checkpoint_until_acked(cluster, job, &open);
    for id in &covered {
        assert_eq!(world.subscription.deliveries(id), 1, "it was acknowledged");
    }
    let mut results = world.results();
    results.sort_by(|a, b| (&a.1, &a.0).cmp(&(&b.1, &b.0)));
    // The sink may repeat what it wrote since the checkpoint.
    results.dedup();
    assert_eq!(results, expected());
    cluster.cancel(job);
}

/// PS-ACC-03: killed between the end of a checkpoint and the acknowledgements that follow it. What it covers is counted
/// twice at most, and nothing is missing.
fn a_kill_before_acknowledgements_misses_nothing(cluster: &Cluster) {
    let Some(jar) = require_jar("pubsub") else {
        return; // reported as not run
    };
    let world = World::new();
    world.stop_clock();
    let unheard = world.subscription.always(Method::Acknowledge).silent();
    let output = by_hand(cluster, &jar).run(&world.located(&format!("{TABLES}{INSERT}")));
    let job = output.job();
    let mut ids = world.publish_all(0..4);
    cluster.wait_for("acknowledgements that nobody hears", || {
        cluster.checkpoint(job);
        let asked = world.subscription.requests_of(Method::Acknowledge);
        let ids: usize = asked.iter().map(|request| request.entries).sum();
        (ids >= 4).then_some(())
    });
    kill_where_it_runs(cluster, job);
    unheard.remove();
    assert_eq!(world.subscription.unacked(), ids);

    world.forget_the_dead();
    world.wait_for_deliveries(cluster, &ids, 2);
    ids.extend(world.publish_all(4..7));
    world.wait_for_hour(cluster, job, " 10:", 2);
    ids.extend(world.publish_all(7..9));
    world.wait_for_hour(cluster, job, " 11:", 2);
    world.checkpoint_until_acked(cluster, job, &ids);
    // Excess comes from the first four alone: 5 at 9 o'clock; 20, 30 and 7 at 10.
    let allowed = [
        (" 09:", "c1", [5, 10]),
        (" 10:", "c1", [54, 104]),
        (" 10:", "c2", [7, 14]),
        (" 11:", "c2", [11, 11]),
        (" 11:", "c3", [9, 9]),
    ];
    let results = world.results();
    let fits = |(payload, window): &(String, String), total: &(&str, &str, [i32; 2])| {
        let (hour, customer, totals) = total;
        let payload_of = |total| format!(r#"{{"customer_id":"{customer}","total":{total}}}"#);
        window.contains(hour) && totals.iter().any(|total| *payload == payload_of(*total))
    };
    for total in &allowed {
        let found = results.iter().any(|result| fits(result, total));
        assert!(found, "{total:?} is missing in {results:?}");
    }
    for result in &results {
        let right = allowed.iter().any(|total| fits(result, total));
        assert!(right, "{result:?} is wrong");
    }
    cluster.cancel(job);
}

/// PS-ACC-02: metadata, and selecting by it.
fn metadata_is_what_the_message_bears(cluster: &Cluster) {
    let Some(jar) = require_jar("pubsub") else {
        return; // reported as not run
    };
    let world = World::new();
    let copies = world.sim.pubsub().create_topic(PROJECT, "copies");
    let mobile = world.sim.pubsub().create_topic(PROJECT, "mobile");
    let nowhere = world.sim.pubsub().create_topic(PROJECT, "nowhere");
    let sink = |name: &str| {
        format!(
            "CREATE TABLE {name} (published STRING, attrs MAP<STRING, STRING>, entries INT, ordering_key STRING,
               subscription STRING) WITH ('connector' = 'pubsub', 'project' = 'my-project', 'topic' = '{name}',
               'format' = 'json');"
        )
    };
    let insert = |name: &str, condition: &str| {
        format!(
            "INSERT INTO {name} SELECT CAST(publish_time AS STRING), attrs, CARDINALITY(attrs), ordering_key, subscription
             FROM incoming_orders WHERE {condition};"
        )
    };
    let script = [
        TABLES.to_owned(),
        sink("copies"),
        sink("mobile"),
        sink("nowhere"),
        "BEGIN STATEMENT SET;".to_owned(),
        insert("copies", "TRUE"),
        insert("mobile", "attrs['channel'] = 'mobile'"),
        insert("nowhere", "subscription = 'orders-sub'"),
        "END;".to_owned(),
    ]
    .concat();
    let output = session(cluster, &jar).run(&world.located(&script));
    let plain = world.publish(0);
    let marked = world.orders.publish_message(PubsubMessage {
        data: br#"{"order_id":"m","customer_id":"c","amount":1}"#.to_vec().into(),
        attributes: [("channel".to_owned(), "mobile".to_owned())].into(),
        ..PubsubMessage::default()
    });
    world.wait_until_acked(cluster, &[plain, marked]);
    let copies: Vec<String> = copies.messages().iter().map(text).collect();
    assert_eq!(copies.len(), 2, "{copies:?}");
    assert_eq!(
        copies[0],
        concat!(
            r#"{"published":"2026-08-21 09:59:59.999","attrs":{},"entries":0,"ordering_key":null,"#,
            r#""subscription":"projects/my-project/subscriptions/orders-sub"}"#
        )
    );
    let mobile: Vec<String> = mobile.messages().iter().map(text).collect();
    assert_eq!(mobile, [copies[1].clone()]);
    assert_eq!(nowhere.published(), 0);
    cluster.cancel(output.job());
}

/// PS-ACC-04: what cannot be expressed is refused, at planning where planning can know.
fn updates_and_null_attributes_are_refused(cluster: &Cluster) {
    let Some(jar) = require_jar("pubsub") else {
        return; // reported as not run
    };
    let world = World::new();
    let updating = "INSERT INTO customer_totals
        SELECT customer_id, CAST(SUM(amount) AS INT), MAP['k', 'v'] FROM incoming_orders GROUP BY customer_id;";
    let error = session(cluster, &jar)
        .try_run(&world.located(&format!("{TABLES}{updating}")))
        .expect_err("an updating query");
    assert!(
        error.text().contains("update") && error.text().contains("customer_totals"),
        "{error}"
    );
    let null = "INSERT INTO customer_totals SELECT 'c', 1, MAP['k', CAST(NULL AS STRING)];";
    let output = session(cluster, &jar)
        .set("restart-strategy.type", "none")
        .run(&world.located(&format!("{TABLES}{null}")));
    let job = output.job();
    cluster.wait_for("the end", || {
        cluster
            .state(job)
            .is_some_and(|state| state.is_final())
            .then_some(())
    });
    let failures = cluster.failures(job).concat();
    assert!(failures.contains("attributes"), "{failures}");
    assert_eq!(world.totals.published(), 0);
}

/// PS-ACC-05 in SQL: the topic of each row is a column; a topic that is not there yet is created.
fn rows_choose_their_topics(cluster: &Cluster) {
    let Some(jar) = require_jar("pubsub") else {
        return; // reported as not run
    };
    let world = World::new();
    let pubsub = world.sim.pubsub();
    let known = [
        pubsub.create_topic(PROJECT, "orders-eu"),
        pubsub.create_topic(PROJECT, "orders-us"),
    ];
    let script = "
        CREATE TABLE regions (
          n      INT,
          attrs  MAP<STRING, STRING> METADATA FROM 'attributes',
          topic  STRING              METADATA FROM 'topic'
        ) WITH (
          'connector' = 'pubsub', 'project' = 'my-project', 'topic' = 'customer-totals', 'format' = 'json',
          'sink.auto-create.message-retention' = '7 d'
        );
        INSERT INTO regions
        SELECT n, MAP['tenant', tenant], 'orders-' || region
        FROM (VALUES (1, 'a', 'eu'), (2, 'b', 'us'), (3, 'c', 'ap'), (4, 'a', 'eu')) AS t (n, tenant, region);";
    session(cluster, &jar)
        .set("table.dml-sync", "true")
        .run(&world.located(script));
    let created = pubsub.topic(PROJECT, "orders-ap");
    let of = |topic: &Topic| -> BTreeMap<String, String> {
        topic
            .messages()
            .iter()
            .map(|message| (text(message), message.attributes["tenant"].clone()))
            .collect()
    };
    let one = |n: &str, tenant: &str| (format!(r#"{{"n":{n}}}"#), tenant.to_owned());
    assert_eq!(
        of(&known[0]),
        BTreeMap::from([one("1", "a"), one("4", "a")])
    );
    assert_eq!(of(&known[1]), BTreeMap::from([one("2", "b")]));
    assert_eq!(of(&created), BTreeMap::from([one("3", "c")]));
    let retention = created
        .config()
        .and_then(|config| config.message_retention_duration)
        .map(|duration| duration.seconds);
    assert_eq!(retention, Some(7 * 86_400));
    assert_eq!(world.totals.published(), 0);
}

/// One module a version, so that a filter finds the tests of one.
macro_rules! in_every_version {
    ($($module:ident, $version:ident;)*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn hourly_totals_are_exact() {
                on(Version::$version, super::hourly_totals_are_exact);
            }

            #[test]
            fn a_killed_task_manager_loses_nothing() {
                on(Version::$version, super::a_killed_task_manager_loses_nothing);
            }

            #[test]
            fn a_kill_before_acknowledgements_misses_nothing() {
                on(Version::$version, super::a_kill_before_acknowledgements_misses_nothing);
            }

            #[test]
            fn metadata_is_what_the_message_bears() {
                on(Version::$version, super::metadata_is_what_the_message_bears);
            }

            #[test]
            fn updates_and_null_attributes_are_refused() {
                on(Version::$version, super::updates_and_null_attributes_are_refused);
            }

            #[test]
            fn rows_choose_their_topics() {
                on(Version::$version, super::rows_choose_their_topics);
            }
        }
    )*};
}

in_every_version! {
    flink_2_3, Flink2_3;
    flink_2_2, Flink2_2;
    flink_1_20, Flink1_20;
}
