//! The simulated services of a test, and the options of tables on them.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use aqueduct_sim::{Sim, SimConfig, Subscription, Table, Topic};
use aqueduct_testkit::flink::{Cluster, JobId, Output, Session, require_jar};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;

pub(crate) const PROJECT: &str = "my-project";
const INSTANCE: &str = "my-instance";

/// Both services at one address.
pub(crate) struct Services {
    pub(crate) sim: Sim,
}

impl Services {
    pub(crate) fn new() -> Self {
        Self {
            sim: Sim::start_on_thread(SimConfig::default()).expect("a port"),
        }
    }

    /// The topic `name` with the subscription `name-sub`, which keeps to the order of publishing.
    pub(crate) fn subscribed(&self, name: &str) -> (Topic, Subscription) {
        let topic = self.topic(name);
        let subscription =
            self.sim
                .pubsub()
                .create_subscription(PROJECT, &format!("{name}-sub"), &topic);
        subscription.set_shuffle(None);
        (topic, subscription)
    }

    pub(crate) fn topic(&self, name: &str) -> Topic {
        self.sim.pubsub().create_topic(PROJECT, name)
    }

    /// A table with the family `f`, in tablets that begin at these keys.
    pub(crate) fn table(&self, name: &str, splits: &[&[u8]]) -> Table {
        self.sim
            .bigtable()
            .create_split_table(PROJECT, INSTANCE, name, &["f"], splits)
    }

    /// The options of a table that reads the subscription `name-sub`, and more.
    pub(crate) fn reads(&self, name: &str, more: &str) -> String {
        self.pubsub(&format!("'subscription' = '{name}-sub', {more}"))
    }

    /// The options of a table that writes to the topic `name`, and more.
    pub(crate) fn writes(&self, name: &str, more: &str) -> String {
        self.pubsub(&format!("'topic' = '{name}', {more}"))
    }

    /// The options of a table of Pub/Sub.
    pub(crate) fn pubsub(&self, more: &str) -> String {
        format!(
            "WITH ('connector' = 'pubsub', 'project' = '{PROJECT}', 'emulator-endpoint' = '{}', {more})",
            self.sim.endpoint()
        )
    }

    /// The options of a table of Bigtable.
    pub(crate) fn bigtable(&self, table: &str) -> String {
        self.bigtable_with(table, "")
    }

    /// The options of one with a primary key that a query is written to of which Flink does not know that each key occurs
    /// once; Flink 2.3 would ask for a conflict strategy.
    pub(crate) fn upserts(&self, table: &str) -> String {
        self.bigtable_with(table, ", 'sink.insert-only-input-mode' = 'insert-only'")
    }

    fn bigtable_with(&self, table: &str, more: &str) -> String {
        format!(
            "WITH ('connector' = 'bigtable', 'project' = '{PROJECT}', 'instance' = '{INSTANCE}', 'table' = '{table}',
               'emulator-endpoint' = '{}'{more})",
            self.sim.endpoint()
        )
    }
}

/// The payloads of a topic, in publish order.
pub(crate) fn texts(topic: &Topic) -> Vec<String> {
    topic.messages().iter().map(text).collect()
}

pub(crate) fn text(message: &PubsubMessage) -> String {
    String::from_utf8(message.data.to_vec()).expect("text")
}

/// Both jars, or nothing, reported as not run.
#[track_caller]
pub(crate) fn jars() -> Option<[PathBuf; 2]> {
    Some([require_jar("pubsub")?, require_jar("bigtable")?])
}

/// A session with both jars, for jobs that do not restart: a failure is for the test to see.
pub(crate) fn session<'a>(cluster: &'a Cluster, jars: &[PathBuf; 2]) -> Session<'a> {
    cluster
        .session()
        .jar(&jars[0])
        .jar(&jars[1])
        .set("table.local-time-zone", "UTC")
        .set("parallelism.default", "1")
        .set("execution.checkpointing.interval", "500ms")
        .set("restart-strategy.type", "none")
}

/// Waits for something that a job shall do; a job that is over before has its reason shown.
#[track_caller]
pub(crate) fn wait_while_running<T>(
    cluster: &Cluster,
    job: &JobId,
    what: &str,
    mut ask: impl FnMut() -> Option<T>,
) -> T {
    cluster.wait_for(what, || {
        ask().or_else(|| {
            if cluster.state(job).is_some_and(|state| state.is_final()) {
                cluster.fail(&format!(
                    "the job ended before {what}: {:?}",
                    cluster.failures(job)
                ));
            }
            None
        })
    })
}

/// Waits until a metric of the job has this value.
#[track_caller]
pub(crate) fn wait_for_metric(cluster: &Cluster, job: &JobId, name: &str, value: f64) {
    wait_while_running(cluster, job, &format!("{name} to be {value}"), || {
        (cluster.metric(job, name)? == value).then_some(())
    });
}

/// Waits until the job has failed, and gives its failures.
#[track_caller]
pub(crate) fn failure(cluster: &Cluster, job: &JobId) -> String {
    cluster.wait_for("the job to end", || {
        cluster.state(job)?.is_final().then_some(())
    });
    cluster.failures(job).join("\n")
}

/// Everything that the processes of the cluster have logged so far.
pub(crate) fn logged(cluster: &Cluster) -> String {
    let folder = cluster.folder().join("log");
    let mut all = String::new();
    for entry in fs::read_dir(folder).expect("the folder of logs") {
        let path = entry.expect("an entry").path();
        let bytes = fs::read(&path).expect("a log");
        // Writing into a string cannot fail.
        let _ = writeln!(
            all,
            "{}\n{}",
            path.display(),
            String::from_utf8_lossy(&bytes)
        );
    }
    all
}

/// Rows of a result as JSON, sorted.
pub(crate) fn rows(output: &Output) -> Vec<String> {
    let mut rows: Vec<String> = output
        .rows()
        .iter()
        .map(|row| serde_json::Value::from(row.fields.clone()).to_string())
        .collect();
    rows.sort();
    rows
}
