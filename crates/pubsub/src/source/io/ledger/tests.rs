//! The account, by cases and by random runs.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

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

fn copy(id: u64, delivery: u64, key: u64) -> Received {
    Received {
        id: MessageId::Number(id),
        ack_id: format!("{id}.{delivery}").into_bytes().into(),
        message: vec![0; 10].into(),
        key,
        attempt: 0,
    }
}

fn received(ledger: &mut Ledger, ids: std::ops::Range<u64>) {
    for id in ids {
        assert_eq!(
            ledger.receive(copy(id, 0, 0), &terms(), at(0)),
            Receipt::New
        );
    }
}

fn take(ledger: &mut Ledger, most: usize) -> Vec<Handed> {
    let mut out = Vec::new();
    ledger.take(most, &mut out);
    out
}

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
    let [first, second] = [batch[0].handle, batch[1].handle];
    assert_eq!(ledger.complete(first, at(1), false), None, "not emitted");
    ledger.emitted([first]);
    assert_eq!(
        ledger.bind(),
        [first],
        "a message partly emitted stays pending"
    );
    ledger.emitted([second]);
    assert_eq!(
        ledger.complete(second, at(1), false),
        None,
        "behind the barrier"
    );
    let claim = ledger.complete(first, at(1), false).expect("bound");
    assert_eq!(ledger.ack_id(&claim), Some(&b"0.0"[..]));
    assert_eq!(ledger.acked(&claim), Settled::Quiet);
    assert_eq!(ledger.acked(&claim), Settled::Void, "once");
    assert_eq!((ledger.pending(), ledger.buffered().0), (2, 1));
    balanced(&ledger);
}

#[test]
fn a_redelivered_copy_is_never_handed_over_and_its_id_is_the_one_to_ack_by() {
    let mut ledger = Ledger::new(false);
    received(&mut ledger, 0..1);
    assert_eq!(
        ledger.receive(copy(0, 1, 0), &terms(), at(1)),
        Receipt::Again(None),
        "buffered"
    );
    let handle = take(&mut ledger, 10)[0].handle;
    assert!(take(&mut ledger, 10).is_empty());
    ledger.receive(copy(0, 2, 0), &terms(), at(2));
    ledger.emitted([handle]);
    ledger.bind();
    let old = ledger.complete(handle, at(3), false).expect("bound");
    let Receipt::Again(Some(new)) = ledger.receive(copy(0, 3, 0), &terms(), at(4)) else {
        panic!("to be acked at once");
    };
    assert_eq!(ledger.ack_id(&old), None);
    assert_eq!(
        ledger.acked(&old),
        Settled::Void,
        "the old id's answer says nothing"
    );
    assert_eq!(ledger.ack_id(&new), Some(&b"0.3"[..]));
    ledger.acked(&new);
    assert_eq!(ledger.tally().lost, 3);
    assert!(ledger.is_empty() && take(&mut ledger, 1).is_empty());
    balanced(&ledger);
}

#[test]
fn a_lapse_in_the_buffer_takes_the_later_ones_of_its_key_along() {
    let mut ledger = Ledger::new(true);
    for (id, key, second) in [(1, 7, 0), (2, 8, 30), (3, 7, 30)] {
        ledger.receive(copy(id, 0, key), &terms(), at(second));
    }
    let mut returns = Vec::new();
    let lapsed = ledger.lapse(at(60), &mut returns);
    assert_eq!((lapsed.buffered, lapsed.followers, lapsed.kept), (1, 1, 0));
    assert_eq!(ledger.ack_id(&returns[0]), Some(&b"3.0"[..]));
    assert_eq!(take(&mut ledger, 10).len(), 1, "the other key stays");
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
    ledger.emitted([batch[0].handle]);
    let bound = ledger.bind();
    assert!(ledger.complete(bound[0], at(62), false).is_some());
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
    assert_eq!(due.len(), 2, "the first extension goes out at once");
    ledger.extended(&due[0].1, &terms(), 60, &mut fastrand::Rng::with_seed(1));
    assert_eq!(take(&mut ledger, 10).len(), 1);
    ledger.stale(&due[1].1);
    assert_eq!(ledger.tally().lost, 1, "a stale id leaves");
    balanced(&ledger);
}

proptest! {
    /// Every copy ends once, whatever happens in whatever order (PS-SRC-34), and the bounds' counts come back to zero.
    #[test]
    fn the_account_balances_after_every_step(
        steps in prop::collection::vec((0u8..14, any::<u8>()), 1..200), per_key: bool,
    ) {
        let mut ledger = Ledger::new(per_key);
        let (mut handed, mut bound) = (Vec::new(), Vec::new());
        let (mut acks, mut nacks, mut due) = (Vec::new(), Vec::new(), Vec::new());
        let mut random = fastrand::Rng::with_seed(1);
        for (second, (step, pick)) in steps.into_iter().enumerate() {
            let now = at(second as u64 * 5);
            let of = |len: usize| usize::from(pick) % len.max(1);
            match step {
                0..=3 => {
                    let id = u64::from(pick % 24);
                    match ledger.receive(copy(id, second as u64, id % 3), &terms(), now) {
                        Receipt::Again(Some(claim)) => acks.push(claim),
                        Receipt::New | Receipt::Again(None) => {}
                    }
                }
                4 => handed.extend(take(&mut ledger, of(5) + 1)),
                5 if !handed.is_empty() => {
                    let count = of(handed.len()) + 1;
                    ledger.emitted(handed.drain(..count.min(handed.len())).map(|h: Handed| h.handle));
                }
                6 => bound.extend(ledger.bind()),
                7 => acks.extend(bound.drain(..).filter_map(|handle| ledger.complete(handle, now, false))),
                8 if !acks.is_empty() => {
                    let claim = acks.swap_remove(of(acks.len()));
                    if pick % 3 == 0 { ledger.ack_failed(&claim); } else { ledger.acked(&claim); }
                }
                9 if !handed.is_empty() => {
                    let handed: Handed = handed.swap_remove(of(handed.len()));
                    if pick % 2 == 0 {
                        nacks.extend(ledger.nack(handed.handle));
                    } else {
                        acks.extend(ledger.drop_now(handed.handle, now));
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
                13 => ledger.untake(std::mem::take(&mut handed)),
                _ => {}
            }
            balanced(&ledger);
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
