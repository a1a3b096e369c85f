//! The pages of the sink and the dead-letter queue say what the code says.

use std::path::PathBuf;

use aqueduct_pubsub::{deadletter, sink, sink_options};

use super::sink_world::{World, records};

fn page(path: &str) -> String {
    // The working directory of a test is its crate.
    let file = PathBuf::from("../../docs").join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The names in the first column of the table under the page's heading "Metrics", sorted.
fn documented(page: &str) -> Vec<String> {
    let (_, metrics) = page
        .split_once("\n## Metrics\n")
        .expect("the page has a section on metrics");
    let metrics = metrics.split("\n## ").next().unwrap_or_default();
    let mut names: Vec<_> = metrics
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned()))
        .collect();
    names.sort();
    names
}

fn sorted(names: &[(&str, &str)]) -> Vec<String> {
    let mut names: Vec<_> = names.iter().map(|(name, _)| (*name).to_owned()).collect();
    names.sort();
    names
}

#[test]
fn the_reference_page_is_what_the_declarations_generate() {
    let generated = sink_options::sink_reference();
    if std::env::var_os("AQUEDUCT_WRITE_REFERENCE").is_some() {
        std::fs::write("../../docs/reference/pubsub-sink.md", &generated)
            .expect("the docs folder is writable");
    }
    assert!(
        page("reference/pubsub-sink.md") == generated,
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
    assert_eq!(registered, sorted(sink::metric_names()));
    assert_eq!(documented(&page("pubsub-sink.md")), registered);
}

#[test]
fn the_page_of_dead_letters_lists_their_metrics() {
    let listed = sorted(deadletter::metric_names());
    assert_eq!(documented(&page("dead-letters.md")), listed);
}

#[test]
fn every_option_is_on_the_page_and_has_one_setter() {
    let text = page("pubsub-sink.md");
    let declarations = sink_options::declarations();
    for option in &declarations {
        if option.key.starts_with("sink.") {
            assert!(
                text.contains(option.key),
                "{} is not on the page",
                option.key
            );
        }
        let setter = option.builder;
        let mates = declarations
            .iter()
            .filter(|other| !setter.is_empty() && other.builder == setter);
        assert!(mates.count() <= 1, "{setter} sets two options");
    }
}

/// Each setter of the two option objects is named by one option, and each named setter exists.
#[test]
fn options_and_setters_match_both_ways() {
    let source = std::fs::read_to_string("src/sink_options.rs").expect("the crate's own source");
    let builder = std::fs::read_to_string("src/sink/builder.rs").expect("the crate's own source");
    let named: Vec<_> = sink_options::declarations()
        .iter()
        .map(|option| option.builder)
        .filter(|setter| !setter.is_empty())
        .collect();
    for setter in &named {
        let (text, name) = match setter.split_once("::") {
            Some((_, name)) => (&source, name),
            None => (&builder, *setter),
        };
        // Most are made by a macro, which spells them without `pub fn`.
        let defined =
            text.contains(&format!("pub fn {name}(")) || text.contains(&format!("        {name}("));
        assert!(defined, "{setter} is no setter");
    }
    let by_macro = source
        .lines()
        .filter(|line| line.contains(") => ") && line.ends_with(';'))
        .filter_map(|line| line.trim().split_once('('));
    let by_hand = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub fn ")?.split_once('('))
        .filter(|(_, rest)| rest.is_empty() || rest.starts_with("mut self"));
    for (setter, _) in by_macro.chain(by_hand) {
        if setter.starts_with('$') {
            continue;
        }
        let count = named
            .iter()
            .filter(|name| name.rsplit("::").next() == Some(setter))
            .count();
        assert_eq!(count, 1, "{setter} belongs to one option");
    }
}
