//! A throw-away certificate authority.

use std::sync::{Arc, LazyLock};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::{
    ALL_VERSIONS, RootCertStore, ServerConfig, SupportedProtocolVersion,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
    version::TLS12,
};

static SHARED: LazyLock<Authority> = LazyLock::new(Authority::new);

/// A loopback address that nothing else listens on, for a receiver whose port must not be taken while it is down.
pub const OWN_ADDRESS: &str = "127.8.4.43";

/// The names and addresses in the receivers' certificates.
pub const NAMES: &[&str] = &[
    "127.0.0.1",
    OWN_ADDRESS,
    "::ffff:127.0.0.1",
    "::1",
    "localhost",
    "receiver.test",
    "*.receiver.test",
];

/// A certificate authority that no system trusts.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
            .distinguished_name
            .push(DnType::CommonName, "Throw-away authority of the tests");
        Self {
            issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap(),
        }
    }

    /// The authority shared by all receivers of this process.
    pub fn shared() -> &'static Self {
        &SHARED
    }

    /// Its certificate.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// TLS for a server with these names and protocols (ALPN).
    pub fn server(&self, names: &[&str], alpn: &[&str]) -> Arc<ServerConfig> {
        self.server_with(alpn, names, |_| {})
    }

    /// Like `server`, with another certificate.
    pub fn server_with(
        &self,
        alpn: &[&str],
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let mut params = params(names);
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        config(certificate.der().clone(), &key, alpn)
    }

    /// A certificate for these names, and its key, in PEM.
    pub fn issue(&self, names: &[&str]) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = params(names).signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// Like `issue`, with a common name, by which servers know a client.
    pub fn issue_to(&self, common_name: &str, names: &[&str]) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = params(names);
        params.distinguished_name.push(DnType::CommonName, common_name);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// Like `server`, for clients that have a certificate of this authority.
    pub fn server_for_clients_of_its_own(&self, names: &[&str], alpn: &[&str]) -> Arc<ServerConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
            .build()
            .unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params(names).signed_by(&key, &self.issuer).unwrap();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(ALL_VERSIONS)
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// Like `server`, with TLS 1.2 only.
    pub fn server_with_tls12(&self, names: &[&str], alpn: &[&str]) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let certificate = params(names).signed_by(&key, &self.issuer).unwrap();
        config_of(&[&TLS12], certificate.der().clone(), &key, alpn)
    }

    /// TLS with a certificate that expired in 2001.
    pub fn expired(&self, names: &[&str], alpn: &[&str]) -> Arc<ServerConfig> {
        self.server_with(alpn, names, |params| {
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(2001, 1, 1);
        })
    }

    /// TLS with a self-signed certificate.
    pub fn self_signed(names: &[&str], alpn: &[&str]) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let certificate = params(names).self_signed(&key).unwrap();
        config(certificate.der().clone(), &key, alpn)
    }
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    CertificateParams::new(names).unwrap()
}

fn config(certificate: CertificateDer<'static>, key: &KeyPair, alpn: &[&str]) -> Arc<ServerConfig> {
    config_of(ALL_VERSIONS, certificate, key, alpn)
}

fn config_of(
    versions: &[&'static SupportedProtocolVersion],
    certificate: CertificateDer<'static>,
    key: &KeyPair,
    alpn: &[&str],
) -> Arc<ServerConfig> {
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}
