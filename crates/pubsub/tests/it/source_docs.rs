//! Stored formats byte by byte, and pages that say what the code says.

use std::path::PathBuf;

use aqueduct_pubsub::source::{EnumeratorState, SubscriptionSplit, metrics};
use aqueduct_pubsub::source_options;
use aqueduct_testkit::golden;

use super::source_support::*;

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/golden");

fn split() -> SubscriptionSplit {
    SubscriptionSplit {
        subscription: destination("orders-sub"),
        uid: 7,
        ack_deadline_seconds: 10,
    }
}

fn state() -> EnumeratorState {
    EnumeratorState {
        subscriptions: vec![destination("orders-sub"), destination("s2")],
        start_position_applied: true,
    }
}

#[test]
fn the_stored_bytes_are_kept() {
    golden::assert_keeps(
        DIR,
        "source-split",
        &split().encode(),
        &format!("{:?}", split()),
    );
    golden::assert_keeps(
        DIR,
        "source-enumerator",
        &state().encode(),
        &format!("{:?}", state()),
    );
}

#[test]
fn every_stored_version_reads() {
    golden::assert_reads(DIR, "source-split", |state| {
        SubscriptionSplit::decode(state).map(|split| format!("{split:?}"))
    });
    golden::assert_reads(DIR, "source-enumerator", |state| {
        EnumeratorState::decode(state).map(|state| format!("{state:?}"))
    });
}

fn page(path: &str) -> (PathBuf, String) {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(path);
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    (file, text)
}

#[test]
fn the_reference_page_is_the_printed_one() {
    let printed = source_options::reference();
    let (file, mut text) = page("reference/pubsub-source.md");
    if std::env::var(golden::WRITE).is_ok_and(|value| value == "1") {
        std::fs::write(&file, &printed).expect("the docs folder is writable");
        text.clone_from(&printed);
    }
    assert!(text == printed, "print it anew with {}=1", golden::WRITE);
}

#[test]
fn the_guide_names_every_option_and_every_metric() {
    let (_, text) = page("pubsub-source.md");
    for option in source_options::declarations() {
        if option.key.starts_with("scan.") {
            assert!(text.contains(option.key), "{}", option.key);
        }
    }
    for (name, _) in metrics::ALL {
        assert!(text.contains(&format!("`{name}`")), "{name}");
    }
}

#[tokio::test]
async fn the_list_of_metrics_is_what_a_source_registers() {
    let world = World::new().await;
    world.publish("m", 1);
    let mut host = world.start(world.builder());
    host.run_to(1).await.expect("reads");
    let mut registered: Vec<String> = world
        .kit
        .registry()
        .samples()
        .into_iter()
        .map(|sample| sample.name)
        .collect();
    registered.sort();
    registered.dedup();
    let mut listed: Vec<&str> = metrics::ALL.iter().map(|(name, _)| *name).collect();
    listed.sort_unstable();
    assert_eq!(registered, listed);
    host.close().await.expect("closes");
}
