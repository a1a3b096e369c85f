//! The sink's hot path allocates for a batch, never for a record: counted by an allocator of this binary's own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use aqueduct_connector::options::ByteSize;
use aqueduct_connector::sink::{Flush, RecordInfo, Sink, SinkWriter};
use aqueduct_pubsub::{PubSubSerializer, PubSubSink, PublisherOptions, TopicDestination};
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

// SAFETY: every call goes to the system's allocator as it came; the count is a thread-local cell that allocates nothing.
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

const BATCH: u64 = 200;
const ROUNDS: u64 = 40;

fn serializer(keyed: bool) -> PubSubSerializer<u64> {
    let serializer = PubSubSerializer::payload(|number: &u64, data: &mut Vec<u8>| {
        data.extend_from_slice(&[7; 200]);
        data.extend_from_slice(&number.to_be_bytes());
        Ok::<_, Infallible>(())
    })
    .with_attributes(|_, attributes| {
        attributes.put("tenant", "blue").put("kind", "order");
        Ok::<_, Infallible>(())
    });
    if keyed {
        serializer.with_ordering_key(|_, key| {
            key.push_str("one key");
            Ok::<_, Infallible>(())
        })
    } else {
        serializer
    }
}

/// Records written while none of them makes a batch leave, and what this thread allocated for them.
async fn quiet_records(keyed: bool) -> (u64, u64) {
    let sim = Sim::start_on_thread(SimConfig::default()).expect("a loopback port");
    sim.pubsub().create_topic("p", "t").start_discarding();
    let options = PublisherOptions::new()
        .batch_element_count_threshold(BATCH)
        .batch_request_byte_threshold(ByteSize::mib(4))
        .batch_delay_threshold(Duration::from_secs(3_600))
        .max_in_flight_messages(4 * BATCH)
        .enable_message_ordering(keyed);
    let sink = PubSubSink::builder()
        .topic(TopicDestination::new("p", "t").expect("valid"))
        .serializer(serializer(keyed))
        .emulator_endpoint(sim.endpoint())
        .publisher_options(options)
        .build()
        .expect("valid");
    let kit = TestContext::new("sink");
    let mut writer: Box<dyn SinkWriter<u64>> = sink
        .create_writer(kit.subtask(0, 1), Vec::new())
        .expect("a writer");
    let (mut quiet, mut allocated) = (0, 0);
    for round in 0..2 * ROUNDS {
        // Buffers grow to their size in the first half.
        let counted = round >= ROUNDS;
        for number in 0..BATCH {
            poll_fn(|cx| writer.poll_ready(cx)).await.expect("well");
            let before = ALLOCATIONS.with(Cell::get);
            writer.write(number, RecordInfo::default()).expect("well");
            let ready = writer.poll_ready(&mut Context::from_waker(Waker::noop()));
            let after = ALLOCATIONS.with(Cell::get);
            // The first record begins a batch and the last makes it leave; those may allocate.
            if counted && number > 0 && number + 1 < BATCH {
                assert!(matches!(ready, Poll::Ready(Ok(()))), "room without a wait");
                quiet += 1;
                allocated += after - before;
            }
        }
        poll_fn(|cx| writer.poll_flush(cx, Flush::Checkpoint))
            .await
            .expect("well");
    }
    poll_fn(|cx| writer.poll_close(cx)).await.expect("well");
    (quiet, allocated)
}

#[tokio::test]
async fn a_record_that_completes_no_batch_allocates_nothing() {
    for keyed in [false, true] {
        let (records, allocations) = quiet_records(keyed).await;
        assert_eq!(records, ROUNDS * (BATCH - 2));
        assert_eq!(allocations, 0, "keyed: {keyed}, {records} records");
    }
}
