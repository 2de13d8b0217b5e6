//! Signing in to the console through an OpenID Connect provider.

use std::time::{SystemTime, UNIX_EPOCH};

use kube::{Api, api::ListParams};
use reqwest::{Method, StatusCode};
use resources::ApiKey;
use serde_json::{Value, json};

use crate::{
    audit,
    console::{Page, Person},
    support::{
        Change as _, Operator, Tenant, eventually,
        oidc::{Behaviour, CLIENT, CONSOLE, Forgery, OidcProvider},
        shared,
    },
};

const CALLBACK: &str = "/console/sign-in/oidc/callback";

/// A replica of the REST API whose console has a provider.
struct Signing {
    provider: OidcProvider,
    replica: Operator,
}

impl Signing {
    async fn start() -> Self {
        let provider = OidcProvider::start().await;
        let secret = provider.secret_file();
        let arguments = [
            "api",
            "--log-json",
            "--public-url",
            CONSOLE,
            "--oidc-issuer",
            provider.issuer(),
            "--oidc-client-id",
            CLIENT,
            "--oidc-client-secret-file",
            secret.to_str().unwrap(),
            "--oidc-name=Example & Sons",
        ];
        let replica = Operator::start(shared().await.plane, &arguments).await;
        Self { provider, replica }
    }

    async fn tenant(&self, name: &str) -> Tenant {
        Tenant::on(shared().await.plane, &self.replica, name).await
    }

    fn person(&self) -> Person {
        Person::at(&self.replica.url)
    }

    /// Goes to the provider; returns where that sends the browser back to.
    async fn go(&self, person: &Person) -> String {
        let away = person.get("/console/sign-in/oidc").await;
        assert!(away.header("set-cookie").contains("; SameSite=Lax; Secure"));
        let back = self.provider.authorize(&away.location()).await;
        assert!(back.starts_with(CALLBACK), "{back}");
        back
    }

    /// Goes to the provider and comes back.
    async fn come_back(&self, person: &Person) -> Page {
        let back = self.go(person).await;
        person.get(&back).await
    }

    /// Signs in; fails the test if that fails.
    async fn sign_in(&self) -> Person {
        let person = self.person();
        let page = self.come_back(&person).await;
        page.is(200).shows("content=\"0; url=/console/welcome\"");
        let home = person.get("/console/welcome").await;
        assert_eq!(home.location(), "/console/instances");
        person
    }

    async fn stop(mut self) {
        self.replica.stop().await;
    }
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// The names of the account's keys that were created by sign-ins.
async fn sign_ins(tenant: &Tenant) -> Vec<String> {
    let keys: Api<ApiKey> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let labelled = ListParams::default().labels("stellage.dev/sign-in=openid-connect");
    let keys = keys.list(&labelled).await.unwrap();
    keys.items
        .into_iter()
        .filter_map(|key| key.metadata.name)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_provider_signs_in_the_account_with_the_verified_address_and_its_key_ends_the_session() {
    let signing = Signing::start().await;
    let tenant = signing.tenant("oidc-session").await;
    signing.tenant("oidc-other").await;
    let page = signing.person().get("/console/sign-in").await;
    page.is(200)
        .shows("Sign in with Example &#38; Sons")
        .shows("API key");
    signing.provider.sign_in_as("OIDC-Session@Example.COM");
    let person = signing.sign_in().await;
    assert_eq!(
        person.cookies.lock().keys().collect::<Vec<_>>(),
        ["__Host-stellage"],
        "the cookie of the way there is gone"
    );
    let page = person.get("/console/instances").await;
    page.is(200).shows("oidc-session").shows("New instance");
    // Other replicas know the session, whether they have a provider or not.
    let elsewhere = Person::at(&shared().await.operator.url);
    let look = async || {
        *elsewhere.cookies.lock() = person.cookies.lock().clone();
        elsewhere.get("/console/account").await.status
    };
    eventually("another replica to know the session", look, |status| {
        *status == StatusCode::OK
    })
    .await;
    // Who it was is told.
    let lines = audit::lines(&signing.replica, "oidc-session");
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(
        (&line["operation"], &line["subject"]),
        (&json!("sign-in"), &json!("subject-1"))
    );
    // Its key is listed like any other, and lasts as long as a session.
    let [name] = &sign_ins(&tenant).await[..] else {
        panic!("one key")
    };
    let key = tenant.call(Method::GET, &format!("/v1/keys/{name}"), None).await;
    let key = &key.json()["data"];
    assert_eq!(
        (&key["scope"], &key["last_characters"]),
        (&json!("write"), &json!(null))
    );
    assert!(key["expires_at"].is_string());
    assert_eq!(line["key"], name.as_str());
    person
        .get("/console/keys")
        .await
        .shows(name)
        .shows("this session");
    // Revoking it ends the session.
    person.post(&format!("/console/keys/{name}/revoke"), &[]).await;
    let page = person.get("/console/instances").await;
    assert_eq!(page.location(), "/console/sign-in?ended=1");
    // Who did that is told, too.
    let lines = eventually(
        "the line of the write",
        async || audit::lines(&signing.replica, "oidc-session"),
        |lines| lines.len() == 2,
    )
    .await;
    assert_eq!(
        (&lines[1]["operation"], &lines[1]["subject"]),
        (&json!("DELETE /v1/keys/{id}"), &json!("subject-1"))
    );
    // So does signing out, even for somebody who has a copy of the cookie.
    let person = signing.sign_in().await;
    let copy = signing.person();
    *copy.cookies.lock() = person.cookies.lock().clone();
    copy.get("/console/instances").await.is(200);
    person
        .submit("/console/sign-out", &[])
        .await
        .shows("You have signed out");
    copy.get("/console/instances").await.is(303);
    assert!(sign_ins(&tenant).await.is_empty());
    signing.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_may_want_the_secret_in_the_body_and_tell_the_address_elsewhere() {
    let signing = Signing::start().await;
    signing.tenant("oidc-userinfo").await;
    let told = |subject: &str| Behaviour {
        wants_post: true,
        user_info: Some(
            json!({ "sub": subject, "email": "oidc-userinfo@example.com", "email_verified": true }),
        ),
        ..Behaviour::default()
    };
    signing.provider.behave(told("subject-1"));
    let person = signing.sign_in().await;
    person
        .get("/console/account")
        .await
        .is(200)
        .shows("oidc-userinfo");
    signing.provider.behave(told("subject-2"));
    let page = signing.come_back(&signing.person()).await;
    page.is(401).shows("is not valid");
    signing.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_no_account_of_their_own_is_told_what_to_do() {
    let signing = Signing::start().await;
    let tenant = signing.tenant("oidc-people").await;
    let plane = shared().await.plane;
    for name in ["oidc-shared-1", "oidc-shared-2"] {
        Tenant::with(plane, &signing.replica, name, |spec| {
            spec.email = "oidc-shared@example.com".to_owned();
        })
        .await;
    }
    let email = "oidc-people@example.com";
    for (behaviour, expected) in [
        (Behaviour::default(), "has not verified your e-mail address"),
        (
            Behaviour::default().claim("email", email),
            "has not verified your e-mail address",
        ),
        (
            Behaviour::with_email(email).claim("email_verified", false),
            "has not verified your e-mail address",
        ),
        (
            Behaviour::with_email(email).claim("email_verified", "true"),
            "has not verified your e-mail address",
        ),
        (
            Behaviour::with_email("nobody@example.com"),
            "No account has the e-mail address nobody@example.com",
        ),
        (
            Behaviour::with_email("oidc-shared@example.com"),
            "More than one account has the e-mail address",
        ),
    ] {
        signing.provider.behave(behaviour);
        let person = signing.person();
        let page = signing.come_back(&person).await;
        page.is(403).shows(expected).shows("id=\"key\"");
        assert!(person.cookies.lock().is_empty());
    }
    // What the provider says counts for nothing more.
    for (error, status, expected) in [
        ("access_denied", 403, "has not let you in, or you have cancelled"),
        (
            "temporarily_unavailable",
            502,
            "with the error temporarily_unavailable",
        ),
        ("<b>Call 555</b>", 502, "with the error unknown"),
    ] {
        signing.provider.behave(Behaviour {
            error: Some(error),
            ..Behaviour::default()
        });
        let page = signing.come_back(&signing.person()).await;
        page.is(status).shows(expected).hides("555");
    }
    assert!(sign_ins(&tenant).await.is_empty());
    signing.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_not_made_for_this_sign_in_is_refused() {
    let signing = Signing::start().await;
    let tenant = signing.tenant("oidc-tokens").await;
    let good = || Behaviour::with_email("oidc-tokens@example.com");
    let forged = |forgery| Behaviour {
        forged: Some(forgery),
        ..good()
    };
    let several = json!([CLIENT, "another client"]);
    let refused = [
        good().claim("nonce", "another"),
        good().claim("nonce", Value::Null),
        good().claim("aud", "another client"),
        good().claim("aud", several.clone()),
        good().claim("azp", "another client"),
        good().claim("iss", "https://login.example.com"),
        good().claim("exp", seconds() - 120),
        good().claim("exp", Value::Null),
        good().claim("iat", seconds() + 3600),
        good().claim("nbf", seconds() + 3600),
        good().claim("sub", Value::Null),
        forged(Forgery::Unsigned),
        forged(Forgery::PublicKeyAsSecret),
        forged(Forgery::OtherText),
        forged(Forgery::OtherKey),
    ];
    // Each replica counts attempts separately.
    for behaviours in refused.chunks(8) {
        let signing = Signing::start().await;
        for behaviour in behaviours {
            signing.provider.behave(behaviour.clone());
            let person = signing.person();
            let page = signing.come_back(&person).await;
            assert_eq!(page.status.as_u16(), 401, "{behaviour:?}: {}", page.text);
            page.shows("is not valid");
            assert!(person.cookies.lock().is_empty());
        }
        // The same sign-in without the fault succeeds.
        signing.provider.behave(good());
        signing.sign_in().await;
        signing.stop().await;
    }
    assert_eq!(sign_ins(&tenant).await.len(), 2);
    // An ID token with several audiences names the client that it was issued for.
    signing
        .provider
        .behave(good().claim("aud", several).claim("azp", CLIENT));
    signing.sign_in().await;
    signing.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_belongs_to_one_browser_and_works_once() {
    let signing = Signing::start().await;
    let tenant = signing.tenant("oidc-state").await;
    signing.provider.sign_in_as("oidc-state@example.com");
    let stale = "was not begun in this browser";
    // Another browser, with or without a sign-in of its own.
    let person = signing.person();
    let back = signing.go(&person).await;
    signing.person().get(&back).await.is(400).shows(stale);
    let other = signing.person();
    signing.go(&other).await;
    other.get(&back).await.is(400).shows(stale);
    // A modified answer.
    let changed = back.replace("state=", "state=x");
    let cookies = person.cookies.lock().clone();
    person.get(&changed).await.is(400).shows(stale);
    *person.cookies.lock() = cookies.clone();
    let mixed_up = back.replace("iss=http", "iss=https");
    person.get(&mixed_up).await.is(401).shows("is not valid");
    *person.cookies.lock() = cookies.clone();
    // A session that is no sign-in.
    let session = Person::with_key(&signing.replica.url, &tenant.key).await;
    let cookie = session.cookies.lock()["__Host-stellage"].clone();
    session
        .cookies
        .lock()
        .insert("__Host-stellage-oidc".to_owned(), cookie);
    session.get(&back).await.is(400).shows(stale);
    // The right one; it works only once.
    person.get(&back).await.is(200).shows("Signed in");
    person.get(&back).await.is(400).shows(stale);
    person.cookies.lock().extend(cookies);
    person.get(&back).await.is(401).shows("is not valid");
    assert_eq!(sign_ins(&tenant).await.len(), 1);
    signing.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_down_or_changes_its_key_is_followed() {
    let mut signing = Signing::start().await;
    let tenant = signing.tenant("oidc-down").await;
    // The provider is down from the start: the rest of the console works.
    signing.provider.stop();
    let page = signing.person().get("/console/sign-in/oidc").await;
    page.is(503)
        .shows("cannot be used at the moment")
        .shows("id=\"key\"");
    assert!(
        signing
            .replica
            .log()
            .contains("nobody can sign in to the console through OpenID Connect")
    );
    Person::with_key(&signing.replica.url, &tenant.key).await;
    // It is up, but with another issuer.
    signing.provider.go_on().await;
    signing.provider.behave(Behaviour {
        other_issuer: Some("https://login.example.com"),
        ..Behaviour::default()
    });
    let look = async || signing.person().get("/console/sign-in/oidc").await.status;
    eventually("its description to be read", look, |_| {
        signing.replica.log().contains("--oidc-issuer must be the same")
    })
    .await;
    signing.provider.sign_in_as("oidc-down@example.com");
    eventually("the provider to be asked again", look, |status| {
        *status == StatusCode::SEE_OTHER
    })
    .await;
    signing.sign_in().await;
    signing.sign_in().await;
    assert_eq!(signing.provider.key_reads(), 1);
    // The provider's new key is requested when it is first seen.
    signing.provider.change_key();
    signing.sign_in().await;
    assert_eq!(signing.provider.key_reads(), 2);
    // But not every time that an unknown key is seen.
    signing.provider.change_key();
    signing.come_back(&signing.person()).await.is(401);
    assert_eq!(signing.provider.key_reads(), 2);
    // The provider goes down between the redirect to it and the return.
    let person = signing.person();
    let back = signing.go(&person).await;
    signing.provider.stop();
    person
        .get(&back)
        .await
        .is(503)
        .shows("cannot be used at the moment");
    signing.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sign_ins_never_use_up_the_quota_of_keys() {
    let signing = Signing::start().await;
    let tenant = signing.tenant("oidc-quota").await;
    signing.provider.sign_in_as("oidc-quota@example.com");
    let first = signing.sign_in().await;
    let mut last = None;
    for _ in 0..60 {
        last = Some(signing.sign_in().await);
    }
    assert_eq!(sign_ins(&tenant).await.len(), 10);
    // The oldest session has ended, the newest has not.
    first.get("/console/instances").await.is(303);
    last.unwrap().get("/console/instances").await.is(200);
    // Of its 50 keys, the account has these and two more.
    let quota = async || {
        let account = tenant.call(Method::GET, "/v1/account", None).await.json();
        account["data"]["quotas"]["api_keys"]["used"].clone()
    };
    assert_eq!(quota().await, 12);
    let made = async || tenant.call(Method::POST, "/v1/keys", Some(&json!({}))).await;
    let refused = eventually("the quota to be used up", made, |made| {
        made.status != StatusCode::CREATED
    })
    .await;
    assert_eq!(refused.json()["error"]["code"], "resource_limit_exceeded");
    assert_eq!(quota().await, 50);
    // Another sign-in replaces the oldest.
    signing.sign_in().await;
    assert_eq!(quota().await, 50);
    // An expired one makes room before any other.
    let keys: Api<ApiKey> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let before = sign_ins(&tenant).await;
    let expired = json!({ "spec": { "expiresAt": "2026-01-01T00:00:00Z" } });
    keys.merge(&before[0], &expired).await;
    let path = format!("/v1/keys/{}", before[0]);
    let look = async || tenant.call(Method::GET, &path, None).await.json()["data"]["expires_at"].clone();
    eventually("the key to expire", look, |end| {
        end.as_str().is_some_and(|end| end.starts_with("2026-01-01"))
    })
    .await;
    signing.sign_in().await;
    let after = sign_ins(&tenant).await;
    assert_eq!(after.len(), 10);
    assert!(before[1..].iter().all(|name| after.contains(name)));
    signing.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_code_that_the_provider_refuses_counts_and_an_outage_does_not() {
    let signing = Signing::start().await;
    signing.go(&signing.person()).await;
    // It has said otherwise, so that it does not know the client now.
    signing.provider.behave(Behaviour {
        wants_post: true,
        ..Behaviour::default()
    });
    for _ in 0..12 {
        signing.come_back(&signing.person()).await.is(503);
    }
    signing.provider.behave(Behaviour::default());
    for _ in 0..10 {
        let person = signing.person();
        let back = signing.go(&person).await;
        person.get(&back.replace("code=", "code=x")).await.is(401);
    }
    let page = signing.person().get("/console/sign-in/oidc").await;
    page.is(429).shows("Too many attempts");
    signing.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_calls_back_without_a_secret_locks_nobody_out_and_a_console_without_a_provider_has_no_such_page()
 {
    let signing = Signing::start().await;
    signing.tenant("oidc-images").await;
    let person = signing.person();
    // What an image in any page can make a browser do tests no secret.
    let long = format!("{CALLBACK}?error={}", "x".repeat(10_000));
    for _ in 0..12 {
        person.get(&format!("{CALLBACK}?state=a&code=b")).await.is(400);
        person.get(&long).await.is(400);
    }
    // The provider itself, or whoever has begun a sign-in, says why it failed.
    let back = signing.go(&person).await;
    let denied = format!(
        "{}&error={}",
        back.replace("code=", "nocode="),
        "x".repeat(10_000)
    );
    person.get(&denied).await.is(502).shows("error unknown");
    let log = signing.replica.log();
    assert!(log.contains("xxx…") && !log.contains(&"x".repeat(1000)), "{log}");
    signing.provider.sign_in_as("oidc-images@example.com");
    signing.sign_in().await;
    signing.stop().await;
    let person = Person::at(&shared().await.operator.url);
    person.get("/console/sign-in/oidc").await.is(404);
    person.get(CALLBACK).await.is(404);
    person
        .get("/console/sign-in")
        .await
        .is(200)
        .hides("/console/sign-in/oidc");
}
