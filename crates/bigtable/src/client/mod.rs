//! The wire: one file a method, each with its own retry rules.
//!
//! | file | holds |
//! | --- | --- |
//! | [`read`] | `ReadRows`: decoder, resumption, deadlines |
//! | [`sample`] | `SampleRowKeys` |

pub mod read;
pub mod sample;
