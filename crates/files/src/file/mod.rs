//! The file source.
//!
//! Planning is in `plan`, assignment in `enumerator`, reading in `reader` (which owns), `fetch`
//! (which does the I/O) and `cursor` (which decides). Below those: `framer` cuts bytes into
//! records, `format` makes values of them, `gunzip` unpacks, `split` is the stored state.

mod builder;
mod cursor;
mod enumerator;
mod fetch;
mod format;
mod framer;
mod gunzip;
mod plan;
mod reader;
mod source;
mod split;

pub use builder::FileSourceBuilder;
pub use cursor::MalformedPolicy;
pub use format::{
    Csv, CsvDialect, CsvFormat, CsvRow, CsvRows, FileFormat, Framing, JsonLines, Lines, Malformed,
};
pub use plan::Compression;
pub use source::FileSource;
