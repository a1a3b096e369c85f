//! `aqueduct pubsub`: publishes, pulls and shows messages by hand, enough to try a topic and a subscription.
//!
//! | file | holds |
//! | --- | --- |
//! | `publish`, `input` | `publish`; what becomes a message |
//! | `pull` | `pull` and `peek` |
//! | `format` | messages as text |
//! | `host` | one reader, driven by hand |
//!
//! # Invariants
//!
//! - A message is acknowledged after it was written to standard output and flushed, and given back otherwise.
//! - Whatever ends a command, it says how many messages were published, acknowledged, given back.
//! - Every wrong option is told before the service is asked.

mod format;
pub(crate) mod host;
mod input;
mod publish;
mod pull;

use aqueduct::connector::Error;

use crate::{Done, flags};

/// Options of `aqueduct pubsub`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Publishes messages to a topic.
    Publish(publish::Args),
    /// Takes messages off a subscription: prints them, then acknowledges them.
    Pull(pull::PullArgs),
    /// Shows messages of a subscription and gives them back, so that others get them at once.
    ///
    /// Each showing counts as an attempt to deliver: a subscription with a dead-letter policy may forward a message that is
    /// shown too often.
    Peek(pull::PeekArgs),
}

/// Runs the chosen command.
pub(crate) fn run(args: Args) -> Done {
    match args.command {
        Command::Publish(args) => publish::run(args),
        Command::Pull(args) => pull::pull(args),
        Command::Peek(args) => pull::peek(args),
    }
}

/// An error for a person, in the words of the command line.
#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn text(error: Error) -> String {
    flags::named(error.report(), flags::PUBSUB)
}

/// A runtime with a thread of its own beside this one, so that leases are kept while this one waits.
fn runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start: {error}"))
}

/// `1 message`, `2 messages`.
fn messages(count: u64) -> String {
    match count {
        1 => "1 message".to_owned(),
        count => format!("{count} messages"),
    }
}
