//! Notification e-mails: what they say ([`disabled`]), and how they get to a mail server or into a folder.
//!
//! A mail is sent at least once: when the connection breaks after its last byte, only the mail server knows whether it has
//! it. The Message-ID is the same each time, so a repetition can be recognised.

mod disabled;
mod error;
mod folder;
mod message;
mod settings;
mod smtp;

use std::{fmt, path::PathBuf, time::Duration};

use lettre::message::Mailbox;
use tokio::time::timeout;
use url::Url;

pub use disabled::{DisabledWebhook, Reason};
pub use error::{MailError, Step};
pub use message::Notification;
pub use settings::{MailSettings, SmtpUrl};
use smtp::Server;

/// Sends notifications as the settings say. Cheap to clone.
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
    /// A mailer for these settings. It looks at all of them, files and folder too, but does not call the mail server: that
    /// one may be down for now.
    ///
    /// Errors: [`MailError::Setting`], with flag and fix.
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

    /// Sends one mail, within `--mail-timeout-seconds` all in all, and returns once the mail server has taken it on, or
    /// the file is there.
    ///
    /// Errors: any [`MailError`] but `Setting`; [`MailError::is_permanent`] tells whether trying again can help.
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

/// Where mails go, without user name and password.
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
        // The parser's own words have nothing of the URL in them.
        let parsed = Url::parse(url.secret()).map_err(|error| {
            wrong(format!(
                "is not a URL ({error}); write one such as smtps://USER:PASSWORD@HOST, smtp://HOST?tls=required or \
                 file:///FOLDER, with %XX for characters of a password that mean something in a URL"
            ))
        })?;
        match parsed.scheme() {
            "file" => {
                let folder = parsed.to_file_path().map_err(|()| {
                    wrong(
                        "must name a folder by its whole path, after three slashes: file:///FOLDER"
                            .to_owned(),
                    )
                })?;
                folder::make(&folder).map_err(|error| {
                    wrong(format!(
                        "names {}, which cannot be made or written to ({error})",
                        folder.display()
                    ))
                })?;
                Ok(Self::Folder(folder))
            }
            "smtp" | "smtps" => Server::read(&parsed, authorities)
                .map(Self::Server)
                .map_err(wrong),
            scheme => Err(wrong(format!(
                "must begin with smtp://, smtps:// or file:///, not with {scheme}:"
            ))),
        }
    }
}
