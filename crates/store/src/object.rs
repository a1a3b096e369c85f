//! Object stores: Cloud Storage, S3 and the in-memory one, through `object_store`.
//!
//! A put of an object is atomic by itself; large ones go up in parts, which become visible
//! together. Retries, back-off and deadlines of single requests are `object_store`'s (at most three
//! minutes a request).

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion,
    WriteMultipart,
};

use crate::location::{OURS, Scheme};
use crate::store::{LIST_LIMIT, ObjectMeta, Reading};
use crate::{Operation, StoreError};

/// Above this an object goes up in parts of this size, each a request with its own deadline.
const PART_BYTES: usize = 8 * 1024 * 1024;

/// Parts of one object on their way at once.
const PARTS_IN_FLIGHT: usize = 4;

#[derive(Clone)]
pub(crate) struct ObjectDir {
    store: Arc<dyn ObjectStore>,
    prefix: Arc<str>,
    /// Location of the directory, fit to be shown.
    url: Arc<str>,
    /// Identifies a memory store within the process.
    memory: Option<Arc<str>>,
}

impl fmt::Debug for ObjectDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectDir").field(&self.url).finish()
    }
}

/// What a conditional write is conditional on.
#[derive(Debug, Clone)]
pub(crate) enum Condition {
    Absent,
    Unchanged(UpdateVersion),
}

impl ObjectDir {
    pub(crate) fn open(scheme: Scheme, bucket: &str, prefix: String) -> Result<Self, StoreError> {
        let base = format!("{}://{bucket}", scheme.as_str());
        let store: Arc<dyn ObjectStore> = match scheme {
            Scheme::Memory => return Ok(Self::memory(bucket, prefix)),
            Scheme::Gcs => cloud::gcs(bucket, &base)?,
            Scheme::S3 => cloud::s3(bucket, &base)?,
        };
        Ok(Self::over(store, &base, prefix, None))
    }

    fn memory(bucket: &str, prefix: String) -> Self {
        static SHARED: LazyLock<Mutex<HashMap<String, Arc<InMemory>>>> =
            LazyLock::new(Mutex::default);
        let (store, key) = if bucket.is_empty() {
            (
                Arc::default(),
                format!("private {:016x}", fastrand::u64(..)),
            )
        } else {
            let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
            (
                Arc::clone(shared.entry(bucket.to_owned()).or_default()),
                bucket.to_owned(),
            )
        };
        Self::over(
            store,
            &format!("memory://{bucket}"),
            prefix,
            Some(key.into()),
        )
    }

    pub(crate) fn over(
        store: Arc<dyn ObjectStore>,
        base: &str,
        prefix: String,
        memory: Option<Arc<str>>,
    ) -> Self {
        let url = if prefix.is_empty() {
            base.to_owned()
        } else {
            format!("{base}/{prefix}")
        };
        Self {
            store,
            prefix: prefix.into(),
            url: url.into(),
            memory,
        }
    }

    pub(crate) fn url_of(&self, name: &str) -> String {
        format!("{}/{name}", self.url)
    }

    /// A key that names `name` within the process, for memory stores.
    pub(crate) fn memory_key(&self, name: &str) -> Option<String> {
        let store = self.memory.as_ref()?;
        Some(format!("{store}\0{}\0{name}", self.prefix))
    }

    fn path_of(&self, name: &str) -> Result<Path, StoreError> {
        let full = match (self.prefix.is_empty(), name.is_empty()) {
            (true, _) => name.to_owned(),
            (false, true) => self.prefix.to_string(),
            (false, false) => format!("{}/{name}", self.prefix),
        };
        // `check_name` is stricter, so this is a second line of defence.
        Path::parse(full).map_err(|_| StoreError::InvalidName {
            url: self.url.to_string(),
            name: name.to_owned(),
            reason: "the object store refuses it",
        })
    }

    fn failed(
        &self,
        name: &str,
        operation: Operation,
    ) -> impl Fn(object_store::Error) -> StoreError + use<> {
        let url = if name.is_empty() {
            self.url.to_string()
        } else {
            self.url_of(name)
        };
        move |error| StoreError::from_object(error, operation, url.clone())
    }

    pub(crate) async fn check_writable(&self) -> Result<(), StoreError> {
        let failed = self.failed("", Operation::Open);
        let probe = self.path_of(&format!("{OURS}probe-{:016x}", fastrand::u64(..)))?;
        self.store
            .put(&probe, Bytes::from_static(b"probe").into())
            .await
            .map_err(&failed)?;
        self.store.delete(&probe).await.map_err(&failed)
    }

    pub(crate) async fn put(&self, name: &str, content: Bytes) -> Result<(), StoreError> {
        let path = self.path_of(name)?;
        let failed = self.failed(name, Operation::Write);
        if content.len() <= PART_BYTES {
            self.store
                .put(&path, content.into())
                .await
                .map_err(&failed)?;
            return Ok(());
        }
        let upload = self.store.put_multipart(&path).await.map_err(&failed)?;
        let mut parts = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        let mut rest = content;
        while !rest.is_empty() {
            if let Err(error) = parts.wait_for_capacity(PARTS_IN_FLIGHT).await {
                // Unfinished parts are invisible; the bucket's lifecycle rule is the second net.
                let _ = parts.abort().await;
                return Err(failed(error));
            }
            parts.put(rest.split_to(PART_BYTES.min(rest.len())));
        }
        // Aborts by itself when it fails.
        parts.finish().await.map_err(&failed)?;
        Ok(())
    }

    pub(crate) async fn put_if_absent(&self, name: &str, content: Bytes) -> Result<(), StoreError> {
        self.put_conditionally(name, content, Condition::Absent, Operation::Write)
            .await?;
        Ok(())
    }

    /// Writes if the condition holds, else fails with [`StoreError::AlreadyExists`].
    pub(crate) async fn put_conditionally(
        &self,
        name: &str,
        content: Bytes,
        condition: Condition,
        operation: Operation,
    ) -> Result<UpdateVersion, StoreError> {
        let path = self.path_of(name)?;
        let mode = match condition {
            Condition::Absent => PutMode::Create,
            Condition::Unchanged(version) => PutMode::Update(version),
        };
        let put = self
            .store
            .put_opts(&path, content.into(), PutOptions::from(mode))
            .await;
        let written = put.map_err(self.failed(name, operation))?;
        Ok(UpdateVersion {
            e_tag: written.e_tag,
            version: written.version,
        })
    }

    pub(crate) async fn get(&self, name: &str, limit_bytes: u64) -> Result<Bytes, StoreError> {
        Ok(self
            .get_versioned(name, limit_bytes, Operation::Read)
            .await?
            .0)
    }

    pub(crate) async fn get_versioned(
        &self,
        name: &str,
        limit_bytes: u64,
        operation: Operation,
    ) -> Result<(Bytes, UpdateVersion), StoreError> {
        let path = self.path_of(name)?;
        let failed = self.failed(name, operation);
        let got = self.store.get(&path).await.map_err(&failed)?;
        if got.meta.size > limit_bytes {
            return Err(StoreError::TooLarge {
                url: self.url_of(name),
                size_bytes: got.meta.size,
                limit_bytes,
            });
        }
        let version = UpdateVersion {
            e_tag: got.meta.e_tag.clone(),
            version: got.meta.version.clone(),
        };
        let content = got.bytes().await.map_err(&failed)?;
        Ok((content, version))
    }

    pub(crate) async fn get_range(
        &self,
        name: &str,
        range: Range<u64>,
    ) -> Result<Bytes, StoreError> {
        let path = self.path_of(name)?;
        let failed = self.failed(name, Operation::Read);
        let wanted_bytes = range.end;
        let wanted = range.end - range.start;
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            ..Default::default()
        };
        let got = match self.store.get_opts(&path, options).await {
            Ok(got) => got,
            // A range wholly beyond the end is refused, in each service's own words.
            Err(error) => return Err(self.beyond_end(&path, name, wanted_bytes, error).await),
        };
        let size_bytes = got.meta.size;
        let content = got.bytes().await.map_err(&failed)?;
        if (content.len() as u64) < wanted {
            return Err(StoreError::OutOfRange {
                url: self.url_of(name),
                size_bytes,
                wanted_bytes,
            });
        }
        Ok(content)
    }

    pub(crate) async fn read(&self, name: &str, offset_bytes: u64) -> Result<Reading, StoreError> {
        let path = self.path_of(name)?;
        let range = (offset_bytes > 0).then_some(GetRange::Offset(offset_bytes));
        let options = GetOptions {
            range,
            ..Default::default()
        };
        let got = match self.store.get_opts(&path, options).await {
            Ok(got) => got,
            Err(error) => {
                let found = self.head(name).await;
                return match found {
                    // Services refuse the empty range at the end.
                    Ok(meta) if meta.size_bytes == offset_bytes => {
                        Ok(Reading::new(meta, futures::stream::empty().boxed()))
                    }
                    _ => Err(self.beyond_end(&path, name, offset_bytes, error).await),
                };
            }
        };
        let meta = meta_of(name.to_owned(), &got.meta);
        let failed = self.failed(name, Operation::Read);
        Ok(Reading::new(
            meta,
            got.into_stream().map_err(failed).boxed(),
        ))
    }

    /// `error`, or that the object is shorter than asked for.
    async fn beyond_end(
        &self,
        path: &Path,
        name: &str,
        wanted_bytes: u64,
        error: object_store::Error,
    ) -> StoreError {
        match self.store.head(path).await {
            Ok(meta) if meta.size < wanted_bytes => StoreError::OutOfRange {
                url: self.url_of(name),
                size_bytes: meta.size,
                wanted_bytes,
            },
            _ => self.failed(name, Operation::Read)(error),
        }
    }

    pub(crate) async fn head(&self, name: &str) -> Result<ObjectMeta, StoreError> {
        let path = self.path_of(name)?;
        let meta = self
            .store
            .head(&path)
            .await
            .map_err(self.failed(name, Operation::Read))?;
        Ok(meta_of(name.to_owned(), &meta))
    }

    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StoreError> {
        let failed = self.failed(prefix, Operation::List);
        let mut found = Vec::new();
        let mut listing = self.store.list(Some(&self.path_of(prefix)?));
        while let Some(meta) = listing.try_next().await.map_err(&failed)? {
            let full: &str = meta.location.as_ref();
            let Some(name) = full.strip_prefix(&*self.prefix) else {
                continue;
            };
            let name = name.trim_start_matches('/');
            if name
                .rsplit('/')
                .next()
                .is_some_and(|last| last.starts_with(OURS))
            {
                continue;
            }
            if found.len() == LIST_LIMIT {
                return Err(StoreError::TooMany {
                    url: self.url.to_string(),
                    limit: LIST_LIMIT,
                });
            }
            found.push(meta_of(name.to_owned(), &meta));
        }
        Ok(found)
    }

    pub(crate) async fn delete(&self, name: &str) -> Result<(), StoreError> {
        let path = self.path_of(name)?;
        match self.store.delete(&path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(name, Operation::Delete)(error)),
        }
    }

    pub(crate) async fn delete_prefix(&self, prefix: &str) -> Result<(), StoreError> {
        let locations = self
            .store
            .list(Some(&self.path_of(prefix)?))
            .map_ok(|meta| meta.location)
            .boxed();
        let mut deleted = self.store.delete_stream(locations);
        while let Some(one) = deleted.next().await {
            match one {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(self.failed(prefix, Operation::Delete)(error)),
            }
        }
        Ok(())
    }
}

fn meta_of(name: String, meta: &object_store::ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name,
        size_bytes: meta.size,
        modified: meta.last_modified.into(),
        etag: meta.e_tag.clone(),
    }
}

/// The services that need a feature.
mod cloud {
    use super::{Arc, ObjectStore, StoreError};

    /// `ring`, like the rest of the program; the first caller in the process decides.
    #[cfg(any(feature = "gcs", feature = "s3"))]
    fn install_tls() {
        // An error says that a provider is installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }

    #[cfg(feature = "gcs")]
    pub(super) fn gcs(bucket: &str, url: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
        install_tls();
        let store = object_store::gcp::GoogleCloudStorageBuilder::from_env()
            .with_bucket_name(bucket)
            .build()
            .map_err(|error| StoreError::from_object(error, crate::Operation::Open, url))?;
        Ok(Arc::new(store))
    }

    #[cfg(not(feature = "gcs"))]
    pub(super) fn gcs(_bucket: &str, url: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
        Err(StoreError::FeatureOff {
            url: url.to_owned(),
            feature: "gcs",
        })
    }

    #[cfg(feature = "s3")]
    pub(super) fn s3(bucket: &str, url: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
        install_tls();
        let store = object_store::aws::AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .build()
            .map_err(|error| StoreError::from_object(error, crate::Operation::Open, url))?;
        Ok(Arc::new(store))
    }

    #[cfg(not(feature = "s3"))]
    pub(super) fn s3(_bucket: &str, url: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
        Err(StoreError::FeatureOff {
            url: url.to_owned(),
            feature: "s3",
        })
    }
}
