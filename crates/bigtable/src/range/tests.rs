//! Tests of key ranges: bounds, cuts, prefixes, what is printed.

use std::collections::BTreeSet;

use aqueduct_connector::state::{StateReader, StateWriter};
use proptest::prelude::*;

use super::*;

fn range(text: &str) -> RowRange {
    RowRange::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Keys over so small an alphabet that bounds meet often.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(vec![0u8, 1, 0x61, 0xff]), 1..4)
}

fn bound() -> impl Strategy<Value = Bound<Bytes>> {
    prop_oneof![
        1 => Just(Bound::Unbounded),
        3 => key().prop_map(|key| Bound::Included(key.into())),
        3 => key().prop_map(|key| Bound::Excluded(key.into())),
    ]
}

fn any_range() -> impl Strategy<Value = RowRange> {
    (bound(), bound())
        .prop_map(|(start, end)| RowRange::new(start, end).expect("no bound is the empty key"))
}

/// Every key of up to four bytes over the alphabet: enough to see each edge from both sides.
fn universe() -> Vec<Vec<u8>> {
    let mut keys = vec![vec![]];
    let mut all = Vec::new();
    for _ in 0..4 {
        keys = keys
            .iter()
            .flat_map(|key: &Vec<u8>| {
                [0u8, 1, 0x61, 0xff].map(|byte| [key.as_slice(), &[byte]].concat())
            })
            .collect();
        all.extend(keys.iter().cloned());
    }
    all
}

fn keys_of(ranges: &[RowRange]) -> BTreeSet<Vec<u8>> {
    universe()
        .into_iter()
        .filter(|key| ranges.iter().any(|range| range.contains(key)))
        .collect()
}

#[test]
fn a_range_between_a_key_and_its_successor_is_empty() {
    assert!(range(r"(a, a\x00)").is_empty());
    assert!(range("[a, a)").is_empty());
    assert!(range("(a, a]").is_empty());
    assert!(range("[b, a]").is_empty());
    assert!(!range("[a, a]").is_empty());
    assert!(!range(r"[a, a\x00)").is_empty());
    assert!(check_not_empty(&range(r"(a, a\x00)")).is_err());
}

#[test]
fn an_inclusive_end_and_an_exclusive_start_at_the_same_key_coalesce() {
    assert_eq!(
        coalesce(vec![range("(b, c)"), range("[a, b]")]),
        [range("[a, c)")]
    );
    assert_eq!(
        coalesce(vec![range("[a, b)"), range("[b, c)")]),
        [range("[a, c)")]
    );
    assert_eq!(
        coalesce(vec![range("[a, b)"), range("(b, c)")]).len(),
        2,
        "b is in neither"
    );
    assert_eq!(
        coalesce(vec![range("[a, z)"), range("[b, c)")]),
        [range("[a, z)")]
    );
}

#[test]
fn the_rest_behind_an_inclusive_end_is_empty() {
    assert!(range("[a, k]").after(&Bytes::from("k")).is_empty());
    assert!(range("(*, k]").after(&Bytes::from("k")).is_empty());
    assert!(range("[k, z)").before(&Bytes::from("k")).is_empty());
    assert_eq!(range("[a, z)").after(&Bytes::from("k")), range("(k, z)"));
    assert_eq!(
        range("[m, z)").after(&Bytes::from("k")),
        range("[m, z)"),
        "a key before the range changes nothing"
    );
}

#[test]
fn a_boundary_cuts_at_an_inclusive_end_and_not_at_the_start() {
    let boundaries = [Bytes::from("a"), Bytes::from("m"), Bytes::from("z")];
    assert_eq!(
        range("[a, z]").cut(&boundaries),
        [range("[a, m)"), range("[m, z)"), range("[z, z]")]
    );
    assert_eq!(
        range("[a, z)").cut(&boundaries),
        [range("[a, m)"), range("[m, z)")]
    );
    assert_eq!(range("(*, *)").cut(&[]), [range("(*, *)")]);
}

#[test]
fn a_prefix_ends_before_its_successor_and_one_without_a_successor_is_open() {
    assert_eq!(
        RowRange::prefix("2026-08-").to_string(),
        "[2026-08-, 2026-08.)"
    );
    assert_eq!(
        RowRange::prefix(vec![0x61, 0xff, 0xff]).to_string(),
        r"[a\xff\xff, b)"
    );
    assert_eq!(
        RowRange::prefix(vec![0xff, 0xff]).to_string(),
        r"[\xff\xff, *)"
    );
    assert_eq!(RowRange::prefix(""), RowRange::all());
}

#[test]
fn the_three_special_bytes_print_escaped() {
    assert_eq!(
        RowRange::between("a, b", r"*\").expect("keys").to_string(),
        r"[a\x2c b, \x2a\x5c)"
    );
    assert_eq!(RowRange::all().to_string(), "(*, *)");
}

#[test]
fn an_empty_bound_is_refused_and_names_the_option() {
    let error = RowRange::between("", "b").unwrap_err().to_string();
    assert!(error.contains("'scan.row-ranges'"), "{error}");
    for bad in [
        "",
        "[",
        "[]",
        "[a,b)",
        "[*, b)",
        "(a, *]",
        "[a, b",
        r"[\x0, b)",
        "[a, , b)",
        "[, b)",
        "{a, b)",
        "[é, b)",
    ] {
        assert!(RowRange::parse(bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn emptiness_and_membership_agree(range in any_range()) {
        // A range of this alphabet that holds a key at all holds one of at most one byte more than its bounds.
        prop_assert_eq!(range.is_empty(), keys_of(std::slice::from_ref(&range)).is_empty());
    }

    #[test]
    fn coalescing_keeps_the_keys_and_leaves_gaps(ranges in prop::collection::vec(any_range(), 0..6)) {
        let merged = coalesce(ranges.clone());
        prop_assert_eq!(keys_of(&merged), keys_of(&ranges));
        for pair in merged.windows(2) {
            let upper = pair[0].upper().expect("only the last can be open");
            prop_assert_eq!(upper.cmp(pair[1].lower()), Ordering::Less);
        }
    }

    #[test]
    fn the_pieces_are_the_request_and_disjoint(
        ranges in prop::collection::vec(any_range(), 0..4),
        samples in prop::collection::btree_set(key().prop_map(Bytes::from), 0..6),
    ) {
        let samples: Vec<Bytes> = samples.into_iter().collect();
        let pieces: Vec<RowRange> = coalesce(ranges.clone())
            .iter()
            .flat_map(|range| range.cut(&samples))
            .collect();
        prop_assert_eq!(keys_of(&pieces), keys_of(&ranges));
        for piece in &pieces {
            prop_assert!(!piece.is_empty(), "{}", piece);
        }
        for key in universe() {
            prop_assert!(pieces.iter().filter(|piece| piece.contains(&key)).count() <= 1);
        }
    }

    #[test]
    fn what_is_left_around_a_key_is_the_range_without_the_read_part(range in any_range(), at in key()) {
        let at = Bytes::from(at);
        let (before, after) = (range.before(&at), range.after(&at));
        for key in universe() {
            let inside = range.contains(&key);
            prop_assert_eq!(after.contains(&key), inside && key.as_slice() > &at[..]);
            prop_assert_eq!(before.contains(&key), inside && key.as_slice() < &at[..]);
        }
    }

    #[test]
    fn an_intersection_holds_the_common_keys(left in any_range(), right in any_range()) {
        let both = left.intersection(&right);
        for key in universe() {
            prop_assert_eq!(both.contains(&key), left.contains(&key) && right.contains(&key));
        }
    }

    #[test]
    fn every_range_reads_back_from_its_print_and_its_state(
        start in prop::collection::vec(any::<u8>(), 1..6),
        end in prop::collection::vec(any::<u8>(), 1..6),
        kinds in (0..3u8, 0..3u8),
    ) {
        let bound = |kind, key: Vec<u8>| match kind {
            0 => Bound::Unbounded,
            1 => Bound::Included(Bytes::from(key)),
            _ => Bound::Excluded(Bytes::from(key)),
        };
        let range = RowRange::new(bound(kinds.0, start), bound(kinds.1, end)).expect("not empty");
        prop_assert_eq!(RowRange::parse(&range.to_string()), Ok(range.clone()));
        let mut writer = StateWriter::new();
        range.encode(&mut writer);
        let state = writer.finish(1);
        let mut reader = StateReader::open("range", &state, 1..=1).expect("version 1");
        prop_assert_eq!(RowRange::decode(&mut reader), Ok(range));
        prop_assert!(reader.finish().is_ok());
    }

    #[test]
    fn reading_any_text_never_panics(text in "[\\[(]?[a*,\\\\x0-9f ]{0,12}[\\])]?") {
        if let Ok(range) = RowRange::parse(&text) {
            prop_assert_eq!(RowRange::parse(&range.to_string()), Ok(range));
        }
    }
}

proptest! {
    /// Against counting: keys in both lists, and keys outside of one range.
    #[test]
    fn intersections_and_complements_hold_exactly_their_keys(
        left in prop::collection::vec((0..12u8, 0..5u8, any::<bool>(), any::<bool>()), 0..4),
        right in prop::collection::vec((0..12u8, 0..5u8, any::<bool>(), any::<bool>()), 0..4),
    ) {
        let list = |bounds: &[(u8, u8, bool, bool)]| -> Vec<RowRange> {
            let ranges = bounds.iter().map(|(start, length, open, closed)| {
                let (start, end) = (Bytes::from(vec![b'a' + start]), Bytes::from(vec![b'a' + start + length]));
                RowRange {
                    start: match (start[0], open) {
                        (b'a', _) => Bound::Unbounded,
                        (_, true) => Bound::Excluded(start),
                        (_, false) => Bound::Included(start),
                    },
                    end: match (end[0], closed) {
                        (b'k'.., _) => Bound::Unbounded,
                        (_, true) => Bound::Included(end),
                        (_, false) => Bound::Excluded(end),
                    },
                }
            });
            coalesce(ranges.collect())
        };
        let (left, right) = (list(&left), list(&right));
        let both = super::intersect(&left, &right);
        prop_assert_eq!(&coalesce(both.clone()), &both);
        let within = |ranges: &[RowRange], key: &[u8]| ranges.iter().any(|range| range.contains(key));
        for at in b'a'..=b'r' {
            for key in [vec![at], vec![at, 0], vec![at, 0xff]] {
                prop_assert_eq!(within(&both, &key), within(&left, &key) && within(&right, &key));
                for range in &left {
                    prop_assert_eq!(within(&super::complement(range), &key), !range.contains(&key));
                }
            }
        }
    }
}
