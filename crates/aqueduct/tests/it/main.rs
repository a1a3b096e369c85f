//! The facade as a user runs it: whole pipelines on the embedded executor, against simulated services and official emulators.

mod fan_out;
mod metadata;
mod party;
#[path = "../../examples/hourly_totals/pipeline.rs"]
mod pipeline;
mod poison;
mod totals;
mod totals_crash;
