//! The month's end. Many accounts are closed at the same moment, without the ten minutes over which the product spreads them: how long
//! it takes, how many numbers a second are taken, and the writes and the CPU time an account. Then one account with as many lines as
//! 40,000 instances that came and went have: the CPU time of closing it. Each is measured once, because an hour is billed once. Last, how
//! long the ledger of an account with 40,000 instances keeps a thread at a time, without an API server.

use std::{
    borrow::Cow,
    collections::HashMap,
    path::Path,
    time::{Duration, Instant},
};

use domain::{
    catalogue::{InvoiceTerms, Prices},
    invoice::{
        Period, PriceHistory,
        ledger::{Books, Facts, Holder, Metered, Step, Subject, Subjects, next},
        metering,
    },
};
use jiff::{SignedDuration, Timestamp};
use resources::{Invoice, InvoicePage, Plan, invoice::Party, invoice_page::MAX_ENTRIES, metering::Metering};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    Result,
    account::Account,
    cluster::{Cluster, STELLAGE},
    load::{Extent, Load, NUMBER, numbered},
    objects,
    processes::processor_time,
    product::Product,
    samples::{self, Unit},
    say,
    sizes::Sizes,
    table::{Aim, Table},
    writes::{Writes, until_steady},
};

const CONNECTIONS: usize = 16;
/// Instances of each account.
const INSTANCES: u64 = 10;
/// How long after its end a period is closed, so that changes of its last moments are in it.
const GRACE: SignedDuration = SignedDuration::from_secs(5);
const PATIENCE: Duration = Duration::from_mins(10);
/// Interval in which nothing is written once everything is done: events are settled within it.
const QUIET: Duration = Duration::from_secs(15);
const POLL_EVERY: Duration = Duration::from_millis(100);
/// Entries on a page.
const ON_A_PAGE: u64 = 100;
/// Most CPU time of closing 40,000 lines, in seconds.
const AIM: Aim = Aim::AtMost(2.0);
/// How often the slices are measured: other processes make some of them longer.
const ROUNDS: usize = 5;
/// The longest slice, in milliseconds.
const SLICE: Aim = Aim::AtMost(5.0);
const NAMESPACE: &str = "stellage-system";

pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let cluster = Cluster::start().await?;
    let catalogue = cluster.plane.folder().join("catalogue.yaml");
    std::fs::write(&catalogue, "seller: {name: Bench Ltd}\n")?;
    let mut product = start(&cluster, &catalogue).await?;
    many(table, &cluster, &product, sizes.accounts).await?;
    let big = Account::namespace(&cluster, &product, "big").await?;
    product.stop().await?;
    let invoice = write_open(&cluster, &big, sizes.lines).await?;
    let mut product = start(&cluster, &catalogue).await?;
    one(table, &cluster, &product, &invoice, sizes.lines).await?;
    product.stop().await?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(longest_slice(sizes.lines)?.as_secs_f64() * 1000.0);
    }
    table.note(&format!(
        "one account of {} instances, without an API server",
        sizes.lines
    ));
    let longest = rounds.into_iter().collect();
    table.value("    longest slice", &longest, samples::MILLIS, Some(SLICE));
    Ok(())
}

async fn start(cluster: &Cluster, catalogue: &Path) -> Result<Product> {
    let arguments = [format!("--catalogue={}", catalogue.display())];
    Product::run_of(cluster, STELLAGE.as_ref(), &arguments).await
}

#[expect(clippy::too_many_lines, reason = "one step after another")]
async fn many(table: &mut Table, cluster: &Cluster, product: &Product, accounts: u64) -> Result<()> {
    say(&format!("{accounts} accounts of {INSTANCES} instances"));
    let name = format!("m-{NUMBER}");
    let account = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": name },
        "spec": { "email": "bench@example.com" },
    });
    let path = "/apis/stellage.dev/v1/accounts";
    each(
        cluster,
        accounts,
        201,
        ("POST", path),
        ("application/json", &account),
    )
    .await?;
    product
        .until(PATIENCE, "the accounts to be ready", async || {
            let all: Value = cluster.admin.call("GET", path, None).await?.json()?;
            let is_ready = |account: &&Value| account["status"]["namespace"].is_string();
            let ready = items(&all).iter().filter(is_ready).count();
            Ok((ready as u64 == accounts).then_some(()))
        })
        .await?;
    for number in 0..INSTANCES {
        let of_it = format!("web-{number}");
        let instance = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Instance",
            "metadata": {
                "name": of_it, "finalizers": ["stellage.dev/server"], "annotations": objects::origin(&format!("{name}-{of_it}")),
            },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
        });
        let path = objects::collection(&name);
        each(
            cluster,
            accounts,
            201,
            ("POST", &path),
            ("application/json", &instance),
        )
        .await?;
    }
    let invoices = format!("/apis/stellage.dev/v1/namespaces/{NAMESPACE}/invoices");
    product
        .until(PATIENCE, "the entries", async || {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let all: Value = cluster.admin.call("GET", &invoices, None).await?.json()?;
            let entries = items(&all)
                .iter()
                .map(|invoice| invoice["spec"]["entries"].as_array().map_or(0, Vec::len));
            Ok((entries.sum::<usize>() as u64 == accounts * INSTANCES).then_some(()))
        })
        .await?;
    until_steady(&cluster.admin, QUIET, PATIENCE, |writes| {
        format!("{} instances, {} invoices", writes.instances, writes.invoices)
    })
    .await?;

    let (before, used) = (Writes::count(&cluster.admin).await?, processor_time(product.pid)?);
    let until = Timestamp::from_second(Timestamp::now().as_second())?;
    let change = json!({ "spec": { "invoicesClosedUntil": until.to_string() } });
    let path = format!("/apis/stellage.dev/v1/accounts/{name}");
    each(
        cluster,
        accounts,
        200,
        ("PATCH", &path),
        ("application/merge-patch+json", &change),
    )
    .await?;
    let due = until + GRACE;
    let left = Duration::try_from(due.duration_since(Timestamp::now())).unwrap_or_default();
    tokio::time::sleep(left).await;
    let begun = Instant::now();
    product
        .until(PATIENCE, "the numbers", async || {
            tokio::time::sleep(POLL_EVERY).await;
            Ok((numbers(cluster).await? == accounts).then_some(()))
        })
        .await?;
    let seconds = begun.elapsed().as_secs_f64();
    until_steady(&cluster.admin, QUIET, PATIENCE, |writes| {
        format!("{} invoices", writes.invoices)
    })
    .await?;
    let spent = Writes::count(&cluster.admin).await? - before;
    let used = processor_time(product.pid)? - used;
    #[expect(clippy::cast_precision_loss, reason = "they are few")]
    let (count, writes) = (accounts as f64, spent.invoices as f64);
    table.note(&format!(
        "{accounts} accounts of {INSTANCES} instances, closed at once"
    ));
    table.value(
        "    until the last number",
        &seconds.into(),
        samples::SECONDS,
        None,
    );
    table.value(
        "    numbers a second",
        &(count / seconds).into(),
        samples::PER_SECOND,
        None,
    );
    table.value(
        "    writes an account",
        &(writes / count).into(),
        samples::EACH,
        None,
    );
    table.value(
        "    CPU time an account",
        &(used * 1000.0 / count).into(),
        samples::CORE_MILLIS,
        None,
    );
    Ok(())
}

async fn one(
    table: &mut Table,
    cluster: &Cluster,
    product: &Product,
    invoice: &str,
    lines: u64,
) -> Result<()> {
    // It reads what is stored first.
    until_steady(&cluster.admin, QUIET, PATIENCE, |writes| {
        format!("{} invoices", writes.invoices)
    })
    .await?;
    let used = processor_time(product.pid)?;
    let until = Timestamp::from_second(Timestamp::now().as_second())?;
    let change = json!({ "spec": { "invoicesClosedUntil": until.to_string() } }).to_string();
    let path = "/apis/stellage.dev/v1/accounts/big";
    cluster
        .admin
        .call("PATCH", path, Some(("application/merge-patch+json", &change)))
        .await?;
    let left = Duration::try_from((until + GRACE).duration_since(Timestamp::now())).unwrap_or_default();
    tokio::time::sleep(left).await;
    let begun = Instant::now();
    let path = format!("/apis/stellage.dev/v1/namespaces/{NAMESPACE}/invoices/{invoice}");
    product
        .until(PATIENCE, "the invoice", async || {
            tokio::time::sleep(POLL_EVERY).await;
            let invoice: Value = cluster.admin.call("GET", &path, None).await?.json()?;
            Ok((invoice["status"]["phase"] == "Issued").then_some(()))
        })
        .await?;
    let (seconds, used) = (begun.elapsed().as_secs_f64(), processor_time(product.pid)? - used);
    table.note(&format!("one account of {lines} lines"));
    table.value("    until it is issued", &seconds.into(), samples::SECONDS, None);
    table.value("    CPU time", &used.into(), Unit(" core-s", 2), Some(AIM));
    Ok(())
}

/// Stores an open invoice of an account, with pages of what came and went. Returns its name.
async fn write_open(cluster: &Cluster, account: &str, lines: u64) -> Result<String> {
    say(&format!("  storing {lines} entries"));
    let found: Value = cluster
        .admin
        .call("GET", &format!("/apis/stellage.dev/v1/accounts/{account}"), None)
        .await?
        .json()?;
    let uid = found["metadata"]["uid"].as_str().ok_or("no UID")?.to_owned();
    let month = domain::invoice::Period::month_of(Timestamp::now());
    let name = resources::ids::invoice_name(&uid, &month.from.to_string());
    let entries = |page: u64| -> Value {
        let of_it = (0..ON_A_PAGE).map(|number| {
            json!({
                "uid": format!("{page:06}-{number:06}-0000-0000-000000000000"), "instanceId": format!("i-{:016}", page * ON_A_PAGE + number),
                "name": format!("web-{page}-{number}"), "since": month.from, "ended": month.from + SignedDuration::from_mins(150),
                "changes": [{ "hour": 0, "plan": "starter", "then": "business" }, { "hour": 1, "plan": "business", "then": "business" }],
            })
        });
        of_it.collect()
    };
    let labels = json!({ "stellage.dev/account-origin": uid });
    let invoice = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Invoice", "metadata": { "name": name, "labels": labels },
        "spec": {
            "account": uid, "accountName": account, "accountNamespace": account, "currency": "EUR",
            "period": { "from": month.from, "to": month.to }, "entries": entries(0),
        },
        "status": { "id": resources::ids::invoice_id(&name), "phase": "Open" },
    });
    let path = format!("/apis/stellage.dev/v1/namespaces/{NAMESPACE}");
    let post = async |kind: &str, object: &Value| {
        let body = object.to_string();
        let path = format!("{path}/{kind}");
        cluster
            .operator
            .call("POST", &path, Some(("application/json", &body)))
            .await
    };
    for page in 1..lines / ON_A_PAGE {
        let labels = json!({
            "stellage.dev/account-origin": uid, "stellage.dev/invoice": name, "stellage.dev/open": "true",
        });
        let object = json!({
            "apiVersion": "stellage.dev/v1", "kind": "InvoicePage",
            "metadata": { "name": format!("{name}-{page:05}"), "labels": labels },
            "spec": { "account": uid, "invoice": name, "number": page, "entries": entries(page) },
        });
        post("invoicepages", &object).await?;
    }
    post("invoices", &invoice).await?;
    Ok(name)
}

/// The longest time for which the ledger of an account with this many instances keeps a thread, from when they are first seen until
/// their invoice has been issued, with what the client of the API server does to each object.
fn longest_slice(instances: u64) -> Result<Duration> {
    let since: Timestamp = "2026-11-10T10:00:00Z".parse()?;
    let metering = metering::begin(Plan::Starter, since);
    let uids: Vec<String> = (0..instances).map(|number| format!("{number:036}")).collect();
    let subject = |metering| Subject {
        instance_id: Cow::Borrowed("i-0000000000000000"),
        name: "web",
        metered: Metered::Instance(metering),
        ended: None,
    };
    let all = uids
        .iter()
        .map(|uid| (Cow::Borrowed(uid.as_str()), subject(&metering)));
    let mut subjects: Subjects<'_> = all.collect();
    let mut dearer: Metering = metering.clone();
    metering::change(
        &mut dearer,
        Plan::Business,
        since + SignedDuration::from_hours(30),
    );
    let prices = PriceHistory::new(Prices::default());
    let terms = InvoiceTerms {
        seller: Party {
            name: "Bench Ltd".to_owned(),
            ..Party::default()
        },
        ..InvoiceTerms::default()
    };
    let mut stored = Stored::default();
    let mut books = Books::of(NAMESPACE);
    books.issued_until = Some(Timestamp::MIN);
    let mut longest = Duration::ZERO;
    let month = Period::month_of(since);
    // When they are first seen, after one in a hundred has changed, and once the month is over.
    for (now, changes) in [
        (since, 0),
        (since, instances / 100),
        (month.to + SignedDuration::from_hours(1), 0),
    ] {
        let changes = uids.iter().step_by(100).take(usize::try_from(changes)?);
        subjects.extend(changes.map(|uid| (Cow::Borrowed(uid.as_str()), subject(&dearer))));
        books.look_again();
        let facts = Facts {
            holder: Holder {
                uid: "a",
                name: "big",
                namespace: "big",
                buyer: Party::default(),
                tax_rate: None,
                tax_note: None,
                created: Timestamp::MIN,
                closed_until: None,
                is_closing: false,
                is_gone: false,
            },
            subjects: &subjects,
            prices: &prices,
            terms: &terms,
            max_lines: usize::MAX,
            max_entries: MAX_ENTRIES,
            now,
        };
        loop {
            let begun = Instant::now();
            let step = next(&mut books, &facts);
            let is_resting = matches!(step, Step::Rest(_));
            stored.carry_out(&mut books, step)?;
            longest = longest.max(begun.elapsed());
            if is_resting {
                break;
            }
        }
    }
    let issued = books.issued_until.filter(|until| *until == month.to);
    issued
        .map(|_| longest)
        .ok_or_else(|| "the month was not issued".into())
}

/// In place of an API server.
#[derive(Default)]
struct Stored {
    pages: HashMap<(String, u32), Vec<u8>>,
    version: u64,
}

impl Stored {
    fn carry_out(&mut self, books: &mut Books, step: Step) -> Result<()> {
        self.version += 1;
        match step {
            Step::Read { invoice, numbers } => {
                for number in numbers {
                    let page = self.pages.get(&(invoice.clone(), number)).ok_or("no such page")?;
                    if !books.load_page(serde_json::from_slice(page)?) {
                        return Err("the page has changed".into());
                    }
                }
            }
            Step::Page { mut page, .. } => {
                page.metadata.resource_version = Some(self.version.to_string());
                let (json, page): (_, InvoicePage) = there_and_back(&*page)?;
                self.pages
                    .insert((page.spec.invoice.clone(), page.spec.number), json);
                books.put_page(page);
            }
            Step::Create(invoice) | Step::Replace { invoice, .. } => {
                let (_, invoice): (_, Invoice) = there_and_back(&*invoice)?;
                books.put_invoice(invoice);
            }
            Step::TakeNumber { invoice, .. } => {
                books.numbers.insert(invoice, "2026-000001".to_owned());
            }
            Step::Rest(_) | Step::Continue | Step::LookBack | Step::DeletePage(_) | Step::Delete(_) => {}
        }
        Ok(())
    }
}

fn there_and_back<K: Serialize + DeserializeOwned>(object: &K) -> Result<(Vec<u8>, K)> {
    let json = serde_json::to_vec(object)?;
    let back = serde_json::from_slice(&json)?;
    Ok((json, back))
}

/// The number of InvoiceNumbers.
async fn numbers(cluster: &Cluster) -> Result<u64> {
    let path = "/apis/stellage.dev/v1/invoicenumbers?limit=1";
    let page: Value = cluster.admin.call("GET", path, None).await?.json()?;
    let more = page["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
    Ok(items(&page).len() as u64 + more)
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}

/// Sends a request for each account, whose number replaces [`NUMBER`].
async fn each(
    cluster: &Cluster,
    accounts: u64,
    status: u16,
    (method, path): (&str, &str),
    (media_type, body): (&str, &Value),
) -> Result<()> {
    let request = cluster
        .admin
        .request(method, path, Some((media_type, &body.to_string())));
    let load = Load {
        target: cluster.admin.clone(),
        connections: CONNECTIONS,
        requests: numbered(request, 0),
        status,
        extent: Extent::Count(accounts),
    };
    load.run().await.map(drop)
}
