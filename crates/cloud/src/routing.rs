//! The routing header: tells a front end which resource a request is about.
//!
//! Without it a service answers slowly or from the wrong place, and says nothing (BT-WIRE-01).

use std::fmt;

use http::HeaderValue;

/// Builds the value of `x-goog-request-params`: `key=value` pairs joined by `&`, percent-encoded.
///
/// Unreserved characters (`A-Z a-z 0-9 - . _ ~`) stay; every other byte is encoded, slashes included.
///
/// ```
/// # use aqueduct_cloud::RoutingHeader;
/// let header = RoutingHeader::new()
///     .param("table_name", "projects/p/instances/i/tables/t")
///     .param("app_profile_id", "");
/// assert_eq!(
///     header.value(),
///     "table_name=projects%2Fp%2Finstances%2Fi%2Ftables%2Ft&app_profile_id="
/// );
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RoutingHeader(String);

impl RoutingHeader {
    /// The header's name.
    pub const NAME: &'static str = "x-goog-request-params";

    /// Without parameters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one parameter.
    #[must_use]
    pub fn param(mut self, key: &str, value: &str) -> Self {
        if !self.0.is_empty() {
            self.0.push('&');
        }
        encode(key, &mut self.0);
        self.0.push('=');
        encode(value, &mut self.0);
        self
    }

    /// The value, ready to be put in a request's headers.
    #[must_use]
    pub fn value(&self) -> HeaderValue {
        HeaderValue::from_str(&self.0).expect("percent-encoding leaves visible ASCII only")
    }
}

impl fmt::Debug for RoutingHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RoutingHeader").field(&self.0).finish()
    }
}

fn encode(text: &str, out: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_could_split_a_parameter_is_encoded() {
        let header = RoutingHeader::new()
            .param("a", "x&y=z/ä %~")
            .param("b.c", "1");
        assert_eq!(header.value(), "a=x%26y%3Dz%2F%C3%A4%20%25~&b.c=1");
    }

    #[test]
    fn no_parameter_is_an_empty_value() {
        assert_eq!(RoutingHeader::new().value(), "");
    }
}
