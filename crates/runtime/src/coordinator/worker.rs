//! Worker threads: each a current-thread runtime that runs one subtask of every chain.
//!
//! I/O tasks of readers and writers run on the same runtime and end with it.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use aqueduct_connector::{Clock, Error, Result};
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};

use crate::host::within;
use crate::task::{self, AttemptPlan, Event, Outcome, TaskSpec};

/// A worker's thread.
pub(crate) struct Worker {
    thread: Option<thread::JoinHandle<()>>,
    /// Its sender is dropped when the thread ends, however it ends.
    ended: watch::Receiver<()>,
}

impl Worker {
    /// Waits for the thread to end; `false` if it did not in time.
    pub(crate) async fn join(&mut self, clock: &dyn Clock, limit: Duration) -> bool {
        let ended = async { while self.ended.changed().await.is_ok() {} };
        if within(clock, limit, ended).await.is_none() {
            return false;
        }
        if let Some(thread) = self.thread.take() {
            // Its panic, if any, was told by its tasks.
            let _ = thread.join();
        }
        true
    }
}

/// Starts the thread of worker `index`: a current-thread runtime and the tasks of one subtask index.
pub(crate) fn start_worker(
    index: usize,
    specs: Vec<TaskSpec>,
    plan: Arc<AttemptPlan>,
) -> Result<Worker> {
    let (mark, ended) = watch::channel(());
    let thread = thread::Builder::new()
        .name(format!("aqueduct-{}", index + 1))
        .spawn(move || {
            let mark = mark;
            let runtime = match tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
            {
                Ok(runtime) => runtime,
                Err(error) => {
                    for spec in specs {
                        let failure = Error::io("a worker's runtime cannot be made")
                            .with_source(std::io::Error::new(error.kind(), error.to_string()));
                        let _ = spec.events.try_send(Event::Exited {
                            task: spec.id,
                            outcome: Outcome::Failed(failure),
                        });
                    }
                    return;
                }
            };
            let local = LocalSet::new();
            local.block_on(&runtime, async move {
                let mut tasks = JoinSet::new();
                for spec in specs {
                    let events = spec.events.clone();
                    let id = spec.id;
                    let running = task::run(spec, plan.clone());
                    tasks.spawn_local(async move {
                        let run =
                            futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(running));
                        if run.await.is_err() {
                            let failure = Error::bug("a task panicked outside its operators");
                            let _ = events
                                .send(Event::Exited {
                                    task: id,
                                    outcome: Outcome::Failed(failure),
                                })
                                .await;
                        }
                    });
                }
                while tasks.join_next().await.is_some() {}
            });
            drop(local);
            // I/O tasks end here; blocking file operations are not waited for.
            runtime.shutdown_background();
            drop(mark);
        })
        .map_err(|error| Error::io("a worker thread cannot be started").with_source(error))?;
    Ok(Worker {
        thread: Some(thread),
        ended,
    })
}
