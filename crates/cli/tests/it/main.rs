//! The binary as a person runs it: the quickstart, killed and resumed, against the official emulator, and given bad input.

mod bad_input;
mod crash;
mod emulator;
mod program;
mod quickstart;
