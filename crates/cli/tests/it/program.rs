//! Runs the `aqueduct` binary and collects what it says.

use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A finished run.
#[derive(Debug)]
pub(crate) struct Said {
    /// Whether it ended well.
    pub(crate) ok: bool,
    /// The exit code; none if a signal ended it.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

/// The binary with these arguments, quiet but for warnings.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aqueduct"));
    command
        .args(arguments)
        .env_remove("AQUEDUCT_LOG")
        .stdin(Stdio::null());
    command
}

/// Runs to the end, which must come within `limit`; a hang is a failure.
pub(crate) fn run_within(limit: Duration, arguments: &[&str]) -> Said {
    let child = command(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    end_within(limit, child)
}

/// As [`run`], with `input` on standard input.
pub(crate) fn run_fed(arguments: &[&str], input: &[u8]) -> Said {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    // A program that refuses its arguments reads nothing.
    std::thread::spawn(move || stdin.write_all(&input));
    end_within(Duration::from_secs(120), child)
}

/// Asks a program to end as a person at a terminal does.
pub(crate) fn interrupt(child: &Child) {
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(killed.expect("kill is installed").success());
}

/// Collects what `child`, whose outputs are piped, says until its end within `limit`.
pub(crate) fn end_within(limit: Duration, child: Child) -> Said {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let id = child.id();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(limit) {
        Ok(output) => said(&output.expect("the output is readable")),
        Err(_) => {
            let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
            panic!("it did not end within {limit:?}");
        }
    }
}

/// As [`run_within`], with a limit that only a hang exceeds.
pub(crate) fn run(arguments: &[&str]) -> Said {
    run_within(Duration::from_secs(120), arguments)
}

fn said(output: &Output) -> Said {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Said {
        ok: output.status.success(),
        code: output.status.code(),
        out: text(&output.stdout),
        err: text(&output.stderr),
    }
}

/// Waits for `child` to end by itself; false if `until` says to stop waiting first.
pub(crate) fn ends_before(child: &mut Child, mut until: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if child
            .try_wait()
            .expect("a child can be waited for")
            .is_some()
        {
            return true;
        }
        if until() {
            return false;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "neither ended nor made progress"
        );
        std::thread::park_timeout(Duration::from_millis(2));
    }
}
