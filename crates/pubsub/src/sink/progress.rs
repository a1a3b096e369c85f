//! The watch on progress: warns of a wait without a completion, and ends one that has gone without for too long.
//!
//! A pure core. What is bounded is the absence of completions, not the wait: one that keeps completing publishes may last
//! as long as it likes (PS-SINK-09).
//!
//! # Invariants
//!
//! - The clock starts at the later of the start of the wait and the last completion, so time without a wait never counts.
//! - A warning at most once an interval over all waits of the writer (PS-SINK-10).

use std::time::Duration;

use aqueduct_connector::Moment;

/// No wait is silent for longer (BASE-36).
const MOST_SILENCE: Duration = Duration::from_secs(60);

/// Watches one writer's waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    budget: Duration,
    silence: Duration,
    waiting_since: Option<Moment>,
    last_completion: Moment,
    last_warning: Option<Moment>,
}

/// What a wait has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stall {
    /// Nothing to say.
    No,
    /// So long without a completion.
    Warn(Duration),
    /// The budget is spent.
    Expired(Duration),
}

impl Progress {
    pub(crate) fn new(budget: Duration) -> Self {
        Self {
            budget,
            silence: (budget / 10).min(MOST_SILENCE),
            waiting_since: None,
            last_completion: Moment::ORIGIN,
            last_warning: None,
        }
    }

    /// The owner waits as of `now`; again during the same wait changes nothing.
    pub(crate) fn waiting(&mut self, now: Moment) {
        self.waiting_since.get_or_insert(now);
    }

    /// The wait is over.
    pub(crate) fn done(&mut self) {
        self.waiting_since = None;
    }

    /// A publish completed, well or not, or something began that the budget starts anew for.
    pub(crate) fn completed(&mut self, now: Moment) {
        self.last_completion = now;
    }

    /// Since when the wait under way has gone without a completion.
    pub(crate) fn idle_from(&self) -> Option<Moment> {
        Some(self.waiting_since?.max(self.last_completion))
    }

    /// When [`check`](Self::check) will next have something to say.
    pub(crate) fn deadline(&self, bounded: bool) -> Option<Moment> {
        let idle_from = self.idle_from()?;
        let quiet_until = self
            .last_warning
            .map_or(Moment::ORIGIN, |at| at.after(self.silence));
        let warning = idle_from.after(self.silence).max(quiet_until);
        Some(if bounded {
            warning.min(idle_from.after(self.budget))
        } else {
            warning
        })
    }

    /// What the wait has come to; `bounded` says whether the budget applies to what is waited for.
    pub(crate) fn check(&mut self, now: Moment, bounded: bool) -> Stall {
        let Some(idle_from) = self.idle_from() else {
            return Stall::No;
        };
        let idle = now.since(idle_from);
        if bounded && idle >= self.budget {
            return Stall::Expired(idle);
        }
        if idle < self.silence
            || self
                .last_warning
                .is_some_and(|at| now < at.after(self.silence))
        {
            return Stall::No;
        }
        self.last_warning = Some(now);
        Stall::Warn(idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    fn watch() -> Progress {
        Progress::new(Duration::from_secs(100))
    }

    #[test]
    fn completions_just_within_the_budget_let_a_wait_last_for_ever() {
        let mut watch = watch();
        watch.waiting(at(0));
        for turn in 1..=20 {
            assert!(!matches!(
                watch.check(at(90 * turn), true),
                Stall::Expired(_)
            ));
            watch.completed(at(90 * turn));
        }
        assert_eq!(
            watch.check(at(1_900), true),
            Stall::Expired(Duration::from_secs(100))
        );
    }

    #[test]
    fn time_without_a_wait_does_not_count() {
        let mut watch = watch();
        watch.completed(at(1));
        watch.waiting(at(500));
        assert_eq!(watch.check(at(509), true), Stall::No);
        assert_eq!(watch.deadline(true), Some(at(510)));
        watch.done();
        assert_eq!(watch.check(at(10_000), true), Stall::No);
        assert_eq!(watch.deadline(true), None);
    }

    #[test]
    fn a_tenth_of_the_budget_is_warned_about_once_an_interval_over_all_waits() {
        let mut watch = watch();
        watch.waiting(at(0));
        assert_eq!(
            watch.check(at(10), true),
            Stall::Warn(Duration::from_secs(10))
        );
        watch.done();
        watch.waiting(at(11));
        assert_eq!(watch.check(at(19), true), Stall::No);
        assert_eq!(
            watch.check(at(21), true),
            Stall::Warn(Duration::from_secs(10))
        );
        let mut long = Progress::new(Duration::from_secs(86_400));
        long.waiting(at(0));
        assert_eq!(long.deadline(true), Some(at(60)), "a minute at most");
    }

    #[test]
    fn what_the_budget_does_not_bound_only_warns() {
        let mut watch = watch();
        watch.waiting(at(0));
        assert!(matches!(watch.check(at(1_000), false), Stall::Warn(_)));
        assert!(matches!(watch.check(at(1_001), true), Stall::Expired(_)));
    }

    #[test]
    fn a_budget_near_the_ceiling_never_reads_as_spent() {
        let mut watch = Progress::new(Duration::from_nanos(i64::MAX as u64));
        watch.waiting(at(1));
        assert!(!matches!(
            watch.check(at(1_000_000), true),
            Stall::Expired(_)
        ));
    }
}
