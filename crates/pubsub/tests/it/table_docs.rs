//! The pages on tables say what the code says.

use aqueduct_pubsub::table::{factory, table_options, table_reference};

fn page(path: &str) -> String {
    // The working directory of a test is its crate.
    let file = std::path::PathBuf::from("../../docs").join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

#[test]
fn the_reference_page_of_tables_is_the_generated_one() {
    let generated = table_reference();
    if std::env::var_os("AQUEDUCT_WRITE_REFERENCE").is_some() {
        std::fs::write("../../docs/reference/pubsub-table.md", &generated)
            .expect("the docs folder is writable");
    }
    assert!(
        page("reference/pubsub-table.md") == generated,
        "out of date; run this test once with AQUEDUCT_WRITE_REFERENCE=1"
    );
}

/// What only a statement has is explained in the guide; the rest is in the guides of source and sink.
#[test]
fn the_guide_of_tables_names_its_metadata_and_its_own_options() {
    let guide = page("pubsub-table.md");
    for column in factory().metadata() {
        let row = format!("| `{}` | `{}` |", column.key, column.ty);
        assert!(guide.contains(&row), "{row}");
    }
    for option in table_options() {
        let key = option.declaration.key;
        let own = option.declaration.builder.is_empty() || key.starts_with("scan.auto-create.");
        if own {
            assert!(guide.contains(key), "{key}");
        }
    }
}
