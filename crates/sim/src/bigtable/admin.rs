//! Table administration, and the profiles of instance administration.

use std::collections::{HashMap, HashSet};

use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;
use tonic::Code;

use super::{
    Reply,
    chunks::frame,
    slot::Directory,
    store::{Refusal, TableState, Visible},
};
use crate::config::SimConfig;

fn reply(message: &impl prost::Message) -> Reply {
    Reply::Messages(vec![frame(message)])
}

/// `()` is the empty message.
fn empty() -> Reply {
    reply(&())
}

fn absent(name: &str) -> Refusal {
    Refusal::new(Code::NotFound, format!("Table not found: {name}"))
}

/// Whether `name` is `projects/…/instances/…`.
fn check_instance(name: &str) -> Result<(), Refusal> {
    let parts: Vec<&str> = name.split('/').collect();
    match *parts {
        ["projects", project, "instances", instance]
            if !project.is_empty() && !instance.is_empty() =>
        {
            Ok(())
        }
        _ => Err(Refusal::invalid(format!("Invalid instance name: {name}"))),
    }
}

fn check_family_name(name: &str) -> Result<(), Refusal> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > 64 || !name.bytes().all(legal) {
        return Err(Refusal::invalid(format!(
            "Invalid column family name {name:?}: up to 64 characters of [-_.a-zA-Z0-9]"
        )));
    }
    Ok(())
}

pub(crate) fn create_table(
    directory: &Directory,
    config: &SimConfig,
    request: admin::CreateTableRequest,
) -> Result<Reply, Refusal> {
    check_instance(&request.parent)?;
    let id = &request.table_id;
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if id.is_empty() || id.len() > 50 || !id.bytes().all(legal) {
        return Err(Refusal::invalid(format!("Invalid table id {id:?}")));
    }
    let name = format!("{}/tables/{id}", request.parent);
    let declared = request.table.unwrap_or_default();
    let lag = config.schema_lag;
    let mut state = TableState::new(
        request
            .initial_splits
            .iter()
            .map(|split| split.key.as_ref().into()),
    );
    state.visible = Visible::after(lag);
    let mut families: Vec<_> = declared.column_families.into_iter().collect();
    families.sort_by(|a, b| a.0.cmp(&b.0));
    for (family, definition) in families {
        check_family_name(&family)?;
        // Visible with the table.
        state.add_family(&family, definition, Visible::Now);
    }
    let slot = directory.slot(&name);
    if slot.siblings() >= config.limits.tables_per_instance && !slot.exists() {
        return Err(Refusal::new(
            Code::ResourceExhausted,
            format!(
                "Instance holds {} tables, the limit",
                config.limits.tables_per_instance
            ),
        ));
    }
    if !slot.create(state) {
        return Err(Refusal::new(
            Code::AlreadyExists,
            format!("Table already exists: {name}"),
        ));
    }
    describe(directory, &name, View::Schema).map(|table| reply(&table))
}

enum View {
    Name,
    Schema,
    Full,
}

impl View {
    fn of(view: i32, default: Self) -> Self {
        use admin::table::View as V;
        match V::try_from(view) {
            Ok(V::NameOnly) => Self::Name,
            Ok(V::SchemaView) => Self::Schema,
            Ok(V::Full | V::ReplicationView | V::EncryptionView) => Self::Full,
            _ => default,
        }
    }
}

fn describe(directory: &Directory, name: &str, view: View) -> Result<admin::Table, Refusal> {
    let slot = directory.find(name).ok_or_else(|| absent(name))?;
    let mut locked = slot.lock();
    let state = locked.existing().ok_or_else(|| absent(name))?;
    let mut table = admin::Table {
        name: name.to_owned(),
        ..Default::default()
    };
    if !matches!(view, View::Name) {
        table.granularity = admin::table::TimestampGranularity::Millis.into();
        table.column_families = state
            .families()
            .map(|family| (family.name.to_string(), family.proto.clone()))
            .collect::<HashMap<_, _>>();
    }
    if matches!(view, View::Full) {
        let ready = admin::table::ClusterState {
            replication_state: admin::table::cluster_state::ReplicationState::Ready.into(),
            encryption_info: Vec::new(),
        };
        table.cluster_states = HashMap::from([("c1".to_owned(), ready)]);
    }
    Ok(table)
}

pub(crate) fn get_table(
    directory: &Directory,
    request: &admin::GetTableRequest,
) -> Result<Reply, Refusal> {
    describe(
        directory,
        &request.name,
        View::of(request.view, View::Schema),
    )
    .map(|table| reply(&table))
}

pub(crate) fn list_tables(
    directory: &Directory,
    request: &admin::ListTablesRequest,
) -> Result<Reply, Refusal> {
    check_instance(&request.parent)?;
    let size = match usize::try_from(request.page_size) {
        Ok(0) => usize::MAX,
        Ok(size) => size,
        Err(_) => return Err(Refusal::invalid("page_size must not be negative")),
    };
    // The token is the last name of the page before.
    let mut names: Vec<String> = directory
        .tables_of(&request.parent)
        .iter()
        .map(|slot| slot.name.clone())
        .filter(|name| *name > request.page_token)
        .collect();
    let more = names.len() > size;
    names.truncate(size);
    let next_page_token = if more {
        names.last().cloned().unwrap_or_default()
    } else {
        String::new()
    };
    let tables = names
        .iter()
        // A table deleted meanwhile is not listed.
        .filter_map(|name| describe(directory, name, View::of(request.view, View::Name)).ok())
        .collect();
    Ok(reply(&admin::ListTablesResponse {
        tables,
        next_page_token,
    }))
}

pub(crate) fn delete_table(
    directory: &Directory,
    request: &admin::DeleteTableRequest,
) -> Result<Reply, Refusal> {
    match directory.find(&request.name) {
        Some(slot) if slot.delete() => Ok(empty()),
        _ => Err(absent(&request.name)),
    }
}

pub(crate) fn modify_column_families(
    directory: &Directory,
    config: &SimConfig,
    request: &admin::ModifyColumnFamiliesRequest,
) -> Result<Reply, Refusal> {
    use admin::modify_column_families_request::modification::Mod;
    let slot = directory
        .find(&request.name)
        .ok_or_else(|| absent(&request.name))?;
    {
        let mut locked = slot.lock();
        let state = locked.existing().ok_or_else(|| absent(&request.name))?;
        // All or nothing: judged on names first, then carried out.
        let mut names: HashSet<String> = state
            .families()
            .map(|family| family.name.to_string())
            .collect();
        for change in &request.modifications {
            let id = &change.id;
            match &change.r#mod {
                None => return Err(Refusal::invalid("Modification has no operation")),
                Some(Mod::Create(_)) => {
                    check_family_name(id)?;
                    if !names.insert(id.clone()) {
                        return Err(Refusal::new(
                            Code::AlreadyExists,
                            format!("Column family already exists: {id}"),
                        ));
                    }
                }
                Some(Mod::Update(_)) if names.contains(id) => {}
                Some(Mod::Drop(true)) if names.remove(id) => {}
                Some(Mod::Drop(false)) => return Err(Refusal::invalid("drop must be true")),
                Some(Mod::Update(_) | Mod::Drop(true)) => {
                    return Err(Refusal::new(
                        Code::NotFound,
                        format!("Column family not found: {id}"),
                    ));
                }
            }
        }
        for change in &request.modifications {
            match &change.r#mod {
                Some(Mod::Create(family)) => {
                    let visible = Visible::after(config.schema_lag);
                    state.add_family(&change.id, family.clone(), visible);
                }
                Some(Mod::Update(family)) => {
                    state.update_family(&change.id, family);
                }
                Some(Mod::Drop(_)) => {
                    state.drop_family(&change.id);
                }
                None => {}
            }
        }
    }
    describe(directory, &request.name, View::Schema).map(|table| reply(&table))
}

pub(crate) fn drop_row_range(
    directory: &Directory,
    request: &admin::DropRowRangeRequest,
) -> Result<Reply, Refusal> {
    use admin::drop_row_range_request::Target;
    let slot = directory
        .find(&request.name)
        .ok_or_else(|| absent(&request.name))?;
    let mut locked = slot.lock();
    let state = locked.existing().ok_or_else(|| absent(&request.name))?;
    match &request.target {
        Some(Target::RowKeyPrefix(prefix)) if !prefix.is_empty() => state.drop_rows(prefix),
        Some(Target::DeleteAllDataFromTable(true)) => state.drop_rows(&[]),
        _ => {
            return Err(Refusal::invalid(
                "Either a row key prefix or all data must be named",
            ));
        }
    }
    Ok(empty())
}
