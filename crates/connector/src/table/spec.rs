//! A table as its statement declares it.

use std::collections::BTreeMap;
use std::fmt;

use crate::options::ConfigError;
use crate::types::LogicalType;

/// A table: its name, columns, key and options.
#[derive(Clone, PartialEq, Eq)]
pub struct TableSpec {
    /// Its name, for messages.
    pub name: String,
    /// Its physical columns in order; metadata and computed columns are the host's.
    pub columns: Vec<Column>,
    /// The primary key, by column names; empty for none.
    pub primary_key: Vec<String>,
    /// Its options, `connector` and `format` and those of the format excepted.
    pub options: BTreeMap<String, String>,
}

/// A physical column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: LogicalType,
}

/// Leads to a field: the number of a physical column, then numbers of fields within rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldPath(pub Vec<usize>);

impl TableSpec {
    /// A table without key and options.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            columns: Vec::new(),
            primary_key: Vec::new(),
            options: BTreeMap::new(),
        }
    }

    /// Adds a column of the type that `ty` spells.
    ///
    /// # Errors
    ///
    /// If `ty` is no type.
    pub fn column(mut self, name: impl Into<String>, ty: &str) -> Result<Self, ConfigError> {
        let name = name.into();
        let ty = LogicalType::parse(ty)
            .map_err(|error| ConfigError::column(&name, error.to_string()))?;
        self.columns.push(Column { name, ty });
        Ok(self)
    }

    /// Sets the primary key.
    #[must_use]
    pub fn primary_key<N: Into<String>>(mut self, columns: impl IntoIterator<Item = N>) -> Self {
        self.primary_key = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets an option.
    #[must_use]
    pub fn option(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.insert(key.into(), value.into());
        self
    }

    /// The type that `path` leads to.
    ///
    /// # Errors
    ///
    /// If it leads nowhere, which is a mistake of the host.
    pub fn field(&self, path: &FieldPath) -> Result<&LogicalType, ConfigError> {
        let nowhere = || {
            ConfigError::column(
                "?",
                format!("field path {:?} leads nowhere in '{}'", path.0, self.name),
            )
        };
        let (first, rest) = path.0.split_first().ok_or_else(nowhere)?;
        let mut ty = &self.columns.get(*first).ok_or_else(nowhere)?.ty;
        for at in rest {
            let crate::types::DataType::Row(fields) = &ty.data else {
                return Err(nowhere());
            };
            ty = &fields.get(*at).ok_or_else(nowhere)?.ty;
        }
        Ok(ty)
    }
}

impl fmt::Debug for TableSpec {
    /// Without the values of options, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableSpec")
            .field("name", &self.name)
            .field("columns", &self.columns)
            .field("primary_key", &self.primary_key)
            .field("options", &self.options.keys())
            .finish()
    }
}
