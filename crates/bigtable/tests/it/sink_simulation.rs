//! Seeded simulation: whatever goes wrong, admitted is applied, skipped and handled, and order stays where asked.
//!
//! Each seed draws the settings, the records, and what goes wrong: statuses of requests and of entries, missing results,
//! streams that break, connections that are cut, answers that are lost after the effect, connections that are replaced,
//! tablets that are slow, families and tables that vanish, writers that are killed and replayed. Seeds run side by side,
//! since most of their time is waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_bigtable::{CreateDisposition, RowOrdering, TableCreateOptions, WriterOptions};
use aqueduct_connector::sink::Sink;
use aqueduct_sim::{Answers, Code, EntryOrder, Method, RefusalForm, SchemaLag, SimConfig};
use aqueduct_testkit::SinkHost;
use futures::{FutureExt, StreamExt};

use super::sink_world::{How, Record, World};

const SIDE_BY_SIDE: usize = 64;

/// What a run has written since a point that is known to be applied.
#[derive(Default)]
struct Ledger {
    /// Values written to each row, in order.
    written: BTreeMap<String, Vec<String>>,
    skipped: i128,
    refused: usize,
    rejected: usize,
    admitted: i128,
}

struct Run {
    random: fastrand::Rng,
    world: World,
    ordered: bool,
    sink: Arc<dyn Sink<Record>>,
    host: SinkHost<Record>,
    /// Over all epochs.
    total: Ledger,
    /// Rows as they must be, over all epochs.
    expected: BTreeMap<String, Vec<String>>,
    /// Not yet covered by a checkpoint.
    open: Vec<Record>,
    /// What was there may have vanished since the last checkpoint.
    vanished: bool,
    killed: bool,
}

impl Run {
    async fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let config = SimConfig {
            refusal_form: *pick(
                &mut random,
                &[RefusalForm::EveryEntry, RefusalForm::WholeCall],
            ),
            schema_lag: *pick(&mut random, &[SchemaLag::None, SchemaLag::Refusals(2)]),
            ..SimConfig::default()
        };
        let mut world = World::with(config).await;
        // Delays are real, and seeds share a processor.
        world.kit = world.kit.with_limit(Duration::from_secs(90));
        world.table.set_entry_order(EntryOrder::Shuffled(seed));
        world.table.set_answers(Answers::Seeded(seed));
        script_faults(&world, &mut random, seed);
        let ordered = random.bool();
        let options = WriterOptions::new()
            .batch_element_count_threshold(random.u64(1..20))
            .max_in_flight_entries(random.u64(3..60))
            .max_consecutive_rejections(None)
            .recovery_initial_backoff(Duration::from_millis(1))
            .recovery_max_backoff(Duration::from_millis(20))
            .channels(random.u32(1..4));
        let sink: Arc<dyn Sink<Record>> = Arc::new(
            world
                .builder()
                .writer_options(options)
                .row_ordering(if ordered {
                    RowOrdering::PerRow
                } else {
                    RowOrdering::None
                })
                .create_disposition(CreateDisposition::CreateIfNeeded)
                .table_create_options(TableCreateOptions::new().column_family("cf", None))
                .build()
                .expect("valid settings"),
        );
        let host = SinkHost::start(sink.clone(), &world.kit, 1).expect("a writer");
        Self {
            random,
            world,
            ordered,
            sink,
            host,
            total: Ledger::default(),
            expected: BTreeMap::new(),
            open: Vec::new(),
            vanished: false,
            killed: false,
        }
    }

    fn record(&mut self, number: usize) -> Record {
        let rows = if self.ordered { 6 } else { 30 };
        // Under order all records of a row write one cell, so the last must win; otherwise each has a version.
        let micros = if self.ordered {
            1_000
        } else {
            1_000 * (1 + number as i64)
        };
        let record = Record::new(format!("row{}", self.random.usize(..rows)))
            .value(format!("{number:05}"))
            .micros(micros);
        match self.random.u32(..100) {
            0..5 => record.how(How::Skipped),
            5..9 => record.how(How::Refused),
            9..13 => record.micros(micros + 1),
            _ => record,
        }
    }

    async fn write(&mut self, record: Record) {
        let rejected = record.micros % 1_000 != 0;
        self.host
            .write_all([record.clone()])
            .await
            .unwrap_or_else(|error| panic!("{error:?}"));
        self.total.admitted += 1;
        match record.how {
            How::Skipped => self.total.skipped += 1,
            How::Refused => self.total.refused += 1,
            _ if rejected => self.total.rejected += 1,
            _ => self
                .total
                .written
                .entry(record.key.clone())
                .or_default()
                .push(String::from_utf8(record.value.clone()).expect("ours")),
        }
        self.open.push(record);
    }

    async fn checkpoint(&mut self) {
        self.host
            .checkpoint()
            .await
            .unwrap_or_else(|error| panic!("{error:?}"));
        self.open.clear();
        let written = std::mem::take(&mut self.total.written);
        let rows: BTreeMap<String, Vec<String>> = self
            .world
            .table
            .rows()
            .into_iter()
            .map(|row| {
                let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("ours");
                let mut values: Vec<_> =
                    row.cells.into_iter().map(|cell| text(cell.value)).collect();
                values.sort();
                (text(row.key), values)
            })
            .collect();
        for (row, values) in written {
            let expected = self.expected.entry(row).or_default();
            if self.ordered {
                *expected = values.into_iter().next_back().into_iter().collect();
            } else {
                expected.extend(values);
                expected.sort();
                expected.dedup();
            }
        }
        if self.vanished {
            // What was applied before may be gone; what is there must be right.
            for (row, values) in &rows {
                let known: BTreeSet<_> = self.expected.get(row).into_iter().flatten().collect();
                assert!(
                    values.iter().all(|value| known.contains(value)),
                    "row {row}: {values:?}"
                );
            }
            self.expected = rows;
            self.vanished = false;
        } else {
            assert_eq!(rows, self.expected, "what the service holds");
        }
        let total = &self.total;
        let handled = total.refused + total.rejected;
        if self.killed {
            assert!(self.world.handled.handled() >= handled);
        } else {
            assert_eq!(self.world.handled.handled(), handled, "handled");
            assert_eq!(self.world.metric("numRecordsSendErrors"), handled as i128);
            assert_eq!(self.world.metric("recordsSkipped"), total.skipped);
            let sent = self.world.metric("numRecordsSend");
            assert_eq!(
                total.admitted,
                sent + total.skipped + total.refused as i128,
                "admitted"
            );
        }
        for gauge in [
            "inFlightEntries",
            "inFlightBytes",
            "parkedEntries",
            "orderedRowsWaiting",
        ] {
            assert_eq!(self.world.metric(gauge), 0, "{gauge}");
        }
    }

    /// The process dies; a new one writes again what no checkpoint covers.
    async fn kill(&mut self) {
        self.killed = true;
        let again = std::mem::take(&mut self.open);
        let kit = self.world.kit.next_attempt();
        let fresh = SinkHost::start(self.sink.clone(), &kit, 1).expect("a writer");
        std::mem::replace(&mut self.host, fresh).kill();
        for record in again {
            self.host
                .write_all([record.clone()])
                .await
                .unwrap_or_else(|error| panic!("{error:?}"));
            self.open.push(record);
        }
    }

    async fn run(mut self) {
        let count = self.random.usize(20..120);
        for number in 0..count {
            let record = self.record(number);
            self.write(record).await;
            match self.random.u32(..300) {
                0..9 => self.checkpoint().await,
                9..11 => self.world.sim.cut_connections(),
                11..13 => self.world.sim.recycle_connections(),
                13 => {
                    self.vanished = true;
                    self.world.table.remove_family("cf");
                }
                14 => {
                    self.vanished = true;
                    self.world.table.delete();
                }
                15 => self.kill().await,
                _ => {}
            }
        }
        self.checkpoint().await;
        self.host
            .finish()
            .await
            .unwrap_or_else(|error| panic!("{error:?}"));
    }
}

fn pick<'a, T>(random: &mut fastrand::Rng, choices: &'a [T]) -> &'a T {
    &choices[random.usize(..choices.len())]
}

fn script_faults(world: &World, random: &mut fastrand::Rng, seed: u64) {
    let table = &world.table;
    for at in 0..random.u64(0..4) {
        // Rare enough that delays, which double, stay short: a cut connection takes every request on it along.
        let probability = 0.01 + 0.06 * random.f64();
        let fault = table.randomly(seed ^ at << 32, probability, Method::MutateRows);
        let position = random.usize(..6);
        match random.u32(..13) {
            0 => fault.status(Code::Unavailable),
            1 => fault.apply_then_status(Code::DeadlineExceeded),
            2 => fault.entry_status([position, 2 * position], Code::Aborted),
            3 => fault.missing_entries([position]),
            4 => fault.break_after(position),
            5 => fault.cut_connection(),
            6 => fault.apply_then_lose_answer(),
            7 => fault.reset_stream(),
            8 => fault.refuse_stream(),
            9 => fault.goaway(),
            10 => fault.delay(Duration::from_millis(10)),
            11 => fault
                .status(Code::Internal)
                .retry_info(Duration::from_millis(3)),
            _ => fault.status(Code::Unavailable).cookie("c", "v"),
        };
    }
    if random.u32(..40) == 0 {
        table
            .nth(2, Method::MutateRows)
            .status(Code::ResourceExhausted);
    }
    if random.u32(..10) == 0 {
        table.nth(1, Method::CreateTable).status(Code::Unavailable);
    }
}

#[tokio::test]
async fn admitted_is_applied_skipped_and_handled_whatever_goes_wrong() {
    let mut runs = futures::stream::iter(aqueduct_testkit::seeds(0..1_000).collect::<Vec<_>>())
        .map(|seed| async move {
            let run = async { Run::new(seed).await.run().await };
            (seed, AssertUnwindSafe(run).catch_unwind().await)
        })
        .buffer_unordered(SIDE_BY_SIDE);
    let mut failed = Vec::new();
    while let Some((seed, outcome)) = runs.next().await {
        if outcome.is_err() {
            failed.push(seed);
        }
    }
    assert!(
        failed.is_empty(),
        "failed with seeds {failed:?}; run one again with AQUEDUCT_SEEDS=seed"
    );
}
