//! Tests of batches: their bytes against generated code, their thresholds, their reuse.

use aqueduct_connector::{Code, Status, Timestamp};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::entry::RowMutationEntry;

fn entry(key: &[u8], values: &[Vec<u8>]) -> RowMutationEntry {
    let mut entry = RowMutationEntry::stamped(Timestamp::from_millis(0));
    entry.row_key(key);
    for value in values {
        entry.set_cell("cf", "q", 1_000, value);
    }
    entry
}

fn load(entry: &RowMutationEntry) -> Load {
    Load::of(entry.mutations(), entry.encoded_len(), 0)
}

fn part(entry: &RowMutationEntry) -> Part {
    Part {
        bytes: entry.encoded_mutations().len(),
        mutations: entry.mutations(),
        size: entry.encoded_len(),
    }
}

fn decode(body: &[u8]) -> v2::MutateRowsRequest {
    let (prefix, message) = body.split_at(PREFIX);
    assert_eq!(prefix[0], 0, "not compressed");
    let len = u32::from_be_bytes(prefix[1..].try_into().expect("four bytes"));
    assert_eq!(
        len as usize,
        message.len(),
        "the prefix says how long the message is"
    );
    v2::MutateRowsRequest::decode(message).expect("a request")
}

fn status() -> StatusChain {
    StatusChain::new(Status::new(Code::InvalidArgument, ""))
}

/// Records: the row they are for (few, so that rows repeat) and their cells' values.
fn records() -> impl Strategy<Value = Vec<(u8, Vec<Vec<u8>>)>> {
    let value = proptest::collection::vec(any::<u8>(), 0..200);
    proptest::collection::vec((0..6_u8, proptest::collection::vec(value, 1..4)), 1..30)
}

/// A key whose length makes the entry's length cross the sizes of a varint.
fn key(row: u8) -> Vec<u8> {
    vec![row; usize::from(row) * 40]
}

proptest! {
    #[test]
    fn a_batch_is_the_request_that_generated_code_would_write(records in records()) {
        let head = head("projects/p/instances/i/tables/t", Some("profile"));
        let mut batch = OpenBatch::new(1, &head, Buffers::default());
        let mut expected = v2::MutateRowsRequest {
            table_name: "projects/p/instances/i/tables/t".to_owned(),
            app_profile_id: "profile".to_owned(),
            ..v2::MutateRowsRequest::default()
        };
        for (row, values) in &records {
            let entry = entry(&key(*row), values);
            let position = batch.push(entry.key(), entry.encoded_mutations(), load(&entry));
            prop_assert!(batch.has_key(position, &key(*row)));
            prop_assert!(!batch.has_key(position, b"another"));
            expected.entries.push(
                v2::mutate_rows_request::Entry::decode(entry.encode()).expect("an entry"),
            );
        }
        prop_assert_eq!(batch.records(), records.len());
        let sealed = batch.seal();
        prop_assert_eq!(decode(&sealed.body), expected.clone());
        let some: Vec<u32> = (0..records.len() as u32).filter(|at| at % 3 == 1).collect();
        let subset = decode(&sealed.subset(&head, &some));
        let expected: Vec<_> = some.iter().map(|at| expected.entries[*at as usize].clone()).collect();
        prop_assert_eq!(subset.entries, expected);
        prop_assert_eq!(subset.app_profile_id, "profile");
    }

    #[test]
    fn merged_records_follow_in_their_row_and_can_be_told_apart_again(records in records()) {
        let head = head("t", None);
        let mut batch = OpenBatch::new(1, &head, Buffers::default());
        let mut positions: Vec<(u8, usize)> = Vec::new();
        for (row, values) in &records {
            let entry = entry(&key(*row), values);
            match positions.iter().find(|(known, _)| known == row) {
                Some((_, position)) => batch.merge(*position, entry.encoded_mutations(), part(&entry)),
                None => {
                    let position = batch.push(entry.key(), entry.encoded_mutations(), load(&entry));
                    positions.push((*row, position));
                }
            }
        }
        prop_assert_eq!(batch.records(), records.len());
        let sealed = batch.seal();
        let request = decode(&sealed.body);
        prop_assert_eq!(request.entries.len(), positions.len(), "no row twice");
        for (row, position) in positions {
            let of_row = || records.iter().filter(|(known, _)| *known == row).map(|(_, values)| values);
            let all: Vec<Vec<u8>> = of_row().flatten().cloned().collect();
            let unit = sealed.unit(TableId(0), position, status());
            prop_assert_eq!(&unit.entry, &entry(&key(row), &all).encode());
            prop_assert_eq!(unit.key(), key(row));
            prop_assert_eq!(unit.load.records, of_row().count());
            prop_assert_eq!(unit.load.mutations, all.len());
            let alone: Vec<_> = of_row().map(|values| entry(&key(row), values).encode()).collect();
            let parts = unit.clone().split();
            prop_assert_eq!(parts.iter().map(|part| part.entry.clone()).collect::<Vec<_>>(), alone);
            let mut parts = parts.into_iter();
            let first = parts.next().expect("at least one");
            let joined = parts.fold(first, |joined, later| joined.join(&later));
            prop_assert_eq!(&joined.entry, &unit.entry);
            prop_assert_eq!(joined.load.size, unit.load.size);
            prop_assert_eq!(joined.split().len(), unit.load.records);
        }
    }
}

#[test]
fn only_a_single_entry_passes_the_byte_threshold_and_none_the_mutation_limit() {
    let limits = Limits {
        entries: 100,
        bytes: 1_000,
    };
    let mut batch = OpenBatch::new(1, &head("t", None), Buffers::default());
    assert!(
        !batch.would_overflow(limits, 100_000, 5_000),
        "alone it goes"
    );
    let small = entry(b"k", &[vec![0; 100]]);
    batch.push(small.key(), small.encoded_mutations(), load(&small));
    assert!(!batch.is_full(limits));
    assert!(batch.would_overflow(limits, 1, 1_000));
    assert!(batch.would_overflow(limits, 100_000, 10));
    assert!(!batch.would_overflow(limits, 99_999, 10));
}

#[test]
fn the_buffers_of_an_answered_request_serve_the_next_one() {
    let head = head("t", None);
    let entry = entry(b"k", &[vec![7; 500]]);
    let mut batch = OpenBatch::new(1, &head, Buffers::default());
    batch.push(entry.key(), entry.encoded_mutations(), load(&entry));
    let sealed = batch.seal();
    let (expected, held) = (decode(&sealed.body), sealed.body.clone());
    drop(held);
    let buffers = sealed.recycle().expect("nobody holds the body");
    let capacity = buffers.body.capacity();
    let mut batch = OpenBatch::new(2, &head, buffers);
    batch.push(entry.key(), entry.encoded_mutations(), load(&entry));
    assert!(capacity >= 500);
    assert_eq!(decode(&batch.seal().body), expected);
}
