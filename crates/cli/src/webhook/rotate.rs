//! `stellage webhook rotate-secret`: one guarded write of the Secret, as in REST.

use std::{io::Read as _, path::PathBuf, time::Duration};

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use serde::Serialize;
use serde_json::json;

use crate::{
    CliError,
    connect::Cluster,
    duration,
    objects::{self, InNamespace},
    output::{self, Output},
    secret,
};
use domain::webhook::SecretChange;
use resources::{
    Webhook, ids,
    webhook::{SECRET_CHANGED_ANNOTATION, WEBHOOK_SECRET_LABEL, random_secret},
};

/// Attempts to write a Secret that others keep changing.
const MAX_ATTEMPTS: u32 = 10;
/// Longest overlap, as in REST: a week.
const MAX_OVERLAP: Duration = Duration::from_secs(604_800);

pub(super) const EXAMPLES: &str = "\
Examples:
  SECRET=$(stellage webhook rotate-secret orders -n ada)
  stellage webhook rotate-secret orders -n ada --overlap 0s --output json
  echo whsec_$(openssl rand -base64 32) | stellage webhook rotate-secret orders -n ada --secret-file -";

/// Replace the signing secret. Only the new secret goes to stdout. During the overlap, deliveries are also signed with the old
/// one.
#[derive(Args, Debug)]
pub struct RotateArgs {
    /// Name or id of the webhook
    #[arg(value_parser = objects::name)]
    name: String,

    #[command(flatten)]
    place: InNamespace,

    /// The new secret, 1 to 255 characters; visible to other users in the process list [default: random]
    #[arg(long, value_parser = secret::parse)]
    secret: Option<String>,

    /// File with the new secret; - for stdin. A line break at the end is removed
    #[arg(long, value_name = "FILE", conflicts_with = "secret")]
    secret_file: Option<PathBuf>,

    /// How long webhook-signature also lists the old secret's signature: 0s to 7d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = overlap)]
    overlap: Duration,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

fn overlap(text: &str) -> Result<Duration, String> {
    let overlap = duration::parse(text)?;
    if overlap <= MAX_OVERLAP {
        Ok(overlap)
    } else {
        Err("must be at most 7d".to_owned())
    }
}

/// The JSON form of a rotation.
#[derive(Serialize)]
struct Rotated<'a> {
    name: &'a str,
    namespace: &'a str,
    id: String,
    secret: &'a str,
    previous_secret_expires_at: Option<Timestamp>,
}

pub(super) async fn rotate(cluster: &Cluster, args: &RotateArgs) -> Result<(), CliError> {
    let namespace = args.place.of(cluster);
    let secret = match (&args.secret, &args.secret_file) {
        (Some(secret), _) => secret.clone(),
        (None, Some(path)) => read_secret(path)?,
        (None, None) => random_secret(),
    };
    let webhook: Webhook = objects::find(cluster, namespace, &args.name).await?;
    // Print this before the Secret is written.
    let others = others_with(cluster, &webhook, namespace).await?;
    if !others.is_empty() {
        output::note(&format!(
            "The Secret {} is shared: the new secret also signs for webhooks {}.",
            webhook.spec.secret_ref.name,
            others.join(", ")
        ));
    }
    let previous_until = expiry(args.overlap, Timestamp::now());
    cluster.announce(&format!(
        "replacing the signing secret of webhook {} in namespace {namespace}",
        webhook.name_any()
    ));
    let overlaps = write(cluster, &webhook, namespace, &secret, previous_until).await?;
    let previous_until = previous_until.filter(|_| overlaps);
    let name = webhook.name_any();
    if args.output == Output::Json {
        return output::json(&Rotated {
            name: &name,
            namespace,
            id: webhook.id(),
            secret: &secret,
            previous_secret_expires_at: previous_until,
        });
    }
    output::line(&secret);
    let until = previous_until.map_or_else(
        || "the old one no longer signs".to_owned(),
        |until| format!("webhook-signature also lists the old one's signature until {until}"),
    );
    output::note(&format!(
        "This is the new signing secret of webhook {name}; {until}. Store it now; it will not be shown again."
    ));
    Ok(())
}

/// Until when the old secret also signs, in whole seconds; `None` without an overlap.
fn expiry(overlap: Duration, now: Timestamp) -> Option<Timestamp> {
    let overlap = SignedDuration::try_from(overlap)
        .ok()
        .filter(|overlap| !overlap.is_zero())?;
    let end = now.checked_add(overlap).ok()?;
    Timestamp::from_second(end.as_second()).ok()
}

fn read_secret(path: &PathBuf) -> Result<String, CliError> {
    let unreadable = |source| CliError::Unreadable {
        flag: "--secret-file",
        path: path.clone(),
        source,
    };
    let text = if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    let text = text.map_err(unreadable)?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    secret::parse(text.strip_suffix('\r').unwrap_or(text)).map_err(|why| CliError::Value {
        flag: "--secret-file",
        why: format!("its content {why}"),
    })
}

/// Writes the Secret, guarded by the version that was read, so that a concurrent rotation is never overwritten. Returns whether
/// an old secret also signs.
async fn write(
    cluster: &Cluster,
    webhook: &Webhook,
    namespace: &str,
    secret: &str,
    previous_until: Option<Timestamp>,
) -> Result<bool, CliError> {
    let api = Api::<Secret>::namespaced(cluster.client.clone(), namespace);
    let name = &webhook.spec.secret_ref.name;
    if !ids::is_object_name(name) {
        return Err(CliError::WrongState {
            what: format!("webhook {}", webhook.name_any()),
            why: format!("names no Secret: spec.secretRef.name is {name:?}"),
            fix: "Set it to the name of a Secret in this namespace.".to_owned(),
        });
    }
    let change = SecretChange {
        webhook,
        secret,
        previous_until,
        annotations: Vec::new(),
    };
    for _ in 0..MAX_ATTEMPTS {
        let reading = format!("read Secret {name} in namespace {namespace}");
        let writing = format!("write Secret {name} in namespace {namespace}");
        let before = cluster.call(&reading, api.get_opt(name)).await?;
        let written = match &before {
            Some(before) if !webhook.may_use(before) => {
                return Err(CliError::WrongState {
                    what: format!("Secret {name}"),
                    why: format!(
                        "is not for webhooks: it is neither the webhook's own nor labelled {WEBHOOK_SECRET_LABEL}=true"
                    ),
                    fix: format!(
                        "If it holds nothing but signing secrets, label it: kubectl label secret {name} -n {namespace} {WEBHOOK_SECRET_LABEL}=true"
                    ),
                });
            }
            Some(before) if before.immutable == Some(true) => {
                return Err(CliError::WrongState {
                    what: format!("Secret {name}"),
                    why: "is immutable, so its secret cannot be rotated".to_owned(),
                    fix: "Create another Secret, and refer to it in the webhook's spec.secretRef.".to_owned(),
                });
            }
            Some(before) => {
                let (params, patch) = (PatchParams::default(), change.patch(before));
                cluster
                    .call(&writing, api.patch(name, &params, &Patch::Merge(&patch)))
                    .await
            }
            None => {
                cluster
                    .call(&writing, api.create(&PostParams::default(), &change.object()))
                    .await
            }
        };
        match written {
            Err(failure) if failure.is(409) || (failure.is(404) && before.is_some()) => {}
            written => {
                let written = written?;
                announce(cluster, webhook, namespace, &written).await;
                return Ok(change.overlaps(before.as_ref()));
            }
        }
    }
    Err(CliError::Plain(format!(
        "Secret {name} keeps being changed by others; try again"
    )))
}

/// Makes the operator read the Secret at once, by annotating the webhook. If that fails, it reads the Secret within ten seconds.
async fn announce(cluster: &Cluster, webhook: &Webhook, namespace: &str, secret: &Secret) {
    let api = Api::<Webhook>::namespaced(cluster.client.clone(), namespace);
    let patch = json!({ "metadata": {
        "uid": webhook.metadata.uid,
        "annotations": { SECRET_CHANGED_ANNOTATION: secret.metadata.resource_version },
    }});
    let (name, params, patch) = (webhook.name_any(), PatchParams::default(), Patch::Merge(&patch));
    let announced = cluster.call("announce the new secret", api.patch(&name, &params, &patch));
    if announced.await.is_err() {
        output::note("Cannot notify the operator; it will sign with the new secret in about ten seconds.");
    }
}

/// Names of the other webhooks that use the same secret.
async fn others_with(cluster: &Cluster, webhook: &Webhook, namespace: &str) -> Result<Vec<String>, CliError> {
    let all: Vec<Webhook> = objects::list(cluster, namespace).await?;
    let others = all.iter().filter(|other| {
        other.spec.secret_ref == webhook.spec.secret_ref && other.metadata.uid != webhook.metadata.uid
    });
    Ok(others.map(kube::ResourceExt::name_any).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlap_is_at_most_a_week_and_zero_means_none() {
        assert_eq!(overlap("7d"), Ok(MAX_OVERLAP));
        assert!(overlap("8d").is_err() && overlap("1y").is_err());
        let now: Timestamp = "2026-11-21T10:00:00.5Z".parse().unwrap();
        assert_eq!(expiry(Duration::ZERO, now), None);
        let day = expiry(Duration::from_secs(86_400), now).unwrap();
        assert_eq!(day.to_string(), "2026-11-22T10:00:00Z");
    }

    #[test]
    fn a_secret_from_a_file_loses_only_its_final_line_break() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_owned();
        for (text, expected) in [
            ("secret\n", "secret"),
            ("secret\r\n", "secret"),
            (" a b ", " a b "),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read_secret(&path).unwrap(), expected);
        }
        std::fs::write(&path, "\n").unwrap();
        let error = read_secret(&path).unwrap_err().to_string();
        assert!(
            error.contains("--secret-file") && error.contains("1 to 255 characters"),
            "{error}"
        );
        let missing = read_secret(&path.with_extension("gone")).unwrap_err().to_string();
        assert!(missing.contains("--secret-file"), "{missing}");
    }
}
