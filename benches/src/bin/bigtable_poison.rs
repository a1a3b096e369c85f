//! The Bigtable sink under a poisoned stream beside the same stream without poison, in one run.
//!
//! One record in a thousand has a cell timestamp that the service refuses, and the service refuses the whole request with it.
//! A dropping handler takes what was refused alone; every good record must be applied.
//!
//! `cargo run --release -p aqueduct-benches --bin bigtable_poison`

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use std::future::poll_fn;
use std::task::ready;
use std::time::Instant;

use aqueduct_benches::{median, raw};
use aqueduct_bigtable::{
    BigtableSink, Disposition, RowMutationEntry, TableDestination, WriterOptions,
};
use aqueduct_connector::failure::{FailureHandler, log_and_drop};
use aqueduct_connector::sink::{Flush, RecordInfo, Sink};
use aqueduct_sim::{Sim, SimConfig};
use aqueduct_testkit::context::TestContext;
use clap::Parser;

/// Measures what bad records cost the good ones.
#[derive(Parser)]
struct Args {
    /// Rows a repetition.
    #[arg(long, default_value_t = 200_000)]
    rows: u64,
    /// One record in this many is bad.
    #[arg(long, default_value_t = 1_000)]
    one_in: u64,
    /// Repetitions of each stream; the median counts.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
}

fn main() {
    let args = Args::parse();
    let sim = Sim::start_on_thread(SimConfig::default()).expect("a free port");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime for the sink");
    let mut rates = [Vec::new(), Vec::new()];
    for round in 0..=args.repeat {
        for (at, one_in) in [0, args.one_in].into_iter().enumerate() {
            let name = format!("rows-{round}-{at}");
            let table = sim
                .bigtable()
                .create_table("bench", "stored", &name, &[raw::FAMILY]);
            let begun = Instant::now();
            runtime.block_on(write(&sim.endpoint(), &name, args.rows, one_in));
            let rate = args.rows as f64 / begun.elapsed().as_secs_f64();
            let bad = if one_in == 0 {
                0
            } else {
                args.rows.div_ceil(one_in)
            };
            assert_eq!(
                table.row_count() as u64,
                args.rows - bad,
                "a good record is missing, or a bad one was written"
            );
            table.delete();
            if round > 0 {
                rates[at].push(rate);
            }
        }
    }
    let [clean, poisoned] = rates.map(median);
    println!(
        "{} rows of 100 B, one in {} refused with its whole request",
        args.rows, args.one_in
    );
    println!("  clean     {clean:>10.0} rows a second");
    println!(
        "  poisoned  {poisoned:>10.0} rows a second   {:.2} of clean",
        poisoned / clean
    );
}

async fn write(endpoint: &str, table: &str, rows: u64, one_in: u64) {
    let value = raw::value(100);
    let sink = BigtableSink::builder()
        .table(TableDestination::of("bench", "stored", table).expect("a valid name"))
        .serializer(
            move |n: &u64, _: RecordInfo, entry: &mut RowMutationEntry| {
                let mut key = [0; 16];
                raw::key_into(*n, &mut key);
                let bad = one_in > 0 && n.is_multiple_of(one_in);
                entry.row_key(key).set_cell(
                    raw::FAMILY,
                    raw::QUALIFIER,
                    raw::TIMESTAMP + i64::from(bad),
                    &value,
                );
                Ok::<_, std::convert::Infallible>(Disposition::Write)
            },
        )
        .failed_mutation_handler(quiet)
        .writer_options(WriterOptions::new().max_in_flight_entries(1_600))
        .emulator_endpoint(endpoint)
        .build()
        .expect("valid options");
    let kit = TestContext::new("bench");
    let mut writer = sink
        .create_writer(kit.subtask(0, 1), Vec::new())
        .expect("a writer");
    let mut next = 0;
    poll_fn(|cx| {
        while next < rows {
            ready!(writer.poll_ready(cx)).expect("only bad records are refused");
            writer
                .write(next, RecordInfo::default())
                .expect("the record is valid here");
            next += 1;
        }
        writer
            .poll_flush(cx, Flush::EndOfInput)
            .map(|flushed| flushed.expect("only bad records are refused"))
    })
    .await;
    poll_fn(|cx| writer.poll_close(cx))
        .await
        .expect("the writer closes");
}

/// Drops as `log_and_drop` does; no subscriber is installed, so nothing is printed.
fn quiet() -> impl FailureHandler<aqueduct_bigtable::FailedMutation> {
    log_and_drop()
}
