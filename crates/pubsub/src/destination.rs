//! Topic and subscription addresses: pure identities, compared by value and cheap to clone (PS-GEN-01).

use std::fmt;
use std::sync::Arc;

use aqueduct_connector::options::{ConfigError, Default, TextOpt};

/// The Google Cloud project.
pub const PROJECT: TextOpt =
    TextOpt::new("project", "The Google Cloud project, by id.").default(Default::Required);
/// The topic.
pub const TOPIC: TextOpt =
    TextOpt::new("topic", "The topic, by plain name.").default(Default::Required);
/// The subscription.
pub const SUBSCRIPTION: TextOpt =
    TextOpt::new("subscription", "The subscription, by plain name.").default(Default::Required);

macro_rules! destination {
    ($name:ident, $what:literal, $collection:literal, $option:ident, $getter:ident) => {
        #[doc = concat!("The address of a ", $what, ".")]
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<(Box<str>, Box<str>)>);

        impl $name {
            #[doc = concat!("The ", $what, " of `project`, both by plain name.")]
            ///
            /// # Errors
            ///
            /// If a part is blank, contains `/` or has white space at an edge; names the part.
            pub fn new(project: &str, $getter: &str) -> Result<Self, ConfigError> {
                let project = PROJECT.check_component(project)?;
                let name = $option.check_component($getter)?;
                Ok(Self(Arc::new((project.into(), name.into()))))
            }

            /// The project's id.
            #[must_use]
            pub fn project(&self) -> &str {
                &self.0.0
            }

            #[doc = concat!("The ", $what, "'s name.")]
            #[must_use]
            pub fn $getter(&self) -> &str {
                &self.0.1
            }
        }

        impl fmt::Display for $name {
            /// The full resource name.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(
                    f,
                    concat!("projects/{}/", $collection, "/{}"),
                    self.0.0, self.0.1
                )
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

destination!(TopicDestination, "topic", "topics", TOPIC, topic);
destination!(
    SubscriptionDestination,
    "subscription",
    "subscriptions",
    SUBSCRIPTION,
    subscription
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_would_name_another_resource_is_refused_by_name() {
        for (project, name, option) in [
            ("a/b", "t", "project"),
            ("p", " t", "topic"),
            ("p", "", "topic"),
        ] {
            let error = TopicDestination::new(project, name)
                .unwrap_err()
                .to_string();
            assert!(error.contains(option), "{error}");
        }
        assert!(
            SubscriptionDestination::new("p", "a/b")
                .unwrap_err()
                .to_string()
                .contains("subscription")
        );
    }

    #[test]
    fn addresses_compare_by_value_and_print_the_resource_name() {
        let topic = TopicDestination::new("p", "t").expect("valid");
        assert_eq!(topic, TopicDestination::new("p", "t").expect("valid"));
        assert_eq!(topic.to_string(), "projects/p/topics/t");
        let subscription = SubscriptionDestination::new("p", "s").expect("valid");
        assert_eq!(format!("{subscription:?}"), "projects/p/subscriptions/s");
    }
}
