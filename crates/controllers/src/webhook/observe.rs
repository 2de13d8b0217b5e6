//! Gathers what decisions about a webhook depend on: that of its status, and those of the dispatcher.

use jiff::Timestamp;

use super::{
    known::{CachedWebhook, Webhooks},
    shared::{Shared, State},
};
use crate::secrets::SecretProblem;
use domain::{
    delivery::{WebhookFacts, WebhookGate, WebhookKey},
    webhook::{ORIGIN_TAKEN, Obstacle, Situation, decide},
};
use resources::{
    Webhook, WebhookStatus,
    origin::{self, ORIGIN_ANNOTATION},
    revision,
};
use sender::ReceiverUrl;

impl Shared {
    /// The status that a webhook should have.
    pub(super) fn decided(
        &self,
        state: &State,
        key: &WebhookKey,
        cached: &CachedWebhook,
        now: Timestamp,
    ) -> WebhookStatus {
        let (tally, pending, held) = state.dispatcher.tally(key).unwrap_or_default();
        let secret = self.secrets.get(key, &cached.webhook);
        let situation = Situation {
            base: &cached.base,
            tally: &tally,
            pending,
            held,
            obstacle: self.obstacle(&state.webhooks, &cached.webhook, key),
            is_secret_known: secret.was_read(),
            secret_problem: secret.problem().map(SecretProblem::reason_and_message),
            secret_remark: secret.remark(),
            overlap: secret.overlap(),
            disablement: cached.disablement.as_ref(),
        };
        decide(&cached.webhook, &situation, now)
    }

    /// What the dispatcher needs to know about a webhook, which may be a copy of an older one.
    pub(super) fn facts(
        &self,
        webhooks: &Webhooks,
        webhook: &Webhook,
        key: &WebhookKey,
        is_copy: bool,
    ) -> WebhookFacts {
        let metadata = &webhook.metadata;
        let gate = if !webhook.spec.active || is_copy {
            WebhookGate::Inactive
        } else if webhook.disabled().is_some() {
            WebhookGate::Disabled
        } else if self.obstacle(webhooks, webhook, key).is_some() {
            WebhookGate::Blocked
        } else {
            WebhookGate::Open
        };
        WebhookFacts {
            namespace: metadata.namespace.as_deref().unwrap_or_default().into(),
            name: metadata.name.as_deref().unwrap_or_default().into(),
            uid: origin::uid(metadata).into(),
            object_uid: metadata.uid.as_deref().unwrap_or_default().into(),
            revision: revision(webhook),
            generation: metadata.generation.unwrap_or_default(),
            created_at: webhook.created_at(),
            events: webhook.spec.events.clone(),
            gate,
            disabled_by: webhook
                .disabled()
                .map(|disabled| disabled.delivery.as_str().into()),
        }
    }

    /// Why an active webhook cannot be sent to.
    pub(super) fn obstacle(
        &self,
        webhooks: &Webhooks,
        webhook: &Webhook,
        key: &WebhookKey,
    ) -> Option<Obstacle> {
        let namespace = webhook.metadata.namespace.as_deref().unwrap_or_default();
        if self.deps.directory.account_of(namespace).is_none() {
            let message = format!(
                "namespace {namespace} belongs to no Account, so nothing is sent; create an Account with spec.namespace {namespace}"
            );
            return Some(("NoAccount", message));
        }
        if let Some(older) = webhooks.older_twin(webhook) {
            let message = format!(
                "this is a copy of webhook {older}, which is older: both have the same annotation {ORIGIN_ANNOTATION}, so nothing is sent to this one; delete it, or create it without the annotation"
            );
            return Some((ORIGIN_TAKEN, message));
        }
        if let Err(complaint) = ReceiverUrl::parse(&webhook.spec.url, &self.deps.rules) {
            return Some(("InvalidURL", format!("spec.url {complaint}")));
        }
        let problem = self.secrets.get(key, webhook).problem();
        problem.map(SecretProblem::reason_and_message)
    }
}
