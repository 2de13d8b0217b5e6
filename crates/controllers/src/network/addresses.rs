//! The addresses of servers in private networks. No I/O: fed by the watches. An address that is in a status is taken; only others are
//! given.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use ipnet::Ipv4Net;
use parking_lot::Mutex;

use domain::{network, provider::Addresses};
use providers::ipam::{Ipam, oldest_first};
use resources::{Instance, PrivateNetwork, Refusal, origin, refusal::Cause};
use runtime::{
    ByNamespace, ObjectRef, ReconcileQueue,
    watch::{Change, Listener},
};

/// The private networks, as shown by their watch, and the addresses in them. Cheap to clone.
#[derive(Clone, Default)]
pub struct Networks {
    all: ByNamespace<PrivateNetwork>,
    instances: ByNamespace<Instance>,
    /// Those in which this process has given an address.
    pools: Arc<Mutex<HashMap<ObjectRef, Pool>>>,
}

/// The addresses of one network.
struct Pool {
    prefix: Ipv4Net,
    ipam: Arc<Ipam>,
}

/// How long a released address is given to nobody. A server that a call made after the deletion is gone by then; the servers of one
/// account, which alone reach the address, are told at once who has it.
const REST: Duration = Duration::from_mins(2);

/// The private address in the status of an instance.
fn in_status(instance: &Instance) -> Addresses {
    let status = instance.status.as_ref();
    Addresses {
        ipv4: status.and_then(|status| status.private_ip_address.clone()),
        ..Addresses::default()
    }
}

/// Takes the addresses that are in the status of these instances.
fn adopt(ipam: &Ipam, instances: Vec<Arc<Instance>>) {
    for instance in oldest_first(instances) {
        ipam.adopt(origin::uid(&instance.metadata), &in_status(&instance), None);
    }
}

fn namespace(instance: &Instance) -> &str {
    instance.metadata.namespace.as_deref().unwrap_or_default()
}

impl Networks {
    /// Those of these instances, which are as their watch shows them.
    pub fn new(instances: ByNamespace<Instance>) -> Self {
        Self {
            instances,
            ..Self::default()
        }
    }

    /// The networks of a namespace, in no order.
    pub fn of(&self, namespace: &str) -> Vec<Arc<PrivateNetwork>> {
        self.all.of(namespace)
    }

    /// The network that an instance names, if there is one.
    pub fn of_instance(&self, instance: &Instance) -> Option<Arc<PrivateNetwork>> {
        let name = instance.spec.private_network.as_ref()?;
        let mut all = self.all.of(namespace(instance)).into_iter();
        all.find(|network| network.metadata.name.as_ref() == Some(name))
    }

    /// The instances that name a network.
    pub(super) fn attached(&self, network: &PrivateNetwork) -> Vec<Arc<Instance>> {
        self.attached_to(&ObjectRef::of(network))
    }

    fn attached_to(&self, network: &ObjectRef) -> Vec<Arc<Instance>> {
        let mut all = self.instances.of(network.namespace());
        all.retain(|instance| instance.spec.private_network.as_deref() == Some(network.name()));
        all
    }

    /// The address of an instance in the private network that it names; `None` if it names none. An instance without an address is given
    /// one. An error says why it cannot have one.
    pub fn address(&self, instance: &Instance) -> Result<Option<String>, Refusal> {
        let Some(name) = &instance.spec.private_network else {
            return Ok(None);
        };
        let known = instance
            .status
            .as_ref()
            .and_then(|status| status.private_ip_address.clone());
        if known.is_some() {
            return Ok(known);
        }
        let refuse = |cause, message: String| {
            Err(Refusal {
                cause,
                message: format!("spec.privateNetwork {name} {message}"),
            })
        };
        let Some(network) = self
            .of_instance(instance)
            .filter(|network| !network.is_deleting())
        else {
            return refuse(
                Cause::PrivateNetworkUnavailable,
                "is not a PrivateNetwork in this namespace; create it, or delete this instance and create another".to_owned(),
            );
        };
        let region = &network.spec.region;
        if *region != instance.spec.region {
            let its = &instance.spec.region;
            return refuse(
                Cause::PrivateNetworkUnavailable,
                format!("is in region {region}, not in {its}; delete this instance and create another"),
            );
        }
        let prefix = network
            .status
            .as_ref()
            .and_then(|status| status.prefix.as_deref());
        let Some(prefix) = prefix.and_then(|text| text.parse().ok()) else {
            let why = network.ready().map_or("", |ready| ready.message.as_str());
            return refuse(
                Cause::PrivateNetworkNotReady,
                format!("has no addresses yet: {why}"),
            );
        };
        let reservation = self.pool(&network, prefix).reserve(
            origin::uid(&instance.metadata),
            &Addresses::default(),
            Instant::now(),
        );
        match reservation.addresses.ipv4 {
            Some(address) => Ok(Some(address)),
            None => refuse(
                Cause::PrivateNetworkFull,
                format!(
                    "has no free address in {prefix}; delete an instance in it, or create this one in another network"
                ),
            ),
        }
    }

    /// The addresses of a network. At first, those that are in the status of an instance are taken.
    fn pool(&self, network: &PrivateNetwork, prefix: Ipv4Net) -> Arc<Ipam> {
        let mut pools = self.pools.lock();
        let key = ObjectRef::of(network);
        if let Some(pool) = pools.get(&key).filter(|pool| pool.prefix == prefix) {
            return pool.ipam.clone();
        }
        let prefixes = vec![network::addresses(prefix)];
        let ipam = Arc::new(Ipam::new(&network.spec.region, prefixes, None).with_rest(REST));
        adopt(&ipam, self.attached_to(&key));
        let pool = Pool {
            prefix,
            ipam: ipam.clone(),
        };
        pools.insert(key, pool);
        ipam
    }

    /// The listener for the watch of Instances, which must be called after that of their index. It keeps account of the addresses, and
    /// queues the deleted networks that wait for the end of an instance.
    pub fn instance_listener(&self, queue: ReconcileQueue<PrivateNetwork>) -> Box<dyn Listener<Instance>> {
        let networks = self.clone();
        Box::new(move |change: &Change<Instance>| match change {
            Change::Applied(instance) => {
                if in_status(instance).ipv4.is_some() {
                    let network = networks.of_instance(instance);
                    networks.with_pool(network.as_deref(), |pool| adopt(pool, vec![instance.clone()]));
                }
            }
            Change::Deleted(instance) => {
                let network = networks.of_instance(instance);
                // Otherwise it is still there, but cannot be read.
                if instance.metadata.deletion_timestamp.is_some() {
                    networks.with_pool(network.as_deref(), |pool| {
                        pool.release(origin::uid(&instance.metadata), Instant::now());
                    });
                }
                queue.again(network.filter(|network| network.is_deleting()));
            }
            Change::Unreadable(_) => {}
            // Nobody is told what was deleted meanwhile.
            Change::Replaced(_) => {
                for (network, pool) in networks.pools.lock().iter() {
                    let attached = networks.attached_to(network);
                    let uids = attached.iter().map(|instance| origin::uid(&instance.metadata));
                    pool.ipam.retain(uids, Instant::now());
                    adopt(&pool.ipam, attached);
                }
            }
        })
    }

    /// Calls with the addresses of a network, if one has been given by this process.
    fn with_pool(&self, network: Option<&PrivateNetwork>, with: impl FnOnce(&Ipam)) {
        let pools = self.pools.lock();
        if let Some(pool) = network.and_then(|network| pools.get(&ObjectRef::of(network))) {
            with(&pool.ipam);
        }
    }

    /// The listeners for the watch of `PrivateNetworks`: their index, and what queues the instances and networks that may have waited for
    /// a change.
    pub fn listeners(
        &self,
        queue: ReconcileQueue<PrivateNetwork>,
        instances: ReconcileQueue<Instance>,
    ) -> [Box<dyn Listener<PrivateNetwork>>; 2] {
        let networks = self.clone();
        let changed = move |change: &Change<PrivateNetwork>| {
            let (Change::Applied(network) | Change::Deleted(network)) = change else {
                return;
            };
            let waits = |instance: &Arc<Instance>| {
                let status = instance.status.as_ref();
                status.is_none_or(|status| status.state.is_none())
            };
            instances.again(networks.attached(network).into_iter().filter(waits));
            if let Change::Deleted(network) = change {
                networks.pools.lock().remove(&ObjectRef::of(&**network));
                let namespace = network.metadata.namespace.as_deref().unwrap_or_default();
                queue.again(networks.of(namespace));
            }
        };
        [Box::new(self.all.clone()), Box::new(changed)]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn instance(name: &str, region: &str, address: Option<&str>) -> Arc<Instance> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": { "name": name, "namespace": "demo", "uid": name },
                "spec": { "plan": "starter", "region": region, "image": "debian-13", "privateNetwork": "pn-a" },
                "status": { "privateIPAddress": address },
            }))
            .unwrap(),
        )
    }

    fn network(metadata: Value, status: Value) -> Arc<PrivateNetwork> {
        let mut object = json!({
            "metadata": { "name": "pn-a", "namespace": "demo", "uid": "n" },
            "spec": { "region": "fr-par-1" }, "status": status,
        });
        for (key, value) in metadata.as_object().into_iter().flatten() {
            object["metadata"][key] = value.clone();
        }
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn networks(network: Option<Arc<PrivateNetwork>>, instances: Vec<Arc<Instance>>) -> Networks {
        let mut index = ByNamespace::default();
        index.changed(&Change::Replaced(instances));
        networks_of(network, index)
    }

    fn networks_of(network: Option<Arc<PrivateNetwork>>, instances: ByNamespace<Instance>) -> Networks {
        let networks = Networks::new(instances);
        let [mut all, _] = networks.listeners(ReconcileQueue::default(), ReconcileQueue::default());
        all.changed(&Change::Replaced(network.into_iter().collect()));
        networks
    }

    #[test]
    fn each_instance_gets_an_address_of_its_own_and_keeps_it() {
        let has = instance("a", "fr-par-1", Some("10.128.4.5"));
        let networks = networks(
            Some(network(json!({}), json!({ "prefix": "10.128.4.0/28" }))),
            vec![has.clone()],
        );
        assert_eq!(networks.address(&has).unwrap().as_deref(), Some("10.128.4.5"));
        let mut all = std::collections::HashSet::from(["10.128.4.5".to_owned()]);
        for i in 0..12 {
            let new = instance(&format!("i{i}"), "fr-par-1", None);
            let given = networks.address(&new).unwrap().unwrap();
            assert_eq!(networks.address(&new).unwrap(), Some(given.clone()));
            assert!(all.insert(given));
        }
        let refused = networks.address(&instance("last", "fr-par-1", None)).unwrap_err();
        assert!(
            refused.message.contains("has no free address in 10.128.4.0/28"),
            "{refused:?}"
        );
        assert_eq!(refused.cause, Cause::PrivateNetworkFull);
    }

    #[test]
    fn an_address_is_released_with_its_instance_and_kept_while_that_cannot_be_read() {
        let all: Vec<_> = (2..15)
            .map(|last| instance(&format!("i{last}"), "fr-par-1", Some(&format!("10.128.4.{last}"))))
            .collect();
        let mut index = ByNamespace::default();
        index.changed(&Change::Replaced(all.clone()));
        let full = network(json!({}), json!({ "prefix": "10.128.4.0/28" }));
        let networks = networks_of(Some(full), index.clone());
        let free = || {
            let pools = networks.pools.lock();
            let ipam = &pools.values().next().unwrap().ipam;
            let later = Instant::now() + REST;
            let given = ipam.reserve("new", &Addresses::default(), later).addresses.ipv4;
            ipam.release("new", Instant::now().checked_sub(REST).unwrap());
            given
        };
        networks
            .address(&instance("first", "fr-par-1", None))
            .unwrap_err();
        let mut listener = networks.instance_listener(ReconcileQueue::default());
        listener.changed(&Change::Deleted(all[3].clone()));
        assert_eq!(free(), None, "it is still there");
        let mut deleted = (*all[3]).clone();
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-11-21T10:00:00Z")).unwrap();
        listener.changed(&Change::Deleted(Arc::new(deleted)));
        assert_eq!(free().as_deref(), Some("10.128.4.5"));
        listener.changed(&Change::Applied(all[3].clone()));
        assert_eq!(free(), None, "it is back");
        let relist = Change::Replaced(all[1..].to_vec());
        index.changed(&relist);
        listener.changed(&relist);
        assert_eq!(
            free().as_deref(),
            Some("10.128.4.2"),
            "nobody said that it was deleted"
        );
    }

    #[test]
    fn an_instance_whose_network_is_not_there_is_refused() {
        let new = instance("a", "fr-par-1", None);
        let ready = || json!({ "prefix": "10.128.4.0/24" });
        let unavailable = Cause::PrivateNetworkUnavailable;
        for (network, region, cause, says) in [
            (None, "fr-par-1", unavailable, "is not a PrivateNetwork"),
            (
                Some(network(
                    json!({ "deletionTimestamp": "2026-11-21T10:00:00Z" }),
                    ready(),
                )),
                "fr-par-1",
                unavailable,
                "is not a PrivateNetwork",
            ),
            (
                Some(network(json!({ "namespace": "other" }), ready())),
                "fr-par-1",
                unavailable,
                "is not a PrivateNetwork",
            ),
            (
                Some(network(json!({}), ready())),
                "de-fra-1",
                unavailable,
                "is in region fr-par-1, not in de-fra-1",
            ),
            (
                Some(network(json!({}), json!({}))),
                "fr-par-1",
                Cause::PrivateNetworkNotReady,
                "has no addresses yet",
            ),
        ] {
            let networks = networks(network, vec![new.clone()]);
            let refused = networks.address(&instance("a", region, None)).unwrap_err();
            assert!(refused.message.contains(says), "{refused:?}");
            assert_eq!(refused.cause, cause);
        }
        let mut none = (*new).clone();
        none.spec.private_network = None;
        assert_eq!(networks(None, Vec::new()).address(&none).unwrap(), None);
    }
}
