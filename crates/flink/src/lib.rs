//! The native library of the Flink jars: the contract between connectors and their host, served to Apache Flink over JNI.
//!
//! The Java side is in `flink/`. Its classes adapt Flink's interfaces, copy bytes and translate errors; whatever has a
//! meaning is decided here. `cargo xtask jar` builds both and puts them together.
//!
//! # Invariants
//!
//! - Nothing unwinds into Java: a function that Java calls runs inside `EnvUnowned::with_env`, which catches a panic and
//!   throws it as an exception.
//! - The only symbols that the library exports are those that Java binds (`Java_io_aqueduct_flink_*`). `cargo xtask jar`
//!   checks it.
//!
//! # Where things are
//!
//! | module | holds |
//! | --- | --- |
//! | [`library`] | what Java asks the library about itself |

pub mod library;
