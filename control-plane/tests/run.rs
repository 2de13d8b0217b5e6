//! The local run's contract, with a script in the place of `stellage` and a listener that answers for its API.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_control-plane");

const STELLAGE: &str = r#"#!/bin/sh
case "$1" in
crds) cat <<'END'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: accounts.stellage.dev}
spec:
  group: stellage.dev
  scope: Cluster
  names: {kind: Account, plural: accounts, singular: account}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
END
;;
run) [ ! -e broken ] || exit 3; echo "$KUBECONFIG $*"; echo "mail: $STELLAGE_SMTP_URL"; echo "faults: $STELLAGE_SIMULATOR_FAULTS"; trap 'echo bye; exit' TERM
    printf '{"url": "http://127.0.0.1:@PORT@", "metrics_url": "http://127.0.0.1:1"}' >"$6"
    while :; do sleep 0.1; done;;
console-gateway) trap exit TERM; while :; do sleep 0.1; done;;
account) kubectl get crd accounts.stellage.dev >/dev/null && echo '{"name": "demo"}';;
key) echo '{"name": "demo", "account": "demo", "scope": "full", "key": "it'"'"'s secret", "expires_at": null}';;
esac
"#;

struct Run {
    checkout: TempDir,
    child: Child,
}

impl Run {
    /// Starts `control-plane run` in a folder with rights for nobody, through `wrapper` if there is one.
    fn start(wrapper: &[&str]) -> Self {
        // With a quote and a space: everything that is written has to survive them.
        let checkout = tempfile::Builder::new()
            .prefix("it's a checkout ")
            .tempdir()
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut buffer = [0; 4096];
                let _ = stream.read(&mut buffer);
                let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n{}");
            }
        });
        let rights = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: nobody, namespace: default}}";
        fs::create_dir(checkout.path().join("deploy")).unwrap();
        fs::write(checkout.path().join("deploy/rbac.yaml"), rights).unwrap();
        let stellage = checkout.path().join("fake-stellage");
        let script = STELLAGE.replace("@PORT@", &port.to_string());
        fs::write(&stellage, script).unwrap();
        fs::set_permissions(&stellage, fs::Permissions::from_mode(0o755)).unwrap();
        let mut words: Vec<&str> = wrapper.to_vec();
        words.extend([PROGRAM, "run", "--stop-with-parent", "--stellage"]);
        let child = Command::new(words[0])
            .args(&words[1..])
            .arg(&stellage)
            .current_dir(checkout.path())
            .envs([
                ("PORT", "0"),
                ("PROVISIONING", "7"),
                ("RETRY_SCHEDULE", "200ms,2s"),
            ])
            .stdin(Stdio::null())
            .stdout(fs::File::create(checkout.path().join("stdout")).unwrap())
            .stderr(fs::File::create(checkout.path().join("stderr")).unwrap())
            .spawn()
            .unwrap();
        let mut run = Self { checkout, child };
        let deadline = Instant::now() + Duration::from_mins(5);
        while !run.read("stdout").contains("Ctrl-C") {
            assert!(run.child.try_wait().unwrap().is_none(), "{}", run.read("stderr"));
            assert!(Instant::now() < deadline, "{}", run.read("stderr"));
            thread::sleep(Duration::from_millis(50));
        }
        run
    }

    fn path(&self) -> &Path {
        self.checkout.path()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap_or_default()
    }

    fn pid(&self, name: &str) -> String {
        self.read(&format!(".run/{name}.pid")).trim().to_owned()
    }

    /// What a shell prints that has sourced `.run/env`.
    fn shell(&self, script: &str) -> String {
        let output = Command::new("sh")
            .args(["-c", &format!(". .run/env; {script}")])
            .current_dir(self.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_mins(3);
        while !condition() {
            assert!(Instant::now() < deadline, "{what}: {}", self.read("stderr"));
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_mins(3);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not stop");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Within seconds no process is left, and of the files only the logs.
    fn assert_gone(&self, pids: &[String]) {
        let is_alive =
            |pid: &String| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
        let left = || {
            let mut names: Vec<_> = fs::read_dir(self.path().join(".run"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let logs = [
            "console-gateway.log",
            "etcd.log",
            "kube-apiserver.log",
            "kube-controller-manager.log",
            "lock",
            "stellage.log",
        ];
        let deadline = Instant::now() + Duration::from_mins(3);
        while pids.iter().any(is_alive) || left() != logs {
            assert!(Instant::now() < deadline, "{:?} and {:?} are left", pids, left());
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn pids(&self) -> Vec<String> {
        [
            "etcd",
            "kube-apiserver",
            "kube-controller-manager",
            "stellage",
            "console-gateway",
            "control-plane",
        ]
        .map(|name| {
            let pid = self.pid(name);
            assert!(pid.parse::<u32>().is_ok(), "{name}: {pid:?}");
            pid
        })
        .to_vec()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_local_run_keeps_its_contract_until_sigterm() {
    let mut run = Run::start(&[]);
    let pids = run.pids();
    let run_folder = run.path().join(".run");

    assert_eq!(run.shell("echo $STELLAGE_API_KEY"), "it's secret");
    assert_eq!(
        run.shell("echo $STELLAGE_ACCOUNT $STELLAGE_METRICS_URL"),
        "demo http://127.0.0.1:1"
    );
    assert!(run.shell("echo $STELLAGE_URL").starts_with("http://127.0.0.1:"));
    assert_eq!(
        run.shell("echo \"$KUBECONFIG\""),
        run_folder.join("kubeconfig").to_str().unwrap()
    );
    assert_eq!(
        run.shell("command -v stellage"),
        run_folder.join("bin/stellage").to_str().unwrap()
    );
    assert_eq!(
        run.shell("kubectl get namespace stellage-system -o name"),
        "namespace/stellage-system",
        "kubectl works, and the namespace is there"
    );
    for name in ["env", "kubeconfig", "operator.kubeconfig"] {
        let mode = run_folder.join(name).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let log = run.read(".run/stellage.log");
    assert!(
        log.contains("operator.kubeconfig run --listen=127.0.0.1:0 --metrics-listen=127.0.0.1:0"),
        "{log}"
    );
    assert!(log.contains("--provisioning-seconds=7"), "{log}");
    assert!(
        log.contains("--retry-schedule=200ms,2s --identity=local-run --receiver-allow=127.0.0.0/8,::1/128"),
        "{log}"
    );
    let mail = run_folder.join("mail");
    assert!(mail.is_dir());
    let url = mail.to_str().unwrap().replace(' ', "%20");
    assert!(log.contains(&format!("mail: file://{url}\n")), "{log}");
    assert!(log.contains("faults: true\n"), "{log}");
    let printed = run.read("stdout");
    assert!(printed.contains(mail.to_str().unwrap()), "{printed}");
    assert!(
        printed.contains("it's secret") && printed.contains("export KUBECONFIG="),
        "{printed}"
    );

    let second = Command::new(PROGRAM)
        .args(["run", "--stellage", "fake-stellage"])
        .env("PORT", "0")
        .current_dir(run.path())
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    let message = String::from_utf8_lossy(&second.stderr);
    assert!(
        message.contains(&format!("(process {})", run.child.id())),
        "{message}"
    );

    Command::new("kill")
        .arg(run.child.id().to_string())
        .status()
        .unwrap();
    assert_eq!(run.wait().code(), Some(0));
    run.assert_gone(&pids);
    assert!(
        run.read(".run/stellage.log").ends_with("bye\n"),
        "stellage was asked, not killed"
    );
}

fn kill_9(pid: &str) {
    let status = Command::new("kill").args(["-s", "KILL", pid]).status().unwrap();
    assert!(status.success());
}

#[test]
fn what_is_killed_is_started_again_at_the_same_place() {
    let run = Run::start(&[]);
    let first_command = run.read(".run/stellage.log");
    let lease = r#"{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": "local-run-a1"},
        "metadata": {"name": "stellage-controller", "namespace": "stellage-system"}}"#;
    run.shell(&format!("echo '{lease}' | kubectl apply -f -"));
    for name in [
        "stellage",
        "console-gateway",
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
    ] {
        let before = run.pid(name);
        kill_9(&before);
        run.until(&format!("{name} to be told of"), || {
            run.read("stderr").contains(&format!(
                "{name} exited (signal: 9 (SIGKILL)) and was restarted.\n"
            ))
        });
        let after = run.pid(name);
        assert_ne!(before, after);
        assert!(Path::new("/proc").join(&after).exists(), "{name} runs");
    }
    assert_eq!(
        run.shell("kubectl get crd --output name"),
        "customresourcedefinition.apiextensions.k8s.io/accounts.stellage.dev"
    );
    let holder = "kubectl get lease -n stellage-system -o jsonpath='[{.items[*].spec.holderIdentity}]'";
    assert_eq!(run.shell(holder), "[]", "who takes over need not wait");
    let api = run.shell("echo $STELLAGE_URL");
    let listen = format!("--listen={} ", api.trim_start_matches("http://"));
    let second_command = run.read(".run/stellage.log").replace(&first_command, "");
    assert!(second_command.contains(&listen), "{second_command}");
}

#[test]
fn what_ends_by_itself_at_its_start_ends_the_run_with_its_name_and_log() {
    let mut run = Run::start(&[]);
    let pids = run.pids();
    fs::write(run.path().join("broken"), "").unwrap();
    kill_9(&run.pid("stellage"));
    assert_eq!(run.wait().code(), Some(1));
    let message = run.read("stderr");
    assert!(
        message.contains("stellage exited (exit status: 3); the end of"),
        "{message}"
    );
    run.assert_gone(&pids);
}

#[test]
fn the_end_of_the_parent_ends_the_run() {
    let run = Run::start(&["sh", "-c", "\"$@\"; exit", "parent"]);
    let pids = run.pids();
    kill_9(&run.child.id().to_string());
    run.assert_gone(&pids);
}

#[test]
fn kill_9_of_the_run_leaves_only_logs() {
    let run = Run::start(&[]);
    let pids = run.pids();
    kill_9(&run.child.id().to_string());
    run.assert_gone(&pids);
}

#[test]
fn wrong_settings_and_a_wrong_folder_are_refused_with_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().port().to_string();
    fs::write(folder.path().join("stellage"), "").unwrap();
    for (variable, value, expected) in [
        ("PORT", "http", "PORT must be a number from 0 to 65535"),
        (
            "PROVISIONING",
            "150s",
            "PROVISIONING must be a whole number of seconds",
        ),
        ("RETRY_SCHEDULE", "1m,5", "\"5\" is not a valid delay"),
        ("RECEIVER_CA", "nowhere.pem", "RECEIVER_CA must be a PEM file"),
        (
            "SMTP_URL",
            "mail:s3cret@host",
            "SMTP_URL must be a URL that begins",
        ),
        (
            "PORT",
            taken.as_str(),
            "set PORT to another one, or to 0 for a free one",
        ),
        ("PORT", "0", "start the local run in a checkout of Stellage"),
    ] {
        let output = Command::new(PROGRAM)
            .args(["run", "--stellage", "stellage"])
            .env(variable, value)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(!output.status.success());
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains(expected), "{message}");
        assert!(!message.contains("s3cret"), "{message}");
        assert!(!folder.path().join(".run").exists());
    }
}
