//! Answers of `MutateRows`: whatever comes is refused or read, without a panic.
//!
//! `cargo +nightly fuzz run mutate_response_decode` in `crates/bigtable`.

#![no_main]

use aqueduct_bigtable::client::answers::fuzz_mutate_response;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, u16)| {
    let (message, entries) = input;
    let _ = fuzz_mutate_response(&message, entries);
});
