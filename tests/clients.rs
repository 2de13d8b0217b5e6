//! Clients generated from the OpenAPI document by two generators, with the commands in `docs/clients.md`: they compile, and run
//! the tours in `tests/clients/`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use reqwest::Method;
use serde_json::Value;
use tokio::process::Command;

use crate::support::{
    PATIENCE, Tenant,
    npm::{Packages, there_is_node},
    receivers::{Answer, Receiver},
};

/// The page with the commands that customers use.
const TYPESCRIPT: &str = "npx openapi-typescript openapi.json --default-non-nullable=false --root-types --root-types-no-schema-prefix --output stellage.ts";
const GO: &str = "go tool oapi-codegen -config oapi-codegen.yaml openapi.json";

/// Timeout of a command. The first use of a generator downloads and compiles it, perhaps on a busy machine.
const FIRST_USE: Duration = Duration::from_mins(15);

/// The output of every tour.
const TOUR: &str = "\
4 plans: starter, business, performance, enterprise
created: provisioning
created again: replayed true, same true
running: 1 vCPU, address true
tags: env:tour
listed: true
stop: stopping
reboot: invalid_state, status invalid_state
deleted: 204
then: not_found
webhook: active true, secret true
delivery: instance.created delivered 200
deliveries: 1
deleted: 204
key: read, of 20 webhooks 0
revoked: 204
";

/// The tour and the pinned versions in one language.
fn sources(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/clients")
        .join(language)
}

/// Copies the tour into a folder, together with the document that the service serves.
async fn prepare(folder: &Path, language: &str, tenant: &Tenant) {
    for entry in fs::read_dir(sources(language)).unwrap() {
        let source = entry.unwrap();
        // Skip folders: they were generated or installed by hand.
        if source.file_type().unwrap().is_file() {
            fs::copy(source.path(), folder.join(source.file_name())).unwrap();
        }
    }
    let document = tenant.call(Method::GET, "/v1/openapi.json", None).await;
    fs::write(folder.join("openapi.json"), document.text).unwrap();
}

/// A command line, without quotes.
fn command(line: &str, folder: &Path) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words).current_dir(folder);
    command
}

/// Runs a command, which must succeed, and returns its output.
async fn run(command: &mut Command, limit: Duration) -> String {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = match tokio::time::timeout(limit, output).await {
        Ok(output) => output.unwrap(),
        Err(tokio::time::error::Elapsed { .. }) => panic!("{command:?} takes longer than {limit:?}"),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}:\n{printed}{errors}");
    printed
}

/// Runs a compiled tour as an account, against the service and a receiver.
async fn take_tour(mut tour: Command, tenant: &Tenant) {
    let receiver = Receiver::start(|_| Answer::ok()).await;
    tour.arg(receiver.url("/"))
        .env("STELLAGE_URL", &tenant.url)
        .env("STELLAGE_API_KEY", &tenant.key);
    assert_eq!(run(&mut tour, 2 * PATIENCE).await, TOUR);
    assert_eq!(receiver.count(), 1);
}

#[test]
fn the_page_for_customers_has_the_commands_that_are_tested() {
    let page = include_str!("../docs/clients.md");
    for line in [TYPESCRIPT, GO] {
        assert!(
            page.lines().any(|l| l.trim() == line),
            "docs/clients.md lacks: {line}"
        );
    }
    let package: Value = serde_json::from_str(include_str!("clients/typescript/package.json")).unwrap();
    let npm = ["dependencies", "devDependencies"].map(|kind| package[kind].as_object().unwrap());
    let npm = npm.into_iter().flatten();
    let npm = npm.map(|(name, version)| format!("{name}@{}", version.as_str().unwrap()));
    let go = include_str!("clients/go/go.mod").lines();
    let go = go.filter_map(|line| line.trim().trim_start_matches("require ").split_once(' '));
    let go = go.filter(|(module, _)| module.starts_with("github.com/oapi-codegen/"));
    let go = go.map(|(module, version)| {
        let version = version.trim_end_matches(" // indirect");
        format!("{}@{version}", module.trim_end_matches("/v2"))
    });
    for pin in npm.chain(go) {
        let (name, version) = pin.rsplit_once('@').unwrap();
        let said = |line: &&str| line.contains(name) && line.contains(&format!("@{version}"));
        assert!(page.lines().find(said).is_some(), "docs/clients.md lacks {pin}");
    }
    assert!(
        page.contains(include_str!("clients/go/oapi-codegen.yaml")),
        "docs/clients.md has another oapi-codegen.yaml"
    );
}

#[tokio::test]
async fn a_client_in_typescript_compiles_and_takes_the_tour() {
    if !there_is_node("the client in TypeScript").await {
        return;
    }
    let tenant = Tenant::new("client-typescript").await;
    // The compiler also stores its incremental state there, which halves its time.
    let packages = Packages::of(&sources("typescript"), "client-typescript").await;
    prepare(&packages.folder, "typescript", &tenant).await;
    run(&mut command(TYPESCRIPT, &packages.folder), PATIENCE).await;
    let compile = "node node_modules/typescript/bin/tsc --project .";
    run(&mut command(compile, &packages.folder), PATIENCE).await;
    take_tour(command("node dist/tour.js", &packages.folder), &tenant).await;
}

#[tokio::test]
async fn a_client_in_go_compiles_and_takes_the_tour() {
    let tenant = Tenant::new("client-go").await;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder, "go", &tenant).await;
    fs::create_dir(folder.join("stellage")).unwrap();
    // Go caches downloads and compiled packages; -trimpath makes the cache independent of the folder.
    for line in [GO, "go vet -trimpath .", "go build -trimpath -o tour ."] {
        // Ignore the user's settings for other projects.
        let mut command = command(line, folder);
        command.envs([("CGO_ENABLED", "0"), ("GOFLAGS", ""), ("GOWORK", "off")]);
        run(&mut command, FIRST_USE).await;
    }
    take_tour(Command::new(folder.join("tour")), &tenant).await;
}
