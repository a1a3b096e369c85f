//! The socket, observed.
//!
//! `h2` tells a stream that its connection got a GOAWAY, but not whether the stream was above the last one that the
//! GOAWAY leaves alive: after the connection ends, streams on both sides of the line fail with the same error. That line
//! decides whether a request may be repeated, so it is read here, from the frames as they pass.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What was seen of a connection so far.
#[derive(Debug)]
pub(super) struct Watch {
    last_stream: AtomicU32,
    received: AtomicU64,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self {
            last_stream: AtomicU32::new(u32::MAX),
            received: AtomicU64::new(0),
        }
    }

    /// Whether the peer has sent a GOAWAY.
    pub(super) fn going_away(&self) -> bool {
        self.last_stream.load(Ordering::Acquire) != u32::MAX
    }

    /// Whether the peer said that it did not and will not process `stream`.
    pub(super) fn excludes(&self, stream: u32) -> bool {
        stream > self.last_stream.load(Ordering::Acquire)
    }

    /// Bytes received; changes with every sign of life.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

/// A stream whose incoming HTTP/2 frames are watched.
#[derive(Debug)]
pub(super) struct Watched<T> {
    io: T,
    frames: Frames,
    watch: Arc<Watch>,
}

impl<T> Watched<T> {
    pub(super) fn new(io: T, watch: Arc<Watch>) -> Self {
        Self {
            io,
            frames: Frames::default(),
            watch,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let result = Pin::new(&mut this.io).poll_read(cx, buf);
        let new = &buf.filled()[before..];
        if !new.is_empty() {
            this.watch
                .received
                .fetch_add(new.len() as u64, Ordering::Relaxed);
            this.frames.see(new, |last| {
                this.watch.last_stream.fetch_min(last, Ordering::Release);
            });
        }
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

const HEADER: usize = 9;
const GOAWAY: u8 = 7;

/// Follows frame boundaries; knows nothing of a frame but its length, its type and, of a GOAWAY, its first four bytes.
#[derive(Debug, Default)]
struct Frames {
    /// Header, then the first four bytes of a GOAWAY.
    head: [u8; HEADER + 4],
    have: usize,
    /// Payload still to be passed over.
    skip: usize,
}

impl Frames {
    fn see(&mut self, mut bytes: &[u8], mut goaway: impl FnMut(u32)) {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let passed = self.skip.min(bytes.len());
                self.skip -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            // Whole headers are read where they lie; the rest is collected byte by byte.
            if self.have == 0
                && let [a, b, c, kind, _, _, _, _, _, rest @ ..] = bytes
                && *kind != GOAWAY
            {
                self.skip = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
                bytes = rest;
                continue;
            }
            self.head[self.have] = bytes[0];
            self.have += 1;
            bytes = &bytes[1..];
            if self.have < HEADER {
                continue;
            }
            let length = usize::from(self.head[0]) << 16
                | usize::from(self.head[1]) << 8
                | usize::from(self.head[2]);
            if self.head[3] != GOAWAY || length < 4 {
                self.skip = length;
                self.have = 0;
            } else if self.have == HEADER + 4 {
                let last = u32::from_be_bytes([
                    self.head[HEADER] & 0x7f,
                    self.head[HEADER + 1],
                    self.head[HEADER + 2],
                    self.head[HEADER + 3],
                ]);
                goaway(last);
                self.skip = length - 4;
                self.have = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        let mut bytes = vec![length[1], length[2], length[3], kind, 0, 0, 0, 0, 1];
        bytes.extend_from_slice(payload);
        bytes
    }

    proptest! {
        #[test]
        fn every_goaway_is_seen_wherever_reads_are_cut(
            frames in prop::collection::vec((0u8..10, prop::collection::vec(any::<u8>(), 0..40)), 0..20),
            cuts in prop::collection::vec(1usize..30, 1..200),
        ) {
            let mut wire = Vec::new();
            let mut expected = Vec::new();
            for (kind, payload) in &frames {
                wire.extend(frame(*kind, payload));
                if *kind == GOAWAY && payload.len() >= 4 {
                    expected.push(u32::from_be_bytes([payload[0] & 0x7f, payload[1], payload[2], payload[3]]));
                }
            }
            let mut seen = Vec::new();
            let mut parser = Frames::default();
            let (mut rest, mut cut) = (wire.as_slice(), cuts.iter().cycle());
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(*cut.next().expect("endless")));
                parser.see(now, |last| seen.push(last));
                rest = later;
            }
            prop_assert_eq!(seen, expected);
        }
    }

    #[test]
    fn a_later_goaway_may_only_lower_the_line() {
        let watch = Watch::new();
        assert!(!watch.going_away() && !watch.excludes(u32::MAX >> 1));
        watch.last_stream.fetch_min(7, Ordering::Release);
        watch.last_stream.fetch_min(9, Ordering::Release);
        assert!(watch.going_away() && watch.excludes(9) && !watch.excludes(7));
    }
}
