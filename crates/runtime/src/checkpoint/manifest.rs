//! The manifest: the one file that makes a checkpoint complete.
//!
//! Two lines of JSON: the description, and `{"crc32": ...}` over the first line's bytes, so that a cut or
//! edited manifest is told from a valid one.

use aqueduct_connector::{Error, Result};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The version this program writes; it reads 1 to this.
pub(crate) const VERSION: u32 = 1;

/// Above this many bytes a file is no manifest of ours.
pub(crate) const LIMIT_BYTES: u64 = 64 << 20;

/// What a checkpoint is and which files belong to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: String,
    pub(crate) version: u32,
    pub(crate) job: String,
    pub(crate) checkpoint: u64,
    pub(crate) kind: String,
    pub(crate) created_millis: i64,
    pub(crate) parallelism: u32,
    pub(crate) max_parallelism: u32,
    /// Of operator names, kinds and edges: tells people whether the graph is the one that wrote it.
    pub(crate) graph: String,
    /// The checkpoint or savepoint that the owner named for the run that wrote this one, as it was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) named_origin: Option<String>,
    pub(crate) operators: Vec<OperatorEntry>,
}

/// One operator of the graph that wrote the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OperatorEntry {
    pub(crate) name: String,
    pub(crate) kind: String,
    /// Where its state is; `None` if it has none.
    pub(crate) file: Option<FileEntry>,
}

/// One data file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) crc32: u32,
}

/// What every manifest says it is.
pub(crate) const FORMAT: &str = "aqueduct-checkpoint";

#[derive(Serialize, Deserialize)]
struct Trailer {
    crc32: u32,
}

#[derive(Deserialize)]
struct Head {
    format: String,
    version: u32,
}

impl Manifest {
    pub(crate) fn encode(&self) -> Result<Bytes> {
        let refused = |error| Error::bug("a manifest cannot be written as JSON").with_source(error);
        let mut text = serde_json::to_vec(self).map_err(refused)?;
        let crc32 = crc32fast::hash(&text);
        text.push(b'\n');
        serde_json::to_writer(&mut text, &Trailer { crc32 }).map_err(refused)?;
        text.push(b'\n');
        Ok(text.into())
    }

    /// Reads a manifest; `at` names the file in errors.
    pub(crate) fn decode(bytes: &[u8], at: &str) -> Result<Self> {
        let damaged = |what: &str| {
            Error::state(format!(
                "checkpoint manifest {at} is damaged: {what}; restore from another checkpoint by name"
            ))
        };
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let (Some(body), Some(trailer)) = (lines.next(), lines.next()) else {
            return Err(damaged("it ends early"));
        };
        let trailer: Trailer =
            serde_json::from_slice(trailer).map_err(|_| damaged("its checksum is missing"))?;
        if trailer.crc32 != crc32fast::hash(body) {
            return Err(damaged("its checksum does not fit"));
        }
        if lines.any(|line| !line.is_empty()) {
            return Err(damaged("it goes on after its end"));
        }
        let head: Head = serde_json::from_slice(body)
            .map_err(|_| damaged("it is no description of a checkpoint"))?;
        if head.format != FORMAT {
            return Err(damaged("it is of another program"));
        }
        if head.version == 0 || head.version > VERSION {
            return Err(Error::state(format!(
                "checkpoint manifest {at} was written as version {}, this program reads versions 1 to \
                 {VERSION}; run the version that wrote it, or a newer one",
                head.version
            )));
        }
        serde_json::from_slice(body).map_err(|_| damaged("a field is missing or of another type"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            job: "orders".to_owned(),
            checkpoint: 7,
            kind: "checkpoint".to_owned(),
            created_millis: 1_700_000_000_000,
            parallelism: 2,
            max_parallelism: 128,
            graph: "00000000deadbeef".to_owned(),
            named_origin: Some("/savepoints/1".to_owned()),
            operators: vec![OperatorEntry {
                name: "sink".to_owned(),
                kind: "sink:bigtable".to_owned(),
                file: Some(FileEntry {
                    name: "000-sink".to_owned(),
                    bytes: 5,
                    crc32: 9,
                }),
            }],
        }
    }

    #[test]
    fn a_flipped_or_missing_byte_is_noticed() {
        let bytes = sample().encode().expect("it encodes");
        assert_eq!(Manifest::decode(&bytes, "m").expect("valid"), sample());
        for at in 0..bytes.len() - 1 {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1;
            assert!(Manifest::decode(&flipped, "m").is_err(), "byte {at}");
            assert!(Manifest::decode(&bytes[..at], "m").is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_newer_version_is_refused_by_name() {
        let mut newer = sample();
        newer.version = 2;
        let error = Manifest::decode(&newer.encode().expect("it encodes"), "dir/manifest")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("version 2") && error.contains("dir/manifest"),
            "{error}"
        );
    }
}
