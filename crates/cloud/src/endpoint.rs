//! Where a service is: its own host over TLS, or an emulator in plaintext.
//!
//! # Invariants
//!
//! - Only TLS endpoints ever see an access token; `pool` refuses credentials beside a plaintext endpoint.
//! - An emulator address is checked when it is configured, never trimmed and never resolved here (BASE-28).

use std::fmt;
use std::sync::Arc;

use aqueduct_connector::{Error, Result};
use http::uri::Authority;

/// The address of a service.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    scheme: Scheme,
    host: Arc<str>,
    port: u16,
    authority: Authority,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Tls,
    Plaintext,
}

impl Endpoint {
    /// The service's own host, port 443, over TLS with the roots of the operating system.
    ///
    /// # Panics
    ///
    /// If `host` is no host name; it is a constant of the calling connector.
    #[must_use]
    pub fn production(host: &'static str) -> Self {
        Self {
            scheme: Scheme::Tls,
            host: host.into(),
            port: 443,
            authority: Authority::from_static(host),
        }
    }

    /// An emulator at `address`, in plaintext and without credentials.
    ///
    /// The address is split at its last colon. The host is kept as written: brackets around an IPv6 address and a scheme
    /// prefix such as `http://` pass (a prefix is ignored when connecting). The port is 1 to 65535 in ASCII digits.
    ///
    /// # Errors
    ///
    /// A configuration error naming `option` if the host is missing, the port is missing or out of range, or there is
    /// whitespace anywhere.
    pub fn emulator(option: &str, address: &str) -> Result<Self> {
        let refuse = |why: &str| {
            Error::config(format!(
                "{option} must be host:port with a port from 1 to 65535, for example localhost:8086: {why}"
            ))
        };
        if address.chars().any(char::is_whitespace) {
            return Err(refuse("it contains whitespace"));
        }
        let (host, port) = address
            .rsplit_once(':')
            .ok_or_else(|| refuse("the port is missing"))?;
        let bare = match host.split_once("://") {
            Some((_, rest)) => rest.trim_start_matches('/'),
            None => host,
        };
        if bare.is_empty() {
            return Err(refuse("the host is missing"));
        }
        // `parse` alone would accept a sign.
        let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        let port = match port.parse::<u16>() {
            Ok(port) if digits && port > 0 => port,
            _ => return Err(refuse("the port is not a number from 1 to 65535")),
        };
        let authority = Authority::try_from(format!("{bare}:{port}").as_str())
            .map_err(|_| refuse("the host holds characters that no host name has"))?;
        let host = bare
            .strip_prefix('[')
            .and_then(|h| h.strip_suffix(']'))
            .unwrap_or(bare);
        Ok(Self {
            scheme: Scheme::Plaintext,
            host: host.into(),
            port,
            authority,
        })
    }

    /// Where a test listens with TLS.
    #[cfg(test)]
    pub(crate) fn tls(host: &str, port: u16) -> Self {
        let mut endpoint = Self::emulator("test", &format!("{host}:{port}")).expect("an address");
        endpoint.scheme = Scheme::Tls;
        endpoint
    }

    /// Whether this is a plaintext endpoint, which gets no credentials.
    #[must_use]
    pub fn is_plaintext(&self) -> bool {
        self.scheme == Scheme::Plaintext
    }

    /// The host to connect to, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port to connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    pub(crate) fn uri_scheme(&self) -> http::uri::Scheme {
        match self.scheme {
            Scheme::Tls => http::uri::Scheme::HTTPS,
            Scheme::Plaintext => http::uri::Scheme::HTTP,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.authority.as_str())
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({}://{})", self.uri_scheme(), self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emulator(address: &str) -> Result<Endpoint> {
        Endpoint::emulator("emulator-endpoint", address)
    }

    #[test]
    fn what_is_no_host_and_port_is_refused_and_the_option_named() {
        for bad in [
            "host",
            ":80",
            "h:0",
            "h:65536",
            "h:+80",
            " h:80",
            "h:80 ",
            "h :80",
            "h:\t80",
            "",
            ":",
            "h:",
            "h:-1",
            "h:8_0",
            "h:80a",
            "http://:80",
            "h:٣",
            "h\u{a0}:80",
            "h<>:80",
            "h/x:80",
        ] {
            let error = emulator(bad).expect_err(bad);
            assert_eq!(
                error.kind(),
                aqueduct_connector::ErrorKind::Config,
                "{bad:?}"
            );
            assert!(
                error
                    .to_string()
                    .starts_with("emulator-endpoint must be host:port"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_one_is_accepted_as_written() {
        for (good, host, port) in [
            ("[::1]:80", "::1", 80),
            ("localhost:1", "localhost", 1),
            ("10.0.0.1:65535", "10.0.0.1", 65_535),
            ("http://localhost:8086", "localhost", 8086),
            ("dns:///localhost:8086", "localhost", 8086),
            ("h:0080", "h", 80),
        ] {
            let endpoint = emulator(good).unwrap_or_else(|error| panic!("{good}: {error}"));
            assert_eq!((endpoint.host(), endpoint.port()), (host, port), "{good}");
            assert!(endpoint.is_plaintext());
        }
    }

    #[test]
    fn production_is_tls_on_443() {
        let endpoint = Endpoint::production("bigtable.googleapis.com");
        assert!(!endpoint.is_plaintext());
        assert_eq!(
            (endpoint.host(), endpoint.port()),
            ("bigtable.googleapis.com", 443)
        );
        assert_eq!(endpoint.to_string(), "bigtable.googleapis.com");
    }
}
