//! Decides what to do about one Account: a pure function of its spec, the other claimants, and the existing namespace.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;

use resources::{
    ACCOUNT_LABEL, Account, AccountStatus,
    account::{ADOPTED_FOR_ANNOTATION, MADE_FOR_ANNOTATION, MAIL_UNAVAILABLE, NAMESPACE_READY, SUSPENDED},
    conditions::{self, Desired, READY, RECONCILING, STALLED},
    ids, origin,
};

/// One Account's claim to a namespace. Ordered by age, oldest first, then by UID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimant {
    created: Timestamp,
    /// Its origin UID.
    pub uid: String,
    /// The Account's name.
    pub name: String,
}

impl Claimant {
    /// The claim of an Account.
    pub fn of(account: &Account) -> Self {
        Self {
            created: origin::created_at(&account.metadata).unwrap_or(Timestamp::UNIX_EPOCH),
            uid: origin::uid(&account.metadata).to_owned(),
            name: account.metadata.name.clone().unwrap_or_default(),
        }
    }
}

/// The relevant properties of the namespace that an Account claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceView {
    /// The Account that its label names.
    pub account: Option<String>,
    /// Origin UID of the Account that it belongs to, once it has belonged to one.
    pub owner: Option<String>,
    /// Whether the operator created it.
    pub is_created: bool,
    /// Whether it is being deleted.
    pub terminating: bool,
}

impl NamespaceView {
    pub fn of(namespace: &Namespace) -> Self {
        let get = |map: &Option<std::collections::BTreeMap<String, String>>, key: &str| {
            map.as_ref().and_then(|map| map.get(key).cloned())
        };
        let made_for = get(&namespace.metadata.annotations, MADE_FOR_ANNOTATION);
        let adopted_for = get(&namespace.metadata.annotations, ADOPTED_FOR_ANNOTATION);
        Self {
            account: get(&namespace.metadata.labels, ACCOUNT_LABEL),
            is_created: made_for.is_some(),
            owner: made_for.or(adopted_for),
            terminating: namespace.metadata.deletion_timestamp.is_some(),
        }
    }
}

/// Why an Account does not have its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceRefusal {
    pub reason: &'static str,
    pub message: String,
    /// Whether the problem resolves by itself. If not, somebody must change something.
    pub is_temporary: bool,
}

/// What to do about the namespace of an Account that is not being deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The Account cannot have it, or not yet.
    Refused(NamespaceRefusal),
    /// It does not exist: create it.
    Create,
    /// The operator created it for this Account, but its label was removed: restore the label.
    Relabel,
    /// It has never belonged to an Account, and an administrator has labelled it for this one: adopt it, unless it holds what
    /// another Account had.
    Adopt,
    /// It belongs to this Account: either it was adopted, or the operator created it.
    Own { adopted: bool },
}

/// What to do about an Account that is being deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It owns no namespace: remove the finalizer.
    OwnsNothing,
    /// It owns its namespace: empty it, then clean up.
    Empty { created_by_operator: bool },
}

/// Decides about an Account that is not being deleted. `claimants` are all Accounts that claim the namespace, oldest first.
///
/// The label on the namespace decides who may own it, as long as that Account exists: the label is written either together
/// with the namespace or by an administrator. Once it has belonged to an Account, its annotation says to which, and no other
/// gets it. If there is no namespace yet, the oldest claimant gets it.
pub fn claim(
    account: &Account,
    operator_namespace: &str,
    claimants: &[Claimant],
    namespace: Option<&NamespaceView>,
) -> Claim {
    let me = account.metadata.name.as_deref().unwrap_or_default();
    let wanted = account.wanted_namespace();
    if let Some(refusal) = reserved(wanted, operator_namespace) {
        return Claim::Refused(refusal);
    }
    let labelled = namespace.and_then(|namespace| namespace.account.as_deref());
    let holder = labelled
        .and_then(|name| claimants.iter().find(|claimant| claimant.name == name))
        .or_else(|| {
            let vacant = namespace.is_none_or(|namespace| namespace.terminating);
            vacant.then(|| claimants.first()).flatten()
        });
    if let Some(holder) = holder
        && holder.name != me
    {
        return Claim::Refused(NamespaceRefusal {
            reason: "NamespaceTaken",
            message: format!(
                "namespace {wanted} belongs to Account {holder}; delete this Account and create one with another namespace, or wait: it takes over once {holder} and the namespace are gone",
                holder = holder.name
            ),
            is_temporary: false,
        });
    }
    let Some(namespace) = namespace else {
        return Claim::Create;
    };
    if namespace.terminating {
        return Claim::Refused(NamespaceRefusal {
            reason: "NamespaceTerminating",
            message: format!("namespace {wanted} is being deleted; it will be created again once it is gone"),
            is_temporary: true,
        });
    }
    let refused = |message| {
        Claim::Refused(NamespaceRefusal {
            reason: "NamespaceNotOwned",
            message,
            is_temporary: false,
        })
    };
    match (labelled, namespace.owner.as_deref()) {
        (Some(name), None) if name == me => Claim::Adopt,
        (_, Some(owner)) if owner != origin::uid(&account.metadata) => refused(format!(
            "namespace {wanted} belonged to another Account, and may still hold what that one had; delete this Account and then the namespace, and create the Account again"
        )),
        (Some(name), Some(_)) if name == me => Claim::Own {
            adopted: !namespace.is_created,
        },
        (None, Some(_)) if namespace.is_created => Claim::Relabel,
        (other, _) => refused(not_owned(wanted, me, other)),
    }
}

/// The refusal of an Account whose namespace holds these objects, which an operator has already worked on.
pub fn in_use(account: &Account, contents: &[Contents]) -> Option<NamespaceRefusal> {
    let wanted = account.wanted_namespace();
    let what = enumerated(contents)?;
    Some(NamespaceRefusal {
        reason: "NamespaceInUse",
        message: format!(
            "namespace {wanted} holds what an account had: {what}; if that was this Account, and its objects were restored without the namespace's annotations, a cluster administrator can tell so: kubectl annotate namespace {wanted} {}={}; else delete them",
            ADOPTED_FOR_ANNOTATION,
            origin::uid(&account.metadata),
        ),
        is_temporary: false,
    })
}

/// The refusal of an Account that is a copy of an older one.
pub fn copy_of(older: &str) -> NamespaceRefusal {
    NamespaceRefusal {
        reason: "OriginTaken",
        message: format!(
            "this is a copy of Account {older}, which is older: both have the same annotation {}; delete this one, or create it without the annotation",
            origin::ORIGIN_ANNOTATION
        ),
        is_temporary: false,
    }
}

fn not_owned(wanted: &str, me: &str, label: Option<&str>) -> String {
    let (state, overwrite) = match label {
        None => (format!("is not labelled for Account {me}"), ""),
        Some(other) => (
            format!("is labelled for Account {other}, which does not claim it"),
            " --overwrite",
        ),
    };
    format!(
        "namespace {wanted} already exists and {state}; to let this Account adopt it, a cluster administrator must run: kubectl label namespace {wanted} {ACCOUNT_LABEL}={me}{overwrite}"
    )
}

fn reserved(wanted: &str, operator_namespace: &str) -> Option<NamespaceRefusal> {
    let why = if wanted.starts_with("kube-") {
        "kube-* namespaces belong to Kubernetes"
    } else if wanted == operator_namespace {
        "it belongs to the operator"
    } else {
        return None;
    };
    Some(NamespaceRefusal {
        reason: "NamespaceReserved",
        message: format!(
            "an account cannot use namespace {wanted}: {why}; delete this Account and create one with another namespace"
        ),
        is_temporary: false,
    })
}

/// Decides about an Account that is being deleted.
pub fn removal(account: &Account, operator_namespace: &str, namespace: Option<&NamespaceView>) -> Removal {
    let me = account.metadata.name.as_deref();
    let Some(namespace) = namespace else {
        return Removal::OwnsNothing;
    };
    let is_mine = namespace.owner.as_deref() == Some(origin::uid(&account.metadata))
        && namespace.account.as_deref().is_none_or(|label| Some(label) == me);
    if !is_mine || reserved(account.wanted_namespace(), operator_namespace).is_some() {
        return Removal::OwnsNothing;
    }
    Removal::Empty {
        created_by_operator: namespace.is_created,
    }
}

/// Objects of one kind that block the deletion of an Account, or the adoption of its namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Singular and plural name of the kind, as used in messages.
    pub words: (&'static str, &'static str),
    /// How many there are.
    pub count: u64,
    /// Whether there are more.
    pub has_more: bool,
    /// Some of their names.
    pub names: Vec<String>,
}

/// Maximum number of names in a message.
const MAX_NAMES: usize = 5;

/// What holds back the deletion of an Account, and what to do about it; `None` if nothing does.
pub fn in_the_way(protected: Contents, backups: Contents) -> Option<String> {
    let unprotect = (protected.count > 0).then_some("set spec.deletionProtection of the instances to false");
    let delete = (backups.count > 0).then_some("delete the backups");
    let remedies: Vec<&str> = unprotect.into_iter().chain(delete).collect();
    let what = enumerated(&[protected, backups])?;
    Some(format!(
        "{what}; {} first: until then, nothing else is deleted",
        remedies.join(" and ")
    ))
}

/// For example `3 instances: a, b, c; 1 webhook: d`; `None` if all are empty.
pub fn enumerated(contents: &[Contents]) -> Option<String> {
    let parts: Vec<String> = contents
        .iter()
        .filter(|contents| contents.count > 0)
        .map(|contents| {
            let mut names = contents.names.clone();
            names.sort_unstable();
            let more = if contents.count > MAX_NAMES as u64 {
                ", …"
            } else {
                ""
            };
            names.truncate(MAX_NAMES);
            let (one, many) = contents.words;
            let word = if contents.count == 1 { one } else { many };
            let than = if contents.has_more { "more than " } else { "" };
            format!("{than}{} {word}: {}{more}", contents.count, names.join(", "))
        })
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// How a reconcile ended, for the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything matches the spec.
    Ready { adopted: bool },
    /// Everything exists, but Kubernetes has not computed the quota yet.
    QuotaPending { adopted: bool },
    /// The Account does not get its namespace, or not yet.
    Refused(NamespaceRefusal),
    /// The API server refused a call. `owned` says whether the namespace was adopted, if the Account owns it.
    Failed { owned: Option<bool>, message: String },
    /// The Account is being deleted, but it has something that is not deleted along with it.
    HeldBack { adopted: bool, in_the_way: String },
    /// The Account is being deleted, and what it contains with it.
    Deleting { adopted: bool, contents: String },
}

/// The content of the conditions for an outcome.
struct Summary {
    ready: bool,
    reason: &'static str,
    message: String,
    next: Next,
    /// Whether the namespace was adopted; `None` if the Account does not own it.
    owned: Option<bool>,
}

/// What happens next.
enum Next {
    /// Nothing: the Account is ready.
    Idle,
    /// The controller continues by itself.
    Works,
    /// Nothing, until somebody changes something.
    Stalled,
}

impl Outcome {
    fn summary(&self, wanted: &str) -> Summary {
        match self {
            Self::Ready { adopted } => Summary {
                ready: true,
                reason: "AccountReady",
                message: format!("namespace {wanted} is ready"),
                next: Next::Idle,
                owned: Some(*adopted),
            },
            Self::QuotaPending { adopted } => Summary {
                ready: false,
                reason: "QuotaPending",
                message: "waiting for Kubernetes to count the quota, which takes a second, or up to 40 s after the CRDs were installed; until then it refuses to create instances and webhooks"
                    .to_owned(),
                next: Next::Works,
                owned: Some(*adopted),
            },
            Self::Refused(refusal) => Summary {
                ready: false,
                reason: refusal.reason,
                message: refusal.message.clone(),
                next: if refusal.is_temporary {
                    Next::Works
                } else {
                    Next::Stalled
                },
                owned: None,
            },
            Self::Failed { owned, message } => Summary {
                ready: false,
                reason: "ApiServerRefused",
                message: message.clone(),
                next: Next::Works,
                owned: *owned,
            },
            Self::HeldBack { adopted, in_the_way } => Summary {
                ready: false,
                reason: "DeletionHeldBack",
                message: format!("cannot be deleted yet: {in_the_way}"),
                next: Next::Stalled,
                // The objects in the namespace are still reconciled.
                owned: Some(*adopted),
            },
            Self::Deleting { adopted, contents } => Summary {
                ready: false,
                reason: "Deleting",
                message: format!("deleting {contents}"),
                next: Next::Works,
                owned: Some(*adopted),
            },
        }
    }
}

/// The status for an outcome. Equal to the old one if nothing has changed.
pub fn status(account: &Account, outcome: &Outcome, now: Timestamp) -> AccountStatus {
    let wanted = account.wanted_namespace();
    let generation = account.metadata.generation;
    let Summary {
        ready,
        reason,
        message,
        next,
        owned,
    } = outcome.summary(wanted);
    let (works, stalled) = (matches!(next, Next::Works), matches!(next, Next::Stalled));
    let either = |is: bool, otherwise: &str| if is { message.clone() } else { otherwise.to_owned() };
    let (namespace_reason, namespace_message) = match owned {
        Some(true) => (
            "NamespaceAdopted",
            format!("namespace {wanted} was adopted by this account"),
        ),
        Some(false) => (
            "NamespaceCreated",
            format!("namespace {wanted} was created for this account"),
        ),
        None => (reason, message.clone()),
    };
    let all = [
        (READY, ready, reason, message.clone()),
        (
            RECONCILING,
            works,
            reason,
            either(works, "nothing is in progress"),
        ),
        (STALLED, stalled, reason, either(stalled, "no action is needed")),
        (
            NAMESPACE_READY,
            owned.is_some(),
            namespace_reason,
            namespace_message,
        ),
    ];
    let mut conditions = account
        .status
        .as_ref()
        .map(|status| status.conditions.clone())
        .unwrap_or_default();
    for (type_, status, reason, message) in all {
        let desired = Desired {
            type_,
            status: Some(status),
            reason,
            message,
        };
        conditions::set(&mut conditions, desired, generation, now);
    }
    match &account.spec.suspended {
        Some(suspension) => conditions::set(
            &mut conditions,
            Desired {
                type_: SUSPENDED,
                status: Some(true),
                reason: suspension.condition(),
                message: suspension.reason.clone(),
            },
            generation,
            now,
        ),
        None => conditions::remove(&mut conditions, SUSPENDED),
    }
    AccountStatus {
        id: Some(ids::account_id(origin::uid(&account.metadata))),
        // Written by the controller, which knows it.
        installation: account.installation().map(ToOwned::to_owned),
        namespace: owned.is_some().then(|| wanted.to_owned()),
        // Written by the notifier.
        notified_at: account
            .status
            .as_ref()
            .map(|status| status.notified_at.clone())
            .unwrap_or_default(),
        observed_generation: generation,
        conditions,
    }
}

/// Sets or removes the condition that the account holder cannot be notified of anything.
pub fn set_mail(status: &mut AccountStatus, has_mail: bool, generation: Option<i64>, now: Timestamp) {
    if has_mail {
        conditions::remove(&mut status.conditions, MAIL_UNAVAILABLE);
        return;
    }
    let desired = Desired {
        type_: MAIL_UNAVAILABLE,
        status: Some(true),
        reason: "NoMailServer",
        message: "the operator has no mail server, so the account holder is not told when a webhook is disabled or has a backlog; an administrator can set --smtp-url (smtp.existingSecret of the chart)".to_owned(),
    };
    conditions::set(&mut status.conditions, desired, generation, now);
}

#[cfg(test)]
mod tests {
    use super::*;
    use resources::{
        account::{SuspendedServers, Suspension},
        conditions::find,
        testing::account,
    };

    /// An Account that owns its namespace.
    fn owning(name: &str, namespace: &str, second: i64) -> Account {
        let mut account = account(name, namespace, second);
        account.status = Some(status(&account, &Outcome::Ready { adopted: false }, at(second)));
        account
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A namespace with this label that the operator created for an Account with this UID, if there is one.
    fn view(label: Option<&str>, made_for: Option<&str>) -> NamespaceView {
        NamespaceView {
            account: label.map(Into::into),
            owner: made_for.map(Into::into),
            is_created: made_for.is_some(),
            terminating: false,
        }
    }

    /// A namespace with this label that an Account with this UID has adopted.
    fn adopted(label: Option<&str>, by: &str) -> NamespaceView {
        NamespaceView {
            is_created: false,
            ..view(label, Some(by))
        }
    }

    fn reason(claim: &Claim) -> &str {
        match claim {
            Claim::Refused(refusal) => refusal.reason,
            _ => "",
        }
    }

    #[test]
    fn a_namespace_that_does_not_exist_is_created_for_the_oldest() {
        let (older, younger) = (account("old", "shop", 1), account("new", "shop", 2));
        let claimants = [Claimant::of(&older), Claimant::of(&younger)];
        assert_eq!(claim(&older, "sys", &claimants, None), Claim::Create);
        let refused = claim(&younger, "sys", &claimants, None);
        assert_eq!(reason(&refused), "NamespaceTaken");
        assert_eq!(
            claim(&younger, "sys", &claimants[1..], None),
            Claim::Create,
            "takes over"
        );
    }

    #[test]
    fn an_existing_namespace_is_adopted_only_with_the_label() {
        let ada = account("ada", "shop", 1);
        let me = [Claimant::of(&ada)];
        let Claim::Refused(refusal) = claim(&ada, "sys", &me, Some(&view(None, None))) else {
            panic!("must be refused");
        };
        assert_eq!(refusal.reason, "NamespaceNotOwned");
        assert!(
            refusal
                .message
                .ends_with("kubectl label namespace shop stellage.dev/account=ada"),
            "{}",
            refusal.message
        );
        let labelled = view(Some("ada"), None);
        assert_eq!(claim(&ada, "sys", &me, Some(&labelled)), Claim::Adopt);
        let mine = adopted(Some("ada"), "uid-ada");
        assert_eq!(claim(&ada, "sys", &me, Some(&mine)), Claim::Own { adopted: true });
        let Claim::Refused(refusal) = claim(&ada, "sys", &me, Some(&view(Some("bob"), None))) else {
            panic!("must be refused");
        };
        assert!(
            refusal.message.ends_with("stellage.dev/account=ada --overwrite"),
            "{}",
            refusal.message
        );
    }

    #[test]
    fn the_label_decides_between_living_claimants_so_that_exactly_one_has_the_namespace() {
        // Both were created within one second, and their UIDs are in reverse order.
        let (first, second) = (account("b", "shop", 1), account("a", "shop", 1));
        let mut claimants = vec![Claimant::of(&first), Claimant::of(&second)];
        claimants.sort();
        assert_eq!(claimants[0].name, "a");
        let made = view(Some("b"), Some("uid-b"));
        assert_eq!(
            claim(&first, "sys", &claimants, Some(&made)),
            Claim::Own { adopted: false }
        );
        assert_eq!(
            reason(&claim(&second, "sys", &claimants, Some(&made))),
            "NamespaceTaken"
        );
    }

    #[test]
    fn a_label_that_was_taken_off_a_namespace_of_ours_is_put_back() {
        let ada = account("ada", "shop", 1);
        let me = [Claimant::of(&ada)];
        assert_eq!(
            claim(&ada, "sys", &me, Some(&view(None, Some("uid-ada")))),
            Claim::Relabel
        );
        let another = claim(&ada, "sys", &me, Some(&view(None, Some("uid-bob"))));
        assert_eq!(reason(&another), "NamespaceNotOwned");
    }

    #[test]
    fn a_namespace_that_belonged_to_another_account_is_refused_even_with_the_label() {
        let ada = account("ada", "shop", 1);
        let me = [Claimant::of(&ada)];
        for theirs in [
            view(Some("ada"), Some("uid-of-an-earlier-ada")),
            view(None, Some("uid-bob")),
            adopted(Some("ada"), "uid-bob"),
        ] {
            let refused = claim(&ada, "sys", &me, Some(&theirs));
            assert_eq!(reason(&refused), "NamespaceNotOwned", "{theirs:?}");
        }
    }

    #[test]
    fn a_restored_account_has_the_namespace_of_its_origin() {
        let mut ada = account("ada", "shop", 1);
        ada.metadata.annotations = Some(
            [(
                origin::ORIGIN_ANNOTATION.to_owned(),
                "first 2026-11-21T10:00:00Z".to_owned(),
            )]
            .into(),
        );
        let me = [Claimant::of(&ada)];
        for (namespace, is_adopted) in [
            (view(Some("ada"), Some("first")), false),
            (adopted(Some("ada"), "first"), true),
        ] {
            let claim = claim(&ada, "sys", &me, Some(&namespace));
            assert_eq!(claim, Claim::Own { adopted: is_adopted });
        }
    }

    #[test]
    fn a_terminating_namespace_is_waited_for() {
        let ada = account("ada", "shop", 1);
        let going = NamespaceView {
            terminating: true,
            ..view(Some("ada"), Some("uid-ada"))
        };
        let Claim::Refused(refusal) = claim(&ada, "sys", &[Claimant::of(&ada)], Some(&going)) else {
            panic!("must be refused");
        };
        assert!(refusal.is_temporary);
    }

    #[test]
    fn the_clusters_and_the_operators_namespaces_are_refused_and_never_touched() {
        for namespace in ["kube-system", "kube-public", "sys"] {
            let ada = account("ada", namespace, 1);
            let me = [Claimant::of(&ada)];
            let labelled = adopted(Some("ada"), "uid-ada");
            assert_eq!(
                reason(&claim(&ada, "sys", &me, Some(&labelled))),
                "NamespaceReserved"
            );
            assert_eq!(removal(&ada, "sys", Some(&labelled)), Removal::OwnsNothing);
        }
    }

    #[test]
    fn a_deleted_account_takes_along_only_what_is_its_own() {
        let ada = account("ada", "shop", 1);
        assert_eq!(removal(&ada, "sys", None), Removal::OwnsNothing);
        for foreign in [
            view(None, None),
            view(Some("ada"), None),
            view(Some("bob"), None),
            view(Some("bob"), Some("uid-ada")),
            view(Some("ada"), Some("uid-of-an-earlier-ada")),
        ] {
            assert_eq!(removal(&ada, "sys", Some(&foreign)), Removal::OwnsNothing);
        }
        let created_by_operator = |view| match removal(&ada, "sys", Some(&view)) {
            Removal::Empty { created_by_operator } => created_by_operator,
            Removal::OwnsNothing => panic!("it is its own"),
        };
        assert!(!created_by_operator(adopted(Some("ada"), "uid-ada")));
        assert!(created_by_operator(view(Some("ada"), Some("uid-ada"))));
        assert!(created_by_operator(view(None, Some("uid-ada"))));
    }

    fn contents(words: (&'static str, &'static str), names: &[&str]) -> Contents {
        Contents {
            words,
            count: names.len() as u64,
            has_more: false,
            names: names.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn what_is_there_is_counted_and_named() {
        let some = |names| contents(("instance", "instances"), names);
        assert_eq!(enumerated(&[some(&[])]), None);
        let backup = contents(("backup", "backups"), &["x"]);
        for (contents, text) in [
            (vec![some(&["a"])], "1 instance: a"),
            (
                vec![some(&["c", "a", "b"]), backup],
                "3 instances: a, b, c; 1 backup: x",
            ),
            (
                vec![some(&["f", "e", "d", "c", "b", "a"])],
                "6 instances: a, b, c, d, e, …",
            ),
            (
                vec![Contents {
                    has_more: true,
                    ..some(&["a", "b"])
                }],
                "more than 2 instances: a, b",
            ),
        ] {
            assert_eq!(enumerated(&contents).unwrap(), text);
        }
    }

    #[test]
    fn what_holds_a_deletion_back_is_said_with_what_to_do_about_it() {
        let protected = |names| contents(("protected instance", "protected instances"), names);
        let backups = |names| contents(("completed backup", "completed backups"), names);
        assert_eq!(in_the_way(protected(&[]), backups(&[])), None);
        assert_eq!(
            in_the_way(protected(&["db"]), backups(&[])).unwrap(),
            "1 protected instance: db; set spec.deletionProtection of the instances to false first: until then, nothing else is deleted"
        );
        assert_eq!(
            in_the_way(protected(&[]), backups(&["b", "a"])).unwrap(),
            "2 completed backups: a, b; delete the backups first: until then, nothing else is deleted"
        );
        assert_eq!(
            in_the_way(protected(&["db"]), backups(&["a"])).unwrap(),
            "1 protected instance: db; 1 completed backup: a; set spec.deletionProtection of the instances to false and delete the backups first: until then, nothing else is deleted"
        );
    }

    #[test]
    fn an_unchanged_world_gives_an_unchanged_status() {
        let outcomes = [
            Outcome::Ready { adopted: true },
            Outcome::HeldBack {
                adopted: false,
                in_the_way: "1 protected instance: a".into(),
            },
            Outcome::Deleting {
                adopted: false,
                contents: "1 instance: a".into(),
            },
            Outcome::Failed {
                owned: Some(false),
                message: "no".into(),
            },
        ];
        for outcome in outcomes {
            let mut ada = account("ada", "shop", 1);
            ada.status = Some(status(&ada, &outcome, at(10)));
            assert_eq!(
                ada.status.clone(),
                Some(status(&ada, &outcome, at(99))),
                "{outcome:?}"
            );
        }
    }

    #[test]
    fn an_account_that_is_being_deleted_keeps_its_namespace_until_it_goes() {
        let held = Outcome::HeldBack {
            adopted: false,
            in_the_way: "1 protected instance: a".into(),
        };
        let deleting = Outcome::Deleting {
            adopted: false,
            contents: "1 instance: a".into(),
        };
        for (outcome, message, is_stalled) in [
            (held, "cannot be deleted yet: 1 protected instance: a", true),
            (deleting, "deleting 1 instance: a", false),
        ] {
            let mut ada = owning("ada", "shop", 1);
            ada.status = Some(status(&ada, &outcome, at(20)));
            assert_eq!(ada.owned_namespace(), Some("shop"));
            let conditions = &ada.status.as_ref().unwrap().conditions;
            let ready = find(conditions, READY).unwrap();
            assert_eq!(
                (ready.status.as_str(), ready.observed_generation),
                ("False", Some(1))
            );
            assert_eq!(ready.message, message);
            assert_eq!(conditions::is_true(conditions, STALLED), is_stalled);
        }
    }

    #[test]
    fn a_refused_account_is_stalled_and_owns_nothing() {
        let mut ada = owning("ada", "shop", 1);
        let refusal = NamespaceRefusal {
            reason: "NamespaceNotOwned",
            message: "no".into(),
            is_temporary: false,
        };
        ada.status = Some(status(&ada, &Outcome::Refused(refusal), at(20)));
        let status = ada.status.as_ref().unwrap();
        assert_eq!((ada.owned_namespace(), status.namespace.as_deref()), (None, None));
        assert!(conditions::is_true(&status.conditions, STALLED));
        assert!(status.id.as_deref().unwrap().starts_with("usr_"));
    }

    #[test]
    fn a_suspended_account_says_why_and_keeps_servers_off_only_once_it_has_said_so() {
        let mut ada = owning("ada", "shop", 1);
        let ready = Outcome::Ready { adopted: false };
        let decided = |account: &Account| status(account, &ready, Timestamp::UNIX_EPOCH);
        for (servers, is_off) in [(SuspendedServers::Leave, false), (SuspendedServers::Stop, true)] {
            ada.spec.suspended = Some(Suspension {
                reason: "overdue".to_owned(),
                servers,
            });
            assert_eq!(ada.keeps_servers_off(), None, "the namespace may not say so yet");
            let status = decided(&ada);
            assert_eq!(find(&status.conditions, SUSPENDED).unwrap().message, "overdue");
            ada.status = Some(status);
            assert_eq!(ada.keeps_servers_off().is_some(), is_off);
        }
        ada.spec.suspended = None;
        assert_eq!(ada.keeps_servers_off(), None);
        assert!(find(&decided(&ada).conditions, SUSPENDED).is_none());
    }
}
