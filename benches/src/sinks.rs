//! The Bigtable sink under the same load as the raw loops, driven poll by poll as a host drives it.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use aqueduct_bigtable::{
    BigtableSink, Disposition, RowMutationEntry, RowOrdering, TableDestination, WriterOptions,
};
use aqueduct_connector::options::ByteSize;
use aqueduct_connector::sink::{Flush, RecordInfo, Sink, SinkWriter};
use aqueduct_testkit::context::TestContext;

use crate::raw::{self, Load};

/// What the sink does with the load.
#[derive(Clone, Debug)]
pub struct Job {
    /// Whether entries of one row keep their order.
    pub ordering: RowOrdering,
    /// One row in this many goes to one hot row; 0 for none.
    pub hot_every: u64,
    /// Tables that the rows are spread over; the first is the one of the raw loops.
    pub tables: usize,
}

/// Writes the load through a sink writer, flushes, closes. Returns the rows written.
///
/// # Panics
///
/// If the sink fails.
pub async fn sink_loop(endpoint: &str, load: Load, job: &Job) -> u64 {
    let value = raw::value(load.value_bytes);
    let hot_every = job.hot_every;
    let entries = (load.batch * load.in_flight) as u64;
    let mut builder = BigtableSink::builder()
        .serializer(
            move |n: &u64, _: RecordInfo, entry: &mut RowMutationEntry| {
                let mut key = [0; 16];
                let hot = hot_every > 0 && n.is_multiple_of(hot_every);
                raw::key_into(if hot { 0 } else { *n }, &mut key);
                entry
                    .row_key(key)
                    .set_cell(raw::FAMILY, raw::QUALIFIER, raw::TIMESTAMP, &value);
                Ok::<_, std::convert::Infallible>(Disposition::Write)
            },
        )
        .emulator_endpoint(endpoint)
        .row_ordering(job.ordering)
        .writer_options(
            WriterOptions::new()
                .batch_element_count_threshold(load.batch as u64)
                .max_in_flight_entries(entries)
                .max_in_flight_bytes(ByteSize::mib(64)),
        );
    let table = |at: usize| {
        let name = if at == 0 {
            "rows".to_owned()
        } else {
            format!("rows-{at}")
        };
        TableDestination::of("bench", "discard", &name).expect("a valid name")
    };
    builder = if job.tables <= 1 {
        builder.table(table(0))
    } else {
        let tables: Vec<_> = (0..job.tables).map(table).collect();
        builder.destination_resolver(move |n: &u64, _: RecordInfo| {
            Ok::<_, std::convert::Infallible>(Some(
                tables[(*n % tables.len() as u64) as usize].clone(),
            ))
        })
    };
    let sink = builder.build().expect("valid options");
    let kit = TestContext::new("bench");
    let mut writer = sink
        .create_writer(kit.subtask(0, 1), Vec::new())
        .expect("a writer");
    let mut next = 0;
    poll_fn(|cx| drive(&mut *writer, &mut next, load.rows, cx)).await;
    poll_fn(|cx| writer.poll_close(cx))
        .await
        .expect("the writer closes");
    next
}

fn drive(
    writer: &mut dyn SinkWriter<u64>,
    next: &mut u64,
    rows: u64,
    cx: &mut Context<'_>,
) -> Poll<()> {
    while *next < rows {
        ready!(writer.poll_ready(cx)).expect("the service accepts");
        writer
            .write(*next, RecordInfo::default())
            .expect("the record is valid");
        *next += 1;
    }
    writer
        .poll_flush(cx, Flush::EndOfInput)
        .map(|flushed| flushed.expect("the service accepts"))
}
