//! Google's Pub/Sub emulator, a Java program.

use std::env;
use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use super::{Emulator, EmulatorError, in_path, in_sdk, named_binary, not_run, with_sources};

/// Names the Pub/Sub emulator's start script when it is in none of the usual places.
pub const PUBSUB_BINARY: &str = "AQUEDUCT_PUBSUB_EMULATOR";

const INSTALL: &str = "gcloud components install pubsub-emulator \
     (or: apt-get install google-cloud-cli-pubsub-emulator) and a Java runtime";

/// It takes about three seconds on an idle machine; the rest is for one that is compiling.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Ports tried before giving up: one that was free may be taken before the emulator binds it.
const TRIES: usize = 5;

/// Google's Pub/Sub emulator, empty, on a port of its own of `127.0.0.1`.
///
/// Dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct PubSubEmulator(Emulator);

impl PubSubEmulator {
    /// Finds the emulator, starts it, and waits until it accepts connections.
    ///
    /// Blocks the thread: some three seconds as a rule, 60 s at most. Looks at [`PUBSUB_BINARY`], then for
    /// `cloud-pubsub-emulator` in `PATH`, then into the Google Cloud CLI.
    ///
    /// # Errors
    ///
    /// [`EmulatorError::NotFound`] where it or Java is not installed; any other where they are and do not work.
    pub fn start() -> Result<Self, EmulatorError> {
        let binary = binary()?;
        let mut tries = 0;
        loop {
            tries += 1;
            let address = free_address().map_err(|source| EmulatorError::Spawn {
                binary: binary.clone(),
                source,
            })?;
            let port = format!("--port={}", address.port());
            let args = ["--host=127.0.0.1", &port].map(OsStr::new);
            let phrase = format!("listening on {}", address.port());
            let listens = |output: &str| output.contains(&phrase).then_some(address);
            match Emulator::launch_until(binary.clone(), &args, listens, START_LIMIT) {
                Err(EmulatorError::Ended { .. }) if tries < TRIES => {}
                started => return started.map(Self),
            }
        }
    }

    /// Where it listens, as an emulator endpoint of a connector takes it.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.0.address.to_string()
    }

    /// Where it listens.
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

/// Starts a Pub/Sub emulator for the test that calls, or reports that the test did not run.
///
/// `None` means: not installed here, reported, so return.
///
/// # Panics
///
/// In CI when it is not installed, and everywhere when it is installed and does not start.
#[must_use = "None means that the test must return"]
#[track_caller]
pub fn require_pubsub() -> Option<PubSubEmulator> {
    match PubSubEmulator::start() {
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

/// A port that is free at this moment.
fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

fn binary() -> Result<PathBuf, EmulatorError> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    if let Some(path) = named_binary(PUBSUB_BINARY, env::var_os(PUBSUB_BINARY))? {
        return Ok(path);
    }
    FOUND
        .get_or_init(|| {
            let path = env::var_os("PATH").unwrap_or_default();
            let home = env::var_os("HOME").map(PathBuf::from);
            if env::var_os("JAVA_HOME").is_none() {
                in_path("java", &path)?;
            }
            in_path("cloud-pubsub-emulator", &path).or_else(|| {
                in_sdk(
                    "platform/pubsub-emulator/bin/cloud-pubsub-emulator",
                    &path,
                    home.as_deref(),
                )
            })
        })
        .clone()
        .ok_or(EmulatorError::NotFound {
            service: "Pub/Sub",
            binary: "cloud-pubsub-emulator",
            install: INSTALL,
            variable: PUBSUB_BINARY,
        })
}
