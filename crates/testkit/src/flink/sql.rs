//! Scripts of SQL statements, run by the cluster's SQL gateway, or by Flink's own SQL client as a person does.
//!
//! The gateway is the normal way: it stays and is warm, and what it answers is data. It takes what the client takes, `SET`
//! and `ADD JAR` included. A set of inserts is written `BEGIN STATEMENT SET; ...; END;`.

use std::error::Error;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::cluster::{Cluster, LIMIT};
use super::http;
use super::jobs::JobId;

const CLIENT: &str = "org.apache.flink.table.client.SqlClient";

/// The last statement of a script for the client prints this, the proof that all before it went well: the client stops at
/// the first that fails.
const DONE: &str = "end of the script";

const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A script, and what it needs.
#[derive(Clone, Debug)]
pub struct Session<'a> {
    cluster: &'a Cluster,
    jars: Vec<PathBuf>,
    options: Map<String, Value>,
    limit: Duration,
}

impl Cluster {
    /// Runs a script without more ado. See [`Session::run`].
    ///
    /// # Panics
    ///
    /// When a statement fails.
    #[track_caller]
    pub fn sql(&self, script: &str) -> Output {
        self.session().run(script)
    }

    /// A session, for a script that needs jars or options.
    #[must_use]
    pub fn session(&self) -> Session<'_> {
        Session {
            cluster: self,
            jars: Vec::new(),
            options: Map::new(),
            limit: LIMIT,
        }
    }
}

impl Session<'_> {
    /// Adds a jar to the job and to what plans it, as `-j` of the client does. It must not be in `lib/` too.
    #[must_use]
    pub fn jar(mut self, jar: impl Into<PathBuf>) -> Self {
        self.jars.push(jar.into());
        self
    }

    /// Sets an option, as `SET` does.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.options.insert(key.to_owned(), value.into());
        self
    }

    /// How long one statement may take. Default: [`LIMIT`].
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs the statements in turn, each to its end. An `INSERT` ends when its job is submitted, or with its job if
    /// `table.dml-sync` is set; a `SELECT` with its last row.
    ///
    /// # Panics
    ///
    /// When a statement fails or passes the limit, with the end of every log.
    #[track_caller]
    pub fn run(&self, script: &str) -> Output {
        match self.try_run(script) {
            Ok(output) => output,
            Err(error) => self.cluster.fail(&format!("{error}\n{}", error.text())),
        }
    }

    /// As [`run`](Self::run), where a statement that fails is an answer.
    ///
    /// # Errors
    ///
    /// What Flink says of the first statement that fails.
    ///
    /// # Panics
    ///
    /// When the gateway does not answer, or a statement passes the limit.
    #[track_caller]
    pub fn try_run(&self, script: &str) -> Result<Output, SqlError> {
        let opened = self.call(
            "POST",
            "/v2/sessions",
            Some(&json!({"properties": self.options})),
        );
        let session = match opened {
            Ok(answer) => format!("/v2/sessions/{}", self.text_of(&answer, "sessionHandle")),
            Err(text) => return Err(SqlError { statement: 0, text }),
        };
        let jars = self.jars.iter();
        let statements: Vec<String> = jars
            .map(|jar| format!("ADD JAR '{}'", jar.display()))
            .chain(split(script).into_iter().map(str::to_owned))
            .collect();
        let mut output = Output::default();
        let mut failed = None;
        for (index, statement) in statements.iter().enumerate() {
            match self.statement(&session, statement, &mut output) {
                Ok(()) => {}
                Err(text) => {
                    let statement = (index + 1).saturating_sub(self.jars.len());
                    failed = Some(SqlError { statement, text });
                    break;
                }
            }
        }
        // Ends what a failure left; jobs of inserts go on.
        let _ = self.call("DELETE", &session, None);
        failed.map_or(Ok(output), Err)
    }

    #[track_caller]
    fn statement(&self, session: &str, statement: &str, output: &mut Output) -> Result<(), String> {
        let body = json!({"statement": statement});
        let begun = self.call("POST", &format!("{session}/statements"), Some(&body))?;
        let operation = self.text_of(&begun, "operationHandle");
        let mut next = format!("{session}/operations/{operation}/result/0?rowFormat=JSON");
        let deadline = Instant::now() + self.limit;
        let mut rows = Vec::new();
        loop {
            let answer = self.call("GET", &next, None)?;
            let kind = answer["resultType"].as_str();
            if kind != Some("NOT_READY") {
                if let Some(job) = answer["jobID"].as_str() {
                    let job = JobId(job.to_owned());
                    if answer["isQueryResult"] == false && !output.jobs.contains(&job) {
                        output.jobs.push(job);
                    }
                }
                let data = answer["results"]["data"].as_array();
                rows.extend(data.into_iter().flatten().map(Row::read));
            }
            if kind == Some("EOS") {
                output.rows = rows;
                return Ok(());
            }
            if Instant::now() > deadline {
                let limit = self.limit;
                let number = rows.len();
                self.cluster.fail(&format!(
                    "hang: waited {limit:?} for the end of `{statement}`, which gave {number} rows"
                ));
            }
            match answer["nextResultUri"].as_str() {
                Some(uri) if uri != next => uri.clone_into(&mut next),
                _ => {}
            }
            if answer["results"]["data"]
                .as_array()
                .is_none_or(Vec::is_empty)
            {
                thread::sleep(LOOK_AGAIN);
            }
        }
    }

    /// The answer of the gateway, or the text of its failure.
    #[track_caller]
    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        match http::call(self.cluster.gateway(), method, path, body) {
            Ok((status, answer)) if status < 400 => Ok(answer),
            Ok((_, answer)) => Err(match answer["errors"].as_array() {
                Some(errors) => {
                    let texts = errors.iter().filter_map(Value::as_str);
                    texts.collect::<Vec<_>>().join("\n")
                }
                None => answer.to_string(),
            }),
            Err(error) => self
                .cluster
                .fail(&format!("the SQL gateway: {method} {path}: {error}")),
        }
    }

    #[track_caller]
    fn text_of(&self, answer: &Value, name: &str) -> String {
        match answer[name].as_str() {
            Some(text) => text.to_owned(),
            None => self
                .cluster
                .fail(&format!("the SQL gateway gave no {name}: {answer}")),
        }
    }

    /// Runs the script as `sql-client.sh -f` does, with the jars as `-j`, and returns what it prints. Takes some ten seconds.
    ///
    /// # Errors
    ///
    /// What it printed, if a statement failed.
    ///
    /// # Panics
    ///
    /// When it does not end in time.
    #[track_caller]
    pub fn client(&self, script: &str) -> Result<String, String> {
        let folder = self.cluster.folder().join("sql");
        let [file, output] = ["sql", "out"].map(|end| folder.join(format!("script.{end}")));
        let sets = self.options.iter().map(|(key, value)| {
            let value = value.as_str().unwrap_or_default();
            format!("SET '{key}' = '{value}';\n")
        });
        let text: String = sets
            .chain([format!("{script}\n;EXPLAIN SELECT '{DONE}';\n")])
            .collect();
        // An empty statement is one too many for the client.
        let text = split(&text).join(";\n") + ";\n";
        let mut args = vec!["embedded".to_owned(), "-f".to_owned(), show(&file)];
        for jar in &self.jars {
            args.extend(["-j".to_owned(), show(jar)]);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let started = fs::write(&file, text).and_then(|()| {
            self.cluster
                .client("sql-client", CLIENT, &args, Some(&output))
        });
        let process = match started {
            Ok(process) => process,
            Err(error) => self
                .cluster
                .fail(&format!("cannot start the SQL client: {error}")),
        };
        self.cluster.wait_at_most(self.limit, "the SQL client", || {
            process.has_ended().then_some(())
        });
        let printed = fs::read_to_string(&output).unwrap_or_else(|error| error.to_string());
        let all = format!("{printed}{}", process.output());
        if printed.contains(DONE) && !printed.contains("[ERROR]") {
            Ok(all)
        } else {
            Err(all)
        }
    }
}

fn show(path: &Path) -> String {
    path.display().to_string()
}

/// What a script gave.
#[derive(Clone, Debug, Default)]
pub struct Output {
    jobs: Vec<JobId>,
    rows: Vec<Row>,
}

impl Output {
    /// The jobs of its inserts, in their order.
    #[must_use]
    pub fn jobs(&self) -> &[JobId] {
        &self.jobs
    }

    /// The job of its insert.
    ///
    /// # Panics
    ///
    /// When there is not exactly one.
    #[must_use]
    #[track_caller]
    pub fn job(&self) -> &JobId {
        match &self.jobs[..] {
            [job] => job,
            jobs => panic!("the script began {} jobs, not one", jobs.len()),
        }
    }

    /// What the last statement gave.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }
}

/// A row of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Whether it is added or taken back: `INSERT`, `UPDATE_BEFORE`, `UPDATE_AFTER`, `DELETE`.
    pub kind: String,
    /// As Flink's JSON format writes them.
    pub fields: Vec<Value>,
}

impl Row {
    fn read(row: &Value) -> Self {
        Self {
            kind: row["kind"].as_str().unwrap_or_default().to_owned(),
            fields: row["fields"].as_array().cloned().unwrap_or_default(),
        }
    }
}

/// A statement that failed.
#[derive(Clone, Debug)]
pub struct SqlError {
    statement: usize,
    text: String,
}

impl SqlError {
    /// Everything that Flink said, stack traces included.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The innermost cause, which is what a person reads first.
    #[must_use]
    pub fn cause(&self) -> &str {
        let cause = self
            .text
            .lines()
            .rev()
            .find_map(|line| line.trim().strip_prefix("Caused by: "));
        cause
            .or_else(|| self.text.lines().next())
            .unwrap_or_default()
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "statement {} of the script failed: {}",
            self.statement,
            self.cause()
        )
    }
}

impl Error for SqlError {}

/// The statements of a script, without comments around them; semicolons in quotes and comments do not end one.
fn split(script: &str) -> Vec<&str> {
    let bytes = script.as_bytes();
    let mut statements = Vec::new();
    // Where the statement begins, once something of it was seen.
    let mut start = None;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'\'' | b'`' | b'"') => {
                start.get_or_insert(at);
                // A doubled quote closes and opens again, which is the same here.
                at += 1 + length_until(&script[at + 1..], &[quote]);
            }
            b'-' if bytes[at..].starts_with(b"--") => at += length_until(&script[at..], b"\n"),
            b'/' if bytes[at..].starts_with(b"/*") => {
                at += 2 + length_until(&script[at + 2..], b"*/");
            }
            b';' => {
                if let Some(start) = start.take() {
                    statements.push(script[start..at].trim_end());
                }
                at += 1;
            }
            byte => {
                if !byte.is_ascii_whitespace() {
                    start.get_or_insert(at);
                }
                at += 1;
            }
        }
    }
    if let Some(start) = start {
        statements.push(script[start..].trim_end());
    }
    statements
}

/// How many bytes until behind this end, or to the end of the text.
fn length_until(text: &str, end: &[u8]) -> usize {
    let found = text.as_bytes().windows(end.len()).position(|it| it == end);
    found.map_or(text.len(), |at| at + end.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_end_at_semicolons() {
        assert_eq!(
            split("SET 'a' = 'b';\n\nSELECT 1"),
            ["SET 'a' = 'b'", "SELECT 1"]
        );
        assert_eq!(split(" ; ;\n"), Vec::<&str>::new());
        assert_eq!(split("SELECT 'ä';"), ["SELECT 'ä'"]);
    }

    #[test]
    fn semicolons_in_quotes_and_comments_end_nothing() {
        assert_eq!(
            split("SELECT 'it''s; one' AS `a;b`;"),
            ["SELECT 'it''s; one' AS `a;b`"]
        );
        assert_eq!(split("-- no; statement\nSELECT 1;"), ["SELECT 1"]);
        assert_eq!(
            split("/* neither;\n */ SELECT /* ; */ 1"),
            ["SELECT /* ; */ 1"]
        );
        assert_eq!(split("SELECT 'open; quote"), ["SELECT 'open; quote"]);
    }

    #[test]
    fn the_innermost_cause_is_told() {
        let error = SqlError {
            statement: 2,
            text: "Internal server error.\n<Exception\n\tat A\nCaused by: outer: no\n\tat B\n\
                   Caused by: inner: no table\n\tat C\n"
                .to_owned(),
        };
        assert_eq!(
            error.to_string(),
            "statement 2 of the script failed: inner: no table"
        );
    }
}
