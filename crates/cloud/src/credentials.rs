//! Where access tokens come from.
//!
//! [`Credentials`] is configuration and says only which source to use. [`TokenProvider`] is the live thing: one for each
//! reader, writer, enumerator or committer, shared by all its clients, made when the component starts (BASE-26).
//!
//! Fetching, caching and refreshing tokens ahead of expiry is the work of `google-cloud-auth`, which enters the program
//! here only. In front of it stands a cache of finished header values, so that a call costs one short lock and no
//! formatting; it looks behind itself every [`LOOK_AGAIN`].
//!
//! # Invariants
//!
//! - No error and no `Debug` shows a path, a key, a token or a parser's words (BASE-27).
//! - A key file is read once, when the provider is made. What replaces a refused token is minted from the same key.
//! - A refused token is replaced at most once every [`RENEW_PAUSE`], so an outage of authorization is no storm.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aqueduct_connector::{Code, Error, Moment, Result};
use google_cloud_auth::credentials::{self as google, CacheableResource};
use google_cloud_auth::errors::CredentialsError;
use http::{Extensions, HeaderMap};

use crate::error::{CallError, Delivery, Origin};

/// Header values are taken from the token cache behind anew after this long. Tokens are refreshed four minutes ahead of
/// their end, so a value this old is valid.
pub const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// A refused token is replaced at most this often.
pub const RENEW_PAUSE: Duration = Duration::from_secs(10);

const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

const KEY_FILE_UNUSABLE: &str = "the service-account key file cannot be used: it must be readable on every machine that \
    runs this job and hold a service-account key in JSON";

/// Which credentials a component uses. The default is application-default credentials.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Credentials {
    /// Application-default credentials: the environment's key or external-account file, the developer's login, or the
    /// metadata server.
    #[default]
    ApplicationDefault,
    /// The path of a service-account key in JSON, read where the component runs.
    ServiceAccountKeyFile(PathBuf),
    /// None, for emulators.
    None,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ApplicationDefault => "ApplicationDefault",
            Self::ServiceAccountKeyFile(_) => "ServiceAccountKeyFile",
            Self::None => "None",
        })
    }
}

/// Hands out authorization headers. Clones share one token cache.
#[derive(Clone)]
pub struct TokenProvider(Arc<Shared>);

struct Shared {
    recipe: Recipe,
    state: Mutex<State>,
}

/// How to make credentials, now and again after a refusal.
enum Recipe {
    None,
    ApplicationDefault,
    Key(serde_json::Value),
    #[cfg(test)]
    Scripted(Box<dyn Fn() -> google::Credentials + Send + Sync>),
}

#[derive(Default)]
struct State {
    live: Option<google::Credentials>,
    headers: Option<Arc<HeaderMap>>,
    looked_at: Moment,
    renewed_at: Option<Moment>,
    /// Counts replacements, so that many calls refused with one token replace it once.
    generation: u64,
}

/// What a call needs to do for its headers.
pub(crate) enum Authorization {
    /// Nothing is needed.
    None,
    /// Here they are.
    Ready(Granted),
    /// They are being fetched.
    Wait(Fetch),
}

/// Headers to send, and which token they are of.
#[derive(Clone)]
pub(crate) struct Granted {
    pub(crate) headers: Arc<HeaderMap>,
    pub(crate) generation: u64,
}

pub(crate) type Fetch = Pin<Box<dyn Future<Output = Result<Granted, CallError>> + Send>>;

impl TokenProvider {
    /// Makes the provider of one component. Reads the key file, if one is configured; fetches nothing yet.
    ///
    /// # Errors
    ///
    /// A configuration error, always the same sentence, if the key file cannot be read or holds no service-account key.
    pub fn new(credentials: &Credentials) -> Result<Self> {
        let recipe = match credentials {
            Credentials::None => Recipe::None,
            Credentials::ApplicationDefault => Recipe::ApplicationDefault,
            Credentials::ServiceAccountKeyFile(path) => {
                // The cause is dropped on purpose: it would show the path or a piece of the key.
                let key = std::fs::read(path).ok().and_then(|bytes| parse_key(&bytes));
                Recipe::Key(key.ok_or_else(|| Error::config(KEY_FILE_UNUSABLE))?)
            }
        };
        if !matches!(recipe, Recipe::None) {
            crate::pool::install_crypto_provider();
        }
        Ok(Self::from_recipe(recipe))
    }

    /// For emulators: no headers.
    #[must_use]
    pub fn none() -> Self {
        Self::from_recipe(Recipe::None)
    }

    /// Whether this provider hands out nothing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        matches!(self.0.recipe, Recipe::None)
    }

    fn from_recipe(recipe: Recipe) -> Self {
        Self(Arc::new(Shared {
            recipe,
            state: Mutex::default(),
        }))
    }

    #[cfg(test)]
    pub(crate) fn scripted(make: impl Fn() -> google::Credentials + Send + Sync + 'static) -> Self {
        Self::from_recipe(Recipe::Scripted(Box::new(make)))
    }

    /// The headers of a call that starts `now`. Must be called inside the host's runtime.
    pub(crate) fn authorize(&self, now: Moment) -> Authorization {
        if self.is_none() {
            return Authorization::None;
        }
        let mut state = self.lock();
        if let Some(headers) = &state.headers
            && now.since(state.looked_at) < LOOK_AGAIN
        {
            return Authorization::Ready(Granted {
                headers: headers.clone(),
                generation: state.generation,
            });
        }
        let live = match &state.live {
            Some(live) => live.clone(),
            None => match self.0.recipe.make() {
                Some(live) => state.live.insert(live).clone(),
                None => {
                    return Authorization::Wait(Box::pin(async {
                        Err(unavailable(Retry::Useless))
                    }));
                }
            },
        };
        // Others go on with what is cached while this call looks.
        state.looked_at = now;
        let generation = state.generation;
        drop(state);
        let provider = self.clone();
        Authorization::Wait(Box::pin(async move {
            let found = live.headers(Extensions::new()).await;
            provider.store(found, generation)
        }))
    }

    /// Replaces the token of `generation`, which the service refused at `now`. Answers whether another try can differ.
    pub(crate) fn renew(&self, generation: u64, now: Moment) -> bool {
        if self.is_none() {
            return false;
        }
        let mut state = self.lock();
        if state.generation != generation {
            return true;
        }
        if state
            .renewed_at
            .is_some_and(|at| now.since(at) < RENEW_PAUSE)
        {
            return false;
        }
        state.renewed_at = Some(now);
        state.generation += 1;
        state.live = None;
        state.headers = None;
        true
    }

    fn store(
        &self,
        found: Result<CacheableResource<HeaderMap>, CredentialsError>,
        generation: u64,
    ) -> Result<Granted, CallError> {
        let mut state = self.lock();
        match found {
            Ok(CacheableResource::New { mut data, .. }) => {
                for value in data.values_mut() {
                    value.set_sensitive(true);
                }
                let headers = Arc::new(data);
                if state.generation == generation {
                    state.headers = Some(headers.clone());
                }
                Ok(Granted {
                    headers,
                    generation,
                })
            }
            // Not asked for: no tag was passed.
            Ok(CacheableResource::NotModified) => Err(unavailable(Retry::Useful)),
            Err(error) => {
                let retry = if error.is_transient() {
                    Retry::Useful
                } else {
                    Retry::Useless
                };
                if state.generation == generation {
                    state.headers = None;
                    if matches!(retry, Retry::Useless) {
                        // Such credentials never recover by themselves; the next call makes new ones.
                        state.live = None;
                    }
                }
                Err(unavailable(retry))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding it leaves plain data behind, valid at every point.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for TokenProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenProvider")
    }
}

impl Recipe {
    /// Live credentials, or `None` if there is no way to make any. The causes may quote files, so they end here.
    fn make(&self) -> Option<google::Credentials> {
        match self {
            Self::None => None,
            Self::ApplicationDefault => {
                google::Builder::default().with_scopes([SCOPE]).build().ok()
            }
            Self::Key(key) => google::service_account::Builder::new(key.clone())
                .with_access_specifier(google::service_account::AccessSpecifier::from_scopes([
                    SCOPE,
                ]))
                .build()
                .ok(),
            #[cfg(test)]
            Self::Scripted(make) => Some(make()),
        }
    }
}

enum Retry {
    Useful,
    Useless,
}

fn unavailable(retry: Retry) -> CallError {
    let (code, message) = match retry {
        Retry::Useful => (
            Code::Unavailable,
            "no access token could be fetched just now",
        ),
        Retry::Useless => (
            Code::Unauthenticated,
            "no access token could be made: check the application-default credentials or the key file of this machine",
        ),
    };
    CallError::new(Origin::Credentials, Delivery::NotSent, code, message)
}

/// Only service-account keys pass: no user logins, no external accounts, nothing half-filled.
fn parse_key(bytes: &[u8]) -> Option<serde_json::Value> {
    let key: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    let text = |name: &str| {
        key.get(name)
            .and_then(serde_json::Value::as_str)
            .filter(|text| !text.is_empty())
    };
    let complete = text("type") == Some("service_account")
        && text("client_email").is_some()
        && text("private_key_id").is_some()
        && text("project_id").is_some()
        && text("private_key").is_some_and(|pem| pem.contains("PRIVATE KEY"));
    complete.then_some(key)
}

#[cfg(test)]
mod tests;
