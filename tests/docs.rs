//! Checks README.md and docs/: settings, links, the maps of the source tree.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::support::STELLAGE;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The pages for people: those in the root, all pages under docs/, and the README of the receivers.
fn pages() -> Vec<String> {
    let mut pages = [
        "CHANGELOG.md",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "GOVERNANCE.md",
        "MAINTAINERS.md",
        "README.md",
        "SECURITY.md",
        "examples/receivers/README.md",
    ]
    .map(str::to_owned)
    .to_vec();
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(format!("docs/{}", path.file_name().unwrap().to_str().unwrap()));
        }
    }
    pages.sort();
    pages
}

/// A setting: its variable, its default, and the commands that have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    pub variable: String,
    pub default: String,
    /// `api`, `controller`, or `all` for both.
    pub commands: String,
}

/// The flags that `stellage <command> --help` lists, with variable and default.
fn flags_of(command: &str) -> BTreeMap<String, (String, String)> {
    let output = Command::new(STELLAGE)
        .args([command, "--help"])
        .env_clear()
        // Wide enough to avoid wrapping.
        .env("COLUMNS", "10000")
        .output()
        .unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let mut flags = BTreeMap::new();
    let mut flag = None;
    for line in help.lines().map(str::trim) {
        let long = line.split_whitespace().find(|word| word.starts_with("--"));
        if let (true, Some(long)) = (line.starts_with('-'), long) {
            // These are for all commands, and no settings.
            let common = ["--help", "--version", "--context", "--kubeconfig"];
            flag = Some(long.to_owned()).filter(|long| !common.contains(&long.as_str()));
            if let Some(flag) = &flag {
                flags.insert(flag.clone(), (String::new(), String::new()));
            }
        }
        let Some((variable, default)) = flag.as_ref().and_then(|flag| flags.get_mut(flag)) else {
            continue;
        };
        // On lines of their own, or behind what a flag is for: clap decides by the texts of all flags of the command.
        if let Some((text, _)) = line
            .split_once("[env: ")
            .and_then(|(_, rest)| rest.split_once(']'))
        {
            text.trim_end_matches('=').clone_into(variable);
        }
        let text = line
            .split_once("[default: ")
            .and_then(|(_, rest)| rest.strip_suffix(']'));
        if let Some(text) = text {
            text.trim_matches('"').clone_into(default);
        }
    }
    assert!(!flags.is_empty(), "{help}");
    flags
}

/// The settings of the serving commands.
pub fn settings_of_the_program() -> BTreeMap<String, Setting> {
    let [run, api, controller, gateway] = ["run", "api", "controller", "console-gateway"].map(flags_of);
    for flag in api.keys().chain(controller.keys()) {
        assert!(run.contains_key(flag), "stellage run has no {flag}");
    }
    let setting = |(flag, (variable, default)): (String, (String, String))| {
        let commands = match (api.contains_key(&flag), controller.contains_key(&flag)) {
            (true, true) => "all",
            (true, false) => "api",
            (false, true) => "controller",
            (false, false) if gateway.contains_key(&flag) => "gateway",
            (false, false) => "run",
        };
        let setting = Setting {
            variable,
            default,
            commands: commands.to_owned(),
        };
        (flag, setting)
    };
    let of_gateway = gateway
        .clone()
        .into_iter()
        .filter(|(flag, _)| !run.contains_key(flag));
    run.clone().into_iter().chain(of_gateway).map(setting).collect()
}

/// The cells of every row of a Markdown table whose first cell is code that begins with `prefix`.
fn rows<'a>(page: &'a str, prefix: &'a str) -> impl Iterator<Item = Vec<&'a str>> {
    page.lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|row| {
            row.split(" | ")
                .map(|cell| cell.trim_matches('`'))
                .collect::<Vec<_>>()
        })
        .filter(move |cells| cells[0].starts_with(prefix) && cells.len() > 2)
}

#[test]
fn the_settings_page_has_every_flag_with_its_variable_and_default_and_no_other() {
    let page = read("docs/settings.md");
    let described: BTreeMap<String, Setting> = rows(&page, "--")
        .map(|cells| {
            let setting = Setting {
                variable: cells[1].to_owned(),
                default: cells[2].trim_matches('–').to_owned(),
                commands: cells[3].to_owned(),
            };
            (cells[0].to_owned(), setting)
        })
        .collect();
    let expected = settings_of_the_program();
    let names = |settings: &BTreeMap<String, Setting>| settings.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&described), names(&expected));
    for (flag, setting) in expected {
        assert_eq!(described[&flag], setting, "{flag}");
    }
}

#[test]
fn the_settings_page_has_every_variable_of_the_local_run() {
    let source = read("control-plane/src/run/settings.rs");
    let value = |line: &str, key: &str| {
        let (_, rest) = line.split_once(&format!("{key} = \""))?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let taken: BTreeMap<String, String> = source
        .lines()
        .filter_map(|line| {
            Some((
                value(line, "env")?,
                value(line, "default_value").unwrap_or_default(),
            ))
        })
        .collect();
    let page = read("docs/settings.md");
    let (_, local_run) = page.split_once("\n## The local run\n").unwrap();
    let described: BTreeMap<String, String> = rows(local_run, "")
        .filter(|cells| cells[0].bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
        .map(|cells| (cells[0].to_owned(), cells[1].trim_matches('–').to_owned()))
        .collect();
    assert!(taken.contains_key("PROVISIONING"), "{taken:?}");
    assert_eq!(described, taken);
}

/// A metric in the table of docs/metrics.md.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedMetric {
    pub kind: String,
    pub labels: BTreeSet<String>,
    /// `api`, `controller`, or `both`.
    pub process: String,
}

/// The table of metrics.
pub fn described_metrics() -> BTreeMap<String, DescribedMetric> {
    let page = read("docs/metrics.md");
    let described = rows(&page, "stellage_").chain(rows(&page, "process_"));
    let described = described.map(|cells| {
        let labels = cells[2].split(['`', ',', ' ', '–']);
        let metric = DescribedMetric {
            kind: cells[1].to_owned(),
            labels: labels
                .filter(|label| !label.is_empty())
                .map(ToOwned::to_owned)
                .collect(),
            process: cells[3].to_owned(),
        };
        (cells[0].to_owned(), metric)
    });
    described.collect()
}

/// The section of a page below a heading of the second level.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, section) = page
        .split_once(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("there is no section {heading}"));
    section.split("\n## ").next().unwrap_or_default()
}

#[test]
fn the_page_for_customers_lists_every_endpoint_of_the_openapi_document_and_no_other_and_commands_that_there_are()
 {
    let operations = read("crates/server/src/facade/openapi/operations.txt");
    let served: BTreeSet<String> = operations
        .lines()
        .filter(|line| !line.starts_with(' '))
        .map(|line| line.replace('{', "<").replace('}', ">"))
        .collect();
    let page = read("docs/rest-api.md");
    let in_code = section(&page, "All endpoints").split('`').skip(1).step_by(2);
    let (named, with_kubectl): (BTreeSet<&str>, BTreeSet<&str>) =
        in_code.partition(|code| code.contains(" /v1/"));
    assert!(served.contains("GET /v1/backups/<id>"), "{served:?}");
    let named: BTreeSet<String> = named.into_iter().map(ToOwned::to_owned).collect();
    assert_eq!(named, served);
    let commands = with_kubectl
        .iter()
        .filter_map(|code| code.strip_prefix("kubectl stellage "));
    let commands: Vec<&str> = commands.collect();
    assert!(commands.contains(&"delivery redeliver"), "{commands:?}");
    for command in commands {
        let arguments = command.split(' ').chain(["--help"]);
        let help = Command::new(STELLAGE).args(arguments).output().unwrap();
        assert!(help.status.success(), "{command}: {help:?}");
    }
}

#[test]
fn the_page_for_customers_describes_every_field_of_an_instance_and_no_other() {
    let document = server::facade::openapi::value();
    let fields = document["components"]["schemas"]["Instance"]["properties"].as_object();
    let served: BTreeSet<&str> = fields.unwrap().keys().map(String::as_str).collect();
    let page = read("docs/rest-api.md");
    let lines = section(&page, "Instances").lines();
    let table = lines
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'));
    let names = table.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2));
    assert_eq!(names.collect::<BTreeSet<_>>(), served);
}

/// A page without code blocks.
fn prose(page: &str) -> String {
    let mut in_code = false;
    let lines = page.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The targets of a page's links, as written.
fn links(page: &str) -> Vec<String> {
    let text = prose(page);
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// The anchors of a page's headings, as GitHub makes them.
pub fn anchors(page: &str) -> BTreeSet<String> {
    let text = prose(page);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.collect::<String>().replace(' ', "-")
        })
        .collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_that_are_there() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = read(&page);
        for link in links(&text).iter().filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() {
                root().join(&page)
            } else {
                root().join(&page).parent().unwrap().join(path)
            };
            let is_there = target.exists()
                && (anchor.is_empty() || anchors(&fs::read_to_string(&target).unwrap()).contains(anchor));
            if !is_there {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_page_under_docs_is_linked_from_the_readme() {
    let linked: BTreeSet<String> = links(&read("README.md"))
        .into_iter()
        .map(|link| link.split('#').next().unwrap_or_default().to_owned())
        .collect();
    for page in pages().iter().filter(|page| page.starts_with("docs/")) {
        // The contents of the site.
        let is_map = page == "docs/SUMMARY.md";
        assert!(linked.contains(page) || is_map, "the README does not link {page}");
    }
}

#[test]
fn the_site_has_every_page_once_begins_with_the_quickstart_and_leads_into_the_repository() {
    let contents = links(&read("docs/SUMMARY.md"));
    assert_eq!(contents[0], "quickstart.md");
    let mut wanted = pages();
    wanted.retain(|page| page.starts_with("docs/") && page != "docs/SUMMARY.md");
    let mut shown: Vec<String> = contents.iter().map(|page| format!("docs/{page}")).collect();
    shown.sort();
    assert_eq!(shown, wanted);
    // mdbook hands a preprocessor its context and the book, and takes the book back.
    let page = "See [the chart](../charts/stellage/README.md#values), [keys](operations.md#api-keys), `[a](../b)` and <https://example.com/../c>.";
    let inner = serde_json::json!({ "Chapter": { "name": "b", "content": "[d](../d)", "sub_items": [] } });
    let chapter = serde_json::json!({ "Chapter": { "name": "a", "content": page, "sub_items": [inner] } });
    let book = serde_json::json!([{ "root": "." }, { "items": [chapter] }]);
    let script = root().join(".ci/site-links");
    assert!(
        Command::new(&script)
            .args(["supports", "html"])
            .status()
            .unwrap()
            .success()
    );
    let mut command = Command::new(&script);
    command
        .env("REPOSITORY", "https://example.com/stellage")
        .env("REF", "v0.1.0");
    let book = crate::support::run(&mut command, Some(&book.to_string())).unwrap();
    let book: serde_json::Value = serde_json::from_str(&book).unwrap();
    let chapter = &book["items"][0]["Chapter"];
    let text = chapter["content"].as_str().unwrap();
    assert!(
        text.contains(
            "[the chart](https://example.com/stellage/blob/v0.1.0/charts/stellage/README.md#values)"
        ),
        "{text}"
    );
    assert!(
        text.contains("[keys](operations.md#api-keys)") && text.contains("<https://example.com/../c>"),
        "{text}"
    );
    assert_eq!(
        chapter["sub_items"][0]["Chapter"]["content"],
        "[d](https://example.com/stellage/blob/v0.1.0/d)"
    );
}

#[test]
fn krew_and_homebrew_get_the_archives_of_the_release_with_their_digests() {
    let folder = tempfile::tempdir().unwrap();
    let platforms = ["linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"];
    let digest = |platform: &str| {
        use sha2::Digest as _;
        hex::encode(sha2::Sha256::digest(platform))
    };
    for platform in platforms {
        let archive = folder.path().join(format!("stellage-1.2.3-{platform}.tar.gz"));
        fs::write(archive, platform).unwrap();
    }
    let mut command = Command::new(root().join(".ci/manifests"));
    command
        .args(["1.2.3", "https://example.com/stellage"])
        .arg(folder.path());
    crate::support::run(&mut command, None).unwrap();
    let written = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let krew: serde_json::Value = serde_saphyr::from_str(&written("krew.yaml")).unwrap();
    let formula = written("stellage.rb");
    assert_eq!(krew["spec"]["version"], "v1.2.3");
    for (index, platform) in platforms.into_iter().enumerate() {
        let url =
            format!("https://example.com/stellage/releases/download/v1.2.3/stellage-1.2.3-{platform}.tar.gz");
        let found = &krew["spec"]["platforms"][index];
        assert_eq!(
            (&found["uri"], &found["sha256"]),
            (&url.clone().into(), &digest(platform).into())
        );
        assert_eq!(found["bin"], cli::PLUGIN);
        let text = format!("url \"{url}\"\n      sha256 \"{}\"", digest(platform));
        assert!(formula.contains(&text), "{formula}");
    }
}

#[test]
fn what_a_release_changes_in_the_charts_is_there() {
    let workflow = read(".github/workflows/release.yaml");
    let values = read("charts/stellage/values.yaml");
    let replaced: Vec<&str> = workflow
        .lines()
        .filter_map(|line| Some(line.split_once("\"s|^")?.1.split_once("$|")?.0))
        .collect();
    assert_eq!(replaced.len(), 2, "{replaced:?}");
    for line in replaced {
        assert!(values.lines().any(|there| there == line), "{line}");
    }
    // They are appended.
    for chart in ["stellage", "stellage-region"] {
        let text = read(&format!("charts/{chart}/Chart.yaml"));
        let is_there = |key: &str| text.lines().any(|line| line.starts_with(key));
        assert!(!is_there("home:") && !is_there("sources:"), "{chart}");
    }
}

#[test]
fn what_github_reads_is_yaml_and_dependabot_looks_where_there_is_something() {
    let parsed = |file: &Path| -> serde_json::Value {
        let text = fs::read_to_string(file).unwrap();
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    };
    let mut forms = 0;
    for entry in fs::read_dir(root().join(".github/ISSUE_TEMPLATE")).unwrap() {
        let path = entry.unwrap().path();
        let form = parsed(&path);
        if !path.ends_with("config.yml") {
            assert!(
                form["name"].is_string() && form["body"].is_array(),
                "{}",
                path.display()
            );
            forms += 1;
        }
    }
    assert!(forms >= 3, "{forms}");
    let dependabot = parsed(&root().join(".github/dependabot.yml"));
    for update in dependabot["updates"].as_array().unwrap() {
        let file = match update["package-ecosystem"].as_str().unwrap() {
            "cargo" => "Cargo.toml",
            "gomod" => "go.mod",
            "npm" => "package.json",
            "maven" => "pom.xml",
            "docker" => "Dockerfile",
            _ => ".github/workflows/ci.yaml",
        };
        let several = update["directories"].as_array().cloned().unwrap_or_default();
        for folder in several.iter().chain(update.get("directory")) {
            let path = root()
                .join(folder.as_str().unwrap().trim_start_matches('/'))
                .join(file);
            assert!(path.exists(), "{}", path.display());
        }
    }
}

#[test]
fn the_readme_is_short() {
    let lines = read("README.md").lines().count();
    assert!(lines < 200, "{lines} lines");
}

/// The rows of the map of the source below a heading: the paths in the first cell, and what the second says.
fn map_of(page: &str, heading: &str) -> Vec<(Vec<PathBuf>, String)> {
    section(page, heading)
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once(" | "))
        .map(|(cell, text)| {
            let paths = cell.split(", ").map(|path| path.trim_matches(['`', '/']));
            let paths: Vec<PathBuf> = paths.map(PathBuf::from).collect();
            (paths, text.to_owned())
        })
        .collect()
}

/// The folders in `folder` that have this file.
fn folders_with(file: &str, folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| folder.join(entry.unwrap().file_name()))
        .filter(|path| root().join(path).join(file).exists())
        .collect()
}

fn crates() -> Vec<PathBuf> {
    folders_with("Cargo.toml", Path::new("crates"))
}

/// What is in code within a line of text.
fn in_code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// All files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut folders = vec![root().join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files
}

/// Each file of the source says in the first line of its head comment what lives there.
#[test]
fn every_module_begins_with_what_lives_there() {
    let mut folders: Vec<PathBuf> = crates().iter().map(|path| path.join("src")).collect();
    folders.push(PathBuf::from("src"));
    let files = folders.iter().flat_map(|folder| files_below(folder));
    let silent: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter(|path| {
            let text = fs::read_to_string(path).unwrap();
            let first = text.lines().next().unwrap_or_default();
            !first.starts_with("//! ") || first.len() < 12
        })
        .collect();
    assert_eq!(silent, Vec::<PathBuf>::new());
}

#[test]
fn the_maps_name_every_crate_and_the_one_for_contributors_every_folder_in_it_and_none_that_is_not_there() {
    for (page, heading) in [
        ("README.md", "The source tree"),
        ("docs/architecture.md", "Module map"),
    ] {
        let map = map_of(&read(page), heading);
        let named: BTreeSet<&PathBuf> = map.iter().flat_map(|(paths, _)| paths).collect();
        for path in &named {
            assert!(root().join(path).exists(), "{page} names {}", path.display());
        }
        for path in crates() {
            assert!(named.contains(&path), "{page} does not name {}", path.display());
        }
    }
    for (paths, text) in map_of(&read("docs/architecture.md"), "Module map") {
        let named: BTreeSet<&str> = in_code(&text).filter_map(|code| code.strip_suffix('/')).collect();
        for path in paths.iter().filter(|path| path.starts_with("crates")) {
            let source = path.join("src");
            for name in &named {
                let is_there =
                    root().join(path).join(name).is_dir() || root().join(&source).join(name).is_dir();
                assert!(
                    is_there,
                    "docs/architecture.md names {name} in {}",
                    path.display()
                );
            }
            for folder in folders_with("mod.rs", &source) {
                let name = folder.file_name().unwrap().to_str().unwrap();
                assert!(
                    named.contains(name),
                    "docs/architecture.md does not name {}",
                    folder.display()
                );
            }
        }
    }
}

#[test]
fn every_file_that_the_pages_for_contributors_name_is_there() {
    let all: Vec<PathBuf> = ["crates", "src", "tests", "docs", "charts"]
        .iter()
        .flat_map(|folder| files_below(Path::new(folder)))
        .collect();
    for page in ["CONTRIBUTING.md", "docs/architecture.md"] {
        let text = prose(&read(page));
        let files: Vec<&str> = in_code(&text)
            .filter(|code| {
                let extension = code.rsplit_once('.').map(|(_, extension)| extension);
                !code.contains(' ') && matches!(extension, Some("rs" | "txt" | "html" | "json" | "md"))
            })
            .collect();
        assert!(
            files.contains(&"crates/domain/src/instance/decide.rs"),
            "{files:?}"
        );
        for file in files {
            // A journey names the folder of its files once.
            let is_there = all.iter().any(|path| path.ends_with(file));
            assert!(is_there, "{page} names {file}");
        }
    }
}

#[test]
fn workflows_name_each_action_by_its_commit_with_the_version_beside_it() {
    for file in ["ci", "release", "scheduled", "site"] {
        let workflow = read(&format!(".github/workflows/{file}.yaml"));
        let used = workflow.lines().filter_map(|line| line.split_once("uses: "));
        for (_, action) in used.filter(|(_, action)| !action.starts_with("./")) {
            let commit = action
                .split_once('@')
                .and_then(|(_, rest)| rest.split_once(" # "));
            let is_pinned = commit.is_some_and(|(commit, version)| {
                commit.len() == 40
                    && commit.bytes().all(|byte| byte.is_ascii_hexdigit())
                    && !version.is_empty()
            });
            assert!(is_pinned, "{file}.yaml: {action}");
        }
    }
}

#[test]
fn the_page_of_commands_shows_the_number_of_policies_that_the_doctor_counts() {
    let policies = resources::POLICIES.iter();
    let count: usize = policies
        .map(|(_, text)| {
            text.lines()
                .filter(|line| *line == "kind: ValidatingAdmissionPolicy")
                .count()
        })
        .sum();
    let shown = format!("ok       policies     {count} are in force\n");
    assert!(read("docs/commands.md").contains(&shown), "{shown}");
}

#[test]
fn the_table_of_failures_has_all_rows_and_names_only_tests_that_there_are() {
    let files = [
        files_below(Path::new("tests/kubevirt")),
        files_below(Path::new("crates/providers/src")),
        files_below(Path::new("crates/runtime/src")),
        files_below(Path::new("crates/domain/src/catalogue")),
    ];
    let source: String = files
        .concat()
        .iter()
        .filter(|path| path.extension().is_some_and(|it| it == "rs"))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let tests: Vec<&str> = source
        .split("fn ")
        .skip(1)
        .filter_map(|rest| rest.split_once("()").map(|(name, _)| name))
        .collect();
    let page = read("docs/kubevirt.md");
    let (_, table) = page.split_once("\n### How each failure was shown\n").unwrap();
    let table = table.split("\n## ").next().unwrap_or_default();
    let (mut next, mut missing) = (1, Vec::new());
    for row in table.lines().filter_map(|line| line.strip_prefix("| ")) {
        let Some((first, last)) = row.split_once(" | ").and_then(|(numbers, _)| {
            let (first, last) = numbers.split_once('–').unwrap_or((numbers, numbers));
            Some((first.parse::<u32>().ok()?, last.parse::<u32>().ok()?))
        }) else {
            continue;
        };
        assert_eq!(first, next, "{row}");
        next = last + 1;
        for name in in_code(row).filter(|code| code.starts_with(char::is_lowercase) && code.contains('_')) {
            // An ellipsis stands for a part of a name.
            let mut parts = name.split('…');
            let begin = parts.next().unwrap_or_default();
            let rest: Vec<&str> = parts.collect();
            let is_it = |test: &&str| test.starts_with(begin) && rest.iter().all(|part| test.contains(part));
            if !tests.iter().any(is_it) {
                missing.push(name);
            }
        }
    }
    assert_eq!((next, missing), (63, Vec::new()));
}
