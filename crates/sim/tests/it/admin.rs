//! Table administration and profiles.

use admin::{
    app_profile::RoutingPolicy,
    drop_row_range_request::Target,
    gc_rule::Rule,
    modify_column_families_request::{Modification, modification::Mod},
};
use aqueduct_sim::{Limits, Profile, SimConfig};
use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;
use tonic::Code;

use crate::support::*;

fn family(rule: Option<Rule>) -> admin::ColumnFamily {
    let gc_rule = rule.map(|rule| admin::GcRule { rule: Some(rule) });
    admin::ColumnFamily {
        gc_rule,
        ..Default::default()
    }
}

fn create(id: &str, families: &[(&str, admin::ColumnFamily)]) -> admin::CreateTableRequest {
    let column_families = families
        .iter()
        .map(|(name, family)| ((*name).to_owned(), family.clone()))
        .collect();
    admin::CreateTableRequest {
        parent: INSTANCE.to_owned(),
        table_id: id.to_owned(),
        table: Some(admin::Table {
            column_families,
            ..Default::default()
        }),
        initial_splits: Vec::new(),
    }
}

fn modify(name: &str, changes: Vec<(&str, Mod)>) -> admin::ModifyColumnFamiliesRequest {
    let modifications = changes
        .into_iter()
        .map(|(id, change)| Modification {
            id: id.to_owned(),
            r#mod: Some(change),
            ..Default::default()
        })
        .collect();
    admin::ModifyColumnFamiliesRequest {
        name: name.to_owned(),
        modifications,
        ..Default::default()
    }
}

fn named(id: &str) -> String {
    format!("{INSTANCE}/tables/{id}")
}

#[tokio::test]
async fn a_table_is_created_once_described_and_deleted() {
    let sim = start().await;
    let mut client = tables(&sim);
    let rule = family(Some(Rule::MaxNumVersions(3)));
    let mut request = create("t", &[("cf", rule.clone())]);
    request.initial_splits = [b"g", b"p"]
        .map(|key| admin::create_table_request::Split {
            key: key.to_vec().into(),
        })
        .to_vec();
    let created = soon(client.create_table(request.clone()))
        .await
        .expect("created")
        .into_inner();
    assert_eq!(created.name, named("t"));
    let status = soon(client.create_table(request)).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists);
    let get = |name| admin::GetTableRequest { name, view: 0 };
    let table = soon(client.get_table(get(named("t"))))
        .await
        .expect("described")
        .into_inner();
    assert_eq!(
        table.column_families["cf"], rule,
        "a rule is returned as it was given"
    );
    let handle = sim.bigtable().table("p", "i", "t");
    assert_eq!(handle.tablet_boundaries(), [b"g".to_vec(), b"p".to_vec()]);
    soon(client.delete_table(admin::DeleteTableRequest { name: named("t") }))
        .await
        .expect("deleted");
    let status = soon(client.get_table(get(named("t")))).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert!(!handle.exists());
}

#[tokio::test]
async fn bad_names_are_refused() {
    let sim = start().await;
    let mut client = tables(&sim);
    let long = "f".repeat(65);
    for request in [
        create("", &[]),
        create("a/b", &[]),
        create("t", &[("no spaces", family(None))]),
        create("t", &[(&long, family(None))]),
        admin::CreateTableRequest {
            parent: "projects/p".to_owned(),
            ..create("t", &[])
        },
    ] {
        let status = soon(client.create_table(request)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
    }
    soon(client.create_table(create("t", &[(&long[..64], family(None))])))
        .await
        .expect("legal");
}

#[tokio::test]
async fn tables_are_listed_in_pages_up_to_the_limit() {
    let limits = Limits {
        tables_per_instance: 5,
        ..Limits::default()
    };
    let sim = start_with(SimConfig {
        limits,
        ..SimConfig::default()
    })
    .await;
    let mut client = tables(&sim);
    for id in ["e", "d", "c", "b", "a"] {
        soon(client.create_table(create(id, &[])))
            .await
            .expect("created");
    }
    let status = soon(client.create_table(create("f", &[])))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let mut names = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = admin::ListTablesRequest {
            parent: INSTANCE.to_owned(),
            page_size: 2,
            page_token,
            ..Default::default()
        };
        let page = soon(client.list_tables(request))
            .await
            .expect("listed")
            .into_inner();
        assert!(page.tables.len() <= 2);
        names.extend(page.tables.into_iter().map(|table| table.name));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(names, ["a", "b", "c", "d", "e"].map(named));
}

#[tokio::test]
async fn families_change_all_together_or_not_at_all() {
    let sim = start().await;
    let table = table(&sim);
    let mut client = tables(&sim);
    codes(&mut data(&sim), table.name(), cells(&["a"])).await;
    for (changes, code) in [
        (
            vec![
                ("new", Mod::Create(family(None))),
                ("cf", Mod::Create(family(None))),
            ],
            Code::AlreadyExists,
        ),
        (
            vec![
                ("new", Mod::Create(family(None))),
                ("nope", Mod::Drop(true)),
            ],
            Code::NotFound,
        ),
        (vec![("nope", Mod::Update(family(None)))], Code::NotFound),
        (
            vec![("bad name", Mod::Create(family(None)))],
            Code::InvalidArgument,
        ),
    ] {
        let request = modify(table.name(), changes);
        let status = soon(client.modify_column_families(request))
            .await
            .unwrap_err();
        assert_eq!(status.code(), code);
        assert_eq!(table.families(), ["cf"]);
    }
    let rule = family(Some(Rule::MaxNumVersions(1)));
    let changes = vec![
        ("new", Mod::Create(family(None))),
        ("new", Mod::Update(rule.clone())),
        ("cf", Mod::Drop(true)),
    ];
    let request = modify(table.name(), changes);
    let changed = soon(client.modify_column_families(request))
        .await
        .expect("changed");
    assert_eq!(changed.into_inner().column_families["new"], rule);
    assert_eq!(table.families(), ["new"]);
    assert_eq!(
        table.row_count(),
        0,
        "the cells of a dropped family are gone"
    );
}

#[tokio::test]
async fn rows_are_dropped_by_prefix_or_all() {
    let sim = start().await;
    let table = table(&sim);
    let mut client = tables(&sim);
    codes(&mut data(&sim), table.name(), cells(&["a1", "a2", "b1"])).await;
    let drop = |target| admin::DropRowRangeRequest {
        name: table.name().to_owned(),
        target,
    };
    for target in [None, Some(Target::RowKeyPrefix("".into()))] {
        let status = soon(client.drop_row_range(drop(target))).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
    }
    soon(client.drop_row_range(drop(Some(Target::RowKeyPrefix("a".into())))))
        .await
        .expect("done");
    assert_eq!(table.row_count(), 1);
    soon(client.drop_row_range(drop(Some(Target::DeleteAllDataFromTable(true)))))
        .await
        .expect("done");
    assert_eq!(table.row_count(), 0);
}

#[tokio::test]
async fn garbage_is_collected_on_demand() {
    let sim = start().await;
    let mut client = tables(&sim);
    let request = create("t", &[("cf", family(Some(Rule::MaxNumVersions(1))))]);
    soon(client.create_table(request)).await.expect("created");
    let table = sim.bigtable().table("p", "i", "t");
    let versions = entry(
        "r",
        vec![set("cf", "q", 1_000, "old"), set("cf", "q", 2_000, "new")],
    );
    codes(&mut data(&sim), table.name(), vec![versions]).await;
    assert_eq!(
        table.row(b"r").expect("written").cells.len(),
        2,
        "not before it is asked for"
    );
    table.collect_garbage();
    assert_eq!(table.row(b"r").expect("still there").cells[0].value, b"new");
    assert_eq!(table.row(b"r").expect("still there").cells.len(), 1);
}

#[tokio::test]
async fn profiles_are_described() {
    let sim = start().await;
    sim.bigtable()
        .declare_app_profile("p", "i", "multi", Profile::MultiCluster);
    let mut client = instances(&sim);
    let get = |id: &str| admin::GetAppProfileRequest {
        name: format!("{INSTANCE}/appProfiles/{id}"),
    };
    let multi = soon(client.get_app_profile(get("multi")))
        .await
        .expect("described")
        .into_inner();
    assert!(matches!(
        multi.routing_policy,
        Some(RoutingPolicy::MultiClusterRoutingUseAny(_))
    ));
    let default = soon(client.get_app_profile(get("default")))
        .await
        .expect("described")
        .into_inner();
    let Some(RoutingPolicy::SingleClusterRouting(single)) = default.routing_policy else {
        panic!("the default routes to one cluster");
    };
    assert!(single.allow_transactional_writes && !single.cluster_id.is_empty());
    let status = soon(client.get_app_profile(get("nope"))).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}
