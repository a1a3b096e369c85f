//! Planning: which files there are, and where each is cut.
//!
//! Cutting is a pure function of sizes; no file is opened. A split's first record is found when it
//! is read.

use std::collections::BTreeSet;
use std::sync::Arc;

use aqueduct_connector::{Error, ErrorKind, Result};
use aqueduct_store::{ObjectMeta, Store, StoreError};

use super::split::{FileRef, FileSplit, Packing, TO_THE_END};

/// Splits a file gives at most, so that state stays small whatever a file's size.
const MAX_SPLITS_A_FILE: u64 = 10_000;

/// How files are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Gzip if the name ends in `.gz` or `.gzip`, else plain.
    #[default]
    ByExtension,
    /// Not packed, whatever the name.
    None,
    /// Gzip, of one or several members, whatever the name.
    Gzip,
}

impl Compression {
    fn of(self, name: &str) -> Packing {
        let packed = match self {
            Self::ByExtension => {
                let name = name.to_ascii_lowercase();
                name.ends_with(".gz") || name.ends_with(".gzip")
            }
            Self::None => false,
            Self::Gzip => true,
        };
        if packed {
            Packing::Gzip
        } else {
            Packing::Plain
        }
    }
}

/// What planning needs to know.
#[derive(Debug, Clone)]
pub(crate) struct Planner {
    pub(crate) paths: Arc<[String]>,
    pub(crate) compression: Compression,
    pub(crate) splittable: bool,
    pub(crate) split_bytes: u64,
}

impl Planner {
    /// Finds and cuts the files, in the order of the paths and within a directory by name.
    pub(crate) async fn plan(self) -> Result<Vec<FileSplit>> {
        let mut splits = Vec::new();
        let mut seen = BTreeSet::new();
        for path in &*self.paths {
            for file in find(path, self.compression).await? {
                let shown = file.shown();
                if !seen.insert(shown.clone()) {
                    return Err(Error::config(format!(
                        "option 'path' lists {shown} twice: name it once"
                    )));
                }
                cut(&file, self.splittable, self.split_bytes, &mut splits);
            }
        }
        Ok(splits)
    }
}

async fn find(path: &str, compression: Compression) -> Result<Vec<FileRef>> {
    let found = |meta: ObjectMeta, location: &str, name: Option<String>| FileRef {
        packing: compression.of(&meta.name),
        location: location.to_owned(),
        name,
        size_bytes: meta.size_bytes,
        etag: meta.etag,
    };
    let error = match Store::open_parent(path) {
        Ok((store, name)) => match store.head(&name).await {
            Ok(meta) => return Ok(vec![found(meta, path, None)]),
            // A directory; in an object store there is nothing of that name then.
            Err(error @ (StoreError::NotFound { .. } | StoreError::WrongKind { .. })) => error,
            Err(error) => return Err(unreadable(error)),
        },
        // A whole bucket has no last component.
        Err(error) => error,
    };
    let store = Store::open(path).map_err(unreadable)?;
    let mut files = Vec::new();
    for meta in store.list("").await.map_err(unreadable)? {
        if !is_hidden(&meta.name) {
            let name = meta.name.clone();
            files.push(found(meta, path, Some(name)));
        }
    }
    match (files.is_empty(), error) {
        (false, _) => Ok(files),
        (true, StoreError::WrongKind { .. }) => Err(Error::config(format!(
            "the directory {path} holds no file to read: check option 'path'"
        ))),
        (true, error) => Err(unreadable(error)),
    }
}

/// Other programs keep their notes in such files.
fn is_hidden(name: &str) -> bool {
    name.split('/').any(|part| part.starts_with(['.', '_']))
}

pub(crate) fn unreadable(error: StoreError) -> Error {
    let kind = match error {
        StoreError::Io { .. } => ErrorKind::Io,
        // Nothing of that name, no permission, a directory: the path is wrong until somebody changes something.
        _ => ErrorKind::Config,
    };
    Error::new(kind, error.to_string()).with_source(error)
}

fn cut(file: &FileRef, splittable: bool, split_bytes: u64, splits: &mut Vec<FileSplit>) {
    let split = |start, end| FileSplit {
        file: file.clone(),
        start,
        end,
        position: None,
    };
    if file.packing == Packing::Gzip || !splittable || file.size_bytes <= split_bytes {
        splits.push(split(0, TO_THE_END));
        return;
    }
    // Equal shares, so that the last split is not a crumb.
    let count = file.size_bytes.div_ceil(split_bytes).min(MAX_SPLITS_A_FILE);
    let border = |nth: u64| {
        let product = u128::from(file.size_bytes) * u128::from(nth) / u128::from(count);
        u64::try_from(product).expect("a share of the size is at most the size")
    };
    for nth in 0..count {
        let end = if nth + 1 == count {
            TO_THE_END
        } else {
            border(nth + 1)
        };
        splits.push(split(border(nth), end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(size_bytes: u64, packing: Packing) -> FileRef {
        FileRef {
            location: "/x".to_owned(),
            name: None,
            size_bytes,
            etag: None,
            packing,
        }
    }

    fn ranges(file: &FileRef, splittable: bool, split_bytes: u64) -> Vec<(u64, u64)> {
        let mut splits = Vec::new();
        cut(file, splittable, split_bytes, &mut splits);
        splits
            .iter()
            .map(|split| (split.start, split.end))
            .collect()
    }

    #[test]
    fn splits_adjoin_and_reach_the_end() {
        assert_eq!(
            ranges(&file(100, Packing::Plain), true, 40),
            [(0, 33), (33, 66), (66, TO_THE_END)]
        );
        for size in [1, 2, 99, 100, 101, u64::MAX] {
            let ranges = ranges(&file(size, Packing::Plain), true, 7);
            assert!(ranges.len() as u64 <= MAX_SPLITS_A_FILE);
            assert_eq!((ranges[0].0, ranges[ranges.len() - 1].1), (0, TO_THE_END));
            assert!(
                ranges.windows(2).all(|pair| pair[0].1 == pair[1].0),
                "{size}"
            );
        }
    }

    #[test]
    fn what_cannot_be_cut_is_one_split() {
        assert_eq!(
            ranges(&file(100, Packing::Gzip), true, 10),
            [(0, TO_THE_END)]
        );
        assert_eq!(
            ranges(&file(100, Packing::Plain), false, 10),
            [(0, TO_THE_END)]
        );
        assert_eq!(
            ranges(&file(0, Packing::Plain), true, 10),
            [(0, TO_THE_END)]
        );
    }

    #[test]
    fn extensions_tell_the_packing_unless_told_otherwise() {
        for (name, packing) in [
            ("a.csv.gz", Packing::Gzip),
            ("A.GZIP", Packing::Gzip),
            ("gz", Packing::Plain),
        ] {
            assert_eq!(Compression::ByExtension.of(name), packing, "{name}");
            assert_eq!(Compression::Gzip.of(name), Packing::Gzip);
            assert_eq!(Compression::None.of(name), Packing::Plain);
        }
    }

    #[test]
    fn notes_of_other_programs_are_left_out() {
        for (name, hidden) in [
            ("a/b", false),
            ("_SUCCESS", true),
            (".x", true),
            ("_a/b", true),
        ] {
            assert_eq!(is_hidden(name), hidden, "{name}");
        }
    }
}
