//! Settings of the sign-in through OpenID Connect: flags and their environment variables.

use std::path::PathBuf;

use clap::Args;
use url::{Host, Url};

/// The OpenID Connect provider that people can sign in to the console with.
#[derive(Args, Clone, Debug)]
pub struct OidcSettings {
    /// Where browsers reach the console, such as `https://cloud.example.com`
    #[arg(long, env = "STELLAGE_CONSOLE_URL", value_name = "URL", value_parser = console_url)]
    pub console_url: Option<Url>,

    /// Issuer URL of an OpenID Connect provider that people can sign in to the console with; needs the settings of the client, and
    /// --console-url
    #[arg(
        long,
        env = "STELLAGE_OIDC_ISSUER",
        value_name = "URL",
        value_parser = issuer,
        requires_all = ["oidc_client_id", "oidc_client_secret_file", "console_url"]
    )]
    pub oidc_issuer: Option<String>,

    /// Id of the client that the provider has for the console
    #[arg(
        long,
        env = "STELLAGE_OIDC_CLIENT_ID",
        value_name = "ID",
        requires = "oidc_issuer"
    )]
    pub oidc_client_id: Option<String>,

    /// File with the secret of that client; read at each sign-in
    #[arg(
        long,
        env = "STELLAGE_OIDC_CLIENT_SECRET_FILE",
        value_name = "FILE",
        requires = "oidc_issuer"
    )]
    pub oidc_client_secret_file: Option<PathBuf>,

    /// Name of the provider on the button for signing in; default: its host
    #[arg(
        long,
        env = "STELLAGE_OIDC_NAME",
        value_name = "NAME",
        requires = "oidc_issuer"
    )]
    pub oidc_name: Option<String>,
}

/// Whether nobody between can read or change what is sent there: HTTPS, or this machine.
pub fn is_safe(url: &Url) -> bool {
    let is_loopback = match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    url.scheme() == "https" || url.scheme() == "http" && is_loopback
}

fn safe_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    let has_more = !url.username().is_empty()
        || url.password().is_some()
        || url.query().is_some()
        || url.fragment().is_some();
    if !is_safe(&url) || has_more {
        return Err(
            "must be a https:// URL without user, query and fragment (http:// on loopback)".to_owned(),
        );
    }
    Ok(url)
}

/// The issuer as it stands: its parts are compared letter by letter.
fn issuer(text: &str) -> Result<String, String> {
    safe_url(text).map(|_| text.to_owned())
}

fn console_url(text: &str) -> Result<Url, String> {
    let url = safe_url(text)?;
    if url.path() != "/" {
        return Err("must have no path: the console is at /console".to_owned());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_and_the_console_are_reached_over_https_or_on_this_machine() {
        for good in [
            "https://login.example.com",
            "https://login.example.com/realms/cloud",
            "http://127.0.0.1:8081",
            "http://[::1]:8081/a",
            "http://localhost:8081",
        ] {
            assert_eq!(issuer(good).as_deref(), Ok(good));
        }
        for wrong in [
            "http://login.example.com",
            "http://127.0.0.1.example.com",
            "ftp://127.0.0.1",
            "https://login.example.com/?a=b",
            "https://login.example.com/#a",
            "https://user:password@login.example.com",
            "login.example.com",
            "",
        ] {
            assert!(issuer(wrong).is_err(), "{wrong}");
            assert!(console_url(wrong).is_err(), "{wrong}");
        }
        assert!(console_url("https://cloud.example.com/").is_ok());
        assert!(console_url("https://cloud.example.com/console").is_err());
    }
}
