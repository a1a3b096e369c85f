//! Where a command finds Bigtable, and which table it means: options that several commands share.

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
