//! `stellage invoice …`. Invoices are in the operator's namespace, and outlive their accounts.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
    core::DeserializeGuard,
};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    CliError, account,
    connect::Cluster,
    duration,
    objects::{self, note_unreadable},
    output::{self, Output, or_dash},
    program::program,
};
use domain::invoice::{
    Total,
    ledger::credit,
    render::{Form, json as model, ubl},
};
use resources::{
    Account, Invoice, InvoiceLine, InvoicePage, InvoicePhase, ids,
    invoice::{ACCOUNT_ORIGIN_LABEL, Credit, InvoiceType, MAX_TEXT},
    invoice_number::NUMBER_LABEL,
    invoice_page::INVOICE_LABEL,
    money::Cents,
    origin,
};
use runtime::{client::Pages, kubeconfig::ClusterArgs};

/// How often to look whether the invoice is issued.
const POLL: Duration = Duration::from_millis(500);

/// List and show invoices, issue them before the end of the month, and take back what they bill.
#[derive(Debug, Subcommand)]
pub enum InvoiceCommand {
    /// List the invoices and credit notes of an account, the latest period first
    #[command(after_help = LIST)]
    List(ListArgs),
    /// Show an invoice or a credit note with its lines
    #[command(after_help = SHOW)]
    Show(ShowArgs),
    /// Issue the open invoice of an account now, before the end of the month
    #[command(after_help = CLOSE)]
    Close(CloseArgs),
    /// Take back a part or all of an issued invoice with a credit note
    #[command(after_help = CREDIT)]
    Credit(CreditArgs),
}

const LIST: &str = "\
The account may have been deleted. The invoices of an account that had the same name before are listed, too.

Examples:
  stellage invoice list --account ada
  stellage invoice list --account ada --output json | jq -r '.[].number'";
const SHOW: &str = "\
Examples:
  stellage invoice show 2026-000042
  stellage invoice show 2026-000042 --output html > invoice.html
  stellage invoice show 2026-000042 --output ubl > invoice.xml";
const CLOSE: &str = "\
Examples:
  stellage invoice close --account ada
  stellage invoice close --account ada --until 2026-11-15T00:00:00Z";
const CREDIT: &str = "\
The credit note has a number of the same row, and the seller, the buyer and the tax rate of the invoice, which itself stays as it is. The
account's webhooks are told with invoice.created.

Examples:
  stellage invoice credit 2026-000042 --amount 5.95 --reason 'outage on 3 November'
  stellage invoice credit 2026-000042 --all --reason 'wrong buyer'";

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
    /// Number, name or id of the invoice, as `stellage invoice list` shows them
    name: String,

    /// Account whose invoice it must be
    #[arg(long, value_parser = objects::name)]
    account: Option<String>,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Document,
}

/// The form in which an invoice is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Document {
    /// For people.
    #[default]
    #[value(alias = "table")]
    Text,
    /// For scripts, as GET /v1/invoices/ID shows it.
    Json,
    /// A table of its lines.
    Csv,
    /// A page to print.
    Html,
    /// An e-invoice: UBL 2.1, EN 16931.
    Ubl,
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

/// Take back a part or all of an issued invoice.
#[derive(Args, Debug)]
pub struct CreditArgs {
    /// Number, name or id of the invoice
    invoice: String,

    /// Amount to take back, with tax, in the invoice's currency, such as 5.95
    #[arg(long, value_name = "VALUE", value_parser = cents, required_unless_present = "all", conflicts_with = "all")]
    amount: Option<Cents>,

    /// Take back all that is left of the invoice
    #[arg(long)]
    all: bool,

    /// Why, for the account holder; it is on the credit note
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,

    /// How long to wait for the operator, such as 30s or 5m
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration::parse)]
    timeout: Duration,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

fn cents(text: &str) -> Result<Cents, String> {
    let quoted = serde_json::Value::from(text);
    let amount: Option<Cents> = serde_json::from_value(quoted).ok();
    amount
        .filter(|amount| amount.0 > 0)
        .ok_or_else(|| "must be an amount above 0 with at most two decimals, such as 5.95".to_owned())
}

fn reason(text: &str) -> Result<String, String> {
    let is_right = text.chars().count() <= MAX_TEXT && !text.chars().any(char::is_control);
    if is_right && !text.trim().is_empty() {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "must have 1 to {MAX_TEXT} characters, not only spaces, and no control characters"
        ))
    }
}

/// The JSON form of an invoice: that of `/v1`, with what only administrators see.
#[derive(Serialize)]
struct View {
    #[serde(skip)]
    phase: InvoicePhase,
    name: String,
    account: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<String>,
    #[serde(flatten)]
    invoice: api::Invoice,
}

impl View {
    fn of(invoice: &Invoice) -> Self {
        Self {
            phase: invoice.phase(),
            name: invoice.name_any(),
            account: invoice.spec.account_name.clone(),
            held: invoice.held().map(str::to_owned),
            invoice: model::issued(invoice),
        }
    }

    fn total(&self) -> String {
        let amount = &self.invoice.amount;
        let is_issued = self.invoice.issued_at.is_some();
        or_dash(is_issued.then(|| format!("{} {}", amount.value, amount.currency)))
    }

    fn status(&self) -> String {
        match (self.phase, &self.held) {
            (InvoicePhase::Refused, _) => "refused".to_owned(),
            (InvoicePhase::Open, Some(_)) => "held".to_owned(),
            (InvoicePhase::Open, None) if self.invoice.corrects.is_some() => "asked for".to_owned(),
            _ => self.invoice.status.to_string(),
        }
    }
}

pub(super) async fn run(command: InvoiceCommand, which: &ClusterArgs) -> Result<(), CliError> {
    let cluster = Cluster::of(which).await?;
    match command {
        InvoiceCommand::List(args) => list(&cluster, &args).await,
        InvoiceCommand::Show(args) => show(&cluster, &args).await,
        InvoiceCommand::Close(args) => close(&cluster, &args).await,
        InvoiceCommand::Credit(args) => take_back(&cluster, &args).await,
    }
}

/// The invoices that `params` select, the latest period first and a credit note after its invoice.
async fn select(cluster: &Cluster, params: ListParams) -> Result<Vec<Invoice>, CliError> {
    let api = Api::<DeserializeGuard<Invoice>>::all(cluster.client.clone());
    let all = cluster
        .list("list invoices", Pages::of(api, params), Pages::next)
        .await?;
    let readable = all
        .into_iter()
        .filter_map(|object| object.0.map_err(note_unreadable).ok());
    let mut all: Vec<Invoice> = readable.collect();
    all.sort_by(Invoice::listed_before);
    Ok(all)
}

async fn of_origin(cluster: &Cluster, origin: &str) -> Result<Vec<Invoice>, CliError> {
    let label = format!("{ACCOUNT_ORIGIN_LABEL}={origin}");
    select(cluster, ListParams::default().labels(&label)).await
}

/// The invoices of the account of this name, and of those that had it before and are gone.
async fn of_account(cluster: &Cluster, name: &str) -> Result<Vec<Invoice>, CliError> {
    let all = select(
        cluster,
        ListParams::default().fields(&format!("spec.accountName={name}")),
    )
    .await?;
    if all.is_empty() {
        account::get(cluster, name).await?;
    }
    Ok(all)
}

/// The invoice with this number, name or id.
async fn find(cluster: &Cluster, text: &str, account: Option<&str>) -> Result<Invoice, CliError> {
    let by_id = ids::invoice_name_of(text);
    let by_name = by_id.or_else(|| text.starts_with("inv-").then(|| text.to_owned()));
    let params = match &by_name {
        Some(name) => ListParams::default().fields(&format!("metadata.name={name}")),
        None => ListParams::default().labels(&format!("{NUMBER_LABEL}={text}")),
    };
    // What cannot be a name or a label does not become a selector.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let mut found = if !text.is_empty() && by_name.as_deref().unwrap_or(text).chars().all(is_plain) {
        select(cluster, params).await?
    } else {
        Vec::new()
    };
    found.retain(|invoice| account.is_none_or(|account| invoice.spec.account_name == account));
    let accounts: Vec<&str> = found
        .iter()
        .map(|invoice| invoice.spec.account_name.as_str())
        .collect();
    if accounts.len() > 1 {
        return Err(CliError::Refused {
            doing: format!("find invoice {text}"),
            reason: format!(
                "the accounts {} have one of that number, of several installations; give its id",
                accounts.join(", ")
            ),
        });
    }
    found.pop().ok_or_else(|| {
        let of = account.map(|account| format!(" of account {account}"));
        CliError::Refused {
            doing: format!("find invoice {text}"),
            reason: format!(
                "there is none{}; `{} invoice list --account {}` lists them",
                of.unwrap_or_default(),
                program(),
                account.unwrap_or("NAME")
            ),
        }
    })
}

async fn list(cluster: &Cluster, args: &ListArgs) -> Result<(), CliError> {
    let all = of_account(cluster, &args.account).await?;
    let all: Vec<View> = all.iter().map(View::of).collect();
    if args.output == Output::Json {
        return output::json(&all);
    }
    if all.is_empty() {
        output::note(&format!("Account {} has no invoices yet.", args.account));
        return Ok(());
    }
    let rows: Vec<[String; 8]> = all
        .iter()
        .map(|view| {
            let invoice = &view.invoice;
            [
                or_dash(invoice.number.as_ref()),
                invoice.invoice_type.to_string(),
                view.name.clone(),
                invoice.period.from.to_string(),
                invoice.period.to.to_string(),
                view.total(),
                or_dash(invoice.due_date.as_ref()),
                view.status(),
            ]
        })
        .collect();
    let head = ["NUMBER", "TYPE", "NAME", "FROM", "TO", "AMOUNT", "DUE", "STATUS"];
    output::line(&output::table(&head, &rows));
    Ok(())
}

async fn show(cluster: &Cluster, args: &ShowArgs) -> Result<(), CliError> {
    let invoice = find(cluster, &args.name, args.account.as_deref()).await?;
    let lines = if invoice.is_issued() {
        lines(cluster, &invoice).await?
    } else {
        Vec::new()
    };
    let form = match args.output {
        Document::Text => {
            describe(&invoice, &lines);
            return Ok(());
        }
        Document::Json => {
            let count = lines.len();
            return output::json(&View {
                invoice: model::with_lines(&invoice, &lines, Total::of(&invoice), count),
                ..View::of(&invoice)
            });
        }
        Document::Csv => Form::Csv,
        Document::Html => Form::Html,
        Document::Ubl => Form::Ubl,
    };
    if !invoice.is_issued() {
        return Err(CliError::WrongState {
            what: format!("invoice {}", invoice.name_any()),
            why: "is open".to_owned(),
            fix: format!(
                "Its lines so far are in GET /v1/invoices/current; `{} invoice close --account {}` issues it.",
                program(),
                invoice.spec.account_name
            ),
        });
    }
    let missing = ubl::missing(&invoice);
    if form == Form::Ubl && !missing.is_empty() {
        return Err(CliError::WrongState {
            what: format!("invoice {}", args.name),
            why: format!("was issued without a valid {}, which EN 16931 requires", missing.join(", ")),
            fix: "Set seller in the catalogue and spec.billing of the Account (docs/invoices.md): invoices that are issued then have it."
                .to_owned(),
        });
    }
    let text = [
        form.head(&invoice),
        form.lines(&invoice, 1, &lines),
        form.foot(&invoice, Total::of(&invoice)),
    ];
    output::document(&text.concat());
    Ok(())
}

fn describe(invoice: &Invoice, lines: &[InvoiceLine]) {
    let view = View::of(invoice);
    let shown = &view.invoice;
    let status = invoice.content();
    let is_issued = invoice.is_issued();
    let party = |party: Option<&resources::invoice::Party>| {
        or_dash(
            party
                .map(|party| party.lines().join("\n"))
                .filter(|text| !text.is_empty()),
        )
    };
    let money = |money: &api::Money| or_dash(is_issued.then(|| money.value.clone()));
    let mut fields = vec![
        ("Number", or_dash(shown.number.as_ref())),
        ("Type", shown.invoice_type.to_string()),
        ("Name", view.name.clone()),
        ("ID", or_dash(shown.id.as_ref())),
        ("Account", view.account.clone()),
        ("Status", view.status()),
    ];
    if let Some(why) = &view.held {
        fields.push(("Held", why.clone()));
    }
    fields.extend([
        ("Period", format!("{} to {}", shown.period.from, shown.period.to)),
        ("Issued", or_dash(shown.issued_at)),
        ("Due", or_dash(shown.due_date.as_ref())),
        ("From", party(status.seller.as_ref())),
        ("To", party(status.buyer.as_ref())),
    ]);
    if let Some(corrects) = &shown.corrects {
        fields.push(("Corrects", corrects.number.clone()));
        fields.push(("Reason", or_dash(shown.reason.as_ref())));
    }
    fields.extend([
        ("Net", money(&shown.net)),
        (
            "Tax",
            or_dash(is_issued.then(|| format!("{} ({} %)", shown.tax.value, shown.tax_rate))),
        ),
    ]);
    if let Some(note) = &shown.tax_note {
        fields.push(("Tax note", note.clone()));
    }
    fields.push(("Amount", view.total()));
    if invoice.is_invoice() {
        fields.push(("Lines", or_dash(is_issued.then_some(shown.lines_count))));
    }
    output::line(&output::description(&fields));
    if !is_issued && invoice.is_invoice() {
        output::note("It is open; GET /v1/invoices/current shows its lines so far.");
    }
    if !lines.is_empty() {
        let rows: Vec<[String; 7]> = lines.iter().flat_map(InvoiceLine::table).collect();
        output::line("");
        let head = [
            "INSTANCE", "NAME", "PLAN", "HOURS", "PER HOUR", "AMOUNT", "TO PAY",
        ];
        output::line(&output::table(&head, &rows));
    }
}

async fn lines(cluster: &Cluster, invoice: &Invoice) -> Result<Vec<InvoiceLine>, CliError> {
    let mut lines = invoice.spec.lines.clone();
    if !invoice.content().page_lines.is_empty() {
        let api = Api::<InvoicePage>::all(cluster.client.clone());
        let of_invoice = format!("{INVOICE_LABEL}={}", invoice.name());
        let pages = Pages::of(api, ListParams::default().limit(50).labels(&of_invoice));
        let mut pages = cluster.list("list invoicepages", pages, Pages::next).await?;
        pages.sort_by_key(|page| page.spec.number);
        lines.extend(
            pages
                .into_iter()
                .flat_map(|page| page.spec.lines.unwrap_or_default()),
        );
    }
    Ok(lines)
}

async fn close(cluster: &Cluster, args: &CloseArgs) -> Result<(), CliError> {
    let now = Timestamp::now();
    let until = args.until.unwrap_or(now);
    let until = Timestamp::from_second(until.as_second()).unwrap_or(until);
    let refused = |why: String| CliError::Value { flag: "--until", why };
    if until > now {
        return Err(refused(format!("{until} is in the future; it is {now} now")));
    }
    let account = account::get(cluster, &args.account).await?;
    let origin = origin::uid(&account.metadata);
    let all = of_origin(cluster, origin).await?;
    match situation(&all, until) {
        Situation::Closed(invoice) => return tell(invoice, "Already closed by", args.output),
        Situation::TooEarly(from) => {
            return Err(refused(format!(
                "{until} is before the period of the open invoice, which begins at {from}"
            )));
        }
        Situation::Nothing => return nothing(until, args),
        Situation::Open(_) => {}
    }
    let api = Api::<Account>::all(cluster.client.clone());
    let change = json!({ "spec": { "invoicesClosedUntil": until.to_string() } });
    let doing = format!("change account {}", args.account);
    let (params, change) = (PatchParams::default(), Patch::Merge(&change));
    cluster.announce(&format!(
        "issuing the invoice of account {} until {until}, which cannot be taken back",
        args.account
    ));
    let patched = api.patch(&args.account, &params, &change);
    cluster.call(&doing, patched).await?;
    output::note(
        "waiting for the operator to issue the invoice; it waits for the last changes, some seconds",
    );
    let deadline = Instant::now() + args.timeout;
    loop {
        sleep(POLL).await;
        let all = of_origin(cluster, origin).await?;
        match situation(&all, until) {
            Situation::Closed(invoice) => return tell(invoice, "Issued", args.output),
            Situation::Nothing => return nothing(until, args),
            Situation::Open(invoice) if invoice.held().is_some() => {
                return Err(CliError::Failed {
                    what: format!("the invoice of account {}", args.account),
                    why: format!(
                        "cannot be issued: {}; it is issued once that is done",
                        invoice.held().unwrap_or_default()
                    ),
                    look: format!("{} invoice list --account {}", program(), args.account),
                });
            }
            Situation::Open(_) | Situation::TooEarly(_) if Instant::now() < deadline => {}
            Situation::Open(_) | Situation::TooEarly(_) => {
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

async fn take_back(cluster: &Cluster, args: &CreditArgs) -> Result<(), CliError> {
    let invoice = find(cluster, &args.invoice, None).await?;
    let (Some(number), true) = (invoice.number(), invoice.is_invoice()) else {
        let what = if invoice.is_invoice() {
            "is open"
        } else {
            "is a credit note"
        };
        return Err(CliError::WrongState {
            what: format!("invoice {}", args.invoice),
            why: format!("{what}; only an issued invoice can be credited"),
            fix: format!(
                "`{} invoice list --account {}` lists them.",
                program(),
                invoice.spec.account_name
            ),
        });
    };
    let request = request(&invoice, number, args);
    // The operator decides; this only saves a request that it would refuse.
    let all = of_origin(cluster, &invoice.spec.account).await?;
    let is_pending = |other: &&Invoice| {
        let credit = other.spec.credit.as_ref();
        other.phase() == InvoicePhase::Open && credit.is_some_and(|credit| credit.invoice == invoice.name())
    };
    if let Some(pending) = all.iter().find(is_pending) {
        let namespace = pending.metadata.namespace.clone().unwrap_or_default();
        return Err(CliError::WrongState {
            what: format!("invoice {number}"),
            why:
                "is about to be credited: a credit note was asked for, and the operator has not issued it yet"
                    .to_owned(),
            fix: format!(
                "Wait for it; or take it back: kubectl delete invoice {} -n {namespace}",
                pending.name()
            ),
        });
    }
    let refused = |why: String| CliError::Value {
        flag: "--amount",
        why,
    };
    let total = credit::total(&request, &invoice, credit::left(&invoice, &all)).map_err(refused)?;
    cluster.announce(&format!(
        "crediting {} {} of invoice {number} of account {}, which cannot be taken back",
        total.amount, invoice.spec.currency, invoice.spec.account_name
    ));
    let namespace = invoice.metadata.namespace.clone().unwrap_or_default();
    let api = Api::<Invoice>::namespaced(cluster.client.clone(), &namespace);
    let doing = format!("ask for a credit note in namespace {namespace}");
    let created = cluster
        .call(&doing, api.create(&PostParams::default(), &request))
        .await?;
    output::note("waiting for the operator to issue the credit note");
    let deadline = Instant::now() + args.timeout;
    let look = format!("{} invoice show {}", program(), created.name_any());
    loop {
        let now: Invoice = cluster
            .call("read the credit note", api.get(created.name()))
            .await?;
        match now.phase() {
            InvoicePhase::Issued => return tell(&now, "Issued", args.output),
            InvoicePhase::Refused => {
                return Err(CliError::Failed {
                    what: format!("the credit note for invoice {number}"),
                    why: format!("was refused: {}", now.held().unwrap_or_default()),
                    look,
                });
            }
            _ if Instant::now() < deadline => sleep(POLL).await,
            InvoicePhase::Open => {
                return Err(CliError::TimedOut {
                    what: format!("the credit note for invoice {number}"),
                    seconds: args.timeout.as_secs(),
                    last: "it is asked for".to_owned(),
                    look,
                });
            }
        }
    }
}

/// The credit note that the operator is asked for.
fn request(invoice: &Invoice, number: &str, args: &CreditArgs) -> Invoice {
    let mut spec = invoice.spec.clone();
    spec.invoice_type = InvoiceType::CreditNote;
    (spec.entries, spec.lines) = (Vec::new(), Vec::new());
    spec.credit = Some(Credit {
        invoice: invoice.name_any(),
        number: number.to_owned(),
        amount_cents: args.amount.map(|amount| amount.0),
        reason: args.reason.clone(),
    });
    // Another name for each request, so that two at once are two.
    let seed = format!("{}\n{number}\n{}", spec.account, Timestamp::now());
    let mut request = Invoice::new(&ids::credit_note_name(&seed), spec);
    let label = (ACCOUNT_ORIGIN_LABEL.to_owned(), invoice.spec.account.clone());
    request.metadata.labels = Some([label].into());
    request
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
    Open(&'a Invoice),
}

fn situation(all: &[Invoice], until: Timestamp) -> Situation<'_> {
    let covers = |invoice: &&Invoice| {
        let period = &invoice.spec.period;
        invoice.is_invoice() && invoice.is_issued() && period.from < until && until <= period.to
    };
    if let Some(invoice) = all.iter().find(covers) {
        return Situation::Closed(invoice);
    }
    let open = all
        .iter()
        .filter(|invoice| invoice.is_invoice() && !invoice.is_issued());
    let Some(open) = open.min_by_key(|invoice| invoice.spec.period.from) else {
        return Situation::Nothing;
    };
    if until <= open.spec.period.from {
        return Situation::TooEarly(open.spec.period.from);
    }
    match open.content().nothing_until {
        Some(nothing_until) if nothing_until == until => Situation::Nothing,
        _ => Situation::Open(open),
    }
}

fn tell(invoice: &Invoice, what: &str, format: Output) -> Result<(), CliError> {
    let view = View::of(invoice);
    if format == Output::Json {
        return output::json(&view);
    }
    output::line(&format!(
        "{what} {} {} ({}): {} to {}, {}",
        invoice.word(),
        or_dash(view.invoice.number.as_ref()),
        view.name,
        invoice.spec.period.from,
        invoice.spec.period.to,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn invoice(from: &str, to: &str, number: Option<&str>) -> Invoice {
        let phase = if number.is_some() { "Issued" } else { "Open" };
        serde_json::from_value(json!({
            "metadata": { "name": "inv-abcdefgh01234567" },
            "spec": { "account": "u", "accountName": "ada", "accountNamespace": "ada", "period": { "from": from, "to": to }, "currency": "EUR" },
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
        assert_eq!(
            situation(&all, at("2026-11-10T10:00:01Z")),
            Situation::Open(&all[0])
        );
        assert_eq!(situation(&all, at(first)), Situation::TooEarly(at(second)));
        assert_eq!(situation(&[], at(first)), Situation::Nothing);
        let mut marked = all[0].clone();
        marked.status.as_mut().unwrap().nothing_until = Some(at("2026-11-11T00:00:00Z"));
        let all = [marked];
        assert_eq!(situation(&all, at("2026-11-11T00:00:00Z")), Situation::Nothing);
        assert_eq!(
            situation(&all, at("2026-11-11T00:00:01Z")),
            Situation::Open(&all[0])
        );
    }
}
