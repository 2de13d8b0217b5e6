//! The instances that account holders see, and the filters of their list.

use std::sync::Arc;

use crate::service::{
    id::InstanceId,
    index::{Indexed, OrderedIndex, Paging},
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
    pub fn is_in(&self, network: &str) -> bool {
        self.instance.spec.private_network.as_deref() == Some(network)
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
    /// Whether an instance matches.
    fn finds(&self, item: &IndexedInstance) -> bool {
        let instance = &item.instance;
        self.status.is_none_or(|status| status == item.state.as_str())
            && self.region.is_none_or(|region| region == instance.spec.region)
            && self.name.is_none_or(|name| name == instance.display_name())
            && self
                .tags
                .iter()
                .all(|tag| instance.spec.tags.iter().any(|own| own == tag))
            && self.private_network.is_none_or(|network| item.is_in(network))
            && self.search.is_none_or(|text| item.is_found_by(text))
    }
}

/// Every instance that is not being deleted.
pub type InstanceIndex = OrderedIndex<IndexedInstance>;

impl InstanceIndex {
    /// One page of the instances that match, newest first, and their total number.
    pub fn list(
        &self,
        namespace: &str,
        filter: Filter<'_>,
        paging: Paging,
    ) -> (Vec<Arc<IndexedInstance>>, usize) {
        if filter == Filter::default() {
            return self.page(namespace, paging);
        }
        self.page_of(namespace, paging, |item| filter.finds(item))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::service::index::{Index as _, changed};
    use runtime::watch::Change;

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
            let (item, total) = index.list("demo", filter, Paging { page, limit });
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
                            let (item, total) = index.list("demo", filter, Paging { page, limit });
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
        assert_eq!(index.page("other", Paging::first(20)).1, 0);
        let past_the_end = Paging {
            page: u64::MAX,
            limit: 100,
        };
        let (item, total) = index.page("demo", past_the_end);
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
        let item = index.all("demo").remove(0);
        assert!(!index.is_gone(&item));
        changed(&*index, &Change::Applied(instance(2, 8, 0, 0, true)));
        assert!(index.is_gone(&item));
    }
}
