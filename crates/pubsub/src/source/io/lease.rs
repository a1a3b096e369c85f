//! Leases: how long, when to extend, when one is lost (PS-SRC-13, -14). Pure.

use std::time::Duration;

use aqueduct_connector::Moment;

/// How long an extension is unless settings say otherwise.
const STEP: Duration = Duration::from_secs(60);
/// What the service takes.
const SHORTEST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(600);
/// The first extension of a message is due so long after its receipt: what is acked earlier costs none.
const FIRST: Duration = Duration::from_secs(2);
/// Of exactly-once subscriptions (PS-WIRE-04).
const EXACTLY_ONCE_STEP: Duration = Duration::from_secs(60);

/// What governs the leases of one split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    step: Duration,
    /// Zero: nothing is ever extended.
    period: Duration,
    /// What a message comes with.
    initial: Duration,
}

impl Terms {
    /// `own_deadline` is the subscription's; it counts only when extension is off.
    pub(crate) fn new(
        period: Duration,
        least: Option<Duration>,
        most: Option<Duration>,
        own_deadline: Duration,
    ) -> Self {
        let mut step = STEP.max(least.unwrap_or(Duration::ZERO));
        step = step.min(most.unwrap_or(Duration::MAX));
        step = Duration::from_secs(step.clamp(SHORTEST, LONGEST).as_secs());
        let own = Duration::from_secs(own_deadline.clamp(SHORTEST, LONGEST).as_secs());
        Self {
            step,
            period,
            initial: if period.is_zero() { own } else { step },
        }
    }

    /// The terms of an exactly-once subscription.
    pub(crate) fn exactly_once(self) -> Self {
        Self {
            step: self.step.max(EXACTLY_ONCE_STEP),
            ..self
        }
    }

    /// The lease that the stream asks for.
    pub(crate) fn stream_deadline(&self) -> Duration {
        self.initial
    }

    /// Half of the range from which the next extension's distance to expiry is drawn.
    fn margin(&self) -> Duration {
        (self.step / 4).max(Duration::from_secs(5))
    }
}

/// The lease of one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    expires: Moment,
    due: Moment,
    ends: Moment,
    /// A request is out.
    asked: bool,
    lost: bool,
}

impl Lease {
    /// Of a copy received now. `at_once`: the first extension goes out with the next pass.
    pub(crate) fn new(terms: &Terms, now: Moment, at_once: bool) -> Self {
        let first = if at_once { Duration::ZERO } else { FIRST };
        Self {
            expires: now.after(terms.initial),
            due: if terms.period.is_zero() {
                Moment::NEVER
            } else {
                now.after(first)
            },
            ends: now.after(terms.period),
            asked: false,
            lost: false,
        }
    }

    /// The seconds to extend by, if an extension is due. The period's end shortens it; below 10 s it is not sent.
    pub(crate) fn extension(&self, terms: &Terms, now: Moment) -> Option<u32> {
        if self.asked || self.lost || now < self.due {
            return None;
        }
        let length = terms.step.min(self.ends.since(now));
        (length >= SHORTEST).then(|| u32::try_from(length.as_secs()).unwrap_or(600))
    }

    pub(crate) fn asked(&mut self) {
        self.asked = true;
    }

    /// A request sent at `sent` was granted.
    pub(crate) fn extended(
        &mut self,
        terms: &Terms,
        sent: Moment,
        seconds: u32,
        random: &mut fastrand::Rng,
    ) {
        self.asked = false;
        let length = Duration::from_secs(u64::from(seconds));
        self.expires = self.expires.max(sent.after(length));
        let margin = terms.margin();
        let before = margin + margin.mul_f64(random.f64() / 2.0);
        self.due = sent.after(length.saturating_sub(before));
    }

    /// A request failed; another is due at `again`.
    pub(crate) fn refused(&mut self, again: Moment) {
        self.asked = false;
        self.due = again;
    }

    /// Whether it has expired unextended and nobody noticed yet.
    pub(crate) fn lapses(&self, now: Moment) -> bool {
        !self.lost && now >= self.expires
    }

    pub(crate) fn lose(&mut self) {
        self.lost = true;
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    pub(crate) fn expires(&self) -> Moment {
        self.expires
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    fn terms(period: u64) -> Terms {
        let period = Duration::from_secs(period);
        Terms::new(period, None, None, Duration::from_secs(10))
    }

    #[test]
    fn the_step_is_raised_lowered_and_kept_within_what_the_service_takes() {
        let of = |least: Option<u64>, most: Option<u64>| {
            Terms::new(
                Duration::from_secs(3_600),
                least.map(Duration::from_secs),
                most.map(Duration::from_secs),
                Duration::from_secs(10),
            )
            .stream_deadline()
            .as_secs()
        };
        assert_eq!(of(None, None), 60);
        assert_eq!(of(Some(90), None), 90);
        assert_eq!(of(None, Some(20)), 20);
        assert_eq!(of(None, Some(1)), 10);
        assert_eq!(of(Some(9_000), None), 600);
    }

    #[test]
    fn without_extension_the_subscriptions_own_deadline_holds() {
        let terms = Terms::new(Duration::ZERO, None, None, Duration::from_secs(25));
        let lease = Lease::new(&terms, at(0), false);
        assert_eq!(lease.extension(&terms, at(24)), None);
        assert!(!lease.lapses(at(24)) && lease.lapses(at(25)));
    }

    #[test]
    fn the_first_extension_comes_two_seconds_after_receipt() {
        let terms = terms(3_600);
        let lease = Lease::new(&terms, at(0), false);
        assert_eq!(lease.extension(&terms, at(1)), None);
        assert_eq!(lease.extension(&terms, at(2)), Some(60));
    }

    #[test]
    fn no_extension_runs_past_the_period() {
        let terms = terms(100);
        let mut lease = Lease::new(&terms, at(0), false);
        assert_eq!(lease.extension(&terms, at(50)), Some(50));
        assert_eq!(lease.extension(&terms, at(90)), Some(10));
        assert_eq!(lease.extension(&terms, at(91)), None);
        lease.asked();
        assert_eq!(lease.extension(&terms, at(50)), None, "one at a time");
    }

    proptest! {
        /// With passes each second, answers after up to 3 s and an endless period, no lease ever lapses; within the
        /// period none ends more than a step behind it.
        #[test]
        fn a_served_lease_never_lapses_within_its_period(seed: u64, period in 60u64..1_000, least in 10u64..600) {
            let terms = Terms::new(
                Duration::from_secs(period), Some(Duration::from_secs(least)), Some(Duration::from_secs(least)),
                Duration::from_secs(10),
            );
            let mut random = fastrand::Rng::with_seed(seed);
            let mut lease = Lease::new(&terms, at(0), false);
            let mut out: Option<(u64, u64, u32)> = None;
            for second in 0..period.saturating_sub(12) {
                if let Some((sent, answer, seconds)) = out
                    && answer <= second
                {
                    lease.extended(&terms, at(sent), seconds, &mut random);
                    out = None;
                }
                if let Some(seconds) = lease.extension(&terms, at(second)) {
                    lease.asked();
                    out = Some((second, second + random.u64(0..=1), seconds));
                }
                prop_assert!(!lease.lapses(at(second)), "at {second} of {period}");
                prop_assert!(lease.expires() <= at(period.max(least)));
            }
        }
    }
}
