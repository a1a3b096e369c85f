//! Unpacks gzip as the bytes come: any number of members, output in bounded pieces.

use std::io::{self, Write};

use flate2::write::MultiGzDecoder;

/// Unpacked bytes a piece, give or take one step of the decoder (32 KiB).
pub(crate) const PIECE_BYTES: usize = 512 * 1024;

/// Why unpacking failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GzipError {
    /// The bytes are not gzip, or do not match their checksum.
    Corrupt,
    /// The file ends inside a member.
    Truncated,
}

pub(crate) struct Gunzip {
    decoder: MultiGzDecoder<Vec<u8>>,
    packed_any: bool,
}

impl Gunzip {
    pub(crate) fn new() -> Self {
        Self {
            decoder: MultiGzDecoder::new(Vec::new()),
            packed_any: false,
        }
    }

    /// Unpacks from the front of `packed` until a piece is full or nothing is left.
    pub(crate) fn step(&mut self, packed: &mut &[u8]) -> Result<Option<Vec<u8>>, GzipError> {
        self.packed_any |= !packed.is_empty();
        while !packed.is_empty() {
            let taken = self.decoder.write(packed).map_err(|error| sort(&error))?;
            *packed = &packed[taken..];
            if self.decoder.get_ref().len() >= PIECE_BYTES {
                return Ok(Some(self.take()));
            }
        }
        Ok(None)
    }

    /// What is left, once all packed bytes were given. An empty file is empty.
    pub(crate) fn finish(&mut self) -> Result<Vec<u8>, GzipError> {
        if self.packed_any {
            self.decoder
                .try_finish()
                .map_err(|_| GzipError::Truncated)?;
        }
        Ok(self.take())
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::replace(
            self.decoder.get_mut(),
            Vec::with_capacity(PIECE_BYTES + 64 * 1024),
        )
    }
}

fn sort(error: &io::Error) -> GzipError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => GzipError::Truncated,
        _ => GzipError::Corrupt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    fn packed(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).expect("memory");
        encoder.finish().expect("memory")
    }

    fn unpack(packed: &[u8], step_bytes: usize) -> Result<Vec<u8>, GzipError> {
        let mut gunzip = Gunzip::new();
        let mut out = Vec::new();
        for mut piece in packed.chunks(step_bytes) {
            while let Some(unpacked) = gunzip.step(&mut piece)? {
                assert!(
                    unpacked.len() <= PIECE_BYTES + 64 * 1024,
                    "{}",
                    unpacked.len()
                );
                out.extend(unpacked);
            }
        }
        out.extend(gunzip.finish()?);
        Ok(out)
    }

    #[test]
    fn members_follow_each_other_and_pieces_stay_small() {
        // Packs a thousandfold, so one packed piece is many unpacked ones.
        let content = vec![b'x'; 5_000_000];
        let mut file = packed(&content);
        file.extend(packed(b""));
        file.extend(packed(b"end"));
        let expected = [&content[..], b"end"].concat();
        for step in [1, 7, 100_000] {
            assert!(
                unpack(&file, step) == Ok(expected.clone()),
                "steps of {step}"
            );
        }
        assert_eq!(unpack(b"", 1), Ok(Vec::new()));
    }

    #[test]
    fn every_truncation_is_noticed() {
        let first = packed(b"hello, hello, hello");
        let file = [first.clone(), packed(b"world")].concat();
        for len in 1..file.len() {
            let result = unpack(&file[..len], 1000);
            if len == first.len() {
                assert!(result.is_ok(), "a whole member");
            } else {
                assert_eq!(result, Err(GzipError::Truncated), "cut at {len}");
            }
        }
    }

    #[test]
    fn damage_is_noticed() {
        let file = packed(&(0..2000_u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>());
        assert!(unpack(b"not gzip at all", 1000).is_err());
        // A flipped bit in the body or the checksum; the header has fields that nobody checks.
        for at in (12..file.len())
            .step_by(17)
            .chain(file.len() - 8..file.len())
        {
            let mut damaged = file.clone();
            damaged[at] ^= 4;
            assert!(unpack(&damaged, 1000).is_err(), "byte {at}");
        }
        let mut garbage = file;
        garbage.extend(b"garbage behind the member");
        assert!(unpack(&garbage, 1000).is_err());
    }
}
