//! Settings of the sign-in through OpenID Connect: flags and their environment variables.

use std::path::PathBuf;

use clap::Args;

use crate::public_url::safe_url;

/// The OpenID Connect provider that people can sign in to the console with.
#[derive(Args, Clone, Debug)]
pub struct OidcSettings {
    /// Issuer URL of an OpenID Connect provider that people can sign in to the console with; needs the settings of the client, and
    /// --public-url
    #[arg(
        long,
        env = "STELLAGE_OIDC_ISSUER",
        value_name = "URL",
        value_parser = issuer,
        requires_all = ["oidc_client_id", "oidc_client_secret_file", "public_url"]
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

/// The issuer as it stands: its parts are compared letter by letter.
fn issuer(text: &str) -> Result<String, String> {
    safe_url(text).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_reached_over_https_or_on_this_machine() {
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
        }
    }
}
