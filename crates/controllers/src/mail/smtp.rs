//! Sends mails over SMTP, each over its own connection: notifications are too rare to keep connections open.

use std::{borrow::Cow, fmt, fs, path::Path, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use lettre::{
    Address, Message,
    transport::smtp::{
        Error,
        authentication::{Credentials, DEFAULT_MECHANISMS},
        client::{AsyncSmtpConnection, Certificate, Tls, TlsParameters},
        commands::{Data, Mail, Rcpt},
        extension::{ClientId, MailParameter},
    },
};
use percent_encoding::percent_decode_str;
use tokio::time::timeout;
use url::Url;

use super::{
    error::{MailError, Step},
    message::one_line,
};

/// Timeout of QUIT, after the mail server has accepted or refused the mail.
const QUIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest quoted part of a reply, in characters.
const SHOWN_CHARACTERS: usize = 300;

/// A mail server, and how to connect to it.
#[derive(Clone)]
pub(super) struct Server {
    host: String,
    port: u16,
    tls: Tls,
    hello: ClientId,
    login: Option<Login>,
}

#[derive(Clone)]
struct Login {
    credentials: Credentials,
    /// Texts that no message may contain: the password in plain text and encoded for AUTH.
    secrets: [String; 3],
}

impl Server {
    /// Parses a URL in lettre's format. The error says what is wrong and what to write.
    pub(super) fn read(url: &Url, authorities: Option<Vec<u8>>) -> Result<Self, String> {
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or("has no host; write smtps://HOST or smtp://HOST?tls=required")?;
        // An IPv6 address has brackets only in a URL.
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let parameters = || -> Result<TlsParameters, String> {
            let mut builder = TlsParameters::builder(host.clone());
            if let Some(pem) = &authorities {
                let certificate = Certificate::from_pem(pem).map_err(|error| error.to_string())?;
                builder = builder.add_root_certificate(certificate);
            }
            builder.build().map_err(|error| error.to_string())
        };
        let wanted = tls_parameter(url)?;
        // Default ports: RFC 5321, 6409 and 8314, as in lettre.
        let (tls, port) = match (url.scheme(), wanted.as_deref()) {
            ("smtps", None) => (Tls::Wrapper(parameters()?), 465),
            ("smtps", Some(_)) => return Err("has both smtps and ?tls=; smtps is encrypted from the start, leave ?tls= out".to_owned()),
            (_, None) => (Tls::None, 25),
            (_, Some("required")) => (Tls::Required(parameters()?), 587),
            (_, Some("opportunistic")) => (Tls::Opportunistic(parameters()?), 587),
            (_, Some(_)) => return Err("has an unknown ?tls=; write ?tls=required (STARTTLS, the safe choice) or ?tls=opportunistic (STARTTLS if the server offers it)".to_owned()),
        };
        let login = login(url)?;
        if login.is_some() && matches!(tls, Tls::None | Tls::Opportunistic(_)) && !is_loopback(&host) {
            return Err(
                "would send the password unencrypted; write smtps://…, or smtp://…?tls=required".to_owned(),
            );
        }
        let hello = match url.path().trim_matches('/') {
            "" => ClientId::default(),
            name if name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-') => {
                ClientId::Domain(name.to_owned())
            }
            _ => return Err("has a path that is not a host name; write the name to use in EHLO, as in smtp://HOST/stellage.example.com".to_owned()),
        };
        Ok(Self {
            port: url.port().unwrap_or(port),
            host,
            tls,
            hello,
            login,
        })
    }

    /// Sends the mail. Has no timeout; the caller sets one.
    pub(super) async fn send(&self, message: &Message) -> Result<(), MailError> {
        let wrapper = match &self.tls {
            Tls::Wrapper(parameters) => Some(parameters.clone()),
            _ => None,
        };
        let address = (self.host.as_str(), self.port);
        let mut connection = AsyncSmtpConnection::connect_tokio1(address, None, &self.hello, wrapper, None)
            .await
            .map_err(|error| self.error(Step::Connect, &error))?;
        if let Tls::Required(parameters) | Tls::Opportunistic(parameters) = &self.tls {
            if connection.can_starttls() {
                connection
                    .starttls(parameters.clone(), &self.hello)
                    .await
                    .map_err(|error| self.error(Step::Encrypt, &error))?;
            } else if matches!(self.tls, Tls::Required(_)) {
                return Err(MailError::NotEncrypted {
                    server: self.to_string(),
                });
            }
        }
        if let Some(login) = &self.login {
            connection
                .auth(DEFAULT_MECHANISMS, &login.credentials)
                .await
                .map_err(|error| self.error(Step::Authenticate, &error))?;
        }
        let sent = transmit(&mut connection, message).await;
        // The mail has been accepted or refused; the outcome of QUIT does not matter.
        let _ = timeout(QUIT_TIMEOUT, connection.quit()).await;
        sent.map_err(|error| self.error(Step::Send, &error))
    }

    fn error(&self, step: Step, error: &Error) -> MailError {
        let server = self.to_string();
        let source = std::error::Error::source(error);
        let mut text = source.map_or_else(|| error.to_string(), ToString::to_string);
        for secret in self.login.iter().flat_map(|login| &login.secrets) {
            text = text.replace(secret, "***");
        }
        let text = one_line(&text, SHOWN_CHARACTERS);
        match error.status() {
            Some(code) => MailError::Refused {
                server,
                step,
                code: code.into(),
                text,
            },
            None => MailError::Connection {
                server,
                step,
                // rustls's error arrives through lettre and io::Error, so only its text shows what kind it is.
                reason: if text.contains("certificate") {
                    format!(
                        "{text}; if the system does not trust its certificate authority, add that with --smtp-ca"
                    )
                } else {
                    text
                },
            },
        }
    }
}

/// Like lettre's own `send`, except that `send` sends QUIT after a refusal and returns the refusal only once the
/// server has replied to QUIT.
async fn transmit(connection: &mut AsyncSmtpConnection, message: &Message) -> Result<(), Error> {
    let envelope = message.envelope();
    let is_ascii = |address: &Address| AsRef::<str>::as_ref(address).is_ascii();
    let all_ascii = envelope.from().into_iter().chain(envelope.to()).all(is_ascii);
    // Only sent if needed: a server that does not know the parameter refuses it. The content is always ASCII.
    let parameters = if all_ascii {
        vec![]
    } else {
        vec![MailParameter::SmtpUtfEight]
    };
    connection
        .command(Mail::new(envelope.from().cloned(), parameters))
        .await?;
    for recipient in envelope.to() {
        connection.command(Rcpt::new(recipient.clone(), vec![])).await?;
    }
    connection.command(Data).await?;
    connection.message(&message.formatted()).await?;
    Ok(())
}

/// Host and port.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({self}, TLS: {:?})", self.tls)
    }
}

/// Reads `--smtp-ca`: PEM with at least one certificate, all of them valid.
pub(super) fn read_authorities(path: &Path) -> Result<Vec<u8>, MailError> {
    let wrong = |problem: String| MailError::Setting {
        flag: "--smtp-ca",
        problem: format!("names {}, which {problem}", path.display()),
    };
    let pem = fs::read(path).map_err(|error| wrong(format!("cannot be read ({error})")))?;
    let begin = b"-----BEGIN CERTIFICATE-----";
    if !pem.windows(begin.len()).any(|window| window == begin) {
        return Err(wrong(
            "has no certificate; it must be PEM, with -----BEGIN CERTIFICATE-----".to_owned(),
        ));
    }
    Certificate::from_pem(&pem)
        .and_then(|certificate| {
            TlsParameters::builder("localhost".to_owned())
                .add_root_certificate(certificate)
                .build()
        })
        .map_err(|error| wrong(format!("has a broken certificate ({error})")))?;
    Ok(pem)
}

/// The value of `?tls=`. Any other parameter is an error, because ignoring a misspelt `tls` would be dangerous.
fn tls_parameter(url: &Url) -> Result<Option<String>, String> {
    let mut value = None;
    for (name, text) in url.query_pairs() {
        if name != "tls" || value.is_some() {
            return Err(
                "may have one parameter, ?tls=required or ?tls=opportunistic, and no other".to_owned(),
            );
        }
        value = Some(text.into_owned());
    }
    if url.fragment().is_some() {
        return Err("has a '#'; write %23 if it belongs to the password".to_owned());
    }
    Ok(value)
}

fn login(url: &Url) -> Result<Option<Login>, String> {
    let decoded = |text: &str| {
        let decoded = percent_decode_str(text).decode_utf8();
        decoded
            .map(Cow::into_owned)
            .map_err(|_| "has a user name or password that is not UTF-8".to_owned())
    };
    match (url.username(), url.password()) {
        ("", None) => Ok(None),
        ("", Some(_)) | (_, None) => Err(
            "has a user name without a password, or the reverse; write smtps://USER:PASSWORD@HOST".to_owned(),
        ),
        (user, Some(password)) => {
            let (user, password) = (decoded(user)?, decoded(password)?);
            let plain = BASE64_STANDARD.encode(format!("\0{user}\0{password}"));
            Ok(Some(Login {
                secrets: [plain, BASE64_STANDARD.encode(&password), password.clone()],
                credentials: Credentials::new(user, password),
            }))
        }
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}
