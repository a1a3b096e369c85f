//! One request's attempts: how long each may take, whether there is another and when.
//!
//! A pure core, shared by the sink and the dead-letter queue.
//!
//! # Invariants
//!
//! - The total timeout runs from the first attempt, and no attempt lasts past it (PS-SINK-18).
//! - With message ordering only the writer's own watch on progress ends the attempts (PS-SINK-19).

use std::time::Duration;

use aqueduct_cloud::Backoff;
use aqueduct_connector::{Code, Moment, StatusChain};

use super::batch::Sealed;
use crate::sink_options::RetryOptions;

/// Statuses that another attempt may not meet. Anywhere in a chain they speak of a condition of the service.
pub(crate) const TRANSIENT: [Code; 6] = [
    Code::Aborted,
    Code::DeadlineExceeded,
    Code::Internal,
    Code::ResourceExhausted,
    Code::Unavailable,
    Code::Unknown,
];

/// A request and what became of its attempts.
#[derive(Debug)]
pub(crate) struct Request<T> {
    /// What its owner knows it by.
    pub(crate) tag: T,
    pub(crate) sealed: Sealed,
    first: Option<Moment>,
    attempts: u32,
}

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another one.
    At(Moment),
    /// None.
    Final,
}

impl<T> Request<T> {
    pub(crate) fn new(tag: T, sealed: Sealed) -> Self {
        Self {
            tag,
            sealed,
            first: None,
            attempts: 0,
        }
    }

    /// Attempts so far.
    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Begins an attempt; how long it may take, `None` for as long as it likes.
    pub(crate) fn begin(&mut self, options: &RetryOptions, now: Moment) -> Option<Duration> {
        let first = *self.first.get_or_insert(now);
        let timeout = attempt_timeout(options, self.attempts);
        self.attempts += 1;
        match total(options) {
            Some(total) => {
                let left = first.after(total).since(now);
                Some(timeout.map_or(left, |timeout| timeout.min(left)))
            }
            None => timeout,
        }
    }

    /// What follows the attempt that just failed with `chain`.
    pub(crate) fn after(
        &self,
        options: &RetryOptions,
        chain: &StatusChain,
        now: Moment,
        random: &mut fastrand::Rng,
    ) -> Next {
        if !TRANSIENT.contains(&chain.code()) {
            return Next::Final;
        }
        let total = total(options);
        if !options.unlimited {
            let spent = options.max_attempts > 0 && self.attempts >= options.max_attempts;
            if spent || (options.max_attempts == 0 && total.is_none()) {
                return Next::Final;
            }
        }
        let backoff = Backoff::new(options.initial_delay, options.max_delay)
            .with_factor(options.delay_multiplier);
        let at = now.after(backoff.delay_after(self.attempts, random));
        match total {
            Some(total) if at >= self.first.unwrap_or(now).after(total) => Next::Final,
            _ => Next::At(at),
        }
    }
}

/// The limit over all attempts, if there is one.
fn total(options: &RetryOptions) -> Option<Duration> {
    (!options.unlimited && !options.total_timeout.is_zero()).then_some(options.total_timeout)
}

/// The limit of the attempt after `earlier` ones, if there is one.
fn attempt_timeout(options: &RetryOptions, earlier: u32) -> Option<Duration> {
    if options.initial_rpc_timeout.is_zero() {
        return None;
    }
    let most = if options.max_rpc_timeout.is_zero() {
        Duration::MAX
    } else {
        options.max_rpc_timeout
    };
    let grown = Backoff::new(options.initial_rpc_timeout, most)
        .with_factor(options.rpc_timeout_multiplier)
        .bound_after(earlier.saturating_add(1));
    (grown < Duration::MAX).then_some(grown)
}

#[cfg(test)]
mod tests {
    use aqueduct_connector::Status;

    use super::super::batch::{Buffers, OpenBatch, head};
    use super::*;

    fn request() -> Request<()> {
        Request::new((), OpenBatch::new(1, &head("t"), Buffers::default()).seal())
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    fn outage() -> StatusChain {
        StatusChain::new(Status::new(Code::Unavailable, ""))
    }

    #[test]
    fn attempts_grow_longer_and_none_lasts_past_the_total_timeout() {
        let options = RetryOptions::default();
        let mut request = request();
        let seconds = |span: Option<Duration>| span.map(|span| span.as_secs());
        assert_eq!(seconds(request.begin(&options, at(0))), Some(5));
        assert_eq!(seconds(request.begin(&options, at(10))), Some(20));
        assert_eq!(seconds(request.begin(&options, at(100))), Some(60));
        assert_eq!(seconds(request.begin(&options, at(590))), Some(10));
        let none = RetryOptions {
            initial_rpc_timeout: Duration::ZERO,
            unlimited: true,
            ..options
        };
        assert_eq!(request.begin(&none, at(1_000)), None);
    }

    #[test]
    fn the_total_timeout_ends_retries_and_ordering_lifts_it() {
        let mut random = fastrand::Rng::with_seed(1);
        let options = RetryOptions::default();
        let mut request = request();
        request.begin(&options, at(0));
        assert!(matches!(
            request.after(&options, &outage(), at(1), &mut random),
            Next::At(_)
        ));
        assert_eq!(
            request.after(&options, &outage(), at(600), &mut random),
            Next::Final
        );
        let ordered = RetryOptions {
            unlimited: true,
            ..options
        };
        assert!(matches!(
            request.after(&ordered, &outage(), at(100_000), &mut random),
            Next::At(_)
        ));
    }

    #[test]
    fn without_a_total_timeout_the_attempts_bound_and_without_either_there_is_one() {
        let mut random = fastrand::Rng::with_seed(1);
        let three = RetryOptions {
            total_timeout: Duration::ZERO,
            max_attempts: 3,
            ..RetryOptions::default()
        };
        let mut request = request();
        let mut tries = 0;
        loop {
            request.begin(&three, at(tries * 1_000));
            tries += 1;
            if request.after(&three, &outage(), at(tries * 1_000), &mut random) == Next::Final {
                break;
            }
        }
        assert_eq!((tries, request.attempts()), (3, 3));
        let one = RetryOptions {
            max_attempts: 0,
            ..three
        };
        let mut request = self::request();
        request.begin(&one, at(0));
        assert_eq!(
            request.after(&one, &outage(), at(0), &mut random),
            Next::Final
        );
    }

    #[test]
    fn only_listed_statuses_are_tried_again() {
        let mut random = fastrand::Rng::with_seed(1);
        let options = RetryOptions::default();
        let mut request = request();
        request.begin(&options, at(0));
        for code in Code::ALL {
            let chain = StatusChain::new(Status::new(*code, ""));
            let next = request.after(&options, &chain, at(0), &mut random);
            assert_eq!(next != Next::Final, TRANSIENT.contains(code), "{code}");
        }
    }

    #[test]
    fn waits_are_drawn_below_a_bound_that_grows_to_its_cap() {
        let options = RetryOptions {
            unlimited: true,
            ..RetryOptions::default()
        };
        let mut request = request();
        for attempt in 1..12 {
            request.begin(&options, at(0));
            let bound = Duration::from_millis(100 << (2 * (attempt - 1).min(5)))
                .min(Duration::from_secs(60));
            for seed in 0..50 {
                let mut random = fastrand::Rng::with_seed(seed);
                let Next::At(at) = request.after(&options, &outage(), at(0), &mut random) else {
                    panic!("no limit");
                };
                assert!(at.since_origin() <= bound, "attempt {attempt}");
            }
        }
    }
}
