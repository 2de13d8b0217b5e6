//! Private networks in a model of a region's cluster. Tests named `row_…` are of rows of the design's failure matrix.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{super::testing::*, *};

const UID: &str = "8c1f02ab-9e51-4d0c-8a77-4f1f6f0a9d3e";
const OTHER: &str = "5b7d1a90-0c3e-4a52-9d4e-2f6b8f1c7e11";
const SERVERS: &str = "stellage-acme";

/// The cluster of a region, with kube-ovn in it.
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
struct World {
    /// By kind, namespace and name.
    objects: BTreeMap<(String, String, String), Value>,
    /// Whether kube-ovn's kinds are installed.
    has_kinds: bool,
    /// Whether kube-ovn's controller acts.
    acts: bool,
    /// What it complains of.
    complains: Option<&'static str>,
    /// Whether servers are still in the Subnet.
    is_used: bool,
    /// Whether the process knows the namespace to be complete.
    knows_namespace: bool,
    revision: u64,
    calls: Vec<String>,
}

impl World {
    fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            has_kinds: true,
            acts: true,
            complains: None,
            is_used: false,
            knows_namespace: false,
            revision: 0,
            calls: Vec::new(),
        }
    }

    fn put(&mut self, namespace: &str, mut object: Value) {
        self.revision += 1;
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        object["metadata"]["uid"] = format!("uid-{}", self.revision).into();
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let kind = object["kind"].as_str().unwrap().to_owned();
        self.objects.insert((kind, namespace.to_owned(), name), object);
    }

    fn get(&mut self, kind: &str) -> &mut Value {
        let mut all = self.objects.iter_mut();
        all.find(|((of, ..), _)| of == kind).unwrap().1
    }

    fn kinds(&self) -> Vec<&str> {
        self.objects.keys().map(|(kind, ..)| kind.as_str()).collect()
    }

    /// kube-ovn gets on with it.
    fn act(&mut self) {
        if !self.acts {
            return;
        }
        let (complains, is_used) = (self.complains, self.is_used);
        self.objects.retain(|(kind, ..), object| {
            let waits = kind == "Subnet" && is_used;
            !object["metadata"]["deletionTimestamp"].is_string() || waits
        });
        for ((kind, ..), object) in &mut self.objects {
            if kind == "Subnet" {
                object["status"]["conditions"] = match complains {
                    None => json!([{ "type": "Ready", "status": "True" }]),
                    Some(message) => json!([
                        { "type": "Ready", "status": "False" },
                        { "type": "Error", "status": "True", "message": message },
                    ]),
                };
            }
        }
    }

    fn execute(&mut self, namespace: &str, action: &Action) -> Answer {
        let read = |object: &Value| match object["kind"].as_str().unwrap() {
            "Subnet" => Answer::Subnet(serde_json::from_value(object.clone()).unwrap()),
            "NetworkAttachmentDefinition" => {
                Answer::Attachment(serde_json::from_value(object.clone()).unwrap())
            }
            _ => Answer::Object(serde_json::from_value(object["metadata"].clone()).unwrap()),
        };
        let key = |kind: Kind, name: &str| {
            let (kind, namespace) = match kind {
                Kind::Vpc => ("Vpc", ""),
                Kind::Subnet => ("Subnet", ""),
                Kind::NetworkAttachment => ("NetworkAttachmentDefinition", namespace),
                Kind::Namespace => ("Namespace", ""),
                Kind::RoleBinding => ("RoleBinding", namespace),
                Kind::NetworkPolicy => ("NetworkPolicy", namespace),
                kind => panic!("{kind:?}"),
            };
            (kind.to_owned(), namespace.to_owned(), name.to_owned())
        };
        let name_of = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        let (word, kind) = match action {
            Action::In { namespace, action } => return self.execute(namespace, action),
            Action::Post { kind, .. } => ("post", *kind),
            Action::Apply { kind, .. } => ("apply", *kind),
            Action::Get { kind, .. } => ("get", *kind),
            Action::List { kind, .. } => ("list", *kind),
            Action::Patch { kind, .. } => ("patch", *kind),
            Action::Delete { kind, .. } => ("delete", *kind),
            other => panic!("{other:?}"),
        };
        self.calls.push(format!("{word} {kind:?}"));
        if matches!(kind, Kind::Vpc | Kind::Subnet) && !self.has_kinds {
            return refused(404, "the server could not find the requested resource");
        }
        match action {
            Action::Post { object, .. } => {
                let key = key(kind, &name_of(object));
                if self.objects.contains_key(&key) {
                    return refused(409, "already exists");
                }
                let is_missing = !key.1.is_empty()
                    && !self
                        .objects
                        .contains_key(&("Namespace".to_owned(), String::new(), key.1.clone()));
                if is_missing {
                    return refused(404, "namespace not found");
                }
                self.put(&key.1, object.clone());
                read(&self.objects[&key])
            }
            Action::Apply { object, .. } => {
                let key = key(kind, &name_of(object));
                self.put(&key.1, object.clone());
                read(&self.objects[&key])
            }
            Action::Get { name, .. } => {
                let found = self.objects.get(&key(kind, name));
                found.map_or_else(|| refused(404, "not found"), read)
            }
            Action::List { selector, .. } => {
                let wanted = selector.split_once('=');
                let found = self.objects.iter().filter(|((of, within, _), object)| {
                    of == "NetworkAttachmentDefinition"
                        && within == namespace
                        && wanted.is_none_or(|(label, value)| object["metadata"]["labels"][label] == value)
                });
                let found = found.map(|(_, object)| serde_json::from_value(object.clone()).unwrap());
                Answer::Attachments(found.collect())
            }
            Action::Patch { name, patch, .. } => {
                let Some(object) = self.objects.get_mut(&key(kind, name)) else {
                    return refused(404, "not found");
                };
                let fence = &patch["metadata"]["resourceVersion"];
                if *fence != object["metadata"]["resourceVersion"] {
                    return refused(409, "the object has been modified");
                }
                merge(object, patch);
                self.revision += 1;
                object["metadata"]["resourceVersion"] = self.revision.to_string().into();
                read(object)
            }
            Action::Delete { name, uid, .. } => {
                let Some(object) = self.objects.get_mut(&key(kind, name)) else {
                    return refused(404, "not found");
                };
                assert_eq!(object["metadata"]["uid"], *uid);
                object["metadata"]["deletionTimestamp"] = json!(at(0));
                if kind == Kind::NetworkAttachment {
                    self.objects.remove(&key(kind, name));
                }
                Answer::Done
            }
            other => panic!("{other:?}"),
        }
    }

    /// One step about a network; at most this many calls are made, and of the last one the answer is lost.
    fn step(&mut self, work: Work, network: &PrivateNetwork, region: &KubeVirt, most: usize) -> Outcome {
        let user = "system:serviceaccount:stellage:stellage".to_owned();
        let namespace = NetworkNames::of(network, region).namespace;
        let account = ACCOUNT_UID.to_owned();
        let mut seen = Seen::new(Reach::Live, account, user, self.knows_namespace);
        for _ in 0..most {
            let plan = match work {
                Work::Make => plan(network, &seen, region),
                Work::Remove => plan_removal(network, &seen, region),
            };
            let Some(action) = plan.action else {
                self.act();
                return match plan.outcome.unwrap() {
                    Progress::Done => Outcome::Done,
                    Progress::Failed(trouble) => Outcome::Failed(trouble.reason),
                    Progress::Busy | Progress::Idle => Outcome::Busy,
                };
            };
            let answer = self.execute(&namespace, &action);
            seen.take(action, answer);
            self.knows_namespace |= seen.has_namespace;
        }
        Outcome::Busy
    }

    fn make(&mut self, network: &PrivateNetwork, region: &KubeVirt) -> Outcome {
        self.step(Work::Make, network, region, 24)
    }

    fn remove(&mut self, network: &PrivateNetwork, region: &KubeVirt) -> Outcome {
        self.step(Work::Remove, network, region, 24)
    }
}

#[derive(Clone, Copy)]
enum Work {
    Make,
    Remove,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Busy,
    Failed(&'static str),
}

fn network(uid: &str) -> PrivateNetwork {
    serde_json::from_value(json!({
        "metadata": { "name": "pn-backend", "namespace": "acme", "uid": uid },
        "spec": { "region": "de-fra-1" },
        "status": { "prefix": "10.128.4.0/24" },
    }))
    .unwrap()
}

fn region_with(driver: PrivateNetworks) -> KubeVirt {
    let mut region = region();
    region.network.private_networks = driver;
    region
}

fn kube_ovn() -> KubeVirt {
    region_with(PrivateNetworks::KubeOvn)
}

const OF_KUBE_OVN: [&str; 6] = [
    "Namespace",
    "NetworkAttachmentDefinition",
    "NetworkPolicy",
    "RoleBinding",
    "Subnet",
    "Vpc",
];

#[test]
fn kube_ovn_gets_a_vpc_of_its_own_with_one_subnet_and_the_attachment_of_the_networks_name() {
    let (region, network) = (kube_ovn(), network(UID));
    let mut world = World::new();
    assert_eq!(
        world.make(&network, &region),
        Outcome::Busy,
        "kube-ovn has not seen it"
    );
    assert_eq!(world.kinds(), OF_KUBE_OVN);
    assert_eq!(world.make(&network, &region), Outcome::Done);
    world.calls.clear();
    assert_eq!(world.make(&network, &region), Outcome::Done);
    assert_eq!(
        world.calls,
        ["get Vpc", "get Subnet", "get NetworkAttachment"],
        "nothing is written any more"
    );
    let names = NetworkNames::of(&network, &region);
    let prefix = "10.128.4.0/24".parse().unwrap();
    let made = [
        vpc(&region, ACCOUNT_UID, &names),
        subnet(&region, ACCOUNT_UID, &names, prefix),
        network_attachment(&region, ACCOUNT_UID, &names),
    ];
    golden("private-network.json", &format!("{:#}\n", json!(made)));
}

#[test]
fn networks_of_one_name_and_prefix_in_two_accounts_or_installations_share_nothing() {
    let region = kube_ovn();
    let names = NetworkNames::of(&network(UID), &region);
    let mut elsewhere = network(OTHER);
    elsewhere.metadata.namespace = Some("other".to_owned());
    let mut of_others = region.clone();
    of_others.installation = "prod-2".to_owned();
    for other in [
        NetworkNames::of(&elsewhere, &region),
        NetworkNames::of(&network(UID), &of_others),
    ] {
        assert!(names.vpc != other.vpc && names.subnet != other.subnet);
    }
    assert_ne!(names.provider(), NetworkNames::of(&elsewhere, &region).provider());
}

#[test]
fn a_network_is_made_and_removed_whatever_call_is_the_last_before_a_crash_and_whatever_answer_is_lost() {
    let (region, network) = (kube_ovn(), network(UID));
    for cut in 1..12 {
        let mut world = World::new();
        world.step(Work::Make, &network, &region, cut);
        for _ in 0..3 {
            world.make(&network, &region);
        }
        assert_eq!(world.make(&network, &region), Outcome::Done, "{cut}");
        assert_eq!(world.kinds(), OF_KUBE_OVN, "{cut}");
        world.step(Work::Remove, &network, &region, cut);
        world.act();
        for _ in 0..4 {
            world.remove(&network, &region);
        }
        assert_eq!(world.remove(&network, &region), Outcome::Done, "{cut}");
        assert_eq!(
            world.kinds(),
            ["Namespace", "NetworkPolicy", "RoleBinding"],
            "{cut}"
        );
    }
}

#[test]
fn without_kube_ovns_kinds_a_network_waits_for_them_and_can_be_removed() {
    let (region, network) = (kube_ovn(), network(UID));
    let mut world = World::new();
    world.has_kinds = false;
    let unavailable = Outcome::Failed("PrivateNetworksUnavailable");
    assert_eq!(world.make(&network, &region), unavailable);
    assert_eq!(world.remove(&network, &region), Outcome::Done);
    world.has_kinds = true;
    world.make(&network, &region);
    assert_eq!(world.make(&network, &region), Outcome::Done);
}

#[test]
fn what_somebody_deletes_is_made_again() {
    let (region, network) = (kube_ovn(), network(UID));
    for gone in ["Vpc", "Subnet", "NetworkAttachmentDefinition", "Namespace"] {
        let mut world = World::new();
        world.make(&network, &region);
        assert_eq!(world.make(&network, &region), Outcome::Done);
        world
            .objects
            .retain(|(kind, within, _), _| kind != gone && (gone != "Namespace" || within.is_empty()));
        for _ in 0..3 {
            world.make(&network, &region);
        }
        assert_eq!(world.make(&network, &region), Outcome::Done, "{gone}");
        assert_eq!(world.kinds(), OF_KUBE_OVN, "{gone}");
    }
}

#[test]
fn what_is_being_deleted_is_waited_for() {
    let (region, network) = (kube_ovn(), network(UID));
    let mut world = World::new();
    world.make(&network, &region);
    world.acts = false;
    world.get("Subnet")["metadata"]["deletionTimestamp"] = json!(at(0));
    assert_eq!(world.make(&network, &region), Outcome::Busy);
    world.acts = true;
    world.act();
    world.make(&network, &region);
    assert_eq!(world.make(&network, &region), Outcome::Done);
}

#[test]
fn what_is_not_the_networks_is_neither_used_nor_deleted() {
    let (region, network) = (kube_ovn(), network(UID));
    for kind in ["Vpc", "Subnet", "NetworkAttachmentDefinition"] {
        let mut world = World::new();
        world.make(&network, &region);
        world.get(kind)["metadata"]["labels"][NETWORK_UID] = OTHER.into();
        assert_eq!(
            world.make(&network, &region),
            Outcome::Failed("NameTaken"),
            "{kind}"
        );
        for _ in 0..3 {
            world.remove(&network, &region);
        }
        assert_eq!(world.remove(&network, &region), Outcome::Done, "{kind}");
        assert!(world.kinds().contains(&kind), "{kind}");
    }
}

#[test]
fn a_network_that_somebody_has_opened_is_told_and_left_as_it_is() {
    let (region, network) = (kube_ovn(), network(UID));
    for (kind, field, value) in [
        ("Subnet", "vpc", json!("ovn-cluster")),
        ("Subnet", "private", json!(false)),
        ("Subnet", "natOutgoing", json!(true)),
        ("Subnet", "cidrBlock", json!("10.0.0.0/8")),
        ("Subnet", "provider", json!("ovn")),
        ("NetworkAttachmentDefinition", "config", json!("{}")),
    ] {
        let mut world = World::new();
        world.make(&network, &region);
        world.get(kind)["spec"][field] = value;
        world.calls.clear();
        let changed = Outcome::Failed("PrivateNetworkChanged");
        assert_eq!(world.make(&network, &region), changed, "{kind} {field}");
        assert!(
            world.calls.iter().all(|call| call.starts_with("get")),
            "{:?}",
            world.calls
        );
    }
}

#[test]
fn what_kube_ovn_complains_of_is_told() {
    let (region, network) = (kube_ovn(), network(UID));
    let mut world = World::new();
    world.complains = Some("cidr is conflict");
    world.make(&network, &region);
    let unavailable = Outcome::Failed("PrivateNetworksUnavailable");
    assert_eq!(world.make(&network, &region), unavailable);
}

#[test]
fn a_removal_begins_with_what_leads_there_and_waits_until_kube_ovn_has_let_go() {
    let (region, network) = (kube_ovn(), network(UID));
    let mut world = World::new();
    world.make(&network, &region);
    world.make(&network, &region);
    world.is_used = true;
    for _ in 0..3 {
        assert_eq!(world.remove(&network, &region), Outcome::Busy);
    }
    assert_eq!(
        world.kinds(),
        ["Namespace", "NetworkPolicy", "RoleBinding", "Subnet", "Vpc"]
    );
    world.is_used = false;
    world.act();
    assert_eq!(world.remove(&network, &region), Outcome::Busy);
    assert_eq!(world.remove(&network, &region), Outcome::Done);
    assert_eq!(
        World::new().remove(&network, &region),
        Outcome::Done,
        "it was never made"
    );
}

#[test]
fn without_its_namespace_nobody_has_rights_and_nothing_is_left_there() {
    let (region, network) = (kube_ovn(), network(UID));
    let mut seen = Seen::new(Reach::Live, String::new(), String::new(), false);
    let forbidden = "network-attachment-definitions is forbidden: User cannot get resource";
    let answers = [
        refused(403, forbidden),
        refused(404, "not found"),
        refused(404, "not found"),
        refused(404, "not found"),
    ];
    for answer in answers {
        let action = plan_removal(&network, &seen, &region).action.unwrap();
        seen.take(action, answer);
    }
    let plan = plan_removal(&network, &seen, &region);
    assert_eq!((plan.action, plan.outcome), (None, Ok(Progress::Done)));
}

#[test]
fn a_network_of_the_platform_team_is_ready_once_it_is_there_in_the_namespace_of_the_servers() {
    let (region, network) = (region_with(PrivateNetworks::Nad), network(UID));
    let mut world = World::new();
    let missing = Outcome::Failed("PrivateNetworkMissing");
    assert_eq!(world.make(&network, &region), missing);
    assert_eq!(world.kinds(), ["Namespace", "NetworkPolicy", "RoleBinding"]);
    let attachment = json!({ "kind": "NetworkAttachmentDefinition", "metadata": { "name": "pn-backend" } });
    world.put(SERVERS, attachment);
    assert_eq!(world.make(&network, &region), Outcome::Done);
    assert_eq!(world.remove(&network, &region), Outcome::Done);
    assert_eq!(world.kinds().len(), 4, "it is the platform team's");
}

fn pool(world: &mut World, names: &[&str]) -> KubeVirt {
    for name in names {
        let labels = json!({ "app.kubernetes.io/managed-by": "Helm" });
        let metadata = json!({ "name": name, "labels": labels });
        world.put(
            "vlans",
            json!({ "kind": "NetworkAttachmentDefinition", "metadata": metadata }),
        );
    }
    let all = names.iter().map(|name| object_name(&format!("vlans/{name}")));
    region_with(PrivateNetworks::Pool(all.collect()))
}

fn holders(world: &World) -> Vec<(&str, Option<&str>)> {
    let attachments = world.objects.iter();
    attachments
        .map(|((.., name), object)| (name.as_str(), object["metadata"]["labels"][NETWORK_UID].as_str()))
        .collect()
}

#[test]
fn attachments_of_the_platform_team_are_each_given_to_one_network_and_taken_back() {
    let mut world = World::new();
    let region = pool(&mut world, &["vlan-101", "vlan-102"]);
    world.put(
        "vlans",
        json!({ "kind": "NetworkAttachmentDefinition", "metadata": { "name": "public" } }),
    );
    let (one, other, third) = (network(UID), network(OTHER), network("third"));
    for _ in 0..2 {
        assert_eq!(world.make(&one, &region), Outcome::Done);
        assert_eq!(world.make(&other, &region), Outcome::Done);
        let none = Outcome::Failed("NoFreePrivateNetwork");
        assert_eq!(world.make(&third, &region), none);
    }
    let taken = [
        ("public", None),
        ("vlan-101", Some(UID)),
        ("vlan-102", Some(OTHER)),
    ];
    assert_eq!(holders(&world), taken);
    assert_eq!(world.remove(&one, &region), Outcome::Done);
    assert_eq!(world.remove(&one, &region), Outcome::Done);
    assert_eq!(world.make(&third, &region), Outcome::Done);
    let taken = [
        ("public", None),
        ("vlan-101", Some("third")),
        ("vlan-102", Some(OTHER)),
    ];
    assert_eq!(holders(&world), taken);
    for _ in 0..2 {
        assert_eq!(world.remove(&other, &region), Outcome::Done);
        assert_eq!(world.remove(&third, &region), Outcome::Done);
    }
    let managed = world.objects.values();
    let labels: Vec<_> = managed
        .map(|object| object["metadata"]["labels"].clone())
        .collect();
    let helm = json!({ "app.kubernetes.io/managed-by": "Helm" });
    assert_eq!(labels, [Value::Null, helm.clone(), helm], "they are as they were");
}

#[test]
fn of_two_that_want_one_attachment_the_slower_looks_again() {
    let mut world = World::new();
    let region = pool(&mut world, &["vlan-101", "vlan-102"]);
    let (one, other) = (network(UID), network(OTHER));
    let mut seen = Seen::new(Reach::Live, ACCOUNT_UID.to_owned(), String::new(), true);
    let list = plan(&one, &seen, &region).action.unwrap();
    let listed = world.execute("", &list);
    seen.take(list, listed);
    assert_eq!(world.make(&other, &region), Outcome::Done);
    let patch = plan(&one, &seen, &region).action.unwrap();
    let answer = world.execute("", &patch);
    assert!(matches!(&answer, Answer::Refused(refusal) if refusal.status == 409));
    seen.take(patch, answer);
    assert_eq!(plan(&one, &seen, &region).outcome, Ok(Progress::Busy));
    assert_eq!(world.make(&one, &region), Outcome::Done);
    assert_eq!(
        holders(&world),
        [("vlan-101", Some(OTHER)), ("vlan-102", Some(UID))]
    );
}

#[test]
fn row_37_in_a_region_that_is_cut_off_nothing_is_asked() {
    let network = network(UID);
    for driver in [
        PrivateNetworks::Nad,
        PrivateNetworks::KubeOvn,
        PrivateNetworks::Pool(vec![object_name("vlans/vlan-101")]),
    ] {
        let region = region_with(driver);
        let seen = Seen::new(Reach::Cut(at(0)), ACCOUNT_UID.to_owned(), String::new(), true);
        for plan in [
            plan(&network, &seen, &region),
            plan_removal(&network, &seen, &region),
        ] {
            assert!(plan.action.is_none());
            assert!(matches!(plan.outcome, Err(ProviderError::Unreachable { .. })));
        }
    }
}
