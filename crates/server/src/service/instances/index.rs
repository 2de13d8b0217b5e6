//! The instances that account holders see, fed by the watch and sorted for paging. A page filtered by status or region costs
//! the same with 100 and with 100,000 instances; filters by name, tag and private network, and searches, scan the instances of the
//! account.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::RwLock;

use crate::service::{
    id::{InstanceId, PublicId as _},
    index::{Index, Indexed, Object as _, Progress, items_before},
};
use domain::instance::shown;
use resources::{Instance, InstanceSpec, InstanceState, Plan};

/// An instance with values derived from it.
#[derive(Debug)]
pub struct IndexedInstance {
    /// The object, shared with the watch's store.
    pub instance: Arc<Instance>,
    /// Its public id.
    pub id: InstanceId,
    /// Its status, as the controller has set it or will set it.
    pub state: InstanceState,
    /// The plan in effect.
    pub plan: Plan,
}

/// Sorts oldest first, and by descending id within a second, since lists are read backwards. The last part separates an id
/// that is an object's name from the same id derived from a UID.
type SortKey = (i64, Reverse<InstanceId>, bool);

impl Indexed for IndexedInstance {
    type Object = Instance;
    type Id = InstanceId;
    type Spec = InstanceSpec;

    const WORD: &'static str = "instance";

    fn of(instance: Arc<Instance>) -> Self {
        let (state, plan) = shown(&instance);
        Self {
            id: InstanceId::of(&instance),
            state,
            plan,
            instance,
        }
    }

    fn id(&self) -> InstanceId {
        self.id
    }

    fn object(&self) -> &Instance {
        &self.instance
    }

    fn spec(&self) -> &InstanceSpec {
        &self.instance.spec
    }
}

impl IndexedInstance {
    /// Whether its name, its id or one of its addresses contains this text.
    fn is_found_by(&self, text: &str) -> bool {
        let text = text.to_ascii_lowercase();
        let has = |own: &str| own.to_ascii_lowercase().contains(&text);
        let status = self.instance.status.as_ref();
        let addresses = status.map(|status| {
            [
                &status.ip_address,
                &status.ipv6_address,
                &status.private_ip_address,
            ]
        });
        has(self.instance.display_name())
            || has(&self.id.to_string())
            || addresses
                .into_iter()
                .flatten()
                .flatten()
                .any(|address| has(address))
    }

    /// Whether it is in the private network with this name.
    fn is_in(&self, network: &str) -> bool {
        self.instance.spec.private_network.as_deref() == Some(network)
    }

    fn namespace(&self) -> &str {
        self.instance.namespace()
    }

    fn region(&self) -> &str {
        &self.instance.spec.region
    }

    /// Whether the id comes from the UID, not from the name.
    fn is_derived(&self) -> bool {
        InstanceId::parse(self.instance.name()).is_none()
    }

    fn sort_key(&self) -> SortKey {
        (
            self.instance.created_at().as_second(),
            Reverse(self.id),
            self.is_derived(),
        )
    }
}

/// The filters of a list. Values that match nothing give an empty list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter<'a> {
    pub status: Option<&'a str>,
    /// A region code.
    pub region: Option<&'a str>,
    /// A display name, exactly.
    pub name: Option<&'a str>,
    /// Tags, exactly; all of them.
    pub tags: &'a [&'a str],
    /// The name of a private network's object.
    pub private_network: Option<&'a str>,
    /// A part of the display name, of the id or of an address. The case of ASCII letters is ignored.
    pub search: Option<&'a str>,
}

impl Filter<'_> {
    /// Whether the filter has to scan instances, because no sorted list answers it.
    fn scans(&self) -> bool {
        self.name.is_some()
            || !self.tags.is_empty()
            || self.private_network.is_some()
            || self.search.is_some()
    }

    /// Whether an instance matches the name, the tags, the private network and the search.
    fn finds(&self, item: &IndexedInstance) -> bool {
        let instance = &item.instance;
        self.name.is_none_or(|name| name == instance.display_name())
            && self
                .tags
                .iter()
                .all(|tag| instance.spec.tags.iter().any(|own| own == tag))
            && self.private_network.is_none_or(|network| item.is_in(network))
            && self.search.is_none_or(|text| item.is_found_by(text))
    }
}

/// Every instance that is not being deleted, by namespace.
#[derive(Debug, Default)]
pub struct InstanceIndex {
    namespaces: RwLock<HashMap<Box<str>, Namespace>>,
    progress: Progress,
}

impl InstanceIndex {
    /// Number of instances in a namespace.
    pub fn count(&self, namespace: &str) -> usize {
        let namespaces = self.namespaces.read();
        namespaces
            .get(namespace)
            .map_or(0, |namespace| namespace.lists.all.len())
    }

    /// The instances of a namespace, in no order.
    pub fn all(&self, namespace: &str) -> Vec<Arc<IndexedInstance>> {
        let namespaces = self.namespaces.read();
        let slots = namespaces.get(namespace).map(|namespace| &namespace.slots);
        slots.into_iter().flatten().flatten().cloned().collect()
    }

    /// Number of instances in the private network with this name.
    pub fn in_network(&self, namespace: &str, network: &str) -> usize {
        let namespaces = self.namespaces.read();
        let Some(namespace) = namespaces.get(namespace) else {
            return 0;
        };
        let all = namespace.slots.iter().flatten();
        all.filter(|item| item.is_in(network)).count()
    }

    /// The instances of a namespace with alerts in their status, in no order.
    pub fn alerting(&self, namespace: &str) -> Vec<Arc<IndexedInstance>> {
        let namespaces = self.namespaces.read();
        let Some(namespace) = namespaces.get(namespace) else {
            return Vec::new();
        };
        let slots = namespace.alerting.iter();
        slots.filter_map(|slot| namespace.at(*slot).cloned()).collect()
    }

    /// One page, newest first, and the total number. `page` counts from 1.
    pub fn page(
        &self,
        namespace: &str,
        filter: Filter<'_>,
        page: u64,
        limit: usize,
    ) -> (Vec<Arc<IndexedInstance>>, usize) {
        let namespaces = self.namespaces.read();
        let Some(namespace) = namespaces.get(namespace) else {
            return (Vec::new(), 0);
        };
        let Some(list) = namespace.list(filter) else {
            return (Vec::new(), 0);
        };
        let skip = items_before(page, limit);
        if filter.scans() {
            let candidates: Vec<_> = list
                .iter()
                .rev()
                .filter_map(|slot| namespace.at(*slot))
                .cloned()
                .collect();
            // Compare after releasing the lock, because comparing takes longer than copying and all requests share the lock.
            drop(namespaces);
            let mut matching = candidates.into_iter().filter(|item| filter.finds(item));
            let before = matching.by_ref().take(skip).count();
            let page: Vec<_> = matching.by_ref().take(limit).collect();
            let total = before + page.len() + matching.count();
            return (page, total);
        }
        let end = list.len().saturating_sub(skip);
        let start = end.saturating_sub(limit);
        let item = list[start..end].iter().rev();
        (
            item.filter_map(|slot| namespace.at(*slot).cloned()).collect(),
            list.len(),
        )
    }
}

impl Index for InstanceIndex {
    type Item = IndexedInstance;

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn get(&self, namespace: &str, id: InstanceId) -> Option<Arc<IndexedInstance>> {
        let namespaces = self.namespaces.read();
        let namespace = namespaces.get(namespace)?;
        let slot = namespace.named.get(&id).or_else(|| namespace.derived.get(&id))?;
        namespace.at(*slot).cloned()
    }

    fn replace(&self, instances: &[Arc<Instance>]) {
        let namespaces = build(instances);
        *self.namespaces.write() = namespaces;
    }

    fn apply(&self, instance: &Arc<Instance>) {
        let item = IndexedInstance::of(instance.clone());
        let mut namespaces = self.namespaces.write();
        match namespaces.get_mut(item.namespace()) {
            Some(namespace) => namespace.apply(item),
            None => namespaces.entry(item.namespace().into()).or_default().apply(item),
        }
    }

    fn remove(&self, instance: &Instance) {
        let key = instance.namespace();
        let mut namespaces = self.namespaces.write();
        if let Some(namespace) = namespaces.get_mut(key) {
            namespace.remove(instance);
            if namespace.lists.all.is_empty() {
                namespaces.remove(key);
            }
        }
    }
}

fn build(instances: &[Arc<Instance>]) -> HashMap<Box<str>, Namespace> {
    let mut item: Vec<IndexedInstance> = instances
        .iter()
        .filter(|i| !i.is_deleting())
        .map(|i| IndexedInstance::of(i.clone()))
        .collect();
    // Sorted, so that every insertion appends.
    item.sort_by_cached_key(IndexedInstance::sort_key);
    let mut namespaces: HashMap<Box<str>, Namespace> = HashMap::new();
    for one in item {
        match namespaces.get_mut(one.namespace()) {
            Some(namespace) => namespace.apply(one),
            None => namespaces.entry(one.namespace().into()).or_default().apply(one),
        }
    }
    namespaces
}

/// The instances of one namespace, each in a slot. The lists hold slot numbers, because these are small.
#[derive(Debug, Default)]
struct Namespace {
    slots: Vec<Option<Arc<IndexedInstance>>>,
    free: Vec<u32>,
    named: HashMap<InstanceId, u32>,
    derived: HashMap<InstanceId, u32>,
    lists: Lists,
    regions: HashMap<Box<str>, Lists>,
    /// Slots of the instances with alerts in their status.
    alerting: BTreeSet<u32>,
}

/// Sorted by [`SortKey`]: all instances, and those of each state.
#[derive(Debug, Default)]
struct Lists {
    all: Vec<u32>,
    by_state: [Vec<u32>; InstanceState::ALL.len()],
}

impl Namespace {
    fn at(&self, slot: u32) -> Option<&Arc<IndexedInstance>> {
        #[cfg(test)]
        tests::TOUCHED.set(tests::TOUCHED.get() + 1);
        self.slots.get(slot as usize)?.as_ref()
    }

    fn list(&self, filter: Filter<'_>) -> Option<&Vec<u32>> {
        let lists = match filter.region {
            Some(region) => self.regions.get(region)?,
            None => &self.lists,
        };
        Some(match filter.status {
            Some(status) => {
                let state = InstanceState::ALL.into_iter().find(|s| s.as_str() == status)?;
                &lists.by_state[state as usize]
            }
            None => &lists.all,
        })
    }

    fn apply(&mut self, item: IndexedInstance) {
        let ids = if item.is_derived() {
            &self.derived
        } else {
            &self.named
        };
        let Some(slot) = ids.get(&item.id).copied() else {
            self.insert(item);
            return;
        };
        let Some(before) = self.at(slot).cloned() else {
            return;
        };
        if before.sort_key() != item.sort_key() || before.region() != item.region() {
            self.take_out(&before, slot);
            self.insert(item);
            return;
        }
        if before.state != item.state {
            let order = item.sort_key();
            let lists = self.regions.get_mut(item.region());
            for lists in [Some(&mut self.lists), lists].into_iter().flatten() {
                remove(&mut lists.by_state[before.state as usize], &self.slots, &order);
                insert(
                    &mut lists.by_state[item.state as usize],
                    &self.slots,
                    &order,
                    slot,
                );
            }
        }
        self.note_alerts(&item, slot);
        self.slots[slot as usize] = Some(Arc::new(item));
    }

    fn note_alerts(&mut self, item: &IndexedInstance, slot: u32) {
        let status = item.instance.status.as_ref();
        if status.is_some_and(|status| !status.alerts.is_empty()) {
            self.alerting.insert(slot);
        } else {
            self.alerting.remove(&slot);
        }
    }

    fn insert(&mut self, item: IndexedInstance) {
        let (order, state) = (item.sort_key(), item.state);
        if !self.regions.contains_key(item.region()) {
            self.regions.insert(item.region().into(), Lists::default());
        }
        // etcd cannot hold 2^32 instances.
        let slot = self
            .free
            .pop()
            .unwrap_or_else(|| u32::try_from(self.slots.len()).unwrap_or(u32::MAX));
        let lists = self.regions.get_mut(item.region());
        for lists in [Some(&mut self.lists), lists].into_iter().flatten() {
            insert(&mut lists.all, &self.slots, &order, slot);
            insert(&mut lists.by_state[state as usize], &self.slots, &order, slot);
        }
        let ids = if item.is_derived() {
            &mut self.derived
        } else {
            &mut self.named
        };
        ids.insert(item.id, slot);
        self.note_alerts(&item, slot);
        match self.slots.get_mut(slot as usize) {
            Some(place) => *place = Some(Arc::new(item)),
            None => self.slots.push(Some(Arc::new(item))),
        }
    }

    fn remove(&mut self, instance: &Instance) {
        let id = InstanceId::of(instance);
        let is_named = InstanceId::parse(instance.name()).is_some();
        let ids = if is_named { &self.named } else { &self.derived };
        if let Some(slot) = ids.get(&id).copied()
            && let Some(item) = self.at(slot).cloned()
        {
            self.take_out(&item, slot);
        }
    }

    fn take_out(&mut self, item: &IndexedInstance, slot: u32) {
        let order = item.sort_key();
        let lists = self.regions.get_mut(item.region());
        for lists in [Some(&mut self.lists), lists].into_iter().flatten() {
            remove(&mut lists.all, &self.slots, &order);
            remove(&mut lists.by_state[item.state as usize], &self.slots, &order);
        }
        if self
            .regions
            .get(item.region())
            .is_some_and(|lists| lists.all.is_empty())
        {
            self.regions.remove(item.region());
        }
        let ids = if item.is_derived() {
            &mut self.derived
        } else {
            &mut self.named
        };
        ids.remove(&item.id);
        self.alerting.remove(&slot);
        self.slots[slot as usize] = None;
        self.free.push(slot);
    }
}

fn position(list: &[u32], slots: &[Option<Arc<IndexedInstance>>], order: &SortKey) -> Result<usize, usize> {
    list.binary_search_by(|slot| {
        slots
            .get(*slot as usize)
            .and_then(Option::as_ref)
            .map(|item| item.sort_key())
            .cmp(&Some(*order))
    })
}

fn insert(list: &mut Vec<u32>, slots: &[Option<Arc<IndexedInstance>>], order: &SortKey, slot: u32) {
    // The newest instance is the usual case and goes to the end.
    let (Ok(at) | Err(at)) = position(list, slots, order);
    list.insert(at, slot);
}

fn remove(list: &mut Vec<u32>, slots: &[Option<Arc<IndexedInstance>>], order: &SortKey) {
    if let Ok(at) = position(list, slots, order) {
        list.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::service::index::changed;
    use runtime::watch::Change;

    thread_local! {
        /// Instances that this thread has looked at.
        pub(super) static TOUCHED: Cell<usize> = const { Cell::new(0) };
    }

    const REGIONS: [&str; 2] = ["fr-par-1", "de-fra-1"];
    const STATES: [&str; 3] = ["running", "stopped", "error"];

    fn instance(number: u8, version: u64, state: usize, region: usize, deleting: bool) -> Arc<Instance> {
        // Every other name is not an id, and several instances have the same creation time.
        let name = if number.is_multiple_of(2) {
            format!("i-{number:0>16}")
        } else {
            format!("web-{number}")
        };
        let state = STATES[state];
        let power = if state == "stopped" { "Stopped" } else { "Running" };
        let mut object = json!({
            "metadata": {
                "name": name, "namespace": "demo", "uid": format!("uid-{number}"), "resourceVersion": version.to_string(),
                "creationTimestamp": format!("2026-11-21T10:00:0{}Z", number % 4),
            },
            "spec": { "plan": "starter", "region": REGIONS[region], "image": "debian-13", "powerState": power },
            "status": { "state": state, "power": power, "powerState": power, "plan": "starter", "image": "debian-13" },
        });
        if deleting {
            object["metadata"]["deletionTimestamp"] = json!("2026-11-21T11:00:00Z");
        }
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[derive(Clone, Debug)]
    enum Step {
        Apply(u8, usize, usize, bool),
        Delete(u8),
        Relist,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0_u8..24, 0_usize..3, 0_usize..2, prop::bool::weighted(0.1))
                .prop_map(|(n, s, r, d)| Step::Apply(n, s, r, d)),
            3 => (0_u8..24).prop_map(Step::Delete),
            1 => Just(Step::Relist),
        ]
    }

    /// The model: filters and sorts everything for each page.
    fn naive(all: &HashMap<u8, Arc<Instance>>, filter: Filter<'_>) -> Vec<String> {
        let mut item: Vec<(i64, String)> = all
            .values()
            .filter(|i| !i.is_deleting())
            .filter(|i| filter.region.is_none_or(|r| r == i.spec.region))
            .filter(|i| {
                filter
                    .status
                    .is_none_or(|s| IndexedInstance::of((*i).clone()).state.as_str() == s)
            })
            .map(|i| (-i.created_at().as_second(), i.id()))
            .collect();
        item.sort();
        item.into_iter().map(|(_, id)| id).collect()
    }

    #[test]
    fn a_page_looks_at_no_more_instances_than_it_shows_among_100_and_among_100_000() {
        for many in [100, 100_000] {
            let index = InstanceIndex::default();
            let parts = [0, 1].map(|state| instance(0, 1, state, state, false));
            let all: Vec<_> = (0..many)
                .map(|number| {
                    let mut one = (*parts[number % 2]).clone();
                    one.metadata.name = Some(format!("i-{number:0>16}"));
                    Arc::new(one)
                })
                .collect();
            changed(&index, &Change::Replaced(all));
            for filter in [
                Filter::default(),
                Filter {
                    status: Some("running"),
                    ..Filter::default()
                },
                Filter {
                    region: Some(REGIONS[1]),
                    ..Filter::default()
                },
                Filter {
                    status: Some("stopped"),
                    region: Some(REGIONS[1]),
                    ..Filter::default()
                },
            ] {
                let halved = if filter == Filter::default() { 1 } else { 2 };
                for page in [1, 2, u64::try_from(many / halved / 20).unwrap(), u64::MAX] {
                    TOUCHED.set(0);
                    let (shown, total) = index.page("demo", filter, page, 20);
                    assert_eq!(total, many / halved, "{filter:?}");
                    assert_eq!(TOUCHED.get(), shown.len(), "{filter:?}, page {page} of {many}");
                }
            }
        }
    }

    #[test]
    fn filters_by_name_tag_and_private_network_narrow_pages_and_totals_and_combine() {
        let index = InstanceIndex::default();
        for number in 0..6 {
            let mut object = (*instance(number, 7, usize::from(number % 2), 0, false)).clone();
            object.spec.name = Some(if number < 4 { "web" } else { "db" }.to_owned());
            object.spec.tags = vec![format!("n:{number}"), "env:prod".to_owned()];
            object.spec.private_network = (number < 2).then(|| "pn-a".to_owned());
            object.status.as_mut().unwrap().ip_address = Some(format!("198.18.0.{number}"));
            changed(&index, &Change::Applied(Arc::new(object)));
        }
        let page = |filter, page, limit| {
            let (item, total) = index.page("demo", filter, page, limit);
            (item.len(), total)
        };
        let named = |name| Filter {
            name: Some(name),
            ..Filter::default()
        };
        let tagged = |tags| Filter {
            tags,
            ..Filter::default()
        };
        assert_eq!(page(named("web"), 1, 3), (3, 4));
        assert_eq!(page(named("web"), 2, 3), (1, 4));
        assert_eq!(page(named("web"), 3, 3), (0, 4));
        assert_eq!(page(named("we"), 1, 3), (0, 0), "names must match exactly");
        assert_eq!(page(tagged(&["n:5"]), 1, 20), (1, 1));
        assert_eq!(page(tagged(&["env"]), 1, 20), (0, 0));
        assert_eq!(page(tagged(&["env:prod", "n:5"]), 1, 20), (1, 1), "all of them");
        assert_eq!(page(tagged(&["n:4", "n:5"]), 1, 20), (0, 0));
        let within = |network| Filter {
            private_network: Some(network),
            ..Filter::default()
        };
        assert_eq!(page(within("pn-a"), 1, 1), (1, 2));
        assert_eq!(page(within(""), 1, 20), (0, 0), "not those in no network");
        let searched = |text| Filter {
            search: Some(text),
            ..Filter::default()
        };
        assert_eq!(page(searched("EB"), 1, 20), (4, 4), "a part of the name");
        assert_eq!(page(searched("I-0000000000000002"), 1, 20), (1, 1), "the id");
        assert_eq!(page(searched("198.18.0.1"), 1, 20), (1, 1), "the address");
        assert_eq!(page(searched("web-"), 1, 20), (0, 0));
        let all = Filter {
            status: Some("running"),
            region: Some(REGIONS[0]),
            name: Some("web"),
            tags: &["env:prod"],
            private_network: Some("pn-a"),
            search: Some("WE"),
        };
        assert_eq!(page(all, 1, 20), (1, 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn pages_equal_those_of_a_naive_model(steps in prop::collection::vec(step(), 1..100), limit in 1_usize..7) {
            let index = Arc::new(InstanceIndex::default());
            let mut all: HashMap<u8, Arc<Instance>> = HashMap::new();
            for (version, step) in (1..).zip(steps) {
                match step {
                    Step::Apply(number, state, region, deleting) => {
                        let object = instance(number, version, state, region, deleting);
                        all.insert(number, object.clone());
                        changed(&*index, &Change::Applied(object));
                    }
                    Step::Delete(number) => {
                        if let Some(object) = all.remove(&number) {
                            changed(&*index, &Change::Deleted(object));
                        }
                    }
                    Step::Relist => changed(&*index, &Change::Replaced(all.values().cloned().collect())),
                }
                let none = [None];
                for status in STATES.map(Some).into_iter().chain(none).chain([Some("nonsense"), Some("deleting")]) {
                    for region in REGIONS.map(Some).into_iter().chain(none).chain([Some("xx-abc-1")]) {
                        let filter = Filter { status, region, ..Filter::default() };
                        let expected = naive(&all, filter);
                        let mut found = Vec::new();
                        for page in 1.. {
                            let (item, total) = index.page("demo", filter, page, limit);
                            prop_assert_eq!(total, expected.len());
                            if item.is_empty() {
                                break;
                            }
                            found.extend(item.into_iter().map(|s| s.id.to_string()));
                        }
                        prop_assert_eq!(&found, &expected);
                    }
                }
                for object in all.values() {
                    let found = index.get("demo", InstanceId::of(object));
                    prop_assert_eq!(found.is_some(), !object.is_deleting());
                }
            }
        }
    }

    #[test]
    fn another_namespace_and_a_page_past_the_end_are_empty() {
        let index = Arc::new(InstanceIndex::default());
        changed(&*index, &Change::Applied(instance(2, 7, 0, 0, false)));
        assert_eq!(index.page("other", Filter::default(), 1, 20).1, 0);
        let (item, total) = index.page("demo", Filter::default(), u64::MAX, 100);
        assert!(item.is_empty() && total == 1);
        assert!(
            index
                .get("other", InstanceId::of(&instance(2, 7, 0, 0, false)))
                .is_none()
        );
    }

    #[tokio::test]
    async fn an_applied_change_ends_the_wait_for_it() {
        let index = Arc::new(InstanceIndex::default());
        changed(&*index, &Change::Replaced(Vec::new()));
        assert!(index.progress().is_synced());
        changed(&*index, &Change::Applied(instance(2, 7, 0, 0, false)));
        assert!(index.progress().wait_for(7).await);
        let item = index.page("demo", Filter::default(), 1, 20).0.remove(0);
        assert!(!index.is_gone(&item));
        changed(&*index, &Change::Applied(instance(2, 8, 0, 0, true)));
        assert!(index.is_gone(&item));
        assert!(
            index.namespaces.read().is_empty(),
            "an empty namespace costs nothing"
        );
    }
}
