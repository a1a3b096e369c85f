//! Errors that cross the contract, and chains of service statuses.
//!
//! A connector's own error types may be as rich as they like; at the contract they become an [`Error`], which says what
//! a host can do about it ([`ErrorKind`]), in words for a person, with the cause attached. Statuses of a service travel
//! as a [`StatusChain`], a concrete type, so that a classifier finds them however deep they sit.

use std::error::Error as StdError;
use std::fmt;

/// The contract's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a host can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting is wrong. Restarting changes nothing.
    Config,
    /// Stored state cannot be read or does not fit. Restarting changes nothing.
    State,
    /// The input itself is broken: a malformed line, a damaged file. Restarting reads the same again.
    Data,
    /// A service, a file or the network failed. A restart from the last checkpoint may help.
    Io,
    /// User code (a serializer, a function, a handler) refused or failed. A restart may help.
    User,
    /// An invariant of ours broke. Please report it.
    Bug,
}

impl ErrorKind {
    /// Whether restarting from the last checkpoint could end differently.
    #[must_use]
    pub const fn restartable(self) -> bool {
        match self {
            Self::Config | Self::State | Self::Data => false,
            Self::Io | Self::User | Self::Bug => true,
        }
    }
}

/// An error as a host sees it. `Display` prints this level only; walk `source()` or use [`Error::report`] for the rest.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
    suppressed: Vec<Error>,
}

impl Error {
    /// An error of `kind` with a sentence for a person: what happened, to which resource or option, and what to do.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            source: None,
            suppressed: Vec::new(),
        }))
    }

    /// A wrong setting.
    #[must_use]
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    /// State that cannot be used.
    #[must_use]
    pub fn state(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::State, message)
    }

    /// Input that is broken wherever and however often it is read.
    #[must_use]
    pub fn data(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Data, message)
    }

    /// A failure outside this process.
    #[must_use]
    pub fn io(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Io, message)
    }

    /// A failure of user code.
    #[must_use]
    pub fn user(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::User, message)
    }

    /// A broken invariant of ours.
    #[must_use]
    pub fn bug(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Bug, message)
    }

    /// Attaches the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Attaches a failure met while cleaning up after this one.
    pub fn suppress(&mut self, other: Self) {
        self.0.suppressed.push(other);
    }

    /// Failures met while cleaning up after this one.
    #[must_use]
    pub fn suppressed(&self) -> &[Self] {
        &self.0.suppressed
    }

    /// What a host can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The nearest [`StatusChain`] among this error's causes.
    #[must_use]
    pub fn statuses(&self) -> Option<&StatusChain> {
        let mut next = self.source();
        while let Some(cause) = next {
            if let Some(chain) = cause.downcast_ref::<StatusChain>() {
                return Some(chain);
            }
            next = cause.source();
        }
        None
    }

    /// This error and all its causes in one line, outermost first.
    #[must_use]
    pub fn report(&self) -> String {
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(cause) = next {
            let part = cause.to_string();
            if !text.ends_with(&part) {
                text.push_str(": ");
                text.push_str(&part);
            }
            next = cause.source();
        }
        for other in &self.0.suppressed {
            text.push_str("; while closing: ");
            text.push_str(&other.report());
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} error: {}", self.0.kind, self.report())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

macro_rules! codes {
    ($($variant:ident = $number:literal, $name:literal;)*) => {
        /// A canonical status code, as gRPC numbers and names it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "the names are the documentation, as the protocol gives them")]
        pub enum Code { $($variant = $number,)* }

        impl Code {
            /// All codes.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// From the number on the wire; anything unheard of reads as `Unknown`, as gRPC asks.
            #[must_use]
            pub const fn from_number(number: i32) -> Self {
                match number { $($number => Self::$variant,)* _ => Self::Unknown }
            }

            /// The name in capitals, as documentation and metrics use it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

codes! {
    Ok = 0, "OK";
    Cancelled = 1, "CANCELLED";
    Unknown = 2, "UNKNOWN";
    InvalidArgument = 3, "INVALID_ARGUMENT";
    DeadlineExceeded = 4, "DEADLINE_EXCEEDED";
    NotFound = 5, "NOT_FOUND";
    AlreadyExists = 6, "ALREADY_EXISTS";
    PermissionDenied = 7, "PERMISSION_DENIED";
    ResourceExhausted = 8, "RESOURCE_EXHAUSTED";
    FailedPrecondition = 9, "FAILED_PRECONDITION";
    Aborted = 10, "ABORTED";
    OutOfRange = 11, "OUT_OF_RANGE";
    Unimplemented = 12, "UNIMPLEMENTED";
    Internal = 13, "INTERNAL";
    Unavailable = 14, "UNAVAILABLE";
    DataLoss = 15, "DATA_LOSS";
    Unauthenticated = 16, "UNAUTHENTICATED";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One status of a service: code and description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The code.
    pub code: Code,
    /// The service's own words, possibly empty.
    pub message: Box<str>,
}

impl Status {
    /// A status.
    #[must_use]
    pub fn new(code: Code, message: impl Into<Box<str>>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() {
            f.write_str(self.code.name())
        } else {
            write!(f, "{} ({})", self.code, self.message)
        }
    }
}

/// Every status met on the way to a failure, outermost first; at least one. One pointer wide.
#[derive(Clone, PartialEq, Eq)]
#[expect(
    clippy::box_collection,
    reason = "one pointer wide, so that results stay small"
)]
pub struct StatusChain(Box<Vec<Status>>);

impl StatusChain {
    /// A chain of one.
    #[must_use]
    pub fn new(outermost: Status) -> Self {
        Self(Box::new(vec![outermost]))
    }

    /// Adds the next inner cause.
    #[must_use]
    pub fn caused_by(mut self, inner: Status) -> Self {
        self.0.push(inner);
        self
    }

    /// The status that the failure shows first.
    #[must_use]
    pub fn outermost(&self) -> &Status {
        &self.0[0]
    }

    /// The outermost code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.0[0].code
    }

    /// All statuses, outermost first.
    pub fn iter(&self) -> std::slice::Iter<'_, Status> {
        self.0.iter()
    }

    /// Whether any status of the chain has one of `codes`.
    #[must_use]
    pub fn any(&self, codes: &[Code]) -> bool {
        self.0.iter().any(|status| codes.contains(&status.code))
    }
}

impl From<Status> for StatusChain {
    fn from(status: Status) -> Self {
        Self::new(status)
    }
}

impl fmt::Display for StatusChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, status) in self.0.iter().enumerate() {
            if depth > 0 {
                f.write_str(", caused by ")?;
            }
            status.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Debug for StatusChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for StatusChain {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_is_found_however_deep_it_sits() {
        let chain = StatusChain::new(Status::new(Code::Internal, "outer"))
            .caused_by(Status::new(Code::InvalidArgument, "inner"));
        let error =
            Error::io("writing failed").with_source(Error::io("layer").with_source(chain.clone()));
        assert_eq!(error.statuses(), Some(&chain));
        assert_eq!(
            error.report(),
            "writing failed: layer: INTERNAL (outer), caused by INVALID_ARGUMENT (inner)"
        );
    }

    #[test]
    fn codes_keep_their_numbers() {
        for code in Code::ALL {
            assert_eq!(Code::from_number(i32::from(*code as u8)), *code);
        }
        assert_eq!(Code::from_number(99), Code::Unknown);
        assert_eq!(Code::from_number(-1), Code::Unknown);
    }
}
