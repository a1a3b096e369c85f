//! Each scripted fault, as a client meets it.

use std::time::{Duration, Instant};

use aqueduct_sim::{Chunking, Gate, Method, Sim, Table};
use googleapis_tonic_google_bigtable_v2::google::{bigtable::v2 as pb, rpc};
use prost::Message;
use tonic::Code;

use crate::support::*;

const W: Method = Method::MutateRows;

async fn started() -> (Sim, Table) {
    let sim = start().await;
    let table = table(&sim);
    (sim, table)
}

#[tokio::test]
async fn a_status_refuses_the_nth_request_and_nothing_is_applied() {
    let (sim, table) = started().await;
    let mut client = data(&sim);
    let fault = table.nth(2, W).status(Code::ResourceExhausted);
    assert_eq!(
        codes(&mut client, table.name(), cells(&["a"])).await,
        [Code::Ok]
    );
    let status = mutate(&mut client, table.name(), cells(&["b"]))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(
        codes(&mut client, table.name(), cells(&["c"])).await,
        [Code::Ok]
    );
    assert_eq!(fault.fired(), 1);
    assert_eq!(table.row_count(), 2);
}

#[tokio::test]
async fn a_status_after_the_effect_leaves_it_in_place() {
    let (sim, table) = started().await;
    let _fault = table.next(1, W).apply_then_status(Code::DeadlineExceeded);
    let status = mutate(&mut data(&sim), table.name(), cells(&["a"]))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(table.effects_per_row(), [1]);
}

#[tokio::test]
async fn retry_info_and_cookies_ride_with_the_status() {
    let (sim, table) = started().await;
    let mut client = data(&sim);
    table
        .next(1, W)
        .status(Code::Unavailable)
        .retry_info(Duration::from_millis(1_500))
        .cookie("a", "1")
        .header_cookie("b", "2");
    let (_, end) = mutate_to_end(&mut client, table.name(), cells(&["a"])).await;
    let status = end.unwrap_err();
    let details = rpc::Status::decode(status.details()).expect("details");
    assert_eq!(
        details.details[0].type_url,
        "type.googleapis.com/google.rpc.RetryInfo"
    );
    let info = rpc::RetryInfo::decode(&*details.details[0].value).expect("a RetryInfo");
    let delay = info.retry_delay.expect("a delay");
    assert_eq!((delay.seconds, delay.nanos), (1, 500_000_000));
    assert_eq!(
        status
            .metadata()
            .get("x-goog-cbt-cookie-a")
            .expect("a trailer"),
        "1"
    );

    // Echoed cookies are seen in the log.
    let mut request = tonic::Request::new(pb::SampleRowKeysRequest {
        table_name: table.name().to_owned(),
        ..Default::default()
    });
    request
        .metadata_mut()
        .insert("x-goog-cbt-cookie-a", "1".parse().expect("ascii"));
    soon(client.sample_row_keys(request)).await.expect("served");
    let log = table.requests_of(Method::SampleRowKeys);
    assert_eq!(log[0].cookies, [("a".to_owned(), "1".to_owned())]);
}

#[tokio::test]
async fn a_header_cookie_precedes_the_answer() {
    let (sim, table) = started().await;
    table.next(1, Method::SampleRowKeys).header_cookie("b", "2");
    let request = pb::SampleRowKeysRequest {
        table_name: table.name().to_owned(),
        ..Default::default()
    };
    let response = soon(data(&sim).sample_row_keys(request))
        .await
        .expect("served");
    assert_eq!(
        response
            .metadata()
            .get("x-goog-cbt-cookie-b")
            .expect("a header"),
        "2"
    );
}

#[tokio::test]
async fn error_info_rides_with_the_status() {
    let (sim, table) = started().await;
    table
        .next(1, W)
        .status(Code::FailedPrecondition)
        .error_info("REASON", []);
    let status = mutate(&mut data(&sim), table.name(), cells(&["a"]))
        .await
        .unwrap_err();
    let details = rpc::Status::decode(status.details()).expect("details");
    let info = rpc::ErrorInfo::decode(&*details.details[0].value).expect("an ErrorInfo");
    assert_eq!(info.reason, "REASON");
}

#[tokio::test]
async fn entries_can_fail_alone() {
    let (sim, table) = started().await;
    let mut client = data(&sim);
    table.next(1, W).entry_status([1], Code::Unavailable);
    let answered = codes(&mut client, table.name(), cells(&["a", "b", "c"])).await;
    assert_eq!(answered, [Code::Ok, Code::Unavailable, Code::Ok]);
    assert_eq!(table.effects(b"b"), 0);
    table
        .next(1, W)
        .entry_status_where(|_, entry| &*entry.row_key == b"c", Code::ResourceExhausted);
    let answered = codes(&mut client, table.name(), cells(&["b", "c"])).await;
    assert_eq!(answered, [Code::Ok, Code::ResourceExhausted]);
    assert_eq!(table.effects_per_row(), [1, 1, 1]);
}

#[tokio::test]
async fn missing_entries_are_neither_named_nor_applied_unless_asked() {
    let (sim, table) = started().await;
    let mut client = data(&sim);
    table.next(1, W).missing_entries([2, 4]);
    let keys = ["a", "b", "c", "d", "e"];
    let answers = mutate(&mut client, table.name(), cells(&keys))
        .await
        .expect("it succeeds");
    let named: Vec<usize> = answers.iter().map(|answer| answer.0).collect();
    assert_eq!(named, [0, 1, 3]);
    assert_eq!(table.row_count(), 3);
    table.next(1, W).missing_entries([0]).apply_unanswered();
    let answers = mutate(&mut client, table.name(), cells(&["c"]))
        .await
        .expect("it succeeds");
    assert_eq!(answers, []);
    assert_eq!(table.effects(b"c"), 1);
}

#[tokio::test]
async fn a_stream_breaks_after_some_entries_by_status_cut_or_reset() {
    let (sim, table) = started().await;
    let mut client = data(&sim);
    let keys = ["a", "b", "c", "d", "e"];
    let mut broken = async || {
        let (answers, end) = soon(mutate_to_end(&mut client, table.name(), cells(&keys))).await;
        let named: Vec<usize> = answers.iter().map(|answer| answer.0).collect();
        assert_eq!(named, [0, 1, 2]);
        end.expect_err("the stream breaks")
    };
    table.next(1, W).break_after(3);
    assert_eq!(broken().await.code(), Code::Unavailable);
    assert_eq!(table.row_count(), 3, "the rest was not applied");
    table.next(1, W).break_after(3).status(Code::Aborted);
    assert_eq!(broken().await.code(), Code::Aborted);
    table.next(1, W).break_after(3).reset_stream();
    assert_eq!(broken().await.code(), Code::Internal);
    table.next(1, W).break_after(3).cut_connection();
    broken().await;
    assert_eq!(table.effects_per_row(), [4, 4, 4]);
}

#[tokio::test]
async fn a_scan_breaks_after_some_chunks_even_inside_a_row() {
    let (sim, table) = started().await;
    let mut client = data(&sim);
    let wide = |key: &str| {
        entry(
            key,
            vec![set("cf", "a", 1_000, "v"), set("cf", "b", 1_000, "v")],
        )
    };
    codes(
        &mut client,
        table.name(),
        vec![wide("r1"), wide("r2"), wide("r3")],
    )
    .await;
    table.next(1, Method::ReadRows).break_after(3);
    let scanned = scan(&mut client, whole(table.name())).await;
    assert_eq!(scanned.keys(), ["r1"]);
    let chunks: usize = scanned
        .messages
        .iter()
        .map(|message| message.chunks.len())
        .sum();
    assert_eq!(chunks, 3);
    assert_eq!(scanned.end.unwrap_err().code(), Code::Unavailable);
    table
        .next(1, Method::ReadRows)
        .break_after(2)
        .cut_connection();
    let scanned = scan(&mut client, whole(table.name())).await;
    assert_eq!(scanned.keys(), ["r1"]);
    assert!(scanned.end.is_err());
    table.next(1, Method::ReadRows).break_after(100);
    let scanned = scan(&mut client, whole(table.name())).await;
    scanned
        .end
        .as_ref()
        .expect("a scan that ends earlier ends well");
    table.set_chunking(Chunking::RowPerMessage);
    assert_eq!(
        scan(&mut client, whole(table.name())).await.keys(),
        ["r1", "r2", "r3"]
    );
}

#[tokio::test]
async fn samples_break_too() {
    let (sim, table) = started().await;
    table.split_tablet(b"k");
    table.next(1, Method::SampleRowKeys).break_after(1);
    let request = pb::SampleRowKeysRequest {
        table_name: table.name().to_owned(),
        ..Default::default()
    };
    let mut stream = soon(data(&sim).sample_row_keys(request))
        .await
        .expect("it begins")
        .into_inner();
    assert_eq!(
        soon(stream.message())
            .await
            .expect("one key")
            .expect("one key")
            .row_key,
        "k"
    );
    assert_eq!(
        soon(stream.message()).await.unwrap_err().code(),
        Code::Unavailable
    );
}

#[tokio::test]
async fn rate_limit_info_rides_with_the_first_message() {
    let (sim, table) = started().await;
    table.next(1, W).rate_limit(0.7, Duration::from_secs(10));
    let request = pb::MutateRowsRequest {
        table_name: table.name().to_owned(),
        entries: cells(&["a"]),
        ..Default::default()
    };
    let mut stream = soon(data(&sim).mutate_rows(request))
        .await
        .expect("served")
        .into_inner();
    let message = soon(stream.message())
        .await
        .expect("served")
        .expect("a message");
    let info = message.rate_limit_info.expect("rate limit info");
    assert_eq!(
        (info.factor, info.period.expect("a period").seconds),
        (0.7, 10)
    );
}

#[tokio::test]
async fn a_delay_precedes_the_effect() {
    let (sim, table) = started().await;
    table.next(1, W).delay(Duration::from_millis(80));
    let begun = Instant::now();
    assert_eq!(
        codes(&mut data(&sim), table.name(), cells(&["a"])).await,
        [Code::Ok]
    );
    assert!(begun.elapsed() >= Duration::from_millis(80));
}

#[tokio::test]
async fn a_silent_peer_never_answers_and_the_others_are_served() {
    let (sim, table) = started().await;
    let client = data(&sim);
    let fault = table.next(1, W).silent();
    let silent = {
        let (mut client, name) = (client.clone(), table.name().to_owned());
        tokio::spawn(async move { mutate_to_end(&mut client, &name, cells(&["a"])).await })
    };
    table
        .wait_until(LIMIT, |_| fault.fired() == 1)
        .await
        .expect("it arrives");
    assert_eq!(
        codes(&mut client.clone(), table.name(), cells(&["b"])).await,
        [Code::Ok]
    );
    assert!(!silent.is_finished());
    assert_eq!(table.effects(b"a"), 0);
    silent.abort();
    table.next(1, W).apply_then_stay_silent();
    let silent = {
        let (mut client, name) = (client.clone(), table.name().to_owned());
        tokio::spawn(async move { mutate_to_end(&mut client, &name, cells(&["a"])).await })
    };
    table
        .wait_until(LIMIT, |table| table.lost_answers() == 1)
        .await
        .expect("it is applied");
    assert_eq!(table.effects(b"a"), 1);
    silent.abort();
}

#[tokio::test]
async fn a_cut_connection_closes_the_socket_and_everything_on_it() {
    let (sim, table) = started().await;
    let client = data(&sim);
    let silent = table.next(1, W).silent();
    let bystander = {
        let (mut client, name) = (client.clone(), table.name().to_owned());
        tokio::spawn(async move { mutate_to_end(&mut client, &name, cells(&["a"])).await })
    };
    table
        .wait_until(LIMIT, |_| silent.fired() == 1)
        .await
        .expect("it arrives");
    table.next(1, W).cut_connection();
    let (_, end) = soon(mutate_to_end(
        &mut client.clone(),
        table.name(),
        cells(&["b"]),
    ))
    .await;
    assert!(end.is_err());
    let (_, end) = soon(bystander).await.expect("it ends");
    assert!(end.is_err(), "the other stream of the connection ends too");
    assert_eq!(table.row_count(), 0);
    assert_eq!(
        codes(&mut client.clone(), table.name(), cells(&["c"])).await,
        [Code::Ok]
    );
    let connections: Vec<u64> = table
        .requests()
        .iter()
        .map(|record| record.connection)
        .collect();
    assert_eq!(
        connections,
        [0, 0, 1],
        "the client came back on another connection"
    );
}

#[tokio::test]
async fn a_lost_answer_took_effect() {
    let (sim, table) = started().await;
    let mut client = data(&sim);
    table.nth(2, W).apply_then_lose_answer();
    assert_eq!(
        codes(&mut client, table.name(), cells(&["a"])).await,
        [Code::Ok]
    );
    let (_, end) = soon(mutate_to_end(&mut client, table.name(), cells(&["b"]))).await;
    assert!(end.is_err());
    assert_eq!(table.lost_answers(), 1);
    assert_eq!(table.effects_per_row(), [1, 1]);
}

#[tokio::test]
async fn streams_are_reset_and_refused() {
    let (sim, table) = started().await;
    let mut client = data(&sim);
    table.next(1, W).reset_stream();
    let status = mutate(&mut client, table.name(), cells(&["a"]))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    table.next(1, W).refuse_stream();
    let status = mutate(&mut client, table.name(), cells(&["a"]))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(table.row_count(), 0);
    assert_eq!(sim.connections(), 1, "the connection stays");
}

#[tokio::test]
async fn admin_requests_meet_faults_by_name_even_before_the_table_exists() {
    use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;
    let sim = start().await;
    let table = sim.bigtable().table("p", "i", "late");
    table.next(1, Method::CreateTable).status(Code::Unavailable);
    let request = admin::CreateTableRequest {
        parent: INSTANCE.to_owned(),
        table_id: "late".to_owned(),
        ..Default::default()
    };
    let mut tables = tables(&sim);
    let status = soon(tables.create_table(request.clone()))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(!table.exists());
    soon(tables.create_table(request)).await.expect("created");
    assert!(table.exists());
}

#[tokio::test]
async fn faults_of_the_service_meet_every_table_and_can_be_cleared() {
    let (sim, table) = started().await;
    let other = sim.bigtable().create_table("p", "i", "other", &["cf"]);
    let mut client = data(&sim);
    sim.bigtable().always(W).status(Code::Unavailable);
    for name in [table.name(), other.name()] {
        assert!(mutate(&mut client, name, cells(&["a"])).await.is_err());
    }
    sim.bigtable().clear_faults();
    assert_eq!(
        codes(&mut client, table.name(), cells(&["a"])).await,
        [Code::Ok]
    );
}

#[tokio::test]
async fn a_gate_holds_requests_or_answers_until_it_opens() {
    let (sim, table) = started().await;
    let client = data(&sim);
    let (requests, answers) = (Gate::new(), Gate::new());
    table.nth(1, W).hold(&requests);
    table.nth(2, W).hold_answer(&answers);
    let send = |key: &'static str| {
        let (mut client, name) = (client.clone(), table.name().to_owned());
        tokio::spawn(async move { codes(&mut client, &name, cells(&[key])).await })
    };
    let first = send("a");
    table
        .wait_until(LIMIT, |_| requests.held() == 1)
        .await
        .expect("it is held");
    let second = send("b");
    table
        .wait_until(LIMIT, |_| answers.held() == 1)
        .await
        .expect("it is held");
    assert_eq!((table.effects(b"a"), table.effects(b"b")), (0, 1));
    requests.open();
    assert_eq!(soon(first).await.expect("it ends"), [Code::Ok]);
    assert!(!second.is_finished());
    answers.open();
    assert_eq!(soon(second).await.expect("it ends"), [Code::Ok]);
    assert_eq!(table.effects_per_row(), [1, 1]);
}

/// Someone else adds the family between a client's reading of the schema and its change.
#[tokio::test]
async fn a_family_appears_just_before_it_is_created() {
    use admin::modify_column_families_request::{Modification, modification::Mod};
    use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;
    let (sim, table) = started().await;
    let other = table.clone();
    table.next(1, Method::ModifyColumnFamilies).run(move || {
        other.add_family("new");
    });
    let request = admin::ModifyColumnFamiliesRequest {
        name: table.name().to_owned(),
        modifications: vec![Modification {
            id: "new".to_owned(),
            r#mod: Some(Mod::Create(admin::ColumnFamily::default())),
            ..Default::default()
        }],
        ..Default::default()
    };
    let status = soon(tables(&sim).modify_column_families(request))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists);
}
