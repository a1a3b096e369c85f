//! Ranges of row keys: one normal form for all arithmetic, one notation for people.
//!
//! A [`RowRange`] keeps the bounds it was given, for the wire and for print. Every question (empty? overlapping? behind
//! this key?) is answered in one normal form, start-inclusive and end-exclusive over bytes: a start behind `k` is a start
//! at `k·00`, an end including `k` is an end before `k·00`, an absent start is the lowest key there can be, an absent end
//! is infinity (BT-SCAN-02).
//!
//! # Invariants
//!
//! - A range is empty exactly when its normal start is not below its normal end.
//! - [`coalesce`] covers exactly the keys that its input covers, with disjoint, ascending, non-adjacent ranges.
//! - The pieces of [`RowRange::cut`] are disjoint and cover exactly the range.
//! - Distinct ranges print distinctly ([`RowRange::parse`] reads every print back), and no code compares prints.
//!
//! # Not here
//!
//! Where a table is cut: [`source`](crate::source). What is left of a request: [`client::read`](crate::client::read).

use std::cmp::Ordering;
use std::fmt;
use std::ops::Bound;

use aqueduct_connector::options::ConfigError;
use aqueduct_connector::state::{StateError, StateReader, StateWriter};
use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as wire;

use crate::scan_options::ROW_RANGE;

#[cfg(test)]
mod tests;

/// The longest row key the service stores, in bytes (quotas page).
pub const MAX_ROW_KEY_BYTES: usize = 4_096;

/// A range of row keys; either bound inclusive, exclusive or absent.
///
/// `==` compares the bounds as given: `[a, b)` and `[a, b\x00)` differ, and so do `(a, b)` and `[a\x00, b)`, which hold
/// the same keys. Printing shows keys: that is this type's purpose in logs and errors (BASE-49), and the one exception
/// from the rule that keys are never shown.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RowRange {
    start: Bound<Bytes>,
    end: Bound<Bytes>,
}

/// A position between keys, in the normal form: just before `key`, or just before `key·00`.
#[derive(Clone, Copy)]
struct Edge<'a> {
    key: &'a [u8],
    successor: bool,
}

impl Edge<'_> {
    /// No row has the empty key, so an absent start is the key of one zero byte.
    const LOWEST: Edge<'static> = Edge {
        key: &[0],
        successor: false,
    };

    fn cmp(self, other: Edge<'_>) -> Ordering {
        let left = self.key.iter().chain(self.successor.then_some(&0));
        left.cmp(other.key.iter().chain(other.successor.then_some(&0)))
    }
}

/// Compares ends, where `None` is infinity.
fn cmp_ends(left: Option<Edge<'_>>, right: Option<Edge<'_>>) -> Ordering {
    match (left, right) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(left), Some(right)) => left.cmp(right),
    }
}

impl RowRange {
    /// The range between two bounds. It may be empty; [`is_empty`](Self::is_empty) tells.
    ///
    /// # Errors
    ///
    /// If a bound's key is empty (leave the bound out instead).
    pub fn new(start: Bound<Bytes>, end: Bound<Bytes>) -> Result<Self, ConfigError> {
        for bound in [&start, &end] {
            if let Bound::Included(key) | Bound::Excluded(key) = bound
                && key.is_empty()
            {
                return Err(ConfigError::invalid(
                    ROW_RANGE.key(),
                    "a bound is the empty key, which no row has; leave the bound out for an open end",
                ));
            }
        }
        Ok(Self { start, end })
    }

    /// Every key.
    #[must_use]
    pub const fn all() -> Self {
        Self {
            start: Bound::Unbounded,
            end: Bound::Unbounded,
        }
    }

    /// The one key `key`.
    ///
    /// # Errors
    ///
    /// If it is empty.
    pub fn key(key: impl Into<Bytes>) -> Result<Self, ConfigError> {
        let key = key.into();
        Self::new(Bound::Included(key.clone()), Bound::Included(key))
    }

    /// The keys from `start` (inclusive) to `end` (exclusive).
    ///
    /// # Errors
    ///
    /// If either is empty.
    pub fn between(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Result<Self, ConfigError> {
        Self::new(Bound::Included(start.into()), Bound::Excluded(end.into()))
    }

    /// The keys that begin with `prefix`; all keys if it is empty. A prefix of nothing but `0xFF` has no successor and
    /// gives an open end.
    #[must_use]
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let prefix = prefix.into();
        if prefix.is_empty() {
            return Self::all();
        }
        let end = match prefix.iter().rposition(|byte| *byte != 0xff) {
            None => Bound::Unbounded,
            Some(last) => {
                let mut end = prefix[..=last].to_vec();
                end[last] += 1;
                Bound::Excluded(end.into())
            }
        };
        Self {
            start: Bound::Included(prefix),
            end,
        }
    }

    /// The start as given.
    #[must_use]
    pub fn start(&self) -> Bound<&Bytes> {
        self.start.as_ref()
    }

    /// The end as given.
    #[must_use]
    pub fn end(&self) -> Bound<&Bytes> {
        self.end.as_ref()
    }

    fn lower(&self) -> Edge<'_> {
        match &self.start {
            Bound::Unbounded => Edge::LOWEST,
            Bound::Included(key) => Edge {
                key,
                successor: false,
            },
            Bound::Excluded(key) => Edge {
                key,
                successor: true,
            },
        }
    }

    fn upper(&self) -> Option<Edge<'_>> {
        match &self.end {
            Bound::Unbounded => None,
            Bound::Included(key) => Some(Edge {
                key,
                successor: true,
            }),
            Bound::Excluded(key) => Some(Edge {
                key,
                successor: false,
            }),
        }
    }

    /// Whether no key is in it. The service refuses such a range, so nobody may ask for one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.upper()
            .is_some_and(|upper| self.lower().cmp(upper) != Ordering::Less)
    }

    /// Whether `key` is in it.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        let key = Edge {
            key,
            successor: false,
        };
        self.lower().cmp(key) != Ordering::Greater
            && self
                .upper()
                .is_none_or(|upper| key.cmp(upper) == Ordering::Less)
    }

    /// The part strictly behind `key`: what is left once `key` has been read.
    #[must_use]
    pub fn after(&self, key: &Bytes) -> Self {
        let behind = Edge {
            key,
            successor: true,
        };
        if self.lower().cmp(behind) == Ordering::Less {
            Self {
                start: Bound::Excluded(key.clone()),
                end: self.end.clone(),
            }
        } else {
            self.clone()
        }
    }

    /// The part strictly before `key`: what is left of a reverse scan once `key` has been read.
    #[must_use]
    pub fn before(&self, key: &Bytes) -> Self {
        let at = Edge {
            key,
            successor: false,
        };
        if cmp_ends(Some(at), self.upper()) == Ordering::Less {
            Self {
                start: self.start.clone(),
                end: Bound::Excluded(key.clone()),
            }
        } else {
            self.clone()
        }
    }

    /// The keys in both ranges; possibly none.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let start = if self.lower().cmp(other.lower()) == Ordering::Less {
            &other.start
        } else {
            &self.start
        };
        let end = if cmp_ends(self.upper(), other.upper()) == Ordering::Greater {
            &other.end
        } else {
            &self.end
        };
        Self {
            start: start.clone(),
            end: end.clone(),
        }
    }

    /// Cuts at every one of `boundaries` (ascending, without repeats) strictly inside: the left piece ends before the
    /// boundary, the right one starts at it. A boundary that is an inclusive end is inside, one that is the start is not.
    /// The last piece keeps the end as it was given.
    #[must_use]
    pub fn cut(&self, boundaries: &[Bytes]) -> Vec<Self> {
        debug_assert!(
            boundaries.is_sorted_by(|left, right| left < right),
            "boundaries ascend"
        );
        if self.is_empty() {
            return Vec::new();
        }
        let mut pieces = Vec::new();
        let mut start = self.start.clone();
        for boundary in boundaries {
            let at = Edge {
                key: boundary,
                successor: false,
            };
            let inside = self.lower().cmp(at) == Ordering::Less
                && cmp_ends(Some(at), self.upper()) == Ordering::Less;
            if inside {
                pieces.push(Self {
                    start: std::mem::replace(&mut start, Bound::Included(boundary.clone())),
                    end: Bound::Excluded(boundary.clone()),
                });
            }
        }
        pieces.push(Self {
            start,
            end: self.end.clone(),
        });
        pieces
    }

    /// As the service takes it.
    #[must_use]
    pub fn to_wire(&self) -> wire::RowRange {
        use wire::row_range::{EndKey, StartKey};
        wire::RowRange {
            start_key: match &self.start {
                Bound::Unbounded => None,
                Bound::Included(key) => Some(StartKey::StartKeyClosed(key.clone())),
                Bound::Excluded(key) => Some(StartKey::StartKeyOpen(key.clone())),
            },
            end_key: match &self.end {
                Bound::Unbounded => None,
                Bound::Included(key) => Some(EndKey::EndKeyClosed(key.clone())),
                Bound::Excluded(key) => Some(EndKey::EndKeyOpen(key.clone())),
            },
        }
    }

    /// Reads the notation that printing gives, such as `[a, b)`, `(*, row-9)` or `[\x00\xff, *)`.
    ///
    /// # Errors
    ///
    /// If the text is no such notation, naming the option for ranges.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        parse(text).map_err(|reason| ConfigError::invalid(ROW_RANGE.key(), reason))?
    }

    /// Appends the range to a stored format.
    pub(crate) fn encode(&self, into: &mut StateWriter) {
        for bound in [&self.start, &self.end] {
            match bound {
                Bound::Unbounded => into.u8(0),
                Bound::Included(key) => into.u8(1).bytes(key),
                Bound::Excluded(key) => into.u8(2).bytes(key),
            };
        }
    }

    /// Reads what [`encode`](Self::encode) wrote. Keys are copied, so that a split keeps no checkpoint alive.
    pub(crate) fn decode(from: &mut StateReader<'_>) -> Result<Self, StateError> {
        let mut bound = || {
            let kind = from.u8()?;
            if kind == 0 {
                return Ok(Bound::Unbounded);
            }
            let key = from.bytes()?;
            if key.is_empty() || key.len() > MAX_BOUND_BYTES {
                return Err(from.damaged("a bound has an impossible length"));
            }
            let key = Bytes::copy_from_slice(&key);
            match kind {
                1 => Ok(Bound::Included(key)),
                2 => Ok(Bound::Excluded(key)),
                _ => Err(from.damaged("a bound of an unknown kind")),
            }
        };
        Ok(Self {
            start: bound()?,
            end: bound()?,
        })
    }
}

/// The longest bound that a stored range may hold: a bound need not be a possible key, but it is never far longer.
const MAX_BOUND_BYTES: usize = 64 << 10;

/// The same keys as `ranges`, in ascending ranges that neither overlap nor touch. Empty ranges vanish.
#[must_use]
pub fn coalesce(mut ranges: Vec<RowRange>) -> Vec<RowRange> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by(|left, right| left.lower().cmp(right.lower()));
    let mut merged: Vec<RowRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            // The next range starts inside the last one or right where it ends.
            Some(last) if cmp_ends(Some(range.lower()), last.upper()) != Ordering::Greater => {
                if cmp_ends(range.upper(), last.upper()) == Ordering::Greater {
                    last.end = range.end;
                }
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// The keys in both of two lists that [`coalesce`] made, as such a list.
pub(crate) fn intersect(left: &[RowRange], right: &[RowRange]) -> Vec<RowRange> {
    let (mut both, mut at, mut other) = (Vec::new(), 0, 0);
    while let (Some(one), Some(two)) = (left.get(at), right.get(other)) {
        let common = one.intersection(two);
        if !common.is_empty() {
            both.push(common);
        }
        // Whichever ends first can meet nothing more.
        if cmp_ends(one.upper(), two.upper()) == Ordering::Less {
            at += 1;
        } else {
            other += 1;
        }
    }
    both
}

/// The keys outside of `range`, below it and above it.
pub(crate) fn complement(range: &RowRange) -> Vec<RowRange> {
    let below = match &range.start {
        Bound::Unbounded => None,
        Bound::Included(key) => Some(Bound::Excluded(key.clone())),
        Bound::Excluded(key) => Some(Bound::Included(key.clone())),
    };
    let above = match &range.end {
        Bound::Unbounded => None,
        Bound::Included(key) => Some(Bound::Excluded(key.clone())),
        Bound::Excluded(key) => Some(Bound::Included(key.clone())),
    };
    let below = below.map(|end| RowRange {
        start: Bound::Unbounded,
        end,
    });
    let above = above.map(|start| RowRange {
        start,
        end: Bound::Unbounded,
    });
    coalesce(below.into_iter().chain(above).collect())
}

impl fmt::Display for RowRange {
    /// `[a, b)`, as BASE-49 describes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.start {
            Bound::Unbounded => f.write_str("(*")?,
            Bound::Included(key) => write!(f, "[{}", Escaped(key))?,
            Bound::Excluded(key) => write!(f, "({}", Escaped(key))?,
        }
        f.write_str(", ")?;
        match &self.end {
            Bound::Unbounded => f.write_str("*)"),
            Bound::Included(key) => write!(f, "{}]", Escaped(key)),
            Bound::Excluded(key) => write!(f, "{})", Escaped(key)),
        }
    }
}

impl fmt::Debug for RowRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

struct Escaped<'a>(&'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            match byte {
                b'\\' | b'*' | b',' | ..=0x1f | 0x7f.. => write!(f, "\\x{byte:02x}")?,
                _ => write!(f, "{}", char::from(*byte))?,
            }
        }
        Ok(())
    }
}

fn parse(text: &str) -> Result<Result<RowRange, ConfigError>, String> {
    const FORM: &str = "expected a range such as '[a, b)', '(*, b]' or '[a, *)'; bytes that do not print, and '\\', '*' \
                        and ',', are written \\xNN";
    let (first, rest) = text.split_at_checked(1).ok_or(FORM)?;
    let (middle, last) = rest
        .split_at_checked(rest.len().wrapping_sub(1))
        .ok_or(FORM)?;
    // An escaped comma has no comma in it, so the first is the separator.
    let (start, end) = middle.split_once(", ").ok_or(FORM)?;
    let start = match (first, start) {
        ("(", "*") => Bound::Unbounded,
        ("[", key) => Bound::Included(unescape(key).ok_or(FORM)?),
        ("(", key) => Bound::Excluded(unescape(key).ok_or(FORM)?),
        _ => return Err(FORM.to_owned()),
    };
    let end = match (end, last) {
        ("*", ")") => Bound::Unbounded,
        (key, "]") => Bound::Included(unescape(key).ok_or(FORM)?),
        (key, ")") => Bound::Excluded(unescape(key).ok_or(FORM)?),
        _ => return Err(FORM.to_owned()),
    };
    Ok(RowRange::new(start, end))
}

fn unescape(text: &str) -> Option<Bytes> {
    let mut key = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    loop {
        match rest {
            [] => return Some(key.into()),
            [b'\\', b'x', high, low, tail @ ..] => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                // Two digits of four bits each.
                key.push((digit(high)? * 16 + digit(low)?) as u8);
                rest = tail;
            }
            [b'\\' | b'*' | b',' | ..=0x1f | 0x7f.., ..] => return None,
            [byte, tail @ ..] => {
                key.push(*byte);
                rest = tail;
            }
        }
    }
}

/// Refuses what reads nothing: an empty range under a finished job looks like a job with nothing to read.
pub(crate) fn check_not_empty(range: &RowRange) -> Result<(), ConfigError> {
    if range.is_empty() {
        return Err(ConfigError::invalid(
            ROW_RANGE.key(),
            format!("{range} holds no key; remove it, or put its bounds in order"),
        ));
    }
    Ok(())
}
