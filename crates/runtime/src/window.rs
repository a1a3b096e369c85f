//! Event-time windows over keyed streams: tumbling, hopping, cumulating.
//!
//! A window is `[start, end)`; it gives its result when the watermark reaches `end - 1 ms`, once, and is
//! forgotten. A record whose windows have all closed is late: it is counted as `numLateRecordsDropped` and
//! dropped. Records without an event time fail the job.
//!
//! State is kept by key and window and is part of every checkpoint.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use aqueduct_connector::metrics::Counter;
use aqueduct_connector::options::ConfigError;
use aqueduct_connector::source::Collector;
use aqueduct_connector::state::{StateReader, StateWriter};
use aqueduct_connector::{Error, Result, Timestamp, Versioned};

use crate::functions::RecordContext;
use crate::keyed::{Key, KeyedProcessFunction, Timers};
use crate::operator::OperatorContext;
use crate::stream::{KeyedStream, Stream};

/// A span of event time: `[start, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window {
    /// Its first millisecond.
    pub start: Timestamp,
    /// The first millisecond behind it.
    pub end: Timestamp,
}

/// How event time is cut into windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    kind: Kind,
    size: i64,
    /// Distance between starts (hopping) or ends (cumulating).
    step: i64,
    offset: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Hopping,
    Cumulating,
}

fn millis(name: &'static str, span: Duration) -> Result<i64, ConfigError> {
    match i64::try_from(span.as_millis()) {
        Ok(millis) if millis > 0 && span.subsec_nanos().is_multiple_of(1_000_000) => Ok(millis),
        _ => Err(ConfigError::invalid(
            name,
            format!("{span:?} is not a whole positive number of milliseconds"),
        )),
    }
}

/// Windows that one record may be in, at most.
const MOST_WINDOWS: i64 = 10_000;

impl Windows {
    /// Windows of `size`, one behind the other.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] unless the size is a whole positive number of milliseconds.
    pub fn tumbling(size: Duration) -> Result<Self, ConfigError> {
        Self::hopping(size, size)
    }

    /// Windows of `size`, one every `slide`; they overlap if `slide` is shorter.
    ///
    /// # Errors
    ///
    /// As [`tumbling`](Self::tumbling), and if a record would be in more than 10,000 windows.
    pub fn hopping(size: Duration, slide: Duration) -> Result<Self, ConfigError> {
        let (size, step) = (millis("window.size", size)?, millis("window.slide", slide)?);
        Self::of(Kind::Hopping, size, step)
    }

    /// Windows that start every `size` and end every `step` until the next starts.
    ///
    /// # Errors
    ///
    /// As [`hopping`](Self::hopping), and unless `size` is a multiple of `step`.
    pub fn cumulating(size: Duration, step: Duration) -> Result<Self, ConfigError> {
        let (size, step) = (millis("window.size", size)?, millis("window.step", step)?);
        if size % step != 0 {
            return Err(ConfigError::Conflict {
                first: "window.size",
                second: "window.step",
                reason: format!("{size} ms is not a multiple of {step} ms"),
            });
        }
        Self::of(Kind::Cumulating, size, step)
    }

    fn of(kind: Kind, size: i64, step: i64) -> Result<Self, ConfigError> {
        if size / step > MOST_WINDOWS {
            return Err(ConfigError::invalid(
                "window.size",
                format!(
                    "a record would be in {} windows, above the most, {MOST_WINDOWS}",
                    size / step
                ),
            ));
        }
        Ok(Self {
            kind,
            size,
            step,
            offset: 0,
        })
    }

    /// Moves all windows by `offset`, which may be negative: days that start at local midnight.
    #[must_use]
    pub fn offset_millis(mut self, offset: i64) -> Self {
        self.offset = offset;
        self
    }

    /// The windows that hold `at`, the earliest end first.
    pub fn of_time(&self, at: Timestamp) -> impl Iterator<Item = Window> + use<> {
        let at = at.millis();
        let Self {
            kind, size, step, ..
        } = *self;
        let floor =
            |span: i64| at.saturating_sub((at.saturating_sub(self.offset)).rem_euclid(span));
        let (first_start, first_end, start_step, until) = match kind {
            // The last window to hold it starts at or before it, the first one `size` earlier.
            Kind::Hopping => {
                let last = floor(step);
                let count = (size - (at - last) + step - 1).div_euclid(step);
                let first = last.saturating_sub((count - 1).saturating_mul(step));
                (first, first.saturating_add(size), step, count)
            }
            Kind::Cumulating => {
                let start = floor(size);
                let passed = (at - start).div_euclid(step);
                (
                    start,
                    start.saturating_add((passed + 1) * step),
                    0,
                    size / step - passed,
                )
            }
        };
        (0..until).map(move |nth| Window {
            start: Timestamp::from_millis(first_start.saturating_add(nth * start_step)),
            end: Timestamp::from_millis(first_end.saturating_add(nth * step)),
        })
    }
}

/// What is kept of a window's records, and what it gives: one value a subtask, made by a factory.
pub trait WindowFunction<K: Key, T, O> {
    /// What is kept of one key's window.
    type State;

    /// Name of the state's format, for error texts.
    const STATE_NAME: &'static str;

    /// Version of the state's format that [`encode`](Self::encode) writes, from 1.
    const STATE_VERSION: u32;

    /// Adds a record to a window; `None` is a window without records yet.
    ///
    /// # Errors
    ///
    /// Fails the job; so for every method below.
    fn add(&mut self, state: &mut Option<Self::State>, value: &T) -> Result<()>;

    /// The window has closed. What is emitted gets the window's last millisecond as event time.
    #[expect(clippy::missing_errors_doc, reason = "as for `add`")]
    fn result(
        &mut self,
        key: &K,
        window: Window,
        state: Self::State,
        out: &mut Collector<'_, O>,
    ) -> Result<()>;

    /// Writes a window's state.
    fn encode(&self, state: &Self::State, out: &mut StateWriter);

    /// Reads a window's state written as any version up to [`STATE_VERSION`](Self::STATE_VERSION).
    #[expect(clippy::missing_errors_doc, reason = "as for `add`")]
    fn decode(&self, version: u32, reader: &mut StateReader<'_>) -> Result<Self::State>;
}

impl<K: Key, T: Send + 'static> KeyedStream<K, T> {
    /// Applies `factory`'s function to each key's windows.
    pub fn window<O: Send + 'static, F: WindowFunction<K, T, O> + 'static>(
        self,
        name: &str,
        windows: Windows,
        factory: impl Fn() -> F + Send + Sync + 'static,
    ) -> Stream<O> {
        self.process(name, move || Windowed {
            windows,
            function: factory(),
            late: None,
            types: PhantomData,
        })
    }
}

struct Windowed<F, K, T, O> {
    windows: Windows,
    function: F,
    late: Option<Counter>,
    types: PhantomData<fn(K, T) -> O>,
}

/// The last millisecond of a window that ends at `end`.
fn closes_at(end: Timestamp) -> Timestamp {
    end.before(Duration::from_millis(1))
}

impl<K: Key, T, O, F: WindowFunction<K, T, O>> KeyedProcessFunction<K, T, O>
    for Windowed<F, K, T, O>
{
    /// By end, then start.
    type State = BTreeMap<(Timestamp, Timestamp), F::State>;

    const STATE_NAME: &'static str = F::STATE_NAME;
    const STATE_VERSION: u32 = F::STATE_VERSION;

    fn open(&mut self, context: &OperatorContext) -> Result<()> {
        self.late = Some(context.context.metrics.counter("numLateRecordsDropped"));
        Ok(())
    }

    fn process(
        &mut self,
        _key: &K,
        state: &mut Option<Self::State>,
        value: T,
        info: &RecordContext,
        timers: &mut Timers<'_, K>,
        _out: &mut Collector<'_, O>,
    ) -> Result<()> {
        let at = info.timestamp.ok_or_else(|| {
            Error::user(
                "a record without an event time reached a window: set one by the source's watermark strategy",
            )
        })?;
        let (mut closed, mut open) = (false, false);
        for window in self.windows.of_time(at) {
            let closes = closes_at(window.end);
            if closes <= info.watermark {
                closed = true;
                continue;
            }
            open = true;
            timers.set(closes);
            let slot = state.get_or_insert_default();
            let mut kept = slot.remove(&(window.end, window.start));
            self.function.add(&mut kept, &value)?;
            if let Some(kept) = kept {
                slot.insert((window.end, window.start), kept);
            }
        }
        if closed
            && !open
            && let Some(counter) = &self.late
        {
            counter.increment();
        }
        Ok(())
    }

    fn on_timer(
        &mut self,
        key: &K,
        state: &mut Option<Self::State>,
        at: Timestamp,
        _timers: &mut Timers<'_, K>,
        out: &mut Collector<'_, O>,
    ) -> Result<()> {
        let Some(slot) = state else { return Ok(()) };
        while let Some(entry) = slot.first_entry() {
            let (end, start) = *entry.key();
            if closes_at(end) > at {
                break;
            }
            self.function
                .result(key, Window { start, end }, entry.remove(), out)?;
        }
        if slot.is_empty() {
            *state = None;
        }
        Ok(())
    }

    fn encode(&self, state: &Self::State, out: &mut StateWriter) {
        out.count(state.len());
        for ((end, start), kept) in state {
            let mut nested = StateWriter::new();
            self.function.encode(kept, &mut nested);
            out.i64(end.millis())
                .i64(start.millis())
                .bytes(&nested.finish(F::STATE_VERSION).bytes);
        }
    }

    fn decode(&self, version: u32, reader: &mut StateReader<'_>) -> Result<Self::State> {
        let mut state = BTreeMap::new();
        for _ in 0..reader.count(20)? {
            let end = Timestamp::from_millis(reader.i64()?);
            let start = Timestamp::from_millis(reader.i64()?);
            let bytes = Versioned::new(version, reader.bytes()?);
            let mut nested = StateReader::open(F::STATE_NAME, &bytes, 1..=F::STATE_VERSION)?;
            let kept = self.function.decode(version, &mut nested)?;
            nested.finish()?;
            state.insert((end, start), kept);
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(windows: Windows, at: i64) -> Vec<(i64, i64)> {
        windows
            .of_time(Timestamp::from_millis(at))
            .map(|window| (window.start.millis(), window.end.millis()))
            .collect()
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_time_is_in_one_tumbling_window_also_before_the_epoch() {
        let windows = Windows::tumbling(ms(10)).expect("valid");
        assert_eq!(of(windows, 0), [(0, 10)]);
        assert_eq!(of(windows, 9), [(0, 10)]);
        assert_eq!(of(windows, 10), [(10, 20)]);
        assert_eq!(of(windows, -1), [(-10, 0)]);
        assert_eq!(of(windows.offset_millis(3), 2), [(-7, 3)]);
    }

    #[test]
    fn a_time_is_in_every_hopping_window_that_holds_it() {
        let windows = Windows::hopping(ms(10), ms(4)).expect("valid");
        assert_eq!(of(windows, 9), [(0, 10), (4, 14), (8, 18)]);
        assert_eq!(of(windows, 10), [(4, 14), (8, 18)]);
        let sparse = Windows::hopping(ms(4), ms(10)).expect("valid");
        assert_eq!(of(sparse, 3), [(0, 4)]);
        assert_eq!(of(sparse, 4), [(0, 0); 0], "between two windows");
    }

    #[test]
    fn a_time_is_in_every_cumulating_window_that_has_not_ended() {
        let windows = Windows::cumulating(ms(12), ms(4)).expect("valid");
        assert_eq!(of(windows, 0), [(0, 4), (0, 8), (0, 12)]);
        assert_eq!(of(windows, 4), [(0, 8), (0, 12)]);
        assert_eq!(of(windows, 11), [(0, 12)]);
        assert_eq!(of(windows, 12)[0], (12, 16));
    }

    #[test]
    fn impossible_windows_are_refused_by_name() {
        for refused in [
            Windows::tumbling(Duration::ZERO),
            Windows::tumbling(Duration::from_micros(1_500)),
            Windows::cumulating(ms(10), ms(4)),
            Windows::hopping(Duration::from_secs(86_400), ms(1)),
        ] {
            let error = refused.expect_err("it is refused").to_string();
            assert!(error.contains("window.size"), "{error}");
        }
    }
}
