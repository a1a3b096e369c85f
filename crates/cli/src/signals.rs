//! What asks a command to end: Ctrl-C, and the signal that service managers send.

/// Listens from its creation on, so that no signal between two waits is missed.
#[cfg(unix)]
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    /// Must be called inside a runtime.
    pub(crate) fn new() -> Result<Self, String> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen =
            |kind| signal(kind).map_err(|error| format!("cannot wait for signals: {error}"));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one. Dropping the wait loses none.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Listens from its creation on, so that no signal between two waits is missed.
#[cfg(windows)]
pub(crate) struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    /// Must be called inside a runtime.
    pub(crate) fn new() -> Result<Self, String> {
        tokio::signal::windows::ctrl_c()
            .map(Self)
            .map_err(|error| format!("cannot wait for signals: {error}"))
    }

    /// Waits for the next one. Dropping the wait loses none.
    pub(crate) async fn next(&mut self) {
        self.0.recv().await;
    }
}
