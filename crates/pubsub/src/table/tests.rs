//! The statement of the guide, the rows on the wire's edge, and every refusal in a statement's own terms.

use std::collections::BTreeSet;

use aqueduct_connector::options::ConfigError;
use aqueduct_connector::row::{Row, RowBatch, RowKind};
use aqueduct_connector::sink::RecordInfo;
use aqueduct_connector::source::Boundedness;
use aqueduct_connector::table::{ScanPlan, SinkPlan, TableSpec, UsedBy};
use aqueduct_connector::types::LogicalType;
use aqueduct_testkit::log::capture;

use super::factory;
use super::options::table_options;
use crate::{sink_options, source_options};

fn to_read() -> TableSpec {
    TableSpec::new("incoming_orders")
        .option("project", "my-project")
        .option("subscription", "orders-sub")
}

fn to_write() -> TableSpec {
    TableSpec::new("customer_totals")
        .option("project", "my-project")
        .option("topic", "customer-totals")
}

fn scan(metadata: &[&str]) -> ScanPlan {
    ScanPlan {
        metadata: metadata.iter().map(|key| (*key).to_owned()).collect(),
        ..ScanPlan::default()
    }
}

fn insert(metadata: &[&str]) -> SinkPlan {
    SinkPlan {
        kinds: vec![RowKind::Insert],
        metadata: metadata.iter().map(|key| (*key).to_owned()).collect(),
        parallelism: None,
    }
}

fn with(table: TableSpec, options: &[(&str, &str)]) -> TableSpec {
    options
        .iter()
        .fold(table, |table, (key, value)| table.option(*key, *value))
}

fn scan_refusal(options: &[(&str, &str)]) -> String {
    let table = with(to_read(), options);
    let planned = factory().plan_scan(&table, &scan(&[]));
    let made = factory().source(&table, &scan(&[])).map(drop);
    let refused = planned.expect_err(&format!("{options:?}"));
    assert_eq!(made, Err(refused.clone()), "{options:?}: both say the same");
    refused.to_string()
}

fn sink_refusal_with(options: &[(&str, &str)], metadata: &[&str]) -> String {
    let table = with(to_write(), options);
    let planned = factory().plan_sink(&table, &insert(metadata));
    let made = factory().sink(&table, &insert(metadata)).map(drop);
    let refused = planned.expect_err(&format!("{options:?}"));
    assert_eq!(made, Err(refused.clone()), "{options:?}: both say the same");
    refused.to_string()
}

fn sink_refusal(options: &[(&str, &str)]) -> String {
    sink_refusal_with(options, &[])
}

#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
}

/// The two statements of the guide.
#[test]
fn the_order_pipeline_plans_as_written() {
    let incoming = to_read()
        .column("order_id", "STRING")
        .and_then(|table| table.column("customer_id", "STRING"))
        .and_then(|table| table.column("amount", "INT"))
        .expect("columns");
    let metadata = [
        "message-id",
        "publish-time",
        "attributes",
        "ordering-key",
        "subscription",
    ];
    let planned = factory()
        .plan_scan(&incoming, &scan(&metadata))
        .expect("plans");
    assert_eq!(planned.boundedness, Boundedness::Unbounded);
    assert_eq!(planned.parallelism, None);
    factory().source(&incoming, &scan(&metadata)).expect("made");

    let totals = to_write()
        .column("customer_id", "STRING")
        .and_then(|table| table.column("total", "INT"))
        .expect("columns");
    let planned = factory()
        .plan_sink(&totals, &insert(&["attributes"]))
        .expect("plans");
    assert_eq!(planned.accepts, [RowKind::Insert]);
    assert_eq!(planned.partition_by, [0_usize; 0]);
    factory()
        .sink(&totals, &insert(&["attributes"]))
        .expect("made");
}

#[test]
fn every_metadata_type_parses_and_a_key_has_one_type_each_way() {
    let mut seen = BTreeSet::new();
    for column in factory().metadata() {
        LogicalType::parse(column.ty).expect(column.key);
        assert!(column.readable || column.writable, "{}", column.key);
        for (way, has) in [("read", column.readable), ("written", column.writable)] {
            assert!(
                !has || seen.insert((column.key, way)),
                "{} twice",
                column.key
            );
        }
    }
    let text = |metadata: &str| {
        let planned = factory().plan_scan(&to_read(), &scan(&[metadata]));
        planned.expect_err("refused").to_string()
    };
    assert_says(&text("topic"), &["'topic'", "'message-id'"]);
    let refused = sink_refusal_with(&[], &["message-id"]);
    assert_says(&refused, &["'message-id'", "'attributes'", "VIRTUAL"]);
    assert_says(&text("timestamp"), &["'timestamp'", "'publish-time'"]);
}

/// PS-SQL-02: one option a setter, and no setter without one but those that take code.
#[test]
fn options_and_setters_match_both_ways() {
    let options = table_options();
    let keys: BTreeSet<&str> = options
        .iter()
        .map(|option| option.declaration.key)
        .collect();
    assert_eq!(keys.len(), options.len(), "a key is declared twice");
    let builders = sink_options::declarations()
        .into_iter()
        .chain(source_options::declarations());
    for declaration in builders {
        if declaration.key != source_options::CREATE_OPTIONS.key() {
            assert!(keys.contains(declaration.key), "{}", declaration.key);
        }
    }
    for option in &options {
        let (key, side) = (option.declaration.key, option.used_by);
        let fits = match key.split('.').next() {
            Some("sink") => side == UsedBy::Sink,
            Some("scan") => side == UsedBy::Scan,
            _ => true,
        };
        assert!(fits, "{key} belongs to {side:?}");
    }
    let setters: BTreeSet<&str> = options
        .iter()
        .map(|option| option.declaration.builder)
        .filter_map(|builder| builder.rsplit("::").next())
        .filter(|setter| !setter.is_empty())
        .collect();
    // What takes code, addresses or whole objects.
    let others = [
        "topic",
        "destination_resolver",
        "serializer",
        "failed_message_handler",
        "publisher_options",
        "topic_create_options",
        "subscription",
        "subscriptions",
        "deserializer",
        "subscriber_options",
    ];
    for source in [
        include_str!("../sink/builder.rs"),
        include_str!("../sink_options.rs"),
        include_str!("../source/builder.rs"),
        include_str!("../source/create.rs"),
    ] {
        let by_hand = source
            .lines()
            .filter_map(|line| line.trim().strip_prefix("pub fn ")?.split_once('('))
            .filter(|(_, rest)| rest.is_empty() || rest.starts_with("mut self"));
        let by_macro = source
            .lines()
            .filter(|line| line.contains(") => ") && line.ends_with(';'))
            .filter_map(|line| line.trim().split_once('('));
        for (setter, _) in by_hand.chain(by_macro) {
            let setter = setter.split('<').next().unwrap_or_default();
            if setter.starts_with('$') || others.contains(&setter) {
                continue;
            }
            assert!(setters.contains(setter), "{setter} has no option");
        }
    }
}

/// Each option of a list, given a good value, plans; so each is read under its own name.
#[test]
fn every_option_is_read() {
    let value = |key: &str, kind: &str| match (key, kind) {
        ("project" | "topic" | "subscription", _) => None,
        ("emulator-endpoint", _) => Some("localhost:8085"),
        ("scan.ordering-mode", _) => Some("Per-Key"),
        ("scan.deserialization-failure-policy", _) => Some("NACK"),
        ("scan.exactly-once-subscriptions", _) => Some("accept"),
        ("scan.startup.mode", _) => Some("timestamp"),
        ("scan.auto-create.topics", _) => Some("orders-sub:orders"),
        ("scan.auto-create.ack-deadline", _) => Some("60 s"),
        ("sink.create-disposition", _) => Some("CREATE-IF-NEEDED"),
        ("scan.auto-create.never-expire", _) => Some("false"),
        (_, "whole number") => Some("1"),
        (_, "number") => Some("2.5"),
        (_, "boolean") => Some("true"),
        (_, "duration") => Some("5 s"),
        (_, "byte size") => Some("1 mb"),
        (_, "text") => Some("some-text"),
        (key, kind) => panic!("{key}: no value for a {kind}"),
    };
    let (mut read, mut write) = (to_read(), to_write());
    for option in table_options() {
        let key = option.declaration.key;
        // Excluded by another one.
        let excluded = [
            "service-account-key-file",
            "sink.retry.total-timeout",
            "sink.retry.max-attempts",
        ];
        let Some(good) = value(key, option.declaration.kind).filter(|_| !excluded.contains(&key))
        else {
            continue;
        };
        let sides = match option.used_by {
            UsedBy::Both => (true, true),
            UsedBy::Scan => (true, false),
            UsedBy::Sink | UsedBy::Lookup => (false, true),
        };
        if sides.0 {
            read = read.option(key, good);
        }
        if sides.1 {
            write = write.option(key, good);
        }
        // A value that cannot be good is refused under this name.
        if option.declaration.kind != "text" {
            let bad = [(key, "?")];
            let text = if sides.0 {
                let mut table = with(to_read(), &bad);
                if key.starts_with("scan.auto-create.") {
                    table = table
                        .option("scan.auto-create.topics", "orders-sub:orders")
                        .option("scan.auto-create.dead-letter.topic", "dead");
                    if !key.ends_with("attempts") {
                        table =
                            table.option("scan.auto-create.dead-letter.max-delivery-attempts", "5");
                    }
                }
                if key.starts_with("scan.startup") {
                    table = table.option("scan.startup.mode", "timestamp");
                }
                let planned = factory().plan_scan(&table, &scan(&[]));
                planned.expect_err(key).to_string()
            } else if key == "sink.auto-create.storage-policy.enforce-in-transit" {
                sink_refusal(&[
                    (key, "?"),
                    ("sink.auto-create.storage-policy.allowed-regions", "eu"),
                ])
            } else {
                sink_refusal(&bad)
            };
            assert!(
                text.starts_with(&format!("Option '{key}' is invalid: ")),
                "{text}"
            );
        }
    }
    let planned = factory().plan_scan(&read, &scan(&[])).expect("all at once");
    assert_eq!(planned.parallelism, Some(1));
    let planned = factory()
        .plan_sink(&write, &insert(&["ordering-key"]))
        .expect("all at once");
    assert_eq!(planned.parallelism, Some(1));
    let no_ordering: [(&str, &str); 3] = [
        ("sink.retry.total-timeout", "0 s"),
        ("sink.retry.max-attempts", "3"),
        ("service-account-key-file", "/etc/key.json"),
    ];
    factory()
        .plan_sink(&with(to_write(), &no_ordering), &insert(&[]))
        .expect("without ordering");
    let key = [("service-account-key-file", "/etc/key.json")];
    factory()
        .plan_scan(&with(to_read(), &key), &scan(&[]))
        .expect("with a key");
}

#[test]
fn what_is_missing_or_unknown_is_named_before_anything_else() {
    let plan = insert(&[]);
    let bare = TableSpec::new("t").option("sink.channels", "none");
    let refused = factory().plan_sink(&bare, &plan).expect_err("refused");
    assert!(
        matches!(
            refused,
            ConfigError::Missing {
                option: "project",
                ..
            }
        ),
        "{refused}"
    );
    let project = bare.option("project", "p");
    let refused = factory().plan_sink(&project, &plan).expect_err("refused");
    assert!(
        matches!(
            refused,
            ConfigError::Missing {
                option: "topic",
                ..
            }
        ),
        "{refused}"
    );
    let refused = factory()
        .plan_scan(&project, &scan(&[]))
        .expect_err("refused");
    assert!(
        matches!(
            refused,
            ConfigError::Missing {
                option: "subscription",
                ..
            }
        ),
        "{refused}"
    );
    assert_says(
        &sink_refusal(&[("sink.chanels", "2")]),
        &["'sink.chanels'", "'sink.channels'"],
    );
    assert_says(&sink_refusal(&[("properties.acks", "all")]), &["unknown"]);
    assert_says(
        &scan_refusal(&[("scan.startup.mod", "latest")]),
        &["'scan.startup.mode'"],
    );
}

/// What is to be removed comes before what is misspelt.
#[test]
fn a_sink_refuses_what_does_not_go_together() {
    let misspelt = ("sink.batching.delay-threshold", "soon");
    assert_says(
        &sink_refusal(&[
            misspelt,
            ("service-account-key-file", "/k"),
            ("emulator-endpoint", "h:1"),
        ]),
        &[
            "'service-account-key-file'",
            "'emulator-endpoint'",
            "remove",
        ],
    );
    for setting in [
        ("sink.auto-create.message-retention", "1 d"),
        ("sink.auto-create.kms-key-name", "k"),
        ("sink.auto-create.storage-policy.allowed-regions", "eu"),
        ("sink.auto-create.storage-policy.enforce-in-transit", "true"),
    ] {
        assert_says(
            &sink_refusal(&[
                misspelt,
                ("sink.create-disposition", "Create-Never"),
                setting,
            ]),
            &["'sink.create-disposition'", setting.0, "remove"],
        );
    }
    for limit in [
        ("sink.retry.total-timeout", "10 s"),
        ("sink.retry.max-attempts", "many"),
    ] {
        assert_says(
            &sink_refusal(&[misspelt, ("sink.message-ordering.enabled", "true"), limit]),
            &["'sink.message-ordering.enabled'", limit.0, "remove"],
        );
    }
    let transit = "sink.auto-create.storage-policy.enforce-in-transit";
    for value in ["true", "false"] {
        assert_says(
            &sink_refusal(&[misspelt, (transit, value)]),
            &[transit, "regions"],
        );
    }
    for ordering in [
        &[misspelt][..],
        &[("sink.message-ordering.enabled", "false")],
    ] {
        assert_says(
            &sink_refusal_with(ordering, &["ordering-key"]),
            &[
                "Option 'sink.message-ordering.enabled' is invalid",
                "VIRTUAL",
            ],
        );
    }
}

#[test]
fn a_sink_refuses_values_by_name() {
    for (key, value, reason) in [
        ("topic", "a/b", "'/'"),
        ("topic", " ", "blank"),
        ("project", "a/b", "'/'"),
        ("sink.create-disposition", "sometimes", "'create-never'"),
        ("sink.batching.element-count-threshold", "0", "1 messages"),
        ("sink.batching.delay-threshold", "0 s", "least"),
        ("sink.retry.delay-multiplier", "0.5", "least"),
        ("sink.retry.rpc-timeout-multiplier", "inf", "number"),
        ("sink.in-flight.max-bytes", "0", "least"),
        ("sink.max-consecutive-rejections", "0", "-1"),
        ("sink.max-consecutive-rejections", "-2", "least"),
        ("sink.channels", "65", "most"),
        ("sink.recovery.max-backoff", "1 ms", "first attempt"),
        ("sink.parallelism", "0", "least"),
        ("sink.auto-create.message-retention", "0 s", "least"),
        ("sink.auto-create.kms-key-name", " ", "blank"),
        (
            "sink.auto-create.storage-policy.allowed-regions",
            "eu;;us",
            "empty",
        ),
        ("emulator-endpoint", "localhost", "port"),
        ("service-account-key-file", "", "blank"),
    ] {
        let text = sink_refusal(&[(key, value)]);
        assert!(
            text.starts_with(&format!("Option '{key}' is invalid: ")) && text.contains(reason),
            "{key} = {value}: {text}"
        );
    }
}

#[test]
fn message_ordering_without_a_key_warns_and_with_one_partitions() {
    let ordered = to_write().option("sink.message-ordering.enabled", "true");
    let log = capture();
    let planned = factory()
        .plan_sink(&ordered, &insert(&["attributes"]))
        .expect("plans");
    assert_eq!(planned.partition_by, [0_usize; 0]);
    let warnings = log.matching(tracing::Level::WARN, "ordering-key");
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].field("table"), Some("customer_totals"));

    let log = capture();
    let keyed = insert(&["attributes", "ordering-key"]);
    let planned = factory().plan_sink(&ordered, &keyed).expect("plans");
    assert_eq!(planned.partition_by, [2]);
    assert!(log.matching(tracing::Level::WARN, "").is_empty());

    // One writer needs no exchange, whoever says that there is one.
    let alone = SinkPlan {
        parallelism: Some(1),
        ..keyed.clone()
    };
    let planned = factory().plan_sink(&ordered, &alone).expect("plans");
    assert_eq!(planned.partition_by, [0_usize; 0]);
    let two = ordered.option("sink.parallelism", "2");
    let planned = factory().plan_sink(&two, &alone).expect("plans");
    assert_eq!(
        (planned.partition_by, planned.parallelism),
        (vec![2], Some(2))
    );
}

/// What is to be removed, or is missing beside another, comes before what is misspelt.
#[test]
fn a_scan_refuses_what_does_not_go_together() {
    let misspelt = ("scan.max-records-per-fetch", "lots");
    let time = ("scan.startup.timestamp-millis", "1");
    assert_says(&scan_refusal(&[misspelt, time]), &[time.0, "remove"]);
    for mode in ["latest", "earliest-retained", "continue-from-subscription"] {
        assert_says(
            &scan_refusal(&[misspelt, time, ("scan.startup.mode", mode)]),
            &["'scan.startup.mode'", time.0, "remove"],
        );
    }
    assert_says(
        &scan_refusal(&[misspelt, ("scan.startup.mode", "TIMESTAMP")]),
        &["Option 'scan.startup.mode' is invalid", time.0],
    );
    assert_says(
        &scan_refusal(&[
            misspelt,
            ("service-account-key-file", "/k"),
            ("emulator-endpoint", "h:1"),
        ]),
        &["'service-account-key-file'", "remove"],
    );
    for (key, value) in [
        ("scan.auto-create.ack-deadline", "10 s"),
        ("scan.auto-create.message-ordering.enabled", "false"),
        ("scan.auto-create.message-retention", "1 d"),
        ("scan.auto-create.retain-acked-messages", "true"),
        ("scan.auto-create.expiration-ttl", "1 d"),
        ("scan.auto-create.never-expire", "false"),
        ("scan.auto-create.dead-letter.topic", "dead"),
        ("scan.auto-create.dead-letter.max-delivery-attempts", "5"),
        ("scan.auto-create.filter", "x"),
    ] {
        let text = scan_refusal(&[misspelt, (key, value)]);
        assert!(
            text.starts_with(&format!("Option '{key}' is invalid: ")),
            "{text}"
        );
        assert_says(&text, &["'scan.auto-create.topics'", "remove"]);
    }
    let map = ("scan.auto-create.topics.orders-sub", "orders");
    assert_says(
        &scan_refusal(&[
            misspelt,
            map,
            ("scan.auto-create.expiration-ttl", "1 d"),
            ("scan.auto-create.never-expire", "true"),
        ]),
        &["expiration-ttl'", "never-expire'", "remove"],
    );
    let halves = [
        ("scan.auto-create.dead-letter.topic", "dead"),
        ("scan.auto-create.dead-letter.max-delivery-attempts", "5"),
    ];
    for (half, other) in [(halves[0], halves[1]), (halves[1], halves[0])] {
        let text = scan_refusal(&[misspelt, map, half]);
        assert!(
            text.starts_with(&format!("Option '{}' is invalid: ", half.0)),
            "{text}"
        );
        assert_says(&text, &[other.0]);
    }
    assert_says(
        &scan_refusal(&[
            misspelt,
            map,
            ("scan.auto-create.topics", "orders-sub:orders"),
        ]),
        &[
            "Option 'scan.auto-create.topics' is invalid",
            "keep one form",
        ],
    );
    assert_says(
        &scan_refusal(&[map, ("scan.ordering-mode", "per-key")]),
        &[
            "'scan.ordering-mode'",
            "'scan.auto-create.message-ordering.enabled'",
        ],
    );
    assert_says(
        &scan_refusal(&[map, ("scan.deserialization-failure-policy", "nack")]),
        &["failure-policy'", "'scan.auto-create.dead-letter.topic'"],
    );
    assert_says(
        &scan_refusal(&[
            ("scan.ordering-mode", "per-key"),
            ("scan.parallel-pull-count", "2"),
        ]),
        &["'scan.parallel-pull-count'", "'scan.ordering-mode'"],
    );
}

#[test]
fn a_map_of_topics_names_every_subscription_and_no_other() {
    let two = ("subscription", "orders-sub; refunds-sub");
    let text = scan_refusal(&[
        two,
        ("scan.auto-create.topics.orders-sub", "orders"),
        ("scan.auto-create.topics.other-sub", "x"),
        ("scan.auto-create.topics.further-sub", "x"),
    ]);
    assert!(
        text.starts_with("Option 'scan.auto-create.topics' is invalid: "),
        "{text}"
    );
    assert_says(
        &text,
        &[
            "for 'refunds-sub'",
            "'further-sub', 'other-sub' is not in 'subscription'",
        ],
    );
    let full = "projects/other/topics/refunds";
    for good in [
        vec![
            two,
            ("scan.auto-create.topics.orders-sub", "orders"),
            ("scan.auto-create.topics.refunds-sub", full),
        ],
        vec![
            two,
            (
                "scan.auto-create.topics",
                "orders-sub:orders, refunds-sub:refunds",
            ),
        ],
    ] {
        factory()
            .plan_scan(&with(to_read(), &good), &scan(&[]))
            .expect("plans");
    }
    for (value, reason) in [
        ("", "name:value"),
        ("orders-sub", "name:value"),
        ("a:b,a:c", "twice"),
    ] {
        let text = scan_refusal(&[("scan.auto-create.topics", value)]);
        assert!(
            text.starts_with("Option 'scan.auto-create.topics' is invalid: "),
            "{text}"
        );
        assert_says(&text, &[reason]);
    }
}

#[test]
fn a_scan_refuses_values_by_name() {
    let map = ("scan.auto-create.topics.orders-sub", "orders");
    for (key, value, reason) in [
        ("subscription", "a/b", "'/'"),
        ("subscription", "orders-sub;", "empty"),
        ("subscription", "orders-sub;orders-sub", "twice"),
        ("project", " p", "white space"),
        ("scan.startup.mode", "earliest", "'earliest-retained'"),
        ("scan.ordering-mode", "by-key", "'per-key'"),
        ("scan.deserialization-failure-policy", "ignore", "'nack'"),
        ("scan.exactly-once-subscriptions", "yes", "'accept'"),
        (
            "scan.flow-control.max-outstanding-element-count",
            "0",
            "least",
        ),
        ("scan.subscriber-buffer.max-bytes", "0", "least"),
        ("scan.ack.await-confirmation", "0 s", "least"),
        ("scan.shutdown-timeout", "0", "least"),
        ("scan.parallelism", "0", "least"),
        ("emulator-endpoint", "h:0", "port"),
    ] {
        let text = scan_refusal(&[(key, value)]);
        assert!(
            text.starts_with(&format!("Option '{key}' is invalid: ")) && text.contains(reason),
            "{key} = {value}: {text}"
        );
    }
    for (key, value, reason) in [
        ("scan.auto-create.topics.orders-sub", "a/b", "'/'"),
        (
            "scan.auto-create.topics.orders-sub",
            "projects/p/orders",
            "projects/<project>",
        ),
        ("scan.auto-create.ack-deadline", "0 s", "least"),
        ("scan.auto-create.ack-deadline", "1500 ms", "whole seconds"),
        ("scan.auto-create.message-retention", "0 s", "least"),
        ("scan.auto-create.expiration-ttl", "0 s", "least"),
        ("scan.auto-create.filter", " ", "blank"),
    ] {
        let mut options = vec![map];
        options.retain(|(given, _)| *given != key);
        options.push((key, value));
        let text = scan_refusal(&options);
        let key = key.trim_end_matches(".orders-sub");
        assert!(
            text.starts_with(&format!("Option '{key}' is invalid: ")) && text.contains(reason),
            "{key} = {value}: {text}"
        );
    }
    assert_says(
        &scan_refusal(&[
            ("scan.ack.min-duration-per-extension", "20 s"),
            ("scan.ack.max-duration-per-extension", "10 s"),
        ]),
        &["min-duration-per-extension'", "max-duration-per-extension'"],
    );
}

#[test]
fn the_time_of_a_start_is_an_instant_of_this_era() {
    let mode = ("scan.startup.mode", "timestamp");
    for bad in ["-1", "253402300800000", "2026-01-01"] {
        assert_says(
            &scan_refusal(&[mode, ("scan.startup.timestamp-millis", bad)]),
            &["Option 'scan.startup.timestamp-millis' is invalid: "],
        );
    }
    for good in ["0", "253402300799999"] {
        let table = with(to_read(), &[mode, ("scan.startup.timestamp-millis", good)]);
        factory().plan_scan(&table, &scan(&[])).expect(good);
    }
}

mod rows {
    //! Rows to messages.

    use super::*;
    use crate::message::Message;
    use crate::sink::{DestinationResolver, MessageSerializer};
    use crate::table::metadata::TEXT;
    use crate::table::sink::{RowSerializer, TopicResolver};
    use crate::{TopicDestination, table::access};

    fn row(
        kind: RowKind,
        arity: usize,
        fill: impl FnOnce(&mut aqueduct_connector::row::RowWriter<'_>),
    ) -> Row {
        let mut batch = RowBatch::new();
        batch.push(None, kind, arity, fill);
        let bytes = batch.iter().next().expect("one row").bytes.to_vec();
        Row::new(bytes.into())
    }

    fn info() -> RecordInfo {
        RecordInfo::default()
    }

    fn refusal(row: &Row) -> String {
        let mut serializer = RowSerializer::new(&["attributes".to_owned()]);
        let mut message = Message::new();
        let refused = serializer.serialize(row, info(), &mut message);
        refused.expect_err("refused").to_string()
    }

    #[test]
    fn a_null_in_the_attributes_fails_and_nothing_of_them_is_shown() {
        for (key, value, part) in [
            (None, Some("SECRET"), "NULL key"),
            (Some("SECRET"), None, "NULL value"),
        ] {
            let row = row(RowKind::Insert, 2, |row| {
                row.bytes(0, b"SECRET");
                row.map(
                    1,
                    (&TEXT, &TEXT),
                    2,
                    |keys| {
                        keys.str(0, "good");
                        if let Some(key) = key {
                            keys.str(1, key);
                        }
                    },
                    |values| {
                        values.str(0, "good");
                        if let Some(value) = value {
                            values.str(1, value);
                        }
                    },
                );
            });
            let text = refusal(&row);
            assert_says(&text, &["entry 1", part, "filter"]);
            assert!(!text.contains("SECRET"), "{text}");
        }
    }

    #[test]
    fn a_row_that_is_no_insertion_and_one_without_payload_are_refused() {
        for kind in [RowKind::UpdateBefore, RowKind::UpdateAfter, RowKind::Delete] {
            let text = refusal(&row(kind, 2, |row| row.bytes(0, b"x")));
            assert_says(&text, &[kind.short(), "insertions only"]);
        }
        assert_says(&refusal(&row(RowKind::Insert, 2, |_| ())), &["payload"]);
        assert_says(&refusal(&Row::new(vec![0; 8].into())), &["cannot be read"]);
    }

    #[test]
    fn a_topic_is_a_plain_name_a_full_one_or_the_tables() {
        let default = TopicDestination::new("p", "totals").expect("valid");
        let mut resolver = TopicResolver::new(&["topic".to_owned()], "p", default.clone())
            .expect("the plan has it");
        let mut topic = |name: Option<&str>| {
            let row = row(RowKind::Insert, 2, |row| {
                row.bytes(0, b"x");
                if let Some(name) = name {
                    row.str(1, name);
                }
            });
            resolver.resolve(&row, info())
        };
        assert_eq!(topic(None).expect("valid"), Some(default));
        for _ in 0..2 {
            let named = topic(Some("orders-ap")).expect("valid").expect("named");
            assert_eq!(named.to_string(), "projects/p/topics/orders-ap");
        }
        let full = topic(Some("projects/q/topics/orders-eu")).expect("valid");
        assert_eq!(
            full.expect("named").to_string(),
            "projects/q/topics/orders-eu"
        );
        for bad in [
            "",
            " ",
            "a/SECRET",
            "SECRET ",
            "projects/q/SECRET",
            "projects//topics/SECRET",
        ] {
            let text = topic(Some(bad)).expect_err(bad).to_string();
            assert!(!text.contains("SECRET"), "{text}");
        }
        // Many names are forgotten, not refused.
        for number in 0..3_000 {
            let name = format!("t{number}");
            let named = topic(Some(&name)).expect("valid").expect("named");
            assert_eq!(named.topic(), name);
        }
        assert!(access::topic("p", "projects/q/topics/a/b").is_err());
    }
}
