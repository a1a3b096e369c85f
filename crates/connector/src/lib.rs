//! The contract between a connector and its host.
