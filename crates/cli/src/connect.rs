//! The connection to the cluster that was chosen, with error messages that name the fix.

use std::{error::Error as _, fmt::Debug, future::Future};

use kube::{
    Api, Client, Config,
    api::ListParams,
    core::{ObjectList, Status},
    runtime::watcher,
};
use serde::de::DeserializeOwned;

use super::{CliError, output};
use runtime::{
    ServerTime,
    client::{self, CallError, Observers, Pages, bounded},
    kubeconfig::{ClusterArgs, KubeconfigFailure},
};

/// A cluster, and the client for it.
pub(super) struct Cluster {
    pub(super) client: Client,
    /// The namespace of the kubeconfig's context, or of the pod that this runs in.
    pub(super) namespace: String,
    /// The API server's time, according to its last answer.
    pub(super) time: ServerTime,
    url: String,
    /// The context of the kubeconfig.
    context: Option<String>,
}

impl Cluster {
    /// Connects to the cluster that the flags name, or else to that of the current kubeconfig, or to the one that this runs in.
    pub(super) async fn of(which: &ClusterArgs) -> Result<Self, CliError> {
        Self::connect(which, |_| {}).await
    }

    /// Like [`of`](Self::of), but impersonates another user, with all rights. Requires the right to
    /// impersonate.
    pub(super) async fn of_as(which: &ClusterArgs, user: &str) -> Result<Self, CliError> {
        Self::connect(which, |config| {
            config.auth_info.impersonate = Some(user.to_owned());
            config.auth_info.impersonate_groups = Some(vec!["system:masters".to_owned()]);
        })
        .await
    }

    async fn connect(which: &ClusterArgs, change: impl FnOnce(&mut Config)) -> Result<Self, CliError> {
        let chosen = which.choose().await.map_err(|error| match error {
            // The source names the kubeconfig file; the error itself is about running inside a cluster.
            KubeconfigFailure::Neither(error) => CliError::Kubeconfig(
                error
                    .source()
                    .map_or_else(|| error.to_string(), ToString::to_string),
            ),
            error => CliError::Plain(format!(
                "no usable kubeconfig: {error}\n`kubectl config get-contexts` lists the contexts; --kubeconfig takes another file."
            )),
        })?;
        let (mut config, context) = (chosen.config, chosen.context);
        change(&mut config);
        let url = config.cluster_url.to_string();
        let namespace = config.default_namespace.clone();
        let time = ServerTime::default();
        let observers = Observers {
            time: time.clone(),
            ..Observers::default()
        };
        let client =
            client::connect(config, observers).map_err(|error| CliError::Kubeconfig(innermost(&error)))?;
        Ok(Self {
            client,
            namespace,
            time,
            url,
            context,
        })
    }

    /// Says what is about to be destroyed, and in which cluster.
    pub(super) fn announce(&self, what: &str) {
        let cluster = match &self.context {
            Some(context) => format!("context {context}, {}", self.url),
            None => self.url.clone(),
        };
        output::note(&format!("{what} (cluster: {cluster})"));
    }

    /// Makes an API call. `doing` names it in messages, as in "list accounts".
    pub(super) async fn call<T>(
        &self,
        doing: &str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Failure> {
        bounded(call).await.map_err(|error| self.failure(doing, &error))
    }

    /// Everything that a list has. `next` reads a page.
    pub(super) async fn list<K, T: Clone>(
        &self,
        doing: &str,
        mut pages: Pages<K>,
        mut next: impl AsyncFnMut(&mut Pages<K>) -> Result<Option<ObjectList<T>>, CallError>,
    ) -> Result<Vec<T>, Failure> {
        let mut items = Vec::new();
        while let Some(page) = next(&mut pages)
            .await
            .map_err(|error| self.failure(doing, &error))?
        {
            items.extend(page.items);
        }
        Ok(items)
    }

    /// Fails if the objects cannot be listed. A watch would retry after such an error, too, without an end.
    pub(super) async fn can_list<K>(&self, api: &Api<K>, doing: &str) -> Result<(), Failure>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let one = ListParams::default().limit(1);
        self.call(doing, api.list_metadata(&one)).await.map(drop)
    }

    pub(super) fn failure(&self, doing: &str, error: &CallError) -> Failure {
        let Some(status) = error.status() else {
            let reason = match error {
                CallError::Timeout | CallError::Busy => error.to_string(),
                CallError::Api(error) => innermost(error),
            };
            let url = self.url.clone();
            return Failure::new(None, CliError::Unreachable { url, reason });
        };
        let (doing, reason) = (doing.to_owned(), words(status));
        let error = match status.code {
            401 | 403 => CliError::Forbidden { doing, reason },
            404 if kind_is_unknown(status) => CliError::CrdsMissing,
            _ => CliError::Refused { doing, reason },
        };
        let known = !matches!(error, CliError::CrdsMissing);
        let mut failure = Failure::new(known.then_some(status.code), error);
        failure.is_denial = client::is_denial(status);
        failure
    }
}

/// A failed API call, with the status code if it is about the object.
pub(super) struct Failure {
    code: Option<u16>,
    /// Whether an admission policy or webhook denied it.
    is_denial: bool,
    error: Box<CliError>,
}

impl Failure {
    fn new(code: Option<u16>, error: CliError) -> Self {
        let error = Box::new(error);
        Self {
            code,
            is_denial: false,
            error,
        }
    }

    /// Whether the API server answered with `code`.
    pub(super) fn is(&self, code: u16) -> bool {
        self.code == Some(code)
    }

    /// Whether an admission policy or webhook of the cluster denied the call.
    pub(super) const fn is_denial(&self) -> bool {
        self.is_denial
    }

    /// The error to show: `special` if the API server answered with `code`.
    pub(super) fn or(self, code: u16, special: impl FnOnce() -> CliError) -> CliError {
        if self.is(code) { special() } else { *self.error }
    }
}

impl From<Failure> for CliError {
    fn from(failure: Failure) -> Self {
        *failure.error
    }
}

/// Reports that a watch fails, once for each outage.
pub(super) fn note_outage(is_failing: &mut bool, error: &watcher::Error) {
    if !std::mem::replace(is_failing, true) {
        output::note(&format!(
            "lost the connection to the API server; reconnecting: {}",
            innermost(error)
        ));
    }
}

/// Whether a 404 is about the kind rather than an object.
fn kind_is_unknown(status: &Status) -> bool {
    status
        .details
        .as_ref()
        .is_none_or(|details| details.name.is_empty())
}

/// The API server's message, with one line per invalid field.
fn words(status: &Status) -> String {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let lines: Vec<String> = causes
        .filter(|cause| !cause.message.is_empty())
        .map(|cause| {
            let message = cause
                .message
                .split_once(": ")
                .filter(|(head, _)| head.starts_with("Invalid value"))
                .map_or(cause.message.as_str(), |(_, rest)| {
                    rest.trim_start_matches("\"object\": ")
                });
            if cause.field.is_empty() || cause.field == "<nil>" {
                message.to_owned()
            } else {
                format!("{}: {message}", cause.field)
            }
        })
        .collect();
    if lines.is_empty() {
        status.message.clone()
    } else {
        lines.join("\n  ")
    }
}

/// The innermost cause, usually the actionable one.
pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        innermost = error.to_string();
        source = error.source();
    }
    innermost
}
