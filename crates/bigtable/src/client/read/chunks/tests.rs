//! Tests of the chunk decoder: rows assembled, malformed sequences refused.

use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::ReadRowsResponse;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_response::CellChunk;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_response::cell_chunk::RowStatus as WireStatus;
use proptest::prelude::*;
use prost::Message;

use super::*;

type Cell = (String, Vec<u8>, i64, Vec<u8>, Vec<String>);
type Row = (Vec<u8>, Vec<Cell>);

fn rows_of(batch: &RowBatch) -> Vec<Row> {
    batch
        .iter()
        .map(|row| {
            let cells = row.cells().map(|cell| {
                (
                    cell.family().to_owned(),
                    cell.qualifier().to_vec(),
                    cell.timestamp_micros(),
                    cell.value().to_vec(),
                    cell.labels().map(str::to_owned).collect(),
                )
            });
            (row.key().to_vec(), cells.collect())
        })
        .collect()
}

fn estimate(row: &Row) -> u64 {
    let cells = row.1.iter().map(|cell| {
        cell.0.len()
            + cell.1.len()
            + 8
            + cell.3.len()
            + cell.4.iter().map(String::len).sum::<usize>()
    });
    (row.0.len() + cells.sum::<usize>()) as u64
}

fn message(chunks: Vec<CellChunk>) -> Bytes {
    ReadRowsResponse {
        chunks,
        ..ReadRowsResponse::default()
    }
    .encode_to_vec()
    .into()
}

/// Decodes messages one after the other and ends the stream. With `clear_each`, the rows are taken out after every
/// message, as a reader does.
fn decode(
    order: ScanOrder,
    messages: &[Bytes],
    clear_each: bool,
) -> (Vec<Row>, Result<(), ProtocolError>) {
    let mut decoder = RowDecoder::new(order);
    let mut batch = RowBatch::new();
    let mut rows = Vec::new();
    let mut result = Ok(());
    for message in messages {
        result = decoder.decode(message.clone(), &mut batch);
        if clear_each || result.is_err() {
            rows.extend(rows_of(&batch));
            batch.clear_rows();
        }
        if result.is_err() {
            break;
        }
    }
    rows.extend(rows_of(&batch));
    (rows, result.and_then(|()| decoder.finish()))
}

struct Case {
    name: String,
    chunks: Vec<CellChunk>,
    cells: Vec<String>,
    ok: bool,
}

fn acceptance_cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in include_str!("acceptance.txt").lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix("= ") {
            cases.push(Case {
                name: name.to_owned(),
                chunks: vec![],
                cells: vec![],
                ok: false,
            });
            continue;
        }
        let case = cases.last_mut().expect("a case begins with its name");
        match line {
            "ok" => case.ok = true,
            "error" => case.ok = false,
            _ => match line.strip_prefix("> ") {
                Some(cell) => case.cells.push(cell.to_owned()),
                None => case.chunks.push(chunk_of(line)),
            },
        }
    }
    cases
}

fn chunk_of(line: &str) -> CellChunk {
    let mut chunk = CellChunk::default();
    for field in line.split_whitespace() {
        match field.split_once('=') {
            Some(("k", key)) => chunk.row_key = key.as_bytes().to_vec().into(),
            Some(("f", family)) => chunk.family_name = Some(family.to_owned()),
            Some(("q", qualifier)) => chunk.qualifier = Some(qualifier.as_bytes().to_vec()),
            Some(("t", at)) => chunk.timestamp_micros = at.parse().expect("a number"),
            Some(("l", label)) => chunk.labels.push(label.to_owned()),
            Some(("v", value)) => chunk.value = value.as_bytes().to_vec().into(),
            Some(("s", size)) => chunk.value_size = size.parse().expect("a number"),
            None if field == "commit" => chunk.row_status = Some(WireStatus::CommitRow(true)),
            None if field == "reset" => chunk.row_status = Some(WireStatus::ResetRow(true)),
            None if field == "-" => {}
            _ => panic!("unknown field {field}"),
        }
    }
    chunk
}

#[test]
fn every_reader_decides_the_public_acceptance_cases_alike() {
    let cases = acceptance_cases();
    assert!(cases.len() >= 55, "the file was read");
    for case in cases {
        let shown = |rows: &[Row]| -> Vec<String> {
            let text = |bytes: &[u8]| match bytes {
                [] => "''".to_owned(),
                bytes => String::from_utf8_lossy(bytes).into_owned(),
            };
            rows.iter()
                .flat_map(|(key, cells)| {
                    cells
                        .iter()
                        .map(move |(family, qualifier, at, value, labels)| {
                            let mut line = format!(
                                "{} {family} {} {at} {}",
                                text(key),
                                text(qualifier),
                                text(value)
                            );
                            for label in labels {
                                line.push(' ');
                                line.push_str(label);
                            }
                            line
                        })
                })
                .collect()
        };
        let each: Vec<Bytes> = case
            .chunks
            .iter()
            .map(|chunk| message(vec![chunk.clone()]))
            .collect();
        let together = [message(case.chunks.clone())];
        for (messages, clear_each) in [
            (&each[..], false),
            (&each[..], true),
            (&together[..], false),
        ] {
            let (rows, result) = decode(ScanOrder::Forward, messages, clear_each);
            assert_eq!(shown(&rows), case.cells, "{}", case.name);
            assert_eq!(result.is_ok(), case.ok, "{}: {result:?}", case.name);
        }
    }
}

/// The rules of BT-WIRE-07 once more, as plainly as possible, over the generated types.
fn reference(order: ScanOrder, chunks: &[CellChunk]) -> (Vec<Row>, bool) {
    struct Open {
        row: Row,
        family: String,
        qualifier: Vec<u8>,
        value: Option<(i32, i64, Vec<String>, Vec<u8>)>,
    }
    let mut rows: Vec<Row> = vec![];
    let mut open: Option<Open> = None;
    for chunk in chunks {
        let reset = chunk.row_status == Some(WireStatus::ResetRow(true));
        let commit = chunk.row_status == Some(WireStatus::CommitRow(true));
        if reset {
            let bare = CellChunk {
                row_status: chunk.row_status,
                ..CellChunk::default()
            };
            if open.is_none() || *chunk != bare {
                return (rows, false);
            }
            open = None;
            continue;
        }
        let mut row = match open.take() {
            Some(row) => row,
            None => {
                let ordered = rows.last().is_none_or(|last| match order {
                    ScanOrder::Forward => chunk.row_key > last.0,
                    ScanOrder::Reverse => chunk.row_key < last.0,
                });
                if chunk.row_key.is_empty()
                    || !ordered
                    || chunk.family_name.is_none()
                    || chunk.qualifier.is_none()
                {
                    return (rows, false);
                }
                Open {
                    row: (chunk.row_key.to_vec(), vec![]),
                    family: String::new(),
                    qualifier: vec![],
                    value: None,
                }
            }
        };
        let (declared, at, labels, mut bytes) = match row.value.take() {
            Some(value) => {
                let bare = CellChunk {
                    value: chunk.value.clone(),
                    value_size: chunk.value_size,
                    row_status: chunk.row_status,
                    ..CellChunk::default()
                };
                if *chunk != bare || (chunk.value_size != 0 && chunk.value_size != value.0) {
                    return (rows, false);
                }
                value
            }
            None => {
                if !chunk.row_key.is_empty() && chunk.row_key != row.row.0 {
                    return (rows, false);
                }
                if let Some(family) = &chunk.family_name {
                    if chunk.qualifier.is_none() {
                        return (rows, false);
                    }
                    row.family.clone_from(family);
                }
                if let Some(qualifier) = &chunk.qualifier {
                    row.qualifier.clone_from(qualifier);
                }
                if chunk.value_size < 0 {
                    return (rows, false);
                }
                let declared = if chunk.value_size > 0 {
                    chunk.value_size
                } else {
                    i32::try_from(chunk.value.len()).expect("small")
                };
                (
                    declared,
                    chunk.timestamp_micros,
                    chunk.labels.clone(),
                    vec![],
                )
            }
        };
        bytes.extend_from_slice(&chunk.value);
        let declared_len = usize::try_from(declared).expect("not negative");
        if bytes.len() > declared_len {
            return (rows, false);
        }
        if chunk.value_size > 0 {
            if commit {
                return (rows, false);
            }
            row.value = Some((declared, at, labels, bytes));
        } else {
            if bytes.len() != declared_len {
                return (rows, false);
            }
            row.row
                .1
                .push((row.family.clone(), row.qualifier.clone(), at, bytes, labels));
        }
        if commit {
            rows.push(row.row);
        } else {
            open = Some(row);
        }
    }
    (rows, open.is_none())
}

fn any_chunk() -> impl Strategy<Value = CellChunk> {
    let small = || prop::collection::vec(prop::sample::select(vec![b'a', b'b']), 0..3);
    (
        (
            prop::option::weighted(0.4, small()),
            prop::option::weighted(0.4, "[AB]"),
            prop::option::weighted(0.5, small()),
            prop::option::weighted(0.3, any::<i64>()),
        ),
        (
            prop::collection::vec("[xyz]{0,2}", 0..2),
            small(),
            prop::option::weighted(0.2, -1..5i32),
            prop::option::weighted(
                0.5,
                prop_oneof![
                    6 => Just(WireStatus::CommitRow(true)),
                    1 => Just(WireStatus::CommitRow(false)),
                    1 => Just(WireStatus::ResetRow(true)),
                    1 => Just(WireStatus::ResetRow(false)),
                ],
            ),
        ),
    )
        .prop_map(
            |((key, family, qualifier, at), (labels, value, size, row_status))| CellChunk {
                row_key: key.unwrap_or_default().into(),
                family_name: family,
                qualifier,
                timestamp_micros: at.unwrap_or_default(),
                labels,
                value: value.into(),
                value_size: size.unwrap_or_default(),
                row_status,
            },
        )
}

/// Rows with distinct, ascending keys.
fn known_rows() -> impl Strategy<Value = Vec<Row>> {
    let cell = (
        "[a-c]",
        prop::collection::vec(any::<u8>(), 0..3),
        any::<i64>(),
        prop::collection::vec(any::<u8>(), 0..40),
        prop::collection::vec("[a-z]{1,4}", 0..2),
    );
    prop::collection::btree_map(
        prop::collection::vec(any::<u8>(), 1..4),
        prop::collection::vec(cell, 1..4),
        0..6,
    )
    .prop_map(|rows| rows.into_iter().collect())
}

/// Sends `rows` as a service might: values in pieces, repeated parts omitted or not, unfinished rows reset and begun anew.
fn chunked(rows: &[Row], random: &mut fastrand::Rng) -> Vec<CellChunk> {
    let mut chunks = vec![];
    for row in rows {
        let complete = row_chunks(row, random);
        while random.u8(0..4) == 0 {
            let begun = random.usize(1..=complete.len());
            let mut part = complete[..begun].to_vec();
            part.last_mut().expect("at least one").row_status = None;
            chunks.extend(part);
            chunks.push(CellChunk {
                row_status: Some(WireStatus::ResetRow(true)),
                ..CellChunk::default()
            });
        }
        chunks.extend(complete);
    }
    chunks
}

fn row_chunks((key, cells): &Row, random: &mut fastrand::Rng) -> Vec<CellChunk> {
    let mut chunks: Vec<CellChunk> = vec![];
    let mut last: Option<&Cell> = None;
    for cell in cells {
        let first = last.is_none();
        let new_family = last.is_none_or(|last| last.0 != cell.0) || random.bool();
        let new_qualifier = new_family || last.is_none_or(|last| last.1 != cell.1) || random.bool();
        let size = i32::try_from(cell.3.len()).expect("small");
        let mut rest = &cell.3[..];
        let mut chunk = CellChunk {
            row_key: if first || random.bool() {
                key.clone().into()
            } else {
                Bytes::new()
            },
            family_name: new_family.then(|| cell.0.clone()),
            qualifier: new_qualifier.then(|| cell.1.clone()),
            timestamp_micros: cell.2,
            labels: cell.4.clone(),
            ..CellChunk::default()
        };
        while rest.len() > 1 && random.bool() {
            let (piece, tail) = rest.split_at(random.usize(1..rest.len()));
            chunk.value = piece.to_vec().into();
            chunk.value_size = size;
            chunks.push(std::mem::take(&mut chunk));
            rest = tail;
        }
        chunk.value = rest.to_vec().into();
        chunks.push(chunk);
        last = Some(cell);
    }
    chunks.last_mut().expect("rows have cells").row_status = Some(WireStatus::CommitRow(true));
    chunks
}

fn messages_of(chunks: &[CellChunk], random: &mut fastrand::Rng) -> Vec<Bytes> {
    let mut messages = vec![];
    let mut rest = chunks;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(random.usize(1..=rest.len()));
        messages.push(message(now.to_vec()));
        if random.bool() {
            messages.push(message(vec![]));
        }
        rest = later;
    }
    messages
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn known_rows_arrive_the_same_however_they_are_cut(rows in known_rows(), seed in any::<u64>()) {
        let mut random = fastrand::Rng::with_seed(seed);
        let messages = messages_of(&chunked(&rows, &mut random), &mut random);
        for clear_each in [false, true] {
            let (arrived, result) = decode(ScanOrder::Forward, &messages, clear_each);
            prop_assert_eq!(result, Ok(()));
            prop_assert_eq!(&arrived, &rows);
        }
        let mut decoder = RowDecoder::new(ScanOrder::Forward);
        let mut batch = RowBatch::new();
        for message in &messages {
            decoder.decode(message.clone(), &mut batch).expect("valid");
        }
        prop_assert_eq!(batch.content_bytes(), rows.iter().map(estimate).sum::<u64>());
        for (row, known) in batch.iter().zip(&rows) {
            prop_assert_eq!(row.content_bytes(), estimate(known));
        }
    }

    #[test]
    fn a_stream_cut_anywhere_gives_whole_rows_or_an_error(rows in known_rows(), seed in any::<u64>()) {
        let mut random = fastrand::Rng::with_seed(seed);
        let chunks = chunked(&rows, &mut random);
        let cut = random.usize(0..=chunks.len());
        let (arrived, result) = decode(ScanOrder::Forward, &messages_of(&chunks[..cut], &mut random), true);
        prop_assert_eq!(&arrived[..], &rows[..arrived.len()]);
        let between = cut == 0 || matches!(
            chunks[cut - 1].row_status,
            Some(WireStatus::CommitRow(true) | WireStatus::ResetRow(true))
        );
        prop_assert_eq!(result.is_ok(), between);
    }

    #[test]
    fn a_stream_reopened_behind_the_last_key_neither_loses_nor_repeats(rows in known_rows(), seed in any::<u64>()) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut decoder = RowDecoder::new(ScanOrder::Forward);
        let mut batch = RowBatch::new();
        let mut arrived = vec![];
        loop {
            let left: Vec<Row> = rows
                .iter()
                .filter(|row| row.0.as_slice() > decoder.last_key() || decoder.last_key().is_empty())
                .cloned()
                .collect();
            let chunks = chunked(&left, &mut random);
            let cut = random.usize(0..=chunks.len());
            for message in messages_of(&chunks[..cut], &mut random) {
                decoder.decode(message, &mut batch).expect("valid");
            }
            decoder.restart(&mut batch);
            arrived.extend(rows_of(&batch));
            batch.clear_rows();
            if cut == chunks.len() {
                break;
            }
        }
        prop_assert_eq!(arrived, rows);
    }

    #[test]
    fn any_chunks_are_decided_as_the_plain_rules_decide(
        chunks in prop::collection::vec(any_chunk(), 0..8),
        reverse in any::<bool>(),
    ) {
        let order = if reverse { ScanOrder::Reverse } else { ScanOrder::Forward };
        let (rows, ok) = reference(order, &chunks);
        let each: Vec<Bytes> = chunks.iter().map(|chunk| message(vec![chunk.clone()])).collect();
        for messages in [vec![message(chunks)], each] {
            let (arrived, result) = decode(order, &messages, true);
            prop_assert_eq!(result.is_ok(), ok, "{:?}", result);
            prop_assert_eq!(&arrived, &rows);
        }
    }

    #[test]
    fn damaged_messages_are_refused_as_the_generated_types_refuse_them(
        rows in known_rows(),
        seed in any::<u64>(),
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = message(chunked(&rows, &mut random)).to_vec();
        for _ in 0..random.usize(0..4) {
            if bytes.is_empty() {
                break;
            }
            let at = random.usize(0..bytes.len());
            match random.u8(0..3) {
                0 => bytes[at] = random.u8(..),
                1 => bytes.truncate(at),
                _ => bytes.insert(at, random.u8(..)),
            }
        }
        let (arrived, result) = decode(ScanOrder::Forward, &[bytes.clone().into()], false);
        match ReadRowsResponse::decode(&bytes[..]) {
            // What the generated types cannot read is refused, unless the damage is in statistics, which are skipped.
            Err(_) => prop_assert!(result.is_err() || bytes.contains(&0x1a)),
            Ok(read) if read.last_scanned_row_key.is_empty() => {
                let (rows, ok) = reference(ScanOrder::Forward, &read.chunks);
                if result.is_ok() {
                    prop_assert!(ok);
                    prop_assert_eq!(arrived, rows);
                } else {
                    // Groups, which the generated types skip, are refused here.
                    prop_assert!(!ok || arrived.len() <= rows.len());
                }
            }
            Ok(_) => {}
        }
    }

    #[test]
    fn any_bytes_are_refused_or_decoded_without_a_panic(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..4),
    ) {
        let messages: Vec<Bytes> = messages.into_iter().map(Bytes::from).collect();
        let _ = decode(ScanOrder::Forward, &messages, true);
        let _ = decode(ScanOrder::Reverse, &messages, false);
    }
}

fn one_row(key: &str) -> CellChunk {
    CellChunk {
        row_key: key.as_bytes().to_vec().into(),
        family_name: Some("f".to_owned()),
        qualifier: Some(vec![]),
        value: Bytes::from_static(b"v"),
        row_status: Some(WireStatus::CommitRow(true)),
        ..CellChunk::default()
    }
}

fn scanned(key: &str) -> Bytes {
    ReadRowsResponse {
        last_scanned_row_key: key.as_bytes().to_vec().into(),
        ..ReadRowsResponse::default()
    }
    .encode_to_vec()
    .into()
}

#[test]
fn a_scanned_key_moves_the_position_and_is_refused_inside_a_row_or_backwards() {
    let mut decoder = RowDecoder::new(ScanOrder::Forward);
    let mut batch = RowBatch::new();
    let mut take = |decoder: &mut RowDecoder, message| decoder.decode(message, &mut batch);
    assert_eq!(take(&mut decoder, message(vec![one_row("b")])), Ok(()));
    assert_eq!(take(&mut decoder, scanned("d")), Ok(()));
    assert_eq!(decoder.last_key(), b"d");
    assert_eq!(take(&mut decoder, scanned("d")), Ok(()));
    assert!(take(&mut decoder, scanned("c")).is_err());
    assert!(take(&mut decoder, message(vec![one_row("c")])).is_err());

    let mut decoder = RowDecoder::new(ScanOrder::Forward);
    let begun = CellChunk {
        row_status: None,
        ..one_row("a")
    };
    assert_eq!(take(&mut decoder, message(vec![begun])), Ok(()));
    assert!(take(&mut decoder, scanned("b")).is_err());
}

#[test]
fn a_reverse_scan_descends() {
    let descending = [message(vec![one_row("b"), one_row("a")])];
    assert!(decode(ScanOrder::Reverse, &descending, false).1.is_ok());
    assert!(decode(ScanOrder::Forward, &descending, false).1.is_err());
}

#[test]
fn messages_that_bring_no_cell_are_not_kept() {
    let mut decoder = RowDecoder::new(ScanOrder::Forward);
    let mut batch = RowBatch::new();
    for at in 0..100 {
        decoder
            .decode(scanned(&format!("{at:03}")), &mut batch)
            .expect("ascending");
    }
    assert!(batch.buffers.is_empty(), "scanned keys");
    let piece = |value_size| CellChunk {
        value: vec![7; 100].into(),
        value_size,
        ..CellChunk::default()
    };
    let first = CellChunk {
        value: Bytes::new(),
        value_size: 10_000,
        row_status: None,
        ..one_row("r")
    };
    decoder
        .decode(message(vec![first]), &mut batch)
        .expect("valid");
    for _ in 0..99 {
        decoder
            .decode(message(vec![piece(10_000)]), &mut batch)
            .expect("valid");
    }
    assert_eq!(batch.buffers.len(), 1, "pieces of a value");
    let last = CellChunk {
        row_status: Some(WireStatus::CommitRow(true)),
        ..piece(0)
    };
    decoder
        .decode(message(vec![last]), &mut batch)
        .expect("valid");
    let row = batch.get(0).expect("committed");
    assert_eq!(row.cells().next().expect("one cell").value(), [7; 10_000]);
}

#[test]
fn values_share_the_message_they_came_in() {
    let bytes = message(vec![one_row("k")]);
    let mut batch = RowBatch::new();
    RowDecoder::new(ScanOrder::Forward)
        .decode(bytes.clone(), &mut batch)
        .expect("valid");
    let value = batch
        .get(0)
        .expect("a row")
        .cells()
        .next()
        .expect("a cell")
        .value_bytes();
    assert!(
        bytes.as_ptr_range().contains(&value.as_ptr()),
        "no copy was made"
    );
}

#[test]
fn debug_shows_no_content() {
    let mut batch = RowBatch::new();
    RowDecoder::new(ScanOrder::Forward)
        .decode(message(vec![one_row("secret")]), &mut batch)
        .expect("valid");
    let row = batch.get(0).expect("a row");
    let shown = format!("{batch:?} {row:?} {:?}", row.cells().next());
    assert!(!shown.contains("secret"), "{shown}");
}

#[test]
fn sizes_that_no_row_has_are_refused_before_memory_is_taken_for_them() {
    for value_size in [-1, i32::MIN, i32::MAX, (MAX_ROW_BYTES + 1) as i32] {
        let chunk = CellChunk {
            value_size,
            row_status: None,
            ..one_row("r")
        };
        let (rows, result) = decode(ScanOrder::Forward, &[message(vec![chunk])], false);
        assert!(rows.is_empty() && result.is_err(), "{value_size}");
    }
    // Cells without an end: whole ones, each within bounds.
    let mut decoder = RowDecoder::new(ScanOrder::Forward);
    let mut batch = RowBatch::new();
    let first = CellChunk {
        row_status: None,
        ..one_row("r")
    };
    decoder
        .decode(message(vec![first]), &mut batch)
        .expect("begins");
    let more = message(vec![CellChunk {
        value: vec![0; 64 << 20].into(),
        ..CellChunk::default()
    }]);
    let taken = (0..20).take_while(|_| decoder.decode(more.clone(), &mut batch).is_ok());
    assert_eq!(
        taken.count(),
        7,
        "seven times 64 MiB fit into 512 MiB with the rest of the row"
    );
}
