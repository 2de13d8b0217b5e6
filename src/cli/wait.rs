//! `--wait`: until an operation is done, as a watch shows it.

use std::time::Duration;

use backon::ExponentialBuilder;
use clap::Args;
use futures::StreamExt as _;
use kube::{
    Api, ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, watch_object},
    },
};

use super::{
    CliError,
    connect::{Cluster, innermost},
    duration,
    objects::Named,
    output,
    program::program,
};
use crate::runtime::watch::{self, revision};

/// Whether a command waits, and for how long.
#[derive(Args, Clone, Copy, Debug)]
pub struct Waiting {
    /// Wait until it is done, and fail if it fails; progress goes to stderr
    #[arg(long)]
    pub(super) wait: bool,

    /// How long to wait, such as 30s or 5m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration::parse, requires = "wait")]
    pub(super) timeout: Duration,
}

/// How far an operation is, as one version of its object shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Under way, and what goes on.
    UnderWay(String),
    /// Done.
    Done,
    /// It failed, and why.
    Failed(String),
}

/// Waits until `progress` of an object is an end. `written` is the object as the command left it: older versions say nothing.
/// Ctrl-C ends the waiting, and nothing else: what was asked for goes on.
pub(super) async fn until_done<K: Named>(
    cluster: &Cluster,
    written: K,
    patience: Duration,
    progress: impl Fn(&K) -> Progress,
) -> Result<K, CliError> {
    let namespace = written.namespace().unwrap_or_default();
    let name = written.name_any();
    let api = Api::<K>::namespaced(cluster.client.clone(), &namespace);
    let mut waiting = Wait {
        what: format!("{} {name}", K::WORD),
        uid: written.uid(),
        revision: revision(&written),
        told: None,
        progress,
    };
    let ended = tokio::select! {
        // Ctrl-C is listened for before anything is said.
        biased;
        _ = tokio::signal::ctrl_c() => Ok(Err(End::Interrupted)),
        ended = tokio::time::timeout(patience, waiting.watch(api, written)) => ended,
    };
    let Wait { what, told, .. } = waiting;
    let look = format!("{} {} show {name} -n {namespace}", program(), K::WORD);
    match ended {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(End::Failed(why))) => Err(CliError::Failed { what, why, look }),
        Ok(Err(End::Forbidden(reason))) => Err(CliError::Forbidden {
            doing: format!(
                "watch {what} in namespace {namespace}, as --wait does; what was asked for goes on"
            ),
            reason,
        }),
        Ok(Err(End::Interrupted)) => Err(CliError::Interrupted { what, look }),
        Err(_) => Err(CliError::TimedOut {
            what,
            seconds: patience.as_secs(),
            last: told.unwrap_or_else(|| "nothing was seen of it".to_owned()),
            look,
        }),
    }
}

/// Why there is nothing more to wait for.
enum End {
    Failed(String),
    Forbidden(String),
    Interrupted,
}

struct Wait<F> {
    what: String,
    uid: Option<String>,
    /// Versions before this one were there before the command.
    revision: u64,
    /// What was said last.
    told: Option<String>,
    progress: F,
}

impl<F> Wait<F> {
    async fn watch<K: Named>(&mut self, api: Api<K>, written: K) -> Result<K, End>
    where
        F: Fn(&K) -> Progress,
    {
        let name = written.name_any();
        if self.is_over(&written)? {
            return Ok(written);
        }
        let backoff = ExponentialBuilder::new()
            .with_min_delay(watch::MIN_BACKOFF)
            .with_max_delay(watch::MAX_BACKOFF)
            .with_jitter();
        let backoff = watcher::ExponentialBackoff::from(backoff.without_max_times());
        let mut changes = watch_object(api, &name).backoff(backoff).boxed();
        let mut is_failing = false;
        while let Some(change) = changes.next().await {
            match change {
                Ok(Some(object)) if object.uid() == self.uid => {
                    is_failing = false;
                    if revision(&object) >= self.revision && self.is_over(&object)? {
                        return Ok(object);
                    }
                }
                // Gone, or another one has its name.
                Ok(_) => break,
                Err(error) => {
                    if let Some(reason) = refusal(&error) {
                        return Err(End::Forbidden(reason));
                    }
                    // Each outage is told of once.
                    if !std::mem::replace(&mut is_failing, true) {
                        output::note(&format!(
                            "the watch failed, and is tried again until it works: {}",
                            innermost(&error)
                        ));
                    }
                }
            }
        }
        Err(End::Failed("was deleted meanwhile".to_owned()))
    }

    /// Looks at one version, and tells what changed.
    fn is_over<K>(&mut self, object: &K) -> Result<bool, End>
    where
        F: Fn(&K) -> Progress,
    {
        match (self.progress)(object) {
            Progress::Done => Ok(true),
            Progress::Failed(why) => Err(End::Failed(why)),
            Progress::UnderWay(now) => {
                if self.told.as_ref() != Some(&now) {
                    output::note(&format!("{}: {}", self.what, output::printable(&now)));
                    self.told = Some(now);
                }
                Ok(false)
            }
        }
    }
}

/// Why the API server will not let this user watch; trying again would not help.
fn refusal(error: &watcher::Error) -> Option<String> {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))
    | watcher::Error::WatchError(status)) = error
    else {
        return None;
    };
    matches!(status.code, 401 | 403).then(|| status.message.clone())
}
