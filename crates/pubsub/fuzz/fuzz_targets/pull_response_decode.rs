//! Responses of a streaming pull: whatever comes is refused whole or read, every message to its last attribute, without a
//! panic.
//!
//! `cargo +nightly fuzz run pull_response_decode` in `crates/pubsub`.

#![no_main]

use aqueduct_pubsub::source::fuzz_pull_response;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|response: &[u8]| {
    let _ = fuzz_pull_response(response);
});
