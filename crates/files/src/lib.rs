//! Sources of real input without a service: files, and a rate-limited generator.
//!
//! | source | reads | ends | restore |
//! | --- | --- | --- | --- |
//! | [`FileSource`] | JSON lines, CSV or lines of your own; plain or gzip; local or in object storage | yes | exact, at the next record |
//! | [`GeneratorSource`] | what a function makes of 0, 1, 2, ... | with a limit | exact, at the next index |
//! | [`Paced`] | another source, at a rate | as that one | as that one |
//!
//! Both replay exactly: with a sink that repeats effects idempotently, or exactly once, a job that
//! reads them gives the result of one undisturbed run.
//!
//! ```
//! use aqueduct_files::{FileSource, MalformedPolicy};
//!
//! #[derive(serde::Deserialize)]
//! struct Flight {
//!     carrier: String,
//!     dep_delay: Option<i32>,
//! }
//!
//! let source = FileSource::csv::<Flight>()
//!     .path("flights.csv.gz")
//!     .null_literal("NA")
//!     .malformed(MalformedPolicy::Drop)
//!     .build()?;
//! # Ok::<(), aqueduct_connector::options::ConfigError>(())
//! ```
//!
//! # Invariants
//!
//! - A split's position moves only when a record was emitted downstream, and always stands at the
//!   beginning of a record.
//! - The splits of a file cover each of its records once, wherever the file is cut.
//! - What is held in memory is bounded: one record of the greatest length, the batch under way,
//!   and the pieces read ahead.
//! - File contents never reach a log line, an error or a `Debug`: a line is named by its number.

#![forbid(unsafe_code)]

pub mod file;
pub mod generator;
pub mod metrics;
pub mod options;
pub mod paced;

pub use file::{FileSource, FileSourceBuilder, MalformedPolicy};
pub use generator::{GeneratorSource, GeneratorSourceBuilder};
pub use paced::Paced;
