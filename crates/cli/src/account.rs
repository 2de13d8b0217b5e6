//! `stellage account …`.

use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use serde::Serialize;
use serde_json::json;

use super::{
    CliError,
    connect::Cluster,
    duration, objects,
    output::{self, Output},
    wait::{self, Progress},
};
use resources::{
    Account, AccountSpec,
    account::{NAMESPACE_READY, SuspendedServers, Suspension},
    conditions::{READY, STALLED, find, is_true},
    origin,
};
use runtime::kubeconfig::ClusterArgs;

/// Create, suspend and resume accounts.
#[derive(Debug, Subcommand)]
pub enum AccountCommand {
    /// Create an account and wait until it is ready
    #[command(after_help = CREATE)]
    Create(CreateArgs),

    /// Suspend an account: its holder can read everything and change nothing, until it is resumed
    #[command(after_help = SUSPEND)]
    Suspend(SuspendArgs),

    /// Lift the suspension of an account; servers that it has stopped start again
    #[command(after_help = RESUME)]
    Resume(ResumeArgs),
}

const CREATE: &str = "\
Examples:
  stellage account create ada --email ada@example.com
  stellage account create ada --email ada@example.com --instance-quota 20
  stellage account create ada --email ada@example.com --vcpu-quota 32 --memory-quota 64";

const SUSPEND: &str = "\
Webhooks, backups and invoices go on. Suspending a suspended account again changes the reason, and what becomes of its servers.

Examples:
  stellage account suspend ada --reason \"invoice 2026-000042 is overdue\"
  stellage account suspend ada --reason \"invoice 2026-000042 is overdue\" --stop-servers";

const RESUME: &str = "\
Examples:
  stellage account resume ada";

/// Create an account, with its namespace, and wait until it is ready.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Name of the account, and by default of its namespace
    name: String,

    /// E-mail address of the account holder
    #[arg(long)]
    email: String,

    /// Namespace for the objects of this account; an existing one must have the label stellage.dev/account=NAME
    #[arg(long)]
    namespace: Option<String>,

    /// Maximum number of instances [default: the operator's, 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=1_000_000))]
    instance_quota: Option<i32>,

    /// Maximum number of webhooks [default: 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=10_000))]
    webhook_quota: Option<i32>,

    /// Maximum number of vCPUs of all instances together [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=1_000_000_000))]
    vcpu_quota: Option<i32>,

    /// Maximum memory of all instances together, in GB [default: no limit]
    #[arg(long, value_name = "GB", value_parser = clap::value_parser!(i32).range(0..=1_000_000_000))]
    memory_quota: Option<i32>,

    /// Maximum disk size of all instances together, in GB [default: no limit]
    #[arg(long, value_name = "GB", value_parser = clap::value_parser!(i32).range(0..=1_000_000_000))]
    disk_quota: Option<i32>,

    /// REST requests per hour for each of the account's keys [default: 3600]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=1_000_000_000))]
    rate_limit_per_hour: Option<i32>,

    /// Do not wait until the account is ready
    #[arg(long)]
    no_wait: bool,

    /// How long to wait, such as 30s or 5m
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    timeout: Duration,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Suspend an account.
#[derive(Args, Debug)]
pub struct SuspendArgs {
    /// Name of the account
    name: String,

    /// Why, in words for the account holder; they are shown wherever something is refused
    #[arg(long)]
    reason: String,

    /// Stop the account's servers, and keep them off; without this, they are left as they are
    #[arg(long)]
    stop_servers: bool,
}

/// Resume an account.
#[derive(Args, Debug)]
pub struct ResumeArgs {
    /// Name of the account
    name: String,
}

/// The JSON form of an account.
#[derive(Serialize)]
struct View<'a> {
    name: &'a str,
    id: Option<&'a str>,
    email: &'a str,
    namespace: &'a str,
    instance_quota: Option<i32>,
    webhook_quota: Option<i32>,
    vcpu_quota: Option<i32>,
    memory_quota_gb: Option<i32>,
    disk_quota_gb: Option<i32>,
    rate_limit_per_hour: u32,
    suspended: Option<&'a Suspension>,
    ready: bool,
    reason: Option<&'a str>,
    message: Option<&'a str>,
    created_at: Option<Timestamp>,
}

fn view(account: &Account) -> View<'_> {
    let status = account.status.as_ref();
    let ready = status.and_then(|status| find(&status.conditions, READY));
    View {
        name: account.metadata.name.as_deref().unwrap_or_default(),
        id: status.and_then(|status| status.id.as_deref()),
        email: &account.spec.email,
        namespace: account.wanted_namespace(),
        instance_quota: account.spec.instance_quota,
        webhook_quota: account.spec.webhook_quota,
        vcpu_quota: account.spec.vcpu_quota,
        memory_quota_gb: account.spec.memory_quota_gb,
        disk_quota_gb: account.spec.disk_quota_gb,
        rate_limit_per_hour: account.rate_limit_per_hour(),
        suspended: account.spec.suspended.as_ref(),
        ready: ready.is_some_and(|ready| ready.status == "True"),
        reason: ready.map(|ready| ready.reason.as_str()),
        message: ready.map(|ready| ready.message.as_str()),
        created_at: origin::created_at(&account.metadata),
    }
}

pub(super) async fn run(command: AccountCommand, which: &ClusterArgs) -> Result<(), CliError> {
    let cluster = Cluster::of(which).await?;
    match command {
        AccountCommand::Create(args) => create(&cluster, args).await,
        AccountCommand::Suspend(args) => {
            let servers = if args.stop_servers {
                SuspendedServers::Stop
            } else {
                SuspendedServers::Leave
            };
            let suspension = Suspension {
                reason: args.reason,
                servers,
            };
            set_suspension(&cluster, &args.name, Some(&suspension)).await?;
            output::note(&format!("account {} suspended", args.name));
            Ok(())
        }
        AccountCommand::Resume(args) => {
            set_suspension(&cluster, &args.name, None).await?;
            output::note(&format!("account {} resumed", args.name));
            Ok(())
        }
    }
}

async fn set_suspension(
    cluster: &Cluster,
    name: &str,
    suspension: Option<&Suspension>,
) -> Result<(), CliError> {
    let patch = Patch::Merge(json!({ "spec": { "suspended": suspension } }));
    let api = Api::<Account>::all(cluster.client.clone());
    cluster
        .call(
            &format!("change account {name}"),
            api.patch(name, &PatchParams::default(), &patch),
        )
        .await
        .map_err(|failure| failure.or(404, || CliError::NoAccount(name.to_owned())))?;
    Ok(())
}

async fn create(cluster: &Cluster, args: CreateArgs) -> Result<(), CliError> {
    let spec = AccountSpec {
        email: args.email,
        namespace: args.namespace,
        instance_quota: args.instance_quota,
        webhook_quota: args.webhook_quota,
        rate_limit_per_hour: args.rate_limit_per_hour,
        vcpu_quota: args.vcpu_quota,
        memory_quota_gb: args.memory_quota,
        disk_quota_gb: args.disk_quota,
        ..AccountSpec::default()
    };
    let api = Api::<Account>::all(cluster.client.clone());
    let account = cluster
        .call(
            &format!("create account {}", args.name),
            api.create(&PostParams::default(), &Account::new(&args.name, spec)),
        )
        .await
        .map_err(|failure| {
            failure.or(409, || {
                CliError::Plain(format!(
                    "account {0} already exists\n`kubectl describe account {0}` shows it; `kubectl edit account {0}` changes it; or choose another name.",
                    args.name
                ))
            })
        })?;
    output::note(&format!("account {} created", args.name));
    if args.no_wait {
        return show(&account, args.output);
    }
    let account = wait_until_ready(cluster, account, args.timeout).await?;
    show(&account, args.output)
}

fn readiness(view: &View<'_>) -> String {
    match (view.ready, view.reason) {
        (true, _) => "True".to_owned(),
        (false, Some(reason)) => format!("False ({reason})"),
        (false, None) => "Unknown".to_owned(),
    }
}

fn show(account: &Account, output: Output) -> Result<(), CliError> {
    let view = view(account);
    if output == Output::Json {
        return output::json(&view);
    }
    let limit = |n: Option<i32>, default: &str| n.map_or_else(|| default.to_owned(), |n| n.to_string());
    let lines = [
        ("Name", view.name.to_owned()),
        ("ID", view.id.unwrap_or("-").to_owned()),
        ("Email", view.email.to_owned()),
        ("Namespace", view.namespace.to_owned()),
        (
            "Instance quota",
            limit(view.instance_quota, "the operator's default"),
        ),
        ("Webhook quota", limit(view.webhook_quota, "20")),
        ("vCPU quota", limit(view.vcpu_quota, "none")),
        ("Memory quota in GB", limit(view.memory_quota_gb, "none")),
        ("Disk quota in GB", limit(view.disk_quota_gb, "none")),
        ("Requests per hour", view.rate_limit_per_hour.to_string()),
        ("Ready", readiness(&view)),
        ("Message", view.message.unwrap_or("-").to_owned()),
    ];
    output::line(&output::description(&lines));
    Ok(())
}

/// The namespace that an account owns, which its spec alone does not decide. `what` is in it.
pub(super) fn namespace<'a>(account: &'a Account, what: &str) -> Result<&'a str, CliError> {
    account.owned_namespace().ok_or_else(|| CliError::NotReady {
        name: account.name_any(),
        what: format!(
            "has no namespace, and so no {what}\n`{}` shows why.",
            objects::describe(account)
        ),
    })
}

pub(super) async fn get(cluster: &Cluster, name: &str) -> Result<Account, CliError> {
    let api = Api::<Account>::all(cluster.client.clone());
    cluster
        .call(&format!("read account {name}"), api.get(name))
        .await
        .map_err(|failure| failure.or(404, || CliError::NoAccount(name.to_owned())))
}

/// Waits until an Account is ready.
async fn wait_until_ready(
    cluster: &Cluster,
    account: Account,
    patience: Duration,
) -> Result<Account, CliError> {
    wait_for(cluster, account, READY, patience).await
}

/// Waits until an Account has its namespace, where keys can be created even if Kubernetes does not count its instances yet.
pub(super) async fn wait_for_namespace(
    cluster: &Cluster,
    account: Account,
    patience: Duration,
) -> Result<Account, CliError> {
    wait_for(cluster, account, NAMESPACE_READY, patience).await
}

/// Waits until a condition of an Account is true, and prints progress. Fails at once if the Account is stalled or being deleted.
async fn wait_for(
    cluster: &Cluster,
    account: Account,
    condition: &'static str,
    patience: Duration,
) -> Result<Account, CliError> {
    let accounts = Api::all(cluster.client.clone());
    wait::until_done(accounts, account, patience, |account| {
        progress(account, condition)
    })
    .await
}

fn progress(account: &Account, condition: &str) -> Progress {
    let status = account.status.clone().unwrap_or_default();
    let is_stalled = is_true(&status.conditions, STALLED);
    Progress::of(
        account,
        status.observed_generation,
        &status.conditions,
        condition,
        is_stalled,
    )
}
