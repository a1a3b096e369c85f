//! Streams between a checkpointing processor and Google Cloud, in one dependency.
//!
//! ```
//! use std::time::Duration;
//!
//! use aqueduct::bigtable::{BigtableSink, Disposition, RowMutationEntry, TableDestination};
//! use aqueduct::connector::sink::RecordInfo;
//! use aqueduct::files::GeneratorSource;
//! use aqueduct::runtime::{Job, JobConfig, WatermarkStrategy};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let sim = aqueduct_sim::Sim::start_on_thread(aqueduct_sim::SimConfig::default())?;
//! # let table = sim.bigtable().create_table("my-project", "my-instance", "squares", &["cf"]);
//! # let (endpoint, directory) = (sim.endpoint().to_string(), "memory://facade-example/checkpoints");
//! let numbers = GeneratorSource::builder(|n| n).limit(1_000).build()?;
//! let squares = BigtableSink::builder()
//!     .table(TableDestination::of("my-project", "my-instance", "squares")?)
//!     .serializer(|n: &u64, _: RecordInfo, entry: &mut RowMutationEntry| {
//!         entry.row_key(format!("{n:08}")).set_cell("cf", b"square", 0, (n * n).to_be_bytes());
//!         Ok::<_, std::convert::Infallible>(Disposition::Write)
//!     })
//!     .emulator_endpoint(endpoint) // without it: the service, with default credentials
//!     .build()?;
//!
//! let job = Job::new("squares");
//! job.from_source("numbers", numbers, WatermarkStrategy::none()).sink_to("squares", squares);
//! let config = JobConfig::builder()
//!     .parallelism(2)
//!     .checkpoint_dir(directory)
//!     .checkpoint_interval(Duration::from_secs(10))
//!     .build()?;
//! let report = job.run(config)?;
//! println!("{} checkpoints", report.status.completed_checkpoints);
//! # assert_eq!(table.row_count(), 1_000);
//! # Ok(())
//! # }
//! ```
//!
//! | feature | adds | default |
//! | --- | --- | --- |
//! | `bigtable` | [`bigtable`]: bulk sink, scan source, key lookup | on |
//! | `files` | [`files`]: JSON lines, CSV, gzip; a generator | on |
//! | `pubsub` | [`pubsub`]: source, sink, dead-letter queue for the sinks of every connector | on |
//! | `gcs`, `s3` | `gs://` and `s3://` URLs for checkpoints and files | off |

#![forbid(unsafe_code)]

#[cfg(feature = "bigtable")]
pub use aqueduct_bigtable as bigtable;
pub use aqueduct_connector as connector;
#[cfg(feature = "files")]
pub use aqueduct_files as files;
#[cfg(feature = "pubsub")]
pub use aqueduct_pubsub as pubsub;
pub use aqueduct_runtime as runtime;
pub use aqueduct_store as store;
