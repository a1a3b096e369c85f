//! Short ways to say what a test sends, and an assembler of rows of its own.

use std::{future::Future, time::Duration};

use aqueduct_sim::{Sim, SimConfig, Table};
use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2::{
    bigtable_instance_admin_client::BigtableInstanceAdminClient,
    bigtable_table_admin_client::BigtableTableAdminClient,
};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as pb;
use pb::{
    bigtable_client::BigtableClient, mutate_rows_request::Entry,
    read_rows_response::cell_chunk::RowStatus,
};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) const INSTANCE: &str = "projects/p/instances/i";

pub(crate) async fn start() -> Sim {
    start_with(SimConfig::default()).await
}

pub(crate) async fn start_with(config: SimConfig) -> Sim {
    Sim::start(config).await.expect("a loopback port is free")
}

pub(crate) fn table(sim: &Sim) -> Table {
    sim.bigtable().create_table("p", "i", "t", &["cf"])
}

pub(crate) fn channel(sim: &Sim) -> Channel {
    endpoint(&sim.endpoint()).connect_lazy()
}

pub(crate) fn endpoint(address: &str) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).expect("an endpoint is a valid authority")
}

pub(crate) fn data(sim: &Sim) -> BigtableClient<Channel> {
    BigtableClient::new(channel(sim)).max_decoding_message_size(1 << 30)
}

pub(crate) fn tables(sim: &Sim) -> BigtableTableAdminClient<Channel> {
    BigtableTableAdminClient::new(channel(sim))
}

pub(crate) fn instances(sim: &Sim) -> BigtableInstanceAdminClient<Channel> {
    BigtableInstanceAdminClient::new(channel(sim))
}

/// Ends a test that would wait for ever.
pub(crate) async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(LIMIT, future)
        .await
        .expect("it happens within the limit")
}

pub(crate) fn mutation(mutation: pb::mutation::Mutation) -> pb::Mutation {
    pb::Mutation {
        mutation: Some(mutation),
    }
}

pub(crate) fn set(family: &str, qualifier: &str, timestamp: i64, value: &str) -> pb::Mutation {
    mutation(pb::mutation::Mutation::SetCell(pb::mutation::SetCell {
        family_name: family.to_owned(),
        column_qualifier: qualifier.to_owned().into(),
        timestamp_micros: timestamp,
        value: value.to_owned().into(),
    }))
}

pub(crate) fn entry(key: &str, mutations: Vec<pb::Mutation>) -> Entry {
    Entry {
        row_key: key.to_owned().into(),
        mutations,
        idempotency: None,
    }
}

/// An entry that sets one cell.
pub(crate) fn cell(key: &str, value: &str) -> Entry {
    entry(key, vec![set("cf", "q", 1_000, value)])
}

/// Entries of one cell each, for these keys.
pub(crate) fn cells(keys: &[&str]) -> Vec<Entry> {
    keys.iter().map(|key| cell(key, "v")).collect()
}

/// What was said of an entry.
pub(crate) type Answer = (usize, Code, String);

/// Sends `MutateRows` and collects the answers and how the stream ended.
pub(crate) async fn mutate_to_end(
    client: &mut BigtableClient<Channel>,
    table: &str,
    entries: Vec<Entry>,
) -> (Vec<Answer>, Result<(), Status>) {
    let request = pb::MutateRowsRequest {
        table_name: table.to_owned(),
        entries,
        ..Default::default()
    };
    let mut stream = match client.mutate_rows(request).await {
        Ok(response) => response.into_inner(),
        Err(status) => return (Vec::new(), Err(status)),
    };
    let mut answers = Vec::new();
    loop {
        match stream.message().await {
            Ok(Some(message)) => answers.extend(message.entries.into_iter().map(|entry| {
                let status = entry.status.unwrap_or_default();
                let index = usize::try_from(entry.index).expect("an index");
                (index, Code::from(status.code), status.message)
            })),
            Ok(None) => return (answers, Ok(())),
            Err(status) => return (answers, Err(status)),
        }
    }
}

pub(crate) async fn mutate(
    client: &mut BigtableClient<Channel>,
    table: &str,
    entries: Vec<Entry>,
) -> Result<Vec<Answer>, Status> {
    let (answers, end) = soon(mutate_to_end(client, table, entries)).await;
    end.map(|()| answers)
}

/// The codes of a `MutateRows` answer, by position.
pub(crate) async fn codes(
    client: &mut BigtableClient<Channel>,
    table: &str,
    entries: Vec<Entry>,
) -> Vec<Code> {
    let mut answers = mutate(client, table, entries)
        .await
        .expect("the call succeeds");
    answers.sort_by_key(|answer| answer.0);
    answers.into_iter().map(|answer| answer.1).collect()
}

/// One cell as read: family, qualifier, timestamp, value, labels.
pub(crate) type ReadCell = (String, Vec<u8>, i64, Vec<u8>, Vec<String>);

/// A row as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReadRow {
    pub(crate) key: Vec<u8>,
    pub(crate) cells: Vec<ReadCell>,
}

/// All that a scan sent, and how it ended.
pub(crate) struct Scanned {
    pub(crate) messages: Vec<pb::ReadRowsResponse>,
    pub(crate) end: Result<(), Status>,
}

pub(crate) async fn scan(
    client: &mut BigtableClient<Channel>,
    request: impl tonic::IntoRequest<pb::ReadRowsRequest>,
) -> Scanned {
    let mut messages = Vec::new();
    let run = async {
        let mut stream = client.read_rows(request).await?.into_inner();
        while let Some(message) = stream.message().await? {
            messages.push(message);
        }
        Ok(())
    };
    let end = soon(run).await;
    Scanned { messages, end }
}

pub(crate) fn whole(table: &str) -> pb::ReadRowsRequest {
    pb::ReadRowsRequest {
        table_name: table.to_owned(),
        ..Default::default()
    }
}

impl Scanned {
    /// The committed rows, checking the rules of chunks on the way.
    pub(crate) fn rows(&self) -> Vec<ReadRow> {
        let mut rows = Vec::new();
        let mut row: Option<ReadRow> = None;
        let (mut family, mut qualifier) = (None, None);
        // Declared and received bytes of a value that continues.
        let mut open: Option<(usize, ReadCell)> = None;
        for chunk in self.messages.iter().flat_map(|message| &message.chunks) {
            if chunk.row_status == Some(RowStatus::ResetRow(true)) {
                assert!(
                    chunk.row_key.is_empty() && chunk.value.is_empty(),
                    "a reset is alone"
                );
                assert!(row.is_some(), "a reset follows the beginning of a row");
                (row, family, qualifier, open) = (None, None, None, None);
                continue;
            }
            let current = row.get_or_insert_with(|| {
                assert!(!chunk.row_key.is_empty(), "a row begins with its key");
                ReadRow {
                    key: chunk.row_key.to_vec(),
                    cells: Vec::new(),
                }
            });
            assert!(
                chunk.row_key.is_empty() || chunk.row_key == current.key,
                "one row at a time"
            );
            let (declared, mut cell) = match open.take() {
                Some((declared, mut cell)) => {
                    cell.3.extend_from_slice(&chunk.value);
                    (Some(declared), cell)
                }
                None => {
                    if let Some(name) = &chunk.family_name {
                        assert!(chunk.qualifier.is_some(), "a family comes with a qualifier");
                        family = Some(name.clone());
                    }
                    if let Some(name) = &chunk.qualifier {
                        qualifier = Some(name.clone());
                    }
                    let cell = (
                        family.clone().expect("a row begins with a family"),
                        qualifier.clone().expect("a row begins with a qualifier"),
                        chunk.timestamp_micros,
                        chunk.value.to_vec(),
                        chunk.labels.clone(),
                    );
                    (None, cell)
                }
            };
            if chunk.value_size > 0 {
                assert!(chunk.row_status.is_none(), "no commit inside a value");
                let size = usize::try_from(chunk.value_size).expect("a size");
                assert!(declared.is_none_or(|declared| declared == size));
                open = Some((size, std::mem::take(&mut cell)));
                continue;
            }
            if let Some(declared) = declared {
                assert_eq!(
                    cell.3.len(),
                    declared,
                    "a split value has its declared size"
                );
            }
            current.cells.push(cell);
            if chunk.row_status == Some(RowStatus::CommitRow(true)) {
                rows.extend(row.take());
                (family, qualifier) = (None, None);
            }
        }
        rows
    }

    /// The keys of the committed rows.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.rows()
            .into_iter()
            .map(|row| String::from_utf8_lossy(&row.key).into_owned())
            .collect()
    }
}
