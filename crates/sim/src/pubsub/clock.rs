//! What time the simulated service thinks it is.
//!
//! Leases, backoff, retention, heartbeats and publish times go by this clock. It is the real one
//! unless a test takes it over. Transport timing (a scripted delay, a waiting unary pull) is always
//! real.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since the Unix epoch: good until the year 2554.
pub(crate) type Nanos = u64;

pub(crate) fn nanos(duration: Duration) -> Nanos {
    duration.as_nanos().try_into().unwrap_or(Nanos::MAX)
}

/// Times before the epoch are the epoch.
pub(crate) fn nanos_at(time: SystemTime) -> Nanos {
    nanos(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

pub(crate) fn time_at(nanos: Nanos) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(nanos)
}

pub(crate) fn timestamp(nanos: Nanos) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: (nanos / 1_000_000_000).try_into().unwrap_or(i64::MAX),
        nanos: (nanos % 1_000_000_000).try_into().unwrap_or(0),
    }
}

/// Times before the epoch are the epoch.
pub(crate) fn nanos_of(timestamp: &prost_types::Timestamp) -> Nanos {
    let seconds = Nanos::try_from(timestamp.seconds).unwrap_or(0);
    let nanos = Nanos::try_from(timestamp.nanos).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// The service's clock.
pub(crate) enum ServiceClock {
    Real { began: Instant, epoch: Nanos },
    Manual { now: Nanos },
}

impl ServiceClock {
    pub(crate) fn real() -> Self {
        Self::Real {
            began: Instant::now(),
            epoch: nanos_at(SystemTime::now()),
        }
    }

    pub(crate) fn now(&self) -> Nanos {
        match self {
            // Monotonic, whatever is done to the machine's clock.
            Self::Real { began, epoch } => epoch.saturating_add(nanos(began.elapsed())),
            Self::Manual { now } => *now,
        }
    }

    pub(crate) fn is_manual(&self) -> bool {
        matches!(self, Self::Manual { .. })
    }
}
