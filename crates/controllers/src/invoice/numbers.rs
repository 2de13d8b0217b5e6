//! The invoice numbers, without gaps within each row, which is a year's. Taking one is creating the [`InvoiceNumber`] of that name.
//!
//! No invoice gets two, also with two leaders, or if a process dies or an answer is lost: a process knows whose each number before its
//! next one is (it has listed it, created it, or found it taken and read it), creates only the next one, and never passes one by.

use std::collections::HashMap;

use kube::{Api, Client, ResourceExt as _, api::ListParams, core::DeserializeGuard};

use resources::{
    Invoice, InvoiceNumber, InvoiceNumberSpec,
    invoice_number::{NUMBER_LABEL, ROW_LABEL, number, object_name, row, sequence},
    tracking::CONTROLLER_MANAGER,
};
use runtime::client::{CallError, Pages, bounded, written_by};

/// Gives out the invoice numbers.
pub(super) struct InvoiceNumbers {
    client: Client,
    /// The operator's namespace.
    namespace: String,
    prefix: String,
    /// Locked while a number is taken, so that accounts take theirs in turn instead of trying for the same one.
    rows: tokio::sync::Mutex<HashMap<String, Row>>,
}

/// What is known of a row.
#[derive(Default)]
struct Row {
    /// The last sequence number that is taken.
    last: u64,
    /// The numbers of invoices that may not have been issued yet, by name.
    numbers: HashMap<String, String>,
}

impl Row {
    fn taken(&mut self, sequence: u64, number: String, invoice: &str) {
        self.last = self.last.max(sequence);
        self.numbers.insert(invoice.to_owned(), number);
    }
}

impl InvoiceNumbers {
    pub(super) fn new(client: Client, namespace: &str, prefix: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            prefix: prefix.to_owned(),
            rows: tokio::sync::Mutex::default(),
        }
    }

    /// Notes that an invoice is issued, so that its number need not be remembered.
    pub(super) async fn issued(&self, invoice: &str) {
        for row in self.rows.lock().await.values_mut() {
            row.numbers.remove(invoice);
        }
    }

    /// The number of an invoice or a credit note: the one that it has, or the next one of the year. Around the end of a year, an earlier
    /// process may have given it one of the year before.
    pub(super) async fn take(&self, invoice: &Invoice, year: i16) -> Result<String, CallError> {
        let (last, this) = (row(&self.prefix, year - 1), row(&self.prefix, year));
        let mut rows = self.rows.lock().await;
        for name in [&last, &this] {
            if !rows.contains_key(name) {
                rows.insert(name.clone(), self.read(name).await?);
            }
        }
        let known = rows.values().find_map(|row| row.numbers.get(invoice.name()));
        if let Some(number) = known {
            return Ok(number.clone());
        }
        let row = rows.entry(this.clone()).or_default();
        loop {
            let sequence = row.last + 1;
            let next = number(&this, sequence);
            let owner = match self.create(&this, &next, invoice).await {
                Ok(()) => invoice.name().to_owned(),
                Err(error) if error.is_already_exists() => self.owner(&next).await?,
                Err(error) => return Err(error),
            };
            row.taken(sequence, next.clone(), &owner);
            if owner == invoice.name() {
                return Ok(next);
            }
        }
    }

    async fn create(&self, row: &str, number: &str, invoice: &Invoice) -> Result<(), CallError> {
        let spec = InvoiceNumberSpec {
            number: number.to_owned(),
            invoice: invoice.name().to_owned(),
            account: invoice.spec.account.clone(),
            account_name: invoice.spec.account_name.clone(),
        };
        let mut object = InvoiceNumber::new(&object_name(number), spec);
        object.metadata.labels = Some([(ROW_LABEL.to_owned(), row.to_owned())].into());
        let api: Api<InvoiceNumber> = Api::all(self.client.clone());
        bounded(api.create(&written_by(CONTROLLER_MANAGER), &object))
            .await
            .map(drop)
    }

    /// Whose a number is that is taken. Nobody's if it has been deleted meanwhile; it stays taken.
    async fn owner(&self, number: &str) -> Result<String, CallError> {
        let api: Api<InvoiceNumber> = Api::all(self.client.clone());
        let found = bounded(api.get_opt(&object_name(number))).await?;
        Ok(found.map(|number| number.spec.invoice).unwrap_or_default())
    }

    /// The numbers of a row that exist.
    async fn read(&self, name: &str) -> Result<Row, CallError> {
        let mut row = Row::default();
        let params = ListParams::default()
            .limit(500)
            .labels(&format!("{ROW_LABEL}={name}"));
        let mut pages = Pages::of(
            Api::<DeserializeGuard<InvoiceNumber>>::all(self.client.clone()),
            params,
        );
        while let Some(page) = pages.next().await? {
            for object in page.items {
                // The name says what is taken, also of one that does not match its schema.
                let Some(sequence) = sequence(&object_name(name), &object.name_any()) else {
                    continue;
                };
                let owner = object.0.map(|number| number.spec.invoice).unwrap_or_default();
                row.taken(sequence, number(name, sequence), &owner);
            }
        }
        row.last = row.last.max(self.highest(name).await?);
        Ok(row)
    }

    /// The highest sequence number on an issued invoice: some numbers may have been lost, or not have been restored.
    async fn highest(&self, row: &str) -> Result<u64, CallError> {
        let api: Api<Invoice> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut pages = Pages::of(api, ListParams::default().labels(&format!("{ROW_LABEL}={row}")));
        let mut highest = 0;
        while let Some(page) = pages.next_metadata().await? {
            let numbers = page
                .items
                .iter()
                .filter_map(|invoice| invoice.labels().get(NUMBER_LABEL));
            let sequences = numbers.filter_map(|number| sequence(row, number));
            highest = sequences.max().unwrap_or(0).max(highest);
        }
        Ok(highest)
    }
}
