//! The tasks of this project: `cargo xtask test`.
fn main() {}
