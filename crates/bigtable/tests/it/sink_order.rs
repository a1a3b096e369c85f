//! Per-row order: what it promises, and that it stays when everything else goes wrong.

use aqueduct_bigtable::{CreateDisposition, RowOrdering, TableCreateOptions, WriterOptions};
use aqueduct_connector::sink::Flush;
use aqueduct_sim::{Code, EntryOrder, Gate, Method, MutateRowsRequest};
use aqueduct_testkit::SinkHost;

use super::sink_world::{Record, World};

fn ordered(world: &World, options: WriterOptions) -> SinkHost<Record> {
    world.host(|builder| {
        builder
            .row_ordering(RowOrdering::PerRow)
            .writer_options(options)
    })
}

/// The same cell of `keys` rows, written `rounds` times.
fn updates(keys: usize, rounds: usize) -> impl Iterator<Item = Record> {
    (0..keys * rounds)
        .map(move |at| Record::new(format!("row{}", at % keys)).value(format!("{:06}", at / keys)))
}

fn assert_last(world: &World, keys: usize, rounds: usize) {
    let last = format!("{:06}", rounds - 1).into_bytes();
    for key in 0..keys {
        assert_eq!(
            world.values(&format!("row{key}")),
            std::slice::from_ref(&last),
            "row{key}"
        );
    }
}

#[tokio::test]
async fn the_last_entry_of_a_row_wins_although_the_service_reverses_entries() {
    let world = World::new().await;
    world.table.set_entry_order(EntryOrder::Reversed);
    let mut host = ordered(
        &world,
        WriterOptions::new().batch_element_count_threshold(10),
    );
    host.write_all(updates(7, 40)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_last(&world, 7, 40);
    for request in world.table.requests_of(Method::MutateRows) {
        let message = request
            .message::<MutateRowsRequest>()
            .expect("kept")
            .expect("a request");
        let mut keys: Vec<_> = message.entries.iter().map(|entry| &entry.row_key).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(
            keys.len(),
            message.entries.len(),
            "no row twice in a request"
        );
    }
    assert_eq!(world.metric("numRecordsSend"), 280);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn without_it_reversal_shows() {
    let world = World::new().await;
    world.table.set_entry_order(EntryOrder::Reversed);
    let mut host = world.host(|builder| builder);
    host.write_all(updates(1, 10)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_ne!(
        world.values("row0"),
        [b"000009".to_vec()],
        "the test could not fail otherwise"
    );
    host.finish().await.expect("well");
}

#[tokio::test]
async fn distinct_rows_stay_parallel_while_one_waits() {
    let world = World::new().await;
    let gate = Gate::new();
    world.table.nth(1, Method::MutateRows).hold_answer(&gate);
    let mut host = ordered(
        &world,
        WriterOptions::new().batch_element_count_threshold(1),
    );
    host.write_all(updates(1, 1)).await.expect("well");
    host.settle().await.expect("well");
    host.write_all(updates(4, 3)).await.expect("well");
    host.settle().await.expect("well");
    let rows: Vec<_> = (1..4).map(|at| world.values(&format!("row{at}"))).collect();
    assert_eq!(
        rows,
        vec![vec![b"000002".to_vec()]; 3],
        "nobody waits for another row"
    );
    assert_eq!(
        world.metric("orderedRowsWaiting"),
        1,
        "three records, one merged entry"
    );
    assert_eq!(world.metric("inFlightEntries"), 4, "what waits counts");
    gate.open();
    host.checkpoint().await.expect("well");
    assert_last(&world, 4, 3);
    assert_eq!(world.metric("orderedRowsWaiting"), 0);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn what_waits_counts_in_the_bounds_and_ends_with_the_answer() {
    let world = World::new().await;
    let gate = Gate::new();
    let fault = world.table.always(Method::MutateRows).hold_answer(&gate);
    let mut host = ordered(&world, WriterOptions::new().max_in_flight_entries(6));
    host.write_all(updates(1, 6)).await.expect("well");
    assert!(host.poll_ready(0).await.is_pending());
    fault.remove();
    gate.open();
    host.write_all(updates(1, 50))
        .await
        .expect("room again and again");
    host.checkpoint().await.expect("well");
    assert_last(&world, 1, 50);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn order_stays_through_retries_and_lost_answers() {
    let world = World::new().await;
    world.table.set_entry_order(EntryOrder::Shuffled(3));
    world
        .table
        .every_nth(3, Method::MutateRows)
        .entry_status([0, 2], Code::Unavailable);
    world
        .table
        .every_nth(5, Method::MutateRows)
        .apply_then_lose_answer();
    let mut host = ordered(
        &world,
        WriterOptions::new().batch_element_count_threshold(4),
    );
    host.write_all(updates(5, 30)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_last(&world, 5, 30);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn order_stays_through_the_isolation_of_merged_entries() {
    let world = World::new().await;
    let mut host = ordered(&world, WriterOptions::new());
    let mut all: Vec<_> = updates(3, 9).collect();
    all.insert(4, Record::new("row1").value("bad").unaligned());
    all.insert(20, Record::new("row2").value("bad").unaligned());
    host.write_all(all).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_last(&world, 3, 9);
    assert_eq!(
        world.handled.handled(),
        2,
        "each bad record, and no neighbour merged with it"
    );
    assert_eq!(
        world.metric("inFlightEntries") + world.metric("orderedRowsWaiting"),
        0
    );
    host.finish().await.expect("well");
}

#[tokio::test]
async fn order_stays_through_a_repair() {
    let world = World::new().await;
    world.table.delete();
    let mut host = world.host(|builder| {
        builder
            .row_ordering(RowOrdering::PerRow)
            .create_disposition(CreateDisposition::CreateIfNeeded)
            .table_create_options(TableCreateOptions::new().column_family("cf", None))
            .writer_options(
                WriterOptions::new()
                    .batch_element_count_threshold(3)
                    .recovery_initial_backoff(std::time::Duration::from_millis(2)),
            )
    });
    let mut all: Vec<_> = updates(4, 12).collect();
    all.insert(30, Record::new("row1").value("bad").unaligned());
    host.write_all(all).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_last(&world, 4, 12);
    assert_eq!(world.handled.handled(), 1);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn order_stays_when_the_service_restarts() {
    let world = World::new().await;
    let mut host = ordered(
        &world,
        WriterOptions::new().batch_element_count_threshold(3),
    );
    host.write_all(updates(4, 5)).await.expect("well");
    host.settle().await.expect("well");
    world.sim.cut_connections();
    host.write_all(updates(4, 10)).await.expect("well");
    world.sim.recycle_connections();
    host.write_all(updates(4, 15)).await.expect("well");
    host.flush(Flush::Checkpoint).await.expect("well");
    assert_last(&world, 4, 15);
    host.finish().await.expect("well");
}
