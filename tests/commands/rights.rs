//! Commands use their user's permissions, and the namespace of the kubeconfig's context.

use control_plane::Identity;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::{Api, api::PostParams, config::Kubeconfig};
use resources::InstanceState;
use serde_json::json;

use super::{Ran, command};
use crate::support::{Tenant, shared};

/// The administrator's kubeconfig, as another user and with a namespace.
async fn kubeconfig_as(user: &str, namespace: &str) -> tempfile::NamedTempFile {
    let plane = shared().await.plane;
    let mut config = Kubeconfig::read_from(plane.kubeconfig(Identity::Admin)).unwrap();
    for auth in &mut config.auth_infos {
        auth.auth_info.as_mut().unwrap().impersonate = Some(user.to_owned());
    }
    for context in &mut config.contexts {
        context.context.as_mut().unwrap().namespace = Some(namespace.to_owned());
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), serde_json::to_string(&config).unwrap()).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_may_do_what_its_user_may_and_says_what_it_may_not() {
    let tenant = Tenant::new("cmd-rights").await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    tenant
        .webhook("hook", "https://hooks.example.com/", &["instance.created"])
        .await;
    let role: Role = serde_json::from_value(json!({
        "metadata": { "name": "few-rights" },
        "rules": [
            { "apiGroups": ["stellage.dev"], "resources": ["instances", "webhooks"], "verbs": ["get", "list"] },
            { "apiGroups": ["stellage.dev"], "resources": ["instances"], "verbs": ["patch"] },
        ],
    }))
    .unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "few-rights" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "few-rights" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "grace" }],
    }))
    .unwrap();
    let params = PostParams::default();
    Api::namespaced(tenant.kube.clone(), "cmd-rights")
        .create(&params, &role)
        .await
        .unwrap();
    Api::namespaced(tenant.kube.clone(), "cmd-rights")
        .create(&params, &binding)
        .await
        .unwrap();

    let kubeconfig = kubeconfig_as("grace", "cmd-rights").await;
    let run = async |words: &[&str]| {
        let mut command = command(words).await;
        command.env("KUBECONFIG", kubeconfig.path());
        Ran::of(command.output().await.unwrap())
    };
    // It takes a moment until the API server knows the new rights.
    let enabled = crate::support::eventually(
        "the rights to be known",
        async || run(&["webhook", "enable", "hook"]).await,
        |ran| ran.code == Some(0),
    )
    .await;
    assert_eq!(
        enabled.text(),
        "webhook hook is enabled",
        "in the context's namespace"
    );

    for (words, expected) in [
        (
            &["webhook", "rotate-secret", "hook"][..],
            "not allowed to read Secret hook in namespace cmd-rights",
        ),
        (
            &["webhook", "enable", "nope"],
            "there is no webhook nope in namespace cmd-rights",
        ),
        (
            &["webhook", "test", "hook"],
            "not allowed to create a delivery for webhook hook",
        ),
        (
            &["delivery", "redeliver", "dlv_aaaaaaaaaaaaaaaa"],
            "not allowed to read delivery dlv_aaaaaaaaaaaaaaaa in namespace cmd-rights",
        ),
        (
            &["instance", "stop", "web", "--wait"],
            "not allowed to watch instance web (the operation itself continues)",
        ),
    ] {
        let ran = run(words).await;
        assert!(ran.error().contains(expected), "{words:?}: {ran:?}");
        assert!(
            ran.notes.contains("grace") || ran.notes.contains("nope"),
            "{words:?}: {ran:?}"
        );
    }
    tenant.wait_for_state("web", InstanceState::Stopped).await;
}
