//! The hot path allocates for a batch, never for a record: counted by an allocator of this binary's own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use aqueduct_bigtable::{
    BigtableSink, Disposition, RowMutationEntry, RowOrdering, TableDestination, WriterOptions,
};
use aqueduct_connector::sink::{Flush, RecordInfo, Sink, SinkWriter};
use aqueduct_sim::{Sim, SimConfig};
use aqueduct_testkit::TestContext;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // Gone while a thread ends; nothing is counted then.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is handed on to the system's allocator unchanged; counting touches a thread-local cell only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BATCH: u64 = 500;
const BATCHES: u64 = 40;

fn serialize(
    number: &u64,
    _: RecordInfo,
    entry: &mut RowMutationEntry,
) -> Result<Disposition, Infallible> {
    let mut key = *b"user#0000000000000000";
    for (at, digit) in key[5..].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (60 - 4 * at) & 15) as usize];
    }
    entry
        .row_key(key)
        .set_cell("cf", "q", 1_000, [7; 100])
        .set_cell_now("cf", "r", number.to_be_bytes());
    Ok(Disposition::Write)
}

/// Allocations of this thread while one record after the other is written and none of them makes a batch leave.
async fn allocations_per_quiet_record(ordering: RowOrdering) -> (u64, u64) {
    let sim = Sim::start_on_thread(SimConfig::for_benchmarks()).expect("a loopback port");
    sim.bigtable()
        .create_table("p", "i", "t", &["cf"])
        .start_discarding();
    let sink = BigtableSink::builder()
        .table(TableDestination::of("p", "i", "t").expect("valid"))
        .serializer(serialize)
        .emulator_endpoint(sim.endpoint())
        .row_ordering(ordering)
        .writer_options(
            WriterOptions::new()
                .batch_element_count_threshold(BATCH)
                .max_in_flight_entries(4 * BATCH),
        )
        .build()
        .expect("valid");
    let kit = TestContext::new("sink");
    let mut writer: Box<dyn SinkWriter<u64>> = Arc::new(sink)
        .create_writer(kit.subtask(0, 1), Vec::new())
        .expect("a writer");
    let mut number = 0;
    // Buffers and the index of rows grow to their size first.
    for _ in 0..BATCHES * BATCH {
        std::future::poll_fn(|cx| writer.poll_ready(cx))
            .await
            .expect("well");
        writer.write(number, RecordInfo::default()).expect("well");
        number += 1;
    }
    std::future::poll_fn(|cx| writer.poll_flush(cx, Flush::Checkpoint))
        .await
        .expect("well");
    // The first record begins a batch and the last makes it leave; those may allocate.
    let (mut quiet, mut allocated) = (0, 0);
    for _ in 0..BATCHES {
        for at in 0..BATCH {
            std::future::poll_fn(|cx| writer.poll_ready(cx))
                .await
                .expect("well");
            let before = ALLOCATIONS.with(Cell::get);
            writer.write(number, RecordInfo::default()).expect("well");
            let ready = writer.poll_ready(&mut Context::from_waker(Waker::noop()));
            let after = ALLOCATIONS.with(Cell::get);
            number += 1;
            if at > 0 && at + 1 < BATCH {
                assert!(matches!(ready, Poll::Ready(Ok(()))), "room without a wait");
                quiet += 1;
                allocated += after - before;
            }
        }
        std::future::poll_fn(|cx| writer.poll_flush(cx, Flush::Checkpoint))
            .await
            .expect("well");
    }
    std::future::poll_fn(|cx| writer.poll_close(cx))
        .await
        .expect("well");
    (quiet, allocated)
}

#[tokio::test]
async fn a_record_that_completes_no_batch_allocates_nothing() {
    for ordering in [RowOrdering::None, RowOrdering::PerRow] {
        let (records, allocations) = allocations_per_quiet_record(ordering).await;
        assert_eq!(records, BATCHES * (BATCH - 2));
        assert_eq!(allocations, 0, "{ordering:?}, {records} records");
    }
}
