//! The official Python client against our simulation and against the official emulator: the same script, the same cases.
//!
//! That a client which shares no code with us finds in the simulation what it expects of the service says more about the
//! simulation than our own client can. Where the emulator differs, the expectation says so, and the table in
//! `docs/simulated-services.md` repeats it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use aqueduct_sim::{Sim, SimConfig};
use aqueduct_testkit::emulator::require_pubsub;
use aqueduct_testkit::python::{Python, require_python_pubsub};
use serde_json::{Value, json};

/// All cases together take half a minute.
const LIMIT: Duration = Duration::from_secs(180);

/// What each case observes on the simulation.
fn on_the_simulation() -> BTreeMap<&'static str, Value> {
    BTreeMap::from([
        (
            "ordered",
            json!({
                "received": 20,
                "in_order": true,
                "keys": ["a", "b"],
                "attributes_intact": true,
                "ids_as_published": true,
                "again": [],
            }),
        ),
        (
            "nacked",
            json!({"deliveries": [2, 2, 2, 2, 2], "again": []}),
        ),
        (
            "sought",
            json!({"first": ["0", "1", "2", "3"], "back": ["0", "1", "2", "3"], "ahead": []}),
        ),
        (
            "exactly_once",
            json!({
                "received": ["0", "1", "2"],
                "acks": ["SUCCESS", "SUCCESS", "SUCCESS"],
                "acked_again": "OK",
                "nonsense": "InvalidArgument",
                "again": [],
            }),
        ),
        (
            "dead_lettered",
            json!({"attempts": [1, 2, 3, 4, 5], "letters": [["poison", "t"]], "again": []}),
        ),
        ("filtered", json!({"received": ["eu"]})),
        (
            "refusals",
            json!({
                "publish_missing": "NotFound",
                "pull_missing": "NotFound",
                "topic_exists": "AlreadyExists",
                "subscription_exists": "AlreadyExists",
                "subscription_to_nothing": "NotFound",
                "short_name": "InvalidArgument",
                "reserved_name": "InvalidArgument",
                "empty_message": "InvalidArgument",
                "long_attribute_key": "InvalidArgument",
                "long_attribute_value": "InvalidArgument",
                "reserved_attribute": "InvalidArgument",
                "short_ack_deadline": "InvalidArgument",
                "seek_missing": "NotFound",
                "received": [],
            }),
        ),
    ])
}

/// The same on the emulator.
fn on_the_emulator() -> BTreeMap<&'static str, Value> {
    let mut all = on_the_simulation();
    let mut differs = |case: &str, field: &str, value: Value| {
        all.get_mut(case).expect("a case")[field] = value;
    };
    // It takes the filter and delivers everything.
    differs("filtered", "received", json!(["eu", "none", "us"]));
    // An ack id that was used up is worth nothing; here it stays acked.
    differs("exactly_once", "acked_again", json!("InvalidArgument"));
    // It checks names and little else.
    for unchecked in [
        "long_attribute_key",
        "long_attribute_value",
        "reserved_attribute",
        "short_ack_deadline",
    ] {
        differs("refusals", unchecked, json!("OK"));
    }
    differs("refusals", "received", json!(["m", "m", "m"]));
    all
}

/// A running script, ended with this value.
struct Running(Option<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start(python: &Python, address: &str) -> Running {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/python_client.py");
    let child = python
        .command(&script)
        .arg(address)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the interpreter that fetched the packages starts");
    Running(Some(child))
}

/// What the script observed, by case.
async fn observed(mut running: Running, who: &str) -> BTreeMap<String, Value> {
    let begun = Instant::now();
    loop {
        let child = running.0.as_mut().expect("it was not taken");
        if child.try_wait().expect("it can be waited for").is_some() {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "{who}: the script hangs");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let child = running.0.take().expect("it was not taken");
    let output = child.wait_with_output().expect("its output is readable");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{who}: {out}{err}");
    out.lines()
        .map(|line| {
            let mut case: Value = serde_json::from_str(line).expect("a line of JSON a case");
            let fields = case.as_object_mut().expect("an object");
            let name = fields.remove("case").expect("its name");
            (name.as_str().expect("a text").to_owned(), case)
        })
        .collect()
}

#[track_caller]
fn compare(who: &str, found: &BTreeMap<String, Value>, expected: &BTreeMap<&'static str, Value>) {
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(names, expected.keys().copied().collect::<Vec<_>>(), "{who}");
    for (name, value) in found {
        assert_eq!(value, &expected[name.as_str()], "{who}: {name}");
    }
}

#[tokio::test]
async fn the_official_client_finds_in_the_simulation_what_it_finds_in_the_emulator() {
    let Some(python) = require_python_pubsub() else {
        return;
    };
    let sim = Sim::start_on_thread(SimConfig::default()).expect("a free port");
    let on_sim = start(&python, &sim.endpoint());
    let emulator = require_pubsub();
    let on_emulator = emulator
        .as_ref()
        .map(|emulator| start(&python, &emulator.endpoint()));
    let found = observed(on_sim, "simulation").await;
    compare("simulation", &found, &on_the_simulation());
    if let Some(running) = on_emulator {
        let found = observed(running, "emulator").await;
        compare("emulator", &found, &on_the_emulator());
    }
}
