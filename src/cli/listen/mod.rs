//! `stellage listen`: the events of an account as they happen.

mod forward;
mod outboxes;

use std::io::{self, Write as _};

use backon::ExponentialBuilder;
use clap::Args;
use futures::StreamExt as _;
use kube::{
    Api,
    api::ListParams,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, watcher},
    },
};
use serde_json::Value;
use url::Url;

use self::{
    forward::Forwarder,
    outboxes::{Outboxes, Recorded},
};
use super::{
    CliError, account,
    connect::{Cluster, innermost},
    output::{self, Output},
    program::program,
    secret,
};
use crate::{
    delivery::signature,
    events::{EventType, OutboxEntry},
    resources::Instance,
    runtime::watch,
};

const EXAMPLES: &str = "\
Examples:
  stellage listen --account ada
  stellage listen --account ada --events instance.started,instance.stopped --output json
  stellage listen --account ada --forward http://localhost:8080/hook --secret whsec_…

Each event is passed on once, whatever the answer is: unlike deliveries to a webhook, nothing is sent again.

Events that were recorded before the start are not shown, nor those that come and go while the API server is out of reach \
for long.

The certificate of an https receiver is checked against the system's roots, or those in the file that SSL_CERT_FILE names.";

/// Print the events of an account as they happen.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ListenArgs {
    /// Account whose events these are
    #[arg(long)]
    account: String,

    /// Only events of these types [default: all]
    #[arg(long, value_name = "TYPE,…", value_enum, value_delimiter = ',')]
    events: Vec<EventType>,

    /// Where each event is POSTed to, with the body and the headers of a delivery
    #[arg(long, value_name = "URL", value_parser = forward::target)]
    forward: Option<Url>,

    /// Secret that signs what is passed on [default: a new one, printed at the start]
    #[arg(
        long,
        env = "STELLAGE_WEBHOOK_SECRET",
        hide_env_values = true,
        value_parser = secret::parse
    )]
    secret: Option<String>,

    /// How events are printed: text, or json for their bodies as they are delivered
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

pub(super) async fn run(args: ListenArgs) -> Result<(), CliError> {
    let cluster = Cluster::current().await?;
    let account = account::get(&cluster, &args.account).await?;
    let namespace = account.owned_namespace().ok_or_else(|| CliError::NotReady {
        name: args.account.clone(),
        what: format!(
            "has no namespace, and so no events\n`{} account show {}` shows why.",
            program(),
            args.account
        ),
    })?;
    let instances = Api::<DeserializeGuard<Instance>>::namespaced(cluster.client.clone(), namespace);
    // A watch tries again whatever the error is; what is wrong from the start is told here.
    cluster
        .call(
            &format!("list instances in namespace {namespace}"),
            instances.list_metadata(&ListParams::default().limit(1)),
        )
        .await?;

    let given = args.secret.is_some();
    let secret = args.secret.unwrap_or_else(signature::new_secret);
    let passed_on = args.forward.as_ref().map_or_else(String::new, |url| {
        let which = if given { "that was given" } else { &secret };
        format!("\nEach is passed on to {url}, signed with the secret {which}")
    });
    let welcome = format!(
        "Listening to the events of account {} in namespace {namespace}.{passed_on}",
        args.account
    );
    let mut listener = Listener {
        types: args.events,
        output: args.output,
        forwarder: args.forward.map(|url| Forwarder::new(url, &secret)).transpose()?,
        welcome: Some(welcome),
        outboxes: Outboxes::default(),
        is_failing: false,
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = listener.listen(instances) => {}
    }
    Ok(())
}

/// What `stellage listen` does with events.
struct Listener {
    /// The types that are wanted; all if it is empty.
    types: Vec<EventType>,
    output: Output,
    forwarder: Option<Forwarder>,
    /// Printed once nothing is missed any more.
    welcome: Option<String>,
    outboxes: Outboxes,
    /// Whether the last thing that the watch told is an error: each outage is told of once.
    is_failing: bool,
}

impl Listener {
    /// Until nobody reads any more, as in `| head`.
    async fn listen(&mut self, instances: Api<DeserializeGuard<Instance>>) {
        let backoff = ExponentialBuilder::new()
            .with_min_delay(watch::MIN_BACKOFF)
            .with_max_delay(watch::MAX_BACKOFF)
            .with_jitter();
        let backoff = watcher::ExponentialBackoff::from(backoff.without_max_times());
        let mut changes = watcher(instances, watcher::Config::default())
            .backoff(backoff)
            .boxed();
        loop {
            let change = tokio::select! {
                change = changes.next() => change,
                outcome = outcome(&mut self.forwarder) => {
                    output::note(&outcome);
                    continue;
                }
            };
            let Some(change) = change else { return };
            if self.changed(change).is_err() {
                return;
            }
        }
    }

    /// Takes note of what the watch tells.
    fn changed(
        &mut self,
        change: watcher::Result<watcher::Event<DeserializeGuard<Instance>>>,
    ) -> io::Result<()> {
        let change = match change {
            Ok(change) => change,
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    output::note(&format!(
                        "the watch failed, and is tried again until it works: {}",
                        innermost(&error)
                    ));
                }
                return Ok(());
            }
        };
        // A list that begins says nothing yet.
        self.is_failing &= matches!(change, watcher::Event::Init);
        for event in self.outboxes.changed(change) {
            if self.types.is_empty() || self.types.contains(&event.entry.event_type) {
                self.show(event)?;
            }
        }
        if self.outboxes.has_started()
            && let Some(welcome) = self.welcome.take()
        {
            output::note(&welcome);
        }
        Ok(())
    }

    fn show(&mut self, event: Recorded) -> io::Result<()> {
        match self.output {
            Output::Json => writeln!(io::stdout(), "{}", event.entry.body)?,
            Output::Text => writeln!(io::stdout(), "{}", describe(&event.entry))?,
        }
        let id = event.entry.id.clone();
        if let Some(forwarder) = &mut self.forwarder
            && !forwarder.push(event)
        {
            output::note(&format!(
                "{id}: not passed on: too many events wait for the receiver"
            ));
        }
        Ok(())
    }
}

/// What became of the next event that was passed on. Never returns if none is.
async fn outcome(forwarder: &mut Option<Forwarder>) -> String {
    match forwarder {
        Some(forwarder) => forwarder.next().await,
        None => std::future::pending().await,
    }
}

/// An event as a line for people: when, what, its id, and the instance's name and status.
fn describe(entry: &OutboxEntry) -> String {
    let body: Value = serde_json::from_str(&entry.body).unwrap_or_default();
    let instance = |key: &str| body["data"]["instance"][key].as_str().unwrap_or("-");
    format!(
        "{:.3}   {:<16}   {}   {}   {}",
        entry.created_at,
        entry.event_type.as_str(),
        entry.id,
        instance("name"),
        instance("status"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_when_what_and_of_which_instance() {
        let mut entry = OutboxEntry {
            id: "evt_1".into(),
            event_type: EventType::InstanceStarted,
            sequence: 1,
            created_at: "2026-11-21T10:00:00.120Z".parse().unwrap(),
            body: r#"{"data":{"instance":{"name":"web","status":"running"}}}"#.into(),
        };
        assert_eq!(
            describe(&entry),
            "2026-11-21T10:00:00.120Z   instance.started   evt_1   web   running"
        );
        entry.body = r#"{"data":{"invoice":{}}}"#.into();
        assert!(describe(&entry).ends_with("evt_1   -   -"));
    }
}
