//! What a host on Tokio lends to connectors: the machine's clocks, timers, and a spawner.
//!
//! The contract (`aqueduct-connector`) knows no executor. Every host of ours has the same one, so they share this.
//!
//! | module | holds |
//! | --- | --- |
//! | `clock` | [`SystemClock`] and its timers |
//! | `spawn` | [`RuntimeSpawn`], and [`panic_text`] for whoever catches a panic |

#![forbid(unsafe_code)]

mod clock;
mod spawn;

pub use clock::SystemClock;
pub use spawn::{RuntimeSpawn, panic_text};
