//! The I/O: reads, calls `decide`, applies the result and writes the status.

use std::{collections::BTreeMap, fmt::Debug, future::Future, sync::atomic::Ordering, time::Duration};

use futures::{TryStreamExt as _, stream};
use k8s_openapi::{
    api::{
        core::v1::{Namespace, ResourceQuota, Secret},
        rbac::v1::RoleBinding,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use super::{
    AccountError, CONTROLLER, Shared,
    children::{self, Grant},
    resync,
};
use domain::account::{self as decide, Claim, Contents, NamespaceRefusal, NamespaceView, Outcome, Removal};
use resources::{
    ACCOUNT_LABEL, Account, AccountStatus, ApiKey, Backup, Delivery, EventLog, Instance, PrivateNetwork,
    Webhook,
    account::{ADOPTED_FOR_ANNOTATION, FINALIZER, SUSPENDED_ANNOTATION, SUSPENDED_SERVERS_ANNOTATION},
    conditions, ids, origin,
    webhook::WEBHOOK_SECRET_LABEL,
};
use runtime::client::{Pages, bounded, only, written_by};

/// When to check again for something that no watch reports: the deletion of a foreign namespace.
const CHECK_AGAIN: Duration = Duration::from_secs(30);
/// When to check again whether a namespace is gone, which takes about 5 s, or whether Kubernetes can count all kinds, which
/// takes up to 30 s.
const CHECK_AGAIN_SOON: Duration = Duration::from_secs(3);
/// When to check again whether the last invoice of a deleted Account is issued and kept.
const UNTIL_CLOSED: Duration = Duration::from_millis(500);
/// When to check again whether Kubernetes has counted a new quota, which takes some tenths of a second.
const QUOTA_POLL: Duration = Duration::from_millis(500);
const INSTANCES: (&str, &str) = ("instance", "instances");
const PROTECTED: (&str, &str) = ("protected instance", "protected instances");
const NETWORKS: (&str, &str) = ("private network", "private networks");
const BACKUPS: (&str, &str) = ("backup", "backups");
const COMPLETED: (&str, &str) = ("completed backup", "completed backups");
/// Maximum number of concurrent deletions.
const CONCURRENCY: usize = 8;

/// Runs an API call and adds its purpose to any error.
trait Doing<T> {
    async fn doing(self, what: &'static str) -> Result<T, AccountError>;
}

impl<T, F: Future<Output = kube::Result<T>>> Doing<T> for F {
    async fn doing(self, what: &'static str) -> Result<T, AccountError> {
        bounded(self)
            .await
            .map_err(|source| AccountError::Call { doing: what, source })
    }
}

/// Treats 404 as success.
fn gone_is_fine<T>(outcome: Result<T, AccountError>) -> Result<(), AccountError> {
    match outcome {
        Err(AccountError::Call { source, .. }) if source.is_not_found() => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// Whether an operator has worked on an object. Others belong to nobody yet.
fn is_used(metadata: &ObjectMeta) -> bool {
    !origin::is_missing(metadata)
}

/// Whether nobody has deleted an object yet.
fn stays(metadata: &ObjectMeta) -> bool {
    metadata.deletion_timestamp.is_none()
}

pub(super) async fn reconcile(shared: &Shared, account: &Account) -> Result<Option<Duration>, AccountError> {
    let work = Work {
        shared,
        namespace: account.wanted_namespace().to_owned(),
    };
    let namespace = Api::<Namespace>::all(shared.deps.client.clone())
        .get_opt(&work.namespace)
        .doing("read the namespace")
        .await?;
    let view = namespace.as_ref().map(NamespaceView::of);
    let (claimants, older) = {
        let claims = shared.claims.lock();
        (claims.of(&work.namespace), claims.older_twin(account))
    };
    if account.metadata.deletion_timestamp.is_some() {
        let view = view.filter(|_| older.is_none());
        return work.remove(account, namespace.as_ref(), view.as_ref()).await;
    }
    shared.draining.lock().remove(&work.namespace);
    if let Some(older) = older {
        return work.refuse(account, decide::copy_of(&older)).await;
    }
    match decide::claim(account, &shared.deps.namespace, &claimants, view.as_ref()) {
        Claim::Refused(refusal) => work.refuse(account, refusal).await,
        Claim::Create => work.ensure(account, Start::Create, None).await,
        Claim::Relabel => work.ensure(account, Start::Repair, namespace.as_ref()).await,
        Claim::Adopt => {
            let used = [
                work.contents::<Instance>(INSTANCES, "", is_used).await?,
                work.contents::<Webhook>(("webhook", "webhooks"), "", is_used)
                    .await?,
                work.contents::<Backup>(BACKUPS, "", is_used).await?,
                work.contents::<PrivateNetwork>(NETWORKS, "", is_used).await?,
            ];
            match decide::in_use(account, &used) {
                Some(refusal) => work.refuse(account, refusal).await,
                None => work.ensure(account, Start::Adopt, namespace.as_ref()).await,
            }
        }
        Claim::Own { adopted: true } => work.ensure(account, Start::Adopted, namespace.as_ref()).await,
        Claim::Own { adopted: false } => {
            let wanted = children::namespace(account);
            let intact = namespace
                .as_ref()
                .is_some_and(|is| children::metadata_matches(&is.metadata, &wanted.metadata));
            let start = if intact { Start::Created } else { Start::Repair };
            work.ensure(account, start, namespace.as_ref()).await
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Create,
    Repair,
    Created,
    Adopt,
    Adopted,
}

/// Whether Kubernetes has computed the quota. Until then, the API server refuses to create the objects that it limits.
enum Quota {
    Counts,
    DoesNotCountYet,
    /// It counts at most instances. No other limit is set yet, because Kubernetes cannot count a new kind
    /// immediately.
    InPart,
}

struct Work<'a> {
    shared: &'a Shared,
    namespace: String,
}

impl Work<'_> {
    fn all<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = ()>,
    {
        Api::all(self.shared.deps.client.clone())
    }

    fn inside<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.shared.deps.client.clone(), &self.namespace)
    }

    /// Writes why the Account does not get its namespace.
    async fn refuse(
        &self,
        account: &Account,
        refusal: NamespaceRefusal,
    ) -> Result<Option<Duration>, AccountError> {
        let again = if refusal.is_temporary {
            CHECK_AGAIN_SOON
        } else {
            CHECK_AGAIN
        };
        let reason = refusal.reason;
        let message = refusal.message.clone();
        if self.write_status(account, &Outcome::Refused(refusal)).await? {
            let events = &self.shared.deps.events;
            events.publish(account, true, reason, "ClaimNamespace", &message);
        }
        Ok(Some(again))
    }

    /// Creates or repairs the namespace of an Account and the objects in it. `before` is the namespace, if there is one.
    async fn ensure(
        &self,
        account: &Account,
        start: Start,
        before: Option<&Namespace>,
    ) -> Result<Option<Duration>, AccountError> {
        // Set the finalizer first, so that everything created later is cleaned up.
        let mut account = account.clone();
        let has_finalizer = account.finalizers().iter().any(|f| f == FINALIZER);
        if !has_finalizer || origin::is_missing(&account.metadata) {
            account = self.mark(&account).await?;
        }
        let namespace = self.ensure_namespace(&account, start).await;
        let adopted = matches!(start, Start::Adopt | Start::Adopted);
        // An owned namespace stays owned even if a repair fails.
        let is_new = matches!(start, Start::Create | Start::Adopt);
        let owned = (namespace.is_ok() || !is_new).then_some(adopted);
        let suspension = match namespace {
            Ok(()) => self.ensure_suspension(&account, before).await,
            Err(error) => Err(error),
        };
        let children = match suspension {
            Ok(()) => self.ensure_children(&account).await,
            Err(error) => Err(error),
        };
        let next = match children {
            Ok(Quota::DoesNotCountYet) => Some(QUOTA_POLL),
            Ok(Quota::InPart) => Some(CHECK_AGAIN_SOON),
            _ => Some(resync()),
        };
        let outcome = match children {
            Ok(Quota::Counts | Quota::InPart) => Outcome::Ready { adopted },
            Ok(Quota::DoesNotCountYet) => Outcome::QuotaPending { adopted },
            Err(error) => {
                // Show only refusals by the API server in the status; other errors are temporary.
                let AccountError::Call { doing, source } = &error;
                if let Some(status) = source.status().filter(|_| !source.is_conflict()) {
                    let message = format!("cannot {doing}: {}", status.message);
                    self.write_status(&account, &Outcome::Failed { owned, message })
                        .await?;
                }
                return Err(error);
            }
        };
        let was_owned = account.owned_namespace().is_some();
        let now = self.shared.deps.clock.now();
        let mut status = decide::status(&account, &outcome, now);
        decide::set_mail(
            &mut status,
            self.shared.deps.has_mail,
            account.metadata.generation,
            now,
        );
        self.put_status(&account, status).await?;
        if adopted && !was_owned {
            let note = format!("adopted namespace {}", self.namespace);
            let events = &self.shared.deps.events;
            events.publish(&account, false, "NamespaceAdopted", "ClaimNamespace", &note);
        }
        Ok(next)
    }

    async fn ensure_namespace(&self, account: &Account, start: Start) -> Result<(), AccountError> {
        let wanted = children::namespace(account);
        match start {
            Start::Created | Start::Adopted => {}
            Start::Adopt => {
                let owner = json!({ ADOPTED_FOR_ANNOTATION: origin::uid(&account.metadata) });
                let patch = Patch::Merge(json!({ "metadata": { "annotations": owner } }));
                self.all::<Namespace>()
                    .patch_metadata(&self.namespace, &PatchParams::default(), &patch)
                    .doing("adopt the namespace")
                    .await?;
            }
            // A plain create: server-side apply would take over a namespace that somebody else has just
            // created.
            Start::Create => {
                self.all::<Namespace>()
                    .create(&written_by(CONTROLLER), &wanted)
                    .doing("create the namespace")
                    .await?;
                let note = format!("created namespace {}", self.namespace);
                let events = &self.shared.deps.events;
                events.publish(account, false, "NamespaceCreated", "ClaimNamespace", &note);
            }
            Start::Repair => {
                self.apply(self.all(), &wanted, "label the namespace").await?;
            }
        }
        Ok(())
    }

    /// Has the namespace say whether the account is suspended, for the admission policies.
    async fn ensure_suspension(
        &self,
        account: &Account,
        before: Option<&Namespace>,
    ) -> Result<(), AccountError> {
        let is = before.and_then(|before| before.metadata.annotations.as_ref());
        let wanted = account.suspension_annotations();
        let is_right = |(name, wanted): &(_, Option<&str>)| {
            is.and_then(|is| is.get(*name)).map(String::as_str) == *wanted
        };
        if wanted.iter().all(is_right) {
            return Ok(());
        }
        let annotations: BTreeMap<_, _> = wanted.into();
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        self.all::<Namespace>()
            .patch_metadata(&self.namespace, &PatchParams::default(), &patch)
            .doing("annotate the namespace")
            .await?;
        Ok(())
    }

    async fn ensure_children(&self, account: &Account) -> Result<Quota, AccountError> {
        let deps = &self.shared.deps;
        self.ensure_binding(account, children::OPERATOR, &deps.service_account)
            .await?;
        if let Some(service_account) = &deps.api_service_account {
            self.ensure_binding(account, children::API, service_account)
                .await?;
        }
        self.ensure_quota(account).await
    }

    async fn ensure_binding(
        &self,
        account: &Account,
        grant: Grant,
        service_account: &str,
    ) -> Result<(), AccountError> {
        let bindings = self.inside::<RoleBinding>();
        let wanted = children::role_binding(account, grant, &self.shared.deps.namespace, service_account);
        let is = bindings
            .get_opt(grant.binding)
            .doing("read the RoleBinding")
            .await?;
        if let Some(is) = &is
            && is.role_ref != wanted.role_ref
        {
            // The roleRef of a RoleBinding is immutable.
            self.delete(
                &bindings,
                grant.binding,
                "delete the RoleBinding that grants something else",
            )
            .await?;
        }
        if !is.is_some_and(|is| children::binding_matches(&is, &wanted)) {
            self.apply(bindings, &wanted, "apply the RoleBinding").await?;
        }
        Ok(())
    }

    async fn ensure_quota(&self, account: &Account) -> Result<Quota, AccountError> {
        let quotas = self.inside::<ResourceQuota>();
        let is = quotas
            .get_opt(children::QUOTA_NAME)
            .doing("read the ResourceQuota")
            .await?;
        let mut limits = children::limits(account, self.shared.deps.quotas);
        let all_count = self.all_count(is.as_ref()).await?;
        if !all_count {
            limits = children::at_first(account, limits);
            if limits.is_empty() {
                return Ok(Quota::InPart);
            }
        }
        let wanted = children::quota(account, &limits);
        let is = match is {
            Some(is) if children::quota_matches(&is, &wanted, &limits) => {
                let now = self.shared.deps.clock.now();
                if children::quota_is_stuck(&is, &limits, now) {
                    tracing::debug!(
                        namespace = self.namespace,
                        "recreating a quota that Kubernetes has never counted"
                    );
                    self.recreate_quota(quotas, &wanted).await?
                } else {
                    is
                }
            }
            // Scopes are immutable, and server-side apply would keep limits that others have set.
            Some(is) if children::has_more(&is) => self.recreate_quota(quotas, &wanted).await?,
            _ => {
                let applied = self
                    .apply(quotas.clone(), &wanted, "apply the ResourceQuota")
                    .await?;
                if children::limits_to(&applied, &limits) {
                    applied
                } else {
                    // A limit that the Account no longer has is still set, because another field manager owns it too.
                    self.recreate_quota(quotas, &wanted).await?
                }
            }
        };
        Ok(match children::quota_counts(&is, &limits) {
            true if all_count => Quota::Counts,
            true => Quota::InPart,
            false => Quota::DoesNotCountYet,
        })
    }

    /// Whether Kubernetes can count all kinds. It can once it has done so for this quota or for a probe.
    async fn all_count(&self, quota: Option<&ResourceQuota>) -> Result<bool, AccountError> {
        let known = &self.shared.all_count;
        if known.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let deps = &self.shared.deps;
        let quotas = Api::<ResourceQuota>::namespaced(deps.client.clone(), &deps.namespace);
        let (wanted, limits) = children::probe(&deps.namespace);
        let probe = quotas
            .get_opt(&wanted.name_any())
            .doing("read the probe quota")
            .await?;
        if [quota, probe.as_ref()]
            .into_iter()
            .flatten()
            .any(children::counts_all)
        {
            known.store(true, Ordering::Relaxed);
            if probe.is_some() {
                self.delete(&quotas, &wanted.name_any(), "delete the probe quota")
                    .await?;
            }
            return Ok(true);
        }
        match probe {
            Some(probe) if !children::quota_is_stuck(&probe, &limits, deps.clock.now()) => {}
            Some(_) => {
                self.recreate_quota(quotas, &wanted).await?;
            }
            None => {
                tracing::info!(
                    "waiting for Kubernetes to count the kinds, which takes up to 40 s after the CRDs were installed"
                );
                self.apply(quotas, &wanted, "create the probe quota").await?;
            }
        }
        Ok(false)
    }

    async fn recreate_quota(
        &self,
        quotas: Api<ResourceQuota>,
        wanted: &ResourceQuota,
    ) -> Result<ResourceQuota, AccountError> {
        self.delete(&quotas, &wanted.name_any(), "delete the ResourceQuota")
            .await?;
        self.apply(quotas, wanted, "apply the ResourceQuota").await
    }

    async fn apply<K>(&self, api: Api<K>, wanted: &K, doing: &'static str) -> Result<K, AccountError>
    where
        K: Resource + Clone + Debug + Serialize + DeserializeOwned,
    {
        let parameters = PatchParams::apply(CONTROLLER).force();
        api.patch(&wanted.name_any(), &parameters, &Patch::Apply(wanted))
            .doing(doing)
            .await
    }

    /// Adds the finalizer and the origin.
    async fn mark(&self, account: &Account) -> Result<Account, AccountError> {
        let mut finalizers = account.finalizers().to_vec();
        finalizers.retain(|name| name != FINALIZER);
        finalizers.push(FINALIZER.to_owned());
        self.write_finalizers(account, &finalizers, "add the finalizer")
            .await
    }

    /// Replaces the finalizers, guarded by the resourceVersion, so that no other controller's finalizer is lost.
    async fn write_finalizers(
        &self,
        account: &Account,
        finalizers: &[String],
        doing: &'static str,
    ) -> Result<Account, AccountError> {
        let mut patch = json!({ "metadata": {
            "resourceVersion": account.metadata.resource_version,
            "finalizers": finalizers,
        }});
        origin::add_to(&mut patch, &account.metadata);
        let parameters = PatchParams::apply(CONTROLLER);
        self.all::<Account>()
            .patch(&account.name_any(), &parameters, &Patch::Merge(patch))
            .doing(doing)
            .await
    }

    /// Deletes what a deleted Account owns, its instances first, and then removes its finalizer. Touches nothing while something
    /// holds it back.
    async fn remove(
        &self,
        account: &Account,
        namespace: Option<&Namespace>,
        view: Option<&NamespaceView>,
    ) -> Result<Option<Duration>, AccountError> {
        if !account.finalizers().iter().any(|f| f == FINALIZER) {
            // Another controller's finalizer still holds the Account.
            return Ok(None);
        }
        let removal = decide::removal(account, &self.shared.deps.namespace, view);
        if let (Removal::Empty { created_by_operator }, Some(namespace)) = (removal, namespace) {
            // Register before listing, so that a deletion right after the list is not missed.
            self.shared.draining.lock().insert(self.namespace.clone());
            let adopted = !created_by_operator;
            let ledger = &self.shared.deps.ledger;
            let protected = self.contents::<Instance>(PROTECTED, "spec.deletionProtection=true", stays);
            let completed = self.contents::<Backup>(COMPLETED, "status.phase=Completed", stays);
            if let Some(in_the_way) = decide::in_the_way(protected.await?, completed.await?) {
                ledger.reopen(&super::uid(account));
                let note = format!("cannot be deleted yet: {in_the_way}");
                let outcome = Outcome::HeldBack { adopted, in_the_way };
                if self.write_status(account, &outcome).await? {
                    let events = &self.shared.deps.events;
                    events.publish(account, true, "DeletionHeldBack", "Delete", &note);
                }
                return Ok(Some(CHECK_AGAIN));
            }
            let rest = [
                self.contents::<Instance>(INSTANCES, "", |_| true).await?,
                // A failed backup has no end to wait for.
                self.contents::<Backup>(BACKUPS, "status.phase!=Failed", |_| true)
                    .await?,
                self.contents::<PrivateNetwork>(NETWORKS, "", |_| true).await?,
            ];
            if let Some(contents) = decide::enumerated(&rest) {
                ledger.reopen(&super::uid(account));
                self.write_status(account, &Outcome::Deleting { adopted, contents })
                    .await?;
                let all = ListParams::default();
                self.delete_all::<Instance>(&all, "list the instances", "delete an instance")
                    .await?;
                // They stay until their instances are gone.
                self.delete_all::<PrivateNetwork>(
                    &all,
                    "list the private networks",
                    "delete a private network",
                )
                .await?;
                return Ok(Some(CHECK_AGAIN));
            }
            if account.owned_namespace().is_some() && !ledger.is_closed(&super::uid(account), &self.namespace)
            {
                return Ok(Some(UNTIL_CLOSED));
            }
            let id = ids::account_id(origin::uid(&account.metadata));
            let clusters = &self.shared.deps.clusters;
            if let Err(error) = clusters.forget_account(&self.namespace, &id).await {
                tracing::warn!(namespace = self.namespace, %error, "the account's servers have left something; trying again");
                return Ok(Some(CHECK_AGAIN));
            }
            self.clear(namespace, created_by_operator).await?;
        }
        let rest: Vec<String> = account
            .finalizers()
            .iter()
            .filter(|f| *f != FINALIZER)
            .cloned()
            .collect();
        gone_is_fine(
            self.write_finalizers(account, &rest, "remove the finalizer")
                .await,
        )?;
        self.shared.draining.lock().remove(&self.namespace);
        Ok(None)
    }

    /// The objects of a kind in the namespace that count: those on the first page that has any. Listed straight from the API
    /// server: a watch may lag behind, and deleting the namespace deletes everything in it.
    async fn contents<K>(
        &self,
        words: (&'static str, &'static str),
        selector: &str,
        counts: impl Fn(&ObjectMeta) -> bool,
    ) -> Result<Contents, AccountError>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let mut pages = Pages::of(self.inside::<K>(), ListParams::default().fields(selector));
        let failed = |source| AccountError::Call {
            doing: "list the contents of the namespace",
            source,
        };
        while let Some(page) = pages.next_metadata().await.map_err(failed)? {
            let counted = page.items.iter().filter(|object| counts(&object.metadata));
            let names: Vec<String> = counted.map(kube::ResourceExt::name_any).collect();
            if !names.is_empty() {
                return Ok(Contents {
                    words,
                    count: names.len() as u64,
                    has_more: page.metadata.continue_.is_some_and(|token| !token.is_empty()),
                    names,
                });
            }
        }
        Ok(Contents {
            words,
            ..Contents::default()
        })
    }

    /// Deletes the ApiKeys, then the namespace. If the namespace was adopted, deletes the operator's objects in it
    /// instead, including the webhooks, their deliveries, the event log and the signing Secrets, and takes its label away.
    async fn clear(&self, namespace: &Namespace, created_by_operator: bool) -> Result<(), AccountError> {
        let all = ListParams::default();
        self.delete_all::<ApiKey>(&all, "list the ApiKeys", "delete an ApiKey")
            .await?;
        if created_by_operator {
            let parameters = only(namespace.metadata.uid.clone(), None);
            let namespaces = self.all::<Namespace>();
            let deleted = namespaces.delete(&self.namespace, &parameters);
            return gone_is_fine(deleted.doing("delete the namespace").await);
        }
        self.delete_all::<Webhook>(&all, "list the Webhooks", "delete a Webhook")
            .await?;
        // If their owner was deleted with `--cascade=orphan`, Kubernetes does not delete them.
        self.delete_all::<Delivery>(&all, "list the Deliveries", "delete a Delivery")
            .await?;
        self.delete_all::<EventLog>(&all, "list the EventLogs", "delete an EventLog")
            .await?;
        self.delete_all::<Backup>(&all, "list the Backups", "delete a Backup")
            .await?;
        let bindings = self.inside::<RoleBinding>();
        let binding = bindings.get_opt(children::OPERATOR.binding);
        // If it is gone, an earlier attempt has already done this, and Secrets can no longer be listed.
        if binding.doing("read the RoleBinding").await?.is_some() {
            let signing = ListParams::default().labels(&format!("{WEBHOOK_SECRET_LABEL}=true"));
            self.delete_all::<Secret>(&signing, "list the signing Secrets", "delete a signing Secret")
                .await?;
        }
        let quotas = self.inside::<ResourceQuota>();
        self.delete(&quotas, children::QUOTA_NAME, "delete the ResourceQuota")
            .await?;
        // The facade's first: if the operator's binding is gone, the steps before count as done.
        for grant in [children::API, children::OPERATOR] {
            self.delete(&bindings, grant.binding, "delete the RoleBinding")
                .await?;
        }
        let unlabel = json!({ "metadata": {
            "resourceVersion": namespace.metadata.resource_version,
            "labels": { ACCOUNT_LABEL: null },
            "annotations": { ADOPTED_FOR_ANNOTATION: null, SUSPENDED_ANNOTATION: null, SUSPENDED_SERVERS_ANNOTATION: null },
        }});
        let unlabelled = self
            .all::<Namespace>()
            .patch_metadata(&self.namespace, &PatchParams::default(), &Patch::Merge(unlabel))
            .doing("remove the label from the namespace")
            .await;
        gone_is_fine(unlabelled)
    }

    /// Deletes all selected objects of a kind in the namespace that nobody has deleted yet.
    async fn delete_all<K>(
        &self,
        selected: &ListParams,
        listing: &'static str,
        deleting: &'static str,
    ) -> Result<(), AccountError>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let api = self.inside::<K>();
        let mut pages = Pages::of(api.clone(), selected.clone());
        let failed = |source| AccountError::Call {
            doing: listing,
            source,
        };
        while let Some(page) = pages.next_metadata().await.map_err(failed)? {
            let stay = page.items.iter().filter(|object| stays(&object.metadata));
            stream::iter(stay.map(Ok))
                .try_for_each_concurrent(CONCURRENCY, |object| async {
                    let parameters = DeleteParams {
                        propagation_policy: Some(PropagationPolicy::Background),
                        ..only(object.metadata.uid.clone(), None)
                    };
                    gone_is_fine(api.delete(&object.name_any(), &parameters).doing(deleting).await)
                })
                .await?;
        }
        Ok(())
    }

    async fn delete<K>(&self, api: &Api<K>, name: &str, doing: &'static str) -> Result<(), AccountError>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        // Set the policy explicitly: an object's `orphan` finalizer would otherwise orphan its dependents.
        gone_is_fine(api.delete(name, &DeleteParams::background()).doing(doing).await)
    }

    /// Writes the status if it differs, guarded by the resourceVersion that the decision was based on. Returns whether
    /// the reason or message of the Ready condition has changed.
    async fn write_status(&self, account: &Account, outcome: &Outcome) -> Result<bool, AccountError> {
        let status = decide::status(account, outcome, self.shared.deps.clock.now());
        self.put_status(account, status).await
    }

    /// Like [`write_status`](Self::write_status), for a status that has already been decided.
    async fn put_status(&self, account: &Account, mut status: AccountStatus) -> Result<bool, AccountError> {
        status.installation.clone_from(&self.shared.deps.installation);
        if account.status.as_ref() == Some(&status) {
            return Ok(false);
        }
        let reason_before = account
            .status
            .as_ref()
            .and_then(|s| conditions::find(&s.conditions, conditions::READY))
            .map(|c| (c.reason.clone(), c.message.clone()));
        let reason_now = conditions::find(&status.conditions, conditions::READY)
            .map(|c| (c.reason.clone(), c.message.clone()));
        let mut written = Account::new(&account.name_any(), account.spec.clone());
        written.metadata.uid.clone_from(&account.metadata.uid);
        written
            .metadata
            .resource_version
            .clone_from(&account.metadata.resource_version);
        written.status = Some(status);
        let answer = self
            .all::<Account>()
            .replace_status(&account.name_any(), &written_by(CONTROLLER), &written)
            .doing("write the status")
            .await;
        match answer {
            Ok(_) => Ok(reason_before != reason_now),
            Err(AccountError::Call { source, .. }) if source.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
