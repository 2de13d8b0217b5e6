//! `--test`: makes a server in the region, waits until its guest has booted, and deletes it.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use clap::{ArgGroup, Args};
use domain::provider::{Notice, Progress, Trouble};
use jiff::Timestamp;
use providers::kubevirt::trial::Trial;
use resources::Plan;
use tokio::time::{sleep, timeout};

use super::super::{Check, Outcome};
use crate::{CliError, duration, instance::plans, output, region::Region};

/// How often the server is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// How long its deletion may take.
pub(super) const REMOVAL: Duration = Duration::from_mins(5);

/// The server of a test.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("trial").args(["test", "test_storage"]).multiple(true)))]
pub(in super::super) struct TrialArgs {
    /// Also make a server there, wait until its guest has booted, and delete it
    #[arg(long, requires = "region")]
    pub(in super::super) test: bool,

    /// Also make a disk there, back it up, delete it, restore it to a larger one, and delete all of it
    #[arg(long, requires = "region")]
    pub(in super::super) test_storage: bool,

    /// Image of this server; the first one of the region by default
    #[arg(long, value_name = "IMAGE", requires = "test")]
    image: Option<String>,

    /// Plan of this server
    #[arg(long, value_name = "PLAN", requires = "test", default_value = "starter", value_parser = plans())]
    plan: Plan,

    /// How long it may take until its guest has booted, or the disk is restored, such as 5m
    #[arg(long, value_name = "DURATION", requires = "trial", default_value = "10m", value_parser = duration::parse)]
    pub(super) timeout: Duration,
}

/// How far the server got.
#[derive(Debug, Default)]
struct Reached {
    /// Whether anything may have been made.
    has_begun: bool,
    /// Seconds until KubeVirt said that it runs.
    runs: Option<u64>,
    /// Seconds until the agent in its guest answered.
    answers: Option<u64>,
    /// Why it does not go on.
    trouble: Option<Trouble>,
    /// What KubeVirt says of that.
    words: Option<String>,
}

/// Tells what happens, with the seconds since the beginning.
pub(super) struct Report {
    began: Instant,
    said: String,
}

impl Report {
    pub(super) fn begin() -> Self {
        Self {
            began: Instant::now(),
            said: String::new(),
        }
    }

    fn seconds(&self) -> u64 {
        self.began.elapsed().as_secs()
    }

    /// Says something, unless it is what was said last.
    pub(super) fn say(&mut self, text: &str) {
        if self.said != text {
            output::note(&format!("{:>5} s  {text}", self.seconds()));
            text.clone_into(&mut self.said);
        }
    }
}

pub(in super::super) async fn run(code: &str, region: &Region, args: &TrialArgs) -> Result<Check, CliError> {
    let image = image(code, region, args.image.as_deref())?;
    let uid = uuid();
    let order = (image, args.plan);
    let trial = Trial::begin(code, &region.settings, order, &uid, Timestamp::now());
    let mut trial = trial.await.map_err(|error| CliError::Value {
        flag: "--region-kubeconfig",
        why: error.to_string(),
    })?;
    let mut report = Report::begin();
    let (namespace, name) = trial.place();
    report.say(&format!(
        "making the server {namespace}/{name} with {image} ({})",
        args.plan.as_str()
    ));
    let mut reached = Reached::default();
    let is_interrupted = tokio::select! {
        _ = timeout(args.timeout, boot(&mut trial, &mut reached, &mut report)) => false,
        _ = tokio::signal::ctrl_c() => true,
    };
    let is_removed = if reached.has_begun {
        report.say("deleting it; another Ctrl-C leaves it there");
        tokio::select! {
            removed = timeout(REMOVAL, remove(&mut trial, &mut report)) => removed.is_ok(),
            _ = tokio::signal::ctrl_c() => false,
        }
    } else {
        true
    };
    if is_removed && reached.has_begun {
        report.say("nothing of it is left");
    }
    let left = (!is_removed).then(|| {
        let (namespace, name) = trial.place();
        format!(
            "the server {namespace}/{name} is not deleted yet: `stellage orphans --region {code} --delete`, and then `kubectl delete namespace {namespace}` in the region's cluster"
        )
    });
    if is_interrupted {
        return Err(CliError::TestInterrupted {
            left: left.unwrap_or_else(|| "nothing of its server is left".to_owned()),
        });
    }
    Ok(judge(image, args, &reached, left))
}

/// The image to install.
fn image<'a>(code: &str, region: &'a Region, wanted: Option<&'a str>) -> Result<&'a str, CliError> {
    let images = &region.settings.images;
    let wrong = |why: String| Err(CliError::Value { flag: "--image", why });
    match wanted {
        Some(image) if images.contains_key(image) => Ok(image),
        Some(image) => {
            let all: Vec<&str> = images.keys().map(String::as_str).collect();
            wrong(format!("{code} has no image {image}; it has {}", all.join(", ")))
        }
        None => match images.keys().next() {
            Some(first) => Ok(first),
            None => wrong(format!("{code} has no images")),
        },
    }
}

/// A random UUID.
pub(super) fn uuid() -> String {
    let mut bytes: [u8; 16] = rand::random();
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let text = hex::encode(bytes);
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| text.get(part).unwrap_or_default());
    parts.join("-")
}

/// Makes the server, and waits until the agent in its guest answers, or there is trouble that does not pass by itself.
async fn boot(trial: &mut Trial, reached: &mut Reached, report: &mut Report) {
    loop {
        let missing = trial.waits_for();
        if missing.is_empty() {
            break;
        }
        report.say(&format!(
            "waiting for the region's cluster: {}",
            missing.join("; ")
        ));
        sleep(EVERY).await;
    }
    // A step that is interrupted may have made something.
    reached.has_begun = true;
    loop {
        let (outcome, words) = trial.step(Timestamp::now()).await;
        match outcome {
            Ok(observation) => match observation.progress {
                Progress::Done => break,
                Progress::Failed(trouble) => {
                    report.say(&trouble.message);
                    reached.trouble = Some(trouble);
                    reached.words = words;
                    return;
                }
                Progress::Idle | Progress::Busy => {
                    if let Some(Notice::Told(trouble) | Notice::Error(trouble)) = observation.notice {
                        report.say(&trouble.message);
                        reached.trouble = Some(trouble);
                        reached.words = words;
                    }
                }
            },
            Err(error) => report.say(&error.to_string()),
        }
        sleep(EVERY).await;
    }
    reached.runs = Some(report.seconds());
    reached.trouble = None;
    report.say("KubeVirt says that it runs; waiting for the agent in its guest");
    while !trial.has_agent().await {
        sleep(EVERY).await;
    }
    reached.answers = Some(report.seconds());
    report.say("the agent in its guest answers");
}

/// Deletes the server, and its namespace.
async fn remove(trial: &mut Trial, report: &mut Report) {
    trial.delete(Timestamp::now());
    loop {
        match trial.step(Timestamp::now()).await.0 {
            Ok(observation) if observation.progress == Progress::Done => break,
            Ok(observation) => {
                if let Progress::Failed(trouble) = observation.progress {
                    report.say(&trouble.message);
                }
            }
            Err(error) => report.say(&error.to_string()),
        }
        sleep(EVERY).await;
    }
    report.say("server, disk and user data are gone");
    while !trial.remove_namespace(Timestamp::now()).await.unwrap_or_default() {
        sleep(EVERY).await;
    }
}

/// What the test has shown.
fn judge(image: &str, args: &TrialArgs, reached: &Reached, left: Option<String>) -> Check {
    let (plan, within) = (args.plan.as_str(), args.timeout.as_secs());
    let (mut outcome, mut message, mut fix) = match (reached.runs, reached.answers) {
        (Some(runs), Some(answers)) => (
            Outcome::Ok,
            format!(
                "a server with {image} ({plan}) ran after {runs} s, and the agent in its guest answered after {answers} s"
            ),
            None,
        ),
        (Some(runs), None) => (
            Outcome::Unknown,
            format!(
                "a server with {image} ({plan}) ran after {runs} s, but no agent in its guest answered within {within} s: nothing shows whether its system has booted"
            ),
            Some(
                "Order one, and look at its console with `virtctl console`. cloud-init installs the agent (qemu-guest-agent) from the packages of the image's distribution, so the guest must reach them; or use an image that has it."
                    .to_owned(),
            ),
        ),
        (None, _) => (Outcome::Failed, failure(image, plan, within, reached), Some(advice(reached))),
    };
    if let Some(left) = left {
        outcome = Outcome::Failed;
        let _ = write!(message, "\n{left}");
        fix.get_or_insert_with(|| {
            "Delete what is left, and find out what keeps it: finalizers, or the storage.".to_owned()
        });
    }
    Check {
        name: "server",
        outcome,
        message,
        fix,
    }
}

fn failure(image: &str, plan: &str, within: u64, reached: &Reached) -> String {
    let mut message = format!("a server with {image} ({plan}) did not run within {within} s");
    if let Some(trouble) = &reached.trouble {
        message = format!(
            "a server with {image} ({plan}) did not run: {} ({})",
            trouble.message, trouble.reason
        );
    }
    if let Some(words) = &reached.words {
        let _ = write!(message, "\nKubeVirt: {words}");
    }
    message
}

/// What to do about a server that did not run.
fn advice(reached: &Reached) -> String {
    let reason = reached.trouble.as_ref().map(|trouble| trouble.reason);
    let what = match reason {
        _ if !reached.has_begun => {
            "The cluster was not reached: its API server, the kubeconfig and its token, the network in between."
        }
        Some("ImageMissing" | "ImageFailed" | "ImageTooLarge") => {
            "Mend the image in the catalogue (`images`), or what it names: the DataSource, its claim, or the address. Another image: --image."
        }
        Some("StorageQuota" | "DiskMissing" | "StillInUse" | "Importing") => {
            "Look at the StorageClass and its driver: does it make a claim, and does CDI fill it in this time? --timeout waits longer."
        }
        Some("NoCapacity") => "Give the nodes room, or widen `nodeSelector`. A smaller plan: --plan.",
        Some("NamespaceMissing" | "NamespaceUnusable") => {
            "With `namespaces: existing`, make the namespace of the account `doctor` as for any other account: name, label and RoleBinding."
        }
        Some("NoFreeAddress") => "Add a prefix to `network.ipv4`.",
        _ => "docs/kubevirt.md has what to do for each reason (What customers see).",
    };
    what.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> TrialArgs {
        TrialArgs {
            test: true,
            test_storage: false,
            image: None,
            plan: Plan::Starter,
            timeout: Duration::from_secs(600),
        }
    }

    #[test]
    fn the_report_says_which_proof_was_seen_and_what_to_do_without_one() {
        let trouble = Trouble {
            reason: "ImageFailed",
            message: "the disk cannot be filled".to_owned(),
        };
        let ran = Reached {
            has_begun: true,
            runs: Some(12),
            ..Reached::default()
        };
        let booted = Reached {
            answers: Some(48),
            has_begun: true,
            runs: Some(12),
            ..Reached::default()
        };
        let broken = Reached {
            has_begun: true,
            trouble: Some(trouble),
            words: Some("no such image".to_owned()),
            ..Reached::default()
        };
        for (reached, left, outcome, says, advises) in [
            (&booted, None, Outcome::Ok, "answered after 48 s", ""),
            (
                &booted,
                Some("not deleted yet"),
                Outcome::Failed,
                "\nnot deleted yet",
                "finalizers",
            ),
            (
                &ran,
                None,
                Outcome::Unknown,
                "no agent in its guest answered within 600 s",
                "virtctl console",
            ),
            (
                &broken,
                None,
                Outcome::Failed,
                "the disk cannot be filled (ImageFailed)\nKubeVirt: no such image",
                "--image",
            ),
            (
                &Reached::default(),
                None,
                Outcome::Failed,
                "did not run within 600 s",
                "was not reached",
            ),
        ] {
            let check = judge("debian-13", &args(), reached, left.map(str::to_owned));
            assert_eq!(check.outcome, outcome, "{check:?}");
            assert!(check.message.contains(says), "{check:?}");
            assert!(check.fix.unwrap_or_default().contains(advises), "{says}");
        }
    }

    #[test]
    fn uuids_are_of_the_random_kind() {
        let uuid = uuid();
        let parts: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert!(
            uuid[14..].starts_with('4') && "89ab".contains(&uuid[19..20]),
            "{uuid}"
        );
    }
}
