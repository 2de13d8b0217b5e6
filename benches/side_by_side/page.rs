//! The table in the documentation, which nobody writes by hand.

use std::{path::Path, process::Command, thread};

use crate::{Result, cluster::run, say, table::Table};

/// The page, relative to the checkout.
const PAGE: &str = "docs/benchmarks.md";
const BEGIN: &str = "<!-- bench:begin -->\n";
const END: &str = "<!-- bench:end -->\n";

/// Replaces the page's table by this one, with the commit, the day and the machine, and prints it. `how` is what was measured.
pub fn update(table: &Table, how: &str) -> Result<()> {
    let text = format!(
        "\nCommit {}, {}, {}; {how}.\n\n{}\n",
        commit()?,
        jiff::Zoned::now().date(),
        machine(),
        table.markdown()
    );
    println!("{text}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = std::fs::read_to_string(&path)?;
    std::fs::write(path, replaced(&page, &text)?)?;
    say(&format!("{PAGE} has the new table"));
    Ok(())
}

/// The page with `text` between the markers.
fn replaced(page: &str, text: &str) -> Result<String> {
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) = parts.ok_or_else(|| format!("{PAGE} lacks {BEGIN}or {END}"))?;
    Ok(format!("{before}{BEGIN}{text}{END}{after}"))
}

/// The commit's short hash, `-dirty` if the checkout has other contents.
fn commit() -> Result<String> {
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
    let dirty = if changes.is_empty() { "" } else { "-dirty" };
    Ok(format!("{}{dirty}", hash.trim()))
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
