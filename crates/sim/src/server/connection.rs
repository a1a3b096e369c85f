//! One TCP connection: HTTP/2 and all its streams in one task, so that cutting it ends everything
//! on it at once and nothing outlives it.

use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use futures::stream::{FuturesUnordered, StreamExt};
use hyper::{rt::Executor, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpStream, sync::Notify};

use super::serve::serve;
use crate::{bigtable::slot::lock, core::Core};

/// What can be done to a connection from outside.
pub(crate) struct Connection {
    pub(crate) id: u64,
    cut: Notify,
    goaway: Notify,
}

impl Connection {
    /// Closes the socket, whatever is in flight.
    pub(crate) fn cut(&self) {
        self.cut.notify_one();
    }

    /// Announces the end, serves what is in flight, then closes.
    pub(crate) fn recycle(&self) {
        self.goaway.notify_one();
    }
}

/// The open connections.
#[derive(Default)]
pub(crate) struct Connections {
    open: Mutex<HashMap<u64, Arc<Connection>>>,
}

impl Connections {
    pub(crate) fn len(&self) -> usize {
        lock(&self.open).len()
    }

    pub(crate) fn for_each(&self, f: impl Fn(&Connection)) {
        lock(&self.open)
            .values()
            .for_each(|connection| f(connection));
    }

    fn add(self: &Arc<Self>, id: u64) -> Registered {
        let connection = Arc::new(Connection {
            id,
            cut: Notify::new(),
            goaway: Notify::new(),
        });
        lock(&self.open).insert(id, connection.clone());
        Registered {
            connections: self.clone(),
            connection,
        }
    }
}

/// Takes the connection off the list, however its task ends.
struct Registered {
    connections: Arc<Connections>,
    connection: Arc<Connection>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        lock(&self.connections.open).remove(&self.connection.id);
    }
}

type Stream = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Hands the futures of new streams to the task of their connection.
#[derive(Clone, Default)]
struct SameTask(Arc<Mutex<Vec<Stream>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for SameTask {
    fn execute(&self, stream: F) {
        lock(&self.0).push(Box::pin(stream));
    }
}

/// Serves `socket` until it closes, is cut or recycled.
pub(crate) async fn drive(
    core: Arc<Core>,
    connections: Arc<Connections>,
    id: u64,
    socket: TcpStream,
) {
    let registered = connections.add(id);
    let control = registered.connection.clone();
    let config = &core.config;
    let new_streams = SameTask::default();
    let mut builder = http2::Builder::new(new_streams.clone());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(config.stream_window_bytes)
        .initial_connection_window_size(config.connection_window_bytes)
        .max_frame_size(config.max_frame_bytes)
        .max_concurrent_streams(config.max_concurrent_streams)
        // Clients under test cancel many streams at once; that is no attack.
        .max_pending_accept_reset_streams(4_096)
        .max_local_error_reset_streams(None)
        .auto_date_header(false);
    let service = {
        let (core, control) = (core.clone(), control.clone());
        service_fn(move |request| serve(core.clone(), control.clone(), request))
    };
    let mut http = pin!(builder.serve_connection(TokioIo::new(socket), service));
    let mut streams: FuturesUnordered<Stream> = FuturesUnordered::new();
    let mut recycling = false;
    loop {
        tokio::select! {
            biased;
            () = control.cut.notified() => break,
            () = control.goaway.notified(), if !recycling => {
                recycling = true;
                http.as_mut().graceful_shutdown();
            }
            () = poll_fn(|cx| poll(http.as_mut(), &mut streams, &new_streams, cx)) => break,
        }
    }
    core.notify();
}

fn poll(
    http: Pin<&mut impl Future>,
    streams: &mut FuturesUnordered<Stream>,
    new_streams: &SameTask,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let closed = http.poll(cx).is_ready();
    loop {
        streams.extend(lock(&new_streams.0).drain(..));
        // What streams produce wakes `http` through its own waker, which is this task's.
        match streams.poll_next_unpin(cx) {
            Poll::Ready(Some(())) => {}
            Poll::Ready(None) | Poll::Pending => break,
        }
    }
    if closed {
        Poll::Ready(())
    } else {
        Poll::Pending
    }
}
