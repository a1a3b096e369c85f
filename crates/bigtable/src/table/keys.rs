//! Which row keys a scan reads: what the options name, narrowed by the query's conditions on the row key (BT-SQL-10).
//!
//! # Invariants
//!
//! - A condition that [`FilterUse::Exact`] was said of is applied here whole: no row that fails it is read, and none that
//!   meets it is left out.
//! - Keys of integers, dates, times, timestamps and intervals are known by their first bytes, because bytes behind them
//!   are not read; so a comparison for equality is a prefix, and an order has none, since two's complement does not sort.

use std::ops::Bound;

use aqueduct_connector::options::ConfigError;
use aqueduct_connector::table::{Compare, Filter, FilterUse, Literal, TableOptions};
use aqueduct_connector::types::DataType;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::options::{RANGE_END, RANGE_START, ROW_KEY_ENCODING};
use super::schema::{Key, Schema};
use crate::range::{MAX_ROW_KEY_BYTES, RowRange, coalesce, complement, intersect};
use crate::scan_options::{ROW_PREFIX, ROW_RANGE};

#[cfg(test)]
mod tests;

/// How options spell row keys.
#[derive(Clone, Copy)]
enum Encoding {
    Utf8,
    Base64,
}

impl Encoding {
    fn decode(self, text: &str) -> Result<Bytes, String> {
        match self {
            Self::Utf8 => Ok(Bytes::copy_from_slice(text.as_bytes())),
            Self::Base64 => STANDARD.decode(text).map(Bytes::from).map_err(|_| {
                "it is not padded Base64, as 'scan.row-key-encoding' says; encode the key's bytes, or use 'UTF8'".to_owned()
            }),
        }
    }
}

/// The ranges that the options ask for, joined; none for the whole table.
pub(super) fn requested(options: &TableOptions<'_>) -> Result<Vec<RowRange>, ConfigError> {
    let encoding = options
        .choice(
            ROW_KEY_ENCODING.key(),
            &[("UTF8", Encoding::Utf8), ("BASE64", Encoding::Base64)],
        )?
        .unwrap_or(Encoding::Utf8);
    let mut ranges = Vec::new();
    for (at, prefix) in options
        .list(ROW_PREFIX.key())?
        .into_iter()
        .flatten()
        .enumerate()
    {
        let prefix = encoding.decode(prefix).map_err(|reason| {
            ConfigError::invalid(ROW_PREFIX.key(), format!("entry {}: {reason}", at + 1))
        })?;
        ranges.push(RowRange::prefix(prefix));
    }
    let bound = |option: &'static str| {
        options
            .raw(option)
            .map(|text| match encoding.decode(text) {
                Ok(key) if key.is_empty() => Err(ConfigError::invalid(
                    option,
                    "it is the empty key, which no row has; remove it for an open end",
                )),
                Ok(key) => Ok(key),
                Err(reason) => Err(ConfigError::invalid(option, reason)),
            })
            .transpose()
    };
    let (start, end) = (bound(RANGE_START.key())?, bound(RANGE_END.key())?);
    if start.is_some() || end.is_some() {
        let range = RowRange::new(
            start.map_or(Bound::Unbounded, Bound::Included),
            end.map_or(Bound::Unbounded, Bound::Excluded),
        )?;
        if range.is_empty() {
            return Err(ConfigError::Conflict {
                first: RANGE_START.key(),
                second: RANGE_END.key(),
                reason: format!("{range} holds no key; put the bounds in order"),
            });
        }
        ranges.push(range);
    }
    if let Some(text) = options.raw(ROW_RANGE.key()) {
        ranges.extend(parse_ranges(text, encoding)?);
    }
    Ok(coalesce(ranges))
}

/// `[a,b);[c,)`.
fn parse_ranges(text: &str, encoding: Encoding) -> Result<Vec<RowRange>, ConfigError> {
    let mut rest = text.chars();
    let mut ranges = Vec::new();
    loop {
        let entry = ranges.len() + 1;
        let invalid = |reason: &str| {
            ConfigError::invalid(
                ROW_RANGE.key(),
                format!("entry {entry} of its list: {reason}"),
            )
        };
        let range = parse_range(&mut rest, encoding).map_err(|reason| invalid(&reason))?;
        if range.is_empty() {
            return Err(invalid(&format!(
                "{range} holds no key; put the bounds in order"
            )));
        }
        ranges.push(range);
        match rest.find(|char| !char.is_whitespace()) {
            None => return Ok(ranges),
            Some(';') => {}
            Some(_) => {
                return Err(invalid(
                    "something follows its closing bracket; entries are separated by ';'",
                ));
            }
        }
    }
}

fn parse_range(rest: &mut std::str::Chars<'_>, encoding: Encoding) -> Result<RowRange, String> {
    const FORM: &str = "expected a range such as '[a,b)', '(a,b]' or '[a,)', where a missing bound is open and a backslash \
                        goes before each of [ ] ( ) , ; \\ in a key";
    let open = rest.find(|char| !char.is_whitespace());
    let mut bound = |ends: &[char]| {
        let mut key = String::new();
        loop {
            match rest.next().ok_or(FORM)? {
                '\\' => key.push(rest.next().ok_or(FORM)?),
                end if ends.contains(&end) => {
                    let key = encoding.decode(&key)?;
                    return Ok::<_, String>((Some(key).filter(|key| !key.is_empty()), end));
                }
                '[' | ']' | '(' | ')' | ',' | ';' => return Err(FORM.to_owned()),
                char => key.push(char),
            }
        }
    };
    let including = match open {
        Some('[') => true,
        Some('(') => false,
        _ => return Err(FORM.to_owned()),
    };
    let (start, _) = bound(&[','])?;
    let (end, close) = bound(&[']', ')'])?;
    let to_bound = |key: Option<Bytes>, including: bool| match key {
        None => Bound::Unbounded,
        Some(key) if including => Bound::Included(key),
        Some(key) => Bound::Excluded(key),
    };
    RowRange::new(to_bound(start, including), to_bound(end, close == ']'))
        .map_err(|error| error.to_string())
}

/// What a scan does with a condition.
pub(super) fn filter_use(schema: &Schema, filter: &Filter) -> FilterUse {
    match matching(&schema.key, filter) {
        Some(_) => FilterUse::Exact,
        None => FilterUse::Ignored,
    }
}

/// The keys that `ranges` (none for all) and every condition leave, joined and in order; none if no row can match.
pub(super) fn narrowed(schema: &Schema, ranges: &[RowRange], filters: &[Filter]) -> Vec<RowRange> {
    let requested = if ranges.is_empty() {
        vec![RowRange::all()]
    } else {
        ranges.to_vec()
    };
    filters
        .iter()
        .filter_map(|filter| matching(&schema.key, filter))
        .fold(requested, |left, right| intersect(&left, &right))
}

/// The keys that meet a condition on the row key, joined; `None` if that cannot be said by ranges.
fn matching(key: &Key, filter: &Filter) -> Option<Vec<RowRange>> {
    let on_key = |path: &aqueduct_connector::table::FieldPath| path.0 == [key.column];
    match filter {
        // A row without a key does not exist.
        Filter::IsNull(field) if on_key(field) => Some(Vec::new()),
        Filter::IsNotNull(field) if on_key(field) => Some(vec![RowRange::all()]),
        Filter::Compare { field, op, value } if on_key(field) => compare(key, *op, value),
        Filter::In { field, values } if on_key(field) => {
            let equal: Option<Vec<Vec<RowRange>>> = values
                .iter()
                .map(|value| compare(key, Compare::Equal, value))
                .collect();
            Some(coalesce(equal?.concat()))
        }
        _ => None,
    }
}

fn compare(key: &Key, op: Compare, value: &Literal) -> Option<Vec<RowRange>> {
    match (&key.data, value) {
        (DataType::VarChar(_), Literal::Text(text)) => Some(bytewise(op, text.as_bytes())),
        (DataType::VarBinary(_), Literal::Bytes(bytes)) => Some(bytewise(op, bytes)),
        _ => {
            let begins = encoded(&key.data, value)?;
            let equal = begins.map(RowRange::prefix);
            match (op, equal) {
                (Compare::Equal, equal) => Some(equal.into_iter().collect()),
                (Compare::NotEqual, None) => Some(vec![RowRange::all()]),
                (Compare::NotEqual, Some(equal)) => Some(complement(&equal)),
                _ => None,
            }
        }
    }
}

/// Keys that compare so with `value`, byte by byte.
fn bytewise(op: Compare, value: &[u8]) -> Vec<RowRange> {
    // Every key is longer than the empty one, and none is as long as one beyond the service's bound: there, up to the
    // bound's bytes of it is the same as below it.
    let impossible = value.is_empty() || value.len() > MAX_ROW_KEY_BYTES;
    let key = Bytes::copy_from_slice(&value[..value.len().min(MAX_ROW_KEY_BYTES)]);
    let long = value.len() > MAX_ROW_KEY_BYTES;
    let range = |start, end| RowRange::new(start, end).into_iter().collect();
    match op {
        Compare::Equal if impossible => Vec::new(),
        Compare::NotEqual if impossible => vec![RowRange::all()],
        Compare::Less | Compare::LessOrEqual if key.is_empty() => Vec::new(),
        Compare::Greater | Compare::GreaterOrEqual if key.is_empty() => vec![RowRange::all()],
        Compare::Equal => range(Bound::Included(key.clone()), Bound::Included(key)),
        Compare::NotEqual => RowRange::key(key).iter().flat_map(complement).collect(),
        Compare::Less if !long => range(Bound::Unbounded, Bound::Excluded(key)),
        Compare::Less | Compare::LessOrEqual => range(Bound::Unbounded, Bound::Included(key)),
        Compare::GreaterOrEqual if !long => range(Bound::Included(key), Bound::Unbounded),
        Compare::Greater | Compare::GreaterOrEqual => range(Bound::Excluded(key), Bound::Unbounded),
    }
}

/// The first bytes of keys that hold `value`: `Some(None)` if the type cannot hold it, `None` if the type is not known by
/// its first bytes.
fn encoded(data: &DataType, value: &Literal) -> Option<Option<Vec<u8>>> {
    Some(match (data, value) {
        (DataType::TinyInt, Literal::Int(value)) => i8::try_from(*value)
            .ok()
            .map(|value| value.to_be_bytes().to_vec()),
        (DataType::SmallInt, Literal::Int(value)) => i16::try_from(*value)
            .ok()
            .map(|value| value.to_be_bytes().to_vec()),
        (
            DataType::Int | DataType::Date | DataType::Time(_) | DataType::IntervalYearMonth,
            Literal::Int(value),
        ) => i32::try_from(*value)
            .ok()
            .map(|value| value.to_be_bytes().to_vec()),
        (DataType::BigInt | DataType::IntervalDayTime, Literal::Int(value)) => {
            Some(value.to_be_bytes().to_vec())
        }
        (DataType::Timestamp(_) | DataType::TimestampLtz(_), Literal::Time(time)) => {
            (time.nanos == 0).then(|| time.millis.to_be_bytes().to_vec())
        }
        _ => return None,
    })
}
