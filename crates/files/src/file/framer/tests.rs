//! Framing against a plain model, over all cuts of the input into pieces.

use proptest::prelude::*;

use super::*;

const CSV: Option<Quoting> = Some(Quoting {
    delimiter: b',',
    quote: b'"',
});

/// What came out, in words: records as text, the rest by name.
fn frames(pieces: &[&[u8]], quoting: Option<Quoting>, max_bytes: usize) -> Vec<String> {
    let mut framer = Framer::new(quoting, max_bytes);
    let mut pieces = pieces.iter();
    let mut out = Vec::new();
    loop {
        match framer.next() {
            Frame::Record(range) => {
                out.push(String::from_utf8_lossy(framer.slice(range)).into_owned());
            }
            Frame::NeedMore => match pieces.next() {
                Some(piece) => framer.push(piece),
                None => framer.end(),
            },
            Frame::End => {
                let total: usize = out.len();
                assert!(framer.lines() <= total as u64 + framer.consumed());
                return out;
            }
            Frame::TooLong => out.push("<too long>".to_owned()),
            Frame::Skipped => out.push("<skipped>".to_owned()),
            Frame::Unclosed => out.push("<unclosed>".to_owned()),
        }
    }
}

#[test]
fn lines_end_with_either_line_end_and_the_last_may_have_none() {
    assert_eq!(
        frames(&[b"a\r\n\nb\rc\nlast"], None, 9),
        ["a", "", "b\rc", "last"]
    );
    assert_eq!(frames(&[b"a\n"], None, 9), ["a"]);
    assert!(frames(&[b""], None, 9).is_empty());
}

#[test]
fn a_quoted_field_spans_lines_and_a_stray_quote_does_not() {
    let rows: &[u8] = b"a,\"x\ny\",\"q\"\"\nz\"\n5\" pipe,b\n\"end\"";
    assert_eq!(
        frames(&[rows], CSV, 99),
        ["a,\"x\ny\",\"q\"\"\nz\"", "5\" pipe,b", "\"end\""]
    );
    assert_eq!(
        frames(&[rows], None, 99).len(),
        5,
        "without quoting every line is one"
    );
}

#[test]
fn a_quote_that_is_never_closed_costs_its_own_line_only() {
    assert_eq!(
        frames(&[b"a\n\"open\nb\nc"], CSV, 99),
        ["a", "<unclosed>", "b", "c"]
    );
    assert_eq!(frames(&[b"\"open"], CSV, 99), ["<unclosed>"]);
    // Not closed within the greatest length, though later.
    assert_eq!(
        frames(&[b"\"open\nbbbbbb\nc\"\n"], CSV, 8),
        ["<unclosed>", "bbbbbb", "c\""]
    );
}

#[test]
fn a_long_line_is_reported_and_passed_over_without_being_held() {
    assert_eq!(
        frames(&[b"abc\nabcd\nab"], None, 3),
        ["abc", "<too long>", "<skipped>", "ab"]
    );
    let mut framer = Framer::new(None, 10);
    framer.push(&[b'x'; 100]);
    assert_eq!(framer.next(), Frame::TooLong);
    for _ in 0..1000 {
        assert_eq!(framer.next(), Frame::NeedMore);
        framer.push(&[b'x'; 100]);
    }
    assert!(
        framer.buffer.capacity() < 1000,
        "{}",
        framer.buffer.capacity()
    );
    framer.push(b"\nok\n");
    assert_eq!(framer.next(), Frame::Skipped);
    let Frame::Record(range) = framer.next() else {
        panic!("a record")
    };
    assert_eq!(framer.slice(range), b"ok");
}

/// Rows as the csv crate sees them, the independent opinion.
fn rows_of_csv_crate(input: &[u8]) -> Vec<Vec<Vec<u8>>> {
    csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .terminator(csv::Terminator::Any(b'\n'))
        .from_reader(input)
        .byte_records()
        .map(|row| {
            row.expect("bytes always parse")
                .iter()
                .map(<[u8]>::to_vec)
                .collect()
        })
        .collect()
}

proptest! {
    #[test]
    fn the_cut_into_pieces_does_not_matter(
        input in "[ab,\"\r\n]{0,60}",
        cuts in proptest::collection::vec(0_usize..60, 0..6),
        quoted in any::<bool>(),
        max in 1_usize..12,
    ) {
        let quoting = CSV.filter(|_| quoted);
        let whole = frames(&[input.as_bytes()], quoting, 99);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(input.len())).collect();
        cuts.extend([0, input.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|w| &input.as_bytes()[w[0]..w[1]]).collect();
        prop_assert_eq!(&frames(&pieces, quoting, 99), &whole);
        // With a bound, lines without quotes must agree as well.
        if !quoted {
            let bounded = frames(&[input.as_bytes()], None, max);
            prop_assert_eq!(frames(&pieces, None, max), bounded);
        }
    }

    #[test]
    fn rows_end_where_the_csv_crate_ends_them(input in "[ab,\"\n]{0,60}") {
        let ours = frames(&[input.as_bytes()], CSV, 99);
        prop_assume!(!ours.iter().any(|frame| frame == "<unclosed>"));
        let ours: Vec<_> = ours
            .iter()
            .filter(|frame| !frame.is_empty())
            .flat_map(|frame| rows_of_csv_crate(frame.as_bytes()))
            .collect();
        prop_assert_eq!(ours, rows_of_csv_crate(input.as_bytes()));
    }
}
