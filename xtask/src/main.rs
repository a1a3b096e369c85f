//! The tasks of this project. `cargo xtask test` is the one test command: a person runs it before a
//! commit, CI runs it and nothing else.
//!
//! - `suite`: the steps, their order, the summary.
//! - `run`: one command, streamed, counted and bounded in time.
//! - `gates`: rules about the text of our sources (`lexer` takes comments and strings away).
//! - `doors`: rules about which crate may depend on which.
//! - `flink`: distributions of Apache Flink for the tests.
//! - `jar`: the jars for Apache Flink (`zip` looks into them; `notices` says what their library is made of).
//! - `tools`: programs that the steps need and a package registry provides.

#![forbid(unsafe_code)]

mod doors;
mod flink;
mod gates;
mod jar;
mod lexer;
mod notices;
mod run;
mod suite;
mod tools;
mod zip;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The tasks of this project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, about)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every check and every test, and print what happened.
    Test {
        /// Run only this step; may be given several times.
        #[arg(long, value_name = "STEP", value_parser = suite::step_names())]
        only: Vec<String>,
    },
    /// Fetch what the Flink tests run on into `target/tools`: a gigabyte, once.
    Flink,
    /// Build the jars for Apache Flink into `target/flink`.
    Jar {
        /// Optimize over all crates, as for users; takes minutes.
        #[arg(long)]
        release: bool,
    },
}

fn main() -> ExitCode {
    match Cli::parse().task {
        Task::Test { only } => suite::test(&root(), &only),
        Task::Flink => flink::fetch(&root()),
        Task::Jar { release: false } => jar::jar(&root(), jar::Build::Tests),
        Task::Jar { release: true } => jar::jar(&root(), jar::Build::Release),
    }
}

/// The folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder of the workspace")
        .to_owned()
}
