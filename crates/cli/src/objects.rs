//! Finds the objects that commands work on, by name or id.

use std::fmt::Debug;

use clap::Args;
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Namespace};
use kube::{
    Api, Resource, ResourceExt as _,
    api::ListParams,
    core::{DeserializeGuard, error_boundary::InvalidObject},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    CliError,
    connect::{Cluster, Failure},
    output::{self, Output},
};
use resources::{Delivery, Instance, Webhook, ids};
use runtime::client::Pages;

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
    /// The public id.
    fn id(&self) -> String;

    /// The name that the object with this id has if REST or the operator created it; `None` if the text is not a valid id.
    fn name_of(id: &str) -> Option<String>;
}

impl Named for Instance {
    fn id(&self) -> String {
        self.id()
    }

    fn name_of(id: &str) -> Option<String> {
        ids::is_instance_id(id).then(|| id.to_owned())
    }
}

impl Named for Webhook {
    fn id(&self) -> String {
        self.id()
    }

    fn name_of(id: &str) -> Option<String> {
        ids::webhook_name(id)
    }
}

impl Named for Delivery {
    fn id(&self) -> String {
        self.id()
    }

    fn name_of(id: &str) -> Option<String> {
        ids::delivery_name_of(id)
    }
}

/// The kind as a word, in messages and commands.
pub(super) fn word<K: Resource<DynamicType = ()>>() -> String {
    K::kind(&()).to_lowercase()
}

/// The command that shows an object in full.
pub(super) fn describe<K: Resource<DynamicType = ()>>(object: &K) -> String {
    let what = format!("kubectl describe {} {}", word::<K>(), object.name_any());
    match object.namespace() {
        Some(namespace) => format!("{what} -n {namespace}"),
        None => what,
    }
}

/// The object with this name or id.
pub(super) async fn find<K: Named>(cluster: &Cluster, namespace: &str, name: &str) -> Result<K, CliError> {
    let api = Api::<K>::namespaced(cluster.client.clone(), namespace);
    let named = K::name_of(name);
    let word = word::<K>();
    let doing = format!("read {word} {name} in namespace {namespace}");
    let found = cluster
        .call(&doing, api.get_opt(named.as_deref().unwrap_or(name)))
        .await?;
    if let Some(object) = found {
        return Ok(object);
    }
    // An object created with kubectl under another name also has an id.
    let found = if named.is_some() {
        let all = list::<K>(cluster, namespace).await?;
        all.into_iter().find(|object| object.id() == name)
    } else {
        None
    };
    if let Some(object) = found {
        return Ok(object);
    }
    check_namespace(cluster, namespace).await?;
    Err(CliError::NoObject {
        word,
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        // The name that was given may be a display name, which only the wide form shows.
        list: format!("kubectl get {} -n {namespace} -o wide", K::plural(&())),
    })
}

/// All objects that `api` lists. `unreadable` gets those that do not match their schema.
pub(super) async fn read_all<K: Resource + Clone + Debug + DeserializeOwned>(
    cluster: &Cluster,
    doing: &str,
    api: Api<DeserializeGuard<K>>,
    mut unreadable: impl FnMut(InvalidObject),
) -> Result<Vec<K>, Failure> {
    let pages = Pages::of(api, ListParams::default());
    let all = cluster.list(doing, pages, Pages::next).await?;
    Ok(all
        .into_iter()
        .filter_map(|object| object.0.map_err(&mut unreadable).ok())
        .collect())
}

/// The objects of a namespace. Those that do not match their schema are reported on stderr.
pub(super) async fn list<K: Named>(cluster: &Cluster, namespace: &str) -> Result<Vec<K>, CliError> {
    let api = Api::<DeserializeGuard<K>>::namespaced(cluster.client.clone(), namespace);
    let doing = format!("list {} in namespace {namespace}", K::plural(&()));
    Ok(read_all(cluster, &doing, api, note_unreadable).await?)
}

/// Reports an object that does not match its schema.
pub(super) fn note_unreadable(object: InvalidObject) {
    let name = object.metadata.name.unwrap_or_default();
    output::note(&format!("cannot read {name}: {}", object.error));
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

/// Prints the result of a command: a text, or the object as `kubectl get -o json` does, without managedFields.
pub(super) fn print<K: Named>(mut object: K, text: &str, output: Output) -> Result<(), CliError> {
    match output {
        Output::Json => {
            object.meta_mut().managed_fields = None;
            output::json(&object)
        }
        Output::Text => {
            output::line(text);
            Ok(())
        }
    }
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
