//! Cuts bytes into records: lines, or CSV rows whose quoted fields may span lines.
//!
//! A pure core. Bytes go in piece by piece, frames come out as ranges of the buffer; a frame never
//! holds its line end. Most lines cost one search for the line end, and one for a quote where
//! quotes matter; only a row with quotes is walked byte by byte.
//!
//! # Invariants
//!
//! - However the bytes are cut into pieces, the frames are the same.
//! - The buffer holds at most one record of the greatest length and one piece.

use std::ops::Range;

use memchr::{memchr, memchr_iter};

/// How quotes hide line ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quoting {
    pub(crate) delimiter: u8,
    pub(crate) quote: u8,
}

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A record without its line end, at this place of [`Framer::slice`]. Consumed.
    Record(Range<usize>),
    /// A record is longer than allowed; nothing is consumed yet, [`Frame::Skipped`] follows.
    TooLong,
    /// The rest of a line was passed over.
    Skipped,
    /// A quote is never closed, or not within the greatest length. The line that holds it is
    /// consumed, without what it would span.
    Unclosed,
    /// More bytes, or the end of input, must come first.
    NeedMore,
    /// Nothing is left.
    End,
}

#[derive(Debug)]
pub(crate) struct Framer {
    buffer: Vec<u8>,
    /// Where the next frame begins.
    at: usize,
    /// No line end is between `at` and here.
    searched: usize,
    /// Bytes consumed before `at`, over all.
    consumed: u64,
    /// Line ends consumed.
    lines: u64,
    ended: bool,
    max_bytes: usize,
    quoting: Option<Quoting>,
    /// A row with quotes under way: how far it was walked, and in which state.
    walk: Option<(usize, Walk)>,
    /// Passing over the rest of a line.
    skipping: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Walk {
    FieldStart,
    Bare,
    Quoted,
    /// A quote inside a quoted field: its end, or the first half of an escaped quote.
    MaybeClosed,
}

impl Framer {
    pub(crate) fn new(quoting: Option<Quoting>, max_bytes: usize) -> Self {
        Self {
            buffer: Vec::new(),
            at: 0,
            searched: 0,
            consumed: 0,
            lines: 0,
            ended: false,
            max_bytes,
            quoting,
            walk: None,
            skipping: false,
        }
    }

    /// Starts by passing over the rest of a line.
    pub(crate) fn skip_line(&mut self) {
        self.skipping = true;
    }

    /// Bytes consumed so far, line ends included.
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Line ends consumed so far.
    pub(crate) fn lines(&self) -> u64 {
        self.lines
    }

    /// Takes one more piece of input.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        if self.at > 0 {
            self.buffer.drain(..self.at);
            self.searched -= self.at;
            if let Some((walked, _)) = &mut self.walk {
                *walked -= self.at;
            }
            self.at = 0;
        }
        self.buffer.extend_from_slice(piece);
    }

    /// No further piece will come.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// The bytes of a frame, until the next [`push`](Self::push).
    pub(crate) fn slice(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// The next frame.
    pub(crate) fn next(&mut self) -> Frame {
        if self.skipping {
            return self.skip();
        }
        if self.walk.is_some() {
            return self.walk();
        }
        let Some(found) = memchr(b'\n', &self.buffer[self.searched..]) else {
            self.searched = self.buffer.len();
            return self.last_line();
        };
        let line_end = self.searched + found;
        if self.has_quote(line_end) {
            self.walk = Some((self.at, Walk::FieldStart));
            return self.walk();
        }
        if line_end - self.at > self.max_bytes {
            self.skipping = true;
            return Frame::TooLong;
        }
        self.take(line_end, line_end + 1, 1)
    }

    fn has_quote(&self, line_end: usize) -> bool {
        let line = &self.buffer[self.at..line_end];
        self.quoting
            .is_some_and(|quoting| memchr(quoting.quote, line).is_some())
    }

    /// No line end is in sight.
    fn last_line(&mut self) -> Frame {
        let len = self.buffer.len() - self.at;
        if len > self.max_bytes {
            self.skipping = true;
            return Frame::TooLong;
        }
        if !self.ended {
            return Frame::NeedMore;
        }
        if len == 0 {
            return Frame::End;
        }
        let end = self.buffer.len();
        if self.has_quote(end) {
            self.walk = Some((self.at, Walk::FieldStart));
            return self.walk();
        }
        self.take(end, end, 0)
    }

    fn walk(&mut self) -> Frame {
        let (Some((mut at, mut state)), Some(quoting)) = (self.walk, self.quoting) else {
            return Frame::NeedMore;
        };
        while at < self.buffer.len() {
            let byte = self.buffer[at];
            if byte == b'\n' && state != Walk::Quoted {
                self.walk = None;
                if at - self.at > self.max_bytes {
                    return self.unclosed();
                }
                let inner = memchr_iter(b'\n', &self.buffer[self.at..at]).count() as u64;
                return self.take(at, at + 1, inner + 1);
            }
            state = match state {
                Walk::FieldStart | Walk::Bare if byte == quoting.delimiter => Walk::FieldStart,
                Walk::FieldStart if byte == quoting.quote => Walk::Quoted,
                Walk::FieldStart | Walk::Bare => Walk::Bare,
                Walk::Quoted if byte == quoting.quote => Walk::MaybeClosed,
                Walk::Quoted => match memchr(quoting.quote, &self.buffer[at..]) {
                    Some(inside) => {
                        at += inside;
                        continue;
                    }
                    None => {
                        at = self.buffer.len();
                        break;
                    }
                },
                Walk::MaybeClosed if byte == quoting.quote => Walk::Quoted,
                Walk::MaybeClosed if byte == quoting.delimiter => Walk::FieldStart,
                Walk::MaybeClosed => Walk::Bare,
            };
            at += 1;
        }
        self.walk = Some((at, state));
        if at - self.at > self.max_bytes {
            self.walk = None;
            return self.unclosed();
        }
        if !self.ended {
            return Frame::NeedMore;
        }
        self.walk = None;
        if state == Walk::Quoted {
            return self.unclosed();
        }
        let inner = memchr_iter(b'\n', &self.buffer[self.at..at]).count() as u64;
        self.take(at, at, inner)
    }

    /// Gives up on a quoted row: only its first line is lost.
    fn unclosed(&mut self) -> Frame {
        match memchr(b'\n', &self.buffer[self.at..]) {
            Some(found) if found <= self.max_bytes => {
                let end = self.at + found;
                self.take(end, end + 1, 1);
                Frame::Unclosed
            }
            None if self.ended => {
                let end = self.buffer.len();
                self.take(end, end, 0);
                Frame::Unclosed
            }
            _ => {
                self.skipping = true;
                Frame::TooLong
            }
        }
    }

    fn skip(&mut self) -> Frame {
        let from = self.searched.max(self.at);
        let (end, lines) = match memchr(b'\n', &self.buffer[from..]) {
            Some(found) => (from + found + 1, 1),
            None => (self.buffer.len(), 0),
        };
        self.take(end, end, lines);
        if lines == 0 && !self.ended {
            return Frame::NeedMore;
        }
        self.skipping = false;
        Frame::Skipped
    }

    /// Consumes up to `next`; the frame ends at `end`, before a carriage return there.
    fn take(&mut self, end: usize, next: usize, lines: u64) -> Frame {
        let start = self.at;
        self.consumed += (next - start) as u64;
        self.lines += lines;
        self.at = next;
        self.searched = next;
        let cut = end > start && next > end && self.buffer[end - 1] == b'\r';
        Frame::Record(start..end - usize::from(cut))
    }
}

#[cfg(test)]
mod tests;
