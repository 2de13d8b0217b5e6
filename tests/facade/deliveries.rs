//! Deliveries through REST: the log of a webhook, redelivery, test events.

use domain::event::EventType;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use reqwest::Method;
use resources::{Delivery, DeliveryPhase, Webhook, delivery::set_event_order};
use sender::signature::AGENT;
use serde_json::{Value, json};

use super::{
    contract::{code, expect, fields},
    events::all_pages,
    secrets::refer,
    webhooks::{create, name_of, url_of, webhooks},
};
use crate::support::{Tenant, eventually, shared};

fn deliveries(tenant: &Tenant) -> Api<Delivery> {
    Api::namespaced(tenant.kube.clone(), &tenant.namespace)
}

/// A delivery to write into the log.
struct Entry {
    number: usize,
    phase: DeliveryPhase,
    event_type: EventType,
}

/// Writes a Delivery as the controller would, except for the owner: with the webhook's Secret as owner, the controller ignores
/// it, as if it were another webhook's.
async fn record(tenant: &Tenant, webhook: &Webhook, entry: &Entry) -> String {
    let secrets: Api<Secret> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let owner = secrets.get(&webhook.spec.secret_ref.name).await.unwrap().metadata;
    let Entry {
        number,
        phase,
        event_type,
    } = entry;
    let name = format!("dlv-{number:0>16}");
    let mut object = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Delivery",
        "metadata": {
            "name": name,
            "labels": {
                "stellage.dev/webhook": webhook.metadata.name, "stellage.dev/phase": phase.as_str(),
                "stellage.dev/event-type": event_type.as_str(),
            },
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Secret", "name": owner.name, "uid": owner.uid,
            }],
        },
        "spec": {
            "webhook": webhook.metadata.name, "eventId": format!("evt_{number}"), "eventType": event_type,
            "eventCreatedAt": format!("2026-11-21T10:00:{number:0>2}Z"), "sequence": number, "body": "{}",
        },
        "status": { "phase": phase },
    });
    match phase {
        DeliveryPhase::Pending => object["status"]["nextAttemptAt"] = json!("2036-11-22T10:00:00Z"),
        DeliveryPhase::Held => {}
        DeliveryPhase::Delivered | DeliveryPhase::Exhausted => {
            object["metadata"]["labels"]["stellage.dev/finished"] = json!("true");
            object["metadata"]["annotations"] = json!({
                "stellage.dev/finished-at": format!("2036-11-21T10:00:{number:0>2}Z"),
            });
            object["status"]["attemptCount"] = json!(1);
            object["status"]["attempts"] = json!([{
                "at": "2026-11-21T10:00:00.25Z", "durationMs": 42, "statusCode": 503, "error": "answered 503", "response": "later",
            }]);
        }
    }
    let mut object: Delivery = serde_json::from_value(object).unwrap();
    let (at, sequence) = (object.spec.event_created_at, object.spec.sequence);
    set_event_order(&mut object.metadata, at, sequence);
    let operator = crate::support::as_operator(shared().await.plane).await;
    Api::<Delivery>::namespaced(operator, &tenant.namespace)
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
    name.replace('-', "_")
}

fn is_labelled(delivery: &Delivery) -> bool {
    let labels = delivery.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key("stellage.dev/finished"))
}

#[tokio::test]
async fn the_log_is_filtered_ordered_and_paged() {
    let tenant = Tenant::new("dlv-log").await;
    let (hook, other) = (create(&tenant).await, create(&tenant).await);
    let object = webhooks(&tenant).get(&name_of(&hook)).await.unwrap();
    let mut expected = Vec::new();
    // Phases and types are mixed; two of each phase are of another type.
    for number in 0..16 {
        let entry = Entry {
            number,
            phase: DeliveryPhase::ALL[number % 4],
            event_type: if number < 8 {
                EventType::InstanceCreated
            } else {
                EventType::BackupFailed
            },
        };
        expected.push(record(&tenant, &object, &entry).await);
    }
    let theirs = webhooks(&tenant).get(&name_of(&other)).await.unwrap();
    let entry = Entry {
        number: 42,
        phase: DeliveryPhase::Delivered,
        event_type: EventType::InstanceCreated,
    };
    let of_other = record(&tenant, &theirs, &entry).await;
    let path = format!("{}/deliveries", url_of(&hook));
    let list = async |query: &str| {
        let path = format!("{path}?{query}");
        tenant.get(&path).await.json()
    };
    let all = list("limit=100").await;
    let keys: Vec<(String, String)> = all["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| {
            let text = |field: &str| d[field].as_str().unwrap().to_owned();
            (text("created_at"), text("id"))
        })
        .collect();
    let mut sorted = keys.clone();
    sorted.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    assert_eq!(keys, sorted, "newest first, then id");
    let mut ids: Vec<&String> = keys.iter().map(|(_, id)| id).collect();
    ids.sort();
    assert_eq!(ids, expected.iter().collect::<Vec<_>>());
    let paged = all_pages(&tenant, &path, 7).await;
    assert_eq!(&paged, all["data"].as_array().unwrap());
    for (query, total) in [
        ("status=delivered", 4),
        ("status=exhausted", 4),
        ("event_type=backup.failed", 8),
        ("status=exhausted&event_type=instance.created", 2),
        ("status=nonsense", 0),
        ("event_type=instance", 0),
    ] {
        let found = list(query).await;
        assert_eq!(found["data"].as_array().unwrap().len(), total, "{query}");
    }
    for status in ["pending", "held"] {
        let found = list(&format!("status={status}")).await;
        assert!(
            found["data"]
                .as_array()
                .unwrap()
                .iter()
                .all(|d| d["status"] == status)
        );
    }
    let answer = expect(&tenant, 422, Method::GET, &format!("{path}?limit=0"), None, &[]).await;
    assert_eq!(fields(&answer), ["limit"]);

    let detail = tenant.get(&format!("{path}/{}", expected[3])).await;
    assert!(!detail.header("etag").is_empty());
    assert_eq!(
        detail.json()["data"],
        json!({
            "id": expected[3], "event_id": "evt_3", "event_type": "instance.created", "status": "exhausted",
            "created_at": detail.json()["data"]["created_at"], "next_attempt_at": null,
            "attempts": [{
                "at": "2026-11-21T10:00:00.250Z", "duration_ms": 42, "status_code": 503, "error": "answered 503",
                "response": "later",
            }],
            "request": {
                "url": "https://hooks.example.com/in",
                "headers": {
                    "Content-Type": "application/json", "User-Agent": AGENT, "Accept": "*/*",
                    "X-Service-Event-ID": "evt_3", "X-Service-Event-Type": "instance.created",
                    "X-Service-Timestamp": "1795255203",
                    "webhook-id": "evt_3", "webhook-timestamp": "1795255200",
                },
                "body": "{}",
            },
        })
    );
    let lists_requests = |one: &Value| one.get("request").is_some();
    assert!(!all["data"].as_array().unwrap().iter().any(lists_requests));
    for unknown in [
        of_other.as_str(),
        "dlv_zzzzzzzzzzzzzzzz",
        "nonsense",
        "dlv-0000000000000003",
    ] {
        expect(&tenant, 404, Method::GET, &format!("{path}/{unknown}"), None, &[]).await;
    }
}

fn nonce(delivery: &Delivery) -> Option<String> {
    let annotations = delivery.metadata.annotations.as_ref()?;
    annotations.get("stellage.dev/attempt-requested-at").cloned()
}

#[tokio::test]
async fn a_delivery_is_sent_now_once_for_a_key_wherever_it_is() {
    let tenant = Tenant::new("dlv-again").await;
    let hook = create(&tenant).await;
    let object = webhooks(&tenant).get(&name_of(&hook)).await.unwrap();
    let mut ids = Vec::new();
    for (number, phase) in DeliveryPhase::ALL.into_iter().enumerate() {
        let event_type = EventType::InstanceCreated;
        ids.push(
            record(
                &tenant,
                &object,
                &Entry {
                    number,
                    phase,
                    event_type,
                },
            )
            .await,
        );
    }
    let path = |id: &str| format!("{}/deliveries/{id}", url_of(&hook));
    let redeliver = |id: &str| format!("{}/redeliver", path(id));
    let stale = [("If-Match", "\"x\"")];
    expect(&tenant, 412, Method::POST, &redeliver(&ids[2]), None, &stale).await;
    let key = ("Idempotency-Key", "again");
    for (id, status) in ids.iter().zip(["pending", "held", "pending", "pending"]) {
        let read = tenant.get(&path(id)).await;
        let headers = [("If-Match", read.header("etag")), key];
        let sent = expect(&tenant, 202, Method::POST, &redeliver(id), None, &headers).await;
        let message = format!("Delivery {id} is being sent now.");
        assert_eq!(sent.json()["message"], message);
        assert_eq!(sent.json()["data"]["status"], status);
        assert_eq!(sent.json()["data"]["next_attempt_at"], json!(null));
        let object = async || deliveries(&tenant).get(&id.replace('_', "-")).await.unwrap();
        let first = object().await;
        assert!(!is_labelled(&first) && nonce(&first).is_some());
        let read = tenant.get(&path(id)).await;
        assert_eq!(
            read.json()["data"],
            sent.json()["data"],
            "a read must equal the answer to the write"
        );
        let again = expect(&tenant, 202, Method::POST, &redeliver(id), None, &[key]).await;
        assert_eq!(again.header("idempotency-replayed"), "true");
        assert_eq!(nonce(&object().await), nonce(&first));
        tenant.act(202, &redeliver(id)).await;
        assert_ne!(nonce(&object().await), nonce(&first), "another request");
    }
    let wrong = json!({ "force": true });
    let refused = tenant.post(422, &redeliver(&ids[2]), &wrong).await;
    assert_eq!(fields(&refused), ["force"]);
    // A redelivered one is pending.
    let list = format!("{}/deliveries?status=pending", url_of(&hook));
    let pending = tenant.get(&list).await.json();
    for id in &ids[2..] {
        assert!(
            pending["data"].as_array().unwrap().iter().any(|d| d["id"] == *id),
            "{pending:#}"
        );
    }
}

#[tokio::test]
async fn retry_asks_for_all_that_is_pending_once_for_a_key() {
    let tenant = Tenant::new("dlv-retry").await;
    let hook = create(&tenant).await;
    let object = webhooks(&tenant).get(&name_of(&hook)).await.unwrap();
    for number in 0..24 {
        let entry = Entry {
            number,
            phase: DeliveryPhase::ALL[number % 4],
            event_type: EventType::InstanceStopped,
        };
        record(&tenant, &object, &entry).await;
    }
    let nonces = async || {
        let all = deliveries(&tenant).list(&ListParams::default()).await.unwrap();
        let of_pending = all.items.iter().filter(|delivery| {
            let number: usize = delivery.spec.event_id["evt_".len()..].parse().unwrap();
            let is_pending = DeliveryPhase::ALL[number % 4] == DeliveryPhase::Pending;
            assert!(is_pending || nonce(delivery).is_none());
            is_pending
        });
        of_pending.filter_map(nonce).collect::<Vec<_>>()
    };
    let path = format!("{}/deliveries/retry", url_of(&hook));
    let stale = [("If-Match", "\"x\"")];
    expect(&tenant, 412, Method::POST, &path, None, &stale).await;
    assert!(nonces().await.is_empty());
    let key = [("Idempotency-Key", "once")];
    let first = expect(&tenant, 202, Method::POST, &path, None, &key).await;
    assert_eq!(
        first.json(),
        json!({ "data": { "retried": 6 }, "message": "6 deliveries are being sent now." })
    );
    let asked = nonces().await;
    assert_eq!(asked.len(), 6);
    let again = expect(&tenant, 202, Method::POST, &path, None, &key).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.json(), first.json());
    assert_eq!(nonces().await, asked);
    let wrong = json!({ "since": "2026-11-21T11:00:15Z" });
    let refused = tenant.post(422, &path, &wrong).await;
    assert_eq!(fields(&refused), ["since"]);
    let more = tenant.act(202, &path).await.json();
    assert_eq!(more["data"]["retried"], 6);
    assert!(nonces().await.iter().all(|nonce| !asked.contains(nonce)));

    // Nothing can be sent without the Secret, and the answer does not say otherwise.
    refer(&tenant, &name_of(&hook), "none", "secret").await;
    eventually(
        "it to be blocked",
        async || tenant.call(Method::GET, &url_of(&hook), None).await.json(),
        |shown| shown["data"]["health"] == "blocked",
    )
    .await;
    let waiting = tenant.act(202, &path).await.json();
    let message = "6 deliveries will be sent as soon as their webhook is no longer blocked.";
    assert_eq!(waiting, json!({ "data": { "retried": 6 }, "message": message }));
    refer(&tenant, &name_of(&hook), &object.spec.secret_ref.name, "secret").await;
    eventually(
        "it to be blocked no longer",
        async || tenant.call(Method::GET, &url_of(&hook), None).await.json(),
        |shown| shown["data"]["health"] == "healthy",
    )
    .await;

    let off = json!({ "active": false });
    tenant.patch(200, &url_of(&hook), &off).await;
    let refused = tenant.act(409, &path).await;
    assert_eq!(
        (code(&refused).as_str(), fields(&refused)),
        ("invalid_state", vec!["active".to_owned()])
    );
    let replayed = expect(&tenant, 202, Method::POST, &path, None, &key).await;
    assert_eq!(replayed.json(), first.json());
    // `retry` is not a valid delivery id.
    let wrong = tenant.call(Method::GET, &path, None).await;
    assert_eq!((wrong.status.as_u16(), wrong.header("allow")), (405, "POST"));
}

#[tokio::test]
async fn recover_sends_again_what_was_given_up_since_a_time() {
    let tenant = Tenant::new("dlv-recover").await;
    let hook = create(&tenant).await;
    let object = webhooks(&tenant).get(&name_of(&hook)).await.unwrap();
    for number in 0..24 {
        let entry = Entry {
            number,
            phase: DeliveryPhase::ALL[2 + number % 2],
            event_type: EventType::InstanceStopped,
        };
        record(&tenant, &object, &entry).await;
    }
    let labelled = async || {
        let all = deliveries(&tenant)
            .list(&ListParams::default())
            .await
            .unwrap()
            .items;
        all.iter().filter(|delivery| is_labelled(delivery)).count()
    };
    let path = format!("{}/recover", url_of(&hook));
    // Those with odd numbers are exhausted; only 15, 17, 19, 21 and 23 since that time. Their events are ten years older.
    let since = json!({ "since": "2036-11-21T11:00:15+01:00" });
    let key = [("Idempotency-Key", "once")];
    let first = expect(&tenant, 202, Method::POST, &path, Some(&since), &key).await;
    assert_eq!(first.json()["data"]["recovered"], 5);
    assert_eq!(labelled().await, 24 - 5);
    let again = expect(&tenant, 202, Method::POST, &path, Some(&since), &key).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.json(), first.json());
    let other = expect(&tenant, 422, Method::POST, &path, None, &key).await;
    assert_eq!(code(&other), "idempotency_key_reused");
    let rest = tenant.act(202, &path).await.json();
    assert_eq!(rest["data"]["recovered"], 7);
    assert_eq!(labelled().await, 12, "what was delivered stays as it is");
    let none = tenant.act(202, &path).await.json();
    assert_eq!(none["data"]["recovered"], 0);

    // Deliveries recovered while nothing can be sent wait, and the answer says what for.
    let off = json!({ "active": false });
    tenant.patch(200, &url_of(&hook), &off).await;
    let entry = Entry {
        number: 25,
        phase: DeliveryPhase::Exhausted,
        event_type: EventType::InstanceStopped,
    };
    record(&tenant, &object, &entry).await;
    let one = tenant.act(202, &path).await.json();
    let message = "One delivery will be sent as soon as its webhook is active.";
    assert_eq!(one, json!({ "data": { "recovered": 1 }, "message": message }));
}

#[tokio::test]
async fn the_etag_of_a_delivery_outlasts_its_attempts_and_recover_leaves_tests_alone() {
    let tenant = Tenant::new("dlv-etag").await;
    let hook = create(&tenant).await;
    let path = url_of(&hook);
    let tested = tenant.act(202, &format!("{path}/test")).await;
    let id = tested.json()["data"]["id"].as_str().unwrap().to_owned();
    eventually(
        "the test to have failed",
        async || deliveries(&tenant).get(&id.replace('_', "-")).await.unwrap(),
        Delivery::is_finished,
    )
    .await;
    let none = tenant.act(202, &format!("{path}/recover")).await;
    assert_eq!(none.json()["data"]["recovered"], 0);
    let etag = [("If-Match", tested.header("etag"))];
    let again = format!("{path}/deliveries/{id}/redeliver");
    expect(&tenant, 202, Method::POST, &again, None, &etag).await;
}

#[tokio::test]
async fn a_test_records_a_delivery_of_an_example() {
    let tenant = Tenant::new("dlv-test").await;
    let hook = create(&tenant).await;
    let path = format!("{}/test", url_of(&hook));
    let answer = tenant.act(202, &path).await.json();
    let id = answer["data"]["id"].as_str().unwrap();
    let event_id = answer["data"]["event_id"].as_str().unwrap();
    assert!(event_id.starts_with("evt_test_"), "{event_id}");
    assert_eq!(answer["data"]["event_type"], "instance.created", "its first");
    let object = deliveries(&tenant).get(&id.replace('_', "-")).await.unwrap();
    assert!(object.spec.test);
    assert_eq!(object.spec.webhook, name_of(&hook));
    assert_eq!(object.spec.body, "", "the controllers' alone");
    let shown = format!("{}/deliveries/{id}", url_of(&hook));
    let shown = tenant.get(&shown).await.json();
    let body: Value = serde_json::from_str(shown["data"]["request"]["body"].as_str().unwrap()).unwrap();
    assert_eq!(
        (body["id"].as_str(), &body["type"]),
        (Some(event_id), &json!("instance.created"))
    );
    assert_eq!(object.metadata.owner_references.unwrap()[0].name, name_of(&hook));

    let chosen = json!({ "type": "instance.deleted" });
    let key = [("Idempotency-Key", "once")];
    let first = expect(&tenant, 202, Method::POST, &path, Some(&chosen), &key).await;
    assert_eq!(first.json()["data"]["event_type"], "instance.deleted");
    assert_eq!(first.header("idempotency-retention"), "resource");
    let again = expect(&tenant, 202, Method::POST, &path, Some(&chosen), &key).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.json()["data"]["id"], first.json()["data"]["id"]);
    let other = expect(&tenant, 422, Method::POST, &path, None, &key).await;
    assert_eq!(code(&other), "idempotency_key_reused");
    let total = deliveries(&tenant)
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .len();
    assert_eq!(total, 2);

    let off = json!({ "active": false });
    tenant.patch(200, &url_of(&hook), &off).await;
    let refused = tenant.act(409, &path).await;
    assert_eq!(code(&refused), "invalid_state");
}
