//! Leases in object stores: an object that its owner rewrites, each time on condition that nobody
//! else did.
//!
//! # Why two owners cannot overlap
//!
//! The holder counts its term from *before* it sent the renewal that succeeded, on its own
//! monotonic clock. A successor counts the same term from *after* it saw that renewal, on its own
//! clock, and takes over only if the object did not change meanwhile. No wall clock is compared,
//! except for a lease that ended more than [`SKEW`] ago.
//!
//! A holder that is stopped in the middle of a write is beyond any lease; writers of manifests
//! therefore also use names that are written once.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use object_store::UpdateVersion;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{error, info, warn};

use super::{Holder, Kind, LEASE_TERM, Lease, unix_millis};
use crate::object::{Condition, ObjectDir};
use crate::{LockError, Operation, StoreError};

/// A lease whose stated end is longer ago than this is dead by any clock in working order.
const SKEW: Duration = Duration::from_secs(600);

/// First word of a lease object and its version.
const MAGIC: &str = "aqueduct-lease 1";

/// Larger objects are not ours.
const LIMIT_BYTES: u64 = 4096;

/// Attempts against other claimants before giving up; each loses only to one that succeeded.
const ROUNDS: u32 = 10;

const HINT: &str = " (if it was killed, its lease ends within a minute)";

#[derive(Debug)]
pub(crate) struct ObjectLease {
    state: watch::Receiver<State>,
    /// `None` once released.
    keeper: Option<JoinHandle<()>>,
    stop: watch::Sender<bool>,
    record: Record,
    dir: ObjectDir,
    name: String,
}

/// What the keeper knows, for everyone to see.
#[derive(Debug, Clone)]
struct State {
    valid_until: Instant,
    /// Set once: another owner was seen, or the term ran out.
    gone: bool,
    version: UpdateVersion,
}

impl ObjectLease {
    pub(super) fn is_lost(&self) -> bool {
        let state = self.state.borrow();
        state.gone || Instant::now() >= state.valid_until
    }

    pub(super) async fn lost(&self) {
        let mut state = self.state.clone();
        loop {
            let (gone, valid_until) = {
                let seen = state.borrow_and_update();
                (seen.gone, seen.valid_until)
            };
            if gone || Instant::now() >= valid_until {
                return;
            }
            tokio::select! {
                // An error: the keeper ended, so the term runs out.
                changed = state.changed() => if changed.is_err() {
                    return sleep_until(valid_until).await;
                },
                () = sleep_until(valid_until) => {}
            }
        }
    }

    pub(super) async fn release(mut self) -> Result<(), StoreError> {
        // The keeper must be between two renewals, or the version would be stale. An error means
        // that it has ended.
        let _ = self.stop.send(true);
        if let Some(keeper) = self.keeper.take() {
            // It never panics; if it was cancelled the runtime is going away.
            let _ = keeper.await;
        }
        if self.is_lost() {
            return Ok(());
        }
        let version = self.state.borrow().version.clone();
        let content = self.record.encode(Claim::Released);
        let put = self.dir.put_conditionally(
            &self.name,
            content,
            Condition::Unchanged(version),
            Operation::Lock,
        );
        match put.await {
            // Somebody else owns it, which is what a release is for.
            Ok(_) | Err(StoreError::AlreadyExists { .. } | StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for ObjectLease {
    fn drop(&mut self) {
        if let Some(keeper) = &self.keeper {
            keeper.abort();
        }
    }
}

pub(crate) async fn acquire(dir: &ObjectDir, name: &str, owner: &str) -> Result<Lease, LockError> {
    let url = dir.url_of(name);
    let record = Record {
        id: format!("{:032x}", fastrand::u128(..)),
        holder: Holder::this_process(owner),
        term: LEASE_TERM,
    };
    let mut condition = Condition::Absent;
    for _ in 0..ROUNDS {
        let from = Instant::now();
        let claim = record.encode(Claim::held(LEASE_TERM));
        match dir
            .put_conditionally(name, claim, condition, Operation::Lock)
            .await
        {
            Ok(version) => return Ok(keep(dir.clone(), name.to_owned(), record, version, from)),
            Err(StoreError::AlreadyExists { .. } | StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        match until_free(dir, name, &record.id).await? {
            Free::Ours(version) => {
                return Ok(keep(dir.clone(), name.to_owned(), record, version, from));
            }
            Free::Gone => condition = Condition::Absent,
            Free::Ended(version) => condition = Condition::Unchanged(version),
        }
    }
    Err(LockError::Held {
        url,
        holder: Box::new(Holder::unknown()),
        hint: HINT,
    })
}

enum Free {
    /// The claim landed and only its answer was lost.
    Ours(UpdateVersion),
    Gone,
    Ended(UpdateVersion),
}

/// Waits until the lease may be taken, or finds that its holder lives.
async fn until_free(dir: &ObjectDir, name: &str, id: &str) -> Result<Free, LockError> {
    let url = dir.url_of(name);
    let Some((seen, first)) = look(dir, name).await? else {
        return Ok(Free::Gone);
    };
    if seen.record.id == id {
        return Ok(Free::Ours(first));
    }
    if seen.has_ended(SystemTime::now()) {
        return Ok(Free::Ended(first));
    }
    warn!(
        lock = %url,
        holder = %seen.record.holder,
        at_most = ?seen.record.term,
        "waiting to see whether the lease's holder lives"
    );
    let ends = Instant::now() + seen.record.term;
    loop {
        sleep_until(ends.min(Instant::now() + seen.record.term / 6)).await;
        let Some((now, version)) = look(dir, name).await? else {
            return Ok(Free::Gone);
        };
        if version != first {
            if now.has_ended(SystemTime::now()) {
                return Ok(Free::Ended(version));
            }
            return Err(LockError::Held {
                url,
                holder: Box::new(now.record.holder),
                hint: HINT,
            });
        }
        if Instant::now() >= ends {
            info!(lock = %url, holder = %seen.record.holder, "taking over a lease that ended");
            return Ok(Free::Ended(version));
        }
    }
}

async fn look(dir: &ObjectDir, name: &str) -> Result<Option<(Seen, UpdateVersion)>, LockError> {
    let not_a_lease = || LockError::NotALease {
        url: dir.url_of(name),
    };
    match dir.get_versioned(name, LIMIT_BYTES, Operation::Lock).await {
        Ok((content, version)) => Ok(Some((
            Seen::decode(&content).ok_or_else(not_a_lease)?,
            version,
        ))),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(StoreError::TooLarge { .. }) => Err(not_a_lease()),
        Err(error) => Err(error.into()),
    }
}

fn keep(
    dir: ObjectDir,
    name: String,
    record: Record,
    version: UpdateVersion,
    from: Instant,
) -> Lease {
    let url = dir.url_of(&name);
    let valid_until = from + LEASE_TERM;
    let (publish, state) = watch::channel(State {
        valid_until,
        gone: false,
        version,
    });
    let (stop, stopped) = watch::channel(false);
    let keeper = tokio::spawn(renew(
        dir.clone(),
        name.clone(),
        record.clone(),
        publish,
        stopped,
    ));
    let lease = ObjectLease {
        state,
        keeper: Some(keeper),
        stop,
        record,
        dir,
        name,
    };
    Lease {
        url,
        kind: Kind::Object(lease),
    }
}

/// Renews until it is stopped or the lease is lost.
async fn renew(
    dir: ObjectDir,
    name: String,
    record: Record,
    state: watch::Sender<State>,
    mut stopped: watch::Receiver<bool>,
) {
    let url = dir.url_of(&name);
    let retry = LEASE_TERM / 15;
    let mut pause = LEASE_TERM / 3;
    loop {
        tokio::select! {
            biased;
            // An error: the lease is being dropped.
            _ = stopped.changed() => return,
            () = sleep(pause) => {}
        }
        let (valid_until, version) = {
            let now = state.borrow();
            (now.valid_until, now.version.clone())
        };
        let from = Instant::now();
        let renewed = match from < valid_until {
            true => timeout_at(valid_until, renew_once(&dir, &name, &record, version))
                .await
                .ok(),
            false => None,
        };
        let mut gone = false;
        // Decided while readers are kept out: a lease that someone was told has ended stays so,
        // even if a renewal lands.
        state.send_modify(|state| {
            if Instant::now() >= state.valid_until {
                state.gone = true;
            } else if let Some(Ok(Some(version))) = &renewed {
                state.valid_until = from + LEASE_TERM;
                state.version = version.clone();
            }
            gone = state.gone;
        });
        if gone {
            error!(lock = %url, "the lease ended because it could not be renewed");
            return;
        }
        match renewed {
            Some(Ok(Some(_))) => pause = LEASE_TERM / 3,
            Some(Ok(None)) => {
                error!(lock = %url, "another process took the lease over: stop this one");
                state.send_modify(|state| state.gone = true);
                return;
            }
            Some(Err(error)) => {
                pause = retry;
                let left = valid_until.saturating_duration_since(Instant::now());
                warn!(lock = %url, %error, ?left, "could not renew the lease, trying again");
            }
            None => {}
        }
    }
}

/// `None`: another process owns the lease.
async fn renew_once(
    dir: &ObjectDir,
    name: &str,
    record: &Record,
    version: UpdateVersion,
) -> Result<Option<UpdateVersion>, StoreError> {
    let content = record.encode(Claim::held(LEASE_TERM));
    let condition = Condition::Unchanged(version);
    match dir
        .put_conditionally(name, content, condition, Operation::Lock)
        .await
    {
        Ok(version) => Ok(Some(version)),
        // A renewal whose answer was lost is repeated below us and then refused: look who it is.
        Err(StoreError::AlreadyExists { .. } | StoreError::NotFound { .. }) => {
            match look(dir, name).await {
                Ok(Some((seen, version))) if seen.record.id == record.id => Ok(Some(version)),
                Ok(_) | Err(LockError::NotALease { .. } | LockError::Held { .. }) => Ok(None),
                Err(LockError::Store(error)) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

/// Who claims a lease, the same in every renewal.
#[derive(Debug, Clone)]
struct Record {
    id: String,
    holder: Holder,
    term: Duration,
}

/// What one write of the lease says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    Held { until: SystemTime },
    Released,
}

impl Claim {
    fn held(term: Duration) -> Self {
        Self::Held {
            until: SystemTime::now() + term,
        }
    }
}

impl Record {
    fn encode(&self, claim: Claim) -> Bytes {
        let until = match claim {
            Claim::Held { until } => unix_millis(until),
            Claim::Released => 0,
        };
        let term = self.term.as_millis();
        let holder = self.holder.to_text();
        let id = &self.id;
        format!("{MAGIC}\nid={id}\nterm-millis={term}\nuntil-millis={until}\n{holder}").into()
    }
}

#[derive(Debug)]
struct Seen {
    record: Record,
    until_millis: u64,
}

impl Seen {
    fn decode(content: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(content).ok()?;
        let text = text.strip_prefix(MAGIC)?.strip_prefix('\n')?;
        let field = |key: &str| {
            let mut fields = text.lines().filter_map(|line| line.split_once('='));
            fields
                .find(|(name, _)| *name == key)
                .map(|(_, value)| value)
        };
        let term = Duration::from_millis(field("term-millis")?.parse().ok()?);
        // A term beyond reason would make a claimant wait for ever.
        if term < Duration::from_secs(1) || term > SKEW {
            return None;
        }
        let record = Record {
            id: field("id")?.to_owned(),
            holder: Holder::parse(text),
            term,
        };
        Some(Self {
            record,
            until_millis: field("until-millis")?.parse().ok()?,
        })
    }

    /// Released, or ended by any clock in working order.
    fn has_ended(&self, now: SystemTime) -> bool {
        let skew = u64::try_from(SKEW.as_millis()).unwrap_or(u64::MAX);
        self.until_millis.saturating_add(skew) < unix_millis(now)
    }
}

#[cfg(test)]
mod tests;
