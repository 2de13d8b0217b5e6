//! Signing in with a provider of another site, which a browser comes back from.

use tokio::net::{TcpListener, TcpStream};

use super::Browser;
use crate::support::{
    Operator, Tenant,
    oidc::{Behaviour, CLIENT, OidcProvider},
    shared,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_that_comes_back_from_the_provider_of_another_site_is_signed_in() {
    let plane = shared().await.plane;
    // `localhost`, which is another site than the provider's 127.0.0.1. The operator has to know its port before it has one itself.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://localhost:{}", listener.local_addr().unwrap().port());
    let provider = OidcProvider::start().await;
    provider.serve_console_at(&url);
    let secret = provider.secret_file();
    let arguments = [
        "api",
        "--console-url",
        &url,
        "--oidc-issuer",
        provider.issuer(),
        "--oidc-client-id",
        CLIENT,
        "--oidc-client-secret-file",
        secret.to_str().unwrap(),
    ];
    let mut replica = Operator::start(plane, &arguments).await;
    let address = replica.url.strip_prefix("http://").unwrap().to_owned();
    let forwarding = tokio::spawn(async move {
        loop {
            let (mut from, _) = listener.accept().await.unwrap();
            let mut to = TcpStream::connect(&address).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut from, &mut to).await });
        }
    });
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
