//! Signing in with a provider on another site, from which the browser returns: the test kit's own, and one from a package (npm: oidc-provider).

use std::{path::Path, process::Stdio};

use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    task::JoinHandle,
};

use super::Browser;
use crate::support::{
    Operator, Tenant,
    npm::{Packages, there_is_node},
    oidc::{Behaviour, CLIENT, OidcProvider},
    remember_secret, shared,
};

/// An address for a console at `localhost`, which is a different site from the provider's 127.0.0.1. The operator must know its
/// port before it has one itself.
async fn place() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://localhost:{}", listener.local_addr().unwrap().port());
    (listener, url)
}

/// A console at that address, which forwards incoming requests.
async fn console(
    (listener, url): (TcpListener, String),
    issuer: &str,
    secret: &Path,
) -> (Operator, JoinHandle<()>) {
    let arguments = [
        "api",
        "--public-url",
        &url,
        "--oidc-issuer",
        issuer,
        "--oidc-client-id",
        CLIENT,
        "--oidc-client-secret-file",
        secret.to_str().unwrap(),
    ];
    let replica = Operator::start(shared().await.plane, &arguments).await;
    let address = replica.url.strip_prefix("http://").unwrap().to_owned();
    let forwarding = tokio::spawn(async move {
        loop {
            let (mut from, _) = listener.accept().await.unwrap();
            let mut to = TcpStream::connect(&address).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut from, &mut to).await });
        }
    });
    (replica, forwarding)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_that_comes_back_from_the_provider_of_another_site_is_signed_in() {
    let plane = shared().await.plane;
    let place = place().await;
    let url = place.1.clone();
    let provider = OidcProvider::start().await;
    provider.serve_console_at(&url);
    let (mut replica, forwarding) = console(place, provider.issuer(), &provider.secret_file()).await;
    Tenant::on(plane, &replica, "browser-oidc").await;
    let Some(browser) = Browser::start(plane, &url).await else {
        return;
    };
    provider.behave(Behaviour {
        asks: true,
        ..Behaviour::with_email("browser-oidc@example.com")
    });
    browser.open("/console/sign-in").await;
    browser.check("sign in, with a provider").await;
    browser.press("Sign in with 127.0.0.1").await;
    browser.press("Go on").await;
    browser.arrives("/console/instances").await;
    browser.shows("There are no instances yet").await;
    browser.check("signed in").await;
    browser.press("Sign out").await;
    browser.shows("You have signed out").await;
    provider.behave(Behaviour {
        asks: true,
        ..Behaviour::with_email("nobody@example.com")
    });
    browser.press("Sign in with 127.0.0.1").await;
    browser.press("Go on").await;
    browser.shows("No account has the e-mail address").await;
    browser.check("sign in with a provider, refused").await;
    browser.quit().await;
    forwarding.abort();
    replica.stop().await;
}

/// A provider from a package for a console at `url`, and its issuer. It ends when it is dropped.
async fn provider_from_package(url: &str, secret: &str) -> (Child, String) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oidc-provider");
    let packages = Packages::of(&sources, "oidc-provider").await;
    // It looks for its packages next to itself.
    let program = packages.folder.join("provider.mjs");
    std::fs::copy(sources.join("provider.mjs"), &program).unwrap();
    let mut provider = Command::new("node")
        .arg(program)
        .args([CLIENT, secret, &format!("{url}/console/sign-in/oidc/callback")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    // Its output stays open, since it may go on writing.
    let printed = BufReader::new(provider.stdout.as_mut().unwrap());
    let issuer = printed.lines().next_line().await.unwrap().unwrap();
    (provider, issuer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_from_a_package_signs_in_whoever_has_the_address_of_an_account() {
    if !there_is_node("signing in through a provider from a package").await {
        return;
    }
    let place = place().await;
    let url = place.1.clone();
    let secret = "a secret: with+all that%is encoded";
    remember_secret(secret);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, secret).unwrap();
    let (_provider, issuer) = provider_from_package(&url, secret).await;
    let (mut replica, forwarding) = console(place, &issuer, &file).await;
    let plane = shared().await.plane;
    Tenant::on(plane, &replica, "browser-package").await;
    let Some(browser) = Browser::start(plane, &url).await else {
        replica.stop().await;
        return;
    };
    browser.open("/console/sign-in").await;
    browser.press("Sign in with 127.0.0.1").await;
    browser.shows("Who are you?").await;
    browser.fill("login", "browser-package@example.com").await;
    browser.press("Go on").await;
    browser.arrives("/console/instances").await;
    browser.shows("There are no instances yet").await;
    browser.press("Sign out").await;
    browser.shows("You have signed out").await;
    browser.quit().await;
    forwarding.abort();
    replica.stop().await;
}
