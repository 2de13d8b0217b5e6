//! The queue of the objects to reconcile. Accounts take turns, no region takes all slots, and objects whose provider does not answer have
//! separate slots. No I/O.
//!
//! kube's `Controller` is not used for this, because its queue does not know about accounts: reconciles would have to
//! be started just to wait for their turn, and it polls all started reconciles whenever one of them makes progress.
//! Here only reconciles that have a slot are started, so the time for a reconcile does not depend on how many others
//! wait.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tokio::time::Instant;

use super::slots::{SlotKey, Slots};
use crate::ObjectRef;

/// Which slots an object needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The provider must be asked about it, and did not answer last time.
    Suspect,
    /// Any other.
    Normal,
}

/// The objects to reconcile, now or later. Each is reconciled by one task at a time.
pub(super) struct WorkQueue {
    objects: HashMap<ObjectRef, Stage>,
    normal: Slots<(ObjectRef, u64)>,
    suspects: Slots<(ObjectRef, u64)>,
    timers: BTreeMap<(Instant, u64), ObjectRef>,
    tickets: u64,
}

/// Where an object is.
#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// Waits for a timer.
    Later(Instant, u64),
    /// Waits for a slot of this class. An older ticket is void.
    Waiting(Class, u64),
    Running {
        /// Whose slot it has.
        slot: SlotKey,
        /// Whether it has been requested in the meantime.
        again: bool,
    },
}

/// The account whose turn an object takes. A cluster-scoped object is an account of its own.
fn account(object_ref: &ObjectRef) -> Arc<str> {
    match object_ref.namespace() {
        "" => object_ref.name().into(),
        namespace => namespace.into(),
    }
}

impl WorkQueue {
    /// `concurrency` slots in all, a quarter of them for suspects. One account gets at most half of the slots, and half of
    /// those for suspects; so does one region.
    pub(super) fn new(concurrency: u16) -> Self {
        let concurrency = usize::from(concurrency);
        let suspects = concurrency / 4;
        Self {
            objects: HashMap::new(),
            normal: Slots::new(concurrency - suspects, concurrency / 2, concurrency / 2),
            suspects: Slots::new(suspects, suspects / 2, suspects / 2),
            timers: BTreeMap::new(),
            tickets: 0,
        }
    }

    /// Number of objects that are reconciled or wait for a slot.
    pub(super) fn depth(&self) -> usize {
        self.objects.len() - self.timers.len()
    }

    /// Requests a reconcile of an object, which concerns this region, once there is a slot, or another one if it is being reconciled
    /// now. An object that waits for a suspect slot waits for a normal slot instead if it is requested as [`Class::Normal`].
    pub(super) fn request(&mut self, object_ref: ObjectRef, class: Class, region: Option<Arc<str>>) {
        match self.objects.get_mut(&object_ref) {
            Some(Stage::Running { again, .. }) => {
                *again = true;
                return;
            }
            Some(Stage::Waiting(before, _)) if *before >= class => return,
            Some(Stage::Later(at, ticket)) => {
                self.timers.remove(&(*at, *ticket));
            }
            Some(Stage::Waiting(..)) | None => {}
        }
        self.tickets += 1;
        let ticket = self.tickets;
        self.objects
            .insert(object_ref.clone(), Stage::Waiting(class, ticket));
        let slot = SlotKey {
            account: account(&object_ref),
            region,
        };
        self.slots(class).push(&slot, (object_ref, ticket));
    }

    /// The next object to reconcile, and the class of its slot. Call [`Self::finished`] afterwards.
    pub(super) fn next(&mut self) -> Option<(ObjectRef, Class)> {
        for class in [Class::Normal, Class::Suspect] {
            while let Some((slot, (object_ref, ticket))) = self.slots(class).pop() {
                match self.objects.get_mut(&object_ref) {
                    Some(stage) if *stage == Stage::Waiting(class, ticket) => {
                        *stage = Stage::Running { slot, again: false };
                        return Some((object_ref, class));
                    }
                    _ => self.slots(class).give_back(&slot),
                }
            }
        }
        None
    }

    /// Ends the reconcile of an object, which is to be reconciled again at this time. Returns whether it was requested
    /// in the meantime; if so, request it again.
    #[must_use]
    pub(super) fn finished(
        &mut self,
        object_ref: &ObjectRef,
        class: Class,
        again_at: Option<Instant>,
    ) -> bool {
        if let Some(Stage::Running { slot, again }) = self.objects.remove(object_ref) {
            self.slots(class).give_back(&slot);
            if again {
                return true;
            }
        }
        if let Some(at) = again_at {
            self.tickets += 1;
            self.objects
                .insert(object_ref.clone(), Stage::Later(at, self.tickets));
            self.timers.insert((at, self.tickets), object_ref.clone());
        }
        false
    }

    /// An object whose time has come; request it.
    pub(super) fn due(&mut self, now: Instant) -> Option<ObjectRef> {
        if self.next_timer()? > now {
            return None;
        }
        let (_, object_ref) = self.timers.pop_first()?;
        self.objects.remove(&object_ref);
        Some(object_ref)
    }

    /// When the next object is due.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|((at, _), _)| *at)
    }

    fn slots(&mut self, class: Class) -> &mut Slots<(ObjectRef, u64)> {
        match class {
            Class::Normal => &mut self.normal,
            Class::Suspect => &mut self.suspects,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn started(queue: &mut WorkQueue) -> Vec<(ObjectRef, Class)> {
        std::iter::from_fn(|| queue.next()).collect()
    }

    #[test]
    fn an_account_that_takes_all_it_can_leaves_slots_to_others_whether_suspect_or_not() {
        for concurrency in [4, 32, 256] {
            let mut queue = WorkQueue::new(concurrency);
            for class in [Class::Normal, Class::Suspect] {
                for number in 0..1000 {
                    queue.request(
                        ObjectRef::new("hostile", &format!("{class:?}-{number}")),
                        class,
                        None,
                    );
                }
                assert!(started(&mut queue).len() <= usize::from(concurrency / 2));
                queue.request(ObjectRef::new("other", &format!("{class:?}")), class, None);
                // With one slot for suspects there is nothing to share.
                assert!(queue.next().is_some() || (class == Class::Suspect && concurrency == 4));
            }
        }
    }

    #[test]
    fn a_region_that_is_slow_leaves_slots_to_others_however_many_accounts_it_has() {
        for class in [Class::Normal, Class::Suspect] {
            let mut queue = WorkQueue::new(32);
            for number in 0..1000 {
                let object_ref = ObjectRef::new(&format!("ns-{number}"), "one");
                queue.request(object_ref, class, Some("slow".into()));
            }
            let most = if class == Class::Normal { 16 } else { 4 };
            assert_eq!(started(&mut queue).len(), most);
            queue.request(ObjectRef::new("ns-1", "fast"), class, Some("fast".into()));
            queue.request(ObjectRef::new("ns-1", "simulated"), class, None);
            assert_eq!(started(&mut queue).len(), 2);
        }
    }

    #[test]
    fn an_instance_is_reconciled_by_one_task_at_a_time_and_again_if_it_was_requested_since() {
        let (mut queue, one) = (WorkQueue::new(32), ObjectRef::new("ns", "one"));
        for _ in 0..3 {
            queue.request(one.clone(), Class::Normal, None);
        }
        assert_eq!(started(&mut queue).len(), 1);
        queue.request(one.clone(), Class::Normal, None);
        assert_eq!(started(&mut queue).len(), 0);
        let soon = Some(Instant::now());
        assert!(queue.finished(&one, Class::Normal, soon), "requested again");
        queue.request(one.clone(), Class::Normal, None);
        assert_eq!(started(&mut queue).len(), 1);
        assert!(!queue.finished(&one, Class::Normal, None));
        assert_eq!((queue.depth(), queue.objects.len()), (0, 0));
    }

    #[test]
    fn an_instance_is_reconciled_when_its_time_has_come_or_when_it_changes_before() {
        let (mut queue, one) = (WorkQueue::new(32), ObjectRef::new("ns", "one"));
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        let reconcile = |queue: &mut WorkQueue| {
            queue.request(one.clone(), Class::Normal, None);
            assert_eq!(started(queue).len(), 1);
            assert!(!queue.finished(&one, Class::Normal, Some(later)));
        };
        reconcile(&mut queue);
        assert_eq!(
            (queue.depth(), queue.next_timer(), queue.due(now)),
            (0, Some(later), None)
        );
        reconcile(&mut queue);
        assert_eq!(queue.timers.len(), 1);
        assert_eq!(queue.due(later), Some(one.clone()));
        assert_eq!(queue.due(later), None);
    }

    #[test]
    fn a_new_operation_of_a_suspect_does_not_wait_behind_the_other_suspects_of_its_account() {
        let mut queue = WorkQueue::new(32);
        for number in 0..200 {
            queue.request(
                ObjectRef::new("ns", &format!("hanging-{number}")),
                Class::Suspect,
                None,
            );
        }
        assert_eq!(started(&mut queue).len(), 4);
        let last = ObjectRef::new("ns", "hanging-199");
        queue.request(last.clone(), Class::Normal, None);
        assert_eq!(queue.next(), Some((last.clone(), Class::Normal)));
        // It asks the provider again, and is a suspect again. Its first place in the queue is void.
        assert!(!queue.finished(&last, Class::Normal, None));
        queue.request(last.clone(), Class::Suspect, None);
        for number in 0..4 {
            assert!(!queue.finished(
                &ObjectRef::new("ns", &format!("hanging-{number}")),
                Class::Suspect,
                None
            ));
        }
        let mut order = Vec::new();
        while let Some((object_ref, class)) = queue.next() {
            order.push(object_ref.clone());
            assert!(!queue.finished(&object_ref, class, None));
        }
        assert_eq!((order.len(), order.last()), (196, Some(&last)));
        assert!(queue.objects.is_empty());
    }

    /// Generous, because debug builds are slow and machines are shared; quadratic code takes hours here.
    #[test]
    fn the_time_for_a_reconcile_does_not_depend_on_how_many_others_wait() {
        let began = std::time::Instant::now();
        let mut queue = WorkQueue::new(256);
        for number in 0..100_000 {
            let object_ref = ObjectRef::new(&format!("ns-{}", number % 500), &format!("i-{number}"));
            queue.request(object_ref, Class::Normal, None);
        }
        let mut finished = 0;
        loop {
            let running = started(&mut queue);
            if running.is_empty() {
                break;
            }
            for (object_ref, class) in running {
                assert!(!queue.finished(&object_ref, class, None));
                finished += 1;
            }
        }
        assert_eq!(finished, 100_000);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(30), "{took:?}");
    }
}
