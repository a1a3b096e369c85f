//! Local locks: the kernel's, on a file that also says who holds it.
//!
//! The kernel gives the lock up when the process ends, `kill -9` included, so nothing can be stale.
//! The file is never deleted: a lock on a deleted file would keep nobody out.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::Path;

use super::{Holder, Kind, Lease};
use crate::local::{LocalDir, blocking, make_durable_dirs};
use crate::{LockError, Operation, StoreError};

#[derive(Debug)]
pub(crate) struct LocalLock {
    /// Closing it gives the lock up.
    file: File,
    url: String,
}

impl LocalLock {
    pub(super) async fn release(self) -> Result<(), StoreError> {
        blocking(move || {
            // Emptied first, so that nobody is named who has left.
            self.file
                .set_len(0)
                .and_then(|()| self.file.unlock())
                .map_err(|error| StoreError::from_io(error, Operation::Lock, self.url))
        })
        .await
    }
}

pub(crate) async fn acquire(dir: &LocalDir, name: &str, owner: &str) -> Result<Lease, LockError> {
    let path = dir.path_of(name);
    let holder = Holder::this_process(owner);
    blocking(move || {
        let url = path.display().to_string();
        let failed = |error| StoreError::from_io(error, Operation::Lock, url.clone());
        if let Some(parent) = path.parent() {
            make_durable_dirs(parent).map_err(failed)?;
        }
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let holder = Box::new(read_holder(&file));
                    return Err(LockError::Held {
                        url,
                        holder,
                        hint: "",
                    });
                }
                Err(TryLockError::Error(error)) => return Err(failed(error).into()),
            }
            // Someone may have deleted the file between our opening and locking it; then the
            // next process would lock another file of the same name.
            if !is_still_at(&file, &path).map_err(failed)? {
                continue;
            }
            file.set_len(0)
                .and_then(|()| file.write_all(holder.to_text().as_bytes()))
                .map_err(failed)?;
            let kind = Kind::Local(LocalLock {
                file,
                url: url.clone(),
            });
            return Ok(Lease { url, kind });
        }
    })
    .await
}

fn read_holder(file: &File) -> Holder {
    const LIMIT_BYTES: u64 = 4096;
    let mut text = String::new();
    // Who holds it is a courtesy; that it is held is certain.
    match file.take(LIMIT_BYTES).read_to_string(&mut text) {
        Ok(_) => Holder::parse(&text),
        Err(_) => Holder::unknown(),
    }
}

#[cfg(unix)]
fn is_still_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let locked = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(named) => Ok((locked.dev(), locked.ino()) == (named.dev(), named.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Elsewhere an open file cannot be deleted.
#[cfg(not(unix))]
fn is_still_at(_file: &File, _path: &Path) -> io::Result<bool> {
    Ok(true)
}
