//! A year of 200 instances that come, go and change, with faults, and an operator that dies a hundred times and is down at
//! the ends of months.

use std::{collections::BTreeSet, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use serde_json::{Value, json};

use super::{
    api_server::ApiServer,
    chronicle::{Chronicle, Counts},
    operator::{CPU, Inbox, LIMITS, Operator, SAMPLES, Surroundings, alive},
};
use domain::{
    backup::retention::{FAILED_KEPT, counts, is_left_over},
    catalogue::{
        Alerts, Catalogue, Prices,
        alerts::{AlertRule, Percent},
    },
    instance::Action,
    invoice::Period,
    provider::Timings,
};
use providers::simulator::FAULT_ANNOTATION;
use resources::{
    AlertMetric, Backup, Instance, Invoice, InvoiceNumber, InvoicePhase, Plan, ids,
    instance::FINALIZER,
    invoice::{Credit, InvoiceType},
    money::{Cents, Currency, TaxRate},
    origin::{self, ORIGIN_ANNOTATION},
};
use runtime::{Clock as _, shared_catalogue::SharedCatalogue};

const START: &str = "2027-01-01T00:00:00Z";
const DAYS: i64 = 370;
const INSTANCES: usize = 200;
const RESTARTS: usize = 100;
const ACCOUNTS: [&str; 4] = ["ada", "bob", "cyn", "dan"];

const HOUR: SignedDuration = SignedDuration::from_hours(1);
const MINUTE: SignedDuration = SignedDuration::from_mins(1);

struct Year {
    around: Surroundings,
    operator: Option<Operator>,
    /// When the operator is started again.
    returns_at: Timestamp,
    died_at: Timestamp,
    chronicle: Chronicle,
    prices: [u64; 4],
    /// In percent.
    tax: u32,
    made: usize,
    /// Credit notes that were asked for.
    asked_for: usize,
    /// Instances that were written back.
    written_back: usize,
    restarts: usize,
    seed: u64,
    rng: StdRng,
    /// How long the operator stays down after its next death.
    downtime: SignedDuration,
    end: Timestamp,
}

/// The UID that an object had first.
fn uid_of(object: &Value) -> &str {
    let metadata = &object["metadata"];
    let known = metadata["annotations"][ORIGIN_ANNOTATION].as_str();
    let first = known.and_then(|origin| origin.split(' ').next());
    first.unwrap_or_else(|| metadata["uid"].as_str().unwrap())
}

impl Year {
    fn new(seed: u64) -> Self {
        let start: Timestamp = START.parse().unwrap();
        let server = ApiServer::new(seed, start);
        for name in ACCOUNTS {
            server.create_account(name);
        }
        server.take_writes();
        Self {
            around: Surroundings::new(server, start, Timings::default()),
            operator: None,
            returns_at: start,
            died_at: start,
            chronicle: Chronicle::default(),
            prices: [5_00, 15_00, 30_00, 60_00],
            tax: 19,
            made: 0,
            asked_for: 0,
            written_back: 0,
            restarts: 0,
            seed,
            rng: StdRng::seed_from_u64(seed),
            downtime: SignedDuration::ZERO,
            end: start + HOUR * i32::try_from(24 * DAYS).unwrap(),
        }
    }

    fn time(&self) -> Timestamp {
        self.around.clock.now()
    }

    fn server(&self) -> &ApiServer {
        &self.around.server
    }

    fn catalogue(&self) -> SharedCatalogue {
        let by_plan = Plan::ALL.into_iter().zip(self.prices.map(Cents)).collect();
        SharedCatalogue::new(Catalogue {
            prices: Prices::of(&Currency::default(), &by_plan)
                .with_tax(TaxRate::from_hundredths(self.tax * 100).unwrap()),
            alerts: Arc::new(Alerts {
                interval: SAMPLES,
                rules: vec![AlertRule {
                    name: "cpu_usage_high".into(),
                    metric: AlertMetric::CpuUsage,
                    threshold: Percent(90_00),
                    lasting: SAMPLES * 3,
                    rearm_below: Percent(80_00),
                }],
            }),
            ..crate::tests::with_seller()
        })
    }

    fn set_time(&mut self, time: Timestamp) {
        self.around.set_time(time);
        if let Some(operator) = &mut self.operator {
            operator.set_time(time);
        }
    }

    /// Records what was written.
    fn look(&mut self) {
        let writes: Vec<_> = self.server().take_writes().into();
        let now = self.time();
        for stored in &writes {
            self.chronicle.write(stored, now);
        }
        let Inbox { events, new } = &mut *self.around.inbox.lock();
        for id in new.drain(..) {
            self.chronicle.received(&events[&id]);
        }
        if let Some(operator) = &mut self.operator {
            operator.saw(&writes);
        }
    }

    fn start(&mut self) {
        self.restarts += 1;
        self.chronicle.started(self.time());
        let seed = self.seed.wrapping_mul(1000) + u64::try_from(self.restarts).unwrap() * 10;
        self.operator = Some(Operator::start(&self.around, self.catalogue(), seed));
    }

    fn die(&mut self) {
        self.operator = None;
        let now = self.time();
        self.chronicle.died(now);
        self.died_at = now;
        self.returns_at = now + self.downtime;
        self.downtime = SignedDuration::from_secs(self.rng.random_range(1..40));
    }

    /// Lets time pass until `end`.
    async fn run(&mut self, end: Timestamp) {
        loop {
            let next = match &mut self.operator {
                Some(operator) => operator.next(),
                None => Some(self.returns_at),
            };
            let Some(next) = next.filter(|next| *next <= end) else {
                break;
            };
            if next > self.time() {
                self.set_time(next);
            }
            let Some(operator) = &mut self.operator else {
                self.start();
                continue;
            };
            let lives = alive(&self.around.server, operator.step()).await;
            self.look();
            if !lives {
                self.die();
            }
        }
        if end > self.time() {
            self.set_time(end);
        }
    }

    fn chance(&mut self, of: f64) -> bool {
        self.rng.random_bool(of)
    }

    fn plan(&mut self) -> &'static str {
        Plan::ALL.choose(&mut self.rng).unwrap().as_str()
    }

    fn create(&mut self) {
        self.made += 1;
        let account = *ACCOUNTS.choose(&mut self.rng).unwrap();
        // Names are reused; identifiers are not.
        let name = if self.chance(0.4) {
            format!("web-{}", self.rng.random_range(0..6))
        } else {
            format!("i-{:016}", self.made)
        };
        let is_off = self.chance(0.05);
        let object = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Instance", "metadata": { "name": name, "finalizers": [FINALIZER] },
            "spec": {
                "plan": self.plan(), "region": "fr-par-1", "image": "debian-13",
                "backupEnabled": self.chance(0.6), "monitoringEnabled": self.chance(0.4),
                "powerState": if is_off { "Stopped" } else { "Running" },
            },
        });
        if !self.server().create("instances", account, object) {
            self.made -= 1;
        }
    }

    fn edit(&self, instance: &Instance, change: impl FnOnce(&mut Value)) {
        let namespace = instance.namespace().unwrap();
        self.server()
            .edit("instances", &namespace, &instance.name_any(), change);
    }

    fn request(&self, instance: &Instance, action: Action) {
        let mut spec = instance.spec.clone();
        action.request(&mut spec, &self.time().to_string());
        self.edit(instance, |object| {
            object["spec"] = serde_json::to_value(spec).unwrap();
        });
    }

    fn annotate(&self, instance: &Instance, name: &str, value: Option<&str>) {
        self.edit(instance, |object| match value {
            Some(value) => object["metadata"]["annotations"][name] = json!(value),
            None => {
                object["metadata"]["annotations"]
                    .as_object_mut()
                    .unwrap()
                    .remove(name);
            }
        });
    }

    /// Does something to an instance, as a user would.
    fn act(&mut self) {
        let time = self.time();
        let is_free = |object: &Value| {
            !self
                .chronicle
                .is_loaded(object["metadata"]["uid"].as_str().unwrap(), time)
        };
        let Some(instance) = self.any_instance(is_free) else {
            return;
        };
        let namespace = instance.namespace().unwrap();
        let name = instance.name_any();
        let nonce = self.time().to_string();
        match self.rng.random_range(0..100) {
            0..15 => {
                let plan = self.plan();
                let on_reboot = (!self.chance(0.7)).then_some(plan);
                self.edit(&instance, |object| {
                    object["spec"]["plan"] = json!(plan);
                    object["spec"]["planOnReboot"] = json!(on_reboot);
                });
            }
            15..22 => self.request(&instance, Action::Stop),
            22..32 => self.request(&instance, Action::Start),
            32..36 => self.request(&instance, Action::Reboot),
            36..38 => self.request(&instance, Action::PowerOff),
            38..40 => self.edit(&instance, |object| {
                object["spec"]["image"] = json!("debian-12");
                object["spec"].as_object_mut().unwrap().remove("restoreFrom");
                object["spec"]["rebuildRequestedAt"] = json!(nonce);
            }),
            40..52 => {
                let is_enabled = !instance.spec.backup_enabled;
                self.edit(&instance, |object| {
                    object["spec"]["backupEnabled"] = json!(is_enabled);
                });
            }
            52..55 => {
                let is_enabled = !instance.spec.monitoring_enabled;
                self.edit(&instance, |object| {
                    object["spec"]["monitoringEnabled"] = json!(is_enabled);
                });
            }
            55..62 => {
                let number = self.rng.random_range(0..1_000_000);
                let backup = json!({
                    "apiVersion": "stellage.dev/v1", "kind": "Backup",
                    "metadata": { "name": format!("manual-{number}") }, "spec": { "instance": name },
                });
                self.server().create("backups", &namespace, backup);
            }
            62..64 => {
                if let Some((namespace, name)) = self.server().any("backups", |_| true) {
                    self.server().delete("backups", &namespace, &name);
                }
            }
            64..76 => {
                let faults = [
                    "provisioning",
                    "stop-hangs",
                    "shutdown",
                    "crash",
                    "unreachable",
                    "backup",
                ];
                let fault = *faults.choose(&mut self.rng).unwrap();
                self.annotate(&instance, FAULT_ANNOTATION, Some(fault));
            }
            76..88 => self.load(),
            88..92 => self.credit(),
            _ => self.server().delete("instances", &namespace, &name),
        }
    }

    fn any_instance(&self, is_one: impl Fn(&Value) -> bool) -> Option<Instance> {
        let (namespace, name) = self.server().any("instances", is_one)?;
        self.server().get("instances", &namespace, &name)
    }

    /// Asks for a credit note, for a part or all that is left of an invoice, or for more than that.
    fn credit(&mut self) {
        let (Some((namespace, name)), number) = (
            self.server().any("invoices", |object| {
                object["status"]["phase"] == "Issued" && object["spec"]["credit"].is_null()
            }),
            self.asked_for,
        ) else {
            return;
        };
        let invoice: Invoice = self.server().get("invoices", &namespace, &name).unwrap();
        let whole = invoice.status.as_ref().unwrap().net_cents.max(1);
        let mut spec = invoice.spec.clone();
        spec.invoice_type = InvoiceType::CreditNote;
        spec.lines = Vec::new();
        let is_part = self.chance(0.8);
        let cents = self.rng.random_range(1..=whole);
        spec.credit = Some(Credit {
            invoice: name,
            number: invoice.status.unwrap().number.unwrap(),
            amount_cents: is_part.then_some(cents),
            reason: "outage".to_owned(),
        });
        let name = ids::credit_note_name(&number.to_string());
        let request = Invoice::new(&name, spec);
        self.asked_for += 1;
        self.server()
            .create("invoices", &namespace, serde_json::to_value(request).unwrap());
    }

    /// Writes back an instance that was saved and lost, while nobody looks.
    fn write_back(&mut self) {
        let time = self.time();
        let is_free = |object: &Value| {
            object["metadata"]["deletionTimestamp"].is_null()
                && !self.chronicle.is_loaded(uid_of(object), time)
        };
        if let Some((namespace, name)) = self.server().any("instances", is_free)
            && self.server().write_back("instances", &namespace, &name)
        {
            self.written_back += 1;
            self.look();
        }
    }

    /// Keeps a server busy for some hours.
    fn load(&mut self) {
        let time = self.time();
        let is_calm = |object: &Value| {
            let (metadata, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
            status["state"] == "running"
                && status["power"] == "Running"
                && status["operation"].is_null()
                && status["observedGeneration"] == metadata["generation"]
                && spec["monitoringEnabled"] == true
                && spec["powerState"] == "Running"
                && metadata["annotations"][FAULT_ANNOTATION].is_null()
                // What was written back begins to be watched for alerts anew.
                && metadata["uid"] == uid_of(object)
                && !self.chronicle.is_loaded(uid_of(object), time)
        };
        let Some(instance) = self.any_instance(is_calm).filter(|_| self.operator.is_some()) else {
            return;
        };
        let to = self.time() + HOUR * self.rng.random_range(1..40);
        let uid = origin::uid(&instance.metadata);
        self.chronicle.load(uid, self.time(), to);
        self.annotate(&instance, CPU, Some("97"));
    }

    /// Ends faults, and loads whose time is over.
    fn calm_down(&mut self) {
        let is_annotated = |object: &Value| {
            let annotations = object["metadata"]["annotations"].as_object();
            annotations.is_some_and(|annotations| !annotations.is_empty())
        };
        for instance in self.server().select::<Instance>("instances", is_annotated) {
            let uid = origin::uid(&instance.metadata);
            if instance.annotation(FAULT_ANNOTATION).is_some() && self.chance(0.3) {
                self.annotate(&instance, FAULT_ANNOTATION, None);
            }
            if instance.annotation(CPU).is_some() && self.chronicle.unload(uid, self.time()) {
                self.annotate(&instance, CPU, None);
            }
        }
    }

    async fn pass(&mut self) {
        let start = self.time();
        let days = |days: i64| start + HOUR * i32::try_from(24 * days).unwrap();
        let last_day = days(DAYS - 3);
        // It is down over the ends of four months. It also dies at other times, mostly in the middle of something.
        let mut deaths: Vec<(Timestamp, SignedDuration)> =
            ["2027-01-31", "2027-03-30", "2027-08-31", "2027-12-30"]
                .map(|day| {
                    (
                        format!("{day}T20:00:00Z").parse().unwrap(),
                        HOUR * self.rng.random_range(5..80),
                    )
                })
                .into();
        while deaths.len() < RESTARTS {
            let at = start
                + MINUTE
                    * self
                        .rng
                        .random_range(600..i32::try_from(24 * 60 * (DAYS - 5)).unwrap());
            let down = match self.rng.random_range(0..10) {
                0 => HOUR * self.rng.random_range(1..60),
                1..4 => MINUTE * self.rng.random_range(1..60),
                _ => SignedDuration::from_secs(self.rng.random_range(1..40)),
            };
            deaths.push((at, down));
        }
        deaths.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(*at));
        let mut price_changes: Vec<(Timestamp, [u64; 4], u32)> = vec![
            (days(285), [7_00, 14_99, 33_33, 66_00], 21),
            (days(200), [6_01, 15_00, 30_00, 61_00], 16),
            (days(160), [6_01, 15_00, 30_00, 61_00], 19),
            (days(75), [5_00, 15_49, 29_99, 60_00], 20),
        ];
        self.start();
        while self.time() < last_day {
            let pause = MINUTE * self.rng.random_range(10..540);
            let mut until = self.time() + pause;
            // Several changes in an hour are billed as one.
            if self.chance(0.15) {
                until = self.time() + MINUTE * self.rng.random_range(1..20);
            }
            if let Some((at, down)) = deaths.pop_if(|(at, _)| *at <= until) {
                self.run(at).await;
                if self.operator.is_none() {
                    self.run(self.returns_at + MINUTE).await;
                }
                if let Some((_, prices, tax)) = price_changes.pop_if(|(from, ..)| *from <= at) {
                    (self.prices, self.tax) = (prices, tax);
                }
                self.downtime = down;
                let armed_at = self.time();
                if self.chance(0.7) {
                    let writes = self.rng.random_range(0..8);
                    self.server().kill_after(writes);
                    self.act();
                    self.look();
                    let until = armed_at + MINUTE * self.rng.random_range(1..20);
                    self.run(until).await;
                }
                if self.operator.is_some() && self.died_at < armed_at {
                    self.die();
                }
                if self.operator.is_none() && self.chance(0.3) {
                    self.write_back();
                }
                continue;
            }
            self.run(until).await;
            let expected = i64::try_from(INSTANCES).unwrap() * self.time().duration_since(start).as_hours()
                / (24 * (DAYS - 30));
            if i64::try_from(self.made).unwrap() <= expected && self.made < INSTANCES {
                self.create();
            } else {
                self.act();
            }
            self.calm_down();
            self.look();
        }
        // Let everything that has begun come to an end.
        let all: Vec<Instance> = self.server().list("instances");
        for instance in all {
            if instance.annotation(FAULT_ANNOTATION).is_some() {
                self.annotate(&instance, FAULT_ANNOTATION, None);
            }
        }
        self.look();
        self.run(self.end).await;
    }

    fn check(&mut self) -> (Counts, (usize, usize)) {
        let now = self.time();
        let inbox = self.around.inbox.lock();
        let what = self.chronicle.check(&inbox, now);
        let invoices: Vec<Invoice> = self.around.server.list("invoices");
        let billed_until = Period::month_of(now).from;
        let numbers: Vec<InvoiceNumber> = self.around.server.list("invoicenumbers");
        let given = numbers.into_iter().map(|it| (it.spec.number, it.spec.invoice));
        let issued = invoices
            .iter()
            .filter(|invoice| invoice.is_issued())
            .map(|invoice| {
                let status = invoice.status.as_ref().unwrap();
                (status.number.clone().unwrap(), invoice.name().to_owned())
            });
        let (given, issued): (BTreeSet<_>, BTreeSet<_>) = (given.collect(), issued.collect());
        assert_eq!(given, issued, "each number has its invoice");
        let is_left = |invoice: &Invoice| !invoice.is_invoice() && invoice.phase() == InvoicePhase::Open;
        assert!(
            !invoices.iter().any(is_left),
            "a credit note is neither issued nor refused"
        );
        let invoices = self.chronicle.check_invoices(&invoices, &inbox, billed_until);
        assert_eq!((what.instances, self.restarts), (INSTANCES, RESTARTS + 1));
        let backups: Vec<Backup> = self.around.server.list("backups");
        for account in ACCOUNTS {
            let of_it = backups
                .iter()
                .filter(|backup| backup.namespace().as_deref() == Some(account));
            let manual = of_it
                .clone()
                .filter(|backup| counts(backup) && !backup.is_scheduled())
                .count();
            assert!(
                manual <= LIMITS.per_account,
                "{account} has {manual} manual backups"
            );
            let left_over = of_it.filter(|backup| is_left_over(backup)).count();
            assert!(
                left_over <= FAILED_KEPT,
                "{account} has {left_over} failed ones left over"
            );
        }
        (what, invoices)
    }
}

/// To simulate another year: `STELLAGE_TEST_YEAR=7 cargo test -p stellage-controllers -- in_a_simulated_year --show-output`.
#[tokio::test]
async fn in_a_simulated_year_every_invoice_is_right_every_backup_is_made_once_and_no_alert_is_sent_twice() {
    let setting = std::env::var("STELLAGE_TEST_YEAR").ok();
    let seed = setting.map_or(1, |text| text.parse().unwrap());
    let begun = std::time::Instant::now();
    let mut year = Year::new(seed);
    Box::pin(tokio::task::unconstrained(year.pass())).await;
    let (counts, (invoices, notes)) = year.check();
    println!(
        "{counts:?}, {invoices} invoices, {notes} credit notes of {} asked for, {} instances written back, in {:.1?}",
        year.asked_for,
        year.written_back,
        begun.elapsed()
    );
    assert!(
        counts.runs > 500 && counts.alerts > 20 && invoices > 40 && notes > 10 && year.written_back > 10,
        "not much of a year"
    );
}
