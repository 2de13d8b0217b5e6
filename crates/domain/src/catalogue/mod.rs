//! What can be ordered, what it costs, and the alert rules.
//!
//! - [`alerts`]: the alert rules;
//! - [`file`](mod@file): the catalogue as a YAML file, and its errors;
//! - [`region`]: what a region with real servers is; `region_section`: how the file describes it;
//! - [`offer`]: what a region offers.

pub mod alerts;
pub mod file;
pub mod offer;
pub mod region;
mod region_section;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use resources::{
    Plan,
    invoice::Party,
    money::{Cents, Currency, TaxRate, UnitPrice},
};

pub use self::{alerts::Alerts, offer::Offer, region::Region};

/// The regions and images that are available, and the prices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    /// The regions, listed by `GET /v1/regions`.
    pub regions: Vec<Region>,
    /// The image identifiers that simulated regions list. They install any other, too.
    pub images: Vec<String>,
    /// What the plans cost, and the tax, before the first of the announced changes.
    pub prices: Prices,
    /// Prices and taxes that hold from a later time, in the order of the times.
    pub announced: Vec<(Timestamp, Prices)>,
    /// How usage is sampled, and the rules for alerts.
    pub alerts: Arc<Alerts>,
    /// What invoices say besides their lines.
    pub invoices: InvoiceTerms,
}

/// What invoices say besides their lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceTerms {
    /// The seller. Without a name, nothing is issued.
    pub seller: Party,
    /// Days after its issue within which an invoice must be paid.
    pub due_days: u16,
}

impl Default for InvoiceTerms {
    fn default() -> Self {
        Self {
            seller: Party::default(),
            due_days: 14,
        }
    }
}

/// What the plans and backups cost, and the tax on that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prices {
    /// The currency of all amounts.
    pub currency: Currency,
    /// Monthly prices, in the order of [`Plan::ALL`]. None is lower than the one before it, so the larger of two plans is
    /// never the cheaper one.
    monthly: [Cents; 4],
    /// Monthly price per GB of a backup.
    pub backup_gb: Cents,
    /// The tax on the sum of the lines of an invoice; none by default.
    pub tax: TaxRate,
}

impl Prices {
    /// Monthly prices. A plan that is missing, or cheaper than the one before it, costs as much as that one.
    pub fn of(currency: &Currency, by_plan: &BTreeMap<Plan, Cents>) -> Self {
        let mut price = Cents(0);
        Self {
            currency: currency.clone(),
            monthly: Plan::ALL.map(|plan| {
                price = by_plan.get(&plan).copied().unwrap_or(price).max(price);
                price
            }),
            backup_gb: Cents(0),
            tax: TaxRate::default(),
        }
    }

    /// The same prices, with a monthly price per GB of a backup.
    #[must_use]
    pub fn with_backups(self, backup_gb: Cents) -> Self {
        Self { backup_gb, ..self }
    }

    /// The same prices, with another tax.
    #[must_use]
    pub fn with_tax(self, tax: TaxRate) -> Self {
        Self { tax, ..self }
    }

    /// The monthly prices of all plans.
    pub fn by_plan(&self) -> BTreeMap<Plan, Cents> {
        Plan::ALL.into_iter().zip(self.monthly).collect()
    }

    /// The monthly price of a plan.
    pub const fn monthly(&self, plan: Plan) -> Cents {
        self.monthly[plan as usize]
    }

    /// The hourly price of a plan.
    pub const fn hourly(&self, plan: Plan) -> UnitPrice {
        UnitPrice::hourly(self.monthly(plan))
    }
}

impl Default for Prices {
    /// The prices of the specification, section 2.3.
    fn default() -> Self {
        Self {
            currency: Currency::default(),
            monthly: [5_00, 15_00, 30_00, 60_00].map(Cents),
            backup_gb: Cents(0),
            tax: TaxRate::default(),
        }
    }
}

impl Default for Catalogue {
    fn default() -> Self {
        let region = |code: &str| Region {
            code: code.to_owned(),
            kubevirt: None,
        };
        let images = [
            "debian-12",
            "debian-13",
            "ubuntu-22.04",
            "ubuntu-24.04",
            "fedora-42",
        ];
        Self {
            regions: ["fr-par-1", "de-fra-1", "nl-ams-1"].map(region).into(),
            images: images.map(str::to_owned).into(),
            prices: Prices::default(),
            announced: Vec::new(),
            alerts: Arc::default(),
            invoices: InvoiceTerms::default(),
        }
    }
}

impl Catalogue {
    /// The prices in effect at a time.
    pub fn prices_at(&self, now: Timestamp) -> &Prices {
        let past = self.announced.iter().take_while(|(from, _)| *from <= now);
        past.last().map_or(&self.prices, |(_, prices)| prices)
    }
}
