//! Makes sure that no webhook was overlooked: after an event was recorded, the webhooks of its namespace are listed once more,
//! straight from etcd. A webhook whose creation was acknowledged before the operation is in that list, however far the watch
//! lags behind (decisions, section 5). Events that come together share a list, so the cost does not grow with their rate.

use std::{sync::Arc, time::Duration};

use futures::future::try_join_all;
use kube::{Api, Client, api::ListParams};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::hub::Hub;
use crate::{
    resources::Webhook,
    runtime::client::{CallError, bounded},
};

/// Events of so long share a list.
const GATHER: Duration = Duration::from_millis(50);
/// Lists take at most a fifth of the time.
const REST: u32 = 4;
/// Namespaces that are listed one by one; of more, all webhooks of the cluster are listed.
const MAX_NAMESPACES: usize = 8;
/// Webhooks on one page of a list.
const PAGE: u32 = 500;
/// Pause after a list failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Runs until shutdown.
pub(super) async fn run(hub: Arc<Hub>, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = hub.unverified.notified() => {}
        }
        tokio::time::sleep(GATHER).await;
        loop {
            let begun = Instant::now();
            let unverified = hub.state.lock().dispatcher.unverified();
            if unverified.is_empty() {
                break;
            }
            let namespaces: Vec<&str> = unverified.keys().map(|namespace| &**namespace).collect();
            let pause = match list(&hub.deps.client, &namespaces).await {
                Ok(webhooks) => {
                    let now = hub.now();
                    let mut state = hub.state.lock();
                    for webhook in webhooks {
                        hub.webhook_listed(&mut state, webhook, now);
                    }
                    for events in unverified.values() {
                        state.dispatcher.verified(events, now);
                    }
                    hub.wake.notify_one();
                    begun.elapsed() * REST
                }
                Err(error) => {
                    tracing::warn!(%error, "webhooks cannot be listed; events wait for it, it will be tried again");
                    AFTER_FAILURE
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

async fn list(client: &Client, namespaces: &[&str]) -> Result<Vec<Webhook>, CallError> {
    if namespaces.len() > MAX_NAMESPACES {
        return pages(Api::all(client.clone())).await;
    }
    let lists = namespaces
        .iter()
        .map(|namespace| pages(Api::namespaced(client.clone(), namespace)));
    Ok(try_join_all(lists).await?.concat())
}

/// Objects that do not parse are left out: nothing is ever sent to them.
async fn pages(api: Api<Webhook>) -> Result<Vec<Webhook>, CallError> {
    let mut params = ListParams::default().limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = bounded(api.list(&params)).await?;
        let next = page.metadata.continue_.filter(|token| !token.is_empty());
        all.extend(page.items);
        match next {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}
