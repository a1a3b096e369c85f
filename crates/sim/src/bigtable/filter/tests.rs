//! One row through each filter.

use super::{super::store::Visible, *};
use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;

fn table() -> TableState {
    let mut table = TableState::new([]);
    for family in ["a", "b"] {
        table.add_family(family, admin::ColumnFamily::default(), Visible::Now);
    }
    let mut row = table.take(b"row-1");
    for (family, qualifier, timestamp, value) in [
        (0, "x", 2_000, "new"),
        (0, "x", 1_000, "old"),
        (0, "y", 1_000, "\u{e9}\n"),
        (1, "x", 1_000, "other"),
    ] {
        table.set_cell(
            &mut row,
            family,
            qualifier.as_bytes(),
            timestamp,
            value.as_bytes(),
        );
    }
    table.put(b"row-1", row);
    table
}

/// What of the row passes, as `family:qualifier@timestamp=value`.
fn run(filter: F) -> Result<Vec<String>, Refusal> {
    let mut table = table();
    let filter = pb::RowFilter {
        filter: Some(filter),
    };
    let filter = Filter::compile(&filter, &mut table, &Limits::default())?;
    let row = &table.rows[b"row-1".as_slice()];
    let cells = row
        .cells
        .iter()
        .map(|cell| View::new(cell, table.family_name(cell.family)))
        .collect();
    Ok(filter
        .apply(b"row-1", cells)
        .into_iter()
        .map(|cell| {
            format!(
                "{}:{}@{}={}{}",
                cell.family,
                String::from_utf8_lossy(cell.qualifier),
                cell.timestamp,
                String::from_utf8_lossy(cell.value),
                cell.label.unwrap_or_default(),
            )
        })
        .collect())
}

fn passed(filter: F) -> Vec<String> {
    run(filter).expect("the filter is legal")
}

fn wrap(filters: impl IntoIterator<Item = F>) -> Vec<pb::RowFilter> {
    filters
        .into_iter()
        .map(|filter| pb::RowFilter {
            filter: Some(filter),
        })
        .collect()
}

#[test]
fn a_regex_matches_whole_bytes() {
    assert_eq!(
        passed(F::ValueRegexFilter("ne".into())),
        Vec::<String>::new()
    );
    assert_eq!(passed(F::ValueRegexFilter("ne.".into())), ["a:x@2000=new"]);
    assert_eq!(
        passed(F::ValueRegexFilter(r"\C\C\C".into())).len(),
        3,
        "\u{e9} is two bytes"
    );
    assert_eq!(
        passed(F::ValueRegexFilter("...".into())).len(),
        2,
        "a dot stops at a newline"
    );
    assert_eq!(
        passed(F::ValueRegexFilter(r"\Qol\Ed".into())),
        ["a:x@1000=old"]
    );
    assert_eq!(passed(F::RowKeyRegexFilter(r"row\-1".into())).len(), 4);
    assert_eq!(passed(F::RowKeyRegexFilter("row".into())).len(), 0);
    assert_eq!(
        run(F::ValueRegexFilter("(".into())).unwrap_err().code,
        Code::InvalidArgument
    );
}

#[test]
fn limits_count_newest_first() {
    assert_eq!(passed(F::CellsPerColumnLimitFilter(1)).len(), 3);
    assert_eq!(passed(F::CellsPerRowLimitFilter(1)), ["a:x@2000=new"]);
    assert_eq!(passed(F::CellsPerRowOffsetFilter(3)), ["b:x@1000=other"]);
    assert_eq!(
        run(F::CellsPerRowLimitFilter(-1)).unwrap_err().code,
        Code::InvalidArgument
    );
}

#[test]
fn a_filter_naming_an_unknown_family_is_not_found() {
    assert_eq!(
        run(F::FamilyNameRegexFilter("nope".into()))
            .unwrap_err()
            .code,
        Code::NotFound
    );
    assert_eq!(
        passed(F::FamilyNameRegexFilter("n.*".into())).len(),
        0,
        "a pattern names none"
    );
    assert_eq!(
        passed(F::FamilyNameRegexFilter(String::new())).len(),
        0,
        "nor does nothing"
    );
    assert_eq!(passed(F::FamilyNameRegexFilter("b".into())).len(), 1);
    let range = pb::ColumnRange {
        family_name: "nope".into(),
        ..Default::default()
    };
    assert_eq!(
        run(F::ColumnRangeFilter(range)).unwrap_err().code,
        Code::NotFound
    );
}

#[test]
fn ranges_keep_their_bounds() {
    use pb::{column_range::*, value_range::*};
    let columns = |start, end| {
        F::ColumnRangeFilter(pb::ColumnRange {
            family_name: "a".into(),
            start_qualifier: Some(start),
            end_qualifier: Some(end),
        })
    };
    let open = StartQualifier::StartQualifierOpen("x".into());
    let through = EndQualifier::EndQualifierClosed("y".into());
    assert_eq!(passed(columns(open, through)).len(), 1);
    let from = StartQualifier::StartQualifierClosed("x".into());
    let before = EndQualifier::EndQualifierOpen("y".into());
    assert_eq!(passed(columns(from, before)).len(), 2);
    let values = F::ValueRangeFilter(pb::ValueRange {
        start_value: Some(StartValue::StartValueOpen("new".into())),
        end_value: Some(EndValue::EndValueClosed("other".into())),
    });
    assert_eq!(passed(values), ["a:x@1000=old", "b:x@1000=other"]);
    let stamps = F::TimestampRangeFilter(pb::TimestampRange {
        start_timestamp_micros: 2_000,
        end_timestamp_micros: 0,
    });
    assert_eq!(passed(stamps), ["a:x@2000=new"]);
}

#[test]
fn chains_narrow_and_interleaves_repeat() {
    let chain = pb::row_filter::Chain {
        filters: wrap([
            F::FamilyNameRegexFilter("a".into()),
            F::CellsPerColumnLimitFilter(1),
        ]),
    };
    assert_eq!(passed(F::Chain(chain)).len(), 2);
    let interleave = pb::row_filter::Interleave {
        filters: wrap([F::CellsPerRowLimitFilter(1), F::PassAllFilter(true)]),
    };
    assert_eq!(
        passed(F::Interleave(interleave))[..2],
        ["a:x@2000=new", "a:x@2000=new"]
    );
    let lonely = pb::row_filter::Chain {
        filters: wrap([F::PassAllFilter(true)]),
    };
    assert_eq!(
        run(F::Chain(lonely)).unwrap_err().code,
        Code::InvalidArgument
    );
}

#[test]
fn a_condition_takes_the_branch_of_its_predicate() {
    let condition = |value: &'static str| {
        let part = |filter| {
            Some(Box::new(pb::RowFilter {
                filter: Some(filter),
            }))
        };
        F::Condition(Box::new(pb::row_filter::Condition {
            predicate_filter: part(F::ValueRegexFilter(value.into())),
            true_filter: part(F::ApplyLabelTransformer("yes".into())),
            false_filter: part(F::StripValueTransformer(true)),
        }))
    };
    assert_eq!(passed(condition("old"))[0], "a:x@2000=newyes");
    assert_eq!(passed(condition("none"))[0], "a:x@2000=");
}

#[test]
fn depth_and_size_are_limited() {
    let mut filter = F::PassAllFilter(true);
    for _ in 0..20 {
        filter = F::Chain(pb::row_filter::Chain {
            filters: wrap([filter.clone(), filter]),
        });
        // Doubling would exceed the size first; one deep branch is enough.
        let F::Chain(chain) = &mut filter else {
            unreachable!("just built")
        };
        chain.filters[1] = pb::RowFilter {
            filter: Some(F::PassAllFilter(true)),
        };
    }
    assert_eq!(
        run(filter).unwrap_err().message,
        "Filter is nested too deeply"
    );
    let long = F::ValueRegexFilter(vec![b'x'; 21 << 10].into());
    assert!(
        run(long)
            .unwrap_err()
            .message
            .starts_with("Filter too large")
    );
}

#[test]
fn a_sample_takes_about_its_share_of_similar_keys() {
    let taken = (0..1_000)
        .filter(|n| sampled(format!("r-{n:03}").as_bytes(), 0.3))
        .count();
    assert!((250..350).contains(&taken), "{taken} of 1,000");
}
