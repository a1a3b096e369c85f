//! What a statement may say, and what the planner is told.

use aqueduct_connector::row::RowKind;
use aqueduct_connector::table::FieldPath;

use super::*;

const ALL_KINDS: [RowKind; 4] = [
    RowKind::Insert,
    RowKind::UpdateBefore,
    RowKind::UpdateAfter,
    RowKind::Delete,
];

fn table() -> TableSpec {
    TableSpec::new("orders")
        .column("cf", "ROW<a STRING, b INT NOT NULL>")
        .expect("a type")
        .column("id", "STRING NOT NULL")
        .expect("a type")
        .column("other", "ROW<c BYTES>")
        .expect("a type")
        .option("project", "p")
        .option("instance", "i")
        .option("table", "t")
}

fn columns(columns: &[(&str, &str)]) -> TableSpec {
    columns.iter().fold(
        TableSpec {
            columns: Vec::new(),
            ..table()
        },
        |spec, (name, ty)| spec.column(*name, ty).expect("a type"),
    )
}

fn sink_plan(kinds: &[RowKind], metadata: &[&str]) -> SinkPlan {
    SinkPlan {
        kinds: kinds.to_vec(),
        metadata: metadata.iter().map(|key| (*key).to_owned()).collect(),
        parallelism: None,
    }
}

fn inserts() -> SinkPlan {
    sink_plan(&[RowKind::Insert], &[])
}

fn lookup_plan(keys: &[&[usize]]) -> LookupPlan {
    LookupPlan {
        keys: keys.iter().map(|path| FieldPath(path.to_vec())).collect(),
        fields: None,
    }
}

/// Planning and making refuse alike.
fn refused(spec: &TableSpec) -> String {
    let factory = factory();
    let text = factory
        .plan_sink(spec, &inserts())
        .expect_err("refused")
        .to_string();
    assert_eq!(
        factory
            .sink(spec, &inserts())
            .map(|_| ())
            .expect_err("refused")
            .to_string(),
        text
    );
    text
}

#[test]
fn a_good_statement_plans_and_makes_everything() {
    let (factory, spec) = (factory(), table().primary_key(["id"]));
    assert_eq!(factory.connector(), "bigtable");
    factory.sink(&spec, &inserts()).expect("a sink");
    factory
        .source(&spec, &ScanPlan::default())
        .expect("a source");
    factory
        .lookup(&spec, &lookup_plan(&[&[1]]))
        .expect("a lookup");
    let planned = factory.plan_scan(
        &spec.clone().option("scan.parallelism", "3"),
        &ScanPlan::default(),
    );
    let planned = planned.expect("planned");
    assert_eq!(planned.boundedness, Boundedness::Bounded);
    assert_eq!(
        (planned.kinds, planned.parallelism),
        (vec![RowKind::Insert], Some(3))
    );
    for (value, asynchronous) in [("true", true), ("false", false)] {
        let spec = spec.clone().option("lookup.async", value);
        let planned = factory
            .plan_lookup(&spec, &lookup_plan(&[&[1]]))
            .expect("planned");
        assert_eq!(planned.asynchronous, asynchronous);
    }
}

#[test]
fn order_is_on_when_rows_are_updated_and_brings_rows_of_a_key_to_one_writer() {
    let upserts = [RowKind::Insert, RowKind::UpdateAfter, RowKind::Delete];
    for (kinds, option, ordered) in [
        (&[RowKind::Insert][..], None, false),
        (&ALL_KINDS, None, true),
        (&[RowKind::Insert, RowKind::UpdateAfter], None, true),
        (&[RowKind::Insert, RowKind::Delete], None, true),
        (&[RowKind::Insert], Some("per-row"), true),
        (&ALL_KINDS, Some("none"), false),
    ] {
        let mut spec = table();
        if let Some(option) = option {
            spec = spec.option("sink.row-ordering", option);
        }
        let planned = factory()
            .plan_sink(&spec, &sink_plan(kinds, &[]))
            .expect("planned");
        assert_eq!(planned.accepts, upserts, "never an UPDATE_BEFORE");
        assert_eq!(
            planned.partition_by,
            if ordered { vec![1] } else { vec![] },
            "{kinds:?} {option:?}"
        );
        let settings = Settings::of(&spec).expect("valid");
        let sink = format!(
            "{:?}",
            write::sink(&settings, &sink_plan(kinds, &[])).expect("a sink")
        );
        assert_eq!(sink.contains("PerRow"), ordered, "{sink}");
    }
}

#[test]
fn insert_only_input_is_told_to_the_planner_only_where_it_is_asked_for_and_true() {
    let spec = table()
        .option("sink.insert-only-input-mode", "insert-only")
        .option("sink.parallelism", "4");
    let planned = factory().plan_sink(&spec, &inserts()).expect("planned");
    assert_eq!(
        (planned.accepts, planned.parallelism),
        (vec![RowKind::Insert], Some(4))
    );
    let planned = factory()
        .plan_sink(&spec, &sink_plan(&ALL_KINDS, &[]))
        .expect("planned");
    assert_eq!(planned.accepts.len(), 3);
    let planned = factory().plan_sink(&table(), &inserts()).expect("planned");
    assert_eq!(planned.accepts.len(), 3);
}

#[test]
fn a_table_without_an_address_is_told_that_before_anything_about_its_columns() {
    for missing in ["project", "instance", "table"] {
        let mut spec = columns(&[("a", "ARRAY<INT>")]).option("sink.parallelism", "0");
        spec.options.remove(missing);
        let text = refused(&spec);
        assert!(text.contains(&format!("'{missing}' is required")), "{text}");
    }
}

#[test]
fn columns_that_make_no_table_are_named() {
    for (spec, parts) in [
        (columns(&[("cf", "ROW<a INT>")]), &["row key"][..]),
        (
            columns(&[("id", "INT"), ("x", "INT"), ("cf", "ROW<a INT>")]),
            &["'x'", "'id'"],
        ),
        (columns(&[("id", "INT")]), &["'id'", "family"]),
        (columns(&[("id", "INT"), ("c:f", "ROW<a INT>")]), &["'c:f'"]),
        (
            columns(&[("id", "INT"), ("cf", "ROW<a ROW<b INT>>")]),
            &["'cf.a'", "nested"],
        ),
        (
            columns(&[("id", "TIMESTAMP(6)"), ("cf", "ROW<a INT>")]),
            &["'id'", "precision of 3"],
        ),
        (
            columns(&[("id", "INT"), ("cf", "ROW<a TIME(6)>")]),
            &["'cf.a'"],
        ),
        (
            columns(&[("id", "INT"), ("cf", "ROW<a MAP<INT, INT>>")]),
            &["'cf.a'"],
        ),
        (table().primary_key(["cf"]), &["'cf'", "'id'"]),
        (table().primary_key(["id", "other"]), &["'other'"]),
    ] {
        let text = refused(&spec);
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    let keys_only = columns(&[("id", "INT")]);
    factory()
        .plan_scan(&keys_only, &ScanPlan::default())
        .expect("keys can be read");
}

#[test]
fn options_are_refused_by_name() {
    for (options, parts) in [
        (
            &[("sink.write-mode", "append")][..],
            &["'sink.write-mode'", "'append'", "'upsert', 'keep-latest'"][..],
        ),
        (
            &[("sink.delivery-guarantee", "exactly-once")],
            &["'sink.delivery-guarantee'", "'at-least-once'"],
        ),
        (
            &[("scan.mode", "change-stream")],
            &["'scan.mode'", "'bounded'"],
        ),
        (
            &[("lookup.cache", "ALL")],
            &["'lookup.cache'", "'NONE', 'PARTIAL', 'FULL'"],
        ),
        (
            &[("lookup.cache", "PARTIAL")],
            &["'lookup.partial-cache.max-rows'", "bound"],
        ),
        (
            &[("lookup.partial-cache.max-rows", "5")],
            &["'lookup.partial-cache.max-rows'", "'lookup.cache'"],
        ),
        (
            &[("lookup.partial-cache.cache-missing-key", "true")],
            &["cache-missing-key", "'lookup.cache'"],
        ),
        (
            &[
                ("emulator-endpoint", "h:1"),
                ("service-account-key-file", "/k"),
            ],
            &["'service-account-key-file'", "'emulator-endpoint'"],
        ),
        (
            &[("emulator-endpoint", "nowhere")],
            &["'emulator-endpoint'"],
        ),
        (&[("table", "a/b")], &["'table'"]),
        (
            &[("decode.trailing-bytes", "DROP")],
            &["'decode.trailing-bytes'", "'IGNORE', 'REJECT'"],
        ),
        (&[("sink.row-ordering", "row")], &["'sink.row-ordering'"]),
        (
            &[("sink.create-disposition", "create-if-needed")],
            &["'sink.table-create.gc-rule.max-versions' is required"],
        ),
        (
            &[("sink.table-create.gc-rule.max-versions", "1")],
            &["max-versions", "'sink.create-disposition'"],
        ),
        (
            &[
                ("sink.table-create.gc-rule.max-age", "1 d"),
                ("sink.create-disposition", "create-never"),
            ],
            &["max-age", "'sink.create-disposition'"],
        ),
        (
            &[("sink.batching.element-count-threshold", "20000")],
            &["'sink.batching.element-count-threshold'"],
        ),
        (
            &[("sink.max-consecutive-rejections", "0")],
            &["'sink.max-consecutive-rejections'"],
        ),
        (
            &[("sink.recovery.initial-backoff", "20 s")],
            &["initial-backoff", "max-backoff"],
        ),
        (
            &[
                ("sink.batching.element-count", "5"),
                ("sink.batching.element-count-threshold", "5"),
            ],
            &["'sink.batching.element-count-threshold'", "twice"],
        ),
        (&[("sink.parallelism", "0")], &["'sink.parallelism'"]),
        (
            &[("scan.max-rows-per-fetch", "0")],
            &["'scan.max-rows-per-fetch'"],
        ),
        (&[("scan.row-prefix", "a;")], &["'scan.row-prefix'"]),
        (
            &[("sink.aplication", "x")],
            &["'sink.aplication' is unknown"],
        ),
        (&[("sink.staged.max-entries", "1")], &["unknown"]),
        (&[("sink.table-create", "x")], &["unknown"]),
        (&[("scan.filter", "x")], &["unknown"]),
    ] {
        let spec = options
            .iter()
            .fold(table(), |spec, (key, value)| spec.option(*key, *value));
        let text = refused(&spec);
        assert!(
            parts.iter().all(|part| text.contains(part)),
            "{options:?}: {text}"
        );
    }
}

#[test]
fn every_option_with_a_good_value_is_taken() {
    let spec = [
        ("service-account-key-file", "/nowhere"),
        ("null-string-literal", ""),
        ("decode.trailing-bytes", "reject"),
        ("scan.mode", "bounded"),
        ("scan.app-profile-id", "reads"),
        ("scan.row-key-encoding", "utf8"),
        ("scan.row-limit", "10"),
        ("scan.reversed", "true"),
        ("lookup.cache", "partial"),
        ("lookup.partial-cache.max-rows", "10"),
        ("lookup.partial-cache.max-bytes", "1 mb"),
        ("lookup.partial-cache.expire-after-write", "1 min"),
        ("lookup.partial-cache.cache-missing-key", "false"),
        ("sink.write-mode", "KEEP-LATEST"),
        ("sink.delivery-guarantee", "at-least-once"),
        ("sink.app-profile-id", "writes"),
        ("sink.cell-timestamp.truncate-to-millis", "true"),
        ("sink.create-disposition", "create-if-needed"),
        ("sink.table-create.gc-rule.max-versions", "1"),
        ("sink.table-create.gc-rule.max-age", "1 d"),
        ("sink.batching.element-count", "7"),
        ("sink.batching.byte-size", "1 mb"),
        ("sink.max-consecutive-rejections", "-1"),
        ("sink.channels", "3"),
    ]
    .into_iter()
    .fold(table(), |spec, (key, value)| spec.option(key, value));
    let settings = Settings::of(&spec).expect("valid");
    assert_eq!(settings.null_literal, "");
    assert_eq!(settings.sink.writer.batch_entries, Some(7));
    assert_eq!(settings.sink.writer.channels, 3);
    let create = format!("{:?}", settings.sink.create);
    assert!(
        ["cf", "other", "Union"]
            .iter()
            .all(|part| create.contains(part)),
        "{create}"
    );
    factory().plan_sink(&spec, &inserts()).expect("planned");
    factory()
        .plan_scan(&spec, &ScanPlan::default())
        .expect("planned");
    factory()
        .plan_lookup(&spec, &lookup_plan(&[&[1]]))
        .expect("planned");
}

#[test]
fn metadata_that_there_is_not_is_refused() {
    for (metadata, named) in [
        (&["offset"][..], "'offset'"),
        (&["table", "table"], "'table'"),
    ] {
        let plan = sink_plan(&[RowKind::Insert], metadata);
        let text = factory()
            .plan_sink(&table(), &plan)
            .expect_err("refused")
            .to_string();
        assert!(text.contains(named), "{text}");
    }
    factory()
        .plan_sink(
            &table(),
            &sink_plan(&[RowKind::Insert], &["table", "timestamp"]),
        )
        .expect("both can be written");
    let plan = ScanPlan {
        metadata: vec!["timestamp".to_owned()],
        ..ScanPlan::default()
    };
    let text = factory()
        .plan_scan(&table(), &plan)
        .expect_err("refused")
        .to_string();
    assert!(text.contains("'timestamp'"), "{text}");
    assert!(
        factory()
            .metadata()
            .iter()
            .all(|column| !column.readable && column.writable)
    );
}

#[test]
fn a_lookup_goes_by_the_row_key_alone() {
    for keys in [&[][..], &[&[0][..]], &[&[1], &[0]], &[&[0, 0]], &[&[1, 0]]] {
        let text = factory()
            .plan_lookup(&table(), &lookup_plan(keys))
            .expect_err("refused")
            .to_string();
        assert!(text.contains("'id'"), "{text}");
    }
}

#[test]
fn conditions_make_no_ranges_within_the_first_rows_of_a_table() {
    let filters = [Filter::IsNotNull(FieldPath(vec![1]))];
    let uses = |spec: &TableSpec| factory().plan_filters(spec, &filters).expect("valid");
    assert_eq!(uses(&table()), [FilterUse::Exact]);
    assert_eq!(
        uses(&table().option("scan.row-limit", "5")),
        [FilterUse::Ignored]
    );
}
