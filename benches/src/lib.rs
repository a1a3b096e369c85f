//! What the benchmark programs share: processor time, memory, a service in a process of its own.
//!
//! Every program measures a connector *beside* a raw loop in one run, prints ratios, and says on what. The service runs
//! in a second process pinned to one core, the measured client in a process pinned to another, so that processor time is
//! the client's alone. Absolute figures only orient: machines differ and are noisy.

#![allow(clippy::print_stdout, reason = "these are programs that print a table")]

pub mod publish;
pub mod pull;
pub mod raw;
pub mod sinks;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use aqueduct_connector::Context;
use aqueduct_connector::source::{EnumeratorCommand, EnumeratorOutput, ReaderOutput, Source};
use aqueduct_sim::{Sim, SimConfig};

/// Processor time that this process has used, user and system.
///
/// # Panics
///
/// Where `/proc` is missing: the programs run on Linux.
#[must_use]
pub fn processor_time() -> Duration {
    processor_time_of("self")
}

/// As [`processor_time`], of the process with this number.
///
/// # Panics
///
/// Where `/proc` is missing, and when there is no such process.
#[must_use]
pub fn processor_time_of(process: &str) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))
        .expect("Linux shows the times of a process that runs");
    // Fields are counted after the command name, which may hold spaces and ends with the last parenthesis.
    let fields: Vec<&str> = stat[stat.rfind(')').expect("the name is in parentheses") + 2..]
        .split(' ')
        .collect();
    let ticks: u64 = fields[11..13]
        .iter()
        .map(|ticks| ticks.parse::<u64>().expect("a number of ticks"))
        .sum();
    // USER_HZ is 100 on every Linux that Rust supports.
    Duration::from_millis(ticks * 10)
}

/// Peak resident memory of this process in bytes since the last [`reset_peak`].
///
/// # Panics
///
/// Where `/proc` is missing.
#[must_use]
pub fn peak_resident() -> u64 {
    memory("self", "VmHWM:")
}

/// Peak resident memory of the process with this number in bytes.
///
/// # Panics
///
/// Where `/proc` is missing, and when there is no such process.
#[must_use]
pub fn peak_resident_of(process: &str) -> u64 {
    memory(process, "VmHWM:")
}

/// Resident memory of this process in bytes.
///
/// # Panics
///
/// Where `/proc` is missing.
#[must_use]
pub fn resident() -> u64 {
    memory("self", "VmRSS:")
}

fn memory(process: &str, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))
        .expect("Linux shows the memory of a process that runs");
    let line = status
        .lines()
        .find(|line| line.starts_with(field))
        .expect("the field is always there");
    let kib: u64 = line[field.len()..]
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number of KiB");
    kib << 10
}

/// Starts a new peak for [`peak_resident`]; false where the system does not allow it.
#[must_use]
pub fn reset_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// One measured run of a loop.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Records moved.
    pub records: u64,
    /// Wall-clock time.
    pub wall: Duration,
    /// Processor time of this process.
    pub processor: Duration,
}

impl Run {
    /// Records a second of processor time.
    #[must_use]
    pub fn per_core_second(&self) -> f64 {
        self.records as f64 / self.processor.as_secs_f64().max(1e-9)
    }

    /// Records a second of wall-clock time.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.records as f64 / self.wall.as_secs_f64().max(1e-9)
    }
}

/// Times `work`, which returns how many records it moved.
pub async fn measure<W: Future<Output = u64>>(work: W) -> Run {
    let (wall, processor) = (Instant::now(), processor_time());
    let records = work.await;
    Run {
        records,
        wall: wall.elapsed(),
        processor: processor_time().saturating_sub(processor),
    }
}

/// Reads a source to its end with one reader, keeping nothing. Returns the records.
///
/// # Panics
///
/// If the source fails.
pub async fn drain<T>(source: &impl Source<T>, coordinator: Context, subtask: Context) -> u64 {
    let mut enumerator = source
        .create_enumerator(coordinator, None)
        .expect("an enumerator");
    let mut reader = source.create_reader(subtask).expect("a reader");
    let mut out = EnumeratorOutput::new();
    enumerator
        .reader_registered(0, &mut out)
        .expect("the source is well");
    let mut records = 0;
    std::future::poll_fn(|cx| {
        loop {
            let enumerating = enumerator.poll_progress(cx, &mut out);
            assert!(enumerating.is_pending(), "the source is well");
            for command in out.drain() {
                match command {
                    EnumeratorCommand::Assign { splits, .. } => reader.add_splits(splits),
                    EnumeratorCommand::NoMoreSplits { .. } => reader.no_more_splits(),
                    EnumeratorCommand::Event { event, .. } => reader.enumerator_event(event),
                }
                .expect("the source is well");
            }
            match ready!(reader.poll_next(cx)).expect("the source is well") {
                ReaderOutput::Batch(batch) => {
                    records += batch.records.len() as u64;
                    reader.emitted(batch.records.len());
                }
                ReaderOutput::RequestSplit => {
                    enumerator
                        .split_requested(0, &mut out)
                        .expect("the source is well");
                }
                ReaderOutput::Event(event) => {
                    enumerator
                        .reader_event(0, event, &mut out)
                        .expect("the source is well");
                }
                ReaderOutput::Watermark { .. } | ReaderOutput::SplitFinished(_) => {}
                ReaderOutput::End => return Poll::Ready(()),
            }
        }
    })
    .await;
    records
}

/// The median of several figures.
///
/// # Panics
///
/// Without figures.
#[must_use]
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// The simulated service in a process of its own, pinned to the first core.
pub struct Service {
    child: Child,
    endpoint: String,
}

impl Service {
    /// Starts this very program again with `--serve`, waits for the address it prints.
    ///
    /// # Panics
    ///
    /// If it does not start: there is nothing to measure then.
    #[must_use]
    pub fn start() -> Self {
        let program = std::env::current_exe().expect("a running program has a path");
        let mut child = pinned(0, &program)
            .arg("--serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the service starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout is piped");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("the service prints its address");
        Self {
            child,
            endpoint: line.trim().to_owned(),
        }
    }

    /// `host:port`.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command for `program` pinned to `core` where `taskset` exists, else unpinned.
fn pinned(core: usize, program: &std::path::Path) -> Command {
    if Command::new("taskset").arg("--version").output().is_ok() {
        let mut command = Command::new("taskset");
        command.arg("-c").arg(core.to_string()).arg(program);
        command
    } else {
        Command::new(program)
    }
}

/// Serves tables that discard until standard input closes; the body of `--serve`.
///
/// # Panics
///
/// If the port cannot be opened.
pub fn serve() {
    serve_prepared(|sim| {
        let bigtable = sim.bigtable();
        for table in ["rows".to_owned()]
            .into_iter()
            .chain((1..50).map(|at| format!("rows-{at}")))
        {
            bigtable
                .create_table("bench", "discard", &table, &[raw::FAMILY])
                .start_discarding();
        }
    });
}

/// Serves what `prepare` makes until standard input closes; the body of `--serve`.
///
/// # Panics
///
/// If the port cannot be opened.
pub fn serve_prepared(prepare: impl FnOnce(&Sim)) {
    let sim = Sim::start_on_thread(SimConfig::for_benchmarks())
        .expect("a free port on the loopback interface");
    prepare(&sim);
    println!("{}", sim.endpoint());
    let mut line = String::new();
    // The parent never writes: this returns when it is gone.
    let _ = std::io::stdin().read_line(&mut line);
}

/// Runs the measured program again pinned to the second core, unless this is that run already. Returns whether to go on.
///
/// # Panics
///
/// If the program cannot be started again.
#[must_use]
pub fn pin_to_second_core() -> bool {
    const MARK: &str = "AQUEDUCT_BENCH_PINNED";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let program = std::env::current_exe().expect("a running program has a path");
    let status = pinned(1, &program)
        .args(std::env::args_os().skip(1))
        .env(MARK, "1")
        .status()
        .expect("the program starts again");
    assert!(status.success(), "the measured run failed");
    false
}
