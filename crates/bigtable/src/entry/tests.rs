//! Tests of entries: their checks, sizes and wire form.

use proptest::prelude::*;

use super::*;

fn entry() -> RowMutationEntry {
    RowMutationEntry::stamped(Timestamp::from_millis(1_700_000_000_123))
}

#[derive(Debug, Clone)]
enum Change {
    Set(String, Vec<u8>, i64, Vec<u8>),
    Cells(String, Vec<u8>, i64, Option<i64>),
    Family(String),
    Row,
    Add(String, Vec<u8>, i64, i64),
    Merge(String, Vec<u8>, i64, Vec<u8>),
}

fn change() -> impl Strategy<Value = Change> {
    let family = "[a-z]{0,8}";
    let bytes = || proptest::collection::vec(any::<u8>(), 0..300);
    let stamp = || prop_oneof![Just(0), 0..10_000_i64, 0..i64::MAX];
    prop_oneof![
        (family, bytes(), stamp(), bytes()).prop_map(|(f, q, t, v)| Change::Set(f, q, t, v)),
        (
            family,
            bytes(),
            0..1_000_i64,
            proptest::option::of(1_000..i64::MAX)
        )
            .prop_map(|(f, q, s, e)| Change::Cells(f, q, s, e)),
        family.prop_map(Change::Family),
        Just(Change::Row),
        (family, bytes(), stamp(), any::<i64>()).prop_map(|(f, q, t, v)| Change::Add(f, q, t, v)),
        (family, bytes(), stamp(), bytes()).prop_map(|(f, q, t, v)| Change::Merge(f, q, t, v)),
    ]
}

fn value(kind: v2::value::Kind) -> Option<v2::Value> {
    Some(v2::Value {
        r#type: None,
        kind: Some(kind),
    })
}

fn generated(key: &[u8], changes: &[Change]) -> v2::mutate_rows_request::Entry {
    use v2::mutation::{self, Mutation as Wire};
    let mutations = changes.iter().cloned().map(|change| {
        let mutation = match change {
            Change::Set(family_name, qualifier, timestamp_micros, value) => {
                Wire::SetCell(mutation::SetCell {
                    family_name,
                    column_qualifier: qualifier.into(),
                    timestamp_micros,
                    value: value.into(),
                })
            }
            Change::Cells(family_name, qualifier, start, end) => {
                Wire::DeleteFromColumn(mutation::DeleteFromColumn {
                    family_name,
                    column_qualifier: qualifier.into(),
                    time_range: (start > 0 || end.is_some()).then_some(v2::TimestampRange {
                        start_timestamp_micros: start,
                        end_timestamp_micros: end.unwrap_or(0),
                    }),
                })
            }
            Change::Family(family_name) => {
                Wire::DeleteFromFamily(mutation::DeleteFromFamily { family_name })
            }
            Change::Row => Wire::DeleteFromRow(mutation::DeleteFromRow {}),
            Change::Add(family_name, qualifier, stamp, input) => {
                Wire::AddToCell(mutation::AddToCell {
                    family_name,
                    column_qualifier: value(v2::value::Kind::RawValue(qualifier.into())),
                    timestamp: value(v2::value::Kind::RawTimestampMicros(stamp)),
                    input: value(v2::value::Kind::IntValue(input)),
                })
            }
            Change::Merge(family_name, qualifier, stamp, state) => {
                Wire::MergeToCell(mutation::MergeToCell {
                    family_name,
                    column_qualifier: value(v2::value::Kind::RawValue(qualifier.into())),
                    timestamp: value(v2::value::Kind::RawTimestampMicros(stamp)),
                    input: value(v2::value::Kind::RawValue(state.into())),
                })
            }
        };
        v2::Mutation {
            mutation: Some(mutation),
        }
    });
    v2::mutate_rows_request::Entry {
        row_key: key.to_vec().into(),
        mutations: mutations.collect(),
        idempotency: None,
    }
}

fn apply(entry: &mut RowMutationEntry, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Set(f, q, t, v) => entry.set_cell(f, q, *t, v),
            Change::Cells(f, q, s, Some(e)) => entry.delete_cells(f, q, *s..*e),
            Change::Cells(f, q, s, None) => entry.delete_cells(f, q, *s..),
            Change::Family(f) => entry.delete_family(f),
            Change::Row => entry.delete_row(),
            Change::Add(f, q, t, i) => entry.add_to_cell(f, q, *t, *i),
            Change::Merge(f, q, t, s) => entry.merge_to_cell(f, q, *t, s),
        };
    }
}

proptest! {
    #[test]
    fn an_entry_is_byte_for_byte_what_generated_code_writes(
        key in proptest::collection::vec(any::<u8>(), 0..200),
        changes in proptest::collection::vec(change(), 1..8),
    ) {
        let mut entry = entry();
        apply(&mut entry, &changes);
        entry.row_key(&key);
        let oracle = generated(&key, &changes).encode_to_vec();
        prop_assert_eq!(entry.encode(), oracle.clone());
        prop_assert_eq!(entry.encoded_len(), oracle.len());
        prop_assert_eq!(entry.mutations(), changes.len());
        prop_assert_eq!(entry.check(), Ok(()));
    }

    #[test]
    fn a_payload_rebuilds_the_whole_row_change(
        key in proptest::collection::vec(any::<u8>(), 0..50),
        changes in proptest::collection::vec(change(), 1..8),
    ) {
        let payload = generated(&key, &changes).encode_to_vec();
        let decoded = RowMutationEntry::decode(&payload).expect("our own encoding");
        let mut again = entry();
        again.append(&decoded);
        prop_assert_eq!(again.encode(), payload);
    }

    #[test]
    fn foreign_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = RowMutationEntry::decode(&bytes);
    }

    #[test]
    fn a_varint_takes_as_many_bytes_as_said(value: u64) {
        let mut out = Vec::new();
        put_varint(&mut out, value);
        prop_assert_eq!(out.len(), varint_len(value));
    }
}

#[test]
fn cells_without_a_timestamp_share_one_stamp_in_whole_milliseconds() {
    let clock = aqueduct_connector::clock::ManualClock::new(Timestamp::from_millis(5));
    let mut entry = RowMutationEntry::with_clock(Arc::new(clock.clone()));
    entry.row_key("k").set_cell_now("f", "a", "1");
    clock.advance(std::time::Duration::from_millis(10));
    entry.set_cell_now("f", "b", "2");
    let stamps = |entry: &RowMutationEntry| -> Vec<i64> {
        let decoded = RowMutationEntry::decode(&entry.encode()).expect("valid");
        decoded
            .mutations
            .iter()
            .map(|mutation| match mutation {
                Mutation::SetCell {
                    timestamp_micros, ..
                } => *timestamp_micros,
                other => panic!("{other:?}"),
            })
            .collect()
    };
    assert_eq!(stamps(&entry), [5_000, 5_000]);
    entry.clear();
    entry.row_key("k").set_cell_now("f", "a", "1");
    assert_eq!(stamps(&entry), [15_000], "the next entry has its own");
}

#[test]
fn what_needs_no_service_is_refused_with_the_first_reason() {
    type Fill = fn(&mut RowMutationEntry);
    let faults: [(Fill, EntryFault); 6] = [
        (|_| {}, EntryFault::Empty),
        (
            |entry| {
                entry.set_cell("f", "q", -1, "v");
            },
            EntryFault::NegativeTimestamp,
        ),
        (
            |entry| {
                entry
                    .delete_cells("f", "q", 5..5)
                    .set_cell("f", "q", -1, "v");
            },
            EntryFault::InvertedRange,
        ),
        (
            |entry| {
                // Written as a range to 0, the service would delete everything.
                entry.delete_cells("f", "q", ..0);
            },
            EntryFault::InvertedRange,
        ),
        (
            |entry| {
                for _ in 0..=MAX_MUTATIONS {
                    entry.delete_row();
                }
            },
            EntryFault::TooManyMutations,
        ),
        (
            |entry| {
                let value = vec![0; 70 << 20];
                for _ in 0..3 {
                    entry.set_cell("f", "q", 0, &value);
                }
            },
            EntryFault::TooLarge,
        ),
    ];
    for (fill, fault) in faults {
        let mut entry = entry();
        entry.row_key("k");
        fill(&mut entry);
        assert_eq!(entry.check(), Err(fault));
        assert!(entry.encoded_mutations().len() <= MAX_MUTATION_BYTES);
    }
    let mut full = entry();
    for _ in 0..MAX_MUTATIONS {
        full.delete_row();
    }
    assert_eq!(full.check(), Ok(()), "at the limit");
}

#[test]
fn debug_shows_sizes_and_no_content() {
    let mut entry = entry();
    entry
        .row_key("secret-key")
        .set_cell("f", "secret-q", 0, "secret-value");
    let decoded = RowMutationEntry::decode(&entry.encode()).expect("valid");
    for text in [
        format!("{entry:?}"),
        format!("{decoded:?}"),
        format!("{:?}", decoded.mutations),
    ] {
        assert!(!text.contains("secret"), "{text}");
    }
}
