//! The rate limit of all keys of an account together.

use reqwest::{Method, StatusCode};

use super::contract::code;
use crate::support::{Answer, Tenant, eventually, new_key, shared};

/// A request that uses up only an allowance, once the key is known.
async fn spend(tenant: &Tenant) -> Answer {
    eventually(
        "the key to be known",
        async || tenant.call(Method::GET, "/v1/plans", None).await,
        |answer| {
            !matches!(
                answer.status,
                StatusCode::UNAUTHORIZED | StatusCode::SERVICE_UNAVAILABLE
            )
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn all_keys_of_an_account_together_make_ten_times_the_requests_of_one() {
    let cluster = shared().await;
    let mut tenant = Tenant::with(cluster.plane, &cluster.operator, "limit-account", |spec| {
        spec.rate_limit_per_hour = Some(1);
    })
    .await;
    // The first one was made with another key, when the account was set up.
    for answered in 1..10 {
        let answer = spend(&tenant).await;
        assert_eq!(answer.status, 200, "{answered}: {answer:?}");
        let refused = spend(&tenant).await;
        assert!(
            refused.text.contains("the key has used up its 1 requests"),
            "{refused:?}"
        );
        tenant.key = new_key(cluster.plane, &tenant.namespace, "read");
    }
    let refused = spend(&tenant).await;
    assert_eq!(
        (refused.status.as_u16(), code(&refused).as_str()),
        (429, "rate_limit_exceeded")
    );
    assert!(
        refused
            .text
            .contains("the account's keys have used up their 10 requests"),
        "{refused:?}"
    );
    assert_eq!(refused.header("ratelimit-limit"), "1");
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=360).contains(&wait), "{wait}");
}
