//! What the table tests share: statements, rows as values, and the two services that every job must end alike on.

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_bigtable::TableDestination;
use aqueduct_bigtable::table::factory;
use aqueduct_connector::Result;
use aqueduct_connector::row::{Row, RowKind, RowRef, RowTime, RowWriter};
use aqueduct_connector::sink::Sink;
use aqueduct_connector::source::Source;
use aqueduct_connector::table::{FieldPath, ScanPlan, SinkPlan, TableSpec};
use aqueduct_sim::{Sim, SimConfig};
use aqueduct_testkit::emulator::{BigtableEmulator, require_bigtable};
use aqueduct_testkit::table::{TableRows, row};
use aqueduct_testkit::{SinkHost, SourceHost, TestContext, test_context};

use super::scan_support::{Rows, write};

/// The kinds that an upsert sink takes.
pub(crate) const UPSERTS: [RowKind; 3] = [RowKind::Insert, RowKind::UpdateAfter, RowKind::Delete];

/// A service, alive as long as this value.
pub(crate) struct Service {
    pub(crate) name: &'static str,
    /// `host:port`.
    pub(crate) address: String,
    _sim: Option<Sim>,
    _emulator: Option<BigtableEmulator>,
}

/// A fresh simulated service, and a fresh emulator where it is installed.
pub(crate) async fn services() -> Vec<Service> {
    let sim = Sim::start(SimConfig::default())
        .await
        .expect("a loopback port");
    let mut services = vec![Service {
        name: "sim",
        address: sim.endpoint().trim_start_matches("http://").to_owned(),
        _sim: Some(sim),
        _emulator: None,
    }];
    // Reported as not run, or a failure, if it is missing.
    services.extend(require_bigtable().map(|emulator| Service {
        name: "emulator",
        address: emulator.address().to_string(),
        _sim: None,
        _emulator: Some(emulator),
    }));
    services
}

/// `t` at `address`, created by whoever writes first, with a key of `key` and two families.
pub(crate) fn spec(address: &str, key: &str) -> TableSpec {
    TableSpec::new("items")
        .column(
            "cf",
            "ROW<name STRING, n INT, amount DECIMAL(10, 2), at TIMESTAMP(3), flag BOOLEAN>",
        )
        .and_then(|spec| spec.column("id", key))
        .and_then(|spec| spec.column("other", "ROW<b BYTES, d DOUBLE>"))
        .expect("types")
        .option("project", "p")
        .option("instance", "i")
        .option("table", "t")
        .option("emulator-endpoint", address)
        .option("sink.create-disposition", "create-if-needed")
        .option("sink.table-create.gc-rule.max-age", "36500 d")
        .option("sink.recovery.initial-backoff", "5 ms")
}

/// The cells of family `cf`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cf {
    pub(crate) name: Option<String>,
    pub(crate) n: Option<i32>,
    pub(crate) amount: Option<i128>,
    pub(crate) at: Option<i64>,
    pub(crate) flag: Option<bool>,
}

/// The cells of family `other`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Other {
    pub(crate) b: Option<Vec<u8>>,
    pub(crate) d: Option<f64>,
}

/// A row of the table, its key apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Item {
    pub(crate) cf: Option<Cf>,
    pub(crate) other: Option<Other>,
}

impl Item {
    /// As written over `old`: families that are null leave it in place.
    pub(crate) fn over(self, old: Option<Self>) -> Self {
        let old = old.unwrap_or_default();
        Self {
            cf: self.cf.or(old.cf),
            other: self.other.or(old.other),
        }
    }

    /// As read: a family without cells is a row of nulls.
    pub(crate) fn read(self) -> Self {
        Self {
            cf: Some(self.cf.unwrap_or_default()),
            other: Some(self.other.unwrap_or_default()),
        }
    }

    pub(crate) fn random(random: &mut fastrand::Rng) -> Self {
        let mut some = |odds: u32| random.u32(0..odds) > 0;
        let (cf, other) = (some(4), some(3));
        let mut maybe = || random.u32(0..3) > 0;
        let which: Vec<bool> = (0..7).map(|_| maybe()).collect();
        let cf = cf.then(|| Cf {
            name: which[0].then(|| "é".repeat(random.usize(0..12))),
            n: which[1].then(|| random.i32(..)),
            amount: which[2].then(|| random.i128(-9_999_999_999..=9_999_999_999)),
            at: which[3].then(|| random.i64(..)),
            flag: which[4].then(|| random.bool()),
        });
        let other = (other || cf.is_none()).then(|| Other {
            // Empty bytes read as null.
            b: which[5].then(|| (0..random.usize(1..20)).map(|_| random.u8(..)).collect()),
            d: which[6].then(|| random.f64()),
        });
        Self { cf, other }
    }
}

/// What a row is written with besides its columns, in the order of its metadata.
#[derive(Clone, Debug)]
pub(crate) enum Meta {
    Timestamp(Option<i64>),
    Table(Option<&'static str>),
}

/// A row for the sink; `key` sets the row key.
pub(crate) fn item_row(
    kind: RowKind,
    key: impl FnOnce(&mut RowWriter<'_>, usize),
    item: &Item,
    metadata: &[Meta],
) -> Row {
    row(kind, 3 + metadata.len(), |row| {
        key(row, 1);
        if let Some(cf) = &item.cf {
            row.row(0, 5, |row| {
                cf.name.iter().for_each(|value| row.str(0, value));
                cf.n.iter().for_each(|value| row.i32(1, *value));
                let amount = cf
                    .amount
                    .map(|unscaled| aqueduct_connector::row::Decimal { unscaled, scale: 2 });
                amount.iter().for_each(|value| row.decimal(2, *value, 10));
                let at = cf.at.map(RowTime::from_millis);
                at.iter().for_each(|value| row.time(3, *value, 3));
                cf.flag.iter().for_each(|value| row.bool(4, *value));
            });
        }
        if let Some(other) = &item.other {
            row.row(2, 2, |row| {
                other.b.iter().for_each(|value| row.bytes(0, value));
                other.d.iter().for_each(|value| row.f64(1, *value));
            });
        }
        for (at, meta) in metadata.iter().enumerate() {
            match meta {
                Meta::Timestamp(Some(micros)) => row.time(3 + at, RowTime::from_micros(*micros), 6),
                Meta::Table(Some(table)) => row.str(3 + at, table),
                Meta::Timestamp(None) | Meta::Table(None) => {}
            }
        }
    })
}

/// As [`item_row`], for a `STRING` key and no metadata.
pub(crate) fn upsert(key: &str, item: &Item) -> Row {
    item_row(RowKind::UpdateAfter, |row, at| row.str(at, key), item, &[])
}

/// A delete of a `STRING` key with nothing but the key.
pub(crate) fn delete(key: &str) -> Row {
    item_row(
        RowKind::Delete,
        |row, at| row.str(at, key),
        &Item::default(),
        &[],
    )
}

/// A row with the name alone.
pub(crate) fn named(name: &str) -> Item {
    Item {
        cf: Some(Cf {
            name: Some(name.to_owned()),
            ..Cf::default()
        }),
        other: None,
    }
}

fn maybe<T>(
    row: &RowRef<'_>,
    field: usize,
    read: impl FnOnce(&RowRef<'_>, usize) -> T,
) -> Option<T> {
    (!row.is_null(field)).then(|| read(row, field))
}

pub(crate) fn read_cf(row: &RowRef<'_>, field: usize) -> Option<Cf> {
    maybe(row, field, |row, field| {
        let row = row.row(field, 5).expect("a row");
        Cf {
            name: maybe(&row, 0, |row, at| row.str(at).expect("text").to_owned()),
            n: maybe(&row, 1, |row, at| row.i32(at)),
            amount: maybe(&row, 2, |row, at| {
                row.decimal(at, 10, 2).expect("a decimal").unscaled
            }),
            at: maybe(&row, 3, |row, at| row.time(at, 3).expect("a time").millis),
            flag: maybe(&row, 4, |row, at| row.bool(at)),
        }
    })
}

pub(crate) fn read_other(row: &RowRef<'_>, field: usize) -> Option<Other> {
    maybe(row, field, |row, field| {
        let row = row.row(field, 2).expect("a row");
        Other {
            b: maybe(&row, 0, |row, at| row.bytes(at).expect("bytes").to_vec()),
            d: maybe(&row, 1, |row, at| row.f64(at)),
        }
    })
}

/// All columns of a row with a `STRING` key.
pub(crate) fn read_item(row: &RowRef<'_>) -> (String, Item) {
    let item = Item {
        cf: read_cf(row, 0),
        other: read_other(row, 2),
    };
    (row.str(1).expect("a key").to_owned(), item)
}

/// The plan of a query that makes `kinds` and writes `metadata`.
pub(crate) fn writes(kinds: &[RowKind], metadata: &[&str]) -> SinkPlan {
    SinkPlan {
        kinds: kinds.to_vec(),
        metadata: metadata.iter().map(|key| (*key).to_owned()).collect(),
        parallelism: Some(1),
    }
}

pub(crate) fn sink(spec: &TableSpec, plan: &SinkPlan) -> Arc<dyn Sink<Row>> {
    factory().plan_sink(spec, plan).expect("a good plan");
    factory().sink(spec, plan).expect("was planned").into()
}

/// Writes `rows` and ends, as a job does.
pub(crate) async fn write_rows(spec: &TableSpec, plan: &SinkPlan, rows: Vec<Row>) -> Result<()> {
    let mut host = SinkHost::start(sink(spec, plan), &TestContext::new("sink"), 1)?;
    if let Err(error) = host.write_all(rows).await {
        host.kill();
        return Err(error);
    }
    match host.checkpoint().await {
        Ok(_) => host.finish().await,
        Err(error) => {
            host.kill();
            Err(error)
        }
    }
}

/// Cells as other clients write them.
pub(crate) async fn write_cells(address: &str, table: &str, rows: &Rows) {
    let destination = TableDestination::of("p", "i", table).expect("valid");
    write(&test_context(7), address, &destination, rows).await;
}

/// Reads `fields`, or everything.
pub(crate) fn reads(fields: &[&[usize]]) -> ScanPlan {
    let fields = fields.iter().map(|path| FieldPath(path.to_vec())).collect();
    ScanPlan {
        fields: Some(fields),
        ..ScanPlan::default()
    }
}

pub(crate) fn source(spec: &TableSpec, plan: &ScanPlan) -> Arc<dyn Source<Row>> {
    factory().plan_scan(spec, plan).expect("a good plan");
    let source = factory().source(spec, plan).expect("was planned");
    Arc::new(TableRows::new(source))
}

/// Reads to the end with two readers.
pub(crate) async fn scan_rows(spec: &TableSpec, plan: &ScanPlan) -> Result<Vec<Row>> {
    let mut host = SourceHost::start(source(spec, plan), &TestContext::new("scan"), 2)?;
    if let Err(error) = host.run_to_end().await {
        host.kill();
        return Err(error);
    }
    let rows = host
        .emitted()
        .map(|emitted| emitted.record.value.clone())
        .collect();
    host.close().await?;
    Ok(rows)
}

/// The whole table by key.
pub(crate) async fn scan_items(spec: &TableSpec) -> BTreeMap<String, Item> {
    let rows = scan_rows(spec, &ScanPlan::default()).await.expect("reads");
    let items: BTreeMap<String, Item> = rows
        .iter()
        .map(|row| read_item(&row.view(3).expect("three fields")))
        .collect();
    assert_eq!(items.len(), rows.len(), "no row twice");
    items
}
