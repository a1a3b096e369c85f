//! Event time at the sources: strategies, per-split watermarks, idleness, alignment.
//!
//! # Invariants
//!
//! - A subtask's watermark is the least over its splits that are not idle, and never goes back.
//! - A split holds the watermark back from the moment it is assigned, not from its first record.
//! - Time without input counts towards idleness only while the subtask was able to read: neither
//!   backpressure nor a pause makes a split idle.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aqueduct_connector::source::{Record, SplitId};
use aqueduct_connector::{Moment, Timestamp};

/// A subtask without any split counts as idle after this long when no idleness is set, so that it does
/// not hold the watermark of the others for ever.
pub(crate) const SPLITLESS_IDLE: Duration = Duration::from_secs(10);

/// Sets the event time of every record of a batch; one virtual call a batch.
type Assigner<T> = Arc<dyn Fn(&mut [Record<T>]) + Send + Sync>;

/// Where a source's event times and watermarks come from.
pub struct WatermarkStrategy<T> {
    pub(crate) kind: Kind,
    pub(crate) assigner: Option<Assigner<T>>,
    pub(crate) idleness: Option<Duration>,
    pub(crate) alignment: Option<Alignment>,
}

impl<T> Clone for WatermarkStrategy<T> {
    fn clone(&self) -> Self {
        Self {
            kind: self.kind,
            assigner: self.assigner.clone(),
            idleness: self.idleness,
            alignment: self.alignment.clone(),
        }
    }
}

impl<T> fmt::Debug for WatermarkStrategy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatermarkStrategy")
            .field("kind", &self.kind)
            .field("idleness", &self.idleness)
            .field("alignment", &self.alignment)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    None,
    FromSource,
    Bounded(Duration),
}

/// Sources of one group do not run ahead of each other by more than a drift.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alignment {
    pub(crate) group: Arc<str>,
    pub(crate) max_drift: Duration,
}

impl<T> WatermarkStrategy<T> {
    fn of(kind: Kind) -> Self {
        Self {
            kind,
            assigner: None,
            idleness: None,
            alignment: None,
        }
    }

    pub(crate) fn has_watermarks(&self) -> bool {
        self.kind != Kind::None
    }

    /// No watermarks: event time does not pass until the input ends.
    #[must_use]
    pub fn none() -> Self {
        Self::of(Kind::None)
    }

    /// The watermarks that the source gives for its splits; a source that gives none has none.
    #[must_use]
    pub fn from_source() -> Self {
        Self::of(Kind::FromSource)
    }

    /// Per split, the greatest event time seen minus `lateness` and one millisecond. Records without an
    /// event time do not count.
    #[must_use]
    pub fn bounded(lateness: Duration) -> Self {
        Self::of(Kind::Bounded(lateness))
    }

    /// Takes every record's event time from its value, replacing the source's.
    #[must_use]
    pub fn timestamps(mut self, assign: impl Fn(&T) -> Timestamp + Send + Sync + 'static) -> Self {
        self.assigner = Some(Arc::new(move |records: &mut [Record<T>]| {
            for record in records {
                record.timestamp = Some(assign(&record.value));
            }
        }));
        self
    }

    /// A split without a record for this long does not hold the watermark back.
    #[must_use]
    pub fn idle_after(mut self, idleness: Duration) -> Self {
        self.idleness = Some(idleness);
        self
    }

    /// Pauses splits whose watermark is more than `max_drift` ahead of the least in `group`, over all
    /// sources of the job that name the group.
    #[must_use]
    pub fn aligned(mut self, group: impl Into<Arc<str>>, max_drift: Duration) -> Self {
        self.alignment = Some(Alignment {
            group: group.into(),
            max_drift,
        });
        self
    }
}

/// The watermark of one group's members, one cell a subtask of each source.
#[derive(Debug, Default)]
pub(crate) struct AlignmentGroups {
    groups: Mutex<HashMap<Arc<str>, Vec<Arc<AtomicI64>>>>,
}

impl AlignmentGroups {
    /// Adds a member; it holds the group back until it says otherwise.
    pub(crate) fn join(&self, group: &Arc<str>) -> Arc<AtomicI64> {
        let cell = Arc::new(AtomicI64::new(i64::MIN));
        self.lock()
            .entry(group.clone())
            .or_default()
            .push(cell.clone());
        cell
    }

    /// The least watermark of the group; members that are idle or ended show the greatest.
    pub(crate) fn least(&self, group: &Arc<str>) -> Timestamp {
        let least = self
            .lock()
            .get(group)
            .and_then(|cells| cells.iter().map(|cell| cell.load(Ordering::Relaxed)).min());
        least.map_or(Timestamp::MAX, Timestamp::from_millis)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<str>, Vec<Arc<AtomicI64>>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a subtask's splits say together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combined {
    /// The least watermark of the splits that are not idle.
    Watermark(Timestamp),
    /// All are idle; the greatest watermark of any, which nothing holds back any more.
    Idle(Timestamp),
}

struct SplitMark {
    watermark: Timestamp,
    last_record: Moment,
    paused: bool,
}

/// The watermarks of one subtask's splits.
pub(crate) struct SplitWatermarks {
    kind: Kind,
    idleness: Option<Duration>,
    splits: HashMap<SplitId, SplitMark>,
    /// Since when there is no split.
    splitless_since: Moment,
}

impl SplitWatermarks {
    pub(crate) fn new(kind: Kind, idleness: Option<Duration>, now: Moment) -> Self {
        Self {
            kind,
            idleness,
            splits: HashMap::new(),
            splitless_since: now,
        }
    }

    pub(crate) fn enabled(&self) -> bool {
        self.kind != Kind::None
    }

    pub(crate) fn added(&mut self, split: SplitId, now: Moment) {
        self.splits.entry(split).or_insert(SplitMark {
            watermark: Timestamp::MIN,
            last_record: now,
            paused: false,
        });
    }

    pub(crate) fn finished(&mut self, split: &SplitId, now: Moment) {
        if self.splits.remove(split).is_some() && self.splits.is_empty() {
            self.splitless_since = now;
        }
    }

    /// A batch of `split` came.
    pub(crate) fn records<T>(&mut self, split: &SplitId, records: &[Record<T>], now: Moment) {
        let Some(mark) = self.splits.get_mut(split) else {
            // A reader that names splits it was not given: keep them apart all the same.
            self.added(split.clone(), now);
            if self.splits.contains_key(split) {
                self.records(split, records, now);
            }
            return;
        };
        mark.last_record = now;
        if let Kind::Bounded(lateness) = self.kind {
            let greatest = records.iter().filter_map(|record| record.timestamp).max();
            if let Some(greatest) = greatest {
                let claim = greatest.before(lateness).before(Duration::from_millis(1));
                mark.watermark = mark.watermark.max(claim);
            }
        }
    }

    /// The source itself claims a watermark.
    pub(crate) fn claimed(&mut self, split: &SplitId, watermark: Timestamp, now: Moment) {
        if self.kind != Kind::FromSource {
            return;
        }
        self.added(split.clone(), now);
        if let Some(mark) = self.splits.get_mut(split) {
            mark.watermark = mark.watermark.max(watermark);
            mark.last_record = now;
        }
    }

    /// The subtask could not read for `blocked`: that time makes nothing idle.
    pub(crate) fn excuse(&mut self, blocked: Duration) {
        if self.idleness.is_some() {
            for mark in self.splits.values_mut() {
                mark.last_record = mark.last_record.after(blocked);
            }
        }
    }

    fn is_idle(&self, mark: &SplitMark, now: Moment) -> bool {
        !mark.paused
            && self
                .idleness
                .is_some_and(|idleness| now.since(mark.last_record) >= idleness)
    }

    pub(crate) fn combined(&self, now: Moment) -> Combined {
        if self.splits.is_empty() {
            let patience = self.idleness.unwrap_or(SPLITLESS_IDLE);
            return if now.since(self.splitless_since) >= patience {
                Combined::Idle(Timestamp::MIN)
            } else {
                Combined::Watermark(Timestamp::MIN)
            };
        }
        self.splits
            .values()
            .filter(|mark| !self.is_idle(mark, now))
            .map(|mark| mark.watermark)
            .min()
            .map_or_else(|| Combined::Idle(self.greatest()), Combined::Watermark)
    }

    fn greatest(&self) -> Timestamp {
        let all = self.splits.values().map(|mark| mark.watermark);
        all.max().unwrap_or(Timestamp::MIN)
    }

    /// When [`combined`](Self::combined) may change by time alone.
    pub(crate) fn next_change(&self, now: Moment) -> Option<Moment> {
        if self.splits.is_empty() {
            let at = self
                .splitless_since
                .after(self.idleness.unwrap_or(SPLITLESS_IDLE));
            return (at > now).then_some(at);
        }
        let idleness = self.idleness?;
        self.splits
            .values()
            .filter(|mark| !mark.paused)
            .map(|mark| mark.last_record.after(idleness))
            .filter(|at| *at > now)
            .min()
    }

    /// Whether a split that is not paused is above `limit`.
    pub(crate) fn is_ahead(&self, limit: Timestamp) -> bool {
        self.splits
            .values()
            .any(|mark| !mark.paused && mark.watermark > limit)
    }

    /// Which splits to pause and resume so that none is above `limit`.
    pub(crate) fn align(&mut self, limit: Timestamp, now: Moment) -> (Vec<SplitId>, Vec<SplitId>) {
        let (mut pause, mut resume) = (Vec::new(), Vec::new());
        for (id, mark) in &mut self.splits {
            let ahead = mark.watermark > limit;
            if ahead && !mark.paused {
                mark.paused = true;
                pause.push(id.clone());
            } else if !ahead && mark.paused {
                mark.paused = false;
                mark.last_record = now;
                resume.push(id.clone());
            }
        }
        pause.sort();
        resume.sort();
        (pause, resume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    fn record(millis: i64) -> Record<()> {
        Record {
            value: (),
            timestamp: Some(Timestamp::from_millis(millis)),
        }
    }

    fn id(name: &str) -> SplitId {
        SplitId::new(name)
    }

    #[test]
    fn the_slowest_split_holds_the_watermark_from_its_assignment_on() {
        let mut marks = SplitWatermarks::new(Kind::Bounded(Duration::from_millis(5)), None, at(0));
        marks.added(id("a"), at(0));
        marks.added(id("b"), at(0));
        marks.records(&id("a"), &[record(100), record(90)], at(0));
        assert_eq!(marks.combined(at(0)), Combined::Watermark(Timestamp::MIN));
        marks.records(&id("b"), &[record(50)], at(0));
        assert_eq!(
            marks.combined(at(0)),
            Combined::Watermark(Timestamp::from_millis(44))
        );
        marks.finished(&id("b"), at(0));
        assert_eq!(
            marks.combined(at(0)),
            Combined::Watermark(Timestamp::from_millis(94))
        );
    }

    #[test]
    fn an_idle_split_lets_go_but_backpressure_and_pauses_do_not_count() {
        let idleness = Some(Duration::from_secs(10));
        let mut marks = SplitWatermarks::new(Kind::Bounded(Duration::ZERO), idleness, at(0));
        marks.added(id("a"), at(0));
        assert_eq!(marks.next_change(at(0)), Some(at(10)));
        marks.excuse(Duration::from_secs(5));
        assert_eq!(marks.combined(at(14)), Combined::Watermark(Timestamp::MIN));
        assert_eq!(marks.combined(at(15)), Combined::Idle(Timestamp::MIN));
        marks.records(&id("a"), &[record(100)], at(15));
        let limit = Timestamp::from_millis(10);
        assert_eq!(marks.align(limit, at(15)).0, [id("a")]);
        assert_eq!(
            marks.combined(at(100)),
            Combined::Watermark(Timestamp::from_millis(99))
        );
        assert_eq!(
            marks.align(Timestamp::from_millis(99), at(100)).1,
            [id("a")]
        );
        assert_eq!(
            marks.combined(at(110)),
            Combined::Idle(Timestamp::from_millis(99))
        );
    }

    #[test]
    fn a_subtask_without_splits_becomes_idle_in_the_end() {
        let marks = SplitWatermarks::new(Kind::FromSource, None, at(0));
        assert_eq!(marks.combined(at(9)), Combined::Watermark(Timestamp::MIN));
        assert_eq!(marks.combined(at(10)), Combined::Idle(Timestamp::MIN));
    }
}
