//! Which cluster a command works on, chosen as with kubectl.

use std::path::PathBuf;

use clap::Args;
use kube::{
    Config,
    config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use thiserror::Error;

/// The flags of kubectl that choose a cluster.
#[derive(Args, Clone, Debug, Default)]
pub struct ClusterArgs {
    /// Context of the kubeconfig to use, in place of its current one
    #[arg(long, global = true, value_name = "NAME", help_heading = "Cluster")]
    pub context: Option<String>,

    /// Kubeconfig to use, in place of that in KUBECONFIG or ~/.kube/config
    #[arg(long, global = true, value_name = "FILE", help_heading = "Cluster")]
    pub kubeconfig: Option<PathBuf>,
}

/// Why no cluster could be chosen.
#[derive(Debug, Error)]
pub enum KubeconfigFailure {
    /// There is no usable kubeconfig, and the process does not run in a cluster.
    #[error(transparent)]
    Neither(#[from] InferConfigError),
    /// The kubeconfig that a flag asks for cannot be used.
    #[error(transparent)]
    Unusable(#[from] KubeconfigError),
    /// `--context` names none.
    #[error("--context: the kubeconfig has no context {name}; it has {has}")]
    NoContext {
        /// The name that was given.
        name: String,
        /// Those that there are.
        has: String,
    },
}

/// A cluster that was chosen.
#[derive(Debug)]
pub struct Chosen {
    /// How to reach it.
    pub config: Config,
    /// The context of the kubeconfig; `None` for the cluster that this runs in.
    pub context: Option<String>,
}

impl ClusterArgs {
    /// The cluster that the flags name; without them that of the kubeconfig's current context, or else the one that this runs in.
    pub async fn choose(&self) -> Result<Chosen, KubeconfigFailure> {
        if self.context.is_none() && self.kubeconfig.is_none() {
            let config = Config::infer().await?;
            let context = Kubeconfig::read().ok().and_then(|read| read.current_context);
            return Ok(Chosen { config, context });
        }
        let kubeconfig = match &self.kubeconfig {
            Some(file) => Kubeconfig::read_from(file)?,
            None => Kubeconfig::read()?,
        };
        let context = self
            .context
            .clone()
            .or_else(|| kubeconfig.current_context.clone());
        if let Some(name) = &self.context {
            let names: Vec<&str> = kubeconfig.contexts.iter().map(|context| &*context.name).collect();
            if !names.contains(&&**name) {
                return Err(KubeconfigFailure::NoContext {
                    name: name.clone(),
                    has: if names.is_empty() {
                        "none".to_owned()
                    } else {
                        names.join(", ")
                    },
                });
            }
        }
        let options = KubeConfigOptions {
            context: context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        Ok(Chosen { config, context })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A kubeconfig with a context for each of these clusters, the first of which is the current one.
    fn kubeconfig(names: &[&str]) -> tempfile::NamedTempFile {
        let entry = |name: &str, key: &str, value: Value| json!({ "name": name, key: value });
        let server = |name: &&str| {
            entry(
                name,
                "cluster",
                json!({ "server": format!("https://{name}.example.com:6443") }),
            )
        };
        let context = |name: &&str| {
            entry(
                name,
                "context",
                json!({ "cluster": name, "user": "me", "namespace": format!("of-{name}") }),
            )
        };
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": names[0],
            "clusters": names.iter().map(server).collect::<Vec<_>>(),
            "contexts": names.iter().map(context).collect::<Vec<_>>(),
            "users": [entry("me", "user", json!({ "token": "t" }))],
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text.to_string()).unwrap();
        file
    }

    #[tokio::test]
    async fn the_flags_choose_the_cluster_as_they_do_with_kubectl() {
        let file = kubeconfig(&["test", "prod"]);
        for (context, expected) in [(None, "test"), (Some("test"), "test"), (Some("prod"), "prod")] {
            let flags = ClusterArgs {
                context: context.map(ToOwned::to_owned),
                kubeconfig: Some(file.path().to_owned()),
            };
            let chosen = flags.choose().await.unwrap();
            assert_eq!(
                chosen.config.cluster_url.host(),
                Some(&*format!("{expected}.example.com"))
            );
            assert_eq!(chosen.config.default_namespace, format!("of-{expected}"));
            assert_eq!(chosen.context.as_deref(), Some(expected));
        }
    }

    #[tokio::test]
    async fn a_context_or_file_that_is_not_there_is_an_error_that_names_it() {
        let file = kubeconfig(&["test", "prod"]);
        let flags = |context: &str, kubeconfig: PathBuf| ClusterArgs {
            context: Some(context.to_owned()),
            kubeconfig: Some(kubeconfig),
        };
        for (flags, expected) in [
            (
                flags("pord", file.path().to_owned()),
                "--context: the kubeconfig has no context pord; it has test, prod",
            ),
            (flags("prod", "/nowhere/config".into()), "/nowhere/config"),
        ] {
            let error = flags.choose().await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
