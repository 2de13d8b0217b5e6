//! Webhooks with forbidden receivers, created with `kubectl`: they get a condition, and nothing is sent.

use resources::{DeliveryPhase, conditions};
use serde_json::json;

use super::all_in;
use crate::support::{
    Tenant,
    receivers::{Answer, Receiver},
};

#[tokio::test]
async fn a_forbidden_target_is_a_condition_that_names_the_fix_and_its_events_wait_for_another() {
    let tenant = Tenant::new("hooks-forbidden").await;
    for (name, url, complaint) in [
        ("metadata", "https://169.254.169.254/latest", "169.254.169.254"),
        ("octal", "https://0300.0250.0.1/x", "192.168.0.1"),
        (
            "service",
            "https://hooks.shop.svc.cluster.local/x",
            "hooks.shop.svc.cluster.local",
        ),
    ] {
        tenant.webhook(name, url, &["instance.created"]).await;
        let webhook = tenant
            .wait_for_webhook(name, "the condition", |webhook| {
                let conditions = webhook.status.iter().flat_map(|status| &status.conditions);
                conditions
                    .clone()
                    .any(|c| c.type_ == "Ready" && c.status == "False")
            })
            .await;
        let status = webhook.status.unwrap();
        let ready = conditions::find(&status.conditions, "Ready").unwrap();
        assert_eq!(ready.reason, "InvalidURL");
        assert!(ready.message.contains(complaint), "{}", ready.message);
    }
    tenant.apply("web", |_| {}).await;
    tenant
        .wait_for_deliveries("octal", "it to be held", all_in(1, DeliveryPhase::Held))
        .await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    // Loopback is allowed here, in every notation.
    tenant
        .change_webhook("octal", json!({ "url": receiver.url_by("localhost") }))
        .await;
    receiver.wait_for(1).await;
    tenant
        .wait_for_deliveries("octal", "it to be delivered", all_in(1, DeliveryPhase::Delivered))
        .await;
}
