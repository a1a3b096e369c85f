//! The store itself: checks names and hands each operation to the place that does it.
//!
//! Local files are written by `local`, because their durability needs calls that `object_store`
//! does not make (measured by reading it: no `fsync` of file or directory). Everything else goes
//! through `object`.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use bytes::Bytes;
use futures::Stream;
use futures::stream::BoxStream;

use crate::local::LocalDir;
use crate::location::{Location, check_name};
use crate::lock::{self, Lease};
use crate::object::ObjectDir;
use crate::{LockError, StoreError};

/// The most objects [`Store::list`] returns; beyond it fails with [`StoreError::TooMany`].
pub const LIST_LIMIT: usize = 1_000_000;

/// A directory of objects, wherever it is. Clones are cheap and share it.
#[derive(Clone)]
pub struct Store {
    url: Arc<str>,
    backend: Backend,
}

#[derive(Clone)]
enum Backend {
    Local(LocalDir),
    Object(ObjectDir),
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.url).finish()
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

/// What is known of an object without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectMeta {
    /// The name within the store.
    pub name: String,
    /// The size.
    pub size_bytes: u64,
    /// When it was last written, by the clock of whoever stores it.
    pub modified: SystemTime,
    /// Changes when the content does. Local files: made of modification time and size, hence the
    /// same for a copy that keeps its times.
    pub etag: Option<String>,
}

/// An object being read: a stream of its bytes from the offset asked for, in pieces of at most
/// about a mebibyte, one read ahead.
pub struct Reading {
    meta: ObjectMeta,
    stream: BoxStream<'static, Result<Bytes, StoreError>>,
}

impl Reading {
    pub(crate) fn new(
        meta: ObjectMeta,
        stream: BoxStream<'static, Result<Bytes, StoreError>>,
    ) -> Self {
        Self { meta, stream }
    }

    /// The object as it was when opened.
    pub fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

impl Stream for Reading {
    type Item = Result<Bytes, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.stream.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading")
            .field("meta", &self.meta)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Opens a directory by path or URL. No I/O: a missing directory is made by the first write,
    /// and [`check_writable`](Self::check_writable) says early whether that will work.
    ///
    /// - a path, or `file:///path`: a local directory; relative paths are resolved now;
    /// - `memory://name/dir`: in this process, shared by name; `memory://` alone is private;
    /// - `gs://bucket/dir`: Cloud Storage, with the feature `gcs`; application-default credentials;
    /// - `s3://bucket/dir`: S3 and its kin, with the feature `s3`; the usual `AWS_*` variables.
    ///
    /// # Errors
    ///
    /// [`StoreError::InvalidLocation`] and [`StoreError::FeatureOff`].
    pub fn open(location: &str) -> Result<Self, StoreError> {
        Self::from_location(Location::parse(location)?)
    }

    /// Opens the directory that holds the object at `location`, and gives the object's name in it.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), and [`StoreError::InvalidLocation`] without a last component.
    pub fn open_parent(location: &str) -> Result<(Self, String), StoreError> {
        let parsed = Location::parse(location)?;
        let url = parsed.display();
        let (parent, name) = parsed
            .split_last()
            .ok_or_else(|| StoreError::InvalidLocation {
                url,
                reason: "it names no file".to_owned(),
            })?;
        let store = Self::from_location(parent)?;
        store.check(&name)?;
        Ok((store, name))
    }

    fn from_location(location: Location) -> Result<Self, StoreError> {
        let url = location.display().into();
        let backend = match location {
            Location::Local { path } => Backend::Local(LocalDir::new(path)),
            Location::Object {
                scheme,
                bucket,
                prefix,
            } => Backend::Object(ObjectDir::open(scheme, &bucket, prefix)?),
        };
        Ok(Self { url, backend })
    }

    /// The store's location, fit to be shown.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// An object's location, fit to be shown.
    pub fn url_of(&self, name: &str) -> String {
        format!("{}/{name}", self.url.trim_end_matches('/'))
    }

    /// The directory, if this is a local one.
    pub fn local_path(&self) -> Option<PathBuf> {
        match &self.backend {
            Backend::Local(dir) => Some(dir.root().to_owned()),
            Backend::Object(_) => None,
        }
    }

    /// Makes sure that objects can be written: makes the directory where there is one, writes a
    /// probe and removes it.
    ///
    /// # Errors
    ///
    /// Whatever stands in the way, such as [`StoreError::PermissionDenied`],
    /// [`StoreError::ReadOnly`], [`StoreError::WrongKind`] and [`StoreError::NoSpace`].
    pub async fn check_writable(&self) -> Result<(), StoreError> {
        match &self.backend {
            Backend::Local(dir) => dir.check_writable().await,
            Backend::Object(dir) => dir.check_writable().await,
        }
    }

    /// Writes an object, replacing an earlier one: it appears whole or not at all. When this
    /// returns it is durable; local files and their directory entries are on the disk.
    ///
    /// # Errors
    ///
    /// After any error except [`StoreError::Io`] the object is as it was before.
    pub async fn put_atomic(&self, name: &str, content: Bytes) -> Result<(), StoreError> {
        self.check(name)?;
        match &self.backend {
            Backend::Local(dir) => dir.put(name, content, crate::local::Put::Replace).await,
            Backend::Object(dir) => dir.put(name, content).await,
        }
    }

    /// Writes an object unless there is one of that name; as durable as
    /// [`put_atomic`](Self::put_atomic). Of several callers at once exactly one succeeds.
    ///
    /// # Errors
    ///
    /// [`StoreError::AlreadyExists`] and what any write can meet.
    pub async fn put_if_absent(&self, name: &str, content: Bytes) -> Result<(), StoreError> {
        self.check(name)?;
        match &self.backend {
            Backend::Local(dir) => dir.put(name, content, crate::local::Put::Create).await,
            Backend::Object(dir) => dir.put_if_absent(name, content).await,
        }
    }

    /// Reads a whole object of at most `limit_bytes`.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`]; [`StoreError::TooLarge`] before anything is read.
    pub async fn get(&self, name: &str, limit_bytes: u64) -> Result<Bytes, StoreError> {
        self.check(name)?;
        match &self.backend {
            Backend::Local(dir) => dir.get(name, limit_bytes).await,
            Backend::Object(dir) => dir.get(name, limit_bytes).await,
        }
    }

    /// Reads the bytes of `range`, all of them.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`]; [`StoreError::OutOfRange`] if the object ends before the range
    /// does.
    pub async fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.check(name)?;
        if range.start >= range.end {
            return Ok(Bytes::new());
        }
        match &self.backend {
            Backend::Local(dir) => dir.get_range(name, range).await,
            Backend::Object(dir) => dir.get_range(name, range).await,
        }
    }

    /// Reads an object from `offset_bytes` to its end, piece by piece; at the end itself the
    /// stream is empty.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`]; [`StoreError::OutOfRange`] for an offset beyond the end. The
    /// stream fails if a local file shrinks under it.
    pub async fn read(&self, name: &str, offset_bytes: u64) -> Result<Reading, StoreError> {
        self.check(name)?;
        match &self.backend {
            Backend::Local(dir) => dir.read(name, offset_bytes).await,
            Backend::Object(dir) => dir.read(name, offset_bytes).await,
        }
    }

    /// What is known of an object.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`].
    pub async fn head(&self, name: &str) -> Result<ObjectMeta, StoreError> {
        self.check(name)?;
        match &self.backend {
            Backend::Local(dir) => dir.head(name).await,
            Backend::Object(dir) => dir.head(name).await,
        }
    }

    /// Every object below the directory `prefix` (`""`: the whole store), at any depth, sorted by
    /// name. A missing directory is empty. Links to directories are not followed.
    ///
    /// # Errors
    ///
    /// [`StoreError::TooMany`] above [`LIST_LIMIT`].
    pub async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StoreError> {
        let prefix = self.check_prefix(prefix)?;
        let mut found = match &self.backend {
            Backend::Local(dir) => dir.list(prefix).await?,
            Backend::Object(dir) => dir.list(prefix).await?,
        };
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Deletes an object. A missing one is fine.
    ///
    /// # Errors
    ///
    /// Permissions and the store's own failures.
    pub async fn delete(&self, name: &str) -> Result<(), StoreError> {
        self.check(name)?;
        match &self.backend {
            Backend::Local(dir) => dir.delete(name).await,
            Backend::Object(dir) => dir.delete(name).await,
        }
    }

    /// Deletes every object below the directory `prefix`, and what a killed writer left there. Not
    /// atomic: after an error some are gone. A missing directory is fine; the empty prefix is
    /// refused.
    ///
    /// # Errors
    ///
    /// [`StoreError::InvalidName`] for the empty prefix; permissions; the store's own failures.
    pub async fn delete_prefix(&self, prefix: &str) -> Result<(), StoreError> {
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        self.check(prefix)?;
        match &self.backend {
            Backend::Local(dir) => dir.delete_prefix(prefix).await,
            Backend::Object(dir) => dir.delete_prefix(prefix).await,
        }
    }

    /// Takes exclusive ownership of `name`, by custom a lock for the whole directory.
    ///
    /// - Local: an advisory lock of the operating system on the file `name`, which the kernel gives
    ///   up when the process ends however it ends. The file stays.
    /// - Object stores: a lease object, renewed at a third of [`LEASE_TERM`](crate::LEASE_TERM).
    ///   A lease left by a killed process is taken over once it was seen unchanged for its whole
    ///   term, so this call may wait that long; a live holder is reported after its next renewal.
    ///   Clocks of two machines are compared only beyond ten minutes.
    /// - `memory://`: a table in this process.
    ///
    /// `owner` describes the holder to others (a job's name); it is cut to 200 characters.
    ///
    /// # Errors
    ///
    /// [`LockError::Held`] names the holder.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may leave an object store's lease behind until its term ends.
    pub async fn lock(&self, name: &str, owner: &str) -> Result<Lease, LockError> {
        self.check(name)?;
        match &self.backend {
            Backend::Local(dir) => lock::local::acquire(dir, name, owner).await,
            Backend::Object(dir) => match dir.memory_key(name) {
                Some(key) => lock::memory::acquire(key, dir.url_of(name), owner),
                None => lock::object::acquire(dir, name, owner).await,
            },
        }
    }

    fn check(&self, name: &str) -> Result<(), StoreError> {
        check_name(name).map_err(|reason| StoreError::InvalidName {
            url: self.url.to_string(),
            name: name.to_owned(),
            reason,
        })
    }

    fn check_prefix<'a>(&self, prefix: &'a str) -> Result<&'a str, StoreError> {
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if !prefix.is_empty() {
            self.check(prefix)?;
        }
        Ok(prefix)
    }
}
