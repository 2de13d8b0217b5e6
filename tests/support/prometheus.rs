//! A stand-in for Prometheus: its HTTP API, with what virt-handler would have measured of servers. It evaluates nothing: it knows each
//! expression by the metric in it, and keeps what it was asked, for the real one to evaluate. [`Real`] is that, with virt-handler played.

use std::{
    collections::BTreeMap,
    process::Command,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    serve::Listener,
};
use control_plane::{Daemon, ProcessGroup};
use parking_lot::Mutex;
use rustls::ServerConfig;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::eventually;

/// What was measured of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// Seconds since it was scraped.
    pub age: f64,
    pub cores: Option<f64>,
    pub memory: Option<f64>,
    pub disk: Option<f64>,
    pub received: Option<f64>,
    pub sent: Option<f64>,
}

#[derive(Clone, Debug, Default)]
pub enum Behaviour {
    #[default]
    Answers,
    /// Answers this to every question.
    Says(u16, &'static str),
    /// Answers this to questions about a metric.
    SaysOf(&'static str, u16, &'static str),
    /// Does not answer until it has another behaviour.
    Hangs,
}

/// A question.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub parameters: BTreeMap<String, String>,
    pub headers: HeaderMap,
}

impl Asked {
    pub fn query(&self) -> &str {
        &self.parameters["query"]
    }
}

#[derive(Default)]
struct Inner {
    behaviour: watch::Sender<Behaviour>,
    /// By namespace and name.
    servers: Mutex<BTreeMap<(String, String), Measured>>,
    /// What was measured at times of the past, of any one server.
    history: Mutex<BTreeMap<i64, Measured>>,
    asked: Mutex<Vec<Asked>>,
}

/// A running stand-in; it ends when this is dropped.
pub struct Prometheus {
    pub url: String,
    inner: Arc<Inner>,
    task: JoinHandle<()>,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Prometheus {
    /// Listens on a free port of 127.0.0.1.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let inner = Arc::<Inner>::default();
        let router = router(inner.clone());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, inner, task }
    }

    /// The same, with TLS.
    pub async fn start_tls(config: Arc<ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let inner = Arc::<Inner>::default();
        let router = router(inner.clone());
        let listener = Encrypted(listener, TlsAcceptor::from(config));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, inner, task }
    }

    pub fn behave(&self, behaviour: Behaviour) {
        self.inner.behaviour.send_replace(behaviour);
    }

    /// Says what is measured of a server from now on.
    pub fn measure(&self, namespace: &str, name: &str, measured: Measured) {
        let key = (namespace.to_owned(), name.to_owned());
        self.inner.servers.lock().insert(key, measured);
    }

    /// Says what was measured in the past.
    pub fn remember(&self, history: BTreeMap<i64, Measured>) {
        *self.inner.history.lock() = history;
    }

    /// What it was asked.
    pub fn asked(&self) -> Vec<Asked> {
        self.inner.asked.lock().clone()
    }
}

/// A listener for TLS. A connection that does not get through the handshake is dropped.
struct Encrypted(TcpListener, TlsAcceptor);

impl Listener for Encrypted {
    type Io = TlsStream<TcpStream>;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.0.accept().await.unwrap();
            if let Ok(stream) = self.1.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

fn router(inner: Arc<Inner>) -> Router {
    Router::new().fallback(answer).with_state(inner)
}

async fn answer(State(inner): State<Arc<Inner>>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let asked = Asked {
        path: request.uri().path().to_owned(),
        parameters: url::form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect(),
        headers: request.headers().clone(),
    };
    inner.asked.lock().push(asked.clone());
    let said = |code: u16, text: &'static str| (StatusCode::from_u16(code).unwrap(), text).into_response();
    let mut behaviour = inner.behaviour.subscribe();
    let behaviour = behaviour.wait_for(|behaviour| !matches!(behaviour, Behaviour::Hangs));
    let behaviour = behaviour.await.unwrap().clone();
    match behaviour {
        Behaviour::Says(code, text) => return said(code, text),
        Behaviour::SaysOf(metric, code, text) if asked.query().contains(metric) => return said(code, text),
        _ => {}
    }
    let (kind, result) = match asked.path.rsplit('/').next() {
        Some("query_range") => ("matrix", range(&inner, &asked)),
        _ => ("vector", instant(&inner, asked.query())),
    };
    let body = json!({ "status": "success", "data": { "resultType": kind, "result": result } });
    axum::response::Response::builder()
        .header("content-type", "application/json")
        .body(body.to_string().into())
        .unwrap()
}

fn instant(inner: &Inner, query: &str) -> Vec<Value> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    let servers = inner.servers.lock();
    let selected = servers.iter().filter_map(|((namespace, name), measured)| {
        let value = value(query, measured, now)?;
        Some(json!({ "metric": { "namespace": namespace, "name": name }, "value": [now, value.to_string()] }))
    });
    selected.collect()
}

fn range(inner: &Inner, asked: &Asked) -> Vec<Value> {
    let number = |name: &str| asked.parameters[name].parse::<i64>().unwrap();
    let (start, end, step) = (number("start"), number("end"), number("step"));
    assert_eq!((end - start) % step, 0);
    let history = inner.history.lock();
    let values = (0..=(end - start) / step).filter_map(|index| {
        let time = start + index * step;
        #[expect(clippy::cast_precision_loss, reason = "seconds of this century")]
        let value = value(asked.query(), history.get(&time)?, time as f64)?;
        Some(json!([time, value.to_string()]))
    });
    let values: Vec<Value> = values.collect();
    if values.is_empty() {
        return Vec::new();
    }
    vec![json!({ "metric": {}, "values": values })]
}

fn value(query: &str, measured: &Measured, now: f64) -> Option<f64> {
    if query.contains("timestamp(") {
        return (measured.age < 180.0).then_some(now - measured.age);
    }
    let metrics = [
        ("rate(kubevirt_vmi_cpu_usage_seconds_total", measured.cores),
        ("kubevirt_vmi_memory_usable_bytes", measured.memory),
        ("kubevirt_vmi_filesystem_used_bytes", measured.disk),
        ("kubevirt_vmi_network_receive_bytes_total", measured.received),
        ("kubevirt_vmi_network_transmit_bytes_total", measured.sent),
    ];
    let known = metrics.iter().find(|(metric, _)| query.contains(metric));
    known.unwrap_or_else(|| panic!("unknown expression: {query}")).1
}

/// The real Prometheus, which scrapes a page each second.
pub struct Real {
    pub url: String,
    page: Arc<Mutex<String>>,
    daemon: Daemon,
    target: JoinHandle<()>,
    _folder: TempDir,
    _group: ProcessGroup,
}

impl Drop for Real {
    fn drop(&mut self) {
        self.daemon.kill();
        self.target.abort();
    }
}

impl Real {
    pub async fn start() -> Self {
        let program = super::prometheus().await;
        let page = Arc::<Mutex<String>>::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = listener.local_addr().unwrap().to_string();
        let shown = page.clone();
        let router = Router::new().fallback(async move || shown.lock().clone());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yml");
        // As the ServiceMonitor of KubeVirt, which keeps the labels `namespace` and `name` of virt-handler.
        let job = json!({
            "job_name": "virt-handler", "honor_labels": true, "static_configs": [{ "targets": [target], "labels": { "namespace": "kubevirt" } }],
        });
        let settings =
            json!({ "global": { "scrape_interval": "1s", "scrape_timeout": "1s" }, "scrape_configs": [job] });
        std::fs::write(&config, settings.to_string()).unwrap();
        let address = format!("127.0.0.1:{}", control_plane::free_port().unwrap());
        let mut command = Command::new(program);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"));
        let group = ProcessGroup::new(&[], None).unwrap();
        let log = folder.path().join("log");
        let daemon = Daemon::spawn("prometheus", command, &group, &log).unwrap();
        let url = format!("http://{address}");
        // For reqwest, which makes a client of TLS in any case.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let is_ready = async || {
            let answer = reqwest::get(format!("{url}/-/ready")).await;
            let is_ready = answer.is_ok_and(|answer| answer.status().is_success());
            (is_ready, std::fs::read_to_string(&log).unwrap_or_default())
        };
        eventually("Prometheus", is_ready, |(is_ready, _)| *is_ready).await;
        Self {
            url,
            page,
            daemon,
            target: task,
            _folder: folder,
            _group: group,
        }
    }

    /// What virt-handler shows from now on.
    pub fn show(&self, page: String) {
        *self.page.lock() = page;
    }
}
