//! What to do next about a private network in a cluster: pure, as [`plan`](mod@super::plan) is about a server.
//!
//! By the driver of the region, the platform team makes each network, and Stellage only looks for it; or it has made some, of which each
//! is given to one network; or Stellage makes it with kube-ovn: a Vpc that nothing else is in, a Subnet there, and the attachment that
//! servers name. What there is in the cluster says how far it is, so any call may be repeated or lost.

use ipnet::Ipv4Net;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{
    backup::Plan,
    names::{NETWORK_UID, NetworkNames},
    namespace::{Obstacle, ServerNamespace},
    objects::{attachment_config, give_back_patch, network_attachment, subnet, take_patch, vpc},
    observe::Problem,
    plan::{
        Action, Answer, Calls, Conversation, Kind, NOT_NOW, Reach, Refusal, list_attachments, namespaces_of,
        says,
    },
    slim::{NetworkAttachment, Subnet, network_of},
};
use domain::{
    catalogue::region::{KubeVirt, ObjectName, PrivateNetworks},
    network,
    provider::{Progress, ProviderError},
};
use resources::PrivateNetwork;

/// What is known when a call is planned.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Whether the cluster answers.
    pub reach: Reach,
    /// Public id of the account; empty if it is not known.
    pub account: String,
    /// Our user name in the cluster.
    pub user: String,
    /// Whether the namespace of the account's servers is known to be complete.
    pub has_namespace: bool,
    /// Whether it was found to be gone although it was known.
    has_lost_namespace: bool,
    calls: Calls,
}

impl Seen {
    /// What is known before the first call.
    pub fn new(reach: Reach, account: String, user: String, has_namespace: bool) -> Self {
        Self {
            reach,
            account,
            user,
            has_namespace,
            has_lost_namespace: false,
            calls: Calls::default(),
        }
    }
}

impl Conversation for Seen {
    fn calls(&self) -> &Calls {
        &self.calls
    }

    fn take(&mut self, action: Action, answer: Answer) {
        let is_refused = |of: u16| matches!(&answer, Answer::Refused(refusal) if refusal.status == of);
        match &action {
            Action::Apply { .. } if !matches!(answer, Answer::Refused(_)) => {
                self.has_namespace = true;
                self.calls.forget_forbidden();
            }
            Action::Post {
                kind: Kind::NetworkAttachment,
                ..
            } if is_refused(404) && self.has_namespace && !self.has_lost_namespace => {
                // It was there, but somebody has deleted it.
                self.has_namespace = false;
                self.has_lost_namespace = true;
                return;
            }
            _ => {}
        }
        self.calls.push(action, answer);
    }
}

/// Plans the next call that makes a network, or looks whether it is there.
pub fn plan(network: &PrivateNetwork, seen: &Seen, region: &KubeVirt) -> Plan<Progress> {
    Planner::new(network, seen, region).run(Planner::make)
}

/// Plans the next call that removes a network.
pub fn plan_removal(network: &PrivateNetwork, seen: &Seen, region: &KubeVirt) -> Plan<Progress> {
    Planner::new(network, seen, region).run(Planner::remove)
}

/// A part of the work: its result, unless something has to be done first or the work ends there.
type Step<T> = Result<T, Box<Plan<Progress>>>;

struct Planner<'a> {
    code: &'a str,
    prefix: Option<Ipv4Net>,
    names: NetworkNames,
    seen: &'a Seen,
    region: &'a KubeVirt,
}

impl<'a> Planner<'a> {
    fn new(network: &'a PrivateNetwork, seen: &'a Seen, region: &'a KubeVirt) -> Self {
        Self {
            code: &network.spec.region,
            prefix: network.prefix().and_then(|text| network::parse(text).ok()),
            names: NetworkNames::of(network, region),
            seen,
            region,
        }
    }

    fn run(&self, work: impl Fn(&Self) -> Step<()>) -> Plan<Progress> {
        if let Reach::Cut(since) = self.seen.reach {
            let region = self.code.to_owned();
            return Plan::end(Err(ProviderError::Unreachable { region, since }), None);
        }
        match work(self) {
            Ok(()) => Plan::end(Ok(Progress::Done), None),
            Err(plan) => *plan,
        }
    }

    fn make(&self) -> Step<()> {
        match &self.region.network.private_networks {
            // Nobody is to make one in such a region.
            PrivateNetworks::None => Err(failed(Problem::PrivateNetworksUnavailable, None)),
            PrivateNetworks::Nad => {
                self.namespace()?;
                match self.attachment()? {
                    Some(_) => Ok(()),
                    None => Err(failed(Problem::PrivateNetworkMissing, None)),
                }
            }
            PrivateNetworks::Pool(pool) => self.take(pool),
            PrivateNetworks::KubeOvn => self.make_with_kube_ovn(),
        }
    }

    fn remove(&self) -> Step<()> {
        match &self.region.network.private_networks {
            PrivateNetworks::None | PrivateNetworks::Nad => Ok(()),
            PrivateNetworks::Pool(pool) => {
                for (namespace, attachment) in self.listed(pool)? {
                    if self.is_own(&attachment.metadata) {
                        let patch = give_back_patch(attachment, self.region, &self.names);
                        self.change(namespace, attachment, patch)?;
                    }
                }
                Ok(())
            }
            PrivateNetworks::KubeOvn => self.remove_from_kube_ovn(),
        }
    }

    /// Gives the network an attachment of the platform team, if it has none.
    fn take(&self, pool: &[ObjectName]) -> Step<()> {
        let listed = self.listed(pool)?;
        if listed
            .iter()
            .any(|(_, attachment)| self.is_own(&attachment.metadata))
        {
            return Ok(());
        }
        let is_free = |(namespace, attachment): &&(&str, &NetworkAttachment)| {
            let is_named = |of: &ObjectName| of.namespace == *namespace && of.name == attachment.name();
            network_of(&attachment.metadata).is_none()
                && attachment.metadata.deletion_timestamp.is_none()
                && pool.iter().any(is_named)
        };
        let Some((namespace, attachment)) = listed.iter().find(is_free) else {
            return Err(failed(Problem::NoFreePrivateNetwork, None));
        };
        let patch = take_patch(attachment, self.region, &self.seen.account, &self.names);
        self.change(namespace, attachment, patch)
    }

    /// All attachments in the namespaces that those of the platform team are in.
    fn listed<'p>(&self, pool: &'p [ObjectName]) -> Step<Vec<(&'p str, &'a NetworkAttachment)>> {
        let mut all = Vec::new();
        for namespace in namespaces_of(pool) {
            let action = list_attachments(namespace, String::new());
            match self.call(&action)? {
                Answer::Attachments(found) => all.extend(found.iter().map(|found| (namespace, found))),
                Answer::Refused(refusal) => return Err(unavailable(refusal)),
                _ => return Err(self.nonsense()),
            }
        }
        Ok(all)
    }

    /// Changes the labels of an attachment of the platform team.
    fn change(&self, namespace: &str, attachment: &NetworkAttachment, patch: Value) -> Step<()> {
        let action = Action::In {
            namespace: namespace.to_owned(),
            action: Box::new(Action::patch(Kind::NetworkAttachment, attachment.name(), patch)),
        };
        match self.call(&action)? {
            // Somebody was faster. What there is now is seen the next time.
            Answer::Refused(refusal) if matches!(refusal.status, 404 | 409) => Err(busy()),
            Answer::Refused(refusal) => Err(unavailable(refusal)),
            _ => Ok(()),
        }
    }

    fn make_with_kube_ovn(&self) -> Step<()> {
        let Some(prefix) = self.prefix else {
            return Err(busy());
        };
        let (region, account, names) = (self.region, &*self.seen.account, &self.names);
        self.namespace()?;
        self.ensure(Kind::Vpc, &names.vpc, vpc(region, account, names))?;
        let wanted = subnet(region, account, names, prefix);
        let Answer::Subnet(subnet) = self.ensure(Kind::Subnet, &names.subnet, wanted)? else {
            return Err(self.nonsense());
        };
        self.check_subnet(subnet, prefix)?;
        let wanted = network_attachment(region, account, names);
        let found = self.ensure(Kind::NetworkAttachment, &names.attachment, wanted)?;
        if let Answer::Attachment(attachment) = found
            && attachment.spec.config != attachment_config(names)
        {
            let raw = format!(
                "NetworkAttachmentDefinition {} has another config",
                names.attachment
            );
            return Err(failed(Problem::PrivateNetworkChanged, Some(raw)));
        }
        if subnet.is_ready() {
            return Ok(());
        }
        match subnet.error() {
            Some(error) => {
                let raw = format!("Subnet {}: {error}", names.subnet);
                Err(failed(Problem::PrivateNetworksUnavailable, Some(raw)))
            }
            // kube-ovn has yet to look at it.
            None => Err(busy()),
        }
    }

    /// Whether a Subnet still keeps its servers among themselves.
    fn check_subnet(&self, subnet: &Subnet, prefix: Ipv4Net) -> Step<()> {
        let is_as_made = subnet.spec.vpc == self.names.vpc
            && subnet.spec.provider == self.names.provider()
            && subnet.spec.cidr_block == prefix.to_string()
            && subnet.spec.private
            && !subnet.spec.nat_outgoing;
        if is_as_made {
            return Ok(());
        }
        let raw = format!(
            "Subnet {} has another vpc, provider, cidrBlock, private or natOutgoing",
            self.names.subnet
        );
        Err(failed(Problem::PrivateNetworkChanged, Some(raw)))
    }

    /// Reads an object of the network, or creates it. What is there must be the network's.
    fn ensure(&self, kind: Kind, name: &str, object: Value) -> Step<&'a Answer> {
        let post = Action::Post { kind, object };
        match self.call(&Action::get(kind, name))? {
            Answer::Refused(refusal) if refusal.status == 404 => match self.call(&post)? {
                // A call that had been given up has made it.
                Answer::Refused(refusal) if refusal.status == 409 => Err(busy()),
                Answer::Refused(refusal) => Err(self.refused(kind, refusal)),
                created => Ok(created),
            },
            Answer::Refused(refusal) => Err(self.refused(kind, refusal)),
            found => {
                let metadata = metadata(found).ok_or_else(|| self.nonsense())?;
                if !self.is_own(metadata) {
                    let raw = format!(
                        "{kind:?} {name} lacks the label {NETWORK_UID}: {}",
                        self.names.uid
                    );
                    return Err(failed(Problem::NameTaken, Some(raw)));
                }
                if metadata.deletion_timestamp.is_some() {
                    // Then it is made anew.
                    return Err(busy());
                }
                Ok(found)
            }
        }
    }

    /// First what leads there, so that no server is attached while it goes.
    fn remove_from_kube_ovn(&self) -> Step<()> {
        self.remove_one(Kind::NetworkAttachment, &self.names.attachment)?;
        self.remove_one(Kind::Subnet, &self.names.subnet)?;
        self.remove_one(Kind::Vpc, &self.names.vpc)
    }

    /// Deletes an object of the network. Done once it is gone.
    fn remove_one(&self, kind: Kind, name: &str) -> Step<()> {
        let found = match self.call(&Action::get(kind, name))? {
            Answer::Refused(refusal) if refusal.status == 404 => return Ok(()),
            // Without the namespace, there are no rights in it either.
            Answer::Refused(refusal) if refusal.status == 403 && kind == Kind::NetworkAttachment => {
                return match self.call(&self.place().get())? {
                    Answer::Refused(of_namespace) if of_namespace.status == 404 => Ok(()),
                    // Nothing is ever made in a namespace of others.
                    Answer::Object(found) if !self.place().is_of_installation(found) => Ok(()),
                    _ => Err(self.refused(kind, refusal)),
                };
            }
            Answer::Refused(refusal) => return Err(self.refused(kind, refusal)),
            found => metadata(found).ok_or_else(|| self.nonsense())?,
        };
        if !self.is_own(found) {
            return Ok(());
        }
        if found.deletion_timestamp.is_none()
            && let Answer::Refused(refusal) = self.call(&Action::delete(kind, found))?
            && !matches!(refusal.status, 404 | 409)
        {
            return Err(self.refused(kind, refusal));
        }
        // kube-ovn lets it go when nothing is in it any more.
        Err(busy())
    }

    /// The NetworkAttachmentDefinition with the network's name.
    fn attachment(&self) -> Step<Option<&'a NetworkAttachment>> {
        let get = Action::get(Kind::NetworkAttachment, &self.names.attachment);
        match self.call(&get)? {
            Answer::Attachment(found) if found.metadata.deletion_timestamp.is_none() => Ok(Some(found)),
            Answer::Attachment(_) => Ok(None),
            Answer::Refused(refusal) if refusal.status == 404 => Ok(None),
            Answer::Refused(refusal) => Err(self.refused(Kind::NetworkAttachment, refusal)),
            _ => Err(self.nonsense()),
        }
    }

    fn is_own(&self, metadata: &ObjectMeta) -> bool {
        network_of(metadata) == Some(&self.names.uid)
    }

    fn place(&self) -> ServerNamespace<'_> {
        ServerNamespace {
            region: self.region,
            name: &self.names.namespace,
            account: &self.seen.account,
            user: &self.seen.user,
        }
    }

    /// Makes the namespace of the account's servers, as the first of them would.
    fn namespace(&self) -> Step<()> {
        if self.seen.has_namespace {
            return Ok(());
        }
        self.place()
            .prepare(&|action: &Action| self.seen.calls.answer(action))
            .map_err(|obstacle| self.hindered(obstacle))
    }

    /// What has to happen to the namespace first.
    fn hindered(&self, obstacle: Obstacle<'_>) -> Box<Plan<Progress>> {
        match obstacle {
            Obstacle::Call(action) => todo(action),
            Obstacle::Wait => busy(),
            Obstacle::Refused(_, refusal) => unavailable(refusal),
            Obstacle::Problem(problem, raw) => failed(problem, Some(raw)),
            Obstacle::Nonsense => self.nonsense(),
        }
    }

    /// The answer to a call; makes the call first.
    fn call(&self, action: &Action) -> Step<&'a Answer> {
        let answer = self.seen.calls.answer(action);
        answer.ok_or_else(|| todo(action.clone()))
    }

    fn refused(&self, kind: Kind, refusal: &Refusal) -> Box<Plan<Progress>> {
        if kind == Kind::NetworkAttachment {
            let again = self
                .place()
                .bind_again(refusal, &|action: &Action| self.seen.calls.answer(action));
            if let Err(obstacle) = again {
                return self.hindered(obstacle);
            }
        }
        unavailable(refusal)
    }

    fn nonsense(&self) -> Box<Plan<Progress>> {
        Box::new(Plan::nonsense(self.code))
    }
}

/// The metadata of what was read.
const fn metadata(answer: &Answer) -> Option<&ObjectMeta> {
    match answer {
        Answer::Object(metadata) => Some(metadata),
        Answer::Subnet(subnet) => Some(&subnet.metadata),
        Answer::Attachment(attachment) => Some(&attachment.metadata),
        _ => None,
    }
}

fn todo(action: Action) -> Box<Plan<Progress>> {
    Box::new(Plan {
        action: Some(action),
        outcome: Ok(Progress::Busy),
        raw: None,
    })
}

fn busy() -> Box<Plan<Progress>> {
    Box::new(Plan::end(Ok(Progress::Busy), None))
}

fn failed(problem: Problem, raw: Option<String>) -> Box<Plan<Progress>> {
    Box::new(Plan::end(Ok(Progress::Failed(problem.trouble())), raw))
}

/// The cluster does not do something: it may lack the kinds, or the rights, or be overloaded.
fn unavailable(refusal: &Refusal) -> Box<Plan<Progress>> {
    if refusal.status >= 500 || refusal.status == 429 {
        let error = ProviderError::Unavailable(NOT_NOW.to_owned());
        return Box::new(Plan::end(Err(error), Some(says(refusal))));
    }
    failed(Problem::PrivateNetworksUnavailable, Some(says(refusal)))
}

#[cfg(test)]
mod tests;
