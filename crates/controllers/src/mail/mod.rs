//! Notification e-mails: their text, and sending them to a mail server or into a folder.
//!
//! - `report`: the e-mail about disabled webhooks and backlogs;
//! - `message`: a notification, and its conversion to an e-mail message;
//! - `smtp`: sends over SMTP; `folder`: writes `.eml` files;
//! - `settings`: the flags; `error`: the errors.
//!
//! Delivery is at least once: if the connection breaks after the last byte, only the mail server knows whether it has the
//! mail. A repeated mail has the same Message-ID, so mail programs can recognise it.

mod error;
mod folder;
mod message;
mod report;
mod settings;
mod smtp;

use std::{fmt, path::PathBuf, time::Duration};

use lettre::message::Mailbox;
use tokio::time::timeout;
use url::Url;

pub use error::{MailError, Step};
pub use message::Notification;
pub use report::report;
pub use settings::{MailLimits, MailSettings, SmtpUrl};
use smtp::Server;

/// Sends notifications. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Mailer {
    target: Target,
    from: Mailbox,
    timeout: Duration,
}

#[derive(Clone, Debug)]
enum Target {
    Nowhere,
    Folder(PathBuf),
    Server(Server),
}

impl Mailer {
    /// A mailer for these settings. Checks all of them, including file and folder, but does not connect to the mail server,
    /// which may be down at the moment.
    ///
    /// Errors: [`MailError::Setting`], which names the flag and the fix.
    pub fn new(settings: &MailSettings) -> Result<Self, MailError> {
        let authorities = settings.smtp_ca.as_deref().map(smtp::read_authorities);
        let authorities = authorities.transpose()?;
        let target = match &settings.smtp_url {
            None => Target::Nowhere,
            Some(url) => Target::read(url, authorities)?,
        };
        Ok(Self {
            target,
            from: settings.mail_from.clone(),
            timeout: Duration::from_secs(settings.mail_timeout_seconds),
        })
    }

    /// Whether there is a mail server or a folder. Without one every [`send`](Self::send) fails.
    pub fn is_configured(&self) -> bool {
        !matches!(self.target, Target::Nowhere)
    }

    /// Sends one mail, within `--mail-timeout-seconds`, and returns once the mail server has accepted it or the file is
    /// written.
    ///
    /// Errors: any [`MailError`] except `Setting`.
    pub async fn send(&self, mail: &Notification) -> Result<(), MailError> {
        let sending = async {
            match &self.target {
                Target::Nowhere => Err(MailError::NotConfigured),
                Target::Folder(folder) => {
                    let content = mail.message(&self.from)?.formatted();
                    folder::write(folder.clone(), mail.file_name(), content).await
                }
                Target::Server(server) => server.send(&mail.message(&self.from)?).await,
            }
        };
        timeout(self.timeout, sending)
            .await
            .map_err(|_| MailError::Timeout {
                to: self.to_string(),
                seconds: self.timeout.as_secs(),
            })?
    }
}

/// The mail server or folder, without user name and password.
impl fmt::Display for Mailer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Nowhere => f.write_str("nowhere (no --smtp-url)"),
            Target::Folder(folder) => folder.display().fmt(f),
            Target::Server(server) => server.fmt(f),
        }
    }
}

impl Target {
    fn read(url: &SmtpUrl, authorities: Option<Vec<u8>>) -> Result<Self, MailError> {
        let wrong = |problem: String| MailError::Setting {
            flag: "--smtp-url",
            problem,
        };
        // The parser's messages contain no part of the URL, so no password either.
        let parsed = Url::parse(url.secret()).map_err(|error| {
            wrong(format!(
                "is not a URL ({error}); write one such as smtps://USER:PASSWORD@HOST, smtp://HOST?tls=required or \
                 file:///FOLDER, with %XX for characters of a password that have a meaning in a URL"
            ))
        })?;
        match parsed.scheme() {
            "file" => {
                let folder = parsed.to_file_path().map_err(|()| {
                    wrong(
                        "must have the absolute path of a folder after three slashes: file:///FOLDER"
                            .to_owned(),
                    )
                })?;
                folder::create(&folder).map_err(|error| {
                    wrong(format!(
                        "names {}, which cannot be created or written to ({error})",
                        folder.display()
                    ))
                })?;
                Ok(Self::Folder(folder))
            }
            "smtp" | "smtps" => Server::read(&parsed, authorities)
                .map(Self::Server)
                .map_err(wrong),
            _ => Err(wrong("must begin with smtp://, smtps:// or file:///".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> MailSettings {
        MailSettings {
            smtp_url: Some(url.parse().unwrap_or_else(|never| match never {})),
            mail_from: "Stellage <stellage@localhost>".parse().unwrap(),
            smtp_ca: None,
            mail_timeout_seconds: 30,
            mail_interval_minutes: 60,
            mails_per_day: 10,
        }
    }

    #[test]
    fn a_wrong_url_is_refused_at_start_with_flag_and_fix_and_without_the_password() {
        for (url, expected) in [
            ("", "is not a URL"),
            ("mail.example.com", "is not a URL"),
            ("mail.example.com:25", "must begin with smtp://"),
            ("https://u:s3cret@mail.example.com", "must begin with smtp://"),
            ("smtp://", "has no host; write smtps://HOST"),
            ("smtps://u:s3cret@", "is not a URL"),
            ("smtps://u:s3cret@mail.example.com:99999", "is not a URL"),
            ("smtp://u:s3#cret@mail.example.com", "is not a URL"),
            (
                "smtp://mail.example.com?tls=requierd",
                "has an unknown ?tls=; write ?tls=required",
            ),
            (
                "smtp://mail.example.com?TLS=required",
                "may have one parameter, ?tls=required",
            ),
            (
                "smtp://mail.example.com?tls=required&tls=required",
                "may have one parameter",
            ),
            ("smtps://mail.example.com?tls=required", "leave ?tls= out"),
            ("smtps://u@mail.example.com", "write smtps://USER:PASSWORD@HOST"),
            (
                "smtps://:s3cret@mail.example.com",
                "write smtps://USER:PASSWORD@HOST",
            ),
            ("smtps://u:s3cret%ff@mail.example.com", "is not UTF-8"),
            (
                "smtp://u:s3cret@mail.example.com",
                "would send the password unencrypted; write smtps://",
            ),
            (
                "smtp://u:s3cret@mail.example.com?tls=opportunistic",
                "would send the password unencrypted",
            ),
            (
                "smtp://mail.example.com/a%20b",
                "has a path that is not a host name",
            ),
            (
                "file://mail",
                "must have the absolute path of a folder after three slashes",
            ),
            (
                "file:///dev/null/mail",
                "names /dev/null/mail, which cannot be created or written to",
            ),
        ] {
            let error = Mailer::new(&settings(url)).unwrap_err();
            let text = error.to_string();
            assert!(
                text.starts_with("--smtp-url ") && text.contains(expected),
                "{url}: {text}"
            );
            assert!(
                !text.contains("cret") && !format!("{error:?}").contains("cret"),
                "{url}: {text}"
            );
        }
    }

    #[test]
    fn each_form_of_url_is_understood_and_shown_without_the_password() {
        for (url, shown, tls) in [
            ("smtp://mail.example.com", "mail.example.com:25", "None"),
            ("smtp://mail.example.com:2525", "mail.example.com:2525", "None"),
            (
                "smtp://mail.example.com/me.example.com?tls=required",
                "mail.example.com:587",
                "Required",
            ),
            (
                "smtp://u:s3cret@mail.example.com?tls=required",
                "mail.example.com:587",
                "Required",
            ),
            (
                "smtp://mail.example.com?tls=opportunistic",
                "mail.example.com:587",
                "Opportunistic",
            ),
            (
                "smtps://u:s3cret@mail.example.com",
                "mail.example.com:465",
                "Wrapper",
            ),
            ("smtp://u:s3cret@127.0.0.1:2525", "127.0.0.1:2525", "None"),
            ("smtp://u:s3cret@[::1]:2525", "[::1]:2525", "None"),
        ] {
            let mailer = Mailer::new(&settings(url)).unwrap();
            assert!(mailer.is_configured());
            assert_eq!(mailer.to_string(), shown);
            let debug = format!("{mailer:?}");
            assert!(debug.contains(&format!("Server({shown}, TLS: {tls})")), "{debug}");
            assert!(!debug.contains("s3cret"), "{debug}");
        }
    }

    #[test]
    fn a_file_of_authorities_without_any_is_refused_at_start_whatever_the_url() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        for (content, expected) in [
            (None, "cannot be read"),
            (Some(""), "has no certificate; it must be PEM"),
            (
                Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
                "has a broken certificate",
            ),
        ] {
            if let Some(content) = content {
                std::fs::write(&path, content).unwrap();
            }
            let settings = MailSettings {
                smtp_ca: Some(path.clone()),
                ..settings("smtp://mail.example.com")
            };
            let error = Mailer::new(&settings).unwrap_err().to_string();
            assert!(
                error.starts_with("--smtp-ca names ") && error.contains(expected),
                "{error}"
            );
        }
    }
}
