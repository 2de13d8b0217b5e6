//! `stellage key …`.

use std::{collections::HashMap, time::Duration};

use clap::{Args, Subcommand};
use jiff::{Timestamp, civil::Date};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
    core::DeserializeGuard,
};
use serde::Serialize;

use super::{
    CliError, account,
    connect::Cluster,
    duration,
    output::{self, Output},
    program::program,
};
use crate::{
    resources::{Account, ApiKey, KeyScope, ids, origin},
    runtime::client::next_page,
    service::keys::new_key,
};

/// How long to wait for the account to be ready.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Create, list and revoke API keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Create a key and print it; it is shown only once
    #[command(after_help = CREATE)]
    Create(CreateArgs),
    /// List keys and the day, in UTC, on which each was last used, without the keys themselves
    #[command(after_help = LIST)]
    List(ListArgs),
    /// Revoke a key; it stops working within a second
    #[command(after_help = REVOKE)]
    Revoke(RevokeArgs),
}

const CREATE: &str = "\
Examples:
  stellage key create --account ada
  stellage key create --account ada --scope read --expires 90d --name dashboard
  stellage key create --account ada --output json";
const LIST: &str = "\
Examples:
  stellage key list
  stellage key list --account ada";
const REVOKE: &str = "\
Example:
  stellage key revoke key-5m2k8x1t --account ada";

/// Create a key. Only the key goes to stdout, so that KEY=$(stellage key create --account NAME) works.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Account that the key is for
    #[arg(long)]
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

/// List keys, of one account or of all, with the day, in UTC, on which each was last used.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Only keys of this account
    #[arg(long)]
    account: Option<String>,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Revoke a key: requests with it will be refused.
#[derive(Args, Debug)]
pub struct RevokeArgs {
    /// Name of the key, as `stellage key list` shows it
    name: String,

    /// Account that the key belongs to
    #[arg(long)]
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

/// The JSON form of a key in a list.
#[derive(Serialize)]
struct Listed {
    name: String,
    account: Option<String>,
    scope: KeyScope,
    ends_in: Option<String>,
    expires_at: Option<Timestamp>,
    expired: bool,
    /// The latest day, in UTC, on which it was used.
    last_used_on: Option<Date>,
    created_at: Option<Timestamp>,
}

impl Listed {
    fn of(key: ApiKey, owner: Option<&Account>, now: Timestamp) -> Self {
        Self {
            account: owner.and_then(|owner| owner.metadata.name.clone()),
            expired: key.is_expired(now),
            last_used_on: key.last_used_on(),
            created_at: origin::created_at(&key.metadata),
            name: key.name_any(),
            scope: key.spec.scope,
            ends_in: key.spec.last_characters,
            expires_at: key.spec.expires_at,
        }
    }

    /// The cells of its row.
    fn row(self, now: Timestamp) -> [String; 7] {
        let none = || "-".to_owned();
        // Objects made by hand may have any characters here.
        let ends_in = |end: String| format!("…{}", end.replace(|c: char| !c.is_ascii_graphic(), "?"));
        [
            self.name,
            self.account.unwrap_or_else(none),
            scope_word(self.scope).to_owned(),
            self.ends_in.map_or_else(none, ends_in),
            match self.expires_at {
                None => "never".to_owned(),
                Some(end) if self.expired => format!("{end} (expired)"),
                Some(end) => end.to_string(),
            },
            self.last_used_on
                .map_or_else(|| "never".to_owned(), |day| day.to_string()),
            self.created_at
                .map_or_else(none, |since| duration::age(since, now)),
        ]
    }
}

pub(super) async fn run(command: KeyCommand) -> Result<(), CliError> {
    let cluster = Cluster::current().await?;
    match command {
        KeyCommand::Create(args) => create(&cluster, args).await,
        KeyCommand::List(args) => list(&cluster, args).await,
        KeyCommand::Revoke(args) => revoke(&cluster, args).await,
    }
}

async fn create(cluster: &Cluster, args: CreateArgs) -> Result<(), CliError> {
    let account = account::get(cluster, &args.account).await?;
    let account = account::wait_until_ready(cluster, account, PATIENCE).await?;
    let uid = origin::uid(&account.metadata);
    let (key, spec) = new_key(uid, args.scope, args.expires);
    let name = args
        .name
        .unwrap_or_else(|| format!("key-{}", &ids::random_suffix()[..8]));
    let mut object = ApiKey::new(&name, spec);
    object.metadata.namespace = Some(namespace(&account)?.to_owned());
    let api = Api::<ApiKey>::namespaced(cluster.client.clone(), namespace(&account)?);
    cluster
        .call(
            &format!("create a key of account {}", args.account),
            api.create(&PostParams::default(), &object),
        )
        .await
        .map_err(|failure| {
            failure.or(409, || CliError::KeyExists {
                account: args.account.clone(),
                name: name.clone(),
            })
        })?;
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

async fn list(cluster: &Cluster, args: ListArgs) -> Result<(), CliError> {
    let (keys, accounts) = if let Some(name) = &args.account {
        let account = account::get(cluster, name).await?;
        // An account that does not own its namespace has no keys; any keys there belong to another account.
        let keys = match account.owned_namespace() {
            Some(namespace) => list_in(cluster, Api::namespaced(cluster.client.clone(), namespace)).await?,
            None => Vec::new(),
        };
        (keys, vec![account])
    } else {
        let keys = list_in(cluster, Api::all(cluster.client.clone())).await?;
        (keys, account::all(cluster).await?)
    };
    let accounts: HashMap<&str, &Account> = accounts
        .iter()
        .filter_map(|account| Some((account.owned_namespace()?, account)))
        .collect();
    let now = Timestamp::now();
    let owner = |key: &ApiKey| accounts.get(key.metadata.namespace.as_deref()?).copied();
    let mut keys: Vec<Listed> = keys
        .into_iter()
        .map(|key| {
            let owner = owner(&key);
            Listed::of(key, owner, now)
        })
        .collect();
    keys.sort_by(|a, b| (&a.account, &a.name).cmp(&(&b.account, &b.name)));
    if args.output == Output::Json {
        return output::json(&keys);
    }
    if keys.is_empty() {
        let account = args.account.as_deref().unwrap_or("NAME");
        output::note(&format!(
            "There are no keys. `{} key create --account {account}` creates one.",
            program()
        ));
        return Ok(());
    }
    let rows: Vec<_> = keys.into_iter().map(|key| key.row(now)).collect();
    output::line(&output::table(
        &[
            "NAME",
            "ACCOUNT",
            "SCOPE",
            "ENDS-IN",
            "EXPIRES",
            "LAST-USED",
            "AGE",
        ],
        &rows,
    ));
    Ok(())
}

/// The keys that can be read; one that cannot is named on stderr.
async fn list_in(cluster: &Cluster, api: Api<DeserializeGuard<ApiKey>>) -> Result<Vec<ApiKey>, CliError> {
    let mut page = ListParams::default().limit(500);
    let mut keys = Vec::new();
    loop {
        let list = cluster.call("list keys", api.list(&page)).await?;
        for key in list.items {
            match key.0 {
                Ok(key) => keys.push(key),
                Err(error) => output::note(&format!(
                    "cannot read key {} in namespace {}: {}; it does not work, delete it",
                    error.metadata.name.unwrap_or_default(),
                    error.metadata.namespace.unwrap_or_default(),
                    error.error
                )),
            }
        }
        if !next_page(&mut page, &list.metadata) {
            return Ok(keys);
        }
    }
}

async fn revoke(cluster: &Cluster, args: RevokeArgs) -> Result<(), CliError> {
    let account = account::get(cluster, &args.account).await?;
    let api = Api::<ApiKey>::namespaced(cluster.client.clone(), namespace(&account)?);
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
            })
        })?;
    output::note(&format!(
        "key {} of account {} is revoked; it stops working within a second",
        args.name, args.account
    ));
    Ok(())
}

/// The namespace that the account owns, which its spec alone does not decide.
pub(super) fn namespace(account: &Account) -> Result<&str, CliError> {
    account.owned_namespace().ok_or_else(|| CliError::NotReady {
        name: account.name_any(),
        what: format!(
            "has no namespace, and so no keys\n`{} account show {}` shows why.",
            program(),
            account.name_any()
        ),
    })
}

/// The word for a scope.
pub(super) const fn scope_word(scope: KeyScope) -> &'static str {
    match scope {
        KeyScope::Read => "read",
        KeyScope::Write => "write",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_prints_no_control_characters() {
        let now: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        let key: ApiKey = serde_json::from_value(json!({
            "metadata": { "name": "key", "namespace": "ada" },
            "spec": { "sha256": "", "lastCharacters": "\u{1b}[\nx" },
        }))
        .unwrap();
        let [.., ends_in, _, _, _] = Listed::of(key, None, now).row(now);
        assert_eq!(ends_in, "…?[?x");
    }
}
