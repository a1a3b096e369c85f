//! Simulated Google services for tests, benchmarks and development.
