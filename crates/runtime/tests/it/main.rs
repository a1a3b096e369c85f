//! Whole jobs on the embedded executor, with sources and sinks that live in memory.
//!
//! A test waits for events with a time limit and never sleeps. Sources pace themselves by checkpoints, so that
//! every run has some in the middle of its data.

mod crash;
mod event_time;
mod faults;
mod flow;
mod lifecycle;
mod random;
mod reference;
mod rescale;
mod restore;
mod support;
