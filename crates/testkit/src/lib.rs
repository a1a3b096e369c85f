//! What tests share: a hand-driven host, conformance suites, emulators.

pub mod emulator;
