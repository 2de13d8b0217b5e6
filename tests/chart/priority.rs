//! Which requests an API server that has too much to do serves first, with the FlowSchemas of the chart.

use std::convert::Infallible;

use bytes::Bytes;
use control_plane::ControlPlane;
use futures::{StreamExt as _, stream};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{Method, Request, StatusCode, body::Frame, header};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Config,
    client::ConfigExt as _,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::kubeconfig_of;
use crate::support::{bare_plane, eventually, helm::Helm, kubectl};

const NAMESPACE: &str = "stellage-system";
/// What the API server serves at once in this test.
const SEATS: usize = 30;
/// The deadline makes it give up on a request that waits for its turn.
const INSTANCES: &str = "/apis/stellage.dev/v1/namespaces/default/instances?timeout=1s";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/stellage-system/leases";

/// A service account, as its pods call the API server.
#[derive(Clone)]
struct Caller {
    http: Client<HttpsConnector<HttpConnector>, BoxBody<Bytes, Infallible>>,
    server: String,
    token: String,
}

impl Caller {
    async fn new(plane: &ControlPlane, service_account: &str) -> Self {
        let path = kubeconfig_of(plane, NAMESPACE, service_account);
        let text: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(Kubeconfig::read_from(path).unwrap(), &options).await;
        let connector = config.unwrap().rustls_https_connector().unwrap();
        Self {
            http: Client::builder(TokioExecutor::new()).build(connector),
            server: plane.url(),
            token: text["users"][0]["user"]["token"].as_str().unwrap().to_owned(),
        }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: BoxBody<Bytes, Infallible>,
    ) -> Request<BoxBody<Bytes, Infallible>> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.server))
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
            .header(header::CONTENT_TYPE, "application/json");
        request.body(body).unwrap()
    }

    /// The status of the answer, and the UID of the FlowSchema that the request fell under.
    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> (StatusCode, String) {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let request = self.request(method, path, Full::from(body).boxed());
        let answer = self.http.request(request).await.unwrap();
        let schema = answer.headers().get("x-kubernetes-pf-flowschema-uid");
        let schema = schema.map_or("", |uid| uid.to_str().unwrap()).to_owned();
        (answer.status(), schema)
    }

    async fn status(&self) -> StatusCode {
        self.call(Method::GET, INSTANCES, None).await.0
    }

    /// Keeps the API server busy until it is dropped: with twice as many requests as it serves at once, whose bodies never come.
    fn flood(&self) -> JoinSet<()> {
        (0..2 * SEATS)
            .map(|_| {
                let caller = self.clone();
                async move {
                    loop {
                        let never = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
                        let path = INSTANCES.split('?').next().unwrap();
                        let mut request = caller.request(Method::POST, path, BodyExt::boxed(never));
                        let length = header::HeaderValue::from_static("100");
                        request.headers_mut().insert(header::CONTENT_LENGTH, length);
                        // Whatever the answer, it goes on.
                        if let Ok(answer) = caller.http.request(request).await {
                            let _ = answer.into_body().collect().await;
                        }
                    }
                }
            })
            .collect()
    }
}

async fn apply(helm: &Helm, plane: &ControlPlane, values: Value) {
    let manifests = helm.template(NAMESPACE, &values).unwrap();
    let apply = "apply --server-side -f -";
    // Objects of the kinds that it defines follow in a second round.
    let told = async || kubectl(plane, apply, Some(&manifests));
    eventually("the chart to be applied", told, Result::is_ok)
        .await
        .unwrap();
}

fn uid(plane: &ControlPlane, schema: &str) -> String {
    let query = format!("get flowschema {schema} -o jsonpath={{.metadata.uid}}");
    kubectl(plane, &query, None).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_facade_waits_for_a_busy_api_server_the_lease_is_renewed_and_the_controllers_go_on() {
    let options = ControlPlane::options()
        .apiserver_arg(format!("--max-requests-inflight={}", SEATS / 2))
        .apiserver_arg(format!("--max-mutating-requests-inflight={}", SEATS / 2));
    let plane = bare_plane(options).await;
    let helm = Helm::alone().await;
    kubectl(&plane, &format!("create namespace {NAMESPACE}"), None).unwrap();
    let off = json!({ "priorityAndFairness": { "enabled": false }, "policies": { "install": false } });
    apply(&helm, &plane, off).await;
    let facade = Caller::new(&plane, "stellage-api").await;
    let controllers = Caller::new(&plane, "stellage-controller").await;
    let (get_facade, get_controllers) = (
        async || facade.status().await,
        async || controllers.status().await,
    );
    eventually("the rights", get_facade, |status| *status == 200).await;
    eventually("the rights", get_controllers, |status| *status == 200).await;

    // All service accounts share what is there.
    let flood = facade.flood();
    eventually("the controllers to be kept waiting", get_controllers, |status| {
        *status == 429
    })
    .await;
    drop(flood);

    apply(&helm, &plane, json!({ "policies": { "install": false } })).await;
    let expected = uid(&plane, "stellage-controller");
    let schema = async || controllers.call(Method::GET, INSTANCES, None).await;
    eventually(
        "the controllers to have their own level",
        schema,
        |(status, schema)| *status == 200 && *schema == expected,
    )
    .await;
    let _flood = facade.flood();
    eventually("the facade to be kept waiting", get_facade, |status| {
        *status == 429
    })
    .await;
    let rounds = stream::iter(0..10).then(|_| async { controllers.status().await });
    let statuses: Vec<StatusCode> = rounds.collect().await;
    assert_eq!(statuses, [StatusCode::OK; 10]);
    let lease = |more: Value| {
        let mut lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": "stellage-controller", "namespace": NAMESPACE },
        });
        lease["spec"] = more;
        Some(lease)
    };
    let path = format!("{LEASES}/stellage-controller");
    let expected = uid(&plane, "stellage-lease");
    let created = lease(json!({ "holderIdentity": "a" }));
    let taken = controllers.call(Method::POST, LEASES, created).await;
    assert_eq!(taken, (StatusCode::CREATED, expected.clone()));
    let version =
        format!("get lease stellage-controller -n {NAMESPACE} -o jsonpath={{.metadata.resourceVersion}}");
    let version = kubectl(&plane, &version, None).unwrap();
    let mut renewed = lease(json!({ "holderIdentity": "a", "leaseDurationSeconds": 15 }));
    if let Some(renewed) = &mut renewed {
        renewed["metadata"]["resourceVersion"] = json!(version);
    }
    let renewed = controllers.call(Method::PUT, &path, renewed).await;
    assert_eq!(renewed, (StatusCode::OK, expected));
    eventually("the facade to be still waiting", get_facade, |status| {
        *status == 429
    })
    .await;
}
