//! Deliveries in the event log: those that succeeded at the first attempt, for which there is no Delivery object.

use kube::{
    Api, ResourceExt as _,
    api::{ListParams, PostParams},
};

use crate::{
    CliError,
    connect::{Cluster, Failure},
    objects,
};
use domain::delivery::{logged_again, logged_event};
use resources::{Delivery, EventLog, PageIndex, Webhook, origin};
use runtime::client::Pages;

/// Requests that a delivery in the log be sent again, by creating a Delivery that names its page. The operator reads what to send
/// from that page, because nobody else may write it.
pub(super) async fn send_again(
    cluster: &Cluster,
    logged: Delivery,
    webhook: &Webhook,
) -> Result<Delivery, Failure> {
    let (name, namespace) = (logged.name_any(), logged.namespace().unwrap_or_default());
    let request = logged_again(logged, webhook);
    let api = Api::<Delivery>::namespaced(cluster.client.clone(), &namespace);
    let doing = format!("send delivery {name} in namespace {namespace}");
    cluster
        .call(&doing, api.create(&PostParams::default(), &request))
        .await
}

/// The delivery with this name in the log, and its webhook.
pub(super) async fn find(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
) -> Result<Option<(Delivery, Webhook)>, CliError> {
    let webhooks: Vec<Webhook> = objects::list(cluster, namespace).await?;
    if webhooks.is_empty() {
        return Ok(None);
    }
    for (page, index) in list_pages(cluster, namespace).await? {
        for webhook in &webhooks {
            let uid = origin::uid(&webhook.metadata);
            if let Some(event) = logged_event(&index, uid, name)
                && let Some(page) = read(cluster, namespace, &page).await?
                && let Some(delivery) = page.delivery_of(&event, uid)
            {
                return Ok(Some((delivery, webhook.clone())));
            }
        }
    }
    Ok(None)
}

async fn list_pages(cluster: &Cluster, namespace: &str) -> Result<Vec<(String, PageIndex)>, CliError> {
    let api = Api::<EventLog>::namespaced(cluster.client.clone(), namespace);
    let doing = format!("list eventlogs in namespace {namespace}");
    let pages = Pages::of(api, ListParams::default());
    let pages = cluster.list(&doing, pages, Pages::next_metadata).await?;
    let read = pages
        .iter()
        .map(|page| (page.name_any(), PageIndex::read(&page.metadata)));
    Ok(read.filter_map(|(name, index)| Some((name, index?))).collect())
}

/// A page; `None` if it has been deleted.
async fn read(cluster: &Cluster, namespace: &str, name: &str) -> Result<Option<EventLog>, CliError> {
    let api = Api::<EventLog>::namespaced(cluster.client.clone(), namespace);
    let doing = format!("read eventlog {name} in namespace {namespace}");
    Ok(cluster.call(&doing, api.get_opt(name)).await?)
}
