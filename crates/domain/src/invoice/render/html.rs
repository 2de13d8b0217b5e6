//! An invoice as a page to print. It has no scripts and loads nothing; its only style sheet is [`STYLE`].

use std::fmt::Write as _;

use jiff::{Timestamp, tz::TimeZone};

use super::escaped;
use crate::invoice::Total;
use resources::{Invoice, InvoiceLine, invoice::Party, money::Cents};

/// The style sheet of the page, for its Content-Security-Policy.
pub const STYLE: &str = "body{font:11pt/1.4 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem;color:#111}\
h1{font-size:1.4rem}h2{font-size:1rem;margin:0;color:#555}header{display:flex;flex-wrap:wrap;justify-content:space-between;gap:1rem 2rem;overflow-wrap:anywhere}\
address{font-style:normal;white-space:pre-line}dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:1.5rem 0}dt{color:#555}dd{margin:0}\
table{border-collapse:collapse;width:100%;margin:1.5rem 0}th,td{padding:.25rem .5rem;text-align:left;border-bottom:1px solid #ccc;overflow-wrap:anywhere}\
.n{text-align:right;font-variant-numeric:tabular-nums}tfoot td{border:0}tfoot tr:last-child td{font-weight:bold}\
.more td{border:0}.hint{color:#555;font-size:9pt}thead{display:table-header-group}tr{break-inside:avoid}@page{margin:18mm}@media print{body{margin:0;padding:0;max-width:none}}";

/// A party; nothing if it is not known.
fn party(heading: &str, party: Option<&Party>) -> String {
    let lines = party.map(Party::lines).unwrap_or_default();
    if lines.is_empty() {
        return String::new();
    }
    let lines = escaped(&lines.join("\n"));
    format!("<section><h2>{heading}</h2><address>{lines}</address></section>")
}

/// A moment as a reader needs it.
fn moment(moment: Timestamp) -> String {
    moment
        .to_zoned(TimeZone::UTC)
        .strftime("%Y-%m-%d %H:%M:%S")
        .to_string()
}

/// The page up to the rows of the lines.
pub(super) fn head(invoice: &Invoice) -> String {
    let status = invoice.content();
    let what = if invoice.is_invoice() {
        "Invoice"
    } else {
        "Credit note"
    };
    let title = match &status.number {
        Some(number) => format!("{what} {number}"),
        None => "Open invoice".to_owned(),
    };
    let mut about = String::new();
    // Writing to a String cannot fail.
    let mut tell = |name: &str, value: &str| {
        let _ = write!(about, "<dt>{name}</dt><dd>{}</dd>", escaped(value));
    };
    if let Some(number) = &status.number {
        tell("Number", number);
    }
    match (status.issued_at, &status.due_date) {
        (Some(issued_at), due) => {
            tell("Issued", &format!("{} (UTC)", moment(issued_at)));
            if let Some(due) = due.as_ref().filter(|_| invoice.is_invoice()) {
                tell("Due", due);
            }
        }
        (None, _) => tell("Issued", "not yet: the hours that have begun so far"),
    }
    let period = invoice.spec.period;
    tell(
        "Period of supply",
        &format!(
            "{} up to, not including, {} (UTC)",
            moment(period.from),
            moment(period.to)
        ),
    );
    if let Some(credit) = &invoice.spec.credit {
        let on = status.corrected_on.as_ref().map(|on| format!(" of {on}"));
        tell(
            "Corrects invoice",
            &format!("{}{}", credit.number, on.unwrap_or_default()),
        );
        tell("Reason", &credit.reason);
    }
    let title = escaped(&title);
    let currency = escaped(&invoice.spec.currency);
    let table = match &invoice.spec.credit {
        None => format!(
            "<p>Rental of virtual servers (instances), and storage of their backups. Amounts are in {currency}, without tax.</p>\n\
<table><thead><tr><th>Instance</th><th>Name</th><th>Plan</th><th class=\"n\">Hours</th><th class=\"n\">Per hour</th>\
<th class=\"n\">Amount</th><th class=\"n\">Net</th></tr></thead>\n<tbody>\n"
        ),
        Some(credit) => {
            let what = escaped(&format!("Credit on invoice {}: {}", credit.number, credit.reason));
            format!("<table><thead><tr><th colspan=\"7\">{what}</th></tr></thead><tbody>\n")
        }
    };
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
<title>{title}</title><style>{STYLE}</style></head>\n<body><main><h1>{title}</h1>\n<header>{}{}</header>\n\
<dl>{}</dl>\n{table}",
        party("Buyer", status.buyer.as_ref()),
        party("Seller", status.seller.as_ref()),
        about,
    )
}

/// The page after the rows of the lines.
pub(super) fn foot(invoice: &Invoice, total: Total) -> String {
    let status = invoice.content();
    let currency = escaped(&invoice.spec.currency);
    let sum = |what: &str, amount: Cents| {
        format!(
            "<tr><td colspan=\"6\" class=\"n\">{what}</td><td class=\"n\">{amount} {currency}</td></tr>\n"
        )
    };
    let (rate, is_invoice) = (escaped(status.tax_rate()), invoice.is_invoice());
    let (of_net, of_tax, what) = if is_invoice {
        let of_tax = format!("Tax, {rate} % of that, rounded half up");
        ("Net, the sum of the column", of_tax, "Total to pay")
    } else {
        (
            "Net",
            format!("Tax, {rate} %, contained in the total"),
            "Total credited",
        )
    };
    let (net, tax) = (sum(of_net, total.net), sum(&of_tax, total.tax));
    let tax_note = status.tax_note.as_ref();
    let tax_note = tax_note.map_or_else(String::new, |text| format!("<p>{}</p>\n", escaped(text)));
    let hint = if invoice.is_invoice() { HINT } else { "" };
    format!(
        "</tbody><tfoot>\n{net}{tax}{}</tfoot></table>\n{tax_note}{hint}</main></body></html>\n",
        sum(what, total.amount)
    )
}

/// How the amounts come about.
const HINT: &str = "<p class=\"hint\">A line is one instance, or all backups of one; its net sum stands in its last row. Amount: hours times the \
price of an hour, not rounded. An hour is billed if it has begun, at the dearest plan in it. The price of an hour is the month\u{2019}s divided by \
672 (28 days), rounded up to 0.00001. Backups are billed by the GB-hour (GB-h): the size of each times its hours. Limit of the month: in a calendar \
month an instance costs at most the month\u{2019}s price of its dearest plan, at its highest, and a backup that of its size; what earlier invoices billed \
counts. Net: the amounts of a line, rounded half up to cents. The tax rate is the one in force at the end of the period.</p>\n";

/// The rows of some lines.
pub(super) fn rows(lines: &[InvoiceLine]) -> String {
    let mut text = String::new();
    for line in lines {
        let mut rows = line.table().into_iter().peekable();
        while let Some(row) = rows.next() {
            let [id, name, plan, hours, price, amount, to_pay] = row.map(|cell| escaped(&cell));
            let class = rows.peek().map_or("", |_| " class=\"more\"");
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "<tr{class}><td>{id}</td><td>{name}</td><td>{plan}</td><td class=\"n\">{hours}</td><td class=\"n\">{price}</td><td class=\"n\">{amount}</td><td class=\"n\">{to_pay}</td></tr>",
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_style_sheet_cannot_close_its_element() {
        assert!(!STYLE.contains('<'));
    }
}
