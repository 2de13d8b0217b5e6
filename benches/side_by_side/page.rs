//! Generates the tables in the documentation, one for each part.

use std::{collections::HashMap, path::Path, process::Command, thread};

use crate::{Result, cluster::run, say, table::Table};

/// The page, relative to the checkout.
const PAGE: &str = "docs/benchmarks.md";
const BEGIN: &str = "<!-- bench:begin -->\n";
/// The Markdown that precedes the name of a part.
const HEADING: &str = "### ";
const END: &str = "<!-- bench:end -->\n";

/// Replaces a part's table on the page with this one, and adds the commit, the day and the machine. `parts` are the names of all
/// parts in order; `how` says how the part was measured.
pub fn update(parts: &[String], part: &str, table: &Table, commit: &str, how: &str) -> Result<()> {
    let text = format!(
        "\nCommit {commit}, {}, {}; {how}.\n\n{}\n",
        jiff::Zoned::now().date(),
        machine(),
        table.markdown()
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = std::fs::read_to_string(&path)?;
    std::fs::write(path, replaced(&page, parts, part, &text)?)?;
    say(&format!("{PAGE} has the new table of {part}"));
    Ok(())
}

/// The page with `text` below the heading of the part, between the markers.
fn replaced(page: &str, parts: &[String], part: &str, text: &str) -> Result<String> {
    let (before, rest) = page
        .split_once(BEGIN)
        .ok_or_else(|| format!("{PAGE} lacks {BEGIN}"))?;
    let (tables, after) = rest
        .split_once(END)
        .ok_or_else(|| format!("{PAGE} lacks {END}"))?;
    let known: HashMap<&str, &str> = tables
        .split(HEADING)
        .filter_map(|section| section.split_once('\n'))
        .collect();
    let sections: String = parts
        .iter()
        .filter_map(|name| {
            let text = if name == part {
                Some(&text)
            } else {
                known.get(name.as_str())
            };
            Some(format!("{HEADING}{name}\n{}", text?))
        })
        .collect();
    Ok(format!("{before}{BEGIN}\n{sections}{END}{after}"))
}

/// The commit's short hash. Fails if the checkout has uncommitted changes: then it is not what is measured.
pub fn commit() -> Result<String> {
    let git = |arguments: &[&str]| {
        run(
            Command::new("git")
                .args(arguments)
                .current_dir(env!("CARGO_MANIFEST_DIR")),
            "",
        )
    };
    let hash = git(&["rev-parse", "--short", "HEAD"])?;
    // The page itself changes with each run.
    let except = format!(":!{PAGE}");
    let changes = git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ".",
        &except,
    ])?;
    if !changes.is_empty() {
        return Err(
            format!("--readme is for what is committed; commit these changes first:\n{changes}").into(),
        );
    }
    Ok(hash.trim().to_owned())
}

/// The number and the model of the cores.
fn machine() -> String {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "model name").then(|| value.trim())
    });
    let model = model.map(|model| format!(" ({model})")).unwrap_or_default();
    format!("{cores} cores{model}")
}
