//! What runs as a task: resolve, connect, encrypt, shake hands, warm up, then drive the connection and keep it honest.
//!
//! Time here is real time (`tokio::time`), because the peer is real; see the invariants of [`pool`](super).

use std::future::{self, Future};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use aqueduct_connector::Clock;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use h2::client::{Connection, SendRequest};
use h2::{Ping, PingPong};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tracing::{debug, warn};

use super::options::{PoolOptions, WarmUp};
use super::slot::{Conn, Slot};
use super::watch::{Watch, Watched};
use crate::credentials::{Authorization, TokenProvider};
use crate::endpoint::Endpoint;

/// Everything a new connection needs to know.
pub(super) struct Target {
    pub(super) endpoint: Endpoint,
    pub(super) tokens: TokenProvider,
    pub(super) options: PoolOptions,
    pub(super) clock: Arc<dyn Clock>,
    /// `None`: the roots of the operating system.
    pub(super) tls: Option<Arc<rustls::ClientConfig>>,
}

/// The next address is tried when one has not answered for this long (RFC 8305 recommends 250 ms).
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// How much bookkeeping of small unread DATA frames a connection may cost at least, at 256 bytes a frame. Above it, `h2`
/// closes the connection: an idle reader must be able to sleep through hours of heartbeats.
const SMALL_FRAMES: usize = 4 << 20;

/// Makes one connection for `slot` after `delay` and drives it to its end. The slot hears of the end in any case, also
/// if the future is dropped before its first poll.
pub(super) fn run(
    slot: Arc<Slot>,
    target: Arc<Target>,
    attempt: u64,
    delay: Duration,
) -> impl Future<Output = ()> + Send {
    let outcome = Outcome::Failed("the connection task was stopped".to_owned());
    let report = Report {
        slot,
        attempt,
        outcome,
    };
    live(report, target, delay)
}

async fn live(mut report: Report, target: Arc<Target>, delay: Duration) {
    let endpoint = &target.endpoint;
    if !delay.is_zero() {
        sleep(delay).await;
    }
    let limit = target.options.connect_timeout;
    let watch = Arc::new(Watch::new());
    let (send, connection) = match timeout(limit, establish(&target, watch.clone())).await {
        Ok(Ok(made)) => made,
        Ok(Err(error)) => {
            debug!(%endpoint, %error, "connecting failed");
            return report.failed(format!("connecting to {endpoint} failed: {error}"));
        }
        Err(_) => {
            debug!(%endpoint, ?limit, "connecting timed out");
            return report.failed(format!(
                "connecting to {endpoint} took longer than {limit:?}"
            ));
        }
    };
    let conn = Arc::new(Conn::new(send, watch));
    let mut life = pin!(drive(connection, conn.clone(), &target));
    if let Some(warm_up) = &target.options.warm_up {
        let warm = pin!(timeout(
            warm_up.spec.time_limit(),
            warm(&conn, warm_up, &target)
        ));
        if let Either::Left(((), _)) = select(life.as_mut(), warm).await {
            return report.failed(format!("{endpoint} closed the new connection"));
        }
    }
    debug!(%endpoint, "connected");
    report.slot.ready(report.attempt, conn.clone());
    report.outcome = Outcome::Ended(conn);
    life.await;
    debug!(%endpoint, "connection ended");
}

/// Tells the slot how the task ended, also when it is aborted or panics.
struct Report {
    slot: Arc<Slot>,
    attempt: u64,
    outcome: Outcome,
}

enum Outcome {
    Failed(String),
    Ended(Arc<Conn>),
}

impl Report {
    fn failed(mut self, why: String) {
        self.outcome = Outcome::Failed(why);
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        match &self.outcome {
            Outcome::Failed(why) => self.slot.failed(self.attempt, why),
            Outcome::Ended(conn) => self.slot.ended(self.attempt, conn),
        }
    }
}

type Http2 = Connection<Watched<Wire>, Bytes>;

async fn establish(target: &Target, watch: Arc<Watch>) -> io::Result<(SendRequest<Bytes>, Http2)> {
    let endpoint = &target.endpoint;
    let tcp = dial(endpoint.host(), endpoint.port()).await?;
    tcp.set_nodelay(true)?;
    let wire = if endpoint.is_plaintext() {
        Wire::Plain(tcp)
    } else {
        encrypt(target, tcp).await?
    };
    let options = &target.options;
    h2::client::Builder::new()
        .enable_push(false)
        .initial_window_size(options.stream_window)
        .initial_connection_window_size(options.connection_window)
        .max_frame_size(options.max_frame)
        .max_header_list_size(options.max_header_list)
        // An owner that reads slowly while the peer sends many tiny messages is backpressure, no attack.
        .data_frame_budget((options.connection_window as usize).max(SMALL_FRAMES))
        .handshake(Watched::new(wire, watch))
        .await
        .map_err(io::Error::other)
}

/// Connects to the first address that answers, in the resolver's order, not waiting long for a dead one.
async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut addresses = tokio::net::lookup_host((host, port))
        .await?
        .collect::<Vec<SocketAddr>>()
        .into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    loop {
        match addresses.next() {
            Some(address) => attempts.push(TcpStream::connect(address)),
            None if attempts.is_empty() => return Err(last),
            None => {}
        }
        let patience = if addresses.len() > 0 {
            NEXT_ADDRESS
        } else {
            Duration::MAX
        };
        match timeout(patience, attempts.next()).await {
            Ok(Some(Ok(tcp))) => return Ok(tcp),
            Ok(Some(Err(error))) => last = error,
            Ok(None) | Err(_) => {}
        }
    }
}

async fn encrypt(target: &Target, tcp: TcpStream) -> io::Result<Wire> {
    let config = match &target.tls {
        Some(config) => config.clone(),
        None => system_tls().await?,
    };
    let name = ServerName::try_from(target.endpoint.host().to_owned()).map_err(io::Error::other)?;
    let stream = TlsConnector::from(config).connect(name, tcp).await?;
    if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        return Err(io::Error::other("the server does not speak HTTP/2"));
    }
    Ok(Wire::Tls(Box::new(stream)))
}

/// The roots of the operating system, read once a process.
async fn system_tls() -> io::Result<Arc<rustls::ClientConfig>> {
    static CONFIG: OnceLock<Arc<rustls::ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone());
    }
    let made = tokio::task::spawn_blocking(|| {
        let mut roots = rustls::RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if added == 0 {
            return Err(io::Error::other(
                "the operating system has no root certificates: install its package of them (ca-certificates)",
            ));
        }
        client_config(roots)
    })
    .await
    .map_err(|_| io::Error::other("reading the root certificates was stopped"))??;
    Ok(CONFIG.get_or_init(|| made).clone())
}

pub(super) fn client_config(roots: rustls::RootCertStore) -> io::Result<Arc<rustls::ClientConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// The library behind the credentials takes its cryptography from the process.
pub(crate) fn install_crypto_provider() {
    // Fails if the program has chosen one already, which then serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Drives the connection until it ends, by itself, because the peer fell silent, or because nobody needs it any more: the
/// peer of a connection that was given up must hear of it, or it goes on serving calls that were cancelled.
async fn drive(connection: Http2, conn: Arc<Conn>, target: &Target) {
    let mut connection = connection;
    let options = &target.options;
    let ping = connection.ping_pong().expect("asked for once a connection");
    let silent = pin!(peer_fell_silent(
        ping,
        &conn,
        options.keep_alive,
        options.keep_alive_timeout
    ));
    let drained = pin!(future::poll_fn(|cx| conn.poll_drained(cx)));
    match select(
        pin!(future::poll_fn(|cx| Pin::new(&mut connection).poll(cx))),
        select(silent, drained),
    )
    .await
    {
        Either::Left((_, _)) => conn.wear_out(),
        Either::Right((Either::Right(_), _)) => {}
        Either::Right((Either::Left(_), _)) => {
            warn!(endpoint = %target.endpoint, "no answer to a keep-alive ping, giving the connection up");
            // Before the connection is dropped, so that its calls say why.
            conn.dies_of("the peer did not answer a keep-alive ping");
        }
    }
    drop(connection);
}

/// Resolves when a ping got no answer, and nothing else came either.
async fn peer_fell_silent(mut ping: PingPong, conn: &Conn, interval: Duration, patience: Duration) {
    loop {
        let mut received = conn.watch().received();
        sleep(interval).await;
        // Without calls nobody waits, and services dislike such pings.
        if conn.load() == 0 || conn.watch().received() != received {
            continue;
        }
        if ping.send_ping(Ping::opaque()).is_err() {
            // The connection is ending; its own future says how.
            return future::pending().await;
        }
        let mut pong = pin!(future::poll_fn(|cx| ping.poll_pong(cx)));
        while timeout(patience, pong.as_mut()).await.is_err() {
            // The answer may be queued behind data.
            let now = conn.watch().received();
            if now == received {
                return;
            }
            received = now;
        }
    }
}

/// One call whose answer does not matter, only that it came.
async fn warm(conn: &Conn, warm_up: &WarmUp, target: &Target) {
    let now = target.clock.now();
    let granted = match target.tokens.authorize(now) {
        Authorization::None => None,
        Authorization::Ready(granted) => Some(granted),
        Authorization::Wait(fetch) => match fetch.await {
            Ok(granted) => Some(granted),
            Err(_) => return,
        },
    };
    let request = warm_up.spec.request(
        &target.endpoint,
        warm_up.spec.time_limit(),
        granted.as_ref(),
    );
    let answered: Result<(), h2::Error> = async {
        let (response, mut body) = conn.sender().send_request(request, false)?;
        body.send_data(warm_up.body.clone(), true)?;
        let mut answer = response.await?.into_body();
        while let Some(data) = answer.data().await {
            answer.flow_control().release_capacity(data?.len())?;
        }
        Ok(())
    }
    .await;
    if answered.is_err() {
        debug!(endpoint = %target.endpoint, "warming the connection up failed");
    }
}

/// The bytes below HTTP/2.
#[derive(Debug)]
pub(super) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

macro_rules! either {
    ($self:expr, $io:ident => $call:expr) => {
        match $self {
            Wire::Plain($io) => $call,
            Wire::Tls($io) => $call,
        }
    };
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(&mut *self, io => Pin::new(io).poll_read(cx, buf))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(&mut *self, io => Pin::new(io).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(&mut *self, io => Pin::new(io).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        either!(self, io => io.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut *self, io => Pin::new(io).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut *self, io => Pin::new(io).poll_shutdown(cx))
    }
}
