//! The official checks of an e-invoice: the XML schemas of UBL 2.1 and the rules of EN 16931, from Maven packages that are installed once
//! for each set of pinned versions.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use sha2::{Digest as _, Sha256};
use tokio::process::Command;

use super::say_not_run;

/// Timeout of an installation on a machine that may be busy.
const INSTALLS: Duration = Duration::from_mins(15);
/// Timeout of a check on a machine that may be busy.
const CHECKS: Duration = Duration::from_mins(5);

/// The checks, ready to run.
pub struct Checks {
    program: PathBuf,
    jars: PathBuf,
}

impl Checks {
    /// Installs them if they are not there yet. Without Java, which `make test` does not require, reports that `what` was not tested.
    pub async fn of(what: &str) -> Option<Self> {
        if !there_is_java().await {
            say_not_run(&format!(
                "{what}, since a JDK of version 17 or newer with Maven is not installed (Debian: apt-get install \
                 default-jdk-headless maven)"
            ));
            return None;
        }
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/einvoice");
        let (pom, sums) = (sources.join("pom.xml"), sources.join("SHA256SUMS"));
        let digest = Sha256::digest([fs::read(&pom).unwrap(), fs::read(&sums).unwrap()].concat());
        let cache = control_plane::cache_folder().unwrap();
        let folder = cache.join(format!("einvoice-{}", &hex::encode(digest)[..12]));
        fs::create_dir_all(&folder).unwrap();
        let lock = File::create(folder.join("lock")).unwrap();
        let lock = tokio::task::spawn_blocking(move || lock.lock().map(|()| lock));
        let _lock = lock.await.unwrap().unwrap();
        let (jars, is_complete) = (folder.join("jars"), folder.join("installed"));
        if !is_complete.exists() {
            install(&pom, &jars).await;
            verify(&jars, &fs::read_to_string(sums).unwrap());
            fs::write(is_complete, "").unwrap();
        }
        let program = sources.join("Check.java");
        Some(Self { program, jars })
    }

    /// What is wrong with the documents in some files, a line each; nothing if they are valid.
    pub async fn problems(&self, files: &[PathBuf]) -> Vec<String> {
        let check = Command::new("java")
            // It runs for some seconds only.
            .args([
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-Dfile.encoding=UTF-8",
            ])
            .arg("-cp")
            .arg(self.jars.join("*"))
            .arg(&self.program)
            .args(files)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(CHECKS, check).await.unwrap().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "Check.java: {errors}");
        let said = String::from_utf8(output.stdout).unwrap();
        let mut lines: Vec<String> = said.lines().map(ToOwned::to_owned).collect();
        assert_eq!(lines.pop(), Some(format!("{} checked", files.len())), "{said}");
        lines
    }
}

async fn there_is_java() -> bool {
    let says = async |program: &str| {
        let output = Command::new(program).arg("--version").output().await.ok()?;
        output.status.success().then_some(())?;
        String::from_utf8(output.stdout).ok()
    };
    // The compiler, which a runtime environment lacks: javac 17.0.15.
    let version = says("javac").await.and_then(|text| {
        let version = text.trim().strip_prefix("javac ")?;
        version.split(['.', '-', '+']).next()?.parse::<u32>().ok()
    });
    version.is_some_and(|major| major >= 17) && says("mvn").await.is_some()
}

async fn install(pom: &Path, jars: &Path) {
    // What an interrupted installation has left would be on the class path.
    let _ = fs::remove_dir_all(jars);
    let install = Command::new("mvn")
        .args(["--quiet", "--batch-mode", "--file"])
        .arg(pom)
        .arg("dependency:copy-dependencies")
        .arg(format!("-DoutputDirectory={}", jars.display()))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(INSTALLS, install).await.unwrap().unwrap();
    // Maven reports errors on standard output.
    let errors = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "mvn: {errors}");
}

/// Compares the packages with their digests, which Maven does not pin.
fn verify(jars: &Path, sums: &str) {
    let mut found: Vec<String> = fs::read_dir(jars)
        .unwrap()
        .map(|jar| {
            let jar = jar.unwrap();
            let digest = hex::encode(Sha256::digest(fs::read(jar.path()).unwrap()));
            format!("{digest}  {}", jar.file_name().display())
        })
        .collect();
    found.sort();
    let mut expected: Vec<&str> = sums.lines().collect();
    expected.sort_unstable();
    assert_eq!(
        found,
        expected,
        "{} has other packages than SHA256SUMS",
        jars.display()
    );
}
