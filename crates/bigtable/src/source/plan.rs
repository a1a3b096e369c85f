//! Planning: the requested ranges, cut where the service says that sections begin.

use bytes::Bytes;

use super::split::ScanSplit;
use crate::client::read::ScanOrder;
use crate::range::{RowRange, coalesce};

/// The splits of a fresh start, in the order in which the scan meets them.
///
/// `samples` are boundaries, ascending and without repeats. Without any, each range is one split; without a range, the
/// whole table is one.
pub(super) fn plan(ranges: &[RowRange], samples: &[Bytes], order: ScanOrder) -> Vec<ScanSplit> {
    let requested = if ranges.is_empty() {
        vec![RowRange::all()]
    } else {
        coalesce(ranges.to_vec())
    };
    let mut pieces: Vec<RowRange> = requested
        .iter()
        .flat_map(|range| range.cut(samples))
        .collect();
    if order == ScanOrder::Reverse {
        pieces.reverse();
    }
    (0..)
        .zip(pieces)
        .map(|(ordinal, range)| ScanSplit::new(ordinal, range))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranges_of(splits: &[ScanSplit]) -> Vec<String> {
        splits.iter().map(|split| split.range.to_string()).collect()
    }

    fn parse(ranges: &[&str]) -> Vec<RowRange> {
        ranges
            .iter()
            .map(|range| RowRange::parse(range).expect("a range"))
            .collect()
    }

    fn keys(keys: &[&'static str]) -> Vec<Bytes> {
        keys.iter().map(|key| Bytes::from(*key)).collect()
    }

    #[test]
    fn without_samples_each_range_is_one_split() {
        assert_eq!(ranges_of(&plan(&[], &[], ScanOrder::Forward)), ["(*, *)"]);
        let ranges = parse(&["[a, c)", "[b, d)", "[x, x]"]);
        assert_eq!(
            ranges_of(&plan(&ranges, &[], ScanOrder::Forward)),
            ["[a, d)", "[x, x]"]
        );
    }

    #[test]
    fn the_tables_tail_and_a_boundary_on_a_bound_are_kept() {
        let samples = keys(&["d", "m"]);
        assert_eq!(
            ranges_of(&plan(&[], &samples, ScanOrder::Forward)),
            ["(*, d)", "[d, m)", "[m, *)"]
        );
        assert_eq!(
            ranges_of(&plan(&parse(&["[d, m]"]), &samples, ScanOrder::Forward)),
            ["[d, m)", "[m, m]"]
        );
        assert_eq!(
            ranges_of(&plan(&parse(&["(d, m)"]), &samples, ScanOrder::Forward)),
            ["(d, m)"]
        );
    }

    #[test]
    fn a_reverse_scan_begins_with_the_last_split() {
        let splits = plan(&[], &keys(&["d"]), ScanOrder::Reverse);
        assert_eq!(ranges_of(&splits), ["[d, *)", "(*, d)"]);
        assert_eq!([splits[0].ordinal, splits[1].ordinal], [0, 1]);
    }

    proptest! {
        #[test]
        fn the_splits_together_are_the_request_and_no_row_is_in_two(
            bounds in prop::collection::vec((0..20u8, 0..6u8, any::<bool>(), any::<bool>()), 0..5),
            samples in prop::collection::btree_set(0..20u8, 0..8),
        ) {
            use std::ops::Bound;
            let key = |at: u8| Bytes::from(vec![b'a' + at]);
            let ranges: Vec<RowRange> = bounds
                .iter()
                .map(|(start, len, open, closed)| {
                    let (start, end) = (key(*start), key(start + len));
                    RowRange::new(
                        if *open { Bound::Excluded(start) } else { Bound::Included(start) },
                        if *closed { Bound::Included(end) } else { Bound::Excluded(end) },
                    )
                    .expect("no bound is empty")
                })
                .filter(|range| !range.is_empty())
                .collect();
            let samples: Vec<Bytes> = samples.into_iter().map(key).collect();
            let splits = plan(&ranges, &samples, ScanOrder::Forward);
            for at in 0..27u8 {
                for key in [vec![b'a' + at], vec![b'a' + at, 0], vec![b'a' + at, 0xff]] {
                    let wanted = ranges.is_empty() || ranges.iter().any(|range| range.contains(&key));
                    let found = splits.iter().filter(|split| split.range.contains(&key)).count();
                    prop_assert_eq!(found, usize::from(wanted));
                }
            }
            // Every boundary strictly inside a split would be one more cut.
            for split in &splits {
                prop_assert_eq!(split.range.cut(&samples).len(), 1);
            }
        }
    }
}
