//! The binary as a person runs it: the quickstart, killed and resumed, against the official emulator, and given bad input;
//! and the scan.

#![allow(clippy::print_stdout, reason = "what a test measured")]

mod bad_input;
mod crash;
mod emulator;
mod program;
mod quickstart;
mod scan;
