//! Application profiles: which requests a profile may make.
//!
//! An instance without declared profiles accepts every profile as single-cluster with transactions,
//! since instances themselves need no declaration here. Once one profile is declared, the instance
//! knows `default` and the declared ones only.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Mutex,
};

use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;
use tonic::Code;

use super::{slot::lock, store::Refusal};
use crate::method::Method;

/// How a profile routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// One cluster, `CheckAndMutateRow` and `ReadModifyWriteRow` allowed.
    SingleCluster,
    /// One cluster, transactional writes not allowed.
    SingleClusterWithoutTransactions,
    /// Any cluster.
    MultiCluster,
    /// Data Boost: one cluster, reads only.
    DataBoost,
}

/// The cluster that single-cluster profiles name.
const CLUSTER: &str = "c1";

#[derive(Default)]
pub(crate) struct Profiles(Mutex<HashMap<String, BTreeMap<String, Profile>>>);

impl Profiles {
    pub(crate) fn declare(&self, instance: &str, id: &str, profile: Profile) {
        let mut profiles = lock(&self.0);
        profiles
            .entry(instance.to_owned())
            .or_default()
            .insert(id.to_owned(), profile);
    }

    fn find(&self, instance: &str, id: &str) -> Option<Profile> {
        let profiles = lock(&self.0);
        let id = if id.is_empty() { "default" } else { id };
        match profiles.get(instance) {
            None => Some(Profile::SingleCluster),
            Some(declared) => declared
                .get(id)
                .copied()
                .or_else(|| (id == "default").then_some(Profile::SingleCluster)),
        }
    }

    /// Whether `method` may be called under the profile.
    pub(crate) fn check(&self, instance: &str, id: &str, method: Method) -> Result<(), Refusal> {
        let Some(profile) = self.find(instance, id) else {
            return Err(Refusal::new(
                Code::NotFound,
                format!("App profile not found: {id}"),
            ));
        };
        let (writes, transacts) = match method {
            Method::MutateRow | Method::MutateRows => (true, false),
            Method::CheckAndMutateRow | Method::ReadModifyWriteRow => (true, true),
            _ => (false, false),
        };
        match profile {
            Profile::DataBoost if writes => Err(Refusal::new(
                Code::FailedPrecondition,
                "App profile is for Data Boost, which only reads",
            )),
            Profile::MultiCluster | Profile::SingleClusterWithoutTransactions if transacts => {
                Err(Refusal::new(
                    Code::FailedPrecondition,
                    "Transactional writes need an app profile with single-cluster routing that \
                     allows them",
                ))
            }
            _ => Ok(()),
        }
    }

    /// The answer to `GetAppProfile`.
    pub(crate) fn describe(&self, name: &str) -> Result<admin::AppProfile, Refusal> {
        use admin::app_profile::{
            DataBoostIsolationReadOnly, Isolation, MultiClusterRoutingUseAny, RoutingPolicy,
            SingleClusterRouting, StandardIsolation,
        };
        let found = name
            .split_once("/appProfiles/")
            .and_then(|(instance, id)| self.find(instance, id));
        let Some(profile) = found else {
            return Err(Refusal::new(
                Code::NotFound,
                format!("App profile not found: {name}"),
            ));
        };
        let single = |allow_transactional_writes| {
            RoutingPolicy::SingleClusterRouting(SingleClusterRouting {
                cluster_id: CLUSTER.to_owned(),
                allow_transactional_writes,
            })
        };
        let routing = match profile {
            Profile::SingleCluster => single(true),
            Profile::SingleClusterWithoutTransactions | Profile::DataBoost => single(false),
            Profile::MultiCluster => {
                RoutingPolicy::MultiClusterRoutingUseAny(MultiClusterRoutingUseAny::default())
            }
        };
        let isolation = match profile {
            Profile::DataBoost => {
                Isolation::DataBoostIsolationReadOnly(DataBoostIsolationReadOnly {
                    compute_billing_owner: Some(1),
                })
            }
            _ => Isolation::StandardIsolation(StandardIsolation::default()),
        };
        Ok(admin::AppProfile {
            name: name.to_owned(),
            routing_policy: Some(routing),
            isolation: Some(isolation),
            ..Default::default()
        })
    }
}
