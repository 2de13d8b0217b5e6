//! An OpenID Connect provider on loopback, for one client: discovery, the code flow with PKCE, keys that change, and responses that are
//! wrong on demand. Anyone is signed in without a password.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    body::Bytes,
    extract::{Request, State},
    response::{IntoResponse, Redirect, Response},
    routing::{get, post},
};
use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use parking_lot::Mutex;
use reqwest::{StatusCode, header::HeaderMap};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinHandle};

use super::remember_secret;

/// The client that the provider knows. Id and secret contain characters that must be encoded.
pub const CLIENT: &str = "cloud console/1";
const SECRET: &str = "client:secret+of the console%";

/// The URL of the client's console, unless a test says otherwise.
pub const CONSOLE: &str = "https://cloud.example.com";

/// The provider's behaviour. By default it signs in a person without an e-mail address, as the standard
/// allows.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Claims that override those of the ID token. `null` removes one.
    pub claims: BTreeMap<&'static str, Value>,
    /// Claims at the UserInfo endpoint, which exists only if this is set.
    pub user_info: Option<Value>,
    /// How to forge the ID token after it has been signed.
    pub forged: Option<Forgery>,
    /// Whether people must click a link to return.
    pub asks: bool,
    /// The error that it sends people back with.
    pub error: Option<&'static str>,
    /// Whether the client's secret belongs in the body.
    pub wants_post: bool,
    /// The issuer named in its discovery document, if it is another one.
    pub other_issuer: Option<&'static str>,
}

/// What is wrong with the signature of an ID token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    /// `alg: none`, without a signature.
    Unsigned,
    /// HMAC with the public key as its secret.
    PublicKeyAsSecret,
    /// The signature of another text.
    OtherText,
    /// A signature by a key that the provider does not list, with the id of one that it does.
    OtherKey,
}

struct Code {
    nonce: String,
    challenge: String,
    redirect_uri: String,
}

struct Inner {
    issuer: String,
    /// The URL of the client's console.
    console: Mutex<String>,
    behaviour: Mutex<Behaviour>,
    key: Mutex<(String, EcdsaKeyPair)>,
    codes: Mutex<HashMap<String, Code>>,
    numbers: AtomicU64,
    /// Number of requests for its keys.
    key_reads: AtomicUsize,
}

/// A running provider; it ends when this is dropped.
pub struct OidcProvider {
    inner: Arc<Inner>,
    folder: TempDir,
    task: JoinHandle<()>,
}

impl OidcProvider {
    /// Listens on a free port of 127.0.0.1.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}/realms/cloud", listener.local_addr().unwrap());
        let inner = Arc::new(Inner {
            issuer,
            console: Mutex::new(CONSOLE.to_owned()),
            behaviour: Mutex::default(),
            key: Mutex::new(("key-0".to_owned(), new_key())),
            codes: Mutex::default(),
            numbers: AtomicU64::new(1),
            key_reads: AtomicUsize::new(0),
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("secret"), format!("{SECRET}\n")).unwrap();
        remember_secret(SECRET);
        let task = serve(listener, inner.clone());
        Self { inner, folder, task }
    }

    /// Stops answering.
    pub fn stop(&self) {
        self.task.abort();
    }

    /// Answers again, at the same address.
    pub async fn go_on(&mut self) {
        let address = self.inner.issuer.strip_prefix("http://").unwrap();
        let address = address.split_once('/').unwrap().0.to_owned();
        let listener = super::eventually(
            "the port to be free",
            async || TcpListener::bind(&address).await.ok(),
            Option::is_some,
        );
        self.task = serve(listener.await.unwrap(), self.inner.clone());
    }

    pub fn issuer(&self) -> &str {
        &self.inner.issuer
    }

    /// The file with the client's secret.
    pub fn secret_file(&self) -> PathBuf {
        self.folder.path().join("secret")
    }

    /// Sets the URL of the client's console.
    pub fn serve_console_at(&self, url: &str) {
        url.clone_into(&mut self.inner.console.lock());
    }

    /// Sets the provider's behaviour.
    pub fn behave(&self, behaviour: Behaviour) {
        *self.inner.behaviour.lock() = behaviour;
    }

    /// Signs in the person with this e-mail address, which it has verified.
    pub fn sign_in_as(&self, email: &str) {
        self.behave(Behaviour::with_email(email));
    }

    /// Signs with a new key from now on, and forgets the previous one.
    pub fn change_key(&self) {
        let number = self.inner.numbers.fetch_add(1, Ordering::Relaxed);
        *self.inner.key.lock() = (format!("key-{number}"), new_key());
    }

    /// How often its keys have been requested.
    pub fn key_reads(&self) -> usize {
        self.inner.key_reads.load(Ordering::Relaxed)
    }

    /// Follows `url` like a browser. Returns the path and query that the browser is sent back to.
    pub async fn authorize(&self, url: &str) -> String {
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap();
        let answer = http.get(url).send().await.unwrap();
        let (status, headers) = (answer.status(), answer.headers().clone());
        let text = answer.text().await.unwrap();
        assert_eq!(status, StatusCode::SEE_OTHER, "{url}: {text}");
        let location = headers["location"].to_str().unwrap();
        let back = location.strip_prefix(CONSOLE).unwrap();
        back.to_owned()
    }
}

impl Drop for OidcProvider {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Behaviour {
    pub fn with_email(email: &str) -> Self {
        Self::default()
            .claim("email", email)
            .claim("email_verified", true)
    }

    pub fn claim(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.claims.insert(name, value.into());
        self
    }
}

fn serve(listener: TcpListener, inner: Arc<Inner>) -> JoinHandle<()> {
    let routes = Router::new()
        .route("/realms/cloud/.well-known/openid-configuration", get(describe))
        .route("/realms/cloud/authorize", get(authorize))
        .route("/realms/cloud/token", post(token))
        .route("/realms/cloud/userinfo", get(user_info))
        .route("/realms/cloud/keys", get(keys))
        // Close connections, so that no client stays connected once it has stopped.
        .layer(axum::middleware::map_response(async |mut answer: Response| {
            let close = reqwest::header::HeaderValue::from_static("close");
            answer.headers_mut().insert("connection", close);
            answer
        }))
        .with_state(inner);
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() })
}

fn new_key() -> EcdsaKeyPair {
    let random = SystemRandom::new();
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).unwrap()
}

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

fn random() -> String {
    let text = encoded(rand::random::<[u8; 16]>());
    remember_secret(&text);
    text
}

fn json_answer(value: &Value) -> Response {
    ([("content-type", "application/json")], value.to_string()).into_response()
}

fn pairs(text: &[u8]) -> HashMap<String, String> {
    url::form_urlencoded::parse(text).into_owned().collect()
}

async fn describe(State(inner): State<Arc<Inner>>) -> Response {
    let issuer = &inner.issuer;
    let behaviour = inner.behaviour.lock();
    let method = if behaviour.wants_post {
        "client_secret_post"
    } else {
        "client_secret_basic"
    };
    let mut described = json!({
        "issuer": behaviour.other_issuer.unwrap_or(issuer),
        "authorization_endpoint": format!("{issuer}/authorize?realm=cloud"),
        "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/keys"),
        "response_types_supported": ["code"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
        "token_endpoint_auth_methods_supported": [method],
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": true,
    });
    if behaviour.user_info.is_some() {
        described["userinfo_endpoint"] = format!("{issuer}/userinfo").into();
    }
    json_answer(&described)
}

async fn authorize(State(inner): State<Arc<Inner>>, request: Request) -> Response {
    let query = pairs(request.uri().query().unwrap_or_default().as_bytes());
    let get = |name: &str| query.get(name).cloned().unwrap_or_default();
    let has_form = get("response_type") == "code"
        && get("client_id") == CLIENT
        && get("redirect_uri") == format!("{}/console/sign-in/oidc/callback", inner.console.lock())
        && get("scope").split(' ').any(|scope| scope == "openid")
        && get("scope").split(' ').any(|scope| scope == "email")
        && get("code_challenge_method") == "S256"
        && get("realm") == "cloud"
        && [get("state"), get("nonce"), get("code_challenge")]
            .iter()
            .all(|text| text.len() == 43);
    if !has_form {
        return (StatusCode::BAD_REQUEST, format!("{query:?}")).into_response();
    }
    let mut back = url::Url::parse(&get("redirect_uri")).unwrap();
    back.query_pairs_mut()
        .append_pair("state", &get("state"))
        .append_pair("iss", &inner.issuer);
    if let Some(error) = inner.behaviour.lock().error {
        back.query_pairs_mut().append_pair("error", error);
    } else {
        let code = random();
        back.query_pairs_mut().append_pair("code", &code);
        let known = Code {
            nonce: get("nonce"),
            challenge: get("code_challenge"),
            redirect_uri: get("redirect_uri"),
        };
        inner.codes.lock().insert(code, known);
    }
    if inner.behaviour.lock().asks {
        let link = back.as_str().replace('&', "&amp;");
        let page = format!("<!DOCTYPE html><title>Provider</title><a href='{link}'>Go on</a>");
        return ([("content-type", "text/html")], page).into_response();
    }
    Redirect::to(back.as_str()).into_response()
}

/// Whether the client has authenticated in the way that the provider wants.
fn is_client(headers: &HeaderMap, form: &HashMap<String, String>, wants_post: bool) -> bool {
    let basic = headers.get("authorization").map(|value| {
        let text = value.to_str().unwrap().strip_prefix("Basic ").unwrap();
        let text = String::from_utf8(BASE64_STANDARD.decode(text).unwrap()).unwrap();
        let (id, secret) = text.split_once(':').unwrap();
        let decoded = |text: &str| {
            let pairs = pairs(format!("a={text}").as_bytes());
            pairs["a"].clone()
        };
        (decoded(id), decoded(secret))
    });
    let posted = form.get("client_secret").map(|secret| {
        let id = form.get("client_id").cloned().unwrap_or_default();
        (id, secret.clone())
    });
    let expected = Some((CLIENT.to_owned(), SECRET.to_owned()));
    if wants_post {
        posted == expected && basic.is_none()
    } else {
        basic == expected && posted.is_none()
    }
}

async fn token(State(inner): State<Arc<Inner>>, headers: HeaderMap, body: Bytes) -> Response {
    let form = pairs(&body);
    let refused =
        |status: StatusCode, error: &str| (status, json_answer(&json!({ "error": error }))).into_response();
    let behaviour = inner.behaviour.lock().clone();
    if !is_client(&headers, &form, behaviour.wants_post) {
        return refused(StatusCode::UNAUTHORIZED, "invalid_client");
    }
    let get = |name: &str| form.get(name).cloned().unwrap_or_default();
    // A code works once.
    let code = inner.codes.lock().remove(&get("code"));
    let Some(code) = code.filter(|code| {
        get("grant_type") == "authorization_code"
            && get("redirect_uri") == code.redirect_uri
            && encoded(Sha256::digest(get("code_verifier"))) == code.challenge
    }) else {
        return refused(StatusCode::BAD_REQUEST, "invalid_grant");
    };
    json_answer(&json!({
        "access_token": random(), "token_type": "Bearer", "expires_in": 300,
        "id_token": id_token(&inner, &behaviour, &code.nonce),
    }))
}

fn id_token(inner: &Inner, behaviour: &Behaviour, nonce: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut claims = json!({
        "iss": inner.issuer, "sub": "subject-1", "aud": CLIENT, "exp": now + 300, "iat": now, "nonce": nonce,
    });
    for (name, value) in &behaviour.claims {
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(*name);
        } else {
            claims[*name] = value.clone();
        }
    }
    let key = inner.key.lock();
    let (kid, pair) = &*key;
    let algorithm = match behaviour.forged {
        Some(Forgery::Unsigned) => "none",
        Some(Forgery::PublicKeyAsSecret) => "HS256",
        _ => "ES256",
    };
    let header = json!({ "alg": algorithm, "typ": "JWT", "kid": kid });
    let text = format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string()));
    let signed = |pair: &EcdsaKeyPair, text: &str| {
        let signature = pair.sign(&SystemRandom::new(), text.as_bytes()).unwrap();
        encoded(signature)
    };
    let signature = match behaviour.forged {
        None => signed(pair, &text),
        Some(Forgery::Unsigned) => String::new(),
        Some(Forgery::PublicKeyAsSecret) => {
            let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, pair.public_key().as_ref());
            encoded(ring::hmac::sign(&secret, text.as_bytes()))
        }
        Some(Forgery::OtherText) => signed(pair, "another text"),
        Some(Forgery::OtherKey) => signed(&new_key(), &text),
    };
    format!("{text}.{signature}")
}

async fn user_info(State(inner): State<Arc<Inner>>, headers: HeaderMap) -> Response {
    let has_token = headers
        .get("authorization")
        .is_some_and(|value| value.to_str().unwrap().starts_with("Bearer "));
    let info = inner.behaviour.lock().user_info.clone();
    match info.filter(|_| has_token) {
        Some(info) => json_answer(&info),
        None => StatusCode::UNAUTHORIZED.into_response(),
    }
}

async fn keys(State(inner): State<Arc<Inner>>) -> Response {
    inner.key_reads.fetch_add(1, Ordering::Relaxed);
    let key = inner.key.lock();
    let point = key.1.public_key().as_ref();
    json_answer(&json!({ "keys": [
        // A key of a type that nobody here can read.
        { "kty": "future", "kid": "other", "use": "sig" },
        {
            "kty": "EC", "crv": "P-256", "kid": key.0, "use": "sig", "alg": "ES256",
            "x": encoded(&point[1..33]), "y": encoded(&point[33..65]),
        },
    ] }))
}
