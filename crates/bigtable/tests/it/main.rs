//! Everything that needs a service: simulated, or Google's emulator where it is installed.

mod scan_emulator;
mod scan_golden;
mod scan_lookup;
mod scan_read;
mod scan_source;
mod scan_support;
