//! TLS for clients of servers that the administrator names.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_native_certs::load_native_certs;

/// The configuration of a client that trusts the system's certificate authorities, or those that SSL_CERT_FILE
/// names.
pub fn client_config() -> Result<ClientConfig, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
