//! The account, by cases and by random runs.

use std::ops::Range;
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::client::pull::decode::decode;

fn terms() -> Terms {
    Terms::new(
        Duration::from_secs(600),
        None,
        None,
        Duration::from_secs(10),
    )
}

fn at(seconds: u64) -> Moment {
    Moment::from_origin(Duration::from_secs(seconds))
}

/// A copy of message `id`: the text of its ack id holds the delivery; key 0 is none.
fn copy(id: u64, delivery: u64, key: u64) -> pb::ReceivedMessage {
    pb::ReceivedMessage {
        ack_id: format!("{id}.{delivery}"),
        message: Some(pb::PubsubMessage {
            data: vec![0; 10].into(),
            message_id: id.to_string(),
            ordering_key: match key {
                0 => String::new(),
                key => key.to_string(),
            },
            ..Default::default()
        }),
        delivery_attempt: 0,
    }
}

/// Lets one response arrive; returns what must be acked again.
fn receive(
    ledger: &mut Ledger,
    copies: impl IntoIterator<Item = pb::ReceivedMessage>,
    now: Moment,
) -> Vec<Claim> {
    let response = pb::StreamingPullResponse {
        received_messages: copies.into_iter().collect(),
        ..Default::default()
    };
    let response = decode(response.encode_to_vec().into(), ledger.room()).expect("valid");
    let mut again = Vec::new();
    ledger.receive(response, &terms(), now, &mut again);
    again
}

fn received(ledger: &mut Ledger, ids: Range<u64>) {
    let before = ledger.held().0;
    let copies = ids.clone().map(|id| copy(id, 0, 0));
    assert_eq!(receive(ledger, copies, at(0)), []);
    assert_eq!(ledger.held().0 - before, ids.count() as u64, "all new");
}

/// Takes messages, each by itself.
fn take(ledger: &mut Ledger, most: usize) -> Vec<Part> {
    let mut out = Vec::new();
    ledger.take(most, &mut out);
    let singles = out.iter().flat_map(|part| {
        part.run.range().map(|at| Part {
            run: part.run.only(at),
            contents: part.contents.clone(),
        })
    });
    singles.collect()
}

fn complete(ledger: &mut Ledger, run: Run, now: Moment) -> Vec<Claim> {
    let mut claims = Vec::new();
    let messages = ledger.complete(run, now, false, &mut claims);
    let named: usize = claims.iter().map(|claim| claim.run.len()).sum();
    assert_eq!(messages, named as u64);
    claims
}

const ONE: Settled = Settled {
    quiet: 1,
    awaited: 0,
};
const NONE: Settled = Settled {
    quiet: 0,
    awaited: 0,
};

fn balanced(ledger: &Ledger) {
    let tally = ledger.tally();
    assert_eq!(
        tally.received,
        tally.acked + tally.nacked + tally.lost + ledger.pending(),
        "{tally:?}"
    );
}

#[test]
fn nothing_is_acked_before_its_checkpoint_is_complete() {
    let mut ledger = Ledger::new(false);
    received(&mut ledger, 0..3);
    let batch = take(&mut ledger, 2);
    let [first, second] = [batch[0].run, batch[1].run];
    assert_eq!(complete(&mut ledger, first, at(1)), [], "not emitted");
    ledger.emitted([first]);
    assert_eq!(
        ledger.bind(),
        [first],
        "a message partly emitted stays pending"
    );
    ledger.emitted([second]);
    assert_eq!(
        complete(&mut ledger, second, at(1)),
        [],
        "behind the barrier"
    );
    let claim = complete(&mut ledger, first, at(1))[0];
    assert_eq!(ledger.ack_id(&claim), Some(&b"0.0"[..]));
    assert_eq!(ledger.acked(&claim), ONE);
    assert_eq!(ledger.acked(&claim), NONE, "once");
    assert_eq!((ledger.pending(), ledger.buffered().0), (2, 1));
    balanced(&ledger);
}

#[test]
fn neighbours_travel_as_one() {
    let mut ledger = Ledger::new(false);
    received(&mut ledger, 0..100);
    let batch = take(&mut ledger, 60);
    ledger.emitted(batch.iter().map(|part| part.run));
    let bound = ledger.bind();
    assert_eq!((bound.len(), bound[0].len()), (1, 60));
    // One of them is redelivered before its checkpoint completes, and has a claim of its own.
    receive(&mut ledger, [copy(7, 1, 0)], at(1));
    let claims = complete(&mut ledger, bound[0], at(1));
    let lengths: Vec<usize> = claims.iter().map(|claim| claim.run.len()).collect();
    assert_eq!(lengths, [7, 1, 52]);
    assert_eq!(ledger.ack_id(&claims[1]), Some(&b"7.1"[..]));
    let acked: u64 = claims.iter().map(|claim| ledger.acked(claim).quiet).sum();
    assert_eq!((acked, ledger.pending()), (60, 40));
    balanced(&ledger);
}

#[test]
fn a_redelivered_copy_is_never_handed_over_and_its_id_is_the_one_to_ack_by() {
    let mut ledger = Ledger::new(false);
    received(&mut ledger, 0..1);
    assert_eq!(receive(&mut ledger, [copy(0, 1, 0)], at(1)), [], "buffered");
    let run = take(&mut ledger, 10)[0].run;
    assert!(take(&mut ledger, 10).is_empty());
    receive(&mut ledger, [copy(0, 2, 0)], at(2));
    ledger.emitted([run]);
    ledger.bind();
    let old = complete(&mut ledger, run, at(3))[0];
    let new = receive(&mut ledger, [copy(0, 3, 0)], at(4));
    assert_eq!(new.len(), 1, "to be acked at once");
    assert_eq!(ledger.ack_id(&old), None);
    assert_eq!(ledger.acked(&old), NONE, "the old id's answer says nothing");
    assert_eq!(ledger.ack_id(&new[0]), Some(&b"0.3"[..]));
    ledger.acked(&new[0]);
    assert_eq!(ledger.tally().lost, 3);
    assert!(ledger.is_empty() && take(&mut ledger, 1).is_empty());
    balanced(&ledger);
}

#[test]
fn a_response_that_repeats_a_message_gives_it_once() {
    let mut ledger = Ledger::new(false);
    receive(&mut ledger, [copy(5, 0, 0), copy(5, 1, 0)], at(0));
    receive(&mut ledger, [copy(5, 2, 0), copy(6, 0, 0)], at(0));
    let batch = take(&mut ledger, 10);
    assert_eq!(batch.len(), 2);
    ledger.emitted(batch.iter().map(|part| part.run));
    let bound = ledger.bind();
    let claim = complete(&mut ledger, bound[0], at(1))[0];
    assert_eq!(ledger.ack_id(&claim), Some(&b"5.2"[..]));
    assert_eq!((ledger.tally().lost, ledger.pending()), (2, 2));
    balanced(&ledger);
}

#[test]
fn the_response_goes_with_the_last_message_that_waits_for_the_owner() {
    let mut ledger = Ledger::new(false);
    received(&mut ledger, 0..2);
    let first = take(&mut ledger, 1).remove(0);
    let contents = Arc::downgrade(&first.contents);
    drop(first);
    assert!(contents.upgrade().is_some(), "one still waits");
    let second = take(&mut ledger, 1).remove(0);
    drop(second);
    assert!(contents.upgrade().is_none());
    assert_eq!(ledger.pending(), 2, "ack ids stay");
}

#[test]
fn a_lapse_in_the_buffer_takes_the_later_ones_of_its_key_along() {
    let mut ledger = Ledger::new(true);
    for (id, key, second) in [(1, 7, 0), (2, 8, 30), (3, 7, 30)] {
        receive(&mut ledger, [copy(id, 0, key)], at(second));
    }
    let mut returns = Vec::new();
    let lapsed = ledger.lapse(at(60), &mut returns);
    assert_eq!((lapsed.buffered, lapsed.followers, lapsed.kept), (1, 1, 0));
    assert_eq!(ledger.ack_id(&returns[0]), Some(&b"3.0"[..]));
    assert_eq!(take(&mut ledger, 10).len(), 1, "the other key stays");
    balanced(&ledger);
}

/// PS-SRC-31: the later ones of its key come again behind it, be they handed over and taken back too or still buffered.
#[test]
fn a_lapsed_message_that_is_taken_back_takes_the_later_ones_of_its_key_along() {
    let mut ledger = Ledger::new(true);
    let first = [copy(1, 0, 8), copy(2, 0, 7), copy(3, 0, 7)];
    receive(&mut ledger, first, at(0));
    receive(&mut ledger, [copy(4, 0, 7), copy(5, 0, 9)], at(30));
    let mut batch = take(&mut ledger, 3);
    ledger.emitted([batch.remove(0).run]);
    let lapsed = ledger.lapse(at(60), &mut Vec::new());
    assert_eq!((lapsed.buffered, lapsed.kept), (0, 3));
    let mut returns = Vec::new();
    ledger.untake(batch, &mut returns);
    let returned: Vec<_> = returns
        .into_iter()
        .flat_map(Claim::singles)
        .map(|claim| String::from_utf8_lossy(ledger.ack_id(&claim).expect("held")).into_owned())
        .collect();
    assert_eq!(returned, ["3.0", "4.0"]);
    assert_eq!(ledger.tally().lost, 1, "the first of the key");
    let left = take(&mut ledger, 10);
    assert_eq!(left.len(), 1, "the other key stays");
    assert_eq!(
        left[0].contents.key(1),
        left[0].contents.key(left[0].run.range().start)
    );
    balanced(&ledger);
}

#[test]
fn what_was_handed_over_survives_its_lease_and_is_acked_by_its_id() {
    let mut ledger = Ledger::new(false);
    received(&mut ledger, 0..2);
    let batch = take(&mut ledger, 1);
    let lapsed = ledger.lapse(at(60), &mut Vec::new());
    assert_eq!((lapsed.buffered, lapsed.kept), (1, 1));
    assert_eq!(
        ledger.lapse(at(61), &mut Vec::new()),
        Lapsed::default(),
        "told once"
    );
    ledger.emitted([batch[0].run]);
    let bound = ledger.bind();
    assert_eq!(complete(&mut ledger, bound[0], at(62)).len(), 1);
    assert_eq!(ledger.tally().lost, 1);
    balanced(&ledger);
}

#[test]
fn an_exactly_once_copy_waits_for_its_confirmation() {
    let mut ledger = Ledger::new(false);
    ledger.set_exactly_once();
    received(&mut ledger, 0..2);
    assert!(!ledger.has_next());
    let mut due = Vec::new();
    ledger.due(&terms(), at(0), &mut due);
    let due: Vec<Claim> = due
        .into_iter()
        .flat_map(|(_, claim)| claim.singles())
        .collect();
    assert_eq!(due.len(), 2, "the first extension goes out at once");
    ledger.extended(&due[0], &terms(), 60, &mut fastrand::Rng::with_seed(1));
    assert_eq!(take(&mut ledger, 10).len(), 1);
    ledger.stale(&due[1]);
    assert_eq!(ledger.tally().lost, 1, "a stale id leaves");
    balanced(&ledger);
}

proptest! {
    /// Every copy ends once, whatever happens in whatever order (PS-SRC-34), and the bounds' counts come back to zero.
    #[test]
    fn the_account_balances_after_every_step(
        steps in prop::collection::vec((0u8..14, any::<u8>(), 1u8..6), 1..200), per_key: bool,
    ) {
        let mut ledger = Ledger::new(per_key);
        let (mut handed, mut bound) = (Vec::new(), Vec::new());
        let (mut acks, mut nacks, mut due) = (Vec::new(), Vec::new(), Vec::new());
        let mut random = fastrand::Rng::with_seed(1);
        for (second, (step, pick, count)) in steps.into_iter().enumerate() {
            let now = at(second as u64 * 5);
            let of = |len: usize| usize::from(pick) % len.max(1);
            match step {
                0..=3 => {
                    // One response, which may repeat itself.
                    let ids = (0..u64::from(count)).map(|n| (u64::from(pick) * (n + 1)) % 24);
                    let copies = ids.map(|id| copy(id, second as u64, id % 3));
                    acks.extend(receive(&mut ledger, copies, now));
                }
                4 => handed.extend(take(&mut ledger, of(5) + 1)),
                5 if !handed.is_empty() => {
                    let count = of(handed.len()) + 1;
                    ledger.emitted(handed.drain(..count.min(handed.len())).map(|h: Part| h.run));
                }
                6 => bound.extend(ledger.bind()),
                7 => {
                    for run in bound.drain(..) {
                        acks.extend(complete(&mut ledger, run, now));
                    }
                }
                8 if !acks.is_empty() => {
                    let claim: Claim = acks.swap_remove(of(acks.len()));
                    // Some ids of a request may have verdicts of their own.
                    for claim in claim.singles() {
                        if pick % 3 == 0 { ledger.ack_failed(&claim); } else { ledger.acked(&claim); }
                    }
                }
                9 if !handed.is_empty() => {
                    let handed: Part = handed.swap_remove(of(handed.len()));
                    if pick % 2 == 0 {
                        ledger.nack(handed.run, &mut nacks);
                    } else {
                        ledger.drop_now(handed.run, now, &mut acks);
                    }
                }
                10 if !nacks.is_empty() => {
                    let claim = nacks.swap_remove(of(nacks.len()));
                    if pick % 2 == 0 { ledger.nack_sent(&claim); }
                    ledger.nack_ended(&claim);
                }
                11 => _ = ledger.lapse(now, &mut nacks),
                12 => {
                    ledger.due(&terms(), now, &mut due);
                    for (seconds, claim) in due.drain(..) {
                        ledger.extended(&claim, &terms(), seconds, &mut random);
                    }
                }
                13 => ledger.untake(std::mem::take(&mut handed), &mut nacks),
                _ => {}
            }
            balanced(&ledger);
            let live: u64 = ledger.blocks.iter().flatten().map(|block| u64::from(block.live)).sum();
            prop_assert_eq!(live, ledger.held().0, "no block outlives its messages");
        }
        ledger.nack_uncovered(&mut nacks);
        for claim in nacks.drain(..) {
            ledger.nack_sent(&claim);
            balanced(&ledger);
            ledger.nack_ended(&claim);
        }
        prop_assert_eq!(ledger.buffered(), (0, 0));
        ledger.abandon();
        balanced(&ledger);
        prop_assert_eq!(ledger.pending(), 0);
        prop_assert_eq!(ledger.held(), (0, 0));
    }
}

#[test]
fn an_exactly_once_message_that_was_given_up_is_acked_by_a_later_delivery_and_not_handed_over() {
    let mut ledger = Ledger::new(false);
    ledger.set_exactly_once();
    received(&mut ledger, 0..3);
    let mut due = Vec::new();
    ledger.due(&terms(), at(1), &mut due);
    let mut random = fastrand::Rng::with_seed(1);
    for (seconds, claim) in &due {
        ledger.extended(claim, &terms(), *seconds, &mut random);
    }
    let parts = take(&mut ledger, 3);
    ledger.emitted(parts.iter().map(|part| part.run));
    let mut claims = Vec::new();
    for run in ledger.bind() {
        ledger.complete(run, at(2), false, &mut claims);
    }
    for claim in &claims {
        ledger.ack_failed(claim);
    }
    balanced(&ledger);
    assert_eq!(ledger.held(), (0, 0), "flow control is free again");
    // They come again, in the company of a new one.
    let again = receive(&mut ledger, (0..4).map(|id| copy(id, 1, 0)), at(700));
    let messages: usize = again.iter().map(|claim| claim.run.range().len()).sum();
    assert_eq!(messages, 3);
    assert_eq!((ledger.held().0, ledger.buffered().0), (4, 1));
    for claim in &again {
        ledger.acked(claim);
    }
    balanced(&ledger);
    assert_eq!((ledger.tally().acked, ledger.pending()), (3, 1));
    // It is forgotten once it is acked.
    let again = receive(&mut ledger, [copy(0, 2, 0)], at(701));
    assert_eq!((again.len(), ledger.buffered().0), (0, 2));
}
