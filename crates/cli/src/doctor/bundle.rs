//! The archive for a bug report. It contains only named fields of objects, and texts without the paths of URLs and without anything that
//! looks like a key or an e-mail address: an archive is passed on to people who should not see any of these.

use std::{borrow::Cow, fs::File, io, path::Path, sync::LazyLock};

use flate2::{Compression, write::GzEncoder};
use futures::FutureExt as _;
use k8s_openapi::api::{core::v1::Pod, events::v1::Event};
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{ListParams, LogParams},
};
use regex::Regex;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    Report,
    snapshot::{Objects, Read, Snapshot},
};
use crate::{CliError, connect::Cluster};
use resources::Instance;

/// Number of log lines taken from each pod, counted from the end.
const LOG_LINES: i64 = 5000;
/// Maximum number of Events in each list.
const EVENTS: u32 = 2000;

/// Fields of `metadata` that are included.
const METADATA: &[&str] = &[
    "name",
    "namespace",
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
];
/// Fields of `spec` that are included: those that the operator acts on.
const SPEC: &[&str] = &[
    "plan",
    "region",
    "image",
    "powerState",
    "planOnReboot",
    "backupEnabled",
    "monitoringEnabled",
    "deletionProtection",
    "startRequestedAt",
    "powerOffRequestedAt",
    "rebootRequestedAt",
    "rebuildRequestedAt",
    "events",
    "active",
    "enableRequestedAt",
    "secretRef",
    "userDataRef",
    "namespace",
    "instanceQuota",
    "webhookQuota",
    "vcpuQuota",
    "memoryQuotaGB",
    "diskQuotaGB",
    "rateLimitPerHour",
];
/// Fields of `status` that are included.
const STATUS: &[&str] = &[
    "id",
    "namespace",
    "observedGeneration",
    "state",
    "operation",
    "plan",
    "power",
    "powerState",
    "updatedAt",
    "eventSequence",
    "pending",
    "held",
    "dropped",
    "delivered",
    "failedAttempts",
    "lastSuccessAt",
    "lastFailureAt",
    "lastFailure",
    "disabled",
    "conditions",
];

/// Writes the archive. Anything that cannot be read is noted in it.
pub(super) async fn write(
    cluster: &Cluster,
    namespace: &str,
    snapshot: &Snapshot,
    report: &Report<'_>,
    path: &Path,
) -> Result<(), CliError> {
    let crds = read(&snapshot.crds, |crds| {
        let shown = crds
            .iter()
            .map(|crd| json!({ "metadata": kept(&value(&crd.metadata), METADATA), "status": crd.status }));
        shown.collect()
    });
    let policies = read(&snapshot.policies, |policies| {
        let shown = policies.iter().map(
            |policy| json!({ "name": policy.metadata.name, "spec": policy.spec, "status": policy.status }),
        );
        shown.collect()
    });
    let lease = read(&snapshot.lease, |lease| {
        lease.iter().map(|lease| json!({ "spec": lease.spec })).collect()
    });
    let pods = read(&snapshot.pods, |pods| {
        let shown = pods
            .iter()
            .map(|pod| json!({ "name": pod.metadata.name, "status": pod.status }));
        shown.collect()
    });
    let mut files = Vec::new();
    for (name, content) in [
        ("report", value(report)),
        ("version", value(&snapshot.version)),
        ("crds", crds),
        ("policies", policies),
        ("lease", lease),
        ("pods", pods),
        ("accounts", objects(&snapshot.accounts)),
        ("instances", objects(&snapshot.instances)),
        ("webhooks", objects(&snapshot.webhooks)),
        ("events", events(cluster, namespace).await),
    ] {
        files.push((format!("{name}.json"), format!("{content:#}")));
    }
    files.extend(logs(cluster, namespace, snapshot).await);
    let failed = |source| CliError::File {
        path: path.to_owned(),
        source,
    };
    pack(path, &files).map_err(failed)
}

/// Patterns of private text, and their replacements.
static PRIVATE: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let rules = [
        // The user part of a URL, and everything after the host.
        (
            r#"(https?://)(?:[^ \t\r\n"'<>\\/@]*@)?([^ \t\r\n"'<>\\/?\#@]*)[/?\#][^ \t\r\n"'<>\\]*"#,
            "$1$2/…",
        ),
        (r"(?-u:\b)(stl_|whsec_)[A-Za-z0-9+/=_-]+", "$1…"),
        (r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+", "…@…"),
    ];
    let rules = rules.into_iter();
    rules
        .filter_map(|(pattern, instead)| Some((Regex::new(pattern).ok()?, instead)))
        .collect()
});

/// Removes private data from a text.
fn without_private(text: &str) -> String {
    let mut text = Cow::Borrowed(text);
    for (pattern, instead) in PRIVATE.iter() {
        text = Cow::Owned(pattern.replace_all(&text, *instead).into_owned());
    }
    text.into_owned()
}

/// Writes the files into a tar.gz.
fn pack(path: &Path, files: &[(String, String)]) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(File::create(path)?, Compression::default()));
    for (name, text) in files {
        let text = without_private(text);
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        archive.append_data(&mut header, format!("stellage/{name}"), text.as_bytes())?;
    }
    archive.into_inner()?.finish()?.sync_all()
}

fn value(object: &impl Serialize) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

/// What was read, or the reason why it could not be read.
fn read<T>(read: &Read<T>, show: impl Fn(&T) -> Vec<Value>) -> Value {
    match read {
        Ok(found) => json!(show(found)),
        Err(why) => json!({ "error": why }),
    }
}

/// The fields with these names.
fn kept(value: &Value, names: &[&str]) -> Value {
    let fields = value.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, _)| names.contains(&name.as_str()));
    fields
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect::<Map<_, _>>()
        .into()
}

fn objects<K: Serialize>(found: &Read<Objects<K>>) -> Value {
    let show = |objects: &Objects<K>| {
        let readable = objects.all.iter().map(|object| {
            let object = value(object);
            json!({
                "metadata": kept(&object["metadata"], METADATA),
                "spec": kept(&object["spec"], SPEC),
                "status": kept(&object["status"], STATUS),
            })
        });
        // Leave out the error, which may quote a value.
        let unreadable = objects.unreadable.iter().map(
            |object| json!({ "metadata": kept(&value(&object.metadata), METADATA), "unreadable": true }),
        );
        readable.chain(unreadable).collect()
    };
    read(found, show)
}

/// The Events about Stellage's objects, and those in the operator's namespace, where its pods and its Lease are.
async fn events(cluster: &Cluster, namespace: &str) -> Value {
    let client = &cluster.client;
    let of_ours = format!("regarding.apiVersion={}", Instance::api_version(&()));
    let of_ours = ListParams::default().fields(&of_ours).limit(EVENTS);
    let some = ListParams::default().limit(EVENTS);
    let (everywhere, here) = (
        Api::<Event>::all(client.clone()),
        Api::<Event>::namespaced(client.clone(), namespace),
    );
    let mut shown = Vec::new();
    for list in [everywhere.list(&of_ours).boxed(), here.list(&some).boxed()] {
        match cluster.call("list the Events", list).await {
            Ok(list) => shown.extend(list.items.iter().map(|event| {
                json!({
                    "regarding": event.regarding, "type": event.type_, "reason": event.reason,
                    "action": event.action, "note": event.note, "time": event.event_time,
                })
            })),
            Err(failure) => return json!({ "error": CliError::from(failure).to_string() }),
        }
    }
    shown.into()
}

/// The operator's own container. The logs of injected containers do not belong in a bug report.
fn container(pod: &Pod) -> Option<String> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut names = containers.map(|container| container.name.as_str());
    let first = names.clone().next();
    names
        .find(|name| *name == "stellage")
        .or(first)
        .map(str::to_owned)
}

/// The logs of the operator's pods, and the reasons for any that are missing.
async fn logs(cluster: &Cluster, namespace: &str, snapshot: &Snapshot) -> Vec<(String, String)> {
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), namespace);
    let tail = |pod: &Pod, previous| LogParams {
        container: container(pod),
        tail_lines: Some(LOG_LINES),
        previous,
        ..LogParams::default()
    };
    let mut files = Vec::new();
    for pod in snapshot.pods.iter().flatten() {
        let name = pod.name_any();
        for (suffix, previous) in [("", false), (".previous", true)] {
            match cluster
                .call("read the logs", pods.logs(&name, &tail(pod, previous)))
                .await
            {
                Ok(log) => files.push((format!("logs/{name}{suffix}.log"), log)),
                // A container that was never restarted has no previous log.
                Err(_) if previous => {}
                Err(failure) => {
                    files.push((format!("logs/{name}.error"), CliError::from(failure).to_string()));
                }
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_keep_their_host_and_keys_and_addresses_go() {
        assert_eq!(PRIVATE.len(), 3, "a pattern is wrong");
        for (text, left) in [
            (
                "POST https://hooks.example.com/a/TOKEN?k=v failed",
                "POST https://hooks.example.com/… failed",
            ),
            (
                "\"https://u:p@hooks.example.com:8443?k=v\"",
                "\"https://hooks.example.com:8443/…\"",
            ),
            ("see https://example.com", "see https://example.com"),
            (
                "key stl_0123456789abcdefABC and whsec_MfKQ9r8G/+x=",
                "key stl_… and whsec_…",
            ),
            ("to ada.l+x@example.com: sent", "to …@…: sent"),
        ] {
            assert_eq!(without_private(text), left);
        }
    }

    #[test]
    fn the_log_of_a_pod_is_that_of_the_operator_and_not_of_an_injected_container() {
        for (containers, of) in [
            (
                json!([{ "name": "istio-proxy" }, { "name": "stellage" }]),
                "stellage",
            ),
            (json!([{ "name": "operator" }]), "operator"),
        ] {
            let pod = json!({ "spec": { "containers": containers } });
            let pod: Pod = serde_json::from_value(pod).unwrap();
            assert_eq!(container(&pod).as_deref(), Some(of));
        }
    }

    #[test]
    fn fields_that_are_not_named_stay_out() {
        let spec = json!({ "plan": "starter", "sshKeys": ["ssh-ed25519 AAAA"], "email": "ada@example.com" });
        assert_eq!(kept(&spec, SPEC), json!({ "plan": "starter" }));
    }
}
