//! Everything that `stellage doctor` reads from a cluster, in one pass. What cannot be read is recorded as well.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

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

use super::rights::{self, Component, Right};
use crate::{CliError, connect::Cluster, objects};
use resources::{
    Account, GROUP, Instance, Invoice, InvoiceNumber, Webhook,
    conditions::{self, READY},
    invoice::SETTLED_LABEL,
};
use runtime::{client::Pages, lease::LEASE_NAME};

/// Label of everything that the chart or deploy/rbac.yaml creates, whatever its name.
pub(super) const OURS: &str = "app.kubernetes.io/part-of=stellage";
/// Label that says what a pod or a service account is for.
const COMPONENT: &str = "app.kubernetes.io/component";
/// The service accounts that reconcile and serve REST: not those of the console gateway and of backups, which write nothing.
const OPERATORS: &str =
    "app.kubernetes.io/part-of=stellage,app.kubernetes.io/component notin (console-gateway, backup)";
/// Number of concurrent access reviews.
pub(super) const REVIEWS: usize = 16;

/// What was read, or the reason why it could not be read.
pub(super) type Read<T> = Result<T, String>;

/// Objects of a kind.
#[derive(Debug)]
pub(super) struct Objects<K> {
    pub(super) all: Vec<K>,
    /// Objects that do not match their schema.
    pub(super) unreadable: Vec<InvalidObject>,
}

/// The numbers of invoices, and what is known of the invoices.
#[derive(Debug, Default)]
pub(super) struct Invoices {
    pub(super) numbers: Vec<InvoiceNumber>,
    /// Names of all invoices and credit notes.
    pub(super) names: BTreeSet<String>,
    /// Why invoices cannot be issued that are due, by name.
    pub(super) held: BTreeMap<String, String>,
}

/// A service account of the operator.
#[derive(Debug)]
pub(super) struct User {
    pub(super) name: String,
    /// What it authenticates as: `system:serviceaccount:NAMESPACE:NAME`.
    pub(super) id: String,
    /// `None` if its labels do not say.
    pub(super) component: Option<Component>,
}

impl User {
    /// `labels` are those of the service account, if it exists.
    pub(super) fn new(namespace: &str, name: String, labels: Option<&BTreeMap<String, String>>) -> Self {
        let component = labels.and_then(|labels| labels.get(COMPONENT));
        Self {
            id: format!("system:serviceaccount:{namespace}:{name}"),
            component: component.and_then(|component| Component::of_label(component)),
            name,
        }
    }
}

/// Rights that these service accounts should have, or one of them.
#[derive(Debug)]
pub(super) struct Missing {
    pub(super) service_accounts: Vec<String>,
    pub(super) rights: Vec<Right>,
}

/// What was read from a cluster.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// The times of this machine and of the API server at the same moment.
    pub(super) clocks: (Timestamp, Option<Timestamp>),
    pub(super) version: Info,
    /// The operator's.
    pub(super) namespace: String,
    /// The CRDs in this program's API group.
    pub(super) crds: Read<Vec<CustomResourceDefinition>>,
    pub(super) policies: Read<Vec<ValidatingAdmissionPolicy>>,
    pub(super) bindings: Read<Vec<ValidatingAdmissionPolicyBinding>>,
    /// The operator's service accounts.
    pub(super) users: Read<Vec<User>>,
    /// Which rights of which of them are missing; empty if none is.
    pub(super) rights: Read<Vec<Missing>>,
    pub(super) lease: Read<Option<Lease>>,
    pub(super) pods: Read<Vec<Pod>>,
    pub(super) accounts: Read<Objects<Account>>,
    pub(super) instances: Read<Objects<Instance>>,
    pub(super) webhooks: Read<Objects<Webhook>>,
    pub(super) invoices: Read<Invoices>,
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
        let of_account = of_accounts.find_map(ready_namespace);
        let rights = match &users {
            Ok(users) => missing_rights(cluster, namespace, of_account, users).await,
            Err(why) => Err(why.clone()),
        };
        Ok(Self {
            clocks,
            version,
            namespace: namespace.to_owned(),
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
            invoices: invoices(cluster).await,
        })
    }
}

pub(super) fn words(failure: impl Into<CliError>) -> String {
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
    let all = objects::read_all(cluster, doing, api, keep)
        .await
        .map_err(words)?;
    Ok(Objects { all, unreadable })
}

/// The operator's service accounts: those with the given names, or else those with its label.
async fn users(cluster: &Cluster, namespace: &str, names: &[String]) -> Read<Vec<User>> {
    let api = Api::<ServiceAccount>::namespaced(cluster.client.clone(), namespace);
    if names.is_empty() {
        let labelled = ListParams::default().labels(OPERATORS);
        let list = api.list_metadata(&labelled);
        let found = cluster.call("list the operator's service accounts", list).await;
        let found = found.map_err(words)?.items;
        return Ok(found
            .iter()
            .map(|found| User::new(namespace, found.name_any(), Some(found.labels())))
            .collect());
    }
    let mut users = Vec::new();
    for name in names {
        let get = api.get_metadata_opt(name);
        let found = cluster.call("read a service account", get).await.map_err(words)?;
        let labels = found.as_ref().map(ResourceExt::labels);
        users.push(User::new(namespace, name.clone(), labels));
    }
    Ok(users)
}

/// The namespace of an account that is ready; in other namespaces the operator may not have its rights yet.
fn ready_namespace(account: &Account) -> Option<&str> {
    let status = account.status.as_ref()?;
    let is_ready = conditions::is_true(&status.conditions, READY);
    status.namespace.as_deref().filter(|_| is_ready)
}

/// The needed rights that the service accounts lack: each those of its component, or, if not all say which one they are, those
/// that none of them has.
async fn missing_rights(
    cluster: &Cluster,
    namespace: &str,
    of_account: Option<&str>,
    users: &[User],
) -> Read<Vec<Missing>> {
    let separate = users.iter().map(|user| Some((user.component?, vec![user])));
    let parts = separate
        .collect::<Option<Vec<_>>>()
        .unwrap_or_else(|| vec![(Component::All, users.iter().collect())]);
    let mut missing = Vec::new();
    for (component, users) in parts {
        let needed = rights::needed(component, namespace, of_account)?;
        let users = &users;
        let reviews = stream::iter(needed).map(async |right| {
            for user in users {
                if is_allowed(cluster, &user.id, namespace, &right).await? {
                    return Ok(None);
                }
            }
            Ok(Some(right))
        });
        let lacks: Vec<Read<Option<Right>>> = reviews.buffered(REVIEWS).collect().await;
        let lacks: Read<Vec<Option<Right>>> = lacks.into_iter().collect();
        let rights: Vec<Right> = lacks?.into_iter().flatten().collect();
        if !rights.is_empty() {
            let service_accounts = users.iter().map(|user| user.name.clone()).collect();
            missing.push(Missing {
                service_accounts,
                rights,
            });
        }
    }
    Ok(missing)
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
            resource_attributes: Some(ResourceAttributes::from(right)),
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

async fn invoices(cluster: &Cluster) -> Read<Invoices> {
    let failed = |failure: CliError| failure.to_string();
    // First the numbers: one that is given meanwhile has its invoice before.
    let api = Api::<InvoiceNumber>::all(cluster.client.clone());
    let pages = Pages::of(api, ListParams::default());
    let numbers = cluster.list("list the InvoiceNumbers", pages, Pages::next).await;
    let numbers = numbers.map_err(CliError::from).map_err(failed)?;
    let api = Api::<Invoice>::all(cluster.client.clone());
    let pages = Pages::of(api.clone(), ListParams::default());
    let all = cluster
        .list("list the Invoices", pages, Pages::next_metadata)
        .await;
    let all = all.map_err(CliError::from).map_err(failed)?;
    let unsettled = ListParams::default().labels(&format!("!{SETTLED_LABEL}"));
    let pages = Pages::of(api, unsettled.limit(50));
    let unsettled = cluster.list("list the open Invoices", pages, Pages::next).await;
    let unsettled = unsettled.map_err(CliError::from).map_err(failed)?;
    let held = unsettled.into_iter().filter_map(|invoice| {
        let name = invoice.name_any();
        Some((name, invoice.status?.held?))
    });
    Ok(Invoices {
        numbers,
        names: all.into_iter().map(|invoice| invoice.name_any()).collect(),
        held: held.collect(),
    })
}
