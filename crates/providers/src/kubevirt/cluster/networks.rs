//! Makes the calls about private networks that their planner plans.

use std::time::Instant;

use jiff::Timestamp;

use super::{CALLS_A_STEP, Cluster, Reach, STEP};
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
        &self,
        network: &PrivateNetwork,
        account: &str,
        now: Timestamp,
    ) -> Result<Progress, ProviderError> {
        let next = |seen: &Seen| plan(network, seen, &self.settings);
        self.carry_out_network(network, account, now, next).await
    }

    /// Removes a private network, and says how far that is.
    pub(crate) async fn remove_network(
        &self,
        network: &PrivateNetwork,
        now: Timestamp,
    ) -> Result<Progress, ProviderError> {
        let next = |seen: &Seen| plan_removal(network, seen, &self.settings);
        self.carry_out_network(network, "", now, next).await
    }

    /// Makes one call after the other, until there is no more to do or no time left.
    async fn carry_out_network(
        &self,
        network: &PrivateNetwork,
        account: &str,
        now: Timestamp,
        plan: impl Fn(&Seen) -> Plan<Progress> + Send,
    ) -> Result<Progress, ProviderError> {
        let region = &*self.code;
        let unavailable = |error: kube::Error| {
            tracing::warn!(region, network = key(network), %error, "a call of the region's cluster failed");
            ProviderError::Unavailable("the cluster of the region does not answer".to_owned())
        };
        let namespace = NetworkNames::of(network, &self.settings).namespace;
        let reach = self.reach(now);
        let user = match reach {
            Reach::Live => self.user().await.map_err(unavailable)?,
            Reach::Cut(_) => String::new(),
        };
        let has_namespace = self.namespaces.lock().contains(&namespace);
        let mut seen = Seen::new(reach, account.to_owned(), user, has_namespace);
        let until = Instant::now() + STEP;
        let mut calls = 0;
        loop {
            let next = plan(&seen);
            let has_time = Instant::now() < until && calls < CALLS_A_STEP;
            let Some(action) = next.action.filter(|_| has_time) else {
                if let Some(says) = next.raw {
                    tracing::warn!(
                        region,
                        network = key(network),
                        says,
                        "trouble with a private network"
                    );
                }
                return next.outcome;
            };
            calls += 1;
            let answer = self.call(&namespace, &action).await.map_err(unavailable)?;
            seen.take(action, answer);
            if seen.has_namespace {
                self.namespaces.lock().insert(namespace.clone());
            }
        }
    }
}
