//! When a full cache is read again (BT-SCAN-14, with the options of Flink's own caches).
//!
//! Moments are the host's; only a time of day looks at the wall clock, once a reload.

use std::time::Duration;

use aqueduct_connector::options::ConfigError;
use aqueduct_connector::table::TableOptions;
use aqueduct_connector::{Moment, Timestamp};

use super::options::{
    FULL_CACHE_DAYS, FULL_CACHE_INTERVAL, FULL_CACHE_ISO_TIME, FULL_CACHE_SCHEDULE,
    FULL_CACHE_STRATEGY,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const DAY_MILLIS: i64 = 24 * 60 * 60 * 1000;

/// When the table is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reload {
    /// So long after the end of the last load.
    FixedDelay(Duration),
    /// So long after the start of the last load; at once if it took longer.
    FixedRate(Duration),
    /// At a time of day, in milliseconds of the UTC day, every so many days.
    Timed { of_day: i64, days: u32 },
}

impl Reload {
    /// Reads the options. Those of the strategy that was not chosen are refused: they would do nothing.
    pub(super) fn of(options: &TableOptions<'_>) -> Result<Self, ConfigError> {
        let timed = options
            .choice(
                FULL_CACHE_STRATEGY.key(),
                &[("PERIODIC", false), ("TIMED", true)],
            )?
            .unwrap_or(false);
        let others = if timed {
            [FULL_CACHE_INTERVAL.key(), FULL_CACHE_SCHEDULE.key()]
        } else {
            [FULL_CACHE_ISO_TIME.key(), FULL_CACHE_DAYS.key()]
        };
        if let Some(first) = others.into_iter().find(|key| options.has(key)) {
            return Err(ConfigError::Conflict {
                first,
                second: FULL_CACHE_STRATEGY.key(),
                reason: format!(
                    "it belongs to the strategy '{}'; set that, or remove the option",
                    if timed { "PERIODIC" } else { "TIMED" }
                ),
            });
        }
        if timed {
            let time = options.required(
                &FULL_CACHE_ISO_TIME,
                "the time of day of the strategy 'TIMED', as '04:00Z' or '04:00+02:00'",
            )?;
            return Ok(Self::Timed {
                of_day: of_day(time)?,
                days: options
                    .get(&FULL_CACHE_DAYS)?
                    .unwrap_or_else(|| FULL_CACHE_DAYS.ours()),
            });
        }
        let Some(interval) = options.get(&FULL_CACHE_INTERVAL)? else {
            return Err(ConfigError::Missing {
                option: FULL_CACHE_INTERVAL.key(),
                what: "how long a full cache is used before the table is read again, as '10 min'",
            });
        };
        let rate = options.choice(
            FULL_CACHE_SCHEDULE.key(),
            &[("FIXED_DELAY", false), ("FIXED_RATE", true)],
        )?;
        Ok(if rate == Some(true) {
            Self::FixedRate(interval)
        } else {
            Self::FixedDelay(interval)
        })
    }

    /// When to read again, after a load from `start` to `end`, at which the wall clock shows `wall`. `first` for the load
    /// that the lookup began with, before any reload.
    pub(super) fn next(self, start: Moment, end: Moment, wall: Timestamp, first: bool) -> Moment {
        match self {
            Self::FixedDelay(interval) => end.after(interval),
            Self::FixedRate(interval) => start.after(interval),
            Self::Timed { of_day, days } => {
                let now = wall.millis().rem_euclid(DAY_MILLIS);
                let to_time = (of_day - now).rem_euclid(DAY_MILLIS);
                // At the time itself: that reload has just been.
                let to_time = if to_time == 0 { DAY_MILLIS } else { to_time };
                let to_time = Duration::from_millis(to_time.unsigned_abs());
                let more = if first { 0 } else { days - 1 };
                end.after(to_time.saturating_add(DAY.saturating_mul(more)))
            }
        }
    }
}

/// `HH:MM`, with or without seconds, and a zone: milliseconds of the UTC day.
fn of_day(text: &str) -> Result<i64, ConfigError> {
    let refuse = |why: &str| {
        ConfigError::invalid(
            FULL_CACHE_ISO_TIME.key(),
            format!("'{text}' {why}; write it as '04:00Z', '04:00:30Z' or '04:00+02:00'"),
        )
    };
    let (time, offset) = if let Some(time) = text.strip_suffix(['Z', 'z']) {
        (time, 0)
    } else if let Some(at) = text.rfind(['+', '-']) {
        let zone = clock(&text[at + 1..], 18).ok_or_else(|| refuse("has no zone that we know"))?;
        let sign = if text[at..].starts_with('-') { -1 } else { 1 };
        (&text[..at], sign * zone)
    } else {
        // The zone of a machine is none that a job can rely on: its workers may have several.
        return Err(refuse("has no zone"));
    };
    let seconds = clock(time, 23).ok_or_else(|| refuse("is no time of day"))?;
    Ok((seconds - offset).rem_euclid(DAY_MILLIS / 1000) * 1000)
}

/// Seconds of `HH:MM` or `HH:MM:SS`.
fn clock(text: &str, most_hours: i64) -> Option<i64> {
    let mut parts = text.split(':');
    let mut two = |most: i64| -> Option<Option<i64>> {
        let Some(part) = parts.next() else {
            return Some(None);
        };
        if part.len() != 2 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let number: i64 = part.parse().ok()?;
        (number <= most).then_some(Some(number))
    };
    let (hours, minutes, seconds) = (two(most_hours)??, two(59)??, two(59)?);
    parts
        .next()
        .is_none()
        .then(|| hours * 3600 + minutes * 60 + seconds.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(60 * minutes)
    }

    #[test]
    fn a_time_of_day_is_read_with_its_zone() {
        for (text, minutes) in [
            ("04:00Z", 240),
            ("04:00:00Z", 240),
            ("04:00+02:00", 120),
            ("01:30+02:00", 23 * 60 + 30),
            ("23:30-01:00", 30),
            ("00:00-00:30", 30),
        ] {
            assert_eq!(of_day(text), Ok(minutes * 60_000), "{text}");
        }
        for text in [
            "",
            "Z",
            "04:00",
            "4:00Z",
            "24:00Z",
            "04:60Z",
            "04:00:61Z",
            "04:00:00:00Z",
            "04Z",
            "04:00+19:00",
            "04:00+2",
            "+04:00",
            "é4:00Z",
        ] {
            let error = of_day(text).expect_err(text).to_string();
            assert!(
                error.contains("lookup.full-cache.timed-reload.iso-time"),
                "{error}"
            );
        }
    }

    #[test]
    fn delays_count_from_the_end_and_rates_from_the_start() {
        let (start, end) = (Moment::ORIGIN, Moment::ORIGIN.after(minutes(7)));
        let next = |reload: Reload| reload.next(start, end, Timestamp::from_millis(0), true);
        assert_eq!(next(Reload::FixedDelay(minutes(5))), end.after(minutes(5)));
        assert_eq!(next(Reload::FixedRate(minutes(5))), start.after(minutes(5)));
    }

    #[test]
    fn a_timed_reload_comes_at_the_next_such_time_and_then_every_so_many_days() {
        let reload = Reload::Timed {
            of_day: 60 * 60_000,
            days: 3,
        };
        let end = Moment::ORIGIN.after(minutes(1));
        let wall = |minutes: i64| Timestamp::from_millis(5 * DAY_MILLIS + minutes * 60_000);
        assert_eq!(
            reload.next(end, end, wall(10), true),
            end.after(minutes(50))
        );
        assert_eq!(
            reload.next(end, end, wall(70), true),
            end.after(minutes(23 * 60 + 50))
        );
        // It began at one o'clock and took a minute.
        assert_eq!(
            reload.next(end, end, wall(61), false),
            end.after(minutes(2 * 24 * 60 + 23 * 60 + 59))
        );
        assert_eq!(reload.next(end, end, wall(60), true), end.after(DAY));
    }
}
