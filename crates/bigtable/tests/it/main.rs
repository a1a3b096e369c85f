//! Everything that needs a service: simulated, or Google's emulator where it is installed.

mod scan_emulator;
mod scan_golden;
mod scan_lookup;
mod scan_read;
mod scan_simulation;
mod scan_source;
mod scan_support;
mod sink_bounds;
mod sink_conformance;
mod sink_docs;
mod sink_emulator;
mod sink_order;
mod sink_passes;
mod sink_repair;
mod sink_retry;
mod sink_simulation;
mod sink_world;
mod sink_writing;
mod table_docs;
mod table_lookup;
mod table_scan;
mod table_support;
mod table_write;
