//! A failure handler that writes down how it is driven, and fails or waits when a test says so.
//!
//! ```
//! # use aqueduct_testkit::failure::HandlerLog;
//! let log = HandlerLog::new();
//! let factory = {
//!     let log = log.clone();
//!     move || log.handler() // what a sink's builder takes
//! };
//! # drop(factory);
//! // ... run the sink ...
//! assert_eq!(log.handled(), 0);
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as PollContext, Poll, Waker};

use aqueduct_connector::failure::{FailedElement, FailureHandler};
use aqueduct_connector::{Context, Error, Result};

/// One call of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// `open`.
    Opened,
    /// `handle`, with what the element says of itself; the payload only by its size.
    Handled {
        /// The element's connector.
        connector: &'static str,
        /// Its destination.
        destination: String,
        /// Why it was rejected.
        message: String,
        /// Bytes of its payload, if there is one.
        payload_bytes: Option<usize>,
    },
    /// A `poll_flush` that was ready.
    Flushed,
    /// `poll_close`.
    Closed,
}

/// The calls of all handlers made from it, in order. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct HandlerLog(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    calls: Vec<Call>,
    refuses: bool,
    waits: bool,
    wakers: Vec<Waker>,
}

impl HandlerLog {
    /// Without calls; its handlers take everything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A handler that writes here.
    #[must_use]
    pub fn handler(&self) -> RecordingHandler {
        RecordingHandler(self.clone())
    }

    /// The calls so far.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    /// How many records were handled.
    #[must_use]
    pub fn handled(&self) -> usize {
        let handled = |call: &&Call| matches!(call, Call::Handled { .. });
        self.lock().calls.iter().filter(handled).count()
    }

    /// From now on `handle` fails the job instead of taking the record.
    pub fn refuse(&self) {
        self.lock().refuses = true;
    }

    /// From now on `poll_ready` and `poll_flush` are pending, until [`release`](Self::release).
    pub fn hold(&self) {
        self.lock().waits = true;
    }

    /// Ends a [`hold`](Self::hold) and wakes who waits.
    pub fn release(&self) {
        let wakers = {
            let mut state = self.lock();
            state.waits = false;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn wait(&self, cx: &PollContext<'_>) -> Poll<()> {
        let mut state = self.lock();
        if !state.waits {
            return Poll::Ready(());
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Plain data, whole at every point, also after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handler that writes its calls to a [`HandlerLog`].
#[derive(Debug)]
pub struct RecordingHandler(HandlerLog);

impl<F: FailedElement + ?Sized> FailureHandler<F> for RecordingHandler {
    fn open(&mut self, _: &Context) -> Result<()> {
        self.0.lock().calls.push(Call::Opened);
        Ok(())
    }

    fn poll_ready(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.0.wait(cx).map(Ok)
    }

    fn handle(&mut self, element: &F) -> Result<()> {
        let mut state = self.0.lock();
        if state.refuses {
            return Err(Error::user("the test's failure handler refuses the record"));
        }
        state.calls.push(Call::Handled {
            connector: element.connector(),
            destination: element.destination(),
            message: element.message(),
            payload_bytes: element.payload().map(|payload| payload.len()),
        });
        Ok(())
    }

    fn poll_flush(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        let flushed = self.0.wait(cx);
        if flushed.is_ready() {
            self.0.lock().calls.push(Call::Flushed);
        }
        flushed.map(Ok)
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.0.lock().calls.push(Call::Closed);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as StdError;
    use std::sync::atomic::{AtomicBool, Ordering};

    use bytes::Bytes;

    use super::*;

    #[derive(Debug)]
    struct Bad;

    impl FailedElement for Bad {
        fn connector(&self) -> &'static str {
            "memory"
        }

        fn destination(&self) -> String {
            "t".to_owned()
        }

        fn payload(&self) -> Option<Bytes> {
            Some(Bytes::from_static(b"abc"))
        }

        fn message(&self) -> String {
            "too long".to_owned()
        }

        fn cause(&self) -> Option<&(dyn StdError + 'static)> {
            None
        }
    }

    #[derive(Default)]
    struct Flag(AtomicBool);

    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Release);
        }
    }

    #[test]
    fn calls_are_kept_in_order_and_a_hold_wakes_its_waiters() {
        let log = HandlerLog::new();
        let mut handler: Box<dyn FailureHandler<Bad>> = Box::new(log.handler());
        let flag = Arc::new(Flag::default());
        let waker = Waker::from(Arc::clone(&flag));
        let mut cx = PollContext::from_waker(&waker);
        handler.open(&crate::test_context(0)).expect("open");
        handler.handle(&Bad).expect("handle");
        log.hold();
        assert!(handler.poll_flush(&mut cx).is_pending());
        log.release();
        assert!(flag.0.load(Ordering::Acquire), "nobody was woken");
        assert!(handler.poll_flush(&mut cx).is_ready());
        log.refuse();
        assert!(handler.handle(&Bad).is_err());
        let handled = Call::Handled {
            connector: "memory",
            destination: "t".to_owned(),
            message: "too long".to_owned(),
            payload_bytes: Some(3),
        };
        assert_eq!(log.calls(), [Call::Opened, handled, Call::Flushed]);
        assert_eq!(log.handled(), 1);
    }
}
