//! What all parts of a running simulation share.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::sync::watch;

use crate::{
    bigtable::slot::Directory, config::SimConfig, faults::Script, log::Log,
    pubsub::world::PubSubState,
};

/// A condition did not come to hold in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the condition did not hold within {limit:?}")]
pub struct TimedOut {
    /// How long was waited.
    pub limit: Duration,
}

/// How often a waiter looks even if nothing told it to. Guards against a change that is seen by
/// nobody because a waiter subscribed in the same instant.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

pub(crate) struct Core {
    pub(crate) config: SimConfig,
    pub(crate) directory: Directory,
    pub(crate) pubsub: PubSubState,
    pub(crate) script: Script,
    pub(crate) log: Log,
    changed: watch::Sender<()>,
}

impl Core {
    pub(crate) fn new(config: SimConfig) -> Self {
        Self {
            log: Log::new(config.logged_requests, config.logged_bytes),
            pubsub: PubSubState::new(config.pubsub.clone()),
            config,
            directory: Directory::default(),
            script: Script::default(),
            changed: watch::Sender::new(()),
        }
    }

    /// Tells waiters that something happened.
    pub(crate) fn notify(&self) {
        if self.changed.receiver_count() > 0 {
            self.changed.send_replace(());
        }
    }

    pub(crate) fn any_discards(&self) -> bool {
        self.directory.discarding.load(Ordering::SeqCst) > 0
    }

    pub(crate) async fn wait_until(
        &self,
        limit: Duration,
        mut condition: impl FnMut() -> bool,
    ) -> Result<(), TimedOut> {
        let mut changed = self.changed.subscribe();
        let wait = async {
            while !condition() {
                // Either way the condition is looked at again; the sender lives in `self`.
                let _ = tokio::time::timeout(LOOK_AGAIN, changed.changed()).await;
            }
        };
        tokio::time::timeout(limit, wait)
            .await
            .map_err(|_| TimedOut { limit })
    }
}
