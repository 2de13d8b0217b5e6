//! Two accounts, every endpoint, the other's ids: the same answer as for an unknown id, byte for byte.

use reqwest::Method;
use serde_json::json;
use stellage::resources::InstanceState;

use super::{contract, create, order, wait_for};
use crate::support::{Answer, Tenant};

/// An answer without what is another one each time.
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

#[tokio::test]
async fn anothers_id_is_like_an_unknown_one_on_every_endpoint() {
    let (ada, bob) = (Tenant::new("iso-ada").await, Tenant::new("iso-bob").await);
    let named = create(&ada, "web").await;
    let derived = ada.apply("by-hand", |_| {}).await.id();
    for name in [named.as_str(), "by-hand"] {
        ada.wait_for_state(name, InstanceState::Running).await;
    }
    // The last write that the controller does by itself.
    ada.wait_for_clear_outboxes().await;
    let before = ada
        .instances()
        .get(&named)
        .await
        .unwrap()
        .metadata
        .resource_version;
    let change = json!({ "name": "mine" });
    let image = json!({ "image": "debian-12" });
    let endpoints = [
        (Method::GET, "", None),
        (Method::GET, "?include=metrics", None),
        (Method::PATCH, "", Some(&change)),
        (Method::DELETE, "", None),
        (Method::POST, "/start", None),
        (Method::POST, "/stop", None),
        (Method::POST, "/poweroff", None),
        (Method::POST, "/reboot", None),
        (Method::POST, "/rebuild", Some(&image)),
    ];
    for (method, rest, body) in endpoints {
        for headers in [&[][..], &[("If-Match", "*")], &[("Idempotency-Key", "k")]] {
            let mut answers = Vec::new();
            for id in [
                named.as_str(),
                &derived,
                "i-0000000000000000",
                "nonsense",
                "by-hand",
            ] {
                let path = format!("/v1/instances/{id}{rest}");
                let answer = contract::call(&bob, method.clone(), &path, body, headers).await;
                assert_eq!(answer.status, 404, "{method} {path}: {answer:?}");
                answers.push(without_traces(&answer));
            }
            assert!(
                answers.windows(2).all(|pair| pair[0] == pair[1]),
                "{method} {rest}: {answers:#?}"
            );
        }
    }
    let list = bob.call(Method::GET, "/v1/instances", None).await.json();
    assert_eq!(list["pagination"]["total"], 0);
    // The same key of two accounts makes two instances.
    let mut ids = Vec::new();
    for tenant in [&ada, &bob] {
        let headers = [("Idempotency-Key", "the-same")];
        let answer = contract::expect(
            tenant,
            201,
            Method::POST,
            "/v1/instances",
            Some(&order("x")),
            &headers,
        )
        .await;
        assert!(answer.headers.get("idempotency-replayed").is_none());
        ids.push(answer.json()["data"]["id"].clone());
    }
    assert_ne!(ids[0], ids[1]);
    // An object under a name that is another account's id harms nobody.
    bob.apply(&named, |instance| instance.spec.name = Some("copy".to_owned()))
        .await;
    wait_for(&bob, &named, "running").await;
    let mine = contract::expect(
        &ada,
        200,
        Method::GET,
        &format!("/v1/instances/{named}"),
        None,
        &[],
    )
    .await;
    assert_eq!(mine.json()["data"]["name"], "web");
    let after = ada.instances().get(&named).await.unwrap();
    assert_eq!(after.metadata.resource_version, before, "nothing was written");
}
