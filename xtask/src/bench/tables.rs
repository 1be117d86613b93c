//! The tables of figures in docs/performance.md, made of results.
//!
//! ```text
//! bench/results/*.jsonl ──▶ the figures of HEADLINES, ours beside others ──▶ between two marks
//! ```

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::headlines::{HEADLINES, Headline};

/// Writes the figures of all results in `results` between the marks of `page`, and returns how many.
///
/// # Errors
/// When the marks are missing, or results lack a figure, which the error names.
pub(super) fn write(page: &Path, results: &Path) -> Result<usize> {
    let text = fs::read_to_string(page).with_context(|| format!("reading {}", page.display()))?;
    let mut table = String::new();
    let mut figures = 0;
    for (part, headlines) in HEADLINES {
        let file = results.join(format!("{part}.jsonl"));
        let Ok(lines) = fs::read_to_string(&file) else {
            continue;
        };
        let lines = parse(&lines).with_context(|| format!("reading {}", file.display()))?;
        let rows = rows(&lines, headlines).with_context(|| file.display().to_string())?;
        figures += headlines.len();
        table.push_str(&rows);
    }
    fs::write(page, between(&text, &table)?).context("writing the tables")?;
    Ok(figures)
}

fn parse(lines: &str) -> Result<Vec<Value>> {
    let parse =
        |(nth, line)| serde_json::from_str(line).with_context(|| format!("line {}", nth + 1));
    lines.lines().enumerate().map(parse).collect()
}

/// One run: what made it, and a table.
fn rows(lines: &[Value], headlines: &[Headline]) -> Result<String> {
    let fact = |name: &str| {
        let facts = lines.iter().find_map(|line| line["facts"][name].as_str());
        facts.unwrap_or("unknown").to_owned()
    };
    let mut table = format!(
        "\n`{}`, {}, commit {}, {}, {}:\n\n| | ours | others in the same run | held to |\n|---|---|---|---|\n",
        fact("command"),
        fact("date"),
        fact("commit"),
        fact("cpu"),
        fact("kernel"),
    );
    for headline in headlines {
        let Some(row) = row(lines, headline) else {
            let Headline {
                setup,
                case,
                figure,
                words: _,
            } = headline;
            bail!("no {figure:?} of {setup:?}, {case:?}");
        };
        table.push_str(&row);
    }
    Ok(table)
}

fn row(lines: &[Value], headline: &Headline) -> Option<String> {
    let of = |line: &&Value| line["case"] == headline.case && line["figure"] == headline.figure;
    let same: Vec<&Value> = lines.iter().filter(of).collect();
    let ours = same.iter().find(|line| line["setup"] == headline.setup)?;
    let mut others: Vec<(&str, f64)> = same
        .iter()
        .filter_map(|line| Some((line["setup"].as_str()?, line["median"].as_f64()?)))
        .filter(|(setup, _)| !setup.starts_with("rhizome") && *setup != "direct")
        .filter(|_| headline.setup.starts_with("rhizome"))
        .collect();
    others.sort_by(|one, other| one.1.total_cmp(&other.1));
    if ours["better"] == "higher" {
        others.reverse();
    }
    let others: Vec<String> = others
        .iter()
        .map(|(setup, value)| format!("{setup} {}", number(*value)))
        .collect();
    let mut row = format!(
        "| {}, {} | **{}**",
        headline.words,
        ours["unit"].as_str()?,
        number(ours["median"].as_f64()?)
    );
    if let (Some(low), Some(high)) = (ours["low"].as_f64(), ours["high"].as_f64())
        && low < high
    {
        // Writing to a string does not fail.
        let _ = write!(row, " [{}..{}]", number(low), number(high));
    }
    let bound = |key: &str, sign: &str| {
        let bound = ours[key].as_f64()?;
        let missed = if ours["holds"] == true {
            ""
        } else {
            " not met"
        };
        Some(format!("{sign} {}{missed}", number(bound)))
    };
    let held = bound("at_most", "≤")
        .or_else(|| bound("at_least", "≥"))
        .unwrap_or_default();
    let _ = writeln!(row, " | {} | {held} |", others.join(", "));
    Some(row)
}

/// Three digits that matter.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        large if large >= 100.0 => 0,
        middle if middle >= 10.0 => 1,
        small if small >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

fn between(text: &str, table: &str) -> Result<String> {
    let (before, rest) = text
        .split_once(BEGIN)
        .with_context(|| format!("the page has no {BEGIN}"))?;
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("the page has no {END}"))?;
    Ok(format!("{before}{BEGIN}\n{table}\n{END}{after}"))
}

const BEGIN: &str = "<!-- bench: what follows is written by `cargo xtask bench` -->";
const END: &str = "<!-- bench: until here -->";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const HEADLINE: Headline = Headline {
        setup: "rhizome",
        case: "bulk ×8",
        figure: "cpu",
        words: "bulk over 8 connections",
    };

    fn lines() -> Vec<Value> {
        let line = |setup: &str, median: f64| {
            json!({ "setup": setup, "case": "bulk ×8", "figure": "cpu", "unit": "s/GB",
                "better": "lower", "median": median, "low": median, "high": median + 0.01,
                "at_most": 0.13, "holds": median <= 0.13 })
        };
        vec![
            json!({ "facts": { "command": "rhizome-bench tls" } }),
            line("direct", 0.01),
            line("envoy", 0.32),
            line("rhizome", 0.1),
            line("rhizome-2", 0.2),
            line("nginx", 0.3),
        ]
    }

    #[test]
    fn ours_stands_beside_others_the_best_first() {
        let table = rows(&lines(), &[HEADLINE]).unwrap();
        let row = "| bulk over 8 connections, s/GB | **0.1** [0.1..0.11] | nginx 0.3, envoy 0.32 | ≤ 0.13 |";
        assert!(
            table.contains(row) && table.contains("`rhizome-bench tls`"),
            "{table}"
        );
    }

    #[test]
    fn a_figure_that_is_not_there_is_named() {
        let mut gone = HEADLINE;
        gone.setup = "rhizome-3";
        let why = rows(&lines(), &[HEADLINE, gone]).unwrap_err().to_string();
        assert!(why.contains("\"cpu\" of \"rhizome-3\""), "{why}");
    }

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let text = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let new = between(&text, "new").unwrap();
        assert_eq!(new, format!("a\n{BEGIN}\nnew\n{END}\nb\n"));
        assert!(between("a", "new").is_err());
    }
}
