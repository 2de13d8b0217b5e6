//! An issued invoice or credit note as an e-invoice: UBL 2.1, semantic model EN 16931. `BT-…` and `BG-…` are its business terms.
//!
//! It is rendered in pieces, because it may have 100,000 lines: [`head`], [`line`](fn@line) for each line, and [`foot`]. The caller has
//! seen to it that nothing is [`missing`].

/// What an e-invoice says.
pub struct Document<'a> {
    /// BT-1.
    pub number: &'a str,
    /// What a credit note corrects; an invoice corrects nothing.
    pub corrects: Option<Corrected<'a>>,
    /// BT-2, such as 2026-11-01, as all days here.
    pub issued_on: &'a str,
    /// BT-9. A credit note does not show it, since nothing is to be paid.
    pub due_date: &'a str,
    /// First and last day, BT-73 and BT-74.
    pub period: (&'a str, &'a str),
    /// BT-5, as an ISO 4217 code.
    pub currency: &'a str,
    pub seller: Party<'a>,
    pub buyer: Party<'a>,
    /// The buyer's reference, BT-10.
    pub reference: Option<&'a str>,
    /// A note for the reader, BT-22; in a credit note its reason.
    pub note: Option<&'a str>,
    /// The sum of the lines in cents, BT-106.
    pub net: u64,
    /// The tax on it in cents, BT-110.
    pub tax: u64,
    /// In percent, such as 19.00, BT-119.
    pub tax_rate: &'a str,
    /// Why there is no tax, BT-120.
    pub tax_note: Option<&'a str>,
}

/// The invoice that a credit note corrects, BG-3.
pub struct Corrected<'a> {
    /// BT-25.
    pub number: &'a str,
    /// BT-26.
    pub issued_on: &'a str,
}

/// The seller (BG-4) or the buyer (BG-7).
pub struct Party<'a> {
    /// BT-27 or BT-44.
    pub name: &'a str,
    /// Lines of the address without the country, BT-35, 36 and 162 or BT-50, 51 and 163.
    pub address: &'a [String],
    /// ISO 3166-1 alpha-2, BT-40 or BT-55.
    pub country: Option<&'a str>,
    /// With the country in front, BT-31 or BT-48.
    pub vat_id: Option<&'a str>,
    /// Where it receives e-invoices and questions about them, BT-34 and 43 or BT-49 and 58.
    pub email: Option<&'a str>,
}

/// A line, BG-25: a quantity of one, at a price that is its net amount.
pub struct Line<'a> {
    /// The seller's id of what is billed, BT-155.
    pub id: &'a str,
    /// BT-153; the id if it is empty.
    pub name: &'a str,
    /// BT-154.
    pub description: &'a str,
    /// In cents, BT-131 and BT-146.
    pub net: u64,
}

/// The countries of ISO 3166-1 alpha-2.
const COUNTRIES: &str = "\
AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT BV BW BY \
BZ CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET FI FJ FK \
FM FO FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR \
IS IT JE JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME MF MG MH MK \
ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM \
PN PR PS PT PW PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF \
TG TH TJ TK TL TM TN TO TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS YE YT ZA ZM ZW";

/// Whether there is such a country: GB, but not UK.
pub fn is_country(code: &str) -> bool {
    COUNTRIES.split(' ').any(|country| country == code)
}

/// Whether a VAT identifier has its country in front: Greece's is EL, Northern Ireland's XI.
pub fn is_vat_id(id: &str) -> bool {
    let country = id.get(..2).unwrap_or_default();
    id.trim().len() > 2 && (is_country(country) || ["EL", "XI"].contains(&country))
}

/// What EN 16931 requires and the document lacks, or has in a form that the standard does not know. A buyer may have no VAT
/// identifier.
pub fn missing(document: &Document) -> Vec<&'static str> {
    let Document { seller, buyer, .. } = document;
    let is_there = |text: &str| !text.trim().is_empty();
    [
        ("seller.name", is_there(seller.name)),
        ("seller.country", seller.country.is_some_and(is_country)),
        ("seller.vatId", seller.vat_id.is_some_and(is_vat_id)),
        ("buyer.name", is_there(buyer.name)),
        ("buyer.country", buyer.country.is_some_and(is_country)),
        ("buyer.vatId", buyer.vat_id.is_none_or(is_vat_id)),
    ]
    .into_iter()
    .filter_map(|(field, is_there)| (!is_there).then_some(field))
    .collect()
}

/// The document up to its lines.
pub fn head(document: &Document) -> String {
    let (currency, net, tax) = (document.currency, document.net, document.tax);
    let root = root(document);
    // With tax, there is no reason for having none, so what is said about it is a note.
    let (reason, note) = match category(document) {
        "S" => (None, document.tax_note),
        _ => (document.tax_note, None),
    };
    let (code, due_date) = match document.corrects {
        Some(_) => ("381", None),
        None => ("380", Some(document.due_date)),
    };
    let (corrects, terms) = document.corrects.as_ref().map(corrected).unwrap_or_default();
    let period = element("StartDate", document.period.0) + &element("EndDate", document.period.1);
    let subtotal = [
        amount("TaxableAmount", net, currency),
        amount("TaxAmount", tax, currency),
        tax_category("TaxCategory", document, reason),
    ];
    let taxes = amount("TaxAmount", tax, currency) + &group("TaxSubtotal", &subtotal.concat());
    let gross = net.saturating_add(tax);
    let total = [
        amount("LineExtensionAmount", net, currency),
        amount("TaxExclusiveAmount", net, currency),
        amount("TaxInclusiveAmount", gross, currency),
        amount("PayableAmount", gross, currency),
    ];
    [
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{root} xmlns=\"urn:oasis:names:specification:ubl:schema:xsd:{root}-2\" \
xmlns:cac=\"urn:oasis:names:specification:ubl:schema:xsd:CommonAggregateComponents-2\" \
xmlns:cbc=\"urn:oasis:names:specification:ubl:schema:xsd:CommonBasicComponents-2\">\n"
        ),
        // BT-24.
        element("CustomizationID", "urn:cen.eu:en16931:2017"),
        element("ID", document.number),
        element("IssueDate", document.issued_on),
        optional("DueDate", due_date),
        // BT-3.
        element(&format!("{root}TypeCode"), code),
        optional("Note", document.note),
        optional("Note", note),
        element("DocumentCurrencyCode", currency),
        optional("BuyerReference", document.reference),
        group("InvoicePeriod", &period),
        corrects,
        group("AccountingSupplierParty", &party(&document.seller)),
        group("AccountingCustomerParty", &party(&document.buyer)),
        terms,
        group("TaxTotal", &taxes),
        group("LegalMonetaryTotal", &total.concat()),
    ]
    .concat()
}

/// A line with its number in the document, BT-126.
pub fn line(document: &Document, number: usize, line: &Line) -> String {
    let root = root(document);
    let quantity = match root {
        "CreditNote" => "CreditedQuantity",
        _ => "InvoicedQuantity",
    };
    let name = Some(line.name).filter(|name| !name.trim().is_empty());
    let item = [
        element("Description", line.description),
        element("Name", name.unwrap_or(line.id)),
        group("SellersItemIdentification", &element("ID", line.id)),
        tax_category("ClassifiedTaxCategory", document, None),
    ];
    let parts = [
        element("ID", &number.to_string()),
        // C62 is one, of anything.
        with(quantity, "unitCode", "C62", "1"),
        amount("LineExtensionAmount", line.net, document.currency),
        group("Item", &item.concat()),
        group("Price", &amount("PriceAmount", line.net, document.currency)),
    ];
    group(&format!("{root}Line"), &parts.concat())
}

/// The document after its lines.
pub fn foot(document: &Document) -> String {
    format!("</{}>\n", root(document))
}

fn root(document: &Document) -> &'static str {
    match document.corrects {
        Some(_) => "CreditNote",
        None => "Invoice",
    }
}

/// Which invoice a credit note corrects (BG-3), and terms of payment (BT-20), which validators of 2025 and before want in any document.
fn corrected(Corrected { number, issued_on }: &Corrected) -> (String, String) {
    let reference = element("ID", number) + &element("IssueDate", issued_on);
    let terms = element("Note", &format!("Credit for invoice {number}"));
    (
        group("BillingReference", &group("InvoiceDocumentReference", &reference)),
        group("PaymentTerms", &terms),
    )
}

/// The code of the VAT category, BT-118: standard rate, zero rate, reverse charge, or exempt.
fn category(document: &Document) -> &'static str {
    let Document { seller, buyer, .. } = document;
    let have_vat_ids = seller.vat_id.is_some() && buyer.vat_id.is_some();
    if document.tax_rate.contains(|c| matches!(c, '1'..='9')) {
        "S"
    } else if document.tax_note.is_none_or(|note| note.trim().is_empty()) {
        "Z"
    } else if have_vat_ids && seller.country != buyer.country {
        "AE"
    } else {
        "E"
    }
}

/// The VAT category of the document (BG-23) or a line (BG-30).
fn tax_category(name: &str, document: &Document, reason: Option<&str>) -> String {
    let parts = [
        element("ID", category(document)),
        element("Percent", document.tax_rate),
        optional("TaxExemptionReason", reason),
        group("TaxScheme", &element("ID", "VAT")),
    ];
    group(name, &parts.concat())
}

fn party(party: &Party) -> String {
    let mut lines = party.address.iter().map(String::as_str);
    let address = [
        optional("StreetName", lines.next()),
        optional("AdditionalStreetName", lines.next()),
        // The standard has one line more.
        group(
            "AddressLine",
            &element("Line", &lines.collect::<Vec<_>>().join(", ")),
        ),
        group("Country", &optional("IdentificationCode", party.country)),
    ];
    let vat = party
        .vat_id
        .map(|id| element("CompanyID", id) + &group("TaxScheme", &element("ID", "VAT")));
    let content = [
        // EM is an e-mail address.
        with("EndpointID", "schemeID", "EM", party.email.unwrap_or_default()),
        group("PostalAddress", &address.concat()),
        group("PartyTaxScheme", &vat.unwrap_or_default()),
        group("PartyLegalEntity", &element("RegistrationName", party.name)),
        group("Contact", &optional("ElectronicMail", party.email)),
    ];
    group("Party", &content.concat())
}

/// An element that contains others. The standard has no empty ones, so without any it is left out, like one with a blank text.
fn group(name: &str, content: &str) -> String {
    if content.is_empty() {
        return String::new();
    }
    format!("<cac:{name}>\n{content}</cac:{name}>\n")
}

/// An element with a text.
fn element(name: &str, text: &str) -> String {
    if text.trim().is_empty() {
        return String::new();
    }
    format!("<cbc:{name}>{}</cbc:{name}>\n", escaped(text))
}

fn optional(name: &str, text: Option<&str>) -> String {
    element(name, text.unwrap_or_default())
}

/// An element with an attribute and a text.
fn with(name: &str, attribute: &str, value: &str, text: &str) -> String {
    if text.trim().is_empty() {
        return String::new();
    }
    let (value, text) = (escaped(value), escaped(text));
    format!("<cbc:{name} {attribute}=\"{value}\">{text}</cbc:{name}>\n")
}

fn amount(name: &str, cents: u64, currency: &str) -> String {
    with(
        name,
        "currencyID",
        currency,
        &format!("{}.{:02}", cents / 100, cents % 100),
    )
}

/// Escapes a text for an element or a quoted attribute, and replaces each character that XML 1.0 does not allow.
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

    fn party(country: &'static str, vat_id: Option<&'static str>) -> Party<'static> {
        Party {
            name: "A & B",
            address: &[],
            country: Some(country),
            vat_id,
            email: None,
        }
    }

    fn document(tax_rate: &'static str, tax_note: Option<&'static str>) -> Document<'static> {
        Document {
            number: "2026-000001",
            corrects: None,
            issued_on: "2026-11-01",
            due_date: "2026-11-15",
            period: ("2026-10-01", "2026-10-31"),
            currency: "EUR",
            seller: party("DE", Some("DE123456789")),
            buyer: party("AT", Some("ATU12345678")),
            reference: None,
            note: None,
            net: 1_500,
            tax: 285,
            tax_rate,
            tax_note,
        }
    }

    #[test]
    fn texts_are_escaped_and_have_no_characters_that_xml_forbids() {
        let text = escaped("<a b='\"'>&amp;\t\n");
        assert_eq!(text, "&lt;a b=&apos;&quot;&apos;&gt;&amp;amp;\t\n");
        let text = escaped("\0a\u{b}\u{1b}\u{fffe}\u{ffff}\r🦀\u{10ffff}é");
        assert_eq!(text, "�a����&#13;🦀\u{10ffff}é");
    }

    #[test]
    fn the_category_of_the_tax_follows_from_rate_note_and_parties() {
        for (rate, note, expected) in [
            ("19.00", None, "S"),
            ("0.50", Some("Reduced"), "S"),
            ("0.00", None, "Z"),
            ("0.00", Some(" "), "Z"),
            ("0.00", Some("Reverse charge"), "AE"),
        ] {
            assert_eq!(category(&document(rate, note)), expected);
        }
        for buyer in [party("AT", None), party("DE", Some("DE987654321"))] {
            let mut document = document("0.00", Some("Exempt"));
            document.buyer = buyer;
            assert_eq!(category(&document), "E");
        }
    }

    #[test]
    fn what_is_missing_or_unknown_is_named() {
        let mut document = document("19.00", None);
        assert!(missing(&document).is_empty());
        document.buyer = party("AT", None);
        assert!(missing(&document).is_empty());
        document.seller = party("DE", None);
        document.buyer = party("UK", Some("12345"));
        document.buyer.name = " ";
        let expected = ["seller.vatId", "buyer.name", "buyer.country", "buyer.vatId"];
        assert_eq!(missing(&document), expected);
    }

    #[test]
    fn a_vat_identifier_begins_with_a_country() {
        assert!(
            ["DE123", "EL123", "XI123", "CHE-123 MWST"]
                .into_iter()
                .all(is_vat_id)
        );
        assert!(
            !["", "DE", "DE ", "de123", "123", "UK123", "ÄÖ1"]
                .into_iter()
                .any(is_vat_id)
        );
    }

    #[test]
    fn what_is_blank_has_no_element() {
        let mut document = document("19.00", None);
        (document.note, document.buyer.email) = (Some(" "), Some(""));
        let (id, name, description, net) = ("ins_1", "", "", 5);
        let billed = Line {
            id,
            name,
            description,
            net,
        };
        let text = head(&document) + &line(&document, 1, &billed) + &foot(&document);
        for absent in ["Note", "Contact", "EndpointID", "Description"] {
            assert!(!text.contains(absent), "{absent}");
        }
        assert!(text.contains("<cbc:Name>ins_1</cbc:Name>"));
        assert!(text.contains("PriceAmount currencyID=\"EUR\">0.05<"));
        assert!(text.contains("PayableAmount currencyID=\"EUR\">17.85<"));
    }
}
