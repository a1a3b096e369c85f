//! The Bigtable scan beside raw loops that read the same rows from the same service, all in one run.
//!
//! The service answers every `ReadRows` with messages that were encoded before, so the client is what is measured.
//!
//! `cargo run --release -p aqueduct-benches --bin bigtable_scan`

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use aqueduct_benches::{Run, Service, measure, median, peak_resident, pin_to_second_core};
use aqueduct_bigtable::client::read::{
    Fill, ReadAccess, ReadClient, ReadPolicy, Remaining, RowRef, ScanOrder,
};
use aqueduct_bigtable::{BigtableSource, RowRange, TableDestination};
use aqueduct_cloud::{CallSpec, ChannelPool, Endpoint, PoolOptions, TokenProvider};
use aqueduct_connector::options::ByteSize;
use aqueduct_connector::source::{
    Collector, EnumeratorCommand, EnumeratorOutput, ReaderOutput, Source,
};
use aqueduct_testkit::TestContext;
use bytes::{Buf, Bytes};
use clap::Parser;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as wire;
use prost::Message;
use wire::read_rows_response::{CellChunk, cell_chunk::RowStatus};

/// Rows a message.
const BATCH: u64 = 100;
/// The measured client's windows.
const WINDOW: u32 = 16 << 20;

/// Measures the Bigtable scan beside raw loops; figures are ratios of rows per core-second from this one run.
#[derive(Parser)]
struct Args {
    /// Serves encoded rows; used by the program itself.
    #[arg(long, hide = true)]
    serve: bool,
    /// Repetitions of every loop; the median counts.
    #[arg(long, default_value_t = 5)]
    repeat: usize,
    /// Times the table is read in a repetition, so that processor time, which comes in ticks of 10 ms, is long enough.
    #[arg(long, default_value_t = 5)]
    passes: u64,
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
    for (table, value_bytes) in TABLES {
        runtime.block_on(compare(service.endpoint(), table, value_bytes, &args));
    }
    println!("peak resident: {} MiB", peak_resident() >> 20);
}

/// Tables by name, and the bytes of their values.
const TABLES: [(&str, usize); 2] = [("small", 100), ("large", 1_024)];

/// Rows of a table, encoded ahead: some 150 MB of small ones and 280 MB of large ones.
fn rows_of(value_bytes: usize) -> u64 {
    if value_bytes > 500 {
        250_000
    } else {
        1_000_000
    }
}

async fn compare(address: &str, table: &str, value_bytes: usize, args: &Args) {
    let names = ["prost", "raw hand decoding", "row stream", "source"];
    let table = TableDestination::of("p", "i", table).expect("valid names");
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); names.len()];
    let rows = rows_of(value_bytes) * args.passes;
    for round in 0..=args.repeat {
        let mut keep = |at: usize, run: Run| {
            assert_eq!(run.records, rows, "{} lost rows", names[at]);
            if round > 0 {
                runs[at].push(run);
            }
        };
        let pass = async || prost_loop(address, &table).await;
        keep(0, measure(passes(args.passes, pass)).await);
        let pass = async || raw_loop(address, &table).await;
        keep(1, measure(passes(args.passes, pass)).await);
        let pass = async || stream_loop(address, &table).await;
        keep(2, measure(passes(args.passes, pass)).await);
        let pass = async || source_loop(address, &table).await;
        keep(3, measure(passes(args.passes, pass)).await);
    }
    let figure = |at: usize| median(runs[at].iter().map(Run::per_core_second).collect());
    println!("{value_bytes} B values, {BATCH} rows a message, one stream");
    for (at, name) in names.iter().enumerate() {
        println!(
            "  {name:<20} {:>11.0} rows per core-second   {:.2} of prost   {:.2} of raw",
            figure(at),
            figure(at) / figure(0),
            figure(at) / figure(1),
        );
    }
}

/// Runs `pass` so often; returns the rows of all passes.
async fn passes(passes: u64, pass: impl AsyncFn() -> u64) -> u64 {
    let mut rows = 0;
    for _ in 0..passes {
        rows += pass().await;
    }
    rows
}

fn call(address: &str, table: &TableDestination) -> aqueduct_cloud::Call {
    let kit = TestContext::new("bench");
    let endpoint = Endpoint::emulator("address", address).expect("host:port");
    let options = PoolOptions::default().windows(WINDOW, WINDOW);
    let pool = ChannelPool::new(&kit.subtask(0, 1), endpoint, TokenProvider::none(), options)
        .expect("valid options");
    let request = wire::ReadRowsRequest {
        table_name: table.path(),
        ..wire::ReadRowsRequest::default()
    };
    let spec = CallSpec::new(
        "/google.bigtable.v2.Bigtable/ReadRows",
        Duration::from_secs(600),
    );
    pool.call(&spec, aqueduct_cloud::frame(&request))
}

async fn prost_loop(address: &str, table: &TableDestination) -> u64 {
    let mut answer = call(address, table).await.expect("an answer");
    let mut rows = 0;
    while let Some(message) = answer.message().await {
        let message = message.expect("a message");
        let message = wire::ReadRowsResponse::decode(message).expect("decodes");
        for chunk in &message.chunks {
            std::hint::black_box(&chunk.value);
            rows += u64::from(chunk.row_status == Some(RowStatus::CommitRow(true)));
        }
    }
    rows
}

/// The least that a hand-written loop does: where key and value of each row are, without a check.
async fn raw_loop(address: &str, table: &TableDestination) -> u64 {
    let mut answer = call(address, table).await.expect("an answer");
    let mut rows = 0;
    let mut offsets: Vec<(u32, u32, u32, u32)> = Vec::new();
    while let Some(message) = answer.message().await {
        let message = message.expect("a message");
        offsets.clear();
        let mut at = 0;
        while at < message.len() {
            let (_, len) = tag_and_len(&message, &mut at);
            let end = at + len;
            let (mut key, mut value, mut committed) = ((0, 0), (0, 0), false);
            while at < end {
                let (field, len) = tag_and_len(&message, &mut at);
                match field {
                    1 => key = (at as u32, len as u32),
                    6 => value = (at as u32, len as u32),
                    9 => committed = true,
                    _ => {}
                }
                at += len;
            }
            if committed {
                offsets.push((key.0, key.1, value.0, value.1));
            }
        }
        for (_, _, start, len) in &offsets {
            std::hint::black_box(&message[*start as usize..(*start + *len) as usize]);
        }
        rows += offsets.len() as u64;
    }
    rows
}

/// The next field's number, and how many bytes of content follow `at`; numbers are passed over.
fn tag_and_len(message: &[u8], at: &mut usize) -> (u8, usize) {
    let tag = message[*at];
    *at += 1;
    let mut number = 0usize;
    let mut shift = 0;
    loop {
        let byte = message[*at];
        *at += 1;
        number |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
        shift += 7;
    }
    (tag >> 3, if tag & 7 == 2 { number } else { 0 })
}

async fn stream_loop(address: &str, table: &TableDestination) -> u64 {
    let kit = TestContext::new("bench");
    let access = ReadAccess::new(table.clone(), None, None, Some(address)).expect("valid");
    let window = ByteSize(u64::from(WINDOW));
    let client = ReadClient::new(&kit.subtask(0, 1), &access, window, NonZeroUsize::MIN)
        .expect("no key file");
    let all = Remaining::ranges(vec![RowRange::all()], ScanOrder::Forward, None);
    let mut stream = client.read(all, None, ReadPolicy::SCAN, fastrand::Rng::with_seed(1));
    let mut rows = 0;
    while poll_fn(|cx| stream.poll_fill(cx, 1_000, 8 << 20))
        .await
        .expect("reads")
        == Fill::Rows
    {
        for row in stream.batch().iter() {
            for cell in row.cells() {
                std::hint::black_box(cell.value());
            }
            rows += 1;
        }
        stream.clear();
    }
    rows
}

async fn source_loop(address: &str, table: &TableDestination) -> u64 {
    let source: Arc<dyn Source<usize>> = Arc::new(
        BigtableSource::builder()
            .table(table.clone())
            .emulator_endpoint(address)
            .deserializer(|row: RowRef<'_>, out: &mut Collector<'_, usize>| {
                out.emit(row.latest("cf", b"q").map_or(0, |cell| cell.value().len()));
                Ok(())
            })
            .build()
            .expect("valid settings"),
    );
    let kit = TestContext::new("bench");
    let mut enumerator = source
        .create_enumerator(kit.coordinator(1), None)
        .expect("created");
    let mut reader = source.create_reader(kit.subtask(0, 1)).expect("created");
    let mut out = EnumeratorOutput::new();
    enumerator
        .reader_registered(0, &mut out)
        .expect("registers");
    let mut planned = false;
    let mut rows = 0;
    loop {
        let output = poll_fn(|cx| {
            if !planned {
                if let Poll::Ready(result) = enumerator.poll_progress(cx, &mut out) {
                    result.expect("plans");
                }
                for command in out.drain() {
                    match command {
                        EnumeratorCommand::Assign { splits, .. } => {
                            reader.add_splits(splits).expect("splits");
                        }
                        EnumeratorCommand::NoMoreSplits { .. } => {
                            planned = true;
                            reader.no_more_splits().expect("told");
                        }
                        EnumeratorCommand::Event { .. } => {}
                    }
                }
            }
            reader.poll_next(cx)
        })
        .await
        .expect("reads");
        match output {
            ReaderOutput::Batch(batch) => {
                rows += batch.records.len() as u64;
                std::hint::black_box(&batch.records);
                reader.emitted(batch.records.len());
            }
            ReaderOutput::RequestSplit => enumerator.split_requested(0, &mut out).expect("asks"),
            ReaderOutput::End => return rows,
            _ => {}
        }
    }
}

/// Answers `ReadRows` with the rows of the table asked for, `SampleRowKeys` with nothing and everything else with OK.
fn serve() {
    let tables: Vec<(&str, Vec<Bytes>)> = TABLES
        .iter()
        .map(|(name, value_bytes)| (*name, encoded(*value_bytes, rows_of(*value_bytes))))
        .collect();
    let tables = Arc::new(tables);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime for the service");
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port");
        println!("{}", listener.local_addr().expect("bound"));
        while let Ok((socket, _)) = listener.accept().await {
            let tables = tables.clone();
            // Killed with the process.
            drop(tokio::spawn(connection(socket, tables)));
        }
    });
}

async fn connection(socket: tokio::net::TcpStream, tables: Arc<Vec<(&'static str, Vec<Bytes>)>>) {
    let _ = socket.set_nodelay(true);
    let mut connection = h2::server::Builder::new()
        .max_concurrent_streams(100)
        .handshake::<_, Bytes>(socket)
        .await
        .expect("an HTTP/2 client");
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let tables = tables.clone();
        drop(tokio::spawn(async move {
            let path = request.uri().path().to_owned();
            let mut body = request.into_body();
            let mut message = Vec::new();
            while let Some(Ok(data)) = body.data().await {
                let _ = body.flow_control().release_capacity(data.len());
                message.extend_from_slice(&data);
            }
            let head = http::Response::builder()
                .header("content-type", "application/grpc")
                .body(())
                .expect("a valid head");
            let mut send = respond.send_response(head, false).expect("an open stream");
            if path.ends_with("/ReadRows") {
                let request = wire::ReadRowsRequest::decode(&message[5..]).expect("a request");
                let table = tables
                    .iter()
                    .find(|(name, _)| request.table_name.ends_with(name))
                    .expect("one of the tables");
                for message in &table.1 {
                    if !send_all(&mut send, message.clone()).await {
                        return;
                    }
                }
            } else if path.ends_with("/PingAndWarm") {
                let _ = send_all(&mut send, Bytes::from_static(&[0; 5])).await;
            }
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
            let _ = send.send_trailers(trailers);
        }));
    }
}

async fn send_all(send: &mut h2::SendStream<Bytes>, mut data: Bytes) -> bool {
    while data.has_remaining() {
        send.reserve_capacity(data.len());
        let Some(Ok(room)) = poll_fn(|cx| send.poll_capacity(cx)).await else {
            return false;
        };
        let now = data.split_to(room.min(data.len()));
        if !now.is_empty() && send.send_data(now, false).is_err() {
            return false;
        }
    }
    true
}

fn encoded(value_bytes: usize, rows: u64) -> Vec<Bytes> {
    (0..rows / BATCH)
        .map(|batch| {
            let chunks = (batch * BATCH..(batch + 1) * BATCH).map(|row| CellChunk {
                row_key: format!("row-{row:012}").into_bytes().into(),
                family_name: Some("cf".to_owned()),
                qualifier: Some(b"q".to_vec()),
                timestamp_micros: 1_700_000_000_000_000,
                value: vec![b'v'; value_bytes].into(),
                row_status: Some(RowStatus::CommitRow(true)),
                ..CellChunk::default()
            });
            aqueduct_cloud::frame(&wire::ReadRowsResponse {
                chunks: chunks.collect(),
                ..wire::ReadRowsResponse::default()
            })
        })
        .collect()
}
