//! How reads reach the service: endpoint, credentials, windows, and the headers that every request carries.
//!
//! [`ReadAccess`] is configuration, made and checked by a builder. [`ReadClient`] is the live thing: one for each reader,
//! coordinator or lookup client, made when the component starts, with one credentials provider for all its calls
//! (BT-GEN-02).

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_cloud::{
    CallSpec, ChannelPool, Credentials, Endpoint, PoolOptions, RoutingHeader, TokenProvider,
    WarmUp, frame,
};
use aqueduct_connector::options::{ByteSize, ConfigError};
use aqueduct_connector::{Clock, Context, Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as wire;
use http::{HeaderName, HeaderValue};
use prost::Message as _;

use super::request::Remaining;
use super::{ReadPolicy, RowStream};
use crate::client::sample::SampleRowKeys;
use crate::destination::TableDestination;
use crate::filter::Filter;
use crate::scan_options::{APP_PROFILE_ID, EMULATOR_ENDPOINT, SERVICE_ACCOUNT_KEY_FILE};

/// The data endpoint (BT-WIRE-01).
const HOST: &str = "bigtable.googleapis.com";
/// Rows reach 256 MiB (quotas page); the rest is for the other rows and the chunks' own bytes.
const MAX_MESSAGE_BYTES: usize = 320 << 20;
/// Warm-up of a new connection (BT-WIRE-04).
const WARM_UP: Duration = Duration::from_secs(30);

/// Where a table is read and as whom.
#[derive(Clone, Debug)]
pub struct ReadAccess {
    table: TableDestination,
    app_profile_id: Arc<str>,
    endpoint: Endpoint,
    credentials: Credentials,
}

impl ReadAccess {
    /// Checks what a builder was given. Does no I/O.
    ///
    /// # Errors
    ///
    /// If the profile, the key file's path or the emulator's address is malformed, or the last two are both set.
    pub fn new(
        table: TableDestination,
        app_profile_id: Option<&str>,
        service_account_key_file: Option<&str>,
        emulator_endpoint: Option<&str>,
    ) -> Result<Self> {
        let profile = match app_profile_id {
            None => "",
            Some(profile) => APP_PROFILE_ID.check_component(profile)?,
        };
        let (endpoint, credentials) = match (emulator_endpoint, service_account_key_file) {
            (Some(_), Some(_)) => {
                return Err(Error::from(ConfigError::Conflict {
                    first: SERVICE_ACCOUNT_KEY_FILE.key(),
                    second: EMULATOR_ENDPOINT.key(),
                    reason: "an emulator takes no credentials; remove one of them".to_owned(),
                }));
            }
            (Some(address), None) => (
                Endpoint::emulator(EMULATOR_ENDPOINT.key(), address)?,
                Credentials::None,
            ),
            (None, Some(path)) => {
                let path = SERVICE_ACCOUNT_KEY_FILE.check(path)?;
                (
                    Endpoint::production(HOST),
                    Credentials::ServiceAccountKeyFile(path.into()),
                )
            }
            (None, None) => (Endpoint::production(HOST), Credentials::ApplicationDefault),
        };
        Ok(Self {
            table,
            app_profile_id: profile.into(),
            endpoint,
            credentials,
        })
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &TableDestination {
        &self.table
    }
}

/// Reads one table through one application profile. Clones share its connections.
#[derive(Clone)]
pub struct ReadClient(Arc<Inner>);

struct Inner {
    access: ReadAccess,
    pool: ChannelPool,
    read: CallSpec,
    sample: CallSpec,
    clock: Arc<dyn Clock>,
}

impl ReadClient {
    /// Makes the client of one component: reads the key file if there is one, and connects when it is first used.
    ///
    /// `read_ahead` bounds what the transport holds unread, over `streams` concurrent calls.
    ///
    /// # Errors
    ///
    /// If the key file cannot be used.
    pub fn new(
        context: &Context,
        access: &ReadAccess,
        read_ahead: ByteSize,
        streams: NonZeroUsize,
    ) -> Result<Self> {
        let tokens = TokenProvider::new(&access.credentials)?;
        let routing = RoutingHeader::new()
            .param("table_name", &access.table.path())
            .param("app_profile_id", &access.app_profile_id);
        let spec = |path: &'static str| {
            CallSpec::new(path, ReadPolicy::SCAN.attempt)
                .routing(&routing)
                .header(HeaderName::from_static("bigtable-features"), features())
                .max_message(MAX_MESSAGE_BYTES)
        };
        let options = PoolOptions::default()
            .receive_bound(read_ahead.0, streams)
            .warm_up(warm_up(access));
        Ok(Self(Arc::new(Inner {
            pool: ChannelPool::new(context, access.endpoint.clone(), tokens, options)?,
            read: spec("/google.bigtable.v2.Bigtable/ReadRows"),
            sample: spec("/google.bigtable.v2.Bigtable/SampleRowKeys"),
            access: access.clone(),
            clock: context.clock.clone(),
        })))
    }

    /// Reads `remaining`, shaped by `filter`.
    #[must_use]
    pub fn read(
        &self,
        remaining: Remaining,
        filter: Option<&Filter>,
        policy: ReadPolicy,
        random: fastrand::Rng,
    ) -> RowStream {
        RowStream::new(self.clone(), policy, filter, remaining, random)
    }

    /// Asks where the table's sections begin.
    #[must_use]
    pub fn sample_row_keys(&self, random: fastrand::Rng) -> SampleRowKeys {
        SampleRowKeys::new(self.clone(), random)
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &TableDestination {
        &self.0.access.table
    }

    /// The application profile; empty for the instance's default.
    #[must_use]
    pub fn app_profile_id(&self) -> &str {
        &self.0.access.app_profile_id
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.clock
    }

    pub(crate) fn pool(&self) -> &ChannelPool {
        &self.0.pool
    }

    pub(crate) fn read_spec(&self) -> &CallSpec {
        &self.0.read
    }

    pub(crate) fn sample_spec(&self) -> &CallSpec {
        &self.0.sample
    }
}

impl fmt::Debug for ReadClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadClient")
            .field("access", &self.0.access)
            .finish_non_exhaustive()
    }
}

/// What this client implements, as the service wants to be told (BT-WIRE-02).
fn features() -> HeaderValue {
    let flags = wire::FeatureFlags {
        reverse_scans: true,
        last_scanned_row_responses: true,
        routing_cookie: true,
        retry_info: true,
        ..wire::FeatureFlags::default()
    };
    HeaderValue::from_str(&URL_SAFE.encode(flags.encode_to_vec()))
        .expect("base64 is made of visible ASCII")
}

fn warm_up(access: &ReadAccess) -> WarmUp {
    let instance = access.table.instance_path();
    let routing = RoutingHeader::new()
        .param("name", &instance)
        .param("app_profile_id", &access.app_profile_id);
    let request = wire::PingAndWarmRequest {
        name: instance,
        app_profile_id: access.app_profile_id.to_string(),
    };
    WarmUp {
        spec: CallSpec::new("/google.bigtable.v2.Bigtable/PingAndWarm", WARM_UP)
            .routing(&routing)
            .header(HeaderName::from_static("bigtable-features"), features()),
        body: frame(&request),
    }
}

/// A row's name without its key: length and a hash, so that whoever has the keys can find it.
pub(super) fn fingerprint(base64_key: &str) -> Option<String> {
    let key = STANDARD
        .decode(base64_key)
        .or_else(|_| URL_SAFE.decode(base64_key))
        .ok()?;
    // 32-bit FNV-1a.
    let hash = key.iter().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    Some(format!(
        "a key of {} bytes with the FNV-1a hash {hash:08x}",
        key.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TableDestination {
        TableDestination::of("p", "i", "t").expect("valid")
    }

    #[test]
    fn wrong_settings_are_refused_by_their_options() {
        for (profile, key_file, emulator, named) in [
            (Some(" "), None, None, "'scan.app-profile-id'"),
            (Some("a/b"), None, None, "'scan.app-profile-id'"),
            (None, Some(""), None, "'service-account-key-file'"),
            (None, None, Some("localhost"), "emulator-endpoint"),
            (None, Some("/k"), Some("localhost:1"), "'emulator-endpoint'"),
        ] {
            let error = ReadAccess::new(table(), profile, key_file, emulator)
                .expect_err(named)
                .to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn the_feature_flags_are_those_implemented() {
        let bytes = URL_SAFE.decode(features().as_bytes()).expect("base64");
        let flags = wire::FeatureFlags::decode(&bytes[..]).expect("flags");
        assert!(flags.reverse_scans && flags.last_scanned_row_responses);
        assert!(flags.routing_cookie && flags.retry_info);
        assert!(!flags.mutate_rows_rate_limit && !flags.peer_info);
    }

    #[test]
    fn a_fingerprint_shows_no_key() {
        let shown = fingerprint("c2VjcmV0").expect("base64 of `secret`");
        assert!(
            shown.contains("6 bytes") && !shown.contains("secret"),
            "{shown}"
        );
        assert_eq!(fingerprint("%%%"), None);
    }
}
