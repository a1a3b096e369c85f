//! The clusters themselves, without anything of ours in them: what the other tests stand on works in every version.

use aqueduct_testkit::flink::{Cluster, JobState, Version};

use crate::clusters::on;

const TABLES: &str = "
    SET 'execution.checkpointing.interval' = '200ms';
    CREATE TEMPORARY TABLE numbers (n BIGINT) WITH (
      'connector' = 'datagen', 'rows-per-second' = '1000' -- for ever; both
    );
    CREATE TEMPORARY TABLE nowhere (n BIGINT) WITH ('connector' = 'blackhole');
";
const INSERT: &str = "INSERT INTO nowhere SELECT n FROM numbers;";

/// Everything that a test may ask of a cluster.
fn a_job_lives_its_life(cluster: &Cluster) {
    let output = cluster.sql(&format!("{TABLES}{INSERT}"));
    let job = output.job();
    cluster.wait_for_state(job, JobState::Running);
    cluster.wait_for_checkpoints(job, 3);
    assert_eq!(cluster.running_jobs(), std::slice::from_ref(job));
    cluster.wait_for("rows", || {
        (cluster.metric(job, "numRecordsOut")? > 0.0).then_some(())
    });

    let kept = cluster.savepoint(job);
    cluster.wait_for_checkpoints(job, 1);
    let last = cluster.stop_with_savepoint(job);
    assert_ne!(kept, last);
    assert_eq!(cluster.checkpoints(job).restored, 0);
    assert_eq!(cluster.running_jobs(), []);

    for savepoint in [kept, last] {
        let restore = cluster.restore_from(&savepoint);
        let output = cluster.sql(&format!("{restore}{TABLES}{INSERT}"));
        let job = output.job();
        cluster.wait_for_checkpoints(job, 1);
        assert_eq!(cluster.checkpoints(job).restored, 1);
        cluster.cancel(job);
        assert_eq!(cluster.state(job), Some(JobState::Canceled));
    }
}

fn a_killed_task_manager_is_survived(cluster: &Cluster) {
    let output = cluster
        .session()
        .set("parallelism.default", "4")
        .run(&format!("{TABLES}{INSERT}"));
    let job = output.job();
    cluster.wait_for_checkpoints(job, 2);
    let victim = cluster.task_managers()[0];
    cluster.kill_task_manager(victim);
    let new = cluster.start_task_manager();
    assert_ne!(victim, new);
    cluster.wait_for("a restore", || {
        (cluster.checkpoints(job).restored > 0).then_some(())
    });
    cluster.wait_for_checkpoints(job, 2);
    assert!(!cluster.failures(job).is_empty());
    cluster.cancel(job);
}

fn answers_are_data_and_errors_are_told(cluster: &Cluster) {
    let output = cluster.sql("SELECT 'it''s; one', 1 + 1");
    assert_eq!(output.rows().len(), 1);
    assert_eq!(
        output.rows()[0].fields,
        ["it's; one".into(), serde_json::json!(2)]
    );

    let output = cluster
        .session()
        .set("table.dml-sync", "true")
        .run(&format!(
            "{TABLES}
         BEGIN STATEMENT SET;
         INSERT INTO nowhere SELECT n FROM numbers /*+ OPTIONS('number-of-rows' = '10') */;
         INSERT INTO nowhere SELECT n FROM numbers /*+ OPTIONS('number-of-rows' = '20') */;
         END;"
        ));
    assert_eq!(cluster.state(output.job()), Some(JobState::Finished));

    let error = cluster.session().try_run("SELECT 1; SELECT nope;");
    let error = error.expect_err("there is no such column");
    assert!(error.to_string().contains("statement 2"), "{error}");
    assert!(error.cause().contains("'nope' not found"), "{error}");
}

fn the_sql_client_runs_scripts(cluster: &Cluster) {
    let session = cluster.session().set("table.dml-sync", "true");
    let script = format!(
        "{TABLES}INSERT INTO nowhere SELECT n FROM numbers /*+ OPTIONS('number-of-rows' = '10') */;"
    );
    let printed = session
        .client(&script)
        .unwrap_or_else(|printed| cluster.fail(&printed));
    assert!(printed.contains("Complete execution"), "{printed}");
    let printed = session
        .client("SELECT nope")
        .expect_err("there is no such column");
    assert!(printed.contains("'nope' not found"), "{printed}");
}

mod flink_2_3 {
    use super::*;

    #[test]
    fn a_job_lives_its_life() {
        on(Version::Flink2_3, super::a_job_lives_its_life);
    }

    #[test]
    fn a_killed_task_manager_is_survived() {
        on(Version::Flink2_3, super::a_killed_task_manager_is_survived);
    }

    #[test]
    fn answers_are_data_and_errors_are_told() {
        on(
            Version::Flink2_3,
            super::answers_are_data_and_errors_are_told,
        );
    }

    #[test]
    fn the_sql_client_runs_scripts() {
        on(Version::Flink2_3, super::the_sql_client_runs_scripts);
    }
}

mod flink_2_2 {
    use super::*;

    #[test]
    fn a_job_lives_its_life() {
        on(Version::Flink2_2, super::a_job_lives_its_life);
    }
}

mod flink_1_20 {
    use super::*;

    #[test]
    fn a_job_lives_its_life() {
        on(Version::Flink1_20, super::a_job_lives_its_life);
    }

    #[test]
    fn answers_are_data_and_errors_are_told() {
        on(
            Version::Flink1_20,
            super::answers_are_data_and_errors_are_told,
        );
    }
}
