//! The pictures in the documentation.

use std::fs;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use reqwest::Method;
use resources::{InstanceState, Plan};
use serde_json::json;

use super::{Browser, View, images, journeys::own_operator};
use crate::support::{
    Tenant,
    receivers::{Answer, Receiver},
};

/// Larger pictures make the repository heavy.
const MAX_PICTURE: usize = 60_000;

impl Browser {
    /// Takes a picture of a page in light and in dark mode.
    async fn picture(&self, name: &str, path: &str) {
        for scheme in ["light", "dark"] {
            self.show(path, 1200, scheme).await;
            self.take(&format!("{name}-{scheme}")).await;
        }
    }

    /// The same, also as narrow as a small telephone, of a page with a terminal that asks for a login.
    async fn picture_terminal(&self, name: &str, path: &str) {
        for (suffix, width, scheme) in [
            ("light", 1200, "light"),
            ("dark", 1200, "dark"),
            ("narrow", 320, "light"),
        ] {
            self.show(path, width, scheme).await;
            self.terminal_shows("login:").await;
            self.take(&format!("{name}-{suffix}")).await;
        }
    }

    async fn show(&self, path: &str, width: u32, scheme: &'static str) {
        let height = 720;
        self.view(View {
            width,
            height,
            scheme,
        })
        .await;
        self.devtools("Emulation.setScrollbarsHidden", json!({ "hidden": true }))
            .await;
        self.open(path).await;
        self.find("main h1").await;
    }

    async fn take(&self, name: &str) {
        // WebP takes less than half the space of PNG.
        let format = json!({ "format": "webp", "quality": 80 });
        let taken = self.driver.devtools("Page.captureScreenshot", format).await;
        let picture = STANDARD.decode(taken["data"].as_str().unwrap()).unwrap();
        assert!(picture.len() < MAX_PICTURE, "{name}: {} bytes", picture.len());
        fs::write(images().join(format!("console-{name}.webp")), picture).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make screenshots"]
async fn pictures_of_the_console() {
    let (plane, mut operator, _gateway) = own_operator().await;
    let Some(browser) = Browser::start(&plane, &operator.url).await else {
        panic!("there is no browser to take pictures with");
    };
    let tenant = Tenant::on(&plane, &operator, "ada").await;
    let receiver = Receiver::start(|request| {
        if request.path.ends_with("/billing") {
            Answer::status(503).body("{\"error\":\"maintenance\"}")
        } else {
            Answer::ok()
        }
    })
    .await;
    for (path, events) in [
        (
            "/hooks/stellage",
            &["instance.created", "instance.started", "instance.stopped"][..],
        ),
        ("/hooks/billing", &["invoice.created", "instance.stopped"]),
    ] {
        let body = json!({ "url": receiver.url(path), "events": events });
        tenant.call(Method::POST, "/v1/webhooks", Some(&body)).await;
    }
    for (name, plan, region, tags) in [
        ("db-1", Plan::Performance, "de-fra-1", ["env:prod", "team:data"]),
        ("db-2", Plan::Performance, "fr-par-1", ["env:prod", "team:data"]),
        ("build", Plan::Business, "nl-ams-1", ["env:dev", "team:ci"]),
        ("web-1", Plan::Business, "fr-par-1", ["env:prod", "team:web"]),
        ("web-2", Plan::Business, "de-fra-1", ["env:prod", "team:web"]),
        ("staging", Plan::Starter, "fr-par-1", ["env:dev", "team:web"]),
    ] {
        tenant
            .apply(name, |instance| {
                instance.spec.plan = plan;
                region.clone_into(&mut instance.spec.region);
                instance.spec.tags = tags.map(str::to_owned).to_vec();
                instance.spec.monitoring_enabled = name == "web-1";
                instance.spec.backup_enabled = name.starts_with("db");
            })
            .await;
        tenant.wait_for_state(name, InstanceState::Running).await;
    }
    for (name, region) in [("backend", "fr-par-1"), ("storage", "de-fra-1")] {
        let body = json!({ "name": name, "region": region });
        tenant.call(Method::POST, "/v1/networks", Some(&body)).await;
    }
    let id = async |name: &str| tenant.instances().get(name).await.unwrap().id();
    let web = id("web-1").await;
    let body = json!({ "name": "before-upgrade" });
    tenant
        .call(Method::POST, &format!("/v1/instances/{web}/backups"), Some(&body))
        .await;
    let build = format!("/v1/instances/{}/stop", id("build").await);
    tenant.call(Method::POST, &build, None).await;
    tenant.wait_for_state("build", InstanceState::Stopped).await;
    let stuck = |instance: &mut resources::Instance| {
        let fault = (
            "simulator.stellage.dev/fault".to_owned(),
            "unreachable".to_owned(),
        );
        instance.metadata.annotations = Some([fault].into());
        instance.spec.tags = vec!["env:prod".to_owned(), "team:web".to_owned()];
    };
    tenant.apply("web-3", stuck).await;
    receiver.wait_for(10).await;
    tenant.wait_for_clear_outboxes().await;

    browser.sign_in(&tenant.key).await;
    browser.picture("instances", "/console/instances").await;
    browser
        .picture("instance", &format!("/console/instances/{web}"))
        .await;
    browser.picture("create", "/console/instances/new").await;
    browser.picture("networks", "/console/networks").await;
    browser.show("/console/networks", 320, "light").await;
    browser.take("networks-narrow").await;
    browser
        .picture_terminal("serial", &format!("/console/instances/{web}/console"))
        .await;
    browser.open("/console/webhooks").await;
    browser.press(&receiver.url("/hooks/stellage")).await;
    let webhook = browser.path().await;
    browser.picture("webhook", &webhook).await;
    browser.open(&format!("{webhook}/deliveries")).await;
    browser.click("tbody a").await;
    let delivery = browser.path().await;
    browser.picture("delivery", &delivery).await;
    browser.picture("invoice", "/console/invoices/current").await;
    browser.quit().await;
    operator.stop().await;
}
