//! The event log through REST: the account's events, and the deliveries that succeeded at the first attempt. The pages of the log
//! are written here, as the operator writes them.

use domain::event::{EventType, catalogue};
use jiff::{SignedDuration, Timestamp, ToSpan as _};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Resource as _,
    api::{DeleteParams, PostParams},
};
use reqwest::Method;
use resources::{
    Account, Attempt, Delivery, DeliveryPhase, DeliverySpec, DeliveryStatus, EventLog, LoggedDelivery,
    LoggedEvent, Webhook, ids, origin,
};
use serde_json::{Value, json};

use super::{
    contract::{code, expect, fields},
    isolation::without_traces,
    webhooks::{create, name_of, url_of, webhooks},
};
use crate::{
    support::{
        Operator, Tenant, eventually, kubectl,
        receivers::{Answer, Receiver},
        shared,
    },
    webhooks::phase_of,
};

const TYPES: [EventType; 4] = [
    EventType::InstanceCreated,
    EventType::InstanceStarted,
    EventType::BackupFailed,
    EventType::InvoiceCreated,
];

/// An instance that events are about.
fn instance(number: usize) -> String {
    format!("i-{number:0>16}")
}

/// Half an hour ago, so that it is still in the log.
pub fn start() -> Timestamp {
    let start = Timestamp::now().checked_sub(30.minutes()).unwrap();
    Timestamp::from_second(start.as_second()).unwrap()
}

/// Event `number`, a tenth of a second after the previous one. Its body is not formatted as by a JSON
/// library.
pub fn event(start: Timestamp, number: usize, delivered_to: &[&Webhook]) -> LoggedEvent {
    let tenths = i64::try_from(number).unwrap();
    let created_at = start
        .checked_add(SignedDuration::from_millis(100 * tenths))
        .unwrap();
    let id = format!("evt_{}", ids::random_suffix());
    let event_type = TYPES[number % 4];
    let body = catalogue::example_body(event_type, &id, created_at);
    let example = catalogue::example(event_type)["data"]["instance"]["id"].clone();
    let body = match example.as_str() {
        Some(example) => body.replace(example, &instance(number % 3)),
        None => body,
    };
    let delivered = delivered_to.iter().map(|webhook| LoggedDelivery {
        webhook: webhook.metadata.name.clone().unwrap(),
        webhook_uid: origin::uid(&webhook.metadata).to_owned(),
        attempt: Attempt {
            at: created_at,
            duration_ms: 42,
            status_code: Some(204),
            error: None,
            response: Some("thanks".to_owned()),
            url: Some(webhook.spec.url.clone()),
        },
    });
    LoggedEvent {
        id,
        event_type,
        created_at,
        sequence: tenths,
        subject: "subject".to_owned(),
        body: body.replacen("{\"id\":", "{ \"id\" :  ", 1),
        traceparent: None,
        deliveries: delivered.collect(),
    }
}

pub async fn account_uid(tenant: &Tenant) -> String {
    let accounts: Api<Account> = Api::all(tenant.kube.clone());
    accounts
        .get(&tenant.namespace)
        .await
        .unwrap()
        .metadata
        .uid
        .unwrap()
}

async fn pages_of(tenant: &Tenant) -> Api<EventLog> {
    // Nobody else may write pages.
    let operator = crate::support::as_operator(shared().await.plane).await;
    Api::namespaced(operator, &tenant.namespace)
}

/// Writes a page for the account with this UID, two seconds after its last event. Returns its name.
pub async fn write_page(tenant: &Tenant, account: &str, events: Vec<LoggedEvent>) -> String {
    let last = events.iter().map(|event| event.created_at).max().unwrap();
    let at = last.checked_add(2.seconds()).unwrap();
    let page = EventLog::page(&tenant.namespace, account, at, events).unwrap();
    let created = pages_of(tenant)
        .await
        .create(&PostParams::default(), &page)
        .await
        .unwrap();
    created.metadata.name.unwrap()
}

/// The page of event `number`: eight events per page, except that neighbouring pages swap an event.
fn page_of(number: usize) -> usize {
    match number % 8 {
        1 => (number / 8).saturating_sub(1),
        6 => number / 8 + 1,
        _ => number / 8,
    }
}

/// Writes these events on pages that overlap in time. Returns the events newest first, and the names of the
/// pages.
async fn write_overlapping(
    tenant: &Tenant,
    account: &str,
    events: Vec<LoggedEvent>,
) -> (Vec<LoggedEvent>, Vec<String>) {
    let mut pages: Vec<Vec<LoggedEvent>> = Vec::new();
    for (number, event) in events.iter().enumerate() {
        let page = page_of(number);
        pages.resize_with(pages.len().max(page + 1), Vec::new);
        pages[page].push(event.clone());
    }
    let mut names = Vec::new();
    for page in pages {
        names.push(write_page(tenant, account, page).await);
    }
    (events.into_iter().rev().collect(), names)
}

/// The items of all pages of a list with cursors, read `limit` at a time.
pub async fn all_pages(tenant: &Tenant, path: &str, limit: usize) -> Vec<Value> {
    let path = format!(
        "{path}{}limit={limit}",
        if path.contains('?') { "&" } else { "?" }
    );
    let (mut items, mut next) = (Vec::new(), String::new());
    loop {
        let page = tenant.get(&format!("{path}{next}")).await.json();
        let data = page["data"].as_array().unwrap();
        assert!(data.len() <= limit);
        assert_eq!(page["pagination"]["limit"], limit);
        items.extend(data.iter().cloned());
        match page["pagination"]["next"].as_str() {
            Some(id) => next = format!("&after={id}"),
            None => return items,
        }
    }
}

fn ids_of(items: &[Value]) -> Vec<&str> {
    items.iter().map(|item| item["id"].as_str().unwrap()).collect()
}

fn ids_in(list: &Value) -> Vec<&str> {
    let items = list["data"].as_array().unwrap().iter();
    items.map(|item| item["id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_events_are_listed_filtered_and_paged_exactly_over_pages_that_overlap() {
    let tenant = Tenant::new("evt-list").await;
    let account = account_uid(&tenant).await;
    let start = start();
    let events: Vec<_> = (0..60).map(|number| event(start, number, &[])).collect();
    let (events, _) = write_overlapping(&tenant, &account, events).await;
    // What a former account of the namespace has left belongs to nobody.
    let former = event(start, 1000, &[]);
    write_page(&tenant, "of-a-former-account", vec![former.clone()]).await;
    let get = async |query: &str| {
        let path = format!("/v1/events?{query}");
        tenant.get(&path).await
    };

    let all = get("limit=100").await;
    let expected: Vec<&str> = events.iter().map(|event| event.id.as_str()).collect();
    assert_eq!(ids_in(&all.json()), expected);
    for event in &events {
        assert!(all.text.contains(&event.body), "byte for byte: {}", event.body);
    }
    let all = all.json();
    assert_eq!(all["pagination"], json!({ "limit": 100, "next": null }));
    for limit in [7, 10, 60] {
        let paged = all_pages(&tenant, "/v1/events", limit).await;
        assert_eq!(&paged, all["data"].as_array().unwrap(), "{limit}");
    }
    // One that happens meanwhile moves nothing.
    let first = get("limit=30").await.json();
    let late = event(start, 999, &[]);
    write_page(&tenant, &account, vec![late.clone()]).await;
    let next = first["pagination"]["next"].as_str().unwrap();
    assert_eq!(
        ids_in(&get(&format!("limit=30&after={next}")).await.json()),
        expected[30..]
    );
    let before_it = format!("limit=100&until={}", late.created_at);
    assert_eq!(get(&before_it).await.json()["data"], all["data"]);

    for event_type in [
        None,
        Some(TYPES[0]),
        Some(TYPES[3]),
        Some(EventType::AlertTriggered),
    ] {
        // Times of events, between two, and outside.
        for since in [
            None,
            Some(-1),
            Some(0),
            Some(1300),
            Some(2450),
            Some(5900),
            Some(5901),
        ] {
            let since = since.map(|ms| start.checked_add(SignedDuration::from_millis(ms)).unwrap());
            for number in [None, Some(1), Some(7)] {
                let expected: Vec<&str> = events
                    .iter()
                    .filter(|event| event_type.is_none_or(|wanted| wanted == event.event_type))
                    .filter(|event| since.is_none_or(|since| event.created_at >= since))
                    .filter(|event| number.is_none_or(|number| event.body.contains(&instance(number))))
                    .map(|event| event.id.as_str())
                    .collect();
                let query = [
                    Some(format!("until={}", late.created_at)),
                    event_type.map(|it| format!("type={it}")),
                    since.map(|it| format!("since={it}")),
                    number.map(|it| format!("instance_id={}", instance(it))),
                ];
                let query = query.into_iter().flatten().collect::<Vec<_>>().join("&");
                let paged = all_pages(&tenant, &format!("/v1/events?{query}"), 9).await;
                assert_eq!(ids_of(&paged), expected, "{query}");
            }
        }
    }
    for nothing in ["type=instance", "instance_id=web", "until=2026-01-01T00:00:00Z"] {
        let list = get(nothing).await.json();
        let empty = json!({ "data": [], "pagination": { "limit": 20, "next": null } });
        assert_eq!(list, empty, "{nothing}");
    }
    let of_former = format!("after={}", former.id);
    for (query, field) in [
        ("since=yesterday", "since"),
        ("until=2026-11-21", "until"),
        ("limit=0", "limit"),
        ("after=web", "after"),
        (&of_former, "after"),
    ] {
        let path = format!("/v1/events?{query}");
        let answer = expect(&tenant, 422, Method::GET, &path, None, &[]).await;
        assert_eq!(fields(&answer), [field]);
    }

    for event in [&events[0], &events[33], &events[59]] {
        let path = format!("/v1/events/{}", event.id);
        let shown = tenant.get(&path).await;
        assert_eq!(shown.text, format!("{{\"data\":{}}}", event.body));
    }
    // Nothing is shown of another account's log, or of a former account's.
    let other = Tenant::new("evt-other").await;
    let none = other.get("/v1/events").await;
    assert_eq!(none.json()["data"], json!([]));
    let unknown = format!("/v1/events/{}", ids::event_id("nothing", 1));
    let unknown = expect(&other, 404, Method::GET, &unknown, None, &[]).await;
    for (tenant, id) in [
        (&other, events[0].id.as_str()),
        (&tenant, former.id.as_str()),
        (&tenant, "nonsense"),
        (&tenant, &events[0].id["evt_".len()..]),
        (&tenant, "evt_test_abcdefgh01234567"),
    ] {
        let path = format!("/v1/events/{id}");
        let answer = expect(tenant, 404, Method::GET, &path, None, &[]).await;
        assert_eq!(without_traces(&answer), without_traces(&unknown), "{id}");
    }
}

/// Writes a Delivery of an event as the controller does, except for the owner. Returns its id.
async fn store(tenant: &Tenant, webhook: &Webhook, event: &LoggedEvent, phase: DeliveryPhase) -> String {
    let uid = origin::uid(&webhook.metadata);
    let mut delivery = Delivery::new(
        &ids::delivery_name(uid, &event.id),
        DeliverySpec {
            webhook: webhook.metadata.name.clone().unwrap(),
            event_id: event.id.clone(),
            event_type: event.event_type,
            event_created_at: event.created_at,
            sequence: event.sequence,
            subject: event.subject.clone(),
            body: event.body.clone(),
            traceparent: None,
            test: false,
        },
    );
    // With the webhook's Secret as owner, the controller ignores it, as if it were another webhook's.
    let secrets: Api<Secret> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let owner = secrets.get(&webhook.spec.secret_ref.name).await.unwrap();
    delivery.metadata.owner_references = owner.owner_ref(&()).map(|owner| vec![owner]);
    let next = (phase == DeliveryPhase::Pending).then(|| "2036-11-22T10:00:00Z".parse().unwrap());
    delivery.set_status(DeliveryStatus::new(phase, next), Timestamp::now());
    let operator = crate::support::as_operator(shared().await.plane).await;
    Api::<Delivery>::namespaced(operator, &tenant.namespace)
        .create(&PostParams::default(), &delivery)
        .await
        .unwrap();
    delivery.id()
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_in_the_log_and_objects_are_one_list() {
    let tenant = Tenant::new("evt-deliveries").await;
    let account = account_uid(&tenant).await;
    let (hook, other) = (create(&tenant).await, create(&tenant).await);
    let object = webhooks(&tenant).get(&name_of(&hook)).await.unwrap();
    let other_object = webhooks(&tenant).get(&name_of(&other)).await.unwrap();
    let start = start();
    // Of every five events: one for both, one for nobody, one for the other webhook; and two Deliveries.
    let (mut events, mut expected) = (Vec::new(), Vec::new());
    for number in 0..60 {
        let delivered: &[&Webhook] = match number % 5 {
            0 | 4 => &[&object, &other_object],
            1 => &[&other_object],
            _ => &[],
        };
        let event = event(start, number, delivered);
        let phase = match number % 5 {
            0 | 4 => Some(DeliveryPhase::Delivered),
            2 => Some(DeliveryPhase::ALL[number % 4]),
            _ => None,
        };
        if let Some(phase) = phase {
            let id = ids::delivery_id(&ids::delivery_name(origin::uid(&object.metadata), &event.id));
            if number % 5 == 2 {
                assert_eq!(store(&tenant, &object, &event, phase).await, id);
            }
            expected.push((id, phase, event.event_type));
        }
        events.push(event);
    }
    expected.reverse();
    let (events, _) = write_overlapping(&tenant, &account, events).await;
    let path = format!("{}/deliveries", url_of(&hook));
    let list = async |query: &str| {
        let path = format!("{path}?{query}");
        tenant.get(&path).await.json()
    };
    for phase in [None].into_iter().chain(DeliveryPhase::ALL.map(Some)) {
        for event_type in [None, Some(TYPES[1]), Some(EventType::AlertTriggered)] {
            let matching: Vec<&str> = expected
                .iter()
                .filter(|(_, is, of)| {
                    phase.is_none_or(|wanted| wanted == *is) && event_type.is_none_or(|wanted| wanted == *of)
                })
                .map(|(id, ..)| id.as_str())
                .collect();
            let status = phase.map_or_else(String::new, |phase| format!("status={}&", phase.as_str()));
            let of_type = event_type.map_or_else(String::new, |it| format!("event_type={it}&"));
            let found = all_pages(&tenant, &format!("{path}?{status}{of_type}"), 7).await;
            assert_eq!(ids_of(&found), matching, "{status}{of_type}");
        }
    }

    // Those of some events, in the log and as objects: of each five, three.
    let some: Vec<&str> = events[..20].iter().map(|event| event.id.as_str()).collect();
    let query = format!("event_id={}", some.join(","));
    let all = list(&query).await;
    let wanted: Vec<&str> = expected[..12].iter().map(|(id, ..)| id.as_str()).collect();
    assert_eq!(ids_in(&all), wanted);
    let paged = all_pages(&tenant, &format!("{path}?{query}"), 5).await;
    assert_eq!(ids_of(&paged), wanted);
    // Those of a period, in the log and as objects.
    let (since, until) = (events[30].created_at, events[10].created_at);
    let period = all_pages(&tenant, &format!("{path}?since={since}&until={until}"), 5).await;
    let within = |event: &LoggedEvent| (since..until).contains(&event.created_at);
    let within: Vec<&str> = events
        .iter()
        .filter(|event| within(event))
        .map(|event| event.id.as_str())
        .collect();
    let found: Vec<&str> = period.iter().map(|it| it["event_id"].as_str().unwrap()).collect();
    assert!(!found.is_empty() && found.iter().all(|id| within.contains(id)));
    let all = all_pages(&tenant, &path, 100).await;
    let expected_found = all
        .iter()
        .filter(|it| within.contains(&it["event_id"].as_str().unwrap()));
    assert_eq!(period, expected_found.cloned().collect::<Vec<_>>());
    let first = list(&format!("event_id={}&status=delivered", events[0].id)).await;
    assert_eq!(ids_in(&first), wanted[..1]);
    for none in [
        "event_id=",
        "event_id=evt_0",
        &format!("event_id={}&status=held", events[0].id),
    ] {
        assert_eq!(list(none).await["data"], json!([]), "{none}");
    }

    // Number 59 was delivered immediately, and is only in the log.
    let newest = &list("limit=1").await["data"][0];
    let (id, event) = (expected[0].0.as_str(), &events[0]);
    assert_eq!(
        newest,
        &json!({
            "id": id, "event_id": event.id, "event_type": event.event_type, "status": "delivered",
            "created_at": format!("{:.0}", event.created_at), "next_attempt_at": null,
            "attempts": [{
                "at": format!("{:.3}", event.created_at), "duration_ms": 42, "status_code": 204, "error": null,
                "response": "thanks",
            }],
        })
    );
    let shown = tenant.get(&format!("{path}/{id}")).await;
    assert_eq!(shown.json()["data"]["request"]["body"], event.body.as_str());
    assert_eq!(shown.json()["data"]["attempts"], newest["attempts"]);
    // It does not belong to the other webhook, nor do that webhook's deliveries belong to this one.
    let uid = origin::uid(&other_object.metadata);
    let of_other = ids::delivery_id(&ids::delivery_name(uid, &event.id));
    expect(
        &tenant,
        404,
        Method::GET,
        &format!("{path}/{of_other}"),
        None,
        &[],
    )
    .await;
    let wrong = format!("{}/deliveries/{id}", url_of(&other));
    expect(&tenant, 404, Method::GET, &wrong, None, &[]).await;
    let theirs = format!("{}/deliveries/{of_other}", url_of(&other));
    tenant.get(&theirs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_in_the_log_is_sent_again_once_for_a_key_and_is_counted_once() {
    let tenant = Tenant::new("evt-again").await;
    let account = account_uid(&tenant).await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    tenant
        .webhook("hook", &receiver.url("/hook"), &["instance.created"])
        .await;
    let hook = tenant
        .wait_for_webhook("hook", "its conditions", |webhook| {
            webhook
                .status
                .as_ref()
                .is_some_and(|status| !status.conditions.is_empty())
        })
        .await;
    let start = start();
    let events: Vec<_> = (0..12).map(|number| event(start, number, &[&hook])).collect();
    let (events, pages) = write_overlapping(&tenant, &account, events).await;
    let path = format!("/v1/webhooks/{}/deliveries", hook.id());
    let total = async |query: &str| {
        let path = format!("{path}?limit=100{query}");
        let list = tenant.get(&path).await.json();
        let mut ids = ids_in(&list);
        let total = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(total, ids.len(), "each once");
        ids.len()
    };
    assert_eq!(total("").await, 12);

    // Number 6.
    let event = &events[11 - 6];
    let name = ids::delivery_name(origin::uid(&hook.metadata), &event.id);
    let id = ids::delivery_id(&name);
    let redeliver = format!("{path}/{id}/redeliver");
    let stale = [("If-Match", "\"x\"")];
    expect(&tenant, 412, Method::POST, &redeliver, None, &stale).await;
    let shown = tenant.get(&format!("{path}/{id}")).await;
    let headers = [("If-Match", shown.header("etag")), ("Idempotency-Key", "again")];
    // Eight concurrent requests: one creates the Delivery, the others find it.
    let requests = (0..8).map(|_| expect(&tenant, 202, Method::POST, &redeliver, None, &headers));
    let answers = futures::future::join_all(requests).await;
    let first: Vec<_> = answers
        .iter()
        .filter(|answer| answer.header("idempotency-replayed") != "true")
        .collect();
    assert_eq!(first.len(), 1, "{answers:#?}");
    let answer = first[0].json();
    assert_eq!(answer["message"], format!("Delivery {id} is being sent now."));
    assert_eq!(
        (&answer["data"]["status"], &answer["data"]["next_attempt_at"]),
        (&json!("pending"), &json!(null))
    );
    assert_eq!(total("").await, 12, "the Delivery replaces what the log has");

    let sent = receiver.wait_for(1).await.pop().unwrap();
    assert_eq!(sent.body, event.body.as_bytes(), "byte for byte");
    let delivered = eventually(
        "it to be delivered again",
        async || tenant.deliveries().get(&name).await.unwrap(),
        |delivery| phase_of(delivery) == Some(DeliveryPhase::Delivered) && delivery.is_finished(),
    )
    .await;
    assert_eq!(delivered.status.unwrap().attempt_count, 2);
    assert_eq!(
        delivered.metadata.owner_references.unwrap()[0].uid,
        hook.metadata.uid.clone().unwrap()
    );
    assert_eq!(receiver.count(), 1);
    assert_eq!((total("").await, total("&status=delivered").await), (12, 12));
    let of_type = format!("&event_type={}", event.event_type);
    assert_eq!(total(&of_type).await, 3);
    let again = expect(&tenant, 202, Method::POST, &redeliver, None, &headers).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    let read = tenant.get(&format!("{path}/{id}")).await;
    assert_eq!(read.header("etag"), shown.header("etag"), "the same delivery");

    // Once the page has expired, only the Delivery is left of its events.
    let page = &pages[page_of(6)];
    let left = (0..12).filter(|number| page_of(*number) != page_of(6)).count() + 1;
    let log = pages_of(&tenant).await;
    log.delete(page, &DeleteParams::default()).await.unwrap();
    assert_eq!(total("").await, left);
    // Number 8 was on the same page as number 6.
    assert_eq!(page_of(8), page_of(6));
    let gone = ids::delivery_name(origin::uid(&hook.metadata), &events[11 - 8].id);
    let gone = format!("{path}/{}/redeliver", ids::delivery_id(&gone));
    tenant.act(404, &gone).await;
    assert_eq!(receiver.count(), 1, "each request was carried out once");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_receiver_got_at_once_is_what_the_log_shows_of_it() {
    let tenant = Tenant::new("evt-real").await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let hook = tenant
        .webhook("hook", &receiver.url("/hook"), &["instance.created"])
        .await;
    tenant
        .wait_for_webhook("hook", "its conditions", |webhook| {
            let status = webhook.status.as_ref();
            status.is_some_and(|status| !status.conditions.is_empty())
        })
        .await;
    let instance = tenant.apply("web", |_| {}).await;
    let list = eventually(
        "both events to be logged",
        async || {
            let path = format!("/v1/events?instance_id={}", instance.id());
            tenant.get(&path).await.json()
        },
        |list| ids_in(list).len() == 2,
    )
    .await;
    assert_eq!(
        [&list["data"][0]["type"], &list["data"][1]["type"]],
        ["instance.started", "instance.created"],
        "also what no webhook wanted"
    );
    let sent = receiver.wait_for(1).await.pop().unwrap();
    let path = format!("/v1/events/{}", list["data"][1]["id"].as_str().unwrap());
    let shown = tenant.get(&path).await;
    assert_eq!(
        shown.text.as_bytes(),
        [&b"{\"data\":"[..], &sent.body[..], b"}"].concat()
    );
    let path = format!("/v1/webhooks/{}/deliveries?status=delivered", hook.id());
    let delivered = tenant.get(&path).await.json();
    assert_eq!(ids_in(&delivered).len(), 1);
    assert_eq!(delivered["data"][0]["event_id"], list["data"][1]["id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_of_a_page_its_times_and_how_many_events_and_deliveries_it_has() {
    let tenant = Tenant::new("evt-columns").await;
    let hook = |name: &str| -> Webhook {
        serde_json::from_value(json!({
            "metadata": { "name": name, "uid": name },
            "spec": { "url": "https://example.com", "events": [], "secretRef": { "name": "s" } },
        }))
        .unwrap()
    };
    let (one, two) = (hook("one"), hook("two"));
    let start = start();
    let events = [
        event(start, 0, &[&one]),
        event(start, 10, &[]),
        event(start, 20, &[&one, &two]),
    ];
    let account = account_uid(&tenant).await;
    let page = write_page(&tenant, &account, events.to_vec()).await;
    let plane = shared().await.plane;
    let table = kubectl(plane, &format!("-n evt-columns get eventlogs {page}"), None).unwrap();
    let mut lines = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let columns = ["NAME", "FROM", "TO", "EVENTS", "DELIVERED", "AGE"];
    assert_eq!(lines.next().unwrap(), columns, "{table}");
    let (from, to) = (events[0].created_at.to_string(), events[2].created_at.to_string());
    assert_eq!(
        lines.next().unwrap()[..5],
        [&*page, &from, &to, "3", "3"],
        "{table}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_log_there_are_no_events_and_the_answer_says_why() {
    let plane = shared().await.plane;
    let mut api = Operator::start(plane, &["api", "--delivery-log=failures"]).await;
    let tenant = Tenant::on(plane, &api, "evt-off").await;
    for path in ["/v1/events", "/v1/events/evt_abcdefgh01234567"] {
        let answer = expect(&tenant, 404, Method::GET, path, None, &[]).await;
        assert_eq!(code(&answer), "not_found");
        assert!(answer.text.contains("--delivery-log all"), "{answer:?}");
    }
    let hook = create(&tenant).await;
    let path = format!("{}/deliveries", url_of(&hook));
    let list = tenant.get(&path).await;
    assert_eq!(list.json()["data"], json!([]));
    drop(tenant);
    api.stop().await;
}
