//! An issued invoice or credit note as an e-invoice: UBL 2.1, semantic model EN 16931. `BT-…` and `BG-…` are its business terms.
//!
//! It is rendered in pieces, because it may have 100,000 lines. The caller has seen to it that nothing is [`missing`].

use jiff::{SignedDuration, Timestamp, tz::TimeZone};

use super::escaped;
use crate::invoice::Total;
use resources::{
    Invoice, InvoiceLine,
    invoice::{Credit, Party},
    money::Cents,
};

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
fn is_country(code: &str) -> bool {
    COUNTRIES.split(' ').any(|country| country == code)
}

/// Whether a VAT identifier has its country in front: Greece's is EL, Northern Ireland's XI.
fn is_vat_id(id: &str) -> bool {
    let country = id.get(..2).unwrap_or_default();
    id.trim().len() > 2 && (is_country(country) || ["EL", "XI"].contains(&country))
}

/// What EN 16931 requires and the invoice lacks, such as `buyer.country`, or has in a form that the standard does not know. A buyer may
/// have no VAT identifier.
pub fn missing(invoice: &Invoice) -> Vec<&'static str> {
    let (seller, buyer) = parties(invoice);
    let is_there = |text: &str| !text.trim().is_empty();
    [
        ("seller.name", is_there(&seller.name)),
        (
            "seller.country",
            seller.country.as_deref().is_some_and(is_country),
        ),
        ("seller.vatId", seller.vat_id.as_deref().is_some_and(is_vat_id)),
        ("buyer.name", is_there(&buyer.name)),
        ("buyer.country", buyer.country.as_deref().is_some_and(is_country)),
        ("buyer.vatId", buyer.vat_id.as_deref().is_none_or(is_vat_id)),
    ]
    .into_iter()
    .filter_map(|(field, is_there)| (!is_there).then_some(field))
    .collect()
}

/// The document up to its lines.
pub(super) fn head(invoice: &Invoice) -> String {
    let (status, credit) = (invoice.content(), invoice.spec.credit.as_ref());
    let (seller, buyer) = parties(invoice);
    let (currency, total) = (&invoice.spec.currency, Total::of(invoice));
    let root = root(invoice);
    // With tax, there is no reason for having none, so what is said about it is a note.
    let (reason, note) = match category(invoice) {
        "S" => (None, status.tax_note.as_deref()),
        _ => (status.tax_note.as_deref(), None),
    };
    let (code, due_date) = match credit {
        Some(_) => ("381", None),
        None => ("380", status.due_date.as_deref()),
    };
    let issued_on = status.issued_at.map(day).unwrap_or_default();
    let period = invoice.spec.period;
    // The last day is the one of the last moment.
    let last = period.to.checked_sub(SignedDuration::from_nanos(1));
    let last = last.unwrap_or(period.to);
    let subtotal = [
        amount("TaxableAmount", total.net, currency),
        amount("TaxAmount", total.tax, currency),
        tax_category("TaxCategory", invoice, reason),
    ];
    let taxes = amount("TaxAmount", total.tax, currency) + &group("TaxSubtotal", &subtotal.concat());
    let totals = [
        amount("LineExtensionAmount", total.net, currency),
        amount("TaxExclusiveAmount", total.net, currency),
        amount("TaxInclusiveAmount", total.amount, currency),
        amount("PayableAmount", total.amount, currency),
    ];
    let (corrects, terms) = credit
        .map(|credit| corrected(invoice, credit))
        .unwrap_or_default();
    let of_credit = credit.map(|credit| {
        let description = format!("Credit for invoice {}", credit.number);
        // A document has at least one line.
        line(invoice, 1, "", &credit.reason, &description, total.net)
    });
    [
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{root} xmlns=\"urn:oasis:names:specification:ubl:schema:xsd:{root}-2\" \
xmlns:cac=\"urn:oasis:names:specification:ubl:schema:xsd:CommonAggregateComponents-2\" \
xmlns:cbc=\"urn:oasis:names:specification:ubl:schema:xsd:CommonBasicComponents-2\">\n"
        ),
        // BT-24.
        element("CustomizationID", "urn:cen.eu:en16931:2017"),
        // BT-1 and 2.
        element("ID", invoice.number().unwrap_or_default()),
        element("IssueDate", &issued_on),
        // BT-9. Of a credit note nothing is to be paid.
        optional("DueDate", due_date),
        // BT-3.
        element(&format!("{root}TypeCode"), code),
        // BT-22.
        optional("Note", credit.map(|credit| credit.reason.as_str())),
        optional("Note", note),
        // BT-5 and 10.
        element("DocumentCurrencyCode", currency),
        optional("BuyerReference", buyer.reference.as_deref()),
        // BT-73 and 74.
        group(
            "InvoicePeriod",
            &(element("StartDate", &day(period.from)) + &element("EndDate", &day(last))),
        ),
        corrects,
        group("AccountingSupplierParty", &party(&seller)),
        group("AccountingCustomerParty", &party(&buyer)),
        terms,
        // BT-110 and 116 to 120.
        group("TaxTotal", &taxes),
        // BT-106, 109, 112 and 115.
        group("LegalMonetaryTotal", &totals.concat()),
        of_credit.unwrap_or_default(),
    ]
    .concat()
}

/// Some lines, of which the first has this number.
pub(super) fn lines(invoice: &Invoice, first: usize, lines: &[InvoiceLine]) -> String {
    let lines = lines.iter().zip(first..).map(|(billed, number)| {
        let (id, name, net) = (&billed.instance_id, &billed.name, Cents(billed.amount_cents));
        line(invoice, number, id, name, &description(billed), net)
    });
    lines.collect()
}

/// The document after its lines.
pub(super) fn foot(invoice: &Invoice) -> String {
    format!("</{}>\n", root(invoice))
}

fn root(invoice: &Invoice) -> &'static str {
    if invoice.is_invoice() {
        "Invoice"
    } else {
        "CreditNote"
    }
}

fn day(moment: Timestamp) -> String {
    moment.to_zoned(TimeZone::UTC).date().to_string()
}

/// The seller (BG-4) and the buyer (BG-7).
fn parties(invoice: &Invoice) -> (Party, Party) {
    let status = invoice.content();
    let (seller, buyer) = (status.seller.clone(), status.buyer.clone());
    (seller.unwrap_or_default(), buyer.unwrap_or_default())
}

/// A line (BG-25) with its number in the document (BT-126): a quantity of one, at a price that is its net amount (BT-131 and 146).
fn line(invoice: &Invoice, number: usize, id: &str, name: &str, description: &str, net: Cents) -> String {
    let (root, currency) = (root(invoice), &invoice.spec.currency);
    let quantity = match root {
        "CreditNote" => "CreditedQuantity",
        _ => "InvoicedQuantity",
    };
    let item = [
        // BT-154, 153 and 155.
        element("Description", description),
        element("Name", if name.trim().is_empty() { id } else { name }),
        group("SellersItemIdentification", &element("ID", id)),
        tax_category("ClassifiedTaxCategory", invoice, None),
    ];
    let parts = [
        element("ID", &number.to_string()),
        // C62 is one, of anything.
        with(quantity, "unitCode", "C62", "1"),
        amount("LineExtensionAmount", net, currency),
        group("Item", &item.concat()),
        group("Price", &amount("PriceAmount", net, currency)),
    ];
    group(&format!("{root}Line"), &parts.concat())
}

/// The rows of a line, such as `starter: 720 × 0.00745 = 5.36400; reduction: -0.36400`.
fn description(line: &InvoiceLine) -> String {
    let rows = line.rows().into_iter().map(|row| {
        if row.hours.is_empty() {
            format!("{} {}: {}", row.plan, row.note, row.amount)
        } else {
            format!(
                "{}: {} × {} = {}",
                row.plan, row.hours, row.unit_price, row.amount
            )
        }
    });
    rows.collect::<Vec<_>>().join("; ")
}

/// Which invoice a credit note corrects (BG-3), and terms of payment (BT-20), which validators of 2025 and before want in any document.
fn corrected(note: &Invoice, credit: &Credit) -> (String, String) {
    let issued_on = note.content().corrected_on.as_deref();
    let reference = element("ID", &credit.number) + &optional("IssueDate", issued_on);
    let terms = element("Note", &format!("Credit for invoice {}", credit.number));
    (
        group("BillingReference", &group("InvoiceDocumentReference", &reference)),
        group("PaymentTerms", &terms),
    )
}

/// The code of the VAT category, BT-118: standard rate, zero rate, reverse charge, or exempt.
fn category(invoice: &Invoice) -> &'static str {
    let (status, (seller, buyer)) = (invoice.content(), parties(invoice));
    let have_vat_ids = seller.vat_id.is_some() && buyer.vat_id.is_some();
    if status.tax_rate().contains(|c| matches!(c, '1'..='9')) {
        "S"
    } else if status.tax_note.as_ref().is_none_or(|note| note.trim().is_empty()) {
        "Z"
    } else if have_vat_ids && seller.country != buyer.country {
        "AE"
    } else {
        "E"
    }
}

/// The VAT category of the document (BG-23) or a line (BG-30).
fn tax_category(name: &str, invoice: &Invoice, reason: Option<&str>) -> String {
    let parts = [
        element("ID", category(invoice)),
        element("Percent", invoice.content().tax_rate()),
        optional("TaxExemptionReason", reason),
        group("TaxScheme", &element("ID", "VAT")),
    ];
    group(name, &parts.concat())
}

fn party(party: &Party) -> String {
    let mut lines = party.address.iter().map(String::as_str);
    let address = [
        // BT-35, 36 and 162 or BT-50, 51 and 163.
        optional("StreetName", lines.next()),
        optional("AdditionalStreetName", lines.next()),
        // The standard has one line more.
        group(
            "AddressLine",
            &element("Line", &lines.collect::<Vec<_>>().join(", ")),
        ),
        group(
            "Country",
            &optional("IdentificationCode", party.country.as_deref()),
        ),
    ];
    let vat = party.vat_id.as_ref();
    let vat = vat.map(|id| element("CompanyID", id) + &group("TaxScheme", &element("ID", "VAT")));
    let email = party.email.as_deref();
    let content = [
        // Where it receives e-invoices, BT-34 or 49; EM is an e-mail address.
        with("EndpointID", "schemeID", "EM", email.unwrap_or_default()),
        group("PostalAddress", &address.concat()),
        group("PartyTaxScheme", &vat.unwrap_or_default()),
        group("PartyLegalEntity", &element("RegistrationName", &party.name)),
        group("Contact", &optional("ElectronicMail", email)),
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

fn amount(name: &str, amount: Cents, currency: &str) -> String {
    with(name, "currencyID", currency, &amount.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn party(country: &str, vat_id: Option<&str>) -> Party {
        Party {
            name: "A & B".to_owned(),
            country: Some(country.to_owned()),
            vat_id: vat_id.map(str::to_owned),
            ..Party::default()
        }
    }

    fn invoice(tax_rate: &str, tax_note: Option<&str>) -> Invoice {
        serde_json::from_value(json!({
            "metadata": { "name": "inv-a" },
            "spec": { "account": "u", "accountName": "ada", "accountNamespace": "ada", "currency": "EUR",
                "period": { "from": "2026-10-01T00:00:00Z", "to": "2026-11-01T00:00:00Z" } },
            "status": {
                "phase": "Issued", "number": "2026-000001", "issuedAt": "2026-11-01T00:00:05Z", "dueDate": "2026-11-15",
                "netCents": 1500, "taxCents": 285, "taxRate": tax_rate, "taxNote": tax_note,
                "seller": party("DE", Some("DE123456789")), "buyer": party("AT", Some("ATU12345678")),
            },
        }))
        .unwrap()
    }

    fn with_buyer(mut invoice: Invoice, buyer: Party) -> Invoice {
        invoice.status.as_mut().unwrap().buyer = Some(buyer);
        invoice
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
            assert_eq!(category(&invoice(rate, note)), expected);
        }
        for buyer in [party("AT", None), party("DE", Some("DE987654321"))] {
            assert_eq!(category(&with_buyer(invoice("0.00", Some("Exempt")), buyer)), "E");
        }
    }

    #[test]
    fn what_is_missing_or_unknown_is_named() {
        assert!(missing(&invoice("19.00", None)).is_empty());
        let mut invoice = with_buyer(invoice("19.00", None), party("AT", None));
        assert!(missing(&invoice).is_empty());
        invoice.status.as_mut().unwrap().seller = Some(party("DE", None));
        let nameless = Party {
            name: " ".to_owned(),
            ..party("UK", Some("12345"))
        };
        let expected = ["seller.vatId", "buyer.name", "buyer.country", "buyer.vatId"];
        assert_eq!(missing(&with_buyer(invoice, nameless)), expected);
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
        let buyer = Party {
            email: Some(String::new()),
            reference: Some(" ".to_owned()),
            ..party("AT", None)
        };
        let invoice = with_buyer(invoice("19.00", None), buyer);
        let text = head(&invoice) + &line(&invoice, 1, "ins_1", "", "", Cents(5)) + &foot(&invoice);
        for absent in ["Note", "Contact", "EndpointID", "Description", "BuyerReference"] {
            assert!(!text.contains(absent), "{absent}");
        }
        assert!(text.contains("<cbc:Name>ins_1</cbc:Name>"));
        assert!(text.contains("PriceAmount currencyID=\"EUR\">0.05<"));
        assert!(text.contains("PayableAmount currencyID=\"EUR\">17.85<"));
    }
}
