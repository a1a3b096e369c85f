//! The generator source: records made of their index, at a steady rate.
//!
//! The sequence 0, 1, 2, ... is dealt out in blocks of [`BLOCK`] to stripes, like cards; a stripe
//! is a split. With one reader the records come in order. Readers share the rate by the stripes
//! they hold, so rescaling keeps the total.

mod enumerator;
mod pace;
mod reader;
mod source;
mod stripe;

pub use source::{GeneratorSource, GeneratorSourceBuilder};

/// Consecutive indices of one stripe, and the greatest batch.
pub const BLOCK: u64 = 128;
