//! Private networks: list, find, create, change, delete, and which an instance can be attached to.

use std::sync::Arc;

use super::{
    Service,
    credentials::Tenant,
    error::{Error, ErrorCode, check_quota},
    id::NetworkId,
    idempotency::IdempotentRequest,
    index::{Indexed, Object as _, Paging},
    precondition::Precondition,
    store::{Created, KeyedCreate, Verdict, annotations},
};
use api::{ChangeNetwork, CreateNetwork};
use domain::network;
use resources::{
    PrivateNetwork, PrivateNetworkSpec,
    conditions::{self, STALLED},
    private_network::FINALIZER,
};

/// A private network with values derived from it.
#[derive(Debug)]
pub struct IndexedNetwork {
    /// The object, shared with the watch's store.
    pub network: Arc<PrivateNetwork>,
    /// Its public id.
    pub id: NetworkId,
}

impl Indexed for IndexedNetwork {
    type Object = PrivateNetwork;
    type Id = NetworkId;
    type Spec = PrivateNetworkSpec;

    const WORD: &'static str = "private network";

    fn of(network: Arc<PrivateNetwork>) -> Self {
        Self {
            id: NetworkId::of(&network),
            network,
        }
    }

    fn id(&self) -> NetworkId {
        self.id
    }

    fn object(&self) -> &PrivateNetwork {
        &self.network
    }

    fn spec(&self) -> &PrivateNetworkSpec {
        &self.network.spec
    }
}

impl IndexedNetwork {
    /// Why instances cannot be attached, in the words of REST; `None` if they can.
    pub fn why_not_ready(&self) -> Option<String> {
        match self.network.ready() {
            Some(ready) if ready.status == "True" => None,
            // The messages for kubectl name fields that REST does not have.
            Some(ready) => Some(ready.message.replace("spec.", "")),
            None => Some("the network is being made".to_owned()),
        }
    }

    /// Whether it cannot become ready before somebody changes something.
    fn is_stalled(&self) -> bool {
        let status = self.network.status.as_ref();
        status.is_some_and(|status| conditions::is_true(&status.conditions, STALLED))
    }
}

impl Service {
    /// One page of an account's networks, newest first, and their total number.
    pub fn list_networks(&self, namespace: &str, paging: Paging) -> (Vec<Arc<IndexedNetwork>>, usize) {
        self.networks.index().page(namespace, paging)
    }

    /// The network with this id; `not_found` if it is not in the namespace.
    pub async fn network(
        &self,
        namespace: &str,
        id: Option<NetworkId>,
    ) -> Result<Arc<IndexedNetwork>, Error> {
        self.networks.find(namespace, id).await
    }

    /// The name of the object with this id. If there is none, or not any more, the id: REST names its objects so.
    pub async fn network_name(&self, namespace: &str, id: Option<NetworkId>) -> Result<String, Error> {
        match self.network(namespace, id).await {
            Ok(item) => Ok(item.network.name().to_owned()),
            Err(error) if error.code == ErrorCode::NotFound => {
                Ok(id.map(|id| id.to_string()).unwrap_or_default())
            }
            Err(error) => Err(error),
        }
    }

    /// Number of instances in a network.
    pub fn attached(&self, item: &IndexedNetwork) -> usize {
        let network = &*item.network;
        let index = self.instances.index();
        index.count_of(network.namespace(), |instance| instance.is_in(network.name()))
    }

    /// The network that a new instance in this region names; why it cannot be attached to it, for the field of the request.
    pub async fn network_to_attach(
        &self,
        namespace: &str,
        id: Option<NetworkId>,
        region: Option<&str>,
    ) -> Result<Result<Arc<IndexedNetwork>, String>, Error> {
        let item = match self.network(namespace, id).await {
            Ok(item) => item,
            Err(error) if error.code == ErrorCode::NotFound => {
                return Ok(Err(
                    "is not the id of a private network of this account".to_owned()
                ));
            }
            Err(error) => return Err(error),
        };
        let its = &item.network.spec.region;
        if let Some(region) = region
            && region != its
        {
            return Ok(Err(format!("is in region {its}, not in {region}")));
        }
        if item.is_stalled()
            && let Some(why) = item.why_not_ready()
        {
            return Ok(Err(format!("names a private network that cannot be used: {why}")));
        }
        let prefix = item.network.prefix().and_then(|text| network::parse(text).ok());
        let size = prefix.map_or(u32::MAX, |prefix| network::addresses(prefix).size());
        if self.attached(&item) >= usize::try_from(size).unwrap_or(usize::MAX) {
            return Ok(Err(
                "has no free address; choose another private network".to_owned()
            ));
        }
        Ok(Ok(item))
    }

    /// Creates a network, once per idempotency key.
    pub async fn create_network(
        &self,
        tenant: &Tenant,
        new: &CreateNetwork,
        request: Option<&IdempotentRequest>,
    ) -> Result<Created<IndexedNetwork>, Error> {
        let namespace = &tenant.namespace;
        let keyed = KeyedCreate::of(request, &tenant.uid)?;
        let check = || {
            tenant.check_not_terminating()?;
            self.check_prefix(namespace, new)?;
            check_quota(
                self.networks.index().count(namespace),
                self.settings.network_quota,
                "private networks",
            )
        };
        let build = |name: &str, hash: Option<String>| {
            let spec = PrivateNetworkSpec {
                name: new.name.clone(),
                region: new.region.clone(),
                prefix: new.prefix.clone(),
            };
            let mut object = PrivateNetwork::new(name, spec);
            object.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
            object.metadata.annotations = Some(annotations(hash, self.clock.now()));
            object
        };
        self.networks
            .create_once(namespace, keyed.as_ref(), check, build)
            .await
    }

    /// The network that an earlier request with the same idempotency key has created.
    pub async fn network_created_by(
        &self,
        tenant: &Tenant,
        request: Option<&IdempotentRequest>,
    ) -> Result<Option<Created<IndexedNetwork>>, Error> {
        match KeyedCreate::of(request, &tenant.uid)? {
            Some(keyed) => self.networks.created_by(&tenant.namespace, &keyed).await,
            None => Ok(None),
        }
    }

    fn check_prefix(&self, namespace: &str, new: &CreateNetwork) -> Result<(), Error> {
        let Some(prefix) = new.prefix.as_deref().and_then(|text| network::parse(text).ok()) else {
            return Ok(());
        };
        let all = self.networks.index().all(namespace);
        let overlaps = |item: &&Arc<IndexedNetwork>| network::overlaps(prefix, &item.network);
        match all.iter().find(overlaps) {
            None => Ok(()),
            Some(other) => {
                let its = other.network.prefix().unwrap_or_default();
                let message = format!("overlaps {its} of private network {}", other.id);
                Err(Error::invalid_value("prefix", message))
            }
        }
    }

    /// Changes a network.
    pub async fn change_network(
        &self,
        namespace: &str,
        id: Option<NetworkId>,
        change: &ChangeNetwork,
        precondition: &Precondition,
    ) -> Result<Arc<IndexedNetwork>, Error> {
        let decide = |item: &IndexedNetwork| {
            precondition.check(&*item.network)?;
            let mut spec = item.network.spec.clone();
            if change.name.is_some() {
                spec.name.clone_from(&change.name);
            }
            Ok(Verdict::Write {
                spec: Box::new(spec),
                annotations: Vec::new(),
            })
        };
        self.networks.modify(namespace, id, decide).await
    }

    /// Deletes a network; `conflict` while instances are in it.
    pub async fn delete_network(
        &self,
        namespace: &str,
        id: Option<NetworkId>,
        precondition: &Precondition,
    ) -> Result<(), Error> {
        let check = |item: &IndexedNetwork| {
            precondition.check(&*item.network)?;
            match self.attached(item) {
                0 => Ok(()),
                attached => Err(still_in_use(&item.id.to_string(), attached)),
            }
        };
        self.networks
            .remove(namespace, id, precondition.is_some(), check)
            .await
    }
}

/// The error for deleting a network with this many instances.
pub fn still_in_use(id: &str, attached: usize) -> Error {
    let (instances, them) = if attached == 1 {
        ("instance", "it")
    } else {
        ("instances", "them")
    };
    Error::new(
        ErrorCode::Conflict,
        format!(
            "the private network has {attached} {instances}; delete {them} first (GET /v1/instances?private_network={id} lists {them})"
        ),
    )
}
