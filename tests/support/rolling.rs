//! The environment in which replicas of the REST API are replaced one after the other: a load balancer, and clients that must not notice.
//! Nothing here needs an API server; a bench includes the file with `#[path]`.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use reqwest::StatusCode;
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

const CLIENTS: usize = 4;
const POLL_EVERY: Duration = Duration::from_millis(50);
/// Timeout for a replica to be found ready.
const PATIENCE: Duration = Duration::from_secs(180);

/// A load balancer of TCP connections, as a Service with its endpoints is one: those of the replicas that are ready.
pub struct Balancer {
    replicas: Arc<Mutex<Vec<Replica>>>,
    pub url: String,
}

struct Replica {
    address: String,
    metrics_url: String,
    is_ready: bool,
}

impl Balancer {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let replicas: Arc<Mutex<Vec<Replica>>> = Arc::default();
        let endpoints = replicas.clone();
        tokio::spawn(async move {
            for turn in 0_usize.. {
                let (mut client, _) = listener.accept().await.unwrap();
                let next = || {
                    let replicas = endpoints.lock();
                    let ready: Vec<_> = replicas.iter().filter(|replica| replica.is_ready).collect();
                    let replica = ready.get(turn % ready.len().max(1))?;
                    Some(replica.address.clone())
                };
                let address = loop {
                    if let Some(address) = next() {
                        break address;
                    }
                    sleep(POLL_EVERY).await;
                };
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(address).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        let probed = replicas.clone();
        // One that accepts and does not answer must not keep the others from being asked.
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(1))
            .build()
            .unwrap();
        tokio::spawn(async move {
            loop {
                let urls: Vec<String> = probed
                    .lock()
                    .iter()
                    .map(|replica| replica.metrics_url.clone())
                    .collect();
                for url in urls {
                    let answer = http.get(format!("{url}/readyz")).send().await;
                    let is_ready = answer.is_ok_and(|answer| answer.status() == StatusCode::OK);
                    let mut replicas = probed.lock();
                    if let Some(replica) = replicas.iter_mut().find(|replica| replica.metrics_url == url) {
                        replica.is_ready = is_ready;
                    }
                }
                sleep(POLL_EVERY).await;
            }
        });
        Self { replicas, url }
    }

    /// Adds a replica, and waits until it is found ready.
    pub async fn add(&self, url: &str, metrics_url: &str) {
        self.replicas.lock().push(Replica {
            address: url.strip_prefix("http://").unwrap().to_owned(),
            metrics_url: metrics_url.to_owned(),
            is_ready: false,
        });
        let is_ready = || {
            let replicas = self.replicas.lock();
            replicas
                .iter()
                .any(|replica| replica.metrics_url == metrics_url && replica.is_ready)
        };
        let found = async {
            while !is_ready() {
                sleep(POLL_EVERY).await;
            }
        };
        timeout(PATIENCE, found)
            .await
            .expect("the load balancer to find the replica");
    }

    /// Removes a replica that is gone.
    pub fn remove(&self, metrics_url: &str) {
        self.replicas
            .lock()
            .retain(|replica| replica.metrics_url != metrics_url);
    }
}

/// Clients that list instances, and create one now and then, until they are stopped.
pub struct Clients {
    stop: CancellationToken,
    tasks: JoinSet<Answers>,
}

/// What clients got.
#[derive(Debug, Default)]
pub struct Answers {
    pub succeeded: usize,
    /// Requests that failed, or were not answered with success.
    pub failed: Vec<String>,
}

impl Clients {
    pub fn start(url: &str, key: &str) -> Self {
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        for client in 0..CLIENTS {
            tasks.spawn(ask(client, url.to_owned(), key.to_owned(), stop.clone()));
        }
        Self { stop, tasks }
    }

    /// Stops them, and returns what all of them got.
    pub async fn stop(self) -> Answers {
        self.stop.cancel();
        let mut all = Answers::default();
        for answers in self.tasks.join_all().await {
            all.succeeded += answers.succeeded;
            all.failed.extend(answers.failed);
        }
        all
    }
}

async fn ask(client: usize, url: String, key: String, stop: CancellationToken) -> Answers {
    // It keeps its connections, and repeats nothing.
    let http = reqwest::Client::builder()
        .retry(reqwest::retry::never())
        .build()
        .unwrap();
    let mut answers = Answers::default();
    for number in 0.. {
        if stop.is_cancelled() {
            break;
        }
        let request = if number % 10 == 0 {
            let name = format!("web-{client}-{number}");
            let order =
                json!({ "name": name, "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
            http.post(format!("{url}/v1/instances")).json(&order)
        } else {
            http.get(format!("{url}/v1/instances"))
        };
        match request.bearer_auth(&key).send().await {
            Ok(answer) if answer.status().is_success() => answers.succeeded += 1,
            Ok(answer) => answers.failed.push(format!(
                "{}: {}",
                answer.status(),
                answer.text().await.unwrap_or_default()
            )),
            Err(error) => answers.failed.push(format!("{error:?}")),
        }
        sleep(Duration::from_millis(20)).await;
    }
    answers
}
