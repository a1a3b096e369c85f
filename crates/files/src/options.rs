//! Every option of this crate, declared once: builders validate through these, and SQL reads the
//! same declarations.

use aqueduct_connector::options::{ByteSize, Declaration, Default, Opt, TextOpt, reference_page};

/// What to read.
pub const PATH: TextOpt = TextOpt::new(
    "path",
    "A file or a directory, as a path or a URL (file://, gs://, s3://). Of a directory, every file \
     below it is read, except those whose name, or whose directory's name, begins with `.` or `_`.",
)
.default(Default::Required)
.builder("path");

/// Where plain files are cut.
pub const SPLIT_SIZE: Opt<ByteSize> = Opt::new(
    "scan.files.split-size",
    "Plain files longer than this are cut into several splits at line ends, so that several \
     readers share them. A file gives at most 10,000 splits; a longer one gets larger splits.",
)
.default(Default::Ours(ByteSize::mib(64)))
.at_least(ByteSize(1))
.builder("split_size");

/// The longest record.
pub const MAX_LINE_LENGTH: Opt<ByteSize> = Opt::new(
    "scan.files.max-line-length",
    "A longer line (a longer record, where quotes span lines) is malformed. Bounds the reader's \
     memory.",
)
.default(Default::Ours(ByteSize::mib(16)))
.at_least(ByteSize(1))
.at_most(ByteSize::mib(1024))
.builder("max_line_length");

/// Records a batch.
pub const BATCH_RECORDS: Opt<u64> = Opt::new(
    "scan.batch.max-records",
    "A reader hands out at most this many records at once, give or take what one line yields.",
)
.default(Default::Ours(1_024))
.at_least(1)
.at_most(1_000_000)
.unit("records")
.builder("max_batch_records");

/// Bytes a batch.
pub const BATCH_BYTES: Opt<ByteSize> = Opt::new(
    "scan.batch.max-bytes",
    "A reader hands out a batch once its lines hold this many bytes.",
)
.default(Default::Ours(ByteSize::mib(1)))
.at_least(ByteSize(1))
.builder("max_batch_bytes");

/// Bytes read ahead.
pub const READ_AHEAD: Opt<ByteSize> = Opt::new(
    "scan.files.read-ahead",
    "Bytes (of a gzip file: unpacked bytes) read ahead of the record under way, in pieces of 512 \
     KiB and at least one piece.",
)
.default(Default::Ours(ByteSize::mib(2)))
.at_least(ByteSize(0))
.at_most(ByteSize::mib(1024))
.builder("read_ahead");

/// CSV: what is between fields.
pub const CSV_FIELD_DELIMITER: TextOpt = TextOpt::new(
    "csv.field-delimiter",
    "One ASCII character between the fields of a row; not a quote or a line end.",
)
.default(Default::Ours(","))
.builder("delimiter");

/// CSV: what stands for a missing value.
pub const CSV_NULL_LITERAL: TextOpt = TextOpt::new(
    "csv.null-literal",
    "A field with this text is missing, as an empty one is.",
)
.builder("null_literal");

/// CSV: whether files may be cut.
pub const CSV_SPLITTABLE: Opt<bool> = Opt::new(
    "csv.splittable",
    "Whether a line end always ends a row. Then plain files may be cut into several splits; a \
     quoted field that spans lines is malformed. Otherwise quoted fields may span lines and a file \
     is one split.",
)
.default(Default::Ours(false))
.builder("splittable");

/// Generator: records a second.
pub const RECORDS_PER_SECOND: Opt<u64> = Opt::new(
    "rows-per-second",
    "Records a second, over all readers of the job.",
)
.default(Default::Unset("as fast as they are taken"))
.at_least(1)
.unit("records")
.builder("records_per_second");

/// Generator: how many records in all.
pub const NUMBER_OF_RECORDS: Opt<u64> =
    Opt::new("number-of-rows", "Records in all; the source then ends.")
        .default(Default::Unset("never ends"))
        .unit("records")
        .builder("limit");

/// Generator: the greatest useful parallelism.
pub const STRIPES: Opt<u64> = Opt::new(
    "scan.generator.stripes",
    "Into how many stripes the sequence is dealt out; more readers than this have nothing to do. \
     A restored job keeps the number it began with.",
)
.default(Default::Ours(32))
.at_least(1)
.at_most(65_536)
.unit("stripes")
.builder("stripes");

/// Every option of the file source, for reference pages.
#[must_use]
pub fn files() -> Vec<Declaration> {
    vec![
        PATH.declaration(),
        SPLIT_SIZE.declaration(),
        MAX_LINE_LENGTH.declaration(),
        BATCH_RECORDS.declaration(),
        BATCH_BYTES.declaration(),
        READ_AHEAD.declaration(),
        CSV_FIELD_DELIMITER.declaration(),
        CSV_NULL_LITERAL.declaration(),
        CSV_SPLITTABLE.declaration(),
    ]
}

/// Every option of the generator, for reference pages.
#[must_use]
pub fn generator() -> Vec<Declaration> {
    vec![
        RECORDS_PER_SECOND.declaration(),
        NUMBER_OF_RECORDS.declaration(),
        STRIPES.declaration(),
    ]
}

/// The generated reference page of both sources' options.
#[must_use]
pub fn reference() -> String {
    let files = reference_page(
        "File source and generator: options",
        "Generated from the declarations; edit those. *Builder* names the setter of the Rust API: on \
         `FileSourceBuilder` here, on `GeneratorSourceBuilder` below.",
        &files(),
    );
    let generator = reference_page("Generator", "On `GeneratorSourceBuilder`.", &generator());
    // One level below the page's own heading.
    format!("{files}\n#{generator}")
}
