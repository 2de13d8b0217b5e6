//! The build of the binaries, with a `go` that writes them at once.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    env,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
    thread::{scope, sleep},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// What `go build -o FILE PACKAGE` does here: notes that it ran, and writes FILE.
const BUILDS: &str = r#"echo "$@" >>"$STUB_NOTES"; while [ "$1" != -o ]; do shift; done; echo "$3" >"$2""#;

struct Stub {
    folder: TempDir,
}

impl Stub {
    fn new(version: &str, build: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let stub = Self { folder };
        stub.program(
            "go",
            &format!(
                "case \"$*\" in\n\
                 'env GOVERSION') echo {version};;\n\
                 'env '*) echo '{}';;\n\
                 'build '*) {build};;\n\
                 'run '*) cat main.go;;\n\
                 esac",
                stub.path().display()
            ),
        );
        // Not the machine's: this build needs none of the space that a real one takes.
        stub.program("df", "echo Filesystem; echo /dev/vda 100 10 90000000 10% /");
        for name in ["sh", "cat", "rm", "sleep"] {
            let paths = env::var_os("PATH").unwrap();
            let real = env::split_paths(&paths)
                .map(|path| path.join(name))
                .find(|path| path.is_file());
            std::os::unix::fs::symlink(real.unwrap(), stub.path().join(name)).unwrap();
        }
        stub
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.path().join(name);
        let _ = fs::remove_file(&path);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }

    fn command(&self) -> Command {
        self.command_to("build")
    }

    fn command_to(&self, what: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_control-plane"));
        command
            .arg(what)
            .env_remove("KUBEBUILDER_ASSETS")
            .env_remove("STELLAGE_KUBEVIRT")
            .env("PATH", self.path())
            .env("STUB_NOTES", self.path().join("notes"))
            .env("STELLAGE_CACHE_DIR", self.path().join("cache"))
            .env("STELLAGE_DOWNLOADS", "never");
        command
    }

    fn build(&self) -> Output {
        self.command().output().unwrap()
    }

    fn notes(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path().join("notes")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn error(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).trim_end().to_owned()
}

#[test]
fn everything_is_built_once_also_by_two_at_once() {
    let stub = Stub::new("go1.99.1", &format!("{BUILDS}; sleep 0.1"));
    let outputs = scope(|scope| {
        [scope.spawn(|| stub.build()), scope.spawn(|| stub.build())].map(|thread| thread.join().unwrap())
    });
    for output in outputs {
        assert!(output.status.success(), "{output:?}");
        let folder = String::from_utf8(output.stdout).unwrap();
        for name in ["etcd", "kube-apiserver", "kube-controller-manager", "kubectl"] {
            assert!(Path::new(folder.trim_end()).join(name).is_file(), "{name}");
        }
    }
    let notes = stub.notes();
    assert_eq!(notes.len(), 4, "{notes:?}");
    assert!(
        notes
            .iter()
            .all(|note| note.contains("component-base/version.gitVersion=v1.")),
        "{notes:?}"
    );
    assert!(stub.build().status.success());
    assert_eq!(stub.notes().len(), 4);
}

#[test]
fn what_a_program_of_the_pins_own_prints_is_kept_beside_the_others() {
    let stub = Stub::new("go1.99.1", BUILDS);
    let output = stub.command_to("kubevirt").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let folder = String::from_utf8(output.stdout).unwrap();
    let folder = Path::new(folder.trim_end());
    for name in ["virt-api", "virt-controller"] {
        assert!(folder.join(name).is_file(), "{name}");
    }
    let printed = fs::read_to_string(folder.join("kubevirt.json")).unwrap();
    assert_eq!(printed, include_str!("../kubevirt/main.go"));
}

#[test]
fn the_newest_kubevirt_is_built_on_request_and_used_where_its_folder_is_named() {
    let stub = Stub::new("go1.99.1", &format!("cat go.mod >\"$STUB_GO_MOD\"; {BUILDS}"));
    let pins = stub.path().join("pins");
    let mut newest = stub.command_to("kubevirt");
    let output = newest.arg("--newest").env("STUB_GO_MOD", &pins).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        fs::read_to_string(pins).unwrap(),
        include_str!("../kubevirt/newest/go.mod")
    );
    let folder = String::from_utf8(output.stdout).unwrap();
    let built = stub.notes();
    let named = || {
        let mut command = stub.command_to("kubevirt");
        command.env("STELLAGE_KUBEVIRT", folder.trim_end());
        command.output().unwrap()
    };
    assert_eq!(String::from_utf8(named().stdout).unwrap(), folder);
    assert_eq!(stub.notes(), built);
    fs::remove_file(Path::new(folder.trim_end()).join("virt-api")).unwrap();
    let message = error(&named());
    assert!(message.contains(" lacks virt-api: "), "{message}");
}

#[test]
fn a_wrong_word_about_downloads_is_refused_with_the_right_one() {
    let stub = Stub::new("go1.99.1", BUILDS);
    let output = stub.command().env("STELLAGE_DOWNLOADS", "no").output().unwrap();
    let message = error(&output);
    assert!(
        message.contains("STELLAGE_DOWNLOADS=no is unknown: set it to never"),
        "{message}"
    );
    assert!(stub.notes().is_empty());
}

#[test]
fn a_missing_or_old_go_is_named_in_one_line_with_the_way_to_get_it() {
    let stub = Stub::new("go1.20.3", BUILDS);
    let message = error(&stub.build());
    assert!(
        message.contains("this is go1.20.3: install it from https://go.dev/dl/"),
        "{message}"
    );
    assert_eq!(message.lines().count(), 1);
    fs::remove_file(stub.path().join("go")).unwrap();
    let message = error(&stub.build());
    assert!(
        message.contains("`go` is not in PATH: install it from"),
        "{message}"
    );
    assert_eq!(message.lines().count(), 1);
}

#[test]
fn a_full_disk_is_named_in_one_line_before_anything_is_built() {
    let stub = Stub::new("go1.99.1", BUILDS);
    stub.program("df", "echo Filesystem; echo /dev/vda 100 90 2097152 90% /");
    let message = error(&stub.build());
    assert!(
        message.contains("needs 6 GB of disk space") && message.contains("has 2.0 GB"),
        "{message}"
    );
    assert_eq!(message.lines().count(), 1);
    assert!(stub.notes().is_empty());
}

#[test]
fn a_failed_build_shows_why_and_leaves_nothing_that_looks_complete() {
    let stub = Stub::new("go1.99.1", "echo 'dial tcp: no route to host' >&2; exit 1");
    let message = error(&stub.build());
    assert!(
        message.contains("go build of etcd failed (exit status: 1)"),
        "{message}"
    );
    assert!(message.contains("dial tcp: no route to host"), "{message}");
    stub.program(
        "go",
        &format!("case \"$1 $2\" in 'env GOVERSION') echo go1.99;; 'env '*) echo /;; *) {BUILDS};; esac"),
    );
    assert!(stub.build().status.success());
    let names: Vec<_> = fs::read_dir(stub.path().join("cache"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 2, "the folder and its lock, no more: {names:?}");
}

#[test]
fn a_killed_build_takes_the_compiler_and_its_files_with_it() {
    let stub = Stub::new("go1.99.1", "echo $$ >\"$STUB_NOTES\"; exec sleep 600");
    let mut child = stub.command().spawn().unwrap();
    let deadline = Instant::now() + Duration::from_mins(1);
    let compiler = loop {
        if let Some(pid) = stub.notes().first() {
            break pid.clone();
        }
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(20));
    };
    child.kill().unwrap();
    child.wait().unwrap();
    let is_alive = || fs::read(format!("/proc/{compiler}/cmdline")).is_ok_and(|line| !line.is_empty());
    let cache = stub.path().join("cache");
    while is_alive() || fs::read_dir(&cache).unwrap().count() > 1 {
        assert!(
            Instant::now() < deadline,
            "the compiler or its files are still there"
        );
        sleep(Duration::from_millis(20));
    }
}
