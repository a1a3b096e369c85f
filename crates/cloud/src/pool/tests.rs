//! The pool against peers that misbehave: one test or table row for each way in which a call can fail.
//!
//! Time is a [`ManualClock`] that stands still unless a test moves it, so no deadline passes by accident; real time only
//! bounds each test.

mod auth;
mod calls;
mod connections;
mod duplex;
mod failures;
mod peer;

use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use aqueduct_connector::clock::ManualClock;
use aqueduct_connector::context::{TaskControl, TaskFuture};
use aqueduct_connector::metrics::MetricRegistry;
use aqueduct_connector::{Code, Context, Spawn, Subtask, Task, Timestamp};
use tokio::net::TcpListener;

use super::connect::Target;
use super::*;
use crate::error::{Delivery, Origin};

/// Longer than any test takes, far below what a hang takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A host that lends a Tokio runtime and a clock that stands still.
struct Host {
    clock: ManualClock,
    context: Context,
}

impl Host {
    fn new() -> Self {
        let clock = ManualClock::new(Timestamp::from_millis(0));
        let context = Context {
            job: "job".into(),
            operator: "operator".into(),
            subtask: Subtask {
                index: 0,
                parallelism: 1,
            },
            parallelism: 1,
            attempt: 0,
            metrics: MetricRegistry::new().group(&[]),
            clock: Arc::new(clock.clone()),
            spawn: Arc::new(OnTokio),
            seed: 7,
        };
        Self { clock, context }
    }

    fn pool(&self, listener: &TcpListener) -> ChannelPool {
        self.pool_with(listener, PoolOptions::default())
    }

    fn pool_with(&self, listener: &TcpListener, options: PoolOptions) -> ChannelPool {
        self.pool_for(listener, TokenProvider::none(), options)
    }

    /// Bypasses the checks of `ChannelPool::new`: tests use short intervals, and tokens in plaintext.
    fn pool_for(
        &self,
        listener: &TcpListener,
        tokens: TokenProvider,
        options: PoolOptions,
    ) -> ChannelPool {
        let address = listener.local_addr().expect("bound").to_string();
        let endpoint = Endpoint::emulator("test", &address).expect("an address");
        let clock = self.context.clock.clone();
        ChannelPool::build(
            &self.context,
            Target {
                endpoint,
                tokens,
                options,
                clock,
                tls: None,
            },
        )
    }
}

struct OnTokio;

impl Spawn for OnTokio {
    fn spawn(&self, _: &'static str, future: TaskFuture) -> Task {
        Task::new(Box::new(Handle(tokio::spawn(future))))
    }
}

struct Handle(tokio::task::JoinHandle<()>);

impl TaskControl for Handle {
    fn abort(&self) {
        self.0.abort();
    }

    fn poll_ended(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), String>> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map_err(|error| error.to_string())
    }
}

async fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a loopback port")
}

/// Fails the test instead of hanging it.
async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}

fn spec() -> CallSpec {
    CallSpec::new("/test.Service/Method", Duration::from_secs(60))
}

fn channels(n: usize) -> PoolOptions {
    PoolOptions::default().channels(NonZeroUsize::new(n).expect("at least one"))
}

/// A gRPC frame around `message`.
fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).expect("short"));
    bytes.put_slice(message);
    bytes.freeze()
}

/// Reads an answer to its end.
async fn read(call: Call) -> Result<Vec<Bytes>, CallError> {
    within("the answer", async {
        let mut answer = call.await?;
        let mut messages = Vec::new();
        while let Some(message) = answer.message().await {
            messages.push(message?);
        }
        Ok(messages)
    })
    .await
}

fn codes(error: &CallError) -> Vec<Code> {
    error.statuses().iter().map(|status| status.code).collect()
}
