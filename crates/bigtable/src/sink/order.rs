//! Per-row order: which rows have an entry away, and what waits behind it.
//!
//! The service may apply the entries of a request, and requests under way at once, in any order (BT-SINK-06). So a row
//! has at most one entry away at a time; later ones are merged into it while it has not left, and line up behind it, again
//! merged, once it has.
//!
//! # Invariants
//!
//! - A row has an index entry exactly while an entry of it is in a batch, sent or parked; the index is bounded by what is
//!   in flight.
//! - Rows are known by a seeded 64-bit hash. Two rows that share one wait for each other and are never merged, because
//!   keys are compared before merging: a collision costs time, not correctness.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use super::batch::Part;
use super::tables::TableId;
use crate::entry::{MAX_MUTATION_BYTES, MAX_MUTATIONS};

/// Where a row's entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The batch it was put into; it has left once that is no longer the table's open one.
    pub(super) batch: u32,
    pub(super) position: u32,
}

/// Entries of one row that wait for an earlier one, merged into one.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) table: TableId,
    pub(super) key: Box<[u8]>,
    pub(super) mutations: Vec<u8>,
    pub(super) parts: Vec<Part>,
}

impl Waiting {
    pub(super) fn mutation_count(&self) -> usize {
        self.parts.iter().map(|part| part.mutations).sum()
    }

    pub(super) fn size(&self) -> usize {
        self.parts.iter().map(|part| part.size).sum()
    }

    fn takes(&self, table: TableId, key: &[u8], part: Part) -> bool {
        self.table == table
            && *self.key == *key
            && self.mutation_count() + part.mutations <= MAX_MUTATIONS
            && self.mutations.len() + part.bytes <= MAX_MUTATION_BYTES
    }
}

/// Eight bytes a row: the index is asked for every record and wants to stay in the cache.
#[derive(Clone, Copy, Debug)]
struct Row {
    batch: u32,
    /// The position, and [`LINED`] if others wait behind the entry.
    packed: u32,
}

/// Far above any position: a batch holds at most 100,000 entries, since each has a mutation.
const LINED: u32 = 1 << 31;

impl Row {
    fn at(place: Place) -> Self {
        Self {
            batch: place.batch,
            packed: place.position,
        }
    }

    fn place(self) -> Place {
        Place {
            batch: self.batch,
            position: self.packed & !LINED,
        }
    }

    fn has_line(self) -> bool {
        self.packed & LINED != 0
    }
}

type Index<T> = HashMap<u64, T, BuildHasherDefault<Identity>>;

/// The index of rows.
#[derive(Debug)]
pub(super) struct RowOrder {
    rows: Index<Row>,
    /// What waits behind rows with [`LINED`].
    lines: Index<VecDeque<Waiting>>,
    seed: u64,
    waiting: usize,
}

impl RowOrder {
    /// An index whose hashes nobody outside can predict, given a secret `seed`.
    pub(super) fn new(seed: u64) -> Self {
        // Spread first: a seed of few bits would make a weak factor.
        let seed = fold(fold(seed ^ MULTIPLIER, SECOND) ^ SECOND, MULTIPLIER);
        Self {
            rows: Index::default(),
            lines: Index::default(),
            seed,
            waiting: 0,
        }
    }

    /// The row's name in the index.
    pub(super) fn hash(&self, table: TableId, key: &[u8]) -> u64 {
        hash(self.seed ^ u64::from(table.0).wrapping_mul(MULTIPLIER), key)
    }

    /// Takes `place` for the row, unless an entry of it is away already: then says where that is, and whether others
    /// wait behind it.
    pub(super) fn claim(&mut self, row: u64, place: Place) -> Option<(Place, bool)> {
        match self.rows.entry(row) {
            Entry::Vacant(vacant) => {
                vacant.insert(Row::at(place));
                None
            }
            Entry::Occupied(row) => Some((row.get().place(), row.get().has_line())),
        }
    }

    /// The row's entry is at `place` now.
    pub(super) fn put(&mut self, row: u64, place: Place) {
        let lined = if self.lines.contains_key(&row) {
            LINED
        } else {
            0
        };
        self.rows.insert(
            row,
            Row {
                batch: place.batch,
                packed: place.position | lined,
            },
        );
    }

    /// Lines an entry up behind the one that is away.
    pub(super) fn line_up(
        &mut self,
        row: u64,
        table: TableId,
        key: &[u8],
        mutations: &[u8],
        part: Part,
    ) {
        let away = self
            .rows
            .get_mut(&row)
            .expect("an entry lines up behind one that is away");
        away.packed |= LINED;
        let line = self.lines.entry(row).or_default();
        match line.back_mut() {
            Some(last) if last.takes(table, key, part) => {
                last.mutations.extend_from_slice(mutations);
                last.parts.push(part);
            }
            _ => {
                line.push_back(Waiting {
                    table,
                    key: key.into(),
                    mutations: mutations.to_vec(),
                    parts: vec![part],
                });
                self.waiting += 1;
            }
        }
    }

    /// The row's entry has its verdict. What waited next goes into a batch and must be [`put`](Self::put).
    pub(super) fn resolve(&mut self, row: u64) -> Option<Waiting> {
        let away = self.rows.remove(&row)?;
        if !away.has_line() {
            return None;
        }
        let Entry::Occupied(mut line) = self.lines.entry(row) else {
            return None;
        };
        let next = line.get_mut().pop_front();
        if line.get().is_empty() {
            line.remove();
        }
        self.waiting -= usize::from(next.is_some());
        next
    }

    /// Merged entries that wait in line.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.lines.clear();
        self.waiting = 0;
    }
}

/// The keys are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND: u64 = 0xa076_1d64_78bd_642f;

/// All bits of a product, folded into one word.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

/// A folded-multiply hash over eight bytes at a time. Not for adversaries who know the seed; the host draws it.
fn hash(seed: u64, key: &[u8]) -> u64 {
    let mut state = seed ^ (key.len() as u64).wrapping_mul(MULTIPLIER);
    let (chunks, rest) = key.as_chunks::<8>();
    for chunk in chunks {
        state = fold(state ^ u64::from_le_bytes(*chunk), SECOND);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        state = fold(state ^ u64::from_le_bytes(last), SECOND);
    }
    fold(state ^ seed, MULTIPLIER)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: Part = Part {
        bytes: 1,
        mutations: 1,
        size: 10,
    };

    #[test]
    fn a_row_leaves_the_index_with_its_last_entry_and_the_line_keeps_its_order() {
        let mut order = RowOrder::new(7);
        let table = TableId(0);
        let row = order.hash(table, b"k");
        assert_eq!(
            order.claim(
                row,
                Place {
                    batch: 1,
                    position: 0
                }
            ),
            None
        );
        order.line_up(row, table, b"k", b"a", PART);
        order.line_up(row, table, b"k", b"b", PART);
        assert_eq!(order.waiting(), 1, "merged");
        let next = order.resolve(row).expect("waits");
        assert_eq!(next.mutations, b"ab");
        assert_eq!(next.parts.len(), 2);
        order.put(
            row,
            Place {
                batch: 2,
                position: 3,
            },
        );
        let elsewhere = Place {
            batch: 9,
            position: 9,
        };
        assert_eq!(
            order.claim(row, elsewhere),
            Some((
                Place {
                    batch: 2,
                    position: 3
                },
                false
            ))
        );
        assert!(order.resolve(row).is_none());
        assert!(order.rows.is_empty());
    }

    #[test]
    fn rows_that_share_a_hash_wait_for_each_other_and_are_not_merged() {
        let mut order = RowOrder::new(7);
        order.put(
            1,
            Place {
                batch: 1,
                position: 0,
            },
        );
        order.line_up(1, TableId(0), b"x", b"1", PART);
        order.line_up(1, TableId(0), b"y", b"2", PART);
        order.line_up(1, TableId(1), b"y", b"3", PART);
        let mut taken = Vec::new();
        while let Some(next) = order.resolve(1) {
            taken.push(next.mutations);
            order.put(
                1,
                Place {
                    batch: 2,
                    position: 0,
                },
            );
        }
        assert_eq!(taken, [b"1", b"2", b"3"]);
        assert_eq!(order.waiting(), 0);
    }

    #[test]
    fn what_waits_merges_only_within_the_limits_of_an_entry() {
        let mut order = RowOrder::new(7);
        order.put(
            1,
            Place {
                batch: 1,
                position: 0,
            },
        );
        let part = Part {
            mutations: 60_000,
            ..PART
        };
        order.line_up(1, TableId(0), b"x", b"1", part);
        order.line_up(1, TableId(0), b"x", b"2", part);
        assert_eq!(order.waiting(), 2);
    }

    proptest::proptest! {
        /// Whatever the order of records and verdicts: each row's records take effect in the order written, one entry
        /// of a row is away at a time, and an index without entries away is empty.
        #[test]
        fn each_row_keeps_its_order_and_leaves_nothing_behind(
            steps in proptest::collection::vec((0..5_u64, proptest::bool::ANY), 1..200),
        ) {
            const TABLE: TableId = TableId(0);
            let mut order = RowOrder::new(7);
            let mut away: HashMap<u64, Vec<u8>> = HashMap::new();
            let mut written: HashMap<u64, Vec<u8>> = HashMap::new();
            let mut applied: HashMap<u64, Vec<u8>> = HashMap::new();
            let answer = |order: &mut RowOrder, away: &mut HashMap<u64, Vec<u8>>, row: u64| {
                let Some(records) = away.remove(&row) else { return Vec::new() };
                if let Some(next) = order.resolve(row) {
                    order.put(row, Place { batch: 1, position: 0 });
                    away.insert(row, next.mutations);
                }
                records
            };
            for (number, (row, answered)) in steps.iter().enumerate() {
                let record = number as u8;
                written.entry(*row).or_default().push(record);
                match order.claim(*row, Place { batch: 1, position: 0 }) {
                    None => proptest::prop_assert!(away.insert(*row, vec![record]).is_none()),
                    Some(_) => order.line_up(*row, TABLE, b"key", &[record], PART),
                }
                if *answered {
                    let records = answer(&mut order, &mut away, *row);
                    applied.entry(*row).or_default().extend(records);
                }
            }
            for row in 0..5 {
                while away.contains_key(&row) {
                    let records = answer(&mut order, &mut away, row);
                    applied.entry(row).or_default().extend(records);
                }
            }
            applied.retain(|_, records| !records.is_empty());
            proptest::prop_assert_eq!(applied, written);
            proptest::prop_assert!(order.rows.is_empty() && order.lines.is_empty() && order.waiting() == 0);
        }
    }

    #[test]
    fn hashes_differ_by_key_table_and_seed() {
        let order = RowOrder::new(1);
        let mut seen = std::collections::HashSet::new();
        for table in 0..4 {
            for key in 0..10_000_u32 {
                assert!(seen.insert(order.hash(TableId(table), &key.to_be_bytes())));
                assert!(
                    seen.insert(order.hash(TableId(table), format!("user#{key:08}").as_bytes()))
                );
            }
        }
        assert_ne!(
            order.hash(TableId(0), b"k"),
            RowOrder::new(2).hash(TableId(0), b"k")
        );
        assert_ne!(order.hash(TableId(0), b""), order.hash(TableId(0), b"\0"));
    }
}
