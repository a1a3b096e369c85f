//! What a source does beside giving rows: payloads that cannot be decoded, watermarks and their alignment, another
//! parallelism after a savepoint, batch jobs.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use aqueduct_sim::{Gate, Method, Subscription, Topic};
use aqueduct_testkit::flink::{Cluster, JobId, JobState, Version};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::{DeadLetterPolicy, PubsubMessage};

use crate::clusters::on;
use crate::services::{
    PROJECT, Services, failure, jars, logged, rows, session, texts, wait_for_metric,
    wait_while_running,
};

/// Broken, and to be found nowhere else.
const MALFORMED: &str = r#"{"n": 1, "card": "4711-0815-7531"#;
const SECRET: &str = "4711-0815";

/// From numbers in JSON to numbers in JSON.
fn copy(services: &Services, more: &str) -> String {
    format!(
        "CREATE TABLE numbers (n INT) {};
         CREATE TABLE copies (n INT) {};
         INSERT INTO copies SELECT n FROM numbers;",
        services.reads("numbers", &format!("'format' = 'json'{more}")),
        services.writes("copies", "'format' = 'json'"),
    )
}

fn publish_around_a_malformed_payload(topic: &Topic) -> [String; 3] {
    [r#"{"n": 1}"#, MALFORMED, r#"{"n": 2}"#].map(|payload| topic.publish(payload))
}

#[track_caller]
fn assert_kept_secret(cluster: &Cluster, texts: &str) {
    assert!(!texts.contains(SECRET), "{texts}");
    for line in logged(cluster).lines() {
        assert!(!line.contains(SECRET), "{line}");
    }
}

/// `fail`, the default: subscription and message are named, the payload is not.
fn a_malformed_payload_fails_the_job(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let services = Services::new();
    let (topic, subscription) = services.subscribed("numbers");
    services.topic("copies");
    let [_, bad, _] = publish_around_a_malformed_payload(&topic);
    let output = session(cluster, &jars).run(&copy(&services, ""));
    let failure = failure(cluster, output.job());
    let resource = format!("projects/{PROJECT}/subscriptions/numbers-sub");
    assert!(
        failure.contains(&resource) && failure.contains(&format!("message {bad}")),
        "{failure}"
    );
    assert_kept_secret(cluster, &failure);
    assert!(!subscription.is_acked(&bad));
}

/// `drop`: counted, acknowledged, and the job goes on.
fn a_malformed_payload_is_dropped(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let services = Services::new();
    let (topic, subscription) = services.subscribed("numbers");
    let copies = services.topic("copies");
    let output = session(cluster, &jars).run(&copy(
        &services,
        ", 'scan.deserialization-failure-policy' = 'drop'",
    ));
    let job = output.job();
    let ids = publish_around_a_malformed_payload(&topic);
    wait_until_acked(cluster, job, &subscription, &ids);
    assert_eq!(texts(&copies), [r#"{"n":1}"#, r#"{"n":2}"#]);
    wait_for_metric(cluster, job, "messagesDropped", 1.0);
    wait_for_metric(cluster, job, "numRecordsInErrors", 1.0);
    assert_kept_secret(cluster, "");
    cluster.cancel(job);
}

/// `nack`: returned until the service takes it to the dead-letter topic.
fn a_malformed_payload_is_dead_lettered(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let services = Services::new();
    let topic = services.topic("numbers");
    let dead = services.topic("dead");
    let copies = services.topic("copies");
    let pubsub = services.sim.pubsub();
    let nack = copy(
        &services,
        ", 'scan.deserialization-failure-policy' = 'nack'",
    );

    let plain = pubsub.create_subscription(PROJECT, "numbers-sub", &topic);
    let output = session(cluster, &jars).run(&nack);
    let refused = failure(cluster, output.job());
    assert!(
        refused.contains("scan.deserialization-failure-policy") && refused.contains("dead-letter"),
        "{refused}"
    );
    assert!(plain.delete());

    let subscription =
        pubsub.create_subscription_with(PROJECT, "numbers-sub", &topic, |subscription| {
            subscription.dead_letter_policy = Some(DeadLetterPolicy {
                dead_letter_topic: dead.name().to_owned(),
                max_delivery_attempts: 5,
            });
        });
    subscription.set_shuffle(None);
    subscription.set_nack_delay(Duration::from_millis(10));
    subscription.grant_dead_lettering();
    let output = session(cluster, &jars).run(&nack);
    let job = output.job();
    let ids = publish_around_a_malformed_payload(&topic);
    wait_while_running(cluster, job, "the dead letter", || {
        (dead.published() == 1).then_some(())
    });
    wait_until_acked(cluster, job, &subscription, &ids);
    assert_eq!(texts(&dead), [MALFORMED]);
    let copied: BTreeSet<String> = texts(&copies).into_iter().collect();
    assert_eq!(
        copied,
        [r#"{"n":1}"#, r#"{"n":2}"#].map(str::to_owned).into()
    );
    assert_kept_secret(cluster, "");
    cluster.cancel(job);
}

/// A format that ignores errors by itself makes no row of the message: counted as skipped, and acknowledged.
fn what_a_format_ignores_is_counted(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let services = Services::new();
    let (topic, subscription) = services.subscribed("numbers");
    let copies = services.topic("copies");
    let output =
        session(cluster, &jars).run(&copy(&services, ", 'json.ignore-parse-errors' = 'true'"));
    let job = output.job();
    let ids = publish_around_a_malformed_payload(&topic);
    wait_until_acked(cluster, job, &subscription, &ids);
    assert_eq!(texts(&copies), [r#"{"n":1}"#, r#"{"n":2}"#]);
    wait_for_metric(cluster, job, "recordsSkipped", 1.0);
    cluster.cancel(job);
}

/// A row that the format of a sink refuses.
fn a_row_that_cannot_be_encoded_is_not_quoted(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let services = Services::new();
    let copies = services.topic("copies");
    let output = session(cluster, &jars).run(&format!(
        "CREATE TABLE copies (card STRING, m MAP<STRING, INT>) {};
         INSERT INTO copies SELECT '{SECRET}', MAP[CAST(NULL AS STRING), 1];",
        services.writes("copies", "'format' = 'json'")
    ));
    let failure = failure(cluster, output.job());
    assert!(
        failure.contains("the format of the table made no payload"),
        "{failure}"
    );
    // The query has it as a literal, which is for Flink to print.
    let told: Vec<&str> = failure
        .lines()
        .filter(|line| line.contains(SECRET))
        .collect();
    assert_eq!(told, Vec::<&str>::new());
    assert_eq!(copies.published(), 0);
}

#[track_caller]
fn wait_until_acked(
    cluster: &Cluster,
    job: &JobId,
    subscription: &Subscription,
    ids: impl IntoIterator<Item = impl AsRef<str>> + Clone,
) {
    wait_while_running(cluster, job, "acknowledgements", || {
        ids.clone()
            .into_iter()
            .all(|id| subscription.is_acked(id.as_ref()))
            .then_some(())
    });
}

/// 2026-08-21T00:00:00Z.
const DAY: Duration = Duration::from_secs(1_787_270_400);
const MINUTE: Duration = Duration::from_secs(60);

/// Publishes a number, so long after the beginning of the day.
fn publish(topic: &Topic, n: u32, at: Duration) -> String {
    topic.publish_at(
        PubsubMessage {
            data: format!(r#"{{"n":{n}}}"#).into_bytes().into(),
            ..PubsubMessage::default()
        },
        SystemTime::UNIX_EPOCH + DAY + at,
    )
}

const TIMED: &str =
    "(n INT, t TIMESTAMP_LTZ(3) METADATA FROM 'publish-time' VIRTUAL, WATERMARK FOR t AS t)";

/// How a table takes part.
const ALIGNED: &str = "'format' = 'json',
    'scan.watermark.emit.strategy' = 'on-event',
    'scan.watermark.alignment.group' = 'together',
    'scan.watermark.alignment.max-drift' = '1 min',
    'scan.watermark.alignment.update-interval' = '100 ms',
    'scan.ack.max-duration-per-extension' = '10 s'";

/// Two tables: Flink pauses a reader as a whole.
fn aligned_tables_wait_for_each_other(cluster: &Cluster) {
    let services = Services::new();
    let query = format!(
        "CREATE TABLE early {TIMED} {};
         CREATE TABLE late {TIMED} {};
         CREATE TABLE copies (n INT) {};
         INSERT INTO copies SELECT n FROM early UNION ALL SELECT n FROM late;",
        services.reads("early", ALIGNED),
        services.reads("late", ALIGNED),
        services.writes("copies", "'format' = 'json'")
    );
    the_one_ahead_waits(cluster, &services, &query);
}

/// Two subscriptions of one table: Flink pauses a split.
fn aligned_subscriptions_wait_for_each_other(cluster: &Cluster) {
    let services = Services::new();
    let query = format!(
        "CREATE TABLE both_of_them {TIMED} {};
         CREATE TABLE copies (n INT) {};
         INSERT INTO copies SELECT n FROM both_of_them;",
        services.pubsub(&format!("'subscription' = 'early-sub;late-sub', {ALIGNED}")),
        services.writes("copies", "'format' = 'json'")
    );
    the_one_ahead_waits(cluster, &services, &query);
}

fn the_one_ahead_waits(cluster: &Cluster, services: &Services, query: &str) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let (early, early_sub) = services.subscribed("early");
    let (late, late_sub) = services.subscribed("late");
    let copies = services.topic("copies");
    let output = session(cluster, &jars).run(query);
    let job = output.job();
    let is_out = |n: u32| texts(&copies).contains(&format!(r#"{{"n":{n}}}"#));
    let wait_for = |n: u32| {
        wait_while_running(cluster, job, &format!("number {n}"), || {
            is_out(n).then_some(())
        });
    };

    let mut early_ids = vec![publish(&early, 0, Duration::ZERO)];
    let mut late_ids = vec![publish(&late, 1_000, Duration::ZERO)];
    wait_for(0);
    wait_for(1_000);

    // Further and further ahead, until one does not come out although checkpoints pass.
    let mut n = 1_000;
    loop {
        n += 1;
        let id = publish(&late, n, MINUTE * (n - 900));
        wait_while_running(cluster, job, "a delivery", || {
            (late_sub.deliveries(&id) > 0).then_some(())
        });
        late_ids.push(id);
        cluster.wait_for_checkpoints(job, 3);
        if !is_out(n) {
            break;
        }
        assert!(n < 1_020, "the subscription ahead was never held back");
    }
    let held = n;
    for n in held + 1..held + 20 {
        late_ids.push(publish(&late, n, MINUTE * (n - 900)));
    }
    // Leases of 10 seconds are kept while nobody takes the messages.
    let begun = late_sub.counts().extended;
    wait_while_running(cluster, job, "leases to be extended", || {
        (late_sub.counts().extended >= begun + 3 * 20).then_some(())
    });
    assert_eq!(late_sub.counts().expired, 0);
    assert!(!is_out(held), "it waits as long as the other has not moved");
    assert_eq!(late_sub.outstanding(), 20);

    // The other one catches up and passes.
    early_ids.push(publish(&early, 1, MINUTE * 600));
    for n in held..held + 20 {
        wait_for(n);
    }
    wait_for(1);
    wait_until_acked(cluster, job, &early_sub, &early_ids);
    wait_until_acked(cluster, job, &late_sub, &late_ids);
    for subscription in [&early_sub, &late_sub] {
        let counts = subscription.counts();
        assert_eq!((counts.redelivered, counts.expired), (0, 0));
    }
    assert_eq!(
        copies.published() as usize,
        early_ids.len() + late_ids.len()
    );
    cluster.cancel(job);
}

/// A subscription without messages holds no window open.
fn an_idle_subscription_holds_no_window_open(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let services = Services::new();
    let (busy, busy_sub) = services.subscribed("busy");
    services.subscribed("idle");
    let sums = services.topic("sums");
    let output = session(cluster, &jars).run(&format!(
        "CREATE TABLE numbers {TIMED} {};
         CREATE TABLE sums (s INT) {};
         INSERT INTO sums SELECT SUM(n) FROM TABLE(TUMBLE(TABLE numbers, DESCRIPTOR(t), INTERVAL '1' MINUTE))
         GROUP BY window_start, window_end;",
        services.pubsub(
            "'subscription' = 'busy-sub;idle-sub', 'format' = 'json', 'scan.watermark.idle-timeout' = '1 s'"
        ),
        services.writes("sums", "'format' = 'json'")
    ));
    let job = output.job();
    let ids = [(1, 0), (2, 59), (4, 61)]
        .map(|(n, second)| publish(&busy, n, Duration::from_secs(second)));
    wait_while_running(cluster, job, "the first minute", || {
        (sums.published() == 1).then_some(())
    });
    assert_eq!(texts(&sums), [r#"{"s":3}"#]);
    wait_until_acked(cluster, job, &busy_sub, ids);
    cluster.cancel(job);
}

fn watermarks_of_the_source_are_refused(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let services = Services::new();
    services.subscribed("numbers");
    let error = session(cluster, &jars)
        .try_run(&format!(
            "CREATE TABLE numbers (n INT, t TIMESTAMP_LTZ(3) METADATA FROM 'publish-time' VIRTUAL,
               WATERMARK FOR t AS SOURCE_WATERMARK()) {};
             SELECT * FROM numbers;",
            services.reads("numbers", "'format' = 'json'")
        ))
        .expect_err("the tables have no watermarks of their own");
    assert!(
        error
            .cause()
            .contains("The watermark for 't' is SOURCE_WATERMARK()"),
        "{error}"
    );
}

/// Messages keep coming while the job is stopped and goes on at another parallelism, and back.
fn messages_survive_another_parallelism(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let services = Services::new();
    let (topic, subscription) = services.subscribed("numbers");
    let stored = services.table("copies", &[]);
    let query = format!(
        "CREATE TABLE numbers (n INT) {};
         CREATE TABLE copies (id STRING, f ROW<n INT>, PRIMARY KEY (id) NOT ENFORCED) {};
         INSERT INTO copies SELECT CAST(n AS STRING), ROW(n) FROM numbers;",
        services.reads("numbers", "'format' = 'json'"),
        services.upserts("copies"),
    );
    let mut ids = Vec::new();
    let mut session = session(cluster, &jars);
    let mut restore = String::new();
    for (round, parallelism) in ["1", "3", "1"].into_iter().enumerate() {
        session = session.set("parallelism.default", parallelism);
        let output = session.run(&format!("{restore}{query}"));
        let job = output.job();
        // Some before and some after the stop are on their way while it happens.
        for n in 0..300 {
            ids.push(topic.publish(format!(r#"{{"n":{}}}"#, ids.len())));
            if n == 100 {
                let some = 300 * round + 50;
                wait_while_running(cluster, job, "some rows", || {
                    (stored.row_count() >= some).then_some(())
                });
            }
        }
        if round < 2 {
            let savepoint = cluster.stop_with_savepoint(job);
            restore = cluster.restore_from(&savepoint);
        } else {
            wait_while_running(cluster, job, "every row", || {
                (stored.row_count() == ids.len()).then_some(())
            });
            wait_until_acked(cluster, job, &subscription, &ids);
            cluster.cancel(job);
        }
    }
}

const TABLETS: usize = 40;
const ROWS_PER_TABLET: usize = 25;

/// A scan is stopped in the middle twice, and every row arrives once: a stop loses and repeats nothing.
fn a_scan_survives_another_parallelism(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let services = Services::new();
    let key = |n: usize| format!("{n:06}");
    let boundaries: Vec<String> = (1..TABLETS).map(|n| key(n * ROWS_PER_TABLET)).collect();
    let boundaries: Vec<&[u8]> = boundaries.iter().map(String::as_bytes).collect();
    let stored = services.table("numbers", &boundaries);
    let copies = services.table("copies", &[]);
    let all = TABLETS * ROWS_PER_TABLET;
    let tables = format!(
        "CREATE TABLE numbers (id STRING, f ROW<n INT>) {};
         CREATE TABLE copies (id STRING, f ROW<n INT>, PRIMARY KEY (id) NOT ENFORCED) {};
         CREATE TABLE counted (n INT) WITH ('connector' = 'datagen', 'number-of-rows' = '{all}',
           'fields.n.kind' = 'sequence', 'fields.n.start' = '0', 'fields.n.end' = '{}');",
        services.bigtable("numbers"),
        services.upserts("copies"),
        all - 1
    );
    let mut session = session(cluster, &jars);
    session.clone().set("table.dml-sync", "true").run(&format!(
        "{tables} INSERT INTO numbers SELECT LPAD(CAST(n AS STRING), 6, '0'), ROW(n) FROM counted;"
    ));
    assert_eq!(stored.row_count(), all);

    let query = format!("{tables} INSERT INTO copies SELECT id, f FROM numbers;");
    let mut restore = String::new();
    for (round, parallelism) in ["1", "3", "1"].into_iter().enumerate() {
        session = session.set("parallelism.default", parallelism);
        let slow = stored
            .always(Method::ReadRows)
            .delay(Duration::from_millis(200));
        let output = session.run(&format!("{restore}{query}"));
        let job = output.job();
        if round < 2 {
            let some = copies.row_count() + 4 * ROWS_PER_TABLET;
            wait_while_running(cluster, job, "some rows", || {
                (copies.row_count() >= some).then_some(())
            });
            // However long the stop takes, no further section is read meanwhile.
            let gate = Gate::new();
            let held = stored.always(Method::ReadRows).hold(&gate);
            slow.remove();
            let savepoint = cluster.stop_with_savepoint(job);
            assert!(copies.row_count() < all, "it was stopped in the middle");
            held.remove();
            gate.open();
            restore = cluster.restore_from(&savepoint);
        } else {
            slow.remove();
            cluster.wait_for_state(job, JobState::Finished);
        }
    }
    assert_eq!(copies.row_count(), all);
    assert_eq!(copies.effects_per_row(), vec![1; all]);
}

/// A scan with what follows it in batch mode; subscriptions have no end, so they have no place there.
fn batch_jobs_scan_and_refuse_subscriptions(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let services = Services::new();
    services.table("numbers", &[b"3", b"6"]);
    let totals = services.table("totals", &[]);
    services.subscribed("numbers");
    let tables = format!(
        "CREATE TABLE numbers (id STRING, f ROW<n INT>) {};
         CREATE TABLE totals (parity STRING, f ROW<total INT, amount BIGINT>) {};
         CREATE TABLE messages (n INT) {};",
        services.bigtable("numbers"),
        services.bigtable("totals"),
        services.reads("numbers", "'format' = 'json'")
    );
    let batch = session(cluster, &jars)
        .set("execution.runtime-mode", "batch")
        .set("table.dml-sync", "true");
    batch.run(&format!(
        "{tables} INSERT INTO numbers SELECT CAST(n AS STRING), ROW(n) FROM (VALUES
           (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS v (n);"
    ));
    let output = batch.run(&format!("{tables} SELECT id FROM numbers LIMIT 3;"));
    assert_eq!(rows(&output), [r#"["0"]"#, r#"["1"]"#, r#"["2"]"#]);
    let query = "SELECT IF(MOD(f.n, 2) = 0, 'even', 'odd'), ROW(SUM(f.n), COUNT(*))
         FROM numbers WHERE id <> '9' GROUP BY IF(MOD(f.n, 2) = 0, 'even', 'odd')";
    batch.run(&format!("{tables} INSERT INTO totals {query};"));
    let output = batch.run(&format!(
        "{tables} SELECT parity, f.total, f.amount FROM totals;"
    ));
    assert_eq!(rows(&output), [r#"["even",20,5]"#, r#"["odd",16,4]"#]);
    assert_eq!(totals.effects_per_row(), [1, 1]);

    let error = batch
        .try_run(&format!("{tables} SELECT n FROM messages;"))
        .expect_err("a subscription has no end");
    assert!(
        error.cause().contains("unbounded") && error.cause().contains("messages"),
        "{error}"
    );
}

mod flink_2_3 {
    use super::*;

    macro_rules! tests {
        ($($name:ident)*) => {
            $(
                #[test]
                fn $name() {
                    on(Version::Flink2_3, super::$name);
                }
            )*
        };
    }

    tests! {
        a_malformed_payload_fails_the_job
        a_malformed_payload_is_dropped
        a_malformed_payload_is_dead_lettered
        what_a_format_ignores_is_counted
        a_row_that_cannot_be_encoded_is_not_quoted
        aligned_tables_wait_for_each_other
        aligned_subscriptions_wait_for_each_other
        an_idle_subscription_holds_no_window_open
        watermarks_of_the_source_are_refused
        messages_survive_another_parallelism
        a_scan_survives_another_parallelism
        batch_jobs_scan_and_refuse_subscriptions
    }
}

mod flink_1_20 {
    use super::*;

    #[test]
    fn aligned_tables_wait_for_each_other() {
        on(
            Version::Flink1_20,
            super::aligned_tables_wait_for_each_other,
        );
    }
}
