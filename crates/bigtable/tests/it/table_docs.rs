//! The pages of tables say what the code says, and tables have every option that the builders have.

use std::collections::BTreeSet;

use aqueduct_bigtable::{options, scan_options, table};
use aqueduct_testkit::golden;

#[test]
fn the_reference_page_is_the_printed_one() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/bigtable-table.md"
    );
    let printed = table::options::reference();
    if std::env::var(golden::WRITE).is_ok_and(|value| value == "1") {
        std::fs::write(path, &printed).expect("writable");
    }
    let page = std::fs::read_to_string(path).expect("the page exists");
    assert!(page == printed, "print it anew with {}=1", golden::WRITE);
}

/// What only a builder has, and why.
const BUILDERS_ONLY: [&str; 2] = [
    // Filters are no text; a table's filter is made of its columns.
    "scan.filter",
    // Families come from the columns, rules from options of their own.
    "sink.table-create",
];

#[test]
fn a_table_has_every_option_of_the_builders_and_as_they_declare_it() {
    let options = table::factory().options();
    let builders: Vec<_> = [options::declarations(), scan_options::declarations()].concat();
    for declared in builders {
        let key = declared.key;
        let table = options.iter().find(|option| option.declaration.key == key);
        if BUILDERS_ONLY.contains(&key) {
            assert!(table.is_none(), "{key}");
            continue;
        }
        let mut table = table
            .unwrap_or_else(|| panic!("tables lack '{key}'"))
            .declaration
            .clone();
        if key == options::ROW_ORDERING.key() {
            // A table knows whether its input updates, a builder does not.
            assert_ne!(table.default, declared.default);
            table.default.clone_from(&declared.default);
        }
        assert_eq!(table, declared);
    }
}

/// Setters of builders that no option of a table sets: what they do instead.
const NO_OPTION: [&str; 10] = [
    // Kept by the table itself: row codecs, failing handler, families.
    "serializer",
    "deserializer",
    "failed_mutation_handler",
    "destination_resolver",
    "table_create_options",
    "filter",
    "writer_options",
    // Several options each.
    "table",
    "cache",
    // A table closes over the same builder, only inside.
    "nothing",
];

/// Names of the setters in a source file: methods that take and give back `self`.
fn setters(source: &str) -> BTreeSet<String> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("fn ") {
        let signature: String = code[at + 3..]
            .chars()
            .take_while(|char| *char != '{')
            .collect();
        let name: String = signature
            .chars()
            .take_while(|char| char.is_ascii_alphanumeric() || *char == '_')
            .collect();
        let takes_self = signature.contains("(mut self")
            || signature.contains("(self")
            || signature.contains("        mut self,");
        if takes_self && signature.trim_end().ends_with("-> Self") {
            found.insert(name);
        }
    }
    found
}

#[test]
fn no_setter_of_a_builder_is_out_of_reach_of_a_table() {
    let sources = [
        include_str!("../../src/options.rs"),
        include_str!("../../src/sink/builder.rs"),
        include_str!("../../src/source/builder.rs"),
        include_str!("../../src/lookup.rs"),
    ];
    let found: BTreeSet<String> = sources.into_iter().flat_map(setters).collect();
    assert!(found.len() > 30, "{found:?}");
    let named: BTreeSet<String> = table::factory()
        .options()
        .iter()
        .map(|option| {
            let builder = option.declaration.builder;
            builder.rsplit("::").next().unwrap_or(builder).to_owned()
        })
        .collect();
    for setter in found {
        assert!(
            named.contains(&setter) != NO_OPTION.contains(&setter.as_str()),
            "setter {setter} and the options of tables disagree"
        );
    }
}

#[test]
fn options_are_declared_once_each_and_every_key_has_a_text() {
    let options = table::factory().options();
    let keys: BTreeSet<&str> = options
        .iter()
        .map(|option| option.declaration.key)
        .collect();
    assert_eq!(keys.len(), options.len());
    for option in &options {
        assert!(
            option.declaration.doc.ends_with('.'),
            "{}",
            option.declaration.key
        );
        assert!(!option.declaration.default.is_empty());
    }
}
