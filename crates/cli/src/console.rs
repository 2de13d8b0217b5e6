//! `stellage console …`: sign-in links for the customer console, and the serial line of an instance.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde::Serialize;
use url::Url;

use super::{
    CliError, account,
    connect::Cluster,
    key::{self, PATIENCE, scope_word},
    objects,
    output::{self, Output},
    program::program,
    serial::{self, SerialArgs},
};
use resources::{
    ApiKey, KeyScope,
    api_key::{KEY_LASTS, LINK_ANNOTATION, new_key, new_link},
    ids, origin,
};
use runtime::kubeconfig::ClusterArgs;

/// Open the serial console of an instance, or make sign-in links for the customer console.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, after_help = SERIAL)]
pub struct ConsoleArgs {
    #[command(subcommand)]
    command: Option<ConsoleCommand>,

    #[command(flatten)]
    serial: SerialArgs,
}

const SERIAL: &str = "\
The API key, with the scope write, is taken from the environment variable STELLAGE_API_KEY. Ctrl+] ends it.

Examples:
  stellage console web-1 --url https://cloud.example.com
  stellage console i-4q7hz0c9k2m8x1ta
  printf 'ada\\ruptime\\r' | stellage console web-1    # logs in as ada; a real server may miss what comes before its prompt";

/// Make sign-in links for the customer console.
#[derive(Debug, Subcommand)]
pub enum ConsoleCommand {
    /// Print a link that signs its first user in to the console, once, within 15 minutes
    #[command(after_help = LINK)]
    Link(LinkArgs),
}

const LINK: &str = "\
Examples:
  stellage console link --account ada --url https://cloud.example.com
  stellage console link --account ada --scope read --output json | jq -r .url";

/// Make a sign-in link for an account. The session lasts twelve hours; `stellage key revoke` ends it at once.
#[derive(Args, Debug)]
pub struct LinkArgs {
    /// Account that the link is for
    #[arg(long, value_parser = objects::name)]
    account: String,

    /// What the session may do: read (look at everything) or write (everything)
    #[arg(long, value_enum, default_value_t)]
    scope: KeyScope,

    /// Where the service is, as in --public-url, such as https://cloud.example.com
    #[arg(long, env = "STELLAGE_URL", value_name = "URL")]
    url: Url,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// The JSON form of a link.
#[derive(Serialize)]
struct Made<'a> {
    url: &'a str,
    account: &'a str,
    scope: KeyScope,
    /// The ApiKey of the session.
    key: &'a str,
    /// When the link stops working.
    usable_until: Timestamp,
    /// When the session ends.
    expires_at: Timestamp,
}

pub(super) async fn run(args: ConsoleArgs, which: &ClusterArgs) -> Result<(), CliError> {
    match args.command {
        Some(ConsoleCommand::Link(args)) => link(&Cluster::of(which).await?, args).await,
        None => serial::run(args.serial).await,
    }
}

async fn link(cluster: &Cluster, args: LinkArgs) -> Result<(), CliError> {
    let account = account::get(cluster, &args.account).await?;
    let account = account::wait_for_namespace(cluster, account, PATIENCE).await?;
    let uid = origin::uid(&account.metadata);
    let now = Timestamp::now();
    // Whole seconds, like all times in the API.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let expires_at = now.saturating_add(KEY_LASTS).unwrap_or(now);
    // Nobody learns the key: the link gives a session, but no access to the API.
    let (_, mut spec) = new_key(None, uid, args.scope, Some(expires_at));
    spec.last_characters = None;
    let (token, made) = new_link(uid, now);
    let name = format!("console-{}", &ids::random_suffix()[..8]);
    let mut object = ApiKey::new(&name, spec);
    object.metadata.annotations = Some(BTreeMap::from([(LINK_ANNOTATION.to_owned(), made.annotation())]));
    key::store(cluster, &account, &object).await?;
    let mut url = args.url;
    url.set_path(&format!("{}/console/link", url.path().trim_end_matches('/')));
    url.set_fragment(None);
    url.query_pairs_mut()
        .clear()
        .append_pair("account", &args.account)
        .append_pair("key", &name)
        .append_pair("token", &token);
    if args.output == Output::Json {
        return output::json(&Made {
            url: url.as_str(),
            account: &args.account,
            scope: args.scope,
            key: &name,
            usable_until: made.deadline,
            expires_at,
        });
    }
    output::line(url.as_str());
    output::note(&format!(
        "Whoever opens this link first is signed in to the console of account {account} ({scope}). It works once, until {deadline}.\nThe session ends at {expires_at}, or at once with `{stellage} key revoke {name} --account {account}`.",
        account = args.account,
        scope = scope_word(args.scope),
        deadline = made.deadline,
        stellage = program(),
    ));
    Ok(())
}
