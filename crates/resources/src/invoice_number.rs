//! `InvoiceNumber`: a number that was given to an invoice or a credit note.
//!
//! Taking a number is creating the object of that name, which says whose it is: the API server, where a name exists once, is the only
//! arbiter. It is cluster-scoped, so that it outlives every namespace, and never changed or deleted, so that no number is given twice.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// Label of a number and of its Invoice: its row, such as `2026`, in which it has no gaps.
pub const ROW_LABEL: &str = "stellage.dev/row";
/// Label of an issued Invoice: its number.
pub const NUMBER_LABEL: &str = "stellage.dev/number";
/// Annotation of a number whose invoice was deleted at the end of the retention: when.
pub const DELETED_ANNOTATION: &str = "stellage.dev/invoice-deleted";

/// Whose the number is.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[kube(
    group = "stellage.dev",
    version = "v1",
    kind = "InvoiceNumber",
    plural = "invoicenumbers",
    shortname = "invno",
    category = "stellage",
    derive = "PartialEq",
    doc = "A number that was given to an invoice or a credit note, without gaps in its year. Created by the operator alone; never changed or deleted, so that no number is given twice. A number whose invoice is missing is told by stellage doctor",
    printcolumn(name = "Number", type_ = "string", json_path = ".spec.number"),
    printcolumn(name = "Invoice", type_ = "string", json_path = ".spec.invoice"),
    printcolumn(name = "Account", type_ = "string", json_path = ".spec.accountName"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct InvoiceNumberSpec {
    /// The number, such as 2026-000001; the name of the object is the same in lower case.
    #[schemars(length(max = 64))]
    pub number: String,
    /// Name of the Invoice.
    #[schemars(length(max = 63))]
    pub invoice: String,
    /// Origin of the Account: the UID that it was created with.
    #[schemars(length(max = 64))]
    pub account: String,
    /// Name of the Account.
    #[schemars(length(max = 63))]
    pub account_name: String,
}

/// The row of the numbers of a year: the prefix of the installation and the year.
pub fn row(prefix: &str, year: i16) -> String {
    format!("{prefix}{year:04}")
}

/// The number with this sequence number in a row.
pub fn number(row: &str, sequence: u64) -> String {
    format!("{row}-{sequence:06}")
}

/// The row of a number.
pub fn row_of(number: &str) -> &str {
    number.rsplit_once('-').map_or(number, |(row, _)| row)
}

/// The name of the object of a number.
pub fn object_name(number: &str) -> String {
    number.to_lowercase()
}

/// The sequence number of a number of this row; `None` if it is of another one.
pub fn sequence(row: &str, number: &str) -> Option<u64> {
    number.strip_prefix(row)?.strip_prefix('-')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_of_one_row_and_has_a_sequence_number_of_six_digits_or_more() {
        let row = row("RE", 2026);
        assert_eq!(number(&row, 42), "RE2026-000042");
        assert_eq!(number(&row, 1_234_567), "RE2026-1234567");
        assert_eq!(object_name("RE2026-000042"), "re2026-000042");
        assert_eq!(row_of("RE-2026-000042"), "RE-2026");
        assert_eq!(sequence(&row, "RE2026-000042"), Some(42));
        assert_eq!(sequence("2026", "RE2026-000042"), None);
        assert_eq!(sequence("2026", "2027-000001"), None);
    }
}
