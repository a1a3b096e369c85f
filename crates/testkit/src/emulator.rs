//! Emulators: finds and runs Google's own emulators for the tests that want an independent party.
//!
//! A test calls [`require_bigtable`] or [`require_pubsub`]. Where the emulator is installed it gets a fresh one on a port
//! of its own. Where it is not, the test returns early and *says so*: the absence is printed and
//! written to the file that [`NOT_RUN_FILE`] names, from which `cargo xtask test` counts it, with
//! the command that installs what is missing. In CI (`CI=true`) the same absence is a panic, so
//! no test can pass there without having run.
//!
//! ```no_run
//! let Some(emulator) = aqueduct_testkit::emulator::require_bigtable() else {
//!     return; // reported as not run
//! };
//! let endpoint = emulator.endpoint(); // http://127.0.0.1:41234
//! ```
//!
//! # Invariants
//!
//! - An emulator dies with the value that owns it, and with the process that owns the value, even
//!   when that process is killed (`guard`).
//! - An emulator that is installed and does not start is a failure everywhere, never a "not run".
//! - The Bigtable emulator picks its port itself, so no two of them can race for one. The Pub/Sub emulator does not say
//!   which port it picked, so it is told one that was free, and another if that was taken meanwhile.
//!
//! # Not here
//!
//! Our own simulated services: they are the crate `aqueduct-sim`.

pub(crate) mod guard;
mod pubsub;

pub use pubsub::{PUBSUB_BINARY, PubSubEmulator, require_pubsub};

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use guard::{Guarded, Waited};

/// Names the Bigtable emulator's binary when it is in none of the usual places.
pub const BIGTABLE_BINARY: &str = "AQUEDUCT_CBTEMULATOR";

/// Names the file to which a test that could not run appends a line: what is missing, the test, and
/// the command that installs it, separated by tabs. Set by `cargo xtask test`.
pub const NOT_RUN_FILE: &str = "AQUEDUCT_NOT_RUN";

/// How long an emulator may take from its start until it accepts connections. It takes about 30 ms
/// on an idle machine; the rest is for one that is compiling.
const START_LIMIT: Duration = Duration::from_secs(30);

const BIGTABLE_INSTALL: &str = "gcloud components install bigtable \
     (or: apt-get install google-cloud-cli-bigtable-emulator)";

/// Where the Google Cloud CLI is usually installed; `~` is the home directory.
const SDK_ROOTS: [&str; 7] = [
    "/usr/lib/google-cloud-sdk",
    "/usr/share/google-cloud-sdk",
    "/usr/local/share/google-cloud-sdk",
    "/opt/google-cloud-sdk",
    "/opt/homebrew/share/google-cloud-sdk",
    "/snap/google-cloud-cli/current",
    "~/google-cloud-sdk",
];

/// Why there is no emulator.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    /// It is not installed. Install it, or name its binary in the variable.
    #[error(
        "the {service} emulator ({binary}) is not installed; install it with `{install}`, \
         or name its path in {variable}"
    )]
    NotFound {
        /// The service that it emulates.
        service: &'static str,
        /// The name of its binary.
        binary: &'static str,
        /// The command that installs it.
        install: &'static str,
        /// The environment variable that names its path.
        variable: &'static str,
    },

    /// The environment variable names something that is no file.
    #[error("{variable} names {}, which is no file; correct it or unset it", path.display())]
    NoSuchBinary {
        /// The environment variable.
        variable: &'static str,
        /// What it names.
        path: PathBuf,
    },

    /// The process could not be created.
    #[error("cannot start {}", binary.display())]
    Spawn {
        /// The emulator's path.
        binary: PathBuf,
        /// Why not.
        source: io::Error,
    },

    /// It ended before it said where it listens.
    #[error("{} ended before it listened; it said: {output}", binary.display())]
    Ended {
        /// The emulator's path.
        binary: PathBuf,
        /// The end of what it wrote.
        output: String,
    },

    /// It runs and did not say in time where it listens.
    #[error("{} did not listen within {limit:?}; it said: {output}", binary.display())]
    NotListening {
        /// The emulator's path.
        binary: PathBuf,
        /// How long it was waited for.
        limit: Duration,
        /// The end of what it wrote.
        output: String,
    },

    /// It said where it listens, and nothing accepts there.
    #[error("{} says it listens on {address} but does not accept", binary.display())]
    NotAccepting {
        /// The emulator's path.
        binary: PathBuf,
        /// Where it should listen.
        address: SocketAddr,
        /// The last refusal.
        source: io::Error,
    },
}

/// Google's Bigtable emulator, empty, on a port of its own of `127.0.0.1`.
///
/// Dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct BigtableEmulator(Emulator);

impl BigtableEmulator {
    /// Finds the emulator, starts it, and waits until it accepts connections.
    ///
    /// Blocks the thread: some 30 ms as a rule, 30 s at most. Looks at [`BIGTABLE_BINARY`], then
    /// for `cbtemulator` in `PATH`, then into the Google Cloud CLI, found through the `gcloud` in
    /// `PATH`, in its usual places, or by asking it.
    ///
    /// # Errors
    ///
    /// [`EmulatorError::NotFound`] where it is not installed; any other where it is and does not
    /// work.
    pub fn start() -> Result<Self, EmulatorError> {
        let args = ["-host", "127.0.0.1", "-port", "0"].map(OsStr::new);
        Emulator::launch(bigtable_binary()?, &args, "running on ", START_LIMIT).map(Self)
    }

    /// Its URL, such as `http://127.0.0.1:41234`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.0.address)
    }

    /// Where it listens. Its text is what `BIGTABLE_EMULATOR_HOST` takes.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// The end of what it wrote to its standard output and error, for a test that fails.
    #[must_use]
    pub fn output(&self) -> String {
        self.0.process.output()
    }
}

/// Starts a Bigtable emulator for the test that calls, or reports that the test did not run.
///
/// `None` means: not installed here, reported, so return.
///
/// # Panics
///
/// In CI when it is not installed, and everywhere when it is installed and does not start.
#[must_use = "None means that the test must return"]
#[track_caller]
pub fn require_bigtable() -> Option<BigtableEmulator> {
    match BigtableEmulator::start() {
        Ok(emulator) => Some(emulator),
        Err(EmulatorError::NotFound {
            service, install, ..
        }) => {
            not_run(&format!("{service} emulator"), install);
            None
        }
        Err(error) => panic!("{}", with_sources(&error)),
    }
}

/// Reports that the test that calls does not run, because `what` is missing, which `install`
/// installs. The test returns after it.
///
/// The report goes to the standard error and to the file that [`NOT_RUN_FILE`] names.
///
/// # Panics
///
/// In CI (`CI=true` or `CI=1`), where what a test needs must be there; and when the report cannot be
/// written.
#[track_caller]
pub fn not_run(what: &str, install: &str) {
    let ci = env::var_os("CI").is_some_and(|value| value == "true" || value == "1");
    let file = env::var_os(NOT_RUN_FILE).map(PathBuf::from);
    report_not_run(what, install, ci, file.as_deref());
}

#[track_caller]
#[expect(
    clippy::print_stderr,
    reason = "a test's report to the person who runs it"
)]
fn report_not_run(what: &str, install: &str, ci: bool, file: Option<&Path>) {
    let current = thread::current();
    let test = current.name().unwrap_or("a test");
    assert!(
        !ci,
        "{test} cannot run: {what} is not installed; install it with `{install}`"
    );
    eprintln!("not run: {test}: {what} is not installed; install it with `{install}`");
    if let Some(file) = file {
        let line = [what, test, install]
            .map(|field| field.replace(['\t', '\n'], " "))
            .join("\t");
        // One write in append mode, so lines of tests that run at once do not mix.
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .and_then(|mut open| open.write_all(format!("{line}\n").as_bytes()))
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", file.display()));
    }
}

/// A running emulator of any kind: whatever writes its address after a known phrase.
#[derive(Debug)]
struct Emulator {
    process: Guarded,
    address: SocketAddr,
}

impl Emulator {
    fn launch(
        binary: PathBuf,
        args: &[&OsStr],
        phrase: &str,
        limit: Duration,
    ) -> Result<Self, EmulatorError> {
        Self::launch_until(binary, args, |output| address_after(phrase, output), limit)
    }

    /// As [`launch`](Self::launch), for one that says it in other words.
    fn launch_until(
        binary: PathBuf,
        args: &[&OsStr],
        listens: impl Fn(&str) -> Option<SocketAddr>,
        limit: Duration,
    ) -> Result<Self, EmulatorError> {
        let deadline = Instant::now() + limit;
        let process = match Guarded::spawn(&binary, args) {
            Ok(process) => process,
            Err(source) => return Err(EmulatorError::Spawn { binary, source }),
        };
        let address = loop {
            // Waiting first and looking second: an emulator that wrote and ended is looked at too.
            let waited = process.wait_for_output(deadline);
            if let Some(address) = listens(&process.output()) {
                break address;
            }
            match waited {
                Waited::Output => {}
                Waited::Ended => {
                    return Err(EmulatorError::Ended {
                        binary,
                        output: process.output(),
                    });
                }
                Waited::Deadline => {
                    let output = process.output();
                    return Err(EmulatorError::NotListening {
                        binary,
                        limit,
                        output,
                    });
                }
            }
        };
        let left = deadline
            .saturating_duration_since(Instant::now())
            .max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(_) => Ok(Self { process, address }),
            Err(source) => Err(EmulatorError::NotAccepting {
                binary,
                address,
                source,
            }),
        }
    }
}

/// The socket address that follows `phrase` in a complete line.
fn address_after(phrase: &str, output: &str) -> Option<SocketAddr> {
    let complete = &output[..=output.rfind('\n')?];
    complete.lines().find_map(|line| {
        let (_, rest) = line.split_once(phrase)?;
        rest.split_whitespace().next()?.parse().ok()
    })
}

/// Finds `cbtemulator`, once a process: asking `gcloud` takes most of a second.
fn bigtable_binary() -> Result<PathBuf, EmulatorError> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    if let Some(path) = named_binary(BIGTABLE_BINARY, env::var_os(BIGTABLE_BINARY))? {
        return Ok(path);
    }
    FOUND
        .get_or_init(|| {
            let path = env::var_os("PATH").unwrap_or_default();
            let home = env::var_os("HOME").map(PathBuf::from);
            in_path("cbtemulator", &path).or_else(|| {
                in_sdk(
                    "platform/bigtable-emulator/cbtemulator",
                    &path,
                    home.as_deref(),
                )
            })
        })
        .clone()
        .ok_or(EmulatorError::NotFound {
            service: "Bigtable",
            binary: "cbtemulator",
            install: BIGTABLE_INSTALL,
            variable: BIGTABLE_BINARY,
        })
}

/// The binary that the variable names. A wrong name is an error, not a reason to look elsewhere.
fn named_binary(
    variable: &'static str,
    value: Option<OsString>,
) -> Result<Option<PathBuf>, EmulatorError> {
    match value.filter(|value| !value.is_empty()).map(PathBuf::from) {
        None => Ok(None),
        Some(path) if path.is_file() => Ok(Some(path)),
        Some(path) => Err(EmulatorError::NoSuchBinary { variable, path }),
    }
}

fn in_path(name: &str, path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Looks for a file of the Google Cloud CLI.
fn in_sdk(relative: &str, path: &OsStr, home: Option<&Path>) -> Option<PathBuf> {
    let gcloud = in_path("gcloud", path);
    // `ROOT/bin/gcloud`, behind whatever links.
    let linked = gcloud
        .as_deref()
        .and_then(|gcloud| gcloud.canonicalize().ok())
        .and_then(|gcloud| Some(gcloud.parent()?.parent()?.to_owned()));
    let usual = SDK_ROOTS
        .iter()
        .filter_map(|root| match root.strip_prefix("~/") {
            Some(rest) => home.map(|home| home.join(rest)),
            None => Some(PathBuf::from(root)),
        });
    linked
        .into_iter()
        .chain(usual)
        .map(|root| root.join(relative))
        .find(|file| file.is_file())
        .or_else(|| {
            let file = asked_root(&gcloud?)?.join(relative);
            file.is_file().then_some(file)
        })
}

/// Asks `gcloud` itself, for installations where it is a script that calls another.
fn asked_root(gcloud: &Path) -> Option<PathBuf> {
    let answer = Command::new(gcloud)
        .args(["info", "--format=value(installation.sdk_root)", "--quiet"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let root = String::from_utf8(answer.stdout).ok()?;
    let root = root.trim();
    (!root.is_empty()).then(|| PathBuf::from(root))
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests;
