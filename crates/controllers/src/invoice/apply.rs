//! Writes what has been decided about an account's invoices.

use std::time::Duration;

use kube::{Api, Resource};
use serde::{Serialize, de::DeserializeOwned};

use super::reconcile::{Reconciler, State};
use domain::event::{OutboxVersion, outbox};
use resources::{Invoice, InvoicePage, invoice::SETTLED_LABEL, origin, tracking::CONTROLLER_MANAGER};
use runtime::client::{CallError, bounded, only, written_by};

pub(super) fn name<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

/// An invoice about which nothing is left to do.
pub(super) fn settled(mut invoice: Invoice) -> Invoice {
    let labels = invoice.metadata.labels.get_or_insert_default();
    labels.insert(SETTLED_LABEL.to_owned(), "true".to_owned());
    invoice
}

impl Reconciler {
    /// Hands the event of an issued invoice to the outbox.
    pub(super) async fn issued(&self, invoice: &Invoice) {
        let deps = &self.shared.deps;
        // The namespace may be another account's by now.
        let holder = deps.directory.account_of(&invoice.spec.account_namespace);
        if holder.is_some_and(|holder| origin::uid(&holder.metadata) == invoice.spec.account) {
            deps.outbox.recorded(&OutboxVersion::of(invoice), 0);
        }
        let note = format!(
            "{} {} over {} was issued",
            invoice.word(),
            invoice.number().unwrap_or_default(),
            invoice.content().amount.as_deref().unwrap_or_default()
        );
        deps.events.publish(invoice, false, "Issued", "Issue", &note);
        self.shared.numbers.issued(name(invoice)).await;
    }

    /// Removes settled events from the outboxes of issued invoices, and then those invoices from the watch. With `all`, also events that
    /// nobody will receive. Returns when to check again.
    pub(super) async fn settle(&self, state: &mut State, all: bool) -> Result<Option<Duration>, CallError> {
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
                &|id| all || outbox.is_settled(id),
                now,
            );
            if all {
                status.outbox.clear();
            }
            if let Some(wait) = wait.filter(|_| !all) {
                again = Some(again.map_or(wait, |again| again.min(wait)));
                left.push(invoice);
            } else {
                self.put(settled(invoice)).await?;
            }
        }
        state.issued = left;
        Ok(again)
    }

    /// Creates or replaces a page. A process that died may have written one of the next invoice, which it did not come to create.
    pub(super) async fn put_page(&self, mut page: InvoicePage) -> Result<InvoicePage, CallError> {
        let exists = match self.put(page.clone()).await {
            Err(error) if error.is_already_exists() => error,
            outcome => return outcome,
        };
        let api: Api<Invoice> = Api::namespaced(self.shared.deps.client.clone(), &self.shared.deps.namespace);
        if bounded(api.get_opt(&page.spec.invoice)).await?.is_some() {
            // Another process goes on with it.
            return Err(exists);
        }
        let stored = bounded(self.api(&page).get(name(&page))).await?;
        page.metadata.resource_version = stored.metadata.resource_version;
        self.put(page).await
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
        let (params, api) = (written_by(CONTROLLER_MANAGER), self.api(&object));
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
        let metadata = object.meta();
        let params = only(metadata.uid.clone(), metadata.resource_version.clone());
        match bounded(self.api(object).delete(name(object), &params)).await {
            Err(error) if error.is_not_found() => Ok(()),
            outcome => outcome.map(drop),
        }
    }
}
