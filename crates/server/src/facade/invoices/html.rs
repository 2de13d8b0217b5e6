//! An invoice as a printable page. It has no scripts and loads nothing, and its Content-Security-Policy allows only its one style
//! sheet.

use std::{fmt::Write as _, sync::LazyLock};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::HeaderValue;
use sha2::{Digest as _, Sha256};

use crate::service::invoices::OpenedInvoice;
use api::Seconds;
use resources::{
    InvoiceLine,
    money::{Cents, TaxRate},
};

const STYLE: &str = "body{font:11pt/1.4 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem;color:#111}\
h1{font-size:1.4rem}h2{font-size:1rem;margin:0;color:#555}header{display:flex;flex-wrap:wrap;justify-content:space-between;gap:1rem 2rem;overflow-wrap:anywhere}\
address{font-style:normal;white-space:pre-line}dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:1.5rem 0}dt{color:#555}dd{margin:0}\
table{border-collapse:collapse;width:100%;margin:1.5rem 0}th,td{padding:.25rem .5rem;text-align:left;border-bottom:1px solid #ccc;overflow-wrap:anywhere}\
.n{text-align:right;font-variant-numeric:tabular-nums}tfoot td{border:0}tfoot tr:last-child td{font-weight:bold}\
thead{display:table-header-group}tr{break-inside:avoid}@page{margin:18mm}@media print{body{margin:0;padding:0;max-width:none}}";

static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let digest = STANDARD.encode(Sha256::digest(STYLE.as_bytes()));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// The Content-Security-Policy of the page.
pub(super) fn policy() -> HeaderValue {
    POLICY.clone()
}

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

/// The address of a party; nothing if there is none.
fn party(heading: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let address = escaped(&lines.join("\n"));
    format!("<section><h2>{heading}</h2><address>{address}</address></section>")
}

/// The page up to the rows of the lines.
pub(super) fn head(opened: &OpenedInvoice) -> String {
    let status = opened.invoice.as_ref().and_then(|invoice| invoice.status.clone());
    let status = status.unwrap_or_default();
    let title = match &status.number {
        Some(number) => format!("Invoice {number}"),
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
    let (from, to) = (Seconds(opened.period.from), Seconds(opened.period.to));
    tell("Period", &format!("{from} to {to} (UTC)"));
    match (status.issued_at, &status.due_date) {
        (Some(issued_at), Some(due)) => {
            tell("Issued", &Seconds(issued_at).to_string());
            tell("Due", due);
        }
        _ => tell("Issued", "not yet: the hours that have begun so far"),
    }
    let account = opened.invoice.as_ref().map(|invoice| &invoice.spec.account_name);
    let mut buyer = if status.buyer.is_empty() {
        account.into_iter().cloned().collect()
    } else {
        status.buyer.clone()
    };
    buyer.extend(status.email);
    let seller = if opened.is_issued() {
        &status.seller
    } else {
        &opened.catalogue().invoices.seller
    };
    let title = escaped(&title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
<title>{title}</title><style>{STYLE}</style></head>\n<body><main><h1>{title}</h1>\n<header>{}{}</header>\n\
<dl>{}</dl>\n<table><thead><tr><th>Instance</th><th>Name</th><th>Plan</th><th class=\"n\">Hours</th><th class=\"n\">Per hour</th>\
<th class=\"n\">Amount</th><th class=\"n\">To pay</th></tr></thead>\n<tbody>\n",
        party("Buyer", &buyer),
        party("Seller", seller),
        about,
    )
}

/// The page after the rows of the lines. The lines add up to `net`.
pub(super) fn foot(opened: &OpenedInvoice, net: Cents) -> String {
    let currency = escaped(&opened.currency);
    let rate = Some(opened.tax_rate()).filter(|rate| *rate != TaxRate::default().to_string());
    let sum = |what: &str, amount: Cents| {
        format!(
            "<tr><td colspan=\"6\" class=\"n\">{what}</td><td class=\"n\">{amount} {currency}</td></tr>\n"
        )
    };
    let total = opened.total(net);
    let tax = rate.map_or_else(String::new, |rate| {
        sum("Net", total.net) + &sum(&format!("Tax, {} %", escaped(&rate)), total.tax)
    });
    format!(
        "</tbody><tfoot>\n{tax}{}</tfoot></table></main></body></html>\n",
        sum("Total", total.amount)
    )
}

/// The rows of some lines.
pub(super) fn rows(_: &OpenedInvoice, lines: &[InvoiceLine]) -> String {
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
                escaped(row.plan),
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
        assert!(policy().to_str().unwrap().contains("style-src 'sha256-"));
        // The style sheet cannot close its element.
        assert!(!STYLE.contains('<'));
    }
}
