//! The writes of an account that are in progress. They outlive their clients, so the number of connections does not limit
//! them.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use parking_lot::Mutex;

/// Maximum number of concurrent writes of an account. With its head and its body, each takes up to 100 KiB of memory; clients
/// that wait for answers have far fewer.
pub const PER_ACCOUNT: usize = 256;

/// The number of writes in progress, by the UID of the account.
#[derive(Default)]
pub struct Writes {
    by_account: Mutex<HashMap<Box<str>, usize>>,
}

/// A write; in progress until dropped.
pub struct Write {
    writes: Arc<Writes>,
    account: Box<str>,
}

impl Writes {
    /// Starts a write; `None` if the account has [`PER_ACCOUNT`] in progress.
    pub fn begin(self: &Arc<Self>, account: &str) -> Option<Write> {
        let mut by_account = self.by_account.lock();
        let count = by_account.entry(account.into()).or_default();
        (*count < PER_ACCOUNT).then(|| {
            *count += 1;
            Write {
                writes: self.clone(),
                account: account.into(),
            }
        })
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        let account = std::mem::take(&mut self.account);
        if let Entry::Occupied(mut count) = self.writes.by_account.lock().entry(account) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_account_has_under_way_takes_nothing_from_another() {
        let writes = Arc::<Writes>::default();
        let mut held: Vec<_> = std::iter::from_fn(|| writes.begin("big")).collect();
        assert_eq!(held.len(), PER_ACCOUNT);
        assert!(writes.begin("small").is_some());
        held.pop();
        held.extend(writes.begin("big"));
        assert_eq!(held.len(), PER_ACCOUNT);
        held.clear();
        assert!(writes.by_account.lock().is_empty());
    }
}
