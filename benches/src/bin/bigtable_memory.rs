//! Memory of the Bigtable sink over a long run: it must not grow with the volume moved.
//!
//! `cargo run --release -p aqueduct-benches --bin bigtable_memory`

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use aqueduct_benches::raw::Load;
use aqueduct_benches::sinks::{Job, sink_loop};
use aqueduct_benches::{Service, peak_resident, reset_peak, resident, serve};
use aqueduct_bigtable::RowOrdering;
use clap::Parser;

/// Measures peak resident memory of the sink; fails if it grows with the volume or exceeds the in-flight bytes plus 64 MiB.
#[derive(Parser)]
struct Args {
    /// Serves the discarding service; used by the program itself.
    #[arg(long, hide = true)]
    serve: bool,
    /// Rows of the long run; the short one has a tenth.
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
}

/// The in-flight bytes that the runs are configured with.
const IN_FLIGHT: u64 = 64 << 20;

fn main() {
    let args = Args::parse();
    if args.serve {
        return serve();
    }
    let service = Service::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime for the sink");
    println!(
        "peak resident memory in MiB, {} MiB of in-flight bytes allowed",
        IN_FLIGHT >> 20
    );
    for (name, ordering, tables, value_bytes) in [
        ("1 table, 100 B", RowOrdering::None, 1, 100),
        ("50 tables, 100 B", RowOrdering::None, 50, 100),
        ("50 tables, 100 B, ordered", RowOrdering::PerRow, 50, 100),
        ("1 table, 1 KiB", RowOrdering::None, 1, 1_024),
    ] {
        let job = Job {
            ordering,
            hot_every: 0,
            tables,
        };
        let mut peaks = Vec::new();
        for rows in [args.rows / 10, args.rows] {
            let load = Load {
                rows,
                value_bytes,
                batch: 100,
                in_flight: 16,
            };
            let before = resident();
            assert!(
                reset_peak(),
                "this system does not let a process reset its peak"
            );
            let written = runtime.block_on(sink_loop(service.endpoint(), load, &job));
            assert_eq!(written, rows);
            peaks.push(peak_resident().max(before));
        }
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "  {name:<26} {:>6.1} over {} rows   {:>6.1} over {} rows",
            mib(peaks[0]),
            args.rows / 10,
            mib(peaks[1]),
            args.rows
        );
        assert!(
            peaks[1] <= IN_FLIGHT + (64 << 20),
            "{name}: more than the bound"
        );
        assert!(
            peaks[1] <= peaks[0] + (8 << 20),
            "{name}: memory grows with the volume"
        );
    }
}
