//! Tests of one request: broken streams, repeated entries, codes and delays.

use std::collections::BTreeSet;

use aqueduct_connector::Timestamp;
use googleapis_tonic_google_bigtable_v2::google::{bigtable::v2, rpc};
use proptest::prelude::*;
use prost::Message;

use super::super::batch::{Buffers, Load, OpenBatch, head};
use super::*;
use crate::client::answers::Answers;
use crate::client::mutate::CallFailure;
use crate::entry::RowMutationEntry;

fn at(millis: u64) -> Moment {
    Moment::from_origin(Duration::from_millis(millis))
}

fn request(entries: usize) -> Request {
    let mut batch = OpenBatch::new(1, &head("t", None), Buffers::default());
    for number in 0..entries {
        let mut entry = RowMutationEntry::stamped(Timestamp::from_millis(0));
        entry
            .row_key(number.to_string())
            .set_cell("cf", "q", 0, "v");
        batch.push(
            entry.key(),
            entry.encoded_mutations(),
            Load::of(1, entry.encoded_len(), 0),
        );
    }
    Request::new(TableId(0), Kind::Bulk, batch.seal())
}

fn keys(body: &[u8]) -> Vec<usize> {
    let request = v2::MutateRowsRequest::decode(&body[5..]).expect("a request");
    let key = |entry: &v2::mutate_rows_request::Entry| {
        std::str::from_utf8(&entry.row_key)
            .expect("ours")
            .parse()
            .expect("a number")
    };
    request.entries.iter().map(key).collect()
}

fn answers(entries: usize, told: &[(usize, Code)]) -> Answers {
    let entries_told = told
        .iter()
        .map(|(index, code)| v2::mutate_rows_response::Entry {
            index: *index as i64,
            status: Some(rpc::Status {
                code: *code as i32,
                message: String::new(),
                details: Vec::new(),
            }),
        });
    let message = v2::MutateRowsResponse {
        entries: entries_told.collect(),
        rate_limit_info: None,
    };
    let mut answers = Answers::new(entries);
    answers.read(&message.encode_to_vec()).expect("well-formed");
    answers
}

fn failed(code: Code, retry_delay: Option<Duration>) -> Result<(), CallFailure> {
    Err(CallFailure {
        answered: true,
        chain: StatusChain::new(Status::new(code, "")),
        retry_delay,
        cookies: Cookies::default(),
    })
}

fn end(
    request: &mut Request,
    told: &[(usize, Code)],
    result: Result<(), CallFailure>,
    now: Moment,
) -> Outcome {
    let end = AttemptEnd {
        answers: answers(request.entries(), told),
        result,
    };
    request.end(end, now, &mut fastrand::Rng::with_seed(1))
}

fn begin(request: &mut Request, now: Moment) -> (Vec<usize>, Duration) {
    let (body, _, timeout) = request.begin(&head("t", None), now);
    (keys(&body), timeout)
}

fn settled(outcome: Outcome) -> (Vec<(u32, Option<Code>)>, Option<Retry>) {
    let Outcome::Settled {
        verdicts, retry, ..
    } = outcome
    else {
        panic!("{outcome:?}")
    };
    (
        verdicts
            .into_iter()
            .map(|(at, chain)| (at, chain.map(|chain| chain.code())))
            .collect(),
        retry,
    )
}

#[test]
fn a_stream_that_breaks_after_three_of_five_sends_exactly_two_again() {
    let mut request = request(5);
    assert_eq!(begin(&mut request, at(0)).0, [0, 1, 2, 3, 4]);
    let told = [(0, Code::Ok), (3, Code::Ok), (1, Code::Ok)];
    let (verdicts, retry) = settled(end(
        &mut request,
        &told,
        failed(Code::Unavailable, None),
        at(5),
    ));
    assert_eq!(verdicts, [(0, None), (1, None), (3, None)]);
    assert!(retry.is_some());
    assert_eq!(begin(&mut request, at(20)).0, [2, 4]);
    // The index speaks of the attempt: 1 is the request's fourth entry.
    let (verdicts, retry) = settled(end(
        &mut request,
        &[(1, Code::InvalidArgument), (0, Code::Ok)],
        Ok(()),
        at(30),
    ));
    assert_eq!(verdicts, [(2, None), (4, Some(Code::InvalidArgument))]);
    assert_eq!(retry, None);
}

#[test]
fn an_entry_without_a_result_in_a_good_stream_is_sent_again_and_fails_as_internal_in_the_end() {
    let mut request = request(5);
    begin(&mut request, at(0));
    let told = [(0, Code::Ok), (1, Code::Ok), (3, Code::Ok)];
    let (_, retry) = settled(end(&mut request, &told, Ok(()), at(5)));
    assert!(retry.is_some());
    assert_eq!(begin(&mut request, at(10)).0, [2, 4]);
    let (verdicts, retry) = settled(end(&mut request, &[(0, Code::Ok)], Ok(()), at(600_000)));
    assert_eq!(verdicts, [(2, None), (4, Some(Code::Internal))]);
    assert_eq!(retry, None);
}

#[test]
fn a_break_with_a_final_status_ends_what_it_left_unanswered() {
    let mut request = request(3);
    begin(&mut request, at(0));
    let (verdicts, retry) = settled(end(
        &mut request,
        &[(1, Code::Ok)],
        failed(Code::PermissionDenied, None),
        at(5),
    ));
    let denied = Some(Code::PermissionDenied);
    assert_eq!(verdicts, [(0, denied), (1, None), (2, denied)]);
    assert_eq!(retry, None);
}

#[test]
fn an_asked_delay_replaces_ours_and_makes_a_final_code_retryable() {
    let mut request = request(1);
    begin(&mut request, at(0));
    let asked = Duration::from_secs(7);
    let (_, retry) = settled(end(
        &mut request,
        &[],
        failed(Code::FailedPrecondition, Some(asked)),
        at(5),
    ));
    assert_eq!(retry.map(|retry| retry.at), Some(at(7_005)));
}

#[test]
fn load_waits_at_least_a_second() {
    for first in 0..20 {
        let mut request = request(1);
        begin(&mut request, at(first));
        let (_, retry) = settled(end(
            &mut request,
            &[(0, Code::ResourceExhausted)],
            Ok(()),
            at(5_000),
        ));
        assert!(retry.expect("retryable").delay >= Duration::from_secs(1));
    }
}

#[test]
fn everything_answered_counts_however_the_stream_ended() {
    let mut request = request(2);
    begin(&mut request, at(0));
    let outcome = end(
        &mut request,
        &[(0, Code::Ok), (1, Code::Ok)],
        failed(Code::Unavailable, None),
        at(1),
    );
    assert!(matches!(outcome, Outcome::Applied), "{outcome:?}");
}

#[test]
fn a_refusal_is_a_records_own_only_if_it_was_alone() {
    let alone = |entries, told: &[(usize, Code)]| {
        let mut request = request(entries);
        begin(&mut request, at(0));
        match end(&mut request, told, Ok(()), at(1)) {
            Outcome::Settled { alone, .. } => alone,
            Outcome::Applied => panic!("refused"),
        }
    };
    assert!(alone(1, &[(0, Code::InvalidArgument)]));
    assert!(!alone(2, &[(0, Code::InvalidArgument), (1, Code::Ok)]));
}

#[test]
fn a_silent_peer_is_given_up_at_ten_minutes_from_the_first_send() {
    let mut request = request(1);
    let mut random = fastrand::Rng::with_seed(3);
    let mut now = at(1_000);
    loop {
        let (_, _, timeout) = request.begin(&head("t", None), now);
        assert!(timeout <= ATTEMPT);
        now = now.after(timeout);
        assert!(now <= at(601_000), "{now:?}");
        let end = AttemptEnd {
            answers: Answers::new(1),
            result: failed(Code::DeadlineExceeded, None),
        };
        match request.end(end, now, &mut random) {
            Outcome::Settled {
                retry: Some(retry), ..
            } => now = retry.at,
            Outcome::Settled { verdicts, .. } => {
                assert_eq!(verdicts.len(), 1);
                break;
            }
            Outcome::Applied => panic!("nobody answered"),
        }
    }
    assert!(now > at(541_000), "not before the last minute: {now:?}");
}

proptest! {
    /// Whatever the service says, attempt after attempt, each entry gets one verdict, an applied one was answered OK
    /// in its last attempt, and only undecided entries are sent.
    #[test]
    fn each_entry_gets_exactly_one_verdict(
        script in proptest::collection::vec((proptest::collection::vec(0..6_u8, 8), 0..4_u8), 1..12),
    ) {
        let mut request = request(8);
        let mut decided = BTreeSet::new();
        let mut now = at(0);
        for (told, broken) in script {
            let (body, entries, _) = request.begin(&head("t", None), now);
            let sent = keys(&body);
            prop_assert_eq!(entries, sent.len());
            prop_assert!(sent.iter().all(|key| !decided.contains(key)));
            let codes = [Code::Ok, Code::Unavailable, Code::InvalidArgument, Code::ResourceExhausted, Code::NotFound];
            let told: Vec<_> = told
                .iter()
                .take(entries)
                .enumerate()
                .filter_map(|(at, code)| Some((at, *codes.get(usize::from(*code))?)))
                .collect();
            let result = match broken {
                0 => failed(Code::Unavailable, None),
                1 => failed(Code::PermissionDenied, None),
                _ => Ok(()),
            };
            let (verdicts, retry) = match end(&mut request, &told, result, now) {
                Outcome::Applied => {
                    prop_assert!(told.len() == entries && told.iter().all(|(_, code)| *code == Code::Ok));
                    (sent.iter().map(|key| (*key as u32, None)).collect(), None)
                }
                outcome => settled(outcome),
            };
            for (position, verdict) in verdicts {
                let at = sent.iter().position(|key| *key == position as usize).expect("was sent");
                let answer = told.iter().find(|(index, _)| *index == at).map(|(_, code)| *code);
                prop_assert_eq!(verdict.is_none(), answer == Some(Code::Ok));
                prop_assert!(decided.insert(position as usize), "a second verdict");
            }
            match retry {
                Some(retry) => now = retry.at,
                None => break,
            }
            prop_assert_eq!(retry.map(|retry| retry.entries), Some(8 - decided.len()));
        }
    }
}
