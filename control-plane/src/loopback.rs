//! HTTP requests to servers on loopback.

use std::{io, sync::OnceLock, time::Duration};

use http::Method;
use reqwest::Client;

/// Sends one request to `authority` (`127.0.0.1:port`) and returns status and body. The timeout is two seconds.
pub async fn request(
    authority: &str,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<(u16, String)> {
    let mut request = client()
        .request(method, format!("http://{authority}{path}"))
        .body(body.to_owned());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = request.send().await.map_err(io::Error::other)?;
    let status = answer.status().as_u16();
    Ok((status, answer.text().await.map_err(io::Error::other)?))
}

fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .no_proxy()
            // Each test has its own runtime, and its connections end with it.
            .pool_max_idle_per_host(0)
            .timeout(Duration::from_secs(2));
        client.build().unwrap_or_default()
    })
}
