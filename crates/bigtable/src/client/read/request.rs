//! What is left of a read: which keys, in which order, how many rows.
//!
//! # Invariants
//!
//! - [`Remaining`] shrinks only: by every row that was handed out and every key that was scanned (BT-WIRE-08).
//! - Nothing left means done, without a request: an empty row set would read the whole table.
//! - No range in it is empty, since the service refuses one.

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as wire;

use super::chunks::ScanOrder;
use crate::range::{RowRange, coalesce};

/// The rows that a read still has to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remaining {
    order: ScanOrder,
    rows: Rows,
    /// Rows that may still be handed out; `None` for any number.
    limit: Option<u64>,
}

#[derive(Clone, PartialEq, Eq)]
enum Rows {
    /// Ascending, disjoint, none empty.
    Ranges(Vec<RowRange>),
    /// Ascending, without repeats.
    Keys(Vec<Bytes>),
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ranges(ranges) => f.debug_list().entries(ranges).finish(),
            Self::Keys(keys) => write!(f, "{} keys", keys.len()),
        }
    }
}

impl Remaining {
    /// All rows of `ranges`, at most `limit` of them.
    #[must_use]
    pub fn ranges(ranges: Vec<RowRange>, order: ScanOrder, limit: Option<u64>) -> Self {
        Self {
            order,
            rows: Rows::Ranges(coalesce(ranges)),
            limit,
        }
    }

    /// The rows at `keys`. Empty keys name no row and are dropped.
    #[must_use]
    pub fn keys(mut keys: Vec<Bytes>) -> Self {
        keys.retain(|key| !key.is_empty());
        keys.sort_unstable();
        keys.dedup();
        Self {
            order: ScanOrder::Forward,
            rows: Rows::Keys(keys),
            limit: None,
        }
    }

    /// Whether there is nothing left to ask for.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.limit == Some(0)
            || match &self.rows {
                Rows::Ranges(ranges) => ranges.is_empty(),
                Rows::Keys(keys) => keys.is_empty(),
            }
    }

    /// The order of the rows.
    #[must_use]
    pub const fn order(&self) -> ScanOrder {
        self.order
    }

    /// `rows` were handed out, and everything up to `last_key` was read or scanned.
    pub fn advance(&mut self, last_key: &[u8], rows: u64) {
        if let Some(limit) = &mut self.limit {
            *limit = limit.saturating_sub(rows);
        }
        if last_key.is_empty() {
            return;
        }
        match &mut self.rows {
            Rows::Keys(keys) => {
                let done = keys.partition_point(|key| &key[..] <= last_key);
                keys.drain(..done);
            }
            Rows::Ranges(ranges) => {
                let key = Bytes::copy_from_slice(last_key);
                for range in ranges.iter_mut() {
                    *range = match self.order {
                        ScanOrder::Forward => range.after(&key),
                        ScanOrder::Reverse => range.before(&key),
                    };
                }
                ranges.retain(|range| !range.is_empty());
            }
        }
    }

    /// The row set and the limit as the service takes them. Not to be sent when [done](Self::is_done).
    #[must_use]
    pub fn to_wire(&self) -> (wire::RowSet, i64) {
        debug_assert!(!self.is_done(), "an empty row set reads the whole table");
        let rows = match &self.rows {
            Rows::Ranges(ranges) => wire::RowSet {
                row_keys: Vec::new(),
                row_ranges: ranges.iter().map(RowRange::to_wire).collect(),
            },
            Rows::Keys(keys) => wire::RowSet {
                row_keys: keys.clone(),
                row_ranges: Vec::new(),
            },
        };
        // 0 means no limit; a limit beyond the protocol's is none that anybody reaches.
        let limit = self
            .limit
            .map_or(0, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
        (rows, limit)
    }

    /// For messages: the ranges, or how many keys.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.rows {
            Rows::Ranges(ranges) => match &ranges[..] {
                [] => "nothing".to_owned(),
                [range] => range.to_string(),
                [first, .., last] => format!("{first} to {last}, {} ranges", ranges.len()),
            },
            Rows::Keys(keys) => format!("{} row keys", keys.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(text: &str) -> RowRange {
        RowRange::parse(text).expect("a range")
    }

    #[test]
    fn the_last_row_of_a_range_or_of_the_limit_leaves_nothing_to_ask_for() {
        let mut left = Remaining::ranges(vec![range("[a, k]")], ScanOrder::Forward, None);
        left.advance(b"j", 5);
        assert!(!left.is_done());
        left.advance(b"k", 1);
        assert!(left.is_done());

        let mut left = Remaining::ranges(vec![RowRange::all()], ScanOrder::Forward, Some(3));
        left.advance(b"a", 2);
        assert_eq!(left.to_wire().1, 1);
        left.advance(b"b", 1);
        assert!(left.is_done());

        let mut left = Remaining::ranges(vec![range("[k, z)")], ScanOrder::Reverse, None);
        left.advance(b"k", 1);
        assert!(left.is_done());
    }

    #[test]
    fn a_scanned_key_moves_on_without_spending_the_limit() {
        let mut left = Remaining::ranges(vec![RowRange::all()], ScanOrder::Forward, Some(3));
        left.advance(b"m", 0);
        assert_eq!(left.to_wire().1, 3);
        assert_eq!(left.describe(), "(m, *)");
    }

    #[test]
    fn keys_are_asked_for_once_and_in_order() {
        let keys = ["c", "a", "", "c", "b"].map(Bytes::from).to_vec();
        let mut left = Remaining::keys(keys);
        assert_eq!(left.to_wire().0.row_keys, ["a", "b", "c"].map(Bytes::from));
        left.advance(b"b", 1);
        assert_eq!(left.to_wire().0.row_keys, [Bytes::from("c")]);
        left.advance(b"c", 1);
        assert!(left.is_done());
        assert!(Remaining::keys(vec![]).is_done());
    }

    proptest! {
        #[test]
        fn what_is_left_is_exactly_what_was_not_read(
            bounds in prop::collection::vec((0..9u8, 1..4u8), 0..4),
            read in 0..12u8,
            reverse in any::<bool>(),
        ) {
            let key = |at: u8| Bytes::from(vec![b'a' + at]);
            let ranges: Vec<RowRange> = bounds
                .iter()
                .map(|(start, len)| RowRange::between(key(*start), key(start + len)).expect("keys"))
                .collect();
            let order = if reverse { ScanOrder::Reverse } else { ScanOrder::Forward };
            let mut left = Remaining::ranges(ranges.clone(), order, None);
            left.advance(&key(read), 1);
            let Rows::Ranges(rest) = &left.rows else { panic!("ranges stay ranges") };
            for at in 0..14 {
                let unread = if reverse { at < read } else { at > read };
                let wanted = unread && ranges.iter().any(|range| range.contains(&key(at)));
                prop_assert_eq!(rest.iter().any(|range| range.contains(&key(at))), wanted);
            }
            prop_assert!(rest.iter().all(|range| !range.is_empty()));
        }
    }
}
