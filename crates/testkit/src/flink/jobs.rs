//! What the JobManager tells and does about jobs.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::{Cluster, LIMIT};

/// The identifier of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub(super) String);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "Flink's own words")]
pub enum JobState {
    Initializing,
    Created,
    Running,
    Failing,
    Failed,
    Cancelling,
    Canceled,
    Finished,
    Restarting,
    Suspended,
    Reconciling,
}

impl JobState {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "INITIALIZING" => Self::Initializing,
            "CREATED" => Self::Created,
            "RUNNING" => Self::Running,
            "FAILING" => Self::Failing,
            "FAILED" => Self::Failed,
            "CANCELLING" => Self::Cancelling,
            "CANCELED" => Self::Canceled,
            "FINISHED" => Self::Finished,
            "RESTARTING" => Self::Restarting,
            "SUSPENDED" => Self::Suspended,
            "RECONCILING" => Self::Reconciling,
            _ => return None,
        })
    }

    /// Whether nothing comes after it.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Failed | Self::Canceled | Self::Finished)
    }
}

/// How many checkpoints there were; savepoints count as checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoints {
    /// Since the job was submitted.
    pub completed: u64,
    /// Since the job was submitted.
    pub failed: u64,
    /// How often the job went on from one, the savepoint it was started from included.
    pub restored: u64,
}

impl Cluster {
    /// The jobs that are not over.
    ///
    /// # Panics
    ///
    /// When the JobManager does not answer.
    #[must_use]
    #[track_caller]
    pub fn running_jobs(&self) -> Vec<JobId> {
        let answer = self.rest("/jobs/overview");
        let jobs = answer["jobs"].as_array().map_or(&[][..], Vec::as_slice);
        let over = |job: &Value| {
            let state = job["state"].as_str().and_then(JobState::parse);
            state.is_some_and(JobState::is_final)
        };
        jobs.iter()
            .filter(|job| !over(job))
            .filter_map(|job| Some(JobId(job["jid"].as_str()?.to_owned())))
            .collect()
    }

    /// What the job is doing; nothing while the JobManager does not know the job.
    #[must_use]
    pub fn state(&self, job: &JobId) -> Option<JobState> {
        let path = format!("/jobs/{job}/status");
        let (_, answer) = self.try_call("GET", &path, None).ok()?;
        JobState::parse(answer["status"].as_str()?)
    }

    /// Waits until the job is in this state.
    ///
    /// # Panics
    ///
    /// At the limit, and when the job ends in another state, with its failures.
    #[track_caller]
    pub fn wait_for_state(&self, job: &JobId, wanted: JobState) {
        self.wait_for_state_at_most(LIMIT, job, wanted);
    }

    /// As [`wait_for_state`](Self::wait_for_state), with a limit.
    ///
    /// # Panics
    ///
    /// At the limit, and when the job ends in another state, with its failures.
    #[track_caller]
    pub fn wait_for_state_at_most(&self, limit: Duration, job: &JobId, wanted: JobState) {
        self.wait_for_job(limit, job, &format!("it to be {wanted:?}"), || {
            let state = self.state(job)?;
            if state != wanted && state.is_final() {
                self.fail_job(job, &format!("is {state:?} and shall be {wanted:?}"));
            }
            (state == wanted).then_some(())
        });
    }

    /// Waits until every task of the job runs.
    ///
    /// # Panics
    ///
    /// At the limit, and when the job ends.
    #[track_caller]
    pub fn wait_for_tasks(&self, job: &JobId) {
        self.wait_for_job(LIMIT, job, "every task to run", || {
            let (_, answer) = self.try_call("GET", &format!("/jobs/{job}"), None).ok()?;
            let state = answer["state"].as_str().and_then(JobState::parse)?;
            if state.is_final() {
                self.fail_job(job, &format!("is {state:?} and shall run"));
            }
            let vertices = answer["vertices"].as_array()?;
            // Those of a bounded input may have ended.
            let run =
                |vertex: &Value| matches!(vertex["status"].as_str(), Some("RUNNING" | "FINISHED"));
            (state == JobState::Running && vertices.iter().all(run)).then_some(())
        });
    }

    /// How many checkpoints the job had so far.
    ///
    /// # Panics
    ///
    /// When the JobManager does not know.
    #[must_use]
    #[track_caller]
    pub fn checkpoints(&self, job: &JobId) -> Checkpoints {
        self.wait_for_job(LIMIT, job, "counts of checkpoints", || {
            self.try_checkpoints(job)
        })
    }

    fn try_checkpoints(&self, job: &JobId) -> Option<Checkpoints> {
        let path = format!("/jobs/{job}/checkpoints");
        let (_, answer) = self.try_call("GET", &path, None).ok()?;
        let count = |name: &str| answer["counts"][name].as_u64();
        Some(Checkpoints {
            completed: count("completed")?,
            failed: count("failed")?,
            restored: count("restored")?,
        })
    }

    /// Waits until so many more checkpoints are completed than now.
    ///
    /// # Panics
    ///
    /// At the limit, and when the job ends.
    #[track_caller]
    pub fn wait_for_checkpoints(&self, job: &JobId, more: u64) {
        let before = self.checkpoints(job).completed;
        self.wait_for_job(LIMIT, job, &format!("{more} checkpoints"), || {
            let done = self.try_checkpoints(job)?.completed >= before + more;
            if !done && self.state(job).is_some_and(JobState::is_final) {
                self.fail_job(job, &format!("ended before {more} checkpoints"));
            }
            done.then_some(())
        });
    }

    /// Takes a checkpoint now and waits until it is complete: for a test whose job takes none by itself, because the interval is
    /// long.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[track_caller]
    pub fn checkpoint(&self, job: &JobId) {
        self.wait_for_tasks(job);
        let body = json!({"checkpointType": "FULL"});
        let operation = self.operate(job, "checkpoints", "checkpoints", &body);
        if operation["checkpointId"].is_null() {
            self.fail_job(job, &format!("no checkpoint: {operation}"));
        }
    }

    /// The TaskManagers that run tasks of the job, by their numbers.
    ///
    /// # Panics
    ///
    /// When the JobManager does not answer.
    #[must_use]
    #[track_caller]
    pub fn task_managers_of(&self, job: &JobId) -> BTreeSet<usize> {
        let answer = self.rest(&format!("/jobs/{job}"));
        let vertices = answer["vertices"].as_array().into_iter().flatten();
        let ids = vertices.filter_map(|vertex| vertex["id"].as_str());
        ids.flat_map(|vertex| {
            let answer = self.rest(&format!("/jobs/{job}/vertices/{vertex}"));
            let subtasks = answer["subtasks"].as_array().cloned().unwrap_or_default();
            subtasks
                .iter()
                .filter_map(|subtask| {
                    let name = subtask["taskmanager-id"].as_str()?;
                    name.strip_prefix("taskmanager-")?.parse().ok()
                })
                .collect::<Vec<usize>>()
        })
        .collect()
    }

    /// Why the job failed, newest first: stack traces, those of failures that it recovered from included.
    ///
    /// # Panics
    ///
    /// When the JobManager does not answer.
    #[must_use]
    #[track_caller]
    pub fn failures(&self, job: &JobId) -> Vec<String> {
        traces(&self.rest(&format!("/jobs/{job}/exceptions")))
    }

    /// Asks the job to end, and waits until it has.
    ///
    /// # Panics
    ///
    /// When it does not end in time.
    #[track_caller]
    pub fn cancel(&self, job: &JobId) {
        // One that is over meanwhile refuses, which is as good.
        if let Err(error) = self.try_call("PATCH", &format!("/jobs/{job}?mode=cancel"), None) {
            self.fail(&format!("cannot cancel: {error}"));
        }
        self.wait_for("the job to end", || {
            self.state(job)?.is_final().then_some(())
        });
    }

    /// Cancels every job that is not over: what a test does before it begins on a cluster that others used.
    ///
    /// # Panics
    ///
    /// When one does not end in time.
    #[track_caller]
    pub fn cancel_all(&self) {
        for job in self.running_jobs() {
            self.cancel(&job);
        }
    }

    /// Takes a savepoint and returns its path. The job goes on.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[track_caller]
    pub fn savepoint(&self, job: &JobId) -> String {
        self.wait_for_tasks(job);
        let body = json!({"cancel-job": false});
        self.trigger(job, "savepoints", &body)
            .unwrap_or_else(|failure| self.fail_job(job, &format!("no savepoint: {failure}")))
    }

    /// Stops the job with a savepoint and returns its path.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[track_caller]
    pub fn stop_with_savepoint(&self, job: &JobId) -> String {
        self.wait_for_tasks(job);
        let savepoint = self
            .try_stop_with_savepoint(job)
            .unwrap_or_else(|failure| self.fail_job(job, &format!("no savepoint: {failure}")));
        self.wait_for_state(job, JobState::Finished);
        savepoint
    }

    /// As [`stop_with_savepoint`](Self::stop_with_savepoint), where a failure is an answer; the job runs then.
    ///
    /// # Errors
    ///
    /// What Flink says of the failure.
    ///
    /// # Panics
    ///
    /// When the JobManager does not answer.
    #[track_caller]
    pub fn try_stop_with_savepoint(&self, job: &JobId) -> Result<String, String> {
        self.trigger(job, "stop", &json!({"drain": false}))
    }

    /// Begins an operation that gives a savepoint, and waits for its end.
    #[track_caller]
    fn trigger(&self, job: &JobId, what: &str, body: &Value) -> Result<String, String> {
        let operation = self.operate(job, what, "savepoints", body);
        match operation["location"].as_str() {
            Some(location) => Ok(location.to_owned()),
            None => Err(operation["failure-cause"]["stack-trace"]
                .as_str()
                .map_or_else(|| operation.to_string(), str::to_owned)),
        }
    }

    /// Begins an operation and waits for its end, about which `kind` is asked.
    #[track_caller]
    fn operate(&self, job: &JobId, what: &str, kind: &str, body: &Value) -> Value {
        let answer = self.call("POST", &format!("/jobs/{job}/{what}"), Some(body));
        let Some(id) = answer["request-id"].as_str() else {
            self.fail(&format!("{what} gave no request-id: {answer}"));
        };
        let path = format!("/jobs/{job}/{kind}/{id}");
        self.wait_for_job(LIMIT, job, &format!("the end of {what}"), || {
            let answer = self.rest(&path);
            (answer["status"]["id"] == "COMPLETED").then(|| answer["operation"].clone())
        })
    }

    /// A statement for the beginning of a script whose jobs shall start from this savepoint.
    #[must_use]
    pub fn restore_from(&self, savepoint: &str) -> String {
        format!(
            "SET '{}' = '{savepoint}';\n",
            self.version().restore_option()
        )
    }

    /// The sum over all subtasks of every metric of the job whose name ends like this, such as `numRecordsIn` or
    /// `writer.rows_total`. Nothing if there is no such metric (yet).
    ///
    /// # Panics
    ///
    /// When the JobManager does not answer.
    #[must_use]
    #[track_caller]
    pub fn metric(&self, job: &JobId, name: &str) -> Option<f64> {
        let answer = self.rest(&format!("/jobs/{job}"));
        let vertices = answer["vertices"].as_array()?;
        let mut sum = None;
        for vertex in vertices.iter().filter_map(|vertex| vertex["id"].as_str()) {
            let path = format!("/jobs/{job}/vertices/{vertex}/subtasks/metrics");
            let listed = self.rest(&path);
            let is_it = |metric: &str| {
                metric
                    .strip_suffix(name)
                    .is_some_and(|before| before.is_empty() || before.ends_with('.'))
            };
            let names = listed.as_array().into_iter().flatten();
            let names: Vec<&str> = names
                .filter_map(|metric| metric["id"].as_str())
                .filter(|metric| is_it(metric))
                .collect();
            for metric in names {
                let values = self.rest(&format!("{path}?get={}&agg=sum", escape(metric)));
                // It may have gone meanwhile.
                if let Some(value) = values[0]["sum"].as_f64() {
                    *sum.get_or_insert(0.0) += value;
                }
            }
        }
        sum
    }

    /// As `wait_at_most`; whoever waits in vain wants to know why the job fails.
    #[track_caller]
    fn wait_for_job<T>(
        &self,
        limit: Duration,
        job: &JobId,
        what: &str,
        ask: impl FnMut() -> Option<T>,
    ) -> T {
        self.poll(limit, ask)
            .unwrap_or_else(|why| self.fail_job(job, &format!("{why}, waiting for {what}")))
    }

    /// Panics with the failures of the job and the end of every log.
    #[track_caller]
    fn fail_job(&self, job: &JobId, what: &str) -> ! {
        let path = format!("/jobs/{job}/exceptions");
        let failures = match self.try_call("GET", &path, None) {
            Ok((_, answer)) => traces(&answer).join("\n"),
            Err(error) => error.to_string(),
        };
        self.fail(&format!("job {job}: {what}\n{failures}"))
    }
}

fn traces(answer: &Value) -> Vec<String> {
    let entries = answer["exceptionHistory"]["entries"].as_array();
    let trace = |entry: &Value| entry["stacktrace"].as_str().map(str::to_owned);
    entries.into_iter().flatten().filter_map(trace).collect()
}

/// For the query of a URL.
fn escape(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_metrics_fit_into_a_url() {
        assert_eq!(
            escape("0.Source__g[1].rows_total"),
            "0.Source__g%5B1%5D.rows_total"
        );
    }

    #[test]
    fn only_final_states_are_final() {
        let all = ["FAILED", "CANCELED", "FINISHED"];
        assert!(
            all.iter()
                .all(|it| JobState::parse(it).is_some_and(JobState::is_final))
        );
        let not = [
            "RUNNING",
            "SUSPENDED",
            "RESTARTING",
            "FAILING",
            "CANCELLING",
        ];
        assert!(
            not.iter()
                .all(|it| JobState::parse(it).is_some_and(|it| !it.is_final()))
        );
        assert_eq!(JobState::parse("running"), None);
    }
}
