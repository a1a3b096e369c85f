//! `aqueduct sim`: serves the simulated services until Ctrl-C.

use std::process::ExitCode;

use aqueduct_sim::{Sim, SimConfig};

use crate::Done;

/// Options of `aqueduct sim`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// TCP port on 127.0.0.1; 0 lets the system choose.
    #[arg(long, default_value_t = 8086)]
    port: u16,
    /// Creates a table at the start, such as 'my-project/my-instance/orders:cf,meta'; may be repeated.
    #[arg(
        long = "create-table",
        value_name = "PROJECT/INSTANCE/TABLE:FAMILY,..."
    )]
    tables: Vec<Table>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Table {
    project: String,
    instance: String,
    table: String,
    families: Vec<String>,
}

impl std::str::FromStr for Table {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const HELP: &str = "expected PROJECT/INSTANCE/TABLE:FAMILY[,FAMILY...]";
        let (path, families) = text.split_once(':').ok_or(HELP)?;
        let parts: Vec<&str> = path.split('/').collect();
        let families: Vec<String> = families.split(',').map(str::to_owned).collect();
        let [project, instance, table] = parts[..] else {
            return Err(HELP.to_owned());
        };
        if [project, instance, table]
            .iter()
            .any(|part| part.trim().is_empty())
            || families.iter().any(|family| family.trim().is_empty())
        {
            return Err(HELP.to_owned());
        }
        Ok(Self {
            project: project.to_owned(),
            instance: instance.to_owned(),
            table: table.to_owned(),
            families,
        })
    }
}

/// Serves until Ctrl-C.
pub(crate) fn run(args: Args) -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        let config = SimConfig {
            port: args.port,
            ..SimConfig::default()
        };
        let sim = Sim::start(config).await.map_err(|error| {
            format!(
                "cannot listen on 127.0.0.1:{}: {error}; choose another --port",
                args.port
            )
        })?;
        for table in &args.tables {
            let families: Vec<&str> = table.families.iter().map(String::as_str).collect();
            sim.bigtable()
                .create_table(&table.project, &table.instance, &table.table, &families);
        }
        say!(
            "simulated Bigtable on {} (plaintext, no credentials)",
            sim.endpoint()
        );
        say!("tables are kept in memory and are gone when this ends; Ctrl-C ends it");
        tokio::signal::ctrl_c()
            .await
            .map_err(|error| format!("cannot wait for Ctrl-C: {error}"))?;
        Ok(ExitCode::SUCCESS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_a_path_and_its_families() {
        let table: Table = "p/i/orders:cf,meta".parse().expect("well formed");
        assert_eq!(
            (table.project.as_str(), table.table.as_str()),
            ("p", "orders")
        );
        assert_eq!(table.families, ["cf", "meta"]);
        for bad in [
            "orders:cf",
            "p/i/t",
            "p/i/t:",
            "p//t:cf",
            "p/i/t:a,,b",
            "p/i/t/x:cf",
        ] {
            assert!(bad.parse::<Table>().is_err(), "{bad}");
        }
    }
}
