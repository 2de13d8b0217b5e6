//! The local run's settings, from the environment or as options.

use std::{fs, io, os::unix::process::parent_id, path::PathBuf};

#[derive(clap::Args)]
pub(crate) struct Settings {
    /// The API's port on 127.0.0.1; 0 takes a free one
    #[arg(long, env = "PORT", default_value = "8080", value_parser = port)]
    pub(super) port: u16,
    /// Seconds that the simulator takes to provision an instance, from 0
    #[arg(long, env = "PROVISIONING", default_value = "150", value_name = "SECONDS", value_parser = provisioning)]
    pub(super) provisioning: u32,
    /// Delays before the retries of a delivery, 1 to 20 of them: whole numbers with a unit, ms, s, m, h or d
    #[arg(long, env = "RETRY_SCHEDULE", default_value = "1m,5m,30m,2h,6h", value_name = "DELAYS", value_parser = retry_schedule)]
    pub(super) retry_schedule: String,
    /// PEM file with certificates to trust for webhook receivers, beside the system's
    #[arg(long, env = "RECEIVER_CA", value_name = "FILE", value_parser = receiver_ca)]
    pub(super) receiver_ca: Option<PathBuf>,
    /// Mail server for notifications, such as smtp://127.0.0.1:2525; default: .eml files in .run/mail/
    // Not checked by clap, whose errors show the value, and it may hold a password.
    #[arg(long, env = "SMTP_URL", value_name = "URL", hide_env_values = true)]
    smtp_url: Option<String>,
    /// Stop when the parent process ends
    #[arg(long)]
    stop_with_parent: bool,
    /// The parent's process id, in case it ends before this program can ask for it
    #[arg(long, value_name = "PID", requires = "stop_with_parent")]
    parent: Option<u32>,
    /// The stellage program [default: the one next to this program]
    #[arg(long, value_name = "FILE")]
    pub(super) stellage: Option<PathBuf>,
}

impl Settings {
    /// The process whose end stops the run.
    pub(super) fn parent(&self) -> Option<u32> {
        self.stop_with_parent
            .then(|| self.parent.unwrap_or_else(parent_id))
    }

    /// The mail server, if there is one: its URL, which may hold a password. Only its form is looked at; the rest is up to
    /// `stellage`.
    pub(super) fn smtp_url(&self) -> Result<Option<&str>, String> {
        let is_known = |url: &str| {
            let forms = ["smtp://", "smtps://", "file:///"];
            forms
                .iter()
                .any(|form| url.len() > form.len() && url.starts_with(form))
        };
        match self.smtp_url.as_deref() {
            Some(url) if !is_known(url) => Err(
                "SMTP_URL is a URL that begins with smtp://, smtps:// or file:///, such as smtp://127.0.0.1:2525 or \
                 smtps://USER:PASSWORD@HOST; without it, mails become files in .run/mail/"
                    .to_owned(),
            ),
            url => Ok(url),
        }
    }
}

fn port(text: &str) -> Result<u16, String> {
    text.parse()
        .map_err(|_| "PORT is a number from 0 to 65535, 0 for a free port; without it, 8080".to_owned())
}

fn provisioning(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| {
        "PROVISIONING is a whole number of seconds from 0, without a unit; without it, 150".to_owned()
    })
}

/// The same as `stellage run --retry-schedule` takes, which would only tell once the control plane runs.
fn retry_schedule(text: &str) -> Result<String, String> {
    let steps: Vec<&str> = text.split(',').map(str::trim).collect();
    let most = |unit: &str| match unit {
        "ms" => Some(2_592_000_000),
        "s" => Some(2_592_000),
        "m" => Some(43_200),
        "h" => Some(720),
        "d" => Some(30),
        _ => None,
    };
    let is_good = |step: &&str| {
        let (number, unit) = step.split_at(step.bytes().take_while(u8::is_ascii_digit).count());
        let number = number.parse::<u64>().unwrap_or(0);
        number > 0 && most(unit).is_some_and(|most| number <= most)
    };
    match steps.iter().find(|step| !is_good(step)) {
        None if steps.len() <= 20 => Ok(steps.join(",")),
        wrong => Err(format!(
            "RETRY_SCHEDULE is 1 to 20 delays with commas between them, each a whole number with a unit (ms, s, m, h, d) from \
             1ms to 30d, such as 200ms,90s,2h; without it, 1m,5m,30m,2h,6h; {}",
            wrong.map_or_else(
                || format!("there are {}", steps.len()),
                |step| format!("{step:?} is not such a delay")
            )
        )),
    }
}

/// The file's whole path: `stellage` may be started elsewhere.
fn receiver_ca(text: &str) -> Result<PathBuf, String> {
    let wrong = |problem: &str| {
        format!(
            "RECEIVER_CA is a PEM file with certificates of authorities, and {problem}; without it, the system's are trusted"
        )
    };
    let read = || Ok((fs::canonicalize(text)?, fs::read_to_string(text)?));
    let (path, content) =
        read().map_err(|error: io::Error| wrong(&format!("this one cannot be read ({error})")))?;
    if content.contains("-----BEGIN CERTIFICATE-----") {
        return Ok(path);
    }
    Err(wrong("this one has no -----BEGIN CERTIFICATE-----"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        settings: Settings,
    }

    fn parse(arguments: &[&str]) -> Settings {
        let words = [&["run"], arguments].concat();
        <Command as clap::Parser>::try_parse_from(words).unwrap().settings
    }

    #[test]
    fn a_wrong_value_is_answered_with_the_variable_and_the_fix() {
        for wrong in ["", "http", "-1", "65536"] {
            assert!(
                port(wrong)
                    .unwrap_err()
                    .starts_with("PORT is a number from 0 to 65535")
            );
        }
        for wrong in ["", "150s", "-1", "1.5"] {
            assert!(
                provisioning(wrong)
                    .unwrap_err()
                    .starts_with("PROVISIONING is a whole number")
            );
        }
        assert_eq!((port("0"), provisioning("0")), (Ok(0), Ok(0)));
    }

    #[test]
    fn a_retry_schedule_has_1_to_20_delays_with_units() {
        for (text, expected) in [
            ("1m,5m,30m,2h,6h", "1m,5m,30m,2h,6h"),
            ("200ms, 90s", "200ms,90s"),
            ("30d", "30d"),
        ] {
            assert_eq!(retry_schedule(text).as_deref(), Ok(expected));
        }
        assert!(retry_schedule(&vec!["1s"; 20].join(",")).is_ok());
        for (wrong, step) in [
            ("", "\"\" is not"),
            ("1m,", "\"\" is not"),
            ("1m,5", "\"5\" is not"),
            ("0s", "\"0s\" is not"),
            ("1m 5m", "\"1m 5m\" is not"),
            ("-1m", "\"-1m\" is not"),
            ("1.5h", "\"1.5h\" is not"),
            ("31d", "\"31d\" is not"),
            (&vec!["1s"; 21].join(","), "there are 21"),
        ] {
            let error = retry_schedule(wrong).unwrap_err();
            assert!(
                error.starts_with("RETRY_SCHEDULE is 1 to 20 delays") && error.contains(step),
                "{error}"
            );
        }
        assert_eq!(parse(&[]).retry_schedule, "1m,5m,30m,2h,6h");
    }

    #[test]
    fn receivers_authorities_come_from_a_pem_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let text = file.to_str().unwrap();
        for (content, expected) in [
            (None, "and this one cannot be read (No such file"),
            (Some("no PEM"), "has no -----BEGIN CERTIFICATE-----"),
        ] {
            if let Some(content) = content {
                fs::write(&file, content).unwrap();
            }
            let error = receiver_ca(text).unwrap_err();
            assert!(
                error.starts_with("RECEIVER_CA is a PEM file") && error.contains(expected),
                "{error}"
            );
        }
        assert!(
            receiver_ca("")
                .unwrap_err()
                .starts_with("RECEIVER_CA is a PEM file")
        );
        fs::write(&file, "-----BEGIN CERTIFICATE-----\n").unwrap();
        assert!(receiver_ca(text).unwrap().is_absolute());
    }

    #[test]
    fn a_wrong_mail_server_is_refused_without_showing_it() {
        for wrong in [
            "",
            "smtp://",
            "u:s3cret@mail.example.com",
            "https://u:s3cret@mail.example.com",
        ] {
            let settings = parse(&["--smtp-url", wrong]);
            let error = settings.smtp_url().unwrap_err();
            assert!(
                error.starts_with("SMTP_URL is a URL that begins with smtp://"),
                "{error}"
            );
            assert!(!error.contains("s3cret"), "{error}");
        }
        for good in [
            "smtp://127.0.0.1:2525",
            "smtps://u:p@mail.example.com",
            "file:///tmp/mail",
        ] {
            assert_eq!(parse(&["--smtp-url", good]).smtp_url(), Ok(Some(good)));
        }
        assert_eq!(parse(&[]).smtp_url(), Ok(None));
    }
}
