//! Tables read: which rows, which columns, in how few requests, and what becomes of values that do not fit.

use std::collections::BTreeSet;
use std::sync::Arc;

use aqueduct_bigtable::table::factory;
use aqueduct_connector::row::Row;
use aqueduct_connector::source::Source;
use aqueduct_connector::table::{
    Compare, FieldPath, Filter, FilterUse, Literal, ScanPlan, TableSpec,
};
use aqueduct_connector::types::LogicalType;
use aqueduct_sim::{Chunking, Method};
use aqueduct_testkit::conformance::{self, Effort, SourceWorld};
use aqueduct_testkit::log::Marker;
use aqueduct_testkit::{SourceHost, TestContext};

use super::scan_support::{Cell, Rows, World, numbered, plain_rows};
use super::table_support::*;

fn cell(family: &str, qualifier: &str, at: i64, value: &[u8]) -> Cell {
    (
        family.to_owned(),
        qualifier.as_bytes().to_vec(),
        at,
        value.to_vec(),
    )
}

/// The world's table, with keys of type `key`.
fn on(world: &World, key: &str) -> TableSpec {
    let mut spec = spec(&world.address(), key);
    spec.options.retain(|key, _| !key.starts_with("sink."));
    spec
}

/// One column, `cf:q`, for [`plain_rows`].
fn plain(world: &World) -> TableSpec {
    let mut spec = on(world, "STRING");
    spec.columns[0].ty = LogicalType::parse("ROW<q STRING>").expect("a type");
    spec
}

fn keys(rows: &[Row], arity: usize, field: usize) -> BTreeSet<String> {
    let keys: BTreeSet<String> = rows
        .iter()
        .map(|row| {
            row.view(arity)
                .expect("a row")
                .str(field)
                .expect("a key")
                .to_owned()
        })
        .collect();
    assert_eq!(keys.len(), rows.len(), "no row twice");
    keys
}

const CONTENT: &str = "user-data-that-nobody-logs";

struct Scan(World);

impl SourceWorld for Scan {
    type Record = Row;

    fn source(&self) -> Arc<dyn Source<Row>> {
        source(&plain(&self.0), &reads(&[&[1], &[0, 0]]))
    }

    fn key(&self, row: &Row) -> String {
        let row = row.view(2).expect("two fields");
        assert_eq!(row.str(1), Ok(CONTENT));
        row.str(0).expect("a key").to_owned()
    }

    fn expected(&self) -> Vec<String> {
        self.0.keys()
    }

    fn marker(&self) -> Option<Marker> {
        Some(Marker::new(CONTENT))
    }
}

#[tokio::test]
async fn the_scan_of_a_table_conforms() {
    let effort = Effort {
        seeds: 0..1,
        points: 4,
    };
    let report = conformance::source(effort, async |seed| {
        let splits = ["r006", "r012", "r018"];
        let world = World::with(plain_rows(numbered(24), CONTENT), &splits).await;
        world.table.set_chunking(Chunking::Seeded(seed));
        Scan(world)
    })
    .await;
    report.assert_all_but(&[]);
}

#[tokio::test]
async fn rows_come_in_batches_of_the_size_that_the_host_wants() {
    let world = World::with(plain_rows(numbered(300), &"v".repeat(1_000)), &["r100"]).await;
    let rows = scan_rows(&plain(&world), &ScanPlan::default())
        .await
        .expect("reads");
    assert_eq!(keys(&rows, 3, 1).len(), 300);
    let requests = world.table.requests_of(Method::ReadRows).len();
    assert_eq!(
        requests, 2,
        "one for each section, however often the host asks"
    );
}

#[tokio::test]
async fn columns_come_as_the_plan_names_them_newest_first_on_both_services() {
    for service in services().await {
        let spec = spec(&service.address, "STRING");
        let first = Item {
            cf: Some(Cf {
                n: Some(1),
                ..Cf::default()
            }),
            other: Some(Other {
                b: Some(vec![1]),
                d: None,
            }),
        };
        write_rows(
            &spec,
            &writes(&UPSERTS, &[]),
            vec![upsert("gone", &first), delete("gone")],
        )
        .await
        .expect("makes the table");
        let rows = Rows::from([
            (
                b"a".to_vec(),
                vec![
                    cell("cf", "n", 2_000, &7_i32.to_be_bytes()),
                    cell("cf", "n", 1_000, &6_i32.to_be_bytes()),
                    cell("cf", "name", 1_000, b"anna"),
                    cell("cf", "undeclared", 1_000, b"x"),
                    cell("other", "d", 1_000, &0.5_f64.to_be_bytes()),
                ],
            ),
            // Only a column that is not declared.
            (b"b".to_vec(), vec![cell("cf", "undeclared", 1_000, b"x")]),
            (b"c".to_vec(), vec![cell("other", "b", 1_000, b"bytes")]),
        ]);
        write_cells(&service.address, "t", &rows).await;
        let anna = Cf {
            name: Some("anna".to_owned()),
            n: Some(7),
            ..Cf::default()
        };

        // The row key alone: every row.
        let found = scan_rows(&spec, &reads(&[&[1]])).await.expect("reads");
        assert_eq!(
            keys(&found, 1, 0),
            ["a", "b", "c"].map(String::from).into(),
            "{}",
            service.name
        );

        // Columns of one family: rows that have any cell of it, whichever.
        let plan = reads(&[&[0, 1], &[1], &[0, 0]]);
        let mut found: Vec<_> = scan_rows(&spec, &plan)
            .await
            .expect("reads")
            .iter()
            .map(|row| {
                let row = row.view(3).expect("three fields");
                let n = (!row.is_null(0)).then(|| row.i32(0));
                let name = (!row.is_null(2)).then(|| row.str(2).expect("text").to_owned());
                (row.str(1).expect("a key").to_owned(), n, name)
            })
            .collect();
        found.sort();
        let expected = [
            ("a".to_owned(), Some(7), Some("anna".to_owned())),
            ("b".to_owned(), None, None),
        ];
        assert_eq!(found, expected, "{}", service.name);

        // A family and a column of another, and one of both.
        let plan = reads(&[&[0], &[2, 1], &[0, 1]]);
        let mut found: Vec<_> = scan_rows(&spec, &plan)
            .await
            .expect("reads")
            .iter()
            .map(|row| {
                let row = row.view(3).expect("three fields");
                let d = (!row.is_null(1)).then(|| row.f64(1));
                (d, (!row.is_null(2)).then(|| row.i32(2)), read_cf(&row, 0))
            })
            .collect();
        found.sort_by(|left, right| left.0.partial_cmp(&right.0).expect("no NaN"));
        let none = Some(Cf::default());
        assert_eq!(
            found,
            [
                (None, None, none.clone()),
                (None, None, none),
                (Some(0.5), Some(7), Some(anna.clone()))
            ],
            "{}",
            service.name
        );

        // Nothing at all: the number of rows.
        let found = scan_rows(&spec, &reads(&[])).await.expect("reads");
        assert_eq!(found.len(), 3, "{}", service.name);

        // Everything.
        let items = scan_items(&spec).await;
        assert_eq!(items.len(), 3);
        assert_eq!(items["a"].cf, Some(anna));
        assert_eq!(
            items["c"].other.as_ref().and_then(|other| other.b.clone()),
            Some(b"bytes".to_vec())
        );
    }
}

const OPS: [Compare; 6] = [
    Compare::Equal,
    Compare::NotEqual,
    Compare::Less,
    Compare::LessOrEqual,
    Compare::Greater,
    Compare::GreaterOrEqual,
];

fn holds<T: Ord>(left: &T, op: Compare, right: &T) -> bool {
    match op {
        Compare::Equal => left == right,
        Compare::NotEqual => left != right,
        Compare::Less => left < right,
        Compare::LessOrEqual => left <= right,
        Compare::Greater => left > right,
        Compare::GreaterOrEqual => left >= right,
    }
}

/// Random conditions on the key, each with what it means.
type Conditions<T> = (Vec<Filter>, Vec<Box<dyn Fn(&T) -> bool>>);

fn conditions<T: Ord + Clone + 'static>(
    random: &mut fastrand::Rng,
    ops: &'static [Compare],
    values: &[T],
    literal: fn(&T) -> Literal,
) -> Conditions<T> {
    let key = || FieldPath(vec![1]);
    let mut some = Conditions::default();
    for _ in 0..random.usize(1..4) {
        if random.u32(0..3) == 0 {
            let set: Vec<T> = (0..random.usize(0..6))
                .map(|_| values[random.usize(..values.len())].clone())
                .collect();
            some.0.push(Filter::In {
                field: key(),
                values: set.iter().map(literal).collect(),
            });
            some.1.push(Box::new(move |key| set.contains(key)));
        } else {
            let (op, value) = (
                ops[random.usize(..ops.len())],
                values[random.usize(..values.len())].clone(),
            );
            some.0.push(Filter::Compare {
                field: key(),
                op,
                value: literal(&value),
            });
            some.1.push(Box::new(move |key| holds(key, op, &value)));
        }
    }
    some
}

/// The plan of a query whose every condition the table took over.
fn filtered(spec: &TableSpec, filters: Vec<Filter>) -> ScanPlan {
    let uses = factory().plan_filters(spec, &filters).expect("valid");
    assert!(
        uses.iter().all(|used| *used == FilterUse::Exact),
        "{uses:?}"
    );
    ScanPlan {
        filters,
        ..reads(&[&[1]])
    }
}

#[tokio::test]
async fn conditions_on_the_key_read_exactly_the_rows_that_meet_them_on_both_services() {
    for service in services().await {
        let mut random = fastrand::Rng::with_seed(9);
        // Texts that are prefixes of each other and lie beside each other.
        let texts: Vec<String> = (0..60)
            .map(|_| {
                (0..random.usize(1..4))
                    .map(|_| ['a', 'b', 'é', '\u{10FFFF}'][random.usize(..4)])
                    .collect()
            })
            .collect();
        let words = spec(&service.address, "STRING");
        let rows = texts.iter().map(|key| upsert(key, &named("x"))).collect();
        write_rows(&words, &writes(&UPSERTS, &[]), rows)
            .await
            .expect("well");
        let all: BTreeSet<String> = texts.iter().cloned().collect();
        for _ in 0..40 {
            let literal = |text: &String| Literal::Text(text.clone());
            let (filters, models) = conditions(&mut random, &OPS, &texts, literal);
            let found = scan_rows(&words, &filtered(&words, filters.clone()))
                .await
                .expect("reads");
            let expected = all
                .iter()
                .filter(|key| models.iter().all(|holds| holds(key)))
                .cloned()
                .collect();
            assert_eq!(
                keys(&found, 1, 0),
                expected,
                "{filters:?} on {}",
                service.name
            );
        }

        let numbers = spec(&service.address, "INT").option("table", "numbers");
        let item = named("x");
        let rows = (-20..20)
            .map(|value| {
                item_row(
                    aqueduct_connector::row::RowKind::Insert,
                    |row, at| row.i32(at, value),
                    &item,
                    &[],
                )
            })
            .collect();
        write_rows(&numbers, &writes(&UPSERTS, &[]), rows)
            .await
            .expect("well");
        // Keys with bytes behind the number read as the number.
        let behind = (-3_i32..3).map(|value| {
            let key = [&value.to_be_bytes()[..], b"tail"].concat();
            (key, vec![cell("cf", "name", 1_000, b"x")])
        });
        write_cells(&service.address, "numbers", &behind.collect()).await;
        let values: Vec<i32> = (-25..25).collect();
        for _ in 0..40 {
            let literal = |value: &i32| Literal::Int((*value).into());
            let (filters, models) = conditions(&mut random, &OPS[..2], &values, literal);
            let found = scan_rows(&numbers, &filtered(&numbers, filters.clone()))
                .await
                .expect("reads");
            let mut found: Vec<i32> = found
                .iter()
                .map(|row| row.view(1).expect("a row").i32(0))
                .collect();
            found.sort_unstable();
            let mut expected: Vec<i32> = (-20..20)
                .chain(-3..3)
                .filter(|key| models.iter().all(|holds| holds(key)))
                .collect();
            expected.sort_unstable();
            assert_eq!(found, expected, "{filters:?} on {}", service.name);
        }
    }
}

#[tokio::test]
async fn what_no_row_can_match_asks_the_service_for_nothing() {
    let world = World::with(plain_rows(numbered(5), "v"), &[]).await;
    let spec = plain(&world).option("scan.row-prefix", "r00");
    let equal = |key: &str| Filter::Compare {
        field: FieldPath(vec![1]),
        op: Compare::Equal,
        value: Literal::Text(key.to_owned()),
    };
    for filters in [
        vec![equal("x")],
        vec![equal("r001"), equal("r002")],
        vec![Filter::IsNull(FieldPath(vec![1]))],
    ] {
        let rows = scan_rows(&spec, &filtered(&spec, filters))
            .await
            .expect("ends");
        assert!(rows.is_empty());
    }
    let none = ScanPlan {
        limit: Some(0),
        ..ScanPlan::default()
    };
    assert!(scan_rows(&spec, &none).await.expect("ends").is_empty());
    assert_eq!(world.sim.bigtable().requests().len(), 0);
    let rows = scan_rows(&spec, &filtered(&spec, vec![equal("r001")]))
        .await
        .expect("reads");
    assert_eq!(rows.len(), 1, "the test could not fail otherwise");
}

#[tokio::test]
async fn a_job_that_reads_nothing_can_be_restored() {
    let world = World::with(plain_rows(numbered(3), "v"), &[]).await;
    let spec = plain(&world);
    let nothing = filtered(&spec, vec![Filter::IsNull(FieldPath(vec![1]))]);
    let kit = TestContext::new("scan");
    let mut host = SourceHost::start(source(&spec, &nothing), &kit, 2).expect("starts");
    host.step().await.expect("well");
    let checkpoint = host.checkpoint().await.expect("well");
    host.kill();
    let kit = kit.next_attempt();
    let mut host =
        SourceHost::restore(source(&spec, &nothing), &kit, &checkpoint, 3).expect("restores");
    host.run_to_end().await.expect("ends");
    assert_eq!(host.emitted_count(), 0);
    host.close().await.expect("well");
}

#[tokio::test]
async fn a_limit_reads_no_row_too_many_and_takes_conditions_first() {
    let world = World::with(plain_rows(numbered(40), "v"), &["r010", "r020"]).await;
    let spec = plain(&world);
    let limited = |spec: &TableSpec, limit, filters| {
        let plan = ScanPlan {
            limit,
            ..filtered(spec, filters)
        };
        let spec = spec.clone();
        async move { keys(&scan_rows(&spec, &plan).await.expect("reads"), 1, 0) }
    };
    let behind = |key: &str| Filter::Compare {
        field: FieldPath(vec![1]),
        op: Compare::GreaterOrEqual,
        value: Literal::Text(key.to_owned()),
    };
    let named = |from: usize, to: usize| {
        numbered(40)[from..to]
            .iter()
            .cloned()
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(limited(&spec, Some(13), vec![]).await, named(0, 13));
    assert_eq!(
        limited(&spec, Some(13), vec![behind("r015")]).await,
        named(15, 28)
    );
    assert_eq!(limited(&spec, Some(1_000_000), vec![]).await, named(0, 40));
    let first = spec.option("scan.row-limit", "5");
    assert_eq!(limited(&first, Some(13), vec![]).await, named(0, 5));
    assert_eq!(limited(&first, Some(2), vec![]).await, named(0, 2));
}

#[tokio::test]
async fn options_choose_the_rows() {
    let world = World::with(plain_rows(numbered(30), "v"), &["r010"]).await;
    for (options, expected) in [
        (
            &[("scan.row-prefix", "r00;r02")][..],
            (0..10).chain(20..30).collect::<Vec<_>>(),
        ),
        (&[("scan.row-range.start-closed", "r028")], vec![28, 29]),
        (
            &[
                ("scan.row-ranges", "(r001,r003];[,r001)"),
                ("scan.reversed", "true"),
            ],
            vec![0, 2, 3],
        ),
        (
            &[
                ("scan.row-key-encoding", "BASE64"),
                ("scan.row-prefix", "cjAwMQ=="),
            ],
            vec![1],
        ),
    ] {
        let spec = options.iter().fold(plain(&world), |spec, (key, value)| {
            spec.option(*key, *value)
        });
        let rows = scan_rows(&spec, &reads(&[&[1]])).await.expect("reads");
        let expected = expected
            .into_iter()
            .map(|at| numbered(30)[at].clone())
            .collect();
        assert_eq!(keys(&rows, 1, 0), expected, "{options:?}");
    }
}

#[tokio::test]
async fn the_service_is_asked_for_the_families_and_newest_cells_of_the_query_only() {
    let mut rows = plain_rows(numbered(1), "v");
    let cells = rows.get_mut(b"r000".as_slice()).expect("one row");
    let long = vec![b'x'; 10_000];
    cells.extend((1..50).map(|at| cell("cf", "q", at * 1_000, b"old")));
    cells.push(cell("cf", "undeclared", 1_000, &long));
    cells.push(cell("other", "b", 1_000, &long));
    let world = World::with(rows, &[]).await;
    let mut spec = plain(&world);
    spec.columns[0].ty = LogicalType::parse("ROW<q STRING, r STRING>").expect("a type");
    let kit = TestContext::new("scan");
    let mut host = SourceHost::start(source(&spec, &reads(&[&[0, 0]])), &kit, 1).expect("starts");
    host.run_to_end().await.expect("reads");
    assert_eq!(host.emitted_count(), 1);
    host.close().await.expect("well");
    let request = world.table.requests_of(Method::ReadRows).remove(0);
    let request: googleapis_tonic_google_bigtable_v2::google::bigtable::v2::ReadRowsRequest =
        request.message().expect("kept").expect("a request");
    let filter = format!("{:?}", request.filter.expect("a filter"));
    assert!(
        filter.contains("CellsPerColumnLimitFilter(1)") && !filter.contains("other"),
        "{filter}"
    );
}

#[tokio::test]
async fn a_value_that_its_column_cannot_hold_fails_the_job_by_the_columns_name() {
    let secret = b"do-not-show".as_slice();
    for (cells, option, parts) in [
        (
            cell("cf", "n", 1_000, b"123"),
            "IGNORE",
            &["'cf.n'", "3 bytes"][..],
        ),
        (
            cell("cf", "n", 1_000, secret),
            "REJECT",
            &["'cf.n'", "11 bytes", "decode.trailing-bytes"],
        ),
        (cell("cf", "flag", 1_000, secret), "IGNORE", &["'cf.flag'"]),
        (
            cell("cf", "name", 1_000, &[0xFF]),
            "IGNORE",
            &["'cf.name'", "UTF-8"],
        ),
        (
            cell(
                "cf",
                "amount",
                1_000,
                &[0, 0, 0, 0, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF],
            ),
            "IGNORE",
            &["'cf.amount'", "DECIMAL(10, 2)"],
        ),
    ] {
        let world = World::with([(b"k".to_vec(), vec![cells])].into(), &[]).await;
        let spec = on(&world, "STRING").option("decode.trailing-bytes", option);
        let end = scan_rows(&spec, &ScanPlan::default()).await;
        let report = end.expect_err("refused").report();
        assert!(parts.iter().all(|part| report.contains(part)), "{report}");
        assert!(!report.contains("do-not-show"), "{report}");
    }
    let rows: Rows = [(b"12345".to_vec(), vec![cell("cf", "n", 1_000, b"00000")])].into();
    let world = World::with(rows, &[]).await;
    let spec = on(&world, "INT");
    let rows = scan_rows(&spec, &reads(&[&[1], &[0, 1]]))
        .await
        .expect("cuts");
    let row = rows[0].view(2).expect("two fields");
    assert_eq!((row.i32(0), row.i32(1)), (0x3132_3334, 0x3030_3030));
    let end = scan_rows(
        &spec.option("decode.trailing-bytes", "REJECT"),
        &reads(&[&[1], &[0, 1]]),
    )
    .await;
    assert!(end.expect_err("refused").report().contains("'id'"));
}

#[tokio::test]
async fn a_column_that_may_not_be_null_needs_a_cell_unless_its_family_may_be() {
    let rows: Rows = [
        (
            b"a".to_vec(),
            vec![cell("cf", "x", 1_000, b""), cell("other", "y", 1_000, b"")],
        ),
        (
            b"b".to_vec(),
            vec![
                cell("cf", "x", 1_000, b"null"),
                cell("other", "b", 1_000, b""),
            ],
        ),
    ]
    .into();
    let world = World::with(rows, &[]).await;
    let with = |cf: &str, other: &str| {
        let mut spec = on(&world, "STRING");
        spec.columns[0].ty = LogicalType::parse(cf).expect("a type");
        spec.columns[2].ty = LogicalType::parse(other).expect("a type");
        spec
    };
    let spec = with("ROW<x STRING NOT NULL>", "ROW<b BYTES NOT NULL>");
    let mut found: Vec<_> = scan_rows(&spec, &ScanPlan::default())
        .await
        .expect("reads")
        .iter()
        .map(|row| {
            let row = row.view(3).expect("three fields");
            let x = row
                .row(0, 1)
                .expect("a row")
                .str(0)
                .expect("text")
                .to_owned();
            let b = (!row.is_null(2)).then(|| {
                row.row(2, 1)
                    .expect("a row")
                    .bytes(0)
                    .expect("bytes")
                    .to_vec()
            });
            (x, b)
        })
        .collect();
    found.sort();
    assert_eq!(
        found,
        [(String::new(), None), ("null".to_owned(), Some(Vec::new()))]
    );
    let spec = with("ROW<x STRING NOT NULL>", "ROW<b BYTES NOT NULL> NOT NULL");
    let report = scan_rows(&spec, &ScanPlan::default())
        .await
        .expect_err("missing")
        .report();
    assert!(
        report.contains("'other.b'") && report.contains("NOT NULL"),
        "{report}"
    );
}
