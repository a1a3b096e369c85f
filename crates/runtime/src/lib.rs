//! The embedded executor: graph, tasks, barriers, checkpoints, restart.
//!
//! ```no_run
//! use std::time::Duration;
//! use aqueduct_runtime::{Job, JobConfig, WatermarkStrategy};
//! # fn example(
//! #     orders: impl aqueduct_connector::source::Source<String> + 'static,
//! #     table: impl aqueduct_connector::sink::Sink<usize> + 'static,
//! # ) -> aqueduct_connector::Result<()> {
//! let job = Job::new("orders");
//! job.from_source("read", orders, WatermarkStrategy::none())
//!     .map("measure", |line| line.len())
//!     .sink_to("write", table);
//! let config = JobConfig::builder()
//!     .parallelism(2)
//!     .checkpoint_dir("/var/lib/orders/checkpoints")
//!     .checkpoint_interval(Duration::from_secs(10))
//!     .build()?;
//! job.run(config)?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - A checkpoint is aligned: it covers exactly the records before one barrier in every task. Throwing the
//!   process away loses nothing that a complete checkpoint covers.
//! - Committables of a complete checkpoint are applied, over restarts too, until the committer has confirmed
//!   them; a sink whose effects are repeatable or staged therefore sees each record's effect once.
//! - After a failure the whole graph starts again from the last complete checkpoint.
//! - One process at a time works on a checkpoint directory.
//! - Memory is bounded by the channels' bounds, one batch a stage and what connectors hold.
//!
//! # How it is built
//!
//! `parallelism` worker threads, each a current-thread runtime; subtask *i* of every chain runs on worker *i*,
//! and so does the I/O of its readers and writers. One more thread coordinates: enumerators, committers,
//! checkpoints, restarts, the status page. Between operators move batches; operators without an exchange
//! between them run in one task, with one virtual call a batch and stage.
//!
//! | module | holds |
//! | --- | --- |
//! | [`config`] | options of a job |
//! | `stream` | [`Job`], [`Stream`], [`KeyedStream`]: the builder |
//! | `operator`, `functions`, [`keyed`] | operators and functions, keyed state and timers |
//! | `window` | [`Windows`], [`WindowFunction`] |
//! | `watermark` | [`WatermarkStrategy`], per-split watermarks, idleness, alignment |
//! | `stage`, `task`, `channel` | elements, chains and tasks |
//! | `checkpoint` | what is stored, and how |
//! | `coordinator` | attempts, checkpoints, enumerators, committers, restarts |
//! | `handle`, `http` | [`JobHandle`], metrics and the status page |

#![forbid(unsafe_code)]

mod channel;
mod checkpoint;
pub mod config;
mod coordinator;
mod functions;
mod graph;
mod handle;
mod host;
mod http;
pub mod keyed;
mod operator;
mod stage;
mod stream;
mod task;
mod watermark;
mod window;

pub use config::{JobConfig, JobConfigBuilder, RestartStrategy};
pub use functions::{ProcessFunction, RecordContext};
pub use handle::{
    CheckpointInfo, JobEnd, JobHandle, JobReport, JobState, JobStatus, OperatorProgress,
};
pub use host::{RuntimeSpawn, SystemClock};
pub use keyed::{Key, KeyedProcessFunction, Timers};
pub use operator::{Operator, OperatorContext, OperatorState, Progress};
pub use stream::{Job, KeyedStream, Stream, Targets};
pub use watermark::WatermarkStrategy;
pub use window::{Window, WindowFunction, Windows};
