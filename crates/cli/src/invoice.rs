//! `stellage invoice …`.

use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
    core::DeserializeGuard,
};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    CliError, account,
    connect::Cluster,
    duration,
    objects::{self, note_unreadable, read_all},
    output::{self, Output, or_dash},
    program::program,
};
use resources::{
    Account, Invoice, InvoiceLine, InvoicePage, invoice_page::INVOICE_LABEL, money::Cents, origin,
};
use runtime::{client::Pages, kubeconfig::ClusterArgs};

/// How often to look whether the invoice is issued.
const POLL: Duration = Duration::from_millis(500);

/// List and show invoices, and issue them before the end of the month.
#[derive(Debug, Subcommand)]
pub enum InvoiceCommand {
    /// List the invoices of an account, the latest first
    #[command(after_help = LIST)]
    List(ListArgs),
    /// Show an invoice with its lines
    #[command(after_help = SHOW)]
    Show(ShowArgs),
    /// Issue the open invoice of an account now, before the end of the month
    #[command(after_help = CLOSE)]
    Close(CloseArgs),
}

const LIST: &str = "\
Examples:
  stellage invoice list --account ada
  stellage invoice list --account ada --output json | jq -r '.[].number'";
const SHOW: &str = "\
Example:
  stellage invoice show 2026-000042 --account ada";
const CLOSE: &str = "\
Examples:
  stellage invoice close --account ada
  stellage invoice close --account ada --until 2026-11-15T00:00:00Z";

/// List invoices.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Account whose invoices to list
    #[arg(long, value_parser = objects::name)]
    account: String,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Show an invoice.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Name, id or number of the invoice, as `stellage invoice list` shows them
    name: String,

    /// Account whose invoice to show
    #[arg(long, value_parser = objects::name)]
    account: String,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Issue the open invoice with the hours that began before a time. The next invoice goes on from there, so no hour is on both or on
/// neither. Closed once, the same time is not closed again.
#[derive(Args, Debug)]
pub struct CloseArgs {
    /// Account whose invoice to issue
    #[arg(long, value_parser = objects::name)]
    account: String,

    /// The end of its period, an RFC 3339 time that is not in the future [default: now]
    #[arg(long, value_name = "TIME")]
    until: Option<Timestamp>,

    /// How long to wait for the operator, such as 30s or 5m
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration::parse)]
    timeout: Duration,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// The JSON form of an invoice.
#[derive(Serialize)]
struct View {
    name: String,
    id: String,
    number: Option<String>,
    status: &'static str,
    from: Timestamp,
    to: Timestamp,
    issued_at: Option<Timestamp>,
    due_date: Option<String>,
    net: Option<String>,
    tax: Option<String>,
    amount: Option<String>,
    currency: String,
    lines_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lines: Option<Vec<InvoiceLine>>,
}

impl View {
    fn of(invoice: &Invoice) -> Self {
        let status = invoice.status.clone().unwrap_or_default();
        let is_issued = invoice.is_issued();
        let cents = |cents| is_issued.then(|| Cents(cents).to_string());
        Self {
            name: invoice.name_any(),
            id: invoice.id(),
            status: if is_issued { "issued" } else { "open" },
            from: invoice.spec.period.from,
            to: invoice.spec.period.to,
            issued_at: status.issued_at,
            due_date: status.due_date,
            net: cents(status.net_cents),
            tax: cents(status.tax_cents),
            amount: cents(status.net_cents + status.tax_cents),
            currency: invoice.spec.currency.clone(),
            lines_count: is_issued.then_some(status.lines_count),
            number: status.number,
            lines: None,
        }
    }

    fn total(&self) -> String {
        let amount = self.amount.as_ref();
        or_dash(amount.map(|amount| format!("{amount} {}", self.currency)))
    }
}

/// The invoices of an account.
struct Books<'a> {
    cluster: &'a Cluster,
    account: Account,
    namespace: String,
}

pub(super) async fn run(command: InvoiceCommand, which: &ClusterArgs) -> Result<(), CliError> {
    let cluster = Cluster::of(which).await?;
    match command {
        InvoiceCommand::List(args) => Books::of(&cluster, &args.account).await?.list(&args).await,
        InvoiceCommand::Show(args) => Books::of(&cluster, &args.account).await?.show(&args).await,
        InvoiceCommand::Close(args) => Books::of(&cluster, &args.account).await?.close(&args).await,
    }
}

impl<'a> Books<'a> {
    async fn of(cluster: &'a Cluster, name: &str) -> Result<Self, CliError> {
        let account = account::get(cluster, name).await?;
        let namespace = account::namespace(&account, "invoices")?;
        Ok(Self {
            cluster,
            namespace: namespace.to_owned(),
            account,
        })
    }

    /// All invoices, the latest period first.
    async fn all(&self) -> Result<Vec<Invoice>, CliError> {
        let api = Api::<DeserializeGuard<Invoice>>::namespaced(self.cluster.client.clone(), &self.namespace);
        let doing = format!("list invoices in namespace {}", self.namespace);
        let uid = origin::uid(&self.account.metadata);
        let mut all = read_all(self.cluster, &doing, api, note_unreadable).await?;
        all.retain(|invoice| invoice.spec.account == uid);
        all.sort_by_key(|invoice| std::cmp::Reverse(invoice.spec.period.from));
        Ok(all)
    }

    async fn list(&self, args: &ListArgs) -> Result<(), CliError> {
        let all: Vec<View> = self.all().await?.iter().map(View::of).collect();
        if args.output == Output::Json {
            return output::json(&all);
        }
        if all.is_empty() {
            output::note(&format!("Account {} has no invoices yet.", args.account));
            return Ok(());
        }
        let rows: Vec<[String; 7]> = all
            .iter()
            .map(|view| {
                [
                    or_dash(view.number.as_ref()),
                    view.name.clone(),
                    view.from.to_string(),
                    view.to.to_string(),
                    view.total(),
                    or_dash(view.due_date.as_ref()),
                    view.status.to_owned(),
                ]
            })
            .collect();
        let head = ["NUMBER", "NAME", "FROM", "TO", "AMOUNT", "DUE", "STATUS"];
        output::line(&output::table(&head, &rows));
        Ok(())
    }

    async fn show(&self, args: &ShowArgs) -> Result<(), CliError> {
        let is_it = |invoice: &&Invoice| {
            let number = invoice
                .status
                .as_ref()
                .and_then(|status| status.number.as_deref());
            invoice.name() == args.name || invoice.id() == args.name || number == Some(args.name.as_str())
        };
        let all = self.all().await?;
        let invoice = all.iter().find(is_it).ok_or_else(|| CliError::NoObject {
            word: "invoice".to_owned(),
            name: args.name.clone(),
            namespace: self.namespace.clone(),
            list: format!("{} invoice list --account {}", program(), args.account),
        })?;
        let mut view = View::of(invoice);
        let lines = if invoice.is_issued() {
            self.lines(invoice).await?
        } else {
            Vec::new()
        };
        if args.output == Output::Json {
            view.lines = Some(lines);
            return output::json(&view);
        }
        let status = invoice.status.clone().unwrap_or_default();
        let fields = [
            ("Number", or_dash(view.number.as_ref())),
            ("Name", view.name.clone()),
            ("ID", view.id.clone()),
            ("Status", view.status.to_owned()),
            ("Period", format!("{} to {}", view.from, view.to)),
            ("Issued", or_dash(view.issued_at)),
            ("Due", or_dash(view.due_date.as_ref())),
            (
                "To",
                or_dash((!status.buyer.is_empty()).then(|| status.buyer.join("\n"))),
            ),
            ("Net", or_dash(view.net.as_ref())),
            ("Tax", or_dash(view.tax.as_ref())),
            ("Amount", view.total()),
            ("Lines", or_dash(view.lines_count)),
        ];
        output::line(&output::description(&fields));
        if !invoice.is_issued() {
            output::note("It is open; GET /v1/invoices/current shows its lines so far.");
            return Ok(());
        }
        let rows: Vec<[String; 7]> = lines.iter().flat_map(rows).collect();
        output::line("");
        let head = [
            "INSTANCE", "NAME", "PLAN", "HOURS", "PER HOUR", "AMOUNT", "TO PAY",
        ];
        output::line(&output::table(&head, &rows));
        Ok(())
    }

    async fn lines(&self, invoice: &Invoice) -> Result<Vec<InvoiceLine>, CliError> {
        let api = Api::<InvoicePage>::namespaced(self.cluster.client.clone(), &self.namespace);
        let doing = format!("list invoicepages in namespace {}", self.namespace);
        let of_invoice = format!("{INVOICE_LABEL}={}", invoice.name());
        let pages = Pages::of(api, ListParams::default().limit(50).labels(&of_invoice));
        let mut pages = self.cluster.list(&doing, pages, Pages::next).await?;
        pages.sort_by_key(|page| page.spec.number);
        let of_pages = pages
            .into_iter()
            .flat_map(|page| page.spec.lines.unwrap_or_default());
        Ok(invoice.spec.lines.iter().cloned().chain(of_pages).collect())
    }

    async fn close(&self, args: &CloseArgs) -> Result<(), CliError> {
        let now = Timestamp::now();
        let until = args.until.unwrap_or(now);
        let until = Timestamp::from_second(until.as_second()).unwrap_or(until);
        let refused = |why: String| CliError::Value { flag: "--until", why };
        if until > now {
            return Err(refused(format!("{until} is in the future; it is {now} now")));
        }
        let all = self.all().await?;
        match situation(&all, until) {
            Situation::Closed(invoice) => return tell(invoice, true, args),
            Situation::TooEarly(from) => {
                return Err(refused(format!(
                    "{until} is before the period of the open invoice, which begins at {from}"
                )));
            }
            Situation::Nothing => return nothing(until, args),
            Situation::Open => {}
        }
        let api = Api::<Account>::all(self.cluster.client.clone());
        let change = json!({ "spec": { "invoicesClosedUntil": until.to_string() } });
        let doing = format!("change account {}", args.account);
        let (params, change) = (PatchParams::default(), Patch::Merge(&change));
        self.cluster.announce(&format!(
            "issuing the invoice of account {} until {until}, which cannot be taken back",
            args.account
        ));
        let patched = api.patch(&args.account, &params, &change);
        self.cluster.call(&doing, patched).await?;
        output::note(
            "waiting for the operator to issue the invoice; it waits for the last changes, some seconds",
        );
        let deadline = Instant::now() + args.timeout;
        loop {
            sleep(POLL).await;
            let all = self.all().await?;
            match situation(&all, until) {
                Situation::Closed(invoice) => return tell(invoice, false, args),
                Situation::Nothing => return nothing(until, args),
                Situation::Open | Situation::TooEarly(_) if Instant::now() < deadline => {}
                Situation::Open | Situation::TooEarly(_) => {
                    return Err(CliError::TimedOut {
                        what: format!("the invoice of account {}", args.account),
                        seconds: args.timeout.as_secs(),
                        last: "it is open".to_owned(),
                        look: format!("{} invoice list --account {}", program(), args.account),
                    });
                }
            }
        }
    }
}

/// How an account stands to a time until which its invoices are to be closed.
#[derive(Debug, PartialEq)]
enum Situation<'a> {
    /// An issued invoice covers the time before it.
    Closed(&'a Invoice),
    /// It is before the open invoice, whose period begins here, and before the first one.
    TooEarly(Timestamp),
    /// Nothing is to be billed until then.
    Nothing,
    /// The open invoice covers the time before it.
    Open,
}

fn situation(all: &[Invoice], until: Timestamp) -> Situation<'_> {
    let covers = |invoice: &&Invoice| {
        let period = &invoice.spec.period;
        invoice.is_issued() && period.from < until && until <= period.to
    };
    if let Some(invoice) = all.iter().find(covers) {
        return Situation::Closed(invoice);
    }
    let open = all.iter().filter(|invoice| !invoice.is_issued());
    let Some(open) = open.min_by_key(|invoice| invoice.spec.period.from) else {
        return Situation::Nothing;
    };
    if until <= open.spec.period.from {
        return Situation::TooEarly(open.spec.period.from);
    }
    match open.status.as_ref().and_then(|status| status.nothing_until) {
        Some(nothing_until) if nothing_until == until => Situation::Nothing,
        _ => Situation::Open,
    }
}

fn tell(invoice: &Invoice, already: bool, args: &CloseArgs) -> Result<(), CliError> {
    let view = View::of(invoice);
    if args.output == Output::Json {
        return output::json(&view);
    }
    let what = if already { "Already closed by" } else { "Issued" };
    output::line(&format!(
        "{what} invoice {} ({}): {} to {}, {}",
        or_dash(view.number.as_ref()),
        view.name,
        view.from,
        view.to,
        view.total()
    ));
    Ok(())
}

fn nothing(until: Timestamp, args: &CloseArgs) -> Result<(), CliError> {
    if args.output == Output::Json {
        return output::json(&json!(null));
    }
    output::line(&format!(
        "Account {} has nothing to bill until {until}",
        args.account
    ));
    Ok(())
}

/// The rows of a line: what is to be paid is in the last of them.
fn rows(line: &InvoiceLine) -> Vec<[String; 7]> {
    let rows = line.rows();
    let last = rows.len().saturating_sub(1);
    let rows = rows.into_iter().enumerate().map(|(index, row)| {
        let only = |at: usize, text: &str| {
            if index == at {
                text.to_owned()
            } else {
                String::new()
            }
        };
        [
            only(0, &line.instance_id),
            only(0, &line.name),
            row.plan.to_owned(),
            row.hours,
            row.unit_price,
            row.amount,
            only(last, &Cents(line.amount_cents).to_string()),
        ]
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invoice(from: &str, to: &str, number: Option<&str>) -> Invoice {
        let phase = if number.is_some() { "Issued" } else { "Open" };
        serde_json::from_value(json!({
            "metadata": { "name": "inv-abcdefgh01234567" },
            "spec": { "account": "u", "accountName": "ada", "period": { "from": from, "to": to }, "currency": "EUR" },
            "status": { "phase": phase, "number": number },
        }))
        .unwrap()
    }

    #[test]
    fn a_time_is_closed_open_or_before_the_first_invoice() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let (first, second, third) = (
            "2026-11-01T00:00:00Z",
            "2026-11-10T10:00:00Z",
            "2026-12-01T00:00:00Z",
        );
        let all = [
            invoice(second, third, None),
            invoice(first, second, Some("2026-000001")),
        ];
        assert_eq!(situation(&all, at(second)), Situation::Closed(&all[1]));
        assert_eq!(
            situation(&all, at("2026-11-05T00:00:00Z")),
            Situation::Closed(&all[1])
        );
        assert_eq!(situation(&all, at("2026-11-10T10:00:01Z")), Situation::Open);
        assert_eq!(situation(&all, at(first)), Situation::TooEarly(at(second)));
        assert_eq!(situation(&[], at(first)), Situation::Nothing);
        let mut marked = all[0].clone();
        marked.status.as_mut().unwrap().nothing_until = Some(at("2026-11-11T00:00:00Z"));
        let all = [marked];
        assert_eq!(situation(&all, at("2026-11-11T00:00:00Z")), Situation::Nothing);
        assert_eq!(situation(&all, at("2026-11-11T00:00:01Z")), Situation::Open);
    }
}
