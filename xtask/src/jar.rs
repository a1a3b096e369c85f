//! The jars for Apache Flink: builds the native library, runs Maven, and looks at what came out.
//!
//! The jars are in `TARGET/flink`; everything on the way is in folders beside them, so that no build writes into the
//! sources and two target folders never meet.
//!
//! # Invariants
//!
//! - A jar holds our classes, what belongs to them, and the native library with a notice of what is linked into it: no class of
//!   anybody else, so nothing can clash with what Flink or a user brings.
//! - A service that a jar announces is a class that it holds. Flink fails every job where one is missing.
//! - The library exports what Java binds and nothing else.

use std::collections::BTreeSet;
use std::env;
use std::env::consts;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::notices;
use crate::run::{Tests, cargo, run};
use crate::zip;

/// The version of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The modules below `flink/` that make a jar, named after their connector.
const CONNECTORS: [&str; 2] = ["bigtable", "pubsub"];

/// The oldest Maven that the build was tried with.
const MAVEN: (u32, u32) = (3, 8);
/// The oldest Java that supported Flink versions run on.
const JAVA: u32 = 11;

/// What begins the name of whatever the library may export: what Java binds, and what its own linker looks for, which nobody
/// else does.
const EXPORTS: [&str; 4] = [
    "Java_io_aqueduct_flink_",
    "JNI_OnLoad",
    "JNI_OnUnload",
    "__wrap_socketpair",
];

const MAVEN_LIMIT: Duration = Duration::from_secs(15 * 60);

/// How much is optimized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    /// For tests: with the artifacts that a developer's build has made already, so it takes no minutes, and with the
    /// checks of such a build (overflow, debug assertions).
    Tests,
    /// What users get: optimized over all crates, which takes minutes.
    Release,
}

/// `cargo xtask jar`.
pub(crate) fn jar(root: &Path, kind: Build) -> ExitCode {
    match build(root, kind, &mut Tests::default()) {
        Ok(jars) => {
            for jar in jars {
                say(&jar.display().to_string());
            }
            ExitCode::SUCCESS
        }
        Err(failure) => {
            say(&failure);
            ExitCode::FAILURE
        }
    }
}

/// Builds and checks the jars. Returns where they are; the Java tests, failed ones too, are added to `tests`.
///
/// # Errors
///
/// Says what failed, what is missing, or what a jar holds that it must not.
pub(crate) fn build(root: &Path, kind: Build, tests: &mut Tests) -> Result<Vec<PathBuf>, String> {
    look_for_maven()?;
    let library = library(root, kind)?;
    check_exports(&library)?;
    let folder = target(root).join("flink");
    let native = folder.join("native");
    let notice = notices::notice(root)?;
    stage(&library, &notice, &native).map_err(|error| format!("{}: {error}", native.display()))?;
    let made = folder.join("build");
    maven(root, &made, &native, tests)?;
    let mut jars = Vec::new();
    let mut violations = Vec::new();
    for connector in CONNECTORS {
        let name = module(connector);
        let jar = made.join(&name).join(format!("{name}-{VERSION}.jar"));
        let entries = zip::names(&jar).map_err(|error| format!("{}: {error}", jar.display()))?;
        let services = services(&root.join("flink").join(format!("sql-{connector}")))
            .map_err(|error| format!("the services of {connector}: {error}"))?;
        let others: Vec<_> = CONNECTORS.iter().filter(|it| **it != connector).collect();
        violations.extend(
            check(&entries, &others, &services)
                .into_iter()
                .map(|found| format!("{name}-{VERSION}.jar: {found}")),
        );
        jars.push((name, jar));
    }
    if violations.is_empty() {
        publish(&folder, &jars).map_err(|error| format!("{}: {error}", folder.display()))
    } else {
        Err(violations.join("\n"))
    }
}

/// The Maven module of a connector.
fn module(connector: &str) -> String {
    format!("aqueduct-flink-sql-{connector}")
}

/// Where cargo builds.
pub(crate) fn target(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |set| root.join(set))
}

/// Fails where Maven or its Java is missing or too old.
fn look_for_maven() -> Result<(), String> {
    const INSTALL: &str = "install Maven 3.8 or newer and a JDK of 11 or newer \
         (apt-get install maven openjdk-17-jdk-headless; brew install maven openjdk@17)";
    let answer = Command::new("mvn")
        .args(["-B", "-Dstyle.color=never", "--version"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start mvn: {error}; {INSTALL}"))?;
    let text = String::from_utf8_lossy(&answer.stdout);
    let (maven, java) = versions(&text)
        .ok_or_else(|| format!("`mvn --version` says neither its version nor Java's; {INSTALL}"))?;
    if maven < MAVEN || java < JAVA {
        let (major, minor) = maven;
        return Err(format!(
            "mvn is {major}.{minor} and runs on Java {java}; {INSTALL}, or set JAVA_HOME"
        ));
    }
    Ok(())
}

/// Major and minor of Maven, major of Java, from what `mvn --version` says.
fn versions(text: &str) -> Option<((u32, u32), u32)> {
    // Maven colours its first line even in batch mode.
    let maven = text.split_once("Apache Maven ")?.1;
    let mut maven = maven.split(|c: char| !c.is_ascii_digit());
    let maven = (maven.next()?.parse().ok()?, maven.next()?.parse().ok()?);
    let java = text.split_once("Java version: ")?.1;
    let java = java.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((maven, java.parse().ok()?))
}

/// Builds the library and says where it is.
fn library(root: &Path, kind: Build) -> Result<PathBuf, String> {
    let profile = match kind {
        Build::Tests => "dev",
        Build::Release => "release",
    };
    // Named here, the crate type is the only one, which lets the profile optimize over all crates.
    let args = [
        "rustc",
        "--package",
        "aqueduct-flink",
        "--lib",
        "--crate-type",
        "cdylib",
    ];
    let more = [
        "--profile",
        profile,
        "--locked",
        "--message-format",
        "json-render-diagnostics",
    ];
    // What only a debugger reads is most of the file.
    let linker = ["--", "-C", "strip=symbols"];
    let args = [&args[..], &more, &linker].concat();
    let answer = cargo(root, &args)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    if !answer.status.success() {
        return Err(format!("cargo rustc -p aqueduct-flink: {}", answer.status));
    }
    String::from_utf8_lossy(&answer.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == "aqueduct_flink")
        .filter_map(|message| message["filenames"][0].as_str().map(PathBuf::from))
        .next_back()
        .ok_or_else(|| "cargo did not say where it put the library".to_owned())
}

/// Fails if the library exports what is not for Java: two libraries in one process would find each other's.
fn check_exports(library: &Path) -> Result<(), String> {
    let answer = Command::new("nm")
        .args(if consts::OS == "macos" {
            ["-g", "-U"]
        } else {
            ["-D", "--defined-only"]
        })
        .arg(library)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start nm: {error}; install a C compiler's binutils"))?;
    if !answer.status.success() {
        return Err(format!("nm {}: {}", library.display(), answer.status));
    }
    let text = String::from_utf8_lossy(&answer.stdout);
    let foreign = foreign_exports(&text)?;
    if foreign.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "the native library exports what no Java class binds: {}",
            foreign.join(", ")
        ))
    }
}

/// Symbols that are not for Java, from what `nm` says. None at all is an error.
fn foreign_exports(text: &str) -> Result<Vec<&str>, String> {
    let symbols: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_whitespace().next_back())
        // The linker of macOS puts an underscore before each.
        .map(|symbol| match consts::OS {
            "macos" => symbol.strip_prefix('_').unwrap_or(symbol),
            _ => symbol,
        })
        .collect();
    if symbols.is_empty() {
        return Err("the native library exports nothing".to_owned());
    }
    let is_ours = |symbol: &&str| EXPORTS.iter().any(|prefix| symbol.starts_with(prefix));
    Ok(symbols.into_iter().filter(|it| !is_ours(it)).collect())
}

/// The name of this platform's folder in the jars; `NativeLibrary.Platform` in Java knows it too.
fn platform() -> String {
    format!("{}-{}", consts::OS, consts::ARCH)
}

/// Puts the library, and the notice that belongs to it, where the Maven build takes them from.
fn stage(library: &Path, notice: &str, native: &Path) -> io::Result<()> {
    // A library of an earlier layout would enter the jars.
    if native.exists() {
        fs::remove_dir_all(native)?;
    }
    let folder = native.join("io/aqueduct/flink/native");
    let own = folder.join(platform());
    fs::create_dir_all(&own)?;
    let name = library
        .file_name()
        .ok_or_else(|| io::Error::other("cargo named a folder"))?;
    fs::copy(library, own.join(name))?;
    fs::write(folder.join("platforms"), format!("{}\n", platform()))?;
    let meta = native.join("META-INF");
    fs::create_dir_all(&meta)?;
    fs::write(meta.join("NOTICE"), notice)
}

/// Compiles, tests and packs.
fn maven(root: &Path, made: &Path, native: &Path, tests: &mut Tests) -> Result<(), String> {
    // What is gone from the sources would still be packed, and counted.
    let modules = CONNECTORS.map(|connector| format!("{}/classes", module(connector)));
    let reports = made.join("aqueduct-flink/surefire-reports");
    let old = modules.iter().map(|name| made.join(name));
    for old in old.chain([made.join("aqueduct-flink/classes"), reports.clone()]) {
        if old.exists() {
            fs::remove_dir_all(&old).map_err(|error| format!("{}: {error}", old.display()))?;
        }
    }
    let define = |name: &str, value: &str| format!("-D{name}={value}");
    let mut command = Command::new("mvn");
    command
        .current_dir(root.join("flink"))
        .args(["-q", "-B", "-Dstyle.color=never", "package"])
        .arg(define("revision", VERSION))
        .arg(define("aqueduct.build", &made.display().to_string()))
        .arg(define("aqueduct.native", &native.display().to_string()));
    let ended = run(&mut command, MAVEN_LIMIT).0.check();
    *tests = read_reports(&reports)?;
    match ended {
        Ok(()) if tests.passed == 0 => Err("mvn package: no Java test ran".to_owned()),
        Ok(()) => Ok(()),
        Err(failure) if tests.names.is_empty() => Err(format!("mvn package: {failure}")),
        Err(_) => Err(format!("Java tests: {}", tests.names.join(", "))),
    }
}

/// Counts the tests of Maven's reports, one file a class.
fn read_reports(folder: &Path) -> Result<Tests, String> {
    let mut tests = Tests::default();
    let told = |error: io::Error| format!("{}: {error}", folder.display());
    let entries = match fs::read_dir(folder) {
        // It failed before any test.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(tests),
        entries => entries.map_err(told)?,
    };
    for entry in entries {
        let path = entry.map_err(told)?.path();
        if path.extension().is_some_and(|end| end == "txt") {
            let text = fs::read_to_string(&path).map_err(told)?;
            read_report(&text, &mut tests);
        }
    }
    Ok(tests)
}

/// Reads `Tests run: 6, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 0.3 s -- in io.aqueduct.Some`.
fn read_report(text: &str, tests: &mut Tests) {
    for line in text.lines().filter(|line| line.starts_with("Tests run: ")) {
        let number = |name: &str| -> u64 {
            line.split_once(name)
                .and_then(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next())
                .and_then(|digits| digits.parse().ok())
                .unwrap_or(0)
        };
        let (run, skipped) = (number("Tests run: "), number("Skipped: "));
        let failed = number("Failures: ") + number("Errors: ");
        tests.passed += run.saturating_sub(failed + skipped);
        tests.failed += failed;
        tests.ignored += skipped;
        if failed > 0 {
            let class = line.rsplit_once(' ').map_or(line, |(_, class)| class);
            tests.names.push(class.to_owned());
        }
    }
}

/// The classes that a module announces as services.
fn services(module: &Path) -> io::Result<Vec<String>> {
    let folder = module.join("src/main/resources/META-INF/services");
    let mut classes = Vec::new();
    if folder.is_dir() {
        for entry in fs::read_dir(folder)? {
            let text = fs::read_to_string(entry?.path())?;
            let lines = text
                .lines()
                .map(|line| line.split('#').next().unwrap_or(""));
            classes.extend(
                lines
                    .map(str::trim)
                    .filter(|it| !it.is_empty())
                    .map(String::from),
            );
        }
    }
    Ok(classes)
}

/// What a jar holds or lacks against its rules.
fn check(entries: &[String], others: &[&&str], services: &[String]) -> Vec<String> {
    let held: BTreeSet<&str> = entries.iter().map(String::as_str).collect();
    let mut found: Vec<String> = held
        .iter()
        .filter(|entry| !is_ours(entry) || others.iter().any(|other| is_of(entry, other)))
        .map(|entry| format!("holds {entry}"))
        .collect();
    let platform = format!("io/aqueduct/flink/native/{}/", platform());
    let has_library = held.iter().any(|entry| {
        entry
            .strip_prefix(&platform)
            .is_some_and(|rest| !rest.is_empty())
    });
    if !has_library {
        found.push(format!("has no native library in {platform}"));
    }
    for class in services {
        let entry = format!("{}.class", class.replace('.', "/"));
        if !held.contains(entry.as_str()) {
            found.push(format!("announces {class} and has no such class"));
        }
    }
    for needed in [
        "io/aqueduct/flink/NativeLibrary.class",
        "META-INF/LICENSE",
        "META-INF/MANIFEST.MF",
        "META-INF/NOTICE",
    ] {
        if !held.contains(needed) {
            found.push(format!("lacks {needed}"));
        }
    }
    found
}

fn is_ours(entry: &str) -> bool {
    let meta = [
        "META-INF/",
        "META-INF/MANIFEST.MF",
        "META-INF/LICENSE",
        "META-INF/NOTICE",
    ];
    entry == "io/"
        || entry.starts_with("io/aqueduct/")
        || meta.contains(&entry)
        || entry.starts_with("META-INF/services/")
}

fn is_of(entry: &str, connector: &str) -> bool {
    entry
        .strip_prefix("io/aqueduct/flink/")
        .and_then(|rest| rest.strip_prefix(connector))
        .is_some_and(|rest| rest.starts_with('/'))
}

/// Copies the jars to where people and tests look for them. Those of another version go.
fn publish(folder: &Path, jars: &[(String, PathBuf)]) -> io::Result<Vec<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "jar") {
            fs::remove_file(path)?;
        }
    }
    jars.iter()
        .map(|(name, jar)| {
            let to = folder.join(format!("{name}-{VERSION}.jar"));
            fs::copy(jar, &to)?;
            Ok(to)
        })
        .collect()
}

#[expect(clippy::print_stdout, reason = "this program speaks to a person")]
fn say(text: &str) {
    println!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(more: &[&str]) -> Vec<String> {
        let library = format!(
            "io/aqueduct/flink/native/{}/libaqueduct_flink.so",
            platform()
        );
        let usual = [
            "META-INF/",
            "META-INF/LICENSE",
            "META-INF/MANIFEST.MF",
            "META-INF/NOTICE",
            "META-INF/services/org.apache.flink.table.factories.Factory",
            "io/",
            "io/aqueduct/",
            "io/aqueduct/flink/NativeLibrary.class",
            "io/aqueduct/flink/pubsub/Factory.class",
            &library,
        ];
        usual
            .iter()
            .chain(more)
            .map(|it| (*it).to_owned())
            .collect()
    }

    fn checked(more: &[&str], services: &[&str]) -> Vec<String> {
        let services: Vec<_> = services.iter().map(|it| (*it).to_owned()).collect();
        check(&entries(more), &[&"bigtable"], &services)
    }

    #[test]
    fn a_jar_of_our_own_passes() {
        let found = checked(&[], &["io.aqueduct.flink.pubsub.Factory"]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn whatever_is_not_ours_is_found() {
        for foreign in [
            "com/google/common/base/Joiner.class",
            "io/grpc/Channel.class",
            "io/aqueductor/Thing.class",
            "META-INF/maven/com.google/pom.xml",
            "module-info.class",
            "io/aqueduct/flink/bigtable/Factory.class",
        ] {
            let found = checked(&[foreign], &[]);
            assert_eq!(found, [format!("holds {foreign}")]);
        }
    }

    #[test]
    fn what_is_missing_is_found() {
        let found = checked(&[], &["io.aqueduct.flink.pubsub.Gone"]);
        assert_eq!(found.len(), 1, "{found:?}");
        let found = check(&[], &[&"bigtable"], &[]);
        assert_eq!(found.len(), 5, "{found:?}");
    }

    #[test]
    fn an_export_that_java_does_not_bind_is_found() {
        let ours = "0000 T Java_io_aqueduct_flink_NativeLibrary_version\n0001 T JNI_OnUnload\n";
        assert_eq!(foreign_exports(ours), Ok(Vec::new()));
        let foreign = format!("{ours}0002 T ring_core_0_17_14__aes\n");
        assert_eq!(
            foreign_exports(&foreign),
            Ok(vec!["ring_core_0_17_14__aes"])
        );
        assert!(foreign_exports("").is_err());
    }

    #[test]
    fn the_versions_of_maven_and_java_are_read() {
        let text = "\u{1b}[1mApache Maven 3.8.7\u{1b}[m\nMaven home: /usr/share/maven\n\
                    Java version: 17.0.15, vendor: Debian\n";
        assert_eq!(versions(text), Some(((3, 8), 17)));
        assert_eq!(
            versions("Apache Maven 4.1.0\nJava version: 11\n"),
            Some(((4, 1), 11))
        );
        assert_eq!(versions("mvn: not found"), None);
    }

    #[test]
    fn the_reports_of_java_tests_are_counted() {
        let mut tests = Tests::default();
        let report = "-----\nTest set: io.aqueduct.A\n-----\n\
                      Tests run: 6, Failures: 1, Errors: 1, Skipped: 1, Time elapsed: 0.3 s <<< FAILURE! -- in io.aqueduct.A\n";
        read_report(report, &mut tests);
        assert_eq!((tests.passed, tests.failed, tests.ignored), (3, 2, 1));
        assert_eq!(tests.names, ["io.aqueduct.A"]);
    }
}
