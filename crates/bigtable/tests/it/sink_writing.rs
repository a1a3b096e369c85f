//! Writing: whole jobs, what travels, when batches leave, what is refused before it travels.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_bigtable::{BigtableSink, TableDestination, WriterOptions};
use aqueduct_connector::options::ByteSize;
use aqueduct_connector::sink::{Flush, RecordInfo, Sink};
use aqueduct_connector::{Error, Timestamp};
use aqueduct_sim::{Code, Method, MutateRowsRequest};
use aqueduct_testkit::SinkHost;

use super::sink_world::{How, LIMIT, Record, World, destination, records, serialize};

#[tokio::test]
async fn a_streaming_job_keeps_every_record_while_checkpoints_complete() {
    let world = World::new().await;
    let mut host = world.host(|builder| builder);
    for round in 0..5 {
        host.write_all(records(1_000).drain(round * 200..(round + 1) * 200))
            .await
            .expect("well");
        host.checkpoint().await.expect("well");
        assert_eq!(
            world.table.row_count(),
            (round + 1) * 200,
            "what a checkpoint covers is applied"
        );
    }
    host.finish().await.expect("well");
    assert_eq!(world.table.effects_per_row(), [1; 1_000]);
    assert_eq!(world.metric("numRecordsSend"), 1_000);
    assert_eq!(world.metric("inFlightEntries"), 0);
    assert_eq!(world.metric("activeClients"), 0);
}

#[tokio::test]
async fn a_batch_job_needs_nothing_but_the_last_flush() {
    let world = World::new().await;
    let mut host = world.host(|builder| builder);
    host.write_all(records(250)).await.expect("well");
    host.finish().await.expect("well");
    assert_eq!(world.table.row_count(), 250);
}

#[tokio::test]
async fn the_profile_travels_in_body_and_routing_header_with_what_the_client_implements() {
    let world = World::new().await;
    let mut host = world.host(|builder| builder.app_profile_id("my profile"));
    host.write_all(records(3)).await.expect("well");
    host.finish().await.expect("well");
    let requests = world.sim.bigtable().requests();
    assert!(
        requests
            .iter()
            .any(|request| request.method == Method::PingAndWarm),
        "warmed up"
    );
    for request in requests {
        assert_eq!(request.app_profile, "my profile");
        let resource = match request.method {
            Method::PingAndWarm => "name=projects%2Fp%2Finstances%2Fi",
            _ => "table_name=projects%2Fp%2Finstances%2Fi%2Ftables%2Ft",
        };
        assert_eq!(
            request.routing,
            Some(format!("{resource}&app_profile_id=my%20profile"))
        );
        if request.method == Method::MutateRows {
            // Fields 3, 5, 6 and 7 of FeatureFlags.
            assert_eq!(request.features.as_deref(), Some("GAEoATABOAE"));
            assert!(request.grpc_timeout.is_some());
            assert!(
                request
                    .user_agent
                    .as_ref()
                    .is_some_and(|agent| agent.starts_with("aqueduct/"))
            );
            let message = request
                .message::<MutateRowsRequest>()
                .expect("kept")
                .expect("a request");
            assert_eq!(message.app_profile_id, "my profile");
            assert_eq!(message.table_name, "projects/p/instances/i/tables/t");
        }
    }
}

#[tokio::test]
async fn a_batch_leaves_at_the_count_and_no_batch_exceeds_the_in_flight_bound() {
    let world = World::new().await;
    let mut host = world.host_with(WriterOptions::new().batch_element_count_threshold(10));
    host.write_all(records(35)).await.expect("well");
    host.flush(Flush::Checkpoint).await.expect("well");
    let mut sizes = world.request_sizes();
    sizes.sort_unstable();
    assert_eq!(sizes, [5, 10, 10, 10]);
    host.close().await.expect("well");

    let world = World::new().await;
    let mut host = world.host_with(WriterOptions::new().max_in_flight_entries(4));
    host.write_all(records(20)).await.expect("well");
    host.flush(Flush::Checkpoint).await.expect("well");
    assert!(world.request_sizes().iter().all(|entries| *entries <= 4));
    host.close().await.expect("well");
}

#[tokio::test]
async fn only_a_single_entry_makes_a_request_beyond_the_byte_threshold() {
    let world = World::new().await;
    let mut host =
        world.host_with(WriterOptions::new().batch_request_byte_threshold(ByteSize::kib(10)));
    let sizes = [1_000, 1_000, 9_000, 50_000, 1_000];
    let records = sizes
        .iter()
        .enumerate()
        .map(|(at, size)| Record::new(format!("k{at}")).value(vec![0; *size]));
    host.write_all(records).await.expect("well");
    host.flush(Flush::Checkpoint).await.expect("well");
    let mut arrived: Vec<_> = world
        .table
        .requests_of(Method::MutateRows)
        .iter()
        .map(|request| (request.entries, request.bytes / 1_000))
        .collect();
    arrived.sort_unstable();
    assert_eq!(arrived, [(1, 1), (1, 9), (1, 50), (2, 2)]);
    host.close().await.expect("well");
}

#[tokio::test]
async fn a_batch_leaves_one_second_after_its_first_entry() {
    let world = World::on_manual_clock().await;
    let mut host = world.host(|builder| builder);
    host.write_all(records(3)).await.expect("well");
    host.settle().await.expect("well");
    assert_eq!(world.table.row_count(), 0, "still filling");
    world.advance(Duration::from_millis(999));
    host.settle().await.expect("well");
    assert_eq!(world.table.row_count(), 0);
    world.advance(Duration::from_millis(1));
    host.settle().await.expect("well");
    assert_eq!(world.table.row_count(), 3);
    host.close().await.expect("well");
}

#[tokio::test]
async fn entries_of_sixty_thousand_mutations_travel_alone_and_one_too_many_never_does() {
    let world = World::new().await;
    let mut host = world.host(|builder| builder);
    let mut all = records(2);
    all.extend((0..3).map(|at| Record::new(format!("d{at}")).how(How::Deletes(60_000))));
    all.push(Record::new("over").how(How::Deletes(100_001)));
    all.push(Record::new("neighbour"));
    host.write_all(all).await.expect("well");
    host.flush(Flush::Checkpoint).await.expect("well");
    let mutations: Vec<usize> = world
        .table
        .requests_of(Method::MutateRows)
        .iter()
        .map(|request| {
            let message = request
                .message::<MutateRowsRequest>()
                .expect("kept")
                .expect("a request");
            message
                .entries
                .iter()
                .map(|entry| entry.mutations.len())
                .sum()
        })
        .collect();
    assert!(
        mutations.iter().all(|count| *count <= 100_000),
        "{mutations:?}"
    );
    assert_eq!(
        mutations.iter().filter(|count| **count >= 60_000).count(),
        3
    );
    assert_eq!(world.table.effects(b"neighbour"), 1);
    assert_eq!(world.table.effects(b"over"), 0);
    assert_eq!(world.handled.handled(), 1);
    assert_eq!(world.metric("numRecordsSendErrors"), 1);
    let calls = format!("{:?}", world.handled.calls());
    assert!(calls.contains("payload_bytes: None"), "no entry: {calls}");
    host.close().await.expect("well");
}

#[tokio::test]
async fn a_serializer_that_skips_everything_leaves_a_count_and_nothing_else() {
    let world = World::new().await;
    let mut host = world.host(|builder| builder);
    host.write_all(
        records(3_000)
            .into_iter()
            .map(|record| record.how(How::Skipped)),
    )
    .await
    .expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(world.metric("recordsSkipped"), 3_000);
    assert_eq!(
        world.metric("numRecordsSend") + world.metric("numRecordsSendErrors"),
        0
    );
    assert_eq!(world.metric("activeClients"), 0, "no table, no client");
    assert_eq!(world.sim.connections(), 0);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_record_the_serializer_refuses_is_reported_against_its_table_and_opens_nothing() {
    let world = World::new().await;
    let mut host = world.host(|builder| builder);
    host.write_all([Record::new("bad").how(How::Refused)])
        .await
        .expect("the handler drops it");
    host.checkpoint().await.expect("well");
    let calls = format!("{:?}", world.handled.calls());
    assert!(
        calls.contains("p.i.t") && calls.contains("payload_bytes: None"),
        "{calls}"
    );
    assert_eq!(world.sim.connections(), 0);
    host.finish().await.expect("well");

    let mut host = world
        .host(|builder| builder.failed_mutation_handler(aqueduct_connector::failure::fail_job));
    let error = host
        .write_all([Record::new("bad").how(How::Refused)])
        .await
        .expect_err("the default");
    assert!(error.report().contains("not a good record"), "{error:?}");
    let again = host.ready(0).await.expect_err("for good");
    assert_eq!(again.report(), error.report());
    host.close()
        .await
        .expect("a handled failure is not told again");
}

#[tokio::test]
async fn cells_without_a_timestamp_share_one_stamp_that_a_resend_keeps() {
    let world = World::new().await;
    world
        .table
        .nth(1, Method::MutateRows)
        .apply_then_status(Code::Unavailable);
    let mut host = world.host(|builder| builder);
    let before = world.kit.clock().wall();
    host.write_all([Record::new("k").how(How::Unstamped)])
        .await
        .expect("well");
    host.checkpoint().await.expect("well");
    let row = world.table.row(b"k").expect("written");
    assert_eq!(world.table.effects(b"k"), 2, "the resend took effect again");
    let stamps: Vec<_> = row.cells.iter().map(|cell| cell.timestamp_micros).collect();
    assert_eq!(stamps.len(), 2, "one version of each cell");
    assert_eq!(stamps[0], stamps[1]);
    assert_eq!(stamps[0] % 1_000, 0);
    let stamp = Timestamp::from_millis(stamps[0] / 1_000);
    assert!(before <= stamp && stamp <= world.kit.clock().wall());
    host.close().await.expect("well");
}

fn by_key(record: &Record, _: RecordInfo) -> Result<Option<TableDestination>, Error> {
    match record.key.as_bytes()[0] {
        b'a' => Ok(Some(destination("a"))),
        b'b' => Ok(Some(destination("b"))),
        b'e' => Err(Error::user("a broken resolver")),
        _ => Ok(None),
    }
}

#[tokio::test]
async fn a_resolver_names_the_table_of_each_record_and_a_table_given_up_resumes_its_counters() {
    let world = World::new().await;
    let tables = ["a", "b"].map(|name| world.sim.bigtable().create_table("p", "i", name, &["cf"]));
    let options = WriterOptions::new()
        .per_destination_metrics(true)
        .destination_idle_timeout(Duration::from_nanos(1));
    let mut host =
        world.host(|builder| builder.destination_resolver(by_key).writer_options(options));
    for round in 0..2 {
        host.write_all(["a1", "b1", "a2"].map(|key| Record::new(format!("{key}-{round}"))))
            .await
            .expect("well");
        host.checkpoint().await.expect("well");
        assert_eq!(world.metric("activeClients"), 0, "swept");
    }
    assert_eq!(tables.map(|table| table.row_count()), [4, 2]);
    assert_eq!(world.metric("destination.p.i.a.recordsSend"), 4);
    assert_eq!(world.metric("destination.p.i.b.recordsSend"), 2);
    assert_eq!(world.metric("idleEvictions"), 2);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_resolver_without_an_answer_fails_the_job_and_reaches_no_handler() {
    for key in ["none", "error"] {
        let world = World::new().await;
        let mut host = world.host(|builder| builder.destination_resolver(by_key));
        let error = host
            .write_all([Record::new(key)])
            .await
            .expect_err("no table");
        assert!(error.to_string().contains("resolver"), "{error:?}");
        assert!(host.flush(Flush::Checkpoint).await.is_err());
        assert_eq!(world.handled.handled(), 0);
        host.close().await.expect("well");
    }
}

#[test]
fn the_last_of_table_and_resolver_wins_and_one_is_needed() {
    let base = || {
        BigtableSink::<Record>::builder()
            .serializer(serialize)
            .emulator_endpoint("localhost:1")
    };
    assert!(
        base()
            .destination_resolver(by_key)
            .table(destination("t"))
            .build()
            .is_ok()
    );
    let error = base().build().expect_err("no table").to_string();
    assert!(error.contains("'table'"), "{error}");
    let error = BigtableSink::<Record>::builder()
        .table(destination("t"))
        .build()
        .expect_err("no serializer");
    assert!(error.to_string().contains("'serializer'"), "{error}");
}

#[test]
fn settings_that_cannot_go_together_are_refused_by_both_names() {
    use aqueduct_bigtable::{CreateDisposition, TableCreateOptions};
    let base = || {
        BigtableSink::<Record>::builder()
            .table(destination("t"))
            .serializer(serialize)
    };
    let schema = || TableCreateOptions::new().column_family("cf", None);
    for (builder, names) in [
        (
            base()
                .emulator_endpoint("h:1")
                .service_account_key_file("/key.json"),
            ["service-account-key-file", "emulator-endpoint"],
        ),
        (
            base().create_disposition(CreateDisposition::CreateIfNeeded),
            ["sink.create-disposition", "sink.table-create"],
        ),
        (
            base().table_create_options(schema()),
            ["sink.create-disposition", "sink.table-create"],
        ),
        (base().app_profile_id(" "), ["sink.app-profile-id", "blank"]),
        (base().emulator_endpoint("h"), ["emulator-endpoint", "port"]),
    ] {
        let error = builder.build().expect_err("refused").to_string();
        assert!(names.iter().all(|name| error.contains(name)), "{error}");
        assert!(!error.contains("/key.json"), "{error}");
    }
    let both = base()
        .create_disposition(CreateDisposition::CreateIfNeeded)
        .table_create_options(schema());
    assert!(both.build().is_ok());
}

#[tokio::test]
async fn every_bad_key_file_fails_the_start_with_the_same_words() {
    let folder = std::env::temp_dir().join(format!("aqueduct-keys-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let malformed = folder.join("malformed.json");
    std::fs::write(&malformed, "{\"private_key\": \"SECRET\"").expect("written");
    let texts: Vec<String> = {
        let mut texts = Vec::new();
        for path in [folder.join("missing.json"), malformed, folder.clone()] {
            let kit = aqueduct_testkit::TestContext::new("sink").with_limit(LIMIT);
            let sink: Arc<dyn Sink<Record>> = Arc::new(
                BigtableSink::builder()
                    .table(destination("t"))
                    .serializer(serialize)
                    .service_account_key_file(path)
                    .build()
                    .expect("only the start reads it"),
            );
            let mut host = SinkHost::start(sink, &kit, 1).expect("a writer");
            texts.push(host.ready(0).await.expect_err("unusable").report());
            host.close().await.expect("well");
        }
        texts
    };
    std::fs::remove_dir_all(&folder).expect("removed");
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    assert!(
        !texts[0].contains("SECRET") && !texts[0].contains("aqueduct-keys"),
        "{}",
        texts[0]
    );
}
