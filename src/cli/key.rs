//! `stellage key …`.

use std::{collections::HashMap, time::Duration};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
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
    resources::{Account, ApiKey, KeyScope, ids},
    service::keys::new_key,
};

/// How long to wait for the account to be ready.
const PATIENCE: Duration = Duration::from_secs(10);

/// Create, list and revoke API keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Create a key and print it; it is shown only once
    Create(CreateArgs),
    /// List keys, without the keys themselves
    List(ListArgs),
    /// Revoke a key; it stops working within a second
    Revoke(RevokeArgs),
}

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

/// List keys, of one account or of all.
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
    created_at: Option<Timestamp>,
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
    let (key, spec) = new_key(args.scope, args.expires);
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
        // An account that does not own its namespace has no keys; those in it belong to another account.
        let keys = match account.owned_namespace() {
            Some(namespace) => list_in(cluster, Api::namespaced(cluster.client.clone(), namespace)).await?,
            None => Vec::new(),
        };
        (keys, vec![account])
    } else {
        let keys = list_in(cluster, Api::all(cluster.client.clone())).await?;
        (keys, account::all(cluster).await?)
    };
    let accounts: HashMap<&str, &str> = accounts
        .iter()
        .filter_map(|account| Some((account.owned_namespace()?, account.metadata.name.as_deref()?)))
        .collect();
    let now = Timestamp::now();
    let mut keys: Vec<Listed> = keys
        .into_iter()
        .map(|key| Listed {
            account: key
                .metadata
                .namespace
                .as_deref()
                .and_then(|namespace| accounts.get(namespace))
                .map(ToString::to_string),
            expired: key.is_expired(now),
            created_at: key.metadata.creation_timestamp.as_ref().map(|time| time.0),
            name: key.name_any(),
            scope: key.spec.scope,
            ends_in: key.spec.last_characters,
            expires_at: key.spec.expires_at,
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
    let rows: Vec<_> = keys
        .into_iter()
        .map(|key| {
            [
                key.name,
                key.account.unwrap_or_else(|| "-".to_owned()),
                scope_word(key.scope).to_owned(),
                key.ends_in
                    .map_or_else(|| "-".to_owned(), |end| format!("…{end}")),
                match key.expires_at {
                    None => "never".to_owned(),
                    Some(end) if key.expired => format!("{end} (expired)"),
                    Some(end) => end.to_string(),
                },
                key.created_at
                    .map_or_else(|| "-".to_owned(), |since| duration::age(since, now)),
            ]
        })
        .collect();
    output::line(&output::table(
        &["NAME", "ACCOUNT", "SCOPE", "ENDS-IN", "EXPIRES", "AGE"],
        &rows,
    ));
    Ok(())
}

async fn list_in(cluster: &Cluster, api: Api<ApiKey>) -> Result<Vec<ApiKey>, CliError> {
    let mut page = ListParams::default().limit(500);
    let mut keys = Vec::new();
    loop {
        let list = cluster.call("list keys", api.list(&page)).await?;
        keys.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(keys),
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
fn namespace(account: &Account) -> Result<&str, CliError> {
    account.owned_namespace().ok_or_else(|| CliError::NotReady {
        name: account.name_any(),
        what: format!(
            "has no namespace, and so no keys\n`{} account show {}` shows why.",
            program(),
            account.name_any()
        ),
    })
}

const fn scope_word(scope: KeyScope) -> &'static str {
    match scope {
        KeyScope::Read => "read",
        KeyScope::Write => "write",
    }
}
