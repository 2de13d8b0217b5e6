//! CPU usage from the cluster's metrics.k8s.io: that of the Pods that servers run in, with what QEMU itself takes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::{Client, core::request::Request};
use serde::Deserialize;
use thiserror::Error;

use crate::kubevirt::{
    cluster::{self, ConnectError},
    names::{INSTALLATION, INSTANCE_UID},
};
use domain::catalogue::region::KubeVirt;
use kube::api::ListParams;
use runtime::client::{self, Observers};

/// The API, which need not be there.
pub(super) const PODS: &str = "/apis/metrics.k8s.io/v1beta1/pods";
/// The container of a Pod that is the server.
const COMPUTE: &str = "compute";

/// Why nothing is known.
#[derive(Debug, Error)]
pub(super) enum PodMetricsError {
    #[error(transparent)]
    Config(#[from] ConnectError),
    #[error("metrics.k8s.io: {0}")]
    Answer(#[from] kube::Error),
}

/// The processors that a server uses.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PodUsage {
    pub(super) namespace: String,
    /// The UID that its Instance was first created with.
    pub(super) instance_uid: String,
    pub(super) at: Timestamp,
    pub(super) cores: f64,
}

#[derive(Deserialize)]
struct PodMetricsList {
    items: Vec<PodMetrics>,
}

#[derive(Deserialize)]
struct PodMetrics {
    metadata: Metadata,
    timestamp: Timestamp,
    containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Metadata {
    namespace: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Container {
    name: String,
    usage: BTreeMap<String, String>,
}

/// A client of the region's cluster. One is made for each question, so that a new kubeconfig is noticed.
pub(super) async fn client(settings: &KubeVirt) -> Result<Client, PodMetricsError> {
    let config = cluster::config(&settings.kubeconfig).await?;
    Ok(client::connect(config, Observers::default())?)
}

/// The usage of all servers of an installation.
pub(super) async fn read(client: &Client, settings: &KubeVirt) -> Result<Vec<PodUsage>, PodMetricsError> {
    let ours = ListParams::default().labels(&format!("{INSTALLATION}={}", settings.installation));
    let request = Request::new(PODS)
        .list(&ours)
        .map_err(kube::Error::BuildRequest)?;
    let list: PodMetricsList = client.request(request).await?;
    Ok(list.items.into_iter().filter_map(usage).collect())
}

fn usage(mut pod: PodMetrics) -> Option<PodUsage> {
    let compute = pod
        .containers
        .iter()
        .find(|container| container.name == COMPUTE)?;
    Some(PodUsage {
        cores: cores(compute.usage.get("cpu")?)?,
        instance_uid: pod.metadata.labels.remove(INSTANCE_UID)?,
        namespace: pod.metadata.namespace,
        at: pod.timestamp,
    })
}

/// A number of processors in Kubernetes' format, such as `250m`.
fn cores(text: &str) -> Option<f64> {
    let (number, parts) = match text.strip_suffix(['n', 'u', 'm']) {
        Some(number) if text.ends_with('n') => (number, 1e9),
        Some(number) if text.ends_with('u') => (number, 1e6),
        Some(number) => (number, 1e3),
        None => (text, 1.0),
    };
    let number: f64 = number.parse().ok()?;
    Some(number / parts).filter(|cores| cores.is_finite() && *cores >= 0.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kubevirt::testing::region;
    use runtime::testing::answered_by;

    #[test]
    fn processors_are_read_in_all_units() {
        for (text, expected) in [
            ("123456789n", Some(0.123_456_789)),
            ("1500u", Some(0.0015)),
            ("250m", Some(0.25)),
            ("2", Some(2.0)),
            ("-1", None),
            ("2Gi", None),
            ("", None),
        ] {
            assert_eq!(cores(text), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn the_processors_of_servers_are_those_of_the_container_that_is_the_server() {
        let pod = |labels: serde_json::Value, containers: serde_json::Value| {
            json!({
                "metadata": { "name": "virt-launcher-x", "namespace": "stellage-acme", "labels": labels },
                "timestamp": "2026-11-28T10:00:00Z", "window": "15s", "containers": containers,
            })
        };
        let container =
            |name: &str, cpu: &str| json!({ "name": name, "usage": { "cpu": cpu, "memory": "1Gi" } });
        let ours = json!({ INSTANCE_UID: "uid-1" });
        let items = json!([
            pod(
                ours.clone(),
                json!([container("guest-console-log", "1"), container("compute", "250m")])
            ),
            pod(ours, json!([container("guest-console-log", "1")])),
            pod(json!({}), json!([container("compute", "1")])),
        ]);
        let client = answered_by(move |_, path, _| {
            let items = items.clone();
            async move {
                assert_eq!(
                    path,
                    format!("{PODS}?&labelSelector=stellage.dev%2Finstallation%3Dprod-1")
                );
                (200, json!({ "kind": "PodMetricsList", "items": items }))
            }
        });
        let read = read(&client, &region()).await.unwrap();
        let only = PodUsage {
            namespace: "stellage-acme".to_owned(),
            instance_uid: "uid-1".to_owned(),
            at: "2026-11-28T10:00:00Z".parse().unwrap(),
            cores: 0.25,
        };
        assert_eq!(read, [only]);
    }
}
