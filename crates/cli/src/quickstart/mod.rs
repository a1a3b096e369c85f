//! `aqueduct quickstart`: real flights into a Bigtable table, checkpointed, and back.
//!
//! The job is the one of the README: a file source, the embedded executor, the bulk sink. Without `--bigtable` the
//! service is the simulated one, in this process, and so are the checkpoints' lives: both end with it. With `--bigtable`
//! the table outlives the process, and the same `--checkpoint-dir` resumes where the last run was stopped or killed.

mod flights;
mod readback;

use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use aqueduct::bigtable::sink::CreateDisposition;
use aqueduct::bigtable::{BigtableSink, GcRule, TableCreateOptions, TableDestination};
use aqueduct::connector::Error;
use aqueduct::files::{FileSource, Paced};
use aqueduct::runtime::{
    Job, JobConfig, JobEnd, JobHandle, JobReport, JobState, RestartStrategy, WatermarkStrategy,
};
use aqueduct::store::Store;
use aqueduct_sim::{Sim, SimConfig};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::address::{TableArgs, check_reachable};
use crate::signals::Signals;
use crate::{Done, ENDED_AT_ONCE, STOPPED, flags};
use flights::Flight;

/// How long a stop waits for its last checkpoint.
const LAST_CHECKPOINT: Duration = Duration::from_secs(30);

/// Options of `aqueduct quickstart`.
#[derive(clap::Args)]
#[command(
    after_help = "Exit code: 0 complete, 1 failed, 2 wrong arguments, 3 stopped before the end with a last \
    checkpoint (Ctrl-C or SIGTERM once), 130 ended at once (twice)."
)]
pub(crate) struct Args {
    /// Flights to replay: CSV of the shape of the built-in sample, plain or gzip, in any order. Default: the sample.
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// An emulator or a running `aqueduct sim`. Default: a simulated service in this process.
    #[arg(long, value_name = "HOST:PORT")]
    bigtable: Option<String>,
    /// Where checkpoints are kept, a path or URL; a later run with the same directory resumes. Needs --bigtable, since
    /// the service in this process forgets its table. Default: a temporary directory.
    #[arg(long, value_name = "DIR", requires = "bigtable")]
    checkpoint_dir: Option<String>,
    /// Time between checkpoints, such as '500 ms' or '10 s'.
    #[arg(long, default_value = "500 ms", value_parser = duration, value_name = "TIME")]
    checkpoint_interval: Duration,
    /// Subtasks of every operator; at most 128, the key groups of the checkpoints.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=128))]
    parallelism: u32,
    /// Events a second; 0 is as fast as possible. Default: 2000 for the sample, as fast as possible for --events.
    #[arg(long, value_name = "N")]
    rate: Option<u64>,
    /// Serves metrics and a status page, such as '127.0.0.1:9090'.
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    #[command(flatten)]
    table: TableArgs,
}

/// An error for a person, in the words of the command line.
#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn text(error: Error) -> String {
    flags::named(error.report(), flags::TABLE)
}

fn duration(text: &str) -> Result<Duration, String> {
    <Duration as aqueduct::connector::options::OptionValue>::parse(text)
}

/// The events of a run and what is known of them.
struct Events {
    path: String,
    /// What the job's name says of them, so that checkpoints of other events are refused.
    identity: String,
    /// Events in the file, if counting them was possible.
    count: Option<u64>,
    rate: Option<NonZeroU64>,
    /// Keeps the sample's file alive.
    _sample: Option<tempfile::TempDir>,
}

/// Replays, reads back, prints.
pub(crate) fn run(args: Args) -> Done {
    let table = args.table.destination()?;
    let events = Events::of(&args)?;
    let service = Service::of(args.bigtable.as_deref())?;
    let temporary = match args.checkpoint_dir {
        Some(_) => None,
        None => Some(
            tempfile::tempdir().map_err(|e| format!("cannot make a temporary directory: {e}"))?,
        ),
    };
    let directory = match (&args.checkpoint_dir, &temporary) {
        (Some(directory), _) => directory.clone(),
        (None, Some(temporary)) => temporary.path().display().to_string(),
        (None, None) => unreachable!("one of the two was made above"),
    };

    // As the store shows it: a URL may hold a secret.
    let shown = Store::open(&directory).map_err(|error| format!("--checkpoint-dir: {error}"))?;

    let job = job(
        &events,
        table.clone(),
        &service.endpoint(),
        args.parallelism,
    )
    .map_err(text)?;
    let mut config = JobConfig::builder()
        .parallelism(args.parallelism)
        .checkpoint_dir(&directory)
        .checkpoint_interval(args.checkpoint_interval)
        .restart(RestartStrategy::FixedDelay {
            attempts: 10,
            delay: Duration::from_secs(1),
        });
    if let Some(address) = &args.metrics {
        config = config.metrics_address(address);
    }
    let config = config.build().map_err(|error| text(error.into()))?;

    say!(
        "replaying {} into {table} on {}",
        events.describe(),
        service.describe()
    );
    say!(
        "checkpoints every {:?} in {}",
        args.checkpoint_interval,
        shown.url()
    );
    let started = Instant::now();
    let handle = job.start(config).map_err(text)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    let ended = runtime.block_on(watch(&handle, &events))?;
    let Some(report) = ended else {
        eprintln!("ended at once; the next run repeats what came after the last checkpoint");
        return Ok(ExitCode::from(ENDED_AT_ONCE));
    };
    let took = started.elapsed();

    let resumed = report.status.restored_from.is_some();
    let written = report.operators.last().map_or(0, |sink| sink.records_in);
    let found = readback::read(table.clone(), &service.endpoint()).map_err(|error| {
        format!(
            "the events are in the table, but reading it back failed: {}",
            error.report()
        )
    })?;
    let carriers = match found {
        Some(carriers) => carriers,
        // The sink creates the table with the first row.
        None if written == 0 && !resumed => readback::Carriers::new(),
        None => {
            return Err(format!(
                "{table} is gone, though the checkpoints say that this job wrote to it: a simulated service keeps its \
                 tables in memory only; to replay from the start, delete {}",
                shown.url()
            ));
        }
    };
    print_carriers(&carriers);
    print_summary(&report, &carriers, took);
    let ended_early = matches!(report.end, JobEnd::Stopped { .. } | JobEnd::Cancelled);
    if ended_early {
        say!(
            "stopped before the end; with a --checkpoint-dir the same command goes on from the last checkpoint"
        );
        return Ok(ExitCode::from(STOPPED));
    }
    if written == 0 && resumed {
        say!(
            "nothing was left to do: the last run had finished; to replay from the start, delete {}",
            shown.url()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The job: file, executor, table.
fn job(
    events: &Events,
    table: TableDestination,
    endpoint: &str,
    parallelism: u32,
) -> aqueduct::connector::Result<Job> {
    // At a rate, batches are small beside it, so that the replay is even.
    let batch = events
        .rate
        .map_or(1_024, |rate| (rate.get() / 20).clamp(1, 1_024));
    let source = FileSource::csv::<Flight>()
        .path(&events.path)
        .null_literal("NA")
        .timestamps(|flight: &Flight| Some(flight.at()))
        .max_batch_records(batch)
        .build()?;
    let sink = BigtableSink::builder()
        .table(table.clone())
        .serializer(Flight::encode)
        .create_disposition(CreateDisposition::CreateIfNeeded)
        .table_create_options(
            TableCreateOptions::new()
                .column_family(flights::FAMILY, Some(GcRule::max_versions(NonZeroU32::MIN))),
        )
        .emulator_endpoint(endpoint)
        .build()?;
    // Checkpoints of other events or another table belong to another job, and are refused.
    let job = Job::new(format!("quickstart: {} into {table}", events.identity));
    let watermarks = WatermarkStrategy::bounded(Duration::from_secs(3_600));
    let mut flights = match events.rate {
        Some(rate) => job.from_source("flights", Paced::new(source, rate), watermarks),
        None => job.from_source("flights", source, watermarks),
    };
    if parallelism > 1 {
        // A gzip file is read by one subtask; all of them write.
        flights = flights.rebalance();
    }
    flights.sink_to("table", sink);
    Ok(job)
}

/// Shows progress until the job ends. `None`: the person asked twice.
async fn watch(handle: &JobHandle, events: &Events) -> Result<Option<JobReport>, String> {
    let bar = progress_bar(events);
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    let mut signals = Signals::new()?;
    let mut stop: Option<std::pin::Pin<Box<dyn Future<Output = Option<String>> + '_>>> = None;
    let mut end = std::pin::pin!(handle.wait());
    let (mut asked, mut told) = (false, false);
    loop {
        tokio::select! {
            ended = &mut end => {
                show(&bar, handle);
                bar.abandon();
                return ended.map(Some).map_err(text);
            }
            failure = async { stop.as_mut().expect("guarded").await }, if stop.is_some() => {
                stop = None;
                if let Some(failure) = failure {
                    bar.suspend(|| {
                        eprintln!("no last checkpoint: {failure}; ending without it, the next run repeats a little more");
                    });
                    handle.cancel();
                }
            }
            () = signals.next() => {
                if std::mem::replace(&mut asked, true) {
                    bar.abandon();
                    return Ok(None);
                }
                bar.suspend(|| eprintln!("stopping with a last checkpoint; once more ends at once"));
                stop = Some(Box::pin(async {
                    match tokio::time::timeout(LAST_CHECKPOINT, handle.stop(None)).await {
                        Ok(stopped) => stopped.err().map(text),
                        Err(_) => Some(format!("it took more than {LAST_CHECKPOINT:?}")),
                    }
                }));
            }
            _ = tick.tick() => {
                show(&bar, handle);
                let status = handle.status();
                if !told && status.state == JobState::Running {
                    told = true;
                    bar.suspend(|| {
                        if let Some(from) = &status.restored_from {
                            say!("resuming from {from}");
                        }
                        if let Some(address) = status.metrics_address {
                            say!("status and metrics on http://{address}/");
                        }
                    });
                }
            }
        }
    }
}

fn progress_bar(events: &Events) -> ProgressBar {
    let (bar, style) = match events.count {
        Some(count) => (
            ProgressBar::new(count),
            "{bar:32} {human_pos:>7}/{human_len} {msg}",
        ),
        None => (ProgressBar::no_length(), "{spinner} {human_pos:>7} {msg}"),
    };
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar.with_style(ProgressStyle::with_template(style).expect("the template is well formed"))
}

fn show(bar: &ProgressBar, handle: &JobHandle) {
    let status = handle.status();
    let read = handle
        .progress()
        .first()
        .map_or(0, |source| source.records_out);
    if status.restored_from.is_some() || status.restarts > 0 {
        // Counts begin anew after a restore, so they no longer measure against the file.
        bar.unset_length();
    }
    bar.set_position(read);
    let state = match status.state {
        JobState::Running => String::new(),
        other => format!(", {other}"),
    };
    let restarts = if status.restarts > 0 {
        format!(", {} restarts", status.restarts)
    } else {
        String::new()
    };
    bar.set_message(format!(
        "events, {} checkpoints{restarts}{state}",
        status.completed_checkpoints
    ));
}

fn print_carriers(carriers: &readback::Carriers) {
    say!();
    say!("carrier  departures  cancelled  mean delay");
    for (code, carrier) in carriers {
        let delay = carrier
            .mean_delay()
            .map_or("-".to_owned(), |minutes| format!("{minutes:.1} min"));
        say!(
            "{code:<7}  {:>10}  {:>9}  {delay:>10}",
            carrier.departures,
            carrier.cancelled
        );
    }
}

fn print_summary(report: &JobReport, carriers: &readback::Carriers, took: Duration) {
    let rows: u64 = carriers
        .values()
        .map(|carrier| carrier.departures + carrier.cancelled)
        .sum();
    let written = report.operators.last().map_or(0, |sink| sink.records_in);
    let rate = written as f64 / took.as_secs_f64().max(1e-9);
    say!();
    say!(
        "{rows} rows in the table; this run wrote {written} in {:.1} s ({rate:.0} a second) with {} checkpoints{}",
        took.as_secs_f64(),
        report.status.completed_checkpoints,
        match report.status.restarts {
            0 => String::new(),
            1 => " and 1 restart".to_owned(),
            n => format!(" and {n} restarts"),
        },
    );
}

impl Events {
    fn of(args: &Args) -> Result<Self, String> {
        let (path, sample) = match &args.events {
            Some(path) => (path.clone(), None),
            None => {
                let dir = sample_dir(args.checkpoint_dir.is_some())?;
                (dir.1, dir.0)
            }
        };
        let default_rate = if args.events.is_some() { 0 } else { 2_000 };
        Ok(Self {
            count: count_lines(&path).map(|lines| lines.saturating_sub(1)),
            identity: match &args.events {
                Some(_) => path.display().to_string(),
                None => "the built-in sample".to_owned(),
            },
            path: path.display().to_string(),
            rate: NonZeroU64::new(args.rate.unwrap_or(default_rate)),
            _sample: sample,
        })
    }

    fn describe(&self) -> String {
        match self.count {
            Some(count) => format!("{count} flights"),
            None => "flights".to_owned(),
        }
    }
}

/// Puts the sample where a source can read it. A run that may be resumed must find the very same file again, so that one
/// goes to a lasting place and is written only once.
fn sample_dir(lasting: bool) -> Result<(Option<tempfile::TempDir>, PathBuf), String> {
    let failed = |error: std::io::Error| {
        format!("cannot write the sample to a temporary directory: {error}")
    };
    if !lasting {
        let dir = tempfile::tempdir().map_err(failed)?;
        let path = dir.path().join("flights-2013-01.csv.gz");
        std::fs::write(&path, flights::SAMPLE).map_err(failed)?;
        return Ok((Some(dir), path));
    }
    let dir = std::env::temp_dir().join(concat!("aqueduct-sample-", env!("CARGO_PKG_VERSION")));
    std::fs::create_dir_all(&dir).map_err(failed)?;
    let path = dir.join("flights-2013-01.csv.gz");
    if !std::fs::read(&path).is_ok_and(|found| found == flights::SAMPLE) {
        let mut file = tempfile::NamedTempFile::new_in(&dir).map_err(failed)?;
        std::io::Write::write_all(&mut file, flights::SAMPLE).map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
    }
    Ok((None, path))
}

/// Lines of a file, for the progress bar only: what cannot be counted is read without one, and the source says what is wrong.
fn count_lines(path: &Path) -> Option<u64> {
    // Counting a pipe would take its content away from the source.
    let file = std::fs::metadata(path)
        .ok()
        .filter(std::fs::Metadata::is_file)
        .map(|_| path)?;
    let file = std::fs::File::open(file).ok()?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let gzip = reader.fill_buf().ok()?.starts_with(&[0x1f, 0x8b]);
    if gzip {
        count(flate2::bufread::MultiGzDecoder::new(reader))
    } else {
        count(reader)
    }
}

fn count(mut reader: impl Read) -> Option<u64> {
    let mut buffer = vec![0; 1 << 18];
    let (mut lines, mut last) = (0, b'\n');
    loop {
        let read = reader.read(&mut buffer).ok()?;
        if read == 0 {
            return Some(lines + u64::from(last != b'\n'));
        }
        lines += buffer[..read].iter().filter(|byte| **byte == b'\n').count() as u64;
        last = buffer[read - 1];
    }
}

/// Where the table is.
enum Service {
    InProcess(Sim),
    Elsewhere(String),
}

impl Service {
    fn of(address: Option<&str>) -> Result<Self, String> {
        let Some(address) = address else {
            return Sim::start_on_thread(SimConfig::default())
                .map(Self::InProcess)
                .map_err(|error| format!("cannot start the simulated service: {error}"));
        };
        check_reachable("--bigtable", address)?;
        Ok(Self::Elsewhere(address.to_owned()))
    }

    fn endpoint(&self) -> String {
        match self {
            Self::InProcess(sim) => sim.endpoint(),
            Self::Elsewhere(address) => address.clone(),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::InProcess(_) => "a simulated service in this process".to_owned(),
            Self::Elsewhere(address) => address.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_with_and_without_a_last_line_end() {
        assert_eq!(count(&b"a\nb\n"[..]), Some(2));
        assert_eq!(count(&b"a\nb"[..]), Some(2));
        assert_eq!(count(&b""[..]), Some(0));
        let gzip = flate2::read::MultiGzDecoder::new(flights::SAMPLE);
        assert_eq!(count(gzip), Some(4_964));
    }
}
