//! Memory of the Bigtable scan: many small rows, and rows of 50 MiB. It stays under the fetch bound, the read-ahead bound and 64 MiB.
//!
//! `cargo run --release -p aqueduct-benches --bin bigtable_scan_memory`

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use std::future::poll_fn;
use std::task::ready;

use aqueduct_benches::{Service, peak_resident, raw, reset_peak, serve};
use aqueduct_bigtable::client::read::RowRef;
use aqueduct_bigtable::sink::CreateDisposition;
use aqueduct_bigtable::source::BigtableSource;
use aqueduct_bigtable::{
    BigtableSink, Disposition, RowMutationEntry, TableCreateOptions, TableDestination,
};
use aqueduct_connector::options::ByteSize;
use aqueduct_connector::sink::{Flush, RecordInfo, Sink};
use aqueduct_connector::source::Collector;
use aqueduct_testkit::context::TestContext;
use clap::Parser;

/// Measures peak resident memory of scans; fails if one exceeds its bounds plus 64 MiB.
#[derive(Parser)]
struct Args {
    /// Serves the simulated service; used by the program itself.
    #[arg(long, hide = true)]
    serve: bool,
    /// Fills the tables of the service at this address; used by the program itself.
    #[arg(long, hide = true)]
    fill: Option<String>,
    /// Small rows in the table; it is read ten times.
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Rows of 50 MiB.
    #[arg(long, default_value_t = 16)]
    large_rows: u64,
}

const FETCH: ByteSize = ByteSize::mib(8);
const READ_AHEAD: ByteSize = ByteSize::mib(8);
const LARGE: usize = 50 << 20;

fn main() {
    let args = Args::parse();
    if args.serve {
        return serve();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    if let Some(endpoint) = &args.fill {
        runtime.block_on(fill(endpoint, "small", args.rows, 100));
        return runtime.block_on(fill(endpoint, "large", args.large_rows, LARGE));
    }
    let service = Service::start();
    let filled =
        std::process::Command::new(std::env::current_exe().expect("a running program has a path"))
            .args(["--fill", service.endpoint()])
            .args([
                "--rows",
                &args.rows.to_string(),
                "--large-rows",
                &args.large_rows.to_string(),
            ])
            .status()
            .expect("the program starts again");
    assert!(filled.success(), "the tables could not be filled");
    let bounds = FETCH.0 + READ_AHEAD.0 + (64 << 20);
    println!("peak resident memory in MiB; {} MiB allowed", bounds >> 20);
    for (name, table, passes, rows, largest) in [
        ("small rows of 100 B", "small", 10, args.rows, 100),
        ("rows of 50 MiB", "large", 2, args.large_rows, LARGE as u64),
    ] {
        assert!(
            reset_peak(),
            "this system does not let a process reset its peak"
        );
        let mut read = 0;
        for _ in 0..passes {
            read += runtime.block_on(scan(service.endpoint(), table));
        }
        assert_eq!(read, passes * rows);
        let peak = peak_resident();
        println!(
            "  {name:<20} {:>6.1} over {read} rows",
            peak as f64 / f64::from(1 << 20)
        );
        // A row larger than the fetch bound travels alone: it is held once as it came and once assembled.
        assert!(peak <= bounds + 2 * largest, "{name}: more than the bounds");
    }
}

async fn fill(endpoint: &str, table: &str, rows: u64, bytes: usize) {
    let value = raw::value(bytes);
    let sink = BigtableSink::builder()
        .table(TableDestination::of("bench", "stored", table).expect("a valid name"))
        .serializer(
            move |n: &u64, _: RecordInfo, entry: &mut RowMutationEntry| {
                let mut key = [0; 16];
                raw::key_into(*n, &mut key);
                entry
                    .row_key(key)
                    .set_cell(raw::FAMILY, raw::QUALIFIER, raw::TIMESTAMP, &value);
                Ok::<_, std::convert::Infallible>(Disposition::Write)
            },
        )
        .create_disposition(CreateDisposition::CreateIfNeeded)
        .table_create_options(TableCreateOptions::new().column_family(raw::FAMILY, None))
        .emulator_endpoint(endpoint)
        .build()
        .expect("valid options");
    let mut writer = sink
        .create_writer(TestContext::new("fill").subtask(0, 1), Vec::new())
        .expect("a writer");
    let mut next = 0;
    poll_fn(|cx| {
        while next < rows {
            ready!(writer.poll_ready(cx)).expect("the service accepts");
            writer
                .write(next, RecordInfo::default())
                .expect("the record is valid");
            next += 1;
        }
        writer
            .poll_flush(cx, Flush::EndOfInput)
            .map(|flushed| flushed.expect("the service accepts"))
    })
    .await;
}

/// Reads a whole table; returns its rows.
async fn scan(endpoint: &str, table: &str) -> u64 {
    let source = BigtableSource::builder()
        .table(TableDestination::of("bench", "stored", table).expect("a valid name"))
        .deserializer(|row: RowRef<'_>, out: &mut Collector<'_, usize>| {
            out.emit(row.cells().map(|cell| cell.value().len()).sum());
            Ok(())
        })
        .max_bytes_per_fetch(FETCH)
        .read_ahead(READ_AHEAD)
        .emulator_endpoint(endpoint)
        .build()
        .expect("valid options");
    let (enumerator, reader) = (TestContext::new("scan"), TestContext::new("scan"));
    aqueduct_benches::drain(&source, enumerator.coordinator(1), reader.subtask(0, 1)).await
}
