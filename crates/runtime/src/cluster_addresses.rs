//! The addresses of the cluster in which this program runs: those of its services, pods and nodes, of the API server,
//! and of this machine. Receivers must not have them.

use std::{env, net::IpAddr, time::Duration};

use ipnet::IpNet;
use k8s_openapi::api::{core::v1::Node, networking::v1::ServiceCIDR};
use kube::{Api, Client, Resource, api::ListParams};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::client::{CallError, Pages};

/// The variable that Kubernetes sets in each pod.
const SERVICE_HOST: &str = "KUBERNETES_SERVICE_HOST";
/// How often to read everything again: nodes come and go.
const READ_EVERY: Duration = Duration::from_mins(10);
/// Pause after a failed read.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Timeout for looking up the API server's name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The sources of the addresses.
#[derive(Clone)]
pub struct ClusterAddresses {
    /// Client of the API server.
    pub client: Client,
    /// Host of the API server's URL.
    pub api_server: Option<String>,
    /// Addresses that the administrator has given.
    pub given: Vec<IpNet>,
}

/// The ranges of one kind of object.
#[derive(Default)]
struct Listed {
    ranges: Vec<IpNet>,
    was_refused: bool,
}

impl ClusterAddresses {
    /// The ranges that are known without a lookup: the given addresses, those of network interfaces, and that of the
    /// API server if it is given as an address.
    pub fn known_at_once(&self) -> Vec<IpNet> {
        let interfaces = if_addrs::get_if_addrs().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list the network interfaces");
            Vec::new()
        });
        let interfaces = interfaces.into_iter().map(|interface| interface.ip());
        let hosts = self.hosts().filter_map(|host| address(&host));
        interfaces
            .chain(hosts)
            .map(IpNet::from)
            .chain(self.given.iter().copied())
            .collect()
    }

    /// Passes all ranges to `learned`, and whether all of them could be read, now and every ten minutes until
    /// `shutdown`.
    pub async fn follow(self, learned: impl Fn(Vec<IpNet>, bool), shutdown: CancellationToken) {
        let (mut services, mut nodes) = (Listed::default(), Listed::default());
        loop {
            let reading = async {
                let looked_up = self.look_up().await;
                let both = tokio::join!(
                    services.read(self.client.clone(), ranges_of_services),
                    nodes.read(self.client.clone(), ranges_of_node),
                );
                (looked_up, both.0 && both.1)
            };
            let Some((looked_up, is_complete)) = shutdown.run_until_cancelled(reading).await else {
                return;
            };
            let all = self.known_at_once().into_iter().chain(looked_up);
            learned(
                all.chain(services.ranges.clone())
                    .chain(nodes.ranges.clone())
                    .collect(),
                is_complete,
            );
            let pause = tokio::time::sleep(if is_complete { READ_EVERY } else { RETRY_AFTER });
            if shutdown.run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

    /// The hosts under which the API server is known.
    fn hosts(&self) -> impl Iterator<Item = String> {
        env::var(SERVICE_HOST)
            .ok()
            .into_iter()
            .chain(self.api_server.clone())
    }

    /// The addresses of the API server if it has a name.
    async fn look_up(&self) -> Vec<IpNet> {
        let mut found = Vec::new();
        for host in self.hosts().filter(|host| address(host).is_none()) {
            let lookup = tokio::time::timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host((host.as_str(), 443)));
            if let Ok(Ok(addresses)) = lookup.await {
                found.extend(addresses.map(|address| IpNet::from(address.ip())));
            }
        }
        found
    }
}

/// The address in a URL's host.
fn address(host: &str) -> Option<IpAddr> {
    host.trim_matches(['[', ']']).parse().ok()
}

impl Listed {
    /// Lists the objects again. Returns whether that is done; if not, the ranges stay as they were.
    async fn read<K>(&mut self, client: Client, ranges_of: fn(&K) -> Vec<IpNet>) -> bool
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let kind = K::kind(&());
        match list(Api::<K>::all(client), ranges_of).await {
            Ok(ranges) => {
                tracing::debug!(%kind, count = ranges.len(), "receivers may not have addresses of these");
                self.ranges = ranges;
                true
            }
            // The kind is unknown to an older API server, or the administrator does not grant the right.
            Err(error)
                if error
                    .status()
                    .is_some_and(|status| matches!(status.code, 403 | 404)) =>
            {
                if !self.was_refused {
                    self.was_refused = true;
                    tracing::warn!(
                        %kind, %error,
                        "cannot list the cluster's own addresses; deny those that are public with --receiver-deny"
                    );
                }
                true
            }
            Err(error) => {
                tracing::warn!(%kind, %error, "cannot list the cluster's own addresses; trying again");
                false
            }
        }
    }
}

async fn list<K>(api: Api<K>, ranges_of: fn(&K) -> Vec<IpNet>) -> Result<Vec<IpNet>, CallError>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut ranges = Vec::new();
    // A Node can have 30 KiB, most of it the names of images.
    let mut pages = Pages::of(api, ListParams::default().limit(100));
    while let Some(page) = pages.next().await? {
        ranges.extend(page.items.iter().flat_map(ranges_of));
    }
    Ok(ranges)
}

fn ranges_of_services(object: &ServiceCIDR) -> Vec<IpNet> {
    let ranges = object.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
    ranges.filter_map(|range| range.parse().ok()).collect()
}

/// A node's addresses, and the range of its pods where Kubernetes assigns one.
fn ranges_of_node(node: &Node) -> Vec<IpNet> {
    let spec = node.spec.as_ref();
    let pods = spec
        .into_iter()
        .flat_map(|spec| spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr));
    let addresses = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten());
    let addresses = addresses.filter_map(|listed| Some(IpNet::from(address(&listed.address)?)));
    pods.filter_map(|range| range.parse().ok())
        .chain(addresses)
        .collect()
}

#[cfg(test)]
mod tests {
    use kube::Config;
    use serde_json::json;

    use super::*;

    fn text(ranges: Vec<IpNet>) -> Vec<String> {
        ranges.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_node_has_addresses_and_a_range_of_pods() {
        let node = json!({
            "spec": { "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00:1::/64"] },
            "status": { "addresses": [
                { "type": "Hostname", "address": "worker-1" },
                { "type": "InternalIP", "address": "192.168.7.1" },
                { "type": "ExternalIP", "address": "2a00:1::7" },
            ] },
        });
        let ranges = text(ranges_of_node(&serde_json::from_value(node).unwrap()));
        assert_eq!(
            ranges,
            [
                "10.244.1.0/24",
                "fd00:1::/64",
                "10.244.1.0/24",
                "192.168.7.1/32",
                "2a00:1::7/128"
            ]
        );
        let services = json!({ "metadata": {}, "spec": { "cidrs": ["10.96.0.0/12", "nonsense"] } });
        let ranges = text(ranges_of_services(&serde_json::from_value(services).unwrap()));
        assert_eq!(ranges, ["10.96.0.0/12"]);
    }

    #[tokio::test]
    async fn interfaces_and_the_api_server_are_known_before_anything_is_read() {
        let nowhere = Config::new("http://127.0.0.1:1".parse().unwrap());
        let addresses = ClusterAddresses {
            client: Client::try_from(nowhere).unwrap(),
            api_server: Some("[2a00:5::1]".to_owned()),
            given: vec!["203.0.113.5/32".parse().unwrap()],
        };
        let known = text(addresses.known_at_once());
        for expected in ["127.0.0.1/32", "2a00:5::1/128", "203.0.113.5/32"] {
            assert!(
                known.iter().any(|range| range == expected),
                "{expected}: {known:?}"
            );
        }
    }
}
