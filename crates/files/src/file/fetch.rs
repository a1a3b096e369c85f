//! Brings a split's bytes: the I/O task of a reader, one a split under way.
//!
//! It reads ahead into a bounded channel, unpacks gzip, passes over what a restored position has
//! behind it, and checks that the file is the one that was planned. All decisions about records
//! are the cursor's.

use aqueduct_connector::{Error, Result};
use aqueduct_store::{Reading, Store};
use bytes::Bytes;
use futures::StreamExt;
use tokio::sync::mpsc;

use super::cursor::quoting;
use super::format::Framing;
use super::framer::{Frame, Framer};
use super::gunzip::{Gunzip, GzipError, PIECE_BYTES};
use super::plan::unreadable;
use super::split::{FileRef, Packing};

/// What the task says. Exactly one `End` or `Failed` comes, last.
#[derive(Debug)]
pub(crate) enum Fetched {
    /// The header row, if it was asked for; first.
    Header(Bytes),
    /// Some bytes, at most [`PIECE_BYTES`] and a little.
    Piece(Bytes),
    End,
    Failed(Error),
}

/// What to bring.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) file: FileRef,
    /// First byte wanted, unpacked.
    pub(crate) from: u64,
    /// Bring the header row first, cut by this framing, at most so long.
    pub(crate) header: Option<(Framing, usize)>,
}

/// Whoever listens has lost interest; not a failure.
struct Unwanted;

enum Stop {
    Unwanted,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Unwanted> for Stop {
    fn from(_: Unwanted) -> Self {
        Self::Unwanted
    }
}

pub(crate) async fn run(request: Request, to: mpsc::Sender<Fetched>) {
    let last = match fetch(&request, &to).await {
        Ok(()) => Fetched::End,
        Err(Stop::Failed(error)) => Fetched::Failed(error),
        Err(Stop::Unwanted) => return,
    };
    // The reader may have been closed meanwhile.
    let _ = to.send(last).await;
}

async fn fetch(request: &Request, to: &mpsc::Sender<Fetched>) -> Result<(), Stop> {
    match request.file.packing {
        Packing::Plain => fetch_plain(request, to).await,
        Packing::Gzip => fetch_gzip(request, to).await,
    }
}

async fn fetch_plain(request: &Request, to: &mpsc::Sender<Fetched>) -> Result<(), Stop> {
    let mut header = HeaderSearch::new(request);
    if !header.is_done() {
        let mut reading = open(&request.file, 0).await?;
        while let Some(piece) = reading.next().await {
            if header.push(&piece.map_err(unreadable)?, to).await? {
                break;
            }
        }
        header.end(to).await?;
    }
    let mut reading = open(&request.file, request.from).await?;
    while let Some(piece) = reading.next().await {
        send(piece.map_err(unreadable)?, to).await?;
    }
    Ok(())
}

async fn fetch_gzip(request: &Request, to: &mpsc::Sender<Fetched>) -> Result<(), Stop> {
    let mut header = HeaderSearch::new(request);
    let mut reading = open(&request.file, 0).await?;
    let mut gunzip = Gunzip::new();
    let (mut packed_bytes, mut unpacked_bytes) = (0_u64, 0_u64);
    let mut ended = false;
    while !ended {
        let packed = match reading.next().await {
            Some(piece) => piece.map_err(unreadable)?,
            None => Bytes::new(),
        };
        ended = packed.is_empty();
        let mut rest = &packed[..];
        loop {
            let step = if ended {
                gunzip.finish().map(Some)
            } else {
                gunzip.step(&mut rest)
            };
            let at = packed_bytes + (packed.len() - rest.len()) as u64;
            let unpacked =
                step.map_err(|error| broken(&request.file, error, at, unpacked_bytes))?;
            let Some(unpacked) = unpacked else { break };
            let unpacked = Bytes::from(unpacked);
            if !header.is_done() {
                header.push(&unpacked, to).await?;
            }
            let before = unpacked_bytes;
            unpacked_bytes += unpacked.len() as u64;
            // Passes over what was read before the restore.
            let passed = request
                .from
                .saturating_sub(before)
                .min(unpacked.len() as u64);
            let passed = usize::try_from(passed).expect("at most the piece's length");
            send(unpacked.slice(passed..), to).await?;
            if ended {
                break;
            }
        }
        packed_bytes += packed.len() as u64;
    }
    header.end(to).await?;
    if unpacked_bytes < request.from {
        return Err(Stop::Failed(Error::state(format!(
            "{} holds {unpacked_bytes} bytes unpacked, fewer than the {} already read: it was \
             replaced; put the original file back or start without the checkpoint",
            request.file.shown(),
            request.from
        ))));
    }
    Ok(())
}

fn broken(file: &FileRef, error: GzipError, packed_bytes: u64, unpacked_bytes: u64) -> Error {
    let shown = file.shown();
    let what = match error {
        GzipError::Corrupt => "is not valid gzip",
        GzipError::Truncated => "is cut short: its gzip data ends early",
    };
    Error::data(format!(
        "{shown} {what}, near byte {packed_bytes} of the file (byte {unpacked_bytes} unpacked): \
         fetch the file again, or set the compression if it is not gzip"
    ))
}

async fn send(mut bytes: Bytes, to: &mpsc::Sender<Fetched>) -> Result<(), Unwanted> {
    while !bytes.is_empty() {
        // A store may hand out a whole object at once; the channel counts pieces.
        let piece = bytes.split_to(bytes.len().min(2 * PIECE_BYTES));
        to.send(Fetched::Piece(piece)).await.map_err(|_| Unwanted)?;
    }
    Ok(())
}

/// Opens the file and makes sure that it is the one that was planned.
async fn open(file: &FileRef, from: u64) -> Result<Reading> {
    let (store, name) = match &file.name {
        Some(name) => (
            Store::open(&file.location).map_err(unreadable)?,
            name.clone(),
        ),
        None => Store::open_parent(&file.location).map_err(unreadable)?,
    };
    let meta = store.head(&name).await.map_err(unreadable)?;
    check(file, meta.size_bytes, meta.etag.as_deref())?;
    let reading = store.read(&name, from).await.map_err(unreadable)?;
    // Once more: what was opened counts.
    check(
        file,
        reading.meta().size_bytes,
        reading.meta().etag.as_deref(),
    )?;
    Ok(reading)
}

fn check(file: &FileRef, size_bytes: u64, etag: Option<&str>) -> Result<()> {
    let shown = file.shown();
    let expected = file.size_bytes;
    if size_bytes != expected {
        return Err(Error::state(format!(
            "{shown} changed since the job was planned: it had {expected} bytes and now has \
             {size_bytes}; put the original file back or start without the checkpoint"
        )));
    }
    if let (Some(expected), Some(found)) = (file.etag.as_deref(), etag)
        && expected != found
    {
        return Err(Error::state(format!(
            "{shown} was written again since the job was planned: its size is still {size_bytes} \
             bytes, its version was {expected} and is {found}; put the original file back or \
             start without the checkpoint"
        )));
    }
    Ok(())
}

/// Finds the header row at the beginning of the bytes.
struct HeaderSearch {
    framer: Option<Framer>,
    file: String,
}

impl HeaderSearch {
    fn new(request: &Request) -> Self {
        let framer = request
            .header
            .as_ref()
            .map(|(framing, max_bytes)| Framer::new(quoting(framing), *max_bytes));
        Self {
            framer,
            file: request.file.shown(),
        }
    }

    fn is_done(&self) -> bool {
        self.framer.is_none()
    }

    /// Whether the header was found and sent.
    async fn push(&mut self, bytes: &[u8], to: &mpsc::Sender<Fetched>) -> Result<bool, Stop> {
        if let Some(framer) = &mut self.framer {
            framer.push(bytes);
        }
        self.look(to).await
    }

    async fn end(&mut self, to: &mpsc::Sender<Fetched>) -> Result<(), Stop> {
        if let Some(framer) = &mut self.framer {
            framer.end();
        }
        if self.look(to).await? {
            return Ok(());
        }
        let file = &self.file;
        Err(Stop::Failed(Error::data(format!(
            "{file} has no header row, or one that is too long"
        ))))
    }

    async fn look(&mut self, to: &mpsc::Sender<Fetched>) -> Result<bool, Stop> {
        loop {
            let Some(framer) = &mut self.framer else {
                return Ok(true);
            };
            match framer.next() {
                Frame::Record(range) => {
                    let row = Bytes::copy_from_slice(framer.slice(range));
                    if row.is_empty() {
                        continue;
                    }
                    self.framer = None;
                    to.send(Fetched::Header(row))
                        .await
                        .map_err(|_| Stop::Unwanted)?;
                    return Ok(true);
                }
                Frame::NeedMore | Frame::End => return Ok(false),
                Frame::TooLong | Frame::Skipped | Frame::Unclosed => {
                    let file = &self.file;
                    return Err(Stop::Failed(Error::data(format!(
                        "{file} begins with a header row that is too long or has an unclosed quote"
                    ))));
                }
            }
        }
    }
}
