//! The README's first command.

use crate::program::run;

#[test]
fn the_quickstart_writes_every_event_and_reads_it_back() {
    let said = run(&["quickstart", "--rate", "0"]);
    assert!(said.ok, "{said:?}");
    assert!(
        said.out
            .contains("4963 rows in the table; this run wrote 4963"),
        "{}",
        said.out
    );
    // Figures of the sample, worked out with another tool: departures, cancelled flights, mean delay in minutes.
    for line in [
        "UA              876          3     9.0 min",
        "EV              693          9    23.5 min",
    ] {
        assert!(said.out.contains(line), "{}", said.out);
    }
    assert!(
        said.err.is_empty(),
        "a clean run warns of nothing: {}",
        said.err
    );
}

#[test]
fn one_subtask_or_many_write_the_same_table() {
    let table = |said: String| {
        said.split("\n\n")
            .nth(1)
            .expect("a table of carriers")
            .to_owned()
    };
    let one = run(&["quickstart", "--rate", "0", "--parallelism", "1"]);
    let many = run(&["quickstart", "--rate", "0", "--parallelism", "5"]);
    assert!(one.ok && many.ok, "{one:?} {many:?}");
    assert_eq!(table(one.out), table(many.out));
}
