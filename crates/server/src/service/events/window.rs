//! Which segments of a list are needed for a page, and how their items are merged. Pure.
//!
//! The list is in the order of events, newest first. A segment holds some of its items; only their number and the range of their
//! times are known. Segments may overlap. Segments that certainly lie before or after the page are never read.

use std::{cmp::Reverse, collections::BTreeMap};

use jiff::Timestamp;

use crate::service::{
    error::{Detail, Error},
    index::items_before,
};

/// How deep a list can be paged into. A request may keep the keys of all items up to there in memory.
const DEEPEST: usize = 10_000;

/// The position of an item in a list: newest first by time and sequence number, then by id.
pub type Position = (Reverse<(Timestamp, i64)>, String);

/// Where a page lies in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Items before it.
    pub skip: usize,
    /// Items up to its end; 0 if that is deeper than `DEEPEST`.
    pub depth: usize,
}

impl Span {
    /// The span of a page of `limit` items. `page` counts from 1.
    pub fn of(page: u64, limit: usize) -> Self {
        let skip = items_before(page, limit);
        let depth = skip.saturating_add(limit);
        Self {
            skip,
            depth: if depth > DEEPEST { 0 } else { depth },
        }
    }

    /// `invalid_input` with this message if the page is too deep, unless it lies past the end of the list.
    pub fn check(self, total: usize, too_deep: &'static str) -> Result<(), Error> {
        if self.depth == 0 && self.skip < total {
            let complaint = Detail::new("page", "invalid_value", too_deep);
            return Err(Error::invalid(vec![complaint]));
        }
        Ok(())
    }
}

/// Some items of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// No item is earlier.
    pub from: Timestamp,
    /// No item is later.
    pub to: Timestamp,
    /// Number of items.
    pub count: usize,
}

/// What is needed for a page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Number of the items in segments that lie before the page.
    pub before: usize,
    /// Indices of the segments that may have items on the page. No others have any.
    pub needed: Vec<usize>,
}

/// Plans a page of the list that consists of these segments.
pub fn plan(segments: &[Segment], span: Span) -> Plan {
    let starts = Counts::of(segments.iter().map(|segment| (segment.from, segment.count)));
    let ends = Counts::of(segments.iter().map(|segment| (segment.to, segment.count)));
    let mut plan = Plan::default();
    for (index, segment) in segments.iter().enumerate() {
        // Items with the same time may be in any order.
        let up_to_its_last = ends.since(segment.from);
        let ahead_of_its_first = starts.after(segment.to);
        if up_to_its_last <= span.skip {
            plan.before += segment.count;
        } else if ahead_of_its_first < span.depth && segment.count > 0 {
            plan.needed.push(index);
        }
    }
    plan
}

/// Numbers of items by time, to sum up all later ones.
struct Counts {
    /// Sorted.
    times: Vec<Timestamp>,
    /// Number of items from each of these times on; one element longer, with 0 at the end.
    sums: Vec<usize>,
}

impl Counts {
    fn of(counts: impl Iterator<Item = (Timestamp, usize)>) -> Self {
        let mut counts: Vec<_> = counts.collect();
        counts.sort_unstable();
        let mut sums = vec![0_usize; counts.len() + 1];
        for (index, (_, count)) in counts.iter().enumerate().rev() {
            sums[index] = sums[index + 1].saturating_add(*count);
        }
        let times = counts.into_iter().map(|(time, _)| time).collect();
        Self { times, sums }
    }

    fn since(&self, time: Timestamp) -> usize {
        self.sums[self.times.partition_point(|other| *other < time)]
    }

    fn after(&self, time: Timestamp) -> usize {
        self.sums[self.times.partition_point(|other| *other <= time)]
    }
}

/// Sorts items that arrive roughly in order, and keeps those on the page.
pub struct Merge<T> {
    /// Number of items still to skip before the page.
    skip: usize,
    /// Number of items still missing on the page.
    wanted: usize,
    /// Items that items yet to be added may precede.
    waiting: BTreeMap<Position, T>,
    shown: Vec<T>,
    total: usize,
}

impl<T> Merge<T> {
    /// A merge for the page at `span`, if `before` of the items before it are not added.
    pub fn new(span: Span, before: usize) -> Self {
        Self {
            skip: span.skip.saturating_sub(before),
            wanted: span.depth.saturating_sub(span.skip),
            waiting: BTreeMap::new(),
            shown: Vec::new(),
            total: 0,
        }
    }

    pub fn add(&mut self, position: Position, item: T) {
        self.total += 1;
        if self.wanted > 0 {
            self.waiting.insert(position, item);
            if self.waiting.len() > self.skip.saturating_add(self.wanted) {
                self.waiting.pop_last();
            }
        }
    }

    /// Declares that no item still to be added is later than `newest`; `None` if all have been added.
    pub fn settle(&mut self, newest: Option<Timestamp>) {
        while let Some(first) = self.waiting.first_entry() {
            let (Reverse((time, _)), _) = first.key();
            if newest.is_some_and(|newest| *time <= newest) {
                return;
            }
            let item = first.remove();
            if self.skip > 0 {
                self.skip -= 1;
            } else {
                self.shown.push(item);
                self.wanted -= 1;
                if self.wanted == 0 {
                    self.waiting.clear();
                }
            }
        }
    }

    /// The items on the page, once all are [settled](Self::settle), and the number of those that were added.
    pub fn finish(mut self) -> (Vec<T>, usize) {
        self.settle(None);
        (self.shown, self.total)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::service::error::ErrorCode;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn segment(from: i64, to: i64, count: usize) -> Segment {
        Segment {
            from: at(from),
            to: at(to),
            count,
        }
    }

    #[test]
    fn a_page_of_a_long_log_needs_the_segments_at_its_place_alone() {
        // Ten segments of 10 items each, which overlap by a second: 0..=10, 10..=20, …
        let segments: Vec<_> = (0..10).map(|n| segment(n * 10, n * 10 + 10, 10)).collect();
        assert_eq!(
            plan(&segments, Span::of(1, 5)),
            Plan {
                before: 0,
                needed: vec![8, 9]
            }
        );
        assert_eq!(
            plan(&segments, Span::of(5, 10)),
            Plan {
                before: 30,
                needed: vec![4, 5, 6]
            }
        );
        assert_eq!(plan(&segments, Span::of(11, 10)).needed, [0; 0]);
        assert_eq!(plan(&segments, Span::of(101, 100)).needed, [0; 0], "too deep");
    }

    #[test]
    fn a_page_reaches_no_deeper_than_the_newest_ten_thousand_and_past_the_end_only_counts() {
        let span = |page, limit| {
            let Span { skip, depth } = Span::of(page, limit);
            (skip, depth)
        };
        assert_eq!(span(1, 20), (0, 20));
        assert_eq!(span(100, 100), (9_900, 10_000));
        assert_eq!(span(101, 100), (10_000, 0));
        assert_eq!(span(u64::MAX, 100), (usize::MAX, 0));
        let refused = Span::of(101, 100).check(10_001, "too deep").unwrap_err();
        assert_eq!(
            (refused.code, refused.details[0].field.as_ref()),
            (ErrorCode::InvalidInput, "page")
        );
        assert!(Span::of(101, 100).check(10_000, "too deep").is_ok());
        assert!(Span::of(100, 100).check(usize::MAX, "too deep").is_ok());
        assert!(Span::of(u64::MAX, 100).check(1_000_000, "too deep").is_ok());
    }

    #[test]
    fn what_is_settled_and_what_lies_beyond_the_page_is_not_kept() {
        let mut merge = Merge::new(Span::of(2, 2), 0);
        for second in [9, 8, 7, 6, 5, 4] {
            merge.add((Reverse((at(second), 0)), String::new()), second);
        }
        assert_eq!(merge.waiting.len(), 4);
        merge.settle(Some(at(8)));
        assert_eq!((merge.waiting.len(), merge.skip), (3, 1));
        merge.add((Reverse((at(8), 1)), String::new()), 80);
        merge.settle(Some(at(5)));
        assert!(merge.waiting.is_empty(), "the page is full");
        merge.add((Reverse((at(5), 1)), String::new()), 50);
        assert!(merge.waiting.is_empty());
        assert_eq!(merge.finish(), (vec![8, 7], 8));
    }

    /// Segments of items, each a time and a sequence number; some have a single item.
    fn log() -> impl Strategy<Value = Vec<Vec<(i64, i64)>>> {
        let segment = (
            0_i64..60,
            prop_oneof![Just(1_usize), 0_usize..12],
            prop_oneof![Just(1_i64), 1_i64..20],
        )
            .prop_flat_map(|(start, count, width)| {
                prop::collection::vec((start..start + width, 0_i64..3), count)
            });
        prop::collection::vec(segment, 0..14)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn a_page_is_the_same_as_of_a_list_that_was_read_and_sorted_whole(
            log in log(), page in 1_u64..12, limit in 1_usize..9,
        ) {
            let mut log: Vec<Vec<Position>> = log
                .into_iter()
                .enumerate()
                .map(|(segment, items)| {
                    let position = |(n, (second, sequence)): (usize, (i64, i64))| {
                        // Ids in a different order than segments.
                        (Reverse((at(second), sequence)), format!("{}-{n}", (segment * 7) % 5))
                    };
                    items.into_iter().enumerate().map(position).map(|(key, id)| (key, format!("{id}-{segment}"))).collect()
                })
                .collect();
            let segments: Vec<_> = log
                .iter()
                .map(|items| {
                    let times = || items.iter().map(|(Reverse((time, _)), _)| *time);
                    Segment {
                        from: times().min().unwrap_or(at(30)),
                        to: times().max().unwrap_or(at(30)),
                        count: items.len(),
                    }
                })
                .collect();
            let mut all: Vec<Position> = log.iter().flatten().cloned().collect();
            all.sort();
            let span = Span::of(page, limit);
            let expected: Vec<Position> = all.iter().skip(span.skip).take(limit).cloned().collect();

            let Plan { before, mut needed } = plan(&segments, span);
            needed.sort_by_key(|index| Reverse(segments[*index].to));
            let mut merge = Merge::new(span, before);
            for index in needed {
                merge.settle(Some(segments[index].to));
                for position in std::mem::take(&mut log[index]) {
                    merge.add(position.clone(), position);
                }
            }
            prop_assert_eq!(merge.finish().0, expected);
        }
    }
}
