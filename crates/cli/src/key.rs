//! `stellage key …`.

use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{
    CliError,
    account::{self, namespace},
    connect::Cluster,
    duration, objects,
    output::{self, Output},
    program::program,
};
use resources::{
    Account, ApiKey, KeyScope,
    api_key::{self, new_key},
    ids, origin, quota,
};
use runtime::kubeconfig::ClusterArgs;

/// How long to wait for the account's namespace, and for Kubernetes to count its keys.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(200);

/// Create and revoke API keys.
///
/// `kubectl get apikeys` lists them, with the day, in UTC, on which each was last used.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Create a key and print it; it is shown only once
    #[command(after_help = CREATE)]
    Create(CreateArgs),
    /// Revoke a key; it stops working within a second
    #[command(after_help = REVOKE)]
    Revoke(RevokeArgs),
}

const CREATE: &str = "\
Examples:
  stellage key create --account ada
  stellage key create --account ada --scope read --expires 90d --name dashboard
  stellage key create --account ada --output json";
const REVOKE: &str = "\
Example:
  stellage key revoke key-5m2k8x1t --account ada";

/// Create a key. Only the key goes to stdout, so that KEY=$(stellage key create --account NAME) works.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Account that the key is for
    #[arg(long, value_parser = objects::name)]
    account: String,

    /// What the key may do: read (GET requests only) or write (all requests)
    #[arg(long, value_enum, default_value_t)]
    scope: KeyScope,

    /// When the key expires: a duration such as 90d, 12h or 2w, or an RFC 3339 time [default: never]
    #[arg(long, value_name = "WHEN", value_parser = duration::expiry_from_now)]
    expires: Option<Timestamp>,

    /// Name of the key, which `key revoke` takes [default: random]
    #[arg(long)]
    name: Option<String>,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Revoke a key: requests with it will be refused.
#[derive(Args, Debug)]
pub struct RevokeArgs {
    /// Name of the key, as `kubectl get apikeys` shows it
    #[arg(value_parser = objects::name)]
    name: String,

    /// Account that the key belongs to
    #[arg(long, value_parser = objects::name)]
    account: String,
}

/// The JSON form of a new key.
#[derive(Serialize)]
struct Created<'a> {
    name: &'a str,
    account: &'a str,
    scope: KeyScope,
    key: &'a str,
    expires_at: Option<Timestamp>,
}

pub(super) async fn run(command: KeyCommand, which: &ClusterArgs) -> Result<(), CliError> {
    let cluster = Cluster::of(which).await?;
    match command {
        KeyCommand::Create(args) => create(&cluster, args).await,
        KeyCommand::Revoke(args) => revoke(&cluster, args).await,
    }
}

async fn create(cluster: &Cluster, args: CreateArgs) -> Result<(), CliError> {
    let account = account::get(cluster, &args.account).await?;
    let account = account::wait_for_namespace(cluster, account, PATIENCE).await?;
    let uid = origin::uid(&account.metadata);
    let (key, spec) = new_key(account.installation(), uid, args.scope, args.expires);
    let name = args
        .name
        .unwrap_or_else(|| format!("key-{}", &ids::random_suffix()[..8]));
    store(cluster, &account, &ApiKey::new(&name, spec)).await?;
    if args.output == Output::Json {
        return output::json(&Created {
            name: &name,
            account: &args.account,
            scope: args.scope,
            key: &key,
            expires_at: args.expires,
        });
    }
    output::line(&key);
    let until = args.expires.map_or_else(
        || "it does not expire".to_owned(),
        |end| format!("it works until {end}"),
    );
    output::note(&format!(
        "This is key {name} of account {account} ({scope}); {until}. Store it now; it will not be shown again.\nUse it as `Authorization: Bearer KEY`; revoke it with `{stellage} key revoke {name} --account {account}`.",
        stellage = program(),
        account = args.account,
        scope = scope_word(args.scope),
    ));
    Ok(())
}

/// Creates a key in the namespace of its account. Waits for a new quota, which Kubernetes counts within tenths of a second.
pub(super) async fn store(cluster: &Cluster, account: &Account, key: &ApiKey) -> Result<(), CliError> {
    let api = Api::<ApiKey>::namespaced(cluster.client.clone(), namespace(account, "keys")?);
    let begun = Instant::now();
    let create = async {
        let mut has_made_room = false;
        loop {
            match api.create(&PostParams::default(), key).await {
                // Kubernetes counts expired keys, too.
                Err(kube::Error::Api(status))
                    if quota::is_exceeded(&status) && begun.elapsed() < PATIENCE =>
                {
                    has_made_room |= delete_expired(&api).await?;
                    if !has_made_room {
                        return Err(kube::Error::Api(status));
                    }
                    sleep(POLL).await;
                }
                Err(kube::Error::Api(status)) if quota::is_pending(&status) && begun.elapsed() < PATIENCE => {
                    sleep(POLL).await;
                }
                outcome => return outcome,
            }
        }
    };
    let doing = format!("create a key of account {}", account.name_any());
    let created = cluster.call(&doing, create).await;
    created.map(drop).map_err(|failure| {
        let (account, name) = (account.name_any(), key.name_any());
        failure.or(409, || {
            CliError::Plain(format!(
                "account {account} already has a key {name}\nChoose another --name, or leave it out for a random one. A key is shown only once; to replace this one, first revoke it: {} key revoke {name} --account {account}",
                program()
            ))
        })
    })
}

/// Deletes the expired keys. Returns whether there were any.
async fn delete_expired(api: &Api<ApiKey>) -> kube::Result<bool> {
    let keys = api.list(&ListParams::default()).await?;
    let now = Timestamp::now();
    let mut is_any = false;
    for key in keys.items.iter().filter(|key| key.is_expired(now)) {
        match api.delete(&key.name_any(), &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            deleted => drop(deleted?),
        }
        is_any = true;
    }
    Ok(is_any)
}

async fn revoke(cluster: &Cluster, args: RevokeArgs) -> Result<(), CliError> {
    let account = account::get(cluster, &args.account).await?;
    let namespace = namespace(&account, "keys")?;
    let api = Api::<ApiKey>::namespaced(cluster.client.clone(), namespace);
    let what = format!("list the keys of account {}", args.account);
    let keys = cluster.call(&what, api.list(&ListParams::default())).await?.items;
    if !keys.iter().any(|key| key.name_any() == args.name) {
        let digest = hex::encode(api_key::digest(origin::uid(&account.metadata), &args.name));
        let is_meant = |key: &&ApiKey| {
            key.sha256() == Some(&digest) || key.spec.name.as_deref() == Some(args.name.as_str())
        };
        let account = args.account;
        return Err(match keys.iter().find(is_meant) {
            Some(key) => {
                let name = key.name_any();
                CliError::Plain(format!(
                    "that is not the name of a key, but belongs to {name}: `stellage key revoke {name} --account {account}`"
                ))
            }
            None => CliError::NoKey {
                account,
                // Not the key itself, which nobody should see.
                name: if args.name.starts_with(api_key::PREFIX) {
                    "with that value".to_owned()
                } else {
                    args.name
                },
                namespace: namespace.to_owned(),
            },
        });
    }
    cluster.announce(&format!("revoking key {} of account {}", args.name, args.account));
    cluster
        .call(
            &format!("revoke key {} of account {}", args.name, args.account),
            api.delete(&args.name, &DeleteParams::default()),
        )
        .await
        .map_err(|failure| {
            failure.or(404, || CliError::NoKey {
                account: args.account.clone(),
                name: args.name.clone(),
                namespace: namespace.to_owned(),
            })
        })?;
    output::note(&format!(
        "key {} of account {} is revoked; it stops working within a second",
        args.name, args.account
    ));
    Ok(())
}

/// The word for a scope.
pub(super) const fn scope_word(scope: KeyScope) -> &'static str {
    match scope {
        KeyScope::Read => "read",
        KeyScope::Write => "write",
    }
}
