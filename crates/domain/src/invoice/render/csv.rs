//! An invoice as CSV (RFC 4180): one row for each plan and price of each line, and one for its reduction, if it has one. Each row has
//! its own amount, exactly; those of a line add up to what is to be paid for it, rounded half up to cents.

use std::fmt::Write as _;

use resources::{Invoice, InvoiceLine, invoice_page::LineRow, money::Cents};

const HEAD: &str =
    "number,period_from,period_to,instance_id,name,plan,hours,unit_price,amount,currency,tax_rate\r\n";

/// The first row; of a credit note, also the row of what it takes back, without tax, which is negative, so that
/// rows of several documents add up.
pub(super) fn head(invoice: &Invoice) -> String {
    let mut text = HEAD.to_owned();
    if let Some(credit) = &invoice.spec.credit {
        let of_credit = LineRow {
            plan: "credit_note",
            note: String::new(),
            hours: String::new(),
            unit_price: String::new(),
            amount: format!("-{}", Cents(invoice.content().net_cents)),
        };
        row(&mut text, invoice, "", &credit.reason, &of_credit);
    }
    text
}

/// The rows of some lines.
pub(super) fn rows(invoice: &Invoice, lines: &[InvoiceLine]) -> String {
    let mut text = String::new();
    for line in lines {
        for of_line in line.rows() {
            row(&mut text, invoice, &line.instance_id, &line.name, &of_line);
        }
    }
    text
}

fn row(text: &mut String, invoice: &Invoice, instance_id: &str, name: &str, row: &LineRow<'_>) {
    let period = invoice.spec.period;
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "{},{},{},{},{},{},{},{},{},{},{}\r\n",
        field(invoice.number().unwrap_or_default()),
        period.from,
        period.to,
        field(instance_id),
        field(name),
        field(row.plan),
        row.hours,
        row.unit_price,
        row.amount,
        field(&invoice.spec.currency),
        invoice.content().tax_rate(),
    );
}

/// Quotes a text as a field. Spreadsheets treat a text that begins with certain characters as a formula, so those get an apostrophe in
/// front; names of instances and backups never begin with one.
fn field(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    let text = if is_formula {
        format!("'{text}")
    } else {
        text.to_owned()
    };
    if text.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_quoted_where_needed_and_never_a_formula() {
        for (text, expected) in [
            ("web-1", "web-1"),
            ("=1+1", "'=1+1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("-2", "'-2"),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("=a,b", "\"'=a,b\""),
            ("two\nlines", "\"two\nlines\""),
        ] {
            assert_eq!(field(text), expected);
        }
    }
}
