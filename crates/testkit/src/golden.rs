//! Golden files: the bytes of every stored format, as each version once wrote them.
//!
//! Beside `name-vN.bin` lies `name-vN.txt`, what those bytes mean in the words of the test. A file is written once, by
//! the version in its name, and never again: [`assert_keeps`] writes a missing one only when [`WRITE`] is set, and
//! overwrites nothing.
//!
//! ```no_run
//! # use aqueduct_connector::state::{StateError, StateReader, StateWriter, Versioned};
//! # fn encode() -> Versioned { StateWriter::new().u64(7).finish(1) }
//! # fn decode(state: &Versioned) -> Result<u64, StateError> {
//! #     StateReader::open("writer state", state, 1..=1)?.u64()
//! # }
//! const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/golden");
//! aqueduct_testkit::golden::assert_keeps(DIR, "writer-state", &encode(), "position 7");
//! aqueduct_testkit::golden::assert_reads(DIR, "writer-state", |state| {
//!     decode(state).map(|position| format!("position {position}"))
//! });
//! ```

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use aqueduct_connector::Versioned;

/// Environment variable that lets [`assert_keeps`] write a golden file that does not exist: set it to `1`.
pub const WRITE: &str = "AQUEDUCT_WRITE_GOLDEN";

/// One golden file.
#[derive(Clone, PartialEq, Eq)]
pub struct Golden {
    /// Its file name without extension, such as `writer-state-v2`.
    pub name: String,
    /// The bytes and the version that wrote them.
    pub state: Versioned,
    /// What the bytes mean, from the text file beside.
    pub expected: String,
}

impl fmt::Debug for Golden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Golden({}, {:?})", self.name, self.state)
    }
}

/// Every committed version of the format `name` in `dir`, oldest first.
///
/// # Panics
///
/// If there is none, if a version between 1 and the newest is missing, or if a file cannot be read.
#[must_use]
pub fn golden(dir: impl AsRef<Path>, name: &str) -> Vec<Golden> {
    let dir = dir.as_ref();
    let mut versions: Vec<u32> = fs::read_dir(dir)
        .unwrap_or_else(|error| panic!("golden files in {}: {error}", dir.display()))
        .filter_map(|entry| {
            let file = entry.ok()?.file_name().into_string().ok()?;
            let version = file.strip_prefix(name)?.strip_prefix("-v")?;
            version.strip_suffix(".bin")?.parse().ok()
        })
        .collect();
    versions.sort_unstable();
    let newest = versions.last().copied().unwrap_or(0);
    assert!(
        newest > 0,
        "no golden file {name}-vN.bin in {}",
        dir.display()
    );
    let all: Vec<u32> = (1..=newest).collect();
    assert_eq!(versions, all, "versions of {name} in {}", dir.display());
    versions
        .into_iter()
        .map(|version| {
            let (bin, txt) = paths(dir, name, version);
            Golden {
                name: format!("{name}-v{version}"),
                state: Versioned::new(version, read(&bin)),
                expected: String::from_utf8(read(&txt))
                    .unwrap_or_else(|_| panic!("{} is not UTF-8", txt.display()))
                    .trim_end()
                    .to_owned(),
            }
        })
        .collect()
}

/// Asserts that the current version still writes `state` for the value that `summary` describes, byte by byte.
///
/// A version without a golden file is a failure, unless [`WRITE`] is `1`: then both files are written.
///
/// # Panics
///
/// If the bytes or the summary differ, or a file is missing.
pub fn assert_keeps(dir: impl AsRef<Path>, name: &str, state: &Versioned, summary: &str) {
    let writing = std::env::var(WRITE).is_ok_and(|value| value == "1");
    keep(dir.as_ref(), name, state, summary, writing);
}

fn keep(dir: &Path, name: &str, state: &Versioned, summary: &str, writing: bool) {
    let (bin, txt) = paths(dir, name, state.version);
    if writing && !bin.exists() {
        fs::create_dir_all(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        create(&bin, &state.bytes);
        create(&txt, format!("{summary}\n").as_bytes());
    }
    assert!(
        bin.exists(),
        "version {} of {name} has no golden file; write it once with {WRITE}=1",
        state.version
    );
    assert!(
        read(&bin) == state.bytes,
        "the bytes of {name} version {} changed; a change of format is a new version",
        state.version
    );
    let expected = String::from_utf8_lossy(&read(&txt)).trim_end().to_owned();
    assert_eq!(expected, summary, "{}", txt.display());
}

/// Asserts that `decode` reads every committed version of `name` as its text file says, and that it refuses the newest
/// one with a byte appended, a byte cut off, or a version number of the future.
///
/// `decode` returns what the bytes mean, in the words of the text file.
///
/// # Panics
///
/// If one of that does not hold.
pub fn assert_reads<E: fmt::Display>(
    dir: impl AsRef<Path>,
    name: &str,
    decode: impl Fn(&Versioned) -> Result<String, E>,
) {
    let all = golden(dir, name);
    for golden in &all {
        match decode(&golden.state) {
            Ok(meaning) => assert_eq!(meaning, golden.expected, "{}", golden.name),
            Err(error) => panic!("{} no longer reads: {error}", golden.name),
        }
    }
    let newest = &all.last().expect("`golden` returns at least one").state;
    for (damage, damaged) in damages(newest) {
        assert!(decode(&damaged).is_err(), "{name} {damage} was read");
    }
}

/// Ways to damage `state` that every format refuses, and their names.
pub(crate) fn damages(state: &Versioned) -> Vec<(&'static str, Versioned)> {
    let mut longer = state.bytes.to_vec();
    longer.push(0);
    let mut damages = vec![
        (
            "with a byte appended",
            Versioned::new(state.version, longer),
        ),
        (
            "of a future version",
            Versioned::new(u32::MAX, state.bytes.clone()),
        ),
    ];
    if let Some(shorter) = state.bytes.len().checked_sub(1) {
        let cut = Versioned::new(state.version, state.bytes.slice(..shorter));
        damages.push(("with a byte cut off", cut));
    }
    damages
}

fn paths(dir: &Path, name: &str, version: u32) -> (PathBuf, PathBuf) {
    let stem = format!("{name}-v{version}");
    (
        dir.join(format!("{stem}.bin")),
        dir.join(format!("{stem}.txt")),
    )
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("golden file {}: {error}", path.display()))
}

fn create(path: &Path, bytes: &[u8]) {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .and_then(|mut file| file.write_all(bytes))
        .unwrap_or_else(|error| panic!("golden file {}: {error}", path.display()));
}

#[cfg(test)]
mod tests {
    use aqueduct_connector::state::{StateError, StateReader, StateWriter};

    use super::*;

    fn state(version: u32, value: u64) -> Versioned {
        StateWriter::new().u64(value).finish(version)
    }

    fn decode(state: &Versioned) -> Result<String, StateError> {
        let mut reader = StateReader::open("sample", state, 1..=2)?;
        let value = reader.u64()?;
        reader.finish()?;
        Ok(format!("value {value}"))
    }

    fn panics(what: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(what).is_err()
    }

    #[test]
    fn a_golden_file_is_written_on_demand_and_never_again() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().to_owned();
        assert!(
            panics(|| keep(&path, "s", &state(1, 7), "value 7", false)),
            "missing"
        );
        keep(&path, "s", &state(1, 7), "value 7", true);
        keep(&path, "s", &state(1, 7), "value 7", false);
        assert!(
            panics(|| keep(&path, "s", &state(1, 8), "value 7", true)),
            "bytes"
        );
        assert!(
            panics(|| keep(&path, "s", &state(1, 7), "value 8", true)),
            "meaning"
        );
        assert_eq!(golden(&path, "s")[0].state, state(1, 7));
    }

    #[test]
    fn every_version_reads_and_damage_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        keep(dir.path(), "s", &state(1, 7), "value 7", true);
        keep(dir.path(), "s", &state(2, 8), "value 8", true);
        assert_reads(dir.path(), "s", decode);
        let path = dir.path().to_owned();
        let careless = |state: &Versioned| {
            StateReader::open("sample", state, 1..=2)?
                .u64()
                .map(|value| format!("value {value}"))
        };
        assert!(
            panics(|| assert_reads(&path, "s", careless)),
            "a trailing byte was read"
        );
        let forgetful = |state: &Versioned| {
            StateReader::open("sample", state, 2..=2).map(|_| "value 8".to_owned())
        };
        assert!(
            panics(|| assert_reads(&path, "s", forgetful)),
            "version 1 was refused"
        );
    }

    #[test]
    fn a_gap_between_versions_is_a_deleted_golden_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        keep(dir.path(), "s", &state(2, 8), "value 8", true);
        let path = dir.path().to_owned();
        assert!(panics(|| drop(golden(&path, "s"))));
    }
}
