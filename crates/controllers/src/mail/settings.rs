//! Settings of the notification e-mails.

use std::{convert::Infallible, fmt, path::PathBuf, str::FromStr, time::Duration};

use clap::Args;
use lettre::message::Mailbox;

use resources::account::MAX_MAILS_PER_DAY;

/// Settings of notification e-mails. Without `--smtp-url` none is sent.
#[derive(Args, Clone, Debug)]
pub struct MailSettings {
    /// Mail server for notifications: smtps://USER:PASSWORD@HOST, smtp://…?tls=required (STARTTLS), smtp://…?tls=opportunistic
    /// or, unencrypted, smtp://HOST; or file:///FOLDER for .eml files; default: no mail is sent
    ///
    /// A path in the URL is the name used in EHLO: smtp://HOST/NAME?tls=required. In user name and password, write characters
    /// that have a meaning in a URL as %XX. Other users of the machine can see a password on the command line: prefer the
    /// environment variable.
    #[arg(long, env = "STELLAGE_SMTP_URL", value_name = "URL", hide_env_values = true)]
    pub smtp_url: Option<SmtpUrl>,

    /// Sender of the notifications: an address, or a name and an address
    #[arg(long, env = "STELLAGE_MAIL_FROM", value_name = "ADDRESS", default_value = "Stellage <stellage@localhost>", value_parser = mailbox)]
    pub mail_from: Mailbox,

    /// PEM file with certificate authorities to trust for the mail server, in addition to the system's
    #[arg(long, env = "STELLAGE_SMTP_CA", value_name = "FILE")]
    pub smtp_ca: Option<PathBuf>,

    /// Seconds that sending one mail may take, connecting included
    #[arg(long, env = "STELLAGE_MAIL_TIMEOUT_SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub mail_timeout_seconds: u64,

    /// Minutes between two mails about the same webhook; what happens in between goes into the next one
    #[arg(long, env = "STELLAGE_MAIL_INTERVAL_MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u16).range(0..=1440))]
    pub mail_interval_minutes: u16,

    /// Mails to one account holder within 24 hours; what happens after that goes into the next one that is allowed
    #[arg(long, env = "STELLAGE_MAILS_PER_DAY", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_MAILS_PER_DAY)))]
    pub mails_per_day: u16,
}

/// How often account holders are notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailLimits {
    /// Least time between two mails about the same webhook.
    pub interval: Duration,
    /// Most mails to one account holder within 24 hours.
    pub per_day: usize,
}

impl MailSettings {
    /// How often account holders are notified.
    pub fn limits(&self) -> MailLimits {
        MailLimits {
            interval: Duration::from_secs(u64::from(self.mail_interval_minutes) * 60),
            per_day: self.mails_per_day.into(),
        }
    }
}

fn mailbox(text: &str) -> Result<Mailbox, String> {
    text.parse().map_err(|_| {
        "must be an e-mail address such as stellage@example.com or Stellage <stellage@example.com>".to_owned()
    })
}

/// A URL whose password is never shown. It accepts any text, because clap prints the values that it refuses;
/// [`Mailer::new`](super::Mailer::new) validates it.
#[derive(Clone, PartialEq, Eq)]
pub struct SmtpUrl(String);

impl SmtpUrl {
    /// The URL, with its password.
    pub(super) fn secret(&self) -> &str {
        &self.0
    }
}

impl FromStr for SmtpUrl {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

/// Shows nothing: with one misplaced character, a part of the password looks like a host or a path.
impl fmt::Debug for SmtpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SmtpUrl(***)")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        mail: MailSettings,
    }

    fn parse(arguments: &[&str]) -> Result<MailSettings, clap::Error> {
        let words = [&["test"], arguments].concat();
        Command::try_parse_from(words).map(|command| command.mail)
    }

    #[test]
    fn without_flags_no_mail_is_sent_and_the_rest_has_defaults() {
        let settings = parse(&[]).unwrap();
        assert_eq!(settings.smtp_url, None);
        assert_eq!(settings.mail_from.to_string(), "Stellage <stellage@localhost>");
        assert_eq!(settings.mail_timeout_seconds, 30);
    }

    #[test]
    fn a_password_is_shown_nowhere() {
        for url in [
            "smtps://ada:s3cret@mail.example.com",
            "smtps://ada:s3cret@mail.example.com:99999",
            "mailto:s3cret",
            "s3cret",
            "smtps:ada:s3cret@mail.example.com",
            "smtps://ada:1#s3cret@mail.example.com",
            "smtps://ada:1/s3cret@mail.example.com",
            "https://ada:s3cret@mail.example.com",
        ] {
            let settings = parse(&["--smtp-url", url]).unwrap();
            let debug = format!("{settings:?}");
            assert!(!debug.contains("s3cret"), "{debug}");
        }
        let error = parse(&["--smtp-url"]).unwrap_err().to_string();
        assert!(error.contains("--smtp-url <URL>"), "{error}");
        let help = Command::try_parse_from(["test", "--help"])
            .unwrap_err()
            .to_string();
        assert!(
            help.contains("[env: STELLAGE_SMTP_URL]"),
            "its value is not shown: {help}"
        );
    }

    #[test]
    fn a_wrong_sender_or_time_is_refused_with_flag_and_fix() {
        let error = parse(&["--mail-from", "nobody"]).unwrap_err().to_string();
        assert!(
            error.contains("'--mail-from <ADDRESS>': must be an e-mail address such as"),
            "{error}"
        );
        for wrong in ["0", "601", "30s"] {
            let error = parse(&["--mail-timeout-seconds", wrong]).unwrap_err().to_string();
            assert!(error.contains("--mail-timeout-seconds"), "{error}");
        }
    }
}
