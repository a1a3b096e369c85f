//! How the service reads.

use aqueduct_sim::{Chunking, Limits, Sim, SimConfig, Table};
use base64::Engine;
use googleapis_tonic_google_bigtable_v2::google::{bigtable::v2 as pb, rpc};
use pb::{
    read_rows_response::cell_chunk::RowStatus,
    row_filter::Filter,
    row_range::{EndKey, StartKey},
};
use prost::Message;
use tonic::Code;

use crate::support::*;

/// Rows of several families, columns, versions and value sizes.
async fn filled(sim: &Sim, rows: usize) -> Table {
    let table = sim.bigtable().create_table("p", "i", "t", &["cf", "other"]);
    let entries = (0..rows)
        .map(|row| {
            let long = "x".repeat(row * 7 % 40);
            entry(
                &format!("r{row:05}"),
                vec![
                    set("cf", "a", 2_000, &long),
                    set("cf", "a", 1_000, "old"),
                    set("cf", "", 1_000, ""),
                    set("other", "a", 1_000, "v"),
                ],
            )
        })
        .collect::<Vec<_>>();
    let mut client = data(sim);
    for part in entries.chunks(10_000) {
        codes(&mut client, table.name(), part.to_vec()).await;
    }
    table
}

fn stored(table: &Table) -> Vec<ReadRow> {
    table
        .rows()
        .into_iter()
        .map(|row| ReadRow {
            key: row.key,
            cells: row
                .cells
                .into_iter()
                .map(|cell| {
                    (
                        cell.family,
                        cell.qualifier,
                        cell.timestamp_micros,
                        cell.value,
                        Vec::new(),
                    )
                })
                .collect(),
        })
        .collect()
}

fn rows(keys: &[&'static str], ranges: Vec<(Option<StartKey>, Option<EndKey>)>) -> pb::RowSet {
    pb::RowSet {
        row_keys: keys.iter().map(|key| (*key).into()).collect(),
        row_ranges: ranges
            .into_iter()
            .map(|(start_key, end_key)| pb::RowRange { start_key, end_key })
            .collect(),
    }
}

fn filter(filter: Filter) -> Option<pb::RowFilter> {
    Some(pb::RowFilter {
        filter: Some(filter),
    })
}

/// A request of a client that reads scanned keys.
fn attentive(request: pb::ReadRowsRequest) -> tonic::Request<pb::ReadRowsRequest> {
    let flags = pb::FeatureFlags {
        last_scanned_row_responses: true,
        ..Default::default()
    };
    let flags = base64::engine::general_purpose::URL_SAFE.encode(flags.encode_to_vec());
    let mut request = tonic::Request::new(request);
    request
        .metadata_mut()
        .insert("bigtable-features", flags.parse().expect("ascii"));
    request
}

/// BT-SIM-11: whatever liberties a seed takes, the rows are the same; over some seeds, each
/// liberty is taken.
#[tokio::test]
async fn every_chunking_yields_the_stored_rows_and_seeds_take_every_liberty() {
    let sim = start().await;
    let table = filled(&sim, 60).await;
    let mut client = data(&sim);
    let (mut splits, mut resets, mut scanned, mut repeats, mut omits) = (0, 0, 0, 0, 0);
    let (mut several_rows, mut partial_rows) = (0, 0);
    for chunking in [Chunking::Service, Chunking::RowPerMessage]
        .into_iter()
        .chain((0..20).map(Chunking::Seeded))
    {
        table.set_chunking(chunking);
        let scan = scan(&mut client, attentive(whole(table.name()))).await;
        scan.end.as_ref().expect("the scan succeeds");
        assert_eq!(scan.rows(), stored(&table), "{chunking:?}");
        for message in &scan.messages {
            let commits = message
                .chunks
                .iter()
                .filter(|chunk| chunk.row_status.is_some())
                .count();
            several_rows += usize::from(commits > 1);
            partial_rows += usize::from(commits == 0 && !message.chunks.is_empty());
        }
        if chunking == Chunking::RowPerMessage {
            assert_eq!(scan.messages.len(), 60);
        }
        let filtered = pb::ReadRowsRequest {
            filter: filter(Filter::RowKeyRegexFilter("r....[05]".into())),
            ..whole(table.name())
        };
        let scan = crate::support::scan(&mut client, attentive(filtered)).await;
        assert_eq!(scan.rows().len(), 12, "{chunking:?}");
        scanned += scan
            .messages
            .iter()
            .filter(|m| !m.last_scanned_row_key.is_empty())
            .count();
        for chunk in scan.messages.iter().flat_map(|message| &message.chunks) {
            splits += usize::from(chunk.value_size > 0);
            resets += usize::from(chunk.row_status == Some(RowStatus::ResetRow(true)));
            repeats += usize::from(chunk.family_name.is_some() && chunk.row_key.is_empty());
            omits += usize::from(chunk.family_name.is_none());
        }
    }
    for (name, taken) in [
        ("split values", splits),
        ("resets", resets),
        ("scanned keys", scanned),
        ("repeats", repeats),
        ("omissions", omits),
        ("several rows a message", several_rows),
        ("partial rows", partial_rows),
    ] {
        assert!(taken > 0, "{name}");
    }
}

#[tokio::test]
async fn scanned_keys_go_only_to_clients_that_read_them() {
    let sim = start().await;
    let table = filled(&sim, 60).await;
    let mut client = data(&sim);
    let blocked = pb::ReadRowsRequest {
        filter: filter(Filter::BlockAllFilter(true)),
        ..whole(table.name())
    };
    table.set_chunking(Chunking::Seeded(1));
    assert_eq!(scan(&mut client, blocked.clone()).await.messages.len(), 0);
    assert!(
        !scan(&mut client, attentive(blocked))
            .await
            .messages
            .is_empty()
    );
}

#[tokio::test]
async fn a_value_above_a_mebibyte_is_split() {
    let sim = start().await;
    let table = table(&sim);
    let mut client = data(&sim);
    let value = "v".repeat(5 << 20 >> 1);
    codes(&mut client, table.name(), vec![cell("r", &value)]).await;
    let scan = scan(&mut client, whole(table.name())).await;
    assert_eq!(scan.rows()[0].cells[0].3.len(), value.len());
    assert!(
        scan.messages
            .iter()
            .map(|message| message.chunks.len())
            .sum::<usize>()
            >= 3
    );
}

#[tokio::test]
async fn keys_ranges_limits_and_reversal_select_rows() {
    let sim = start().await;
    let table = table(&sim);
    let mut client = data(&sim);
    codes(&mut client, table.name(), cells(&["a", "b", "c", "d", "e"])).await;
    let set = rows(
        &["e", "b"],
        vec![
            (
                Some(StartKey::StartKeyOpen("a".into())),
                Some(EndKey::EndKeyClosed("c".into())),
            ),
            (
                Some(StartKey::StartKeyClosed("c".into())),
                Some(EndKey::EndKeyOpen("d".into())),
            ),
        ],
    );
    let request = pb::ReadRowsRequest {
        rows: Some(set),
        ..whole(table.name())
    };
    assert_eq!(
        scan(&mut client, request.clone()).await.keys(),
        ["b", "c", "e"]
    );
    let limited = pb::ReadRowsRequest {
        rows_limit: 2,
        ..request.clone()
    };
    assert_eq!(scan(&mut client, limited).await.keys(), ["b", "c"]);
    let reversed = pb::ReadRowsRequest {
        reversed: true,
        ..request
    };
    assert_eq!(
        scan(&mut client, reversed.clone()).await.keys(),
        ["e", "c", "b"]
    );
    let both = pb::ReadRowsRequest {
        rows_limit: 1,
        ..reversed
    };
    assert_eq!(scan(&mut client, both).await.keys(), ["e"]);
    let negative = pb::ReadRowsRequest {
        rows_limit: -1,
        ..whole(table.name())
    };
    let status = scan(&mut client, negative).await.end.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

/// BT-SIM-07.
#[tokio::test]
async fn an_exclusive_start_at_its_own_end_is_refused_and_a_closed_single_key_is_read() {
    let sim = start().await;
    let table = table(&sim);
    let mut client = data(&sim);
    codes(&mut client, table.name(), cells(&["k"])).await;
    let request = |start, end| pb::ReadRowsRequest {
        rows: Some(rows(&[], vec![(Some(start), Some(end))])),
        ..whole(table.name())
    };
    let empty = request(
        StartKey::StartKeyOpen("k".into()),
        EndKey::EndKeyClosed("k".into()),
    );
    let status = scan(&mut client, empty).await.end.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(
        status
            .message()
            .contains("start_key must be less than end_key")
    );
    let single = request(
        StartKey::StartKeyClosed("k".into()),
        EndKey::EndKeyClosed("k".into()),
    );
    assert_eq!(scan(&mut client, single).await.keys(), ["k"]);
}

/// BT-SIM-08.
#[tokio::test]
async fn a_filter_on_an_unknown_family_is_not_found() {
    let sim = start().await;
    let table = table(&sim);
    let request = pb::ReadRowsRequest {
        filter: filter(Filter::FamilyNameRegexFilter("nope".into())),
        ..whole(table.name())
    };
    let status = scan(&mut data(&sim), request).await.end.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert!(
        status
            .message()
            .contains("Requested column family not found")
    );
}

/// BT-SIM-05.
#[tokio::test]
async fn samples_are_one_key_a_tablet_and_follow_splits_and_merges() {
    let sim = start().await;
    let table = sim
        .bigtable()
        .create_split_table("p", "i", "t", &["cf"], &[b"g", b"p"]);
    let empty = sim.bigtable().create_table("p", "i", "empty", &["cf"]);
    let mut client = data(&sim);
    let mut samples = async |table: &Table| {
        let request = pb::SampleRowKeysRequest {
            table_name: table.name().to_owned(),
            ..Default::default()
        };
        let mut stream = soon(client.sample_row_keys(request))
            .await
            .expect("served")
            .into_inner();
        let mut keys = Vec::new();
        while let Some(sample) = soon(stream.message()).await.expect("it succeeds") {
            keys.push(String::from_utf8_lossy(&sample.row_key).into_owned());
        }
        keys
    };
    assert_eq!(samples(&empty).await, [""]);
    assert_eq!(samples(&table).await, ["g", "p", ""]);
    assert!(table.split_tablet(b"k") && !table.split_tablet(b"k"));
    assert_eq!(samples(&table).await, ["g", "k", "p", ""]);
    assert!(table.merge_tablets(b"g") && !table.merge_tablets(b"g"));
    assert_eq!(samples(&table).await, ["k", "p", ""]);
}

/// BT-WIRE-09.
#[tokio::test]
async fn a_row_above_the_limit_cannot_be_read_and_is_named() {
    let limits = Limits {
        row_bytes: 10,
        ..Limits::default()
    };
    let sim = start_with(SimConfig {
        limits,
        ..SimConfig::default()
    })
    .await;
    let table = table(&sim);
    let mut client = data(&sim);
    codes(
        &mut client,
        table.name(),
        vec![cell("a", "small"), cell("b", "above the limit")],
    )
    .await;
    let scan = scan(&mut client, whole(table.name())).await;
    assert_eq!(scan.keys(), ["a"]);
    let status = scan.end.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let details = rpc::Status::decode(status.details()).expect("details");
    let info = rpc::ErrorInfo::decode(&*details.details[0].value).expect("an ErrorInfo");
    assert_eq!(info.reason, "LargeRowReadError");
    assert_eq!(info.metadata["rowKeyBase64Encoded"], "Yg==");
}

#[tokio::test]
async fn statistics_come_in_a_message_of_their_own() {
    let sim = start().await;
    let table = filled(&sim, 10).await;
    let request = pb::ReadRowsRequest {
        request_stats_view: pb::read_rows_request::RequestStatsView::RequestStatsFull.into(),
        filter: filter(Filter::RowKeyRegexFilter("r0000[0-3]".into())),
        ..whole(table.name())
    };
    let scan = scan(&mut data(&sim), request).await;
    let last = scan.messages.last().expect("messages");
    assert!(last.chunks.is_empty());
    let Some(pb::RequestStats {
        stats_view: Some(pb::request_stats::StatsView::FullReadStatsView(view)),
    }) = &last.request_stats
    else {
        panic!("full statistics were asked for");
    };
    let stats = view.read_iteration_stats.expect("they are counted");
    assert_eq!((stats.rows_seen_count, stats.rows_returned_count), (10, 4));
    assert_eq!(
        (stats.cells_seen_count, stats.cells_returned_count),
        (40, 16)
    );
}

#[tokio::test]
async fn a_large_table_is_streamed_whole() {
    let sim = start().await;
    let table = filled(&sim, 20_000).await;
    let scan = scan(&mut data(&sim), whole(table.name())).await;
    assert_eq!(scan.rows().len(), 20_000);
    assert!(scan.messages.len() > 1);
}
