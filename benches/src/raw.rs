//! The raw loops that Bigtable writes are measured against: no connector, no retry, no verdicts.
//!
//! *Stub*: requests as generated structs through the generated client. *Body*: requests encoded by hand into one buffer a
//! request and sent as the HTTP body, answers counted by hand; the best loop we know.

use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as pb;
use http_body_util::BodyExt;
use pb::bigtable_client::BigtableClient;
use tonic::transport::Channel;
use tower::Service;

/// What is sent: every loop and the connector alike.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Rows.
    pub rows: u64,
    /// Bytes of the one cell of a row.
    pub value_bytes: usize,
    /// Rows a request.
    pub batch: usize,
    /// Requests in flight.
    pub in_flight: usize,
}

/// Family of the one cell.
pub const FAMILY: &str = "cf";
/// Qualifier of the one cell.
pub const QUALIFIER: &[u8] = b"payload";
/// Its timestamp in microseconds.
pub const TIMESTAMP: i64 = 1_700_000_000_000_000;

/// The key of row `n`, 16 bytes, into `key`.
pub fn key_into(n: u64, key: &mut [u8; 16]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    // A fixed bijection, so that neighbours in time are no neighbours in the table.
    let mut bits = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for at in (0..16).rev() {
        key[at] = HEX[(bits & 15) as usize];
        bits >>= 4;
    }
}

/// The value of every row, shared by all loops.
#[must_use]
pub fn value(bytes: usize) -> Bytes {
    (0..bytes)
        .map(|at| (at * 31 % 251) as u8)
        .collect::<Vec<u8>>()
        .into()
}

/// A channel with the windows that all loops use.
///
/// # Panics
///
/// If the service is not there.
pub async fn channel(endpoint: &str) -> Channel {
    tonic::transport::Endpoint::from_shared(format!("http://{endpoint}"))
        .expect("a valid address")
        .initial_stream_window_size(2 << 20)
        .initial_connection_window_size(8 << 20)
        .tcp_nodelay(true)
        .connect()
        .await
        .expect("the service accepts connections")
}

/// Sends the load through the generated client.
///
/// # Panics
///
/// If the service refuses anything.
pub async fn stub_loop(channel: Channel, table: &str, load: Load) -> u64 {
    let value = value(load.value_bytes);
    let client = BigtableClient::new(channel).max_decoding_message_size(64 << 20);
    let mut calls = FuturesUnordered::new();
    let (mut next, mut acknowledged) = (0, 0);
    while next < load.rows || !calls.is_empty() {
        while next < load.rows && calls.len() < load.in_flight {
            let end = (next + load.batch as u64).min(load.rows);
            let entries = (next..end)
                .map(|n| {
                    let mut key = [0; 16];
                    key_into(n, &mut key);
                    pb::mutate_rows_request::Entry {
                        row_key: Bytes::copy_from_slice(&key),
                        mutations: vec![pb::Mutation {
                            mutation: Some(pb::mutation::Mutation::SetCell(
                                pb::mutation::SetCell {
                                    family_name: FAMILY.to_owned(),
                                    column_qualifier: Bytes::copy_from_slice(QUALIFIER),
                                    timestamp_micros: TIMESTAMP,
                                    value: Bytes::copy_from_slice(&value),
                                },
                            )),
                        }],
                        ..Default::default()
                    }
                })
                .collect();
            next = end;
            let request = pb::MutateRowsRequest {
                table_name: table.to_owned(),
                entries,
                ..Default::default()
            };
            let mut client = client.clone();
            calls.push(async move {
                let mut answers = client
                    .mutate_rows(request)
                    .await
                    .expect("the service answers")
                    .into_inner();
                let mut applied = 0;
                while let Some(answer) = answers.message().await.expect("the stream goes on") {
                    applied += answer
                        .entries
                        .iter()
                        .filter(|entry| entry.status.as_ref().is_none_or(|status| status.code == 0))
                        .count() as u64;
                }
                applied
            });
        }
        if let Some(applied) = calls.next().await {
            acknowledged += applied;
        }
    }
    acknowledged
}

/// Sends the load as request bodies built by hand.
///
/// # Panics
///
/// If the service refuses anything.
pub async fn body_loop(mut channel: Channel, table: &str, load: Load) -> u64 {
    let value = value(load.value_bytes);
    let mut calls = FuturesUnordered::new();
    let (mut next, mut acknowledged) = (0, 0);
    while next < load.rows || !calls.is_empty() {
        while next < load.rows && calls.len() < load.in_flight {
            let end = (next + load.batch as u64).min(load.rows);
            let body = request_body(table, next..end, &value, load.batch);
            next = end;
            let request = http::Request::builder()
                .method(http::Method::POST)
                .uri("/google.bigtable.v2.Bigtable/MutateRows")
                .header(http::header::TE, "trailers")
                .header(http::header::CONTENT_TYPE, "application/grpc")
                .header("grpc-timeout", "60S")
                .header("x-goog-request-params", "table_name=t&app_profile_id=")
                .body(tonic::body::Body::new(http_body_util::Full::new(body)))
                .expect("a well-formed request");
            std::future::poll_fn(|cx| channel.poll_ready(cx))
                .await
                .expect("the channel is open");
            let call = channel.call(request);
            calls.push(async move {
                let response = call.await.expect("the service answers");
                let mut body = response.into_body();
                let mut applied = 0;
                while let Some(frame) = body.frame().await {
                    let frame = frame.expect("the stream goes on");
                    if let Some(data) = frame.data_ref() {
                        applied += count_entries(data);
                    } else if let Some(trailers) = frame.trailers_ref() {
                        assert_eq!(trailers["grpc-status"], "0");
                    }
                }
                applied
            });
        }
        if let Some(applied) = calls.next().await {
            acknowledged += applied;
        }
    }
    acknowledged
}

/// A whole request with its gRPC prefix, in one buffer.
fn request_body(table: &str, rows: std::ops::Range<u64>, value: &[u8], batch: usize) -> Bytes {
    let cell = 1
        + varint_len(FAMILY.len())
        + FAMILY.len()
        + 1
        + varint_len(QUALIFIER.len())
        + QUALIFIER.len()
        + 1
        + varint_len(TIMESTAMP as usize)
        + 1
        + varint_len(value.len())
        + value.len();
    let mutation = 1 + varint_len(cell) + cell;
    let entry = 1 + 1 + 16 + 1 + varint_len(mutation) + mutation;
    let mut body =
        BytesMut::with_capacity(5 + 3 + table.len() + batch * (1 + varint_len(entry) + entry));
    body.put_bytes(0, 5);
    body.put_u8(0x0a);
    put_varint(&mut body, table.len());
    body.put_slice(table.as_bytes());
    for n in rows {
        let mut key = [0; 16];
        key_into(n, &mut key);
        body.put_u8(0x12);
        put_varint(&mut body, entry);
        body.put_slice(&[0x0a, 16]);
        body.put_slice(&key);
        body.put_u8(0x12);
        put_varint(&mut body, mutation);
        body.put_u8(0x0a);
        put_varint(&mut body, cell);
        body.put_u8(0x0a);
        put_varint(&mut body, FAMILY.len());
        body.put_slice(FAMILY.as_bytes());
        body.put_u8(0x12);
        put_varint(&mut body, QUALIFIER.len());
        body.put_slice(QUALIFIER);
        body.put_u8(0x18);
        put_varint(&mut body, TIMESTAMP as usize);
        body.put_u8(0x22);
        put_varint(&mut body, value.len());
        body.put_slice(value);
    }
    let length = u32::try_from(body.len() - 5).expect("far below 4 GiB");
    body[1..5].copy_from_slice(&length.to_be_bytes());
    body.freeze()
}

const fn varint_len(value: usize) -> usize {
    (value | 1).ilog2() as usize / 7 + 1
}

fn put_varint(buffer: &mut BytesMut, mut value: usize) {
    while value >= 0x80 {
        buffer.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    buffer.put_u8(value as u8);
}

/// Counts the entries of the answer in `data`: one whole gRPC message a frame, as the discarding service sends it.
fn count_entries(data: &[u8]) -> u64 {
    let (mut at, mut count) = (5, 0);
    while at + 1 < data.len() {
        // Field 1, length-delimited: an entry; all of them are shorter than 128 bytes.
        assert_eq!(data[at], 0x0a, "only entries are expected");
        at += 2 + usize::from(data[at + 1]);
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn both_loops_send_the_same_rows() {
        let value = value(100);
        let body = request_body("projects/p/instances/i/tables/t", 0..3, &value, 3);
        let request = pb::MutateRowsRequest::decode(&body[5..]).expect("a well-formed request");
        assert_eq!(request.table_name, "projects/p/instances/i/tables/t");
        assert_eq!(request.entries.len(), 3);
        let mut key = [0; 16];
        key_into(2, &mut key);
        assert_eq!(request.entries[2].row_key.as_ref(), key);
        let Some(pb::mutation::Mutation::SetCell(cell)) = &request.entries[2].mutations[0].mutation
        else {
            panic!("a set-cell is expected");
        };
        assert_eq!(
            (cell.family_name.as_str(), cell.value.as_ref()),
            (FAMILY, value.as_ref())
        );
        assert_eq!(cell.timestamp_micros, TIMESTAMP);
    }
}
