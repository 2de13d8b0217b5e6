//! Finds the objects that commands work on: by name or id, in one namespace or in all.

use std::fmt::Debug;

use clap::Args;
use jiff::Timestamp;
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Namespace};
use kube::{
    Api, Resource, ResourceExt as _,
    api::ListParams,
    core::{DeserializeGuard, ObjectList, TypeMeta, error_boundary::InvalidObject},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    CliError,
    connect::{Cluster, Failure},
    output::{self, Output},
    program::program,
};
use crate::{
    resources::{Delivery, Instance, Webhook, ids},
    runtime::client::next_page,
};

/// Objects per page of a list.
const PAGE: u32 = 500;

/// The namespace of one object.
#[derive(Args, Debug)]
pub struct InNamespace {
    /// Namespace of the account [default: that of the kubeconfig's context]
    #[arg(long, short, value_name = "NAMESPACE", value_parser = name)]
    namespace: Option<String>,
}

impl InNamespace {
    pub(super) fn of<'a>(&'a self, cluster: &'a Cluster) -> &'a str {
        self.namespace.as_deref().unwrap_or(&cluster.namespace)
    }
}

/// The namespace of a list, or all of them.
#[derive(Args, Debug)]
pub struct InNamespaces {
    /// Namespace of the account [default: that of the kubeconfig's context]
    #[arg(long, short, value_name = "NAMESPACE", value_parser = name)]
    namespace: Option<String>,

    /// List the objects of all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,
}

impl InNamespaces {
    /// The namespace; `None` for all.
    pub(super) fn of<'a>(&'a self, cluster: &'a Cluster) -> Option<&'a str> {
        (!self.all_namespaces).then(|| self.namespace.as_deref().unwrap_or(&cluster.namespace))
    }
}

/// Checks that a text can be a name or an id, since it becomes part of a path of the API server.
pub(super) fn name(text: &str) -> Result<String, String> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let begins_well = text
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    if begins_well && text.bytes().all(is_good) {
        Ok(text.to_owned())
    } else {
        Err("must be a name of letters, digits, '-' and '.', or an id".to_owned())
    }
}

/// A kind that people name in commands.
pub(super) trait Named:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
    + Send
    + 'static
{
    /// The kind in the singular, in messages and commands.
    const WORD: &'static str;
    /// The kind in the plural.
    const WORDS: &'static str;

    /// The public id.
    fn id(&self) -> String;

    /// The name that the object with this id has if REST or the operator created it; `None` if the text is not a valid id.
    fn name_of(id: &str) -> Option<String>;
}

impl Named for Instance {
    const WORD: &'static str = "instance";
    const WORDS: &'static str = "instances";

    fn id(&self) -> String {
        self.id()
    }

    fn name_of(id: &str) -> Option<String> {
        ids::is_instance_id(id).then(|| id.to_owned())
    }
}

impl Named for Webhook {
    const WORD: &'static str = "webhook";
    const WORDS: &'static str = "webhooks";

    fn id(&self) -> String {
        self.id()
    }

    fn name_of(id: &str) -> Option<String> {
        ids::webhook_name(id)
    }
}

impl Named for Delivery {
    const WORD: &'static str = "delivery";
    const WORDS: &'static str = "deliveries";

    fn id(&self) -> String {
        self.id()
    }

    fn name_of(id: &str) -> Option<String> {
        ids::delivery_name_of(id)
    }
}

/// A kind that `list` and `show` print.
pub(super) trait Shown: Named {
    /// The columns of a table, without the namespace.
    const COLUMNS: &'static [&'static str];

    /// The cells of one object.
    fn row(&self, now: Timestamp) -> Vec<String>;

    /// One object in full.
    fn description(&self, now: Timestamp) -> String;
}

/// Prints the object with this name or id.
pub(super) async fn show<K: Shown>(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    output: Output,
) -> Result<(), CliError> {
    let object: K = find(cluster, namespace, name).await?;
    match output {
        Output::Json => print(&object),
        Output::Text => {
            output::line(&object.description(Timestamp::now()));
            Ok(())
        }
    }
}

/// Prints objects that [`list`] has found, with their namespaces if it looked in all.
pub(super) fn show_all<K: Shown>(
    objects: Vec<K>,
    namespace: Option<&str>,
    output: Output,
) -> Result<(), CliError> {
    if output == Output::Json {
        return print_all(objects);
    }
    if objects.is_empty() {
        note_empty::<K>(namespace);
    } else {
        output::line(&table(&objects, namespace.is_none(), Timestamp::now()));
    }
    Ok(())
}

/// Objects as a table.
pub(super) fn table<K: Shown>(objects: &[K], with_namespace: bool, now: Timestamp) -> String {
    let mut head = K::COLUMNS.to_vec();
    let mut rows: Vec<Vec<String>> = objects.iter().map(|object| object.row(now)).collect();
    if with_namespace {
        head.insert(0, "NAMESPACE");
        for (row, object) in rows.iter_mut().zip(objects) {
            row.insert(0, object.namespace().unwrap_or_default());
        }
    }
    output::table(&head, &rows)
}

/// The object with this name or id.
pub(super) async fn find<K: Named>(cluster: &Cluster, namespace: &str, name: &str) -> Result<K, CliError> {
    let api = Api::<K>::namespaced(cluster.client.clone(), namespace);
    let named = K::name_of(name);
    let doing = format!("read {} {name} in namespace {namespace}", K::WORD);
    let found = cluster
        .call(&doing, api.get_opt(named.as_deref().unwrap_or(name)))
        .await?;
    if let Some(object) = found {
        return Ok(object);
    }
    // An object created with kubectl under another name also has an id.
    let found = if named.is_some() {
        let all = list::<K>(cluster, Some(namespace), &ListParams::default()).await?;
        all.into_iter().find(|object| object.id() == name)
    } else {
        None
    };
    if let Some(object) = found {
        return Ok(object);
    }
    check_namespace(cluster, namespace).await?;
    Err(CliError::NoObject {
        word: K::WORD,
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        list: list_command::<K>(namespace),
    })
}

/// The command that lists the objects. Deliveries are listed per webhook.
fn list_command<K: Named>(namespace: &str) -> String {
    let webhook = if K::WORD == Delivery::WORD { " WEBHOOK" } else { "" };
    format!("{} {} list{webhook} -n {namespace}", program(), K::WORD)
}

/// All objects that `api` lists of a selection, page by page. `unreadable` gets those that do not match their schema.
pub(super) async fn read_all<K: Resource + Clone + Debug + DeserializeOwned>(
    cluster: &Cluster,
    doing: &str,
    api: &Api<DeserializeGuard<K>>,
    selection: &ListParams,
    mut unreadable: impl FnMut(InvalidObject),
) -> Result<Vec<K>, Failure> {
    let mut page = selection.clone().limit(PAGE);
    let mut objects = Vec::new();
    loop {
        let list = cluster.call(doing, api.list(&page)).await?;
        for object in list.items {
            match object.0 {
                Ok(object) => objects.push(object),
                Err(error) => unreadable(error),
            }
        }
        if !next_page(&mut page, &list.metadata) {
            return Ok(objects);
        }
    }
}

/// The objects that `selection` selects, in one namespace or in all, sorted by namespace and name. Objects that do not match
/// their schema are reported on stderr.
pub(super) async fn list<K: Named>(
    cluster: &Cluster,
    namespace: Option<&str>,
    selection: &ListParams,
) -> Result<Vec<K>, CliError> {
    let client = cluster.client.clone();
    let api: Api<DeserializeGuard<K>> = match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let doing = match namespace {
        Some(namespace) => format!("list {} in namespace {namespace}", K::WORDS),
        None => format!("list {} in all namespaces", K::WORDS),
    };
    let unreadable = |error: InvalidObject| {
        output::note(&format!(
            "cannot read {} {}: {}",
            K::WORD,
            error.metadata.name.unwrap_or_default(),
            error.error
        ));
    };
    let mut objects = read_all(cluster, &doing, &api, selection, unreadable).await?;
    if let Some(namespace) = namespace
        && objects.is_empty()
    {
        check_namespace(cluster, namespace).await?;
    }
    objects.sort_by_cached_key(|object: &K| (object.namespace(), object.name_any()));
    Ok(objects)
}

/// An error if the namespace does not exist. Missing rights to check that are ignored, since this only improves a message.
async fn check_namespace(cluster: &Cluster, namespace: &str) -> Result<(), CliError> {
    let namespaces = Api::<Namespace>::all(cluster.client.clone());
    let found: Result<_, Failure> = cluster
        .call(
            &format!("read namespace {namespace}"),
            namespaces.get_metadata_opt(namespace),
        )
        .await;
    match found {
        Ok(None) => Err(CliError::NoNamespace(namespace.to_owned())),
        Ok(Some(_)) | Err(_) => Ok(()),
    }
}

/// Prints that a list is empty.
fn note_empty<K: Named>(namespace: Option<&str>) {
    output::note(&match namespace {
        Some(namespace) => format!(
            "There are no {} in namespace {namespace}; use -n for another namespace, or -A for all.",
            K::WORDS
        ),
        None => format!("There are no {}.", K::WORDS),
    });
}

/// Prints one object as `kubectl get -o json` does.
pub(super) fn print<K: Named>(object: &K) -> Result<(), CliError> {
    output::json(&pruned(object.clone()))
}

/// Prints a list of objects as `kubectl get -o json` does.
pub(super) fn print_all<K: Named>(objects: Vec<K>) -> Result<(), CliError> {
    output::json(&ObjectList {
        types: TypeMeta {
            api_version: "v1".to_owned(),
            kind: "List".to_owned(),
        },
        metadata: kube::core::ListMeta::default(),
        items: objects.into_iter().map(pruned).collect::<Vec<K>>(),
    })
}

/// Removes managedFields, as kubectl does.
fn pruned<K: Named>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_change_the_path_of_a_request() {
        for good in [
            "web",
            "web-1.example",
            "wh_abcdefgh01234567",
            "i-abcdefgh01234567",
        ] {
            assert_eq!(name(good).as_deref(), Ok(good));
        }
        for bad in ["", "web/status", "a b", "a?b", "..", "a%2fb"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_give_the_names_of_their_objects() {
        let id = "i-abcdefgh01234567";
        assert_eq!(Instance::name_of(id).as_deref(), Some(id));
        assert_eq!(Instance::name_of("web"), None);
        assert_eq!(
            Webhook::name_of("wh_abcdefgh01234567").as_deref(),
            Some("wh-abcdefgh01234567")
        );
        assert_eq!(
            Delivery::name_of("dlv_abcdefgh01234567").as_deref(),
            Some("dlv-abcdefgh01234567")
        );
    }
}
