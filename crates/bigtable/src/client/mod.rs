//! The wire: one file a method, each with its own retry rules.
//!
//! | file | holds |
//! | --- | --- |
//! | [`admin`] | table administration of the sink's repair |
//! | [`answers`] | answers to `MutateRows`, decoded by hand |
//! | `mutate` | `MutateRows`: one attempt, and where a writer's requests go |
//! | `rate` | the request rate that the service asks for |
//! | [`read`] | `ReadRows`: decoder, resumption, deadlines |
//! | [`sample`] | `SampleRowKeys` |

pub mod admin;
pub mod answers;
pub(crate) mod mutate;
pub(crate) mod rate;
pub mod read;
pub mod sample;
