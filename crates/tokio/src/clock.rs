//! The machine's clocks, and timers that are made once and armed again and again.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aqueduct_connector::clock::Timer;
use aqueduct_connector::{Clock, Moment, Timestamp};

/// The machine's clocks; timers need a tokio runtime with its time driver on.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose origin is now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment::from_origin(self.origin.elapsed())
    }

    fn wall(&self) -> Timestamp {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    fn timer(&self) -> Box<dyn Timer> {
        Box::new(SystemTimer {
            clock: *self,
            at: None,
            sleep: None,
        })
    }
}

/// Longer waits are cut to this and armed again: Tokio refuses deadlines beyond its wheel.
const LONGEST_SLEEP: Duration = Duration::from_secs(3_600);

struct SystemTimer {
    clock: SystemClock,
    at: Option<Moment>,
    /// Made by the first poll, inside the runtime, then used again and again.
    sleep: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl SystemTimer {
    fn left(&self) -> Option<Duration> {
        let left = self.at?.since(self.clock.now());
        Some(left.min(LONGEST_SLEEP))
    }
}

impl Timer for SystemTimer {
    fn set(&mut self, at: Option<Moment>) {
        if self.at == at {
            return;
        }
        self.at = at;
        let left = self.left().unwrap_or(LONGEST_SLEEP);
        if let Some(sleep) = &mut self.sleep {
            sleep.as_mut().reset(tokio::time::Instant::now() + left);
        }
    }

    fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(left) = self.left() {
            if left.is_zero() {
                return Poll::Ready(());
            }
            let sleep = self
                .sleep
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(left)));
            ready!(sleep.as_mut().poll(cx));
            sleep.as_mut().reset(tokio::time::Instant::now() + left);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn a_timer_is_not_early_obeys_its_last_setting_and_stays_elapsed() {
        let clock = SystemClock::new();
        let mut timer = clock.timer();
        for unarmed in [None, Some(Moment::NEVER)] {
            timer.set(unarmed);
            let is_pending = poll_fn(|cx| Poll::Ready(timer.poll_elapsed(cx).is_pending())).await;
            assert!(is_pending, "{unarmed:?}");
        }
        let due = clock.now().after(Duration::from_millis(15));
        timer.set(Some(due));
        for _ in 0..2 {
            poll_fn(|cx| timer.poll_elapsed(cx)).await;
            assert!(clock.now() >= due);
        }
    }
}
