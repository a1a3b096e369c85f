//! `aqueduct pubsub pull` and `peek`: the source's own reader, driven by hand.
//!
//! `pull` completes a checkpoint after each batch that was written, so that the reader acknowledges it; `peek` completes
//! none, and the close gives everything back. What was acknowledged and given back is the reader's own account.

use std::io::{self, IsTerminal as _, Write as _};
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::time::Duration;

use aqueduct::connector::metrics::MetricRegistry;
use aqueduct::connector::options::OptionValue as _;
use aqueduct::connector::source::Collector;
use aqueduct::connector::{Code, Error, Result as ConnectorResult};
use aqueduct::pubsub::source::{ExactlyOnceSubscriptions, metrics};
use aqueduct::pubsub::{PubSubSource, ReceivedMessage, SubscriberOptions, SubscriptionDestination};

use super::format::Format;
use super::host::Reading;
use super::{messages, runtime, text};
use crate::address::{PubSubArgs, check_reachable};
use crate::signals::Signals;
use crate::{Done, ENDED_AT_ONCE, STOPPED, flags};

/// Messages held at a time at most: those that are printed and not yet acknowledged, or shown and not yet given back.
const MOST_HELD: u64 = 1_000;
/// How long the end may take: acknowledgements and returns under way.
const CLOSE: Duration = Duration::from_secs(30);

/// What both commands take.
#[derive(clap::Args)]
struct Common {
    #[command(flatten)]
    place: PubSubArgs,
    /// The subscription.
    #[arg(long, value_name = "NAME")]
    subscription: String,
    /// Ends when no message came for so long, such as '500 ms' or '10 s'; 0 waits for ever.
    #[arg(long, default_value = "5 s", value_parser = Duration::parse, value_name = "TIME")]
    idle: Duration,
    /// How messages are shown. Default: text on a terminal, json elsewhere.
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<Format>,
}

/// Options of `aqueduct pubsub pull`.
#[derive(clap::Args)]
#[command(
    after_help = "A message is acknowledged after it was printed. Exit code: 0 complete, 1 failed, 2 wrong arguments, 3 \
    stopped (Ctrl-C or SIGTERM once; what was not printed is given back), 130 ended at once (twice; what was not \
    acknowledged comes again when its lease ends)."
)]
pub(super) struct PullArgs {
    #[command(flatten)]
    common: Common,
    /// Ends after so many messages.
    #[arg(long, default_value = "10", value_name = "N", conflicts_with = "all")]
    limit: NonZeroU64,
    /// Goes on until no message comes any more, whatever their number.
    #[arg(long)]
    all: bool,
}

/// Options of `aqueduct pubsub peek`.
#[derive(clap::Args)]
#[command(
    after_help = "Exit code: 0 complete, 1 failed, 2 wrong arguments, 3 stopped (Ctrl-C or SIGTERM once; messages are given \
    back), 130 ended at once (twice; messages come again when their leases end)."
)]
pub(super) struct PeekArgs {
    #[command(flatten)]
    common: Common,
    /// Shows so many messages, 1 to 1000.
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_HELD))]
    limit: u64,
}

/// How long a write under way may take after a signal before it counts as not done.
const WRITE_GRACE: Duration = Duration::from_secs(1);

/// What becomes of messages that were printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Acknowledge,
    GiveBack,
}

/// Prints and acknowledges.
pub(super) fn pull(args: PullArgs) -> Done {
    let limit = (!args.all).then_some(args.limit.get());
    run(&args.common, limit, Then::Acknowledge)
}

/// Prints and gives back.
pub(super) fn peek(args: PeekArgs) -> Done {
    run(&args.common, Some(args.limit), Then::GiveBack)
}

fn run(args: &Common, limit: Option<u64>, then: Then) -> Done {
    let subscription = SubscriptionDestination::new(&args.place.project, &args.subscription)
        .map_err(|error| flags::named(error.to_string(), flags::PUBSUB))?;
    let source = source(args, subscription.clone(), limit).map_err(text)?;
    if let Some(address) = &args.place.pubsub {
        check_reachable("--pubsub", address)?;
    }
    let runtime = runtime()?;
    let registry = MetricRegistry::new();
    let idle = (!args.idle.is_zero()).then_some(args.idle);
    let taken = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let mut reading = Reading::new(&source, &registry).map_err(text)?;
        let mut taken = take(&mut reading, &mut signals, limit, idle, then).await;
        tokio::select! {
            () = reading.close() => {}
            () = signals.next() => taken.end = End::AtOnce,
        }
        Ok::<_, String>(taken)
    })?;
    // A write to a pipe that nobody reads may still wait.
    runtime.shutdown_background();
    report(args, &subscription, &taken, &registry, then)
}

fn source(
    args: &Common,
    subscription: SubscriptionDestination,
    limit: Option<u64>,
) -> ConnectorResult<PubSubSource<Vec<u8>>> {
    let format = args.format.unwrap_or(if io::stdout().is_terminal() {
        Format::Text
    } else {
        Format::Json
    });
    // No more than asked for is taken away from other consumers, even for a moment.
    let held = limit.unwrap_or(MOST_HELD).min(MOST_HELD);
    let held = NonZeroU64::new(held).unwrap_or(NonZeroU64::MIN);
    let options = SubscriberOptions::new()
        .flow_control_max_outstanding_element_count(held)
        .max_records_per_fetch(held)
        .shutdown_timeout(CLOSE)
        // Peeking takes no checkpoint, and a wait for messages has its own end.
        .first_checkpoint_timeout(Duration::ZERO);
    let mut source = PubSubSource::builder()
        .subscription(subscription)
        .deserializer(
            move |message: &ReceivedMessage,
                  _: &SubscriptionDestination,
                  out: &mut Collector<'_, Vec<u8>>| {
                out.emit(format.write(message));
                Ok(())
            },
        )
        .exactly_once_subscriptions(ExactlyOnceSubscriptions::Accept)
        .subscriber_options(options);
    if let Some(address) = &args.place.pubsub {
        source = source.emulator_endpoint(address);
    }
    if let Some(file) = &args.place.key_file {
        source = source.service_account_key_file(file);
    }
    source.build()
}

/// Why no further message was taken.
enum End {
    /// As many as asked for, or none came any more.
    Complete,
    /// Asked to.
    Stopped,
    /// Asked to twice.
    AtOnce,
    Output(io::Error),
    Failed(Error),
}

struct Taken {
    printed: u64,
    end: End,
}

/// Takes and prints messages until there is a reason to end.
async fn take(
    reading: &mut Reading<Vec<u8>>,
    signals: &mut Signals,
    limit: Option<u64>,
    idle: Option<Duration>,
    then: Then,
) -> Taken {
    let mut printed = 0;
    let end = loop {
        let left = limit.map_or(u64::MAX, |limit| limit - printed);
        if left == 0 {
            break End::Complete;
        }
        let records = tokio::select! {
            biased;
            () = signals.next() => break End::Stopped,
            next = reading.next() => match next {
                Ok(records) => records,
                Err(error) => break End::Failed(error),
            },
            () = wait(idle) => break End::Complete,
        };
        let count = records
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let lines: Vec<Vec<u8>> = records
            .into_iter()
            .take(count)
            .map(|record| record.value)
            .collect();
        // On a thread of its own, as nobody may read the pipe for long.
        let mut writing = tokio::task::spawn_blocking(move || {
            let mut out = io::stdout().lock();
            out.write_all(&lines.concat())?;
            out.flush()
        });
        let mut stopped = false;
        let written = tokio::select! {
            biased;
            written = &mut writing => Ok(written),
            () = signals.next() => {
                stopped = true;
                tokio::time::timeout(WRITE_GRACE, &mut writing).await
            }
        };
        let Ok(written) = written else {
            // Perhaps printed, perhaps not: given back.
            break End::Stopped;
        };
        if let Err(error) = written.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            break End::Output(error);
        }
        reading.emitted(count);
        printed += count as u64;
        if then == Then::Acknowledge
            && let Err(error) = reading.checkpoint()
        {
            break End::Failed(error);
        }
        if stopped {
            break End::Stopped;
        }
    };
    Taken { printed, end }
}

async fn wait(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}

/// Says what was done, and ends accordingly.
fn report(
    args: &Common,
    subscription: &SubscriptionDestination,
    taken: &Taken,
    registry: &MetricRegistry,
    then: Then,
) -> Done {
    let printed = taken.printed;
    let count = |name| u64::try_from(registry.total(name)).unwrap_or_default();
    let (acked, returned) = (
        count(metrics::MESSAGES_ACKED),
        count(metrics::MESSAGES_NACKED),
    );
    let account = match then {
        Then::Acknowledge if returned == 0 => {
            format!(
                "{} printed, {} acknowledged",
                messages(printed),
                acked.min(printed)
            )
        }
        Then::Acknowledge => format!(
            "{} printed, {} acknowledged, {returned} more given back",
            messages(printed),
            acked.min(printed)
        ),
        Then::GiveBack => format!(
            "{} shown, {returned} given back; each showing counts as an attempt to deliver, and a dead-letter policy may \
             forward a message that was shown too often",
            messages(printed)
        ),
    };
    let code = match &taken.end {
        // Whoever read has seen enough; what became of the messages is told all the same.
        End::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        End::Output(error) => {
            return Err(format!(
                "cannot write to standard output: {error}; {account}"
            ));
        }
        End::Failed(error) => return Err(explain(error, args, subscription, printed, &account)),
        End::AtOnce => {
            eprintln!(
                "ended at once: {} printed; what was not acknowledged by then comes again when its lease ends",
                messages(printed)
            );
            return Ok(ExitCode::from(ENDED_AT_ONCE));
        }
        End::Stopped => ExitCode::from(STOPPED),
        End::Complete => ExitCode::SUCCESS,
    };
    eprintln!("{account}");
    if then == Then::Acknowledge && acked < printed {
        return Err(format!(
            "{} could not be acknowledged within {CLOSE:?} and will come again",
            messages(printed - acked)
        ));
    }
    Ok(code)
}

/// Why reading failed, with the options that may be wrong.
fn explain(
    error: &Error,
    args: &Common,
    subscription: &SubscriptionDestination,
    printed: u64,
    account: &str,
) -> String {
    let report = flags::named(error.report(), flags::PUBSUB);
    let missing = error
        .statuses()
        .is_some_and(|chain| chain.code() == Code::NotFound)
        || report.contains("does not exist");
    if printed > 0 {
        format!("{report}; {account}")
    } else if missing {
        format!(
            "{} has no {subscription}: correct --project or --subscription",
            args.place.place()
        )
    } else {
        report
    }
}
