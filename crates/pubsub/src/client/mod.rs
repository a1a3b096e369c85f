//! The wire.
//!
//! | file | holds |
//! | --- | --- |
//! | `publish`, `topic_admin` | publishing, creating topics |
//! | `fields` | protobuf fields, walked without generated types |
//! | `pull` | one streaming pull: first request, keepalives, the watchdog, the decoder of responses |
//! | `ack` | requests that acknowledge, return and extend, built from ack ids; what the service says of each id |
//! | `publish` | one attempt of one `Publish`, ids counted |
//! | `topic_admin` | creating topics |
//! | `subscription_admin` | describing, creating and seeking subscriptions |

pub(crate) mod ack;
pub(crate) mod fields;
pub(crate) mod publish;
pub(crate) mod pull;
pub(crate) mod subscription_admin;
pub(crate) mod topic_admin;

use aqueduct_cloud::{Credentials, Endpoint};
use aqueduct_connector::options::ConfigError;
use aqueduct_connector::{Error, Result};

use crate::sink_options::{EMULATOR_ENDPOINT, SERVICE_ACCOUNT_KEY_FILE};

/// The service's host.
const SERVICE: &str = "pubsub.googleapis.com";

/// Where the service is and as whom it is called. Configuration: makes no connection and reads no file.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) endpoint: Endpoint,
    pub(crate) credentials: Credentials,
}

impl Access {
    /// Checks what a builder was given (PS-GEN-03, -04).
    pub(crate) fn new(key_file: Option<&str>, emulator: Option<&str>) -> Result<Self> {
        let (endpoint, credentials) = match (emulator, key_file) {
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
            (None, Some(path)) => (
                Endpoint::production(SERVICE),
                Credentials::ServiceAccountKeyFile(SERVICE_ACCOUNT_KEY_FILE.check(path)?.into()),
            ),
            (None, None) => (
                Endpoint::production(SERVICE),
                Credentials::ApplicationDefault,
            ),
        };
        Ok(Self {
            endpoint,
            credentials,
        })
    }
}
