//! Local files, written so that they survive a power failure.
//!
//! A write goes to a temporary file beside its target, is synced, takes the target's name by one
//! call of the system, and then the directory is synced. A temporary file that a killed process
//! left is invisible to listings and goes with its directory.
//!
//! All work runs on the runtime's blocking threads.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::warn;

use crate::location::OURS;
use crate::store::{LIST_LIMIT, ObjectMeta, Reading};
use crate::{Operation, StoreError};

/// One piece of a streamed file: large enough that the hop to a blocking thread does not show
/// (about 10 us against 100 us), small enough to stay in a core's cache.
const PIECE_BYTES: u64 = 512 * 1024;

/// Whether a write may replace.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Put {
    Replace,
    Create,
}

#[derive(Debug, Clone)]
pub(crate) struct LocalDir {
    root: Arc<Path>,
}

impl LocalDir {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root: root.into() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) async fn check_writable(&self) -> Result<(), StoreError> {
        let root = Arc::clone(&self.root);
        blocking(move || {
            let failed = |error| StoreError::from_io(error, Operation::Open, shown(&root));
            make_durable_dirs(&root).map_err(failed)?;
            let (probe, mut file) = temporary(&root).map_err(failed)?;
            let written = file.write_all(b"probe").and_then(|()| file.sync_all());
            let removed = fs::remove_file(&probe);
            written.and(removed).map_err(failed)
        })
        .await
    }

    pub(crate) async fn put(&self, name: &str, content: Bytes, put: Put) -> Result<(), StoreError> {
        let target = self.path_of(name);
        blocking(move || {
            write_durably(&target, &content, put)
                .map_err(|error| StoreError::from_io(error, Operation::Write, shown(&target)))
        })
        .await
    }

    pub(crate) async fn get(&self, name: &str, limit_bytes: u64) -> Result<Bytes, StoreError> {
        let path = self.path_of(name);
        let name = name.to_owned();
        blocking(move || {
            let (file, meta) = open(&path, name)?;
            let too_large = |size_bytes| StoreError::TooLarge {
                url: shown(&path),
                size_bytes,
                limit_bytes,
            };
            if meta.size_bytes > limit_bytes {
                return Err(too_large(meta.size_bytes));
            }
            // The file may grow under us: one byte beyond the limit tells.
            let content = read_up_to(&file, limit_bytes.saturating_add(1), meta.size_bytes)
                .map_err(|error| StoreError::from_io(error, Operation::Read, shown(&path)))?;
            if content.len() as u64 > limit_bytes {
                return Err(too_large(content.len() as u64));
            }
            Ok(content)
        })
        .await
    }

    pub(crate) async fn get_range(
        &self,
        name: &str,
        range: Range<u64>,
    ) -> Result<Bytes, StoreError> {
        let path = self.path_of(name);
        let name = name.to_owned();
        blocking(move || {
            let (mut file, meta) = open(&path, name)?;
            let short = |size_bytes| StoreError::OutOfRange {
                url: shown(&path),
                size_bytes,
                wanted_bytes: range.end,
            };
            if meta.size_bytes < range.end {
                return Err(short(meta.size_bytes));
            }
            let failed = |error| StoreError::from_io(error, Operation::Read, shown(&path));
            let wanted = range.end - range.start;
            file.seek(SeekFrom::Start(range.start)).map_err(failed)?;
            let content = read_up_to(&file, wanted, wanted).map_err(failed)?;
            if (content.len() as u64) < wanted {
                return Err(short(range.start + content.len() as u64));
            }
            Ok(content)
        })
        .await
    }

    pub(crate) async fn read(&self, name: &str, offset_bytes: u64) -> Result<Reading, StoreError> {
        let path = self.path_of(name);
        let name = name.to_owned();
        let (piece, meta) = blocking(move || {
            let (mut file, meta) = open(&path, name)?;
            if offset_bytes > meta.size_bytes {
                return Err(StoreError::OutOfRange {
                    url: shown(&path),
                    size_bytes: meta.size_bytes,
                    wanted_bytes: offset_bytes,
                });
            }
            file.seek(SeekFrom::Start(offset_bytes))
                .map_err(|error| StoreError::from_io(error, Operation::Read, shown(&path)))?;
            let piece = Piece {
                file,
                path,
                at: offset_bytes,
                end: meta.size_bytes,
            };
            Ok((piece, meta))
        })
        .await?;
        let stream = stream::unfold(Some(piece.fetch()), |running| async move {
            match joined(running?).await {
                // The next piece is read while this one is worked on.
                Ok(Some((bytes, rest))) => Some((Ok(bytes), Some(rest.fetch()))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(Reading::new(meta, stream.boxed()))
    }

    pub(crate) async fn head(&self, name: &str) -> Result<ObjectMeta, StoreError> {
        let path = self.path_of(name);
        let name = name.to_owned();
        blocking(move || {
            let failed = |error| StoreError::from_io(error, Operation::Read, shown(&path));
            let found = fs::metadata(&path).map_err(failed)?;
            if found.is_dir() {
                return Err(failed(io::ErrorKind::IsADirectory.into()));
            }
            Ok(meta_of(name, &found))
        })
        .await
    }

    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StoreError> {
        let root = Arc::clone(&self.root);
        let prefix = prefix.to_owned();
        blocking(move || list_files(&root, prefix)).await
    }

    pub(crate) async fn delete(&self, name: &str) -> Result<(), StoreError> {
        let path = self.path_of(name);
        blocking(move || match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => {
                other.map_err(|error| StoreError::from_io(error, Operation::Delete, shown(&path)))
            }
        })
        .await
    }

    pub(crate) async fn delete_prefix(&self, prefix: &str) -> Result<(), StoreError> {
        let path = self.path_of(prefix);
        blocking(move || match fs::remove_dir_all(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // An object of that very name is not below it.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(()),
            other => {
                other.map_err(|error| StoreError::from_io(error, Operation::Delete, shown(&path)))
            }
        })
        .await
    }
}

/// A file being streamed and the next read's place.
struct Piece {
    file: File,
    path: PathBuf,
    at: u64,
    /// The size when it was opened: what is appended later belongs to no one's plan.
    end: u64,
}

type Fetched = Result<Option<(Bytes, Piece)>, StoreError>;

impl Piece {
    fn fetch(mut self) -> JoinHandle<Fetched> {
        spawn_blocking(move || {
            if self.at == self.end {
                return Ok(None);
            }
            let wanted = PIECE_BYTES.min(self.end - self.at);
            let bytes = read_up_to(&self.file, wanted, wanted)
                .map_err(|error| StoreError::from_io(error, Operation::Read, shown(&self.path)))?;
            self.at += bytes.len() as u64;
            if (bytes.len() as u64) < wanted {
                return Err(StoreError::OutOfRange {
                    url: shown(&self.path),
                    size_bytes: self.at,
                    wanted_bytes: self.end,
                });
            }
            Ok(Some((bytes, self)))
        })
    }
}

/// Runs blocking work and carries its panic on.
pub(crate) async fn blocking<T: Send + 'static, E: Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    joined(spawn_blocking(work)).await
}

async fn joined<T, E>(running: JoinHandle<Result<T, E>>) -> Result<T, E> {
    match running.await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // Only a runtime that shuts down cancels blocking work, and it polls nobody any more.
        Err(_) => std::future::pending().await,
    }
}

fn open(path: &Path, name: String) -> Result<(File, ObjectMeta), StoreError> {
    let failed = |error| StoreError::from_io(error, Operation::Read, shown(path));
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if found.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    let meta = meta_of(name, &found);
    Ok((file, meta))
}

fn read_up_to(file: &File, limit_bytes: u64, expected_bytes: u64) -> io::Result<Bytes> {
    // One spare byte lets `read_to_end` see the end without growing.
    let capacity = usize::try_from(expected_bytes)
        .map_err(io::Error::other)?
        .saturating_add(1);
    let mut content = Vec::new();
    content.try_reserve_exact(capacity)?;
    file.take(limit_bytes).read_to_end(&mut content)?;
    Ok(content.into())
}

fn meta_of(name: String, found: &Metadata) -> ObjectMeta {
    let modified = found.modified().unwrap_or(UNIX_EPOCH);
    ObjectMeta {
        name,
        size_bytes: found.len(),
        modified,
        etag: Some(format!("{:x}-{:x}", nanos(modified), found.len())),
    }
}

fn nanos(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos())
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn write_durably(target: &Path, content: &[u8], put: Put) -> io::Result<()> {
    let parent = target.parent().ok_or(io::ErrorKind::InvalidInput)?;
    make_durable_dirs(parent)?;
    let (temporary, mut file) = temporary(parent)?;
    let placed = file
        .write_all(content)
        .and_then(|()| file.sync_all())
        .and_then(|()| match put {
            Put::Replace => fs::rename(&temporary, target),
            // Unlike a rename, a link fails when its name is taken.
            Put::Create => {
                fs::hard_link(&temporary, target).and_then(|()| fs::remove_file(&temporary))
            }
        });
    if placed.is_err() {
        // The first error is the one that matters; a leftover goes with the directory.
        let _ = fs::remove_file(&temporary);
    }
    placed?;
    sync_dir(parent)
}

/// Makes a directory and its ancestors so that they survive a power failure.
pub(crate) fn make_durable_dirs(dir: &Path) -> io::Result<()> {
    let mut missing = Vec::new();
    for ancestor in dir.ancestors() {
        match fs::metadata(ancestor) {
            Ok(found) if found.is_dir() => break,
            Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(ancestor),
            Err(error) => return Err(error),
        }
    }
    for made in missing.into_iter().rev() {
        match fs::create_dir(made) {
            Ok(()) => {}
            // Another writer was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        if let Some(parent) = made.parent() {
            sync_dir(parent)?;
        }
    }
    Ok(())
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    match File::open(dir)?.sync_all() {
        // Some network file systems sync no directories and need not.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        other => other,
    }
}

fn temporary(dir: &Path) -> io::Result<(PathBuf, File)> {
    let path = dir.join(format!("{OURS}tmp-{:016x}", fastrand::u64(..)));
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)?;
    Ok((path, file))
}

fn list_files(root: &Path, prefix: String) -> Result<Vec<ObjectMeta>, StoreError> {
    let mut found = Vec::new();
    let mut dirs = vec![prefix];
    while let Some(dir) = dirs.pop() {
        let path = root.join(&dir);
        let failed = |error| StoreError::from_io(error, Operation::List, shown(&path));
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            // Missing, a file, or deleted while we looked.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                continue;
            }
            Err(error) => return Err(failed(error)),
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let file_name = entry.file_name();
            let Some(last) = file_name.to_str() else {
                warn!(dir = %path.display(), "left out a file whose name is not UTF-8");
                continue;
            };
            if last.starts_with(OURS) {
                continue;
            }
            let name = if dir.is_empty() {
                last.to_owned()
            } else {
                format!("{dir}/{last}")
            };
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() {
                dirs.push(name);
                continue;
            }
            // Follows a link to a file; a dangling or just deleted one is no object.
            let Ok(meta) = fs::metadata(entry.path()) else {
                continue;
            };
            if meta.is_file() {
                if found.len() == LIST_LIMIT {
                    return Err(StoreError::TooMany {
                        url: shown(root),
                        limit: LIST_LIMIT,
                    });
                }
                found.push(meta_of(name, &meta));
            }
        }
    }
    Ok(found)
}
