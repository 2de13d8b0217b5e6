//! The customer console over HTTP, as a browser without JavaScript uses it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use parking_lot::Mutex;
use reqwest::{Method, StatusCode, header::HeaderMap, redirect::Policy};
use resources::{ApiKey, InstanceState, api_key::LINK_ANNOTATION};
use serde_json::json;

use crate::support::{
    Change as _, Operator, PATIENCE, Tenant, accepted_after_revocation, eventually, new_key,
    receivers::{Answer, Receiver},
    remember_secret, shared, stellage,
};

/// A page.
#[derive(Debug)]
pub struct Page {
    pub status: StatusCode,
    headers: HeaderMap,
    pub text: String,
    /// Bytes as they were sent.
    size: usize,
}

impl Page {
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    fn has(&self, text: &str) -> bool {
        self.text.contains(text)
    }

    #[track_caller]
    pub fn shows(&self, text: &str) -> &Self {
        assert!(self.has(text), "no {text:?} in {} {}", self.status, self.text);
        self
    }

    #[track_caller]
    pub fn hides(&self, text: &str) -> &Self {
        assert!(!self.has(text), "{text:?} in {}", self.text);
        self
    }

    #[track_caller]
    pub fn is(&self, status: u16) -> &Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        self
    }

    /// The text between two markers.
    #[track_caller]
    fn between(&self, before: &str, after: &str) -> String {
        let rest = self.shows(before).text.split_once(before).unwrap().1;
        rest.split_once(after).unwrap().0.to_owned()
    }

    /// The Idempotency-Key of the form.
    #[track_caller]
    fn once(&self) -> String {
        self.between("name=\"once\" value=\"", "\"")
    }

    /// The path that a redirect points to.
    #[track_caller]
    pub fn location(&self) -> String {
        self.is(303);
        self.header("location").to_owned()
    }
}

/// A user with a browser that keeps cookies and has no JavaScript.
pub struct Person {
    url: String,
    http: reqwest::Client,
    pub cookies: Mutex<BTreeMap<String, String>>,
}

impl Person {
    pub fn at(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            http: reqwest::Client::builder()
                .redirect(Policy::none())
                .build()
                .unwrap(),
            cookies: Mutex::default(),
        }
    }

    /// A user who has signed in.
    pub async fn with_key(url: &str, key: &str) -> Self {
        let person = Self::at(url);
        let signed_in = person.post("/console/sign-in", &[("key", key)]).await;
        assert_eq!(signed_in.location(), "/console/welcome");
        let home = person.get("/console/welcome").await;
        assert_eq!(home.location(), "/console/instances");
        person
    }

    pub async fn get(&self, path: &str) -> Page {
        self.send(Method::GET, path, &[], &[]).await
    }

    pub async fn post(&self, path: &str, form: &[(&str, &str)]) -> Page {
        self.send(Method::POST, path, form, &[("sec-fetch-site", "same-origin")])
            .await
    }

    /// Posts a form and follows the redirect to the next page.
    pub async fn submit(&self, path: &str, form: &[(&str, &str)]) -> Page {
        let next = self.post(path, form).await.location();
        self.get(&next).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        form: &[(&str, &str)],
        headers: &[(&str, &str)],
    ) -> Page {
        let mut request = self
            .http
            .request(method.clone(), format!("{}{path}", self.url))
            .timeout(PATIENCE);
        let cookies: Vec<_> = self
            .cookies
            .lock()
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        if !cookies.is_empty() {
            request = request.header("cookie", cookies.join("; "));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if method == Method::POST {
            let mut body = url::form_urlencoded::Serializer::new(String::new());
            body.extend_pairs(form);
            request = request
                .header("content-type", "application/x-www-form-urlencoded")
                .body(body.finish());
        }
        let answer = request.send().await.unwrap();
        let (status, headers) = (answer.status(), answer.headers().clone());
        for cookie in headers.get_all("set-cookie") {
            let (name, rest) = cookie.to_str().unwrap().split_once('=').unwrap();
            let value = rest.split(';').next().unwrap();
            if value.len() > 12 {
                remember_secret(value);
            }
            let mut cookies = self.cookies.lock();
            if rest.contains("Max-Age=0") {
                cookies.remove(name);
            } else {
                cookies.insert(name.to_owned(), value.to_owned());
            }
        }
        let bytes = answer.bytes().await.unwrap();
        let page = Page {
            status,
            size: bytes.len(),
            text: String::from_utf8_lossy(&bytes).into_owned(),
            headers,
        };
        // Headers that every answer has. A printable invoice has its own style sheet, and no scripts.
        let policy = page.header("content-security-policy");
        let is_print = path.ends_with("/print") && status.is_success();
        let scripts = if is_print {
            "style-src 'sha256-"
        } else {
            "script-src 'self'"
        };
        for part in ["default-src 'none'", scripts, "frame-ancestors 'none'"] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"));
        assert_eq!(page.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(page.header("referrer-policy"), "no-referrer", "{path}");
        if !path.starts_with("/console/assets/") || !status.is_success() {
            assert_eq!(page.header("cache-control"), "no-store", "{path}");
        }
        // No inline script, style or event handler.
        for inline in ["<script>", "<style", " style=", " onclick="] {
            assert!(is_print || !page.has(inline), "{path} has {inline}");
        }
        page
    }
}

/// Creates an instance through the console; returns its id.
async fn create(person: &Person, name: &str) -> String {
    let form = person.get("/console/instances/new").await;
    let fields = [
        ("once", form.once()),
        ("name", name.to_owned()),
        ("plan", "starter".to_owned()),
        ("region", "fr-par-1".to_owned()),
        ("install", "image:debian-13".to_owned()),
    ];
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let next = person.post("/console/instances", &fields).await.location();
    next.strip_prefix("/console/instances/").unwrap().to_owned()
}

async fn wait_for_status(person: &Person, id: &str, status: &str) -> Page {
    let badge = format!(">{status}</span></div>");
    let look = async || person.get(&format!("/console/instances/{id}")).await;
    eventually(status, look, |page| page.has(&badge)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_a_sealed_cookie_without_the_key() {
    let tenant = Tenant::new("console-session").await;
    let person = Person::at(&tenant.url);
    assert_eq!(person.get("/console").await.location(), "/console/sign-in");
    let page = person.get("/console/sign-in").await;
    page.is(200).shows("API key");
    let answer = person.post("/console/sign-in", &[("key", &tenant.key)]).await;
    let cookie = answer.header("set-cookie").to_owned();
    assert!(cookie.starts_with("__Host-stellage="), "{cookie}");
    for flag in ["HttpOnly", "Secure", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(cookie.contains(flag), "{flag}: {cookie}");
    }
    assert!(!cookie.contains(&tenant.key) && !cookie.contains("Domain"));
    let page = person.get("/console/instances").await;
    page.is(200)
        .shows("console-session")
        .shows("There are no instances yet");
    // The API itself accepts no cookies.
    let session = person.cookies.lock()["__Host-stellage"].clone();
    let request = tenant.http.get(format!("{}/v1/instances", tenant.url));
    let direct = request.header("cookie", format!("__Host-stellage={session}"));
    assert_eq!(direct.send().await.unwrap().status(), StatusCode::UNAUTHORIZED);
    // The key that seals the cookie is in the operator's namespace.
    let secrets: Api<Secret> = Api::namespaced(tenant.kube.clone(), "stellage-system");
    let secret = secrets.get("stellage-console").await.unwrap();
    assert_eq!(secret.data.unwrap()["sealing-key"].0.len(), 32);
    // A modified cookie is rejected.
    let changed = format!("{}x", &session[..session.len() - 1]);
    person
        .cookies
        .lock()
        .insert("__Host-stellage".to_owned(), changed);
    let refused = person.get("/console/instances").await;
    assert_eq!(refused.location(), "/console/sign-in?ended=1");
    // Signed out.
    let person = Person::with_key(&tenant.url, &tenant.key).await;
    let out = person.submit("/console/sign-out", &[]).await;
    out.is(200).shows("You have signed out");
    assert!(person.cookies.lock().is_empty());
    person.get("/console/instances").await.is(303);
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_to_sign_in_are_limited_and_the_console_can_be_off() {
    let plane = shared().await.plane;
    let mut replica = Operator::start(plane, &["api"]).await;
    let tenant = Tenant::on(plane, &replica, "console-attempts").await;
    let person = Person::at(&replica.url);
    for attempt in 0..10 {
        let key = format!("stl_{attempt}");
        let page = person.post("/console/sign-in", &[("key", &key)]).await;
        page.is(401).shows("The API key is not valid").hides(&key);
        assert!(person.cookies.lock().is_empty());
    }
    let page = person.post("/console/sign-in", &[("key", &tenant.key)]).await;
    page.is(429).shows("Too many attempts");
    assert!(page.header("retry-after").parse::<u32>().unwrap() <= 300);
    // An existing session continues to work, also on another replica.
    let other = Person::with_key(&shared().await.operator.url, &tenant.key).await;
    *person.cookies.lock() = other.cookies.lock().clone();
    person.get("/console/instances").await.is(200);
    replica.stop().await;

    let mut replica = Operator::start(plane, &["api", "--console=false"]).await;
    let answer = reqwest::get(format!("{}/console", replica.url)).await.unwrap();
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    assert_eq!(answer.headers()["content-type"], "application/json");
    replica.stop().await;
}

/// A new key that may only read, once the watch has shown it.
async fn read_key(tenant: &Tenant) -> String {
    let key = new_key(shared().await.plane, &tenant.namespace, "read");
    eventually(
        "the key to be known",
        async || {
            let asked = reqwest::Client::new().get(format!("{}/v1/account", tenant.url));
            asked.bearer_auth(&key).send().await.unwrap().status()
        },
        |status| *status == 200,
    )
    .await;
    key
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_key_sees_no_buttons_and_is_refused_all_the_same() {
    let tenant = Tenant::new("console-read").await;
    let writer = Person::with_key(&tenant.url, &tenant.key).await;
    let id = create(&writer, "web-1").await;
    let reader = Person::with_key(&tenant.url, &read_key(&tenant).await).await;
    for path in [
        "/console/instances".to_owned(),
        format!("/console/instances/{id}"),
        "/console/webhooks".to_owned(),
        "/console/backups".to_owned(),
        "/console/keys".to_owned(),
    ] {
        let page = reader.get(&path).await;
        page.is(200).shows("read only");
        // The only form that posts is the one for signing out.
        assert_eq!(page.text.matches("method=\"post\"").count(), 1, "{path}");
        page.hides("New instance").hides("New webhook").hides("Delete…");
    }
    for path in [
        "/console/instances".to_owned(),
        format!("/console/instances/{id}/power/stop"),
        format!("/console/instances/{id}/plan"),
        format!("/console/instances/{id}/delete"),
        format!("/console/instances/{id}/rebuild"),
        "/console/webhooks".to_owned(),
        "/console/keys".to_owned(),
    ] {
        let page = reader.post(&path, &[("confirm", "web-1"), ("name", "x")]).await;
        page.is(403).shows("token_readonly");
    }
    reader.get("/console/instances/new").await.is(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_within_a_second_of_its_key_while_its_page_polls() {
    let tenant = Tenant::new("console-revoked").await;
    let keys: Api<ApiKey> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let refresh = [("hx-request", "true")];
    for _ in 0..5 {
        let before: BTreeSet<_> = names(&keys).await;
        let person = Person::with_key(&tenant.url, &read_key(&tenant).await).await;
        let cookies = person.cookies.lock().clone();
        let after = names(&keys).await;
        let poll = async || {
            person
                .send(Method::GET, "/console/instances", &[], &refresh)
                .await
        };
        poll().await.is(200);
        let new: Vec<_> = after.difference(&before).collect();
        let [name] = new[..] else {
            panic!("{before:?}, and then {after:?}");
        };
        let mut out = None;
        let is_accepted = async || {
            let page = poll().await;
            let is_accepted = page.status == StatusCode::OK;
            out = Some(page);
            is_accepted
        };
        let late = accepted_after_revocation(&keys, name, is_accepted).await;
        assert!(late < Duration::from_secs(1), "accepted after {late:?}");
        // If a page refreshes itself after the session has ended, the whole page is replaced by the sign-in
        // page.
        let out = out.unwrap();
        out.is(401);
        assert_eq!(out.header("hx-redirect"), "/console/sign-in?ended=1");
        *person.cookies.lock() = cookies;
        let page = person.get("/console/instances").await;
        assert_eq!(page.location(), "/console/sign-in?ended=1");
        assert!(person.cookies.lock().is_empty());
    }
}

async fn names(keys: &Api<ApiKey>) -> BTreeSet<String> {
    let listed = keys.list(&ListParams::default()).await.unwrap();
    listed.into_iter().filter_map(|key| key.metadata.name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn over_plain_http_on_loopback_the_cookie_has_another_name_and_from_elsewhere_nobody_gets_in() {
    let plane = shared().await.plane;
    let mut replica = Operator::start(plane, &["api", "--console-insecure-cookie"]).await;
    let tenant = Tenant::on(plane, &replica, "console-plain-http").await;
    let person = Person::at(&replica.url);
    let signed_in = person.post("/console/sign-in", &[("key", &tenant.key)]).await;
    let cookie = signed_in.header("set-cookie");
    assert!(
        cookie.starts_with("stellage-insecure=") && cookie.contains("HttpOnly; SameSite=Strict"),
        "{cookie}"
    );
    assert!(!cookie.contains("Secure"), "browsers would not send it: {cookie}");
    let page = person.get("/console/instances").await;
    page.is(200)
        .shows(&format!("{}/v1/instances?limit=20", replica.url));
    // The same cookie is not accepted where HTTPS is required, and vice versa.
    let secure = Person::at(&shared().await.operator.url);
    *secure.cookies.lock() = person.cookies.lock().clone();
    secure.get("/console/instances").await.is(303);
    let elsewhere = [("host", "console.example.com")];
    for path in ["/console/sign-in", "/console/instances", "/console/link"] {
        let page = person.send(Method::GET, path, &[], &elsewhere).await;
        page.is(403).shows("it needs HTTPS").hides("id=\"key\"");
    }
    let headers = [("host", "console.example.com"), ("sec-fetch-site", "same-origin")];
    let page = person
        .send(
            Method::POST,
            "/console/sign-in",
            &[("key", &tenant.key)],
            &headers,
        )
        .await;
    page.is(403);
    assert!(page.header("set-cookie").is_empty());
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_sites_can_change_nothing() {
    let tenant = Tenant::new("console-cross").await;
    let person = Person::with_key(&tenant.url, &tenant.key).await;
    let id = create(&person, "web-1").await;
    let path = format!("/console/instances/{id}/delete");
    let host = tenant.url.strip_prefix("http://").unwrap();
    let own = format!("http://{host}");
    for headers in [
        vec![("sec-fetch-site", "cross-site")],
        vec![("sec-fetch-site", "same-site")],
        vec![("sec-fetch-site", "none")],
        vec![("sec-fetch-site", "cross-site"), ("origin", own.as_str())],
        vec![("origin", "https://evil.example")],
        vec![("origin", "null")],
        vec![],
    ] {
        let page = person
            .send(Method::POST, &path, &[("confirm", "web-1")], &headers)
            .await;
        page.is(403).shows("comes from another site");
    }
    wait_for_status(&person, &id, "running").await;
    let page = person
        .send(
            Method::POST,
            &path,
            &[("confirm", "web-1")],
            &[("origin", own.as_str())],
        )
        .await;
    assert_eq!(page.location(), "/console/instances");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_belongs_to_another_account_is_not_found() {
    let theirs = Tenant::new("console-theirs").await;
    let owner = Person::with_key(&theirs.url, &theirs.key).await;
    let instance = create(&owner, "web-1").await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let webhook = new_webhook(&owner, &receiver.url("/")).await.0;
    let key = owner.get("/console/keys").await.between("<code>key-", "</code>");
    let mine = Tenant::new("console-mine").await;
    let person = Person::with_key(&mine.url, &mine.key).await;
    for path in [
        format!("/console/instances/{instance}"),
        format!("/console/instances/{instance}/plan"),
        format!("/console/instances/{instance}/delete"),
        format!("/console/webhooks/{webhook}"),
        format!("/console/webhooks/{webhook}/deliveries"),
        format!("/console/webhooks/{webhook}/secret"),
        format!("/console/keys/key-{key}/revoke"),
        "/console/instances/i-0000000000000000".to_owned(),
        "/console/instances/..%2Fkeys".to_owned(),
        "/console/events/evt_0000000000000000".to_owned(),
        "/console/backups/bkp_0000000000000000".to_owned(),
        "/console/invoices/inv_0000000000000000".to_owned(),
        "/console/invoices/inv_0000000000000000/csv".to_owned(),
        "/console/nothing".to_owned(),
    ] {
        person.get(&path).await.is(404).hides("web-1");
    }
    for path in [
        format!("/console/instances/{instance}/power/stop"),
        format!("/console/instances/{instance}/delete"),
        format!("/console/webhooks/{webhook}/delete"),
        format!("/console/webhooks/{webhook}/test"),
        format!("/console/keys/key-{key}/revoke"),
    ] {
        person.post(&path, &[("confirm", "web-1")]).await.is(404);
    }
    owner.get(&format!("/console/webhooks/{webhook}")).await.is(200);
    wait_for_status(&owner, &instance, "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_is_created_operated_and_deleted() {
    let tenant = Tenant::new("console-instance").await;
    let person = Person::with_key(&tenant.url, &tenant.key).await;
    let form = person.get("/console/instances/new").await;
    form.is(200)
        .shows("5.00 EUR a month")
        .shows("0.00745 EUR an hour")
        .shows("value=\"image:debian-13\" selected");
    let wrong = person
        .post(
            "/console/instances",
            &[
                ("once", &form.once()),
                ("name", "\"><script>alert(1)</script>"),
                ("plan", "business"),
                ("region", "fr-par-1"),
                ("install", "image:debian-13"),
                ("tags", "env:prod, no way!"),
                ("ssh_keys", "nonsense"),
                ("user_data", "echo <hello>"),
                ("backup_enabled", "true"),
            ],
        )
        .await;
    // Each invalid field is marked, and what was entered is still there.
    wrong
        .is(422)
        .shows("id=\"name-problem\"")
        .shows("id=\"tags-problem\"")
        .shows("<title>Error: New instance")
        .shows("<a href=\"#ssh_keys\">SSH public keys, line 1</a>")
        .shows("<a href=\"#user_data\">User data</a>")
        .shows("must begin with #cloud-config")
        .shows("echo &#60;hello&#62;</textarea>")
        .hides("id=\"region-problem\"")
        .hides("<script>alert")
        .shows("value=\"&#34;&#62;&#60;script&#62;alert(1)&#60;/script&#62;\"")
        .shows("value=\"business\" checked")
        .shows("value=\"true\" checked");
    // A form that is submitted twice creates one instance.
    let once = wrong.once();
    let fields = [
        ("once", once.as_str()),
        ("name", "web-1"),
        ("plan", "starter"),
        ("region", "fr-par-1"),
        ("install", "image:debian-13"),
        ("tags", "env:prod"),
    ];
    let (one, two) = tokio::join!(
        person.post("/console/instances", &fields),
        person.post("/console/instances", &fields)
    );
    let path = one.location();
    assert_eq!(path, two.location());
    assert_eq!(tenant.all_instances().await.len(), 1);
    let id = path.strip_prefix("/console/instances/").unwrap();
    let page = person.get(&path).await;
    page.shows("is being created");
    // It is not offered where it would be refused.
    assert_eq!(page.has("Back it up now"), page.has("Back up…"));
    let page = person.get(&format!("{path}/power/poweroff")).await;
    page.is(200).shows("Like pulling the plug");
    person.get(&format!("{path}/power/stop")).await.is(404);
    let page = wait_for_status(&person, id, "running").await;
    // The note is shown once; the commands have the real id, but not the key.
    page.hides("is being created")
        .shows(&format!("/v1/instances/{id}/stop"))
        .shows("$STELLAGE_API_KEY")
        .hides(&tenant.key)
        .shows("every 15s")
        .hides("id=\"power-start\"");
    person
        .get("/console/instances?status=running&tag=env%3Aprod")
        .await
        .shows(id)
        .shows("1 in all");
    person
        .get("/console/instances?status=stopped")
        .await
        .hides(id)
        .shows("No instance matches");

    let page = person
        .submit(&format!("{path}/power/stop"), &[("once", &page.once())])
        .await;
    page.shows("is being shut down");
    let page = wait_for_status(&person, id, "stopped").await;
    page.shows("id=\"power-start\"").hides("id=\"power-stop\"");
    // What is no longer allowed is refused with the API's message.
    let page = person
        .post(&format!("{path}/power/stop"), &[("once", &page.once())])
        .await;
    page.is(409)
        .shows("invalid_state")
        .shows("The instance is stopped; stop is allowed from running.")
        .hides("<li>")
        .shows(&format!("href=\"{path}\">Back to the instance"))
        .shows("aria-current=\"page\">Instances");

    person
        .get(&format!("{path}/plan"))
        .await
        .is(200)
        .shows("in effect now");
    let page = person
        .submit(&format!("{path}/plan"), &[("plan", "business"), ("when", "now")])
        .await;
    page.is(200)
        .shows("is being resized to business")
        .hides("with the next reboot");
    let page = wait_for_status(&person, id, "stopped").await;
    page.shows("business: 2 vCPU");
    let page = person
        .submit(&format!("{path}/plan"), &[("plan", "business"), ("when", "now")])
        .await;
    page.shows("Nothing was changed: web-1 has the plan business already")
        .hides("The changes are saved");
    let wrong = person
        .post(&format!("{path}/plan"), &[("plan", "huge"), ("when", "now")])
        .await;
    wrong.is(422).shows("id=\"plan-problem\"");

    let settings = [
        ("name", "web-2"),
        ("tags", "a, b"),
        ("deletion_protection", "true"),
    ];
    let page = change(&person, &format!("{path}/settings"), &settings).await;
    page.shows("The changes are saved")
        .shows("<h1>web-2</h1>")
        .shows("on: it can be neither deleted nor rebuilt");
    let wrong = person
        .post(&format!("{path}/delete"), &[("confirm", "web-2")])
        .await;
    wrong.is(409).shows("It is protected");
    let rebuild = format!("{path}/rebuild?install=image:debian-13");
    let protected = person.get(&rebuild).await;
    protected
        .is(200)
        .shows("It is protected")
        .hides("<form class=\"wide\"");
    let settings = [("name", "web-2"), ("tags", "")];
    change(&person, &format!("{path}/settings"), &settings)
        .await
        .is(200);

    let form = person.get(&format!("{path}/backup")).await;
    let fields = [("once", form.once()), ("name", "before".to_owned())];
    let fields: Vec<_> = fields.iter().map(|(k, v)| (*k, v.as_str())).collect();
    person
        .submit(&format!("{path}/backup"), &fields)
        .await
        .shows("is being backed up")
        .shows("before");
    let look = async || person.get("/console/backups").await;
    let page = eventually("the backup", look, |page| page.has(">completed</span>")).await;
    let backup = page.between("id=\"row-", "\"");
    page.shows("Restore…").shows("web-2");
    person
        .get(&format!("/console/backups/{backup}"))
        .await
        .is(200)
        .shows("on request")
        .shows("Restore…");
    // One field decides what is installed, and the page that asks for the name says what that is.
    let choose = person.get(&format!("{path}/rebuild")).await;
    choose
        .is(200)
        .shows("value=\"image:debian-13\" selected")
        .shows(&format!("<option value=\"backup:{backup}\""))
        .hides("type=\"radio\"");
    let install = format!("backup:{backup}");
    let confirm = person.get(&format!("{path}/rebuild?install={install}")).await;
    confirm
        .is(200)
        .shows("Restore web-2")
        .shows("the backup <strong>before</strong>")
        .shows(">Restore before</button>");
    let wrong = person
        .post(
            &format!("{path}/rebuild"),
            &[("install", &install), ("confirm", "web")],
        )
        .await;
    wrong
        .is(422)
        .shows("id=\"confirm-problem\"")
        .shows(">Restore before</button>");
    let fields = [("install", install.as_str()), ("confirm", "web-2")];
    person
        .submit(&format!("{path}/rebuild"), &fields)
        .await
        .shows(&format!("is being reinstalled from backup {backup}"));
    wait_for_status(&person, id, "stopped").await;
    person
        .get(&format!("{path}/rebuild?install=image:ubuntu-22.04"))
        .await
        .is(200)
        .shows("the image <strong>ubuntu-22.04</strong>");
    let fields = [("install", "image:ubuntu-22.04"), ("confirm", "web-2")];
    person
        .submit(&format!("{path}/rebuild"), &fields)
        .await
        .shows("is being reinstalled from ubuntu-22.04");
    wait_for_status(&person, id, "stopped")
        .await
        .shows("<dd>ubuntu-22.04</dd>");

    let look = async || person.get(&path).await;
    eventually("an event", look, |page| page.has("instance.stopped")).await;
    let page = person.get(&format!("/console/events?instance_id={id}")).await;
    let event = page
        .shows("instance.created")
        .between("/console/events/evt_", "\"");
    person
        .get(&format!("/console/events/evt_{event}"))
        .await
        .is(200)
        .shows("No webhook wants events of this type");

    let wrong = person
        .post(&format!("{path}/delete"), &[("confirm", "web-1")])
        .await;
    wrong.is(422).shows("must be web-2");
    let page = person
        .submit(&format!("{path}/delete"), &[("confirm", "web-2")])
        .await;
    page.shows("web-2 is deleted");
    person.get(&path).await.is(404);
    let page = person
        .submit(&format!("/console/backups/{backup}/delete"), &[])
        .await;
    page.shows("The backup is deleted").shows("no backups yet");
}

/// The hidden fields of the form, as they are on the page.
fn opened(page: &Page) -> [(&'static str, String); 2] {
    ["was", "version"].map(|name| {
        let value = page.between(&format!("name=\"{name}\" value=\""), "\"");
        (name, value.replace("&#38;", "&").replace("&#34;", "\""))
    })
}

/// Opens a form and submits it with these values.
async fn change(person: &Person, path: &str, fields: &[(&str, &str)]) -> Page {
    let form = opened(&person.get(path).await);
    let hidden = form.iter().map(|(name, value)| (*name, value.as_str()));
    let fields: Vec<_> = fields.iter().copied().chain(hidden).collect();
    person.submit(path, &fields).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_that_was_opened_before_somebody_elses_change_overwrites_nothing() {
    let tenant = Tenant::new("console-stale").await;
    let person = Person::with_key(&tenant.url, &tenant.key).await;
    let id = create(&person, "web-1").await;
    wait_for_status(&person, &id, "running").await;
    let path = format!("/console/instances/{id}/settings");
    let api = format!("/v1/instances/{id}");
    let form = opened(&person.get(&path).await);
    let others = json!({ "deletion_protection": true, "tags": ["theirs"] });
    tenant.call(Method::PATCH, &api, Some(&others)).await;
    let mut fields = vec![("name", "web-2"), ("tags", "")];
    fields.extend(form.iter().map(|(name, value)| (*name, value.as_str())));
    let page = person.post(&path, &fields).await;
    page.is(412)
        .shows("Nothing is saved yet")
        .shows("Tags: was nothing, now theirs.")
        .shows("Protection: was off, now on.")
        .shows("value=\"web-2\"")
        .shows("value=\"theirs\"")
        .shows("name=\"deletion_protection\" value=\"true\" checked");
    // A form that does not say which version it is for is treated alike.
    let nameless = [("name", "web-2"), ("tags", ""), ("version", "")];
    for fields in [&nameless[..], &nameless[..2]] {
        let page = person.post(&path, fields).await;
        page.is(412).shows("Nothing is saved yet").shows("now theirs");
    }
    let shown = tenant.call(Method::GET, &api, None).await.json()["data"].clone();
    assert_eq!(
        (&shown["name"], &shown["deletion_protection"], &shown["tags"]),
        (&json!("web-1"), &json!(true), &json!(["theirs"]))
    );
    // What the page shows by now is saved; a reboot in between is no reason to ask again.
    let form = opened(&page);
    tenant.call(Method::POST, &format!("{api}/reboot"), None).await;
    let mut fields = vec![
        ("name", "web-2"),
        ("tags", "theirs"),
        ("deletion_protection", "true"),
    ];
    fields.extend(form.iter().map(|(name, value)| (*name, value.as_str())));
    person.submit(&path, &fields).await.shows("The changes are saved");
    let shown = tenant.call(Method::GET, &api, None).await.json()["data"].clone();
    assert_eq!(
        (&shown["name"], &shown["deletion_protection"], &shown["tags"]),
        (&json!("web-2"), &json!(true), &json!(["theirs"]))
    );

    let receiver = Receiver::start(|_| Answer::ok()).await;
    let (id, _) = new_webhook(&person, &receiver.url("/")).await;
    let path = format!("/console/webhooks/{id}/edit");
    let api = format!("/v1/webhooks/{id}");
    let form = opened(&person.get(&path).await);
    let others = json!({ "events": ["instance.created", "instance.started", "backup.failed"] });
    tenant.call(Method::PATCH, &api, Some(&others)).await;
    let url = receiver.url("/other");
    let mut fields = vec![
        ("url", url.as_str()),
        ("events", "instance.created"),
        ("events", "instance.started"),
    ];
    fields.extend(form.iter().map(|(name, value)| (*name, value.as_str())));
    let page = person.post(&path, &fields).await;
    page.is(412)
        .shows("Events: was instance.created, instance.started, now ")
        .shows("value=\"backup.failed\" checked")
        .shows("/other");
    let form = opened(&page);
    fields.truncate(3);
    fields.push(("events", "backup.failed"));
    fields.extend(form.iter().map(|(name, value)| (*name, value.as_str())));
    person.submit(&path, &fields).await.shows("The changes are saved");
    let shown = tenant.call(Method::GET, &api, None).await.json()["data"].clone();
    assert_eq!(
        (&shown["url"], &shown["events"]),
        (&json!(url), &others["events"])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_open_goes_on_reading_fast_until_all_that_has_happened_shows() {
    let tenant = Tenant::new("console-open").await;
    let person = Person::with_key(&tenant.url, &tenant.key).await;
    let id = create(&person, "web-1").await;
    let page = wait_for_status(&person, &id, "running").await;
    page.shows("every 15s").hides("data-over").hides("hx-headers");
    for list in ["instances", "backups", "webhooks", "alerts", "events"] {
        person
            .get(&format!("/console/{list}"))
            .await
            .shows("hx-trigger=\"every 15s, wake\"");
    }
    // An operation was in progress a second ago.
    let path = format!("/console/instances/{id}?window=24h");
    let at = jiff::Timestamp::now().as_second() - 1;
    let headers = [("hx-request", "true"), ("stellage-busy-at", &at.to_string())];
    let page = person.send(Method::GET, &path, &[], &headers).await;
    page.shows("every 2s")
        .shows(&format!("{{\"Stellage-Busy-At\": {at}}}"))
        .shows("data-over")
        .shows("id=\"more\"")
        .shows("?window=24h");
    let headers = [("hx-request", "true"), ("stellage-busy-at", "1")];
    let page = person.send(Method::GET, &path, &[], &headers).await;
    page.shows("every 15s").hides("hx-headers");
    // A page that reports a new operation refreshes quickly, whatever the status says at that point.
    let page = person
        .submit(&format!("/console/instances/{id}/power/reboot"), &[])
        .await;
    page.shows("id=\"note\" class=\"alert good passes\"")
        .shows("every 2s");
}

/// Creates a webhook through the console; returns its id and its secret.
async fn new_webhook(person: &Person, url: &str) -> (String, String) {
    let form = person.get("/console/webhooks/new").await;
    let once = form.once();
    let fields = [
        ("once", once.as_str()),
        ("url", url),
        ("events", "instance.created"),
        ("events", "instance.started"),
    ];
    let page = person.post("/console/webhooks", &fields).await;
    page.is(201).shows("It is not shown again");
    let secret = page.between("<code id=\"secret\">", "</code>");
    let id = page.between("primary\" href=\"/console/webhooks/", "\"");
    (id, secret)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_created_tested_rotated_switched_and_deleted() {
    let tenant = Tenant::new("console-webhook").await;
    let person = Person::with_key(&tenant.url, &tenant.key).await;
    let receiver = Receiver::start(|_| Answer::status(418).body("<script>alert('teapot')</script>")).await;
    let form = person.get("/console/webhooks/new").await;
    form.shows("instance.stopped")
        .shows("A backup is completed")
        .shows("&#34;type&#34;: &#34;instance.created&#34;");
    let once = form.once();
    let wrong = person
        .post(
            "/console/webhooks",
            &[("once", &once), ("url", "http://<b>.example/")],
        )
        .await;
    wrong
        .is(422)
        .shows("id=\"url-problem\"")
        .shows("id=\"events-problem\"")
        .hides("<b>");
    let (id, secret) = new_webhook(&person, &receiver.url("/hook?a=1&b=%3Cb%3E")).await;
    assert!(secret.starts_with("whsec_"));
    let path = format!("/console/webhooks/{id}");
    let page = person.get(&path).await;
    page.is(200)
        .hides(&secret)
        .shows("Send test event")
        .shows("a=1&#38;b=");
    let delivery = person
        .post(
            &format!("{path}/test"),
            &[("once", &page.once()), ("type", "instance.started")],
        )
        .await
        .location();
    let look = async || person.get(&delivery).await;
    let page = eventually("the answer", look, |page| page.has(">418</span>")).await;
    page.shows("exhausted")
        .shows("alert(&#39;teapot&#39;)")
        .hides("<script>alert")
        .shows("X-Service-Event-Type: instance.started")
        .shows("evt_test_");
    person
        .get(&format!(
            "{path}/deliveries?status=exhausted&event_type=instance.started"
        ))
        .await
        .shows("418");
    person
        .get(&format!("{path}/deliveries?status=delivered"))
        .await
        .shows("No delivery matches");

    let form = person.get(&format!("{path}/secret")).await;
    let page = person
        .post(
            &format!("{path}/secret"),
            &[("once", &form.once()), ("overlap", "1")],
        )
        .await;
    page.is(200).shows("webhook-signature").hides(&secret);
    let new = page.between("<code id=\"secret\">", "</code>");
    assert!(new.starts_with("whsec_") && new != secret);

    let page = person
        .submit(&format!("{path}/switch"), &[("active", "false")])
        .await;
    page.shows("The webhook is off").shows("Switch on");
    let page = person
        .submit(&format!("{path}/switch"), &[("active", "true")])
        .await;
    page.shows("The webhook is on. It gets the events that happen from now on.")
        .shows("Switch off…")
        .hides("held are sent");
    let fields = [("url", &*receiver.url("/other")), ("events", "backup.failed")];
    let page = change(&person, &format!("{path}/edit"), &fields).await;
    page.shows("/other")
        .shows("backup.failed")
        .hides("instance.created");
    let form = person.get(&format!("{path}/resend")).await;
    let page = person
        .submit(
            &format!("{path}/resend"),
            &[("once", &form.once()), ("hours", "24")],
        )
        .await;
    page.shows("There are no deliveries to send again");
    let page = person.submit(&format!("{path}/retry"), &[]).await;
    page.shows("There are no pending deliveries");
    person
        .get("/console/webhooks/verify")
        .await
        .shows("hmac")
        .shows("Node.js");
    let page = person.submit(&format!("{path}/delete"), &[]).await;
    page.shows("The webhook is deleted")
        .shows("There are no webhooks yet");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_that_failed_is_sent_again() {
    let tenant = Tenant::new("console-resend").await;
    let person = Person::with_key(&tenant.url, &tenant.key).await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let (id, _) = new_webhook(&person, &receiver.url("/")).await;
    create(&person, "web-1").await;
    receiver.wait_for(1).await;
    let path = format!("/console/webhooks/{id}");
    let look = async || person.get(&format!("{path}/deliveries")).await;
    let log = eventually("the delivery", look, |page| page.has("id=\"row-dlv_")).await;
    let delivery = format!("{path}/deliveries/{}", log.between("id=\"row-", "\""));
    let page = person.get(&delivery).await;
    let before = receiver.count();
    let again = person
        .submit(&format!("{delivery}/resend"), &[("once", &page.once())])
        .await;
    again.is(200).shows("Delivery dlv_");
    receiver.wait_for(before + 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_shows_what_each_webhook_got_of_it_and_so_does_the_page_of_its_instance() {
    let tenant = Tenant::new("console-sent").await;
    let person = Person::with_key(&tenant.url, &tenant.key).await;
    let good = Receiver::start(|_| Answer::ok()).await;
    let bad = Receiver::start(|_| Answer::status(503)).await;
    let (to_good, _) = new_webhook(&person, &good.url("/good")).await;
    let (to_bad, _) = new_webhook(&person, &bad.url("/bad")).await;
    let id = create(&person, "web-1").await;
    let path = format!("/console/instances/{id}");
    let look = async || person.get(&path).await;
    let to = |webhook: &str| format!("/console/webhooks/{webhook}/deliveries/dlv_");
    let has_both = |page: &Page| page.text.matches(&to(&to_good)).count() == 2 && page.has(&to(&to_bad));
    let page = eventually("the deliveries of both events", look, has_both).await;
    page.shows(">delivered</span>")
        .shows("instance.started")
        .shows(&format!("/v1/webhooks/{to_good}/deliveries?event_id=evt_"));
    // A webhook that was created later has received none of it.
    let (too_late, _) = new_webhook(&person, &good.url("/late")).await;
    let event = page.between("href=\"/console/events/", "\"");
    let page = person.get(&format!("/console/events/{event}")).await;
    page.is(200)
        .shows(">delivered</span> 200 in ")
        .shows("the receiver answered 503")
        .shows(&to(&to_good))
        .shows(&to(&to_bad))
        .shows("No delivery to it is kept: it was switched off")
        .hides(&to(&too_late));
    let delivery = format!("/console/webhooks/{to_good}/deliveries/");
    let delivery = format!("{delivery}{}", page.between(&delivery, "\""));
    person.get(&delivery).await.is(200).shows(&event);
}

/// The commands that a page shows.
fn commands(page: &Page) -> Vec<String> {
    let shown = page.text.split_once("<summary>The same with the API</summary>");
    let shown = shown.map_or("", |(_, rest)| rest.split_once("</details>").unwrap().0);
    let commands = shown.split("<code>").skip(1);
    commands
        .map(|command| unescaped(command.split_once("</code>").unwrap().0))
        .collect()
}

fn unescaped(html: &str) -> String {
    let mut text = html.to_owned();
    for (escaped, character) in [
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&#60;", "<"),
        ("&#62;", ">"),
        ("&#38;", "&"),
    ] {
        text = text.replace(escaped, character);
    }
    text
}

/// The pages that a page links to.
fn links(page: &Page, path: &str) -> Vec<String> {
    let base = url::Url::parse("http://console").unwrap().join(path).unwrap();
    let references = page.text.split(" href=\"").skip(1);
    references
        .filter_map(|rest| base.join(&unescaped(rest.split_once('"')?.0)).ok())
        .filter(|url| url.host_str() == Some("console") && url.path().starts_with("/console"))
        .map(|url| {
            let query = url.query().map(|query| format!("?{query}"));
            format!("{}{}", url.path(), query.unwrap_or_default())
        })
        .collect()
}

/// The status that a command would get. A command that changes something is not carried out, because it is for another
/// version.
fn status_of(command: &str) -> &'static str {
    let is_own_version = command.contains("If-Match");
    let request = command.split('\\').next().unwrap();
    match request {
        _ if command.contains("--json")
            && (request.ends_with("/v1/keys ") || request.ends_with("/v1/networks ")) =>
        {
            "201"
        }
        // Their forms are still empty.
        _ if command.contains("--json")
            && (request.ends_with("/v1/instances ") || request.ends_with("/v1/webhooks ")) =>
        {
            "422"
        }
        _ if is_own_version || !(request.contains(" -X ") || command.contains("--json")) => "200",
        _ => "412",
    }
}

/// Runs a command in a shell; returns the status of the answer.
async fn carry_out(command: &str, tenant: &Tenant) -> String {
    // Browsers reach this console over plain HTTP, of which the console is unaware.
    let command = command.replacen("https://127.0.0.1", "http://127.0.0.1", 1);
    let other_version = if command.contains("If-Match") {
        ""
    } else {
        " -H 'If-Match: \"x\"'"
    };
    let script = format!("{command}{other_version} -sS -o /dev/null -w '%{{http_code}}' --max-time 60");
    let ran = tokio::process::Command::new("sh")
        .args(["-c", &script])
        .env("STELLAGE_API_KEY", &tenant.key)
        .output()
        .await
        .unwrap();
    assert!(
        ran.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&ran.stderr)
    );
    String::from_utf8(ran.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_shows_commands_that_do_the_same() {
    let tenant = Tenant::new("console-curl").await;
    let person = Person::with_key(&tenant.url, &tenant.key).await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let form = person.get("/console/webhooks/new").await;
    let url = receiver.url("/it's");
    let fields = [
        ("once", &*form.once()),
        ("url", &url),
        ("events", "instance.started"),
    ];
    let created = person.post("/console/webhooks", &fields).await;
    let webhook = created.between("primary\" href=\"/console/webhooks/", "\"");
    let secret = format!("/console/webhooks/{webhook}/secret");
    let rotated = person
        .post(&secret, &[("overlap", "1"), ("secret", "hidden-secret")])
        .await;
    let key = person
        .post("/console/keys", &[("scope", "read"), ("days", "1")])
        .await;
    for (page, expected) in [
        (&created, &["201", "200"][..]),
        (&rotated, &["412"]),
        (&key, &["201", "200"]),
    ] {
        let commands = commands(page);
        assert_eq!(commands.len(), expected.len(), "{commands:#?}");
        for (command, expected) in commands.iter().zip(expected) {
            assert!(!command.contains("hidden-secret"));
            assert_eq!(carry_out(command, &tenant).await, *expected, "{command}");
        }
    }

    tenant
        .apply("web-1", |instance| instance.spec.monitoring_enabled = true)
        .await;
    let instance = tenant.wait_for_state("web-1", InstanceState::Running).await.id();
    let body = json!({ "name": "before" });
    tenant
        .call(
            Method::POST,
            &format!("/v1/instances/{instance}/backups"),
            Some(&body),
        )
        .await;
    receiver.wait_for(1).await;
    tenant.wait_for_entries(1).await;
    tenant.close_now().await;
    tenant.wait_for_invoices(1).await;
    let ready = async || {
        let backups = person.get("/console/backups").await;
        let deliveries = person
            .get(&format!("/console/webhooks/{webhook}/deliveries"))
            .await;
        backups.has(">completed</span>") && deliveries.has("id=\"row-dlv_")
    };
    eventually("the backup and the delivery", ready, |ready| *ready).await;

    let (mut known, mut carried_out) = (BTreeSet::new(), BTreeSet::new());
    let mut open = vec!["/console/instances".to_owned()];
    while let Some(path) = open.pop() {
        let is_no_page = path == "/console" || path.contains("/assets/") || path.ends_with("/csv");
        if is_no_page || !known.insert(path.clone()) {
            continue;
        }
        let page = person.get(&path).await;
        page.is(200).hides(&tenant.key);
        open.extend(links(&page, &path));
        let commands = commands(&page);
        // Only the invoice is printed.
        assert_eq!(commands.is_empty(), path.ends_with("/print"), "{path}");
        for command in commands {
            assert!(command.contains("Bearer $STELLAGE_API_KEY"), "{path}: {command}");
            if carried_out.insert(command.clone()) {
                let status = carry_out(&command, &tenant).await;
                assert_eq!(status, status_of(&command), "{path}: {command}");
            }
        }
        assert!(known.len() < 200, "{known:#?}");
    }
    for page in ["/edit", "/resend", "/deliveries", "/switch", "/secret", "/delete"] {
        assert!(
            known.contains(&format!("/console/webhooks/{webhook}{page}")),
            "{page}: {known:#?}"
        );
    }
    for page in [
        "/plan",
        "/rebuild",
        "/settings",
        "/backup",
        "/delete",
        "/power/poweroff",
    ] {
        assert!(
            known.contains(&format!("/console/instances/{instance}{page}")),
            "{page}: {known:#?}"
        );
    }
    // They changed nothing.
    assert_eq!(tenant.all_instances().await.len(), 1);
    let shown = tenant
        .call(Method::GET, &format!("/v1/instances/{instance}"), None)
        .await;
    assert_eq!(shown.json()["data"]["status"], "running");
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_and_what_it_costs_are_shown() {
    let tenant = Tenant::new("console-usage").await;
    let person = Person::with_key(&tenant.url, &tenant.key).await;
    person
        .get("/console/invoices")
        .await
        .is(200)
        .shows("0.00 EUR")
        .shows("There are no invoices yet");
    tenant
        .apply("web-1", |instance| instance.spec.monitoring_enabled = true)
        .await;
    let instance = tenant.wait_for_state("web-1", InstanceState::Running).await;
    let path = format!("/console/instances/{}", instance.id());
    person
        .get(&path)
        .await
        .is(200)
        .shows("aria-label=\"CPU: ")
        .shows("/metrics?window=1h")
        .shows("No alerts in the last 24 hours");
    person
        .get(&format!("{path}?window=24h"))
        .await
        .is(200)
        .shows("/metrics?window=24h");
    person
        .get("/console/alerts?status=firing")
        .await
        .is(200)
        .shows("No alert matches");

    let look = async || person.get("/console/invoices/current").await;
    let page = eventually("a line", look, |page| page.has("web-1")).await;
    page.shows("0.00745 EUR").shows("This month");
    tenant.wait_for_entries(1).await;
    let until = tenant.close_now().await;
    tenant.wait_for_invoices(1).await;
    let look = async || person.get("/console/invoices").await;
    let list = eventually("the invoice", look, |page| page.has("/console/invoices/inv_")).await;
    let id = list.between("href=\"/console/invoices/inv_", "\"");
    let path = format!("/console/invoices/inv_{id}");
    let invoice = person.get(&path).await;
    invoice
        .is(200)
        .shows("0.01 EUR")
        .shows(&until.strftime("%Y-%m-%d %H:%M").to_string());
    let csv = person.get(&format!("{path}/csv")).await;
    csv.is(200).shows("number,period_from").shows("web-1");
    assert!(
        csv.header("content-disposition")
            .starts_with("attachment; filename=\"invoice-")
    );
    let zipped = [("accept-encoding", "gzip")];
    let print = person
        .send(Method::GET, &format!("{path}/print"), &[], &zipped)
        .await;
    print
        .is(200)
        .shows("<h1>Invoice ")
        .shows("web-1")
        .hides("<script");
    let other = Tenant::new("console-usage-b").await;
    let other = Person::with_key(&other.url, &other.key).await;
    for page in ["", "/csv", "/print"] {
        other.get(&format!("{path}{page}")).await.is(404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_key_is_shown_once_and_can_be_revoked() {
    let tenant = Tenant::new("console-keys").await;
    let person = Person::with_key(&tenant.url, &tenant.key).await;
    let page = person.get("/console/keys").await;
    page.shows("this session").hides(&tenant.key);
    let wrong = person
        .post(
            "/console/keys",
            &[("once", &page.once()), ("scope", "read"), ("days", "many")],
        )
        .await;
    wrong.is(422).shows("id=\"days-problem\"").shows("value=\"many\"");
    let once = wrong.once();
    let fields = [("once", once.as_str()), ("scope", "read"), ("days", "30")];
    let page = person.post("/console/keys", &fields).await;
    page.is(201).shows("data-copy=\"new-key\"");
    let key = page.between("<code id=\"new-key\">", "</code>");
    let id = page.between("<code>key-", "</code>");
    let again = person.post("/console/keys", &fields).await;
    again.is(201).shows("The key was shown before").hides(&key);
    Person::with_key(&tenant.url, &key).await;
    let page = person.get("/console/keys").await;
    page.hides(&key).shows(&id);
    let page = person
        .submit(&format!("/console/keys/key-{id}/revoke"), &[])
        .await;
    page.shows("is revoked").hides(&format!("<code>key-{id}"));
    person
        .get("/console/account")
        .await
        .is(200)
        .shows("console-keys@example.com");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_signs_in_one_person_once_whichever_replica_is_asked() {
    let plane = shared().await.plane;
    let tenant = Tenant::new("console-link").await;
    let mut replica = Operator::start(plane, &["api"]).await;
    let make = |scope: &str| {
        let arguments = format!(
            "console link --account console-link --url https://cloud.example --scope {scope} --output json"
        );
        let printed = stellage(plane, &arguments).unwrap();
        serde_json::from_str::<serde_json::Value>(&printed).unwrap()
    };
    let made = make("write");
    let url = made["url"].as_str().unwrap();
    let path = url.strip_prefix("https://cloud.example").unwrap();
    assert!(path.starts_with("/console/link?account=console-link&key=console-"));
    // Looking at the link does not use it up.
    let (one, two) = (Person::at(&tenant.url), Person::at(&replica.url));
    for person in [&one, &two, &one] {
        let page = person.get(path).await;
        page.is(200).shows("It works once");
        assert!(person.cookies.lock().is_empty());
    }
    let query = url::Url::parse(url).unwrap();
    let fields: Vec<(String, String)> = query.query_pairs().into_owned().collect();
    let fields: Vec<(&str, &str)> = fields.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    // Neither does a wrong token.
    let mut wrong = fields.clone();
    wrong[2].1 = "wrong";
    two.post("/console/link", &wrong)
        .await
        .is(401)
        .shows("has been used already");
    let (first, second) = tokio::join!(
        one.post("/console/link", &fields),
        two.post("/console/link", &fields)
    );
    let signed_in = |page: &Page| page.status == StatusCode::SEE_OTHER;
    assert!(signed_in(&first) != signed_in(&second), "{first:?} {second:?}");
    let (winner, loser) = if signed_in(&first) { (one, two) } else { (two, one) };
    winner
        .get("/console/keys")
        .await
        .is(200)
        .shows(made["key"].as_str().unwrap())
        .shows("made for a sign-in link")
        .shows("this session");
    assert!(loser.cookies.lock().is_empty());
    // Revoking the key ends the session.
    let keys: Api<ApiKey> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let object = keys.get(made["key"].as_str().unwrap()).await.unwrap();
    assert!(object.metadata.annotations.unwrap_or_default().is_empty());
    let life = object
        .spec
        .expires_at
        .unwrap()
        .duration_since(jiff::Timestamp::now());
    assert!(life.as_secs() <= 12 * 3600 && life.as_secs() > 11 * 3600);
    keys.delete(made["key"].as_str().unwrap(), &DeleteParams::default())
        .await
        .unwrap();
    let look = async || winner.get("/console/keys").await.status;
    eventually("the session to end", look, |status| {
        *status == StatusCode::SEE_OTHER
    })
    .await;
    // A link that is too old signs nobody in.
    let made = make("write");
    let name = made["key"].as_str().unwrap();
    let link = keys.get(name).await.unwrap().metadata.annotations.unwrap()[LINK_ANNOTATION].clone();
    let (digest, _) = link.split_once(' ').unwrap();
    let expired = json!({ "metadata": { "annotations": { LINK_ANNOTATION: format!("{digest} 2026-01-01T00:00:00Z") } } });
    keys.merge(name, &expired).await;
    let query = url::Url::parse(made["url"].as_str().unwrap()).unwrap();
    let fields: Vec<(String, String)> = query.query_pairs().into_owned().collect();
    let fields: Vec<(&str, &str)> = fields.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    // A replica that has not seen that yet finds out when it writes.
    let late = Person::at(&tenant.url);
    late.post("/console/link", &fields)
        .await
        .is(401)
        .shows("is too old: it works once, within 15 minutes");
    assert!(late.cookies.lock().is_empty());
    // A link may be read-only.
    let made = make("read");
    let query = url::Url::parse(made["url"].as_str().unwrap()).unwrap();
    let fields: Vec<(String, String)> = query.query_pairs().into_owned().collect();
    let fields: Vec<(&str, &str)> = fields.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let reader = Person::at(&tenant.url);
    reader.post("/console/link", &fields).await.is(303);
    reader.get("/console/instances").await.shows("read only");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_that_refresh_themselves_leave_the_limit_of_the_key_alone() {
    let cluster = shared().await;
    let limit = |spec: &mut resources::AccountSpec| spec.rate_limit_per_hour = Some(5);
    let tenant = Tenant::with(cluster.plane, &cluster.operator, "console-limit", limit).await;
    let person = Person::with_key(&tenant.url, &tenant.key).await;
    let refresh = [("hx-request", "true")];
    for _ in 0..20 {
        let page = person
            .send(Method::GET, "/console/instances", &[], &refresh)
            .await;
        page.is(200);
    }
    let answer = tenant.call(Method::GET, "/v1/instances", None).await;
    assert_eq!(
        (answer.status.as_u16(), answer.header("ratelimit-remaining")),
        (200, "4")
    );
    // The console's reads are limited as well: to as many as all keys together.
    let mut last = None;
    for _ in 0..60 {
        let page = person
            .send(Method::GET, "/console/instances", &[], &refresh)
            .await;
        if page.status == StatusCode::TOO_MANY_REQUESTS {
            last = Some(page);
            break;
        }
    }
    let page = last.expect("a limit");
    page.shows("rate_limit_exceeded").shows("50 requests per hour");
    assert!(!page.header("retry-after").is_empty());
    // Changes count towards the key's limit.
    let answer = tenant
        .call(Method::POST, "/v1/keys", Some(&json!({ "scope": "read" })))
        .await;
    assert_eq!(answer.header("ratelimit-remaining"), "3");
    person.post("/console/webhooks", &[("url", "x")]).await;
    let answer = tenant.call(Method::GET, "/v1/instances", None).await;
    assert_eq!(answer.header("ratelimit-remaining"), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn below_the_path_of_a_proxy_every_link_leads_below_it() {
    let plane = shared().await.plane;
    let public = "https://example.com/cloud";
    let mut replica = Operator::start(plane, &["api", "--public-url", public]).await;
    let tenant = Tenant::on(plane, &replica, "console-below").await;
    let body = json!({ "name": "web", "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
    // A proxy may remove the path, or pass it on.
    for path in ["/v1/instances", "/cloud/v1/instances"] {
        let created = tenant.call(Method::POST, path, Some(&body)).await;
        let created_at = created.header("location").to_owned();
        assert!(created_at.starts_with("/cloud/v1/instances/i-"), "{created_at}");
        assert_eq!(tenant.call(Method::GET, &created_at, None).await.status, 200);
    }
    let document = tenant.call(Method::GET, "/v1/openapi.json", None).await.json();
    assert_eq!(document["servers"][0]["url"], public);

    let person = Person::at(&replica.url);
    let signed_in = person
        .post("/cloud/console/sign-in", &[("key", &tenant.key)])
        .await;
    assert_eq!(signed_in.location(), "/cloud/console/welcome");
    for path in ["/console/instances", "/cloud/console/instances"] {
        let page = person.get(path).await;
        page.is(200).shows(&format!("{public}/v1/instances?limit=20"));
        for attribute in ["href", "src", "action", "hx-get"] {
            page.shows(&format!("{attribute}=\"/cloud/console/"))
                .hides(&format!("{attribute}=\"/console"));
        }
    }
    let assets = person.get("/console/instances").await.between("src=\"", "\"");
    person.get(assets.strip_prefix("/cloud").unwrap()).await.is(200);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_is_small_and_its_files_are_kept_for_ever() {
    let tenant = Tenant::new("console-size").await;
    let person = Person::with_key(&tenant.url, &tenant.key).await;
    for number in 0..20 {
        let spec = |instance: &mut resources::Instance| {
            instance.spec.tags = vec!["env:prod".to_owned(), "team:web".to_owned()];
        };
        tenant.apply(&format!("web-{number}"), spec).await;
    }
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let (webhook, _) = new_webhook(&person, &receiver.url("/")).await;
    let look = async || person.get("/console/instances").await;
    let list = eventually("all rows", look, |page| page.has("20 in all")).await;
    let id = list.between("id=\"row-", "\"");
    let zipped = [("accept-encoding", "gzip")];
    let mut assets = 0;
    for reference in ["rel=\"stylesheet\" href=\"", "<script src=\""] {
        for rest in list.text.split(reference).skip(1) {
            let path = rest.split('"').next().unwrap();
            let file = person.send(Method::GET, path, &[], &zipped).await;
            file.is(200);
            assert_eq!(
                file.header("cache-control"),
                "public, max-age=31536000, immutable"
            );
            assert_eq!(file.header("content-encoding"), "gzip", "{path}");
            let plain = person.get(path).await;
            assert!(plain.size > file.size && plain.header("content-encoding").is_empty());
            assets += file.size;
        }
    }
    assert!(assets > 15_000, "three files: {assets}");
    for path in [
        "/console/sign-in".to_owned(),
        "/console/instances".to_owned(),
        "/console/instances/new".to_owned(),
        format!("/console/instances/{id}"),
        format!("/console/instances/{id}/plan"),
        format!("/console/instances/{id}/rebuild"),
        format!("/console/instances/{id}/rebuild?install=image:debian-13"),
        format!("/console/instances/{id}/power/poweroff"),
        format!("/console/instances/{id}/settings"),
        "/console/backups".to_owned(),
        "/console/alerts".to_owned(),
        "/console/webhooks".to_owned(),
        "/console/webhooks/new".to_owned(),
        "/console/webhooks/verify".to_owned(),
        format!("/console/webhooks/{webhook}"),
        format!("/console/webhooks/{webhook}/edit"),
        "/console/events".to_owned(),
        "/console/invoices".to_owned(),
        "/console/invoices/current".to_owned(),
        "/console/keys".to_owned(),
        "/console/account".to_owned(),
    ] {
        let page = person.send(Method::GET, &path, &[], &zipped).await;
        page.is(200);
        assert_eq!(page.header("content-encoding"), "gzip", "{path}");
        let size = page.size + assets;
        assert!(size < 40_000, "{path}: {size} bytes with its files");
    }
    person.get("/console/assets/htmx-0.js").await.is(404);
}
