//! Watches an object until an operation is done, for `--wait`.

use std::{fmt::Debug, time::Duration};

use clap::Args;
use futures::StreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Resource, ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, watch_object},
    },
};
use serde::de::DeserializeOwned;

use super::{CliError, connect::note_outage, duration, objects, output};
use resources::{conditions::find, revision};
use runtime::watch;

/// Whether a command waits, and for how long.
#[derive(Args, Clone, Copy, Debug)]
pub struct Waiting {
    /// Wait until the operation is done, and exit with an error if it fails; progress goes to stderr
    #[arg(long)]
    pub(super) wait: bool,

    /// How long to wait, such as 30s or 5m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration::parse, requires = "wait")]
    pub(super) timeout: Duration,
}

/// The progress of an operation, according to one version of its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// In progress, with a description.
    Pending(String),
    Done,
    /// Failed, with the reason.
    Failed(String),
}

impl Progress {
    /// How far the operator has got with the current spec of an object, according to the object's conditions. `is_final`: nothing
    /// will change without a change of the spec. `condition` is the one to wait for.
    pub(super) fn of(
        object: &impl Resource,
        observed_generation: Option<i64>,
        conditions: &[Condition],
        condition: &str,
        is_final: bool,
    ) -> Self {
        if object.meta().deletion_timestamp.is_some() {
            return Self::Failed("is being deleted".to_owned());
        }
        let ready = find(conditions, condition).filter(|_| observed_generation == object.meta().generation);
        let Some(ready) = ready else {
            return Self::Pending("waiting for the operator".to_owned());
        };
        let seen = format!("{}: {}", ready.reason, ready.message);
        match ready.status.as_str() {
            "True" => Self::Done,
            _ if is_final => Self::Failed(format!("is not ready: {seen}")),
            _ => Self::Pending(seen),
        }
    }
}

/// Waits until an operation is done or has failed, according to `progress`. `written` is the object as the command has written
/// it; older versions are ignored. Ctrl-C ends the waiting, but not the operation.
pub(super) async fn until_done<K>(
    api: Api<K>,
    written: K,
    timeout: Duration,
    progress: impl Fn(&K) -> Progress,
) -> Result<K, CliError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let look = objects::describe(&written);
    let mut waiting = Wait {
        what: format!("{} {}", objects::word::<K>(), written.name_any()),
        uid: written.uid(),
        revision: revision(&written),
        printed: None,
        progress,
    };
    let ended = tokio::select! {
        // `biased`, to listen for Ctrl-C before the first output.
        biased;
        _ = tokio::signal::ctrl_c() => Ok(Err(End::Interrupted)),
        ended = tokio::time::timeout(timeout, waiting.watch(api, written)) => ended,
    };
    let Wait { what, printed, .. } = waiting;
    match ended {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(End::Failed(why))) => Err(CliError::Failed { what, why, look }),
        Ok(Err(End::Forbidden(reason))) => Err(CliError::Forbidden {
            doing: format!("watch {what} (the operation itself continues)"),
            reason,
        }),
        Ok(Err(End::Interrupted)) => Err(CliError::Interrupted { what, look }),
        Err(_) => Err(CliError::TimedOut {
            what,
            seconds: timeout.as_secs(),
            last: printed.unwrap_or_else(|| "no status".to_owned()),
            look,
        }),
    }
}

/// Why waiting ended without success.
enum End {
    Failed(String),
    Forbidden(String),
    Interrupted,
}

struct Wait<F> {
    what: String,
    uid: Option<String>,
    /// Versions before this one are older than the command's change.
    revision: u64,
    /// The progress that was printed last.
    printed: Option<String>,
    progress: F,
}

impl<F> Wait<F> {
    async fn watch<K>(&mut self, api: Api<K>, written: K) -> Result<K, End>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
        F: Fn(&K) -> Progress,
    {
        let name = written.name_any();
        if self.is_over(&written)? {
            return Ok(written);
        }
        let mut changes = watch_object(api, &name).backoff(watch::backoff()).boxed();
        let mut is_failing = false;
        while let Some(change) = changes.next().await {
            match change {
                Ok(Some(object)) if object.uid() == self.uid => {
                    is_failing = false;
                    if revision(&object) >= self.revision && self.is_over(&object)? {
                        return Ok(object);
                    }
                }
                // Deleted, or recreated under the same name.
                Ok(_) => break,
                Err(error) => {
                    if let Some(reason) = refusal(&error) {
                        return Err(End::Forbidden(reason));
                    }
                    note_outage(&mut is_failing, &error);
                }
            }
        }
        Err(End::Failed("was deleted".to_owned()))
    }

    /// Checks one version, and prints new progress.
    fn is_over<K>(&mut self, object: &K) -> Result<bool, End>
    where
        F: Fn(&K) -> Progress,
    {
        match (self.progress)(object) {
            Progress::Done => Ok(true),
            Progress::Failed(why) => Err(End::Failed(why)),
            Progress::Pending(now) => {
                if self.printed.as_ref() != Some(&now) {
                    output::note(&format!("{}: {}", self.what, output::printable(&now)));
                    self.printed = Some(now);
                }
                Ok(false)
            }
        }
    }
}

/// The API server's message if this user may not watch; retrying would not help.
fn refusal(error: &watcher::Error) -> Option<String> {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))
    | watcher::Error::WatchError(status)) = error
    else {
        return None;
    };
    matches!(status.code, 401 | 403).then(|| status.message.clone())
}
