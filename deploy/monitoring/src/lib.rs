//! Reads the alerts, recording rules, dashboards and pages of metrics of this project, for the tests
//! that hold them against each other and against running programs.
//!
//! ```text
//!   rules/*.yaml ──────┐
//!   dashboards/*.json ─┼─▶ expressions ─▶ selectors: metric and labels ─▶ tests
//!   docs/metrics/*.md ─┴─▶ what programs expose ──────────────────────────▲
//! ```
//!
//! It ships with nothing and evaluates nothing: that is Prometheus' job.
#![forbid(unsafe_code)]
#![expect(
    missing_docs,
    reason = "for tests alone: what a name says is not said again"
)]

mod expression;
mod scrape;
mod tables;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

pub use expression::{Matcher, Selector, selectors};
pub use scrape::{Target, scrape_config};
pub use tables::{Documented, documented};

#[derive(Clone, Debug, Deserialize)]
struct RuleFile {
    groups: Vec<Group>,
}

#[derive(Clone, Debug, Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name of an alert.
    pub alert: Option<String>,
    /// Name of what is recorded.
    pub record: Option<String>,
    pub expr: String,
    /// How long it must hold; absent is at once.
    #[serde(rename = "for")]
    pub hold: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Words for people.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
pub struct Panel {
    pub dashboard: String,
    pub title: String,
    /// Its expression, with variables of Grafana.
    pub expr: String,
}

impl Panel {
    /// Returns the expression as Grafana asks it with everything chosen and `interval` as the
    /// interval of rates.
    pub fn resolved(&self, interval: &str) -> String {
        let expr = self.expr.replace("$__rate_interval", interval);
        expr.replace("$namespace", ".*").replace("$instance", ".*")
    }
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the files of `directory`, a directory of this package, with this ending, in order.
pub fn files(directory: &str, ending: &str) -> Result<Vec<PathBuf>> {
    let directory = root().join(directory);
    let entries = fs::read_dir(&directory);
    let entries = entries.with_context(|| format!("listing {}", directory.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|own| own == ending) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns every rule of `rules/`, in the order of the files.
pub fn rules() -> Result<Vec<Rule>> {
    let mut all = Vec::new();
    for path in files("rules", "yaml")? {
        let file: RuleFile = settings::yaml::load(&path)?;
        all.extend(file.groups.into_iter().flat_map(|group| group.rules));
    }
    Ok(all)
}

/// Returns every expression of `dashboards/`: of panels and of annotations.
pub fn panels() -> Result<Vec<Panel>> {
    let mut all = Vec::new();
    for path in files("dashboards", "json")? {
        let text = fs::read_to_string(&path)?;
        let dashboard: Value =
            serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
        let name = path.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        for panel in list(&dashboard["panels"]) {
            let title = panel["title"].as_str();
            let title = title.with_context(|| format!("{name}: a title"))?;
            for target in list(&panel["targets"]) {
                let expr = target["expr"].as_str();
                let expr = expr.with_context(|| format!("{name}: {title}: an expression"))?;
                all.push(Panel {
                    dashboard: name.clone(),
                    title: title.to_owned(),
                    expr: expr.to_owned(),
                });
            }
        }
    }
    Ok(all)
}
