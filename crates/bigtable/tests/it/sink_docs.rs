//! The sink's pages say what the code says.

use std::path::PathBuf;

use aqueduct_bigtable::{options, sink};

use super::sink_world::{World, records};

fn page(path: &str) -> String {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

#[test]
fn the_reference_page_is_what_the_declarations_generate() {
    let generated = options::sink_reference();
    if std::env::var_os("AQUEDUCT_WRITE_REFERENCE").is_some() {
        let file =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/bigtable-sink.md");
        std::fs::write(&file, &generated).expect("the docs folder is writable");
    }
    assert!(
        page("reference/bigtable-sink.md") == generated,
        "out of date; run this test once with AQUEDUCT_WRITE_REFERENCE=1"
    );
}

#[tokio::test]
async fn the_page_lists_exactly_the_metrics_that_a_writer_registers() {
    let world = World::new().await;
    let mut host = world.host(|builder| builder);
    host.write_all(records(1)).await.expect("well");
    host.finish().await.expect("well");
    let mut registered: Vec<String> = world
        .kit
        .registry()
        .samples()
        .into_iter()
        .map(|sample| sample.name)
        .collect();
    registered.sort();
    let mut listed: Vec<String> = sink::metric_names()
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    listed.sort();
    assert_eq!(registered, listed);
    assert!(registered.iter().all(|name| !name.starts_with("num")
        || name.starts_with("numRecords")
        || name == "numBytesSend"));
    let text = page("bigtable-sink.md");
    let named = |line: &str| {
        line.strip_prefix("| `")?
            .split_once('`')
            .map(|(name, _)| name.to_owned())
    };
    let (_, metrics) = text
        .split_once("\n## Metrics\n")
        .expect("the page has a section on metrics");
    let metrics = metrics.split("\n## ").next().unwrap_or_default();
    let mut documented: Vec<String> = metrics
        .lines()
        .filter_map(named)
        .filter(|name| !name.contains('.'))
        .collect();
    documented.sort();
    assert_eq!(documented, listed);
}

#[test]
fn the_page_names_every_option_that_an_operator_may_set() {
    let text = page("bigtable-sink.md");
    for option in options::declarations() {
        if option.key.starts_with("sink.") {
            assert!(
                text.contains(option.key),
                "{} is not on the page",
                option.key
            );
        }
    }
}
