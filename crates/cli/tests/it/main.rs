//! The binary as a person runs it: the quickstart, killed, stopped and resumed, against the official emulator, and given bad
//! input; the scan; messages by hand.

#![allow(clippy::print_stdout, reason = "what a test measured")]

mod bad_input;
mod crash;
mod emulator;
mod program;
mod pubsub;
mod quickstart;
mod scan;
mod stop;
