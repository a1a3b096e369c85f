//! The source: reads subscriptions by streaming pull, acknowledges by checkpoints.
//!
//! | file | holds |
//! | --- | --- |
//! | `builder` | [`PubSubSource`], its builder and its settings |
//! | `create` | [`SubscriptionCreateOptions`] |
//! | `message` | [`ReceivedMessage`] |
//! | `deserialize` | [`MessageDeserializer`]: messages to records |
//! | `plan` | subscriptions to splits to subtasks, pure |
//! | `split` | splits and the coordinator's state as stored bytes |
//! | `startup` | what is checked, created and sought before the first split is given out |
//! | `enumerator` | the coordinator |
//! | `reader` | the owner's side of a reader: deserializer, failure policies, what was emitted |
//! | `io` | the other side: streams, leases, acknowledgements, in a task of its own |
//! | [`metrics`] | names of metrics |
//!
//! # Invariants
//!
//! - A message is acknowledged when a checkpoint that covers all its records is complete, and not before; the one
//!   exception is an undecodable message that gave no record, under the policy that drops it (PS-SRC-16).
//! - Every received copy ends once: acknowledged, returned, or its lease lost (PS-SRC-34).
//! - Nothing is emitted twice within one run of a reader: a redelivered copy of a held message only brings a newer ack id.
//!   Across restarts and between subtasks the guarantee is at-least-once.
//! - Memory is bounded by flow control and the reader's budget, whatever the service sends again.

mod builder;
mod create;
mod deserialize;
mod enumerator;
mod io;
mod message;
pub mod metrics;
mod plan;
mod reader;
mod split;
mod startup;

pub use builder::{
    DeserializationFailurePolicy, ExactlyOnceSubscriptions, OrderingMode, PubSubSource,
    PubSubSourceBuilder, StartPosition, SubscriberOptions,
};
pub use create::SubscriptionCreateOptions;
pub use deserialize::MessageDeserializer;
#[doc(hidden)]
pub use message::fuzz_pull_response;
pub use message::{DELIVERY_ATTEMPT, ReceivedMessage};
pub use split::{EnumeratorState, SubscriptionSplit};
