//! The settings of the local run, from the environment or options.

use std::{fs, io, os::unix::process::parent_id, path::PathBuf};

#[derive(clap::Args)]
pub(crate) struct Settings {
    /// Port of the API on 127.0.0.1; 0 for a free one
    #[arg(long, env = "PORT", default_value = "8080", value_parser = port)]
    pub(super) port: u16,
    /// Seconds that the simulator takes to provision an instance, 0 or more
    #[arg(long, env = "PROVISIONING", default_value = "150", value_name = "SECONDS", value_parser = provisioning)]
    pub(super) provisioning: u32,
    /// 1 to 20 delays before the retries of a delivery: whole numbers with a unit (ms, s, m, h or d), separated by commas
    #[arg(long, env = "RETRY_SCHEDULE", default_value = "1m,5m,30m,2h,6h", value_name = "DELAYS", value_parser = retry_schedule)]
    pub(super) retry_schedule: String,
    /// PEM file with certificate authorities to trust for webhook receivers, in addition to the system's
    #[arg(long, env = "RECEIVER_CA", value_name = "FILE", value_parser = receiver_ca)]
    pub(super) receiver_ca: Option<PathBuf>,
    /// YAML file with regions, images and prices, such as examples/catalogue.yaml; default: the built-in catalogue, with a seller
    #[arg(long, env = "CATALOGUE", value_name = "FILE", value_parser = catalogue)]
    pub(super) catalogue: Option<PathBuf>,
    /// Mail server for notifications, such as smtp://127.0.0.1:2525; default: .eml files in .run/mail/
    // Not checked by clap, because its errors show the value, which may contain a password.
    #[arg(long, env = "SMTP_URL", value_name = "URL", hide_env_values = true)]
    smtp_url: Option<String>,
    /// Stop when the parent process ends
    #[arg(long)]
    stop_with_parent: bool,
    /// Process id of the parent, in case the parent ends before this program can read it
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

    /// The URL of the mail server, if there is one; it may contain a password. Only the scheme is checked here; `stellage`
    /// checks the rest.
    pub(super) fn smtp_url(&self) -> Result<Option<&str>, String> {
        let is_known = |url: &str| {
            let forms = ["smtp://", "smtps://", "file:///"];
            forms
                .iter()
                .any(|form| url.len() > form.len() && url.starts_with(form))
        };
        match self.smtp_url.as_deref() {
            Some(url) if !is_known(url) => Err(
                "SMTP_URL must be a URL that begins with smtp://, smtps:// or file:///, such as smtp://127.0.0.1:2525 or \
                 smtps://USER:PASSWORD@HOST; by default, mails become files in .run/mail/"
                    .to_owned(),
            ),
            url => Ok(url),
        }
    }
}

fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| {
        "PORT must be a number from 0 to 65535, 0 for a free port; the default is 8080".to_owned()
    })
}

fn provisioning(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| {
        "PROVISIONING must be a whole number of seconds, 0 or more, without a unit; the default is 150"
            .to_owned()
    })
}

/// Checks a schedule like `stellage run --retry-schedule`, which would only report errors after the control plane has started.
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
            "RETRY_SCHEDULE must be 1 to 20 delays separated by commas, each a whole number with a unit (ms, s, m, h, d) from \
             1ms to 30d, such as 200ms,90s,2h; the default is 1m,5m,30m,2h,6h; {}",
            wrong.map_or_else(
                || format!("there are {}", steps.len()),
                |step| format!("{step:?} is not a valid delay")
            )
        )),
    }
}

/// The absolute path of the file, since `stellage` may have another working directory.
fn receiver_ca(text: &str) -> Result<PathBuf, String> {
    let wrong = |problem: &str| {
        format!(
            "RECEIVER_CA must be a PEM file with certificate authorities, and {problem}; by default, only the system's are trusted"
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

/// The absolute path of the file; `stellage` checks what is in it.
fn catalogue(text: &str) -> Result<PathBuf, String> {
    let readable = || fs::File::open(text).and_then(|_| fs::canonicalize(text));
    readable().map_err(|error: io::Error| {
        format!(
            "CATALOGUE must be a YAML file such as examples/catalogue.yaml, and this one cannot be read ({error}); by default, the \
             built-in catalogue is used"
        )
    })
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
                    .starts_with("PORT must be a number from 0 to 65535")
            );
        }
        for wrong in ["", "150s", "-1", "1.5"] {
            assert!(
                provisioning(wrong)
                    .unwrap_err()
                    .starts_with("PROVISIONING must be a whole number")
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
                error.starts_with("RETRY_SCHEDULE must be 1 to 20 delays") && error.contains(step),
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
                error.starts_with("RECEIVER_CA must be a PEM file") && error.contains(expected),
                "{error}"
            );
        }
        assert!(
            receiver_ca("")
                .unwrap_err()
                .starts_with("RECEIVER_CA must be a PEM file")
        );
        fs::write(&file, "-----BEGIN CERTIFICATE-----\n").unwrap();
        assert!(receiver_ca(text).unwrap().is_absolute());
    }

    #[test]
    fn the_catalogue_is_a_file() {
        for missing in ["", "nowhere/catalogue.yaml"] {
            let error = catalogue(missing).unwrap_err();
            assert!(error.starts_with("CATALOGUE must be a YAML file"), "{error}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(catalogue(file.path().to_str().unwrap()).unwrap().is_absolute());
        assert_eq!(parse(&[]).catalogue, None);
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
                error.starts_with("SMTP_URL must be a URL that begins with smtp://"),
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
