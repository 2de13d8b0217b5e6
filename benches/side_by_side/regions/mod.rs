//! (g): a region with real servers: KubeVirt's own API server and controller, which the tests' puppet plays a node, an importer of disks
//! and a storage for. Stellage has the rights of the region's chart there.
//!
//! - `overhead`: what a creation and a reboot ask of the API servers, and how long a creation takes, compared with a bare client that
//!   applies the same objects;
//! - `idle`: ten thousand servers that nobody asks anything of, compared with as many simulated ones;
//! - `drain`: the nodes of a thousand of as many are drained, with virt-controller; a part of its own, `regions-drain`.
//!
//! Shared parts: `asked` (counts requests by who made them), `seen` (what happens in the region, and when), `copies` (copies of a
//! running server).
//!
//! Unlike in the other parts, both API servers keep an audit log, since requests are counted by who made them.

mod asked;
mod copies;
mod drain;
mod idle;
mod overhead;
mod seen;

use std::time::Duration;

use control_plane::{ControlPlane, Identity};
use serde_json::{Value, json};

use self::{asked::Asked, copies::Original, seen::Seen};
use crate::{
    Result,
    account::Account,
    cluster::{Cluster, STELLAGE},
    convergence::{self, PATIENCE},
    objects,
    processes::resident_mib,
    product::Product,
    say,
    sizes::Sizes,
    support::kubevirt::{
        self, Region,
        entry::{PREFIX, REGION, catalogue},
        kinds,
    },
    table::Table,
    wire::{Connection, Server, Target},
};

/// The label by which Stellage knows its servers.
const INSTALLATION: &str = "bench";
/// Stellage's identity in the region.
const USER: &str = "system:serviceaccount:stellage:stellage-region-bench";

/// A region, and the cluster in which Stellage runs.
struct Stage {
    region: Region,
    cluster: Cluster,
    /// The administrator of the region.
    admin: Target,
    /// Stellage in the region.
    theirs: Target,
    /// What Stellage's own API server and the region's are asked by Stellage.
    own: Asked,
    there: Asked,
    arguments: Vec<String>,
}

/// An account with servers in the region.
struct Tenant {
    account: Account,
    /// Namespace of its servers.
    namespace: String,
}

/// The accounts among whom many servers are dealt out: the copy with number n is the (n mod their number)-th one's.
struct Tenants(Vec<Tenant>);

impl Stage {
    async fn start() -> Result<Self> {
        say("starting a region: etcd, kube-apiserver, virt-api and virt-controller");
        let region = kubevirt::own().await;
        let cluster = Cluster::start_with(ControlPlane::options().audit_log()).await?;
        let folder = cluster.plane.folder().to_owned();
        let catalogue = catalogue(&region, INSTALLATION, &folder).await;
        let target = async |kubeconfig| Target::of(Server::Cluster { kubeconfig }).await;
        let name = format!("stellage.stellage-region-{INSTALLATION}.kubeconfig");
        Ok(Self {
            admin: target(region.plane.kubeconfig(Identity::Admin)).await?,
            theirs: target(region.plane.folder().join(name)).await?,
            own: Asked::of(Identity::Operator.user()),
            there: Asked::of(USER),
            arguments: vec![format!("--catalogue={}", catalogue.display())],
            region,
            cluster,
        })
    }

    /// Starts Stellage with the region.
    async fn product(&self) -> Result<Product> {
        Product::run_of(&self.cluster, STELLAGE.as_ref(), &self.arguments).await
    }

    /// Waits until Stellage has nothing left to write, in the region either.
    async fn until_quiet(&self, sizes: &Sizes) -> Result<()> {
        convergence::until_quiet(&self.cluster, sizes).await
    }

    /// Memory of the region's servers, for whoever plans such a test.
    fn say_memory(&self) -> Result<()> {
        for (name, pid) in self.region.pids() {
            say(&format!("  {name} in the region: {:.0} MiB", resident_mib(pid)?));
        }
        Ok(())
    }
}

impl Tenant {
    /// The account with this number.
    async fn create(stage: &Stage, product: &Product, number: u64) -> Result<Self> {
        let account = Account::named(&stage.cluster, product, &objects::name("tenant", number)).await?;
        let namespace = format!("{PREFIX}{}", account.namespace);
        let facade = product.facade(&account.key)?;
        let mut connection = facade.connect().await?;
        let request = facade.request("GET", "/v1/instances?limit=1", None);
        product
            .until(PATIENCE, "the key to be known", async || {
                let status = connection.exchange(request.as_bytes()).await?;
                Ok((status == 200).then_some(()))
            })
            .await?;
        Ok(Self { account, namespace })
    }

    /// Orders a server through REST, and returns its id.
    async fn order(&self, facade: &Target, connection: &mut Connection) -> Result<String> {
        let body = json!({
            "name": "web", "region": REGION, "plan": "starter", "image": "debian-13",
            "ssh_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB5YzVvV0kYCBSmaVxIoZWnoCNHzfZ9oVx0bDNdPjNG+ ada"],
        });
        let body = body.to_string();
        let request = facade.request("POST", "/v1/instances", Some(("application/json", &body)));
        let status = connection.exchange(request.as_bytes()).await?;
        let answer: Value = serde_json::from_slice(&connection.body())?;
        match answer["data"]["id"].as_str() {
            Some(id) if status == 201 => Ok(id.to_owned()),
            _ => Err(format!("an order was answered with {status}: {answer}").into()),
        }
    }

    /// Orders the account's first server, with which its namespace in the region is made, and waits until nothing is left to do for it.
    async fn order_first(&self, stage: &Stage, product: &Product) -> Result<String> {
        let facade = product.facade(&self.account.key)?;
        let mut connection = facade.connect().await?;
        let id = self.order(&facade, &mut connection).await?;
        self.shows(product, &mut connection, &id, "running").await?;
        overhead::until_sealed(stage, product, self, &id).await?;
        Ok(id)
    }

    /// The same, and the server's objects.
    async fn first(&self, stage: &Stage, product: &Product, sizes: &Sizes) -> Result<Original> {
        let id = self.order_first(stage, product).await?;
        stage.until_quiet(sizes).await?;
        Original::read(stage, self, &id).await
    }

    /// Waits until REST shows the instance in this state.
    async fn shows(
        &self,
        product: &Product,
        connection: &mut Connection,
        id: &str,
        state: &str,
    ) -> Result<()> {
        let facade = product.facade(&self.account.key)?;
        let request = facade.request("GET", &format!("/v1/instances/{id}"), None);
        product
            .until(PATIENCE, &format!("{id} to be {state}"), async || {
                connection.exchange(request.as_bytes()).await?;
                let answer: Value = serde_json::from_slice(&connection.body())?;
                Ok((answer["data"]["status"] == state).then_some(()))
            })
            .await
    }

    /// Number of instances, all or those in a state.
    async fn count(&self, product: &Product, state: Option<&str>) -> Result<u64> {
        let state = state.map(|state| format!("&status={state}")).unwrap_or_default();
        let facade = product.facade(&self.account.key)?;
        let path = format!("/v1/instances?limit=1{state}");
        let page: Value = facade.call("GET", &path, None).await?.json()?;
        Ok(page["pagination"]["total"]
            .as_u64()
            .ok_or("a page without a total")?)
    }
}

impl Tenants {
    /// Others beside the first one, each with a server, by which Stellage has made its namespace in the region.
    async fn others(first: Tenant, stage: &Stage, product: &Product, sizes: &Sizes) -> Result<Self> {
        say(&format!(
            "(g) making {} accounts with a server each",
            sizes.tenants
        ));
        let mut tenants = vec![first];
        for n in 1..sizes.tenants {
            let tenant = Tenant::create(stage, product, n).await?;
            tenant.order_first(stage, product).await?;
            tenants.push(tenant);
        }
        stage.until_quiet(sizes).await?;
        Ok(Self(tenants))
    }

    /// Number of the first copy: each has a server that is none.
    const fn first_copy(&self) -> u64 {
        self.0.len() as u64
    }

    /// Whose the copy with this number is.
    fn of(&self, n: u64) -> &Tenant {
        let count = self.0.len();
        &self.0[usize::try_from(n).map_or(0, |n| n % count)]
    }

    /// Number of instances, all or those in a state.
    async fn count(&self, product: &Product, state: Option<&str>) -> Result<u64> {
        let counts = self.0.iter().map(|tenant| tenant.count(product, state));
        Ok(futures::future::try_join_all(counts).await?.iter().sum())
    }
}

/// Measures what a server costs, and what ten thousand do that rest.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let (mut stage, product, tenant) = begin().await?;
    let seen = Seen::watch(&stage.region).await?;
    let original = overhead::measure(table, &mut stage, &product, &tenant, &seen, sizes).await?;
    drop(seen);
    many(&stage, product, tenant, &original, sizes).await?;
    idle::measure(table, &mut stage, sizes).await?;
    stage.cluster.stop().await
}

/// Measures the drain of many servers.
pub async fn measure_drain(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let (mut stage, product, tenant) = begin().await?;
    let original = tenant.first(&stage, &product, sizes).await?;
    let tenants = many(&stage, product, tenant, &original, sizes).await?;
    drain::measure(table, &mut stage, &tenants, sizes).await?;
    stage.cluster.stop().await
}

async fn begin() -> Result<(Stage, Product, Tenant)> {
    let stage = Stage::start().await?;
    let product = stage.product().await?;
    let tenant = Tenant::create(&stage, &product, 0).await?;
    Ok((stage, product, tenant))
}

/// Makes many servers, of several accounts. Neither Stellage nor virt-controller runs afterwards.
async fn many(
    stage: &Stage,
    mut product: Product,
    first: Tenant,
    original: &Original,
    sizes: &Sizes,
) -> Result<Tenants> {
    let instance = original.instance(stage, &first).await?;
    let tenants = Tenants::others(first, stage, &product, sizes).await?;
    product.stop().await?;
    stage.region.kill_virt_controller();
    copies::make(stage, &tenants, original, &instance, sizes.servers).await?;
    stage.say_memory()?;
    Ok(tenants)
}

/// The path of the objects of a kind of KubeVirt in a namespace.
fn collection(kind: &kube::api::ApiResource, namespace: &str) -> String {
    format!(
        "/apis/{}/namespaces/{namespace}/{}",
        kind.api_version, kind.plural
    )
}

/// The path of the virtual machines of a namespace.
fn machines(namespace: &str) -> String {
    collection(&kinds::VM, namespace)
}

/// How long something took that usually takes less than a second.
fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
