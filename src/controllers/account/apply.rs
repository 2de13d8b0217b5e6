//! The thin shell: looks, has it decided, acts, and writes down what came of it.

use std::{fmt::Debug, future::Future, sync::atomic::Ordering, time::Duration};

use k8s_openapi::{
    api::{
        core::v1::{Namespace, ResourceQuota},
        rbac::v1::RoleBinding,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::controller::Action,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use super::{
    AccountError, CONTROLLER, Shared, children,
    decide::{self, Claim, Contents, NamespaceView, Outcome, Removal},
    resync,
};
use crate::{
    resources::{ACCOUNT_LABEL, Account, ApiKey, Instance, account::FINALIZER, conditions},
    runtime::client::{CallError, bounded},
};

/// How soon to look again at what no watch tells: a namespace of somebody else's that may go away.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// How soon to look again at a namespace that is on its way out; it takes about 5 s.
const LOOK_AGAIN_SOON: Duration = Duration::from_secs(3);
/// How soon to look again whether Kubernetes has counted a new quota; it takes some tenths of a second.
const QUOTA_POLL: Duration = Duration::from_millis(500);
/// Objects listed at once.
const PAGE: u32 = 500;

/// Names what an API call was for.
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

/// Not there is as good as deleted.
fn gone_is_fine<T>(outcome: Result<T, AccountError>) -> Result<(), AccountError> {
    match outcome {
        Err(AccountError::Call { source, .. }) if source.is_not_found() => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// Brings one Account to what its spec says.
pub(super) async fn reconcile(shared: &Shared, account: &Account) -> Result<Action, AccountError> {
    let work = Work {
        shared,
        namespace: account.wanted_namespace().to_owned(),
    };
    let namespace = Api::<Namespace>::all(shared.deps.client.clone())
        .get_opt(&work.namespace)
        .doing("read the namespace")
        .await?;
    let view = namespace.as_ref().map(NamespaceView::of);
    if account.metadata.deletion_timestamp.is_some() {
        return work.remove(account, namespace.as_ref(), view.as_ref()).await;
    }
    shared.awaited.lock().remove(&work.namespace);
    let claimants = shared.claims.lock().of(&work.namespace);
    match decide::claim(account, &shared.deps.namespace, &claimants, view.as_ref()) {
        Claim::Refused(refusal) => {
            let again = if refusal.passes {
                LOOK_AGAIN_SOON
            } else {
                LOOK_AGAIN
            };
            let reason = refusal.reason;
            let message = refusal.message.clone();
            let changed = work.write_status(account, &Outcome::Refused(refusal)).await?;
            if changed {
                shared
                    .events
                    .publish(account, true, reason, "ClaimNamespace", &message);
            }
            Ok(Action::requeue(again))
        }
        Claim::Create => work.ensure(account, Start::Create).await,
        Claim::Relabel => work.ensure(account, Start::Repair).await,
        Claim::Own { adopted: true } => work.ensure(account, Start::Adopted).await,
        Claim::Own { adopted: false } => {
            let wanted = children::namespace(account);
            // The annotation may name an earlier Account of the same name; that it is there is what counts.
            let labelled = ObjectMeta {
                annotations: None,
                ..wanted.metadata
            };
            let intact = namespace.is_some_and(|is| children::metadata_matches(&is.metadata, &labelled));
            let start = if intact { Start::Made } else { Start::Repair };
            work.ensure(account, start).await
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Create,
    Repair,
    Made,
    Adopted,
}

/// Whether what the quota limits is counted. Until it is, the API server refuses it all.
enum Quota {
    Counts,
    DoesNotCountYet,
    /// It counts, but not the webhooks, which are not limited yet: Kubernetes does not know their kind for long enough.
    WithoutWebhooks,
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

    /// Makes everything that belongs to an Account, or only what is missing or has drifted.
    async fn ensure(&self, account: &Account, start: Start) -> Result<Action, AccountError> {
        // First of all, so that nothing is made that nobody would take away.
        let mut account = account.clone();
        if !account.finalizers().iter().any(|f| f == FINALIZER) {
            account = self.add_finalizer(&account).await?;
        }
        let made = self.ensure_namespace(&account, start).await;
        let adopted = start == Start::Adopted;
        // What was its own stays so, even if a repair fails.
        let owned = (made.is_ok() || start != Start::Create).then_some(adopted);
        let children = match made {
            Ok(()) => self.ensure_children(&account).await,
            Err(error) => Err(error),
        };
        let is_unfinished = matches!(children, Ok(Quota::DoesNotCountYet | Quota::WithoutWebhooks));
        let outcome = match children {
            Ok(Quota::Counts | Quota::WithoutWebhooks) => Outcome::Ready { adopted },
            Ok(Quota::DoesNotCountYet) => Outcome::QuotaPending { adopted },
            Err(error) => {
                // Worth telling only what the API server says itself; all else passes.
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
        self.write_status(&account, &outcome).await?;
        if adopted && !was_owned {
            let note = format!("adopted namespace {}", self.namespace);
            let events = &self.shared.events;
            events.publish(&account, false, "NamespaceAdopted", "ClaimNamespace", &note);
        }
        Ok(if is_unfinished {
            Action::requeue(QUOTA_POLL)
        } else {
            resync()
        })
    }

    async fn ensure_namespace(&self, account: &Account, start: Start) -> Result<(), AccountError> {
        let wanted = children::namespace(account);
        match start {
            Start::Made | Start::Adopted => {}
            // A plain create: an apply would take over what somebody made just now.
            Start::Create => {
                let parameters = PostParams {
                    field_manager: Some(CONTROLLER.to_owned()),
                    ..Default::default()
                };
                self.all::<Namespace>()
                    .create(&parameters, &wanted)
                    .doing("create the namespace")
                    .await?;
                let note = format!("created namespace {}", self.namespace);
                let events = &self.shared.events;
                events.publish(account, false, "NamespaceCreated", "ClaimNamespace", &note);
            }
            Start::Repair => {
                self.apply(self.all(), &wanted, "label the namespace").await?;
            }
        }
        Ok(())
    }

    async fn ensure_children(&self, account: &Account) -> Result<Quota, AccountError> {
        let deps = &self.shared.deps;
        let bindings = self.inside::<RoleBinding>();
        let wanted = children::role_binding(account, &deps.namespace, &deps.service_account);
        let is = bindings
            .get_opt(children::BINDING_NAME)
            .doing("read the RoleBinding")
            .await?;
        if let Some(is) = &is
            && is.role_ref != wanted.role_ref
        {
            // What a binding grants cannot be changed.
            self.delete(
                &bindings,
                children::BINDING_NAME,
                "delete the RoleBinding that grants something else",
            )
            .await?;
        }
        if !is.is_some_and(|is| children::binding_matches(&is, &wanted)) {
            self.apply(bindings, &wanted, "apply the RoleBinding").await?;
        }

        self.ensure_quota(account).await
    }

    async fn ensure_quota(&self, account: &Account) -> Result<Quota, AccountError> {
        let quotas = self.inside::<ResourceQuota>();
        let is = quotas
            .get_opt(children::QUOTA_NAME)
            .doing("read the ResourceQuota")
            .await?;
        let mut limits = children::limits(account);
        let webhooks_count = self.webhooks_count(is.as_ref()).await?;
        if !webhooks_count {
            limits = children::without_webhooks(limits);
            if limits.is_empty() {
                return Ok(Quota::WithoutWebhooks);
            }
        }
        let wanted = children::quota(account, &limits);
        let is = match is {
            Some(is) if children::quota_matches(&is, &wanted, &limits) => {
                let now = self.shared.deps.clock.now();
                if children::quota_is_stuck(&is, &limits, now) {
                    tracing::info!(
                        namespace = self.namespace,
                        "makes a quota anew that has never been counted"
                    );
                    self.remake_quota(quotas, &wanted).await?
                } else {
                    is
                }
            }
            // Scopes cannot be changed, and other limits are not ours to merge with.
            Some(is) if children::has_more(&is) => self.remake_quota(quotas, &wanted).await?,
            _ => {
                let applied = self
                    .apply(quotas.clone(), &wanted, "apply the ResourceQuota")
                    .await?;
                if children::limits_to(&applied, &limits) {
                    applied
                } else {
                    // A limit that the Account has no more is somebody else's too.
                    self.remake_quota(quotas, &wanted).await?
                }
            }
        };
        Ok(match children::quota_counts(&is, &limits) {
            true if webhooks_count => Quota::Counts,
            true => Quota::WithoutWebhooks,
            false => Quota::DoesNotCountYet,
        })
    }

    /// Whether Kubernetes can count webhooks: from the first time on that it has, for this quota or for a probe.
    async fn webhooks_count(&self, quota: Option<&ResourceQuota>) -> Result<bool, AccountError> {
        let known = &self.shared.webhooks_count;
        if known.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let deps = &self.shared.deps;
        let quotas = Api::<ResourceQuota>::namespaced(deps.client.clone(), &deps.namespace);
        let (wanted, limits) = children::probe(&deps.namespace);
        let probe = quotas
            .get_opt(&wanted.name_any())
            .doing("read the quota that probes")
            .await?;
        if [quota, probe.as_ref()]
            .into_iter()
            .flatten()
            .any(children::counts_webhooks)
        {
            known.store(true, Ordering::Relaxed);
            if probe.is_some() {
                self.delete(&quotas, &wanted.name_any(), "delete the quota that probes")
                    .await?;
            }
            return Ok(true);
        }
        match probe {
            Some(probe) if !children::quota_is_stuck(&probe, &limits, deps.clock.now()) => {}
            Some(_) => {
                self.remake_quota(quotas, &wanted).await?;
            }
            None => {
                self.apply(quotas, &wanted, "make the quota that probes").await?;
            }
        }
        Ok(false)
    }

    async fn remake_quota(
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

    async fn add_finalizer(&self, account: &Account) -> Result<Account, AccountError> {
        let mut finalizers = account.finalizers().to_vec();
        finalizers.push(FINALIZER.to_owned());
        self.write_finalizers(account, &finalizers, "add the finalizer")
            .await
    }

    /// Guarded by the resourceVersion, so that nobody else's finalizer is lost.
    async fn write_finalizers(
        &self,
        account: &Account,
        finalizers: &[String],
        doing: &'static str,
    ) -> Result<Account, AccountError> {
        let patch = json!({ "metadata": {
            "resourceVersion": account.metadata.resource_version,
            "finalizers": finalizers,
        }});
        let parameters = PatchParams {
            field_manager: Some(CONTROLLER.to_owned()),
            ..Default::default()
        };
        self.all::<Account>()
            .patch(&account.name_any(), &parameters, &Patch::Merge(patch))
            .doing(doing)
            .await
    }

    /// Lets an Account that is being deleted go, as soon as nothing is in the way.
    async fn remove(
        &self,
        account: &Account,
        namespace: Option<&Namespace>,
        view: Option<&NamespaceView>,
    ) -> Result<Action, AccountError> {
        if !account.finalizers().iter().any(|f| f == FINALIZER) {
            // Somebody else's finalizer holds it.
            return Ok(Action::await_change());
        }
        let removal = decide::removal(account, &self.shared.deps.namespace, view);
        if let (Removal::Empty { made_by_operator }, Some(namespace)) = (removal, namespace) {
            // Before the look, so that what goes away right after it is heard of.
            self.shared.awaited.lock().insert(self.namespace.clone());
            let contents = [self.contents::<Instance>(("instance", "instances")).await?];
            if let Some(in_the_way) = decide::in_the_way(&contents) {
                let note = format!("cannot be deleted yet: {in_the_way}");
                let outcome = Outcome::HeldBack {
                    adopted: !made_by_operator,
                    in_the_way,
                };
                if self.write_status(account, &outcome).await? {
                    let events = &self.shared.events;
                    events.publish(account, true, "DeletionHeldBack", "Delete", &note);
                }
                return Ok(Action::requeue(LOOK_AGAIN));
            }
            self.clear(namespace, made_by_operator).await?;
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
        self.shared.awaited.lock().remove(&self.namespace);
        Ok(Action::await_change())
    }

    /// Asked of the API server itself: a watch may be behind, and a namespace takes along what is in it.
    async fn contents<K>(&self, words: (&'static str, &'static str)) -> Result<Contents, AccountError>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let list = self
            .inside::<K>()
            .list_metadata(&ListParams::default().limit(PAGE))
            .doing("look for what is in the namespace")
            .await?;
        let more = list.metadata.remaining_item_count.unwrap_or(0);
        Ok(Contents {
            words,
            count: list.items.len() as u64 + u64::try_from(more).unwrap_or(0),
            names: list
                .items
                .into_iter()
                .filter_map(|object| object.metadata.name)
                .collect(),
        })
    }

    /// Takes the keys away, and then either the namespace or our traces in it.
    async fn clear(&self, namespace: &Namespace, made_by_operator: bool) -> Result<(), AccountError> {
        let keys = self.inside::<ApiKey>();
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let some = keys.list_metadata(&page).doing("list the ApiKeys").await?;
            for key in &some.items {
                self.delete(&keys, &key.name_any(), "delete an ApiKey").await?;
            }
            match some.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
        if made_by_operator {
            let parameters = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: namespace.metadata.uid.clone(),
                    resource_version: None,
                }),
                ..Default::default()
            };
            let namespaces = self.all::<Namespace>();
            let deleted = namespaces.delete(&self.namespace, &parameters);
            return gone_is_fine(deleted.doing("delete the namespace").await);
        }
        let quotas = self.inside::<ResourceQuota>();
        self.delete(&quotas, children::QUOTA_NAME, "delete the ResourceQuota")
            .await?;
        let bindings = self.inside::<RoleBinding>();
        self.delete(&bindings, children::BINDING_NAME, "delete the RoleBinding")
            .await?;
        let unlabel = json!({ "metadata": {
            "resourceVersion": namespace.metadata.resource_version,
            "labels": { ACCOUNT_LABEL: null },
        }});
        let unlabelled = self
            .all::<Namespace>()
            .patch_metadata(&self.namespace, &PatchParams::default(), &Patch::Merge(unlabel))
            .doing("take the label off the namespace")
            .await;
        gone_is_fine(unlabelled)
    }

    async fn delete<K>(&self, api: &Api<K>, name: &str, doing: &'static str) -> Result<(), AccountError>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        gone_is_fine(api.delete(name, &DeleteParams::default()).doing(doing).await)
    }

    /// Writes the status if it differs, with the resourceVersion that it was decided on. Returns whether it did.
    async fn write_status(&self, account: &Account, outcome: &Outcome) -> Result<bool, AccountError> {
        let status = decide::status(account, outcome, self.shared.deps.clock.now());
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
        let parameters = PostParams {
            field_manager: Some(CONTROLLER.to_owned()),
            ..Default::default()
        };
        let answer = self
            .all::<Account>()
            .replace_status(&account.name_any(), &parameters, &written)
            .doing("write the status")
            .await;
        match answer {
            Ok(_) => Ok(reason_before != reason_now),
            Err(AccountError::Call {
                source: CallError::Api(kube::Error::Api(status)),
                ..
            }) if status.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
