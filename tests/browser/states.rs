//! What no journey reaches, and whether every text that pages can show was on a page that was checked.

use std::{fs, path::Path, time::Duration};

use control_plane::{ControlPlane, Identity};
use kube::{Api, api::PostParams};
use reqwest::Method;
use resources::{Account, Backup, Instance, InstanceState};
use serde_json::{Value, json};

use super::{Browser, journeys::link_of, webdriver::By};
use crate::support::{
    Change as _, Operator, Tenant, eventually, new_key,
    oidc::{CLIENT, CONSOLE, OidcProvider},
    receivers::{Answer, Receiver},
};

/// Texts that are on no page that can be checked, and the reasons.
const NOT_CHECKED: [(&str, &str); 4] = [
    (
        "To the console",
        "the page after a sign-in with a provider leads on at once",
    ),
    (
        "The secret was shown before. If it is lost, rotate it.",
        "an answer is repeated with the secret for a day",
    ),
    (
        "Show what this region offers",
        "only where there are regions with real servers",
    ),
    (
        "Backups are not available in this region.",
        "only where there are regions with real servers",
    ),
];

/// The texts of three words or more in a template, between tags and placeholders.
fn texts(template: &str) -> Vec<String> {
    let mut text = template.to_owned();
    for (open, close) in [("{#", "#}"), ("{%", "%}"), ("{{", "}}"), ("<", ">")] {
        let mut parts = text.split(open);
        let mut rest = parts.next().unwrap().to_owned();
        for part in parts {
            rest.push('\0');
            rest.push_str(part.split_once(close).map_or("", |(_, rest)| rest));
        }
        text = rest;
    }
    let texts = text
        .split('\0')
        .map(|text| text.split_whitespace().collect::<Vec<_>>());
    texts
        .filter(|words| {
            words
                .iter()
                .filter(|word| word.contains(char::is_alphabetic))
                .count()
                >= 3
        })
        .map(|words| words.join(" "))
        .collect()
}

fn templates(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(templates(&path));
        } else {
            found.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
    found
}

#[test]
fn texts_are_what_stands_between_tags_and_what_is_filled_in() {
    let template = "<p title=\"not this one\">There are {# no #}none yet.{% if a < b %} Make one\n now{% endif %}</p>{{ x }} of it, too";
    assert_eq!(texts(template), ["Make one now", "of it, too"]);
}

impl Browser {
    /// Fails if a template has a text that was on none of the checked pages: a page, or a state of one, has been
    /// forgotten.
    pub(super) fn has_checked_everything(&self) {
        let checked = self.checked.lock();
        let mut missing = Vec::new();
        for (path, template) in
            templates(&Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/server/templates/console"))
        {
            for text in texts(&template) {
                let is_exempt = NOT_CHECKED.iter().any(|(exempt, _)| *exempt == text);
                assert!(!is_exempt || !checked.contains(&text), "{text:?} can be checked");
                if !is_exempt && !checked.contains(&text) {
                    missing.push(format!("{path}: {text}"));
                }
            }
        }
        assert!(missing.is_empty(), "on no page that was checked: {missing:#?}");
    }

    async fn open_and_check(&self, path: &str) {
        self.open(path).await;
        self.check(path).await;
    }

    /// Checks states that no journey reaches. Ends the operator.
    pub(super) async fn see_the_rest(
        &mut self,
        plane: &ControlPlane,
        mut operator: Operator,
        tenant: &Tenant,
        busy: &str,
    ) {
        let fresh = Tenant::on(plane, &operator, "browser-fresh").await;
        self.see_nothing_yet(plane, &fresh).await;
        self.see_what_happens_seldom(&fresh).await;
        self.see_backups(plane, &fresh).await;
        self.see_webhooks(&fresh).await;
        self.see_keys().await;
        self.open_and_check(&link_of(plane, &fresh, "browser-fresh"))
            .await;
        self.open("/console").await;
        self.press("Sign out").await;

        // Without the leader, nobody knows samples, and nothing happens.
        operator.stop().await;
        let provider = OidcProvider::start().await;
        let secret = provider.secret_file();
        let arguments = [
            "api",
            "--public-url",
            CONSOLE,
            "--oidc-issuer",
            provider.issuer(),
            "--oidc-client-id",
            CLIENT,
            "--oidc-client-secret-file",
            secret.to_str().unwrap(),
        ];
        let mut replica = Operator::start(plane, &arguments).await;
        self.origin.clone_from(&replica.url);
        self.open_and_check("/console/sign-in").await;
        self.sign_in(&tenant.key).await;
        self.open_and_check(&format!("/console/instances/{busy}")).await;
        let new = tenant.apply("unseen", |_| {}).await;
        self.open_and_check(&format!("/console/instances/{}", new.id()))
            .await;
        // Open a page that does not refresh itself.
        self.driver.goto("about:blank").await;
        replica.stop().await;

        let mut replica = Operator::start(plane, &["api", "--delivery-log=failures"]).await;
        self.origin.clone_from(&replica.url);
        self.open_and_check("/console/events").await;
        // Open a page that does not refresh itself.
        self.driver.goto("about:blank").await;
        replica.stop().await;
    }

    async fn see_nothing_yet(&self, plane: &ControlPlane, fresh: &Tenant) {
        self.sign_in(&new_key(plane, "browser-fresh", "read")).await;
        for page in ["instances", "alerts", "events", "invoices/current"] {
            self.open_and_check(&format!("/console/{page}")).await;
        }
        self.press("Sign out").await;
        self.sign_in(&fresh.key).await;
    }

    async fn see_what_happens_seldom(&self, fresh: &Tenant) {
        let with_fault = |fault: &'static str| {
            move |instance: &mut Instance| {
                let fault = ("simulator.stellage.dev/fault".to_owned(), fault.to_owned());
                instance.metadata.annotations = Some([fault].into());
                instance.spec.monitoring_enabled = true;
            }
        };
        let broken = fresh.apply("broken", with_fault("provisioning")).await.id();
        let stuck = fresh.apply("stuck", with_fault("unreachable")).await.id();
        self.open_and_check(&format!("/console/instances/{stuck}")).await;
        self.open(&format!("/console/instances/{stuck}/plan")).await;
        self.click("[name=plan][value=business]").await;
        self.press("Resize").await;
        self.shows("This was refused").await;
        self.check("resize, refused").await;
        fresh.wait_for_state("broken", InstanceState::Error).await;
        self.open_and_check(&format!("/console/instances/{broken}")).await;

        fresh.apply("web", |_| {}).await;
        let web = fresh.wait_for_state("web", InstanceState::Running).await.id();
        let page = format!("/console/instances/{web}");
        self.open(&format!("{page}/plan")).await;
        self.click("[name=plan][value=business]").await;
        self.click("[name=when][value=later]").await;
        self.press("Resize").await;
        self.shows("with the next reboot, or stop and start").await;
        self.check("a pending plan").await;
        self.open(&format!("{page}/settings")).await;
        let others = json!({ "name": "theirs", "deletion_protection": true });
        fresh
            .call(Method::PATCH, &format!("/v1/instances/{web}"), Some(&others))
            .await;
        self.fill("name", "mine").await;
        self.press("Save").await;
        self.shows("Nothing is saved yet").await;
        self.check("settings that somebody else has changed").await;
        self.press("Save").await;
        self.shows("on: it can be neither deleted nor rebuilt").await;
        self.check("a protected instance").await;

        let accounts: Api<Account> = Api::all(fresh.kube.clone());
        for suspended in [json!({ "reason": "invoice 2026-000042 is overdue" }), Value::Null] {
            accounts
                .merge(&fresh.namespace, &json!({ "spec": { "suspended": suspended } }))
                .await;
            let shown = async || fresh.call(Method::GET, "/v1/account", None).await.json();
            eventually("the facade to know", shown, |shown| {
                shown["data"]["suspended"].is_null() == suspended.is_null()
            })
            .await;
            self.open_and_check(&page).await;
        }
    }

    async fn see_backups(&self, plane: &ControlPlane, fresh: &Tenant) {
        self.open_and_check("/console/backups?status=failed").await;
        fresh.apply("old", |_| {}).await;
        fresh.wait_for_state("old", InstanceState::Running).await;
        // Nobody else may create a daily backup.
        let operator = plane.client(Identity::Operator).await.unwrap();
        let backups: Api<Backup> = Api::namespaced(operator, &fresh.namespace);
        let daily: Backup = serde_json::from_value(json!({
            "apiVersion": "stellage.dev/v1", "kind": "Backup", "metadata": { "name": "daily" },
            "spec": { "instance": "old", "scheduledFor": "2026-11-21T10:00:00Z" },
        }))
        .unwrap();
        backups.create(&PostParams::default(), &daily).await.unwrap();
        let look = async || {
            let list = fresh
                .call(Method::GET, "/v1/backups?status=completed", None)
                .await;
            list.json()["data"][0]["id"].clone()
        };
        let id = eventually("the backup", look, Value::is_string).await;
        let instance = fresh.instances().get("old").await.unwrap().id();
        fresh
            .call(Method::DELETE, &format!("/v1/instances/{instance}"), None)
            .await;
        self.open(&format!("/console/backups/{}", id.as_str().unwrap()))
            .await;
        let look = async || {
            self.driver.refresh().await;
            self.text().await
        };
        eventually("the instance to be gone", look, |text| {
            text.contains("which is deleted")
        })
        .await;
        self.check("a daily backup of an instance that is deleted").await;
    }

    async fn see_webhooks(&self, fresh: &Tenant) {
        let slow = Receiver::start(|_| Answer::ok().after(Duration::from_mins(1))).await;
        let body = json!({ "url": slow.url("/"), "events": ["instance.created"] });
        let made = fresh.call(Method::POST, "/v1/webhooks", Some(&body)).await.json();
        let webhook = made["data"]["id"].as_str().unwrap();
        for event in ["created", "started"] {
            let path = format!("/v1/events?type=instance.{event}");
            let look = async || fresh.call(Method::GET, &path, None).await.json()["data"][0]["id"].clone();
            let event = eventually("an event", look, Value::is_string).await;
            self.open_and_check(&format!("/console/events/{}", event.as_str().unwrap()))
                .await;
        }
        self.open_and_check(&format!("/console/webhooks/{webhook}/deliveries"))
            .await;
        self.open(&format!("/console/webhooks/{webhook}")).await;
        self.press("Send test event").await;
        self.shows("None has ended yet").await;
        self.check("a delivery that is being sent").await;
    }

    async fn see_keys(&self) {
        self.open("/console/keys").await;
        let once = self
            .script("return document.querySelector('[name=once]').value")
            .await;
        self.press("Create API key").await;
        self.shows("It is not shown again").await;
        self.open("/console/keys").await;
        self.script(&format!(
            "document.querySelector('main [name=once]').value = {once}"
        ))
        .await;
        self.press("Create API key").await;
        self.shows("The key was shown before").await;
        self.check("a key that was shown before").await;
        self.open("/console/keys").await;
        let own = By::XPath("//tr[contains(., 'this session')]//a");
        self.activate("the key of this session", own).await;
        self.shows("your session ends, too").await;
        self.check("revoke the key of this session").await;
    }
}
