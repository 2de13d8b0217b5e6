//! Nothing stays, whatever ends the program.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_control-plane");

/// Processes, zombies left out, whose command line or environment names `folder`.
fn processes_in(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    let names_folder =
        |path: PathBuf| fs::read(path).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(folder));
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let process = entry.unwrap().path();
            (names_folder(process.join("cmdline")) || names_folder(process.join("environ"))).then(|| {
                fs::read_to_string(process.join("comm"))
                    .unwrap_or_default()
                    .trim()
                    .to_owned()
            })
        })
        .collect()
}

/// How long anything awaited may take.
const PATIENCE: Duration = Duration::from_mins(1);

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(50));
    }
}

fn send(signal: &str, pid: u32) {
    assert!(
        Command::new("kill")
            .args(["-s", signal, &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

/// A program that a failed test does not leave behind.
struct Program(Child);

impl Program {
    fn wait(&mut self) -> ExitStatus {
        until("the program ends", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `control-plane exec` around a script, with `folder` for its temporary files; and what it prints.
fn exec(folder: &Path, script: &str) -> (Program, BufReader<ChildStdout>) {
    let mut child = Command::new(PROGRAM)
        .args(["exec", "--", "sh", "-c", script])
        .env("TMPDIR", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (Program(child), output)
}

fn line(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn assert_nothing_stays_after(signal: &str, exit_code: Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, mut output) = exec(folder.path(), "echo $KUBECONFIG; exec sleep 600");
    let kubeconfig = line(&mut output);
    assert!(
        kubeconfig.starts_with(folder.path().to_str().unwrap()),
        "{kubeconfig}"
    );
    for name in ["etcd", "kube-apiserver", "kube-controller", "sleep", "sh"] {
        until(name, || {
            processes_in(folder.path()).iter().any(|comm| comm == name)
        });
    }
    send(signal, child.0.id());
    assert_eq!(child.wait().code(), exit_code);
    until("all processes are gone", || {
        processes_in(folder.path()).is_empty()
    });
    until("all files are gone", || {
        fs::read_dir(folder.path()).unwrap().next().is_none()
    });
}

#[test]
fn nothing_stays_after_kill_9() {
    assert_nothing_stays_after("KILL", None);
}

#[test]
fn nothing_stays_after_sigterm() {
    // The command's own end by SIGTERM, as a shell reports it.
    assert_nothing_stays_after("TERM", Some(128 + 15));
}

#[test]
fn nothing_stays_after_sigint() {
    assert_nothing_stays_after("INT", Some(128 + 15));
}

#[test]
fn a_signal_during_the_start_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, _output) = exec(folder.path(), "exit 0");
    until("etcd runs", || {
        processes_in(folder.path()).iter().any(|comm| comm == "etcd")
    });
    send("TERM", child.0.id());
    assert!(!child.wait().success());
    assert_eq!(processes_in(folder.path()), Vec::<String>::new());
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
}

#[test]
fn exec_gives_the_command_a_cluster_and_takes_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, mut output) = exec(folder.path(), "kubectl get namespace default -o name; exit 7");
    assert_eq!(line(&mut output), "namespace/default");
    assert_eq!(child.wait().code(), Some(7));
    assert_eq!(processes_in(folder.path()), Vec::<String>::new());
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
}

const IS_INNER: &str = "CONTROL_PLANE_TEST_INNER";

/// Not a test by itself: `a_panicking_process_leaves_nothing` runs it in a process of its own.
#[tokio::test]
async fn inner_that_panics_with_a_shared_control_plane() {
    if std::env::var_os(IS_INNER).is_some() {
        control_plane::shared().await.unwrap();
        panic!("on purpose");
    }
}

#[test]
fn a_panicking_process_leaves_nothing_of_a_shared_control_plane() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "inner_that_panics_with_a_shared_control_plane"])
        .env("TMPDIR", folder.path())
        .env(IS_INNER, "1")
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("on purpose"),
        "{output:?}"
    );
    until("all processes are gone", || {
        processes_in(folder.path()).is_empty()
    });
    until("all files are gone", || {
        fs::read_dir(folder.path()).unwrap().next().is_none()
    });
}
