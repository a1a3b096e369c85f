//! How the service writes and refuses.

use aqueduct_sim::{
    Aggregate, Answers, EntryOrder, Limits, Method, Profile, RefusalForm, RoutingHeader, SchemaLag,
    SimConfig,
};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as pb;
use pb::{mutation::Mutation as M, read_modify_write_rule::Rule, value::Kind};
use tonic::{Code, client::Grpc};
use tonic_prost::ProstCodec;

use crate::support::*;

const GRANULARITY: &str =
    "Timestamp granularity mismatch. Expected a multiple of 1000 (millisecond granularity)";

/// BT-SIM-01, 02, 03: one bad entry refuses all, with the service's words.
#[tokio::test]
async fn one_bad_entry_refuses_every_entry_and_nothing_is_written() {
    let sim = start().await;
    let table = table(&sim);
    let mut client = data(&sim);
    let unaligned = entry("bad", vec![set("cf", "q", 1_001, "v")]);
    let keyless = cell("", "v");
    let familyless = entry("bad", vec![set("nope", "q", 1_000, "v")]);
    let hollow = entry("bad", vec![]);
    for (bad, code, text) in [
        (unaligned, Code::InvalidArgument, GRANULARITY),
        (keyless, Code::InvalidArgument, "Row keys must be non-empty"),
        (
            familyless,
            Code::NotFound,
            "Requested column family not found",
        ),
        (hollow, Code::InvalidArgument, "No mutations provided"),
    ] {
        let entries = vec![cell("a", "v"), bad, cell("b", "v")];
        let answers = mutate(&mut client, table.name(), entries)
            .await
            .expect("a stream");
        assert_eq!(answers.len(), 3, "{text}");
        for (_, answered, message) in answers {
            assert_eq!(answered, code);
            assert!(message.contains(text), "{message} contains {text}");
        }
        assert_eq!(table.row_count(), 0);
    }
    assert_eq!(table.refused_entries(), 12);
    assert_eq!(
        codes(&mut client, table.name(), cells(&["a"])).await,
        [Code::Ok]
    );
    assert_eq!(table.row_count(), 1);
}

#[tokio::test]
async fn many_answers_come_in_several_messages() {
    let sim = start().await;
    let table = table(&sim);
    let request = pb::MutateRowsRequest {
        table_name: table.name().to_owned(),
        entries: (0..2_500).map(|n| cell(&format!("r{n}"), "v")).collect(),
        ..Default::default()
    };
    let mut stream = soon(data(&sim).mutate_rows(request))
        .await
        .expect("served")
        .into_inner();
    let mut sizes = Vec::new();
    while let Some(message) = soon(stream.message()).await.expect("served") {
        sizes.push(message.entries.len());
    }
    assert_eq!(sizes, [1_000, 1_000, 500]);
}

#[tokio::test]
async fn a_whole_call_can_be_refused_instead() {
    let config = SimConfig {
        refusal_form: RefusalForm::WholeCall,
        ..SimConfig::default()
    };
    let sim = start_with(config).await;
    let table = table(&sim);
    let status = mutate(&mut data(&sim), table.name(), vec![cell("", "v")])
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

/// BT-SIM-04.
#[tokio::test]
async fn a_missing_table_is_not_found_with_another_text_on_an_empty_instance() {
    let sim = start().await;
    let mut client = data(&sim);
    let name = "projects/p/instances/i/tables/nope";
    let empty = mutate(&mut client, name, cells(&["a", "b"]))
        .await
        .expect("a stream");
    assert_eq!(empty.len(), 2);
    table(&sim);
    let other = mutate(&mut client, name, cells(&["a", "b"]))
        .await
        .expect("a stream");
    assert!(
        empty
            .iter()
            .chain(&other)
            .all(|answer| answer.1 == Code::NotFound)
    );
    assert_ne!(empty[0].2, other[0].2);
    let scanned = scan(&mut client, whole(name)).await;
    assert_eq!(scanned.end.unwrap_err().code(), Code::NotFound);
}

/// BT-SIM-09: `timestamp_origin` says whose stamp it is; only the sim's own request type has it.
#[tokio::test]
async fn an_unaligned_stamp_of_the_client_library_is_truncated() {
    let sim = start().await;
    let table = table(&sim);
    let request = |timestamp_origin| aqueduct_sim::MutateRowRequest {
        table_name: table.name().to_owned(),
        row_key: "r".into(),
        mutations: vec![aqueduct_sim::Mutation {
            mutation: set("cf", "q", 1_001_234, "v").mutation,
            timestamp_origin,
        }],
        app_profile_id: String::new(),
    };
    let mut grpc = Grpc::new(channel(&sim));
    for (origin, accepted) in [(0, false), (1, false), (2, true)] {
        soon(grpc.ready()).await.expect("it serves");
        let path = http::uri::PathAndQuery::from_static(Method::MutateRow.path());
        let codec = ProstCodec::<_, pb::MutateRowResponse>::default();
        let answer = soon(grpc.unary(tonic::Request::new(request(origin)), path, codec)).await;
        assert_eq!(answer.is_ok(), accepted, "origin {origin}");
    }
    assert_eq!(
        table.row(b"r").expect("written").cells[0].timestamp_micros,
        1_001_000
    );
}

/// BT-SIM-10.
#[tokio::test]
async fn an_entry_is_atomic() {
    let sim = start().await;
    let table = table(&sim);
    let request = pb::MutateRowRequest {
        table_name: table.name().to_owned(),
        row_key: "r".into(),
        mutations: vec![set("cf", "q", 1_000, "good"), set("cf", "q", 1, "bad")],
        ..Default::default()
    };
    let status = soon(data(&sim).mutate_row(request)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(table.row_count(), 0);
}

#[tokio::test]
async fn the_server_stamps_minus_one_and_one_request_shares_the_stamp() {
    let sim = start().await;
    let table = table(&sim);
    let entries = ["a", "b"]
        .map(|key| entry(key, vec![set("cf", "q", -1, "v")]))
        .to_vec();
    assert_eq!(
        codes(&mut data(&sim), table.name(), entries).await,
        [Code::Ok; 2]
    );
    let stamps: Vec<i64> = table
        .rows()
        .iter()
        .map(|row| row.cells[0].timestamp_micros)
        .collect();
    assert_eq!(stamps[0], stamps[1]);
    assert!(stamps[0] > 1_600_000_000_000_000 && stamps[0] % 1_000 == 0);
}

/// BT-SIM-14.
#[tokio::test]
async fn a_schema_change_over_rpc_is_seen_late() {
    use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;
    let config = SimConfig {
        schema_lag: SchemaLag::Refusals(2),
        ..SimConfig::default()
    };
    let sim = start_with(config).await;
    let (mut client, mut tables) = (data(&sim), tables(&sim));
    let family = || ("cf".to_owned(), admin::ColumnFamily::default());
    let request = admin::CreateTableRequest {
        parent: INSTANCE.to_owned(),
        table_id: "t".to_owned(),
        table: Some(admin::Table {
            column_families: [family()].into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    soon(tables.create_table(request)).await.expect("created");
    let name = format!("{INSTANCE}/tables/t");
    for expected in [Code::NotFound, Code::NotFound, Code::Ok, Code::Ok] {
        assert_eq!(codes(&mut client, &name, cells(&["a"])).await, [expected]);
    }
    let create = admin::modify_column_families_request::Modification {
        id: "late".to_owned(),
        r#mod: Some(
            admin::modify_column_families_request::modification::Mod::Create(
                admin::ColumnFamily::default(),
            ),
        ),
        ..Default::default()
    };
    let request = admin::ModifyColumnFamiliesRequest {
        name: name.clone(),
        modifications: vec![create],
        ..Default::default()
    };
    soon(tables.modify_column_families(request))
        .await
        .expect("modified");
    for expected in [Code::NotFound, Code::NotFound, Code::Ok] {
        let late = vec![entry("a", vec![set("late", "q", 1_000, "v")])];
        assert_eq!(codes(&mut client, &name, late).await, [expected]);
    }
}

/// BT-SIM-16.
#[tokio::test]
async fn entries_of_one_row_may_take_effect_in_reverse() {
    let sim = start().await;
    let table = table(&sim);
    let mut client = data(&sim);
    let value = || table.row(b"r").expect("written").cells[0].value.clone();
    let pair = || vec![cell("r", "first"), cell("r", "second")];
    assert_eq!(
        codes(&mut client, table.name(), pair()).await,
        [Code::Ok; 2]
    );
    assert_eq!(value(), b"second");
    table.set_entry_order(EntryOrder::Reversed);
    assert_eq!(
        codes(&mut client, table.name(), pair()).await,
        [Code::Ok; 2]
    );
    assert_eq!(value(), b"first");
    assert_eq!(table.effects(b"r"), 4);
}

#[tokio::test]
async fn answers_may_come_in_any_order_and_number_of_messages() {
    let sim = start().await;
    let table = table(&sim);
    let mut client = data(&sim);
    let keys: Vec<String> = (0..50).map(|n| format!("r{n:02}")).collect();
    let entries = || keys.iter().map(|key| cell(key, "v")).collect::<Vec<_>>();
    table.set_answers(Answers::Seeded(3));
    let answers = mutate(&mut client, table.name(), entries())
        .await
        .expect("a stream");
    let order: Vec<usize> = answers.iter().map(|answer| answer.0).collect();
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..50).collect::<Vec<_>>());
    assert_ne!(order, sorted);
    let again = mutate(&mut client, table.name(), entries())
        .await
        .expect("a stream");
    assert_ne!(again, answers, "requests differ");
    table.set_answers(Answers::Seeded(3));
    let repeated = mutate(&mut client, table.name(), entries())
        .await
        .expect("a stream");
    assert_eq!(repeated, answers, "a seed repeats");
}

/// BT-WIRE-06, 18: with limits low enough to meet.
#[tokio::test]
async fn limits_refuse_what_exceeds_them_and_accept_what_meets_them() {
    let limits = Limits {
        mutations_per_request: 3,
        row_key_bytes: 4,
        qualifier_bytes: 3,
        cell_bytes: 6,
        row_mutation_bytes: 8,
        ..Limits::default()
    };
    let sim = start_with(SimConfig {
        limits,
        ..SimConfig::default()
    })
    .await;
    let table = table(&sim);
    let mut client = data(&sim);
    let set = |qualifier: &str, value: &str| set("cf", qualifier, 1_000, value);
    for (entries, accepted) in [
        (cells(&["a", "b", "c"]), true),
        (cells(&["a", "b", "c", "d"]), false),
        (cells(&["four"]), true),
        (cells(&["five5"]), false),
        (vec![entry("r", vec![set("abc", "v")])], true),
        (vec![entry("r", vec![set("abcd", "v")])], false),
        (vec![entry("r", vec![set("q", "sixsix")])], true),
        (vec![entry("r", vec![set("q", "seven77")])], false),
        (
            vec![entry("r", vec![set("q", "four"), set("r", "four")])],
            true,
        ),
        (
            vec![entry("r", vec![set("q", "four"), set("r", "five5")])],
            false,
        ),
    ] {
        let expected = if accepted {
            Code::Ok
        } else {
            Code::InvalidArgument
        };
        let answered = codes(&mut client, table.name(), entries).await;
        assert!(
            answered.iter().all(|code| *code == expected),
            "{expected:?}: {answered:?}"
        );
    }
    let status = mutate(&mut client, table.name(), vec![]).await.unwrap_err();
    assert_eq!(
        status.code(),
        Code::InvalidArgument,
        "a request holds an entry"
    );
}

/// BT-WIRE-16.
#[tokio::test]
async fn deletes_take_ranges_columns_families_and_rows() {
    let sim = start().await;
    let table = table(&sim);
    table.add_family("other");
    let mut client = data(&sim);
    let left = || {
        let cells = table.row(b"r").map_or_else(Vec::new, |row| row.cells);
        cells
            .into_iter()
            .map(|cell| (cell.family, cell.timestamp_micros))
            .collect::<Vec<_>>()
    };
    let all = vec![
        set("cf", "q", 1_000, "v"),
        set("cf", "q", 2_000, "v"),
        set("cf", "q", 3_000, "v"),
        set("other", "q", 1_000, "v"),
    ];
    assert_eq!(
        codes(&mut client, table.name(), vec![entry("r", all)]).await,
        [Code::Ok]
    );
    let range = |start, end| {
        let range = pb::TimestampRange {
            start_timestamp_micros: start,
            end_timestamp_micros: end,
        };
        mutation(M::DeleteFromColumn(pb::mutation::DeleteFromColumn {
            family_name: "cf".into(),
            column_qualifier: "q".into(),
            time_range: Some(range),
        }))
    };
    for inverted in [range(2_000, 1_000), range(1_000, 1_000), range(1_001, 0)] {
        let answered = codes(&mut client, table.name(), vec![entry("r", vec![inverted])]).await;
        assert_eq!(answered, [Code::InvalidArgument]);
    }
    codes(
        &mut client,
        table.name(),
        vec![entry("r", vec![range(1_000, 2_000)])],
    )
    .await;
    assert_eq!(
        left(),
        [
            ("cf".into(), 3_000),
            ("cf".into(), 2_000),
            ("other".into(), 1_000)
        ],
        "the end is exclusive"
    );
    codes(
        &mut client,
        table.name(),
        vec![entry("r", vec![range(3_000, 0)])],
    )
    .await;
    assert_eq!(
        left(),
        [("cf".into(), 2_000), ("other".into(), 1_000)],
        "0 is no end"
    );
    let family = pb::mutation::DeleteFromFamily {
        family_name: "cf".into(),
    };
    let family = vec![entry("r", vec![mutation(M::DeleteFromFamily(family))])];
    codes(&mut client, table.name(), family).await;
    assert_eq!(left(), [("other".into(), 1_000)]);
    let row = vec![entry(
        "r",
        vec![mutation(M::DeleteFromRow(pb::mutation::DeleteFromRow {}))],
    )];
    codes(&mut client, table.name(), row).await;
    assert_eq!(table.row_count(), 0);
}

fn raw(value: Kind) -> Option<pb::Value> {
    Some(pb::Value {
        kind: Some(value),
        r#type: None,
    })
}

fn add(family: &str, value: i64) -> pb::Mutation {
    mutation(M::AddToCell(pb::mutation::AddToCell {
        family_name: family.into(),
        column_qualifier: raw(Kind::RawValue("q".into())),
        timestamp: raw(Kind::RawTimestampMicros(1_000)),
        input: raw(Kind::IntValue(value)),
    }))
}

/// BT-SIM-15, BT-WIRE-17: a replayed sum doubles, extremes do not.
#[tokio::test]
async fn a_replayed_sum_doubles_and_extremes_do_not() {
    let sim = start().await;
    let table = table(&sim);
    table.add_aggregate_family("sum", Aggregate::Sum);
    table.add_aggregate_family("min", Aggregate::Min);
    table.add_aggregate_family("max", Aggregate::Max);
    let mut client = data(&sim);
    let merge = mutation(M::MergeToCell(pb::mutation::MergeToCell {
        family_name: "sum".into(),
        column_qualifier: raw(Kind::RawValue("q".into())),
        timestamp: raw(Kind::RawTimestampMicros(1_000)),
        input: raw(Kind::RawValue(4_i64.to_be_bytes().to_vec().into())),
    }));
    let all = vec![add("sum", 7), merge, add("min", 7), add("max", 7)];
    for total in [11, 22] {
        let entries = vec![entry("r", all.clone())];
        assert_eq!(codes(&mut client, table.name(), entries).await, [Code::Ok]);
        let values: Vec<i64> = table.row(b"r").expect("written").cells[..]
            .iter()
            .map(|cell| i64::from_be_bytes(cell.value[..].try_into().expect("8 bytes")))
            .collect();
        assert_eq!(values, [total, 7, 7]);
    }
    for wrong in [add("cf", 1), set("sum", "q", 1_000, "v")] {
        let answered = codes(&mut client, table.name(), vec![entry("r", vec![wrong])]).await;
        assert_eq!(answered, [Code::InvalidArgument]);
    }
}

#[tokio::test]
async fn check_and_mutate_takes_the_branch_of_its_predicate() {
    let sim = start().await;
    let table = table(&sim);
    let mut client = data(&sim);
    let request = pb::CheckAndMutateRowRequest {
        table_name: table.name().to_owned(),
        row_key: "r".into(),
        true_mutations: vec![],
        false_mutations: vec![set("cf", "marker", 0, "1")],
        ..Default::default()
    };
    for matched in [false, true, true] {
        let answer = soon(client.check_and_mutate_row(request.clone()))
            .await
            .expect("served");
        assert_eq!(answer.into_inner().predicate_matched, matched);
    }
    assert_eq!(table.effects(b"r"), 1, "an empty branch has no effect");
    let filtered = pb::CheckAndMutateRowRequest {
        predicate_filter: Some(pb::RowFilter {
            filter: Some(pb::row_filter::Filter::ColumnQualifierRegexFilter(
                "absent".into(),
            )),
        }),
        ..request.clone()
    };
    let answer = soon(client.check_and_mutate_row(filtered))
        .await
        .expect("served");
    assert!(!answer.into_inner().predicate_matched);
    let neither = pb::CheckAndMutateRowRequest {
        false_mutations: vec![],
        ..request
    };
    let status = soon(client.check_and_mutate_row(neither))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn read_modify_write_appends_increments_and_returns_what_changed() {
    let sim = start().await;
    let table = table(&sim);
    let mut client = data(&sim);
    let rule = |qualifier: &'static str, rule| pb::ReadModifyWriteRule {
        family_name: "cf".into(),
        column_qualifier: qualifier.into(),
        rule: Some(rule),
    };
    let request = |rules| pb::ReadModifyWriteRowRequest {
        table_name: table.name().to_owned(),
        row_key: "r".into(),
        rules,
        ..Default::default()
    };
    let future = 9_000_000_000_000_000;
    codes(
        &mut client,
        table.name(),
        vec![entry("r", vec![set("cf", "text", future, "a")])],
    )
    .await;
    let rules = vec![
        rule("text", Rule::AppendValue("b".into())),
        rule("count", Rule::IncrementAmount(5)),
        rule("count", Rule::IncrementAmount(-2)),
    ];
    let answer = soon(client.read_modify_write_row(request(rules)))
        .await
        .expect("served");
    let columns = &answer.into_inner().row.expect("a row").families[0].columns;
    assert_eq!(columns.len(), 2);
    assert_eq!(columns[0].cells[0].value, 3_i64.to_be_bytes().to_vec());
    assert_eq!(columns[1].cells[0].value, "ab");
    assert_eq!(
        columns[1].cells[0].timestamp_micros, future,
        "never older than the newest"
    );
    let status = soon(client.read_modify_write_row(request(vec![
        rule("count", Rule::IncrementAmount(1)),
        rule("text", Rule::IncrementAmount(1)),
    ])))
    .await
    .unwrap_err();
    assert_eq!(
        status.code(),
        Code::FailedPrecondition,
        "a text is no counter"
    );
    let count = &table.row(b"r").expect("written").cells[0];
    assert_eq!(
        count.value,
        3_i64.to_be_bytes(),
        "a failed request changes nothing"
    );
}

/// BT-SIM-06, 15, BT-WIRE-17.
#[tokio::test]
async fn application_profiles_are_enforced_once_declared() {
    let sim = start().await;
    let table = table(&sim);
    let mut client = data(&sim);
    let write = |profile: &str| pb::MutateRowRequest {
        table_name: table.name().to_owned(),
        app_profile_id: profile.to_owned(),
        row_key: "r".into(),
        mutations: vec![set("cf", "q", 1_000, "v")],
        ..Default::default()
    };
    let increment = |profile: &str| pb::ReadModifyWriteRowRequest {
        table_name: table.name().to_owned(),
        app_profile_id: profile.to_owned(),
        row_key: "r".into(),
        rules: vec![pb::ReadModifyWriteRule {
            family_name: "cf".into(),
            column_qualifier: "n".into(),
            rule: Some(Rule::IncrementAmount(1)),
        }],
        ..Default::default()
    };
    soon(client.mutate_row(write("any")))
        .await
        .expect("nothing is declared yet");
    let bigtable = sim.bigtable();
    bigtable.declare_app_profile("p", "i", "single", Profile::SingleCluster);
    bigtable.declare_app_profile("p", "i", "multi", Profile::MultiCluster);
    bigtable.declare_app_profile("p", "i", "boost", Profile::DataBoost);
    let code = |status: Result<_, tonic::Status>| status.err().map(|status| status.code());
    for (profile, writes, transacts, reads) in [
        ("", None, None, None),
        ("single", None, None, None),
        ("multi", None, Some(Code::FailedPrecondition), None),
        (
            "boost",
            Some(Code::FailedPrecondition),
            Some(Code::FailedPrecondition),
            None,
        ),
        (
            "any",
            Some(Code::NotFound),
            Some(Code::NotFound),
            Some(Code::NotFound),
        ),
    ] {
        let wrote = soon(client.mutate_row(write(profile))).await.map(|_| ());
        assert_eq!(code(wrote), writes, "{profile} writes");
        let transacted = soon(client.read_modify_write_row(increment(profile)))
            .await
            .map(|_| ());
        assert_eq!(code(transacted), transacts, "{profile} transacts");
        let request = pb::ReadRowsRequest {
            app_profile_id: profile.to_owned(),
            ..whole(table.name())
        };
        assert_eq!(
            code(scan(&mut client, request).await.end),
            reads,
            "{profile} reads"
        );
    }
}

#[tokio::test]
async fn a_poisoned_entry_refuses_its_request_whole() {
    let sim = start().await;
    let table = table(&sim);
    let mut client = data(&sim);
    table.poison(|entry| entry.row_key.starts_with(b"bad"));
    let mixed = codes(&mut client, table.name(), cells(&["a", "bad", "b"])).await;
    assert_eq!(mixed, [Code::InvalidArgument; 3]);
    assert_eq!(
        codes(&mut client, table.name(), cells(&["a", "b"])).await,
        [Code::Ok; 2]
    );
    assert_eq!(
        codes(&mut client, table.name(), cells(&["bad"])).await,
        [Code::InvalidArgument]
    );
    table.clear_poison();
    assert_eq!(
        codes(&mut client, table.name(), cells(&["bad"])).await,
        [Code::Ok]
    );
}

#[tokio::test]
async fn a_routing_header_can_be_required() {
    let config = SimConfig {
        routing_header: RoutingHeader::Required,
        ..SimConfig::default()
    };
    let sim = start_with(config).await;
    let table = table(&sim);
    let mut client = data(&sim);
    let request = || pb::SampleRowKeysRequest {
        table_name: table.name().to_owned(),
        ..Default::default()
    };
    let status = soon(client.sample_row_keys(request())).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let mut routed = tonic::Request::new(request());
    routed.metadata_mut().insert(
        "x-goog-request-params",
        "table_name=t".parse().expect("ascii"),
    );
    soon(client.sample_row_keys(routed)).await.expect("served");
}
