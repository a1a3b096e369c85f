//! Pub/Sub: the source with its lease keeper, the sink, the dead-letter queue, on our own data plane.
//!
//! | module | holds |
//! | --- | --- |
//! | [`destination`] | topic and subscription addresses |

#![forbid(unsafe_code)]

pub mod destination;

pub use destination::{SubscriptionDestination, TopicDestination};
