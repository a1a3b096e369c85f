//! What the executor costs a record: whole jobs against the same reader and writer in a bare loop.
//!
//! `cargo bench -p aqueduct-runtime`. Records are `u64`, batches hold 500, the sink counts and discards; so the numbers
//! are the executor's own and the contract's (two virtual calls a record into the writer, which the bare loop makes
//! too).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as PollContext, Poll, Waker};
use std::time::{Duration, Instant};

use aqueduct_connector::sink::{Flush, RecordInfo, Sink, SinkWriter};
use aqueduct_connector::source::{
    Batch, Boundedness, Collector, EnumeratorOutput, ReaderOutput, Record, Source, SourceReader,
    Split, SplitEnumerator, SplitId,
};
use aqueduct_connector::state::{StateReader, StateWriter};
use aqueduct_connector::{CheckpointId, Context, Result, Timestamp, Versioned};
use aqueduct_runtime::{
    Job, JobConfig, KeyedProcessFunction, RecordContext, Stream, Timers, WatermarkStrategy,
};

const BATCH: u64 = 500;

/// Each reader counts up to `records`, without splits.
#[derive(Clone)]
struct Counting {
    records: u64,
}

impl Source<u64> for Counting {
    fn connector(&self) -> &'static str {
        "counting"
    }

    fn boundedness(&self) -> Boundedness {
        Boundedness::Bounded
    }

    fn create_enumerator(
        &self,
        _context: Context,
        _restored: Option<Versioned>,
    ) -> Result<Box<dyn SplitEnumerator>> {
        Ok(Box::new(Nothing))
    }

    fn create_reader(&self, _context: Context) -> Result<Box<dyn SourceReader<u64>>> {
        Ok(Box::new(Reader {
            split: SplitId::new("all"),
            at: 0,
            to: self.records,
        }))
    }
}

struct Nothing;

impl SplitEnumerator for Nothing {
    fn poll_progress(
        &mut self,
        _: &mut PollContext<'_>,
        _: &mut EnumeratorOutput,
    ) -> Poll<Result<()>> {
        Poll::Pending
    }

    fn reader_registered(&mut self, _: u32, _: &mut EnumeratorOutput) -> Result<()> {
        Ok(())
    }

    fn reader_lost(&mut self, _: u32) -> Result<()> {
        Ok(())
    }

    fn split_requested(&mut self, _: u32, _: &mut EnumeratorOutput) -> Result<()> {
        Ok(())
    }

    fn splits_returned(&mut self, _: Vec<Split>, _: &mut EnumeratorOutput) -> Result<()> {
        Ok(())
    }

    fn snapshot(&mut self, _: CheckpointId) -> Result<Versioned> {
        Ok(Versioned::new(1, ""))
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

struct Reader {
    split: SplitId,
    at: u64,
    to: u64,
}

impl SourceReader<u64> for Reader {
    fn add_splits(&mut self, _: Vec<Split>) -> Result<()> {
        Ok(())
    }

    fn no_more_splits(&mut self) -> Result<()> {
        Ok(())
    }

    fn poll_next(&mut self, _: &mut PollContext<'_>) -> Poll<Result<ReaderOutput<u64>>> {
        if self.at == self.to {
            return Poll::Ready(Ok(ReaderOutput::End));
        }
        let end = self.to.min(self.at + BATCH);
        let records = (self.at..end)
            .map(|number| Record {
                value: number,
                timestamp: Some(Timestamp::from_millis(number.cast_signed())),
            })
            .collect();
        self.at = end;
        Poll::Ready(Ok(ReaderOutput::Batch(Batch {
            split: self.split.clone(),
            records,
        })))
    }

    fn emitted(&mut self, _: usize) {}

    fn snapshot(&mut self, _: CheckpointId) -> Result<Vec<Split>> {
        Ok(Vec::new())
    }

    fn pause_splits(&mut self, _: &[SplitId], _: &[SplitId]) {}

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[derive(Clone, Default)]
struct Discard(Arc<AtomicU64>);

impl Sink<u64> for Discard {
    fn connector(&self) -> &'static str {
        "discard"
    }

    fn create_writer(&self, _: Context, _: Vec<Versioned>) -> Result<Box<dyn SinkWriter<u64>>> {
        Ok(Box::new(Writer {
            total: self.0.clone(),
            seen: 0,
        }))
    }
}

struct Writer {
    total: Arc<AtomicU64>,
    seen: u64,
}

impl SinkWriter<u64> for Writer {
    fn poll_ready(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn write(&mut self, record: u64, _: RecordInfo) -> Result<()> {
        self.seen += 1;
        std::hint::black_box(record);
        Ok(())
    }

    fn poll_progress(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Pending
    }

    fn poll_flush(&mut self, _: &mut PollContext<'_>, _: Flush) -> Poll<Result<()>> {
        self.total
            .fetch_add(std::mem::take(&mut self.seen), Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The reader and the writer in a loop, nothing between them.
fn bare(records: u64) -> Duration {
    let total = Arc::new(AtomicU64::new(0));
    let mut reader: Box<dyn SourceReader<u64>> = Box::new(Reader {
        split: SplitId::new("all"),
        at: 0,
        to: records,
    });
    let mut writer: Box<dyn SinkWriter<u64>> = Box::new(Writer {
        total: total.clone(),
        seen: 0,
    });
    let mut cx = PollContext::from_waker(Waker::noop());
    let start = Instant::now();
    while let Poll::Ready(Ok(ReaderOutput::Batch(batch))) = reader.poll_next(&mut cx) {
        let count = batch.records.len();
        for record in batch.records {
            assert!(writer.poll_ready(&mut cx).is_ready());
            let info = RecordInfo {
                timestamp: record.timestamp,
                watermark: None,
            };
            writer
                .write(record.value, info)
                .expect("it takes everything");
        }
        reader.emitted(count);
    }
    assert!(writer.poll_flush(&mut cx, Flush::EndOfInput).is_ready());
    assert_eq!(total.load(Ordering::Relaxed), records);
    start.elapsed()
}

struct Count;

impl KeyedProcessFunction<u64, u64, u64> for Count {
    type State = u64;
    const STATE_NAME: &'static str = "count";
    const STATE_VERSION: u32 = 1;

    fn process(
        &mut self,
        _key: &u64,
        state: &mut Option<u64>,
        _value: u64,
        _info: &RecordContext,
        _timers: &mut Timers<'_, u64>,
        out: &mut Collector<'_, u64>,
    ) -> Result<()> {
        let count = state.get_or_insert(0);
        *count += 1;
        out.emit(*count);
        Ok(())
    }

    fn encode(&self, state: &u64, out: &mut StateWriter) {
        out.u64(*state);
    }

    fn decode(&self, _version: u32, reader: &mut StateReader<'_>) -> Result<u64> {
        Ok(reader.u64()?)
    }
}

fn job(records: u64, parallelism: u32, build: fn(Stream<u64>) -> Stream<u64>) -> Duration {
    let sink = Discard::default();
    let total = sink.0.clone();
    let job = Job::new("bench");
    let per_reader = records / u64::from(parallelism);
    let strategy = WatermarkStrategy::bounded(Duration::from_secs(1));
    let stream = job.from_source(
        "source",
        Counting {
            records: per_reader,
        },
        strategy,
    );
    build(stream).sink_to("sink", sink);
    let config = JobConfig::builder()
        .parallelism(parallelism)
        .build()
        .expect("valid");
    let start = Instant::now();
    job.run(config).expect("it ends");
    let took = start.elapsed();
    assert_eq!(
        total.load(Ordering::Relaxed),
        per_reader * u64::from(parallelism)
    );
    took
}

fn chained(stream: Stream<u64>) -> Stream<u64> {
    stream
        .map("add", |number| number + 1)
        .filter("keep", |number| *number > 0)
        .map("double", |number| number * 2)
}

fn straight(stream: Stream<u64>) -> Stream<u64> {
    stream
}

fn keyed(stream: Stream<u64>) -> Stream<u64> {
    stream
        .key_by(|number| number % 10_000)
        .process("count", || Count)
}

fn rebalanced(stream: Stream<u64>) -> Stream<u64> {
    stream.rebalance()
}

#[expect(clippy::print_stdout, reason = "a benchmark prints its result")]
fn main() {
    // `cargo test --benches` only sees that it runs.
    let quick = std::env::args().any(|argument| argument == "--test") || cfg!(debug_assertions);
    let records: u64 = if quick { 20_000 } else { 20_000_000 };
    let rounds = if quick { 1 } else { 3 };
    let best = |run: &dyn Fn() -> Duration| (0..rounds).map(|_| run()).min().unwrap_or_default();
    #[expect(clippy::cast_precision_loss, reason = "a printed ratio")]
    let nanos = |took: Duration| took.as_nanos() as f64 / records as f64;
    let base = nanos(best(&|| bare(records)));
    println!("bare loop                         {base:7.1} ns a record");
    for (name, parallelism, build) in [
        (
            "source -> sink",
            1,
            straight as fn(Stream<u64>) -> Stream<u64>,
        ),
        ("source -> map,filter,map -> sink", 1, chained),
        ("source -> rebalance -> sink", 1, rebalanced),
        ("source -> keyed count -> sink", 1, keyed),
        ("source -> map,filter,map -> sink", 2, chained),
        ("source -> rebalance -> sink", 2, rebalanced),
        ("source -> keyed count -> sink", 2, keyed),
    ] {
        let took = best(&|| job(records, parallelism, build));
        // Wall time a record, times the threads that shared it.
        let own = nanos(took) * f64::from(parallelism);
        println!(
            "{name:33} {own:7.1} ns a record and core at parallelism {parallelism}, {:+.1} on the bare loop",
            own - base
        );
    }
}
