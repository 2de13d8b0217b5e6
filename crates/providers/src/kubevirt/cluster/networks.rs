//! The conversations about private networks.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Cluster, Reach};
use crate::kubevirt::{
    backup::Plan,
    names::NetworkNames,
    network::{Seen, plan, plan_removal},
};
use domain::provider::{Progress, ProviderError};
use resources::PrivateNetwork;
use runtime::watch::key;

impl Cluster {
    /// Makes a private network, and says how far it is.
    pub(crate) async fn make_network(
        self: &Arc<Self>,
        network: &PrivateNetwork,
        account: &str,
        now: Timestamp,
    ) -> Result<Progress, ProviderError> {
        let next = |seen: &Seen| plan(network, seen, &self.settings);
        self.carry_out_network(network, account, now, next).await
    }

    /// Removes a private network, and says how far that is.
    pub(crate) async fn remove_network(
        self: &Arc<Self>,
        network: &PrivateNetwork,
        now: Timestamp,
    ) -> Result<Progress, ProviderError> {
        let next = |seen: &Seen| plan_removal(network, seen, &self.settings);
        self.carry_out_network(network, "", now, next).await
    }

    async fn carry_out_network(
        self: &Arc<Self>,
        network: &PrivateNetwork,
        account: &str,
        now: Timestamp,
        plan: impl Fn(&Seen) -> Plan<Progress> + Send,
    ) -> Result<Progress, ProviderError> {
        let object = format!("PrivateNetwork {}", key(network));
        let namespace = NetworkNames::of(network, &self.settings).namespace;
        let reach = self.reach(now);
        let user = match reach {
            Reach::Live => self.user().await,
            Reach::Cut(_) => Ok(String::new()),
        };
        let user = user.map_err(|error| self.unanswered(&object, &error))?;
        let has_namespace = self.namespaces.lock().contains(&namespace);
        let mut seen = Seen::new(reach, account.to_owned(), user, has_namespace);
        let outcome = self.carry_out(&object, &namespace, &mut seen, plan).await;
        if seen.has_namespace {
            self.namespaces.lock().insert(namespace);
        }
        outcome
    }
}
