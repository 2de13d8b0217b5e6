//! The namespace of an account's servers: what it takes that it is there, is theirs, and is isolated; pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    names::{INSTALLATION, account_labels},
    objects,
    observe::Problem,
    plan::{Action, Answer, Kind, Refusal},
};
use domain::catalogue::region::{KubeVirt, Namespaces};

/// The namespace of an account's servers, and who asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerNamespace<'a> {
    pub(super) region: &'a KubeVirt,
    /// Its name.
    pub(super) name: &'a str,
    /// Public id of the account.
    pub(super) account: &'a str,
    /// Our user name in the cluster.
    pub(super) user: &'a str,
}

/// What has to happen first.
#[derive(Debug)]
pub(super) enum Obstacle<'l> {
    /// This call.
    Call(Action),
    /// The API server learns of the rights, which takes it a moment.
    Wait,
    /// A call is refused.
    Refused(Action, &'l Refusal),
    /// The platform team acts; what the cluster says.
    Problem(Problem, String),
    /// The cluster answers something else.
    Nonsense,
}

/// Looks up what a call of this step has answered.
pub(super) type Answers<'a, 'l> = &'a dyn Fn(&Action) -> Option<&'l Answer>;

fn call<'l>(answers: Answers<'_, 'l>, action: &Action) -> Result<&'l Answer, Obstacle<'l>> {
    answers(action).ok_or_else(|| Obstacle::Call(action.clone()))
}

impl ServerNamespace<'_> {
    /// Makes the namespace, unless the platform team does, and isolates what is in it.
    pub(super) fn prepare<'l>(&self, answers: Answers<'_, 'l>) -> Result<(), Obstacle<'l>> {
        let is_bound_now = match self.region.namespaces {
            Namespaces::Managed => self.make(answers)?,
            Namespaces::Existing => match call(answers, &self.get())? {
                Answer::Object(found) if self.is_of_installation(found) => false,
                Answer::Object(_) => {
                    let raw = format!("the namespace {} lacks the label {INSTALLATION}", self.name);
                    return Err(Obstacle::Problem(Problem::NamespaceMissing, raw));
                }
                Answer::Refused(refusal) if refusal.status == 404 => {
                    let raw = refusal.message.clone();
                    return Err(Obstacle::Problem(Problem::NamespaceMissing, raw));
                }
                Answer::Refused(refusal) => return Err(Obstacle::Refused(self.get(), refusal)),
                _ => return Err(Obstacle::Nonsense),
            },
        };
        let policy = self.isolation();
        match call(answers, &policy)? {
            Answer::Refused(refusal) if refusal.status == 403 && is_bound_now => Err(Obstacle::Wait),
            Answer::Refused(refusal) => Err(Obstacle::Refused(policy, refusal)),
            _ => Ok(()),
        }
    }

    /// Makes the namespace, and gives Stellage its rights there. Returns whether it has these only now.
    fn make<'l>(&self, answers: Answers<'_, 'l>) -> Result<bool, Obstacle<'l>> {
        let action = Action::Post {
            kind: Kind::Namespace,
            object: objects::namespace(self.region, self.account, self.name),
        };
        if let Answer::Refused(refusal) = call(answers, &action)? {
            if refusal.status != 409 {
                return Err(Obstacle::Refused(action, refusal));
            }
            if let Err(says) = self.check(answers)? {
                return Err(Obstacle::Problem(Problem::NamespaceUnusable, says));
            }
        }
        let binding = self.binding();
        match call(answers, &binding)? {
            Answer::Refused(refusal) if refusal.status == 409 => Ok(false),
            Answer::Refused(refusal) => Err(Obstacle::Refused(binding, refusal)),
            _ => Ok(true),
        }
    }

    /// The call that reads it.
    pub(super) fn get(&self) -> Action {
        Action::get(Kind::Namespace, self.name)
    }

    /// Whether a namespace is for the servers of this installation.
    pub(super) fn is_of_installation(&self, namespace: &ObjectMeta) -> bool {
        let label = namespace
            .labels
            .as_ref()
            .and_then(|labels| labels.get(INSTALLATION));
        label == Some(&self.region.installation)
    }

    /// The call that keeps the servers of the account away from the cluster's own networks, as the catalogue says now.
    pub(super) fn isolation(&self) -> Action {
        Action::Apply {
            kind: Kind::NetworkPolicy,
            object: objects::network_policy(self.region, self.account, self.name),
        }
    }

    /// Whether it is that of the account's servers; else, what is wrong with it.
    fn check<'l>(&self, answers: Answers<'_, 'l>) -> Result<Result<(), String>, Obstacle<'l>> {
        let name = self.name;
        let Answer::Object(found) = call(answers, &self.get())? else {
            return Ok(Err(format!("the namespace {name} cannot be read")));
        };
        if found.deletion_timestamp.is_some() {
            return Ok(Err(format!("the namespace {name} is being deleted")));
        }
        let labels = found.labels.as_ref();
        let missing = account_labels(self.region, self.account)
            .into_iter()
            .find(|(key, value)| labels.and_then(|labels| labels.get(*key)) != Some(value));
        Ok(match missing {
            None => Ok(()),
            Some((key, value)) => Err(format!(
                "the namespace {name} is not that of this account's servers, since it lacks the label {key}: {value}; delete it if nobody needs it, or give the region another namespacePrefix before it has servers"
            )),
        })
    }

    /// The call that gives Stellage its rights in it.
    fn binding(&self) -> Action {
        Action::Post {
            kind: Kind::RoleBinding,
            object: objects::role_binding(self.region, self.account, self.name, self.user),
        }
    }

    /// If a call is refused for want of rights in the namespace, somebody may have deleted their binding.
    pub(super) fn bind_again<'l>(
        &self,
        refusal: &Refusal,
        answers: Answers<'_, 'l>,
    ) -> Result<(), Obstacle<'l>> {
        // As RBAC says it; others refuse with the same status.
        let lacks_rights = refusal.status == 403 && refusal.message.contains(" cannot ");
        if !lacks_rights || self.region.namespaces == Namespaces::Existing {
            return Ok(());
        }
        let binding = self.binding();
        match answers(&binding) {
            // It is there.
            Some(Answer::Refused(_)) => Ok(()),
            Some(_) => Err(Obstacle::Wait),
            None if self.check(answers)?.is_ok() => Err(Obstacle::Call(binding)),
            None => Ok(()),
        }
    }
}
