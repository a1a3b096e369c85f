//! Table addresses.

use std::fmt;
use std::sync::Arc;

use aqueduct_connector::options::{ConfigError, Default, TextOpt};

/// The Google Cloud project.
pub const PROJECT: TextOpt =
    TextOpt::new("project", "The Google Cloud project, by id.").default(Default::Required);
/// The Bigtable instance.
pub const INSTANCE: TextOpt =
    TextOpt::new("instance", "The Bigtable instance, by plain name.").default(Default::Required);
/// The table.
pub const TABLE: TextOpt =
    TextOpt::new("table", "The table, by plain name.").default(Default::Required);

/// A table's address, compared by value and cheap to clone.
///
/// The application profile is no part of it: it chooses a path to the data and is an option of sinks and sources.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableDestination(Arc<Parts>);

#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Parts {
    project: Box<str>,
    instance: Box<str>,
    table: Box<str>,
}

impl TableDestination {
    /// The table `table` of `instance` in `project`, each by plain name.
    ///
    /// # Errors
    ///
    /// If a component is blank, contains `/` or has white space at an edge.
    pub fn of(project: &str, instance: &str, table: &str) -> Result<Self, ConfigError> {
        Ok(Self(Arc::new(Parts {
            project: PROJECT.check_component(project)?.into(),
            instance: INSTANCE.check_component(instance)?.into(),
            table: TABLE.check_component(table)?.into(),
        })))
    }

    /// The project's id.
    #[must_use]
    pub fn project(&self) -> &str {
        &self.0.project
    }

    /// The instance's name.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.0.instance
    }

    /// The table's name.
    #[must_use]
    pub fn table(&self) -> &str {
        &self.0.table
    }

    /// `projects/P/instances/I`.
    #[must_use]
    pub fn instance_path(&self) -> String {
        format!("projects/{}/instances/{}", self.0.project, self.0.instance)
    }

    /// `projects/P/instances/I/tables/T`.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}/tables/{}", self.instance_path(), self.0.table)
    }
}

impl fmt::Display for TableDestination {
    /// `project.instance.table`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0.project, self.0.instance, self.0.table)
    }
}

impl fmt::Debug for TableDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_that_would_name_another_resource_is_refused_by_its_option() {
        assert!(TableDestination::of("p", "i", "t").is_ok());
        for (parts, option) in [
            (["a/b", "i", "t"], "project"),
            (["p", " i", "t"], "instance"),
            (["p", "i", ""], "table"),
        ] {
            let error = TableDestination::of(parts[0], parts[1], parts[2])
                .unwrap_err()
                .to_string();
            assert!(error.contains(option), "{error}");
        }
    }

    #[test]
    fn addresses_compare_by_value_and_print_both_ways() {
        let one = TableDestination::of("p", "i", "t").expect("valid");
        assert_eq!(one, TableDestination::of("p", "i", "t").expect("valid"));
        assert_eq!(one.to_string(), "p.i.t");
        assert_eq!(one.path(), "projects/p/instances/i/tables/t");
    }
}
