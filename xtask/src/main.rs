//! The tasks of this project. `cargo xtask test` is the one test command: a person runs it before a
//! commit, CI runs it and nothing else.
//!
//! - `suite`: the steps, their order, the summary.
//! - `run`: one command, streamed, counted and bounded in time.
//! - `gates`: rules about the text of our sources (`lexer` takes comments and strings away).
//! - `doors`: rules about which crate may depend on which.
//! - `tools`: programs that the steps need and a package registry provides.

#![forbid(unsafe_code)]

mod doors;
mod gates;
mod lexer;
mod run;
mod suite;
mod tools;

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
}

fn main() -> ExitCode {
    let Task::Test { only } = Cli::parse().task;
    suite::test(&root(), &only)
}

/// The folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder of the workspace")
        .to_owned()
}
