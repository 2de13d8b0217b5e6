//! The day on which an API key was last used.

use std::collections::BTreeMap;

use control_plane::{ControlPlane, Identity};
use futures::future::join_all;
use jiff::{Timestamp, tz::TimeZone};
use kube::Api;
use reqwest::{Method, StatusCode};
use resources::ApiKey;
use serde_json::Value;

use crate::{
    console::Person,
    support::{Operator, Tenant, eventually, kubectl, own_plane, stellage},
};

const ACCOUNT: &str = "used";

fn today() -> String {
    Timestamp::now().to_zoned(TimeZone::UTC).date().to_string()
}

fn create(plane: &ControlPlane, name: &str, scope: &str) -> String {
    let arguments = format!("key create --account {ACCOUNT} --name {name} --scope {scope}");
    stellage(plane, &arguments).unwrap().trim_end().to_owned()
}

/// The status of the answer to a request with a key.
async fn ask(operator: &Operator, key: &str, method: Method) -> StatusCode {
    let request = reqwest::Client::new().request(method, format!("{}/v1/keys/none", operator.url));
    request.bearer_auth(key).send().await.unwrap().status()
}

/// Uses a key a hundred times.
async fn use_often(operator: &Operator, key: &str) {
    let asked = join_all((0..100).map(|_| ask(operator, key, Method::GET))).await;
    assert!(
        asked.iter().all(|status| *status == StatusCode::NOT_FOUND),
        "{asked:?}"
    );
}

/// The writes of last uses that the API server has accepted, by key, and those that it has refused.
fn writes(plane: &ControlPlane) -> (BTreeMap<String, usize>, usize) {
    let (mut taken, mut refused) = (BTreeMap::new(), 0);
    for request in plane.requests().unwrap() {
        if request.resource == "apikeys" && request.subresource == "status" && request.is_write() {
            assert_eq!(request.user, Identity::Operator.user());
            match request.code {
                200 => *taken.entry(request.name).or_default() += 1,
                _ => refused += 1,
            }
        }
    }
    (taken, refused)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_used_key_shows_its_day_everywhere_and_costs_one_write_however_often_and_wherever_it_is_used() {
    let plane = own_plane().await;
    let mut operator = Operator::start(&plane, &["run", "--provisioning-seconds", "0.5"]).await;
    let mut replica = Operator::start(&plane, &["api"]).await;
    let tenant = Tenant::on(&plane, &operator, ACCOUNT).await;
    let [never, refused, console, often] = [
        ("never", "write"),
        ("refused", "read"),
        ("console", "read"),
        ("often", "write"),
    ]
    .map(|(name, scope)| create(&plane, name, scope));
    assert!(!never.is_empty());
    let objects: Api<ApiKey> = Api::namespaced(tenant.kube.clone(), ACCOUNT);
    let made = objects.get("often").await.unwrap();

    let mut days = vec![today()];
    // A replica learns of the last created key last.
    for one in [&operator, &replica] {
        let known = async || ask(one, &often, Method::GET).await;
        eventually("the keys to be known", known, |status| {
            *status == StatusCode::NOT_FOUND
        })
        .await;
        assert_eq!(ask(one, &refused, Method::DELETE).await, StatusCode::FORBIDDEN);
        assert_eq!(ask(one, "wrong", Method::GET).await, StatusCode::UNAUTHORIZED);
    }
    tokio::join!(use_often(&operator, &often), use_often(&replica, &often));
    let person = Person::with_key(&replica.url, &console).await;
    person.get("/console/instances").await.is(200);

    let shown = async || {
        let answer = tenant.call(Method::GET, "/v1/keys", None).await.json();
        let keys = answer["data"].as_array().unwrap().clone();
        let day = |key: Value| {
            (
                key["id"].as_str().unwrap().to_owned(),
                key["last_used_on"].clone(),
            )
        };
        keys.into_iter().map(day).collect::<BTreeMap<_, _>>()
    };
    let are_recorded =
        |shown: &BTreeMap<String, Value>| shown.values().filter(|day| day.is_null()).count() == 1;
    let all = eventually("all uses but one to be recorded", shown, are_recorded).await;
    days.push(today());
    let day = all["often"].as_str().unwrap();
    for name in ["often", "refused", "console"] {
        assert!(days.contains(&all[name].as_str().unwrap().to_owned()), "{all:?}");
    }
    assert_eq!(all["never"], Value::Null);
    let detail = tenant.call(Method::GET, "/v1/keys/often", None).await;
    assert_eq!(detail.json()["data"]["last_used_on"], day);

    // The other places that show it. Their rows begin with the name.
    let row = |table: &str, name: &str| {
        let mut rows = table.lines().filter(|line| line.starts_with(&format!("{name} ")));
        rows.next().unwrap_or_else(|| panic!("{table}")).to_owned()
    };
    let printed = kubectl(&plane, &format!("get apikeys -n {ACCOUNT}"), None).unwrap();
    assert!(
        printed.contains("LAST-USED") && row(&printed, "often").contains(day),
        "{printed}"
    );
    assert!(!row(&printed, "never").contains(day), "{printed}");
    let cell = |day: &str| format!("data-label=\"Last used\">{day}</td>");
    let page = person.get("/console/keys").await;
    page.shows(&cell(day)).shows(&cell("never"));

    // Also after a restart. Each replica reaches the last key after everything that it had to do before.
    use_often(&operator, &often).await;
    replica.stop().await;
    replica = Operator::start(&plane, &["api"]).await;
    let known = async || ask(&replica, &often, Method::GET).await;
    eventually("the keys to be known", known, |status| {
        *status == StatusCode::NOT_FOUND
    })
    .await;
    use_often(&replica, &often).await;
    for (one, name) in [(&operator, "last-1"), (&replica, "last-2")] {
        let key = create(&plane, name, "read");
        let known = async || ask(one, &key, Method::GET).await;
        eventually("the key to be known", known, |status| {
            *status == StatusCode::NOT_FOUND
        })
        .await;
        eventually("its use to be recorded", shown, |shown| shown[name].is_string()).await;
    }
    let (taken, conflicts) = writes(&plane);
    if today() == days[0] {
        let names = ["often", "refused", "console", "last-1", "last-2"];
        assert!(names.iter().all(|name| taken[*name] == 1), "{taken:?}");
        // The account's two keys that the test itself uses.
        assert_eq!(taken.len(), names.len() + 2, "{taken:?}");
        assert!(conflicts <= taken.len(), "{conflicts} conflicts");
    }
    let now = objects.get("often").await.unwrap();
    assert_eq!(
        (&now.spec, now.metadata.generation),
        (&made.spec, made.metadata.generation)
    );
    operator.stop().await;
    replica.stop().await;
}
