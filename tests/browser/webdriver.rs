//! As much of WebDriver as the tests need (W3C WebDriver, and the commands that chromedriver adds). No library is used: those for
//! Rust either turn on features of serde that change the program under test, or have another licence.

use std::{fmt, time::Duration};

use reqwest::{Client, Method};
use serde_json::{Value, json};

/// Timeout of a command, pages and scripts included.
const PATIENCE: Duration = Duration::from_mins(2);
/// The key of an element's id (section 12, "Elements").
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Keys without a character (section 17.4.2).
#[derive(Clone, Copy, Debug)]
pub enum Key {
    Tab,
    Enter,
    Space,
    Down,
    Home,
}

impl Key {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Tab => "\u{e004}",
            Self::Enter => "\u{e007}",
            Self::Space => "\u{e00d}",
            Self::Down => "\u{e015}",
            Self::Home => "\u{e011}",
        }
    }
}

/// How an element is found.
#[derive(Clone, Copy, Debug)]
pub enum By<'a> {
    Css(&'a str),
    XPath(&'a str),
}

impl By<'_> {
    /// The element as an expression of JavaScript.
    pub fn expression(self) -> String {
        match self {
            Self::Css(css) => format!("document.querySelector({})", json!(css)),
            Self::XPath(path) => format!(
                "document.evaluate({}, document, null, XPathResult.FIRST_ORDERED_NODE_TYPE, null).singleNodeValue",
                json!(path)
            ),
        }
    }
}

/// An error of the driver, with its words.
#[derive(Debug)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A session: a browser with one window.
#[derive(Clone)]
pub struct Session {
    http: Client,
    url: String,
}

/// An element of a page.
pub struct Element {
    session: Session,
    id: String,
}

impl Session {
    /// Begins one at the driver that listens on this port.
    pub async fn start(port: u16, capabilities: Value) -> Self {
        let driver = Self {
            http: Client::builder().timeout(PATIENCE).build().unwrap(),
            url: format!("http://127.0.0.1:{port}/session"),
        };
        let wanted = json!({ "capabilities": { "alwaysMatch": capabilities } });
        let begun = driver.call(Method::POST, "", wanted).await.unwrap();
        let id = begun["sessionId"].as_str().unwrap();
        Self {
            url: format!("{}/{id}", driver.url),
            ..driver
        }
    }

    async fn call(&self, method: Method, path: &str, body: Value) -> Result<Value, Refused> {
        let mut request = self.http.request(method.clone(), format!("{}{path}", self.url));
        if method == Method::POST {
            request = request.json(&body);
        }
        let answer = request.send().await.map_err(|error| Refused(error.to_string()))?;
        let is_done = answer.status().is_success();
        let mut answer: Value = answer.json().await.map_err(|error| Refused(error.to_string()))?;
        let value = answer["value"].take();
        if is_done {
            return Ok(value);
        }
        Err(Refused(format!(
            "{path}: {}: {}",
            value["error"], value["message"]
        )))
    }

    async fn post(&self, path: &str, body: Value) -> Result<Value, Refused> {
        self.call(Method::POST, path, body).await
    }

    /// Ends the browser.
    pub async fn quit(&self) {
        self.call(Method::DELETE, "", Value::Null).await.unwrap();
    }

    pub async fn goto(&self, url: &str) {
        self.post("/url", json!({ "url": url })).await.unwrap();
    }

    pub async fn refresh(&self) {
        self.post("/refresh", json!({})).await.unwrap();
    }

    pub async fn current_url(&self) -> String {
        let url = self.call(Method::GET, "/url", Value::Null).await.unwrap();
        url.as_str().unwrap().to_owned()
    }

    pub async fn title(&self) -> String {
        let title = self.call(Method::GET, "/title", Value::Null).await.unwrap();
        title.as_str().unwrap().to_owned()
    }

    /// What a script returns.
    pub async fn execute(&self, script: &str) -> Value {
        let body = json!({ "script": script, "args": [] });
        self.post("/execute/sync", body).await.unwrap()
    }

    /// What a script hands to the function that is its last argument.
    pub async fn execute_async(&self, script: &str, arguments: &[&str]) -> Value {
        let body = json!({ "script": script, "args": arguments });
        self.post("/execute/async", body).await.unwrap()
    }

    pub async fn find(&self, by: By<'_>) -> Result<Element, Refused> {
        let (using, value) = match by {
            By::Css(css) => ("css selector", css),
            By::XPath(path) => ("xpath", path),
        };
        let found = self
            .post("/element", json!({ "using": using, "value": value }))
            .await?;
        Ok(Element {
            session: self.clone(),
            id: found[ELEMENT].as_str().unwrap().to_owned(),
        })
    }

    /// Types into whatever has the focus.
    pub async fn type_text(&self, text: &str) {
        let keys = text.chars().flat_map(|key| {
            ["keyDown", "keyUp"].map(|action| json!({ "type": action, "value": key.to_string() }))
        });
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": keys.collect::<Vec<_>>() });
        self.post("/actions", json!({ "actions": [keyboard] }))
            .await
            .unwrap();
    }

    /// A command of the Chrome DevTools Protocol.
    pub async fn devtools(&self, method: &str, parameters: Value) -> Value {
        let body = json!({ "cmd": method, "params": parameters });
        self.post("/goog/cdp/execute", body).await.unwrap()
    }

    /// Level and message of each entry of the browser's log since the last time.
    pub async fn log(&self) -> Vec<(String, String)> {
        let log = self.post("/se/log", json!({ "type": "browser" })).await.unwrap();
        let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        let entries = log.as_array().into_iter().flatten();
        entries
            .map(|entry| (text(entry, "level"), text(entry, "message")))
            .collect()
    }
}

impl Element {
    async fn post(&self, action: &str, body: Value) -> Result<Value, Refused> {
        self.session
            .post(&format!("/element/{}/{action}", self.id), body)
            .await
    }

    pub async fn click(&self) -> Result<(), Refused> {
        self.post("click", json!({})).await.map(drop)
    }

    pub async fn clear(&self) {
        self.post("clear", json!({})).await.unwrap();
    }

    pub async fn send_keys(&self, text: &str) {
        self.post("value", json!({ "text": text })).await.unwrap();
    }

    pub async fn text(&self) -> String {
        let path = format!("/element/{}/text", self.id);
        let text = self.session.call(Method::GET, &path, Value::Null).await.unwrap();
        text.as_str().unwrap().to_owned()
    }
}
