//! The names in a zip file (a jar is one), read from its central directory. Nothing is unpacked.

use std::fs;
use std::io;
use std::path::Path;

/// What begins the end record, and each record of the directory.
const END: u32 = 0x0605_4b50;
const ENTRY: u32 = 0x0201_4b50;

const END_BYTES: usize = 22;
const ENTRY_BYTES: usize = 46;

/// The names of the entries, folders included, in their order.
///
/// # Errors
///
/// When the file cannot be read or is no complete zip file.
pub(crate) fn names(file: &Path) -> io::Result<Vec<String>> {
    let bytes = fs::read(file)?;
    read(&bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no complete zip file"))
}

fn read(bytes: &[u8]) -> Option<Vec<String>> {
    // A comment of unknown length may follow the end record.
    let last = bytes.len().checked_sub(END_BYTES)?;
    let end = (0..=last)
        .rev()
        .find(|at| number(bytes, *at, 4) == Some(END))?;
    let count = number(bytes, end + 10, 2)?;
    let mut at = number(bytes, end + 16, 4)? as usize;
    let mut names = Vec::new();
    for _ in 0..count {
        if number(bytes, at, 4)? != ENTRY {
            return None;
        }
        let length = |offset| number(bytes, at + offset, 2).map(|it| it as usize);
        let (name, extra, comment) = (length(28)?, length(30)?, length(32)?);
        let start = at + ENTRY_BYTES;
        let name_end = start + name;
        names.push(String::from_utf8_lossy(bytes.get(start..name_end)?).into_owned());
        at = name_end + extra + comment;
    }
    Some(names)
}

/// A number of so many bytes, least significant first.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(length)?)?;
    Some(
        bytes
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u32::from(*byte)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory without the files' bytes, which nobody reads.
    fn archive(names: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for name in names {
            bytes.extend(ENTRY.to_le_bytes());
            bytes.extend([0; 24]);
            bytes.extend((name.len() as u16).to_le_bytes());
            bytes.extend([0; 16]);
            bytes.extend(name.as_bytes());
        }
        bytes.extend(END.to_le_bytes());
        bytes.extend([0; 6]);
        bytes.extend((names.len() as u16).to_le_bytes());
        bytes.extend([0; 10]);
        bytes
    }

    #[test]
    fn every_name_is_read() {
        let names = ["META-INF/", "a/b.class"];
        assert_eq!(read(&archive(&names)).expect("it is complete"), names);
        let mut commented = archive(&names);
        commented.extend(b"a comment");
        assert_eq!(read(&commented).expect("it is complete"), names);
    }

    #[test]
    fn a_file_that_is_cut_is_no_empty_archive() {
        let whole = archive(&["META-INF/", "a/b.class"]);
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length]), None, "{length} bytes");
        }
        assert_eq!(read(&whole[1..]), None);
    }
}
