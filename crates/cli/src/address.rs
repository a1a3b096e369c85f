//! Where a command finds a service, and which of its resources it means: options that several commands share.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use aqueduct::bigtable::TableDestination;

use crate::flags;

/// Names a table.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TableArgs {
    /// The Google Cloud project.
    #[arg(long, default_value = "quickstart", value_name = "ID")]
    pub(crate) project: String,
    /// The Bigtable instance.
    #[arg(long, default_value = "local", value_name = "NAME")]
    pub(crate) instance: String,
    /// The table.
    #[arg(long, default_value = "flights", value_name = "NAME")]
    pub(crate) table: String,
}

impl TableArgs {
    /// The address, if every part is a plain name.
    pub(crate) fn destination(&self) -> Result<TableDestination, String> {
        TableDestination::of(&self.project, &self.instance, &self.table)
            .map_err(|error| flags::named(error.to_string(), flags::TABLE))
    }
}

/// Names a Pub/Sub project and where to find it.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct PubSubArgs {
    /// The Google Cloud project.
    #[arg(long, value_name = "ID")]
    pub(crate) project: String,
    /// An emulator or a running `aqueduct sim`, without credentials. Default: the service.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) pubsub: Option<String>,
    /// A service account's JSON key. Default: application-default credentials.
    #[arg(long, value_name = "FILE", conflicts_with = "pubsub")]
    pub(crate) key_file: Option<String>,
}

impl PubSubArgs {
    /// For errors: who was asked.
    pub(crate) fn place(&self) -> &str {
        self.pubsub.as_deref().unwrap_or("the service")
    }
}

/// Refuses an address, given by `flag`, where nothing listens: connectors try an unreachable service again for minutes, as a
/// running job should; a wrong address is told at once.
pub(crate) fn check_reachable(flag: &str, address: &str) -> Result<(), String> {
    let reachable = address
        .to_socket_addrs()
        .map_err(|error| format!("{flag} '{address}' is no reachable HOST:PORT: {error}"))?
        .any(|address| TcpStream::connect_timeout(&address, Duration::from_secs(5)).is_ok());
    if reachable {
        return Ok(());
    }
    Err(format!(
        "nothing listens on {address}: start it (`aqueduct sim`, or an emulator) or correct {flag}"
    ))
}
