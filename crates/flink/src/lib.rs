//! The native library of the Flink jars: the contract between connectors and their host, served to Apache Flink over JNI.
//!
//! The Java side is in `flink/`. Its classes adapt Flink's interfaces, copy bytes and translate errors; whatever has a
//! meaning is decided here. `cargo xtask jar` builds both and puts them together.
//!
//! # Invariants
//!
//! - Nothing unwinds into Java: a function that Java calls runs inside `EnvUnowned::with_env`, which catches a panic and
//!   throws it as an exception.
//! - Nothing here calls Java, but for throwing: no thread is attached, no Java object is kept. Java asks.
//! - Java holds numbers, not pointers: a call with a wrong one is an error.
//! - Nothing is left when the last handle is closed: no thread, no thread-local of a long-lived thread. So the library
//!   can be unmapped with the class loader that loaded it.
//! - The only symbols that the library exports are those that Java binds (`Java_io_aqueduct_flink_*`, `JNI_OnUnload`), and one
//!   for its own linker. `cargo xtask jar` checks it.
//!
//! # Where things are
//!
//! | module | holds |
//! | --- | --- |
//! | [`library`] | what Java asks the library about itself |
//! | [`entry`] | the functions behind `io.aqueduct.flink.Native` |
//! | `host` | runtime, wake-ups, handles |
//! | `plan`, `wire` | tables and plans: bytes from Java, answers to its planner |
//! | `writer`, `reader`, `enumerator`, `lookup` | what a handle drives |
//! | `errors`, `logs`, `metrics` | what goes to Java besides data |
//! | `describe` | options and metadata columns, as a resource for Java |
//! | `sockets` | closes what would be left open when the library is unloaded |
//! | `roundtrip`, `probe` | what tests on the Java side use |

#[cfg(test)]
mod describe;
pub mod entry;
mod enumerator;
mod errors;
mod host;
pub mod library;
mod logs;
mod lookup;
mod metrics;
mod plan;
mod probe;
mod reader;
mod roundtrip;
#[cfg(target_os = "linux")]
pub mod sockets;
#[cfg(test)]
mod tests;
mod wire;
mod writer;
