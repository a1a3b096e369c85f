//! Tables written: what is there afterwards, in which order it got there, and in which table.

use std::collections::BTreeMap;

use aqueduct_bigtable::table::factory;
use aqueduct_connector::row::{Row, RowKind};
use aqueduct_connector::table::TableSpec;
use aqueduct_sim::{Code, EntryOrder, Method, StoredCell};
use aqueduct_testkit::{SinkHost, TestContext};

use super::sink_world::World;
use super::table_support::*;

#[tokio::test]
async fn what_is_written_is_read_back_through_updates_and_deletes_on_both_services() {
    for mode in ["upsert", "keep-latest"] {
        for service in services().await {
            let spec = spec(&service.address, "STRING NOT NULL").option("sink.write-mode", mode);
            let mut random = fastrand::Rng::with_seed(5);
            let (mut rows, mut expected) = (Vec::new(), BTreeMap::<String, Item>::new());
            for _ in 0..600 {
                let key = format!("k{:02}", random.u32(0..60));
                if random.u32(0..5) == 0 {
                    rows.push(delete(&key));
                    expected.remove(&key);
                } else {
                    let item = Item::random(&mut random);
                    rows.push(upsert(&key, &item));
                    let old = expected.remove(&key);
                    expected.insert(key, item.over(old));
                }
            }
            write_rows(&spec, &writes(&UPSERTS, &[]), rows)
                .await
                .expect("well");
            let expected: BTreeMap<String, Item> = expected
                .into_iter()
                .map(|(key, item)| (key, item.read()))
                .collect();
            assert_eq!(
                scan_items(&spec).await,
                expected,
                "{mode} on {}",
                service.name
            );
        }
    }
}

/// A statement upon the world's table.
fn on(world: &World) -> TableSpec {
    let mut spec = spec(world.sim.endpoint().trim_start_matches("http://"), "STRING");
    spec.options.retain(|key, _| !key.starts_with("sink."));
    world.table.add_family("other");
    spec
}

fn host(world: &World, spec: &TableSpec, kinds: &[RowKind], metadata: &[&str]) -> SinkHost<Row> {
    SinkHost::start(sink(spec, &writes(kinds, metadata)), &world.kit, 1).expect("a writer")
}

fn cells(world: &World, key: &str) -> Vec<StoredCell> {
    world
        .table
        .row(key.as_bytes())
        .map(|row| row.cells)
        .unwrap_or_default()
}

/// Values of `cf:name`, newest first.
fn names(world: &World, key: &str) -> Vec<String> {
    cells(world, key)
        .into_iter()
        .filter(|cell| cell.qualifier == b"name")
        .map(|cell| String::from_utf8(cell.value).expect("text"))
        .collect()
}

#[tokio::test]
async fn updates_of_a_key_end_in_the_last_whatever_the_service_does() {
    for mode in ["upsert", "keep-latest"] {
        let world = World::new().await;
        let spec = on(&world)
            .option("sink.write-mode", mode)
            .option("sink.batching.element-count-threshold", "7");
        world.table.set_entry_order(EntryOrder::Shuffled(11));
        world
            .table
            .every_nth(3, Method::MutateRows)
            .entry_status([0, 2], Code::Unavailable);
        world
            .table
            .every_nth(5, Method::MutateRows)
            .apply_then_lose_answer();
        let mut host = host(&world, &spec, &UPSERTS, &[]);
        let key = |at: usize| format!("k{}", at % 5);
        for round in 0..4 {
            let rows = (0..100).map(|at| {
                if at % 7 == 6 {
                    delete(&key(at))
                } else {
                    upsert(&key(at), &named(&format!("{round}-{at:03}")))
                }
            });
            host.write_all(rows).await.expect("well");
            host.checkpoint().await.expect("well");
            for last in 95..100 {
                let found = names(&world, &key(last));
                if last % 7 == 6 {
                    assert_eq!(found, Vec::<String>::new(), "deleted last");
                } else {
                    assert_eq!(found[0], format!("{round}-{last:03}"), "{mode}");
                }
                if mode == "keep-latest" {
                    assert!(found.len() < 2, "one version");
                }
            }
        }
        assert!(world.table.lost_answers() > 0, "failures were met");
        host.finish().await.expect("well");
    }
}

#[tokio::test]
async fn without_order_an_earlier_update_wins_somewhere() {
    let world = World::new().await;
    let spec = on(&world).option("sink.row-ordering", "none");
    world.table.set_entry_order(EntryOrder::Reversed);
    let stamp = [Meta::Timestamp(Some(5_000))];
    let mut host = host(&world, &spec, &UPSERTS, &["timestamp"]);
    let rows = (0..10).map(|at| {
        let item = named(&at.to_string());
        item_row(
            RowKind::UpdateAfter,
            |row, at| row.str(at, "k"),
            &item,
            &stamp,
        )
    });
    host.write_all(rows).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(
        names(&world, "k"),
        ["0"],
        "the test above could not fail otherwise"
    );
    host.finish().await.expect("well");
}

#[tokio::test]
async fn keep_latest_leaves_one_version_of_what_it_writes_and_the_rest_alone() {
    let world = World::new().await;
    let spec = on(&world);
    let address = spec.options["emulator-endpoint"].clone();
    let cell = |family: &str, qualifier: &str, at| {
        (
            family.to_owned(),
            qualifier.as_bytes().to_vec(),
            at,
            b"old".to_vec(),
        )
    };
    let old = vec![
        cell("cf", "name", 1_000),
        cell("cf", "name", 9_000_000_000_000_000_000),
        cell("cf", "undeclared", 1_000),
        cell("other", "b", 1_000),
    ];
    write_cells(&address, "t", &[(b"k".to_vec(), old)].into()).await;
    let spec = spec.option("sink.write-mode", "keep-latest");
    write_rows(
        &spec,
        &writes(&UPSERTS, &[]),
        vec![upsert("k", &named("new"))],
    )
    .await
    .expect("well");
    assert_eq!(
        names(&world, "k"),
        ["new"],
        "also over a version from the future"
    );
    let left: Vec<String> = cells(&world, "k")
        .into_iter()
        .filter(|cell| cell.value == b"old")
        .map(|cell| String::from_utf8(cell.qualifier).expect("text"))
        .collect();
    assert_eq!(left, ["undeclared", "b"]);
}

#[tokio::test]
async fn null_writes_the_literal_no_byte_or_nothing() {
    let world = World::new().await;
    let spec = on(&world).option("null-string-literal", "NIL");
    let item = Item {
        cf: Some(Cf::default()),
        other: None,
    };
    write_rows(&spec, &writes(&UPSERTS, &[]), vec![upsert("k", &item)])
        .await
        .expect("well");
    let values: Vec<Vec<u8>> = cells(&world, "k")
        .into_iter()
        .map(|cell| cell.value)
        .collect();
    // By qualifier: amount, at, flag, n, name.
    assert_eq!(values, [&b""[..], b"", b"", b"", b"NIL"]);
    let stamps: Vec<i64> = cells(&world, "k")
        .iter()
        .map(|cell| cell.timestamp_micros)
        .collect();
    assert!(
        stamps
            .iter()
            .all(|stamp| stamp % 1_000 == 0 && *stamp == stamps[0])
    );
}

#[tokio::test]
async fn the_timestamp_column_is_that_of_every_cell() {
    for (option, given, stored) in [
        ("false", 1_700_000_000_123_000, Some(1_700_000_000_123_000)),
        ("false", 0, Some(0)),
        ("false", 1_700_000_000_123_456, None),
        ("true", 1_700_000_000_123_999, Some(1_700_000_000_123_000)),
        ("true", 999, Some(0)),
        ("true", -1, None),
        ("false", -1_000, None),
    ] {
        let world = World::new().await;
        let spec = on(&world).option("sink.cell-timestamp.truncate-to-millis", option);
        let stamp = [Meta::Timestamp(Some(given))];
        let item = Item {
            other: Some(Other::default()),
            ..named("x")
        };
        let row = item_row(RowKind::Insert, |row, at| row.str(at, "k"), &item, &stamp);
        let end = write_rows(
            &spec,
            &writes(&[RowKind::Insert], &["timestamp"]),
            vec![row],
        )
        .await;
        assert_eq!(
            end.is_ok(),
            stored.is_some(),
            "{given} with {option}: {end:?}"
        );
        let cells = cells(&world, "k");
        assert_eq!(cells.len(), if stored.is_some() { 7 } else { 0 });
        assert!(
            cells
                .iter()
                .all(|cell| Some(cell.timestamp_micros) == stored)
        );
        if given < 0 {
            let report = end.expect_err("refused").report();
            assert!(report.contains("'timestamp' is before 1970"), "{report}");
        }
    }
}

#[tokio::test]
async fn a_row_that_cannot_be_written_fails_the_job_by_its_column_and_shows_nothing_of_itself() {
    let secret = "do-not-show";
    let key = |row: &mut aqueduct_connector::row::RowWriter<'_>, at| row.str(at, secret);
    let bad: [(Row, &[&str]); 5] = [
        (
            item_row(RowKind::Insert, |_, _| {}, &named(secret), &[]),
            &["'id'", "NULL"],
        ),
        (
            item_row(
                RowKind::Delete,
                |row, at| row.str(at, ""),
                &named(secret),
                &[],
            ),
            &["'id'", "empty"],
        ),
        (
            item_row(RowKind::Insert, key, &Item::default(), &[]),
            &["every family"],
        ),
        (
            item_row(RowKind::UpdateBefore, key, &named(secret), &[]),
            &["UPDATE_BEFORE"],
        ),
        (Row::new(vec![0; 8].into()), &["cannot be read"]),
    ];
    for (row, parts) in bad {
        let world = World::new().await;
        let end = write_rows(&on(&world), &writes(&UPSERTS, &[]), vec![row]).await;
        let report = end.expect_err("refused").report();
        assert!(parts.iter().all(|part| report.contains(part)), "{report}");
        assert!(!report.contains(secret), "{report}");
        assert_eq!(world.table.row_count(), 0);
    }
    let world = World::new().await;
    let mut strict = on(&world);
    strict.columns[2].ty =
        aqueduct_connector::types::LogicalType::parse("ROW<b BYTES NOT NULL, d DOUBLE>")
            .expect("a type");
    let item = Item {
        other: Some(Other {
            b: None,
            d: Some(1.0),
        }),
        ..Item::default()
    };
    let end = write_rows(&strict, &writes(&UPSERTS, &[]), vec![upsert("k", &item)]).await;
    let report = end.expect_err("refused").report();
    assert!(report.contains("'other.b' is NOT NULL"), "{report}");
}

#[tokio::test]
async fn each_row_goes_to_the_table_that_it_names_on_both_services() {
    for service in services().await {
        let base = spec(&service.address, "STRING");
        let tables = [None, Some("clicks"), Some("views")];
        let mut rows = Vec::new();
        let mut expected: BTreeMap<Option<&str>, BTreeMap<String, Item>> = BTreeMap::new();
        for at in 0..90_usize {
            let (key, item) = (format!("k{:02}", at % 30), named(&at.to_string()));
            let table = tables[at % 3];
            rows.push(item_row(
                RowKind::Insert,
                |row, at| row.str(at, &key),
                &item,
                &[Meta::Table(table)],
            ));
            expected.entry(table).or_default().insert(key, item.read());
        }
        for (at, table) in tables.into_iter().enumerate() {
            let key = format!("k{:02}", at + 3);
            let none = Item::default();
            rows.push(item_row(
                RowKind::Delete,
                |row, at| row.str(at, &key),
                &none,
                &[Meta::Table(table)],
            ));
            expected.get_mut(&table).expect("has rows").remove(&key);
        }
        write_rows(&base, &writes(&UPSERTS, &["table"]), rows)
            .await
            .expect("well");
        for table in tables {
            let spec = base.clone().option("table", table.unwrap_or("t"));
            assert_eq!(
                scan_items(&spec).await,
                expected[&table],
                "{table:?} on {}",
                service.name
            );
        }
    }
}

#[tokio::test]
async fn a_name_that_is_no_table_fails_the_job_and_is_not_shown() {
    for bad in ["", " ", "other/secret", " secret"] {
        let world = World::new().await;
        let name: &'static str = bad;
        let row = item_row(
            RowKind::Insert,
            |row, at| row.str(at, "k"),
            &named("x"),
            &[Meta::Table(Some(name))],
        );
        let end = write_rows(&on(&world), &writes(&UPSERTS, &["table"]), vec![row]).await;
        let report = end.expect_err("refused").report();
        assert!(
            report.contains("'table'") && !report.contains("secret"),
            "{report}"
        );
    }
}

#[tokio::test]
async fn a_missing_table_fails_the_job_unless_it_may_be_created_with_the_rule_of_the_options() {
    let world = World::new().await;
    let spec = on(&world).option("table", "fresh");
    let rows = || vec![upsert("k", &named("x"))];
    let plan = writes(&UPSERTS, &[]);
    let report = write_rows(&spec, &plan, rows())
        .await
        .expect_err("missing")
        .report();
    assert!(report.contains("sink.create-disposition"), "{report}");
    let spec = spec
        .option("sink.create-disposition", "create-if-needed")
        .option("sink.table-create.gc-rule.max-versions", "1")
        .option("sink.recovery.initial-backoff", "5 ms");
    for _ in 0..3 {
        write_rows(&spec, &plan, rows()).await.expect("created");
    }
    let table = world.sim.bigtable().table("p", "i", "fresh");
    assert_eq!(table.families(), ["cf", "other"]);
    table.collect_garbage();
    assert_eq!(
        table.row(b"k").expect("is there").cells.len(),
        5,
        "one version of each"
    );
}

#[tokio::test]
async fn aggregated_updates_under_order_meet_one_writer() {
    let world = World::new().await;
    let spec = on(&world);
    let planned = factory()
        .plan_sink(&spec, &writes(&UPSERTS, &[]))
        .expect("planned");
    assert_eq!(planned.partition_by, [1]);
    // Two writers, rows dealt by the key as a host must.
    let kit = TestContext::new("sink");
    let mut host = SinkHost::start(sink(&spec, &writes(&UPSERTS, &[])), &kit, 2).expect("writers");
    world.table.set_entry_order(EntryOrder::Reversed);
    for at in 0..200_usize {
        let writer = u32::try_from(at % 8 % 2).expect("small");
        host.ready(writer).await.expect("room");
        let info = aqueduct_connector::sink::RecordInfo::default();
        host.write(
            writer,
            upsert(&format!("k{}", at % 8), &named(&at.to_string())),
            info,
        )
        .expect("taken");
    }
    host.checkpoint().await.expect("well");
    for key in 0..8 {
        assert_eq!(
            names(&world, &format!("k{key}"))[0],
            (192 + key).to_string()
        );
    }
    host.finish().await.expect("well");
}
