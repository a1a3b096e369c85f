//! Tests of filters: the limits of the service, the rules of their shape, what is printed.

use proptest::prelude::*;

use super::*;

fn refused(filter: &Filter) -> String {
    let error = filter.check().expect_err("must be refused").to_string();
    assert!(error.contains("'scan.filter'"), "{error}");
    error
}

/// A chain of two whose second part is the next, `depth` deep in all.
fn nested(depth: usize) -> Filter {
    (1..depth).fold(Filter::pass_all(), |inner, _| {
        Filter::chain([Filter::pass_all(), inner])
    })
}

#[test]
fn twenty_deep_passes_and_twenty_one_is_refused() {
    assert_eq!(nested(20).check(), Ok(()));
    assert!(refused(&nested(21)).contains("21 deep"));
}

#[test]
fn a_filter_of_twenty_kibibytes_is_refused_and_one_byte_less_passes() {
    let of = |pattern: usize| Filter::value_regex(vec![b'a'; pattern]);
    let overhead = of(20_000).encoded_len() - 20_000;
    assert_eq!(of(MAX_FILTER_BYTES - 1 - overhead).check(), Ok(()));
    assert_eq!(
        of(MAX_FILTER_BYTES - 1 - overhead).encoded_len(),
        MAX_FILTER_BYTES - 1
    );
    refused(&of(MAX_FILTER_BYTES - overhead));
}

#[test]
fn broken_rules_are_found_however_deep_they_sit() {
    let included = |at: &'static str| Bound::Included(Bytes::from(at));
    let excluded = |at: &'static str| Bound::Excluded(Bytes::from(at));
    for broken in [
        Filter::row_sample(0.0),
        Filter::row_sample(1.0),
        Filter::row_sample(f64::NAN),
        Filter::cells_per_row(0),
        Filter::cells_per_column(u32::MAX),
        Filter::cells_per_row_offset(0),
        Filter::label(""),
        Filter::label("Upper"),
        Filter::label("sixteen-letters-"),
        Filter::family_exact("a b"),
        Filter::family_exact(""),
        Filter::qualifier_range("cf", excluded("a"), included("a")),
        Filter::qualifier_range("", included("a"), included("b")),
        Filter::value_range(included("b"), excluded("b")),
        Filter::timestamp_range(Some(-1), None),
        Filter::timestamp_range(Some(5), Some(5)),
        Filter::timestamp_range(None, Some(0)),
        Filter::condition(Filter::pass_all(), None, None),
        Filter::condition(Filter::pass_all(), Some(Filter::sink()), None),
        Filter::condition(
            Filter::chain([Filter::pass_all(), Filter::sink()]),
            Some(Filter::pass_all()),
            None,
        ),
    ] {
        refused(&broken);
        refused(&Filter::chain([
            Filter::pass_all(),
            Filter::interleave([Filter::block_all(), broken]),
        ]));
    }
}

#[test]
fn chains_and_interleaves_of_less_than_two_are_no_wrappers() {
    assert_eq!(Filter::chain([]), Filter::pass_all());
    assert_eq!(Filter::interleave([]), Filter::block_all());
    assert_eq!(Filter::chain([Filter::label("x")]), Filter::label("x"));
    assert_eq!(Filter::interleave([Filter::label("x")]).depth(), 1);
}

#[test]
fn debug_shows_no_pattern() {
    let shown = format!("{:?}", Filter::value_exact(b"secret"));
    assert!(!shown.contains("secret"), "{shown}");
}

fn any_filter() -> impl Strategy<Value = Filter> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..20);
    let leaf = prop_oneof![
        Just(Filter::pass_all()),
        Just(Filter::sink()),
        Just(Filter::strip_value()),
        bytes().prop_map(|bytes| Filter::value_exact(&bytes)),
        bytes().prop_map(|bytes| Filter::row_key_exact(&bytes)),
        any::<u32>().prop_map(Filter::cells_per_row),
        any::<f64>().prop_map(Filter::row_sample),
        (any::<Option<i64>>(), any::<Option<i64>>())
            .prop_map(|(start, end)| Filter::timestamp_range(start, end)),
        "[a-z-]{0,20}".prop_map(|label| Filter::label(&label)),
    ];
    leaf.prop_recursive(24, 60, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Filter::chain),
            prop::collection::vec(inner.clone(), 0..3).prop_map(Filter::interleave),
            (
                inner.clone(),
                prop::option::of(inner.clone()),
                prop::option::of(inner)
            )
                .prop_map(|(predicate, then, otherwise)| Filter::condition(
                    predicate, then, otherwise
                )),
        ]
    })
}

/// Depth as the generated type nests, counted apart from the builder.
fn wire_depth(filter: &wire::RowFilter) -> usize {
    let parts: Vec<&wire::RowFilter> = match &filter.filter {
        Some(Kind::Chain(chain)) => chain.filters.iter().collect(),
        Some(Kind::Interleave(interleave)) => interleave.filters.iter().collect(),
        Some(Kind::Condition(condition)) => [
            &condition.predicate_filter,
            &condition.true_filter,
            &condition.false_filter,
        ]
        .into_iter()
        .flatten()
        .map(|part| &**part)
        .collect(),
        _ => vec![],
    };
    1 + parts.into_iter().map(wire_depth).max().unwrap_or(0)
}

proptest! {
    #[test]
    fn what_passes_the_check_keeps_the_services_limits(filter in any_filter()) {
        prop_assert_eq!(filter.depth(), wire_depth(&filter.to_wire()));
        if filter.check().is_ok() {
            prop_assert!(filter.encoded_len() < MAX_FILTER_BYTES);
            prop_assert!(filter.depth() <= MAX_FILTER_DEPTH);
        }
    }

    #[test]
    fn a_quoted_literal_matches_itself_and_nothing_else(
        literal in prop::collection::vec(any::<u8>(), 0..12),
        other in prop::collection::vec(any::<u8>(), 0..12),
    ) {
        // The `regex` crate reads text, so what the service reads as a literal byte is written as a number here.
        let mut pattern = String::from(r"(?-u)\A(?:");
        let quoted = quote(&literal);
        let mut rest = &quoted[..];
        loop {
            let (byte, tail) = match rest {
                [] => break,
                [b'\\', b'x', b'0', b'0', tail @ ..] => (0, tail),
                [b'\\', byte, tail @ ..] => {
                    prop_assert!(byte.is_ascii() && !byte.is_ascii_alphanumeric());
                    (*byte, tail)
                }
                [byte, tail @ ..] => {
                    prop_assert!(byte.is_ascii_alphanumeric() || *byte == b'_' || !byte.is_ascii());
                    (*byte, tail)
                }
            };
            pattern.push_str(&format!("\\x{byte:02X}"));
            rest = tail;
        }
        pattern.push_str(r")\z");
        let regex = regex::bytes::Regex::new(&pattern).expect("quoting gives a valid pattern");
        prop_assert!(regex.is_match(&literal));
        prop_assert_eq!(regex.is_match(&other), literal == other);
    }
}
