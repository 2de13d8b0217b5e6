//! What people do in the console, from signing in to signing out.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use control_plane::{ControlPlane, free_port};
use reqwest::{Method, StatusCode};
use resources::InstanceState;
use serde_json::json;

use super::{
    Browser, TOO_WIDE, View, Way,
    webdriver::{By, Key},
};
use crate::support::{
    Operator, OwnPlane, SELLER, Tenant, eventually, gateway_url, new_key, own_plane, receiver_arguments,
    receivers::{Answer, Receiver},
    shared, start_gateway, stellage,
};

/// A control plane, and an operator with a console gateway, whose alerts fire within seconds, and whose webhooks are disabled after a minute of failures,
/// which is enough for a busy machine to do everything that comes before.
pub(super) async fn own_operator() -> (OwnPlane, Operator, Operator) {
    let plane = own_plane().await;
    let file = plane.folder().join("catalogue.yaml");
    let rules = "alerts: {interval: 1s, rules: [{name: cpu_usage_high, metric: cpu_usage, threshold: 90, for: 2s, rearmBelow: 80}]}";
    std::fs::write(&file, format!("{rules}\n{SELLER}\n")).unwrap();
    let catalogue = format!("--catalogue={}", file.display());
    let mut arguments = vec![
        "run",
        "--provisioning-seconds=1",
        "--retry-schedule=200ms,60s",
        &catalogue,
    ];
    let port = free_port().unwrap();
    let gateway = gateway_url(port);
    arguments.push(&gateway);
    let receivers = receiver_arguments(&plane);
    arguments.extend(receivers.iter().map(String::as_str));
    let operator = Operator::start(&plane, &arguments).await;
    let gateway = start_gateway(&plane, port, &[]).await;
    (plane, operator, gateway)
}

impl Tenant {
    /// Creates an instance that is monitored and busy, and waits until it is running.
    pub(super) async fn busy_instance(&self, name: &str) -> String {
        self.apply(name, |instance| {
            let cpu = ("simulator.stellage.dev/cpu".to_owned(), "95".to_owned());
            instance.metadata.annotations = Some([cpu].into());
            instance.spec.monitoring_enabled = true;
        })
        .await;
        self.wait_for_state(name, InstanceState::Running).await.id()
    }
}

impl Browser {
    pub(super) async fn sign_in(&self, key: &str) {
        self.open("/console/sign-in").await;
        self.fill("key", key).await;
        self.press("Sign in").await;
        self.arrives("/console/instances").await;
    }

    /// Waits until the badge beside the heading says this.
    pub(super) async fn becomes(&self, status: &str) {
        let what = format!("{status} at {}", self.path().await);
        self.waits_for_badge(&what, ".title .badge", status).await;
    }

    /// Waits until a badge says this. Without scripts, the page must be reloaded for that.
    async fn waits_for_badge(&self, what: &str, css: &str, status: &str) {
        let script = format!("return document.querySelector('{css}')?.innerText ?? document.body.innerText");
        let look = async || {
            if self.way == Way::WithoutScripts {
                self.driver.refresh().await;
            }
            self.script(&script).await
        };
        eventually(what, look, |badge| badge == status).await;
    }

    /// Reloads the page until it has an element.
    async fn reloads_until(&self, css: &str) {
        let look = async || {
            self.driver.refresh().await;
            self.has(css).await
        };
        eventually(css, look, |has| *has).await;
    }

    /// Waits until the terminal shows this.
    pub(super) async fn terminal_shows(&self, text: &str) {
        let rows = "return document.querySelector('.xterm-rows')?.innerText ?? document.body.innerText";
        let shown = async || {
            let shown = self.script(rows).await;
            // Blanks at the end of cells are no-break spaces.
            shown.as_str().unwrap_or_default().replace('\u{a0}', " ")
        };
        eventually(text, shown, |shown| shown.contains(text)).await;
    }

    /// Logs in at the serial console of a stopped instance, which it starts for that, and stops again.
    async fn use_the_console(&self, instance: &str) {
        if self.way == Way::WithoutScripts {
            self.open(&format!("{instance}/console")).await;
            self.shows("The console needs JavaScript").await;
            return self.open(instance).await;
        }
        self.click("#power-start").await;
        self.becomes("running").await;
        self.click("#to-console").await;
        self.becomes("connected").await;
        self.terminal_shows("login:").await;
        self.type_text("ada").await;
        self.key(Key::Enter).await;
        self.terminal_shows("ada@web-1").await;
        self.type_text("uname -r").await;
        self.key(Key::Enter).await;
        self.terminal_shows("6.12.0-simulated\n").await;
        self.check("the serial console").await;
        // The way out of the terminal, for whoever has only a keyboard.
        self.script("document.querySelector('.xterm-helper-textarea').dispatchEvent(new KeyboardEvent('keydown', { code: 'BracketRight', key: ']', ctrlKey: true, bubbles: true, cancelable: true }))")
            .await;
        let focused = async || {
            self.script("return document.activeElement.textContent.trim()")
                .await
        };
        eventually("the focus", focused, |focused| focused == "Reconnect").await;
        self.key(Key::Enter).await;
        self.terminal_shows("connected again").await;
        self.becomes("connected").await;
        self.check("the serial console, opened again").await;
        self.open(instance).await;
        self.click("#power-poweroff").await;
        self.press("Cut power").await;
        self.becomes("stopped").await;
    }

    async fn operate_an_instance(&self) {
        self.shows("There are no instances yet").await;
        self.check("no instances").await;
        self.press("New instance").await;
        self.check("new instance").await;
        self.fill("tags", "env:prod, no way!").await;
        self.press("Create instance").await;
        self.shows("Some fields need another value").await;
        self.check("new instance, refused").await;
        self.fill("name", "web-1").await;
        self.fill("tags", "env:prod").await;
        self.press("Create instance").await;
        self.shows("is being created").await;
        self.check("an instance that is being created").await;
        self.becomes("running").await;
        for (button, status) in [
            ("#power-stop", "stopped"),
            ("#power-start", "running"),
            ("#power-reboot", "running"),
            ("#power-poweroff", "stopped"),
        ] {
            self.click(button).await;
            if button == "#power-poweroff" {
                self.shows("Like pulling the plug").await;
                self.check("cut power").await;
                self.press("Cut power").await;
            }
            self.find("[role=status]").await;
            self.becomes(status).await;
        }
        self.check("a stopped instance").await;
        let instance = self.path().await;
        self.use_the_console(&instance).await;

        self.click("#to-plan").await;
        self.check("resize").await;
        self.click("[name=plan][value=business]").await;
        self.press("Resize").await;
        self.becomes("stopped").await;
        self.shows("business: 2 vCPU").await;
        self.click("#power-start").await;
        self.becomes("running").await;

        self.click("#to-settings").await;
        self.check("settings").await;
        self.click("#deletion_protection").await;
        self.click("#monitoring_enabled").await;
        self.press("Save").await;
        self.shows("The changes are saved").await;
        self.check("a monitored instance").await;
        self.click("#to-delete").await;
        self.shows("It is protected").await;
        self.check("delete, protected").await;
        self.open(&format!("{instance}/settings")).await;
        self.click("#deletion_protection").await;
        self.press("Save").await;

        self.click("#to-backup").await;
        self.check("back up").await;
        self.fill("name", "before").await;
        self.press("Back up").await;
        self.waits_for_badge("the backup", "[id^=backup-] .badge", "completed")
            .await;
        self.check("an instance with a backup").await;
        self.click("#to-rebuild").await;
        self.check("rebuild").await;
        self.choose("install", "ubuntu-22.04").await;
        self.press("Continue").await;
        self.check("rebuild, to confirm").await;
        self.fill("confirm", "web").await;
        self.press("Install ubuntu-22.04").await;
        self.shows("must be web-1").await;
        // The summary has the focus.
        let focused = "return document.activeElement.role ?? document.activeElement.outerHTML";
        let look = async || self.script(focused).await;
        eventually("the focus", look, |role| *role == "alert").await;
        self.check("rebuild, refused").await;
        self.fill("confirm", "web-1").await;
        self.press("Install ubuntu-22.04").await;
        self.shows("is being reinstalled from ubuntu-22.04").await;
        self.becomes("running").await;
        if self.way != Way::WithoutScripts {
            // The notice about the operation in progress is gone, and nothing has moved into its place.
            self.find("#note.over").await;
        }

        self.open("/console/instances").await;
        self.check("instances").await;
        self.choose("status", "stopped").await;
        self.press("Filter").await;
        self.shows("No instance matches").await;
        self.check("no matching instance").await;
        self.press("Clear").await;
        self.press("env:prod").await;
        self.arrives("/console/instances?tag=env%3Aprod").await;
        self.shows("1 in all").await;
    }

    async fn use_backups(&self) {
        self.open("/console/backups").await;
        self.check("backups").await;
        self.press("before").await;
        self.check("a backup").await;
        self.press("New instance…").await;
        self.check("new instance from a backup").await;
        self.fill("name", "copy").await;
        self.press("Create instance").await;
        self.becomes("running").await;
        self.open("/console/backups").await;
        self.press("Delete…").await;
        self.check("delete a backup").await;
        self.press("Delete backup").await;
        self.shows("The backup is deleted").await;
        self.check("no backups").await;
    }

    /// Creates a webhook and makes it fail; returns its page. `works` says whether the receiver accepts what
    /// it gets.
    async fn use_webhooks(&self, receiver: &Receiver, works: &AtomicBool) -> String {
        self.open("/console/webhooks").await;
        self.check("no webhooks").await;
        self.press("New webhook").await;
        self.check("new webhook").await;
        self.fill("url", "http://a.example/").await;
        self.press("Create webhook").await;
        self.shows("Some fields need another value").await;
        self.check("new webhook, refused").await;
        self.fill("url", &receiver.url("/hook")).await;
        self.click("#event-instance\\.started").await;
        self.click("#event-instance\\.stopped").await;
        self.press("Create webhook").await;
        self.shows("It is not shown again").await;
        self.check("a new secret").await;
        self.press("To the webhook").await;
        let webhook = self.path().await;
        self.check("a new webhook").await;
        self.choose("type", "instance.stopped").await;
        self.press("Send test event").await;
        self.becomes("delivered").await;
        self.check("a test delivery").await;

        self.open(&webhook).await;
        self.click("#to-secret").await;
        self.check("rotate the secret").await;
        self.press("Rotate").await;
        self.shows("To the webhook").await;
        self.check("a rotated secret").await;
        self.press("To the webhook").await;
        self.press("Switch off…").await;
        self.check("switch off").await;
        self.press("Switch off").await;
        self.shows("The webhook is off").await;
        self.check("a webhook that is off").await;
        self.press("Switch on").await;
        self.shows("The webhook is on").await;
        self.click("#to-edit").await;
        self.check("change a webhook").await;
        self.click("#event-instance\\.created").await;
        self.press("Save").await;
        self.shows("The changes are saved").await;

        works.store(false, Ordering::Relaxed);
        self.operate("copy", "#power-stop", "stopped").await;
        self.open(&webhook).await;
        self.reloads_until("#retry").await;
        // Before the check, which may last until nothing is pending any more.
        self.click("#retry").await;
        self.shows("is being sent now").await;
        self.check("a failing webhook").await;
        webhook
    }

    /// The steps after a receiver has failed until its webhook was disabled.
    async fn repair_a_webhook(&self, webhook: &str, receiver: &Receiver, works: &AtomicBool) {
        self.open(webhook).await;
        self.reloads_until(".alert.bad a").await;
        self.operate("copy", "#power-start", "running").await;
        self.open(webhook).await;
        self.shows("It has been disabled since").await;
        self.shows("That delivery is not held; step 3 sends it again")
            .await;
        self.check("a disabled webhook").await;
        self.open("/console/webhooks").await;
        self.check("webhooks").await;
        self.open(&format!("{webhook}/deliveries?status=exhausted")).await;
        self.check("exhausted deliveries").await;
        self.click("tbody a").await;
        self.becomes("exhausted").await;
        self.check("an exhausted delivery").await;
        let delivery = self.path().await;

        works.store(true, Ordering::Relaxed);
        let before = receiver.count();
        self.open(webhook).await;
        self.click("#switch-on").await;
        self.shows("The webhook is enabled").await;
        receiver.wait_for(before + 1).await;
        self.open(&delivery).await;
        self.press("Send again").await;
        self.becomes("delivered").await;
        self.check("a delivery that was sent again").await;
        self.open(webhook).await;
        self.click("#to-resend").await;
        self.check("resend").await;
        self.press("Send again").await;
        self.shows("There are no deliveries to send again").await;
        self.open(&format!("{webhook}/deliveries?event_type=backup.failed"))
            .await;
        self.check("no matching delivery").await;
        self.click(".crumbs a:last-child").await;
        self.click("#to-verify").await;
        self.check("how to verify").await;
        self.open(webhook).await;
        self.click("#to-delete").await;
        self.check("delete a webhook").await;
        self.press("Delete webhook").await;
        self.shows("The webhook is deleted").await;
    }

    /// Presses a button on the page of an instance, found by its name.
    async fn operate(&self, name: &str, button: &str, status: &str) {
        self.open("/console/instances").await;
        self.press(name).await;
        self.click(button).await;
        self.becomes(status).await;
    }

    async fn read_on(&self, tenant: &Tenant, busy: &str) {
        self.open("/console/events").await;
        self.reloads_until("tbody a").await;
        self.check("events").await;
        self.click("tbody a").await;
        self.check("an event").await;
        self.open("/console/events?since=2100-01-01T00%3A00").await;
        self.shows("No event of the last 24 hours matches").await;
        self.check("no matching event").await;

        self.open("/console/alerts?status=ended").await;
        self.shows("No alert matches").await;
        self.check("no matching alert").await;
        self.open("/console/alerts").await;
        self.reloads_until("tbody a").await;
        self.check("alerts").await;
        self.open(&format!("/console/instances/{busy}")).await;
        self.reloads_until("svg path[d*=M]").await;
        self.check("a busy instance").await;
        self.press("Last day").await;
        self.shows("CPU").await;
        self.check("a busy instance, a day").await;

        self.open("/console/invoices").await;
        self.check("no invoices").await;
        self.open("/console/invoices/current").await;
        self.check("the open invoice").await;
        tenant.close_now().await;
        tenant.wait_for_invoices(1).await;
        self.open("/console/invoices").await;
        self.reloads_until("tbody a").await;
        self.check("invoices").await;
        self.click("tbody a").await;
        self.check("an invoice").await;
        let invoice = self.path().await;
        self.press("Print").await;
        self.shows("Total").await;
        self.check("an invoice to print").await;
        if self.way == Way::Mouse {
            self.print(&invoice).await;
        }
    }

    /// The invoice as a table and on paper.
    async fn print(&self, invoice: &str) {
        for part in ["Buyer", "Number", "Period", "Issued", "Due"] {
            self.shows(part).await;
        }
        // As wide as A4 between its margins.
        let page = json!({ "width": 657, "height": 987, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", page).await;
        self.devtools("Emulation.setEmulatedMedia", json!({ "media": "print" }))
            .await;
        assert_eq!(self.script(TOO_WIDE).await, json!([]));
        self.shows("Total").await;
        let printed = self.driver.devtools("Page.printToPDF", json!({})).await;
        let printed = STANDARD.decode(printed["data"].as_str().unwrap()).unwrap();
        assert!(printed.starts_with(b"%PDF"));
        self.view(View::WIDE).await;
        self.open(invoice).await;
        let (status, kind, text) = self.fetch("GET", &format!("{invoice}/csv")).await;
        assert!(status == 200 && kind.starts_with("text/csv"), "{status} {kind}");
        assert!(
            text.starts_with("number,period_from,") && text.contains("web-1"),
            "{text}"
        );
        self.open(&format!("{invoice}?page=9")).await;
        self.check("no more lines").await;
    }

    async fn make_a_network(&self) {
        self.open("/console/networks").await;
        self.check("private networks, none").await;
        self.fill("prefix", "10.0.0.0/8").await;
        self.press("Create private network").await;
        self.check("private networks, refused").await;
        self.fill("prefix", "10.128.4.0/24").await;
        self.press("Create private network").await;
        self.shows("The private network is created").await;
        self.check("private networks").await;
        self.click("a[id^='rename-']").await;
        self.check("rename a private network").await;
        self.fill("name", "-").await;
        self.press("Save").await;
        self.check("rename a private network, refused").await;
        self.fill("name", "backend").await;
        self.press("Save").await;
        self.shows("The new name is saved").await;
    }

    async fn delete_the_network(&self, tenant: &Tenant) {
        let networks = tenant.call(Method::GET, "/v1/networks", None).await.json();
        let network = networks["data"][0]["id"].as_str().unwrap().to_owned();
        let inside = tenant
            .apply("inside", |instance| {
                instance.spec.private_network = Some(network.clone());
            })
            .await;
        self.open("/console/networks").await;
        self.click("td[data-label='Instances'] a").await;
        self.check("instances of a network").await;
        let inside_is_alone = format!(
            "return document.querySelectorAll('tbody tr').length === 1 && !!document.getElementById('row-{}')",
            inside.id()
        );
        assert_eq!(self.script(&inside_is_alone).await, true);
        self.fill("private_network", "pn-000000000000").await;
        self.press("Filter").await;
        self.shows("No instance matches these filters").await;
        self.open("/console/networks").await;
        self.click("a[id^='delete-']").await;
        self.shows("Instances are in it").await;
        self.press("Delete private network").await;
        self.shows("delete it first").await;
        self.check("delete a private network, refused").await;
        let path = format!("/v1/instances/{}", inside.id());
        tenant.call(Method::DELETE, &path, None).await;
        let left = async || tenant.call(Method::GET, &path, None).await.status;
        eventually("the instance to be gone", left, |left| {
            *left == StatusCode::NOT_FOUND
        })
        .await;
        self.open("/console/networks").await;
        self.click("a[id^='delete-']").await;
        self.check("delete a private network").await;
        self.press("Delete private network").await;
        self.shows("The private network is deleted").await;
    }

    async fn manage_keys(&self) {
        self.open("/console/keys").await;
        self.check("keys").await;
        self.fill("days", "many").await;
        self.press("Create API key").await;
        self.shows("must be a number of days").await;
        self.check("keys, refused").await;
        self.fill("days", "30").await;
        self.press("Create API key").await;
        self.shows("It is not shown again").await;
        self.check("a new key").await;
        let id = self.find("dl code").await.text().await;
        self.press("To the API keys").await;
        self.click(&format!("a[href='/console/keys/{id}/revoke']")).await;
        self.check("revoke a key").await;
        self.press("Revoke").await;
        self.shows("is revoked").await;
        self.open("/console/account").await;
        self.shows("Manual backups").await;
        self.check("account").await;
    }
}

/// The operations of the API, as `METHOD /path/{id}`.
fn operations() -> BTreeSet<String> {
    let list = include_str!("../../crates/server/src/facade/openapi/operations.txt").lines();
    let operations = list.filter(|line| line.contains(" /v1/") && !line.starts_with(' '));
    // The document itself is for programs.
    operations
        .filter(|line| !line.ends_with("/v1/openapi.json"))
        .map(str::to_owned)
        .collect()
}

/// Does everything that the API can do, from the first page after signing in to signing out; returns the id of a busy
/// instance.
async fn do_everything(browser: &Browser, tenant: &Tenant) -> String {
    let works = Arc::new(AtomicBool::new(true));
    let answers = works.clone();
    let receiver = Receiver::start(move |_| {
        if answers.load(Ordering::Relaxed) {
            Answer::ok()
        } else {
            Answer::status(500).body("<b>not today</b>")
        }
    })
    .await;
    browser.operate_an_instance().await;
    browser.use_backups().await;
    let busy = tenant.busy_instance("busy").await;
    let webhook = browser.use_webhooks(&receiver, &works).await;
    browser.read_on(tenant, &busy).await;
    browser.manage_keys().await;
    browser.make_a_network().await;
    browser.delete_the_network(tenant).await;
    browser.repair_a_webhook(&webhook, &receiver, &works).await;

    browser.open("/console/instances").await;
    browser.press("web-1").await;
    browser.click("#to-delete").await;
    browser.check("delete an instance").await;
    browser.fill("confirm", "web").await;
    browser.press("Delete instance").await;
    browser.shows("must be web-1").await;
    browser.check("delete an instance, refused").await;
    browser.fill("confirm", "web-1").await;
    browser.press("Delete instance").await;
    browser.shows("web-1 is deleted").await;
    browser.open("/console").await;
    browser.press("Sign out").await;
    browser.shows("You have signed out").await;
    browser.check("signed out").await;
    busy
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_the_api_does_is_done_in_the_console_and_all_that_pages_can_say_is_checked() {
    let (plane, mut operator, _gateway) = own_operator().await;
    let Some(mut browser) = Browser::start(&plane, &operator.url).await else {
        operator.stop().await;
        return;
    };
    let tenant = Tenant::on(&plane, &operator, "browser").await;
    browser.open("/console").await;
    browser.arrives("/console/sign-in").await;
    browser.check("sign in").await;
    browser.fill("key", "stl_wrong").await;
    browser.press("Sign in").await;
    browser.shows("The API key is not valid").await;
    browser.check("sign in, refused").await;
    browser.fill("key", &tenant.key).await;
    browser.press("Sign in").await;
    browser.arrives("/console/instances").await;
    browser.open("/console/nothing").await;
    browser.check("no such page").await;
    browser.open("/console/instances").await;
    let busy = do_everything(&browser, &tenant).await;

    // Nobody else has called this operator, except for the plans.
    let metrics = reqwest::get(format!("{}/metrics", operator.metrics_url))
        .await
        .unwrap();
    let metrics = metrics.text().await.unwrap();
    let not_done: Vec<_> = operations()
        .into_iter()
        .filter(|operation| {
            let (method, route) = operation.split_once(' ').unwrap();
            let label = format!("method=\"{method}\",route=\"{route}\",status=\"20");
            !metrics.contains(&label)
        })
        .collect();
    assert!(not_done.is_empty(), "not done in the console: {not_done:#?}");

    browser.see_the_rest(&plane, operator, &tenant, &busy).await;
    browser.has_checked_everything();
    browser.quit().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_done_without_javascript() {
    let (plane, mut operator, _gateway) = own_operator().await;
    let Some(browser) = Browser::start(&plane, &operator.url).await else {
        operator.stop().await;
        return;
    };
    let browser = browser.using(Way::WithoutScripts).await;
    let tenant = Tenant::on(&plane, &operator, "browser-plain").await;
    let link = link_of(&plane, &tenant, "browser-plain");
    browser.open(&link).await;
    assert_eq!(browser.script("return typeof htmx").await, "undefined");
    browser.press("Sign in").await;
    browser.arrives("/console/instances").await;
    // It works only once.
    browser.open(&link).await;
    browser.press("Sign in").await;
    browser.shows("has been used already").await;
    browser.open("/console/instances").await;
    do_everything(&browser, &tenant).await;
    browser.quit().await;
    operator.stop().await;
}

/// The path of a new sign-in link.
pub(super) fn link_of(plane: &ControlPlane, tenant: &Tenant, account: &str) -> String {
    let arguments = format!(
        "console link --account {account} --url {} --output json",
        tenant.url
    );
    let link: serde_json::Value = serde_json::from_str(&stellage(plane, &arguments).unwrap()).unwrap();
    link["url"]
        .as_str()
        .unwrap()
        .strip_prefix(&tenant.url)
        .unwrap()
        .to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_done_with_the_keyboard_alone() {
    let (plane, mut operator, _gateway) = own_operator().await;
    let Some(browser) = Browser::start(&plane, &operator.url).await else {
        operator.stop().await;
        return;
    };
    let browser = browser.using(Way::Keyboard).await;
    let tenant = Tenant::on(&plane, &operator, "browser-keys").await;
    // The field has the focus.
    browser.open("/console/sign-in").await;
    browser.find("#key:focus").await;
    browser.type_text(&tenant.key).await;
    browser.key(Key::Enter).await;
    browser.arrives("/console/instances").await;
    // Skips the navigation directly.
    browser
        .tab_to("the link past the navigation", By::Css(".skip"))
        .await;
    browser.key(Key::Enter).await;
    browser.key(Key::Tab).await;
    browser.find("a[href='/console/instances/new']:focus").await;
    do_everything(&browser, &tenant).await;
    browser.quit().await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_may_only_read_see_pages_without_buttons() {
    let cluster = shared().await;
    let Some(browser) = Browser::start(cluster.plane, &cluster.operator.url).await else {
        return;
    };
    let tenant = Tenant::new("browser-read").await;
    let read_key = new_key(cluster.plane, "browser-read", "read");
    tenant.apply("db-1", |_| {}).await;
    let id = tenant.wait_for_state("db-1", InstanceState::Running).await.id();
    browser.sign_in(&read_key).await;
    browser.check("instances, to look at").await;
    browser.open(&format!("/console/instances/{id}")).await;
    browser.check("an instance, to look at").await;
    browser.open(&format!("/console/instances/{id}/plan")).await;
    browser.shows("token_readonly").await;
    browser.check("not allowed").await;
    browser.quit().await;
}

/// The first time of the page: as it is shown, its title, and both as they should be for a reader in Japan.
const TIME_IN_JAPAN: &str = "const time = document.querySelector('main time'), at = new Date(time.dateTime);\
     const zone = { timeZone: 'Asia/Tokyo', year: 'numeric', month: 'short', day: '2-digit', hour: '2-digit', minute: '2-digit', second: '2-digit' };\
     return [time.textContent, time.title, new Intl.DateTimeFormat(undefined, zone).format(at), at.toISOString().replace('T', ' ').slice(0, 19) + ' UTC'];";

#[tokio::test(flavor = "multi_thread")]
async fn times_are_in_the_zone_of_the_reader_with_the_utc_in_their_title() {
    let cluster = shared().await;
    let Some(browser) = Browser::start(cluster.plane, &cluster.operator.url).await else {
        return;
    };
    let tenant = Tenant::new("browser-zone").await;
    tenant.apply("web-1", |_| {}).await;
    let japan = json!({ "timezoneId": "Asia/Tokyo" });
    browser.devtools("Emulation.setTimezoneOverride", japan).await;
    browser.sign_in(&tenant.key).await;
    for page in ["/console/instances", "/console/account"] {
        browser.open(page).await;
        let look = async || browser.script(TIME_IN_JAPAN).await;
        let time = eventually("the time", look, |time| time[0] == time[2]).await;
        assert_eq!(time[1], time[3], "{page}");
        assert_ne!(time[0], time[1], "{page}");
    }
    browser.quit().await;
}

/// Records how far the page jumps, once it has been painted: by then its script has put the times into the zone of the reader.
const WATCH_SHIFTS: &str = "window.shifts = []; requestAnimationFrame(() => requestAnimationFrame(() => { \
     new PerformanceObserver((list) => { for (const e of list.getEntries()) window.shifts.push(e.value); }).observe({ type: 'layout-shift', buffered: false }); \
     document.addEventListener('htmx:after:swap', () => { window.swaps = (window.swaps ?? 0) + 1; }); }));";

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_refreshes_itself_does_not_jump_and_ends_with_its_key() {
    let cluster = shared().await;
    let Some(browser) = Browser::start(cluster.plane, &cluster.operator.url).await else {
        return;
    };
    let tenant = Tenant::new("browser-refresh").await;
    for name in ["web-1", "web-2"] {
        tenant
            .apply(name, |instance| {
                let fault = (
                    "simulator.stellage.dev/fault".to_owned(),
                    "unreachable".to_owned(),
                );
                instance.metadata.annotations = Some([fault].into());
            })
            .await;
    }
    let ids: Vec<String> = tenant
        .all_instances()
        .await
        .iter()
        .map(resources::Instance::id)
        .collect();
    browser.sign_in(&tenant.key).await;
    for path in [
        "/console/instances".to_owned(),
        format!("/console/instances/{}", ids[0]),
    ] {
        browser.open(&path).await;
        let link = if path.ends_with("instances") {
            format!("#link-{}", ids[1])
        } else {
            "#to-settings".to_owned()
        };
        browser.find("#refresh").await;
        browser.script(WATCH_SHIFTS).await;
        browser
            .script(&format!("document.querySelector('{link}').focus()"))
            .await;
        let swaps = async || browser.script("return window.swaps ?? 0").await.as_u64().unwrap();
        eventually("refreshes", swaps, |swaps| *swaps >= 2).await;
        browser.find(&format!("{link}:focus")).await;
        assert_eq!(
            browser.script("return window.shifts").await,
            json!([]),
            "{path} jumps"
        );
        browser.check("a page that refreshes itself").await;
    }

    let begun = std::time::Instant::now();
    for key in tenant.call(reqwest::Method::GET, "/v1/keys", None).await.json()["data"]
        .as_array()
        .unwrap()
    {
        let path = format!("/v1/keys/{}", key["id"].as_str().unwrap());
        tenant.call(reqwest::Method::DELETE, &path, None).await;
    }
    browser.arrives("/console/sign-in?ended=1").await;
    let took = begun.elapsed();
    // The key is refused within a second; the page asks every two.
    assert!(took.as_secs() < 60, "it took {took:?}");
    browser.shows("Your session has ended").await;
    browser.check("a session that has ended").await;
    browser.quit().await;
}

/// Counts refreshes, and requests for them that were not held back.
const COUNT_REFRESHES: &str = "window.swaps = 0; window.asked = 0; document.addEventListener('htmx:after:swap', () => { window.swaps += 1; });\
     document.addEventListener('htmx:before:request', (e) => { if (!e.defaultPrevented) window.asked += 1; });";
/// Makes an open page refresh itself now.
const WAKE: &str = "document.getElementById('refresh').dispatchEvent(new Event('wake'))";

#[tokio::test(flavor = "multi_thread")]
async fn an_open_page_notices_what_others_do_and_reads_nothing_while_it_is_not_seen() {
    let cluster = shared().await;
    let Some(browser) = Browser::start(cluster.plane, &cluster.operator.url).await else {
        return;
    };
    let tenant = Tenant::new("browser-open").await;
    tenant.apply("web-1", |_| {}).await;
    let id = tenant.wait_for_state("web-1", InstanceState::Running).await.id();
    browser.sign_in(&tenant.key).await;
    browser.open(&format!("/console/instances/{id}")).await;
    browser.becomes("running").await;
    browser.script(COUNT_REFRESHES).await;
    let stop = format!("/v1/instances/{id}/stop");
    tenant.call(reqwest::Method::POST, &stop, None).await;
    // The page was not reloaded, and nobody has used it.
    browser.becomes("stopped").await;
    browser.find("#power-start").await;
    browser.shows("instance.stopped").await;
    assert!(browser.script("return window.swaps").await.as_u64() > Some(0));

    browser
        .script("Object.defineProperty(document, 'hidden', { configurable: true, get: () => true })")
        .await;
    browser.script("window.asked = 0").await;
    browser.script(WAKE).await;
    assert_eq!(browser.script("return window.asked").await, json!(0));
    browser
        .script("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        .await;
    let asked = async || browser.script("return window.asked").await.as_u64();
    eventually("a refresh", asked, |asked| *asked > Some(0)).await;

    browser.click("#copy-instance-id").await;
    let copied = async || browser.find("#copy-instance-id").await.text().await;
    eventually("the id to be copied", copied, |text| text == "Copied").await;

    let gone = format!("/v1/instances/{id}");
    tenant.call(reqwest::Method::DELETE, &gone, None).await;
    browser.script(WAKE).await;
    browser.shows("There is nothing here").await;
    browser.press("To the instances").await;
    browser.arrives("/console/instances").await;

    // A choice made in the meantime is kept.
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let body = json!({ "url": receiver.url("/"), "events": ["instance.created", "instance.deleted"] });
    let made = tenant
        .call(reqwest::Method::POST, "/v1/webhooks", Some(&body))
        .await
        .json();
    let webhook = made["data"]["id"].as_str().unwrap();
    browser.open(&format!("/console/webhooks/{webhook}")).await;
    browser.choose("type", "instance.deleted").await;
    browser.script(COUNT_REFRESHES).await;
    browser.script(WAKE).await;
    let swaps = async || browser.script("return window.swaps").await.as_u64();
    eventually("a refresh", swaps, |swaps| *swaps > Some(0)).await;
    assert_eq!(
        browser
            .script("return document.getElementById('test-type').value")
            .await,
        json!("instance.deleted")
    );
    browser.quit().await;
}
