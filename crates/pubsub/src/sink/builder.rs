//! The sink's builder: everything is checked by `build`, before any I/O.

use std::fmt;
use std::sync::Arc;

use aqueduct_connector::failure::{FailureHandlerFactory, fail_job};
use aqueduct_connector::options::ConfigError;
use aqueduct_connector::sink::{Sink, SinkWriter};
use aqueduct_connector::state::Versioned;
use aqueduct_connector::{Context, Error, Result};

use super::drive::{Drive, Parts};
use super::failed::FailedMessage;
use super::serializer::{CloneResolver, CloneSerializer, DestinationResolver, MessageSerializer};
use super::writer::{Destinations, Writer};
use crate::TopicDestination;
use crate::client::Access;
use crate::client::publish::Network;
use crate::sink_options::{self as options, PublisherOptions, TopicCreateOptions};

/// What happens when a topic is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CreateDisposition {
    /// The job fails.
    CreateNever,
    /// It is created, and the messages are published again.
    #[default]
    CreateIfNeeded,
}

enum Route<T> {
    Topic(TopicDestination),
    Resolver(Box<dyn CloneResolver<T>>),
}

/// What a writer is made from.
pub(super) struct Config<T> {
    route: Route<T>,
    serializer: Box<dyn CloneSerializer<T>>,
    handler: Box<dyn FailureHandlerFactory<FailedMessage>>,
    publisher: PublisherOptions,
    access: Access,
    create: Option<Arc<TopicCreateOptions>>,
}

impl<T> Config<T> {
    /// Opens a driver: the key file is read here, once for all topics of the writer.
    pub(super) fn drive(&self, context: Context) -> Result<Drive> {
        let network = Network::new(context.clone(), &self.access, self.publisher.channels)?;
        Drive::new(Parts {
            context,
            options: self.publisher.clone(),
            create: self.create.clone(),
            dial: Box::new(network),
            handler: self.handler.create(),
        })
    }
}

/// Publishes records of type `T` to Pub/Sub topics, one message a record, at least once.
///
/// A completed checkpoint means that every earlier record was published, skipped by the serializer, or under a dropping
/// policy handed to the failed-message handler. A replay publishes again, as new messages with new ids: the service has
/// no publish transaction. With [`PublisherOptions::enable_message_ordering`] the messages of an ordering key keep their
/// order, as long as a key stays with one topic and one writer.
///
/// ```no_run
/// use aqueduct_pubsub::{PubSubSerializer, PubSubSink, TopicDestination};
///
/// struct Order { region: String, tenant: String, body: Vec<u8> }
///
/// let sink = PubSubSink::<Order>::builder()
///     .destination_resolver(|order: &Order, _| {
///         TopicDestination::new("my-project", &format!("orders-{}", order.region)).map(Some)
///     })
///     .serializer(
///         PubSubSerializer::payload(|order: &Order, data: &mut Vec<u8>| {
///             data.extend_from_slice(&order.body);
///             Ok::<_, std::convert::Infallible>(())
///         })
///         .with_attributes(|order, attributes| {
///             attributes.put("tenant", &order.tenant);
///             Ok::<_, std::convert::Infallible>(())
///         }),
///     )
///     .build()?;
/// # drop(sink);
/// # Ok::<(), aqueduct_connector::Error>(())
/// ```
pub struct PubSubSink<T>(Arc<Config<T>>);

impl<T: 'static> PubSubSink<T> {
    /// A builder; topic or resolver, and serializer, are required.
    pub fn builder() -> PubSubSinkBuilder<T> {
        PubSubSinkBuilder {
            route: None,
            serializer: None,
            handler: Box::new(fail_job),
            publisher: PublisherOptions::default(),
            key_file: None,
            emulator: None,
            disposition: CreateDisposition::default(),
            create: None,
        }
    }
}

impl<T> fmt::Debug for PubSubSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PubSubSink")
            .field("publisher_options", &self.0.publisher)
            .field("create", &self.0.create)
            .finish_non_exhaustive()
    }
}

impl<T: 'static> Sink<T> for PubSubSink<T> {
    fn connector(&self) -> &'static str {
        super::CONNECTOR
    }

    fn create_writer(
        &self,
        context: Context,
        restored: Vec<Versioned>,
    ) -> Result<Box<dyn SinkWriter<T>>> {
        if !restored.is_empty() {
            return Err(Error::state(
                "the restored checkpoint holds writer state for the Pub/Sub sink, which has none; it was taken by another \
                 sink under this operator's name",
            ));
        }
        let destinations = match &self.0.route {
            Route::Topic(topic) => Destinations::Topic(topic.clone()),
            Route::Resolver(resolver) => Destinations::Resolver(resolver.fresh()),
        };
        Ok(Box::new(Writer::new(
            self.0.clone(),
            context,
            destinations,
            self.0.serializer.boxed(),
        )))
    }
}

/// Builds a [`PubSubSink`]. Setters never fail; [`build`](Self::build) checks everything and names the option.
#[must_use]
pub struct PubSubSinkBuilder<T> {
    route: Option<Route<T>>,
    serializer: Option<Box<dyn CloneSerializer<T>>>,
    handler: Box<dyn FailureHandlerFactory<FailedMessage>>,
    publisher: PublisherOptions,
    key_file: Option<String>,
    emulator: Option<String>,
    disposition: CreateDisposition,
    create: Option<TopicCreateOptions>,
}

impl<T: 'static> PubSubSinkBuilder<T> {
    /// Publishes every record to one topic. Replaces a resolver set before; the last call wins.
    pub fn topic(mut self, topic: TopicDestination) -> Self {
        self.route = Some(Route::Topic(topic));
        self
    }

    /// Names the topic of each record. Replaces a topic set before; the last call wins.
    ///
    /// Each topic costs a batch that fills; both in-flight bounds stay the writer's.
    pub fn destination_resolver(
        mut self,
        resolver: impl DestinationResolver<T> + Clone + Send + Sync + 'static,
    ) -> Self {
        self.route = Some(Route::Resolver(Box::new(resolver)));
        self
    }

    /// Turns records into messages; required. A [`PubSubSerializer`](super::PubSubSerializer) or a serializer of whole
    /// messages.
    pub fn serializer(
        mut self,
        serializer: impl MessageSerializer<T> + Clone + Send + Sync + 'static,
    ) -> Self {
        self.serializer = Some(Box::new(serializer));
        self
    }

    /// Path of a service account's JSON key on every worker (`service-account-key-file`), read once when a writer
    /// starts; by default application-default credentials, which are to be preferred.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses a blank one, and one beside [`emulator_endpoint`](Self::emulator_endpoint). A file
    /// that cannot be used fails the start of the writer, with a message that names neither path nor content.
    pub fn service_account_key_file(mut self, path: impl Into<String>) -> Self {
        self.key_file = Some(path.into());
        self
    }

    /// `host:port` of a Pub/Sub emulator (`emulator-endpoint`), in plain text without credentials; never for production.
    /// `PUBSUB_EMULATOR_HOST` is not read.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses what is not `host:port`.
    pub fn emulator_endpoint(mut self, address: impl Into<String>) -> Self {
        self.emulator = Some(address.into());
        self
    }

    /// How writers batch, bound, retry and recover; by default [`PublisherOptions::default`].
    pub fn publisher_options(mut self, options: PublisherOptions) -> Self {
        self.publisher = options;
        self
    }

    /// What becomes of records rejected for their own sake; by default they fail the job. Any
    /// `Fn() -> impl FailureHandler` makes the handler of each writer, such as
    /// [`log_and_drop`](aqueduct_connector::failure::log_and_drop) or a
    /// [dead-letter queue's](crate::PubSubDeadLetterQueue::handler).
    pub fn failed_message_handler(
        mut self,
        handler: impl FailureHandlerFactory<FailedMessage> + 'static,
    ) -> Self {
        self.handler = Box::new(handler);
        self
    }

    /// What happens when a topic is missing (`sink.create-disposition`); by default it is created.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses [`CreateDisposition::CreateNever`] beside
    /// [`topic_create_options`](Self::topic_create_options).
    pub fn create_disposition(mut self, disposition: CreateDisposition) -> Self {
        self.disposition = disposition;
        self
    }

    /// What created topics are like, one object for every topic that this sink creates; by default as the service makes
    /// them.
    pub fn topic_create_options(mut self, options: TopicCreateOptions) -> Self {
        self.create = Some(options);
        self
    }

    /// Checks everything and makes the sink. Does no I/O.
    ///
    /// # Errors
    ///
    /// The first setting that cannot work, by the name of its option.
    pub fn build(self) -> Result<PubSubSink<T>> {
        let missing =
            |option: &'static str, what: &'static str| ConfigError::Missing { option, what };
        let route = self.route.ok_or(missing(
            "topic",
            "set topic(..) or destination_resolver(..)",
        ))?;
        let serializer = self
            .serializer
            .ok_or(missing("serializer", "it turns a record into a message"))?;
        let access = Access::new(self.key_file.as_deref(), self.emulator.as_deref())?;
        self.publisher.check()?;
        let create = match (self.disposition, self.create) {
            (CreateDisposition::CreateNever, Some(_)) => {
                return Err(ConfigError::Conflict {
                    first: options::CREATE_DISPOSITION.key(),
                    second: "sink.auto-create",
                    reason: "creation settings are given but 'create-never' creates nothing; remove them or set \
                             'create-if-needed'"
                        .to_owned(),
                }
                .into());
            }
            (CreateDisposition::CreateNever, None) => None,
            (CreateDisposition::CreateIfNeeded, settings) => {
                let settings = settings.unwrap_or_default();
                settings.check()?;
                Some(Arc::new(settings))
            }
        };
        Ok(PubSubSink(Arc::new(Config {
            route,
            serializer,
            handler: self.handler,
            publisher: self.publisher,
            access,
            create,
        })))
    }
}

impl<T> fmt::Debug for PubSubSinkBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PubSubSinkBuilder")
            .field("publisher_options", &self.publisher)
            .finish_non_exhaustive()
    }
}
