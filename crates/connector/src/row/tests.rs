//! What is written is read, broken bytes are refused, and the bytes are those of the layout.

use super::*;
use crate::types::LogicalType;

fn one(arity: usize, fill: impl FnOnce(&mut RowWriter<'_>)) -> Vec<u8> {
    let mut batch = RowBatch::new();
    batch.push(None, RowKind::UpdateAfter, arity, fill);
    batch
        .iter()
        .map(|row| row.bytes.to_vec())
        .next()
        .unwrap_or_default()
}

fn element(text: &str) -> DataType {
    LogicalType::parse(text).expect("a type").data
}

use crate::types::DataType;

#[test]
fn values_at_both_ends_of_their_range_come_back() {
    let times = [
        RowTime {
            millis: i64::MIN,
            nanos: 999_999,
        },
        RowTime {
            millis: -1,
            nanos: 1,
        },
        RowTime {
            millis: i64::MAX,
            nanos: 0,
        },
    ];
    let decimals = [
        0,
        1,
        -1,
        127,
        128,
        -128,
        -129,
        99_999_999_999_999_999_999_999_999_999_999_999_999_i128,
        -99_999_999_999_999_999_999_999_999_999_999_999_999_i128,
    ];
    let texts = ["", "1234567", "12345678", "\u{1f600}\u{10ffff}", "é\u{0}"];
    for (time, decimal) in times
        .iter()
        .flat_map(|t| decimals.iter().map(move |d| (*t, *d)))
    {
        let decimal = Decimal {
            unscaled: decimal,
            scale: 10,
        };
        let bytes = one(12, |row| {
            row.bool(0, true);
            row.i8(1, i8::MIN);
            row.i16(2, i16::MAX);
            row.i32(3, i32::MIN);
            row.i64(4, i64::MAX);
            row.f32(5, f32::MIN);
            row.f64(6, f64::NAN);
            row.time(7, time, 9);
            row.time(8, time, 3);
            row.decimal(9, decimal, 38);
            row.array(10, &DataType::string(), texts.len(), |array| {
                for (at, text) in texts.iter().enumerate() {
                    array.str(at, text);
                }
            });
        });
        let row = RowRef::new(&bytes, 12).expect("a row");
        assert_eq!(row.kind(), RowKind::UpdateAfter);
        assert!(row.bool(0));
        assert_eq!((row.i8(1), row.i16(2)), (i8::MIN, i16::MAX));
        assert_eq!((row.i32(3), row.i64(4)), (i32::MIN, i64::MAX));
        assert_eq!(row.f32(5), f32::MIN);
        assert!(row.f64(6).is_nan());
        assert_eq!(row.time(7, 9), Ok(time));
        assert_eq!(row.time(8, 3), Ok(RowTime::from_millis(time.millis)));
        assert_eq!(row.decimal(9, 38, 10), Ok(decimal));
        let array = row.array(10, &DataType::string()).expect("an array");
        assert_eq!(array.len(), texts.len());
        for (at, text) in texts.iter().enumerate() {
            assert_eq!(array.str(at), Ok(*text));
        }
        assert!(row.is_null(11) && !row.is_null(10));
    }
}

#[test]
fn nested_values_keep_to_their_own_offsets() {
    let inner = element("ROW<a STRING, b ARRAY<SMALLINT>>");
    let bytes = one(2, |row| {
        row.str(0, "something in front of it");
        row.map(
            1,
            (&DataType::string(), &inner),
            2,
            |keys| {
                keys.str(0, "a key beyond a slot");
                keys.str(1, "b");
            },
            |values| {
                values.row(0, 2, |row| {
                    row.str(0, "a value beyond a slot");
                    row.array(1, &DataType::SmallInt, 3, |array| {
                        array.i16(0, -2);
                        array.i16(2, 7);
                    });
                });
            },
        );
    });
    let row = RowRef::new(&bytes, 2).expect("a row");
    let map = row.map(1, &DataType::string(), &inner).expect("a map");
    assert_eq!(map.len(), 2);
    assert_eq!(map.keys.str(0), Ok("a key beyond a slot"));
    assert_eq!(map.keys.str(1), Ok("b"));
    assert!(map.values.is_null(1));
    let value = map.values.row(0, 2).expect("a row");
    assert_eq!(value.str(0), Ok("a value beyond a slot"));
    let array = value.array(1, &DataType::SmallInt).expect("an array");
    assert_eq!(
        (array.i16(0), array.is_null(1), array.i16(2)),
        (-2, true, 7)
    );
}

#[test]
#[cfg(target_endian = "little")]
fn the_bytes_are_those_of_the_layout() {
    let bytes = one(3, |row| {
        row.i32(0, 258);
        row.str(1, "abc");
        row.bytes(2, b"123456789");
    });
    let mut expected = vec![2, 0, 0, 0, 0, 0, 0, 0];
    expected.extend([2, 1, 0, 0, 0, 0, 0, 0]);
    expected.extend(*b"abc\0\0\0\0\x83");
    expected.extend([9, 0, 0, 0, 32, 0, 0, 0]);
    expected.extend(*b"123456789\0\0\0\0\0\0\0");
    assert_eq!(bytes, expected);
}

#[test]
fn sixty_fields_and_more_have_their_own_null_bits() {
    for arity in [55, 56, 57, 64, 120, 121] {
        let bytes = one(arity, |row| {
            for entry in (0..arity).step_by(2) {
                row.i64(entry, i64::try_from(entry).expect("small"));
            }
        });
        let row = RowRef::new(&bytes, arity).expect("a row");
        for entry in 0..arity {
            assert_eq!(row.is_null(entry), entry % 2 == 1, "{entry} of {arity}");
            if entry % 2 == 0 {
                assert_eq!(row.i64(entry), i64::try_from(entry).expect("small"));
            }
        }
    }
}

#[test]
fn a_failed_row_leaves_the_batch_as_it_was() {
    let mut batch = RowBatch::new();
    batch.push(Some(Timestamp::from_millis(5)), RowKind::Insert, 1, |row| {
        row.i32(0, 1)
    });
    let before = batch.as_bytes().to_vec();
    assert_eq!(
        batch.try_push(None, RowKind::Insert, 1, |row| {
            row.str(0, "longer than a slot");
            Err("no")
        }),
        Err("no")
    );
    assert_eq!(batch.as_bytes(), before);
    assert_eq!(batch.len(), 1);
    let row = batch.iter().next().expect("the row");
    assert_eq!(row.timestamp, Some(Timestamp::from_millis(5)));
    batch.clear(1 << 16);
    assert!(batch.is_empty() && batch.iter().next().is_none());
}

#[test]
fn random_bytes_are_read_or_refused_and_never_panic() {
    let mut random = fastrand::Rng::with_seed(5);
    let inner = element("ROW<a STRING, b ARRAY<INT>>");
    for _ in 0..200_000 {
        let mut bytes: Vec<u8> = (0..random.usize(0..160)).map(|_| random.u8(..)).collect();
        if random.bool() {
            // Small numbers make offsets that lead somewhere.
            for byte in &mut bytes {
                if random.u8(..) < 200 {
                    *byte &= 0x1F * u8::from(random.u8(..) < 60);
                }
            }
        }
        let Ok(row) = RowRef::new(&bytes, 3) else {
            continue;
        };
        let _ = (
            row.str(0),
            row.bytes(1),
            row.decimal(2, 38, 0),
            row.time(0, 9),
        );
        if let Ok(nested) = row.row(1, 2) {
            let _ = (
                nested.str(0),
                nested.array(1, &DataType::Int).map(|array| array.len()),
            );
        }
        if let Ok(array) = row.array(2, &inner) {
            for entry in 0..array.len().min(4) {
                let _ = (
                    array.is_null(entry),
                    array.row(entry, 2).map(|row| row.str(0)),
                );
            }
        }
        if let Ok(map) = row.map(0, &DataType::string(), &DataType::BigInt) {
            for entry in 0..map.len().min(4) {
                let _ = (map.keys.str(entry), map.values.i64(entry));
            }
        }
    }
}
