//! The suites that every source and every sink passes.
//!
//! A connector's test describes a *world*: a service with some data, how to make a source or sink upon it, and how to
//! ask the service what it holds. [`source`](fn@source) and [`sink`](fn@sink) then run every check of the contract in
//! fresh worlds, over a few seeds and as many points as the [`Effort`] allows. A failure is a panic that names the
//! check and the seed.
//!
//! ```no_run
//! # use aqueduct_testkit::conformance::{self, Effort, SourceWorld};
//! # async fn example<W: SourceWorld>(start: impl AsyncFn(u64) -> W) {
//! let report = conformance::source(Effort::default(), async |seed| start(seed).await).await;
//! report.assert_all_but(&[]);
//! # }
//! ```

pub mod sink;
pub mod source;

pub use sink::{Accounting, Durable, Fate, SinkWorld, sink};
pub use source::{SourceWorld, source};

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::AssertUnwindSafe;

use aqueduct_connector::Error;
use aqueduct_tokio::panic_text;
use futures::FutureExt;

use crate::log::{Captured, Marker};

/// How often a record takes effect when everything that may fail has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// Once or more.
    AtLeastOnce,
    /// Once, also because a repetition changes nothing.
    ExactlyOnce,
}

/// Whether a world can do what a check needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// It did.
    Done,
    /// It cannot; checks that need it are reported as not run.
    Missing,
}

/// How much a suite tries.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Seeds to run every check with; the environment may replace them, see [`seeds`](crate::seeds()). Default: `0..3`.
    pub seeds: Range<u64>,
    /// At most so many points of a run to stop, fail or restore at. Default: 12. In-memory worlds afford all.
    pub points: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            seeds: 0..3,
            points: 12,
        }
    }
}

impl Effort {
    /// Points from 0 to `last`, both included, evenly spread if they are too many.
    fn points(&self, last: usize) -> Vec<usize> {
        let most = self.points.max(2);
        if last < most {
            return (0..=last).collect();
        }
        (0..most).map(|at| at * last / (most - 1)).collect()
    }
}

/// What a suite ran.
#[must_use = "checks that did not run prove nothing"]
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The checks that ran, all of them passed.
    pub ran: Vec<&'static str>,
    /// The checks that did not run, and what the world lacks.
    pub not_run: Vec<(&'static str, &'static str)>,
}

impl Report {
    /// Asserts that no check was left out but those named.
    ///
    /// # Panics
    ///
    /// If another one was left out, or one of those named was run.
    pub fn assert_all_but(&self, names: &[&str]) {
        let left_out: Vec<&str> = self.not_run.iter().map(|(name, _)| *name).collect();
        assert_eq!(left_out, names, "checks that did not run: {self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} checks passed", self.ran.len())?;
        let mut left_out = self.not_run.iter();
        left_out.try_for_each(|(name, lacks)| write!(f, "; `{name}` did not run: {lacks}"))
    }
}

/// Runs one check, puts its name and seed before what it panics with, and looks for the marker in its log.
async fn run<O>(
    name: &'static str,
    seed: u64,
    marker: Option<Marker>,
    check: impl Future<Output = O>,
) -> O {
    let log: Option<Captured> = marker.map(|_| crate::log::capture());
    let outcome = AssertUnwindSafe(check).catch_unwind().await;
    if let (Some(marker), Some(log)) = (marker, &log) {
        marker.assert_absent_from_log(log);
    }
    drop(log);
    outcome.unwrap_or_else(|panic| {
        panic!(
            "conformance check `{name}`, seed {seed}: {}",
            panic_text(&*panic)
        )
    })
}

/// Unwraps what must not fail, showing the whole chain of causes.
#[track_caller]
fn well<O>(what: &str, outcome: Result<O, Error>) -> O {
    match outcome {
        Ok(output) => output,
        Err(error) => panic!("{what} failed: {}", error.report()),
    }
}

/// Compares what arrived with what was due.
#[track_caller]
fn compare<K: Ord + fmt::Debug>(
    guarantee: Guarantee,
    due: impl IntoIterator<Item = K>,
    arrived: impl IntoIterator<Item = K>,
) {
    let mut balance: BTreeMap<K, (u64, u64)> = BTreeMap::new();
    due.into_iter()
        .for_each(|key| balance.entry(key).or_default().0 += 1);
    arrived
        .into_iter()
        .for_each(|key| balance.entry(key).or_default().1 += 1);
    let keys = |wrong: fn(u64, u64) -> bool| -> Vec<&K> {
        let wrong = balance
            .iter()
            .filter(|(_, (due, arrived))| wrong(*due, *arrived));
        wrong.map(|(key, _)| key).collect()
    };
    let lost = keys(|due, arrived| arrived < due);
    assert!(
        lost.is_empty(),
        "lost {} records, such as {:?}",
        lost.len(),
        lost[0]
    );
    let foreign = keys(|due, _| due == 0);
    assert!(
        foreign.is_empty(),
        "{} records nobody sent, such as {:?}",
        foreign.len(),
        foreign[0]
    );
    if guarantee == Guarantee::ExactlyOnce {
        let twice = keys(|due, arrived| arrived > due);
        assert!(
            twice.is_empty(),
            "{} records more than once, such as {:?}",
            twice.len(),
            twice[0]
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_all_or_evenly_spread_with_both_ends() {
        let effort = Effort {
            seeds: 0..1,
            points: 4,
        };
        assert_eq!(effort.points(0), [0]);
        assert_eq!(effort.points(3), [0, 1, 2, 3]);
        assert_eq!(effort.points(9), [0, 3, 6, 9]);
    }

    #[test]
    fn a_comparison_tells_lost_foreign_and_repeated_records_apart() {
        let says = |guarantee, due: &[u32], arrived: &[u32]| {
            let compared = std::panic::catch_unwind(|| {
                compare(guarantee, due.iter().copied(), arrived.iter().copied());
            });
            compared
                .err()
                .map(|panic| panic_text(&*panic))
                .unwrap_or_default()
        };
        assert_eq!(says(Guarantee::ExactlyOnce, &[1, 2, 2], &[2, 1, 2]), "");
        assert_eq!(says(Guarantee::AtLeastOnce, &[1], &[1, 1]), "");
        assert!(says(Guarantee::AtLeastOnce, &[1, 1], &[1]).starts_with("lost 1"));
        assert!(says(Guarantee::AtLeastOnce, &[1], &[1, 2]).contains("nobody sent"));
        assert!(says(Guarantee::ExactlyOnce, &[1], &[1, 1]).contains("more than once"));
    }
}
