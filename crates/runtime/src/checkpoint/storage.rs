//! The checkpoint directory.
//!
//! Layout: `chk-<id>/<nnn>-<operator>` for the operators' data, `chk-<id>/manifest` written last. A savepoint is the
//! same without the `chk-<id>` level, in a directory of its own. The lock object `lock` belongs to the one process
//! that may write here.

use std::collections::HashMap;
use std::fmt::Write as _;

use aqueduct_connector::{CheckpointId, Error, ErrorKind, Result};
use aqueduct_store::{Lease, LockError, Store, StoreError};
use bytes::Bytes;
use futures::StreamExt;

use super::manifest::{FORMAT, FileEntry, LIMIT_BYTES, Manifest, OperatorEntry, VERSION};
use super::redistribute::Restored;
use super::state::OperatorFile;

const MANIFEST: &str = "manifest";
const LOCK: &str = "lock";
/// Files of one checkpoint written or read at once.
const PARALLEL_FILES: usize = 8;

/// A checkpoint as the coordinator collected it.
pub(crate) struct NewCheckpoint {
    pub(crate) id: CheckpointId,
    pub(crate) kind: &'static str,
    pub(crate) job: String,
    pub(crate) created_millis: i64,
    pub(crate) parallelism: u32,
    pub(crate) max_parallelism: u32,
    pub(crate) graph: String,
    pub(crate) named_origin: Option<String>,
    /// Every operator of the graph: name, kind, state.
    pub(crate) operators: Vec<(String, String, OperatorFile)>,
}

/// A checkpoint read back.
pub(crate) struct Loaded {
    pub(crate) manifest: Manifest,
    pub(crate) restored: Restored,
    /// Where it was.
    pub(crate) at: String,
}

/// A directory of checkpoints.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointStore {
    store: Store,
}

fn failed(what: &str, error: StoreError) -> Error {
    let kind = match &error {
        StoreError::Io { .. } | StoreError::NoSpace { .. } => ErrorKind::Io,
        StoreError::NotFound { .. }
        | StoreError::TooLarge { .. }
        | StoreError::OutOfRange { .. } => ErrorKind::State,
        _ => ErrorKind::Config,
    };
    Error::new(kind, format!("{what} failed: {error}")).with_source(error)
}

fn directory(id: u64) -> String {
    format!("chk-{id}")
}

/// `chk-<id>/…` gives the id.
fn id_of(name: &str) -> Option<u64> {
    name.strip_prefix("chk-")?.split('/').next()?.parse().ok()
}

/// A file name that any store takes, readable and unique by its number.
fn file_name(number: usize, operator: &str) -> String {
    let mut name = format!("{number:03}-");
    name.extend(operator.chars().take(60).map(|c| {
        if c.is_ascii_alphanumeric() || c == '-' || c == '_' {
            c
        } else {
            '_'
        }
    }));
    name
}

impl CheckpointStore {
    pub(crate) fn open(location: &str) -> Result<Self> {
        let store = Store::open(location).map_err(|error| {
            Error::config(format!("checkpoint location cannot be used: {error}")).with_source(error)
        })?;
        Ok(Self { store })
    }

    /// Where it is, fit to be shown.
    pub(crate) fn url(&self) -> &str {
        self.store.url()
    }

    /// Becomes the only writer of this directory.
    pub(crate) async fn lock(&self, job: &str) -> Result<Lease> {
        self.store
            .lock(LOCK, job)
            .await
            .map_err(|error| match error {
                LockError::Store(error) => failed("locking the checkpoint directory", error),
                other => Error::config(format!(
                    "the checkpoint directory {} is not free: {other}",
                    self.url()
                ))
                .with_source(other),
            })
    }

    /// Complete checkpoints, ascending, and the ids of incomplete ones.
    async fn scan(&self) -> Result<(Vec<u64>, Vec<u64>)> {
        let listed = self
            .store
            .list("")
            .await
            .map_err(|error| failed("listing the checkpoint directory", error))?;
        let mut found: HashMap<u64, bool> = HashMap::new();
        for object in &listed {
            if let Some(id) = id_of(&object.name) {
                let complete = object.name == format!("{}/{MANIFEST}", directory(id));
                *found.entry(id).or_default() |= complete;
            }
        }
        let (mut complete, mut incomplete) = (Vec::new(), Vec::new());
        for (id, is_complete) in found {
            if is_complete {
                complete.push(id);
            } else {
                incomplete.push(id);
            }
        }
        complete.sort_unstable();
        incomplete.sort_unstable();
        Ok((complete, incomplete))
    }

    /// Deletes what an interrupted writer left, and returns the complete ids, ascending, with the highest id ever used.
    pub(crate) async fn tidy(&self) -> Result<(Vec<u64>, u64)> {
        let (complete, incomplete) = self.scan().await?;
        for id in &incomplete {
            tracing::info!(checkpoint = id, "deleting an incomplete checkpoint");
            self.store
                .delete_prefix(&directory(*id))
                .await
                .map_err(|error| failed("deleting an incomplete checkpoint", error))?;
        }
        let last = complete.iter().chain(&incomplete).max().copied();
        Ok((complete, last.unwrap_or(0)))
    }

    /// Reads the newest complete checkpoint. One that cannot be read is an error that names the next older one: taking
    /// that silently would repeat or lose what the newer one covers.
    pub(crate) async fn latest(&self) -> Result<Option<Loaded>> {
        let (complete, _) = self.scan().await?;
        let Some((newest, older)) = complete.split_last() else {
            return Ok(None);
        };
        match self.read(&directory(*newest)).await {
            Ok(loaded) => Ok(Some(loaded)),
            Err(error) => {
                let mut text = format!(
                    "the newest checkpoint {} cannot be restored",
                    self.store.url_of(&directory(*newest))
                );
                match older.last() {
                    Some(id) => {
                        let _ = write!(
                            text,
                            "; an older one can be named explicitly, which repeats everything since it: \
                             set 'execution.state-recovery.path' to {}",
                            self.store.url_of(&directory(*id))
                        );
                    }
                    None => text.push_str("; there is no older one"),
                }
                Err(Error::new(error.kind(), text).with_source(error))
            }
        }
    }

    /// The description of the newest complete checkpoint; `None` if there is none or it cannot be read.
    pub(crate) async fn newest_manifest(&self) -> Result<Option<Manifest>> {
        let (complete, _) = self.scan().await?;
        let Some(newest) = complete.last() else {
            return Ok(None);
        };
        let name = format!("{}/{MANIFEST}", directory(*newest));
        let bytes = self
            .store
            .get(&name, LIMIT_BYTES)
            .await
            .map_err(|error| failed("reading a checkpoint's manifest", error))?;
        Ok(Manifest::decode(&bytes, &name).ok())
    }

    /// Reads the checkpoint or savepoint in `directory` (`""`: the store itself), checking every byte.
    pub(crate) async fn read(&self, directory: &str) -> Result<Loaded> {
        let name_of = |file: &str| {
            if directory.is_empty() {
                file.to_owned()
            } else {
                format!("{directory}/{file}")
            }
        };
        let manifest_name = name_of(MANIFEST);
        let at = self.store.url_of(&manifest_name);
        let bytes = match self.store.get(&manifest_name, LIMIT_BYTES).await {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => {
                return Err(Error::state(format!(
                    "{at} does not exist: there is no complete checkpoint or savepoint there"
                ))
                .with_source(error));
            }
            Err(error) => return Err(failed("reading a checkpoint's manifest", error)),
        };
        let manifest = Manifest::decode(&bytes, &at)?;
        let files = manifest.operators.iter().filter_map(|operator| {
            let file = operator.file.as_ref()?;
            let name = name_of(&file.name);
            Some(async move {
                let state = self.read_file(&name, file, manifest.checkpoint).await?;
                Ok::<_, Error>((operator.name.clone(), state))
            })
        });
        let read: Vec<_> = futures::stream::iter(files.collect::<Vec<_>>())
            .buffer_unordered(PARALLEL_FILES)
            .collect()
            .await;
        let operators = read.into_iter().collect::<Result<HashMap<_, _>>>()?;
        Ok(Loaded {
            restored: Restored { operators },
            manifest,
            at,
        })
    }

    async fn read_file(
        &self,
        name: &str,
        file: &FileEntry,
        checkpoint: u64,
    ) -> Result<OperatorFile> {
        let at = self.store.url_of(name);
        let damaged = |reason: String| {
            Error::state(format!(
                "file {at} of checkpoint {checkpoint} is damaged: {reason}; restore from another checkpoint by name"
            ))
        };
        let bytes = match self.store.get(name, file.bytes).await {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => return Err(damaged("it is missing".to_owned())),
            Err(error @ StoreError::TooLarge { .. }) => {
                return Err(
                    damaged("it is longer than the manifest says".to_owned()).with_source(error)
                );
            }
            Err(error) => return Err(failed("reading a checkpoint", error)),
        };
        if bytes.len() as u64 != file.bytes {
            return Err(damaged(format!(
                "it has {} bytes where the manifest says {}",
                bytes.len(),
                file.bytes
            )));
        }
        if crc32fast::hash(&bytes) != file.crc32 {
            return Err(damaged("its checksum does not fit".to_owned()));
        }
        OperatorFile::decode(&bytes)
            .map_err(|error| damaged("it cannot be read".to_owned()).with_source(error))
    }

    /// Writes a checkpoint under its id and makes it complete. Returns its location and size in bytes.
    pub(crate) async fn write(&self, new: NewCheckpoint) -> Result<(String, u64)> {
        let directory = directory(new.id.0);
        let size = self.write_to(&directory, new).await?;
        Ok((self.store.url_of(&directory), size))
    }

    /// Writes a savepoint as the whole of this store, which must not hold one yet.
    pub(crate) async fn write_savepoint(&self, new: NewCheckpoint) -> Result<(String, u64)> {
        // Before any file: those of a savepoint already there must stay as they are.
        self.check_free().await?;
        let size = self.write_to("", new).await?;
        Ok((self.url().to_owned(), size))
    }

    async fn write_to(&self, directory: &str, new: NewCheckpoint) -> Result<u64> {
        let name_of = |file: &str| {
            if directory.is_empty() {
                file.to_owned()
            } else {
                format!("{directory}/{file}")
            }
        };
        let mut entries = Vec::with_capacity(new.operators.len());
        let mut files: Vec<(String, Bytes)> = Vec::new();
        let mut size = 0;
        for (number, (name, kind, state)) in new.operators.into_iter().enumerate() {
            let file = (!state.is_empty()).then(|| {
                let bytes = state.encode();
                let entry = FileEntry {
                    name: file_name(number, &name),
                    bytes: bytes.len() as u64,
                    crc32: crc32fast::hash(&bytes),
                };
                size += entry.bytes;
                files.push((name_of(&entry.name), bytes));
                entry
            });
            entries.push(OperatorEntry { name, kind, file });
        }
        let manifest = Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            job: new.job,
            checkpoint: new.id.0,
            kind: new.kind.to_owned(),
            created_millis: new.created_millis,
            parallelism: new.parallelism,
            max_parallelism: new.max_parallelism,
            graph: new.graph,
            named_origin: new.named_origin,
            operators: entries,
        }
        .encode()?;
        size += manifest.len() as u64;
        let writes = files
            .into_iter()
            .map(|(name, bytes)| async move { self.store.put_atomic(&name, bytes).await });
        let mut writes =
            futures::stream::iter(writes.collect::<Vec<_>>()).buffer_unordered(PARALLEL_FILES);
        while let Some(written) = writes.next().await {
            written.map_err(|error| failed("writing a checkpoint", error))?;
        }
        self.store
            .put_if_absent(&name_of(MANIFEST), manifest)
            .await
            .map_err(|error| match error {
                StoreError::AlreadyExists { .. } => Error::io(format!(
                    "there is a checkpoint or savepoint already at {}: choose another place",
                    self.store.url_of(directory)
                ))
                .with_source(error),
                other => failed("writing a checkpoint's manifest", other),
            })?;
        Ok(size)
    }

    /// Whether a savepoint could be written here.
    async fn check_free(&self) -> Result<()> {
        match self.store.head(MANIFEST).await {
            Err(error) if error.is_not_found() => Ok(()),
            Ok(_) => Err(Error::config(format!(
                "there is a savepoint already at {}: choose another place",
                self.url()
            ))),
            Err(error) => Err(failed("looking at the savepoint's place", error)),
        }
    }

    /// Deletes checkpoint `id`, complete or not: its manifest first, so that it is never half there. An aborted one is
    /// deleted so too, because a write reported as failed may have taken effect.
    pub(crate) async fn delete(&self, id: u64) -> Result<()> {
        let directory = directory(id);
        self.store
            .delete(&format!("{directory}/{MANIFEST}"))
            .await
            .map_err(|error| failed("deleting an old checkpoint", error))?;
        self.store
            .delete_prefix(&directory)
            .await
            .map_err(|error| failed("deleting an old checkpoint", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A golden file is written once, by the version in its name, and never again: what this version writes must be the
    /// same bytes, or it is a new version.
    #[test]
    fn the_current_formats_keep_their_bytes() {
        let golden =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden/savepoint-v1");
        let read =
            |name: &str| Bytes::from(std::fs::read(golden.join(name)).expect("a golden file"));
        let bytes = read(MANIFEST);
        let manifest = Manifest::decode(&bytes, "golden").expect("it reads");
        assert_eq!(
            manifest.encode().expect("it encodes"),
            bytes,
            "changed? that is v2"
        );
        let mut files = 0;
        for file in manifest
            .operators
            .iter()
            .filter_map(|operator| operator.file.as_ref())
        {
            let bytes = read(&file.name);
            let state = OperatorFile::decode(&bytes).expect("it reads");
            assert_eq!(state.encode(), bytes, "changed? that is v2");
            files += 1;
        }
        assert_eq!(files, 3);
    }

    #[test]
    fn file_names_hold_nothing_that_a_store_could_refuse() {
        assert_eq!(file_name(7, "read orders/v1 ü"), "007-read_orders_v1__");
        assert_eq!(id_of("chk-12/manifest"), Some(12));
        assert_eq!(id_of("chk-x/manifest"), None);
        assert_eq!(id_of("lock"), None);
    }
}
