//! Options, each declared once.
//!
//! A connector declares its options as constants of type [`Opt`]: key, type, default, range, unit and text in one place.
//! Builders validate through them, SQL reads the same declarations, and the reference page is generated from them, so a
//! default or a range cannot be stated twice and differ.
//!
//! ```
//! use aqueduct_connector::options::{Default, Opt};
//!
//! const MAX_ENTRIES: Opt<u64> = Opt::new(
//!     "sink.in-flight.max-entries",
//!     "Entries handed over and not yet answered, over all destinations of a writer.",
//! )
//! .default(Default::Ours(1_000))
//! .at_least(1)
//! .unit("entries");
//!
//! assert_eq!(MAX_ENTRIES.check(5), Ok(5));
//! assert_eq!(
//!     MAX_ENTRIES.check(0).unwrap_err().to_string(),
//!     "Option 'sink.in-flight.max-entries' is invalid: 0 entries is below the least, 1 entries",
//! );
//! assert_eq!(MAX_ENTRIES.parse("12"), Ok(12));
//! ```

use std::fmt;
use std::time::Duration;

use crate::error::Error;

/// Where an option's value comes from when nobody sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default<T> {
    /// Our own value.
    Ours(T),
    /// Nobody's: it must be set.
    Required,
    /// Unset stays unset: the service decides, or the feature is off. The text says what that means.
    Unset(&'static str),
}

/// A value an option can hold.
pub trait OptionValue: Copy + PartialOrd + 'static {
    /// Name of the type in documentation.
    const TYPE: &'static str;

    /// Reads the text of a configuration.
    ///
    /// # Errors
    ///
    /// The reason, for a person.
    fn parse(text: &str) -> Result<Self, String>;

    /// Prints the value as documentation and errors show it.
    fn show(self) -> String;
}

macro_rules! whole_number {
    ($($number:ty),*) => {$(
        impl OptionValue for $number {
            const TYPE: &'static str = "whole number";

            fn parse(text: &str) -> Result<Self, String> {
                text.trim().parse().map_err(|_| format!(
                    "expected a whole number from {} to {}", <$number>::MIN, <$number>::MAX
                ))
            }

            fn show(self) -> String {
                let digits = self.to_string();
                let (sign, digits) = digits.split_at(usize::from(digits.starts_with('-')));
                let mut text = sign.to_owned();
                for (at, digit) in digits.chars().enumerate() {
                    if at > 0 && (digits.len() - at) % 3 == 0 {
                        text.push(',');
                    }
                    text.push(digit);
                }
                text
            }
        }
    )*};
}

whole_number!(u32, u64, i64);

impl OptionValue for bool {
    const TYPE: &'static str = "boolean";

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err("expected true or false".to_owned()),
        }
    }

    fn show(self) -> String {
        self.to_string()
    }
}

impl OptionValue for f64 {
    const TYPE: &'static str = "number";

    /// A finite decimal number.
    fn parse(text: &str) -> Result<Self, String> {
        text.trim()
            .parse()
            .ok()
            .filter(|number: &Self| number.is_finite())
            .ok_or_else(|| "expected a number such as '1.5'".to_owned())
    }

    fn show(self) -> String {
        self.to_string()
    }
}

impl OptionValue for Duration {
    const TYPE: &'static str = "duration";

    /// A whole number with a unit: `ms`, `s`, `min`, `h` or `d`; without one, milliseconds.
    fn parse(text: &str) -> Result<Self, String> {
        const HELP: &str = "expected a duration such as '500 ms', '10 s', '5 min', '1 h' or '2 d'";
        let text = text.trim();
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let number: u64 = text[..digits].parse().map_err(|_| HELP.to_owned())?;
        let millis = match text[digits..].trim() {
            "" | "ms" => Some(number),
            "s" | "sec" => number.checked_mul(1_000),
            "m" | "min" => number.checked_mul(60_000),
            "h" => number.checked_mul(3_600_000),
            "d" => number.checked_mul(86_400_000),
            _ => return Err(HELP.to_owned()),
        };
        millis
            .map(Self::from_millis)
            .ok_or_else(|| "the duration is too long".to_owned())
    }

    fn show(self) -> String {
        let millis = self.as_millis();
        if !self.subsec_nanos().is_multiple_of(1_000_000) {
            return format!("{self:?}");
        }
        for (unit, size) in [
            ("d", 86_400_000),
            ("h", 3_600_000),
            ("min", 60_000),
            ("s", 1_000),
        ] {
            if millis > 0 && millis.is_multiple_of(size) {
                return format!("{} {unit}", millis / size);
            }
        }
        format!("{millis} ms")
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// `mib` times 1,048,576 bytes.
    #[must_use]
    pub const fn mib(mib: u64) -> Self {
        Self(mib << 20)
    }

    /// `kib` times 1,024 bytes.
    #[must_use]
    pub const fn kib(kib: u64) -> Self {
        Self(kib << 10)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.show())
    }
}

impl OptionValue for ByteSize {
    const TYPE: &'static str = "byte size";

    /// A whole number with a unit: `b`, `kb`/`kib`, `mb`/`mib` or `gb`/`gib`, all of them powers of 1,024 as the hosts
    /// read them; without one, bytes.
    fn parse(text: &str) -> Result<Self, String> {
        const HELP: &str = "expected a size such as '512 kb', '64 mb' or '1 gb' (powers of 1,024)";
        let text = text.trim();
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let number: u64 = text[..digits].parse().map_err(|_| HELP.to_owned())?;
        let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
            "" | "b" | "bytes" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            _ => return Err(HELP.to_owned()),
        };
        number
            .checked_mul(1 << shift)
            .map(Self)
            .ok_or_else(|| "the size is too large".to_owned())
    }

    fn show(self) -> String {
        for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            if self.0 > 0 && self.0.is_multiple_of(1 << shift) {
                return format!("{} {unit}", self.0 >> shift);
            }
        }
        format!("{} bytes", self.0.show())
    }
}

/// A refused setting. `Display` names the option, the value and the bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A value that can never work.
    #[error("Option '{option}' is invalid: {reason}")]
    Invalid {
        /// The option's key.
        option: &'static str,
        /// Why, with the value.
        reason: String,
    },
    /// A value is missing.
    #[error("Option '{option}' is required: {what}")]
    Missing {
        /// The option's key.
        option: &'static str,
        /// What it is for.
        what: &'static str,
    },
    /// A key that no option has.
    #[error("Option '{option}' is unknown: {hint}")]
    Unknown {
        /// The key as given.
        option: String,
        /// What to do.
        hint: String,
    },
    /// A column that a table cannot have.
    #[error("Column '{column}' is invalid: {reason}")]
    Column {
        /// The column's name.
        column: String,
        /// Why, and what to change.
        reason: String,
    },
    /// Two values that cannot go together.
    #[error("Options '{first}' and '{second}' do not go together: {reason}")]
    Conflict {
        /// One option's key.
        first: &'static str,
        /// The other's.
        second: &'static str,
        /// Why, and what to change.
        reason: String,
    },
}

impl ConfigError {
    /// A key that no option has, with the nearest that one has.
    #[must_use]
    pub fn unknown(option: impl Into<String>, nearest: Option<&'static str>) -> Self {
        Self::Unknown {
            option: option.into(),
            hint: nearest.map_or_else(
                || "remove it, or check its spelling in the reference".to_owned(),
                |nearest| format!("did you mean '{nearest}'?"),
            ),
        }
    }

    /// An option given in two spellings.
    #[must_use]
    pub fn twice(option: &'static str, given: &str) -> Self {
        Self::invalid(
            option,
            format!(
                "it is given twice, also by an earlier name ('{given}' is one of them); keep '{option}'"
            ),
        )
    }

    /// A column that a table cannot have.
    #[must_use]
    pub fn column(column: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Column {
            column: column.into(),
            reason: reason.into(),
        }
    }

    /// A value that can never work.
    #[must_use]
    pub fn invalid(option: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid {
            option,
            reason: reason.into(),
        }
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::config(error.to_string()).with_source(error)
    }
}

/// One option, declared.
#[derive(Clone, Copy, Debug)]
pub struct Opt<T: 'static> {
    key: &'static str,
    doc: &'static str,
    default: Default<T>,
    least: Option<T>,
    most: Option<T>,
    unit: &'static str,
    builder: &'static str,
    deprecated: &'static [&'static str],
}

impl<T: OptionValue> Opt<T> {
    /// An option that is unset by default and takes any value.
    #[must_use]
    pub const fn new(key: &'static str, doc: &'static str) -> Self {
        Self {
            key,
            doc,
            default: Default::Unset("off"),
            least: None,
            most: None,
            unit: "",
            builder: "",
            deprecated: &[],
        }
    }

    /// Its default.
    #[must_use]
    pub const fn default(mut self, default: Default<T>) -> Self {
        self.default = default;
        self
    }

    /// Its least value, inclusive.
    #[must_use]
    pub const fn at_least(mut self, least: T) -> Self {
        self.least = Some(least);
        self
    }

    /// Its greatest value, inclusive.
    #[must_use]
    pub const fn at_most(mut self, most: T) -> Self {
        self.most = Some(most);
        self
    }

    /// The unit, in the plural.
    #[must_use]
    pub const fn unit(mut self, unit: &'static str) -> Self {
        self.unit = unit;
        self
    }

    /// The builder's setter for it.
    #[must_use]
    pub const fn builder(mut self, setter: &'static str) -> Self {
        self.builder = setter;
        self
    }

    /// Earlier spellings of the key, accepted with a warning.
    #[must_use]
    pub const fn deprecated(mut self, keys: &'static [&'static str]) -> Self {
        self.deprecated = keys;
        self
    }

    /// The key.
    #[must_use]
    pub const fn key(&self) -> &'static str {
        self.key
    }

    /// Earlier spellings of the key.
    #[must_use]
    pub const fn deprecated_keys(&self) -> &'static [&'static str] {
        self.deprecated
    }

    /// Our own default.
    ///
    /// # Panics
    ///
    /// If the option has none of ours; a mistake in the declaration, met by every test that builds.
    #[must_use]
    pub fn ours(&self) -> T {
        match self.default {
            Default::Ours(value) => value,
            Default::Required | Default::Unset(_) => {
                panic!("option {} has no default of ours", self.key)
            }
        }
    }

    /// Refuses a value outside the range.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`], naming option, value and bound.
    pub fn check(&self, value: T) -> Result<T, ConfigError> {
        if let Some(least) = self.least.filter(|least| value < *least) {
            return Err(self.refuse(value, "is below the least", least));
        }
        if let Some(most) = self.most.filter(|most| value > *most) {
            return Err(self.refuse(value, "is above the most", most));
        }
        Ok(value)
    }

    /// Reads a value from text and checks its range.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`], naming option and reason.
    pub fn parse(&self, text: &str) -> Result<T, ConfigError> {
        T::parse(text)
            .map_err(|reason| ConfigError::invalid(self.key, reason))
            .and_then(|value| self.check(value))
    }

    /// The declaration without its type, for listings.
    #[must_use]
    pub fn declaration(&self) -> Declaration {
        Declaration {
            key: self.key,
            doc: self.doc,
            kind: T::TYPE,
            default: match self.default {
                Default::Ours(value) => self.show(value),
                Default::Required => "required".to_owned(),
                Default::Unset(meaning) => format!("unset: {meaning}"),
            },
            range: match (self.least, self.most) {
                (None, None) => String::new(),
                (Some(least), None) => format!("at least {}", self.show(least)),
                (None, Some(most)) => format!("at most {}", self.show(most)),
                (Some(least), Some(most)) => format!("{} to {}", self.show(least), self.show(most)),
            },
            builder: self.builder,
            deprecated: self.deprecated,
        }
    }

    fn show(&self, value: T) -> String {
        if self.unit.is_empty() {
            value.show()
        } else {
            format!("{} {}", value.show(), self.unit)
        }
    }

    fn refuse(&self, value: T, relation: &str, bound: T) -> ConfigError {
        ConfigError::invalid(
            self.key,
            format!("{} {relation}, {}", self.show(value), self.show(bound)),
        )
    }
}

/// An option that holds text: a name, a path, an address.
#[derive(Clone, Copy, Debug)]
pub struct TextOpt {
    key: &'static str,
    doc: &'static str,
    default: Default<&'static str>,
    builder: &'static str,
}

impl TextOpt {
    /// An option that is unset by default.
    #[must_use]
    pub const fn new(key: &'static str, doc: &'static str) -> Self {
        Self {
            key,
            doc,
            default: Default::Unset("off"),
            builder: "",
        }
    }

    /// Its default.
    #[must_use]
    pub const fn default(mut self, default: Default<&'static str>) -> Self {
        self.default = default;
        self
    }

    /// The builder's setter for it.
    #[must_use]
    pub const fn builder(mut self, setter: &'static str) -> Self {
        self.builder = setter;
        self
    }

    /// The key.
    #[must_use]
    pub const fn key(&self) -> &'static str {
        self.key
    }

    /// Refuses text that is empty, blank or has white space at an edge.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`], naming the option.
    pub fn check<'a>(&self, value: &'a str) -> Result<&'a str, ConfigError> {
        if value.trim().is_empty() {
            Err(ConfigError::invalid(self.key, "it is blank"))
        } else if value.trim() != value {
            Err(ConfigError::invalid(
                self.key,
                format!("'{value}' begins or ends with white space"),
            ))
        } else {
            Ok(value)
        }
    }

    /// As [`check`](Self::check), and refuses a slash: the value becomes one component of a resource path, and a slash
    /// would silently name another resource.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`], naming the option.
    pub fn check_component<'a>(&self, value: &'a str) -> Result<&'a str, ConfigError> {
        let value = self.check(value)?;
        if value.contains('/') {
            return Err(ConfigError::invalid(
                self.key,
                format!("'{value}' contains '/'; give the plain name, not a resource path"),
            ));
        }
        Ok(value)
    }

    /// The declaration without its type, for listings.
    #[must_use]
    pub fn declaration(&self) -> Declaration {
        Declaration {
            key: self.key,
            doc: self.doc,
            kind: "text",
            default: match self.default {
                Default::Ours(value) => value.to_owned(),
                Default::Required => "required".to_owned(),
                Default::Unset(meaning) => format!("unset: {meaning}"),
            },
            range: String::new(),
            builder: self.builder,
            deprecated: &[],
        }
    }
}

/// An option as listings show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Its key.
    pub key: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// The type's name.
    pub kind: &'static str,
    /// The default, in words.
    pub default: String,
    /// The range, in words; empty for none.
    pub range: String,
    /// The builder's setter.
    pub builder: &'static str,
    /// Earlier spellings.
    pub deprecated: &'static [&'static str],
}

/// Renders a reference page of `options` under `title`, as Markdown.
#[must_use]
pub fn reference_page(title: &str, intro: &str, options: &[Declaration]) -> String {
    let mut page = format!("# {title}\n\n{intro}\n\n");
    page.push_str("| option | builder | type | default | range | meaning |\n| --- | --- | --- | --- | --- | --- |\n");
    for option in options {
        let builder = if option.builder.is_empty() {
            String::new()
        } else {
            format!("`{}`", option.builder)
        };
        page.push_str(&format!(
            "| `{}` | {builder} | {} | {} | {} | {} |\n",
            option.key, option.kind, option.default, option.range, option.doc
        ));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_write_them() {
        assert_eq!(Duration::parse("500 ms"), Ok(Duration::from_millis(500)));
        assert_eq!(Duration::parse("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(Duration::parse("5 min"), Ok(Duration::from_secs(300)));
        assert_eq!(Duration::parse("2 d"), Ok(Duration::from_secs(172_800)));
        for bad in [
            "",
            "s",
            "-1 s",
            "1.5 s",
            "1 week",
            "99999999999999999999 s",
            "18446744073709551615 d",
        ] {
            assert!(Duration::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(Duration::from_secs(90).show(), "90 s");
        assert_eq!(Duration::from_micros(1_500).show(), "1.5ms");
        assert_eq!(Duration::ZERO.show(), "0 ms");
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        assert_eq!(ByteSize::parse("64 mb"), Ok(ByteSize::mib(64)));
        assert_eq!(ByteSize::parse("1gib"), Ok(ByteSize(1 << 30)));
        assert!(ByteSize::parse("64 miles").is_err());
        assert!(ByteSize::parse("99999999999 gb").is_err());
        assert_eq!(ByteSize(104_857_599).show(), "104,857,599 bytes");
    }

    #[test]
    fn a_value_at_the_bound_passes_and_one_beyond_names_the_option() {
        const OPTION: Opt<i64> = Opt::new("a.b", "doc")
            .default(Default::Ours(5))
            .at_least(-1)
            .at_most(10);
        assert_eq!(OPTION.check(-1), Ok(-1));
        assert_eq!(OPTION.check(10), Ok(10));
        assert!(OPTION.check(11).unwrap_err().to_string().contains("'a.b'"));
        assert!(OPTION.parse("x").unwrap_err().to_string().contains("'a.b'"));
        assert_eq!(OPTION.declaration().range, "-1 to 10");
    }

    #[test]
    fn a_component_with_a_slash_a_blank_or_an_edge_space_is_refused() {
        const TABLE: TextOpt = TextOpt::new("table", "doc");
        assert!(TABLE.check_component("orders").is_ok());
        for bad in ["a/b", " a", "a ", "", "  "] {
            let error = TABLE.check_component(bad).unwrap_err().to_string();
            assert!(error.contains("'table'"), "{error}");
        }
    }

    #[test]
    fn no_text_makes_parsing_panic_and_what_is_shown_of_a_size_reads_back() {
        let mut random = fastrand::Rng::with_seed(11);
        let alphabet: Vec<char> =
            "0123456789 .,-+_eEkKmMgGbBiIdDhHsStTrRuUfFaAlLnNé\u{0}٣\u{1f600}"
                .chars()
                .collect();
        for _ in 0..200_000 {
            let text: String = (0..random.usize(0..24))
                .map(|_| alphabet[random.usize(0..alphabet.len())])
                .collect();
            // A refusal is fine, a panic or an overflow is not.
            let _ = (
                u64::parse(&text),
                i64::parse(&text),
                bool::parse(&text),
                Duration::parse(&text),
            );
            if let Ok(size) = ByteSize::parse(&text) {
                let shown = size.show().replace(',', "");
                assert_eq!(ByteSize::parse(&shown), Ok(size), "{shown}");
            }
        }
    }
}
