//! Jobs come and go on one cluster and leave nothing; a slow or silent service holds up neither barrier nor cancel; a class
//! path full of other people's versions does no harm.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use aqueduct_sim::{Gate, Method, Sim, SimConfig};
use aqueduct_testkit::flink::{Cluster, JobState, Session, Version, require_jar};

use crate::clusters::on;

const PROJECT: &str = "my-project";

/// How many jobs come and go; `AQUEDUCT_CYCLES` sets another number.
fn cycles() -> usize {
    const IN_SUITE: usize = 10;
    std::env::var("AQUEDUCT_CYCLES").map_or(IN_SUITE, |text| {
        text.parse().expect("AQUEDUCT_CYCLES is a number of cycles")
    })
}

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

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    threads: usize,
    descriptors: usize,
    libraries: usize,
    resident_kib: usize,
}

/// The processes of a cluster, by the class that runs.
fn process(cluster: &Cluster, main: &str) -> PathBuf {
    let folder = cluster.folder().display().to_string();
    fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            fs::read(path.join("cmdline")).is_ok_and(|line| {
                let line = String::from_utf8_lossy(&line);
                line.contains(main) && line.contains(&folder)
            })
        })
        .unwrap_or_else(|| cluster.fail(&format!("no process of {main}")))
}

/// After a collection of garbage, so that what nobody needs is gone.
fn held(process: &Path) -> Held {
    let pid = process
        .file_name()
        .expect("a process")
        .to_string_lossy()
        .into_owned();
    for _ in 0..2 {
        let collected = Command::new("jcmd")
            .args([&pid, "GC.run"])
            .output()
            .expect("jcmd, which is part of a JDK");
        assert!(collected.status.success(), "{collected:?}");
    }
    let count = |folder: &str| {
        fs::read_dir(process.join(folder))
            .expect("a folder")
            .count()
    };
    let maps = fs::read_to_string(process.join("maps")).expect("maps");
    // A library is deleted right after it was loaded, so its name is all that is left; its code is mapped once.
    let libraries = maps
        .lines()
        .filter(|line| line.contains("aqueduct") && line.contains("r-xp"))
        .count();
    let status = fs::read_to_string(process.join("status")).expect("a status");
    let resident_kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .expect("VmRSS");
    Held {
        threads: count("task"),
        descriptors: count("fd"),
        libraries,
        resident_kib,
    }
}

fn jobs_leave_nothing(cluster: &Cluster, session: &Session<'_>, libraries: usize) {
    let sim = world();
    let heard = sim.pubsub().topic(PROJECT, "heard");
    let said = sim.pubsub().topic(PROJECT, "said");
    let task_manager = process(cluster, "TaskManagerRunner");
    let job_manager = process(cluster, "StandaloneSessionClusterEntrypoint");
    let (mut early, mut savepoint) = (None, None::<String>);
    let cycles = cycles();
    for cycle in 0..cycles {
        let restore = savepoint
            .take()
            .map(|savepoint| cluster.restore_from(&savepoint))
            .unwrap_or_default();
        let output = session.run(&format!("{restore}{}", echo(&sim)));
        let job = output.job();
        heard.publish(format!("{cycle}"));
        cluster.wait_for("the echo", || {
            (said.published() > cycle as u64).then_some(())
        });
        if cycle % 2 == 0 {
            savepoint = Some(cluster.stop_with_savepoint(job));
        } else {
            cluster.cancel(job);
        }
        if cycle == cycles / 3 {
            early = Some((held(&task_manager), held(&job_manager)));
        }
    }
    let early = early.expect("at least one cycle");
    let late = cluster.wait_for("everything to be given back", || {
        let late = (held(&task_manager), held(&job_manager));
        let fits = |early: Held, late: Held| {
            late.libraries <= libraries
                && late.threads <= early.threads + 8
                && late.descriptors <= early.descriptors + 16
        };
        (fits(early.0, late.0) && fits(early.1, late.1)).then_some(late)
    });
    eprintln!("{cycles} cycles, from {early:?} to {late:?}");
    for (early, late) in [(early.0, late.0), (early.1, late.1)] {
        // The heap's own ups and downs are far larger than a job of ours, and far smaller than a leak of fifty.
        assert!(
            late.resident_kib < early.resident_kib + (150 << 10),
            "from {early:?} to {late:?}"
        );
    }
}

#[test]
fn fifty_jobs_with_their_own_jar_leave_nothing() {
    let Some(jar) = require_jar("pubsub") else {
        return; // reported as not run
    };
    let Some(cluster) = Cluster::builder(Version::Flink2_3).start() else {
        return; // reported as not run
    };
    let session = quick(&cluster).jar(jar);
    jobs_leave_nothing(&cluster, &session, 0);
}

#[test]
fn fifty_jobs_with_the_jar_of_the_cluster_leave_nothing() {
    let Some(jar) = require_jar("pubsub") else {
        return; // reported as not run
    };
    let Some(other) = require_jar("bigtable") else {
        return; // reported as not run
    };
    let builder = Cluster::builder(Version::Flink2_3)
        .lib_jar(jar)
        .lib_jar(other);
    let Some(cluster) = builder.start() else {
        return; // reported as not run
    };
    let session = quick(&cluster);
    jobs_leave_nothing(&cluster, &session, 1);
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
           'connector' = 'datagen', 'rows-per-second' = '100000000',
           'fields.n.kind' = 'sequence', 'fields.n.start' = '1', 'fields.n.end' = '1000000000000');
         CREATE TABLE said (line STRING) WITH ('connector' = 'pubsub', 'project' = '{PROJECT}', 'topic' = 'said',
           'emulator-endpoint' = '{}', 'format' = 'raw', 'sink.in-flight.max-messages' = '20',
           'sink.batching.element-count-threshold' = '5');
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
        .delay(Duration::from_millis(100));
    let output = quick(cluster).jar(jar).run(&flood(&sim));
    let job = output.job();
    cluster.wait_for_checkpoints(job, 5);
    let checkpoints = cluster.checkpoints(job);
    assert_eq!(checkpoints.failed, 0, "{checkpoints:?}");
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
