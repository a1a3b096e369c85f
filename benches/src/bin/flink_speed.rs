//! The Flink jars beside what else there is, in real clusters: what a row costs on its way through JNI, the Bigtable sink
//! and the Pub/Sub source beside Flink's own `blackhole` and beside connectors written on Google's official Java clients.
//!
//! `cargo run --release -p aqueduct-benches --bin flink_speed`
//!
//! Needs Java, Maven and the distributions (`cargo xtask flink`). It builds the jars for release first, then the Java side
//! of the comparison in `benches/flink`. Every side runs the same statement in a TaskManager of its own, whose processor
//! time, threads of the JVM and of the library included, is what counts; the simulated service runs in this process.
//! Figures are medians over windows of a running job, warm-up excluded.

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_benches::{Run, median, peak_resident_of, processor_time_of, raw};
use aqueduct_sim::{FirehoseConfig, Sim, SimConfig, Subscription, Table};
use aqueduct_testkit::flink::{Cluster, JobId, Version, require_jar};
use clap::{Parser, ValueEnum};

/// Measures the Flink jars beside a sink that does nothing and beside Google's Java clients.
#[derive(Parser)]
struct Args {
    /// Measures this part only.
    #[arg(long)]
    only: Option<Part>,
    /// Takes the jars as they are, instead of building them for release.
    #[arg(long)]
    as_built: bool,
    /// TaskManagers that each side gets, one after the other.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Windows that are measured in each.
    #[arg(long, default_value_t = 4)]
    windows: usize,
    /// Seconds of a window.
    #[arg(long, default_value_t = 5)]
    window: u64,
    /// Seconds before the first window.
    #[arg(long, default_value_t = 15)]
    warm_up: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A row's way into the library, in a loop without a cluster.
    Crossing,
    /// From `datagen` into a table.
    Bigtable,
    /// From a subscription into `blackhole`.
    Pubsub,
}

/// The version of Flink that everything is measured on.
const FLINK: Version = Version::Flink2_3;

/// Bytes of a value or a payload.
const SIZES: [usize; 2] = [100, 1_024];

/// Messages that may be out unacknowledged: enough for several checkpoints of every side.
const OUTSTANDING: u64 = 50_000;

/// What a row may cost over a sink that does nothing, in nanoseconds, by its bytes.
const CROSSING_LIMITS: [(u64, f64); 2] = [(100, 60.0), (1_024, 150.0)];

fn main() {
    let args = Args::parse();
    let Some(jars) = Jars::make(args.as_built) else {
        return; // said why
    };
    let wanted = |part| args.only.is_none_or(|only| only == part);
    if wanted(Part::Crossing) {
        crossing(&jars);
    }
    if wanted(Part::Bigtable) {
        bigtable(&jars, &args);
    }
    if wanted(Part::Pubsub) {
        pubsub(&jars, &args);
    }
}

/// Where the jars are.
struct Jars {
    bigtable: PathBuf,
    pubsub: PathBuf,
    /// Of the modules of `benches/flink`.
    benches: PathBuf,
}

impl Jars {
    fn make(as_built: bool) -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        if !as_built {
            let mut build = Command::new("cargo");
            build.current_dir(&root).args(["xtask", "jar", "--release"]);
            finish("cargo xtask jar --release", build.stdout(Stdio::null()));
        }
        let (bigtable, pubsub) = (require_jar("bigtable")?, require_jar("pubsub")?);
        let benches = bigtable.with_file_name("bench");
        let mut maven = Command::new("mvn");
        maven
            .current_dir(root.join("benches/flink"))
            .args(["-q", "-B", "-Dstyle.color=never", "package"])
            .arg(format!("-Dbench.build={}", benches.display()))
            .arg(format!("-Dbench.jar={}", bigtable.display()));
        finish("mvn package in benches/flink", &mut maven);
        Some(Self {
            bigtable,
            pubsub,
            benches,
        })
    }

    /// The jar of a module and everything that it needs.
    fn module(&self, name: &str) -> Vec<PathBuf> {
        let folder = self.benches.join(name);
        let mut jars = vec![folder.join(format!("{name}-1.jar"))];
        let libraries = fs::read_dir(folder.join("lib"));
        for library in libraries.into_iter().flatten() {
            jars.push(library.expect("a folder that Maven has just made").path());
        }
        jars
    }
}

/// Runs a command that must succeed.
fn finish(what: &str, command: &mut Command) {
    let status = command.stdin(Stdio::null()).status();
    let ended = status.is_ok_and(|status| status.success());
    assert!(ended, "{what} failed");
}

/// A program of the Java that runs the clusters.
fn java(program: &str) -> Command {
    Command::new(match env::var_os("JAVA_HOME") {
        Some(home) if !home.is_empty() => Path::new(&home).join("bin").join(program),
        _ => program.into(),
    })
}

fn crossing(jars: &Jars) {
    let distribution = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/tools")
        .join(format!("flink-{FLINK}/lib/*"));
    let class_path: Vec<String> = jars
        .module("crossing")
        .iter()
        .chain([&jars.bigtable, &distribution])
        .map(|part| part.display().to_string())
        .collect();
    let output = java("java")
        .args(["-Xmx256m", "-XX:+UseSerialGC", "-cp", &class_path.join(":")])
        .args(["io.aqueduct.flink.Crossing", "7", "20"])
        .stderr(Stdio::inherit())
        .output()
        .expect("Java starts");
    assert!(output.status.success(), "the crossing failed");
    println!(
        "A row's way into the library, nanoseconds of processor time over a writer that does nothing"
    );
    println!(
        "  {:>6} {:>10} {:>14} {:>8} {:>22}",
        "bytes", "nothing", "binary row", "at most", "row of objects"
    );
    let text = String::from_utf8_lossy(&output.stdout);
    for (line, (_, limit)) in text.lines().zip(CROSSING_LIMITS) {
        let mut fields = line.split(' ');
        let mut next = || fields.next().unwrap_or("?");
        let (bytes, nothing, binary, generic) = (next(), next(), next(), next());
        println!("  {bytes:>6} {nothing:>10} {binary:>14} {limit:>8.0} {generic:>22}");
    }
}

/// What one side showed.
struct Figures {
    name: &'static str,
    runs: Vec<Run>,
    /// Bytes that live objects of Java take, right after a window.
    heap: Vec<f64>,
    /// Peak resident memory of the process.
    resident: Vec<f64>,
}

impl Figures {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            runs: Vec::new(),
            heap: Vec::new(),
            resident: Vec::new(),
        }
    }

    fn per_core_second(&self) -> f64 {
        median(self.runs.iter().map(Run::per_core_second).collect())
    }

    fn nanos(&self) -> f64 {
        1e9 / self.per_core_second()
    }
}

/// Runs `insert` in a fresh TaskManager and measures it in windows. `count` tells the rows so far.
fn measure_job(
    cluster: &Cluster,
    args: &Args,
    figures: &mut Figures,
    script: &str,
    mut count: impl FnMut(&JobId) -> u64,
) {
    for number in cluster.task_managers() {
        cluster.kill_task_manager(number);
    }
    cluster.complete();
    let output = cluster.sql(script);
    let job = output.job();
    cluster.wait_for_tasks(job);
    let process = task_manager(cluster);
    thread::sleep(Duration::from_secs(args.warm_up));
    // The first attempt may have come before the new TaskManager offered its slots.
    let failures = cluster.failures(job).len();
    for _ in 0..args.windows {
        let (begun, before, processor) = (Instant::now(), count(job), processor_time_of(&process));
        thread::sleep(Duration::from_secs(args.window));
        let (after, used) = (count(job), processor_time_of(&process));
        figures.runs.push(Run {
            records: after - before,
            wall: begun.elapsed(),
            processor: used.saturating_sub(processor),
        });
    }
    figures.resident.push(peak_resident_of(&process) as f64);
    figures.heap.push(live_heap(&process));
    assert_eq!(cluster.failures(job).len(), failures, "the job failed");
    cluster.cancel(job);
}

/// The process of the only TaskManager.
fn task_manager(cluster: &Cluster) -> String {
    let folder = cluster.folder().display().to_string();
    let processes = fs::read_dir("/proc").expect("Linux shows its processes");
    for process in processes.flatten() {
        let number = process.file_name().to_string_lossy().into_owned();
        let is_java =
            fs::read_to_string(process.path().join("comm")).is_ok_and(|it| it == "java\n");
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        if is_java && line.contains(&folder) && line.contains("TaskManagerRunner") {
            return number;
        }
    }
    cluster.fail("no process of a TaskManager found")
}

/// What a full collection leaves, from the sum of `jcmd`'s table of classes.
fn live_heap(process: &str) -> f64 {
    let output = java("jcmd")
        .args([process, "GC.class_histogram"])
        .output()
        .expect("jcmd starts: it is part of the JDK");
    let text = String::from_utf8_lossy(&output.stdout);
    let total = text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("Total"));
    let bytes = total.and_then(|total| total.split_whitespace().nth(1)?.parse().ok());
    bytes.expect("the last line of the table is the sum")
}

/// Prints a line a side; ratios are to the last, processor time to the first if that one is the base.
fn print(sides: &[Figures], base: Option<usize>) {
    let official = sides.last().expect("there are sides").per_core_second();
    println!(
        "  {:<18} {:>12} {:>10} {:>9} {:>10} {:>12} {:>10} {:>10}",
        "", "per core-s", "per s", "ns a row", "over base", "of official", "heap MiB", "peak MiB"
    );
    for side in sides {
        let mib = |bytes: &[f64]| median(bytes.to_vec()) / f64::from(1 << 20);
        let over = base.map_or("-".to_owned(), |base| {
            format!("{:.0}", side.nanos() - sides[base].nanos())
        });
        println!(
            "  {:<18} {:>12.0} {:>10.0} {:>9.0} {over:>10} {:>12.2} {:>10.0} {:>10.0}",
            side.name,
            side.per_core_second(),
            median(side.runs.iter().map(Run::per_second).collect()),
            side.nanos(),
            side.per_core_second() / official,
            mib(&side.heap),
            mib(&side.resident),
        );
    }
}

fn cluster(ours: &Path, theirs: Vec<PathBuf>, checkpoints: &str) -> Option<Cluster> {
    theirs
        .into_iter()
        .fold(Cluster::builder(FLINK).lib_jar(ours), |builder, jar| {
            builder.lib_jar(jar)
        })
        .slots(1)
        .conf("pipeline.object-reuse", "true")
        .conf("execution.checkpointing.interval", checkpoints)
        .start()
}

/// `host:port`.
fn address(sim: &Sim) -> String {
    sim.endpoint().trim_start_matches("http://").to_owned()
}

fn bigtable(jars: &Jars, args: &Args) {
    let sim = Sim::start_on_thread(SimConfig::for_benchmarks()).expect("a free port");
    let table = sim
        .bigtable()
        .create_table("bench", "discard", "rows", &[raw::FAMILY, "f"]);
    table.start_discarding();
    let Some(cluster) = cluster(&jars.bigtable, jars.module("bigtable"), "1s") else {
        return; // said why
    };
    let address = address(&sim);
    let port = address.rsplit(':').next().unwrap_or_default();
    let place = "'project' = 'bench', 'instance' = 'discard', 'table' = 'rows'";
    let sides = [
        ("blackhole", "'connector' = 'blackhole'".to_owned()),
        (
            "aqueduct",
            format!("'connector' = 'bigtable', {place}, 'emulator-endpoint' = '{address}'"),
        ),
        (
            "official client",
            format!("'connector' = 'official-bigtable', {place}, 'port' = '{port}'"),
        ),
    ];
    for bytes in SIZES {
        let mut figures: Vec<Figures> = sides.iter().map(|(name, _)| Figures::new(name)).collect();
        for _ in 0..args.rounds {
            for ((name, with), figures) in sides.iter().zip(&mut figures) {
                let script = format!(
                    "CREATE TABLE numbers (n BIGINT) WITH ('connector' = 'datagen', 'rows-per-second' = '1000000000');
                     CREATE TABLE target (id STRING, f ROW<v STRING>) WITH ({with});
                     INSERT INTO target SELECT CAST(n AS STRING), ROW(REPEAT('x', {bytes})) FROM numbers;"
                );
                measure_job(&cluster, args, figures, &script, |job| match *name {
                    "blackhole" => generated(&cluster, job),
                    _ => entries(&table),
                });
            }
        }
        println!("datagen -> Bigtable, values of {bytes} B, one subtask");
        print(&figures, Some(0));
    }
}

fn entries(table: &Table) -> u64 {
    table.discarded().entries
}

/// How many rows `datagen` has made. Flink's metrics are copied now and then: this waits for the next copy.
fn generated(cluster: &Cluster, job: &JobId) -> u64 {
    let rows = || {
        let answer = cluster.rest(&format!("/jobs/{job}"));
        let vertex = answer["vertices"][0]["id"].as_str()?.to_owned();
        let path = format!("/jobs/{job}/vertices/{vertex}/subtasks/metrics");
        let listed = cluster.rest(&path);
        let names = listed.as_array().into_iter().flatten();
        let mut names = names.filter_map(|metric| metric["id"].as_str());
        let name =
            names.find(|name| name.starts_with("Source__") && name.ends_with(".numRecordsOut"))?;
        let values = cluster.rest(&format!(
            "{path}?get={}&agg=sum",
            name.replace('[', "%5B").replace(']', "%5D")
        ));
        values[0]["sum"].as_f64()
    };
    let old = cluster.wait_for("a count of rows", rows);
    let new = || rows().filter(|rows| *rows > old);
    cluster.wait_for("the next count of rows", new) as u64
}

fn pubsub(jars: &Jars, args: &Args) {
    let sim = Sim::start_on_thread(SimConfig::for_benchmarks()).expect("a free port");
    let topic = sim.pubsub().create_topic("bench", "t");
    let Some(cluster) = cluster(&jars.pubsub, jars.module("pubsub"), "100ms") else {
        return; // said why
    };
    let address = address(&sim);
    for bytes in SIZES {
        let name = format!("of-{bytes}");
        let subscription = sim.pubsub().create_subscription("bench", &name, &topic);
        subscription.start_firehose(&FirehoseConfig {
            payload: vec![b'x'; bytes].into(),
            ..FirehoseConfig::default()
        });
        let sides = [
            (
                "aqueduct",
                format!(
                    "'connector' = 'pubsub', 'format' = 'raw', 'project' = 'bench', 'subscription' = '{name}',
                     'emulator-endpoint' = '{address}', 'scan.flow-control.max-outstanding-element-count' = '{OUTSTANDING}'"
                ),
            ),
            (
                "official client",
                format!(
                    "'connector' = 'official-pubsub', 'project' = 'bench', 'subscription' = '{name}',
                     'endpoint' = '{address}', 'outstanding' = '{OUTSTANDING}'"
                ),
            ),
        ];
        let mut figures: Vec<Figures> = sides.iter().map(|(name, _)| Figures::new(name)).collect();
        for _ in 0..args.rounds {
            for ((_, with), figures) in sides.iter().zip(&mut figures) {
                let script = format!(
                    "CREATE TABLE messages (payload BYTES) WITH ({with});
                     CREATE TABLE nowhere (payload BYTES) WITH ('connector' = 'blackhole');
                     INSERT INTO nowhere SELECT payload FROM messages;"
                );
                measure_job(&cluster, args, figures, &script, |_| {
                    acknowledged(&subscription)
                });
            }
        }
        println!(
            "Pub/Sub -> blackhole, payloads of {bytes} B, one subtask, {OUTSTANDING} out, a checkpoint every 100 ms"
        );
        print(&figures, None);
    }
}

fn acknowledged(subscription: &Subscription) -> u64 {
    subscription.firehosed().acked
}
