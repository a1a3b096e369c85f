//! The executor's pages say what the code says.

use aqueduct_runtime::config;

fn page(path: &str) -> String {
    // The working directory of a test is its crate.
    let file = std::path::Path::new("../../docs").join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

#[test]
fn the_reference_page_is_what_the_declarations_generate() {
    let generated = config::reference();
    if std::env::var_os("AQUEDUCT_WRITE_REFERENCE").is_some() {
        std::fs::write("../../docs/reference/executor.md", &generated)
            .expect("the docs folder is writable");
    }
    assert!(
        page("reference/executor.md") == generated,
        "out of date; run this test once with AQUEDUCT_WRITE_REFERENCE=1"
    );
}

#[test]
fn the_guide_names_every_option_but_the_details_of_restarts() {
    let guide = page("executor.md");
    let mut missing = Vec::new();
    for option in config::declarations() {
        if !option.key.starts_with("restart-strategy.") && !guide.contains(option.key) {
            missing.push(option.key);
        }
    }
    assert!(missing.is_empty(), "not in docs/executor.md: {missing:?}");
}
