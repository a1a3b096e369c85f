//! What the tests of tables share: statements against a service, rows in and out.

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_connector::row::{Row, RowKind};
use aqueduct_connector::sink::Sink;
use aqueduct_connector::source::Source;
use aqueduct_connector::table::{ScanPlan, SinkPlan, TableSpec};
use aqueduct_connector::types::DataType;
use aqueduct_connector::{Error, Timestamp};
use aqueduct_pubsub::table::factory;
use aqueduct_testkit::table::{TableRows, row};
use aqueduct_testkit::{SinkHost, SourceHost, TestContext, within};

use super::source_support::LIMIT;

const TEXT: DataType = DataType::string();

/// The readable metadata, in the order of [`Read`]'s fields.
const READABLE: [&str; 6] = [
    "message-id",
    "publish-time",
    "attributes",
    "ordering-key",
    "subscription",
    "delivery-attempt",
];

/// A row that was read, with all metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) payload: String,
    pub(crate) id: String,
    pub(crate) published_millis: i64,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) key: Option<String>,
    pub(crate) subscription: String,
    pub(crate) attempt: Option<i32>,
}

impl Read {
    fn of(row: &Row) -> Self {
        let row = row.view(1 + READABLE.len()).expect("a row");
        assert_eq!(row.kind(), RowKind::Insert);
        let text = |field| row.str(field).expect("text").to_owned();
        for field in [0, 1, 2, 3, 5] {
            assert!(!row.is_null(field), "field {field} is never null");
        }
        let map = row.map(3, &TEXT, &TEXT).expect("a map");
        let attributes = (0..map.len()).map(|entry| {
            assert!(!map.keys.is_null(entry) && !map.values.is_null(entry));
            let text = |array: &aqueduct_connector::row::ArrayRef<'_>| {
                array.str(entry).expect("text").to_owned()
            };
            (text(&map.keys), text(&map.values))
        });
        Self {
            payload: String::from_utf8(row.bytes(0).expect("bytes").to_vec()).expect("text"),
            id: text(1),
            published_millis: row.time(2, 3).expect("a time").millis,
            attributes: attributes.collect(),
            key: (!row.is_null(4)).then(|| text(4)),
            subscription: text(5),
            attempt: (!row.is_null(6)).then(|| row.i32(6)),
        }
    }
}

/// A row to write: its payload and what is not NULL of its metadata.
#[derive(Clone, Debug, Default)]
pub(crate) struct Write {
    pub(crate) payload: &'static str,
    pub(crate) attributes: Option<Vec<(Option<&'static str>, Option<&'static str>)>>,
    pub(crate) key: Option<&'static str>,
    pub(crate) topic: Option<&'static str>,
}

impl Write {
    pub(crate) fn new(payload: &'static str) -> Self {
        Self {
            payload,
            ..Self::default()
        }
    }

    pub(crate) fn attribute(mut self, key: &'static str, value: &'static str) -> Self {
        let attributes = self.attributes.get_or_insert_default();
        attributes.push((Some(key), Some(value)));
        self
    }

    pub(crate) fn key(mut self, key: &'static str) -> Self {
        self.key = Some(key);
        self
    }

    pub(crate) fn topic(mut self, topic: &'static str) -> Self {
        self.topic = Some(topic);
        self
    }

    /// With `attributes`, `ordering-key` and `topic`, in this order.
    fn row(&self) -> Row {
        row(RowKind::Insert, 4, |row| {
            row.bytes(0, self.payload.as_bytes());
            if let Some(attributes) = &self.attributes {
                row.map(
                    1,
                    (&TEXT, &TEXT),
                    attributes.len(),
                    |keys| {
                        for (entry, (key, _)) in attributes.iter().enumerate() {
                            key.iter().for_each(|key| keys.str(entry, key));
                        }
                    },
                    |values| {
                        for (entry, (_, value)) in attributes.iter().enumerate() {
                            value.iter().for_each(|value| values.str(entry, value));
                        }
                    },
                );
            }
            self.key.iter().for_each(|key| row.str(2, key));
            self.topic.iter().for_each(|topic| row.str(3, topic));
        })
    }
}

/// A statement for the service at `endpoint`.
pub(crate) fn statement(endpoint: &str, project: &str, options: &[(&str, &str)]) -> TableSpec {
    let table = TableSpec::new("orders")
        .option("project", project)
        .option("emulator-endpoint", endpoint.trim_start_matches("http://"));
    options
        .iter()
        .fold(table, |table, (key, value)| table.option(*key, *value))
}

/// Reads a table with all metadata. Payloads that begin with `bad` are rejected.
pub(crate) fn read(table: &TableSpec, kit: &TestContext, parallelism: u32) -> SourceHost<Row> {
    let plan = ScanPlan {
        metadata: READABLE.map(str::to_owned).to_vec(),
        ..ScanPlan::default()
    };
    factory().plan_scan(table, &plan).expect("plans");
    let source = factory().source(table, &plan).expect("made");
    let rows = TableRows::new(source).rejecting(|row| {
        let payload = row.view(1 + READABLE.len()).expect("a row");
        let payload = payload.bytes(0).expect("bytes");
        payload.starts_with(b"bad").then_some("this is no JSON")
    });
    let source: Arc<dyn Source<Row>> = Arc::new(rows);
    SourceHost::start(source, kit, parallelism).expect("starts")
}

/// Writes a table with all metadata.
pub(crate) fn write(table: &TableSpec, kit: &TestContext, parallelism: u32) -> SinkHost<Row> {
    let plan = SinkPlan {
        kinds: vec![RowKind::Insert],
        metadata: ["attributes", "ordering-key", "topic"]
            .map(str::to_owned)
            .to_vec(),
        parallelism: Some(parallelism),
    };
    let planned = factory().plan_sink(table, &plan).expect("plans");
    assert_eq!(planned.accepts, [RowKind::Insert]);
    let sink: Arc<dyn Sink<Row>> = Arc::from(factory().sink(table, &plan).expect("made"));
    SinkHost::start(sink, kit, parallelism).expect("writers")
}

pub(crate) fn rows(written: &[Write]) -> Vec<Row> {
    written.iter().map(Write::row).collect()
}

/// What was emitted so far; each row's event time is its publish time.
pub(crate) fn emitted(host: &SourceHost<Row>) -> Vec<Read> {
    host.emitted()
        .map(|emitted| {
            let read = Read::of(&emitted.record.value);
            let time = emitted.record.timestamp.map(Timestamp::millis);
            assert_eq!(time, Some(read.published_millis));
            read
        })
        .collect()
}

pub(crate) fn payloads(host: &SourceHost<Row>) -> Vec<String> {
    emitted(host).into_iter().map(|read| read.payload).collect()
}

/// Steps until `holds`; `meanwhile` is called after each step.
pub(crate) async fn step_until(
    host: &mut SourceHost<Row>,
    what: &str,
    mut holds: impl FnMut(&SourceHost<Row>) -> bool,
    mut meanwhile: impl FnMut(),
) {
    let steps = async {
        while !holds(host) {
            host.try_step().await.expect("well");
            meanwhile();
        }
    };
    within(LIMIT, what, steps).await;
}

/// Runs until the source fails.
pub(crate) async fn failure(host: &mut SourceHost<Row>) -> Error {
    host.run_until(|_| false)
        .await
        .expect_err("the source fails")
}
