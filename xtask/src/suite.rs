//! The suite behind `cargo xtask test`: its steps in their order, and the summary.
//!
//! Every step runs, whatever happened to the ones before, so that one run tells everything. What is
//! cheap comes first. All of them share the `dev` profile's artifacts; only the quickstart, which
//! shows what a user is told to type, builds for release.
//!
//! # Invariants
//!
//! - The exit code is zero only if no step failed.
//! - What did not run is named in the summary with its remedy. In CI it is a failure, with one
//!   exception: advisories (see [`advisories`]).
//! - The last line is `N passed, N failed`, and `, N skipped` if any test reported that it did not
//!   run; such a test is not among the passed ones, though the test runner counts it there.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::run::{Tests, cargo, in_ci, run};
use crate::{doors, flink, gates, jar, tools};

/// Names the file in which tests report that they did not run. `testkit::emulator` knows it too.
const NOT_RUN_FILE: &str = "AQUEDUCT_NOT_RUN";

/// Limits of time, against what hangs rather than what is slow.
const QUICK: Duration = Duration::from_secs(5 * 60);
const COMPILE: Duration = Duration::from_secs(30 * 60);
const TEST: Duration = Duration::from_secs(45 * 60);

/// How a step ended.
enum Outcome {
    Ok,
    /// Something is missing here; says what, and what to do.
    NotRun(String),
    Failed(String),
}

struct Step {
    name: &'static str,
    does: &'static str,
    run: fn(&mut Suite) -> Outcome,
}

const STEPS: [Step; 14] = [
    Step {
        name: "gates",
        does: "rules about the text of our sources",
        run: text_gates,
    },
    Step {
        name: "fmt",
        does: "formatting",
        run: formatting,
    },
    Step {
        name: "doors",
        does: "which crate may depend on which",
        run: dependency_doors,
    },
    Step {
        name: "deny",
        does: "licences, bans and sources of dependencies",
        run: deny,
    },
    Step {
        name: "advisories",
        does: "known vulnerabilities of dependencies",
        run: advisories,
    },
    Step {
        name: "clippy",
        does: "lints, none allowed",
        run: clippy,
    },
    Step {
        name: "build",
        does: "build, as a developer does",
        run: build,
    },
    Step {
        name: "compile-tests",
        does: "build the tests",
        run: compile_tests,
    },
    Step {
        name: "flink",
        does: "what the Flink tests run on, fetched once",
        run: distributions,
    },
    Step {
        name: "jar",
        does: "the jars for Flink: Java tests, and what the jars hold",
        run: jars,
    },
    Step {
        name: "tests",
        does: "every test; emulators, crashes and Flink clusters included",
        run: tests,
    },
    Step {
        name: "doc-tests",
        does: "examples in the documentation",
        run: doc_tests,
    },
    Step {
        name: "rustdoc",
        does: "documentation, no warning allowed",
        run: rustdoc,
    },
    Step {
        name: "quickstart",
        does: "the first command of the README",
        run: quickstart,
    },
];

/// The names of the steps, for the command line.
pub(crate) fn step_names() -> Vec<&'static str> {
    STEPS.iter().map(|step| step.name).collect()
}

/// What the steps share.
struct Suite {
    root: PathBuf,
    not_run_file: PathBuf,
    tests: Tests,
}

/// Runs the steps, all or the named ones, and prints the summary.
pub(crate) fn test(root: &Path, only: &[String]) -> ExitCode {
    let not_run_file = root.join("target/not-run");
    let mut suite = Suite {
        root: root.to_owned(),
        not_run_file,
        tests: Tests::default(),
    };
    if let Err(error) = suite.forget_reports() {
        say(&format!(
            "cannot remove {}: {error}",
            suite.not_run_file.display()
        ));
        return ExitCode::FAILURE;
    }
    let mut rows = Vec::new();
    let start = Instant::now();
    for step in STEPS {
        if only.is_empty() || only.iter().any(|name| name == step.name) {
            say(&format!("\n=== {}: {}", step.name, step.does));
            let begun = Instant::now();
            let outcome = (step.run)(&mut suite);
            rows.push(Row {
                name: step.name,
                outcome,
                took: begun.elapsed(),
            });
        }
    }
    let skipped = match fs::read_to_string(&suite.not_run_file) {
        Ok(reports) => Skipped::read(&reports),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Skipped::default(),
        Err(error) => {
            say(&format!(
                "cannot read {}: {error}",
                suite.not_run_file.display()
            ));
            return ExitCode::FAILURE;
        }
    };
    let summary = summary(&rows, &suite.tests, &skipped, start.elapsed(), in_ci());
    say(&summary.text);
    summary.code
}

impl Suite {
    fn forget_reports(&self) -> io::Result<()> {
        match fs::remove_file(&self.not_run_file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn cargo(&self, args: &[&str], limit: Duration) -> Outcome {
        outcome(run(&mut cargo(&self.root, args), limit).0.check())
    }

    /// Runs tests and adds them to the count.
    fn cargo_test(&mut self, args: &[&str]) -> (Outcome, u64) {
        let mut command = cargo(&self.root, args);
        command.env(NOT_RUN_FILE, &self.not_run_file);
        let (ended, tests) = run(&mut command, TEST);
        self.tests.add(&tests);
        let outcome = match ended.check() {
            Err(failure) if tests.names.is_empty() => Outcome::Failed(failure),
            Err(_) => Outcome::Failed(tests.names.join(", ")),
            Ok(()) if tests.ignored > 0 => {
                Outcome::Failed(format!("{} ignored: a test runs or goes", tests.ignored))
            }
            Ok(()) => Outcome::Ok,
        };
        (outcome, tests.passed)
    }
}

fn quickstart(suite: &mut Suite) -> Outcome {
    suite.cargo(
        &["run", "--release", "--locked", "--", "quickstart"],
        COMPILE,
    )
}

fn text_gates(suite: &mut Suite) -> Outcome {
    violations(gates::check(&suite.root).map_err(|error| error.to_string()))
}

fn formatting(suite: &mut Suite) -> Outcome {
    suite.cargo(&["fmt", "--all", "--check"], QUICK)
}

fn dependency_doors(suite: &mut Suite) -> Outcome {
    let args = [
        "metadata",
        "--format-version",
        "1",
        "--all-features",
        "--locked",
    ];
    let found = cargo(&suite.root, &args)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| error.to_string())
        .and_then(|answer| match answer.status.success() {
            true => doors::check(&answer.stdout),
            false => Err(format!("cargo metadata: {}", answer.status)),
        });
    violations(found)
}

fn deny(suite: &mut Suite) -> Outcome {
    match tools::cargo_deny(&suite.root) {
        Ok(deny) => {
            let mut command = std::process::Command::new(deny);
            command.current_dir(&suite.root).args([
                "check",
                "--hide-inclusion-graph",
                "licenses",
                "bans",
                "sources",
            ]);
            outcome(run(&mut command, QUICK).0.check())
        }
        Err(failure) if in_ci() => Outcome::Failed(failure),
        Err(failure) => Outcome::NotRun(failure),
    }
}

/// Checks advisories if their database can be had.
///
/// It lives in a Git repository, not in a package registry, so a machine that reaches only
/// registries cannot have it, and no command that we could name installs it there. Hence its absence
/// is "not run" everywhere, in CI too, and visible in the summary. Where the database can be
/// fetched, a finding is a failure like any other.
fn advisories(suite: &mut Suite) -> Outcome {
    let deny = match tools::cargo_deny(&suite.root) {
        Ok(deny) => deny,
        Err(failure) => return Outcome::NotRun(failure),
    };
    let command = |args: &[&str]| {
        let mut command = std::process::Command::new(&deny);
        command.current_dir(&suite.root).args(args);
        command
    };
    let fetched = run(&mut command(&["fetch", "db"]), QUICK).0.check();
    if let Err(failure) = fetched {
        return Outcome::NotRun(format!(
            "the RustSec database (a Git repository) cannot be fetched here: {failure}; \
             run `cargo xtask test --only advisories` where it can"
        ));
    }
    outcome(
        run(
            &mut command(&["check", "--disable-fetch", "advisories"]),
            QUICK,
        )
        .0
        .check(),
    )
}

fn clippy(suite: &mut Suite) -> Outcome {
    suite.cargo(
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
        COMPILE,
    )
}

fn build(suite: &mut Suite) -> Outcome {
    suite.cargo(&["build", "--workspace", "--locked"], COMPILE)
}

/// Everything that has tests, and the examples, which only have to compile. Benchmarks are compiled
/// by clippy and never run here.
const TARGETS: [&str; 6] = [
    "--workspace",
    "--locked",
    "--lib",
    "--bins",
    "--tests",
    "--examples",
];

fn compile_tests(suite: &mut Suite) -> Outcome {
    suite.cargo(&[&["test", "--no-run"], &TARGETS[..]].concat(), COMPILE)
}

fn distributions(suite: &mut Suite) -> Outcome {
    outcome(flink::distributions(&suite.root))
}

/// Builds the jars, which the tests of the next step run in clusters, and counts the Java tests.
fn jars(suite: &mut Suite) -> Outcome {
    let mut tests = Tests::default();
    let built = jar::build(&suite.root, jar::Build::Tests, &mut tests);
    suite.tests.add(&tests);
    match built {
        Ok(_) if tests.ignored > 0 => {
            Outcome::Failed(format!("{} ignored: a test runs or goes", tests.ignored))
        }
        built => outcome(built.map(drop)),
    }
}

fn tests(suite: &mut Suite) -> Outcome {
    match suite.cargo_test(&[&["test", "--no-fail-fast"], &TARGETS[..]].concat()) {
        (Outcome::Ok, 0) => Outcome::Failed("no test ran".to_owned()),
        (outcome, _) => outcome,
    }
}

fn doc_tests(suite: &mut Suite) -> Outcome {
    suite
        .cargo_test(&["test", "--workspace", "--locked", "--no-fail-fast", "--doc"])
        .0
}

fn rustdoc(suite: &mut Suite) -> Outcome {
    let mut command = cargo(
        &suite.root,
        &["doc", "--workspace", "--locked", "--no-deps"],
    );
    command.env("RUSTDOCFLAGS", "-D warnings");
    outcome(run(&mut command, COMPILE).0.check())
}

fn outcome(result: Result<(), String>) -> Outcome {
    match result {
        Ok(()) => Outcome::Ok,
        Err(failure) => Outcome::Failed(failure),
    }
}

fn violations(found: Result<Vec<String>, String>) -> Outcome {
    match found {
        Err(failure) => Outcome::Failed(failure),
        Ok(found) if found.is_empty() => Outcome::Ok,
        Ok(found) => {
            for violation in &found {
                say(violation);
            }
            Outcome::Failed(format!("{} found, listed above", found.len()))
        }
    }
}

/// One line of the table.
struct Row {
    name: &'static str,
    outcome: Outcome,
    took: Duration,
}

/// What tests reported instead of running.
#[derive(Default)]
struct Skipped {
    /// One a test.
    tests: BTreeSet<String>,
    /// What is missing, and what installs it.
    missing: BTreeSet<(String, String)>,
}

impl Skipped {
    /// Reads lines of what is missing, the test, and the remedy, separated by tabs. A line of another
    /// shape counts as a test of that name: no report is lost.
    fn read(reports: &str) -> Self {
        let mut skipped = Self::default();
        for line in reports.lines() {
            let mut fields = line.splitn(3, '\t');
            let what = fields.next().unwrap_or_default();
            skipped
                .tests
                .insert(fields.next().unwrap_or(line).to_owned());
            let remedy = fields.next().unwrap_or("not told");
            skipped.missing.insert((what.to_owned(), remedy.to_owned()));
        }
        skipped
    }
}

struct Summary {
    text: String,
    code: ExitCode,
}

fn summary(rows: &[Row], tests: &Tests, skipped: &Skipped, took: Duration, ci: bool) -> Summary {
    let mut lines = vec![
        String::new(),
        format!("{:<16}{:<9}{:>8}", "step", "result", "seconds"),
    ];
    let mut failed = rows.is_empty();
    for row in rows {
        let (word, why) = match &row.outcome {
            Outcome::Ok => ("ok", ""),
            Outcome::NotRun(why) => ("not run", why.as_str()),
            Outcome::Failed(why) => ("FAILED", why.as_str()),
        };
        failed |= word == "FAILED";
        let line = format!(
            "{:<16}{word:<9}{:>8.1}  {why}",
            row.name,
            row.took.as_secs_f64()
        );
        lines.push(line.trim_end().to_owned());
    }
    lines.push(format!("{:<25}{:>8.1}", "all", took.as_secs_f64()));
    if !skipped.tests.is_empty() {
        lines.push(String::new());
        for (what, remedy) in &skipped.missing {
            lines.push(format!(
                "not run for want of {what}; install it with `{remedy}`"
            ));
        }
        lines.extend(skipped.tests.iter().map(|test| format!("  {test}")));
        if ci {
            lines.push("in CI every test must run".to_owned());
            failed = true;
        }
    }
    let count = skipped.tests.len() as u64;
    let passed = tests.passed.saturating_sub(count);
    let tail = if count > 0 {
        format!(", {count} skipped")
    } else {
        String::new()
    };
    lines.push(String::new());
    lines.push(format!("{passed} passed, {} failed{tail}", tests.failed));
    let code = if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    };
    Summary {
        text: lines.join("\n"),
        code,
    }
}

#[expect(clippy::print_stdout, reason = "this program speaks to a person")]
fn say(text: &str) {
    println!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, outcome: Outcome) -> Row {
        Row {
            name,
            outcome,
            took: Duration::from_millis(1500),
        }
    }

    fn counted(passed: u64, failed: u64) -> Tests {
        Tests {
            passed,
            failed,
            ..Tests::default()
        }
    }

    fn shown(rows: &[Row], tests: &Tests, reports: &str, ci: bool) -> (String, bool) {
        let summary = summary(rows, tests, &Skipped::read(reports), Duration::ZERO, ci);
        (summary.text, summary.code == ExitCode::SUCCESS)
    }

    #[test]
    fn the_last_line_is_the_plain_count() {
        let (text, good) = shown(&[row("tests", Outcome::Ok)], &counted(12, 0), "", true);
        assert!(good);
        assert_eq!(text.lines().last(), Some("12 passed, 0 failed"));
    }

    #[test]
    fn one_failed_step_fails_the_run_and_is_named() {
        let rows = [
            row("fmt", Outcome::Failed("exit status: 1".into())),
            row("tests", Outcome::Ok),
        ];
        let (text, good) = shown(&rows, &counted(12, 0), "", false);
        assert!(!good);
        assert!(
            text.contains("fmt             FAILED        1.5  exit status: 1\n"),
            "{text}"
        );
    }

    #[test]
    fn a_step_that_did_not_run_is_shown_and_is_no_failure_by_itself() {
        let rows = [row("advisories", Outcome::NotRun("no database".into()))];
        let (text, good) = shown(&rows, &counted(1, 0), "", true);
        assert!(good);
        assert!(
            text.contains("advisories      not run       1.5  no database\n"),
            "{text}"
        );
    }

    #[test]
    fn tests_that_reported_themselves_are_not_among_the_passed_ones_and_fail_ci() {
        let reports = "the emulator\ta::b\tinstall it\nthe emulator\ta::b\tinstall it\n\
                       the emulator\ta::c\tinstall it\nbroken line\n";
        let rows = [row("tests", Outcome::Ok)];
        let (text, good) = shown(&rows, &counted(12, 0), reports, false);
        assert!(good);
        assert_eq!(text.lines().last(), Some("9 passed, 0 failed, 3 skipped"));
        assert!(
            text.contains("want of the emulator; install it with `install it`\n"),
            "{text}"
        );
        assert!(text.contains("  a::b\n  a::c\n  broken line\n"), "{text}");
        let (_, good) = shown(&rows, &counted(12, 0), reports, true);
        assert!(!good);
    }

    #[test]
    fn a_run_without_a_step_is_no_success() {
        assert!(!shown(&[], &counted(0, 0), "", false).1);
    }

    #[test]
    fn steps_have_names_of_their_own() {
        let names: BTreeSet<_> = step_names().into_iter().collect();
        assert_eq!(names.len(), STEPS.len());
    }
}
