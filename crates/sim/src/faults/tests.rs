//! When faults meet requests.

use super::*;

const METHOD: Method = Method::MutateRows;

fn met(script: &Script, requests: usize) -> Vec<bool> {
    (0..requests)
        .map(|_| script.meet(Some("t"), METHOD).refusal().is_some())
        .collect()
}

fn fault(trigger: Trigger) -> (Script, Fault) {
    let script = Script::default();
    let fault = script
        .add(Some("t".into()), METHOD, trigger)
        .status(Code::Unavailable);
    (script, fault)
}

#[test]
fn the_nth_meets_once_and_leaves_the_script() {
    let (script, fault) = fault(Trigger::Nth(3));
    assert_eq!(met(&script, 4), [false, false, true, false]);
    assert_eq!(fault.fired(), 1);
    assert!(script.is_empty());
}

#[test]
fn every_nth_next_and_always_meet_as_named() {
    assert_eq!(
        met(&fault(Trigger::EveryNth(2)).0, 4),
        [false, true, false, true]
    );
    assert_eq!(met(&fault(Trigger::Next(2)).0, 3), [true, true, false]);
    assert_eq!(met(&fault(Trigger::Always).0, 2), [true, true]);
}

#[test]
fn random_faults_repeat_for_a_seed() {
    let run = |seed| {
        let rng = fastrand::Rng::with_seed(seed);
        met(
            &fault(Trigger::Random {
                rng,
                probability: 0.5,
            })
            .0,
            64,
        )
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn other_tables_and_methods_are_neither_met_nor_counted() {
    let (script, fault) = fault(Trigger::Nth(1));
    assert!(script.meet(Some("u"), METHOD).refusal().is_none());
    assert!(script.meet(Some("t"), Method::ReadRows).refusal().is_none());
    assert_eq!(fault.fired(), 0);
    assert_eq!(met(&script, 1), [true]);
}

#[test]
fn a_removed_fault_meets_nothing() {
    let (script, fault) = fault(Trigger::Always);
    fault.remove();
    assert_eq!(met(&script, 2), [false, false]);
}

#[test]
fn a_fault_without_effect_counts_nothing_until_it_gets_one() {
    let script = Script::default();
    let fault = script.add(None, METHOD, Trigger::Nth(1));
    assert_eq!(met(&script, 2), [false, false]);
    let _fault = fault.status(Code::Unavailable);
    assert_eq!(met(&script, 1), [true]);
}
