//! A row as text: one JSON object a line, or a line for each cell of a table.
//!
//! # Invariants
//!
//! - JSON loses nothing: what is no UTF-8 is base64 in an object, so that no text can be taken for it.
//! - In a table no byte of a row reaches the terminal as a control character.

use std::fmt::Write as _;

use aqueduct::bigtable::client::read::RowRef;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

/// Characters of a time: `2013-01-01T10:00:00.000Z`.
const TIME: usize = 24;
/// Between two columns.
const GAP: &str = "  ";

/// How rows are written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Format {
    /// One JSON object a line.
    Json,
    /// One line a cell.
    Table(Widths),
}

/// Characters of the columns of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Widths {
    key: usize,
    column: usize,
    /// `None`: nothing is cut, and the other widths are only what shorter texts are filled up to.
    value: Option<usize>,
}

impl Format {
    /// A table for a terminal of `width` characters; `None` is none, so nothing is cut.
    pub(super) fn table(width: Option<usize>) -> Self {
        let Some(width) = width else {
            return Self::Table(Widths {
                key: 32,
                column: 24,
                value: None,
            });
        };
        let left = width.saturating_sub(TIME + 3 * GAP.len());
        let (key, column) = ((left * 2 / 5).max(8), (left / 4).max(8));
        Self::Table(Widths {
            key,
            column,
            value: Some(left.saturating_sub(key + column).max(4)),
        })
    }

    /// What comes before the first row.
    pub(super) fn header(self) -> Option<String> {
        match self {
            Self::Json => None,
            Self::Table(widths) => Some(widths.line(b"key", b"column", "time", b"value")),
        }
    }

    /// Appends the row, with its line end.
    pub(super) fn write(self, row: RowRef<'_>, out: &mut Vec<u8>) {
        match self {
            Self::Json => {
                let row = JsonRow {
                    key: Text(row.key()),
                    cells: row
                        .cells()
                        .map(|cell| JsonCell {
                            family: cell.family(),
                            qualifier: Text(cell.qualifier()),
                            timestamp_micros: cell.timestamp_micros(),
                            value: Text(cell.value()),
                        })
                        .collect(),
                };
                serde_json::to_writer(&mut *out, &row).expect("memory takes every byte");
                out.push(b'\n');
            }
            Self::Table(widths) => {
                let mut key = row.key();
                for cell in row.cells() {
                    let column = [cell.family_bytes(), b":", cell.qualifier()].concat();
                    let time = utc(cell.timestamp_micros());
                    let line = widths.line(key, &column, &time, cell.value());
                    out.extend_from_slice(line.as_bytes());
                    // The key stands beside the row's first cell only.
                    key = b"";
                }
            }
        }
    }
}

impl Widths {
    fn line(self, key: &[u8], column: &[u8], time: &str, value: &[u8]) -> String {
        let cut = |width: usize| self.value.map(|_| width);
        let mut line = String::new();
        push(&mut line, key, self.key, cut(self.key));
        line.push_str(GAP);
        push(&mut line, column, self.column, cut(self.column));
        line.push_str(GAP);
        push(&mut line, time.as_bytes(), TIME, None);
        line.push_str(GAP);
        push(&mut line, value, 0, self.value);
        line.truncate(line.trim_end_matches(' ').len());
        line.push('\n');
        line
    }
}

/// Appends `bytes` as printable text, filled up to `width` characters and cut to `most`. What does not print is `\xNN`.
fn push(line: &mut String, bytes: &[u8], width: usize, most: Option<usize>) {
    let most = most.unwrap_or(usize::MAX);
    let begin = line.len();
    let mut count = 0;
    // A value may have many megabytes, so no more of it is looked at than is shown.
    'text: for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() {
                for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                    count += escape(line, byte);
                }
            } else {
                line.push(character);
                count += 1;
            }
            if count > most {
                break 'text;
            }
        }
        for byte in chunk.invalid() {
            count += escape(line, *byte);
        }
        if count > most {
            break;
        }
    }
    if count > most {
        let kept = line[begin..]
            .char_indices()
            .nth(most.saturating_sub(1))
            .map_or(line.len(), |(at, _)| begin + at);
        line.truncate(kept);
        line.push('…');
        count = most;
    }
    line.extend(std::iter::repeat_n(' ', width.saturating_sub(count)));
}

/// Appends `\xNN`; gives its length.
fn escape(line: &mut String, byte: u8) -> usize {
    let _ = write!(line, "\\x{byte:02x}");
    4
}

/// Microseconds since the epoch as `YYYY-MM-DDTHH:MM:SS.mmmZ`; times far from ours as the number.
fn utc(micros: i64) -> String {
    const DAY: i64 = 86_400_000_000;
    let (days, rest) = (micros.div_euclid(DAY), micros.rem_euclid(DAY));
    // Years are counted from March, so that the leap day is a year's last; eras have 400 years.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    if !(0..=9_999).contains(&year) {
        return micros.to_string();
    }
    let millis = rest / 1_000;
    let (hour, minute) = (millis / 3_600_000, millis / 60_000 % 60);
    let (second, millis) = (millis / 1_000 % 60, millis % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[derive(Serialize)]
struct JsonRow<'a> {
    key: Text<'a>,
    cells: Vec<JsonCell<'a>>,
}

#[derive(Serialize)]
struct JsonCell<'a> {
    family: &'a str,
    qualifier: Text<'a>,
    timestamp_micros: i64,
    value: Text<'a>,
}

/// Bytes: a string if they are UTF-8, else `{"base64": "..."}`.
struct Text<'a>(&'a [u8]);

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Ok(text) = std::str::from_utf8(self.0) {
            return serializer.serialize_str(text);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("base64", &STANDARD.encode(self.0))?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(width: Option<usize>, key: &[u8], value: &[u8]) -> String {
        match Format::table(width) {
            Format::Table(widths) => widths.line(key, b"cf:q", &utc(0), value),
            Format::Json => unreachable!("a table was asked for"),
        }
    }

    #[test]
    fn a_line_is_as_wide_as_the_terminal_at_most() {
        for width in 54..200 {
            for text in ["short", &"é".repeat(300), &"\0".repeat(300)] {
                let line = line(Some(width), text.as_bytes(), text.as_bytes());
                let length = line.trim_end_matches('\n').chars().count();
                assert!(length <= width, "{length} of {width}: {line}");
                assert_eq!(line.contains('…'), text.len() > 5, "{line}");
            }
        }
    }

    #[test]
    fn without_a_terminal_nothing_is_cut() {
        let long = "v".repeat(10_000);
        let line = line(None, long.as_bytes(), long.as_bytes());
        assert_eq!(line.matches(&long).count(), 2);
    }

    #[test]
    fn what_does_not_print_is_shown_by_its_bytes() {
        let line = line(None, b"k\x1b[31m", b"a\xffb\xc2\x85\n");
        assert!(line.starts_with("k\\x1b[31m "), "{line}");
        assert!(line.ends_with("a\\xffb\\xc2\\x85\\x0a\n"), "{line}");
    }

    #[test]
    fn times_are_utc_dates() {
        for (micros, shown) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_357_034_400_000_000, "2013-01-01T10:00:00.000Z"),
            (951_868_799_123_456, "2000-02-29T23:59:59.123Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (i64::MAX, "9223372036854775807"),
        ] {
            assert_eq!(utc(micros), shown);
        }
    }
}
