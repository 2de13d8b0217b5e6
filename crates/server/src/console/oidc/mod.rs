//! An OpenID Connect provider: discovery, the authorization code flow with PKCE, and its keys.
//!
//! - `settings`: its flags;
//! - `flow`: one sign-in on its way; `id_token`: what comes back.
//!
//! The provider is not contacted before somebody signs in, so it need not be up when the program starts.
//!
//! Why not the crate `openidconnect`: version 4.1 needs `rsa`, `p256`, `p384` and `ed25519-dalek` in addition to ring, `chrono` in addition to
//! jiff, and older versions of `thiserror`, `hmac`, `rand` and `itertools` than the rest of the program, which `deny.toml` rejects; none of
//! them can be switched off. So `jsonwebtoken` verifies ID tokens, with ring; what remains is three requests with JSON responses.

mod flow;
mod id_token;
mod settings;

pub use self::{
    flow::{Flow, LASTS as FLOW_LASTS},
    settings::OidcSettings,
};

use std::{error::Error as StdError, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{StatusCode, header};
use jsonwebtoken::{decode_header, jwk::Jwk};
use reqwest::{Client, RequestBuilder, redirect};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use thiserror::Error;
use tokio::{sync::Mutex, time::Instant};
use url::{Url, form_urlencoded};

use self::id_token::{Claims, Email};
use crate::public_url::{PublicUrl, is_safe};
use runtime::system_tls;

/// The path that the provider sends browsers back to.
pub const CALLBACK: &str = "/console/sign-in/oidc/callback";

/// Timeout of one request to the provider.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer of the provider, in bytes.
const MAX_ANSWER: usize = 256 * 1024;
/// How long the provider's metadata and keys are cached.
const CACHED_FOR: Duration = Duration::from_hours(1);
/// How long nobody asks again after the provider could not be reached, so that waiting requests fail together instead of timing out
/// one after another.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// How long nobody asks again for a key that the provider does not have.
const AFTER_UNKNOWN_KEY: Duration = Duration::from_mins(1);

/// Why the sign-in cannot be set up.
#[derive(Debug, Error)]
pub enum OidcError {
    /// The client's secret cannot be read.
    #[error("cannot read the file of --oidc-client-secret-file, {}: {reason}", path.display())]
    Secret {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// TLS cannot be set up.
    #[error("cannot set up TLS for the OpenID Connect provider: {0}")]
    Tls(#[from] rustls::Error),
    /// The HTTP client cannot be set up.
    #[error("cannot set up the client for the OpenID Connect provider: {0}")]
    Http(#[from] reqwest::Error),
}

/// Why a sign-in fails.
#[derive(Debug, Error)]
pub enum Failure {
    /// The provider does not answer as it should; this is not the user's fault.
    #[error("the OpenID Connect provider cannot be used: {0}")]
    Unavailable(String),
    /// The answer cannot be trusted.
    #[error("the answer of the OpenID Connect provider is refused: {0}")]
    Refused(String),
}

/// The user whom the provider signed in.
#[derive(Debug, PartialEq, Eq)]
pub struct Person {
    /// The provider's identifier of them, `sub`.
    pub subject: String,
    /// Their e-mail address, if the provider gives it.
    pub email: Option<String>,
    /// Whether the provider has verified that the address belongs to them.
    pub is_verified: bool,
}

impl Person {
    fn new(subject: &str, email: &Email) -> Self {
        Self {
            subject: subject.to_owned(),
            email: email.address().map(str::to_owned),
            is_verified: email.is_verified(),
        }
    }
}

/// The provider that users can sign in with.
pub struct Provider {
    issuer: String,
    client_id: String,
    secret_file: PathBuf,
    redirect_uri: String,
    name: String,
    http: Client,
    known: Mutex<CachedMetadata>,
}

/// What is cached about the provider.
#[derive(Default)]
struct CachedMetadata {
    metadata: Option<(Instant, Arc<Metadata>)>,
    keys: Option<(Instant, Arc<[Jwk]>)>,
    failure: Option<(Instant, String)>,
    /// When the keys were last read again because one was missing.
    unknown_key: Option<Instant>,
}

/// What the provider says about itself (OpenID Connect Discovery 1.0, section 3).
#[derive(Clone, Debug, Deserialize)]
struct Metadata {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    userinfo_endpoint: Option<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    /// Whether answers have the parameter `iss` (RFC 9207).
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

/// A list of keys. Each is parsed on its own, because keys of other kinds do not matter.
#[derive(Deserialize)]
struct Keys {
    keys: Vec<Value>,
}

/// The answer of the token endpoint.
#[derive(Deserialize)]
struct Tokens {
    id_token: String,
    access_token: Option<String>,
}

/// The answer of the token endpoint when it refuses.
#[derive(Deserialize)]
struct TokenError {
    error: String,
}

/// The answer of the UserInfo endpoint.
#[derive(Deserialize)]
struct UserInfo {
    sub: String,
    #[serde(flatten)]
    email: Email,
}

impl Provider {
    /// The provider in these settings, if they have one.
    pub fn new(settings: &OidcSettings, public_url: Option<&PublicUrl>) -> Result<Option<Self>, OidcError> {
        let (Some(issuer), Some(client_id), Some(secret_file), Some(public_url)) = (
            settings.oidc_issuer.clone(),
            settings.oidc_client_id.clone(),
            settings.oidc_client_secret_file.clone(),
            public_url,
        ) else {
            return Ok(None);
        };
        if let Err(error) = std::fs::read_to_string(&secret_file) {
            return Err(OidcError::Secret {
                path: secret_file,
                reason: error.to_string(),
            });
        }
        id_token::use_ring();
        let host = Url::parse(&issuer)
            .ok()
            .and_then(|url| Some(url.host_str()?.to_owned()));
        let http = Client::builder()
            .tls_backend_preconfigured(system_tls::client_config()?)
            .redirect(redirect::Policy::none())
            .timeout(TIMEOUT)
            .user_agent(concat!("Stellage/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Some(Self {
            name: settings.oidc_name.clone().or(host).unwrap_or_default(),
            redirect_uri: format!("{}{CALLBACK}", public_url.as_str()),
            issuer,
            client_id,
            secret_file,
            http,
            known: Mutex::default(),
        }))
    }

    /// Its name on the button.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL at which a browser signs in.
    pub async fn authorization_url(&self, flow: &Flow) -> Result<Url, Failure> {
        let metadata = self.metadata().await?;
        let mut url = endpoint(&metadata.authorization_endpoint)?;
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.client_id)
            .append_pair("redirect_uri", &self.redirect_uri)
            .append_pair("scope", "openid email")
            .append_pair("state", &flow.state)
            .append_pair("nonce", &flow.nonce)
            .append_pair("code_challenge", &flow.challenge())
            .append_pair("code_challenge_method", "S256");
        Ok(url)
    }

    /// Checks that an answer that names this issuer, or none, comes from the provider.
    pub async fn check_sender(&self, issuer: &str) -> Result<(), Failure> {
        let must_say = issuer.is_empty()
            && self
                .metadata()
                .await?
                .authorization_response_iss_parameter_supported;
        if must_say || !issuer.is_empty() && issuer != self.issuer {
            return Err(Failure::Refused("it does not name the issuer".to_owned()));
        }
        Ok(())
    }

    /// Redeems a code for the user whom the provider signed in.
    pub async fn redeem(&self, code: &str, flow: &Flow) -> Result<Person, Failure> {
        let metadata = self.metadata().await?;
        let tokens = self.exchange(&metadata, code, flow).await?;
        let claims = self.verified(&metadata, &tokens.id_token, &flow.nonce).await?;
        if claims.email.address().is_some() {
            return Ok(Person::new(&claims.sub, &claims.email));
        }
        // With the code flow, a provider may give the e-mail address only there (OpenID Connect Core 1.0, section 5.4).
        match (&metadata.userinfo_endpoint, &tokens.access_token) {
            (Some(url), Some(token)) => self.user_info(url, token, &claims.sub).await,
            _ => Ok(Person::new(&claims.sub, &claims.email)),
        }
    }

    async fn exchange(&self, metadata: &Metadata, code: &str, flow: &Flow) -> Result<Tokens, Failure> {
        let secret = tokio::fs::read_to_string(&self.secret_file)
            .await
            .map_err(|error| unavailable(format!("cannot read {}: {error}", self.secret_file.display())))?;
        let secret = secret.trim();
        // A provider without a list supports basic.
        let is_basic = metadata
            .token_endpoint_auth_methods_supported
            .as_ref()
            .is_none_or(|methods| methods.iter().any(|method| method == "client_secret_basic"));
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &self.redirect_uri),
            ("code_verifier", &flow.verifier),
        ];
        let mut request = self.http.post(endpoint(&metadata.token_endpoint)?);
        if is_basic {
            // Both are form-encoded first (RFC 6749, section 2.3.1).
            let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
            request = request.basic_auth(encoded(&self.client_id), Some(encoded(secret)));
        } else {
            form.extend([("client_id", self.client_id.as_str()), ("client_secret", secret)]);
        }
        let body = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(form)
            .finish();
        let request = request
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(body);
        let (status, body) = answer(request).await?;
        if status.is_success() {
            return read(&body);
        }
        match serde_json::from_slice(&body) {
            Ok(TokenError { error }) if error == "invalid_grant" => {
                Err(Failure::Refused("it does not know the code".to_owned()))
            }
            Ok(TokenError { error }) => Err(unavailable(format!(
                "its token endpoint answers {status}: {error:?}"
            ))),
            Err(_) => Err(unavailable(format!("its token endpoint answers {status}"))),
        }
    }

    /// The claims of an ID token, if the provider signed it for this sign-in.
    async fn verified(&self, metadata: &Metadata, token: &str, nonce: &str) -> Result<Claims, Failure> {
        let header = decode_header(token).map_err(|error| Failure::Refused(error.to_string()))?;
        if header.crit.is_some() {
            return Err(Failure::Refused("it has critical extensions".to_owned()));
        }
        let mut keys = self.keys(metadata, false).await?;
        if id_token::key_for(&keys, &header).is_none() {
            keys = self.keys(metadata, true).await?;
        }
        let key = id_token::key_for(&keys, &header)
            .ok_or_else(|| Failure::Refused("it is signed with no key of the provider".to_owned()))?;
        id_token::verify(token, &header, key, &self.issuer, &self.client_id, nonce).map_err(Failure::Refused)
    }

    async fn user_info(&self, url: &str, token: &str, subject: &str) -> Result<Person, Failure> {
        let info: UserInfo = fetch(self.http.get(endpoint(url)?).bearer_auth(token)).await?;
        if info.sub != subject {
            return Err(Failure::Refused(
                "its UserInfo endpoint means somebody else".to_owned(),
            ));
        }
        Ok(Person::new(subject, &info.email))
    }

    async fn metadata(&self) -> Result<Arc<Metadata>, Failure> {
        let mut known = self.known.lock().await;
        if let Some((at, metadata)) = &known.metadata
            && at.elapsed() < CACHED_FOR
        {
            return Ok(metadata.clone());
        }
        let url = format!(
            "{}/.well-known/openid-configuration",
            self.issuer.trim_end_matches('/')
        );
        let metadata: Metadata = known.ask(self.http.get(url)).await?;
        if metadata.issuer != self.issuer {
            return Err(unavailable(format!(
                "it says that its issuer is {:?}; --oidc-issuer must be the same",
                metadata.issuer
            )));
        }
        let metadata = Arc::new(metadata);
        known.metadata = Some((Instant::now(), metadata.clone()));
        Ok(metadata)
    }

    /// The provider's keys; asks for newer ones if the cached keys lack one.
    async fn keys(&self, metadata: &Metadata, lack_one: bool) -> Result<Arc<[Jwk]>, Failure> {
        let mut known = self.known.lock().await;
        if let Some((at, keys)) = &known.keys {
            let has_asked = known
                .unknown_key
                .is_some_and(|at| at.elapsed() < AFTER_UNKNOWN_KEY);
            if at.elapsed() < CACHED_FOR && (!lack_one || has_asked) {
                return Ok(keys.clone());
            }
        }
        if lack_one {
            known.unknown_key = Some(Instant::now());
        }
        let listed: Keys = known.ask(self.http.get(endpoint(&metadata.jwks_uri)?)).await?;
        let keys: Arc<[Jwk]> = listed
            .keys
            .into_iter()
            .filter_map(|key| serde_json::from_value(key).ok())
            .collect();
        known.keys = Some((Instant::now(), keys.clone()));
        Ok(keys)
    }
}

impl CachedMetadata {
    /// Asks the provider, unless that has just failed.
    async fn ask<T: DeserializeOwned>(&mut self, request: RequestBuilder) -> Result<T, Failure> {
        if let Some((at, reason)) = &self.failure
            && at.elapsed() < AFTER_FAILURE
        {
            return Err(unavailable(reason.clone()));
        }
        let fetched = fetch(request).await;
        self.failure = match &fetched {
            Err(Failure::Unavailable(reason)) => Some((Instant::now(), reason.clone())),
            _ => None,
        };
        fetched
    }
}

fn unavailable(reason: impl Into<String>) -> Failure {
    Failure::Unavailable(reason.into())
}

/// A URL that the provider gave.
fn endpoint(text: &str) -> Result<Url, Failure> {
    match Url::parse(text) {
        Ok(url) if is_safe(&url) => Ok(url),
        _ => Err(unavailable(format!(
            "it names the endpoint {text:?}, which is no https:// URL"
        ))),
    }
}

async fn fetch<T: DeserializeOwned>(request: RequestBuilder) -> Result<T, Failure> {
    match answer(request).await? {
        (status, body) if status.is_success() => read(&body),
        (status, _) => Err(unavailable(format!("it answers {status}"))),
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| unavailable(format!("it answers something else: {error}")))
}

/// Status and body of a response.
async fn answer(request: RequestBuilder) -> Result<(StatusCode, Bytes), Failure> {
    let broken = |error: reqwest::Error| {
        let mut cause: &dyn StdError = &error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        unavailable(cause.to_string())
    };
    let request = request.header(header::ACCEPT, "application/json");
    let mut answer = request.send().await.map_err(broken)?;
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(broken)? {
        if body.len() + part.len() > MAX_ANSWER {
            return Err(unavailable("its answer is too long"));
        }
        body.extend_from_slice(&part);
    }
    Ok((answer.status(), body.into()))
}
