//! Copies of the digests of other accounts' keys.

use control_plane::Identity;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use reqwest::StatusCode;
use serde_json::json;
use stellage::{controllers::key_copies, resources::ApiKey, service::keys::new_key};

use crate::{
    support::{self, Operator, PATIENCE, Tenant, eventually},
    tenants::{by_hand, tenant_of},
};

/// The status of a request with this key to an operator.
async fn ask(operator: &Operator, text: &str) -> StatusCode {
    let request = reqwest::Client::new().get(format!("{}/v1/account", operator.url));
    let answer = request.bearer_auth(text).timeout(PATIENCE).send().await;
    answer.unwrap().status()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_digest_stays_dead_after_the_original_is_revoked_and_the_api_has_restarted() {
    let cluster = support::shared().await;
    let (victim, thief) = (
        Tenant::new("copied-victim").await,
        Tenant::new("copied-thief").await,
    );
    let originals: Api<ApiKey> = Api::namespaced(victim.kube.clone(), &victim.namespace);
    let copies: Api<ApiKey> = Api::namespaced(thief.kube.clone(), &thief.namespace);
    let key = by_hand("old", "copied-0123456789");
    let original = originals.create(&PostParams::default(), &key).await.unwrap();
    // Times of creation are in whole seconds.
    let plant = async || {
        let copy = copies.create(&PostParams::default(), &key).await.unwrap();
        let is_younger = copy.metadata.creation_timestamp > original.metadata.creation_timestamp;
        if !is_younger {
            copies.delete("old", &DeleteParams::default()).await.unwrap();
        }
        is_younger
    };
    eventually("a copy that is younger", plant, |is_younger| *is_younger).await;

    let operator = cluster.plane.client(Identity::Operator).await.unwrap();
    key_copies::mark(&operator).await.unwrap();
    assert!(copies.get("old").await.unwrap().spec.is_copy);
    assert!(!originals.get("old").await.unwrap().spec.is_copy);
    for is_copy in [json!(false), json!(null)] {
        let patch = Patch::Merge(json!({ "spec": { "isCopy": is_copy } }));
        let refused = copies.patch("old", &PatchParams::default(), &patch).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("isCopy cannot be taken back"), "{refused}");
    }
    eventually(
        "the original to work",
        async || ask(&cluster.operator, "copied-0123456789").await,
        |status| *status == StatusCode::OK,
    )
    .await;
    originals.delete("old", &DeleteParams::default()).await.unwrap();
    let mut restarted = Operator::start(cluster.plane, &["api"]).await;
    assert_eq!(
        ask(&restarted, "copied-0123456789").await,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(ask(&restarted, &thief.key).await, StatusCode::OK);
    restarted.stop().await;
}
