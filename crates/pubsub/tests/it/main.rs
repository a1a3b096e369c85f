//! Everything that needs a service: simulated, or Google's emulator where it is installed.

mod deadletter_queue;
mod publisher;
mod python_client;
mod sink_bounds;
mod sink_conformance;
mod sink_crash;
mod sink_docs;
mod sink_emulator;
#[cfg(target_os = "linux")] // It reads what Linux shows a process of itself.
mod sink_memory;
mod sink_passes;
mod sink_publishing;
mod sink_simulation;
mod sink_world;
mod source_cases;
mod source_conformance;
mod source_crash;
mod source_docs;
mod source_emulator;
mod source_ends;
mod source_flat;
mod source_reading;
mod source_startup;
mod source_storm;
mod source_streams;
mod source_support;
mod source_warnings;
mod table_docs;
mod table_emulator;
mod table_rejects;
mod table_roundtrip;
mod table_world;
