//! Locks on memory stores: a table of the process.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use super::{Holder, Kind, Lease};
use crate::LockError;

static HELD: LazyLock<Mutex<HashMap<String, Holder>>> = LazyLock::new(Mutex::default);

#[derive(Debug)]
pub(crate) struct MemoryLock {
    key: String,
}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        held().remove(&self.key);
    }
}

pub(crate) fn acquire(key: String, url: String, owner: &str) -> Result<Lease, LockError> {
    let mut held = held();
    if let Some(holder) = held.get(&key) {
        return Err(LockError::Held {
            url,
            holder: Box::new(holder.clone()),
            hint: "",
        });
    }
    held.insert(key.clone(), Holder::this_process(owner));
    Ok(Lease {
        url,
        kind: Kind::Memory(MemoryLock { key }),
    })
}

fn held() -> MutexGuard<'static, HashMap<String, Holder>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}
