//! Writes what has been decided about an account's invoices.

use std::time::Duration;

use kube::{
    Api, Resource,
    api::{DeleteParams, PostParams, Preconditions},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    numbers,
    reconcile::{Reconciler, State},
};
use domain::event::{OutboxVersion, outbox};
use resources::{Invoice, invoice::SETTLED_LABEL, tracking::CONTROLLER_MANAGER};
use runtime::client::{CallError, bounded};

pub(super) fn name<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

impl Reconciler {
    /// Hands the event of an issued invoice to the outbox.
    pub(super) fn issued(&self, invoice: &Invoice) {
        let deps = &self.shared.deps;
        deps.outbox.recorded(&OutboxVersion::of(invoice), 0);
        let status = invoice.status.clone().unwrap_or_default();
        let note = format!(
            "invoice {} over {} was issued",
            status.number.unwrap_or_default(),
            status.amount.unwrap_or_default()
        );
        deps.events.publish(invoice, false, "Issued", "Issue", &note);
        self.shared.numbers.issued(numbers::InvoiceRef {
            namespace: invoice.metadata.namespace.clone().unwrap_or_default(),
            name: name(invoice).to_owned(),
        });
    }

    /// Removes settled events from the outboxes of issued invoices, and then those invoices from the watch. Returns when to
    /// check again.
    pub(super) async fn settle(&self, state: &mut State) -> Result<Option<Duration>, CallError> {
        let outbox = &self.shared.deps.outbox;
        let now = self.shared.deps.clock.now();
        let (mut left, mut again) = (Vec::new(), None::<Duration>);
        let issued = std::mem::take(&mut state.issued);
        for mut invoice in issued {
            let status = invoice.status.get_or_insert_default();
            let wait = outbox::clear(
                &mut status.outbox,
                false,
                false,
                i64::MAX,
                &|id| outbox.is_settled(id),
                now,
            );
            if let Some(wait) = wait {
                again = Some(again.map_or(wait, |again| again.min(wait)));
                left.push(invoice);
            } else {
                let labels = invoice.metadata.labels.get_or_insert_default();
                labels.insert(SETTLED_LABEL.to_owned(), "true".to_owned());
                self.put(invoice).await?;
            }
        }
        state.issued = left;
        Ok(again)
    }

    fn api<K>(&self, object: &K) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        let namespace = object.meta().namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.shared.deps.client.clone(), namespace)
    }

    /// Creates or replaces an object, guarded by the resourceVersion that the decision was based on.
    pub(super) async fn put<K>(&self, object: K) -> Result<K, CallError>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        let params = PostParams {
            field_manager: Some(CONTROLLER_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let api = self.api(&object);
        let mut written = if object.meta().resource_version.is_some() {
            bounded(api.replace(name(&object), &params, &object)).await?
        } else {
            bounded(api.create(&params, &object)).await?
        };
        written.meta_mut().managed_fields = None;
        Ok(written)
    }

    pub(super) async fn delete<K>(&self, object: &K) -> Result<(), CallError>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: object.meta().uid.clone(),
                resource_version: object.meta().resource_version.clone(),
            }),
            ..DeleteParams::default()
        };
        match bounded(self.api(object).delete(name(object), &params)).await {
            Err(error) if error.is_not_found() => Ok(()),
            outcome => outcome.map(drop),
        }
    }
}
