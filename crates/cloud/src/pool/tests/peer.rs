//! Servers for tests: [`Peer`] writes HTTP/2 frames by hand and can break every rule; [`serve`] is a well-behaved one.

use std::future::{Future, poll_fn};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::server::SendResponse;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

#[derive(Debug)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Bytes,
}

/// One accepted connection, frame by frame.
pub(super) struct Peer {
    io: TcpStream,
    read: BytesMut,
    /// Pings seen so far.
    pub(super) pings: usize,
    /// Whether pings are answered.
    pub(super) polite: bool,
}

impl Peer {
    /// Accepts a connection and its preface.
    pub(super) async fn accept(listener: &TcpListener) -> Self {
        let (mut io, _) = listener.accept().await.expect("a connection");
        io.set_nodelay(true).expect("a socket");
        let mut preface = [0; 24];
        io.read_exact(&mut preface).await.expect("the preface");
        assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let mut peer = Self {
            io,
            read: BytesMut::new(),
            pings: 0,
            polite: true,
        };
        peer.send(SETTINGS, 0, 0, &[]).await;
        peer
    }

    /// The next frame that is not housekeeping; `None` when the client has closed.
    pub(super) async fn next(&mut self) -> Option<Frame> {
        loop {
            let frame = self.frame().await?;
            match frame.kind {
                SETTINGS if frame.flags & ACK == 0 => self.send(SETTINGS, ACK, 0, &[]).await,
                PING if frame.flags & ACK == 0 => {
                    self.pings += 1;
                    if self.polite {
                        self.send(PING, ACK, 0, &frame.payload).await;
                    }
                }
                SETTINGS | PING | WINDOW_UPDATE => {}
                _ => return Some(frame),
            }
        }
    }

    async fn frame(&mut self) -> Option<Frame> {
        while self.read.len() < 9 || self.read.len() < 9 + self.length() {
            if self.io.read_buf(&mut self.read).await.unwrap_or(0) == 0 {
                return None;
            }
        }
        let length = self.length();
        let mut head = self.read.split_to(9);
        head.advance(3);
        let (kind, flags, stream) = (head.get_u8(), head.get_u8(), head.get_u32());
        Some(Frame {
            kind,
            flags,
            stream,
            payload: self.read.split_to(length).freeze(),
        })
    }

    fn length(&self) -> usize {
        usize::from(self.read[0]) << 16 | usize::from(self.read[1]) << 8 | usize::from(self.read[2])
    }

    /// Reads one whole request and answers its stream.
    pub(super) async fn request(&mut self) -> u32 {
        loop {
            let frame = self.next().await.expect("a request, not the end");
            if matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0 {
                return frame.stream;
            }
        }
    }

    pub(super) async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut bytes = BytesMut::new();
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        bytes.put_slice(&length[1..]);
        bytes.put_u8(kind);
        bytes.put_u8(flags);
        bytes.put_u32(stream);
        bytes.put_slice(payload);
        // The client may have gone, which it then notices itself.
        let _ = self.io.write_all(&bytes).await;
    }

    pub(super) async fn headers(&mut self, stream: u32, flags: u8, fields: &[(&str, &str)]) {
        let block = hpack(fields);
        let mut parts = block.chunks(16_384).peekable();
        let mut first = true;
        while let Some(part) = parts.next() {
            let end = if parts.peek().is_none() {
                END_HEADERS
            } else {
                0
            };
            let (kind, flags) = if first {
                (HEADERS, flags | end)
            } else {
                (CONTINUATION, end)
            };
            self.send(kind, flags, stream, part).await;
            first = false;
        }
    }

    /// Headers of an answer that goes on.
    pub(super) async fn begin(&mut self, stream: u32) {
        self.headers(
            stream,
            0,
            &[(":status", "200"), ("content-type", "application/grpc")],
        )
        .await;
    }

    pub(super) async fn trailers(&mut self, stream: u32, fields: &[(&str, &str)]) {
        self.headers(stream, END_STREAM, fields).await;
    }

    /// A whole good answer of one message.
    pub(super) async fn answer(&mut self, stream: u32, message: &[u8]) {
        self.begin(stream).await;
        self.send(DATA, 0, stream, &super::framed(message)).await;
        self.trailers(stream, &[("grpc-status", "0")]).await;
    }

    pub(super) async fn reset(&mut self, stream: u32, reason: u32) {
        self.send(RST_STREAM, 0, stream, &reason.to_be_bytes())
            .await;
    }

    pub(super) async fn goaway(&mut self, last_stream: u32, reason: u32) {
        let mut payload = last_stream.to_be_bytes().to_vec();
        payload.extend(reason.to_be_bytes());
        self.send(GOAWAY, 0, 0, &payload).await;
    }
}

/// Literals without indexing, no Huffman coding.
fn hpack(fields: &[(&str, &str)]) -> Vec<u8> {
    fn text(out: &mut Vec<u8>, text: &str) {
        let mut length = text.len();
        if length < 127 {
            out.push(u8::try_from(length).expect("short"));
        } else {
            out.push(127);
            length -= 127;
            while length >= 128 {
                out.push(u8::try_from(length % 128).expect("below 128") | 128);
                length /= 128;
            }
            out.push(u8::try_from(length).expect("below 128"));
        }
        out.extend_from_slice(text.as_bytes());
    }
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        text(&mut out, name);
        text(&mut out, value);
    }
    out
}

/// What a request was, for a server that behaves.
pub(super) struct Asked {
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    answer: SendResponse<Bytes>,
}

impl Asked {
    /// Answers with one DATA frame after the other as the window allows, then with OK.
    pub(super) async fn reply(mut self, mut body: Bytes) {
        let head = Response::builder()
            .header("content-type", "application/grpc")
            .body(())
            .expect("valid");
        let Ok(mut send) = self.answer.send_response(head, false) else {
            return;
        };
        while !body.is_empty() {
            send.reserve_capacity(body.len());
            let Some(Ok(room)) = poll_fn(|cx| send.poll_capacity(cx)).await else {
                return;
            };
            if send
                .send_data(body.split_to(room.min(body.len())), false)
                .is_err()
            {
                return;
            }
        }
        // The client may have gone.
        let _ = send.send_trailers(fields(&[("grpc-status", "0")]));
    }

    /// Answers with a status and nothing else.
    pub(super) fn refuse(mut self, status: &str) {
        let mut head = Response::new(());
        *head.headers_mut() = fields(&[
            ("content-type", "application/grpc"),
            ("grpc-status", status),
        ]);
        // The client may have gone.
        let _ = self.answer.send_response(head, true);
    }
}

fn fields(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_str(value).expect("text"),
            )
        })
        .collect()
}

/// Serves every connection with `handle` until dropped.
pub(super) fn serve<F, T>(listener: TcpListener, handle: F) -> JoinSet<()>
where
    F: Fn(Asked) -> T + Clone + Send + Sync + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    let mut server = JoinSet::new();
    server.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((io, _)) = listener.accept().await {
            connections.spawn(serve_one(io, handle.clone()));
        }
    });
    server
}

/// Serves one connection.
pub(super) async fn serve_one<I, F, T>(io: I, handle: F)
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    F: Fn(Asked) -> T + Clone + Send + Sync + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    let Ok(mut connection) = h2::server::handshake(io).await else {
        return;
    };
    let mut calls = JoinSet::new();
    while let Some(Ok((request, answer))) = connection.accept().await {
        let handle = handle.clone();
        calls.spawn(async move { handle(collect(request, answer).await).await });
    }
}

async fn collect(request: Request<h2::RecvStream>, answer: SendResponse<Bytes>) -> Asked {
    let (head, mut incoming) = request.into_parts();
    let mut body = BytesMut::new();
    while let Some(Ok(data)) = incoming.data().await {
        body.extend_from_slice(&data);
        // Fails only when the stream is over.
        let _ = incoming.flow_control().release_capacity(data.len());
    }
    Asked {
        path: head.uri.path().to_owned(),
        headers: head.headers,
        body: body.freeze(),
        answer,
    }
}
