//! Flink's formats in our tables: each once out and in, projection, metadata of a format beside ours, changelogs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use aqueduct_sim::{Table, Topic};
use aqueduct_testkit::flink::{Cluster, Version};

use crate::clusters::on;
use crate::services::{PROJECT, Services, jars, session, texts, wait_while_running};

/// Of a table whose columns only a format with nested rows can have; the last two are there for every format but `raw`.
const NESTED: &str =
    "who ROW<name STRING, address ROW<city STRING, zip INT>>, tags ARRAY<STRING>, n INT, y BOOLEAN";
const NESTED_VALUES: &str = "ROW('Ada', ROW('London', 7)), ARRAY['a', 'b'], 5, TRUE";
const NESTED_JSON: &str =
    r#"{"who":{"name":"Ada","address":{"city":"London","zip":7}},"tags":["a","b"],"n":5,"y":true}"#;

const FLAT: &str =
    "s STRING, d DECIMAL(10, 2), x DOUBLE, z BYTES, t TIMESTAMP(3), born DATE, n INT, y BOOLEAN";
const FLAT_VALUES: &str = "'one, \"two\"', CAST(12.25 AS DECIMAL(10, 2)), CAST(0.25 AS DOUBLE), X'00FF', \
    TIMESTAMP '2026-08-21 10:00:00.123', DATE '2026-08-21', 5, TRUE";
const FLAT_JSON: &str = r#"{"s":"one, \"two\"","d":12.25,"x":0.25,"z":"AP8=","t":"2026-08-21 10:00:00.123","born":"2026-08-21","n":5,"y":true}"#;

struct Case {
    format: &'static str,
    columns: &'static str,
    values: &'static str,
    /// Of all columns.
    json: &'static str,
    /// Some of the columns, not in their order: `y`, one that becomes a text, `n`.
    some: [&'static str; 3],
    some_json: &'static str,
}

const CASES: [Case; 5] = [
    Case {
        format: "json",
        columns: NESTED,
        values: NESTED_VALUES,
        json: NESTED_JSON,
        some: ["y", "who.address.city", "n"],
        some_json: r#"{"y":true,"text":"London","n":5}"#,
    },
    Case {
        format: "avro",
        columns: NESTED,
        values: NESTED_VALUES,
        json: NESTED_JSON,
        some: ["y", "who.address.city", "n"],
        some_json: r#"{"y":true,"text":"London","n":5}"#,
    },
    Case {
        format: "avro",
        columns: FLAT,
        values: FLAT_VALUES,
        json: FLAT_JSON,
        some: ["y", "t", "n"],
        some_json: r#"{"y":true,"text":"2026-08-21 10:00:00.123","n":5}"#,
    },
    Case {
        format: "csv",
        columns: FLAT,
        values: FLAT_VALUES,
        json: FLAT_JSON,
        some: ["y", "s", "n"],
        some_json: r#"{"y":true,"text":"one, \"two\"","n":5}"#,
    },
    Case {
        format: "raw",
        columns: "line STRING",
        values: "'hello'",
        json: r#"{"line":"hello"}"#,
        some: ["TRUE", "line", "5"],
        some_json: r#"{"y":true,"text":"hello","n":5}"#,
    },
];

/// Out by the sink, in by the source, whole and in parts, with metadata of ours beside.
fn every_format_goes_out_and_comes_in(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let avro = fetch_avro(jars[0].parent().expect("a folder"), cluster.version());
    for case in CASES {
        let services = Services::new();
        let coded = services.topic("coded");
        for name in ["whole-sub", "parts-sub", "ids-sub"] {
            services
                .sim
                .pubsub()
                .create_subscription(PROJECT, name, &coded);
        }
        let [whole, parts, ids] = ["whole", "parts", "ids"].map(|name| services.topic(name));
        let Case {
            format,
            columns,
            values,
            json,
            some: [y, text, n],
            some_json,
        } = case;
        let metadata = "message_id STRING NOT NULL METADATA FROM 'message-id' VIRTUAL,
            attrs MAP<STRING, STRING> METADATA FROM 'attributes'";
        let format = format!("'format' = '{format}'");
        let to_json = "'format' = 'json'";
        let script = [
            format!("CREATE TABLE coded ({columns}, {metadata}) {};", services.writes("coded", &format)),
            format!("CREATE TABLE from_whole ({columns}, {metadata}) {};", services.reads("whole", &format)),
            format!("CREATE TABLE from_parts ({columns}, {metadata}) {};", services.reads("parts", &format)),
            format!("CREATE TABLE from_ids ({columns}, {metadata}) {};", services.reads("ids", &format)),
            format!("CREATE TABLE whole ({columns}) {};", services.writes("whole", to_json)),
            format!("CREATE TABLE parts (y BOOLEAN, text STRING, n INT, attrs MAP<STRING, STRING> METADATA FROM 'attributes') {};", services.writes("parts", to_json)),
            format!("CREATE TABLE ids (message_id STRING) {};", services.writes("ids", to_json)),
            "BEGIN STATEMENT SET;".to_owned(),
            format!("INSERT INTO coded SELECT {values}, MAP['k', 'v'];"),
            format!("INSERT INTO whole SELECT {} FROM from_whole;", names(columns)),
            format!(
                "INSERT INTO parts SELECT {y}, CAST({text} AS STRING), {n}, MAP_UNION(attrs, MAP['id', message_id])
                 FROM from_parts;"
            ),
            "INSERT INTO ids SELECT message_id FROM from_ids;".to_owned(),
            "END;".to_owned(),
        ]
        .concat();
        let output = session(cluster, &jars).jar(&avro).run(&script);
        let job = output.job();
        wait_while_running(cluster, job, &format!("rows by {format}"), || {
            [&whole, &parts, &ids]
                .iter()
                .all(|topic| topic.published() == 1)
                .then_some(())
        });
        let id = coded.messages()[0].message_id.clone();
        assert_eq!(texts(&whole), [json], "{format}");
        assert_eq!(texts(&parts), [some_json], "{format}");
        let attributes: BTreeMap<_, _> =
            parts.messages()[0].attributes.clone().into_iter().collect();
        let expected = [("k", "v"), ("id", id.as_str())]
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(attributes, expected.into(), "{format}");
        assert_eq!(
            texts(&ids),
            [format!(r#"{{"message_id":"{id}"}}"#)],
            "{format}"
        );
        cluster.cancel(job);
    }
}

/// The names of columns, without their types.
fn names(columns: &str) -> String {
    let mut depth = 0;
    let mut names = vec![String::new()];
    for letter in columns.chars() {
        match letter {
            '<' | '(' => depth += 1,
            '>' | ')' => depth -= 1,
            ',' if depth == 0 => names.push(String::new()),
            _ if depth == 0 => names.last_mut().expect("one").push(letter),
            _ => {}
        }
    }
    let names: Vec<&str> = names
        .iter()
        .filter_map(|column| column.split_whitespace().next())
        .collect();
    names.join(", ")
}

/// Flink's distribution has every format but this.
fn fetch_avro(folder: &Path, version: Version) -> PathBuf {
    let into = folder.join("formats");
    // A format runs on every release of its line.
    let version = match version {
        Version::Flink1_20 => "1.20.0",
        other => other.release(),
    };
    let jar = into.join(format!("flink-sql-avro-{version}.jar"));
    if !jar.is_file() {
        fs::create_dir_all(&into).expect("a folder");
        let fetched = Command::new("mvn")
            .args(["-q", "-B", "dependency:copy"])
            .arg(format!(
                "-Dartifact=org.apache.flink:flink-sql-avro:{version}"
            ))
            .arg(format!("-DoutputDirectory={}", into.display()))
            .output()
            .expect("Maven");
        assert!(
            fetched.status.success(),
            "{}",
            String::from_utf8_lossy(&fetched.stdout)
        );
    }
    jar
}

/// A change as Debezium writes it: the row before and after, as quantities.
fn change(topic: &Topic, op: &str, id: &str, before: Option<i32>, after: Option<i32>) {
    let row = |quantity: Option<i32>| {
        quantity.map_or("null".to_owned(), |quantity| {
            format!(r#"{{"id":"{id}","quantity":{quantity}}}"#)
        })
    };
    topic.publish(format!(
        r#"{{"before":{},"after":{},"source":{{"table":"stock","ts_ms":1000}},"op":"{op}","ts_ms":2000}}"#,
        row(before),
        row(after)
    ));
}

fn changes(topic: &Topic) {
    change(topic, "c", "a", None, Some(1));
    change(topic, "c", "b", None, Some(10));
    change(topic, "u", "a", Some(1), Some(2));
    change(topic, "d", "b", Some(10), None);
    change(topic, "r", "c", None, Some(100));
    change(topic, "d", "c", Some(100), None);
    change(topic, "u", "a", Some(2), Some(3));
    change(topic, "c", "c", None, Some(101));
}

/// Metadata of the format and of the connector.
const CHANGES: &str = "id STRING, quantity INT,
    message_id STRING METADATA FROM 'message-id' VIRTUAL,
    origin STRING METADATA FROM 'source.table' VIRTUAL,
    ingested TIMESTAMP_LTZ(3) METADATA FROM 'ingestion-timestamp' VIRTUAL,
    subscription STRING METADATA FROM 'subscription' VIRTUAL,
    PRIMARY KEY (id) NOT ENFORCED";

/// Qualifiers and newest values of each row.
fn stored(table: &Table) -> BTreeMap<String, BTreeMap<String, Vec<u8>>> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    table
        .rows()
        .iter()
        .map(|row| {
            let mut cells: Vec<_> = row.cells.iter().collect();
            cells.sort_by_key(|cell| cell.timestamp_micros);
            let newest = cells
                .into_iter()
                .map(|cell| (text(&cell.qualifier), cell.value.clone()))
                .collect();
            (text(&row.key), newest)
        })
        .collect()
}

/// Insertions, updates and deletions from a changelog end in the right rows.
fn a_changelog_ends_in_its_final_rows(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let services = Services::new();
    let (topic, subscription) = services.subscribed("changes");
    let stock = services.table("stock", &[]);
    changes(&topic);
    let output = session(cluster, &jars).run(&format!(
        "CREATE TABLE changes ({CHANGES}) {};
         CREATE TABLE stock (id STRING, f ROW<quantity INT, origin STRING, ingested TIMESTAMP_LTZ(3), subscription STRING>,
           PRIMARY KEY (id) NOT ENFORCED) {};
         INSERT INTO stock SELECT id, ROW(quantity, origin, ingested, subscription) FROM changes;",
        services.reads("changes", "'format' = 'debezium-json'"),
        services.bigtable("stock"),
    ));
    let job = output.job();
    wait_while_running(cluster, job, "acknowledgements", || {
        (subscription.backlog() == 0).then_some(())
    });
    let row = |quantity: i32| {
        BTreeMap::from(
            [
                ("quantity", quantity.to_be_bytes().to_vec()),
                ("origin", b"stock".to_vec()),
                ("ingested", 2_000_i64.to_be_bytes().to_vec()),
                (
                    "subscription",
                    format!("projects/{PROJECT}/subscriptions/changes-sub").into_bytes(),
                ),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        )
    };
    assert_eq!(
        stored(&stock),
        BTreeMap::from([("a".to_owned(), row(3)), ("c".to_owned(), row(101))])
    );
    cluster.cancel(job);
}

/// A query that leaves metadata of the format out is given what it asks for, and not what lies beside it.
fn metadata_of_a_format_may_be_left_out(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    for (column, value) in [
        (
            "subscription",
            format!("projects/{PROJECT}/subscriptions/changes-sub"),
        ),
        ("origin", "stock".to_owned()),
        (
            "CAST(ingested AS STRING)",
            "1970-01-01 00:00:02.000".to_owned(),
        ),
    ] {
        let services = Services::new();
        let (topic, subscription) = services.subscribed("changes");
        let stock = services.table("stock", &[]);
        changes(&topic);
        let output = session(cluster, &jars).run(&format!(
            "CREATE TABLE changes ({CHANGES}) {};
             CREATE TABLE stock (id STRING, f ROW<v STRING>, PRIMARY KEY (id) NOT ENFORCED) {};
             INSERT INTO stock SELECT id, ROW({column}) FROM changes;",
            services.reads("changes", "'format' = 'debezium-json'"),
            services.bigtable("stock"),
        ));
        let job = output.job();
        wait_while_running(cluster, job, "acknowledgements", || {
            (subscription.backlog() == 0).then_some(())
        });
        let row = BTreeMap::from([("v".to_owned(), value.into_bytes())]);
        assert_eq!(
            stored(&stock),
            BTreeMap::from([("a".to_owned(), row.clone()), ("c".to_owned(), row)])
        );
        cluster.cancel(job);
    }
}

/// PS-SQL-07: a sink takes insertions only, whatever its format could say; as insertions it writes what a changelog
/// format makes of them.
fn a_sink_takes_insertions_only(cluster: &Cluster) {
    let Some(jars) = jars() else {
        return; // reported as not run
    };
    let services = Services::new();
    services.subscribed("changes");
    let totals = services.topic("totals");
    for format in ["json", "debezium-json"] {
        let tables = format!(
            "CREATE TABLE changes ({CHANGES}) {};
             CREATE TABLE totals (id STRING, quantity INT) {};",
            services.reads("changes", "'format' = 'debezium-json'"),
            services.writes("totals", &format!("'format' = '{format}'")),
        );
        for query in [
            "SELECT id, SUM(quantity) FROM changes GROUP BY id",
            "SELECT id, quantity FROM changes",
        ] {
            let error = session(cluster, &jars)
                .try_run(&format!("{tables} INSERT INTO totals {query};"))
                .expect_err("an updating query");
            assert!(
                error.cause().contains("totals") && error.cause().contains("update"),
                "{error}"
            );
        }
    }
    session(cluster, &jars)
        .set("table.dml-sync", "true")
        .run(&format!(
            "CREATE TABLE totals (id STRING, quantity INT) {};
         INSERT INTO totals VALUES ('a', 1);",
            services.writes("totals", "'format' = 'debezium-json'"),
        ));
    assert_eq!(
        texts(&totals),
        [r#"{"before":null,"after":{"id":"a","quantity":1},"op":"c"}"#]
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
        every_format_goes_out_and_comes_in
        a_changelog_ends_in_its_final_rows
        metadata_of_a_format_may_be_left_out
        a_sink_takes_insertions_only
    }
}

mod flink_1_20 {
    use super::*;

    #[test]
    fn every_format_goes_out_and_comes_in() {
        on(
            Version::Flink1_20,
            super::every_format_goes_out_and_comes_in,
        );
    }

    #[test]
    fn a_changelog_ends_in_its_final_rows() {
        on(
            Version::Flink1_20,
            super::a_changelog_ends_in_its_final_rows,
        );
    }
}
