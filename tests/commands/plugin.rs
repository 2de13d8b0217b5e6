//! The plugin `kubectl stellage`, and completions.

use std::{os::unix::fs::symlink, path::Path, process::Stdio};

use control_plane::Identity;
use resources::InstanceState;
use tokio::process::Command;

use super::{Ran, run_words};
use crate::support::{STELLAGE, Tenant, shared};

/// A folder with the plugin, like `.run/bin`.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["stellage", "kubectl-stellage", "kubectl_complete-stellage"] {
        symlink(STELLAGE, folder.path().join(name)).unwrap();
    }
    folder
}

async fn kubectl(folder: &Path, words: &[&str]) -> Ran {
    let plane = shared().await.plane;
    let output = Command::new(plane.assets().kubectl())
        .args(words)
        .env("PATH", folder)
        .env("KUBECONFIG", plane.kubeconfig(Identity::Admin))
        .stdin(Stdio::null())
        .output()
        .await;
    Ran::of(output.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_finds_the_commands_as_its_plugin() {
    let tenant = Tenant::new("cmd-plugin").await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    let folder = folder();
    let kubectl = async |words: &[&str]| kubectl(folder.path(), words).await;

    let plugins = kubectl(&["plugin", "list"]).await;
    assert!(plugins.text().contains("kubectl-stellage"), "{plugins:?}");
    let stop = [
        "stellage",
        "instance",
        "stop",
        "web",
        "-n",
        "cmd-plugin",
        "--wait",
    ];
    assert_eq!(kubectl(&stop).await.text(), "instance web is stopped");
    let again = kubectl(&stop).await;
    assert!(
        again.error().contains("stop is allowed from running"),
        "{again:?}"
    );
    let unknown = kubectl(&["stellage", "instance", "stop", "nope", "-n", "cmd-plugin"]).await;
    let advice = "`kubectl get instances -n cmd-plugin -o wide`";
    assert!(unknown.error().contains(advice), "{unknown:?}");

    let help = kubectl(&["stellage", "instance", "resize", "--help"]).await;
    for expected in [
        "Usage: kubectl stellage instance resize [OPTIONS] --plan <PLAN> <NAME>",
        "  kubectl stellage instance resize web -n ada --plan business --wait",
    ] {
        assert!(help.text().contains(expected), "{}", help.out);
    }

    let candidates = kubectl(&["__complete", "stellage", "instance", "re"]).await;
    assert!(
        candidates.text().starts_with("reboot\nresize\nrebuild\n"),
        "{candidates:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn shells_take_their_completions() {
    let script = run_words(&["completions", "bash"]).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), script.text()).unwrap();
    let complete = r#"
        source "$1"
        COMP_WORDS=(stellage instance re); COMP_CWORD=2
        _stellage stellage re instance
        echo "${COMPREPLY[@]}"
    "#;
    let output = Command::new("bash")
        .args(["-c", complete, "bash"])
        .arg(file.path())
        .output()
        .await;
    assert_eq!(Ran::of(output.unwrap()).text(), "reboot resize rebuild");
    assert!(
        run_words(&["completions", "zsh"])
            .await
            .text()
            .starts_with("#compdef stellage")
    );
    assert!(
        run_words(&["completions", "fish"])
            .await
            .text()
            .contains("complete -c stellage")
    );
    assert_eq!(run_words(&["completions", "tcsh"]).await.code, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_take_the_cluster_as_kubectl_does_and_name_it_before_they_destroy_something() {
    let tenant = Tenant::new("cmd-context").await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    let plane = shared().await.plane;
    let config = std::fs::read_to_string(plane.kubeconfig(Identity::Admin)).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    let server = config["clusters"][0]["cluster"]["server"]
        .as_str()
        .unwrap()
        .to_owned();
    config["contexts"][0]["name"] = "here".into();
    let mut elsewhere = config["contexts"][0].clone();
    elsewhere["name"] = "elsewhere".into();
    elsewhere["context"]["cluster"] = "elsewhere".into();
    config["contexts"].as_array_mut().unwrap().push(elsewhere);
    // Nobody listens on the discard port.
    let mut dead = config["clusters"][0].clone();
    dead["name"] = "elsewhere".into();
    dead["cluster"]["server"] = "https://127.0.0.1:9".into();
    config["clusters"].as_array_mut().unwrap().push(dead);
    config["current-context"] = "elsewhere".into();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config.to_string()).unwrap();
    let folder = folder();
    let run = async |flags: &str| {
        let file = file.path().to_str().unwrap();
        let line = format!("stellage instance poweroff web -n cmd-context --kubeconfig {file} {flags}");
        let words: Vec<&str> = line.split_whitespace().collect();
        kubectl(folder.path(), &words).await
    };

    let unknown = run("--context nope").await;
    assert!(
        unknown
            .error()
            .contains("no context nope; it has here, elsewhere"),
        "{unknown:?}"
    );
    let current = run("").await;
    assert!(
        current
            .error()
            .contains("cannot reach the API server at https://127.0.0.1:9"),
        "{current:?}"
    );
    let done = run("--context here").await;
    assert_eq!(done.text(), "the power of instance web is being cut");
    let said = format!(
        "instance web in namespace cmd-context; what it has not written to its disk is lost (cluster: context here, {server}"
    );
    assert!(done.notes.contains(&said), "{done:?}");
}

/// The commands that a help text lists.
fn listed(help: &str) -> Vec<&str> {
    help.lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        // Skip wrapped lines, which are indented further.
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|command| *command != "help")
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_has_help_with_an_example() {
    let help = run_words(&["--help"]).await;
    let all = listed(help.text());
    for expected in ["instance", "backup", "account", "key", "crds", "listen", "events"] {
        assert!(all.contains(&expected), "{all:?}");
    }
    // The serving commands have settings, which docs/settings.md describes.
    for group in all
        .iter()
        .filter(|name| !["run", "api", "controller", "console-gateway"].contains(name))
    {
        let help = run_words(&[group, "--help"]).await;
        let commands = listed(help.text());
        let paths = if commands.is_empty() {
            vec![vec![*group]]
        } else {
            commands.iter().map(|command| vec![*group, *command]).collect()
        };
        for path in paths {
            let name = path.join(" ");
            let help = run_words(&[&path[..], &["--help"]].concat()).await;
            let example = format!("  stellage {name}");
            for expected in [&*example, "--context <NAME>", "--kubeconfig <FILE>"] {
                assert!(help.text().contains(expected), "{name}: {}", help.out);
            }
        }
    }
}
