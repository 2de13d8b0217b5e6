//! Deletes the API keys that expired a day ago. Until then they are shown, but Kubernetes counts them in the account's quota.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, PropagationPolicy},
};
use tokio_util::sync::CancellationToken;

use resources::ApiKey;
use runtime::{
    Clock,
    client::{CallError, Pages, bounded, only},
};

const EVERY: Duration = Duration::from_hours(1);
/// How long an expired key is shown (decisions, section 1).
const SHOWN_FOR: SignedDuration = SignedDuration::from_hours(24);

/// Deletes them until shutdown.
pub(super) async fn delete(client: &Client, clock: &dyn Clock, shutdown: &CancellationToken) {
    loop {
        if let Err(error) = sweep(client, clock.now()).await {
            tracing::warn!(%error, "cannot delete the API keys that expired a day ago; will retry in an hour");
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

async fn sweep(client: &Client, now: Timestamp) -> Result<(), CallError> {
    let Ok(until) = now.checked_sub(SHOWN_FOR) else {
        return Ok(());
    };
    let mut pages = Pages::of(Api::<ApiKey>::all(client.clone()), ListParams::default());
    while let Some(page) = pages.next().await? {
        for key in page.items.iter().filter(|key| key.is_expired(until)) {
            let parameters = DeleteParams {
                propagation_policy: Some(PropagationPolicy::Background),
                ..only(key.metadata.uid.clone(), None)
            };
            let api: Api<ApiKey> = Api::namespaced(client.clone(), &key.namespace().unwrap_or_default());
            match bounded(api.delete(&key.name_any(), &parameters)).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use runtime::testing::answered_by;

    #[tokio::test]
    async fn a_key_that_expired_a_day_ago_is_deleted() {
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let seen = deleted.clone();
        let client = answered_by(move |method, path, _| {
            let is_delete = method == http::Method::DELETE;
            if is_delete {
                seen.lock().push(path);
            }
            async move {
                if is_delete {
                    return (
                        200,
                        json!({ "apiVersion": "v1", "kind": "Status", "status": "Success" }),
                    );
                }
                let key = |name: &str, expires_at: Option<&str>| {
                    json!({
                        "apiVersion": "stellage.dev/v1", "kind": "ApiKey",
                        "metadata": { "name": name, "namespace": "demo", "uid": name, "resourceVersion": "7" },
                        "spec": { "sha256": "0".repeat(64), "scope": "read", "expiresAt": expires_at },
                    })
                };
                let list = json!({
                    "apiVersion": "stellage.dev/v1", "kind": "ApiKeyList", "metadata": { "resourceVersion": "9" },
                    "items": [
                        key("valid", Some("2026-11-30T00:00:00Z")),
                        key("for-ever", None),
                        key("yesterday", Some("2026-11-26T10:00:01Z")),
                        key("before", Some("2026-11-26T10:00:00Z")),
                    ],
                });
                (200, list)
            }
        });
        sweep(&client, "2026-11-27T10:00:00Z".parse().unwrap())
            .await
            .unwrap();
        let deleted = deleted.lock();
        let [path] = &deleted[..] else {
            panic!("{deleted:?}")
        };
        assert!(path.contains("/namespaces/demo/apikeys/before"), "{path}");
    }
}
