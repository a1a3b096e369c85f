//! When to try again, and when a status decides.
//!
//! Pure: delays come out as numbers and randomness goes in as a seeded generator, so a simulation replays. Two kinds of
//! delay that never mix: [`RetrySchedule`] belongs to a connector's own loops (BASE-29), [`Backoff`] to calls on the
//! wire, whose delays a wire rule gives.
//!
//! # Not here
//!
//! Loops. Each ends differently, so each connector owns its own.

use std::num::NonZeroU32;
use std::time::Duration;

use aqueduct_connector::{Code, Error, Result, StatusChain};

/// No delay of a [`RetrySchedule`] is shorter.
pub const SHORTEST_DELAY: Duration = Duration::from_millis(1);

/// The jitter of every schedule outside tests: it spreads retries and costs nothing in expectation.
pub const JITTER: f64 = 0.25;

/// Delays that double from `initial` to `max`, each times a uniform factor in `[1 - jitter, 1 + jitter]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetrySchedule {
    initial: Duration,
    max: Duration,
    max_attempts: NonZeroU32,
    jitter: f64,
}

impl RetrySchedule {
    /// A schedule with the usual [`JITTER`].
    ///
    /// `max_attempts` includes the first. `what` names the options the numbers came from, for the error.
    ///
    /// # Errors
    ///
    /// A configuration error if `initial` is zero or `max` is below it.
    pub fn new(
        what: &str,
        initial: Duration,
        max: Duration,
        max_attempts: NonZeroU32,
    ) -> Result<Self> {
        if initial.is_zero() {
            return Err(Error::config(format!(
                "{what}: the initial retry delay must be above zero"
            )));
        }
        if max < initial {
            return Err(Error::config(format!(
                "{what}: the longest retry delay ({max:?}) must not be below the initial one ({initial:?})"
            )));
        }
        Ok(Self {
            initial,
            max,
            max_attempts,
            jitter: JITTER,
        })
    }

    /// The same schedule without jitter, for tests that count milliseconds.
    #[must_use]
    pub fn without_jitter(mut self) -> Self {
        self.jitter = 0.0;
        self
    }

    /// How often an item is attempted, the first attempt included.
    #[must_use]
    pub fn max_attempts(&self) -> NonZeroU32 {
        self.max_attempts
    }

    /// The wait after attempt `attempt` (from 1), or `None` if that was the last. At least 1 ms.
    #[must_use]
    pub fn delay_after(&self, attempt: u32, random: &mut fastrand::Rng) -> Option<Duration> {
        if attempt >= self.max_attempts.get() {
            return None;
        }
        let base = doubled(self.initial, self.max, attempt.saturating_sub(1));
        let factor = 1.0 + self.jitter * (2.0 * random.f64() - 1.0);
        let nanos = base.as_nanos() as f64 * factor;
        let delay = Duration::try_from_secs_f64(nanos / 1e9).unwrap_or(Duration::MAX);
        Some(delay.max(SHORTEST_DELAY))
    }
}

/// Delays with full jitter: uniform from zero to a bound that grows from `initial` by `factor` up to `max`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    factor: f64,
}

impl Backoff {
    /// Bounds that double from `initial` to `max`.
    #[must_use]
    pub const fn new(initial: Duration, max: Duration) -> Self {
        Self {
            initial,
            max,
            factor: 2.0,
        }
    }

    /// Grows by `factor` instead of 2; below 1 counts as 1.
    #[must_use]
    pub const fn with_factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// The longest that [`delay_after`](Self::delay_after) can answer for `attempt` (from 1).
    #[must_use]
    pub fn bound_after(&self, attempt: u32) -> Duration {
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let seconds = self.initial.as_secs_f64() * self.factor.max(1.0).powi(exponent);
        Duration::try_from_secs_f64(seconds)
            .unwrap_or(Duration::MAX)
            .min(self.max)
    }

    /// The wait after attempt `attempt` (from 1): uniform between zero and the bound.
    #[must_use]
    pub fn delay_after(&self, attempt: u32, random: &mut fastrand::Rng) -> Duration {
        let bound = u64::try_from(self.bound_after(attempt).as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(random.u64(0..=bound))
    }
}

/// `initial * 2^doublings`, capped at `max`.
fn doubled(initial: Duration, max: Duration, doublings: u32) -> Duration {
    let Some(factor) = 1u32.checked_shl(doublings) else {
        return max;
    };
    initial.saturating_mul(factor).min(max)
}

/// First half of a routed rejection (BASE-30): whether any status of the chain is one of `transient`.
///
/// A routed rejection needs this to be false *and* [`first_is`] to be true. Scanning for the second half would drop a
/// record over a server fault; not scanning for the first would drop one over an outage.
#[must_use]
pub fn transient_anywhere(chain: &StatusChain, transient: &[Code]) -> bool {
    chain.any(transient)
}

/// Second half of a routed rejection (BASE-30): whether the outermost status is one of `routed`.
#[must_use]
pub fn first_is(chain: &StatusChain, routed: &[Code]) -> bool {
    routed.contains(&chain.code())
}

#[cfg(test)]
mod tests {
    use aqueduct_connector::Status;
    use proptest::prelude::*;

    use super::*;

    fn schedule(initial: u64, max: u64, attempts: u32) -> RetrySchedule {
        RetrySchedule::new(
            "retry",
            Duration::from_millis(initial),
            Duration::from_millis(max),
            NonZeroU32::new(attempts).expect("tests pass at least 1"),
        )
        .expect("a valid schedule")
    }

    #[test]
    fn without_jitter_delays_double_up_to_the_cap_and_end() {
        let schedule = schedule(100, 350, 5).without_jitter();
        let mut random = fastrand::Rng::with_seed(1);
        let delays: Vec<_> = (1..=5)
            .map(|n| schedule.delay_after(n, &mut random))
            .collect();
        let ms = |n| Some(Duration::from_millis(n));
        assert_eq!(delays, [ms(100), ms(200), ms(350), ms(350), None]);
    }

    #[test]
    fn one_attempt_means_no_retry() {
        assert_eq!(
            schedule(1, 1, 1).delay_after(1, &mut fastrand::Rng::with_seed(1)),
            None
        );
    }

    #[test]
    fn wrong_numbers_are_refused_and_their_options_named() {
        let attempts = NonZeroU32::MIN;
        let zero = RetrySchedule::new(
            "sink.retry",
            Duration::ZERO,
            Duration::from_secs(1),
            attempts,
        );
        assert!(
            zero.expect_err("zero")
                .to_string()
                .starts_with("sink.retry:")
        );
        let below = RetrySchedule::new(
            "sink.retry",
            Duration::from_secs(2),
            Duration::from_secs(1),
            attempts,
        );
        assert!(
            below
                .expect_err("below")
                .to_string()
                .starts_with("sink.retry:")
        );
    }

    #[test]
    fn a_huge_attempt_count_neither_wraps_nor_panics() {
        let schedule = schedule(1, u64::MAX / 2, u32::MAX);
        let mut random = fastrand::Rng::with_seed(1);
        for attempt in [31, 32, 33, 64, 65, u32::MAX - 1] {
            assert!(
                schedule
                    .delay_after(attempt, &mut random)
                    .is_some_and(|d| d >= SHORTEST_DELAY)
            );
            let backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(60));
            assert_eq!(backoff.bound_after(attempt), Duration::from_secs(60));
        }
    }

    proptest! {
        #[test]
        fn every_delay_lies_within_its_jitter(
            initial in 1u64..10_000, extra in 0u64..100_000, attempt in 1u32..80, seed: u64,
        ) {
            let schedule = schedule(initial, initial + extra, 100);
            let delay = schedule.delay_after(attempt, &mut fastrand::Rng::with_seed(seed)).expect("not the last");
            let bare = schedule.without_jitter();
            let base = bare.delay_after(attempt, &mut fastrand::Rng::with_seed(seed)).expect("not the last");
            prop_assert!(delay >= SHORTEST_DELAY);
            prop_assert!(delay >= base.mul_f64(0.75 - 1e-9).max(SHORTEST_DELAY) - Duration::from_nanos(1), "{delay:?} {base:?}");
            prop_assert!(delay <= base.mul_f64(1.25 + 1e-9) + Duration::from_nanos(1), "{delay:?} {base:?}");
        }

        #[test]
        fn full_jitter_stays_below_its_bound_and_replays(
            initial in 1u64..1_000, max in 1_000u64..60_000, attempt in 1u32..50, seed: u64,
        ) {
            let backoff = Backoff::new(Duration::from_millis(initial), Duration::from_millis(max));
            let delay = backoff.delay_after(attempt, &mut fastrand::Rng::with_seed(seed));
            prop_assert!(delay <= backoff.bound_after(attempt));
            prop_assert!(backoff.bound_after(attempt) <= Duration::from_millis(max));
            prop_assert_eq!(delay, backoff.delay_after(attempt, &mut fastrand::Rng::with_seed(seed)));
        }
    }

    #[test]
    fn full_jitter_uses_the_whole_range() {
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let mut random = fastrand::Rng::with_seed(7);
        let delays: Vec<_> = (0..1_000)
            .map(|_| backoff.delay_after(1, &mut random))
            .collect();
        assert!(delays.iter().any(|d| *d < Duration::from_millis(10)));
        assert!(delays.iter().any(|d| *d > Duration::from_millis(90)));
    }

    #[test]
    fn a_rejection_is_routed_only_if_both_halves_hold() {
        const TRANSIENT: &[Code] = &[Code::Unavailable, Code::Internal];
        const ROUTED: &[Code] = &[Code::InvalidArgument];
        let status = |code| Status::new(code, "");
        let routed =
            |chain: &StatusChain| !transient_anywhere(chain, TRANSIENT) && first_is(chain, ROUTED);
        let bad = StatusChain::new(status(Code::InvalidArgument));
        assert!(routed(&bad));
        assert!(routed(&bad.clone().caused_by(status(Code::NotFound))));
        assert!(
            !routed(&bad.caused_by(status(Code::Unavailable))),
            "an outage below"
        );
        let inner =
            StatusChain::new(status(Code::Internal)).caused_by(status(Code::InvalidArgument));
        assert!(!routed(&inner), "a server fault above");
        let other =
            StatusChain::new(status(Code::NotFound)).caused_by(status(Code::InvalidArgument));
        assert!(!routed(&other), "the first status decides");
    }
}
