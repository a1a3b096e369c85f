//! Reads a table's options through their declarations.

use std::collections::{BTreeMap, BTreeSet};

use crate::options::{ConfigError, Opt, OptionValue, TextOpt};

use super::{TableOption, TableSpec, UsedBy};

/// Renders a reference page of a connector's tables, as Markdown.
#[must_use]
pub fn table_reference_page(title: &str, intro: &str, options: &[TableOption]) -> String {
    let mut page = format!("# {title}\n\n{intro}\n\n");
    page.push_str("| option | used by | type | default | range | meaning |\n| --- | --- | --- | --- | --- | --- |\n");
    for option in options {
        let declaration = &option.declaration;
        let key = if option.map {
            format!("`{0}`, `{0}.<name>`", declaration.key)
        } else {
            format!("`{}`", declaration.key)
        };
        let used_by = match option.used_by {
            UsedBy::Both => "all",
            UsedBy::Scan => "scan",
            UsedBy::Lookup => "lookup",
            UsedBy::Sink => "sink",
        };
        let earlier: String = declaration
            .deprecated
            .iter()
            .map(|key| format!(" Earlier `{key}`."))
            .collect();
        page.push_str(&format!(
            "| {key} | {used_by} | {} | {} | {} | {}{earlier} |\n",
            declaration.kind, declaration.default, declaration.range, declaration.doc
        ));
    }
    page
}

/// The options of one table, each read through its declaration. Made by a factory from its list, which refuses keys it
/// does not have and takes earlier spellings with a warning.
#[derive(Debug)]
pub struct TableOptions<'a> {
    table: &'a str,
    values: BTreeMap<&'static str, &'a str>,
    maps: BTreeMap<&'static str, BTreeMap<&'a str, &'a str>>,
}

impl<'a> TableOptions<'a> {
    /// Sorts the options of `table` by `declared`.
    ///
    /// # Errors
    ///
    /// A key that is not declared, with the nearest that is; an option given in two spellings.
    pub fn new(table: &'a TableSpec, declared: &[TableOption]) -> Result<Self, ConfigError> {
        let mut sorted = Self {
            table: &table.name,
            values: BTreeMap::new(),
            maps: BTreeMap::new(),
        };
        for (given, value) in &table.options {
            sorted.sort(given, value, declared)?;
        }
        Ok(sorted)
    }

    fn sort(
        &mut self,
        given: &'a str,
        value: &'a str,
        declared: &[TableOption],
    ) -> Result<(), ConfigError> {
        for option in declared {
            let key = option.declaration.key;
            if given == key {
                if self.values.insert(key, value).is_some() {
                    return Err(ConfigError::twice(key, given));
                }
                return Ok(());
            }
            if option.declaration.deprecated.contains(&given) {
                tracing::warn!(
                    table = self.table,
                    option = given,
                    "this option has a new name, '{key}'; the old one still works and will go with the next major version"
                );
                if self.values.insert(key, value).is_some() {
                    return Err(ConfigError::twice(key, given));
                }
                return Ok(());
            }
            if option.map
                && let Some(entry) = given
                    .strip_prefix(key)
                    .and_then(|rest| rest.strip_prefix('.'))
                    .filter(|entry| !entry.is_empty())
            {
                self.maps.entry(key).or_default().insert(entry, value);
                return Ok(());
            }
        }
        Err(ConfigError::unknown(
            given,
            nearest(given, declared.iter().map(|option| option.declaration.key)),
        ))
    }

    /// The name of the table, for messages.
    #[must_use]
    pub const fn table(&self) -> &'a str {
        self.table
    }

    /// Whether `key` was given, as a value or as a map.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key) || self.maps.contains_key(key)
    }

    /// The keys that were given.
    #[must_use]
    pub fn keys(&self) -> BTreeSet<&'static str> {
        self.values
            .keys()
            .chain(self.maps.keys())
            .copied()
            .collect()
    }

    /// An option's text as given.
    #[must_use]
    pub fn raw(&self, key: &str) -> Option<&'a str> {
        self.values.get(key).copied()
    }

    /// An option's value, if it was given.
    ///
    /// # Errors
    ///
    /// If it cannot be read or is out of range, naming the option; so for all below.
    pub fn get<T: OptionValue>(&self, option: &Opt<T>) -> Result<Option<T>, ConfigError> {
        self.raw(option.key())
            .map(|text| option.parse(text))
            .transpose()
    }

    /// A text, if it was given.
    #[expect(clippy::missing_errors_doc, reason = "as for `get`")]
    pub fn text(&self, option: &TextOpt) -> Result<Option<&'a str>, ConfigError> {
        self.raw(option.key())
            .map(|text| option.check(text))
            .transpose()
    }

    /// A text that must be given.
    #[expect(clippy::missing_errors_doc, reason = "as for `get`")]
    pub fn required(&self, option: &TextOpt, what: &'static str) -> Result<&'a str, ConfigError> {
        self.text(option)?.ok_or(ConfigError::Missing {
            option: option.key(),
            what,
        })
    }

    /// One of `choices`, in any case, if it was given.
    #[expect(clippy::missing_errors_doc, reason = "as for `get`")]
    pub fn choice<T: Copy>(
        &self,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, ConfigError> {
        let Some(given) = self.raw(key) else {
            return Ok(None);
        };
        choices
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(given.trim()))
            .map(|(_, value)| Some(*value))
            .ok_or_else(|| {
                let names: Vec<String> = choices
                    .iter()
                    .map(|(name, _)| format!("'{name}'"))
                    .collect();
                ConfigError::invalid(key, format!("'{given}' is not one of {}", names.join(", ")))
            })
    }

    /// The elements of a list separated by `;`, if it was given.
    #[expect(clippy::missing_errors_doc, reason = "as for `get`")]
    pub fn list(&self, key: &'static str) -> Result<Option<Vec<&'a str>>, ConfigError> {
        let Some(given) = self.raw(key) else {
            return Ok(None);
        };
        let elements: Vec<&str> = given.split(';').map(str::trim).collect();
        match elements.iter().position(|element| element.is_empty()) {
            Some(at) => Err(ConfigError::invalid(
                key,
                format!(
                    "entry {} of its list is empty; entries are separated by ';'",
                    at + 1
                ),
            )),
            None => Ok(Some(elements)),
        }
    }

    /// A map, given either as keys below `key` or packed into one value, `a:x,b:y`, and not both.
    #[expect(clippy::missing_errors_doc, reason = "as for `get`")]
    pub fn map(
        &self,
        key: &'static str,
    ) -> Result<Option<BTreeMap<&'a str, &'a str>>, ConfigError> {
        let packed = self.raw(key);
        match (packed, self.maps.get(key)) {
            (Some(_), Some(_)) => Err(ConfigError::invalid(
                key,
                format!("it is given both as one value and as keys '{key}.<name>'; keep one form"),
            )),
            (None, None) => Ok(None),
            (None, Some(entries)) => Ok(Some(entries.clone())),
            (Some(packed), None) => {
                let mut entries = BTreeMap::new();
                for (at, entry) in packed.split(',').enumerate() {
                    let Some((name, value)) = entry
                        .split_once(':')
                        .map(|(name, value)| (name.trim(), value.trim()))
                        .filter(|(name, value)| !name.is_empty() && !value.is_empty())
                    else {
                        return Err(ConfigError::invalid(
                            key,
                            format!("entry {} is not of the form 'name:value'", at + 1),
                        ));
                    };
                    if entries.insert(name, value).is_some() {
                        return Err(ConfigError::invalid(key, format!("'{name}' occurs twice")));
                    }
                }
                Ok(Some(entries))
            }
        }
    }
}

/// The key most like `given`, if one is alike.
fn nearest(given: &str, keys: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    keys.map(|key| (distance(given, key), key))
        .min()
        .filter(|(distance, key)| *distance <= 1 + key.len() / 4)
        .map(|(_, key)| key)
}

/// Edits that turn `left` into `right`.
fn distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (at, a) in left.bytes().enumerate() {
        let mut corner = row[0];
        row[0] = at + 1;
        for (to, b) in right.bytes().enumerate() {
            let change = corner + usize::from(a != b);
            corner = row[to + 1];
            row[to + 1] = change.min(row[to] + 1).min(corner + 1);
        }
    }
    row[right.len()]
}
