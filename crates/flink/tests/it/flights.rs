//! Bigtable tables in SQL: written, read back, looked up, and kept up to date while aggregates change.

use std::collections::BTreeMap;

use aqueduct_sim::{Sim, SimConfig, Table};
use aqueduct_testkit::flink::{Cluster, JobState, Session, Version, require_jar};

use crate::clusters::on;

const PROJECT: &str = "my-project";
const INSTANCE: &str = "flights";

struct World {
    sim: Sim,
}

impl World {
    fn new() -> Self {
        Self {
            sim: Sim::start_on_thread(SimConfig::default()).expect("a port"),
        }
    }

    fn table(&self, name: &str) -> Table {
        self.sim
            .bigtable()
            .create_split_table(PROJECT, INSTANCE, name, &["f"], &[b"5"])
    }

    /// The options of a table.
    fn with(&self, table: &str) -> String {
        format!(
            "WITH ('connector' = 'bigtable', 'project' = '{PROJECT}', 'instance' = '{INSTANCE}', 'table' = '{table}',
               'emulator-endpoint' = '{}')",
            self.sim.endpoint()
        )
    }
}

fn session<'a>(cluster: &'a Cluster, jar: &std::path::Path) -> Session<'a> {
    cluster
        .session()
        .jar(jar)
        .set("table.local-time-zone", "UTC")
        .set("parallelism.default", "2")
        .set("execution.checkpointing.interval", "500ms")
        .set("restart-strategy.type", "fixed-delay")
        .set("restart-strategy.fixed-delay.attempts", "10")
        .set("restart-strategy.fixed-delay.delay", "100ms")
}

/// Rows of a result, sorted.
fn sorted(output: &aqueduct_testkit::flink::Output) -> Vec<String> {
    let mut rows: Vec<String> = output
        .rows()
        .iter()
        .map(|row| serde_json::Value::from(row.fields.clone()).to_string())
        .collect();
    rows.sort();
    rows
}

/// A table is written, scanned with projection, key filter and limit, and joined by lookup.
fn a_table_is_written_scanned_and_looked_up(cluster: &Cluster) {
    let Some(jar) = require_jar("bigtable") else {
        return; // reported as not run
    };
    let world = World::new();
    let stored = world.table("flights");
    let flights = format!(
        "CREATE TABLE flights (
           id STRING,
           f  ROW<carrier STRING, delay INT, distance DECIMAL(10, 1), departed TIMESTAMP(3), cancelled BOOLEAN>
         ) {};",
        world.with("flights")
    );
    let numbers = "CREATE TABLE numbers (n INT, t AS PROCTIME()) WITH (
         'connector' = 'datagen', 'number-of-rows' = '1000',
         'fields.n.kind' = 'sequence', 'fields.n.start' = '0', 'fields.n.end' = '999');";
    let insert = "INSERT INTO flights
         SELECT LPAD(CAST(n AS STRING), 3, '0'),
                ROW(CASE MOD(n, 3) WHEN 0 THEN 'AA' WHEN 1 THEN 'UA' ELSE CAST(NULL AS STRING) END,
                    n - 500, CAST(n AS DECIMAL(10, 1)) + 0.5,
                    TIMESTAMP '2013-01-01 05:15:00.123', MOD(n, 2) = 0)
         FROM numbers;";
    let session = session(cluster, &jar).set("table.dml-sync", "true");
    session.run(&format!("{flights}{numbers}{insert}"));
    assert_eq!(stored.row_count(), 1_000);

    let batch = session.clone().set("execution.runtime-mode", "batch");
    let output = batch.run(&format!(
        "{flights} SELECT COUNT(*), SUM(f.delay), MIN(f.distance), MAX(f.distance), COUNT(f.carrier), MIN(f.departed) FROM flights;"
    ));
    assert_eq!(
        sorted(&output),
        [r#"[1000,-500,0.5,999.5,667,"2013-01-01T05:15:00.123"]"#]
    );
    let output = batch.run(&format!(
        "{flights} SELECT id, f.carrier, f.cancelled FROM flights WHERE id >= '500' AND id < '503' AND f.delay > 0;"
    ));
    assert_eq!(
        sorted(&output),
        [r#"["501","AA",false]"#, r#"["502","UA",true]"#]
    );
    let output = batch.run(&format!(
        "{flights} SELECT id FROM flights WHERE id IN ('007', '999', 'no such');"
    ));
    assert_eq!(sorted(&output), [r#"["007"]"#, r#"["999"]"#]);
    let output = batch.run(&format!("{flights} SELECT id FROM flights LIMIT 7;"));
    assert_eq!(output.rows().len(), 7);

    for lookups in [
        "'lookup.async' = 'false'",
        "'lookup.async' = 'true'",
        "'lookup.cache' = 'PARTIAL', 'lookup.partial-cache.max-rows' = '100'",
        "'lookup.cache' = 'FULL', 'lookup.full-cache.periodic-reload.interval' = '10 min'",
    ] {
        let output = session.run(&format!(
            "{flights}{numbers}
             SELECT COUNT(*), SUM(f.f.delay) FROM numbers AS n
             JOIN flights /*+ OPTIONS({lookups}) */ FOR SYSTEM_TIME AS OF n.t AS f
             ON LPAD(CAST(n.n AS STRING), 3, '0') = f.id WHERE n.n < 300;"
        ));
        let last = output.rows().last().expect("an answer");
        // 300 rows with delays from -500 to -201.
        assert_eq!(
            last.fields,
            [serde_json::json!(300), serde_json::json!(-105_150)]
        );
    }
}

const CARRIERS: u64 = 7;
const DEPARTURES: u64 = 21_000;

/// A query that goes on updating one row a carrier.
fn totals(world: &World) -> String {
    format!(
        "CREATE TABLE departures (n BIGINT) WITH (
           'connector' = 'datagen', 'rows-per-second' = '3000',
           'fields.n.kind' = 'sequence', 'fields.n.start' = '1', 'fields.n.end' = '{DEPARTURES}');
         CREATE TABLE totals (carrier STRING, f ROW<departures BIGINT, last BIGINT>, PRIMARY KEY (carrier) NOT ENFORCED) {};
         INSERT INTO totals
         SELECT carrier, ROW(COUNT(*), MAX(n))
         FROM (SELECT n, 'carrier-' || CAST(MOD(n, {CARRIERS}) AS STRING) AS carrier FROM departures)
         GROUP BY carrier;",
        world.with("totals")
    )
}

/// The newest cell of each column, as numbers.
fn stored_totals(table: &Table) -> BTreeMap<String, (u64, u64)> {
    table
        .rows()
        .into_iter()
        .map(|row| {
            let newest = |qualifier: &[u8]| {
                row.cells
                    .iter()
                    .filter(|cell| cell.qualifier == qualifier)
                    .max_by_key(|cell| cell.timestamp_micros)
                    .and_then(|cell| cell.value.clone().try_into().ok())
                    .map_or(0, u64::from_be_bytes)
            };
            let key = String::from_utf8(row.key.clone()).expect("text");
            (key, (newest(b"departures"), newest(b"last")))
        })
        .collect()
}

fn right_totals() -> BTreeMap<String, (u64, u64)> {
    (0..CARRIERS)
        .map(|carrier| {
            let departures = (1..=DEPARTURES).filter(|n| n % CARRIERS == carrier);
            let (count, last) =
                departures.fold((0, 0), |(count, last), n| (count + 1, last.max(n)));
            (format!("carrier-{carrier}"), (count, last))
        })
        .collect()
}

fn sum(table: &Table) -> u64 {
    stored_totals(table).values().map(|(count, _)| count).sum()
}

/// While a TaskManager is killed.
fn totals_survive_a_killed_task_manager(cluster: &Cluster) {
    let Some(jar) = require_jar("bigtable") else {
        return; // reported as not run
    };
    let world = World::new();
    let stored = world.table("totals");
    let output = session(cluster, &jar).run(&totals(&world));
    let job = output.job();
    cluster.wait_for("some totals", || (sum(&stored) > 2_000).then_some(()));
    cluster.wait_for_checkpoints(job, 1);
    let victim = cluster.task_managers()[0];
    cluster.kill_task_manager(victim);
    cluster.start_task_manager();
    cluster.wait_for_state(job, JobState::Finished);
    assert_eq!(stored_totals(&stored), right_totals());
}

/// While the job is stopped and goes on at another parallelism.
fn totals_survive_another_parallelism(cluster: &Cluster) {
    let Some(jar) = require_jar("bigtable") else {
        return; // reported as not run
    };
    let world = World::new();
    let stored = world.table("totals");
    let mut session = session(cluster, &jar);
    let output = session.run(&totals(&world));
    let job = output.job().clone();
    let mut seen = 0;
    for parallelism in ["1", "3"] {
        cluster.wait_for("more totals", || {
            (sum(&stored) > seen + 1_000).then_some(())
        });
        let job = cluster
            .running_jobs()
            .first()
            .cloned()
            .unwrap_or(job.clone());
        let savepoint = cluster.stop_with_savepoint(&job);
        seen = sum(&stored);
        let restore = cluster.restore_from(&savepoint);
        session = session.set("parallelism.default", parallelism);
        session.run(&format!("{restore}{}", totals(&world)));
    }
    cluster.wait_for("the end", || {
        cluster.running_jobs().is_empty().then_some(())
    });
    assert_eq!(stored_totals(&stored), right_totals());
}

mod flink_2_3 {
    use super::*;

    #[test]
    fn a_table_is_written_scanned_and_looked_up() {
        on(
            Version::Flink2_3,
            super::a_table_is_written_scanned_and_looked_up,
        );
    }

    #[test]
    fn totals_survive_a_killed_task_manager() {
        on(
            Version::Flink2_3,
            super::totals_survive_a_killed_task_manager,
        );
    }

    #[test]
    fn totals_survive_another_parallelism() {
        on(Version::Flink2_3, super::totals_survive_another_parallelism);
    }
}

mod flink_1_20 {
    use super::*;

    #[test]
    fn a_table_is_written_scanned_and_looked_up() {
        on(
            Version::Flink1_20,
            super::a_table_is_written_scanned_and_looked_up,
        );
    }
}
