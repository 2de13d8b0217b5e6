//! An invoice as a page to print. It has no scripts and loads nothing; its only style sheet is [`STYLE`].

use std::fmt::Write as _;

use jiff::{Timestamp, tz::TimeZone};

use crate::invoice::Total;
use resources::{
    Invoice, InvoiceLine, InvoiceStatus,
    invoice::Party,
    money::{Cents, TaxRate},
};

/// The style sheet of the page, for its Content-Security-Policy.
pub const STYLE: &str = "body{font:11pt/1.4 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem;color:#111}\
h1{font-size:1.4rem}h2{font-size:1rem;margin:0;color:#555}header{display:flex;flex-wrap:wrap;justify-content:space-between;gap:1rem 2rem;overflow-wrap:anywhere}\
address{font-style:normal;white-space:pre-line}dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:1.5rem 0}dt{color:#555}dd{margin:0}\
table{border-collapse:collapse;width:100%;margin:1.5rem 0}th,td{padding:.25rem .5rem;text-align:left;border-bottom:1px solid #ccc;overflow-wrap:anywhere}\
.n{text-align:right;font-variant-numeric:tabular-nums}tfoot td{border:0}tfoot tr:last-child td{font-weight:bold}\
.hint{color:#555;font-size:9pt}thead{display:table-header-group}tr{break-inside:avoid}@page{margin:18mm}@media print{body{margin:0;padding:0;max-width:none}}";

/// Escapes a text for an element or a quoted attribute.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

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
    let unknown = InvoiceStatus::default();
    let status = invoice.status.as_ref().unwrap_or(&unknown);
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
        &format!("{} to {} (UTC)", moment(period.from), moment(period.to)),
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
    let table = if invoice.is_invoice() {
        "<table><thead><tr><th>Instance</th><th>Name</th><th>Plan</th><th class=\"n\">Hours</th><th class=\"n\">Per hour</th>\
<th class=\"n\">Amount</th><th class=\"n\">To pay</th></tr></thead>\n<tbody>\n"
    } else {
        "<table><tbody>\n"
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
    let unknown = InvoiceStatus::default();
    let status = invoice.status.as_ref().unwrap_or(&unknown);
    let currency = escaped(&invoice.spec.currency);
    let sum = |what: &str, amount: Cents| {
        format!(
            "<tr><td colspan=\"6\" class=\"n\">{what}</td><td class=\"n\">{amount} {currency}</td></tr>\n"
        )
    };
    let none = TaxRate::default().to_string();
    let rate = status.tax_rate.as_deref().unwrap_or(&none);
    let net = sum("Net", total.net);
    let tax = sum(
        &format!("Tax, {} % of the net sum, rounded half up", escaped(rate)),
        total.tax,
    );
    let what = if invoice.is_invoice() {
        "Total"
    } else {
        "Total credited"
    };
    let note = status.tax_note.as_ref();
    let note = note.map_or_else(String::new, |note| format!("<p>{}</p>\n", escaped(note)));
    let hint = if invoice.is_invoice() { HINT } else { "" };
    format!(
        "</tbody><tfoot>\n{net}{tax}{}</tfoot></table>\n{note}{hint}</main></body></html>\n",
        sum(what, total.amount)
    )
}

/// How the amounts come about.
const HINT: &str = "<p class=\"hint\">Amount: hours times the price of an hour, not rounded. An hour is billed if it has begun, at the dearest plan \
in it; its price is the month's divided by 672, rounded up. Reduction: what is more than the month's price of the dearest plan. Hours of the \
plan \u{201c}backup\u{201d} are GB-hours: the size of each backup times its hours. To pay: the amounts of a line together, rounded half up to \
cents.</p>\n";

/// The rows of some lines.
pub(super) fn rows(lines: &[InvoiceLine]) -> String {
    let mut text = String::new();
    for line in lines {
        let mut rows = line.rows().into_iter().enumerate().peekable();
        while let Some((index, row)) = rows.next() {
            let (id, name) = if index == 0 {
                (escaped(&line.instance_id), escaped(&line.name))
            } else {
                Default::default()
            };
            let to_pay = if rows.peek().is_none() {
                Cents(line.amount_cents).to_string()
            } else {
                String::new()
            };
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "<tr><td>{id}</td><td>{name}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{to_pay}</td></tr>",
                escaped(format!("{} {}", row.plan, row.note).trim_end()),
                row.hours,
                row.unit_price,
                row.amount,
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_in_html_is_escaped() {
        assert_eq!(
            escaped("<script>alert('\"&')</script>"),
            "&lt;script&gt;alert(&#39;&quot;&amp;&#39;)&lt;/script&gt;"
        );
        // The style sheet cannot close its element.
        assert!(!STYLE.contains('<'));
    }
}
