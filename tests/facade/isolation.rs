//! Isolation: on every endpoint of the document, an id of another account gets the same response as an unknown id, byte for byte.
//! Also checks the scopes of keys on every endpoint.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::ListParams};
use reqwest::Method;
use resources::{ApiKey, Backup, Delivery, Instance, InstanceState, PrivateNetwork, Webhook};
use serde_json::{Value, json};

use super::{
    contract::{self, Endpoint},
    create, events, new_instance, wait_for, webhooks,
};
use crate::support::{Answer, Tenant, eventually, new_key, shared};

/// An answer without the parts that differ each time.
pub(super) fn without_traces(answer: &Answer) -> (u16, String, Vec<String>) {
    let mut body = answer.json();
    body["error"]["request_id"] = json!("");
    let mut headers: Vec<String> = answer
        .headers
        .iter()
        .filter(|(name, _)| {
            !["x-request-id", "date"].contains(&name.as_str()) && !name.as_str().starts_with("ratelimit")
        })
        .map(|(name, value)| format!("{name}: {value:?}"))
        .collect();
    headers.sort();
    (answer.status.as_u16(), body.to_string(), headers)
}

/// The objects of an account that paths can name.
struct Ids {
    instance: String,
    network: String,
    backup: String,
    webhook: String,
    delivery: String,
    event: String,
    invoice: String,
    key: String,
}

impl Ids {
    async fn of(tenant: &Tenant) -> Self {
        let webhook = webhooks::create(tenant).await;
        let test = format!("{}/test", webhooks::url_of(&webhook));
        let delivery = tenant.act(202, &test).await;
        let key = tenant.act(201, "/v1/keys").await;
        let event = events::event(events::start(), 0, &[]);
        let account = events::account_uid(tenant).await;
        events::write_page(tenant, &account, vec![event.clone()]).await;
        let id = |answer: &Answer| answer.json()["data"]["id"].as_str().unwrap().to_owned();
        let body = json!({ "region": "fr-par-1" });
        let network = tenant.post(201, "/v1/networks", &body).await;
        let instance = create(tenant, "web").await;
        wait_for(tenant, &instance, "running").await;
        // Its samples can be read.
        let monitored = json!({ "monitoring_enabled": true });
        let path = format!("/v1/instances/{instance}");
        tenant.patch(200, &path, &monitored).await;
        let backups = format!("/v1/instances/{instance}/backups");
        let backup = tenant.act(201, &backups).await;
        let current = async || {
            let answer = tenant.get("/v1/invoices/current").await;
            answer.json()["data"]["id"].as_str().map(str::to_owned)
        };
        let invoice = eventually("an open invoice", current, Option::is_some).await;
        Self {
            instance,
            invoice: invoice.unwrap(),
            network: id(&network),
            backup: id(&backup),
            webhook: webhook["id"].as_str().unwrap().to_owned(),
            delivery: id(&delivery),
            event: event.id,
            key: id(&key),
        }
    }

    fn unknown() -> Self {
        Self {
            instance: "i-0000000000000000".to_owned(),
            network: "pn-0000000000000000".to_owned(),
            backup: "bkp_0000000000000000".to_owned(),
            webhook: "wh_0000000000000000".to_owned(),
            delivery: "dlv_0000000000000000".to_owned(),
            event: "evt_0000000000000000".to_owned(),
            invoice: "inv_0000000000000000".to_owned(),
            key: "key-0000000000000000".to_owned(),
        }
    }

    fn nonsense() -> Self {
        Self {
            instance: "nonsense".to_owned(),
            network: "nonsense".to_owned(),
            backup: "nonsense".to_owned(),
            webhook: "nonsense".to_owned(),
            delivery: "nonsense".to_owned(),
            event: "nonsense".to_owned(),
            invoice: "nonsense".to_owned(),
            key: "-nonsense-".to_owned(),
        }
    }

    /// The path with ids in place of its placeholders.
    fn fill(&self, path: &str) -> String {
        let id = match path {
            path if !path.contains("{id}") => return path.to_owned(),
            path if path.starts_with("/v1/instances/") => &self.instance,
            path if path.starts_with("/v1/networks/") => &self.network,
            path if path.starts_with("/v1/backups/") => &self.backup,
            path if path.starts_with("/v1/webhooks/") => &self.webhook,
            path if path.starts_with("/v1/events/") => &self.event,
            path if path.starts_with("/v1/invoices/") => &self.invoice,
            path if path.starts_with("/v1/keys/") => &self.key,
            path => panic!("whose ids are in {path}?"),
        };
        path.replace("{id}", id).replace("{delivery_id}", &self.delivery)
    }
}

/// A tenant's objects, without the parts that controllers write.
async fn look(tenant: &Tenant) -> Vec<String> {
    let everything = ListParams::default();
    let (kube, namespace) = (tenant.kube.clone(), &tenant.namespace);
    let instances: Api<Instance> = Api::namespaced(kube.clone(), namespace);
    let networks: Api<PrivateNetwork> = Api::namespaced(kube.clone(), namespace);
    let backups: Api<Backup> = Api::namespaced(kube.clone(), namespace);
    let hooks: Api<Webhook> = Api::namespaced(kube.clone(), namespace);
    let deliveries: Api<Delivery> = Api::namespaced(kube.clone(), namespace);
    let secrets: Api<Secret> = Api::namespaced(kube.clone(), namespace);
    let keys: Api<ApiKey> = Api::namespaced(kube, namespace);
    let mut seen: Vec<String> = Vec::new();
    for object in instances.list(&everything).await.unwrap() {
        seen.push(format!("{:?} {:?}", object.metadata.uid, object.spec));
    }
    for object in networks.list(&everything).await.unwrap() {
        seen.push(format!("{:?} {:?}", object.metadata.uid, object.spec));
    }
    for object in backups.list(&everything).await.unwrap() {
        seen.push(format!("{:?} {:?}", object.metadata.uid, object.spec));
    }
    for object in hooks.list(&everything).await.unwrap() {
        seen.push(format!("{:?} {:?}", object.metadata.uid, object.spec));
    }
    // Those of the instance's own events appear at their own time; requests create only test events.
    let tests = deliveries.list(&everything).await.unwrap().items.into_iter();
    for object in tests.filter(|delivery| delivery.spec.test) {
        seen.push(format!("{:?} {:?}", object.metadata.uid, object.spec));
    }
    for object in secrets.list(&everything).await.unwrap() {
        seen.push(format!("{:?} {:?}", object.metadata.uid, object.data));
    }
    for object in keys.list(&everything).await.unwrap() {
        seen.push(format!("{:?} {:?}", object.metadata.uid, object.spec));
    }
    seen.sort();
    seen
}

#[tokio::test]
async fn anothers_ids_are_like_unknown_ones_on_every_endpoint_of_the_document() {
    let (ada, bob) = (Tenant::new("iso-ada").await, Tenant::new("iso-bob").await);
    let (theirs, own) = (Ids::of(&ada).await, Ids::of(&bob).await);
    let before = look(&ada).await;
    for Endpoint {
        method, path, body, ..
    } in contract::endpoints()
    {
        if !path.contains("{id}") {
            continue;
        }
        for headers in [&[][..], &[("If-Match", "*")], &[("Idempotency-Key", "k")]] {
            let mut answers = Vec::new();
            for ids in [&theirs, &Ids::unknown(), &Ids::nonsense()] {
                let path = ids.fill(&path);
                let answer = contract::call(&bob, method.clone(), &path, body.as_ref(), headers).await;
                assert_eq!(answer.status, 404, "{method} {path}: {answer:?}");
                answers.push(without_traces(&answer));
            }
            assert!(
                answers.windows(2).all(|pair| pair[0] == pair[1]),
                "{method} {path}: {answers:#?}"
            );
        }
        if path.contains("{delivery_id}") {
            // Another account's delivery must not be reachable through one's own webhook either.
            let path = path
                .replace("{id}", &own.webhook)
                .replace("{delivery_id}", &theirs.delivery);
            contract::expect(&bob, 404, method, &path, body.as_ref(), &[]).await;
        }
    }
    assert_eq!(look(&ada).await, before, "nothing was written");
}

#[tokio::test]
async fn a_list_and_the_account_show_ones_own_alone() {
    let (ada, bob) = (
        Tenant::new("iso-list-ada").await,
        Tenant::new("iso-list-bob").await,
    );
    let theirs = Ids::of(&ada).await;
    for Endpoint { method, path, .. } in contract::endpoints() {
        if method != Method::GET || path.contains("{id}") {
            continue;
        }
        let answer = bob.get(&path).await;
        for id in [
            &theirs.instance,
            &theirs.network,
            &theirs.backup,
            &theirs.webhook,
            &theirs.event,
            &theirs.invoice,
            &theirs.key,
            &ada.namespace,
        ] {
            assert!(!answer.text.contains(id.as_str()), "{path}: {}", answer.text);
        }
    }
}

#[tokio::test]
async fn every_operation_of_the_document_succeeds_as_it_says_with_the_body_that_it_shows() {
    let tenant = Tenant::new("iso-success").await;
    let ids = Ids::of(&tenant).await;
    let instance = format!("/v1/instances/{}", ids.instance);
    let mut endpoints = contract::endpoints();
    endpoints.sort_by_key(|endpoint| endpoint.method == Method::DELETE);
    for endpoint in endpoints {
        let Endpoint {
            method,
            path,
            body,
            success,
        } = endpoint;
        let path = ids.fill(&path);
        // The preconditions of the operation.
        if path.starts_with(&format!("{instance}/")) && method == Method::POST {
            let (wanted, action) = if path.ends_with("/start") {
                ("stopped", "stop")
            } else {
                ("running", "start")
            };
            let look = async || tenant.get(&instance).await.json();
            let is_settled =
                |shown: &Value| ["running", "stopped"].contains(&shown["data"]["status"].as_str().unwrap());
            if eventually("a settled state", look, is_settled).await["data"]["status"] != wanted {
                tenant.act(202, &format!("{instance}/{action}")).await;
                wait_for(&tenant, &ids.instance, wanted).await;
            }
        }
        // One at a time, and none is deleted before it is completed.
        let backs_up = path.ends_with("/backups") && method == Method::POST;
        if backs_up || path.starts_with("/v1/backups/") && method == Method::DELETE {
            let backup = format!("/v1/backups/{}", ids.backup);
            let is_completed = async || tenant.get(&backup).await.json();
            eventually("the backup", is_completed, |shown| {
                shown["data"]["status"] == "completed"
            })
            .await;
        }
        contract::expect(&tenant, success, method, &path, body.as_ref(), &[]).await;
    }
}

#[tokio::test]
async fn without_a_key_nothing_is_answered_and_with_a_read_key_nothing_is_changed() {
    let mut tenant = Tenant::new("iso-read").await;
    let ids = Ids::of(&tenant).await;
    let before = look(&tenant).await.len() + 1;
    tenant.key = new_key(shared().await.plane, "iso-read", "read");
    eventually(
        "the key to be known",
        async || tenant.call(Method::GET, "/v1/plans", None).await.status.as_u16(),
        |status| *status == 200,
    )
    .await;
    for Endpoint {
        method, path, body, ..
    } in contract::endpoints()
    {
        let path = ids.fill(&path);
        if method == Method::GET {
            contract::expect(&tenant, 200, method, &path, None, &[]).await;
        } else {
            let refused = contract::expect(&tenant, 403, method, &path, body.as_ref(), &[]).await;
            assert_eq!(contract::code(&refused), "token_readonly", "{path}");
        }
    }
    tenant.key = "nobody's".to_owned();
    for Endpoint {
        method, path, body, ..
    } in contract::endpoints()
    {
        let refused = contract::expect(&tenant, 401, method, &ids.fill(&path), body.as_ref(), &[]).await;
        assert_eq!(contract::code(&refused), "unauthorized", "{path}");
    }
    assert_eq!(
        look(&tenant).await.len(),
        before,
        "nothing but the read key was created"
    );
}

#[tokio::test]
async fn the_same_idempotency_key_of_two_accounts_makes_two_instances() {
    let (ada, bob) = (Tenant::new("iso-key-ada").await, Tenant::new("iso-key-bob").await);
    let mut ids = Vec::new();
    for tenant in [&ada, &bob] {
        let headers = [("Idempotency-Key", "the-same")];
        let answer = contract::expect(
            tenant,
            201,
            Method::POST,
            "/v1/instances",
            Some(&new_instance("x")),
            &headers,
        )
        .await;
        assert!(answer.headers.get("idempotency-replayed").is_none());
        ids.push(answer.json()["data"]["id"].clone());
    }
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn an_object_whose_name_is_anothers_id_harms_nobody() {
    let (ada, bob) = (
        Tenant::new("iso-copy-ada").await,
        Tenant::new("iso-copy-bob").await,
    );
    let named = create(&ada, "web").await;
    ada.wait_for_state(&named, InstanceState::Running).await;
    // Wait for the controller's last write.
    ada.wait_for_clear_outboxes().await;
    let version = async || {
        ada.instances()
            .get(&named)
            .await
            .unwrap()
            .metadata
            .resource_version
    };
    let before = version().await;
    bob.apply(&named, |instance| instance.spec.name = Some("copy".to_owned()))
        .await;
    wait_for(&bob, &named, "running").await;
    let path = format!("/v1/instances/{named}");
    let mine = ada.get(&path).await;
    assert_eq!(mine.json()["data"]["name"], "web");
    assert_eq!(version().await, before, "nothing was written");
}
