//! `ReadRows` and `SampleRowKeys`.
//!
//! A scan is a cursor: each step locks the table, filters a bounded number of rows and yields a
//! message, so a large table is never held in memory twice and a slow reader holds no lock. Like
//! the service it promises consistency for a row, not for the scan.

use std::{collections::VecDeque, sync::Arc};

use base64::Engine;
use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as pb;
use pb::read_rows_response::{CellChunk, cell_chunk::RowStatus};
use prost::Message;
use tonic::{Code, Status};

use super::{
    chunks::{Chunker, frame},
    filter::{Filter, View},
    slot::Slot,
    store::{Refusal, check_key},
};
use crate::config::Limits;

/// Rows looked at in one step at most, and bytes of chunks produced.
const STEP_ROWS: usize = 4_096;
const STEP_BYTES: usize = 1 << 20;

/// Keys from `start` to `end`, exclusively; no end means the end of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyRange {
    start: Vec<u8>,
    end: Option<Vec<u8>>,
}

fn after(key: &[u8]) -> Vec<u8> {
    let mut key = key.to_vec();
    key.push(0);
    key
}

/// The ranges of a row set, checked, sorted and merged.
pub(crate) fn ranges(
    set: Option<&pb::RowSet>,
    limits: &Limits,
) -> Result<VecDeque<KeyRange>, Refusal> {
    use pb::row_range::{EndKey, StartKey};
    let mut ranges = Vec::new();
    for key in set.iter().flat_map(|set| &set.row_keys) {
        check_key(key, limits)?;
        ranges.push(KeyRange {
            start: key.to_vec(),
            end: Some(after(key)),
        });
    }
    for range in set.iter().flat_map(|set| &set.row_ranges) {
        let start = match &range.start_key {
            None => Vec::new(),
            Some(StartKey::StartKeyClosed(key)) => key.to_vec(),
            Some(StartKey::StartKeyOpen(key)) => after(key),
        };
        let end = match &range.end_key {
            None => None,
            Some(EndKey::EndKeyOpen(key) | EndKey::EndKeyClosed(key)) if key.is_empty() => None,
            Some(EndKey::EndKeyOpen(key)) => Some(key.to_vec()),
            Some(EndKey::EndKeyClosed(key)) => Some(after(key)),
        };
        // Measured 2026-08-10: an empty range is refused, not answered empty.
        if end.as_ref().is_some_and(|end| start >= *end) {
            return Err(Refusal::invalid(
                "Error in field 'rows' : Error in field 'row_ranges' : \
                 start_key must be less than end_key",
            ));
        }
        ranges.push(KeyRange { start, end });
    }
    if ranges.is_empty() {
        // An empty row set asks for the whole table.
        ranges.push(KeyRange {
            start: Vec::new(),
            end: None,
        });
    }
    ranges.sort_by(|a, b| a.start.cmp(&b.start));
    let mut merged: VecDeque<KeyRange> = VecDeque::with_capacity(ranges.len());
    for range in ranges {
        match merged.back_mut() {
            Some(last) if last.end.as_ref().is_none_or(|end| range.start <= *end) => {
                last.end = match (last.end.take(), range.end) {
                    (Some(a), Some(b)) => Some(a.max(b)),
                    _ => None,
                };
            }
            _ => merged.push_back(range),
        }
    }
    Ok(merged)
}

/// What a scan yields next.
pub(crate) enum Step {
    /// A framed message.
    Message(Bytes),
    /// Nothing yet: many rows were passed; go on after others had their turn.
    Working,
    /// The end, with the status of the call.
    End(Status),
}

/// An open `ReadRows` call.
pub(crate) struct Scan {
    slot: Arc<Slot>,
    limits: Limits,
    ranges: VecDeque<KeyRange>,
    filter: Option<Filter>,
    rows_left: Option<u64>,
    reversed: bool,
    chunker: Chunker,
    /// Chunks and scanned keys not yet sent, in order.
    ready: VecDeque<Ready>,
    failed: Option<Status>,
    /// Rows passed since the last sign of progress, and whether the client reads such signs.
    passed: usize,
    tells_scanned: bool,
    stats: Option<pb::ReadIterationStats>,
    /// Chunks that may still be sent before a scripted break.
    chunks_left: Option<usize>,
    finished: bool,
}

enum Ready {
    Chunk(CellChunk),
    Scanned(Vec<u8>),
}

impl Scan {
    pub(crate) fn open(
        slot: Arc<Slot>,
        request: &pb::ReadRowsRequest,
        tells_scanned: bool,
        limits: &Limits,
    ) -> Result<Self, Refusal> {
        let ranges = ranges(request.rows.as_ref(), limits)?;
        let rows_left = match request.rows_limit {
            0 => None,
            limit => Some(
                u64::try_from(limit)
                    .map_err(|_| Refusal::invalid("rows_limit must not be negative"))?,
            ),
        };
        let filter = {
            let mut state = slot.open()?;
            let table = state.table();
            request
                .filter
                .as_ref()
                .filter(|filter| filter.filter.is_some())
                .map(|filter| Filter::compile(filter, table, limits))
                .transpose()?
        };
        let full = pb::read_rows_request::RequestStatsView::RequestStatsFull as i32;
        Ok(Self {
            chunker: Chunker::new(slot.chunking()),
            slot,
            limits: limits.clone(),
            ranges,
            filter,
            rows_left,
            reversed: request.reversed,
            ready: VecDeque::new(),
            failed: None,
            passed: 0,
            tells_scanned,
            stats: (request.request_stats_view == full).then(pb::ReadIterationStats::default),
            chunks_left: None,
            finished: false,
        })
    }

    /// Ends the scan, without status, after that many chunks.
    pub(crate) fn break_after(&mut self, chunks: usize) {
        self.chunks_left = Some(chunks);
    }

    /// Whether a scripted break was reached.
    pub(crate) fn broken(&self) -> bool {
        self.chunks_left == Some(0)
    }

    pub(crate) fn step(&mut self) -> Step {
        if self.broken() {
            return Step::Working;
        }
        if self.ready.is_empty() && !self.finished {
            self.advance();
        }
        if let Some(message) = self.message() {
            return Step::Message(message);
        }
        if !self.finished {
            return Step::Working;
        }
        if let Some(status) = self.failed.take() {
            return Step::End(status);
        }
        match self.stats.take() {
            Some(stats) => Step::Message(frame(&pb::ReadRowsResponse {
                request_stats: Some(pb::RequestStats {
                    stats_view: Some(pb::request_stats::StatsView::FullReadStatsView(
                        pb::FullReadStatsView {
                            read_iteration_stats: Some(stats),
                            request_latency_stats: None,
                        },
                    )),
                }),
                ..Default::default()
            })),
            None => Step::End(Status::new(Code::Ok, "")),
        }
    }

    /// Fills `ready` from the table, up to the bounds of one step.
    fn advance(&mut self) {
        let slot = self.slot.clone();
        let mut state = slot.lock();
        let Some(table) = state.existing() else {
            self.finished = true;
            let missing = slot.missing();
            self.failed = Some(Status::new(missing.code, missing.message));
            return;
        };
        let (mut rows, mut bytes) = (0, 0);
        let mut chunks = Vec::new();
        while rows < STEP_ROWS && bytes < STEP_BYTES {
            let next = if self.reversed {
                self.ranges.back()
            } else {
                self.ranges.front()
            };
            let Some(range) = next else {
                self.finished = true;
                return;
            };
            let mut between = table.live_between(&range.start, range.end.as_deref());
            let found = if self.reversed {
                between.next_back()
            } else {
                between.next()
            };
            let Some((key, row)) = found else {
                drop(between);
                if self.reversed {
                    self.ranges.pop_back()
                } else {
                    self.ranges.pop_front()
                };
                continue;
            };
            drop(between);
            rows += 1;
            let size: usize = row.cells.iter().map(|cell| cell.value.len()).sum();
            if size > self.limits.row_bytes {
                self.finished = true;
                self.failed = Some(large_row(key, size, self.limits.row_bytes));
                return;
            }
            let cells: Vec<View<'_>> = row
                .cells
                .iter()
                .map(|cell| View::new(cell, table.family_name(cell.family)))
                .collect();
            if let Some(stats) = &mut self.stats {
                stats.rows_seen_count += 1;
                stats.cells_seen_count += i64::try_from(cells.len()).unwrap_or(i64::MAX);
            }
            let cells = match &self.filter {
                Some(filter) => filter.apply(key, cells),
                None => cells,
            };
            if cells.is_empty() {
                self.passed += 1;
                if self.tells_scanned && self.chunker.reports_scanned(self.passed) {
                    self.passed = 0;
                    self.ready.push_back(Ready::Scanned(key.to_vec()));
                }
            } else {
                self.passed = 0;
                if let Some(stats) = &mut self.stats {
                    stats.rows_returned_count += 1;
                    stats.cells_returned_count += i64::try_from(cells.len()).unwrap_or(i64::MAX);
                }
                bytes += size + 64 * cells.len();
                self.chunker.row(key, &cells, &mut chunks);
                self.ready.extend(chunks.drain(..).map(Ready::Chunk));
                if let Some(left) = &mut self.rows_left {
                    *left -= 1;
                    if *left == 0 {
                        self.finished = true;
                        return;
                    }
                }
            }
            // The row is dealt with: what is left starts after it, or ends before it.
            if self.reversed {
                if let Some(range) = self.ranges.back_mut() {
                    range.end = Some(key.to_vec());
                }
            } else if let Some(range) = self.ranges.front_mut() {
                range.start = after(key);
            }
        }
    }

    /// The next message out of what is ready.
    fn message(&mut self) -> Option<Bytes> {
        let mut response = pb::ReadRowsResponse::default();
        let mut bytes = 0;
        while let Some(next) = self.ready.front() {
            if matches!(next, Ready::Scanned(_)) && !response.chunks.is_empty() {
                break;
            }
            let Some(next) = self.ready.pop_front() else {
                break;
            };
            match next {
                Ready::Scanned(key) => {
                    response.last_scanned_row_key = key.into();
                    break;
                }
                Ready::Chunk(chunk) => {
                    bytes += chunk.value.len() + chunk.row_key.len() + 32;
                    let committed = matches!(chunk.row_status, Some(RowStatus::CommitRow(_)));
                    response.chunks.push(chunk);
                    if let Some(left) = &mut self.chunks_left {
                        *left -= 1;
                        if *left == 0 {
                            break;
                        }
                    }
                    if self.chunker.ends_message(bytes, committed) {
                        break;
                    }
                }
            }
        }
        let empty = response.chunks.is_empty() && response.last_scanned_row_key.is_empty();
        (!empty).then(|| frame(&response))
    }
}

/// A row above the limit of reading, told as the service tells it.
fn large_row(key: &[u8], bytes: usize, limit: usize) -> Status {
    let key = base64::engine::general_purpose::STANDARD.encode(key);
    super::details::status_with(
        Code::FailedPrecondition,
        format!("Error while reading: row of {bytes} bytes exceeds the limit of {limit}"),
        vec![super::details::error_info(
            "LargeRowReadError",
            [("rowKeyBase64Encoded".to_owned(), key)],
        )],
    )
}

/// Whether the client said in `bigtable-features` that it reads scanned keys.
pub(crate) fn reads_scanned_keys(features: Option<&str>) -> bool {
    let Some(features) = features else {
        return false;
    };
    let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
    engine
        .decode(features.trim_end_matches('='))
        .ok()
        .and_then(|bytes| pb::FeatureFlags::decode(&*bytes).ok())
        .is_some_and(|flags| flags.last_scanned_row_responses)
}

/// The messages of `SampleRowKeys`, one a tablet.
pub(crate) fn samples(slot: &Slot) -> Result<Vec<Bytes>, Refusal> {
    let mut state = slot.open()?;
    Ok(state
        .table()
        .samples()
        .into_iter()
        .map(|(key, offset_bytes)| {
            frame(&pb::SampleRowKeysResponse {
                row_key: key.into(),
                offset_bytes,
            })
        })
        .collect())
}

#[cfg(test)]
mod tests;
