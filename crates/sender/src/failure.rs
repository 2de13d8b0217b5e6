//! Why an attempt failed, in words for the receiver's owner: what the TLS and HTTP libraries report, with the fix where there is one.
//! The table in docs/receivers.md says more about most of them.

use std::{borrow::Cow, error::Error as StdError};

use h2::Reason;
use hyper_util::client::legacy::Error as HttpError;
use rustls::{AlertDescription, CertificateError, Error as TlsError};

use super::{
    AttemptError,
    connect_error::{ConnectError, find},
};

const VERSIONS: &str = "it accepts no version or cipher that this service offers; enable TLS 1.3, or TLS 1.2 with ECDHE and AES-GCM or \
                        ChaCha20-Poly1305";
const CLIENT_CERTIFICATE: &str = "it wants a client certificate, which deliveries do not have; switch that off for the URL, and verify the \
                                  signature of deliveries instead";
const TLS_RULES: &str =
    "it breaks the rules of TLS; update its TLS software, or whatever stands in front of it";
const NO_PROTOCOL: &str = "it speaks neither h2 nor http/1.1 by its own account (ALPN); allow one of them";
const MALFORMED: &str = "its certificate is malformed; have it issued again";
const LONG_CHAIN: &str = "its chain of certificates is too long or has too many names; send only its own certificate and the intermediate ones";
const ALGORITHM: &str = "its certificate, or one of its chain, is signed with an algorithm that is no longer accepted, such as SHA-1; get \
                         one signed with SHA-256 or better";

/// The failure of a connection.
impl From<&ConnectError> for AttemptError {
    fn from(error: &ConnectError) -> Self {
        match error {
            ConnectError::Forbidden => Self::ForbiddenAddress,
            ConnectError::NoAddress => Self::NoAddress,
            ConnectError::Lookup => Self::Dns,
            ConnectError::Tcp(reason) => Self::Connect(reason),
            ConnectError::TcpTimeout(limit) => Self::ConnectTimeout(*limit),
            ConnectError::Proxy(reason) => Self::Proxy(reason),
            ConnectError::BrokenProxy(reason) => Self::BrokenProxy(reason),
            ConnectError::TlsTimeout(limit) => Self::TlsTimeout(*limit),
            ConnectError::Tls(error) => of_tls(error),
            ConnectError::Closed => Self::Reset,
            ConnectError::Flood => Self::Protocol("more arrived than is read of one".into()),
        }
    }
}

/// An error of the HTTP client. `connection` is what ended the connection, such as a refusal of the server in TLS 1.3, which can come
/// after the handshake.
pub(super) fn of_http(error: &HttpError, connection: Option<ConnectError>) -> AttemptError {
    let error: &(dyn StdError + 'static) = error;
    if let Some(error) = find::<ConnectError>(error).or(connection.as_ref()) {
        return error.into();
    }
    if let Some(error) = find::<h2::Error>(error) {
        return of_http2(error);
    }
    match find::<hyper::Error>(error) {
        Some(error) if error.is_parse_too_large() => {
            AttemptError::Protocol("its head has more than 100 headers or 32 KiB".into())
        }
        Some(error) if error.is_parse() => {
            AttemptError::Protocol("it must begin with a status line such as HTTP/1.1 200 OK".into())
        }
        Some(error) if error.is_timeout() => {
            AttemptError::Cancelled("it no longer answers the pings of the connection".into())
        }
        _ => AttemptError::Reset,
    }
}

fn of_http2(error: &h2::Error) -> AttemptError {
    let Some(reason) = error.reason() else {
        // The connection broke.
        return AttemptError::Reset;
    };
    match reason {
        Reason::HTTP_1_1_REQUIRED => AttemptError::Cancelled(
            "it wants HTTP/1.1, but offers HTTP/2 in the TLS handshake (ALPN); switch HTTP/2 off there".into(),
        ),
        Reason::NO_ERROR if error.is_remote() => AttemptError::Reset,
        _ if error.is_remote() => AttemptError::Cancelled(reason.description().to_owned().into()),
        Reason::PROTOCOL_ERROR if error.is_reset() => AttemptError::Protocol(
            "over HTTP/2 its headers break the rules; remove Connection, Keep-Alive, Proxy-Connection, Transfer-Encoding, Upgrade, a \
             Content-Length that does not match the body, and whatever exceeds 16 KiB"
                .into(),
        ),
        Reason::PROTOCOL_ERROR => AttemptError::Protocol(
            "over HTTP/2 its frames break the rules, for instance by a header with capitals in its name".into(),
        ),
        _ => AttemptError::Protocol(format!("over HTTP/2: {}", reason.description()).into()),
    }
}

/// An error of TLS.
pub(super) fn of_tls(error: &TlsError) -> AttemptError {
    let why = match error {
        TlsError::InvalidCertificate(certificate) => return of_certificate(certificate),
        TlsError::InvalidMessage(_)
        | TlsError::InappropriateMessage { .. }
        | TlsError::InappropriateHandshakeMessage { .. } => {
            "it does not speak TLS on this port; give the port of its HTTPS server in the URL"
        }
        TlsError::PeerIncompatible(_) => VERSIONS,
        TlsError::NoCertificatesPresented => "it has no certificate; configure one",
        TlsError::DecryptError => {
            "a message of it cannot be decrypted; something on the way may change what is sent"
        }
        TlsError::PeerMisbehaved(_) | TlsError::PeerSentOversizedRecord => TLS_RULES,
        TlsError::NoApplicationProtocol => NO_PROTOCOL,
        TlsError::AlertReceived(alert) => return AttemptError::Tls(of_alert(*alert)),
        other => {
            tracing::debug!(error = %other, "TLS with a receiver failed");
            "the handshake failed"
        }
    };
    AttemptError::Tls(why.into())
}

/// What the receiver says is wrong.
fn of_alert(alert: AlertDescription) -> Cow<'static, str> {
    let why = match alert {
        AlertDescription::HandshakeFailure
        | AlertDescription::ProtocolVersion
        | AlertDescription::InsufficientSecurity => VERSIONS,
        AlertDescription::UnrecognisedName => {
            "it does not know the URL's host (SNI); configure this name there"
        }
        AlertDescription::CertificateRequired
        | AlertDescription::NoCertificate
        | AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateRevoked
        | AlertDescription::UnknownCA => CLIENT_CERTIFICATE,
        AlertDescription::AccessDenied => "it refuses connections from this service",
        AlertDescription::NoApplicationProtocol => NO_PROTOCOL,
        AlertDescription::InternalError => "it reports an internal error; its log says more",
        AlertDescription::UserCanceled => "it ended the handshake",
        other => {
            return format!(
                "it ended the connection with TLS alert {}; its log says more",
                u8::from(other)
            )
            .into();
        }
    };
    why.into()
}

/// What is wrong with the receiver's certificate.
fn of_certificate(error: &CertificateError) -> AttemptError {
    let why = match error {
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => return AttemptError::TlsExpired,
        // `BadSignature`: the issuer has the name of a trusted authority but a different key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            return AttemptError::TlsUnknownIssuer;
        }
        CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
            return AttemptError::TlsNoName;
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            return AttemptError::TlsWrongName;
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is not valid for servers; get one with extendedKeyUsage serverAuth"
        }
        CertificateError::BadEncoding => MALFORMED,
        CertificateError::Revoked => "its certificate has been revoked; get a new one",
        CertificateError::UnhandledCriticalExtension => {
            "its certificate has a critical extension that this service does not know; get one without"
        }
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => ALGORITHM,
        CertificateError::Other(other) => find::<webpki::Error>(&*other.0).map_or(MALFORMED, of_chain),
        other => {
            tracing::debug!(error = %other, "the certificate of a receiver is not valid");
            "its certificate is not valid"
        }
    };
    AttemptError::Tls(why.into())
}

/// What rustls has no words for.
fn of_chain(error: &webpki::Error) -> &'static str {
    use webpki::Error;
    match error {
        Error::CaUsedAsEndEntity => {
            "its certificate is a certificate authority's; give the server one of its own, with basicConstraints CA:FALSE, issued by that \
             authority"
        }
        Error::EndEntityUsedAsCa => {
            "its certificate was issued by one that is no certificate authority's; send the intermediate certificates of its issuer, each with \
             basicConstraints CA:TRUE"
        }
        Error::NameConstraintViolation => {
            "its certificate authority may not issue certificates for its names (name constraints); get one from another"
        }
        Error::PathLenConstraintViolated => {
            "an authority of its chain may not have further ones below it (path length); send the intermediate certificates of its issuer"
        }
        Error::UnsupportedCertVersion => {
            "its certificate is not an X.509 certificate of version 3; have it issued again as one, with subjectAltName"
        }
        Error::SignatureAlgorithmMismatch => ALGORITHM,
        Error::MaximumNameConstraintComparisonsExceeded
        | Error::MaximumPathBuildCallsExceeded
        | Error::MaximumPathDepthExceeded
        | Error::MaximumSignatureChecksExceeded => LONG_CHAIN,
        _ => MALFORMED,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::OtherError;

    use super::*;

    /// Names from the source, as debug forms show them.
    fn has_debug_form(text: &str) -> bool {
        let camel = |word: &str| {
            word.len() > 4
                && word.chars().all(char::is_alphanumeric)
                && word.chars().skip(1).any(char::is_uppercase)
                && word.chars().any(char::is_lowercase)
        };
        text.split(|c: char| !c.is_alphanumeric()).any(|word| {
            camel(word)
                && ![
                    "ChaCha20",
                    "subjectAltName",
                    "basicConstraints",
                    "extendedKeyUsage",
                    "serverAuth",
                ]
                .contains(&word)
        })
    }

    fn assert_words(error: &TlsError) -> String {
        let text = of_tls(error).to_string();
        assert!(
            !has_debug_form(&text) && !text.contains(['{', '}', '"']),
            "{error:?}: {text}"
        );
        assert!(text.len() < 350, "{text}");
        text
    }

    #[test]
    fn every_error_of_certificates_has_words() {
        use webpki::Error;
        let context = webpki::UnsupportedSignatureAlgorithmContext {
            signature_algorithm_id: vec![1; 5000],
            supported_algorithms: Vec::new(),
        };
        for (error, word) in [
            (Error::CaUsedAsEndEntity, "CA:FALSE"),
            (Error::EndEntityUsedAsCa, "CA:TRUE"),
            (Error::NameConstraintViolation, "name constraints"),
            (Error::PathLenConstraintViolated, "path length"),
            (Error::UnsupportedCertVersion, "version 3"),
            (Error::SignatureAlgorithmMismatch, "SHA-256"),
            (Error::MaximumNameConstraintComparisonsExceeded, "too long"),
            (Error::MaximumPathBuildCallsExceeded, "too long"),
            (Error::MaximumPathDepthExceeded, "too long"),
            (Error::MaximumSignatureChecksExceeded, "too long"),
            (Error::BadDer, "malformed"),
            (Error::BadDerTime, "malformed"),
            (Error::EmptyEkuExtension, "malformed"),
            (Error::ExtensionValueInvalid, "malformed"),
            (Error::InvalidCertValidity, "malformed"),
            (Error::InvalidNetworkMaskConstraint, "malformed"),
            (Error::InvalidSerialNumber, "malformed"),
            (Error::MalformedDnsIdentifier, "malformed"),
            (Error::MalformedExtensions, "malformed"),
            (Error::MalformedNameConstraint, "malformed"),
            (Error::UnsupportedCriticalExtension, "malformed"),
            (Error::UnsupportedNameType, "malformed"),
            (Error::UnsupportedSignatureAlgorithmContext(context), "malformed"),
        ] {
            let other = CertificateError::Other(OtherError(Arc::new(error)));
            let text = assert_words(&TlsError::InvalidCertificate(other));
            assert!(text.contains(word), "{text}");
        }
        let presented = |presented| CertificateError::NotValidForNameContext {
            expected: "hooks.example.com".try_into().unwrap(),
            presented,
        };
        let now = rustls::pki_types::UnixTime::now();
        let unknown = std::io::Error::other("x".repeat(10_000));
        for (error, word) in [
            (CertificateError::BadEncoding, "malformed"),
            (CertificateError::Expired, "renew"),
            (
                CertificateError::ExpiredContext {
                    time: now,
                    not_after: now,
                },
                "renew",
            ),
            (CertificateError::NotValidYet, "not valid yet"),
            (
                CertificateError::NotValidYetContext {
                    time: now,
                    not_before: now,
                },
                "not valid yet",
            ),
            (CertificateError::Revoked, "revoked"),
            (CertificateError::UnhandledCriticalExtension, "critical extension"),
            (CertificateError::UnknownIssuer, "intermediate"),
            (CertificateError::BadSignature, "intermediate"),
            (CertificateError::UnknownRevocationStatus, "not valid"),
            (CertificateError::ExpiredRevocationList, "not valid"),
            (
                CertificateError::UnsupportedSignatureAlgorithmContext {
                    signature_algorithm_id: vec![1; 5000],
                    supported_algorithms: Vec::new(),
                },
                "SHA-256",
            ),
            (
                CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
                    signature_algorithm_id: vec![1; 5000],
                    public_key_algorithm_id: vec![1; 5000],
                },
                "SHA-256",
            ),
            (CertificateError::NotValidForName, "not for the URL's host"),
            (presented(vec!["x".repeat(5000)]), "not for the URL's host"),
            (presented(Vec::new()), "no subjectAltName"),
            (CertificateError::InvalidPurpose, "serverAuth"),
            (
                CertificateError::InvalidPurposeContext {
                    required: rustls::ExtendedKeyPurpose::ServerAuth,
                    presented: vec![rustls::ExtendedKeyPurpose::Other(vec![1; 5000])],
                },
                "serverAuth",
            ),
            (CertificateError::InvalidOcspResponse, "not valid"),
            (CertificateError::ApplicationVerificationFailure, "not valid"),
            (
                CertificateError::Other(OtherError(Arc::new(unknown))),
                "malformed",
            ),
        ] {
            let text = assert_words(&TlsError::InvalidCertificate(error));
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn every_error_of_tls_has_words() {
        for (error, word) in [
            (
                TlsError::InappropriateMessage {
                    expect_types: Vec::new(),
                    got_type: rustls::ContentType::Alert,
                },
                "does not speak TLS",
            ),
            (
                TlsError::InappropriateHandshakeMessage {
                    expect_types: Vec::new(),
                    got_type: rustls::HandshakeType::Finished,
                },
                "does not speak TLS",
            ),
            (
                TlsError::InvalidMessage(rustls::InvalidMessage::InvalidContentType),
                "HTTPS server",
            ),
            (TlsError::NoCertificatesPresented, "no certificate"),
            (TlsError::UnsupportedNameType, "handshake failed"),
            (TlsError::DecryptError, "decrypted"),
            (TlsError::EncryptError, "handshake failed"),
            (
                TlsError::PeerIncompatible(rustls::PeerIncompatible::ServerDoesNotSupportTls12Or13),
                "enable TLS 1.3",
            ),
            (
                TlsError::PeerMisbehaved(rustls::PeerMisbehaved::TooMuchEarlyDataReceived),
                "rules of TLS",
            ),
            (TlsError::PeerSentOversizedRecord, "rules of TLS"),
            (TlsError::General("InternalName".to_owned()), "handshake failed"),
            (TlsError::FailedToGetCurrentTime, "handshake failed"),
            (TlsError::HandshakeNotComplete, "handshake failed"),
            (TlsError::NoApplicationProtocol, "ALPN"),
            (TlsError::BadMaxFragmentSize, "handshake failed"),
            (
                TlsError::Other(OtherError(Arc::new(std::io::Error::other("InternalName")))),
                "handshake failed",
            ),
        ] {
            let text = assert_words(&error);
            assert!(text.contains(word), "{text}");
        }
        // Every alert there could be.
        for number in 0..=255 {
            assert_words(&TlsError::AlertReceived(AlertDescription::from(number)));
        }
        for (alert, word) in [
            (AlertDescription::HandshakeFailure, "enable TLS 1.3"),
            (AlertDescription::UnrecognisedName, "SNI"),
            (AlertDescription::CertificateRequired, "client certificate"),
            (AlertDescription::DecodeError, "TLS alert 50"),
        ] {
            let text = assert_words(&TlsError::AlertReceived(alert));
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn every_error_of_http2_has_words() {
        for number in 0..20 {
            let text = of_http2(&Reason::from(number).into()).to_string();
            assert!(!has_debug_form(&text), "{text}");
        }
    }
}
