//! Bytes and times as people read them.
//!
//! # Invariants
//!
//! - JSON loses nothing: what is no UTF-8 is base64 in an object, so that no text can be taken for it.
//! - In a line no byte of the data reaches the terminal as a control character.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

/// Appends `bytes` as printable text, filled up to `width` characters and cut to `most`. What does not print is `\xNN`.
pub(crate) fn push(line: &mut String, bytes: &[u8], width: usize, most: Option<usize>) {
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
pub(crate) fn utc(micros: i64) -> String {
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

/// Bytes: a string if they are UTF-8, else `{"base64": "..."}`.
#[derive(Clone, Copy)]
pub(crate) struct Text<'a>(pub(crate) &'a [u8]);

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
