//! What a status means for a mutation, and the errors a writer ends with.
//!
//! # Invariants
//!
//! - A handler that may drop records sees verdicts on one record's own data only; whatever may be a condition of the
//!   service fails the job or is repaired (BT-SINK-08, BASE-30).
//! - Errors name tables, options, families and counts, never row keys, qualifiers or values.

use aqueduct_connector::error::ErrorKind;
use aqueduct_connector::{Code, Error, Status, StatusChain};

use crate::destination::TableDestination;
use crate::options;

/// Statuses that speak of an outage or of load anywhere in a chain.
const TRANSIENT: [Code; 4] = [
    Code::Unavailable,
    Code::DeadlineExceeded,
    Code::Aborted,
    Code::ResourceExhausted,
];

/// Whether an attempt that ended with `code` is made again (BT-SINK-07).
///
/// The vendor client hands `ABORTED` and `RESOURCE_EXHAUSTED` up at once; failing the job over them would only send the
/// same entries again.
pub(crate) fn is_retryable(code: Code) -> bool {
    TRANSIENT.contains(&code)
}

/// What the retry loop's final status means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A table or a family is missing: repaired or fatal, never dropped.
    Missing,
    /// The record itself is refused, if it was alone.
    RowLevel,
    /// A condition of the service.
    Fatal,
}

/// First match wins, over the whole chain (BT-SINK-08).
pub(crate) fn classify(chain: &StatusChain) -> Verdict {
    if chain.any(&[Code::NotFound]) {
        // Even beside an outage: a repair never discards.
        Verdict::Missing
    } else if chain.any(&TRANSIENT) {
        Verdict::Fatal
    } else if chain.code() == Code::InvalidArgument {
        Verdict::RowLevel
    } else {
        Verdict::Fatal
    }
}

/// Whether a `NOT_FOUND` speaks of a column family. The phrase is the service's (BT-SIM-03).
pub(crate) fn names_a_missing_family(chain: &StatusChain) -> bool {
    chain.iter().any(|status| {
        status.code == Code::NotFound
            && status.message.contains("Requested column family not found")
    })
}

/// The service's words without what it quotes: it quotes row keys ("Error while mutating the row '...'"), and user data
/// reaches no error and no log (BT-GEN-04).
pub(crate) fn without_quotes(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    let mut rest = message;
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        // An apostrophe inside a word quotes nothing. A quote ends at its last mark, because a key may hold one.
        if matches!(c, '\'' | '"' | '`') && !before.is_alphanumeric() {
            text.push(c);
            text.push_str("...");
            let Some(end) = after.rfind(c) else {
                return text;
            };
            text.push(c);
            rest = &after[end + c.len_utf8()..];
            before = c;
        } else {
            text.push(c);
            rest = after;
            before = c;
        }
    }
    text
}

/// A chain whose words quote nothing.
pub(crate) fn redacted(chain: &StatusChain) -> StatusChain {
    let mut statuses = chain
        .iter()
        .map(|status| Status::new(status.code, without_quotes(&status.message)));
    let outermost = StatusChain::new(statuses.next().expect("a chain has at least one status"));
    statuses.fold(outermost, StatusChain::caused_by)
}

/// The end of a writer, kept so that every later call can return it again.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Not yet returned.
    Fresh(Error),
    /// Returned before; later calls get a copy of its words.
    Told {
        kind: ErrorKind,
        report: String,
        statuses: Option<StatusChain>,
    },
}

impl Failure {
    /// The error, in full the first time and as a copy of its words from then on.
    pub(crate) fn tell(&mut self) -> Error {
        let told = match self {
            Self::Fresh(error) => Self::Told {
                kind: error.kind(),
                report: error.report(),
                statuses: error.statuses().cloned(),
            },
            Self::Told {
                kind,
                report,
                statuses,
            } => {
                let error = Error::new(*kind, report.clone());
                return match statuses {
                    Some(chain) => error.with_source(chain.clone()),
                    None => error,
                };
            }
        };
        match std::mem::replace(self, told) {
            Self::Fresh(error) => error,
            Self::Told { .. } => unreachable!("matched above"),
        }
    }
}

/// A condition of the service ended the writer.
pub(crate) fn service(table: &TableDestination, attempts: u32, chain: StatusChain) -> Error {
    let hint = match chain.code() {
        Code::PermissionDenied => {
            "; grant the job's account bigtable.tables.mutateRows (roles/bigtable.user) on the table"
        }
        Code::Unauthenticated => "; check the credentials the job runs with",
        Code::FailedPrecondition => {
            "; an application profile that only reads (Data Boost) refuses every write"
        }
        Code::Unavailable | Code::DeadlineExceeded => {
            "; the service could not be reached or did not answer in time, so the entries may have been applied; \
             they are written again after a restart"
        }
        Code::ResourceExhausted => "; the instance is overloaded: add nodes or spread the row keys",
        _ => "",
    };
    Error::io(format!(
        "writing to Bigtable table {table} failed after {attempts} attempt(s){hint}"
    ))
    .with_source(chain)
}

/// A table or family is missing and nothing may be created (BT-MSG-09).
pub(crate) fn missing(table: &TableDestination, chain: StatusChain) -> Error {
    Error::io(format!(
        "Bigtable table {table} or one of the column families written to does not exist, and the create disposition is \
         'create-never'; create them, or set '{}' to 'create-if-needed' and declare the families",
        options::CREATE_DISPOSITION.key(),
    ))
    .with_source(chain)
}

/// An entry names a family that the options do not declare (BT-MSG-12).
pub(crate) fn undeclared(
    table: &TableDestination,
    families: &[String],
    chain: StatusChain,
) -> Error {
    Error::io(format!(
        "a mutation for Bigtable table {table} names column families that the table lacks and the table create options \
         do not declare: {}; declare them or correct the serializer",
        families.join(", "),
    ))
    .with_source(chain)
}

/// The repair spent its attempts (BT-MSG-11).
pub(crate) fn repair_exhausted(table: &TableDestination, attempts: u32, cause: Error) -> Error {
    Error::io(format!(
        "Bigtable table {table} could not be repaired in {attempts} attempts ('{}'); nothing was dropped",
        options::RECOVERY_MAX_ATTEMPTS.key(),
    ))
    .with_source(cause)
}

/// The guardrail tripped (BT-MSG-10).
pub(crate) fn guardrail(table: &TableDestination, rejections: u64, chain: StatusChain) -> Error {
    Error::user(format!(
        "{rejections} mutations in a row were rejected and none was applied, the bound of '{}'; the last one was for \
         Bigtable table {table}. The stream is being refused wholesale: correct the serializer, or set the option to -1",
        options::MAX_CONSECUTIVE_REJECTIONS.key(),
    ))
    .with_source(chain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(codes: &[Code]) -> StatusChain {
        let mut codes = codes.iter().map(|code| Status::new(*code, ""));
        let first = StatusChain::new(codes.next().expect("at least one"));
        codes.fold(first, StatusChain::caused_by)
    }

    #[test]
    fn a_nested_invalid_argument_and_a_nested_outage_are_both_fatal_and_a_nested_not_found_is_repaired()
     {
        use Code::{Internal, InvalidArgument, NotFound, Unavailable, Unknown};
        for (codes, verdict) in [
            (&[InvalidArgument][..], Verdict::RowLevel),
            (&[InvalidArgument, Internal], Verdict::RowLevel),
            (&[Internal, InvalidArgument], Verdict::Fatal),
            (&[Unknown, InvalidArgument], Verdict::Fatal),
            (&[InvalidArgument, Unavailable], Verdict::Fatal),
            (&[InvalidArgument, Code::Aborted], Verdict::Fatal),
            (&[InvalidArgument, Code::ResourceExhausted], Verdict::Fatal),
            (&[InvalidArgument, Code::DeadlineExceeded], Verdict::Fatal),
            (&[Unavailable, NotFound], Verdict::Missing),
            (&[InvalidArgument, NotFound], Verdict::Missing),
            (&[NotFound], Verdict::Missing),
        ] {
            assert_eq!(classify(&chain(codes)), verdict, "{codes:?}");
        }
    }

    #[test]
    fn what_the_service_quotes_is_left_out_and_the_phrase_it_is_known_by_stays() {
        for (message, told) in [
            (
                "Error while mutating the row 'user#4711' (table) : Requested column family not found.",
                "Error while mutating the row '...' (table) : Requested column family not found.",
            ),
            ("row 'it's a key' refused", "row '...' refused"),
            ("can't say", "can't say"),
            ("unfinished \"key", "unfinished \"..."),
            ("", ""),
        ] {
            assert_eq!(without_quotes(message), told);
        }
    }

    #[test]
    fn every_other_status_is_fatal() {
        for code in Code::ALL {
            if !matches!(code, Code::NotFound | Code::InvalidArgument) {
                assert_eq!(classify(&chain(&[*code])), Verdict::Fatal, "{code}");
            }
        }
    }

    #[test]
    fn a_failure_is_returned_again_in_the_same_words() {
        let table = TableDestination::of("p", "i", "t").expect("valid");
        let error = service(&table, 3, chain(&[Code::PermissionDenied]));
        let words = error.report();
        let mut failure = Failure::Fresh(error);
        assert_eq!(failure.tell().report(), words);
        for _ in 0..2 {
            let again = failure.tell();
            assert_eq!(again.to_string(), words);
            assert_eq!(again.statuses(), Some(&chain(&[Code::PermissionDenied])));
        }
    }
}
