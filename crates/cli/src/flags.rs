//! Errors in the words of the command line: libraries name their options, a person typed flags.

/// Options of the libraries and the flags that set them.
pub(crate) type Flags = [(&'static str, &'static str)];

/// What commands on a Bigtable table set.
pub(crate) const TABLE: &Flags = &[
    ("project", "--project"),
    ("instance", "--instance"),
    ("table", "--table"),
    ("emulator-endpoint", "--bigtable"),
    ("scan.app-profile-id", "--app-profile"),
    ("scan.row-limit", "--limit"),
    ("path", "--events"),
    ("rows-per-second", "--rate"),
    ("parallelism.default", "--parallelism"),
    ("execution.checkpointing.dir", "--checkpoint-dir"),
    ("execution.checkpointing.interval", "--checkpoint-interval"),
    ("metrics.address", "--metrics"),
];

/// What the Pub/Sub commands set.
pub(crate) const PUBSUB: &Flags = &[
    ("project", "--project"),
    ("topic", "--topic"),
    ("subscription", "--subscription"),
    ("emulator-endpoint", "--pubsub"),
    ("service-account-key-file", "--key-file"),
];

/// `text` with every option that it names replaced by its flag. The forms are those in which our errors name options.
pub(crate) fn named(text: impl Into<String>, flags: &Flags) -> String {
    let mut text = text.into();
    for (option, flag) in flags {
        for form in [
            format!("Option '{option}'"),
            format!("option '{option}'"),
            format!("'{option}'"),
        ] {
            text = text.replace(&form, flag);
        }
        text = text.replace(&format!("{option} must be "), &format!("{flag} must be "));
    }
    text.replace("Options --", "--")
}

#[cfg(test)]
mod tests {
    use aqueduct::bigtable::{BigtableSink, TableDestination};
    use aqueduct::connector::options::ConfigError;
    use aqueduct::pubsub::{Publisher, SubscriptionDestination};
    use aqueduct::runtime::JobConfig;

    use super::*;

    #[test]
    fn every_form_of_an_option_becomes_its_flag() {
        let conflict = ConfigError::Conflict {
            first: "service-account-key-file",
            second: "emulator-endpoint",
            reason: "an emulator takes no credentials".to_owned(),
        };
        assert_eq!(
            named(conflict.to_string(), PUBSUB),
            "--key-file and --pubsub do not go together: an emulator takes no credentials"
        );
        let name = SubscriptionDestination::new("p", "a/b").expect_err("a path");
        assert!(
            named(name.to_string(), PUBSUB).starts_with("--subscription is invalid: 'a/b'"),
            "{name}"
        );
        let name = TableDestination::of("p", "i", "").expect_err("blank");
        assert!(
            named(name.to_string(), TABLE).starts_with("--table "),
            "{name}"
        );
    }

    #[test]
    fn what_the_libraries_say_of_a_flag_names_the_flag() {
        let parallelism = JobConfig::builder().parallelism(0).build();
        let interval = JobConfig::builder()
            .checkpoint_interval(std::time::Duration::ZERO)
            .build();
        let metrics = JobConfig::builder().metrics_address("here").build();
        for (error, flag) in [
            (parallelism, "--parallelism"),
            (interval, "--checkpoint-interval"),
            (metrics, "--metrics"),
        ] {
            let error = error.expect_err(flag).to_string();
            let text = named(error.as_str(), TABLE);
            assert!(text.starts_with(flag), "{text}, of: {error}");
        }
        let endpoint = BigtableSink::<u64>::builder()
            .table(TableDestination::of("p", "i", "t").expect("valid"))
            .serializer(|_: &u64, _, _: &mut aqueduct::bigtable::RowMutationEntry| {
                Ok::<_, std::convert::Infallible>(aqueduct::bigtable::Disposition::Skip)
            })
            .emulator_endpoint("nowhere")
            .build()
            .expect_err("no port");
        let text = named(endpoint.report(), TABLE);
        assert!(text.starts_with("--bigtable must be"), "{text}");
        // One that does no I/O either.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let _inside = runtime.enter();
        let topic = aqueduct::pubsub::TopicDestination::new("p", "t").expect("valid");
        let context = crate::pubsub::host::context("t", &Default::default());
        let error = Publisher::new(&context, topic, None, Some("nowhere")).expect_err("no port");
        let text = named(error.report(), PUBSUB);
        assert!(text.starts_with("--pubsub must be"), "{text}");
    }
}
