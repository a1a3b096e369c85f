//! The service's filter language as a typed builder.
//!
//! A [`Filter`] says which cells of a row the service returns. It is made by the functions here, nested by
//! [`chain`](Filter::chain), [`interleave`](Filter::interleave) and [`condition`](Filter::condition), and checked as a
//! whole by [`check`](Filter::check), which every builder that takes a filter calls.
//!
//! # Invariants
//!
//! - A filter that passes [`check`](Filter::check) is below 20 KiB encoded and at most 20 deep (BT-WIRE-18), and breaks no
//!   rule that the protocol's description states.
//! - Nothing in the language depends on how a scan is cut into splits: limits and offsets count cells of one row.
//! - Families are not looked up: an unknown one fails the read with `NOT_FOUND` (BT-SCAN-13).
//! - Patterns hold keys and values, so `Debug` shows the shape only.

use std::fmt;
use std::ops::Bound;

use aqueduct_connector::options::ConfigError;
use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as wire;
use prost::Message;
use wire::row_filter::{Chain, Condition, Filter as Kind, Interleave};

use crate::scan_options::FILTER;

#[cfg(test)]
mod tests;

/// A filter's encoded size stays below this many bytes (quotas page).
pub const MAX_FILTER_BYTES: usize = 20 << 10;
/// Filters nest at most so deep (the protocol's description).
pub const MAX_FILTER_DEPTH: usize = 20;
/// A label is at most so long.
const MAX_LABEL_BYTES: usize = 15;
/// Families are at most so long.
const MAX_FAMILY_BYTES: usize = 64;

/// Which cells the service returns.
#[derive(Clone, PartialEq)]
pub struct Filter {
    wire: wire::RowFilter,
    depth: usize,
    /// The first rule broken while building, reported by [`check`](Self::check).
    broken: Option<&'static str>,
}

impl Filter {
    fn leaf(kind: Kind) -> Self {
        Self {
            wire: wire::RowFilter { filter: Some(kind) },
            depth: 1,
            broken: None,
        }
    }

    fn checked(kind: Kind, rule: Result<(), &'static str>) -> Self {
        Self {
            broken: rule.err(),
            ..Self::leaf(kind)
        }
    }

    fn over(kind: Kind, parts: &[&Self]) -> Self {
        Self {
            wire: wire::RowFilter { filter: Some(kind) },
            depth: 1 + parts.iter().map(|part| part.depth).max().unwrap_or(0),
            broken: parts.iter().find_map(|part| part.broken),
        }
    }

    /// Each filter on the output of the one before. Of one filter, that filter; of none, all cells.
    #[must_use]
    pub fn chain(filters: impl IntoIterator<Item = Self>) -> Self {
        let mut parts: Vec<Self> = filters.into_iter().collect();
        match parts.len() {
            0 => Self::pass_all(),
            1 => parts.remove(0),
            _ => Self::over(
                Kind::Chain(Chain {
                    filters: parts.iter().map(|part| part.wire.clone()).collect(),
                }),
                &parts.iter().collect::<Vec<_>>(),
            ),
        }
    }

    /// The outputs of all filters together; a cell that several pass appears several times. Of one filter, that filter; of
    /// none, no cell.
    #[must_use]
    pub fn interleave(filters: impl IntoIterator<Item = Self>) -> Self {
        let mut parts: Vec<Self> = filters.into_iter().collect();
        match parts.len() {
            0 => Self::block_all(),
            1 => parts.remove(0),
            _ => Self::over(
                Kind::Interleave(Interleave {
                    filters: parts.iter().map(|part| part.wire.clone()).collect(),
                }),
                &parts.iter().collect::<Vec<_>>(),
            ),
        }
    }

    /// `then` for rows of which `predicate` passes a cell, `otherwise` for the others; a missing branch passes nothing.
    /// Slow, and the predicate is not evaluated atomically with the branch.
    #[must_use]
    pub fn condition(predicate: Self, then: Option<Self>, otherwise: Option<Self>) -> Self {
        let parts: Vec<&Self> = [Some(&predicate), then.as_ref(), otherwise.as_ref()]
            .into_iter()
            .flatten()
            .collect();
        let mut filter = Self::over(
            Kind::Condition(Box::new(Condition {
                predicate_filter: Some(Box::new(predicate.wire.clone())),
                true_filter: then.as_ref().map(|part| Box::new(part.wire.clone())),
                false_filter: otherwise.as_ref().map(|part| Box::new(part.wire.clone())),
            })),
            &parts,
        );
        if then.is_none() && otherwise.is_none() {
            filter
                .broken
                .get_or_insert("a condition has neither branch, so it passes nothing");
        }
        if parts.iter().any(|part| holds_sink(&part.wire)) {
            filter
                .broken
                .get_or_insert("a sink cannot be inside a condition");
        }
        filter
    }

    /// Sends what reaches it straight to the output of the whole filter.
    #[must_use]
    pub fn sink() -> Self {
        Self::leaf(Kind::Sink(true))
    }

    /// Every cell.
    #[must_use]
    pub fn pass_all() -> Self {
        Self::leaf(Kind::PassAllFilter(true))
    }

    /// No cell.
    #[must_use]
    pub fn block_all() -> Self {
        Self::leaf(Kind::BlockAllFilter(true))
    }

    /// Rows whose whole key matches an RE2 pattern over bytes. `.` does not match a new line; use `\C` for any byte.
    #[must_use]
    pub fn row_key_regex(pattern: impl Into<Bytes>) -> Self {
        Self::leaf(Kind::RowKeyRegexFilter(pattern.into()))
    }

    /// Rows with exactly this key. A scan of its range reads less than a filter throws away.
    #[must_use]
    pub fn row_key_exact(key: &[u8]) -> Self {
        Self::row_key_regex(quote(key))
    }

    /// A row with this probability; not the same rows each time.
    #[must_use]
    pub fn row_sample(probability: f64) -> Self {
        Self::checked(
            Kind::RowSampleFilter(probability),
            if probability > 0.0 && probability < 1.0 {
                Ok(())
            } else {
                Err("a sample's probability is not strictly between 0 and 1")
            },
        )
    }

    /// Families whose whole name matches an RE2 pattern. The service's syntax takes no new line or colon here.
    #[must_use]
    pub fn family_regex(pattern: impl Into<String>) -> Self {
        Self::leaf(Kind::FamilyNameRegexFilter(pattern.into()))
    }

    /// The family of this name.
    #[must_use]
    pub fn family_exact(family: &str) -> Self {
        let quoted = String::from_utf8(quote(family.as_bytes()).into())
            .expect("quoting adds ASCII before ASCII and keeps the rest");
        Self::checked(
            Kind::FamilyNameRegexFilter(quoted),
            check_family_name(family),
        )
    }

    /// Columns whose whole qualifier matches an RE2 pattern over bytes.
    #[must_use]
    pub fn qualifier_regex(pattern: impl Into<Bytes>) -> Self {
        Self::leaf(Kind::ColumnQualifierRegexFilter(pattern.into()))
    }

    /// Columns with exactly this qualifier.
    #[must_use]
    pub fn qualifier_exact(qualifier: &[u8]) -> Self {
        Self::qualifier_regex(quote(qualifier))
    }

    /// Columns of one family, between two qualifiers.
    #[must_use]
    pub fn qualifier_range(family: &str, start: Bound<Bytes>, end: Bound<Bytes>) -> Self {
        use wire::column_range::{EndQualifier, StartQualifier};
        let rule =
            check_family_name(family).and(check_order(&start, &end, "a qualifier range is empty"));
        Self::checked(
            Kind::ColumnRangeFilter(wire::ColumnRange {
                family_name: family.to_owned(),
                start_qualifier: match start {
                    Bound::Unbounded => None,
                    Bound::Included(at) => Some(StartQualifier::StartQualifierClosed(at)),
                    Bound::Excluded(at) => Some(StartQualifier::StartQualifierOpen(at)),
                },
                end_qualifier: match end {
                    Bound::Unbounded => None,
                    Bound::Included(at) => Some(EndQualifier::EndQualifierClosed(at)),
                    Bound::Excluded(at) => Some(EndQualifier::EndQualifierOpen(at)),
                },
            }),
            rule,
        )
    }

    /// Cells with a timestamp from `start` (inclusive) to `end` (exclusive), in microseconds since the epoch. `None` is
    /// open.
    #[must_use]
    pub fn timestamp_range(start_micros: Option<i64>, end_micros: Option<i64>) -> Self {
        let rule = if start_micros.is_some_and(|start| start < 0) {
            Err("a timestamp range begins before the epoch")
        } else if end_micros.is_some_and(|end| end <= start_micros.unwrap_or(0)) {
            // On the wire an end of 0 would be read as open.
            Err("a timestamp range is empty")
        } else {
            Ok(())
        };
        Self::checked(
            Kind::TimestampRangeFilter(wire::TimestampRange {
                start_timestamp_micros: start_micros.unwrap_or(0),
                end_timestamp_micros: end_micros.unwrap_or(0),
            }),
            rule,
        )
    }

    /// Cells whose whole value matches an RE2 pattern over bytes.
    #[must_use]
    pub fn value_regex(pattern: impl Into<Bytes>) -> Self {
        Self::leaf(Kind::ValueRegexFilter(pattern.into()))
    }

    /// Cells with exactly this value.
    #[must_use]
    pub fn value_exact(value: &[u8]) -> Self {
        Self::value_regex(quote(value))
    }

    /// Cells with a value between two bounds.
    #[must_use]
    pub fn value_range(start: Bound<Bytes>, end: Bound<Bytes>) -> Self {
        use wire::value_range::{EndValue, StartValue};
        let rule = check_order(&start, &end, "a value range is empty");
        Self::checked(
            Kind::ValueRangeFilter(wire::ValueRange {
                start_value: match start {
                    Bound::Unbounded => None,
                    Bound::Included(at) => Some(StartValue::StartValueClosed(at)),
                    Bound::Excluded(at) => Some(StartValue::StartValueOpen(at)),
                },
                end_value: match end {
                    Bound::Unbounded => None,
                    Bound::Included(at) => Some(EndValue::EndValueClosed(at)),
                    Bound::Excluded(at) => Some(EndValue::EndValueOpen(at)),
                },
            }),
            rule,
        )
    }

    /// Without the first `cells` cells of each row.
    #[must_use]
    pub fn cells_per_row_offset(cells: u32) -> Self {
        let (cells, rule) = count(cells);
        Self::checked(Kind::CellsPerRowOffsetFilter(cells), rule)
    }

    /// The first `cells` cells of each row.
    #[must_use]
    pub fn cells_per_row(cells: u32) -> Self {
        let (cells, rule) = count(cells);
        Self::checked(Kind::CellsPerRowLimitFilter(cells), rule)
    }

    /// The newest `cells` versions of each column.
    #[must_use]
    pub fn cells_per_column(cells: u32) -> Self {
        let (cells, rule) = count(cells);
        Self::checked(Kind::CellsPerColumnLimitFilter(cells), rule)
    }

    /// Replaces each value by an empty one.
    #[must_use]
    pub fn strip_value() -> Self {
        Self::leaf(Kind::StripValueTransformer(true))
    }

    /// Puts a label on each cell: up to 15 of `a-z`, `0-9` and `-`.
    #[must_use]
    pub fn label(label: &str) -> Self {
        let valid = (1..=MAX_LABEL_BYTES).contains(&label.len())
            && label
                .bytes()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        Self::checked(
            Kind::ApplyLabelTransformer(label.to_owned()),
            if valid {
                Ok(())
            } else {
                Err("a label is not 1 to 15 of a-z, 0-9 and '-'")
            },
        )
    }

    /// How deep it nests; a filter without others inside is 1 deep.
    #[must_use]
    pub const fn depth(&self) -> usize {
        self.depth
    }

    /// Its encoded size in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.wire.encoded_len()
    }

    /// Refuses what the service would refuse.
    ///
    /// # Errors
    ///
    /// If it is too large, too deep or breaks a rule of the language, naming the option and the rule and no pattern.
    pub fn check(&self) -> Result<(), ConfigError> {
        if let Some(rule) = self.broken {
            return Err(ConfigError::invalid(FILTER.key(), rule));
        }
        if self.depth > MAX_FILTER_DEPTH {
            return Err(ConfigError::invalid(
                FILTER.key(),
                format!(
                    "it is {} deep and the service takes {MAX_FILTER_DEPTH}; join nested chains into one",
                    self.depth
                ),
            ));
        }
        let size = self.encoded_len();
        if size >= MAX_FILTER_BYTES {
            return Err(ConfigError::invalid(
                FILTER.key(),
                format!(
                    "it has {size} bytes and the service takes less than {MAX_FILTER_BYTES}; shorten its patterns"
                ),
            ));
        }
        Ok(())
    }

    /// As the service takes it.
    #[must_use]
    pub fn to_wire(&self) -> wire::RowFilter {
        self.wire.clone()
    }
}

impl fmt::Debug for Filter {
    /// The shape; patterns hold data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Filter({} deep, {} bytes)",
            self.depth,
            self.encoded_len()
        )
    }
}

fn count(cells: u32) -> (i32, Result<(), &'static str>) {
    match i32::try_from(cells) {
        Ok(0) => (0, Err("a number of cells is 0")),
        Ok(cells) => (cells, Ok(())),
        Err(_) => (
            i32::MAX,
            Err("a number of cells is above 2,147,483,647, the protocol's most"),
        ),
    }
}

fn check_family_name(family: &str) -> Result<(), &'static str> {
    let valid = (1..=MAX_FAMILY_BYTES).contains(&family.len())
        && family
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if valid {
        Ok(())
    } else {
        Err("a family's name is not 1 to 64 of a-z, A-Z, 0-9, '-', '_' and '.'")
    }
}

fn check_order(
    start: &Bound<Bytes>,
    end: &Bound<Bytes>,
    rule: &'static str,
) -> Result<(), &'static str> {
    let empty = match (start, end) {
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Excluded(end))
        | (Bound::Excluded(start), Bound::Included(end)) => start >= end,
        (Bound::Unbounded, Bound::Excluded(end)) => end.is_empty(),
        _ => false,
    };
    if empty { Err(rule) } else { Ok(()) }
}

fn holds_sink(filter: &wire::RowFilter) -> bool {
    match &filter.filter {
        Some(Kind::Sink(_)) => true,
        Some(Kind::Chain(chain)) => chain.filters.iter().any(holds_sink),
        Some(Kind::Interleave(interleave)) => interleave.filters.iter().any(holds_sink),
        Some(Kind::Condition(condition)) => [
            &condition.predicate_filter,
            &condition.true_filter,
            &condition.false_filter,
        ]
        .into_iter()
        .flatten()
        .any(|part| holds_sink(part)),
        _ => false,
    }
}

/// An RE2 pattern that matches exactly `literal`, whatever bytes it holds: every ASCII byte that could mean something is
/// escaped, NUL as `\x00` because a backslash before it means nothing. Bytes above ASCII match themselves.
#[must_use]
pub fn quote(literal: &[u8]) -> Bytes {
    let mut pattern = Vec::with_capacity(literal.len() * 2);
    for byte in literal {
        match byte {
            0 => pattern.extend_from_slice(b"\\x00"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | 0x80.. => pattern.push(*byte),
            _ => pattern.extend_from_slice(&[b'\\', *byte]),
        }
    }
    pattern.into()
}
