//! One JVM of a cluster: how it is started, and the end of what it wrote.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::Distribution;
use crate::emulator::guard::Guarded;

/// How much of a log a failing test shows.
const TAIL_BYTES: u64 = 6 * 1024;

/// What Flink's own configuration opens, as far as clusters and clients of the tests need it.
const OPENED: [&str; 14] = [
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.reflect",
    "java.base/java.math",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.text",
    "java.base/java.time",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/java.util.concurrent.locks",
    "java.base/sun.net.util",
    "java.base/sun.nio.ch",
];

/// Every process logs into a file that a property names. The file is appended to, because Flink configures log4j again
/// in the middle.
pub(super) const LOG4J: &str = "\
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = ${sys:log.file}
appender.file.append = true
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{HH:mm:ss.SSS} %-5p %c{1} %t - %m%n
";

/// A JVM, and where it logs.
#[derive(Debug)]
pub(super) struct Process {
    name: String,
    log: PathBuf,
    guarded: Guarded,
}

/// How to start a JVM.
pub(super) struct Start<'a> {
    pub(super) distribution: &'a Distribution,
    /// Holds `conf/` and `log/`.
    pub(super) folder: &'a Path,
    /// Of its log.
    pub(super) name: &'a str,
    pub(super) class_path: String,
    pub(super) heap_mib: u32,
    pub(super) jvm: &'a [&'a str],
    pub(super) main: &'a str,
    pub(super) args: &'a [&'a str],
    /// The standard output goes here instead of into the log of the test.
    pub(super) output: Option<&'a Path>,
}

impl Process {
    pub(super) fn start(start: &Start<'_>) -> io::Result<Self> {
        let conf = start.folder.join("conf");
        let log = start.folder.join("log").join(format!("{}.log", start.name));
        let mut line: Vec<OsString> = Vec::new();
        if let Some(output) = start.output {
            // The error stream stays with the guard, so that it notices the end.
            line.extend(["/bin/sh", "-c", r#"exec "$@" >"$0" </dev/null"#].map(Into::into));
            line.push(output.into());
        }
        line.push("/usr/bin/env".into());
        line.push(format!("FLINK_CONF_DIR={}", conf.display()).into());
        line.push(start.distribution.java.clone().into());
        line.push(format!("-Xmx{}m", start.heap_mib).into());
        // Small, and quick to start: nothing here measures speed.
        line.push("-XX:+UseSerialGC".into());
        line.push(format!("-Djava.io.tmpdir={}", start.folder.join("tmp").display()).into());
        // Where the SQL client keeps its history.
        line.push(format!("-Duser.home={}", start.folder.display()).into());
        line.push(format!("-Dlog.file={}", log.display()).into());
        line.push(
            format!(
                "-Dlog4j.configurationFile=file:{}",
                conf.join("log4j.properties").display()
            )
            .into(),
        );
        line.extend(OPENED.map(|package| format!("--add-opens={package}=ALL-UNNAMED").into()));
        line.extend(start.jvm.iter().map(Into::into));
        line.extend(["-cp".into(), start.class_path.clone().into()]);
        line.push(start.main.into());
        line.extend(start.args.iter().map(Into::into));
        let args: Vec<_> = line[1..].iter().map(OsString::as_os_str).collect();
        Ok(Self {
            name: start.name.to_owned(),
            log,
            guarded: Guarded::spawn(Path::new(&line[0]), &args)?,
        })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.guarded.has_ended()
    }

    /// Of the JVM, by the system's count.
    pub(super) fn id(&self) -> io::Result<u32> {
        self.guarded.child()
    }

    /// What it wrote to its standard streams: nothing, unless the JVM itself has something to say.
    pub(super) fn output(&self) -> String {
        self.guarded.output()
    }

    /// The end of its log and of its output, for a test that fails.
    pub(super) fn tail(&self) -> String {
        let ended = if self.has_ended() { ", ended" } else { "" };
        let log = tail_of(&self.log).unwrap_or_else(|error| format!("({error})\n"));
        format!(
            "--- {}{ended}: {}\n{log}{}",
            self.name,
            self.log.display(),
            self.output()
        )
    }
}

/// Whole lines from the end of a file.
fn tail_of(file: &Path) -> io::Result<String> {
    let mut file = fs::File::open(file)?;
    let length = file.metadata()?.len();
    let from = length.saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(match text.split_once('\n') {
        Some((_, whole)) if from > 0 => whole.to_owned(),
        _ => text.into_owned(),
    })
}
