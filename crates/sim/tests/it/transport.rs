//! Connections, restarts, discarding, the log.

use std::time::Duration;

use aqueduct_sim::{DiscardServer, Discarded, Method, MutateRowsRequest, Sim, SimConfig};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as pb;
use pb::bigtable_client::BigtableClient;
use tonic::Code;

use crate::support::*;

const W: Method = Method::MutateRows;

#[tokio::test]
async fn a_stopped_simulation_refuses_connections_and_keeps_its_data() {
    let sim = start().await;
    let table = table(&sim);
    let mut client = data(&sim);
    codes(&mut client, table.name(), cells(&["a"])).await;
    let endpoint = sim.endpoint();
    soon(sim.stop()).await;
    assert_eq!(sim.connections(), 0);
    let refused = tokio::net::TcpStream::connect(&endpoint).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let status = mutate(&mut client, table.name(), cells(&["b"]))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    soon(sim.restart()).await.expect("the port is still ours");
    assert_eq!(sim.endpoint(), endpoint);
    assert_eq!(
        codes(&mut client, table.name(), cells(&["c"])).await,
        [Code::Ok]
    );
    assert_eq!(table.row_count(), 2);
}

#[tokio::test]
async fn a_graceful_recycling_serves_what_is_in_flight() {
    let sim = start().await;
    let table = table(&sim);
    let client = data(&sim);
    let slow = table.next(1, W).delay(Duration::from_millis(100));
    let in_flight = {
        let (mut client, name) = (client.clone(), table.name().to_owned());
        tokio::spawn(async move { codes(&mut client, &name, cells(&["a"])).await })
    };
    table
        .wait_until(LIMIT, |_| slow.fired() == 1)
        .await
        .expect("it arrives");
    sim.recycle_connections();
    assert_eq!(soon(in_flight).await.expect("it ends"), [Code::Ok]);
    sim.bigtable()
        .wait_until(LIMIT, |_| sim.connections() == 0)
        .await
        .expect("it closes");
    assert_eq!(
        codes(&mut client.clone(), table.name(), cells(&["b"])).await,
        [Code::Ok]
    );
    assert_eq!(table.requests().last().expect("logged").connection, 1);
}

#[tokio::test]
async fn a_request_can_recycle_its_connection() {
    let sim = start().await;
    let table = table(&sim);
    let mut client = data(&sim);
    table.next(1, W).goaway();
    assert_eq!(
        codes(&mut client, table.name(), cells(&["a"])).await,
        [Code::Ok]
    );
    sim.bigtable()
        .wait_until(LIMIT, |_| sim.connections() == 0)
        .await
        .expect("it closes");
}

#[tokio::test]
async fn cut_connections_fail_what_is_in_flight() {
    let sim = start().await;
    let table = table(&sim);
    let client = data(&sim);
    let silent = table.next(1, W).silent();
    let in_flight = {
        let (mut client, name) = (client.clone(), table.name().to_owned());
        tokio::spawn(async move { mutate_to_end(&mut client, &name, cells(&["a"])).await })
    };
    table
        .wait_until(LIMIT, |_| silent.fired() == 1)
        .await
        .expect("it arrives");
    sim.cut_connections();
    let (_, end) = soon(in_flight).await.expect("it ends");
    assert!(end.is_err());
}

#[tokio::test]
async fn a_shutdown_ends_the_listener_and_leaves_the_data_to_inspect() {
    let sim = start().await;
    let table = table(&sim);
    codes(&mut data(&sim), table.name(), cells(&["a"])).await;
    let endpoint = sim.endpoint();
    soon(sim.shutdown()).await;
    tokio::net::TcpStream::connect(&endpoint)
        .await
        .expect_err("nobody listens");
    assert_eq!(table.row_count(), 1);
}

#[test]
fn a_simulation_on_its_own_thread_serves_blocking_users() {
    let (ran, before) = std::sync::mpsc::sync_channel(1);
    let sim = Sim::start_on_thread_with(SimConfig::default(), move || {
        ran.send(std::thread::current().id())
            .expect("the test waits");
    })
    .expect("it starts");
    assert_ne!(before.recv().expect("it ran"), std::thread::current().id());
    let table = table(&sim);
    let answered =
        sim.block_on(async { codes(&mut data(&sim), table.name(), cells(&["a", "b"])).await });
    assert_eq!(answered, [Code::Ok; 2]);
    sim.block_on(sim.stop());
    sim.block_on(sim.restart()).expect("it serves again");
    drop(sim);
    assert_eq!(table.row_count(), 2);
}

#[tokio::test]
async fn a_discarding_table_acknowledges_and_stores_nothing() {
    let sim = start_with(SimConfig::for_benchmarks()).await;
    let table = table(&sim);
    let mut client = data(&sim);
    table.start_discarding();
    // Above one frame, and of sizes that differ.
    let keys: Vec<String> = (0..3_000).map(|n| format!("row-{n}")).collect();
    for entries in [3_000, 1, 200] {
        let request = keys[..entries].iter().map(|key| cell(key, "v")).collect();
        let answers = mutate(&mut client, table.name(), request)
            .await
            .expect("acknowledged");
        let indices: Vec<usize> = answers.iter().map(|answer| answer.0).collect();
        assert_eq!(indices, (0..entries).collect::<Vec<_>>());
        assert!(answers.iter().all(|answer| answer.1 == Code::Ok));
    }
    let Discarded {
        requests,
        entries,
        bytes,
    } = table.discarded();
    assert_eq!((requests, entries, table.row_count()), (3, 3_201, 0));
    assert!(bytes > 3_201 * 20);
    assert_eq!(sim.bigtable().request_count(W), 3);
    // A fault takes the ordinary path, and is met there.
    table.next(1, W).entry_status([0], Code::Unavailable);
    let answered = codes(&mut client, table.name(), cells(&["a", "b"])).await;
    assert_eq!(answered, [Code::Unavailable, Code::Ok]);
    assert_eq!(table.discarded().entries, 3_202);
    table.stop_discarding();
    assert_eq!(
        codes(&mut client, table.name(), cells(&["a"])).await,
        [Code::Ok]
    );
    assert_eq!(table.row_count(), 1);
}

#[tokio::test]
async fn the_log_shows_requests_and_their_headers() {
    let sim = start().await;
    let table = table(&sim);
    let mut client = data(&sim);
    let mut request = tonic::Request::new(pb::MutateRowsRequest {
        table_name: table.name().to_owned(),
        app_profile_id: "profile".to_owned(),
        entries: cells(&["a", "b"]),
        ..Default::default()
    });
    request.set_timeout(Duration::from_secs(5));
    let metadata = request.metadata_mut();
    metadata.insert(
        "x-goog-request-params",
        "table_name=x".parse().expect("ascii"),
    );
    metadata.insert("bigtable-features", "CAE=".parse().expect("ascii"));
    metadata.insert("authorization", "Bearer secret".parse().expect("ascii"));
    let mut stream = soon(client.mutate_rows(request))
        .await
        .expect("served")
        .into_inner();
    while soon(stream.message()).await.expect("served").is_some() {}
    let log = table.requests();
    let record = &log[0];
    assert_eq!((record.method, record.entries), (W, 2));
    assert_eq!(record.app_profile, "profile");
    assert_eq!(record.routing.as_deref(), Some("table_name=x"));
    assert_eq!(record.features.as_deref(), Some("CAE="));
    assert_eq!(record.grpc_timeout.as_deref(), Some("5000000u"));
    assert!(
        record
            .user_agent
            .as_deref()
            .is_some_and(|agent| agent.contains("tonic"))
    );
    let message: MutateRowsRequest = record
        .message()
        .expect("within the bounds")
        .expect("well-formed");
    assert_eq!(message.entries[1].row_key, "b");
    assert!(!format!("{record:?} {message:?}").contains("row_key"));
    assert_eq!(sim.bigtable().request_count(W), 1);
}

#[tokio::test]
async fn the_log_is_bounded_by_count_and_bytes() {
    let config = SimConfig {
        logged_requests: 4,
        logged_bytes: 2_000,
        ..SimConfig::default()
    };
    let sim = start_with(config).await;
    let table = table(&sim);
    let mut client = data(&sim);
    for _ in 0..6 {
        let entries = vec![cell("a", &"v".repeat(700))];
        assert_eq!(codes(&mut client, table.name(), entries).await, [Code::Ok]);
    }
    let log = table.requests();
    let sequence: Vec<u64> = log.iter().map(|record| record.sequence).collect();
    assert_eq!(sequence, [2, 3, 4, 5]);
    let kept: Vec<bool> = log
        .iter()
        .map(|record| record.message::<MutateRowsRequest>().is_some())
        .collect();
    assert_eq!(kept.iter().filter(|kept| **kept).count(), 2);
    assert!(kept[3] && !kept[0], "the oldest lose their message first");
    assert_eq!(sim.bigtable().request_count(W), 6);
}

#[tokio::test]
async fn a_condition_that_never_holds_times_out() {
    let sim = start().await;
    let table = table(&sim);
    let limit = Duration::from_millis(60);
    let error = table.wait_until(limit, |_| false).await.unwrap_err();
    assert_eq!(error.limit, limit);
    assert!(error.to_string().contains("60ms"));
}

#[tokio::test]
async fn unknown_methods_are_unimplemented() {
    let sim = start().await;
    let request = pb::ExecuteQueryRequest::default();
    let status = soon(data(&sim).execute_query(request)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}

#[tokio::test]
async fn an_instance_is_warmed() {
    let sim = start().await;
    let request = pb::PingAndWarmRequest {
        name: INSTANCE.to_owned(),
        ..Default::default()
    };
    soon(data(&sim).ping_and_warm(request))
        .await
        .expect("served");
    assert_eq!(sim.bigtable().requests()[0].resource, INSTANCE);
}

#[tokio::test]
async fn a_message_above_the_limit_is_refused() {
    let mut config = SimConfig::default();
    config.limits.message_bytes = 1_000;
    let sim = start_with(config).await;
    let table = table(&sim);
    let entries = vec![cell("a", &"v".repeat(2_000))];
    let status = mutate(&mut data(&sim), table.name(), entries)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
}

/// The bare server speaks HTTP/2 well enough for an ordinary client, whatever its windows.
#[tokio::test]
async fn the_bare_server_acknowledges_every_entry_within_the_windows_of_the_client() {
    let server = DiscardServer::start_on_thread(|| ()).expect("it starts");
    let mut sent = 0;
    for window in [None, Some(70_000), Some(8 << 20)] {
        let channel = endpoint(&server.endpoint())
            .initial_stream_window_size(window)
            .initial_connection_window_size(window)
            .http2_keep_alive_interval(Duration::from_millis(5))
            .connect_lazy();
        let client = BigtableClient::new(channel);
        let mut calls = tokio::task::JoinSet::new();
        for call in 0..40_usize {
            let mut client = client.clone();
            // The largest answers exceed the smallest window.
            let entries = [1, 100, 1_000, 20_000][call % 4];
            sent += entries as u64;
            calls.spawn(async move {
                let request = (0..entries).map(|_| cell("key", "value")).collect();
                let answers = mutate(&mut client, "any", request)
                    .await
                    .expect("acknowledged");
                let indices: Vec<usize> = answers.iter().map(|answer| answer.0).collect();
                assert_eq!(indices, (0..entries).collect::<Vec<_>>());
                assert!(answers.iter().all(|answer| answer.1 == Code::Ok));
            });
        }
        while let Some(call) = soon(calls.join_next()).await {
            call.expect("the call is answered");
        }
    }
    let discarded = server.discarded();
    assert_eq!((discarded.requests, discarded.entries), (120, sent));
    assert!(discarded.bytes > sent * 20);
}

#[tokio::test]
async fn the_bare_server_warms_survives_cancellation_and_drops_what_is_not_http2() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = DiscardServer::start_on_thread(|| ()).expect("it starts");
    let mut client = BigtableClient::new(endpoint(&server.endpoint()).connect_lazy());
    let request = pb::PingAndWarmRequest {
        name: INSTANCE.to_owned(),
        ..Default::default()
    };
    soon(client.ping_and_warm(request)).await.expect("served");
    for _ in 0..50 {
        let mut client = client.clone();
        let call = tokio::spawn(async move {
            mutate_to_end(&mut client, "any", cells(&["a"; 100]))
                .await
                .1
        });
        tokio::task::yield_now().await;
        call.abort();
        let _ = call.await;
    }
    let answers = mutate(&mut client, "any", cells(&["a", "b"]))
        .await
        .expect("still served");
    assert_eq!(answers.len(), 2);
    let mut foreign = tokio::net::TcpStream::connect(server.endpoint())
        .await
        .expect("accepted");
    foreign
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .expect("sent");
    let mut rest = Vec::new();
    // Closed or reset, depending on what the kernel still held.
    let _ = soon(foreign.read_to_end(&mut rest)).await;
    let endpoint = server.endpoint();
    drop(server);
    tokio::net::TcpStream::connect(&endpoint)
        .await
        .expect_err("nobody listens");
}
