//! Private networks through REST and kubectl, with simulated servers.

use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Api;
use reqwest::Method;
use resources::{Instance, PrivateNetwork, conditions};
use serde_json::{Value, json};

use super::{
    contract::{code, expect},
    new_instance, wait_for,
};
use crate::support::{Tenant, eventually, kubectl, kubectl_words, shared};

/// Creates a network, waits until it is ready, and returns it as REST shows it.
async fn network(tenant: &Tenant, body: &Value) -> Value {
    let created = tenant.post(201, "/v1/networks", body).await;
    let path = created.header("location").to_owned();
    let shown = async || tenant.get(&path).await.json()["data"].clone();
    eventually("the network to be ready", shown, |shown| shown["ready"] == true).await
}

fn within(id: &Value) -> Value {
    let mut body = new_instance("web");
    body["private_network"] = id.clone();
    body
}

/// The message about the field `private_network` or `prefix` of a refused request.
async fn refused(tenant: &Tenant, path: &str, body: &Value) -> String {
    let answer = tenant.post(422, path, body).await;
    answer.json()["error"]["details"][0]["message"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn instances_in_a_private_network_have_addresses_in_it_and_it_stays_while_they_are_there() {
    let tenant = Tenant::new("rest-networks").await;
    let made = network(
        &tenant,
        &json!({ "name": "backend", "region": "fr-par-1", "prefix": "10.7.0.0/28" }),
    )
    .await;
    assert_eq!(
        (&made["name"], &made["prefix"], &made["instances"]),
        (&json!("backend"), &json!("10.7.0.0/28"), &json!(0))
    );
    let path = format!("/v1/networks/{}", made["id"].as_str().unwrap());
    let mut addresses = Vec::new();
    let mut instances = Vec::new();
    for _ in 0..2 {
        let created = tenant.post(201, "/v1/instances", &within(&made["id"])).await;
        let id = created.json()["data"]["id"].as_str().unwrap().to_owned();
        let shown = wait_for(&tenant, &id, "running").await;
        let address: std::net::Ipv4Addr = shown["private_ip_address"].as_str().unwrap().parse().unwrap();
        let [10, 7, 0, last] = address.octets() else {
            panic!("{address}")
        };
        assert!((2..15).contains(&last), "{address}");
        addresses.push(address);
        instances.push(id);
    }
    assert_ne!(addresses[0], addresses[1]);
    let alone = tenant.post(201, "/v1/instances", &new_instance("alone")).await;
    let alone = alone.json()["data"]["id"].as_str().unwrap().to_owned();
    assert_eq!(
        wait_for(&tenant, &alone, "running").await["private_ip_address"],
        Value::Null
    );

    let in_use = expect(&tenant, 409, Method::DELETE, &path, None, &[]).await;
    assert_eq!(code(&in_use), "conflict");
    assert!(in_use.text.contains("has 2 instances"), "{}", in_use.text);
    let request = format!(
        "GET /v1/instances?private_network={}",
        made["id"].as_str().unwrap()
    );
    assert!(in_use.text.contains(&request), "{}", in_use.text);
    let renamed = tenant.patch(200, &path, &json!({ "name": "db" })).await;
    assert_eq!(
        (
            &renamed.json()["data"]["name"],
            &renamed.json()["data"]["instances"]
        ),
        (&json!("db"), &json!(2))
    );
    // An object that somebody else has deleted goes with its last instance.
    let name = made["id"].as_str().unwrap();
    let plane = shared().await.plane;
    kubectl(
        plane,
        &format!(
            "delete privatenetwork {name} -n {} --wait=false",
            tenant.namespace
        ),
        None,
    )
    .unwrap();
    let networks: Api<PrivateNetwork> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let why = async || {
        let network = networks.get_opt(name).await.unwrap();
        network.and_then(|network| Some(network.ready()?.reason.clone()))
    };
    eventually("what it waits for", why, |why| why.as_deref() == Some("InUse")).await;
    let within = format!("/v1/instances?private_network={name}");
    let within = tenant.get(&within).await;
    assert_eq!(
        within.json()["pagination"]["total"],
        2,
        "what it waits for is listed"
    );
    let stripped = kubectl_words(
        plane,
        &[
            "patch",
            "privatenetwork",
            name,
            "-n",
            &tenant.namespace,
            "--as=somebody",
            "--type=merge",
            "-p",
            r#"{"metadata":{"finalizers":null}}"#,
        ],
        None,
    );
    assert!(stripped.is_err(), "{stripped:?}");
    for id in &instances {
        tenant.delete(&format!("/v1/instances/{id}")).await;
    }
    eventually(
        "the end of the network",
        async || networks.get_opt(name).await.unwrap(),
        Option::is_none,
    )
    .await;
}

#[tokio::test]
async fn networks_of_an_account_do_not_overlap_and_are_limited_in_number() {
    let tenant = Tenant::new("rest-networks-many").await;
    let first = network(&tenant, &json!({ "region": "fr-par-1", "prefix": "10.7.0.0/16" })).await;
    let overlapping = json!({ "region": "fr-par-1", "prefix": "10.7.3.0/24" });
    let message = refused(&tenant, "/v1/networks", &overlapping).await;
    assert_eq!(
        message,
        format!(
            "overlaps 10.7.0.0/16 of private network {}",
            first["id"].as_str().unwrap()
        )
    );
    let mut prefixes = vec![first["prefix"].clone()];
    for _ in 0..9 {
        let made = network(&tenant, &json!({ "region": "fr-par-1" })).await;
        assert!(!prefixes.contains(&made["prefix"]), "{prefixes:?}");
        prefixes.push(made["prefix"].clone());
    }
    let eleventh = json!({ "region": "fr-par-1" });
    let refused = tenant.post(403, "/v1/networks", &eleventh).await;
    assert_eq!(code(&refused), "resource_limit_exceeded");
    let quotas: Api<ResourceQuota> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let counted = async || {
        let quota = quotas.get_opt("stellage").await.unwrap();
        quota?
            .status?
            .used?
            .get("count/privatenetworks.stellage.dev")
            .cloned()
    };
    eventually("Kubernetes to count them", counted, |counted| {
        counted.as_ref().is_some_and(|counted| counted.0 == "10")
    })
    .await;
    let with_kubectl = json!({
        "apiVersion": "stellage.dev/v1", "kind": "PrivateNetwork",
        "metadata": { "name": "pn-more", "namespace": tenant.namespace }, "spec": { "region": "fr-par-1" },
    });
    let refused = kubectl(
        shared().await.plane,
        "create -f -",
        Some(&with_kubectl.to_string()),
    )
    .unwrap_err();
    assert!(refused.contains("exceeded quota"), "{refused}");
    let account = tenant.get("/v1/account").await.json();
    assert_eq!(
        account["data"]["quotas"]["private_networks"],
        json!({ "used": 10, "limit": 10 })
    );
}

#[tokio::test]
async fn an_instance_is_not_attached_to_a_network_that_is_not_its_accounts_in_its_region_with_a_free_address()
{
    let (ada, bob) = (
        Tenant::new("rest-networks-ada").await,
        Tenant::new("rest-networks-bob").await,
    );
    let theirs = network(&ada, &json!({ "region": "fr-par-1" })).await;
    let unknown = refused(&bob, "/v1/instances", &within(&json!("pn-0000000000000000"))).await;
    assert_eq!(unknown, "is not the id of a private network of this account");
    assert_eq!(
        refused(&bob, "/v1/instances", &within(&theirs["id"])).await,
        unknown
    );
    let own = network(&bob, &json!({ "region": "de-fra-1", "prefix": "10.7.0.0/28" })).await;
    let elsewhere = refused(&bob, "/v1/instances", &within(&own["id"])).await;
    assert_eq!(elsewhere, "is in region de-fra-1, not in fr-par-1");
    let mut body = within(&own["id"]);
    body["region"] = json!("de-fra-1");
    for _ in 0..13 {
        bob.post(201, "/v1/instances", &body).await;
    }
    let full = refused(&bob, "/v1/instances", &body).await;
    assert!(full.contains("has no free address"), "{full}");

    let list = |network: &str| {
        let path = format!("/v1/instances?private_network={network}&limit=1");
        let bob = &bob;
        async move { bob.get(&path).await.json() }
    };
    let within = list(own["id"].as_str().unwrap()).await;
    assert_eq!(within["pagination"]["total"], 13);
    let others = list(theirs["id"].as_str().unwrap()).await;
    assert_eq!(others["pagination"]["total"], 0);
}

#[tokio::test]
async fn an_instance_is_not_attached_to_a_network_that_cannot_be_made() {
    let tenant = Tenant::new("rest-networks-stalled").await;
    let first = json!({ "region": "fr-par-1", "prefix": "10.7.0.0/24" });
    network(&tenant, &first).await;
    let overlapping = json!({
        "apiVersion": "stellage.dev/v1", "kind": "PrivateNetwork",
        "metadata": { "name": "pn-overlapping", "namespace": tenant.namespace },
        "spec": { "region": "fr-par-1", "prefix": "10.7.0.0/28" },
    });
    let plane = shared().await.plane;
    kubectl(plane, "create -f -", Some(&overlapping.to_string())).unwrap();
    let shown = async || {
        let list = tenant.get("/v1/networks").await.json();
        let mut all = list["data"].as_array().unwrap().iter();
        all.find(|network| network["name"] == "pn-overlapping").cloned()
    };
    let is_stalled = |shown: &Option<Value>| {
        let message = shown.as_ref().and_then(|shown| shown["message"].as_str());
        message.is_some_and(|message| message.contains("overlaps"))
    };
    let shown = eventually("the network to say what is wrong", shown, is_stalled).await;
    let shown = shown.unwrap();
    let message = refused(&tenant, "/v1/instances", &within(&shown["id"])).await;
    let why = shown["message"].as_str().unwrap();
    assert_eq!(
        message,
        format!("names a private network that cannot be used: {why}")
    );
}

#[tokio::test]
async fn with_kubectl_an_instance_waits_for_its_network_and_says_so() {
    let tenant = Tenant::new("rest-networks-kubectl").await;
    let instance = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance",
        "metadata": { "name": "web", "namespace": tenant.namespace },
        "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13", "privateNetwork": "pn-backend" },
    });
    let plane = shared().await.plane;
    kubectl(plane, "create -f -", Some(&instance.to_string())).unwrap();
    let is_waiting = |instance: Option<&Instance>| {
        let status = instance.and_then(|instance| instance.status.as_ref());
        let ready = status.and_then(|status| conditions::find(&status.conditions, conditions::READY));
        ready.is_some_and(|ready| ready.reason == "PrivateNetworkUnavailable")
    };
    let waiting = tenant.wait("web", "what it waits for", is_waiting).await;
    assert_eq!(waiting.status.unwrap().state, None);
    let network = json!({
        "apiVersion": "stellage.dev/v1", "kind": "PrivateNetwork",
        "metadata": { "name": "pn-backend", "namespace": tenant.namespace }, "spec": { "region": "fr-par-1" },
    });
    kubectl(plane, "create -f -", Some(&network.to_string())).unwrap();
    let has_address = |instance: Option<&Instance>| {
        let status = instance.and_then(|instance| instance.status.as_ref());
        status.is_some_and(|status| status.private_ip_address.is_some())
    };
    let attached = tenant.wait("web", "an address", has_address).await;
    let address = attached.status.unwrap().private_ip_address.unwrap();
    assert!(address.starts_with("10."), "{address}");
    // It has another id, by which REST knows it.
    let list = tenant.get("/v1/networks").await.json();
    assert_eq!(
        (&list["data"][0]["name"], &list["data"][0]["instances"]),
        (&json!("pn-backend"), &json!(1))
    );
    let id = &list["data"][0]["id"];
    tenant.post(201, "/v1/instances", &within(id)).await;
}
