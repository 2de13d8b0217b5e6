//! Runs the `stellage` program in the local run.

use super::{Settings, folder::Folder};
use crate::Failure;
use control_plane::{ControlPlane, Daemon, Error, Identity, loopback};
use http::Method;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::PostParams};
use serde_json::Value;
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::{
    io::AsyncWriteExt as _,
    process::Command,
    time::{sleep, timeout},
};

/// Commands take a few seconds; the timeout allows for a machine that is busy compiling.
const COMMAND_WITHIN: Duration = Duration::from_mins(2);
const SERVES_WITHIN: Duration = Duration::from_mins(1);
const KEY_WORKS_WITHIN: Duration = Duration::from_secs(15);
const ACCOUNT: &str = "demo";
/// The name of the console gateway's process.
pub(super) const GATEWAY: &str = "console-gateway";
/// Prefix of the Lease holder's identity; each start adds its own suffix.
const IDENTITY: &str = "local-run";
const LEASE_FREED_WITHIN: Duration = Duration::from_secs(3);

/// Runs programs against a control plane, with the admin's kubeconfig.
pub(super) struct Product<'a> {
    pub(super) plane: &'a ControlPlane,
    pub(super) folder: &'a Folder,
    pub(super) stellage: &'a Path,
}

/// The file with the operator's rights.
pub(super) fn rights(checkout: &Path) -> Result<PathBuf, Failure> {
    let rights = checkout.join("deploy/rbac.yaml");
    if rights.is_file() {
        return Ok(rights);
    }
    Err(Failure::Other(format!(
        "{} is not there: start the local run in a checkout of Stellage",
        rights.display()
    )))
}

/// The URLs at which `stellage` serves.
pub(super) struct Urls {
    pub(super) api: String,
    pub(super) metrics: String,
}

impl Product<'_> {
    /// Installs the CRDs, the policies, the operator's namespace and its rights.
    pub(super) async fn install(&self, checkout: &Path) -> Result<(), Failure> {
        let manifests = self.stellage(&["crds", "--with-policies"]).await?;
        let apply = ["apply", "--server-side", "-f", "-"];
        self.kubectl(&apply, &manifests).await?;
        let namespace =
            r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "stellage-system"}}"#;
        self.kubectl(&apply, namespace).await?;
        let rights = rights(checkout)?;
        let rights = fs::read_to_string(&rights).map_err(Failure::file("read", rights))?;
        self.kubectl(&apply, &rights).await?;
        self.kubectl(
            &[
                "wait",
                "--for=condition=Established",
                "crd",
                "--all",
                "--timeout=60s",
            ],
            "",
        )
        .await?;
        Ok(())
    }

    /// Starts `stellage run` with the operator's rights; a restart uses the `previous` addresses. `gateway` is the port of the console
    /// gateway.
    pub(super) fn start(
        &self,
        settings: &Settings,
        previous: Option<&Urls>,
        gateway: u16,
    ) -> Result<Daemon, Failure> {
        let mut command = std::process::Command::new(self.stellage);
        let smtp_url = match settings.smtp_url().map_err(Failure::Other)? {
            Some(url) => url.to_owned(),
            None => self.folder.create_mail()?,
        };
        command
            .args(arguments(settings, &self.folder.ready(), previous, gateway))
            // Not an argument: all users of the machine can see those, and the URL may contain a password.
            .env("STELLAGE_SMTP_URL", smtp_url)
            .env("STELLAGE_SIMULATOR_FAULTS", "true")
            // So that there are invoices to look at.
            .env("STELLAGE_BILL_SIMULATED", "true")
            .env("KUBECONFIG", self.plane.kubeconfig(Identity::Operator));
        if settings.catalogue.is_none() {
            command.arg("--catalogue").arg(self.folder.write_catalogue()?);
        }
        let log = self.folder.file("stellage.log");
        let daemon = Daemon::spawn("stellage", command, self.plane.group(), &log)?;
        self.folder.write_pid("stellage", daemon.pid())?;
        Ok(daemon)
    }

    /// Starts `stellage console-gateway` on this port.
    pub(super) fn start_gateway(&self, settings: &Settings, port: u16) -> Result<Daemon, Failure> {
        let mut command = std::process::Command::new(self.stellage);
        command
            .arg("console-gateway")
            .arg(format!("--console-listen=127.0.0.1:{port}"))
            .arg("--metrics-listen=127.0.0.1:0")
            .env("KUBECONFIG", self.plane.kubeconfig(Identity::Operator));
        if let Some(file) = &settings.catalogue {
            command.arg("--catalogue").arg(file);
        }
        let log = self.folder.file(&format!("{GATEWAY}.log"));
        let daemon = Daemon::spawn(GATEWAY, command, self.plane.group(), &log)?;
        self.folder.write_pid(GATEWAY, daemon.pid())?;
        Ok(daemon)
    }

    /// Releases the Lease of a `stellage` that has died. Otherwise the next one would wait until it expires.
    pub(super) async fn free_lease(&self) {
        let freed = async {
            let client = self.plane.client(Identity::Admin).await.ok()?;
            let leases: Api<Lease> = Api::namespaced(client, "stellage-system");
            let mut lease = leases.get("stellage-controller").await.ok()?;
            let holder = lease.spec.as_mut()?.holder_identity.as_mut()?;
            if holder.starts_with(IDENTITY) {
                holder.clear();
                leases
                    .replace("stellage-controller", &PostParams::default(), &lease)
                    .await
                    .ok()?;
            }
            Some(())
        };
        // If this fails, the Lease expires by itself.
        let _ = timeout(LEASE_FREED_WITHIN, freed).await;
    }

    /// Starts `stellage`, and returns when it serves.
    pub(super) async fn serve(&self, settings: &Settings, gateway: u16) -> Result<(Daemon, Urls), Failure> {
        let mut daemon = self.start(settings, None, gateway)?;
        let started = Instant::now();
        loop {
            if let Some(status) = daemon.exited() {
                return Err(daemon.error(format!("exited ({status})")).into());
            }
            // A partly written file does not parse.
            if let Some(urls) = read_urls(&self.folder.ready()) {
                return Ok((daemon, urls));
            }
            if started.elapsed() > SERVES_WITHIN {
                return Err(daemon
                    .error(format!("did not serve within {} s", SERVES_WITHIN.as_secs()))
                    .into());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Creates the account and a key, waits until the API accepts the key, and returns both.
    pub(super) async fn first_key(&self, api: &str) -> Result<(&'static str, String), Failure> {
        let email = "demo@example.com";
        self.stellage(&["account", "create", ACCOUNT, "--email", email, "--output", "json"])
            .await?;
        let answer = self
            .stellage(&["key", "create", "--account", ACCOUNT, "--output", "json"])
            .await?;
        let answer: Option<Value> = serde_json::from_str(&answer).ok();
        let key = answer.as_ref().and_then(|answer| answer.get("key")?.as_str());
        let key = key.ok_or_else(|| {
            Failure::Other(
                "`stellage key create --output json` did not print an object with a `key`".to_owned(),
            )
        })?;
        let authority = authority(api);
        let header = format!("Bearer {key}");
        let started = Instant::now();
        loop {
            let headers = [("Authorization", header.as_str())];
            let answer = loopback::request(authority, Method::GET, "/v1/instances", &headers, "").await;
            match answer {
                Ok((200, _)) => return Ok((ACCOUNT, key.to_owned())),
                _ if started.elapsed() < KEY_WORKS_WITHIN => sleep(Duration::from_millis(100)).await,
                Ok((status, body)) => {
                    return Err(Failure::Other(format!(
                        "{api}/v1/instances answered {status} to the new key: {body}"
                    )));
                }
                Err(error) => return Err(Failure::Other(format!("{api} does not answer: {error}"))),
            }
        }
    }

    async fn stellage(&self, arguments: &[&str]) -> Result<String, Failure> {
        self.output(self.stellage, arguments, "").await
    }

    async fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String, Failure> {
        self.output(self.plane.assets().kubectl(), arguments, input).await
    }

    /// Runs a command to its end and returns what it printed.
    async fn output(&self, program: &Path, arguments: &[&str], input: &str) -> Result<String, Failure> {
        let spawn_error = |source| Error::Spawn {
            program: program.to_string_lossy().into_owned(),
            source,
        };
        let mut child = Command::new(program)
            .args(arguments)
            .env("KUBECONFIG", self.plane.kubeconfig(Identity::Admin))
            .env("KUBECACHEDIR", self.folder.kubectl_cache())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(self.plane.group().id())
            .kill_on_drop(true)
            .spawn()
            .map_err(spawn_error)?;
        let stdin = child.stdin.take();
        let feed = async move {
            if let Some(mut stdin) = stdin {
                // If the command does not read its input, it reports the error itself.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
        };
        let ((), output) = timeout(COMMAND_WITHIN, async {
            tokio::join!(feed, child.wait_with_output())
        })
        .await
        .map_err(|_| Failure::Other(format!("{} took too long", command_line(program, arguments))))?;
        let output = output.map_err(spawn_error)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(Failure::Other(format!(
            "{} failed ({}):\n{}",
            command_line(program, arguments),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end(),
        )))
    }
}

/// The arguments of `stellage`. A restart keeps the `previous` addresses, because clients use them.
fn arguments(settings: &Settings, ready: &Path, previous: Option<&Urls>, gateway: u16) -> Vec<OsString> {
    let (api, metrics) = match previous {
        Some(urls) => (
            authority(&urls.api).to_owned(),
            authority(&urls.metrics).to_owned(),
        ),
        None => (format!("127.0.0.1:{}", settings.port), "127.0.0.1:0".to_owned()),
    };
    let mut arguments: Vec<OsString> = vec![
        "run".into(),
        format!("--listen={api}").into(),
        format!("--metrics-listen={metrics}").into(),
        format!("--provisioning-seconds={}", settings.provisioning).into(),
        "--ready-file".into(),
        ready.into(),
        format!("--retry-schedule={}", settings.retry_schedule).into(),
        format!("--identity={IDENTITY}").into(),
        // In the local run, receivers are on this machine.
        "--receiver-allow=127.0.0.0/8,::1/128".into(),
        // It speaks plain HTTP, on loopback.
        "--console-insecure-cookie".into(),
        format!("--console-gateway-url=ws://127.0.0.1:{gateway}/v1/console").into(),
    ];
    if let Some(file) = &settings.receiver_ca {
        arguments.extend(["--receiver-ca".into(), file.into()]);
    }
    if let Some(file) = &settings.catalogue {
        arguments.extend(["--catalogue".into(), file.into()]);
    }
    arguments
}

fn authority(url: &str) -> &str {
    url.trim_start_matches("http://")
}

fn command_line(program: &Path, arguments: &[&str]) -> String {
    let program = program
        .file_name()
        .unwrap_or(program.as_os_str())
        .to_string_lossy();
    format!("`{program} {}`", arguments.join(" "))
}

fn read_urls(path: &Path) -> Option<Urls> {
    let text = fs::read_to_string(path).ok()?;
    let value: Value = serde_json::from_str(&text).ok()?;
    let url = |name| Some(value.get(name)?.as_str()?.trim_end_matches('/').to_owned());
    Some(Urls {
        api: url("url")?,
        metrics: url("metrics_url")?,
    })
}

/// The path of `stellage`: the given one, or else next to this program.
pub(super) fn find(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let path = match given {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()
            .map(|own| own.with_file_name("stellage"))
            .map_err(|error| Failure::Other(format!("cannot find this program's own folder: {error}")))?,
    };
    if path.is_file() {
        return fs::canonicalize(&path).map_err(Failure::file("find", &path));
    }
    Err(Failure::Other(format!(
        "{} does not exist: build it first (`make run` does), or name another with --stellage",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        settings: Settings,
    }

    fn built(words: &[&str]) -> Vec<String> {
        let words = [&["run"], words].concat();
        let command = <Command as clap::Parser>::try_parse_from(words).unwrap();
        let arguments = arguments(&command.settings, Path::new("/a b/ready.json"), None, 8081);
        let arguments = arguments.into_iter();
        arguments
            .map(|argument| argument.into_string().unwrap())
            .collect()
    }

    #[test]
    fn settings_become_arguments_of_stellage() {
        let usual = [
            "run",
            "--listen=127.0.0.1:8080",
            "--metrics-listen=127.0.0.1:0",
            "--provisioning-seconds=150",
            "--ready-file",
            "/a b/ready.json",
            "--retry-schedule=1m,5m,30m,2h,6h",
            "--identity=local-run",
            "--receiver-allow=127.0.0.0/8,::1/128",
            "--console-insecure-cookie",
            "--console-gateway-url=ws://127.0.0.1:8081/v1/console",
        ];
        assert_eq!(built(&[]), usual);

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().canonicalize().unwrap().join("a ca.pem");
        fs::write(&file, "-----BEGIN CERTIFICATE-----").unwrap();
        let file = file.to_str().unwrap();
        let chosen = built(&[
            "--port=0",
            "--provisioning=1",
            "--retry-schedule=200ms, 1s",
            "--receiver-ca",
            file,
            "--smtp-url=smtp://u:s3cret@127.0.0.1",
        ]);
        assert_eq!(chosen[1], "--listen=127.0.0.1:0");
        assert_eq!(chosen[3], "--provisioning-seconds=1");
        assert_eq!(
            chosen[6..],
            [
                "--retry-schedule=200ms,1s",
                usual[7],
                usual[8],
                usual[9],
                usual[10],
                "--receiver-ca",
                file
            ]
        );
        assert!(
            !chosen.concat().contains("s3cret"),
            "other users can see arguments"
        );
    }
}
