//! Evaluates what was read from a cluster. No I/O.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        coordination::v1::Lease,
        core::v1::Pod,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, version::Info},
};
use kube::{Resource, ResourceExt};
use serde::Deserialize;

use super::{
    Check, Outcome, Problem, Verdict,
    rights::Component,
    snapshot::{Invoices, Missing, OURS, Objects, Read, Snapshot, User},
};
use crate::{
    crd_differences::{self, Differences},
    crds::Operator,
    program, transfer,
};
use domain::{
    delivery::settings::{HELD_IN_ALL, PENDING_IN_ALL},
    provider::ProviderError,
};
use resources::{
    Account, Instance, InstanceState, InvoiceNumber, POLICIES, Webhook,
    account::MAIL_UNAVAILABLE,
    conditions::{self, READY, STALLED},
    invoice_number::DELETED_ANNOTATION,
    webhook::SECRET_READY,
};

/// The oldest supported minor version of Kubernetes 1, as in the chart's `kubeVersion`.
const OLDEST_MINOR: u32 = 33;
/// Clock skew beyond which this machine's times in messages are misleading.
const SKEW_TO_WARN: SignedDuration = SignedDuration::from_secs(5);
/// Clock skew beyond which receivers refuse the signatures of deliveries, and certificates may seem invalid.
const SKEW_TO_FAIL: SignedDuration = SignedDuration::from_mins(1);
/// Maximum number of objects named in a message.
const NAMED: usize = 3;
/// What to do if objects could not be read.
const UNREAD: &str = "Run this as a cluster administrator.";

/// All checks, ordered so that each comes after those that it depends on.
pub(super) fn all(snapshot: &Snapshot) -> Vec<Check> {
    let apply = operator(&snapshot.namespace, &snapshot.users).command();
    let policies = policies(&snapshot.policies, &snapshot.bindings, &snapshot.users, &apply);
    let schemas = schemas(&snapshot.accounts, &snapshot.instances, &snapshot.webhooks);
    [
        ("Kubernetes", kubernetes(&snapshot.version)),
        ("clock", clock(snapshot.clocks)),
        ("CRDs", crds(&snapshot.crds, &apply)),
        ("policies", policies),
        ("rights", rights(&snapshot.users, &snapshot.rights)),
        ("pods", pods(&snapshot.pods)),
        ("leader", leader(&snapshot.lease, snapshot.clocks)),
        ("accounts", accounts(&snapshot.accounts)),
        ("mail", mail(&snapshot.accounts, &snapshot.webhooks)),
        ("provider", provider(&snapshot.instances)),
        ("webhooks", webhooks(&snapshot.webhooks)),
        ("backlog", backlog(&snapshot.webhooks, &snapshot.pods)),
        ("invoices", invoices(&snapshot.invoices)),
        ("schemas", schemas),
    ]
    .map(|(name, verdict)| Check::of(name, verdict, UNREAD))
    .into()
}

pub(super) fn warning(message: impl Into<String>, fix: impl Into<String>) -> Problem {
    Problem {
        outcome: Outcome::Warning,
        message: message.into(),
        fix: Some(fix.into()),
    }
}

pub(super) fn failed(message: impl Into<String>, fix: impl Into<String>) -> Problem {
    Problem {
        outcome: Outcome::Failed,
        ..warning(message, fix)
    }
}

pub(super) fn unknown(message: impl Into<String>, fix: impl Into<String>) -> Problem {
    Problem {
        outcome: Outcome::Unknown,
        ..warning(message, fix)
    }
}

/// `a, b, c and 4 more`.
pub(super) fn some(names: &[String]) -> String {
    let shown = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// `namespace/name`.
fn key(object: &impl ResourceExt) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

fn kubernetes(version: &Info) -> Verdict {
    let fix = "Upgrade the cluster: admission policies and the CRDs' rules need newer versions.";
    at_least(OLDEST_MINOR, version, fix)
}

/// Whether a cluster has at least this minor version of Kubernetes 1. `fix` says why it must.
pub(super) fn at_least(oldest: u32, version: &Info, fix: &'static str) -> Verdict {
    // Some distributions append a plus sign.
    let digits = version.minor.trim_end_matches(|c: char| !c.is_ascii_digit());
    match digits.parse::<u32>() {
        Ok(minor) if version.major == "1" && minor < oldest => Err(failed(
            format!("{} is older than 1.{oldest}", version.git_version),
            fix,
        )),
        Ok(_) => Ok(version.git_version.clone()),
        Err(_) => Err(unknown(
            format!("cannot tell the version {}", version.git_version),
            format!("Stellage needs 1.{oldest} or newer."),
        )),
    }
}

fn clock((here, server): (Timestamp, Option<Timestamp>)) -> Verdict {
    let server = server.ok_or("the API server's answers have no time")?;
    let skew = here.duration_since(server).abs();
    // The API server's answers have whole seconds.
    let message = format!("this machine and the API server differ by {} s", skew.as_secs());
    let fix = "Synchronise the clocks of this machine and of all nodes (chrony, systemd-timesyncd): signatures of deliveries have times, and receivers refuse those that are wrong by minutes.";
    match skew {
        skew if skew > SKEW_TO_FAIL => Err(failed(message, fix)),
        skew if skew > SKEW_TO_WARN => Err(warning(message, fix)),
        _ => Ok(message),
    }
}

/// The operator that was found, as its admission policies have to name it.
fn operator(namespace: &str, users: &Read<Vec<User>>) -> Operator {
    match users.as_deref().unwrap_or_default() {
        [one] => Operator::new(namespace, Some(&one.name), None),
        [one, other] => match (one.component, other.component) {
            (Some(Component::Api), _) | (_, Some(Component::Controller)) => {
                Operator::new(namespace, Some(&other.name), Some(&one.name))
            }
            (_, Some(Component::Api)) | (Some(Component::Controller), _) => {
                Operator::new(namespace, Some(&one.name), Some(&other.name))
            }
            _ => Operator::new(namespace, Some("CONTROLLER"), Some("API")),
        },
        _ => Operator::new(namespace, None, None),
    }
}

fn crds(found: &Read<Vec<CustomResourceDefinition>>, apply: &str) -> Verdict {
    let found = found.as_ref()?;
    let (mut missing, mut unestablished, mut older, mut newer, mut other) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for ours in resources::crds() {
        let kind = ours.spec.names.plural.clone();
        let Some(theirs) = found.iter().find(|crd| crd.name_any() == ours.name_any()) else {
            missing.push(kind);
            continue;
        };
        if !is_established(theirs) {
            unestablished.push(kind.clone());
        }
        let Differences {
            lacks,
            unknown,
            other: differs,
        } = crd_differences::of(&ours, theirs);
        older.extend(lacks.iter().map(|field| format!("{kind}: {field}")));
        newer.extend(unknown.iter().map(|field| format!("{kind}: {field}")));
        other.extend(differs.then_some(kind));
    }
    if !missing.is_empty() {
        return Err(failed(format!("missing: {}", missing.join(", ")), apply));
    }
    if !unestablished.is_empty() {
        let fix = "kubectl describe crd says why; perhaps another product has the same names.";
        return Err(failed(
            format!("not established: {}", unestablished.join(", ")),
            fix,
        ));
    }
    if !older.is_empty() {
        let message = format!("older than this program: they drop the fields {}", some(&older));
        return Err(failed(message, format!("Upgrade the release, or: {apply}")));
    }
    if !newer.is_empty() {
        let message = format!(
            "newer than this program, which does not know the fields {}",
            some(&newer)
        );
        return Err(warning(
            message,
            "Use the program of the version that is installed.",
        ));
    }
    if !other.is_empty() {
        let message = format!("limits or rules differ from this program's: {}", other.join(", "));
        return Err(warning(
            message,
            format!("If the operator has this program's version: {apply}"),
        ));
    }
    let created = found
        .iter()
        .filter_map(ResourceExt::creation_timestamp)
        .map(|time| time.0)
        .min();
    let since = created.map(|time| format!(", the first since {}", conditions::whole_seconds(time)));
    Ok(format!(
        "{} of this version{}",
        found.len(),
        since.unwrap_or_default()
    ))
}

fn is_established(crd: &CustomResourceDefinition) -> bool {
    let status = crd.status.as_ref();
    let mut conditions = status
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten();
    conditions.any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// An object in the policy files.
#[derive(Deserialize)]
struct Document {
    kind: String,
    metadata: DocumentMetadata,
    spec: serde_json::Value,
}

#[derive(Deserialize)]
struct DocumentMetadata {
    name: String,
}

/// An admission policy of this program. Its expressions are not compared, because they contain the names of the operator's
/// service accounts.
#[derive(Debug)]
struct Policy {
    name: String,
    /// The messages of its rules.
    messages: Vec<String>,
    /// Whether it names the user of the controllers, and the user of the REST API. A single process for both counts as the
    /// controllers.
    names: (bool, bool),
    /// Whether it holds for a single process for both, too.
    holds_for_one: bool,
}

fn own_policies() -> Vec<Policy> {
    let documents = POLICIES.iter().flat_map(|(_, text)| text.split("\n---\n"));
    let documents = documents.filter_map(|text| serde_saphyr::from_str::<Document>(text).ok());
    let policies = documents.filter(|document| document.kind == "ValidatingAdmissionPolicy");
    policies
        .map(|policy| {
            let rules = policy.spec["validations"].as_array().cloned().unwrap_or_default();
            let message = |rule: serde_json::Value| rule["message"].as_str().map(ToOwned::to_owned);
            let text = policy.spec.to_string();
            let names =
                |account| text.contains(&format!("'system:serviceaccount:stellage-system:{account}'"));
            Policy {
                name: policy.metadata.name,
                messages: rules.into_iter().filter_map(message).collect(),
                names: (names("stellage-controller"), names("stellage-api")),
                holds_for_one: names("stellage"),
            }
        })
        .collect()
}

fn policies(
    policies: &Read<Vec<ValidatingAdmissionPolicy>>,
    bindings: &Read<Vec<ValidatingAdmissionPolicyBinding>>,
    users: &Read<Vec<User>>,
    apply: &str,
) -> Verdict {
    let users = users.as_deref().unwrap_or_default();
    let (policies, bindings) = (policies.as_ref()?, bindings.as_ref()?);
    let denies = |policy: &str| {
        bindings
            .iter()
            .filter_map(|binding| binding.spec.as_ref())
            .any(|spec| {
                let actions = spec.validation_actions.iter().flatten();
                spec.policy_name.as_deref() == Some(policy)
                    && actions.into_iter().any(|action| action == "Deny")
            })
    };
    let wanted = own_policies();
    let (mut missing, mut unbound, mut misnamed, mut others) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for ours in &wanted {
        let policy = &ours.name;
        let Some(found) = policies.iter().find(|found| found.name_any() == *policy) else {
            missing.push(policy.clone());
            continue;
        };
        if !denies(policy) {
            unbound.push(policy.clone());
        }
        let text = serde_json::json!(found.spec).to_string();
        let mut named = users.iter().map(|user| text.contains(&format!("'{}'", user.id)));
        let is_right = match ours.names {
            (true, true) => named.all(|is_named| is_named),
            (true, false) if users.len() == 1 && !ours.holds_for_one => true,
            (true, false) => users.is_empty() || named.any(|is_named| is_named),
            (false, _) => true,
        };
        if !is_right {
            misnamed.push(policy.clone());
        }
        let rules = found
            .spec
            .iter()
            .flat_map(|spec| spec.validations.iter().flatten());
        let found: Vec<String> = rules.filter_map(|rule| rule.message.clone()).collect();
        if found != ours.messages {
            others.push(policy.clone());
        }
    }
    let apply = format!("Upgrade the release with policies.install; without Helm: {apply}");
    if !missing.is_empty() {
        return Err(failed(format!("missing: {}", some(&missing)), apply));
    }
    if !unbound.is_empty() {
        return Err(failed(
            format!("not bound, so without effect: {}", some(&unbound)),
            apply,
        ));
    }
    if !misnamed.is_empty() {
        return Err(failed(
            format!(
                "they do not name all service accounts of the operator, {}: {}",
                service_accounts(users.iter().map(|user| &user.name)),
                some(&misnamed)
            ),
            format!(
                "{apply}. Until then the operator's writes are refused, or it may do more than it should."
            ),
        ));
    }
    if !others.is_empty() {
        return Err(warning(
            format!("not those of this version: {}", some(&others)),
            apply,
        ));
    }
    Ok(format!("{} are in force", wanted.len()))
}

fn service_accounts<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
    names.join(" and ")
}

fn rights(users: &Read<Vec<User>>, missing: &Read<Vec<Missing>>) -> Verdict {
    let (users, missing) = (users.as_ref()?, missing.as_ref()?);
    if users.is_empty() {
        return Err(unknown(
            format!("not checked: the operator's namespace has no service account with the label {OURS}"),
            "Name them: --service-account NAME, and --operator-namespace if it is another one.",
        ));
    }
    if missing.is_empty() {
        let accounts = service_accounts(users.iter().map(|user| &user.name));
        return Ok(format!("{accounts} may do what the operator does"));
    }
    let missing = missing.iter().map(|missing| {
        let rights: Vec<String> = missing.rights.iter().map(ToString::to_string).collect();
        format!(
            "{} may not: {}",
            service_accounts(&missing.service_accounts),
            some(&rights)
        )
    });
    Err(failed(
        missing.collect::<Vec<_>>().join("; "),
        "Upgrade the release with rbac.install; without Helm: kubectl apply --server-side -f deploy/rbac.yaml",
    ))
}

/// The pods that are running or about to. Ended ones remain for a while: evicted pods until somebody deletes
/// them.
fn current(pods: &[Pod]) -> Vec<&Pod> {
    let has_ended = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Failed" | "Succeeded"))
    };
    pods.iter().filter(|pod| !has_ended(pod)).collect()
}

fn pods(read: &Read<Vec<Pod>>) -> Verdict {
    let pods = current(read.as_ref()?);
    if pods.is_empty() {
        return Ok("none: the operator does not run in this cluster's pods".to_owned());
    }
    let is_ready = |pod: &Pod| {
        let conditions = pod
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten());
        conditions
            .into_iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let unready: Vec<String> = pods
        .iter()
        .filter(|pod| !is_ready(pod))
        .map(|pod| pod.name_any())
        .collect();
    let fix =
        "kubectl describe pod says why it does not start; /readyz, on its port 9090, what it waits for.";
    if unready.len() == pods.len() {
        return Err(failed(
            format!("none of {} is ready: {}", pods.len(), some(&unready)),
            fix,
        ));
    }
    if !unready.is_empty() {
        return Err(warning(format!("not ready: {}", some(&unready)), fix));
    }
    Ok(format!("{} are ready", pods.len()))
}

fn leader(read: &Read<Option<Lease>>, (here, server): (Timestamp, Option<Timestamp>)) -> Verdict {
    let fix = "Start the controllers, or see in their logs why they lose the Lease. Until then instances do not change and nothing is delivered.";
    let Some(lease) = read.as_ref()? else {
        return Err(failed("there is no Lease: no controller has ever led", fix));
    };
    let lease = lease.spec.clone().unwrap_or_default();
    let holder = lease.holder_identity.unwrap_or_default();
    if holder.is_empty() {
        return Err(failed("nobody leads: the last leader has stopped", fix));
    }
    if let Some(export) = holder.strip_prefix(transfer::IMPORT) {
        return Err(failed(
            format!("nobody leads: the import of export {export} is not finished"),
            "Run stellage import again with its file; or give up, as docs/export.md says. Until then no controller leads.",
        ));
    }
    let renewed = lease.renew_time.map(|time| time.0).unwrap_or_default();
    let age = server.unwrap_or(here).duration_since(renewed);
    let lasts = SignedDuration::from_secs(lease.lease_duration_seconds.unwrap_or_default().into());
    if age > lasts {
        let message = format!(
            "nobody leads: {holder} has not renewed the Lease for {} s",
            age.as_secs()
        );
        return Err(failed(message, fix));
    }
    Ok(holder)
}

fn accounts(read: &Read<Objects<Account>>) -> Verdict {
    let accounts = &read.as_ref()?.all;
    let unready = accounts.iter().filter_map(|account| {
        let ready = conditions::find(&account.status.as_ref()?.conditions, READY)?;
        (ready.status == "False").then(|| format!("{} ({})", account.name_any(), ready.reason))
    });
    let unready: Vec<String> = unready.collect();
    let untouched = accounts.iter().filter(|account| account.status.is_none()).count();
    if !unready.is_empty() {
        return Err(failed(
            format!(
                "{} of {} are not ready: {}",
                unready.len(),
                accounts.len(),
                some(&unready)
            ),
            "kubectl describe account NAME has the reason, and what to do.",
        ));
    }
    if untouched > 0 {
        let message = format!(
            "{untouched} of {} have not been looked at by the controllers",
            accounts.len()
        );
        return Err(warning(message, "If this lasts, see `leader`."));
    }
    Ok(format!("{} are ready", accounts.len()))
}

fn mail(accounts: &Read<Objects<Account>>, webhooks: &Read<Objects<Webhook>>) -> Verdict {
    let (accounts, webhooks) = (&accounts.as_ref()?.all, &webhooks.as_ref()?.all);
    let told = |account: &&Account| {
        let status = account.status.as_ref();
        status.is_some_and(|status| conditions::is_true(&status.conditions, MAIL_UNAVAILABLE))
    };
    if accounts.iter().any(|account| told(&account)) {
        return Err(warning(
            "there is no mail server: nobody tells account holders that a webhook has been disabled",
            "Set smtp.existingSecret of the chart, or --smtp-url, and restart the controllers.",
        ));
    }
    let is_unsent = |webhook: &&Webhook| {
        let disablement = webhook
            .untold()
            .and_then(|untold| untold.notification_error.as_ref());
        let backlog = webhook
            .untold_backlog()
            .and_then(|untold| untold.notification_error.as_ref());
        disablement.or(backlog).is_some()
    };
    let unsent: Vec<String> = webhooks.iter().filter(is_unsent).map(key).collect();
    if !unsent.is_empty() {
        return Err(warning(
            format!(
                "the account holder could not be told about {} of {} webhooks: {}",
                unsent.len(),
                webhooks.len(),
                some(&unsent)
            ),
            "notificationError in the status of the webhook has the mail server's words. Correct smtp.existingSecret of the chart, or --smtp-url, and restart the controllers; or spec.email of the Account, if it is the address. It is tried again by itself.",
        ));
    }
    if accounts.is_empty() {
        return Ok("nobody to tell yet".to_owned());
    }
    // Only an Account's status can show that there is no mail server.
    if accounts.iter().all(|account| account.status.is_none()) {
        return Err(unknown(
            "not known: the controllers, which say whether there is a mail server, have not looked at any account",
            "If this lasts, see `leader`.",
        ));
    }
    Ok("a mail server is set".to_owned())
}

fn provider(read: &Read<Objects<Instance>>) -> Verdict {
    let instances = &read.as_ref()?.all;
    let in_trouble = |instance: &Instance| {
        let status = instance.status.as_ref()?;
        let ready = conditions::find(&status.conditions, READY)?;
        let is_stuck = status.state == Some(InstanceState::Error)
            || ProviderError::is_reason(&ready.reason)
            || conditions::is_true(&status.conditions, STALLED);
        is_stuck.then(|| format!("{} ({})", key(instance), ready.reason))
    };
    let troubled: Vec<String> = instances.iter().filter_map(in_trouble).collect();
    if troubled.is_empty() {
        return Ok(format!("no errors at {} instances", instances.len()));
    }
    Err(warning(
        format!(
            "{} of {} instances have errors: {}",
            troubled.len(),
            instances.len(),
            some(&troubled)
        ),
        "kubectl describe instance NAME -n NAMESPACE has the message; it is tried again by itself.",
    ))
}

fn webhooks(read: &Read<Objects<Webhook>>) -> Verdict {
    let webhooks = &read.as_ref()?.all;
    let disabled = webhooks.iter().filter_map(|webhook| {
        let disabled = webhook.status.as_ref()?.disabled.as_ref()?;
        Some(format!("{} ({})", key(webhook), disabled.reason.as_str()))
    });
    let without_secret = webhooks.iter().filter_map(|webhook| {
        let secret = conditions::find(&webhook.status.as_ref()?.conditions, SECRET_READY)?;
        (secret.status == "False").then(|| format!("{} ({})", key(webhook), secret.reason))
    });
    let unwell: Vec<String> = disabled.chain(without_secret).collect();
    if unwell.is_empty() {
        return Ok(format!("none of {} is disabled", webhooks.len()));
    }
    Err(warning(
        format!(
            "{} of {} get nothing: {}",
            unwell.len(),
            webhooks.len(),
            some(&unwell)
        ),
        format!(
            "One is its owner's business; if they are many, see whether the controllers reach the Internet. Then: {} webhook enable NAME -n NAMESPACE",
            program()
        ),
    ))
}

fn invoices(read: &Read<Invoices>) -> Verdict {
    let Invoices { numbers, names, held } = read.as_ref()?;
    let is_lost = |number: &&InvoiceNumber| {
        !names.contains(&number.spec.invoice) && !number.annotations().contains_key(DELETED_ANNOTATION)
    };
    let lost: Vec<String> = numbers
        .iter()
        .filter(is_lost)
        .map(|number| format!("{} (account {})", number.spec.number, number.spec.account_name))
        .collect();
    if !lost.is_empty() {
        return Err(failed(
            format!(
                "{} of {} numbers have no invoice: {}",
                lost.len(),
                numbers.len(),
                some(&lost)
            ),
            "They were given, and their invoices are lost: restore these, or keep a record of what they were (docs/invoices.md#numbers)",
        ));
    }
    if let Some((first, why)) = held.first_key_value() {
        return Err(warning(
            format!("{} cannot be issued, such as {first}: {why}", held.len()),
            "They wait, and are issued once that is mended (docs/invoices.md)",
        ));
    }
    Ok(format!("each of {} numbers has its invoice", numbers.len()))
}

/// A number that the operator's pods set by flag or environment variable.
fn setting(pods: &[&Pod], flag: &str) -> Option<u32> {
    let variable = format!("STELLAGE_{}", flag.to_uppercase().replace('-', "_"));
    let flag = format!("--{flag}");
    let mut containers = pods
        .iter()
        .flat_map(|pod| pod.spec.iter().flat_map(|spec| &spec.containers));
    containers.find_map(|container| {
        let mut arguments = container.command.iter().chain(&container.args).flatten();
        let of_flag = match arguments.find_map(|argument| argument.strip_prefix(&flag)) {
            Some("") => arguments.next().map(String::as_str),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        let mut variables = container.env.iter().flatten();
        let of_variable = variables.rfind(|one| one.name == variable);
        of_flag
            .or(of_variable.and_then(|one| one.value.as_deref()))?
            .parse()
            .ok()
    })
}

fn backlog(read: &Read<Objects<Webhook>>, pods: &Read<Vec<Pod>>) -> Verdict {
    let webhooks = &read.as_ref()?.all;
    let sum = |of: fn(&resources::WebhookStatus) -> i64| -> i64 {
        webhooks
            .iter()
            .filter_map(|webhook| webhook.status.as_ref())
            .map(of)
            .sum()
    };
    let (pending, held) = (sum(|status| status.pending), sum(|status| status.held));
    let pods = current(pods.as_deref().unwrap_or_default());
    let bound = |flag, default| setting(&pods, flag).unwrap_or(default);
    let pending_bound = bound("pending-deliveries-in-all", PENDING_IN_ALL);
    let held_bound = bound("held-deliveries-in-all", HELD_IN_ALL);
    let whose = if pods.is_empty() {
        " by default; no pod says what the operator has"
    } else {
        ""
    };
    let all = format!(
        "{pending} deliveries pending and {held} held; the bounds are {pending_bound} and {held_bound}{whose}"
    );
    let is_near = |count: i64, bound: u32| count * 2 > i64::from(bound);
    let losing: BTreeSet<String> = webhooks
        .iter()
        .filter(|webhook| webhook.status.as_ref().is_some_and(|status| status.dropped > 0))
        .map(key)
        .collect();
    let fix = "docs/runbooks.md, StellageDeliveryBacklog: see which receivers are down, or whether the network of the controllers is.";
    if is_near(held, held_bound) {
        return Err(failed(
            format!("{all}: beyond the second, deliveries are dropped"),
            fix,
        ));
    }
    if !losing.is_empty() {
        let losing: Vec<String> = losing.into_iter().collect();
        return Err(warning(
            format!("{all}; some were dropped of {}", some(&losing)),
            fix,
        ));
    }
    if is_near(pending, pending_bound) {
        return Err(warning(
            format!("{all}: beyond the first, deliveries are held"),
            fix,
        ));
    }
    Ok(all)
}

fn schemas(
    accounts: &Read<Objects<Account>>,
    instances: &Read<Objects<Instance>>,
    webhooks: &Read<Objects<Webhook>>,
) -> Verdict {
    fn unreadable<K: Resource<DynamicType = ()>>(read: &Read<Objects<K>>) -> Vec<String> {
        let objects = read.iter().flat_map(|objects| &objects.unreadable);
        let name = |metadata: &ObjectMeta| {
            let name = metadata.name.as_deref().unwrap_or_default();
            let namespace = metadata.namespace.as_deref().map(|it| format!("{it}/"));
            format!("{} {}{name}", K::kind(&()), namespace.unwrap_or_default())
        };
        objects.map(|object| name(&object.metadata)).collect()
    }
    let found = [unreadable(accounts), unreadable(instances), unreadable(webhooks)].concat();
    if !found.is_empty() {
        return Err(failed(
            format!(
                "{} objects do not match their schema, and are ignored: {}",
                found.len(),
                some(&found)
            ),
            "Correct them with kubectl edit, or upgrade CRDs and program to the same version.",
        ));
    }
    accounts.as_ref()?;
    instances.as_ref()?;
    webhooks.as_ref()?;
    Ok("all objects match them".to_owned())
}

#[cfg(test)]
mod tests {
    use kube::core::DeserializeGuard;
    use serde_json::json;

    use super::*;

    const NOON: &str = "2026-11-23T12:00:00Z";

    fn noon() -> Timestamp {
        NOON.parse().unwrap()
    }

    fn checked(verdict: Verdict) -> Check {
        Check::of("", verdict, UNREAD)
    }

    #[test]
    fn a_number_without_its_invoice_is_told_unless_that_was_deleted_on_purpose() {
        let number = |number: &str, annotations: serde_json::Value| -> InvoiceNumber {
            serde_json::from_value(serde_json::json!({
                "metadata": { "name": number, "annotations": annotations },
                "spec": { "number": number, "invoice": format!("inv-{number}"), "account": "u", "accountName": "ada" },
            }))
            .unwrap()
        };
        let judge = |names: &[&str], held: &[(&str, &str)]| {
            let numbers = vec![
                number("2026-000001", serde_json::json!({})),
                number(
                    "2026-000002",
                    serde_json::json!({ DELETED_ANNOTATION: "2027-01-01T00:00:00Z" }),
                ),
            ];
            let check = checked(invoices(&Ok(Invoices {
                numbers,
                names: names.iter().map(|name| (*name).to_owned()).collect(),
                held: held
                    .iter()
                    .map(|(name, why)| ((*name).to_owned(), (*why).to_owned()))
                    .collect(),
            })));
            (check.outcome, check.message)
        };
        let (outcome, message) = judge(&[], &[]);
        assert_eq!(outcome, Outcome::Failed);
        assert!(
            message.contains("1 of 2 numbers have no invoice: 2026-000001 (account ada)"),
            "{message}"
        );
        assert_eq!(judge(&["inv-2026-000001"], &[]).0, Outcome::Ok);
        let held = judge(
            &["inv-2026-000001"],
            &[("inv-a", "the catalogue names no seller")],
        );
        assert_eq!(held.0, Outcome::Warning);
    }

    #[test]
    fn versions_before_the_charts_are_refused() {
        let version = |minor: &str| {
            let version = Info {
                major: "1".to_owned(),
                minor: minor.to_owned(),
                ..Info::default()
            };
            checked(kubernetes(&version)).outcome
        };
        assert_eq!(version("32"), Outcome::Failed);
        assert_eq!((version("33"), version("36+")), (Outcome::Ok, Outcome::Ok));
        assert_eq!(version("?"), Outcome::Unknown);
    }

    #[test]
    fn a_wrong_clock_is_noticed_in_both_directions() {
        for (seconds, outcome) in [
            (0, Outcome::Ok),
            (4, Outcome::Ok),
            (-20, Outcome::Warning),
            (20, Outcome::Warning),
            (90, Outcome::Failed),
            (-90, Outcome::Failed),
        ] {
            let here = noon() + SignedDuration::from_secs(seconds);
            let check = checked(clock((here, Some(noon()))));
            assert_eq!(check.outcome, outcome, "{seconds}");
        }
        assert_eq!(checked(clock((noon(), None))).outcome, Outcome::Unknown);
    }

    #[test]
    fn the_lease_is_judged_by_the_api_servers_clock() {
        let lease: Lease = serde_json::from_value(json!({ "spec": {
            "holderIdentity": "a", "renewTime": "2026-11-23T12:00:00.000000Z", "leaseDurationSeconds": 15,
        } }))
        .unwrap();
        let lease = Ok(Some(lease));
        let hour = SignedDuration::from_hours(1);
        let after = |seconds| {
            let server = noon() + SignedDuration::from_secs(seconds);
            checked(leader(&lease, (server + hour, Some(server))))
        };
        assert_eq!(after(10).outcome, Outcome::Ok);
        let late = after(16);
        assert_eq!(late.outcome, Outcome::Failed);
        assert!(late.message.contains("16 s"), "{late:?}");
    }

    #[test]
    fn a_backlog_is_judged_by_the_bounds_that_the_pods_have() {
        let webhook: Webhook = serde_json::from_value(json!({
            "metadata": { "name": "slow", "namespace": "ada" },
            "spec": { "url": "https://hooks.example.com/", "events": [], "secretRef": { "name": "slow" } },
            "status": { "pending": 3000, "held": 40 },
        }))
        .unwrap();
        let webhooks = Ok(Objects {
            all: vec![webhook],
            unreadable: Vec::new(),
        });
        let judge = |containers: serde_json::Value| {
            let api = json!({ "spec": { "containers": [{ "name": "stellage", "args": ["api"] }] } });
            let pod = json!({ "spec": { "containers": containers } });
            let pods: Vec<Pod> = serde_json::from_value(json!([api, pod])).unwrap();
            let check = checked(backlog(&webhooks, &Ok(pods)));
            (check.outcome, check.message)
        };
        let variables = |pending: &str| {
            json!([{ "name": "stellage", "env": [
            { "name": "STELLAGE_PENDING_DELIVERIES_IN_ALL", "value": "7" },
            // The last value wins.
            { "name": "STELLAGE_PENDING_DELIVERIES_IN_ALL", "value": pending },
        ] }])
        };
        let (outcome, message) = judge(variables("5999"));
        assert_eq!(outcome, Outcome::Warning);
        assert!(
            message.ends_with("the bounds are 5999 and 50000: beyond the first, deliveries are held"),
            "{message}"
        );
        assert_eq!(judge(variables("6000")).0, Outcome::Ok);
        for arguments in [
            json!(["controller", "--held-deliveries-in-all=79"]),
            json!(["controller", "--held-deliveries-in-all", "79"]),
        ] {
            let (outcome, message) = judge(json!([{ "name": "stellage", "args": arguments }]));
            assert_eq!(outcome, Outcome::Failed);
            assert!(
                message.ends_with("the bounds are 100000 and 79: beyond the second, deliveries are dropped"),
                "{message}"
            );
        }
        for pods in [Ok(Vec::new()), Err("not allowed".to_owned())] {
            let check = checked(backlog(&webhooks, &pods));
            assert_eq!(check.outcome, Outcome::Ok);
            assert!(
                check.message.contains("no pod says what the operator has"),
                "{check:?}"
            );
        }
    }

    #[test]
    fn pods_that_have_ended_or_are_being_deleted_do_not_count() {
        let pod = |name: &str, status: serde_json::Value, bound: &str| {
            let arguments = [format!("--held-deliveries-in-all={bound}")];
            json!({
                "metadata": { "name": name }, "status": status,
                "spec": { "containers": [{ "name": "stellage", "args": arguments }] },
            })
        };
        let ready = || json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
        let mut deleted = pod("deleted", ready(), "3");
        deleted["metadata"]["deletionTimestamp"] = json!(NOON);
        let others = [
            pod("evicted", json!({ "phase": "Failed" }), "1"),
            pod("ended", json!({ "phase": "Succeeded" }), "2"),
            deleted,
        ];
        let read =
            |all: &[serde_json::Value]| -> Read<Vec<Pod>> { Ok(serde_json::from_value(json!(all)).unwrap()) };
        let [evicted, ended, deleted] = others.clone();
        let all = [evicted, ended, deleted, pod("current", ready(), "50")];
        let check = checked(pods(&read(&all)));
        assert_eq!(
            (check.outcome, check.message.as_str()),
            (Outcome::Ok, "1 are ready")
        );
        let stuck = [pod("stuck", json!({ "phase": "Pending" }), "50")];
        let check = checked(pods(&read(&stuck)));
        assert_eq!(check.outcome, Outcome::Failed, "{check:?}");
        let check = checked(pods(&read(&others)));
        assert!(check.message.starts_with("none: "), "{check:?}");

        let webhooks = Ok(Objects {
            all: Vec::new(),
            unreadable: Vec::new(),
        });
        let check = checked(backlog(&webhooks, &read(&all)));
        assert!(
            check.message.ends_with("the bounds are 100000 and 50"),
            "{check:?}"
        );
    }

    #[test]
    fn mail_is_not_taken_for_well_before_the_controllers_have_looked_at_an_account() {
        let account = |status: serde_json::Value| -> Account {
            let account = json!({ "metadata": { "name": "ada" }, "spec": { "email": "ada@example.com" }, "status": status });
            serde_json::from_value(account).unwrap()
        };
        let judge = |all: Vec<Account>| {
            let accounts = Ok(Objects {
                all,
                unreadable: Vec::new(),
            });
            let webhooks = Ok(Objects {
                all: Vec::new(),
                unreadable: Vec::new(),
            });
            checked(mail(&accounts, &webhooks)).outcome
        };
        let (new, seen) = (account(serde_json::Value::Null), account(json!({})));
        let told = account(json!({ "conditions": [{
            "type": MAIL_UNAVAILABLE, "status": "True", "reason": "NoMailServer", "message": "", "lastTransitionTime": NOON,
        }] }));
        assert_eq!(judge(Vec::new()), Outcome::Ok);
        assert_eq!(judge(vec![new.clone()]), Outcome::Unknown);
        assert_eq!(judge(vec![new.clone(), seen.clone()]), Outcome::Ok);
        assert_eq!(judge(vec![new, seen, told]), Outcome::Warning);
    }

    #[test]
    fn a_notification_that_could_not_be_sent_is_a_warning_until_it_has_been() {
        let account: Account = serde_json::from_value(json!({
            "metadata": { "name": "ada" }, "spec": { "email": "ada@example.com" }, "status": {},
        }))
        .unwrap();
        let accounts = Ok(Objects {
            all: vec![account],
            unreadable: Vec::new(),
        });
        let judge = |status: serde_json::Value| {
            let webhook = json!({
                "metadata": { "name": "dead", "namespace": "ada", "generation": 1 },
                "spec": { "url": "https://hooks.example.com/", "events": [], "secretRef": { "name": "dead" } },
                "status": status,
            });
            let webhooks = Ok(Objects {
                all: vec![serde_json::from_value(webhook).unwrap()],
                unreadable: Vec::new(),
            });
            let check = checked(mail(&accounts, &webhooks));
            (check.outcome, check.message)
        };
        let disabled = |more: serde_json::Value| {
            let mut disabled = json!({
                "at": NOON, "reason": "Gone", "message": "", "delivery": "d", "eventId": "evt_1",
                "eventType": "instance.created", "attempts": 1, "error": "410", "generation": 1,
            });
            let more = more.as_object().unwrap().clone();
            disabled.as_object_mut().unwrap().extend(more);
            json!({ "disabled": disabled })
        };
        let error = "550 ada@example.com is unknown";
        let unsent = [
            disabled(json!({ "notificationError": error })),
            json!({ "backlog": { "since": NOON, "notificationError": error } }),
        ];
        for status in unsent {
            let (outcome, message) = judge(status);
            assert_eq!(outcome, Outcome::Warning);
            assert!(message.ends_with("1 of 1 webhooks: ada/dead"), "{message}");
            assert!(!message.contains('@'), "bundles have no addresses: {message}");
        }
        let sent = json!({ "notificationError": error, "notifiedAt": NOON });
        for status in [disabled(json!({})), disabled(sent)] {
            assert_eq!(judge(status).0, Outcome::Ok);
        }
    }

    #[test]
    fn objects_that_do_not_match_their_schema_are_named() {
        let instance = json!({ "metadata": { "name": "web", "namespace": "ada" }, "spec": { "plan": 7 } });
        let instance: DeserializeGuard<Instance> = serde_json::from_value(instance).unwrap();
        let instances = Ok(Objects {
            all: Vec::new(),
            unreadable: vec![instance.0.unwrap_err()],
        });
        let unread = "forbidden".to_owned();
        let check = checked(schemas(&Err(unread.clone()), &instances, &Err(unread)));
        assert_eq!(check.outcome, Outcome::Failed);
        assert!(check.message.contains("Instance ada/web"), "{check:?}");
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_well() {
        fn none<K>() -> Objects<K> {
            Objects {
                all: Vec::new(),
                unreadable: Vec::new(),
            }
        }
        let why = || "not allowed".to_owned();
        for verdict in [
            accounts(&Err(why())),
            schemas(&Ok(none()), &Ok(none()), &Err(why())),
        ] {
            let check = checked(verdict);
            assert_eq!(check.outcome, Outcome::Unknown);
            assert_eq!(check.message, "not checked: not allowed");
        }
    }

    /// The objects of a kind in the policy files, with `namespace` as the operator's.
    fn of_files<K: serde::de::DeserializeOwned>(kind: &str, namespace: &str) -> Vec<K> {
        let documents = POLICIES.iter().flat_map(|(_, text)| text.split("\n---\n"));
        let documents =
            documents.filter(|text| text.lines().any(|line| line.strip_prefix("kind: ") == Some(kind)));
        let parsed = documents.map(|text| {
            serde_saphyr::from_str(&text.replace(":stellage-system:", &format!(":{namespace}:"))).unwrap()
        });
        parsed.collect()
    }

    #[test]
    fn policies_are_in_force_only_if_they_name_the_operators_service_accounts() {
        let judge = |namespace: &str, accounts: &[&str]| {
            let users = accounts
                .iter()
                .map(|account| User::new("stellage-system", (*account).to_owned(), None));
            let check = checked(policies(
                &Ok(of_files("ValidatingAdmissionPolicy", namespace)),
                &Ok(of_files("ValidatingAdmissionPolicyBinding", namespace)),
                &Ok(users.collect()),
                "",
            ));
            (check.outcome, check.message)
        };
        for accounts in [&["stellage"][..], &["stellage-api", "stellage-controller"], &[]] {
            let (outcome, message) = judge("stellage-system", accounts);
            assert_eq!(outcome, Outcome::Ok, "{accounts:?}: {message}");
        }
        for accounts in [&["cloud"][..], &["stellage-api", "cloud"]] {
            let (outcome, message) = judge("stellage-system", accounts);
            assert_eq!(outcome, Outcome::Failed, "{accounts:?}: {message}");
        }
        assert_eq!(judge("elsewhere", &["stellage"]).0, Outcome::Failed);
    }

    #[test]
    fn the_command_names_the_operator_that_was_found_unless_it_has_the_default_names() {
        let command = |namespace: &str, accounts: &[(&str, &str)]| {
            let users = accounts.iter().map(|(name, component)| {
                let labels = [("app.kubernetes.io/component".to_owned(), (*component).to_owned())];
                User::new(namespace, (*name).to_owned(), Some(&labels.into()))
            });
            let command = operator(namespace, &Ok(users.collect())).command();
            let command = command
                .strip_prefix("stellage crds --with-policies")
                .and_then(|rest| rest.strip_suffix(" | kubectl apply --server-side -f -"));
            command.unwrap().trim().to_owned()
        };
        let defaults = [("stellage-api", "api"), ("stellage-controller", "controller")];
        assert_eq!(command("stellage-system", &[("stellage", "all")]), "");
        assert_eq!(command("stellage-system", &defaults), "");
        assert_eq!(command("stellage-system", &[]), "");
        assert_eq!(command("cloud", &defaults), "--operator-namespace cloud");
        assert_eq!(command("cloud", &[]), "--operator-namespace cloud");
        assert_eq!(
            command("stellage-system", &[("brain", "controller"), ("web", "api")]),
            "--service-account brain --api-service-account web"
        );
        assert_eq!(
            command("cloud", &[("a", "api"), ("z", "controller")]),
            "--operator-namespace cloud --service-account z --api-service-account a"
        );
        assert_eq!(command("stellage-system", &[("x", "all")]), "--service-account x");
        assert_eq!(
            command("stellage-system", &[("x", ""), ("y", "")]),
            "--service-account CONTROLLER --api-service-account API"
        );
    }

    #[test]
    fn the_policies_of_this_program_are_known() {
        let policies = own_policies();
        assert!(policies.len() >= 15, "{policies:?}");
        let status = policies
            .iter()
            .find(|policy| policy.name == "operator-status.stellage.dev");
        let status = status.unwrap();
        assert!(!status.messages.is_empty());
        assert_eq!(status.names, (true, true));
    }
}
