//! When to restart: a pure account of failures and waits.

use std::time::Duration;

use aqueduct_connector::Moment;

use crate::config::RestartStrategy;

/// Decides about restarts by one strategy.
#[derive(Debug)]
pub(crate) struct Restarts {
    strategy: RestartStrategy,
    random: fastrand::Rng,
    used: u32,
    next_wait: Option<Duration>,
    running_since: Option<Moment>,
}

impl Restarts {
    pub(crate) fn new(strategy: RestartStrategy, seed: u64) -> Self {
        Self {
            strategy,
            random: fastrand::Rng::with_seed(seed),
            used: 0,
            next_wait: None,
            running_since: None,
        }
    }

    /// The job has begun to run.
    pub(crate) fn running(&mut self, now: Moment) {
        self.running_since.get_or_insert(now);
    }

    /// The job failed: how long to wait before the next attempt, or `None` for none.
    pub(crate) fn failed(&mut self, now: Moment) -> Option<Duration> {
        let ran = self.running_since.take().map(|since| now.since(since));
        match self.strategy {
            RestartStrategy::None => None,
            RestartStrategy::FixedDelay { attempts, delay } => {
                self.used += 1;
                (self.used <= attempts).then_some(delay)
            }
            RestartStrategy::ExponentialDelay {
                initial,
                max,
                multiplier,
                reset_after,
                jitter,
            } => {
                if ran.is_some_and(|ran| ran >= reset_after) {
                    self.next_wait = None;
                }
                let wait = self.next_wait.unwrap_or(initial).min(max);
                let grown = wait.as_secs_f64() * multiplier;
                self.next_wait = Some(Duration::try_from_secs_f64(grown).unwrap_or(max).min(max));
                let share = 1.0 + jitter * (2.0 * self.random.f64() - 1.0);
                Some(Duration::try_from_secs_f64(wait.as_secs_f64() * share).unwrap_or(wait))
            }
        }
    }

    /// Restarts that the strategy still allows, for people; `None` if it sets no limit.
    pub(crate) fn limit(&self) -> Option<u32> {
        match self.strategy {
            RestartStrategy::None => Some(0),
            RestartStrategy::FixedDelay { attempts, .. } => Some(attempts),
            RestartStrategy::ExponentialDelay { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    #[test]
    fn a_fixed_delay_gives_up_after_its_attempts() {
        let delay = Duration::from_secs(3);
        let mut restarts = Restarts::new(RestartStrategy::FixedDelay { attempts: 2, delay }, 1);
        assert_eq!(restarts.failed(at(0)), Some(delay));
        assert_eq!(restarts.failed(at(0)), Some(delay));
        assert_eq!(restarts.failed(at(0)), None);
        assert_eq!(Restarts::new(RestartStrategy::None, 1).failed(at(0)), None);
    }

    #[test]
    fn an_exponential_delay_grows_to_its_bound_and_starts_anew_after_a_good_run() {
        let strategy = RestartStrategy::ExponentialDelay {
            initial: Duration::from_secs(1),
            max: Duration::from_secs(5),
            multiplier: 2.0,
            reset_after: Duration::from_secs(100),
            jitter: 0.0,
        };
        let mut restarts = Restarts::new(strategy, 1);
        let waits: Vec<_> = (0..5)
            .map(|_| {
                restarts.running(at(0));
                restarts.failed(at(1)).map(|wait| wait.as_secs())
            })
            .collect();
        assert_eq!(waits, [1, 2, 4, 5, 5].map(Some));
        restarts.running(at(10));
        assert_eq!(restarts.failed(at(109)), Some(Duration::from_secs(5)));
        restarts.running(at(200));
        assert_eq!(restarts.failed(at(300)), Some(Duration::from_secs(1)));
    }

    #[test]
    fn jitter_stays_within_its_share() {
        let strategy = RestartStrategy::ExponentialDelay {
            initial: Duration::from_secs(10),
            max: Duration::from_secs(10),
            multiplier: 1.0,
            reset_after: Duration::MAX,
            jitter: 0.1,
        };
        let mut restarts = Restarts::new(strategy, 7);
        let waits: Vec<_> = (0..100).filter_map(|_| restarts.failed(at(0))).collect();
        assert!(
            waits
                .iter()
                .all(|wait| (9.0..=11.0).contains(&wait.as_secs_f64()))
        );
        assert!(waits.iter().any(|wait| wait.as_secs_f64() < 9.5));
    }
}
