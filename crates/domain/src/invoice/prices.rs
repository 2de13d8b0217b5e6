//! Which prices were in effect when.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::catalogue::{Catalogue, Prices};
use resources::{
    Plan,
    money::{Cents, Currency, TaxRate},
};

/// Maximum number of price changes that are kept. With four plans, a line has at most four times as many prices.
const MAX_CHANGES: usize = 20;

/// Prices as they are stored.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StoredPrices {
    /// Since when they hold; absent from the first ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    currency: Currency,
    /// Cents a month.
    plans: BTreeMap<Plan, u64>,
    /// Cents a month.
    backup_gb: u64,
    #[serde(default)]
    tax: TaxRate,
}

/// Past, present and announced prices and taxes. An hour costs what was in effect when it began, so a price change holds from each
/// instance's next hour; an invoice has the tax that was in effect when its period ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriceHistory {
    /// The earliest known prices, which hold for all hours before the first change.
    first: Prices,
    /// Changes, in the order of their times.
    changes: Vec<(Timestamp, Prices)>,
}

impl PriceHistory {
    /// Prices that have never changed.
    pub const fn new(prices: Prices) -> Self {
        Self {
            first: prices,
            changes: Vec::new(),
        }
    }

    pub const fn currency(&self) -> &Currency {
        &self.first.currency
    }

    /// The history that was [stored](Self::stored). `None` if the text is not one.
    pub fn read(text: &str) -> Option<Self> {
        let stored: Vec<StoredPrices> = serde_json::from_str(text).ok()?;
        let mut stored = stored.into_iter().map(|stored| {
            let by_plan = stored.plans.into_iter().map(|(plan, cents)| (plan, Cents(cents)));
            let prices = Prices::of(&stored.currency, &by_plan.collect());
            let prices = prices.with_backups(Cents(stored.backup_gb));
            (stored.since, prices.with_tax(stored.tax))
        });
        let (_, first) = stored.next()?;
        let changes = stored.map(|(since, prices)| Some((since?, prices)));
        Some(Self {
            first,
            changes: changes.collect::<Option<_>>()?,
        })
    }

    /// The history as a text to store.
    pub fn stored(&self) -> String {
        let all = [(None, &self.first)].into_iter();
        let all = all.chain(self.changes.iter().map(|(since, prices)| (Some(*since), prices)));
        let all: Vec<StoredPrices> = all
            .map(|(since, prices)| StoredPrices {
                since,
                currency: prices.currency.clone(),
                plans: prices
                    .by_plan()
                    .into_iter()
                    .map(|(plan, price)| (plan, price.0))
                    .collect(),
                backup_gb: prices.backup_gb.0,
                tax: prices.tax,
            })
            .collect();
        // Serialising fails only for maps whose keys are not strings; there are none.
        serde_json::to_string(&all).unwrap_or_default()
    }

    /// Whether backups have or had a price.
    pub fn has_backup_price(&self) -> bool {
        self.spans().any(|(_, _, prices)| prices.backup_gb.0 > 0)
    }

    /// The prices that were in effect at this time.
    pub(super) fn at(&self, moment: Timestamp) -> &Prices {
        let past = self.changes.iter().take_while(|(at, _)| *at <= moment);
        past.last().map_or(&self.first, |(_, prices)| prices)
    }

    /// The tax on an invoice whose period ends at this moment: the last one in effect before.
    pub fn tax_until(&self, end: Timestamp) -> TaxRate {
        let begun = self.spans().take_while(|(from, ..)| *from < end);
        begun.last().map_or(self.first.tax, |(_, _, prices)| prices.tax)
    }

    /// Whether there are more changes than are kept.
    pub fn is_too_long(&self) -> bool {
        self.changes.len() > MAX_CHANGES
    }

    /// Records what a catalogue says now: what is in effect, unless that is known, holds from now on, and what is announced from its
    /// time on. What was announced before and is no longer counts only if its time has come.
    pub fn record(&mut self, catalogue: &Catalogue, now: Timestamp) {
        self.changes.retain(|(at, _)| *at <= now);
        let announced = catalogue.announced.iter().filter(|(from, _)| *from > now);
        let all = [(now, catalogue.prices_at(now).clone())].into_iter();
        for (at, prices) in all.chain(announced.cloned()) {
            if self.changes.last().map_or(&self.first, |(_, last)| last) != &prices {
                self.changes.push((at, prices));
            }
        }
    }

    /// Forgets prices that were no longer in effect at this time.
    pub fn forget(&mut self, before: Timestamp) {
        let past = self.changes.iter().take_while(|(at, _)| *at <= before).count();
        if let Some((_, prices)) = self.changes.drain(..past).next_back() {
            self.first = prices;
        }
    }

    /// Each set of prices, with the time from which it holds and the time at which it was replaced.
    pub(super) fn spans(&self) -> impl Iterator<Item = (Timestamp, Timestamp, &Prices)> {
        let starts = [(Timestamp::MIN, &self.first)].into_iter();
        let starts = starts.chain(self.changes.iter().map(|(at, prices)| (*at, prices)));
        let ends = self.changes.iter().map(|(at, _)| *at).chain([Timestamp::MAX]);
        starts.zip(ends).map(|((from, prices), to)| (from, to, prices))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resources::{Plan, money::Cents};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn costing(enterprise: u64) -> Prices {
        let prices = Prices::default();
        let mut by_plan = prices.by_plan();
        by_plan.insert(Plan::Enterprise, Cents(enterprise));
        Prices::of(&prices.currency, &by_plan)
    }

    fn catalogue(prices: &Prices, announced: &[(Timestamp, Prices)]) -> Catalogue {
        Catalogue {
            prices: prices.clone(),
            announced: announced.to_vec(),
            ..Catalogue::default()
        }
    }

    fn spans(history: &PriceHistory) -> Vec<(Timestamp, Timestamp, String)> {
        let spans = history.spans();
        spans
            .map(|(from, to, prices)| (from, to, prices.monthly(Plan::Enterprise).to_string()))
            .collect()
    }

    #[test]
    fn only_a_change_is_recorded_and_what_nobody_needs_is_forgotten() {
        let (cheap, dear) = (costing(60_00), costing(70_00));
        let mut history = PriceHistory::new(cheap.clone());
        history.record(&catalogue(&cheap, &[]), at(1));
        assert_eq!(history, PriceHistory::new(cheap.clone()));
        history.record(&catalogue(&dear, &[]), at(10));
        assert_eq!(
            spans(&history),
            [
                (Timestamp::MIN, at(10), "60.00".to_owned()),
                (at(10), Timestamp::MAX, "70.00".to_owned()),
            ]
        );
        assert_eq!(PriceHistory::read(&history.stored()), Some(history.clone()));
        history.forget(at(9));
        assert_eq!(spans(&history).len(), 2);
        history.forget(at(10));
        assert_eq!(history, PriceHistory::new(dear));
    }

    #[test]
    fn what_is_announced_holds_from_its_time_on_also_if_nobody_was_there_then() {
        let (cheap, dear) = (costing(60_00), costing(70_00));
        let mut history = PriceHistory::new(cheap.clone());
        let announcing = catalogue(&cheap, &[(at(100), dear.clone())]);
        history.record(&announcing, at(10));
        let announced = history.clone();
        assert_eq!(spans(&history)[1], (at(100), Timestamp::MAX, "70.00".to_owned()));
        history.record(&announcing, at(500));
        assert_eq!(history, announced);
        // Its file may then say it as what is in effect.
        history.record(&catalogue(&dear, &[]), at(600));
        assert_eq!(history, announced);
    }

    #[test]
    fn what_is_no_longer_announced_does_not_come_and_what_was_announced_too_late_holds_from_now_on() {
        let (cheap, dear) = (costing(60_00), costing(70_00));
        let mut history = PriceHistory::new(cheap.clone());
        history.record(&catalogue(&cheap, &[(at(100), dear.clone())]), at(10));
        history.record(&catalogue(&cheap, &[]), at(20));
        assert_eq!(history, PriceHistory::new(cheap.clone()));
        history.record(&catalogue(&cheap, &[(at(15), dear)]), at(20));
        assert_eq!(spans(&history)[1].0, at(20));
    }

    #[test]
    fn an_invoice_has_the_tax_that_was_in_effect_when_its_period_ended() {
        let of = |percent: u32| TaxRate::from_hundredths(percent * 100).unwrap();
        let (old, new) = (
            Prices::default().with_tax(of(19)),
            Prices::default().with_tax(of(16)),
        );
        let mut history = PriceHistory::new(old.clone());
        history.record(&catalogue(&old, &[(at(100), new)]), at(10));
        assert_eq!(history.tax_until(at(100)), of(19));
        assert_eq!(history.tax_until(at(101)), of(16));
        assert_eq!(PriceHistory::read(&history.stored()), Some(history));
    }
}
