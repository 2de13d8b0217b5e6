//! The invoice numbers, without gaps within the installation and each year. A ConfigMap in the operator's namespace hands
//! them out, and lists the invoices that have a number until they are issued. So the next leader gives them the
//! same numbers, even if a process dies between taking a number and issuing.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
    core::DeserializeGuard,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot::{self, error::TryRecvError};

use resources::{Invoice, tracking::CONTROLLER_MANAGER};
use runtime::client::{CallError, Pages, bounded};

/// Name of the ConfigMap.
const NAME: &str = "stellage-invoice-numbers";
/// Its only key.
const ENTRY: &str = "numbers";
/// Maximum number of invoice numbers assigned in one write.
const AT_ONCE: usize = 200;

/// An invoice that needs a number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub(super) struct InvoiceRef {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// The content of the ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
struct Numbers {
    /// The last sequence number of each year.
    last: BTreeMap<i16, u64>,
    /// Numbers whose invoices may not have been issued yet.
    taken: Vec<Taken>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct Taken {
    number: String,
    #[serde(flatten)]
    invoice_ref: InvoiceRef,
}

/// Formats an invoice number.
fn number(year: i16, sequence: u64) -> String {
    format!("{year:04}-{sequence:06}")
}

/// Parses an invoice number into its year and sequence number.
fn parse(number: &str) -> Option<(i16, u64)> {
    let (year, sequence) = number.split_once('-')?;
    Some((year.parse().ok()?, sequence.parse().ok()?))
}

impl Numbers {
    /// The number of an invoice: the one it already has, else one whose invoice no longer exists, else the
    /// next one.
    fn take(&mut self, invoice_ref: &InvoiceRef, year: i16, free: &mut BTreeSet<String>) -> String {
        if let Some(taken) = self.taken.iter().find(|taken| taken.invoice_ref == *invoice_ref) {
            return taken.number.clone();
        }
        let of_year = |number: &&String| parse(number).is_some_and(|(of, _)| of == year);
        let given = if let Some(number) = free.iter().find(of_year).cloned() {
            free.remove(&number);
            self.taken.retain(|taken| taken.number != number);
            number
        } else {
            let last = self.last.entry(year).or_default();
            *last += 1;
            number(year, *last)
        };
        self.taken.push(Taken {
            number: given.clone(),
            invoice_ref: invoice_ref.clone(),
        });
        given
    }
}

/// Assigns invoice numbers.
pub(super) struct InvoiceNumbers {
    client: Client,
    namespace: String,
    /// What is stored; `None` before the first read, and whenever it may have changed.
    stored: tokio::sync::Mutex<Option<Stored>>,
    waiting: Mutex<Vec<(InvoiceRef, oneshot::Sender<String>)>>,
    /// Issued invoices, whose numbers need not be remembered any more.
    issued: Mutex<BTreeSet<InvoiceRef>>,
}

struct Stored {
    object: ConfigMap,
    numbers: Numbers,
    /// Assigned numbers whose invoices no longer exist.
    free: BTreeSet<String>,
}

impl InvoiceNumbers {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            stored: tokio::sync::Mutex::default(),
            waiting: Mutex::default(),
            issued: Mutex::default(),
        }
    }

    fn api(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Notes that an invoice has been issued.
    pub(super) fn issued(&self, invoice_ref: InvoiceRef) {
        self.issued.lock().insert(invoice_ref);
    }

    /// Returns the number of an invoice, which stays the same from then on. All waiting callers get theirs in
    /// one write.
    pub(super) async fn take(&self, invoice_ref: InvoiceRef, year: i16) -> Result<String, CallError> {
        loop {
            let (sender, mut receiver) = oneshot::channel();
            {
                let mut waiting = self.waiting.lock();
                waiting.retain(|(_, sender)| !sender.is_closed());
                waiting.push((invoice_ref.clone(), sender));
            }
            let mut stored = self.stored.lock().await;
            match receiver.try_recv() {
                Ok(number) => return Ok(number),
                // The caller that was going to store it has failed.
                Err(TryRecvError::Closed) => continue,
                Err(TryRecvError::Empty) => {}
            }
            if stored.is_none() {
                *stored = Some(self.read().await?);
            }
            let waiting: Vec<_> = {
                let mut waiting = self.waiting.lock();
                let count = waiting.len().min(AT_ONCE);
                waiting.drain(..count).collect()
            };
            let outcome = self.hand_out(&mut stored, waiting, year).await;
            if outcome.is_err() {
                *stored = None;
            }
            outcome?;
            if let Ok(number) = receiver.try_recv() {
                return Ok(number);
            }
        }
    }

    /// Stores the numbers of all waiting callers, then replies to them. Callers that get no reply retry.
    async fn hand_out(
        &self,
        stored: &mut Option<Stored>,
        waiting: Vec<(InvoiceRef, oneshot::Sender<String>)>,
        year: i16,
    ) -> Result<(), CallError> {
        let Some(stored) = stored else { return Ok(()) };
        let issued = self.issued.lock().clone();
        let mut numbers = stored.numbers.clone();
        let mut free = stored.free.clone();
        numbers.taken.retain(|taken| !issued.contains(&taken.invoice_ref));
        let given: Vec<String> = waiting
            .iter()
            .map(|(invoice_ref, _)| numbers.take(invoice_ref, year, &mut free))
            .collect();
        if numbers != stored.numbers {
            let mut object = stored.object.clone();
            object.data = Some(data(&numbers));
            let params = parameters();
            let written = bounded(self.api().replace(NAME, &params, &object)).await?;
            *stored = Stored {
                object: written,
                numbers,
                free,
            };
            self.issued
                .lock()
                .retain(|invoice_ref| !issued.contains(invoice_ref));
        }
        for ((_, sender), number) in waiting.into_iter().zip(given) {
            // A caller that has given up gets the same number when it asks again.
            let _ = sender.send(number);
        }
        Ok(())
    }

    /// Reads what is stored, and which of the numbered invoices have been issued or no longer exist.
    async fn read(&self) -> Result<Stored, CallError> {
        let object = match bounded(self.api().get_opt(NAME)).await? {
            Some(object) => object,
            None => self.begin().await?,
        };
        let text = object.data.as_ref().and_then(|data| data.get(ENTRY));
        let mut numbers: Numbers = text
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        if text.is_none() || numbers.last.is_empty() {
            numbers.last = self.highest().await?;
        }
        let mut free = BTreeSet::new();
        for taken in &numbers.taken {
            let found = match self
                .invoice(&taken.invoice_ref.namespace, &taken.invoice_ref.name)
                .await?
            {
                // The invoices of a deleted Account have been moved here.
                None => self.invoice(&self.namespace, &taken.invoice_ref.name).await?,
                found => found,
            };
            match found {
                Some(invoice) if invoice.is_issued() => self.issued(taken.invoice_ref.clone()),
                Some(_) => {}
                None => {
                    free.insert(taken.number.clone());
                }
            }
        }
        Ok(Stored {
            object,
            numbers,
            free,
        })
    }

    async fn invoice(&self, namespace: &str, name: &str) -> Result<Option<Invoice>, CallError> {
        let api: Api<Invoice> = Api::namespaced(self.client.clone(), namespace);
        bounded(api.get_opt(name)).await
    }

    async fn begin(&self) -> Result<ConfigMap, CallError> {
        let new = ConfigMap {
            metadata: ObjectMeta {
                name: Some(NAME.to_owned()),
                ..ObjectMeta::default()
            },
            data: Some(data(&Numbers::default())),
            ..ConfigMap::default()
        };
        bounded(self.api().create(&parameters(), &new)).await
    }

    /// The highest sequence number of the issued invoices of each year, in case the ConfigMap has been
    /// deleted.
    async fn highest(&self) -> Result<BTreeMap<i16, u64>, CallError> {
        let api: Api<DeserializeGuard<Invoice>> = Api::all(self.client.clone());
        let mut pages = Pages::of(api, ListParams::default().limit(200));
        let mut last: BTreeMap<i16, u64> = BTreeMap::new();
        while let Some(page) = pages.next().await? {
            let invoices = page.items.into_iter().filter_map(|invoice| invoice.0.ok());
            for (year, sequence) in invoices.filter_map(|invoice| parse(invoice.status?.number.as_deref()?)) {
                let highest = last.entry(year).or_default();
                *highest = sequence.max(*highest);
            }
        }
        Ok(last)
    }
}

fn data(numbers: &Numbers) -> BTreeMap<String, String> {
    let text = serde_json::to_string(numbers).unwrap_or_default();
    BTreeMap::from([(ENTRY.to_owned(), text)])
}

fn parameters() -> PostParams {
    PostParams {
        field_manager: Some(CONTROLLER_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use runtime::testing::answered_by;

    fn invoice_ref(name: &str) -> InvoiceRef {
        InvoiceRef {
            namespace: "demo".to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn an_invoice_keeps_its_number_and_one_whose_invoice_is_gone_is_used_again() {
        let (mut numbers, mut free) = (Numbers::default(), BTreeSet::new());
        assert_eq!(numbers.take(&invoice_ref("a"), 2026, &mut free), "2026-000001");
        assert_eq!(numbers.take(&invoice_ref("b"), 2026, &mut free), "2026-000002");
        assert_eq!(numbers.take(&invoice_ref("a"), 2026, &mut free), "2026-000001");
        assert_eq!(numbers.take(&invoice_ref("c"), 2027, &mut free), "2027-000001");
        free.insert("2026-000001".to_owned());
        assert_eq!(numbers.take(&invoice_ref("d"), 2027, &mut free), "2027-000002");
        assert_eq!(numbers.take(&invoice_ref("e"), 2026, &mut free), "2026-000001");
        assert!(free.is_empty() && numbers.taken.len() == 4);
        assert_eq!(numbers.take(&invoice_ref("f"), 2026, &mut free), "2026-000003");
        let stored = serde_json::to_string(&numbers).unwrap();
        assert_eq!(serde_json::from_str::<Numbers>(&stored).unwrap(), numbers);
    }

    /// An API server with only this ConfigMap. Every third replace is stored but answered with an error.
    fn server() -> (Client, std::sync::Arc<Mutex<Option<serde_json::Value>>>) {
        let stored = std::sync::Arc::new(Mutex::new(None::<serde_json::Value>));
        let (shown, count) = (stored.clone(), std::sync::Arc::new(Mutex::new(0)));
        let client = answered_by(move |method, path, body| {
            let (stored, count) = (stored.clone(), count.clone());
            let mut stored = stored.lock();
            let not_found = json!({ "status": "Failure", "code": 404, "reason": "NotFound", "message": "" });
            let open = json!({
                "apiVersion": "stellage.dev/v1", "kind": "Invoice", "metadata": { "name": "open" },
                "spec": {
                    "account": "u", "accountName": "ada", "currency": "EUR",
                    "period": { "from": "2026-11-01T00:00:00Z", "to": "2026-12-01T00:00:00Z" },
                },
            });
            let answer = if path.contains("/invoices/") {
                (200, open)
            } else if path.contains("/invoices") {
                (200, json!({ "metadata": {}, "items": [] }))
            } else if method == http::Method::GET {
                stored.clone().map_or((404, not_found), |stored| (200, stored))
            } else {
                *count.lock() += 1;
                let version = *count.lock();
                let expected = stored
                    .as_ref()
                    .map(|stored| stored["metadata"]["resourceVersion"].clone());
                if method == http::Method::PUT
                    && expected != Some(body["metadata"]["resourceVersion"].clone())
                {
                    (
                        409,
                        json!({ "status": "Failure", "code": 409, "reason": "Conflict", "message": "" }),
                    )
                } else {
                    let mut body = body;
                    body["metadata"]["resourceVersion"] = json!(version.to_string());
                    *stored = Some(body.clone());
                    if version % 3 == 0 {
                        (
                            500,
                            json!({ "status": "Failure", "code": 500, "reason": "InternalError", "message": "" }),
                        )
                    } else {
                        (200, body)
                    }
                }
            };
            async move { answer }
        });
        (client, shown)
    }

    #[tokio::test]
    async fn many_get_numbers_in_few_writes_and_a_failure_makes_no_gap() {
        let (client, stored) = server();
        let numbers = InvoiceNumbers::new(client, "sys");
        let name = |index: usize| format!("inv-{index}");
        let mut given = BTreeMap::new();
        for round in 0..5 {
            let (numbers, name) = (&numbers, &name);
            let all = (0..20).map(|index| async move {
                let invoice_ref = invoice_ref(&name(round * 20 + index));
                loop {
                    if let Ok(number) = numbers.take(invoice_ref.clone(), 2026).await {
                        break number;
                    }
                }
            });
            for (index, number) in futures::future::join_all(all).await.into_iter().enumerate() {
                given.insert(number, round * 20 + index);
            }
        }
        let expected: Vec<String> = (1..=100).map(|sequence| number(2026, sequence)).collect();
        assert_eq!(given.keys().cloned().collect::<Vec<_>>(), expected);
        let version = stored.lock().as_ref().unwrap()["metadata"]["resourceVersion"].clone();
        let writes: u32 = version.as_str().unwrap().parse().unwrap();
        assert!(writes <= 20, "{writes}");
        // Asking again returns the same number.
        let (number, index) = given.first_key_value().unwrap();
        assert_eq!(
            numbers.take(invoice_ref(&name(*index)), 2026).await.unwrap(),
            *number
        );
    }
}
