//! Watermarks and timers across exchanges, restarts and the end of the input.

use std::time::Duration;

use aqueduct_connector::clock::Timestamp;
use aqueduct_connector::source::Collector;
use aqueduct_connector::state::{StateReader, StateWriter};
use aqueduct_connector::{Error, Result};
use aqueduct_runtime::{
    Job, KeyedProcessFunction, ProcessFunction, RecordContext, Timers, WatermarkStrategy,
    Window as Span, WindowFunction, Windows,
};

use crate::support::{Fault, MemorySink, Numbers, Point, Service, config, finish};

const WINDOW: i64 = 20;

/// Sums the values of each window of 20 ms; emits at the window's end, and never again.
struct Window;

impl KeyedProcessFunction<u64, u64, u64> for Window {
    type State = Vec<(i64, u64)>;
    const STATE_NAME: &'static str = "window";
    const STATE_VERSION: u32 = 1;

    fn process(
        &mut self,
        _key: &u64,
        state: &mut Option<Self::State>,
        _value: u64,
        info: &RecordContext,
        timers: &mut Timers<'_, u64>,
        _out: &mut Collector<'_, u64>,
    ) -> Result<()> {
        let at = info.timestamp.ok_or_else(|| Error::user("no event time"))?;
        let end = at.millis() - at.millis() % WINDOW + WINDOW - 1;
        if Timestamp::from_millis(end) <= info.watermark {
            return Err(Error::user("a record came late"));
        }
        timers.set(Timestamp::from_millis(end));
        let windows = state.get_or_insert_default();
        match windows.iter_mut().find(|(window, _)| *window == end) {
            Some((_, count)) => *count += 1,
            None => windows.push((end, 1)),
        }
        Ok(())
    }

    fn on_timer(
        &mut self,
        key: &u64,
        state: &mut Option<Self::State>,
        at: Timestamp,
        _timers: &mut Timers<'_, u64>,
        out: &mut Collector<'_, u64>,
    ) -> Result<()> {
        let windows = state
            .as_mut()
            .ok_or_else(|| Error::bug("a timer without state"))?;
        let position = windows
            .iter()
            .position(|(end, _)| *end == at.millis())
            .ok_or_else(|| Error::bug("a timer without its window"))?;
        let (_, count) = windows.swap_remove(position);
        if windows.is_empty() {
            *state = None;
        }
        out.emit(at.millis().cast_unsigned() * 1_000_000 + key * 1_000 + count);
        Ok(())
    }

    fn encode(&self, state: &Self::State, out: &mut StateWriter) {
        out.count(state.len());
        for (end, count) in state {
            out.i64(*end).u64(*count);
        }
    }

    fn decode(&self, _version: u32, reader: &mut StateReader<'_>) -> Result<Self::State> {
        (0..reader.count(16)?)
            .map(|_| Ok((reader.i64()?, reader.u64()?)))
            .collect()
    }
}

fn expected(splits: u64, per_split: u64, keys: u64) -> Vec<u64> {
    let mut windows = std::collections::BTreeMap::new();
    for number in 0..splits * per_split {
        // Every split starts at time 0 by the assigner below.
        let at = (number % per_split).cast_signed();
        let end = at - at % WINDOW + WINDOW - 1;
        *windows.entry((end, number % keys)).or_insert(0_u64) += 1;
    }
    windows
        .into_iter()
        .map(|((end, key), count)| end.cast_unsigned() * 1_000_000 + key * 1_000 + count)
        .collect()
}

fn windows(fault: Fault, parallelism: u32) {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let (splits, per_split, keys) = (u64::from(parallelism), 200, 7);
    let mut source = Numbers::new(splits, per_split);
    source.pace = 40;
    source.fault = fault.clone();
    let mut sink = MemorySink::staged(&service);
    sink.fault = fault.clone();
    let strategy = WatermarkStrategy::bounded(Duration::from_millis(3))
        .timestamps(move |number: &u64| Timestamp::from_millis((number % per_split).cast_signed()));
    let job = Job::new("windows");
    job.from_source("numbers", source, strategy)
        .key_by(move |number| number % keys)
        .process("window", || Window)
        .sink_to("memory", sink);
    let config = config(&dir)
        .parallelism(parallelism)
        .build()
        .expect("valid");
    let handle = job.start(config).expect("it starts");
    finish(&handle).unwrap_or_else(|error| panic!("{fault:?}: {}", error.report()));
    let mut expected = expected(splits, per_split, keys);
    expected.sort_unstable();
    assert_eq!(service.values(), expected, "{fault:?}");
    for operator in handle.progress() {
        assert_eq!(operator.watermark, Some(Timestamp::MAX), "{operator:?}");
    }
}

#[test]
fn windows_close_once_with_all_their_records() {
    windows(Fault::none(), 1);
    windows(Fault::none(), 3);
}

#[test]
fn windows_and_their_timers_survive_failures() {
    for point in [Point::WriterFlush, Point::ReaderPoll, Point::CommitAfter] {
        windows(Fault::at(point, 12), 3);
    }
}

/// Emits the watermarks it sees.
struct Seen;

impl ProcessFunction<u64, u64> for Seen {
    fn process(
        &mut self,
        _value: u64,
        _info: &RecordContext,
        _out: &mut Collector<'_, u64>,
    ) -> Result<()> {
        Ok(())
    }

    fn on_watermark(&mut self, watermark: Timestamp, out: &mut Collector<'_, u64>) -> Result<()> {
        if watermark < Timestamp::MAX {
            out.emit_at(watermark.millis().cast_unsigned(), watermark);
        }
        Ok(())
    }
}

#[test]
fn a_watermark_follows_the_slowest_split_by_the_lateness() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let mut source = Numbers::new(1, 35);
    source.batch = 10;
    let job = Job::new("watermarks");
    job.from_source(
        "numbers",
        source,
        WatermarkStrategy::bounded(Duration::from_millis(4)),
    )
    .process("seen", || Seen)
    .sink_to("memory", MemorySink::staged(&service));
    let handle = job
        .start(config(&dir).build().expect("valid"))
        .expect("it starts");
    finish(&handle).expect("the job ends");
    // Batches end at 9, 19, 29 and 34; each claim is 4 + 1 ms behind.
    assert_eq!(service.values(), [4, 14, 24, 29]);
}

#[test]
fn an_input_without_splits_does_not_hold_the_others_for_ever() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let mut source = Numbers::new(1, 40);
    source.unbounded = true;
    let strategy = WatermarkStrategy::bounded(Duration::ZERO).idle_after(Duration::from_millis(20));
    let job = Job::new("idle");
    job.from_source("numbers", source, strategy)
        .key_by(|_| 0_u64)
        .process("window", || Window)
        .sink_to("memory", MemorySink::staged(&service));
    let config = config(&dir).parallelism(3).build().expect("valid");
    let handle = job.start(config).expect("it starts");
    // Of three subtasks one has the split; the window up to 19 closes although the other two never speak.
    crate::support::until("the first window", || service.count() >= 1);
    handle.cancel();
    finish(&handle).expect("cancelled");
    assert_eq!(service.values()[0], 19 * 1_000_000 + 20);
}

/// Counts the records of a window; gives `start * 1,000,000 + size * 1,000 + count`.
struct CountOf;

impl WindowFunction<u64, u64, u64> for CountOf {
    type State = u64;
    const STATE_NAME: &'static str = "count of a window";
    const STATE_VERSION: u32 = 1;

    fn add(&mut self, state: &mut Option<u64>, _value: &u64) -> Result<()> {
        *state.get_or_insert(0) += 1;
        Ok(())
    }

    fn result(
        &mut self,
        _key: &u64,
        window: Span,
        count: u64,
        out: &mut Collector<'_, u64>,
    ) -> Result<()> {
        let (start, end) = (window.start.millis(), window.end.millis());
        let shown = start.max(0) * 1_000_000 + (end - start) * 1_000;
        out.emit(shown.cast_unsigned() + count);
        Ok(())
    }

    fn encode(&self, state: &u64, out: &mut StateWriter) {
        out.u64(*state);
    }

    fn decode(&self, _version: u32, reader: &mut StateReader<'_>) -> Result<u64> {
        Ok(reader.u64()?)
    }
}

fn counted(windows: Windows, fault: Fault) -> Vec<u64> {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let mut source = Numbers::new(1, 100);
    source.pace = 21;
    source.fault = fault;
    let job = Job::new("counted");
    job.from_source(
        "numbers",
        source,
        WatermarkStrategy::bounded(Duration::ZERO),
    )
    .key_by(|_| 0_u64)
    .window("count", windows, || CountOf)
    .sink_to("memory", MemorySink::staged(&service));
    let handle = job
        .start(config(&dir).parallelism(2).build().expect("valid"))
        .expect("it starts");
    finish(&handle).expect("the job ends");
    assert_eq!(handle.metrics().total("numLateRecordsDropped"), 0);
    service.values()
}

#[test]
fn built_in_windows_count_every_record_once_a_window_over_a_failure() {
    let ms = Duration::from_millis;
    let fault = || Fault::at(Point::ReaderSnapshot, 3);
    let tumbling = counted(Windows::tumbling(ms(25)).expect("valid"), fault());
    assert_eq!(
        tumbling,
        [0_u64, 25, 50, 75].map(|start| start * 1_000_000 + 25_025)
    );
    let cumulating = counted(Windows::cumulating(ms(50), ms(25)).expect("valid"), fault());
    let expected: Vec<u64> = [0_u64, 50]
        .into_iter()
        .flat_map(|start| [25, 50].map(|size| start * 1_000_000 + size * 1_000 + size))
        .collect();
    assert_eq!(cumulating, expected);
    let hopping = counted(Windows::hopping(ms(40), ms(20)).expect("valid"), fault());
    let inner: Vec<u64> = hopping.iter().map(|value| value % 1_000).collect();
    // The window before 0 holds 20, those at 0, 20, 40 and 60 hold 40, the last one 20.
    assert_eq!(inner.iter().sum::<u64>(), 200);
}

#[test]
fn a_late_record_is_counted_and_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let mut source = Numbers::new(1, 40);
    source.batch = 10;
    // The last ten records are as old as the first.
    let strategy = WatermarkStrategy::bounded(Duration::ZERO)
        .timestamps(|number: &u64| Timestamp::from_millis((number % 30).cast_signed()));
    let job = Job::new("late");
    job.from_source("numbers", source, strategy)
        .key_by(|_| 0_u64)
        .window(
            "count",
            Windows::tumbling(Duration::from_millis(10)).expect("valid"),
            || CountOf,
        )
        .sink_to("memory", MemorySink::staged(&service));
    let handle = job
        .start(config(&dir).build().expect("valid"))
        .expect("it starts");
    finish(&handle).expect("the job ends");
    assert_eq!(service.values(), [10_010, 10_010_010, 20_010_010]);
    assert_eq!(handle.metrics().total("numLateRecordsDropped"), 10);
}

#[test]
fn a_source_that_runs_ahead_of_its_group_is_paused_and_resumed() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let gate = std::sync::Arc::new(crate::support::Gate::default());
    let drift = Duration::from_millis(50);
    let strategy = || WatermarkStrategy::bounded(Duration::ZERO).aligned("group", drift);
    let mut fast = Numbers::new(1, 2_000);
    fast.pace = u64::MAX;
    let mut slow = fast.clone();
    slow.gate = Some((100, gate.clone()));
    let paused = fast.paused.clone();
    slow.paused = std::sync::Arc::default();
    let job = Job::new("aligned");
    let fast = job.from_source("fast", fast, strategy());
    job.from_source("slow", slow, strategy())
        .union([fast])
        .sink_to("memory", MemorySink::staged(&service));
    let handle = job
        .start(config(&dir).build().expect("valid"))
        .expect("it starts");
    crate::support::until("the fast source to be paused", || {
        paused.load(std::sync::atomic::Ordering::SeqCst) > 0
    });
    gate.open();
    finish(&handle).expect("both end, so the fast one was resumed");
    assert_eq!(service.count(), 4_000);
}

#[test]
fn alignment_without_watermarks_is_refused() {
    let job = Job::new("aligned");
    let strategy = WatermarkStrategy::none().aligned("group", Duration::ZERO);
    job.from_source("numbers", Numbers::new(1, 1), strategy)
        .sink_to("memory", MemorySink::eager(&Service::default()));
    let config = aqueduct_runtime::JobConfig::builder()
        .build()
        .expect("valid");
    let report = job.start(config).expect_err("refused").report();
    assert!(report.contains("'numbers' is aligned"), "{report}");
}
