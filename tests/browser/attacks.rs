//! What others cannot do.

use axum::{Router, response::Html, routing::get};
use serde_json::json;
use tokio::net::TcpListener;

use super::Browser;
use crate::support::{
    Tenant,
    receivers::{Answer, Receiver},
    shared,
};

/// A page on somebody else's site; returns its port.
async fn other_site(page: String) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = Router::new().route("/", get(async move || Html(page)));
    tokio::spawn(async move { axum::serve(listener, router).await });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn other_sites_and_other_accounts_get_nothing() {
    let cluster = shared().await;
    let url = &cluster.operator.url;
    let Some(browser) = Browser::start(cluster.plane, url).await else {
        return;
    };
    let mine = Tenant::new("browser-victim").await;
    let theirs = Tenant::new("browser-others").await;
    mine.apply("web-1", |_| {}).await;
    let id = mine.instances().get("web-1").await.unwrap().id();
    theirs.apply("secret", |_| {}).await;
    let their_id = theirs.instances().get("secret").await.unwrap().id();
    browser.sign_in(&mine.key).await;
    browser.press("web-1").await;
    browser.becomes("running").await;

    for page in ["", "/plan", "/rebuild", "/settings", "/backup", "/delete"] {
        browser
            .open(&format!("/console/instances/{their_id}{page}"))
            .await;
        browser.shows("There is nothing here").await;
    }
    browser.check("nothing here").await;

    let attack = format!(
        "<!DOCTYPE html><form method=post action='{url}/console/instances/{id}/delete'><input name=confirm value=web-1><button>Win</button></form>\
         <iframe src='{url}/console/instances'></iframe>"
    );
    let port = other_site(attack).await;
    // The second has the same host as the console, so the browser sends its cookies along.
    for host in ["localhost", "127.0.0.1"] {
        let evil = format!("http://{host}:{port}/");
        browser.driver.goto(&evil).await;
        let read = format!(
            "const done = arguments[0]; fetch('{url}/console/instances', {{ credentials: 'include', mode: 'no-cors' }}).then(() => done('read'), () => done('refused'))"
        );
        let read = browser.driver.execute_async(&read, &[]).await;
        assert_eq!(read, json!("refused"), "{host}");
        let complaints = browser.complaints().await.join("\n");
        assert!(complaints.contains("frame-ancestors"), "{host}: {complaints}");
        browser.press("Win").await;
        browser.shows("comes from another site").await;
    }
    // None of this has ended the session or affected the instance.
    browser.open(&format!("/console/instances/{id}")).await;
    browser.becomes("running").await;

    // What a receiver answers is shown as text.
    let answer = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>";
    let receiver = Receiver::start(move |_| Answer::status(500).body(answer)).await;
    browser.open("/console/webhooks/new").await;
    browser.fill("url", &receiver.url("/?a=%3Cscript%3E")).await;
    browser.click("#event-instance\\.started").await;
    browser.press("Create webhook").await;
    browser.press("To the webhook").await;
    browser.press("Send test event").await;
    browser.shows(answer).await;
    assert_eq!(browser.script("return typeof window.hacked").await, "undefined");
    browser.check("an answer with scripts").await;
    browser.quit().await;
}
