//! `stellage events`, and `stellage delivery redeliver` for deliveries that are only in the event log.

use std::process::Stdio;

use jiff::SignedDuration;
use kube::api::PostParams;
use resources::{Delivery, LoggedEvent, ids, origin};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{command, run, run_words, webhooks::hook};
use crate::{
    facade::events::{account_uid, event, start, write_page},
    support::{
        PATIENCE, Tenant, eventually,
        receivers::{Answer, Receiver},
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_printed_oldest_first_and_followed_across_pages() {
    let tenant = Tenant::new("cmd-events").await;
    let account = account_uid(&tenant).await;
    let start = start();
    let events: Vec<LoggedEvent> = (0..6).map(|number| event(start, number, &[])).collect();
    let on = |numbers: &[usize]| numbers.iter().map(|number| events[*number].clone()).collect();
    write_page(&tenant, &account, on(&[0, 2])).await;
    write_page(&tenant, &account, on(&[1, 3])).await;
    write_page(&tenant, "of-a-former-account", vec![event(start, 9, &[])]).await;
    let words = |more: &'static [&'static str]| [&["events", "--account", "cmd-events"][..], more].concat();
    let text = run_words(&words(&[])).await;
    let lines: Vec<Vec<&str>> = text
        .text()
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let ids: Vec<&str> = lines.iter().map(|line| line[2]).collect();
    let expected: Vec<&str> = events[..4].iter().map(|event| event.id.as_str()).collect();
    assert_eq!(ids, expected, "{text:?}");
    assert_eq!(lines[1][0], format!("{:.3}", events[1].created_at));
    assert_eq!(lines[1][1], "instance.started");
    assert_eq!(lines[1][3..], ["i-0000000000000001", "web-1"]);
    let json = run_words(&words(&["--type", "instance.started", "-o", "json"])).await;
    assert_eq!(json.text(), events[1].body);
    let since = events[2].created_at.to_string();
    let newer = run_words(&[&words(&[])[..], &["--since", &since]].concat()).await;
    assert_eq!(newer.text().lines().count(), 2);
    let none = run_words(&words(&["--since", "1s"])).await;
    assert!(
        none.text().is_empty() && none.notes.contains("no matching events"),
        "{none:?}"
    );
    assert_eq!(run_words(&words(&["--since", "now"])).await.code, Some(2));
    let unknown = run_words(&["events", "--account", "nobody"]).await;
    assert!(
        unknown.error().contains("there is no account nobody"),
        "{unknown:?}"
    );

    let mut child = command(&words(&["--follow", "-o", "json", "--type", "instance.started"]))
        .await
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || {
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
        line.expect("a line in time").unwrap().unwrap()
    };
    assert_eq!(next().await, events[1].body, "first what is in the log");
    write_page(&tenant, &account, on(&[4, 5])).await;
    assert_eq!(next().await, events[5].body, "then what is added, of this type");
    child.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_in_the_log_is_sent_again() {
    let tenant = Tenant::new("cmd-logged").await;
    let account = account_uid(&tenant).await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let hook = hook(&tenant, &receiver, &["instance.created"]).await;
    let start = start();
    write_page(
        &tenant,
        &account,
        (0..3).map(|number| event(start, number, &[&hook])).collect(),
    )
    .await;
    let late = event(
        start.checked_add(SignedDuration::from_secs(9)).unwrap(),
        0,
        &[&hook],
    );
    write_page(&tenant, &account, vec![late.clone()]).await;
    let run = async |line: &str| run("cmd-logged", line).await;
    let name = ids::delivery_name(origin::uid(&hook.metadata), &late.id);
    let id = ids::delivery_id(&name);
    for attempts in 2..4 {
        let sent = run(&format!("delivery redeliver {id} --wait")).await;
        let expected = format!("delivery {id} is delivered: answered 200 in ");
        assert!(sent.text().contains(&expected), "{sent:?}");
        let got = receiver.wait_for(attempts - 1).await.pop().unwrap();
        assert_eq!(got.body, late.body.as_bytes(), "byte for byte");
        assert_eq!(got.header("x-service-event-id"), late.id);
        let delivery = tenant.deliveries().get(&name).await.unwrap();
        let status = delivery.status.unwrap();
        assert_eq!(status.attempt_count, i32::try_from(attempts).unwrap());
        assert_eq!(status.attempts[0].duration_ms, 42, "the first is kept");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_send_again_what_its_page_does_not_have_is_deleted() {
    let tenant = Tenant::new("cmd-not-logged").await;
    let account = account_uid(&tenant).await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let hook = hook(&tenant, &receiver, &["instance.created"]).await;
    let other = tenant
        .webhook("other", "https://hooks.example.com/", &["instance.created"])
        .await;
    let start = start();
    let of_other = event(start, 0, &[&other]);
    let page = write_page(&tenant, &account, vec![of_other.clone()]).await;
    let request = |event_id: &str, page: &str, name: &str| -> Delivery {
        serde_json::from_value(json!({
            "apiVersion": "stellage.dev/v1", "kind": "Delivery",
            "metadata": {
                "name": name, "labels": { "stellage.dev/webhook": "hook" },
                "annotations": { "stellage.dev/logged-in": page },
                "ownerReferences": [
                    { "apiVersion": "stellage.dev/v1", "kind": "Webhook", "name": "hook", "uid": hook.metadata.uid },
                ],
            },
            "spec": {
                "webhook": "hook", "eventId": event_id, "eventType": "instance.created",
                "eventCreatedAt": of_other.created_at, "body": "",
            },
        }))
        .unwrap()
    };
    let derived = |event_id: &str| ids::delivery_name(origin::uid(&hook.metadata), event_id);
    for (event_id, page) in [
        // Delivered only to another webhook.
        (of_other.id.as_str(), page.as_str()),
        ("evt_unknown", &page),
        (&of_other.id, "evlog-9999999999999-abcdefgh"),
        (&of_other.id, "../secrets/hook"),
        (&of_other.id, "evlog-9999999999999-a/status"),
    ] {
        let name = derived(event_id);
        let request = request(event_id, page, &name);
        tenant
            .deliveries()
            .create(&PostParams::default(), &request)
            .await
            .unwrap();
        eventually(
            "the request to be deleted",
            async || tenant.deliveries().get_opt(&name).await.unwrap(),
            Option::is_none,
        )
        .await;
    }
    assert_eq!(receiver.count(), 0);
}
