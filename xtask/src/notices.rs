//! What the native library is made of, for whoever redistributes a jar: every linked crate, its licence, and the texts that those
//! licences ask to be passed on.
//!
//! The list comes from cargo's own resolution for this platform, over the whole workspace: it may hold a crate too many and
//! never one too few. The texts come from the crates' sources. Where a crate may be taken under Apache-2.0, it is: that text is the jar's own licence.
//!
//! # Invariants
//!
//! - A crate under another licence whose text is not among its files fails the build.
//! - Equal inputs give equal bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::run::cargo;

/// The crate that becomes the library.
const ROOT: &str = "aqueduct-flink";

/// What the jars' own licence covers.
const OURS: &str = "Apache-2.0";

/// Licences that ask for nothing to be passed on.
const FREE: [&str; 3] = ["0BSD", "CC0-1.0", "Unlicense"];

/// Crates without the text of their licence, and a linked one of the same authors and repository that has it.
const SIBLINGS: [(&str, &str); 1] = [("tonic-prost", "tonic")];

/// The beginnings of names of files that hold a licence.
const TEXTS: [&str; 3] = ["LICENSE", "LICENCE", "COPYING"];

/// The content of `META-INF/NOTICE`.
///
/// # Errors
///
/// If cargo cannot be asked, or a text is missing.
pub(crate) fn notice(root: &Path) -> Result<String, String> {
    let host = host(root)?;
    let answer = cargo(
        root,
        &[
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            &host,
        ],
    )
    .stdin(Stdio::null())
    .stderr(Stdio::inherit())
    .output()
    .map_err(|error| format!("cargo: {error}"))?;
    if !answer.status.success() {
        return Err(format!("cargo metadata: {}", answer.status));
    }
    let metadata: Value = serde_json::from_slice(&answer.stdout)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = linked(&metadata)?;
    let mut crates = Vec::new();
    for package in &packages {
        let sibling = SIBLINGS
            .iter()
            .find(|(name, _)| package["name"] == *name)
            .and_then(|(_, has)| packages.iter().find(|other| other["name"] == *has));
        crates.push(Linked::read(package, sibling.unwrap_or(package))?);
    }
    Ok(text(&crates))
}

/// The platform that cargo builds for here.
fn host(root: &Path) -> Result<String, String> {
    let mut command = cargo(root, &["-vV"]);
    let answer = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    String::from_utf8_lossy(&answer.stdout)
        .lines()
        .find_map(|line| line.strip_prefix("host: ").map(str::to_owned))
        .ok_or_else(|| "cargo -vV names no host".to_owned())
}

/// The foreign packages that end up in the library, by name and version.
fn linked(metadata: &Value) -> Result<Vec<&Value>, String> {
    let list = |value: &'_ Value| {
        value
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
            .to_vec()
    };
    let packages: BTreeMap<&str, &Value> = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let nodes: BTreeMap<String, Value> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .filter_map(|node| Some((node["id"].as_str()?.to_owned(), node)))
        .collect();
    let start = packages
        .iter()
        .find(|(_, package)| package["name"] == ROOT)
        .map(|(id, _)| (*id).to_owned())
        .ok_or_else(|| format!("the workspace has no {ROOT}"))?;
    let mut reached = BTreeSet::new();
    let mut next = vec![start];
    while let Some(id) = next.pop() {
        // A procedural macro, and what it is made of, ran at build time.
        let of_the_build = packages.get(id.as_str()).is_some_and(|package| {
            list(&package["targets"])
                .iter()
                .any(|target| target["kind"][0] == "proc-macro")
        });
        if of_the_build || !reached.insert(id.clone()) {
            continue;
        }
        for dependency in list(
            &nodes
                .get(&id)
                .ok_or("cargo metadata: a package without a node")?["deps"],
        ) {
            let normal = list(&dependency["dep_kinds"])
                .iter()
                .any(|kind| kind["kind"].is_null());
            if normal && let Some(id) = dependency["pkg"].as_str() {
                next.push(id.to_owned());
            }
        }
    }
    let mut found: Vec<&Value> = reached
        .iter()
        .filter_map(|id| packages.get(id.as_str()).copied())
        // Without a source: our own.
        .filter(|package| !package["source"].is_null())
        .collect();
    found.sort_by_key(|package| {
        let part = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
        (part("name"), part("version"))
    });
    Ok(found)
}

/// A foreign crate in the library.
struct Linked {
    name: String,
    licence: String,
    /// What its licence asks to be passed on.
    texts: Vec<String>,
}

impl Linked {
    /// `package`, with the texts that lie in the sources of `texts`.
    fn read(package: &Value, texts: &Value) -> Result<Self, String> {
        let part = |name: &str| package[name].as_str().unwrap_or_default();
        let name = format!("{} {}", part("name"), part("version"));
        let folder = Path::new(texts["manifest_path"].as_str().unwrap_or_default())
            .parent()
            .ok_or_else(|| format!("{name} lies nowhere"))?;
        let licence = part("license").replace('/', " OR ");
        let told = |error: io::Error| format!("{}: {error}", folder.display());
        let mut texts = Vec::new();
        let mut licences = 0;
        let mut files: Vec<_> = fs::read_dir(folder)
            .map_err(told)?
            .collect::<Result<_, _>>()
            .map_err(told)?;
        files.sort_by_key(fs::DirEntry::file_name);
        for file in files {
            let upper = file.file_name().to_string_lossy().to_uppercase();
            let is_licence = TEXTS.iter().any(|start| upper.starts_with(start));
            let wanted = upper.starts_with("NOTICE") || (is_licence && !is_covered(&licence));
            if wanted && file.path().is_file() {
                licences += usize::from(is_licence);
                let text = fs::read_to_string(file.path()).map_err(told)?;
                texts.push(text.replace("\r\n", "\n").trim().to_owned());
            }
        }
        if licences == 0 && !is_covered(&licence) {
            return Err(format!(
                "{name} ('{licence}') has no file with the text of its licence, which the jars must pass on: look for it at {} \
                 and see what to do about it in xtask/src/notices.rs",
                part("repository")
            ));
        }
        Ok(Self {
            name,
            licence,
            texts,
        })
    }
}

/// Whether one of the licences that may be chosen needs no text beside the jar's own.
fn is_covered(licence: &str) -> bool {
    licence
        .split(" OR ")
        .map(|choice| choice.trim_matches(['(', ')', ' ']))
        .any(|choice| choice == OURS || FREE.contains(&choice))
}

fn text(crates: &[Linked]) -> String {
    let mut out = format!(
        "Aqueduct for Apache Flink\n\nThe native library in this jar holds these Rust crates. Those that may be used under {OURS} are; \
         that licence is in META-INF/LICENSE.\nThe texts that other licences ask for follow the list.\n\n"
    );
    let mut texts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for one in crates {
        let _ = writeln!(out, "  {} ({})", one.name, one.licence);
        for text in &one.texts {
            texts.entry(text).or_default().push(&one.name);
        }
    }
    for (text, names) in texts {
        let _ = write!(
            out,
            "\n{}\n{}\n\n{text}\n",
            "-".repeat(72),
            names.join(", ")
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_that_may_be_ours_needs_no_text() {
        for licence in [
            "Apache-2.0",
            "MIT OR Apache-2.0",
            "(MIT OR Apache-2.0)",
            "Unlicense OR MIT",
        ] {
            assert!(is_covered(licence), "{licence}");
        }
        for licence in [
            "MIT",
            "ISC",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 AND ISC",
            "",
        ] {
            assert!(!is_covered(licence), "{licence}");
        }
    }

    #[test]
    fn only_what_is_linked_is_listed_and_equal_texts_once() {
        let metadata = serde_json::json!({
            "packages": [
                {"id": "root", "name": ROOT, "version": "1.0.0", "source": null},
                {"id": "b", "name": "b", "version": "1.0.0", "source": "registry"},
                {"id": "a", "name": "a", "version": "2.0.0", "source": "registry"},
                {"id": "build", "name": "build", "version": "1.0.0", "source": "registry"},
                {"id": "macro", "name": "macro", "version": "1.0.0", "source": "registry",
                 "targets": [{"kind": ["proc-macro"]}]},
            ],
            "resolve": {"nodes": [
                {"id": "root", "deps": [
                    {"pkg": "b", "dep_kinds": [{"kind": null}]},
                    {"pkg": "build", "dep_kinds": [{"kind": "build"}]},
                ]},
                {"id": "b", "deps": [{"pkg": "a", "dep_kinds": [{"kind": "dev"}, {"kind": null}]}]},
                {"id": "a", "deps": [{"pkg": "macro", "dep_kinds": [{"kind": null}]}]},
                {"id": "macro", "deps": [{"pkg": "build", "dep_kinds": [{"kind": null}]}]},
                {"id": "build", "deps": []},
            ]},
        });
        let names: Vec<_> = linked(&metadata)
            .expect("whole")
            .iter()
            .map(|package| package["name"].as_str().expect("text"))
            .collect();
        assert_eq!(names, ["a", "b"]);

        let one = |name: &str| Linked {
            name: name.to_owned(),
            licence: "MIT".to_owned(),
            texts: vec!["Permission".to_owned()],
        };
        let text = text(&[one("a 1"), one("b 2")]);
        assert_eq!(text.matches("Permission").count(), 1);
        assert!(text.contains("\na 1, b 2\n\nPermission\n"), "{text}");
    }
}
