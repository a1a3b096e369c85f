//! The generator itself and its builder.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use aqueduct_connector::options::ConfigError;
use aqueduct_connector::source::{Boundedness, Source, SourceReader, SplitEnumerator};
use aqueduct_connector::{Context, Result, Timestamp, Versioned};

use super::enumerator::GeneratorEnumerator;
use super::reader::GeneratorReader;
use crate::options;

/// Event time of an index and its record.
pub(super) type TimestampOf<T> = dyn Fn(u64, &T) -> Option<Timestamp> + Send + Sync;

/// What readers share.
pub(super) struct Settings<T, G> {
    pub(super) make: G,
    pub(super) timestamp_of: Option<Arc<TimestampOf<T>>>,
    pub(super) records_per_second: Option<u64>,
    pub(super) limit: Option<u64>,
    pub(super) output: PhantomData<fn() -> T>,
}

/// Makes records of their index; made by a [`GeneratorSourceBuilder`].
///
/// Bounded with a limit, else unbounded. A restore goes on with the next index of each stripe.
pub struct GeneratorSource<T, G> {
    stripes: u32,
    settings: Arc<Settings<T, G>>,
}

impl<T, G> GeneratorSource<T, G>
where
    T: 'static,
    G: Fn(u64) -> T + Send + Sync + 'static,
{
    /// A source of `make(0)`, `make(1)`, ... The function is called once for each index, again
    /// after a restore; let the index alone decide what it returns.
    #[must_use]
    pub fn builder(make: G) -> GeneratorSourceBuilder<T, G> {
        GeneratorSourceBuilder {
            make,
            timestamp_of: None,
            records_per_second: None,
            limit: None,
            stripes: options::STRIPES.ours(),
        }
    }
}

impl<T, G> Clone for GeneratorSource<T, G> {
    fn clone(&self) -> Self {
        Self {
            stripes: self.stripes,
            settings: Arc::clone(&self.settings),
        }
    }
}

impl<T, G> fmt::Debug for GeneratorSource<T, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GeneratorSource")
            .field("stripes", &self.stripes)
            .field("records_per_second", &self.settings.records_per_second)
            .field("limit", &self.settings.limit)
            .finish_non_exhaustive()
    }
}

impl<T, G> Source<T> for GeneratorSource<T, G>
where
    T: 'static,
    G: Fn(u64) -> T + Send + Sync + 'static,
{
    fn connector(&self) -> &'static str {
        "generator"
    }

    fn boundedness(&self) -> Boundedness {
        match self.settings.limit {
            Some(_) => Boundedness::Bounded,
            None => Boundedness::Unbounded,
        }
    }

    fn create_enumerator(
        &self,
        context: Context,
        restored: Option<Versioned>,
    ) -> Result<Box<dyn SplitEnumerator>> {
        let enumerator =
            GeneratorEnumerator::new(&context, self.stripes, self.boundedness(), restored)?;
        Ok(Box::new(enumerator))
    }

    fn create_reader(&self, context: Context) -> Result<Box<dyn SourceReader<T>>> {
        Ok(Box::new(GeneratorReader::new(
            &context,
            Arc::clone(&self.settings),
        )))
    }
}

/// Describes a [`GeneratorSource`]. Setters never fail; [`build`](Self::build) checks everything.
pub struct GeneratorSourceBuilder<T, G> {
    make: G,
    timestamp_of: Option<Arc<TimestampOf<T>>>,
    records_per_second: Option<u64>,
    limit: Option<u64>,
    stripes: u64,
}

impl<T, G> GeneratorSourceBuilder<T, G>
where
    T: 'static,
    G: Fn(u64) -> T + Send + Sync + 'static,
{
    /// Records a second over all readers, by the host's clock.
    ///
    /// - Default: as fast as they are taken. Option: `rows-per-second`.
    /// - A reader that fell behind catches up by at most a tenth of a second's worth at once.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses 0.
    #[must_use]
    pub fn records_per_second(mut self, records: u64) -> Self {
        self.records_per_second = Some(records);
        self
    }

    /// Ends after this many records. Default: never. Option: `number-of-rows`.
    #[must_use]
    pub fn limit(mut self, records: u64) -> Self {
        self.limit = Some(records);
        self
    }

    /// Gives each record an event time. Default: none.
    #[must_use]
    pub fn timestamps(
        mut self,
        timestamp_of: impl Fn(u64, &T) -> Option<Timestamp> + Send + Sync + 'static,
    ) -> Self {
        self.timestamp_of = Some(Arc::new(timestamp_of));
        self
    }

    /// Stripes of the sequence: the greatest useful parallelism.
    ///
    /// - Default: 32. Option: `scan.generator.stripes`. A restored job keeps what it began with.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) refuses 0 and more than 65,536.
    #[must_use]
    pub fn stripes(mut self, stripes: u64) -> Self {
        self.stripes = stripes;
        self
    }

    /// Checks everything and makes the source.
    ///
    /// # Errors
    ///
    /// A [`ConfigError`] that names the option.
    pub fn build(self) -> Result<GeneratorSource<T, G>, ConfigError> {
        let stripes = options::STRIPES.check(self.stripes)?;
        let rate = self.records_per_second;
        let settings = Settings {
            make: self.make,
            timestamp_of: self.timestamp_of,
            records_per_second: rate
                .map(|rate| options::RECORDS_PER_SECOND.check(rate))
                .transpose()?,
            limit: self.limit,
            output: PhantomData,
        };
        let stripes = u32::try_from(stripes).expect("the option's most fits");
        Ok(GeneratorSource {
            stripes,
            settings: Arc::new(settings),
        })
    }
}

impl<T, G> fmt::Debug for GeneratorSourceBuilder<T, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GeneratorSourceBuilder")
            .finish_non_exhaustive()
    }
}
