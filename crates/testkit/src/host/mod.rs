//! Hosts that a test drives by hand: one source or one sink, step by step, in one task.
//!
//! They keep the contract's order to the letter and hold the connector to its side: what is against the contract is a
//! panic that says who did what. The tests run on a current-thread Tokio runtime, which runs the connector's I/O tasks
//! whenever the host yields; the host spawns nothing. A component is polled only if it woke its waker or was called
//! since, so a forgotten wake-up shows as a hang. Every wait has a real-time limit.

pub mod sink;
pub mod source;

pub use sink::{SinkCheckpoint, SinkHost};
pub use source::{Emitted, SourceCheckpoint, SourceHost, Step};

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use aqueduct_connector::Error;
use futures::task::AtomicWaker;

use crate::context::TestContext;
use crate::wait::{Signal, within};

/// Before a driven clock moves on, tasks get this long to do what they can.
const SETTLE: Duration = Duration::from_millis(20);

/// Waits until one of `signals` is set, moving a driven clock on meanwhile.
async fn wait_for_any(
    kit: &TestContext,
    host: &AtomicWaker,
    signals: &[&Arc<Signal>],
    what: impl FnOnce() -> String,
) {
    let any = || {
        poll_fn(|cx| {
            host.register(cx.waker());
            if signals.iter().any(|signal| signal.is_set()) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
    };
    while tokio::time::timeout(SETTLE, any()).await.is_err() {
        if !kit.skip_to_next_timer() {
            return within(kit.limit(), &what(), any()).await;
        }
    }
}

/// Waits for `future`, moving a driven clock on meanwhile.
async fn wait_for<F: Future>(kit: &TestContext, what: &str, future: F) -> F::Output {
    let mut future = pin!(future);
    let driven = async {
        loop {
            if let Ok(output) = tokio::time::timeout(SETTLE, &mut future).await {
                return output;
            }
            if !kit.skip_to_next_timer() {
                return future.await;
            }
        }
    };
    within(kit.limit(), what, driven).await
}

/// Joins the failures of several closes: the first one, the others attached.
fn first_error(errors: Vec<Error>) -> Result<(), Error> {
    let mut errors = errors.into_iter();
    let Some(mut first) = errors.next() else {
        return Ok(());
    };
    errors.for_each(|error| first.suppress(error));
    Err(first)
}
