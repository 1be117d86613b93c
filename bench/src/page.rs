//! `rhizome-bench report`: results as one page of HTML that loads nothing from elsewhere.
//!
//! ```text
//! JSON ──▶ Runs ──┬─▶ facts, a table of all figures
//!                 └─▶ plot: bars of setups, latencies by percentile, figures along an axis
//! ```

mod plot;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use minijinja::Environment;
use minijinja::value::Serde;
use serde::Deserialize;
use serde_json::json;

use crate::report::Run;

/// Makes a page of results that `--json` printed, or of the suite's.
#[derive(Args, Debug)]
pub(crate) struct Saved {
    /// Files of one run or a list of runs each, in the order in which they are shown.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The directory of the page, index.html; made if it does not exist.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum File {
    Suite(Vec<Run>),
    Run(Run),
}

pub(crate) fn run(asked: &Saved) -> Result<ExitCode> {
    let mut runs = Vec::new();
    for file in &asked.files {
        runs.extend(read(file).with_context(|| format!("reading {}", file.display()))?);
    }
    fs::create_dir_all(&asked.out).with_context(|| format!("making {}", asked.out.display()))?;
    let page = asked.out.join("index.html");
    fs::write(&page, html(&runs)?).with_context(|| format!("writing {}", page.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> Result<Vec<Run>> {
    Ok(match serde_json::from_str(&fs::read_to_string(file)?)? {
        File::Suite(runs) => runs,
        File::Run(run) => vec![run],
    })
}

fn html(runs: &[Run]) -> Result<String> {
    let runs = runs.iter().map(|run| {
        let (held, missed) = run.judged();
        let rows = run.rows.iter();
        let rows = rows
            .map(|row| json!({ "verdict": row.verdict(), "cells": row.cells(run.direct(row)) }));
        Ok(json!({
            "name": run.name, "facts": run.facts, "held": held, "missed": missed,
            "along": plot::along(run)?.concat(), "bars": plot::bars(run),
            "latencies": plot::latencies(run)?.concat(), "rows": rows.collect::<Vec<_>>(), "compared": run.compared,
        }))
    });
    let style = include_str!("page/style.css");
    let facts = json!({ "style": style, "runs": runs.collect::<Result<Vec<_>>>()? });
    // By its name the template is HTML: values are escaped.
    let template = include_str!("page/page.html");
    let page = Environment::new().render_named_str("page.html", template, Serde(facts));
    page.context("filling in the page")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = r#"{"name":"tls","compared":"a peer",
      "facts":[["command","rhizome-bench tls --rounds 3"],["cpu","2 × <some>"]],
      "rows":[
        {"setup":"direct","case":"bulk","figure":"throughput","unit":"Gb/s","better":"higher",
         "median":100.0,"range":[99.0,101.0],"count":3},
        {"setup":"rhizome","case":"bulk","figure":"throughput","unit":"Gb/s","better":"higher",
         "median":40.0,"range":[39.0,42.0],"count":3,"must":{"at_least":50.0},"peer":20.0},
        {"setup":"rhizome","case":"1 name","figure":"start","unit":"ms","better":"lower",
         "median":4.0,"count":1,"at":["names",1]},
        {"setup":"rhizome","case":"1000 names","figure":"start","unit":"ms","better":"lower",
         "median":9.0,"count":1,"at":["names",1000]}],
      "curves":[{"setup":"rhizome","case":"rtt",
        "points":[[0.0,10.0],[0.5,12.0],[0.99,40.0],[1.0,90.0]]}]}"#;

    #[test]
    fn page_shows_plots_and_table_and_loads_nothing() {
        let run: Run = serde_json::from_str(RUN).unwrap();
        // As a browser shows it: of what is escaped, a slash would need no escape.
        let page = html(&[run]).unwrap().replace("&#x2f;", "/");
        for part in [
            "bulk: throughput, Gb/s",
            "start, ms, by names",
            "rtt: µs by percentile",
            "rhizome-bench tls --rounds 3",
            "0 targets held, 1 missed",
            "2 × &lt;some&gt;",
            "<td>MISS</td><td>2</td>",
        ] {
            assert!(page.contains(part), "{part} is missing: {page}");
        }
        assert_eq!(page.matches("<svg ").count(), 2);
        assert_eq!(page.matches("<figure>").count(), 1);
        for part in [
            "<script", "<link", "href=", "@import", "url(", "src=", "NaN", "inf ",
        ] {
            assert!(!page.contains(part), "{part}: {page}");
        }
    }

    #[test]
    fn suite_and_single_run_are_read_alike() {
        let dir = testkit::tempdir::TempDir::new("bench-report").unwrap();
        let file = dir.path().join("run.json");
        for (text, runs) in [(RUN.to_owned(), 1), (format!("[{RUN},{RUN}]"), 2)] {
            fs::write(&file, text).unwrap();
            assert_eq!(read(&file).unwrap().len(), runs);
        }
        fs::write(&file, "{\"a\":1}").unwrap();
        assert!(read(&file).is_err());
    }
}
