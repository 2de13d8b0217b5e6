//! One page of a list whose items are read piece by piece, and roughly in order. Pure.
//!
//! The list is in the order of events, newest first. Pages follow each other by cursors, since the list grows at its beginning, and
//! shrinks at its end, while it is being read.

use std::{cmp::Reverse, collections::BTreeMap};

use jiff::Timestamp;

/// The position of an item in a list: newest first by time and sequence number, then by id.
pub type Position = (Reverse<(Timestamp, i64)>, String);

/// The newest items of a list, or the newest that follow one of its items.
pub struct Newest<T> {
    /// The item that they follow.
    after: Option<Position>,
    limit: usize,
    /// One more than asked for, which shows that more follow.
    items: BTreeMap<Position, T>,
}

impl<T> Newest<T> {
    /// Up to `limit` items.
    pub fn of(limit: usize, after: Option<Position>) -> Self {
        Self {
            after,
            limit,
            items: BTreeMap::new(),
        }
    }

    /// Adds an item of the list.
    pub fn add(&mut self, position: Position, item: T) {
        if self.after.as_ref().is_none_or(|after| position > *after) {
            self.items.insert(position, item);
            if self.items.len() > self.limit + 1 {
                self.items.pop_last();
            }
        }
    }

    /// Whether an item of this time may be among them. If not, none that is older is.
    pub fn may_have(&self, time: Timestamp) -> bool {
        let last = self.items.last_key_value();
        self.items.len() <= self.limit || last.is_some_and(|((Reverse((last, _)), _), _)| time >= *last)
    }

    /// Most of them.
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Whether an item of this time may follow the one that they are to follow.
    pub fn may_follow(&self, time: Timestamp) -> bool {
        let after = self.after.as_ref();
        after.is_none_or(|(Reverse((after, _)), _)| time <= *after)
    }

    /// Whether every item of this time follows it.
    pub fn follows(&self, time: Timestamp) -> bool {
        let after = self.after.as_ref();
        after.is_none_or(|(Reverse((after, _)), _)| time < *after)
    }

    /// The items with their positions, in order, and whether more follow.
    pub fn finish(self) -> (Vec<(Position, T)>, bool) {
        let has_more = self.items.len() > self.limit;
        (self.items.into_iter().take(self.limit).collect(), has_more)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn no_more_than_what_is_shown_is_kept() {
        let mut newest = Newest::of(2, None);
        for second in [4, 9, 5, 8] {
            assert!(newest.may_have(at(second)));
            newest.add((Reverse((at(second), 0)), String::new()), second);
        }
        assert_eq!(newest.items.len(), 3);
        assert!(newest.may_have(at(5)), "of the same time, in any order");
        assert!(!newest.may_have(at(4)));
        let (items, has_more) = newest.finish();
        assert_eq!(
            items.into_iter().map(|(_, item)| item).collect::<Vec<_>>(),
            [9, 8]
        );
        assert!(has_more);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// Items are a time and a sequence number.
        #[test]
        fn the_pages_of_a_list_have_every_item_once_and_in_order(
            items in prop::collection::btree_set((0_i64..20, 0_i64..3, 0_u8..4), 0..40), limit in 1_usize..9,
        ) {
            let positions: Vec<Position> = items
                .into_iter()
                .map(|(second, sequence, id)| (Reverse((at(second), sequence)), id.to_string()))
                .collect();
            let mut all = positions.clone();
            all.sort();
            let (mut after, mut shown) = (None, Vec::new());
            loop {
                let mut newest = Newest::of(limit, after);
                for position in &positions {
                    let Reverse((time, _)) = position.0;
                    if newest.may_have(time) {
                        newest.add(position.clone(), ());
                    }
                }
                let (page, has_more) = newest.finish();
                prop_assert!(page.len() == limit || !has_more);
                after = page.last().map(|(position, ())| position.clone());
                shown.extend(page.into_iter().map(|(position, ())| position));
                if !has_more {
                    break;
                }
            }
            prop_assert_eq!(shown, all);
        }
    }
}
