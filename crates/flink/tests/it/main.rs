//! The jars in real clusters of every supported version of Flink.
//!
//! The tests of one version share a cluster, and run one after the other ([`clusters`]).

mod clusters;
mod cycles;
mod flights;
mod formats;
mod harness;
mod jars;
mod life_cycle;
mod orders;
mod services;
mod sources;
