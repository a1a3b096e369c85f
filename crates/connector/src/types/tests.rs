//! Texts as hosts print them, and texts nobody should write.

use super::*;

#[test]
fn every_type_reads_back_as_it_was_printed() {
    for text in [
        "BOOLEAN",
        "TINYINT",
        "SMALLINT",
        "INT",
        "BIGINT NOT NULL",
        "FLOAT",
        "DOUBLE",
        "CHAR(3)",
        "VARCHAR(10)",
        "STRING",
        "BINARY(4)",
        "VARBINARY(9) NOT NULL",
        "BYTES",
        "DECIMAL(38, 10)",
        "DATE",
        "TIME(3)",
        "TIMESTAMP(9)",
        "TIMESTAMP_LTZ(3) NOT NULL",
        "TIMESTAMP(6) WITH TIME ZONE",
        "INTERVAL YEAR TO MONTH",
        "INTERVAL DAY TO SECOND",
        "ARRAY<INT NOT NULL>",
        "MAP<STRING NOT NULL, ARRAY<DOUBLE>> NOT NULL",
        "MULTISET<STRING>",
        "ROW<`a` INT NOT NULL, `b``c` ROW<`d` STRING>>",
        "ROW<>",
        "VARIANT",
    ] {
        let ty = LogicalType::parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(ty.to_string(), text);
        assert!(!matches!(ty.data, DataType::Other(_)) || text == "VARIANT");
    }
}

#[test]
fn spellings_of_hosts_and_people_are_understood() {
    for (text, same) in [
        ("varchar(2147483647)", "STRING"),
        ("VARBINARY(2147483647) NOT NULL", "BYTES NOT NULL"),
        ("TIMESTAMP(3) WITH LOCAL TIME ZONE", "TIMESTAMP_LTZ(3)"),
        ("TIMESTAMP(3) WITHOUT TIME ZONE NULL", "TIMESTAMP(3)"),
        ("TIME", "TIME(0)"),
        ("timestamp", "TIMESTAMP(6)"),
        ("INTEGER", "INT"),
        ("numeric(5)", "DECIMAL(5, 0)"),
        ("DECIMAL", "DECIMAL(10, 0)"),
        ("INTERVAL YEAR(2) TO MONTH", "INTERVAL YEAR TO MONTH"),
        ("INTERVAL DAY(3) TO SECOND(6)", "INTERVAL DAY TO SECOND"),
        ("INTERVAL SECOND(6)", "INTERVAL DAY TO SECOND"),
        (
            "ROW(a INT, b STRING 'says ''x''')",
            "ROW<`a` INT, `b` STRING>",
        ),
        ("DOUBLE PRECISION", "DOUBLE"),
    ] {
        assert_eq!(
            LogicalType::parse(text).map(|ty| ty.to_string()),
            Ok(same.to_owned()),
            "{text}"
        );
    }
}

#[test]
fn a_type_unknown_here_keeps_its_text() {
    let text = "RAW('java.lang.Object', 'AB)C=')";
    assert_eq!(
        LogicalType::parse(text).map(|ty| ty.data),
        Ok(DataType::Other(text.to_owned()))
    );
}

#[test]
fn broken_text_is_refused_with_the_place() {
    for bad in [
        "",
        "INT NOT",
        "DECIMAL(39, 1)",
        "DECIMAL(5, 6)",
        "TIMESTAMP(10)",
        "ARRAY<INT",
        "ARRAY INT",
        "MAP<INT>",
        "ROW<INT>",
        "ROW<`a INT>",
        "INT INT",
        "INTERVAL WEEK",
        "RAW('x'",
        "VARCHAR(-1)",
    ] {
        let error = LogicalType::parse(bad).expect_err(bad).to_string();
        assert!(error.contains("at character"), "{error}");
    }
    let deep = "ARRAY<".repeat(5_000);
    assert!(LogicalType::parse(&deep).is_err());
}
