//! The sink against Google's emulator and the simulated service: the same jobs end alike, except where a table says what
//! the emulator teaches wrongly (BT-SIM-01 to 04, 10). A new emulator image must say what it changed.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_bigtable::client::read::{ReadPolicy, Remaining, ScanOrder};
use aqueduct_bigtable::{
    BigtableSink, CreateDisposition, Disposition, RowMutationEntry, RowOrdering, RowRange,
    TableCreateOptions, TableDestination, WriterOptions,
};
use aqueduct_connector::sink::{Flush, RecordInfo, Sink};
use aqueduct_sim::{Sim, SimConfig};
use aqueduct_testkit::emulator::{BigtableEmulator, require_bigtable};
use aqueduct_testkit::failure::HandlerLog;
use aqueduct_testkit::{SinkHost, TestContext, test_context};

use super::scan_support::{Cell, client, collect, scan};

/// A row change as a closure fills it in.
type Change = Arc<dyn Fn(&mut RowMutationEntry) + Send + Sync>;

fn change(fill: impl Fn(&mut RowMutationEntry) + Send + Sync + 'static) -> Change {
    Arc::new(fill)
}

fn table() -> TableDestination {
    TableDestination::of("p", "i", "t").expect("valid")
}

fn sink(address: &str, create: bool, handled: &HandlerLog) -> Arc<dyn Sink<Change>> {
    let handled = handled.clone();
    let builder = BigtableSink::<Change>::builder()
        .table(table())
        .serializer(
            |change: &Change, _: RecordInfo, entry: &mut RowMutationEntry| {
                change(entry);
                Ok::<_, std::convert::Infallible>(Disposition::Write)
            },
        )
        .emulator_endpoint(address)
        .row_ordering(RowOrdering::PerRow)
        .writer_options(WriterOptions::new().recovery_initial_backoff(Duration::from_millis(5)))
        .failed_mutation_handler(move || handled.handler());
    let builder = if create {
        builder
            .create_disposition(CreateDisposition::CreateIfNeeded)
            .table_create_options(
                TableCreateOptions::new()
                    .column_family("cf", None)
                    .column_family("other", None),
            )
    } else {
        builder
    };
    Arc::new(builder.build().expect("valid settings"))
}

/// How a job ended.
#[derive(Debug, PartialEq)]
struct End {
    /// The code that the job failed with, if it did.
    failed: Option<&'static str>,
    handled: usize,
    rows: Vec<(Vec<u8>, Vec<Cell>)>,
}

/// Writes `changes` in one batch and reads back what the service holds.
async fn job(address: &str, create: bool, changes: &[Change]) -> End {
    let kit = TestContext::new("sink");
    let handled = HandlerLog::new();
    let mut host = SinkHost::start(sink(address, create, &handled), &kit, 1).expect("a writer");
    host.write_all(changes.iter().cloned())
        .await
        .expect("admitted");
    let failed = host.flush(Flush::EndOfInput).await.err().map(|error| {
        error
            .statuses()
            .map_or("no status", |chain| chain.code().name())
    });
    host.close().await.expect("well");
    let context = test_context(1);
    let reader = client(&context, address, &table());
    let all = Remaining::ranges(vec![RowRange::all()], ScanOrder::Forward, None);
    let mut rows = collect(&mut scan(&reader, all, None, ReadPolicy::SCAN))
        .await
        .unwrap_or_default();
    // Families come in the order in which they were made, which a creation of several leaves open.
    rows.iter_mut().for_each(|(_, cells)| cells.sort());
    End {
        failed,
        handled: handled.handled(),
        rows,
    }
}

/// The table with its families, made by the sink's own repair.
async fn prepare(address: &str) {
    let end = job(
        address,
        true,
        &[change(|entry| {
            entry
                .row_key("first")
                .set_cell("cf", "q", 1_000, "v")
                .set_cell("other", "q", 1_000, "v");
        })],
    )
    .await;
    assert_eq!((end.failed, end.rows.len()), (None, 1));
}

/// A fresh service of each kind.
async fn both() -> Option<(Sim, BigtableEmulator)> {
    let emulator = require_bigtable()?;
    let sim = Sim::start(SimConfig::default())
        .await
        .expect("a loopback port");
    Some((sim, emulator))
}

#[tokio::test]
async fn a_missing_table_is_repaired_on_both_and_every_mutation_means_the_same() {
    let Some((sim, emulator)) = both().await else {
        return;
    };
    let changes = [
        change(|entry| {
            for at in 0..5 {
                entry
                    .row_key("a")
                    .set_cell("cf", "q", at * 1_000, at.to_string());
            }
            entry
                .set_cell("other", "r", 7_000, "")
                .set_cell("cf", "", 9_000, "no qualifier");
        }),
        change(|entry| {
            entry.row_key("a").delete_cells("cf", "q", 1_000..3_000);
        }),
        change(|entry| {
            entry
                .row_key("b")
                .set_cell("cf", "q", 1_000, "x")
                .set_cell("other", "q", 1_000, "y");
        }),
        change(|entry| {
            entry.row_key("b").delete_family("cf");
        }),
        change(|entry| {
            entry.row_key("c").set_cell("cf", "q", 1_000, "gone");
        }),
        change(|entry| {
            entry
                .row_key("c")
                .delete_row()
                .set_cell("cf", "q", 2_000, "new");
        }),
        change(|entry| {
            entry
                .row_key("d")
                .set_cell("cf", "q", 1_000, "gone")
                .delete_cells("cf", "q", ..);
        }),
        change(|entry| {
            entry
                .row_key([0, 0xff, b'\n'])
                .set_cell("cf", [0xff], 3_000, [0; 1_000]);
        }),
    ];
    let mut ends = Vec::new();
    for address in [sim.endpoint(), emulator.address().to_string()] {
        ends.push(job(&address, true, &changes).await);
    }
    assert_eq!(ends[0].failed, None);
    assert_eq!(ends[0].rows.len(), 4);
    assert_eq!(ends[0], ends[1]);
}

/// What a bad record beside good ones ends in: failure, handled records, whether the neighbours are there.
struct Difference {
    what: &'static str,
    bad: Change,
    service: (Option<&'static str>, usize, bool),
    emulator: (Option<&'static str>, usize, bool),
}

#[tokio::test]
async fn the_emulator_refuses_otherwise_than_the_service_exactly_as_known() {
    let Some((sim, emulator)) = both().await else {
        return;
    };
    for address in [sim.endpoint(), emulator.address().to_string()] {
        prepare(&address).await;
    }
    let differences = [
        Difference {
            what: "BT-SIM-01: an unaligned timestamp is a record's own fault, on the emulator an internal error",
            bad: change(|entry| {
                entry.row_key("bad").set_cell("cf", "q", 1_001, "v");
            }),
            service: (None, 1, true),
            emulator: (Some("INTERNAL"), 0, true),
        },
        Difference {
            what: "BT-SIM-02: an empty row key",
            bad: change(|entry| {
                entry.row_key("").set_cell("cf", "q", 1_000, "v");
            }),
            service: (None, 1, true),
            emulator: (Some("INTERNAL"), 0, true),
        },
        Difference {
            what: "BT-SIM-03: a missing family takes the whole request on the service, its entry on the emulator",
            bad: change(|entry| {
                entry.row_key("bad").set_cell("nowhere", "q", 1_000, "v");
            }),
            service: (Some("NOT_FOUND"), 0, false),
            emulator: (Some("INTERNAL"), 0, true),
        },
    ];
    for (at, difference) in differences.into_iter().enumerate() {
        for (side, address, expected) in [
            ("service", sim.endpoint(), difference.service),
            (
                "emulator",
                emulator.address().to_string(),
                difference.emulator,
            ),
        ] {
            let good = format!("good{at}");
            let neighbour = {
                let good = good.clone();
                change(move |entry| {
                    entry.row_key(&good).set_cell("cf", "q", 1_000, "v");
                })
            };
            let end = job(&address, false, &[neighbour, difference.bad.clone()]).await;
            let written = end.rows.iter().any(|(key, _)| *key == good.as_bytes());
            assert_eq!(
                (end.failed, end.handled, written),
                expected,
                "{side}: {}",
                difference.what
            );
        }
    }
}

#[tokio::test]
async fn a_missing_table_is_not_found_on_both() {
    let Some((sim, emulator)) = both().await else {
        return;
    };
    for address in [sim.endpoint(), emulator.address().to_string()] {
        let write = change(|entry| {
            entry.row_key("k").set_cell("cf", "q", 1_000, "v");
        });
        let end = job(&address, false, &[write]).await;
        assert_eq!(end.failed, Some("NOT_FOUND"));
    }
}
