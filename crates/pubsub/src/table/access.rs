//! What both sides read of a statement: project, topics, access; and how refusals of the builders are passed on.

use std::error::Error as _;

use aqueduct_connector::Error;
use aqueduct_connector::options::ConfigError;
use aqueduct_connector::table::TableOptions;

use crate::destination::{PROJECT, TopicDestination};
use crate::sink_options::{EMULATOR_ENDPOINT, SERVICE_ACCOUNT_KEY_FILE};

/// A table's project.
pub(super) fn project<'a>(options: &TableOptions<'a>) -> Result<&'a str, ConfigError> {
    options
        .raw(PROJECT.key())
        .ok_or(ConfigError::Missing {
            option: PROJECT.key(),
            what: "the Google Cloud project of topics and subscriptions",
        })
        .and_then(|project| PROJECT.check_component(project))
}

/// Refuses two ways of access at once, which asks for the removal of one.
pub(super) fn check(options: &TableOptions<'_>) -> Result<(), ConfigError> {
    if options.has(SERVICE_ACCOUNT_KEY_FILE.key()) && options.has(EMULATOR_ENDPOINT.key()) {
        return Err(ConfigError::Conflict {
            first: SERVICE_ACCOUNT_KEY_FILE.key(),
            second: EMULATOR_ENDPOINT.key(),
            reason: "an emulator takes no credentials; remove one of them".to_owned(),
        });
    }
    Ok(())
}

/// A topic by plain name in `project` or by full name.
///
/// # Errors
///
/// What is wrong with it, without the name itself.
pub(super) fn topic(project: &str, name: &str) -> Result<TopicDestination, &'static str> {
    let (project, name) = match name.strip_prefix("projects/") {
        Some(rest) => rest
            .split_once("/topics/")
            .ok_or("it begins with 'projects/' and is not 'projects/<project>/topics/<topic>'")?,
        None => (project, name),
    };
    TopicDestination::new(project, name).map_err(|_| {
        if name.trim().is_empty() || project.trim().is_empty() {
            "it is blank"
        } else if name.contains('/') || project.contains('/') {
            "it contains '/' and is not 'projects/<project>/topics/<topic>'"
        } else {
            "it begins or ends with white space"
        }
    })
}

/// As [`topic`], of an option.
pub(super) fn topic_option(
    key: &'static str,
    project: &str,
    name: &str,
) -> Result<TopicDestination, ConfigError> {
    topic(project, name).map_err(|why| ConfigError::invalid(key, format!("topic '{name}': {why}")))
}

/// A builder's refusal as a table gives it.
pub(super) fn refusal(error: &Error) -> ConfigError {
    let mut next = error.source();
    while let Some(cause) = next {
        if let Some(refusal) = cause.downcast_ref::<ConfigError>() {
            return refusal.clone();
        }
        next = cause.source();
    }
    // Of what the builders check, only the emulator's address is refused in other words.
    let text = error.report();
    let reason = text.strip_prefix(EMULATOR_ENDPOINT.key());
    ConfigError::invalid(
        EMULATOR_ENDPOINT.key(),
        reason.map_or(text.as_str(), str::trim_start),
    )
}
