//! `MutateRows`: one attempt of one request, and where a writer's requests go.
//!
//! The request is built by the sink in one buffer and sent as the HTTP body; the answer is decoded by hand
//! ([`answers`](super::answers)). There is no retry here.

use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_cloud::{
    CallError, CallSpec, ChannelPool, Cookies, Endpoint, Origin, PoolOptions, RoutingHeader,
    TokenProvider, WarmUp, frame,
};
use aqueduct_connector::{Code, Context, Result, Status, StatusChain};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use http::{HeaderName, HeaderValue};
use prost::Message;

use super::admin::{AdminClient, PoolAdmin};
use super::answers::Answers;
use crate::destination::TableDestination;
use crate::error::redacted;

const DATA_HOST: &str = "bigtable.googleapis.com";
const MUTATE_ROWS: &str = "/google.bigtable.v2.Bigtable/MutateRows";
const PING_AND_WARM: &str = "/google.bigtable.v2.Bigtable/PingAndWarm";
/// The usual limit of an attempt; another one costs a copy of the headers.
pub(crate) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(60);
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(30);
/// Answers to writes are small; these bound what a misbehaving peer may push.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// The headers of requests to one table.
#[derive(Clone)]
pub(crate) struct Target(CallSpec);

impl Target {
    pub(crate) fn new(table: &TableDestination, app_profile: Option<&str>) -> Self {
        let routing = RoutingHeader::new()
            .param("table_name", &table.path())
            .param("app_profile_id", app_profile.unwrap_or_default());
        let spec = CallSpec::new(MUTATE_ROWS, ATTEMPT_TIMEOUT).routing(&routing);
        let (name, value) = features();
        Self(spec.header(name, value))
    }
}

/// One attempt.
pub(crate) struct MutateCall {
    pub(crate) target: Target,
    /// The request as it travels.
    pub(crate) body: Bytes,
    /// Entries in it.
    pub(crate) entries: usize,
    pub(crate) timeout: Duration,
    pub(crate) cookies: Cookies,
}

/// How an attempt ended.
#[derive(Debug)]
pub(crate) struct AttemptEnd {
    /// What the service said about entries before the end.
    pub(crate) answers: Answers,
    pub(crate) result: Result<(), CallFailure>,
}

/// Why the call itself failed.
#[derive(Debug)]
pub(crate) struct CallFailure {
    pub(crate) chain: StatusChain,
    /// The delay that the service asks for; it makes even a final code retryable (BT-WIRE-03).
    pub(crate) retry_delay: Option<Duration>,
    pub(crate) cookies: Cookies,
    /// Whether the service itself said so, or the way to it failed.
    pub(crate) answered: bool,
}

impl From<CallError> for CallFailure {
    fn from(error: CallError) -> Self {
        Self {
            retry_delay: error.retry_delay(),
            cookies: error.cookies().clone(),
            answered: error.origin() == Origin::Service,
            chain: redacted(error.statuses()),
        }
    }
}

/// A client of one instance.
pub(crate) trait DataClient {
    /// Makes one attempt. Dropping the future cancels it.
    fn mutate_rows(&self, call: MutateCall) -> LocalBoxFuture<'static, AttemptEnd>;

    /// Starts to close; `None` if that is done at once. No attempt is under way.
    fn close(&self) -> Option<LocalBoxFuture<'static, ()>> {
        None
    }
}

/// Opens the clients of one writer, all on one credential.
pub(crate) trait Dial {
    /// A client of the instance of `table`. Does no I/O.
    fn open(&self, table: &TableDestination) -> Result<Rc<dyn DataClient>>;

    /// A client of the table administration. Does no I/O.
    fn admin(&self) -> Result<Rc<dyn AdminClient>>;
}

/// The network.
pub(crate) struct Network {
    context: Context,
    /// The emulator, if one is configured.
    emulator: Option<Endpoint>,
    tokens: TokenProvider,
    channels: NonZeroUsize,
    app_profile: Option<Arc<str>>,
}

impl Network {
    pub(crate) fn new(
        context: Context,
        emulator: Option<Endpoint>,
        tokens: TokenProvider,
        channels: NonZeroUsize,
        app_profile: Option<Arc<str>>,
    ) -> Self {
        Self {
            context,
            emulator,
            tokens,
            channels,
            app_profile,
        }
    }

    fn pool(&self, host: &'static str, options: PoolOptions) -> Result<ChannelPool> {
        let endpoint = self
            .emulator
            .clone()
            .unwrap_or_else(|| Endpoint::production(host));
        ChannelPool::new(&self.context, endpoint, self.tokens.clone(), options)
    }
}

impl Dial for Network {
    fn open(&self, table: &TableDestination) -> Result<Rc<dyn DataClient>> {
        let app_profile = self.app_profile.as_deref().unwrap_or_default();
        let name = table.instance_path();
        let routing = RoutingHeader::new()
            .param("name", &name)
            .param("app_profile_id", app_profile);
        let ping = v2::PingAndWarmRequest {
            name,
            app_profile_id: app_profile.to_owned(),
        };
        let options = PoolOptions::default()
            .channels(self.channels)
            .windows(STREAM_WINDOW, CONNECTION_WINDOW)
            .warm_up(WarmUp {
                spec: CallSpec::new(PING_AND_WARM, WARM_UP_TIMEOUT).routing(&routing),
                body: frame(&ping),
            });
        Ok(Rc::new(PoolClient(self.pool(DATA_HOST, options)?)))
    }

    fn admin(&self) -> Result<Rc<dyn AdminClient>> {
        let pool = self.pool(super::admin::ADMIN_HOST, PoolOptions::default())?;
        Ok(Rc::new(PoolAdmin::new(pool)))
    }
}

struct PoolClient(ChannelPool);

impl DataClient for PoolClient {
    fn mutate_rows(&self, call: MutateCall) -> LocalBoxFuture<'static, AttemptEnd> {
        let Target(mut spec) = call.target;
        if call.timeout != ATTEMPT_TIMEOUT {
            spec = spec.timeout(call.timeout);
        }
        let started = self.0.call(&spec.cookies(&call.cookies), call.body);
        let mut answers = Answers::new(call.entries);
        Box::pin(async move {
            let mut stream = match started.await {
                Ok(stream) => stream,
                Err(error) => {
                    return AttemptEnd {
                        answers,
                        result: Err(error.into()),
                    };
                }
            };
            loop {
                match stream.message().await {
                    None => {
                        return AttemptEnd {
                            answers,
                            result: Ok(()),
                        };
                    }
                    Some(Err(error)) => {
                        return AttemptEnd {
                            answers,
                            result: Err(error.into()),
                        };
                    }
                    Some(Ok(message)) => {
                        if let Err(fault) = answers.read(&message) {
                            let chain =
                                StatusChain::new(Status::new(Code::Internal, fault.to_string()));
                            let failure = CallFailure {
                                chain,
                                retry_delay: None,
                                cookies: Cookies::default(),
                                answered: true,
                            };
                            return AttemptEnd {
                                answers,
                                result: Err(failure),
                            };
                        }
                    }
                }
            }
        })
    }
}

/// What this client implements, as the service wants it announced (BT-WIRE-02).
fn features() -> (HeaderName, HeaderValue) {
    let flags = v2::FeatureFlags {
        mutate_rows_rate_limit: true,
        mutate_rows_rate_limit2: true,
        routing_cookie: true,
        retry_info: true,
        ..v2::FeatureFlags::default()
    };
    let value = HeaderValue::try_from(URL_SAFE_NO_PAD.encode(flags.encode_to_vec()))
        .expect("base64 is visible ASCII");
    (HeaderName::from_static("bigtable-features"), value)
}
