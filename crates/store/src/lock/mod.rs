//! Exclusive ownership of a name, by the means that the place offers.
//!
//! # Invariant
//!
//! At most one [`Lease`] of a name is valid at any moment. Where ownership can be lost while the
//! process lives (an object store that cannot be reached), the lease says so on its own clock
//! before anyone else may take over: see [`Lease::is_lost`].

pub(crate) mod local;
pub(crate) mod memory;
pub(crate) mod object;

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::StoreError;

/// How long an object store's lease outlives its last renewal. It is renewed at a third of this.
pub const LEASE_TERM: Duration = Duration::from_secs(30);

/// Ownership of a name until it is dropped or released.
///
/// Dropping gives up a local or memory lock at once; an object store's lease then ends with its
/// term, so prefer [`release`](Self::release).
#[derive(Debug)]
pub struct Lease {
    url: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Local(local::LocalLock),
    Memory(#[expect(dead_code, reason = "its drop gives the name up")] memory::MemoryLock),
    Object(object::ObjectLease),
}

impl Lease {
    /// The lock's location.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether ownership is gone. Ask right before a write that only an owner may do; never true
    /// for local and memory locks.
    pub fn is_lost(&self) -> bool {
        match &self.kind {
            Kind::Local(_) | Kind::Memory(_) => false,
            Kind::Object(lease) => lease.is_lost(),
        }
    }

    /// Resolves when ownership is gone, which for local and memory locks is never. Stop writing
    /// then: another process may own the name.
    ///
    /// # Cancel safety
    ///
    /// Safe: it may be dropped and called again.
    pub async fn lost(&self) {
        match &self.kind {
            Kind::Local(_) | Kind::Memory(_) => std::future::pending().await,
            Kind::Object(lease) => lease.lost().await,
        }
    }

    /// Gives the name up, so that the next owner need not wait.
    ///
    /// # Errors
    ///
    /// Those of the store; the lease is given up all the same, an object store's with its term.
    pub async fn release(self) -> Result<(), StoreError> {
        match self.kind {
            Kind::Local(lock) => lock.release().await,
            Kind::Memory(_) => Ok(()),
            Kind::Object(lease) => lease.release().await,
        }
    }
}

/// Who holds a lock, as far as it said so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The description it gave.
    pub owner: String,
    /// Its process id on its host.
    pub pid: Option<u32>,
    /// Its host's name.
    pub host: String,
    /// When it took the lock.
    pub since: Option<SystemTime>,
}

impl Holder {
    /// This process.
    fn this_process(owner: &str) -> Self {
        const OWNER_CHARS: usize = 200;
        Self {
            owner: owner
                .chars()
                .filter(|c| !c.is_control())
                .take(OWNER_CHARS)
                .collect(),
            pid: Some(std::process::id()),
            host: host_name(),
            since: Some(SystemTime::now()),
        }
    }

    fn unknown() -> Self {
        Self {
            owner: String::new(),
            pid: None,
            host: String::new(),
            since: None,
        }
    }

    /// One `key=value` a line, for people and for [`parse`](Self::parse).
    fn to_text(&self) -> String {
        let since = self.since.map_or(0, unix_millis);
        let pid = self.pid.unwrap_or(0);
        format!(
            "owner={}\npid={pid}\nhost={}\nsince-millis={since}\n",
            self.owner, self.host
        )
    }

    /// Reads what [`to_text`](Self::to_text) wrote; what cannot be read stays unknown.
    fn parse(text: &str) -> Self {
        let mut holder = Self::unknown();
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            match key {
                "owner" => value.clone_into(&mut holder.owner),
                "host" => value.clone_into(&mut holder.host),
                "pid" => holder.pid = value.parse().ok().filter(|pid| *pid != 0),
                "since-millis" => {
                    let since = value.parse().ok().filter(|millis| *millis != 0);
                    holder.since =
                        since.and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
                }
                _ => {}
            }
        }
        holder
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.owner.is_empty() {
            f.write_str("an unnamed owner")?;
        } else {
            write!(f, "{:?}", self.owner)?;
        }
        if let Some(pid) = self.pid {
            write!(f, ", process {pid}")?;
        }
        if !self.host.is_empty() {
            write!(f, " on {}", self.host)?;
        }
        if let Some(since) = self.since {
            write!(f, ", since {}", utc(since))?;
        }
        Ok(())
    }
}

fn host_name() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = read
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_default();
    name.trim()
        .chars()
        .filter(|c| !c.is_control())
        .take(200)
        .collect()
}

fn unix_millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// `2026-11-30T12:00:00Z`.
fn utc(time: SystemTime) -> String {
    let seconds = unix_millis(time) / 1000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// The Gregorian date of a day since 1970, counting years from March so that the leap day is last.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_reads_as_it_was_written() {
        let mut holder = Holder::this_process("job \"a\"=1\nsecond line");
        holder.since = Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_123));
        assert_eq!(Holder::parse(&holder.to_text()), holder);
        assert!(!holder.owner.contains('\n'));
        assert_eq!(Holder::parse("\u{0}garbage\npid=x"), Holder::unknown());
    }

    #[test]
    fn instants_show_as_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
