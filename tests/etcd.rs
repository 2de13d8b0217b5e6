//! How much etcd stores, next to the formula of docs/operations.md.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use reqwest::Method;
use resources::{InstanceState, InvoiceLine, invoice_page::MAX_ENTRIES};
use serde_json::{Value, json};

use crate::{
    docs::read,
    support::{
        Operator, OwnPlane, Tenant, eventually, own_plane, receiver_arguments,
        receivers::{Answer, Receiver},
    },
    webhooks::ALL,
};

const INSTANCES: usize = 20;
/// The page may say that something is so many times as large as it is.
const BAND: f64 = 3.0;
/// What an account has besides what its holder makes.
const ACCOUNT: [&str; 6] = [
    "/registry/stellage.dev/accounts/etcd",
    "/registry/namespaces/etcd",
    "/registry/resourcequotas/etcd/",
    "/registry/rolebindings/etcd/",
    "/registry/serviceaccounts/etcd/",
    "/registry/configmaps/etcd/",
];

/// The KiB that the page has after these words.
fn promised(words: &str) -> f64 {
    let page = read("docs/operations.md");
    let (_, after) = page
        .split_once(words)
        .unwrap_or_else(|| panic!("docs/operations.md does not say {words}"));
    after.split(' ').next().unwrap().parse().unwrap()
}

/// The values below a key of etcd, with their keys.
async fn stored(plane: &OwnPlane, prefix: &str) -> Vec<usize> {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().unwrap() += 1;
    let range = json!({ "key": BASE64_STANDARD.encode(prefix), "range_end": BASE64_STANDARD.encode(end) });
    let url = format!("{}/v3/kv/range", plane.etcd_url());
    let answer = reqwest::Client::new()
        .post(url)
        .json(&range)
        .send()
        .await
        .unwrap();
    let answer: Value = answer.json().await.unwrap();
    let found = answer["kvs"].as_array().cloned().unwrap_or_default();
    let length = |text: &Value| BASE64_STANDARD.decode(text.as_str().unwrap()).unwrap().len();
    found
        .iter()
        .map(|entry| length(&entry["key"]) + length(&entry["value"]))
        .collect()
}

/// A metric of etcd.
async fn etcd(plane: &OwnPlane, metric: &str) -> f64 {
    let page = reqwest::get(format!("{}/metrics", plane.etcd_url()))
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix(metric));
    line.unwrap().trim().parse().unwrap()
}

/// Bytes that are in use in etcd's file, and the number of its writes.
async fn used(plane: &OwnPlane) -> (f64, f64) {
    let used = etcd(plane, "etcd_mvcc_db_total_size_in_use_in_bytes").await;
    (used, etcd(plane, "etcd_mvcc_put_total").await)
}

#[expect(clippy::cast_precision_loss, reason = "these are small")]
fn kib(bytes: usize, number: usize) -> f64 {
    bytes as f64 / 1024.0 / number as f64
}

/// The KiB of one of these.
fn mean(sizes: &[usize]) -> f64 {
    assert!(!sizes.is_empty());
    kib(sizes.iter().sum(), sizes.len())
}

/// Has an invoice of one instance issued, and returns its line; the next invoice is open.
async fn make_invoices(plane: &OwnPlane, operator: &Operator) -> InvoiceLine {
    let tenant = Tenant::on(plane, operator, "invoiced").await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    tenant.wait_for_entries(1).await;
    tenant.close_now().await;
    let issued = tenant.wait_for_invoices(1).await.remove(0);
    tenant.lines_of(&issued).await.remove(0)
}

/// Starts instances, backs them up, and stops them, with a webhook whose receiver is up, and one whose receiver is not; makes a
/// network.
async fn make_objects(tenant: &Tenant) {
    let good = Receiver::start(|_| Answer::ok()).await;
    let bad = Receiver::start(|_| Answer::status(500)).await;
    tenant.webhook("good", &good.url("/good"), &ALL).await;
    tenant.webhook("bad", &bad.url("/bad"), &ALL).await;
    let network = json!({ "region": "fr-par-1" });
    let made = tenant.call(Method::POST, "/v1/networks", Some(&network)).await;
    assert_eq!(made.status, 201, "{made:?}");
    for number in 0..INSTANCES {
        let name = format!("web-{number}");
        tenant
            .apply(&name, |instance| {
                instance.spec.tags = vec!["web".to_owned(), "shop".to_owned()];
            })
            .await;
        let instance = tenant.wait_for_state(&name, InstanceState::Running).await;
        let backups = format!("/v1/instances/{}/backups", instance.id());
        let made = tenant.call(Method::POST, &backups, Some(&json!({}))).await;
        assert_eq!(made.status, 201, "{made:?}");
        tenant
            .merge(&name, &json!({ "spec": { "powerState": "Stopped" } }))
            .await;
        tenant.wait_for_state(&name, InstanceState::Stopped).await;
    }
    good.wait_for(3 * INSTANCES).await;
    let logged = async || {
        tenant
            .call(Method::GET, "/v1/events?limit=100", None)
            .await
            .json()
    };
    let count = |answer: &Value| answer["data"].as_array().map_or(0, Vec::len);
    eventually("the events to be logged", logged, |answer| {
        count(answer) >= 3 * INSTANCES
    })
    .await;
}

#[tokio::test]
async fn etcd_stores_no_more_for_an_object_than_the_formula_of_the_docs_has_for_it() {
    let plane = own_plane().await;
    let receivers = receiver_arguments(&plane);
    let mut arguments = vec!["run", "--provisioning-seconds=0"];
    arguments.extend(receivers.iter().map(String::as_str));
    let mut operator = Operator::start(&plane, &arguments).await;
    let line = make_invoices(&plane, &operator).await;
    let invoices = stored(&plane, "/registry/stellage.dev/invoices/").await;
    let tenant = Tenant::on(&plane, &operator, "etcd").await;
    let before = used(&plane).await;
    make_objects(&tenant).await;
    let after = used(&plane).await;

    // Lines are nearly all that is on a page.
    let page = MAX_ENTRIES * serde_json::to_vec(&line).unwrap().len();
    let mut measured = vec![
        ("invoices × ", mean(&invoices)),
        ("pages of invoices × ", kib(page, 1)),
    ];
    for (words, prefix) in [
        ("instances × ", "/registry/stellage.dev/instances/"),
        ("webhooks × ", "/registry/stellage.dev/webhooks/"),
        ("backups × ", "/registry/stellage.dev/backups/"),
        ("private networks × ", "/registry/stellage.dev/privatenetworks/"),
        (
            "deliveries that are owed, held or kept × ",
            "/registry/stellage.dev/deliveries/",
        ),
        ("Kubernetes Events a second × ", "/registry/events/etcd/"),
    ] {
        measured.push((words, mean(&stored(&plane, prefix).await)));
    }
    let mut account = 0;
    for prefix in ACCOUNT {
        account += stored(&plane, prefix).await.iter().sum::<usize>();
    }
    measured.push(("accounts × ", kib(account, 1)));
    let log = stored(&plane, "/registry/stellage.dev/eventlogs/etcd/").await;
    let events = 3 * INSTANCES;
    measured.push(("86,400 events of ", kib(log.iter().sum(), events)));
    let table: Vec<String> = measured
        .iter()
        .map(|(words, size)| format!("{words}{} KiB: {size:.2}", promised(words)))
        .collect();
    println!("{table:#?}");
    for (words, size) in &measured {
        let promised = promised(words);
        assert!(
            *size <= promised && promised <= BAND * size,
            "{words}{promised} KiB, but {size:.2}: {table:#?}"
        );
    }
    // Nothing has been compacted yet, so all that was written is there.
    let (grown, writes) = (after.0 - before.0, after.1 - before.1);
    let each = grown / writes / 1024.0;
    println!("a write: {each:.2} KiB of the file, {writes} writes");
    assert!(each <= 1.3 * promised("writes a second × "), "{each} KiB a write");
    operator.stop().await;
}
