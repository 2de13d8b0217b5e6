//! Checks of a receiver's addresses: what counts are the addresses to which its name resolves when the connection is made.

use std::net::SocketAddr;

use sender::{ClientSettings, TargetRules};
use tokio::time::timeout;

use super::{Sender, loopback};
use crate::support::{
    PATIENCE,
    receivers::{Answer, DnsServer, Options, Receiver, Reply},
};

/// A sender that uses this name server.
fn asking(dns: &DnsServer, rules: TargetRules) -> Sender {
    let settings = ClientSettings {
        name_servers: vec![dns.address()],
        ..ClientSettings::default()
    };
    Sender::new(settings, rules)
}

#[tokio::test]
async fn a_name_that_leads_to_a_forbidden_address_is_not_called() {
    let dns = DnsServer::start(|name, _| {
        let address = name.strip_suffix(".receiver.test").unwrap_or_default();
        Reply::addresses(&[match address {
            "private" => "10.0.0.5",
            "metadata" => "169.254.169.254",
            "loopback" => "127.0.0.1",
            "unspecified" => "0.0.0.0",
            "ula" => "fd00::5",
            "mapped" => "::ffff:127.0.0.1",
            "compatible" => "::127.0.0.1",
            "sixtofour" => "2002:7f00:1::",
            "nat64" => "64:ff9b::7f00:1",
            "localnat64" => "64:ff9b:1::7f00:1",
            "linklocal" => "fe80::1",
            other => panic!("{other} was asked for"),
        }])
    })
    .await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let sender = asking(&dns, TargetRules::default());
    for name in [
        "private",
        "metadata",
        "loopback",
        "unspecified",
        "ula",
        "mapped",
        "compatible",
        "sixtofour",
        "nat64",
        "localnat64",
        "linklocal",
    ] {
        let outcome = sender
            .post(&receiver.url_by(&format!("{name}.receiver.test")))
            .await;
        assert_eq!(outcome.label(), "forbidden_address", "{name}");
        let message = outcome.error.unwrap().to_string();
        assert!(
            !message.contains("127.0.0.1") && !message.contains("10.0.0.5"),
            "{message}"
        );
    }
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn of_mixed_answers_only_the_allowed_addresses_are_dialled() {
    let dns = DnsServer::start(|name, _| match name {
        "mixed.receiver.test" => Reply::addresses(&["10.0.0.1", "127.0.9.9", "127.0.0.1", "::1", "fd00::1"]),
        _ => Reply::addresses(&["127.0.9.9", "10.0.0.1"]),
    })
    .await;
    let allowed = Receiver::start(|_| Answer::ok()).await;
    let forbidden = on("127.0.9.9", allowed.port()).await;
    let rules = TargetRules {
        allow: vec!["127.0.0.0/24".parse().unwrap()],
        ..TargetRules::default()
    };
    let sender = asking(&dns, rules);
    let outcome = sender.post(&allowed.url_by("mixed.receiver.test")).await;
    assert_eq!(outcome.label(), "success", "{outcome:?}");
    let outcome = sender.post(&allowed.url_by("none.receiver.test")).await;
    assert_eq!(outcome.label(), "forbidden_address");
    assert_eq!((allowed.connections(), forbidden.connections()), (1, 0));
}

#[tokio::test]
async fn name_servers_that_know_ipv4_alone_and_hosts_with_many_ipv6_addresses_are_reached() {
    let dns = DnsServer::start(|name, _| {
        let ipv4 = "127.0.0.1".parse().unwrap();
        if name == "silent.receiver.test" {
            return Reply::AddressesWithoutIpv6(vec![ipv4]);
        }
        let many = (1..20).map(|number| format!("2001:db8::{number}").parse().unwrap());
        Reply::Addresses(many.chain([ipv4]).collect())
    })
    .await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let rules = TargetRules {
        allow: vec!["127.0.0.0/24".parse().unwrap(), "2001:db8::/64".parse().unwrap()],
        ..TargetRules::default()
    };
    let sender = asking(&dns, rules);
    for name in ["silent.receiver.test", "many.receiver.test"] {
        let outcome = sender.post(&receiver.url_by(name)).await;
        assert_eq!(outcome.label(), "success", "{name}: {outcome:?}");
    }
}

/// A receiver on another address of the loopback, with the same port.
async fn on(address: &str, port: u16) -> Receiver {
    let options = Options {
        listen: SocketAddr::new(address.parse().unwrap(), port),
        ..Options::default()
    };
    Receiver::with(options, |_| Answer::ok()).await
}

#[tokio::test]
async fn a_name_that_changes_its_answer_between_check_and_dial_gets_nowhere() {
    // The first look-up is answered with an allowed address, all others with a forbidden one. If the name were looked up again
    // for the connection, the forbidden receiver would be called.
    let dns = DnsServer::start(|_, count| {
        Reply::addresses(&[if count.is_multiple_of(2) {
            "127.0.0.1"
        } else {
            "127.0.9.9"
        }])
    })
    .await;
    let options = Options {
        keep_alive: false,
        protocols: crate::support::receivers::Protocols::Http1,
        ..Options::default()
    };
    let allowed = Receiver::with(options, |_| Answer::ok()).await;
    let forbidden = on("127.0.9.9", allowed.port()).await;
    let rules = TargetRules {
        allow: vec!["127.0.0.0/24".parse().unwrap()],
        ..TargetRules::default()
    };
    let sender = asking(&dns, rules);
    let url = allowed.url_by("rebinding.receiver.test");
    for round in 0..6 {
        let outcome = sender.post(&url).await;
        let expected = if round % 2 == 0 {
            "success"
        } else {
            "forbidden_address"
        };
        assert_eq!(outcome.label(), expected, "round {round}: {outcome:?}");
    }
    assert_eq!(dns.asked("rebinding.receiver.test"), 6, "one look-up an attempt");
    assert_eq!((allowed.count(), forbidden.connections()), (3, 0));
}

#[tokio::test]
async fn names_are_looked_up_as_written_and_internal_ones_not_at_all() {
    let dns = DnsServer::start(|_, _| Reply::NoName).await;
    let sender = asking(&dns, loopback());
    for name in [
        "kubernetes.default",
        "kubernetes.default.svc.cluster.local.",
        "metadata.google.internal",
        "db",
    ] {
        assert_eq!(
            sender.post(&format!("https://{name}/")).await.label(),
            "forbidden_name"
        );
    }
    assert_eq!(sender.post("https://hooks.receiver.test/").await.label(), "dns");
    assert_eq!(dns.names(), ["hooks.receiver.test"], "no search domain is tried");
}

#[tokio::test]
async fn a_name_server_that_fails_or_is_silent_ends_the_attempt() {
    let dns = DnsServer::start(|name, _| match name {
        "failing.receiver.test" => Reply::Failure,
        "empty.receiver.test" => Reply::Addresses(Vec::new()),
        _ => Reply::Silence,
    })
    .await;
    let sender = asking(&dns, loopback());
    let post = async |name: &str| sender.post(&format!("https://{name}.receiver.test/")).await;
    let all = async { tokio::join!(post("failing"), post("empty"), post("silent")) };
    let (failing, empty, silent) = timeout(PATIENCE, all).await.expect("an end");
    for outcome in [failing, empty, silent] {
        assert_eq!(outcome.label(), "dns", "{outcome:?}");
    }
}

#[tokio::test]
async fn an_allowed_loopback_is_reached_however_it_is_spelled() {
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let sender = Sender::patient(loopback());
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "localhost",
        "localhost.",
        "LocalHost",
        "[::ffff:127.0.0.1]",
    ] {
        let outcome = sender.post(&receiver.url_by(host)).await;
        assert!(outcome.is_success(), "{host}: {outcome:?}");
    }
    assert_eq!(receiver.count(), 9);
}

#[tokio::test]
async fn an_ipv6_receiver_is_reached_by_its_address_and_by_localhost() {
    // Some machines have no IPv6.
    if tokio::net::TcpListener::bind("[::1]:0").await.is_err() {
        return;
    }
    let options = Options {
        listen: "[::1]:0".parse().unwrap(),
        ..Options::default()
    };
    let receiver = Receiver::with(options, |_| Answer::ok()).await;
    let sender = Sender::patient(loopback());
    for host in ["[::1]", "[0:0:0:0:0:0:0:1]", "localhost"] {
        let outcome = sender.post(&receiver.url_by(host)).await;
        assert!(outcome.is_success(), "{host}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_forbidden_literal_is_not_called_and_rules_are_asked_before_each_attempt() {
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let sender = Sender::patient(TargetRules::default());
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "[::ffff:127.0.0.1]",
        "[::1]",
        "localhost",
        "localhost.",
    ] {
        let outcome = sender.post(&receiver.url_by(host)).await;
        assert!(outcome.label().starts_with("forbidden_"), "{host}: {outcome:?}");
    }
    assert_eq!(sender.post("http://127.0.0.1/").await.label(), "invalid_url");
    assert_eq!(receiver.connections(), 0);
}
