//! Stored formats and the reference page, byte by byte; the guide's list of metrics.

use std::collections::BTreeSet;

use aqueduct_bigtable::source::{EnumeratorState, Limited, ScanSplit, metrics};
use aqueduct_bigtable::{RowRange, lookup, scan_options};
use aqueduct_testkit::golden;

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/golden");

fn split(ordinal: u64, range: &str, rows_left: Option<u64>) -> ScanSplit {
    ScanSplit {
        rows_left,
        ..ScanSplit::new(ordinal, RowRange::parse(range).expect("a range"))
    }
}

fn finished() -> ScanSplit {
    ScanSplit {
        finished: true,
        ..split(7, r"(r\x00\xff, s]", Some(42))
    }
}

fn state() -> EnumeratorState {
    EnumeratorState {
        planned: true,
        unassigned: vec![split(3, "[a, m)", None), split(4, "[m, *)", Some(5))],
        limited: Some(Limited {
            left: 9,
            active: Some(2),
        }),
    }
}

#[test]
fn a_splits_bytes_are_kept() {
    golden::assert_keeps(
        DIR,
        "scan-split",
        &finished().encode(),
        &format!("{:?}", finished()),
    );
}

#[test]
fn every_version_of_a_split_reads() {
    golden::assert_reads(DIR, "scan-split", |state| {
        ScanSplit::decode(state).map(|split| format!("{split:?}"))
    });
}

#[test]
fn the_coordinators_bytes_are_kept() {
    golden::assert_keeps(
        DIR,
        "scan-enumerator",
        &state().encode(),
        &format!("{:?}", state()),
    );
}

#[test]
fn every_version_of_the_coordinators_state_reads() {
    golden::assert_reads(DIR, "scan-enumerator", |state| {
        EnumeratorState::decode(state).map(|state| format!("{state:?}"))
    });
}

#[test]
fn states_of_every_shape_read_back() {
    for split in [
        finished(),
        split(0, "(*, *)", None),
        split(u64::MAX, "[a, a]", Some(0)),
    ] {
        assert_eq!(ScanSplit::decode(&split.encode()), Ok(split));
    }
    let empty = EnumeratorState {
        planned: false,
        unassigned: vec![],
        limited: None,
    };
    for state in [state(), empty] {
        assert_eq!(EnumeratorState::decode(&state.encode()), Ok(state));
    }
}

#[test]
fn the_reference_page_is_the_printed_one() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/bigtable-scan.md"
    );
    let printed = scan_options::reference();
    if std::env::var(golden::WRITE).is_ok_and(|value| value == "1") {
        std::fs::write(path, &printed).expect("writable");
    }
    let page = std::fs::read_to_string(path).expect("the page exists");
    assert!(page == printed, "print it anew with {}=1", golden::WRITE);
}

#[test]
fn the_guide_lists_the_metrics_that_there_are() {
    let page = include_str!("../../../../docs/bigtable-scan.md");
    let (_, section) = page.split_once("## Metrics").expect("a section");
    let listed: BTreeSet<&str> = section
        .lines()
        .skip_while(|line| !line.starts_with("| ---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .flat_map(|line| {
            line.split('|')
                .nth(1)
                .expect("a first column")
                .split('`')
                .skip(1)
                .step_by(2)
        })
        .collect();
    let there: BTreeSet<&str> = [metrics::ALL, lookup::metrics::ALL]
        .concat()
        .into_iter()
        .collect();
    assert_eq!(listed, there);
}
