//! The Bigtable sink beside raw loops that send the same rows to the same discarding service, all in one run.
//!
//! `cargo run --release -p aqueduct-benches --bin bigtable_sink`

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use aqueduct_benches::raw::{self, Load};
use aqueduct_benches::sinks::{self, Job};
use aqueduct_benches::{Run, Service, measure, median, pin_to_second_core, serve};
use aqueduct_bigtable::RowOrdering;
use clap::Parser;

/// Measures the Bigtable sink beside raw loops; figures are ratios of rows per core-second from this one run.
#[derive(Parser)]
struct Args {
    /// Serves the discarding service; used by the program itself.
    #[arg(long, hide = true)]
    serve: bool,
    /// Repetitions of every loop; the median counts.
    #[arg(long, default_value_t = 5)]
    repeat: usize,
    /// Rows of 100 B a repetition; of 1 KiB a third of that.
    #[arg(long, default_value_t = 1_500_000)]
    rows: u64,
}

fn main() {
    let args = Args::parse();
    if args.serve {
        return serve();
    }
    if !pin_to_second_core() {
        return;
    }
    let service = Service::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime for the measured loops");
    for value_bytes in [100, 1_024] {
        let rows = if value_bytes > 500 {
            args.rows / 3
        } else {
            args.rows
        };
        let load = Load {
            rows,
            value_bytes,
            batch: 100,
            in_flight: 16,
        };
        runtime.block_on(compare(service.endpoint(), load, args.repeat));
    }
}

async fn compare(endpoint: &str, load: Load, repeat: usize) {
    const TABLE: &str = "projects/bench/instances/discard/tables/rows";
    let names = [
        "generated stub (a)",
        "hand-built body (d)",
        "sink",
        "sink, ordered",
        "sink, ordered, hot row",
    ];
    let job = |ordering, hot_every| Job {
        ordering,
        hot_every,
        tables: 1,
    };
    let jobs = [
        job(RowOrdering::None, 0),
        job(RowOrdering::PerRow, 0),
        // One write in ten goes to one row.
        job(RowOrdering::PerRow, 10),
    ];
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); names.len()];
    // One warm-up of each, then interleaved repetitions.
    for round in 0..=repeat {
        let mut keep = |at: usize, run: Run| {
            assert_eq!(run.records, load.rows, "{} lost rows", names[at]);
            if round > 0 {
                runs[at].push(run);
            }
        };
        keep(
            0,
            measure(raw::stub_loop(raw::channel(endpoint).await, TABLE, load)).await,
        );
        keep(
            1,
            measure(raw::body_loop(raw::channel(endpoint).await, TABLE, load)).await,
        );
        for (at, job) in jobs.iter().enumerate() {
            keep(at + 2, measure(sinks::sink_loop(endpoint, load, job)).await);
        }
    }
    let figure = |at: usize| median(runs[at].iter().map(Run::per_core_second).collect());
    println!(
        "{} B values, {} rows a request, {} in flight",
        load.value_bytes, load.batch, load.in_flight
    );
    for (at, name) in names.iter().enumerate() {
        println!(
            "  {name:<24} {:>10.0} rows per core-second   {:.2} of (a)   {:.2} of (d)",
            figure(at),
            figure(at) / figure(0),
            figure(at) / figure(1),
        );
    }
}
