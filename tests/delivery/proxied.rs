//! Deliveries through a CONNECT proxy.

use std::time::Duration;

use stellage::delivery::{ClientSettings, ProxyUrl, TargetRules};

use super::Sender;
use crate::support::receivers::{Answer, ConnectProxy, Proxying, Receiver};

/// A sender that goes through a proxy, with user and password if any.
fn through(proxy: &ConnectProxy, credentials: &str) -> Sender {
    let url = format!("http://{credentials}{}", proxy.address());
    let settings = ClientSettings {
        proxy: Some(ProxyUrl::parse(&url).unwrap()),
        connect_timeout: Duration::from_secs(5),
        ..ClientSettings::default()
    };
    Sender::new(settings, TargetRules::default())
}

#[tokio::test]
async fn deliveries_go_through_the_proxy_under_the_name_of_the_receiver() {
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let proxy = ConnectProxy::start(Proxying::ConnectsFor("ada", "p@ss")).await;
    // Only the proxy can resolve this name.
    let url = receiver.url_by("hooks.receiver.test");
    let outcome = through(&proxy, "ada:p%40ss@").post(&url).await;
    assert!(outcome.is_success(), "{outcome:?}");
    assert_eq!(receiver.count(), 1);
    assert_eq!(
        proxy.targets(),
        [format!("hooks.receiver.test:{}", receiver.port())]
    );

    for credentials in ["", "ada:wrong@"] {
        let outcome = through(&proxy, credentials).post(&url).await;
        assert_eq!(outcome.label(), "proxy", "{outcome:?}");
        let error = outcome.error.unwrap();
        assert!(!error.to_string().contains("wrong") && error.is_local());
    }
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn a_proxy_that_makes_no_connection_is_a_failed_attempt() {
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let url = receiver.url_by("hooks.receiver.test");
    for (proxying, label) in [
        (Proxying::Refuses, "proxy"),
        (Proxying::IsSilent, "connect_timeout"),
    ] {
        let proxy = ConnectProxy::start(proxying).await;
        let outcome = through(&proxy, "").post(&url).await;
        assert_eq!(outcome.label(), label, "{proxying:?}: {outcome:?}");
        assert!(!outcome.error.unwrap().is_local(), "{proxying:?}");
    }
    let gone = ConnectProxy::start(Proxying::Connects).await;
    let sender = through(&gone, "");
    drop(gone);
    assert_eq!(sender.post(&url).await.label(), "proxy");
    assert_eq!(receiver.count(), 0);
}

#[tokio::test]
async fn what_is_forbidden_does_not_reach_the_proxy() {
    let proxy = ConnectProxy::start(Proxying::Connects).await;
    let sender = through(&proxy, "");
    for host in [
        "127.0.0.1",
        "10.0.0.5",
        "kubernetes.default.svc",
        "[fd00::1]",
        "hooks.example.com:22",
    ] {
        let outcome = sender.post(&format!("https://{host}/")).await;
        assert!(outcome.label().starts_with("forbidden_"), "{host}: {outcome:?}");
    }
    assert!(proxy.targets().is_empty());
}
