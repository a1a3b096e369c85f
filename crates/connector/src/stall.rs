//! No wait is silent: the clock behind every stalled-wait warning (BASE-36).
//!
//! A writer or reader owns one [`StallWatch`]. It tells the watch when a wait starts and ends and when an answer
//! arrives; the watch says when a warning is due. It decides only; the owner words and logs the warning, because it
//! knows what it waits for.

use std::time::Duration;

use crate::clock::Moment;

/// A wait without an answer for this long is warned about, and again each time this much more has passed.
pub const STALL_AFTER: Duration = Duration::from_secs(60);

/// Says when a wait has gone without an answer for too long.
#[derive(Clone, Copy, Debug, Default)]
pub struct StallWatch {
    waiting_since: Option<Moment>,
    last_answer: Option<Moment>,
    last_warning: Option<Moment>,
}

impl StallWatch {
    /// A watch of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The owner is waiting as of `now`; calling it again during the same wait changes nothing.
    pub fn waiting(&mut self, now: Moment) {
        self.waiting_since.get_or_insert(now);
    }

    /// The wait is over.
    pub fn done(&mut self) {
        self.waiting_since = None;
    }

    /// An answer arrived, a success or a failure.
    pub fn answered(&mut self, now: Moment) {
        self.last_answer = Some(now);
    }

    /// When [`due`](Self::due) will next say so, if a wait is under way.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        let idle_from = self
            .waiting_since?
            .max(self.last_answer.unwrap_or_default());
        let quiet_until = self
            .last_warning
            .map_or(Moment::ORIGIN, |at| at.after(STALL_AFTER));
        Some(idle_from.after(STALL_AFTER).max(quiet_until))
    }

    /// Whether a warning is due, and for how long there was no answer. Saying yes starts the next quiet minute.
    pub fn due(&mut self, now: Moment) -> Option<Duration> {
        if now < self.deadline()? {
            return None;
        }
        let idle_from = self
            .waiting_since?
            .max(self.last_answer.unwrap_or_default());
        self.last_warning = Some(now);
        Some(now.since(idle_from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    #[test]
    fn one_warning_a_minute_however_many_waits() {
        let mut watch = StallWatch::new();
        watch.waiting(at(0));
        assert_eq!(watch.due(at(59)), None);
        assert_eq!(watch.due(at(60)), Some(Duration::from_secs(60)));
        watch.done();
        watch.waiting(at(61));
        assert_eq!(watch.due(at(119)), None);
        assert_eq!(watch.due(at(121)), Some(Duration::from_secs(60)));
        assert_eq!(watch.due(at(180)), None);
        assert_eq!(watch.due(at(181)), Some(Duration::from_secs(120)));
    }

    #[test]
    fn an_answer_restarts_the_minute_and_a_later_stall_is_as_prompt() {
        let mut watch = StallWatch::new();
        watch.waiting(at(0));
        watch.answered(at(50));
        assert_eq!(watch.due(at(109)), None);
        assert_eq!(watch.due(at(110)), Some(Duration::from_secs(60)));
        watch.done();
        watch.waiting(at(1_000));
        assert_eq!(watch.due(at(1_059)), None);
        assert!(watch.due(at(1_060)).is_some());
    }

    #[test]
    fn without_a_wait_nothing_is_due() {
        let mut watch = StallWatch::new();
        watch.answered(at(1));
        assert_eq!(watch.deadline(), None);
        assert_eq!(watch.due(at(10_000)), None);
    }
}
