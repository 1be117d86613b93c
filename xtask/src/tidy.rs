//! `cargo xtask tidy`: the house rules that no lint knows, checked over every file of the project.

mod rules;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use testkit::command;

use crate::console::Console;
use crate::workspace;

#[derive(Debug, PartialEq, Eq)]
struct Breach {
    /// The file, relative to the root; with a line where there is one.
    place: String,
    what: String,
}

pub(crate) fn run() -> Result<ExitCode> {
    let console = Console::new();
    let root = workspace::root();
    let mut breaches = Vec::new();
    let hosts = registries();
    let files = files(root)?;
    for path in &files {
        // Binary files (corpora of the fuzz targets) have no rules.
        if let Ok(text) = std::fs::read_to_string(root.join(path)) {
            breaches.extend(rules::check(path, &text, &hosts));
        }
    }
    for breach in &breaches {
        console.say(&format!("  ✗ {}: {}", breach.place, breach.what));
    }
    let (all, found) = (files.len(), breaches.len());
    console.say(&format!("  {all} files, {found} breaches"));
    Ok(ExitCode::from(u8::from(!breaches.is_empty())))
}

/// Hosts of the package registries that this machine is set up with.
fn registries() -> BTreeSet<String> {
    let apt = Path::new("/etc/apt");
    let parts = std::fs::read_dir(apt.join("sources.list.d"));
    let parts = parts.into_iter().flatten().flatten();
    parts
        .map(|entry| entry.path())
        .chain([apt.join("sources.list")])
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .flat_map(|text| rules::hosts(&text))
        .collect()
}

fn files(root: &Path) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    let words = "ls-files --cached --others --exclude-standard -z";
    git.current_dir(root).args(words.split(' '));
    let list = command::run(&mut git).context("listing the project's files")?;
    let paths = list.split('\0');
    let files = paths.filter(|path| !path.is_empty() && root.join(path).is_file());
    Ok(files.map(str::to_owned).collect())
}
