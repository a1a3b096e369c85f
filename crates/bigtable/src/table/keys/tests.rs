//! Conditions read exactly the rows that meet them, against a model; options spell ranges in one way only.

use aqueduct_connector::row::RowTime;
use aqueduct_connector::table::{FieldPath, TableSpec};
use aqueduct_connector::types::LogicalType;
use proptest::prelude::*;

use super::super::codec::Codec;
use super::super::options::declared;
use super::*;

const OPS: [Compare; 6] = [
    Compare::Equal,
    Compare::NotEqual,
    Compare::Less,
    Compare::LessOrEqual,
    Compare::Greater,
    Compare::GreaterOrEqual,
];

fn schema(ty: &str) -> Schema {
    let ty = LogicalType::parse(ty).expect("a type");
    Schema {
        key: Key {
            column: 1,
            name: "k".to_owned(),
            codec: Codec::of(&ty, "k").expect("a type that can be stored"),
            data: ty.data,
        },
        families: Vec::new(),
        columns: 2,
    }
}

fn key() -> FieldPath {
    FieldPath(vec![1])
}

fn compared(op: Compare, value: Literal) -> Filter {
    Filter::Compare {
        field: key(),
        op,
        value,
    }
}

fn holds<T: Ord>(left: &T, op: Compare, right: &T) -> bool {
    match op {
        Compare::Equal => left == right,
        Compare::NotEqual => left != right,
        Compare::Less => left < right,
        Compare::LessOrEqual => left <= right,
        Compare::Greater => left > right,
        Compare::GreaterOrEqual => left >= right,
    }
}

fn read(ranges: &[RowRange], key: &[u8]) -> bool {
    let found = ranges.iter().filter(|range| range.contains(key)).count();
    assert!(found <= 1, "a row in two ranges comes twice");
    found == 1
}

fn asked(ranges: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let spec = ranges
        .iter()
        .fold(TableSpec::new("t"), |spec, (key, value)| {
            spec.option(*key, *value)
        });
    let options = TableOptions::new(&spec, &declared()).expect("known keys");
    requested(&options)
        .map(|ranges| ranges.iter().map(ToString::to_string).collect())
        .map_err(|error| error.to_string())
}

#[test]
fn ranges_and_prefixes_add_up_and_are_joined() {
    assert_eq!(asked(&[]), Ok(vec![]));
    for (options, ranges) in [
        (&[("scan.row-prefix", "a; b")][..], &["[a, c)"][..]),
        (&[("scan.row-range.start-closed", "a")], &["[a, *)"]),
        (&[("scan.row-range.end-open", "b")], &["(*, b)"]),
        (
            &[
                ("scan.row-range.start-closed", "a"),
                ("scan.row-range.end-open", "b"),
                ("scan.row-prefix", "x"),
            ],
            &["[a, b)", "[x, y)"],
        ),
        (&[("scan.row-ranges", "[a,b);[c,)")], &["[a, b)", "[c, *)"]),
        (
            &[("scan.row-ranges", " (a,b] ; (,A] ")],
            &["(*, A]", "(a, b]"],
        ),
        (&[("scan.row-ranges", "[ a,b )")], &["[ a, b )"]),
        (
            &[("scan.row-ranges", r"[\[\,\;,\\\])")],
            &[r"[[\x2c;, \x5c])"],
        ),
        (&[("scan.row-ranges", "[,)")], &["(*, *)"]),
        (&[("scan.row-ranges", "[é,ê)")], &[r"[\xc3\xa9, \xc3\xaa)"]),
        (
            &[
                ("scan.row-key-encoding", "base64"),
                ("scan.row-ranges", "[AA==,/w==]"),
                ("scan.row-prefix", "//8="),
            ],
            &[r"[\x00, \xff]", r"[\xff\xff, *)"],
        ),
    ] {
        assert_eq!(asked(options).expect("valid"), ranges, "{options:?}");
    }
}

#[test]
fn what_cannot_be_read_names_option_and_entry() {
    for (options, parts) in [
        (
            &[("scan.row-prefix", "a;;b")][..],
            &["'scan.row-prefix'", "entry 2"][..],
        ),
        (
            &[("scan.row-ranges", "")],
            &["'scan.row-ranges'", "entry 1"],
        ),
        (&[("scan.row-ranges", "[a,b);")], &["entry 2"]),
        (&[("scan.row-ranges", "[a,b);[c")], &["entry 2"]),
        (&[("scan.row-ranges", "[a,b)[c,d)")], &["entry 1", "';'"]),
        (&[("scan.row-ranges", "a,b")], &["entry 1"]),
        (&[("scan.row-ranges", "[a;b,c)")], &["entry 1"]),
        (&[("scan.row-ranges", r"[a,b\)")], &["entry 1"]),
        (&[("scan.row-ranges", r"[a,b)\")], &["entry 1"]),
        (
            &[("scan.row-ranges", "[a,b);[d,c)")],
            &["entry 2", "no key"],
        ),
        (
            &[
                ("scan.row-range.start-closed", "b"),
                ("scan.row-range.end-open", "b"),
            ],
            &["start-closed", "end-open"],
        ),
        (
            &[("scan.row-range.start-closed", "")],
            &["start-closed", "empty"],
        ),
        (
            &[("scan.row-key-encoding", "HEX")],
            &["'scan.row-key-encoding'", "'UTF8', 'BASE64'"],
        ),
        (
            &[
                ("scan.row-key-encoding", "BASE64"),
                ("scan.row-prefix", "AA==;AB=="),
            ],
            &["entry 2", "Base64"],
        ),
        (
            &[
                ("scan.row-key-encoding", "BASE64"),
                ("scan.row-range.end-open", "AA"),
            ],
            &["end-open", "Base64"],
        ),
        (
            &[
                ("scan.row-key-encoding", "BASE64"),
                ("scan.row-ranges", "[AA,)"),
            ],
            &["entry 1", "Base64"],
        ),
    ] {
        let text = asked(options).expect_err("refused");
        assert!(
            parts.iter().all(|part| text.contains(part)),
            "{options:?}: {text}"
        );
    }
}

#[test]
fn only_what_ranges_can_say_is_exact() {
    let exact = |ty: &str, filter: &Filter| filter_use(&schema(ty), filter) == FilterUse::Exact;
    let time = Literal::Time(RowTime::from_millis(1));
    for (ty, value) in [
        ("STRING", Literal::Text("a".into())),
        ("VARCHAR(5)", Literal::Text("a".into())),
        ("BYTES", Literal::Bytes(vec![1])),
        ("VARBINARY(5)", Literal::Bytes(vec![1])),
    ] {
        assert!(
            OPS.iter()
                .all(|op| exact(ty, &compared(*op, value.clone()))),
            "{ty}"
        );
    }
    for (ty, value) in [
        ("TINYINT", Literal::Int(1)),
        ("SMALLINT", Literal::Int(1)),
        ("INT", Literal::Int(1)),
        ("BIGINT", Literal::Int(1)),
        ("DATE", Literal::Int(1)),
        ("TIME(3)", Literal::Int(1)),
        ("INTERVAL YEAR TO MONTH", Literal::Int(1)),
        ("INTERVAL DAY TO SECOND", Literal::Int(1)),
        ("TIMESTAMP(3)", time.clone()),
        ("TIMESTAMP_LTZ(3)", time),
    ] {
        for op in OPS {
            let expected = matches!(op, Compare::Equal | Compare::NotEqual);
            assert_eq!(
                exact(ty, &compared(op, value.clone())),
                expected,
                "{ty} {op:?}"
            );
        }
        let values = vec![value.clone(), value];
        assert!(
            exact(
                ty,
                &Filter::In {
                    field: key(),
                    values
                }
            ),
            "{ty}"
        );
    }
    for (ty, value) in [
        ("CHAR(1)", Literal::Text("a".into())),
        ("BINARY(1)", Literal::Bytes(vec![1])),
        ("BOOLEAN", Literal::Bool(true)),
        ("FLOAT", Literal::Float(1.0)),
        ("DOUBLE", Literal::Float(1.0)),
        (
            "DECIMAL(5, 0)",
            Literal::Decimal(aqueduct_connector::row::Decimal {
                unscaled: 1,
                scale: 0,
            }),
        ),
    ] {
        assert!(
            OPS.iter()
                .all(|op| !exact(ty, &compared(*op, value.clone()))),
            "{ty}"
        );
        assert!(!exact(
            ty,
            &Filter::In {
                field: key(),
                values: vec![value]
            }
        ));
        assert!(exact(ty, &Filter::IsNull(key())) && exact(ty, &Filter::IsNotNull(key())));
    }
    // A literal of another type than the column's, and another column.
    assert!(!exact("STRING", &compared(Compare::Equal, Literal::Int(1))));
    assert!(!exact("STRING", &Filter::IsNull(FieldPath(vec![0]))));
    assert!(!exact("STRING", &Filter::IsNull(FieldPath(vec![1, 0]))));
}

#[test]
fn a_condition_that_no_row_meets_leaves_nothing() {
    let text = |op, text: &str| compared(op, Literal::Text(text.into()));
    for filters in [
        vec![Filter::IsNull(key())],
        vec![text(Compare::Equal, "")],
        vec![text(Compare::Less, "")],
        vec![text(Compare::LessOrEqual, "")],
        vec![text(Compare::Equal, &"x".repeat(MAX_ROW_KEY_BYTES + 1))],
        vec![text(Compare::Equal, "a"), text(Compare::Equal, "b")],
        vec![text(Compare::Less, "a"), text(Compare::Greater, "b")],
        vec![text(Compare::Equal, "a"), text(Compare::NotEqual, "a")],
        vec![text(Compare::Greater, "x")],
        vec![Filter::In {
            field: key(),
            values: vec![],
        }],
    ] {
        let within = [RowRange::parse("[a, x)").expect("a range")];
        assert!(
            narrowed(&schema("STRING"), &within, &filters).is_empty(),
            "{filters:?}"
        );
    }
    let beyond = compared(Compare::Equal, Literal::Int(300));
    assert!(narrowed(&schema("TINYINT"), &[], &[beyond]).is_empty());
    let beyond = compared(Compare::NotEqual, Literal::Int(300));
    assert_eq!(
        narrowed(&schema("TINYINT"), &[], &[beyond]),
        [RowRange::all()]
    );
}

#[test]
fn a_bound_longer_than_any_key_cuts_where_its_possible_part_does() {
    let at = vec![b'm'; MAX_ROW_KEY_BYTES];
    let beyond = [at.clone(), vec![b'm']].concat();
    let mut below = at.clone();
    below[MAX_ROW_KEY_BYTES - 1] = b'l';
    for op in OPS {
        let ranges = narrowed(
            &schema("BYTES"),
            &[],
            &[compared(op, Literal::Bytes(beyond.clone()))],
        );
        for key in [&b"a"[..], &below, &at, b"n", &at[..10]] {
            assert_eq!(
                read(&ranges, key),
                holds(&key, op, &beyond.as_slice()),
                "{op:?} {}",
                key.len()
            );
        }
    }
}

fn key_bytes() -> impl Strategy<Value = Vec<u8>> {
    // Few different bytes, so that keys meet, are prefixes of each other and lie on bounds.
    prop::collection::vec(prop::sample::select(vec![0_u8, 1, 0x7F, 0x80, 0xFF]), 0..4)
}

proptest! {
    #[test]
    fn conditions_on_bytes_read_exactly_what_meets_them(
        conditions in prop::collection::vec((0..OPS.len(), key_bytes()), 0..4),
        set in prop::option::of(prop::collection::vec(key_bytes(), 0..4)),
        range in prop::option::of((key_bytes(), key_bytes())),
        keys in prop::collection::vec(key_bytes(), 1..20),
    ) {
        let mut filters: Vec<Filter> = conditions
            .iter()
            .map(|(op, value)| compared(OPS[*op], Literal::Bytes(value.clone())))
            .collect();
        filters.extend(set.iter().map(|set| Filter::In {
            field: key(),
            values: set.iter().cloned().map(Literal::Bytes).collect(),
        }));
        let range = range
            .filter(|(start, end)| !start.is_empty() && start < end)
            .map(|(start, end)| RowRange::between(start, end).expect("bounds are not empty"));
        let requested = coalesce(range.iter().cloned().collect());
        let ranges = narrowed(&schema("BYTES"), &requested, &filters);
        prop_assert_eq!(&coalesce(ranges.clone()), &ranges);
        for key in keys.into_iter().filter(|key| !key.is_empty()) {
            let expected = conditions.iter().all(|(op, value)| holds(&key, OPS[*op], value))
                && set.as_ref().is_none_or(|set| set.contains(&key))
                && range.as_ref().is_none_or(|range| range.contains(&key));
            prop_assert_eq!(read(&ranges, &key), expected);
        }
    }

    /// Keys are decoded by their first bytes, whatever follows them.
    #[test]
    fn conditions_on_numbers_read_exactly_what_meets_them(
        wanted in prop::collection::vec(-3_i64..3, 1..4),
        equal in any::<bool>(),
        keys in prop::collection::vec((-3_i32..3, key_bytes()), 1..20),
    ) {
        let filters: Vec<Filter> = if equal {
            vec![Filter::In { field: key(), values: wanted.iter().map(|value| Literal::Int(*value)).collect() }]
        } else {
            wanted.iter().map(|value| compared(Compare::NotEqual, Literal::Int(*value))).collect()
        };
        let ranges = narrowed(&schema("INT"), &[], &filters);
        for (value, behind) in keys {
            let key = [&value.to_be_bytes(), behind.as_slice()].concat();
            prop_assert_eq!(read(&ranges, &key), wanted.contains(&value.into()) == equal);
        }
    }

    #[test]
    fn no_text_makes_parsing_ranges_panic(text in r"[\[\]\(\),;\\ ab]{0,20}") {
        // A refusal is fine, a panic is not.
        let _ = asked(&[("scan.row-ranges", &text)]);
    }
}
