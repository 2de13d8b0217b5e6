//! `stellage events`: the log of an account's events.

use std::{
    collections::HashSet,
    io::{self, Write as _},
};

use clap::Args;
use futures::StreamExt as _;
use jiff::Timestamp;
use kube::{
    Api, ResourceExt as _,
    api::ListParams,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};

use super::{
    CliError, account,
    connect::{Cluster, note_outage},
    duration, objects,
    output::{self, Output, printable},
};
use domain::event::{EventFilter, EventType, Period, instance_of};
use resources::{EventLog, LoggedEvent, origin};
use runtime::{client::Pages, kubeconfig::ClusterArgs, watch};

/// Pages of the log per list call. Each has at most 1.5 MiB.
const PAGES_PER_CALL: u32 = 25;

const EXAMPLES: &str = "\
Examples:
  stellage events --account ada
  stellage events --account ada --since 2h --type instance.stopped
  stellage events --account ada --follow --since 0s --output json

The log has the events of the last 24 hours, about two seconds after they have happened. `stellage listen` shows events at once, but none from before it was started.";

/// Print the events of an account, oldest first.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct EventsArgs {
    /// Account whose events to print
    #[arg(long, value_parser = objects::name)]
    account: String,

    /// Go on printing new events until Ctrl-C
    #[arg(long, short)]
    follow: bool,

    /// Only events of this type
    #[arg(long = "type", value_name = "TYPE", value_enum)]
    event_type: Option<EventType>,

    /// Only events since then: an age such as 30m or 2h, or an RFC 3339 time
    #[arg(long, value_name = "WHEN", value_parser = duration::since_now)]
    since: Option<Timestamp>,

    /// Output format: text, or json for the bodies as receivers get them, one per line
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

pub(super) async fn run(args: EventsArgs, which: &ClusterArgs) -> Result<(), CliError> {
    let cluster = Cluster::of(which).await?;
    let account = account::get(&cluster, &args.account).await?;
    let namespace = account::namespace(&account, "events")?;
    let api = Api::<DeserializeGuard<EventLog>>::namespaced(cluster.client.clone(), namespace);
    let mut log = Log {
        account: origin::uid(&account.metadata).to_owned(),
        filter: EventFilter {
            event_type: args.event_type,
            instance: None,
            period: Period {
                since: args.since,
                until: None,
            },
        },
        output: args.output,
        printed: HashSet::new(),
        listed: HashSet::new(),
        waiting: Vec::new(),
        is_failing: false,
    };
    let doing = format!("list eventlogs in namespace {namespace}");
    if args.follow {
        cluster.can_list(&api, &doing).await?;
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            () = log.follow(api) => {}
        }
        return Ok(());
    }
    let pages = Pages::of(api, ListParams::default().limit(PAGES_PER_CALL));
    for page in cluster.list(&doing, pages, Pages::next).await? {
        log.take(page);
    }
    if log.waiting.is_empty() {
        output::note(&format!(
            "There are no matching events in the log of account {}.",
            args.account
        ));
    }
    // A closed pipe, as with `| head`, is not an error.
    let _ = log.print();
    Ok(())
}

/// The log of an account, as far as it was read. It is bounded by the retention of the log.
struct Log {
    /// UID of the Account.
    account: String,
    filter: EventFilter,
    output: Output,
    /// Names of the pages that have been printed, or are waiting to be.
    printed: HashSet<String>,
    /// Names of the pages in the list that is being received.
    listed: HashSet<String>,
    /// Events that have not been printed.
    waiting: Vec<LoggedEvent>,
    /// Whether the watch is failing, so that each outage is reported once.
    is_failing: bool,
}

impl Log {
    /// Takes the matching events of a page, unless it has been taken before.
    fn take(&mut self, page: DeserializeGuard<EventLog>) {
        let page = match page.0 {
            Ok(page) => page,
            Err(error) => {
                let name = error.metadata.name.unwrap_or_default();
                output::note(&format!("cannot read the page {name}: {}", error.error));
                return;
            }
        };
        // Whoever restored the namespace may have put pages of another account there.
        if page.spec.account == self.account && self.printed.insert(page.name_any()) {
            let matching = page
                .spec
                .events
                .into_iter()
                .filter(|event| self.filter.matches(event));
            self.waiting.extend(matching);
        }
    }

    /// Prints what is waiting, oldest first.
    fn print(&mut self) -> io::Result<()> {
        self.waiting.sort_by(|a, b| a.order().cmp(&b.order()));
        let mut out = io::stdout().lock();
        for event in self.waiting.drain(..) {
            match self.output {
                Output::Json => writeln!(out, "{}", event.body)?,
                Output::Text => writeln!(out, "{}", printable(&describe(&event)))?,
            }
        }
        out.flush()
    }

    /// Prints the log, then new pages, until stdout is closed.
    async fn follow(&mut self, api: Api<DeserializeGuard<EventLog>>) {
        let mut changes = watcher(api, watcher::Config::default().page_size(PAGES_PER_CALL))
            .backoff(watch::backoff())
            .boxed();
        while let Some(change) = changes.next().await {
            if self.changed(change).is_err() {
                return;
            }
        }
    }

    fn changed(&mut self, change: watcher::Result<Event<DeserializeGuard<EventLog>>>) -> io::Result<()> {
        let change = match change {
            Ok(change) => change,
            Err(error) => {
                note_outage(&mut self.is_failing, &error);
                return Ok(());
            }
        };
        // The beginning of a list does not prove that the API server works again.
        self.is_failing &= matches!(change, Event::Init);
        match change {
            Event::Init => self.listed.clear(),
            Event::InitApply(page) => {
                self.listed.insert(page.name_any());
                self.take(page);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                self.printed.retain(|page| listed.contains(page));
                self.print()?;
            }
            Event::Apply(page) => {
                self.take(page);
                self.print()?;
            }
            Event::Delete(page) => {
                self.printed.remove(&page.name_any());
            }
        }
        Ok(())
    }
}

/// An event as a line for people: its time, type and id, and the instance's id and name.
fn describe(event: &LoggedEvent) -> String {
    let instance = instance_of(&event.body);
    let (id, name) = instance
        .as_ref()
        .map_or(("-", "-"), |instance| (&instance.id, &instance.name));
    format!(
        "{:.3}   {:<16}   {}   {id}   {name}",
        event.created_at,
        event.event_type.as_str(),
        event.id,
    )
}

#[cfg(test)]
mod tests {
    use kube::core::DeserializeGuard;

    use super::*;

    fn page(second: i64, account: &str, events: &[(i64, &str)]) -> DeserializeGuard<EventLog> {
        let events = events.iter().map(|(second, body)| LoggedEvent {
            id: format!("evt_{second:0>16}"),
            event_type: EventType::InstanceStarted,
            created_at: Timestamp::from_second(*second).unwrap(),
            sequence: 1,
            subject: "u".to_owned(),
            body: (*body).to_owned(),
            traceparent: None,
            deliveries: Vec::new(),
        });
        let at = Timestamp::from_second(second).unwrap();
        DeserializeGuard(Ok(EventLog::page("ada", account, at, events.collect()).unwrap()))
    }

    fn log() -> Log {
        Log {
            account: "u".to_owned(),
            filter: EventFilter::default(),
            output: Output::Json,
            printed: HashSet::new(),
            listed: HashSet::new(),
            waiting: Vec::new(),
            is_failing: false,
        }
    }

    fn waiting(log: &Log) -> Vec<i64> {
        log.waiting
            .iter()
            .map(|event| event.created_at.as_second())
            .collect()
    }

    #[test]
    fn a_line_has_the_time_type_and_id_of_an_event_and_its_instance() {
        let page = page(
            12,
            "u",
            &[
                (10, r#"{"data":{"instance":{"id":"i-1","name":"web"}}}"#),
                (11, "{}"),
            ],
        );
        let events = page.0.unwrap().spec.events;
        assert_eq!(
            events.iter().map(describe).collect::<Vec<_>>(),
            [
                "1970-01-01T00:00:10.000Z   instance.started   evt_0000000000000010   i-1   web",
                "1970-01-01T00:00:11.000Z   instance.started   evt_0000000000000011   -   -",
            ]
        );
    }

    #[test]
    fn each_page_of_the_account_is_taken_once_even_if_the_list_starts_again() {
        let mut log = log();
        log.changed(Ok(Event::Init)).unwrap();
        log.changed(Ok(Event::InitApply(page(12, "u", &[(10, ""), (11, "")]))))
            .unwrap();
        log.changed(Ok(Event::InitApply(page(13, "former", &[(9, "")]))))
            .unwrap();
        assert_eq!(waiting(&log), [10, 11]);
        log.changed(Ok(Event::Init)).unwrap();
        log.changed(Ok(Event::InitApply(page(12, "u", &[(10, ""), (11, "")]))))
            .unwrap();
        assert_eq!(waiting(&log), [10, 11]);
        log.changed(Ok(Event::InitDone)).unwrap();
        log.take(page(12, "u", &[(10, ""), (11, "")]));
        assert!(log.waiting.is_empty(), "printed");
        log.take(page(14, "u", &[(13, "")]));
        assert_eq!(waiting(&log), [13]);
        log.changed(Ok(Event::Init)).unwrap();
        log.changed(Ok(Event::InitDone)).unwrap();
        assert!(log.printed.is_empty(), "pages that are gone take no memory");
    }
}
