//! The guard: a child process that cannot outlive its owner, with bounded memory of its output.
//!
//! The child runs below a shell that reads from a pipe whose other end this process holds. When that
//! end closes, by `drop` or because the owning process is gone for whatever reason, `kill -9`
//! included, the shell kills the child. Linux' parent-death signal would do it too, but needs
//! `unsafe` and exists nowhere else.
//!
//! # Invariants
//!
//! - `drop` returns after the child's end, which it waits for no longer than [`END_LIMIT`].
//! - Of the output at most [`TAIL_BYTES`] are kept, the last ones; the pipes are always drained, so
//!   a talkative child never blocks.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How much output is kept.
const TAIL_BYTES: usize = 16 * 1024;

/// How long the end of a killed child is waited for.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Starts `"$@"`, lets go of its output so that the pipes close with the child, and kills the child
/// when the standard input ends. A shell without job control gives a child in the background no
/// standard input, hence no `</dev/null`.
const SCRIPT: &str = r#"
"$@" &
child=$!
exec >/dev/null 2>&1
read -r _
kill -9 "$child"
wait "$child"
"#;

/// A child process bound to this value's life.
pub(crate) struct Guarded {
    shell: Child,
    /// Open as long as the child shall live.
    lifeline: Option<ChildStdin>,
    tail: Arc<Mutex<VecDeque<u8>>>,
    /// Rings when output has come; disconnected when both pipes have ended.
    bell: Receiver<()>,
    readers: Vec<JoinHandle<()>>,
}

/// What ended a wait.
pub(crate) enum Waited {
    Output,
    Ended,
    Deadline,
}

impl Guarded {
    pub(crate) fn spawn(program: &Path, args: &[&OsStr]) -> io::Result<Self> {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Out of reach of a terminal's Ctrl-C: the shell must live to do its one deed.
            .process_group(0)
            .spawn()?;
        let (ring, bell) = sync_channel(1);
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let lifeline = shell.stdin.take();
        let stdout = shell.stdout.take().map(|pipe| drain(pipe, &tail, &ring));
        let stderr = shell.stderr.take().map(|pipe| drain(pipe, &tail, &ring));
        Ok(Self {
            shell,
            lifeline,
            tail,
            bell,
            readers: stdout.into_iter().chain(stderr).collect(),
        })
    }

    /// The number of the child's process. Linux only.
    pub(crate) fn child(&self) -> io::Result<u32> {
        let shell = self.shell.id();
        let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"))?;
        let first = children.split_whitespace().next();
        first
            .and_then(|child| child.parse().ok())
            .ok_or_else(|| io::Error::other("the process has ended"))
    }

    /// The end of what the child wrote.
    pub(crate) fn output(&self) -> String {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(tail.make_contiguous()).into_owned()
    }

    /// Whether the child has ended, or at least closed its output.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.wait_for_output(Instant::now()), Waited::Ended)
    }

    pub(crate) fn wait_for_output(&self, deadline: Instant) -> Waited {
        match self
            .bell
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            Ok(()) => Waited::Output,
            Err(RecvTimeoutError::Disconnected) => Waited::Ended,
            Err(RecvTimeoutError::Timeout) => Waited::Deadline,
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let deadline = Instant::now() + END_LIMIT;
        loop {
            match self.wait_for_output(deadline) {
                Waited::Output => {}
                Waited::Ended => break,
                // A grandchild may hold the pipes. The child is dead all the same; leave the
                // readers to end with that grandchild.
                Waited::Deadline => {
                    self.readers.clear();
                    break;
                }
            }
        }
        for reader in self.readers.drain(..) {
            // A reader that panicked has nothing left to say.
            let _ = reader.join();
        }
        // The shell ends right after the child. An error means that it is gone already.
        let _ = self.shell.wait();
    }
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded")
            .field("shell", &self.shell.id())
            .finish_non_exhaustive()
    }
}

fn drain(
    mut pipe: impl Read + Send + 'static,
    tail: &Arc<Mutex<VecDeque<u8>>>,
    ring: &SyncSender<()>,
) -> JoinHandle<()> {
    let tail = Arc::clone(tail);
    let ring = ring.clone();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => {
                    let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
                    tail.extend(&buffer[..read]);
                    let surplus = tail.len().saturating_sub(TAIL_BYTES);
                    tail.drain(..surplus);
                    drop(tail);
                    // A bell that rings already needs no second ring.
                    let _ = ring.try_send(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    })
}
