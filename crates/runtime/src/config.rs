//! How a job is run: parallelism, checkpoints, restore, restart, limits.
//!
//! Keys are Flink's own where Flink has the setting, so that a job's text runs on both hosts. Setters take anything;
//! [`JobConfigBuilder::build`] checks everything and names the option.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_connector::options::{
    ConfigError, Declaration, Default as From_, Opt, OptionValue, TextOpt, reference_page,
};
use aqueduct_connector::{Clock, Result};

use crate::host::SystemClock;

/// A factor, such as a backoff multiplier.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Factor(pub f64);

impl OptionValue for Factor {
    const TYPE: &'static str = "number";

    fn parse(text: &str) -> Result<Self, String> {
        let number: f64 = text
            .trim()
            .parse()
            .map_err(|_| "expected a number such as 1.5".to_owned())?;
        if number.is_finite() {
            Ok(Self(number))
        } else {
            Err("expected a finite number".to_owned())
        }
    }

    fn show(self) -> String {
        self.0.to_string()
    }
}

const MS: Duration = Duration::from_millis(1);

/// Subtasks of every operator.
pub const PARALLELISM: Opt<u32> = Opt::new(
    "parallelism.default",
    "Subtasks of every operator; each runs on a thread of its own.",
)
.default(From_::Ours(1))
.at_least(1)
.at_most(1_024)
.builder("parallelism");

/// Key groups.
pub const MAX_PARALLELISM: Opt<u32> = Opt::new(
    "pipeline.max-parallelism",
    "Key groups of the job, the most subtasks it can ever be rescaled to. Recorded in every checkpoint and fixed from \
     then on; unset takes the checkpoint's, or 128 on a fresh start.",
)
.default(From_::Unset("the checkpoint's, or 128"))
.at_least(1)
.at_most(32_768)
.builder("max_parallelism");

/// Key groups of a fresh start without the option.
pub(crate) const DEFAULT_MAX_PARALLELISM: u32 = 128;

/// Where checkpoints are kept.
pub const CHECKPOINT_DIR: TextOpt = TextOpt::new(
    "execution.checkpointing.dir",
    "Directory of the job's checkpoints, a path or URL. One job and one process at a time. Unset: no checkpoints, a \
     restart begins from the start.",
)
.builder("checkpoint_dir");

/// Time between checkpoints.
pub const CHECKPOINT_INTERVAL: Opt<Duration> = Opt::new(
    "execution.checkpointing.interval",
    "Time from the start of a checkpoint to the start of the next.",
)
.default(From_::Ours(Duration::from_secs(30)))
.at_least(MS)
.builder("checkpoint_interval");

/// Most time for a checkpoint.
pub const CHECKPOINT_TIMEOUT: Opt<Duration> = Opt::new(
    "execution.checkpointing.timeout",
    "A checkpoint that is not complete after this long is aborted.",
)
.default(From_::Ours(Duration::from_secs(600)))
.at_least(Duration::from_millis(10))
.builder("checkpoint_timeout");

/// Least time between checkpoints.
pub const CHECKPOINT_MIN_PAUSE: Opt<Duration> = Opt::new(
    "execution.checkpointing.min-pause",
    "Least time from the end of a checkpoint to the start of the next.",
)
.default(From_::Ours(Duration::ZERO))
.builder("checkpoint_min_pause");

/// Failures in a row that are tolerated.
pub const CHECKPOINT_TOLERABLE: Opt<u32> = Opt::new(
    "execution.checkpointing.tolerable-failed-checkpoints",
    "Checkpoints that may fail in a row before the job fails.",
)
.default(From_::Ours(0))
.builder("tolerable_failed_checkpoints");

/// Complete checkpoints kept.
pub const CHECKPOINT_RETAINED: Opt<u32> = Opt::new(
    "execution.checkpointing.num-retained",
    "Complete checkpoints that are kept; older ones are deleted.",
)
.default(From_::Ours(3))
.at_least(1)
.builder("retained_checkpoints")
.deprecated(&["state.checkpoints.num-retained"]);

/// What to restore.
pub const RESTORE_PATH: TextOpt = TextOpt::new(
    "execution.state-recovery.path",
    "Checkpoint or savepoint to start from, a path or URL. Unset: the newest checkpoint of the checkpoint directory, if \
     there is one. A job started again with the same value continues from the newest checkpoint that the first start \
     has led to.",
)
.builder("restore_from");

/// Whether state may be left behind.
pub const ALLOW_DROPPED_STATE: Opt<bool> = Opt::new(
    "execution.state-recovery.ignore-unclaimed-state",
    "Starts although the restored checkpoint holds state of operators that the job no longer has; that state is lost.",
)
.default(From_::Ours(false))
.builder("allow_dropped_state");

/// Kind of restart strategy.
pub const RESTART_STRATEGY: TextOpt = TextOpt::new(
    "restart-strategy.type",
    "What happens after a failure that a restart may cure: none, fixed-delay or exponential-delay.",
)
.default(From_::Ours("exponential-delay"))
.builder("restart");

/// Restarts of the fixed delay.
pub const FIXED_ATTEMPTS: Opt<u32> = Opt::new(
    "restart-strategy.fixed-delay.attempts",
    "Restarts before the job fails for good.",
)
.default(From_::Ours(10));

/// Wait of the fixed delay.
pub const FIXED_DELAY: Opt<Duration> = Opt::new(
    "restart-strategy.fixed-delay.delay",
    "Wait before each restart.",
)
.default(From_::Ours(Duration::from_secs(1)));

/// First wait of the exponential delay.
pub const EXPONENTIAL_INITIAL: Opt<Duration> = Opt::new(
    "restart-strategy.exponential-delay.initial-backoff",
    "Wait before the first restart.",
)
.default(From_::Ours(Duration::from_secs(1)))
.at_least(MS);

/// Longest wait of the exponential delay.
pub const EXPONENTIAL_MAX: Opt<Duration> = Opt::new(
    "restart-strategy.exponential-delay.max-backoff",
    "Longest wait before a restart.",
)
.default(From_::Ours(Duration::from_secs(60)))
.at_least(MS);

/// Growth of the exponential delay.
pub const EXPONENTIAL_MULTIPLIER: Opt<Factor> = Opt::new(
    "restart-strategy.exponential-delay.backoff-multiplier",
    "Factor from one wait to the next.",
)
.default(From_::Ours(Factor(1.5)))
.at_least(Factor(1.0));

/// When the exponential delay starts anew.
pub const EXPONENTIAL_RESET: Opt<Duration> = Opt::new(
    "restart-strategy.exponential-delay.reset-backoff-threshold",
    "Running this long without a failure makes the next wait the first again.",
)
.default(From_::Ours(Duration::from_secs(3_600)));

/// Jitter of the exponential delay.
pub const EXPONENTIAL_JITTER: Opt<Factor> = Opt::new(
    "restart-strategy.exponential-delay.jitter-factor",
    "Each wait is changed by up to this share of itself, up or down.",
)
.default(From_::Ours(Factor(0.1)))
.at_least(Factor(0.0))
.at_most(Factor(1.0));

/// Batches, watermarks and barriers in a channel.
pub const CHANNEL_ELEMENTS: Opt<u32> = Opt::new(
    "channel.max-elements",
    "Batches, watermarks and barriers held between two subtasks before the sending one waits.",
)
.default(From_::Ours(32))
.at_least(1)
.at_most(65_536)
.builder("channel_elements");

/// Records in a channel.
pub const CHANNEL_RECORDS: Opt<u32> = Opt::new(
    "channel.max-records",
    "Records held between two subtasks before the sending one waits. Records are typed values whose bytes the executor \
     does not know: times their size this bounds the memory of a channel. A larger batch passes alone.",
)
.default(From_::Ours(8_192))
.at_least(1)
.builder("channel_records");

/// Time between watermarks.
pub const WATERMARK_INTERVAL: Opt<Duration> = Opt::new(
    "pipeline.auto-watermark-interval",
    "Least time between two watermarks of a source's subtask; zero emits one after every batch that moves it.",
)
.default(From_::Ours(Duration::from_millis(200)))
.builder("watermark_interval");

/// Time to close.
pub const CLOSE_TIMEOUT: Opt<Duration> = Opt::new(
    "task.cancellation.timeout",
    "Readers, writers, enumerators and committers that have not closed after this long are given up with a warning; a \
     thread that has not ended fails the job.",
)
.default(From_::Ours(Duration::from_secs(30)))
.at_least(MS)
.builder("close_timeout");

/// Where metrics are served.
pub const METRICS_ADDRESS: TextOpt = TextOpt::new(
    "metrics.address",
    "Address and port, such as 127.0.0.1:9249, of the status page (/) and of metrics in the Prometheus text format \
     (/metrics). Port 0 takes a free one.",
)
.builder("metrics_address");

/// The seed of all randomness.
pub const SEED: Opt<u64> = Opt::new(
    "job.seed",
    "Seed of all randomness; with a clock of your own a run replays.",
)
.default(From_::Unset("a new one each run"))
.builder("seed");

/// Every option of a job, for reference pages.
#[must_use]
pub fn declarations() -> Vec<Declaration> {
    vec![
        PARALLELISM.declaration(),
        MAX_PARALLELISM.declaration(),
        CHECKPOINT_DIR.declaration(),
        CHECKPOINT_INTERVAL.declaration(),
        CHECKPOINT_TIMEOUT.declaration(),
        CHECKPOINT_MIN_PAUSE.declaration(),
        CHECKPOINT_TOLERABLE.declaration(),
        CHECKPOINT_RETAINED.declaration(),
        RESTORE_PATH.declaration(),
        ALLOW_DROPPED_STATE.declaration(),
        RESTART_STRATEGY.declaration(),
        FIXED_ATTEMPTS.declaration(),
        FIXED_DELAY.declaration(),
        EXPONENTIAL_INITIAL.declaration(),
        EXPONENTIAL_MAX.declaration(),
        EXPONENTIAL_MULTIPLIER.declaration(),
        EXPONENTIAL_RESET.declaration(),
        EXPONENTIAL_JITTER.declaration(),
        CHANNEL_ELEMENTS.declaration(),
        CHANNEL_RECORDS.declaration(),
        WATERMARK_INTERVAL.declaration(),
        CLOSE_TIMEOUT.declaration(),
        METRICS_ADDRESS.declaration(),
        SEED.declaration(),
    ]
}

/// The generated reference page of a job's options.
#[must_use]
pub fn reference() -> String {
    reference_page(
        "Executor: options of a job",
        "Generated from the declarations; edit those. *Builder* names the setter on `JobConfigBuilder`; an option without \
         one is set by its key, with `JobConfigBuilder::set`, or as a part of `RestartStrategy`.",
        &declarations(),
    )
}

/// What happens after a failure that a restart may cure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RestartStrategy {
    /// The job fails.
    None,
    /// So many restarts, each after the same wait.
    FixedDelay {
        /// Restarts before the job fails for good.
        attempts: u32,
        /// Wait before each.
        delay: Duration,
    },
    /// Restarts without end, after growing waits.
    ExponentialDelay {
        /// The first wait.
        initial: Duration,
        /// The longest wait.
        max: Duration,
        /// Factor from one wait to the next, at least 1.
        multiplier: f64,
        /// Running this long without a failure makes the next wait the first again.
        reset_after: Duration,
        /// Share of the wait that chance adds or takes, 0 to 1.
        jitter: f64,
    },
}

impl Default for RestartStrategy {
    /// Exponential: 1 s to 60 s by 1.5, reset after an hour, jitter 0.1.
    fn default() -> Self {
        Self::ExponentialDelay {
            initial: EXPONENTIAL_INITIAL.ours(),
            max: EXPONENTIAL_MAX.ours(),
            multiplier: EXPONENTIAL_MULTIPLIER.ours().0,
            reset_after: EXPONENTIAL_RESET.ours(),
            jitter: EXPONENTIAL_JITTER.ours().0,
        }
    }
}

/// A checked configuration; made by [`JobConfig::builder`].
#[derive(Clone)]
pub struct JobConfig {
    pub(crate) parallelism: u32,
    pub(crate) max_parallelism: Option<u32>,
    pub(crate) checkpoint_dir: Option<String>,
    pub(crate) checkpoint_interval: Duration,
    pub(crate) checkpoint_timeout: Duration,
    pub(crate) checkpoint_min_pause: Duration,
    pub(crate) tolerable_failed_checkpoints: u32,
    pub(crate) retained_checkpoints: u32,
    pub(crate) restore_from: Option<String>,
    pub(crate) allow_dropped_state: bool,
    pub(crate) restart: RestartStrategy,
    pub(crate) channel_elements: u32,
    pub(crate) channel_records: u32,
    pub(crate) watermark_interval: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) metrics_address: Option<std::net::SocketAddr>,
    pub(crate) seed: Option<u64>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for JobConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobConfig")
            .field("parallelism", &self.parallelism)
            .field("checkpoint_dir", &self.checkpoint_dir)
            .field("checkpoint_interval", &self.checkpoint_interval)
            .field("restore_from", &self.restore_from)
            .field("restart", &self.restart)
            .finish_non_exhaustive()
    }
}

impl JobConfig {
    /// Subtasks of every operator.
    #[must_use]
    pub fn parallelism(&self) -> u32 {
        self.parallelism
    }

    /// Where checkpoints are kept, if they are.
    #[must_use]
    pub fn checkpoint_dir(&self) -> Option<&str> {
        self.checkpoint_dir.as_deref()
    }

    /// All defaults: one subtask, no checkpoints.
    pub fn builder() -> JobConfigBuilder {
        JobConfigBuilder {
            config: Self {
                parallelism: PARALLELISM.ours(),
                max_parallelism: None,
                checkpoint_dir: None,
                checkpoint_interval: CHECKPOINT_INTERVAL.ours(),
                checkpoint_timeout: CHECKPOINT_TIMEOUT.ours(),
                checkpoint_min_pause: CHECKPOINT_MIN_PAUSE.ours(),
                tolerable_failed_checkpoints: CHECKPOINT_TOLERABLE.ours(),
                retained_checkpoints: CHECKPOINT_RETAINED.ours(),
                restore_from: None,
                allow_dropped_state: ALLOW_DROPPED_STATE.ours(),
                restart: RestartStrategy::default(),
                channel_elements: CHANNEL_ELEMENTS.ours(),
                channel_records: CHANNEL_RECORDS.ours(),
                watermark_interval: WATERMARK_INTERVAL.ours(),
                close_timeout: CLOSE_TIMEOUT.ours(),
                metrics_address: None,
                seed: None,
                clock: Arc::new(SystemClock::new()),
            },
            metrics_address: None,
            exponential: Exponential::default(),
            fixed: (FIXED_ATTEMPTS.ours(), FIXED_DELAY.ours()),
            strategy: None,
            refined: false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Exponential {
    initial: Duration,
    max: Duration,
    multiplier: Factor,
    reset_after: Duration,
    jitter: Factor,
}

impl Default for Exponential {
    fn default() -> Self {
        Self {
            initial: EXPONENTIAL_INITIAL.ours(),
            max: EXPONENTIAL_MAX.ours(),
            multiplier: EXPONENTIAL_MULTIPLIER.ours(),
            reset_after: EXPONENTIAL_RESET.ours(),
            jitter: EXPONENTIAL_JITTER.ours(),
        }
    }
}

/// Builds a [`JobConfig`].
#[derive(Clone, Debug)]
#[must_use]
pub struct JobConfigBuilder {
    config: JobConfig,
    metrics_address: Option<String>,
    exponential: Exponential,
    fixed: (u32, Duration),
    /// The strategy chosen by text.
    strategy: Option<String>,
    /// Whether details of the exponential delay were given by text.
    refined: bool,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty => $to:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name(mut self, value: $type) -> Self {
            let set: fn(&mut JobConfig, $type) = $to;
            set(&mut self.config, value);
            self
        }
    )*};
}

impl JobConfigBuilder {
    setters! {
        /// Subtasks of every operator. Default 1; option `parallelism.default`, 1 to 1,024.
        parallelism: u32 => |c, v| c.parallelism = v;
        /// Key groups. Default: the checkpoint's, or 128; option `pipeline.max-parallelism`, 1 to 32,768.
        max_parallelism: u32 => |c, v| c.max_parallelism = Some(v);
        /// Time between checkpoints. Default 30 s; option `execution.checkpointing.interval`, at least 1 ms.
        checkpoint_interval: Duration => |c, v| c.checkpoint_interval = v;
        /// Most time for a checkpoint. Default 10 min; option `execution.checkpointing.timeout`, at least 10 ms.
        checkpoint_timeout: Duration => |c, v| c.checkpoint_timeout = v;
        /// Least pause between checkpoints. Default none; option `execution.checkpointing.min-pause`.
        checkpoint_min_pause: Duration => |c, v| c.checkpoint_min_pause = v;
        /// Failed checkpoints in a row that are tolerated. Default 0; option
        /// `execution.checkpointing.tolerable-failed-checkpoints`.
        tolerable_failed_checkpoints: u32 => |c, v| c.tolerable_failed_checkpoints = v;
        /// Complete checkpoints kept. Default 3; option `execution.checkpointing.num-retained`, at least 1.
        retained_checkpoints: u32 => |c, v| c.retained_checkpoints = v;
        /// Starts although restored state has no operator. Default false; option
        /// `execution.state-recovery.ignore-unclaimed-state`.
        allow_dropped_state: bool => |c, v| c.allow_dropped_state = v;
        /// Elements in a channel. Default 32; option `channel.max-elements`.
        channel_elements: u32 => |c, v| c.channel_elements = v;
        /// Records in a channel. Default 8,192; option `channel.max-records`.
        channel_records: u32 => |c, v| c.channel_records = v;
        /// Least time between watermarks. Default 200 ms; option `pipeline.auto-watermark-interval`.
        watermark_interval: Duration => |c, v| c.watermark_interval = v;
        /// Time to close. Default 30 s; option `task.cancellation.timeout`.
        close_timeout: Duration => |c, v| c.close_timeout = v;
        /// Seed of all randomness. Default: a new one each run; option `job.seed`.
        seed: u64 => |c, v| c.seed = Some(v);
        /// The clock. Default: the machine's.
        clock: Arc<dyn Clock> => |c, v| c.clock = v;
    }

    /// Directory of the checkpoints, a path or URL. Default: no checkpoints; option `execution.checkpointing.dir`.
    pub fn checkpoint_dir(mut self, location: impl Into<String>) -> Self {
        self.config.checkpoint_dir = Some(location.into());
        self
    }

    /// Checkpoint or savepoint to start from, whatever the checkpoint directory holds; except that a job started again
    /// with the same value continues from the newest checkpoint that the first start has led to. Option
    /// `execution.state-recovery.path`.
    pub fn restore_from(mut self, location: impl Into<String>) -> Self {
        self.config.restore_from = Some(location.into());
        self
    }

    /// What happens after a failure. Default exponential; options `restart-strategy.*`.
    pub fn restart(mut self, strategy: RestartStrategy) -> Self {
        (self.strategy, self.refined) = (None, false);
        self.config.restart = strategy;
        self
    }

    /// Serves metrics and the status page at this address and port. Default off; option `metrics.address`.
    pub fn metrics_address(mut self, address: impl Into<String>) -> Self {
        self.metrics_address = Some(address.into());
        self
    }

    /// Sets an option by its key, as configuration files and SQL `SET` statements do. `Ok(false)` if the key is none of
    /// this crate's.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the text cannot be read or is out of range.
    pub fn set(&mut self, key: &str, text: &str) -> Result<bool, ConfigError> {
        macro_rules! is {
            ($option:expr) => {
                key == $option.key() || $option.deprecated_keys().contains(&key)
            };
        }
        let config = &mut self.config;
        if is!(PARALLELISM) {
            config.parallelism = PARALLELISM.parse(text)?;
        } else if is!(MAX_PARALLELISM) {
            config.max_parallelism = Some(MAX_PARALLELISM.parse(text)?);
        } else if key == CHECKPOINT_DIR.key() || key == "state.checkpoints.dir" {
            config.checkpoint_dir = Some(CHECKPOINT_DIR.check(text)?.to_owned());
        } else if is!(CHECKPOINT_INTERVAL) {
            config.checkpoint_interval = CHECKPOINT_INTERVAL.parse(text)?;
        } else if is!(CHECKPOINT_TIMEOUT) {
            config.checkpoint_timeout = CHECKPOINT_TIMEOUT.parse(text)?;
        } else if is!(CHECKPOINT_MIN_PAUSE) {
            config.checkpoint_min_pause = CHECKPOINT_MIN_PAUSE.parse(text)?;
        } else if is!(CHECKPOINT_TOLERABLE) {
            config.tolerable_failed_checkpoints = CHECKPOINT_TOLERABLE.parse(text)?;
        } else if is!(CHECKPOINT_RETAINED) {
            config.retained_checkpoints = CHECKPOINT_RETAINED.parse(text)?;
        } else if key == RESTORE_PATH.key() || key == "execution.savepoint.path" {
            config.restore_from = Some(RESTORE_PATH.check(text)?.to_owned());
        } else if is!(ALLOW_DROPPED_STATE) || key == "execution.savepoint.ignore-unclaimed-state" {
            config.allow_dropped_state = ALLOW_DROPPED_STATE.parse(text)?;
        } else if key == RESTART_STRATEGY.key() || key == "restart-strategy" {
            self.strategy = Some(RESTART_STRATEGY.check(text)?.to_owned());
        } else if is!(FIXED_ATTEMPTS) {
            self.fixed.0 = FIXED_ATTEMPTS.parse(text)?;
        } else if is!(FIXED_DELAY) {
            self.fixed.1 = FIXED_DELAY.parse(text)?;
        } else if is!(EXPONENTIAL_INITIAL) {
            self.exponential.initial = EXPONENTIAL_INITIAL.parse(text)?;
        } else if is!(EXPONENTIAL_MAX) {
            self.exponential.max = EXPONENTIAL_MAX.parse(text)?;
        } else if is!(EXPONENTIAL_MULTIPLIER) {
            self.exponential.multiplier = EXPONENTIAL_MULTIPLIER.parse(text)?;
        } else if is!(EXPONENTIAL_RESET) {
            self.exponential.reset_after = EXPONENTIAL_RESET.parse(text)?;
        } else if is!(EXPONENTIAL_JITTER) {
            self.exponential.jitter = EXPONENTIAL_JITTER.parse(text)?;
        } else if is!(CHANNEL_ELEMENTS) {
            config.channel_elements = CHANNEL_ELEMENTS.parse(text)?;
        } else if is!(CHANNEL_RECORDS) {
            config.channel_records = CHANNEL_RECORDS.parse(text)?;
        } else if is!(WATERMARK_INTERVAL) {
            config.watermark_interval = WATERMARK_INTERVAL.parse(text)?;
        } else if is!(CLOSE_TIMEOUT) {
            config.close_timeout = CLOSE_TIMEOUT.parse(text)?;
        } else if key == METRICS_ADDRESS.key() {
            self.metrics_address = Some(METRICS_ADDRESS.check(text)?.to_owned());
        } else if is!(SEED) {
            config.seed = Some(SEED.parse(text)?);
        } else {
            return Ok(false);
        }
        self.refined |= key.starts_with("restart-strategy.exponential-delay.");
        Ok(true)
    }

    /// Checks everything.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], naming the option.
    pub fn build(mut self) -> Result<JobConfig, ConfigError> {
        let config = &mut self.config;
        PARALLELISM.check(config.parallelism)?;
        if let Some(groups) = config.max_parallelism {
            MAX_PARALLELISM.check(groups)?;
        }
        let groups = config.max_parallelism.unwrap_or(u32::MAX);
        if config.parallelism > groups {
            return Err(ConfigError::Conflict {
                first: PARALLELISM.key(),
                second: MAX_PARALLELISM.key(),
                reason: format!(
                    "{} subtasks cannot share {groups} key groups; lower the first or raise the second",
                    config.parallelism
                ),
            });
        }
        CHECKPOINT_INTERVAL.check(config.checkpoint_interval)?;
        CHECKPOINT_TIMEOUT.check(config.checkpoint_timeout)?;
        CHECKPOINT_RETAINED.check(config.retained_checkpoints)?;
        CHANNEL_ELEMENTS.check(config.channel_elements)?;
        CHANNEL_RECORDS.check(config.channel_records)?;
        CLOSE_TIMEOUT.check(config.close_timeout)?;
        if let Some(location) = &config.checkpoint_dir {
            CHECKPOINT_DIR.check(location)?;
        }
        if let Some(location) = &config.restore_from {
            RESTORE_PATH.check(location)?;
        }
        if let Some(address) = &self.metrics_address {
            let address = address.parse().map_err(|_| {
                ConfigError::invalid(
                    METRICS_ADDRESS.key(),
                    format!("'{address}' is no address and port, such as 127.0.0.1:9249"),
                )
            })?;
            config.metrics_address = Some(address);
        }
        // Details given by text without a type refine the default type.
        let kind = match &self.strategy {
            None if self.refined => Some("exponential-delay"),
            kind => kind.as_deref(),
        };
        if let Some(kind) = kind {
            let Exponential {
                initial,
                max,
                multiplier,
                reset_after,
                jitter,
            } = self.exponential;
            config.restart = match kind {
                "none" | "off" | "disable" => RestartStrategy::None,
                "fixed-delay" | "fixeddelay" => RestartStrategy::FixedDelay {
                    attempts: self.fixed.0,
                    delay: self.fixed.1,
                },
                "exponential-delay" | "exponentialdelay" => RestartStrategy::ExponentialDelay {
                    initial,
                    max,
                    multiplier: multiplier.0,
                    reset_after,
                    jitter: jitter.0,
                },
                other => {
                    return Err(ConfigError::invalid(
                        RESTART_STRATEGY.key(),
                        format!("'{other}' is none of none, fixed-delay, exponential-delay"),
                    ));
                }
            };
        }
        if let RestartStrategy::ExponentialDelay {
            initial,
            max,
            multiplier,
            jitter,
            ..
        } = config.restart
        {
            EXPONENTIAL_INITIAL.check(initial)?;
            EXPONENTIAL_MULTIPLIER.check(Factor(multiplier))?;
            EXPONENTIAL_JITTER.check(Factor(jitter))?;
            if max < initial {
                return Err(ConfigError::Conflict {
                    first: EXPONENTIAL_MAX.key(),
                    second: EXPONENTIAL_INITIAL.key(),
                    reason: "the longest wait is shorter than the first".to_owned(),
                });
            }
        }
        Ok(self.config)
    }
}
