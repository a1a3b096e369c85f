//! Auto-creation: what is created, what is left alone, what ends a repair.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_bigtable::{
    BigtableSinkBuilder, CreateDisposition, GcRule, TableCreateOptions, TableDestination,
    WriterOptions,
};
use aqueduct_connector::Error;
use aqueduct_connector::sink::{Flush, RecordInfo, Sink};
use aqueduct_sim::{Code, Method, SchemaLag, SimConfig};
use aqueduct_testkit::{SinkHost, log};

use super::sink_world::{Record, World, destination, records};

fn schema() -> TableCreateOptions {
    TableCreateOptions::new()
        .column_family(
            "cf",
            GcRule::union([
                GcRule::max_versions(NonZeroU32::MIN),
                GcRule::max_age(Duration::from_secs(86_400)),
            ]),
        )
        .column_family("extra", None)
}

fn creating(builder: BigtableSinkBuilder<Record>) -> BigtableSinkBuilder<Record> {
    builder
        .create_disposition(CreateDisposition::CreateIfNeeded)
        .table_create_options(schema())
        .writer_options(WriterOptions::new().recovery_initial_backoff(Duration::from_millis(2)))
}

#[tokio::test]
async fn a_missing_table_is_created_and_every_record_applied() {
    let world = World::new().await;
    world.table.delete();
    let mut host = world.host(creating);
    host.write_all(records(250)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(world.table.row_count(), 250);
    assert!(world.table.has_family("extra"));
    assert_eq!(world.metric("tablesCreated"), 1);
    assert_eq!(world.metric("columnFamiliesAdded"), 0);
    assert_eq!(world.metric("numRecordsSend"), 250);
    assert!(world.metric("errorClass.NOT_FOUND.errors") > 0);
    assert_eq!(world.metric("parkedEntries"), 0);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_table_that_vanished_after_it_was_written_to_is_warned_about_when_it_is_created_again() {
    const LOST: &str = "was gone and was created again";
    let logs = log::capture();
    let world = World::new().await;
    world.table.delete();
    let mut host = world.host(creating);
    host.write_all(records(3)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(
        logs.matching(tracing::Level::WARN, LOST).len(),
        0,
        "nothing was in the first one"
    );
    world.table.delete();
    host.write_all([Record::new("later")]).await.expect("well");
    host.checkpoint().await.expect("well");
    let line = logs.one_warning(LOST);
    assert_eq!(line.field("table"), Some("p.i.t"));
    assert_eq!(world.table.row_count(), 1);
    assert_eq!(world.metric("tablesCreated"), 2);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn no_admin_request_is_made_while_nothing_is_missing() {
    let world = World::new().await;
    let mut host = world.host(creating);
    host.write_all(records(10)).await.expect("well");
    host.finish().await.expect("well");
    let admin = [
        Method::CreateTable,
        Method::GetTable,
        Method::ModifyColumnFamilies,
    ];
    assert!(
        admin
            .iter()
            .all(|method| world.sim.bigtable().request_count(*method) == 0)
    );
}

#[tokio::test]
async fn a_missing_family_is_added_and_an_existing_one_is_left_alone() {
    let world = World::new().await;
    let before = world.table.requests().len();
    let mut host = world.host(creating);
    host.write_all([Record::new("a").family("extra"), Record::new("b")])
        .await
        .expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(world.table.row_count(), 2);
    assert_eq!(world.metric("columnFamiliesAdded"), 1);
    assert_eq!(world.metric("tablesCreated"), 0);
    let modified = world.table.requests_of(Method::ModifyColumnFamilies);
    assert_eq!(modified.len(), 1, "in one request, after {before}");
    use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2;
    let message = modified[0]
        .message::<v2::ModifyColumnFamiliesRequest>()
        .expect("kept")
        .expect("a request");
    let ids: Vec<_> = message
        .modifications
        .iter()
        .map(|change| change.id.as_str())
        .collect();
    assert_eq!(
        ids,
        ["extra"],
        "the rule of the existing family is not touched"
    );
    host.finish().await.expect("well");
}

#[tokio::test]
async fn without_permission_to_create_a_missing_table_fails_the_job_and_names_the_option() {
    let world = World::new().await;
    world.table.delete();
    let mut host = world.host(|builder| builder);
    host.write_all(records(3)).await.expect("admitted");
    let error = host.flush(Flush::Checkpoint).await.expect_err("missing");
    let report = error.report();
    assert!(
        report.contains("sink.create-disposition") && report.contains("p.i.t"),
        "{report}"
    );
    assert_eq!(world.handled.handled(), 0, "a condition reaches no handler");
    host.close().await.expect("well");
}

#[tokio::test]
async fn a_family_that_nobody_declared_fails_after_one_ensure() {
    let world = World::new().await;
    let mut host = world.host(creating);
    host.write_all([Record::new("a").family("undeclared"), Record::new("b")])
        .await
        .expect("admitted");
    let error = host.flush(Flush::Checkpoint).await.expect_err("undeclared");
    assert!(
        error.to_string().contains("undeclared") && error.to_string().contains("p.i.t"),
        "{error:?}"
    );
    assert_eq!(world.sim.bigtable().request_count(Method::CreateTable), 1);
    assert_eq!(world.sim.bigtable().request_count(Method::GetTable), 1);
    host.close().await.expect("well");
}

#[tokio::test]
async fn metadata_that_arrives_late_is_waited_for() {
    let world = World::with(SimConfig {
        schema_lag: SchemaLag::Refusals(4),
        ..SimConfig::default()
    })
    .await;
    world.table.delete();
    let mut host = world.host(creating);
    host.write_all(records(20)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(world.table.row_count(), 20);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn racing_writers_all_succeed_and_one_creates() {
    let world = World::new().await;
    world.table.delete();
    let sink: Arc<dyn Sink<Record>> = Arc::new(creating(world.builder()).build().expect("valid"));
    let mut host = SinkHost::start(sink, &world.kit, 3).expect("writers");
    host.write_all(records(300)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(world.table.row_count(), 300);
    assert_eq!(world.metric("tablesCreated"), 1);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_family_that_another_adds_between_read_and_change_costs_a_second_look() {
    let world = World::new().await;
    let table = world.table.clone();
    world
        .table
        .nth(1, Method::ModifyColumnFamilies)
        .run(move || {
            table.add_family("extra");
        });
    let mut host = world.host(creating);
    host.write_all([Record::new("a").family("extra")])
        .await
        .expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(world.table.row_count(), 1);
    assert_eq!(world.metric("columnFamiliesAdded"), 0);
    assert_eq!(world.sim.bigtable().request_count(Method::GetTable), 2);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_failing_administration_spends_the_budget_and_the_error_is_its() {
    let world = World::new().await;
    world.table.delete();
    world
        .table
        .always(Method::CreateTable)
        .status(Code::PermissionDenied);
    let mut host = world.host(|builder| {
        creating(builder).writer_options(
            WriterOptions::new()
                .recovery_initial_backoff(Duration::from_millis(1))
                .recovery_max_backoff(Duration::from_millis(2))
                .recovery_max_attempts(4),
        )
    });
    host.write_all(records(3)).await.expect("admitted");
    let error = host.flush(Flush::Checkpoint).await.expect_err("exhausted");
    let report = error.report();
    for part in [
        "4 attempts",
        "PERMISSION_DENIED",
        "roles/bigtable.admin",
        "nothing was dropped",
    ] {
        assert!(report.contains(part), "{report}");
    }
    assert_eq!(world.sim.bigtable().request_count(Method::CreateTable), 4);
    assert_eq!(world.handled.handled(), 0);
    host.close().await.expect("well");
}

#[tokio::test]
async fn a_passing_failure_of_the_administration_costs_one_attempt() {
    let world = World::new().await;
    world.table.delete();
    world
        .table
        .nth(1, Method::CreateTable)
        .status(Code::Unavailable);
    world
        .table
        .nth(2, Method::CreateTable)
        .apply_then_status(Code::Unavailable);
    let mut host = world.host(creating);
    host.write_all(records(3)).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(world.table.row_count(), 3);
    assert_eq!(
        world.metric("tablesCreated"),
        0,
        "somebody else did, as far as we know"
    );
    host.finish().await.expect("well");
}

#[tokio::test]
async fn one_incident_repairs_several_tables_and_a_bad_record_is_still_isolated() {
    let world = World::new().await;
    let resolve = |record: &Record, _: RecordInfo| {
        let table = if record.key.starts_with('a') {
            "a"
        } else {
            "b"
        };
        Ok::<_, Error>(Some::<TableDestination>(destination(table)))
    };
    let mut host = world.host(|builder| creating(builder).destination_resolver(resolve));
    let records = ["a1", "b1", "a2", "b2"].map(Record::new);
    host.write_all(records).await.expect("well");
    host.write_all([Record::new("a-bad").unaligned()])
        .await
        .expect("well");
    host.checkpoint().await.expect("well");
    let count = |name| world.sim.bigtable().table("p", "i", name).row_count();
    assert_eq!((count("a"), count("b")), (2, 2));
    assert_eq!(world.metric("tablesCreated"), 2);
    assert_eq!(world.handled.handled(), 1);
    host.finish().await.expect("well");
}
