//! The request rate the service asks for (BT-WIRE-05), one limiter a client.
//!
//! Unlimited until the service first speaks of rates or refuses for load. From then on a rate in requests a second,
//! multiplied at most once a period by the factor the service names, by the least factor after `RESOURCE_EXHAUSTED`, and
//! by the greatest after a period of successes without a word. Five minutes of those lift the limit.
//!
//! A pure core: the owner asks for leave to send and is told when to ask again.

use std::time::Duration;

use aqueduct_connector::{Code, Moment};

use super::answers::RateInfo;

const LEAST_RATE: f64 = 0.1;
const MOST_RATE: f64 = 100_000.0;
const LEAST_START: f64 = 10.0;
const LEAST_FACTOR: f64 = 0.7;
const MOST_FACTOR: f64 = 1.3;
const PERIOD: Duration = Duration::from_secs(10);
const LIFTED_AFTER: Duration = Duration::from_secs(300);

/// Decides when the next request of a client may leave.
#[derive(Debug)]
pub(crate) struct RateLimit {
    limit: Option<Limit>,
    /// Requests of the period under way and of the one before, while there is no limit.
    window_start: Moment,
    window_requests: u32,
    last_window_requests: u32,
}

#[derive(Debug)]
struct Limit {
    /// Requests a second.
    rate: f64,
    /// When the next request may leave.
    next: Moment,
    changed: Moment,
    period: Duration,
    quiet_since: Moment,
    succeeded: bool,
}

impl RateLimit {
    pub(crate) fn new(now: Moment) -> Self {
        Self {
            limit: None,
            window_start: now,
            window_requests: 0,
            last_window_requests: 0,
        }
    }

    /// Takes leave to send one request at `now`.
    ///
    /// # Errors
    ///
    /// The moment to ask again.
    pub(crate) fn take(&mut self, now: Moment) -> Result<(), Moment> {
        let Some(limit) = &mut self.limit else {
            self.count(now);
            return Ok(());
        };
        if now < limit.next {
            return Err(limit.next);
        }
        // Unused leave is not saved up: a burst is what the limit is against.
        limit.next = now.after(Duration::from_secs_f64(1.0 / limit.rate));
        Ok(())
    }

    /// Requests a second, if limited.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.limit.as_ref().map(|limit| limit.rate)
    }

    /// Takes in how an attempt ended: what the service said about rates, and the codes it failed with.
    pub(crate) fn on_answer(
        &mut self,
        now: Moment,
        info: Option<RateInfo>,
        failures: impl Iterator<Item = Code>,
    ) {
        let (mut exhausted, mut unreached) = (false, false);
        for code in failures {
            exhausted |= code == Code::ResourceExhausted;
            unreached |= matches!(code, Code::Unavailable | Code::DeadlineExceeded);
        }
        if self.limit.is_none() {
            if info.is_none() && !exhausted {
                return;
            }
            let rate = self.recent_rate(now);
            self.limit = Some(Limit {
                rate,
                next: now,
                // The first word takes effect at once.
                changed: Moment::ORIGIN,
                period: Duration::ZERO,
                quiet_since: now,
                succeeded: false,
            });
        }
        let Some(limit) = &mut self.limit else { return };
        let spoken = info
            .map(|info| info.factor)
            .filter(|factor| factor.is_finite());
        let factor = if exhausted || unreached {
            Some(LEAST_FACTOR)
        } else {
            spoken
        };
        if info.is_some() || exhausted || unreached {
            limit.quiet_since = now;
            limit.succeeded = false;
        } else {
            limit.succeeded = true;
        }
        if now.since(limit.changed) < limit.period {
            return;
        }
        let quiet_period =
            limit.succeeded && now.since(limit.quiet_since) >= limit.period.max(PERIOD);
        let Some(factor) = factor.or(quiet_period.then_some(MOST_FACTOR)) else {
            return;
        };
        limit.rate =
            (limit.rate * factor.clamp(LEAST_FACTOR, MOST_FACTOR)).clamp(LEAST_RATE, MOST_RATE);
        limit.changed = now;
        limit.period = info
            .and_then(|info| info.period)
            .filter(|period| !period.is_zero())
            .unwrap_or(PERIOD);
        if now.since(limit.quiet_since) >= LIFTED_AFTER {
            self.limit = None;
            self.window_start = now;
            self.window_requests = 0;
        }
    }

    fn count(&mut self, now: Moment) {
        let elapsed = now.since(self.window_start);
        if elapsed >= PERIOD {
            self.last_window_requests = if elapsed < 2 * PERIOD {
                self.window_requests
            } else {
                0
            };
            self.window_requests = 0;
            self.window_start = now;
        }
        self.window_requests += 1;
    }

    fn recent_rate(&mut self, now: Moment) -> f64 {
        let elapsed = now.since(self.window_start).as_secs_f64();
        let requests = if elapsed >= 1.0 {
            f64::from(self.window_requests) / elapsed
        } else {
            f64::from(self.last_window_requests.max(self.window_requests)) / PERIOD.as_secs_f64()
        };
        requests.clamp(LEAST_START, MOST_RATE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(millis))
    }

    fn say(factor: f64) -> Option<RateInfo> {
        Some(RateInfo {
            period: Some(Duration::from_secs(10)),
            factor,
        })
    }

    fn none() -> std::iter::Empty<Code> {
        std::iter::empty()
    }

    #[test]
    fn nothing_limits_until_the_service_speaks() {
        let mut limit = RateLimit::new(at(0));
        for _ in 0..10_000 {
            assert_eq!(limit.take(at(1)), Ok(()));
        }
        limit.on_answer(at(2), None, [Code::Unavailable].into_iter());
        assert_eq!(
            limit.rate(),
            None,
            "an outage alone says nothing about rates"
        );
    }

    #[test]
    fn a_factor_takes_effect_at_most_once_a_period_and_is_clamped() {
        let mut limit = RateLimit::new(at(0));
        for _ in 0..500 {
            let _ = limit.take(at(100));
        }
        limit.on_answer(at(5_000), say(0.1), none());
        assert_eq!(limit.rate(), Some(70.0), "100 requests a second, times 0.7");
        limit.on_answer(at(6_000), say(0.1), none());
        assert_eq!(limit.rate(), Some(70.0));
        limit.on_answer(at(15_000), say(5.0), none());
        assert_eq!(limit.rate(), Some(70.0 * 1.3));
    }

    #[test]
    fn a_start_from_nothing_is_ten_a_second_and_sends_are_spread() {
        let mut limit = RateLimit::new(at(0));
        limit.on_answer(at(1), None, [Code::ResourceExhausted].into_iter());
        assert_eq!(limit.rate(), Some(7.0));
        assert_eq!(limit.take(at(1)), Ok(()));
        let again = limit.take(at(1)).expect_err("too soon");
        assert!(again > at(140) && again < at(150), "{again:?}");
        assert_eq!(limit.take(again), Ok(()));
    }

    #[test]
    fn the_rate_never_falls_below_one_request_in_ten_seconds() {
        let mut limit = RateLimit::new(at(0));
        for period in 0..200 {
            limit.on_answer(
                at(period * 10_000),
                None,
                [Code::ResourceExhausted].into_iter(),
            );
        }
        assert_eq!(limit.rate(), Some(LEAST_RATE));
    }

    #[test]
    fn quiet_success_raises_the_rate_and_five_minutes_of_it_lift_the_limit() {
        let mut limit = RateLimit::new(at(0));
        limit.on_answer(at(0), None, [Code::ResourceExhausted].into_iter());
        let start = limit.rate().expect("limited");
        let mut now = 0;
        while limit.rate().is_some() {
            now += 1_000;
            limit.on_answer(at(now), None, none());
            if now == 11_000 {
                assert_eq!(limit.rate(), Some(start * 1.3));
            }
        }
        assert_eq!(now, 300_000);
    }

    #[test]
    fn without_answers_a_limit_stays() {
        let mut limit = RateLimit::new(at(0));
        limit.on_answer(at(0), None, [Code::ResourceExhausted].into_iter());
        assert!(limit.take(at(3_600_000)).is_ok());
        assert!(limit.rate().is_some());
    }
}
