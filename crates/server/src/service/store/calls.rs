//! Calls to the API server, bounded in time and in number.

use std::{fmt::Debug, sync::Arc, time::Duration};

use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::modify::{MAX_ATTEMPTS, pause};
use crate::service::index::Object;
use resources::{ids, quota, tracking::API_MANAGER};
use runtime::{
    FairPermits,
    client::{CallError, Pages, bounded, only, written_by},
    fair_permits::Permit,
};

/// Maximum number of concurrent calls (decisions, section 8). The API server's default limit for all clients is 400 reads
/// and 200 writes.
pub const MAX_CALLS: usize = 128;
/// How long a call may wait for its turn. Shorter than the timeouts of most clients, so that they learn the reason.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of concurrent requests of one account that read many objects.
const LONG_READS_PER_ACCOUNT: usize = 2;
/// How many of these requests, over all accounts, may read a page at the same time. Each then has a page in memory.
const PAGES_AT_ONCE: usize = 16;

/// The API server, for objects of any kind. Accounts, which are identified by their namespaces, take turns.
pub struct ApiCalls {
    client: Client,
    permits: Arc<FairPermits>,
    long_reads: Arc<FairPermits>,
    pages: Arc<FairPermits>,
    longest_wait: Duration,
}

impl ApiCalls {
    /// Calls through `client`, at most `at_once` at a time, half of them for any one account.
    pub fn new(client: Client, at_once: usize) -> Self {
        Self {
            client,
            permits: FairPermits::new(at_once, at_once.div_ceil(2)),
            long_reads: FairPermits::new(usize::MAX, LONG_READS_PER_ACCOUNT),
            pages: FairPermits::new(PAGES_AT_ONCE, LONG_READS_PER_ACCOUNT),
            longest_wait: LONGEST_WAIT,
        }
    }

    /// The objects of a kind in a namespace.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Waits for a permit to make a call; hold it during the call.
    pub async fn permit(&self, namespace: &str) -> Result<Permit, CallError> {
        self.in_time(&self.permits, namespace).await
    }

    /// Waits until the account may read many objects page by page, or change them; hold the result to the end. Each page needs a
    /// turn, and each call a permit of its own.
    pub async fn long_read<'a>(&'a self, namespace: &'a str) -> Result<LongRead<'a>, CallError> {
        Ok(LongRead {
            calls: self,
            namespace,
            _permit: self.in_time(&self.long_reads, namespace).await?,
        })
    }

    async fn in_time(&self, permits: &Arc<FairPermits>, namespace: &str) -> Result<Permit, CallError> {
        tokio::time::timeout(self.longest_wait, permits.acquire(namespace))
            .await
            .map_err(|_| CallError::Busy)
    }

    /// The current object, if it exists. A text that cannot be a name does not become part of a path.
    pub async fn get<K: Object>(&self, namespace: &str, name: &str) -> Result<Option<K>, CallError> {
        self.get_in(namespace, name, namespace).await
    }

    /// Like [`get`](Self::get), of an object of an account that is in another namespace; the call counts as that account's.
    pub async fn get_in<K: Object>(
        &self,
        namespace: &str,
        name: &str,
        account: &str,
    ) -> Result<Option<K>, CallError> {
        if !ids::is_object_name(name) {
            return Ok(None);
        }
        let _permit = self.permit(account).await?;
        bounded(self.api(namespace).get_opt(name)).await
    }

    /// Creates an object. Tries again while the API server cannot count it.
    pub async fn create<K: Object>(&self, namespace: &str, object: &K) -> Result<K, CallError> {
        let parameters = written_by(API_MANAGER);
        let mut attempt = 1;
        loop {
            let permit = self.permit(namespace).await?;
            let created = bounded(self.api(namespace).create(&parameters, object)).await;
            let refusal = created.as_ref().err().and_then(CallError::status);
            if attempt == MAX_ATTEMPTS || !refusal.is_some_and(quota::is_contended) {
                return created;
            }
            drop(permit);
            pause(attempt).await;
            attempt += 1;
        }
    }

    /// Changes an object with a merge patch.
    pub async fn patch<K: Object>(&self, namespace: &str, name: &str, patch: &Value) -> Result<K, CallError> {
        let parameters = PatchParams::apply(API_MANAGER);
        let _permit = self.permit(namespace).await?;
        bounded(self.api(namespace).patch(name, &parameters, &Patch::Merge(patch))).await
    }

    /// Changes the status of an object with a merge patch.
    pub async fn patch_status<K: Object>(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<K, CallError> {
        let parameters = PatchParams::apply(API_MANAGER);
        let _permit = self.permit(namespace).await?;
        let patch = Patch::Merge(patch);
        bounded(self.api(namespace).patch_status(name, &parameters, &patch)).await
    }

    /// Deletes the object with this UID; with `exactly`, only this version. Returns the terminating object if a finalizer
    /// delays the deletion. An object that does not exist counts as deleted, perhaps by an earlier attempt of this call: the client
    /// retries when the API server answers 503 or 504.
    pub async fn delete<K: Object>(&self, object: &K, exactly: bool) -> Result<Option<K>, CallError> {
        let metadata = object.meta();
        let version = metadata.resource_version.clone().filter(|_| exactly);
        let parameters = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            ..only(metadata.uid.clone(), version)
        };
        let _permit = self.permit(object.namespace()).await?;
        let api = self.api::<K>(object.namespace());
        match bounded(api.delete(object.name(), &parameters)).await {
            Err(error) if error.is_not_found() => Ok(None),
            deleted => Ok(deleted?.left()),
        }
    }
}

/// An account's permission to read many objects page by page.
pub struct LongRead<'a> {
    calls: &'a ApiCalls,
    namespace: &'a str,
    _permit: Permit,
}

impl LongRead<'_> {
    /// Waits for the account's turn to read a page. Release it before the next page: others may be waiting.
    pub async fn turn(&self) -> Result<Permit, CallError> {
        self.calls.in_time(&self.calls.pages, self.namespace).await
    }

    /// The objects of a kind in the account's namespace that `params` select; [`page`](Self::page) reads them.
    pub fn pages<K>(&self, params: ListParams) -> Pages<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        self.pages_in(self.namespace, params)
    }

    /// Those in another namespace; `params` must select the account's.
    pub fn pages_in<K>(&self, namespace: &str, params: ListParams) -> Pages<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        Pages::of(self.calls.api(namespace), params)
    }

    /// What `next` reads of the next page, with the turn to be held as long; `None` after the last page.
    pub async fn page<K, T>(
        &self,
        pages: &mut Pages<K>,
        next: impl AsyncFnOnce(&mut Pages<K>) -> Result<Option<T>, CallError>,
    ) -> Result<Option<(T, Permit)>, CallError>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        if !pages.has_next() {
            return Ok(None);
        }
        let turn = self.turn().await?;
        let _permit = self.calls.permit(self.namespace).await?;
        Ok(next(pages).await?.map(|page| (page, turn)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use k8s_openapi::api::core::v1::Secret;
    use kube::Config;
    use serde_json::json;

    use super::*;
    use resources::Instance;
    use runtime::testing::answered_by;

    #[tokio::test]
    async fn a_create_that_the_api_server_cannot_count_is_tried_again_for_a_while() {
        for (refused, attempts) in [(2, 3), (u32::MAX, MAX_ATTEMPTS)] {
            let received = Arc::new(AtomicU32::new(0));
            let counted = received.clone();
            let client = answered_by(move |_, _, object| {
                let is_refused = counted.fetch_add(1, Ordering::Relaxed) < refused;
                async move {
                    if !is_refused {
                        return (201, object);
                    }
                    let refusal = json!({
                        "kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409,
                        "message": "Operation cannot be fulfilled on resourcequotas \"stellage\": the object has been modified",
                        "details": { "name": "stellage", "kind": "resourcequotas" },
                    });
                    (409, refusal)
                }
            });
            let instance = Instance::new(
                "web",
                serde_json::from_value(json!({
                    "plan": "starter", "region": "fr-par-1", "image": "debian-13",
                }))
                .unwrap(),
            );
            let created = ApiCalls::new(client, 4).create("demo", &instance).await;
            assert_eq!(created.is_ok(), attempts < MAX_ATTEMPTS);
            assert_eq!(received.load(Ordering::Relaxed), attempts);
        }
    }

    #[tokio::test]
    async fn a_text_that_is_no_name_does_not_become_part_of_a_path() {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = asked.clone();
        let client = answered_by(move |_, _, _| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { (200, json!({ "metadata": { "name": "x" } })) }
        });
        let calls = ApiCalls::new(client, 4);
        for odd in ["x?dryRun=All", "../../other/secrets/x", "a/b", "..", ""] {
            let found: Option<Secret> = calls.get("demo", odd).await.unwrap();
            assert!(found.is_none(), "{odd}");
        }
        assert_eq!(asked.load(Ordering::Relaxed), 0);
        assert!(calls.get::<Secret>("demo", "x").await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_call_that_waits_too_long_is_refused_and_another_account_is_not() {
        let nowhere = Config::new("http://127.0.0.1:1".parse().unwrap());
        let mut calls = ApiCalls::new(Client::try_from(nowhere).unwrap(), 4);
        calls.longest_wait = Duration::from_millis(10);
        let held = [calls.permit("big").await, calls.permit("big").await];
        assert!(held.iter().all(Result::is_ok));
        assert!(matches!(calls.permit("big").await, Err(CallError::Busy)));
        assert!(calls.permit("small").await.is_ok());
        drop(held);
        assert!(calls.permit("big").await.is_ok());
    }

    #[tokio::test]
    async fn an_account_reads_two_logs_at_once_and_a_third_waits() {
        let nowhere = Config::new("http://127.0.0.1:1".parse().unwrap());
        let mut calls = ApiCalls::new(Client::try_from(nowhere).unwrap(), 4);
        calls.longest_wait = Duration::from_millis(10);
        let held = [calls.long_read("big").await, calls.long_read("big").await];
        assert!(held.iter().all(Result::is_ok));
        assert!(matches!(calls.long_read("big").await, Err(CallError::Busy)));
        assert!(calls.long_read("small").await.is_ok());
        assert!(calls.permit("big").await.is_ok());
    }
}
