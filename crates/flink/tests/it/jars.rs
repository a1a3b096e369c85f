//! The jars as a person uses them: added in the SQL client, in `lib/` by the quickstart of the documentation, and what
//! Flink says of the tables.

use std::time::{Duration, SystemTime};

use aqueduct_sim::Topic;
use aqueduct_testkit::flink::{Cluster, JobState, Version, require_jar};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;

use crate::clusters::on;
use crate::services::{Services, jars, rows, session, texts, wait_while_running};

/// By `ADD JAR` in the script, and by `-j`; both jars side by side in each.
fn the_sql_client_takes_the_jars(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let services = Services::new();
    let said = services.topic("said");
    let table = services.table("words", &[]);
    let script = |word: &str| {
        format!(
            "CREATE TABLE words (id STRING, f ROW<length INT>) {};
             CREATE TABLE said (word STRING) {};
             SHOW CREATE TABLE said;
             DESCRIBE words;
             INSERT INTO words VALUES ('{word}', ROW(5));
             INSERT INTO said SELECT id FROM words WHERE id = '{word}';",
            services.bigtable("words"),
            services.writes("said", "'format' = 'raw'")
        )
    };
    let plain = cluster.session().set("table.dml-sync", "true");
    let added: String = jars
        .iter()
        .map(|jar| format!("ADD JAR '{}';\n", jar.display()))
        .collect();
    let by_option = plain.clone().jar(&jars[0]).jar(&jars[1]);
    for (session, script) in [
        (&plain, format!("{added}{}", script("hello"))),
        (&by_option, script("world")),
    ] {
        let printed = session
            .client(&script)
            .unwrap_or_else(|printed| cluster.fail(&printed));
        assert!(printed.contains("'connector' = 'pubsub'"), "{printed}");
    }
    assert_eq!(texts(&said), ["hello", "world"]);
    assert_eq!(table.row_count(), 2);
}

/// The statements of the quickstart, as they stand in the documentation but for the address of the service.
#[test]
fn the_quickstart_works_word_for_word() {
    let Some(jar) = require_jar("pubsub") else {
        return; // reported as not run
    };
    let page = include_str!("../../../../docs/flink.md");
    let (_, behind) = page.split_once("```sql\n").expect("statements");
    let (statements, _) = behind.split_once("```").expect("their end");
    let Some(cluster) = Cluster::builder(Version::Flink2_3).lib_jar(jar).start() else {
        return; // reported as not run
    };
    let services = Services::new();
    let pubsub = services.sim.pubsub();
    let orders = pubsub.create_topic("local", "orders");
    let subscription = pubsub.create_subscription("local", "orders-sub", &orders);
    let totals = pubsub.create_topic("local", "customer-totals");

    let address = services.sim.endpoint().to_string();
    assert!(statements.contains("'127.0.0.1:8086'"), "{statements}");
    cluster
        .session()
        .client(&statements.replace("127.0.0.1:8086", &address))
        .unwrap_or_else(|printed| cluster.fail(&printed));
    let job = cluster.running_jobs().remove(0);
    // Full minutes from here on, and nobody has to wait for them.
    let minute = |n: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(60 * n);
    order(&orders, "1", 20, minute(30_000_000));
    order(&orders, "2", 22, minute(30_000_000));
    cluster.wait_for("the first orders to be read", || {
        subscription
            .delivery_counts()
            .iter()
            .all(|(_, deliveries)| *deliveries > 0)
            .then_some(())
    });
    cluster.wait_for_checkpoints(&job, 1);
    order(&orders, "3", 1, minute(30_000_002));
    cluster.wait_for("the totals", || (totals.published() == 1).then_some(()));
    assert_eq!(texts(&totals), [r#"{"customer_id":"c1","total":42}"#]);
    assert_eq!(
        totals.messages()[0].attributes["window-start"],
        "2027-01-15 08:00:00.000"
    );
    assert_eq!(cluster.state(&job), Some(JobState::Running));
    cluster.cancel(&job);
}

fn order(orders: &Topic, id: &str, amount: i32, time: SystemTime) {
    let body = format!(r#"{{"order_id":"{id}","customer_id":"c1","amount":{amount}}}"#);
    orders.publish_at(
        PubsubMessage {
            data: body.into_bytes().into(),
            ..PubsubMessage::default()
        },
        time,
    );
}

fn tables_say_what_they_are(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let services = Services::new();
    let tables = format!(
        "CREATE TABLE flights (id STRING, f ROW<carrier STRING, delay INT>, cell_time TIMESTAMP_LTZ(6) METADATA FROM 'timestamp',
           PRIMARY KEY (id) NOT ENFORCED) {};
         CREATE TABLE orders (n INT, amount INT, t TIMESTAMP_LTZ(3) METADATA FROM 'publish-time' VIRTUAL,
           message_id STRING METADATA FROM 'message-id' VIRTUAL,
           WATERMARK FOR t AS t - INTERVAL '5' SECOND) {};
         CREATE TABLE scanned (id STRING, f ROW<carrier STRING, delay INT>) {};",
        services.bigtable("flights"),
        services.pubsub("'subscription' = 'orders-sub', 'topic' = 'orders', 'format' = 'json'"),
        services.bigtable("flights"),
    );
    let session = session(cluster, &jars);
    let told = |statement: &str| {
        let output = session.run(&format!("{tables} {statement};"));
        let lines: Vec<String> = output
            .rows()
            .iter()
            .flat_map(|row| &row.fields)
            .map(|field| {
                field
                    .as_str()
                    .map_or_else(|| field.to_string(), str::to_owned)
            })
            .collect();
        lines.join(" | ")
    };
    let assert_told = |statement: &str, wanted: &[&str]| {
        let told = told(statement);
        for wanted in wanted {
            assert!(told.contains(wanted), "{wanted} is not in\n{told}");
        }
    };

    assert_told(
        "SHOW CREATE TABLE flights",
        &[
            "METADATA FROM 'timestamp'",
            "'connector' = 'bigtable'",
            "'table' = 'flights'",
        ],
    );
    let described = session.run(&format!("{tables} DESCRIBE orders;"));
    assert_eq!(rows(&described).len(), 4);
    assert_told(
        "DESCRIBE orders",
        &["METADATA FROM 'publish-time' VIRTUAL", "TIMESTAMP_LTZ(3)"],
    );
    assert_told(
        "DESCRIBE flights",
        &["PRI(id)", "METADATA FROM 'timestamp'"],
    );

    assert_told(
        "EXPLAIN SELECT id, f.delay FROM scanned WHERE id >= '3' AND f.carrier = 'AA'",
        &[
            "TableSourceScan(table=[[default_catalog, default_database, scanned",
            "filter=[>=(id, _UTF-16LE'3')]",
            "where=[(f.carrier = 'AA')]",
        ],
    );
    assert_told(
        "EXPLAIN SELECT f.delay, id FROM scanned WHERE id >= '3'",
        &["filter=[>=(id, _UTF-16LE'3')], project=[f_delay, id]"],
    );
    assert_told(
        "EXPLAIN SELECT id FROM scanned LIMIT 7",
        &["project=[id]", "limit=[7]"],
    );
    assert_told(
        "EXPLAIN SELECT message_id, amount FROM orders WHERE amount > 3",
        &["project=[amount", "metadata=[message-id", "watermark=["],
    );
    assert_told(
        "EXPLAIN INSERT INTO flights SELECT CAST(n AS STRING), ROW('AA', SUM(amount)), MAX(t) FROM orders GROUP BY n",
        &["Sink(table=[default_catalog.default_database.flights]"],
    );
}

/// A plan that was compiled runs as the query does: with filter, projection, metadata and watermark.
fn compiled_plans_run(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let services = Services::new();
    let (topic, subscription) = services.subscribed("orders");
    let words = services.table("words", &[]);
    let said = services.topic("said");
    let tables = format!(
        "CREATE TABLE words (id STRING, f ROW<n INT, other STRING>) {};
         CREATE TABLE orders (n INT, other STRING, t TIMESTAMP_LTZ(3) METADATA FROM 'publish-time' VIRTUAL,
           message_id STRING METADATA FROM 'message-id' VIRTUAL, WATERMARK FOR t AS t) {};
         CREATE TABLE said (word STRING) {};",
        services.bigtable("words"),
        services.reads("orders", "'format' = 'json'"),
        services.writes("said", "'format' = 'raw'")
    );
    let session = session(cluster, &jars);
    let run = |name: &str, query: &str| {
        let plan = cluster.folder().join(format!("{name}.json"));
        let plan = plan.display();
        session.run(&format!(
            "{tables} COMPILE PLAN '{plan}' FOR {query}; EXECUTE PLAN '{plan}';"
        ))
    };
    let output = run(
        "write",
        "INSERT INTO words VALUES ('a', ROW(1, 'x')), ('b', ROW(2, 'y')), ('c', ROW(3, 'z'))",
    );
    cluster.wait_for_state(output.job(), JobState::Finished);
    assert_eq!(words.row_count(), 3);
    let output = run(
        "scan",
        "INSERT INTO said SELECT CAST(f.n AS STRING) || id FROM words WHERE id >= 'b'",
    );
    cluster.wait_for_state(output.job(), JobState::Finished);
    let mut scanned = texts(&said);
    scanned.sort();
    assert_eq!(scanned, ["2b", "3c"]);

    let output = run(
        "read",
        "INSERT INTO said SELECT message_id || CAST(SUM(n) AS STRING)
         FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(t), INTERVAL '1' MINUTE))
         GROUP BY window_start, window_end, message_id",
    );
    let job = output.job();
    let minute = |n: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(60 * n);
    let publish = |n: i32, time| {
        let body = format!(r#"{{"other":"x","n":{n}}}"#);
        let message = PubsubMessage {
            data: body.into_bytes().into(),
            ..PubsubMessage::default()
        };
        topic.publish_at(message, time)
    };
    let first = publish(42, minute(30_000_000));
    publish(1, minute(30_000_001));
    wait_while_running(cluster, job, "the first minute", || {
        (said.published() == 3).then_some(())
    });
    assert_eq!(texts(&said)[2], format!("{first}42"));
    wait_while_running(cluster, job, "acknowledgements", || {
        (subscription.backlog() == 0).then_some(())
    });
    cluster.cancel(job);
}

/// `scan.parallelism` and `sink.parallelism`, where the rows are changes too.
fn tables_have_the_parallelism_that_they_ask_for(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let services = Services::new();
    let (topic, subscription) = services.subscribed("changes");
    let stock = services.table("stock", &[]);
    for n in 0..20 {
        topic.publish(format!(
            r#"{{"before":null,"after":{{"id":"{n}","quantity":1}},"op":"c"}}"#
        ));
    }
    let output = session(cluster, &jars).run(&format!(
        "CREATE TABLE changes (id STRING, quantity INT, PRIMARY KEY (id) NOT ENFORCED) {};
         CREATE TABLE stock (id STRING, f ROW<quantity INT>, PRIMARY KEY (id) NOT ENFORCED) {};
         INSERT INTO stock /*+ OPTIONS('sink.parallelism' = '2') */ SELECT id, ROW(quantity) FROM changes;",
        services.reads(
            "changes",
            "'format' = 'debezium-json', 'scan.parallelism' = '3'"
        ),
        services.bigtable("stock")
    ));
    let job = output.job();
    wait_while_running(cluster, job, "acknowledgements", || {
        (subscription.backlog() == 0).then_some(())
    });
    assert_eq!(stock.row_count(), 20);
    let told = cluster.rest(&format!("/jobs/{job}"));
    let vertices = told["vertices"].as_array().expect("vertices");
    let parallelism = |part: &str| {
        let found = vertices.iter().find(|vertex| {
            vertex["name"]
                .as_str()
                .is_some_and(|name| name.contains(part))
        });
        found.unwrap_or_else(|| panic!("{part} is not in {told}"))["parallelism"].clone()
    };
    assert_eq!(
        parallelism("Source: default_catalog.default_database.changes"),
        3
    );
    assert_eq!(parallelism("stock"), 2);
    cluster.cancel(job);
}

mod flink_2_3 {
    use super::*;

    #[test]
    fn compiled_plans_run() {
        on(Version::Flink2_3, super::compiled_plans_run);
    }

    #[test]
    fn tables_have_the_parallelism_that_they_ask_for() {
        on(
            Version::Flink2_3,
            super::tables_have_the_parallelism_that_they_ask_for,
        );
    }

    #[test]
    fn the_sql_client_takes_the_jars() {
        on(Version::Flink2_3, super::the_sql_client_takes_the_jars);
    }

    #[test]
    fn tables_say_what_they_are() {
        on(Version::Flink2_3, super::tables_say_what_they_are);
    }
}
