//! The barest server of `MutateRows`: HTTP/2 by hand, payloads counted where they lie in the read
//! buffer, nothing kept. It costs little more than the kernel's copy, so that a benchmark measures
//! its client.
//!
//! # Invariants
//!
//! - Memory is one read buffer a connection, a few counters a stream, and answers the client gives
//!   no window for (bounded by its own streams).
//! - The client's windows are kept to the byte; ours are so large that only the connection's needs
//!   refilling.
//!
//! # Not here
//!
//! Header blocks are not decoded: every request is answered as `MutateRows`, with success for as
//! many entries as its message has fields of number 2. `PingAndWarm` reads that answer as its own.
//! No faults, no tables, no log; those are [`Sim`](super::Sim)'s, which also
//! [discards](crate::Table::start_discarding), at the price of a full HTTP/2 server.

use std::{
    collections::{HashMap, VecDeque},
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime,
    sync::oneshot,
    task::JoinSet,
};
use tracing::{debug, warn};

use super::{bind, grpc::EntryCounter, serve::acknowledgement};
use crate::bigtable::handle::Discarded;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const READ_BUFFER: usize = 256 << 10;
const MAX_FRAME: u32 = 1 << 20;
/// What the connection's receive window is lifted to, and how much of it is used before a refill.
const CONNECTION_WINDOW: u32 = 1 << 30;
const REFILL: u32 = 1 << 24;

// Frame types and flags.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;

#[derive(Default)]
struct Counters {
    requests: AtomicU64,
    entries: AtomicU64,
    bytes: AtomicU64,
}

/// A server that acknowledges `MutateRows` and forgets. Dropping it ends it.
pub struct DiscardServer {
    address: SocketAddr,
    counters: Arc<Counters>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl fmt::Debug for DiscardServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiscardServer")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl DiscardServer {
    /// Starts on a free loopback port and a thread of its own, which calls `before` first; there
    /// a benchmark pins it to a core.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started or no port can be bound.
    pub fn start_on_thread(before: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let counters = Arc::new(Counters::default());
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let server = {
            let counters = counters.clone();
            move || {
                before();
                let start = || {
                    let runtime = runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()?;
                    let listener = {
                        let _entered = runtime.enter();
                        bind((Ipv4Addr::LOCALHOST, 0).into())?
                    };
                    let address = listener.local_addr()?;
                    io::Result::Ok((runtime, listener, address))
                };
                let (runtime, listener, address) = match start() {
                    Ok(parts) => parts,
                    Err(error) => {
                        // The starter waits for this or is gone.
                        let _ = ready.send(Err(error));
                        return;
                    }
                };
                let _ = ready.send(Ok(address));
                runtime.block_on(async {
                    let mut connections = JoinSet::new();
                    let mut stopped = stopped;
                    loop {
                        tokio::select! {
                            _ = &mut stopped => break,
                            Some(_) = connections.join_next(), if !connections.is_empty() => {}
                            accepted = listener.accept() => match accepted {
                                Ok((socket, _)) => {
                                    connections.spawn(drive(socket, counters.clone()));
                                }
                                Err(error) => warn!(%error, "a connection could not be accepted"),
                            },
                        }
                    }
                });
            }
        };
        let thread = thread::Builder::new()
            .name("aqueduct-discard".to_owned())
            .spawn(server)?;
        let address = started
            .recv()
            .map_err(|_| io::Error::other("the discarding thread ended before it served"))??;
        Ok(Self {
            address,
            counters,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it serves, as `127.0.0.1:port`. Plaintext HTTP/2, no credentials.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// What was acknowledged so far.
    #[must_use]
    pub fn discarded(&self) -> Discarded {
        Discarded {
            requests: self.counters.requests.load(Ordering::SeqCst),
            entries: self.counters.entries.load(Ordering::SeqCst),
            bytes: self.counters.bytes.load(Ordering::SeqCst),
        }
    }
}

impl Drop for DiscardServer {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by its own hook.
            let _ = thread.join();
        }
    }
}

async fn drive(mut socket: TcpStream, counters: Arc<Counters>) {
    let mut connection = Connection::new(counters);
    let mut buffer = vec![0; READ_BUFFER];
    let run = async {
        socket.set_nodelay(true)?;
        loop {
            if !connection.out.is_empty() {
                socket.write_all(&connection.out).await?;
                connection.out.clear();
            }
            let read = socket.read(&mut buffer).await?;
            if read == 0 {
                return io::Result::Ok(());
            }
            connection
                .take(&buffer[..read])
                .map_err(|broken| io::Error::new(io::ErrorKind::InvalidData, broken.0))?;
        }
    };
    if let Err(error) = run.await {
        debug!(%error, "a discarding connection ended");
    }
}

/// The client does what this server does not understand.
struct Broken(&'static str);

struct Stream {
    counter: EntryCounter,
    /// What the client lets us send on the stream.
    window: i64,
    /// What is left to send, once the request ended.
    answer: Option<Bytes>,
}

#[derive(Clone, Copy)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    /// Bytes of the payload still to come.
    left: usize,
}

struct Connection {
    counters: Arc<Counters>,
    preface: usize,
    header: [u8; 9],
    header_bytes: usize,
    frame: Option<Frame>,
    /// The payload of a control frame, gathered.
    control: Vec<u8>,
    streams: HashMap<u32, Stream>,
    /// Streams whose answer waits for a window, oldest first.
    waiting: VecDeque<u32>,
    initial_window: i64,
    window: i64,
    /// Received since the connection's window was refilled.
    received: u32,
    acknowledgement: (usize, Bytes),
    out: Vec<u8>,
}

fn frame_header(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let length = u32::try_from(length)
        .expect("frames are at most 16 KiB")
        .to_be_bytes();
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

/// The largest frame we send: what every client takes.
const SENT_FRAME: usize = 16 << 10;

/// `:status: 200` and `content-type: application/grpc`, without dynamic table.
const RESPONSE_HEADERS: &[u8] = b"\x88\x0f\x10\x10application/grpc";
/// `grpc-status: 0`.
const RESPONSE_TRAILERS: &[u8] = b"\x00\x0bgrpc-status\x010";

impl Connection {
    fn new(counters: Arc<Counters>) -> Self {
        let mut out = Vec::new();
        let mut settings = Vec::new();
        for (setting, value) in [
            (1_u16, 0_u32),               // HEADER_TABLE_SIZE: blocks are skipped
            (3, 4_096),                   // MAX_CONCURRENT_STREAMS
            (4, i32::MAX.unsigned_abs()), // INITIAL_WINDOW_SIZE
            (5, MAX_FRAME),               // MAX_FRAME_SIZE
        ] {
            settings.extend_from_slice(&setting.to_be_bytes());
            settings.extend_from_slice(&value.to_be_bytes());
        }
        frame_header(&mut out, settings.len(), SETTINGS, 0, 0);
        out.extend_from_slice(&settings);
        frame_header(&mut out, 4, WINDOW_UPDATE, 0, 0);
        out.extend_from_slice(&(CONNECTION_WINDOW - 65_535).to_be_bytes());
        Self {
            counters,
            preface: 0,
            header: [0; 9],
            header_bytes: 0,
            frame: None,
            control: Vec::new(),
            streams: HashMap::new(),
            waiting: VecDeque::new(),
            initial_window: 65_535,
            window: 65_535,
            received: 0,
            acknowledgement: (0, Bytes::new()),
            out,
        }
    }

    /// Takes what was read; fills `out`.
    fn take(&mut self, mut data: &[u8]) -> Result<(), Broken> {
        if self.preface < PREFACE.len() {
            let expected = &PREFACE[self.preface..];
            let taken = expected.len().min(data.len());
            if data[..taken] != expected[..taken] {
                return Err(Broken("not HTTP/2"));
            }
            self.preface += taken;
            data = &data[taken..];
        }
        while !data.is_empty() {
            let Some(mut frame) = self.frame else {
                let taken = (9 - self.header_bytes).min(data.len());
                self.header[self.header_bytes..self.header_bytes + taken]
                    .copy_from_slice(&data[..taken]);
                self.header_bytes += taken;
                data = &data[taken..];
                if self.header_bytes == 9 {
                    self.header_bytes = 0;
                    self.begin()?;
                }
                continue;
            };
            let taken = frame.left.min(data.len());
            let (payload, rest) = data.split_at(taken);
            data = rest;
            frame.left -= taken;
            match frame.kind {
                DATA => {
                    // A stream that was reset meanwhile still sends what was under way.
                    if let Some(stream) = self.streams.get_mut(&frame.stream)
                        && stream.counter.feed(payload).is_err()
                    {
                        return Err(Broken("a request that is not MutateRows"));
                    }
                }
                SETTINGS | PING | WINDOW_UPDATE => self.control.extend_from_slice(payload),
                _ => {}
            }
            if frame.left == 0 {
                self.frame = None;
                self.end(frame)?;
            } else {
                self.frame = Some(frame);
            }
        }
        if self.received >= REFILL {
            frame_header(&mut self.out, 4, WINDOW_UPDATE, 0, 0);
            self.out.extend_from_slice(&self.received.to_be_bytes());
            self.received = 0;
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Broken> {
        let [a, b, c, kind, flags, s0, s1, s2, s3] = self.header;
        let length = u32::from_be_bytes([0, a, b, c]);
        if length > MAX_FRAME {
            return Err(Broken("a frame above the limit"));
        }
        let stream = u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]);
        match kind {
            DATA if flags & PADDED != 0 => return Err(Broken("padded data")),
            DATA => self.received += length,
            HEADERS => {
                let window = self.initial_window;
                self.streams.entry(stream).or_insert_with(|| Stream {
                    counter: EntryCounter::new(),
                    window,
                    answer: None,
                });
            }
            SETTINGS | PING | WINDOW_UPDATE if length > 1_024 => {
                return Err(Broken("an oversized control frame"));
            }
            _ => {}
        }
        self.control.clear();
        let frame = Frame {
            kind,
            flags,
            stream,
            left: length as usize,
        };
        if length == 0 {
            return self.end(frame);
        }
        self.frame = Some(frame);
        Ok(())
    }

    /// A frame is complete.
    fn end(&mut self, frame: Frame) -> Result<(), Broken> {
        match frame.kind {
            DATA | HEADERS if frame.flags & END_STREAM != 0 => self.answer(frame.stream)?,
            RST_STREAM => {
                self.streams.remove(&frame.stream);
                self.waiting.retain(|stream| *stream != frame.stream);
            }
            SETTINGS if frame.flags & ACK == 0 => {
                for setting in self.control.chunks_exact(6) {
                    let value =
                        u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
                    if setting[..2] == [0, 4] {
                        let change = i64::from(value) - self.initial_window;
                        self.initial_window = i64::from(value);
                        self.streams
                            .values_mut()
                            .for_each(|stream| stream.window += change);
                    }
                }
                frame_header(&mut self.out, 0, SETTINGS, ACK, 0);
                self.flush();
            }
            PING if frame.flags & ACK == 0 => {
                frame_header(&mut self.out, self.control.len(), PING, ACK, 0);
                self.out.extend_from_slice(&self.control);
            }
            WINDOW_UPDATE => {
                let Ok(increment) = <[u8; 4]>::try_from(&*self.control) else {
                    return Err(Broken("a window update of another size"));
                };
                let increment = i64::from(u32::from_be_bytes(increment) & 0x7fff_ffff);
                if frame.stream == 0 {
                    self.window += increment;
                } else if let Some(stream) = self.streams.get_mut(&frame.stream) {
                    stream.window += increment;
                }
                self.flush();
            }
            _ => {}
        }
        Ok(())
    }

    /// The request of the stream ended.
    fn answer(&mut self, id: u32) -> Result<(), Broken> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        let counter = std::mem::replace(&mut stream.counter, EntryCounter::new());
        let Ok((entries, bytes)) = counter.finish() else {
            return Err(Broken("a request that is not MutateRows"));
        };
        self.counters.requests.fetch_add(1, Ordering::SeqCst);
        self.counters
            .entries
            .fetch_add(entries as u64, Ordering::SeqCst);
        self.counters.bytes.fetch_add(bytes, Ordering::SeqCst);
        if self.acknowledgement.0 != entries || self.acknowledgement.1.is_empty() {
            self.acknowledgement = (entries, acknowledgement(entries));
        }
        stream.answer = Some(self.acknowledgement.1.clone());
        frame_header(
            &mut self.out,
            RESPONSE_HEADERS.len(),
            HEADERS,
            END_HEADERS,
            id,
        );
        self.out.extend_from_slice(RESPONSE_HEADERS);
        self.waiting.push_back(id);
        self.flush();
        Ok(())
    }

    /// Sends what the windows allow of what waits.
    fn flush(&mut self) {
        let mut blocked = VecDeque::new();
        while let Some(id) = self.waiting.pop_front() {
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            let Some(answer) = &mut stream.answer else {
                continue;
            };
            while !answer.is_empty() {
                let allowed = usize::try_from(self.window.min(stream.window)).unwrap_or(0);
                let part = answer.split_to(answer.len().min(allowed).min(SENT_FRAME));
                if part.is_empty() {
                    break;
                }
                frame_header(&mut self.out, part.len(), DATA, 0, id);
                self.out.extend_from_slice(&part);
                let sent = i64::try_from(part.len()).expect("a frame is small");
                self.window -= sent;
                stream.window -= sent;
            }
            if answer.is_empty() {
                let flags = END_HEADERS | END_STREAM;
                frame_header(&mut self.out, RESPONSE_TRAILERS.len(), HEADERS, flags, id);
                self.out.extend_from_slice(RESPONSE_TRAILERS);
                self.streams.remove(&id);
            } else {
                blocked.push_back(id);
            }
        }
        self.waiting = blocked;
    }
}
