//! Runs one command: its output streams to ours, tests are counted on the way, and a command that
//! does not end in its time is ended.
//!
//! # Invariants
//!
//! - Output is passed on byte for byte as it comes; counting never delays it.
//! - A command that passes its limit is a failure that says so. In CI everything that it started
//!   dies with it; at a terminal it stays in the foreground group, so that Ctrl-C reaches it.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Of a line that never ends only the first bytes are looked at.
const LINE_BYTES: usize = 4096;

/// How many names of failed tests a summary shows.
const NAMES: usize = 20;

/// What cargo's test runners reported.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Tests {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
    /// Names of failed tests, the first few.
    pub(crate) names: Vec<String>,
}

impl Tests {
    pub(crate) fn add(&mut self, other: &Tests) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.names.extend(other.names.iter().cloned());
        self.names.truncate(NAMES);
    }

    /// Looks at one line of a test runner.
    fn see(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
            // "ok. 13 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.32s"
            let counts = rest.split_once(". ").map_or("", |(_, counts)| counts);
            for count in counts.split("; ") {
                let Some((number, what)) = count.split_once(' ') else {
                    continue;
                };
                let Ok(number) = number.parse::<u64>() else {
                    continue;
                };
                match what {
                    "passed" => self.passed += number,
                    "failed" => self.failed += number,
                    "ignored" => self.ignored += number,
                    _ => {}
                }
            }
        } else if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... FAILED"))
            && self.names.len() < NAMES
        {
            self.names.push(name.to_owned());
        }
    }
}

/// How a command ended.
#[derive(Debug)]
pub(crate) enum Ended {
    Exited(ExitStatus),
    /// It could not be started.
    NotStarted(io::Error),
    /// It was ended at its limit.
    PastLimit(Duration),
    /// It ended, and something that it started lives on and holds its output open.
    LeftSomething(ExitStatus),
}

impl Ended {
    /// `Ok` for an exit code of zero, else what to tell.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::Exited(status) if status.success() => Ok(()),
            other => Err(other.to_string()),
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "{status}"),
            Self::NotStarted(error) => write!(f, "cannot start: {error}"),
            Self::PastLimit(limit) => write!(f, "ended by us after {} s", limit.as_secs()),
            Self::LeftSomething(status) => {
                write!(f, "{status}, but a process that it started lives on")
            }
        }
    }
}

/// Whether this is CI, where everything must be there and nobody presses Ctrl-C.
pub(crate) fn in_ci() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true" || value == "1")
}

/// A cargo command in the workspace.
pub(crate) fn cargo(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(args);
    // `cargo run` describes xtask in the environment. Build scripts that watch those variables (that
    // of ring does) would run again, and with them half the tree.
    for (name, _) in env::vars_os() {
        if describes_a_package(&name) {
            command.env_remove(name);
        }
    }
    if in_ci() {
        // Nobody builds twice there, and nobody opens a debugger: what serves both is more than half of a target folder.
        command
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "none");
    }
    command
}

fn describes_a_package(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| {
        ["CARGO_PKG_", "CARGO_MANIFEST_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
            || [
                "CARGO_BIN_NAME",
                "CARGO_CRATE_NAME",
                "CARGO_PRIMARY_PACKAGE",
            ]
            .contains(&name)
    })
}

/// Runs the command to its end, or to the end of `limit`.
pub(crate) fn run(command: &mut Command, limit: Duration) -> (Ended, Tests) {
    stream(command, limit, io::stdout())
}

fn stream(
    command: &mut Command,
    limit: Duration,
    output: impl Write + Send + 'static,
) -> (Ended, Tests) {
    let deadline = Instant::now() + limit;
    let own_group = in_ci();
    if own_group {
        command.process_group(0);
    }
    let mut tests = Tests::default();
    let mut child = match command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return (Ended::NotStarted(error), tests),
    };
    let (lines, seen) = sync_channel(256);
    let stdout = child.stdout.take().expect("it is piped");
    let reader = thread::spawn(move || pass_on(stdout, output, &lines));
    let output_end = count(&seen, deadline, &mut tests);
    if output_end == OutputEnd::Closed {
        // A reader that panicked has nothing left to say.
        let _ = reader.join();
    }
    let ended = match (wait(&mut child, deadline), output_end) {
        (Some(status), OutputEnd::Closed) => return (Ended::Exited(status), tests),
        (Some(status), OutputEnd::Deadline) => Ended::LeftSomething(status),
        (None, _) => Ended::PastLimit(limit),
    };
    kill(&mut child, own_group);
    (ended, tests)
}

/// The exit status, once there is one. A child that closed its output ends at once as a rule, so
/// this looks again and again rather than keeping a thread for it.
fn wait(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        // An error means that there is no such child: it cannot be, and is no success.
        let status = child.try_wait().ok().flatten();
        if status.is_some() || Instant::now() >= deadline {
            return status;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[derive(PartialEq, Eq)]
enum OutputEnd {
    Closed,
    Deadline,
}

fn count(lines: &Receiver<String>, deadline: Instant, tests: &mut Tests) -> OutputEnd {
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => tests.see(&line),
            Err(RecvTimeoutError::Disconnected) => return OutputEnd::Closed,
            Err(RecvTimeoutError::Timeout) => return OutputEnd::Deadline,
        }
    }
}

fn kill(child: &mut Child, own_group: bool) {
    // Errors mean that there is nothing left to kill.
    if own_group {
        let group = format!("-{}", child.id());
        let _ = Command::new("kill")
            .args(["-KILL", "--", &group])
            .stderr(Stdio::null())
            .status();
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Copies what comes, and sends each line on its way.
fn pass_on(mut from: ChildStdout, mut to: impl Write, lines: &SyncSender<String>) {
    let mut buffer = [0; 8192];
    let mut line = Vec::new();
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        // Nobody reads us any more: count on.
        let _ = to.write_all(&buffer[..read]).and_then(|()| to.flush());
        for &byte in &buffer[..read] {
            if byte != b'\n' {
                if line.len() < LINE_BYTES {
                    line.push(byte);
                }
                continue;
            }
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            // The counter is gone only after the limit.
            if text.starts_with("test ") && lines.send(text).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    const ENOUGH: Duration = Duration::from_secs(20);

    #[test]
    fn tests_of_several_runners_are_added_up_and_failures_named() {
        let script = "echo 'test a::b ... ok'; echo 'test a::c ... FAILED'
            echo 'test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.32s'
            echo 'test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.32s'
            exit 101";
        let (ended, tests) = stream(&mut shell(script), ENOUGH, io::sink());
        let names = vec!["a::c".to_owned()];
        assert_eq!(
            tests,
            Tests {
                passed: 43,
                failed: 1,
                ignored: 2,
                names
            }
        );
        let told = ended.check().expect_err("the code is not zero");
        assert!(told.contains("101"), "{told}");
    }

    #[test]
    fn a_line_that_only_speaks_of_a_result_counts_nothing() {
        let mut tests = Tests::default();
        for line in [
            "a test result: ok. 3 passed",
            "test result: ",
            "test result: ok. x passed; 1",
        ] {
            tests.see(line);
        }
        assert_eq!(tests, Tests::default());
    }

    #[test]
    fn output_arrives_byte_for_byte() {
        struct Shared(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
        impl Write for Shared {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0
                    .lock()
                    .expect("no writer panics")
                    .extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let got = std::sync::Arc::default();
        let (ended, _) = stream(
            &mut shell("printf 'a\\n\\377b\\r\\n'; printf 'no end of line'"),
            ENOUGH,
            Shared(std::sync::Arc::clone(&got)),
        );
        assert_eq!(ended.check(), Ok(()));
        assert_eq!(
            *got.lock().expect("no writer panics"),
            b"a\n\xffb\r\nno end of line"
        );
    }

    #[test]
    fn a_command_without_an_end_is_ended_at_its_limit() {
        let limit = Duration::from_millis(200);
        // With its output open, and with its output closed.
        for script in [
            "exec tail -f /dev/null",
            "exec tail -f /dev/null >/dev/null",
        ] {
            let (ended, _) = stream(&mut shell(script), limit, io::sink());
            assert!(
                matches!(ended, Ended::PastLimit(told) if told == limit),
                "{script}: {ended}"
            );
        }
    }

    #[test]
    fn a_process_left_behind_is_told_and_not_waited_for() {
        let limit = Duration::from_millis(500);
        // It ends by itself, so that nothing is left of this test.
        let (ended, _) = stream(
            &mut shell("timeout 2 tail -f /dev/null &"),
            limit,
            io::sink(),
        );
        assert!(matches!(ended, Ended::LeftSomething(_)), "{ended}");
        assert!(ended.check().is_err());
    }

    #[test]
    fn a_command_that_is_not_there_is_told() {
        let (ended, _) = stream(&mut Command::new("/nowhere/cargo"), ENOUGH, io::sink());
        assert!(matches!(ended, Ended::NotStarted(_)), "{ended}");
    }

    #[test]
    fn only_the_description_of_a_package_is_kept_from_cargo() {
        assert!(describes_a_package(OsStr::new("CARGO_PKG_NAME")));
        assert!(describes_a_package(OsStr::new("CARGO_MANIFEST_DIR")));
        for kept in ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_TERM_COLOR", "PATH"] {
            assert!(!describes_a_package(OsStr::new(kept)), "{kept}");
        }
    }
}
