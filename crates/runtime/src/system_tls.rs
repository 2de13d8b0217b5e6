//! TLS for clients of servers that the administrator names.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use rustls_native_certs::load_native_certs;

/// The configuration of a client that trusts the system's certificate authorities, or those that SSL_CERT_FILE
/// names.
pub fn client_config() -> Result<ClientConfig, rustls::Error> {
    trusting(load_native_certs().certs)
}

/// The configuration of a client that trusts the certificate authorities in a PEM file, and no others.
pub fn client_config_of(pem: &[u8]) -> Result<ClientConfig, rustls::Error> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = certificates.map_err(|error| rustls::Error::General(error.to_string()))?;
    if certificates.is_empty() {
        return Err(rustls::Error::General("it has no certificate".to_owned()));
    }
    trusting(certificates)
}

fn trusting(certificates: Vec<CertificateDer<'static>>) -> Result<ClientConfig, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
