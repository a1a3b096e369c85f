//! What a process of a cluster takes, as the system and its JVM tell: for tests that let jobs come and go and expect that
//! nothing of them stays.
//!
//! Linux only: it reads `/proc`.

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::Distribution;
use super::cluster::Cluster;
use super::process::Process;

/// What a library of ours is called wherever it was mapped from.
const LIBRARY: &str = "libaqueduct_flink";

/// Names of our threads begin like this. The system cuts them after 15 bytes.
const THREADS: &str = "aqueduct-";

/// A process of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Member {
    /// The JobManager.
    JobManager,
    /// The TaskManager of this number.
    TaskManager(usize),
    /// The SQL gateway, which plans statements.
    Gateway,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::JobManager => f.write_str("JobManager"),
            Self::TaskManager(number) => write!(f, "TaskManager {number}"),
            Self::Gateway => f.write_str("SQL gateway"),
        }
    }
}

/// What a process takes at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// All threads.
    pub threads: u64,
    /// The names of our own.
    pub our_threads: Vec<String>,
    /// What its open file descriptors refer to, sorted.
    pub descriptors: Vec<String>,
    /// Memory that lies in RAM, in KiB.
    pub resident_kib: u64,
    /// Used metaspace, in KiB: what the JVM holds for its classes.
    pub metaspace_kib: u64,
    /// How often our library is mapped: once for each class loader that loaded it and lives.
    pub libraries: u64,
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} threads ({} ours), {} descriptors, {} KiB resident, {} KiB metaspace, {} libraries",
            self.threads,
            self.our_threads.len(),
            self.descriptors.len(),
            self.resident_kib,
            self.metaspace_kib,
            self.libraries
        )
    }
}

impl Cluster {
    /// Lets the garbage of a process be collected, classes included, and measures what is left.
    ///
    /// # Panics
    ///
    /// When the process does not run, or its JVM does not answer.
    #[must_use]
    #[track_caller]
    pub fn footprint(&self, member: Member) -> Footprint {
        let measured = self.with_process(member, |process| {
            collect_garbage(self.distribution(), process)?;
            measure(self.distribution(), process)
        });
        match measured {
            Some(Ok(footprint)) => footprint,
            Some(Err(error)) => self.fail(&format!("cannot measure the {member}: {error}")),
            None => self.fail(&format!("there is no {member} to measure")),
        }
    }
}

fn collect_garbage(distribution: &Distribution, process: &Process) -> io::Result<()> {
    jcmd(distribution, process, "GC.run").map(drop)
}

/// Asks the JVM itself. `jcmd` comes with the JDK, beside `java`.
fn jcmd(distribution: &Distribution, process: &Process, command: &str) -> io::Result<String> {
    let answer = Command::new(distribution.java.with_file_name("jcmd"))
        .args([&process.id()?.to_string(), command])
        .stdin(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    if answer.status.success() {
        return Ok(text);
    }
    let error = String::from_utf8_lossy(&answer.stderr);
    Err(io::Error::other(format!("jcmd {command}: {text}{error}")))
}

fn measure(distribution: &Distribution, process: &Process) -> io::Result<Footprint> {
    let proc = PathBuf::from(format!("/proc/{}", process.id()?));
    let status = fs::read_to_string(proc.join("status"))?;
    let mut our_threads = Vec::new();
    for thread in fs::read_dir(proc.join("task"))? {
        // One that ends meanwhile has no name any more.
        let name = fs::read_to_string(thread?.path().join("comm")).unwrap_or_default();
        if name.starts_with(THREADS) {
            our_threads.push(name.trim_end().to_owned());
        }
    }
    our_threads.sort();
    let mut descriptors = Vec::new();
    for descriptor in fs::read_dir(proc.join("fd"))? {
        // One that is closed meanwhile refers to nothing any more.
        if let Ok(file) = fs::read_link(descriptor?.path()) {
            descriptors.push(file.display().to_string());
        }
    }
    descriptors.sort();
    let maps = fs::read_to_string(proc.join("maps"))?;
    let code = |line: &&str| line.contains(LIBRARY) && line.contains(" r-xp ");
    let metaspace = jcmd(distribution, process, "GC.heap_info")?;
    Ok(Footprint {
        threads: number_behind(&status, "Threads:")?,
        our_threads,
        descriptors,
        resident_kib: number_behind(&status, "VmRSS:")?,
        metaspace_kib: number_behind(&metaspace, "Metaspace       used")?,
        libraries: maps.lines().filter(code).count() as u64,
    })
}

/// The number that follows `label`, with or without a unit behind it.
fn number_behind(text: &str, label: &str) -> io::Result<u64> {
    let number = text.split_once(label).and_then(|(_, after)| {
        let after = after.trim_start();
        let end = after.find(|c: char| !c.is_ascii_digit());
        after[..end.unwrap_or(after.len())].parse().ok()
    });
    number.ok_or_else(|| io::Error::other(format!("no number behind `{label}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_with_and_without_units() {
        let text = "Threads:\t57\nVmRSS:\t  123456 kB\n Metaspace       used 4711K, committed";
        assert_eq!(number_behind(text, "Threads:").ok(), Some(57));
        assert_eq!(number_behind(text, "VmRSS:").ok(), Some(123_456));
        assert_eq!(
            number_behind(text, "Metaspace       used").ok(),
            Some(4_711)
        );
        assert!(number_behind(text, "VmHWM:").is_err());
    }
}
