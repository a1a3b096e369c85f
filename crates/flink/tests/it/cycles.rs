//! Jobs that come and go, each restored from the one before: nothing of them stays in any process of the cluster.
//!
//! Metaspace and heap are small, so classes or rows that stay would also end a process.

use std::env;
use std::time::Duration;

use aqueduct_sim::{Sim, SimConfig};
use aqueduct_testkit::flink::{Builder, Cluster, Footprint, Member, Session, Version, require_jar};

use crate::clusters::alone;

const PROJECT: &str = "my-project";

/// Sets how many cycles the tests run.
const CYCLES: &str = "AQUEDUCT_TEST_CYCLES";

/// So many cycles fill pools and caches; what is there afterwards is the measure of all that follows.
const WARM: u32 = 10;

/// What may differ between two moments at which nothing runs: threads of the JVM's and Flink's pools come and go.
const MORE_THREADS: u64 = 8;
const MORE_DESCRIPTORS: u64 = 8;
/// Of the gateway: about three copies a session, for each of the sessions since a collection before the last. Elsewhere there
/// are none.
const MORE_LIBRARIES: u64 = 32;
const KIB_OF_A_COPY: u64 = 10 * 1_024;
/// A job's classes take about half a MiB, so 40 jobs that stay take much more.
const MORE_METASPACE_KIB: u64 = 6 * 1_024;
/// The heap itself still grows within its bound.
const MORE_RESIDENT_KIB: u64 = 96 * 1_024;

/// Where the jars are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In Flink's `lib/`: one class loader for all jobs.
    Lib,
    /// Of the job: a class loader, and with it a library, for each job and each session.
    Job,
}

/// Every kind of object of ours: source, enumerator, lookup, and the sinks of both services.
fn script(sim: &Sim) -> String {
    let with = |connector: &str, more: &str| {
        format!(
            "WITH ('connector' = '{connector}', 'project' = '{PROJECT}', 'emulator-endpoint' = '{}', {more})",
            sim.endpoint()
        )
    };
    let rows = with("bigtable", "'instance' = 'i', 'table' = 'rows'");
    format!(
        "CREATE TABLE heard (line STRING, moment AS PROCTIME()) {};
         CREATE TABLE said (line STRING) {};
         CREATE TABLE known (id STRING, f ROW<text STRING>) {rows};
         CREATE TABLE written (id STRING, f ROW<text STRING>) {rows};
         BEGIN STATEMENT SET;
         INSERT INTO said
           SELECT heard.line || COALESCE(known.f.text, '')
           FROM heard LEFT JOIN known FOR SYSTEM_TIME AS OF heard.moment ON heard.line = known.id;
         INSERT INTO written SELECT line, ROW(line) FROM heard;
         END;",
        with("pubsub", "'subscription' = 'heard-sub', 'format' = 'raw'"),
        with("pubsub", "'topic' = 'said', 'format' = 'raw'"),
    )
}

struct World {
    sim: Sim,
}

impl World {
    fn new() -> Self {
        let sim = Sim::start_on_thread(SimConfig::default()).expect("a port");
        let pubsub = sim.pubsub();
        let heard = pubsub.create_topic(PROJECT, "heard");
        pubsub.create_subscription(PROJECT, "heard-sub", &heard);
        pubsub.create_topic(PROJECT, "said");
        sim.bigtable()
            .create_split_table(PROJECT, "i", "rows", &["f"], &[]);
        Self { sim }
    }

    /// One job from its submission to its end. Every other one is cancelled, so the next is restored from the savepoint that it
    /// took before.
    fn cycle(
        &self,
        cluster: &Cluster,
        session: &Session<'_>,
        number: u32,
        from: &mut Option<String>,
    ) {
        let restore = from
            .as_deref()
            .map(|savepoint| cluster.restore_from(savepoint));
        let output = session.run(&format!(
            "{}{}",
            restore.unwrap_or_default(),
            script(&self.sim)
        ));
        let job = output.job();
        let said = self.sim.pubsub().topic(PROJECT, "said");
        let before = said.published();
        self.sim
            .pubsub()
            .topic(PROJECT, "heard")
            .publish(format!("line {number}"));
        cluster.wait_for("the row of this cycle", || {
            (said.published() > before).then_some(())
        });
        if from.is_some() {
            assert_eq!(cluster.checkpoints(job).restored, 1);
        }
        *from = Some(if number.is_multiple_of(2) {
            let savepoint = cluster.savepoint(job);
            cluster.cancel(job);
            savepoint
        } else {
            cluster.stop_with_savepoint(job)
        });
    }
}

fn members(cluster: &Cluster) -> Vec<Member> {
    let managers = cluster.task_managers().into_iter().map(Member::TaskManager);
    managers
        .chain([Member::JobManager, Member::Gateway])
        .collect()
}

/// Measures until nothing of ours is left: a task lets go of its library a moment after its job is over.
///
/// The gateway is measured as it is. The serialization of its Java remembers classes that were collected until it next looks for
/// a new one, so the last few sessions may still be there.
fn settled(cluster: &Cluster, member: Member, place: Place) -> Footprint {
    if member == Member::Gateway {
        return cluster.footprint(member);
    }
    let most = u64::from(place == Place::Lib);
    let mut last = Footprint::default();
    let found = cluster.poll(Duration::from_secs(120), || {
        last = cluster.footprint(member);
        (last.libraries <= most && last.our_threads.is_empty()).then_some(())
    });
    if let Err(why) = found {
        cluster.fail(&format!(
            "{why}, waiting for the {member} to let go of jobs that are over: {last}, {:?}",
            last.our_threads
        ));
    }
    last
}

fn assert_flat(cluster: &Cluster, member: Member, before: &Footprint, after: &Footprint) {
    let more_libraries = if member == Member::Gateway {
        MORE_LIBRARIES
    } else {
        0
    };
    let bounds = [
        ("threads", before.threads, after.threads, MORE_THREADS),
        (
            "descriptors",
            before.descriptors.len() as u64,
            after.descriptors.len() as u64,
            MORE_DESCRIPTORS,
        ),
        (
            "libraries",
            before.libraries,
            after.libraries,
            more_libraries,
        ),
        (
            "KiB of metaspace",
            before.metaspace_kib,
            after.metaspace_kib,
            MORE_METASPACE_KIB,
        ),
        (
            "KiB of memory",
            before.resident_kib,
            after.resident_kib,
            MORE_RESIDENT_KIB + more_libraries * KIB_OF_A_COPY,
        ),
    ];
    let footprint = after;
    for (what, before, after, more) in bounds {
        if after > before + more {
            cluster.fail(&format!(
                "the {member} had {before} {what} and has {after}; open are {:#?}",
                footprint.descriptors
            ));
        }
    }
}

fn cycles(place: Place) -> u32 {
    let Ok(text) = env::var(CYCLES) else {
        return match place {
            Place::Lib => 20,
            Place::Job => 50,
        };
    };
    let cycles = text.parse().expect("AQUEDUCT_TEST_CYCLES is a number");
    assert!(cycles > WARM, "{CYCLES} must be above {WARM}");
    cycles
}

fn nothing_stays(builder: Builder, place: Place) {
    let (Some(pubsub), Some(bigtable)) = (require_jar("pubsub"), require_jar("bigtable")) else {
        return; // reported as not run
    };
    let builder = builder
        // What only soft references hold goes with every collection.
        .jvm("-XX:SoftRefLRUPolicyMSPerMB=0")
        .jvm("-XX:MaxMetaspaceSize=160m");
    let builder = match place {
        Place::Lib => builder.lib_jar(&pubsub).lib_jar(&bigtable),
        Place::Job => builder,
    };
    alone(builder, |cluster| {
        let world = World::new();
        let session = cluster
            .session()
            .set("parallelism.default", "1")
            .set("execution.checkpointing.interval", "500ms");
        let session = match place {
            Place::Lib => session,
            Place::Job => session.jar(&pubsub).jar(&bigtable),
        };
        let mut savepoint = None;
        let mut measured = Vec::new();
        let cycles = cycles(place);
        for number in 1..=cycles {
            world.cycle(cluster, &session, number, &mut savepoint);
            if number.is_multiple_of(WARM) || number == cycles {
                measured.push(measure(cluster, place, number));
            }
        }
        let (before, after) = (&measured[0], &measured[measured.len() - 1]);
        for ((member, before), (_, after)) in before.iter().zip(after) {
            assert_flat(cluster, *member, before, after);
        }
    });
}

#[expect(
    clippy::print_stdout,
    reason = "figures for whoever asks for them with --nocapture"
)]
fn measure(cluster: &Cluster, place: Place, cycles: u32) -> Vec<(Member, Footprint)> {
    let footprints = members(cluster).into_iter().map(|member| {
        let footprint = settled(cluster, member, place);
        println!("{place:?}, after {cycles} cycles, {member}: {footprint}");
        (member, footprint)
    });
    footprints.collect()
}

mod flink_2_3 {
    use super::*;

    #[test]
    fn nothing_stays_of_jobs_whose_jar_is_in_lib() {
        nothing_stays(Cluster::builder(Version::Flink2_3), Place::Lib);
    }

    #[test]
    fn nothing_stays_of_jobs_that_bring_their_jar() {
        nothing_stays(Cluster::builder(Version::Flink2_3), Place::Job);
    }
}
