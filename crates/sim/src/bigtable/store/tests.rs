//! Rows, deletes, aggregates, garbage, samples.

use super::*;

fn table() -> TableState {
    let mut table = TableState::new([]);
    table.add_family("cf", admin::ColumnFamily::default(), Visible::Now);
    table
}

fn set(qualifier: &'static str, timestamp: i64, value: &'static str) -> Mutation {
    Mutation {
        mutation: Some(pb::mutation::Mutation::SetCell(pb::mutation::SetCell {
            family_name: "cf".into(),
            column_qualifier: qualifier.into(),
            timestamp_micros: timestamp,
            value: value.into(),
        })),
        timestamp_origin: 0,
    }
}

fn cells(table: &TableState, key: &str) -> Vec<(String, i64, String)> {
    table.rows[key.as_bytes()]
        .cells
        .iter()
        .map(|cell| {
            (
                String::from_utf8_lossy(&cell.qualifier).into_owned(),
                cell.timestamp,
                String::from_utf8_lossy(&cell.value).into_owned(),
            )
        })
        .collect()
}

#[test]
fn cells_are_ordered_by_column_then_newest_and_the_same_version_is_replaced() {
    let mut table = table();
    table.apply_row(
        b"r",
        &[
            set("b", 1000, "1"),
            set("a", 1000, "2"),
            set("b", 2000, "3"),
            set("b", 1000, "4"),
        ],
        0,
    );
    assert_eq!(
        cells(&table, "r"),
        [
            ("a".into(), 1000, "2".into()),
            ("b".into(), 2000, "3".into()),
            ("b".into(), 1000, "4".into())
        ]
    );
    let newest = table.rows[b"r".as_slice()]
        .newest(0, b"b")
        .map(|cell| cell.timestamp);
    assert_eq!(newest, Some(2000));
}

#[test]
fn a_delete_range_includes_its_start_and_excludes_its_end() {
    let mut table = table();
    table.apply_row(
        b"r",
        &[
            set("q", 1000, "1"),
            set("q", 2000, "2"),
            set("q", 3000, "3"),
        ],
        0,
    );
    let delete = Mutation {
        mutation: Some(pb::mutation::Mutation::DeleteFromColumn(
            pb::mutation::DeleteFromColumn {
                family_name: "cf".into(),
                column_qualifier: "q".into(),
                time_range: Some(pb::TimestampRange {
                    start_timestamp_micros: 1000,
                    end_timestamp_micros: 3000,
                }),
            },
        )),
        timestamp_origin: 0,
    };
    table.apply_row(b"r", &[delete], 0);
    assert_eq!(cells(&table, "r"), [("q".into(), 3000, "3".into())]);
}

#[test]
fn a_deleted_row_is_gone_but_its_effects_stay_counted() {
    let mut table = table();
    table.apply_row(b"r", &[set("q", 1000, "1")], 0);
    assert_eq!(table.live_rows(), 1);
    let delete = Mutation {
        mutation: Some(pb::mutation::Mutation::DeleteFromRow(
            pb::mutation::DeleteFromRow {},
        )),
        timestamp_origin: 0,
    };
    table.apply_row(b"r", &[delete], 0);
    assert_eq!(table.live_rows(), 0);
    assert_eq!(table.live_between(b"", None).count(), 0);
    assert_eq!(table.rows[b"r".as_slice()].effects, 2);
}

#[test]
fn garbage_beyond_the_versions_goes_and_other_columns_stay() {
    let mut table = TableState::new([]);
    let rule = admin::GcRule {
        rule: Some(admin::gc_rule::Rule::MaxNumVersions(1)),
    };
    table.add_family(
        "cf",
        admin::ColumnFamily {
            gc_rule: Some(rule),
            ..Default::default()
        },
        Visible::Now,
    );
    table.apply_row(
        b"r",
        &[
            set("a", 1000, "1"),
            set("a", 2000, "2"),
            set("b", 1000, "3"),
        ],
        0,
    );
    table.apply_row(b"s", &[set("b", 1000, "4")], 0);
    table.collect_garbage(0);
    assert_eq!(
        cells(&table, "r"),
        [
            ("a".into(), 2000, "2".into()),
            ("b".into(), 1000, "3".into())
        ]
    );
    assert_eq!(cells(&table, "s"), [("b".into(), 1000, "4".into())]);
}

#[test]
fn samples_are_the_tablet_ends_and_the_end_of_the_table() {
    let mut table = TableState::new([b"g".as_slice().into(), b"p".as_slice().into()]);
    let keys = |table: &TableState| {
        table
            .samples()
            .into_iter()
            .map(|(key, _)| key)
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(&table), [b"g".to_vec(), b"p".to_vec(), Vec::new()]);
    table.add_family("cf", admin::ColumnFamily::default(), Visible::Now);
    table.apply_row(b"g", &[set("q", 0, "1")], 0);
    assert_eq!(keys(&table), [b"g".to_vec(), b"p".to_vec(), Vec::new()]);
    let offsets: Vec<i64> = table
        .samples()
        .into_iter()
        .map(|(_, offset)| offset)
        .collect();
    assert_eq!(
        offsets[0], 0,
        "a row on the boundary belongs to the next tablet"
    );
    assert!(offsets[1] > 0);
    assert_eq!(keys(&TableState::new([])), [Vec::<u8>::new()]);
}
