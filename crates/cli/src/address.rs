//! Where a command finds Bigtable, and which table it means: options that several commands share.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use aqueduct::bigtable::TableDestination;

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
            .map_err(|error| error.to_string())
    }
}

/// Refuses a `--bigtable` where nothing listens: connectors try an unreachable service again for minutes, as a running job
/// should; a wrong address is told at once.
pub(crate) fn check_reachable(address: &str) -> Result<(), String> {
    let reachable = address
        .to_socket_addrs()
        .map_err(|error| format!("--bigtable '{address}' is no reachable HOST:PORT: {error}"))?
        .any(|address| TcpStream::connect_timeout(&address, Duration::from_secs(5)).is_ok());
    if reachable {
        return Ok(());
    }
    Err(format!(
        "nothing listens on {address}: start it (`aqueduct sim`, or an emulator) or correct --bigtable"
    ))
}
