//! Time, as the host gives it.
//!
//! Connectors read no system clock and start no timer of their own: a host hands over a [`Clock`], and a simulation
//! replays because it hands over a [`ManualClock`]. Two kinds of time never mix: [`Moment`] is monotonic and measures
//! waits, [`Timestamp`] is wall-clock or event time.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A point on the host's monotonic clock, counted from an origin of the host's choosing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(Duration);

impl Moment {
    /// The clock's origin.
    pub const ORIGIN: Self = Self(Duration::ZERO);
    /// Later than any moment a clock shows.
    pub const NEVER: Self = Self(Duration::MAX);

    /// The moment `since` after the origin.
    #[must_use]
    pub const fn from_origin(since: Duration) -> Self {
        Self(since)
    }

    /// Time since the origin.
    #[must_use]
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// `self + wait`; stays at [`Moment::NEVER`] instead of wrapping, so a huge budget never reads as expired.
    #[must_use]
    pub const fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(wait))
    }

    /// Time from `earlier` to `self`, zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Milliseconds since 1970-01-01T00:00:00Z: wall-clock or event time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Earlier than every event.
    pub const MIN: Self = Self(i64::MIN);
    /// Later than every event; the watermark of an input that has ended.
    pub const MAX: Self = Self(i64::MAX);

    /// From milliseconds since the epoch.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// `self - span`, saturating at [`Timestamp::MIN`].
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)),
        )
    }

    /// `self + span`, saturating at [`Timestamp::MAX`].
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)),
        )
    }
}

/// The host's clocks. Cheap to call, but a call a batch is better than a call a record.
pub trait Clock: Send + Sync {
    /// The monotonic clock.
    fn now(&self) -> Moment;

    /// The wall clock.
    fn wall(&self) -> Timestamp;

    /// A new timer, unset. Reuse one per waiting place; it is re-armed without allocation.
    fn timer(&self) -> Box<dyn Timer>;
}

/// A re-armable wait for one moment. It may be made by an owner and live in an I/O task.
pub trait Timer: Send {
    /// Arms the timer for `at`, or disarms it. An earlier setting is forgotten.
    fn set(&mut self, at: Option<Moment>);

    /// `Ready` once the armed moment has come, again and again until re-armed; `Pending` when unarmed. Polls must happen
    /// inside the host's runtime.
    fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// A clock that stands still until it is told to move: for tests and replayed simulations.
///
/// Clones share one time.
#[derive(Clone)]
pub struct ManualClock {
    state: Arc<Mutex<ManualState>>,
}

struct ManualState {
    now: Moment,
    wall_origin: Timestamp,
    waiting: Vec<(Moment, Waker)>,
}

impl ManualClock {
    /// A clock at its origin, the wall clock showing `wall`.
    #[must_use]
    pub fn new(wall: Timestamp) -> Self {
        Self {
            state: Arc::new(Mutex::new(ManualState {
                now: Moment::ORIGIN,
                wall_origin: wall,
                waiting: Vec::new(),
            })),
        }
    }

    /// Moves both clocks ahead and wakes every timer that has come due.
    pub fn advance(&self, by: Duration) {
        let due: Vec<Waker> = {
            let mut state = self.lock();
            state.now = state.now.after(by);
            let now = state.now;
            let (due, later) = state.waiting.drain(..).partition(|(at, _)| *at <= now);
            state.waiting = later;
            let due: Vec<(Moment, Waker)> = due;
            due.into_iter().map(|(_, waker)| waker).collect()
        };
        due.into_iter().for_each(Waker::wake);
    }

    /// The earliest moment that a timer waits for, if any does.
    #[must_use]
    pub fn next_timer(&self) -> Option<Moment> {
        self.lock().waiting.iter().map(|(at, _)| *at).min()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ManualState> {
        // A panic while holding it leaves plain data behind, valid at every point.
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock")
            .field("now", &self.lock().now)
            .finish_non_exhaustive()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        self.lock().now
    }

    fn wall(&self) -> Timestamp {
        let state = self.lock();
        state.wall_origin.after(state.now.since_origin())
    }

    fn timer(&self) -> Box<dyn Timer> {
        Box::new(ManualTimer {
            clock: self.clone(),
            at: None,
        })
    }
}

struct ManualTimer {
    clock: ManualClock,
    at: Option<Moment>,
}

impl Timer for ManualTimer {
    fn set(&mut self, at: Option<Moment>) {
        self.at = at;
    }

    fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(at) = self.at else {
            return Poll::Pending;
        };
        let mut state = self.clock.lock();
        if at <= state.now {
            return Poll::Ready(());
        }
        if at < Moment::NEVER {
            let known = state
                .waiting
                .iter()
                .any(|(m, w)| *m == at && w.will_wake(cx.waker()));
            if !known {
                state.waiting.push((at, cx.waker().clone()));
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_near_the_ceiling_never_reads_as_expired() {
        let start = Moment::from_origin(Duration::from_secs(5));
        assert!(start.after(Duration::MAX) > start);
        assert_eq!(start.after(Duration::MAX), Moment::NEVER);
        assert_eq!(Timestamp::MAX.after(Duration::from_secs(1)), Timestamp::MAX);
        assert_eq!(Timestamp::MIN.before(Duration::MAX), Timestamp::MIN);
    }

    #[test]
    fn a_manual_timer_is_due_exactly_at_its_moment() {
        let clock = ManualClock::new(Timestamp::from_millis(1_000));
        let mut timer = clock.timer();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(timer.poll_elapsed(&mut cx).is_pending(), "unarmed");
        timer.set(Some(Moment::ORIGIN.after(Duration::from_millis(10))));
        assert!(timer.poll_elapsed(&mut cx).is_pending());
        assert_eq!(
            clock.next_timer(),
            Some(Moment::from_origin(Duration::from_millis(10)))
        );
        clock.advance(Duration::from_millis(9));
        assert!(timer.poll_elapsed(&mut cx).is_pending());
        clock.advance(Duration::from_millis(1));
        assert!(timer.poll_elapsed(&mut cx).is_ready());
        assert_eq!(clock.wall(), Timestamp::from_millis(1_010));
    }
}
