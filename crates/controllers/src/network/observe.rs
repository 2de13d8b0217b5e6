//! Gathers what the decision about a network depends on: the objects around it, and what the provider says.

use std::sync::Arc;

use super::reconcile::{Reconciler, namespace};
use crate::provider_call;
use domain::{
    network::{Question, Seen, Situation},
    provider::{Progress, ProviderError},
};
use providers::Provider;
use resources::PrivateNetwork;
use runtime::{
    traces::{self, SpanKind},
    watch::key,
};

/// The provider's answer; `None` if it was not asked.
pub(super) struct Asked(Option<Result<Progress, ProviderError>>);

impl Asked {
    pub(super) const fn seen(&self) -> Seen<'_> {
        match &self.0 {
            None => Seen::NotAsked,
            Some(Ok(progress)) => Seen::Observed(progress),
            Some(Err(error)) => Seen::Failed(error),
        }
    }
}

impl<P: Provider> Reconciler<P> {
    pub(super) fn with_situation<T>(
        &self,
        network: &PrivateNetwork,
        with: impl FnOnce(&Situation<'_>) -> T,
    ) -> T {
        let controller = &self.controller;
        // The watch may not have shown the prefixes that were just given.
        let all = controller.networks.of(namespace(network)).into_iter();
        let all: Vec<Arc<_>> = all.map(|other| self.queue.freshest(other)).collect();
        let offer = controller.catalogue.current();
        let offer = offer.offer(&network.spec.region);
        with(&Situation {
            has_account: controller.directory.account_of(namespace(network)).is_some(),
            is_offered: offer.map(|offer| offer.private_networks),
            all: &all,
            attached: controller.networks.attached(network).len(),
        })
    }

    pub(super) async fn ask(&self, network: &PrivateNetwork, question: Question) -> Asked {
        let controller = &self.controller;
        let provider = &*controller.provider;
        let account = controller.directory.holder_of(namespace(network));
        let account = account.as_ref().map_or("", |holder| holder.id.as_str());
        let call = async {
            match question {
                Question::Remove => provider.remove_network(network).await,
                _ => provider.make_network(network, account).await,
            }
        };
        if question == Question::Nothing {
            return Asked(None);
        }
        let span = traces::child("provider network", SpanKind::Client);
        let (region, limit) = (&network.spec.region, controller.provider_timeout);
        let answer = provider_call::within(provider, region, &controller.metrics, limit, span, call).await;
        if let Err(error) = &answer {
            tracing::warn!(network = key(network), %error, "provider call failed");
        }
        Asked(Some(answer))
    }
}
