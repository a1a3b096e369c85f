//! What records look like in a file, and what becomes of one: JSON lines, CSV, lines of your own.
//!
//! A [`FileFormat`] says how bytes are cut into records and turns each into values. The built-in
//! ones read serde types; [`Lines`] and [`CsvRows`] hand lines and rows to a function that emits
//! zero or more values each.
//!
//! # Invariant
//!
//! The reason of a malformed record never quotes it: texts of `serde_json` and `csv` are not used,
//! because they do.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use aqueduct_connector::source::Collector;
use csv::ByteRecord;
use memchr::{memchr, memchr_iter};
use serde::de::DeserializeOwned;

/// Why a record cannot be read. Its text goes to logs and errors: say what is wrong, never quote
/// the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    reason: Cow<'static, str>,
}

impl Malformed {
    /// A reason that completes "line 7 is malformed: ...".
    #[must_use]
    pub fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason: reason.into(),
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// How bytes are cut into records.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Framing {
    /// One record a line. Blank lines are records too if `keep_blank`.
    Lines {
        /// Whether blank lines reach [`FileFormat::decode`].
        keep_blank: bool,
    },
    /// One record a row.
    Csv(CsvDialect),
}

impl Framing {
    /// Whether a file can be cut at any line end.
    pub(crate) fn splittable(&self) -> bool {
        match self {
            Self::Lines { .. } => true,
            Self::Csv(dialect) => dialect.splittable,
        }
    }

    pub(crate) fn has_header(&self) -> bool {
        matches!(self, Self::Csv(dialect) if dialect.columns.is_none())
    }

    pub(crate) fn keeps_blank(&self) -> bool {
        matches!(self, Self::Lines { keep_blank: true })
    }
}

/// How CSV is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvDialect {
    /// Between fields.
    pub delimiter: u8,
    /// Texts that stand for a missing value, besides the empty text.
    pub null_literals: Vec<String>,
    /// Names of the columns; `None`: the first row of each file has them.
    pub columns: Option<Vec<String>>,
    /// Whether a line end always ends a row, so that files can be cut.
    pub splittable: bool,
}

impl Default for CsvDialect {
    /// Commas, a header row, quoted fields may span lines.
    fn default() -> Self {
        Self {
            delimiter: b',',
            null_literals: Vec::new(),
            columns: None,
            splittable: false,
        }
    }
}

impl CsvDialect {
    /// The field, or nothing if its text stands for a missing value.
    fn value<'a>(&self, field: &'a [u8]) -> &'a [u8] {
        let missing = self
            .null_literals
            .iter()
            .any(|null| null.as_bytes() == field);
        if missing { b"" } else { field }
    }
}

/// Makes values of records. One clone reads one split, on the reader's own thread.
pub trait FileFormat: Clone + Send + Sync + 'static {
    /// The values.
    type Output: 'static;

    /// How bytes are cut into records.
    fn framing(&self) -> Framing;

    /// Takes the header row, before any record of a file that has one.
    ///
    /// # Errors
    ///
    /// If it cannot be used; fails the job, whatever the policy.
    fn header(&mut self, row: &[u8]) -> Result<(), Malformed> {
        let _ = row;
        Ok(())
    }

    /// Emits the values of one record, which comes without its line end.
    ///
    /// # Errors
    ///
    /// If the record is malformed. What was emitted of it before is withdrawn.
    fn decode(
        &mut self,
        record: &[u8],
        out: &mut Collector<'_, Self::Output>,
    ) -> Result<(), Malformed>;
}

/// A CSV format, whose dialect the source's builder sets.
pub trait CsvFormat: FileFormat {
    /// The dialect, to be changed.
    fn dialect_mut(&mut self) -> &mut CsvDialect;
}

/// JSON lines: one value a line, of any type that serde reads. Blank lines are passed over.
pub struct JsonLines<T>(PhantomData<fn() -> T>);

impl<T> JsonLines<T> {
    /// The format.
    #[must_use]
    pub fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T> Default for JsonLines<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Clone for JsonLines<T> {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for JsonLines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JsonLines")
    }
}

impl<T: DeserializeOwned + 'static> FileFormat for JsonLines<T> {
    type Output = T;

    fn framing(&self) -> Framing {
        Framing::Lines { keep_blank: false }
    }

    fn decode(&mut self, record: &[u8], out: &mut Collector<'_, T>) -> Result<(), Malformed> {
        match serde_json::from_slice(record) {
            Ok(value) => {
                out.emit(value);
                Ok(())
            }
            Err(error) => Err(bad_json(&error)),
        }
    }
}

#[cold]
fn bad_json(error: &serde_json::Error) -> Malformed {
    use serde_json::error::Category;
    let what = match error.classify() {
        Category::Syntax => "not JSON",
        Category::Eof => "JSON that ends early",
        Category::Data => "JSON of another shape than the type to read",
        Category::Io => "unreadable",
    };
    Malformed::new(format!("{what}, at column {}", error.column()))
}

/// Lines given to a function.
pub struct Lines<T, F> {
    function: F,
    output: PhantomData<fn() -> T>,
}

impl<T, F> Lines<T, F>
where
    F: FnMut(&[u8], &mut Collector<'_, T>) -> Result<(), Malformed>,
{
    /// Each line, blank ones too, without its line end.
    pub fn new(function: F) -> Self {
        Self {
            function,
            output: PhantomData,
        }
    }
}

impl<T, F: Clone> Clone for Lines<T, F> {
    fn clone(&self) -> Self {
        Self {
            function: self.function.clone(),
            output: PhantomData,
        }
    }
}

impl<T, F> fmt::Debug for Lines<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lines")
    }
}

impl<T, F> FileFormat for Lines<T, F>
where
    T: 'static,
    F: FnMut(&[u8], &mut Collector<'_, T>) -> Result<(), Malformed>,
    F: Clone + Send + Sync + 'static,
{
    type Output = T;

    fn framing(&self) -> Framing {
        Framing::Lines { keep_blank: true }
    }

    fn decode(&mut self, record: &[u8], out: &mut Collector<'_, T>) -> Result<(), Malformed> {
        (self.function)(record, out)
    }
}

/// One row of CSV.
#[derive(Debug, Clone, Copy)]
pub struct CsvRow<'a> {
    columns: &'a ByteRecord,
    fields: &'a ByteRecord,
}

impl<'a> CsvRow<'a> {
    /// How many columns there are, in the header and in every row alike.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there are no columns.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Position of the column called `name`. Look it up once a file, not once a row.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns
            .iter()
            .position(|column| column == name.as_bytes())
    }

    /// The field of a column; `None` if it is missing: empty, a null literal, or no such column.
    #[must_use]
    pub fn field(&self, column: usize) -> Option<&'a [u8]> {
        self.fields.get(column).filter(|field| !field.is_empty())
    }
}

/// CSV rows given to a function.
pub struct CsvRows<T, F> {
    function: F,
    parser: RowParser,
    output: PhantomData<fn() -> T>,
}

impl<T, F> CsvRows<T, F>
where
    F: FnMut(CsvRow<'_>, &mut Collector<'_, T>) -> Result<(), Malformed>,
{
    /// Each row, blank lines passed over.
    pub fn new(function: F) -> Self {
        Self {
            function,
            parser: RowParser::default(),
            output: PhantomData,
        }
    }
}

impl<T, F: Clone> Clone for CsvRows<T, F> {
    fn clone(&self) -> Self {
        Self {
            function: self.function.clone(),
            parser: self.parser.clone(),
            output: PhantomData,
        }
    }
}

impl<T, F> fmt::Debug for CsvRows<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CsvRows")
            .field(&self.parser.dialect)
            .finish()
    }
}

impl<T, F> FileFormat for CsvRows<T, F>
where
    T: 'static,
    F: FnMut(CsvRow<'_>, &mut Collector<'_, T>) -> Result<(), Malformed>,
    F: Clone + Send + Sync + 'static,
{
    type Output = T;

    fn framing(&self) -> Framing {
        Framing::Csv(self.parser.dialect.as_ref().clone())
    }

    fn header(&mut self, row: &[u8]) -> Result<(), Malformed> {
        self.parser.header(row)
    }

    fn decode(&mut self, record: &[u8], out: &mut Collector<'_, T>) -> Result<(), Malformed> {
        self.parser.parse(record)?;
        (self.function)(
            CsvRow {
                columns: &self.parser.columns,
                fields: &self.parser.fields,
            },
            out,
        )
    }
}

impl<T, F> CsvFormat for CsvRows<T, F>
where
    Self: FileFormat,
{
    fn dialect_mut(&mut self) -> &mut CsvDialect {
        Arc::make_mut(&mut self.parser.dialect)
    }
}

/// CSV rows of any type that serde reads, by column name. A missing field is `None`; columns that
/// the type lacks are passed over.
pub struct Csv<T> {
    parser: RowParser,
    output: PhantomData<fn() -> T>,
}

impl<T> Csv<T> {
    /// The format in its default dialect.
    #[must_use]
    pub fn new() -> Self {
        Self {
            parser: RowParser::default(),
            output: PhantomData,
        }
    }
}

impl<T> Default for Csv<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Clone for Csv<T> {
    fn clone(&self) -> Self {
        Self {
            parser: self.parser.clone(),
            output: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Csv<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Csv").field(&self.parser.dialect).finish()
    }
}

impl<T: DeserializeOwned + 'static> FileFormat for Csv<T> {
    type Output = T;

    fn framing(&self) -> Framing {
        Framing::Csv(self.parser.dialect.as_ref().clone())
    }

    fn header(&mut self, row: &[u8]) -> Result<(), Malformed> {
        self.parser.header(row)
    }

    fn decode(&mut self, record: &[u8], out: &mut Collector<'_, T>) -> Result<(), Malformed> {
        self.parser.parse(record)?;
        match self.parser.fields.deserialize(Some(&self.parser.columns)) {
            Ok(value) => {
                out.emit(value);
                Ok(())
            }
            Err(error) => Err(bad_row(&error, &self.parser.columns)),
        }
    }
}

impl<T: DeserializeOwned + 'static> CsvFormat for Csv<T> {
    fn dialect_mut(&mut self) -> &mut CsvDialect {
        Arc::make_mut(&mut self.parser.dialect)
    }
}

#[cold]
fn bad_row(error: &csv::Error, columns: &ByteRecord) -> Malformed {
    use csv::DeserializeErrorKind as Kind;
    let csv::ErrorKind::Deserialize { err, .. } = error.kind() else {
        return Malformed::new("unreadable");
    };
    let what = match err.kind() {
        Kind::InvalidUtf8(_) => "not UTF-8",
        Kind::ParseBool(_) => "not true or false",
        Kind::ParseInt(_) => "not a whole number of the type to read, or missing",
        Kind::ParseFloat(_) => "not a number, or missing",
        _ => "of another shape than the type to read",
    };
    // A column's name comes from the header, which is no user's data.
    let field = err.field().and_then(|field| usize::try_from(field).ok());
    match field.and_then(|field| columns.get(field)) {
        Some(name) => Malformed::new(format!(
            "column {:?} is {what}",
            String::from_utf8_lossy(name)
        )),
        None => Malformed::new(format!("the row is {what}")),
    }
}

/// Cuts rows into fields, reusing its buffers.
struct RowParser {
    dialect: Arc<CsvDialect>,
    core: csv_core::Reader,
    /// Fields unescaped, one after the other, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
    columns: ByteRecord,
    fields: ByteRecord,
}

impl Default for RowParser {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl Clone for RowParser {
    /// A fresh one: a clone reads another file.
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.dialect))
    }
}

impl RowParser {
    fn new(dialect: Arc<CsvDialect>) -> Self {
        let core = csv_core::ReaderBuilder::new()
            .delimiter(dialect.delimiter)
            // A row arrives without its line end; a carriage return inside it is text.
            .terminator(csv_core::Terminator::Any(b'\n'))
            .build();
        let columns = dialect
            .columns
            .iter()
            .flatten()
            .map(String::as_bytes)
            .collect();
        Self {
            dialect,
            core,
            text: Vec::new(),
            ends: Vec::new(),
            columns,
            fields: ByteRecord::new(),
        }
    }

    fn header(&mut self, row: &[u8]) -> Result<(), Malformed> {
        self.cut(row);
        self.columns.clear();
        let mut start = 0;
        for end in &self.ends {
            let name = &self.text[start..*end];
            if self.columns.iter().any(|known| known == name) {
                return Err(Malformed::new("the header names a column twice"));
            }
            self.columns.push_field(name);
            start = *end;
        }
        Ok(())
    }

    /// Fills `fields`.
    fn parse(&mut self, row: &[u8]) -> Result<(), Malformed> {
        self.fields.clear();
        if memchr(b'"', row).is_none() {
            // Nothing to unescape: a third of the cost of the general way (19 short columns).
            let mut start = 0;
            for end in memchr_iter(self.dialect.delimiter, row).chain([row.len()]) {
                let field = &row[start..end];
                self.fields.push_field(self.dialect.value(field));
                start = end + 1;
            }
        } else {
            self.cut(row);
            let mut start = 0;
            for end in &self.ends {
                self.fields
                    .push_field(self.dialect.value(&self.text[start..*end]));
                start = *end;
            }
        }
        if self.fields.len() == self.columns.len() {
            return Ok(());
        }
        Err(Malformed::new(format!(
            "the row has {} fields where the header has {}",
            self.fields.len(),
            self.columns.len()
        )))
    }

    /// Fills `text` and `ends`.
    fn cut(&mut self, mut row: &[u8]) {
        use csv_core::ReadRecordResult as Read;
        self.core.reset();
        // A row unescapes to no more than its own length, and has at most one field a byte and one.
        self.text.resize(row.len().max(1), 0);
        let (mut written, mut fields) = (0, 0);
        self.ends.resize(self.ends.capacity().max(32), 0);
        loop {
            let (result, read, wrote, ended) =
                self.core
                    .read_record(row, &mut self.text[written..], &mut self.ends[fields..]);
            row = &row[read..];
            written += wrote;
            fields += ended;
            match result {
                // An empty input, next time round, tells the end.
                Read::InputEmpty => {}
                Read::OutputFull => self.text.resize(self.text.len() * 2, 0),
                Read::OutputEndsFull => self.ends.resize(self.ends.len() * 2, 0),
                Read::Record | Read::End => break,
            }
        }
        self.ends.truncate(fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aqueduct_connector::source::Record;
    use proptest::prelude::*;

    fn decode<F: FileFormat>(format: &mut F, row: &[u8]) -> Result<Vec<F::Output>, Malformed> {
        let mut records = Vec::<Record<F::Output>>::new();
        format.decode(row, &mut Collector::new(&mut records, None))?;
        Ok(records.into_iter().map(|record| record.value).collect())
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Row {
        name: String,
        delay: Option<i32>,
    }

    #[test]
    fn columns_are_found_by_name_and_null_literals_are_missing() {
        let mut format = Csv::<Row>::new();
        format.dialect_mut().null_literals.push("NA".to_owned());
        format.header(b"delay,other,name").expect("a header");
        let row = |name: &str, delay| {
            vec![Row {
                name: name.to_owned(),
                delay,
            }]
        };
        assert_eq!(decode(&mut format, b"-3,x,a"), Ok(row("a", Some(-3))));
        assert_eq!(
            decode(&mut format, b"NA,,\"a,\"\"b\"\"\""),
            Ok(row("a,\"b\"", None))
        );
        assert_eq!(decode(&mut format, b",,"), Ok(row("", None)));
    }

    #[test]
    fn a_bad_record_is_described_and_never_quoted() {
        let mut csv = Csv::<Row>::new();
        csv.header(b"name,delay").expect("a header");
        let mut texts = Vec::new();
        for row in [
            &b"SECRET,SECRET"[..],
            b"SECRET",
            b"SECRET,1,2",
            b"SECRET\xff,1",
        ] {
            texts.push(decode(&mut csv, row).expect_err("malformed").to_string());
        }
        assert!(
            texts[0].contains("column \"delay\" is not a whole number"),
            "{texts:?}"
        );
        assert!(
            texts[1].contains("1 fields where the header has 2"),
            "{texts:?}"
        );
        assert!(
            texts[3].contains("column \"name\" is not UTF-8"),
            "{texts:?}"
        );
        let mut json = JsonLines::<Row>::new();
        for line in [
            "{\"name\": \"SECRET\", \"delay\": \"SECRET\"}",
            "SECRET",
            "{\"name\": \"SEC",
        ] {
            texts.push(
                decode(&mut json, line.as_bytes())
                    .expect_err("malformed")
                    .to_string(),
            );
        }
        assert!(texts.iter().all(|text| !text.contains("SEC")), "{texts:?}");
    }

    #[test]
    fn functions_emit_as_many_values_as_they_like() {
        let mut words = Lines::new(|line: &[u8], out: &mut Collector<'_, usize>| {
            line.split(|b| *b == b' ')
                .for_each(|word| out.emit(word.len()));
            Ok(())
        });
        assert_eq!(decode(&mut words, b"a bb ccc"), Ok(vec![1, 2, 3]));
        let mut rows = CsvRows::new(|row: CsvRow<'_>, out: &mut Collector<'_, Vec<u8>>| {
            let column = row
                .column("b")
                .ok_or_else(|| Malformed::new("no column b"))?;
            row.field(column)
                .into_iter()
                .for_each(|field| out.emit(field.to_vec()));
            Ok(())
        });
        rows.header(b"a,b").expect("a header");
        assert_eq!(decode(&mut rows, b"1,2"), Ok(vec![b"2".to_vec()]));
        assert_eq!(decode(&mut rows, b"1,"), Ok(vec![]));
    }

    #[test]
    fn a_header_with_a_name_twice_is_refused() {
        assert!(Csv::<Row>::new().header(b"a,b,a").is_err());
    }

    proptest! {
        #[test]
        fn rows_are_cut_as_the_csv_crate_cuts_them(row in "[a,\"b\r]{1,40}") {
            let mut parser = RowParser::default();
            // The number of columns does not matter here.
            let _ = parser.parse(row.as_bytes());
            let ours: Vec<&[u8]> = parser.fields.iter().collect();
            let theirs = csv::ReaderBuilder::new()
                .has_headers(false)
                .terminator(csv::Terminator::Any(b'\n'))
                .from_reader(row.as_bytes())
                .into_byte_records()
                .next()
                .expect("one row")
                .expect("bytes always parse");
            prop_assert_eq!(ours, theirs.iter().collect::<Vec<_>>());
        }
    }
}
