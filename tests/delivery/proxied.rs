//! Deliveries through a CONNECT proxy.

use std::time::Duration;

use sender::{ClientSettings, ProxyUrl, TargetRules};

use super::Sender;
use crate::support::receivers::{Answer, ConnectProxy, Proxying, Receiver};

/// A sender that uses a proxy, with user and password if there are any.
fn through(proxy: &ConnectProxy, credentials: &str) -> Sender {
    let url = format!("http://{credentials}{}", proxy.address());
    with_settings(&url, ClientSettings::default())
}

/// A sender with these settings that goes through the proxy at this URL.
fn with_settings(proxy: &str, settings: ClientSettings) -> Sender {
    let settings = ClientSettings {
        proxy: Some(ProxyUrl::parse(proxy).unwrap()),
        ..settings
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

/// The outcome of an attempt through such a proxy: its label, and whether it counts as the receiver's failure.
async fn outcome_with(proxying: Proxying, url: &str) -> (&'static str, bool) {
    let proxy = ConnectProxy::start(proxying).await;
    let mut settings = ClientSettings::default();
    if matches!(proxying, Proxying::IsSilent) {
        settings.connect_timeout = Duration::from_secs(2);
    }
    let sender = with_settings(&format!("http://{}", proxy.address()), settings);
    let outcome = sender.post(url).await;
    assert_eq!(proxy.targets().len(), 1, "{proxying:?}");
    (outcome.label(), !outcome.error.unwrap().is_local())
}

#[tokio::test]
async fn a_proxy_that_fails_itself_is_no_failure_of_the_receiver() {
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let url = receiver.url_by("hooks.receiver.test");
    for proxying in [
        Proxying::IsSilent,
        Proxying::Drops,
        Proxying::Answers("500 Internal Server Error"),
        Proxying::Answers("503 Service Unavailable"),
        Proxying::Answers("429 Too Many Requests"),
    ] {
        assert_eq!(
            outcome_with(proxying, &url).await,
            ("proxy", false),
            "{proxying:?}"
        );
    }
    let gone = ConnectProxy::start(Proxying::Connects).await;
    let sender = through(&gone, "");
    drop(gone);
    let outcome = sender.post(&url).await;
    assert!(outcome.error.as_ref().unwrap().is_local(), "{outcome:?}");
    assert_eq!(receiver.count(), 0);
}

#[tokio::test]
async fn while_the_proxy_works_for_others_its_failure_is_that_of_the_receiver() {
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let proxy = ConnectProxy::start(Proxying::ConnectsOrAnswers("503 Service Unavailable")).await;
    let sender = through(&proxy, "");
    let dead = receiver.url_by("dead.receiver.test");
    let before = sender.post(&dead).await;
    assert!(before.error.as_ref().unwrap().is_local(), "{before:?}");
    let alive = sender.post(&receiver.url_by("hooks.receiver.test")).await;
    assert!(alive.is_success(), "{alive:?}");
    let after = sender.post(&dead).await;
    assert_eq!(after.label(), "proxy");
    assert!(!after.error.as_ref().unwrap().is_local(), "{after:?}");
}

#[tokio::test]
async fn a_receiver_that_the_proxy_cannot_reach_or_does_not_allow_has_failed() {
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let url = receiver.url_by("hooks.receiver.test");
    for status in [
        "403 Forbidden",
        // Without a challenge, as Smokescreen refuses an address that is not public.
        "407 Request rejected by proxy",
        "502 Bad Gateway",
        "504 Gateway Timeout",
    ] {
        let outcome = outcome_with(Proxying::Answers(status), &url).await;
        assert_eq!(outcome, ("proxy", true), "{status}");
    }
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
