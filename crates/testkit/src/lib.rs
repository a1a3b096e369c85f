//! What tests share: hand-driven hosts, conformance suites, emulators, and small instruments.
//!
//! | module | holds |
//! | --- | --- |
//! | [`host`] | one source or one sink, driven step by step in one task |
//! | [`conformance`] | the suites that every source and every sink passes |
//! | [`context`] | contexts, clock and spawner for what a test creates |
//! | [`failure`] | a failure handler that writes down how it is driven |
//! | [`golden`](mod@golden) | golden files of stored formats |
//! | [`table`] | tables in the hands of the hosts |
//! | [`log`] | captured log lines, and proof that nothing leaked |
//! | [`emulator`] | Google's own emulators, where installed |
//! | [`flink`] | clusters of Apache Flink |
//! | [`python`] | official client libraries for Python, fetched |
//! | [`wait`], [`seeds`](mod@seeds) | waits with a limit, seeds that can be run again |

#![forbid(unsafe_code)]

pub mod conformance;
pub mod context;
pub mod emulator;
pub mod failure;
pub mod flink;
pub mod golden;
pub mod host;
pub mod log;
pub mod python;
pub mod seeds;
pub mod table;
pub mod wait;

pub use context::{SystemClock, TestContext, TokioSpawn, test_context};
pub use golden::golden;
pub use host::{SinkHost, SourceHost};
pub use seeds::seeds;
pub use wait::{LIMIT, until, within};
