//! Python packages: official client libraries, fetched for the tests that point them at a simulation.
//!
//! They are fetched once, by pip, into `target/tools` of the workspace, at pinned versions. Where there is no Python, no pip or
//! no package registry, the test says that it did not run ([`not_run`]), which in CI is a failure.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::emulator::not_run;

/// Names the Python interpreter, if `python3` is not the one.
pub const PYTHON: &str = "AQUEDUCT_PYTHON";

/// Google's Pub/Sub client and all it needs, so that the same code runs everywhere and in a year.
const PUBSUB: Packages = Packages {
    name: "google-cloud-pubsub-2.44.0",
    requirements: &[
        "google-cloud-pubsub==2.44.0",
        "certifi==2026.10.19.post1",
        "cffi==2.1.1",
        "charset-normalizer==3.5.3",
        "cryptography==50.0.2",
        "google-api-core==2.44.0",
        "google-auth==2.63.0",
        "googleapis-common-protos==1.76.0",
        "grpc-google-iam-v1==0.14.6",
        "grpcio==1.85.3",
        "grpcio-status==1.85.3",
        "idna==3.20",
        "opentelemetry-api==1.45.2",
        "opentelemetry-sdk==1.45.2",
        "opentelemetry-semantic-conventions==0.66b2",
        "proto-plus==1.29.0",
        "protobuf==7.36.2",
        "pyasn1==0.6.5",
        "pyasn1_modules==0.4.2",
        "pycparser==3.12",
        "requests==2.34.2",
        "typing_extensions==4.16.0",
        "urllib3==2.8.0",
    ],
};

/// Packages that are installed together.
struct Packages {
    /// Of their folder; changes with the versions.
    name: &'static str,
    requirements: &'static [&'static str],
}

/// A Python interpreter that finds the packages.
#[derive(Clone, Debug)]
pub struct Python {
    interpreter: OsString,
    packages: PathBuf,
}

impl Python {
    /// Runs a script with them.
    #[must_use]
    pub fn command(&self, script: &Path) -> Command {
        let mut command = Command::new(&self.interpreter);
        command
            .arg(script)
            .env("PYTHONPATH", &self.packages)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::null());
        command
    }
}

/// Python with Google's Pub/Sub client, fetched if it is not there yet, for the test that calls; or reports that the test did
/// not run.
///
/// `None` means: cannot be had here, reported, so return. The first call of a machine takes up to a minute.
///
/// # Panics
///
/// In CI when it cannot be had.
#[must_use = "None means that the test must return"]
#[track_caller]
pub fn require_python_pubsub() -> Option<Python> {
    let interpreter = std::env::var_os(PYTHON).unwrap_or_else(|| "python3".into());
    match fetched(&PUBSUB, &interpreter) {
        Ok(packages) => Some(Python {
            interpreter,
            packages,
        }),
        Err(failure) => {
            not_run(
                &format!("Python with {} ({failure})", PUBSUB.name),
                "python3 with pip, and a package registry that pip reaches",
            );
            None
        }
    }
}

/// The folder of the packages.
fn fetched(packages: &Packages, interpreter: &OsString) -> Result<PathBuf, String> {
    /// One fetch at a time in this process; another process makes its own folder and the first one stays.
    static FETCHING: Mutex<()> = Mutex::new(());
    let _alone = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
    let folder = tools.join(packages.name);
    if folder.is_dir() {
        return Ok(folder);
    }
    let making = tools.join(format!("{}.{}", packages.name, std::process::id()));
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    fs::create_dir_all(&making).map_err(|error| failed("cannot make its folder", &error))?;
    let pip = Command::new(interpreter)
        .args(["-m", "pip", "install", "--quiet"])
        .args(["--disable-pip-version-check", "--no-deps"])
        .args(["--only-binary=:all:", "--target"])
        .arg(&making)
        .args(packages.requirements)
        .env("PIP_ROOT_USER_ACTION", "ignore")
        .stdin(Stdio::null())
        .output();
    let done = match pip {
        Ok(output) if output.status.success() => {
            // Whole or not at all. If another process was faster its folder is as good.
            match fs::rename(&making, &folder) {
                Err(error) if !folder.is_dir() => {
                    Err(failed("cannot move it to its place", &error))
                }
                _ => Ok(folder),
            }
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().rev().find(|line| !line.trim().is_empty());
            Err(failed("pip", &last.unwrap_or("no word of why")))
        }
        Err(error) => Err(failed(&interpreter.to_string_lossy(), &error)),
    };
    // There only if it was not moved.
    let _ = fs::remove_dir_all(&making);
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_fetched_says_why_and_leaves_nothing() {
        let packages = Packages {
            name: "no-such-package",
            requirements: &["./no-such-file.whl"],
        };
        let failure = fetched(&packages, &"no-such-interpreter".into()).expect_err("missing");
        assert!(failure.starts_with("no-such-interpreter"), "{failure}");
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
        let left = fs::read_dir(tools).expect("it was made");
        for entry in left.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            assert!(!name.starts_with("no-such-package"), "{name}");
        }
    }
}
