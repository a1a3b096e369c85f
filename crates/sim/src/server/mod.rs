//! The server: a listener, its connections, and the handle that owns them.
//!
//! - [`connection`] is one TCP connection, [`serve`] one request on it, [`body`] its answer.
//! - [`grpc`] reads messages.
//! - [`discard`] is a server of its own, for benchmarks.

pub(crate) mod body;
pub(crate) mod connection;
pub(crate) mod discard;
pub(crate) mod grpc;
pub(crate) mod serve;

use std::{
    fmt,
    future::Future,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    thread,
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpSocket},
    runtime::{self, Handle},
    sync::{mpsc, oneshot},
    task::{JoinHandle, JoinSet},
};
use tracing::warn;

use crate::{bigtable::handle::Bigtable, config::SimConfig, core::Core, pubsub::handle::PubSub};
use connection::{Connections, drive};

/// How long a graceful shutdown waits for what is in flight.
const DRAIN: Duration = Duration::from_secs(1);

enum Command {
    Stop(oneshot::Sender<()>),
    Restart(oneshot::Sender<io::Result<()>>),
    Shutdown(oneshot::Sender<()>),
}

enum Host {
    Task(JoinHandle<()>),
    Thread(Handle, thread::JoinHandle<()>),
    /// Only within `drop` and `shutdown`.
    Gone,
}

/// A running simulation. Dropping it closes every connection at once.
pub struct Sim {
    core: Arc<Core>,
    address: SocketAddr,
    connections: Arc<Connections>,
    commands: Option<mpsc::Sender<Command>>,
    host: Host,
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    // A restart must not wait for the old connections to leave TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1_024)
}

impl Sim {
    /// Starts a simulation on the current Tokio runtime.
    ///
    /// # Errors
    ///
    /// If the port cannot be bound.
    ///
    /// # Panics
    ///
    /// Outside of a runtime with I/O and time.
    #[expect(
        clippy::unused_async,
        reason = "starting may come to wait for more than a socket"
    )]
    pub async fn start(config: SimConfig) -> io::Result<Self> {
        let listener = bind((Ipv4Addr::LOCALHOST, config.port).into())?;
        let address = listener.local_addr()?;
        let core = Arc::new(Core::new(config));
        let connections = Arc::new(Connections::default());
        let (commands, orders) = mpsc::channel(4);
        let server = run(core.clone(), connections.clone(), address, listener, orders);
        let host = Host::Task(tokio::spawn(server));
        Ok(Self {
            core,
            address,
            connections,
            commands: Some(commands),
            host,
        })
    }

    /// Starts a simulation on a thread of its own, with a current-thread runtime of its own.
    ///
    /// The async methods of the handle may be awaited in any Tokio runtime; without one, use
    /// [`block_on`](Self::block_on).
    ///
    /// # Errors
    ///
    /// If the thread cannot be started or the port cannot be bound.
    pub fn start_on_thread(config: SimConfig) -> io::Result<Self> {
        Self::start_on_thread_with(config, || ())
    }

    /// As [`start_on_thread`](Self::start_on_thread); the thread calls `before` first, where a
    /// benchmark pins it to a core.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started or the port cannot be bound.
    pub fn start_on_thread_with(
        config: SimConfig,
        before: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let core = Arc::new(Core::new(config));
        let connections = Arc::new(Connections::default());
        let (commands, orders) = mpsc::channel(4);
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        let server = {
            let (core, connections) = (core.clone(), connections.clone());
            move || {
                before();
                let start = || {
                    let runtime = runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()?;
                    let listener = {
                        let _entered = runtime.enter();
                        bind((Ipv4Addr::LOCALHOST, core.config.port).into())?
                    };
                    let address = listener.local_addr()?;
                    io::Result::Ok((runtime, listener, address))
                };
                match start() {
                    Ok((runtime, listener, address)) => {
                        // If the starter is gone, so is the sender of orders, and `run` returns.
                        let _ = ready.send(Ok((runtime.handle().clone(), address)));
                        runtime.block_on(run(core, connections, address, listener, orders));
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                    }
                }
            }
        };
        let thread = thread::Builder::new()
            .name("aqueduct-sim".to_owned())
            .spawn(server)?;
        let (handle, address) = started
            .recv()
            .map_err(|_| io::Error::other("the simulation's thread ended before it served"))??;
        let host = Host::Thread(handle, thread);
        Ok(Self {
            core,
            address,
            connections,
            commands: Some(commands),
            host,
        })
    }

    /// Runs a future from a thread outside of any runtime, such as one of this handle's.
    ///
    /// # Panics
    ///
    /// If the simulation was not [started on a thread](Self::start_on_thread), or inside of a
    /// runtime.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match &self.host {
            Host::Thread(handle, _) => handle.block_on(future),
            Host::Task(_) | Host::Gone => panic!("block_on needs a simulation on its own thread"),
        }
    }

    /// Where it serves, as `127.0.0.1:port`. Plaintext HTTP/2, no credentials.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// The port it serves on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The simulated Bigtable.
    #[must_use]
    pub fn bigtable(&self) -> Bigtable {
        Bigtable::new(self.core.clone())
    }

    /// The simulated Pub/Sub.
    #[must_use]
    pub fn pubsub(&self) -> PubSub {
        PubSub::new(self.core.clone())
    }

    /// Connections that are open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Closes every TCP connection at once, whatever is in flight; new ones are accepted.
    pub fn cut_connections(&self) {
        self.connections.for_each(connection::Connection::cut);
    }

    /// Recycles every connection gracefully: `GOAWAY`, then what is in flight, then the end.
    pub fn recycle_connections(&self) {
        self.connections.for_each(connection::Connection::recycle);
    }

    /// Stops listening and closes every connection: clients meet a refused connection. The data
    /// stays.
    pub async fn stop(&self) {
        let (done, stopped) = oneshot::channel();
        self.order(Command::Stop(done)).await;
        // A server that is gone has stopped.
        let _ = stopped.await;
    }

    /// Listens again, on the same port with the same data.
    ///
    /// # Errors
    ///
    /// If the port was taken meanwhile.
    pub async fn restart(&self) -> io::Result<()> {
        let (done, restarted) = oneshot::channel();
        self.order(Command::Restart(done)).await;
        restarted
            .await
            .map_err(|_| io::Error::other("the simulation is gone"))?
    }

    async fn order(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // A server that is gone drops the answer's sender, which the caller sees.
            let _ = commands.send(command).await;
        }
    }

    /// Ends the simulation gracefully: no new connections, a second for what is in flight, then
    /// the end. Handles of [`bigtable`](Self::bigtable) stay usable to inspect what it holds.
    pub async fn shutdown(mut self) {
        let (done, finished) = oneshot::channel();
        self.order(Command::Shutdown(done)).await;
        let _ = finished.await;
        self.commands = None;
        if let Host::Task(task) = &mut self.host {
            // A panic of the server was reported by its own thread's hook.
            let _ = task.await;
            self.host = Host::Gone;
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.commands = None;
        match std::mem::replace(&mut self.host, Host::Gone) {
            Host::Task(task) => task.abort(),
            Host::Thread(_, thread) => {
                // Without orders `run` returns at once.
                let _ = thread.join();
            }
            Host::Gone => {}
        }
    }
}

/// Accepts and serves until the handle is dropped. Owns the task of every connection.
async fn run(
    core: Arc<Core>,
    connections: Arc<Connections>,
    address: SocketAddr,
    listener: TcpListener,
    mut orders: mpsc::Receiver<Command>,
) {
    let mut listener = Some(listener);
    let mut tasks = JoinSet::new();
    let mut next_id = 0;
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                None => break,
                Some(Command::Stop(done)) => {
                    listener = None;
                    tasks.shutdown().await;
                    // Whoever asked may have stopped waiting.
                    let _ = done.send(());
                }
                Some(Command::Restart(done)) => {
                    let bound = match listener {
                        Some(_) => Ok(()),
                        None => bind(address).map(|bound| listener = Some(bound)),
                    };
                    let _ = done.send(bound);
                }
                Some(Command::Shutdown(done)) => {
                    listener = None;
                    connections.for_each(connection::Connection::recycle);
                    let drained = async { while tasks.join_next().await.is_some() {} };
                    // What is left after the time is cut.
                    let _ = tokio::time::timeout(DRAIN, drained).await;
                    tasks.shutdown().await;
                    let _ = done.send(());
                    break;
                }
            },
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            accepted = accept(listener.as_ref()) => match accepted {
                Ok(socket) => {
                    tasks.spawn(drive(core.clone(), connections.clone(), next_id, socket));
                    next_id += 1;
                }
                Err(error) => warn!(%error, "a connection could not be accepted"),
            },
        }
    }
    drop(listener);
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<tokio::net::TcpStream> {
    match listener {
        None => std::future::pending().await,
        Some(listener) => {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            Ok(socket)
        }
    }
}
