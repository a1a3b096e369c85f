//! Doors: which crate may depend on which, read from cargo's own resolution with all features on.
//!
//! - The arrows between our crates point one way ([`ARROWS`]); a crate without a row fails.
//! - A heavy dependency enters through one crate of ours ([`DOORS`]). Without that crate no other
//!   one reaches it, not even through a foreign crate.
//! - Some crates must never reach some things ([`NEVER`]): the contract knows no executor and no
//!   transport.
//!
//! Only what ends up in a program counts: normal and build dependencies, on every platform. Tests
//! may depend on what they like, except that no test double gets into a program that way.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// What a crate of ours may depend on directly.
const ARROWS: [(&str, &[&[&str]]); 18] = [
    ("aqueduct", &[FOUNDATION, SERVICES, HOST]),
    (
        "aqueduct-benches",
        &[FOUNDATION, SERVICES, HOST, TOP, DOUBLES],
    ),
    ("aqueduct-bigquery", &[FOUNDATION]),
    ("aqueduct-bigtable", &[FOUNDATION]),
    (
        "aqueduct-cli",
        &[FOUNDATION, SERVICES, HOST, TOP, &["aqueduct-sim"]],
    ),
    ("aqueduct-cloud", &[&[CONNECTOR]]),
    ("aqueduct-cloudtasks", &[FOUNDATION]),
    (CONNECTOR, &[]),
    ("aqueduct-files", &[&[CONNECTOR, STORE]]),
    ("aqueduct-flink", &[FOUNDATION, SERVICES, &[TOKIO]]),
    ("aqueduct-pubsub", &[FOUNDATION]),
    (RUNTIME, &[&[CONNECTOR, STORE, TOKIO]]),
    // A simulated service that reused our client code would agree with its mistakes.
    ("aqueduct-sim", &[]),
    ("aqueduct-spanner", &[FOUNDATION]),
    ("aqueduct-sql", &[&[CONNECTOR], HOST]),
    (STORE, &[]),
    ("aqueduct-testkit", &[&[CONNECTOR, TOKIO]]),
    // Lent to connectors by every host; the contract itself knows no executor.
    (TOKIO, &[&[CONNECTOR]]),
];

const CONNECTOR: &str = "aqueduct-connector";
const RUNTIME: &str = "aqueduct-runtime";
const STORE: &str = "aqueduct-store";
const TOKIO: &str = "aqueduct-tokio";

/// What a connector stands on.
const FOUNDATION: &[&str] = &[CONNECTOR, "aqueduct-cloud"];
/// The connectors. None depends on another.
const SERVICES: &[&str] = &[
    "aqueduct-bigquery",
    "aqueduct-bigtable",
    "aqueduct-cloudtasks",
    "aqueduct-files",
    "aqueduct-pubsub",
    "aqueduct-spanner",
];
/// What drives connectors in our own process.
const HOST: &[&str] = &[RUNTIME, STORE];
/// What a person or a program starts from.
const TOP: &[&str] = &["aqueduct", "aqueduct-cli", "aqueduct-sql"];
/// What stands in for something in tests.
const DOUBLES: &[&str] = &["aqueduct-sim", "aqueduct-testkit"];

/// A heavy dependency, and the one crate of ours that brings it in.
const DOORS: [(&str, &str); 3] = [
    ("google-cloud-auth", "aqueduct-cloud"),
    ("jni", "aqueduct-flink"),
    ("object_store", STORE),
];

/// A foreign crate that brings in a heavy dependency where we build nothing: this one asks Android for its certificates.
const ELSEWHERE: [(&str, &str); 1] = [("jni", "rustls-platform-verifier")];

/// What comes in past its door all the same: the benchmarks may measure foreign clients, which bring their own. Nothing
/// of ours depends on the benchmarks.
const BESIDE: [(&str, &str); 1] = [("google-cloud-auth", "aqueduct-benches")];

/// What a crate of ours must not reach, by whatever way.
const NEVER: [(&str, &[&str]); 3] = [
    (
        CONNECTOR,
        &["h2", "hyper", "prost", "rustls", "tokio", "tonic", "tower"],
    ),
    (RUNTIME, &["google-cloud-auth", "prost", "tonic"]),
    ("aqueduct-sim", &["google-cloud-auth", "object_store"]),
];

/// Checks what `cargo metadata --format-version 1 --all-features` printed. The result is one line a
/// violation.
///
/// # Errors
///
/// When the text is not that of cargo.
pub(crate) fn check(metadata: &[u8]) -> Result<Vec<String>, String> {
    let graph = Graph::read(metadata)?;
    let mut violations = Vec::new();
    for (package, id) in &graph.members {
        arrows(&graph, package, id, &mut violations);
    }
    for (heavy, door) in DOORS {
        let elsewhere = ELSEWHERE.iter().filter(|(what, _)| *what == heavy);
        let around: Vec<&str> = elsewhere.map(|(_, by)| *by).chain([door]).collect();
        for (package, id) in &graph.members {
            if package != door
                && !BESIDE.contains(&(heavy, package.as_str()))
                && let Some(path) = graph.path(id, &[heavy], &around)
            {
                violations.push(format!("{heavy} enters past its door, {door}: {path}"));
            }
        }
    }
    for (package, forbidden) in NEVER {
        if let Some(id) = graph.members.get(package)
            && let Some(path) = graph.path(id, forbidden, &[])
        {
            violations.push(format!("{package} must not reach it: {path}"));
        }
    }
    Ok(violations)
}

fn arrows(graph: &Graph, package: &str, id: &str, violations: &mut Vec<String>) {
    // The tasks depend on none of us: they must run when nothing else compiles.
    let allowed: &[&[&str]] = if package == "xtask" {
        &[]
    } else if let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == package) {
        allowed
    } else {
        violations.push(format!(
            "{package} has no row among the arrows: add it to xtask's doors"
        ));
        return;
    };
    for dependency in graph.edges.get(id).into_iter().flatten() {
        let name = graph.name(dependency);
        if graph.members.contains_key(name) && !allowed.iter().any(|group| group.contains(&name)) {
            violations.push(format!("{package} -> {name}: no such arrow in the design"));
        }
    }
}

/// The resolved dependencies.
struct Graph {
    /// Our crates: name to id.
    members: BTreeMap<String, String>,
    names: BTreeMap<String, String>,
    /// Normal and build dependencies.
    edges: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    fn read(metadata: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(metadata).map_err(|error| error.to_string())?;
        let names: BTreeMap<String, String> = array(&value["packages"])?
            .iter()
            .map(|package| Ok((text(&package["id"])?, text(&package["name"])?)))
            .collect::<Result<_, String>>()?;
        let mut members = BTreeMap::new();
        for member in array(&value["workspace_members"])? {
            let id = text(member)?;
            let name = names.get(&id).ok_or("a member is no package")?;
            members.insert(name.clone(), id);
        }
        let mut edges = BTreeMap::new();
        for node in array(&value["resolve"]["nodes"])? {
            let mut targets = BTreeSet::new();
            for dependency in array(&node["deps"])? {
                // `kind` is null for a normal dependency.
                let kinds = array(&dependency["dep_kinds"])?;
                if kinds.iter().any(|kind| kind["kind"] != "dev") {
                    targets.insert(text(&dependency["pkg"])?);
                }
            }
            edges.insert(text(&node["id"])?, targets);
        }
        Ok(Self {
            members,
            names,
            edges,
        })
    }

    fn name(&self, id: &str) -> &str {
        self.names.get(id).map_or("?", String::as_str)
    }

    /// A shortest way from a package to one of the named ones that does not pass `around`.
    fn path(&self, from: &str, to: &[&str], around: &[&str]) -> Option<String> {
        let mut came_from: BTreeMap<&str, Option<&str>> = BTreeMap::from([(from, None)]);
        let mut front = vec![from];
        while !front.is_empty() {
            let mut next = Vec::new();
            for id in front {
                for target in self.edges.get(id).into_iter().flatten() {
                    let name = self.name(target);
                    if came_from.contains_key(target.as_str()) || around.contains(&name) {
                        continue;
                    }
                    came_from.insert(target, Some(id));
                    if to.contains(&name) {
                        return Some(self.show(target, &came_from));
                    }
                    next.push(target.as_str());
                }
            }
            front = next;
        }
        None
    }

    fn show(&self, end: &str, came_from: &BTreeMap<&str, Option<&str>>) -> String {
        let mut names = vec![self.name(end)];
        let mut at = end;
        while let Some(Some(before)) = came_from.get(at) {
            names.push(self.name(before));
            at = before;
        }
        names.reverse();
        names.join(" -> ")
    }
}

fn array(value: &Value) -> Result<&Vec<Value>, String> {
    value
        .as_array()
        .ok_or_else(|| "cargo metadata has another shape than expected".to_owned())
}

fn text(value: &Value) -> Result<String, String> {
    let text = value
        .as_str()
        .ok_or("cargo metadata has another shape than expected")?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Metadata of a small world: members, foreign packages, and edges with their kind.
    fn metadata(
        members: &[&str],
        foreign: &[&str],
        edges: &[(&str, &str, Option<&str>)],
    ) -> Vec<u8> {
        let all = || members.iter().chain(foreign);
        let nodes: Vec<Value> = all()
            .map(|id| {
                let deps: Vec<Value> = edges
                    .iter()
                    .filter(|(from, _, _)| from == id)
                    .map(|(_, to, kind)| json!({"pkg": to, "dep_kinds": [{"kind": kind}]}))
                    .collect();
                json!({"id": id, "deps": deps})
            })
            .collect();
        let packages: Vec<Value> = all().map(|id| json!({"id": id, "name": id})).collect();
        json!({"packages": packages, "workspace_members": members, "resolve": {"nodes": nodes}})
            .to_string()
            .into_bytes()
    }

    fn violations(edges: &[(&str, &str, Option<&str>)]) -> Vec<String> {
        let members = [
            CONNECTOR,
            "aqueduct-cloud",
            "aqueduct-bigtable",
            STORE,
            "aqueduct-testkit",
            "aqueduct-benches",
        ];
        let foreign = [
            "object_store",
            "google-cloud-auth",
            "jni",
            "middle",
            "rustls-platform-verifier",
            "tokio",
        ];
        check(&metadata(&members, &foreign, edges)).expect("the shape is cargo's")
    }

    #[test]
    fn arrows_of_the_design_pass() {
        let edges = [
            ("aqueduct-bigtable", CONNECTOR, None),
            ("aqueduct-bigtable", "aqueduct-cloud", None),
            ("aqueduct-cloud", "google-cloud-auth", None),
            ("aqueduct-cloud", "tokio", None),
            (STORE, "object_store", None),
            // Tests may use what they like.
            (CONNECTOR, "aqueduct-testkit", Some("dev")),
            (CONNECTOR, "tokio", Some("dev")),
        ];
        assert_eq!(violations(&edges), Vec::<String>::new());
    }

    #[test]
    fn an_arrow_against_the_design_is_found() {
        let found = violations(&[(CONNECTOR, "aqueduct-cloud", None)]);
        assert_eq!(
            found,
            ["aqueduct-connector -> aqueduct-cloud: no such arrow in the design"]
        );
        let found = violations(&[("aqueduct-bigtable", "aqueduct-testkit", Some("build"))]);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn a_heavy_dependency_past_its_door_is_found_behind_another_crate() {
        let found = violations(&[
            ("aqueduct-cloud", "middle", None),
            ("middle", "object_store", None),
            ("aqueduct-bigtable", "aqueduct-cloud", None),
        ]);
        assert_eq!(
            found,
            [
                "object_store enters past its door, aqueduct-store: \
                 aqueduct-bigtable -> aqueduct-cloud -> middle -> object_store",
                "object_store enters past its door, aqueduct-store: \
                 aqueduct-cloud -> middle -> object_store",
            ]
        );
    }

    #[test]
    fn the_benchmarks_bring_foreign_clients_and_nothing_else() {
        let found = violations(&[
            ("aqueduct-benches", "middle", None),
            ("middle", "google-cloud-auth", None),
        ]);
        assert_eq!(found, Vec::<String>::new());
        let found = violations(&[
            ("aqueduct-benches", "middle", None),
            ("middle", "object_store", None),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn what_a_foreign_crate_brings_for_android_is_no_way_in() {
        let android = [
            ("aqueduct-cloud", "rustls-platform-verifier", None),
            ("rustls-platform-verifier", "jni", None),
        ];
        assert_eq!(violations(&android), Vec::<String>::new());
        let found = violations(&[("aqueduct-cloud", "middle", None), ("middle", "jni", None)]);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn an_executor_below_the_contract_is_found() {
        let found = violations(&[(CONNECTOR, "middle", None), ("middle", "tokio", None)]);
        let told = "aqueduct-connector must not reach it: aqueduct-connector -> middle -> tokio";
        assert_eq!(found, [told]);
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        let found = check(&metadata(&["aqueduct-new"], &[], &[])).expect("the shape is cargo's");
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn another_shape_is_an_error_and_not_a_success() {
        assert!(check(b"{}").is_err());
        assert!(check(b"").is_err());
    }
}
