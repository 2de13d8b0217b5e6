//! An invoice as CSV (RFC 4180): one row for each plan and price of each line, and one for its reduction, if it has one. Each row has
//! its own amount, exactly; those of a line add up to what is to be paid for it, rounded half up to cents.

use std::fmt::Write as _;

use crate::service::invoices::OpenedInvoice;
use resources::InvoiceLine;

/// The first row.
pub(super) const HEAD: &str =
    "number,period_from,period_to,instance_id,name,plan,hours,unit_price,amount,currency,tax_rate\r\n";

/// The rows of some lines.
pub(super) fn rows(opened: &OpenedInvoice, lines: &[InvoiceLine]) -> String {
    let status = opened
        .invoice
        .as_ref()
        .and_then(|invoice| invoice.status.as_ref());
    let number = status
        .and_then(|status| status.number.as_deref())
        .unwrap_or_default();
    let tax_rate = opened.tax_rate();
    let mut text = String::new();
    for line in lines {
        for row in line.rows() {
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "{},{},{},{},{},{},{},{},{},{},{tax_rate}\r\n",
                field(number),
                opened.period.from,
                opened.period.to,
                field(&line.instance_id),
                field(&line.name),
                field(row.plan),
                row.hours,
                row.unit_price,
                row.amount,
                field(&opened.currency),
            );
        }
    }
    text
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
