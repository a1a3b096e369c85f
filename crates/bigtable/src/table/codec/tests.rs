//! Every codec writes the bytes that users of HBase's layout know, and reads back what it wrote, at both ends of its range.

use aqueduct_connector::row::{RowBatch, RowKind, RowTime};
use proptest::prelude::*;

use super::*;

/// A value as tests write it.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(String),
    Bytes(Vec<u8>),
    Bool(bool),
    Int(i64),
    Float(f32),
    Double(f64),
    Decimal(i128),
    Time(i64),
}

fn data(ty: &str) -> DataType {
    LogicalType::parse(ty).expect("a type").data
}

fn codec(ty: &str) -> Codec {
    Codec::of(&LogicalType::parse(ty).expect("a type"), "c").expect("a type that can be stored")
}

fn narrow<T: TryFrom<i64>>(value: i64) -> T
where
    T::Error: std::fmt::Debug,
{
    T::try_from(value).expect("fits the type")
}

fn set(row: &mut RowWriter<'_>, ty: &DataType, value: &Value) {
    match (ty, value) {
        (_, Value::Text(text)) => row.str(0, text),
        (_, Value::Bytes(bytes)) => row.bytes(0, bytes),
        (_, Value::Bool(value)) => row.bool(0, *value),
        (DataType::TinyInt, Value::Int(value)) => row.i8(0, narrow(*value)),
        (DataType::SmallInt, Value::Int(value)) => row.i16(0, narrow(*value)),
        (DataType::BigInt | DataType::IntervalDayTime, Value::Int(value)) => row.i64(0, *value),
        (_, Value::Int(value)) => row.i32(0, narrow(*value)),
        (_, Value::Float(value)) => row.f32(0, *value),
        (_, Value::Double(value)) => row.f64(0, *value),
        (DataType::Decimal { precision, scale }, Value::Decimal(unscaled)) => {
            let value = Decimal {
                unscaled: *unscaled,
                scale: *scale,
            };
            row.decimal(0, value, *precision);
        }
        (DataType::Timestamp(p) | DataType::TimestampLtz(p), Value::Time(millis)) => {
            row.time(0, RowTime::from_millis(*millis), *p);
        }
        other => panic!("{other:?}"),
    }
}

fn get(row: &RowRef<'_>, ty: &DataType) -> Value {
    match ty {
        DataType::Char(_) | DataType::VarChar(_) => {
            Value::Text(row.str(0).expect("text").to_owned())
        }
        DataType::Binary(_) | DataType::VarBinary(_) => {
            Value::Bytes(row.bytes(0).expect("bytes").to_vec())
        }
        DataType::Boolean => Value::Bool(row.bool(0)),
        DataType::TinyInt => Value::Int(row.i8(0).into()),
        DataType::SmallInt => Value::Int(row.i16(0).into()),
        DataType::BigInt | DataType::IntervalDayTime => Value::Int(row.i64(0)),
        DataType::Float => Value::Float(row.f32(0)),
        DataType::Double => Value::Double(row.f64(0)),
        DataType::Decimal { precision, scale } => Value::Decimal(
            row.decimal(0, *precision, *scale)
                .expect("a decimal")
                .unscaled,
        ),
        DataType::Timestamp(p) | DataType::TimestampLtz(p) => {
            Value::Time(row.time(0, *p).expect("a time").millis)
        }
        _ => Value::Int(row.i32(0).into()),
    }
}

fn encode(ty: &str, value: &Value) -> Vec<u8> {
    let mut batch = RowBatch::new();
    batch.push(None, RowKind::Insert, 1, |row| set(row, &data(ty), value));
    let row = batch.iter().next().expect("one row");
    let row = RowRef::new(row.bytes, 1).expect("a row");
    let mut scratch = Scratch::default();
    codec(ty)
        .encode(&row, 0, &mut scratch)
        .expect("a good row")
        .to_vec()
}

fn decode(ty: &str, bytes: &[u8], trailing: Trailing) -> Result<Value, Fault> {
    let mut batch = RowBatch::new();
    batch.try_push(None, RowKind::Insert, 1, |row| {
        codec(ty).decode(bytes, trailing, row, 0)
    })?;
    let row = batch.iter().next().expect("one row");
    Ok(get(&RowRef::new(row.bytes, 1).expect("a row"), &data(ty)))
}

#[test]
fn the_bytes_are_those_that_hbase_writes() {
    for (ty, value, bytes) in [
        ("STRING", Value::Text("é".into()), &[0xC3, 0xA9][..]),
        ("CHAR(3)", Value::Text("abc".into()), b"abc"),
        ("BYTES", Value::Bytes(vec![0, 0xFF]), &[0, 0xFF]),
        ("BINARY(1)", Value::Bytes(vec![7]), &[7]),
        ("BOOLEAN", Value::Bool(true), &[0xFF]),
        ("BOOLEAN", Value::Bool(false), &[0]),
        ("TINYINT", Value::Int(-1), &[0xFF]),
        ("SMALLINT", Value::Int(258), &[1, 2]),
        ("INT", Value::Int(-2), &[0xFF, 0xFF, 0xFF, 0xFE]),
        ("DATE", Value::Int(19_000), &[0, 0, 0x4A, 0x38]),
        ("TIME(3)", Value::Int(86_399_999), &[0x05, 0x26, 0x5B, 0xFF]),
        ("INTERVAL YEAR TO MONTH", Value::Int(13), &[0, 0, 0, 13]),
        ("BIGINT", Value::Int(1), &[0, 0, 0, 0, 0, 0, 0, 1]),
        ("INTERVAL DAY TO SECOND", Value::Int(-1), &[0xFF; 8]),
        ("FLOAT", Value::Float(1.5), &[0x3F, 0xC0, 0, 0]),
        ("DOUBLE", Value::Double(-2.0), &[0xC0, 0, 0, 0, 0, 0, 0, 0]),
        ("TIMESTAMP(3)", Value::Time(1), &[0, 0, 0, 0, 0, 0, 0, 1]),
        ("TIMESTAMP_LTZ(0)", Value::Time(-1), &[0xFF; 8]),
        (
            "DECIMAL(10, 2)",
            Value::Decimal(1_234),
            &[0, 0, 0, 2, 4, 0xD2],
        ),
        ("DECIMAL(10, 2)", Value::Decimal(0), &[0, 0, 0, 2, 0]),
        ("DECIMAL(10, 0)", Value::Decimal(-1), &[0, 0, 0, 0, 0xFF]),
        (
            "DECIMAL(30, 1)",
            Value::Decimal(128),
            &[0, 0, 0, 1, 0, 0x80],
        ),
        ("DECIMAL(30, 1)", Value::Decimal(-128), &[0, 0, 0, 1, 0x80]),
    ] {
        assert_eq!(encode(ty, &value), bytes, "{ty} {value:?}");
        assert_eq!(decode(ty, bytes, Trailing::Reject), Ok(value), "{ty}");
    }
}

#[test]
fn both_ends_of_every_range_come_back() {
    let nines = |digits: u32| 10_i128.pow(digits) - 1;
    let mut cases = vec![
        ("STRING", Value::Text(String::new())),
        ("STRING", Value::Text("\u{0}\u{10FFFF}".repeat(1_000))),
        ("BYTES", Value::Bytes(Vec::new())),
        ("BYTES", Value::Bytes(vec![0xFF; 100_000])),
        ("FLOAT", Value::Float(f32::MIN)),
        ("FLOAT", Value::Float(f32::INFINITY)),
        ("FLOAT", Value::Float(f32::from_bits(1))),
        ("DOUBLE", Value::Double(f64::MAX)),
        ("DOUBLE", Value::Double(f64::NEG_INFINITY)),
    ];
    for value in [i64::MIN, i64::MAX] {
        cases.push(("BIGINT", Value::Int(value)));
        cases.push(("INTERVAL DAY TO SECOND", Value::Int(value)));
        cases.push(("TIMESTAMP(3)", Value::Time(value)));
        cases.push(("TIMESTAMP_LTZ(3)", Value::Time(value)));
    }
    for value in [i32::MIN, i32::MAX].map(i64::from) {
        cases.push(("INT", Value::Int(value)));
        cases.push(("DATE", Value::Int(value)));
        cases.push(("INTERVAL YEAR TO MONTH", Value::Int(value)));
    }
    for value in [i16::MIN, i16::MAX].map(i64::from) {
        cases.push(("SMALLINT", Value::Int(value)));
    }
    for value in [i8::MIN, i8::MAX].map(i64::from) {
        cases.push(("TINYINT", Value::Int(value)));
    }
    for (ty, digits) in [
        ("DECIMAL(1, 1)", 1),
        ("DECIMAL(18, 9)", 18),
        ("DECIMAL(19, 0)", 19),
        ("DECIMAL(38, 38)", 38),
    ] {
        cases.push((ty, Value::Decimal(nines(digits))));
        cases.push((ty, Value::Decimal(-nines(digits))));
    }
    for (ty, value) in cases {
        let bytes = encode(ty, &value);
        assert_eq!(decode(ty, &bytes, Trailing::Reject), Ok(value), "{ty}");
    }
    // Not equal to itself, so by its bits.
    let Ok(Value::Double(nan)) = decode(
        "DOUBLE",
        &encode("DOUBLE", &Value::Double(f64::NAN)),
        Trailing::Ignore,
    ) else {
        panic!("a double");
    };
    assert!(nan.is_nan());
}

#[test]
fn a_value_of_another_width_is_read_refused_or_cut_as_the_option_says() {
    for (ty, width) in [
        ("TINYINT", 1),
        ("SMALLINT", 2),
        ("INT", 4),
        ("DATE", 4),
        ("TIME(0)", 4),
        ("FLOAT", 4),
        ("BIGINT", 8),
        ("DOUBLE", 8),
        ("TIMESTAMP(3)", 8),
    ] {
        for short in 0..width {
            let fault = decode(ty, &vec![0; short], Trailing::Ignore).expect_err("too short");
            assert_eq!(
                fault,
                Fault::Width {
                    needed: width,
                    found: short
                }
            );
        }
        let exact: Vec<u8> = (1..=width)
            .map(|at| u8::try_from(at).expect("small"))
            .collect();
        let longer = [exact.clone(), vec![9]].concat();
        assert_eq!(
            decode(ty, &longer, Trailing::Ignore),
            decode(ty, &exact, Trailing::Reject)
        );
        let fault = decode(ty, &longer, Trailing::Reject).expect_err("too long");
        assert!(matches!(fault, Fault::Trailing { .. }), "{ty}");
    }
    assert_eq!(
        decode("BOOLEAN", &[1], Trailing::Ignore),
        Ok(Value::Bool(true))
    );
    for bad in [&[][..], &[0, 0], &[0xFF; 8]] {
        assert!(decode("BOOLEAN", bad, Trailing::Ignore).is_err(), "{bad:?}");
    }
    assert_eq!(
        decode("STRING", &[0xFF], Trailing::Ignore),
        Err(Fault::NotUtf8)
    );
    for bad in [&[][..], &[0; 4]] {
        assert!(decode("DECIMAL(5, 2)", bad, Trailing::Ignore).is_err());
    }
}

fn stored(scale: i32, digits: &[u8]) -> Vec<u8> {
    [&scale.to_be_bytes(), digits].concat()
}

#[test]
fn a_decimal_of_another_scale_is_rounded_half_away_from_zero_and_overflow_fails() {
    let read = |scale: i32, value: i64| {
        decode(
            "DECIMAL(5, 2)",
            &stored(scale, &value.to_be_bytes()),
            Trailing::Ignore,
        )
    };
    for (scale, value, unscaled) in [
        (3, 1_234_i64, 123),
        (3, 1_235, 124),
        (3, -1_235, -124),
        (3, -1_234, -123),
        (0, 12, 1_200),
        (-2, 9, 90_000),
        (2, 99_999, 99_999),
        (3, 999_994, 99_999),
        (18, i64::MAX, 922),
        (40, i64::MAX, 0),
        (i32::MAX, i64::MIN, 0),
        (i32::MIN, 0, 0),
    ] {
        assert_eq!(
            read(scale, value),
            Ok(Value::Decimal(unscaled)),
            "{value} at {scale}"
        );
    }
    for (scale, value) in [
        (2, 100_000),
        (3, 999_995),
        (0, 1_000),
        (-3, 1),
        (i32::MIN, 1),
        (0, i64::MIN),
    ] {
        let fault = read(scale, value).expect_err("too large");
        assert!(
            matches!(fault, Fault::Overflow { .. }),
            "{value} at {scale}"
        );
    }
    // Signs repeated in front change nothing; real digits beyond 16 bytes do.
    let mut long = vec![0; 40];
    long.push(7);
    assert_eq!(
        decode("DECIMAL(5, 2)", &stored(2, &long), Trailing::Ignore),
        Ok(Value::Decimal(7))
    );
    long[0] = 1;
    assert!(decode("DECIMAL(38, 2)", &stored(2, &long), Trailing::Ignore).is_err());
    let edge = 10_i128.pow(38) - 1;
    assert_eq!(
        decode(
            "DECIMAL(38, 0)",
            &stored(0, &edge.to_be_bytes()),
            Trailing::Ignore
        ),
        Ok(Value::Decimal(edge))
    );
    assert!(
        decode(
            "DECIMAL(38, 0)",
            &stored(0, &(edge + 1).to_be_bytes()),
            Trailing::Ignore
        )
        .is_err()
    );
    assert_eq!(
        decode(
            "DECIMAL(38, 0)",
            &stored(38, &i128::MAX.to_be_bytes()),
            Trailing::Ignore
        ),
        Ok(Value::Decimal(2))
    );
}

#[test]
fn null_is_the_literal_for_strings_and_no_byte_for_the_others() {
    assert!(codec("STRING").is_null(b"null", b"null"));
    assert!(!codec("STRING").is_null(b"", b"null"));
    assert!(codec("STRING").is_null(b"", b""));
    assert_eq!(codec("CHAR(2)").null(b"-"), b"-");
    for ty in ["BYTES", "INT", "BOOLEAN", "DECIMAL(3, 1)", "DOUBLE"] {
        assert!(codec(ty).is_null(b"", b"null") && !codec(ty).is_null(b"null", b"null"));
        assert_eq!(codec(ty).null(b"null"), b"");
    }
}

#[test]
fn types_that_cannot_be_stored_are_refused_by_the_column() {
    for ty in [
        "TIME(4)",
        "TIMESTAMP(4)",
        "TIMESTAMP_LTZ(9)",
        "TIMESTAMP(3) WITH TIME ZONE",
        "ARRAY<INT>",
        "MAP<INT, INT>",
        "MULTISET<INT>",
        "ROW<a INT>",
        "RAW('x', 'y')",
    ] {
        let ty = LogicalType::parse(ty).expect("a type");
        let text = Codec::of(&ty, "info.at").expect_err("refused").to_string();
        assert!(text.contains("'info.at'"), "{text}");
    }
}

proptest! {
    #[test]
    fn whatever_is_written_is_read_back(
        text in ".*",
        bytes in prop::collection::vec(any::<u8>(), 0..40),
        long in any::<i64>(),
        int in any::<i32>(),
        small in any::<i16>(),
        tiny in any::<i8>(),
        float in prop::num::f32::NORMAL | prop::num::f32::ZERO | prop::num::f32::SUBNORMAL,
        double in prop::num::f64::NORMAL | prop::num::f64::ZERO | prop::num::f64::SUBNORMAL,
        decimal in any::<i128>(),
        short in -999_i128..1_000,
        truth in any::<bool>(),
    ) {
        let edge = 10_i128.pow(38);
        for (ty, value) in [
            ("STRING", Value::Text(text)),
            ("BYTES", Value::Bytes(bytes)),
            ("BIGINT", Value::Int(long)),
            ("TIMESTAMP(2)", Value::Time(long)),
            ("INT", Value::Int(int.into())),
            ("SMALLINT", Value::Int(small.into())),
            ("TINYINT", Value::Int(tiny.into())),
            ("FLOAT", Value::Float(float)),
            ("DOUBLE", Value::Double(double)),
            ("DECIMAL(38, 4)", Value::Decimal(decimal % edge)),
            ("DECIMAL(3, 1)", Value::Decimal(short)),
            ("BOOLEAN", Value::Bool(truth)),
        ] {
            let bytes = encode(ty, &value);
            prop_assert_eq!(decode(ty, &bytes, Trailing::Reject), Ok(value));
        }
    }

    #[test]
    fn no_bytes_make_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        for ty in ["STRING", "BOOLEAN", "TINYINT", "INT", "BIGINT", "DOUBLE", "DECIMAL(38, 38)", "DECIMAL(1, 0)"] {
            for trailing in [Trailing::Ignore, Trailing::Reject] {
                // A refusal is fine, a panic is not.
                let _ = decode(ty, &bytes, trailing);
            }
        }
    }

    /// Against arithmetic on text: the digits are cut behind the column's places, and the next digit decides.
    #[test]
    fn rescaling_is_what_one_does_on_paper(value in -1_000_000_000_i64..1_000_000_000, scale in 0_i32..12) {
        let digits = format!("{:020}", value.unsigned_abs());
        let (whole, behind) = digits.split_at(20 - usize::try_from(scale).expect("not negative"));
        let behind = format!("{behind}000");
        let cut: i128 = format!("{whole}{}", &behind[..2]).parse().expect("digits");
        let up = behind.as_bytes()[2] >= b'5';
        let expected = (cut + i128::from(up)) * i128::from(value.signum());
        prop_assert_eq!(
            decode("DECIMAL(20, 2)", &stored(scale, &value.to_be_bytes()), Trailing::Ignore),
            Ok(Value::Decimal(expected))
        );
    }
}
