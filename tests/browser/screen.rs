//! The screen of a server in a real region, in noVNC.

use serde_json::{Value, json};

use super::{Browser, webdriver::Key};
use crate::{
    kubevirt::installation::{Case, shared},
    support::{
        eventually,
        kubevirt::screen::{BLUE, colour},
    },
};

impl Browser {
    /// Waits until the screen has this colour.
    async fn is_painted(&self, what: &str, [red, green, blue]: [u8; 3]) {
        // Chromium warns of repeated looks at the page's own canvas.
        let pixel = "const screen = document.querySelector('#server-console canvas'); if (!screen?.width) return null; \
                     const copy = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true }); \
                     copy.drawImage(screen, -9, -9); \
                     return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3)";
        let painted = async || self.script(pixel).await;
        eventually(what, painted, |pixel| *pixel == json!([red, green, blue])).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_screen_of_a_real_server_shows_and_takes_keys_pasted_text_and_ctrl_alt_del_and_fills_the_display()
{
    let (case, id) = Case::running("kv-screen").await;
    let installation = shared(&case.region).await;
    let Some(browser) = Browser::start(&installation.plane, &case.tenant.url).await else {
        return;
    };
    browser.sign_in(&case.tenant.key).await;
    browser.open(&format!("/console/instances/{id}")).await;
    browser.click("#to-console").await;
    browser.press("Screen").await;
    browser.becomes("connected").await;
    browser.is_painted("what the server shows", BLUE).await;
    browser.check("the screen of a server").await;

    browser.type_text("k").await;
    browser.is_painted("the key", colour(u32::from(b'k'))).await;
    browser.click("#server-console-keys").await;
    browser.is_painted("Delete", colour(0xffff)).await;
    let granted = json!({ "permission": { "name": "clipboard-read" }, "setting": "granted" });
    browser.devtools("Browser.setPermission", granted).await;
    browser.script("return navigator.clipboard.writeText('z')").await;
    browser.click("#server-console-paste").await;
    browser
        .is_painted("what was pasted", colour(u32::from(b'z')))
        .await;
    // The way out, for whoever has only a keyboard.
    browser
        .script("document.querySelector('#server-console canvas').dispatchEvent(new KeyboardEvent('keydown', { code: 'BracketRight', key: ']', ctrlKey: true, bubbles: true, cancelable: true }))")
        .await;
    let focused = async || browser.script("return document.activeElement.id").await;
    eventually("the focus", focused, |id| id == "server-console-connect").await;
    browser.key(Key::Enter).await;
    browser.is_painted("the screen, connected again", BLUE).await;
    browser.click("#server-console-full").await;
    let full = async || {
        browser
            .script("return document.fullscreenElement?.id ?? null")
            .await
    };
    eventually("the full screen", full, |id| id == "server-console").await;
    browser.script("return document.exitFullscreen()").await;
    eventually("its end", full, Value::is_null).await;

    case.ask(&id, "poweroff", None).await;
    browser.becomes("closed").await;
    browser.check("the screen of a server that is off").await;
    browser.quit().await;
}
