//! A table's columns as Bigtable has them: one row key, and families of columns.

use aqueduct_connector::options::ConfigError;
use aqueduct_connector::table::TableSpec;
use aqueduct_connector::types::DataType;

use super::codec::Codec;

/// The columns of a table, checked (BT-SQL-01).
#[derive(Clone, Debug)]
pub(super) struct Schema {
    pub(super) key: Key,
    pub(super) families: Vec<Family>,
    /// Physical columns.
    pub(super) columns: usize,
}

/// The row key.
#[derive(Clone, Debug)]
pub(super) struct Key {
    /// The number of its column.
    pub(super) column: usize,
    pub(super) name: String,
    pub(super) data: DataType,
    pub(super) codec: Codec,
}

/// A column family: a column of type ROW.
#[derive(Clone, Debug)]
pub(super) struct Family {
    /// The number of its column.
    pub(super) column: usize,
    pub(super) name: String,
    pub(super) nullable: bool,
    pub(super) qualifiers: Vec<Qualifier>,
}

/// A column of a family.
#[derive(Clone, Debug)]
pub(super) struct Qualifier {
    pub(super) name: String,
    pub(super) nullable: bool,
    pub(super) codec: Codec,
}

impl Family {
    /// A column's name for messages.
    pub(super) fn path(&self, qualifier: &Qualifier) -> String {
        format!("{}.{}", self.name, qualifier.name)
    }
}

impl Schema {
    pub(super) fn of(table: &TableSpec) -> Result<Self, ConfigError> {
        let mut key: Option<Key> = None;
        let mut families = Vec::new();
        for (at, column) in table.columns.iter().enumerate() {
            if let DataType::Row(fields) = &column.ty.data {
                families.push(family(at, &column.name, column.ty.nullable, fields)?);
                continue;
            }
            if let Some(key) = &key {
                return Err(ConfigError::column(
                    &column.name,
                    format!(
                        "a table has one column that is not a ROW, its row key, and '{}' is that; put this one into a \
                         family: `family` ROW<`{}` {}>",
                        key.name, column.name, column.ty
                    ),
                ));
            }
            key = Some(Key {
                column: at,
                name: column.name.clone(),
                data: column.ty.data.clone(),
                codec: Codec::of(&column.ty, &column.name)?,
            });
        }
        let key = key.ok_or_else(|| {
            ConfigError::column(
                "row key",
                format!(
                    "'{}' has no column that is not a ROW; declare one, of any plain type, for the row key",
                    table.name
                ),
            )
        })?;
        if let Some(other) = table.primary_key.iter().find(|name| **name != key.name) {
            return Err(ConfigError::column(
                other,
                format!(
                    "the primary key can only be the row key, '{}'; write PRIMARY KEY (`{}`) NOT ENFORCED or none",
                    key.name, key.name
                ),
            ));
        }
        Ok(Self {
            key,
            families,
            columns: table.columns.len(),
        })
    }

    /// For a sink: a row without a family has nothing to write.
    pub(super) fn check_writable(&self) -> Result<(), ConfigError> {
        if self.families.is_empty() {
            return Err(ConfigError::column(
                &self.key.name,
                "it is the only column, and a row key alone cannot be written; declare a family, a column of type ROW",
            ));
        }
        Ok(())
    }
}

fn family(
    column: usize,
    name: &str,
    nullable: bool,
    fields: &[aqueduct_connector::types::Field],
) -> Result<Family, ConfigError> {
    if name.contains(':') {
        return Err(ConfigError::column(
            name,
            "a family's name has no ':'; that separates family and qualifier in other tools",
        ));
    }
    if fields.is_empty() {
        return Err(ConfigError::column(
            name,
            "a family without columns can neither be read nor written",
        ));
    }
    let qualifiers = fields.iter().map(|field| {
        Ok(Qualifier {
            codec: Codec::of(&field.ty, &format!("{name}.{}", field.name))?,
            name: field.name.clone(),
            nullable: field.ty.nullable,
        })
    });
    Ok(Family {
        column,
        name: name.to_owned(),
        nullable,
        qualifiers: qualifiers.collect::<Result<_, ConfigError>>()?,
    })
}
