//! `stellage listen`: the events of an account as they happen.

mod forward;
mod outboxes;

use std::io::{self, Write as _};

use clap::Args;
use futures::{
    StreamExt as _,
    stream::{BoxStream, select_all},
};
use kube::{Api, core::DeserializeGuard, runtime::watcher};
use serde_json::Value;
use url::Url;

use self::{
    forward::Forwarder,
    outboxes::{News, Recorded, follow},
};
use super::{
    CliError, account,
    connect::{Cluster, note_outage},
    objects,
    output::{self, Output},
    secret,
};
use domain::event::{EventType, OutboxEntry};
use resources::{Backup, Instance};
use runtime::kubeconfig::ClusterArgs;
use sender::signature;

const EXAMPLES: &str = "\
Examples:
  stellage listen --account ada
  stellage listen --account ada --events instance.started,instance.stopped --output json
  stellage listen --account ada --forward http://localhost:8080/hook --secret whsec_…

Each event is forwarded once, whatever the answer is; unlike deliveries to a webhook, it is never retried.

Events recorded before the start are not shown, nor events that are cleared while the API server is unreachable.

The certificate of an https receiver is checked against the system's root certificates, or those in SSL_CERT_FILE.";

/// Print the events of an account as they happen.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ListenArgs {
    /// Account whose events to print
    #[arg(long, value_parser = objects::name)]
    account: String,

    /// Only events of these types [default: all]
    #[arg(long, value_name = "TYPE,…", value_enum, value_delimiter = ',')]
    events: Vec<EventType>,

    /// URL to POST each event to, with the body and the headers of a delivery
    #[arg(long, value_name = "URL", value_parser = forward::target)]
    forward: Option<Url>,

    /// Secret to sign forwarded events with [default: a new one, printed at the start]
    #[arg(
        long,
        env = "STELLAGE_WEBHOOK_SECRET",
        hide_env_values = true,
        value_parser = secret::parse
    )]
    secret: Option<String>,

    /// Output format: text, or json for the bodies as they are delivered
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

pub(super) async fn run(args: ListenArgs, which: &ClusterArgs) -> Result<(), CliError> {
    let cluster = Cluster::of(which).await?;
    let account = account::get(&cluster, &args.account).await?;
    let namespace = account::namespace(&account, "events")?;
    let instances = Api::<DeserializeGuard<Instance>>::namespaced(cluster.client.clone(), namespace);
    let doing = format!("list instances in namespace {namespace}");
    cluster.can_list(&instances, &doing).await?;
    let backups = Api::<DeserializeGuard<Backup>>::namespaced(cluster.client.clone(), namespace);
    let doing = format!("list backups in namespace {namespace}");
    cluster.can_list(&backups, &doing).await?;

    let given = args.secret.is_some();
    let secret = args.secret.unwrap_or_else(signature::new_secret);
    let forwarding = args.forward.as_ref().map_or_else(String::new, |url| {
        let which = if given { "given" } else { &secret };
        format!("\nEach is forwarded to {url}, signed with the secret {which}")
    });
    let welcome = format!(
        "Listening to the events of account {} in namespace {namespace}.{forwarding}",
        args.account
    );
    let mut listener = Listener {
        types: args.events,
        output: args.output,
        forwarder: args.forward.map(|url| Forwarder::new(url, &secret)).transpose()?,
        welcome: Some(welcome),
        starting: 0,
        is_failing: false,
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = listener.listen(vec![follow(instances).boxed(), follow(backups).boxed()]) => {}
    }
    Ok(())
}

/// The state of `stellage listen`.
struct Listener {
    /// The event types to show; all if empty.
    types: Vec<EventType>,
    output: Output,
    forwarder: Option<Forwarder>,
    /// Printed once all watches have started, so that no event is missed after it.
    welcome: Option<String>,
    /// Number of watches that have not started yet.
    starting: usize,
    /// Whether the watch is failing, so that each outage is reported once.
    is_failing: bool,
}

impl Listener {
    /// Prints events until stdout is closed, as with `| head`.
    async fn listen(&mut self, kinds: Vec<BoxStream<'static, watcher::Result<News>>>) {
        self.starting = kinds.len();
        let mut changes = select_all(kinds);
        loop {
            let news = tokio::select! {
                news = changes.next() => news,
                outcome = outcome(&mut self.forwarder) => {
                    output::note(&outcome);
                    continue;
                }
            };
            let Some(news) = news else { return };
            if self.changed(news).is_err() {
                return;
            }
        }
    }

    /// Handles a change from a watch.
    fn changed(&mut self, news: watcher::Result<News>) -> io::Result<()> {
        let news = match news {
            Ok(news) => news,
            Err(error) => {
                note_outage(&mut self.is_failing, &error);
                return Ok(());
            }
        };
        self.is_failing &= news.is_beginning;
        for event in news.recorded {
            if self.types.is_empty() || self.types.contains(&event.entry.event_type) {
                self.show(event)?;
            }
        }
        self.starting -= usize::from(news.has_started);
        if self.starting == 0
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
                "{id}: not forwarded: too many events are waiting for the receiver"
            ));
        }
        Ok(())
    }
}

/// The outcome of the next forwarded event. Never returns if none is being forwarded.
async fn outcome(forwarder: &mut Option<Forwarder>) -> String {
    match forwarder {
        Some(forwarder) => forwarder.next().await,
        None => std::future::pending().await,
    }
}

/// An event as a line for people: its time, type and id, the instance's name, and the status of the backup or the instance.
fn describe(entry: &OutboxEntry) -> String {
    let body: Value = serde_json::from_str(&entry.body).unwrap_or_default();
    let data = &body["data"];
    let instance = |key: &str| data["instance"][key].as_str();
    format!(
        "{:.3}   {:<16}   {}   {}   {}",
        entry.created_at,
        entry.event_type.as_str(),
        entry.id,
        instance("name").unwrap_or("-"),
        data["backup"]["status"]
            .as_str()
            .or_else(|| instance("status"))
            .unwrap_or("-"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_time_type_id_and_instance_of_an_event() {
        let mut entry = OutboxEntry {
            id: "evt_1".into(),
            event_type: EventType::InstanceStarted,
            sequence: 1,
            created_at: "2026-11-21T10:00:00.120Z".parse().unwrap(),
            body: r#"{"data":{"instance":{"name":"web","status":"running"}}}"#.into(),
            traceparent: None,
        };
        assert_eq!(
            describe(&entry),
            "2026-11-21T10:00:00.120Z   instance.started   evt_1   web   running"
        );
        entry.body =
            r#"{"data":{"backup":{"status":"failed"},"instance":{"name":"web","status":"running"}}}"#.into();
        assert!(describe(&entry).ends_with("evt_1   web   failed"));
        entry.body = r#"{"data":{"invoice":{}}}"#.into();
        assert!(describe(&entry).ends_with("evt_1   -   -"));
    }
}
