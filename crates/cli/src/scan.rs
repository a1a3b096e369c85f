//! `aqueduct scan`: shows the rows of a table.
//!
//! The rows go through the scan source and the embedded executor, like those of any job: sections are read in parallel,
//! and broken reads go on where they stopped. The deserializer makes the text of a row ([`format`]), the sink writes it.
//!
//! # Invariants
//!
//! - Rows are written whole: subtasks take turns, and a row is never between two turns.
//! - Whoever reads standard output may leave at any time (`aqueduct scan | head`): the job is cancelled and nothing is said.
//! - Every wrong option is told before the service is asked.

mod format;

use std::io::{self, IsTerminal, Write};
use std::num::{NonZeroU32, NonZeroU64};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as PollContext, Poll};
use std::time::{Duration, Instant};

use aqueduct::bigtable::client::read::RowRef;
use aqueduct::bigtable::filter::quote;
use aqueduct::bigtable::range::MAX_ROW_KEY_BYTES;
use aqueduct::bigtable::source::BigtableSource;
use aqueduct::bigtable::source::metrics::PLANNED_BYTES;
use aqueduct::bigtable::{Filter, RowRange, TableDestination};
use aqueduct::connector::sink::{Flush, RecordInfo, Sink, SinkWriter};
use aqueduct::connector::source::Collector;
use aqueduct::connector::{Code, Context, Error, Result as ConnectorResult, Versioned};
use aqueduct::runtime::{
    Job, JobConfig, JobHandle, JobReport, JobState, RestartStrategy, WatermarkStrategy,
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::Notify;

use crate::address::{TableArgs, check_reachable};
use crate::{Done, flags};
use format::Format;

/// Bytes of rows that a subtask gathers before it takes its turn at standard output.
const TURN_BYTES: usize = 64 << 10;

/// Options of `aqueduct scan`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    table: TableArgs,
    /// An emulator or a running `aqueduct sim`. Default: the service, with application-default credentials.
    #[arg(long, value_name = "HOST:PORT")]
    bigtable: Option<String>,
    /// Reads through this application profile. Default: the instance's own.
    #[arg(long, value_name = "ID")]
    app_profile: Option<String>,
    /// Reads rows whose keys begin so; \xNN is any byte, \\ a backslash. May be repeated and adds to --range.
    #[arg(long = "prefix", value_name = "TEXT")]
    prefixes: Vec<Prefix>,
    /// Reads a range of keys, such as '[a, b)', '(a, b]' or '[a, *)', where * is open and \xNN any byte. May be repeated.
    #[arg(long = "range", value_name = "RANGE", value_parser = range)]
    ranges: Vec<RowRange>,
    /// Shows only this column family. May be repeated.
    #[arg(long = "family", value_name = "NAME", value_parser = family)]
    families: Vec<String>,
    /// Shows only columns of this qualifier; \xNN is any byte.
    #[arg(long, value_name = "TEXT")]
    qualifier: Option<Literal>,
    /// Shows only the newest N versions of each column.
    #[arg(long, value_name = "N")]
    versions: Option<NonZeroU32>,
    /// Ends after so many rows.
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroU64>,
    /// Reads in descending order of keys.
    #[arg(long)]
    reverse: bool,
    /// How rows are shown. Default: table on a terminal, json elsewhere.
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<Shape>,
    /// Sections of the table read at a time. With more than one, rows come in no order.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    parallelism: u32,
}

/// `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Shape {
    /// One JSON object a line for each row; text that is no UTF-8 is {"base64": "..."}.
    Json,
    /// One line for each cell, cut to the terminal's width.
    Table,
}

/// Bytes as a person writes them: text, with `\xNN` for any byte and `\\` for a backslash.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Literal(Vec<u8>);

impl FromStr for Literal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        loop {
            rest = match rest {
                [] => return Ok(Self(bytes)),
                [b'\\', b'\\', tail @ ..] => {
                    bytes.push(b'\\');
                    tail
                }
                [b'\\', b'x', high, low, tail @ ..]
                    if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
                {
                    let value = digit(high).zip(digit(low)).map(|(h, l)| h * 16 + l);
                    // Two digits of four bits each.
                    bytes.push(value.expect("both are hexadecimal") as u8);
                    tail
                }
                [b'\\', ..] => {
                    return Err("a backslash is written \\\\, and any byte \\xNN".to_owned());
                }
                [byte, tail @ ..] => {
                    bytes.push(*byte);
                    tail
                }
            };
        }
    }
}

/// The beginning of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Prefix(Vec<u8>);

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Literal(bytes) = text.parse()?;
        if bytes.is_empty() {
            return Err("every key begins so; leave it out to read the whole table".to_owned());
        }
        if bytes.len() > MAX_ROW_KEY_BYTES {
            return Err(format!(
                "it has {} bytes and a key at most {MAX_ROW_KEY_BYTES}, so no row begins so",
                bytes.len()
            ));
        }
        Ok(Self(bytes))
    }
}

fn range(text: &str) -> Result<RowRange, String> {
    let range = RowRange::parse(text).map_err(|error| error.to_string())?;
    if range.is_empty() {
        return Err("it holds no key; put its bounds in order".to_owned());
    }
    Ok(range)
}

fn family(text: &str) -> Result<String, String> {
    let checked = Filter::family_exact(text).check();
    checked.map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

impl Args {
    /// Which cells to ask for; `None` is all of them.
    fn filter(&self) -> Option<Filter> {
        let mut parts = Vec::new();
        if !self.families.is_empty() {
            // One pattern for all, since side by side filters would show the cells of a family named twice twice.
            let names: Vec<String> = self
                .families
                .iter()
                .map(|name| String::from_utf8_lossy(&quote(name.as_bytes())).into_owned())
                .collect();
            parts.push(Filter::family_regex(names.join("|")));
        }
        if let Some(Literal(qualifier)) = &self.qualifier {
            parts.push(Filter::qualifier_exact(qualifier));
        }
        if let Some(versions) = self.versions {
            parts.push(Filter::cells_per_column(versions.get()));
        }
        (!parts.is_empty()).then(|| Filter::chain(parts))
    }

    fn source(
        &self,
        table: TableDestination,
        format: Format,
        read: Arc<AtomicU64>,
    ) -> ConnectorResult<BigtableSource<Vec<u8>>> {
        let mut source = BigtableSource::builder().table(table).deserializer(
            move |row: RowRef<'_>, out: &mut Collector<'_, Vec<u8>>| {
                read.fetch_add(row.content_bytes(), Ordering::Relaxed);
                let mut text = Vec::new();
                format.write(row, &mut text);
                out.emit(text);
                Ok(())
            },
        );
        for Prefix(prefix) in &self.prefixes {
            source = source.prefix(prefix.clone());
        }
        for range in &self.ranges {
            source = source.row_range(range.clone());
        }
        if let Some(filter) = self.filter() {
            source = source.filter(filter);
        }
        if let Some(profile) = &self.app_profile {
            source = source.app_profile_id(profile);
        }
        if let Some(address) = &self.bigtable {
            source = source.emulator_endpoint(address);
        }
        if let Some(limit) = self.limit {
            source = source.row_limit(limit);
        }
        if self.reverse {
            source = source.reversed();
        }
        source.build()
    }
}

/// Scans and writes.
pub(crate) fn run(args: Args) -> Done {
    let table = args.table.destination()?;
    let on_terminal = io::stdout().is_terminal();
    let format = match args.format {
        Some(Shape::Json) => Format::Json,
        None if !on_terminal => Format::Json,
        Some(Shape::Table) | None => Format::table(
            terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0)),
        ),
    };
    let read = Arc::new(AtomicU64::new(0));
    let source = args
        .source(table.clone(), format, read.clone())
        .map_err(text)?;
    if let Some(address) = &args.bigtable {
        check_reachable("--bigtable", address)?;
    }
    let config = JobConfig::builder()
        .parallelism(args.parallelism)
        // Nothing is keyed, so as many groups as subtasks do.
        .max_parallelism(args.parallelism)
        .restart(RestartStrategy::None)
        .build()
        .map_err(|error| text(error.into()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;

    let bar = progress_bar(args.limit);
    let output = Output::new(format.header(), bar.clone());
    let job = Job::new("scan");
    job.from_source("table", source, WatermarkStrategy::none())
        .sink_to("output", output.clone());
    let started = Instant::now();
    let handle = job.start(config).map_err(text)?;
    let ended = runtime.block_on(watch(&handle, &output, &read));
    bar.finish_and_clear();
    match (output.failure(), ended) {
        (Some(failure), _) if failure.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        (Some(failure), _) => Err(format!("cannot write to standard output: {failure}")),
        (None, Ok(report)) => {
            if io::stderr().is_terminal() {
                let rows = report
                    .operators
                    .first()
                    .map_or(0, |table| table.records_out);
                let seconds = started.elapsed().as_secs_f64();
                eprintln!("{rows} rows of {table} in {seconds:.1} s");
            }
            Ok(ExitCode::SUCCESS)
        }
        (None, Err(error)) => Err(explain(&error, &table, &args)),
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn text(error: Error) -> String {
    flags::named(error.report(), flags::TABLE)
}

/// Why the scan failed, with the options that may be wrong.
fn explain(error: &Error, table: &TableDestination, args: &Args) -> String {
    let missing = error
        .statuses()
        .is_some_and(|chain| chain.code() == Code::NotFound);
    let report = flags::named(error.report(), flags::TABLE);
    if !missing {
        return report;
    }
    let place = args.bigtable.as_deref().unwrap_or("the service");
    let profile = match &args.app_profile {
        Some(_) => ", --app-profile",
        None => "",
    };
    format!(
        "{place} has no table {table}: correct --project, --instance or --table{profile} ({report})"
    )
}

/// Shows progress until the job ends; cancels it when nobody reads any more.
async fn watch(
    handle: &JobHandle,
    output: &Output,
    read: &AtomicU64,
) -> ConnectorResult<JobReport> {
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    let mut end = std::pin::pin!(handle.wait());
    loop {
        tokio::select! {
            ended = &mut end => return ended,
            () = output.0.failed.notified() => handle.cancel(),
            _ = tick.tick() => {
                let rows = handle.progress().first().map_or(0, |table| table.records_out);
                output.0.bar.set_position(rows);
                let part = part_read(handle, read).map_or(String::new(), |percent| format!(", about {percent} %"));
                output.0.bar.set_message(match handle.status().state {
                    JobState::Running => part,
                    other => format!("{part}, {other}"),
                });
            }
        }
    }
}

/// How much of the sampled estimate was read, in per cent; below 100 until the end is there, as it is an estimate.
fn part_read(handle: &JobHandle, read: &AtomicU64) -> Option<u64> {
    let planned = u64::try_from(handle.metrics().total(PLANNED_BYTES))
        .ok()
        .filter(|bytes| *bytes > 0)?;
    Some((read.load(Ordering::Relaxed).saturating_mul(100) / planned).min(99))
}

/// Rows read, against the limit if there is one: how many rows a table has, nobody knows. Beside them stands how much of the
/// service's estimate of its bytes was read.
fn progress_bar(limit: Option<NonZeroU64>) -> ProgressBar {
    let (bar, style) = match limit {
        Some(limit) => (
            ProgressBar::new(limit.get()),
            "{bar:32} {human_pos:>7}/{human_len} rows{msg}",
        ),
        None => (
            ProgressBar::no_length(),
            "{spinner} {human_pos:>7} rows, {per_sec}{msg}",
        ),
    };
    if !io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar.with_style(ProgressStyle::with_template(style).expect("the template is well formed"))
}

/// Standard output, which all subtasks share.
#[derive(Clone)]
struct Output(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Told once, when writing has failed.
    failed: Notify,
    bar: ProgressBar,
}

struct State {
    /// What comes before the first row.
    header: Option<String>,
    /// Why writing failed. From then on rows are dropped.
    failure: Option<io::Error>,
}

impl Output {
    fn new(header: Option<String>, bar: ProgressBar) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                header,
                failure: None,
            }),
            failed: Notify::new(),
            bar,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.0.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self) -> Option<io::Error> {
        self.state().failure.take()
    }

    /// Writes whole rows, with the bar out of the way, and empties `rows`.
    fn write(&self, rows: &mut Vec<u8>) {
        let mut state = self.state();
        if state.failure.is_none() && !rows.is_empty() {
            let header = state.header.take();
            let written = self.0.bar.suspend(|| {
                let mut out = io::stdout().lock();
                if let Some(header) = header {
                    out.write_all(header.as_bytes())?;
                }
                out.write_all(rows)?;
                out.flush()
            });
            if let Err(error) = written {
                state.failure = Some(error);
                self.0.failed.notify_one();
            }
        }
        rows.clear();
    }
}

impl Sink<Vec<u8>> for Output {
    fn connector(&self) -> &'static str {
        "standard-output"
    }

    fn create_writer(
        &self,
        _: Context,
        _: Vec<Versioned>,
    ) -> ConnectorResult<Box<dyn SinkWriter<Vec<u8>>>> {
        Ok(Box::new(Turns {
            output: self.clone(),
            rows: Vec::new(),
        }))
    }
}

/// One subtask's rows between two turns.
struct Turns {
    output: Output,
    rows: Vec<u8>,
}

impl SinkWriter<Vec<u8>> for Turns {
    fn poll_ready(&mut self, _: &mut PollContext<'_>) -> Poll<ConnectorResult<()>> {
        Poll::Ready(Ok(()))
    }

    fn write(&mut self, row: Vec<u8>, _: RecordInfo) -> ConnectorResult<()> {
        self.rows.extend_from_slice(&row);
        if self.rows.len() >= TURN_BYTES {
            self.output.write(&mut self.rows);
        }
        Ok(())
    }

    /// Nothing more to write now, so a person need not wait for the turn to fill.
    fn poll_progress(&mut self, _: &mut PollContext<'_>) -> Poll<ConnectorResult<()>> {
        self.output.write(&mut self.rows);
        Poll::Pending
    }

    fn poll_flush(&mut self, _: &mut PollContext<'_>, _: Flush) -> Poll<ConnectorResult<()>> {
        self.output.write(&mut self.rows);
        Poll::Ready(Ok(()))
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<ConnectorResult<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_byte_can_be_written_and_a_lone_backslash_is_refused() {
        let bytes = |text: &str| text.parse().map(|Literal(bytes)| bytes);
        assert_eq!(bytes("a,b*"), Ok(b"a,b*".to_vec()));
        assert_eq!(bytes(r"\x00\xfFé\\x"), Ok(b"\x00\xff\xc3\xa9\\x".to_vec()));
        for bad in [r"\", r"\n", r"\x1", r"\xg0", r"a\x"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        assert!("".parse::<Prefix>().is_err(), "the whole table");
        assert!("a".repeat(4_097).parse::<Prefix>().is_err(), "no key");
    }

    #[test]
    fn an_empty_range_is_refused_and_a_notation_read() {
        assert!(range("[a, b)").is_ok());
        for bad in ["[b, a)", "a..b", "[a,b)", ""] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }
}
