//! Invoices and credit notes as documents, in pieces, because an invoice may have 100,000 lines: `head`, `lines` for some lines at a time,
//! and `foot`.
//!
//! - [`csv`]: a table; [`html`]: a page to print;
//! - [`ubl`]: an e-invoice;
//! - [`json`]: what `/v1` shows.

pub mod csv;
pub mod html;
pub mod json;
pub mod ubl;

use super::Total;
use resources::{Invoice, InvoiceLine};

/// The form of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A table, RFC 4180.
    Csv,
    /// A page to print.
    Html,
    /// An e-invoice: UBL 2.1, EN 16931.
    Ubl,
}

impl Form {
    /// The media type of a document of this form.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Csv => "text/csv; charset=utf-8; header=present",
            Self::Html => "text/html; charset=utf-8",
            Self::Ubl => "application/xml; charset=utf-8",
        }
    }

    /// The document up to its lines.
    pub fn head(self, invoice: &Invoice) -> String {
        match self {
            Self::Csv => csv::head(invoice),
            Self::Html => html::head(invoice),
            Self::Ubl => ubl::head(invoice),
        }
    }

    /// Some lines, of which the first has this number, counted from 1.
    pub fn lines(self, invoice: &Invoice, first: usize, lines: &[InvoiceLine]) -> String {
        match self {
            Self::Csv => csv::rows(invoice, lines),
            Self::Html => html::rows(lines),
            Self::Ubl => ubl::lines(invoice, first, lines),
        }
    }

    /// The document after its lines, which come to `total`.
    pub fn foot(self, invoice: &Invoice, total: Total) -> String {
        match self {
            Self::Csv => String::new(),
            Self::Html => html::foot(invoice, total),
            Self::Ubl => ubl::foot(invoice),
        }
    }
}

/// Escapes a text for HTML or XML, in an element or a quoted attribute, and replaces each character that XML 1.0 does not allow.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            // A reader would turn it into a line feed.
            '\r' => escaped.push_str("&#13;"),
            '\t' | '\n' | ' '..='\u{FFFD}' | '\u{10000}'.. => escaped.push(c),
            _ => escaped.push(char::REPLACEMENT_CHARACTER),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_have_no_characters_that_xml_forbids() {
        let text = escaped("<a b='\"'>&amp;\t\n");
        assert_eq!(text, "&lt;a b=&apos;&quot;&apos;&gt;&amp;amp;\t\n");
        let text = escaped("\0a\u{b}\u{1b}\u{fffe}\u{ffff}\r🦀\u{10ffff}é");
        assert_eq!(
            text,
            "\u{fffd}a\u{fffd}\u{fffd}\u{fffd}\u{fffd}&#13;🦀\u{10ffff}é"
        );
    }
}
