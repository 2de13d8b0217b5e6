//! An account with so many instances that its invoice has pages, of which only the last one is in memory.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    api_server::ApiServer,
    operator::{Operator, Surroundings},
};
use domain::{invoice::Period, provider::Timings};
use resources::{Invoice, InvoicePage, invoice_page::MAX_ENTRIES};
use runtime::{Clock as _, shared_catalogue::SharedCatalogue};

const ACCOUNT: &str = "ada";
/// One more than fit into the invoice itself and its first page.
const COUNT: usize = 2 * MAX_ENTRIES + 1;

struct World {
    around: Surroundings,
    operator: Operator,
}

impl World {
    fn new(start: Timestamp) -> Self {
        let server = ApiServer::new(1, start);
        server.create_account(ACCOUNT);
        for number in 0..COUNT {
            server.create_instance(ACCOUNT, &format!("web-{number}"));
        }
        server.take_writes();
        let around = Surroundings::new(server, start, Timings::for_provisioning(0.0));
        let operator = Operator::start(&around, SharedCatalogue::new(crate::tests::with_seller()), 1);
        Self { around, operator }
    }

    async fn run_until(&mut self, end: Timestamp) {
        while let Some(next) = self.operator.next().filter(|next| *next <= end) {
            if next > self.around.clock.now() {
                self.set_time(next);
            }
            self.operator.step().await;
            self.show();
        }
        self.set_time(end);
    }

    fn set_time(&mut self, time: Timestamp) {
        self.around.set_time(time);
        self.operator.set_time(time);
    }

    /// Changes an object as a user would.
    fn edit(&mut self, plural: &str, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
        self.around.server.edit(plural, namespace, name, change);
        self.show();
    }

    /// Has the watches show what was written.
    fn show(&mut self) {
        let writes: Vec<_> = self.around.server.take_writes().into();
        self.operator.saw(&writes);
    }

    /// Runs until `end`. Two minutes before, the account is reconciled, as it is every minute outside of this world.
    async fn rest_until(&mut self, end: Timestamp) {
        let before = end - SignedDuration::from_mins(2);
        self.run_until(before).await;
        self.edit("accounts", "", ACCOUNT, |it| {
            it["metadata"]["annotations"] = json!({ "at": before });
        });
        self.run_until(end).await;
    }

    /// How often pages have been read since the last call.
    fn reads(&self) -> usize {
        let reads = self.around.server.take_reads();
        reads.iter().filter(|plural| *plural == "invoicepages").count()
    }

    /// The first page of the first invoice.
    fn page(&self) -> InvoicePage {
        let mut pages: Vec<InvoicePage> = self.around.server.list("invoicepages");
        pages.sort_by_key(|page| (page.metadata.creation_timestamp.clone(), page.spec.number));
        pages.remove(0)
    }

    /// Number of lines of each issued invoice, by its period.
    fn issued(&self) -> Vec<usize> {
        let mut invoices = self.around.server.list::<Invoice>("invoices");
        invoices.retain(Invoice::is_issued);
        invoices.sort_by_key(|invoice| invoice.spec.period.from);
        let lines = invoices
            .iter()
            .map(|invoice| invoice.status.as_ref().unwrap().lines_count);
        lines.map(|lines| usize::try_from(lines).unwrap()).collect()
    }
}

#[tokio::test]
async fn a_page_is_read_again_when_something_on_it_changes_or_is_issued_and_not_before() {
    let start: Timestamp = "2027-01-05T00:00:00Z".parse().unwrap();
    let after = |minutes: i64| start + SignedDuration::from_mins(minutes);
    let mut world = World::new(start);
    world.rest_until(after(10)).await;
    let [name, other] = [0, 1].map(|index| world.page().spec.entries[index].name.clone());
    world.reads();

    world.edit("instances", ACCOUNT, &other, |it| {
        it["metadata"]["annotations"]["note"] = json!("");
        it["spec"]["name"] = json!("renamed");
    });
    world.rest_until(after(90)).await;
    assert_eq!(world.reads(), 0, "names are copied when the invoice is issued");

    world.edit("instances", ACCOUNT, &name, |it| {
        it["spec"]["plan"] = json!("business");
    });
    world.rest_until(after(100)).await;
    assert_eq!(world.reads(), 1, "its plan has changed");
    assert_eq!(world.page().spec.entries[0].changes.len(), 2);

    world.around.server.delete("instances", ACCOUNT, &name);
    world.show();
    world.rest_until(after(200)).await;
    assert_eq!(world.reads(), 1, "its end, but not that it is gone");
    assert!(world.page().spec.entries[0].ended.is_some());
    let gone: Option<Value> = world.around.server.get("instances", ACCOUNT, &name);
    assert_eq!(gone, None, "its end is recorded");

    world.edit("accounts", "", ACCOUNT, |it| {
        it["spec"]["invoicesClosedUntil"] = json!(after(240).to_string());
    });
    world.rest_until(after(250)).await;
    assert_eq!(world.issued(), [COUNT]);
    assert_eq!(world.page().spec.lines.unwrap()[1].name, "renamed");

    let month = Period::month_of(start);
    world.reads();
    world.run_until(month.to - SignedDuration::from_secs(1)).await;
    assert_eq!(world.reads(), 0, "nothing has changed");
    world.run_until(month.to + SignedDuration::from_mins(15)).await;
    assert_eq!(world.issued(), [COUNT, COUNT - 1]);
}
