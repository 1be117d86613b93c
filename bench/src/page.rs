//! Results as one page of HTML that needs nothing else: no script, font, style or picture from
//! elsewhere.
//!
//! ```text
//! JSON lines ──Run::parse──▶ Run ──┬─▶ facts, tables
//!                                  ├─▶ bars: one plot a case and figure, setups beside each other
//!                                  └─▶ lines: percentiles of latency; figures along an axis
//! ```
//!
//! Plots are drawn here, as SVG with the page's own colors, light and dark. Measures nothing.

mod bars;
mod lines;
mod plot;
mod saved;
mod table;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use self::plot::escape;
pub(crate) use self::saved::Run;

/// The page's name in its directory.
pub(crate) const FILE: &str = "index.html";

/// Makes a page of results that were saved before, by `--json` or `--report`.
#[derive(Args, Debug)]
pub(crate) struct Saved {
    /// Files of JSON lines, one run each, in the order in which they are shown.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Where the page goes; made if it is not there.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Reads the files and writes the page.
///
/// # Errors
/// When a file cannot be read or holds something else, or the page cannot be written.
pub(crate) fn run(asked: &Saved) -> Result<ExitCode> {
    let read = |file: &PathBuf| {
        let text =
            fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let run = Run::parse(&text).with_context(|| format!("reading {}", file.display()))?;
        let name = file
            .file_stem()
            .map(|name| name.to_string_lossy().into_owned());
        Ok(Run { name, ..run })
    };
    let runs = asked.files.iter().map(read).collect::<Result<Vec<_>>>()?;
    write(&asked.out, &runs)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of `runs` into `dir`, which is made if it is not there.
///
/// # Errors
/// When that is not possible.
pub(crate) fn write(dir: &Path, runs: &[Run]) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    let file = dir.join(FILE);
    fs::write(&file, html(runs)).with_context(|| format!("writing {}", file.display()))
}

fn html(runs: &[Run]) -> String {
    let sections: String = runs
        .iter()
        .enumerate()
        .map(|(nth, run)| section(nth, run))
        .collect();
    let mut contents = String::new();
    if runs.len() > 1 {
        let link = |(nth, run): (usize, &Run)| {
            format!(
                "<li><a href=\"#run-{nth}\">{}</a></li>",
                escape(run.title())
            )
        };
        let links: String = runs.iter().enumerate().map(link).collect();
        contents = format!("<nav><ul>{links}</ul></nav>");
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>rhizome-bench</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>rhizome-bench</h1>\n{contents}\n{sections}\
         <footer>A bar is the median of the repetitions, the thin line their range. What was \
         measured here was measured on this machine, in one run; compare within a run, not between \
         machines.</footer>\n</main>\n</body>\n</html>\n"
    )
}

fn section(nth: usize, run: &Run) -> String {
    let mut html = format!(
        "<section id=\"run-{nth}\">\n<h2>{}</h2>\n",
        escape(run.title())
    );
    // Writing to a string does not fail.
    let _ = writeln!(html, "{}", facts(run));
    let (held, missed) = run.judged();
    if held + missed > 0 {
        let class = if missed == 0 { "good" } else { "bad" };
        let _ = writeln!(
            html,
            "<p class=\"verdict {class}\">{held} targets held, {missed} missed</p>"
        );
    }
    let titled = |title: &str, plots: String| match plots.as_str() {
        "" => String::new(),
        plots => format!("<h3>{title}</h3>\n<div class=\"plots\">{plots}</div>\n"),
    };
    html.push_str(&titled("Along an axis", lines::along(run)));
    html.push_str(&bars::all(run));
    html.push_str(&titled("Latency", lines::latencies(run)));
    let _ = writeln!(
        html,
        "<details><summary>All numbers</summary>\n{}</details>\n</section>",
        table::table(run)
    );
    html
}

/// Who measured what, where.
fn facts(run: &Run) -> String {
    let command = run.fact("command").unwrap_or("rhizome-bench");
    let rest = run.facts.iter().filter(|(name, _)| name != "command");
    let rest: String = rest
        .map(|(name, text)| {
            let class = if text.chars().count() > LONG {
                "long"
            } else {
                "short"
            };
            let (name, text) = (escape(name), escape(text));
            format!("<div class=\"{class}\"><dt>{name}</dt><dd>{text}</dd></div>")
        })
        .collect();
    format!(
        "<pre class=\"command\">{}</pre>\n<dl class=\"facts\">{rest}</dl>",
        escape(command)
    )
}

/// Characters of a fact that has a line of its own.
const LONG: usize = 60;
const STYLE: &str = include_str!("page/style.css");

#[cfg(test)]
mod tests;
