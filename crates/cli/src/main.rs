//! The `aqueduct` binary.
fn main() {}
