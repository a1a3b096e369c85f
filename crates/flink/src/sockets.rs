//! Closes what a copy of the library would leave open behind it.
//!
//! Tokio makes a pair of sockets for signals with its first runtime and keeps it in a static, for as long as a process lives. A
//! copy of this library lives as long as the class loader of a job: without this, each job would leave two descriptors in every
//! process of its cluster. Tokio has no switch for it, so the linker sends the library's calls of `socketpair` here, and
//! the pairs that are still there when the JVM unloads the library are closed.
//!
//! # Invariants
//!
//! - A descriptor is closed only if it is still the socket that was made here: one that its owner closed may have become
//!   somebody else's.

use std::ffi::{c_int, c_long, c_void};
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

/// What was made here. Tokio makes one pair; more than a few are somebody's who closes them.
static MADE: Mutex<Vec<Socket>> = Mutex::new(Vec::new());
const MOST: usize = 16;

/// A descriptor, and the device and inode that it stood for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Socket {
    descriptor: c_int,
    identity: (u64, u64),
}

impl Socket {
    fn of(descriptor: c_int) -> Option<Self> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `stat` is of the size that the call fills; any number may be asked about.
        if unsafe { libc::fstat(descriptor, stat.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: filled, since the call succeeded.
        let stat = unsafe { stat.assume_init() };
        Some(Self {
            descriptor,
            identity: (stat.st_dev, stat.st_ino),
        })
    }
}

fn remember(pair: [c_int; 2]) {
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    made.retain(|socket| Socket::of(socket.descriptor) == Some(*socket));
    if made.len() < MOST {
        made.extend(pair.into_iter().filter_map(Socket::of));
    }
}

fn close_all() {
    for socket in MADE
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .drain(..)
    {
        if Socket::of(socket.descriptor) == Some(socket) {
            // SAFETY: it is the socket that was made here, and nothing of the library runs any more.
            unsafe { libc::close(socket.descriptor) };
        }
    }
}

/// `socketpair` for everything that is linked into the library (`build.rs`).
///
/// # Safety
///
/// As for `socketpair`: `pair` points to two numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __wrap_socketpair(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    pair: *mut c_int,
) -> c_int {
    // SAFETY: the caller's arguments, as they are.
    let result = unsafe {
        libc::syscall(
            libc::SYS_socketpair,
            c_long::from(domain),
            c_long::from(kind),
            c_long::from(protocol),
            pair,
        )
    };
    if result != 0 {
        return -1;
    }
    // SAFETY: the call succeeded, so both are set.
    remember(unsafe { [*pair, *pair.add(1)] });
    0
}

/// The JVM is about to unload the library: its class loader was collected, so no job of it runs.
#[unsafe(no_mangle)]
pub extern "system" fn JNI_OnUnload(_vm: *mut c_void, _reserved: *mut c_void) {
    close_all();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> [c_int; 2] {
        let mut pair = [0; 2];
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: there are two numbers.
        let result = unsafe { __wrap_socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) };
        assert_eq!(result, 0);
        pair
    }

    /// One test, because the books are the process's.
    #[test]
    fn sockets_that_are_left_are_closed_and_those_of_others_are_not() {
        // SAFETY: a kind that does not exist, and room for two numbers.
        let refused = unsafe { __wrap_socketpair(-1, 0, 0, [0; 2].as_mut_ptr()) };
        assert_eq!(refused, -1);

        let (left, closed) = (pair(), pair());
        // SAFETY: made above, by this test.
        unsafe { libc::close(closed[0]) };
        // The lowest free number: the one just closed, unless another test was quicker.
        let other = std::fs::File::open("/proc/self/stat").expect("Linux has it");
        close_all();
        assert_eq!(left.map(|one| Socket::of(one).is_some()), [false; 2]);
        assert!(Socket::of(closed[1]).is_none());
        assert!(other.metadata().is_ok(), "it belongs to somebody else");
    }
}
