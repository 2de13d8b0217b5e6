//! Reads the pages of an account's event log: the metadata of all, and the contents of single ones.

use std::{cmp::Reverse, ops::ControlFlow};

use futures::{Stream, StreamExt as _, TryStreamExt as _};
use kube::{Api, api::ListParams};

use super::window::{Merge, Place, Segment};
use crate::{
    resources::{EventLog, PageIndex},
    runtime::{
        client::{bounded, next_page},
        fair_permits::Permit,
    },
    service::{credentials::Tenant, error::Error, store::ApiCalls},
};

/// Pages per list call.
const PAGE: u32 = 500;
/// Pages whose contents are in memory at the same time. Each has at most 1.5 MiB.
const READS_AT_ONCE: usize = 4;

/// The pages of an account.
#[derive(Clone, Copy)]
pub struct Pages<'a> {
    calls: &'a ApiCalls,
    namespace: &'a str,
    account: &'a str,
}

/// A page as lists show it.
pub struct ListedPage {
    /// Its name.
    pub name: String,
    /// What its metadata says of its contents.
    pub index: PageIndex,
}

/// A page of which some events are selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    /// Its name.
    pub name: String,
    /// The selected events.
    pub segment: Segment,
}

impl<'a> Pages<'a> {
    /// The pages of an account.
    pub fn of(calls: &'a ApiCalls, tenant: &'a Tenant) -> Self {
        Self {
            calls,
            namespace: &tenant.namespace,
            account: &tenant.uid,
        }
    }

    /// Passes the pages to `see`, in the order in which they were written, newest first, until it breaks. `reading` is the permit
    /// to read many objects; if there is none and one list call is not enough, it is set.
    pub async fn each(
        &self,
        reading: &mut Option<Permit>,
        mut see: impl FnMut(ListedPage) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let api: Api<EventLog> = self.calls.api(self.namespace);
        let mut parameters = ListParams::default().limit(PAGE);
        loop {
            let list = {
                let _permit = self.calls.permit(self.namespace).await?;
                bounded(api.list_metadata(&parameters)).await?
            };
            for object in list.items {
                let index = PageIndex::read(&object.metadata);
                // A former account of the namespace may have left pages.
                let index = index.filter(|index| index.account == self.account);
                if let Some((name, index)) = object.metadata.name.zip(index)
                    && see(ListedPage { name, index }).is_break()
                {
                    return Ok(());
                }
            }
            if !next_page(&mut parameters, &list.metadata) {
                return Ok(());
            }
            if reading.is_none() {
                *reading = Some(self.calls.long_read(self.namespace).await?);
            }
        }
    }

    /// The contents of a page; `None` if it has been deleted.
    pub async fn get(&self, name: &str) -> Result<Option<EventLog>, Error> {
        let page: Option<EventLog> = self.calls.get(self.namespace, name).await?;
        Ok(page.filter(|page| page.spec.account == self.account))
    }

    /// The contents of pages, in this order, a few of them read ahead; `None` for each that has been deleted.
    pub fn read(
        &self,
        names: impl IntoIterator<Item = String>,
    ) -> impl Stream<Item = Result<Option<EventLog>, Error>> {
        let pages = *self;
        futures::stream::iter(names)
            .map(move |name: String| async move { pages.get(&name).await })
            .buffered(READS_AT_ONCE)
    }

    /// Adds the items of pages to a merge. `items` selects them.
    pub async fn merge<T>(
        &self,
        mut pages: Vec<Selected>,
        merge: &mut Merge<T>,
        mut items: impl FnMut(EventLog) -> Vec<(Place, T)>,
    ) -> Result<(), Error> {
        pages.sort_by_key(|page| Reverse(page.segment.to));
        let newest: Vec<_> = pages.iter().map(|page| page.segment.to).collect();
        let read = self.read(pages.into_iter().map(|page| page.name));
        let mut read = std::pin::pin!(read);
        for newest in newest {
            merge.settle(Some(newest));
            for (place, item) in read
                .try_next()
                .await?
                .flatten()
                .map(&mut items)
                .unwrap_or_default()
            {
                merge.add(place, item);
            }
        }
        Ok(())
    }
}
