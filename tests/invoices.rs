//! Invoices, with the real program and the real API server.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use control_plane::{ControlPlane, Identity};
use domain::invoice::Period;
use futures::{StreamExt as _, stream};
use jiff::{RoundMode, SignedDuration, Timestamp, TimestampRound, Unit};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use rand::RngExt as _;
use reqwest::Method;
use resources::{
    Account, Backup, Instance, InstanceState, Invoice, InvoiceLine, InvoiceNumber, InvoicePage, Plan,
    PowerState, account::Billing, ids, invoice_page::MAX_ENTRIES,
};
use serde_json::{Value, json};
use standardwebhooks::Webhook as Verifier;

use crate::{
    facade::{
        contract::{expect, fields},
        create, wait_for,
    },
    support::{
        Answer, Change as _, Operator, SELLER, Tenant, einvoice::Checks, eventually, own_plane,
        receiver_arguments, receivers, receivers::Receiver, shared, stellage, stellage_words,
    },
    webhooks::{SECRET, body, setting, types},
};

impl Tenant {
    pub fn invoices(&self) -> Api<Invoice> {
        Api::namespaced(self.kube.clone(), "stellage-system")
    }

    /// All invoices, oldest first.
    pub async fn all_invoices(&self) -> Vec<Invoice> {
        let mut all = self.invoices().list(&ListParams::default()).await.unwrap().items;
        all.retain(|invoice| invoice.spec.account_namespace == self.namespace);
        all.sort_by_key(|invoice| invoice.spec.period.from);
        all
    }

    /// Waits until this many invoices have been issued, and returns them.
    pub async fn wait_for_invoices(&self, count: usize) -> Vec<Invoice> {
        let issued = async || {
            let mut all = self.all_invoices().await;
            all.retain(Invoice::is_issued);
            all
        };
        eventually("the invoices to be issued", issued, |all| all.len() >= count).await
    }

    /// The lines of an issued invoice.
    pub async fn lines_of(&self, invoice: &Invoice) -> Vec<InvoiceLine> {
        let pages: Api<InvoicePage> = Api::namespaced(self.kube.clone(), "stellage-system");
        let of_it = format!("stellage.dev/invoice={}", invoice.name_any());
        let pages = pages.list(&ListParams::default().labels(&of_it)).await.unwrap();
        let of_pages = pages.items.into_iter().flat_map(|page| page.spec.lines.unwrap());
        invoice.spec.lines.iter().cloned().chain(of_pages).collect()
    }

    /// Waits until the ledger has an entry for each of these instances.
    pub async fn wait_for_entries(&self, count: usize) {
        let entries = async || {
            let all = self.all_invoices().await;
            all.iter()
                .map(|invoice| invoice.spec.entries.len())
                .sum::<usize>()
        };
        eventually("the entries", entries, |entries| *entries == count).await;
    }

    /// Closes the invoices as of now.
    pub async fn close_now(&self) -> Timestamp {
        // Include everything that has begun, even in this second.
        let whole = TimestampRound::new().smallest(Unit::Second).mode(RoundMode::Ceil);
        let until = Timestamp::now().round(whole).unwrap();
        let accounts: Api<Account> = Api::all(self.kube.clone());
        let change = json!({ "spec": { "invoicesClosedUntil": until.to_string() } });
        accounts.merge(&self.namespace, &change).await;
        until
    }

    /// Deletes an instance and then its Account, and waits until that is gone.
    async fn leave(&self, instance: &str) {
        let params = DeleteParams::default();
        self.instances().delete(instance, &params).await.unwrap();
        let accounts: Api<Account> = Api::all(self.kube.clone());
        accounts.delete(&self.namespace, &params).await.unwrap();
        let account = async || accounts.get_opt(&self.namespace).await.unwrap();
        eventually("the account to go", account, Option::is_none).await;
    }
}

fn number(invoice: &Invoice) -> String {
    invoice.status.as_ref().unwrap().number.clone().unwrap()
}

#[tokio::test]
async fn an_invoice_that_is_closed_early_is_told_signed_and_the_next_one_goes_on() {
    let tenant = Tenant::new("inv-close").await;
    let receiver = Receiver::start(|_| receivers::Answer::ok()).await;
    tenant
        .webhook("orders", &receiver.url("/hook"), &["invoice.created"])
        .await;
    tenant.apply("web", |_| {}).await;
    tenant.apply("db", |db| db.spec.plan = Plan::Business).await;
    // An instance that never runs is not billed.
    tenant
        .apply("off", |off| off.spec.power_state = PowerState::Stopped)
        .await;
    for name in ["web", "db"] {
        tenant.wait_for_state(name, InstanceState::Running).await;
    }
    tenant.wait_for_state("off", InstanceState::Stopped).await;
    tenant.wait_for_entries(2).await;
    let open = tenant.all_invoices().await;
    assert_eq!(open.len(), 1);
    assert!(!open[0].is_issued());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let until = tenant.close_now().await;

    let issued = tenant.wait_for_invoices(1).await.remove(0);
    let status = issued.status.clone().unwrap();
    assert_eq!(issued.name_any(), open[0].name_any());
    assert_eq!(issued.spec.period.to, until);
    assert_eq!((status.lines_count, status.net_cents), (2, 1 + 2));
    assert_eq!(status.amount.as_deref(), Some("0.03 EUR"));
    let requests = receiver.wait_for(1).await;
    assert_eq!(types(&requests), ["invoice.created"]);
    let event = body(&requests[0]);
    let data = &event["data"];
    let expected = json!({
        "invoice": {
            "id": issued.id(), "number": number(&issued), "type": "invoice", "status": "issued", "lines_count": 2,
            "period": { "from": issued.spec.period.from.to_string(), "to": until.to_string() },
            "issued_at": data["invoice"]["issued_at"], "due_date": status.due_date,
        },
        "amount": { "value": "0.03", "currency": "EUR" },
    });
    assert_eq!(*data, expected);
    assert_eq!(
        event["id"],
        ids::event_id(issued.metadata.uid.as_deref().unwrap(), 1)
    );
    let verifier = Verifier::new(SECRET).unwrap();
    verifier.verify(&requests[0].body, &requests[0].headers).unwrap();
    let mut names: Vec<String> = tenant
        .lines_of(&issued)
        .await
        .into_iter()
        .map(|line| line.name)
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["db", "web"]);

    // Both continue in the next invoice.
    let all = tenant.all_invoices().await;
    assert_eq!(
        (all.len(), all[1].spec.period.from, all[1].is_issued()),
        (2, until, false)
    );
    let carried = &all[1].spec.entries;
    assert!(carried.iter().all(|entry| entry.billed_until == Some(until)));
    // Nothing has begun since, so there is nothing to bill.
    let again = tenant.close_now().await;
    let marked = async || {
        tenant.all_invoices().await[1]
            .status
            .clone()
            .unwrap()
            .nothing_until
    };
    eventually("the answer that there is nothing", marked, |marked| {
        *marked == Some(again)
    })
    .await;
    assert_eq!(tenant.all_invoices().await.len(), 2);
    // Its event was settled, and it is no longer watched.
    let labels = async || tenant.invoices().get(&issued.name_any()).await.unwrap();
    let is_settled = |invoice: &Invoice| invoice.labels().contains_key("stellage.dev/settled");
    let settled = eventually("it to be settled", labels, is_settled).await;
    assert!(settled.status.unwrap().outbox.is_empty());
}

async fn start(plane: &ControlPlane) -> Operator {
    start_with(plane, &[]).await
}

async fn start_with(plane: &ControlPlane, more: &[&str]) -> Operator {
    let mut arguments = vec!["run".to_owned(), "--provisioning-seconds=0".to_owned()];
    arguments.extend(receiver_arguments(plane));
    arguments.extend(more.iter().copied().map(ToOwned::to_owned));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Operator::start(plane, &arguments).await
}

#[tokio::test]
async fn backups_that_get_a_price_are_billed_although_their_account_has_nothing_else() {
    let plane = own_plane().await;
    let catalogue = plane.folder().join("catalogue.yaml");
    let set_price = |price: f64| {
        std::fs::write(
            &catalogue,
            format!("backups: {{pricePerGBMonthly: {price}}}\n{SELLER}\n"),
        )
        .unwrap();
    };
    set_price(0.0);
    let mut operator = start_with(&plane, &[&format!("--catalogue={}", catalogue.display())]).await;
    let tenant = Tenant::on(&plane, &operator, "kept-backups").await;
    let web = create(&tenant, "web").await;
    wait_for(&tenant, &web, "running").await;
    let instance = format!("/v1/instances/{web}");
    let backups = format!("{instance}/backups");
    let backup = tenant.act(201, &backups).await.json();
    let backup = backup["data"]["id"].as_str().unwrap();
    let shown = async || get(&tenant, &format!("/v1/backups/{backup}")).await.json();
    eventually("the backup", shown, |shown| {
        shown["data"]["status"] == "completed"
    })
    .await;
    tenant.delete(&instance).await;
    tenant.wait_for_entries(1).await;
    tenant.close_now().await;
    tenant.wait_for_invoices(1).await;
    assert!(
        tenant.all_invoices().await.iter().all(Invoice::is_issued),
        "nothing goes on"
    );

    set_price(5.0);
    let billed = async || {
        let open = tenant
            .all_invoices()
            .await
            .into_iter()
            .find(|invoice| !invoice.is_issued());
        open.map(|open| open.spec.entries)
    };
    let entries = eventually("an open invoice", billed, Option::is_some)
        .await
        .unwrap();
    let backups = entries.iter().flat_map(|entry| &entry.backups);
    let uids: Vec<&str> = backups.map(|backup| backup.uid.as_str()).collect();
    assert_eq!((uids.len(), entries[0].instance_id.as_str()), (1, web.as_str()));
    operator.stop().await;
}

/// Removes the finalizers of an instance by hand, and deletes it.
async fn delete_by_force(tenant: &Tenant, name: &str) {
    let bare = json!({ "metadata": { "finalizers": null } });
    let api = tenant.instances();
    api.delete(name, &DeleteParams::default()).await.unwrap();
    let _ = api
        .patch(name, &PatchParams::default(), &Patch::Merge(&bare))
        .await;
}

#[tokio::test]
async fn an_operator_that_was_down_for_months_issues_each_month_without_gaps_and_bills_what_was_deleted_by_force()
 {
    let plane = own_plane().await;
    let mut operator = start(&plane).await;
    let tenant = Tenant::on(&plane, &operator, "months").await;
    let names = ["web", "forced", "seen"];
    for name in names {
        tenant.apply(name, |_| {}).await;
    }
    for name in names {
        tenant.wait_for_state(name, InstanceState::Running).await;
    }
    tenant.wait_for_entries(3).await;
    // The operator sees this one go, but not that one.
    delete_by_force(&tenant, "seen").await;
    let ended = async || {
        let open = tenant.all_invoices().await.remove(0);
        let entries = open.spec.entries.iter();
        entries.filter(|entry| entry.ended.is_some()).count()
    };
    eventually("the end to be recorded", ended, |ended| *ended == 1).await;
    operator.die(&plane).await;
    delete_by_force(&tenant, "forced").await;

    // Pretend that all of it happened two months earlier.
    let kube = plane.client(Identity::Operator).await.unwrap();
    let this_month = Period::month_of(Timestamp::now());
    let earlier = Period::before(Period::before(this_month));
    let since = earlier.to.checked_sub(SignedDuration::from_mins(90)).unwrap();
    let instances: Api<Instance> = Api::namespaced(kube.clone(), "months");
    let change = json!({ "status": { "metering": {
        "since": since.to_string(), "changes": [{ "hour": 0, "plan": "starter", "then": "starter" }],
    } } });
    instances.merge_status("web", &change).await;
    let invoices: Api<Invoice> = Api::namespaced(kube.clone(), "stellage-system");
    let open = tenant.all_invoices().await.remove(0);
    let uid = open.spec.account.clone();
    let name = ids::invoice_name(&uid, &earlier.from.to_string());
    let mut moved = open.clone();
    moved.metadata = kube::api::ObjectMeta {
        name: Some(name.clone()),
        labels: open.metadata.labels.clone(),
        ..Default::default()
    };
    moved.spec.period.from = earlier.from;
    moved.spec.period.to = earlier.to;
    for entry in &mut moved.spec.entries {
        entry.since = since;
        // The instance whose deletion was seen was recorded immediately.
        entry.ended = entry.ended.map(|_| since);
    }
    invoices
        .create(&kube::api::PostParams::default(), &moved)
        .await
        .unwrap();
    invoices
        .delete(&open.name_any(), &DeleteParams::default())
        .await
        .unwrap();

    operator = start(&plane).await;
    let issued = tenant.wait_for_invoices(2).await;
    let periods: Vec<_> = issued
        .iter()
        .map(|invoice| (invoice.spec.period.from, invoice.spec.period.to))
        .collect();
    let last_month = Period::before(this_month);
    assert_eq!(
        periods,
        [(earlier.from, earlier.to), (last_month.from, last_month.to)]
    );
    // The year in which the period ends.
    let years = issued
        .iter()
        .map(|invoice| invoice.spec.period.to.to_string()[..4].to_owned());
    let mut of_year = BTreeMap::<String, u32>::new();
    let expected: Vec<String> = years
        .map(|year| {
            let count = of_year.entry(year.clone()).or_default();
            *count += 1;
            format!("{year}-{count:06}")
        })
        .collect();
    let numbers: Vec<String> = issued.iter().map(number).collect();
    assert_eq!(numbers, expected);
    let lines = async |invoice: &Invoice| {
        let lines = tenant.lines_of(invoice).await.into_iter();
        let mut lines: Vec<_> = lines
            .map(|line| (line.name, line.hours[0].thousandths / 1000, line.amount_cents))
            .collect();
        lines.sort_unstable();
        lines
    };
    let line = |name: &str, hours, cents| (name.to_owned(), hours, cents);
    assert_eq!(
        lines(&issued[0]).await,
        [line("forced", 2, 1), line("seen", 1, 1), line("web", 2, 1)]
    );
    let hours = u64::try_from(last_month.to.duration_since(last_month.from).as_hours()).unwrap();
    assert_eq!(
        lines(&issued[1]).await,
        [line("forced", hours, 500), line("web", hours, 500)]
    );
    // An instance deleted by force, unseen, is billed until the operator noticed.
    let open = tenant.all_invoices().await.pop().unwrap();
    assert_eq!(
        (open.spec.period.from, open.is_issued()),
        (this_month.from, false)
    );
    let mut ended: Vec<_> = open
        .spec
        .entries
        .iter()
        .map(|entry| (entry.name.clone(), entry.ended.is_some()))
        .collect();
    ended.sort_unstable();
    assert_eq!(ended, [("forced".to_owned(), true), ("web".to_owned(), false)]);

    // The cost of an invoice for the API server, once the events of earlier invoices are settled.
    let unsettled = async || {
        let all = tenant.all_invoices().await;
        let left = |invoice: &&Invoice| {
            invoice.is_issued() && !invoice.labels().contains_key("stellage.dev/settled")
        };
        all.iter().filter(left).count()
    };
    eventually("the earlier ones to be settled", unsettled, |left| *left == 0).await;
    let user = Identity::Operator.user();
    let writes = |resource: &str| {
        let requests = plane.requests().unwrap().into_iter();
        let of_it = requests
            .filter(|request| request.user == user && request.is_write() && request.resource == resource);
        of_it.count()
    };
    let kinds = ["invoices", "invoicepages", "invoicenumbers"];
    let before = kinds.map(writes);
    tenant.close_now().await;
    let issued = tenant.wait_for_invoices(3).await.pop().unwrap();
    let again = async || tenant.invoices().get(&issued.name_any()).await.unwrap();
    let is_settled = |invoice: &Invoice| invoice.labels().contains_key("stellage.dev/settled");
    eventually("it to be settled", again, is_settled).await;
    let after = kinds.map(writes);
    let spent: Vec<usize> = after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    assert_eq!(spent, [3, 0, 1], "{kinds:?}");
    operator.stop().await;
}

#[tokio::test]
async fn the_last_invoice_of_a_deleted_account_is_issued_and_can_be_read_afterwards() {
    let cluster = shared().await;
    let tenant = Tenant::new("inv-farewell").await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    tenant.wait_for_entries(1).await;
    let open = tenant.all_invoices().await.remove(0);
    tenant.leave("web").await;
    let kept = tenant.all_invoices().await;
    let [invoice] = &kept[..] else {
        panic!("no hour is billed twice: {kept:?}")
    };
    assert_eq!(invoice.name_any(), open.name_any());
    assert!(invoice.is_issued() && invoice.status.as_ref().unwrap().lines_count == 1);
    let is_settled = |invoice: &Invoice| invoice.labels().contains_key("stellage.dev/settled");
    assert!(is_settled(invoice), "it is no longer watched");
    let number = number(invoice);
    let run =
        |arguments: &[&str]| stellage_words(cluster.plane, &[&["invoice"][..], arguments].concat()).unwrap();
    assert!(run(&["list", "--account", "inv-farewell"]).contains(&number));
    let shown = |output: &str| run(&["show", &number, "--output", output]);
    let json: Value = serde_json::from_str(&shown("json")).unwrap();
    assert_eq!(
        (&json["number"], &json["lines"][0]["name"]),
        (&json!(number), &json!("web"))
    );
    assert!(shown("csv").contains(",web,starter,1,0.00745,0.00745,EUR,"));
    assert!(shown("html").contains("Stellage Ltd"));
}

#[tokio::test]
async fn an_account_whose_deletion_was_held_back_is_invoiced_for_what_came_after_it() {
    let tenant = Tenant::new("inv-held-back").await;
    // Nothing is metered yet when the account is deleted.
    tenant
        .apply("web", |web| web.spec.deletion_protection = true)
        .await;
    let accounts: Api<Account> = Api::all(tenant.kube.clone());
    accounts
        .delete("inv-held-back", &DeleteParams::default())
        .await
        .unwrap();
    tenant.wait_for_state("web", InstanceState::Running).await;
    tenant.wait_for_entries(1).await;
    tenant
        .merge("web", &json!({ "spec": { "deletionProtection": false } }))
        .await;
    let account = async || accounts.get_opt("inv-held-back").await.unwrap();
    eventually("the account to go", account, Option::is_none).await;
    let kept = tenant.all_invoices().await;
    let lines: Vec<usize> = kept.iter().map(|invoice| invoice.spec.lines.len()).collect();
    assert_eq!(lines, [1]);
}

#[tokio::test]
async fn an_account_that_was_removed_by_force_and_written_back_goes_on_with_its_invoice() {
    let plane = own_plane().await;
    let mut operator = start(&plane).await;
    let billed = Billed::new(&plane, &operator, "again").await;
    operator.die(&plane).await;
    let kube = plane.client(Identity::Operator).await.unwrap();
    let since = Timestamp::now()
        .checked_sub(SignedDuration::from_hours(3))
        .unwrap();
    billed.run_since(&kube, since).await;
    operator = start(&plane).await;
    billed.tenant.wait_for_entries(1).await;
    let before = billed.tenant.all_invoices().await;

    let accounts: Api<Account> = Api::all(billed.tenant.kube.clone());
    let mut account = accounts.get("again").await.unwrap();
    accounts.delete("again", &DeleteParams::default()).await.unwrap();
    let bare = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let _ = accounts.patch("again", &PatchParams::default(), &bare).await;
    account.metadata = kube::api::ObjectMeta {
        name: Some("again".to_owned()),
        annotations: account.metadata.annotations,
        ..Default::default()
    };
    let id = account.status.take().unwrap().id;
    let created = async || accounts.create(&PostParams::default(), &account).await.ok();
    eventually("the account to be made again", created, Option::is_some).await;
    let is_ready = async || accounts.get("again").await.unwrap().status.unwrap_or_default();
    let status = eventually("it to be ready", is_ready, |status| status.namespace.is_some()).await;
    assert_eq!(status.id, id);
    billed.tenant.close_now().await;
    let issued = billed.tenant.wait_for_invoices(1).await.remove(0);
    assert_eq!(issued.name_any(), before[0].name_any());
    assert_eq!(billed.tenant.lines_of(&issued).await.len(), 1);
    operator.stop().await;
}

/// A GET with the account's key.
async fn get(tenant: &Tenant, path: &str) -> Answer {
    let answer = tenant.call(Method::GET, path, None).await;
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    answer
}

#[tokio::test]
async fn the_current_invoice_begins_where_the_last_one_ended_even_if_nothing_is_left_to_bill() {
    let tenant = Tenant::new("inv-after").await;
    tenant.apply("a", |_| {}).await;
    tenant.wait_for_state("a", InstanceState::Running).await;
    tenant
        .instances()
        .delete("a", &DeleteParams::default())
        .await
        .unwrap();
    let left = async || tenant.all_instances().await.len();
    eventually("the instance to go", left, |left| *left == 0).await;
    tenant.close_now().await;
    let issued = tenant.wait_for_invoices(1).await.remove(0);
    let current = async || get(&tenant, "/v1/invoices/current").await.json();
    let current = eventually("no open invoice", current, |shown| shown["data"]["id"].is_null()).await;
    assert_eq!(
        current["data"]["period"]["from"],
        issued.spec.period.to.to_string()
    );
}

#[tokio::test]
async fn an_invoice_is_shown_as_json_csv_and_a_page_to_print_and_listed_once_it_is_issued() {
    let tenant = Tenant::with(
        shared().await.plane,
        &shared().await.operator,
        "inv-rest",
        |spec| {
            spec.billing = Some(Billing {
                name: Some("Ada <Lovelace> & Co".to_owned()),
                address: vec!["1 Main Street".to_owned()],
                ..Billing::default()
            });
        },
    )
    .await;
    let nothing = tenant.get("/v1/invoices/current").await.json();
    let data = &nothing["data"];
    assert_eq!(
        (&data["id"], &data["number"], &data["status"]),
        (&json!(null), &json!(null), &json!("open"))
    );
    assert_eq!(
        (&data["amount"]["value"], &data["lines"]),
        (&json!("0.00"), &json!([]))
    );
    assert_eq!(nothing["pagination"]["total"], 0);
    for name in ["a", "b", "c"] {
        tenant.apply(name, |_| {}).await;
    }
    let three = async || get(&tenant, "/v1/invoices/current").await.json();
    eventually("three lines", three, |shown| shown["data"]["lines_count"] == 3).await;
    let page = tenant.get("/v1/invoices/current?limit=2&page=2").await.json();
    assert_eq!(page["data"]["lines"].as_array().unwrap().len(), 1);
    assert_eq!(
        page["pagination"],
        json!({ "page": 2, "limit": 2, "total": 3, "total_pages": 2 })
    );
    assert_eq!(
        page["data"]["amount"],
        json!({ "value": "0.03", "currency": "EUR" })
    );
    let id = page["data"]["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/invoices/{id}");
    assert_eq!(get(&tenant, &path).await.json()["data"]["status"], "open");
    let none = tenant.get("/v1/invoices").await.json();
    assert_eq!(none["data"], json!([]), "only issued ones are listed");

    tokio::time::sleep(Duration::from_secs(1)).await;
    tenant.close_now().await;
    let issued = tenant.wait_for_invoices(1).await.remove(0);
    assert_eq!(issued.id(), id);
    let number = number(&issued);
    let listed = tenant.get("/v1/invoices").await.json();
    let year = &issued.spec.period.from.to_string()[..4];
    let of_year = get(&tenant, &format!("/v1/invoices?year={year}")).await.json();
    assert_eq!(of_year["data"], listed["data"]);
    let of_another = get(&tenant, "/v1/invoices?year=1999").await.json();
    assert_eq!(of_another["data"], json!([]));
    for wrong in ["26", "2026-11", ""] {
        let path = format!("/v1/invoices?year={wrong}");
        let refused = expect(&tenant, 422, Method::GET, &path, None, &[]).await.json();
        assert_eq!(refused["error"]["details"][0]["field"], "year");
    }
    let mut shown = tenant.get(&path).await.json();
    let lines = shown["data"].as_object_mut().unwrap().remove("lines").unwrap();
    assert_eq!(listed["data"], json!([shown["data"]]));
    assert_eq!(
        (&shown["data"]["number"], &shown["data"]["status"]),
        (&json!(number), &json!("issued"))
    );
    let past = tenant.get(&format!("{path}?page=3")).await.json();
    assert_eq!(
        (&past["data"]["lines"], &past["pagination"]["total"]),
        (&json!([]), &json!(3))
    );

    let csv = tenant.get(&format!("{path}?format=csv")).await;
    assert!(csv.header("content-type").starts_with("text/csv"));
    assert!(
        csv.header("content-disposition")
            .contains(&format!("invoice-{number}.csv"))
    );
    let rows: Vec<&str> = csv.text.split_terminator("\r\n").collect();
    assert_eq!(
        rows[0],
        "number,period_from,period_to,instance_id,name,plan,hours,unit_price,amount,currency,tax_rate"
    );
    let period = &issued.spec.period;
    let expected: Vec<String> = lines
        .as_array()
        .unwrap()
        .iter()
        .map(|line| {
            let (id, name) = (
                line["instance_id"].as_str().unwrap(),
                line["name"].as_str().unwrap(),
            );
            format!(
                "{number},{},{},{id},{name},starter,1,0.00745,0.00745,EUR,0.00",
                period.from, period.to
            )
        })
        .collect();
    assert_eq!(rows[1..], expected);

    let html = tenant.get(&format!("{path}?format=html")).await;
    assert!(html.header("content-type").starts_with("text/html"));
    let policy = html.header("content-security-policy");
    assert!(
        policy.contains("default-src 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
    assert!(html.text.contains("Ada &lt;Lovelace&gt; &amp; Co") && !html.text.contains("<Lovelace>"));
    assert!(html.text.contains(&format!("Invoice {number}")) && html.text.contains("0.03 EUR"));
    assert_eq!(html.text.matches("<tr><td>i-").count(), 3);

    let refused = expect(
        &tenant,
        422,
        Method::GET,
        &format!("{path}?format=pdf"),
        None,
        &[],
    )
    .await;
    assert_eq!(fields(&refused), ["format"]);
}

#[tokio::test]
async fn an_invoice_of_more_lines_than_fit_into_it_is_issued_once_and_read_in_pages_however_often_the_operator_dies()
 {
    const INSTANCES: usize = 2 * MAX_ENTRIES + 7;
    let plane = own_plane().await;
    let mut operator = start(&plane).await;
    let mut tenant = Tenant::with(&plane, &operator, "crowd", |spec| spec.instance_quota = Some(500)).await;
    let names: Vec<String> = (0..INSTANCES).map(|number| format!("web-{number}")).collect();
    let apply = |name: &String| {
        let (tenant, name) = (&tenant, name.clone());
        async move { tenant.apply(&name, |_| {}).await }
    };
    stream::iter(&names)
        .map(apply)
        .buffer_unordered(16)
        .collect::<Vec<_>>()
        .await;
    for name in &names {
        tenant.wait_for_state(name, InstanceState::Running).await;
    }
    let lines = async |tenant: &Tenant| get(tenant, "/v1/invoices/current?limit=1").await.json();
    let all = |shown: &Value| shown["data"]["lines_count"] == INSTANCES;
    let open = eventually("all lines", async || lines(&tenant).await, all).await["data"].clone();

    // Between the writes of its pages, of the next invoice, and of the issue.
    tenant.close_now().await;
    for milliseconds in [20, 60, 150] {
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        operator.die(&plane).await;
        operator = start(&plane).await;
    }
    tenant.url.clone_from(&operator.url);
    let issued = tenant.wait_for_invoices(1).await.remove(0);
    let ids: BTreeSet<String> = tenant
        .lines_of(&issued)
        .await
        .into_iter()
        .map(|line| line.instance_id)
        .collect();
    assert_eq!(
        (ids.len(), &issued.id()),
        (INSTANCES, &open["id"].as_str().unwrap().to_owned())
    );
    let path = format!("/v1/invoices/{}", issued.id());
    let mut read = BTreeSet::new();
    for page in 1..=INSTANCES.div_ceil(100) {
        let shown = tenant.get(&format!("{path}?limit=100&page={page}")).await.json();
        assert_eq!(shown["pagination"]["total"], INSTANCES);
        assert_eq!(shown["data"]["amount"], open["amount"]);
        let lines = shown["data"]["lines"].as_array().unwrap();
        read.extend(
            lines
                .iter()
                .map(|line| line["instance_id"].as_str().unwrap().to_owned()),
        );
    }
    assert_eq!(read, ids);
    let csv = tenant.get(&format!("{path}?format=csv")).await;
    assert_eq!(csv.text.lines().count(), 1 + INSTANCES);
    let html = tenant.get(&format!("{path}?format=html")).await;
    assert_eq!(html.text.matches("<tr><td>i-").count(), INSTANCES);
    let total = open["amount"]["value"].as_str().unwrap();
    assert!(html.text.contains(&format!(">{total} EUR</td>")), "{total}");

    // The numbering continues although the numbers are lost.
    operator.die(&plane).await;
    lose_numbers(&plane).await;
    operator = start(&plane).await;
    tenant.url.clone_from(&operator.url);
    // The other accounts' hours are on the first invoice.
    tenant.apply("later", |_| {}).await;
    let one = |shown: &Value| shown["data"]["lines_count"] == 1;
    eventually("its line", async || lines(&tenant).await, one).await;
    tenant.close_now().await;
    let issued = tenant.wait_for_invoices(2).await;
    let numbers: Vec<String> = issued.iter().map(number).collect();
    let year = Timestamp::now().strftime("%Y").to_string();
    assert_eq!(numbers, [format!("{year}-000001"), format!("{year}-000002")]);
    operator.stop().await;
}

/// Deletes all numbers, with their kind, as nobody may delete a number.
async fn lose_numbers(plane: &ControlPlane) {
    let kube = plane.client(Identity::Admin).await.unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(kube.clone());
    let name = "invoicenumbers.stellage.dev";
    let mut crd = crds.get(name).await.unwrap();
    crds.delete(name, &DeleteParams::default()).await.unwrap();
    let left = async || crds.get_opt(name).await.unwrap();
    eventually("the kind to go", left, Option::is_none).await;
    crd.metadata = kube::api::ObjectMeta {
        name: Some(name.to_owned()),
        ..Default::default()
    };
    crd.status = None;
    crds.create(&PostParams::default(), &crd).await.unwrap();
    let numbers: Api<InvoiceNumber> = Api::all(kube);
    let listed = async || numbers.list(&ListParams::default()).await.is_ok();
    eventually("the kind to be served", listed, |listed| *listed).await;
}

#[tokio::test]
async fn an_invoice_is_closed_once_by_command_and_mistakes_are_told() {
    let plane = shared().await.plane;
    let tenant = Tenant::new("inv-cli").await;
    let run = |arguments: &[&str]| stellage_words(plane, &[&["invoice"][..], arguments].concat());
    let close = ["close", "--account", "inv-cli"];
    let nothing = run(&close).unwrap();
    assert!(nothing.contains("has nothing to bill until"), "{nothing}");
    let error = run(&["close", "--account", "inv-cli", "--until", "2999-01-01T00:00:00Z"]).unwrap_err();
    assert!(
        error.contains("--until: 2999-01-01T00:00:00Z is in the future"),
        "{error}"
    );
    let error = run(&["close", "--account", "inv-nobody"]).unwrap_err();
    assert!(error.contains("there is no account inv-nobody"), "{error}");

    tenant.apply("web", |_| {}).await;
    tenant.wait_for_entries(1).await;
    let early = ["close", "--account", "inv-cli", "--until", "2020-01-01T00:00:00Z"];
    let error = run(&early).unwrap_err();
    assert!(
        error.contains("is before the period of the open invoice, which begins at"),
        "{error}"
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    let printed = run(&["close", "--account", "inv-cli", "--output", "json"]).unwrap();
    let closed: Value = serde_json::from_str(&printed).unwrap();
    let issued = tenant.wait_for_invoices(1).await.remove(0);
    assert_eq!(closed["number"], number(&issued));
    assert_eq!(
        (&closed["amount"]["value"], &closed["lines_count"]),
        (&json!("0.01"), &json!(1))
    );
    let to = closed["period"]["to"].as_str().unwrap();
    let again = run(&["close", "--account", "inv-cli", "--until", to]).unwrap();
    assert!(
        again.starts_with(&format!("Already closed by invoice {}", number(&issued))),
        "{again}"
    );
    let nothing = run(&close).unwrap();
    assert!(nothing.contains("has nothing to bill until"), "{nothing}");
    assert_eq!(tenant.all_invoices().await.len(), 2);

    let list = run(&["list", "--account", "inv-cli"]).unwrap();
    assert!(list.contains(&number(&issued)) && list.contains("open"), "{list}");
    for name in [number(&issued), issued.name_any(), issued.id()] {
        let shown = run(&["show", &name, "--account", "inv-cli"]).unwrap();
        assert!(shown.contains("0.01 EUR") && shown.contains("web"), "{shown}");
    }
    let error = run(&["show", "2000-000001", "--account", "inv-cli"]).unwrap_err();
    assert!(
        error.contains("cannot find invoice 2000-000001: there is none of account inv-cli"),
        "{error}"
    );
}

/// A GET of a document with the account's key.
async fn document(tenant: &Tenant, path: &str) -> String {
    let answer = tenant.call(Method::GET, path, None).await;
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    answer.text
}

#[tokio::test]
async fn a_credit_note_takes_back_a_part_then_the_rest_and_both_are_valid_e_invoices() {
    let cluster = shared().await;
    let billing = Billing {
        name: Some("Ada & Söhne <GmbH>".to_owned()),
        address: vec!["2 Side Street".to_owned(), "75001 Paris".to_owned()],
        country: Some("FR".to_owned()),
        vat_id: Some("FR12345678901".to_owned()),
        reference: Some("PO 4711".to_owned()),
        tax_rate: Some("19".parse().unwrap()),
        tax_note: None,
    };
    let tenant = Tenant::with(cluster.plane, &cluster.operator, "inv-credit", |spec| {
        spec.billing = Some(billing.clone());
    })
    .await;
    let receiver = Receiver::start(|_| receivers::Answer::ok()).await;
    tenant
        .webhook("books", &receiver.url("/hook"), &["invoice.created"])
        .await;
    for name in ["web", "db"] {
        tenant.apply(name, |it| it.spec.plan = Plan::Enterprise).await;
    }
    for name in ["web", "db"] {
        tenant.wait_for_state(name, InstanceState::Running).await;
    }
    tenant.wait_for_entries(2).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let run = |arguments: &[&str]| stellage_words(cluster.plane, &[&["invoice"][..], arguments].concat());
    run(&["close", "--account", "inv-credit"]).unwrap();
    let issued = tenant.wait_for_invoices(1).await.remove(0);
    let number = number(&issued);
    let path = format!("/v1/invoices/{}", issued.id());
    let shown = get(&tenant, &path).await.json()["data"].clone();
    // Two hours of 0.08929, each rounded to 0.09; 19 % of 0.18 is 0.0342.
    let amounts = ["net", "tax", "amount"].map(|sum| shown[sum]["value"].clone());
    assert_eq!(amounts, ["0.18", "0.03", "0.21"]);
    assert_eq!(
        (&shown["type"], &shown["tax_rate"], &shown["corrects"]),
        (&json!("invoice"), &json!("19.00"), &json!(null))
    );
    assert_eq!(
        (&shown["buyer"]["vat_id"], &shown["seller"]["name"]),
        (&json!("FR12345678901"), &json!("Stellage Ltd"))
    );

    let credit = |amount: &str| {
        run(&[
            "credit",
            &number,
            "--amount",
            amount,
            "--reason",
            "outage on the 3rd",
        ])
    };
    let error = credit("0.22").unwrap_err();
    assert!(
        error.contains(&format!("the 0.21 EUR that are left of invoice {number}")),
        "{error}"
    );
    for (wrong, why) in [
        ("0", "an amount above 0"),
        ("1.005", "two decimals"),
        ("-1", "unexpected argument"),
    ] {
        let error = credit(wrong).unwrap_err();
        assert!(error.contains(why), "{wrong}: {error}");
    }
    let said = credit("0.12").unwrap();
    assert!(said.starts_with("Issued credit note "), "{said}");
    let rest = run(&[
        "credit", &number, "--all", "--reason", "the rest", "--output", "json",
    ])
    .unwrap();
    let rest: Value = serde_json::from_str(&rest).unwrap();
    assert_eq!(
        (
            &rest["amount"]["value"],
            &rest["type"],
            &rest["corrects"]["number"]
        ),
        (&json!("0.09"), &json!("credit_note"), &json!(number))
    );
    let error = run(&["credit", &number, "--all", "--reason", "again"]).unwrap_err();
    assert!(error.contains("nothing is left of invoice"), "{error}");
    let error = run(&[
        "credit",
        rest["number"].as_str().unwrap(),
        "--all",
        "--reason",
        "no",
    ])
    .unwrap_err();
    assert!(error.contains("is a credit note"), "{error}");

    // They stand beside what they correct, with the same numbers in REST as in the cluster.
    let listed = get(&tenant, "/v1/invoices").await.json()["data"].clone();
    let types: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["type"].as_str().unwrap())
        .collect();
    assert_eq!(types, ["invoice", "credit_note", "credit_note"]);
    assert_eq!(
        listed[1]["corrects"],
        json!({ "id": issued.id(), "number": number })
    );
    let numbers: Api<InvoiceNumber> = Api::all(tenant.kube.clone());
    for item in listed.as_array().unwrap() {
        let object = numbers.get(item["number"].as_str().unwrap()).await.unwrap();
        assert_eq!(ids::invoice_id(&object.spec.invoice), item["id"]);
    }
    let requests = receiver.wait_for(3).await;
    let mut told: Vec<(String, String)> = requests
        .iter()
        .map(|request| {
            let data = body(request)["data"].clone();
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            (text(&data["invoice"]["type"]), text(&data["amount"]["value"]))
        })
        .collect();
    told.sort_unstable();
    let event = |kind: &str, amount: &str| (kind.to_owned(), amount.to_owned());
    assert_eq!(
        told,
        [
            event("credit_note", "0.09"),
            event("credit_note", "0.12"),
            event("invoice", "0.21")
        ]
    );
    assert_eq!(
        get(&tenant, &path).await.json()["data"],
        shown,
        "the invoice itself stays"
    );

    // Both may have been issued in the same second, and their order be that of their ids.
    let is_first = |item: &&Value| item["type"] == "credit_note" && item["number"] != rest["number"];
    let first = listed.as_array().unwrap().iter().find(is_first).unwrap();
    let note = format!("/v1/invoices/{}", first["id"].as_str().unwrap());
    let csv = document(&tenant, &format!("{note}?format=csv")).await;
    assert!(
        csv.contains(",outage on the 3rd,credit_note,,,-0.10,EUR,19.00"),
        "{csv}"
    );
    let html = document(&tenant, &format!("{note}?format=html")).await;
    assert!(
        html.contains(&number) && html.contains("Credit note") && html.contains("outage on the 3rd"),
        "{html}"
    );

    let Some(checks) = Checks::of("e-invoices").await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for (name, path) in [("invoice.xml", &path), ("note.xml", &note)] {
        let file = folder.path().join(name);
        std::fs::write(&file, document(&tenant, &format!("{path}?format=ubl")).await).unwrap();
        files.push(file);
    }
    assert_eq!(checks.problems(&files).await, Vec::<String>::new());
    let broken = folder.path().join("broken.xml");
    let text = std::fs::read_to_string(&files[0]).unwrap();
    std::fs::write(
        &broken,
        text.replacen(
            ">0.18</cbc:LineExtensionAmount>",
            ">0.19</cbc:LineExtensionAmount>",
            1,
        ),
    )
    .unwrap();
    let problems = checks.problems(&[broken]).await;
    assert!(
        problems.iter().any(|problem| problem.contains("BR-CO-10")),
        "{problems:?}"
    );
}

#[tokio::test]
async fn an_e_invoice_needs_what_the_standard_asks_for_and_says_what_is_missing() {
    let tenant = Tenant::new("inv-ubl").await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    tenant.wait_for_entries(1).await;
    let open = tenant.all_invoices().await.remove(0);
    let ubl = |id: &str| format!("/v1/invoices/{id}?format=ubl");
    let refused = expect(&tenant, 409, Method::GET, &ubl(&open.id()), None, &[]).await;
    assert_eq!(fields(&refused), ["status"]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    tenant.close_now().await;
    let issued = tenant.wait_for_invoices(1).await.remove(0);
    let refused = expect(&tenant, 409, Method::GET, &ubl(&issued.id()), None, &[]).await;
    assert_eq!(fields(&refused), ["buyer.country"]);
}

#[tokio::test]
async fn without_a_seller_nothing_is_issued_and_the_command_and_the_invoice_say_so() {
    let plane = own_plane().await;
    let catalogue = plane.folder().join("catalogue.yaml");
    std::fs::write(&catalogue, "tax: 19\n").unwrap();
    let mut operator = start_with(&plane, &[&format!("--catalogue={}", catalogue.display())]).await;
    let tenant = Tenant::on(&plane, &operator, "no-seller").await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    tenant.wait_for_entries(1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let error = stellage(&plane, "invoice close --account no-seller").unwrap_err();
    assert!(
        error.contains("cannot be issued: the catalogue names no seller"),
        "{error}"
    );
    let list = stellage(&plane, "invoice list --account no-seller").unwrap();
    assert!(list.contains("held"), "{list}");
    // An account that goes does not wait for it.
    tenant.leave("web").await;
    assert!(!tenant.all_invoices().await.iter().any(Invoice::is_issued));
    // It is issued once there is one.
    operator.die(&plane).await;
    std::fs::write(&catalogue, format!("tax: 19\n{SELLER}\n")).unwrap();
    operator = start_with(&plane, &[&format!("--catalogue={}", catalogue.display())]).await;
    let issued = tenant.wait_for_invoices(1).await.remove(0);
    assert_eq!(issued.status.as_ref().unwrap().tax_rate.as_deref(), Some("19.00"));
    operator.stop().await;
}

/// Number of accounts in the test with kills.
const ACCOUNTS: usize = 3;

/// An account with an instance that has been running since before the month began.
struct Billed {
    tenant: Tenant,
    receiver: Receiver,
}

impl Billed {
    async fn new(plane: &ControlPlane, operator: &Operator, name: &str) -> Self {
        let tenant = Tenant::on(plane, operator, name).await;
        let receiver = Receiver::start(|_| receivers::Answer::ok()).await;
        let wanted = ["backup.completed", "backup.failed", "invoice.created"];
        tenant.webhook("orders", &receiver.url("/hook"), &wanted).await;
        Self { tenant, receiver }
    }

    /// Makes an instance look as if it had been running since then, with another plan from the sixth hour on.
    async fn run_since(&self, kube: &Client, since: Timestamp) {
        self.tenant
            .apply("web", |web| web.spec.plan = Plan::Business)
            .await;
        let instances: Api<Instance> = Api::namespaced(kube.clone(), &self.tenant.namespace);
        let change = json!({ "status": { "metering": { "since": since.to_string(), "changes": [
            { "hour": 0, "plan": "starter", "then": "starter" }, { "hour": 5, "plan": "business", "then": "business" },
        ] } } });
        instances.merge_status("web", &change).await;
    }

    async fn close(&self, until: Timestamp) {
        let accounts: Api<Account> = Api::all(self.tenant.kube.clone());
        let change = json!({ "spec": { "invoicesClosedUntil": until.to_string() } });
        accounts.merge(&self.tenant.namespace, &change).await;
    }

    async fn back_up(&self, number: i64) {
        let backup = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Backup", "metadata": { "name": format!("b-{number}") },
            "spec": { "instance": "web" },
        });
        let backup: Backup = serde_json::from_value(backup).unwrap();
        self.tenant
            .backups()
            .create(&PostParams::default(), &backup)
            .await
            .unwrap();
    }

    async fn wait_for(&self, invoices: usize, backups: usize) {
        self.tenant.wait_for_invoices(invoices).await;
        let look = async || self.tenant.all_backups().await;
        eventually("the backups to end", look, |all| {
            all.len() == backups && !all.iter().any(Backup::is_unfinished)
        })
        .await;
    }

    /// Checks hours, backups and events. Returns the numbers of the invoices.
    async fn check(&self, closings: i64) -> Vec<String> {
        let all = self.tenant.all_invoices().await;
        let issued: Vec<_> = all.iter().filter(|invoice| invoice.is_issued()).collect();
        assert_eq!(all.len(), issued.len() + 1, "one is open");
        let mut hours = Vec::new();
        for invoice in &issued {
            let lines = self.tenant.lines_of(invoice).await;
            assert_eq!(lines.len(), 1, "{lines:?}");
            let of_line = lines[0].hours.iter();
            hours.extend(of_line.map(|hours| (hours.plan.clone(), hours.thousandths / 1000)));
        }
        let mut expected: Vec<(String, u64)> = vec![("starter".to_owned(), 3)];
        let later = (1..=closings).map(|number| if number <= 2 { "starter" } else { "business" });
        expected.extend(later.map(|plan| (plan.to_owned(), 1)));
        assert_eq!(hours, expected);

        let numbers: Vec<String> = issued.iter().map(|invoice| number(invoice)).collect();
        let backups: Vec<String> = self.tenant.all_backups().await.iter().map(Backup::id).collect();
        let mut due: Vec<String> = numbers.iter().chain(&backups).cloned().collect();
        due.sort_unstable();
        // A process that dies may repeat an event, with the same id and the same bytes.
        let told = async || {
            let mut bodies: BTreeMap<String, Value> = BTreeMap::new();
            for request in self.receiver.received() {
                let event = body(&request);
                let id = event["id"].as_str().unwrap().to_owned();
                let known = bodies.entry(id).or_insert_with(|| event.clone());
                assert_eq!(*known, event);
            }
            let subject = |event: &Value| {
                let data = &event["data"];
                let of_backup = data["backup"]["id"].as_str();
                of_backup
                    .or(data["invoice"]["number"].as_str())
                    .unwrap()
                    .to_owned()
            };
            let mut told: Vec<String> = bodies.values().map(subject).collect();
            told.sort_unstable();
            told
        };
        eventually("each event once", told, |told| *told == due).await;
        numbers
    }
}

/// In a long run there are several kills around each: what a closing waits for takes longer than a kill and a start.
const MOST_CLOSINGS: i64 = 100;

/// To keep the suite short, it kills only a few times. For a long run: `STELLAGE_TEST_MONTH_KILLS=200 cargo test --test
/// integration -- however_often_the_operator_is_killed_around_the_end_of_a_month --show-output`.
#[tokio::test]
async fn however_often_the_operator_is_killed_around_the_end_of_a_month_each_hour_backup_and_event_counts_once()
 {
    let kills: i64 = setting("STELLAGE_TEST_MONTH_KILLS", 8);
    let plane = own_plane().await;
    let limits = ["--backups-per-instance=1000", "--backups-per-account=10000"];
    let start = async || start_with(&plane, &limits).await;
    let mut operator = start().await;
    let mut accounts = Vec::new();
    for index in 0..ACCOUNTS {
        accounts.push(Billed::new(&plane, &operator, &format!("killed-{index}")).await);
    }
    operator.die(&plane).await;
    // Three hours of last month, which ends with the first start, and one more with each closing.
    let now = Timestamp::now();
    let month = Period::month_of(now).from;
    let since = month.checked_sub(SignedDuration::from_mins(150)).unwrap();
    let closings = kills.min(now.duration_since(month).as_hours()).min(MOST_CLOSINGS);
    let kills_each = kills / (closings + 1) + 1;
    let kube = plane.client(Identity::Operator).await.unwrap();
    for account in &accounts {
        account.run_since(&kube, since).await;
    }
    let mut killed = 0;
    for closing in 0..=closings {
        if closing > 0 {
            let until = month
                .checked_add(SignedDuration::from_mins(60 * closing))
                .unwrap();
            for account in &accounts {
                account.close(until).await;
                account.back_up(closing).await;
            }
        } else {
            operator = start().await;
        }
        for _ in 0..kills_each {
            let alive = rand::rng().random_range(0..120);
            tokio::time::sleep(Duration::from_millis(alive)).await;
            operator.die(&plane).await;
            operator = start().await;
            killed += 1;
        }
        let closing = usize::try_from(closing).unwrap();
        for account in &accounts {
            account.wait_for(closing + 1, closing).await;
        }
    }
    let mut numbers = Vec::new();
    for account in &accounts {
        numbers.extend(account.check(closings).await);
    }
    numbers.sort_unstable();
    let year = &Timestamp::now().to_string()[..4];
    let expected: Vec<String> = (1..=numbers.len())
        .map(|number| format!("{year}-{number:06}"))
        .collect();
    assert_eq!(numbers, expected);
    println!(
        "{killed} kills, {} invoices, {} backups",
        numbers.len(),
        closings * 3
    );
    operator.stop().await;
}
