//! Counts objects for the metrics, four times a minute: what follows from the passing of time, or from no single change.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use tokio_util::sync::CancellationToken;

use domain::{
    backup::of_the_customer,
    catalogue::Catalogue,
    instance::{
        creation_began, is_overdue,
        user_data::{USER_DATA_INVALID, USER_DATA_MISSING},
    },
    provider::{Deadlines, ProviderError},
};
use providers::Provider;
use resources::{
    Account, Backup, BackupPhase, Instance, InstanceState, Invoice, InvoicePhase, OperationKind,
    conditions::{self, READY},
};
use runtime::{
    Clock, Metrics, Store,
    metrics::{CREATED_IN_TIME, RegionLabels, StateLabels},
    shared_catalogue::SharedCatalogue,
};

/// How often they are counted.
const EVERY: Duration = Duration::from_secs(15);
/// Within which Prometheus has read a new counter: it sees no growth in the first value of one.
const SCRAPED_WITHIN: SignedDuration = SignedDuration::from_secs(90);
/// The label of all simulated regions.
const SIMULATED: &str = "simulated";
/// How long after its period an open invoice is overdue: several times as long as issuing those of all accounts takes.
const ISSUED_WITHIN: SignedDuration = SignedDuration::from_hours(1);
/// How long a backup that has failed counts: the window of the alert.
const FAILED_WITHIN: SignedDuration = SignedDuration::from_hours(6);
/// How long an Account may take to become ready.
const READY_WITHIN: SignedDuration = SignedDuration::from_mins(5);

/// What is counted, by the leader.
pub struct Census<P> {
    pub accounts: Store<Account>,
    pub instances: Store<Instance>,
    pub backups: Store<Backup>,
    /// Those that still need work.
    pub invoices: Store<Invoice>,
    pub catalogue: SharedCatalogue,
    /// Knows the deadlines.
    pub provider: Arc<P>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Metrics,
}

/// The label of a region in metrics. Codes of simulated regions are the choice of account holders.
pub(crate) fn region_label<'a>(catalogue: &Catalogue, region: &'a str) -> &'a str {
    match catalogue.kubevirt(region) {
        Some(_) => region,
        None => SIMULATED,
    }
}

/// What is counted of the instances of a region.
#[derive(Debug, Default, PartialEq)]
struct Counted {
    states: BTreeMap<&'static str, i64>,
    overdue: i64,
    /// The namespaces of creations that became late in a span of time.
    late: Vec<String>,
    /// Namespaces with instances about which the provider could not be asked last.
    failing: BTreeSet<String>,
}

/// The rounds of counting of a term as leader.
struct Rounds {
    began: Timestamp,
    last: Timestamp,
    /// What became late before the first one, while nobody led.
    missed: BTreeMap<String, Counted>,
}

impl<P: Provider> Census<P> {
    /// Counts until shutdown. `vacant_since`: when somebody last did so before.
    pub async fn run(&self, vacant_since: Option<Timestamp>, shutdown: &CancellationToken) {
        let mut rounds = self.begin(vacant_since);
        loop {
            self.count_again(&mut rounds);
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    fn begin(&self, vacant_since: Option<Timestamp>) -> Rounds {
        let now = self.clock.now();
        Rounds {
            began: now,
            last: now,
            // Before the controllers finish them.
            missed: self.count(vacant_since.unwrap_or(now), now),
        }
    }

    fn count_again(&self, rounds: &mut Rounds) {
        let now = self.clock.now();
        self.show(rounds.last, now);
        rounds.last = now;
        if now.duration_since(rounds.began) > SCRAPED_WITHIN {
            for (region, counted) in std::mem::take(&mut rounds.missed) {
                self.add_late(region, &counted.late);
            }
        }
    }

    fn show(&self, last: Timestamp, now: Timestamp) {
        let metrics = &self.metrics;
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        for (region, counted) in self.count(last, now) {
            self.add_late(region.clone(), &counted.late);
            for state in InstanceState::ALL.map(InstanceState::as_str) {
                let number = counted.states.get(state).copied().unwrap_or_default();
                let region = region.clone();
                let labels = StateLabels { region, state };
                metrics.instance_states.get_or_create_owned(&labels).set(number);
            }
            let labels = RegionLabels { region };
            let overdue = metrics.operations_overdue.get_or_create_owned(&labels);
            overdue.set(counted.overdue);
            let failing = metrics
                .accounts_with_provider_failures
                .get_or_create_owned(&labels);
            failing.set(gauge(counted.failing.len()));
        }
        let accounts = self.accounts.state();
        let not_ready = accounts.iter().filter(|account| is_late(account, now));
        metrics.accounts_not_ready.set(gauge(not_ready.count()));
        let backups = self.backups.state();
        let failed = backups.iter().filter(|backup| has_just_failed(backup, now));
        let accounts: BTreeSet<_> = failed.map(|backup| &backup.metadata.namespace).collect();
        metrics.accounts_with_failed_backups.set(gauge(accounts.len()));
        let invoices = self.invoices.state();
        let overdue = invoices.iter().filter(|invoice| is_due(invoice, now));
        metrics.invoices_overdue.set(gauge(overdue.count()));
    }

    fn count(&self, last: Timestamp, now: Timestamp) -> BTreeMap<String, Counted> {
        by_region(
            self.instances.state().iter().map(|instance| &**instance),
            &self.catalogue.current(),
            |region| self.provider.deadlines(region),
            last,
            now,
        )
    }

    fn add_late(&self, region: String, late: &[String]) {
        let creates_late = &self.metrics.creates_late;
        creates_late
            .get_or_create_owned(&RegionLabels { region })
            .inc_by(late.len() as u64);
        for account in late {
            self.metrics.accounts_with_late_creates.note(account);
        }
    }
}

/// Whether an Account should be ready and is not. One that is being deleted may be held back by its account holder.
fn is_late(account: &Account, now: Timestamp) -> bool {
    let status = account.status.as_ref();
    let list = status.map_or(&[][..], |status| &status.conditions);
    let created = account.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let since = conditions::find(list, READY).map(|ready| ready.last_transition_time.0);
    let since = since.or(created).unwrap_or(now);
    account.metadata.deletion_timestamp.is_none()
        && !conditions::is_true(list, READY)
        && now.duration_since(since) > READY_WITHIN
}

/// Whether a backup has failed lately, and not because of its customer.
fn has_just_failed(backup: &Backup, now: Timestamp) -> bool {
    let ended = backup.status.as_ref().and_then(|status| status.completed_at);
    backup.phase() == BackupPhase::Failed
        && of_the_customer(backup).is_none()
        && ended.is_some_and(|ended| now.duration_since(ended) < FAILED_WITHIN)
}

/// Whether an invoice, or a credit note that was asked for, should have been issued.
fn is_due(invoice: &Invoice, now: Timestamp) -> bool {
    let since = if invoice.is_invoice() {
        Some(invoice.spec.period.to)
    } else {
        invoice.metadata.creation_timestamp.as_ref().map(|time| time.0)
    };
    invoice.phase() == InvoicePhase::Open
        && since.is_some_and(|since| now.duration_since(since) > ISSUED_WITHIN)
}

fn by_region<'a>(
    instances: impl Iterator<Item = &'a Instance>,
    catalogue: &Catalogue,
    deadlines: impl Fn(&str) -> Deadlines,
    last: Timestamp,
    now: Timestamp,
) -> BTreeMap<String, Counted> {
    let labels = catalogue
        .real_regions()
        .map(|(region, _)| region)
        .chain([SIMULATED]);
    let mut counted: BTreeMap<String, Counted> = labels
        .map(|region| (region.to_owned(), Counted::default()))
        .collect();
    for instance in instances {
        let Some(status) = &instance.status else { continue };
        let region = instance.spec.region.as_str();
        let Some(counted) = counted.get_mut(region_label(catalogue, region)) else {
            continue;
        };
        if let Some(state) = status.state {
            *counted.states.entry(state.as_str()).or_default() += 1;
        }
        let reason = conditions::find(&status.conditions, READY).map_or("", |ready| &ready.reason);
        let namespace = || instance.metadata.namespace.clone().unwrap_or_default();
        if ProviderError::is_reason(reason) {
            counted.failing.insert(namespace());
        }
        let Some(operation) = &status.operation else {
            continue;
        };
        // Nobody but the account holder keeps those without their user data waiting.
        if [USER_DATA_MISSING, USER_DATA_INVALID].contains(&reason) {
            continue;
        }
        counted.overdue += i64::from(is_overdue(operation, &deadlines(region), now));
        // A backup may be of any size.
        if operation.kind == OperationKind::Create && instance.spec.restore_from.is_none() {
            let late_at = creation_began(instance) + CREATED_IN_TIME;
            if last < late_at && late_at <= now {
                counted.late.push(namespace());
            }
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use domain::{catalogue::testing::catalogue, provider::Timings};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
    use providers::simulator::{Faults, Pools, Simulator};
    use runtime::{metrics::Format, objects::store, testing::TestClock};
    use serde_json::{Value, json};

    use super::*;

    fn at(time: &str) -> Timestamp {
        format!("2026-11-23T{time}Z").parse().unwrap()
    }

    fn instance(namespace: &str, region: &str, status: Value) -> Instance {
        let mut object = json!({
            "metadata": {
                "name": "web", "namespace": namespace, "generation": 1, "creationTimestamp": "2026-11-23T12:00:00Z",
            },
            "spec": { "plan": "starter", "region": region, "image": "debian-13" },
        });
        object["status"] = status;
        serde_json::from_value(object).unwrap()
    }

    fn operation(kind: &str, began: &str) -> Value {
        json!({
            "kind": kind, "startedAt": format!("2026-11-23T{began}Z"), "endsIn": "Running", "plan": "starter", "image": "debian-13",
        })
    }

    fn without_its_user_data() -> Vec<Condition> {
        let ready = json!([{
            "type": "Ready", "status": "False", "reason": USER_DATA_MISSING, "message": "",
            "lastTransitionTime": "2026-11-23T12:00:00Z",
        }]);
        serde_json::from_value(ready).unwrap()
    }

    fn count(instances: &[Instance], last: &str, now: &str) -> [Counted; 2] {
        let deadlines = |_: &str| Timings::default().deadlines();
        let mut counted = by_region(instances.iter(), &catalogue(), deadlines, at(last), at(now));
        let shown = ["de-fra-1", "simulated"].map(|region| counted.remove(region).unwrap());
        assert!(counted.is_empty(), "{counted:?}");
        shown
    }

    #[test]
    fn operations_past_their_deadline_are_counted_by_region_and_all_simulated_ones_together() {
        let with =
            |region, kind, began| instance("ada", region, json!({ "operation": operation(kind, began) }));
        let all = [
            with("de-fra-1", "Start", "12:00:00"),
            with("de-fra-1", "Start", "12:59:00"),
            with("nl-ams-1", "Delete", "12:00:00"),
            with("fr-par-1", "Stop", "12:00:00"),
        ];
        let overdue = |instances: &[Instance]| count(instances, "13:00:00", "13:00:00").map(|it| it.overdue);
        assert_eq!(overdue(&all), [1, 2]);
        assert_eq!(overdue(&[]), [0, 0]);
        let mut waiting = with("de-fra-1", "Create", "12:00:00");
        waiting.status.as_mut().unwrap().conditions = without_its_user_data();
        assert_eq!(overdue(&[waiting]), [0, 0], "its account holder keeps it waiting");
    }

    #[test]
    fn instances_are_counted_by_state_and_accounts_with_failed_calls_once() {
        let ready = |reason: &str| {
            json!([{
                "type": "Ready", "status": "False", "reason": reason, "message": "",
                "lastTransitionTime": "2026-11-23T12:00:00Z",
            }])
        };
        let all = [
            instance(
                "ada",
                "de-fra-1",
                json!({ "state": "running", "conditions": ready("ProviderTimeout") }),
            ),
            instance(
                "ada",
                "de-fra-1",
                json!({ "state": "running", "conditions": ready("ProviderTimeout") }),
            ),
            instance(
                "eve",
                "de-fra-1",
                json!({ "state": "error", "conditions": ready("ProvisioningFailed") }),
            ),
            instance("eve", "fr-par-1", json!({ "state": "stopped" })),
            instance("eve", "fr-par-1", json!({})),
        ];
        let [real, simulated] = count(&all, "13:00:00", "13:00:00");
        assert_eq!(real.states, BTreeMap::from([("running", 2), ("error", 1)]));
        assert_eq!(simulated.states, BTreeMap::from([("stopped", 1)]));
        assert_eq!((real.failing.len(), simulated.failing.len()), (1, 0));
    }

    #[test]
    fn a_creation_is_counted_as_late_once_unless_its_account_holder_keeps_it_waiting() {
        let late = |status: Value| {
            let all = [instance("ada", "de-fra-1", status)];
            [
                ("12:04:30", "12:04:45"),
                ("12:04:45", "12:05:00"),
                ("12:05:00", "12:05:15"),
            ]
            .map(|(last, now)| count(&all, last, now)[0].late.len())
        };
        assert_eq!(
            late(json!({ "operation": operation("Create", "12:00:01") })),
            [0, 1, 0]
        );
        assert_eq!(
            late(json!({ "operation": operation("Start", "12:00:01") })),
            [0, 0, 0]
        );
        assert_eq!(late(json!({ "state": "running" })), [0, 0, 0]);
        let waiting =
            json!({ "operation": operation("Create", "12:00:01"), "conditions": without_its_user_data() });
        assert_eq!(late(waiting), [0, 0, 0]);
    }

    #[test]
    fn a_creation_that_became_late_while_nobody_led_counts_once_prometheus_has_seen_the_counter() {
        let clock = TestClock::at(at("12:10:00"));
        let (instances, writer) = store();
        let creating = json!({ "operation": operation("Create", "12:00:01") });
        writer.replace([Arc::new(instance("ada", "de-fra-1", creating))]);
        let census = Census {
            accounts: store().0,
            instances,
            backups: store().0,
            invoices: store().0,
            catalogue: SharedCatalogue::new(catalogue()),
            provider: Arc::new(Simulator::new(
                Timings::default(),
                Pools::default(),
                Faults::new(false),
                [],
            )),
            clock: Arc::new(clock.clone()),
            metrics: Metrics::new(),
        };
        let region = "de-fra-1".to_owned();
        let late = census
            .metrics
            .creates_late
            .get_or_create_owned(&RegionLabels { region });
        let mut rounds = census.begin(Some(at("12:04:50")));
        // It runs before it is counted.
        writer.replace([]);
        let seen = ["12:10:00", "12:11:30", "12:11:45", "12:12:00"].map(|time| {
            clock.set(at(time));
            census.count_again(&mut rounds);
            late.get()
        });
        assert_eq!(seen, [0, 0, 1, 1]);
        let page = census.metrics.render(Format::Prometheus).unwrap();
        assert!(
            page.contains("\nstellage_accounts_with_late_creates{within=\"6h\"} 1\n"),
            "{page}"
        );
    }

    #[test]
    fn a_backup_counts_for_six_hours_if_it_failed_and_its_customer_is_not_the_cause() {
        let backup = |phase: &str, code: &str| -> Backup {
            serde_json::from_value(json!({
                "metadata": { "name": "daily", "namespace": "ada" },
                "spec": { "instance": "web" },
                "status": {
                    "phase": phase, "completedAt": "2026-11-23T06:00:01Z", "error": { "code": code, "message": "" },
                },
            }))
            .unwrap()
        };
        let now = at("12:00:00");
        for code in [
            "timeout",
            "snapshot_failed",
            "not_available",
            "storage_unavailable",
        ] {
            assert!(has_just_failed(&backup("Failed", code), now), "{code}");
        }
        for code in [
            "instance_deleted",
            "instance_not_ready",
            "backup_deleted",
            "resource_limit_exceeded",
        ] {
            assert!(!has_just_failed(&backup("Failed", code), now), "{code}");
        }
        assert!(!has_just_failed(&backup("Completed", "timeout"), now));
        assert!(!has_just_failed(&backup("Failed", "timeout"), at("12:00:01")));
    }

    #[test]
    fn an_account_that_is_not_ready_counts_after_five_minutes_unless_it_is_being_deleted() {
        let account = |status: &str, more: Value| -> Account {
            let mut account = json!({
                "metadata": { "name": "ada", "creationTimestamp": "2026-11-23T12:00:00Z" },
                "spec": { "email": "ada@example.com" },
                "status": { "conditions": [{
                    "type": "Ready", "status": status, "reason": "Because", "message": "",
                    "lastTransitionTime": "2026-11-23T12:30:00Z",
                }] },
            });
            for (name, value) in more.as_object().unwrap() {
                account["metadata"][name] = value.clone();
            }
            serde_json::from_value(account).unwrap()
        };
        let broken = account("False", json!({}));
        assert!(!is_late(&broken, at("12:35:00")));
        assert!(is_late(&broken, at("12:35:01")));
        assert!(!is_late(&account("True", json!({})), at("13:00:00")));
        let going = account("False", json!({ "deletionTimestamp": "2026-11-23T12:30:00Z" }));
        assert!(!is_late(&going, at("13:00:00")));
        let untouched = Account {
            status: None,
            ..broken
        };
        assert!(is_late(&untouched, at("12:06:00")));
    }
}
