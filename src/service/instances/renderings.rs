//! What REST serializes of instances, kept in memory for those who ask again.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak, atomic::Ordering},
};

use parking_lot::Mutex;

use super::{
    index::IndexedInstance,
    rendered::{CachedDetail, Slot},
};
use crate::service::precondition;

/// How many renderings are kept: what waiting clients poll, at some 600 bytes each. The one that was kept first goes first.
const KEPT: usize = 2_000;

/// Renders for the REST facade, and bounds what is kept. Only the facade may use it: every caller gets what was kept.
#[derive(Debug, Default)]
pub struct Renderings {
    /// The instance of each rendering that is kept, oldest first.
    order: Mutex<VecDeque<Weak<IndexedInstance>>>,
}

impl Renderings {
    /// The detail as serialized by `render`.
    pub fn detail(
        &self,
        item: &Arc<IndexedInstance>,
        render: impl FnOnce(&IndexedInstance) -> Vec<u8>,
    ) -> Arc<CachedDetail> {
        self.get(item, &item.rendered.detail, || {
            Arc::new(CachedDetail {
                // Without spare capacity.
                body: render(item).into_boxed_slice().into(),
                tag: precondition::quoted_version(&*item.instance).into(),
            })
        })
    }

    /// The list item as serialized by `render`.
    pub fn list_item(
        &self,
        item: &Arc<IndexedInstance>,
        render: impl FnOnce(&IndexedInstance) -> Vec<u8>,
    ) -> Arc<[u8]> {
        self.get(item, &item.rendered.list_item, || render(item).into())
    }

    fn get<T: ?Sized>(
        &self,
        item: &Arc<IndexedInstance>,
        slot: &Slot<T>,
        render: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        if let Some(kept) = &*slot.kept.lock() {
            return Arc::clone(kept);
        }
        let rendered = render();
        if slot.was_asked.swap(true, Ordering::Relaxed)
            && slot.kept.lock().replace(Arc::clone(&rendered)).is_none()
        {
            self.bound(item);
        }
        rendered
    }

    /// Notes that this instance keeps one more, and lets the oldest go if there are too many.
    fn bound(&self, item: &Arc<IndexedInstance>) {
        let oldest = {
            let mut order = self.order.lock();
            order.push_back(Arc::downgrade(item));
            (order.len() > KEPT).then(|| order.pop_front()).flatten()
        };
        if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
            oldest.rendered.list_item.kept.lock().take();
            oldest.rendered.detail.kept.lock().take();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;

    use super::*;
    use crate::service::index::Indexed as _;

    fn item(number: usize) -> Arc<IndexedInstance> {
        let object = json!({
            "metadata": { "name": format!("i-{number:0>16}"), "namespace": "demo" },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
        });
        let instance = serde_json::from_value(object).unwrap();
        Arc::new(IndexedInstance::of(Arc::new(instance)))
    }

    #[test]
    fn an_answer_is_kept_for_those_who_ask_again_and_not_for_one_who_reads_everything_once() {
        let (renderings, item) = (Renderings::default(), item(1));
        let rendered = Cell::new(0);
        let render = |_: &IndexedInstance| {
            rendered.set(rendered.get() + 1);
            b"{}".to_vec()
        };
        for (asked, expected) in [(1, 1), (2, 2), (3, 2), (4, 2)] {
            assert_eq!(renderings.detail(&item, render).body, "{}");
            assert_eq!(rendered.get(), expected, "asked for {asked} times");
        }
        assert!(item.rendered.list_item.kept.lock().is_none());
        for _ in 0..3 {
            assert_eq!(*renderings.list_item(&item, render), *b"{}");
        }
        assert_eq!(rendered.get(), 4);
    }

    #[test]
    fn one_who_reads_everything_again_and_again_does_not_fill_the_memory() {
        let renderings = Renderings::default();
        let items: Vec<_> = (0..KEPT).map(item).collect();
        for _ in 0..3 {
            for item in &items {
                renderings.detail(item, |_| b"{}".to_vec());
                renderings.list_item(item, |_| b"[]".to_vec());
            }
        }
        let kept = items.iter().map(|item| {
            usize::from(item.rendered.detail.kept.lock().is_some())
                + usize::from(item.rendered.list_item.kept.lock().is_some())
        });
        assert!((1..=KEPT).contains(&kept.sum::<usize>()));
        assert_eq!(renderings.order.lock().len(), KEPT);
        // What was let go is kept again for those who go on asking.
        let rendered = Cell::new(0);
        for _ in 0..3 {
            renderings.detail(&items[0], |_| {
                rendered.set(rendered.get() + 1);
                b"{}".to_vec()
            });
        }
        assert_eq!(rendered.get(), 1);
    }
}
