//! Why a store or a lock refused, one variant for each thing a caller can do about it.
//!
//! Every message holds the location without credentials and query strings, and ends with what to
//! do. Texts of object services are cut to their first line before they become a cause: their
//! bodies can quote an access key.

use std::fmt;
use std::io;

use crate::lock::Holder;

/// What was being done when an error arose.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Making or checking the directory.
    Open,
    /// Writing an object.
    Write,
    /// Reading an object or its metadata.
    Read,
    /// Listing a directory.
    List,
    /// Deleting an object or a directory.
    Delete,
    /// Taking, renewing or giving up a lock.
    Lock,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "opening",
            Self::Write => "writing",
            Self::Read => "reading",
            Self::List => "listing",
            Self::Delete => "deleting",
            Self::Lock => "locking",
        })
    }
}

/// Why a store refused.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The location cannot be understood.
    #[error("location {url} cannot be used: {reason}")]
    InvalidLocation {
        /// The location, redacted.
        url: String,
        /// What is wrong and what to write instead.
        reason: String,
    },

    /// The location needs a part of this crate that was not compiled in.
    #[error(
        "location {url} needs the cargo feature `{feature}` of aqueduct-store, which this build \
         lacks: build with it or use a local path"
    )]
    FeatureOff {
        /// The location, redacted.
        url: String,
        /// The feature to switch on.
        feature: &'static str,
    },

    /// An object name that no store could hold.
    #[error("{name:?} cannot name an object under {url}: {reason}")]
    InvalidName {
        /// The store's location.
        url: String,
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// There is nothing at this location.
    #[error("{url} does not exist: check the name, or whether something deleted it")]
    NotFound {
        /// The location.
        url: String,
    },

    /// The object was to be created and is already there; it is unchanged.
    ///
    /// Object services may answer so to a repeated request whose first answer was lost: compare
    /// the content where that matters.
    #[error("{url} already exists: choose another name or delete it")]
    AlreadyExists {
        /// The location.
        url: String,
    },

    /// A directory was needed and a file is in the way, or the other way round.
    #[error("{operation} {url} failed: a file is where a directory is needed, or the reverse")]
    WrongKind {
        /// The location.
        url: String,
        /// What was being done.
        operation: Operation,
        /// The system's answer.
        source: io::Error,
    },

    /// The user running this process, or the credentials, may not do that.
    #[error("no permission for {operation} {url}: grant it or choose another location")]
    PermissionDenied {
        /// The location.
        url: String,
        /// What was being done.
        operation: Operation,
        /// The system's or service's answer.
        source: io::Error,
    },

    /// The file system is mounted read-only.
    #[error("{operation} {url} failed, its file system is read-only: choose a writable location")]
    ReadOnly {
        /// The location.
        url: String,
        /// What was being done.
        operation: Operation,
        /// The system's answer.
        source: io::Error,
    },

    /// The disk or the quota is full; nothing was written.
    #[error("no space left for {operation} {url}: free some or choose another location")]
    NoSpace {
        /// The location.
        url: String,
        /// What was being done.
        operation: Operation,
        /// The system's answer.
        source: io::Error,
    },

    /// The object is larger than the caller allows.
    #[error(
        "{url} holds {size_bytes} bytes where at most {limit_bytes} are expected: is it the right file?"
    )]
    TooLarge {
        /// The location.
        url: String,
        /// The object's size.
        size_bytes: u64,
        /// The caller's limit.
        limit_bytes: u64,
    },

    /// A range or offset lies beyond the object's end: it shrank or another was meant.
    #[error(
        "{url} ends at byte {size_bytes}, before byte {wanted_bytes} that was asked for: it was cut or replaced"
    )]
    OutOfRange {
        /// The location.
        url: String,
        /// The object's size.
        size_bytes: u64,
        /// The end of the range that was asked for.
        wanted_bytes: u64,
    },

    /// More objects than a listing returns.
    #[error("{url} holds more than {limit} objects: delete some or use a narrower prefix")]
    TooMany {
        /// The location.
        url: String,
        /// [`LIST_LIMIT`](crate::LIST_LIMIT).
        limit: usize,
    },

    /// Any other failure of the system or the service. A write may or may not have taken effect,
    /// but no object is half written.
    #[error("{operation} {url} failed")]
    Io {
        /// The location.
        url: String,
        /// What was being done.
        operation: Operation,
        /// The system's or service's answer.
        source: io::Error,
    },
}

impl StoreError {
    /// Whether there was nothing at the location.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether the object to create was already there.
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::AlreadyExists { .. })
    }

    /// Whether trying the same again later may succeed without anyone acting: only failures of
    /// the transport or the service qualify.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Io { .. })
    }

    /// Sorts an answer of the operating system.
    pub(crate) fn from_io(source: io::Error, operation: Operation, url: impl Into<String>) -> Self {
        use io::ErrorKind as Kind;
        let url = url.into();
        match source.kind() {
            Kind::NotFound => Self::NotFound { url },
            Kind::AlreadyExists => Self::AlreadyExists { url },
            Kind::PermissionDenied => Self::PermissionDenied {
                url,
                operation,
                source,
            },
            Kind::ReadOnlyFilesystem => Self::ReadOnly {
                url,
                operation,
                source,
            },
            Kind::StorageFull | Kind::QuotaExceeded => Self::NoSpace {
                url,
                operation,
                source,
            },
            Kind::NotADirectory | Kind::IsADirectory | Kind::DirectoryNotEmpty => Self::WrongKind {
                url,
                operation,
                source,
            },
            _ => Self::Io {
                url,
                operation,
                source,
            },
        }
    }

    /// Sorts an answer of an object service.
    pub(crate) fn from_object(
        error: object_store::Error,
        operation: Operation,
        url: impl Into<String>,
    ) -> Self {
        use object_store::Error as Remote;
        let url = url.into();
        match error {
            Remote::NotFound { .. } => Self::NotFound { url },
            Remote::AlreadyExists { .. } | Remote::Precondition { .. } => {
                Self::AlreadyExists { url }
            }
            Remote::PermissionDenied { .. } | Remote::Unauthenticated { .. } => {
                let source = io::Error::new(io::ErrorKind::PermissionDenied, first_line(&error));
                Self::PermissionDenied {
                    url,
                    operation,
                    source,
                }
            }
            other => Self::Io {
                url,
                operation,
                source: io::Error::other(first_line(&other)),
            },
        }
    }
}

/// The first line of a service's answer up to its body, without query strings.
fn first_line(error: &dyn fmt::Display) -> String {
    const LIMIT_CHARS: usize = 300;
    let text = error.to_string();
    let line = text.split(['\n', '<', '{']).next().unwrap_or_default();
    let mut shown = String::new();
    let mut in_query = false;
    for character in line.chars().take(LIMIT_CHARS) {
        match character {
            '?' => in_query = true,
            c if c.is_whitespace() => in_query = false,
            _ => {}
        }
        if !in_query {
            shown.push(character);
        }
    }
    shown.trim_end_matches([':', ' ']).to_owned()
}

/// Why a lock was not given.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process, or another part of this one, holds it.
    #[error("{url} is in use by {holder}: stop it or use another location{hint}")]
    Held {
        /// The lock's location.
        url: String,
        /// Who holds it, as far as it said.
        holder: Box<Holder>,
        /// What else helps, possibly empty.
        hint: &'static str,
    },

    /// The object under the lock's name is not a lease of ours.
    #[error("{url} is not a lease: delete it if nothing else needs it, or use another location")]
    NotALease {
        /// The lock's location.
        url: String,
    },

    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_answers_becomes_what_the_user_can_do() {
        let sorted = |kind: io::ErrorKind| {
            StoreError::from_io(kind.into(), Operation::Write, "/data/chk").to_string()
        };
        for (kind, part) in [
            (io::ErrorKind::StorageFull, "no space left"),
            (io::ErrorKind::QuotaExceeded, "no space left"),
            (io::ErrorKind::ReadOnlyFilesystem, "read-only"),
            (io::ErrorKind::PermissionDenied, "no permission"),
            (io::ErrorKind::NotADirectory, "a file is where a directory"),
            (io::ErrorKind::NotFound, "does not exist"),
            (io::ErrorKind::TimedOut, "writing /data/chk failed"),
        ] {
            let text = sorted(kind);
            assert!(
                text.contains(part) && text.contains("/data/chk"),
                "{kind:?}: {text}"
            );
        }
    }

    #[test]
    fn bodies_and_queries_of_a_service_are_cut() {
        let text = "Error performing PUT https://host/b/o?sig=SECRET in 3ms, after 1 retries: \
                    Server returned 403: <Error><AWSAccessKeyId>AKIASECRET</AWSAccessKeyId>";
        let shown = first_line(&text);
        assert!(!shown.contains("SECRET"), "{shown}");
        assert!(shown.contains("https://host/b/o in 3ms"), "{shown}");
        assert!(shown.ends_with("403"), "{shown}");
    }
}
