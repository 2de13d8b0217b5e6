//! The consoles of servers: tickets from the REST API, and the gateway that takes them, with simulated servers.

use std::{
    io::Write as _,
    process::{Command, Stdio},
    time::Duration,
};

use control_plane::{ControlPlane, free_port};
use futures::{SinkExt as _, StreamExt as _};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::events::v1::Event;
use kube::{Api, api::ListParams};
use reqwest::{Method, header};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        handshake::client::generate_key,
        protocol::{Message, Role},
    },
};

use crate::{
    facade::{
        contract::{code, expect, fields},
        create, wait_for,
    },
    support::{
        Operator, PATIENCE, STELLAGE, Tenant, eventually, new_key, remember_secret, shared, start_gateway,
    },
};

/// A request without a body.
async fn ask(tenant: &Tenant, status: u16, method: Method, path: &str) {
    expect(tenant, status, method, path, None, &[]).await;
}

/// An open console.
pub struct Console(WebSocketStream<reqwest::Upgraded>);

impl Console {
    /// Opens a console with a ticket; otherwise the status and the answer.
    pub async fn open(url: &str) -> Result<Self, (u16, Value)> {
        let client = reqwest::Client::builder().http1_only().build().unwrap();
        let answer = client
            .get(url.replacen("ws", "http", 1))
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, generate_key())
            .send()
            .await
            .unwrap();
        if answer.status().as_u16() != 101 {
            return Err((answer.status().as_u16(), answer.json().await.unwrap()));
        }
        let stream = answer.upgrade().await.unwrap();
        Ok(Self(
            WebSocketStream::from_raw_socket(stream, Role::Client, None).await,
        ))
    }

    pub async fn types(&mut self, text: &str) {
        self.0
            .send(Message::Binary(text.as_bytes().to_vec().into()))
            .await
            .unwrap();
    }

    /// Waits until this was shown; returns all that was shown since the last call.
    pub async fn shows(&mut self, text: &str) -> String {
        let mut shown = Vec::new();
        let reading = async {
            while !String::from_utf8_lossy(&shown).contains(text) {
                match self.0.next().await {
                    Some(Ok(Message::Binary(bytes))) => shown.extend_from_slice(&bytes),
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    other => panic!("{text:?} was not shown, but {other:?}"),
                }
            }
        };
        timeout(PATIENCE, reading).await.unwrap();
        String::from_utf8(shown).unwrap()
    }

    /// Ends it as RFC 6455 says, and waits for the answer to that.
    pub async fn leave(&mut self) {
        self.0.close(None).await.unwrap();
        let leaving = async {
            while let Some(message) = self.0.next().await {
                if matches!(message.unwrap(), Message::Close(_)) {
                    return;
                }
            }
            panic!("the close was not answered");
        };
        timeout(PATIENCE, leaving).await.unwrap();
    }

    /// Waits for its end: the code, and the reason.
    pub async fn ends(&mut self) -> (u16, String) {
        let ending = async {
            loop {
                match self.0.next().await {
                    Some(Ok(Message::Close(Some(frame)))) => {
                        break (frame.code.into(), frame.reason.to_string());
                    }
                    Some(Ok(_)) => {}
                    other => panic!("it did not say why it ends: {other:?}"),
                }
            }
        };
        timeout(PATIENCE, ending).await.unwrap()
    }
}

/// Asks for a ticket.
pub async fn ticket(tenant: &Tenant, id: &str, r#type: &str) -> String {
    let body = json!({ "type": r#type });
    let path = format!("/v1/instances/{id}/console");
    let answer = tenant.post(201, &path, &body).await;
    let data = &answer.json()["data"];
    assert_eq!(data["type"], r#type);
    let url = data["url"].as_str().unwrap().to_owned();
    remember_secret(url.split_once("token=").unwrap().1);
    url
}

async fn serial(tenant: &Tenant, id: &str) -> Console {
    Console::open(&ticket(tenant, id, "serial").await).await.unwrap()
}

async fn running(tenant: &Tenant) -> String {
    let id = create(tenant, "web").await;
    wait_for(tenant, &id, "running").await;
    id
}

/// The account with another key, and the key's id.
async fn with_new_key(tenant: &Tenant) -> (Tenant, String) {
    let body = json!({ "name": "laptop" });
    let made = tenant.post(201, "/v1/keys", &body).await;
    let key = &made.json()["data"];
    let other = Tenant {
        namespace: tenant.namespace.clone(),
        key: key["key"].as_str().unwrap().to_owned(),
        kube: tenant.kube.clone(),
        url: tenant.url.clone(),
        http: tenant.http.clone(),
    };
    (other, key["id"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_opens_the_serial_line_once_and_the_log_says_who_did_but_not_what() {
    const TYPED: &str = "hunter2-in-the-line";
    let tenant = Tenant::new("console-once").await;
    let id = running(&tenant).await;
    let regions = tenant.get("/v1/regions").await;
    assert_eq!(regions.json()["data"][0]["consoles"], json!(["serial"]));
    let before = Timestamp::now();
    let body = json!({ "type": "serial" });
    let path = format!("/v1/instances/{id}/console");
    let answer = tenant.post(201, &path, &body).await;
    let data = answer.json()["data"].clone();
    let expires_at: Timestamp = data["expires_at"].as_str().unwrap().parse().unwrap();
    let lasts = expires_at.duration_since(before);
    assert!(
        lasts > SignedDuration::from_secs(55) && lasts <= SignedDuration::from_secs(61),
        "{lasts}"
    );
    let url = data["url"].as_str().unwrap();
    remember_secret(url.split_once("token=").unwrap().1);
    remember_secret(TYPED);

    let mut console = Console::open(url).await.unwrap();
    let boot = console.shows("web login: ").await;
    assert!(boot.contains("Linux version"), "{boot}");
    console.types("ada\r").await;
    console.shows("ada@web:~$ ").await;
    console.types("uname\r").await;
    assert!(console.shows("ada@web:~$ ").await.contains("\r\nLinux\r\n"));
    console.types("ip addr\r").await;
    let address = tenant.get(&format!("/v1/instances/{id}")).await;
    let address = address.json()["data"]["ip_address"].as_str().unwrap().to_owned();
    assert!(console.shows("scope global eth0").await.contains(&address));
    console.types(&format!("{TYPED}\r")).await;
    console.shows("not found").await;

    let (status, refused) = Console::open(url).await.err().unwrap();
    assert_eq!((status, &refused["error"]["code"]), (401, &json!("unauthorized")));
    let without = url.split_once('?').unwrap().0;
    assert_eq!(Console::open(without).await.err().unwrap().0, 401);
    let plain = reqwest::get(url.replacen("ws", "http", 1)).await.unwrap();
    assert_eq!(plain.status().as_u16(), 400);
    let elsewhere = without.replacen("ws", "http", 1).replace("/v1/console", "/");
    assert_eq!(reqwest::get(elsewhere).await.unwrap().status().as_u16(), 404);

    let events: Api<Event> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let told = async || {
        let events = events.list(&ListParams::default()).await.unwrap().items;
        let opened = |event: &Event| event.reason.as_deref() == Some("ConsoleOpened");
        events.into_iter().find(opened).and_then(|event| event.note)
    };
    let note = eventually("the Event", told, Option::is_some).await.unwrap();
    assert!(
        note.starts_with("The serial console was opened with the API key key-"),
        "{note}"
    );
    drop(console);
    let gateway = &shared().await.gateway;
    let is_closed = |log: &String| {
        let mut lines = log.lines().filter(|line| line.contains(&id));
        lines.any(|line| line.contains("a console was closed"))
    };
    let log = eventually("the log", async || gateway.log(), is_closed).await;
    let opened = log
        .lines()
        .find(|line| line.contains("a console was opened") && line.contains(&id));
    assert!(
        opened.is_some_and(|line| line.contains("console-once") && line.contains("127.0.0.1")),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_ticket_for_a_console_that_cannot_be_opened() {
    let tenant = Tenant::new("console-refused").await;
    let id = running(&tenant).await;
    let path = format!("/v1/instances/{id}/console");
    let post = async |tenant: &Tenant, status: u16, body: Value| tenant.post(status, &path, &body).await;
    for body in [
        json!({ "type": "vnc" }),
        json!({ "type": "telnet" }),
        json!({}),
        json!({ "type": null }),
    ] {
        let answer = post(&tenant, 422, body).await;
        assert_eq!(fields(&answer), ["type"], "{}", answer.text);
    }
    let other = Tenant::new("console-other").await;
    assert_eq!(
        code(&post(&other, 404, json!({ "type": "serial" })).await),
        "not_found"
    );
    let cluster = shared().await;
    let reader = Tenant {
        namespace: tenant.namespace.clone(),
        key: new_key(cluster.plane, "console-refused", "read"),
        kube: tenant.kube.clone(),
        url: tenant.url.clone(),
        http: tenant.http.clone(),
    };
    let known = async || reader.call(Method::GET, "/v1/plans", None).await.status.as_u16();
    eventually("the key to be known", known, |status| *status == 200).await;
    let refused = post(&reader, 403, json!({ "type": "serial" })).await;
    assert_eq!(code(&refused), "token_readonly");

    ask(
        &tenant,
        202,
        Method::POST,
        &format!("/v1/instances/{id}/poweroff"),
    )
    .await;
    wait_for(&tenant, &id, "stopped").await;
    let refused = post(&tenant, 409, json!({ "type": "serial" })).await;
    assert_eq!(
        (code(&refused).as_str(), fields(&refused)),
        ("invalid_state", vec!["status".to_owned()])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_console_ends_with_its_server_its_key_and_its_instance() {
    let tenant = Tenant::new("console-ends").await;
    let id = running(&tenant).await;
    let (other, key) = with_new_key(&tenant).await;
    let mut console = serial(&other, &id).await;
    console.shows("login: ").await;
    let unused = ticket(&other, &id, "serial").await;
    ask(&tenant, 204, Method::DELETE, &format!("/v1/keys/{key}")).await;
    assert_eq!(console.ends().await.0, 4002);
    let (_, refused) = Console::open(&unused).await.err().unwrap();
    assert_eq!(
        refused["error"]["message"],
        "the API key was revoked, or has expired"
    );

    let mut console = serial(&tenant, &id).await;
    console.shows("login: ").await;
    ask(
        &tenant,
        202,
        Method::POST,
        &format!("/v1/instances/{id}/poweroff"),
    )
    .await;
    let (code, reason) = console.ends().await;
    assert_eq!(
        (code, reason.as_str()),
        (
            4000,
            "the server is not running any more, or is being rebooted; open the console again once it runs"
        )
    );

    wait_for(&tenant, &id, "stopped").await;
    ask(&tenant, 202, Method::POST, &format!("/v1/instances/{id}/start")).await;
    wait_for(&tenant, &id, "running").await;
    let mut console = serial(&tenant, &id).await;
    console.shows("login: ").await;
    ask(&tenant, 204, Method::DELETE, &format!("/v1/instances/{id}")).await;
    assert_eq!(console.ends().await.0, 4001);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_has_two_consoles_at_a_time() {
    let tenant = Tenant::new("console-two").await;
    let id = running(&tenant).await;
    let mut open = [serial(&tenant, &id).await, serial(&tenant, &id).await];
    for console in &mut open {
        console.shows("login: ").await;
    }
    let mut third = serial(&tenant, &id).await;
    let (code, reason) = third.ends().await;
    assert_eq!(code, 1013);
    assert!(reason.contains("too many consoles of this instance"), "{reason}");
    let [mut first, mut second] = open;
    first.leave().await;
    let again = async || {
        let mut console = serial(&tenant, &id).await;
        let shown = timeout(Duration::from_secs(20), console.0.next()).await;
        matches!(shown, Ok(Some(Ok(Message::Binary(_)))))
    };
    eventually("room for another", again, |opened| *opened).await;
    second.types("ada\r").await;
    second.shows("ada@web").await;
}

/// A gateway of its own with these settings; tickets of the shared one's URL are taken there.
async fn own_gateway(plane: &ControlPlane, settings: &[&str]) -> (Operator, u16) {
    let port = free_port().unwrap();
    (start_gateway(plane, port, settings).await, port)
}

fn at_port(url: &str, port: u16) -> String {
    let mut url = url::Url::parse(url).unwrap();
    url.set_port(Some(port)).unwrap();
    url.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_console_ends_when_nothing_happens_after_its_time_and_when_the_gateway_stops() {
    let tenant = Tenant::new("console-idle").await;
    let id = running(&tenant).await;
    let plane = shared().await.plane;
    let open = async |port: u16| {
        let url = at_port(&ticket(&tenant, &id, "serial").await, port);
        let mut console = Console::open(&url).await.unwrap();
        console.shows("login: ").await;
        console
    };
    // A ticket of before the gateway was started may have been used at another one.
    let before = ticket(&tenant, &id, "serial").await;
    let (mut gateway, port) = own_gateway(plane, &["--console-idle-seconds=1"]).await;
    assert_eq!(Console::open(&at_port(&before, port)).await.err().unwrap().0, 401);
    assert_eq!(open(port).await.ends().await.0, 4003);
    let mut console = open(port).await;
    let (ended, ()) = tokio::join!(console.ends(), gateway.stop());
    // Its second may be over first.
    assert!([1001, 4003].contains(&ended.0), "{ended:?}");

    let (mut gateway, port) = own_gateway(plane, &["--console-seconds=1"]).await;
    assert_eq!(open(port).await.ends().await.0, 4004);
    gateway.stop().await;

    let (mut gateway, port) = own_gateway(plane, &["--max-consoles-per-account=1"]).await;
    let mut console = open(port).await;
    let url = at_port(&ticket(&tenant, &id, "serial").await, port);
    let (code, reason) = Console::open(&url).await.unwrap().ends().await;
    assert_eq!(code, 1013);
    assert!(reason.contains("of this account"), "{reason}");
    let (ended, ()) = tokio::join!(console.ends(), gateway.stop());
    assert_eq!(ended.0, 1001);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_opens_the_serial_line_of_an_instance_by_its_name() {
    let tenant = Tenant::new("console-cli").await;
    let id = running(&tenant).await;
    let run = |arguments: &[&str], key: &str, input: &str| {
        let mut child = Command::new(STELLAGE)
            .arg("console")
            .args(arguments)
            .env("STELLAGE_URL", &tenant.url)
            .env("STELLAGE_API_KEY", key)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let key = tenant.key.clone();
    tokio::task::block_in_place(|| {
        let (done, shown, said) = run(&["web"], &key, "ada\runame\r");
        assert!(done && shown.contains("\r\nLinux\r\n"), "{shown} {said}");
        assert!(said.contains("Ctrl+] ends it"), "{said}");
        let (done, shown, said) = run(&[id.as_str()], &key, "ada\rhostname\r");
        assert!(done && shown.contains("\r\nweb\r\n"), "{shown} {said}");
        let (done, _, said) = run(&["nobody"], &key, "");
        assert!(!done && said.contains("has no instance named nobody"), "{said}");
        let (done, _, said) = run(&["web"], "stl_wrong", "");
        assert!(!done && said.contains("the API key is not valid"), "{said}");
        let (done, _, said) = run(&["web"], "", "");
        assert!(!done && said.contains("STELLAGE_API_KEY"), "{said}");
    });
}
