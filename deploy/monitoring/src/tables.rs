//! The metrics that programs document.
//!
//! ```text
//!   docs/metrics.md           those of several programs ─┬─ compared with programs by their tests
//!   docs/metrics/PROGRAM.md   those of one              ─┘
//! ```

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Documented {
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    pub labels: Vec<String>,
    pub help: String,
    pub programs: Vec<String>,
}

/// Returns every family that programs document, by name.
///
/// # Errors
/// When a page cannot be read, or two describe one family.
pub fn documented() -> Result<BTreeMap<String, Documented>> {
    let mut pages = BTreeMap::new();
    for path in crate::files("../../docs/metrics", "md")? {
        let program = path.file_stem().unwrap_or_default().to_string_lossy();
        pages.insert(program.into_owned(), fs::read_to_string(&path)?);
    }
    let programs: Vec<String> = pages.keys().cloned().collect();
    let mut all = BTreeMap::new();
    for (program, text) in pages {
        add(&mut all, &text, &[program])?;
    }
    let shared = fs::read_to_string(crate::root().join("../../docs/metrics.md"))?;
    for section in shared.split("\n## ").skip(1) {
        let (heading, text) = section.split_once('\n').context("a section")?;
        let named: Vec<String> = match heading {
            "All programs" => programs.clone(),
            names => names.split(", ").map(str::to_owned).collect(),
        };
        let unknown = named.iter().find(|name| !programs.contains(name));
        ensure!(unknown.is_none(), "{unknown:?} has no page");
        ensure!(named.len() > 1, "{heading:?} is one program's");
        add(&mut all, text, &named)?;
    }
    Ok(all)
}

/// Adds the families that are listed in `text`.
fn add(all: &mut BTreeMap<String, Documented>, text: &str, programs: &[String]) -> Result<()> {
    for line in text.lines().filter(|line| line.starts_with("- `")) {
        let parts = line.trim_start_matches("- `").split_once("` ");
        let (series, rest) = parts.with_context(|| line.to_owned())?;
        let (kind, help) = rest.split_once(": ").with_context(|| line.to_owned())?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.trim_end_matches('}').split(',');
        let labels = labels.filter(|own| !own.is_empty()).map(str::to_owned);
        let own = Documented {
            kind: kind.to_owned(),
            labels: labels.collect(),
            help: help.to_owned(),
            programs: programs.to_vec(),
        };
        let other = all.insert(name.to_owned(), own);
        ensure!(
            other.is_none(),
            "{name} is described twice: what several programs have is in docs/metrics.md alone"
        );
    }
    Ok(())
}
