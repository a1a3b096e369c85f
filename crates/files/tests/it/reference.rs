//! The reference page says what the code says.

use aqueduct_files::options;

#[test]
fn the_reference_page_is_what_the_declarations_generate() {
    // The working directory of a test is its crate.
    let file = "../../docs/reference/files.md";
    let generated = options::reference();
    if std::env::var_os("AQUEDUCT_WRITE_REFERENCE").is_some() {
        std::fs::write(file, &generated).expect("the docs folder is writable");
    }
    let page = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        page == generated,
        "out of date; run this test once with AQUEDUCT_WRITE_REFERENCE=1"
    );
}
