//! The sink's hot path allocates for a batch, never for a record: counted by an allocator of this binary's own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use aqueduct_connector::options::ByteSize;
use aqueduct_connector::row::{Row, RowKind};
use aqueduct_connector::sink::{Flush, RecordInfo, Sink, SinkWriter};
use aqueduct_connector::table::{SinkPlan, TableSpec};
use aqueduct_connector::types::DataType;
use aqueduct_pubsub::table::factory;
use aqueduct_pubsub::{PubSubSerializer, PubSubSink, PublisherOptions, TopicDestination};
use aqueduct_sim::{Sim, SimConfig};
use aqueduct_testkit::TestContext;
use aqueduct_testkit::table::row;

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

/// A service whose topic keeps nothing.
fn service() -> Sim {
    let sim = Sim::start_on_thread(SimConfig::default()).expect("a loopback port");
    sim.pubsub().create_topic("p", "t").start_discarding();
    sim
}

fn sink(sim: &Sim, keyed: bool) -> PubSubSink<u64> {
    let options = PublisherOptions::new()
        .batch_element_count_threshold(BATCH)
        .batch_request_byte_threshold(ByteSize::mib(4))
        .batch_delay_threshold(Duration::from_secs(3_600))
        .max_in_flight_messages(4 * BATCH)
        .enable_message_ordering(keyed);
    PubSubSink::builder()
        .topic(TopicDestination::new("p", "t").expect("valid"))
        .serializer(serializer(keyed))
        .emulator_endpoint(sim.endpoint())
        .publisher_options(options)
        .build()
        .expect("valid")
}

const METADATA: [&str; 3] = ["attributes", "ordering-key", "topic"];

/// The same by a statement, with all metadata.
fn table(sim: &Sim) -> Box<dyn Sink<Row>> {
    let statement = TableSpec::new("orders")
        .option("project", "p")
        .option("topic", "t")
        .option(
            "emulator-endpoint",
            sim.endpoint().trim_start_matches("http://"),
        )
        .option("sink.message-ordering.enabled", "true")
        .option("sink.batching.element-count-threshold", BATCH.to_string())
        .option("sink.batching.request-byte-threshold", "4 mb")
        .option("sink.batching.delay-threshold", "1 h")
        .option("sink.in-flight.max-messages", (4 * BATCH).to_string());
    let plan = SinkPlan {
        kinds: vec![RowKind::Insert],
        metadata: METADATA.map(str::to_owned).to_vec(),
        parallelism: Some(1),
    };
    factory().sink(&statement, &plan).expect("valid")
}

fn order(number: u64) -> Row {
    const TEXT: DataType = DataType::string();
    row(RowKind::Insert, 1 + METADATA.len(), |row| {
        row.bytes(0, &[number.to_be_bytes()[7]; 208]);
        row.map(
            1,
            (&TEXT, &TEXT),
            2,
            |keys| {
                keys.str(0, "tenant");
                keys.str(1, "a longer name");
            },
            |values| {
                values.str(0, "blue");
                values.str(1, "a longer value");
            },
        );
        row.str(2, "one key");
        if number.is_multiple_of(2) {
            row.str(3, "projects/p/topics/t");
        }
    })
}

/// Records written while none of them makes a batch leave, and what this thread allocated for them.
async fn quiet_records<T>(sink: &dyn Sink<T>, record: impl Fn(u64) -> T) -> (u64, u64) {
    let kit = TestContext::new("sink");
    let mut writer: Box<dyn SinkWriter<T>> = sink
        .create_writer(kit.subtask(0, 1), Vec::new())
        .expect("a writer");
    let (mut quiet, mut allocated) = (0, 0);
    for round in 0..2 * ROUNDS {
        // Buffers grow to their size in the first half.
        let counted = round >= ROUNDS;
        for number in 0..BATCH {
            poll_fn(|cx| writer.poll_ready(cx)).await.expect("well");
            let record = record(number);
            let before = ALLOCATIONS.with(Cell::get);
            writer.write(record, RecordInfo::default()).expect("well");
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
        let sim = service();
        let (records, allocations) = quiet_records(&sink(&sim, keyed), |number| number).await;
        assert_eq!(records, ROUNDS * (BATCH - 2));
        assert_eq!(allocations, 0, "keyed: {keyed}, {records} records");
    }
}

#[tokio::test]
async fn a_row_that_completes_no_batch_allocates_nothing() {
    let sim = service();
    let (rows, allocations) = quiet_records(&*table(&sim), order).await;
    assert_eq!(rows, ROUNDS * (BATCH - 2));
    assert_eq!(allocations, 0, "{rows} rows");
}
