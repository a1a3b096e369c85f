//! Streams between a checkpointing processor and Google Cloud.
