//! The service's side of open streams: their limits, what they hold, how they end.

use std::task::Waker;

use tonic::Code;

use super::clock::Nanos;

pub(crate) type StreamId = u64;

/// How a stream is made to end.
#[derive(Debug, Clone)]
pub(crate) enum End {
    /// `Ok` is the clean end.
    Status(Code, String),
    Reset,
    Cut,
}

/// What a stream does with what it should send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Live,
    /// Takes nothing, sends nothing, reads nothing.
    Silent,
    /// Takes messages and loses them on the way: a half-open connection.
    Swallowing,
}

/// The service's side of one streaming pull.
pub(crate) struct Stream {
    /// 0: no limit.
    pub(crate) max_messages: u64,
    /// 0: no limit.
    pub(crate) max_bytes: u64,
    out_messages: u64,
    out_bytes: u64,
    pub(crate) deadline: Nanos,
    pub(crate) opened: Nanos,
    pub(crate) mode: Mode,
    pub(crate) end: Option<End>,
    waker: Option<Waker>,
}

impl Stream {
    pub(crate) fn new(max_messages: i64, max_bytes: i64, deadline: Nanos, opened: Nanos) -> Self {
        Self {
            max_messages: u64::try_from(max_messages).unwrap_or(0),
            max_bytes: u64::try_from(max_bytes).unwrap_or(0),
            out_messages: 0,
            out_bytes: 0,
            deadline,
            opened,
            mode: Mode::Live,
            end: None,
            waker: None,
        }
    }

    pub(crate) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub(crate) fn wait(&mut self, waker: &Waker) {
        if !self.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            self.waker = Some(waker.clone());
        }
    }

    /// Takes a permit for a message of so many bytes.
    pub(crate) fn charge(&mut self, bytes: usize) {
        self.out_messages += 1;
        self.out_bytes += bytes as u64;
    }

    /// Gives a permit back.
    pub(crate) fn refund(&mut self, bytes: usize) {
        self.out_messages -= 1;
        self.out_bytes -= bytes as u64;
        self.wake();
    }

    pub(crate) fn room(&self) -> Room {
        let left = |limit: u64, out: u64| match limit {
            0 => u64::MAX,
            limit => limit.saturating_sub(out),
        };
        Room {
            messages: left(self.max_messages, self.out_messages),
            bytes: left(self.max_bytes, self.out_bytes),
            empty: self.out_messages == 0,
        }
    }
}

/// What a holder still takes.
pub(crate) struct Room {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Nothing is out, so even a message above the bytes goes.
    pub(crate) empty: bool,
}

impl Room {
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        self.messages > 0 && (self.empty || bytes as u64 <= self.bytes)
    }

    pub(crate) fn fill(&mut self, bytes: usize) {
        self.messages -= 1;
        self.bytes = self.bytes.saturating_sub(bytes as u64);
        self.empty = false;
    }
}
