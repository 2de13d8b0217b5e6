//! The pages of an invoice, as far as they are in memory. While it is open, an account that churns has very many entries of what is gone:
//! the books keep the entries of the last page, to which new ones are added, and of pages that are being changed. Of the others they
//! have hashes, which tell the pages that must be read because something on them has changed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{BuildHasher as _, RandomState},
    mem,
};

use jiff::Timestamp;

use super::{Metered, Subject, Subjects, entry};
use resources::{InvoicePage, LedgerEntry, metering::MeteredHour, money::Cents};

/// The pages of one invoice, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    by_number: BTreeMap<u32, Page>,
    hasher: RandomState,
    /// The entries that are not in memory, by the hash of their UID: of what exists, as far as is known,
    live: HashMap<u64, Live>,
    /// and of what is gone, with their page.
    over: HashMap<u64, u32>,
    /// Pages that may have the same entry, because a process died while moving it.
    doubled: BTreeSet<u32>,
    /// Pages with entries to be brought up to date with what exists.
    outdated: BTreeSet<u32>,
    /// How often what exists has been looked through.
    round: u64,
}

/// What is known of a page.
#[derive(Clone, Debug)]
pub(super) struct Page {
    /// As it is stored, but without lines, and without entries unless it [is loaded](Self::is_loaded).
    pub object: InvoicePage,
    pub is_loaded: bool,
    pub count: usize,
    /// Whether one of its entries has as many backups as it may have.
    pub is_full: bool,
    /// The last [moment](entry::last_moment) of its entries.
    pub last: Option<Timestamp>,
    /// How many of its entries are among the live ones.
    live: usize,
    /// The number and the sum of its lines, if it has them.
    pub lines: Option<(usize, Cents)>,
}

/// An entry that is not in memory.
#[derive(Clone, Debug)]
struct Live {
    page: u32,
    /// A hash of what is billed. If it is that of the subject, the entry is up to date.
    state: u64,
    /// Whether the entry stays as it is if its subject is gone.
    is_over: bool,
    /// The round in which its subject was last seen.
    seen: u64,
}

impl Page {
    fn of(mut object: InvoicePage) -> Self {
        shrink(&mut object.spec.entries);
        let entries = &object.spec.entries;
        Self {
            count: entries.len(),
            is_full: entries.iter().any(entry::is_full),
            last: entries.iter().filter_map(entry::last_moment).max(),
            live: 0,
            lines: object.spec.lines.as_mut().map(|lines| {
                let sum = lines.iter().map(|line| line.amount_cents).sum();
                (mem::take(lines).len(), Cents(sum))
            }),
            is_loaded: true,
            object,
        }
    }
}

impl Pages {
    pub fn get(&self, number: u32) -> Option<&Page> {
        self.by_number.get(&number)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Page> {
        self.by_number.values()
    }

    pub fn last(&self) -> Option<u32> {
        self.by_number.keys().next_back().copied()
    }

    /// The number of the page after this one.
    pub fn after(&self, number: u32) -> Option<u32> {
        self.by_number
            .range(number + 1..)
            .next()
            .map(|(number, _)| *number)
    }

    /// The number of entries in memory, and of those that are looked at because of what exists.
    #[cfg(test)]
    pub fn sizes(&self) -> (usize, usize) {
        let loaded = self.iter().map(|page| page.object.spec.entries.len());
        (loaded.sum(), self.live.len())
    }

    /// Records a page that was read with others, or written. Its entries stay in memory if they were, or if it is the last one.
    pub fn put(&mut self, page: InvoicePage) {
        let number = page.spec.number;
        let last = self.last();
        let stays = last < Some(number) || self.get(number).is_some_and(|page| page.is_loaded);
        self.by_number.insert(number, Page::of(page));
        let beyond = if stays {
            last.filter(|last| *last < number)
        } else {
            Some(number)
        };
        if let Some(page) = beyond {
            self.shelve(page, &Subjects::new());
        }
        let entries = self
            .by_number
            .get(&number)
            .map(|page| page.object.spec.entries.iter());
        let uids = entries
            .into_iter()
            .flatten()
            .map(|entry| self.hasher.hash_one(&entry.uid));
        self.doubled
            .extend(uids.filter_map(|uid| Some(self.live.get(&uid)?.page)));
    }

    /// Records a page that was read because its entries are needed. Returns whether it is as it was known: if not, so are the hashes.
    pub fn load(&mut self, page: InvoicePage) -> bool {
        let number = page.spec.number;
        let known = self.get(number);
        if known.is_none_or(|known| known.object.metadata.resource_version != page.metadata.resource_version)
        {
            return false;
        }
        for entry in &page.spec.entries {
            let uid = self.hasher.hash_one(&entry.uid);
            if self.live.get(&uid).is_some_and(|live| live.page == number) {
                self.live.remove(&uid);
            }
            if self.over.get(&uid) == Some(&number) {
                self.over.remove(&uid);
            }
        }
        self.by_number.insert(number, Page::of(page));
        true
    }

    pub fn remove(&mut self, number: u32) {
        self.by_number.remove(&number);
    }

    /// Forgets which entries the pages have, because they are written anew.
    pub fn forget(&mut self) {
        (self.live, self.over) = (HashMap::new(), HashMap::new());
    }

    /// Keeps only hashes of the entries of a page. They are up to date with the subjects among these, and otherwise may be.
    pub fn shelve(&mut self, number: u32, subjects: &Subjects<'_>) {
        let Some(page) = self.by_number.get_mut(&number).filter(|page| page.is_loaded) else {
            return;
        };
        page.is_loaded = false;
        for entry in mem::take(&mut page.object.spec.entries) {
            let uid = self.hasher.hash_one(&entry.uid);
            let subject = subjects.get(entry.uid.as_str());
            let state = subject.map_or_else(
                || self.hasher.hash_one(state_of_entry(&entry)),
                |subject| self.hasher.hash_one(state_of(subject)),
            );
            let is_over = entry::is_over(&entry);
            let live = Live {
                page: number,
                state,
                is_over,
                seen: self.round,
            };
            page.live += 1;
            let other = self.live.insert(uid, live).map(|other| other.page);
            self.doubled
                .extend(other.into_iter().flat_map(|other| [other, number]));
        }
    }

    /// Keeps only hashes of all pages but the last one; what is in memory is up to date with these subjects.
    pub fn shelve_all(&mut self, subjects: &Subjects<'_>) {
        let last = self.last();
        let loaded = self.by_number.iter().filter(|(_, page)| page.is_loaded);
        let loaded: Vec<u32> = loaded.map(|(number, _)| *number).collect();
        for number in loaded.into_iter().filter(|number| Some(*number) != last) {
            self.shelve(number, subjects);
        }
    }

    /// Begins to look through what exists.
    pub fn begin(&mut self) {
        self.round += 1;
        self.outdated.clear();
    }

    /// Notes that a subject exists. Returns whether its entry is on a page that is not in memory.
    pub fn saw(&mut self, uid: &str, subject: &Subject<'_>) -> bool {
        let uid = self.hasher.hash_one(uid);
        if let Some(live) = self.live.get_mut(&uid) {
            live.seen = self.round;
            if live.state != self.hasher.hash_one(state_of(subject)) {
                self.outdated.insert(live.page);
            }
            return true;
        }
        // What was thought to be gone is there again.
        let page = self.over.get(&uid);
        self.outdated.extend(page);
        page.is_some()
    }

    /// Looks for what is gone, after everything that exists was seen. What has ended is set aside, so that the work depends on what
    /// exists.
    pub fn saw_all(&mut self) {
        self.live.retain(|uid, live| {
            if live.seen == self.round {
                return true;
            }
            if live.is_over {
                self.over.insert(*uid, live.page);
                if let Some(page) = self.by_number.get_mut(&live.page) {
                    page.live -= 1;
                }
            } else {
                self.outdated.insert(live.page);
            }
            !live.is_over
        });
    }

    /// The pages to read: those that may have the same entry, one that is to be brought up to date, and the last one, to which new entries
    /// are added.
    pub fn needed(&self) -> Vec<u32> {
        let needed = self.doubled.iter().chain(self.outdated.first()).copied();
        let needed: BTreeSet<u32> = needed.chain(self.last()).collect();
        let is_absent = |number: &u32| self.get(*number).is_some_and(|page| !page.is_loaded);
        needed.into_iter().filter(is_absent).collect()
    }

    /// Says that the needed pages are up to date. Returns whether more are to be read.
    pub fn are_up_to_date(&mut self, subjects: &Subjects<'_>) -> bool {
        self.doubled.clear();
        if let Some(page) = self.outdated.pop_first()
            && self.last() != Some(page)
        {
            self.shelve(page, subjects);
        }
        !self.outdated.is_empty()
    }

    /// Whether a page that is not in memory has nothing that continues at this time.
    pub fn is_over(&self, number: u32, at: Timestamp) -> bool {
        self.get(number)
            .is_some_and(|page| !page.is_loaded && page.live == 0 && page.last <= Some(at))
    }

    /// Whether the entry of a subject is on a page that is not in memory.
    pub fn has(&self, uid: &str) -> bool {
        let uid = self.hasher.hash_one(uid);
        self.live.contains_key(&uid) || self.over.contains_key(&uid)
    }
}

/// What is billed of an instance or its backups.
type State<'a> = (
    &'a [MeteredHour],
    Vec<(&'a str, Option<Timestamp>)>,
    Option<Timestamp>,
);

fn state_of_entry(entry: &LedgerEntry) -> State<'_> {
    let backups = entry
        .backups
        .iter()
        .map(|backup| (backup.uid.as_str(), backup.ended));
    (&entry.changes, backups.collect(), entry.ended)
}

fn state_of<'a>(subject: &'a Subject<'_>) -> State<'a> {
    let (changes, backups) = match &subject.metered {
        Metered::Instance(metering) => (metering.changes.as_slice(), &[][..]),
        Metered::Backups(backups) => (&[][..], backups.as_slice()),
    };
    let backups = backups.iter().map(|backup| (backup.uid, backup.ended));
    (changes, backups.collect(), subject.ended)
}

/// Gives back spare capacity, which parsing leaves: they stay in memory.
pub(super) fn shrink(entries: &mut Vec<LedgerEntry>) {
    entries.shrink_to_fit();
    for entry in entries {
        entry.changes.shrink_to_fit();
        entry.backups.shrink_to_fit();
    }
}
