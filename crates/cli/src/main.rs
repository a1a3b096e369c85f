//! The `aqueduct` binary.
//!
//! | file | command |
//! | --- | --- |
//! | `quickstart` | replays real flights into a table, with checkpoints, and reads them back |
//! | `scan` | shows the rows of a table |
//! | `pubsub` | publishes, pulls and shows messages by hand |
//! | `sim` | serves the simulated services |
//!
//! `address` and `flags` hold what they share of options, `signals` what ends them, `printable` how data is shown.

#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that people read"
)]

/// Prints a line on standard output; a reader that went away is no failure of ours.
macro_rules! say {
    ($($argument:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($argument)*);
    }};
}

mod address;
mod flags;
mod printable;
mod pubsub;
mod quickstart;
mod scan;
mod signals;
mod sim;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Streams between files, Google Cloud and a checkpointing executor.
#[derive(Parser)]
#[command(version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    /// What to log on standard error, such as 'debug' or 'aqueduct_bigtable=trace'. Default: 'warn'.
    #[arg(long, global = true, env = "AQUEDUCT_LOG", value_name = "FILTER")]
    log: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replays real flights into a Bigtable table, with checkpoints, and reads them back.
    Quickstart(quickstart::Args),
    /// Shows rows of a Bigtable table.
    Scan(scan::Args),
    /// Publishes, pulls and shows Pub/Sub messages by hand.
    Pubsub(pubsub::Args),
    /// Serves simulated Google services on a local port, to develop and test against.
    Sim(sim::Args),
}

/// A job's last error is printed below, once; the executor need not log it too.
const TOLD_BELOW: &str = "aqueduct_runtime::outcome=off";

/// Exit code of a command that was asked to end and did so before it was through.
const STOPPED: u8 = 3;
/// Exit code of a command that was asked twice and ended at once.
const ENDED_AT_ONCE: u8 = 130;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let log = cli.log.as_deref().unwrap_or("warn");
    let filter = match EnvFilter::builder().parse(log) {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("error: --log '{log}' is no log filter: {error}");
            return ExitCode::from(2);
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter.add_directive(TOLD_BELOW.parse().expect("well formed")))
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    let done = match cli.command {
        Command::Quickstart(args) => quickstart::run(args),
        Command::Scan(args) => scan::run(args),
        Command::Pubsub(args) => pubsub::run(args),
        Command::Sim(args) => sim::run(args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What a command ends with: an exit code, or a text for a person.
type Done = Result<ExitCode, String>;
