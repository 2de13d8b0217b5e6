//! Everything that `stellage doctor` reads from a cluster, in one pass. What cannot be read is recorded as well.

use std::fmt::Debug;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
        coordination::v1::Lease,
        core::v1::{Pod, ServiceAccount},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::version::Info,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{ListParams, PostParams},
    core::{DeserializeGuard, error_boundary::InvalidObject},
};
use serde::de::DeserializeOwned;

use super::rights::{self, Right};
use crate::{
    cli::{CliError, connect::Cluster, objects},
    resources::{
        Account, GROUP, Instance, Webhook,
        conditions::{self, READY},
    },
    runtime::lease::LEASE_NAME,
};

/// Label of everything that the chart or deploy/rbac.yaml creates, whatever its name.
pub(super) const OURS: &str = "app.kubernetes.io/part-of=stellage";
/// Number of concurrent access reviews.
const REVIEWS: usize = 16;

/// What was read, or the reason why it could not be read.
pub(super) type Read<T> = Result<T, String>;

/// Objects of a kind.
#[derive(Debug)]
pub(super) struct Objects<K> {
    pub(super) all: Vec<K>,
    /// Objects that do not match their schema.
    pub(super) unreadable: Vec<InvalidObject>,
}

/// What was read from a cluster.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// The times of this machine and of the API server at the same moment.
    pub(super) clocks: (Timestamp, Option<Timestamp>),
    pub(super) version: Info,
    /// The CRDs in this program's API group.
    pub(super) crds: Read<Vec<CustomResourceDefinition>>,
    pub(super) policies: Read<Vec<ValidatingAdmissionPolicy>>,
    pub(super) bindings: Read<Vec<ValidatingAdmissionPolicyBinding>>,
    /// The users that the operator's service accounts authenticate as.
    pub(super) users: Read<Vec<String>>,
    /// The needed rights that none of these users has.
    pub(super) rights: Read<Vec<Right>>,
    pub(super) lease: Read<Option<Lease>>,
    pub(super) pods: Read<Vec<Pod>>,
    pub(super) accounts: Read<Objects<Account>>,
    pub(super) instances: Read<Objects<Instance>>,
    pub(super) webhooks: Read<Objects<Webhook>>,
}

impl Snapshot {
    /// Reads the cluster. Fails only if the API server does not answer at all.
    pub(super) async fn take(
        cluster: &Cluster,
        namespace: &str,
        service_accounts: &[String],
    ) -> Result<Self, CliError> {
        let client = &cluster.client;
        let version = cluster
            .call("read the version of the API server", client.apiserver_version())
            .await?;
        let clocks = (Timestamp::now(), cluster.time.now());
        let leases = Api::<Lease>::namespaced(client.clone(), namespace);
        let lease = cluster.call("read the Lease", leases.get_opt(LEASE_NAME)).await;
        let pods = Api::<Pod>::namespaced(client.clone(), namespace);
        let ours = ListParams::default().labels(OURS);
        let pods = cluster.call("list the operator's pods", pods.list(&ours)).await;
        let crds = all::<CustomResourceDefinition>(cluster, "list the CRDs").await;
        let is_ours = |crd: &CustomResourceDefinition| crd.spec.group == GROUP;
        let users = users(cluster, namespace, service_accounts).await;
        let accounts = all::<Account>(cluster, "list the Accounts").await;
        let mut of_accounts = accounts.iter().flat_map(|accounts| &accounts.all);
        let needed = rights::needed(namespace, of_accounts.find_map(ready_namespace));
        let rights = match (&users, needed) {
            (Ok(users), Ok(needed)) => missing_rights(cluster, namespace, needed, users).await,
            (Err(why), _) => Err(why.clone()),
            (_, Err(why)) => Err(why),
        };
        Ok(Self {
            clocks,
            version,
            crds: crds.map(|crds| crds.all.into_iter().filter(is_ours).collect()),
            policies: all(cluster, "list the admission policies")
                .await
                .map(|read| read.all),
            bindings: all(cluster, "list the bindings of admission policies")
                .await
                .map(|read| read.all),
            users,
            rights,
            lease: lease.map_err(words),
            pods: pods.map(|list| list.items).map_err(words),
            accounts,
            instances: all(cluster, "list the Instances").await,
            webhooks: all(cluster, "list the Webhooks").await,
        })
    }
}

fn words(failure: impl Into<CliError>) -> String {
    let error: CliError = failure.into();
    error.to_string()
}

/// All objects of a kind in the whole cluster.
async fn all<K>(cluster: &Cluster, doing: &str) -> Read<Objects<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api: Api<DeserializeGuard<K>> = Api::all(cluster.client.clone());
    let mut unreadable = Vec::new();
    let keep = |error| unreadable.push(error);
    let all = objects::read_all(cluster, doing, &api, &ListParams::default(), keep)
        .await
        .map_err(words)?;
    Ok(Objects { all, unreadable })
}

/// The users that the operator's service accounts authenticate as: those with the given names, or else those
/// with its label.
async fn users(cluster: &Cluster, namespace: &str, names: &[String]) -> Read<Vec<String>> {
    let mut names = names.to_vec();
    if names.is_empty() {
        let api = Api::<ServiceAccount>::namespaced(cluster.client.clone(), namespace);
        let labelled = ListParams::default().labels(OURS);
        let list = api.list_metadata(&labelled);
        let found = cluster.call("list the operator's service accounts", list).await;
        let found = found.map_err(words)?.items;
        names.extend(found.iter().map(ResourceExt::name_any));
    }
    let users = names
        .iter()
        .map(|name| format!("system:serviceaccount:{namespace}:{name}"));
    Ok(users.collect())
}

/// The namespace of an account that is ready; in other namespaces the operator may not have its rights yet.
fn ready_namespace(account: &Account) -> Option<&str> {
    let status = account.status.as_ref()?;
    let is_ready = conditions::is_true(&status.conditions, READY);
    status.namespace.as_deref().filter(|_| is_ready)
}

/// The needed rights that none of the operator's users has.
async fn missing_rights(
    cluster: &Cluster,
    namespace: &str,
    needed: Vec<Right>,
    users: &[String],
) -> Read<Vec<Right>> {
    let reviews = stream::iter(needed).map(async |right| {
        for user in users {
            if is_allowed(cluster, user, namespace, &right).await? {
                return Ok(None);
            }
        }
        Ok(Some(right))
    });
    let missing: Vec<Read<Option<Right>>> = reviews.buffered(REVIEWS).collect().await;
    let missing: Read<Vec<Option<Right>>> = missing.into_iter().collect();
    Ok(missing?.into_iter().flatten().collect())
}

async fn is_allowed(cluster: &Cluster, user: &str, operator: &str, right: &Right) -> Read<bool> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            groups: Some(vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{operator}"),
                "system:authenticated".to_owned(),
            ]),
            resource_attributes: Some(ResourceAttributes {
                group: Some(right.group.clone()),
                resource: Some(right.resource.clone()),
                subresource: right.subresource.clone(),
                verb: Some(right.verb.clone()),
                name: right.name.clone(),
                namespace: right.namespace.clone(),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews = Api::<SubjectAccessReview>::all(cluster.client.clone());
    let as_usual = PostParams::default();
    let answer = cluster.call("review the operator's rights", reviews.create(&as_usual, &review));
    let answer = answer.await.map_err(words)?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
