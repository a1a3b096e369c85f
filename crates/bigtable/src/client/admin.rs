//! Table administration: creates what a repair finds missing, and nothing else (BT-SINK-12).
//!
//! # Invariants
//!
//! - An existing table or family is neither compared nor changed, garbage-collection rules included.
//! - No retry here: the repair's budget is the only one. Each call has a deadline of 60 s.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_cloud::{CallError, CallSpec, ChannelPool, RoutingHeader};
use aqueduct_connector::options::ConfigError;
use aqueduct_connector::{Code, Error, Result};
use futures::future::LocalBoxFuture;
use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2;
use v2::modify_column_families_request::{Modification, modification::Mod};

use crate::destination::TableDestination;
use crate::options::TABLE_CREATE_OPTIONS;

pub(crate) const ADMIN_HOST: &str = "bigtableadmin.googleapis.com";
const CREATE_TABLE: &str = "/google.bigtable.admin.v2.BigtableTableAdmin/CreateTable";
const GET_TABLE: &str = "/google.bigtable.admin.v2.BigtableTableAdmin/GetTable";
const MODIFY_FAMILIES: &str = "/google.bigtable.admin.v2.BigtableTableAdmin/ModifyColumnFamilies";
const TIMEOUT: Duration = Duration::from_secs(60);

/// When the service may collect cells of a family. Checked when the sink is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcRule(Rule);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Versions(NonZeroU32),
    Age(Duration),
    Union(Vec<GcRule>),
    Intersection(Vec<GcRule>),
}

impl GcRule {
    /// Collects all but the newest `versions` cells of a column.
    #[must_use]
    pub fn max_versions(versions: NonZeroU32) -> Self {
        Self(Rule::Versions(versions))
    }

    /// Collects cells older than `age`, which is above zero.
    #[must_use]
    pub fn max_age(age: Duration) -> Self {
        Self(Rule::Age(age))
    }

    /// Collects what any of at least two rules collects.
    #[must_use]
    pub fn union(rules: impl IntoIterator<Item = Self>) -> Self {
        Self(Rule::Union(rules.into_iter().collect()))
    }

    /// Collects what all of at least two rules collect.
    #[must_use]
    pub fn intersection(rules: impl IntoIterator<Item = Self>) -> Self {
        Self(Rule::Intersection(rules.into_iter().collect()))
    }

    fn check(&self) -> Result<(), ConfigError> {
        let refuse = |reason: &str| Err(ConfigError::invalid(TABLE_CREATE_OPTIONS.key(), reason));
        match &self.0 {
            Rule::Versions(versions) if i32::try_from(versions.get()).is_err() => {
                refuse("max-versions is above 2,147,483,647")
            }
            Rule::Versions(_) => Ok(()),
            Rule::Age(age) if age.is_zero() => refuse("max-age must be above zero"),
            Rule::Age(age) if i64::try_from(age.as_nanos()).is_err() => {
                refuse("max-age is longer than about 292 years")
            }
            Rule::Age(_) => Ok(()),
            Rule::Union(rules) | Rule::Intersection(rules) if rules.len() < 2 => {
                refuse("a union or an intersection needs at least two rules")
            }
            Rule::Union(rules) | Rule::Intersection(rules) => {
                rules.iter().try_for_each(Self::check)
            }
        }
    }

    fn to_wire(&self) -> v2::GcRule {
        use v2::gc_rule;
        let rules = |rules: &[Self]| rules.iter().map(Self::to_wire).collect();
        v2::GcRule {
            rule: Some(match &self.0 {
                Rule::Versions(versions) => {
                    gc_rule::Rule::MaxNumVersions(i32::try_from(versions.get()).unwrap_or(i32::MAX))
                }
                Rule::Age(age) => gc_rule::Rule::MaxAge(prost_types::Duration {
                    seconds: i64::try_from(age.as_secs()).unwrap_or(i64::MAX),
                    nanos: age.subsec_nanos().cast_signed(),
                }),
                Rule::Union(parts) => gc_rule::Rule::Union(gc_rule::Union {
                    rules: rules(parts),
                }),
                Rule::Intersection(parts) => gc_rule::Rule::Intersection(gc_rule::Intersection {
                    rules: rules(parts),
                }),
            }),
        }
    }
}

/// The schema that auto-creation may create: column families and their garbage-collection rules, one schema for every
/// table that a resolver names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableCreateOptions {
    families: Vec<(String, Option<GcRule>)>,
}

impl TableCreateOptions {
    /// No family yet; at least one is needed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares a family. Without a rule the service collects nothing; a name given again replaces the earlier one.
    #[must_use]
    pub fn column_family(
        mut self,
        name: impl Into<String>,
        rule: impl Into<Option<GcRule>>,
    ) -> Self {
        let (name, rule) = (name.into(), rule.into());
        match self.families.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = rule,
            None => self.families.push((name, rule)),
        }
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.families.is_empty() {
            return Err(ConfigError::invalid(
                TABLE_CREATE_OPTIONS.key(),
                "declare at least one column family; a table without one refuses every write",
            ));
        }
        for (name, rule) in &self.families {
            TABLE_CREATE_OPTIONS.check(name)?;
            rule.as_ref().map_or(Ok(()), GcRule::check)?;
        }
        Ok(())
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        self.families.iter().map(|(name, _)| name)
    }

    fn family(rule: Option<&GcRule>) -> v2::ColumnFamily {
        v2::ColumnFamily {
            gc_rule: rule.map(GcRule::to_wire),
            value_type: None,
        }
    }
}

/// What an ensure found and did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ensured {
    /// Whether the table was created.
    pub(crate) created: bool,
    /// Families added to an existing table.
    pub(crate) added: Vec<String>,
    /// Families that the table has now.
    pub(crate) families: HashSet<String>,
}

/// Creates tables and families.
pub(crate) trait AdminClient {
    /// Makes sure that `table` exists and has the declared families.
    fn ensure(
        &self,
        table: TableDestination,
        schema: Arc<TableCreateOptions>,
    ) -> LocalBoxFuture<'static, Result<Ensured>>;
}

/// The service's administration.
pub(crate) struct PoolAdmin(ChannelPool);

impl PoolAdmin {
    pub(crate) fn new(pool: ChannelPool) -> Self {
        Self(pool)
    }
}

impl AdminClient for PoolAdmin {
    fn ensure(
        &self,
        table: TableDestination,
        schema: Arc<TableCreateOptions>,
    ) -> LocalBoxFuture<'static, Result<Ensured>> {
        let pool = self.0.clone();
        Box::pin(async move {
            ensure(&pool, &table, &schema).await.map_err(|(step, error)| {
                let hint = match error.code() {
                    Code::PermissionDenied => {
                        "; auto-creation needs bigtable.tables.create and bigtable.tables.update \
                         (roles/bigtable.admin has both)"
                    }
                    Code::NotFound => "; instances are never created, so the instance must exist",
                    _ => "",
                };
                Error::io(format!("{step} Bigtable table {table} failed{hint}"))
                    .with_source(error.into_statuses())
            })
        })
    }
}

async fn ensure(
    pool: &ChannelPool,
    table: &TableDestination,
    schema: &TableCreateOptions,
) -> Result<Ensured, (&'static str, CallError)> {
    const CREATING: &str = "creating";
    const READING: &str = "reading the column families of";
    const ADDING: &str = "adding column families to";

    let create = v2::CreateTableRequest {
        parent: table.instance_path(),
        table_id: table.table().to_owned(),
        table: Some(v2::Table {
            column_families: schema
                .families
                .iter()
                .map(|(name, rule)| (name.clone(), TableCreateOptions::family(rule.as_ref())))
                .collect(),
            ..v2::Table::default()
        }),
        initial_splits: Vec::new(),
    };
    match pool
        .unary::<_, v2::Table>(&spec(CREATE_TABLE, "parent", &create.parent), &create)
        .await
    {
        Ok(_) => {
            return Ok(Ensured {
                created: true,
                added: Vec::new(),
                families: schema.names().cloned().collect(),
            });
        }
        Err(error) if error.code() == Code::AlreadyExists => {}
        Err(error) => return Err((CREATING, error)),
    }
    let name = table.path();
    let mut rounds_left = schema.families.len();
    loop {
        let get = v2::GetTableRequest {
            name: name.clone(),
            view: v2::table::View::SchemaView as i32,
        };
        let found: v2::Table = pool
            .unary(&spec(GET_TABLE, "name", &name), &get)
            .await
            .map_err(|error| (READING, error))?;
        let mut families: HashSet<String> = found.column_families.into_keys().collect();
        let absent: Vec<_> = schema
            .families
            .iter()
            .filter(|(family, _)| !families.contains(family))
            .collect();
        if absent.is_empty() {
            return Ok(Ensured {
                created: false,
                added: Vec::new(),
                families,
            });
        }
        let modify = v2::ModifyColumnFamiliesRequest {
            name: name.clone(),
            modifications: absent
                .iter()
                .map(|(family, rule)| Modification {
                    id: family.clone(),
                    update_mask: None,
                    r#mod: Some(Mod::Create(TableCreateOptions::family(rule.as_ref()))),
                })
                .collect(),
            ignore_warnings: false,
        };
        match pool
            .unary::<_, v2::Table>(&spec(MODIFY_FAMILIES, "name", &name), &modify)
            .await
        {
            Ok(_) => {
                let added: Vec<_> = absent
                    .into_iter()
                    .map(|(family, _)| family.clone())
                    .collect();
                families.extend(added.iter().cloned());
                return Ok(Ensured {
                    created: false,
                    added,
                    families,
                });
            }
            // Another subtask added one in between: read again, at most once more a declared family.
            Err(error) if error.code() == Code::AlreadyExists && rounds_left > 0 => {
                rounds_left -= 1
            }
            Err(error) => return Err((ADDING, error)),
        }
    }
}

fn spec(path: &'static str, key: &str, resource: &str) -> CallSpec {
    CallSpec::new(path, TIMEOUT).routing(&RoutingHeader::new().param(key, resource))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_the_service_could_not_mean_is_refused_by_the_option() {
        let one = || GcRule::max_versions(NonZeroU32::MIN);
        for rule in [
            GcRule::max_age(Duration::ZERO),
            GcRule::max_age(Duration::MAX),
            GcRule::union([one()]),
            GcRule::intersection([]),
            GcRule::union([one(), GcRule::intersection([one()])]),
            GcRule::max_versions(NonZeroU32::MAX),
        ] {
            let error = TableCreateOptions::new()
                .column_family("cf", rule)
                .check()
                .expect_err("refused")
                .to_string();
            assert!(error.contains("sink.table-create"), "{error}");
        }
        assert!(TableCreateOptions::new().check().is_err(), "no family");
        assert!(
            TableCreateOptions::new()
                .column_family(" ", None)
                .check()
                .is_err()
        );
        assert!(
            TableCreateOptions::new()
                .column_family(
                    "cf",
                    GcRule::union([one(), GcRule::max_age(Duration::from_secs(1))])
                )
                .check()
                .is_ok()
        );
    }

    #[test]
    fn a_family_declared_again_keeps_its_last_rule() {
        let rule = GcRule::max_versions(NonZeroU32::MIN);
        let options = TableCreateOptions::new()
            .column_family("cf", None)
            .column_family("cf", rule.clone());
        assert_eq!(options.families, [("cf".to_owned(), Some(rule))]);
    }
}
