//! Row sets.

use super::*;
use pb::row_range::{EndKey, StartKey};

fn set(keys: &[&'static str], ranges: Vec<(Option<StartKey>, Option<EndKey>)>) -> pb::RowSet {
    pb::RowSet {
        row_keys: keys
            .iter()
            .map(|key| Bytes::from_static(key.as_bytes()))
            .collect(),
        row_ranges: ranges
            .into_iter()
            .map(|(start_key, end_key)| pb::RowRange { start_key, end_key })
            .collect(),
    }
}

type Bounds = (Vec<u8>, Option<Vec<u8>>);

fn checked(set: &pb::RowSet) -> Result<Vec<Bounds>, Refusal> {
    ranges(Some(set), &Limits::default()).map(|ranges| {
        ranges
            .into_iter()
            .map(|range| (range.start, range.end))
            .collect()
    })
}

#[test]
fn overlapping_ranges_and_keys_are_read_once() {
    let ranges = checked(&set(
        &["b", "z"],
        vec![
            (
                Some(StartKey::StartKeyClosed("a".into())),
                Some(EndKey::EndKeyOpen("c".into())),
            ),
            (
                Some(StartKey::StartKeyOpen("b".into())),
                Some(EndKey::EndKeyClosed("d".into())),
            ),
        ],
    ));
    assert_eq!(
        ranges.expect("legal"),
        [
            (b"a".to_vec(), Some(b"d\0".to_vec())),
            (b"z".to_vec(), Some(b"z\0".to_vec()))
        ]
    );
}

#[test]
fn an_empty_set_is_the_whole_table() {
    assert_eq!(
        checked(&set(&[], vec![])).expect("legal"),
        [(Vec::new(), None)]
    );
}

#[test]
fn a_range_exclusive_at_its_own_end_is_refused_and_a_single_closed_key_is_not() {
    let range = |start, end| checked(&set(&[], vec![(Some(start), Some(end))]));
    let k = || Bytes::from_static(b"k");
    for empty in [
        range(StartKey::StartKeyOpen(k()), EndKey::EndKeyClosed(k())),
        range(StartKey::StartKeyOpen(k()), EndKey::EndKeyOpen(k())),
        range(StartKey::StartKeyClosed(k()), EndKey::EndKeyOpen(k())),
        range(
            StartKey::StartKeyOpen(k()),
            EndKey::EndKeyOpen("k\0".into()),
        ),
        range(
            StartKey::StartKeyClosed("l".into()),
            EndKey::EndKeyClosed(k()),
        ),
    ] {
        let refusal = empty.expect_err("empty ranges are refused");
        assert!(
            refusal
                .message
                .contains("start_key must be less than end_key")
        );
    }
    let single = range(StartKey::StartKeyClosed(k()), EndKey::EndKeyClosed(k()));
    assert_eq!(
        single.expect("legal"),
        [(b"k".to_vec(), Some(b"k\0".to_vec()))]
    );
}
