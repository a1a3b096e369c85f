//! A small pool of HTTP/2 connections and the calls on it.
//!
//! Built on `h2` itself: request bodies are the caller's own `Bytes`, answers are whole messages cut from DATA frames
//! without a copy, and a failed stream is known precisely enough to say whether the peer processed it.
//!
//! | file | holds |
//! | --- | --- |
//! | `options` | [`PoolOptions`], [`WarmUp`] |
//! | `call` | [`CallSpec`] and the [`Call`] future |
//! | `body` | [`ResponseStream`]: gRPC messages out of DATA frames |
//! | `duplex` | [`DuplexCall`]: a call whose request side stays open |
//! | `slot` | one channel: idle, connecting, ready, draining |
//! | `connect` | TCP, TLS, handshake, warm-up, keep-alive: what runs as a task |
//! | `watch` | the socket, observed: activity and the last stream that a GOAWAY leaves alive |
//! | `fail` | transport failures as [`CallError`]s |
//!
//! # Invariants
//!
//! - A connection is one task of the host's `Spawn`, owned by its slot; the last clone of the pool stops them all.
//! - A call waits only for its own deadline, which the host's clock keeps. Connecting has a limit of its own, and every
//!   call that waits for a connection fails with it.
//! - A connection that got a GOAWAY, or whose stream numbers ran out, takes no further call; the calls on it go on.
//! - Connection tasks measure real time (connect limit, keep-alive): they deal with a real peer, and nothing that a
//!   simulation replays depends on them.
//! - The pool never repeats a request, with one exception: once, after `UNAUTHENTICATED`, with a fresh token.

mod body;
mod call;
mod connect;
mod duplex;
mod fail;
mod options;
mod slot;
#[cfg(test)]
mod tests;
mod watch;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task;

use aqueduct_connector::{Context, Error, Result, Spawn};
use bytes::{BufMut, Bytes, BytesMut};

pub use body::ResponseStream;
pub use call::{Call, CallSpec};
pub(crate) use connect::install_crypto_provider;
pub use duplex::{DuplexCall, NoRoom};
pub use options::{PoolOptions, WarmUp};

use crate::credentials::TokenProvider;
use crate::endpoint::Endpoint;
use crate::error::CallError;
use connect::Target;
use slot::{Lease, Look, Slot, Ticket, Waiting};

/// Channels to one service. Clones share them; the last one dropped closes them.
#[derive(Clone)]
pub struct ChannelPool(Arc<Shared>);

struct Shared {
    slots: Vec<Arc<Slot>>,
    /// Where the next search starts, so that equally loaded channels take turns.
    turn: AtomicUsize,
    target: Arc<Target>,
    spawn: Arc<dyn Spawn>,
}

impl ChannelPool {
    /// A pool that connects when it is first used.
    ///
    /// # Errors
    ///
    /// A configuration error if an option is out of range (named), or if credentials would travel in plaintext.
    pub fn new(
        context: &Context,
        endpoint: Endpoint,
        tokens: TokenProvider,
        options: PoolOptions,
    ) -> Result<Self> {
        options.check()?;
        if endpoint.is_plaintext() && !tokens.is_none() {
            return Err(Error::config(
                "an emulator endpoint takes no credentials: remove the key file or the emulator endpoint",
            ));
        }
        let target = Target {
            endpoint,
            tokens,
            options,
            clock: context.clock.clone(),
            tls: None,
        };
        Ok(Self::build(context, target))
    }

    fn build(context: &Context, target: Target) -> Self {
        let channels = target.options.channels.get();
        let mut random = context.random();
        Self(Arc::new(Shared {
            slots: (0..channels)
                .map(|_| Arc::new(Slot::new(random.fork())))
                .collect(),
            turn: AtomicUsize::new(0),
            target: Arc::new(target),
            spawn: context.spawn.clone(),
        }))
    }

    /// Starts a call: one complete request body, answered by a stream of messages (a unary answer is a stream of one).
    ///
    /// `body` holds complete gRPC frames, prefixes included, and is sent as it is; see [`frame`]. Nothing happens until
    /// the future is polled, inside the host's runtime. Dropping it cancels the call.
    pub fn call(&self, spec: &CallSpec, body: Bytes) -> Call {
        Call::new(self.clone(), spec.clone(), body)
    }

    /// Starts a call whose request side stays open: `first` is sent at once, what
    /// [`DuplexCall::send`] is given follows.
    ///
    /// `first` holds complete gRPC frames. Nothing happens until the call is polled, inside the host's runtime. Dropping
    /// it cancels the call.
    pub fn duplex(&self, spec: &CallSpec, first: Bytes) -> DuplexCall {
        DuplexCall::new(Call::open(self.clone(), spec.clone(), first))
    }

    /// A unary call with generated message types.
    ///
    /// # Errors
    ///
    /// [`CallError`], also if the answer holds no message, more than one, or one that does not decode.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the call; the request may have taken effect.
    pub fn unary<Req: prost::Message, Resp: prost::Message + Default>(
        &self,
        spec: &CallSpec,
        request: &Req,
    ) -> impl Future<Output = Result<Resp, CallError>> + use<Req, Resp> {
        let call = self.call(spec, frame(request));
        async move {
            let mut answer = call.await?;
            let message = answer
                .message()
                .await
                .ok_or_else(|| CallError::protocol("the answer holds no message"))??;
            match answer.message().await {
                None => {}
                Some(Err(error)) => return Err(error),
                Some(Ok(_)) => {
                    return Err(CallError::protocol(
                        "the answer holds more than one message",
                    ));
                }
            }
            // The decoder's words could quote the message.
            Resp::decode(message)
                .map_err(|_| CallError::protocol("the answer is no message of the expected type"))
        }
    }

    /// Where the pool connects to.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.target.endpoint
    }

    /// Starts connecting every channel that is not connected, without waiting.
    pub fn connect(&self) {
        for slot in &self.0.slots {
            self.0.start(slot);
        }
    }
}

impl fmt::Debug for ChannelPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelPool")
            .field("endpoint", &self.0.target.endpoint)
            .field("channels", &self.0.slots.len())
            .finish_non_exhaustive()
    }
}

/// What a call that needs a connection gets.
enum Pick {
    Ready(Lease),
    /// Connecting; the waker is registered.
    Wait,
    Failed(CallError),
}

impl Shared {
    /// The least loaded ready channel. If that one is busy, an idle channel starts connecting for later calls; if there is
    /// none, one starts unless another is connecting already.
    ///
    /// `ticket` remembers which attempt to connect the caller waits for: it fails with that attempt, not with later ones.
    fn pick(&self, ticket: &mut Option<Ticket>, cx: &task::Context<'_>) -> Pick {
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let slots =
            || (0..self.slots.len()).map(|n| &self.slots[first.wrapping_add(n) % self.slots.len()]);
        let mut best: Option<Lease> = None;
        let mut idle = None;
        let mut connecting = false;
        for slot in slots() {
            match slot.look() {
                Look::Ready(lease) => {
                    if best
                        .as_ref()
                        .is_none_or(|best| lease.conn().load() < best.conn().load())
                    {
                        best = Some(lease);
                    }
                }
                Look::Idle => idle = idle.or(Some(slot)),
                Look::Connecting => connecting = true,
            }
        }
        if let Some(best) = best {
            // More than the lease just taken.
            if best.conn().load() > 1
                && let Some(slot) = idle
            {
                self.start(slot);
            }
            return Pick::Ready(best);
        }
        if let Some(ticket) = ticket
            && let Some(error) = ticket.failure()
        {
            return Pick::Failed(error);
        }
        if !connecting && let Some(slot) = idle {
            let started = self.start(slot);
            ticket.get_or_insert(started);
        }
        // Wakes for every channel: whichever is ready first serves.
        let mut registered = false;
        for slot in slots() {
            match slot.wait(cx.waker()) {
                Waiting::Registered(new) => {
                    ticket.get_or_insert(new);
                    registered = true;
                }
                Waiting::Idle => {}
                Waiting::Ready => {
                    registered = false;
                    break;
                }
            }
        }
        if !registered {
            // It became ready, or failed, in between: look again.
            cx.waker().wake_by_ref();
        }
        Pick::Wait
    }

    fn start(&self, slot: &Arc<Slot>) -> Ticket {
        slot.start(&self.target, &*self.spawn)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Each task holds its slot, so the slots would keep themselves alive.
        for slot in &self.slots {
            slot.close();
        }
    }
}

/// One request message as a gRPC frame: not compressed, its length, its bytes.
///
/// # Panics
///
/// If the message is 4 GiB or longer, which no service takes.
#[must_use]
pub fn frame<M: prost::Message>(message: &M) -> Bytes {
    let length = message.encoded_len();
    let mut body = BytesMut::with_capacity(5 + length);
    body.put_u8(0);
    body.put_u32(u32::try_from(length).expect("a message is shorter than 4 GiB"));
    message
        .encode(&mut body)
        .expect("the buffer has room for the encoded length");
    body.freeze()
}
