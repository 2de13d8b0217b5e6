//! `make run` with the real program: the first verified event, as described in docs/receivers.md.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use crate::{
    receivers::{Certificate, Receiver, there_is},
    support::{PATIENCE, STELLAGE, plane_permit},
};

/// A local run in its own folder. Killed when dropped, together with everything that it has started.
struct Run {
    checkout: tempfile::TempDir,
    child: Child,
}

impl Run {
    /// Does what `make run` does, with the binaries of the tests.
    fn start(receiver_ca: &Path) -> Self {
        let checkout = tempfile::tempdir().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        symlink(root.join("deploy"), checkout.path().join("deploy")).unwrap();
        fs::create_dir(checkout.path().join("examples")).unwrap();
        for name in ["account.yaml", "instance.yaml", "webhook.yaml"] {
            let example = Path::new("examples").join(name);
            fs::copy(root.join(&example), checkout.path().join(&example)).unwrap();
        }
        let program = Path::new(STELLAGE).with_file_name("control-plane");
        assert!(
            program.exists(),
            "run cargo test --workspace --no-run, which builds {}",
            program.display()
        );
        let output = |name| File::create(checkout.path().join(name)).unwrap();
        let child = Command::new(program)
            .args(["run", "--stop-with-parent", "--stellage", STELLAGE])
            .current_dir(checkout.path())
            .env("PORT", "0")
            .env("PROVISIONING", "1")
            .env("RECEIVER_CA", receiver_ca)
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(output("stderr"))
            .spawn()
            .unwrap();
        Self { checkout, child }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.checkout.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn wait_for(&mut self, condition: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !condition(self) {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < PATIENCE,
                "{ended:?}: {}",
                self.read("stderr")
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn stop(&mut self) -> ExitStatus {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").arg(pid).status().unwrap().success());
        self.child.wait().unwrap()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The commands of the first block of docs/receivers.md that begins with `first`.
fn commands(first: &str) -> Vec<&'static str> {
    let text = include_str!("../docs/receivers.md");
    let from = text
        .find(&format!("$ {first}\n"))
        .expect("the commands in docs/receivers.md");
    text[from..]
        .lines()
        .map_while(|line| line.strip_prefix("$ "))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_local_run_shows_a_first_verified_event_as_the_documents_say() {
    if !there_is("python3") {
        return;
    }
    let _permit = plane_permit().await;
    tokio::task::spawn_blocking(|| {
        let certificate = Certificate::new();
        let mut run = Run::start(&certificate.folder.path().join("cert.pem"));
        let manifest = run.read("examples/webhook.yaml");
        let secret = manifest
            .lines()
            .find_map(|line| line.trim().strip_prefix("secret: "))
            .unwrap();
        let mut python = Command::new("python3");
        python
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/receivers/python/receiver.py"))
            .env("WEBHOOK_SECRET", secret);
        let receiver = Receiver::start(python, Some(&certificate));
        // The documents use the receiver's usual port, which may be taken here.
        let manifest = manifest.replace(":8443", &format!(":{}", receiver.port()));
        fs::write(run.path("examples/webhook.yaml"), manifest).unwrap();
        run.wait_for(|run| run.read("stdout").contains("Ctrl-C"));
        let said = run.read("stdout");
        let console = said.lines().find_map(|line| line.strip_prefix("Console  "));
        assert!(
            console.is_some_and(|url| url.starts_with("http://127.0.0.1:") && url.ends_with("/console")),
            "{said}"
        );

        let script = commands("source .run/env");
        assert_eq!(script.len(), 5, "{script:?}");
        let ran = Command::new("bash")
            .args(["-ec", &script.join("\n")])
            .current_dir(run.checkout.path())
            .output()
            .unwrap();
        assert!(ran.status.success(), "{ran:?}");
        for event in ["instance.created", "instance.started"] {
            let line = receiver.line();
            let shown = line.starts_with(&format!("received {event} evt_")) && line.ends_with(" for web");
            assert!(shown, "{line}");
        }
        assert_eq!(run.stop().code(), Some(0), "{}", run.read("stderr"));
        let log = run.read(".run/stellage.log");
        assert!(!log.contains("panicked at"), "{log}");
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_local_run_an_account_with_a_quota_accepts_a_create_at_once() {
    let _permit = plane_permit().await;
    tokio::task::spawn_blocking(|| {
        let certificate = Certificate::new();
        let mut run = Run::start(&certificate.folder.path().join("cert.pem"));
        run.wait_for(|run| run.path(".run/env").exists());
        let script = r#"
            source .run/env
            stellage account create grace --email grace@example.com --instance-quota 1 --no-wait
            key=$(stellage key create --account grace)
            ask() { curl --silent --output answer --write-out '%{http_code}' -H "Authorization: Bearer $key" "$@" "$STELLAGE_URL/v1/instances"; }
            until [ "$(ask)" = 200 ]; do sleep 0.1; done
            ask --json '{"name": "web", "plan": "starter", "region": "fr-par-1", "image": "debian-13"}'
            cat answer >&2
        "#;
        let ran = Command::new("bash")
            .args(["-ec", script])
            .current_dir(run.checkout.path())
            .output()
            .unwrap();
        assert!(ran.status.success() && ran.stdout.ends_with(b"201"), "{ran:?}");
        assert_eq!(run.stop().code(), Some(0), "{}", run.read("stderr"));
    })
    .await
    .unwrap();
}
