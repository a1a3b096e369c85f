//! A row as text: one JSON object a line, or a line for each cell of a table.
//!
//! # Invariants
//!
//! - JSON loses nothing: what is no UTF-8 is base64 in an object, so that no text can be taken for it.
//! - In a table no byte of a row reaches the terminal as a control character.

use aqueduct::bigtable::client::read::RowRef;
use serde::Serialize;

use crate::printable::{Text, push, utc};

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
}
