//! No wait is silent: what an attempt waits for, in words, and when to warn about it.

use std::time::Duration;

use aqueduct_connector::Moment;

use super::{Attempt, STALL_AFTER, Step};
use crate::stage::Wait;
use crate::task::TaskId;

impl Attempt<'_> {
    /// What the step under way waits for, for people.
    pub(super) fn waits_of_step(&self, now: Moment) -> String {
        match &self.step {
            Step::Collecting(flight) if !flight.enumerators.is_empty() => {
                let names: Vec<_> = flight
                    .enumerators
                    .iter()
                    .map(|operator| format!("'{}'", self.plan.graph.operator(*operator).name))
                    .collect();
                format!(
                    "waiting for the snapshot of the enumerators of {}",
                    names.join(", ")
                )
            }
            Step::Collecting(flight) => {
                const SHOWN: usize = 5;
                let mut texts: Vec<_> = flight
                    .tasks
                    .iter()
                    .take(SHOWN)
                    .map(|task| self.wait_of(*task, now).1)
                    .collect();
                if flight.tasks.len() > SHOWN {
                    texts.push(format!("{} more", flight.tasks.len() - SHOWN));
                }
                format!("missing the snapshots of {}", texts.join("; "))
            }
            Step::Writing(..) => "waiting for the checkpoint's files to be written".to_owned(),
            Step::Committing(..) => {
                "waiting for committers to apply the last checkpoint".to_owned()
            }
            Step::Finishing => "waiting for tasks to close".to_owned(),
            Step::Idle => "nothing is under way".to_owned(),
        }
    }

    fn wait_of(&self, task: TaskId, now: Moment) -> (Wait, String, Duration) {
        let (wait, operator, since) = self.boards[&task].read(now);
        let text = format!(
            "'{}' (subtask {}/{}) waiting for {}",
            self.plan.graph.operator(operator).name,
            task.subtask + 1,
            self.plan.parallelism,
            wait.text()
        );
        (wait, text, since)
    }

    /// Warns about every wait that has been too long, each once a minute, and shows them in the status.
    pub(super) fn watch(&mut self, now: Moment) {
        let mut stalled = Vec::new();
        let step_waits = now.since(self.step_since);
        if !matches!(self.step, Step::Idle) && step_waits >= STALL_AFTER {
            let text = self.waits_of_step(now);
            if now.since(self.step_warned) >= STALL_AFTER {
                self.step_warned = now;
                tracing::warn!(waited = ?step_waits, "no progress: {text}");
            }
            stalled.push(text);
        }
        for task in &self.live {
            let (wait, mut text, mut since) = self.wait_of(*task, now);
            let turn = self.boards[task].turn(now);
            let in_code = turn.filter(|(_, lasts)| *lasts >= STALL_AFTER);
            if let Some((operator, lasts)) = in_code {
                since = lasts;
                text = format!(
                    "'{}' (subtask {}/{}) does not return: its code blocks the thread",
                    self.plan.graph.operator(operator).name,
                    task.subtask + 1,
                    self.plan.parallelism
                );
            }
            // A full channel has its reason further down, which is warned about itself.
            let told = matches!(
                wait,
                Wait::Writer
                    | Wait::Flush
                    | Wait::Alignment
                    | Wait::Coordinator
                    | Wait::Opening
                    | Wait::Closing
            );
            if (!told && in_code.is_none()) || since < STALL_AFTER {
                continue;
            }
            let last = self.warned.get(task);
            if last.is_none_or(|last| now.since(*last) >= STALL_AFTER) {
                self.warned.insert(*task, now);
                tracing::warn!(waited = ?since, "no progress: {text}");
            }
            stalled.push(text);
        }
        self.job.show_stalled(stalled);
    }
}
