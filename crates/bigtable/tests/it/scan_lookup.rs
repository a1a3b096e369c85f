//! Point reads against the simulated service.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use aqueduct_bigtable::client::read::Row;
use aqueduct_bigtable::filter::Filter;
use aqueduct_bigtable::lookup::metrics;
use aqueduct_bigtable::{BigtableLookup, LookupCache, LookupClient, RowRange};
use aqueduct_connector::clock::ManualClock;
use aqueduct_connector::{Code as StatusCode, Timestamp};
use aqueduct_sim::{Code, Gate, Method};
use aqueduct_testkit::{TestContext, until, within};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::scan_support::*;

fn lookup(world: &World) -> aqueduct_bigtable::lookup::BigtableLookupBuilder {
    BigtableLookup::builder()
        .table(destination())
        .emulator_endpoint(world.address())
}

fn open(
    builder: aqueduct_bigtable::lookup::BigtableLookupBuilder,
    kit: &TestContext,
) -> LookupClient {
    let lookup = builder.build().expect("valid settings");
    lookup.open(&kit.subtask(0, 1)).expect("no key file")
}

fn keys(rows: &[Option<Arc<Row>>]) -> Vec<Option<String>> {
    rows.iter()
        .map(|row| {
            row.as_ref()
                .map(|row| String::from_utf8_lossy(row.key()).into_owned())
        })
        .collect()
}

fn reads(world: &World) -> usize {
    world.table.requests_of(Method::ReadRows).len()
}

#[tokio::test]
async fn a_row_is_found_by_its_key_and_a_missing_one_is_no_match() {
    let world = World::with(plain_rows(numbered(5), "v"), &["r002"]).await;
    let client = open(lookup(&world), &TestContext::new("lookup"));
    let row = client.get(b"r003").await.expect("reads").expect("is there");
    let cell = row.get().latest("cf", b"q").expect("one cell");
    assert_eq!((cell.value(), cell.timestamp_micros()), (&b"v"[..], 1_000));
    assert!(client.get(b"r009").await.expect("reads").is_none());
    assert_eq!(reads(&world), 2);
    assert!(client.get(b"").await.expect("no request").is_none());
    assert!(
        client
            .get(&[b'x'; 5_000])
            .await
            .expect("no request")
            .is_none()
    );
    assert_eq!(reads(&world), 2, "no row can have such a key");
}

#[tokio::test]
async fn many_keys_are_answered_in_their_order_by_as_few_requests_as_allowed() {
    let world = World::with(plain_rows(numbered(50), "v"), &["r025"]).await;
    let builder = lookup(&world).max_keys_per_request(NonZeroU32::new(10).expect("ten"));
    let client = open(builder, &TestContext::new("lookup"));
    let asked: Vec<Bytes> = ["r040", "r001", "none", "r040", "", "r010"]
        .map(Bytes::from)
        .to_vec();
    let rows = client.get_many(&asked).await.expect("reads");
    let some = |key: &str| Some(key.to_owned());
    assert_eq!(
        keys(&rows),
        [
            some("r040"),
            some("r001"),
            None,
            some("r040"),
            None,
            some("r010")
        ]
    );
    assert_eq!(reads(&world), 1);
    let all: Vec<Bytes> = numbered(50).into_iter().map(Bytes::from).collect();
    assert_eq!(
        client
            .get_many(&all)
            .await
            .expect("reads")
            .iter()
            .flatten()
            .count(),
        50
    );
    assert_eq!(reads(&world), 1 + 5);
    assert_eq!(client.get_many(&[]).await.expect("nothing").len(), 0);
}

#[tokio::test]
async fn keys_outside_the_configured_ranges_are_no_match_and_no_request() {
    let world = World::with(plain_rows(numbered(5), "v"), &[]).await;
    let builder = lookup(&world)
        .row_range(RowRange::parse("[r001, r002]").expect("a range"))
        .filter(Filter::cells_per_column(1));
    let client = open(builder, &TestContext::new("lookup"));
    let asked: Vec<Bytes> = numbered(5).into_iter().map(Bytes::from).collect();
    let rows = client.get_many(&asked).await.expect("reads");
    assert_eq!(
        rows.iter().map(Option::is_some).collect::<Vec<_>>(),
        [false, true, true, false, false]
    );
    assert!(client.get(b"r004").await.expect("no request").is_none());
    assert_eq!(reads(&world), 1);
}

#[tokio::test]
async fn only_transient_statuses_are_retried_and_only_so_often() {
    let world = World::with(plain_rows(numbered(3), "v"), &[]).await;
    let kit = TestContext::new("lookup");
    for (code, retried) in [
        (Code::Unavailable, true),
        (Code::DeadlineExceeded, true),
        (Code::Aborted, true),
        (Code::Internal, false),
        (Code::ResourceExhausted, false),
        (Code::NotFound, false),
    ] {
        let client = open(lookup(&world).max_retries(2), &kit);
        let fault = world.table.always(Method::ReadRows).status(code);
        let before = reads(&world);
        let error = client.get(b"r001").await.expect_err("never answered");
        assert_eq!(
            reads(&world) - before,
            if retried { 3 } else { 1 },
            "{code:?}"
        );
        assert_eq!(
            error.statuses().expect("statuses").code() as i32,
            code as i32
        );
        fault.remove();
        // Two failures are survived.
        if retried {
            let fault = world.table.next(2, Method::ReadRows).status(code);
            assert!(
                client
                    .get(b"r001")
                    .await
                    .expect("the third answers")
                    .is_some()
            );
            fault.remove();
        }
    }
    assert_eq!(kit.registry().total(metrics::LOOKUP_RETRIES), 3 * (2 + 2));
}

#[tokio::test]
async fn a_broken_batch_asks_again_only_for_what_is_left() {
    let world = World::with(plain_rows(numbered(10), "v"), &[]).await;
    world.table.nth(1, Method::ReadRows).break_after(4);
    let client = open(lookup(&world), &TestContext::new("lookup"));
    let all: Vec<Bytes> = numbered(10).into_iter().map(Bytes::from).collect();
    assert_eq!(
        client
            .get_many(&all)
            .await
            .expect("retried")
            .iter()
            .flatten()
            .count(),
        10
    );
    let requests = world.table.requests_of(Method::ReadRows);
    let second: googleapis_tonic_google_bigtable_v2::google::bigtable::v2::ReadRowsRequest =
        requests[1].message().expect("kept").expect("decodes");
    assert_eq!(second.rows.expect("a row set").row_keys, all[4..]);
}

#[tokio::test]
async fn no_more_requests_are_unanswered_than_allowed() {
    let world = World::with(plain_rows(numbered(20), "v"), &[]).await;
    let gate = Gate::new();
    world.table.always(Method::ReadRows).hold(&gate);
    let kit = TestContext::new("lookup");
    let builder = lookup(&world).max_concurrent_requests(NonZeroU32::new(3).expect("three"));
    let client = open(builder, &kit);
    let names = numbered(20);
    let mut waiting: FuturesUnordered<_> =
        names.iter().map(|key| client.get(key.as_bytes())).collect();
    let all_held = until(LIMIT, "three requests to be held", || gate.held() == 3);
    let mut all_held = std::pin::pin!(all_held);
    std::future::poll_fn(|cx| {
        assert!(waiting.poll_next_unpin(cx).is_pending(), "the gate is shut");
        all_held.as_mut().poll(cx)
    })
    .await;
    assert_eq!(client.in_flight(), 3);
    assert_eq!(kit.registry().total(metrics::IN_FLIGHT_REQUESTS), 3);
    gate.open();
    let mut found = 0;
    while let Some(row) = within(LIMIT, "the answers", waiting.next()).await {
        found += usize::from(row.expect("reads").is_some());
    }
    assert_eq!((found, client.in_flight()), (20, 0));
}

#[tokio::test]
async fn the_cache_answers_until_its_age_bound_and_missing_rows_too() {
    let world = World::with(plain_rows(numbered(3), "v"), &[]).await;
    let clock = ManualClock::new(Timestamp::from_millis(0));
    let kit = TestContext::new("lookup").with_clock(Arc::new(clock.clone()));
    let cache = LookupCache::new()
        .max_rows(NonZeroU64::new(10).expect("ten"))
        .expire_after_write(Duration::from_secs(60));
    let client = open(lookup(&world).cache(cache), &kit);
    for _ in 0..3 {
        assert!(client.get(b"r001").await.expect("reads").is_some());
        assert!(client.get(b"none").await.expect("reads").is_none());
    }
    assert_eq!(reads(&world), 2);
    assert_eq!(kit.registry().total(metrics::CACHE_HITS), 4);
    clock.advance(Duration::from_secs(60));
    assert!(client.get(b"r001").await.expect("reads").is_some());
    assert_eq!(reads(&world), 3);
}

#[tokio::test]
async fn a_lookup_shows_no_user_data_in_its_errors() {
    let world = World::with(plain_rows(numbered(3), "v"), &[]).await;
    let client = open(lookup(&world).max_retries(0), &TestContext::new("lookup"));
    world
        .table
        .always(Method::ReadRows)
        .status(Code::Unavailable);
    let error = client.get(b"secret-key").await.expect_err("never answered");
    aqueduct_testkit::log::Marker::new("secret-key").assert_absent_from_error("the error", &error);
    assert_eq!(
        error.statuses().expect("statuses").code(),
        StatusCode::Unavailable
    );
    assert!(error.to_string().contains("p.i.t"), "{error}");
}

#[test]
fn wrong_settings_are_refused_by_their_options() {
    let builder = || BigtableLookup::builder().table(destination());
    for (wrong, named) in [
        (BigtableLookup::builder(), "'table'"),
        (
            builder().cache(LookupCache::new()),
            "'lookup.partial-cache.max-rows'",
        ),
        (builder().max_retries(1_001), "'lookup.max-retries'"),
        (builder().filter(Filter::label("")), "'scan.filter'"),
        (
            builder().row_range(RowRange::parse("[b, a]").expect("parses")),
            "'scan.row-ranges'",
        ),
    ] {
        let error = wrong.build().expect_err(named).to_string();
        assert!(error.contains(named), "{error}");
    }
}
