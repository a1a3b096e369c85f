//! The scan source: the conformance suite, restores, bounds, limits, wiring.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;

use aqueduct_bigtable::RowRange;
use aqueduct_bigtable::client::read::RowRef;
use aqueduct_bigtable::filter::Filter;
use aqueduct_bigtable::source::{BigtableSource, metrics};
use aqueduct_connector::Error;
use aqueduct_connector::options::ByteSize;
use aqueduct_connector::source::{Collector, Source};
use aqueduct_sim::{Chunking, Method};
use aqueduct_testkit::conformance::{self, Effort, SourceWorld};
use aqueduct_testkit::log::Marker;
use aqueduct_testkit::{SourceHost, TestContext};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::ReadRowsRequest;

use super::scan_support::*;

const CONTENT: &str = "user-data-that-nobody-logs";

fn rows(count: u64) -> NonZeroU64 {
    NonZeroU64::new(count).expect("not zero")
}

#[derive(Clone, Copy)]
enum Shape {
    Plain,
    Reversed,
    /// Reads the first so many rows.
    Limited(u64),
}

struct Scan {
    world: World,
    shape: Shape,
}

impl SourceWorld for Scan {
    type Record = String;

    fn source(&self) -> Arc<dyn Source<String>> {
        let builder = self.world.keys_source().max_rows_per_fetch(rows(3));
        arc(match self.shape {
            Shape::Plain => builder,
            Shape::Reversed => builder.reversed(),
            Shape::Limited(limit) => builder.row_limit(rows(limit)),
        })
    }

    fn key(&self, record: &String) -> String {
        record.clone()
    }

    fn expected(&self) -> Vec<String> {
        let mut keys = self.world.keys();
        if let Shape::Limited(limit) = self.shape {
            keys.truncate(usize::try_from(limit).expect("small"));
        }
        keys
    }

    fn marker(&self) -> Option<Marker> {
        Some(Marker::new(CONTENT))
    }
}

async fn conforms(shape: Shape) {
    let effort = Effort {
        seeds: 0..1,
        points: 8,
    };
    let report = conformance::source(effort, async |seed| {
        let splits = ["r006", "r012", "r018"];
        let world = World::with(plain_rows(numbered(24), CONTENT), &splits).await;
        world.table.set_chunking(Chunking::Seeded(seed));
        Scan { world, shape }
    })
    .await;
    report.assert_all_but(&[]);
}

#[tokio::test]
async fn the_scan_conforms() {
    conforms(Shape::Plain).await;
}

#[tokio::test]
async fn the_reverse_scan_conforms() {
    conforms(Shape::Reversed).await;
}

#[tokio::test]
async fn the_limited_scan_conforms_and_is_exact_across_splits_and_restarts() {
    conforms(Shape::Limited(15)).await;
}

fn emitted(host: &SourceHost<String>) -> Vec<String> {
    host.emitted()
        .map(|emitted| emitted.record.value.clone())
        .collect()
}

/// Runs to the end and returns what was emitted, in each reader's order.
async fn run(source: Arc<dyn Source<String>>, kit: &TestContext, parallelism: u32) -> Vec<String> {
    let mut host = SourceHost::start(source, kit, parallelism).expect("starts");
    host.run_to_end().await.expect("reads");
    let records = emitted(&host);
    host.close().await.expect("closes");
    records
}

#[tokio::test]
async fn a_restore_at_every_row_goes_on_there_while_tablets_split_and_merge() {
    let world = World::with(plain_rows(numbered(20), "v"), &["r005", "r010"]).await;
    world.table.set_chunking(Chunking::Seeded(9));
    let source = arc(world.keys_source().max_rows_per_fetch(rows(4)));
    for at in 0..=20 {
        let kit = TestContext::new("scan").with_seed(at);
        let mut host = SourceHost::start(source.clone(), &kit, 2).expect("starts");
        host.run_to(usize::try_from(at).expect("small"))
            .await
            .expect("reads");
        let checkpoint = host.checkpoint().await.expect("snapshots");
        let before: Vec<String> = host
            .emitted_before(&checkpoint)
            .map(|emitted| emitted.record.value.clone())
            .collect();
        host.kill();
        let sampled = kit.registry().total(metrics::ROW_KEY_SAMPLES_TAKEN);
        // The restored plan is in terms of the old tablets, and must stay so.
        if at % 2 == 0 {
            world.table.split_tablet(b"r003");
            world.table.merge_tablets(b"r010");
        } else {
            world.table.merge_tablets(b"r003");
            world.table.split_tablet(b"r010");
        }
        let kit = kit.next_attempt();
        let mut host = SourceHost::restore(source.clone(), &kit, &checkpoint, 3).expect("restores");
        host.run_to_end().await.expect("reads on");
        let mut all = before;
        all.extend(emitted(&host));
        all.sort();
        assert_eq!(all, world.keys(), "restored after {at} rows");
        let sampled_again = kit.registry().total(metrics::ROW_KEY_SAMPLES_TAKEN) - sampled;
        assert_eq!(
            sampled_again,
            i128::from(sampled == 0),
            "a plan is never made twice"
        );
        host.close().await.expect("closes");
    }
}

#[tokio::test]
async fn a_restored_split_reopens_behind_its_last_row() {
    let world = World::with(plain_rows(numbered(10), "v"), &[]).await;
    let source = arc(world.keys_source().max_rows_per_fetch(rows(4)));
    let kit = TestContext::new("scan");
    let mut host = SourceHost::start(source.clone(), &kit, 1).expect("starts");
    host.run_to(6).await.expect("reads");
    let checkpoint = host.checkpoint().await.expect("snapshots");
    let read = host.emitted_before(&checkpoint).count();
    host.kill();
    world.sim.bigtable().clear_requests();
    let mut host = SourceHost::restore(source, &kit.next_attempt(), &checkpoint, 1).expect("state");
    host.run_to_end().await.expect("reads on");
    let requests = world.table.requests_of(Method::ReadRows);
    let request: ReadRowsRequest = requests[0].message().expect("kept").expect("decodes");
    let expected = RowRange::parse(&format!("(r{:03}, *)", read - 1))
        .expect("a range")
        .to_wire();
    assert_eq!(request.rows.expect("a row set").row_ranges, [expected]);
    assert!(world.table.requests_of(Method::SampleRowKeys).is_empty());
    host.close().await.expect("closes");
}

#[tokio::test]
async fn a_split_behind_its_inclusive_end_finishes_without_a_request() {
    let world = World::with(plain_rows(numbered(5), "v"), &[]).await;
    let range = RowRange::parse("(*, r004]").expect("a range");
    let source = arc(world.keys_source().row_range(range));
    let kit = TestContext::new("scan");
    let mut host = SourceHost::start(source.clone(), &kit, 1).expect("starts");
    // All rows are emitted, and the reader has not been polled since.
    host.run_to(5).await.expect("reads");
    let checkpoint = host.checkpoint().await.expect("snapshots");
    host.kill();
    world.sim.bigtable().clear_requests();
    let mut host = SourceHost::restore(source, &kit.next_attempt(), &checkpoint, 1).expect("state");
    host.run_to_end().await.expect("ends");
    assert_eq!(host.emitted_count(), 0);
    assert!(world.table.requests_of(Method::ReadRows).is_empty());
    host.close().await.expect("closes");
}

#[tokio::test]
async fn a_limit_reads_the_first_rows_in_key_order_and_asks_for_no_more() {
    let world = World::with(plain_rows(numbered(20), "v"), &["r005", "r010"]).await;
    for (limit, reversed) in [
        (1, false),
        (5, false),
        (7, false),
        (20, false),
        (99, false),
        (7, true),
    ] {
        let builder = || {
            let builder = world.keys_source().row_limit(rows(limit));
            if reversed {
                builder.reversed()
            } else {
                builder
            }
        };
        let mut expected = world.keys();
        if reversed {
            expected.reverse();
        }
        expected.truncate(usize::try_from(limit).expect("small"));
        for parallelism in [1, 3] {
            let mut records = run(arc(builder()), &TestContext::new("scan"), parallelism).await;
            let mut expected = expected.clone();
            if parallelism > 1 {
                records.sort();
                expected.sort();
            }
            assert_eq!(
                records, expected,
                "limit {limit}, parallelism {parallelism}"
            );
        }
    }
    for request in world.table.requests_of(Method::ReadRows) {
        let request: ReadRowsRequest = request.message().expect("kept").expect("decodes");
        assert!(request.rows_limit > 0, "the service is told the limit");
    }
}

#[tokio::test]
async fn a_fetch_ends_at_the_first_bound_and_a_larger_row_travels_alone() {
    let mut all = plain_rows(numbered(10), "0123456789");
    // 4 + 2 + 1 + 8 + 10 bytes each, but one of ten times that.
    all.insert(
        b"r005".to_vec(),
        vec![("cf".into(), b"q".to_vec(), 1_000, vec![b'x'; 250])],
    );
    let world = World::with(all, &[]).await;
    let sizes = |max_rows: u64, max_bytes: u64| {
        let builder = world
            .keys_source()
            .max_rows_per_fetch(rows(max_rows))
            .max_bytes_per_fetch(ByteSize(max_bytes));
        async move { batch_sizes(arc(builder)).await }
    };
    assert_eq!(sizes(4, 1 << 20).await, [4, 4, 2]);
    assert_eq!(
        sizes(100, 50).await,
        [2, 2, 1, 1, 2, 2],
        "two rows are exactly the target"
    );
    assert_eq!(sizes(100, 49).await, [1; 10]);
    assert_eq!(sizes(100, 1).await, [1; 10], "every row travels alone");
}

/// Polls a reader by hand and returns how many records each batch had.
async fn batch_sizes(source: Arc<dyn Source<String>>) -> Vec<usize> {
    use aqueduct_connector::source::{EnumeratorCommand, EnumeratorOutput, ReaderOutput};
    let kit = TestContext::new("scan");
    let mut enumerator = source
        .create_enumerator(kit.coordinator(1), None)
        .expect("a coordinator");
    let mut reader = source.create_reader(kit.subtask(0, 1)).expect("a reader");
    let mut out = EnumeratorOutput::new();
    enumerator
        .reader_registered(0, &mut out)
        .expect("registers");
    let mut sizes = Vec::new();
    loop {
        let output = std::future::poll_fn(|cx| {
            if let std::task::Poll::Ready(result) = enumerator.poll_progress(cx, &mut out) {
                result.expect("plans");
            }
            for command in out.drain() {
                match command {
                    EnumeratorCommand::Assign { splits, .. } => {
                        reader.add_splits(splits).expect("splits")
                    }
                    EnumeratorCommand::NoMoreSplits { .. } => {
                        reader.no_more_splits().expect("told")
                    }
                    EnumeratorCommand::Event { event, .. } => {
                        reader.enumerator_event(event).expect("event")
                    }
                }
            }
            reader.poll_next(cx)
        });
        match aqueduct_testkit::within(LIMIT, "an output", output)
            .await
            .expect("reads")
        {
            ReaderOutput::Batch(batch) => {
                sizes.push(batch.records.len());
                reader.emitted(batch.records.len());
            }
            ReaderOutput::RequestSplit => enumerator.split_requested(0, &mut out).expect("asks"),
            ReaderOutput::End => break,
            ReaderOutput::SplitFinished(_) => {}
            other => panic!("unexpected {other:?}"),
        }
    }
    drop(reader);
    drop(enumerator);
    kit.spawner().assert_idle(LIMIT).await;
    sizes
}

#[tokio::test]
async fn a_row_gives_any_number_of_records_and_none_is_counted_as_skipped() {
    let world = World::with(plain_rows(numbered(12), "v"), &["r006"]).await;
    let source = BigtableSource::builder()
        .table(destination())
        .emulator_endpoint(world.address())
        .deserializer(|row: RowRef<'_>, out: &mut Collector<'_, String>| {
            let key = String::from_utf8_lossy(row.key()).into_owned();
            // None for every third row, then one, then two.
            let number: usize = key[1..].parse().expect("numbered");
            (0..number % 3).for_each(|copy| out.emit(format!("{key}-{copy}")));
            Ok(())
        });
    let source = arc(source.max_rows_per_fetch(rows(5)));
    for at in 0..=12 {
        let kit = TestContext::new("scan").with_seed(at);
        let mut host = SourceHost::start(source.clone(), &kit, 1).expect("starts");
        host.run_to(usize::try_from(at).expect("small"))
            .await
            .expect("reads");
        let checkpoint = host.checkpoint().await.expect("snapshots");
        let mut all: BTreeSet<String> = emitted(&host).into_iter().collect();
        host.kill();
        let mut host = SourceHost::restore(source.clone(), &kit.next_attempt(), &checkpoint, 1)
            .expect("state");
        host.run_to_end().await.expect("reads on");
        all.extend(emitted(&host));
        assert_eq!(all.len(), 12, "stopped after {at} records");
        host.close().await.expect("closes");
    }
    let kit = TestContext::new("scan");
    assert_eq!(run(source, &kit, 1).await.len(), 12);
    assert_eq!(kit.registry().total(metrics::ROWS_READ), 12);
    assert_eq!(kit.registry().total(metrics::RECORDS_SKIPPED), 4);
}

#[tokio::test]
async fn a_failing_deserializer_fails_the_job_behind_the_rows_before_it() {
    let world = World::with(plain_rows(numbered(6), CONTENT), &[]).await;
    let source = BigtableSource::builder()
        .table(destination())
        .emulator_endpoint(world.address())
        .deserializer(|row: RowRef<'_>, out: &mut Collector<'_, String>| {
            out.emit(String::from_utf8_lossy(row.key()).into_owned());
            if row.key() == b"r003" {
                return Err(Error::user("not a total"));
            }
            Ok(())
        });
    let kit = TestContext::new("scan");
    let mut host = SourceHost::start(arc(source), &kit, 1).expect("starts");
    let error = host.run_to_end().await.expect_err("the deserializer fails");
    assert_eq!(
        emitted(&host),
        ["r000", "r001", "r002"],
        "its own output is dropped"
    );
    assert!(error.report().contains("not a total"), "{}", error.report());
    assert!(error.to_string().contains("p.i.t"), "{error}");
    Marker::new(CONTENT).assert_absent_from_error("the error", &error);
    host.kill();
}

#[tokio::test]
async fn every_setting_reaches_the_request() {
    let world = World::with(plain_rows(numbered(30), "v"), &[]).await;
    let filter = Filter::chain([Filter::family_exact("cf"), Filter::cells_per_column(1)]);
    let source = world
        .keys_source()
        .row_range(RowRange::parse("(r003, r005]").expect("a range"))
        .prefix("r01")
        .filter(filter.clone())
        .app_profile_id("batch")
        .reversed();
    let records = run(arc(source), &TestContext::new("scan"), 1).await;
    let expected: Vec<String> = (10..20).chain(4..6).map(|at| format!("r{at:03}")).collect();
    let mut sorted = records.clone();
    sorted.sort();
    let mut wanted = expected.clone();
    wanted.sort();
    assert_eq!(sorted, wanted);
    let mut ranges = Vec::new();
    for request in world.table.requests_of(Method::ReadRows) {
        let message: ReadRowsRequest = request.message().expect("kept").expect("decodes");
        assert_eq!(message.filter, Some(filter.to_wire()));
        assert_eq!(message.app_profile_id, "batch");
        assert!(message.reversed);
        assert!(
            request
                .routing
                .as_deref()
                .is_some_and(|routing| routing.ends_with("&app_profile_id=batch"))
        );
        ranges.extend(message.rows.expect("a row set").row_ranges);
    }
    let given =
        ["[r01, r02)", "(r003, r005]"].map(|range| RowRange::parse(range).expect("a range"));
    assert_eq!(
        ranges,
        given.map(|range| range.to_wire()),
        "bounds keep their form"
    );
    let sampling = &world.table.requests_of(Method::SampleRowKeys)[0];
    assert_eq!(sampling.app_profile, "batch");
    assert!(
        sampling
            .routing
            .as_deref()
            .is_some_and(|routing| routing.ends_with("&app_profile_id=batch"))
    );
}

#[tokio::test]
async fn fewer_splits_than_subtasks_are_warned_about_with_both_numbers() {
    let world = World::with(plain_rows(numbered(6), "v"), &["r003"]).await;
    let log = aqueduct_testkit::log::capture();
    let kit = TestContext::new("scan");
    assert_eq!(run(arc(world.keys_source()), &kit, 5).await.len(), 6);
    let warning = log.one_warning("fewer splits than subtasks");
    assert_eq!(warning.field("splits"), Some("2"));
    assert_eq!(warning.field("parallelism"), Some("5"));
    assert_eq!(kit.registry().total(metrics::SPLITS_ASSIGNED), 2);
    assert_eq!(kit.registry().total(metrics::UNASSIGNED_SPLITS), 0);
    assert_eq!(kit.registry().total(metrics::ROW_KEY_SAMPLES_TAKEN), 1);
}

#[tokio::test]
async fn the_plan_shows_the_bytes_of_the_sections_it_touches() {
    let world = World::with(plain_rows(numbered(9), "v"), &["r003", "r006"]).await;
    let planned = async |source: Arc<dyn Source<String>>| {
        let kit = TestContext::new("scan");
        run(source, &kit, 1).await;
        kit.registry().total(metrics::PLANNED_BYTES)
    };
    let whole = planned(arc(world.keys_source())).await;
    let first = planned(arc(world.keys_source().prefix("r001"))).await;
    let nothing_new = planned(arc(world.keys_source().prefix("r001").prefix("r002"))).await;
    assert!(0 < first && first < whole, "{first} of {whole}");
    assert_eq!(first, nothing_new, "a section counts once, and in whole");
}

#[tokio::test]
async fn the_registered_metrics_are_those_listed() {
    let world = World::with(plain_rows(numbered(3), "v"), &[]).await;
    let kit = TestContext::new("scan");
    run(arc(world.keys_source()), &kit, 1).await;
    let registered: BTreeSet<String> = kit
        .registry()
        .samples()
        .into_iter()
        .map(|sample| sample.name)
        .collect();
    let listed: BTreeSet<String> = metrics::ALL.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(registered, listed);
}

#[tokio::test]
async fn a_failed_sampling_fails_the_job_and_makes_no_single_split() {
    let world = World::with(plain_rows(numbered(3), "v"), &[]).await;
    world.table.delete();
    let kit = TestContext::new("scan");
    let mut host = SourceHost::start(arc(world.keys_source()), &kit, 1).expect("starts");
    let error = host.run_to_end().await.expect_err("there is no table");
    assert!(error.to_string().contains("p.i.t"), "{error}");
    assert!(world.table.requests_of(Method::ReadRows).is_empty());
    host.kill();
}

#[tokio::test]
async fn every_component_reads_the_key_file_and_says_the_same_of_a_bad_one() {
    let dir = tempdir();
    let malformed = dir.join("malformed.json");
    std::fs::write(&malformed, "{\"type\": \"service_account\"}").expect("writable");
    let mut texts = BTreeSet::new();
    for path in [dir.join("missing.json"), dir.clone(), malformed] {
        let path = path.to_str().expect("UTF-8").to_owned();
        let build = || {
            BigtableSource::<String>::builder()
                .table(destination())
                .deserializer(|_: RowRef<'_>, _: &mut Collector<'_, String>| Ok(()))
                .service_account_key_file(path.clone())
                .build()
                .expect("the file is read later")
        };
        let kit = TestContext::new("scan");
        let mut out = aqueduct_connector::source::EnumeratorOutput::new();
        let mut enumerator = build()
            .create_enumerator(kit.coordinator(1), None)
            .expect("no I/O");
        let planned = poll_once(|cx| enumerator.poll_progress(cx, &mut out));
        let mut reader = build().create_reader(kit.subtask(0, 1)).expect("no I/O");
        let read = poll_once(|cx| reader.poll_next(cx).map_ok(|_| ()));
        for outcome in [planned, read] {
            let error = outcome
                .expect("answers at once")
                .expect_err("the key is bad");
            assert!(!error.report().contains(&path));
            texts.insert(error.report());
        }
    }
    assert_eq!(texts.len(), 1, "{texts:?}");
    std::fs::remove_dir_all(dir).expect("ours");
}

fn poll_once<O>(
    mut poll: impl FnMut(&mut std::task::Context<'_>) -> std::task::Poll<O>,
) -> Option<O> {
    match poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

fn tempdir() -> std::path::PathBuf {
    let dir = std::env::temp_dir().join(format!("aqueduct-scan-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a temporary directory");
    dir
}
