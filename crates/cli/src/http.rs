//! HTTP clients that trust the system's certificates.

use std::{sync::Arc, time::Duration};

use reqwest::{Client, ClientBuilder, redirect};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use url::Url;

use super::{CliError, connect::innermost};

/// How long a connection to the service may take.
const CONNECTED_WITHIN: Duration = Duration::from_secs(30);

/// A client for a URL that trusts the system's root certificates. Over plain HTTP it needs none.
pub(super) fn builder(url: &Url) -> Result<ClientBuilder, CliError> {
    let roots = if url.scheme() == "https" {
        system_roots()?
    } else {
        RootCertStore::empty()
    };
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| without_roots(&error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Client::builder().tls_backend_preconfigured(tls))
}

/// A client of the service at this URL. It speaks HTTP/1.1, the only version in which a connection becomes a WebSocket.
pub(super) fn client(url: &Url) -> Result<Client, CliError> {
    let built = builder(url)?
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECTED_WITHIN)
        .http1_only()
        .build();
    built.map_err(|error| refused(&error))
}

/// Why there is no client.
pub(super) fn refused(error: &reqwest::Error) -> CliError {
    CliError::Plain(format!("cannot set up the HTTP client: {}", innermost(error)))
}

fn without_roots(why: &str) -> CliError {
    CliError::Plain(format!(
        "cannot load the root certificates of this machine: {why}\nInstall them (Debian: apt-get install ca-certificates), or set SSL_CERT_FILE to a PEM file."
    ))
}

/// The system's root certificates, or those in `SSL_CERT_FILE`.
fn system_roots() -> Result<RootCertStore, CliError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let errors: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        return Err(if errors.is_empty() {
            without_roots("there are none")
        } else {
            without_roots(&errors.join("; "))
        });
    }
    Ok(roots)
}
