//! Describes a file source: every setting with its unit, default and limits, checked in one place
//! before any I/O.

use std::fmt;
use std::sync::Arc;

use aqueduct_connector::options::{ByteSize, ConfigError};
use aqueduct_connector::{Result, Timestamp};
use aqueduct_store::Store;

use super::cursor::{MalformedPolicy, TimestampOf};
use super::format::{CsvDialect, CsvFormat, FileFormat, Framing};
use super::plan::{Compression, Planner};
use super::source::{FileSource, Settings};
use crate::options;

/// Describes a [`FileSource`]. Setters never fail; [`build`](Self::build) checks everything.
pub struct FileSourceBuilder<F: FileFormat> {
    format: F,
    paths: Vec<String>,
    compression: Compression,
    malformed: MalformedPolicy,
    timestamp_of: Option<Arc<TimestampOf<F::Output>>>,
    split_size: ByteSize,
    max_line_length: ByteSize,
    max_batch_records: u64,
    max_batch_bytes: ByteSize,
    read_ahead: ByteSize,
}

impl<F: FileFormat> FileSourceBuilder<F> {
    /// Files in a format of your own; the built-in ones have shorter ways, such as
    /// [`FileSource::json`].
    #[must_use]
    pub fn new(format: F) -> Self {
        Self {
            format,
            paths: Vec::new(),
            compression: Compression::default(),
            malformed: MalformedPolicy::default(),
            timestamp_of: None,
            split_size: options::SPLIT_SIZE.ours(),
            max_line_length: options::MAX_LINE_LENGTH.ours(),
            max_batch_records: options::BATCH_RECORDS.ours(),
            max_batch_bytes: options::BATCH_BYTES.ours(),
            read_ahead: options::READ_AHEAD.ours(),
        }
    }

    /// Adds a file or a directory, by path or URL. Required at least once.
    ///
    /// - Option: `path`.
    /// - Of a directory every file below it is read, by name, except where a part of the name
    ///   begins with `.` or `_`.
    /// - What there is to read is found once, when the job first starts; a restored job reads the
    ///   files found then, and fails if one has changed.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses a location that it cannot understand, or whose cargo feature
    /// is off. A missing file fails the job at its start.
    #[must_use]
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.paths.push(path.into());
        self
    }

    /// Adds several, as [`path`](Self::path) does.
    #[must_use]
    pub fn paths<P: Into<String>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.paths.extend(paths.into_iter().map(Into::into));
        self
    }

    /// How the files are packed. Default: by extension. A gzip file is one split, and a restore
    /// unpacks it again up to the position.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// What happens to a line that cannot be read. Default: [`MalformedPolicy::Fail`].
    #[must_use]
    pub fn malformed(mut self, policy: MalformedPolicy) -> Self {
        self.malformed = policy;
        self
    }

    /// Takes each record's event time from its value. Default: none; a watermark strategy of the
    /// host may assign one as well.
    #[must_use]
    pub fn timestamps(
        mut self,
        timestamp_of: impl Fn(&F::Output) -> Option<Timestamp> + Send + Sync + 'static,
    ) -> Self {
        self.timestamp_of = Some(Arc::new(timestamp_of));
        self
    }

    /// Plain files longer than this are cut into several splits.
    ///
    /// - Unit: bytes. Default: 64 MiB. Option: `scan.files.split-size`.
    /// - A file gives at most 10,000 splits.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses 0.
    #[must_use]
    pub fn split_size(mut self, size: ByteSize) -> Self {
        self.split_size = size;
        self
    }

    /// A longer line is malformed.
    ///
    /// - Unit: bytes, without the line end. Default: 16 MiB. Option: `scan.files.max-line-length`.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses 0 and more than 1 GiB.
    #[must_use]
    pub fn max_line_length(mut self, length: ByteSize) -> Self {
        self.max_line_length = length;
        self
    }

    /// Records a batch, give or take what one line yields.
    ///
    /// - Default: 1,024. Option: `scan.batch.max-records`.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses 0 and more than 1,000,000.
    #[must_use]
    pub fn max_batch_records(mut self, records: u64) -> Self {
        self.max_batch_records = records;
        self
    }

    /// A batch ends once its lines hold this many bytes.
    ///
    /// - Default: 1 MiB. Option: `scan.batch.max-bytes`.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses 0.
    #[must_use]
    pub fn max_batch_bytes(mut self, bytes: ByteSize) -> Self {
        self.max_batch_bytes = bytes;
        self
    }

    /// Bytes read ahead of the record under way, in pieces of 512 KiB and at least one.
    ///
    /// - Default: 2 MiB. Option: `scan.files.read-ahead`.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses more than 1 GiB.
    #[must_use]
    pub fn read_ahead(mut self, bytes: ByteSize) -> Self {
        self.read_ahead = bytes;
        self
    }

    /// Checks everything and makes the source. Reads nothing.
    ///
    /// # Errors
    ///
    /// A [`ConfigError`] that names the option.
    pub fn build(self) -> Result<FileSource<F>, ConfigError> {
        if self.paths.is_empty() {
            return Err(ConfigError::Missing {
                option: options::PATH.key(),
                what: "the file or directory to read",
            });
        }
        let paths = self
            .paths
            .iter()
            .map(|path| resolve(path))
            .collect::<Result<_, _>>()?;
        let framing = self.format.framing();
        if let Framing::Csv(dialect) = &framing {
            check_dialect(dialect)?;
        }
        let bytes = |size: ByteSize| usize::try_from(size.0).unwrap_or(usize::MAX);
        let records = options::BATCH_RECORDS.check(self.max_batch_records)?;
        let settings = Settings {
            format: self.format,
            malformed: self.malformed,
            timestamp_of: self.timestamp_of,
            max_line_bytes: bytes(options::MAX_LINE_LENGTH.check(self.max_line_length)?),
            batch_records: usize::try_from(records).unwrap_or(usize::MAX),
            batch_bytes: options::BATCH_BYTES.check(self.max_batch_bytes)?.0,
            read_ahead_bytes: bytes(options::READ_AHEAD.check(self.read_ahead)?),
        };
        let planner = Planner {
            paths,
            compression: self.compression,
            splittable: framing.splittable(),
            split_bytes: options::SPLIT_SIZE.check(self.split_size)?.0,
        };
        Ok(FileSource {
            planner,
            settings: Arc::new(settings),
        })
    }
}

impl<F: CsvFormat> FileSourceBuilder<F> {
    /// What is between fields: one ASCII character, neither a quote nor a line end.
    ///
    /// - Default: a comma. Option: `csv.field-delimiter`.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses any other character.
    #[must_use]
    pub fn delimiter(mut self, delimiter: u8) -> Self {
        self.format.dialect_mut().delimiter = delimiter;
        self
    }

    /// Adds a text that stands for a missing value, as the empty text always does. Quotes around
    /// it make no difference.
    ///
    /// - Default: none. Option: `csv.null-literal`.
    #[must_use]
    pub fn null_literal(mut self, literal: impl Into<String>) -> Self {
        self.format.dialect_mut().null_literals.push(literal.into());
        self
    }

    /// Names the columns of files without a header row. Default: the first row names them.
    #[must_use]
    pub fn columns<C: Into<String>>(mut self, names: impl IntoIterator<Item = C>) -> Self {
        let names = names.into_iter().map(Into::into).collect();
        self.format.dialect_mut().columns = Some(names);
        self
    }

    /// Says that a line end always ends a row, so that plain files can be cut into several splits.
    /// A quoted field that spans lines is then malformed.
    ///
    /// - Default: `false`. Option: `csv.splittable`.
    #[must_use]
    pub fn splittable(mut self, splittable: bool) -> Self {
        self.format.dialect_mut().splittable = splittable;
        self
    }
}

impl<F: FileFormat> fmt::Debug for FileSourceBuilder<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSourceBuilder")
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

/// A path as readers on any thread, and after a restore, understand it: absolute, or a URL.
fn resolve(path: &str) -> Result<String, ConfigError> {
    let refused = |reason: String| ConfigError::invalid(options::PATH.key(), reason);
    let store = Store::open(path).map_err(|error| refused(error.to_string()))?;
    match store.local_path() {
        Some(local) => match local.to_str() {
            Some(local) => Ok(local.to_owned()),
            None => Err(refused(format!(
                "{store} is not UTF-8: rename it or a directory above"
            ))),
        },
        None => Ok(path.to_owned()),
    }
}

fn check_dialect(dialect: &CsvDialect) -> Result<(), ConfigError> {
    let delimiter = dialect.delimiter;
    if !delimiter.is_ascii() || matches!(delimiter, b'"' | b'\n' | b'\r' | 0) {
        return Err(ConfigError::invalid(
            options::CSV_FIELD_DELIMITER.key(),
            format!(
                "{:?} is not an ASCII character other than a quote and a line end",
                char::from(delimiter)
            ),
        ));
    }
    if dialect.columns.as_ref().is_some_and(Vec::is_empty) {
        return Err(ConfigError::Missing {
            option: "columns",
            what: "the names of the columns",
        });
    }
    Ok(())
}
