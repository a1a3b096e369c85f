//! Gates: rules about the text of our own sources that no compiler checks.
//!
//! - A file opens with its page (`//!`).
//! - It has at most [`LINES`] lines, tests excepted: a longer one has two subjects.
//! - None of [`WORDS`] stands in its code. Comments and strings may speak of them.
//! - A link of a Markdown page to a file, or to a heading of one, leads there.
//!
//! Generated code, in a folder called `generated`, keeps its own manners.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::lexer::code_only;

/// The most lines of a file that is no test.
const LINES: usize = 900;

/// What code must not say, and what to do instead.
const WORDS: [(&str, &str); 7] = [
    ("todo!", "write it, or leave it out"),
    ("unimplemented!", "write it, or leave it out"),
    ("dbg!", "use tracing, or take it out"),
    (
        "#[ignore",
        "a test runs, or reports that it did not (testkit::emulator::not_run)",
    ),
    (
        "unbounded_channel",
        "bound the channel and say what its bound is",
    ),
    (
        "mpsc::unbounded",
        "bound the channel and say what its bound is",
    ),
    (
        "mpsc::channel()",
        "this channel of std has no bound: use sync_channel",
    ),
];

/// Checks every Rust file below the folders of our code. The result is one line a violation.
pub(crate) fn check(root: &Path) -> io::Result<Vec<String>> {
    let mut files = Vec::new();
    for folder in ["crates", "benches", "examples", "xtask"] {
        let folder = root.join(folder);
        if folder.is_dir() {
            files_of(&folder, "rs", &mut files)?;
        }
    }
    files.sort();
    let mut violations = Vec::new();
    if files.is_empty() {
        violations.push(format!("{}: no Rust file found", root.display()));
    }
    for file in files {
        let name = file.strip_prefix(root).unwrap_or(&file);
        look(name, &fs::read_to_string(&file)?, &mut violations);
    }
    let mut pages = Vec::new();
    files_of(root, "md", &mut pages)?;
    pages.sort();
    for page in pages {
        links(root, &page, &mut violations)?;
    }
    Ok(violations)
}

/// Checks the links of one page. Those to the web and those in code are nobody's promise here.
fn links(root: &Path, page: &Path, violations: &mut Vec<String>) -> io::Result<()> {
    let shown = page.strip_prefix(root).unwrap_or(page).display();
    let text = prose(page)?;
    for rest in text.split("](").skip(1) {
        let link = rest.split([')', ' ', '\n']).next().unwrap_or_default();
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let target = match file {
            "" => page.to_owned(),
            _ => page.with_file_name(file),
        };
        let is_it = |line: &str| line.starts_with('#') && anchor(line) == heading;
        let leads = link.contains("://")
            || target.exists() && (heading.is_empty() || prose(&target)?.lines().any(is_it));
        if !leads {
            violations.push(format!("{shown}: the link to {link} leads nowhere"));
        }
    }
    Ok(())
}

/// A page without its blocks of code.
fn prose(page: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(page)?.split("```").step_by(2).collect())
}

/// What a link to this heading says.
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    words
        .chars()
        .filter(kept)
        .collect::<String>()
        .replace(' ', "-")
}

fn files_of(folder: &Path, ending: &str, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let kind = entry.file_type()?;
        if kind.is_dir() {
            let own = name != "target" && name != "generated";
            if own && !name.as_encoded_bytes().starts_with(b".") {
                files_of(&entry.path(), ending, files)?;
            }
        } else if kind.is_file()
            && Path::new(&name)
                .extension()
                .is_some_and(|end| end == ending)
        {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn look(name: &Path, text: &str, violations: &mut Vec<String>) {
    let shown = name.display();
    if !text.starts_with("//! ") {
        violations.push(format!(
            "{shown}:1: the file does not open with its page (//!)"
        ));
    }
    let lines = text.lines().count();
    if lines > LINES && !is_test(name) {
        violations.push(format!(
            "{shown}: {lines} lines, more than {LINES}: split it by subject"
        ));
    }
    for (index, line) in code_only(text).lines().enumerate() {
        for (word, instead) in WORDS {
            if contains_word(line, word) {
                violations.push(format!("{shown}:{}: {word}: {instead}", index + 1));
            }
        }
    }
}

fn is_test(name: &Path) -> bool {
    name.file_name().is_some_and(|file| file == "tests.rs")
        || name
            .parent()
            .is_some_and(|folder| folder.iter().any(|part| part == "tests"))
}

/// Whether the word stands there and is not the end of a longer one.
fn contains_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at]
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(name: &str, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        look(Path::new(name), text, &mut found);
        found
    }

    #[test]
    fn a_file_without_a_page_is_found() {
        assert_eq!(violations("a.rs", "//! A page.\n"), Vec::<String>::new());
        assert_eq!(violations("a.rs", "use std::fs;\n//! late\n").len(), 1);
        assert_eq!(violations("a.rs", "").len(), 1);
    }

    #[test]
    fn a_long_file_is_found_unless_it_is_a_test() {
        let text = "//! A page.\n".repeat(LINES + 1);
        assert_eq!(violations("crates/a/src/lib.rs", &text).len(), 1);
        assert!(violations("crates/a/src/lib/tests.rs", &text).is_empty());
        assert!(violations("crates/a/tests/it/main.rs", &text).is_empty());
        assert!(violations("crates/a/src/lib.rs", &"//! A page.\n".repeat(LINES)).is_empty());
    }

    #[test]
    fn every_word_is_found_in_code_and_only_there() {
        for (word, _) in WORDS {
            let found = violations("a.rs", &format!("//! A page.\n\n  x = {word}"));
            assert_eq!(found.len(), 1, "{word}: {found:?}");
            assert!(found[0].starts_with("a.rs:3: "), "{found:?}");
            assert!(violations("a.rs", &format!("//! A page about {word}\n")).is_empty());
            assert!(violations("a.rs", &format!("//! A page.\nlet x = \"{word}\";")).is_empty());
        }
        assert!(violations("a.rs", "//! A page.\nmy_todo!()").is_empty());
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let page = root.join("docs/executor.md");
        let mut found = Vec::new();
        links(&root, &page, &mut found).expect("the page is readable");
        assert_eq!(found, Vec::<String>::new());
        // The same page in another place reaches none of its neighbours.
        let elsewhere = std::env::temp_dir().join(format!("gates-{}.md", std::process::id()));
        fs::copy(&page, &elsewhere).expect("the folder is writable");
        let looked = links(&root, &elsewhere, &mut found);
        fs::remove_file(&elsewhere).expect("it is ours");
        looked.expect("the copy is readable");
        assert!(!found.is_empty());
    }

    #[test]
    fn the_anchor_of_a_heading_is_what_pages_link_to() {
        assert_eq!(
            anchor("## What it promises, and why"),
            "what-it-promises-and-why"
        );
    }

    #[test]
    fn a_tree_without_sources_is_a_violation_and_not_a_success() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        assert_eq!(check(&root).expect("the folder is readable").len(), 1);
    }
}
