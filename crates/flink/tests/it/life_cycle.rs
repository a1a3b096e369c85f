//! A slow or silent service holds up neither barrier nor cancel; a class path full of other people's versions does no harm.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use aqueduct_sim::{Gate, Method, Sim, SimConfig};
use aqueduct_testkit::flink::{Cluster, JobState, Session, Version, require_jar};

use crate::clusters::on;

const PROJECT: &str = "my-project";

/// Source and sink of ours in one job.
fn echo(sim: &Sim) -> String {
    let with = |name: &str| {
        format!(
            "WITH ('connector' = 'pubsub', 'project' = '{PROJECT}', '{name}', 'emulator-endpoint' = '{}', 'format' = 'raw')",
            sim.endpoint()
        )
    };
    format!(
        "CREATE TABLE heard (line STRING) {};
         CREATE TABLE said (line STRING) {};
         INSERT INTO said SELECT line FROM heard;",
        with("subscription' = 'heard-sub"),
        with("topic' = 'said")
    )
}

fn world() -> Sim {
    let sim = Sim::start_on_thread(SimConfig::default()).expect("a port");
    let heard = sim.pubsub().create_topic(PROJECT, "heard");
    sim.pubsub()
        .create_subscription(PROJECT, "heard-sub", &heard);
    sim.pubsub().create_topic(PROJECT, "said");
    sim
}

fn quick(cluster: &Cluster) -> Session<'_> {
    cluster
        .session()
        .set("parallelism.default", "1")
        .set("execution.checkpointing.interval", "300ms")
}

/// A job that writes as fast as it can, with a bound that it is at all the time.
fn flood(sim: &Sim) -> String {
    format!(
        "CREATE TABLE numbers (n BIGINT) WITH (
           'connector' = 'datagen', 'rows-per-second' = '1000000');
         CREATE TABLE said (line STRING) WITH ('connector' = 'pubsub', 'project' = '{PROJECT}', 'topic' = 'said',
           'emulator-endpoint' = '{}', 'format' = 'raw', 'sink.in-flight.max-messages' = '200',
           'sink.batching.element-count-threshold' = '50');
         INSERT INTO said SELECT CAST(n AS STRING) FROM numbers;",
        sim.endpoint()
    )
}

fn checkpoints_pass_at_the_bound(cluster: &Cluster) {
    let Some(jar) = require_jar("pubsub") else {
        return; // reported as not run
    };
    let sim = world();
    let said = sim.pubsub().topic(PROJECT, "said");
    let slow = said
        .always(Method::Publish)
        .delay(Duration::from_millis(50));
    let output = quick(cluster).jar(jar).run(&flood(&sim));
    let job = output.job();
    // One that was triggered before every task ran has failed for that.
    cluster.wait_for_tasks(job);
    cluster.wait_for_checkpoints(job, 1);
    let before = cluster.checkpoints(job);
    cluster.wait_for_checkpoints(job, 5);
    assert_eq!(cluster.checkpoints(job).failed, before.failed);
    assert!(slow.fired() > 20, "the service was slow");
    cluster.cancel(job);
}

fn cancel_does_not_wait_for_a_silent_service(cluster: &Cluster) {
    let Some(jar) = require_jar("pubsub") else {
        return; // reported as not run
    };
    let sim = world();
    let said = sim.pubsub().topic(PROJECT, "said");
    let gate = Gate::new();
    let _silence = said.always(Method::Publish).hold(&gate);
    // Once at its bound while it writes, once in the flush of a barrier.
    for interval in ["1h", "300ms"] {
        let output = quick(cluster)
            .jar(&jar)
            .set("execution.checkpointing.interval", interval)
            .run(&flood(&sim));
        let job = output.job();
        cluster.wait_for("a request that is held", || (gate.held() > 0).then_some(()));
        if interval == "300ms" {
            cluster.wait_for("a checkpoint under way", || {
                let listed = cluster.rest(&format!("/jobs/{job}/checkpoints"));
                (listed["counts"]["in_progress"].as_u64()? > 0).then_some(())
            });
        }
        let begun = Instant::now();
        cluster.cancel(job);
        assert_eq!(cluster.state(job), Some(JobState::Canceled));
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(30), "{took:?}");
    }
    gate.open();
}

/// Versions of years ago, whose classes have the names of today's and other members.
const HOSTILE: [&str; 4] = [
    "com.google.guava:guava:11.0.2",
    "com.google.protobuf:protobuf-java:2.5.0",
    "io.grpc:grpc-core:1.0.0",
    "io.netty:netty-all:4.0.23.Final",
];

fn fetch_hostile(into: &Path) -> Vec<PathBuf> {
    fs::create_dir_all(into).expect("a folder");
    HOSTILE
        .iter()
        .map(|artifact| {
            let mut parts = artifact.split(':').skip(1);
            let name = format!(
                "{}-{}.jar",
                parts.next().expect("a name"),
                parts.next().expect("a version")
            );
            let fetched = Command::new("mvn")
                .args(["-q", "-B", "dependency:copy"])
                .arg(format!("-Dartifact={artifact}"))
                .arg(format!("-DoutputDirectory={}", into.display()))
                .output()
                .expect("Maven");
            assert!(
                fetched.status.success(),
                "{artifact}: {}",
                String::from_utf8_lossy(&fetched.stdout)
            );
            into.join(name)
        })
        .collect()
}

#[test]
fn other_versions_on_the_class_path_do_no_harm() {
    let Some(jar) = require_jar("pubsub") else {
        return; // reported as not run
    };
    let folder = jar.parent().expect("a folder").join("hostile");
    let mut builder = Cluster::builder(Version::Flink2_3);
    for hostile in fetch_hostile(&folder) {
        builder = builder.lib_jar(hostile);
    }
    let Some(cluster) = builder.lib_jar(jar).start() else {
        return; // reported as not run
    };
    let sim = world();
    sim.pubsub().topic(PROJECT, "heard").publish("hello");
    let output = quick(&cluster).run(&echo(&sim));
    let said = sim.pubsub().topic(PROJECT, "said");
    cluster.wait_for("the echo", || (said.published() == 1).then_some(()));
    cluster.cancel(output.job());
}

mod flink_2_3 {
    use super::*;

    #[test]
    fn checkpoints_pass_at_the_bound() {
        on(Version::Flink2_3, super::checkpoints_pass_at_the_bound);
    }

    #[test]
    fn cancel_does_not_wait_for_a_silent_service() {
        on(
            Version::Flink2_3,
            super::cancel_does_not_wait_for_a_silent_service,
        );
    }
}
