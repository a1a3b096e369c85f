//! The hosts and the suites, tried on connectors in memory: a correct one passes, and each of many broken ones is
//! caught by the check that is meant for it.

mod host;
mod memory_sink;
mod memory_source;
mod sink;
mod source;

use std::panic::AssertUnwindSafe;

use futures::FutureExt;

/// What `future` panics with, or nothing.
async fn panic_of<O>(future: impl Future<Output = O>) -> String {
    match AssertUnwindSafe(future).catch_unwind().await {
        Ok(_) => String::new(),
        Err(panic) => panic
            .downcast_ref::<String>()
            .cloned()
            .expect("a panic with a formatted text"),
    }
}
