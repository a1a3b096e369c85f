//! `aqueduct sim`: serves the simulated services until it is asked to end.
//!
//! What is created at the start has names that the real services take.

use std::process::ExitCode;

use aqueduct_sim::{Sim, SimConfig};

use crate::Done;
use crate::signals::Signals;

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
    /// Creates a Pub/Sub topic at the start, such as 'my-project/orders'; may be repeated.
    #[arg(long = "topic", value_name = "PROJECT/TOPIC")]
    topics: Vec<Topic>,
    /// Creates a subscription to a topic of its project at the start, and the topic with it if need be, such as
    /// 'my-project/orders-sub:orders'; may be repeated.
    #[arg(long = "subscription", value_name = "PROJECT/SUBSCRIPTION:TOPIC")]
    subscriptions: Vec<Subscription>,
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
        project_id(project)?;
        check("instance", instance, 33, |c| {
            c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'
        })?;
        check("table", table, 50, bigtable_name)?;
        for family in &families {
            check("family", family, 64, bigtable_name)?;
        }
        Ok(Self {
            project: project.to_owned(),
            instance: instance.to_owned(),
            table: table.to_owned(),
            families,
        })
    }
}

/// `--topic`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Topic {
    project: String,
    topic: String,
}

impl std::str::FromStr for Topic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (project, topic) = text.split_once('/').ok_or("expected PROJECT/TOPIC")?;
        project_id(project)?;
        pubsub_name("topic", topic)?;
        Ok(Self {
            project: project.to_owned(),
            topic: topic.to_owned(),
        })
    }
}

/// `--subscription`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Subscription {
    subscription: String,
    topic: Topic,
}

impl std::str::FromStr for Subscription {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const HELP: &str = "expected PROJECT/SUBSCRIPTION:TOPIC";
        let (project, names) = text.split_once('/').ok_or(HELP)?;
        let (subscription, topic) = names.split_once(':').ok_or(HELP)?;
        pubsub_name("subscription", subscription)?;
        Ok(Self {
            subscription: subscription.to_owned(),
            topic: format!("{project}/{topic}").parse()?,
        })
    }
}

/// Refuses a name that the service would refuse, so that what works here works there.
fn check(
    what: &str,
    name: &str,
    most: usize,
    allowed: impl Fn(char) -> bool,
) -> Result<(), String> {
    if name.is_empty() {
        return Err(format!("the {what} is missing"));
    }
    if name.len() > most {
        return Err(format!("the {what} '{name}' is longer than {most} bytes"));
    }
    match name.chars().find(|c| !allowed(*c)) {
        Some(c) => Err(format!("the {what} '{name}' holds {c:?}, which it may not")),
        None => Ok(()),
    }
}

fn project_id(name: &str) -> Result<(), String> {
    // Colons and dots: projects of a domain.
    check("project", name, 63, |c| {
        c.is_ascii_lowercase() || c.is_ascii_digit() || ['-', '.', ':'].contains(&c)
    })
}

fn bigtable_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&c)
}

fn pubsub_name(what: &str, name: &str) -> Result<(), String> {
    check(what, name, 255, |c| {
        c.is_ascii_alphanumeric() || "-_.~+%".contains(c)
    })?;
    if name.len() < 3 || !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(format!(
            "the {what} '{name}' must have three characters at least and begin with a letter"
        ));
    }
    if name.starts_with("goog") {
        return Err(format!(
            "the {what} '{name}' begins with 'goog', which the service keeps for itself"
        ));
    }
    Ok(())
}

/// Serves until asked to end.
pub(crate) fn run(args: Args) -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
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
        for topic in &args.topics {
            sim.pubsub().create_topic(&topic.project, &topic.topic);
        }
        for Subscription {
            subscription,
            topic,
        } in &args.subscriptions
        {
            let to = sim.pubsub().create_topic(&topic.project, &topic.topic);
            sim.pubsub()
                .create_subscription(&topic.project, subscription, &to);
        }
        say!(
            "simulated Bigtable and Pub/Sub on {} (plaintext, no credentials)",
            sim.endpoint()
        );
        say!("what they hold is kept in memory and is gone when this ends; Ctrl-C ends it");
        signals.next().await;
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
            "p/i/t:a b",
            "p/i/t:é",
            "p/i/a table:cf",
            "p/I/t:cf",
            "P/i/t:cf",
            "p/i/ t:cf",
        ] {
            assert!(bad.parse::<Table>().is_err(), "{bad}");
        }
        let long = format!("p/i/{}:cf", "t".repeat(51));
        assert!(long.parse::<Table>().is_err(), "{long}");
    }

    #[test]
    fn a_topic_and_a_subscription_have_names_that_the_service_takes() {
        let topic = Topic {
            project: "my-project".to_owned(),
            topic: "orders".to_owned(),
        };
        assert_eq!("my-project/orders".parse(), Ok(topic.clone()));
        assert_eq!(
            "my-project/orders-sub:orders".parse(),
            Ok(Subscription {
                subscription: "orders-sub".to_owned(),
                topic,
            })
        );
        for bad in [
            "orders",
            "p/",
            "p/or",
            "p/1orders",
            "p/goog-orders",
            "p/or ders",
            "p/a/b",
            "/orders",
            "p/orders\n",
        ] {
            assert!(bad.parse::<Topic>().is_err(), "{bad}");
        }
        for bad in [
            "p/orders-sub",
            "p/orders-sub:",
            "orders-sub:orders",
            "p/s:orders",
            "p/orders-sub:a/b",
        ] {
            assert!(bad.parse::<Subscription>().is_err(), "{bad}");
        }
    }
}
