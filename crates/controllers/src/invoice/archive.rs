//! Keeps the invoices of a deleted Account: they move to the operator's namespace, since the account's own may be deleted.

use std::fmt::Debug;

use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
    core::{DeserializeGuard, ObjectMeta},
};
use serde::{Serialize, de::DeserializeOwned};

use resources::{
    Account, Invoice, InvoicePage,
    invoice::{FORMER_ACCOUNT_LABEL, SETTLED_LABEL},
    invoice_page::OPEN_LABEL,
    origin,
    tracking::CONTROLLER_MANAGER,
};
use runtime::client::{CallError, Pages, bounded};

/// Moves all invoices of an account. If an earlier process died midway, what it had already moved is not duplicated: names are
/// unique.
pub(super) async fn keep(client: &Client, to: &str, from: &str, account: &Account) -> Result<(), CallError> {
    let uid = origin::uid(&account.metadata);
    let former = account.name_any();
    // Pages first: an invoice whose pages have not been moved yet would seem to have none.
    each(
        client,
        to,
        from,
        &former,
        |page: &InvoicePage| page.spec.account == uid,
        |_| {},
    )
    .await?;
    let settle = |invoice: &mut Invoice| {
        if let Some(status) = &mut invoice.status {
            status.outbox.clear();
        }
        let labels = invoice.metadata.labels.get_or_insert_default();
        labels.insert(SETTLED_LABEL.to_owned(), "true".to_owned());
    };
    each(
        client,
        to,
        from,
        &former,
        |invoice: &Invoice| invoice.spec.account == uid,
        settle,
    )
    .await
}

async fn each<K>(
    client: &Client,
    to: &str,
    from: &str,
    former: &str,
    is_one: impl Fn(&K) -> bool,
    change: impl Fn(&mut K),
) -> Result<(), CallError>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned,
{
    let old: Api<DeserializeGuard<K>> = Api::namespaced(client.clone(), from);
    let new: Api<K> = Api::namespaced(client.clone(), to);
    let params = PostParams {
        field_manager: Some(CONTROLLER_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let mut pages = Pages::of(old.clone(), ListParams::default().limit(50));
    while let Some(page) = pages.next().await? {
        // Objects that do not match their schema have been reported where the books are read.
        let objects = page.items.into_iter().filter_map(|object| object.0.ok());
        for object in objects.filter(|object| is_one(object)) {
            let name = object.name_any();
            let mut labels = object.labels().clone();
            labels.remove(OPEN_LABEL);
            labels.insert(FORMER_ACCOUNT_LABEL.to_owned(), former.to_owned());
            let mut moved = object;
            *moved.meta_mut() = ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(to.to_owned()),
                labels: Some(labels),
                ..ObjectMeta::default()
            };
            change(&mut moved);
            match bounded(new.create(&params, &moved)).await {
                Err(error) if !error.is_already_exists() => return Err(error),
                _ => {}
            }
            match bounded(old.delete(&name, &DeleteParams::default())).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}
