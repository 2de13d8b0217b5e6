//! Copies of the digests of other accounts' keys.

use control_plane::Identity;
use jiff::Timestamp;
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
    // Creation times have a resolution of one second.
    let created = original.metadata.creation_timestamp.unwrap().0;
    let is_over = async || Timestamp::now().as_second() > created.as_second();
    eventually("the second to be over", is_over, |is_over| *is_over).await;
    copies.create(&PostParams::default(), &key).await.unwrap();

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

#[tokio::test(flavor = "multi_thread")]
async fn tenants_cannot_plant_a_digest_of_a_key_alone_and_administrators_can() {
    let tenant = Tenant::new("planted").await;
    let client = tenant_of(&tenant, "mallory@example.com").await;
    let keys: Api<ApiKey> = Api::namespaced(client, &tenant.namespace);
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let old = by_hand("planted", "planted-0123456789");
    let refused = keys.create(&dry, &old).await.unwrap_err().to_string();
    assert!(refused.contains("only administrators may create"), "{refused}");
    let mut bound = old.clone();
    bound.spec = new_key("uid", stellage::resources::KeyScope::Read, None).1;
    keys.create(&dry, &bound).await.unwrap();
    let as_administrator: Api<ApiKey> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    as_administrator.create(&dry, &old).await.unwrap();
}
