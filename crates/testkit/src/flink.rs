//! Apache Flink: real clusters of each supported version, in processes of their own.
//!
//! ```no_run
//! use aqueduct_testkit::flink::{Cluster, Version};
//!
//! let Some(cluster) = Cluster::builder(Version::Flink2_3).task_managers(2).start() else {
//!     return; // reported as not run
//! };
//! let output = cluster.sql(
//!     "CREATE TABLE numbers (n BIGINT) WITH ('connector' = 'datagen', 'rows-per-second' = '1000');
//!      CREATE TABLE nowhere (n BIGINT) WITH ('connector' = 'blackhole');
//!      SET 'execution.checkpointing.interval' = '200ms';
//!      INSERT INTO nowhere SELECT * FROM numbers;",
//! );
//! let job = output.job();
//! cluster.wait_for_checkpoints(job, 3);
//! let savepoint = cluster.stop_with_savepoint(job);
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | [`cluster`] | the processes: a JobManager, TaskManagers that a test may kill, an SQL gateway |
//! | [`footprint`] | what a process takes: threads, descriptors, memory, copies of our library |
//! | [`jobs`] | what the JobManager tells and does about jobs: states, checkpoints, savepoints, metrics |
//! | [`sql`] | scripts, run by the gateway or by Flink's own client |
//!
//! # Invariants
//!
//! - No process outlives the cluster, nor the process that owns the cluster, even when that is killed.
//! - A wait asks the cluster again and again until it has its answer, and ends at a limit with the end of every log. So
//!   does a wait for a cluster whose JobManager is gone.
//! - Nothing is skipped in silence: without a distribution or Java the test reports that it did not run, which in CI is a
//!   failure.

pub mod cluster;
pub mod footprint;
mod http;
pub mod jobs;
mod process;
pub mod sql;

pub use cluster::{Builder, Cluster};
pub use footprint::{Footprint, Member};
pub use jobs::{Checkpoints, JobId, JobState};
pub use sql::{Output, Session, SqlError};

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::emulator::not_run;

/// What fetches the distributions.
const FETCH: &str = "cargo xtask flink";

/// The oldest Java that every supported version runs on.
const JAVA: u32 = 11;
const JAVA_INSTALL: &str = "apt-get install openjdk-17-jdk-headless (or: brew install openjdk@17)";

/// A supported version of Flink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// The current minor version.
    Flink2_3,
    /// The minor version before, which the jars are compiled against.
    Flink2_2,
    /// The long-term version of Flink 1.
    Flink1_20,
}

impl Version {
    /// Every supported one, newest first.
    pub const ALL: [Self; 3] = [Self::Flink2_3, Self::Flink2_2, Self::Flink1_20];

    /// The release that the tests run. `xtask` fetches the same.
    #[must_use]
    pub fn release(self) -> &'static str {
        match self {
            Self::Flink2_3 => "2.3.0",
            Self::Flink2_2 => "2.2.1",
            Self::Flink1_20 => "1.20.5",
        }
    }

    /// The option that names the savepoint to start from.
    #[must_use]
    pub fn restore_option(self) -> &'static str {
        match self {
            Self::Flink2_3 | Self::Flink2_2 => "execution.state-recovery.path",
            Self::Flink1_20 => "execution.savepoint.path",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.release())
    }
}

/// The jars of one version, and the Java that runs them.
#[derive(Clone, Debug)]
pub struct Distribution {
    version: Version,
    home: PathBuf,
    java: PathBuf,
}

impl Distribution {
    /// Finds the distribution, or reports that the test did not run.
    ///
    /// `None` means: not fetched, or no Java; reported, so return.
    ///
    /// # Panics
    ///
    /// In CI when it is missing.
    #[must_use = "None means that the test must return"]
    #[track_caller]
    pub fn require(version: Version) -> Option<Self> {
        let home = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../target/tools")
            .join(format!("flink-{version}"));
        let Ok(home) = home.canonicalize() else {
            not_run(&format!("Flink {version}"), FETCH);
            return None;
        };
        let java = java();
        match java_version(&java) {
            Some(version) if version >= JAVA => {}
            Some(version) => {
                not_run(&format!("Java {JAVA} (this is {version})"), JAVA_INSTALL);
                return None;
            }
            None => {
                not_run("Java", JAVA_INSTALL);
                return None;
            }
        }
        Some(Self {
            version,
            home,
            java,
        })
    }

    /// Which version it is.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The class path of a process of the cluster, more jars in front of it.
    fn class_path(&self, lib_jars: &[PathBuf], with_opt: bool) -> String {
        let mut parts: Vec<String> = lib_jars
            .iter()
            .map(|jar| jar.display().to_string())
            .collect();
        parts.push(format!("{}/lib/*", self.home.display()));
        if with_opt {
            parts.push(format!("{}/opt/*", self.home.display()));
        }
        parts.join(":")
    }
}

/// One of the jars that `cargo xtask jar` put into `flink/` of cargo's target folder: `jar("pubsub")`. Without it the test
/// reports that it did not run.
///
/// # Panics
///
/// In CI when it is missing.
#[must_use = "None means that the test must return"]
#[track_caller]
pub fn require_jar(connector: &str) -> Option<PathBuf> {
    let version = env!("CARGO_PKG_VERSION");
    let jar = folder().join(format!("aqueduct-flink-sql-{connector}-{version}.jar"));
    if jar.is_file() {
        return Some(jar);
    }
    not_run("the jars for Flink", "cargo xtask jar");
    None
}

/// `flink/` of the target folder that this program was built into.
fn folder() -> PathBuf {
    let target = env::current_exe().ok().and_then(|program| {
        // TARGET/debug/deps/TEST or TARGET/release/BENCHMARK
        let mut above = program.ancestors().skip(1);
        let profile = above.find(|folder| !folder.ends_with("deps"))?;
        profile.parent().map(Path::to_owned)
    });
    target.unwrap_or_else(env::temp_dir).join("flink")
}

/// The Java that Flink's own scripts would take.
fn java() -> PathBuf {
    match env::var_os("JAVA_HOME").filter(|home| !home.is_empty()) {
        Some(home) => PathBuf::from(home).join("bin/java"),
        None => PathBuf::from("java"),
    }
}

/// The major version, if it runs.
fn java_version(java: &Path) -> Option<u32> {
    let answer = Command::new(java)
        .arg("-version")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    major(&String::from_utf8_lossy(&answer.stderr))
}

/// From `openjdk version "17.0.15" 2025-04-15`. Java 8 says "1.8.0".
fn major(text: &str) -> Option<u32> {
    let version = text.split_once("version \"")?.1;
    let digits = version.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_java_is_read() {
        assert_eq!(major("openjdk version \"17.0.15\" 2025-04-15\n"), Some(17));
        assert_eq!(major("java version \"25\" 2026-09-16\n"), Some(25));
        assert_eq!(major("openjdk version \"1.8.0_292\"\n"), Some(1));
        assert_eq!(major("sh: java: not found"), None);
    }
}
