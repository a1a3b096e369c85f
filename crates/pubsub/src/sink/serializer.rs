//! What users supply: how a record becomes a message, and which topic it goes to.

use std::error::Error as StdError;

use aqueduct_connector::sink::RecordInfo;
use aqueduct_connector::{Context, Result};

use crate::TopicDestination;
use crate::message::Message;

/// An error of user code, as it is.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Whether a serialized record is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The message is published.
    Publish,
    /// The record is written nowhere. No failure: counted by `recordsSkipped` and by nothing else.
    Skip,
}

/// Turns records into messages. Cloned for each writer, called on the writer's task, once a record.
///
/// A closure `FnMut(&T, RecordInfo, &mut Message) -> Result<Disposition, E>` is one; [`PubSubSerializer`] puts one
/// together from parts.
pub trait MessageSerializer<T> {
    /// Called once before the first record.
    ///
    /// # Errors
    ///
    /// Fails the start of the writer.
    fn open(&mut self, context: &Context) -> Result<()> {
        let _ = context;
        Ok(())
    }

    /// Fills `message`, which is empty.
    ///
    /// # Errors
    ///
    /// A record that cannot be published; it goes to the failed-message handler.
    fn serialize(
        &mut self,
        record: &T,
        info: RecordInfo,
        message: &mut Message,
    ) -> Result<Disposition, BoxError>;
}

impl<T, F, E> MessageSerializer<T> for F
where
    F: FnMut(&T, RecordInfo, &mut Message) -> Result<Disposition, E>,
    E: Into<BoxError>,
{
    fn serialize(
        &mut self,
        record: &T,
        info: RecordInfo,
        message: &mut Message,
    ) -> Result<Disposition, BoxError> {
        self(record, info, message).map_err(Into::into)
    }
}

/// Encodes a record as the data of a message. There is no skip: a record without a payload is an error.
///
/// A closure `FnMut(&T, &mut Vec<u8>) -> Result<(), E>` is one.
pub trait PayloadSchema<T> {
    /// Appends the payload to `data`, which is empty.
    ///
    /// # Errors
    ///
    /// A record that has no payload; it goes to the failed-message handler.
    fn encode(&mut self, record: &T, data: &mut Vec<u8>) -> Result<(), BoxError>;
}

impl<T, F, E> PayloadSchema<T> for F
where
    F: FnMut(&T, &mut Vec<u8>) -> Result<(), E>,
    E: Into<BoxError>,
{
    fn encode(&mut self, record: &T, data: &mut Vec<u8>) -> Result<(), BoxError> {
        self(record, data).map_err(Into::into)
    }
}

/// The attributes of a message, to be added to.
pub struct Attributes<'a>(&'a mut Message);

impl Attributes<'_> {
    /// Adds one. Of one key given twice, the service keeps the last value.
    pub fn put(&mut self, key: impl AsRef<str>, value: impl AsRef<str>) -> &mut Self {
        self.0.attribute(key, value);
        self
    }
}

impl std::fmt::Debug for Attributes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A serializer put together from a payload schema and extractors.
///
/// ```
/// use aqueduct_pubsub::PubSubSerializer;
///
/// struct Order { id: String, tenant: String, body: Vec<u8> }
///
/// let serializer = PubSubSerializer::payload(|order: &Order, data: &mut Vec<u8>| {
///     data.extend_from_slice(&order.body);
///     Ok::<_, std::convert::Infallible>(())
/// })
/// .with_attributes(|order, attributes| {
///     attributes.put("tenant", &order.tenant);
///     Ok::<_, std::convert::Infallible>(())
/// })
/// .with_ordering_key(|order, key| {
///     key.push_str(&order.id);
///     Ok::<_, std::convert::Infallible>(())
/// });
/// # drop(serializer);
/// ```
pub struct PubSubSerializer<T> {
    base: Box<dyn CloneSerializer<T>>,
    extractors: Vec<Box<dyn Extractor<T>>>,
}

impl<T: 'static> PubSubSerializer<T> {
    /// Messages whose data is the payload.
    pub fn payload(schema: impl PayloadSchema<T> + Clone + Send + Sync + 'static) -> Self {
        Self::message(Payload(schema))
    }

    /// Messages as `serializer` makes them, extractors added. They are not called for a record that it skips.
    pub fn message(serializer: impl MessageSerializer<T> + Clone + Send + Sync + 'static) -> Self {
        Self {
            base: Box::new(serializer),
            extractors: Vec::new(),
        }
    }

    /// Adds attributes. Adding none is fine; an error is a serialization failure.
    #[must_use]
    pub fn with_attributes<E: Into<BoxError>>(
        mut self,
        mut extractor: impl FnMut(&T, &mut Attributes<'_>) -> Result<(), E>
        + Clone
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.extractors
            .push(Box::new(move |record: &T, message: &mut Message| {
                extractor(record, &mut Attributes(message)).map_err(Into::into)
            }));
        self
    }

    /// Sets the ordering key, which the extractor writes into an empty string; an empty key is none. An error is a
    /// serialization failure.
    #[must_use]
    pub fn with_ordering_key<E: Into<BoxError>>(
        mut self,
        mut extractor: impl FnMut(&T, &mut String) -> Result<(), E> + Clone + Send + Sync + 'static,
    ) -> Self {
        self.extractors
            .push(Box::new(move |record: &T, message: &mut Message| {
                message.ordering_key("");
                extractor(record, message.ordering_key_mut()).map_err(Into::into)
            }));
        self
    }
}

impl<T> Clone for PubSubSerializer<T> {
    fn clone(&self) -> Self {
        Self {
            base: self.base.boxed(),
            extractors: self
                .extractors
                .iter()
                .map(|extractor| extractor.boxed())
                .collect(),
        }
    }
}

impl<T> std::fmt::Debug for PubSubSerializer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PubSubSerializer")
            .field("extractors", &self.extractors.len())
            .finish_non_exhaustive()
    }
}

impl<T> MessageSerializer<T> for PubSubSerializer<T> {
    fn open(&mut self, context: &Context) -> Result<()> {
        self.base.open(context)
    }

    fn serialize(
        &mut self,
        record: &T,
        info: RecordInfo,
        message: &mut Message,
    ) -> Result<Disposition, BoxError> {
        let disposition = self.base.serialize(record, info, message)?;
        if disposition == Disposition::Publish {
            for extractor in &mut self.extractors {
                extractor.extract(record, message)?;
            }
        }
        Ok(disposition)
    }
}

#[derive(Clone)]
struct Payload<S>(S);

impl<T, S: PayloadSchema<T>> MessageSerializer<T> for Payload<S> {
    fn serialize(
        &mut self,
        record: &T,
        _: RecordInfo,
        message: &mut Message,
    ) -> Result<Disposition, BoxError> {
        self.0.encode(record, message.data_mut())?;
        Ok(Disposition::Publish)
    }
}

/// Adds something to a message.
trait Extractor<T>: Send + Sync {
    fn extract(&mut self, record: &T, message: &mut Message) -> Result<(), BoxError>;
    fn boxed(&self) -> Box<dyn Extractor<T>>;
}

impl<T, F> Extractor<T> for F
where
    F: FnMut(&T, &mut Message) -> Result<(), BoxError> + Clone + Send + Sync + 'static,
{
    fn extract(&mut self, record: &T, message: &mut Message) -> Result<(), BoxError> {
        self(record, message)
    }

    fn boxed(&self) -> Box<dyn Extractor<T>> {
        Box::new(self.clone())
    }
}

/// Names the topic of each record, before the serializer sees it. Cheap and deterministic: keep the destinations and
/// clone them.
///
/// A closure `FnMut(&T, RecordInfo) -> Result<Option<TopicDestination>, E>` is one.
pub trait DestinationResolver<T> {
    /// The topic of `record`.
    ///
    /// # Errors
    ///
    /// Fails the job, as does `None`: a resolver that cannot name a topic is no bad record.
    fn resolve(
        &mut self,
        record: &T,
        info: RecordInfo,
    ) -> Result<Option<TopicDestination>, BoxError>;
}

impl<T, F, E> DestinationResolver<T> for F
where
    F: FnMut(&T, RecordInfo) -> Result<Option<TopicDestination>, E>,
    E: Into<BoxError>,
{
    fn resolve(
        &mut self,
        record: &T,
        info: RecordInfo,
    ) -> Result<Option<TopicDestination>, BoxError> {
        self(record, info).map_err(Into::into)
    }
}

/// A serializer that a sink can clone for its writers.
pub(super) trait CloneSerializer<T>: MessageSerializer<T> + Send + Sync {
    fn boxed(&self) -> Box<dyn CloneSerializer<T>>;
}

impl<T, S: MessageSerializer<T> + Clone + Send + Sync + 'static> CloneSerializer<T> for S {
    fn boxed(&self) -> Box<dyn CloneSerializer<T>> {
        Box::new(self.clone())
    }
}

/// A resolver that a sink can clone for its writers.
pub(super) trait CloneResolver<T>: Send + Sync {
    fn fresh(&self) -> Box<dyn DestinationResolver<T>>;
}

impl<T, R: DestinationResolver<T> + Clone + Send + Sync + 'static> CloneResolver<T> for R {
    fn fresh(&self) -> Box<dyn DestinationResolver<T>> {
        Box::new(self.clone())
    }
}
