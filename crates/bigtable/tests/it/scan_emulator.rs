//! The same rows and the same filters against the simulated service and against Google's emulator: the same answer,
//! except where a table below says what the emulator teaches wrongly.

use std::ops::Bound;

use aqueduct_bigtable::client::read::{ReadClient, ReadPolicy, Remaining, ScanOrder};
use aqueduct_bigtable::filter::Filter;
use aqueduct_bigtable::{BigtableLookup, RowRange};
use aqueduct_cloud::CallSpec;
use aqueduct_connector::Context;
use aqueduct_testkit::emulator::{BigtableEmulator, require_bigtable};
use aqueduct_testkit::{SourceHost, TestContext, test_context};
use bytes::Bytes;
use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;

use super::scan_support::*;

const FAMILIES: [&str; 3] = ["cf", "other", "empty"];

/// Filters that the generated corpus is checked with.
const CORPUS: u64 = 400;

fn rows() -> Rows {
    let mut rows = Rows::new();
    for at in 0..24usize {
        let mut cells: Vec<Cell> = Vec::new();
        for (family, qualifiers) in [("cf", 3), ("other", 2)] {
            for qualifier in 0..(at % (qualifiers + 1)) {
                for version in 0..=(at % 3) {
                    let value = match at % 4 {
                        0 => vec![],
                        1 => format!("v{qualifier}").into_bytes(),
                        2 => vec![0, 0xff, b'\n', qualifier as u8],
                        _ => format!("value-{at}-{version}").into_bytes(),
                    };
                    let at_micros = (100 - version as i64 * 10) * 1_000;
                    let name = format!("q{qualifier}").into_bytes();
                    cells.push((family.to_owned(), name, at_micros, value));
                }
            }
        }
        if at % 5 == 0 {
            cells.push(("other".to_owned(), vec![], 5_000, b"no qualifier".to_vec()));
        }
        if !cells.is_empty() {
            let key = match at % 6 {
                5 => vec![0xfe, at as u8, 0],
                _ => format!("r{at:02}.x").into_bytes(),
            };
            rows.insert(key, cells);
        }
    }
    rows
}

/// The emulator, with a table `t` of [`FAMILIES`] that holds `rows`.
async fn emulator_with(context: &Context, rows: &Rows) -> Option<(BigtableEmulator, String)> {
    let emulator = require_bigtable()?;
    let address = emulator.address().to_string();
    let admin = pool(context, &address);
    let spec = |path| CallSpec::new(path, LIMIT);
    let request = admin::CreateTableRequest {
        parent: destination().instance_path(),
        table_id: destination().table().to_owned(),
        table: Some(admin::Table::default()),
        ..admin::CreateTableRequest::default()
    };
    let path = "/google.bigtable.admin.v2.BigtableTableAdmin/CreateTable";
    let made: Result<admin::Table, _> = admin.unary(&spec(path), &request).await;
    made.expect("the emulator makes tables");
    // One by one: cells come in the order in which their families were made.
    for family in FAMILIES {
        use admin::modify_column_families_request::{Modification, modification::Mod};
        let request = admin::ModifyColumnFamiliesRequest {
            name: destination().path(),
            modifications: vec![Modification {
                id: family.to_owned(),
                r#mod: Some(Mod::Create(admin::ColumnFamily::default())),
                ..Modification::default()
            }],
            ..admin::ModifyColumnFamiliesRequest::default()
        };
        let path = "/google.bigtable.admin.v2.BigtableTableAdmin/ModifyColumnFamilies";
        let made: Result<admin::Table, _> = admin.unary(&spec(path), &request).await;
        made.expect("the emulator makes families");
    }
    write(context, &address, &destination(), rows).await;
    Some((emulator, address))
}

/// A random filter; every one passes `check`.
fn any_filter(random: &mut fastrand::Rng, depth: usize) -> Filter {
    let choices = if depth == 0 { 13 } else { 16 };
    match random.u32(0..choices) {
        0 => Filter::pass_all(),
        1 => Filter::strip_value(),
        2 => Filter::family_exact(pick(random, &["cf", "other", "empty"])),
        3 => Filter::family_regex(*pick(random, &["c.*", "(cf|other)", "[a-z]+r", "x.*"])),
        4 => Filter::qualifier_exact(pick(random, &[&b"q0"[..], b"q1", b"", b"none"])),
        5 => Filter::qualifier_regex(*pick(random, &["q[01]", ".*", ".+", "\\C*2"])),
        6 => Filter::value_exact(pick(
            random,
            &[&b"v1"[..], b"", &[0, 0xff, b'\n', 1], b"value-3-0"],
        )),
        7 => Filter::value_regex(*pick(
            random,
            &["v.*", "value-[0-9]+-0", "\\C*", ".*", "v[^1]"],
        )),
        8 => Filter::row_key_regex(*pick(random, &["r0.*", "r1\\C*", ".*\\.x", "\\C*"])),
        9 => {
            let bounds = [random.i64(0..12), random.i64(0..12)].map(|at| at * 10_000);
            let end = bounds[0] + bounds[1] + 1_000;
            Filter::timestamp_range(Some(bounds[0]), random.bool().then_some(end))
        }
        10 => Filter::cells_per_column(random.u32(1..3)),
        // Within one family only: over several, the emulator counts cells in an order that changes from run to run.
        11 => {
            let cells = random.u32(1..5);
            let counted = if random.bool() {
                Filter::cells_per_row(cells)
            } else {
                Filter::cells_per_row_offset(cells)
            };
            Filter::chain([Filter::family_exact("cf"), counted])
        }
        12 => match random.u32(0..3) {
            0 => Filter::qualifier_range(
                pick(random, &["cf", "other"]),
                Bound::Included(Bytes::from("q0")),
                if random.bool() {
                    Bound::Included(Bytes::from("q1"))
                } else {
                    Bound::Excluded(Bytes::from("q2"))
                },
            ),
            1 => Filter::value_range(Bound::Included(Bytes::from("v")), Bound::Unbounded),
            _ => Filter::value_range(
                Bound::Excluded(Bytes::from("v1")),
                Bound::Included(Bytes::from("value-5")),
            ),
        },
        13 => Filter::chain((0..random.usize(2..4)).map(|_| any_filter(random, depth - 1))),
        14 => Filter::interleave((0..random.usize(2..4)).map(|_| any_filter(random, depth - 1))),
        _ => {
            let mut branch = || any_filter(random, depth - 1);
            let (predicate, then) = (branch(), branch());
            let otherwise = random.bool().then(|| any_filter(random, depth - 1));
            Filter::condition(predicate, Some(then), otherwise)
        }
    }
}

fn pick<'a, T: ?Sized>(random: &mut fastrand::Rng, all: &'a [&'static T]) -> &'a &'static T {
    &all[random.usize(..all.len())]
}

async fn answer(client: &ReadClient, filter: &Filter) -> Result<Vec<(Vec<u8>, Vec<Cell>)>, String> {
    let all = Remaining::ranges(vec![RowRange::all()], ScanOrder::Forward, None);
    let mut stream = scan(client, all, Some(filter), ReadPolicy::lookup(0));
    collect(&mut stream)
        .await
        .map_err(|error| match error.statuses() {
            Some(statuses) => statuses.code().name().to_owned(),
            None => error.report(),
        })
}

#[tokio::test]
async fn the_same_filter_gives_the_same_answer_on_both_sides() {
    let context = test_context(1);
    let Some((_emulator, address)) = emulator_with(&context, &rows()).await else {
        return;
    };
    let world = World::with(rows(), &["r05", "r12"]).await;
    world.table.add_family("empty");
    let simulated = world.client(&context);
    let official = client(&context, &address, &destination());
    let mut unlike = Vec::new();
    for seed in 0..CORPUS {
        let filter = any_filter(&mut fastrand::Rng::with_seed(seed), 3);
        filter.check().expect("the corpus keeps the rules");
        let (here, there) = (
            answer(&simulated, &filter).await,
            answer(&official, &filter).await,
        );
        if here != there {
            let shape = format!("{:?}", filter.to_wire());
            let shape = shape
                .replace("RowFilter { filter: ", "{")
                .replace("Some(", "(");
            let rows = [here, there].map(|rows| rows.map(|rows| rows.len()));
            unlike.push(format!("seed {seed}, {rows:?}: {shape}"));
        }
    }
    assert!(
        unlike.is_empty(),
        "{} of {CORPUS} are unlike, such as\n{}",
        unlike.len(),
        unlike[..unlike.len().min(5)].join("\n")
    );
}

#[tokio::test]
async fn the_known_differences_are_still_there() {
    let context = test_context(1);
    let Some((_emulator, address)) = emulator_with(&context, &rows()).await else {
        return;
    };
    let world = World::with(rows(), &[]).await;
    let simulated = world.client(&context);
    let official = client(&context, &address, &destination());
    // BT-SIM-08: the service checks families against the schema, the emulator matches nothing.
    for filter in [
        Filter::family_exact("nofamily"),
        Filter::qualifier_range("nofamily", Bound::Unbounded, Bound::Unbounded),
    ] {
        assert_eq!(
            answer(&simulated, &filter).await,
            Err("NOT_FOUND".to_owned())
        );
        assert_eq!(answer(&official, &filter).await, Ok(vec![]));
    }
}

#[tokio::test]
async fn a_whole_scan_and_lookups_read_the_emulator_through_the_public_builders() {
    let rows = plain_rows(numbered(120), "v");
    let context = test_context(1);
    let Some((_emulator, address)) = emulator_with(&context, &rows).await else {
        return;
    };
    let kit = TestContext::new("scan");
    let source = keys_source(&address, &destination())
        .prefix("r00")
        .row_range(RowRange::parse("[r050, r059]").expect("a range"))
        .filter(Filter::cells_per_column(1));
    let mut host = SourceHost::start(arc(source), &kit, 2).expect("starts");
    host.run_until_emitted(3).await.expect("reads");
    host.checkpoint()
        .await
        .expect("a checkpoint while it still produces");
    host.run_to_end().await.expect("reads");
    let mut keys: Vec<String> = host
        .emitted()
        .map(|record| record.record.value.clone())
        .collect();
    keys.sort();
    let expected: Vec<String> = (0..10)
        .chain(50..60)
        .map(|at| format!("r{at:03}"))
        .collect();
    assert_eq!(keys, expected);
    host.close().await.expect("closes");

    let lookup = BigtableLookup::builder()
        .table(destination())
        .emulator_endpoint(address)
        .build()
        .expect("valid settings");
    let client = lookup.open(&kit.subtask(0, 1)).expect("no key file");
    let asked = ["r007", "none", "r119"].map(Bytes::from);
    let found = client.get_many(&asked).await.expect("reads");
    assert_eq!(
        found.iter().map(Option::is_some).collect::<Vec<_>>(),
        [true, false, true]
    );
}
