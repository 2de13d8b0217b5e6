//! The customer console in a real browser: Chromium, driven through chromedriver. Without these two, the output says NOT RUN.
//!
//! - `journeys`: everything that the API does, done with a mouse, with only the keyboard, and without scripts; pages that refresh themselves;
//! - `states`: what no journey reaches, and whether every text that pages can show was on a page that was checked;
//! - `attacks`: what another site, another account and a revoked key cannot do;
//! - `screen`: that of a server, over VNC;
//! - `sign_in`: with a provider on another site;
//! - `screenshots`: the pictures in the documentation (`make screenshots`);
//! - `webdriver`: the protocol between the tests and chromedriver.
//!
//! [`Browser::check`] runs on every page in every state that a journey reaches: axe finds nothing, nothing is wider than
//! the window, and nothing is in the browser's console. `axe-4.14.1.min.js` is the file of the npm package `axe-core` (MPL-2.0, `axe-LICENSE`).

mod attacks;
mod journeys;
mod screen;
mod screenshots;
mod sign_in;
mod states;
mod webdriver;

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use control_plane::{ControlPlane, Daemon};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};
use url::Url;

use self::webdriver::{By, Element, Key, Refused, Session};
use crate::support::{eventually, say_not_run};

const AXE: &str = include_str!("axe-4.14.1.min.js");
/// Runs axe with all its rules, including those about good practice. A page may still be animating, so it checks the end state
/// of animations.
const RUN_AXE: &str = r#"
const done = arguments[arguments.length - 1];
axe.run(document, { resultTypes: ["violations"] }).then(
  (found) => done(found.violations.map((v) => `${v.id}: ${v.help}\n` + v.nodes.map((n) => `  ${n.html}\n  ${n.failureSummary}`).join("\n"))),
  (error) => done([`axe failed: ${error}`]));
"#;
/// Elements that overflow the window on the right, if the page can be scrolled sideways.
const TOO_WIDE: &str = r#"
const width = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth <= width) return [];
return [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > width + 1)
  .map((e) => `${e.tagName}.${e.className} ends at ${e.getBoundingClientRect().right} of ${width}: ${e.outerHTML.slice(0, 200)}`).slice(0, 5);
"#;

/// The window sizes and colour schemes in which every page is checked.
const VIEWS: [View; 2] = [View::WIDE, View::NARROW];

/// How a page is viewed.
#[derive(Clone, Copy, Debug)]
struct View {
    width: u32,
    height: u32,
    scheme: &'static str,
}

impl View {
    const WIDE: Self = Self {
        width: 1440,
        height: 900,
        scheme: "light",
    };
    const NARROW: Self = Self {
        width: 320,
        height: 640,
        scheme: "dark",
    };
}

/// The first program of these names in PATH.
fn found(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    let mut all = names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    all.find(|file| file.is_file())
}

/// How a person uses the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// With a mouse. Pages are checked in this way.
    Mouse,
    /// With the keyboard only.
    Keyboard,
    /// With a mouse, but without JavaScript.
    WithoutScripts,
}

/// A window of its own Chromium. Ends when dropped.
struct Browser {
    driver: Session,
    origin: String,
    way: Way,
    /// The texts of all pages that were checked.
    checked: Mutex<String>,
    _chromedriver: Daemon,
    _permit: SemaphorePermit<'static>,
}

/// Starts chromedriver. It picks a port of IPv4, ends if the same one of IPv6 is taken, and then is started again.
async fn start_chromedriver(plane: &ControlPlane, program: &Path) -> (Daemon, u16) {
    loop {
        let log = plane
            .folder()
            .join(format!("chromedriver-{}.log", rand::random::<u32>()));
        let mut command = Command::new(program);
        command.arg("--port=0");
        let daemon = Mutex::new(Daemon::spawn("chromedriver", command, plane.group(), &log).unwrap());
        let started = async || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let port = text.split_once("successfully on port ");
            let port = port.and_then(|(_, rest)| rest.split_once('.')?.0.parse::<u16>().ok());
            (port, daemon.lock().exited(), text)
        };
        let is_over =
            |(port, exited, _): &(Option<u16>, Option<_>, String)| port.is_some() || exited.is_some();
        match eventually("chromedriver", started, is_over).await {
            (Some(port), ..) => return (daemon.into_inner(), port),
            (None, exited, text) => assert!(text.contains("port not available"), "{exited:?}: {text}"),
        }
    }
}

impl Browser {
    /// Opens a browser for the console at this URL, in the process group of a control plane. Returns `None`, and reports it, if
    /// this machine has no browser.
    async fn start(plane: &ControlPlane, url: &str) -> Option<Self> {
        // Each browser takes most of a core while pages load.
        static BROWSERS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(2));
        let programs = [
            &[
                "chromium",
                "chromium-browser",
                "google-chrome",
                "google-chrome-stable",
            ][..],
            &["chromedriver"],
        ];
        let [Some(chromium), Some(chromedriver)] = programs.map(found) else {
            say_not_run(
                "the console in a browser, since Chromium and chromedriver are not in PATH (Debian: apt-get install chromium chromium-driver)",
            );
            return None;
        };
        let permit = BROWSERS.acquire().await.unwrap();
        let (daemon, port) = start_chromedriver(plane, &chromedriver).await;
        let arguments = [
            "--headless=new",
            // Tests may run as root in a container.
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--force-prefers-reduced-motion",
            "--lang=en-GB",
        ];
        let capabilities = json!({
            "browserName": "chrome",
            "goog:chromeOptions": { "binary": chromium, "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let driver = Session::start(port, capabilities).await;
        let browser = Self {
            driver,
            origin: url.to_owned(),
            way: Way::Mouse,
            checked: Mutex::default(),
            _chromedriver: daemon,
            _permit: permit,
        };
        browser.view(View::WIDE).await;
        let focused = json!({ "enabled": true });
        browser
            .devtools("Emulation.setFocusEmulationEnabled", focused)
            .await;
        Some(browser)
    }

    /// Continues with another input method.
    async fn using(mut self, way: Way) -> Self {
        let off = json!({ "value": way == Way::WithoutScripts });
        self.devtools("Emulation.setScriptExecutionDisabled", off).await;
        self.way = way;
        self
    }

    /// Ends the browser. Otherwise dropping it would block the thread until it has ended.
    async fn quit(self) {
        self.driver.quit().await;
    }

    /// A command of the Chrome DevTools Protocol.
    async fn devtools(&self, method: &str, parameters: Value) {
        self.driver.devtools(method, parameters).await;
    }

    async fn view(&self, view: View) {
        let metrics =
            json!({ "width": view.width, "height": view.height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
        let features =
            json!({ "media": "", "features": [{ "name": "prefers-color-scheme", "value": view.scheme }] });
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    async fn open(&self, path: &str) {
        self.driver.goto(&format!("{}{path}", self.origin)).await;
    }

    /// The path and query of the page.
    async fn path(&self) -> String {
        let url = Url::parse(&self.driver.current_url().await).unwrap();
        let query = url.query().map(|query| format!("?{query}"));
        format!("{}{}", url.path(), query.unwrap_or_default())
    }

    async fn script(&self, script: &str) -> Value {
        self.driver.execute(script).await
    }

    /// The visible text of the page.
    async fn text(&self) -> String {
        let text = self
            .script("return document.body ? document.body.innerText : ''")
            .await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the page has this text.
    async fn shows(&self, text: &str) {
        eventually(text, async || self.text().await, |shown| shown.contains(text)).await;
    }

    /// Waits until the browser is at this path.
    async fn arrives(&self, path: &str) {
        eventually(path, async || self.path().await, |at| at == path).await;
    }

    /// Retries until it succeeds: an element may not exist yet, or may just have been replaced.
    async fn patiently<T>(&self, what: &str, attempt: impl AsyncFn() -> Result<T, Refused>) -> T {
        let done = eventually(
            what,
            async || attempt().await.map_err(|error| error.to_string()).map(Done),
            Result::is_ok,
        );
        done.await.unwrap().0
    }

    async fn find(&self, css: &str) -> Element {
        self.patiently(css, async || self.driver.find(By::Css(css)).await)
            .await
    }

    async fn has(&self, css: &str) -> bool {
        self.driver.find(By::Css(css)).await.is_ok()
    }

    async fn click(&self, css: &str) {
        self.activate(css, By::Css(css)).await;
    }

    /// Presses the button or follows the link with this text.
    async fn press(&self, text: &str) {
        let path = format!("//*[self::button or self::a][normalize-space()='{text}']");
        self.activate(text, By::XPath(&path)).await;
    }

    /// Clicks an element, or focuses it and presses the key for it.
    async fn activate(&self, what: &str, by: By<'_>) {
        self.patiently(what, async || self.driver.find(by).await.map(drop))
            .await;
        if self.way == Way::Keyboard {
            self.tab_to(what, by).await;
        }
        let is_box = "['checkbox', 'radio'].includes(e?.type)";
        // With a mouse, parts of a page are pressed as well that only change something on it.
        let leaves = "e?.matches('a[href]:not([target]), form button:not([type=button])')";
        let script = format!(
            "window.stays = true; const e = {}; return [{is_box}, {leaves}]",
            by.expression()
        );
        let kind = self.script(&script).await;
        let is_box = kind[0] == true;
        match self.way {
            Way::Keyboard => self.key(if is_box { Key::Space } else { Key::Enter }).await,
            Way::Mouse | Way::WithoutScripts => {
                self.patiently(what, async || self.driver.find(by).await?.click().await)
                    .await;
            }
        }
        if is_box || self.way == Way::Mouse && kind[1] != true {
            return;
        }
        // A page that is reloaded before the browser has left it undoes what was pressed on it; and what is looked for next may stand
        // on it, too.
        let has_left = "return document.readyState === 'complete' && !window.stays";
        eventually(what, async || self.script(has_left).await, |left| *left == true).await;
    }

    /// Presses Tab until an element has the focus, and checks that each element on the way shows its focus. Among the buttons of
    /// a choice, Tab reaches one, and the arrow keys reach the others.
    async fn tab_to(&self, what: &str, by: By<'_>) {
        let script = format!(
            "const t = {}, e = document.activeElement, s = getComputedStyle(e); \
             return [e === t, e.type === 'radio' && t?.type === 'radio' && e.name === t.name, \
             e === document.body || s.outlineStyle !== 'none' && s.outlineWidth !== '0px', e.outerHTML.slice(0, 200)]",
            by.expression()
        );
        let mut passed = Vec::new();
        for _ in 0..150 {
            let focused = self.script(&script).await;
            assert!(
                passed.is_empty() || focused[2] == true,
                "its focus is not seen: {focused}"
            );
            if focused[0] == true {
                return;
            }
            passed.push(focused[3].clone());
            let is_choice = focused[1] == true;
            self.key(if is_choice { Key::Down } else { Key::Tab }).await;
        }
        panic!("Tab does not come to {what}, but to {passed:#?}");
    }

    /// Replaces the text in the field with this name.
    async fn fill(&self, name: &str, text: &str) {
        let css = format!("main [name={name}]");
        let field = self.find(&css).await;
        if self.way == Way::Keyboard {
            // Tab selects what is in the field.
            self.tab_to(name, By::Css(&css)).await;
            return self.type_text(text).await;
        }
        field.clear().await;
        field.send_keys(text).await;
    }

    /// Chooses from the list with this name.
    async fn choose(&self, name: &str, option: &str) {
        if self.way == Way::Keyboard {
            let css = format!("select[name={name}]");
            self.find(&css).await;
            self.tab_to(name, By::Css(&css)).await;
            self.key(Key::Home).await;
            let chosen = "return document.activeElement.selectedOptions[0].label.trim()";
            for _ in 0..50 {
                if self.script(chosen).await == option {
                    return;
                }
                self.key(Key::Down).await;
            }
            panic!("{name} has no {option}");
        }
        let path = format!("//select[@name='{name}']//option[normalize-space()='{option}']");
        self.patiently(option, async || {
            let by = By::XPath(path.as_str());
            self.driver.find(by).await?.click().await
        })
        .await;
    }

    async fn key(&self, key: Key) {
        self.driver.type_text(key.code()).await;
    }

    async fn type_text(&self, text: &str) {
        self.driver.type_text(text).await;
    }

    /// Status, Content-Type and text of something that a page of the console fetches.
    async fn fetch(&self, method: &str, path: &str) -> (u64, String, String) {
        let script = "const [method, path, done] = arguments; fetch(path, { method }).then(async (r) => done([r.status, r.headers.get('content-type') ?? '', await r.text()]))";
        let got = self.driver.execute_async(script, &[method, path]).await;
        let text = |index: usize| got[index].as_str().unwrap_or_default().to_owned();
        (got[0].as_u64().unwrap(), text(1), text(2))
    }

    /// The browser's errors and warnings since the last call, except for pages that were expected to answer with
    /// 4xx.
    async fn complaints(&self) -> Vec<String> {
        let log = self.driver.log().await;
        log.into_iter()
            .filter(|(level, _)| ["SEVERE", "WARNING"].contains(&level.as_str()))
            .map(|(_, message)| message)
            .filter(|message| !message.contains("the server responded with a status of 4"))
            .collect()
    }

    /// Checks the page as it is now, in all views.
    #[track_caller]
    fn check(&self, state: &str) -> impl Future<Output = ()> {
        self.check_at(state, std::panic::Location::caller())
    }

    async fn check_at(&self, state: &str, at: &std::panic::Location<'_>) {
        if self.way != Way::Mouse {
            return;
        }
        let text = self.script("return document.documentElement.textContent").await;
        let words: Vec<&str> = text.as_str().unwrap().split_whitespace().collect();
        let text = words.join(" ");
        self.checked.lock().extend([text.as_str(), "\n"]);
        for view in VIEWS {
            self.view(view).await;
            let wide = self.script(TOO_WIDE).await;
            assert_eq!(wide, json!([]), "{at}: {state} in {view:?}");
            self.driver.execute(AXE).await;
            let found = self.driver.execute_async(RUN_AXE, &[]).await;
            let found: Vec<String> = serde_json::from_value(found).unwrap();
            assert!(
                found.is_empty(),
                "{at}: {state} in {view:?}:\n{}",
                found.join("\n")
            );
        }
        self.view(View::WIDE).await;
        let complaints = self.complaints().await;
        assert!(complaints.is_empty(), "{at}: {state}: {complaints:#?}");
        let title = self.driver.title().await;
        assert!(
            title.ends_with(" · Stellage") || !self.has("#main").await,
            "{at}: {state}: {title}"
        );
    }
}

/// The result of an attempt; not worth printing.
struct Done<T>(T);

impl<T> std::fmt::Debug for Done<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("done")
    }
}

/// Folder of the documentation's pictures.
fn images() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/images")
}
