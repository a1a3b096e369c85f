//! Answers to one `MutateRows` attempt, decoded by hand from the response messages.
//!
//! The happy answer of a batch is a bit an entry; only failures cost memory of their own. Generated types are the oracle
//! of the tests.
//!
//! # Invariants
//!
//! - An entry that the service did not answer is never counted as applied (BT-SINK-07).
//! - Bytes from outside never panic and never make an allocation larger than the message itself.

use std::time::Duration;

use aqueduct_connector::{Code, Status};

use crate::error::without_quotes;

/// How the service asks the client to change its rate (BT-WIRE-05).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RateInfo {
    /// How long the factor stands.
    pub(crate) period: Option<Duration>,
    /// What the rate is multiplied with.
    pub(crate) factor: f64,
}

/// What the service said about the entries of one attempt, by their position in *that* attempt.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    entries: usize,
    answered: Vec<u64>,
    answered_count: usize,
    failures: Vec<(usize, Status)>,
    pub(crate) rate: Option<RateInfo>,
}

/// A response that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerFault {
    #[error("a MutateRows response could not be decoded")]
    Malformed,
    #[error("a MutateRows response names an entry that the request does not have")]
    NoSuchEntry,
}

impl Answers {
    /// No answers yet to a request of `entries` entries.
    pub(crate) fn new(entries: usize) -> Self {
        Self {
            entries,
            answered: vec![0; entries.div_ceil(64)],
            ..Self::default()
        }
    }

    /// Whether every entry was applied.
    pub(crate) fn all_applied(&self) -> bool {
        self.answered_count == self.entries && self.failures.is_empty()
    }

    /// Whether the service answered any entry.
    pub(crate) fn any(&self) -> bool {
        self.answered_count > 0
    }

    /// Whether the service answered the entry at `position`.
    pub(crate) fn answered(&self, position: usize) -> bool {
        self.answered[position / 64] & (1 << (position % 64)) != 0
    }

    /// Sorts the failures by position; call once before [`failure`](Self::failure).
    pub(crate) fn sort(&mut self) {
        self.failures.sort_by_key(|(position, _)| *position);
    }

    /// The failure of the entry at `position`, after [`sort`](Self::sort).
    pub(crate) fn failure(&self, position: usize) -> Option<&Status> {
        let at = self
            .failures
            .binary_search_by_key(&position, |(position, _)| *position)
            .ok()?;
        Some(&self.failures[at].1)
    }

    /// Codes of the failures, in no order.
    pub(crate) fn failure_codes(&self) -> impl Iterator<Item = Code> + '_ {
        self.failures.iter().map(|(_, status)| status.code)
    }

    /// Takes in one response message.
    ///
    /// # Errors
    ///
    /// If the message is none, or names an entry beyond the request; what it said before stays.
    pub(crate) fn read(&mut self, message: &[u8]) -> Result<(), AnswerFault> {
        let mut message = Reader(message);
        while let Some((field, wire)) = message.tag()? {
            match (field, wire) {
                (1, Wire::Bytes) => {
                    let entry = message.bytes()?;
                    self.entry(entry)?;
                }
                (3, Wire::Bytes) => {
                    let info = message.bytes()?;
                    self.rate = Some(rate_info(info)?);
                }
                (_, wire) => message.skip(wire)?,
            }
        }
        Ok(())
    }

    fn entry(&mut self, bytes: &[u8]) -> Result<(), AnswerFault> {
        let mut entry = Reader(bytes);
        let (mut index, mut status) = (0, None);
        while let Some((field, wire)) = entry.tag()? {
            match (field, wire) {
                (1, Wire::Varint) => index = entry.varint()?,
                (2, Wire::Bytes) => status = Some(entry.bytes()?),
                (_, wire) => entry.skip(wire)?,
            }
        }
        let position = usize::try_from(index)
            .ok()
            .filter(|position| *position < self.entries)
            .ok_or(AnswerFault::NoSuchEntry)?;
        if self.answered(position) {
            // The first answer stands: a second one cannot undo an effect.
            return Ok(());
        }
        if let Some(status) = status.map(read_status).transpose()?.flatten() {
            self.failures.push((position, status));
        }
        self.answered[position / 64] |= 1 << (position % 64);
        self.answered_count += 1;
        Ok(())
    }
}

/// A `google.rpc.Status`; `None` for OK.
fn read_status(bytes: &[u8]) -> Result<Option<Status>, AnswerFault> {
    let mut reader = Reader(bytes);
    let (mut code, mut text) = (0, &[][..]);
    while let Some((field, wire)) = reader.tag()? {
        match (field, wire) {
            (1, Wire::Varint) => code = reader.varint()?,
            (2, Wire::Bytes) => text = reader.bytes()?,
            (_, wire) => reader.skip(wire)?,
        }
    }
    if code == 0 {
        return Ok(None);
    }
    // An int32 travels sign-extended to 64 bits; what is no int32 is no known code either.
    let code = i32::try_from(code.cast_signed()).map_or(Code::Unknown, Code::from_number);
    Ok(Some(Status::new(
        code,
        without_quotes(&String::from_utf8_lossy(text)),
    )))
}

fn rate_info(bytes: &[u8]) -> Result<RateInfo, AnswerFault> {
    let mut reader = Reader(bytes);
    let mut info = RateInfo {
        period: None,
        factor: 0.0,
    };
    while let Some((field, wire)) = reader.tag()? {
        match (field, wire) {
            (1, Wire::Bytes) => {
                let mut duration = Reader(reader.bytes()?);
                let (mut seconds, mut nanos) = (0, 0);
                while let Some((field, wire)) = duration.tag()? {
                    match (field, wire) {
                        (1, Wire::Varint) => seconds = duration.varint()?.cast_signed(),
                        (2, Wire::Varint) => nanos = duration.varint()?.cast_signed(),
                        (_, wire) => duration.skip(wire)?,
                    }
                }
                // A negative or oversized duration is no period.
                info.period = u64::try_from(seconds)
                    .ok()
                    .zip(u32::try_from(nanos).ok())
                    .and_then(|(seconds, nanos)| {
                        Duration::from_secs(seconds).checked_add(Duration::from_nanos(nanos.into()))
                    });
            }
            (2, Wire::Fixed64) => info.factor = f64::from_le_bytes(reader.fixed()?),
            (_, wire) => reader.skip(wire)?,
        }
    }
    Ok(info)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wire {
    Varint,
    Fixed64,
    Bytes,
    Fixed32,
}

/// Walks protobuf fields.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn tag(&mut self) -> Result<Option<(u64, Wire)>, AnswerFault> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Varint,
            1 => Wire::Fixed64,
            2 => Wire::Bytes,
            5 => Wire::Fixed32,
            _ => return Err(AnswerFault::Malformed),
        };
        match tag >> 3 {
            0 => Err(AnswerFault::Malformed),
            field => Ok(Some((field, wire))),
        }
    }

    fn varint(&mut self) -> Result<u64, AnswerFault> {
        let mut value = 0_u64;
        for (at, byte) in self.0.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * at as u32).min(63);
            if byte & 0x80 == 0 {
                self.0 = &self.0[at + 1..];
                return Ok(value);
            }
        }
        Err(AnswerFault::Malformed)
    }

    fn bytes(&mut self) -> Result<&'a [u8], AnswerFault> {
        let len = usize::try_from(self.varint()?).map_err(|_| AnswerFault::Malformed)?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(AnswerFault::Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], AnswerFault> {
        let (bytes, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or(AnswerFault::Malformed)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn skip(&mut self, wire: Wire) -> Result<(), AnswerFault> {
        match wire {
            Wire::Varint => self.varint().map(drop),
            Wire::Fixed64 => self.fixed::<8>().map(drop),
            Wire::Bytes => self.bytes().map(drop),
            Wire::Fixed32 => self.fixed::<4>().map(drop),
        }
    }
}

/// Decodes foreign bytes as the answer to a request of `entries` entries; for the fuzzer, which wants no panic.
#[doc(hidden)]
pub fn fuzz_mutate_response(message: &[u8], entries: u16) -> bool {
    let mut answers = Answers::new(entries.into());
    let read = answers.read(message).is_ok();
    answers.sort();
    read && (0..usize::from(entries))
        .all(|at| answers.answered(at) || answers.failure(at).is_none())
}

#[cfg(test)]
mod tests {
    use googleapis_tonic_google_bigtable_v2::google::{bigtable::v2, rpc};
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn response() -> impl Strategy<Value = v2::MutateRowsResponse> {
        let entry = (0..20_i64, proptest::option::of((0..18_i32, "[a-zé]{0,20}"))).prop_map(
            |(index, status)| v2::mutate_rows_response::Entry {
                index,
                status: status.map(|(code, message)| rpc::Status {
                    code,
                    message,
                    details: Vec::new(),
                }),
            },
        );
        let rate = (
            proptest::option::of((0..100_i64, 0..1_000_000_000_i32)),
            any::<f64>(),
        )
            .prop_map(|(period, factor)| v2::RateLimitInfo {
                period: period.map(|(seconds, nanos)| prost_types::Duration { seconds, nanos }),
                factor,
            });
        (
            proptest::collection::vec(entry, 0..30),
            proptest::option::of(rate),
        )
            .prop_map(|(entries, rate_limit_info)| v2::MutateRowsResponse {
                entries,
                rate_limit_info,
            })
    }

    proptest! {
        #[test]
        fn answers_say_what_the_generated_type_says(response in response()) {
            let mut answers = Answers::new(20);
            answers.read(&response.encode_to_vec()).expect("well-formed");
            answers.sort();
            for position in 0..20 {
                let first = response.entries.iter().find(|entry| entry.index == position as i64);
                prop_assert_eq!(answers.answered(position), first.is_some());
                let failed = first.and_then(|entry| entry.status.as_ref()).filter(|status| status.code != 0);
                let told = answers.failure(position);
                prop_assert_eq!(told.is_some(), failed.is_some());
                if let (Some(told), Some(failed)) = (told, failed) {
                    prop_assert_eq!(told.code, Code::from_number(failed.code));
                    prop_assert_eq!(&*told.message, failed.message.as_str());
                }
            }
            prop_assert_eq!(answers.rate.is_some(), response.rate_limit_info.is_some());
            if let (Some(told), Some(info)) = (answers.rate, response.rate_limit_info) {
                prop_assert!(told.factor == info.factor || info.factor.is_nan());
                prop_assert_eq!(told.period.map(|period| period.as_secs() as i64), info.period.map(|p| p.seconds));
            }
        }

        #[test]
        fn foreign_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), entries in 0..100_u16) {
            let _ = fuzz_mutate_response(&bytes, entries);
        }

        #[test]
        fn a_truncated_response_is_refused_or_says_less(response in response(), cut in 0..100_usize) {
            let bytes = response.encode_to_vec();
            let mut answers = Answers::new(20);
            let _ = answers.read(&bytes[..cut.min(bytes.len())]);
            prop_assert!(answers.answered_count <= response.entries.len());
        }
    }

    #[test]
    fn a_missing_entry_is_not_applied_and_a_foreign_one_is_refused() {
        let ok = |index| v2::mutate_rows_response::Entry {
            index,
            status: None,
        };
        let mut answers = Answers::new(2);
        let message = v2::MutateRowsResponse {
            entries: vec![ok(1)],
            rate_limit_info: None,
        };
        answers.read(&message.encode_to_vec()).expect("well-formed");
        assert!(!answers.all_applied() && answers.answered(1) && !answers.answered(0));
        for index in [2, -1] {
            let message = v2::MutateRowsResponse {
                entries: vec![ok(index)],
                rate_limit_info: None,
            };
            assert_eq!(
                answers.read(&message.encode_to_vec()),
                Err(AnswerFault::NoSuchEntry)
            );
        }
        let message = v2::MutateRowsResponse {
            entries: vec![ok(0)],
            rate_limit_info: None,
        };
        answers.read(&message.encode_to_vec()).expect("well-formed");
        assert!(answers.all_applied());
    }
}
