//! A token bucket: how many records may go now, and when more may. Pure; time comes in.

use std::time::Duration;

use aqueduct_connector::Moment;

/// The share of a second that may go at once after a pause.
const BURST: Duration = Duration::from_millis(100);

/// Shorter waits than this are gathered, so that a high rate wakes 200 times a second and not a
/// million times.
const LEAST_WAIT: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Pace {
    per_second: f64,
    /// Fractions of a record included.
    tokens: f64,
    /// Tokens were counted up to here.
    counted: Option<Moment>,
}

impl Pace {
    /// At least one record may go at once, however low the rate.
    pub(super) fn new(per_second: f64) -> Self {
        Self {
            per_second,
            tokens: 0.0,
            counted: None,
        }
    }

    /// Changes the rate from now on.
    pub(super) fn set_rate(&mut self, per_second: f64, now: Moment) {
        self.count(now);
        self.per_second = per_second;
    }

    /// How many of `wanted` may go at `now`; they are taken.
    pub(super) fn take(&mut self, wanted: u64, now: Moment) -> u64 {
        self.count(now);
        // A whole record is due when rounding has left a sliver missing.
        let due = (self.tokens + 1e-6).floor();
        let granted = due.min(wanted as f64);
        self.tokens = (self.tokens - granted).max(0.0);
        granted as u64
    }

    /// When to ask again after nothing was granted.
    pub(super) fn next(&self, now: Moment) -> Moment {
        if self.per_second <= 0.0 {
            return Moment::NEVER;
        }
        let missing = (1.0 - self.tokens).max(0.0) / self.per_second;
        let wait = Duration::try_from_secs_f64(missing).unwrap_or(Duration::MAX);
        now.after(wait.max(LEAST_WAIT))
    }

    fn count(&mut self, now: Moment) {
        let since = self
            .counted
            .map_or(Duration::ZERO, |counted| now.since(counted));
        self.counted = Some(now);
        let most = (self.per_second * BURST.as_secs_f64()).max(1.0);
        self.tokens = (self.tokens + self.per_second * since.as_secs_f64()).min(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(millis))
    }

    /// Records in ten seconds, asking whenever told to.
    fn run(pace: &mut Pace) -> u64 {
        let (mut now, mut total) = (at(0), 0);
        while now < at(10_000) {
            let granted = pace.take(128, now);
            total += granted;
            if granted == 0 {
                now = pace.next(now);
            }
        }
        total
    }

    #[test]
    fn the_rate_is_kept_from_one_in_seconds_to_a_million() {
        for rate in [0.5, 1.0, 3.0, 200.0, 1_000.0, 1_000_000.0] {
            let total = run(&mut Pace::new(rate)) as f64;
            let expected = rate * 10.0;
            let slack = (expected * 0.01).max(1.0);
            assert!((total - expected).abs() <= slack, "rate {rate}: {total}");
        }
    }

    #[test]
    fn a_pause_is_not_made_up_for_beyond_a_tenth_of_a_second() {
        let mut pace = Pace::new(1_000.0);
        assert_eq!(pace.take(10, at(0)), 0);
        assert_eq!(pace.take(10_000, at(60_000)), 100);
        let mut slow = Pace::new(1.0);
        slow.take(1, at(0));
        assert_eq!(slow.take(10, at(60_000)), 1);
    }

    #[test]
    fn no_share_of_the_rate_is_no_records_and_no_wakes() {
        let mut pace = Pace::new(0.0);
        assert_eq!(pace.take(1, at(1_000)), 0);
        assert_eq!(pace.next(at(1_000)), Moment::NEVER);
    }
}
