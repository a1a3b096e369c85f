//! The sink's builder: everything is checked by `build`, before any I/O.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use aqueduct_cloud::{Credentials, Endpoint, TokenProvider};
use aqueduct_connector::failure::{FailureHandlerFactory, fail_job};
use aqueduct_connector::options::ConfigError;
use aqueduct_connector::sink::{Sink, SinkWriter};
use aqueduct_connector::state::Versioned;
use aqueduct_connector::{Context, Error, Result};

use super::drive::{Drive, Parts};
use super::failed::FailedMutation;
use super::serializer::{CloneResolver, CloneSerializer, DestinationResolver, MutationSerializer};
use super::writer::{Destinations, Writer};
use crate::client::admin::TableCreateOptions;
use crate::client::mutate::{Dial, Network};
use crate::destination::TableDestination;
use crate::options::{self, WriterOptions};

/// What happens when a table or a column family is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CreateDisposition {
    /// The job fails.
    #[default]
    CreateNever,
    /// It is created as declared, and the entries are applied again.
    CreateIfNeeded,
}

/// Whether a writer's entries for one row keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RowOrdering {
    /// The service may apply entries in any order, even those of one row in one request.
    #[default]
    None,
    /// Entries of one row take effect in the order in which this writer was given them, through retries, isolation,
    /// repair and the replacement of clients: a row has at most one entry away, later ones are merged and wait.
    ///
    /// Nothing is promised between writers, so key the stream by row; and after a restart the records since the last
    /// checkpoint are written again, so a row may go back in time until they have caught up.
    PerRow,
}

enum Route<T> {
    Table(TableDestination),
    Resolver(Box<dyn CloneResolver<T>>),
}

/// What a writer is made from.
pub(super) struct Config<T> {
    route: Route<T>,
    serializer: Box<dyn CloneSerializer<T>>,
    handler: Box<dyn FailureHandlerFactory<FailedMutation>>,
    writer: WriterOptions,
    app_profile: Option<Arc<str>>,
    key_file: Option<PathBuf>,
    emulator: Option<Endpoint>,
    create: Option<Arc<TableCreateOptions>>,
    ordering: RowOrdering,
}

impl<T> Config<T> {
    /// Opens a driver: the key file is read here, once for all clients of the writer.
    pub(super) fn drive(&self, context: Context) -> Result<Drive> {
        let credentials = match (&self.emulator, &self.key_file) {
            (Some(_), _) => Credentials::None,
            (None, Some(path)) => Credentials::ServiceAccountKeyFile(path.clone()),
            (None, None) => Credentials::ApplicationDefault,
        };
        let channels =
            NonZeroUsize::new(self.writer.channels as usize).unwrap_or(NonZeroUsize::MIN);
        let tokens = TokenProvider::new(&credentials).map_err(|error| {
            Error::new(
                error.kind(),
                "a writer of the Bigtable sink has no credentials",
            )
            .with_source(error)
        })?;
        let network = Network::new(
            context.clone(),
            self.emulator.clone(),
            tokens,
            channels,
            self.app_profile.clone(),
        );
        self.drive_on(context, Box::new(network))
    }

    fn drive_on(&self, context: Context, dial: Box<dyn Dial>) -> Result<Drive> {
        Drive::new(Parts {
            context,
            options: self.writer.clone(),
            app_profile: self.app_profile.clone(),
            per_row: self.ordering == RowOrdering::PerRow,
            create: self.create.clone(),
            dial,
            handler: self.handler.create(),
        })
    }
}

/// Writes records of type `T` into Bigtable, one row mutation a record, at least once.
///
/// A completed checkpoint means that every earlier record was applied, skipped by the serializer, or under a dropping
/// policy handed to the failed-mutation handler. Whether a replay is invisible is the serializer's choice: set-cells
/// with timestamps taken from the record overwrite themselves. Nothing promises an order unless
/// [`RowOrdering::PerRow`] is set.
///
/// ```no_run
/// use aqueduct_bigtable::{BigtableSink, Disposition, RowMutationEntry, TableDestination};
/// use aqueduct_connector::sink::RecordInfo;
///
/// struct Order { id: String, time_millis: i64, body: Vec<u8> }
///
/// let sink = BigtableSink::<Order>::builder()
///     .table(TableDestination::of("my-project", "my-instance", "orders")?)
///     .serializer(|order: &Order, _: RecordInfo, entry: &mut RowMutationEntry| {
///         entry.row_key(&order.id).set_cell("cf", "body", order.time_millis * 1_000, &order.body);
///         Ok::<_, std::convert::Infallible>(Disposition::Write)
///     })
///     .build()?;
/// # drop(sink);
/// # Ok::<(), aqueduct_connector::Error>(())
/// ```
pub struct BigtableSink<T>(Arc<Config<T>>);

impl<T: 'static> BigtableSink<T> {
    /// A builder; table or resolver, and serializer, are required.
    pub fn builder() -> BigtableSinkBuilder<T> {
        BigtableSinkBuilder {
            route: None,
            serializer: None,
            handler: Box::new(fail_job),
            writer: WriterOptions::default(),
            app_profile: None,
            key_file: None,
            emulator: None,
            disposition: CreateDisposition::default(),
            create: None,
            ordering: RowOrdering::default(),
        }
    }
}

impl<T> fmt::Debug for BigtableSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BigtableSink")
            .field("writer_options", &self.0.writer)
            .field("row_ordering", &self.0.ordering)
            .finish_non_exhaustive()
    }
}

impl<T: 'static> Sink<T> for BigtableSink<T> {
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
                "the restored checkpoint holds writer state for the Bigtable bulk sink, which has none; it was taken by \
                 another sink under this operator's name",
            ));
        }
        let destinations = match &self.0.route {
            Route::Table(table) => Destinations::Table(table.clone()),
            Route::Resolver(resolver) => Destinations::Resolver(resolver.fresh()),
        };
        let serializer = self.0.serializer.fresh();
        Ok(Box::new(Writer::new(
            self.0.clone(),
            context,
            destinations,
            serializer,
        )))
    }
}

/// Builds a [`BigtableSink`]. Setters never fail; [`build`](Self::build) checks everything and names the option.
#[must_use]
pub struct BigtableSinkBuilder<T> {
    route: Option<Route<T>>,
    serializer: Option<Box<dyn CloneSerializer<T>>>,
    handler: Box<dyn FailureHandlerFactory<FailedMutation>>,
    writer: WriterOptions,
    app_profile: Option<String>,
    key_file: Option<PathBuf>,
    emulator: Option<String>,
    disposition: CreateDisposition,
    create: Option<TableCreateOptions>,
    ordering: RowOrdering,
}

impl<T: 'static> BigtableSinkBuilder<T> {
    /// Writes every record to one table. Replaces a resolver set before; the last call wins.
    pub fn table(mut self, table: TableDestination) -> Self {
        self.route = Some(Route::Table(table));
        self
    }

    /// Names the table of each record. Replaces a table set before; the last call wins.
    ///
    /// Each table costs a batch that fills, each instance a client; both in-flight bounds stay the writer's.
    pub fn destination_resolver(
        mut self,
        resolver: impl DestinationResolver<T> + Clone + Send + Sync + 'static,
    ) -> Self {
        self.route = Some(Route::Resolver(Box::new(resolver)));
        self
    }

    /// Turns records into row changes; required.
    pub fn serializer(
        mut self,
        serializer: impl MutationSerializer<T> + Clone + Send + Sync + 'static,
    ) -> Self {
        self.serializer = Some(Box::new(serializer));
        self
    }

    /// The application profile that routes the writes (`sink.app-profile-id`); by default the instance's own.
    ///
    /// A profile for Data Boost only reads, and every write through it fails; that cannot be seen from here.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses a blank one.
    pub fn app_profile_id(mut self, profile: impl Into<String>) -> Self {
        self.app_profile = Some(profile.into());
        self
    }

    /// Path of a service account's JSON key on every worker (`service-account-key-file`), read once when a writer
    /// starts; by default application-default credentials, which are to be preferred.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses it beside [`emulator_endpoint`](Self::emulator_endpoint). A file that cannot be
    /// used fails the start of the writer, with a message that names neither path nor content.
    pub fn service_account_key_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.key_file = Some(path.into());
        self
    }

    /// `host:port` of a Bigtable emulator (`emulator-endpoint`), in plain text without credentials; never for
    /// production.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses what is not `host:port`.
    pub fn emulator_endpoint(mut self, address: impl Into<String>) -> Self {
        self.emulator = Some(address.into());
        self
    }

    /// How writers batch, bound and recover; by default [`WriterOptions::default`].
    pub fn writer_options(mut self, options: WriterOptions) -> Self {
        self.writer = options;
        self
    }

    /// What becomes of records rejected for their own sake; by default they fail the job. Any
    /// `Fn() -> impl FailureHandler` makes the handler of each writer, such as
    /// [`log_and_drop`](aqueduct_connector::failure::log_and_drop).
    pub fn failed_mutation_handler(
        mut self,
        handler: impl FailureHandlerFactory<FailedMutation> + 'static,
    ) -> Self {
        self.handler = Box::new(handler);
        self
    }

    /// What happens when a table or family is missing (`sink.create-disposition`); by default the job fails.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses [`CreateDisposition::CreateIfNeeded`] without
    /// [`table_create_options`](Self::table_create_options), and the reverse.
    pub fn create_disposition(mut self, disposition: CreateDisposition) -> Self {
        self.disposition = disposition;
        self
    }

    /// The schema that may be created, one for every table that a resolver names.
    pub fn table_create_options(mut self, options: TableCreateOptions) -> Self {
        self.create = Some(options);
        self
    }

    /// Whether entries of one row keep their order (`sink.row-ordering`); by default nothing promises one.
    ///
    /// Costs a round trip for each repetition of a key that is under way; distinct rows stay parallel. What waits
    /// counts in the in-flight bounds.
    pub fn row_ordering(mut self, ordering: RowOrdering) -> Self {
        self.ordering = ordering;
        self
    }

    /// Checks everything and makes the sink. Does no I/O.
    ///
    /// # Errors
    ///
    /// The first setting that cannot work, by the name of its option.
    pub fn build(self) -> Result<BigtableSink<T>> {
        let missing =
            |option: &'static str, what: &'static str| ConfigError::Missing { option, what };
        let conflict =
            |first: &'static str, second: &'static str, reason: &str| ConfigError::Conflict {
                first,
                second,
                reason: reason.to_owned(),
            };
        let route = self.route.ok_or(missing(
            "table",
            "set table(..) or destination_resolver(..)",
        ))?;
        let serializer = self.serializer.ok_or(missing(
            "serializer",
            "it turns a record into a row mutation",
        ))?;
        if let Some(profile) = &self.app_profile {
            options::APP_PROFILE_ID.check(profile)?;
        }
        if self.key_file.is_some() && self.emulator.is_some() {
            let (first, second) = (
                options::SERVICE_ACCOUNT_KEY_FILE.key(),
                options::EMULATOR_ENDPOINT.key(),
            );
            return Err(conflict(
                first,
                second,
                "an emulator takes no credentials; remove one",
            )
            .into());
        }
        let emulator = self
            .emulator
            .map(|address| Endpoint::emulator(options::EMULATOR_ENDPOINT.key(), &address))
            .transpose()?;
        self.writer.check()?;
        let (disposition, schema) = (
            options::CREATE_DISPOSITION.key(),
            options::TABLE_CREATE_OPTIONS.key(),
        );
        match (self.disposition, &self.create) {
            (CreateDisposition::CreateIfNeeded, None) => {
                let reason = "'create-if-needed' needs the families that may be created";
                return Err(conflict(disposition, schema, reason).into());
            }
            (CreateDisposition::CreateNever, Some(_)) => {
                let reason = "families are declared but 'create-never' creates nothing; remove them or set \
                              'create-if-needed'";
                return Err(conflict(disposition, schema, reason).into());
            }
            (CreateDisposition::CreateIfNeeded, Some(create)) => create.check()?,
            (CreateDisposition::CreateNever, None) => {}
        }
        Ok(BigtableSink(Arc::new(Config {
            route,
            serializer,
            handler: self.handler,
            writer: self.writer,
            app_profile: self.app_profile.map(Into::into),
            key_file: self.key_file,
            emulator,
            create: self.create.map(Arc::new),
            ordering: self.ordering,
        })))
    }
}

impl<T> fmt::Debug for BigtableSinkBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BigtableSinkBuilder")
            .field("writer_options", &self.writer)
            .finish_non_exhaustive()
    }
}
