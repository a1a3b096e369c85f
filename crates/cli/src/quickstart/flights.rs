//! The events: flights that left New York City in 2013, one a line; and the row that each becomes.
//!
//! A row's key is `carrier#flight#origin#time_hour`, the identity of a flight. Cells carry the event time, so writing a
//! flight again (after a crash, say) rewrites the same cells and adds nothing.

use std::fmt;

use aqueduct::bigtable::{Disposition, RowMutationEntry};
use aqueduct::connector::Timestamp;
use aqueduct::connector::sink::RecordInfo;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

/// The one column family.
pub(super) const FAMILY: &str = "flight";
/// Qualifier of the departure delay in minutes; cancelled flights have none.
pub(super) const DEP_DELAY: &[u8] = b"dep_delay";
/// A slice of the data, sorted by time: every flight of the first days of January 2013.
pub(super) const SAMPLE: &[u8] = include_bytes!("../../data/flights-2013-01.csv.gz");

/// One flight, as the file has it; `None` where it says `NA`.
#[derive(Debug, Deserialize)]
pub(super) struct Flight {
    carrier: String,
    flight: u32,
    origin: String,
    dest: String,
    tailnum: Option<String>,
    dep_delay: Option<i32>,
    arr_delay: Option<i32>,
    distance: u32,
    time_hour: Hour,
}

/// The scheduled departure, to the hour, in UTC.
struct Hour {
    text: String,
    at: Timestamp,
}

impl fmt::Debug for Hour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.at.millis())
    }
}

impl<'de> Deserialize<'de> for Hour {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Hour;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as 2013-01-01T10:00:00Z")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Hour, E> {
                let at = parse_utc(text).ok_or_else(|| E::custom("time_hour is no UTC time"))?;
                Ok(Hour {
                    text: text.to_owned(),
                    at,
                })
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Reads `YYYY-MM-DDTHH:MM:SSZ`.
fn parse_utc(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    if bytes.len() != 20
        || [4, 7, 10, 13, 16, 19]
            .iter()
            .zip(b"--T::Z")
            .any(|(at, c)| bytes[*at] != *c)
    {
        return None;
    }
    let number = |from: usize, to: usize| {
        let digits = &text[from..to];
        digits
            .bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| digits.parse::<i64>().ok())
            .flatten()
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=last).contains(&day) || hour > 23 || minute > 59 || second > 59 || year < 1 {
        return None;
    }
    // Days since the epoch, counting years from March so that the leap day is a year's last.
    let (y, m) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    Some(Timestamp::from_millis(
        (days * 86_400 + hour * 3_600 + minute * 60 + second) * 1_000,
    ))
}

impl Flight {
    /// The event time.
    pub(super) fn at(&self) -> Timestamp {
        self.time_hour.at
    }

    /// Encodes the row of this flight.
    pub(super) fn encode(
        &self,
        _: RecordInfo,
        entry: &mut RowMutationEntry,
    ) -> Result<Disposition, std::convert::Infallible> {
        let micros = self.at().millis() * 1_000;
        entry.row_key(format!(
            "{}#{}#{}#{}",
            self.carrier, self.flight, self.origin, self.time_hour.text
        ));
        entry.set_cell(FAMILY, b"dest", micros, self.dest.as_bytes());
        entry.set_cell(
            FAMILY,
            b"distance",
            micros,
            self.distance.to_string().as_bytes(),
        );
        if let Some(tailnum) = &self.tailnum {
            entry.set_cell(FAMILY, b"tailnum", micros, tailnum.as_bytes());
        }
        if let Some(delay) = self.dep_delay {
            entry.set_cell(FAMILY, DEP_DELAY, micros, delay.to_string().as_bytes());
        }
        if let Some(delay) = self.arr_delay {
            entry.set_cell(FAMILY, b"arr_delay", micros, delay.to_string().as_bytes());
        }
        Ok(Disposition::Write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_utc_and_impossible_ones_are_refused() {
        assert_eq!(
            parse_utc("1970-01-01T00:00:00Z"),
            Some(Timestamp::from_millis(0))
        );
        assert_eq!(
            parse_utc("2013-01-01T10:00:00Z"),
            Some(Timestamp::from_millis(1_357_034_400_000))
        );
        assert_eq!(
            parse_utc("2000-02-29T23:59:59Z"),
            Some(Timestamp::from_millis(951_868_799_000))
        );
        for bad in [
            "2013-02-29T00:00:00Z",
            "2013-13-01T00:00:00Z",
            "2013-00-01T00:00:00Z",
            "2013-01-01 10:00:00Z",
            "2013-01-01T24:00:00Z",
            "2013-01-01T10:00:00+",
            "+013-01-01T10:00:00Z",
            "2013-01-01T10:00:0éZ",
            "",
        ] {
            assert_eq!(parse_utc(bad), None, "{bad}");
        }
    }
}
