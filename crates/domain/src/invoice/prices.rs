//! Which prices were in effect when.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::catalogue::Prices;
use resources::{
    Plan,
    money::{Cents, Currency},
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
}

/// Past and present prices. An hour costs what was in effect when it began, so a price change holds from each
/// instance's next hour.
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
            (stored.since, prices.with_backups(Cents(stored.backup_gb)))
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
            })
            .collect();
        // Serialising fails only for maps whose keys are not strings; there are none.
        serde_json::to_string(&all).unwrap_or_default()
    }

    /// Whether backups have or had a price.
    pub fn has_backup_price(&self) -> bool {
        self.spans().any(|(_, _, prices)| prices.backup_gb.0 > 0)
    }

    /// Whether these are the prices in effect.
    pub fn is_current(&self, prices: &Prices) -> bool {
        self.changes.last().map_or(&self.first, |(_, last)| last) == prices
    }

    /// Whether there is no room for another change.
    pub fn is_full(&self) -> bool {
        self.changes.len() >= MAX_CHANGES
    }

    /// Records the prices in effect from now on. Returns whether they are new.
    pub fn record(&mut self, prices: &Prices, now: Timestamp) -> bool {
        let (changed_at, current) = match self.changes.last() {
            Some((at, prices)) => (*at, prices),
            None => (Timestamp::MIN, &self.first),
        };
        if current == prices {
            return false;
        }
        self.changes.push((now.max(changed_at), prices.clone()));
        true
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

    #[test]
    fn only_a_change_is_recorded_and_what_nobody_needs_is_forgotten() {
        let cheap = Prices::default();
        let mut by_plan = cheap.by_plan();
        by_plan.insert(Plan::Enterprise, Cents(70_00));
        let dear = Prices::of(&cheap.currency, &by_plan);
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut history = PriceHistory::new(cheap.clone());
        assert!(!history.record(&cheap, at(1)));
        assert!(history.record(&dear, at(10)));
        // The clock was set back.
        assert!(history.record(&cheap, at(5)));
        let spans = |history: &PriceHistory| -> Vec<_> {
            history
                .spans()
                .map(|(from, to, prices)| (from, to, prices.monthly(Plan::Enterprise).to_string()))
                .collect()
        };
        assert_eq!(
            spans(&history),
            [
                (Timestamp::MIN, at(10), "60.00".to_owned()),
                (at(10), at(10), "70.00".to_owned()),
                (at(10), Timestamp::MAX, "60.00".to_owned()),
            ]
        );
        assert_eq!(PriceHistory::read(&history.stored()), Some(history.clone()));
        history.forget(at(9));
        assert_eq!(spans(&history).len(), 3);
        history.forget(at(10));
        assert_eq!(spans(&history).len(), 1);
        assert_eq!(history, PriceHistory::new(cheap));
    }
}
