//! Cursors over bytes in memory: splits, positions, pieces and bad records.

use aqueduct_connector::Timestamp;
use proptest::prelude::*;

use super::super::format::{Csv, CsvFormat, CsvRow, CsvRows, JsonLines, Lines};
use super::super::plan::{Compression, Planner};
use super::super::split::{FileRef, Packing, TO_THE_END};
use super::*;

fn split(start: u64, end: u64, position: Option<Position>) -> FileSplit {
    let file = FileRef {
        location: "/x".to_owned(),
        name: None,
        size_bytes: 0,
        etag: None,
        packing: Packing::Plain,
    };
    FileSplit {
        file,
        start,
        end,
        position,
    }
}

fn text_lines() -> impl FileFormat<Output = String> {
    Lines::new(|line: &[u8], out: &mut Collector<'_, String>| {
        out.emit(String::from_utf8_lossy(line).into_owned());
        Ok(())
    })
}

type RowFn = fn(CsvRow<'_>, &mut Collector<'_, Vec<String>>) -> Result<(), Malformed>;

/// Rows as their fields, by a header.
fn text_rows() -> CsvRows<Vec<String>, RowFn> {
    CsvRows::new(|row, out| {
        let field = |at| String::from_utf8_lossy(row.field(at).unwrap_or(b"")).into_owned();
        out.emit((0..row.len()).map(field).collect());
        Ok(())
    })
}

/// Values, each with the position behind it.
type Values<T> = Vec<(T, Position)>;

/// Reads a split to its end.
fn read<F: FileFormat>(
    format: F,
    content: &[u8],
    split: &FileSplit,
    piece_bytes: usize,
    policy: MalformedPolicy,
) -> Result<(Values<F::Output>, Tally), BadRecord> {
    let mut cursor = Cursor::new(format, split, 1000, policy);
    if cursor.wants_header() {
        let header = content
            .split(|byte| *byte == b'\n')
            .next()
            .expect("one line at least");
        cursor.header(header)?;
    }
    let from = usize::try_from(cursor.feed_from())
        .expect("small")
        .min(content.len());
    let mut pieces = content[from..].chunks(piece_bytes);
    let limits = Limits {
        records: 3,
        bytes: 50,
    };
    let (mut values, mut total) = (Vec::new(), Tally::default());
    loop {
        let (mut records, mut emission) = (Vec::new(), Emission::new());
        let mut tally = Tally::default();
        let filled = cursor.fill(limits, &mut tally, None, &mut records, &mut emission)?;
        total.malformed += tally.malformed;
        total.skipped += tally.skipped;
        total.bytes += tally.bytes;
        emission.emitted(0);
        for record in records {
            let position = emission.emitted(1).expect("one record an input here");
            values.push((record.value, position));
        }
        match filled {
            Filled::Full => {}
            Filled::NeedMore => match pieces.next() {
                Some(piece) => cursor.push(piece),
                None => cursor.end_of_input(),
            },
            Filled::Done => return Ok((values, total)),
        }
    }
}

fn values<F: FileFormat>(
    format: F,
    content: &[u8],
    split: &FileSplit,
    piece: usize,
) -> Vec<F::Output> {
    let (values, _) =
        read(format, content, split, piece, MalformedPolicy::Fail).expect("nothing is malformed");
    values.into_iter().map(|(value, _)| value).collect()
}

fn whole() -> FileSplit {
    split(0, TO_THE_END, None)
}

proptest! {
    /// Wherever a file is cut, its splits read each line once and in order.
    #[test]
    fn splits_cover_each_line_once(
        content in "[ab\r\n]{0,60}",
        mut cuts in proptest::collection::vec(1_u64..70, 0..6),
        piece in 1_usize..20,
    ) {
        let content = content.as_bytes();
        let expected = values(text_lines(), content, &whole(), 1000);
        cuts.sort_unstable();
        cuts.dedup();
        let borders: Vec<u64> = [0].into_iter().chain(cuts).chain([TO_THE_END]).collect();
        let found: Vec<String> = borders
            .windows(2)
            .flat_map(|pair| values(text_lines(), content, &split(pair[0], pair[1], None), piece))
            .collect();
        prop_assert_eq!(found, expected);
    }

    /// From the position behind any line of any split, the rest of the split is read.
    #[test]
    fn every_position_restores(
        content in "[ab\r\n]{0,60}",
        start in 0_u64..40,
        len in 1_u64..40,
        piece in 1_usize..20,
    ) {
        let content = content.as_bytes();
        let fresh = split(start, start + len, None);
        let (all, _) = read(text_lines(), content, &fresh, piece, MalformedPolicy::Fail)
            .expect("nothing is malformed");
        for (nth, (_, position)) in all.iter().enumerate() {
            let restored = split(start, start + len, Some(*position));
            let (rest, _) = read(text_lines(), content, &restored, piece, MalformedPolicy::Fail)
                .expect("nothing is malformed");
            prop_assert_eq!(&rest, &all[nth + 1..]);
        }
    }

    /// Rows whose quoted fields span lines restore at every position.
    #[test]
    fn every_position_of_quoted_rows_restores(
        rows in proptest::collection::vec("[ab\r\n,\"]{0,8}", 1..8),
        piece in 1_usize..20,
    ) {
        let quoted: Vec<String> =
            rows.iter().map(|row| format!("\"{}\",x\r\n", row.replace('"', "\"\""))).collect();
        let content = format!("one,two\r\n{}", quoted.concat());
        let content = content.as_bytes();
        let (all, _) = read(text_rows(), content, &whole(), piece, MalformedPolicy::Fail)
            .expect("nothing is malformed");
        let fields: Vec<&str> = all.iter().map(|(fields, _)| fields[0].as_str()).collect();
        prop_assert_eq!(&fields, &rows);
        for (nth, (_, position)) in all.iter().enumerate() {
            let restored = split(0, TO_THE_END, Some(*position));
            let (rest, _) = read(text_rows(), content, &restored, piece, MalformedPolicy::Fail)
                .expect("nothing is malformed");
            prop_assert_eq!(&rest, &all[nth + 1..]);
        }
    }

    /// Planned splits of any size adjoin and cover a splittable CSV file once, header excepted.
    #[test]
    fn planned_splits_of_csv_cover_each_row_once(
        rows in proptest::collection::vec("[ab]{0,6}", 0..20),
        split_bytes in 1_u64..50,
        piece in 1_usize..20,
    ) {
        let content: String =
            ["h,i\n".to_owned()].into_iter().chain(rows.iter().map(|row| format!("{row},1\n"))).collect();
        let count = (content.len() as u64).div_ceil(split_bytes);
        let border = |nth| content.len() as u64 * nth / count;
        let mut format = text_rows();
        format.dialect_mut().splittable = true;
        let found: Vec<String> = (0..count)
            .flat_map(|nth| {
                let end = if nth + 1 == count { TO_THE_END } else { border(nth + 1) };
                values(format.clone(), content.as_bytes(), &split(border(nth), end, None), piece)
            })
            .map(|mut fields| fields.swap_remove(0))
            .collect();
        prop_assert_eq!(found, rows);
    }
}

#[test]
fn an_empty_file_has_no_records_and_a_missing_last_line_end_loses_none() {
    assert!(values(text_lines(), b"", &whole(), 10).is_empty());
    assert!(values(text_rows(), b"", &whole(), 10).is_empty());
    assert!(values(text_rows(), b"a,b", &whole(), 10).is_empty());
    assert_eq!(values(text_rows(), b"a,b\n1,2", &whole(), 10), [["1", "2"]]);
}

#[test]
fn blank_lines_and_a_byte_order_mark_are_passed_over() {
    let json = b"\xef\xbb\xbf1\r\n\r\n\n2\n";
    assert_eq!(values(JsonLines::<u32>::new(), json, &whole(), 3), [1, 2]);
    let csv = b"\xef\xbb\xbf\na,b\n\n1,2\n\n";
    assert_eq!(values(text_rows(), csv, &whole(), 3), [["1", "2"]]);
    assert_eq!(
        values(text_lines(), b"\na\n", &whole(), 3),
        ["", "a"],
        "lines keep blank ones"
    );
}

#[test]
fn a_bad_record_fails_by_number_or_is_dropped_and_counted() {
    let content = b"1\n2\nx\n4\ny\n6\n";
    let json = JsonLines::<u32>::new();
    let bad = read(json.clone(), content, &whole(), 4, MalformedPolicy::Fail).expect_err("fails");
    assert_eq!((bad.line, bad.offset_bytes), (3, 4));
    let (kept, tally) =
        read(json.clone(), content, &whole(), 99, MalformedPolicy::Drop).expect("drops");
    assert_eq!(
        kept.iter().map(|(value, _)| *value).collect::<Vec<_>>(),
        [1, 2, 4, 6]
    );
    assert_eq!((tally.malformed, tally.bytes), (2, 12));
    // A dropped line is behind the position once its successor was emitted.
    assert_eq!(kept[1].1.lines, 3, "behind `x` as well");
    // Lines of a later split are counted from its own first line.
    let bad = read(
        json,
        content,
        &split(3, TO_THE_END, None),
        4,
        MalformedPolicy::Fail,
    );
    let bad = bad.expect_err("fails");
    assert_eq!((bad.line, bad.offset_bytes), (1, 4));
}

#[test]
fn a_record_too_long_is_malformed_like_any_other() {
    let content = [&[b'1'; 1001][..], b"\n2\n"].concat();
    let json = JsonLines::<serde_json::Value>::new();
    let bad = read(json.clone(), &content, &whole(), 64, MalformedPolicy::Fail).expect_err("long");
    assert!(
        bad.reason
            .to_string()
            .contains("scan.files.max-line-length"),
        "{bad:?}"
    );
    let (kept, tally) = read(json, &content, &whole(), 64, MalformedPolicy::Drop).expect("drops");
    assert_eq!(
        (kept.len(), tally.malformed, tally.bytes),
        (1, 1, content.len() as u64)
    );
}

#[test]
fn a_bad_header_fails_whatever_the_policy() {
    let result = read(
        text_rows(),
        b"a,a\n1,2\n",
        &whole(),
        9,
        MalformedPolicy::Drop,
    );
    assert_eq!(result.expect_err("a name twice").line, 1);
}

#[test]
fn what_a_malformed_record_emitted_is_withdrawn() {
    let halves = Lines::new(|line: &[u8], out: &mut Collector<'_, u8>| {
        out.emit(line[0]);
        if line == b"bad" {
            Err(Malformed::new("bad"))
        } else {
            Ok(())
        }
    });
    let (kept, _) =
        read(halves, b"a\nbad\nc\n", &whole(), 9, MalformedPolicy::Drop).expect("drops");
    assert_eq!(
        kept.iter().map(|(value, _)| *value).collect::<Vec<_>>(),
        [b'a', b'c']
    );
}

#[test]
fn event_times_come_from_values_unless_the_format_gave_one() {
    let format = Lines::new(|line: &[u8], out: &mut Collector<'_, usize>| {
        match line.len() {
            1 => out.emit(1),
            len => out.emit_at(len, Timestamp::from_millis(-1)),
        }
        Ok(())
    });
    let mut cursor = Cursor::new(format, &whole(), 1000, MalformedPolicy::Fail);
    cursor.push(b"a\nbb\n");
    cursor.end_of_input();
    let (mut records, mut emission) = (Vec::new(), Emission::new());
    let timestamp_of = |value: &usize| i64::try_from(*value).ok().map(Timestamp::from_millis);
    let limits = Limits {
        records: 10,
        bytes: 100,
    };
    let filled = cursor.fill(
        limits,
        &mut Tally::default(),
        Some(&timestamp_of),
        &mut records,
        &mut emission,
    );
    assert_eq!(filled, Ok(Filled::Done));
    let times: Vec<_> = records
        .iter()
        .filter_map(|record| record.timestamp)
        .collect();
    assert_eq!(
        times,
        [Timestamp::from_millis(1), Timestamp::from_millis(-1)]
    );
}

#[test]
fn positions_wait_for_every_record_of_their_line() {
    let twice = Lines::new(|line: &[u8], out: &mut Collector<'_, u8>| {
        line.iter().for_each(|byte| out.emit(*byte));
        Ok(())
    });
    let mut cursor = Cursor::new(twice, &whole(), 1000, MalformedPolicy::Fail);
    cursor.push(b"ab\n\nc\n");
    cursor.end_of_input();
    let (mut records, mut emission) = (Vec::new(), Emission::new());
    let mut tally = Tally::default();
    let limits = Limits {
        records: 10,
        bytes: 100,
    };
    cursor
        .fill(limits, &mut tally, None, &mut records, &mut emission)
        .expect("nothing is bad");
    assert_eq!((records.len(), tally.skipped), (3, 1));
    assert_eq!(emission.emitted(1), None, "half a line");
    let offset = |position: Option<Position>| position.map(|position| position.offset_bytes);
    assert_eq!(offset(emission.emitted(1)), Some(4), "the blank line too");
    assert_eq!(offset(emission.emitted(1)), Some(6));
}

#[tokio::test]
async fn a_path_listed_twice_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("a.json");
    std::fs::write(&path, "1\n").expect("writable");
    let path = path.to_str().expect("UTF-8").to_owned();
    let both = [path, dir.path().to_str().expect("UTF-8").to_owned()];
    let planner = Planner {
        paths: both.into(),
        compression: Compression::ByExtension,
        splittable: true,
        split_bytes: 100,
    };
    let error = planner.plan().await.expect_err("twice").to_string();
    assert!(error.contains("a.json twice"), "{error}");
}

#[test]
fn csv_reads_serde_types_by_column() {
    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Row {
        b: u32,
        a: Option<String>,
    }
    let mut format = Csv::<Row>::new();
    format.dialect_mut().delimiter = b';';
    format.dialect_mut().columns = Some(vec!["a".to_owned(), "b".to_owned()]);
    let rows = values(format.clone(), b"x;1\n;2\n", &whole(), 3);
    assert_eq!(
        rows,
        [
            Row {
                b: 1,
                a: Some("x".to_owned())
            },
            Row { b: 2, a: None }
        ]
    );
    let bad = read(
        format.clone(),
        b"x;1\ny;SECRET\n",
        &whole(),
        3,
        MalformedPolicy::Fail,
    );
    let bad = bad.expect_err("not a number");
    assert!(
        bad.line == 2 && !bad.reason.to_string().contains("SECRET"),
        "{bad:?}"
    );
}
