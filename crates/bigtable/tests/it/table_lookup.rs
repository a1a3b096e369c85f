//! Lookups in tables, against both services.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use aqueduct_bigtable::table::factory;
use aqueduct_connector::clock::ManualClock;
use aqueduct_connector::row::{RowBatch, RowKind, RowRef, RowWriter};
use aqueduct_connector::table::{FieldPath, LookupPlan, RowLookup, TableSpec};
use aqueduct_connector::{Result, Timestamp};
use aqueduct_sim::{Code, Gate, Method};
use aqueduct_testkit::table::row;
use aqueduct_testkit::{TestContext, test_context, until, within};

use super::scan_support::{LIMIT, World, destination, numbered, plain_rows, write};
use super::table_support::*;

fn by_key(fields: Option<&[&[usize]]>) -> LookupPlan {
    LookupPlan {
        keys: vec![FieldPath(vec![1])],
        fields: fields.map(|fields| fields.iter().map(|path| FieldPath(path.to_vec())).collect()),
    }
}

fn open(spec: &TableSpec, plan: &LookupPlan) -> Box<dyn RowLookup> {
    factory().plan_lookup(spec, plan).expect("a good plan");
    let lookup = factory().lookup(spec, plan).expect("was planned");
    lookup
        .create(TestContext::new("lookup").subtask(0, 1))
        .expect("no key file")
}

fn start(lookup: &mut dyn RowLookup, id: u64, key: impl FnOnce(&mut RowWriter<'_>)) {
    let key = row(RowKind::Insert, 1, key);
    lookup
        .start(id, key.view(1).expect("one field"))
        .expect("a good key");
}

/// The next answer: its id and what `read` makes of its rows.
async fn next<T>(
    lookup: &mut dyn RowLookup,
    arity: usize,
    read: impl Fn(RowRef<'_>) -> T,
) -> (u64, Result<Vec<T>>) {
    let mut batch = RowBatch::new();
    let answer = poll_fn(|cx| lookup.poll_next(cx, &mut batch));
    let (id, result) = within(LIMIT, "an answer", answer).await;
    let rows = batch
        .iter()
        .map(|row| read(RowRef::new(row.bytes, arity).expect("a row")));
    (id, result.map(|()| rows.collect()))
}

async fn close(mut lookup: Box<dyn RowLookup>) {
    poll_fn(|cx| lookup.poll_close(cx)).await.expect("well");
}

#[tokio::test]
async fn every_key_finds_its_row_and_others_nothing_on_both_services() {
    for service in services().await {
        let spec = spec(&service.address, "STRING");
        let mut random = fastrand::Rng::with_seed(3);
        let items: BTreeMap<String, Item> = (0..50)
            .map(|at| (format!("k{at:02}"), Item::random(&mut random)))
            .collect();
        let rows = items.iter().map(|(key, item)| upsert(key, item)).collect();
        write_rows(&spec, &writes(&UPSERTS, &[]), rows)
            .await
            .expect("well");
        let mut lookup = open(&spec, &by_key(None));
        let mut expected = BTreeMap::new();
        for (id, key) in (0..).zip(
            items
                .keys()
                .chain(["k", "x", "", "k000"].map(String::from).iter()),
        ) {
            start(&mut *lookup, id, |row| row.str(0, key));
            let found = items
                .get(key)
                .map(|item| (key.clone(), item.clone().read()));
            expected.insert(id, found.into_iter().collect::<Vec<_>>());
        }
        start(&mut *lookup, 99, |_| {});
        expected.insert(99, Vec::new());
        let mut found = BTreeMap::new();
        for _ in 0..expected.len() {
            let (id, rows) = next(&mut *lookup, 3, |row| read_item(&row)).await;
            assert!(
                found.insert(id, rows.expect("reads")).is_none(),
                "one answer each"
            );
        }
        assert_eq!(found, expected, "{}", service.name);
        close(lookup).await;
    }
}

#[tokio::test]
async fn a_number_is_looked_up_by_its_bytes_and_read_by_the_columns_wanted() {
    for service in services().await {
        let spec = spec(&service.address, "BIGINT");
        let rows = [i64::MIN, -1, 0, i64::MAX].map(|key| {
            item_row(
                RowKind::Insert,
                |row, at| row.i64(at, key),
                &named(&key.to_string()),
                &[],
            )
        });
        write_rows(&spec, &writes(&[RowKind::Insert], &[]), rows.to_vec())
            .await
            .expect("well");
        let mut lookup = open(&spec, &by_key(Some(&[&[0, 0], &[1], &[0, 1]])));
        for key in [i64::MIN, -1, 0, 1, i64::MAX] {
            start(&mut *lookup, 0, |row| row.i64(0, key));
            let read = |row: RowRef<'_>| {
                assert!(row.is_null(2));
                (row.str(0).expect("text").to_owned(), row.i64(1))
            };
            let (_, found) = next(&mut *lookup, 3, read).await;
            let expected: Vec<_> = (key != 1)
                .then(|| (key.to_string(), key))
                .into_iter()
                .collect();
            assert_eq!(found.expect("reads"), expected, "{}", service.name);
        }
        close(lookup).await;
    }
}

/// The world's table with one column, `cf:q`.
fn on(world: &World) -> TableSpec {
    let mut spec = spec(&world.address(), "STRING");
    spec.options.retain(|key, _| !key.starts_with("sink."));
    spec.columns[0].ty =
        aqueduct_connector::types::LogicalType::parse("ROW<q STRING>").expect("a type");
    spec
}

fn requests(world: &World) -> usize {
    world.table.requests_of(Method::ReadRows).len()
}

#[tokio::test]
async fn keys_that_wait_share_a_request_and_the_bounds_hold() {
    let world = World::with(plain_rows(numbered(40), "v"), &[]).await;
    let spec = on(&world)
        .option("lookup.max-concurrent-requests", "2")
        .option("lookup.max-keys-per-request", "7");
    let mut lookup = open(&spec, &by_key(Some(&[&[1]])));
    let gate = Gate::new();
    let fault = world.table.always(Method::ReadRows).hold(&gate);
    for (id, key) in (0..).zip(numbered(40)) {
        start(&mut *lookup, id, |row| row.str(0, &key));
    }
    let held = until(LIMIT, "two requests to arrive", || gate.held() == 2);
    tokio::select! {
        (id, _) = next(&mut *lookup, 1, |_| ()) => panic!("{id} was answered while all requests are held"),
        () = held => {}
    }
    assert_eq!(requests(&world), 2, "the others wait");
    fault.remove();
    gate.open();
    let mut ids = Vec::new();
    for _ in 0..40 {
        let (id, rows) = next(&mut *lookup, 1, |row| row.str(0).expect("a key").to_owned()).await;
        assert_eq!(
            rows.expect("reads"),
            [numbered(40)[usize::try_from(id).expect("small")].clone()]
        );
        ids.push(id);
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..40).collect::<Vec<_>>());
    assert_eq!(requests(&world), 6, "seven keys a request");
    close(lookup).await;
}

#[tokio::test]
async fn a_transient_failure_is_retried_as_often_as_allowed_and_then_fails_every_key_of_the_request()
 {
    let world = World::with(plain_rows(numbered(3), "v"), &[]).await;
    for (retries, failures, ok) in [("1", 1, true), ("1", 2, false), ("0", 1, false)] {
        let spec = on(&world).option("lookup.max-retries", retries);
        let mut lookup = open(&spec, &by_key(Some(&[&[1]])));
        world
            .table
            .next(failures, Method::ReadRows)
            .status(Code::Unavailable);
        for (id, key) in (0..).zip(numbered(3)) {
            start(&mut *lookup, id, |row| row.str(0, &key));
        }
        for _ in 0..3 {
            let (_, found) = next(&mut *lookup, 1, |_| ()).await;
            assert_eq!(
                found.is_ok(),
                ok,
                "{failures} failures, {retries} retries: {found:?}"
            );
        }
        close(lookup).await;
        world.sim.bigtable().clear_faults();
    }
}

#[tokio::test]
async fn a_cache_answers_again_without_a_request_and_ranges_exclude_without_one() {
    let world = World::with(plain_rows(numbered(5), "v"), &[]).await;
    let spec = on(&world)
        .option("lookup.cache", "PARTIAL")
        .option("lookup.partial-cache.max-rows", "10")
        .option("scan.row-range.end-open", "r004");
    let mut lookup = open(&spec, &by_key(None));
    for (round, asked) in [(0, 2), (1, 2)] {
        for (key, there) in [("r001", true), ("none", false), ("r004", false)] {
            start(&mut *lookup, round, |row| row.str(0, key));
            let (id, found) = next(&mut *lookup, 3, |_| ()).await;
            assert_eq!(
                (id, found.expect("reads").len()),
                (round, usize::from(there)),
                "{key}"
            );
        }
        assert_eq!(requests(&world), asked);
    }
    close(lookup).await;
}

#[tokio::test]
async fn a_value_that_does_not_fit_fails_its_lookup_and_no_other() {
    let world = World::with(plain_rows(numbered(2), "long text"), &[]).await;
    let mut spec = on(&world).option("decode.trailing-bytes", "REJECT");
    spec.columns[0].ty =
        aqueduct_connector::types::LogicalType::parse("ROW<q INT>").expect("a type");
    let mut lookup = open(&spec, &by_key(None));
    start(&mut *lookup, 1, |row| row.str(0, "r000"));
    let (_, found) = next(&mut *lookup, 3, |_| ()).await;
    assert!(found.expect_err("refused").report().contains("'cf.q'"));
    start(&mut *lookup, 2, |row| row.str(0, "none"));
    let (id, found) = next(&mut *lookup, 3, |_| ()).await;
    assert_eq!((id, found.expect("reads").len()), (2, 0));
    close(lookup).await;
}

fn whole(world: &World) -> TableSpec {
    on(world)
        .option("lookup.cache", "FULL")
        .option("lookup.full-cache.periodic-reload.interval", "10 min")
}

/// The value that the lookup finds at `key`, if it finds a row.
async fn value_at(lookup: &mut dyn RowLookup, key: &str) -> Option<String> {
    start(lookup, 1, |row| row.str(0, key));
    let (_, found) = next(lookup, 3, |row| {
        let cf = row.row(0, 1).expect("a family");
        cf.str(0).expect("text").to_owned()
    })
    .await;
    found.expect("reads").pop()
}

#[tokio::test]
async fn a_full_cache_reads_the_ranges_once_and_answers_every_key_from_them() {
    for service in services().await {
        let table = writes(&[RowKind::Insert], &[]);
        let rows = ["a", "b", "c"].map(|key| upsert(key, &named(key)));
        let spec = spec(&service.address, "STRING");
        write_rows(&spec, &table, rows.to_vec())
            .await
            .expect("written");
        let spec = spec
            .option("lookup.cache", "FULL")
            .option("lookup.full-cache.periodic-reload.interval", "10 min")
            .option("scan.row-range.end-open", "c");
        let mut lookup = open(&spec, &by_key(None));
        for (key, there) in [
            ("a", true),
            ("b", true),
            ("c", false),
            ("d", false),
            ("", false),
        ] {
            start(&mut *lookup, 7, |row| row.str(0, key));
            let (id, found) = next(&mut *lookup, 3, |row| read_item(&row)).await;
            let expected = there.then(|| (key.to_owned(), named(key).read()));
            assert_eq!(
                (id, found.expect("reads")),
                (7, expected.into_iter().collect()),
                "{} {key}",
                service.name
            );
        }
        start(&mut *lookup, 8, |_| {});
        let (id, found) = next(&mut *lookup, 3, |_| ()).await;
        assert_eq!((id, found.expect("reads").len()), (8, 0));
        close(lookup).await;
    }
}

#[tokio::test]
async fn lookups_wait_for_the_first_load_and_old_rows_answer_during_the_next() {
    let world = World::with(plain_rows(numbered(3000), "old"), &[]).await;
    let clock = ManualClock::new(Timestamp::from_millis(0));
    let context = TestContext::new("lookup").with_clock(Arc::new(clock.clone()));
    let lookup = factory()
        .lookup(&whole(&world), &by_key(None))
        .expect("good");
    let mut lookup = lookup.create(context.subtask(0, 1)).expect("no key file");
    assert_eq!(value_at(&mut *lookup, "r001").await.as_deref(), Some("old"));
    assert_eq!(value_at(&mut *lookup, "none").await, None);
    assert_eq!(requests(&world), 1, "the load and nothing else");

    let rows = plain_rows(numbered(3000), "new");
    write(&test_context(0), &world.address(), &destination(), &rows).await;
    clock.advance(Duration::from_secs(599));
    assert_eq!(value_at(&mut *lookup, "r001").await.as_deref(), Some("old"));
    assert_eq!(requests(&world), 1, "it is not due");
    let gate = Gate::new();
    world.table.next(1, Method::ReadRows).hold(&gate);
    clock.advance(Duration::from_secs(1));
    assert_eq!(value_at(&mut *lookup, "r001").await.as_deref(), Some("old"));
    let held = until(LIMIT, "the reload to arrive", || gate.held() == 1);
    within(LIMIT, "it", held).await;
    assert_eq!(value_at(&mut *lookup, "r002").await.as_deref(), Some("old"));
    gate.open();
    // Without any lookup under way: the host polls when it is woken.
    let loaded = || context.registry().total("lookupCacheLoads") == 2;
    let mut batch = RowBatch::new();
    within(
        LIMIT,
        "the reload",
        poll_fn(|cx| match lookup.poll_next(cx, &mut batch) {
            Poll::Ready((id, _)) => panic!("{id} was answered and never started"),
            Poll::Pending if loaded() => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }),
    )
    .await;
    assert_eq!(
        value_at(&mut *lookup, "r2999").await.as_deref(),
        Some("new")
    );
    assert_eq!(requests(&world), 2);
    close(lookup).await;
}

#[tokio::test]
async fn a_load_that_fails_or_does_not_fit_fails_the_lookup_that_waits() {
    let world = World::with(plain_rows(numbered(2000), "v"), &[]).await;
    let mut lookup = open(&whole(&world), &by_key(None));
    world
        .table
        .next(1, Method::ReadRows)
        .status(Code::PermissionDenied);
    start(&mut *lookup, 1, |row| row.str(0, "r001"));
    let (_, found) = next(&mut *lookup, 3, |_| ()).await;
    found.expect_err("the load was refused");
    close(lookup).await;

    let small = whole(&world).option("lookup.full-cache.max-bytes", "64 kb");
    let mut lookup = open(&small, &by_key(None));
    start(&mut *lookup, 1, |row| row.str(0, "r001"));
    let (_, found) = next(&mut *lookup, 3, |_| ()).await;
    let text = found.expect_err("too large").report();
    assert!(text.contains("'lookup.full-cache.max-bytes'"), "{text}");
    close(lookup).await;
}

#[test]
fn options_of_a_full_cache_are_checked_at_planning() {
    let refused = |options: &[(&str, &str)]| {
        let mut spec = spec("localhost:1", "STRING");
        spec.options.retain(|key, _| !key.starts_with("sink."));
        for &(key, value) in options {
            spec = spec.option(key, value);
        }
        let error = factory().plan_lookup(&spec, &by_key(None));
        error.map(|_| ()).map_err(|error| error.to_string())
    };
    let full = ("lookup.cache", "FULL");
    let interval = ("lookup.full-cache.periodic-reload.interval", "1 h");
    let timed = ("lookup.full-cache.reload-strategy", "TIMED");
    let time = ("lookup.full-cache.timed-reload.iso-time", "04:00Z");
    assert_eq!(refused(&[full, interval]), Ok(()));
    assert_eq!(refused(&[full, timed, time]), Ok(()));
    for (options, named) in [
        (&[full][..], "periodic-reload.interval"),
        (&[full, timed], "timed-reload.iso-time"),
        (&[full, interval, time], "timed-reload.iso-time"),
        (&[full, timed, time, interval], "periodic-reload.interval"),
        (&[full, timed, (time.0, "04:00")], "has no zone"),
        (
            &[full, interval, ("lookup.async", "true")],
            "'lookup.async'",
        ),
        (
            &[full, interval, ("lookup.partial-cache.max-rows", "1")],
            "'PARTIAL'",
        ),
        (&[interval], "'FULL'"),
        (
            &[full, ("lookup.full-cache.periodic-reload.interval", "1 ms")],
            "interval",
        ),
    ] {
        let error = refused(options).expect_err(named);
        assert!(error.contains(named), "{named}: {error}");
    }
}
